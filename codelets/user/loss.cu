/*
 * codelets/user/loss.cu: calls a user's loss, which launches kernels.
 *
 * The stream sets the value to NaN first, so that it is NaN unless a kernel writes it, as on CPU
 * cores. Launch errors are asked for right after the call, so that a refused launch is reported as
 * a failure of this loss.
 */
#include "codelets/cuda/cuda.h"
#include "codelets/user/loss.h"

/* All bits set are a NaN. */
static gpp_status unset(const gpp__cuda *cuda, double *value, gpp_error *err)
{
    return GPP__CUDA(cudaMemsetAsync(value, 0xff, sizeof *value, cuda->stream), NULL, err);
}

gpp_status gpp__user_loss_run_cuda(const gpp__loss_call *call)
{
    const gpp_loss_function *def = (const gpp_loss_function *)call->attr;
    gpp_error said = GPP_ERROR_INIT;
    gpp_loss_call theirs = gpp__user_loss_call(call, &said);
    theirs.stream = call->cuda->stream;
    theirs.scratch = def->scratch_cuda ? call->scratch : NULL;
    gpp_status status = unset(call->cuda, call->value, call->err);
    if (status != GPP_OK)
        return status;
    status = def->run_cuda(&theirs, call->value);
    if (status == GPP_OK && said.code == GPP_OK)
        status = gpp__cuda_launched(NULL, &said);
    return gpp__user_loss_outcome(def, "run_cuda", status, &said, call->err);
}

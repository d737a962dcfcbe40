/* tests/cuda_emulation/include/cuda_runtime_api.h: what StarPU's headers include. */
#include <cuda_runtime.h>

/*
 * graph/pipe.c: making a pipe: options checked, model cut, partitions placed, parameters
 * initialised.
 */
#include <stdlib.h>
#include <string.h>

#include <gridpipe/balance.h>

#include "codelets/attr.h"
#include "graph/pipe.h"

/* --- checkpoint modes
 * ---------------------------------------------------------------------------------------------- */

static const char *const checkpoint_names[] = {"except_last", "always", "never"};

const char *gpp_checkpoint_name(gpp_checkpoint mode)
{
    return (unsigned)mode < 3 ? checkpoint_names[mode] : NULL;
}

gpp_status gpp_checkpoint_parse(const char *name, gpp_checkpoint *mode, gpp_error *err)
{
    if (!mode)
        return gpp__fail(err, GPP_EINVAL, "mode is NULL");
    for (int k = 0; name && k < 3; k++)
        if (!strcmp(name, checkpoint_names[k])) {
            *mode = (gpp_checkpoint)k;
            return GPP_OK;
        }
    return gpp__fail(err, GPP_EINVAL,
                     "checkpoint is \"%s\", not one of \"always\", \"except_last\", \"never\"",
                     name ? name : "(null)");
}

/* --- options
 * -------------------------------------------------------------------------------------------------------
 */

/* An empty mini-batch is cut into as many pieces as there are chunks, so their number is bounded.
 */
enum { MOST_CHUNKS = 1 << 20 };

static gpp_status check_options(const gpp_model *m, const gpp_pipe_options *o, gpp_error *err)
{
    if (o->struct_size != sizeof *o)
        return gpp__fail(err, GPP_EINVAL,
                         "options must start from GPP_PIPE_OPTIONS_INIT (struct_size is %zu)",
                         o->struct_size);
    if (o->chunks < 1 || o->chunks > MOST_CHUNKS)
        return gpp__fail(err, GPP_EINVAL, "chunks must be >= 1 and at most %d, got %d", MOST_CHUNKS,
                         o->chunks);
    if (!gpp_checkpoint_name(o->checkpoint))
        return gpp__fail(err, GPP_EINVAL, "checkpoint must be always, except_last or never, got %d",
                         (int)o->checkpoint);
    if (!m->count)
        return gpp__fail(err, GPP_EINVAL, "the model has no layers");
    if (!m->has_input)
        return gpp__fail(err, GPP_ESTATE, "the model's input is not set (gpp_model_set_input)");
    if (o->partitions < 0 || o->partitions > m->count)
        return gpp__fail(err, GPP_EINVAL, "partitions must be 1 ... %d, the model's layers, got %d",
                         m->count, o->partitions);
    if (o->balance && !o->partitions)
        return gpp__fail(err, GPP_EINVAL, "balance is given without the number of partitions");
    if (o->batch < 0)
        return gpp__fail(err, GPP_EINVAL, "batch must be >= 0, got %lld", (long long)o->batch);
    if (o->device_count < 0 || !o->devices != !o->device_count)
        return gpp__fail(err, GPP_EINVAL, "devices are %s, device_count is %d",
                         o->devices ? "given" : "not given", o->device_count);
    return GPP_OK;
}

static gpp_status given_balance(gpp_pipe *p, const int *balance, gpp_error *err)
{
    int64_t sum = 0;
    for (int j = 0; j < p->partitions; j++) {
        if (balance[j] < 1)
            return gpp__fail(err, GPP_EINVAL,
                             "every partition needs a layer: balance[%d] is %d (without a balance "
                             "the library cuts by cost, see gpp_balance_minmax)",
                             j, balance[j]);
        sum += balance[j];
        p->balance[j] = balance[j];
    }
    if (sum != p->model->count)
        return gpp__fail(err, GPP_EINVAL,
                         "model and sum of balance have different length (model: %d, sum of "
                         "balance: %lld); without a "
                         "balance the library cuts by cost, see gpp_balance_minmax",
                         p->model->count, (long long)sum);
    return GPP_OK;
}

/*
 * A guess of a layer's time until there is a profile: arithmetic, and the bytes it reads and writes
 * at the roughly ten flops a core can do while one byte comes from memory. Renaming a tensor costs
 * nothing.
 */
static double guess_cost(const gpp__layer *l)
{
    enum { FLOPS_PER_BYTE = 10 };
    if (l->op->is_view && l->op->is_view(l))
        return 1;
    double elements = 0, bytes = 0;
    for (int t = 0; t < l->in_count; t++)
        bytes += (double)gpp__desc_bytes(&l->in[t]);
    for (int t = 0; t < l->out_count; t++) {
        bytes += (double)gpp__desc_bytes(&l->out[t]);
        elements += (double)gpp__desc_count(&l->out[t]);
    }
    return 1 + (l->op->flops ? l->op->flops(l) : elements) + FLOPS_PER_BYTE * bytes;
}

static gpp_status automatic_balance(gpp_pipe *p, gpp_error *err)
{
    double *cost = malloc((size_t)p->model->count * sizeof *cost);
    if (!cost)
        return gpp__fail(err, GPP_ENOMEM, "costs of %d layers", p->model->count);
    for (int k = 0; k < p->model->count; k++)
        cost[k] = guess_cost(&p->model->layer[k]);
    gpp_status status =
        gpp_balance_minmax((size_t)p->model->count, cost, (size_t)p->partitions, p->balance, err);
    free(cost);
    return status;
}

static gpp_status cut(gpp_pipe *p, const gpp_pipe_options *o, gpp_error *err)
{
    p->partitions = o->partitions ? o->partitions : 1;
    size_t n = (size_t)p->partitions;
    p->balance = calloc(n, sizeof *p->balance);
    p->first = calloc(n, sizeof *p->first);
    p->device_of = calloc(n, sizeof *p->device_of);
    p->stage = calloc(n, sizeof *p->stage);
    if (!p->balance || !p->first || !p->device_of || !p->stage)
        return gpp__fail(err, GPP_ENOMEM, "%d partitions", p->partitions);
    gpp_status status = o->balance ? given_balance(p, o->balance, err) : automatic_balance(p, err);
    for (int j = 1; status == GPP_OK && j < p->partitions; j++)
        p->first[j] = p->first[j - 1] + p->balance[j - 1];
    return status;
}

/* --- losses and optimizers by specification
 * ------------------------------------------------------------------------ */

enum { MOST_ATTRS = 16, ATTR_TEXT = 512 };

typedef struct spec {
    char name[64], text[ATTR_TEXT];
    gpp_attr attr[MOST_ATTRS];
    size_t count;
} spec;

static gpp_status parse_spec(const char *what, const char *text, spec *s, gpp_error *err)
{
    gpp_error why = GPP_ERROR_INIT;
    gpp_status status = gpp__attr_parse_spec(text, s->name, s->attr, &s->count, MOST_ATTRS, s->text,
                                             sizeof s->text, &why);
    return status == GPP_OK ? GPP_OK
                            : gpp__fail(err, status, "%s \"%.80s\": %.120s", what, text, why.msg);
}

static gpp_status make_attr(const char *name, const gpp__key *keys, size_t size, const spec *s,
                            void **attr, gpp_error *err)
{
    *attr = calloc(1, size ? size : 1);
    if (!*attr)
        return gpp__fail(err, GPP_ENOMEM, "attributes of %s", name);
    gpp__attr_defaults(keys, *attr);
    return gpp__attr_set(name, keys, *attr, s->attr, s->count, err);
}

static gpp_status choose_loss(gpp_pipe *p, const char *text, gpp_error *err)
{
    if (!text)
        return GPP_OK;
    spec s;
    gpp_status status = parse_spec("loss", text, &s, err);
    if (status != GPP_OK)
        return status;
    for (int k = 0; gpp__losses[k] && !p->loss; k++)
        if (!strcmp(gpp__losses[k]->name, s.name))
            p->loss = gpp__losses[k];
    if (!p->loss)
        return gpp__fail(err, GPP_ENOENT, "no loss is called \"%s\"", s.name);
    status = make_attr(s.name, p->loss->keys, p->loss->attr_size, &s, &p->loss_attr, err);
    return status == GPP_OK ? p->loss->target(p->loss_attr, &p->y_desc, &p->target_desc, err)
                            : status;
}

static gpp_status choose_optimizer(gpp_pipe *p, const char *text, gpp_error *err)
{
    if (!text)
        return GPP_OK;
    spec s;
    gpp_status status = parse_spec("optimizer", text, &s, err);
    if (status != GPP_OK)
        return status;
    for (int k = 0; gpp__optimizers[k] && !p->optimizer; k++)
        if (!strcmp(gpp__optimizers[k]->name, s.name))
            p->optimizer = gpp__optimizers[k];
    if (!p->optimizer)
        return gpp__fail(err, GPP_ENOENT, "no optimizer is called \"%s\"", s.name);
    status =
        make_attr(s.name, p->optimizer->keys, p->optimizer->attr_size, &s, &p->optimizer_attr, err);
    if (status == GPP_OK && p->optimizer->check)
        status = p->optimizer->check(p->optimizer_attr, err);
    return status;
}

/* --- placement
 * -----------------------------------------------------------------------------------------------------
 */

static bool has_core(const gpp__device *d, int core)
{
    for (int k = 0; k < d->cores; k++)
        if (d->core[k] == core)
            return true;
    return false;
}

/** Each device gets a worker of its own: one that StarPU put on the device's cores (and memory)
 * where there is one. */
static void choose_workers(gpp_pipe *p)
{
    bool taken[STARPU_NMAXWORKERS] = {false};
    const gpp__runtime *r = &p->runtime;
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d < p->devices; d++)
            for (int w = 0; w < r->workers && p->state[d].worker < 0; w++) {
                int core = gpp__runtime_core(r->topology, w, r->workers);
                if (taken[w] || (pass == 0 && !has_core(&p->device[d], core)))
                    continue;
                taken[w] = true;
                p->state[d].worker = r->worker[w];
            }
}

static void bind_pool_thread(void *arg, int thread)
{
    const gpp__device_state *s = arg;
    hwloc_set_cpubind(s->cpu.topology, s->device->cpuset[thread], HWLOC_CPUBIND_THREAD);
}

static gpp_status start_device(gpp_pipe *p, int d, gpp_error *err)
{
    static atomic_uint_fast64_t next_id = 1;
    gpp__device_state *s = &p->state[d];
    s->device = &p->device[d];
    s->node = gpp__runtime_node(s->worker);
    s->cpu.id = atomic_fetch_add(&next_id, 1);
    s->cpu.topology = p->runtime.topology;
    s->cpu.home = p->runtime.owned ? p->device[d].cpuset[0] : NULL;
    p->node_of[d] = (int)s->node;
    p->device_name[d] = p->device[d].name;
    p->device_threads[d] = p->device[d].cores;
    gpp_status status = gpp__pool_new(&s->cpu.pool, p->device[d].cores, bind_pool_thread, s, err);
    return status == GPP_OK ? gpp__lane_new(&s->lane, p->runtime.context, s->worker, 1024, err)
                            : status;
}

static gpp_status place(gpp_pipe *p, const gpp_pipe_options *o, gpp_error *err)
{
    gpp_status status = gpp__runtime_acquire(&p->runtime, err);
    if (status != GPP_OK)
        return status;
    p->has_runtime = true;
    status = gpp__devices_new(p->runtime.topology, o->devices, o->device_count, p->partitions,
                              p->runtime.workers, &p->device, &p->devices, p->device_of, err);
    if (status != GPP_OK)
        return status;
    size_t n = (size_t)p->devices;
    p->state = calloc(n, sizeof *p->state);
    p->node_of = calloc(n, sizeof *p->node_of);
    p->device_name = calloc(n, sizeof *p->device_name);
    p->device_threads = calloc(n, sizeof *p->device_threads);
    if (!p->state || !p->node_of || !p->device_name || !p->device_threads)
        return gpp__fail(err, GPP_ENOMEM, "%d devices", p->devices);
    for (int d = 0; d < p->devices; d++)
        p->state[d].worker = -1;
    choose_workers(p);
    for (int d = 0; status == GPP_OK && d < p->devices; d++)
        status = start_device(p, d, err);
    return status;
}

static gpp_status make_slots(gpp_pipe *p, gpp_error *err)
{
    int n = p->partitions + 1 > p->devices ? p->partitions + 1 : p->devices;
    for (int c = 0; c < GPP__CLASSES; c++)
        if (!(p->slots[c] = calloc((size_t)n, sizeof *p->slots[c])))
            return gpp__fail(err, GPP_ENOMEM, "%d partitions", p->partitions);
    return GPP_OK;
}

static gpp_status make_stages(gpp_pipe *p, int64_t batch, gpp_error *err)
{
    int64_t rows = 0, last;
    if (batch)
        gpp__chunk(batch, p->chunks, &rows, &last);
    gpp_status status = GPP_OK;
    for (int j = 0; status == GPP_OK && j < p->partitions; j++, p->stages++) {
        gpp__stage *s = &p->stage[j];
        status = gpp__stage_init(s, &p->model->layer[p->first[j]], p->balance[j], rows, err);
        if (status != GPP_OK)
            break;
        s->model_input = j == 0;
        s->model_output = j == p->partitions - 1;
    }
    return status;
}

/* --- making and freeing
 * -------------------------------------------------------------------------------------------- */

/** Before anything large is taken: what a device holds whatever the mini-batch. */
static gpp_status parameters_fit(const gpp_pipe *p, gpp_error *err)
{
    for (int d = 0; p->memory_limit && d < p->devices; d++) {
        size_t need = 0;
        for (int j = 0; j < p->partitions; j++)
            if (p->device_of[j] == d)
                need += p->stage[j].params_bytes + gpp__optimizer_bytes(p, j);
        if (need > p->memory_limit)
            return gpp__fail(err, GPP_ENOMEM,
                             "device %s: parameters and optimizer state alone need %zu bytes, the "
                             "limit is %zu (more partitions need less each)",
                             p->device[d].name, need, p->memory_limit);
    }
    return GPP_OK;
}

/** Buffers for the largest mini-batch at once, so that a model that does not fit is refused here.
 */
static gpp_status reserve(gpp_pipe *p, int64_t batch, gpp_error *err)
{
    if (!batch)
        return GPP_OK;
    gpp__exec *e;
    unsigned flags = p->loss ? GPP__DO_FORWARD | GPP__DO_LOSS | GPP__DO_BACKWARD |
                                   (p->optimizer ? GPP__DO_UPDATE : 0)
                             : GPP__DO_FORWARD | GPP__DO_OUTPUTS;
    return gpp__exec_get(p, flags, batch, &e, err);
}

static gpp_status build(gpp_pipe *p, const gpp_model *model, const gpp_pipe_options *o,
                        gpp_error *err)
{
    gpp_status status = gpp__model_clone(model, &p->model, err);
    if (status != GPP_OK)
        return status;
    int outputs;
    const gpp__desc *y = gpp__model_output(p->model, &outputs);
    if (p->model->input_count != 1 || outputs != 1)
        return gpp__fail(err, GPP_EINVAL,
                         "the model takes %d tensors and gives %d, expected one each",
                         p->model->input_count, outputs);
    p->y_desc = *y;
    status = choose_loss(p, o->loss, err);
    if (status == GPP_OK)
        status = choose_optimizer(p, o->optimizer, err);
    if (status == GPP_OK)
        status = cut(p, o, err);
    if (status == GPP_OK)
        status = place(p, o, err);
    if (status == GPP_OK)
        status = make_slots(p, err);
    if (status == GPP_OK)
        status = make_stages(p, o->batch, err);
    if (status == GPP_OK)
        status = parameters_fit(p, err);
    if (status == GPP_OK)
        status = reserve(p, o->batch, err);
    if (status == GPP_OK)
        status = gpp__params_init(p, err);
    return status;
}

gpp_status gpp_pipe_new(gpp_pipe **pipe, const gpp_model *model, const gpp_pipe_options *options,
                        gpp_error *err)
{
    if (!pipe)
        return gpp__fail(err, GPP_EINVAL, "pipe is NULL");
    *pipe = NULL;
    gpp_pipe_options defaults = GPP_PIPE_OPTIONS_INIT;
    const gpp_pipe_options *o = options ? options : &defaults;
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "model is NULL");
    gpp_status status = check_options(model, o, err);
    if (status != GPP_OK)
        return status;
    gpp_pipe *p = calloc(1, sizeof *p);
    if (!p)
        return gpp__fail(err, GPP_ENOMEM, "a pipe");
    gpp__job_init(&p->job);
    p->chunks = o->chunks;
    p->checkpoint = o->checkpoint;
    p->seed = o->seed;
    p->nan_is_error = o->nan_is_error;
    p->ascending = o->ascending_backward;
    p->memory_limit = o->memory_limit;
    p->kept_rows = -1;
    status = build(p, model, o, err);
    if (status != GPP_OK) {
        gpp_pipe_free(p);
        return status;
    }
    *pipe = p;
    return GPP_OK;
}

static void free_devices(gpp_pipe *p)
{
    for (int d = 0; p->state && d < p->devices; d++) {
        gpp__lane_free(p->state[d].lane);
        gpp__pool_free(p->state[d].cpu.pool);
    }
    gpp__devices_free(p->device, p->devices);
    free(p->state);
    free(p->node_of);
    free(p->device_name);
    free(p->device_threads);
}

void gpp_pipe_free(gpp_pipe *p)
{
    if (!p)
        return;
    gpp__exec_free_all(p);
    if (p->has_runtime)
        gpp__slots_free_all(p);
    for (int j = 0; j < p->stages; j++)
        gpp__stage_release(&p->stage[j]);
    gpp__params_release(p);
    free_devices(p);
    if (p->has_runtime)
        gpp__runtime_release(&p->runtime);
    free(p->stage);
    free(p->balance);
    free(p->first);
    free(p->device_of);
    free(p->loss_attr);
    free(p->optimizer_attr);
    gpp_model_free(p->model);
    gpp__job_release(&p->job);
    free(p);
}

/* --- looking at it
 * -------------------------------------------------------------------------------------------------
 */

void gpp_pipe_get_info(const gpp_pipe *p, gpp_pipe_info *info)
{
    if (!info)
        return;
    *info = (gpp_pipe_info){0};
    if (p)
        *info = (gpp_pipe_info){p->model->count, p->partitions,  p->devices,
                                p->chunks,       p->checkpoint,  p->balance,
                                p->device_of,    p->device_name, p->device_threads};
}

gpp_status gpp_pipe_memory(const gpp_pipe *p, int device, size_t *planned, size_t *peak,
                           gpp_error *err)
{
    if (!p || device < 0 || device >= p->devices)
        return gpp__fail(err, GPP_EINVAL, "device %d of %d", device, p ? p->devices : 0);
    if (planned)
        *planned = p->state[device].planned;
    if (peak)
        *peak = atomic_load(&p->state[device].meter.peak);
    return GPP_OK;
}

gpp_status gpp_pipe_draw(gpp_pipe *p, gpp_picture picture, int64_t batch, char **text,
                         gpp_error *err)
{
    if (!p || !text || batch < 0)
        return gpp__fail(err, GPP_EINVAL,
                         "a picture needs a pipe, a batch >= 0 and somewhere to go");
    *text = NULL;
    static bool (*const drawers[])(const gpp__plan *, FILE *) = {gpp__plan_grid, gpp__plan_dot,
                                                                 gpp__plan_text};
    if ((unsigned)picture >= sizeof drawers / sizeof *drawers)
        return gpp__fail(err, GPP_EINVAL, "no picture %d", (int)picture);
    unsigned flags = GPP__DO_FORWARD | GPP__DO_BACKWARD | (p->loss ? GPP__DO_LOSS : 0) |
                     (p->optimizer ? GPP__DO_UPDATE : 0);
    gpp__plan *plan;
    gpp_status status = gpp__exec_plan(p, flags, batch, &plan, err);
    if (status != GPP_OK)
        return status;
    size_t size;
    FILE *out = open_memstream(text, &size);
    bool drawn = out && drawers[picture](plan, out);
    if (out && fclose(out))
        drawn = false;
    gpp__plan_free(plan);
    if (drawn)
        return GPP_OK;
    free(*text);
    *text = NULL;
    return gpp__fail(err, GPP_ENOMEM, "a picture of the plan");
}

void gpp_string_free(char *text)
{
    free(text);
}

/*
 * codelets/user/user.c: definitions of user operators: checks, copies, reference counts.
 *
 * A definition is checked as far as it can be without a layer: names that text can spell, keys that
 * some number satisfies, skips with one name each. The copy holds everything but what `user` points
 * to, so the caller's struct and strings may go.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/user/internal.h"

bool gpp__is_status(gpp_status status)
{
    switch (status) {
#define IS_STATUS(name, value, text)                                                               \
    case name:                                                                                     \
        return true;
        GPP_STATUS_LIST(IS_STATUS)
#undef IS_STATUS
    }
    return false;
}

bool gpp__user_word(const char *word, size_t most, const char *also)
{
    size_t n = 0;
    for (; n <= most && word[n]; n++) {
        char c = word[n];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && c != '_' && !strchr(also, c))
            return false;
    }
    return n > 0 && n <= most;
}

int gpp__user_find(int count, const char name[][GPP__NAME], const char *wanted)
{
    for (int k = 0; wanted && k < count; k++)
        if (strcmp(name[k], wanted) == 0)
            return k;
    return -1;
}

static void user_skips(gpp__layer *layer)
{
    const gpp__user_op *user = gpp__user_of(layer);
    layer->skips = 0;
    for (int k = 0; k < user->stashes + user->pops; k++) {
        bool stash = k < user->stashes;
        gpp__skip *skip = &layer->skip[layer->skips++];
        *skip = (gpp__skip){.stash = stash};
        strcpy(skip->name, stash ? user->stash[k] : user->pop[k - user->stashes]);
    }
    layer->stashes = user->stashes;
    layer->pops = user->pops;
}

static gpp_status check_name(const gpp_operator *def, gpp_error *err)
{
    static const char *const reserved[] = {"chain", "graph"};
    if (!def->name)
        return gpp__fail(err, GPP_EINVAL, "an operator without a name");
    bool digit = def->name[0] >= '0' && def->name[0] <= '9';
    if (digit || !gpp__user_word(def->name, GPP__USER_WORD - 1, ""))
        return gpp__fail(err, GPP_EINVAL,
                         "operator \"%.64s\": its name must be 1 ... %d letters, digits and '_', a "
                         "digit not first",
                         def->name, GPP__USER_WORD - 1);
    bool taken = gpp__op_find(def->name) != NULL;
    for (size_t k = 0; k < sizeof reserved / sizeof *reserved; k++)
        taken = taken || strcmp(def->name, reserved[k]) == 0;
    return taken ? gpp__fail(err, GPP_EINVAL, "operator \"%s\": its name is that of a built-in one",
                             def->name)
                 : GPP_OK;
}

static gpp_status check_key(const gpp_operator *def, int at, gpp_error *err)
{
    const gpp_operator_key *key = &def->keys[at];
    bool digit = key->name[0] >= '0' && key->name[0] <= '9';
    if (at == GPP__USER_KEYS)
        return gpp__fail(err, GPP_EINVAL, "operator \"%s\": more than %d keys", def->name,
                         GPP__USER_KEYS);
    if (digit || !gpp__user_word(key->name, GPP__USER_WORD - 1, ""))
        return gpp__fail(err, GPP_EINVAL,
                         "operator \"%s\": key \"%.64s\" is not 1 ... %d letters, digits and '_', "
                         "a digit not first",
                         def->name, key->name, GPP__USER_WORD - 1);
    for (int other = 0; other < at; other++)
        if (strcmp(key->name, def->keys[other].name) == 0)
            return gpp__fail(err, GPP_EINVAL, "operator \"%s\": two keys \"%s\"", def->name,
                             key->name);
    if (key->count < 1 || key->count > GPP__USER_NUMBERS)
        return gpp__fail(err, GPP_EINVAL,
                         "operator \"%s\": key \"%s\" takes %d numbers, expected 1 ... %d",
                         def->name, key->name, key->count, GPP__USER_NUMBERS);
    if (!(key->min <= key->max))
        return gpp__fail(err, GPP_EINVAL,
                         "operator \"%s\": key \"%s\" must be %g ... %g: nothing is", def->name,
                         key->name, key->min, key->max);
    return GPP_OK;
}

static gpp_status set_keys(gpp__user_op *op, const gpp_operator *def, gpp_error *err)
{
    for (int k = 0; def->keys && def->keys[k].name; k++) {
        const gpp_operator_key *key = &def->keys[k];
        gpp_status status = check_key(def, k, err);
        if (status)
            return status;
        bool any = key->min == 0 && key->max == 0;
        strcpy(op->key_name[k], key->name);
        op->key[k] = (gpp__key){
            .name = op->key_name[k],
            .type = GPP__KEY_REAL,
            .offset = (size_t)k * sizeof(double[GPP__USER_NUMBERS]),
            .count = key->count,
            .min = any ? -INFINITY : key->min,
            .max = any ? INFINITY : key->max,
            .required = key->required,
            .fallback = key->fallback,
        };
    }
    return GPP_OK;
}

/* A list of at most `most` skips. */
static gpp_status set_skips(const gpp_operator *def, const char *const list[], int most,
                            char name[][GPP__NAME], int *count, gpp_error *err)
{
    for (*count = 0; list && list[*count]; ++*count) {
        const char *skip = list[*count];
        if (*count == most)
            return gpp__fail(err, GPP_EINVAL,
                             "operator \"%s\": too many skips, \"%.64s\" is one more than fit",
                             def->name, skip);
        if (!gpp__user_word(skip, GPP__NAME - 1, "-."))
            return gpp__fail(err, GPP_EINVAL,
                             "operator \"%s\": skip \"%.64s\" is not 1 ... %d letters, digits, "
                             "'_', '-' and '.'",
                             def->name, skip, GPP__NAME - 1);
        if (gpp__user_find(*count, name, skip) >= 0)
            return gpp__fail(err, GPP_EINVAL, "operator \"%s\": skip \"%s\" is declared twice",
                             def->name, skip);
        strcpy(name[*count], skip);
    }
    return GPP_OK;
}

static void set_op(gpp__user_op *op)
{
    const gpp_operator *def = &op->def;
    op->op = (gpp_op){
        .name = op->name,
        .keys = op->key[0].name ? op->key : NULL,
        .attr_size = sizeof(double[GPP__USER_KEYS][GPP__USER_NUMBERS]),
        .infer = gpp__user_infer,
        .skips = op->stashes + op->pops ? user_skips : NULL,
        .backward_needs = (def->flags & GPP_OP_NEEDS_INPUT ? GPP_NEEDS_INPUT : 0u) |
                          (def->flags & GPP_OP_NEEDS_OUTPUT ? GPP_NEEDS_OUTPUT : 0u),
        .may_fail = true,
        .row_major = true,
        .zero_grads = true,
        .takes_none = op->pops > 0,
        .may_stash_none = op->stashes > 0,
        .init = gpp__user_init,
        .flops = def->flops ? gpp__user_flops : NULL,
        .cpu.prepare = gpp__user_prepare,
        .cpu.release = gpp__user_release,
        .cpu.forward = gpp__user_forward,
        .cpu.backward = def->backward ? gpp__user_backward : NULL,
    };
    op->cuda = (gpp__kernels){.prepare = gpp__user_prepare,
                              .release = gpp__user_release,
                              .forward = gpp__user_forward_cuda,
                              .backward = def->backward_cuda ? gpp__user_backward_cuda : NULL};
    if (def->forward_cuda)
        op->op.cuda = &op->cuda;
}

static gpp_status check_functions(const gpp_operator *def, gpp_error *err)
{
    if (!def->infer || !def->forward)
        return gpp__fail(err, GPP_EINVAL, "operator \"%s\": %s is missing", def->name,
                         def->infer ? "forward" : "infer");
    if ((def->backward_cuda && !def->forward_cuda) ||
        (def->forward_cuda && !def->backward_cuda != !def->backward))
        return gpp__fail(err, GPP_EINVAL,
                         "operator \"%s\": on CUDA it has %s forward and %s backward, on CPU "
                         "cores a forward and %s backward",
                         def->name, def->forward_cuda ? "a" : "no", def->backward_cuda ? "a" : "no",
                         def->backward ? "a" : "no");
    if (def->flags & ~(unsigned)(GPP_OP_NEEDS_INPUT | GPP_OP_NEEDS_OUTPUT))
        return gpp__fail(err, GPP_EINVAL, "operator \"%s\": flags 0x%x are not all known",
                         def->name, def->flags);
    return GPP_OK;
}

static gpp_status define(gpp__user_op *op, const gpp_operator *def, gpp_error *err)
{
    gpp_status status = check_name(def, err);
    if (!status)
        status = check_functions(def, err);
    if (!status)
        status = set_keys(op, def, err);
    if (!status) /* one fewer, since the operator has an output too */
        status = set_skips(def, def->stash, GPP__USER_SKIPS - 1, op->stash, &op->stashes, err);
    if (!status)
        status = set_skips(def, def->pop, GPP__USER_SKIPS - op->stashes, op->pop, &op->pops, err);
    if (status)
        return status;
    strcpy(op->name, def->name);
    op->def = *def;
    op->def.name = op->name;
    op->def.keys = NULL; /* ours are in `key`, `stash` and `pop` */
    op->def.stash = op->def.pop = NULL;
    set_op(op);
    return GPP_OK;
}

gpp_status gpp__user_op_new(gpp__user_op **out, const gpp_operator *def, gpp_error *err)
{
    *out = NULL;
    if (!def)
        return gpp__fail(err, GPP_EINVAL, "the operator is NULL");
    gpp__user_op *op = calloc(1, sizeof *op);
    if (!op)
        return gpp__fail(err, GPP_ENOMEM, "an operator");
    gpp_status status = define(op, def, err);
    if (status) {
        free(op);
        return status;
    }
    atomic_init(&op->holders, 1);
    *out = op;
    return GPP_OK;
}

const gpp_op *gpp__user_op_op(const gpp__user_op *op)
{
    return &op->op;
}

gpp__user_op *gpp__user_op_hold(gpp__user_op *op)
{
    atomic_fetch_add_explicit(&op->holders, 1, memory_order_relaxed);
    return op;
}

void gpp__user_op_drop(gpp__user_op *op)
{
    if (op && atomic_fetch_sub_explicit(&op->holders, 1, memory_order_acq_rel) == 1)
        free(op);
}

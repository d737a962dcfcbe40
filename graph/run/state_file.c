/*
 * graph/run/state_file.c: saves and loads a pipe's parameters, or the whole state of its training.
 *
 * A state file holds the arrays (ledger.h) and everything else that the next step depends on and
 * that is not part of the model, the loss or the optimizer. Numbers are words of metadata. Doubles
 * are written in hexadecimal, which is exact:
 *
 *     gridpipe.state                    version of this list: 2
 *     gridpipe.loss, .optimizer         their names, to check
 *     gridpipe.optimizer_states         names of the arrays of the optimizer's state, to check
 *     gridpipe.steps, .seed             of the random generator
 *     gridpipe.updates                  of the optimizer
 *     gridpipe.lr                       the base rate
 *     gridpipe.lr_schedule              absent: the rate is constant
 *     gridpipe.updates.<parameter>      what the optimizer counts for the parameter,
 *     gridpipe.scalar0.<parameter>      and scalar1: as many as the optimizer has
 *     gridpipe.lr.<parameter>           the rate of its group; absent: the group has none
 *     gridpipe.weight_decay.<parameter> likewise
 *     gridpipe.frozen.<parameter>       1; absent: the parameter learns
 *
 * Invariant: a load checks everything before it changes anything. The last part that can fail is
 * the exchange of the arrays, which undoes itself.
 */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gridpipe/lr_schedule.h>

#include "graph/run/ledger.h"

#define PREFIX  "gridpipe."
#define VERSION "2"

static gpp_status check_pipe(gpp_pipe *p, const char *path, gpp_error *err)
{
    if (!p || !path)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", p ? "path" : "pipe");
    gpp__comm_begin(p->comm);
    gpp__settle(p);
    if (p->broken)
        return gpp__fail(err, GPP_ESTATE, "an earlier failure has left this pipe unusable");
    return GPP_OK;
}

static void discard_passes(gpp_pipe *p)
{
    gpp__discard_kept(p); /* a backward must use the parameters of its forward */
    p->has_grads = p->pending = false;
}

/* --- parameters ------------------------------------------------------------------------------- */

/* Put the arrays into the file and write it, unless something has failed on some rank. */
static gpp_status write_arrays(gpp_pipe *p, gpp_file *f, bool state, const char *path,
                               gpp_status status, gpp_error *err)
{
    gpp__ledger ledger = {0};
    if (status == GPP_OK)
        status = gpp__ledger_init(&ledger, p, state, err);
    status = gpp__agree(p, "saving", status, state, err);
    if (status == GPP_OK)
        status = gpp__ledger_save(&ledger, f, err);
    gpp__ledger_release(&ledger);
    if (status == GPP_OK && gpp__has_files(p))
        status = gpp_file_write(f, path, err);
    return gpp__agree(p, "the end of saving", status, 0, err);
}

gpp_status gpp_pipe_save(gpp_pipe *p, const char *path, gpp_error *err)
{
    gpp_file *f = NULL;
    gpp_status status = check_pipe(p, path, err);
    if (!p)
        return status;
    if (status == GPP_OK)
        status = gpp_file_new(&f, err);
    if (status == GPP_OK) /* names and shapes are PyTorch's; some readers insist on this word */
        status = gpp_file_set_word(f, "format", "pt", err);
    status = write_arrays(p, f, false, path, status, err);
    gpp_file_free(f);
    return status;
}

static gpp_status fail_load(const char *path, const gpp_error *inner, const char *hint,
                            gpp_error *err)
{
    return gpp__fail(err, inner->code, "loading \"%.200s\": %s%s", path, inner->msg, hint);
}

static gpp_status take_arrays(gpp_pipe *p, gpp_file *f, unsigned flags, gpp_error *err)
{
    gpp__ledger ledger;
    gpp_status status = gpp__ledger_init(&ledger, p, false, err);
    if (status == GPP_OK && gpp__has_files(p))
        status = gpp__ledger_match(&ledger, f, flags, err);
    status = gpp__ledger_deal(&ledger, f, status, err);
    if (status == GPP_OK)
        status = gpp__ledger_exchange(&ledger, err);
    if (status == GPP_OK)
        discard_passes(p);
    gpp__ledger_release(&ledger);
    return status;
}

/* Read a file on the rank that has it; other ranks get its words. */
static gpp_status read_file(gpp_pipe *p, const char *path, gpp_status status, gpp_file **file,
                            gpp_error *err)
{
    if (status == GPP_OK && gpp__has_files(p))
        status = gpp_file_read(file, path, err);
    return gpp__file_spread(p, file, status, err);
}

gpp_status gpp_pipe_load(gpp_pipe *p, const char *path, unsigned flags, gpp_error *err)
{
    gpp_error inner = GPP_ERROR_INIT;
    gpp_file *f = NULL;
    gpp_status status = check_pipe(p, path, err);
    if (!p)
        return status;
    if (status == GPP_OK && (flags & ~(unsigned)(GPP_LOAD_ALLOW_MISSING | GPP_LOAD_ALLOW_EXTRA)))
        status = gpp__fail(err, GPP_EINVAL, "flags are 0x%x: unknown ones among them", flags);
    status = read_file(p, path, status, &f, err);
    if (status == GPP_OK) {
        bool is_state = gpp_file_word(f, PREFIX "state");
        status = take_arrays(p, f, flags, &inner);
        if (status != GPP_OK)
            fail_load(path, &inner, is_state ? " (the file is of gpp_pipe_save_state)" : "", err);
    }
    gpp_file_free(f);
    return status;
}

/* --- words ------------------------------------------------------------------------------------ */

/* Numbers are written and read in the C locale, whatever locale the program has set. */
static locale_t enter_c_locale(locale_t *c)
{
    *c = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    return *c ? uselocale(*c) : (locale_t)0;
}

static void leave_c_locale(locale_t c, locale_t before)
{
    if (!c)
        return;
    uselocale(before);
    freelocale(c);
}

/* "gridpipe.<what>" or "gridpipe.<what>.<parameter>". */
static char *key_of(const char *what, const char *parameter)
{
    size_t size = strlen(PREFIX) + strlen(what) + (parameter ? strlen(parameter) : 0) + 2;
    char *key = malloc(size);
    if (key)
        snprintf(key, size, PREFIX "%s%s%s", what, parameter ? "." : "",
                 parameter ? parameter : "");
    return key;
}

static gpp_status set_text(gpp_file *f, const char *what, const char *parameter, const char *value,
                           gpp_error *err)
{
    char *key = key_of(what, parameter);
    gpp_status status = key ? gpp_file_set_word(f, key, value, err)
                            : gpp__fail(err, GPP_ENOMEM, "word \"%s\"", what);
    free(key);
    return status;
}

static gpp_status set_count(gpp_file *f, const char *what, const char *parameter, uint64_t value,
                            gpp_error *err)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return set_text(f, what, parameter, text, err);
}

static gpp_status set_real(gpp_file *f, const char *what, const char *parameter, double value,
                           gpp_error *err)
{
    char text[40];
    snprintf(text, sizeof text, "%a", value);
    return set_text(f, what, parameter, text, err);
}

/* *value is NULL when there is no such word. */
static gpp_status get_text(const gpp_file *f, const char *what, const char *parameter,
                           const char **value, gpp_error *err)
{
    char *key = key_of(what, parameter);
    if (!key)
        return gpp__fail(err, GPP_ENOMEM, "word \"%s\"", what);
    *value = gpp_file_word(f, key);
    free(key);
    return GPP_OK;
}

static gpp_status fail_word(const char *what, const char *parameter, const char *value,
                            gpp_error *err)
{
    const char *dot = parameter ? "." : "";
    parameter = parameter ? parameter : "";
    if (!value)
        return gpp__fail(err, GPP_ENOENT, "the state has no word \"" PREFIX "%s%s%.80s\"", what,
                         dot, parameter);
    return gpp__fail(err, GPP_ESYNTAX, "word \"" PREFIX "%s%s%.80s\" is \"%.60s\"", what, dot,
                     parameter, value);
}

static gpp_status get_count(const gpp_file *f, const char *what, const char *parameter,
                            uint64_t most, uint64_t *count, gpp_error *err)
{
    const char *text = NULL;
    gpp_status status = get_text(f, what, parameter, &text, err);
    if (status != GPP_OK)
        return status;
    size_t digits = text ? strspn(text, "0123456789") : 0;
    errno = 0;
    *count = digits ? strtoull(text, NULL, 10) : 0;
    bool read = digits && !text[digits] && !errno && *count <= most;
    return read ? GPP_OK : fail_word(what, parameter, text, err);
}

/* Read a finite number. @param fallback  its value when it is absent; NULL: it must be there */
static gpp_status get_real(const gpp_file *f, const char *what, const char *parameter,
                           const double *fallback, double *value, gpp_error *err)
{
    const char *text = NULL;
    char *end = NULL;
    gpp_status status = get_text(f, what, parameter, &text, err);
    if (status != GPP_OK)
        return status;
    if (!text && fallback) {
        *value = *fallback;
        return GPP_OK;
    }
    *value = text ? strtod(text, &end) : NAN;
    return text && *text && !*end && isfinite(*value) ? GPP_OK
                                                      : fail_word(what, parameter, text, err);
}

/* --- saving a state --------------------------------------------------------------------------- */

static const char *name_of_loss(const gpp_pipe *p)
{
    return p->recipe->loss ? p->recipe->loss->name : "none";
}

static const char *name_of_optimizer(const gpp_pipe *p)
{
    return p->recipe->optimizer ? p->recipe->optimizer->name : "none";
}

/* "exp_avg, exp_avg_sq". */
static const char *state_names(const gpp_pipe *p, char out[256])
{
    size_t used = 0;
    int states = p->recipe->optimizer ? p->recipe->optimizer->states(p->recipe->optimizer_attr) : 0;
    out[0] = '\0';
    for (int s = 0; s < states && used < 256; s++)
        used += (size_t)snprintf(out + used, 256 - used, "%s%s", s ? ", " : "",
                                 p->recipe->optimizer->state_names[s]);
    return out;
}

static bool is_frozen(const gpp_pipe *p, const gpp__named *n)
{
    return p->recipe->network->node[n->node].param[n->param].frozen;
}

static gpp_status save_parameter(const gpp_pipe *p, int k, gpp_file *f, gpp_error *err)
{
    const gpp__named *n = &p->recipe->named[k];
    const gpp__learned *l = &p->learning.learned[k];
    static const char *const scalar[] = {"scalar0", "scalar1"};
    _Static_assert(GPP__MAX_SCALARS == sizeof scalar / sizeof *scalar, "a name for each");
    gpp_status status = set_count(f, "updates", n->name, (uint64_t)l->updates, err);
    for (int s = 0; p->recipe->optimizer && s < p->recipe->optimizer->scalars && status == GPP_OK;
         s++)
        status = set_real(f, scalar[s], n->name, l->scalar[s], err);
    if (status == GPP_OK && !isnan(p->learning.group[k].lr))
        status = set_real(f, "lr", n->name, p->learning.group[k].lr, err);
    if (status == GPP_OK && !isnan(p->learning.group[k].weight_decay))
        status = set_real(f, "weight_decay", n->name, p->learning.group[k].weight_decay, err);
    if (status == GPP_OK && is_frozen(p, n))
        status = set_count(f, "frozen", n->name, 1, err);
    return status;
}

static gpp_status save_words(const gpp_pipe *p, gpp_file *f, gpp_error *err)
{
    char names[256];
    gpp_status status = set_text(f, "state", NULL, VERSION, err);
    if (status == GPP_OK)
        status = set_text(f, "loss", NULL, name_of_loss(p), err);
    if (status == GPP_OK)
        status = set_text(f, "optimizer", NULL, name_of_optimizer(p), err);
    if (status == GPP_OK)
        status = set_text(f, "optimizer_states", NULL, state_names(p, names), err);
    if (status == GPP_OK)
        status = set_count(f, "steps", NULL, p->steps, err);
    if (status == GPP_OK)
        status = set_count(f, "seed", NULL, p->seed, err);
    if (status == GPP_OK)
        status = set_count(f, "updates", NULL, (uint64_t)p->updates, err);
    if (status == GPP_OK)
        status = set_real(f, "lr", NULL, p->learning.base_lr, err);
    if (status == GPP_OK && p->learning.lr_schedule)
        status = set_text(f, "lr_schedule", NULL, p->learning.lr_schedule, err);
    for (int k = 0; k < p->recipe->parameters && status == GPP_OK; k++)
        status = save_parameter(p, k, f, err);
    return status;
}

static gpp_status add_words(gpp_file *f, const char *const words[], int count, gpp_error *err)
{
    if (count < 0 || (count && !words))
        return gpp__fail(err, GPP_EINVAL, "words are %s, their number is %d",
                         words ? "given" : "NULL", count);
    for (int k = 0; k < count; k++) {
        const char *key = words[2 * k];
        if (key && !strncmp(key, PREFIX, strlen(PREFIX)))
            return gpp__fail(err, GPP_EINVAL, "word \"%.80s\": keys in \"" PREFIX "\" are taken",
                             key);
        if (key && gpp_file_word(f, key))
            return gpp__fail(err, GPP_EINVAL, "word \"%.80s\" is given twice", key);
        gpp_status status = gpp_file_set_word(f, key, words[2 * k + 1], err);
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}

static gpp_status make_state(gpp_pipe *p, const char *const words[], int count, gpp_file *f,
                             gpp_error *err)
{
    gpp_status status = add_words(f, words, count, err);
    if (status != GPP_OK)
        return status;
    locale_t c, before = enter_c_locale(&c);
    status = save_words(p, f, err);
    leave_c_locale(c, before);
    return status;
}

gpp_status gpp_pipe_save_state(gpp_pipe *p, const char *path, const char *const words[], int count,
                               gpp_error *err)
{
    gpp_file *f = NULL;
    gpp_status status = check_pipe(p, path, err);
    if (!p)
        return status;
    if (status == GPP_OK && p->adds && p->pending)
        status = gpp__fail(err, GPP_ESTATE,
                           "gradients have added up that no update has used, and a file does not "
                           "hold them: update, or discard them, first");
    if (status == GPP_OK)
        status = gpp_file_new(&f, err);
    status = gpp__learned_gather(p, status, err);
    if (status == GPP_OK)
        status = make_state(p, words, count, f, err);
    status = write_arrays(p, f, true, path, status, err);
    gpp_file_free(f);
    return status;
}

/* --- loading a state -------------------------------------------------------------------------- */

/* What the words of a file say. It is complete and checked before the pipe adopts it. */
typedef struct state {
    uint64_t steps, seed, updates;
    double lr;
    char *lr_schedule;     /* NULL: none */
    gpp__group *group;     /* [parameters] */
    gpp__learned *learned; /* [parameters] */
    bool *frozen;          /* [parameters] */
} state;

static void state_release(state *s)
{
    free(s->lr_schedule);
    free(s->group);
    free(s->learned);
    free(s->frozen);
}

static gpp_status check_same(const gpp_file *f, const char *what, const char *mine, gpp_error *err)
{
    const char *text = NULL;
    gpp_status status = get_text(f, what, NULL, &text, err);
    if (status != GPP_OK)
        return status;
    if (!text)
        return fail_word(what, NULL, NULL, err);
    return strcmp(text, mine) ? gpp__fail(err, GPP_EINVAL,
                                          "%s: \"%.60s\" in the state, \"%.60s\" "
                                          "in this pipe",
                                          what, text, mine)
                              : GPP_OK;
}

static gpp_status check_kind(const gpp_pipe *p, const gpp_file *f, gpp_error *err)
{
    char names[256];
    const char *version = gpp_file_word(f, PREFIX "state");
    if (!version)
        return gpp__fail(err, GPP_ENOENT,
                         "no training state (parameters alone are for gpp_pipe_load)");
    if (strcmp(version, VERSION))
        return gpp__fail(err, GPP_EUNSUPPORTED,
                         "a state of version \"%.20s\", this library reads " VERSION, version);
    gpp_status status = check_same(f, "loss", name_of_loss(p), err);
    if (status == GPP_OK)
        status = check_same(f, "optimizer", name_of_optimizer(p), err);
    if (status == GPP_OK)
        status = check_same(f, "optimizer_states", state_names(p, names), err);
    return status;
}

static gpp_status read_lr_schedule(const gpp_file *f, state *s, gpp_error *err)
{
    double rate;
    const char *text = gpp_file_word(f, PREFIX "lr_schedule");
    s->lr_schedule = text ? strdup(text) : NULL;
    if (!text)
        return GPP_OK;
    if (!s->lr_schedule)
        return gpp__fail(err, GPP_ENOMEM, "an lr_schedule");
    return gpp_lr_schedule_rate(text, (int64_t)s->updates, s->lr, &rate, err);
}

static gpp_status read_group(const gpp_file *f, const char *name, gpp__group *g, gpp_error *err)
{
    const double none = NAN;
    gpp_status status = get_real(f, "lr", name, &none, &g->lr, err);
    if (status == GPP_OK)
        status = get_real(f, "weight_decay", name, &none, &g->weight_decay, err);
    if (status == GPP_OK && (g->lr < 0 || g->weight_decay < 0))
        return gpp__fail(err, GPP_EINVAL, "\"%.80s\" has a learning rate or weight decay below 0",
                         name);
    return status;
}

static gpp_status read_parameter(const gpp_pipe *p, const gpp_file *f, int k, state *st,
                                 gpp_error *err)
{
    const gpp__named *n = &p->recipe->named[k];
    gpp__learned *l = &st->learned[k];
    static const char *const scalar[] = {"scalar0", "scalar1"};
    const char *text = NULL;
    uint64_t updates = 0;
    gpp_status status = get_count(f, "updates", n->name, INT64_MAX, &updates, err);
    l->updates = (int64_t)updates;
    for (int s = 0; p->recipe->optimizer && s < p->recipe->optimizer->scalars && status == GPP_OK;
         s++)
        status = get_real(f, scalar[s], n->name, NULL, &l->scalar[s], err);
    if (status == GPP_OK)
        status = read_group(f, n->name, &st->group[k], err);
    if (status == GPP_OK)
        status = get_text(f, "frozen", n->name, &text, err);
    st->frozen[k] = text;
    if (status == GPP_OK && text && strcmp(text, "1"))
        return fail_word("frozen", n->name, text, err);
    return status;
}

static gpp_status read_numbers(const gpp_pipe *p, const gpp_file *f, state *s, gpp_error *err)
{
    gpp_status status = get_count(f, "steps", NULL, UINT64_MAX, &s->steps, err);
    if (status == GPP_OK)
        status = get_count(f, "seed", NULL, UINT64_MAX, &s->seed, err);
    if (status == GPP_OK)
        status = get_count(f, "updates", NULL, INT64_MAX, &s->updates, err);
    if (status == GPP_OK)
        status = get_real(f, "lr", NULL, NULL, &s->lr, err);
    if (status == GPP_OK && s->lr < 0)
        status = gpp__fail(err, GPP_EINVAL, "a learning rate of %g", s->lr);
    if (status == GPP_OK)
        status = read_lr_schedule(f, s, err);
    for (int k = 0; k < p->recipe->parameters && status == GPP_OK; k++)
        status = read_parameter(p, f, k, s, err);
    return status;
}

static gpp_status read_state(const gpp_pipe *p, const gpp_file *f, state *s, gpp_error *err)
{
    size_t count = (size_t)p->recipe->parameters;
    s->group = calloc(count + 1, sizeof *s->group);
    s->learned = calloc(count + 1, sizeof *s->learned);
    s->frozen = calloc(count + 1, sizeof *s->frozen);
    if (!s->group || !s->learned || !s->frozen)
        return gpp__fail(err, GPP_ENOMEM, "the state of %d parameters", p->recipe->parameters);
    memcpy(s->group, p->learning.group, count * sizeof *s->group);
    memcpy(s->learned, p->learning.learned, count * sizeof *s->learned);
    locale_t c, before = enter_c_locale(&c);
    gpp_status status = read_numbers(p, f, s, err);
    leave_c_locale(c, before);
    return status;
}

/* Cannot fail. */
static void adopt_state(gpp_pipe *p, state *s)
{
    for (int k = 0; k < p->recipe->parameters; k++)
        if (s->frozen[k] != is_frozen(p, &p->recipe->named[k]))
            gpp_pipe_freeze(p, p->recipe->named[k].name, s->frozen[k], NULL);
    memcpy(p->learning.group, s->group, (size_t)p->recipe->parameters * sizeof *p->learning.group);
    for (int r = 0; r < p->recipe->replicas; r++)
        memcpy(p->learning.learned + (size_t)r * (size_t)p->recipe->parameters, s->learned,
               (size_t)p->recipe->parameters * sizeof *p->learning.learned);
    p->steps = s->steps;
    p->seed = s->seed;
    p->updates = (int64_t)s->updates;
    p->learning.base_lr = s->lr;
    free(p->learning.lr_schedule);
    p->learning.lr_schedule = s->lr_schedule;
    s->lr_schedule = NULL;
    discard_passes(p);
}

/* @param keep  the caller wants the file's arrays afterwards: copy them back */
static gpp_status take_state(gpp_pipe *p, gpp_file *f, bool keep, gpp_error *err)
{
    state s = {0};
    gpp__ledger ledger = {.pipe = p};
    gpp_status status = check_kind(p, f, err);
    if (status == GPP_OK)
        status = read_state(p, f, &s, err);
    if (status == GPP_OK)
        status = gpp__ledger_init(&ledger, p, true, err);
    if (status == GPP_OK && gpp__has_files(p))
        status = gpp__ledger_match(&ledger, f, 0, err);
    status = gpp__ledger_deal(&ledger, f, status, err);
    if (status == GPP_OK)
        status = gpp__ledger_exchange(&ledger, err);
    if (status == GPP_OK && keep) /* cannot fail: the exchange has just acquired the same blocks */
        gpp__ledger_copy(&ledger, NULL);
    if (status == GPP_OK)
        adopt_state(p, &s);
    gpp__ledger_release(&ledger);
    state_release(&s);
    return status;
}

gpp_status gpp_pipe_load_state(gpp_pipe *p, const char *path, gpp_file **file, gpp_error *err)
{
    gpp_error inner = GPP_ERROR_INIT;
    gpp_file *f = NULL;
    if (file)
        *file = NULL;
    gpp_status status = check_pipe(p, path, err);
    if (!p)
        return status;
    status = read_file(p, path, status, &f, err);
    if (status != GPP_OK) {
        gpp_file_free(f);
        return status;
    }
    status = take_state(p, f, file, &inner);
    if (status != GPP_OK)
        fail_load(path, &inner, "", err);
    else if (file) {
        *file = f;
        return GPP_OK;
    }
    gpp_file_free(f);
    return status;
}

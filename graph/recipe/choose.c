/*
 * graph/recipe/choose.c: a recipe's loss, optimizer and schedule from their specifications.
 */
#include <stdlib.h>
#include <string.h>

#include <gridpipe/balance.h>
#include <gridpipe/lr_schedule.h>

#include "codelets/attr.h"
#include "codelets/user/loss.h"
#include "graph/recipe/recipe.h"

const char *gpp_loss_name(size_t k)
{
    size_t count = 0;
    while (count < k && gpp__losses[count])
        count++;
    return gpp__losses[count] ? gpp__losses[count]->name : NULL;
}

const char *gpp_optimizer_name(size_t k)
{
    size_t count = 0;
    while (count < k && gpp__optimizers[count])
        count++;
    return gpp__optimizers[count] ? gpp__optimizers[count]->name : NULL;
}

const char *gpp_schedule_name(size_t k)
{
    size_t count = 0;
    while (count < k && gpp__schedules[count])
        count++;
    return gpp__schedules[count] ? gpp__schedules[count]->name : NULL;
}

static gpp_status fail_unknown(const char *what, const char *name, const char *(*known)(size_t),
                               gpp_error *err)
{
    char all[256] = "";
    size_t at = 0;
    for (size_t k = 0; known(k) && at < sizeof all; k++)
        at += (size_t)snprintf(all + at, sizeof all - at, "%s%s", k ? ", " : "", known(k));
    return gpp__fail(err, GPP_ENOENT, "no %s is called \"%s\"; there are %s", what, name, all);
}

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

static gpp_status keep_text(const char *text, char **copy, gpp_error *err)
{
    *copy = text ? strdup(text) : NULL;
    return !text || *copy ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "a copy of \"%.80s\"", text);
}

static gpp_status find_loss(gpp__recipe *r, const gpp_pipe_options *o, gpp_error *err)
{
    if (o->loss_function) {
        gpp_status status = gpp__user_loss_new(&r->user_loss, o->loss_function, err);
        if (status != GPP_OK)
            return status;
        r->loss = r->user_loss;
        r->loss_attr = malloc(r->loss->attr_size);
        if (!r->loss_attr)
            return gpp__fail(err, GPP_ENOMEM, "attributes of a loss");
        memcpy(r->loss_attr, gpp__user_loss_attr(r->loss), r->loss->attr_size);
        return GPP_OK;
    }
    spec s;
    gpp_status status = parse_spec("loss", o->loss, &s, err);
    if (status != GPP_OK)
        return status;
    for (int k = 0; gpp__losses[k] && !r->loss; k++)
        if (!strcmp(gpp__losses[k]->name, s.name))
            r->loss = gpp__losses[k];
    if (!r->loss)
        return fail_unknown("loss", s.name, gpp_loss_name, err);
    return make_attr(s.name, r->loss->keys, r->loss->attr_size, &s, &r->loss_attr, err);
}

static gpp_status take_class_weights(gpp__recipe *r, const gpp_pipe_options *o, gpp_error *err)
{
    if (!o->class_weights)
        return GPP_OK;
    if (!r->loss || !r->loss->classes)
        return gpp__fail(err, GPP_EINVAL, "class_weights are given, but %s takes none",
                         r->loss ? r->loss->name : "no loss");
    int64_t classes = r->loss->classes(r->loss_attr, &r->y_desc);
    if (classes != o->class_weight_count)
        return gpp__fail(err, GPP_ESHAPE, "%s: %lld classes, %d class weights", r->loss->name,
                         (long long)classes, o->class_weight_count);
    size_t bytes = (size_t)classes * sizeof *r->class_weight;
    r->class_weights = classes;
    r->class_weight = malloc(bytes);
    if (!r->class_weight)
        return gpp__fail(err, GPP_ENOMEM, "%lld class weights", (long long)classes);
    memcpy(r->class_weight, o->class_weights, bytes);
    return GPP_OK;
}

gpp_status gpp__choose_loss(gpp__recipe *r, const gpp_pipe_options *o, gpp_error *err)
{
    if (!o->loss && !o->loss_function)
        return take_class_weights(r, o, err);
    gpp_status status = find_loss(r, o, err);
    if (status == GPP_OK)
        status = keep_text(o->loss, &r->loss_text, err);
    if (status != GPP_OK)
        return status;
    if (r->network->outputs != 1)
        return gpp__fail(err, GPP_ESHAPE, "%s: takes one output, the model has %d", r->loss->name,
                         r->network->outputs);
    status = r->loss->target(r->loss_attr, &r->y_desc, &r->target_desc, err);
    return status == GPP_OK ? take_class_weights(r, o, err) : status;
}

static gpp_status find_optimizer(gpp__recipe *r, const char *text, gpp_error *err)
{
    spec s;
    gpp_status status = parse_spec("optimizer", text, &s, err);
    if (status != GPP_OK)
        return status;
    for (int k = 0; gpp__optimizers[k] && !r->optimizer; k++)
        if (!strcmp(gpp__optimizers[k]->name, s.name))
            r->optimizer = gpp__optimizers[k];
    if (!r->optimizer)
        return fail_unknown("optimizer", s.name, gpp_optimizer_name, err);
    status =
        make_attr(s.name, r->optimizer->keys, r->optimizer->attr_size, &s, &r->optimizer_attr, err);
    if (status == GPP_OK && r->optimizer->check)
        status = r->optimizer->check(r->optimizer_attr, err);
    return status;
}

double gpp__recipe_lr(const gpp__recipe *r)
{
    double lr;
    memcpy(&lr, (const char *)r->optimizer_attr + r->optimizer->lr_offset, sizeof lr);
    return lr;
}

gpp_status gpp__choose_optimizer(gpp__recipe *r, const gpp_pipe_options *o, gpp_error *err)
{
    if (!o->optimizer)
        return GPP_OK;
    gpp_status status = find_optimizer(r, o->optimizer, err);
    if (status == GPP_OK)
        status = keep_text(o->optimizer, &r->optimizer_text, err);
    if (status == GPP_OK)
        status = keep_text(o->lr_schedule, &r->lr_schedule_text, err);
    if (status != GPP_OK)
        return status;
    double lr = gpp__recipe_lr(r), rate;
    return o->lr_schedule ? gpp_lr_schedule_rate(o->lr_schedule, 0, lr, &rate, err) : GPP_OK;
}

static gpp_status take_table(gpp__recipe *r, const char *text, gpp_error *err)
{
    gpp_status status = keep_text(text, &r->table_text, err);
    if (status != GPP_OK)
        return status;
    r->own_schedule = gpp__schedule_of_text(r->table_text);
    r->schedule = &r->own_schedule;
    return GPP_OK;
}

gpp_status gpp__choose_schedule(gpp__recipe *r, const gpp_pipe_options *o, gpp_error *err)
{
    static const char table[] = "table:";
    gpp_status status = GPP_OK;
    r->schedule = o->schedule ? gpp__schedule_find(o->schedule) : &gpp__schedule_gpipe;
    if (!r->schedule && !strncmp(o->schedule, table, sizeof table - 1))
        status = take_table(r, o->schedule + sizeof table - 1, err);
    else if (!r->schedule)
        status = fail_unknown("schedule", o->schedule, gpp_schedule_name, err);
    if (status == GPP_OK && r->schedule->split && o->checkpoint == GPP_CHECKPOINT_BUDGET)
        status = gpp__fail(err, GPP_EINVAL,
                           "schedule %s has gradients of parameters as tasks of their own, which "
                           "checkpoint budget cannot have",
                           r->schedule->name);
    return status;
}

gpp_status gpp_optimizer_param_scale(const char *optimizer, double *scale, gpp_error *err)
{
    gpp__recipe r = {0}; /* only for find_optimizer to fill */
    if (!scale)
        return gpp__fail(err, GPP_EINVAL, "scale is NULL");
    gpp_status status = optimizer ? find_optimizer(&r, optimizer, err) : GPP_OK;
    if (status == GPP_OK)
        *scale = GPP_PARAM_SCALE + (r.optimizer ? r.optimizer->states(r.optimizer_attr) : 0);
    free(r.optimizer_attr);
    return status;
}

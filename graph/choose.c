/*
 * graph/choose.c: a pipe's loss and optimizer from their specifications.
 */
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"
#include "graph/pipe.h"

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

gpp_status gpp__choose_loss(gpp_pipe *p, const char *text, gpp_error *err)
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
    if (p->network->outputs != 1)
        return gpp__fail(err, GPP_ESHAPE, "%s: takes one output, the model has %d", s.name,
                         p->network->outputs);
    status = make_attr(s.name, p->loss->keys, p->loss->attr_size, &s, &p->loss_attr, err);
    return status == GPP_OK ? p->loss->target(p->loss_attr, &p->y_desc, &p->target_desc, err)
                            : status;
}

gpp_status gpp__choose_optimizer(gpp_pipe *p, const char *text, gpp_error *err)
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

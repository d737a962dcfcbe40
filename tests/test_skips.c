/*
 * tests/test_skips.c: stashes and pops: which belong together, namespaces, and the values they
 * become.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gridpipe.h>

#include "graph/model/model.h"

static gpp_model *from_text(const char *text)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    cr_assert_eq(gpp_model_new(&model, NULL), GPP_OK);
    cr_assert_eq(gpp_model_add_text(model, text, &err), GPP_OK, "%s", err.msg);
    return model;
}

static gpp_status set_input(gpp_model *model, int rank, gpp_error *err)
{
    static const int64_t dim[] = {4, 6, 6};
    return gpp_model_set_input(model, GPP_F32, rank, dim, err);
}

/* --- an operator with any skips: "s" for what it stashes, "p" for what it pops ---------------- */

typedef struct knot_attr {
    char stash[GPP__NAME], stash2[GPP__NAME], pop[GPP__NAME], pop2[GPP__NAME], ns[GPP__NAME];
} knot_attr;

#define NAME_KEY(member)                                                                           \
    {                                                                                              \
        .name = #member, .type = GPP__KEY_NAME, .offset = offsetof(knot_attr, member), .count = 1  \
    }
static const gpp__key knot_keys[] = {NAME_KEY(stash), NAME_KEY(stash2), NAME_KEY(pop),
                                     NAME_KEY(pop2),  NAME_KEY(ns),     {.name = NULL}};

static void knot_one(gpp__layer *layer, const char *name, bool stash)
{
    const knot_attr *a = layer->attr;
    if (!*name)
        return;
    gpp__skip *skip = &layer->skip[layer->skips++];
    strcpy(skip->name, name);
    strcpy(skip->ns, a->ns);
    skip->stash = stash;
    *(stash ? &layer->stashes : &layer->pops) += 1;
}

/* Pops first: the order is the operator's. */
static void knot_skips(gpp__layer *layer)
{
    const knot_attr *a = layer->attr;
    knot_one(layer, a->pop, false);
    knot_one(layer, a->stash, true);
    knot_one(layer, a->pop2, false);
    knot_one(layer, a->stash2, true);
}

static gpp_status knot_infer(gpp__layer *layer, gpp_error *err)
{
    (void)err;
    layer->out_count = 1 + layer->stashes;
    for (int t = 0; t < layer->out_count; t++)
        layer->out[t] = layer->in[0];
    return GPP_OK;
}

static const gpp_op knot = {.name = "knot",
                            .keys = knot_keys,
                            .attr_size = sizeof(knot_attr),
                            .infer = knot_infer,
                            .skips = knot_skips};
static const gpp_op odd = {.name = "odd",
                           .keys = knot_keys,
                           .attr_size = sizeof(knot_attr),
                           .infer = knot_infer,
                           .skips = knot_skips,
                           .row_major = true,
                           .may_stash_none = true};

/* "s:foo p:bar" adds a knot; several are separated by '|'; "foo/a" is foo in namespace a. */
static void add_knots(gpp_model *model, const gpp_op *op, const char *what)
{
    char copy[512], *rest = copy, *one;
    snprintf(copy, sizeof copy, "%s", what);
    while ((one = strsep(&rest, "|"))) {
        static const char *const key[2][2] = {{"pop", "pop2"}, {"stash", "stash2"}};
        gpp_attr attr[5];
        size_t count = 0;
        int used[2] = {0, 0};
        char *word, *ns = NULL;
        gpp_error err = GPP_ERROR_INIT;
        while ((word = strsep(&one, " "))) {
            if (!*word)
                continue;
            bool stash = word[0] == 's';
            ns = strchr(word, '/');
            if (ns)
                *ns++ = '\0';
            attr[count++] = (gpp_attr)GPP_WORD(key[stash][used[stash]++], word + 2);
        }
        if (ns)
            attr[count++] = (gpp_attr)GPP_WORD("ns", ns);
        cr_assert_eq(gpp__model_add_op(model, op, NULL, attr, count, &err), GPP_OK, "%s", err.msg);
    }
}

static gpp_model *knots(const char *what)
{
    gpp_model *model;
    cr_assert_eq(gpp_model_new(&model, NULL), GPP_OK);
    add_knots(model, &knot, what);
    return model;
}

/* --- matching --------------------------------------------------------------------------------- */

static const struct {
    const char *why, *layers;
    const char *lines[3]; /* of the report, in order; none: all is well */
} cases[] = {
    {"no skips", "", {NULL}},
    {"a pair", "s:foo|p:foo", {NULL}},
    {"a pair with something between", "s:foo||p:foo", {NULL}},
    {"stashed alone", "s:foo", {"* no layer declared \"foo\" as poppable but \"0\" stashed it"}},
    {"popped alone", "p:foo", {"* \"0\" declared \"foo\" as poppable but it was not stashed"}},
    {"the wrong way round",
     "p:foo|s:foo",
     {"* \"0\" declared \"foo\" as poppable but it was not stashed",
      "* no layer declared \"foo\" as poppable but \"1\" stashed it"}},
    {"stashed twice",
     "s:foo|s:foo|p:foo",
     {"* \"1\" redeclared \"foo\" as stashable but not isolated by namespace"}},
    {"popped twice",
     "s:foo|p:foo|p:foo",
     {"* \"2\" redeclared \"foo\" as poppable but not isolated by namespace"}},
    {"one after the other, of one name",
     "s:foo|p:foo|s:foo|p:foo",
     {"* \"2\" redeclared \"foo\" as stashable but not isolated by namespace",
      "* \"3\" redeclared \"foo\" as poppable but not isolated by namespace"}},
    {"the same with namespaces", "s:foo/a|p:foo/a|s:foo/b|p:foo/b", {NULL}},
    {"nested with namespaces", "s:foo/a|s:foo/b|p:foo/a|p:foo/b", {NULL}},
    {"a layer that pops one and stashes another", "s:foo|p:foo s:bar|p:bar", {NULL}},
    {"both in one layer",
     "s:foo p:foo",
     {"* \"0\" declared \"foo\" both as stashable and as poppable"}},
    {"both in one layer, with others of the name: it is left out",
     "s:foo|s:foo p:foo|p:foo",
     {"* \"1\" declared \"foo\" both as stashable and as poppable"}},
    {"both, and another skip that is fine",
     "s:bar|s:foo p:foo p:bar",
     {"* \"1\" declared \"foo\" both as stashable and as poppable"}},
    {"several of a layer", "s:foo s:bar|p:bar p:foo", {NULL}},
    {"names differ",
     "s:foo|p:fo",
     {"* \"1\" declared \"fo\" as poppable but it was not stashed",
      "* no layer declared \"foo\" as poppable but \"0\" stashed it"}},
    {"namespaces differ",
     "s:foo/a|p:foo/b",
     {"* \"1\" declared \"foo\" (namespace \"b\") as poppable but it was not stashed",
      "* no layer declared \"foo\" (namespace \"a\") as poppable but \"0\" stashed it"}},
    {"the default namespace is another one",
     "s:foo|p:foo/a",
     {"* \"1\" declared \"foo\" (namespace \"a\") as poppable but it was not stashed",
      "* no layer declared \"foo\" as poppable but \"0\" stashed it"}},
    {"name and namespace do not run into each other", "s:a/bc|s:ab/c|p:ab/c|p:a/bc", {NULL}},
    {"popped before and after",
     "p:foo|s:foo|p:foo",
     {"* \"0\" declared \"foo\" as poppable but it was not stashed"}},
    {"a layer at fault twice",
     "s:foo s:bar|p:bar p:foo|p:bar p:foo",
     {"* \"2\" redeclared \"bar\" as poppable but not isolated by namespace",
      "* \"2\" redeclared \"foo\" as poppable but not isolated by namespace"}},
};

Test(skips, every_violation_is_reported_in_order)
{
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        char expected[600] = "stashes and pops do not match:", *report = NULL;
        gpp_model *model = knots(cases[k].layers);
        gpp_status status = gpp_verify_skips(model, &report, &err);
        for (int n = 0; n < 3 && cases[k].lines[n]; n++) {
            strcat(expected, "\n");
            strcat(expected, cases[k].lines[n]);
        }
        cr_expect_eq(status, cases[k].lines[0] ? GPP_EINVAL : GPP_OK, "%s: %s", cases[k].why,
                     err.msg);
        if (cases[k].lines[0]) {
            cr_expect_str_eq(report, expected, "%s", cases[k].why);
            cr_expect_str_eq(err.msg, expected, "%s", cases[k].why);
        } else {
            cr_expect_null(report, "%s", cases[k].why);
        }
        gpp_error_clear(&err);
        cr_expect_eq(set_input(model, 1, &err), status, "%s: setting the input checks the same",
                     cases[k].why);
        cr_expect_str_eq(err.msg, status ? expected : "", "%s", cases[k].why);
        gpp_string_free(report);
        gpp_model_free(model);
    }
}

Test(skips, the_record_names_the_first_layer_at_fault)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = knots("|s:foo|s:foo|p:foo|p:bar");
    cr_expect_eq(gpp_verify_skips(model, NULL, &err), GPP_EINVAL);
    cr_expect_eq(err.layer, 2);
    cr_expect_eq(gpp_verify_skips(model, NULL, NULL), GPP_EINVAL);
    gpp_error kept = {GPP_ENOMEM, 7, -1, -1, "first"};
    cr_expect_eq(gpp_verify_skips(model, NULL, &kept), GPP_EINVAL);
    cr_expect_str_eq(kept.msg, "first", "a record keeps the first failure");
    gpp_error_clear(&err);
    cr_expect_eq(gpp_verify_skips(NULL, NULL, &err), GPP_EINVAL);
    gpp_model_free(model);
}

/* A model of `layers` layers of which each stashes a name of `length` letters. */
static gpp_model *repeated(int layers, int length)
{
    gpp_model *model = knots("s:s");
    char name[GPP__NAME] = "";
    gpp__model_truncate(model, 0);
    memset(name, 'n', (size_t)length);
    const gpp_attr attr = GPP_WORD("stash", name);
    for (int k = 0; k < layers; k++)
        cr_assert_eq(gpp__model_add_op(model, &knot, NULL, &attr, 1, NULL), GPP_OK);
    return model;
}

Test(skips, what_the_record_cannot_hold_it_counts)
{
    for (int length = 1; length < GPP__NAME; length++) { /* the last line ends anywhere */
        gpp_error err = GPP_ERROR_INIT;
        char *report, *line;
        int lines = 0, held = 0, more = 0, end = 0, layers = 12 * length;
        gpp_model *model = repeated(layers, length);
        cr_expect_eq(gpp_verify_skips(model, &report, &err), GPP_EINVAL);
        for (line = report; (line = strchr(line, '\n')); line++)
            lines++;
        cr_expect_eq(lines, layers, "all but the first are at fault, and that is not popped");
        for (line = err.msg; (line = strstr(line, "\n* ")); line++)
            held++;
        line = strstr(err.msg, "\n... and ");
        if (line)
            cr_expect(sscanf(line, "\n... and %d more%n", &more, &end) == 1 && !line[end], "%s",
                      err.msg);
        cr_expect_eq(held + more, layers, "%s", err.msg);
        size_t same = line ? (size_t)(line - err.msg) : strlen(report) + 1;
        cr_expect_eq(strncmp(report, err.msg, same), 0, "cut at a whole line: %s", err.msg);
        gpp_string_free(report);
        gpp_model_free(model);
    }
}

Test(skips, many_are_matched_in_a_moment)
{
    enum { MANY = 20000 };
    gpp_model *model;
    char name[16];
    cr_assert_eq(gpp_model_new(&model, NULL), GPP_OK);
    for (int k = 0; k < 2 * MANY; k++) {
        snprintf(name, sizeof name, "n%d", k < MANY ? k : 2 * MANY - 1 - k);
        const gpp_attr attr = GPP_WORD(k < MANY ? "stash" : "pop", name);
        cr_assert_eq(gpp__model_add_op(model, &knot, NULL, &attr, 1, NULL), GPP_OK);
    }
    cr_expect_eq(gpp_verify_skips(model, NULL, NULL), GPP_OK); /* quadratic: half a minute */
    gpp_model_free(model);
}

/* --- composite layers ------------------------------------------------------------------------- */

Test(skips, operators_inside_a_layer_are_seen)
{
    static const struct {
        const char *why, *text, *message;
    } texts[] = {
        {"stashed and popped inside", "chain { stash name=a; relu; pop name=a mode=add } @b", ""},
        {"stashed inside, popped later", "chain { stash name=a; relu } @b; pop name=a mode=add",
         ""},
        {"popped by a block", "stash name=a; pop name=a mode=add { relu } @b", ""},
        {"popped inside, not stashed", "chain { relu; pop name=a mode=add } @b",
         "\"b\" declared \"a\" as poppable but it was not stashed"},
        {"the wrong way round inside", "chain { pop name=a mode=add; stash name=a } @b",
         "\"b\" declared \"a\" as poppable but it was not stashed"},
        {"a block's pop, not stashed", "relu; pop name=a mode=add { relu } @b",
         "\"b\" declared \"a\" as poppable but it was not stashed"},
        {"a second use outside",
         "chain { stash name=a; relu; pop name=a mode=add } @b; stash name=a @c; pop name=a "
         "mode=add",
         "\"c\" redeclared \"a\" as stashable but not isolated by namespace"},
    };
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model = from_text(texts[k].text);
        gpp_status status = set_input(model, 1, &err);
        cr_expect_eq(status, *texts[k].message ? GPP_EINVAL : GPP_OK, "%s: %s", texts[k].why,
                     err.msg);
        cr_expect(strstr(err.msg, texts[k].message), "%s: %s", texts[k].why, err.msg);
        gpp_model_free(model);
    }
}

/* --- namespaces ------------------------------------------------------------------------------- */

Test(skips, layers_are_isolated_all_or_some_of_their_names)
{
    static const char *const foo[] = {"foo"}, *const bar[] = {"bar"};
    gpp_model *model = knots("s:foo s:bar|s:foo s:bar|p:foo p:bar|p:foo p:bar");
    cr_expect_eq(gpp_verify_skips(model, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_isolate(model, 1, "x", NULL, 0, NULL), GPP_OK);
    cr_expect_eq(gpp_verify_skips(model, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_isolate(model, -1, "x", foo, 1, NULL), GPP_OK);
    cr_expect_eq(gpp_verify_skips(model, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_isolate(model, 3, "x", bar, 1, NULL), GPP_OK);
    cr_expect_eq(gpp_verify_skips(model, NULL, NULL), GPP_OK);
    cr_expect_eq(gpp_model_isolate(model, 3, "y", bar, 1, NULL), GPP_OK, "isolating again");
    cr_expect_eq(gpp_verify_skips(model, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_isolate(model, 3, NULL, NULL, 0, NULL), GPP_OK, "back to the default");
    cr_expect_eq(gpp_model_isolate(model, 2, "x", NULL, 0, NULL), GPP_OK);
    cr_expect_eq(gpp_verify_skips(model, NULL, NULL), GPP_OK);
    gpp_model_free(model);
}

Test(skips, isolating_what_is_not_there_is_refused_and_changes_nothing)
{
    static const char *const some[] = {"foo", "fool"}, *const null[] = {"foo", NULL};
    gpp_model *model = knots("s:foo|p:foo|");
    const struct {
        const char *why;
        int layer;
        const char *ns, *const *names;
        int count;
        gpp_status status;
        const char *message;
    } wrong[] = {
        {"no layer", 3, "a", NULL, 0, GPP_ENOENT, "no layer 3, the model has 3"},
        {"no layer from the end", -4, "a", NULL, 0, GPP_ENOENT, "no layer -4"},
        {"unknown name", 0, "a", some, 2, GPP_ENOENT,
         "knot (layer 0, \"0\") declares no skip \"fool\""},
        {"NULL name", 0, "a", null, 2, GPP_EINVAL, "name 1 is NULL"},
        {"negative count", 0, "a", some, -1, GPP_EINVAL, "-1 names"},
        {"no skips at all", 2, "a", NULL, 0, GPP_ENOENT, "declares no skip to isolate"},
        {"a slash", 0, "a/b", NULL, 0, GPP_EINVAL, "namespace \"a/b\" is not 1 ... 31 letters"},
        {"32 letters", 0, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", NULL, 0, GPP_EINVAL, "31 letters"},
        {"looks as if it were given out", 0, ".ns0", NULL, 0, GPP_EINVAL, "gpp_model_namespace"},
        {"begins with a point", 0, ".a", NULL, 0, GPP_EINVAL, "begins with '.'"},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        gpp_error err = GPP_ERROR_INIT;
        cr_expect_eq(gpp_model_isolate(model, wrong[k].layer, wrong[k].ns, wrong[k].names,
                                       wrong[k].count, &err),
                     wrong[k].status, "%s: %s", wrong[k].why, err.msg);
        cr_expect(strstr(err.msg, wrong[k].message), "%s: %s", wrong[k].why, err.msg);
        cr_expect_eq(gpp_verify_skips(model, NULL, NULL), GPP_OK, "%s", wrong[k].why);
    }
    cr_expect_eq(gpp_model_isolate(NULL, 0, "a", NULL, 0, NULL), GPP_EINVAL);
    cr_expect_eq(set_input(model, 1, NULL), GPP_OK);
    cr_expect_eq(gpp_model_isolate(model, 0, "a", NULL, 0, NULL), GPP_ESTATE);
    gpp_model_free(model);
}

Test(skips, namespaces_that_are_given_out_differ)
{
    char a[32], b[32], c[32];
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = knots("s:foo|s:foo|p:foo|p:foo"), *copy;
    cr_assert_eq(gpp_model_namespace(model, a, NULL), GPP_OK);
    cr_assert_eq(gpp_model_namespace(model, b, NULL), GPP_OK);
    cr_expect_str_neq(a, b);
    cr_expect(*a && *b, "neither is the default one");
    cr_expect_eq(gpp_model_isolate(model, 0, a, NULL, 0, NULL), GPP_OK);
    cr_expect_eq(gpp_model_isolate(model, 3, a, NULL, 0, NULL), GPP_OK);
    cr_expect_eq(gpp_model_isolate(model, 1, b, NULL, 0, NULL), GPP_OK);
    cr_expect_eq(gpp_model_isolate(model, 2, b, NULL, 0, NULL), GPP_OK);
    cr_expect_eq(gpp_verify_skips(model, NULL, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp__model_clone(model, &copy, NULL), GPP_OK);
    cr_assert_eq(gpp_model_namespace(copy, c, NULL), GPP_OK);
    cr_expect(strcmp(c, a) && strcmp(c, b), "a copy knows what was given out");
    cr_expect_eq(gpp_model_namespace(NULL, a, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_namespace(model, NULL, NULL), GPP_EINVAL);
    const gpp_attr attrs[] = {GPP_WORD("stash", "x"), GPP_WORD("ns", a)};
    const gpp_attr other[] = {GPP_WORD("stash", "x"), GPP_WORD("ns", ".ns9")};
    cr_expect_eq(gpp__model_add_op(model, &knot, NULL, attrs, 2, NULL), GPP_OK);
    cr_expect_eq(gpp__model_add_op(model, &knot, NULL, other, 2, NULL), GPP_EINVAL);
    gpp_model_free(model);
    gpp_model_free(copy);
}

/* --- values ----------------------------------------------------------------------------------- */

/* The value that a layer with one operator pops first. */
static const gpp__value *popped(const gpp_model *model, int layer)
{
    const gpp__network *n = &model->network;
    for (int k = n->first[layer]; k < n->first[layer + 1]; k++)
        if (n->node[k].pops)
            return &n->value[n->node[k].from[n->node[k].in_count - n->node[k].pops]];
    return NULL;
}

static int layer_of(const gpp_model *model, int node)
{
    return model->network.node[node].index;
}

/* Source and destination of skips by layers; whoever is cut between the two need not look at it. */
Test(skips, a_skip_is_one_value_from_the_stash_to_the_pop)
{
    static const struct {
        const char *why, *layers;
        int pops[3], from[3];
    } routes[] = {
        {"inside", "|s:foo|p:foo|", {2, -1, -1}, {1, 0, 0}},
        {"far", "s:foo||||p:foo", {4, -1, -1}, {0, 0, 0}},
        {"two to one, the other way round", "s:foo|s:bar|p:bar|p:foo", {2, 3, -1}, {1, 0, 0}},
        {"namespaces", "s:foo/a|s:foo/b|p:foo/a|p:foo/b", {2, 3, -1}, {0, 1, 0}},
        {"default and other namespace", "s:foo|s:foo/b|p:foo/b|p:foo", {2, 3, -1}, {1, 0, 0}},
        {"a chain of skips", "s:a|p:a s:b|p:b s:c|p:c", {1, 2, 3}, {0, 1, 2}},
    };
    for (size_t k = 0; k < sizeof routes / sizeof *routes; k++) {
        gpp_model *model = knots(routes[k].layers);
        cr_assert_eq(set_input(model, 1, NULL), GPP_OK);
        for (int r = 0; r < 3 && routes[k].pops[r] >= 0; r++) {
            const gpp__value *v = popped(model, routes[k].pops[r]);
            cr_expect_eq(layer_of(model, v->producer), routes[k].from[r], "%s", routes[k].why);
            cr_expect_eq(layer_of(model, v->consumer), routes[k].pops[r], "%s", routes[k].why);
            cr_expect(v->skip, "%s", routes[k].why);
            cr_expect_not(v->optional, "%s", routes[k].why);
        }
        gpp_model_free(model);
    }
}

Test(skips, pops_and_stashes_come_last_in_the_operators_order)
{
    gpp_model *model = knots("s:a s:b|p:b p:a");
    cr_assert_eq(set_input(model, 1, NULL), GPP_OK);
    const gpp__network *n = &model->network;
    const gpp__layer *stash = &n->node[0], *pop = &n->node[1];
    cr_assert(stash->in_count == 1 && stash->out_count == 3 && stash->stashes == 2);
    cr_assert(pop->in_count == 3 && pop->out_count == 1 && pop->pops == 2 && pop->stashes == 0);
    cr_expect_eq(pop->from[0], stash->to[0]);
    cr_expect_eq(pop->from[1], stash->to[2], "b, which was stashed second");
    cr_expect_eq(pop->from[2], stash->to[1]);
    cr_expect_str_eq(n->value[stash->to[2]].name.name, "b");
    cr_expect_not(n->value[stash->to[0]].skip);
    gpp_model_free(model);
}

Test(skips, isolated_names_are_those_of_the_network)
{
    gpp_model *model = knots("s:foo|p:foo");
    gpp_model_isolate(model, 0, "x", NULL, 0, NULL);
    gpp_model_isolate(model, 1, "x", NULL, 0, NULL);
    cr_assert_eq(set_input(model, 1, NULL), GPP_OK);
    cr_expect_str_eq(popped(model, 1)->name.ns, "x");
    cr_expect_str_eq(model->network.node[1].skip[0].ns, "x");
    gpp_model_free(model);
}

Test(skips, a_stash_of_a_row_major_operator_is_converted_where_it_is_made)
{
    gpp_model *model = knots("");
    add_knots(model, &odd, "s:foo|p:foo");
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(set_input(model, 3, &err), GPP_OK, "%s", err.msg);
    const gpp__network *n = &model->network;
    const gpp__value *v = popped(model, 2);
    const gpp__layer *before = &n->node[v->producer];
    cr_expect_eq(before->op, &gpp__op_channels_first, "the operator gets (N, C, H, W)");
    cr_expect_eq(before->index, 2);
    const gpp__value *crossing = &n->value[before->from[0]];
    cr_expect_eq(n->node[crossing->producer].op, &gpp__op_channels_last);
    cr_expect_eq(layer_of(model, crossing->producer), 1);
    const gpp__value *made = &n->value[n->node[crossing->producer].from[0]];
    cr_expect_eq(n->node[made->producer].op, &odd);
    cr_expect_eq(made->producer_slot, 1);
    for (int k = 0; k < 3; k++) {
        const gpp__value *each = k == 0 ? v : k == 1 ? crossing : made;
        cr_expect(each->optional && each->skip, "%d", k);
        cr_expect_str_eq(each->name.name, "foo");
    }
    gpp_model_free(model);
}

Test(skips, only_stashes_that_may_be_absent_are_optional)
{
    gpp_model *model = knots("");
    add_knots(model, &odd, "s:foo|p:foo");
    cr_assert_eq(set_input(model, 1, NULL), GPP_OK);
    const gpp__network *n = &model->network;
    cr_expect_eq(n->nodes, 3, "vectors need no change of layout");
    for (int k = 0; k < n->values; k++)
        cr_expect_eq(n->value[k].optional, n->value[k].skip, "value %d", k);
    gpp_model_free(model);
}

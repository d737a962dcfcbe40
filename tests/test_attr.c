/*
 * tests/test_attr.c: attributes, read from text and set by a table of keys.
 */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"

enum { MAX = 4, POOL = 64 };

typedef struct spec {
    char name[64], pool[POOL];
    gpp_attr given[MAX];
    size_t count;
    const char *end;
    gpp_error err;
} spec;

static gpp_status parse(spec *s, const char *text)
{
    memset(s, 0x5a, sizeof *s);
    s->err = (gpp_error)GPP_ERROR_INIT;
    return gpp__attr_parse(text, &s->end, s->name, s->given, &s->count, MAX, s->pool,
                           sizeof s->pool, &s->err);
}

/* --- reading ---------------------------------------------------------------------------------- */

Test(attr, a_specification_is_split_into_name_keys_numbers_and_words)
{
    spec s;
    cr_assert_eq(parse(&s, " \tconv_2d out=32 kernel=3,-1,.5,2e-3  mode=full_size\r\nrelu"),
                 GPP_OK);
    cr_expect_str_eq(s.name, "conv_2d");
    cr_assert_eq(s.count, 3);
    cr_expect_str_eq(s.given[0].key, "out");
    cr_expect_eq(s.given[0].count, 1);
    cr_expect_eq(s.given[0].v[0], 32);
    cr_expect_null(s.given[0].word);
    cr_expect_str_eq(s.given[1].key, "kernel");
    cr_expect_eq(s.given[1].count, 4);
    static const double kernel[] = {3, -1, 0.5, 2e-3};
    for (int k = 0; k < 4; k++)
        cr_expect_eq(s.given[1].v[k], kernel[k], "number %d", k);
    cr_expect_str_eq(s.given[2].key, "mode");
    cr_expect_str_eq(s.given[2].word, "full_size");
    cr_expect_eq(s.given[2].count, 0);
    cr_expect_eq(*s.end, '\n');
}

Test(attr, reading_stops_at_what_ends_a_layer)
{
    static const struct {
        char text[24], rest[12];
    } cases[] = {
        {"relu", ""},
        {"relu;tanh", ";tanh"},
        {"relu # why", "# why"},
        {"relu @a", "@a"},
        {"relu@a", "@a"},
        {"a k=1@b", "@b"},
        {"a k=w;b", ";b"},
        {"relu\nrelu", "\nrelu"},
        {"a k=1,2#", "#"},
        {"pop { relu }", "{ relu }"},
        {"pop k=1{ relu }", "{ relu }"},
        {"pop k=w{", "{"},
        {"relu }", "}"},
        {"relu}", "}"},
        {"a k=1}", "}"},
    };
    spec s;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        cr_expect_eq(parse(&s, cases[k].text), GPP_OK, "\"%s\": %s", cases[k].text, s.err.msg);
        cr_expect_str_eq(s.end, cases[k].rest);
    }
}

Test(attr, malformed_text_is_refused_where_it_goes_wrong)
{
    static const struct {
        const char *why, *text, *message;
        size_t at;
    } cases[] = {
        {"nothing", "", "expected a name, found the end of the text", 0},
        {"a number for a name", "2d out=1", "expected a name, found '2'", 0},
        {"a name with a strange letter", "conv-2d", "'-' after the name \"conv\"", 4},
        {"a control character", "relu\x01", "byte 0x01 after the name", 4},
        {"not ASCII", "r\xc3\xa9lu", "byte 0xc3 after the name \"r\"", 1},
        {"key without value", "linear out", "out: expected '=' and a value", 10},
        {"blank before =", "linear out =1", "out: expected '=' and a value, found a blank", 10},
        {"blank after =", "linear out= 1", "out: expected a value after '=', found a blank", 11},
        {"value missing", "linear out=\n", "found the end of the line", 11},
        {"key missing", "linear =1", "expected key=value, found '='", 7},
        {"two equal signs", "linear out==1", "expected a value after '='", 11},
        {"hexadecimal", "linear out=0x10", "out: 'x' after a number", 12},
        {"octal digits are decimal, suffixes are not", "linear out=3u", "'u' after a number", 12},
        {"two points", "a k=1.2.3", "'.' after a number", 7},
        {"sign alone", "a k=-", "k: expected a decimal number", 4},
        {"plus sign", "a k=+1", "expected a value after '='", 4},
        {"point alone", "a k=.", "expected a decimal number, found '.'", 4},
        {"exponent alone", "a k=1e", "expected a decimal number", 4},
        {"exponent with sign alone", "a k=1e+", "expected a decimal number", 4},
        {"minus infinity", "a k=-inf", "expected a decimal number", 4},
        {"overflow", "a k=1e999", "k: 1e999 is beyond what a double holds", 4},
        {"underflow", "a k=1e-999", "k: 1e-999 is beyond what a double holds", 4},
        {"comma at the end", "a k=1,", "expected a decimal number, found the end", 6},
        {"two commas", "a k=1,,2", "expected a decimal number, found ','", 6},
        {"blank in a list", "a k=1, 2", "expected a decimal number, found a blank", 6},
        {"word in a list", "a k=1,x", "expected a decimal number, found 'x'", 6},
        {"list of words", "a k=x,y", "k: ',' after a word", 5},
        {"five numbers", "a k=1,2,3,4,5", "k: more than 4 numbers", 12},
        {"five keys", "a b=1 c=1 d=1 e=1 f=1", "a: more than 4 keys", 18},
        {"block alone", "{ relu }", "expected a name, found '{'", 0},
        {"block for a value", "pop k={ relu }", "expected a value after '=', found '{'", 6},
        {"a word with a slash", "a k=x/y", "k: '/' after a word", 5},
        {"a word that begins with a digit", "a k=0x", "k: 'x' after a number", 5},
        {"quoted word", "a k=\"x\"", "expected a value after '=', found '\"'", 4},
        {"name of 64 letters", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "a name of 64 letters, at most 63", 0},
        {"more words than the pool holds",
         "a k=bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
         "k: the word is too long", 4},
    };
    spec s;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        cr_expect_eq(parse(&s, cases[k].text), GPP_ESYNTAX, "%s", cases[k].why);
        cr_expect(strstr(s.err.msg, cases[k].message), "%s: %s", cases[k].why, s.err.msg);
        cr_expect_eq((size_t)(s.end - cases[k].text), cases[k].at, "%s: stopped at %zu",
                     cases[k].why, (size_t)(s.end - cases[k].text));
    }
}

Test(attr, words_may_be_names_with_dashes_and_points)
{
    spec s;
    cr_assert_eq(parse(&s, "stash name=layer1.0-in ns=_a. k=-1"), GPP_OK, "%s", s.err.msg);
    cr_expect_str_eq(s.given[0].word, "layer1.0-in");
    cr_expect_str_eq(s.given[1].word, "_a.");
    cr_expect_eq(s.given[2].v[0], -1);
}

Test(attr, the_longest_name_and_the_fullest_pool_are_fine)
{
    spec s;
    char text[160];
    memset(text, 'n', 63);
    strcpy(text + 63, " k=");
    memset(text + 66, 'w', 61); /* "k", the word and their terminators fill the pool */
    text[127] = '\0';
    cr_expect_eq(parse(&s, text), GPP_OK, "%s", s.err.msg);
    cr_expect_eq(strlen(s.name), 63);
    cr_expect_eq(strlen(s.given[0].word), 61);
    strcat(text, "w");
    cr_expect_eq(parse(&s, text), GPP_ESYNTAX);
}

Test(attr, a_whole_specification_allows_nothing_behind_it)
{
    static const struct {
        char text[24];
        gpp_status status;
        char message[48];
    } cases[] = {
        {"sgd lr=0.1", GPP_OK, ""},
        {"  sgd lr=0.1  ", GPP_OK, ""},
        {"sgd lr=0.1; adam", GPP_ESYNTAX, "column 11: nothing may follow, found ';'"},
        {"sgd @a", GPP_ESYNTAX, "column 5: nothing may follow, found '@'"},
        {"sgd\n", GPP_ESYNTAX, "column 4: nothing may follow"},
        {"sgd lr=0.1.2", GPP_ESYNTAX, "column 11: lr: '.' after a number"},
        {"", GPP_ESYNTAX, "column 1: expected a name"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        spec s = {.err = GPP_ERROR_INIT};
        gpp_status status = gpp__attr_parse_spec(cases[k].text, s.name, s.given, &s.count, MAX,
                                                 s.pool, sizeof s.pool, &s.err);
        cr_expect_eq(status, cases[k].status, "\"%s\": %s", cases[k].text, s.err.msg);
        cr_expect(strncmp(s.err.msg, cases[k].message, strlen(cases[k].message)) == 0, "%s",
                  s.err.msg);
    }
}

/* --- setting ---------------------------------------------------------------------------------- */

typedef struct sample {
    int64_t out, size[2];
    bool bias;
    double rate, any;
    int mode;
    double pair[3], momentum;
    int64_t index, dims, dim[3];
    char name[GPP__NAME], ns[GPP__NAME];
} sample;

#define AT(member, kind) .name = #member, .type = kind, .offset = offsetof(sample, member)
static const char *const modes[] = {"none", "sum", "mean", NULL};
static const gpp__key keys[] = {
    {AT(out, GPP__KEY_INT), .count = 1, .min = 1, .max = 0x1p40, .required = true},
    {AT(size, GPP__KEY_INT), .count = 2, .min = -1, .max = 4096, .fallback = 7},
    {AT(bias, GPP__KEY_BOOL), .count = 1, .max = 1, .fallback = 1},
    {AT(rate, GPP__KEY_REAL), .count = 1, .max = 0.5, .fallback = 0.25},
    {AT(any, GPP__KEY_REAL), .count = 1, .min = -INFINITY, .max = INFINITY},
    {AT(mode, GPP__KEY_CHOICE), .count = 1, .fallback = 2, .choices = modes},
    {AT(pair, GPP__KEY_REAL), .count = 3, .min = -9, .max = 9, .fallback = 0.5},
    {AT(momentum, GPP__KEY_REAL), .count = 1, .none = true, .max = 1, .fallback = 0.1},
    {AT(index, GPP__KEY_INT), .count = 1, .none = true, .max = 99, .fallback = NAN},
    {AT(dims, GPP__KEY_INT), .count = 3, .list = true, .min = 1, .max = 99},
    {AT(name, GPP__KEY_NAME), .count = 1},
    {AT(ns, GPP__KEY_NAME), .count = 1},
    {.name = NULL},
};
static const gpp__key named[] = {{AT(name, GPP__KEY_NAME), .count = 1, .required = true},
                                 {.name = NULL}};

Test(attr, what_is_not_given_has_its_fallback)
{
    sample a;
    memset(&a, 0x5a, sizeof a);
    gpp_attr given[] = {GPP_INT("out", 3)};
    cr_assert_eq(gpp__attr_set("op", keys, &a, given, 1, NULL), GPP_OK);
    cr_expect_eq(a.out, 3);
    cr_expect(a.size[0] == 7 && a.size[1] == 7, "a fallback serves all dimensions");
    cr_expect_eq(a.bias, true);
    cr_expect_eq(a.rate, 0.25);
    cr_expect_eq(a.mode, 2);
    cr_expect(a.pair[0] == 0.5 && a.pair[2] == 0.5);
    cr_expect_eq(a.index, INT64_MIN, "a fallback may be none");
    cr_expect_eq(a.dims, 0, "a list is empty");
    cr_expect_str_empty(a.name);
    gpp__attr_defaults(NULL, NULL);
    cr_expect_eq(gpp__attr_set("relu", NULL, NULL, NULL, 0, NULL), GPP_OK, "no keys at all");
}

Test(attr, given_values_are_set)
{
    sample a;
    gpp_attr given[] = {GPP_WORD("mode", "sum"),   GPP_INTS("size", -1, 4096),
                        GPP_INT("bias", 0),        GPP_REAL("rate", 0.5),
                        GPP_REAL("any", -DBL_MAX), GPP_INT("out", 0x1p40)};
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp__attr_set("op", keys, &a, given, 6, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(a.out, INT64_C(1) << 40);
    cr_expect(a.size[0] == -1 && a.size[1] == 4096);
    cr_expect_eq(a.bias, false);
    cr_expect_eq(a.rate, 0.5);
    cr_expect_eq(a.any, -DBL_MAX);
    cr_expect_eq(a.mode, 1);
    gpp_attr one[] = {GPP_INT("out", 1), GPP_INT("size", 5)};
    cr_assert_eq(gpp__attr_set("op", keys, &a, one, 2, NULL), GPP_OK);
    cr_expect(a.size[0] == 5 && a.size[1] == 5, "a single number serves all dimensions");
}

Test(attr, reals_may_be_several_and_lists_have_a_length)
{
    sample a;
    gpp_error err = GPP_ERROR_INIT;
    gpp_attr given[] = {GPP_INT("out", 1), GPP_REAL("pair", -0.25), GPP_INTS("dims", 4, 6),
                        GPP_INT("index", 7)};
    cr_assert_eq(gpp__attr_set("op", keys, &a, given, 4, &err), GPP_OK, "%s", err.msg);
    cr_expect(a.pair[0] == -0.25 && a.pair[1] == -0.25 && a.pair[2] == -0.25);
    cr_expect(a.dims == 2 && a.dim[0] == 4 && a.dim[1] == 6);
    cr_expect_eq(a.index, 7);
    gpp_attr more[] = {
        GPP_INT("out", 1), {"pair", 3, {1, 2, 3, 0}, NULL}, {"dims", 3, {9, 8, 7, 0}, NULL}};
    cr_assert_eq(gpp__attr_set("op", keys, &a, more, 3, &err), GPP_OK, "%s", err.msg);
    cr_expect(a.pair[0] == 1 && a.pair[1] == 2 && a.pair[2] == 3);
    cr_expect(a.dims == 3 && a.dim[2] == 7);
    gpp_attr one[] = {GPP_INT("out", 1), GPP_INT("dims", 5)};
    cr_assert_eq(gpp__attr_set("op", keys, &a, one, 2, &err), GPP_OK, "%s", err.msg);
    cr_expect(a.dims == 1 && a.dim[0] == 5, "one number is a list of one");
}

Test(attr, none_is_a_value_where_it_is_allowed)
{
    sample a;
    gpp_error err = GPP_ERROR_INIT;
    gpp_attr given[] = {GPP_INT("out", 1), GPP_WORD("momentum", "none"), GPP_WORD("index", "none")};
    cr_assert_eq(gpp__attr_set("op", keys, &a, given, 3, &err), GPP_OK, "%s", err.msg);
    cr_expect(isnan(a.momentum));
    cr_expect_eq(a.index, INT64_MIN);
    gpp_attr number[] = {GPP_INT("out", 1), GPP_REAL("momentum", 0.5)};
    cr_assert_eq(gpp__attr_set("op", keys, &a, number, 2, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(a.momentum, 0.5);
}

Test(attr, names_are_words_or_integers)
{
    sample a;
    static const struct {
        gpp_attr given;
        char name[GPP__NAME];
    } cases[] = {
        {GPP_WORD("name", "identity"), "identity"},
        {GPP_INT("name", 0), "0"},
        {GPP_INT("name", -12), "-12"},
        {GPP_INT("name", 0x1p53), "9007199254740992"},
        {GPP_WORD("name", "a.b-c_D9"), "a.b-c_D9"},
        {GPP_WORD("name", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        memset(&a, 0x5a, sizeof a);
        cr_expect_eq(gpp__attr_set("op", named, &a, &cases[k].given, 1, &err), GPP_OK, "%s",
                     err.msg);
        cr_expect_str_eq(a.name, cases[k].name);
        cr_expect_eq(a.name[GPP__NAME - 1], 0, "what is behind a name is zero");
    }
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp__attr_set("op", named, &a, NULL, 0, &err), GPP_EINVAL);
    cr_expect_str_eq(err.msg, "op: name is missing");
    gpp_error_clear(&err);
    gpp_attr empty = GPP_WORD("name", "");
    cr_expect_eq(gpp__attr_set("op", named, &a, &empty, 1, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "name must be 1 ... 31 letters"), "%s", err.msg);
}

Test(attr, single_keys_are_set_and_asked)
{
    sample a;
    gpp__attr_defaults(keys, &a);
    cr_expect(gpp__attr_flag(keys, &a, "bias"));
    cr_expect(gpp__attr_set_one(keys, &a, "bias", 0));
    cr_expect_not(gpp__attr_flag(keys, &a, "bias"));
    cr_expect_not(gpp__attr_flag(keys, &a, "out"), "not a flag");
    cr_expect_not(gpp__attr_flag(keys, &a, "nothing"));
    cr_expect_not(gpp__attr_set_one(keys, &a, "nothing", 1));
    cr_expect_not(gpp__attr_set_one(NULL, NULL, "nothing", 1));
}

Test(attr, wrong_values_are_refused_with_what_is_allowed)
{
    static const struct {
        const char *why;
        gpp_attr given;
        gpp_status status;
        const char *message;
    } cases[] = {
        {"below", GPP_INT("size", -2), GPP_EINVAL, "op: size must be -1 ... 4096, got -2"},
        {"above", GPP_INTS("size", 1, 4097), GPP_EINVAL, "op: size must be -1 ... 4096, got 4097"},
        {"a fraction", GPP_REAL("size", 1.5), GPP_EINVAL,
         "op: size must be an integer, -1 ... 4096, got 1.5"},
        {"NaN for an integer", GPP_REAL("size", NAN), GPP_EINVAL, "op: size must be"},
        {"NaN for a real", GPP_REAL("rate", NAN), GPP_EINVAL, "op: rate must be 0 ... 0.5, got "},
        {"NaN where all is allowed", GPP_REAL("any", NAN), GPP_EINVAL, "op: any must be finite"},
        {"infinity", GPP_REAL("any", INFINITY), GPP_EINVAL, "op: any must be finite, got inf"},
        {"too few numbers",
         {"size", 3, {1, 1, 1, 0}, NULL},
         GPP_EINVAL,
         "op: size takes 1 or 2 numbers, got 3"},
        {"three of two",
         {"size", 3, {1, 2, 3, 0}, NULL},
         GPP_EINVAL,
         "takes 1 or 2 numbers, got 3"},
        {"two of three reals", GPP_INTS("pair", 1, 2), GPP_EINVAL, "takes 1 or 3 numbers, got 2"},
        {"a list that is too long",
         {"dims", 4, {1, 1, 1, 1}, NULL},
         GPP_EINVAL,
         "op: dims takes 1 ... 3 numbers, got 4"},
        {"a list with a wrong number", GPP_INTS("dims", 1, 0), GPP_EINVAL, "dims must be 1 ... 99"},
        {"one of the reals", {"pair", 3, {1, 2, 10, 0}, NULL}, GPP_EINVAL, "pair must be -9 ... 9"},
        {"none where it is not allowed", GPP_WORD("rate", "none"), GPP_EINVAL,
         "op: rate must be a number, got \"none\""},
        {"a word where none is allowed", GPP_WORD("momentum", "nine"), GPP_EINVAL,
         "op: momentum must be a number or none, got \"nine\""},
        {"NaN is not how none is said", GPP_REAL("momentum", NAN), GPP_EINVAL, "momentum must be"},
        {"a name with a slash", GPP_WORD("name", "a/b"), GPP_EINVAL,
         "op: name must be 1 ... 31 letters, digits, '_', '-' and '.', got \"a/b\""},
        {"a name with a blank", GPP_WORD("name", "a b"), GPP_EINVAL, "got \"a b\""},
        {"a name of 32 letters", GPP_WORD("name", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), GPP_EINVAL,
         "name must be 1 ... 31 letters"},
        {"a fraction for a name", GPP_REAL("ns", 1.5), GPP_EINVAL,
         "op: ns must be a word or one integer, got 1.5"},
        {"two integers for a name", GPP_INTS("ns", 1, 2), GPP_EINVAL, "got 1,..."},
        {"NaN for a name", GPP_REAL("ns", NAN), GPP_EINVAL, "must be a word or one integer"},
        {"a list for a real", GPP_INTS("rate", 0, 0), GPP_EINVAL, "op: rate takes 1 number, got 2"},
        {"a word for a number", GPP_WORD("rate", "fast"), GPP_EINVAL,
         "op: rate must be a number, got \"fast\""},
        {"nan as a word", GPP_WORD("rate", "nan"), GPP_EINVAL, "must be a number, got \"nan\""},
        {"two for a flag", GPP_INT("bias", 2), GPP_EINVAL, "op: bias must be 0 or 1, got 2"},
        {"true for a flag", GPP_WORD("bias", "true"), GPP_EINVAL, "op: bias must be a number"},
        {"no such choice", GPP_WORD("mode", "max"), GPP_EINVAL,
         "op: mode must be one of none, sum, mean, got \"max\""},
        {"a number for a choice", GPP_INT("mode", 1), GPP_EINVAL, "sum, mean, got a number"},
        {"a slip of the pen", GPP_INT("szie", 1), GPP_ENOENT,
         "op: no key \"szie\"; did you mean \"size\"? It knows out, size, bias, rate, any, mode, "
         "pair"},
        {"no such key", GPP_INT("acceleration", 1), GPP_ENOENT,
         "op: no key \"acceleration\"; it knows out, size"},
        {"keys are case-sensitive", GPP_INT("Size", 1), GPP_ENOENT, "did you mean \"size\"?"},
        {"given before", GPP_INT("out", 1), GPP_EINVAL, "op: out is given twice"},
        {"no key", {NULL, 1, {0}, NULL}, GPP_EINVAL, "attribute 1 has no key or no value"},
        {"no value", {"size", 0, {0}, NULL}, GPP_EINVAL, "attribute 1 has no key or no value"},
        {"a negative count", {"size", -1, {0}, NULL}, GPP_EINVAL, "no key or no value"},
        {"more numbers than there is room for",
         {"size", 5, {0}, NULL},
         GPP_EINVAL,
         "no key or no value"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        sample a;
        gpp_error err = GPP_ERROR_INIT;
        gpp_attr given[] = {GPP_INT("out", 1), cases[k].given};
        cr_expect_eq(gpp__attr_set("op", keys, &a, given, 2, &err), cases[k].status, "%s",
                     cases[k].why);
        cr_expect(strstr(err.msg, cases[k].message), "%s: %s", cases[k].why, err.msg);
    }
}

Test(attr, an_integer_beyond_its_range_says_so)
{
    sample a;
    gpp_attr given[] = {GPP_REAL("out", 0x1p60)};
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp__attr_set("op", keys, &a, given, 1, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "op: out must be 1 ... 1099511627776, got 1.15292"), "%s", err.msg);
}

Test(attr, a_required_key_must_be_given)
{
    sample a;
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp__attr_set("op", keys, &a, NULL, 0, &err), GPP_EINVAL);
    cr_expect_str_eq(err.msg, "op: out is missing");
}

Test(attr, an_operator_without_keys_takes_none)
{
    gpp_attr given[] = {GPP_INT("out", 1)};
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp__attr_set("relu", NULL, NULL, given, 1, &err), GPP_ENOENT);
    cr_expect_str_eq(err.msg, "relu: no key \"out\"; it takes none");
    gpp_error_clear(&err);
    cr_expect_eq(gpp__attr_set("relu", NULL, NULL, NULL, 1, &err), GPP_EINVAL);
}

Test(attr, slips_of_the_pen_are_recognised)
{
    static const struct {
        char given[16], known[16];
        bool alike;
    } cases[] = {
        {"kernal", "kernel", true}, {"kernl", "kernel", true},   {"kerneel", "kernel", true},
        {"krenel", "kernel", true}, {"stride", "kernel", false}, {"k", "kernel", false},
        {"p", "out", false},        {"lr", "p", false},          {"ot", "out", true},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        cr_expect_eq(gpp__alike(cases[k].given, cases[k].known), cases[k].alike, "%s for %s",
                     cases[k].given, cases[k].known);
}

/*
 * tests/test_files.c: safetensors files: what is written is read, what is malformed is refused, a
 * file that is replaced is whole at any instant. And the corpora of the fuzzers, once more.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "graph/data/file.h"
#include "graph/recipe/cluster.h"
#include "tests/files.h"
#include "tests/support.h"
#include "tests/vectors.h"

static gpp_error none(void)
{
    return (gpp_error)GPP_ERROR_INIT;
}

static gpp_file *new_file(void)
{
    gpp_file *f = NULL;
    cr_assert_eq(gpp_file_new(&f, NULL), GPP_OK);
    return f;
}

static void add(gpp_file *f, const char *name, const gpp_tensor *t)
{
    gpp_error err = none();
    cr_assert_eq(gpp_file_add(f, name, t, &err), GPP_OK, "%s", err.msg);
}

static void set_word(gpp_file *f, const char *key, const char *value)
{
    gpp_error err = none();
    cr_assert_eq(gpp_file_set_word(f, key, value, &err), GPP_OK, "%s", err.msg);
}

static size_t bytes_of(const gpp_tensor *t)
{
    size_t bytes = gpp_dtype_size(t->dtype);
    for (int d = 0; d < t->rank; d++)
        bytes *= (size_t)t->dim[d];
    return bytes;
}

static bool same_tensor(const gpp_tensor *a, const gpp_tensor *b)
{
    bool same = a->dtype == b->dtype && a->rank == b->rank;
    for (int d = 0; same && d < a->rank; d++)
        same = a->dim[d] == b->dim[d];
    return same && (!bytes_of(a) || !memcmp(a->data, b->data, bytes_of(a)));
}

/* Same names in the same order, same tensors, same words. */
static void expect_same(const gpp_file *a, const gpp_file *b, const char *why)
{
    cr_assert_eq(gpp_file_count(a), gpp_file_count(b), "%s", why);
    for (int k = 0; k < gpp_file_count(a); k++) {
        const char *name[2];
        gpp_tensor t[2], found;
        cr_assert_eq(gpp_file_array(a, k, &name[0], &t[0], NULL), GPP_OK);
        cr_assert_eq(gpp_file_array(b, k, &name[1], &t[1], NULL), GPP_OK);
        cr_expect_str_eq(name[0], name[1], "%s", why);
        cr_expect(same_tensor(&t[0], &t[1]), "%s: \"%s\"", why, name[0]);
        cr_expect_eq(gpp_file_find(b, name[0], &found, NULL), GPP_OK);
        cr_expect_eq(found.data, t[1].data);
    }
    cr_assert_eq(a->words, b->words, "%s", why);
    for (int k = 0; k < a->words; k++)
        cr_expect_str_eq(gpp_file_word(b, a->word[k].key), a->word[k].value, "%s", why);
}

/* --- round trips ------------------------------------------------------------------------------ */

static const char odd_name[] = "na\xc3\xafve \"x\"\\\n\t\x01 \xe2\x82\xac \xf0\x9f\x98\x80";

/* Floats of every kind, ranks from 0 to 8, nothing at all, names that need escapes. */
static gpp_file *odd_file(void)
{
    float x[24];
    test_fill(x, 24, 3, -1, 1);
    x[0] = NAN;
    x[1] = -INFINITY;
    x[2] = -0.0f;
    x[3] = 1e-45f;
    int64_t n[] = {INT64_MIN, INT64_MAX, -1};
    gpp_file *f = new_file();
    add(f, "x", &(gpp_tensor){x, GPP_F32, 2, {4, 6}});
    add(f, "count", &(gpp_tensor){n, GPP_I64, 1, {3}});
    add(f, "scalar", &(gpp_tensor){x + 3, GPP_F32, 0, {0}});
    add(f, "integer", &(gpp_tensor){n + 1, GPP_I64, 0, {0}});
    add(f, "nothing", &(gpp_tensor){NULL, GPP_F32, 3, {2, 0, 5}});
    add(f, "", &(gpp_tensor){x, GPP_F32, 8, {1, 2, 1, 3, 1, 2, 1, 2}});
    add(f, odd_name, &(gpp_tensor){x, GPP_F32, 1, {1}});
    add(f, "no integer", &(gpp_tensor){NULL, GPP_I64, 1, {0}});
    set_word(f, "key", "value");
    set_word(f, odd_name, odd_name);
    set_word(f, "", "");
    return f;
}

Test(files, what_is_written_is_read)
{
    char folder[256], path[512];
    gpp_error err = none();
    gpp_file *f = odd_file(), *back = NULL;
    test_folder_new(folder);
    test_path(folder, "odd.safetensors", path);
    for (int time = 0; time < 2; time++) {
        cr_assert_eq(gpp_file_write(f, path, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(gpp_file_read(&back, path, &err), GPP_OK, "%s", err.msg);
        expect_same(f, back, "every kind");
        gpp_file_free(f);
        f = back;
    }
    cr_expect_eq(test_folder_count(folder, ""), 1, "nothing else is left in the folder");
    gpp_file_free(f);
    gpp_file_free(NULL);
    test_folder_remove(folder);
}

Test(files, the_bytes_of_a_file_are_these)
{
    static const char expected[] =
        "\x88\0\0\0\0\0\0\0"
        "{\"__metadata__\":{\"k\":\"v\"},"
        "\"w\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[8,16]},"
        "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}  "
        "\xfe\xff\xff\xff\xff\xff\xff\xff\0\0\x80\x3f\0\0\0\xc0";
    char folder[256], path[512];
    size_t size;
    float w[] = {1, -2};
    int64_t n = -2;
    gpp_error err = none();
    gpp_file *f = new_file();
    add(f, "w", &(gpp_tensor){w, GPP_F32, 2, {1, 2}});
    add(f, "n", &(gpp_tensor){&n, GPP_I64, 0, {0}});
    set_word(f, "k", "other");
    set_word(f, "k", "v");
    test_folder_new(folder);
    cr_assert_eq(gpp_file_write(f, test_path(folder, "f", path), &err), GPP_OK, "%s", err.msg);
    char *bytes = test_bytes_read(path, &size);
    cr_assert(bytes);
    cr_expect_eq(size, sizeof expected - 1, "%zu bytes, expected %zu", size, sizeof expected - 1);
    cr_expect(size == sizeof expected - 1 && !memcmp(bytes, expected, size), "%s", bytes + 8);
    free(bytes);
    gpp_file_free(f);
    f = new_file();
    cr_assert_eq(gpp_file_write(f, path, &err), GPP_OK, "%s", err.msg);
    bytes = test_bytes_read(path, &size);
    cr_expect(size == 16 && !memcmp(bytes, "\x08\0\0\0\0\0\0\0{}      ", size), "an empty file");
    free(bytes);
    gpp_file_free(f);
    test_folder_remove(folder);
}

/* Of a reference file: what an independent reader has found in it. */
static void expect_vector(const gpp_file *f, const test_vector *v)
{
    cr_assert_eq(gpp_file_count(f), v->count, "%s", v->file);
    for (int k = 0; k < v->count; k++) {
        const test_array *a = &v->array[k];
        gpp_tensor t, want = {.data = a->data, .dtype = a->dtype, .rank = a->rank};
        memcpy(want.dim, a->dim, sizeof want.dim);
        gpp_error err = none();
        cr_assert_eq(gpp_file_find(f, a->name, &t, &err), GPP_OK, "%s: %s", v->file, err.msg);
        cr_expect(same_tensor(&t, &want), "%s: \"%s\"", v->file, a->name);
    }
    for (int k = 0; k < f->words; k++)
        cr_expect_str_eq(f->word[k].value, test_vector_word(v, f->word[k].key), "%s", v->file);
}

Test(files, files_that_pytorch_made_are_loaded_and_saved_unchanged)
{
    char folder[256], copy[512], why[128], **names;
    int count = test_vectors_list(&names);
    if (count < 0)
        cr_skip_test("no reference vectors");
    cr_expect(count > 0);
    test_folder_new(folder);
    for (int k = 0; k < count; k++) {
        gpp_error err = none();
        gpp_file *f = NULL, *again = NULL;
        test_vector *v = test_vector_open(names[k], why);
        cr_assert(v, "%s: %s", names[k], why);
        test_path(folder, names[k], copy);
        char original[1200];
        const char *given = getenv("GRIDPIPE_VECTORS");
        snprintf(original, sizeof original, "%s%s/%s", given && *given ? given : GPP_SOURCE_DIR,
                 given && *given ? "" : "/../shared/vectors", names[k]);
        cr_assert_eq(gpp_file_read(&f, original, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(gpp_file_write(f, copy, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(gpp_file_read(&again, copy, &err), GPP_OK, "%s", err.msg);
        expect_same(f, again, names[k]);
        expect_vector(again, v);
        gpp_file_free(f);
        gpp_file_free(again);
        test_vector_close(v);
    }
    test_vectors_free(names, count);
    test_folder_remove(folder);
}

/* --- types ------------------------------------------------------------------------------------ */

Test(files, other_types_become_float32_and_int64)
{
    static const struct {
        const char *type, *bytes;
        size_t size;
        int count;
        double value[7];
    } cases[] = {
        {"F64",
         "\0\0\0\0\0\0\xf0\x3f\x9a\x99\x99\x99\x99\x99\xb9\xbf\0\0\0\0\0\0\xf0\x7f",
         24,
         3,
         {1, -0.1f, INFINITY}},
        {"F16",
         "\0\x3c\0\xc0\x01\0\xff\x7b\0\x7c\0\xfc\0\x80",
         14,
         7,
         {1, -2, 0x1p-24, 65504, INFINITY, -INFINITY, 0}},
        {"F16", "\xff\x03\xff\x83\0\x04", 6, 3, {1023 * 0x1p-24, -1023 * 0x1p-24, 0x1p-14}},
        {"BF16", "\x80\x3f\x80\xff\x01\0", 6, 3, {1, -INFINITY, 0x1p-133}},
        {"I8", "\x80\x7f\xff", 3, 3, {-128, 127, -1}},
        {"U8", "\x80\x7f\xff", 3, 3, {128, 127, 255}},
        {"I16", "\0\x80\xff\x7f", 4, 2, {-32768, 32767}},
        {"U16", "\0\x80\xff\xff", 4, 2, {32768, 65535}},
        {"I32", "\0\0\0\x80\xff\xff\xff\x7f", 8, 2, {-2147483648.0, 2147483647}},
        {"U32", "\0\0\0\x80\xff\xff\xff\xff", 8, 2, {2147483648.0, 4294967295.0}},
        {"BOOL", "\0\x01\x02", 3, 3, {0, 1, 1}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char header[200];
        size_t size;
        gpp_file *f = NULL;
        gpp_tensor t = {0};
        gpp_error err = none();
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[0,%zu]}}",
                 cases[c].type, cases[c].count, cases[c].size);
        char *bytes =
            test_safetensors(header, strlen(header), cases[c].bytes, cases[c].size, &size);
        cr_assert_eq(gpp__file_parse(&f, bytes, size, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(gpp_file_find(f, "a", &t, NULL), GPP_OK);
        cr_expect_eq(t.dtype, strchr(cases[c].type, 'F') ? GPP_F32 : GPP_I64, "%s", cases[c].type);
        for (int k = 0; k < cases[c].count; k++) {
            double got =
                t.dtype == GPP_F32 ? (double)((float *)t.data)[k] : (double)((int64_t *)t.data)[k];
            cr_expect_eq(got, cases[c].value[k], "%s[%d]: %a", cases[c].type, k, got);
        }
        gpp_file_free(f);
        free(bytes);
    }
}

Test(files, a_nan_stays_one_in_every_type)
{
    static const char *const type[] = {"F16", "BF16", "F64"};
    static const char bytes[] = "\x01\x7c\0\0\0\0\xf8\x7f"; /* the last 2, or all 8, are a NaN */
    for (int c = 0; c < 3; c++) {
        char header[200];
        size_t size, width = c < 2 ? 2 : 8;
        gpp_file *f = NULL;
        gpp_tensor t = {0};
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"%s\",\"shape\":[1],\"data_offsets\":[0,%zu]}}", type[c],
                 width);
        char *file = test_safetensors(header, strlen(header), bytes + 8 - width, width, &size);
        cr_assert_eq(gpp__file_parse(&f, file, size, NULL), GPP_OK);
        cr_assert_eq(gpp_file_find(f, "a", &t, NULL), GPP_OK);
        cr_expect(isnan(*(float *)t.data), "%s", type[c]);
        gpp_file_free(f);
        free(file);
    }
}

/* --- what is refused, what is not ------------------------------------------------------------- */

#define ARRAY(name, shape, begin, end)                                                             \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]}"
#define OFFSETS "\"data_offsets\":[0,8]"
#define SHAPE   "\"shape\":[2]"
#define TYPE    "\"dtype\":\"F32\""
#define WORDS   "\"__metadata__\":"

struct header_case {
    const char *why, *header;
    size_t data; /* bytes behind it */
    gpp_status status;
    const char *says;
};

static const struct header_case bad[] = {
    {"no header", "", 0, GPP_ESYNTAX, "byte 0: expected '{', found the end of the header"},
    {"no object", "[]", 0, GPP_ESYNTAX, "byte 0: expected '{', found '['"},
    {"a blank in front", " {}", 0, GPP_ESYNTAX, "byte 0: expected '{', found byte 0x20"},
    {"a byte order mark", "\xef\xbb\xbf{}", 0, GPP_ESYNTAX, "found byte 0xef"},
    {"only begun", "{", 0, GPP_ESYNTAX, "byte 1: expected a string, found the end of the header"},
    {"something behind", "{} x", 0, GPP_ESYNTAX, "byte 3: expected nothing but blanks"},
    {"two objects", "{}{}", 0, GPP_ESYNTAX, "nothing but blanks"},
    {"a comment", "{/* */}", 0, GPP_ESYNTAX, "expected a string, found '/'"},
    {"a name alone", "{\"a\"}", 0, GPP_ESYNTAX, "expected ':', found '}'"},
    {"a name without quotes", "{a:{}}", 0, GPP_ESYNTAX, "expected a string, found 'a'"},
    {"single quotes", "{'a':{}}", 0, GPP_ESYNTAX, "expected a string"},
    {"a comma at the end", "{" ARRAY("a", "2", "0", "8") ",}", 8, GPP_ESYNTAX, "expected a string"},
    {"a comma in front", "{," ARRAY("a", "2", "0", "8") "}", 8, GPP_ESYNTAX, "expected a string"},
    {"no comma", "{" ARRAY("a", "2", "0", "8") ARRAY("b", "0", "8", "8") "}", 8, GPP_ESYNTAX,
     "expected ',' or '}', found '\"'"},
    {"no closing brace", "{" ARRAY("a", "2", "0", "8"), 8, GPP_ESYNTAX, "expected ',' or '}'"},
    {"an array that is a number", "{\"a\":1}", 0, GPP_ESYNTAX, "expected '{', found '1'"},
    {"an array that is null", "{\"a\":null}", 0, GPP_ESYNTAX, "expected '{', found 'n'"},
    {"an array that is a list", "{\"a\":[[[[[[[[[[]]]]]]]]]]}", 0, GPP_ESYNTAX, "found '['"},
    {"an array of nothing", "{\"a\":{}}", 0, GPP_ESYNTAX, "without dtype, shape or data_offsets"},
    {"no type", "{\"a\":{" SHAPE "," OFFSETS "}}", 8, GPP_ESYNTAX, "without dtype"},
    {"no shape", "{\"a\":{" TYPE "," OFFSETS "}}", 8, GPP_ESYNTAX, "without dtype, shape"},
    {"no offsets", "{\"a\":{" TYPE "," SHAPE "}}", 8, GPP_ESYNTAX, "or data_offsets"},
    {"the type twice", "{\"a\":{" TYPE "," TYPE "," SHAPE "," OFFSETS "}}", 8, GPP_ESYNTAX,
     "twice"},
    {"the shape twice", "{\"a\":{" TYPE "," SHAPE "," SHAPE "," OFFSETS "}}", 8, GPP_ESYNTAX,
     "twice"},
    {"something else about it", "{\"a\":{" TYPE "," SHAPE "," OFFSETS ",\"x\":1}}", 8, GPP_ESYNTAX,
     "and nothing else"},
    {"a type that is a number", "{\"a\":{\"dtype\":32," SHAPE "," OFFSETS "}}", 8, GPP_ESYNTAX,
     "expected a string"},
    {"an unknown type", "{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[8]," OFFSETS "}}", 8,
     GPP_EUNSUPPORTED, "array \"a\": its type \"F8_E4M3\" is unknown"},
    {"a type in small letters", "{\"a\":{\"dtype\":\"f32\"," SHAPE "," OFFSETS "}}", 8,
     GPP_EUNSUPPORTED, "\"f32\" is unknown"},
    {"integers beyond int64", "{\"a\":{\"dtype\":\"U64\",\"shape\":[1]," OFFSETS "}}", 8,
     GPP_EUNSUPPORTED, "\"U64\""},
    {"an empty type", "{\"a\":{\"dtype\":\"\"," SHAPE "," OFFSETS "}}", 8, GPP_EUNSUPPORTED,
     "\"\""},
    {"a shape that is a number", "{\"a\":{" TYPE ",\"shape\":2," OFFSETS "}}", 8, GPP_ESYNTAX,
     "expected '[', found '2'"},
    {"a negative size", "{" ARRAY("a", "-2", "0", "8") "}", 8, GPP_ESYNTAX, "found '-'"},
    {"a sign", "{" ARRAY("a", "+2", "0", "8") "}", 8, GPP_ESYNTAX, "found '+'"},
    {"a fraction", "{" ARRAY("a", "2.0", "0", "8") "}", 8, GPP_ESYNTAX,
     "expected ',' or ']', found '.'"},
    {"an exponent", "{" ARRAY("a", "2e0", "0", "8") "}", 8, GPP_ESYNTAX, "found 'e'"},
    {"a zero in front", "{" ARRAY("a", "02", "0", "8") "}", 8, GPP_ESYNTAX, "zero in front"},
    {"a size in quotes", "{" ARRAY("a", "\"2\"", "0", "8") "}", 8, GPP_ESYNTAX, "found '\"'"},
    {"a size of 2^63", "{" ARRAY("a", "9223372036854775808", "0", "8") "}", 8, GPP_ESYNTAX,
     "2^63 or more"},
    {"a size of 10^30", "{" ARRAY("a", "1000000000000000000000000000000", "0", "8") "}", 8,
     GPP_ESYNTAX, "2^63 or more"},
    {"nine dimensions", "{" ARRAY("a", "1,1,1,1,1,1,1,1,2", "0", "8") "}", 8, GPP_EUNSUPPORTED,
     "more than 8 numbers"},
    {"a comma at a list's end", "{" ARRAY("a", "2,", "0", "8") "}", 8, GPP_ESYNTAX, "found ']'"},
    {"a list without commas", "{" ARRAY("a", "1 2", "0", "8") "}", 8, GPP_ESYNTAX,
     "expected ',' or ']'"},
    {"a list without an end", "{\"a\":{" TYPE ",\"shape\":[2", 8, GPP_ESYNTAX, "found the end"},
    {"one offset", "{\"a\":{" TYPE "," SHAPE ",\"data_offsets\":[8]}}", 8, GPP_ESYNTAX,
     "two numbers"},
    {"three offsets", "{\"a\":{" TYPE "," SHAPE ",\"data_offsets\":[0,8,8]}}", 8, GPP_EUNSUPPORTED,
     "more than 2 numbers"},
    {"offsets the wrong way", "{" ARRAY("a", "2", "8", "0") "}", 8, GPP_ESYNTAX,
     "data_offsets 8 ... 0, the file has 8 bytes"},
    {"offsets that leave the file", "{" ARRAY("a", "2", "0", "8") "}", 7, GPP_ESYNTAX,
     "array \"a\": data_offsets 0 ... 8, the file has 7 bytes of data"},
    {"offsets far away", "{" ARRAY("a", "2", "9223372036854775799", "9223372036854775807") "}", 8,
     GPP_ESYNTAX, "the file has 8 bytes"},
    {"fewer bytes than elements", "{" ARRAY("a", "3", "0", "8") "}", 8, GPP_ESYNTAX,
     "8 bytes by its data_offsets, but F32 (3) takes 12"},
    {"more bytes than elements", "{" ARRAY("a", "", "0", "8") "}", 8, GPP_ESYNTAX,
     "F32 () takes 4"},
    {"bytes of no element", "{" ARRAY("a", "0,5", "0", "8") "}", 8, GPP_ESYNTAX,
     "F32 (0, 5) takes 0"},
    {"a product that overflows to 8", "{" ARRAY("a", "4611686018427387905,2", "0", "8") "}", 8,
     GPP_ESYNTAX, "too large to count"},
    {"bytes that overflow to 8", "{" ARRAY("a", "4611686018427387906", "0", "8") "}", 8,
     GPP_ESYNTAX, "too large to count"},
    {"2^64 elements", "{" ARRAY("a", "4294967296,4294967296", "0", "0") "}", 0, GPP_ESYNTAX,
     "too large to count"},
    {"arrays that overlap", "{" ARRAY("a", "2", "0", "8") "," ARRAY("b", "2", "4", "12") "}", 12,
     GPP_ESYNTAX, "\"b\" begins at byte 4 of the data, inside \"a\", which ends at 8"},
    {"the same bytes twice", "{" ARRAY("a", "2", "0", "8") "," ARRAY("b", "2", "0", "8") "}", 8,
     GPP_ESYNTAX, "inside"},
    {"nothing, inside an array", "{" ARRAY("a", "2", "0", "8") "," ARRAY("b", "0", "4", "4") "}", 8,
     GPP_ESYNTAX, "\"b\" begins at byte 4 of the data, inside \"a\""},
    {"a gap", "{" ARRAY("a", "1", "0", "4") "," ARRAY("b", "1", "8", "12") "}", 12, GPP_ESYNTAX,
     "bytes 4 ... 8 of the data, in front of \"b\", are no array's"},
    {"a gap in front", "{" ARRAY("a", "1", "4", "8") "}", 8, GPP_ESYNTAX, "bytes 0 ... 4"},
    {"bytes behind", "{" ARRAY("a", "2", "0", "8") "}", 9, GPP_ESYNTAX,
     "the arrays end at byte 8 of the data, the file has 9"},
    {"bytes and no array", "{}", 1, GPP_ESYNTAX, "end at byte 0"},
    {"a name twice", "{" ARRAY("a", "2", "0", "8") "," ARRAY("a", "0", "8", "8") "}", 8,
     GPP_ESYNTAX, "two arrays are called \"a\""},
    {"a name twice, escaped", "{" ARRAY("a", "2", "0", "8") "," ARRAY("\\u0061", "0", "8", "8") "}",
     8, GPP_ESYNTAX, "two arrays are called \"a\""},
    {"metadata twice", "{" WORDS "{}," WORDS "{}}", 0, GPP_ESYNTAX, "a second"},
    {"metadata that are null", "{" WORDS "null}", 0, GPP_ESYNTAX, "expected '{'"},
    {"a word that is a number", "{" WORDS "{\"a\":1}}", 0, GPP_ESYNTAX, "expected a string"},
    {"a word that is an object", "{" WORDS "{\"a\":{}}}", 0, GPP_ESYNTAX, "expected a string"},
    {"a word twice", "{" WORDS "{\"a\":\"1\",\"a\":\"1\"}}", 0, GPP_ESYNTAX,
     "the metadata has \"a\" twice"},
    {"a string without an end", "{\"a", 0, GPP_ESYNTAX, "byte 1: a string without an end"},
    {"an escape at the end", "{\"a\\", 0, GPP_ESYNTAX, "behind '\\'"},
    {"an unknown escape", "{\"\\x41\":{}}", 0, GPP_ESYNTAX, "behind '\\', found 'x'"},
    {"an escaped quote at the end", "{\"a\\\"}", 0, GPP_ESYNTAX, "a string without an end"},
    {"three hexadecimal digits", "{\"\\u004\":{}}", 0, GPP_ESYNTAX, "four hexadecimal digits"},
    {"no hexadecimal digits", "{\"\\u", 0, GPP_ESYNTAX, "four hexadecimal digits"},
    {"half a pair", "{\"\\ud83d\":{}}", 0, GPP_ESYNTAX, "half of a surrogate pair"},
    {"the other half", "{\"\\ude00\":{}}", 0, GPP_ESYNTAX, "half of a surrogate pair"},
    {"two first halves", "{\"\\ud83d\\ud83d\":{}}", 0, GPP_ESYNTAX, "half of a surrogate pair"},
    {"a NUL", "{\"a\\u0000b\":{}}", 0, GPP_ESYNTAX, "a NUL character"},
    {"a newline in a string", "{\"a\nb\":{}}", 0, GPP_ESYNTAX, "no control character"},
    {"a byte that is no UTF-8", "{\"\xff\":{}}", 0, GPP_ESYNTAX, "expected UTF-8, found byte 0xff"},
    {"UTF-8 that is too long", "{\"\xc0\x80\":{}}", 0, GPP_ESYNTAX, "expected UTF-8"},
    {"a surrogate in UTF-8", "{\"\xed\xa0\x80\":{}}", 0, GPP_ESYNTAX, "expected UTF-8"},
    {"UTF-8 beyond U+10FFFF", "{\"\xf4\x90\x80\x80\":{}}", 0, GPP_ESYNTAX, "expected UTF-8"},
    {"UTF-8 that is cut off", "{\"\xe2\x82\":{}}", 0, GPP_ESYNTAX, "expected UTF-8"},
    {"UTF-8 at the very end", "{\"\xe2", 0, GPP_ESYNTAX, "expected UTF-8"},
};

Test(files, malformed_headers_are_refused_with_what_is_wrong)
{
    size_t count = sizeof bad / sizeof *bad;
    cr_expect(count >= 40);
    for (size_t k = 0; k < count; k++) {
        gpp_error err = none();
        gpp_file *f = (gpp_file *)&err;
        size_t size;
        char *bytes =
            test_safetensors(bad[k].header, strlen(bad[k].header), NULL, bad[k].data, &size);
        /* memory of exactly this size, so that a byte too far shows under a sanitizer */
        char *exact = malloc(size);
        memcpy(exact, bytes, size);
        free(bytes);
        cr_expect_eq(gpp__file_parse(&f, exact, size, &err), bad[k].status, "%s: %s, \"%s\"",
                     bad[k].why, gpp_status_name(err.code), err.msg);
        cr_expect_null(f, "%s", bad[k].why);
        cr_expect(strstr(err.msg, bad[k].says), "%s: expected \"%s\" in \"%s\"", bad[k].why,
                  bad[k].says, err.msg);
        free(exact);
    }
}

Test(files, unusual_headers_are_fine)
{
    static const struct header_case good[] = {
        {"nothing", "{}", 0, GPP_OK, NULL},
        {"blanks behind", "{}   \n", 0, GPP_OK, NULL},
        {"blanks everywhere",
         "{ \"a\"\t:\n{ \"dtype\" : \"F32\" ,\r\n\"shape\" : [ 1 , 2 ] , \"data_offsets\" : [ 0 , "
         "8 "
         "] } } ",
         8, GPP_OK, "a"},
        {"keys in another order", "{\"a\":{" OFFSETS "," TYPE "," SHAPE "}}", 8, GPP_OK, "a"},
        {"data in another order", "{" ARRAY("b", "1", "8", "12") "," ARRAY("a", "2", "0", "8") "}",
         12, GPP_OK, "a"},
        {"metadata last", "{" ARRAY("a", "2", "0", "8") "," WORDS "{\"k\":\"v\"}}", 8, GPP_OK, "a"},
        {"an array called as a word", "{" WORDS "{\"a\":\"v\"}," ARRAY("a", "2", "0", "8") "}", 8,
         GPP_OK, "a"},
        {"no elements anywhere", "{" ARRAY("a", "0", "0", "0") "," ARRAY("b", "3,0", "0", "0") "}",
         0, GPP_OK, "a"},
        {"no elements between others",
         "{" ARRAY("b", "1", "0", "4") "," ARRAY("a", "0", "4", "4") "," ARRAY("c", "1", "4",
                                                                               "8") "}",
         8, GPP_OK, "a"},
        {"every escape",
         "{" ARRAY("\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uD83d\\uDe00", "2", "0", "8") "}", 8, GPP_OK,
         "\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80"},
        {"the ends of UTF-8",
         "{" ARRAY("\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80"
                   "\xf4\x8f\xbf\xbf",
                   "2", "0", "8") "}",
         8, GPP_OK,
         "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80"
         "\xf4\x8f\xbf\xbf"},
    };
    for (size_t k = 0; k < sizeof good / sizeof *good; k++) {
        gpp_error err = none();
        gpp_file *f = NULL;
        size_t size;
        char *bytes =
            test_safetensors(good[k].header, strlen(good[k].header), NULL, good[k].data, &size);
        cr_assert_eq(gpp__file_parse(&f, bytes, size, &err), GPP_OK, "%s: %s", good[k].why,
                     err.msg);
        if (good[k].says)
            cr_expect_eq(gpp_file_find(f, good[k].says, NULL, &err), GPP_OK, "%s: %s", good[k].why,
                         err.msg);
        gpp_file_free(f);
        free(bytes);
    }
}

Test(files, lengths_that_cannot_be_are_refused_before_anything_is_allocated)
{
    static const struct {
        const char *why, *bytes;
        size_t size;
        const char *says;
    } cases[] = {
        {"an empty file", "", 0, "0 bytes are no safetensors file"},
        {"seven bytes", "\x02\0\0\0\0\0\0", 7, "7 bytes"},
        {"a length alone", "\x02\0\0\0\0\0\0\0", 8, "a header of 2 bytes in a file of 8"},
        {"one byte short", "\x03\0\0\0\0\0\0\0{}", 10, "a header of 3 bytes in a file of 10"},
        {"more than 100 MB", "\x01\xe1\xf5\x05\0\0\0\0{}", 10, "100000001 bytes"},
        {"100 MB", "\0\xe1\xf5\x05\0\0\0\0{}", 10, "a header of 100000000 bytes"},
        {"2^64 - 1", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "18446744073709551615 bytes"},
        {"2^63", "\0\0\0\0\0\0\0\x80{}", 10, "9223372036854775808 bytes"},
        {"2^64 - 8", "\xf8\xff\xff\xff\xff\xff\xff\xff{}", 10, "18446744073709551608"},
        {"a zip archive, as PyTorch's own files are", "PK\x03\x04\x14\0\x06\0\x08\0", 10,
         "no safe"},
        {"a text", "linear out=3", 12, "no safetensors file"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = none();
        gpp_file *f = NULL;
        cr_expect_eq(gpp__file_parse(&f, cases[k].bytes, cases[k].size, &err), GPP_ESYNTAX, "%s",
                     cases[k].why);
        cr_expect_null(f);
        cr_expect(strstr(err.msg, cases[k].says), "%s: expected \"%s\" in \"%s\"", cases[k].why,
                  cases[k].says, err.msg);
    }
}

Test(files, a_file_that_is_cut_off_anywhere_or_too_long_is_refused)
{
    char folder[256], path[512];
    size_t size;
    gpp_error err = none();
    gpp_file *f = odd_file();
    test_folder_new(folder);
    cr_assert_eq(gpp_file_write(f, test_path(folder, "f", path), &err), GPP_OK, "%s", err.msg);
    gpp_file_free(f);
    char *bytes = test_bytes_read(path, &size);
    cr_assert(bytes);
    for (size_t length = 0; length < size; length++) {
        char *exact = malloc(length + 1);
        memcpy(exact, bytes, length);
        cr_expect_eq(gpp__file_parse(&f, exact, length, NULL), GPP_ESYNTAX, "%zu bytes", length);
        cr_expect_null(f);
        free(exact);
    }
    cr_expect_eq(gpp__file_parse(&f, bytes, size + 1, NULL), GPP_ESYNTAX, "a byte too many");
    cr_expect_eq(gpp__file_parse(&f, bytes, size, NULL), GPP_OK);
    gpp_file_free(f);
    free(bytes);
    test_folder_remove(folder);
}

/* --- calls ------------------------------------------------------------------------------------ */

Test(files, wrong_calls_are_refused_and_change_nothing)
{
    float x[4] = {1, 2, 3, 4};
    gpp_tensor t = {x, GPP_F32, 1, {4}}, out;
    gpp_error err = none();
    gpp_file *f = new_file();
    add(f, "a", &t);
#define REFUSED(call, status, says)                                                                \
    gpp_error_clear(&err);                                                                         \
    cr_expect_eq(call, status, "%s: %s", says, gpp_status_name(err.code));                         \
    cr_expect(strstr(err.msg, says), "expected \"%s\" in \"%s\"", says, err.msg)
#define BAD(change, says)                                                                          \
    {                                                                                              \
        gpp_tensor b = t;                                                                          \
        change;                                                                                    \
        REFUSED(gpp_file_add(f, "b", &b, &err), GPP_EINVAL, says);                                 \
    }
    REFUSED(gpp_file_new(NULL, &err), GPP_EINVAL, "file is NULL");
    REFUSED(gpp_file_add(f, "a", &t, &err), GPP_EINVAL, "a second array \"a\"");
    REFUSED(gpp_file_add(NULL, "b", &t, &err), GPP_EINVAL, "file is NULL");
    REFUSED(gpp_file_add(f, NULL, &t, &err), GPP_EINVAL, "name is NULL");
    REFUSED(gpp_file_add(f, "b", NULL, &err), GPP_EINVAL, "tensor is NULL");
    REFUSED(gpp_file_add(f, "\xff", &t, &err), GPP_EINVAL, "no array can be called");
    REFUSED(gpp_file_add(f, "__metadata__", &t, &err), GPP_EINVAL, "no array can be called");
    BAD(b.rank = -1, "rank must be 0 ... 8, got -1");
    BAD(b.rank = 9, "rank must be 0 ... 8, got 9");
    BAD(b.dim[0] = -4, "there is no shape (-4)");
    BAD(b.rank = 2; b.dim[0] = b.dim[1] = INT64_MAX, "there is no shape");
    BAD(b.data = NULL, "\"b\" has 4 elements but no data");
    BAD(b.dtype = (gpp_dtype)7, "7 is no type");
    REFUSED(gpp_file_array(f, 1, NULL, &out, &err), GPP_ENOENT, "array 1 of 1");
    REFUSED(gpp_file_array(f, -1, NULL, &out, &err), GPP_ENOENT, "array -1 of 1");
    REFUSED(gpp_file_array(NULL, 0, NULL, &out, &err), GPP_EINVAL, "file is NULL");
    REFUSED(gpp_file_find(f, "b", &out, &err), GPP_ENOENT, "no array \"b\"");
    REFUSED(gpp_file_find(f, NULL, &out, &err), GPP_EINVAL, "name is NULL");
    REFUSED(gpp_file_set_word(f, NULL, "v", &err), GPP_EINVAL, "key is NULL");
    REFUSED(gpp_file_set_word(f, "k", NULL, &err), GPP_EINVAL, "value is NULL");
    REFUSED(gpp_file_set_word(f, "k", "\xc3", &err), GPP_EINVAL, "not UTF-8");
    REFUSED(gpp_file_write(f, NULL, &err), GPP_EINVAL, "path is NULL");
    REFUSED(gpp_file_read(&f, NULL, &err), GPP_EINVAL, "path is NULL");
    REFUSED(gpp_file_read(NULL, "x", &err), GPP_EINVAL, "file is NULL");
#undef BAD
    cr_expect_eq(gpp_file_count(f), 1);
    cr_expect_eq(gpp_file_count(NULL), 0);
    cr_expect_null(gpp_file_word(f, "k"));
    cr_expect_null(gpp_file_word(NULL, "k"));
    gpp_file_free(f);
}

Test(files, many_names_are_found_in_any_order)
{
    enum { COUNT = 3000 };
    gpp_file *f = new_file();
    for (int k = 0; k < COUNT; k++) {
        char name[32];
        float x = (float)k;
        snprintf(name, sizeof name, "layer.%d", k * 7919 % COUNT);
        add(f, name, &(gpp_tensor){&x, GPP_F32, 0, {0}});
        set_word(f, name, name);
    }
    for (int k = 0; k < COUNT; k++) {
        char name[32];
        gpp_tensor t = {0};
        snprintf(name, sizeof name, "layer.%d", k * 7919 % COUNT);
        cr_assert_eq(gpp_file_find(f, name, &t, NULL), GPP_OK, "%s", name);
        cr_assert_eq(*(float *)t.data, (float)k);
        cr_assert_str_eq(gpp_file_word(f, name), name);
    }
    gpp_file_free(f);
}

/* Names that come in the worst order, in a header as long as those of large models. */
Test(files, reading_takes_time_proportional_to_the_header, .timeout = 60)
{
    enum { COUNT = 200000, ROOM = 80 };
    size_t size, used = 1;
    char *header = malloc((size_t)COUNT * ROOM);
    header[0] = '{';
    for (int k = COUNT; k-- > 0;)
        used += (size_t)snprintf(header + used, ROOM,
                                 "\"%06d\":{\"dtype\":\"I8\",\"shape\":[0],"
                                 "\"data_offsets\":[0,0]}%s",
                                 k, k ? "," : "}");
    char *bytes = test_safetensors(header, used, NULL, 0, &size);
    gpp_file *f = NULL;
    gpp_error err = none();
    cr_assert_eq(gpp__file_parse(&f, bytes, size, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(gpp_file_count(f), COUNT);
    cr_expect_eq(gpp_file_find(f, "123456", NULL, NULL), GPP_OK);
    gpp_file_free(f);
    free(bytes);
    free(header);
}

/* --- on the disk ------------------------------------------------------------------------------ */

Test(files, what_is_no_readable_file_is_refused)
{
    char folder[256], path[512];
    gpp_file *f = NULL;
    gpp_error err = none();
    test_folder_new(folder);
    REFUSED(gpp_file_read(&f, test_path(folder, "none", path), &err), GPP_EIO,
            "No such file or directory");
    cr_expect(strstr(err.msg, path), "the message names the file: %s", err.msg);
    REFUSED(gpp_file_read(&f, folder, &err), GPP_EIO, "not a regular file");
    REFUSED(gpp_file_read(&f, "/dev/null", &err), GPP_EIO, "not a regular file");
    cr_assert_eq(mkfifo(test_path(folder, "pipe", path), 0600), 0);
    REFUSED(gpp_file_read(&f, path, &err), GPP_EIO, "not a regular file");
    test_bytes_write(test_path(folder, "text", path), "hello", 5);
    REFUSED(gpp_file_read(&f, path, &err), GPP_ESYNTAX, "5 bytes are no safetensors file");
    cr_expect_null(f);
    test_folder_remove(folder);
}

Test(files, what_cannot_be_written_leaves_all_as_it_was)
{
    char folder[256], path[512], other[520];
    size_t size;
    gpp_error err = none();
    gpp_file *f = odd_file();
    test_folder_new(folder);
    test_path(folder, "no/f", path);
    REFUSED(gpp_file_write(f, path, &err), GPP_EIO, "No such file or directory");
    REFUSED(gpp_file_write(f, folder, &err), GPP_EIO, "not a regular file");
    REFUSED(gpp_file_write(f, "/dev/null", &err), GPP_EIO, "not a regular file");
    REFUSED(gpp_file_write(f, "", &err), GPP_EIO, "");
    test_bytes_write(test_path(folder, "f", path), "old", 3);
    snprintf(other, sizeof other, "%s/g", path);
    REFUSED(gpp_file_write(f, other, &err), GPP_EIO, "Not a directory");

    float *much = calloc(1 << 20, sizeof *much);
    add(f, "much", &(gpp_tensor){much, GPP_F32, 1, {1 << 20}});
    free(much);
    struct rlimit before, small = {1 << 16, 1 << 16};
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN); /* write() fails instead, as on a full disk */
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    gpp_error_clear(&err);
    gpp_status status = gpp_file_write(f, path, &err);
    setrlimit(RLIMIT_FSIZE, &before);
    cr_expect_eq(status, GPP_EIO);
    cr_expect(strstr(err.msg, "File too large"), "%s", err.msg);

    char *bytes = test_bytes_read(path, &size);
    cr_expect(bytes && size == 3 && !memcmp(bytes, "old", 3), "the old file is there");
    free(bytes);
    cr_expect_eq(test_folder_count(folder, ""), 1, "and nothing else");
    cr_expect_eq(gpp_file_write(f, path, NULL), GPP_OK, "later it works");
    gpp_file_free(f);
    test_folder_remove(folder);
}

Test(files, replacing_keeps_links_and_permissions_and_other_temporaries)
{
    char folder[256], path[512], link[512], stale[512];
    struct stat st;
    gpp_error err = none();
    gpp_file *f = odd_file(), *back = NULL;
    test_folder_new(folder);
    test_bytes_write(test_path(folder, "f", path), "old", 3);
    cr_assert_eq(chmod(path, 0640), 0);
    cr_assert_eq(symlink("f", test_path(folder, "link", link)), 0);
    snprintf(stale, sizeof stale, "f.tmp.%ld.0", (long)getpid());
    char left[512];
    test_bytes_write(test_path(folder, stale, left), "stale", 5);
    cr_assert_eq(gpp_file_write(f, link, &err), GPP_OK, "%s", err.msg);
    cr_expect(!lstat(link, &st) && S_ISLNK(st.st_mode), "the link is one still");
    cr_expect(!lstat(path, &st) && S_ISREG(st.st_mode) && (st.st_mode & 0777) == 0640);
    cr_assert_eq(gpp_file_read(&back, path, &err), GPP_OK, "%s", err.msg);
    expect_same(f, back, "through a link");
    cr_expect_eq(test_folder_count(folder, ""), 3);
    cr_expect(!stat(left, &st) && st.st_size == 5, "what a killed process left is not taken");
    gpp_file_free(f);
    gpp_file_free(back);
    test_folder_remove(folder);
}

/* Contents by which a file can be told from one half of which is another's. */
static gpp_file *numbered(int number)
{
    enum { COUNT = 20000 };
    int64_t count = COUNT + 1000 * (number % 3);
    float *x = malloc((size_t)count * sizeof *x);
    char word[16];
    gpp_file *f = new_file();
    for (int64_t k = 0; k < count; k++)
        x[k] = (float)number;
    add(f, "x", &(gpp_tensor){x, GPP_F32, 1, {count}});
    snprintf(word, sizeof word, "%d", number);
    set_word(f, "number", word);
    free(x);
    return f;
}

static void expect_whole(const char *path, int kill_number)
{
    gpp_file *f = NULL;
    gpp_tensor t = {0};
    gpp_error err = none();
    cr_assert_eq(gpp_file_read(&f, path, &err), GPP_OK, "after kill %d: %s", kill_number, err.msg);
    cr_assert_eq(gpp_file_find(f, "x", &t, &err), GPP_OK, "%s", err.msg);
    float number = (float)atoi(gpp_file_word(f, "number"));
    for (int64_t k = 0; k < t.dim[0]; k++)
        cr_assert_eq(((float *)t.data)[k], number, "after kill %d", kill_number);
    gpp_file_free(f);
}

/* Saves one file over the other until it is killed. */
static void save_for_ever(const char *path)
{
    gpp_file *f[] = {numbered(1), numbered(2), numbered(3)};
    for (int k = 0;; k++)
        if (gpp_file_write(f[k % 3], path, NULL) != GPP_OK)
            _exit(1);
}

Test(files, killed_at_any_instant_the_old_or_the_new_file_is_whole)
{
    enum { KILLS = 200 };
    char folder[256], path[512];
    unsigned random = 12345;
    gpp_file *first = numbered(0);
    test_folder_new(folder);
    cr_assert_eq(gpp_file_write(first, test_path(folder, "f", path), NULL), GPP_OK);
    for (int k = 0; k < KILLS; k++) {
        int ended;
        pid_t child = fork();
        cr_assert(child >= 0);
        if (child == 0)
            save_for_ever(path);
        random = random * 1103515245 + 12345;
        usleep(random / 65536 % 8000);
        cr_assert(!kill(child, SIGKILL) && waitpid(child, &ended, 0) == child);
        cr_assert(WIFSIGNALED(ended), "the child could not write");
        expect_whole(path, k);
    }
    /* unless some were killed half-way, nothing has been shown */
    cr_expect(test_folder_count(folder, ".tmp.") > KILLS / 20, "%d temporaries",
              test_folder_count(folder, ".tmp."));
    gpp_file_free(first);
    test_folder_remove(folder);
}

/* --- what fuzzers have found worth keeping ---------------------------------------------------- */

/* Calls `parse` for every file of a corpus, in memory of exactly its size. @return their number */
static int replay(const char *corpus, void (*parse)(const char *bytes, size_t size))
{
    char folder[256], path[512];
    int count = 0;
    snprintf(folder, sizeof folder, "%.150s/tests/fuzz/corpus/%.20s", GPP_SOURCE_DIR, corpus);
    DIR *dir = opendir(folder);
    cr_assert(dir, "no %s", folder);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        size_t size;
        if (*e->d_name == '.')
            continue;
        char *bytes = test_bytes_read(test_path(folder, e->d_name, path), &size);
        cr_assert(bytes, "%s", path);
        parse(bytes, size);
        free(bytes);
        count++;
    }
    closedir(dir);
    return count;
}

/* What is read can be written, and is then the same. */
static void parse_file(const char *bytes, size_t size)
{
    gpp_file *f = NULL;
    char *exact = malloc(size + !size);
    memcpy(exact, bytes, size);
    gpp_error err = none();
    gpp_status status = gpp__file_parse(&f, exact, size, &err);
    cr_expect(status == GPP_OK ? f && !*err.msg : !f && *err.msg, "\"%s\"", err.msg);
    if (f) {
        gpp_file *again = NULL;
        char *printed;
        cr_assert_eq(gpp__file_print(f, &printed, &size, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(gpp__file_parse(&again, printed, size, &err), GPP_OK, "%s", err.msg);
        expect_same(f, again, "printed and parsed");
        gpp_file_free(again);
        free(printed);
    }
    gpp_file_free(f);
    free(exact);
}

static void parse_model(const char *bytes, size_t size)
{
    gpp_model *model;
    gpp_error err = none();
    cr_assert_eq(gpp_model_new(&model, NULL), GPP_OK);
    char *text = strndup(bytes, size);
    gpp_status status = gpp_model_add_text(model, text, &err);
    if (status == GPP_OK)
        cr_expect_gt(gpp_model_layers(model), 0);
    else
        cr_expect(gpp_model_layers(model) == 0 && *err.msg);
    free(text);
    gpp_model_free(model);
}

static void parse_cluster(const char *bytes, size_t size)
{
    gpp_cluster *c;
    gpp_error err = none();
    char *exact = malloc(size + !size);
    memcpy(exact, bytes, size);
    gpp_status status = gpp__cluster_parse(&c, "f", exact, size, &err);
    cr_expect(status == GPP_OK ? c && !*err.msg : !c && *err.msg, "\"%s\"", err.msg);
    gpp_cluster_free(c);
    free(exact);
}

Test(files, the_corpora_of_the_fuzzers_are_read_or_refused)
{
    cr_expect_gt(replay("safetensors", parse_file), 20);
    cr_expect_gt(replay("model_text", parse_model), 20);
    cr_expect_geq(replay("cluster", parse_cluster), 3);
}

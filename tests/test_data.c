/*
 * tests/test_data.c: arrays from files. The files, good and bad, are made here, byte by byte.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include <gridpipe/data.h>

/* --- files ------------------------------------------------------------------------------------ */

enum { MOST = 1 << 14 };

typedef struct bytes {
    size_t count;
    unsigned char data[MOST];
} bytes;

static void put(bytes *b, const void *what, size_t count)
{
    cr_assert(count <= MOST - b->count);
    memcpy(b->data + b->count, what, count);
    b->count += count;
}

/* Magic, version, length and text of a header: as it is, without NumPy's padding. */
static void put_npy(bytes *b, int version, const char *text)
{
    size_t length = strlen(text);
    unsigned char head[12] = {0x93, 'N', 'U', 'M', 'P', 'Y', (unsigned char)version, 0};
    head[8] = (unsigned char)length;
    head[9] = (unsigned char)(length >> 8);
    put(b, head, version == 1 ? 10 : 12);
    put(b, text, length);
}

/* One gzip member behind what is there already. */
static void put_gzip(bytes *b, const bytes *content)
{
    z_stream z = {0};
    cr_assert_eq(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)content->data;
    z.avail_in = (uInt)content->count;
    z.next_out = b->data + b->count;
    z.avail_out = (uInt)(MOST - b->count);
    cr_assert_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    b->count = MOST - z.avail_out;
    deflateEnd(&z);
}

static void save(const bytes *b, char path[])
{
    strcpy(path, P_tmpdir "/gridpipe-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, b->data, b->count), (ssize_t)b->count);
    close(fd);
}

static gpp_status read_bytes(const bytes *b, gpp_array *array, gpp_error *err)
{
    char path[64];
    save(b, path);
    gpp_status status = gpp_array_read(path, array, err);
    unlink(path);
    return status;
}

static void expect_numbers(const char *why, const gpp_array *a, gpp_dtype dtype, int count,
                           const double want[])
{
    cr_assert_eq(a->tensor.dtype, dtype, "%s: type %d", why, (int)a->tensor.dtype);
    for (int k = 0; k < count; k++) {
        double got = dtype == GPP_F32 ? (double)((float *)a->tensor.data)[k]
                                      : (double)((int64_t *)a->tensor.data)[k];
        cr_expect_eq(got, want[k], "%s: element %d is %g, not %g", why, k, got, want[k]);
    }
}

/* --- what is read ----------------------------------------------------------------------------- */

static const struct idx_case {
    const char *why;
    unsigned char type;
    int width;
    const char *two; /* elements */
    gpp_dtype dtype;
    double want[2];
} idx_cases[] = {
    {"unsigned bytes", 0x08, 1, "\x07\xff", GPP_I64, {7, 255}},
    {"signed bytes", 0x09, 1, "\x07\xff", GPP_I64, {7, -1}},
    {"16 bit", 0x0B, 2, "\x01\x02\xff\xfe", GPP_I64, {258, -2}},
    {"32 bit", 0x0C, 4, "\0\1\0\0\x80\0\0\0", GPP_I64, {65536, -2147483648.0}},
    {"float", 0x0D, 4, "\x3f\xc0\0\0\xc0\0\0\0", GPP_F32, {1.5, -2}},
    {"double", 0x0E, 8, "\x3f\xf8\0\0\0\0\0\0\xc0\0\0\0\0\0\0\0", GPP_F32, {1.5, -2}},
};

Test(data, every_type_of_idx_is_read)
{
    for (size_t k = 0; k < sizeof idx_cases / sizeof *idx_cases; k++) {
        const struct idx_case *c = &idx_cases[k];
        gpp_error err = GPP_ERROR_INIT;
        gpp_array a;
        bytes b = {0};
        put(&b, (unsigned char[]){0, 0, c->type, 2, 0, 0, 0, 1, 0, 0, 0, 2}, 12);
        put(&b, c->two, 2 * (size_t)c->width);
        cr_assert_eq(read_bytes(&b, &a, &err), GPP_OK, "%s: %s", c->why, err.msg);
        cr_expect(a.tensor.rank == 2 && a.tensor.dim[0] == 1 && a.tensor.dim[1] == 2, "%s", c->why);
        expect_numbers(c->why, &a, c->dtype, 2, c->want);
        gpp_array_free(&a);
    }
}

static const struct npy_case {
    const char *why, *descr;
    int width;
    const char *two;
    gpp_dtype dtype;
    double want[2];
} npy_cases[] = {
    {"bool", "|b1", 1, "\0\1", GPP_I64, {0, 1}},
    {"a bool that is not 0 is 1", "|b1", 1, "\x02\1", GPP_I64, {1, 1}},
    {"int8", "|i1", 1, "\x7f\x80", GPP_I64, {127, -128}},
    {"uint8", "|u1", 1, "\x7f\x80", GPP_I64, {127, 128}},
    {"byte order of one byte", "<u1", 1, "\x7f\x80", GPP_I64, {127, 128}},
    {"int16", "<i2", 2, "\x01\x02\xfe\xff", GPP_I64, {513, -2}},
    {"int16, big-endian", ">i2", 2, "\x02\x01\xff\xfe", GPP_I64, {513, -2}},
    {"uint16", "<u2", 2, "\x01\x02\xfe\xff", GPP_I64, {513, 65534}},
    {"int32", "<i4", 4, "\1\0\0\0\xff\xff\xff\xff", GPP_I64, {1, -1}},
    {"uint32, big-endian", ">u4", 4, "\0\0\0\1\xff\xff\xff\xff", GPP_I64, {1, 4294967295.0}},
    {"int64",
     "<i8",
     8,
     "\1\0\0\0\1\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
     GPP_I64,
     {4294967297.0, -1}},
    {"int64, big-endian",
     ">i8",
     8,
     "\0\0\0\1\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff",
     GPP_I64,
     {4294967297.0, -1}},
    {"uint64", "<u8", 8, "\1\0\0\0\1\0\0\0\2\0\0\0\0\0\0\0", GPP_I64, {4294967297.0, 2}},
    {"float32", "<f4", 4, "\0\0\xc0\x3f\0\0\x80\xff", GPP_F32, {1.5, -INFINITY}},
    {"float32, big-endian", ">f4", 4, "\x3f\xc0\0\0\xff\x80\0\0", GPP_F32, {1.5, -INFINITY}},
    {"float64", "<f8", 8, "\0\0\0\0\0\0\xf8\x3f\0\0\0\0\0\0\0\xc0", GPP_F32, {1.5, -2}},
    {"float64, big-endian", ">f8", 8, "\x3f\xf8\0\0\0\0\0\0\xc0\0\0\0\0\0\0\0", GPP_F32, {1.5, -2}},
};

Test(data, every_type_and_version_of_npy_is_read)
{
    for (size_t k = 0; k < sizeof npy_cases / sizeof *npy_cases; k++) {
        const struct npy_case *c = &npy_cases[k];
        for (int version = 1; version <= 3; version++) {
            gpp_error err = GPP_ERROR_INIT;
            gpp_array a;
            bytes b = {0};
            char text[100];
            sprintf(text, "{'descr': '%s', 'fortran_order': False, 'shape': (2,), } \n", c->descr);
            put_npy(&b, version, text);
            put(&b, c->two, 2 * (size_t)c->width);
            cr_assert_eq(read_bytes(&b, &a, &err), GPP_OK, "%s: %s", c->why, err.msg);
            cr_expect(a.tensor.rank == 1 && a.tensor.dim[0] == 2, "%s", c->why);
            expect_numbers(c->why, &a, c->dtype, 2, c->want);
            gpp_array_free(&a);
        }
    }
}

/* What numpy 1.24 writes for arange(6, dtype=float32).reshape(2, 3), header and all. */
Test(data, a_file_that_numpy_wrote_is_read)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_array a;
    bytes b = {0};
    char text[119];
    const char *entries = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    sprintf(text, "%-117s\n", entries);
    put_npy(&b, 1, text);
    cr_assert_eq(b.count, 128);
    put(&b, "\0\0\0\0\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\x40\0\0\xa0\x40", 24);
    cr_assert_eq(read_bytes(&b, &a, &err), GPP_OK, "%s", err.msg);
    cr_expect(a.tensor.rank == 2 && a.tensor.dim[0] == 2 && a.tensor.dim[1] == 3);
    expect_numbers("numpy's own", &a, GPP_F32, 6, (double[]){0, 1, 2, 3, 4, 5});
    gpp_array_free(&a);
}

Test(data, npy_headers_may_be_spelt_as_python_reads_them)
{
    static const struct {
        const char *why, *text;
        int rank;
        int64_t dim[3];
    } cases[] = {
        {"other order, other quotes, no last comma",
         "{\"shape\":(1,2),\"descr\":\"|u1\",\"fortran_order\":False}",
         2,
         {1, 2}},
        {"blanks everywhere",
         "{ 'descr' : '|u1' ,\n 'fortran_order'\t: False , 'shape' : ( 2 , 1 , ) , } \n\n",
         2,
         {2, 1}},
        {"three dimensions",
         "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2, 1)}",
         3,
         {1, 2, 1}},
        {"Fortran order of one dimension",
         "{'descr': '|u1', 'fortran_order': True, 'shape': (2,)}",
         1,
         {2}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_array a;
        bytes b = {0};
        put_npy(&b, 1, cases[k].text);
        put(&b, "\5\6", 2);
        cr_assert_eq(read_bytes(&b, &a, &err), GPP_OK, "%s: %s", cases[k].why, err.msg);
        cr_expect_eq(a.tensor.rank, cases[k].rank, "%s", cases[k].why);
        for (int d = 0; d < cases[k].rank; d++)
            cr_expect_eq(a.tensor.dim[d], cases[k].dim[d], "%s: dim %d", cases[k].why, d);
        expect_numbers(cases[k].why, &a, GPP_I64, 2, (double[]){5, 6});
        gpp_array_free(&a);
    }
}

Test(data, a_scalar_has_rank_0)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_array a;
    bytes b = {0};
    put_npy(&b, 1, "{'descr': '|i1', 'fortran_order': False, 'shape': (), }\n");
    put(&b, "\xf7", 1);
    cr_assert_eq(read_bytes(&b, &a, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(a.tensor.rank, 0);
    expect_numbers("scalar", &a, GPP_I64, 1, (double[]){-9});
    gpp_array_free(&a);
}

Test(data, fortran_order_becomes_row_major)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_array a;
    bytes b = {0};
    double want[24];
    put_npy(&b, 1, "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3, 4), }\n");
    for (int z = 0; z < 4; z++) /* element (x, y, z) is 100 x + 10 y + z */
        for (int y = 0; y < 3; y++)
            for (int x = 0; x < 2; x++) {
                want[12 * x + 4 * y + z] = 100 * x + 10 * y + z;
                put(&b, (unsigned char[]){(unsigned char)(100 * x + 10 * y + z)}, 1);
            }
    cr_assert_eq(read_bytes(&b, &a, &err), GPP_OK, "%s", err.msg);
    cr_expect(a.tensor.rank == 3 && a.tensor.dim[0] == 2 && a.tensor.dim[2] == 4);
    expect_numbers("Fortran order", &a, GPP_I64, 24, want);
    gpp_array_free(&a);
}

/* More elements than are converted at a time, and more bytes than are read at a time. */
Test(data, large_arrays_arrive_whole_from_plain_and_gzipped_files)
{
    enum { ROWS = 300001 };
    for (int zipped = 0; zipped < 2; zipped++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_array a;
        char path[] = P_tmpdir "/gridpipe-XXXXXX";
        close(mkstemp(path));
        gzFile file = gzopen(path, zipped ? "wb" : "wbT");
        unsigned char head[] = {0, 0, 0x0C, 1, 0, ROWS >> 16, ROWS >> 8 & 255, ROWS & 255};
        gzwrite(file, head, sizeof head);
        for (unsigned k = 0; k < ROWS; k++) {
            unsigned v = k * 2654435761u >> 1;
            unsigned char raw[] = {(unsigned char)(v >> 24), (unsigned char)(v >> 16),
                                   (unsigned char)(v >> 8), (unsigned char)v};
            gzwrite(file, raw, sizeof raw);
        }
        cr_assert_eq(gzclose(file), Z_OK);
        cr_assert_eq(gpp_array_read(path, &a, &err), GPP_OK, "%s", err.msg);
        cr_expect_eq(a.tensor.dim[0], ROWS);
        long wrong = 0;
        for (unsigned k = 0; k < ROWS; k++)
            wrong += ((int64_t *)a.tensor.data)[k] != k * 2654435761u >> 1;
        cr_expect_eq(wrong, 0, "zipped %d: %ld elements differ", zipped, wrong);
        gpp_array_free(&a);
        unlink(path);
    }
}

static void put_idx(bytes *b, int rows)
{
    put(b, (unsigned char[]){0, 0, 8, 1, 0, 0, (unsigned char)(rows >> 8), (unsigned char)rows}, 8);
    for (int k = 0; k < rows; k++)
        put(b, (unsigned char[]){(unsigned char)(k * 7)}, 1);
}

Test(data, gzip_members_follow_each_other_as_one_file)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_array a;
    bytes whole = {0}, first = {0}, second = {0}, b = {0};
    put_idx(&whole, 1000);
    put(&first, whole.data, 500);
    put(&second, whole.data + 500, whole.count - 500);
    put_gzip(&b, &first);
    put_gzip(&b, &second);
    cr_assert_eq(read_bytes(&b, &a, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(a.tensor.dim[0], 1000);
    for (int k = 0; k < 1000; k++)
        cr_assert_eq(((int64_t *)a.tensor.data)[k], k * 7 & 255);
    gpp_array_free(&a);
}

Test(data, arrays_without_elements_are_arrays)
{
    static const struct {
        const char *why;
        unsigned char dims[12];
        int rank;
    } cases[] = {
        {"no rows", {0, 0, 0, 0, 0, 0, 0, 5}, 2},
        {"rows without elements", {0, 0, 0, 5, 0, 0, 0, 0}, 2},
        {"one dimension", {0, 0, 0, 0}, 1},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_array a;
        bytes b = {0};
        put(&b, (unsigned char[]){0, 0, 8, (unsigned char)cases[k].rank}, 4);
        put(&b, cases[k].dims, 4 * (size_t)cases[k].rank);
        cr_assert_eq(read_bytes(&b, &a, &err), GPP_OK, "%s: %s", cases[k].why, err.msg);
        cr_expect_eq(a.tensor.rank, cases[k].rank, "%s", cases[k].why);
        cr_expect_eq(a.tensor.dim[0], cases[k].dims[3], "%s", cases[k].why);
        cr_expect_eq(gpp_array_to_floats(&a, NULL, NULL, 1, &err), GPP_OK, "%s", cases[k].why);
        gpp_array_free(&a);
    }
}

/* --- what is refused -------------------------------------------------------------------------- */

static void expect_refused(const char *why, const bytes *b, gpp_status want, const char *says)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_array a;
    memset(&a, 0xff, sizeof a);
    gpp_status status = read_bytes(b, &a, &err);
    cr_expect_eq(status, want, "%s: %s, %s", why, gpp_status_name(status), err.msg);
    cr_expect(strstr(err.msg, "/gridpipe-") && strstr(err.msg, says), "%s: \"%s\" without \"%s\"",
              why, err.msg, says);
    cr_expect(!a.tensor.data && a.tensor.rank == 0, "%s: the array is not empty", why);
}

static const struct bad_case {
    const char *why;
    bool zipped;
    gpp_status status;
    const char *says;
    size_t count;
    const char *content;
} bad_files[] = {
    {"nothing", false, GPP_EIO, "ends at byte 0, 4 more bytes", 0, ""},
    {"nothing, zipped", true, GPP_EIO, "ends at byte 0, 4 more bytes", 0, ""},
    {"text", false, GPP_ESYNTAX, "begins with 74 65 78 74", 9, "text file"},
    {"text, zipped", true, GPP_ESYNTAX, "begins with 74 65 78 74", 9, "text file"},
    {"an IDX type there is not", false, GPP_ESYNTAX, "0x0a", 9, "\0\0\x0a\1\0\0\0\1x"},
    {"an IDX type beyond the last", false, GPP_ESYNTAX, "0x0f", 9, "\0\0\x0f\1\0\0\0\1x"},
    {"IDX without dimensions", false, GPP_ESYNTAX, "0 dimensions at byte 3", 5, "\0\0\x08\0x"},
    {"IDX with nine dimensions", false, GPP_EUNSUPPORTED, "9 dimensions", 4, "\0\0\x08\x09"},
    {"IDX that ends in its dimensions", false, GPP_EIO, "2 more bytes of its dimensions", 6,
     "\0\0\x08\1\0\0"},
    {"IDX that ends in its elements", false, GPP_EIO, "ends at byte 10, 1 more", 10,
     "\0\0\x08\1\0\0\0\3ab"},
    {"the same, zipped", true, GPP_EIO, "ends at byte 10, 1 more", 10, "\0\0\x08\1\0\0\0\3ab"},
    {"IDX that goes on", false, GPP_ESYNTAX, "goes on after byte 9", 10, "\0\0\x08\1\0\0\0\1ab"},
    {"the same, zipped", true, GPP_ESYNTAX, "goes on after byte 9", 10, "\0\0\x08\1\0\0\0\1ab"},
    {"sizes whose product overflows", false, GPP_ESYNTAX, "hold more elements than memory", 17,
     "\0\0\x08\3\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xffx"},
    {"they overflow beside a 0, too", false, GPP_ESYNTAX, "hold more elements than memory", 20,
     "\0\0\x08\4\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"},
    {"2^47 bytes in a file of 13", false, GPP_EIO, "17592186040319 more bytes of its elements", 13,
     "\0\0\x08\2\xff\xff\xff\xff\0\0\x10\0x"},
    /* No memory is made for what does not come: else this was GPP_ENOMEM. */
    {"2^47 bytes in a zipped file of 13", true, GPP_EIO, "more bytes of its elements", 13,
     "\0\0\x08\2\xff\xff\xff\xff\0\0\x10\0x"},
    {"no npy after all", false, GPP_ESYNTAX, "bytes 4 to 7", 8, "\x93NUMPI\1\0"},
    {"npy version 0", false, GPP_ESYNTAX, "bytes 4 to 7", 8, "\x93NUMPY\0\0"},
    {"npy version 4", false, GPP_ESYNTAX, "bytes 4 to 7", 8, "\x93NUMPY\4\0"},
    {"npy version 1.1", false, GPP_ESYNTAX, "bytes 4 to 7", 8, "\x93NUMPY\1\1"},
    {"npy that ends in its magic", false, GPP_EIO, "ends at byte 7, 1 more", 7, "\x93NUMPY\1"},
    {"npy that ends in its length", false, GPP_EIO, "ends at byte 9", 9, "\x93NUMPY\1\0\5"},
    {"npy that ends in its header", false, GPP_EIO, "3 more bytes of its header", 12,
     "\x93NUMPY\1\0\5\0{'"},
    {"an npy header of 4 GB", false, GPP_ESYNTAX, "4294967295 bytes", 13,
     "\x93NUMPY\2\0\xff\xff\xff\xff{"},
};

Test(data, bad_files_are_refused)
{
    for (size_t k = 0; k < sizeof bad_files / sizeof *bad_files; k++) {
        bytes b = {0}, zipped = {0};
        put(&b, bad_files[k].content, bad_files[k].count);
        put_gzip(&zipped, &b);
        expect_refused(bad_files[k].why, bad_files[k].zipped ? &zipped : &b, bad_files[k].status,
                       bad_files[k].says);
    }
}

#define D "{'descr': '|u1', "
#define F "'fortran_order': False, "

static const struct bad_header {
    const char *why, *text;
    gpp_status status;
    const char *says;
} bad_headers[] = {
    {"empty", "", GPP_ESYNTAX, "byte 10 of the file: '{' expected"},
    {"blanks", "   \n", GPP_ESYNTAX, "byte 14 of the file: '{' expected"},
    {"a list", "['descr']", GPP_ESYNTAX, "'{' expected"},
    {"no entry", "{}", GPP_ESYNTAX, "one of them is missing"},
    {"a comma alone", "{,}", GPP_ESYNTAX, "byte 11 of the file: a string expected"},
    {"no shape", D "'fortran_order': False}", GPP_ESYNTAX, "one of them is missing"},
    {"no order", D "'shape': (2,)}", GPP_ESYNTAX, "one of them is missing"},
    {"no type", "{" F "'shape': (2,)}", GPP_ESYNTAX, "one of them is missing"},
    {"another key", D F "'shape': (2,), 'more': 1}", GPP_ESYNTAX, "'descr', 'fortran_order' or"},
    {"a key twice", D "'descr': '|u1', " F "'shape': (2,)}", GPP_ESYNTAX, "has not been there"},
    {"a key without quotes", "{descr: '|u1', " F "'shape': (2,)}", GPP_ESYNTAX, "a string"},
    {"no colon", "{'descr' '|u1', " F "'shape': (2,)}", GPP_ESYNTAX, "':' expected"},
    {"no comma", "{'descr': '|u1' " F "'shape': (2,)}", GPP_ESYNTAX, "',' or '}' expected"},
    {"two commas", D ", " F "'shape': (2,)}", GPP_ESYNTAX, "a string expected"},
    {"no end", D F "'shape': (2,)", GPP_ESYNTAX, "',' or '}' expected"},
    {"no end, with a comma", D F "'shape': (2,),", GPP_ESYNTAX, "a string expected"},
    {"something behind", D F "'shape': (2,)} # two", GPP_ESYNTAX, "nothing but blanks"},
    {"a string without end", "{'descr': '|u1", GPP_ESYNTAX, "a string that ends"},
    {"a string with the other quote", "{'descr': '|u1\"}", GPP_ESYNTAX, "a string that ends"},
    {"an escape", "{'descr': '|\\x751', " F "'shape': (2,)}", GPP_ESYNTAX, "a string that ends"},
    {"a long string", "{'descr': '|u1 and so on and on', ", GPP_ESYNTAX, "a shorter string"},
    {"an order that is no truth", D "'fortran_order': 0, 'shape': (2,)}", GPP_ESYNTAX,
     "True or False"},
    {"an order that goes on", D "'fortran_order': Falsehood, 'shape': (2,)}", GPP_ESYNTAX,
     "',' or '}'"},
    {"a shape that is a list", D F "'shape': [2]}", GPP_ESYNTAX, "'(' expected"},
    {"a shape that is a number", D F "'shape': (2)}", GPP_ESYNTAX, "after the only dimension"},
    {"a comma and no number", D F "'shape': (,)}", GPP_ESYNTAX, "a whole number"},
    {"a negative number", D F "'shape': (-2,)}", GPP_ESYNTAX, "a whole number"},
    {"a leading zero", D F "'shape': (02,)}", GPP_ESYNTAX, "a whole number"},
    {"a real number", D F "'shape': (2.0,)}", GPP_ESYNTAX, "',' or ')'"},
    {"numbers without comma", D F "'shape': (1 2)}", GPP_ESYNTAX, "',' or ')'"},
    {"a shape without end", D F "'shape': (1, 2", GPP_ESYNTAX, "',' or ')'"},
    {"2^63 elements", D F "'shape': (9223372036854775808,)}", GPP_ESYNTAX, "below 2^63"},
    {"10 times that", D F "'shape': (92233720368547758080,)}", GPP_ESYNTAX, "below 2^63"},
    {"2^63 - 1 elements", D F "'shape': (9223372036854775807,)}", GPP_ESYNTAX, "than memory"},
    {"2^65 elements", D F "'shape': (4294967296, 8589934592)}", GPP_ESYNTAX, "than memory"},
    {"2^45 bytes", D F "'shape': (35184372088832,)}", GPP_EIO, "of its elements"},
    {"nine dimensions", D F "'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1)}", GPP_EUNSUPPORTED, "at most 8"},
    {"fields", "{'descr': [('a', '<f4')], " F "'shape': (2,)}", GPP_EUNSUPPORTED, "have fields"},
    {"half precision", "{'descr': '<f2', " F "'shape': (1,)}", GPP_EUNSUPPORTED, "'<f2'"},
    {"complex numbers", "{'descr': '<c8', " F "'shape': (1,)}", GPP_EUNSUPPORTED, "'<c8'"},
    {"objects", "{'descr': '|O', " F "'shape': (1,)}", GPP_EUNSUPPORTED, "'|O'"},
    {"text", "{'descr': '<U1', " F "'shape': (1,)}", GPP_EUNSUPPORTED, "'<U1'"},
    {"the machine's own order", "{'descr': '=f4', " F "'shape': (1,)}", GPP_EUNSUPPORTED, "'=f4'"},
    {"no byte order", "{'descr': '|f4', " F "'shape': (1,)}", GPP_EUNSUPPORTED, "'|f4'"},
    {"no type", "{'descr': '', " F "'shape': (1,)}", GPP_EUNSUPPORTED, "type ''"},
    {"an element too many", D F "'shape': (1,)}", GPP_ESYNTAX, "goes on after byte"},
    {"two elements too few", D F "'shape': (4,)}", GPP_EIO, "2 more bytes of its elements"},
    {"large in Fortran order", D "'fortran_order': True, 'shape': (4, 1099511627776)}", GPP_EIO,
     "of its elements"},
};

Test(data, bad_npy_headers_are_refused)
{
    for (size_t k = 0; k < sizeof bad_headers / sizeof *bad_headers; k++) {
        bytes b = {0};
        put_npy(&b, 1, bad_headers[k].text);
        put(&b, "\1\2", 2);
        expect_refused(bad_headers[k].why, &b, bad_headers[k].status, bad_headers[k].says);
    }
}

Test(data, an_integer_that_int64_has_not_is_refused)
{
    bytes b = {0};
    put_npy(&b, 1, "{'descr': '<u8', 'fortran_order': False, 'shape': (2,)}");
    put(&b, "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x80", 16);
    expect_refused("2^63", &b, GPP_EUNSUPPORTED, "element 1 is 9223372036854775808");
}

Test(data, something_behind_gzip_data_is_refused)
{
    bytes content = {0}, b = {0};
    put_idx(&content, 10);
    put_gzip(&b, &content);
    put(&b, "more", 4);
    expect_refused("a word", &b, GPP_ESYNTAX, "goes on after the end of its gzip data");
    b.count -= 4;
    put(&b, "\x1f\x8b", 2);
    expect_refused("the beginning of a member", &b, GPP_EIO, "gzip data end early");
    b.count -= 2;
    put(&b, "\x1f\x1f\x1f\x1f", 4);
    expect_refused("no member", &b, GPP_EIO, "damaged gzip data");
}

Test(data, files_that_cannot_be_read_are_refused)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_array a;
    cr_expect_eq(gpp_array_read("no/such/file.npy", &a, &err), GPP_EIO);
    cr_expect(strstr(err.msg, "no/such/file.npy: cannot be opened"), "%s", err.msg);
    gpp_error_clear(&err);
    cr_expect_eq(gpp_array_read(".", &a, &err), GPP_EIO);
    cr_expect(strstr(err.msg, "cannot be read at byte 0"), "%s", err.msg);
    cr_expect_eq(gpp_array_read(NULL, &a, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_array_read(".", NULL, NULL), GPP_EINVAL);
}

/* A path longer than the record: its end is there, and what is wrong. */
Test(data, long_paths_leave_room_for_the_message)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_array a;
    char path[3000];
    memset(path, 'x', sizeof path);
    strcpy(path + 2990, "/last.npy");
    cr_expect_eq(gpp_array_read(path, &a, &err), GPP_EIO);
    cr_expect(strstr(err.msg, "x/last.npy: cannot be opened"), "%s", err.msg);
}

static void every_beginning_is_refused(const bytes *b)
{
    for (size_t count = 0; count < b->count; count++) {
        bytes cut = {0};
        gpp_array a;
        put(&cut, b->data, count);
        gpp_status status = read_bytes(&cut, &a, NULL);
        cr_expect(status == GPP_EIO || status == GPP_ESYNTAX, "%zu of %zu bytes: %s", count,
                  b->count, gpp_status_name(status));
    }
}

Test(data, a_file_cut_anywhere_is_refused)
{
    bytes idx = {0}, npy = {0}, zipped = {0};
    put_idx(&idx, 40);
    every_beginning_is_refused(&idx);
    put_gzip(&zipped, &idx);
    every_beginning_is_refused(&zipped);
    put_npy(&npy, 2, "{'descr': '<i2', 'fortran_order': False, 'shape': (3, 2), }   \n");
    put(&npy, "abcdefghijkl", 12);
    every_beginning_is_refused(&npy);
}

/* Whatever is changed: an error, or an array whose shape its elements fill. */
static void every_change_is_survived(const bytes *b, bool checksummed)
{
    gpp_array whole;
    cr_assert_eq(read_bytes(b, &whole, NULL), GPP_OK);
    for (size_t at = 0; at < b->count; at++)
        for (int bit = 0; bit < 8; bit++) {
            bytes changed = *b;
            gpp_array a;
            int64_t count = 1;
            changed.data[at] ^= (unsigned char)(1 << bit);
            if (read_bytes(&changed, &a, NULL) != GPP_OK)
                continue;
            for (int k = 0; k < a.tensor.rank; k++)
                count *= a.tensor.dim[k];
            unsigned char *data = a.tensor.data; /* touch all of it */
            for (size_t k = 0; k < (size_t)count * gpp_dtype_size(a.tensor.dtype); k++)
                data[k] ^= 1;
            for (size_t k = 0; k < (size_t)count * gpp_dtype_size(a.tensor.dtype); k++)
                data[k] ^= 1;
            if (checksummed)
                cr_expect(count == whole.tensor.dim[0] &&
                              memcmp(data, whole.tensor.data, (size_t)count * 8) == 0,
                          "bit %d of byte %zu goes unnoticed", bit, at);
            gpp_array_free(&a);
        }
    gpp_array_free(&whole);
}

Test(data, a_file_with_any_bit_changed_is_refused_or_read_whole)
{
    bytes idx = {0}, npy = {0}, zipped = {0};
    put_idx(&idx, 20);
    every_change_is_survived(&idx, false);
    put_gzip(&zipped, &idx);
    every_change_is_survived(&zipped, true);
    put_npy(&npy, 2, "{'descr': '<i2', 'fortran_order': True, 'shape': (3, 2), }\n");
    put(&npy, "abcdefghijkl", 12);
    every_change_is_survived(&npy, false);
}

/* --- CIFAR-10 --------------------------------------------------------------------------------- */

enum { RECORD = 3073 };

static void put_record(bytes *b, int label, int seed)
{
    put(b, (unsigned char[]){(unsigned char)label}, 1);
    for (int k = 0; k < RECORD - 1; k++)
        put(b, (unsigned char[]){(unsigned char)(k * seed)}, 1);
}

static gpp_status read_cifar(const bytes b[], int count, gpp_array *images, gpp_array *labels,
                             gpp_error *err)
{
    char path[4][64];
    const char *paths[4] = {NULL};
    for (int k = 0; k < count; k++) {
        save(&b[k], path[k]);
        paths[k] = path[k];
    }
    gpp_status status = gpp_array_read_cifar10(paths, count, images, labels, err);
    for (int k = 0; k < count; k++)
        unlink(path[k]);
    return status;
}

Test(data, cifar10_files_are_read_one_after_the_other)
{
    static bytes b[3];
    gpp_error err = GPP_ERROR_INIT;
    gpp_array images, labels;
    bytes plain = {0};
    put_record(&b[0], 3, 1);
    put_record(&b[0], 0, 2);
    put_record(&plain, 9, 3);
    put_gzip(&b[1], &plain);
    put_record(&b[2], 5, 4);
    cr_assert_eq(read_cifar(b, 3, &images, &labels, &err), GPP_OK, "%s", err.msg);
    cr_expect(images.tensor.rank == 4 && images.tensor.dim[0] == 4 && images.tensor.dim[1] == 3 &&
              images.tensor.dim[2] == 32 && images.tensor.dim[3] == 32);
    cr_expect(labels.tensor.rank == 1 && labels.tensor.dim[0] == 4);
    expect_numbers("labels", &labels, GPP_I64, 4, (double[]){3, 0, 9, 5});
    cr_assert_eq(images.tensor.dtype, GPP_F32);
    for (int n = 0; n < 4; n++)
        for (int k = 0; k < RECORD - 1; k++)
            cr_assert_eq(((float *)images.tensor.data)[n * (RECORD - 1) + k],
                         (float)(k * (n + 1) & 255), "image %d, byte %d", n, k);
    gpp_array_free(&images);
    gpp_array_free(&labels);
}

Test(data, many_cifar10_records_make_the_arrays_grow)
{
    enum { MANY = 2500 };
    char path[] = P_tmpdir "/gridpipe-XXXXXX";
    const char *paths[] = {path};
    gpp_error err = GPP_ERROR_INIT;
    gpp_array images, labels;
    FILE *file = fdopen(mkstemp(path), "wb");
    for (int n = 0; n < MANY; n++) {
        bytes b = {0};
        put_record(&b, n % 10, n);
        fwrite(b.data, 1, b.count, file);
    }
    fclose(file);
    cr_assert_eq(gpp_array_read_cifar10(paths, 1, &images, &labels, &err), GPP_OK, "%s", err.msg);
    cr_assert(images.tensor.dim[0] == MANY && labels.tensor.dim[0] == MANY);
    for (int n = 0; n < MANY; n++) {
        cr_assert_eq(((int64_t *)labels.tensor.data)[n], n % 10);
        cr_assert_eq(((float *)images.tensor.data)[n * (RECORD - 1) + 77], (float)(77 * n & 255));
    }
    gpp_array_free(&images);
    gpp_array_free(&labels);
    unlink(path);
}

Test(data, bad_cifar10_files_are_refused)
{
    static const struct {
        const char *why;
        int label;
        size_t extra;
        gpp_status status;
        const char *says;
    } cases[] = {
        {"label 10", 10, 0, GPP_ESYNTAX, "label 10 at byte 3073"},
        {"part of a record", 1, 100, GPP_EIO, "2973 more bytes"},
        {"an empty file", -1, 0, GPP_EIO, "ends at byte 0"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        static bytes b[2];
        gpp_error err = GPP_ERROR_INIT;
        gpp_array images, labels;
        memset(b, 0, sizeof b);
        put_record(&b[0], 1, 1);
        if (cases[k].label >= 0) {
            put_record(&b[1], 1, 1);
            put_record(&b[1], cases[k].label, 1);
            b[1].count += cases[k].extra;
        }
        gpp_status status = read_cifar(b, 2, &images, &labels, &err);
        cr_expect_eq(status, cases[k].status, "%s: %s", cases[k].why, err.msg);
        cr_expect(strstr(err.msg, cases[k].says), "%s: %s", cases[k].why, err.msg);
        cr_expect(!images.tensor.data && !labels.tensor.data, "%s", cases[k].why);
    }
    gpp_array images, labels;
    cr_expect_eq(gpp_array_read_cifar10((const char *[]){"."}, 0, &images, &labels, NULL),
                 GPP_EINVAL);
    cr_expect_eq(gpp_array_read_cifar10((const char *[]){NULL}, 1, &images, &labels, NULL),
                 GPP_EINVAL);
}

/* --- changing arrays -------------------------------------------------------------------------- */

static gpp_array integers(int rank, const int64_t dim[])
{
    gpp_array a = {{NULL, GPP_I64, rank, {0}}};
    int64_t count = 1;
    for (int k = 0; k < rank; k++)
        count *= a.tensor.dim[k] = dim[k];
    int64_t *x = malloc((size_t)count * sizeof *x + 1);
    for (int64_t k = 0; k < count; k++)
        x[k] = k;
    a.tensor.data = x;
    return a;
}

Test(data, channels_are_scaled_each_by_its_own_numbers)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_array a = integers(3, (int64_t[]){2, 3, 2});
    const float mean[] = {1, -2, 100}, std[] = {2, 4, -8};
    double want[12];
    for (int k = 0; k < 12; k++)
        want[k] = (k - (double)mean[k / 2 % 3]) / (double)std[k / 2 % 3];
    cr_assert_eq(gpp_array_to_floats(&a, mean, std, 3, &err), GPP_OK, "%s", err.msg);
    expect_numbers("integers", &a, GPP_F32, 12, want);
    for (int k = 0; k < 12; k++) /* and floats: exact, for all of these are multiples of 1/64 */
        want[k] = (want[k] - (double)mean[k / 2 % 3]) / (double)std[k / 2 % 3];
    cr_assert_eq(gpp_array_to_floats(&a, mean, std, 3, &err), GPP_OK, "%s", err.msg);
    expect_numbers("floats", &a, GPP_F32, 12, want);
    gpp_array_free(&a);
}

Test(data, without_numbers_only_the_type_changes)
{
    gpp_array a = integers(2, (int64_t[]){50, 100});
    cr_assert_eq(gpp_array_to_floats(&a, NULL, NULL, 1, NULL), GPP_OK);
    for (int k = 0; k < 5000; k++)
        cr_assert_eq(((float *)a.tensor.data)[k], (float)k);
    gpp_array_free(&a);
}

Test(data, wrong_scales_and_shapes_change_nothing)
{
    gpp_array a = integers(2, (int64_t[]){2, 3});
    const float zeros[3] = {1, 1, 0}, infinite[3] = {0, INFINITY, 0}, ones[3] = {1, 1, 1};
    const int64_t seven[] = {7}, negative[] = {-2, -3}, huge[] = {INT64_MAX, 3, 2};
    cr_expect_eq(gpp_array_to_floats(&a, ones, ones, 2, NULL), GPP_ESHAPE);
    cr_expect_eq(gpp_array_to_floats(&a, ones, ones, 0, NULL), GPP_ESHAPE);
    cr_expect_eq(gpp_array_to_floats(&a, ones, zeros, 3, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_array_to_floats(&a, infinite, ones, 3, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_array_to_floats(NULL, ones, ones, 3, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_array_to_floats(&(gpp_array){0}, NULL, NULL, 1, NULL), GPP_EINVAL,
                 "an array that could not be read");
    cr_expect_eq(gpp_array_reshape(&a, 1, seven, NULL), GPP_ESHAPE);
    cr_expect_eq(gpp_array_reshape(&a, 2, negative, NULL), GPP_ESHAPE);
    cr_expect_eq(gpp_array_reshape(&a, 3, huge, NULL), GPP_ESHAPE);
    cr_expect_eq(gpp_array_reshape(&a, 0, NULL, NULL), GPP_ESHAPE);
    cr_expect_eq(gpp_array_reshape(&a, GPP_MAX_RANK + 1, huge, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_array_reshape(&a, 1, NULL, NULL), GPP_EINVAL);
    cr_expect(a.tensor.rank == 2 && a.tensor.dim[0] == 2 && a.tensor.dim[1] == 3);
    expect_numbers("unchanged", &a, GPP_I64, 6, (double[]){0, 1, 2, 3, 4, 5});
    cr_expect_eq(gpp_array_reshape(&a, 3, (int64_t[]){1, 6, 1}, NULL), GPP_OK);
    cr_expect(a.tensor.rank == 3 && a.tensor.dim[1] == 6);
    gpp_array_free(&a);
    cr_expect(!a.tensor.data);
    gpp_array_free(&a);
    gpp_array_free(NULL);
}

/* --- a data set ------------------------------------------------------------------------------- */

Test(data, fashion_mnist_has_a_thousand_test_images_of_each_kind)
{
    const char *path = "/usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz";
    gpp_error err = GPP_ERROR_INIT;
    gpp_array a;
    int kind[10] = {0};
    if (access(path, R_OK))
        cr_skip_test("dataset-fashion-mnist is not installed");
    cr_assert_eq(gpp_array_read(path, &a, &err), GPP_OK, "%s", err.msg);
    cr_assert(a.tensor.rank == 1 && a.tensor.dim[0] == 10000 && a.tensor.dtype == GPP_I64);
    for (int k = 0; k < 10000; k++)
        kind[((int64_t *)a.tensor.data)[k]]++;
    for (int k = 0; k < 10; k++)
        cr_expect_eq(kind[k], 1000, "kind %d: %d", k, kind[k]);
    gpp_array_free(&a);
}

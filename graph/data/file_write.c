/*
 * graph/data/file_write.c: writing safetensors files so that at any instant the old file or the new
 * one is whole.
 *
 * The new contents go to a temporary file beside the target. It is synced and renamed onto the
 * target; then the folder is synced. rename() replaces a name at once, and syncing before it puts
 * the contents on the disk before the name: see rename(2), fsync(2). A process that is killed
 * leaves a temporary file, "<name>.tmp.<process>.<number>", which nothing reads.
 *
 * Arrays lie in the file by falling size of their elements, so every array is aligned. Readers that
 * map the file into memory, such as PyTorch's, need that. The header names arrays in the order in
 * which they were added.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph/data/file.h"

/* --- the header ------------------------------------------------------------------------------- */

typedef struct text {
    char *bytes;
    size_t length, room;
    bool failed; /* no memory */
} text;

static void put(text *t, const char *bytes, size_t length)
{
    if (t->failed)
        return;
    if (t->room - t->length <= length) {
        size_t wanted = 2 * (t->length + length) + 256;
        char *grown = realloc(t->bytes, wanted);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->bytes = grown;
        t->room = wanted;
    }
    memcpy(t->bytes + t->length, bytes, length);
    t->length += length;
}

static void __attribute__((format(printf, 2, 3))) say(text *t, const char *format, ...)
{
    char line[128];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    put(t, line, (size_t)length);
}

static void put_string(text *t, const char *string)
{
    put(t, "\"", 1);
    for (const char *at = string; *at; at++) {
        unsigned char c = (unsigned char)*at;
        if (c == '"' || c == '\\')
            say(t, "\\%c", c);
        else if (c < ' ')
            say(t, "\\u%04x", c);
        else
            put(t, at, 1);
    }
    put(t, "\"", 1);
}

static size_t bytes_of(const struct gpp__file_array *a)
{
    return a->count * gpp_dtype_size(a->tensor.dtype);
}

static const gpp_dtype file_order[] = {GPP_I64, GPP_F32};
enum { TYPES = sizeof file_order / sizeof *file_order };

/* Finds where the first array of each type begins. @return bytes of all arrays */
static uint64_t place_types(const gpp_file *f, uint64_t at[TYPES])
{
    uint64_t end = 0;
    for (int t = 0; t < TYPES; t++) {
        at[t] = end;
        for (int k = 0; k < f->arrays; k++)
            end += f->array[k].tensor.dtype == file_order[t] ? bytes_of(&f->array[k]) : 0;
    }
    return end;
}

static void put_array(text *t, const struct gpp__file_array *a, uint64_t at[TYPES])
{
    int type = a->tensor.dtype == file_order[0] ? 0 : 1;
    put_string(t, a->name);
    say(t, ":{\"dtype\":\"%s\",\"shape\":[", a->tensor.dtype == GPP_F32 ? "F32" : "I64");
    for (int d = 0; d < a->tensor.rank; d++)
        say(t, "%s%" PRId64, d ? "," : "", a->tensor.dim[d]);
    say(t, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at[type], at[type] + bytes_of(a));
    at[type] += bytes_of(a);
}

static void put_words(text *t, const gpp_file *f)
{
    put_string(t, GPP__SAFETENSORS_WORDS);
    for (int k = 0; k < f->words; k++) {
        put(t, k ? "," : ":{", k ? 1 : 2);
        put_string(t, f->word[k].key);
        put(t, ":", 1);
        put_string(t, f->word[k].value);
    }
    put(t, "}", 1);
}

/* Writes the length, the header, and blanks up to a multiple of 8 bytes. */
static gpp_status make_header(const gpp_file *f, text *t, gpp_error *err)
{
    uint64_t at[TYPES];
    place_types(f, at);
    put(t, "\0\0\0\0\0\0\0\0{", GPP__SAFETENSORS_LENGTH + 1);
    if (f->words)
        put_words(t, f);
    for (int k = 0; k < f->arrays; k++) {
        if (f->words || k)
            put(t, ",", 1);
        put_array(t, &f->array[k], at);
    }
    put(t, "}", 1);
    while (t->length % 8 && !t->failed)
        put(t, " ", 1);
    if (t->failed)
        return gpp__fail(err, GPP_ENOMEM, "a header for %d arrays", f->arrays);
    uint64_t length = t->length - GPP__SAFETENSORS_LENGTH;
    if (length > GPP__SAFETENSORS_LONGEST)
        return gpp__fail(err, GPP_EINVAL,
                         "its header would have %" PRIu64 " bytes, the most is %zu", length,
                         GPP__SAFETENSORS_LONGEST);
    for (int k = 0; k < GPP__SAFETENSORS_LENGTH; k++)
        t->bytes[k] = (char)(length >> (8 * k));
    return GPP_OK;
}

/* --- the bytes -------------------------------------------------------------------------------- */

/* Where bytes go: a file, or memory. */
typedef struct sink {
    int fd;
    text *memory; /* NULL: a file */
} sink;

static gpp_status write_all(const sink *s, const void *bytes, size_t length, gpp_error *err)
{
    if (s->memory) {
        put(s->memory, bytes, length);
        return s->memory->failed ? gpp__fail(err, GPP_ENOMEM, "%zu bytes", length) : GPP_OK;
    }
    for (const char *at = bytes; length;) {
        ssize_t done = write(s->fd, at, length);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return gpp__fail(err, GPP_EIO, "%s", strerror(errno));
        at += done;
        length -= (size_t)done;
    }
    return GPP_OK;
}

/* Writes `count` elements of `width` bytes, little-endian. */
static gpp_status write_elements(const sink *s, const char *from, size_t count, size_t width,
                                 gpp_error *err)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return write_all(s, from, count * width, err);
#else
    char piece[4096];
    while (count) {
        size_t some = count * width < sizeof piece ? count : sizeof piece / width;
        for (size_t k = 0; k < some * width; k++)
            piece[k] = from[k / width * width + width - 1 - k % width];
        gpp_status status = write_all(s, piece, some * width, err);
        if (status != GPP_OK)
            return status;
        from += some * width;
        count -= some;
    }
    return GPP_OK;
#endif
}

static gpp_status write_arrays(const sink *s, const gpp_file *f, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int t = 0; t < TYPES; t++)
        for (int k = 0; k < f->arrays && status == GPP_OK; k++) {
            const struct gpp__file_array *a = &f->array[k];
            if (a->tensor.dtype == file_order[t])
                status = write_elements(s, a->tensor.data, a->count,
                                        gpp_dtype_size(a->tensor.dtype), err);
        }
    return status;
}

gpp_status gpp__file_print(const gpp_file *f, char **bytes, size_t *size, gpp_error *err)
{
    text t = {0};
    const sink s = {-1, &t};
    gpp_status status = make_header(f, &t, err);
    if (status == GPP_OK)
        status = write_arrays(&s, f, err);
    if (status != GPP_OK)
        free(t.bytes);
    *bytes = status == GPP_OK ? t.bytes : NULL;
    *size = t.length;
    return status;
}

/* --- the name --------------------------------------------------------------------------------- */

static gpp_status fail_errno(gpp_error *err, const char *what)
{
    return gpp__fail(err, GPP_EIO, "%s: %s", what, strerror(errno));
}

/* Follows links to the name that is to be replaced; the caller frees it. A device or a folder is
 * refused: a rename would put a file in its place. */
static gpp_status find_target(const char *path, char **target, mode_t *mode, gpp_error *err)
{
    struct stat st;
    *mode = 0;
    *target = NULL;
    if (stat(path, &st)) {
        if (errno != ENOENT)
            return fail_errno(err, "its name");
        *target = strdup(path);
        return *target ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "its name");
    }
    if (!S_ISREG(st.st_mode))
        return gpp__fail(err, GPP_EIO, "there is something that is not a regular file");
    *mode = st.st_mode & 0777;
    *target = realpath(path, NULL);
    return *target ? GPP_OK : fail_errno(err, "its name");
}

/* Opens a new file beside the target, with a name that no other process or thread uses. */
static gpp_status open_temporary(const char *target, char *name, size_t size, int *fd,
                                 gpp_error *err)
{
    for (unsigned number = 0; number < 100000; number++) {
        snprintf(name, size, "%s.tmp.%ld.%u", target, (long)getpid(), number);
        *fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (*fd >= 0)
            return GPP_OK;
        if (errno != EEXIST)
            break;
    }
    return fail_errno(err, "a temporary beside it");
}

static gpp_status sync_folder(char *target, gpp_error *err)
{
    int fd = open(dirname(target), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(err, "its folder, to sync it");
    /* Some file systems cannot sync a folder, which is no failure. */
    bool done = !fsync(fd) || errno == EINVAL || errno == ENOTSUP;
    gpp_status status = done ? GPP_OK : fail_errno(err, "syncing its folder");
    close(fd);
    return status;
}

/* Writes, syncs and closes the file. close() can report a failed write (on NFS, for one), so its
 * status counts. */
static gpp_status write_temporary(int fd, const gpp_file *f, const text *header, mode_t mode,
                                  gpp_error *err)
{
    const sink s = {fd, NULL};
    gpp_status status = write_all(&s, header->bytes, header->length, err);
    if (status == GPP_OK)
        status = write_arrays(&s, f, err);
    if (mode)
        (void)!fchmod(fd, mode); /* the old file's mode; not every file system has modes */
    if (status == GPP_OK && fsync(fd))
        status = fail_errno(err, "syncing");
    if (close(fd) && status == GPP_OK)
        status = fail_errno(err, "closing");
    return status;
}

/* Writes a temporary and renames it onto the target. A failure removes the temporary and leaves
 * the target as it was. */
static gpp_status replace(const gpp_file *f, char *target, mode_t mode, const text *header,
                          gpp_error *err)
{
    int fd = -1;
    size_t size = strlen(target) + 64;
    char *name = malloc(size);
    if (!name)
        return gpp__fail(err, GPP_ENOMEM, "a temporary's name");
    gpp_status status = open_temporary(target, name, size, &fd, err);
    if (status == GPP_OK) {
        status = write_temporary(fd, f, header, mode, err);
        if (status == GPP_OK && rename(name, target))
            status = fail_errno(err, "renaming its temporary");
        if (status != GPP_OK)
            unlink(name);
        else
            status = sync_folder(target, err);
    }
    free(name);
    return status;
}

gpp_status gpp_file_write(const gpp_file *f, const char *path, gpp_error *err)
{
    gpp_error inner = GPP_ERROR_INIT;
    text header = {0};
    char *target = NULL;
    mode_t mode = 0;
    if (!f || !path)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", f ? "path" : "file");
    gpp_status status = make_header(f, &header, &inner);
    if (status == GPP_OK)
        status = find_target(path, &target, &mode, &inner);
    if (status == GPP_OK)
        status = replace(f, target, mode, &header, &inner);
    free(target);
    free(header.bytes);
    return status == GPP_OK ? GPP_OK
                            : gpp__fail(err, status, "writing \"%.300s\": %s", path, inner.msg);
}

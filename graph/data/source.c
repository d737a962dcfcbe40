/*
 * graph/data/source.c: see source.h.
 *
 * A file is read in pieces through one buffer. A gzip file (RFC 1952) consists of members, each
 * with a checksum, and nothing else. zlib's own file functions ignore what stands behind the last
 * member, so the members are inflated here.
 */
#include "graph/data/source.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

enum { PIECE = 1 << 16, LONGEST_PATH = 600 };
enum { GZIP_0 = 0x1f, GZIP_1 = 0x8b, GZIP_ONLY = 16 + MAX_WBITS };

struct gpp__source {
    const char *path;
    FILE *file;
    uint64_t size;   /* bytes of the file; 0 when it is not a regular one */
    uint64_t at;     /* bytes given to the reader so far */
    uint64_t behind; /* bytes of the file that have gone into the buffer so far */
    bool zipped, ended;
    bool peeks; /* `peeked` is the next byte, before those of the buffer */
    unsigned char peeked;
    const unsigned char *next; /* [left] the rest of the buffer */
    size_t left;
    z_stream z;
    unsigned char piece[PIECE];
};

/* The end of a path, which fits into a message and says more than its beginning. */
static const char *tail(const char *path)
{
    size_t length = strlen(path);
    return length > LONGEST_PATH ? path + length - LONGEST_PATH : path;
}

gpp_status gpp__source_fail(const gpp__source *s, gpp_error *err, gpp_status code,
                            const char *format, ...)
{
    char what[320];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return gpp__fail(err, code, "%s: %s", tail(s->path), what);
}

uint64_t gpp__source_at(const gpp__source *s)
{
    return s->at;
}

uint64_t gpp__source_known(const gpp__source *s)
{
    return s->zipped || s->size <= s->at ? 0 : s->size - s->at;
}

/* --- pieces of the file ----------------------------------------------------------------------- */

/* Fills the buffer; at the end of the file it stays empty. */
static gpp_status refill(gpp__source *s, gpp_error *err)
{
    if (s->left)
        return GPP_OK;
    errno = 0;
    s->next = s->piece;
    s->left = fread(s->piece, 1, PIECE, s->file);
    s->behind += s->left;
    if (!s->left && ferror(s->file))
        return gpp__source_fail(s, err, GPP_EIO, "cannot be read at byte %" PRIu64 ": %s",
                                s->behind, strerror(errno));
    return GPP_OK;
}

static size_t take_plain(gpp__source *s, unsigned char *to, size_t count)
{
    size_t some = s->left < count ? s->left : count;
    memcpy(to, s->next, some);
    s->next += some;
    s->left -= some;
    s->ended = some == 0;
    return some;
}

/* Goes on after the end of a member: another member may follow, and nothing else. */
static gpp_status next_member(gpp__source *s, gpp_error *err)
{
    gpp_status status = refill(s, err);
    if (status)
        return status;
    s->ended = s->left == 0;
    if (s->ended)
        return GPP_OK;
    if (s->next[0] != GZIP_0)
        return gpp__source_fail(s, err, GPP_ESYNTAX,
                                "goes on after the end of its gzip data, which is at byte %" PRIu64
                                " of the file",
                                s->behind - s->left);
    inflateReset(&s->z);
    return GPP_OK;
}

static gpp_status inflated(gpp__source *s, int code, gpp_error *err)
{
    switch (code) {
    case Z_OK:
    case Z_BUF_ERROR: /* no failure: zlib wants more input */
        return GPP_OK;
    case Z_STREAM_END:
        return next_member(s, err);
    case Z_MEM_ERROR:
        return gpp__source_fail(s, err, GPP_ENOMEM, "no memory to decompress it");
    default:
        return gpp__source_fail(s, err, GPP_EIO,
                                "damaged gzip data before byte %" PRIu64 " of the file: %s",
                                s->behind - s->left, s->z.msg ? s->z.msg : "no reason is known");
    }
}

static gpp_status take_zipped(gpp__source *s, unsigned char *to, size_t count, size_t *got,
                              gpp_error *err)
{
    if (!s->left)
        return gpp__source_fail(s, err, GPP_EIO,
                                "its gzip data end early, at byte %" PRIu64 " of the file, %" PRIu64
                                " bytes after decompression",
                                s->behind, s->at);
    uInt most = count < PIECE ? (uInt)count : PIECE;
    s->z.next_in = (Bytef *)s->next;
    s->z.avail_in = (uInt)s->left;
    s->z.next_out = to;
    s->z.avail_out = most;
    int code = inflate(&s->z, Z_NO_FLUSH);
    s->next = s->z.next_in;
    s->left = s->z.avail_in;
    *got = most - s->z.avail_out;
    return inflated(s, code, err);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Reads up to `count` bytes; fewer only at the end of the file. */
static gpp_status take(gpp__source *s, unsigned char *to, size_t count, size_t *got, gpp_error *err)
{
    *got = s->peeks && count ? 1 : 0;
    if (*got) {
        to[0] = s->peeked;
        s->peeks = false;
        s->at++;
    }
    while (*got < count && !s->ended) {
        size_t some = 0;
        gpp_status status = refill(s, err);
        if (!status && s->zipped)
            status = take_zipped(s, to + *got, count - *got, &some, err);
        else if (!status)
            some = take_plain(s, to + *got, count - *got);
        if (status)
            return status;
        *got += some;
        s->at += some;
    }
    return GPP_OK;
}

gpp_status gpp__source_read(gpp__source *s, void *to, size_t count, const char *what,
                            gpp_error *err)
{
    size_t got;
    gpp_status status = take(s, to, count, &got, err);
    if (status)
        return status;
    if (got < count)
        return gpp__source_fail(s, err, GPP_EIO,
                                "ends at byte %" PRIu64 ", %zu more bytes of its %s expected",
                                s->at, count - got, what);
    return GPP_OK;
}

/* Reads one byte ahead into `peeked`. At the end of gzip data this is what has zlib compare the
 * checksum. */
gpp_status gpp__source_over(gpp__source *s, bool *over, gpp_error *err)
{
    size_t got = 0;
    gpp_status status = s->peeks ? GPP_OK : take(s, &s->peeked, 1, &got, err);
    s->at -= got;
    s->peeks = s->peeks || got;
    *over = !s->peeks;
    return status;
}

gpp_status gpp__source_end(gpp__source *s, gpp_error *err)
{
    bool over;
    gpp_status status = gpp__source_over(s, &over, err);
    if (!status && !over)
        return gpp__source_fail(s, err, GPP_ESYNTAX,
                                "goes on after byte %" PRIu64 ", where its last element ends",
                                s->at);
    return status;
}

gpp_status gpp__source_holds(gpp__source *s, uint64_t count, const char *what, gpp_error *err)
{
    if (s->zipped || !s->size || count <= gpp__source_known(s))
        return GPP_OK;
    return gpp__source_fail(s, err, GPP_EIO,
                            "ends at byte %" PRIu64 ", %" PRIu64 " more bytes of its %s expected",
                            s->size, count - gpp__source_known(s), what);
}

/* --- opening ---------------------------------------------------------------------------------- */

static gpp_status recognise(gpp__source *s, gpp_error *err)
{
    struct stat about;
    gpp_status status = refill(s, err);
    if (status)
        return status;
    if (!fstat(fileno(s->file), &about) && S_ISREG(about.st_mode))
        s->size = (uint64_t)about.st_size;
    if (s->left < 2 || s->next[0] != GZIP_0 || s->next[1] != GZIP_1)
        return GPP_OK;
    if (inflateInit2(&s->z, GZIP_ONLY) != Z_OK)
        return gpp__source_fail(s, err, GPP_ENOMEM, "no memory to decompress it");
    s->zipped = true;
    return GPP_OK;
}

gpp_status gpp__source_open(gpp__source **out, const char *path, gpp_error *err)
{
    gpp_status status = GPP_ENOMEM;
    gpp__source *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return gpp__fail(err, GPP_ENOMEM, "%s: no memory to read it", tail(path));
    s->path = path;
    s->file = fopen(path, "rbe");
    if (!s->file) {
        status = gpp__source_fail(s, err, GPP_EIO, "cannot be opened: %s", strerror(errno));
        goto free_source;
    }
    setvbuf(s->file, NULL, _IONBF, 0);
    status = recognise(s, err);
    if (status)
        goto close_file;
    *out = s;
    return GPP_OK;
close_file:
    fclose(s->file);
free_source:
    free(s);
    return status;
}

void gpp__source_close(gpp__source *s)
{
    if (!s)
        return;
    if (s->zipped)
        inflateEnd(&s->z);
    fclose(s->file);
    free(s);
}

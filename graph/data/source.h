/*
 * graph/data/source.h: the bytes of a file from its beginning to its end, gzipped or not.
 *
 * Messages name the file and the position in it. Positions count the bytes that the reader was
 * given: of a gzipped file, those after decompression.
 */
#ifndef GPP_GRAPH_SOURCE_H
#define GPP_GRAPH_SOURCE_H

#include "base/status.h"

typedef struct gpp__source gpp__source;

/**
 * @param source  out; NULL on failure. Free with gpp__source_close
 * @param path    must live as long as the source
 * @return GPP_OK, GPP_EIO, GPP_ENOMEM
 */
gpp_status gpp__source_open(gpp__source **source, const char *path, gpp_error *err);
void gpp__source_close(gpp__source *source);

/**
 * Read exactly `count` bytes.
 *
 * @param what  what the bytes are, in the plural, for the message
 * @return GPP_OK, GPP_EIO (ends early, cannot be read, damaged gzip data), GPP_ESYNTAX (something
 *         behind gzip data), GPP_ENOMEM
 */
gpp_status gpp__source_read(gpp__source *source, void *to, size_t count, const char *what,
                            gpp_error *err);
/** Whether the end is reached. @return as gpp__source_read */
gpp_status gpp__source_over(gpp__source *source, bool *over, gpp_error *err);
/** Fail with GPP_ESYNTAX unless the end is reached. @return also as gpp__source_read */
gpp_status gpp__source_end(gpp__source *source, gpp_error *err);

/** Fail with GPP_EIO when the file is known to be too short for `count` more bytes. To be called
 * before memory for them is allocated. */
gpp_status gpp__source_holds(gpp__source *source, uint64_t count, const char *what, gpp_error *err);
/** Bytes that are known to be left, at least; 0 when that is not known. */
uint64_t gpp__source_known(const gpp__source *source);
/** Bytes read so far. */
uint64_t gpp__source_at(const gpp__source *source);

/** As gpp__fail, with the path in front of the message. */
gpp_status gpp__source_fail(const gpp__source *source, gpp_error *err, gpp_status code,
                            const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif

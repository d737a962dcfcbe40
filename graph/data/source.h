/*
 * graph/data/source.h: the bytes of a file from its beginning to its end, gzipped or not.
 *
 * Failures name the file and where in it: positions count the bytes that the reader was given,
 * which for a gzipped file are those after decompression.
 */
#ifndef GPP_GRAPH_SOURCE_H
#define GPP_GRAPH_SOURCE_H

#include "base/status.h"

typedef struct gpp__source gpp__source;

/** @param path  must live as long as the source  @param source out; NULL on failure. Free with
 * gpp__source_close  @return GPP_OK, GPP_EIO, GPP_ENOMEM */
gpp_status gpp__source_open(gpp__source **source, const char *path, gpp_error *err);
void gpp__source_close(gpp__source *source);

/** Exactly `count` bytes. @param what  they are, in the plural, for the message
 * @return GPP_OK, GPP_EIO (ends early, cannot be read, damaged gzip data), GPP_ESYNTAX (something
 *         behind gzip data), GPP_ENOMEM */
gpp_status gpp__source_read(gpp__source *source, void *to, size_t count, const char *what,
                            gpp_error *err);
/** Whether the end is reached. @return as gpp__source_read */
gpp_status gpp__source_over(gpp__source *source, bool *over, gpp_error *err);
/** Nothing may follow. @return GPP_OK, GPP_ESYNTAX, and as gpp__source_read */
gpp_status gpp__source_end(gpp__source *source, gpp_error *err);

/** Fails with GPP_EIO when the file is known to be too short for `count` more bytes: to be asked
 * before memory is made for them. */
gpp_status gpp__source_holds(gpp__source *source, uint64_t count, const char *what, gpp_error *err);
/** At least so many bytes can still come; 0 when nobody knows. */
uint64_t gpp__source_known(const gpp__source *source);
/** Bytes read so far. */
uint64_t gpp__source_at(const gpp__source *source);

/** gpp__fail with the path in front. */
gpp_status gpp__source_fail(const gpp__source *source, gpp_error *err, gpp_status code,
                            const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif

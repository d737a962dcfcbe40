/*
 * codelets/attr.h: fill an attribute struct from "key=value" pairs, by the table of keys of an
 * operator, a loss or an optimizer.
 */
#ifndef GPP_CODELETS_ATTR_H
#define GPP_CODELETS_ATTR_H

#include "codelets/op.h"

/** Fill `attr` with every key's fallback. */
void gpp__attr_defaults(const gpp__key *keys, void *attr);

/**
 * Set the given attributes, and the others to their fallbacks. Fails when one is unknown, given
 * twice, out of range or missing. A message reads "conv2d: kernel must be 1 ... 4096, got 0"; for
 * an unknown key it lists the known ones.
 * @param who  the operator's name, for messages
 */
gpp_status gpp__attr_set(const char *who, const gpp__key *keys, void *attr, const gpp_attr given[],
                         size_t count, gpp_error *err);

/** Set number 0 of one key, unchecked. @return false when there is no such key */
bool gpp__attr_set_one(const gpp__key *keys, void *attr, const char *name, double value);
/** Value of a BOOL key; false when there is no such key. */
bool gpp__attr_flag(const gpp__key *keys, const void *attr, const char *name);

/** True when `text` is 1 ... longest letters, digits, '_', '-' and '.': a label, a name. */
bool gpp__is_word(const char *text, size_t longest);

/** True when `given` looks like a misspelt `known`, for "did you mean". */
bool gpp__alike(const char *given, const char *known);

/**
 * Read "name key=value key=value ..." up to the end of the text, a newline, ';', '#', '@', '{' or
 * '}'. A value is a list of decimal numbers, or a word: a letter followed by letters, digits, '_',
 * '-' and '.'.
 *
 * @param text   where to begin; on success *end is where reading stopped
 * @param name   [64] out: the first word
 * @param given  [*count] out; its keys and words are stored in `pool` [pool_size]
 * @return GPP_OK or GPP_ESYNTAX; *end then points at the offending character
 */
gpp_status gpp__attr_parse(const char *text, const char **end, char name[64], gpp_attr given[],
                           size_t *count, size_t max, char *pool, size_t pool_size, gpp_error *err);

/** Read a whole specification such as "sgd lr=0.1". As gpp__attr_parse, but nothing may follow. */
gpp_status gpp__attr_parse_spec(const char *text, char name[64], gpp_attr given[], size_t *count,
                                size_t max, char *pool, size_t pool_size, gpp_error *err);

#endif

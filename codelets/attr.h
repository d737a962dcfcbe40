/*
 * codelets/attr.h: from "key=value" to an attribute struct, by an operator's (loss's, optimizer's)
 * table of keys.
 */
#ifndef GPP_CODELETS_ATTR_H
#define GPP_CODELETS_ATTR_H

#include "codelets/op.h"

/** Fill `attr` with every key's fallback. */
void gpp__attr_defaults(const gpp__key *keys, void *attr);

/**
 * Set attributes from a list, the others to their fallbacks; check that none is unknown, doubled,
 * out of range or missing. Messages read "conv2d: kernel must be 1 ... 4096, got 0"; unknown keys
 * list the known ones.
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

/** True when `given` may be a slip of the pen for `known`: for "did you mean". */
bool gpp__alike(const char *given, const char *known);

/**
 * Read "name key=value key=value ..." up to the end of the text, a newline, ';', '#', '@', '{' or
 * '}'. A value is a list of decimal numbers, or a word: letters, digits and '_', '-', '.' behind
 * the first letter.
 *
 * @param text   where to begin; on success *end is where reading stopped
 * @param name   [64] out: the first word
 * @param given  [*count] out; `pool` [pool_size] holds keys and words, which live in it
 * @return GPP_OK or GPP_ESYNTAX; *end then points at the offending character
 */
gpp_status gpp__attr_parse(const char *text, const char **end, char name[64], gpp_attr given[],
                           size_t *count, size_t max, char *pool, size_t pool_size, gpp_error *err);

/** A whole specification such as "sgd lr=0.1": reads the name into `name`, attributes into `given`.
 * Nothing may follow. */
gpp_status gpp__attr_parse_spec(const char *text, char name[64], gpp_attr given[], size_t *count,
                                size_t max, char *pool, size_t pool_size, gpp_error *err);

#endif

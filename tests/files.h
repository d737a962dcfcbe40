/*
 * tests/files.h: folders and files for tests, and safetensors files made by hand.
 */
#ifndef GPP_TESTS_FILES_H
#define GPP_TESTS_FILES_H

#include <stdbool.h>
#include <stddef.h>

/** Make a folder. Its path has at most 200 characters. Ends the test on failure. */
void test_folder_new(char path[256]);
/** Remove a folder with all files in it. */
void test_folder_remove(const char *path);
/** Number of files in a folder whose names contain `part`. */
int test_folder_count(const char *path, const char *part);
/** "<folder>/<name>". Returns `out`. */
const char *test_path(const char *folder, const char *name, char out[512]);

void test_bytes_write(const char *path, const void *bytes, size_t size);
/** The bytes of a file, followed by a NUL. NULL: it cannot be read. Release with free. */
char *test_bytes_read(const char *path, size_t *size);

/** The bytes of a safetensors file: length, header, data. Release with free. */
char *test_safetensors(const char *header, size_t length, const void *data, size_t data_bytes,
                       size_t *size);

#endif

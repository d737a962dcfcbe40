/*
 * tools/amounts.c: bytes and times as people write and read them. Tables show three digits and a
 * unit; limits can be written as 64M. Units are powers of 1024.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

/* --- reading ---------------------------------------------------------------------------------- */

/* Reads a number that has digits only. It stays exact however large it is, which a double would
 * not. */
static bool plain_bytes(const char *text, size_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end || errno || value < 1 || value > PTRDIFF_MAX)
        return false;
    *out = (size_t)value;
    return true;
}

bool tool_bytes(const char *text, size_t *out)
{
    static const char units[] = "KMGT";
    size_t digits = strspn(text, "0123456789."), whole = strspn(text, "0123456789");
    if (!text[digits])
        return whole == digits && whole > 0 && plain_bytes(text, out);
    const char *unit = strchr(units, text[digits]), *behind = text + digits + 1;
    if (!digits || !unit || (*behind && strcmp(behind, "iB") != 0))
        return false;
    char *end;
    double value = ldexp(strtod(text, &end), 10 * (int)(unit - units + 1));
    if (end != text + digits || !(value >= 1 && value < 0x1p62))
        return false;
    *out = (size_t)value;
    return true;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Digits behind the point that make three in all: 1.23, 12.3, 123. */
static int digits_behind(double value)
{
    return value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
}

const char *tool_bytes_text(char text[TOOL_AMOUNT], size_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 999.5 && unit < 6; unit++)
        value /= 1024;
    snprintf(text, TOOL_AMOUNT, "%.*f %s", unit ? digits_behind(value) : 0, value, units[unit]);
    return text;
}

const char *tool_time_text(char text[TOOL_AMOUNT], double value)
{
    snprintf(text, TOOL_AMOUNT, "%.*f", digits_behind(value), value);
    return text;
}

void tool_print_wrapped(const char *text, int indent, int column, int width)
{
    while (*text) {
        size_t length = strlen(text), room = (size_t)(width > column + 8 ? width - column : 8);
        size_t take = length;
        if (length > room)
            for (take = room; take > 0 && text[take] != ' '; take--)
                ;
        if (!take)
            take = strcspn(text, " ");
        printf("%.*s\n", (int)take, text);
        text += take + strspn(text + take, " ");
        if (*text)
            printf("%*s", indent, "");
        column = indent;
    }
}

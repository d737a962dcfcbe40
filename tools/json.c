/*
 * tools/json.c: writing JSON (RFC 8259), a value at a time.
 */
#include <math.h>
#include <string.h>

#include "tools/tools.h"

static void quoted(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void begin(tool_json *json, const char *key)
{
    if (json->comma)
        fputs(", ", json->out);
    json->comma = true;
    if (!key)
        return;
    quoted(json->out, key);
    fputs(": ", json->out);
}

void tool_json_open(tool_json *json, const char *key, char bracket)
{
    begin(json, key);
    fputc(bracket, json->out);
    json->comma = false;
}

void tool_json_close(tool_json *json, char bracket)
{
    fputc(bracket, json->out);
    json->comma = true;
}

void tool_json_text(tool_json *json, const char *key, const char *text)
{
    begin(json, key);
    if (text)
        quoted(json->out, text);
    else
        fputs("null", json->out);
}

void tool_json_real(tool_json *json, const char *key, double value)
{
    begin(json, key);
    if (isfinite(value))
        fprintf(json->out, "%.9g", value);
    else
        fputs("null", json->out);
}

void tool_json_whole(tool_json *json, const char *key, int64_t value)
{
    begin(json, key);
    fprintf(json->out, "%lld", (long long)value);
}

void tool_json_flag(tool_json *json, const char *key, bool value)
{
    begin(json, key);
    fputs(value ? "true" : "false", json->out);
}

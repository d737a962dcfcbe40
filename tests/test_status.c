/*
 * tests/test_status.c: status codes, the error record, the log sink, version and data types.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include <gridpipe.h>

Test(status, every_code_has_its_own_name_and_a_text)
{
    static const struct {
        gpp_status code;
        const char *name, *text;
    } list[] = {
#define ROW(name, value, text) {name, #name, text},
        GPP_STATUS_LIST(ROW)
#undef ROW
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        cr_expect_eq((int)list[k].code, (int)k, "%s: values are stable", list[k].name);
        cr_expect_str_eq(gpp_status_name(list[k].code), list[k].name);
        cr_expect_str_eq(gpp_status_text(list[k].code), list[k].text);
    }
    cr_expect_str_eq(gpp_status_name((gpp_status)99), "GPP_E?");
    cr_expect_str_eq(gpp_status_text((gpp_status)-1), "unknown status");
}

Test(status, the_first_failure_is_kept)
{
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp__fail_layer(&err, GPP_ESHAPE, 3, "found %d", 16), GPP_ESHAPE);
    cr_expect_eq(gpp__fail(&err, GPP_ENOMEM, "a consequence"), GPP_ENOMEM, "each returns its own");
    cr_expect_eq(err.code, GPP_ESHAPE);
    cr_expect_eq(err.layer, 3);
    cr_expect_eq(err.micro_batch, -1);
    cr_expect_eq(err.partition, -1);
    cr_expect_str_eq(err.msg, "found 16");
}

Test(status, a_cleared_record_takes_the_next_failure)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp__fail_layer(&err, GPP_ESHAPE, 3, "first");
    gpp_error_clear(&err);
    cr_expect_eq(err.code, GPP_OK);
    cr_expect_str_eq(err.msg, "");
    gpp__fail(&err, GPP_EIO, "second");
    cr_expect_str_eq(err.msg, "second");
    cr_expect_eq(err.layer, -1);
}

Test(status, no_record_is_fine)
{
    cr_expect_eq(gpp__fail(NULL, GPP_EIO, "nobody reads this"), GPP_EIO);
    gpp_error_clear(NULL);
}

Test(status, a_long_message_is_cut_and_terminated)
{
    gpp_error err = GPP_ERROR_INIT;
    memset(err.msg, 'x', sizeof err.msg);
    gpp__fail(&err, GPP_EINVAL, "%02000d", 7);
    cr_expect_eq(strlen(err.msg), sizeof err.msg - 1);
}

Test(status, version_and_data_types)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", GPP_VERSION_MAJOR, GPP_VERSION_MINOR,
             GPP_VERSION_PATCH);
    cr_expect_str_eq(GPP_VERSION_STRING, text, "the parts make up the string");
    cr_expect_str_eq(gpp_version(), text);
    cr_expect_eq(gpp_dtype_size(GPP_F32), 4);
    cr_expect_eq(gpp_dtype_size(GPP_I64), 8);
    cr_expect_eq(gpp_dtype_size((gpp_dtype)7), 0);
}

typedef struct heard {
    int remarks;
    gpp_log_level level;
    char text[600];
} heard;

static void listen(gpp_log_level level, const char *text, void *user)
{
    heard *h = user;
    h->remarks++;
    h->level = level;
    snprintf(h->text, sizeof h->text, "%s", text);
}

Test(log, the_sink_gets_remarks_of_its_level_and_more_serious_ones)
{
    heard h = {0};
    gpp__log(GPP_LOG_ERROR, "before there is a sink");
    gpp_log_set(listen, GPP_LOG_WARN, &h);
    gpp__log(GPP_LOG_INFO, "too detailed");
    cr_expect_eq(h.remarks, 0);
    gpp__log(GPP_LOG_WARN, "%d cores", 2);
    cr_expect_eq(h.remarks, 1);
    cr_expect_eq(h.level, GPP_LOG_WARN);
    cr_expect_str_eq(h.text, "2 cores");
    gpp__log(GPP_LOG_ERROR, "worse");
    cr_expect_eq(h.remarks, 2);
    gpp_log_set(NULL, GPP_LOG_DEBUG, &h);
    gpp__log(GPP_LOG_ERROR, "nobody listens");
    cr_expect_eq(h.remarks, 2);
}

Test(log, a_remark_is_one_line)
{
    heard h = {0};
    gpp_log_set(listen, GPP_LOG_DEBUG, &h);
    gpp__log(GPP_LOG_DEBUG, "two\nlines%0900d", 1);
    gpp_log_set(NULL, GPP_LOG_ERROR, NULL);
    cr_expect(strncmp(h.text, "two lines0", 10) == 0, "got %s", h.text);
    cr_expect(strlen(h.text) >= 256, "what is cut is the end");
}

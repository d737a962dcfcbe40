/*
 * tools/plan_json.c: everything that `gridpipe plan` has found, as one JSON object. gridpipe(1)
 * lists its keys.
 */
#include <math.h>
#include <stdlib.h>

#include "tools/plan.h"

/* Zero means that there is no value. */
static void whole_or_null(tool_json *j, const char *key, int64_t value)
{
    if (value)
        tool_json_whole(j, key, value);
    else
        tool_json_text(j, key, NULL);
}

static void numbers(tool_json *j, const char *key, const int value[], int count)
{
    tool_json_open(j, key, '[');
    for (int k = 0; k < count; k++)
        tool_json_whole(j, NULL, value[k]);
    tool_json_close(j, ']');
}

/* --- candidates ------------------------------------------------------------------------------- */

static void candidate(tool_json *j, const gpp_candidate *c)
{
    tool_json_open(j, NULL, '{');
    tool_json_whole(j, "partitions", c->partitions);
    tool_json_whole(j, "replicas", c->replicas);
    tool_json_whole(j, "chunks", c->chunks);
    tool_json_whole(j, "micro_batches", c->micro_batches);
    tool_json_text(j, "checkpoint", gpp_checkpoint_name(c->checkpoint));
    whole_or_null(j, "activation_limit", (int64_t)c->activation_limit);
    numbers(j, "balance", c->balance, c->partitions);
    tool_json_open(j, "devices", '[');
    for (int p = 0; p < c->replicas * c->partitions; p++)
        tool_json_text(j, NULL, c->device[p]);
    tool_json_close(j, ']');
    tool_json_open(j, "bytes", '[');
    for (int d = 0; d < c->devices; d++)
        tool_json_whole(j, NULL, (int64_t)c->bytes[d]);
    tool_json_close(j, ']');
    tool_json_whole(j, "most_bytes", (int64_t)c->most_bytes);
    tool_json_real(j, "step_ms", c->step_ms);
    tool_json_real(j, "bound_ms", c->bound_ms);
    tool_json_real(j, "bubble", c->bubble);
    tool_json_real(j, "efficiency", c->efficiency);
    tool_json_flag(j, "fits", c->fits);
    tool_json_text(j, "why", c->why);
    tool_json_close(j, '}');
}

static void search(tool_json *j, const gpp_plan_table *t)
{
    tool_json_open(j, "candidates", '[');
    for (int k = 0; k < t->candidates; k++)
        candidate(j, &t->candidate[k]);
    tool_json_close(j, ']');
    if (t->best >= 0)
        tool_json_whole(j, "best", t->best);
    else
        tool_json_text(j, "best", NULL);
    tool_json_text(j, "advice", t->advice);
    whole_or_null(j, "needed_limit", t->best < 0 ? (int64_t)t->needed_limit : 0);
    whole_or_null(j, "fitting_batch", t->best < 0 ? t->fitting_batch : 0);
}

static void profile(tool_json *j, const gpp_profile *p, bool taken)
{
    tool_json_open(j, NULL, '{');
    tool_json_text(j, "device", p->device);
    tool_json_text(j, "gpu", p->gpu[0] ? p->gpu : NULL);
    tool_json_whole(j, "threads", p->threads);
    tool_json_whole(j, "beside", p->beside);
    tool_json_whole(j, "rows", p->rows[0]);
    tool_json_whole(j, "sweeps", p->sweeps);
    tool_json_flag(j, "precise", p->precise);
    tool_json_flag(j, "taken_now", taken);
    tool_json_close(j, '}');
}

static void profiles(tool_json *j, const plan_result *r)
{
    tool_json_open(j, "profiles", '[');
    for (int k = 0; k < r->given.count; k++)
        profile(j, r->given.profile[k], false);
    for (int k = 0; r->table && k < r->table->profiles; k++)
        profile(j, r->table->profile[k], true);
    tool_json_close(j, ']');
}

/* --- the forecast ----------------------------------------------------------------------------- */

static void devices(tool_json *j, const gpp_forecast *f)
{
    tool_json_open(j, "devices", '[');
    for (int d = 0; d < f->devices; d++) {
        const gpp_forecast_device *v = &f->device[d];
        tool_json_open(j, NULL, '{');
        tool_json_text(j, "name", v->name);
        tool_json_whole(j, "threads", v->threads);
        tool_json_real(j, "busy_ms", v->busy_ms);
        tool_json_real(j, "warm_up_ms", v->warm_up_ms);
        tool_json_real(j, "transfer_ms", v->transfer_ms);
        tool_json_real(j, "wait_ms", v->wait_ms);
        tool_json_real(j, "drain_ms", v->drain_ms);
        tool_json_whole(j, "bytes", (int64_t)v->bytes);
        tool_json_whole(j, "live_bytes", (int64_t)v->live_bytes);
        tool_json_whole(j, "node", v->node);
        whole_or_null(j, "limit", (int64_t)v->limit);
        tool_json_close(j, '}');
    }
    tool_json_close(j, ']');
}

static void cells(tool_json *j, const gpp_forecast *f)
{
    tool_json_open(j, "partitions", '[');
    for (int p = 0; p < f->partitions; p++) {
        tool_json_open(j, NULL, '{');
        tool_json_whole(j, "device", f->device_of[p]);
        tool_json_whole(j, "layers", f->balance[p]);
        tool_json_real(j, "forward_ms", f->cell_ms[0][p]);
        tool_json_real(j, "recompute_ms", f->cell_ms[1][p]);
        tool_json_real(j, "backward_ms", f->cell_ms[2][p]);
        tool_json_close(j, '}');
    }
    tool_json_close(j, ']');
}

static void links(tool_json *j, const gpp_forecast *f)
{
    tool_json_open(j, "links", '[');
    for (int k = 0; k < f->links; k++) {
        const gpp_forecast_link *l = &f->link[k];
        tool_json_open(j, NULL, '{');
        tool_json_whole(j, "from", l->from);
        tool_json_whole(j, "to", l->to);
        tool_json_whole(j, "messages", l->messages);
        tool_json_whole(j, "bytes", (int64_t)l->bytes);
        tool_json_real(j, "busy_ms", l->busy_ms);
        tool_json_close(j, '}');
    }
    tool_json_close(j, ']');
}

static void tasks(tool_json *j, const gpp_forecast *f)
{
    tool_json_open(j, "tasks", '[');
    for (int k = 0; k < f->tasks; k++) {
        const gpp_forecast_task *t = &f->task[k];
        tool_json_open(j, NULL, '{');
        tool_json_text(j, "kind", (const char[2]){t->kind});
        if (t->micro_batch >= 0)
            tool_json_whole(j, "micro_batch", t->micro_batch);
        tool_json_whole(j, "partition", t->partition);
        tool_json_whole(j, "device", t->device);
        tool_json_real(j, "start_ms", t->start_ms);
        tool_json_real(j, "stop_ms", t->stop_ms);
        tool_json_close(j, '}');
    }
    tool_json_close(j, ']');
}

static void points(tool_json *j, const gpp_forecast *f)
{
    tool_json_open(j, "memory", '[');
    for (int k = 0; k < f->points; k++) {
        tool_json_open(j, NULL, '{');
        tool_json_real(j, "ms", f->point[k].ms);
        tool_json_whole(j, "device", f->point[k].device);
        tool_json_whole(j, "bytes", (int64_t)f->point[k].bytes);
        tool_json_close(j, '}');
    }
    tool_json_close(j, ']');
}

static void forecast(tool_json *j, const gpp_forecast *f)
{
    tool_json_open(j, "forecast", '{');
    tool_json_real(j, "step_ms", f->step_ms);
    tool_json_real(j, "bound_ms", f->bound_ms);
    tool_json_real(j, "bubble", f->bubble);
    tool_json_whole(j, "micro_batches", f->micro_batches);
    tool_json_text(j, "checkpoint", gpp_checkpoint_name(f->checkpoint));
    numbers(j, "balance", f->balance, f->partitions);
    cells(j, f);
    devices(j, f);
    tool_json_whole(j, "nodes", f->nodes);
    links(j, f);
    tasks(j, f);
    points(j, f);
    tool_json_close(j, '}');
}

void plan_print_json(const plan_result *r)
{
    tool_json json = {stdout, false}, *j = &json;
    tool_json_open(j, NULL, '{');
    tool_json_whole(j, "batch", r->how->batch);
    tool_json_text(j, "loss", r->how->loss);
    tool_json_text(j, "optimizer", r->how->optimizer);
    tool_json_text(j, "machine", r->how->machine);
    whole_or_null(j, "memory_limit", (int64_t)r->pipe.memory_limit);
    tool_json_flag(j, "searched", r->table != NULL);
    tool_json_flag(j, "fits", r->fits);
    tool_json_text(j, "pipe", r->pipe_text);
    if (r->table)
        search(j, r->table);
    profiles(j, r);
    if (r->forecast)
        forecast(j, r->forecast);
    tool_json_close(j, '}');
    putchar('\n');
}

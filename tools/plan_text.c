/*
 * tools/plan_text.c: what `gridpipe plan` has found, as tables and sentences of at most 100
 * columns. All figures are predictions, and the text says so.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/plan.h"

enum { WIDTH = 100, MOST_BALANCE = 16, LISTED = 10 };

/* --- what was asked --------------------------------------------------------------------------- */

static const gpp_profile *profile_at(const plan_result *r, int k)
{
    return k < r->given.count ? r->given.profile[k] : r->table->profile[k - r->given.count];
}

static bool same_place(const gpp_profile *a, const gpp_profile *b)
{
    return a->beside == b->beside && !strcmp(a->device, b->device);
}

/* Prints one entry for all profiles that were taken in the same place as profile `first`. */
static void print_place(const plan_result *r, int first, int count)
{
    const gpp_profile *p = profile_at(r, first);
    long long least = p->rows[0], most = p->rows[0];
    for (int k = first; k < count; k++) {
        const gpp_profile *q = profile_at(r, k);
        if (!same_place(p, q))
            continue;
        least = q->rows[0] < least ? q->rows[0] : least;
        most = q->rows[0] > most ? q->rows[0] : most;
    }
    printf("%s%s", first ? "; " : ": ", p->device);
    if (p->beside)
        printf(" beside %d other%s", p->beside, p->beside == 1 ? "" : "s");
    if (most > least)
        printf(", %lld to %lld rows", least, most);
    else
        printf(", %lld row%s", least, least == 1 ? "" : "s");
}

static void print_profiles(const plan_result *r)
{
    int taken = r->table ? r->table->profiles : 0, count = r->given.count + taken;
    if (!count) {
        puts("from      profiles taken now");
        return;
    }
    printf("from      %d profile%s", count, count == 1 ? "" : "s");
    if (taken)
        printf(" (%d taken now)", taken);
    for (int k = 0; k < count; k++) {
        bool first = true;
        for (int q = 0; q < k && first; q++)
            first = !same_place(profile_at(r, q), profile_at(r, k));
        if (first)
            print_place(r, k, count);
    }
    putchar('\n');
}

static void print_question(const plan_result *r)
{
    const plan_settings *how = r->how;
    char text[TOOL_AMOUNT];
    printf("step      %lld row%s; loss: %s; optimizer: %s\n", (long long)how->batch,
           how->batch == 1 ? "" : "s", how->loss ? how->loss : "none, it begins with a gradient",
           how->optimizer ? how->optimizer : "none, no updates");
    if (r->pipe.memory_limit)
        printf("limit     %s on each device\n", tool_bytes_text(text, r->pipe.memory_limit));
    if (r->cluster)
        printf("machine   %s: %d node%s, %d device%s\n", how->machine, r->cluster->nodes,
               r->cluster->nodes == 1 ? "" : "s", r->cluster->devices,
               r->cluster->devices == 1 ? "" : "s");
    print_profiles(r);
}

/* --- candidates ------------------------------------------------------------------------------- */

static void write_balance(char text[MOST_BALANCE + 1], const int balance[], int partitions)
{
    char all[MOST_BALANCE + 16];
    size_t at = 0;
    for (int j = 0; j < partitions && at <= MOST_BALANCE; j++)
        at += (size_t)snprintf(all + at, sizeof all - at, j ? ",%d" : "%d", balance[j]);
    if (at > MOST_BALANCE)
        memcpy(all + MOST_BALANCE - 3, "...", 4);
    snprintf(text, MOST_BALANCE + 1, "%.*s", MOST_BALANCE, all);
}

static int balance_columns(const plan_result *r, int rows)
{
    int columns = 7;
    for (int k = 0; k < rows; k++) {
        char text[MOST_BALANCE + 1];
        write_balance(text, r->table->candidate[k].balance, r->table->candidate[k].partitions);
        columns = (int)strlen(text) > columns ? (int)strlen(text) : columns;
    }
    return columns;
}

static void print_candidate(const gpp_candidate *c, bool best, int columns)
{
    char bytes[TOOL_AMOUNT], balance[MOST_BALANCE + 1], parts[32];
    write_balance(balance, c->balance, c->partitions);
    if (c->replicas > 1)
        snprintf(parts, sizeof parts, "%dx%d", c->replicas, c->partitions);
    else
        snprintf(parts, sizeof parts, "%d", c->partitions);
    int column = printf("%c%5s %6d %-11s %-*s %8.2f %5.1f %% %9s  ", best ? '*' : ' ', parts,
                        c->chunks, gpp_checkpoint_name(c->checkpoint), columns, balance, c->step_ms,
                        100 * c->bubble, tool_bytes_text(bytes, c->most_bytes));
    tool_print_wrapped(*c->why ? c->why : "-", column, column, WIDTH);
}

/* Prints the first candidates, and the best one even where it is not among them: a candidate that
 * is nearly as fast may stand before it. */
static void print_candidates(const plan_result *r)
{
    const gpp_plan_table *t = r->table;
    int most = r->how->candidates ? (int)r->how->candidates : LISTED;
    int rows = t->candidates < most ? t->candidates : most;
    int columns = balance_columns(r, rows);
    printf("\n parts chunks checkpoint  %-*s  step ms  bubble     bytes  why\n", columns,
           "balance");
    for (int k = 0; k < rows; k++)
        print_candidate(&t->candidate[k], k == t->best, columns);
    if (t->best >= rows)
        print_candidate(&t->candidate[t->best], true, columns);
    if (t->candidates > rows)
        printf("... of %d candidates; --candidates %d lists all\n", t->candidates, t->candidates);
}

static void print_choice(const plan_result *r)
{
    if (!r->pipe_text)
        return;
    printf("\n%-9s ", r->table ? "chosen" : "pipe");
    tool_print_wrapped(r->pipe_text, 10, 10, WIDTH);
    if (r->guesses) {
        fputs("note      ", stdout);
        tool_print_wrapped("its budget is used by a profile that this text cannot name "
                           "(--save-profiles keeps those that are taken now); a pipe of the text "
                           "goes by a guess",
                           10, 10, WIDTH);
    }
    if (!r->table || !*r->table->advice)
        return;
    fputs("because   ", stdout);
    tool_print_wrapped(r->table->advice, 10, 10, WIDTH);
}

/* --- the forecast ----------------------------------------------------------------------------- */

static void print_step(const plan_result *r)
{
    const gpp_forecast *f = r->forecast;
    printf("\npredicted %.2f ms a step of %d micro-batch%s; devices idle %.1f %% of the time\n",
           f->step_ms, f->micro_batches, f->micro_batches == 1 ? "" : "es", 100 * f->bubble);
    printf("bound     %.2f ms: no order of these cells is faster\n", f->bound_ms);
}

static void print_device(const gpp_forecast *f, int d)
{
    const gpp_forecast_device *v = &f->device[d];
    const double ms[] = {v->busy_ms, v->warm_up_ms, v->transfer_ms, v->wait_ms, v->drain_ms};
    char text[5][TOOL_AMOUNT], bytes[TOOL_AMOUNT], live[TOOL_AMOUNT];
    for (int k = 0; k < 5; k++)
        tool_time_text(text[k], ms[k]);
    printf("%-14.14s %5d %8s %5.1f %% %8s %8s %8s %8s %10s %10s\n", v->name, v->threads, text[0],
           f->step_ms > 0 ? 100 * v->busy_ms / f->step_ms : 0, text[1], text[2], text[3], text[4],
           tool_bytes_text(bytes, v->bytes), tool_bytes_text(live, v->live_bytes));
}

static void print_devices(const gpp_forecast *f)
{
    printf("\n%-20s %16s %9s %26s %10s\n", "", "busy", "idle ms:", "", "memory:");
    printf("%-14s %5s %8s %7s %8s %8s %8s %8s %10s %10s\n", "device", "cores", "ms", "", "warm-up",
           "transfer", "wait", "drain", "allocated", "peak");
    for (int d = 0; d < f->devices; d++)
        print_device(f, d);
}

static void print_cells(const gpp_forecast *f)
{
    printf("\n%9s  %-14s %7s %11s %12s %11s\n", "partition", "device", "layers", "forward ms",
           "recompute ms", "backward ms");
    for (int j = 0; j < f->partitions; j++) {
        char text[3][TOOL_AMOUNT];
        for (int k = 0; k < 3; k++)
            tool_time_text(text[k], f->cell_ms[k][j]);
        printf("%9d  %-14.14s %7d %11s %12s %11s\n", j, f->device[f->device_of[j]].name,
               f->balance[j], text[0], f->cell_ms[1][j] > 0 ? text[1] : "-", text[2]);
    }
}

/* Prints the devices of a cluster with what they have. */
static void print_limits(const gpp_forecast *f)
{
    printf("\n%-20s %5s %12s %12s %7s\n", "device", "node", "allocated", "memory", "used");
    for (int d = 0; d < f->devices; d++) {
        const gpp_forecast_device *v = &f->device[d];
        char bytes[TOOL_AMOUNT], limit[TOOL_AMOUNT];
        printf("%-20.20s %5d %12s", v->name, v->node, tool_bytes_text(bytes, v->bytes));
        if (v->limit)
            printf(" %12s %5.1f %%%s\n", tool_bytes_text(limit, v->limit),
                   100 * (double)v->bytes / (double)v->limit,
                   v->bytes > v->limit ? "  too much" : "");
        else
            puts("      unknown");
    }
}

/* The busiest first; then by sender and receiver. */
static int by_busy(const void *a, const void *b)
{
    const gpp_forecast_link *x = a, *y = b;
    if (x->busy_ms != y->busy_ms)
        return x->busy_ms > y->busy_ms ? -1 : 1;
    return x->from != y->from ? x->from - y->from : x->to - y->to;
}

static void print_links(const gpp_forecast *f)
{
    enum { MOST = 20 };
    printf("\n%5s %5s %10s %12s %10s %8s\n", "from", "to", "messages", "bytes", "busy ms",
           "of step");
    if (f->links > MOST)
        qsort(f->link, (size_t)f->links, sizeof *f->link, by_busy);
    for (int k = 0; k < f->links && k < MOST; k++) {
        const gpp_forecast_link *l = &f->link[k];
        char bytes[TOOL_AMOUNT], ms[TOOL_AMOUNT];
        tool_time_text(ms, l->busy_ms);
        printf("%5d %5d %10lld %12s %10s %6.1f %%\n", l->from, l->to, (long long)l->messages,
               tool_bytes_text(bytes, (size_t)l->bytes), ms,
               f->step_ms > 0 ? 100 * l->busy_ms / f->step_ms : 0);
    }
    if (f->links > MOST)
        printf("  ... the busiest %d of %d links; --json lists all\n", MOST, f->links);
}

void plan_print_text(const plan_result *r)
{
    print_question(r);
    if (r->table)
        print_candidates(r);
    print_choice(r);
    if (!r->forecast)
        return;
    print_step(r);
    if (!r->picture) /* the picture has the same table below it */
        print_devices(r->forecast);
    print_cells(r->forecast);
    if (r->cluster)
        print_limits(r->forecast);
    if (r->forecast->links)
        print_links(r->forecast);
    if (r->picture)
        printf("\n%s", r->picture);
}

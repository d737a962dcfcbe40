/*
 * graph/search/reasons.c: why a candidate was chosen, or what it lacks, in words.
 *
 * A step is the sum of work, recomputation, the runtime's own time, waiting and a rest (losses,
 * updates), each on the average of the devices. The reason why a candidate is slower is the part
 * that exceeds the best candidate's by most.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "graph/search/search.h"

typedef char phrase[112];

/* --- numbers ---------------------------------------------------------------------------------- */

static const char *bytes_text(size_t bytes, phrase out)
{
    static const char *const unit[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int k = 0;
    for (; value >= 1024 && k < 4; k++)
        value /= 1024;
    snprintf(out, sizeof(phrase), "%.*f %s", k > 0 && value < 100 ? 1 : 0, value, unit[k]);
    return out;
}

/* Three significant digits. */
static const char *ms_text(double ms, phrase out)
{
    int decimals = ms >= 100 ? 0 : ms >= 10 ? 1 : ms >= 1 ? 2 : 3;
    snprintf(out, sizeof(phrase), "%.*f ms", decimals, ms);
    return out;
}

static int percent(double part)
{
    return (int)lround(100 * part);
}

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

static const char *name_of(const gpp_candidate *c, phrase out)
{
    int at = c->replicas > 1 ? snprintf(out, sizeof(phrase), "%d replicas of ", c->replicas) : 0;
    snprintf(out + at, sizeof(phrase) - (size_t)at, "%d partition%s, %d chunk%s, checkpoint %s",
             c->partitions, plural(c->partitions), c->chunks, plural(c->chunks),
             gpp_checkpoint_name(c->checkpoint));
    return out;
}

/* "38.2 MiB of 64 MiB" */
static const char *memory_text(const gpp__search *s, const gpp_candidate *c, phrase out)
{
    phrase used, limit;
    bytes_text(c->most_bytes, used);
    if (s->pipe.memory_limit)
        snprintf(out, sizeof(phrase), "%.40s of %.40s", used,
                 bytes_text(s->pipe.memory_limit, limit));
    else
        snprintf(out, sizeof(phrase), "%s", used);
    return out;
}

/* --- why -------------------------------------------------------------------------------------- */

static int64_t rows_of(const gpp__considered *e, int64_t batch)
{
    int64_t rows, last;
    gpp__chunk(batch, e->candidate.replicas * e->candidate.chunks, &rows, &last);
    return rows;
}

/* The layers themselves take longer: on other devices, or in other pieces. */
static void explain_work(const gpp__search *s, const gpp__considered *e,
                         const gpp__considered *best, phrase out)
{
    int more = percent(e->trial.work_ms / best->trial.work_ms - 1);
    if (e->site != best->site && e->site->kind[0] == 0)
        snprintf(out, sizeof(phrase), "layers take %d %% longer on %d GPU%s", more,
                 e->site->devices, plural(e->site->devices));
    else if (e->site != best->site)
        snprintf(out, sizeof(phrase), "layers take %d %% longer on %d device%s of %d core%s", more,
                 e->site->devices, plural(e->site->devices), e->site->kind[0],
                 plural(e->site->kind[0]));
    else
        snprintf(out, sizeof(phrase), "layers take %d %% longer with %lld rows at a time", more,
                 (long long)rows_of(e, s->pipe.batch));
}

/* GPipe's bubble of even partitions is (n - 1) / (m + n - 1). If it is much more, the partitions
 * are uneven. */
static void explain_wait(const gpp__considered *e, phrase out)
{
    const gpp_candidate *c = &e->candidate;
    double even = (c->partitions - 1.0) / (c->micro_batches + c->partitions - 1.0);
    snprintf(out, sizeof(phrase), "bubble %d %% (%s)", percent(c->bubble),
             c->bubble > 0.02 + 1.5 * even ? "uneven partitions" : "few chunks");
}

/* The rest: losses and updates. */
static double rest_ms(const gpp__considered *e)
{
    const gpp__trial *t = &e->trial;
    return t->step_ms - t->work_ms - t->again_ms - t->overhead_ms - t->idle_ms;
}

/* What makes `e` slower than the best. */
static void explain_time(const gpp__search *s, const gpp__considered *e,
                         const gpp__considered *best, phrase out)
{
    enum { WAIT, AGAIN, OVERHEAD, WORK, REST, PARTS };
    const gpp__trial *t = &e->trial, *b = &best->trial;
    double more[PARTS] = {t->idle_ms - b->idle_ms, t->again_ms - b->again_ms,
                          t->overhead_ms - b->overhead_ms, t->work_ms - b->work_ms,
                          rest_ms(e) - rest_ms(best)};
    int most = 0;
    phrase ms;
    for (int k = 1; k < PARTS; k++)
        most = more[k] > more[most] ? k : most;
    if (most == WAIT)
        explain_wait(e, out);
    else if (most == AGAIN)
        snprintf(out, sizeof(phrase), "%.40s of recomputation", ms_text(t->again_ms, ms));
    else if (most == OVERHEAD)
        snprintf(out, sizeof(phrase), "%.40s of the runtime's own time",
                 ms_text(t->overhead_ms, ms));
    else if (most == WORK)
        explain_work(s, e, best, out);
    else
        snprintf(out, sizeof(phrase), "%.40s of losses and updates", ms_text(rest_ms(e), ms));
}

/* The candidate is as fast as the best one, which is preferred for its bytes, partitions or chunks. */
static void explain_equal(const gpp_candidate *c, const gpp_candidate *best, phrase out)
{
    phrase more;
    if (c->most_bytes > best->most_bytes)
        snprintf(out, sizeof(phrase), "as fast, but needs %.40s more",
                 bytes_text(c->most_bytes - best->most_bytes, more));
    else if (c->replicas * c->partitions > best->replicas * best->partitions)
        snprintf(out, sizeof(phrase), "as fast, with more partitions");
    else if (c->replicas > best->replicas || c->chunks > best->chunks)
        snprintf(out, sizeof(phrase), "as fast, with more %s",
                 c->replicas > best->replicas ? "replicas" : "chunks");
    else
        snprintf(out, sizeof(phrase), "as fast, in the same memory");
}

static void explain(const gpp__search *s, gpp__considered *e, const gpp__considered *best)
{
    gpp_candidate *c = &e->candidate;
    phrase a, b;
    if (!c->fits) {
        snprintf(c->why, sizeof c->why, "needs %.32s on %.63s, the limit is %.32s",
                 bytes_text(c->most_bytes, a), e->site->name[e->trial.fullest],
                 bytes_text(s->pipe.memory_limit, b));
        return;
    }
    double slower = c->step_ms / best->candidate.step_ms - 1;
    if (e == best)
        snprintf(c->why, sizeof c->why, "%s: %.32s, bubble %d %%, %.80s",
                 e == s->entry ? "fastest" : "least memory of those as fast",
                 ms_text(c->step_ms, a), percent(c->bubble), memory_text(s, c, b));
    else if (fabs(slower) < 0.01) {
        explain_equal(c, &best->candidate, a);
        snprintf(c->why, sizeof c->why, "%s", a);
    } else {
        explain_time(s, e, best, a);
        snprintf(c->why, sizeof c->why, "%d %% slower: %s", percent(slower), a);
    }
}

/* --- advice ----------------------------------------------------------------------------------- */

/* Append a sentence; nothing where it has no room. */
__attribute__((format(printf, 2, 3))) static void say(gpp_plan_table *t, const char *format, ...)
{
    size_t at = strlen(t->advice), room = sizeof t->advice - at;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(t->advice + at, room, format, args);
    va_end(args);
    if (length < 0 || (size_t)length >= room)
        t->advice[at] = '\0';
}

typedef enum difference { PARTITIONS, MODE, CHUNKS } difference;

static bool differs(const gpp_candidate *a, const gpp_candidate *b, difference how)
{
    bool partitions = a->partitions != b->partitions || a->replicas != b->replicas;
    bool mode = a->checkpoint != b->checkpoint;
    bool chunks = a->chunks != b->chunks;
    switch (how) {
    case PARTITIONS:
        return partitions;
    case MODE:
        return !partitions && mode;
    default:
        return !partitions && !mode && chunks;
    }
}

/* Say why the best candidate that differs from the chosen one in `how` was not chosen. */
static void compare(const gpp__search *s, const gpp__considered *best, difference how,
                    gpp_plan_table *t)
{
    phrase name;
    for (int k = 0; k < s->entries; k++) {
        const gpp_candidate *c = &s->entry[k].candidate;
        if (!c->fits || !differs(c, &best->candidate, how))
            continue;
        say(t, " With %s: %s.", name_of(c, name), c->why);
        return;
    }
}

/* Say what saving memory costs in time. */
static void regret(const gpp__search *s, const gpp__considered *best, gpp_plan_table *t)
{
    const gpp_candidate *fast = NULL;
    phrase name, ms;
    for (int k = 0; k < s->entries; k++) {
        const gpp_candidate *c = &s->entry[k].candidate;
        if (!c->fits && (!fast || c->step_ms < fast->step_ms))
            fast = c;
    }
    if (fast && fast->step_ms < 0.99 * best->candidate.step_ms)
        say(t, " With more memory, %s would take %s: it %s.", name_of(fast, name),
            ms_text(fast->step_ms, ms), fast->why);
}

static void advise(const gpp__search *s, const gpp__considered *best, gpp_plan_table *t)
{
    phrase name, ms, memory;
    const gpp_candidate *c = &best->candidate;
    say(t, "%s: %s predicted, bubble %d %%, %s on the fullest device.", name_of(c, name),
        ms_text(c->step_ms, ms), percent(c->bubble), memory_text(s, c, memory));
    compare(s, best, CHUNKS, t);
    compare(s, best, MODE, t);
    compare(s, best, PARTITIONS, t);
    regret(s, best, t);
}

/* The candidate that needs the fewest bytes; NULL: there are only budgets without a plan. */
static const gpp_candidate *leanest(const gpp__search *s, size_t needed)
{
    for (int k = 0; k < s->entries; k++)
        if (s->entry[k].candidate.most_bytes <= needed)
            return &s->entry[k].candidate;
    return NULL;
}

/* Nothing fits: say what would. The text fits into an error record. */
static void suggest(const gpp__search *s, gpp_plan_table *t)
{
    const gpp_candidate *lean = leanest(s, t->needed_limit);
    phrase limit, needed, name;
    say(t, "nothing fits into %s a device: memory_limit must be at least %zu bytes (%s: %s)",
        bytes_text(t->memory_limit, limit), t->needed_limit, bytes_text(t->needed_limit, needed),
        lean ? name_of(lean, name) : "checkpoint budget");
    if (t->fitting_batch > 0)
        say(t, ", or the mini-batch at most %lld rows", (long long)t->fitting_batch);
    else
        say(t, "; a smaller mini-batch does not help");
}

void gpp__search_explain(gpp__search *s, gpp_plan_table *t)
{
    const gpp__considered *best = t->best >= 0 ? &s->entry[t->best] : NULL;
    for (int k = 0; k < s->entries; k++)
        explain(s, &s->entry[k], best);
    if (best)
        advise(s, best, t);
    else
        suggest(s, t);
}

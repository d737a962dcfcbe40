/*
 * graph/search/forecast_times.c: times of operators from several profiles.
 *
 * For a number of rows without a profile, times lie on the line through the profiles with the next
 * fewer and next more rows, or are in proportion to the nearest profile. Cores share caches, memory
 * and power, so an operator's time lies between its time alone and its time while the other cores
 * are busy, in proportion to how long they are busy.
 */
#include "graph/search/forecast_times.h"

#include <stdlib.h>

bool gpp__profiles_have(const gpp__profile_list *list, int kind)
{
    for (int k = 0; k < list->count; k++)
        if (gpp__profile_kind(list->profile[k]) == kind)
            return true;
    return false;
}

int64_t gpp__first_rows(const int64_t rows[GPP_MAX_BATCHES])
{
    int b = 0;
    while (b < GPP_MAX_BATCHES - 1 && rows[b] == 0)
        b++;
    return rows[b];
}

/* Of the numbers of devices that ran beside a profile, the one nearest to `others`. */
static int nearest_beside(const gpp__profile_list *list, int kind, int others)
{
    int best = -1;
    for (int k = 0; k < list->count; k++) {
        const gpp_profile *p = list->profile[k];
        if (gpp__profile_kind(p) == kind &&
            (best < 0 || abs(p->beside - others) < abs(best - others)))
            best = p->beside;
    }
    return best;
}

/* The profile with the next number of rows at or below (above) `rows`; NULL: none. */
static const gpp_profile *next_to(const gpp__profile_list *list, int kind, int beside, int64_t rows,
                                  bool above)
{
    const gpp_profile *best = NULL;
    for (int k = 0; k < list->count; k++) {
        const gpp_profile *p = list->profile[k];
        int64_t r = gpp__first_rows(p->rows), b = best ? gpp__first_rows(best->rows) : 0;
        if (gpp__profile_kind(p) != kind || p->beside != beside || (above ? r < rows : r > rows))
            continue;
        if (!best || (above ? r < b : r > b))
            best = p;
    }
    return best;
}

static void mix(gpp_operator_profile *to, const gpp_operator_profile *from, double share)
{
    to->forward_us += share * (from->forward_us - to->forward_us);
    to->keep_us += share * (from->keep_us - to->keep_us);
    to->backward_us += share * (from->backward_us - to->backward_us);
}

static void scale(gpp_operator_profile *op, double factor)
{
    op->forward_us *= factor;
    op->keep_us *= factor;
    op->backward_us *= factor;
}

/* Add `part` times each operator's times for `rows` with so many other devices busy. */
static void add_times(const gpp__profile_list *list, int kind, int beside, int64_t rows, int k,
                      double part, gpp_operator_profile *op)
{
    const gpp_profile *below = next_to(list, kind, beside, rows, false),
                      *above = next_to(list, kind, beside, rows, true);
    const gpp_profile *a = below ? below : above;
    double ra = (double)gpp__first_rows(a->rows);
    gpp_operator_profile now = a->op[k];
    if (below && above && above != below && gpp__first_rows(above->rows) > gpp__first_rows(a->rows))
        mix(&now, &above->op[k], ((double)rows - ra) / ((double)gpp__first_rows(above->rows) - ra));
    else
        scale(&now, ra > 0 ? (double)rows / ra : 1);
    op->forward_us += part * now.forward_us;
    op->keep_us += part * now.keep_us;
    op->backward_us += part * now.backward_us;
}

static double speed_of(const gpp__profile_list *list, int kind, int beside, int64_t rows)
{
    const gpp_profile *p = next_to(list, kind, beside, rows, false);
    return (p ? p : next_to(list, kind, beside, rows, true))->bytes_per_us;
}

double gpp__profiles_times(const gpp__profile_list *list, int kind, int64_t rows, int others,
                           double busy, gpp_operator_profile op[])
{
    int beside = nearest_beside(list, kind, others);
    bool has_alone = beside > 0 && nearest_beside(list, kind, 0) == 0;
    double crowded = has_alone ? busy : 1;
    const gpp_profile *any = next_to(list, kind, beside, rows, false);
    any = any ? any : next_to(list, kind, beside, rows, true);
    for (int k = 0; k < any->operators; k++) {
        op[k] = any->op[k];
        scale(&op[k], 0);
        add_times(list, kind, beside, rows, k, crowded, &op[k]);
        if (has_alone)
            add_times(list, kind, 0, rows, k, 1 - crowded, &op[k]);
    }
    double speed = crowded * speed_of(list, kind, beside, rows);
    return has_alone ? speed + (1 - crowded) * speed_of(list, kind, 0, rows) : speed;
}

double gpp__profiles_link(const gpp__profile_list *list)
{
    double speed = 0;
    for (int k = 0; speed <= 0 && k < list->count; k++)
        speed = list->profile[k]->link_bytes_per_us;
    return speed;
}

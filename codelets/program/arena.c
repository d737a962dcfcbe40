/*
 * codelets/program/arena.c: see arena.h. O(count³) at worst, for tens of things, when programs are
 * compiled.
 */
#include "codelets/program/arena.h"

#include <stdlib.h>

static int larger_first(const void *a, const void *b)
{
    const gpp__span *x = *(gpp__span *const *)a, *y = *(gpp__span *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x < y ? -1 : x > y; /* equal sizes: by position, so that every run places alike */
}

static bool lives_meet(const gpp__span *a, const gpp__span *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/** Lowest offset at which `s` hits none of the `placed` ones it lives with. */
static size_t lowest_free(gpp__span *const placed[], size_t count, const gpp__span *s)
{
    size_t at = 0, need = gpp__align(s->bytes);
    for (size_t k = 0; k < count; k++) {
        const gpp__span *p = placed[k];
        if (!lives_meet(p, s) || at + need <= p->offset || at >= p->offset + gpp__align(p->bytes))
            continue;
        at = p->offset + gpp__align(p->bytes);
        k = (size_t)-1; /* moved: look at all of them again */
    }
    return at;
}

/** Bytes that live at once, at the worst moment: no placement needs less. */
static size_t most_at_once(gpp__span *const used[], size_t count)
{
    size_t most = 0;
    for (size_t k = 0; k < count; k++) {
        size_t sum = 0; /* the worst moment is the beginning of some life */
        for (size_t o = 0; o < count; o++)
            if (used[o]->first <= used[k]->first && used[k]->first <= used[o]->last)
                sum += gpp__align(used[o]->bytes);
        most = sum > most ? sum : most;
    }
    return most;
}

static bool fits(gpp__span *const placed[], size_t count, const gpp__span *s, size_t at)
{
    for (size_t k = 0; k < count; k++)
        if (lives_meet(placed[k], s) && at < placed[k]->offset + gpp__align(placed[k]->bytes) &&
            placed[k]->offset < at + gpp__align(s->bytes))
            return false;
    return true;
}

static int earlier_first(const void *a, const void *b)
{
    const gpp__span *x = *(gpp__span *const *)a, *y = *(gpp__span *const *)b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return larger_first(a, b);
}

/** In the order of time, each at the bottom of a block of `size` bytes or at its top: the best for
 * a chain, in which each meets only its neighbours. False when something does not fit. */
static bool place_at_ends(gpp__span *order[], size_t count, size_t size)
{
    qsort(order, count, sizeof *order, earlier_first);
    for (size_t k = 0; k < count; k++) {
        size_t need = gpp__align(order[k]->bytes), low = lowest_free(order, k, order[k]);
        order[k]->offset = low == 0 || !fits(order, k, order[k], size - need) ? low : size - need;
        if (order[k]->offset + need > size)
            return false;
    }
    return true;
}

static size_t place_largest_first(gpp__span *order[], size_t count)
{
    size_t total = 0;
    qsort(order, count, sizeof *order, larger_first);
    for (size_t k = 0; k < count; k++) {
        order[k]->offset = lowest_free(order, k, order[k]);
        size_t end = order[k]->offset + gpp__align(order[k]->bytes);
        total = end > total ? end : total;
    }
    return total;
}

gpp_status gpp__arena_place(gpp__span span[], size_t count, size_t *total, gpp_error *err)
{
    *total = 0;
    gpp__span **order = malloc((count ? count : 1) * sizeof *order);
    if (!order)
        return gpp__fail(err, GPP_ENOMEM, "placing %zu buffers", count);
    size_t used = 0;
    for (size_t k = 0; k < count; k++) {
        span[k].offset = 0;
        if (span[k].bytes)
            order[used++] = &span[k];
    }
    *total = most_at_once(order, used);
    if (!place_at_ends(order, used, *total))
        *total = place_largest_first(order, used);
    free(order);
    return GPP_OK;
}

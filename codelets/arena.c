/* codelets/arena.c: see arena.h. O(count²), at build time only. */
#include "codelets/arena.h"

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
    qsort(order, used, sizeof *order, larger_first);
    for (size_t k = 0; k < used; k++) {
        order[k]->offset = lowest_free(order, k, order[k]);
        size_t end = order[k]->offset + gpp__align(order[k]->bytes);
        if (end > *total)
            *total = end;
    }
    free(order);
    return GPP_OK;
}

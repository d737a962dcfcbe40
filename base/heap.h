/*
 * base/heap.h: a binary heap of small integers. The item with the lowest key comes first; of equal
 * keys, the one with the lowest value, then the one with the lowest stamp. So the order of items
 * does not depend on the machine, and neither do decisions that follow it.
 */
#ifndef GPP_BASE_HEAP_H
#define GPP_BASE_HEAP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct gpp__heap_item {
    uint64_t key;
    int32_t value, stamp; /* of the user: a stamp can tell an item that is out of date */
} gpp__heap_item;

typedef struct gpp__heap {
    gpp__heap_item *item;
    size_t count, capacity;
} gpp__heap;

static inline bool gpp__heap_before(const gpp__heap_item *a, const gpp__heap_item *b)
{
    if (a->key != b->key)
        return a->key < b->key;
    return a->value != b->value ? a->value < b->value : a->stamp < b->stamp;
}

/** A time >= 0 as a key, and back: the bits of such numbers are in the order of the numbers. */
static inline uint64_t gpp__heap_key_of(double time)
{
    uint64_t key;
    memcpy(&key, &time, sizeof key);
    return key;
}
static inline double gpp__heap_time_of(uint64_t key)
{
    double time;
    memcpy(&time, &key, sizeof time);
    return time;
}

/** Make room for `capacity` items in all: pushes up to that number cannot fail. False: no
 * memory. */
static inline bool gpp__heap_reserve(gpp__heap *heap, size_t capacity)
{
    if (capacity <= heap->capacity)
        return true;
    gpp__heap_item *item = realloc(heap->item, capacity * sizeof *item);
    if (!item)
        return false;
    heap->item = item;
    heap->capacity = capacity;
    return true;
}

/** False: no memory, and the heap is as it was. */
static inline bool gpp__heap_push(gpp__heap *heap, gpp__heap_item item)
{
    if (heap->count == heap->capacity && !gpp__heap_reserve(heap, 2 * heap->capacity + 8))
        return false;
    size_t at = heap->count++;
    for (size_t up; at > 0 && gpp__heap_before(&item, &heap->item[up = (at - 1) / 2]); at = up)
        heap->item[at] = heap->item[up];
    heap->item[at] = item;
    return true;
}

/** Removes and returns the lowest item; the heap must not be empty. */
static inline gpp__heap_item gpp__heap_pop(gpp__heap *heap)
{
    gpp__heap_item top = heap->item[0], last = heap->item[--heap->count];
    size_t at = 0;
    for (size_t down; (down = 2 * at + 1) < heap->count; at = down) {
        if (down + 1 < heap->count && gpp__heap_before(&heap->item[down + 1], &heap->item[down]))
            down++;
        if (!gpp__heap_before(&heap->item[down], &last))
            break;
        heap->item[at] = heap->item[down];
    }
    heap->item[at] = last;
    return top;
}

static inline void gpp__heap_release(gpp__heap *heap)
{
    free(heap->item);
    *heap = (gpp__heap){0};
}

#endif

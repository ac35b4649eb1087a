/*
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A set of byte ranges as a sorted array. Images are written front to back,
 * so almost every addition extends or follows the last range.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ranges.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* Index of the first range that ends at or behind @offset. */
static size_t first_reaching(const Ranges *set, uint64_t offset)
{
    size_t low = 0, high = set->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (set->range[middle].end < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint64_t ranges_overlap(const Ranges *set, uint64_t start, uint64_t end)
{
    uint64_t bytes = 0;
    size_t i;

    for (i = first_reaching(set, start); i < set->count; i++) {
        const Range *r = &set->range[i];

        if (r->start >= end) {
            break;
        }
        if (r->end > start) {
            bytes += MIN(r->end, end) - MAX(r->start, start);
        }
    }
    return bytes;
}

static int make_room(Ranges *set)
{
    size_t capacity = set->capacity ? 2 * set->capacity : 16;
    Range *range;

    if (set->count < set->capacity) {
        return 0;
    }
    range = realloc(set->range, capacity * sizeof(*range));
    if (!range) {
        return -ENOMEM;
    }
    set->range = range;
    set->capacity = capacity;
    return 0;
}

int ranges_add(Ranges *set, uint64_t start, uint64_t end)
{
    size_t first = first_reaching(set, start);
    size_t last = first;        /* first range that stays as it is */

    if (start >= end) {
        return 0;
    }
    if (make_room(set) < 0) {
        return -ENOMEM;
    }
    while (last < set->count && set->range[last].start <= end) {
        start = MIN(start, set->range[last].start);
        end = MAX(end, set->range[last].end);
        last++;
    }
    memmove(&set->range[first + 1], &set->range[last],
            (set->count - last) * sizeof(set->range[0]));
    set->range[first] = (Range) { start, end };
    set->count = set->count - (last - first) + 1;
    return 0;
}

uint64_t ranges_truncate(Ranges *set, uint64_t end)
{
    uint64_t dropped = 0;

    while (set->count > 0) {
        Range *last = &set->range[set->count - 1];

        if (last->end <= end) {
            break;
        }
        if (last->start < end) {
            dropped += last->end - end;
            last->end = end;
            break;
        }
        dropped += last->end - last->start;
        set->count--;
    }
    return dropped;
}

void ranges_clear(Ranges *set)
{
    free(set->range);
    *set = (Ranges) { 0 };
}

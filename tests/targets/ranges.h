/*
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A set of byte ranges of one file, to tell bytes written for the first
 * time from bytes written again. Not thread-safe: the caller locks.
 */
#ifndef RANGES_H
#define RANGES_H

#include <stddef.h>
#include <stdint.h>

typedef struct Range {
    uint64_t start;
    uint64_t end;               /* first byte behind the range */
} Range;

/* Sorted, neither overlapping nor touching. All zero is the empty set. */
typedef struct Ranges {
    Range *range;
    size_t count;
    size_t capacity;
} Ranges;

/* Bytes of [start, end) that the set already holds. */
uint64_t ranges_overlap(const Ranges *set, uint64_t start, uint64_t end);

/* Returns 0, or -ENOMEM with the set unchanged. */
int ranges_add(Ranges *set, uint64_t start, uint64_t end);

/* Drops everything from @end on and returns how many bytes that was. */
uint64_t ranges_truncate(Ranges *set, uint64_t end);

void ranges_clear(Ranges *set);

#endif

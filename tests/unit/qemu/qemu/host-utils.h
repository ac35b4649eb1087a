/*
 * Test double: arithmetic
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef UNIT_QEMU_HOST_UTILS_H
#define UNIT_QEMU_HOST_UTILS_H

static inline bool is_power_of_2(uint64_t n)
{
    return __builtin_popcountll(n) == 1;
}

#endif /* UNIT_QEMU_HOST_UTILS_H */

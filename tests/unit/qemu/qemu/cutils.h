/*
 * Test double: reading memory that the simulated host has mapped
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef UNIT_QEMU_CUTILS_H
#define UNIT_QEMU_CUTILS_H

bool buffer_is_zero(const void *start, size_t bytes);

#endif /* UNIT_QEMU_CUTILS_H */

/*
 * Test double: advice about memory that the simulated host has mapped
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef UNIT_QEMU_MADVISE_H
#define UNIT_QEMU_MADVISE_H

/* A number of its own: no advice of the system may be taken for it */
#define QEMU_MADV_HUGEPAGE 1000

int qemu_madvise(void *start, size_t bytes, int advice);

#endif /* UNIT_QEMU_MADVISE_H */

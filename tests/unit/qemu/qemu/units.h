/*
 * Test double: binary units
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef UNIT_QEMU_UNITS_H
#define UNIT_QEMU_UNITS_H

#define KiB INT64_C(1024)
#define MiB (1024 * KiB)
#define GiB (1024 * MiB)

#endif /* UNIT_QEMU_UNITS_H */

/*
 * Test double: nothing of it is used, but the module includes it
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef UNIT_BLOCK_AIO_H
#define UNIT_BLOCK_AIO_H
#endif /* UNIT_BLOCK_AIO_H */

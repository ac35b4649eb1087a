/*
 * Test double: the mark of functions that run in a coroutine
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The coroutines themselves are in ../event-loop.h: only doubles use them.
 */

#ifndef UNIT_QEMU_COROUTINE_H
#define UNIT_QEMU_COROUTINE_H

#define coroutine_fn

#endif /* UNIT_QEMU_COROUTINE_H */

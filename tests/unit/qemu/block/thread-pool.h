/*
 * Test double: the thread pool, see ../event-loop.h
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef UNIT_BLOCK_THREAD_POOL_H
#define UNIT_BLOCK_THREAD_POOL_H

#include "qemu/coroutine.h"

typedef int ThreadPoolFunc(void *arg);

int coroutine_fn thread_pool_submit_co(ThreadPoolFunc *func, void *arg);

#endif /* UNIT_BLOCK_THREAD_POOL_H */

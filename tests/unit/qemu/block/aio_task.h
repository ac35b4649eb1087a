/*
 * Test double: a pool of coroutines with a limited number of slots
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Aborts on what would corrupt memory or hang in QEMU: waiting in another
 * coroutine than the pool's own, freeing a pool that still runs tasks.
 */

#ifndef UNIT_BLOCK_AIO_TASK_H
#define UNIT_BLOCK_AIO_TASK_H

#include "qemu/coroutine.h"

typedef struct AioTaskPool AioTaskPool;

typedef struct AioTask {
    int coroutine_fn (*func)(struct AioTask *task);
    AioTaskPool *pool;
} AioTask;

AioTaskPool *coroutine_fn aio_task_pool_new(int slots);
void aio_task_pool_free(AioTaskPool *pool);

/* The first error of a task, or 0 */
int aio_task_pool_status(AioTaskPool *pool);

/* The pool frees @task with g_free() when it has ended */
void coroutine_fn aio_task_pool_start_task(AioTaskPool *pool, AioTask *task);
void coroutine_fn aio_task_pool_wait_slot(AioTaskPool *pool);
/* For a task of those that run to end, any of them */
void coroutine_fn aio_task_pool_wait_one(AioTaskPool *pool);
void coroutine_fn aio_task_pool_wait_all(AioTaskPool *pool);

#endif /* UNIT_BLOCK_AIO_TASK_H */

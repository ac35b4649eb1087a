/*
 * Test double: a pool of coroutines with a limited number of slots
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "block/aio_task.h"
#include "event-loop.h"

struct AioTaskPool {
    Coroutine *owner;
    int slots;
    int free_slots;
    int needed;         /* free slots that the owner waits for, or 0 */
    int first_error;
};

static void release_slot(AioTaskPool *pool)
{
    pool->free_slots++;
    if (pool->needed && pool->free_slots >= pool->needed) {
        pool->needed = 0;
        coroutine_wake(pool->owner);
    }
}

static void task_entry(void *opaque)
{
    AioTask *task = opaque;
    AioTaskPool *pool = task->pool;
    int ret = task->func(task);

    g_free(task);
    if (pool->first_error == 0) {
        pool->first_error = MIN(ret, 0);
    }
    release_slot(pool);
}

static void coroutine_fn wait_for_free_slots(AioTaskPool *pool, int needed)
{
    assert(coroutine_self() == pool->owner);
    if (pool->free_slots < needed) {
        pool->needed = needed;
        coroutine_yield();
    }
}

AioTaskPool *coroutine_fn aio_task_pool_new(int slots)
{
    AioTaskPool *pool = g_new0(AioTaskPool, 1);

    assert(slots > 0);
    pool->owner = coroutine_self();
    pool->slots = pool->free_slots = slots;
    return pool;
}

void aio_task_pool_free(AioTaskPool *pool)
{
    assert(pool->free_slots == pool->slots);
    g_free(pool);
}

int aio_task_pool_status(AioTaskPool *pool)
{
    return pool->first_error;
}

void coroutine_fn aio_task_pool_wait_slot(AioTaskPool *pool)
{
    wait_for_free_slots(pool, 1);
}

void coroutine_fn aio_task_pool_wait_one(AioTaskPool *pool)
{
    assert(pool->free_slots < pool->slots);
    wait_for_free_slots(pool, pool->free_slots + 1);
}

void coroutine_fn aio_task_pool_wait_all(AioTaskPool *pool)
{
    wait_for_free_slots(pool, pool->slots);
}

void coroutine_fn aio_task_pool_start_task(AioTaskPool *pool, AioTask *task)
{
    aio_task_pool_wait_slot(pool);
    pool->free_slots--;
    task->pool = pool;
    coroutine_start(task_entry, task);
}

/*
 * Coroutines, and an event loop with a thread pool whose order a test chooses
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A coroutine is a thread that runs only while it holds the baton, so that
 * sanitizers and valgrind see nothing unusual.
 */

#ifndef UNIT_EVENT_LOOP_H
#define UNIT_EVENT_LOOP_H

#include "qemu/coroutine.h"

typedef struct Coroutine Coroutine;
typedef void CoroutineEntry(void *opaque);

/* In which order the pool runs what is queued */
typedef enum PoolOrder {
    POOL_FIFO,
    POOL_LIFO,
    POOL_RANDOM,
    POOL_THREADS,       /* all at once, in threads, with random delays */
} PoolOrder;

/*
 * Runs @entry in a coroutine, and then all that is left in the pool.  Calls
 * @idle whenever nothing but the pool can go on.  Aborts on a deadlock.
 */
void event_loop_run(CoroutineEntry *entry, void *opaque, PoolOrder order,
                    unsigned int seed, void (*idle)(void));

/* Number of requests in the pool */
int event_loop_pending(void);

/* Whether the calling code runs in the pool */
bool event_loop_in_worker(void);

Coroutine *coroutine_self(void);
void coroutine_start(CoroutineEntry *entry, void *opaque);
void coroutine_fn coroutine_yield(void);

/* Lets @co go on when the running coroutine gives up the baton */
void coroutine_wake(Coroutine *co);

#endif /* UNIT_EVENT_LOOP_H */

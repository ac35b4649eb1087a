/*
 * Coroutines, and an event loop with a thread pool whose order a test chooses
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include <pthread.h>
#include <semaphore.h>
#include "block/thread-pool.h"
#include "event-loop.h"

#define MAX_DELAY_US 300

struct Coroutine {
    CoroutineEntry *entry;
    void *opaque;
    pthread_t thread;
    sem_t baton;
    Coroutine *resumed_by;
    bool ended;
};

/* Lives on the stack of the coroutine that waits for it */
typedef struct Request {
    ThreadPoolFunc *func;
    void *arg;
    Coroutine *waiting;
    int ret;
    pthread_t thread;
    unsigned int seed;
} Request;

static struct {
    PoolOrder order;
    unsigned int seed;
    int coroutines;
    GQueue *runnable;           /* of Coroutine */
    GPtrArray *queued;          /* of Request, oldest first */
    pthread_mutex_t lock;       /* protects @completed */
    pthread_cond_t completion;
    GQueue *completed;          /* of Request, with POOL_THREADS only */
} loop = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .completion = PTHREAD_COND_INITIALIZER,
};

static _Thread_local Coroutine *running;
static _Thread_local bool in_worker;

static void wait_for_baton(Coroutine *co)
{
    while (sem_wait(&co->baton) < 0) {
        assert(errno == EINTR);
    }
}

static void *coroutine_thread(void *opaque)
{
    Coroutine *co = opaque;

    running = co;
    wait_for_baton(co);
    co->entry(co->opaque);
    co->ended = true;
    sem_post(&co->resumed_by->baton);
    return NULL;
}

static void coroutine_resume(Coroutine *co)
{
    co->resumed_by = running;
    sem_post(&co->baton);
    wait_for_baton(running);

    if (co->ended) {
        pthread_join(co->thread, NULL);
        sem_destroy(&co->baton);
        g_free(co);
        loop.coroutines--;
    }
}

Coroutine *coroutine_self(void)
{
    return running;
}

void coroutine_start(CoroutineEntry *entry, void *opaque)
{
    Coroutine *co = g_new0(Coroutine, 1);

    co->entry = entry;
    co->opaque = opaque;
    sem_init(&co->baton, 0, 0);
    if (pthread_create(&co->thread, NULL, coroutine_thread, co)) {
        abort();
    }
    loop.coroutines++;
    coroutine_resume(co);
}

void coroutine_fn coroutine_yield(void)
{
    sem_post(&running->resumed_by->baton);
    wait_for_baton(running);
}

void coroutine_wake(Coroutine *co)
{
    g_queue_push_tail(loop.runnable, co);
}

bool event_loop_in_worker(void)
{
    return in_worker;
}

int event_loop_pending(void)
{
    return loop.queued->len;
}

static void request_run(Request *r)
{
    in_worker = true;
    r->ret = r->func(r->arg);
    in_worker = false;
}

static void *request_thread(void *opaque)
{
    Request *r = opaque;

    usleep(rand_r(&r->seed) % MAX_DELAY_US);
    request_run(r);
    usleep(rand_r(&r->seed) % MAX_DELAY_US);

    pthread_mutex_lock(&loop.lock);
    g_queue_push_tail(loop.completed, r);
    pthread_cond_signal(&loop.completion);
    pthread_mutex_unlock(&loop.lock);
    return NULL;
}

int coroutine_fn thread_pool_submit_co(ThreadPoolFunc *func, void *arg)
{
    Request r = {
        .func = func,
        .arg = arg,
        .waiting = running,
        .seed = rand_r(&loop.seed),
    };

    g_ptr_array_add(loop.queued, &r);
    if (loop.order == POOL_THREADS &&
        pthread_create(&r.thread, NULL, request_thread, &r)) {
        abort();
    }
    coroutine_yield();
    return r.ret;
}

static Request *wait_for_completion(void)
{
    Request *r;

    pthread_mutex_lock(&loop.lock);
    while (g_queue_is_empty(loop.completed)) {
        pthread_cond_wait(&loop.completion, &loop.lock);
    }
    r = g_queue_pop_head(loop.completed);
    pthread_mutex_unlock(&loop.lock);

    pthread_join(r->thread, NULL);
    g_ptr_array_remove(loop.queued, r);
    return r;
}

static Request *run_one_queued(void)
{
    guint i = 0;
    Request *r;

    if (loop.order == POOL_LIFO) {
        i = loop.queued->len - 1;
    } else if (loop.order == POOL_RANDOM) {
        i = rand_r(&loop.seed) % loop.queued->len;
    }
    r = g_ptr_array_index(loop.queued, i);
    request_run(r);
    g_ptr_array_remove_index(loop.queued, i);
    return r;
}

static void loop_until_all_ended(void (*idle)(void))
{
    while (loop.coroutines > 0) {
        Request *r;

        if (!g_queue_is_empty(loop.runnable)) {
            coroutine_resume(g_queue_pop_head(loop.runnable));
            continue;
        }
        if (loop.queued->len == 0) {
            fprintf(stderr, "deadlock: a coroutine waits for nothing\n");
            abort();
        }
        idle();
        r = loop.order == POOL_THREADS ? wait_for_completion()
                                       : run_one_queued();
        coroutine_resume(r->waiting);
    }
}

void event_loop_run(CoroutineEntry *entry, void *opaque, PoolOrder order,
                    unsigned int seed, void (*idle)(void))
{
    Coroutine self = { .entry = entry };

    loop.order = order;
    loop.seed = seed;
    loop.runnable = g_queue_new();
    loop.queued = g_ptr_array_new();
    loop.completed = g_queue_new();
    sem_init(&self.baton, 0, 0);
    running = &self;

    coroutine_start(entry, opaque);
    loop_until_all_ended(idle);

    running = NULL;
    sem_destroy(&self.baton);
    g_queue_free(loop.runnable);
    g_ptr_array_free(loop.queued, true);
    g_queue_free(loop.completed);
}

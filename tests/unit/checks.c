/*
 * One call of file_co_preallocate() on a simulated file, and what must hold
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The contract in file-prealloc.h, as far as it is the same for all cases.
 * Sizes that are up to the module are learned from its trace events.
 */

#include "qemu/osdep.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include "qapi/error.h"
#include "qemu/units.h"
#include "checks.h"
#include "util.h"

/* From here on a second description pays, below it does not */
#define CERTAINLY_LARGE (8 * MiB)
#define CERTAINLY_SMALL (64 * KiB)

typedef struct Run {
    const Case *c;
    int result;
    int expected;
    unsigned int refused;
    Error *err;
    int pending;        /* in the pool when the call returned */
    const Event *writer;
    int writes;         /* issued */
} Run;

/* The writes that go on, oldest first, as far as the record was followed */
typedef struct Window {
    guint events;
    int issued;
    int n;
    struct {
        int number;
        int64_t end;
    } open[16];
} Window;

static Window watched;

/* Fewer writes in flight than there could be, seen while nothing else ran */
static bool lacked_depth;

static const Event *event_at(guint i)
{
    return &g_array_index(recorded(), Event, i);
}

static const Event *first_event(EventKind kind)
{
    for (guint i = 0; i < recorded()->len; i++) {
        if (event_at(i)->kind == kind) {
            return event_at(i);
        }
    }
    return NULL;
}

static const Event *last_event(EventKind kind)
{
    for (guint i = recorded()->len; i > 0; i--) {
        if (event_at(i - 1)->kind == kind) {
            return event_at(i - 1);
        }
    }
    return NULL;
}

static void window_close(Window *w, int64_t end)
{
    for (int i = 0; i < w->n; i++) {
        if (w->open[i].end == end) {
            w->n--;
            memmove(w->open + i, w->open + i + 1,
                    (w->n - i) * sizeof(w->open[0]));
            return;
        }
    }
}

/* Takes in the next event of the record */
static void window_follow(Window *w)
{
    const Event *e = event_at(w->events++);

    if (e->kind == TRACE_WRITE) {
        if (w->n == ARRAY_SIZE(w->open)) {
            complain("too many writes in flight");
            w->n = 0;
        }
        w->open[w->n].number = w->issued++;
        w->open[w->n++].end = e->offset + e->bytes;
    } else if (e->kind == SYS_WRITE && e->result > 0) {
        window_close(w, e->offset + e->result);
    }
}

/* From the oldest write that goes on to the newest */
static int window_length(const Window *w)
{
    return w->n ? w->issued - w->open[0].number : 0;
}

static void watch_depth(void)
{
    const Event *start = first_event(TRACE_START);
    const Event *writer = first_event(TRACE_WRITER);
    const Event *write = last_event(TRACE_WRITE);

    while (watched.events < recorded()->len) {
        window_follow(&watched);
    }
    if (write && writer &&
        write->offset + write->bytes < start->offset + start->bytes) {
        lacked_depth |= window_length(&watched) < writer->in_flight;
    }
}

/* Other threads add to the record meanwhile */
static void watch_nothing(void)
{
}

static unsigned int methods_of(const Case *c)
{
    return c->no_methods ? 0 : c->methods ?: FILE_PREALLOC_WRITE;
}

static void call_entry(void *opaque)
{
    Run *run = opaque;
    const Case *c = run->c;

    run->refused = c->refused;
    run->result = file_co_preallocate(CALLER_FD, c->offset, c->bytes,
                                      methods_of(c),
                                      c->forgetful ? NULL : &run->refused,
                                      &run->err);
    run->pending = event_loop_pending();
}

static void check_result(const Run *run)
{
    const Case *c = run->c;
    unsigned int refused = c->refused;
    g_autofree char *message = NULL;

    if (run->result != run->expected) {
        complain("result %d instead of %d", run->result, run->expected);
    }
    if (c->error) {
        message = g_strdup_printf("%s: %s", c->error,
                                  strerror(-run->expected));
    }
    if (g_strcmp0(run->err ? run->err->message : NULL, message)) {
        complain("error '%s' instead of '%s'",
                 run->err ? run->err->message : "none", message ?: "none");
    }
    refused |= c->forgetful ? 0 : c->newly_refused;
    if (run->refused != refused) {
        complain("methods 0x%x remembered as refused instead of 0x%x",
                 run->refused, refused);
    }
    if (run->pending) {
        complain("%d requests in the pool on return", run->pending);
    }
}

static const char *method_name(int method)
{
    return method == FILE_PREALLOC_OFFLOAD ? "write-zeroes" :
           method == FILE_PREALLOC_NATIVE ? "fallocate" : "zero-writer";
}

static void check_start_and_done(const Run *run)
{
    const Case *c = run->c;
    const Event *start = event_at(0);
    const Event *done = event_at(recorded()->len - 1);

    if (start->kind != TRACE_START || recorded_count(TRACE_START) != 1 ||
        start->offset != c->offset || start->bytes != c->bytes ||
        start->methods != methods_of(c)) {
        complain("wrong trace event file_prealloc_start");
    }
    if (done->kind != TRACE_DONE || recorded_count(TRACE_DONE) != 1 ||
        done->bytes != c->bytes || done->result != MIN(run->result, 0) ||
        done->usec < 0 ||
        (run->result > 0 && strcmp(done->method, method_name(run->result)))) {
        complain("wrong trace event file_prealloc_done");
    }
}

static int method_of_call(EventKind call)
{
    return call == SYS_OFFLOAD ? FILE_PREALLOC_OFFLOAD :
           call == SYS_NATIVE ? FILE_PREALLOC_NATIVE :
           call == SYS_FTRUNCATE ? FILE_PREALLOC_WRITE : 0;
}

/* Only allowed methods, fastest first, and none after one that worked */
static void check_methods(const Run *run)
{
    const Case *c = run->c;
    int allowed = methods_of(c) & ~c->refused;
    int tried = 0;
    int last = 0;

    for (guint i = 0; i < recorded()->len; i++) {
        int method = method_of_call(event_at(i)->kind);

        tried |= method;
        if (method && (method & ~allowed)) {
            complain("method %s tried", method_name(method));
        }
        if (method && method < last) {
            complain("method %s tried after %s", method_name(method),
                     method_name(last));
        }
        last = method ?: last;
    }
    if (run->result > 0 && last != run->result) {
        complain("method %s tried after success", method_name(last));
    }
    /* The fastest that was possible; offload needs whole blocks */
    allowed &= HOST_METHODS;
    if ((c->offset | c->bytes) % simulated_file_block()) {
        allowed &= ~FILE_PREALLOC_OFFLOAD;
    }
    if (run->result > 0 && (allowed & (run->result - 1) & ~tried)) {
        complain("a faster method was not tried");
    }
}

/* Every refusal is traced with its errno */
static void check_refusals(void)
{
    int64_t offload = -EINVAL;      /* without a call: not whole blocks */
    int64_t native = HOST_METHODS & FILE_PREALLOC_NATIVE ? 0 : -ENOTSUP;

    for (guint i = 0; i < recorded()->len; i++) {
        const Event *e = event_at(i);

        if (e->kind == SYS_OFFLOAD) {
            offload = e->result;
        } else if (e->kind == SYS_NATIVE) {
            native = e->result;
        } else if (e->kind == TRACE_REFUSED) {
            bool is_native = !strcmp(e->method, method_name(
                                         FILE_PREALLOC_NATIVE));

            if (e->result >= 0 || e->result != (is_native ? native : offload)) {
                complain("wrong trace event file_prealloc_refused");
            }
        }
    }
    if (recorded_count(SYS_NATIVE) && recorded_count(SYS_FTRUNCATE) &&
        !recorded_count(TRACE_REFUSED)) {
        complain("no trace event file_prealloc_refused");
    }
}

static void check_bounds(const Event *writer, bool one_at_a_time)
{
    if (writer->bytes < 1 * MiB || writer->bytes > 16 * MiB) {
        complain("writes of up to %" PRId64, writer->bytes);
    }
    if (writer->in_flight > 8 || (writer->in_flight < 2) != one_at_a_time) {
        complain("%d writes in flight", writer->in_flight);
    }
    if (writer->block != simulated_file_block()) {
        complain("blocks of %" PRId64, writer->block);
    }
}

static void check_descriptions(const Run *run)
{
    const Case *c = run->c;
    const Event *open = first_event(SYS_OPEN);
    bool opened = open && last_event(SYS_OPEN)->result >= 0;
    int direct = c->caller_is_direct ? CALLER_FD : SECOND_FD;
    int buffered = c->caller_is_direct ? SECOND_FD : CALLER_FD;
    bool large = HAVE_DIRECT &&
                 (c->caller_is_direct || c->bytes >= CERTAINLY_LARGE);
    bool small = !HAVE_DIRECT ||
                 (!c->caller_is_direct && c->bytes <= CERTAINLY_SMALL);

    if (open && c->no_ofd_lock) {
        complain("second description drops the caller's POSIX locks");
    }
    if (open && small) {
        complain("second description that does not pay");
    }
    if (!open && large && !c->no_ofd_lock) {
        complain("no second description");
    }
    if ((run->writer->direct_fd == direct) !=
        (c->caller_is_direct || opened) ||
        (run->writer->buffered_fd == buffered) !=
        (!c->caller_is_direct || opened)) {
        complain("direct fd %d, buffered fd %d", run->writer->direct_fd,
                 run->writer->buffered_fd);
    }
}

/*
 * A write is issued when the one that is @in_flight before it has ended, and
 * not earlier, however slow that one is.
 */
static void check_window(const Event *writer)
{
    Window w = { };

    while (w.events < recorded()->len) {
        window_follow(&w);
        if (event_at(w.events - 1)->kind == TRACE_WRITE &&
            window_length(&w) > writer->in_flight) {
            complain("write %d issued while write %d goes on", w.issued - 1,
                     w.open[0].number);
        }
    }
}

/* How a write of whole blocks or of parts has to be issued */
static bool is_direct_expected(const Run *run, bool whole, bool refused)
{
    if (run->writer->direct_fd < 0 || refused) {
        return false;
    }
    return whole || run->c->caller_is_direct;
}

/* Ascending, without a gap, not too large, direct wherever that is possible */
static void check_issued(Run *run)
{
    const Case *c = run->c;
    const Event *writer = run->writer;
    int64_t next = c->offset;
    bool refused = false;
    int most = 0;

    for (guint i = 0; i < recorded()->len; i++) {
        const Event *e = event_at(i);
        bool whole = (e->offset | e->bytes) % writer->block == 0;

        if (e->kind == TRACE_DIRECT_REFUSED) {
            refused |= whole;
        }
        if (e->kind != TRACE_WRITE) {
            continue;
        }
        if (e->offset != next || e->bytes <= 0 || e->bytes > writer->bytes) {
            complain("write of %" PRId64 "+%" PRId64 " issued instead of "
                     "one at %" PRId64, e->offset, e->bytes, next);
        }
        if (e->direct != is_direct_expected(run, whole, refused)) {
            complain("write of %" PRId64 "+%" PRId64 " is %s", e->offset,
                     e->bytes, e->direct ? "direct" : "buffered");
        }
        next = e->offset + e->bytes;
        most = MAX(most, e->in_flight);
        run->writes++;
    }
    if (most > writer->in_flight ||
        (run->result > 0 && most < MIN(writer->in_flight, run->writes))) {
        complain("%d writes in flight", most);
    }
    /* Boundaries between writes may be aligned; head and tail are extra */
    if (run->writes > c->bytes / writer->bytes + 4) {
        complain("%d writes", run->writes);
    }
}

static bool has_rule(const Case *c, EventKind call)
{
    for (int i = 0; i < MAX_RULES; i++) {
        if (c->rules[i].call == call) {
            return true;
        }
    }
    return false;
}

/*
 * Each write is one call, or as many as a buffer of 64 KiB takes, unless that
 * is made to fail or to end early.
 */
static void check_calls(const Run *run)
{
    int needed = run->writes + recorded_count(TRACE_DIRECT_REFUSED);
    int most = HAVE_VECTORS ? needed : needed + run->c->bytes / (64 * KiB);
    int calls = recorded_count(SYS_WRITE);

    if (!has_rule(run->c, SYS_WRITE) && (calls < needed || calls > most)) {
        complain("%d calls for %d writes", calls, run->writes);
    }
}

static void check_written_by(const Run *run)
{
    bool refused = false;
    int kinds = 0;

    for (guint i = 0; i < recorded()->len; i++) {
        const Event *e = event_at(i);

        refused |= e->kind == TRACE_DIRECT_REFUSED;
        if (e->kind != SYS_WRITE) {
            continue;
        }
        if (e->bytes > run->writer->bytes) {
            complain("pwritev of %" PRId64, e->bytes);
        }
        if (e->fd == SECOND_FD && run->c->caller_is_direct && !refused) {
            complain("buffered write before a direct one was refused");
        }
        if (e->result > 0) {
            kinds |= e->direct ? DIRECT : BUFFERED;
        }
    }
    if (run->c->kinds && kinds != run->c->kinds) {
        complain("kinds of writes 0x%x instead of 0x%x", kinds,
                 run->c->kinds);
    }
    if (!refused && run->result > 0) {
        simulated_file_check_owners();
    }
}

static bool is_fatal(guint i)
{
    const Event *e = event_at(i);

    return e->kind == SYS_WRITE && e->result <= 0 && e->result != -EINTR &&
           event_at(i + 1)->kind != TRACE_DIRECT_REFUSED;
}

/*
 * The first error is the result, and nothing is begun after it.  Not for
 * POOL_THREADS, where the order of calls is not that of their completion.
 */
static void check_first_error(const Run *run)
{
    const Event *fatal = NULL;

    for (guint i = 0; i < recorded()->len; i++) {
        if (fatal && event_at(i)->kind == TRACE_WRITE) {
            complain("write issued after an error");
        }
        if (!fatal && is_fatal(i)) {
            fatal = event_at(i);
        }
    }
    if (fatal && run->result != (fatal->result ?: -ENOSPC)) {
        complain("result %d, but the first write failed with %" PRId64,
                 run->result, fatal->result);
    }
}

/* 100 when all is done, not before; small ranges do not have percents */
static bool is_true(int percent, int64_t done, int64_t bytes)
{
    if (percent == 100 || done == bytes) {
        return percent == 100 && done == bytes;
    }
    return bytes < 1 * MiB || fabs(percent - 100.0 * done / bytes) < 1.01;
}

static void check_progress(const Run *run)
{
    int percent = 0;

    for (guint i = 0; i < recorded()->len; i++) {
        const Event *e = event_at(i);

        if (e->kind != TRACE_PROGRESS) {
            continue;
        }
        if (e->percent <= percent || e->percent > 100 ||
            !is_true(e->percent, e->bytes, run->c->bytes)) {
            complain("progress %d after %d, %" PRId64 " bytes done",
                     e->percent, percent, e->bytes);
        }
        percent = e->percent;
    }
    if (run->result > 0 && percent != 100) {
        complain("progress ends at %d%%", percent);
    }
}

static void check_writer(Run *run)
{
    bool write_failed = !g_strcmp0(run->c->error, NO_ZEROS);

    run->writer = first_event(TRACE_WRITER);
    if (!run->writer) {
        if (recorded_count(SYS_OPEN) || recorded_count(SYS_WRITE) ||
            recorded_count(SYS_FSYNC) || run->result > 0) {
            complain("no trace event file_prealloc_writer");
        }
        return;
    }
    check_bounds(run->writer, run->c->one_at_a_time);
    check_descriptions(run);
    check_issued(run);
    check_window(run->writer);
    check_calls(run);
    check_written_by(run);
    check_progress(run);
    if (run->c->order != POOL_THREADS) {
        check_first_error(run);
    }
    if (run->result > 0) {
        simulated_file_check_written();
        if (lacked_depth) {
            complain("fewer writes in flight than there could be");
        }
    }
    if (write_failed && recorded_count(SYS_FSYNC)) {
        complain("fsync after a write error");
    }
}

static void check_run(Run *run)
{
    check_result(run);
    if (run->c->bytes == 0) {
        if (recorded()->len) {
            complain("something done for an empty range");
        }
        return;
    }
    check_start_and_done(run);
    check_methods(run);
    check_refusals();
    if (recorded_count(SYS_FTRUNCATE)) {
        check_writer(run);
    }
    simulated_file_check_leaks();
    simulated_file_check_rules();
}

static void check_case(void **state)
{
    const Case *c = *state;
    bool zeros_expected = !c->result && c->bytes && !c->error;
    SimulatedFile file = {
        .offset = c->offset,
        .bytes = c->bytes,
        .caller_is_direct = c->caller_is_direct,
        .st_blksize = c->st_blksize == BLKSIZE_NONE ? 0 :
                      c->st_blksize ?: 4 * KiB,
        .page_size = c->page_size ?: 4 * KiB,
        .direct_alignment = c->direct_alignment ?: 512,
        .f_type = c->f_type,
        .inode_flags = c->inode_flags,
        .rules = c->rules,
    };
    Run run = {
        .c = c,
        .expected = zeros_expected ? FILE_PREALLOC_WRITE : c->result,
    };
    g_autofree char *complaints = NULL;

    lacked_depth = false;
    watched = (Window) { };
    record_clear();
    host_reset(file.page_size, !c->no_ofd_lock);
    simulated_file_create(&file);
    event_loop_run(call_entry, &run, c->order, c->seed,
                   c->order == POOL_THREADS ? watch_nothing : watch_depth);
    check_run(&run);
    complaints = recorded_complaints();
    error_free(run.err);
    simulated_file_destroy();

    if (complaints) {
        printf("%s", complaints);
        fail();
    }
}

int run_cases(const struct CMUnitTest *first, GPtrArray *cases,
              const char *pattern)
{
    size_t n = cases->len + (first ? 1 : 0);
    struct CMUnitTest *tests = g_new0(struct CMUnitTest, n);
    int failed;

    for (guint i = 0; i < cases->len; i++) {
        Case *c = g_ptr_array_index(cases, i);

        tests[n - cases->len + i] = (struct CMUnitTest) {
            .name = c->name,
            .test_func = check_case,
            .initial_state = c,
        };
    }
    if (first) {
        tests[0] = *first;
    }

    setvbuf(stdout, NULL, _IOLBF, 0);   /* whoever reads it may stop early */
    cmocka_set_message_output(CM_OUTPUT_TAP);
    if (pattern) {
        cmocka_set_test_filter(pattern);
    }
    failed = _cmocka_run_group_tests("file-prealloc", tests, n, NULL, NULL);
    g_free(tests);
    record_free();
    host_reset(4 * KiB, true);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

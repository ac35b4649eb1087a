/*
 * A simulated regular file behind the system calls of file-prealloc.c
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Every system call takes the lock, and complains if it was made outside the
 * thread pool.
 */

#include "qemu/osdep.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <linux/fs.h>
#include "qemu/madvise.h"
#include "qemu/units.h"
#include "block/thread-pool.h"
#include "event-loop.h"
#include "simulated-file.h"
#include "util.h"

#define MODE_WRITE_ZEROES 0x80

/* The contract allows 64 retries after EINTR */
#define MAX_EINTR (64 + 1)

/* More calls than any test needs: from here on all fail, to end the loop */
#define MAX_CALLS 20000

/* In place of the descriptor, for calls that have none */
#define NO_FD INT_MIN

typedef struct Range {
    int64_t start;
    int64_t end;
} Range;

/* An open file description */
typedef struct Description {
    bool open;
    bool direct;
    bool dirty;         /* written since the last fsync() */
} Description;

static struct {
    pthread_mutex_t lock;
    SimulatedFile file;
    int64_t end;
    Description caller;
    Description second;
    bool resized;
    bool caller_synced;         /* since the last write */
    bool closed_dirty;
    int matched[MAX_RULES];
    int followed[MAX_RULES];
    int calls;
    int forbidden_calls;
    struct {
        int64_t offset;
        int times;              /* in sequence at that offset */
    } interrupted[EVENT_KINDS];
    GArray *written;            /* sets of Range, sorted */
    GArray *written_direct;
    GArray *written_buffered;
} sim = { .lock = PTHREAD_MUTEX_INITIALIZER };

static GArray *ranges_new(void)
{
    return g_array_new(false, false, sizeof(Range));
}

/* Returns whether a part of it was there already */
static bool ranges_add(GArray *set, int64_t start, int64_t end)
{
    Range merged = { start, end };
    bool overlap = false;
    guint i = 0;

    while (i < set->len && g_array_index(set, Range, i).end < start) {
        i++;
    }
    while (i < set->len && g_array_index(set, Range, i).start <= end) {
        Range r = g_array_index(set, Range, i);

        overlap |= r.start < end && start < r.end;
        merged.start = MIN(merged.start, r.start);
        merged.end = MAX(merged.end, r.end);
        g_array_remove_index(set, i);
    }
    g_array_insert_val(set, i, merged);
    return overlap;
}

static bool ranges_share_block(const GArray *a, const GArray *b, int64_t size)
{
    for (guint i = 0; i < a->len; i++) {
        Range x = g_array_index(a, Range, i);

        for (guint j = 0; j < b->len; j++) {
            Range y = g_array_index(b, Range, j);

            if (x.start / size <= (y.end - 1) / size &&
                y.start / size <= (x.end - 1) / size) {
                return true;
            }
        }
    }
    return false;
}

void simulated_file_create(const SimulatedFile *file)
{
    sim.file = *file;
    sim.end = file->offset + file->bytes;
    sim.caller = (Description) {
        .open = true,
        .direct = file->caller_is_direct,
    };
    sim.second = (Description) { .open = false };
    sim.resized = sim.caller_synced = sim.closed_dirty = false;
    memset(sim.matched, 0, sizeof(sim.matched));
    memset(sim.followed, 0, sizeof(sim.followed));
    memset(sim.interrupted, 0, sizeof(sim.interrupted));
    sim.calls = sim.forbidden_calls = 0;
    sim.written = ranges_new();
    sim.written_direct = ranges_new();
    sim.written_buffered = ranges_new();
}

void simulated_file_destroy(void)
{
    g_array_free(sim.written, true);
    g_array_free(sim.written_direct, true);
    g_array_free(sim.written_buffered, true);
}

int64_t simulated_file_block(void)
{
    int64_t page = MAX(4 * KiB, sim.file.page_size);
    int64_t size = sim.file.st_blksize;
    bool power_of_2 = size > 0 && (size & (size - 1)) == 0;

    return power_of_2 && size <= 1 * MiB ? MAX(page, size) : page;
}

int simulated_file_forbidden_calls(void)
{
    return sim.forbidden_calls;
}

void simulated_file_check_leaks(void)
{
    if (!sim.caller.open) {
        complain("the caller's descriptor was closed");
    }
    if (sim.second.open) {
        complain("the second description was left open");
    }
    if (host_is_mapped()) {
        complain("the mapping was not unmapped");
    }
}

void simulated_file_check_written(void)
{
    Range r = { -1, -1 };

    if (sim.written->len == 1) {
        r = g_array_index(sim.written, Range, 0);
    }
    if (r.start != sim.file.offset || r.end != sim.end) {
        complain("%u ranges written instead of the whole one",
                 sim.written->len);
    }
    if (sim.closed_dirty || sim.second.dirty || sim.caller.dirty) {
        complain("a description that wrote was not synced");
    }
    if (!sim.caller_synced) {
        complain("no fsync of the caller's descriptor after the last write");
    }
}

void simulated_file_check_owners(void)
{
    int64_t size = simulated_file_block();
    int64_t before = sim.file.offset % size;
    int64_t after = (size - sim.end % size) % size;
    GArray *callers = sim.file.caller_is_direct ? sim.written_direct
                                                : sim.written_buffered;

    /* The caller's I/O on both sides of the range */
    if (before) {
        ranges_add(callers, sim.file.offset - before, sim.file.offset);
    }
    if (after && after <= INT64_MAX - sim.end) {
        ranges_add(callers, sim.end, sim.end + after);
    }
    if (ranges_share_block(sim.written_direct, sim.written_buffered, size)) {
        complain("a block was written both direct and buffered");
    }
}

void simulated_file_check_rules(void)
{
    for (int i = 0; i < MAX_RULES; i++) {
        if (sim.file.rules[i].call != TRACE_START && !sim.followed[i]) {
            complain("rule %d of the test was never followed", i);
        }
    }
}

static Description *description(int fd)
{
    return fd == CALLER_FD ? &sim.caller :
           fd == SECOND_FD ? &sim.second : NULL;
}

static bool rule_matches(const Rule *rule, EventKind call, int fd)
{
    return rule->call == call &&
           (rule->on == ON_ANY ||
            fd == (rule->on == ON_CALLER ? CALLER_FD : SECOND_FD));
}

/* The first rule that tells the result of this call, or NULL */
static const Rule *find_rule(EventKind call, int fd)
{
    const Rule *found = NULL;

    for (int i = 0; i < MAX_RULES; i++) {
        const Rule *rule = &sim.file.rules[i];
        int first = MAX(rule->nth, 1);
        int past;

        if (!rule_matches(rule, call, fd)) {
            continue;
        }
        past = ++sim.matched[i] - first;
        if (!found && past >= 0 && past < MAX(rule->times, 1)) {
            sim.followed[i]++;
            found = rule;
        }
    }
    return found;
}

/*
 * Begins every call: takes the lock, and returns the error that the call is
 * to fail with, or 0; in that case *@rule may still be one about a count.
 */
static int call_begin(EventKind call, int fd, const Rule **rule)
{
    Description *d = description(fd);

    pthread_mutex_lock(&sim.lock);
    *rule = NULL;
    if (!event_loop_in_worker()) {
        complain("system call %d outside the thread pool", call);
    }
    if (++sim.calls > MAX_CALLS) {
        complain("more than %d system calls", MAX_CALLS);
        return EIO;
    }
    if (fd != NO_FD && (!d || !d->open)) {
        complain("system call %d on descriptor %d", call, fd);
        return EBADF;
    }
    *rule = find_rule(call, fd);
    return *rule ? (*rule)->err : 0;
}

static void count_interruptions(const Event *event)
{
    int *times = &sim.interrupted[event->kind].times;

    if (event->result != -EINTR ||
        event->offset != sim.interrupted[event->kind].offset) {
        *times = 0;
    }
    sim.interrupted[event->kind].offset = event->offset;
    *times += event->result == -EINTR;
    if (*times > MAX_EINTR) {
        complain("system call %d repeated too often after EINTR",
                 event->kind);
    }
}

/* Ends every call: gives back the lock and returns as the C library does */
static int64_t call_end(Event event)
{
    count_interruptions(&event);
    record(event);
    pthread_mutex_unlock(&sim.lock);
    if (event.result < 0) {
        errno = -event.result;
        return -1;
    }
    return event.result;
}

static void check_allocation(EventKind call, int fd, int64_t offset,
                             int64_t bytes)
{
    if (fd != CALLER_FD) {
        complain("fallocate not on the caller's descriptor");
    }
    if (offset != sim.file.offset || bytes != sim.file.bytes) {
        complain("fallocate of %" PRId64 "+%" PRId64, offset, bytes);
    }
    if (sim.resized || sim.written->len) {
        complain("fallocate after another method");
    }
    if (call == SYS_OFFLOAD && (offset | bytes) % simulated_file_block()) {
        complain("offload of a part of a block");
    }
}

static int allocate(EventKind call, int fd, int64_t offset, int64_t bytes)
{
    const Rule *rule;
    int err = call_begin(call, fd, &rule);

    check_allocation(call, fd, offset, bytes);
    return call_end((Event) { .kind = call, .fd = fd, .offset = offset,
                              .bytes = bytes, .result = -err });
}

int __wrap_fallocate64(int fd, int mode, off_t offset, off_t bytes)
{
    if (mode != 0 && mode != MODE_WRITE_ZEROES) {
        complain("fallocate with mode 0x%x", mode);
    }
    return allocate(mode ? SYS_OFFLOAD : SYS_NATIVE, fd, offset, bytes);
}

int __wrap_posix_fallocate64(int fd, off_t offset, off_t bytes)
{
    return allocate(SYS_NATIVE, fd, offset, bytes) < 0 ? errno : 0;
}

int __wrap_ftruncate64(int fd, off_t length)
{
    const Rule *rule;
    int err = call_begin(SYS_FTRUNCATE, fd, &rule);

    if (fd != CALLER_FD || length != sim.end || sim.resized) {
        complain("ftruncate of descriptor %d to %" PRId64, fd,
                 (int64_t)length);
    }
    sim.resized = !err;
    return call_end((Event) { .kind = SYS_FTRUNCATE, .fd = fd,
                              .bytes = length, .result = -err });
}

int __wrap_fstat64(int fd, struct stat *st)
{
    const Rule *rule;
    int err = call_begin(SYS_FSTAT, fd, &rule);

    memset(st, 0, sizeof(*st));
    st->st_mode = S_IFREG | 0644;
    st->st_blksize = err ? 0 : sim.file.st_blksize;
    return call_end((Event) { .kind = SYS_FSTAT, .fd = fd, .result = -err });
}

int __wrap_fstatfs64(int fd, struct statfs *fs)
{
    const Rule *rule;
    int err = call_begin(SYS_FSTATFS, fd, &rule);

    memset(fs, 0, sizeof(*fs));
    fs->f_type = sim.file.f_type;
    return call_end((Event) { .kind = SYS_FSTATFS, .fd = fd, .result = -err });
}

int __wrap_ioctl(int fd, unsigned long request, ...)
{
    const Rule *rule;
    int err = call_begin(SYS_IOCTL, fd, &rule);
    va_list args;

    if (request != FS_IOC_GETFLAGS) {
        complain("ioctl 0x%lx", request);
    }
    va_start(args, request);
    if (!err) {
        *va_arg(args, int *) = sim.file.inode_flags;
    }
    va_end(args);
    return call_end((Event) { .kind = SYS_IOCTL, .fd = fd, .result = -err });
}

int __wrap_fcntl64(int fd, int command, ...)
{
    const Rule *rule;
    int err = call_begin(SYS_FCNTL, fd, &rule);
    int flags = O_RDWR;

    if (command != F_GETFL) {
        complain("fcntl command %d", command);
    }
    if (!err && description(fd)->direct) {
        flags |= O_DIRECT;
    }
    return call_end((Event) { .kind = SYS_FCNTL, .fd = fd,
                              .result = err ? -err : flags });
}

int __wrap_open64(const char *path, int flags, ...)
{
    const Rule *rule;
    int err = call_begin(SYS_OPEN, CALLER_FD, &rule);
    int usual = O_RDWR | O_CLOEXEC;

    if (strcmp(path, "/proc/self/fd/" G_STRINGIFY(CALLER_FD))) {
        complain("open of %s", path);
    }
    /* The caller's description has one of the two kinds already */
    if (flags != (sim.caller.direct ? usual : usual | O_DIRECT)) {
        complain("open with flags 0x%x", flags);
    }
    if (sim.second.open) {
        complain("more than one description opened");
    }
    if (!err) {
        sim.second.open = true;
        sim.second.direct = flags & O_DIRECT;
    }
    return call_end((Event) { .kind = SYS_OPEN, .fd = CALLER_FD,
                              .result = err ? -err : SECOND_FD });
}

void *__wrap_mmap64(void *hint, size_t bytes, int protection, int flags,
                    int fd, off_t offset)
{
    const Rule *rule;
    int err = call_begin(SYS_MMAP, NO_FD, &rule);
    void *start = NULL;

    if (protection != PROT_READ) {
        complain("mmap with protection 0x%x", protection);
    }
    if (hint || flags != (MAP_PRIVATE | MAP_ANONYMOUS) || fd != -1 || offset) {
        complain("mmap with flags 0x%x, descriptor %d", flags, fd);
    }
    if (!err) {
        start = host_map(bytes, protection);
    }
    return (void *)(uintptr_t)call_end(
        (Event) { .kind = SYS_MMAP, .bytes = bytes,
                  .result = err ? -err : (uintptr_t)start });
}

int qemu_madvise(void *start, size_t bytes, int advice)
{
    const Rule *rule;
    int err = call_begin(SYS_MADVISE, NO_FD, &rule);

    if (advice != QEMU_MADV_HUGEPAGE) {
        complain("madvise with advice %d", advice);
    }
    host_advise_huge(start, bytes);
    return call_end((Event) { .kind = SYS_MADVISE, .bytes = bytes,
                              .result = -err });
}

int __wrap_munmap(void *start, size_t bytes)
{
    const Rule *rule;
    int err = call_begin(SYS_MUNMAP, NO_FD, &rule);

    return call_end((Event) { .kind = SYS_MUNMAP, .bytes = bytes,
                              .result = -(err ?: host_unmap(start, bytes)) });
}

static int64_t check_vectors(const struct iovec *iov, int n)
{
    int64_t bytes = 0;

    if (n > IOV_MAX) {
        complain("%d vectors in one write", n);
    }
    for (int i = 0; i < n; i++) {
        bytes += iov[i].iov_len;
    }
    host_check_vectors(iov, n);
    return bytes;
}

static bool is_direct_refused(const Description *d, const struct iovec *iov,
                              int n, int64_t offset)
{
    int64_t combined = offset;

    for (int i = 0; i < n; i++) {
        combined |= (uintptr_t)iov[i].iov_base | iov[i].iov_len;
    }
    return d->direct && combined % sim.file.direct_alignment;
}

static void write_range(Description *d, int64_t start, int64_t end)
{
    if (!sim.resized) {
        complain("write before the length was set");
    }
    if (start < sim.file.offset || end > sim.end) {
        complain("write of %" PRId64 "..%" PRId64 " outside the range",
                 start, end);
    }
    if (start == end) {
        return;
    }
    if (ranges_add(sim.written, start, end)) {
        complain("write of %" PRId64 "..%" PRId64 " again", start, end);
    }
    ranges_add(d->direct ? sim.written_direct : sim.written_buffered, start,
               end);
    d->dirty = true;
    sim.caller_synced = false;
}

ssize_t __wrap_pwritev64(int fd, const struct iovec *iov, int n, off_t offset)
{
    Description *d = description(fd);
    const Rule *rule;
    int err = call_begin(SYS_WRITE, fd, &rule);
    int64_t bytes = check_vectors(iov, n);
    int64_t result = bytes;

    if (bytes <= 0) {
        complain("write of nothing");
    }
    if (!err && is_direct_refused(d, iov, n, offset)) {
        err = EINVAL;
    }
    if (err) {
        result = -err;
    } else if (rule) {
        result = rule->count < 0 ? MAX(bytes + rule->count, 1)
                                 : MIN(bytes, rule->count);
    }
    if (result >= 0) {
        write_range(d, offset, offset + result);
    }
    return call_end((Event) { .kind = SYS_WRITE, .fd = fd, .offset = offset,
                              .bytes = bytes, .result = result,
                              .direct = d && d->direct });
}

ssize_t __wrap_pwrite64(int fd, const void *data, size_t bytes, off_t offset)
{
    struct iovec iov = { (void *)data, bytes };

    return __wrap_pwritev64(fd, &iov, 1, offset);
}

int __wrap_fsync(int fd)
{
    const Rule *rule;
    int err = call_begin(SYS_FSYNC, fd, &rule);

    if (!err) {
        description(fd)->dirty = false;
        sim.caller_synced |= fd == CALLER_FD;
    }
    return call_end((Event) { .kind = SYS_FSYNC, .fd = fd, .result = -err });
}

int __wrap_close(int fd)
{
    const Rule *rule;
    int err = call_begin(SYS_CLOSE, fd, &rule);
    Description *d = description(fd);

    /* It is closed even if this fails */
    if (d) {
        sim.closed_dirty |= d->dirty;
        d->dirty = d->open = false;
    }
    return call_end((Event) { .kind = SYS_CLOSE, .fd = fd, .result = -err });
}

static int64_t forbidden(const char *name)
{
    pthread_mutex_lock(&sim.lock);
    sim.forbidden_calls++;
    pthread_mutex_unlock(&sim.lock);
    complain("%s called", name);
    errno = ENOSYS;
    return -1;
}

/* Reads, the file position, and what would disturb other users' I/O */
#define FORBIDDEN(name)                 \
    int64_t __wrap_##name(void)         \
    {                                   \
        return forbidden(#name);        \
    }

FORBIDDEN(read)
FORBIDDEN(readv)
FORBIDDEN(pread64)
FORBIDDEN(preadv64)
FORBIDDEN(write)
FORBIDDEN(writev)
FORBIDDEN(lseek64)
FORBIDDEN(posix_fadvise64)
FORBIDDEN(sync_file_range)

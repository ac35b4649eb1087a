/*
 * Preallocation of regular files
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Two parts: which method allocates the range (the tables at the end), and
 * the zero writer, the method that works everywhere.
 *
 * The zero writer replaces two slower loops.  posix_fallocate() of glibc
 * writes one byte per 4 KiB where the file system has no fallocate(2):
 * 262,144 requests for 1 GiB.  64 KiB per write(), one at a time through the
 * page cache, makes 16,384.  This one first sets the final length, so that
 * writes inside it can run in parallel and the file system can lay out
 * contiguously, and then keeps two pwritev() of 16 MiB in flight: 64 calls for
 * 1 GiB.
 */

#include "qemu/osdep.h"
#include "qapi/error.h"
#include "qemu/coroutine.h"
#include "qemu/cutils.h"
#include "qemu/host-utils.h"
#include "qemu/madvise.h"
#include "qemu/units.h"
#include "block/aio.h"
#include "block/aio_task.h"
#include "block/file-prealloc.h"
#include "block/thread-pool.h"
#include "trace.h"
#include <sys/mman.h>
#ifdef CONFIG_LINUX
#include <sys/ioctl.h>
#include <sys/vfs.h>
#include <linux/fs.h>
#include <linux/magic.h>
#endif

#if defined(CONFIG_FALLOCATE) && defined(CONFIG_LINUX) && \
    !defined(FALLOC_FL_WRITE_ZEROES)
#define FALLOC_FL_WRITE_ZEROES 0x80     /* Linux 6.17, not in older headers */
#endif

/*
 * All vectors of a write point to the same zeros, so that these serve writes
 * of any size.  1 MiB instead of 64 KiB makes no difference.
 */
#define ZERO_BUFFER_SIZE (64 * KiB)

/* Of the architectures that have 4 KiB pages */
#define HUGE_PAGE_SIZE (2 * MiB)

/*
 * A blocking O_DIRECT write holds the inode lock, so that many small ones
 * queue up behind each other, but the kernel splits one large vector into
 * parallel requests.  Measured against a loop of 64 KiB writes, on FUSE with
 * 1 ms per request, ext4 and xfs on virtio-blk: 31, 1.4 and 1.3 times as fast
 * with 2 writes of 16 MiB, 10, 1.1 and 1.2 times with 8 of 1 MiB.
 */
#define WRITE_SIZE (16 * MiB)
#define MAX_IN_FLIGHT 2

/* Shorter ranges do not repay the opening of a second description */
#define DIRECT_MIN (1 * MiB)

/* Pool workers block signals: EINTR is the file system's, and may never end */
#define EINTR_RETRIES 64

QEMU_BUILD_BUG_ON(WRITE_SIZE / ZERO_BUFFER_SIZE > IOV_MAX);

#define RETRY_EINTR(call)                                               \
    ({                                                                  \
        int retries_ = EINTR_RETRIES;                                   \
        ssize_t ret_;                                                   \
        do {                                                            \
            ret_ = (call);                                              \
        } while (ret_ < 0 && errno == EINTR && retries_-- > 0);         \
        ret_ < 0 ? -errno : ret_;                                       \
    })

typedef struct FilePrealloc {
    int fd;
    int64_t offset;
    int64_t bytes;
    int fallocate_mode;
    const char *method;     /* what was tried last */
    const char *failed;     /* and what failed of it, for the user */
} FilePrealloc;

typedef struct ZeroWriter {
    FilePrealloc *p;
    bool may_open;          /* whether a second description is harmless */
    int second_fd;          /* the second description, or -errno */
    int direct_fd;          /* the description with O_DIRECT, if any */
    int buffered_fd;        /* the one without, if any */
    bool direct_refused;    /* a direct write of whole blocks was refused */
    int64_t align;          /* size of these blocks */
    void *map;
    void *zeros;            /* ZERO_BUFFER_SIZE bytes, in @map */
    int max_in_flight;
    int in_flight;
    bool busy[MAX_IN_FLIGHT];
    int64_t done;
    int percent;
    int ret;
} ZeroWriter;

typedef struct ZeroWrite {
    AioTask task;
    ZeroWriter *w;
    bool *busy;             /* true until the write has ended */
    int fd;
    int64_t offset;
    int64_t bytes;
} ZeroWrite;

static int coroutine_fn file_prealloc_submit(ThreadPoolFunc *func, void *arg)
{
    return thread_pool_submit_co(func, arg);
}

/*
 * The blocks that a method may own: never less than a page, since a page that
 * is written both buffered and direct can make a later fsync() fail with EIO.
 */
static int64_t block_size(int fd)
{
    int64_t size = MAX(4 * KiB, (int64_t)qemu_real_host_page_size());
    struct stat st;

    /* Network file systems and ZFS tell their unit of I/O here */
    if (fstat(fd, &st) == 0 && is_power_of_2(st.st_blksize) &&
        st.st_blksize <= 1 * MiB) {
        size = MAX(size, st.st_blksize);
    }
    return size;
}

static int fallocate_once(const FilePrealloc *p)
{
#ifdef CONFIG_FALLOCATE
    return fallocate(p->fd, p->fallocate_mode, p->offset, p->bytes);
#elif defined(CONFIG_POSIX_FALLOCATE)
    /* Returns the error.  FreeBSD and NetBSD: EINVAL means not supported. */
    errno = posix_fallocate(p->fd, p->offset, p->bytes);
    return errno ? -1 : 0;
#else
    errno = ENOTSUP;
    return -1;
#endif
}

static int fallocate_worker(void *opaque)
{
    FilePrealloc *p = opaque;

    return RETRY_EINTR(fallocate_once(p));
}

static int coroutine_fn native_allocate(FilePrealloc *p)
{
    p->failed = "Could not preallocate new data";
    p->fallocate_mode = 0;
    return file_prealloc_submit(fallocate_worker, p);
}

#ifdef FALLOC_FL_WRITE_ZEROES
static int offload_worker(void *opaque)
{
    FilePrealloc *p = opaque;

    /* Only whole blocks become written extents */
    if ((p->offset | p->bytes) & (block_size(p->fd) - 1)) {
        return -EINVAL;
    }
    return fallocate_worker(p);
}

static int coroutine_fn offload_allocate(FilePrealloc *p)
{
    p->failed = "Could not preallocate new data";
    p->fallocate_mode = FALLOC_FL_WRITE_ZEROES;
    return file_prealloc_submit(offload_worker, p);
}
#endif

#if defined(CONFIG_LINUX) && defined(O_DIRECT)
/*
 * O_DIRECT belongs to the open file description.  Setting it with fcntl(2)
 * makes unaligned requests of the guest, and of everyone who has a duplicate
 * of the descriptor, fail with EINVAL.  So the file is opened a second time:
 * with O_DIRECT if the caller's description has none, without if it has.
 */
static void open_descriptions(ZeroWriter *w)
{
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", w->p->fd);
    bool direct = fcntl(w->p->fd, F_GETFL) & O_DIRECT;
    int flags = O_RDWR | O_CLOEXEC | (direct ? 0 : O_DIRECT);

    if (w->may_open && (direct || w->p->bytes >= DIRECT_MIN)) {
        w->second_fd = RETRY_EINTR(open(path, flags));
    }
    w->direct_fd = direct ? w->p->fd : w->second_fd;
    w->buffered_fd = direct ? w->second_fd : w->p->fd;
}
#else
static void open_descriptions(ZeroWriter *w)
{
    w->buffered_fd = w->p->fd;
}
#endif

/*
 * Memory that is only ever read costs none: the kernel maps its zero page.
 * It should be the huge one, because direct I/O makes a segment of each piece
 * that is physically contiguous.  Measured against a loop of 64 KiB writes,
 * ext4 on virtio-blk: 1.4 times as fast with segments of 64 KiB, 0.8 times
 * with those of 4 KiB.
 */
static int map_zeros(ZeroWriter *w)
{
    w->map = mmap(NULL, 2 * HUGE_PAGE_SIZE, PROT_READ,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w->map == MAP_FAILED) {
        return -errno;
    }
    w->zeros = QEMU_ALIGN_PTR_UP(w->map, HUGE_PAGE_SIZE);
    qemu_madvise(w->zeros, HUGE_PAGE_SIZE, QEMU_MADV_HUGEPAGE);

    /* FUSE splits a buffered write where a page has to be faulted in */
    assert(buffer_is_zero(w->zeros, ZERO_BUFFER_SIZE));
    return 0;
}

/*
 * Ext2, ext3, and ext4 without extents look for each block on its own, so
 * that two writes at once take turns.  Measured for 768 MiB on ext4 without
 * extents: 4 pieces with one write in flight, as with a loop of 64 KiB
 * writes, but 13 to 19 with two, which were 10% faster.
 */
static bool maps_single_blocks(int fd)
{
#if defined(CONFIG_LINUX) && defined(FS_IOC_GETFLAGS) && defined(FS_EXTENT_FL)
    struct statfs fs;
    int flags;

    return fstatfs(fd, &fs) == 0 && fs.f_type == EXT4_SUPER_MAGIC &&
           ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && !(flags & FS_EXTENT_FL);
#else
    return false;
#endif
}

static int zero_writer_open_worker(void *opaque)
{
    ZeroWriter *w = opaque;
    FilePrealloc *p = w->p;
    int ret;

    ret = RETRY_EINTR(ftruncate(p->fd, p->offset + p->bytes));
    if (ret < 0) {
        p->failed = "Could not resize file";
        return ret;
    }
    ret = map_zeros(w);
    if (ret < 0) {
        p->failed = "Could not write zeros for preallocation";
        return ret;
    }
    w->align = block_size(p->fd);
    w->max_in_flight = maps_single_blocks(p->fd) ? 1 : MAX_IN_FLIGHT;
    open_descriptions(w);
    return 0;
}

static ssize_t write_zeros(const ZeroWrite *t)
{
#ifdef CONFIG_PREADV
    struct iovec iov[WRITE_SIZE / ZERO_BUFFER_SIZE];
    int64_t bytes = t->bytes;
    int n;

    for (n = 0; bytes > 0; n++) {
        assert(n < ARRAY_SIZE(iov));
        iov[n].iov_base = t->w->zeros;
        iov[n].iov_len = MIN(bytes, ZERO_BUFFER_SIZE);
        bytes -= iov[n].iov_len;
    }
    return pwritev(t->fd, iov, n, t->offset);
#else
    return pwrite(t->fd, t->w->zeros, MIN(t->bytes, ZERO_BUFFER_SIZE),
                  t->offset);
#endif
}

/* On return, @offset and @bytes of the ZeroWrite are what is left to write */
static int zero_write_worker(void *opaque)
{
    ZeroWrite *t = opaque;

    while (t->bytes > 0) {
        ssize_t ret = RETRY_EINTR(write_zeros(t));

        if (ret <= 0) {
            return ret ?: -ENOSPC;  /* no progress and no error: full */
        }
        t->offset += ret;
        t->bytes -= ret;
    }
    return 0;
}

/* Progress for people, at most once per percent: create and resize have none */
static void zero_writer_progress(ZeroWriter *w, int64_t bytes)
{
    int percent = 100;

    w->done += bytes;
    if (w->done < w->p->bytes) {
        percent = w->done / DIV_ROUND_UP(w->p->bytes, 100);
    }
    if (percent > w->percent) {
        w->percent = percent;
        trace_file_prealloc_progress(w->p->fd, percent, w->done);
    }
}

/*
 * A direct write that is not allowed here, or not of this alignment, is
 * repeated through the page cache.  If it was one of whole blocks, so is the
 * rest.
 */
static bool zero_write_retry_buffered(ZeroWrite *t)
{
    ZeroWriter *w = t->w;

    if (t->fd != w->direct_fd || w->buffered_fd < 0) {
        return false;
    }
    trace_file_prealloc_direct_refused(w->p->fd, t->offset, t->bytes);
    w->direct_refused |= !((t->offset | t->bytes) & (w->align - 1));
    t->fd = w->buffered_fd;
    return true;
}

static int coroutine_fn zero_write_co(AioTask *task)
{
    ZeroWrite *t = container_of(task, ZeroWrite, task);
    ZeroWriter *w = t->w;
    int64_t bytes = t->bytes;
    int ret;

    w->in_flight++;
    trace_file_prealloc_write(w->p->fd, t->offset, t->bytes,
                              t->fd == w->direct_fd, w->in_flight);
    ret = file_prealloc_submit(zero_write_worker, t);
    if (ret == -EINVAL && zero_write_retry_buffered(t)) {
        ret = file_prealloc_submit(zero_write_worker, t);
    }
    w->in_flight--;
    *t->busy = false;
    if (ret == 0) {
        zero_writer_progress(w, bytes);
    }
    return ret;
}

/*
 * The next write, from @offset on.
 *
 * Direct writes cover whole blocks.  What is left at both ends goes the way
 * of the caller's own I/O: the first block may hold old data that is being
 * written right now, and a page read into the cache before that would later
 * overwrite it.
 */
static ZeroWrite *zero_writer_next(ZeroWriter *w, int64_t offset)
{
    int64_t left = w->p->offset + w->p->bytes - offset;
    int64_t bytes = MIN(left, WRITE_SIZE - offset % WRITE_SIZE);
    int64_t unaligned = offset % w->align;
    bool direct = w->direct_fd >= 0 && !w->direct_refused;
    ZeroWrite *t = g_new(ZeroWrite, 1);

    *t = (ZeroWrite) {
        .task.func = zero_write_co,
        .w = w,
        .fd = direct ? w->direct_fd : w->buffered_fd,
        .offset = offset,
        .bytes = bytes,
    };
    if (direct && unaligned) {
        t->bytes = MIN(bytes, w->align - unaligned);
        t->fd = w->p->fd;
    } else if (direct && bytes < w->align) {
        t->fd = w->p->fd;
    } else if (direct) {
        t->bytes -= bytes % w->align;
    }
    return t;
}

/*
 * Waits for the oldest write, not for any: file systems that allocate when
 * they are written to lay the file out in the order of the writes, and one
 * slow write should not let the others run away from it.
 */
static int coroutine_fn zero_writer_run(ZeroWriter *w)
{
    AioTaskPool *pool = aio_task_pool_new(w->max_in_flight);
    int64_t offset = w->p->offset;
    int64_t end = offset + w->p->bytes;
    int oldest = 0;
    int ret;

    while (offset < end) {
        ZeroWrite *t;

        while (w->busy[oldest]) {
            aio_task_pool_wait_one(pool);
        }
        if (aio_task_pool_status(pool) < 0) {
            break;
        }
        t = zero_writer_next(w, offset);
        offset += t->bytes;
        t->busy = &w->busy[oldest];
        *t->busy = true;
        oldest = (oldest + 1) % w->max_in_flight;
        aio_task_pool_start_task(pool, &t->task);
    }

    aio_task_pool_wait_all(pool);
    ret = aio_task_pool_status(pool);
    aio_task_pool_free(pool);
    if (ret < 0) {
        w->p->failed = "Could not write zeros for preallocation";
    }
    return ret;
}

/*
 * NFS and FUSE keep write errors with the description that wrote, and may
 * tell them at close only.  After an error (@ret) closing is all there is.
 */
static int zero_writer_close_worker(void *opaque)
{
    ZeroWriter *w = opaque;
    int ret = w->ret;
    bool sync = ret == 0;

    munmap(w->map, 2 * HUGE_PAGE_SIZE);
    if (w->second_fd >= 0) {
        if (sync) {
            ret = RETRY_EINTR(fsync(w->second_fd));
        }
        /* EINTR: closed all the same, and fsync() has seen the errors */
        if (close(w->second_fd) < 0 && errno != EINTR && ret == 0) {
            ret = -errno;
        }
    }
    if (sync && ret == 0) {
        ret = RETRY_EINTR(fsync(w->p->fd));
    }
    if (sync && ret < 0) {
        w->p->failed = "Could not flush file to disk";
    }
    return ret;
}

static int coroutine_fn zero_writer_allocate(FilePrealloc *p)
{
    ZeroWriter w = {
        .p = p,
        /* Closing a second description drops POSIX locks, but not OFD locks */
        .may_open = qemu_has_ofd_lock(),
        .second_fd = -1,
        .direct_fd = -1,
        .buffered_fd = -1,
    };

    w.ret = file_prealloc_submit(zero_writer_open_worker, &w);
    if (w.ret < 0) {
        return w.ret;
    }
    trace_file_prealloc_writer(p->fd, w.direct_fd, w.buffered_fd, w.align,
                               WRITE_SIZE, w.max_in_flight);

    w.ret = zero_writer_run(&w);
    return file_prealloc_submit(zero_writer_close_worker, &w);
}

/* Fastest first */
static const struct {
    FilePreallocMethod method;
    const char *name;
    int coroutine_fn (*allocate)(FilePrealloc *p);
} methods_by_speed[] = {
#ifdef FALLOC_FL_WRITE_ZEROES
    { FILE_PREALLOC_OFFLOAD, "write-zeroes", offload_allocate },
#endif
    { FILE_PREALLOC_NATIVE, "fallocate", native_allocate },
    { FILE_PREALLOC_WRITE, "zero-writer", zero_writer_allocate },
};

/*
 * Answers of a method other than the zero writer that mean "try the next".
 * Lasting: the file system will not answer otherwise next time.
 */
static const struct {
    int err;
    bool lasting;
} refusals[] = {
    { EOPNOTSUPP, true },
    { ENOTSUP, true },
    { ENOSYS, true },
    { ENODEV, true },
    { ENOTTY, true },
    /* Of a valid call; if meant for the file, the zero writer meets it too */
    { EINVAL, false },
    { EPERM, false },
    /* After EINTR_RETRIES */
    { EINTR, false },
};

static bool is_refusal(int ret, bool *lasting)
{
    for (int i = 0; i < ARRAY_SIZE(refusals); i++) {
        if (ret == -refusals[i].err) {
            *lasting = refusals[i].lasting;
            return true;
        }
    }
    return false;
}

/* Returns the method that worked, or -errno: -ENOTSUP if all were refused */
static int coroutine_fn try_methods(FilePrealloc *p, unsigned int methods,
                                    unsigned int *refused)
{
    int ret = -ENOTSUP;

    for (int i = 0; i < ARRAY_SIZE(methods_by_speed); i++) {
        FilePreallocMethod method = methods_by_speed[i].method;
        bool lasting;

        if (!(method & methods & ~*refused)) {
            continue;
        }
        p->method = methods_by_speed[i].name;
        ret = methods_by_speed[i].allocate(p);
        if (ret == 0) {
            return method;
        }
        if (method == FILE_PREALLOC_WRITE || !is_refusal(ret, &lasting)) {
            return ret;
        }
        trace_file_prealloc_refused(p->fd, p->method, -ret);
        *refused |= lasting ? method : 0;
    }
    return ret == -EINTR ? ret : -ENOTSUP;
}

int coroutine_fn file_co_preallocate(int fd, int64_t offset, int64_t bytes,
                                     unsigned int methods,
                                     unsigned int *refused, Error **errp)
{
    FilePrealloc p = {
        .fd = fd,
        .offset = offset,
        .bytes = bytes,
        .method = "none",
        .failed = "Could not preallocate new data",
    };
    unsigned int dummy = 0;
    int64_t start = g_get_monotonic_time();
    int ret;

    assert(offset >= 0 && bytes >= 0 && bytes <= INT64_MAX - offset);

    if (bytes == 0) {
        return 0;
    }

    trace_file_prealloc_start(fd, offset, bytes, methods);
    ret = try_methods(&p, methods, refused ?: &dummy);
    trace_file_prealloc_done(fd, p.method, MIN(ret, 0), bytes,
                             g_get_monotonic_time() - start);
    if (ret < 0) {
        error_setg_errno(errp, -ret, "%s", p.failed);
    }
    return ret;
}

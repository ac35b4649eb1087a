/*
 * Unit tests of block/file-prealloc.c
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Every row of a table is a test of its own.  A row says what the call and
 * the file are like and what must come out; checks.c adds what must hold in
 * every case.  An argument is a pattern of test names (see cmocka).
 */

#include "qemu/osdep.h"
#include <setjmp.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <cmocka.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include "qemu/units.h"
#include "checks.h"
#include "util.h"

#define OFFLOAD FILE_PREALLOC_OFFLOAD
#define NATIVE FILE_PREALLOC_NATIVE
#define WRITE FILE_PREALLOC_WRITE

/* Neither end on a block boundary, and more writes than are in flight */
#define ODD_OFFSET 4608
#define ODD_SIZE (96 * MiB + 4097)

/* Whole blocks, and more writes than are in flight */
#define EVEN_SIZE (96 * MiB)

static GPtrArray *cases;

static void add(const Case *c, const char *format, ...) G_GNUC_PRINTF(2, 3);
static void add(const Case *c, const char *format, ...)
{
    Case *copy = g_memdup2(c, sizeof(*c));
    va_list args;

    va_start(args, format);
    copy->name = g_strdup_vprintf(format, args);
    va_end(args);
    g_ptr_array_add(cases, copy);
}

static void free_case(void *opaque)
{
    Case *c = opaque;

    g_free((char *)c->name);
    g_free(c);
}

/* Fixed cases */

static const Case fixed_cases[] = {
    { "nothing to do", 5, 0, ALL_METHODS },
    { "nothing to do, and nothing allowed", 5, 0, .no_methods = true },
    { "nothing allowed", 0, EVEN_SIZE, .no_methods = true,
      .result = -ENOTSUP, .error = NO_ALLOCATION },

    /* Which method */
    { "auto takes offload", 0, EVEN_SIZE, ALL_METHODS, .result = OFFLOAD },
    { "offload only for whole blocks: offset", 512, EVEN_SIZE, ALL_METHODS,
      .result = NATIVE },
    { "offload only for whole blocks: size", 4096, ODD_SIZE, ALL_METHODS,
      .result = NATIVE },
    { "offload only for whole blocks of the file system", 4096, EVEN_SIZE,
      ALL_METHODS, .st_blksize = 64 * KiB, .result = NATIVE },
    { "offload of blocks of the file system", 64 * KiB, EVEN_SIZE,
      ALL_METHODS, .st_blksize = 64 * KiB, .result = OFFLOAD },
    { "offload alone, not of whole blocks", 1, 4096, OFFLOAD,
      .result = -ENOTSUP, .error = NO_ALLOCATION },
    { "falloc is exactly one fallocate", 1, ODD_SIZE, NATIVE | WRITE,
      .result = NATIVE },
    { "different refusals, one lasting", 0, EVEN_SIZE, ALL_METHODS,
      .rules = { { SYS_OFFLOAD, .err = EOPNOTSUPP },
                 { SYS_NATIVE, .err = EINVAL } },
      .newly_refused = OFFLOAD },
    { "EINTR without end is not what refusal by the last method is",
      0, EVEN_SIZE, OFFLOAD | NATIVE,
      .rules = { { SYS_OFFLOAD, .times = FOREVER, .err = EINTR },
                 { SYS_NATIVE, .err = EOPNOTSUPP } },
      .result = -ENOTSUP, .error = NO_ALLOCATION, .newly_refused = NATIVE },
    { "refused by all, then no space", 0, EVEN_SIZE, ALL_METHODS,
      .rules = { { SYS_OFFLOAD, .err = EPERM },
                 { SYS_NATIVE, .err = ENOSYS },
                 { SYS_WRITE, .nth = 2, .err = ENOSPC } },
      .result = -ENOSPC, .error = NO_ZEROS, .newly_refused = NATIVE },
    { "a refusal in the zero writer is an error", 0, EVEN_SIZE, WRITE,
      .rules = { { SYS_FTRUNCATE, .err = EOPNOTSUPP } },
      .result = -EOPNOTSUPP, .error = NO_RESIZE },
    { "a caller who does not want to know", 0, EVEN_SIZE, ALL_METHODS,
      .forgetful = true,
      .rules = { { SYS_OFFLOAD, .err = EOPNOTSUPP },
                 { SYS_NATIVE, .err = EOPNOTSUPP } } },

    /* Large files, and the end of what is possible */
    { "4 GiB from 0", 0, 4 * GiB, .kinds = DIRECT },
    { "3 GiB and a byte beyond 2^32", 4 * GiB + 512, 3 * GiB + 1,
      .kinds = DIRECT | BUFFERED },
    { "2 GiB, direct caller", 5 * GiB + 1, 2 * GiB, .caller_is_direct = true,
      .kinds = DIRECT | BUFFERED },
    { "all of a file", 0, INT64_MAX, NATIVE, .result = NATIVE },
    { "the last byte", INT64_MAX - 1, 1, .kinds = BUFFERED },

    /* Memory for the zeros */
    { "no memory", 0, EVEN_SIZE,
      .rules = { { SYS_MMAP, .err = ENOMEM } },
      .result = -ENOMEM, .error = NO_ZEROS },
    { "no memory, direct caller", ODD_OFFSET, ODD_SIZE,
      .caller_is_direct = true,
      .rules = { { SYS_MMAP, .err = ENOMEM } },
      .result = -ENOMEM, .error = NO_ZEROS },
    { "refused by all, then no memory", 0, EVEN_SIZE, ALL_METHODS,
      .rules = { { SYS_OFFLOAD, .err = EOPNOTSUPP },
                 { SYS_NATIVE, .err = EOPNOTSUPP },
                 { SYS_MMAP, .err = ENOMEM } },
      .result = -ENOMEM, .error = NO_ZEROS,
      .newly_refused = OFFLOAD | NATIVE },
    { "no huge pages", ODD_OFFSET, ODD_SIZE,
      .rules = { { SYS_MADVISE, .times = FOREVER, .err = EINVAL } },
      .kinds = DIRECT | BUFFERED },

    /* Another description of the file */
    { "whole blocks are written direct", 4096, EVEN_SIZE, .kinds = DIRECT },
    { "head and tail are not", 4608, EVEN_SIZE, .kinds = DIRECT | BUFFERED },
    { "small range is written by the caller's", 4608, 4096,
      .kinds = BUFFERED },
    { "direct caller, whole blocks", 4096, EVEN_SIZE,
      .caller_is_direct = true, .kinds = DIRECT },
    { "direct caller, sectors", 4608, EVEN_SIZE,
      .caller_is_direct = true, .kinds = DIRECT },
    { "direct caller, bytes", 4607, EVEN_SIZE,
      .caller_is_direct = true, .kinds = DIRECT | BUFFERED },
    { "direct caller, sectors of a 4k disk", 4608, EVEN_SIZE,
      .caller_is_direct = true, .direct_alignment = 4096,
      .kinds = DIRECT | BUFFERED },
    { "direct caller, less than a block", 1, 100,
      .caller_is_direct = true, .kinds = BUFFERED },
    { "POSIX locks: buffered caller", ODD_OFFSET, ODD_SIZE,
      .no_ofd_lock = true, .kinds = BUFFERED },
    { "POSIX locks: direct caller", 4096, EVEN_SIZE, .no_ofd_lock = true,
      .caller_is_direct = true, .kinds = DIRECT },
    { "POSIX locks: direct caller, bytes", 1, 4095, .no_ofd_lock = true,
      .caller_is_direct = true, .result = -EINVAL, .error = NO_ZEROS },

    /* How many writes at once */
    { "ext3", 0, EVEN_SIZE, .f_type = EXT4_SUPER_MAGIC,
      .one_at_a_time = true },
    { "ext3, head and tail", ODD_OFFSET, ODD_SIZE,
      .f_type = EXT4_SUPER_MAGIC, .inode_flags = ~FS_EXTENT_FL,
      .one_at_a_time = true },
    { "ext3, direct caller", 4608, EVEN_SIZE, .f_type = EXT4_SUPER_MAGIC,
      .caller_is_direct = true, .one_at_a_time = true },
    { "ext3, write fails", 0, EVEN_SIZE, .f_type = EXT4_SUPER_MAGIC,
      .rules = { { SYS_WRITE, .nth = 2, .err = ENOSPC } },
      .one_at_a_time = true, .result = -ENOSPC, .error = NO_ZEROS },
    { "ext4", 0, EVEN_SIZE, .f_type = EXT4_SUPER_MAGIC,
      .inode_flags = FS_EXTENT_FL },
    { "ext4 does not tell", 0, EVEN_SIZE, .f_type = EXT4_SUPER_MAGIC,
      .rules = { { SYS_IOCTL, ON_CALLER, .err = ENOTTY } } },
    { "type of the file system is unknown", 0, EVEN_SIZE,
      .f_type = EXT4_SUPER_MAGIC,
      .rules = { { SYS_FSTATFS, ON_CALLER, .err = ENOSYS } } },
    { "xfs", 0, EVEN_SIZE, .f_type = XFS_SUPER_MAGIC },

    /* Direct writes refused */
    { "direct refused at once", 0, EVEN_SIZE,
      .rules = { { SYS_WRITE, ON_SECOND, .times = FOREVER, .err = EINVAL } },
      .kinds = BUFFERED },
    { "direct refused at once, lifo", 0, EVEN_SIZE, .order = POOL_LIFO,
      .rules = { { SYS_WRITE, ON_SECOND, .times = FOREVER, .err = EINVAL } },
      .kinds = BUFFERED },
    { "direct refused at once, odd range", ODD_OFFSET, ODD_SIZE,
      .rules = { { SYS_WRITE, ON_SECOND, .times = FOREVER, .err = EINVAL } },
      .kinds = BUFFERED },
    { "direct refused by the first write", 0, EVEN_SIZE,
      .rules = { { SYS_WRITE, ON_SECOND, .err = EINVAL } },
      .kinds = DIRECT | BUFFERED },
    { "direct refused by the second write", 0, EVEN_SIZE,
      .rules = { { SYS_WRITE, ON_SECOND, .nth = 2, .times = FOREVER,
                   .err = EINVAL } },
      .kinds = DIRECT | BUFFERED },
    { "direct refused by the third write", 0, EVEN_SIZE,
      .rules = { { SYS_WRITE, ON_SECOND, .nth = 3, .times = FOREVER,
                   .err = EINVAL } },
      .kinds = DIRECT | BUFFERED },
    { "direct refused to a direct caller", 0, EVEN_SIZE,
      .caller_is_direct = true,
      .rules = { { SYS_WRITE, ON_CALLER, .times = FOREVER, .err = EINVAL } },
      .kinds = BUFFERED },
    { "direct refused to a direct caller, odd range", ODD_OFFSET, ODD_SIZE,
      .caller_is_direct = true,
      .rules = { { SYS_WRITE, ON_CALLER, .times = FOREVER, .err = EINVAL } },
      .kinds = BUFFERED },
    { "direct refused after a short count", 0, EVEN_SIZE,
      .rules = { { SYS_WRITE, ON_SECOND, .count = 8192 },
                 { SYS_WRITE, ON_SECOND, .nth = 1, .times = FOREVER,
                   .err = EINVAL } },
      .kinds = DIRECT | BUFFERED },
    { "direct refused, buffered fails", 0, EVEN_SIZE,
      .rules = { { SYS_WRITE, ON_SECOND, .err = EINVAL },
                 { SYS_WRITE, ON_CALLER, .err = EIO } },
      .result = -EIO, .error = NO_ZEROS },
    { "direct refused, no other description", 0, EVEN_SIZE,
      .caller_is_direct = true,
      .rules = { { SYS_OPEN, .err = EMFILE },
                 { SYS_WRITE, .err = EINVAL } },
      .result = -EINVAL, .error = NO_ZEROS },
    { "EINVAL from a buffered write", 1, 4095,
      .rules = { { SYS_WRITE, .err = EINVAL } },
      .result = -EINVAL, .error = NO_ZEROS },
    { "other errors of a direct write are the result", 0, EVEN_SIZE,
      .rules = { { SYS_WRITE, ON_SECOND, .err = EIO } },
      .result = -EIO, .error = NO_ZEROS },

    /* Several errors: the first counts */
    { "two writes fail", 0, EVEN_SIZE,
      .rules = { { SYS_WRITE, .nth = 2, .err = EIO },
                 { SYS_WRITE, .nth = 3, .err = ENOSPC } },
      .result = -EIO, .error = NO_ZEROS },
    { "two writes fail, lifo", 0, EVEN_SIZE, .order = POOL_LIFO,
      .rules = { { SYS_WRITE, .nth = 1, .err = ENOSPC },
                 { SYS_WRITE, .nth = 2, .err = EIO } },
      .result = -ENOSPC, .error = NO_ZEROS },
    { "write and close fail", 0, EVEN_SIZE,
      .rules = { { SYS_WRITE, .nth = 2, .err = ENOSPC },
                 { SYS_CLOSE, .err = EIO } },
      .result = -ENOSPC, .error = NO_ZEROS },
    { "fsync and close fail", 0, EVEN_SIZE,
      .rules = { { SYS_FSYNC, ON_SECOND, .err = EDQUOT },
                 { SYS_CLOSE, .err = EIO } },
      .result = -EDQUOT, .error = NO_FLUSH },
    { "close is interrupted, which closes", 0, EVEN_SIZE,
      .rules = { { SYS_CLOSE, .err = EINTR } } },

    /* Progress is never made */
    { "every write is short by one byte", 0, EVEN_SIZE, .no_ofd_lock = true,
      .rules = { { SYS_WRITE, .times = FOREVER, .count = ALL_BUT(1) } } },
    { "one byte at a time", 3, 300,
      .rules = { { SYS_WRITE, .times = FOREVER, .count = 1 } } },
    { "one page at a time", 0, 8 * MiB,
      .rules = { { SYS_WRITE, .times = FOREVER, .count = 4096 } },
      .kinds = DIRECT },
    { "some bytes, then nothing", 0, EVEN_SIZE,
      .rules = { { SYS_WRITE, .count = 4096 },
                 { SYS_WRITE, .times = FOREVER, .count = 0 } },
      .result = -ENOSPC, .error = NO_ZEROS },

    /* Block sizes */
    { "st_blksize is unknown", ODD_OFFSET, ODD_SIZE,
      .rules = { { SYS_FSTAT, .times = FOREVER, .err = EIO } },
      .kinds = DIRECT | BUFFERED },
    { "pages of 64 KiB", ODD_OFFSET, ODD_SIZE, .page_size = 64 * KiB,
      .kinds = DIRECT | BUFFERED },
    { "pages of 64 KiB, direct caller", ODD_OFFSET, ODD_SIZE,
      .page_size = 64 * KiB, .caller_is_direct = true },
};

static void add_fixed_cases(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(fixed_cases); i++) {
        add(&fixed_cases[i], "%s", fixed_cases[i].name);
    }
}

/* Methods and errors */

typedef enum Verdict {
    LASTING,        /* the method is refused, and will be next time */
    PASSING,        /* the method is refused */
    FINAL,          /* the result */
} Verdict;

static const struct {
    int err;
    Verdict verdict;
} errors[] = {
    { EOPNOTSUPP, LASTING },
    { ENOSYS, LASTING },
    { ENODEV, LASTING },
    { ENOTTY, LASTING },
    { EINVAL, PASSING },
    { EPERM, PASSING },
    { EINTR, PASSING },
    { ENOSPC, FINAL },
    { EDQUOT, FINAL },
    { EFBIG, FINAL },
    { EIO, FINAL },
    { EROFS, FINAL },
    { ENOMEM, FINAL },
    { EBADF, FINAL },
    { ETXTBSY, FINAL },
    { EACCES, FINAL },
    { ENXIO, FINAL },
    { ESTALE, FINAL },
};

static EventKind call_of_method(unsigned int method)
{
    return method == OFFLOAD ? SYS_OFFLOAD : SYS_NATIVE;
}

/* Method by method, what the table of errors says */
static void expect_refusals(Case *c, unsigned int failing, int err,
                            Verdict verdict)
{
    c->result = -ENOTSUP;
    c->error = NO_ALLOCATION;
    for (unsigned int method = OFFLOAD; method <= WRITE; method <<= 1) {
        if (!(method & c->methods)) {
            continue;
        }
        if (!(method & failing)) {
            c->result = method;
            c->error = NULL;
            return;
        }
        if (verdict == FINAL) {
            c->result = -err;
            return;
        }
        c->newly_refused |= verdict == LASTING ? method : 0;
        c->result = err == EINTR ? -EINTR : -ENOTSUP;
    }
}

static void add_refusal(unsigned int methods, unsigned int failing, int err,
                        Verdict verdict)
{
    Case c = { .bytes = EVEN_SIZE, .methods = methods };
    int rule = 0;

    expect_refusals(&c, failing, err, verdict);
    for (unsigned int method = OFFLOAD; method <= NATIVE; method <<= 1) {
        /* Behind a final error a method is not reached */
        if ((method & failing) && !(verdict == FINAL && rule)) {
            c.rules[rule++] = (Rule) { call_of_method(method),
                                       .times = FOREVER, .err = err };
        }
    }
    add(&c, "methods 0x%x, 0x%x fail with %s", methods, failing,
        strerror(err));
}

static void add_refusals(void)
{
    for (unsigned int methods = 1; methods <= ALL_METHODS; methods++) {
        for (unsigned int failing = 1; failing <= 3; failing++) {
            /* One that is not reached cannot fail */
            if ((failing & ~methods) ||
                (failing == NATIVE && (methods & OFFLOAD))) {
                continue;
            }
            for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
                add_refusal(methods, failing, errors[i].err,
                            errors[i].verdict);
            }
        }
    }
}

static void add_remembered_refusals(void)
{
    for (unsigned int methods = 1; methods <= ALL_METHODS; methods++) {
        for (unsigned int refused = 0; refused <= ALL_METHODS; refused++) {
            unsigned int left = methods & ~refused;
            Case c = { .bytes = EVEN_SIZE, .methods = methods,
                       .refused = refused };

            if (left) {
                c.result = left & -left;
            } else {
                c.result = -ENOTSUP;
                c.error = NO_ALLOCATION;
            }
            add(&c, "methods 0x%x, 0x%x known to be refused", methods,
                refused);
        }
    }
}

/* Errors of the zero writer: none is a refusal */

static const struct {
    const char *name;
    Rule rule;
    const char *error;
} failures[] = {
    { "ftruncate", { SYS_FTRUNCATE, .times = FOREVER }, NO_RESIZE },
    { "mmap", { SYS_MMAP, .times = FOREVER }, NO_ZEROS },
    { "first write", { SYS_WRITE, .times = FOREVER }, NO_ZEROS },
    { "second write", { SYS_WRITE, .nth = 2, .times = FOREVER }, NO_ZEROS },
    { "third write", { SYS_WRITE, .nth = 3, .times = FOREVER }, NO_ZEROS },
    { "fsync, second description", { SYS_FSYNC, ON_SECOND, .times = FOREVER },
      NO_FLUSH },
    { "fsync, caller", { SYS_FSYNC, ON_CALLER, .times = FOREVER }, NO_FLUSH },
    { "close", { SYS_CLOSE, ON_SECOND }, NO_FLUSH },
};

static const PoolOrder orders[] = { POOL_FIFO, POOL_LIFO, POOL_RANDOM };

static void add_failure(size_t failure, size_t error, int order)
{
    int err = errors[error].err;
    Case c = {
        .bytes = EVEN_SIZE,
        .methods = WRITE,
        .order = orders[order],
        .seed = error,
        .rules = { failures[failure].rule },
        .result = -err,
        .error = failures[failure].error,
    };

    if (c.rules[0].call == SYS_CLOSE && err == EINTR) {
        return;
    }
    c.rules[0].err = err;
    add(&c, "%s fails with %s, order %d", failures[failure].name,
        strerror(err), order);
}

static void add_failures(void)
{
    for (size_t failure = 0; failure < ARRAY_SIZE(failures); failure++) {
        for (size_t error = 0; error < ARRAY_SIZE(errors); error++) {
            for (size_t order = 0; order < ARRAY_SIZE(orders); order++) {
                add_failure(failure, error, order);
            }
        }
    }
}

static void add_one_failed_write(void)
{
    static const int errs[] = { ENOSPC, EDQUOT, EIO, EFBIG, 0 };

    for (int nth = 1; nth <= 6; nth++) {
        for (size_t i = 0; i < ARRAY_SIZE(errs); i++) {
            Case c = {
                .bytes = EVEN_SIZE,
                .order = orders[nth % ARRAY_SIZE(orders)],
                .seed = i,
                .rules = { { SYS_WRITE, .nth = nth, .err = errs[i] } },
                .result = errs[i] ? -errs[i] : -ENOSPC,
                .error = NO_ZEROS,
            };

            add(&c, "only write %d fails: %s", nth,
                errs[i] ? strerror(errs[i]) : "0 bytes");
        }
    }
}

/* A second description that cannot be had is done without */
static void add_refused_opens(void)
{
    static const int errs[] = { ENOENT, EACCES, EINVAL, ELOOP, EMFILE,
                                ENFILE, EPERM, ETXTBSY, EINTR };

    for (size_t i = 0; i < ARRAY_SIZE(errs); i++) {
        Rule rule = { SYS_OPEN, .times = FOREVER, .err = errs[i] };
        Case buffered = { .offset = ODD_OFFSET, .bytes = ODD_SIZE,
                          .rules = { rule }, .kinds = BUFFERED };
        Case direct = { .offset = 4096, .bytes = EVEN_SIZE,
                        .caller_is_direct = true,
                        .rules = { rule }, .kinds = DIRECT };
        Case bytes = { .offset = 1, .bytes = EVEN_SIZE,
                       .caller_is_direct = true,
                       .rules = { rule },
                       .result = -EINVAL, .error = NO_ZEROS };

        add(&buffered, "open fails with %s", strerror(errs[i]));
        add(&direct, "open fails with %s, direct caller", strerror(errs[i]));
        add(&bytes, "open fails with %s, direct caller, bytes",
            strerror(errs[i]));
    }
}

/* 64 retries, and not more */
static void add_interruptions(void)
{
    static const struct {
        const char *name;
        EventKind call;
        int result;
        const char *error;
    } calls[] = {
        { "offload", SYS_OFFLOAD, NATIVE, NULL },
        { "fallocate", SYS_NATIVE, WRITE, NULL },
        { "ftruncate", SYS_FTRUNCATE, -EINTR, NO_RESIZE },
        { "open", SYS_OPEN, WRITE, NULL },
        { "pwritev", SYS_WRITE, -EINTR, NO_ZEROS },
        { "fsync", SYS_FSYNC, -EINTR, NO_FLUSH },
    };

    for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
        for (int times = 1; times <= 65; times += times == 1 ? 63 : 1) {
            unsigned int method = calls[i].call == SYS_OFFLOAD ? OFFLOAD :
                                  calls[i].call == SYS_NATIVE ? NATIVE :
                                  WRITE;
            Case c = {
                .bytes = EVEN_SIZE,
                .methods = method == OFFLOAD ? ALL_METHODS : method | WRITE,
                .rules = { { calls[i].call, .times = times, .err = EINTR } },
                .result = method,
            };

            if (times == 65) {
                c.result = calls[i].result;
                c.error = calls[i].error;
            }
            add(&c, "%s is interrupted %d times", calls[i].name, times);
        }
    }
}

/* Ranges */

static const int64_t sizes[] = {
    1, 511, 512, 4095, 4096, 64 * KiB - 1, 64 * KiB, 64 * KiB + 1,
    1 * MiB - 1, 1 * MiB, 1 * MiB + 1, 8 * MiB - 1, 8 * MiB, 8 * MiB + 1,
    16 * MiB - 1, 16 * MiB, 16 * MiB + 1, 32 * MiB + 4097,
};

static const int64_t offsets[] = {
    0, 1, 511, 512, 4095, 4096, 4608, 1 * MiB + 512, 4 * GiB, 4 * GiB + 1,
    4 * GiB + 4608,
};

static void add_range(int64_t offset, int64_t bytes)
{
    static unsigned int seed;
    bool aligned = (offset | bytes) % 4096 == 0;
    Case write = {
        .offset = offset,
        .bytes = bytes,
        .order = orders[seed % ARRAY_SIZE(orders)],
        .seed = seed,
    };
    Case automatic = write;

    add(&write, "zeros at %" PRId64 ", %" PRId64 " bytes", offset, bytes);
    write.caller_is_direct = true;
    add(&write, "zeros at %" PRId64 ", %" PRId64 " bytes, direct caller",
        offset, bytes);

    automatic.methods = ALL_METHODS;
    automatic.result = aligned ? OFFLOAD : NATIVE;
    add(&automatic, "auto at %" PRId64 ", %" PRId64 " bytes", offset, bytes);
    seed++;
}

static void add_ranges(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        for (size_t j = 0; j < ARRAY_SIZE(offsets); j++) {
            add_range(offsets[j], sizes[i]);
        }
        /* The end of the largest possible file, and its last whole block */
        add_range(INT64_MAX - sizes[i], sizes[i]);
        add_range(INT64_MAX - 4095 - sizes[i], sizes[i]);
    }
}

static void add_block_sizes(void)
{
    static const int64_t block_sizes[] = {
        BLKSIZE_NONE, 512, 4096, 4097, 12 * KiB, 64 * KiB, 1 * MiB, 4 * MiB,
        1 * GiB,
    };

    for (size_t i = 0; i < ARRAY_SIZE(block_sizes); i++) {
        Case c = { .offset = ODD_OFFSET, .bytes = ODD_SIZE,
                   .st_blksize = block_sizes[i],
                   .kinds = DIRECT | BUFFERED };

        add(&c, "st_blksize %" PRId64, block_sizes[i]);
        c.caller_is_direct = true;
        add(&c, "st_blksize %" PRId64 ", direct caller", block_sizes[i]);
        c.caller_is_direct = false;
        c.offset = c.bytes = 64 * MiB;
        c.kinds = DIRECT;
        add(&c, "st_blksize %" PRId64 ", whole blocks", block_sizes[i]);
    }
}

/* Writes that end early: in a vector, at its borders, near both ends */
static void add_short_counts(void)
{
    static const int64_t counts[] = {
        1, 511, 512, 4095, 4096, 64 * KiB - 1, 64 * KiB, 64 * KiB + 1,
        192 * KiB, 256 * KiB - 512, 1 * MiB - 1,
        ALL_BUT(1), ALL_BUT(512), ALL_BUT(4096), ALL_BUT(64 * KiB),
    };

    for (int nth = 1; nth <= 3; nth++) {
        for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
            Case c = {
                .bytes = EVEN_SIZE,
                .order = orders[i % ARRAY_SIZE(orders)],
                .seed = i,
                .rules = { { SYS_WRITE, .nth = nth, .count = counts[i] } },
            };

            add(&c, "write %d is short, %" PRId64 " bytes", nth, counts[i]);
            c.caller_is_direct = true;
            add(&c, "write %d is short, %" PRId64 " bytes, direct caller",
                nth, counts[i]);
            c.caller_is_direct = false;
            c.no_ofd_lock = true;
            add(&c, "write %d is short, %" PRId64 " bytes, buffered", nth,
                counts[i]);
        }
    }
}

/* Real threads with random delays */
static void add_threads(void)
{
    static const Case threaded[] = {
        { "odd range", ODD_OFFSET, ODD_SIZE, .kinds = DIRECT | BUFFERED },
        { "whole blocks", 4096, 160 * MiB, .kinds = DIRECT },
        { "direct caller", 1, ODD_SIZE, .caller_is_direct = true },
        { "auto that ends in zeros", 0, EVEN_SIZE, ALL_METHODS,
          .rules = { { SYS_OFFLOAD, .err = EOPNOTSUPP },
                     { SYS_NATIVE, .err = EOPNOTSUPP } },
          .newly_refused = OFFLOAD | NATIVE },
        { "direct refused", 0, EVEN_SIZE,
          .rules = { { SYS_WRITE, ON_SECOND, .nth = 2, .times = FOREVER,
                       .err = EINVAL } } },
        { "short counts", 0, EVEN_SIZE,
          .rules = { { SYS_WRITE, .nth = 2, .times = 9, .count = 8192 } } },
        { "write error", 0, EVEN_SIZE,
          .rules = { { SYS_WRITE, .nth = 3, .times = FOREVER,
                       .err = ENOSPC } },
          .result = -ENOSPC, .error = NO_ZEROS },
        { "fsync error", 0, EVEN_SIZE,
          .rules = { { SYS_FSYNC, ON_CALLER, .err = EIO } },
          .result = -EIO, .error = NO_FLUSH },
    };

    for (size_t i = 0; i < ARRAY_SIZE(threaded); i++) {
        for (unsigned int seed = 1; seed <= 5; seed++) {
            Case c = threaded[i];

            c.order = POOL_THREADS;
            c.seed = seed;
            add(&c, "threads, seed %u: %s", seed, c.name);
        }
    }
}

/* The tests of the tests: each redirected call arrives, from this object too */
static void every_call_is_redirected(void **state)
{
    static const Rule no_rules[MAX_RULES];
    SimulatedFile file = { .bytes = 1, .page_size = 4096,
                           .st_blksize = 4096, .direct_alignment = 512,
                           .rules = no_rules };
    char byte = 0;
    struct iovec iov = { &byte, 1 };
    struct stat st;
    void *map;

    record_clear();
    host_reset(4096, true);
    simulated_file_create(&file);

    assert_int_equal(fallocate(CALLER_FD, 0x80, 0, 1), 0);
    assert_int_equal(recorded_count(SYS_OFFLOAD), 1);
    assert_int_equal(fallocate(CALLER_FD, 0, 0, 1), 0);
    assert_int_equal(recorded_count(SYS_NATIVE), 1);
    assert_int_equal(posix_fallocate(CALLER_FD, 0, 1), 0);
    assert_int_equal(recorded_count(SYS_NATIVE), 2);
    assert_int_equal(ftruncate(CALLER_FD, 1), 0);
    assert_int_equal(recorded_count(SYS_FTRUNCATE), 1);
    assert_int_equal(fstat(CALLER_FD, &st), 0);
    assert_int_equal(recorded_count(SYS_FSTAT), 1);
    assert_int_equal(fcntl(CALLER_FD, F_GETFL), O_RDWR);
    assert_int_equal(recorded_count(SYS_FCNTL), 1);
    assert_int_equal(open("/proc/self/fd/1000", O_RDWR), SECOND_FD);
    assert_int_equal(recorded_count(SYS_OPEN), 1);
    map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    assert_int_equal(recorded_count(SYS_MMAP), 1);
    assert_int_equal(munmap(map, 4096), 0);
    assert_int_equal(recorded_count(SYS_MUNMAP), 1);
    assert_int_equal(pwritev(CALLER_FD, &iov, 1, 0), 1);
    assert_int_equal(recorded_count(SYS_WRITE), 1);
    assert_int_equal(pwrite(CALLER_FD, &byte, 1, 0), 1);
    assert_int_equal(recorded_count(SYS_WRITE), 2);
    assert_int_equal(fsync(CALLER_FD), 0);
    assert_int_equal(recorded_count(SYS_FSYNC), 1);
    assert_int_equal(close(SECOND_FD), 0);
    assert_int_equal(recorded_count(SYS_CLOSE), 1);

    assert_int_equal(read(CALLER_FD, &byte, 1), -1);
    assert_int_equal(readv(CALLER_FD, &iov, 1), -1);
    assert_int_equal(pread(CALLER_FD, &byte, 1, 0), -1);
    assert_int_equal(preadv(CALLER_FD, &iov, 1, 0), -1);
    assert_int_equal(write(CALLER_FD, &byte, 1), -1);
    assert_int_equal(writev(CALLER_FD, &iov, 1), -1);
    assert_int_equal(lseek(CALLER_FD, 0, SEEK_SET), -1);
    assert_int_equal(posix_fadvise(CALLER_FD, 0, 1, POSIX_FADV_DONTNEED), -1);
    assert_int_equal(sync_file_range(CALLER_FD, 0, 1, 0), -1);
    assert_int_equal(simulated_file_forbidden_calls(), 9);
    simulated_file_destroy();
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest first =
        cmocka_unit_test(every_call_is_redirected);
    int status;

    cases = g_ptr_array_new_with_free_func(free_case);
    add_fixed_cases();
    add_refusals();
    add_remembered_refusals();
    add_failures();
    add_one_failed_write();
    add_refused_opens();
    add_interruptions();
    add_ranges();
    add_block_sizes();
    add_short_counts();
    add_threads();

    status = run_cases(&first, cases, argc > 1 ? argv[1] : NULL);
    g_ptr_array_free(cases, true);
    return status;
}

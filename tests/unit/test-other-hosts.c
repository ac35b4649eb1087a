/*
 * Unit tests of block/file-prealloc.c on hosts other than Linux
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Built twice: with UNIT_POSIX_HOST and with UNIT_BARE_HOST (qemu/osdep.h).
 * Neither has O_DIRECT by a second description or pwritev(2).
 */

#include "qemu/osdep.h"
#include "qemu/units.h"
#include "checks.h"

#define NATIVE FILE_PREALLOC_NATIVE
#define WRITE FILE_PREALLOC_WRITE

#define ODD_OFFSET 4608
#define ODD_SIZE (48 * MiB + 4097)

static const Case host_cases[] = {
    { "zeros", ODD_OFFSET, ODD_SIZE, .kinds = BUFFERED },
    { "zeros, random order", ODD_OFFSET, ODD_SIZE, .order = POOL_RANDOM,
      .kinds = BUFFERED },
    { "zeros, threads", ODD_OFFSET, ODD_SIZE, .order = POOL_THREADS,
      .kinds = BUFFERED },
    { "no huge pages", ODD_OFFSET, ODD_SIZE,
      .rules = { { SYS_MADVISE, .times = FOREVER, .err = EINVAL } },
      .kinds = BUFFERED },
    { "no memory", ODD_OFFSET, ODD_SIZE,
      .rules = { { SYS_MMAP, .err = ENOMEM } },
      .result = -ENOMEM, .error = NO_ZEROS },
    { "a byte", 1, 1, .kinds = BUFFERED },
    { "short count", ODD_OFFSET, ODD_SIZE,
      .rules = { { SYS_WRITE, .nth = 2, .count = 5 } } },
    { "write error", ODD_OFFSET, ODD_SIZE,
      .rules = { { SYS_WRITE, .nth = 2, .err = ENOSPC } },
      .result = -ENOSPC, .error = NO_ZEROS },
    { "fsync error", ODD_OFFSET, ODD_SIZE,
      .rules = { { SYS_FSYNC, ON_CALLER, .err = EIO } },
      .result = -EIO, .error = NO_FLUSH },
#ifdef CONFIG_POSIX_FALLOCATE
    { "auto is posix_fallocate", 0, ODD_SIZE, ALL_METHODS,
      .result = NATIVE },
    { "falloc is posix_fallocate", 1, ODD_SIZE, NATIVE | WRITE,
      .result = NATIVE },
    { "EINVAL: not supported", 1, ODD_SIZE, NATIVE | WRITE,
      .rules = { { SYS_NATIVE, .err = EINVAL } } },
    { "EINVAL alone: not supported", 1, ODD_SIZE, NATIVE,
      .rules = { { SYS_NATIVE, .err = EINVAL } },
      .result = -ENOTSUP, .error = NO_ALLOCATION },
    { "EOPNOTSUPP: never supported", 1, ODD_SIZE, NATIVE | WRITE,
      .rules = { { SYS_NATIVE, .err = EOPNOTSUPP } },
      .newly_refused = NATIVE },
    { "ENOSPC is the result", 1, ODD_SIZE, NATIVE | WRITE,
      .rules = { { SYS_NATIVE, .err = ENOSPC } },
      .result = -ENOSPC, .error = NO_ALLOCATION },
    { "interrupted once", 1, ODD_SIZE, NATIVE | WRITE,
      .rules = { { SYS_NATIVE, .err = EINTR } }, .result = NATIVE },
    { "interrupted without end", 1, ODD_SIZE, NATIVE | WRITE,
      .rules = { { SYS_NATIVE, .times = FOREVER, .err = EINTR } } },
#else
    { "auto writes zeros", 0, ODD_SIZE, ALL_METHODS,
      .newly_refused = NATIVE, .kinds = BUFFERED },
    { "falloc writes zeros", 0, ODD_SIZE, NATIVE | WRITE,
      .newly_refused = NATIVE, .kinds = BUFFERED },
    { "nothing reserves space", 0, ODD_SIZE, NATIVE,
      .result = -ENOTSUP, .error = NO_ALLOCATION, .newly_refused = NATIVE },
#endif
};

int main(int argc, char **argv)
{
    GPtrArray *cases = g_ptr_array_new();
    int status;

    for (size_t i = 0; i < ARRAY_SIZE(host_cases); i++) {
        g_ptr_array_add(cases, (void *)&host_cases[i]);
    }
    status = run_cases(NULL, cases, argc > 1 ? argv[1] : NULL);
    g_ptr_array_free(cases, true);
    return status;
}

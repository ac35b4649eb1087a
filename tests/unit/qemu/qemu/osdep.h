/*
 * Test double: what file-prealloc.c needs of the system and the compiler
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The host is Linux.  UNIT_POSIX_HOST makes it one that has of all that only
 * posix_fallocate(3), UNIT_BARE_HOST one without even that.
 */

#ifndef UNIT_QEMU_OSDEP_H
#define UNIT_QEMU_OSDEP_H

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#if !defined(UNIT_POSIX_HOST) && !defined(UNIT_BARE_HOST)
#define CONFIG_LINUX 1
#define CONFIG_FALLOCATE 1
#define CONFIG_PREADV 1
#endif
#ifndef UNIT_BARE_HOST
#define CONFIG_POSIX_FALLOCATE 1
#endif

#define ARRAY_SIZE(x) (sizeof(x) / sizeof((x)[0]))
#define DIV_ROUND_UP(n, d) (((n) + (d) - 1) / (d))
#define QEMU_BUILD_BUG_ON(condition) _Static_assert(!(condition), #condition)
#define QEMU_ALIGN_PTR_UP(ptr, n) \
    ((void *)(DIV_ROUND_UP((uintptr_t)(ptr), (n)) * (n)))
#define container_of(ptr, type, member) \
    ((type *)((char *)(ptr) - offsetof(type, member)))

typedef struct Error Error;

uintptr_t qemu_real_host_page_size(void);
bool qemu_has_ofd_lock(void);

#endif /* UNIT_QEMU_OSDEP_H */

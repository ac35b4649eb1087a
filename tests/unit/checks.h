/*
 * One call of file_co_preallocate() on a simulated file, and what must hold
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef UNIT_CHECKS_H
#define UNIT_CHECKS_H

#include "block/file-prealloc.h"
#include "event-loop.h"
#include "simulated-file.h"

#define ALL_METHODS \
    (FILE_PREALLOC_OFFLOAD | FILE_PREALLOC_NATIVE | FILE_PREALLOC_WRITE)

/* What the simulated host has, see qemu/osdep.h */
#ifdef CONFIG_LINUX
#define HOST_METHODS ALL_METHODS
#define HAVE_DIRECT true
#define HAVE_VECTORS true
#else
#define HAVE_DIRECT false
#define HAVE_VECTORS false
#ifdef CONFIG_POSIX_FALLOCATE
#define HOST_METHODS (FILE_PREALLOC_NATIVE | FILE_PREALLOC_WRITE)
#else
#define HOST_METHODS FILE_PREALLOC_WRITE
#endif
#endif

/* Texts that tools parse */
#define NO_ALLOCATION   "Could not preallocate new data"
#define NO_RESIZE       "Could not resize file"
#define NO_ZEROS        "Could not write zeros for preallocation"
#define NO_FLUSH        "Could not flush file to disk"

/* A file system that reports no st_blksize */
#define BLKSIZE_NONE (-1)

/* Kinds of writes */
#define DIRECT      1
#define BUFFERED    2

typedef struct Case {
    const char *name;

    /* The call */
    int64_t offset;
    int64_t bytes;
    unsigned int methods;       /* 0 is FILE_PREALLOC_WRITE ... */
    bool no_methods;            /* ... or really none */
    unsigned int refused;       /* known before */
    bool forgetful;             /* the caller passes NULL for @refused */

    /* The world */
    bool caller_is_direct;
    bool no_ofd_lock;
    long f_type;
    int inode_flags;
    bool one_at_a_time;         /* because of these two */
    int64_t st_blksize;         /* 0 is 4096 */
    int64_t page_size;          /* 0 is 4096 */
    int64_t direct_alignment;   /* 0 is 512 */
    PoolOrder order;
    unsigned int seed;
    Rule rules[MAX_RULES];

    /* The outcome, beside what holds for all */
    int result;                 /* 0 is FILE_PREALLOC_WRITE */
    const char *error;
    unsigned int newly_refused;
    int kinds;                  /* of successful writes, 0 is not checked */
} Case;

struct CMUnitTest;

/*
 * Runs @first, if there is one, and a test for each Case of @cases, or those
 * of them that match @pattern.  Prints TAP, returns an exit status.
 */
int run_cases(const struct CMUnitTest *first, GPtrArray *cases,
              const char *pattern);

#endif /* UNIT_CHECKS_H */

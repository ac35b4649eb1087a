/*
 * A simulated regular file behind the system calls of file-prealloc.c
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The linker redirects the calls (--wrap), so that the module under test is
 * the very same object code.  The file exists only as sets of ranges, so it
 * may be as large as a file can be.  It complains (see record.h) about every
 * call that the contract of file_co_preallocate() rules out, and fails those
 * that a test's rules say.
 */

#ifndef UNIT_SIMULATED_FILE_H
#define UNIT_SIMULATED_FILE_H

#include <limits.h>
#include "record.h"

/* The caller's descriptor and the one that open() returns */
#define CALLER_FD 1000
#define SECOND_FD 1001

typedef enum RuleFd {
    ON_ANY,
    ON_CALLER,
    ON_SECOND,
} RuleFd;

#define FOREVER INT_MAX

/* Results of a write other than an error */
#define ALL_BUT(n) (-(n))

/* A result that is not the usual one */
typedef struct Rule {
    EventKind call;         /* SYS_*, TRACE_START marks the end of the rules */
    RuleFd on;
    int nth;                /* first matching call that it is for, 0 is 1 */
    int times;              /* for how many calls, 0 is 1 */
    int err;                /* errno, or 0 for ... */
    int64_t count;          /* ... a write of so many bytes, or ALL_BUT(n) */
} Rule;

#define MAX_RULES 4

typedef struct SimulatedFile {
    int64_t offset;         /* the range that may be written, from the ... */
    int64_t bytes;          /* ... present end of the file */
    bool caller_is_direct;
    long f_type;            /* as statfs(2) tells */
    int inode_flags;        /* as FS_IOC_GETFLAGS does */
    int64_t st_blksize;
    int64_t page_size;
    int64_t direct_alignment;
    const Rule *rules;      /* MAX_RULES of them */
} SimulatedFile;

void simulated_file_create(const SimulatedFile *file);

/* Size of the blocks that must not be written both direct and buffered */
int64_t simulated_file_block(void);

/* Complains about what must not be left over, whether it succeeded or not */
void simulated_file_check_leaks(void);

/* Complains unless all of the range was written, once, and synced */
void simulated_file_check_written(void);

/* Complains if a block was written both direct and buffered */
void simulated_file_check_owners(void);

/* Complains about rules that were never followed */
void simulated_file_check_rules(void);

/* Number of calls of functions that the module has no reason to call */
int simulated_file_forbidden_calls(void);

void simulated_file_destroy(void);

#endif /* UNIT_SIMULATED_FILE_H */

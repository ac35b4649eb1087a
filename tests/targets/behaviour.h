/*
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * How nofalloc-fs answers: its settings, the faults it injects and the
 * counters that tests read. Knows nothing of FUSE. All functions may be
 * called from any thread.
 */
#ifndef BEHAVIOUR_H
#define BEHAVIOUR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "ranges.h"

typedef enum Request {
    REQ_LOOKUP,
    REQ_GETATTR,
    REQ_SETATTR,
    REQ_TRUNCATE,               /* SETATTR that changes the length */
    REQ_OPEN,
    REQ_CREATE,
    REQ_READ,
    REQ_WRITE,
    REQ_FSYNC,
    REQ_FLUSH,
    REQ_RELEASE,
    REQ_FALLOCATE,
    REQ_LSEEK,
    REQ_STATFS,
    REQ_OPENDIR,
    REQ_READDIR,
    REQ_LINK,                   /* everything that makes a name */
    REQ_UNLINK,                 /* unlink and rmdir */
    REQ_RENAME,
    REQ_READLINK,
    REQUESTS
} Request;

/* Settings that hold for the lifetime of a mount. */
typedef struct MountSettings {
    unsigned max_write;         /* 0: as large as kernel and library allow */
    bool writeback;
    bool discard_data;
} MountSettings;

extern MountSettings mount_settings;

/* Is @assignment ("key=value") about one of our settings? */
bool behaviour_knows(const char *assignment);

/*
 * Applies "key=value". Returns 0, or -EINVAL for an unknown key, a bad value
 * or, unless @mounting, a setting that is fixed once mounted.
 */
int behaviour_set(const char *assignment, bool mounting);

void behaviour_help(FILE *out);

/* Counts a request and lets it take its time. */
void request_begin(Request request);

/*
 * Decides what becomes of a write: returns 0 with *@accepted bytes (at most
 * @bytes) to be written, or a negative errno. Sleeps. To be followed by
 * write_end() in either case.
 */
int write_begin(Ranges *written, uint64_t offset, size_t bytes,
                size_t *accepted);
void write_end(void);

/* Each returns 0 for "do it" or the negative errno to answer. */
int fsync_verdict(void);
int fallocate_verdict(void);
int open_verdict(int flags);
int size_verdict(uint64_t size);

void read_done(size_t bytes);

/* The file was cut or extended to @size: its bytes behind may come anew. */
void written_truncate(Ranges *written, uint64_t size);
bool written_any(const Ranges *written);
void written_forget(Ranges *written);

/* The counters as JSON, to be freed by the caller; NULL if out of memory. */
char *counters_json(void);
void counters_reset(void);

#endif

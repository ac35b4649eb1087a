/*
 * What happened during a test, and what was wrong with it
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * One record for system calls and trace events, so that their order can be
 * checked.  All threads may add to it; cmocka's assertions end the process
 * outside the test's own thread, so whoever sees a fault complains here and
 * the test fails at the end.
 */

#ifndef UNIT_RECORD_H
#define UNIT_RECORD_H

#include <stdbool.h>
#include <stdint.h>
#include <glib.h>

typedef enum EventKind {
    TRACE_START,
    TRACE_REFUSED,
    TRACE_WRITER,
    TRACE_WRITE,
    TRACE_DIRECT_REFUSED,
    TRACE_PROGRESS,
    TRACE_DONE,
    SYS_OFFLOAD,            /* fallocate() with mode 0x80 */
    SYS_NATIVE,             /* fallocate() with mode 0 */
    SYS_FTRUNCATE,
    SYS_MMAP,
    SYS_MADVISE,            /* by qemu_madvise() */
    SYS_MUNMAP,
    SYS_FSTAT,
    SYS_FSTATFS,
    SYS_IOCTL,
    SYS_FCNTL,
    SYS_OPEN,
    SYS_WRITE,
    SYS_FSYNC,
    SYS_CLOSE,
    EVENT_KINDS
} EventKind;

/* Only the members that the kind of event has are set */
typedef struct Event {
    EventKind kind;
    int fd;
    int64_t offset;
    int64_t bytes;
    int64_t result;         /* of a system call: what it returns or -errno */
    unsigned int methods;
    const char *method;
    int direct_fd;
    int buffered_fd;
    int64_t block;
    int in_flight;
    bool direct;
    int percent;
    int64_t usec;
} Event;

void record(Event event);
void complain(const char *format, ...) G_GNUC_PRINTF(1, 2);

/* For the test's thread, when all others have ended */
const GArray *recorded(void);           /* of Event */
int recorded_count(EventKind kind);
char *recorded_complaints(void);        /* lines of TAP, or NULL */

void record_clear(void);
void record_free(void);

#endif /* UNIT_RECORD_H */

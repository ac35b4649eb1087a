/*
 * Test double: trace events go to the record that the tests look at
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef UNIT_TRACE_H
#define UNIT_TRACE_H

#include "record.h"

static inline void trace_file_prealloc_start(int fd, int64_t offset,
                                             int64_t bytes,
                                             unsigned int methods)
{
    record((Event) { .kind = TRACE_START, .fd = fd, .offset = offset,
                     .bytes = bytes, .methods = methods });
}

static inline void trace_file_prealloc_refused(int fd, const char *method,
                                               int err)
{
    record((Event) { .kind = TRACE_REFUSED, .fd = fd, .method = method,
                     .result = -err });
}

static inline void trace_file_prealloc_writer(int fd, int direct_fd,
                                              int buffered_fd, int64_t block,
                                              int64_t write_size,
                                              int in_flight)
{
    record((Event) { .kind = TRACE_WRITER, .fd = fd, .direct_fd = direct_fd,
                     .buffered_fd = buffered_fd, .block = block,
                     .bytes = write_size, .in_flight = in_flight });
}

static inline void trace_file_prealloc_write(int fd, int64_t offset,
                                             int64_t bytes, bool direct,
                                             int in_flight)
{
    record((Event) { .kind = TRACE_WRITE, .fd = fd, .offset = offset,
                     .bytes = bytes, .direct = direct,
                     .in_flight = in_flight });
}

static inline void trace_file_prealloc_direct_refused(int fd, int64_t offset,
                                                      int64_t bytes)
{
    record((Event) { .kind = TRACE_DIRECT_REFUSED, .fd = fd,
                     .offset = offset, .bytes = bytes });
}

static inline void trace_file_prealloc_progress(int fd, int percent,
                                                int64_t done)
{
    record((Event) { .kind = TRACE_PROGRESS, .fd = fd, .percent = percent,
                     .bytes = done });
}

static inline void trace_file_prealloc_done(int fd, const char *method,
                                            int ret, int64_t bytes,
                                            int64_t usec)
{
    record((Event) { .kind = TRACE_DONE, .fd = fd, .method = method,
                     .result = ret, .bytes = bytes, .usec = usec });
}

#endif /* UNIT_TRACE_H */

/*
 * Test doubles: errors, mapped memory and properties of the host
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include <sys/mman.h>
#include "qapi/error.h"
#include "qemu/cutils.h"
#include "qemu/units.h"
#include "record.h"
#include "util.h"

#define HUGE_PAGE (2 * MiB)

void *__real_mmap64(void *hint, size_t bytes, int protection, int flags,
                    int fd, off_t offset);
int __real_munmap(void *start, size_t bytes);

typedef struct Span {
    const char *start;
    const char *end;
} Span;

/* Changed by one worker at a time, while no write is in flight */
static struct {
    size_t page_size;
    bool has_ofd_lock;
    void *reserved;         /* what the mapping is a part of */
    size_t reserved_bytes;
    Span map;
    Span advised;
    Span faulted_in;
} host;

static Span span(const char *start, size_t bytes)
{
    return (Span) { start, start + bytes };
}

static bool contains(Span outer, Span inner)
{
    return outer.start && outer.start <= inner.start &&
           inner.start < inner.end && inner.end <= outer.end;
}

static bool is_zero(Span s)
{
    return s.start[0] == 0 &&
           !memcmp(s.start, s.start + 1, s.end - s.start - 1);
}

static void forget_mapping(void)
{
    if (host.reserved) {
        __real_munmap(host.reserved, host.reserved_bytes);
    }
    host.reserved = NULL;
    host.map = host.advised = host.faulted_in = (Span) { NULL, NULL };
}

void host_reset(size_t page_size, bool has_ofd_lock)
{
    forget_mapping();
    host.page_size = page_size;
    host.has_ofd_lock = has_ofd_lock;
}

uintptr_t qemu_real_host_page_size(void)
{
    return host.page_size;
}

bool qemu_has_ofd_lock(void)
{
    return host.has_ofd_lock;
}

/* The mapping begins one page behind the border of a huge page */
void *host_map(size_t bytes, int protection)
{
    char *start;

    if (host_is_mapped()) {
        complain("more than one mapping at a time");
        forget_mapping();
    }
    host.reserved_bytes = bytes + 2 * HUGE_PAGE;
    host.reserved = __real_mmap64(NULL, host.reserved_bytes, protection,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host.reserved == MAP_FAILED) {
        abort();
    }
    start = QEMU_ALIGN_PTR_UP(host.reserved, HUGE_PAGE);
    start += host.page_size;
    host.map = span(start, bytes);
    return start;
}

int host_unmap(void *start, size_t bytes)
{
    Span s = span(start, bytes);

    if (s.start != host.map.start || s.end != host.map.end) {
        complain("munmap of %zu bytes that are not the mapping", bytes);
        return EINVAL;
    }
    forget_mapping();
    return 0;
}

bool host_is_mapped(void)
{
    return host.map.start;
}

void host_advise_huge(const char *start, size_t bytes)
{
    host.advised = span(start, bytes);
    if (!contains(host.map, host.advised)) {
        complain("huge pages asked for outside the mapping");
    }
    if (bytes < HUGE_PAGE || (uintptr_t)start % HUGE_PAGE) {
        complain("huge pages asked for where there is none");
    }
}

bool buffer_is_zero(const void *start, size_t bytes)
{
    host.faulted_in = span(start, bytes);
    if (!contains(host.map, host.faulted_in)) {
        complain("read of memory that is not mapped");
        return false;
    }
    return is_zero(host.faulted_in);
}

static void check_vector(const struct iovec *v, bool last)
{
    if ((uintptr_t)v->iov_base % host.page_size) {
        complain("vector not aligned to a page");
    }
    if (v->iov_len > 1 * MiB || (!last && v->iov_len < 64 * KiB)) {
        complain("vector of %zu bytes, not 64 KiB to 1 MiB", v->iov_len);
    }
}

void host_check_vectors(const struct iovec *iov, int n)
{
    Span all = { iov[0].iov_base, iov[0].iov_base };

    for (int i = 0; i < n; i++) {
        Span s = span(iov[i].iov_base, iov[i].iov_len);

        check_vector(&iov[i], i == n - 1);
        all.start = MIN(all.start, s.start);
        all.end = MAX(all.end, s.end);
    }
    if (!contains(host.map, all)) {
        complain("data of a write is not from the mapping");
        return;
    }
    if (!contains(host.advised, all)) {
        complain("data of a write is not from a huge page");
    }
    if (!contains(host.faulted_in, all)) {
        complain("data of a write was not faulted in");
    }
    if (!is_zero(all)) {
        complain("data of a write is not zeros");
    }
}

void error_setg_errno(Error **errp, int os_error, const char *format, ...)
{
    va_list args;
    char *text;

    if (!errp) {
        return;
    }
    if (*errp) {
        complain("errp set twice, first to '%s'", (*errp)->message);
        error_free(*errp);
    }
    va_start(args, format);
    text = g_strdup_vprintf(format, args);
    va_end(args);

    *errp = g_new(Error, 1);
    (*errp)->message = g_strdup_printf("%s: %s", text, strerror(os_error));
    g_free(text);
}

void error_free(Error *err)
{
    if (err) {
        g_free(err->message);
        g_free(err);
    }
}

/*
 * The simulated host: page size, locks, and the memory that was mapped
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef UNIT_UTIL_H
#define UNIT_UTIL_H

#include <sys/uio.h>

void host_reset(size_t page_size, bool has_ofd_lock);

/* As mmap(2) and munmap(2) of anonymous memory, of one mapping at a time */
void *host_map(size_t bytes, int protection);
int host_unmap(void *start, size_t bytes);
bool host_is_mapped(void);

/* Notes that huge pages were asked for there */
void host_advise_huge(const char *start, size_t bytes);

/* Complains unless all @n vectors are zeros of the mapping, fit to write */
void host_check_vectors(const struct iovec *iov, int n);

#endif /* UNIT_UTIL_H */

/*
 * Preallocation of regular files
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Makes a range of a regular file read as zeros and allocates its space, by
 * the fastest method that the caller allows and the file system offers.
 *
 * Works on a file descriptor, because image creation has no
 * BlockDriverState yet, and knows nothing of PreallocMode: the caller maps
 * its mode to a set of methods.
 */

#ifndef BLOCK_FILE_PREALLOC_H
#define BLOCK_FILE_PREALLOC_H

#include "qemu/coroutine.h"

/*
 * Methods, fastest first.  They are tried in this order; one that the file
 * system refuses is followed by the next.
 *
 * A set of methods is a policy: full is WRITE, falloc is NATIVE | WRITE, and
 * auto is all three.
 */
typedef enum FilePreallocMethod {
    /*
     * fallocate(2) with FALLOC_FL_WRITE_ZEROES (Linux 6.17): the device
     * zeroes the blocks itself, and the extents are marked as written.  Tried
     * only for ranges of whole file system blocks.
     */
    FILE_PREALLOC_OFFLOAD = 1 << 0,

    /*
     * fallocate(2) with mode 0, posix_fallocate(3) on hosts without it: space
     * is reserved, nothing is written.  Never the emulation that glibc's
     * posix_fallocate() falls back to, which writes one byte per block.
     */
    FILE_PREALLOC_NATIVE = 1 << 1,

    /*
     * The zero writer: two writes of 16 MiB in flight, or one where two would
     * lay the file out in pieces (ext2, ext3), bypassing the page cache where
     * the file system lets it.  Works everywhere.
     *
     * Measured against one 64 KiB write() at a time: 31 times as fast on FUSE
     * with 1 ms per request, 1.4 times on ext4 and 1.3 times on xfs.
     */
    FILE_PREALLOC_WRITE = 1 << 2,
} FilePreallocMethod;

/**
 * file_co_preallocate:
 * @fd: descriptor of a regular file, open for writing.  Its status flags and
 *      its file offset are left alone: other users of the same open file
 *      description (the guest's I/O, duplicates in other processes) rely on
 *      them.
 * @offset: first byte of the range, the present length of the file
 * @bytes: length of the range; @offset + @bytes must not exceed INT64_MAX
 * @methods: set of FilePreallocMethod that may be used; an empty one is refused
 * @refused: NULL, or the set of methods that this file is known to refuse.
 *           They are not tried, and those that turn out to be refused are
 *           added.  Valid for this open file only: the next file may live on
 *           another file system.
 * @errp: set exactly once if the call fails, and only then
 *
 * Allocate @bytes bytes from @offset.  On success the range reads as zeros,
 * the file ends at @offset + @bytes, and what the zero writer wrote has
 * reached the disk (fsync(2)).
 *
 * On failure the length of the file and the content of the range are
 * unspecified, no byte outside the range has changed, and no request of this
 * call is still running.  The caller restores the length: on ext4 a
 * fallocate() that fails with ENOSPC has grown the file and keeps the free
 * space allocated until then.
 *
 * The next method is tried only if one is refused: EOPNOTSUPP, ENOSYS and
 * their kin; EINVAL or EPERM, which the zero writer meets again if they were
 * meant for the file; EINTR that does not end.  ENOSPC, EDQUOT, EFBIG, EIO,
 * EROFS and all others are the result.
 *
 * Runs in a coroutine.  Every system call that can block runs in the thread
 * pool of the current AioContext, whose event loop goes on meanwhile.  Takes
 * no graph lock.
 *
 * Returns: the method that allocated the range (> 0), 0 if @bytes is 0,
 * -ENOTSUP if all @methods were refused (nothing has been written then), or
 * another -errno.
 */
int coroutine_fn file_co_preallocate(int fd, int64_t offset, int64_t bytes,
                                     unsigned int methods,
                                     unsigned int *refused, Error **errp);

#endif /* BLOCK_FILE_PREALLOC_H */

/*
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * To be preloaded: what file systems make of fallocate(2) in mode 0 that
 * none of the test machine's does.  All other modes are left alone.
 *
 * MODE_0=refused: mode 0 alone is not supported (CephFS)
 * MODE_0=length:  the file grows, and no space is reserved (encrypting and
 *                 compressing file systems)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int only_length(int fd, off_t end)
{
    struct stat st;

    if (fstat(fd, &st) < 0) {
        return -1;
    }
    return st.st_size < end ? ftruncate(fd, end) : 0;
}

static int answer(int fd, int mode, off_t offset, off_t length)
{
    const char *mode_0 = getenv("MODE_0");

    if (mode != 0 || !mode_0) {
        return syscall(SYS_fallocate, fd, mode, offset, length);
    }
    if (strcmp(mode_0, "length") == 0) {
        return only_length(fd, offset + length);
    }
    errno = EOPNOTSUPP;
    return -1;
}

int fallocate(int fd, int mode, off_t offset, off_t length)
{
    return answer(fd, mode, offset, length);
}

int fallocate64(int fd, int mode, off_t offset, off_t length)
{
    return answer(fd, mode, offset, length);
}

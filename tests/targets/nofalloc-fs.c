/*
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * nofalloc-fs - a file system without fallocate(2) to test preallocation on.
 *
 * It mirrors a backing directory through FUSE, counts the requests that
 * reach it, and can be slow, limited or faulty on demand. Every request is
 * answered from one of many threads, so parallel requests overlap their
 * latency as they would on a network file system.
 *
 * Three files in the root of the mount are not listed but can be opened:
 *   .stats    the counters as JSON
 *   .reset    writing anything sets the counters to zero
 *   .control  takes settings, "key=value" a line
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 312

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "behaviour.h"
#include "ranges.h"

#define THREADS 64              /* more than the kernel sends at once */
#define BUCKETS 256
#define CACHE_SECONDS 1.0       /* names and attributes, as libfuse does */
#define VIRTUAL_INO 0xfffffff0  /* inode numbers of the virtual files */

/*
 * A file of the backing directory that the kernel knows, and for as long as
 * it is linked also one that the kernel forgot but that has been written.
 */
typedef struct Inode {
    struct Inode *next;
    dev_t dev;
    ino_t ino;
    int fd;                     /* O_PATH */
    uint64_t lookups;           /* references that the kernel holds */
    Ranges written;
} Inode;

static Inode root = { .fd = -1, .lookups = 1 };
static Inode stats_file, reset_file, control_file;
static Inode *table[BUCKETS];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct {
    const char *name;
    Inode *inode;
} virtual_files[] = {
    { ".stats", &stats_file },
    { ".reset", &reset_file },
    { ".control", &control_file },
};

#define VIRTUAL_FILES (sizeof(virtual_files) / sizeof(virtual_files[0]))

/* ---- inodes ---- */

static Inode *get_inode(fuse_ino_t ino)
{
    return ino == FUSE_ROOT_ID ? &root : (Inode *)(uintptr_t)ino;
}

static bool is_virtual(const Inode *inode)
{
    return inode == &stats_file || inode == &reset_file ||
           inode == &control_file;
}

static Inode *find_virtual(fuse_ino_t parent, const char *name)
{
    size_t i;

    for (i = 0; parent == FUSE_ROOT_ID && i < VIRTUAL_FILES; i++) {
        if (!strcmp(virtual_files[i].name, name)) {
            return virtual_files[i].inode;
        }
    }
    return NULL;
}

static void virtual_attr(const Inode *inode, struct stat *st)
{
    *st = (struct stat) {
        .st_ino = VIRTUAL_INO,
        .st_mode = S_IFREG | (inode == &stats_file ? 0400 : 0200),
        .st_nlink = 1,
        .st_uid = getuid(),
        .st_gid = getgid(),
    };
}

static int get_attr(const Inode *inode, struct stat *st)
{
    if (is_virtual(inode)) {
        virtual_attr(inode, st);
        return 0;
    }
    if (fstatat(inode->fd, "", st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0) {
        return -errno;
    }
    return 0;
}

/* A path that names the very inode behind an O_PATH descriptor. */
typedef struct ProcPath {
    char path[40];
} ProcPath;

static ProcPath proc_path(const Inode *inode)
{
    ProcPath p;

    snprintf(p.path, sizeof(p.path), "/proc/self/fd/%d", inode->fd);
    return p;
}

static Inode **bucket_of(const struct stat *st)
{
    return &table[st->st_ino % BUCKETS];
}

/* Called with table_lock held. */
static Inode *search_table(const struct stat *st)
{
    Inode *inode;

    for (inode = *bucket_of(st); inode; inode = inode->next) {
        if (inode->ino == st->st_ino && inode->dev == st->st_dev) {
            return inode;
        }
    }
    return NULL;
}

/* Called with table_lock held; takes over @fd if it succeeds. */
static Inode *add_to_table(const struct stat *st, int fd)
{
    Inode *inode = calloc(1, sizeof(*inode));

    if (!inode) {
        return NULL;
    }
    inode->dev = st->st_dev;
    inode->ino = st->st_ino;
    inode->fd = fd;
    inode->next = *bucket_of(st);
    *bucket_of(st) = inode;
    return inode;
}

static void free_inode(Inode *inode)
{
    written_forget(&inode->written);
    close(inode->fd);
    free(inode);
}

/* Takes a reference for the kernel; takes over @fd, whatever happens. */
static Inode *reference_inode(const struct stat *st, int fd)
{
    bool known;
    Inode *inode;

    pthread_mutex_lock(&table_lock);
    inode = search_table(st);
    known = inode;
    if (!known) {
        inode = add_to_table(st, fd);
    }
    if (inode) {
        inode->lookups++;
    }
    pthread_mutex_unlock(&table_lock);

    if (known || !inode) {
        close(fd);
    }
    return inode;
}

static int look_up(fuse_ino_t parent, const char *name,
                   struct fuse_entry_param *entry)
{
    Inode *inode;
    int fd;

    *entry = (struct fuse_entry_param) {
        .attr_timeout = CACHE_SECONDS,
        .entry_timeout = CACHE_SECONDS,
    };
    fd = openat(get_inode(parent)->fd, name,
                O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    if (fstatat(fd, "", &entry->attr,
                AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0) {
        int ret = -errno;

        close(fd);
        return ret;
    }
    inode = reference_inode(&entry->attr, fd);
    if (!inode) {
        return -ENOMEM;
    }
    entry->ino = (uintptr_t)inode;
    return 0;
}

static void remove_from_table(Inode *inode)
{
    Inode **link = &table[inode->ino % BUCKETS];

    while (*link != inode) {
        link = &(*link)->next;
    }
    *link = inode->next;
}

static void forget_inode(Inode *inode, uint64_t lookups)
{
    struct stat st;
    bool unused;

    if (inode == &root || is_virtual(inode)) {
        return;
    }
    pthread_mutex_lock(&table_lock);
    inode->lookups -= lookups;
    /* What was written must be remembered even if caches are dropped. */
    unused = inode->lookups == 0 &&
             (!written_any(&inode->written) || get_attr(inode, &st) < 0 ||
              st.st_nlink == 0);
    if (unused) {
        remove_from_table(inode);
    }
    pthread_mutex_unlock(&table_lock);

    if (unused) {
        free_inode(inode);
    }
}

static void reset_counters(void)
{
    Inode *inode;
    size_t i;

    pthread_mutex_lock(&table_lock);
    for (i = 0; i < BUCKETS; i++) {
        for (inode = table[i]; inode; inode = inode->next) {
            written_forget(&inode->written);
        }
    }
    pthread_mutex_unlock(&table_lock);
    counters_reset();
}

static void free_table(void)
{
    size_t i;

    for (i = 0; i < BUCKETS; i++) {
        while (table[i]) {
            Inode *inode = table[i];

            table[i] = inode->next;
            free_inode(inode);
        }
    }
}

/* ---- names ---- */

static void reply_result(fuse_req_t req, int ret)
{
    fuse_reply_err(req, ret < 0 ? -ret : 0);
}

static void fs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    Inode *virtual_inode = find_virtual(parent, name);
    struct fuse_entry_param entry = { 0 };
    int ret;

    if (virtual_inode) {
        entry.ino = (uintptr_t)virtual_inode;
        entry.entry_timeout = CACHE_SECONDS;
        virtual_attr(virtual_inode, &entry.attr);
        fuse_reply_entry(req, &entry);
        return;
    }
    request_begin(REQ_LOOKUP);
    ret = look_up(parent, name, &entry);
    if (ret < 0) {
        reply_result(req, ret);
    } else {
        fuse_reply_entry(req, &entry);
    }
}

static void fs_forget(fuse_req_t req, fuse_ino_t ino, uint64_t lookups)
{
    forget_inode(get_inode(ino), lookups);
    fuse_reply_none(req);
}

static void fs_forget_multi(fuse_req_t req, size_t count,
                            struct fuse_forget_data *forgets)
{
    size_t i;

    for (i = 0; i < count; i++) {
        forget_inode(get_inode(forgets[i].ino), forgets[i].nlookup);
    }
    fuse_reply_none(req);
}

/* Answers a request that made @name, if @ret says that it did. */
static void reply_new_name(fuse_req_t req, int ret, fuse_ino_t parent,
                           const char *name)
{
    struct fuse_entry_param entry;

    if (ret < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    ret = look_up(parent, name, &entry);
    if (ret < 0) {
        reply_result(req, ret);
    } else {
        fuse_reply_entry(req, &entry);
    }
}

static void fs_mknod(fuse_req_t req, fuse_ino_t parent, const char *name,
                     mode_t mode, dev_t rdev)
{
    request_begin(REQ_LINK);
    reply_new_name(req, mknodat(get_inode(parent)->fd, name, mode, rdev),
                   parent, name);
}

static void fs_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name,
                     mode_t mode)
{
    request_begin(REQ_LINK);
    reply_new_name(req, mkdirat(get_inode(parent)->fd, name, mode), parent,
                   name);
}

static void fs_symlink(fuse_req_t req, const char *target, fuse_ino_t parent,
                       const char *name)
{
    request_begin(REQ_LINK);
    reply_new_name(req, symlinkat(target, get_inode(parent)->fd, name),
                   parent, name);
}

static void fs_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent,
                    const char *name)
{
    ProcPath p = proc_path(get_inode(ino));

    request_begin(REQ_LINK);
    if (is_virtual(get_inode(ino))) {
        fuse_reply_err(req, EPERM);
        return;
    }
    reply_new_name(req, linkat(AT_FDCWD, p.path, get_inode(parent)->fd, name,
                               AT_SYMLINK_FOLLOW), parent, name);
}

static void fs_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    request_begin(REQ_UNLINK);
    fuse_reply_err(req, unlinkat(get_inode(parent)->fd, name, 0) < 0 ?
                        errno : 0);
}

static void fs_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    request_begin(REQ_UNLINK);
    fuse_reply_err(req, unlinkat(get_inode(parent)->fd, name,
                                 AT_REMOVEDIR) < 0 ? errno : 0);
}

static void fs_rename(fuse_req_t req, fuse_ino_t parent, const char *name,
                      fuse_ino_t new_parent, const char *new_name,
                      unsigned int flags)
{
    request_begin(REQ_RENAME);
    if (find_virtual(parent, name) || find_virtual(new_parent, new_name)) {
        fuse_reply_err(req, EPERM);
        return;
    }
    fuse_reply_err(req, renameat2(get_inode(parent)->fd, name,
                                  get_inode(new_parent)->fd, new_name,
                                  flags) < 0 ? errno : 0);
}

static void fs_readlink(fuse_req_t req, fuse_ino_t ino)
{
    char target[4096];
    ssize_t length;

    request_begin(REQ_READLINK);
    length = readlinkat(get_inode(ino)->fd, "", target, sizeof(target));
    if (length < 0) {
        fuse_reply_err(req, errno);
    } else if (length == sizeof(target)) {
        fuse_reply_err(req, ENAMETOOLONG);
    } else {
        target[length] = '\0';
        fuse_reply_readlink(req, target);
    }
}

/* ---- attributes ---- */

static void reply_attr(fuse_req_t req, const Inode *inode)
{
    struct stat st;
    int ret = get_attr(inode, &st);

    if (ret < 0) {
        reply_result(req, ret);
    } else {
        fuse_reply_attr(req, &st, CACHE_SECONDS);
    }
}

static void fs_getattr(fuse_req_t req, fuse_ino_t ino,
                       struct fuse_file_info *fi)
{
    if (!is_virtual(get_inode(ino))) {
        request_begin(REQ_GETATTR);
    }
    reply_attr(req, get_inode(ino));
}

static int set_size(Inode *inode, off_t size, struct fuse_file_info *fi)
{
    ProcPath p = proc_path(inode);
    int ret = size_verdict(size);

    if (ret < 0) {
        return ret;
    }
    if ((fi ? ftruncate(fi->fh, size) : truncate(p.path, size)) < 0) {
        return -errno;
    }
    written_truncate(&inode->written, size);
    return 0;
}

static int set_owner(Inode *inode, const struct stat *attr, int which)
{
    uid_t uid = (which & FUSE_SET_ATTR_UID) ? attr->st_uid : (uid_t)-1;
    gid_t gid = (which & FUSE_SET_ATTR_GID) ? attr->st_gid : (gid_t)-1;

    if (fchownat(inode->fd, "", uid, gid,
                 AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0) {
        return -errno;
    }
    return 0;
}

static struct timespec new_time(int which, int set, int now,
                                struct timespec time)
{
    if (which & now) {
        time.tv_nsec = UTIME_NOW;
    } else if (!(which & set)) {
        time.tv_nsec = UTIME_OMIT;
    }
    return time;
}

static int set_times(Inode *inode, const struct stat *attr, int which)
{
    ProcPath p = proc_path(inode);
    struct timespec times[2] = {
        new_time(which, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW,
                 attr->st_atim),
        new_time(which, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW,
                 attr->st_mtim),
    };

    return utimensat(AT_FDCWD, p.path, times, 0) < 0 ? -errno : 0;
}

static int set_attr(Inode *inode, const struct stat *attr, int which,
                    struct fuse_file_info *fi)
{
    ProcPath p = proc_path(inode);
    int ret = 0;

    if ((which & FUSE_SET_ATTR_MODE) && chmod(p.path, attr->st_mode) < 0) {
        return -errno;
    }
    if (which & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) {
        ret = set_owner(inode, attr, which);
    }
    if (ret == 0 && (which & FUSE_SET_ATTR_SIZE)) {
        ret = set_size(inode, attr->st_size, fi);
    }
    if (ret == 0 && (which & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME))) {
        ret = set_times(inode, attr, which);
    }
    return ret;
}

static void fs_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr,
                       int which, struct fuse_file_info *fi)
{
    Inode *inode = get_inode(ino);
    int ret = 0;

    if (!is_virtual(inode)) {
        request_begin((which & FUSE_SET_ATTR_SIZE) ? REQ_TRUNCATE :
                      REQ_SETATTR);
        ret = set_attr(inode, attr, which, fi);
    }
    if (ret < 0) {
        reply_result(req, ret);
    } else {
        reply_attr(req, inode);
    }
}

static void fs_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct statvfs st;

    request_begin(REQ_STATFS);
    if (fstatvfs(root.fd, &st) < 0) {
        fuse_reply_err(req, errno);
    } else {
        fuse_reply_statfs(req, &st);
    }
}

/* ---- directories ---- */

static DIR *get_dir(struct fuse_file_info *fi)
{
    return (DIR *)(uintptr_t)fi->fh;
}

static void fs_opendir(fuse_req_t req, fuse_ino_t ino,
                       struct fuse_file_info *fi)
{
    int fd;
    DIR *dir;

    request_begin(REQ_OPENDIR);
    fd = openat(get_inode(ino)->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    dir = fdopendir(fd);
    if (!dir) {
        fuse_reply_err(req, errno);
        close(fd);
        return;
    }
    fi->fh = (uintptr_t)dir;
    fuse_reply_open(req, fi);
}

/* Returns the bytes put into @buf or a negative errno. */
static ssize_t list_dir(fuse_req_t req, DIR *dir, char *buf, size_t size)
{
    size_t used = 0;

    for (;;) {
        struct stat st = { 0 };
        struct dirent *d;
        size_t needed;

        errno = 0;
        d = readdir(dir);
        if (!d) {
            return used || !errno ? (ssize_t)used : -errno;
        }
        st.st_ino = d->d_ino;
        st.st_mode = DTTOIF(d->d_type);
        needed = fuse_add_direntry(req, buf + used, size - used, d->d_name,
                                   &st, telldir(dir));
        if (needed > size - used) {
            return used;
        }
        used += needed;
    }
}

static void fs_readdir(fuse_req_t req, fuse_ino_t ino, size_t size,
                       off_t offset, struct fuse_file_info *fi)
{
    char *buf = malloc(size);
    ssize_t used;

    request_begin(REQ_READDIR);
    if (!buf) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    if (offset == 0) {
        rewinddir(get_dir(fi));
    } else {
        seekdir(get_dir(fi), offset);
    }
    used = list_dir(req, get_dir(fi), buf, size);
    if (used < 0) {
        reply_result(req, used);
    } else {
        fuse_reply_buf(req, buf, used);
    }
    free(buf);
}

static void fs_releasedir(fuse_req_t req, fuse_ino_t ino,
                          struct fuse_file_info *fi)
{
    closedir(get_dir(fi));
    fuse_reply_err(req, 0);
}

/* ---- virtual files ---- */

static void open_virtual(fuse_req_t req, const Inode *inode,
                         struct fuse_file_info *fi)
{
    char *json = NULL;

    if (inode == &stats_file) {
        json = counters_json();
        if (!json) {
            fuse_reply_err(req, ENOMEM);
            return;
        }
    }
    fi->fh = (uintptr_t)json;
    fi->direct_io = 1;          /* never cached, and read behind st_size */
    if (fuse_reply_open(req, fi) == -ENOENT) {
        free(json);             /* interrupted: there will be no release */
    }
}

static void read_virtual(fuse_req_t req, size_t size, off_t offset,
                         struct fuse_file_info *fi)
{
    const char *text = (const char *)(uintptr_t)fi->fh;
    size_t length = text ? strlen(text) : 0;
    char *copy;

    if ((uint64_t)offset >= length) {
        fuse_reply_buf(req, NULL, 0);
        return;
    }
    /* The reader may release the text before the reply is through here. */
    copy = strndup(text + offset, size);
    if (!copy) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    fuse_reply_buf(req, copy, strlen(copy));
    free(copy);
}

/* Applies "key=value" lines up to the first bad one. */
static int apply_control(const char *buf, size_t size)
{
    char *text = strndup(buf, size);
    char *line, *next = text;
    int ret = 0;

    if (!text) {
        return -ENOMEM;
    }
    while (ret == 0 && (line = strsep(&next, "\n"))) {
        if (*line) {
            ret = behaviour_set(line, false);
        }
    }
    free(text);
    return ret;
}

static void write_virtual(fuse_req_t req, const Inode *inode, const char *buf,
                          size_t size)
{
    int ret = 0;

    if (inode == &reset_file) {
        reset_counters();
    } else {
        ret = apply_control(buf, size);
    }
    if (ret < 0) {
        reply_result(req, ret);
    } else {
        fuse_reply_write(req, size);
    }
}

/* ---- files ---- */

/* The flags to open the backing file with. */
static int backing_flags(int flags)
{
    /* Offsets come from the kernel, buffers are not aligned. */
    flags &= ~(O_APPEND | O_DIRECT | O_NOFOLLOW);
    /* To cache a write to part of a page the kernel reads the page. */
    if (mount_settings.writeback && (flags & O_ACCMODE) == O_WRONLY) {
        flags = (flags & ~O_ACCMODE) | O_RDWR;
    }
    return flags | O_CLOEXEC;
}

static void fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    Inode *inode = get_inode(ino);
    ProcPath p = proc_path(inode);
    int ret, fd;

    if (is_virtual(inode)) {
        open_virtual(req, inode, fi);
        return;
    }
    request_begin(REQ_OPEN);
    ret = open_verdict(fi->flags);
    if (ret < 0) {
        reply_result(req, ret);
        return;
    }
    fd = open(p.path, backing_flags(fi->flags));
    if (fd < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    if (fi->flags & O_TRUNC) {
        written_truncate(&inode->written, 0);
    }
    fi->fh = fd;
    fi->keep_cache = 1;
    if (fuse_reply_open(req, fi) == -ENOENT) {
        close(fd);              /* interrupted: there will be no release */
    }
}

static void fs_create(fuse_req_t req, fuse_ino_t parent, const char *name,
                      mode_t mode, struct fuse_file_info *fi)
{
    struct fuse_entry_param entry;
    int ret, fd;

    request_begin(REQ_CREATE);
    ret = open_verdict(fi->flags);
    if (ret < 0) {
        reply_result(req, ret);
        return;
    }
    fd = openat(get_inode(parent)->fd, name,
                backing_flags(fi->flags) | O_CREAT, mode);
    if (fd < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    ret = look_up(parent, name, &entry);
    if (ret < 0) {
        close(fd);
        reply_result(req, ret);
        return;
    }
    if (fi->flags & O_TRUNC) {
        written_truncate(&get_inode(entry.ino)->written, 0);
    }
    fi->fh = fd;
    fi->keep_cache = 1;
    if (fuse_reply_create(req, &entry, fi) == -ENOENT) {
        close(fd);
        forget_inode(get_inode(entry.ino), 1);
    }
}

static void fs_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                    struct fuse_file_info *fi)
{
    char *buf;
    ssize_t got;

    if (is_virtual(get_inode(ino))) {
        read_virtual(req, size, offset, fi);
        return;
    }
    request_begin(REQ_READ);
    buf = malloc(size);
    if (!buf) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    got = pread(fi->fh, buf, size, offset);
    if (got < 0) {
        fuse_reply_err(req, errno);
    } else {
        read_done(got);
        fuse_reply_buf(req, buf, got);
    }
    free(buf);
}

/* Makes the file reach to @end at least. */
static int extend(int fd, off_t end)
{
    static pthread_mutex_t extend_lock = PTHREAD_MUTEX_INITIALIZER;
    struct stat st;
    int ret = 0;

    pthread_mutex_lock(&extend_lock);
    if (fstat(fd, &st) < 0 ||
        (st.st_size < end && ftruncate(fd, end) < 0)) {
        ret = -errno;
    }
    pthread_mutex_unlock(&extend_lock);
    return ret;
}

/* Returns the bytes written, or a negative errno if there are none. */
static ssize_t write_backing(int fd, const char *buf, size_t size,
                             off_t offset)
{
    size_t done = 0;

    if (mount_settings.discard_data) {
        int ret = extend(fd, offset + size);

        return ret < 0 ? ret : (ssize_t)size;
    }
    while (done < size) {
        ssize_t n = pwrite(fd, buf + done, size - done, offset + done);

        if (n < 0 && errno != EINTR) {
            return done ? (ssize_t)done : -errno;
        }
        done += n > 0 ? n : 0;
    }
    return done;
}

static void fs_write(fuse_req_t req, fuse_ino_t ino, const char *buf,
                     size_t size, off_t offset, struct fuse_file_info *fi)
{
    Inode *inode = get_inode(ino);
    size_t accepted;
    ssize_t ret;

    if (is_virtual(inode)) {
        write_virtual(req, inode, buf, size);
        return;
    }
    ret = write_begin(&inode->written, offset, size, &accepted);
    if (ret == 0) {
        ret = write_backing(fi->fh, buf, accepted, offset);
    }
    write_end();
    if (ret < 0) {
        reply_result(req, ret);
    } else {
        fuse_reply_write(req, ret);
    }
}

static void fs_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
                     struct fuse_file_info *fi)
{
    int ret;

    if (is_virtual(get_inode(ino))) {
        fuse_reply_err(req, 0);
        return;
    }
    request_begin(REQ_FSYNC);
    ret = fsync_verdict();
    if (ret < 0) {
        reply_result(req, ret);
        return;
    }
    ret = datasync ? fdatasync(fi->fh) : fsync(fi->fh);
    fuse_reply_err(req, ret < 0 ? errno : 0);
}

static void fs_flush(fuse_req_t req, fuse_ino_t ino,
                     struct fuse_file_info *fi)
{
    int fd;

    if (is_virtual(get_inode(ino))) {
        fuse_reply_err(req, 0);
        return;
    }
    request_begin(REQ_FLUSH);
    /* Closing a duplicate makes the backing file report its errors. */
    fd = fcntl(fi->fh, F_DUPFD_CLOEXEC, 0);
    fuse_reply_err(req, fd < 0 || close(fd) < 0 ? errno : 0);
}

static void fs_release(fuse_req_t req, fuse_ino_t ino,
                       struct fuse_file_info *fi)
{
    if (is_virtual(get_inode(ino))) {
        free((char *)(uintptr_t)fi->fh);
    } else {
        request_begin(REQ_RELEASE);
        close(fi->fh);
    }
    fuse_reply_err(req, 0);
}

static void fs_fallocate(fuse_req_t req, fuse_ino_t ino, int mode,
                         off_t offset, off_t length,
                         struct fuse_file_info *fi)
{
    int ret;

    if (is_virtual(get_inode(ino))) {
        fuse_reply_err(req, EOPNOTSUPP);
        return;
    }
    request_begin(REQ_FALLOCATE);
    ret = fallocate_verdict();
    if (ret == 0) {
        ret = size_verdict((uint64_t)offset + length);
    }
    if (ret < 0) {
        reply_result(req, ret);
        return;
    }
    ret = fallocate(fi->fh, mode, offset, length);
    fuse_reply_err(req, ret < 0 ? errno : 0);
}

static void fs_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence,
                     struct fuse_file_info *fi)
{
    off_t found;

    if (is_virtual(get_inode(ino))) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    request_begin(REQ_LSEEK);
    found = lseek(fi->fh, offset, whence);
    if (found < 0) {
        fuse_reply_err(req, errno);
    } else {
        fuse_reply_lseek(req, found);
    }
}

static void fs_init(void *userdata, struct fuse_conn_info *conn)
{
    if (mount_settings.max_write) {
        conn->max_write = mount_settings.max_write;
    }
    if (mount_settings.writeback &&
        (conn->capable & FUSE_CAP_WRITEBACK_CACHE)) {
        conn->want |= FUSE_CAP_WRITEBACK_CACHE;
    }
    /*
     * Otherwise our own writes, as they change the mtime, would empty the
     * page cache at the next stat, and tests could not see what fills it.
     */
    conn->want &= ~FUSE_CAP_AUTO_INVAL_DATA;
}

/* Without getlk, setlk and flock the kernel keeps all locks itself. */
static const struct fuse_lowlevel_ops operations = {
    .init = fs_init,
    .lookup = fs_lookup,
    .forget = fs_forget,
    .forget_multi = fs_forget_multi,
    .getattr = fs_getattr,
    .setattr = fs_setattr,
    .readlink = fs_readlink,
    .mknod = fs_mknod,
    .mkdir = fs_mkdir,
    .unlink = fs_unlink,
    .rmdir = fs_rmdir,
    .symlink = fs_symlink,
    .rename = fs_rename,
    .link = fs_link,
    .open = fs_open,
    .create = fs_create,
    .read = fs_read,
    .write = fs_write,
    .flush = fs_flush,
    .release = fs_release,
    .fsync = fs_fsync,
    .fallocate = fs_fallocate,
    .lseek = fs_lseek,
    .statfs = fs_statfs,
    .opendir = fs_opendir,
    .readdir = fs_readdir,
    .releasedir = fs_releasedir,
};

/* ---- command line ---- */

static const char *backing_dir;

/* fuse_opt_parse() callback: 0 consumes @arg, 1 leaves it to libfuse. */
static int take_argument(void *data, const char *arg, int key,
                         struct fuse_args *outargs)
{
    if (key == FUSE_OPT_KEY_NONOPT && !backing_dir) {
        backing_dir = arg;
        return 0;
    }
    if (key != FUSE_OPT_KEY_OPT || *arg == '-' || !behaviour_knows(arg)) {
        return 1;
    }
    if (behaviour_set(arg, true) < 0) {
        fprintf(stderr, "nofalloc-fs: bad value: %s\n", arg);
        return -1;
    }
    return 0;
}

static void print_help(void)
{
    printf("usage: nofalloc-fs BACKING_DIR MOUNTPOINT [options]\n"
           "Mirror BACKING_DIR at MOUNTPOINT, without fallocate(2).\n\n"
           "-o options of nofalloc-fs (\"key=value\" lines written to the\n"
           "file .control in the mount change them later):\n");
    behaviour_help(stdout);
    printf("\noptions of every FUSE file system, see also mount.fuse3(8):\n"
           "    -f                     stay in the foreground\n");
    fuse_lowlevel_help();
}

static int open_root(void)
{
    struct stat st;

    root.fd = open(backing_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root.fd < 0 || fstat(root.fd, &st) < 0) {
        fprintf(stderr, "nofalloc-fs: %s: %s\n", backing_dir,
                strerror(errno));
        return -1;
    }
    root.dev = st.st_dev;
    root.ino = st.st_ino;
    return 0;
}

/* Every file that the kernel knows takes a descriptor. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int serve_requests(struct fuse_session *session)
{
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    int ret;

    if (!config) {
        return -ENOMEM;
    }
    fuse_loop_cfg_set_max_threads(config, THREADS);
    ret = fuse_session_loop_mt(session, config);
    fuse_loop_cfg_destroy(config);
    return ret;
}

static int run_session(struct fuse_session *session,
                       const struct fuse_cmdline_opts *opts)
{
    int ret = -1;

    if (fuse_set_signal_handlers(session) != 0) {
        return -1;
    }
    if (fuse_session_mount(session, opts->mountpoint) == 0) {
        if (fuse_daemonize(opts->foreground) == 0) {
            ret = serve_requests(session);
        }
        fuse_session_unmount(session);
    }
    fuse_remove_signal_handlers(session);
    return ret;
}

static int mount_and_serve(struct fuse_args *args,
                           const struct fuse_cmdline_opts *opts)
{
    struct fuse_session *session;
    int ret;

    if (!backing_dir || !opts->mountpoint) {
        fprintf(stderr, "usage: nofalloc-fs BACKING_DIR MOUNTPOINT "
                "[options], see --help\n");
        return -1;
    }
    if (open_root() < 0) {
        return -1;
    }
    umask(0);                   /* the kernel has applied the caller's */
    raise_descriptor_limit();
    session = fuse_session_new(args, &operations, sizeof(operations), NULL);
    if (!session) {
        close(root.fd);
        return -1;
    }
    ret = run_session(session, opts);
    fuse_session_destroy(session);
    free_table();
    close(root.fd);
    return ret;
}

int main(int argc, char **argv)
{
    struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
    struct fuse_cmdline_opts opts = { 0 };
    int ret = -1;

    if (fuse_opt_parse(&args, NULL, NULL, take_argument) == 0 &&
        fuse_parse_cmdline(&args, &opts) == 0) {
        if (opts.show_help) {
            print_help();
            ret = 0;
        } else {
            ret = mount_and_serve(&args, &opts);
        }
    }
    free(opts.mountpoint);
    fuse_opt_free_args(&args);
    return ret < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

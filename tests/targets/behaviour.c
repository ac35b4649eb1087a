/*
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Settings, faults and counters of nofalloc-fs. One lock covers them all:
 * nothing that blocks is done under it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "behaviour.h"

#define MAX_ERRNO 133

static const char *const request_names[REQUESTS] = {
    [REQ_LOOKUP] = "lookup",
    [REQ_GETATTR] = "getattr",
    [REQ_SETATTR] = "setattr",
    [REQ_TRUNCATE] = "truncate",
    [REQ_OPEN] = "open",
    [REQ_CREATE] = "create",
    [REQ_READ] = "read",
    [REQ_WRITE] = "write",
    [REQ_FSYNC] = "fsync",
    [REQ_FLUSH] = "flush",
    [REQ_RELEASE] = "release",
    [REQ_FALLOCATE] = "fallocate",
    [REQ_LSEEK] = "lseek",
    [REQ_STATFS] = "statfs",
    [REQ_OPENDIR] = "opendir",
    [REQ_READDIR] = "readdir",
    [REQ_LINK] = "link",
    [REQ_UNLINK] = "unlink",
    [REQ_RENAME] = "rename",
    [REQ_READLINK] = "readlink",
};

/* Strikes once: at the request that counts @countdown down from 1 to 0. */
typedef struct Fault {
    uint64_t countdown;         /* 0: off */
    int err;
    size_t bytes;
} Fault;

typedef struct Settings {
    uint64_t latency_us;
    uint32_t latency_ops;       /* bit mask of Request */
    int fallocate_errno;        /* 0: pass it on to the backing file */
    bool refuse_o_direct;
    Fault fail_write;
    Fault short_write;
    Fault fail_fsync;
    uint64_t quota;
    int quota_errno;
    uint64_t max_file_size;
} Settings;

typedef struct Counters {
    uint64_t requests[REQUESTS];
    uint64_t write_bytes;
    uint64_t write_largest;
    uint64_t write_smallest;
    uint64_t write_one_byte;
    uint64_t write_in_flight_max;
    uint64_t write_rewritten;
    uint64_t write_lowest_offset;
    uint64_t write_highest_end;
    uint64_t read_bytes;
    uint64_t faults;
} Counters;

MountSettings mount_settings;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Settings settings = {
    .latency_ops = 1u << REQ_READ | 1u << REQ_WRITE | 1u << REQ_FSYNC |
                   1u << REQ_FALLOCATE,
    .fallocate_errno = EOPNOTSUPP,
    .quota = UINT64_MAX,
    .quota_errno = ENOSPC,
    .max_file_size = INT64_MAX,
};
static Counters counters;
static uint64_t writes_in_flight;
static uint64_t quota_used;     /* bytes written, each counted once */

/* ---- settings ---- */

static int parse_number(const char *text, uint64_t *number)
{
    char *end;

    if (*text < '0' || *text > '9') {
        return -EINVAL;
    }
    errno = 0;
    *number = strtoull(text, &end, 10);
    return errno || *end ? -EINVAL : 0;
}

static int parse_bool(const char *text, bool *value)
{
    if (strcmp(text, "0") && strcmp(text, "1")) {
        return -EINVAL;
    }
    *value = *text == '1';
    return 0;
}

static int parse_errno(const char *text, int *err)
{
    int number;

    for (number = 1; number <= MAX_ERRNO; number++) {
        const char *name = strerrorname_np(number);

        if (name && !strcmp(name, text)) {
            *err = number;
            return 0;
        }
    }
    return -EINVAL;
}

/* Splits "N:REST" (or "N", with *@rest NULL). */
static int parse_number_and_rest(const char *text, uint64_t *number,
                                 const char **rest)
{
    char digits[24] = "";
    size_t length = strcspn(text, ":");

    if (length >= sizeof(digits)) {
        return -EINVAL;
    }
    memcpy(digits, text, length);
    *rest = text[length] ? text + length + 1 : NULL;
    return parse_number(digits, number);
}

static int parse_failing(const char *text, Fault *fault)
{
    Fault parsed = { .err = EIO };
    const char *rest;

    if (parse_number_and_rest(text, &parsed.countdown, &rest) < 0 ||
        (rest && parse_errno(rest, &parsed.err) < 0)) {
        return -EINVAL;
    }
    *fault = parsed;
    return 0;
}

static int set_latency_us(const char *text)
{
    return parse_number(text, &settings.latency_us);
}

static int request_by_name(const char *name, size_t length)
{
    int i;

    for (i = 0; i < REQUESTS; i++) {
        if (strlen(request_names[i]) == length &&
            !memcmp(request_names[i], name, length)) {
            return i;
        }
    }
    return -EINVAL;
}

static int set_latency_ops(const char *text)
{
    uint32_t mask = 0;

    for (;;) {
        size_t length = strcspn(text, ":");
        int request = request_by_name(text, length);

        if (request < 0) {
            return request;
        }
        mask |= 1u << request;
        if (!text[length]) {
            break;
        }
        text += length + 1;
    }
    settings.latency_ops = mask;
    return 0;
}

static int set_fallocate(const char *text)
{
    if (!strcmp(text, "ok")) {
        settings.fallocate_errno = 0;
        return 0;
    }
    return parse_errno(text, &settings.fallocate_errno);
}

static int set_refuse_o_direct(const char *text)
{
    return parse_bool(text, &settings.refuse_o_direct);
}

static int set_fail_write(const char *text)
{
    return parse_failing(text, &settings.fail_write);
}

static int set_short_write(const char *text)
{
    Fault fault = { 0 };
    uint64_t bytes = 0;
    const char *rest;

    if (parse_number_and_rest(text, &fault.countdown, &rest) < 0 ||
        (rest && parse_number(rest, &bytes) < 0)) {
        return -EINVAL;
    }
    fault.bytes = bytes;
    settings.short_write = fault;
    return 0;
}

static int set_fail_fsync(const char *text)
{
    return parse_failing(text, &settings.fail_fsync);
}

static int set_quota(const char *text)
{
    uint64_t bytes;
    int err = ENOSPC;
    const char *rest;

    if (!strcmp(text, "none")) {
        settings.quota = UINT64_MAX;
        return 0;
    }
    if (parse_number_and_rest(text, &bytes, &rest) < 0 ||
        (rest && parse_errno(rest, &err) < 0)) {
        return -EINVAL;
    }
    settings.quota = bytes;
    settings.quota_errno = err;
    return 0;
}

static int set_max_file_size(const char *text)
{
    if (!strcmp(text, "none")) {
        settings.max_file_size = INT64_MAX;
        return 0;
    }
    return parse_number(text, &settings.max_file_size);
}

static int set_max_write(const char *text)
{
    uint64_t bytes;

    /* A page is the least that the kernel takes, 1 MiB the library's most. */
    if (parse_number(text, &bytes) < 0 || bytes < 4096 || bytes > 1048576) {
        return -EINVAL;
    }
    mount_settings.max_write = bytes;
    return 0;
}

static int set_writeback(const char *text)
{
    return parse_bool(text, &mount_settings.writeback);
}

static int set_data(const char *text)
{
    if (strcmp(text, "keep") && strcmp(text, "discard")) {
        return -EINVAL;
    }
    mount_settings.discard_data = *text == 'd';
    return 0;
}

static const struct {
    const char *name;
    bool mount_only;
    int (*set)(const char *value);
    const char *help;
} options[] = {
    { "max_write", true, set_max_write,
      "N: most bytes per WRITE request (4096 to 1048576)" },
    { "writeback", true, set_writeback,
      "0|1: let the kernel cache writes (default 0)" },
    { "data", true, set_data,
      "keep|discard: discard keeps a file's length only (default keep)" },
    { "latency_us", false, set_latency_us,
      "N: microseconds that a request takes (default 0)" },
    { "latency_ops", false, set_latency_ops,
      "A:B:...: requests that take them\n"
      "            (default read:write:fsync:fallocate)" },
    { "fallocate", false, set_fallocate,
      "ERRNO|ok: answer to fallocate; ok passes it on to the\n"
      "            backing file (default EOPNOTSUPP)" },
    { "refuse_o_direct", false, set_refuse_o_direct,
      "0|1: open with O_DIRECT fails with EINVAL (default 0)" },
    { "fail_write", false, set_fail_write,
      "N[:ERRNO]: the Nth WRITE from now fails (EIO), once; 0: off" },
    { "short_write", false, set_short_write,
      "N[:BYTES]: the Nth WRITE from now writes only BYTES (0), once" },
    { "fail_fsync", false, set_fail_fsync,
      "N[:ERRNO]: the Nth FSYNC from now fails (EIO), once; 0: off" },
    { "quota", false, set_quota,
      "N[:ERRNO]|none: WRITEs fail (ENOSPC) once N bytes are written;\n"
      "            bytes written again do not count" },
    { "max_file_size", false, set_max_file_size,
      "N|none: WRITE, truncate and fallocate fail with EFBIG behind N" },
};

#define OPTIONS (sizeof(options) / sizeof(options[0]))

/* Returns the index of the option that @assignment sets, or -1. */
static int find_option(const char *assignment, const char **value)
{
    size_t length = strcspn(assignment, "=");
    size_t i;

    if (assignment[length] != '=') {
        return -1;
    }
    *value = assignment + length + 1;
    for (i = 0; i < OPTIONS; i++) {
        if (strlen(options[i].name) == length &&
            !memcmp(options[i].name, assignment, length)) {
            return i;
        }
    }
    return -1;
}

bool behaviour_knows(const char *assignment)
{
    const char *value;

    return find_option(assignment, &value) >= 0;
}

int behaviour_set(const char *assignment, bool mounting)
{
    const char *value;
    int i = find_option(assignment, &value);
    int ret;

    if (i < 0 || (options[i].mount_only && !mounting)) {
        return -EINVAL;
    }
    pthread_mutex_lock(&lock);
    ret = options[i].set(value);
    pthread_mutex_unlock(&lock);
    return ret;
}

void behaviour_help(FILE *out)
{
    size_t i;

    for (i = 0; i < OPTIONS; i++) {
        fprintf(out, "    %s=%s%s\n", options[i].name, options[i].help,
                options[i].mount_only ? " [mount only]" : "");
    }
}

/* ---- requests ---- */

static void sleep_us(uint64_t us)
{
    struct timespec left = { us / 1000000, us % 1000000 * 1000 };

    while (us && nanosleep(&left, &left) < 0 && errno == EINTR) {
        /* nanosleep() has put the remainder into left */
    }
}

/* Called with lock held; returns the time that the request is to take. */
static uint64_t count_request(Request request)
{
    counters.requests[request]++;
    return (settings.latency_ops & 1u << request) ? settings.latency_us : 0;
}

void request_begin(Request request)
{
    uint64_t us;

    pthread_mutex_lock(&lock);
    us = count_request(request);
    pthread_mutex_unlock(&lock);
    sleep_us(us);
}

/* Called with lock held. */
static bool strikes(Fault *fault)
{
    if (fault->countdown == 0 || --fault->countdown > 0) {
        return false;
    }
    counters.faults++;
    return true;
}

/* Called with lock held. */
static void count_write(uint64_t offset, size_t bytes)
{
    if (counters.requests[REQ_WRITE] == 1 || bytes < counters.write_smallest) {
        counters.write_smallest = bytes;
    }
    if (counters.requests[REQ_WRITE] == 1 ||
        offset < counters.write_lowest_offset) {
        counters.write_lowest_offset = offset;
    }
    if (offset + bytes > counters.write_highest_end) {
        counters.write_highest_end = offset + bytes;
    }
    if (bytes > counters.write_largest) {
        counters.write_largest = bytes;
    }
    if (writes_in_flight > counters.write_in_flight_max) {
        counters.write_in_flight_max = writes_in_flight;
    }
    counters.write_bytes += bytes;
    counters.write_one_byte += bytes == 1;
}

/* Called with lock held. */
static int write_verdict(uint64_t offset, size_t *bytes)
{
    bool fails = strikes(&settings.fail_write);
    bool is_short = strikes(&settings.short_write);

    if (fails) {
        return -settings.fail_write.err;
    }
    if (is_short && settings.short_write.bytes < *bytes) {
        *bytes = settings.short_write.bytes;
    }
    if (offset + *bytes > settings.max_file_size) {
        return -EFBIG;
    }
    return 0;
}

/*
 * Called with lock held. Bytes count before they are written, so that
 * parallel writes cannot exceed the quota together.
 */
static int account_written(Ranges *written, uint64_t offset, size_t bytes)
{
    uint64_t again = ranges_overlap(written, offset, offset + bytes);
    int ret;

    if (quota_used + bytes - again > settings.quota) {
        return -settings.quota_errno;
    }
    ret = ranges_add(written, offset, offset + bytes);
    if (ret < 0) {
        return ret;
    }
    counters.write_rewritten += again;
    quota_used += bytes - again;
    return 0;
}

int write_begin(Ranges *written, uint64_t offset, size_t bytes,
                size_t *accepted)
{
    uint64_t us;
    int ret;

    pthread_mutex_lock(&lock);
    us = count_request(REQ_WRITE);
    writes_in_flight++;
    count_write(offset, bytes);
    *accepted = bytes;
    ret = write_verdict(offset, accepted);
    if (ret == 0) {
        ret = account_written(written, offset, *accepted);
    }
    pthread_mutex_unlock(&lock);
    sleep_us(us);
    return ret;
}

void write_end(void)
{
    pthread_mutex_lock(&lock);
    writes_in_flight--;
    pthread_mutex_unlock(&lock);
}

int fsync_verdict(void)
{
    int ret;

    pthread_mutex_lock(&lock);
    ret = strikes(&settings.fail_fsync) ? -settings.fail_fsync.err : 0;
    pthread_mutex_unlock(&lock);
    return ret;
}

int fallocate_verdict(void)
{
    int ret;

    pthread_mutex_lock(&lock);
    ret = -settings.fallocate_errno;
    pthread_mutex_unlock(&lock);
    return ret;
}

int open_verdict(int flags)
{
    int ret;

    pthread_mutex_lock(&lock);
    ret = (flags & O_DIRECT) && settings.refuse_o_direct ? -EINVAL : 0;
    pthread_mutex_unlock(&lock);
    return ret;
}

int size_verdict(uint64_t size)
{
    int ret;

    pthread_mutex_lock(&lock);
    ret = size > settings.max_file_size ? -EFBIG : 0;
    pthread_mutex_unlock(&lock);
    return ret;
}

void read_done(size_t bytes)
{
    pthread_mutex_lock(&lock);
    counters.read_bytes += bytes;
    pthread_mutex_unlock(&lock);
}

void written_truncate(Ranges *written, uint64_t size)
{
    pthread_mutex_lock(&lock);
    quota_used -= ranges_truncate(written, size);
    pthread_mutex_unlock(&lock);
}

bool written_any(const Ranges *written)
{
    bool any;

    pthread_mutex_lock(&lock);
    any = written->count > 0;
    pthread_mutex_unlock(&lock);
    return any;
}

void written_forget(Ranges *written)
{
    pthread_mutex_lock(&lock);
    quota_used -= ranges_truncate(written, 0);
    ranges_clear(written);
    pthread_mutex_unlock(&lock);
}

/* ---- counters ---- */

static void print_counters(FILE *out, const Counters *c)
{
    const struct {
        const char *name;
        uint64_t value;
    } fields[] = {
        { "write_bytes", c->write_bytes },
        { "write_largest", c->write_largest },
        { "write_smallest", c->write_smallest },
        { "write_one_byte", c->write_one_byte },
        { "write_in_flight_max", c->write_in_flight_max },
        { "write_rewritten", c->write_rewritten },
        { "write_lowest_offset", c->write_lowest_offset },
        { "write_highest_end", c->write_highest_end },
        { "read_bytes", c->read_bytes },
        { "faults", c->faults },
    };
    size_t i;

    fprintf(out, "{");
    for (i = 0; i < REQUESTS; i++) {
        fprintf(out, "\"%s\": %" PRIu64 ",\n", request_names[i],
                c->requests[i]);
    }
    for (i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        fprintf(out, "%s\"%s\": %" PRIu64, i ? ",\n" : "", fields[i].name,
                fields[i].value);
    }
    fprintf(out, "}\n");
}

char *counters_json(void)
{
    Counters copy;
    char *text = NULL;
    size_t size;
    FILE *out;

    pthread_mutex_lock(&lock);
    copy = counters;
    pthread_mutex_unlock(&lock);

    out = open_memstream(&text, &size);
    if (!out) {
        return NULL;
    }
    print_counters(out, &copy);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

void counters_reset(void)
{
    pthread_mutex_lock(&lock);
    counters = (Counters) { .write_in_flight_max = writes_in_flight };
    pthread_mutex_unlock(&lock);
}

/*
 * What happened during a test, and what was wrong with it
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "record.h"
#include <pthread.h>

/* A loop that does not end must not fill the memory with complaints */
#define MAX_COMPLAINTS 20

static struct {
    pthread_mutex_t lock;
    GArray *events;
    GPtrArray *complaints;
} all = { .lock = PTHREAD_MUTEX_INITIALIZER };

void record(Event event)
{
    pthread_mutex_lock(&all.lock);
    g_array_append_val(all.events, event);
    pthread_mutex_unlock(&all.lock);
}

void complain(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    pthread_mutex_lock(&all.lock);
    if (all.complaints->len < MAX_COMPLAINTS) {
        g_ptr_array_add(all.complaints, g_strdup_vprintf(format, args));
    }
    pthread_mutex_unlock(&all.lock);
    va_end(args);
}

const GArray *recorded(void)
{
    return all.events;
}

int recorded_count(EventKind kind)
{
    int count = 0;

    for (guint i = 0; i < all.events->len; i++) {
        count += g_array_index(all.events, Event, i).kind == kind;
    }
    return count;
}

char *recorded_complaints(void)
{
    GString *text;

    if (all.complaints->len == 0) {
        return NULL;
    }
    text = g_string_new(NULL);
    for (guint i = 0; i < all.complaints->len; i++) {
        g_string_append_printf(text, "# %s\n",
                               (char *)g_ptr_array_index(all.complaints, i));
    }
    return g_string_free(text, false);
}

void record_free(void)
{
    if (all.events) {
        g_array_free(all.events, true);
        g_ptr_array_free(all.complaints, true);
    }
    all.events = NULL;
}

void record_clear(void)
{
    record_free();
    all.events = g_array_new(false, false, sizeof(Event));
    all.complaints = g_ptr_array_new_with_free_func(g_free);
}

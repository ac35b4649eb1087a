/*
 * Test double: errors that complain when they are set twice
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef UNIT_QAPI_ERROR_H
#define UNIT_QAPI_ERROR_H

struct Error {
    char *message;
};

void error_setg_errno(Error **errp, int os_error, const char *format, ...)
    G_GNUC_PRINTF(3, 4);
void error_free(Error *err);

#endif /* UNIT_QAPI_ERROR_H */

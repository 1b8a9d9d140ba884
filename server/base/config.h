/* A daemon's configuration: one table of options, from which the file is judged, the sample is
 * printed and the values are filled in, so that code, file and docs cannot drift.
 *
 * The file is INI: [section], key = value, comments by # or ;. Unknown sections and keys, keys given
 * twice, wrong units and impossible values are refused, each with file, line, value and what is
 * allowed. Units are required: 64MiB, 250ms; a bare 0 is allowed. The command line
 * (--set section.key=value) overrides the file. Start-up only, one thread. */
#ifndef CAIRN_BASE_CONFIG_H
#define CAIRN_BASE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/base/text.h"

enum option_type {
    CAIRN_OPTION_STRING,  /* char *, owned by the configuration; never NULL after _finish */
    CAIRN_OPTION_PATH,    /* char *, absolute, or relative to the working folder; not empty */
    CAIRN_OPTION_ADDRESS, /* char *, "host:port", "[v6]:port" or "/path"; empty if its default is */
    CAIRN_OPTION_ADDRESSES, /* char *, several to listen on, blanks between; may be empty */
    CAIRN_OPTION_BOOL,      /* bool: yes no true false on off */
    CAIRN_OPTION_INT,       /* int64_t */
    CAIRN_OPTION_BYTES,     /* int64_t, bytes: B KiB MiB GiB TiB */
    CAIRN_OPTION_DURATION,  /* int64_t, ms: ms s min h */
    CAIRN_OPTION_FACTOR,    /* int64_t, thousandths: 1.1, no unit */
};

/* One row of a table. */
struct cairn_option {
    const char *section;
    const char *key;
    enum option_type type;
    size_t offset;            /* of the value, in the daemon's struct of values */
    const char *default_text; /* as in the file; NULL: must be given; "" is an empty string */
    int64_t min;              /* of numbers, in bytes, ms or thousandths where it has those */
    int64_t max;
    const char *doc; /* for the printed sample: full sentences, one line each */
};

#define CAIRN_CONFIG_OPTIONS_MAX 64

struct config {
    /* borrowed */
    const struct cairn_option *options; /* [option_count] */
    size_t option_count;                /* at most CAIRN_CONFIG_OPTIONS_MAX */
    void *values;                       /* the daemon's struct */
    /* 0 = not given; a line of the file; -1 = on the command line */
    int given[CAIRN_CONFIG_OPTIONS_MAX];
};

/* Fills in the defaults (which must be valid: asserted). `values` must be zeroed before. */
void config_init(struct config *config, const struct cairn_option *options, size_t option_count,
                 void *values);
/* Frees the strings in `values`. */
void config_release(struct config *config);

/* Reads a file. CAIRN_ERR_CONFIG with "file:line: ..."; CAIRN_ERR_IO: it cannot be read. */
CAIRN_MUST_CHECK cairn_status config_read(struct config *config, const char *path,
                                          struct sentence *why);
/* One override, "section.key=value". */
CAIRN_MUST_CHECK cairn_status config_set(struct config *config, const char *assignment,
                                         struct sentence *why);
/* After file and overrides: everything that has no default was given. */
CAIRN_MUST_CHECK cairn_status config_finish(const struct config *config, struct sentence *why);

/* Prints a sample file: every option with its doc, range and default, commented out. */
void config_print(const struct config *config, FILE *out);

/* ==== config value ==== */

/* One value of the configuration: from its text, judged by its row of the table, and back. Pure. */

#endif

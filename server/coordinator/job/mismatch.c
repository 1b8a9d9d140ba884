/* Says how a worker's spec differs from the job's, and what would make the job so: in words for
 * people, and in rows for programs. The rows of spec_fields.h say how each field is compared and
 * named. */
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/job/openings.h"

#define LINES_SHOWN  10
#define ROWS_TOLD    64
#define SETTINGS_MAX 16 // of a command that is spelled

struct rows {
    struct cairn_sentence *why;
    size_t lines;
    Cairn__Error *error; /* NULL: no memory */
    bool whole;          /* each difference has a row, and each row a setting with its value */
};

static bool add_row(Cairn__Error *error, const struct cairn_spec_difference *d)
{
    Cairn__Difference *row = malloc(sizeof *row);
    if (row == NULL) return false;
    cairn__difference__init(row);
    row->change = (uint32_t)d->change;
    error->differences[error->n_differences++] = row;
    const char *const texts[] = { d->line, d->key, d->value, d->tensor, d->field, d->there };
    char **const copies[] = { &row->line,   &row->key,   &row->value,
                              &row->tensor, &row->field, &row->there };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *copy = strdup(texts[i] != NULL ? texts[i] : "");
        if (copy == NULL) return false;
        *copies[i] = copy;
    }
    return true;
}

static void on_difference(void *context, const struct cairn_spec_difference *d)
{
    struct rows *rows = context;
    if (rows->lines < LINES_SHOWN)
        cairn_sentence_add(rows->why, "%s%s", rows->lines == 0 ? "" : "\n", d->line);
    rows->lines++;
    if (d->key == NULL || d->value == NULL) rows->whole = false;
    if (rows->error == NULL || add_row(rows->error, d)) return;
    cairn__error__free_unpacked(rows->error, NULL);
    rows->error = NULL;
}

/* It is told by an earlier row: wire, of each tensor. */
static bool is_told(const Cairn__Error *error, size_t row)
{
    for (size_t i = 0; i < row; i++)
        if (strcmp(error->differences[i]->key, error->differences[row]->key) == 0) return true;
    return false;
}

/* " --set stage=3 --set 'a b.lr=1'". False: too many to be spelled. */
static bool spell(const Cairn__Error *error, struct cairn_sentence *out)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "._:,+-/";
    size_t count = 0;
    out->text[0] = '\0';
    for (size_t i = 0; i < error->n_differences; i++) {
        const Cairn__Difference *row = error->differences[i];
        if (is_told(error, i)) continue;
        if (count++ == SETTINGS_MAX || strchr(row->key, '\'') != NULL) return false;
        const bool is_plain = strspn(row->key, plain) == strlen(row->key) &&
                              strspn(row->value, plain) == strlen(row->value);
        const char *quote = is_plain ? "" : "'";
        cairn_sentence_add(out, " --set %s%s=%s%s", quote, row->key, row->value, quote);
    }
    return true;
}

/* The way that each row can go: the hardest of them does all. */
static enum cairn_spec_change hardest(const Cairn__Error *error)
{
    enum cairn_spec_change most = CAIRN_SPEC_NEXT_ROUND;
    for (size_t i = 0; i < error->n_differences; i++)
        if (error->differences[i]->change > (uint32_t)most)
            most = (enum cairn_spec_change)error->differences[i]->change;
    return most;
}

static void add_way(const char *job, const struct rows *rows)
{
    struct cairn_sentence settings;
    struct cairn_sentence *why = rows->why;
    if (rows->error == NULL || rows->error->n_differences == 0) return;
    const enum cairn_spec_change change = hardest(rows->error);
    if (change == CAIRN_SPEC_NEVER) {
        cairn_sentence_add(why, "\nno setting makes it so: %s",
                           "an optimizer and how a job began stay as they are; tensors are added, "
                           "frozen and thawed by cairn_job_amend");
        return;
    }
    if (!rows->whole || !spell(rows->error, &settings)) {
        cairn_sentence_add(why, "\nan amendment makes it so: cairn_job_amend, or m.amend(...)");
        return;
    }
    if (change == CAIRN_SPEC_CREATED)
        cairn_sentence_add(why,
                           "\na job of its snapshot is so, moments and step included: `cairn "
                           "snapshot create %s --wait`, then `cairn job create %s --from "
                           "%s/latest%s`",
                           job, job, job, settings.text);
    else
        cairn_sentence_add(
            why, "\nan amendment makes it so: `cairn job amend %s%s`%s", job, settings.text,
            change == CAIRN_SPEC_REOPENED ? " (every worker of it is told, and opens it again)"
                                          : "");
}

void cairn_cluster_opening_differences(const struct cairn_job_spec_data *spec,
                                       const struct cairn_job_spec_data *job,
                                       struct cairn_sentence *why, Cairn__Error **rows_out)
{
    const struct cairn_job_spec_data mine = cairn_spec_with_workers(spec, job);
    struct rows rows = { .why = why, .error = malloc(sizeof *rows.error), .whole = true };
    if (rows.error != NULL) cairn__error__init(rows.error);
    if (rows.error != NULL)
        rows.error->differences = calloc(ROWS_TOLD, sizeof(Cairn__Difference *));
    if (rows.error != NULL && rows.error->differences == NULL) {
        free(rows.error);
        rows.error = NULL;
    }
    const size_t found = cairn_spec_diff(&mine, job, ROWS_TOLD, on_difference, &rows);
    if (found > LINES_SHOWN)
        cairn_sentence_add(why, "\nand %zu more differences", found - LINES_SHOWN);
    if (found > ROWS_TOLD) rows.whole = false;
    add_way(job->name, &rows);
    *rows_out = rows.error;
}

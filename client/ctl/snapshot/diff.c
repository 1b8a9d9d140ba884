/* cairn snapshot diff: in what two snapshots differ: spec, scalars, and every plane, by how much. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/snapshot/place.h"
#include "client/ctl/snapshot/stats.h"
#include "client/ctl/snapshot/sweep.h"
#include "client/ctl/snapshot/text.h"
#include "proto/spec/planes.h"

#define SPEC_LINES 100 // that are shown
enum { SAME = 0, DIFFERENT = 1 };

/* A plane that both have of as many elements. */
struct pair {
    bool compared;
    uint32_t b; /* the tensor's index in B */
    struct ctl_difference difference;
};
struct diff {
    const struct cairn_snapshot *a, *b;
    const char *folder_b;
    struct pair *pairs; /* owned; [tensor of A][CAIRN_PLANE_COUNT] */
    /* owned, of each thread: B once more, a piece of it, and what it has found */
    struct {
        bool is_open;
        struct cairn_snapshot b;
        void *piece;
        struct ctl_difference *found; /* as pairs */
    } threads[CTL_SWEEP_THREADS_MAX];
    /* owned; lines */
    json_t *spec, *scalars, *only;
};

static const struct cairn_job_spec_data *spec_a(const struct diff *d)
{
    return &d->a->manifest.spec;
}

static struct pair *pair_at(const struct diff *d, uint32_t tensor, uint32_t plane)
{
    return &d->pairs[(size_t)tensor * CAIRN_PLANE_COUNT + plane];
}

/* ---- elements ---- */

static bool is_compared(const void *context, uint32_t tensor, uint32_t plane)
{
    return pair_at(context, tensor, plane)->compared;
}

static cairn_status open_thread(struct diff *d, unsigned thread, struct cairn_sentence *why)
{
    if (d->threads[thread].is_open) return CAIRN_OK;
    d->threads[thread].piece = malloc(CTL_SWEEP_PIECE_BYTES);
    d->threads[thread].found = calloc(spec_a(d)->tensor_count * CAIRN_PLANE_COUNT,
                                      sizeof *d->threads[thread].found);
    if (d->threads[thread].piece == NULL || d->threads[thread].found == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    const cairn_status status = cairn_snapshot_open(d->folder_b, &d->threads[thread].b, why);
    d->threads[thread].is_open = status == CAIRN_OK;
    return status;
}

static cairn_status on_piece(void *context, unsigned thread, const struct ctl_piece *piece,
                             struct cairn_sentence *why)
{
    struct diff *d = context;
    cairn_status status = open_thread(d, thread, why);
    if (status != CAIRN_OK) return status;
    const size_t at = (size_t)piece->tensor * CAIRN_PLANE_COUNT + piece->plane;
    void *b = d->threads[thread].piece;
    status = cairn_snapshot_read(&d->threads[thread].b, d->pairs[at].b, piece->plane,
                                 piece->first_elem, piece->elem_count, b, why);
    if (status != CAIRN_OK) return status;
    struct ctl_difference *found = &d->threads[thread].found[at];
    if (spec_a(d)->tensors[piece->tensor].kind == CAIRN_BLOB)
        cairn_ctl_difference_add_bytes(found, piece->first_elem, piece->elems, b,
                                       piece->elem_count);
    else
        cairn_ctl_difference_add(found, piece->first_elem, piece->elems, b, piece->elem_count);
    return CAIRN_OK;
}

static cairn_status compare(const struct ctl *ctl, struct diff *d, const char *folder_a,
                            struct cairn_sentence *why)
{
    struct ctl_progress progress;
    const struct ctl_sweep sweep = { .folder = folder_a,
                                     .snapshot = d->a,
                                     .progress = &progress,
                                     .context = d,
                                     .wants = is_compared,
                                     .on_piece = on_piece };
    const size_t count = spec_a(d)->tensor_count * CAIRN_PLANE_COUNT;
    cairn_ctl_progress_begin(&progress, ctl, "compared", cairn_ctl_sweep_bytes(&sweep));
    const cairn_status status = cairn_ctl_sweep(&sweep, why);
    cairn_ctl_progress_end(&progress);
    for (unsigned t = 0; t < CTL_SWEEP_THREADS_MAX; t++)
        for (size_t i = 0; i < count && d->threads[t].found != NULL; i++)
            cairn_ctl_difference_join(&d->pairs[i].difference, &d->threads[t].found[i]);
    return status;
}

/* ---- all else ---- */

static void note(json_t *lines, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(json_t *lines, const char *format, ...)
{
    struct cairn_sentence line;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line.text, sizeof line.text, format, arguments);
    va_end(arguments);
    json_array_append_new(lines, json_string(line.text));
}

/* A worker and its job are here and on the servers; two snapshots are A and B. */
static void on_difference(void *context, const struct cairn_spec_difference *d)
{
    if (d->here != NULL)
        note(context, "%s %s in A, %s in B", d->what, d->here, d->there);
    else
        note(context, "%s", d->line);
}

static void compare_scalars(struct diff *d)
{
    const struct cairn_manifest *a = &d->a->manifest, *b = &d->b->manifest;
    if (a->step != b->step)
        note(d->scalars, "step: %llu in A, %llu in B", (unsigned long long)a->step,
             (unsigned long long)b->step);
    if (memcmp(&a->loss_scale, &b->loss_scale, sizeof a->loss_scale) != 0)
        note(d->scalars, "loss scale: %.17g in A, %.17g in B", a->loss_scale, b->loss_scale);
    if (a->payload_bytes != b->payload_bytes ||
        (a->payload_bytes > 0 && memcmp(a->payload, b->payload, a->payload_bytes) != 0))
        note(d->scalars, "client state: %zu bytes in A, %zu other ones in B", a->payload_bytes,
             b->payload_bytes);
}

/* Which planes are compared; those that one alone has, or of another shape, are listed. */
static void pair_planes(struct diff *d)
{
    const struct cairn_job_spec_data *a = spec_a(d), *b = &d->b->manifest.spec;
    for (uint32_t t = 0; t < a->tensor_count; t++) {
        const size_t other = cairn_spec_find_tensor(b, a->tensors[t].name);
        const uint32_t stored = cairn_spec_planes(a, t);
        const uint32_t there = other != SIZE_MAX ? cairn_spec_planes(b, other) : 0;
        const bool alike = other != SIZE_MAX &&
                           memcmp(&a->tensors[t].shape, &b->tensors[other].shape,
                                  sizeof a->tensors[t].shape) == 0;
        for (uint32_t p = 0; p < CAIRN_PLANE_COUNT; p++) {
            const bool in_a = (stored & 1u << p) != 0, in_b = (there & 1u << p) != 0;
            const char *name = a->tensors[t].name, *plane = cairn_plane_name((int)p);
            if (in_a && in_b && alike &&
                cairn_spec_plane_dtype(a, t, p) == cairn_spec_plane_dtype(b, other, p))
                *pair_at(d, t, p) = (struct pair) { .compared = true, .b = (uint32_t)other };
            else if (in_a && in_b)
                note(d->only, "%s, %s: of another shape or dtype", name, plane);
            else if (in_a || in_b)
                note(d->only, "%s, %s: in %s alone", name, plane, in_a ? "A" : "B");
        }
    }
    for (size_t t = 0; t < b->tensor_count; t++)
        if (cairn_spec_planes(b, t) != 0 &&
            cairn_spec_find_tensor(a, b->tensors[t].name) == SIZE_MAX)
            note(d->only, "%s: in B alone", b->tensors[t].name);
}

/* ---- printing ---- */

static json_t *pair_json(const struct diff *d, uint32_t tensor, uint32_t plane)
{
    const struct ctl_difference *x = &pair_at(d, tensor, plane)->difference;
    const double relative = cairn_ctl_difference_relative(x);
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:f, s:o, s:I}", "tensor", spec_a(d)->tensors[tensor].name, "plane",
        cairn_plane_name((int)plane), "elements", (json_int_t)x->elems, "first",
        (json_int_t)x->first_elem, "max_abs", x->max, "relative_l2",
        isfinite(relative) ? json_real(relative) : json_null(), "nonfinite", (json_int_t)x->unlike);
}

static json_t *pairs_json(const struct diff *d)
{
    json_t *list = json_array();
    for (uint32_t t = 0; t < spec_a(d)->tensor_count; t++)
        for (uint32_t p = 0; p < CAIRN_PLANE_COUNT; p++)
            if (pair_at(d, t, p)->difference.elems > 0)
                json_array_append_new(list, pair_json(d, t, p));
    return list;
}

static void print_lines(const char *what, const json_t *lines)
{
    for (size_t i = 0; i < json_array_size(lines); i++)
        cairn_ctl_line(i == 0 ? what : "", "%s", json_string_value(json_array_get(lines, i)));
}

static void print_pairs(const struct ctl *ctl, const struct diff *d)
{
    static const char *const headers[] = { "TENSOR",  "PLANE",    "ELEMENTS", "FIRST",
                                           "MAX ABS", "RELATIVE", "NONFINITE" };
    struct ctl_table *table = cairn_ctl_table_open(headers, 7);
    for (uint32_t t = 0; t < spec_a(d)->tensor_count; t++) {
        for (uint32_t p = 0; p < CAIRN_PLANE_COUNT; p++) {
            const struct ctl_difference *x = &pair_at(d, t, p)->difference;
            if (x->elems == 0) continue;
            cairn_ctl_table_cell(table, "%s", spec_a(d)->tensors[t].name);
            cairn_ctl_table_cell(table, "%s", cairn_plane_name((int)p));
            cairn_ctl_table_cell(table, "%llu", (unsigned long long)x->elems);
            cairn_ctl_table_cell(table, "%llu", (unsigned long long)x->first_elem);
            cairn_ctl_table_cell(table, "%.6g", x->max);
            cairn_ctl_table_cell(table, "%.6g", cairn_ctl_difference_relative(x));
            cairn_ctl_table_cell(table, "%llu", (unsigned long long)x->unlike);
        }
    }
    cairn_ctl_table_close(table, ctl);
}

static int print(const struct ctl *ctl, const struct diff *d)
{
    json_t *planes = pairs_json(d);
    const bool same = json_array_size(planes) == 0 && json_array_size(d->spec) == 0 &&
                      json_array_size(d->scalars) == 0 && json_array_size(d->only) == 0;
    if (ctl->json) {
        cairn_ctl_print_json(json_pack("{s:b, s:O, s:O, s:O, s:O}", "same", (int)same, "spec",
                                       d->spec, "scalars", d->scalars, "unpaired", d->only,
                                       "planes", planes));
    } else if (!ctl->quiet) {
        print_lines("spec", d->spec);
        print_lines("scalars", d->scalars);
        print_lines("not compared", d->only);
        if (json_array_size(planes) > 0)
            print_pairs(ctl, d);
        else
            cairn_ctl_line("tensors", "the same bits");
    }
    json_decref(planes);
    return same ? SAME : DIFFERENT;
}

/* ---- the command ---- */

static int run(const struct ctl *ctl, struct diff *d, const char *folder_a)
{
    struct cairn_sentence why = { "" };
    const struct cairn_job_spec_data *a = spec_a(d);
    d->pairs = calloc(a->tensor_count * CAIRN_PLANE_COUNT + 1, sizeof *d->pairs);
    d->spec = json_array();
    d->scalars = json_array();
    d->only = json_array();
    if (d->pairs == NULL || d->spec == NULL || d->scalars == NULL || d->only == NULL)
        return cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "no memory");
    const size_t found = cairn_spec_diff(a, &d->b->manifest.spec, SPEC_LINES, on_difference,
                                         d->spec);
    if (found > SPEC_LINES) note(d->spec, "and %zu more differences", found - SPEC_LINES);
    compare_scalars(d);
    pair_planes(d);
    const cairn_status status = compare(ctl, d, folder_a, &why);
    return status == CAIRN_OK ? print(ctl, d) : cairn_ctl_fail(status, "%s", why.text);
}

static void release(struct diff *d)
{
    for (unsigned t = 0; t < CTL_SWEEP_THREADS_MAX; t++) {
        if (d->threads[t].is_open) cairn_snapshot_close(&d->threads[t].b);
        free(d->threads[t].piece);
        free(d->threads[t].found);
    }
    free(d->pairs);
    json_decref(d->spec);
    json_decref(d->scalars);
    json_decref(d->only);
}

/* -1: go on. */
static int find_both(struct ctl *ctl, char a[static PATH_MAX], char b[static PATH_MAX])
{
    if (ctl->path_before != NULL && ctl->argc == 0) {
        const int done = cairn_ctl_absolute("--path", ctl->path_before, a);
        return done >= 0 ? done : cairn_ctl_absolute("--path", ctl->path, b);
    }
    if (ctl->path == NULL && ctl->argc == 3) {
        const int done = cairn_ctl_place_ask(ctl, ctl->argv[0], ctl->argv[1], a);
        return done >= 0 ? done : cairn_ctl_place_ask(ctl, ctl->argv[0], ctl->argv[2], b);
    }
    return cairn_ctl_usage_fail(ctl, "cairn %s needs JOB A B, or --path twice", ctl->words);
}

int cairn_ctl_snapshot_diff(struct ctl *ctl)
{
    struct cairn_snapshot a, b;
    char folder_a[PATH_MAX], folder_b[PATH_MAX];
    int done = find_both(ctl, folder_a, folder_b);
    if (done < 0) done = cairn_ctl_place_open(folder_a, &a);
    if (done >= 0) return done;
    done = cairn_ctl_place_open(folder_b, &b);
    if (done < 0) {
        struct diff d = { .a = &a, .b = &b, .folder_b = folder_b };
        done = run(ctl, &d, folder_a);
        release(&d);
        cairn_snapshot_close(&b);
    }
    cairn_snapshot_close(&a);
    return done;
}

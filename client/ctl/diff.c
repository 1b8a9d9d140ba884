/* cairn snapshot diff: in what two snapshots differ: spec, scalars, and every plane, by how much. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/snapshot.h"
#include "proto/spec/spec.h"

#define SPEC_LINES 100 // that are shown

/* ==== stats ==== */

#define BLOCK \
    ((size_t)1024) // elements that are added up plainly: a double holds their squares' sum

static void add_to_sum(struct ctl_sum *s, double x)
{
    const double sum = s->sum + x;
    s->rest += fabs(s->sum) >= fabs(x) ? s->sum - sum + x : x - sum + s->sum;
    s->sum = sum;
}

static void add_block(struct ctl_stats *stats, const float *elems, size_t count)
{
    double sum = 0, squares = 0;
    float min = INFINITY, max = -INFINITY;
    size_t finite = 0;
    for (size_t i = 0; i < count; i++) {
        const float x = elems[i];
        if (!isfinite(x)) continue;
        finite++;
        sum += (double)x;
        squares += (double)x * (double)x;
        min = x < min ? x : min;
        max = x > max ? x : max;
    }
    stats->nonfinite += count - finite;
    if (finite == 0) return;
    if (stats->finite == 0 || min < stats->min) stats->min = min;
    if (stats->finite == 0 || max > stats->max) stats->max = max;
    stats->finite += finite;
    add_to_sum(&stats->sum, sum);
    add_to_sum(&stats->squares, squares);
}

void ctl_stats_add(struct ctl_stats *stats, const float *elems, size_t count)
{
    for (size_t done = 0; done < count; done += BLOCK)
        add_block(stats, elems + done, count - done < BLOCK ? count - done : BLOCK);
}

static void join_sums(struct ctl_sum *s, const struct ctl_sum *more)
{
    add_to_sum(s, more->sum);
    s->rest += more->rest;
}

void ctl_stats_join(struct ctl_stats *stats, const struct ctl_stats *more)
{
    stats->nonfinite += more->nonfinite;
    if (more->finite == 0) return;
    if (stats->finite == 0 || more->min < stats->min) stats->min = more->min;
    if (stats->finite == 0 || more->max > stats->max) stats->max = more->max;
    stats->finite += more->finite;
    join_sums(&stats->sum, &more->sum);
    join_sums(&stats->squares, &more->squares);
}

double ctl_stats_mean(const struct ctl_stats *stats)
{
    return stats->finite > 0 ? ctl_sum_of(&stats->sum) / (double)stats->finite : 0;
}

double ctl_stats_norm(const struct ctl_stats *stats)
{
    return sqrt(ctl_sum_of(&stats->squares));
}

static void note_first(struct ctl_difference *d, uint64_t elem)
{
    if (d->elems == 0 || elem < d->first_elem) d->first_elem = elem;
    d->elems++;
}

void ctl_difference_add(struct ctl_difference *d, uint64_t first_elem, const float *a,
                        const float *b, size_t count)
{
    for (size_t done = 0; done < count; done += BLOCK) {
        const size_t end = count - done < BLOCK ? count : done + BLOCK;
        double squares = 0, squares_a = 0;
        for (size_t i = done; i < end; i++) {
            const bool same = memcmp(&a[i], &b[i], sizeof a[i]) == 0;
            if (!same) note_first(d, first_elem + i);
            if (!isfinite(a[i]) || !isfinite(b[i])) {
                d->unlike += !same;
                continue;
            }
            const double by = fabs((double)b[i] - (double)a[i]);
            d->max = by > d->max ? by : d->max;
            squares += by * by;
            squares_a += (double)a[i] * (double)a[i];
        }
        add_to_sum(&d->squares, squares);
        add_to_sum(&d->squares_a, squares_a);
    }
}

/* The same of bytes: only elems and first_elem. */
static void difference_add_bytes(struct ctl_difference *d, uint64_t first_elem, const uint8_t *a,
                                 const uint8_t *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (a[i] != b[i]) note_first(d, first_elem + i);
}

/* And all of `more`, of other elements of the same plane. */
static void difference_join(struct ctl_difference *d, const struct ctl_difference *more)
{
    if (more->elems > 0 && (d->elems == 0 || more->first_elem < d->first_elem))
        d->first_elem = more->first_elem;
    d->elems += more->elems;
    d->unlike += more->unlike;
    d->max = more->max > d->max ? more->max : d->max;
    join_sums(&d->squares, &more->squares);
    join_sums(&d->squares_a, &more->squares_a);
}

double ctl_difference_relative(const struct ctl_difference *d)
{
    const double by = ctl_sum_of(&d->squares), of = ctl_sum_of(&d->squares_a);
    return by > 0 ? sqrt(by / of) : 0;
}

/* ==== sweep ==== */

#define RUN_BYTES_MIN ((uint64_t)64 << 20) // of a thread: it opens the snapshot once more

/* The state that the threads of a sweep share. */
struct crew {
    const struct ctl_sweep *sweep;        /* read only */
    const struct snapshot_piece **pieces; /* the same; owned, in the order of the files */
    size_t piece_count;

    pthread_mutex_t mutex; /* of what follows */
    uint64_t done_bytes;
    cairn_status status;
    struct sentence why;
};
struct hand {
    pthread_t thread;
    struct crew *crew;
    unsigned number;
    size_t first, end; /* of the pieces */
};

static size_t elem_bytes(const struct ctl_sweep *sweep, uint32_t tensor, uint32_t plane)
{
    return dtype_size((int)spec_plane_dtype(&sweep->snapshot->manifest.spec, tensor, plane));
}

static uint64_t piece_bytes(const struct ctl_sweep *sweep, const struct snapshot_piece *piece)
{
    return piece->elem_count * elem_bytes(sweep, piece->tensor, piece->plane);
}

static bool wanted(const struct ctl_sweep *sweep, const struct snapshot_piece *piece)
{
    return sweep->wants == NULL || sweep->wants(sweep->context, piece->tensor, piece->plane);
}

uint64_t ctl_sweep_bytes(const struct ctl_sweep *sweep)
{
    const struct snapshot_index *index = &sweep->snapshot->index;
    uint64_t bytes = 0;
    for (size_t i = 0; i < index->piece_count; i++)
        if (wanted(sweep, &index->pieces[i])) bytes += piece_bytes(sweep, &index->pieces[i]);
    return bytes;
}

/* ---- a thread ---- */

/* False: somebody has failed. */
static bool note_sweep(struct crew *crew, cairn_status status, const struct sentence *why,
                       uint64_t bytes)
{
    pthread_mutex_lock(&crew->mutex);
    if (status != CAIRN_OK && crew->status == CAIRN_OK) {
        crew->status = status;
        crew->why = *why;
    }
    crew->done_bytes += bytes;
    ctl_progress_at(crew->sweep->progress, crew->done_bytes);
    const bool on = crew->status == CAIRN_OK;
    pthread_mutex_unlock(&crew->mutex);
    return on;
}

static bool read_piece(const struct hand *hand, struct snapshot *snapshot,
                       const struct snapshot_piece *from, void *buffer)
{
    const struct ctl_sweep *sweep = hand->crew->sweep;
    const size_t bytes = elem_bytes(sweep, from->tensor, from->plane);
    const uint64_t most = CTL_SWEEP_PIECE_BYTES / bytes;
    bool on = true;
    for (uint64_t done = 0; done < from->elem_count && on;) {
        const uint64_t left = from->elem_count - done;
        const struct ctl_piece piece = { .tensor = from->tensor,
                                         .plane = from->plane,
                                         .first_elem = from->first_elem + done,
                                         .elem_count = left < most ? left : most,
                                         .elems = buffer };
        struct sentence why = { "" };
        cairn_status status = snapshot_read(snapshot, piece.tensor, piece.plane, piece.first_elem,
                                            piece.elem_count, buffer, &why);
        if (status == CAIRN_OK)
            status = sweep->on_piece(sweep->context, hand->number, &piece, &why);
        on = note_sweep(hand->crew, status, &why, piece.elem_count * bytes);
        done += piece.elem_count;
    }
    return on;
}

static void *run_sweep(void *argument)
{
    struct hand *hand = argument;
    struct snapshot snapshot;
    struct sentence why = { "" };
    void *buffer = malloc(CTL_SWEEP_PIECE_BYTES);
    cairn_status status = buffer != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK) status = snapshot_open(hand->crew->sweep->folder, &snapshot, &why);
    if (status == CAIRN_OK) {
        for (size_t i = hand->first; i < hand->end; i++)
            if (!read_piece(hand, &snapshot, hand->crew->pieces[i], buffer)) break;
        snapshot_close(&snapshot);
    } else {
        note_sweep(hand->crew, status, &why, 0);
    }
    free(buffer);
    return NULL;
}

/* ---- all of them ---- */

static int file_order(const void *a, const void *b)
{
    const struct snapshot_piece *x = *(const struct snapshot_piece *const *)a;
    const struct snapshot_piece *y = *(const struct snapshot_piece *const *)b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->file_byte < y->file_byte ? -1 : x->file_byte > y->file_byte;
}

static bool list_pieces(struct crew *crew)
{
    const struct snapshot_index *index = &crew->sweep->snapshot->index;
    crew->pieces = malloc((index->piece_count + 1) * sizeof(void *));
    if (crew->pieces == NULL) return false;
    for (size_t i = 0; i < index->piece_count; i++)
        if (wanted(crew->sweep, &index->pieces[i]))
            crew->pieces[crew->piece_count++] = &index->pieces[i];
    qsort(crew->pieces, crew->piece_count, sizeof(void *), file_order);
    return true;
}

/* Deals the pieces to threads, in runs of as many bytes. */
static unsigned deal(struct crew *crew, struct hand hands[CTL_SWEEP_THREADS_MAX])
{
    const uint64_t bytes = ctl_sweep_bytes(crew->sweep);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t wanted = bytes / RUN_BYTES_MIN + 1, dealt = 0;
    if (cores > 0 && wanted > (uint64_t)cores) wanted = (uint64_t)cores;
    if (wanted > CTL_SWEEP_THREADS_MAX) wanted = CTL_SWEEP_THREADS_MAX;
    unsigned count = 0;
    for (size_t i = 0; i < crew->piece_count; i++) {
        if (count == 0 || (count < wanted && dealt >= bytes / wanted * count)) {
            hands[count] = (struct hand) { .crew = crew, .number = count, .first = i };
            count++;
        }
        hands[count - 1].end = i + 1;
        dealt += piece_bytes(crew->sweep, crew->pieces[i]);
    }
    return count;
}

cairn_status ctl_sweep(const struct ctl_sweep *sweep, struct sentence *why)
{
    struct crew crew = { .sweep = sweep, .status = CAIRN_OK };
    struct hand hands[CTL_SWEEP_THREADS_MAX];
    if (!list_pieces(&crew)) return CAIRN_ERR_NO_MEMORY;
    const unsigned count = deal(&crew, hands);
    unsigned started = 0;
    pthread_mutex_init(&crew.mutex, NULL);
    for (; started < count; started++)
        if (pthread_create(&hands[started].thread, NULL, run_sweep, &hands[started]) != 0) break;
    for (unsigned i = started; i < count; i++) run_sweep(&hands[i]); // no thread for it
    for (unsigned i = 0; i < started; i++) pthread_join(hands[i].thread, NULL);
    pthread_mutex_destroy(&crew.mutex);
    free(crew.pieces);
    if (crew.status != CAIRN_OK && why != NULL) *why = crew.why;
    return crew.status;
}

/* ==== diff ==== */

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

static const struct job_spec_data *spec_a(const struct diff *d)
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

static cairn_status open_thread(struct diff *d, unsigned thread, struct sentence *why)
{
    if (d->threads[thread].is_open) return CAIRN_OK;
    d->threads[thread].piece = malloc(CTL_SWEEP_PIECE_BYTES);
    d->threads[thread].found = calloc(spec_a(d)->tensor_count * CAIRN_PLANE_COUNT,
                                      sizeof *d->threads[thread].found);
    if (d->threads[thread].piece == NULL || d->threads[thread].found == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    const cairn_status status = snapshot_open(d->folder_b, &d->threads[thread].b, why);
    d->threads[thread].is_open = status == CAIRN_OK;
    return status;
}

static cairn_status on_piece(void *context, unsigned thread, const struct ctl_piece *piece,
                             struct sentence *why)
{
    struct diff *d = context;
    CAIRN_TRY(open_thread(d, thread, why));
    const size_t at = (size_t)piece->tensor * CAIRN_PLANE_COUNT + piece->plane;
    void *b = d->threads[thread].piece;
    CAIRN_TRY(snapshot_read(&d->threads[thread].b, d->pairs[at].b, piece->plane, piece->first_elem,
                            piece->elem_count, b, why));
    struct ctl_difference *found = &d->threads[thread].found[at];
    if (spec_a(d)->tensors[piece->tensor].kind == CAIRN_BLOB)
        difference_add_bytes(found, piece->first_elem, piece->elems, b, piece->elem_count);
    else
        ctl_difference_add(found, piece->first_elem, piece->elems, b, piece->elem_count);
    return CAIRN_OK;
}

static cairn_status compare_planes(const struct ctl *ctl, struct diff *d, const char *folder_a,
                                   struct sentence *why)
{
    struct ctl_progress progress;
    const struct ctl_sweep sweep = { .folder = folder_a,
                                     .snapshot = d->a,
                                     .progress = &progress,
                                     .context = d,
                                     .wants = is_compared,
                                     .on_piece = on_piece };
    const size_t count = spec_a(d)->tensor_count * CAIRN_PLANE_COUNT;
    ctl_progress_begin(&progress, ctl, "compared", ctl_sweep_bytes(&sweep));
    const cairn_status status = ctl_sweep(&sweep, why);
    ctl_progress_end(&progress);
    for (unsigned t = 0; t < CTL_SWEEP_THREADS_MAX; t++)
        for (size_t i = 0; i < count && d->threads[t].found != NULL; i++)
            difference_join(&d->pairs[i].difference, &d->threads[t].found[i]);
    return status;
}

/* ---- all else ---- */

static void note_diff(json_t *lines, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note_diff(json_t *lines, const char *format, ...)
{
    struct sentence line;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line.text, sizeof line.text, format, arguments);
    va_end(arguments);
    json_array_append_new(lines, json_string(line.text));
}

/* A worker and its job are here and on the servers; two snapshots are A and B. */
static void on_difference(void *context, const struct spec_difference *d)
{
    if (d->here != NULL)
        note_diff(context, "%s %s in A, %s in B", d->what, d->here, d->there);
    else
        note_diff(context, "%s", d->line);
}

static void compare_scalars(struct diff *d)
{
    const struct manifest *a = &d->a->manifest, *b = &d->b->manifest;
    if (a->step != b->step)
        note_diff(d->scalars, "step: %" PRIu64 " in A, %" PRIu64 " in B", a->step, b->step);
    if (memcmp(&a->loss_scale, &b->loss_scale, sizeof a->loss_scale) != 0)
        note_diff(d->scalars, "loss scale: %.17g in A, %.17g in B", a->loss_scale, b->loss_scale);
    if (a->payload_bytes != b->payload_bytes ||
        (a->payload_bytes > 0 && memcmp(a->payload, b->payload, a->payload_bytes) != 0))
        note_diff(d->scalars, "client state: %zu bytes in A, %zu other ones in B", a->payload_bytes,
                  b->payload_bytes);
}

/* Which planes are compared; those that one alone has, or of another shape, are listed. */
static void pair_planes(struct diff *d)
{
    const struct job_spec_data *a = spec_a(d), *b = &d->b->manifest.spec;
    for (uint32_t t = 0; t < a->tensor_count; t++) {
        const size_t other = spec_find_tensor(b, a->tensors[t].name);
        const uint32_t stored = spec_planes(a, t);
        const uint32_t there = other != SIZE_MAX ? spec_planes(b, other) : 0;
        const bool alike = other != SIZE_MAX &&
                           memcmp(&a->tensors[t].shape, &b->tensors[other].shape,
                                  sizeof a->tensors[t].shape) == 0;
        for (uint32_t p = 0; p < CAIRN_PLANE_COUNT; p++) {
            const bool in_a = (stored & 1u << p) != 0, in_b = (there & 1u << p) != 0;
            const char *name = a->tensors[t].name, *plane = plane_name((int)p);
            if (in_a && in_b && alike && spec_plane_dtype(a, t, p) == spec_plane_dtype(b, other, p))
                *pair_at(d, t, p) = (struct pair) { .compared = true, .b = (uint32_t)other };
            else if (in_a && in_b)
                note_diff(d->only, "%s, %s: of another shape or dtype", name, plane);
            else if (in_a || in_b)
                note_diff(d->only, "%s, %s: in %s alone", name, plane, in_a ? "A" : "B");
        }
    }
    for (size_t t = 0; t < b->tensor_count; t++)
        if (spec_planes(b, t) != 0 && spec_find_tensor(a, b->tensors[t].name) == SIZE_MAX)
            note_diff(d->only, "%s: in B alone", b->tensors[t].name);
}

/* ---- printing ---- */

static json_t *pair_json(const struct diff *d, uint32_t tensor, uint32_t plane)
{
    const struct ctl_difference *x = &pair_at(d, tensor, plane)->difference;
    const double relative = ctl_difference_relative(x);
    return json_pack("{s:s, s:s, s:I, s:I, s:f, s:o, s:I}", "tensor",
                     spec_a(d)->tensors[tensor].name, "plane", plane_name((int)plane), "elements",
                     (json_int_t)x->elems, "first", (json_int_t)x->first_elem, "max_abs", x->max,
                     "relative_l2", isfinite(relative) ? json_real(relative) : json_null(),
                     "nonfinite", (json_int_t)x->unlike);
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
        ctl_line(i == 0 ? what : "", "%s", json_string_value(json_array_get(lines, i)));
}

static void print_pairs(const struct ctl *ctl, const struct diff *d)
{
    static const char *const headers[] = { "TENSOR",  "PLANE",    "ELEMENTS", "FIRST",
                                           "MAX ABS", "RELATIVE", "NONFINITE" };
    struct ctl_table *table = ctl_table_open(headers, 7);
    for (uint32_t t = 0; t < spec_a(d)->tensor_count; t++) {
        for (uint32_t p = 0; p < CAIRN_PLANE_COUNT; p++) {
            const struct ctl_difference *x = &pair_at(d, t, p)->difference;
            if (x->elems == 0) continue;
            ctl_table_cell(table, "%s", spec_a(d)->tensors[t].name);
            ctl_table_cell(table, "%s", plane_name((int)p));
            ctl_table_cell(table, "%" PRIu64, x->elems);
            ctl_table_cell(table, "%" PRIu64, x->first_elem);
            ctl_table_cell(table, "%.6g", x->max);
            ctl_table_cell(table, "%.6g", ctl_difference_relative(x));
            ctl_table_cell(table, "%" PRIu64, x->unlike);
        }
    }
    ctl_table_close(table, ctl);
}

static int print_diff(const struct ctl *ctl, const struct diff *d)
{
    json_t *planes = pairs_json(d);
    const bool same = json_array_size(planes) == 0 && json_array_size(d->spec) == 0 &&
                      json_array_size(d->scalars) == 0 && json_array_size(d->only) == 0;
    if (ctl->json) {
        ctl_print_json(json_pack("{s:b, s:O, s:O, s:O, s:O}", "same", (int)same, "spec", d->spec,
                                 "scalars", d->scalars, "unpaired", d->only, "planes", planes));
    } else if (!ctl->quiet) {
        print_lines("spec", d->spec);
        print_lines("scalars", d->scalars);
        print_lines("not compared", d->only);
        if (json_array_size(planes) > 0)
            print_pairs(ctl, d);
        else
            ctl_line("tensors", "the same bits");
    }
    json_decref(planes);
    return same ? SAME : DIFFERENT;
}

/* ---- the command ---- */

static int run_diff(const struct ctl *ctl, struct diff *d, const char *folder_a)
{
    struct sentence why = { "" };
    const struct job_spec_data *a = spec_a(d);
    d->pairs = calloc(a->tensor_count * CAIRN_PLANE_COUNT + 1, sizeof *d->pairs);
    d->spec = json_array();
    d->scalars = json_array();
    d->only = json_array();
    if (d->pairs == NULL || d->spec == NULL || d->scalars == NULL || d->only == NULL)
        return ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    const size_t found = spec_diff(a, &d->b->manifest.spec, SPEC_LINES, on_difference, d->spec);
    if (found > SPEC_LINES) note_diff(d->spec, "and %zu more differences", found - SPEC_LINES);
    compare_scalars(d);
    pair_planes(d);
    const cairn_status status = compare_planes(ctl, d, folder_a, &why);
    return status == CAIRN_OK ? print_diff(ctl, d) : ctl_fail(status, "%s", why.text);
}

static void release_diff(struct diff *d)
{
    for (unsigned t = 0; t < CTL_SWEEP_THREADS_MAX; t++) {
        if (d->threads[t].is_open) snapshot_close(&d->threads[t].b);
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
        const int done = ctl_absolute("--path", ctl->path_before, a);
        return done >= 0 ? done : ctl_absolute("--path", ctl->path, b);
    }
    if (ctl->path == NULL && ctl->argc == 3) {
        const int done = ctl_place_ask(ctl, ctl->argv[0], ctl->argv[1], a);
        return done >= 0 ? done : ctl_place_ask(ctl, ctl->argv[0], ctl->argv[2], b);
    }
    return ctl_usage_fail(ctl, "cairn %s needs JOB A B, or --path twice", ctl->words);
}

int ctl_snapshot_diff(struct ctl *ctl)
{
    struct cairn_snapshot a, b;
    char folder_a[PATH_MAX], folder_b[PATH_MAX];
    int done = find_both(ctl, folder_a, folder_b);
    if (done < 0) done = ctl_place_open(folder_a, &a);
    if (done >= 0) return done;
    done = ctl_place_open(folder_b, &b);
    if (done < 0) {
        struct diff d = { .a = &a, .b = &b, .folder_b = folder_b };
        done = run_diff(ctl, &d, folder_a);
        release_diff(&d);
        snapshot_close(&b);
    }
    snapshot_close(&a);
    return done;
}

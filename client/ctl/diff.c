/* cairn snapshot diff: shows how two snapshots differ in their specs, scalars and planes, with the size of
 * each difference. cairn snapshot show: prints the description of a snapshot, its tensors, and statistics
 * of their elements. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/snapshot.h"
#include "shown.pb-c.h"
#include "proto/spec/spec.h"

#define SPEC_LINES 100 // the most lines that are shown

/* ==== stats ==== */

#define BLOCK \
    ((size_t)1024) // elements added without error tracking: a double suffices for their squares

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

static void join_stats(void *result, const void *others)
{
    struct ctl_stats *stats = result;
    const struct ctl_stats *more = others;
    stats->nonfinite += more->nonfinite;
    if (more->finite == 0) return;
    if (stats->finite == 0 || more->min < stats->min) stats->min = more->min;
    if (stats->finite == 0 || more->max > stats->max) stats->max = more->max;
    stats->finite += more->finite;
    join_sums(&stats->sum, &more->sum);
    join_sums(&stats->squares, &more->squares);
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

/* Adds the differences in `more`, which covers other elements of the same plane. */
static void join_differences(void *result, const void *others)
{
    struct ctl_difference *d = result;
    const struct ctl_difference *more = others;
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

/* Reads a snapshot piece by piece, in the order of its files, because that order is fastest for storage.
 * Several threads each read a run of consecutive pieces. */

#define CTL_SWEEP_THREADS_MAX 8
#define CTL_SWEEP_PIECE_BYTES ((size_t)4 << 20)

/* Elements [first_elem, first_elem + elem_count) of a plane, in its dtype: CTL_SWEEP_PIECE_BYTES at
 * most. */
struct ctl_piece {
    uint32_t tensor, plane;
    uint64_t first_elem, elem_count;
    const void *elems;
    struct snapshot *other; /* the thread's own, if the sweep names another folder */
    void *room;             /* for a piece of the other snapshot */
};

struct ctl_sweep {
    const char *folder;
    /* the opened snapshot in `folder`; only its index and manifest are read */
    const struct snapshot *snapshot;
    struct ctl_progress *progress;
    void *context;
    /* Returns true for the planes to read; NULL: all planes are read. */
    bool (*wants)(const void *context, uint32_t tensor, uint32_t plane);
    const char *other_folder; /* a second snapshot to open; NULL: none */
    /* Adds one piece to the plane's result, which is zeroed at first. The pieces of a plane arrive in any
     * order. A status other than CAIRN_OK ends the sweep with that status. */
    cairn_status (*add)(const void *context, void *result, const struct ctl_piece *piece,
                        struct sentence *why);
    /* Joins the results of other pieces of the same plane. */
    void (*join)(void *result, const void *more);
    size_t result_bytes;
};

#define RUN_BYTES_MIN ((uint64_t)64 << 20) // per thread: each thread opens the snapshot again

/* The state that the threads of a sweep share. */
struct crew {
    const struct ctl_sweep *sweep;        /* read only */
    const struct snapshot_piece **pieces; /* read only; owned, in the order of the files */
    size_t piece_count;

    pthread_mutex_t mutex; /* protects the fields below */
    uint64_t done_bytes;
    cairn_status status;
    struct sentence why;
};
struct hand {
    pthread_t thread;
    struct crew *crew;
    size_t first, end; /* the thread's range of the pieces */
    /* owned by the thread while it runs */
    struct snapshot snapshot, other;
    uint8_t *results; /* owned by the sweep: [tensor][CAIRN_PLANE_COUNT][result_bytes] */
};

static size_t result_count(const struct ctl_sweep *sweep)
{
    return sweep->snapshot->manifest.spec.tensor_count * CAIRN_PLANE_COUNT;
}

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

/* Returns the number of bytes that the sweep would read. */
static uint64_t sweep_bytes(const struct ctl_sweep *sweep)
{
    const struct snapshot_index *index = &sweep->snapshot->index;
    uint64_t bytes = 0;
    for (size_t i = 0; i < index->piece_count; i++)
        if (wanted(sweep, &index->pieces[i])) bytes += piece_bytes(sweep, &index->pieces[i]);
    return bytes;
}

/* ---- a thread ---- */

/* Records a thread's progress or failure. False: this thread or another one has failed. */
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

/* `buffer` has room for a piece, and, if the sweep names another folder, for one of the other snapshot. */
static bool read_piece(struct hand *hand, const struct snapshot_piece *from, uint8_t *buffer)
{
    const struct ctl_sweep *sweep = hand->crew->sweep;
    const size_t bytes = elem_bytes(sweep, from->tensor, from->plane);
    const uint64_t most = CTL_SWEEP_PIECE_BYTES / bytes;
    const size_t at = (size_t)from->tensor * CAIRN_PLANE_COUNT + from->plane;
    bool on = true;
    for (uint64_t done = 0; done < from->elem_count && on;) {
        const uint64_t left = from->elem_count - done;
        const struct ctl_piece piece = { .tensor = from->tensor,
                                         .plane = from->plane,
                                         .first_elem = from->first_elem + done,
                                         .elem_count = left < most ? left : most,
                                         .elems = buffer,
                                         .other = &hand->other,
                                         .room = buffer + CTL_SWEEP_PIECE_BYTES };
        struct sentence why = { "" };
        cairn_status status = snapshot_read(&hand->snapshot, piece.tensor, piece.plane,
                                            piece.first_elem, piece.elem_count, buffer, &why);
        if (status == CAIRN_OK)
            status = sweep->add(sweep->context, hand->results + at * sweep->result_bytes, &piece,
                                &why);
        on = note_sweep(hand->crew, status, &why, piece.elem_count * bytes);
        done += piece.elem_count;
    }
    return on;
}

static void *run_sweep(void *argument)
{
    struct hand *hand = argument;
    const struct ctl_sweep *sweep = hand->crew->sweep;
    struct sentence why = { "" };
    uint8_t *buffer = malloc((sweep->other_folder != NULL ? 2 : 1) * CTL_SWEEP_PIECE_BYTES);
    hand->results = calloc(result_count(sweep) + 1, sweep->result_bytes);
    cairn_status status = CAIRN_OK;
    if (buffer == NULL || hand->results == NULL)
        status = fail_with(&why, CAIRN_ERR_NO_MEMORY, "out of memory");
    if (status == CAIRN_OK) status = snapshot_open(sweep->folder, &hand->snapshot, &why);
    if (status == CAIRN_OK) {
        if (sweep->other_folder != NULL)
            status = snapshot_open(sweep->other_folder, &hand->other, &why);
        for (size_t i = hand->first; i < hand->end && status == CAIRN_OK; i++)
            if (!read_piece(hand, hand->crew->pieces[i], buffer)) break;
        if (status == CAIRN_OK && sweep->other_folder != NULL) snapshot_close(&hand->other);
        snapshot_close(&hand->snapshot);
    }
    if (status != CAIRN_OK) note_sweep(hand->crew, status, &why, 0);
    free(buffer);
    return NULL;
}

/* ---- all threads ---- */

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

/* Distributes the pieces to threads, in runs of equal bytes. */
static unsigned deal(struct crew *crew, struct hand hands[CTL_SWEEP_THREADS_MAX])
{
    const uint64_t bytes = sweep_bytes(crew->sweep);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t wanted = bytes / RUN_BYTES_MIN + 1, dealt = 0;
    if (cores > 0 && wanted > (uint64_t)cores) wanted = (uint64_t)cores;
    if (wanted > CTL_SWEEP_THREADS_MAX) wanted = CTL_SWEEP_THREADS_MAX;
    unsigned count = 0;
    for (size_t i = 0; i < crew->piece_count; i++) {
        if (count == 0 || (count < wanted && dealt >= bytes / wanted * count)) {
            hands[count] = (struct hand) { .crew = crew, .first = i };
            count++;
        }
        hands[count - 1].end = i + 1;
        dealt += piece_bytes(crew->sweep, crew->pieces[i]);
    }
    return count;
}

/* Returns CAIRN_OK if every piece was added to `results`, [tensor][CAIRN_PLANE_COUNT], else the first error.
 * All threads have ended by then. `what` says in the progress what is done: "compared". */
static cairn_status run_sweep_of(const struct ctl *ctl, struct ctl_sweep *sweep, const char *what,
                                 void *results, struct sentence *why)
{
    struct crew crew = { .sweep = sweep, .status = CAIRN_OK };
    struct hand hands[CTL_SWEEP_THREADS_MAX];
    struct ctl_progress progress;
    if (!list_pieces(&crew)) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    sweep->progress = &progress;
    ctl_progress_begin(&progress, ctl, what, sweep_bytes(sweep));
    const unsigned count = deal(&crew, hands);
    unsigned started = 0;
    pthread_mutex_init(&crew.mutex, NULL);
    for (; started < count; started++)
        if (pthread_create(&hands[started].thread, NULL, run_sweep, &hands[started]) != 0) break;
    // for lack of threads, in this thread
    for (unsigned i = started; i < count; i++) run_sweep(&hands[i]);
    for (unsigned i = 0; i < started; i++) pthread_join(hands[i].thread, NULL);
    pthread_mutex_destroy(&crew.mutex);
    ctl_progress_end(&progress);
    for (unsigned i = 0; i < count; i++) {
        for (size_t at = 0; at < result_count(sweep) && hands[i].results != NULL; at++)
            sweep->join((uint8_t *)results + at * sweep->result_bytes,
                        hands[i].results + at * sweep->result_bytes);
        free(hands[i].results);
    }
    free(crew.pieces);
    if (crew.status != CAIRN_OK) *why = crew.why;
    return crew.status;
}

/* ==== diff ==== */

enum { SAME = 0, DIFFERENT = 1 };

/* A plane that exists in both snapshots with the same number of elements. */
struct pair {
    bool compared;
    uint32_t b; /* the tensor's index in B */
};
struct diff {
    const struct snapshot *a, *b;
    const char *folder_b;
    struct pair *pairs;                 /* owned; [tensor of A][CAIRN_PLANE_COUNT] */
    struct ctl_difference *differences; /* owned; indexed like `pairs` */
    Cairn__ShownDiff *shown;            /* owned */
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

static cairn_status add_differences(const void *context, void *result,
                                    const struct ctl_piece *piece, struct sentence *why)
{
    const struct diff *d = context;
    const uint32_t b = pair_at(d, piece->tensor, piece->plane)->b;
    CAIRN_TRY(snapshot_read(piece->other, b, piece->plane, piece->first_elem, piece->elem_count,
                            piece->room, why));
    if (spec_a(d)->tensors[piece->tensor].kind != CAIRN_BLOB) {
        ctl_difference_add(result, piece->first_elem, piece->elems, piece->room, piece->elem_count);
        return CAIRN_OK;
    }
    const uint8_t *bytes_a = piece->elems, *bytes_b = piece->room; // no numbers: only places
    for (size_t i = 0; i < piece->elem_count; i++)
        if (bytes_a[i] != bytes_b[i]) note_first(result, piece->first_elem + i);
    return CAIRN_OK;
}

/* ---- all else ---- */

/* Adds a line to a list of d->shown. */
static void note_diff(struct diff *d, const char *list, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void note_diff(struct diff *d, const char *list, const char *format, ...)
{
    struct sentence line;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line.text, sizeof line.text, format, arguments);
    va_end(arguments);
    ctl_append(d->shown, list, ctl_copy(line.text));
}

static void on_difference(void *context, const struct spec_difference *d)
{
    char line[CAIRN_DIFFERENCE_TEXT_MAX];
    difference_text(d, "in A", "in B", line);
    note_diff(context, "spec", "%s", line);
}

static void compare_scalars(struct diff *d)
{
    const struct manifest *a = &d->a->manifest, *b = &d->b->manifest;
    if (a->step != b->step)
        note_diff(d, "scalars", "step: %" PRIu64 " in A, %" PRIu64 " in B", a->step, b->step);
    if (memcmp(&a->loss_scale, &b->loss_scale, sizeof a->loss_scale) != 0)
        note_diff(d, "scalars", "loss scale: %.17g in A, %.17g in B", a->loss_scale, b->loss_scale);
    if (a->payload_bytes != b->payload_bytes ||
        (a->payload_bytes > 0 && memcmp(a->payload, b->payload, a->payload_bytes) != 0))
        note_diff(d, "scalars", "client state: %zu bytes in A, %zu other ones in B",
                  a->payload_bytes, b->payload_bytes);
}

/* Selects the planes to compare. Lists the planes that only one snapshot has, or that differ in shape. */
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
                note_diff(d, "unpaired", "%s, %s: of another shape or dtype", name, plane);
            else if (in_a || in_b)
                note_diff(d, "unpaired", "%s, %s: in %s alone", name, plane, in_a ? "A" : "B");
        }
    }
    for (size_t t = 0; t < b->tensor_count; t++)
        if (spec_planes(b, t) != 0 && spec_find_tensor(a, b->tensors[t].name) == SIZE_MAX)
            note_diff(d, "unpaired", "%s: in B alone", b->tensors[t].name);
}

/* ---- printing ---- */

static void add_planes(struct diff *d)
{
    for (uint32_t t = 0; t < spec_a(d)->tensor_count; t++)
        for (uint32_t p = 0; p < CAIRN_PLANE_COUNT; p++) {
            const struct ctl_difference *x = &d->differences[t * CAIRN_PLANE_COUNT + p];
            if (x->elems == 0) continue;
            Cairn__ShownPlane *plane = ctl_add(d->shown, "planes");
            plane->tensor = ctl_copy(spec_a(d)->tensors[t].name);
            plane->plane = ctl_copy(plane_name((int)p));
            plane->elements = x->elems;
            plane->first = x->first_elem;
            plane->max_abs = x->max;
            plane->relative_l2 = ctl_difference_relative(x);
            plane->is_infinite = !isfinite(plane->relative_l2);
            plane->nonfinite = x->unlike;
        }
}

static int print_diff(const struct ctl *ctl, struct diff *d)
{
    Cairn__ShownDiff *shown = d->shown;
    add_planes(d);
    shown->same = shown->n_planes == 0 && shown->n_spec == 0 && shown->n_scalars == 0 &&
                  shown->n_unpaired == 0;
    ctl_show(ctl, shown,
             "spec|{spec?}\n"
             "scalars|{scalars?}\n"
             "not compared|{unpaired?}\n"
             "#planes?\n"
             "tensors|{!planes}the same bits",
             NULL);
    return shown->same ? SAME : DIFFERENT;
}

/* ---- the command ---- */

static int run_diff(const struct ctl *ctl, struct diff *d, const char *folder_a)
{
    struct sentence why = { "" };
    const struct job_spec_data *a = spec_a(d);
    d->pairs = calloc(a->tensor_count * CAIRN_PLANE_COUNT + 1, sizeof *d->pairs);
    d->differences = calloc(a->tensor_count * CAIRN_PLANE_COUNT + 1, sizeof *d->differences);
    if (d->pairs == NULL || d->differences == NULL)
        return ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    d->shown = ctl_message(&cairn__shown_diff__descriptor);
    const size_t found = spec_diff(a, &d->b->manifest.spec, SPEC_LINES, on_difference, d);
    if (found > SPEC_LINES) note_diff(d, "spec", "and %zu more differences", found - SPEC_LINES);
    compare_scalars(d);
    pair_planes(d);
    struct ctl_sweep sweep = { .folder = folder_a,
                               .snapshot = d->a,
                               .other_folder = d->folder_b,
                               .context = d,
                               .wants = is_compared,
                               .add = add_differences,
                               .join = join_differences,
                               .result_bytes = sizeof *d->differences };
    const cairn_status status = run_sweep_of(ctl, &sweep, "compared", d->differences, &why);
    return status == CAIRN_OK ? print_diff(ctl, d) : ctl_fail(status, "%s", why.text);
}

/* Returns -1 to continue, else the exit status. */
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

static int run_snapshot_diff(struct ctl *ctl)
{
    struct snapshot a, b;
    char folder_a[PATH_MAX], folder_b[PATH_MAX];
    int done = find_both(ctl, folder_a, folder_b);
    if (done < 0) done = ctl_place_open(folder_a, &a);
    if (done >= 0) return done;
    done = ctl_place_open(folder_b, &b);
    if (done < 0) {
        struct diff d = { .a = &a, .b = &b, .folder_b = folder_b };
        done = run_diff(ctl, &d, folder_a);
        free(d.pairs);
        free(d.differences);
        if (d.shown != NULL) message_free(&d.shown->base);
        snapshot_close(&b);
    }
    snapshot_close(&a);
    return done;
}

const struct ctl_question ctl_snapshot_diff = { .run = run_snapshot_diff };

/* ==== show ==== */

/* cairn snapshot show: prints the description of a snapshot, its tensors, and statistics of their
 * elements. */

/* The snapshot to show. */
struct show {
    const struct job_spec_data *spec; /* NULL: the snapshot cannot be read from this host */
    struct ctl_stats *stats; /* owned; [tensor][CAIRN_PLANE_COUNT]; NULL: without --stats */
};

static bool is_stored(const struct job_spec_data *spec, size_t tensor, int plane)
{
    return (spec_planes(spec, tensor) & 1u << plane) != 0;
}

/* ---- statistics ---- */

/* True unless the tensor is a blob, whose bytes are not numbers. */
static bool has_stats(const void *context, uint32_t tensor, uint32_t plane)
{
    const struct show *show = context;
    (void)plane;
    return show->spec->tensors[tensor].kind != CAIRN_BLOB;
}

static cairn_status add_stats(const void *context, void *result, const struct ctl_piece *piece,
                              struct sentence *why)
{
    (void)context;
    (void)why;
    ctl_stats_add(result, piece->elems, piece->elem_count);
    return CAIRN_OK;
}

static cairn_status read_stats(const struct ctl *ctl, struct show *show, const char *folder,
                               const struct snapshot *snapshot, struct sentence *why)
{
    struct ctl_sweep sweep = { .folder = folder,
                               .snapshot = snapshot,
                               .context = show,
                               .wants = has_stats,
                               .add = add_stats,
                               .join = join_stats,
                               .result_bytes = sizeof *show->stats };
    show->stats = calloc(result_count(&sweep) + 1, sizeof *show->stats);
    return show->stats != NULL ? run_sweep_of(ctl, &sweep, "read", show->stats, why)
                               : CAIRN_ERR_NO_MEMORY;
}

/* ---- the tensors ---- */

/* Writes "[512, 784]" into `out` and returns `out`. */
#define SHAPE_BYTES (CAIRN_RANK_MAX * 22 + 3)
static const char *write_shape(const struct shape *shape, char out[static SHAPE_BYTES])
{
    size_t used = (size_t)snprintf(out, SHAPE_BYTES, "[");
    for (uint32_t d = 0; d < shape->rank && used < SHAPE_BYTES; d++)
        used += (size_t)snprintf(out + used, SHAPE_BYTES - used, "%s%" PRIu64, d > 0 ? ", " : "",
                                 shape->dim[d]);
    if (used < SHAPE_BYTES) snprintf(out + used, SHAPE_BYTES - used, "]");
    return out;
}

static void fill_stats(Cairn__ShownStats *shown, const struct show *show, size_t tensor, int plane)
{
    const struct tensor_spec *t = &show->spec->tensors[tensor];
    const struct ctl_stats *s = &show->stats[tensor * CAIRN_PLANE_COUNT + (size_t)plane];
    char shape[SHAPE_BYTES];
    shown->tensor = ctl_copy(t->name);
    shown->plane = ctl_copy(plane_name(plane));
    shown->shape = ctl_copy(write_shape(&t->shape, shape));
    shown->has_finite = s->finite > 0;
    shown->min = (double)s->min;
    shown->max = (double)s->max;
    shown->mean = s->finite > 0 ? ctl_sum_of(&s->sum) / (double)s->finite : 0;
    shown->l2 = sqrt(ctl_sum_of(&s->squares));
    shown->nonfinite = s->nonfinite;
}

static void fill_tensor(Cairn__ShownTensor *shown, const struct show *show, size_t tensor)
{
    const struct tensor_spec *t = &show->spec->tensors[tensor];
    struct sentence planes = { "" };
    char shape[SHAPE_BYTES];
    shown->name = ctl_copy(t->name);
    shown->kind = ctl_copy(capability_name(CAIRN_CAPABILITY_KIND, (int)t->kind));
    shown->dtype = ctl_copy(dtype_label((int)t->master));
    shown->shape_text = ctl_copy(write_shape(&t->shape, shape));
    shown->shape = calloc(CAIRN_RANK_MAX, sizeof *shown->shape);
    shown->n_shape = shown->shape != NULL ? t->shape.rank : 0;
    for (size_t i = 0; i < shown->n_shape; i++) shown->shape[i] = t->shape.dim[i];
    shown->alias_of = ctl_copy(t->alias_of != NULL ? t->alias_of : "");
    shown->is_part = t->alias_box != NULL;
    shown->has_stats = show->stats != NULL;
    for (int plane = 0; plane < CAIRN_PLANE_COUNT; plane++) {
        if (!is_stored(show->spec, tensor, plane)) continue;
        ctl_append(shown, "planes", ctl_copy(plane_name(plane)));
        sentence_add(&planes, "%s%s", planes.text[0] != '\0' ? " " : "", plane_name(plane));
        if (shown->has_stats && t->kind != CAIRN_BLOB)
            fill_stats(ctl_add(shown, "stats"), show, tensor, plane);
    }
    shown->plane_list = ctl_copy(planes.text);
}

/* Returns the tensors, and, for a table, the statistics of all their planes. */
static Cairn__ShownTensors *list_tensors(const struct show *show)
{
    Cairn__ShownTensors *all = ctl_message(&cairn__shown_tensors__descriptor);
    for (size_t t = 0; t < show->spec->tensor_count; t++) {
        fill_tensor(ctl_add(all, "tensors"), show, t);
        for (int plane = 0; plane < CAIRN_PLANE_COUNT && show->stats != NULL; plane++)
            if (is_stored(show->spec, t, plane)) fill_stats(ctl_add(all, "stats"), show, t, plane);
    }
    return all;
}

/* ---- without a coordinator ---- */

/* Fills the status as the coordinator would report it; borrows from the manifest and the folder's path. */
static void status_of(const struct manifest *m, const char *folder,
                      char nonfinite[static CAIRN_RESULTS_BYTES], Cairn__SnapshotStatus *out)
{
    const char *slash = strrchr(folder, '/');
    cairn__snapshot_status__init(out);
    results_list(&m->nonfinite, &m->spec, nonfinite);
    out->nonfinite = m->nonfinite.nonfinite;
    out->nonfinite_tensors = nonfinite;
    out->id = wire_text(slash != NULL ? slash + 1 : folder);
    out->path = wire_text(folder);
    out->job = m->spec.name;
    out->state = wire_text("committed");
    out->generation = m->generation;
    out->step = m->step;
    out->files = (uint32_t)m->file_count;
    for (size_t i = 0; i < m->file_count; i++) out->bytes += m->files[i].bytes;
    out->shards = m->shard_count;
    out->content_root.data = (uint8_t *)(uintptr_t)m->content_root;
    out->content_root.len = sizeof m->content_root;
    out->created_unix_ms = m->created_unix_s * 1000;
    out->periodic = m->periodic != 0;
}

/* `told` is the status that the coordinator reported; NULL without a coordinator. */
static void say_snapshot(const struct ctl *ctl, const char *folder,
                         const Cairn__SnapshotStatus *told, const struct manifest *manifest,
                         const struct show *show)
{
    char nonfinite[CAIRN_RESULTS_BYTES];
    Cairn__SnapshotStatus own;
    if (told == NULL) {
        status_of(manifest, folder, nonfinite, &own);
        told = &own;
    }
    Cairn__ShownTensors *all = show->spec != NULL ? list_tensors(show) : NULL;
    if (ctl->json) {
        json_t *object = ctl_json(told);
        json_object_set_new(object, "tensors", json_null());
        if (all != NULL) ctl_json_add(object, all, "tensors");
        ctl_print_json(object);
    } else {
        ctl_show(ctl, told, CTL_SNAPSHOT_LINES, "{id}");
        if (all != NULL) ctl_show(ctl, all, show->stats != NULL ? "\n#stats" : "\n#tensors", NULL);
    }
    if (all != NULL) message_free(&all->base);
}

static int show_stats(struct ctl *ctl, const char *folder, const Cairn__SnapshotStatus *told)
{
    struct snapshot snapshot;
    struct sentence why = { "" };
    struct show show = { .spec = &snapshot.manifest.spec };
    int done = ctl_place_open(folder, &snapshot);
    if (done >= 0) return done;
    const cairn_status status = read_stats(ctl, &show, folder, &snapshot, &why);
    if (status == CAIRN_OK)
        say_snapshot(ctl, folder, told, &snapshot.manifest, &show);
    else
        done = ctl_place_fail(folder, status, &why);
    free(show.stats);
    snapshot_close(&snapshot);
    return done >= 0 ? done : 0;
}

/* Shows the tensors. If the folder is not visible from this host, shows what the coordinator has
 * read, and still succeeds. */
static int show_tensors(struct ctl *ctl, const char *folder, const Cairn__SnapshotStatus *told)
{
    struct manifest manifest;
    struct sentence why = { "" };
    struct show show = { .spec = NULL };
    const cairn_status status = manifest_load(folder, &manifest, &why);
    if (status != CAIRN_OK && told == NULL) return ctl_place_fail(folder, status, &why);
    if (status == CAIRN_OK)
        show.spec = &manifest.spec;
    else
        fprintf(stderr, "cairn: its tensors are not shown: %s\n", why.text);
    say_snapshot(ctl, folder, told, &manifest, &show);
    if (status == CAIRN_OK) manifest_release(&manifest);
    return 0;
}

static int show_folder(struct ctl *ctl, const char *folder, const Cairn__SnapshotStatus *told)
{
    return ctl_is_given(ctl, "stats") ? show_stats(ctl, folder, told)
                                      : show_tensors(ctl, folder, told);
}

static int run_snapshot_show(struct ctl *ctl)
{
    Cairn__SnapshotShow show = CAIRN__SNAPSHOT_SHOW__INIT;
    ProtobufCMessage *reply;
    char folder[PATH_MAX], latest[CAIRN_SNAPSHOT_ID_BYTES];
    if (ctl->path != NULL || ctl->argc != 2) {
        const int found = ctl_place_find(ctl, folder);
        return found >= 0 ? found : show_folder(ctl, folder, NULL);
    }
    show.job = ctl->argv[0];
    show.id = ctl->argv[1];
    if (ctl->call.timeout_ms == 0) ctl->call.timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS;
    if (strcmp(show.id, "latest") == 0) {
        const int found = ctl_snapshot_latest(ctl, show.job, latest);
        if (found >= 0) return found;
        show.id = latest;
    }
    const cairn_status called = ctl_call(ctl, CAIRN_MSG_SNAPSHOT_SHOW, &show.base,
                                         CAIRN_MSG_SNAPSHOT_STATUS, &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    const Cairn__SnapshotStatus *told = (const Cairn__SnapshotStatus *)reply;
    const int done = show_folder(ctl, told->path, told);
    message_free(reply);
    return done;
}

const struct ctl_question ctl_snapshot_show = { .run = run_snapshot_show };

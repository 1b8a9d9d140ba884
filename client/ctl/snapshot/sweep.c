#include "client/ctl/snapshot/sweep.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "proto/spec/planes.h"

#define RUN_BYTES_MIN ((uint64_t)64 << 20) // of a thread: it opens the snapshot once more

/* The state that the threads of a sweep share. */
struct crew {
    const struct ctl_sweep *sweep;              /* read only */
    const struct cairn_snapshot_piece **pieces; /* the same; owned, in the order of the files */
    size_t piece_count;

    pthread_mutex_t mutex; /* of what follows */
    uint64_t done_bytes;
    cairn_status status;
    struct cairn_sentence why;
};
struct hand {
    pthread_t thread;
    struct crew *crew;
    unsigned number;
    size_t first, end; /* of the pieces */
};

static size_t elem_bytes(const struct ctl_sweep *sweep, uint32_t tensor, uint32_t plane)
{
    return cairn_dtype_bytes(
        (int)cairn_spec_plane_dtype(&sweep->snapshot->manifest.spec, tensor, plane));
}

static uint64_t piece_bytes(const struct ctl_sweep *sweep, const struct cairn_snapshot_piece *piece)
{
    return piece->elem_count * elem_bytes(sweep, piece->tensor, piece->plane);
}

static bool wanted(const struct ctl_sweep *sweep, const struct cairn_snapshot_piece *piece)
{
    return sweep->wants == NULL || sweep->wants(sweep->context, piece->tensor, piece->plane);
}

uint64_t cairn_ctl_sweep_bytes(const struct ctl_sweep *sweep)
{
    const struct cairn_snapshot_index *index = &sweep->snapshot->index;
    uint64_t bytes = 0;
    for (size_t i = 0; i < index->piece_count; i++)
        if (wanted(sweep, &index->pieces[i])) bytes += piece_bytes(sweep, &index->pieces[i]);
    return bytes;
}

/* ---- a thread ---- */

/* False: somebody has failed. */
static bool note(struct crew *crew, cairn_status status, const struct cairn_sentence *why,
                 uint64_t bytes)
{
    pthread_mutex_lock(&crew->mutex);
    if (status != CAIRN_OK && crew->status == CAIRN_OK) {
        crew->status = status;
        crew->why = *why;
    }
    crew->done_bytes += bytes;
    cairn_ctl_progress_at(crew->sweep->progress, crew->done_bytes);
    const bool on = crew->status == CAIRN_OK;
    pthread_mutex_unlock(&crew->mutex);
    return on;
}

static bool read_piece(const struct hand *hand, struct cairn_snapshot *snapshot,
                       const struct cairn_snapshot_piece *from, void *buffer)
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
        struct cairn_sentence why = { "" };
        cairn_status status = cairn_snapshot_read(snapshot, piece.tensor, piece.plane,
                                                  piece.first_elem, piece.elem_count, buffer, &why);
        if (status == CAIRN_OK)
            status = sweep->on_piece(sweep->context, hand->number, &piece, &why);
        on = note(hand->crew, status, &why, piece.elem_count * bytes);
        done += piece.elem_count;
    }
    return on;
}

static void *run(void *argument)
{
    struct hand *hand = argument;
    struct cairn_snapshot snapshot;
    struct cairn_sentence why = { "" };
    void *buffer = malloc(CTL_SWEEP_PIECE_BYTES);
    cairn_status status = buffer != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK)
        status = cairn_snapshot_open(hand->crew->sweep->folder, &snapshot, &why);
    if (status == CAIRN_OK) {
        for (size_t i = hand->first; i < hand->end; i++)
            if (!read_piece(hand, &snapshot, hand->crew->pieces[i], buffer)) break;
        cairn_snapshot_close(&snapshot);
    } else {
        note(hand->crew, status, &why, 0);
    }
    free(buffer);
    return NULL;
}

/* ---- all of them ---- */

static int file_order(const void *a, const void *b)
{
    const struct cairn_snapshot_piece *x = *(const struct cairn_snapshot_piece *const *)a;
    const struct cairn_snapshot_piece *y = *(const struct cairn_snapshot_piece *const *)b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->file_byte < y->file_byte ? -1 : x->file_byte > y->file_byte;
}

static bool list_pieces(struct crew *crew)
{
    const struct cairn_snapshot_index *index = &crew->sweep->snapshot->index;
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
    const uint64_t bytes = cairn_ctl_sweep_bytes(crew->sweep);
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

cairn_status cairn_ctl_sweep(const struct ctl_sweep *sweep, struct cairn_sentence *why)
{
    struct crew crew = { .sweep = sweep, .status = CAIRN_OK };
    struct hand hands[CTL_SWEEP_THREADS_MAX];
    if (!list_pieces(&crew)) return CAIRN_ERR_NO_MEMORY;
    const unsigned count = deal(&crew, hands);
    unsigned started = 0;
    pthread_mutex_init(&crew.mutex, NULL);
    for (; started < count; started++)
        if (pthread_create(&hands[started].thread, NULL, run, &hands[started]) != 0) break;
    for (unsigned i = started; i < count; i++) run(&hands[i]); // no thread for it
    for (unsigned i = 0; i < started; i++) pthread_join(hands[i].thread, NULL);
    pthread_mutex_destroy(&crew.mutex);
    free(crew.pieces);
    if (crew.status != CAIRN_OK && why != NULL) *why = crew.why;
    return crew.status;
}

/* cairn snapshot export: a snapshot as others read it. Blocks are read and judged ahead, in the order in
 * which they are written, and written beside that: memory is that of the blocks under way, whatever the
 * model's size. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/progress.h"
#include "client/ctl/snapshot/export_plan.h"
#include "client/ctl/snapshot/made_folder.h"
#include "client/ctl/snapshot/place.h"
#include "client/ctl/snapshot/round.h"

#define FILE_BYTES_DEFAULT UINT64_C(5000000000) // as the Hub's tools have it
#define AHEAD              16                   // blocks that are read ahead, and besides
#define BLOCKS_MAX         32                   // all that are held; 128 MiB
#define IN_FLIGHT          8                    // blocks that are written; 32 MiB

static volatile sig_atomic_t interrupted;

static void on_signal(int signal)
{
    (void)signal;
    interrupted = 1;
}

/* A place in what is written. */
struct place {
    size_t file, entry;
    uint64_t elem; /* of the entry */
};

struct exporting {
    struct cairn_snapshot *snapshot;
    const struct ctl_export_plan *plan;
    struct place ahead; /* up to here it is read, or will be */
    size_t file;        /* that is written */
    struct ctl_progress progress;
    uint64_t done_bytes;
    float *rounded; /* owned: [CAIRN_SNAPSHOT_BLOCK_BYTES / 2], what is to be bf16 */
};

/* ---- reading ahead ---- */

static bool is_before(const struct place *a, const struct place *b)
{
    if (a->file != b->file) return a->file < b->file;
    return a->entry != b->entry ? a->entry < b->entry : a->elem < b->elem;
}

static uint64_t elems_of(const struct cairn_safetensors_entry *entry)
{
    return (entry->end - entry->begin) / cairn_dtype_bytes((int)entry->dtype);
}

/* Asks for what is written behind `end`, as far as there is room for it. */
static void look_ahead(struct exporting *x, struct place end)
{
    struct place *at = &x->ahead;
    if (is_before(at, &end)) *at = end;
    while (at->file < x->plan->file_count) {
        const struct cairn_snapshot_file *file = &x->plan->files[at->file];
        if (at->entry == file->entry_count) {
            *at = (struct place) { .file = at->file + 1 };
            continue;
        }
        const struct cairn_safetensors_entry *entry = &file->entries[at->entry];
        const uint64_t elems = elems_of(entry);
        if (entry->plane != CTL_EXPORT_PLANE_STEP && !cairn_ctl_torch_is_text(entry))
            at->elem += cairn_snapshot_want(x->snapshot, entry->tensor, entry->plane, at->elem,
                                            elems - at->elem);
        else
            at->elem = elems;
        if (at->elem < elems) return;
        *at = (struct place) { .file = at->file, .entry = at->entry + 1 };
    }
}

/* ---- the bytes ---- */

static cairn_status fill(void *context, const struct cairn_safetensors_entry *entry,
                         uint64_t first_elem, uint64_t elem_count, void *to,
                         struct cairn_sentence *why)
{
    struct exporting *x = context;
    if (interrupted) return cairn_fail(why, CAIRN_ERR_CANCELED, "interrupted");
    const bool rounds = entry->dtype == CAIRN_BF16, is_text = cairn_ctl_torch_is_text(entry);
    const uint64_t bytes = elem_count * cairn_dtype_bytes((int)entry->dtype);
    cairn_status status = CAIRN_OK;
    look_ahead(x, (struct place) { x->file, (size_t)(entry - x->plan->files[x->file].entries),
                                   first_elem });
    if (is_text) {
        cairn_ctl_torch_text(x->plan->torch, first_elem, elem_count, to);
    } else if (entry->plane == CTL_EXPORT_PLANE_STEP) {
        const struct cairn_manifest *m = &x->snapshot->manifest;
        const uint64_t missed = m->steps_missed != NULL ? m->steps_missed[entry->tensor] : 0;
        const float step = (float)(m->step - missed);
        memcpy(to, &step, sizeof step);
    } else {
        status = cairn_snapshot_read(x->snapshot, entry->tensor, entry->plane, first_elem,
                                     elem_count, rounds ? x->rounded : to, why);
    }
    if (status == CAIRN_OK && rounds) cairn_ctl_round_bf16(x->rounded, to, elem_count);
    if (status == CAIRN_OK && x->plan->torch != NULL && !is_text)
        cairn_ctl_torch_pass(x->plan->torch, entry, to, bytes);
    x->done_bytes += is_text ? 0 : bytes;
    cairn_ctl_progress_at(&x->progress, x->done_bytes);
    return status;
}

static cairn_status write_all(struct exporting *x, const char *at, struct cairn_sentence *why)
{
    const struct cairn_snapshot_source source = { .fill = fill, .context = x };
    const struct ctl_export_plan *plan = x->plan;
    const struct cairn_storage *storage = cairn_storage_of(at);
    struct cairn_snapshot_writer *writer = NULL;
    cairn_status status = cairn_snapshot_writer_open(IN_FLIGHT, &writer, why);
    for (size_t i = 0; i < plan->file_count && status == CAIRN_OK; i++) {
        x->file = i;
        status = cairn_snapshot_writer_put_other(writer, at, &plan->files[i], &source, NULL, why);
    }
    if (status == CAIRN_OK && plan->index != NULL)
        status = storage->commit(at, plan->index_name, plan->index, plan->index_bytes, false, why);
    cairn_snapshot_writer_close(writer);
    return status;
}

/* ---- the command ---- */

/* The last of what a full disk's sentence of storage.h says is of snapshots. */
static void say_full(const struct ctl_export_plan *plan, const char *folder,
                     struct cairn_sentence *why)
{
    cairn_sentence_set(why,
                       "there is no room for %s in %s: free some, or name another folder; nothing "
                       "was left there",
                       cairn_ctl_bytes(plan->data_bytes), folder);
}

static void catch_signals(void)
{
    const struct sigaction action = { .sa_handler = on_signal };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static cairn_status export_to(struct ctl *ctl, struct exporting *x, const char *to,
                              struct ctl_made_folder *folder, struct cairn_sentence *why)
{
    x->rounded = malloc(CAIRN_SNAPSHOT_BLOCK_BYTES / 2 * sizeof *x->rounded);
    if (x->rounded == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    catch_signals();
    cairn_status status = cairn_ctl_made_folder_begin(to, folder, why);
    if (status == CAIRN_OK) {
        if (folder->cleaned && !ctl->quiet)
            fprintf(stderr, "cairn: %s, which an export that was killed had left, is removed\n",
                    folder->temp);
        cairn_ctl_progress_begin(&x->progress, ctl, "exported", x->plan->data_bytes);
        status = write_all(x, folder->temp, why);
        if (status == CAIRN_OK && interrupted)
            status = cairn_fail(why, CAIRN_ERR_CANCELED, "interrupted");
        status = cairn_ctl_made_folder_end(folder, status, why);
        cairn_ctl_progress_end(&x->progress);
    }
    if (status == CAIRN_ERR_NO_SPACE) say_full(x->plan, to, why);
    if (status == CAIRN_ERR_CANCELED)
        cairn_sentence_set(why, "interrupted: nothing was left of it");
    free(x->rounded);
    return status;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void print(const struct ctl *ctl, const struct exporting *x, const struct ctl_export_wish *w,
                  const char *folder, double seconds)
{
    const struct ctl_export_plan *plan = x->plan;
    const char *format = w->is_dcp     ? "dcp"
                         : w->is_torch ? "torch"
                                       : "hf",
               *dtype = cairn_dtype_name((int)w->dtype);
    if (ctl->json) {
        cairn_ctl_print_json(json_pack(
            "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "path", folder, "format", format,
            "dtype", dtype, "step", (json_int_t)x->snapshot->manifest.step, "tensors",
            (json_int_t)plan->tensors, "files", (json_int_t)plan->file_count, "bytes",
            (json_int_t)plan->data_bytes, "blobs_left_out", (json_int_t)plan->blobs, "aliases",
            (json_int_t)plan->aliases, "seconds", seconds));
        return;
    }
    if (ctl->quiet) {
        printf("%s\n", folder);
        return;
    }
    cairn_ctl_line("exported", "%s", folder);
    cairn_ctl_line("format", "%s, %s", format, dtype);
    cairn_ctl_line("size", "%s in %zu files, %zu tensors", cairn_ctl_bytes(plan->data_bytes),
                   plan->file_count, plan->tensors);
    cairn_ctl_line("rate", "%.2f GB/s", (double)plan->data_bytes / 1e9 / seconds);
    if (plan->aliases > 0)
        cairn_ctl_line("aliases", "%zu, which are in what they stand for", plan->aliases);
    if (plan->blobs > 0) cairn_ctl_line("left out", "%zu blobs", plan->blobs);
}

/* -1: go on. */
static int judge(const struct ctl *ctl, struct ctl_export_wish *wish)
{
    const struct ctl_export *e = &ctl->export;
    *wish = (struct ctl_export_wish) {
        .is_dcp = e->format != NULL && strcmp(e->format, "dcp") == 0,
        .is_torch = e->format != NULL && strcmp(e->format, "torch") == 0,
        .dtype = e->dtype != NULL && strcmp(e->dtype, "bf16") == 0 ? CAIRN_BF16 : CAIRN_F32,
        .file_bytes_max = e->file_bytes_max > 0 ? e->file_bytes_max : FILE_BYTES_DEFAULT,
    };
    if (ctl->to == NULL) return cairn_ctl_usage_fail(ctl, "cairn %s needs --to DIR", ctl->words);
    return -1;
}

/* Two for each place that a tensor may be read from: the one in use, and the next. */
static uint32_t blocks_held(const struct cairn_manifest *m)
{
    const size_t wanted = AHEAD + 2 * (size_t)m->shard_count;
    return (uint32_t)(wanted < BLOCKS_MAX ? wanted : BLOCKS_MAX);
}

int cairn_ctl_snapshot_export(struct ctl *ctl)
{
    struct cairn_snapshot snapshot;
    struct ctl_export_wish wish;
    struct ctl_export_plan plan;
    struct ctl_made_folder folder;
    struct cairn_sentence why = { "" };
    char from[PATH_MAX], to[PATH_MAX];
    int done = judge(ctl, &wish);
    if (done < 0) done = cairn_ctl_absolute("--to", ctl->to, to);
    if (done < 0) done = cairn_ctl_place_find(ctl, from);
    if (done < 0) done = cairn_ctl_place_open(from, &snapshot);
    if (done >= 0) return done;
    const double begun = now_s();
    snapshot.ahead = blocks_held(&snapshot.manifest);
    struct ctl_buffer *buffers = NULL;
    cairn_status status = cairn_ctl_buffers_read(&snapshot, &buffers, &why);
    if (status != CAIRN_OK) {
        cairn_snapshot_close(&snapshot);
        return cairn_ctl_fail(status, "%s", why.text);
    }
    wish.buffers = buffers;
    status = cairn_ctl_export_plan_make(&snapshot.manifest, &wish, &plan);
    if (status == CAIRN_OK) {
        struct exporting x = { .snapshot = &snapshot, .plan = &plan };
        status = export_to(ctl, &x, to, &folder, &why);
        if (status == CAIRN_OK) print(ctl, &x, &wish, folder.path, now_s() - begun);
        cairn_ctl_export_plan_release(&plan);
    } else {
        cairn_sentence_set(&why, "%s",
                           status == CAIRN_ERR_NOT_FOUND ? "the job has no tensors of numbers"
                                                         : "no memory");
    }
    free(buffers);
    cairn_snapshot_close(&snapshot);
    return status == CAIRN_OK ? 0 : cairn_ctl_fail(status, "%s", why.text);
}

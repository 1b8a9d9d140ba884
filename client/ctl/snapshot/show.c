/* cairn snapshot show: what is said of a snapshot; its tensors; what is in them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/snapshot/place.h"
#include "client/ctl/snapshot/stats.h"
#include "client/ctl/snapshot/sweep.h"
#include "client/ctl/snapshot/text.h"
#include "proto/spec/capability.h"
#include "proto/spec/planes.h"

/* The snapshot that is shown. */
struct show {
    const struct cairn_job_spec_data *spec; /* NULL: it cannot be read from here */
    /* of --stats, [tensor][CAIRN_PLANE_COUNT], of each thread, then of all in the first; NULL: none */
    struct ctl_stats *stats[CTL_SWEEP_THREADS_MAX];
};

static struct ctl_stats *stats_at(const struct show *show, unsigned thread, size_t tensor,
                                  int plane)
{
    return &show->stats[thread][tensor * CAIRN_PLANE_COUNT + (size_t)plane];
}

static bool is_stored(const struct cairn_job_spec_data *spec, size_t tensor, int plane)
{
    return (cairn_spec_planes(spec, tensor) & 1u << plane) != 0;
}

/* ---- statistics ---- */

/* The bytes of a blob are no numbers. */
static bool has_stats(const void *context, uint32_t tensor, uint32_t plane)
{
    const struct show *show = context;
    (void)plane;
    return show->spec->tensors[tensor].kind != CAIRN_BLOB;
}

static cairn_status on_piece(void *context, unsigned thread, const struct ctl_piece *piece,
                             struct cairn_sentence *why)
{
    struct show *show = context;
    const size_t count = show->spec->tensor_count * CAIRN_PLANE_COUNT;
    if (show->stats[thread] == NULL)
        show->stats[thread] = calloc(count, sizeof *show->stats[thread]);
    if (show->stats[thread] == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    cairn_ctl_stats_add(stats_at(show, thread, piece->tensor, (int)piece->plane), piece->elems,
                        piece->elem_count);
    return CAIRN_OK;
}

static cairn_status read_stats(const struct ctl *ctl, struct show *show, const char *folder,
                               const struct cairn_snapshot *snapshot, struct cairn_sentence *why)
{
    struct ctl_progress progress;
    const size_t count = show->spec->tensor_count * CAIRN_PLANE_COUNT;
    const struct ctl_sweep sweep = { .folder = folder,
                                     .snapshot = snapshot,
                                     .progress = &progress,
                                     .context = show,
                                     .wants = has_stats,
                                     .on_piece = on_piece };
    show->stats[0] = calloc(count + 1, sizeof *show->stats[0]);
    if (show->stats[0] == NULL) return CAIRN_ERR_NO_MEMORY;
    cairn_ctl_progress_begin(&progress, ctl, "read", cairn_ctl_sweep_bytes(&sweep));
    const cairn_status status = cairn_ctl_sweep(&sweep, why);
    cairn_ctl_progress_end(&progress);
    for (unsigned thread = 1; thread < CTL_SWEEP_THREADS_MAX; thread++)
        for (size_t i = 0; i < count && show->stats[thread] != NULL; i++)
            cairn_ctl_stats_join(&show->stats[0][i], &show->stats[thread][i]);
    return status;
}

/* ---- JSON ---- */

static json_t *stats_json(const struct ctl_stats *s)
{
    return json_pack("{s:o, s:o, s:o, s:f, s:I}", "min",
                     s->finite > 0 ? json_real((double)s->min) : json_null(), "max",
                     s->finite > 0 ? json_real((double)s->max) : json_null(), "mean",
                     s->finite > 0 ? json_real(cairn_ctl_stats_mean(s)) : json_null(), "l2",
                     cairn_ctl_stats_norm(s), "nonfinite", (json_int_t)s->nonfinite);
}

static json_t *tensor_json(const struct show *show, size_t tensor)
{
    const struct cairn_tensor_spec *t = &show->spec->tensors[tensor];
    json_t *shape = json_array(), *planes = json_array();
    for (uint32_t d = 0; d < t->shape.rank; d++)
        json_array_append_new(shape, json_integer((json_int_t)t->shape.dim[d]));
    for (int plane = 0; plane < CAIRN_PLANE_COUNT; plane++)
        if (is_stored(show->spec, tensor, plane))
            json_array_append_new(planes, json_string(cairn_plane_name(plane)));
    json_t *object = json_pack("{s:s, s:s, s:s, s:o, s:o, s:s*}", "name", t->name, "kind",
                               cairn_capability_name(CAIRN_CAPABILITY_KIND, (int)t->kind), "dtype",
                               cairn_dtype_name((int)t->master), "shape", shape, "planes", planes,
                               "alias_of", t->alias_of);
    if (show->stats[0] == NULL) return object;
    json_t *stats = json_object();
    for (int plane = 0; plane < CAIRN_PLANE_COUNT; plane++)
        if (is_stored(show->spec, tensor, plane) && t->kind != CAIRN_BLOB)
            json_object_set_new(stats, cairn_plane_name(plane),
                                stats_json(stats_at(show, 0, tensor, plane)));
    json_object_set_new(object, "stats", stats);
    return object;
}

static json_t *tensors_json(const struct show *show)
{
    json_t *list = json_array();
    for (size_t t = 0; t < show->spec->tensor_count; t++)
        json_array_append_new(list, tensor_json(show, t));
    return list;
}

/* ---- tables ---- */

static void print_tensors(const struct ctl *ctl, const struct cairn_job_spec_data *spec)
{
    static const char *const headers[] = { "TENSOR", "KIND", "DTYPE", "SHAPE", "PLANES" };
    struct ctl_table *table = cairn_ctl_table_open(headers, 5);
    char shape[CTL_SHAPE_BYTES];
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const struct cairn_tensor_spec *t = &spec->tensors[i];
        struct cairn_sentence planes = { "" };
        for (int plane = 0; plane < CAIRN_PLANE_COUNT; plane++)
            if (is_stored(spec, i, plane))
                cairn_sentence_add(&planes, "%s%s", planes.text[0] != '\0' ? " " : "",
                                   cairn_plane_name(plane));
        if (t->alias_of != NULL)
            cairn_sentence_set(&planes, "%s %s", t->alias_box != NULL ? "a part of" : "as",
                               t->alias_of);
        cairn_ctl_table_cell(table, "%s", t->name);
        cairn_ctl_table_cell(table, "%s",
                             t->alias_of != NULL
                                 ? "alias"
                                 : cairn_capability_name(CAIRN_CAPABILITY_KIND, (int)t->kind));
        cairn_ctl_table_cell(table, "%s",
                             t->alias_of != NULL ? "" : cairn_dtype_name((int)t->master));
        cairn_ctl_table_cell(table, "%s",
                             t->alias_of != NULL ? "" : cairn_ctl_shape(&t->shape, shape));
        cairn_ctl_table_cell(table, "%s", planes.text);
    }
    cairn_ctl_table_close(table, ctl);
}

static void print_stats_of(struct ctl_table *table, const struct show *show, size_t tensor,
                           int plane)
{
    const struct cairn_tensor_spec *t = &show->spec->tensors[tensor];
    const struct ctl_stats *s = stats_at(show, 0, tensor, plane);
    const double figures[] = { (double)s->min, (double)s->max, cairn_ctl_stats_mean(s),
                               cairn_ctl_stats_norm(s) };
    char shape[CTL_SHAPE_BYTES];
    cairn_ctl_table_cell(table, "%s", t->name);
    cairn_ctl_table_cell(table, "%s", cairn_plane_name(plane));
    cairn_ctl_table_cell(table, "%s", cairn_ctl_shape(&t->shape, shape));
    for (size_t f = 0; f < sizeof figures / sizeof *figures; f++) {
        if (s->finite > 0)
            cairn_ctl_table_cell(table, "%.6g", figures[f]);
        else
            cairn_ctl_table_cell(table, "-");
    }
    cairn_ctl_table_cell(table, "%llu", (unsigned long long)s->nonfinite);
}

static void print_stats(const struct ctl *ctl, const struct show *show)
{
    static const char *const headers[] = { "TENSOR", "PLANE", "SHAPE", "MIN",
                                           "MAX",    "MEAN",  "NORM",  "NONFINITE" };
    struct ctl_table *table = cairn_ctl_table_open(headers, 8);
    for (size_t i = 0; i < show->spec->tensor_count; i++)
        for (int plane = 0; plane < CAIRN_PLANE_COUNT; plane++)
            if (is_stored(show->spec, i, plane)) print_stats_of(table, show, i, plane);
    cairn_ctl_table_close(table, ctl);
}

static void print(const struct ctl *ctl, const Cairn__SnapshotStatus *status,
                  const struct show *show)
{
    cairn_ctl_snapshot_print(status);
    if (show->spec == NULL) return;
    printf("\n");
    if (show->stats[0] != NULL)
        print_stats(ctl, show);
    else
        print_tensors(ctl, show->spec);
}

static void print_json(const Cairn__SnapshotStatus *status, const struct show *show)
{
    json_t *object = cairn_ctl_snapshot_json(status);
    json_object_set_new(object, "tensors", show->spec != NULL ? tensors_json(show) : json_null());
    cairn_ctl_print_json(object);
}

/* ---- where it is told ---- */

/* As the coordinator would say it; borrowed from the manifest and the folder's path. */
static void status_of(const struct cairn_manifest *m, const char *folder,
                      char nonfinite[static CAIRN_RESULTS_BYTES], Cairn__SnapshotStatus *out)
{
    const char *slash = strrchr(folder, '/');
    cairn__snapshot_status__init(out);
    cairn_results_list(&m->nonfinite, &m->spec, nonfinite);
    out->nonfinite = m->nonfinite.nonfinite;
    out->nonfinite_tensors = nonfinite;
    out->id = (char *)(uintptr_t)(slash != NULL ? slash + 1 : folder);
    out->path = (char *)(uintptr_t)folder;
    out->job = m->spec.name;
    out->state = (char *)(uintptr_t) "committed";
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

/* `told` is NULL without a coordinator. */
static void say(const struct ctl *ctl, const char *folder, const Cairn__SnapshotStatus *told,
                const struct cairn_manifest *manifest, const struct show *show)
{
    char nonfinite[CAIRN_RESULTS_BYTES];
    Cairn__SnapshotStatus own;
    if (told == NULL) {
        status_of(manifest, folder, nonfinite, &own);
        told = &own;
    }
    if (ctl->json)
        print_json(told, show);
    else if (ctl->quiet)
        printf("%s\n", told->id);
    else
        print(ctl, told, show);
}

static int show_stats(struct ctl *ctl, const char *folder, const Cairn__SnapshotStatus *told)
{
    struct cairn_snapshot snapshot;
    struct cairn_sentence why = { "" };
    struct show show = { .spec = &snapshot.manifest.spec };
    int done = cairn_ctl_place_open(folder, &snapshot);
    if (done >= 0) return done;
    const cairn_status status = read_stats(ctl, &show, folder, &snapshot, &why);
    if (status == CAIRN_OK)
        say(ctl, folder, told, &snapshot.manifest, &show);
    else
        done = cairn_ctl_place_fail(folder, status, &why);
    for (size_t i = 0; i < CTL_SWEEP_THREADS_MAX; i++) free(show.stats[i]);
    cairn_snapshot_close(&snapshot);
    return done >= 0 ? done : 0;
}

/* The coordinator has read it: that it is not to be seen from here is no failure. */
static int show_tensors(struct ctl *ctl, const char *folder, const Cairn__SnapshotStatus *told)
{
    struct cairn_manifest manifest;
    struct cairn_sentence why = { "" };
    struct show show = { .spec = NULL };
    const cairn_status status = cairn_manifest_load(folder, &manifest, &why);
    if (status != CAIRN_OK && told == NULL) return cairn_ctl_place_fail(folder, status, &why);
    if (status == CAIRN_OK)
        show.spec = &manifest.spec;
    else
        fprintf(stderr, "cairn: its tensors are not shown: %s\n", why.text);
    say(ctl, folder, told, &manifest, &show);
    if (status == CAIRN_OK) cairn_manifest_release(&manifest);
    return 0;
}

static int show_folder(struct ctl *ctl, const char *folder, const Cairn__SnapshotStatus *told)
{
    return ctl->export.stats ? show_stats(ctl, folder, told) : show_tensors(ctl, folder, told);
}

int cairn_ctl_snapshot_show(struct ctl *ctl)
{
    Cairn__SnapshotShow show = CAIRN__SNAPSHOT_SHOW__INIT;
    ProtobufCMessage *reply;
    char folder[PATH_MAX], latest[CAIRN_SNAPSHOT_ID_BYTES];
    if (ctl->path != NULL || ctl->argc != 2) {
        const int found = cairn_ctl_place_find(ctl, folder);
        return found >= 0 ? found : show_folder(ctl, folder, NULL);
    }
    show.job = ctl->argv[0];
    show.id = ctl->argv[1];
    if (ctl->timeout_ms == 0) ctl->timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS;
    if (strcmp(show.id, "latest") == 0) {
        const int found = cairn_ctl_snapshot_latest(ctl, show.job, latest);
        if (found >= 0) return found;
        show.id = latest;
    }
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_SNAPSHOT_SHOW, &show.base,
                                               CAIRN_MSG_SNAPSHOT_STATUS, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__SnapshotStatus *told = (const Cairn__SnapshotStatus *)reply;
    const int done = show_folder(ctl, told->path, told);
    cairn_message_free(reply);
    return done;
}

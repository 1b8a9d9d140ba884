/* Shows operators the state of the cluster and its jobs: `cairn cluster status`, `cairn job list`,
 * `cairn job show`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"

/* ==== bytes ==== */

static void take_memory(struct coord_shard_entry *entry, const Cairn__Heartbeat *message)
{
    const size_t count = message->n_memory < CAIRN_MEMORY_TOLD_MAX ? message->n_memory
                                                                   : CAIRN_MEMORY_TOLD_MAX;
    entry->memory_count = 0;
    Cairn__MemoryTold *memory = realloc(entry->memory, (count + 1) * sizeof *memory);
    if (memory == NULL) return;
    entry->memory = memory;
    for (size_t i = 0; i < count; i++) {
        memory[i] = *message->memory[i];
        // These fields belong to the message, which is freed. The other fields are numbers.
        memory[i].shard = NULL;
        memory[i].untold = false;
        memory[i].base.unknown_fields = NULL;
        memory[i].base.n_unknown_fields = 0;
    }
    entry->memory_count = count;
}

void coord_bytes_take(struct coord_shard_entry *entry, const Cairn__Heartbeat *message)
{
    take_memory(entry, message);
    const size_t count = message->n_bytes < CAIRN_BYTES_TOLD_MAX ? message->n_bytes
                                                                 : CAIRN_BYTES_TOLD_MAX;
    entry->bytes_count = 0;
    Cairn__BytesTold *bytes = realloc(entry->bytes, (count + 1) * sizeof *bytes);
    if (bytes == NULL) return;
    entry->bytes = bytes;
    // a BytesTold has only numbers
    for (size_t i = 0; i < count; i++) bytes[i] = *message->bytes[i];
    entry->bytes_count = count;
}

void coord_bytes_read(struct coord_member *member, uint64_t bytes)
{
    if (bytes > member->read_bytes) member->read_bytes = bytes;
}

/* True if a worker has that rank now. The last report of a shard that is away names workers that
 * may have left since. */
static bool is_attached(const struct coord_job *job, uint32_t rank)
{
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->role == CAIRN_ROLE_WIRE_WORKER && m->rank == rank) return true;
    return false;
}

/* Returns the entry of the worker with this rank. If there is no entry, inserts one in the order of
 * ranks. Returns NULL if the worker has left, or if enough workers of lower ranks are shown. */
static Cairn__BytesTold *worker_bytes(struct bytes_view *out, const struct coord_job *job,
                                      uint32_t rank)
{
    size_t at = 1;
    while (at < out->count && out->told[at].rank < rank) at++;
    if (at < out->count && out->told[at].rank == rank) return &out->told[at];
    if (at > CAIRN_BYTES_WORKERS_SHOWN || !is_attached(job, rank)) return NULL;
    if (out->count <= CAIRN_BYTES_WORKERS_SHOWN) out->count++; // else the last entry is dropped
    memmove(&out->told[at + 1], &out->told[at], (out->count - 1 - at) * sizeof *out->told);
    cairn__bytes_told__init(&out->told[at]);
    out->told[at].of_worker = true;
    out->told[at].rank = rank;
    return &out->told[at];
}

/* Adds what one shard reports. The bytes of a step are computed with the shard's own number of
 * steps, because shards report at different times. */
static void add_bytes(Cairn__BytesTold *to, const Cairn__BytesTold *more)
{
    to->pushed_shared += more->pushed_shared;
    to->pushed_carried += more->pushed_carried;
    to->fetched_shared += more->fetched_shared;
    to->fetched_carried += more->fetched_carried;
    to->put += more->put;
    to->pushed_one_sided += more->pushed_one_sided;
    to->fetched_one_sided += more->fetched_one_sided;
    to->pushed_direct += more->pushed_direct;
    to->fetched_direct += more->fetched_direct;
    to->pushed_device += more->pushed_device;
    to->fetched_device += more->fetched_device;
    if (more->steps == 0) return;
    const double steps = (double)more->steps;
    to->pushed_a_step += (double)(more->pushed_shared + more->pushed_carried) / steps;
    to->fetched_a_step += (double)(more->fetched_shared + more->fetched_carried) / steps;
    if (more->steps > to->steps) to->steps = more->steps;
}

static void add_read(Cairn__BytesTold *to, uint64_t bytes)
{
    to->fetched_shared += bytes;
    if (to->steps > 0) to->fetched_a_step += (double)bytes / (double)to->steps;
}

const Cairn__BytesTold *coord_bytes_of(const struct coord_job *job, struct bytes_view *out)
{
    out->count = 1;
    cairn__bytes_told__init(&out->told[0]);
    CAIRN_EACH_SHARD (job, s) {
        const struct coord_shard_entry *entry = job->shards[s].entry;
        for (size_t i = 0; i < entry->bytes_count; i++) {
            const Cairn__BytesTold *told = &entry->bytes[i];
            if (told->job != job->id) continue;
            Cairn__BytesTold *to = told->of_worker ? worker_bytes(out, job, told->rank)
                                                   : &out->told[0];
            if (to != NULL) add_bytes(to, told);
        }
    }
    // The bytes that members have read are added last, because the shards' reports say how many
    // steps there were.
    uint64_t read = job->members.read_bytes;
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        read += m->read_bytes;
        if (m->read_bytes == 0 || m->role != CAIRN_ROLE_WIRE_WORKER) continue;
        Cairn__BytesTold *to = worker_bytes(out, job, m->rank);
        if (to != NULL) add_read(to, m->read_bytes);
    }
    add_read(&out->told[0], read);
    for (size_t i = 0; i < out->count; i++) {
        out->told[i].job = job->id;
        out->list[i] = &out->told[i];
    }
    return &out->told[0];
}

/* ---- memory ---- */

void coord_memory_of(const struct coord_job *job, struct memory_view *out)
{
    *out = (struct memory_view) { .told = calloc(job->entry_count + 1, sizeof *out->told),
                                  .list = calloc(job->entry_count + 1, sizeof *out->list) };
    if (out->told == NULL || out->list == NULL) return;
    CAIRN_EACH_SHARD (job, s) {
        Cairn__MemoryTold *told = out->list[out->count] = &out->told[out->count];
        out->count++;
        const struct coord_shard_entry *entry = job->shards[s].entry;
        cairn__memory_told__init(told);
        told->untold = true;
        for (size_t i = 0; i < entry->memory_count; i++)
            if (entry->memory[i].job == job->id) *told = entry->memory[i];
        told->job = job->id;
        told->shard_index = s;
        told->shard = entry->name;
        out->sum += told->state + told->published + told->landing + told->staging + told->tables;
    }
}

void coord_memory_release(struct memory_view *view)
{
    free(view->told);
    free(view->list);
}

/* ==== job status ==== */

#define FROZEN_SHOWN 16

#define LEASES_SHOWN 64

/* A status message, and the memory from which the message borrows. */
struct job_view {
    Cairn__JobStatus status;
    Cairn__JobSpec spec;
    struct sentence awaited, saving, gradient, moving, loss, path_cut;
    char layout_hash[2 * CAIRN_LAYOUT_HASH_BYTES + 1];
    Cairn__GroupSpec *groups; /* owned */
    Cairn__GroupSpec **list;  /* owned */
    char *frozen[FROZEN_SHOWN];
    Cairn__LeaseStatus leases[LEASES_SHOWN];
    Cairn__LeaseStatus *lease_list[LEASES_SHOWN];
    struct bytes_view bytes;
    struct memory_view memory;
    struct times_view times;
    struct groups_view reduce_groups;
    struct straggler_view straggler;
    char nonfinite[CAIRN_RESULTS_BYTES];
};

static void fill_rounds(struct job_view *view, const struct coord_job *job)
{
    Cairn__JobStatus *s = &view->status;
    s->loss_scale = job->spec.loss_scale;
    if (job->core == NULL) return;
    struct payload head;
    const struct round_counts counts = round_counts_of(job->core);
    const struct decision *last = round_last(job->core);
    s->epoch = round_epoch_of(job->core);
    s->round = round_open_round(job->core);
    s->workers = round_worker_count(job->core);
    s->steps_applied = counts.applied;
    s->rounds_skipped = counts.skipped;
    s->skips = round_skips(job->core).all;
    s->skips_in_row = round_skips(job->core).in_row;
    s->rounds_abandoned = counts.abandoned;
    s->loss_scale = round_loss_scale(job->core);
    s->nonfinite = coord_halts_nonfinite(job, view->nonfinite);
    s->nonfinite_tensors = view->nonfinite;
    if (last->payload_bytes > 0 &&
        payload_decode(last->payload, last->payload_bytes, &head) == CAIRN_OK) {
        s->last_grad_norm = head.grad_norm;
        if (!head.finite) {
            const struct results gradients = coord_halts_gradients(job, last->round);
            results_gradient(&gradients, &job->spec, &view->gradient);
            s->gradient = view->gradient.text;
        }
        s->client_state_bytes = head.state_bytes;
    }
}

static void fill_shards(struct job_view *view, const struct coord_job *job)
{
    Cairn__JobStatus *s = &view->status;
    const Cairn__BytesTold *all = coord_bytes_of(job, &view->bytes);
    s->bytes = view->bytes.list;
    s->n_bytes = view->bytes.count;
    s->pushed_bytes = all->pushed_shared + all->pushed_carried + all->put;
    s->fetched_bytes = all->fetched_shared + all->fetched_carried;
    s->shards = job->entry_count;
    CAIRN_EACH_SHARD (job, i) s->shards_told += job->shards[i].entry->has_stats;
    coord_memory_of(job, &view->memory);
    s->memory = view->memory.list;
    s->n_memory = view->memory.count;
    s->state_bytes = view->memory.sum;
}

static void list_frozen(struct job_view *view, const struct job_spec_data *spec)
{
    Cairn__JobStatus *s = &view->status;
    s->frozen_tensors = view->frozen;
    for (size_t i = 0; i < spec->tensor_count; i++) {
        if (!spec->tensors[i].frozen) continue;
        s->frozen_tensor_count++;
        if (s->n_frozen_tensors < FROZEN_SHOWN)
            view->frozen[s->n_frozen_tensors++] = spec->tensors[i].name;
    }
}

/* Shows the leases that are granted. The other leases still wait. */
static void fill_leases(struct job_view *view, const struct coord_job *job)
{
    Cairn__JobStatus *s = &view->status;
    const uint64_t now_ms = coord_now_ms(job->cluster);
    s->leases = view->lease_list;
    for (const struct coord_lease *l = job->leases.list; l != NULL; l = l->next) {
        if (l->ends_ms == 0 || s->n_leases == LEASES_SHOWN) continue;
        Cairn__LeaseStatus *out = &view->leases[s->n_leases];
        cairn__lease_status__init(out);
        out->generation = l->version.generation;
        out->step = l->version.step;
        out->holder = l->member->session->name;
        out->role = l->member->role;
        out->left_ms = l->ends_ms > now_ms ? l->ends_ms - now_ms : 0;
        view->lease_list[s->n_leases++] = out;
    }
}

/* Writes, for example, "slice 3 of 12, 1234 of 5678 bytes". Writes nothing if no run is under way. */
static void show_reshard(const struct coord_job *job, struct sentence *out)
{
    const struct coord_reshard_progress *progress = &job->reshard.progress;
    out->text[0] = '\0';
    if (!job->reshard.running) return;
    sentence_set(out, "slice %" PRIu32 " of %" PRIu32 ", %" PRIu64 " of %" PRIu64 " bytes%s",
                 progress->slice, progress->slices, progress->moved_bytes, progress->all_bytes,
                 job->reshard.canceled ? "; it ends after this slice" : "");
}

static bool view_init(struct job_view *view, const struct coord_job *job)
{
    const struct job_spec_data *spec = &job->spec;
    Cairn__JobStatus *s = &view->status;
    cairn__job_status__init(s);
    view->groups = calloc(spec->group_count + 1, sizeof *view->groups);
    view->list = calloc(spec->group_count + 1, sizeof *view->list);
    if (view->groups == NULL || view->list == NULL) return false;
    const struct cairn_version version = coord_job_version(job);
    coord_job_waiting(job, &view->awaited);
    for (int i = 0; i < CAIRN_LAYOUT_HASH_BYTES; i++)
        snprintf(&view->layout_hash[2 * i], 3, "%02x", job->layout->hash[i]);
    for (size_t i = 0; i < spec->group_count; i++) {
        group_to_message(&spec->groups[i], &view->groups[i]);
        view->groups[i].lr_now = job->core != NULL ? round_lr(job->core, (uint32_t)i)
                                                   : spec->groups[i].lr;
        view->list[i] = &view->groups[i];
    }
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const bool is_blob = spec->tensors[i].kind == CAIRN_BLOB;
        *(is_blob ? &s->blob_bytes : &s->elems) += job->layout->geometry[i].elems;
        s->blobs += is_blob;
    }
    s->name = spec->name;
    s->state = wire_text(coord_job_state_name(job));
    s->generation = version.generation;
    s->step = version.step;
    s->version_unknown = job->version_unknown;
    s->awaited = view->awaited.text;
    if (job->state == CAIRN_CLUSTER_JOB_LOST) s->loss = wire_text(job->loss.why.text);
    s->put_out = wire_text(job->rounds.put_out.text);
    s->stepped = job->rounds.has_stepped;
    if (s->stepped) s->stepped_ms_ago = coord_now_ms(job->cluster) - job->rounds.stepped_ms;
    s->still_ms = coord_job_still_ms(job);
    s->snapshot_failed = wire_text(job->snapshots.failed.text);
    s->passed_over = wire_text(job->snapshots.passed_over.text);
    coord_snapshot_show(job, &view->saving);
    s->saving = view->saving.text;
    show_reshard(job, &view->moving);
    s->moving = view->moving.text;
    coord_unheard_of_job(job, &view->path_cut);
    s->path_cut = view->path_cut.text;
    s->restores = version.step > job->base_step ? 0 : job->loss.recovery.restores;
    s->workers_min = spec->workers_min;
    s->workers_max = spec->workers_max;
    s->tensors = spec->tensor_count;
    s->groups = view->list;
    s->n_groups = spec->group_count;
    s->layout_hash = view->layout_hash;
    s->heaviest_over_mean = job->planned.heaviest_over_mean;
    s->extents = job->layout != NULL ? job->layout->extent_count : 0;
    s->pieces = job->layout != NULL ? layout_pieces(job->layout) : 0;
    spec_to_message(spec, &view->spec);
    s->spec = &view->spec;
    list_frozen(view, spec);
    fill_rounds(view, job);
    fill_shards(view, job);
    fill_leases(view, job);
    coord_groups_show(job, &view->reduce_groups, s);
    coord_straggler_show(job, &view->straggler, s);
    return true;
}

static void view_release(struct job_view *view)
{
    free(view->groups);
    free(view->list);
    coord_memory_release(&view->memory);
    coord_times_release(&view->times);
}

#define BRIEF_CHARS 160

/* Drops all from the status of a job but the description of the job, and for whom the job waits. So
 * a list fits a frame, even with the maximum number of jobs. `job show` shows the rest. */
static void shorten_job_status(struct job_view *view)
{
    Cairn__JobStatus *s = &view->status;
    s->n_groups = s->n_memory = s->n_leases = s->n_frozen_tensors = 0;
    view->awaited = sentence_brief(view->awaited.text, BRIEF_CHARS);
    view->loss = sentence_brief(s->loss, BRIEF_CHARS);
    s->loss = view->loss.text;
    view->path_cut = sentence_brief(view->path_cut.text, BRIEF_CHARS);
    view->saving.text[0] = view->moving.text[0] = '\0';
    if (s->snapshot_failed[0] != '\0') s->snapshot_failed = wire_text("`cairn job show` says why");
    s->put_out = s->passed_over = s->nonfinite_tensors = s->gradient = wire_text("");
    s->straggler = NULL;
}

static void on_job_list_get(struct coord_session *session, uint32_t request, const void *any)
{
    (void)any;
    size_t count = 0;
    for (struct coord_job *j = session->cluster->jobs; j != NULL; j = j->next) count++;
    struct job_view *views = calloc(count + 1, sizeof *views);
    Cairn__JobStatus **list = calloc(count + 1, sizeof *list);
    bool whole = views != NULL && list != NULL;
    size_t n = 0;
    for (struct coord_job *j = session->cluster->jobs; whole && j != NULL; j = j->next, n++) {
        whole = view_init(&views[n], j);
        if (!whole) break;
        views[n].status.n_bytes = 0; // only `job show` shows these
        views[n].status.n_reduce_groups = 0;
        list[n] = &views[n].status;
    }
    if (whole) {
        Cairn__JobList jobs = CAIRN__JOB_LIST__INIT;
        jobs.jobs = list;
        jobs.n_jobs = count;
        const bool is_large = cairn__job_list__get_packed_size(&jobs) >
                              CAIRN_FRAME_BYTES_MAX - CAIRN_FRAME_HEADER_BYTES;
        for (size_t i = 0; is_large && i < count; i++) shorten_job_status(&views[i]);
        coord_session_send(session, CAIRN_MSG_JOB_LIST, request, &jobs.base);
    } else {
        coord_session_error(session, request, CAIRN_ERR_NO_MEMORY, "out of memory");
    }
    for (size_t i = 0; views != NULL && i < count; i++) view_release(&views[i]);
    free(views);
    free(list);
}

static void on_job_show(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__JobShow *show = any;
    struct coord_job *job = coord_job_named(session, request, show->name);
    struct job_view view = { .groups = NULL };
    if (job == NULL) return;
    if (view_init(&view, job) &&
        (!show->times || coord_times_show(job, &view.times, &view.status))) {
        coord_session_send(session, CAIRN_MSG_JOB_STATUS, request, &view.status.base);
    } else {
        coord_session_error(session, request, CAIRN_ERR_NO_MEMORY, "out of memory");
    }
    view_release(&view);
}

/* ==== cluster status ==== */

/* Answers `cairn cluster status`: the coordinator, its shards, workers and readers. */

/* Returns the kind of the address, and what its owner can do besides (fabric_address_ways), as text
 * for a message field. Nobody writes to this text. */
static char *path_of(const uint8_t *address, size_t bytes)
{
    return wire_text(fabric_address_ways(address, bytes));
}

/* Writes the places of the address into `text`, and returns `text`. */
static char *place_of(const uint8_t *address, size_t bytes, char text[CAIRN_PLACE_BYTES])
{
    fabric_address_print_places(address, bytes, text);
    return text;
}

static void fill_shard(Cairn__MemberStatus *out, struct coord_shard_entry *entry,
                       char place[CAIRN_PLACE_BYTES], uint64_t now_ms)
{
    cairn__member_status__init(out);
    out->name = entry->name;
    out->role = CAIRN_ROLE_WIRE_SHARD;
    out->state = wire_text(entry->session == NULL     ? "away"
                           : coord_shard_obeys(entry) ? "up"
                                                      : "not ours");
    if (entry->session != NULL) {
        out->address = wire_text(peer_name(entry->session->peer));
        out->path = path_of(entry->fabric_address, entry->fabric_address_bytes);
        out->place = place_of(entry->fabric_address, entry->fabric_address_bytes, place);
        out->without = entry->session->without;
        out->version = entry->session->version;
        if (coord_shard_apart(entry)) out->apart = wire_text(CAIRN_SHARD_APART_TEXT);
        out->home = entry->session->home;
        out->stats = entry->has_stats ? &entry->stats : NULL;
        out->storage = wire_text(entry->storage.text);
        out->unfit = wire_text(coord_shard_unfit(entry) ? entry->unfit.text : "");
        out->unheard = wire_text(coord_unheard_text(entry->session));
    }
    out->since_ms = now_ms - entry->since_ms;
    out->state_bytes = entry->stats.state_bytes;
    out->memory_bytes = entry->memory_bytes;
}

static void fill_session(Cairn__MemberStatus *out, const struct coord_session *session,
                         char place[CAIRN_PLACE_BYTES], uint64_t now_ms)
{
    cairn__member_status__init(out);
    out->name = session->name;
    out->role = session->role;
    out->state = wire_text("up");
    out->version = session->version;
    out->address = wire_text(peer_name(session->peer));
    out->path = path_of(session->fabric_address, session->fabric_address_bytes);
    out->place = place_of(session->fabric_address, session->fabric_address_bytes, place);
    out->since_ms = now_ms - session->since_ms;
    out->unheard = wire_text(coord_unheard_text(session));
}

#define MEMBERS_MAX 4096 /* the most members in an answer, so that it fits a frame */

static bool is_shown(const struct coord_session *session)
{
    return session->role == CAIRN_ROLE_WIRE_WORKER || session->role == CAIRN_ROLE_WIRE_READER;
}

static size_t count_members(const struct coord *cluster)
{
    size_t n = 0;
    for (const struct coord_shard_entry *s = cluster->shards; s != NULL; s = s->next) n++;
    for (const struct coord_session *s = cluster->sessions; s != NULL; s = s->next)
        n += is_shown(s);
    return n < MEMBERS_MAX ? n : MEMBERS_MAX;
}

/* Fills in the shards first, then workers and readers, at most `max` in all. Returns how many
 * members were filled in. */
static size_t fill_members(const struct coord *cluster, Cairn__MemberStatus *out,
                           char (*places)[CAIRN_PLACE_BYTES], size_t max)
{
    const uint64_t now_ms = uv_now(cluster->loop);
    size_t n = 0;
    for (struct coord_shard_entry *s = cluster->shards; s != NULL && n < max; s = s->next) {
        fill_shard(&out[n], s, places[n], now_ms);
        n++;
    }
    for (const struct coord_session *s = cluster->sessions; s != NULL && n < max; s = s->next) {
        if (!is_shown(s)) continue;
        fill_session(&out[n], s, places[n], now_ms);
        n++;
    }
    return n;
}

/* Answers `cairn cluster status`. */
static void on_cluster_status_get(struct coord_session *session, uint32_t request, const void *any)
{
    (void)any;
    const struct coord *cluster = session->cluster;
    struct coord_strangers strangers;
    const size_t max = count_members(cluster);
    Cairn__MemberStatus *members = calloc(max + 1, sizeof *members);
    Cairn__MemberStatus **list = calloc(max + 1, sizeof *list);
    char(*places)[CAIRN_PLACE_BYTES] = calloc(max + 1, sizeof *places);
    if (members == NULL || list == NULL || places == NULL ||
        !coord_strangers_init(&strangers, cluster)) {
        free(members);
        free(list);
        free(places);
        coord_session_error(session, request, CAIRN_ERR_NO_MEMORY, "out of memory");
        return;
    }
    Cairn__ClusterStatus status = CAIRN__CLUSTER_STATUS__INIT;
    status.cluster = cluster->options->name;
    status.coordinator_incarnation = cluster->identity.id.incarnation;
    const char *build = cluster->options->build;
    status.version = wire_text(build != NULL ? build : CAIRN_VERSION);
    status.uptime_ms = uv_now(cluster->loop) - cluster->clock.started_ms;
    status.shards_expected = (uint32_t)cluster->options->shards;
    status.members = list;
    status.n_members = fill_members(cluster, members, places, max);
    for (size_t i = 0; i < status.n_members; i++) list[i] = &members[i];
    for (const struct coord_job *j = cluster->jobs; j != NULL; j = j->next) status.job_count++;
    status.store = cluster->identity.id.store;
    status.storage = wire_text(cluster->storage.watch.said.text);
    status.strangers = strangers.list;
    status.n_strangers = strangers.count;
    coord_session_send(session, CAIRN_MSG_CLUSTER_STATUS, request, &status.base);
    coord_strangers_release(&strangers);
    free(members);
    free(list);
    free(places);
}

/* ==== snapshots ==== */

/* Answers an admin who asks for the snapshots in the folder of snapshots. Another thread reads the
 * folder. */

struct listing {
    struct coord_work work;
    cairn_status status;
    struct sentence why;
    /* owned */
    char *job; /* NULL: the snapshots of all jobs */
    char *id;  /* the id of the only snapshot to show; NULL: list all */
    struct key_ring ring;
    struct coord_found found;
    struct said *said; /* [found.count]; NULL: no words were read */
};

/* The part of a job's words (struct snapshot_words) that is about one snapshot: whether it is the
 * latest, how it was checked, and its tags. */
struct said {
    bool latest, check_failed;
    uint64_t checked_unix_s;
    size_t tag_count;
    char (*tags)[CAIRN_SNAPSHOT_TAG_BYTES]; /* owned */
    char **list;                            /* owned: [tag_count] pointers into `tags` */
};

static void free_listing(struct listing *listing)
{
    for (size_t i = 0; listing->said != NULL && i < listing->found.count; i++) {
        free(listing->said[i].tags);
        free(listing->said[i].list);
    }
    free(listing->said);
    coord_found_release(&listing->found);
    free(listing->job);
    free(listing->id);
    free(listing);
}

static void take_words(const struct snapshot_words *words, const char *id, struct said *out)
{
    const struct snapshot_check *check = snapshot_words_check(words, id);
    out->latest = strcmp(words->latest, id) == 0;
    if (check != NULL) out->checked_unix_s = check->unix_s;
    out->check_failed = check != NULL && !check->is_good;
    out->tags = calloc(words->tag_count + 1, sizeof *out->tags);
    out->list = calloc(words->tag_count + 1, sizeof *out->list);
    for (size_t i = 0; out->tags != NULL && out->list != NULL && i < words->tag_count; i++) {
        if (strcmp(words->tags[i].id, id) != 0) continue;
        memcpy(out->tags[out->tag_count], words->tags[i].name, sizeof *out->tags);
        out->list[out->tag_count] = out->tags[out->tag_count];
        out->tag_count++;
    }
}

/* Reads the words of each job. If the words of a job cannot be read, its snapshots are listed
 * without words, because that is better than no list. */
static void read_words(struct listing *listing)
{
    const struct coord_found *found = &listing->found;
    listing->said = calloc(found->count + 1, sizeof *listing->said);
    for (size_t i = 0; listing->said != NULL && i < found->count; i++) {
        const char *job = found->list[i].manifest.spec.name;
        struct snapshot_words words;
        struct sentence why;
        // the words were read with an earlier snapshot of the job
        if (listing->said[i].tags != NULL) continue;
        if (snapshot_words_load(listing->work.cluster->storage.path, job, &words, &why) != CAIRN_OK)
            log_warn("the words of the snapshots of job %s: %s", job, why.text);
        for (size_t k = i; k < found->count; k++)
            if (strcmp(found->list[k].manifest.spec.name, job) == 0)
                take_words(&words, found->list[k].place.id, &listing->said[k]);
        snapshot_words_release(&words);
    }
}

static void fill_words(const struct listing *listing, size_t i, Cairn__SnapshotStatus *out)
{
    if (listing->said == NULL) return;
    const struct said *said = &listing->said[i];
    out->latest = said->latest;
    out->checked_unix_ms = said->checked_unix_s * 1000;
    out->check_failed = said->check_failed;
    out->tags = said->list;
    out->n_tags = said->tag_count;
}

static void read_store(struct coord_work *work)
{
    struct listing *listing = (struct listing *)work;
    listing->status = coord_find_snapshots(work->cluster, listing->job, listing->id,
                                           &listing->found, &listing->why);
    for (size_t i = 0; i < listing->found.count; i++) {
        struct found_snapshot *f = &listing->found.list[i];
        struct sentence what;
        manifest_trust(&f->manifest, &listing->ring, &what);
        snprintf(f->signature, sizeof f->signature, "%.*s", (int)sizeof f->signature - 1,
                 sentence_brief(what.text, sizeof f->signature - 1).text);
    }
    if (listing->status == CAIRN_OK) read_words(listing);
}

/* True if the snapshot has been found in the folder already, although the loop has not heard yet
 * that its manifest is there. */
static bool is_found(const struct listing *listing, const Cairn__SnapshotStatus *s)
{
    for (size_t i = 0; i < listing->found.count; i++)
        if (strcmp(listing->found.list[i].place.id, s->id) == 0 &&
            strcmp(listing->found.list[i].manifest.spec.name, s->job) == 0)
            return true;
    return false;
}

/* Lists the snapshots that are being taken. The list borrows from their jobs. The caller frees both
 * arrays. Returns false if there is no memory. */
static bool list_running(const struct listing *listing, struct snapshot_view **views,
                         Cairn__SnapshotList *message)
{
    size_t count = 0;
    const struct coord_job *jobs = listing->work.cluster->jobs;
    for (const struct coord_job *j = jobs; j != NULL; j = j->next) count++;
    *views = calloc(count + 1, sizeof **views);
    message->running = calloc(count + 1, sizeof *message->running);
    if (*views == NULL || message->running == NULL) return false;
    for (const struct coord_job *j = jobs; j != NULL; j = j->next) {
        struct snapshot_view *view = *views + message->n_running;
        if (listing->job != NULL && strcmp(listing->job, j->spec.name) != 0) continue;
        if (!coord_snapshot_running(j, view) || is_found(listing, &view->status)) continue;
        message->running[message->n_running++] = &view->status;
    }
    return true;
}

static void send_list(struct listing *listing)
{
    struct sentence why;
    // If there is neither a job of this name here nor a snapshot of one, the name is most likely
    // mistyped.
    if (listing->job != NULL && listing->found.count == 0 &&
        coord_job_find(listing->work.cluster, listing->job) == NULL) {
        sentence_set(&why, "there is no job %s and no snapshot of one; `cairn job list`",
                     listing->job);
        coord_session_error(listing->work.session, listing->work.request, CAIRN_ERR_NOT_FOUND,
                            why.text);
        return;
    }
    struct snapshot_view *views = calloc(listing->found.count + 1, sizeof *views);
    Cairn__SnapshotStatus **list = calloc(listing->found.count + 1, sizeof *list);
    struct snapshot_view *running;
    Cairn__SnapshotList message = CAIRN__SNAPSHOT_LIST__INIT;
    const bool whole = list_running(listing, &running, &message);
    if (whole && views != NULL && list != NULL) {
        for (size_t i = 0; i < listing->found.count; i++) {
            const struct found_snapshot *f = &listing->found.list[i];
            coord_manifest_to_view(&f->manifest, f->place.id, f->folder, &views[i]);
            views[i].status.signature = wire_text(f->signature);
            fill_words(listing, i, &views[i].status);
            list[i] = &views[i].status;
        }
        message.snapshots = list;
        message.n_snapshots = listing->found.count;
        message.unread = listing->found.unread.text;
        coord_session_send(listing->work.session, CAIRN_MSG_SNAPSHOT_LIST, listing->work.request,
                           &message.base);
    } else {
        coord_session_error(listing->work.session, listing->work.request, CAIRN_ERR_NO_MEMORY,
                            "out of memory");
    }
    free(running);
    free(message.running);
    free(views);
    free(list);
}

static void send_one(struct listing *listing)
{
    struct snapshot_view view;
    struct sentence why;
    if (listing->found.count == 0) {
        sentence_set(&why, "there is no committed snapshot %s of job %s; see `cairn snapshot list`",
                     listing->id, listing->job);
        coord_session_error(listing->work.session, listing->work.request, CAIRN_ERR_NOT_FOUND,
                            why.text);
        return;
    }
    const struct found_snapshot *f = listing->found.list;
    coord_manifest_to_view(&f->manifest, f->place.id, f->folder, &view);
    view.status.signature = wire_text(f->signature);
    fill_words(listing, 0, &view.status);
    coord_session_send(listing->work.session, CAIRN_MSG_SNAPSHOT_STATUS, listing->work.request,
                       &view.status.base);
}

static void on_read(struct coord_work *work)
{
    struct listing *listing = (struct listing *)work;
    if (work->session != NULL) {
        if (listing->status != CAIRN_OK) {
            coord_session_error(work->session, work->request, listing->status, listing->why.text);
        } else if (listing->id != NULL) {
            send_one(listing);
        } else {
            send_list(listing);
        }
    }
    free_listing(listing);
}

static void begin_list(struct coord_session *session, uint32_t request, const char *job,
                       const char *id)
{
    struct listing *listing = calloc(1, sizeof *listing);
    bool whole = listing != NULL;
    if (whole && job != NULL) whole = (listing->job = strdup(job)) != NULL;
    if (whole && id != NULL) whole = (listing->id = strdup(id)) != NULL;
    if (whole) {
        coord_keys_ring(session->cluster, &listing->ring);
        listing->work.run = read_store;
        listing->work.done = on_read;
        whole = coord_work_start(&listing->work, session->cluster, session, request);
    }
    if (whole) return;
    if (listing != NULL) free_listing(listing);
    coord_session_error(session, request, CAIRN_ERR_BUSY,
                        "too many requests wait on this connection");
}

static void on_snapshot_list_get(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__SnapshotListGet *message = any;
    const char *job = message->job;
    if (*job != '\0' && !job_name_ok(job)) {
        struct sentence why;
        sentence_set(&why, "\"%.100s\" is not a name of a job; see `cairn job list`", job);
        coord_session_error(session, request, CAIRN_ERR_INVALID, why.text);
        return;
    }
    begin_list(session, request, *job == '\0' ? NULL : job, NULL);
}

static void on_snapshot_show(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__SnapshotShow *message = any;
    const char *job = message->job;
    const char *id = message->id;
    uint64_t generation, step;
    const bool job_ok = job_name_ok(job);
    if (!job_ok || !snapshot_id_parse(id, &generation, &step)) {
        struct sentence why;
        sentence_set(&why, "\"%.100s\" is not %s; `cairn snapshot list` prints jobs and ids",
                     job_ok ? id : job, job_ok ? "an id of a snapshot" : "a name of a job");
        coord_session_error(session, request, CAIRN_ERR_INVALID, why.text);
        return;
    }
    begin_list(session, request, job, id);
}

/* ==== messages ==== */

const struct coord_row coord_status_rows[] = {
    { CAIRN_MSG_CLUSTER_STATUS_GET, CAIRN_FROM_ADMIN, .by_session = on_cluster_status_get },
    { CAIRN_MSG_JOB_LIST_GET, CAIRN_FROM_ADMIN, .by_session = on_job_list_get },
    { CAIRN_MSG_JOB_SHOW, CAIRN_FROM_ADMIN, .by_session = on_job_show },
    { CAIRN_MSG_SNAPSHOT_LIST_GET, CAIRN_FROM_ADMIN, .by_session = on_snapshot_list_get },
    { CAIRN_MSG_SNAPSHOT_SHOW, CAIRN_FROM_ADMIN, .by_session = on_snapshot_show },
    { 0 },
};

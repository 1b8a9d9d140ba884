/* Shows operators the state of the cluster and its jobs: `cairn cluster status`, `cairn job list`,
 * `cairn job show`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"
#include "server/core/mirror.h"

/* ==== bytes ==== */

static void take_memory(struct coord_shard_entry *entry, const Cairn__Heartbeat *message)
{
    const size_t count = message->n_memory < CAIRN_MEMORY_TOLD_MAX ? message->n_memory
                                                                   : CAIRN_MEMORY_TOLD_MAX;
    entry->told.memory_count = 0;
    Cairn__MemoryTold *memory = realloc(entry->told.memory, (count + 1) * sizeof *memory);
    if (memory == NULL) return;
    entry->told.memory = memory;
    for (size_t i = 0; i < count; i++) {
        memory[i] = *message->memory[i];
        // These fields belong to the message, which is freed. The other fields are numbers.
        memory[i].shard = NULL;
        memory[i].untold = false;
        memory[i].base.unknown_fields = NULL;
        memory[i].base.n_unknown_fields = 0;
    }
    entry->told.memory_count = count;
}

void coord_bytes_take(struct coord_shard_entry *entry, const Cairn__Heartbeat *message)
{
    take_memory(entry, message);
    coord_former_take(entry, message);
    const size_t count = message->n_bytes < CAIRN_BYTES_TOLD_MAX ? message->n_bytes
                                                                 : CAIRN_BYTES_TOLD_MAX;
    entry->told.bytes_count = 0;
    Cairn__BytesTold *bytes = realloc(entry->told.bytes, (count + 1) * sizeof *bytes);
    if (bytes == NULL) return;
    entry->told.bytes = bytes;
    // a BytesTold has only numbers
    for (size_t i = 0; i < count; i++) bytes[i] = *message->bytes[i];
    entry->told.bytes_count = count;
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
        for (size_t i = 0; i < entry->told.bytes_count; i++) {
            const Cairn__BytesTold *told = &entry->told.bytes[i];
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

void coord_memory_show(const struct coord_job *job, struct coord_answer *answer,
                       Cairn__JobStatus *status)
{
    CAIRN_EACH_SHARD (job, s) {
        const struct coord_shard_entry *entry = job->shards[s].entry;
        Cairn__MemoryTold *told = coord_answer_add(answer, &status->base, "memory");
        if (told == NULL) return;
        told->untold = true;
        for (size_t i = 0; i < entry->told.memory_count; i++)
            if (entry->told.memory[i].job == job->id) *told = entry->told.memory[i];
        told->job = job->id;
        told->shard_index = s;
        told->shard = entry->name;
        status->parts_kept += !told->untold && told->kept;
        if (s == 0 || told->audited_since < status->audited_since)
            status->audited_since = told->audited_since;
        status->state_bytes += told->state + told->published + told->landing + told->staging +
                               told->tables + told->former;
    }
    status->by_log = coord_former_show(job, answer, &status->base);
    status->going_back = (char *)(uintptr_t)coord_former_say(job, answer);
}

/* ==== job status ==== */

#define FROZEN_SHOWN 16

#define LEASES_SHOWN 64

static void fill_rounds(struct coord_answer *answer, Cairn__JobStatus *s,
                        const struct coord_job *job)
{
    s->loss_scale = job->spec.loss_scale;
    if (job->core == NULL) return;
    struct payload head;
    struct sentence gradient;
    char nonfinite[CAIRN_RESULTS_BYTES];
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
    s->nonfinite = coord_halts_nonfinite(job, nonfinite);
    s->nonfinite_tensors = coord_answer_text(answer, "%s", nonfinite);
    if (last->payload_bytes == 0 ||
        payload_decode(last->payload, last->payload_bytes, &head) != CAIRN_OK)
        return;
    s->last_grad_norm = head.grad_norm;
    s->client_state_bytes = head.state_bytes;
    if (head.finite) return;
    const struct results gradients = coord_halts_gradients(job, last->round);
    results_gradient(&gradients, &job->spec, &gradient);
    s->gradient = coord_answer_text(answer, "%s", gradient.text);
}

#define MIRRORS_SHOWN (64 * CAIRN_STANDBYS_MAX)

/* Says how far one mirror of the part is; NULL: there is none. */
static char *say_mirror(struct coord_answer *answer, const struct coord_job *job, uint32_t shard,
                        int mirror)
{
    const struct coord_mirrored m = coord_mirrors_of(job, shard, mirror);
    const char *name = job->shards[shard].entry->name;
    switch (m.state) {
    case CAIRN_MIRRORED_NOW:
        return coord_answer_text(answer, "%s is mirrored by %s", name, m.standby);
    case CAIRN_MIRRORED_SOON:
        return coord_answer_text(answer, "%s is not mirrored yet: %s is being filled", name,
                                 m.standby);
    case CAIRN_MIRRORED_NOT:
        return coord_answer_text(answer, "%s is not mirrored by %s: %s", name, m.standby, m.why);
    default: return NULL;
    }
}

static void fill_mirrors(struct coord_answer *answer, Cairn__JobStatus *s,
                         const struct coord_job *job)
{
    char **list = coord_answer_bytes(answer, MIRRORS_SHOWN * sizeof *list);
    if (list == NULL) return;
    s->mirrors = list;
    CAIRN_EACH_SHARD (job, i)
        for (int mirror = 0; mirror < CAIRN_STANDBYS_MAX; mirror++) {
            char *said = say_mirror(answer, job, i, mirror);
            if (said != NULL && s->n_mirrors < MIRRORS_SHOWN) list[s->n_mirrors++] = said;
        }
    const struct safety safety = coord_durability_of(job);
    s->durability = wire_text(safety_text(safety.has));
    s->unsafe = coord_answer_text(answer, "%s", safety.why.text);
}

static void fill_shards(struct coord_answer *answer, Cairn__JobStatus *s,
                        const struct coord_job *job)
{
    struct bytes_view *bytes = coord_answer_bytes(answer, sizeof *bytes);
    if (bytes == NULL) return;
    const Cairn__BytesTold *all = coord_bytes_of(job, bytes);
    s->bytes = bytes->list;
    s->n_bytes = bytes->count;
    s->pushed_bytes = all->pushed_shared + all->pushed_carried + all->put;
    s->fetched_bytes = all->fetched_shared + all->fetched_carried;
    s->shards = job->entry_count;
    CAIRN_EACH_SHARD (job, i) s->shards_told += job->shards[i].entry->told.has_stats;
    coord_memory_show(job, answer, s);
    fill_mirrors(answer, s, job);
}

static void list_frozen(struct coord_answer *answer, Cairn__JobStatus *s,
                        const struct job_spec_data *spec)
{
    s->frozen_tensors = coord_answer_bytes(answer, FROZEN_SHOWN * sizeof *s->frozen_tensors);
    if (s->frozen_tensors == NULL) return;
    for (size_t i = 0; i < spec->tensor_count; i++) {
        if (!spec->tensors[i].frozen) continue;
        s->frozen_tensor_count++;
        if (s->n_frozen_tensors < FROZEN_SHOWN)
            s->frozen_tensors[s->n_frozen_tensors++] = spec->tensors[i].name;
    }
}

/* Shows the leases that are granted. The other leases still wait. */
static void fill_leases(struct coord_answer *answer, Cairn__JobStatus *s,
                        const struct coord_job *job)
{
    const uint64_t now_ms = coord_now_ms(job->cluster);
    for (const struct coord_lease *l = job->leases.list; l != NULL; l = l->next) {
        if (l->ends_ms == 0 || s->n_leases == LEASES_SHOWN) continue;
        Cairn__LeaseStatus *out = coord_answer_add(answer, &s->base, "leases");
        if (out == NULL) return;
        out->generation = l->version.generation;
        out->step = l->version.step;
        out->holder = l->member->session->name;
        out->role = l->member->role;
        out->left_ms = l->ends_ms > now_ms ? l->ends_ms - now_ms : 0;
    }
}

static void fill_groups(struct coord_answer *answer, Cairn__JobStatus *s,
                        const struct coord_job *job)
{
    for (uint32_t i = 0; i < job->spec.group_count; i++) {
        const struct group_spec *group = &job->spec.groups[i];
        Cairn__GroupSpec *out = coord_answer_add(answer, &s->base, "groups");
        if (out == NULL) return;
        group_to_message(group, out);
        out->lr_now = job->core != NULL ? round_lr(job->core, i) : group->lr;
    }
}

static void fill_layout(struct coord_answer *answer, Cairn__JobStatus *s,
                        const struct coord_job *job)
{
    char hash[2 * CAIRN_LAYOUT_HASH_BYTES + 1];
    for (int i = 0; i < CAIRN_LAYOUT_HASH_BYTES; i++)
        snprintf(&hash[2 * i], 3, "%02x", job->layout->hash[i]);
    s->layout_hash = coord_answer_text(answer, "%s", hash);
    s->heaviest_over_mean = job->planned.heaviest_over_mean;
    s->extents = job->layout->extent_count;
    s->pieces = layout_pieces(job->layout);
    for (size_t i = 0; i < job->spec.tensor_count; i++) {
        const bool is_blob = job->spec.tensors[i].kind == CAIRN_BLOB;
        *(is_blob ? &s->blob_bytes : &s->elems) += job->layout->geometry[i].elems;
        s->blobs += is_blob;
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

/* Fills in what the job waits for, and what else stands in words. */
static void fill_texts(struct coord_answer *answer, Cairn__JobStatus *s,
                       const struct coord_job *job)
{
    struct sentence text;
    coord_job_waiting(job, &text);
    s->awaited = coord_answer_text(answer, "%s", text.text);
    coord_snapshot_show(job, &text);
    s->saving = coord_answer_text(answer, "%s", text.text);
    show_reshard(job, &text);
    s->moving = coord_answer_text(answer, "%s", text.text);
    coord_unheard_of_job(job, &text);
    s->path_cut = coord_answer_text(answer, "%s", text.text);
    if (job->state == CAIRN_CLUSTER_JOB_LOST) s->loss = wire_text(job->loss.why.text);
    s->put_out = wire_text(job->rounds.put_out.text);
    s->snapshot_failed = wire_text(job->snapshots.failed.text);
    s->passed_over = wire_text(job->snapshots.passed_over.text);
}

static void show_tenant(const struct coord_job *job, Cairn__JobStatus *status)
{
    const struct coord_tenant *tenant = &job->tenant;
    status->owner = wire_text(tenant->owner);
    status->shared = wire_text(tenant->shared);
    status->shared_read = wire_text(tenant->shared_read);
    status->made_by = wire_text(tenant->made_by);
    status->made_from = wire_text(tenant->made_from);
    status->made_unix_ms = 1000 * tenant->made_unix_s;
}

static void fill_job(struct coord_answer *answer, Cairn__JobStatus *s, const struct coord_job *job)
{
    const struct job_spec_data *spec = &job->spec;
    const struct cairn_version version = coord_job_version(job);
    s->name = spec->name;
    show_tenant(job, s);
    s->state = wire_text(coord_job_state_name(job));
    s->generation = version.generation;
    s->step = version.step;
    s->version_unknown = job->version_unknown;
    s->stepped = job->rounds.has_stepped;
    if (s->stepped) s->stepped_ms_ago = coord_now_ms(job->cluster) - job->rounds.stepped_ms;
    s->still_ms = coord_job_still_ms(job);
    s->restores = version.step > job->base_step ? 0 : job->loss.recovery.restores;
    s->workers_min = spec->workers_min;
    s->workers_max = spec->workers_max;
    s->tensors = spec->tensor_count;
    s->spec = coord_answer_bytes(answer, sizeof *s->spec);
    if (s->spec != NULL) spec_to_message(spec, s->spec);
    fill_texts(answer, s, job);
    fill_layout(answer, s, job);
    fill_groups(answer, s, job);
    list_frozen(answer, s, spec);
    fill_rounds(answer, s, job);
    fill_shards(answer, s, job);
    fill_leases(answer, s, job);
    coord_groups_show(job, answer, s);
    coord_straggler_show(job, answer, s);
}

#define BRIEF_CHARS 160

/* Drops all from the status of a job but the description of the job, and for whom the job waits. So
 * a list fits a frame, even with the maximum number of jobs. `job show` shows the rest. */
static void shorten_job_status(struct coord_answer *answer, Cairn__JobStatus *s)
{
    char **const texts[] = { &s->awaited, &s->loss, &s->path_cut, &s->unsafe };
    s->n_groups = s->n_memory = s->n_leases = s->n_frozen_tensors = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        *texts[i] = coord_answer_text(answer, "%s", sentence_brief(*texts[i], BRIEF_CHARS).text);
    if (s->snapshot_failed[0] != '\0') s->snapshot_failed = wire_text("`cairn job show` says why");
    s->saving = s->moving = s->put_out = s->passed_over = s->nonfinite_tensors = s->gradient =
        wire_text("");
    s->straggler = NULL;
}

/* Who may look at a job, and not read it, is told the names of no tensors. */
static void hide_tensors(const struct coord_session *session, const struct coord_job *job,
                         Cairn__JobStatus *s)
{
    struct sentence ignored;
    if (coord_job_judge_access(coord_who(session), job, CAIRN_ACCESS_READ, &ignored) == CAIRN_OK)
        return;
    s->n_frozen_tensors = 0;
    s->nonfinite_tensors = wire_text("");
}

static void on_job_list_get(struct coord_session *session, uint32_t request, const void *any)
{
    (void)any;
    struct coord_answer answer = { 0 };
    Cairn__JobList jobs = CAIRN__JOB_LIST__INIT;
    for (struct coord_job *j = session->cluster->jobs; j != NULL; j = j->next) {
        if (!coord_job_is_seen(session, j)) continue;
        Cairn__JobStatus *status = coord_answer_add(&answer, &jobs.base, "jobs");
        if (status == NULL) break;
        fill_job(&answer, status, j);
        hide_tensors(session, j, status);
        status->n_bytes = status->n_reduce_groups = 0; // only `job show` shows these
    }
    const bool is_large = !answer.failed && cairn__job_list__get_packed_size(&jobs) >
                                                CAIRN_FRAME_BYTES_MAX - CAIRN_FRAME_HEADER_BYTES;
    for (size_t i = 0; is_large && i < jobs.n_jobs; i++) shorten_job_status(&answer, jobs.jobs[i]);
    coord_answer_send(&answer, session, request, CAIRN_MSG_JOB_LIST, &jobs.base);
}

static cairn_status on_job_show(struct coord_session *session, uint32_t request, const void *any,
                                struct sentence *why)
{
    const Cairn__JobShow *show = any;
    struct coord_job *job = coord_job_named(session->cluster, show->name, why);
    struct coord_answer answer = { 0 };
    Cairn__JobStatus status = CAIRN__JOB_STATUS__INIT;
    if (job == NULL) return CAIRN_ERR_NOT_FOUND;
    fill_job(&answer, &status, job);
    hide_tensors(session, job, &status);
    if (show->times) coord_times_show(job, &answer, &status);
    coord_answer_send(&answer, session, request, CAIRN_MSG_JOB_STATUS, &status.base);
    return CAIRN_OK;
}

/* ==== cluster status ==== */

/* Answers `cairn cluster status`: the coordinator, its shards, workers and readers. */

/* Returns the kind of the address, and what its owner can do besides (fabric_address_ways), as text
 * for a message field. Nobody writes to this text. */
static char *path_of(const uint8_t *address, size_t bytes)
{
    return wire_text(fabric_address_ways(address, bytes));
}

static char *place_of(const uint8_t *address, size_t bytes, struct coord_answer *answer)
{
    char text[CAIRN_PLACE_BYTES];
    fabric_address_print_places(address, bytes, text);
    return coord_answer_text(answer, "%s", text);
}

/* True if the shard's data goes to other hosts in clear. Nobody listens in on loopback but root. */
static bool is_clear(const uint8_t *address, size_t bytes)
{
    struct fabric_place place;
    for (int i = 0; fabric_address_place(address, bytes, i, &place); i++)
        if ((fabric_ways_of_place(&place) & ~(unsigned)CAIRN_WAY_SEALED) != 0 &&
            strcmp(place.devices, "lo") != 0)
            return true;
    return false;
}

static void fill_shard(Cairn__MemberStatus *out, struct coord_shard_entry *entry,
                       const struct coord *cluster, struct coord_answer *answer, uint64_t now_ms)
{
    out->name = entry->name;
    out->role = CAIRN_ROLE_WIRE_SHARD;
    out->state = wire_text(entry->session == NULL     ? "away"
                           : coord_shard_obeys(entry) ? "up"
                                                      : "not ours");
    if (entry->session != NULL) {
        out->address = wire_text(peer_name(entry->session->peer));
        out->path = path_of(entry->fabric_address, entry->fabric_address_bytes);
        out->place = place_of(entry->fabric_address, entry->fabric_address_bytes, answer);
        out->without = entry->session->without;
        out->version = entry->session->version;
        if (is_clear(entry->fabric_address, entry->fabric_address_bytes))
            out->clear = wire_text("sends in clear to other hosts, since fabric.trust is set");
        if (coord_shard_apart(entry)) out->apart = wire_text(CAIRN_SHARD_APART_TEXT);
        out->home = entry->session->home;
        out->stats = entry->told.has_stats ? &entry->told.stats : NULL;
        out->storage = wire_text(entry->storage.text);
        out->unfit = wire_text(coord_shard_unfit(entry) ? entry->unfit.text : "");
        out->unheard = wire_text(coord_unheard_text(entry->session));
    }
    if (coord_shard_is_standby(cluster, entry)) {
        struct sentence spare = { "" };
        coord_mirrors_say_spare(cluster, entry, &spare);
        out->standby_of = entry->told.standby_of;
        out->spare = coord_answer_text(answer, "%s", spare.text);
    }
    out->since_ms = now_ms - entry->since_ms;
    out->state_bytes = entry->told.stats.state_bytes;
    out->memory_bytes = entry->memory_bytes;
}

static void fill_session(Cairn__MemberStatus *out, const struct coord_session *session,
                         struct coord_answer *answer, uint64_t now_ms)
{
    out->name = session->name;
    out->role = session->role;
    out->state = wire_text("up");
    out->version = session->version;
    out->address = wire_text(peer_name(session->peer));
    out->path = path_of(session->fabric_address, session->fabric_address_bytes);
    out->place = place_of(session->fabric_address, session->fabric_address_bytes, answer);
    out->since_ms = now_ms - session->since_ms;
    out->unheard = wire_text(coord_unheard_text(session));
}

#define UNSAFE_SHOWN 64

#define MEMBERS_MAX 4096 /* the most members in an answer, so that it fits a frame */

/* True if whoever asks is shown this connection: a worker or reader, and of the same owner unless the asker
 * watches the cluster. */
static bool is_shown(const struct coord_session *session, const struct coord_session *asker)
{
    if (session->role != CAIRN_ROLE_WIRE_WORKER && session->role != CAIRN_ROLE_WIRE_READER)
        return false;
    return access_role(coord_who(asker), CAIRN_MAY_ADMIN | CAIRN_MAY_MONITOR) ||
           strcmp(coord_who(session)->owner, coord_who(asker)->owner) == 0;
}

/* Fills in the shards first, then workers and readers. */
static void fill_members(const struct coord_session *asker, struct coord_answer *answer,
                         Cairn__ClusterStatus *status)
{
    const struct coord *cluster = asker->cluster;
    const uint64_t now_ms = uv_now(cluster->loop);
    for (struct coord_shard_entry *s = cluster->shards; s != NULL; s = s->next) {
        if (status->n_members == MEMBERS_MAX) return;
        Cairn__MemberStatus *out = coord_answer_add(answer, &status->base, "members");
        if (out != NULL) fill_shard(out, s, cluster, answer, now_ms);
    }
    for (const struct coord_session *s = cluster->sessions; s != NULL; s = s->next) {
        if (!is_shown(s, asker)) continue;
        if (status->n_members == MEMBERS_MAX) return;
        Cairn__MemberStatus *out = coord_answer_add(answer, &status->base, "members");
        if (out != NULL) fill_session(out, s, answer, now_ms);
    }
}

/* Lists the jobs that are less safe than they ask for. */
static void fill_unsafe(const struct coord_session *asker, struct coord_answer *answer,
                        Cairn__ClusterStatus *status)
{
    const struct coord *cluster = asker->cluster;
    char **list = coord_answer_bytes(answer, UNSAFE_SHOWN * sizeof *list);
    if (list == NULL) return;
    status->unsafe = list;
    for (const struct coord_job *j = cluster->jobs; j != NULL; j = j->next) {
        if (!coord_job_is_seen(asker, j)) continue;
        const struct safety safety = coord_durability_of(j);
        if (safety.lacking == 0) continue;
        list[status->n_unsafe++] = coord_answer_text(
            answer, "job %s is less safe than it asks for: %s", j->spec.name,
            sentence_brief(safety.why.text, BRIEF_CHARS).text);
        if (status->n_unsafe == UNSAFE_SHOWN) return;
    }
}

/* Answers `cairn cluster status`. */
static void on_cluster_status_get(struct coord_session *session, uint32_t request, const void *any)
{
    (void)any;
    const struct coord *cluster = session->cluster;
    const char *build = cluster->options->build;
    struct coord_answer answer = { 0 };
    Cairn__ClusterStatus status = CAIRN__CLUSTER_STATUS__INIT;
    status.cluster = cluster->options->name;
    status.coordinator_incarnation = cluster->identity.id.incarnation;
    status.version = wire_text(build != NULL ? build : CAIRN_VERSION);
    status.uptime_ms = uv_now(cluster->loop) - cluster->clock.started_ms;
    status.shards_expected = (uint32_t)cluster->options->shards;
    for (const struct coord_job *j = cluster->jobs; j != NULL; j = j->next)
        status.job_count += coord_job_is_seen(session, j);
    status.store = cluster->identity.id.store;
    status.storage = wire_text(cluster->storage.watch.said.text);
    fill_members(session, &answer, &status);
    fill_unsafe(session, &answer, &status);
    coord_strangers_add(cluster, &answer, &status.base, "strangers");
    coord_answer_send(&answer, session, request, CAIRN_MSG_CLUSTER_STATUS, &status.base);
}

/* ==== snapshots ==== */

/* Answers an admin who asks for the snapshots in the folder of snapshots. Another thread reads the
 * folder.
 *
 * A snapshot is complete in the folder before `latest` names it, and is listed as one that is being taken
 * until then: whoever finds the snapshot in the list may restore the latest one, and gets this one. */

struct listing {
    struct coord_work work;
    /* owned */
    char *job; /* NULL: the snapshots of all jobs */
    char *id;  /* the id of the only snapshot to show; NULL: list all */
    bool
        is_again; /* the folder is read for the second time, because a snapshot was committed meanwhile */
    struct key_ring ring;
    struct coord_found found;
    /* owned: [found.count]: the words of a job stand at the first snapshot of the job. NULL: no memory */
    struct snapshot_words *words;
};

/* True if whoever asks may see the snapshot. */
static bool is_for_asker(const struct listing *listing, const struct manifest *m)
{
    struct sentence ignored;
    return coord_snapshot_judge_access(listing->work.cluster, coord_who(listing->work.session),
                                       m->spec.name, m->owner != NULL ? m->owner : "",
                                       CAIRN_ACCESS_READ, &ignored) == CAIRN_OK;
}

static void free_listing(struct coord_work *work)
{
    struct listing *listing = (struct listing *)work;
    for (size_t i = 0; listing->words != NULL && i < listing->found.count; i++)
        snapshot_words_release(&listing->words[i]);
    free(listing->words);
    coord_found_release(&listing->found);
    free(listing->job);
    free(listing->id);
    free(listing);
}

/* True if the snapshot is the first of its job in the list, which has the snapshots of a job together. */
static bool begins_job(const struct coord_found *found, size_t i)
{
    return i == 0 ||
           strcmp(found->list[i - 1].manifest.spec.name, found->list[i].manifest.spec.name) != 0;
}

/* Reads the words of each job. If the words of a job cannot be read, its snapshots are listed
 * without words, because that is better than no list. */
static void read_words(struct listing *listing)
{
    const struct coord_found *found = &listing->found;
    listing->words = calloc(found->count + 1, sizeof *listing->words);
    for (size_t i = 0; listing->words != NULL && i < found->count; i++) {
        const char *job = found->list[i].manifest.spec.name;
        struct sentence why;
        if (begins_job(found, i) &&
            coord_snapshot_words(listing->work.cluster, job, &listing->words[i], &why) != CAIRN_OK)
            log_warn("the words of the snapshots of job %s: %s", job, why.text);
    }
}

static void read_store(struct coord_work *work)
{
    struct listing *listing = (struct listing *)work;
    work->status = coord_find_snapshots(work->cluster, listing->job, listing->id, &listing->found,
                                        &work->why);
    for (size_t i = 0; i < listing->found.count; i++) {
        struct found_snapshot *f = &listing->found.list[i];
        struct sentence what;
        manifest_trust(&f->manifest, &listing->ring, &what);
        snprintf(f->signature, sizeof f->signature, "%.*s", (int)sizeof f->signature - 1,
                 sentence_brief(what.text, sizeof f->signature - 1).text);
    }
    if (work->status == CAIRN_OK) read_words(listing);
}

/* True if the snapshot that was found is still being taken, so that `latest` may not name it yet. */
static bool is_being_taken(const struct listing *listing, const struct found_snapshot *f)
{
    struct snapshot_view view;
    const struct coord_job *job = coord_job_find(listing->work.cluster, f->manifest.spec.name);
    return job != NULL && coord_snapshot_running(job, &view) &&
           strcmp(view.status.id, f->place.id) == 0;
}

static bool was_begun(const struct snapshot_words *words, const char *id)
{
    for (size_t i = 0; i < words->begun_count; i++)
        if (strcmp(words->begun[i].id, id) == 0) return true;
    return false;
}

/* True if the taking of a snapshot that was found may have ended after the words were read, which then lack
 * what they say of the snapshot now. */
static bool has_ended_since(const struct listing *listing)
{
    const struct snapshot_words *words = NULL;
    for (size_t i = 0; listing->words != NULL && i < listing->found.count; i++) {
        const struct found_snapshot *f = &listing->found.list[i];
        if (begins_job(&listing->found, i)) words = &listing->words[i];
        if (was_begun(words, f->place.id) && !is_being_taken(listing, f)) return true;
    }
    return false;
}

/* Lists the snapshots that are being taken. The list borrows from their jobs. */
static void list_running(const struct listing *listing, struct coord_answer *answer,
                         Cairn__SnapshotList *message)
{
    for (const struct coord_job *j = listing->work.cluster->jobs; j != NULL; j = j->next) {
        struct snapshot_view *view = coord_answer_bytes(answer, sizeof *view);
        if (view == NULL) return;
        if (listing->job != NULL && strcmp(listing->job, j->spec.name) != 0) continue;
        if (!coord_job_is_seen(listing->work.session, j)) continue;
        if (!coord_snapshot_running(j, view)) continue;
        Cairn__SnapshotStatus *out = coord_answer_add(answer, &message->base, "running");
        if (out != NULL) *out = view->status;
    }
}

/* Fills in what the job's words say about one snapshot: whether it is the latest, how it was checked, and its
 * tags. */
static void fill_words(const struct snapshot_words *words, struct coord_answer *answer,
                       Cairn__SnapshotStatus *out)
{
    const struct snapshot_check *check = snapshot_words_check(words, out->id);
    out->latest = strcmp(words->latest, out->id) == 0;
    if (check != NULL) out->checked_unix_ms = check->unix_s * 1000;
    out->check_failed = check != NULL && !check->is_good;
    out->tags = coord_answer_bytes(answer, (words->tag_count + 1) * sizeof *out->tags);
    for (size_t i = 0; out->tags != NULL && i < words->tag_count; i++)
        if (strcmp(words->tags[i].id, out->id) == 0) out->tags[out->n_tags++] = words->tags[i].name;
}

/* Fills in a snapshot that was found. The message borrows from the listing. `words`: those of its job, or
 * NULL. */
static void fill_found(const struct found_snapshot *f, const struct snapshot_words *words,
                       struct coord_answer *answer, Cairn__SnapshotStatus *out)
{
    struct snapshot_view *view = coord_answer_bytes(answer, sizeof *view);
    if (view == NULL) return;
    coord_manifest_to_view(&f->manifest, f->place.id, f->folder, view);
    *out = view->status;
    out->signature = wire_text(f->signature);
    if (words != NULL) fill_words(words, answer, out);
}

static void send_list(const struct listing *listing, struct coord_answer *answer)
{
    Cairn__SnapshotList message = CAIRN__SNAPSHOT_LIST__INIT;
    const struct snapshot_words *words = NULL;
    list_running(listing, answer, &message);
    for (size_t i = 0; i < listing->found.count; i++) {
        if (listing->words != NULL && begins_job(&listing->found, i)) words = &listing->words[i];
        if (!is_for_asker(listing, &listing->found.list[i].manifest)) continue;
        if (is_being_taken(listing, &listing->found.list[i])) continue;
        Cairn__SnapshotStatus *out = coord_answer_add(answer, &message.base, "snapshots");
        if (out == NULL) break;
        fill_found(&listing->found.list[i], words, answer, out);
    }
    if (access_role(coord_who(listing->work.session), CAIRN_MAY_ADMIN | CAIRN_MAY_MONITOR))
        message.unread = wire_text(listing->found.unread.text);
    coord_answer_send(answer, listing->work.session, listing->work.request, CAIRN_MSG_SNAPSHOT_LIST,
                      &message.base);
}

static void send_one(const struct listing *listing, struct coord_answer *answer)
{
    Cairn__SnapshotStatus message = CAIRN__SNAPSHOT_STATUS__INIT;
    fill_found(&listing->found.list[0], listing->words, answer, &message);
    coord_answer_send(answer, listing->work.session, listing->work.request,
                      CAIRN_MSG_SNAPSHOT_STATUS, &message.base);
}

static void begin_list(struct coord_session *session, uint32_t request, const char *job,
                       const char *id, bool is_again);

static void on_read(struct coord_work *work)
{
    const struct listing *listing = (struct listing *)work;
    struct coord_answer answer = { 0 };
    if (work->session == NULL) return; // nobody waits any more
    // A `begun` that a crash has left is there the second time, too.
    if (work->status == CAIRN_OK && !listing->is_again && has_ended_since(listing)) {
        begin_list(work->session, work->request, listing->job, listing->id, true);
        return;
    }
    const bool is_empty = work->status == CAIRN_OK &&
                          (listing->found.count == 0 ||
                           (listing->id != NULL &&
                            !is_for_asker(listing, &listing->found.list[0].manifest)));
    if (is_empty && listing->id != NULL)
        work->status = fail_with(
            &work->why, CAIRN_ERR_NOT_FOUND,
            "there is no committed snapshot %s of job %s; see `cairn snapshot list`", listing->id,
            listing->job);
    // If there is neither a job of this name here nor a snapshot of one, the name is most likely
    // mistyped.
    else if (is_empty && listing->job != NULL &&
             coord_job_find(work->cluster, listing->job) == NULL)
        work->status = fail_with(&work->why, CAIRN_ERR_NOT_FOUND,
                                 "there is no job %s and no snapshot of one; `cairn job list`",
                                 listing->job);
    if (work->status != CAIRN_OK)
        coord_work_answer(work, 0, NULL);
    else
        (listing->id != NULL ? send_one : send_list)(listing, &answer);
}

static void begin_list(struct coord_session *session, uint32_t request, const char *job,
                       const char *id, bool is_again)
{
    struct listing *listing = calloc(1, sizeof *listing);
    bool whole = listing != NULL;
    if (whole && job != NULL) whole = (listing->job = strdup(job)) != NULL;
    if (whole && id != NULL) whole = (listing->id = strdup(id)) != NULL;
    if (!whole && listing != NULL) {
        free_listing(&listing->work);
        listing = NULL;
    }
    if (listing != NULL) {
        listing->is_again = is_again;
        coord_keys_ring(session->cluster, &listing->ring);
        listing->work.run = read_store;
        listing->work.done = on_read;
        listing->work.free_it = free_listing;
    }
    coord_work_ask(listing != NULL ? &listing->work : NULL, session, request);
}

static cairn_status on_snapshot_list_get(struct coord_session *session, uint32_t request,
                                         const void *any, struct sentence *why)
{
    const Cairn__SnapshotListGet *message = any;
    const char *job = message->job;
    if (*job != '\0' && !job_name_ok(job))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "\"%.100s\" is not a name of a job; see `cairn job list`", job);
    begin_list(session, request, *job == '\0' ? NULL : job, NULL, false);
    return CAIRN_OK;
}

static cairn_status on_snapshot_show(struct coord_session *session, uint32_t request,
                                     const void *any, struct sentence *why)
{
    const Cairn__SnapshotShow *message = any;
    uint64_t generation, step;
    const bool job_ok = job_name_ok(message->job);
    if (!job_ok || !snapshot_id_parse(message->id, &generation, &step))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "\"%.100s\" is not %s; `cairn snapshot list` prints jobs and ids",
                         job_ok ? message->id : message->job,
                         job_ok ? "an id of a snapshot" : "a name of a job");
    begin_list(session, request, message->job, message->id, false);
    return CAIRN_OK;
}

/* ==== messages ==== */

const struct coord_row coord_status_rows[] = {
    { CAIRN_MSG_CLUSTER_STATUS_GET, CAIRN_FROM_ADMIN, .by_session = on_cluster_status_get,
      .needs = CAIRN_MAY_WORK | CAIRN_MAY_READ | CAIRN_MAY_MONITOR },
    { CAIRN_MSG_JOB_LIST_GET, CAIRN_FROM_ADMIN, .by_session = on_job_list_get,
      .needs = CAIRN_MAY_WORK | CAIRN_MAY_READ | CAIRN_MAY_MONITOR },
    { CAIRN_MSG_JOB_SHOW, CAIRN_FROM_ADMIN, .asks = on_job_show, .job = "name",
      .wants = CAIRN_ACCESS_LOOK },
    { CAIRN_MSG_SNAPSHOT_LIST_GET, CAIRN_FROM_ADMIN, .asks = on_snapshot_list_get, .job = "job",
      .wants = CAIRN_ACCESS_READ },
    { CAIRN_MSG_SNAPSHOT_SHOW, CAIRN_FROM_ADMIN, .asks = on_snapshot_show, .job = "job",
      .wants = CAIRN_ACCESS_READ },
    { 0 },
};

/* A job: found, told apart, and its shards spoken to. */
#include "server/coordinator/job.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan.h"
#include "proto/spec/optimizer.h"
#include "proto/spec/settings.h"
#include "server/base/log.h"
#include "server/coordinator/base.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/members.h"
#include "server/coordinator/snapshot.h"
#include "server/coordinator/store.h"

/* ---- of the cluster's jobs ---- */

/* ---- what a job is at ---- */

const char *coord_job_state_name(const struct coord_job *job)
{
    switch (job->state) {
    case CAIRN_CLUSTER_JOB_CREATING:
        return job->restoring ? "restoring" : job->dropping ? "dropping" : "creating";
    case CAIRN_CLUSTER_JOB_INITIALIZING: return "initializing";
    case CAIRN_CLUSTER_JOB_RUNNING:
        if (job->version_unknown) return "waiting";
        if (job->park.shut) return "parked";
        return job->core != NULL && round_halted(job->core) ? "halted" : "running";
    case CAIRN_CLUSTER_JOB_LOST: return job->loss.behind ? "behind" : "lost";
    }
    return "?";
}

struct cairn_version coord_job_version(const struct coord_job *job)
{
    const struct cairn_version base = { job->generation, job->base_step };
    if (job->core == NULL) return base;
    const struct cairn_version now = round_version(job->core);
    return now.generation < base.generation ? base : now;
}

bool coord_job_dead(const struct coord_job *job)
{
    return job->state == CAIRN_CLUSTER_JOB_LOST && !job->loss.may_return;
}

struct coord_member *coord_job_member(struct coord_job *job, uint64_t id)
{
    struct coord_member *m = job->members.by_id[id % CAIRN_MEMBER_BUCKETS];
    while (m != NULL && m->id != id) m = m->next_of_bucket;
    return m;
}

/* ---- its shards ---- */

bool coord_job_shards_init(struct coord_job *job, uint32_t shard_room)
{
    job->shard_room = shard_room;
    job->shards = calloc(job->shard_room, sizeof *job->shards);
    return job->shards != NULL;
}

void coord_job_set_shard(struct coord_job *job, uint32_t shard, struct coord_shard_entry *entry)
{
    struct coord_job_shard *s = &job->shards[shard];
    if (entry != NULL) job->entry_count++;
    if (s->entry != NULL) job->entry_count--;
    if (shard >= job->shard_count) job->shard_count = shard + 1;
    *s = (struct coord_job_shard) { .entry = entry };
}

uint32_t coord_job_shard_from(const struct coord_job *job, uint32_t index)
{
    while (index < job->shard_count && job->shards[index].entry == NULL) index++;
    return index;
}

bool coord_job_in_force(const struct coord_job *job, uint32_t shard)
{
    return shard < job->layout->shard_count && job->shards[shard].entry != NULL;
}

uint8_t *coord_holes(const struct coord_job *job, uint32_t shard_count)
{
    uint8_t *gone = calloc(shard_count / 8 + 1, 1);
    if (gone == NULL) return NULL;
    for (uint32_t i = 0; i < shard_count && i < job->shard_count; i++)
        if (job->shards[i].entry == NULL) gone[i / 8] = (uint8_t)(gone[i / 8] | 1u << i % 8);
    return gone;
}

bool coord_job_has_shard(const struct coord_job *job, const struct coord_shard_entry *entry)
{
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].entry == entry) return true;
    for (uint32_t i = 0; i < job->reshard.joiner_count; i++)
        if (job->reshard.joiners[i].entry == entry) return true;
    return false;
}

bool coord_job_shards_up(const struct coord_job *job)
{
    CAIRN_EACH_SHARD (job, i)
        if (!job->shards[i].up && coord_job_in_force(job, i)) return false;
    return true;
}

/* ---- its layouts ---- */

bool coord_job_moves(const struct coord_job *job)
{
    const struct coord_reshard *r = &job->reshard;
    return r->asking != NULL || job->shard_count > job->layout->shard_count ||
           (r->move != NULL && move_stage_of(r->move) != CAIRN_MOVE_REST);
}

struct packed *coord_job_before_next(const struct coord_job *job, struct cairn_version now,
                                     uint32_t *shards_out)
{
    const struct coord_layouts *l = &job->layouts;
    *shards_out = l->before_shards;
    if (l->before != NULL && version_compare(now, l->at) <= 0) return l->before;
    *shards_out = job->layout->shard_count;
    return layout_same(job->layout, l->next) ? NULL : job->planned.layout;
}

/* ---- where its shards are ---- */

/* Not 0. */
static uint64_t address_hash(const struct coord_shard_entry *entry)
{
    uint64_t hash[2];
    crypto_generichash((unsigned char *)hash, sizeof hash, entry->fabric_address,
                       entry->fabric_address_bytes, NULL, 0);
    return hash[0] | 1;
}

bool coord_job_shard_moved(struct coord_job_shard *shard)
{
    const uint64_t hash = address_hash(shard->entry);
    const bool moved = shard->address_sent != 0 && shard->address_sent != hash;
    shard->address_sent = hash;
    return moved;
}

bool coord_shard_infos_init(struct coord_shard_infos *infos, const struct coord_job *job,
                            uint32_t shard_count)
{
    infos->infos = calloc(shard_count + 1, sizeof *infos->infos);
    infos->list = calloc(shard_count + 1, sizeof *infos->list);
    infos->count = 0;
    if (infos->infos == NULL || infos->list == NULL) {
        coord_shard_infos_release(infos);
        return false;
    }
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_shard_entry *entry = job->shards[i].entry;
        if (i >= shard_count) break;
        Cairn__ShardInfo *info = &infos->infos[i];
        cairn__shard_info__init(info);
        info->index = i;
        info->name = entry->name;
        if (entry->session != NULL) {
            info->fabric_address.data = entry->fabric_address;
            info->fabric_address.len = entry->fabric_address_bytes;
        }
        infos->list[infos->count++] = info;
    }
    return true;
}

void coord_shard_infos_release(struct coord_shard_infos *infos)
{
    free(infos->infos);
    free(infos->list);
}

void coord_job_send_all(struct coord_job *job, uint16_t type, const ProtobufCMessage *message)
{
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].up && coord_job_in_force(job, i))
            coord_session_send(job->shards[i].entry->session, type, 0, message);
    }
}

void coord_job_send_drop(struct coord *cluster, struct coord_shard_entry *entry, uint64_t job_id)
{
    Cairn__JobDrop drop = CAIRN__JOB_DROP__INIT;
    drop.job = job_id;
    // Its Done is nobody's: what could not be dropped is known as our own leftover at the next Hello.
    coord_session_send(entry->session, CAIRN_MSG_JOB_DROP, coord_request_new(cluster), &drop.base);
}

/* ==== init ==== */

/* The end of the initial state: the source says that it is put, the shards seal it, everyone who waits is
 * answered. Ranks that hashed the same state are compared with the source; what callers gave themselves
 * is compared among those who gave it. Digests are kept while this coordinator lives. */

enum { HEX_BYTES = 2 * 8 + 1 }; /* the first eight bytes tell two apart */

static bool digest_ok(const ProtobufCBinaryData *bytes)
{
    return bytes->len == 0 || bytes->len == CAIRN_INIT_DIGEST_BYTES;
}

static void take_digest(struct init_digest *digest, const ProtobufCBinaryData *bytes, uint32_t rank)
{
    if (bytes->len == 0) return;
    digest->known = true;
    digest->rank = rank;
    memcpy(digest->bytes, bytes->data, CAIRN_INIT_DIGEST_BYTES);
}

static bool same_digest(const struct init_digest *a, const struct init_digest *b)
{
    return !a->known || !b->known || memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static void print_hex(const struct init_digest *digest, char out[HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < HEX_BYTES / 2; i++) {
        out[2 * i] = digits[digest->bytes[i] >> 4];
        out[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    out[HEX_BYTES - 1] = 0;
}

static void refuse_init(struct coord_member *member, uint32_t request,
                        const struct init_digest *here, const struct init_digest *there)
{
    char mine[HEX_BYTES], theirs[HEX_BYTES];
    struct sentence why;
    print_hex(here, mine);
    print_hex(there, theirs);
    sentence_set(&why,
                 "rank %" PRIu32 " has another initial state of job %s than rank %" PRIu32
                 ": digest %s here, %s there; begin from the same seed or file on all ranks",
                 member->rank, member->job->spec.name, there->rank, mine, theirs);
    coord_session_error(member->session, request, CAIRN_ERR_MISMATCH, why.text);
}

static void answer_init(struct coord_member *member)
{
    const uint32_t request = member->init.request;
    member->init.request = 0;
    if (same_digest(&member->init.digest, &member->job->init.source))
        coord_session_done(member->session, request);
    else
        refuse_init(member, request, &member->init.digest, &member->job->init.source);
}

/* Nobody's is taken: all may put again. */
static void refuse_all(struct coord_job *job, const struct sentence *why)
{
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        const uint32_t request = m->init.request;
        m->init.request = 0;
        if (request != 0) coord_session_error(m->session, request, CAIRN_ERR_MISMATCH, why->text);
    }
}

void coord_member_init_done(struct coord_member *member, uint32_t request,
                            const Cairn__InitDone *message)
{
    struct coord_job *job = member->job;
    struct init_digest given = { .known = false };
    if (!digest_ok(&message->digest) || !digest_ok(&message->given)) {
        coord_session_error(member->session, request, CAIRN_ERR_MALFORMED,
                            "a digest of the initial state has 32 bytes");
        return;
    }
    take_digest(&given, &message->given, member->rank);
    if (!same_digest(&given, &job->init.given)) {
        refuse_init(member, request, &given, &job->init.given);
        return;
    }
    if (!job->init.given.known) job->init.given = given;
    const bool tiled = job->tiles.world > 0; // then ranks hold different parts, and put them
    if (!tiled) take_digest(&member->init.digest, &message->digest, member->rank);
    if (message->source && !job->init.source.known) job->init.source = member->init.digest;
    const cairn_status status = coord_replicas_take(member, &message->held);
    if (status != CAIRN_OK) {
        coord_session_error(member->session, request, status,
                            "the digests of what is held cannot be taken");
        return;
    }
    member->init.request = request;
    if (job->initialized) {
        answer_init(member);
        return;
    }
    if (message->source) job->init.sourced = true;
    if (member->rank == 0) job->init.moments_of = message->moments ? member->id : 0;
    if (tiled ? !job->init.sourced || !coord_tiles_all_put(job) : !message->source) return;
    struct sentence why;
    if (tiled && !coord_replicas_agree(job, &why)) {
        refuse_all(job, &why);
        return;
    }
    job->init.source = member->init.digest;
    job->init.seal_wanted = true;
    coord_job_try_seal(job);
}

/* The initial state is there: who waits for that hears it. */
static void answer_all(struct coord_job *job)
{
    if (!job->initialized) return;
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->init.request != 0) answer_init(m);
}

/* ---- the seal ---- */

static void seal_failed(struct coord_job *job, cairn_status status, const char *text)
{
    log_warn("job %s is not initialized: %s", job->spec.name, text);
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m->init.request == 0) continue;
        coord_session_error(m->session, m->init.request, status, text);
        m->init.request = 0;
    }
}

/* Durable: rounds may begin. */
static void on_initialized(const struct coord_saved *saved)
{
    struct coord_job *job = coord_job_by_id(saved->cluster, saved->job);
    if (job == NULL || job->dropping || !job->init.seal_running) return;
    job->init.seal_running = false;
    if (saved->status != CAIRN_OK) {
        seal_failed(job, saved->status, saved->why);
        return;
    }
    job->initialized = true;
    job->state = CAIRN_CLUSTER_JOB_RUNNING;
    log_info("job %s is initialized", job->spec.name);
    const struct round_event ready = { .kind = CAIRN_ROUND_READY,
                                       .version = { job->generation, job->base_step } };
    coord_job_event(job, &ready);
    answer_all(job);
    coord_members_answer_versions(job);
}

static void on_sealed(struct coord_job *job, const void *about, cairn_status status,
                      const char *text)
{
    struct sentence why;
    (void)about;
    if (!job->init.seal_running) return;
    if (status == CAIRN_ERR_CLOSED) {
        job->init.seal_running = false;
        coord_job_try_seal(job); // the shard is back already, or asks when it is
        return;
    }
    job->init.seal_wanted = false;
    sentence_set(&why, "%s", text);
    if (status == CAIRN_OK)
        status = coord_save_job(job, CAIRN_STORE_INITIALIZED, NULL, 0, on_initialized, &why);
    if (status == CAIRN_OK) return;
    job->init.seal_running = false;
    seal_failed(job, status, why.text);
}

void coord_job_try_seal(struct coord_job *job)
{
    if (!job->init.seal_wanted || job->init.seal_running ||
        job->state != CAIRN_CLUSTER_JOB_INITIALIZING)
        return;
    CAIRN_EACH_SHARD (job, i) {
        if (!job->shards[i].up || !coord_shard_obeys(job->shards[i].entry)) return;
    }
    struct coord_gather *gather = coord_gather_open_job(job, on_sealed, NULL, 0);
    if (gather == NULL) return;
    job->init.seal_running = true;
    Cairn__JobSeal seal = CAIRN__JOB_SEAL__INIT;
    seal.job = job->id;
    seal.moments_of = job->init.moments_of;
    CAIRN_EACH_SHARD (job, i) {
        (void)coord_gather_send(gather, job->shards[i].entry, CAIRN_MSG_JOB_SEAL, &seal.base);
    }
    coord_gather_start(gather);
}

/* ==== loss ==== */

/* A job is lost, or behind its shards: what is said of it, and whether it restores itself
 * (restore.h). */

/* ---- what comes next ---- */

bool coord_recovery_wanted(const struct coord_job *job)
{
    return job->spec.policy.on_shard_loss == CAIRN_SHARD_LOSS_RESTORE_LATEST;
}

bool coord_recovery_pending(const struct coord_job *job)
{
    const struct coord_recovery *r = &job->loss.recovery;
    if (job->state != CAIRN_CLUSTER_JOB_LOST || job->loss.behind || !coord_recovery_wanted(job))
        return false;
    if (r->running) return true;
    return !r->gave_up && r->restores < CAIRN_RESTORES_MAX && (job->loss.may_return || r->begun);
}

/* It is being lost. */
static void note_loss(struct coord_job *job, const char *why)
{
    if (coord_job_version(job).step > job->base_step)
        job->loss.recovery = (struct coord_recovery) { .running = job->loss.recovery.running };
    if (job->loss.recovery.lost_ms == 0)
        job->loss.recovery.lost_ms = coord_now_ms(job->cluster) + 1; // not 0
    snprintf(job->loss.recovery.why, sizeof job->loss.recovery.why, "%.*s",
             (int)sizeof job->loss.recovery.why - 1,
             sentence_brief(why, sizeof job->loss.recovery.why - 1).text);
}

/* It has waited for all for so long that fewer are taken. */
static bool takes_fewer(const struct coord_job *job)
{
    const struct coord_options *options = job->cluster->options;
    const uint64_t lost_ms = job->loss.recovery.lost_ms;
    return options->shards_min > 0 && job->state == CAIRN_CLUSTER_JOB_LOST && lost_ms != 0 &&
           coord_recovery_wanted(job) &&
           coord_now_ms(job->cluster) + 1 - lost_ms >= (uint64_t)options->shards_wait_ms;
}

uint32_t coord_recovery_shards(const struct coord_job *job)
{
    const struct coord_options *options = job->cluster->options;
    const uint32_t wanted = (uint32_t)options->shards, least = (uint32_t)options->shards_min;
    uint32_t staying = 0;
    CAIRN_EACH_SHARD (job, i) staying += !job->shards[i].entry->leaving;
    if (staying == 0 || staying > wanted) staying = wanted;
    if (takes_fewer(job)) {
        const uint32_t here = coord_shards_staying(job->cluster, &job->spec, false);
        if (here < staying) staying = here > least ? here : least < staying ? least : staying;
    }
    return plan_job_shards(&job->spec, staying);
}

/* Tells the operator how the job could go on with fewer shards. */
static void advise_fewer(const struct coord_job *job, struct sentence *out)
{
    const struct coord_options *options = job->cluster->options;
    if (options->shards_min == 0)
        sentence_add(out, ", or cluster.shards_min allows fewer");
    else if (!takes_fewer(job))
        sentence_add(out,
                     ", or over those that are here, %" PRId64
                     " at least, when it has waited for cluster.shards_wait",
                     options->shards_min);
}

static void advise_to_wait(const struct coord_job *job, struct sentence *out)
{
    const uint32_t count = coord_recovery_shards(job);
    sentence_set(out, "its newest snapshot is restored by itself (on_shard_loss)");
    if (coord_shards_staying(job->cluster, &job->spec, false) < count) {
        sentence_add(out, ", once %" PRIu32 " shard%s here", count, count == 1 ? " is" : "s are");
        advise_fewer(job, out);
    } else if (job->loss.recovery.unseen)
        sentence_add(out, ", once it is mounted at every shard (`cairn cluster status` shows "
                          "where snapshots cannot be saved)");
}

void coord_recovery_advise(const struct coord_job *job, struct sentence *out)
{
    const char *name = job->spec.name;
    if (coord_recovery_pending(job)) {
        advise_to_wait(job, out);
        return;
    }
    out->text[0] = '\0';
    if (coord_recovery_wanted(job) && job->loss.recovery.gave_up && job->loss.recovery.passed) {
        sentence_add(out,
                     "on_shard_loss takes none of its snapshots unasked: mend what is said of "
                     "them, or restore one by its id as is said there; `cairn job drop %s` "
                     "gives it up, so that it may begin anew",
                     name);
        return;
    }
    if (coord_recovery_wanted(job) && job->loss.recovery.gave_up) {
        sentence_add(out,
                     "on_shard_loss finds no whole snapshot of it: `cairn snapshot restore "
                     "%s latest` tries again, where one was made whole; `cairn job drop %s` "
                     "gives it up, so that it may begin anew",
                     name, name);
        return;
    }
    if (coord_recovery_wanted(job) && job->loss.recovery.restores >= CAIRN_RESTORES_MAX)
        sentence_add(out,
                     "on_shard_loss has restored it %d times without a step applied in "
                     "between, and waits now; ",
                     CAIRN_RESTORES_MAX);
    sentence_add(out,
                 "restore a snapshot with `cairn snapshot restore %s ID` (`cairn snapshot "
                 "list %s` shows which there are)",
                 name, name);
}

/* ---- the loss ---- */

/* job->loss.why is set. */
static void stop_lost_job(struct coord_job *job)
{
    job->state = CAIRN_CLUSTER_JOB_LOST;
    log_error("job %s is %s", job->spec.name, job->loss.why.text);
    coord_event_note(job->cluster, CAIRN_EVENT_JOB_LOST, job->spec.name, NULL, "%s",
                     job->loss.why.text);
    coord_snapshot_abort(job, job->loss.why.text);
    coord_amenders_lost(job);
    coord_extend_lost(job);
    if (!job->loss.may_return) coord_reshard_end(job, CAIRN_RESHARD_FAILED, "the job is lost");
    coord_park_release(job);
}

void coord_job_behind(struct coord_job *job, const char *kind, const char *name, const char *what)
{
    sentence_set(
        &job->loss.why,
        "behind: %s %s has seen a higher %s of it than the coordinator's store, which is an "
        "older copy; nothing is done with it before `cairn cluster adopt` has taken what the "
        "shards hold (or give the coordinator its newest store back)",
        kind, name, what);
    job->loss.behind = true;
    job->loss.may_return = false;
    stop_lost_job(job);
}

void coord_job_lose(struct coord_job *job, bool may_return, const char *format, ...)
{
    va_list args;
    struct sentence advice;
    char what[CAIRN_SENTENCE_BYTES / 2];
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    job->loss.behind = false;
    job->loss.may_return = may_return;
    job->state = CAIRN_CLUSTER_JOB_LOST;
    note_loss(job, what);
    coord_recovery_advise(job, &advice);
    sentence_set(&job->loss.why, "lost: %s; %s", what, advice.text);
    const bool pending = coord_recovery_pending(job);
    stop_lost_job(job);
    if (pending) coord_job_keep_pauses(job);
    struct sentence why;
    sentence_set(&why, "job %s is %s", job->spec.name, job->loss.why.text);
    while (job->members.list != NULL)
        coord_member_put_out(job->members.list,
                             pending ? CAIRN_ERR_ROLLED_BACK : CAIRN_ERR_JOB_LOST, why.text);
}

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
        // The message's, which is freed; the rest are numbers.
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
    for (size_t i = 0; i < count; i++) bytes[i] = *message->bytes[i]; // numbers only
    entry->bytes_count = count;
}

void coord_bytes_read(struct coord_member *member, uint64_t bytes)
{
    if (bytes > member->read_bytes) member->read_bytes = bytes;
}

/* Shards tell of the workers that they have; one that is away has told of those that it had. */
static bool is_attached(const struct coord_job *job, uint32_t rank)
{
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->role == CAIRN_ROLE_WIRE_WORKER && m->rank == rank) return true;
    return false;
}

/* The entry of the rank, made in its place; NULL: so many are not shown, or it has left. */
static Cairn__BytesTold *worker_bytes(struct bytes_view *out, const struct coord_job *job,
                                      uint32_t rank)
{
    size_t at = 1;
    while (at < out->count && out->told[at].rank < rank) at++;
    if (at < out->count && out->told[at].rank == rank) return &out->told[at];
    if (at > CAIRN_BYTES_WORKERS_SHOWN || !is_attached(job, rank)) return NULL;
    if (out->count <= CAIRN_BYTES_WORKERS_SHOWN) out->count++; // else the last one goes
    memmove(&out->told[at + 1], &out->told[at], (out->count - 1 - at) * sizeof *out->told);
    cairn__bytes_told__init(&out->told[at]);
    out->told[at].of_worker = true;
    out->told[at].rank = rank;
    return &out->told[at];
}

/* Shards tell at different times, so each is divided by its own steps. */
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

/* Behind what shards told, which says how many steps there were. */
static void add_members(struct bytes_view *out, const struct coord_job *job)
{
    uint64_t read = job->members.read_bytes;
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        read += m->read_bytes;
        if (m->read_bytes == 0 || m->role != CAIRN_ROLE_WIRE_WORKER) continue;
        Cairn__BytesTold *to = worker_bytes(out, job, m->rank);
        if (to != NULL) add_read(to, m->read_bytes);
    }
    add_read(&out->told[0], read);
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
    add_members(out, job);
    for (size_t i = 0; i < out->count; i++) {
        out->told[i].job = job->id;
        out->list[i] = &out->told[i];
    }
    return &out->told[0];
}

/* ---- memory ---- */

static void fill_memory(const struct coord_job *job, uint32_t shard, Cairn__MemoryTold *out)
{
    const struct coord_shard_entry *entry = job->shards[shard].entry;
    cairn__memory_told__init(out);
    out->untold = true;
    for (size_t i = 0; i < entry->memory_count; i++)
        if (entry->memory[i].job == job->id) *out = entry->memory[i];
    out->job = job->id;
    out->shard_index = shard;
    out->shard = entry->name;
}

void coord_memory_of(const struct coord_job *job, struct memory_view *out)
{
    *out = (struct memory_view) { .told = calloc(job->entry_count + 1, sizeof *out->told),
                                  .list = calloc(job->entry_count + 1, sizeof *out->list) };
    if (out->told == NULL || out->list == NULL) return;
    CAIRN_EACH_SHARD (job, s) {
        Cairn__MemoryTold *told = out->list[out->count] = &out->told[out->count];
        out->count++;
        fill_memory(job, s, told);
        out->sum += told->state + told->published + told->landing + told->staging + told->tables;
    }
}

void coord_memory_release(struct memory_view *view)
{
    free(view->told);
    free(view->list);
}

/* ==== settings ==== */

/* Refuses a setting that no amendment changes, and names the way that changes it, if there is
 * one. */
static cairn_status refuse_setting(const struct job_spec_data *spec, const Cairn__Setting *setting,
                                   enum spec_change change, struct sentence *why)
{
    if (change == CAIRN_SPEC_NEVER)
        return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                         "%s says how job %s began, and does not change", setting->key, spec->name);
    return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                     "%s of job %s changes with a job that is made of its snapshot, moments and "
                     "step included: `cairn snapshot create %s --wait`, then `cairn job create %s "
                     "--from %s/latest --set %s=%s` (under another name it begins beside this one)",
                     setting->key, spec->name, spec->name, spec->name, spec->name, setting->key,
                     setting->value);
}

static cairn_status apply_one(struct job_spec_data *next, const Cairn__Setting *setting,
                              enum settings_purpose purpose, bool *reopens_out,
                              struct sentence *why)
{
    enum spec_change change;
    CAIRN_TRY(spec_set(next, setting->key, setting->value, &change, why));
    const bool is_refused = change == CAIRN_SPEC_NEVER ||
                            (change == CAIRN_SPEC_CREATED && purpose == CAIRN_SETTINGS_AMEND);
    if (is_refused) return refuse_setting(next, setting, change, why);
    *reopens_out |= change != CAIRN_SPEC_NEXT_ROUND;
    return CAIRN_OK;
}

cairn_status coord_settings_apply(struct job_spec_data *next, Cairn__Setting *const *settings,
                                  size_t count, enum settings_purpose purpose, bool *reopens_out,
                                  struct sentence *why)
{
    if (count == 0) return CAIRN_OK;
    if (count > CAIRN_SETTINGS_MAX)
        return fail_with(why, CAIRN_ERR_INVALID, "%zu settings; allowed: at most %d", count,
                         CAIRN_SETTINGS_MAX);
    for (size_t i = 0; i < count; i++)
        CAIRN_TRY(apply_one(next, settings[i], purpose, reopens_out, why));
    spec_canonicalize(next);
    return CAIRN_OK;
}

/* Refuses a setting that the optimizer would ignore, as it is refused in a worker's spec. */
static cairn_status judge_unused(const struct group_spec *was, const struct group_spec *now,
                                 struct sentence *why)
{
    const char *field = "";
    if (group_spec_unused(now, &field) == CAIRN_OK) return CAIRN_OK;
    const struct spec_field *row = spec_field_find(&group_fields, field, strlen(field));
    if (row == NULL || spec_field_number(row, was) == spec_field_number(row, now)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "group %s: %s has no effect with optimizer %s; allowed: what it is", now->name,
                     field, now->optimizer);
}

static cairn_status judge_group(const struct group_spec *was, const struct group_spec *now,
                                struct sentence *why)
{
    struct group_hyper a, b;
    const char *field = "";
    CAIRN_TRY(judge_unused(was, now, why));
    cairn_status status = group_hyper_of_spec(was, &a, &field);
    if (status == CAIRN_OK) status = group_hyper_of_spec(now, &b, &field);
    if (status != CAIRN_OK)
        return fail_with(why, status, "group %s: %s is not valid", now->name, field);
    const bool was_driven = was->schedule.kind == CAIRN_SCHEDULE_DRIVEN;
    if (was_driven != (now->schedule.kind == CAIRN_SCHEDULE_DRIVEN))
        return fail_with(why, CAIRN_ERR_UNSUPPORTED, "group %s %s; an amendment cannot change that",
                         now->name,
                         was_driven ? "is driven: its learning rate comes with the commits"
                                    : "is not driven: its schedule is the servers'");
    if (optimizer_planes(&a) == optimizer_planes(&b)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                     "group %s: with these hyper-parameters %s keeps other state than before "
                     "(momentum 0 keeps none); an amendment cannot change that",
                     now->name, now->optimizer);
}

cairn_status coord_settings_judge_planes(const struct job_spec_data *was,
                                         const struct job_spec_data *next, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < next->group_count && status == CAIRN_OK; i++)
        status = judge_group(&was->groups[i], &next->groups[i], why);
    return status;
}

static bool same_loss_scale(const struct job_spec_data *a, const struct job_spec_data *b)
{
    return a->loss_scale == b->loss_scale && a->loss_scale_policy == b->loss_scale_policy &&
           a->loss_scale_growth_steps == b->loss_scale_growth_steps &&
           a->loss_scale_min == b->loss_scale_min && a->loss_scale_max == b->loss_scale_max;
}

cairn_status coord_settings_payload(const struct job_spec_data *was,
                                    const struct job_spec_data *next, struct decision *last,
                                    uint8_t **owned_out, struct sentence *why)
{
    struct payload head;
    *owned_out = NULL;
    if (last->payload_bytes == 0) return CAIRN_OK;
    if (payload_decode(last->payload, last->payload_bytes, &head) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_PROTOCOL, "the payload of the last decision is none");
    if (head.state_bytes > next->client_state_max)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "client_state_max is %u, and the trainer's state that belongs to this "
                         "version has %zu bytes; allowed: that or more",
                         next->client_state_max, head.state_bytes);
    if (same_loss_scale(was, next)) return CAIRN_OK;
    uint8_t *copy = malloc(last->payload_bytes);
    if (copy == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the job's state");
    memcpy(copy, last->payload, last->payload_bytes);
    payload_set_loss_scale(copy, next->loss_scale);
    last->payload = *owned_out = copy;
    return CAIRN_OK;
}

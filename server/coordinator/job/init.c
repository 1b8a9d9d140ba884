/* The end of the initial state: the source says that it is put, the shards seal it, everyone who waits is
 * answered. Ranks that hashed the same state are compared with the source; what callers gave themselves
 * is compared among those who gave it. Digests are kept while this coordinator lives. */
#include <inttypes.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/member/standing.h"
#include "server/coordinator/store/saves.h"

enum { HEX_BYTES = 2 * 8 + 1 }; /* the first eight bytes tell two apart */

static bool digest_ok(const ProtobufCBinaryData *bytes)
{
    return bytes->len == 0 || bytes->len == CAIRN_INIT_DIGEST_BYTES;
}

static void take_digest(struct cairn_init_digest *digest, const ProtobufCBinaryData *bytes,
                        uint32_t rank)
{
    if (bytes->len == 0) return;
    digest->known = true;
    digest->rank = rank;
    memcpy(digest->bytes, bytes->data, CAIRN_INIT_DIGEST_BYTES);
}

static bool same(const struct cairn_init_digest *a, const struct cairn_init_digest *b)
{
    return !a->known || !b->known || memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static void print_hex(const struct cairn_init_digest *digest, char out[HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < HEX_BYTES / 2; i++) {
        out[2 * i] = digits[digest->bytes[i] >> 4];
        out[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    out[HEX_BYTES - 1] = 0;
}

static void refuse(struct cairn_cluster_member *member, uint32_t request,
                   const struct cairn_init_digest *here, const struct cairn_init_digest *there)
{
    char mine[HEX_BYTES], theirs[HEX_BYTES];
    struct cairn_sentence why;
    print_hex(here, mine);
    print_hex(there, theirs);
    cairn_sentence_set(&why,
                       "rank %" PRIu32 " has another initial state of job %s than rank %" PRIu32
                       ": digest %s here, %s there; begin from the same seed or file on all ranks",
                       member->rank, member->job->spec.name, there->rank, mine, theirs);
    cairn_cluster_session_error(member->session, request, CAIRN_ERR_MISMATCH, why.text);
}

static void answer(struct cairn_cluster_member *member)
{
    const uint32_t request = member->init.request;
    member->init.request = 0;
    if (same(&member->init.digest, &member->job->init.source))
        cairn_cluster_session_done(member->session, request);
    else
        refuse(member, request, &member->init.digest, &member->job->init.source);
}

/* Nobody's is taken: all may put again. */
static void refuse_all(struct cairn_cluster_job *job, const struct cairn_sentence *why)
{
    for (struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        const uint32_t request = m->init.request;
        m->init.request = 0;
        if (request != 0)
            cairn_cluster_session_error(m->session, request, CAIRN_ERR_MISMATCH, why->text);
    }
}

void cairn_cluster_member_init_done(struct cairn_cluster_member *member, uint32_t request,
                                    const Cairn__InitDone *message)
{
    struct cairn_cluster_job *job = member->job;
    struct cairn_init_digest given = { .known = false };
    if (!digest_ok(&message->digest) || !digest_ok(&message->given)) {
        cairn_cluster_session_error(member->session, request, CAIRN_ERR_MALFORMED,
                                    "a digest of the initial state has 32 bytes");
        return;
    }
    take_digest(&given, &message->given, member->rank);
    if (!same(&given, &job->init.given)) {
        refuse(member, request, &given, &job->init.given);
        return;
    }
    if (!job->init.given.known) job->init.given = given;
    const bool tiled = job->tiles.world > 0; // then ranks hold different parts, and put them
    if (!tiled) take_digest(&member->init.digest, &message->digest, member->rank);
    if (message->source && !job->init.source.known) job->init.source = member->init.digest;
    const cairn_status status = cairn_cluster_replicas_take(member, &message->held);
    if (status != CAIRN_OK) {
        cairn_cluster_session_error(member->session, request, status,
                                    "the digests of what is held cannot be taken");
        return;
    }
    member->init.request = request;
    if (job->initialized) {
        answer(member);
        return;
    }
    if (message->source) job->init.sourced = true;
    if (member->rank == 0) job->init.moments_of = message->moments ? member->id : 0;
    if (tiled ? !job->init.sourced || !cairn_cluster_tiles_all_put(job) : !message->source) return;
    struct cairn_sentence why;
    if (tiled && !cairn_cluster_replicas_agree(job, &why)) {
        refuse_all(job, &why);
        return;
    }
    job->init.source = member->init.digest;
    job->init.seal_wanted = true;
    cairn_cluster_job_try_seal(job);
}

/* The initial state is there: who waits for that hears it. */
static void answer_all(struct cairn_cluster_job *job)
{
    if (!job->initialized) return;
    for (struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->init.request != 0) answer(m);
}

/* ---- the seal ---- */

static void seal_failed(struct cairn_cluster_job *job, cairn_status status, const char *text)
{
    cairn_log_warn("job %s is not initialized: %s", job->spec.name, text);
    for (struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m->init.request == 0) continue;
        cairn_cluster_session_error(m->session, m->init.request, status, text);
        m->init.request = 0;
    }
}

/* Durable: rounds may begin. */
static void on_initialized(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(saved->cluster, saved->job);
    if (job == NULL || job->dropping || !job->init.seal_running) return;
    job->init.seal_running = false;
    if (saved->status != CAIRN_OK) {
        seal_failed(job, saved->status, saved->why);
        return;
    }
    job->initialized = true;
    job->state = CAIRN_CLUSTER_JOB_RUNNING;
    cairn_log_info("job %s is initialized", job->spec.name);
    const struct cairn_round_event ready = { .kind = CAIRN_ROUND_READY,
                                             .version = { job->generation, job->base_step } };
    cairn_cluster_job_event(job, &ready);
    answer_all(job);
    cairn_cluster_members_answer_versions(job);
}

static void on_sealed(struct cairn_cluster_job *job, const void *about, cairn_status status,
                      const char *text)
{
    struct cairn_sentence why;
    (void)about;
    if (!job->init.seal_running) return;
    if (status == CAIRN_ERR_CLOSED) {
        job->init.seal_running = false;
        cairn_cluster_job_try_seal(job); // the shard is back already, or asks when it is
        return;
    }
    job->init.seal_wanted = false;
    cairn_sentence_set(&why, "%s", text);
    if (status == CAIRN_OK)
        status = cairn_cluster_save_job(job, CAIRN_STORE_INITIALIZED, NULL, 0, on_initialized,
                                        &why);
    if (status == CAIRN_OK) return;
    job->init.seal_running = false;
    seal_failed(job, status, why.text);
}

void cairn_cluster_job_try_seal(struct cairn_cluster_job *job)
{
    if (!job->init.seal_wanted || job->init.seal_running ||
        job->state != CAIRN_CLUSTER_JOB_INITIALIZING)
        return;
    CAIRN_EACH_SHARD (job, i) {
        if (!job->shards[i].up || !cairn_cluster_seat_obeys(job->shards[i].seat)) return;
    }
    struct cairn_cluster_gather *gather = cairn_cluster_gather_open_job(job, on_sealed, NULL, 0);
    if (gather == NULL) return;
    job->init.seal_running = true;
    Cairn__JobSeal seal = CAIRN__JOB_SEAL__INIT;
    seal.job = job->id;
    seal.moments_of = job->init.moments_of;
    CAIRN_EACH_SHARD (job, i) {
        (void)cairn_cluster_gather_send(gather, job->shards[i].seat, CAIRN_MSG_JOB_SEAL,
                                        &seal.base);
    }
    cairn_cluster_gather_start(gather);
}

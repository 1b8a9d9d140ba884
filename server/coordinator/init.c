/* The initial state of a job: put by a source, compared between ranks, sealed by the shards. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/job.h"
#include "server/coordinator/store.h"

/* ==== replicas ==== */

/* Replicas: ranks that hold the same box of a tensor. Each puts its values, and the last ones would stay; so
 * what they say of theirs (InitDone.held) is compared before the state is sealed. */

enum { HELD = 8 }; /* bytes of InitDone.held a tensor */

/* InitDone.held of a member. CAIRN_ERR_MALFORMED, CAIRN_ERR_NO_MEMORY. */
static cairn_status take_replicas(struct coord_member *member, const ProtobufCBinaryData *held)
{
    if (held->len != 0 && held->len != member->job->spec.tensor_count * HELD)
        return CAIRN_ERR_MALFORMED;
    uint8_t *bytes = held->len > 0 ? malloc(held->len) : NULL;
    if (held->len > 0 && bytes == NULL) return CAIRN_ERR_NO_MEMORY;
    if (bytes != NULL) memcpy(bytes, held->data, held->len);
    free(member->init.held);
    member->init.held = bytes;
    return CAIRN_OK;
}

/* The box of the tensor at hand that a rank holds, and the digest that it reports of it. */
struct entry {
    struct cairn_box box;
    uint32_t rank;
    const uint8_t *digest;
};

/* Orders entries by box, then by rank, so that replicas of a box stand together. */
static int compare_replicas(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    for (uint32_t d = 0; d < a->box.rank; d++) {
        if (a->box.start[d] != b->box.start[d]) return a->box.start[d] < b->box.start[d] ? -1 : 1;
        if (a->box.extent[d] != b->box.extent[d])
            return a->box.extent[d] < b->box.extent[d] ? -1 : 1;
    }
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Lists the ranks that report a digest of the tensor; returns how many. */
static size_t list_entries(const struct coord_job *job, uint32_t tensor, struct entry *entries)
{
    static const uint8_t nothing[HELD] = { 0 };
    const struct cairn_box whole = box_of_shape(&job->spec.tensors[tensor].shape);
    size_t count = 0;
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m->init.request == 0 || m->init.held == NULL || m->rank >= job->tiles.world) continue;
        const uint8_t *digest = m->init.held + (size_t)tensor * HELD;
        if (memcmp(digest, nothing, HELD) == 0) continue;
        const struct cairn_box *box = coord_tiles_box(job, m->rank, tensor);
        entries[count++] = (struct entry) { box != NULL ? *box : whole, m->rank, digest };
    }
    return count;
}

static void say_replicas_differ(const struct coord_job *job, uint32_t tensor, const struct entry *a,
                                const struct entry *b, struct sentence *why)
{
    char box[CAIRN_BOX_TEXT_BYTES];
    sentence_set(why,
                 "tensor %.200s: rank %" PRIu32 " and rank %" PRIu32
                 " hold the same box %.120s and have put different values; put it again, "
                 "from the same seed or file on both",
                 job->spec.tensors[tensor].name, a->rank, b->rank, box_text(&a->box, box));
}

/* Ranks that hold the same box of a tensor have put the same; else false, and why. */
static bool replicas_agree(const struct coord_job *job, struct sentence *why)
{
    size_t members = 0;
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) members++;
    struct entry *entries = calloc(members + 1, sizeof *entries);
    bool agree = true;
    if (entries == NULL) {
        sentence_set(why, "the coordinator is out of memory to compare what was put");
        return false;
    }
    for (uint32_t t = 0; agree && t < job->spec.tensor_count; t++) {
        const size_t count = list_entries(job, t, entries);
        qsort(entries, count, sizeof *entries, compare_replicas);
        for (size_t i = 1; agree && i < count; i++) {
            agree = !box_equal(&entries[i - 1].box, &entries[i].box) ||
                    memcmp(entries[i - 1].digest, entries[i].digest, HELD) == 0;
            if (!agree) say_replicas_differ(job, t, &entries[i - 1], &entries[i], why);
        }
    }
    free(entries);
    return agree;
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
    const cairn_status status = take_replicas(member, &message->held);
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
    if (tiled && !replicas_agree(job, &why)) {
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
    CAIRN_EACH_SHARD (job, i)
        (void)coord_gather_send(gather, job->shards[i].entry, CAIRN_MSG_JOB_SEAL, &seal.base);
    coord_gather_start(gather);
}

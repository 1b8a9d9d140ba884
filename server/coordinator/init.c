/* The end of the initial state: the source says that it is put, the shards seal it, everyone who waits is
 * answered. Ranks that hashed the same state are compared with the source; what callers gave themselves
 * is compared among those who gave it. Digests are kept while this coordinator lives. */
#include <inttypes.h>
#include <string.h>

#include "server/coordinator/cluster.h"

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
    const uint32_t request = member->init_request;
    member->init_request = 0;
    if (same(&member->init_digest, &member->job->init_source))
        cairn_cluster_session_done(member->session, request);
    else
        refuse(member, request, &member->init_digest, &member->job->init_source);
}

/* Nobody's is taken: all may put again. */
static void refuse_all(struct cairn_cluster_job *job, const struct cairn_sentence *why)
{
    for (struct cairn_cluster_member *m = job->members; m != NULL; m = m->next_of_job) {
        const uint32_t request = m->init_request;
        m->init_request = 0;
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
    if (!same(&given, &job->init_given)) {
        refuse(member, request, &given, &job->init_given);
        return;
    }
    if (!job->init_given.known) job->init_given = given;
    const bool tiled = job->tiles.world > 0; // then ranks hold different parts, and put them
    if (!tiled) take_digest(&member->init_digest, &message->digest, member->rank);
    if (message->source && !job->init_source.known) job->init_source = member->init_digest;
    const cairn_status status = cairn_cluster_replicas_take(member, &message->held);
    if (status != CAIRN_OK) {
        cairn_cluster_session_error(member->session, request, status,
                                    "the digests of what is held cannot be taken");
        return;
    }
    member->init_request = request;
    if (job->initialized) {
        answer(member);
        return;
    }
    if (message->source) job->init_sourced = true;
    if (tiled ? !job->init_sourced || !cairn_cluster_tiles_all_put(job) : !message->source) return;
    struct cairn_sentence why;
    if (tiled && !cairn_cluster_replicas_agree(job, &why)) {
        refuse_all(job, &why);
        return;
    }
    job->init_source = member->init_digest;
    job->seal_wanted = true;
    cairn_cluster_job_try_seal(job);
}

void cairn_cluster_members_answer_init(struct cairn_cluster_job *job)
{
    if (!job->initialized) return;
    for (struct cairn_cluster_member *m = job->members; m != NULL; m = m->next_of_job)
        if (m->init_request != 0) answer(m);
}

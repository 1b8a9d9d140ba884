/* Replicas: ranks that hold the same box of a tensor. Each puts its values, and the last ones would stay; so
 * what they say of theirs (InitDone.held) is compared before the state is sealed. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/geometry/box.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"

enum { HELD = CAIRN_INIT_HELD_BYTES };

cairn_status cairn_cluster_replicas_take(struct cairn_cluster_member *member,
                                         const ProtobufCBinaryData *held)
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
static int compare(const void *left, const void *right)
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
static size_t list_entries(const struct cairn_cluster_job *job, uint32_t tensor,
                           struct entry *entries)
{
    static const uint8_t nothing[HELD] = { 0 };
    const struct cairn_box whole = cairn_box_of_shape(&job->spec.tensors[tensor].shape);
    size_t count = 0;
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m->init.request == 0 || m->init.held == NULL || m->rank >= job->tiles.world) continue;
        const uint8_t *digest = m->init.held + (size_t)tensor * HELD;
        if (memcmp(digest, nothing, HELD) == 0) continue;
        const struct cairn_box *box = cairn_cluster_tiles_box(job, m->rank, tensor);
        entries[count++] = (struct entry) { box != NULL ? *box : whole, m->rank, digest };
    }
    return count;
}

static void say(const struct cairn_cluster_job *job, uint32_t tensor, const struct entry *a,
                const struct entry *b, struct cairn_sentence *why)
{
    char box[CAIRN_BOX_TEXT_BYTES];
    cairn_sentence_set(why,
                       "tensor %.200s: rank %" PRIu32 " and rank %" PRIu32
                       " hold the same box %.120s and have put different values; put it again, "
                       "from the same seed or file on both",
                       job->spec.tensors[tensor].name, a->rank, b->rank,
                       cairn_box_text(&a->box, box));
}

bool cairn_cluster_replicas_agree(const struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    size_t members = 0;
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job)
        members++;
    struct entry *entries = calloc(members + 1, sizeof *entries);
    bool agree = true;
    if (entries == NULL) {
        cairn_sentence_set(why, "the coordinator is out of memory to compare what was put");
        return false;
    }
    for (uint32_t t = 0; agree && t < job->spec.tensor_count; t++) {
        const size_t count = list_entries(job, t, entries);
        qsort(entries, count, sizeof *entries, compare);
        for (size_t i = 1; agree && i < count; i++) {
            agree = !cairn_box_equal(&entries[i - 1].box, &entries[i].box) ||
                    memcmp(entries[i - 1].digest, entries[i].digest, HELD) == 0;
            if (!agree) say(job, t, &entries[i - 1], &entries[i], why);
        }
    }
    free(entries);
    return agree;
}

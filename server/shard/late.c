/* Lists the contributors of which something is missing in the open round. The coordinator asks for
 * it when the step's deadline has passed, or when the round takes long. */
#include <stdlib.h>

#include "server/shard/late.h"
#include "server/shard/relay/relay.h"
#include "server/shard/shard.h"

/* Lacks that do not fit into a frame are left out: those that are named first suffice as a
 * reason. */
#define TOLD_MAX 16384

struct list {
    uint64_t members[TOLD_MAX];
    uint32_t micros[TOLD_MAX];
    uint32_t flags[TOLD_MAX]; /* enum cairn_lack_flags */
    size_t count;
};

static void add_core(struct list *list, const struct cairn_step *core, uint32_t flags)
{
    static struct cairn_step_waiting waiting[TOLD_MAX]; // the loop's thread alone is here
    size_t count = cairn_step_waiting(core, waiting, TOLD_MAX);
    if (count > TOLD_MAX - list->count) count = TOLD_MAX - list->count;
    for (size_t i = 0; i < count; i++) {
        const size_t at = list->count++;
        list->members[at] = waiting[i].member;
        list->micros[at] = waiting[i].micro;
        list->flags[at] = flags | (waiting[i].waits ? CAIRN_LACK_WAITS : 0u) |
                          (waiting[i].arrived > 0 ? CAIRN_LACK_ARRIVED : 0u);
    }
}

void cairn_shard_job_tell_lacks(struct cairn_shard_job *job, const Cairn__LacksGet *message)
{
    struct list *list = calloc(1, sizeof *list);
    const struct cairn_relay *relay = cairn_relay_of(job);
    Cairn__Lacks lacks = CAIRN__LACKS__INIT;
    if (list == NULL) return; // it is asked again at the next deadline
    if (cairn_step_round(job->collector.step) == message->round)
        add_core(list, job->collector.step, 0);
    for (uint32_t i = 0; relay != NULL && relay->round == message->round && i < relay->owner_count;
         i++)
        add_core(list, relay->owners[i].collector.step, CAIRN_LACK_RELAYED);
    lacks.job = message->job;
    lacks.epoch = message->epoch;
    lacks.round = message->round;
    lacks.members = list->members;
    lacks.micros = list->micros;
    lacks.flags = list->flags;
    lacks.n_members = lacks.n_micros = lacks.n_flags = list->count;
    cairn_session_send(job->shard, CAIRN_MSG_LACKS, 0, &lacks.base);
    free(list);
}

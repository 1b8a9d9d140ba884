#include "server/shard/unfit.h"

#include "server/shard/job/held.h"
#include "server/shard/shard.h"

/* Jobs that go on without the device. */
static size_t count_others(const struct cairn_shard *shard)
{
    size_t count = 0;
    for (const struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next)
        count += job->state != CAIRN_JOB_FAULTED && job->state != CAIRN_JOB_LEAVING &&
                 job->memory.device == 0;
    return count;
}

void cairn_unfit_look(struct cairn_shard *shard)
{
    struct cairn_home *home = shard->device.home;
    const char *failure = home != NULL ? cairn_home_failure(home) : NULL;
    if (failure == NULL || shard->closing || shard->events.on_unfit == NULL) return;
    const size_t others = count_others(shard);
    if (others == 0) {
        cairn_log_error("this shard is unfit and ends, since nothing that it holds is whole: %s",
                        failure);
        shard->events.on_unfit(shard, shard->events.context);
        return;
    }
    if (shard->unfit_told) return;
    shard->unfit_told = true;
    cairn_log_error(
        "this shard is unfit: %s; it serves on those jobs of which nothing lies there (%zu), "
        "gets no other, and ends with the last of them: `cairn member drain %s` moves "
        "them",
        failure, others, shard->name);
    // The next Hello says it. What the coordinator has asked meanwhile it asks again.
    if (shard->session.stream != NULL)
        cairn_stream_close(shard->session.stream, CAIRN_ERR_IO, "the device of this shard failed");
}

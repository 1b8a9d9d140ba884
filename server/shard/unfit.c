#include "server/shard/unfit.h"

#include "server/shard/job/held.h"
#include "server/shard/shard.h"

/* In which a coordinator gives up the jobs that lay on the device: of a shard that is away it would wait for
 * them. */
#define BEATS 5

/* Jobs that go on without the device. */
static size_t count_others(const struct cairn_shard *shard)
{
    size_t count = 0;
    for (const struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next)
        count += job->state != CAIRN_JOB_FAULTED && job->state != CAIRN_JOB_LEAVING &&
                 job->memory.device == 0;
    return count;
}

/* Closes the connection, since the coordinator knows nothing of the failure and learns it from the
 * next Hello. Requests that it has made meanwhile it makes again. */
static void tell(struct cairn_shard *shard, const char *failure)
{
    cairn_log_error("this shard is unfit: %s", failure);
    cairn_stream_close(shard->session.stream, CAIRN_ERR_IO, "the device of this shard failed");
}

void cairn_unfit_look(struct cairn_shard *shard)
{
    struct cairn_home *home = shard->device.home;
    const char *failure = home != NULL ? cairn_home_failure(home) : NULL;
    if (failure == NULL || shard->closing || shard->events.on_unfit == NULL) return;
    if (!shard->unfit.is_told) {
        tell(shard, failure);
        return;
    }
    const size_t others = count_others(shard);
    if (others > 0 && !shard->unfit.is_said) {
        shard->unfit.is_said = true;
        cairn_log_error(
            "this shard is unfit, and serves on those jobs of which nothing lies on its "
            "device (%zu), until they are on other shards, where the coordinator brings them if "
            "any is there; it ends with the last of them: `cairn cluster status` says how far "
            "that is",
            others);
    }
    if (others > 0 || ++shard->unfit.beats < BEATS) return;
    cairn_log_error("this shard is unfit and ends, since nothing that it holds is whole: %s",
                    failure);
    shard->events.on_unfit(shard, shard->events.context);
}

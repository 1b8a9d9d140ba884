#include "server/coordinator/job/missed.h"

#include <stdlib.h>

#include "server/coordinator/base/job.h"

static cairn_status too_many(const struct cairn_job_spec_data *spec, struct cairn_sentence *why)
{
    return cairn_fail(why, CAIRN_ERR_INVALID,
                      "too many tensors of job %s would have missed other steps than their "
                      "neighbours: at most %d runs of them can be told; freeze whole groups, or "
                      "tensors whose names are next to each other",
                      spec->name, CAIRN_MISSED_RUNS_MAX);
}

/* The steps that a tensor of the next generation has missed: all steps, if it was not trained so
 * far. */
static uint64_t steps_missed(const struct cairn_cluster_job *job,
                             const struct cairn_tensor_spec *tensor)
{
    const size_t from = cairn_spec_find_tensor(&job->spec, tensor->name);
    const bool trained = from != SIZE_MAX && job->spec.tensors[from].kind == CAIRN_TRAINED;
    return trained ? cairn_round_missed(job->core, (uint32_t)from)
                   : cairn_cluster_job_version(job).step;
}

/* Lists what all tensors have missed. `with_next` counts the next step, too, for tensors that
 * are frozen. */
static cairn_status list(const struct cairn_cluster_job *job,
                         const struct cairn_job_spec_data *spec, bool with_next, uint8_t *room,
                         struct cairn_missed *missed_out, struct cairn_sentence *why)
{
    struct cairn_missed_writer writer;
    cairn_missed_begin(&writer, room, spec->tensor_count);
    for (size_t t = 0; t < spec->tensor_count; t++) {
        const struct cairn_tensor_spec *tensor = &spec->tensors[t];
        if (tensor->kind != CAIRN_TRAINED) continue;
        const size_t group = cairn_spec_find_group(spec, tensor->group);
        const bool next = with_next && (tensor->frozen || spec->groups[group].frozen);
        cairn_missed_put(&writer, (uint32_t)t, steps_missed(job, tensor) + next, (uint32_t)group,
                         next);
    }
    if (writer.is_full) return too_many(spec, why);
    *missed_out = cairn_missed_end(&writer);
    return CAIRN_OK;
}

cairn_status cairn_cluster_missed_judge(const struct cairn_cluster_job *job,
                                        const struct cairn_job_spec_data *next,
                                        struct cairn_sentence *why)
{
    if (job->core == NULL || next->tensor_count <= CAIRN_MISSED_RUNS_MAX) return CAIRN_OK;
    struct cairn_missed missed;
    uint8_t *room = malloc(CAIRN_MISSED_BYTES(next->tensor_count));
    if (room == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to amend it");
    const cairn_status status = list(job, next, true, room, &missed, why);
    free(room);
    return status;
}

/* `missed` in the place of what the last decision's payload tells of it. */
static cairn_status put_in(const struct cairn_cluster_job *job, const struct cairn_missed *missed,
                           struct cairn_decision *last, uint8_t *payload)
{
    struct cairn_payload head = { .clip_scale = 1,
                                  .loss_scale = cairn_round_loss_scale(job->core) };
    if (last->payload_bytes == 0 && missed->size == 0) return CAIRN_OK;
    if (last->payload_bytes == 0) {
        head.missed = *missed;
        last->payload_bytes = cairn_payload_encode(&head, NULL, payload);
    } else if (cairn_payload_decode(last->payload, last->payload_bytes, &head) == CAIRN_OK) {
        last->payload_bytes = cairn_payload_with_missed(last->payload, &head, missed, payload);
    } else {
        return CAIRN_ERR_INTERNAL;
    }
    last->payload = payload;
    return CAIRN_OK;
}

cairn_status cairn_cluster_missed_extend(const struct cairn_cluster_job *job,
                                         const struct cairn_job_spec_data *next,
                                         struct cairn_decision *last, uint8_t **payload_out,
                                         struct cairn_sentence *why)
{
    struct cairn_missed missed;
    uint8_t *room = malloc(CAIRN_MISSED_BYTES(next->tensor_count));
    uint8_t *payload = malloc(last->payload_bytes + CAIRN_PAYLOAD_MAX(0, next->tensor_count, 0));
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    cairn_sentence_set(why, "the coordinator is out of memory");
    if (room != NULL && payload != NULL) status = list(job, next, false, room, &missed, why);
    if (status == CAIRN_OK) {
        status = put_in(job, &missed, last, payload);
        if (status != CAIRN_OK)
            cairn_sentence_set(why, "the payload of the last decision is malformed");
    }
    free(room);
    if (status == CAIRN_OK)
        *payload_out = payload;
    else
        free(payload);
    return status;
}

/* ---- a job that is to begin ---- */

static bool any_missed(const struct cairn_job_spec_data *spec)
{
    for (size_t t = 0; t < spec->tensor_count; t++)
        if (spec->tensors[t].steps_missed > 0) return true;
    return false;
}

static void take_out(struct cairn_job_spec_data *spec, struct cairn_missed_writer *writer)
{
    for (size_t t = 0; t < spec->tensor_count; t++) {
        struct cairn_tensor_spec *tensor = &spec->tensors[t];
        if (tensor->kind != CAIRN_TRAINED) continue;
        const size_t group = cairn_spec_find_group(spec, tensor->group);
        cairn_missed_put(writer, (uint32_t)t, tensor->steps_missed, (uint32_t)group, false);
        tensor->steps_missed = 0;
    }
}

/* Who gives them again, another rank say, has the spec as it was. */
static cairn_status note_former(struct cairn_job_spec_data *spec)
{
    uint8_t hash[32];
    const cairn_status status = cairn_spec_hash(spec, hash);
    return status == CAIRN_OK ? cairn_spec_add_former(spec, hash) : status;
}

cairn_status cairn_cluster_missed_begin(struct cairn_job_spec_data *spec, uint8_t **payload_out,
                                        size_t *bytes_out, struct cairn_sentence *why)
{
    *payload_out = NULL;
    *bytes_out = 0;
    if (!any_missed(spec)) return CAIRN_OK;
    struct cairn_missed_writer writer;
    struct cairn_payload head = { .clip_scale = 1, .loss_scale = spec->loss_scale };
    uint8_t *room = malloc(CAIRN_MISSED_BYTES(spec->tensor_count));
    uint8_t *payload = malloc(CAIRN_PAYLOAD_MAX(0, spec->tensor_count, 0));
    cairn_status status = room != NULL && payload != NULL ? note_former(spec) : CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK) {
        cairn_missed_begin(&writer, room, spec->tensor_count);
        take_out(spec, &writer);
        if (writer.is_full) {
            status = too_many(spec, why);
        } else {
            head.missed = cairn_missed_end(&writer);
            *bytes_out = cairn_payload_encode(&head, NULL, payload);
        }
    } else {
        (void)cairn_fail(why, status, "no memory for what tensors have missed");
    }
    free(room);
    if (status == CAIRN_OK)
        *payload_out = payload;
    else
        free(payload);
    return status;
}

#include "server/coordinator/job/settings.h"

#include <stdlib.h>
#include <string.h>

#include "proto/spec/optimizer.h"
#include "proto/spec/settings.h"

/* Refuses a setting that no amendment changes, and names the way that changes it, if there is
 * one. */
static cairn_status refuse(const struct cairn_job_spec_data *spec, const Cairn__Setting *setting,
                           enum cairn_spec_change change, struct cairn_sentence *why)
{
    if (change == CAIRN_SPEC_NEVER)
        return cairn_fail(why, CAIRN_ERR_UNSUPPORTED,
                          "%s says how job %s began, and does not change", setting->key,
                          spec->name);
    return cairn_fail(
        why, CAIRN_ERR_UNSUPPORTED,
        "%s of job %s changes with a job that is made of its snapshot, moments and "
        "step included: `cairn snapshot create %s --wait`, then `cairn job create %s "
        "--from %s/latest --set %s=%s` (under another name it begins beside this one)",
        setting->key, spec->name, spec->name, spec->name, spec->name, setting->key, setting->value);
}

static cairn_status apply_one(struct cairn_job_spec_data *next, const Cairn__Setting *setting,
                              enum cairn_settings_way way, bool *reopens_out,
                              struct cairn_sentence *why)
{
    enum cairn_spec_change change;
    const cairn_status status = cairn_spec_set(next, setting->key, setting->value, &change, why);
    if (status != CAIRN_OK) return status;
    const bool is_refused = change == CAIRN_SPEC_NEVER ||
                            (change == CAIRN_SPEC_CREATED && way == CAIRN_SETTINGS_AMEND);
    if (is_refused) return refuse(next, setting, change, why);
    *reopens_out |= change != CAIRN_SPEC_NEXT_ROUND;
    return CAIRN_OK;
}

cairn_status cairn_cluster_settings_apply(struct cairn_job_spec_data *next,
                                          Cairn__Setting *const *settings, size_t count,
                                          enum cairn_settings_way way, bool *reopens_out,
                                          struct cairn_sentence *why)
{
    if (count == 0) return CAIRN_OK;
    if (count > CAIRN_SETTINGS_MAX)
        return cairn_fail(why, CAIRN_ERR_INVALID, "%zu settings; allowed: at most %d", count,
                          CAIRN_SETTINGS_MAX);
    for (size_t i = 0; i < count; i++) {
        const cairn_status status = apply_one(next, settings[i], way, reopens_out, why);
        if (status != CAIRN_OK) return status;
    }
    cairn_spec_canonicalize(next);
    return CAIRN_OK;
}

/* Refuses a setting that the optimizer would ignore, as it is refused in a worker's spec. */
static cairn_status judge_unused(const struct cairn_group_spec *was,
                                 const struct cairn_group_spec *now, struct cairn_sentence *why)
{
    const char *field = "";
    if (cairn_group_spec_unused(now, &field) == CAIRN_OK) return CAIRN_OK;
    const struct cairn_spec_field *row = cairn_spec_field_find(&cairn_group_fields, field,
                                                               strlen(field));
    if (row == NULL || cairn_spec_field_number(row, was) == cairn_spec_field_number(row, now))
        return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_INVALID,
                      "group %s: %s has no effect with optimizer %s; allowed: what it is",
                      now->name, field, now->optimizer);
}

static cairn_status judge_group(const struct cairn_group_spec *was,
                                const struct cairn_group_spec *now, struct cairn_sentence *why)
{
    struct cairn_group_hyper a, b;
    const char *field = "";
    cairn_status status = judge_unused(was, now, why);
    if (status != CAIRN_OK) return status;
    status = cairn_group_hyper_of_spec(was, &a, &field);
    if (status == CAIRN_OK) status = cairn_group_hyper_of_spec(now, &b, &field);
    if (status != CAIRN_OK)
        return cairn_fail(why, status, "group %s: %s is not valid", now->name, field);
    const bool was_driven = was->schedule.kind == CAIRN_SCHEDULE_DRIVEN;
    if (was_driven != (now->schedule.kind == CAIRN_SCHEDULE_DRIVEN))
        return cairn_fail(why, CAIRN_ERR_UNSUPPORTED,
                          "group %s %s; an amendment cannot change that", now->name,
                          was_driven ? "is driven: its learning rate comes with the commits"
                                     : "is not driven: its schedule is the servers'");
    if (cairn_optimizer_planes(&a) == cairn_optimizer_planes(&b)) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_UNSUPPORTED,
                      "group %s: with these hyper-parameters %s keeps other state than before "
                      "(momentum 0 keeps none); an amendment cannot change that",
                      now->name, now->optimizer);
}

cairn_status cairn_cluster_settings_judge_planes(const struct cairn_job_spec_data *was,
                                                 const struct cairn_job_spec_data *next,
                                                 struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < next->group_count && status == CAIRN_OK; i++)
        status = judge_group(&was->groups[i], &next->groups[i], why);
    return status;
}

static bool same_loss_scale(const struct cairn_job_spec_data *a,
                            const struct cairn_job_spec_data *b)
{
    return a->loss_scale == b->loss_scale && a->loss_scale_policy == b->loss_scale_policy &&
           a->loss_scale_growth_steps == b->loss_scale_growth_steps &&
           a->loss_scale_min == b->loss_scale_min && a->loss_scale_max == b->loss_scale_max;
}

cairn_status cairn_cluster_settings_payload(const struct cairn_job_spec_data *was,
                                            const struct cairn_job_spec_data *next,
                                            struct cairn_decision *last, uint8_t **owned_out,
                                            struct cairn_sentence *why)
{
    struct cairn_payload head;
    *owned_out = NULL;
    if (last->payload_bytes == 0) return CAIRN_OK;
    if (cairn_payload_decode(last->payload, last->payload_bytes, &head) != CAIRN_OK)
        return cairn_fail(why, CAIRN_ERR_PROTOCOL, "the payload of the last decision is none");
    if (head.state_bytes > next->client_state_max)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "client_state_max is %u, and the trainer's state that belongs to this "
                          "version has %zu bytes; allowed: that or more",
                          next->client_state_max, head.state_bytes);
    if (same_loss_scale(was, next)) return CAIRN_OK;
    uint8_t *copy = malloc(last->payload_bytes);
    if (copy == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the job's state");
    memcpy(copy, last->payload, last->payload_bytes);
    cairn_payload_set_loss_scale(copy, next->loss_scale);
    last->payload = *owned_out = copy;
    return CAIRN_OK;
}

/* cairn_job_amend: the caller's words become one request. */
#include <sodium.h>
#include <stdlib.h>

#include "client/api/api.h"
#include "client/ask.h"
#include "client/base/spec.h"
#include "client/base/struct.h"
#include "proto/spec/settings.h"

#define AMEND_BYTES_MAX (512 << 10)                                  // of a frame
#define LEAST           offsetof(struct cairn_amend, freeze_tensors) // of the first release

/* The request and what it owns. */
struct words {
    Cairn__JobAmend message;
    struct cairn_group *groups;       /* [group_count], as large as ours */
    Cairn__GroupSpec *packed;         /* [group_count] */
    Cairn__GroupSpec **list;          /* [group_count] */
    struct cairn_job_spec_data added; /* the tensors to add, nothing else */
    Cairn__TensorSpec *tensors;       /* [add_count] */
    Cairn__TensorSpec **tensor_list;  /* [add_count] */
    Cairn__TensorTie *ties;           /* [tie_count] */
    Cairn__TensorTie **tie_list;      /* [tie_count] */
    char **thaw_groups;               /* [unfreeze_tensor_count] */
    Cairn__Setting *settings;         /* [setting_count] */
    Cairn__Setting **setting_list;    /* [setting_count] */
};

static void release(struct words *words)
{
    free(words->groups);
    free(words->packed);
    free(words->list);
    cairn_spec_release(&words->added);
    free(words->tensors);
    free(words->tensor_list);
    free(words->ties);
    free(words->tie_list);
    free(words->thaw_groups);
    free(words->settings);
    free(words->setting_list);
}

static cairn_status add_groups(struct words *words, const struct cairn_amend *amend)
{
    const size_t count = amend->group_count;
    if (amend->groups == NULL && count > 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "groups is NULL, but group_count is %zu",
                                 count);
    words->groups = calloc(count + 1, sizeof *words->groups);
    words->packed = calloc(count + 1, sizeof *words->packed);
    words->list = calloc(count + 1, sizeof(Cairn__GroupSpec *));
    if (words->groups == NULL || words->packed == NULL || words->list == NULL)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the amendment");
    for (size_t i = 0; i < count; i++) {
        const cairn_status status = cairn_client_group_take(amend->groups, i, &words->groups[i]);
        if (status != CAIRN_OK) return status;
        const struct cairn_group_spec group = cairn_client_group_of(&words->groups[i]);
        if (words->groups[i].pattern != NULL || group.optimizer == NULL)
            return cairn_client_fail(CAIRN_ERR_INVALID,
                                     "group %.64s of an amendment: pattern must be NULL (which "
                                     "tensors it has does not change) and optimizer must be given",
                                     group.name);
        cairn_group_to_message(&group, &words->packed[i]);
        words->list[i] = &words->packed[i];
    }
    words->message.groups = words->list;
    words->message.n_groups = count;
    return CAIRN_OK;
}

static cairn_status add_tensors(struct words *words, const struct cairn_amend *amend)
{
    const size_t count = amend->add_count;
    if (count == 0) return CAIRN_OK;
    if (amend->add == NULL)
        return cairn_client_fail(CAIRN_ERR_INVALID, "add is NULL, but add_count is %zu", count);
    const cairn_status status = cairn_client_added_fill(amend->add, count, &words->added);
    if (status != CAIRN_OK) return status;
    words->tensors = calloc(count, sizeof *words->tensors);
    words->tensor_list = calloc(count, sizeof *words->tensor_list);
    if (words->tensors == NULL || words->tensor_list == NULL)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the amendment");
    for (size_t i = 0; i < count; i++) {
        cairn_tensor_to_message(&words->added.tensors[i], &words->tensors[i]);
        words->tensor_list[i] = &words->tensors[i];
    }
    words->message.add = words->tensor_list;
    words->message.n_add = count;
    return CAIRN_OK;
}

static cairn_status add_ties(struct words *words, const struct cairn_amend *amend)
{
    const size_t count = amend->tie_count;
    if (count == 0) return CAIRN_OK;
    words->ties = calloc(count, sizeof *words->ties);
    words->tie_list = calloc(count, sizeof *words->tie_list);
    if (words->ties == NULL || words->tie_list == NULL)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the amendment");
    for (size_t i = 0; i < count; i++) {
        if (amend->ties == NULL || amend->ties[i].name == NULL || amend->ties[i].alias_of == NULL)
            return cairn_client_fail(CAIRN_ERR_INVALID, "a name of a tensor to tie is NULL");
        cairn__tensor_tie__init(&words->ties[i]);
        words->ties[i].name = (char *)(uintptr_t)amend->ties[i].name;
        words->ties[i].alias_of = (char *)(uintptr_t)amend->ties[i].alias_of;
        words->tie_list[i] = &words->ties[i];
    }
    words->message.ties = words->tie_list;
    words->message.n_ties = count;
    return CAIRN_OK;
}

static cairn_status add_thaw_groups(struct words *words, const struct cairn_amend *amend)
{
    static char none[] = "";
    const size_t count = amend->unfreeze_tensor_count;
    if (amend->unfreeze_tensor_groups == NULL || count == 0) return CAIRN_OK;
    words->thaw_groups = calloc(count, sizeof *words->thaw_groups);
    if (words->thaw_groups == NULL)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the amendment");
    for (size_t i = 0; i < count; i++) {
        const char *group = amend->unfreeze_tensor_groups[i];
        words->thaw_groups[i] = group != NULL ? (char *)(uintptr_t)group : none;
    }
    words->message.unfreeze_groups = words->thaw_groups;
    words->message.n_unfreeze_groups = count;
    return CAIRN_OK;
}

static cairn_status add_settings(struct words *words, const struct cairn_amend *amend)
{
    const size_t count = amend->setting_count;
    if (count == 0) return CAIRN_OK;
    words->settings = calloc(count, sizeof *words->settings);
    words->setting_list = calloc(count, sizeof *words->setting_list);
    if (words->settings == NULL || words->setting_list == NULL)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the amendment");
    for (size_t i = 0; i < count; i++) {
        const struct cairn_setting *from = amend->settings != NULL ? &amend->settings[i] : NULL;
        if (from == NULL || from->key == NULL || from->value == NULL)
            return cairn_client_fail(CAIRN_ERR_INVALID, "a key or a value of a setting is NULL");
        cairn__setting__init(&words->settings[i]);
        words->settings[i].key = (char *)(uintptr_t)from->key;
        words->settings[i].value = (char *)(uintptr_t)from->value;
        words->setting_list[i] = &words->settings[i];
    }
    words->message.settings = words->setting_list;
    words->message.n_settings = count;
    return CAIRN_OK;
}

static cairn_status judge_names(const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (names == NULL || names[i] == NULL)
            return cairn_client_fail(CAIRN_ERR_INVALID, "a name to freeze or unfreeze is NULL");
    return CAIRN_OK;
}

static cairn_status judge(const struct cairn_amend *amend)
{
    if (amend->workers_min == 0 && amend->workers_max != 0)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "workers_max is %u without workers_min; give both",
                                 amend->workers_max);
    const size_t max = CAIRN_SPEC_GROUPS_MAX, most = CAIRN_SPEC_TENSORS_MAX;
    if (amend->group_count > max || amend->freeze_count > max || amend->unfreeze_count > max)
        return cairn_client_fail(
            CAIRN_ERR_INVALID,
            "an amendment has %zu groups, %zu to freeze, %zu to unfreeze; allowed: 0 to %zu",
            amend->group_count, amend->freeze_count, amend->unfreeze_count, max);
    if (amend->freeze_tensor_count > most || amend->unfreeze_tensor_count > most ||
        amend->add_count > most || amend->tie_count > most)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "an amendment freezes %zu tensors, unfreezes %zu, adds %zu, ties "
                                 "%zu; allowed: 0 to %zu",
                                 amend->freeze_tensor_count, amend->unfreeze_tensor_count,
                                 amend->add_count, amend->tie_count, most);
    if (amend->setting_count > CAIRN_SETTINGS_MAX)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "an amendment has %zu settings; allowed: 0 to %d",
                                 amend->setting_count, CAIRN_SETTINGS_MAX);
    const struct {
        const char *const *names;
        size_t count;
    } lists[] = { { amend->freeze, amend->freeze_count },
                  { amend->unfreeze, amend->unfreeze_count },
                  { amend->freeze_tensors, amend->freeze_tensor_count },
                  { amend->unfreeze_tensors, amend->unfreeze_tensor_count } };
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0] && status == CAIRN_OK; i++)
        status = judge_names(lists[i].names, lists[i].count);
    return status;
}

static void fill_snapshot_rules(Cairn__JobAmend *m, const struct cairn_amend *amend)
{
    m->set_snapshot_rules = amend->set_snapshot_rules;
    m->snapshot_every_s = amend->snapshot_every_s;
    m->snapshot_keep_every = amend->snapshot_keep_every;
    m->snapshot_keep_within_s = amend->snapshot_keep_within_s;
    m->snapshot_max_bytes = amend->snapshot_max_bytes;
    m->snapshot_staging = (uint32_t)amend->snapshot_staging;
    m->snapshot_durable_within_s = amend->snapshot_durable_within_s;
    m->snapshot_fallback = amend->snapshot_fallback;
    m->snapshot_scrub_every_s = amend->snapshot_scrub_every_s;
}

static cairn_status fill(struct words *words, const struct cairn_amend *amend)
{
    Cairn__JobAmend *m = &words->message;
    randombytes_buf(&m->key, sizeof m->key);
    m->key |= 1; // not 0
    m->revision = amend->revision;
    m->set_clip_norm = amend->set_clip_norm;
    m->clip_norm = amend->clip_norm;
    m->workers_min = amend->workers_min;
    m->workers_max = amend->workers_max;
    m->freeze = (char **)(uintptr_t)amend->freeze; // protobuf-c lacks the const
    m->n_freeze = amend->freeze_count;
    m->unfreeze = (char **)(uintptr_t)amend->unfreeze;
    m->n_unfreeze = amend->unfreeze_count;
    m->freeze_tensors = (char **)(uintptr_t)amend->freeze_tensors;
    m->n_freeze_tensors = amend->freeze_tensor_count;
    m->unfreeze_tensors = (char **)(uintptr_t)amend->unfreeze_tensors;
    m->n_unfreeze_tensors = amend->unfreeze_tensor_count;
    m->set_snapshots = amend->set_snapshots;
    m->snapshot_every = amend->snapshot_every;
    m->snapshot_keep = amend->snapshot_keep;
    fill_snapshot_rules(m, amend);
    m->set_shard_loss = amend->set_shard_loss;
    m->on_shard_loss = (uint32_t)amend->on_shard_loss;
    m->shard_loss_wait_s = amend->shard_loss_wait_s;
    m->set_worker_loss = amend->set_worker_loss;
    m->on_worker_loss = (uint32_t)amend->on_worker_loss;
    m->worker_loss_wait_s = amend->worker_loss_wait_s;
    cairn_status status = add_groups(words, amend);
    if (status == CAIRN_OK) status = add_tensors(words, amend);
    if (status == CAIRN_OK) status = add_ties(words, amend);
    if (status == CAIRN_OK) status = add_thaw_groups(words, amend);
    if (status == CAIRN_OK) status = add_settings(words, amend);
    if (status != CAIRN_OK || cairn__job_amend__get_packed_size(m) <= AMEND_BYTES_MAX)
        return status;
    return cairn_client_fail(
        CAIRN_ERR_INVALID, "the amendment is over %d bytes: amend less at a time", AMEND_BYTES_MAX);
}

static bool reserves_nothing(const struct cairn_amend *amend)
{
    return cairn_struct_is_zero(amend->reserved, sizeof amend->reserved) &&
           cairn_struct_is_zero(amend->reserved_losses, sizeof amend->reserved_losses) &&
           cairn_struct_is_zero(amend->reserved_rules, sizeof amend->reserved_rules) &&
           cairn_struct_is_zero(amend->reserved_settings, sizeof amend->reserved_settings);
}

cairn_status cairn_job_amend(cairn_job *handle, const struct cairn_amend *amend, int timeout_ms)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    struct words words = { .message = CAIRN__JOB_AMEND__INIT };
    struct cairn_amend own;
    cairn_spec_init(&words.added);
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK &&
        (timeout_ms < 0 || !cairn_struct_take(&own, sizeof own, LEAST, amend)))
        status = cairn_client_fail(
            CAIRN_ERR_INVALID,
            "amend must be given with its struct_size (%zu), timeout_ms be 0 or more", sizeof own);
    if (status == CAIRN_OK && !reserves_nothing(&own))
        status = cairn_client_fail(CAIRN_ERR_INVALID, "amend: what is reserved is not 0");
    if (status == CAIRN_OK && job->member.role != CAIRN_WORKER)
        status = cairn_client_fail(CAIRN_ERR_REFUSED, "a reader does not amend a job");
    if (status == CAIRN_OK) status = judge(&own);
    if (status == CAIRN_OK) status = fill(&words, &own);
    if (status == CAIRN_OK)
        status = cairn_ask(job, CAIRN_MSG_JOB_AMEND, &words.message.base, CAIRN_MSG_JOB_AMENDED,
                           cairn_api_deadline(timeout_ms), NULL);
    if (status == CAIRN_OK && own.set_clip_norm) // before the round that goes by it
        cairn_job_note_clip_norm(job, own.clip_norm);
    release(&words);
    return cairn_api_leave(handle, status);
}

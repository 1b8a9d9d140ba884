/* Changes a copy of a job's spec as an amendment, or the making of a job from a snapshot, asks. Nothing here
 * knows of a job's state, its store or its shards. */
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"

/* ==== settings ==== */

/* Refuses a setting that no amendment changes. Names the way to change the setting, if there is one. */
static cairn_status refuse_setting(const struct job_spec_data *spec, const Cairn__Setting *setting,
                                   enum spec_change change, struct sentence *why)
{
    if (change == CAIRN_SPEC_NEVER)
        return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                         "%s says how job %s began, and does not change", setting->key, spec->name);
    return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                     "%s of job %s changes only in a job made from its snapshot, moments and step "
                     "included: `cairn snapshot create %s --wait`, then `cairn job create %s "
                     "--from %s/latest --set %s=%s` (under another name it begins beside this one)",
                     setting->key, spec->name, spec->name, spec->name, spec->name, setting->key,
                     setting->value);
}

static cairn_status apply_one(struct job_spec_data *next, const Cairn__Setting *setting,
                              enum settings_purpose purpose, bool *reopens_out,
                              struct sentence *why)
{
    enum spec_change change;
    CAIRN_TRY(spec_set(next, setting->key, setting->value, &change, why));
    const bool is_refused = change == CAIRN_SPEC_NEVER ||
                            (change == CAIRN_SPEC_CREATED && purpose == CAIRN_SETTINGS_AMEND);
    if (is_refused) return refuse_setting(next, setting, change, why);
    *reopens_out |= change != CAIRN_SPEC_NEXT_ROUND;
    return CAIRN_OK;
}

cairn_status coord_settings_apply(struct job_spec_data *next, Cairn__Setting *const *settings,
                                  size_t count, enum settings_purpose purpose, bool *reopens_out,
                                  struct sentence *why)
{
    if (count == 0) return CAIRN_OK;
    if (count > CAIRN_SETTINGS_SENT_MAX)
        return fail_with(why, CAIRN_ERR_INVALID, "%zu settings; allowed: at most %d", count,
                         CAIRN_SETTINGS_MAX);
    for (size_t i = 0; i < count; i++)
        CAIRN_TRY(apply_one(next, settings[i], purpose, reopens_out, why));
    spec_canonicalize(next);
    return CAIRN_OK;
}

/* Refuses a setting that the optimizer would ignore. A worker's spec with such a setting is refused
 * likewise. */
static cairn_status judge_unused(const struct group_spec *was, const struct group_spec *now,
                                 struct sentence *why)
{
    const char *field = "";
    if (group_spec_unused(now, &field) == CAIRN_OK) return CAIRN_OK;
    const struct spec_field *row = spec_field_find(&group_fields, field, strlen(field));
    if (row == NULL || spec_field_number(row, was) == spec_field_number(row, now)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "group %s: %s has no effect with optimizer %s; allowed: its old value",
                     now->name, field, now->optimizer);
}

static cairn_status judge_group(const struct group_spec *was, const struct group_spec *now,
                                enum settings_purpose purpose, struct sentence *why)
{
    struct group_hyper a, b;
    const char *field = "";
    CAIRN_TRY(judge_unused(was, now, why));
    cairn_status status = group_hyper_of_spec(was, &a, &field);
    if (status == CAIRN_OK) status = group_hyper_of_spec(now, &b, &field);
    if (status != CAIRN_OK)
        return fail_with(why, status, "group %s: %s is not valid", now->name, field);
    const bool was_driven = was->schedule.kind == CAIRN_SCHEDULE_DRIVEN;
    if (was_driven != (now->schedule.kind == CAIRN_SCHEDULE_DRIVEN))
        return fail_with(why, CAIRN_ERR_UNSUPPORTED, "group %s %s; an amendment cannot change that",
                         now->name,
                         was_driven ? "is driven: its learning rate comes with the commits"
                                    : "is not driven: its schedule is the servers'");
    // A job made from a snapshot may gain an average, which begins with the parameters.
    const uint32_t gained = purpose == CAIRN_SETTINGS_AMEND ? 0 : 1u << CAIRN_PLANE_EMA;
    if ((optimizer_planes(&a) | gained) == (optimizer_planes(&b) | gained) &&
        (a.ema == 0 || b.ema > 0))
        return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                     "group %s: with these hyper-parameters %s keeps other state than before "
                     "(momentum 0 and ema 0 keep none); an amendment cannot change that",
                     now->name, now->optimizer);
}

cairn_status coord_settings_judge_planes(const struct job_spec_data *was,
                                         const struct job_spec_data *next,
                                         enum settings_purpose purpose, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < next->group_count && status == CAIRN_OK; i++)
        status = judge_group(&was->groups[i], &next->groups[i], purpose, why);
    return status;
}

static bool same_loss_scale(const struct job_spec_data *a, const struct job_spec_data *b)
{
    return a->loss_scale == b->loss_scale && a->loss_scale_policy == b->loss_scale_policy &&
           a->loss_scale_growth_steps == b->loss_scale_growth_steps &&
           a->loss_scale_min == b->loss_scale_min && a->loss_scale_max == b->loss_scale_max;
}

cairn_status coord_settings_payload(const struct job_spec_data *was,
                                    const struct job_spec_data *next, struct decision *last,
                                    uint8_t **owned_out, struct sentence *why)
{
    struct payload head;
    *owned_out = NULL;
    if (last->payload_bytes == 0) return CAIRN_OK;
    if (payload_decode(last->payload, last->payload_bytes, &head) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_PROTOCOL, "the payload of the last decision is invalid");
    if (head.state_bytes > next->client_state_max)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "client_state_max is %u, and the trainer's state that belongs to this "
                         "version has %zu bytes; allowed: that or more",
                         next->client_state_max, head.state_bytes);
    if (same_loss_scale(was, next)) return CAIRN_OK;
    uint8_t *copy = malloc(last->payload_bytes);
    if (copy == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the job's state");
    memcpy(copy, last->payload, last->payload_bytes);
    payload_set_loss_scale(copy, next->loss_scale);
    last->payload = *owned_out = copy;
    return CAIRN_OK;
}

/* ==== tensors ==== */

/* An amendment is applied to tensors in the order add, tie, freeze, unfreeze. */

static cairn_status find_tensor(const struct job_spec_data *spec, const char *name,
                                size_t *tensor_out, struct sentence *why)
{
    *tensor_out = spec_find_tensor(spec, name);
    if (*tensor_out != SIZE_MAX) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NOT_FOUND, "job %s has no tensor \"%.128s\"", spec->name, name);
}

/* ---- add ---- */

static cairn_status add_one(struct job_spec_data *next, const Cairn__TensorSpec *message,
                            struct sentence *why)
{
    struct tensor_spec tensor;
    struct cairn_box box;
    CAIRN_TRY(tensor_of_message(message, &tensor, &box, why));
    if (tensor.alias_of != NULL)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "tensor \"%.128s\": an alias cannot be added; add a tensor, and tie it",
                         tensor.name);
    if (tensor.init.kind == CAIRN_INIT_NONE)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "tensor \"%.128s\": a tensor added to a job that trains begins by its "
                         "initializer; init is 0 (none), allowed: any other",
                         tensor.name);
    if (tensor.steps_missed != 0)
        return fail_with(
            why, CAIRN_ERR_INVALID,
            "tensor \"%.128s\": an added tensor has had no update; steps_missed, allowed: 0",
            tensor.name);
    tensor.frozen = false;
    tensor.order = 0; // the given order counts within this list, not within the job's tensors
    cairn_status status = spec_add_tensor(next, &tensor);
    if (status == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, status, "tensor \"%.128s\": %s", tensor.name, status_text((int)status));
}

static cairn_status add_tensors(struct job_spec_data *next, const Cairn__JobAmend *amend,
                                struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < amend->n_add && status == CAIRN_OK; i++)
        status = add_one(next, amend->add[i], why);
    if (status != CAIRN_OK || amend->n_add == 0) return status;
    spec_canonicalize(next); // sorts the tensors, so that equal names are neighbours
    for (size_t i = 1; i < next->tensor_count; i++) {
        if (strcmp(next->tensors[i - 1].name, next->tensors[i].name) == 0)
            return fail_with(why, CAIRN_ERR_EXISTS, "job %s has a tensor \"%.128s\" already",
                             next->name, next->tensors[i].name);
    }
    return CAIRN_OK;
}

/* ---- tie ---- */

static cairn_status judge_tie(const struct tensor_spec *t, const struct tensor_spec *target,
                              struct sentence *why)
{
    if (t->alias_of != NULL)
        return fail_with(why, CAIRN_ERR_INVALID, "tensor %s is an alias of %s already", t->name,
                         t->alias_of);
    if (target->alias_of != NULL || target == t)
        return fail_with(why, CAIRN_ERR_INVALID, "tensor %s: it cannot be tied to %s, which is %s",
                         t->name, target->name, target == t ? "itself" : "an alias");
    if (!(t->shape.rank == target->shape.rank &&
          memcmp(t->shape.dim, target->shape.dim, t->shape.rank * sizeof *t->shape.dim) == 0) ||
        t->kind != target->kind)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "tensor %s: it cannot be tied to %s, which has another shape or kind",
                         t->name, target->name);
    if (t->wire != target->wire)
        return fail_with(
            why, CAIRN_ERR_INVALID,
            "tensor %s: its wire dtype is %s, but %s has %s: an alias has the dtype of its target",
            t->name, dtype_label((int)t->wire), target->name, dtype_label((int)target->wire));
    return CAIRN_OK;
}

/* Gives `t` the fields that a client gives an alias (client/spec.c). */
static cairn_status make_alias(struct tensor_spec *t, const char *target, struct sentence *why)
{
    char *alias_of = strdup(target);
    if (alias_of == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for an alias");
    t->alias_of = alias_of;
    t->group[0] = '\0';
    t->kind = CAIRN_FROZEN;
    t->shape = (struct shape) { .rank = 1 };
    t->frozen = false;
    t->init = (struct cairn_init) { .kind = CAIRN_INIT_NONE };
    return CAIRN_OK;
}

static cairn_status tie_tensors(struct job_spec_data *next, const Cairn__JobAmend *amend,
                                struct sentence *why)
{
    for (size_t i = 0; i < amend->n_ties; i++) {
        size_t tensor, target;
        cairn_status status = find_tensor(next, amend->ties[i]->name, &tensor, why);
        if (status == CAIRN_OK) status = find_tensor(next, amend->ties[i]->alias_of, &target, why);
        if (status == CAIRN_OK)
            status = judge_tie(&next->tensors[tensor], &next->tensors[target], why);
        if (status == CAIRN_OK)
            status = make_alias(&next->tensors[tensor], next->tensors[target].name, why);
        if (status != CAIRN_OK) return status;
    }
    return CAIRN_OK;
}

/* ---- freeze, unfreeze ---- */

static cairn_status freeze_tensors(struct job_spec_data *next, const Cairn__JobAmend *amend,
                                   struct sentence *why)
{
    for (size_t i = 0; i < amend->n_freeze_tensors; i++) {
        size_t tensor;
        CAIRN_TRY(find_tensor(next, amend->freeze_tensors[i], &tensor, why));
        struct tensor_spec *t = &next->tensors[tensor];
        if (t->alias_of != NULL)
            return fail_with(why, CAIRN_ERR_INVALID,
                             "tensor %s is an alias of %s: freeze that one instead", t->name,
                             t->alias_of);
        if (t->kind != CAIRN_TRAINED)
            return fail_with(why, CAIRN_ERR_INVALID,
                             "tensor %s is not trained: there is nothing to freeze", t->name);
        t->frozen = true;
    }
    return CAIRN_OK;
}

/* Chooses the group of a tensor that is trained from now on. */
static cairn_status choose_group(const struct job_spec_data *next, const struct tensor_spec *t,
                                 const char *named, char **group_out, struct sentence *why)
{
    const char *name = named[0] != '\0'         ? named
                       : next->group_count == 1 ? next->groups[0].name
                                                : "default";
    if (spec_find_group(next, name) == SIZE_MAX)
        return fail_with(why, CAIRN_ERR_NOT_FOUND,
                         "tensor %s: job %s has no group \"%.128s\" that it could join", t->name,
                         next->name, name);
    *group_out = strdup(name);
    return *group_out != NULL ? CAIRN_OK
                              : fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a group");
}

static cairn_status thaw_tensor(struct job_spec_data *next, struct tensor_spec *t,
                                const char *named, struct sentence *why)
{
    char *group;
    if (t->alias_of != NULL || t->kind != CAIRN_FROZEN)
        return fail_with(why, CAIRN_ERR_INVALID, "tensor %s is %s: there is nothing to unfreeze",
                         t->name, t->alias_of != NULL ? "an alias" : "a buffer");
    CAIRN_TRY(choose_group(next, t, named, &group, why));
    free(t->group);
    t->group = group;
    t->kind = CAIRN_TRAINED;
    return CAIRN_OK;
}

static cairn_status unfreeze_tensors(struct job_spec_data *next, const Cairn__JobAmend *amend,
                                     bool *thaws_out, struct sentence *why)
{
    for (size_t i = 0; i < amend->n_unfreeze_tensors; i++) {
        size_t tensor;
        CAIRN_TRY(find_tensor(next, amend->unfreeze_tensors[i], &tensor, why));
        struct tensor_spec *t = &next->tensors[tensor];
        t->frozen = false;
        if (t->kind == CAIRN_TRAINED) continue;
        CAIRN_TRY(thaw_tensor(next, t,
                              i < amend->n_unfreeze_groups ? amend->unfreeze_groups[i] : "", why));
        *thaws_out = true;
    }
    return CAIRN_OK;
}

/* Applies what the amendment says about tensors to a copy of the job's spec. Afterwards the copy is
 * canonical, but not judged. *extends_out: true if tensors get planes or lose them, so that the
 * shards have to make a new generation. */
static cairn_status amend_tensors(struct job_spec_data *next, const Cairn__JobAmend *amend,
                                  bool *extends_out, struct sentence *why)
{
    *extends_out = amend->n_add > 0 || amend->n_ties > 0;
    cairn_status status = add_tensors(next, amend, why);
    if (status == CAIRN_OK) status = tie_tensors(next, amend, why);
    if (status == CAIRN_OK) status = freeze_tensors(next, amend, why);
    if (status == CAIRN_OK) status = unfreeze_tensors(next, amend, extends_out, why);
    return status;
}

/* ==== the amendment ==== */

static cairn_status find_group(const struct job_spec_data *spec, const char *name,
                               size_t *group_out, struct sentence *why)
{
    *group_out = spec_find_group(spec, name);
    if (*group_out != SIZE_MAX) return CAIRN_OK;
    const size_t tensor = spec_find_tensor(spec, name);
    if (tensor == SIZE_MAX)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "job %s has no group \"%.128s\"", spec->name,
                         name);
    return fail_with(why, CAIRN_ERR_NOT_FOUND,
                     "\"%.128s\" is no group, but a tensor of group \"%.128s\": name it in "
                     "freeze_tensors or unfreeze_tensors",
                     name, spec->tensors[tensor].group);
}

static cairn_status set_group(struct job_spec_data *spec, const Cairn__GroupSpec *message,
                              struct sentence *why)
{
    struct group_spec from;
    size_t group;
    cairn_status status = group_of_message(message, &from);
    if (status != CAIRN_OK)
        return fail_with(why, status, "group \"%.128s\": too many points", message->name);
    CAIRN_TRY(find_group(spec, message->name, &group, why));
    if (strcmp(from.optimizer, spec->groups[group].optimizer) != 0)
        return fail_with(
            why, CAIRN_ERR_UNSUPPORTED,
            "group %s: optimizer is \"%.64s\"; an amendment cannot change it, allowed: \"%s\"",
            message->name, from.optimizer, spec->groups[group].optimizer);
    return spec_set_group(spec, group, &from);
}

static cairn_status set_frozen(struct job_spec_data *spec, char *const *names, size_t count,
                               bool frozen, struct sentence *why)
{
    for (size_t i = 0; i < count; i++) {
        size_t group;
        CAIRN_TRY(find_group(spec, names[i], &group, why));
        spec->groups[group].frozen = frozen;
    }
    return CAIRN_OK;
}

/* Also notes the hash that the spec has without the initializers of the added tensors. A worker
 * that attaches later does not need these initializers, and its spec may leave them out. */
static cairn_status add_plain_former(struct job_spec_data *next, const Cairn__JobAmend *amend)
{
    struct job_spec_data plain;
    uint8_t hash[32];
    if (amend->n_add == 0) return CAIRN_OK;
    CAIRN_TRY(spec_copy(next, &plain));
    for (size_t i = 0; i < amend->n_add; i++) {
        const size_t tensor = spec_find_tensor(&plain, amend->add[i]->name);
        plain.tensors[tensor].init = (struct cairn_init) { .kind = CAIRN_INIT_NONE };
    }
    cairn_status status = spec_hash(&plain, hash);
    spec_release(&plain);
    return status == CAIRN_OK ? spec_add_former(next, hash) : status;
}

cairn_status coord_spec_amend(struct job_spec_data *next, const Cairn__JobAmend *amend,
                              bool *extends_out, struct sentence *why)
{
    cairn_status status = spec_note_former(next);
    if (status != CAIRN_OK) return fail_with(why, status, "out of memory for the amended spec");
    for (size_t i = 0; i < amend->n_groups && status == CAIRN_OK; i++)
        status = set_group(next, amend->groups[i], why);
    if (status == CAIRN_OK) status = set_frozen(next, amend->freeze, amend->n_freeze, true, why);
    if (status == CAIRN_OK)
        status = set_frozen(next, amend->unfreeze, amend->n_unfreeze, false, why);
    if (status == CAIRN_OK) status = amend_tensors(next, amend, extends_out, why);
    if (status == CAIRN_OK)
        status = coord_settings_apply(next, amend->settings, amend->n_settings,
                                      CAIRN_SETTINGS_AMEND, extends_out, why);
    if (status != CAIRN_OK) return status;
    next->revision++;
    next->amend_key = amend->key;
    status = add_plain_former(next, amend);
    if (status != CAIRN_OK) return fail_with(why, status, "out of memory for the amended spec");
    status = spec_check(next, optimizer_names(), why);
    return status == CAIRN_OK ? spec_check_usable(next, why) : status;
}

/* Applies the tensor part of an amendment to a spec: add, tie, freeze, unfreeze, in this order. */
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/job/amend.h"

static cairn_status find_tensor(const struct cairn_job_spec_data *spec, const char *name,
                                size_t *tensor_out, struct cairn_sentence *why)
{
    *tensor_out = cairn_spec_find_tensor(spec, name);
    if (*tensor_out != SIZE_MAX) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "job %s has no tensor \"%.128s\"", spec->name,
                      name);
}

/* ---- add ---- */

static cairn_status add_one(struct cairn_job_spec_data *next, const Cairn__TensorSpec *message,
                            struct cairn_sentence *why)
{
    struct cairn_tensor_spec tensor;
    struct cairn_box box;
    cairn_status status = cairn_tensor_of_message(message, &tensor, &box, why);
    if (status != CAIRN_OK) return status;
    if (tensor.alias_of != NULL)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "tensor \"%.128s\": what is added is no alias; add it, and tie it",
                          tensor.name);
    if (tensor.init.kind == CAIRN_INIT_NONE)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "tensor \"%.128s\": what is added to a job that trains begins by its "
                          "initializer; init is 0 (none), allowed: any other",
                          tensor.name);
    if (tensor.steps_missed != 0)
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "tensor \"%.128s\": what is added has had no update; steps_missed, allowed: 0",
            tensor.name);
    tensor.frozen = false;
    tensor.order = 0; // of this list, not of the job's
    status = cairn_spec_add_tensor(next, &tensor);
    if (status == CAIRN_OK) return CAIRN_OK;
    return cairn_fail(why, status, "tensor \"%.128s\": %s", tensor.name,
                      cairn_status_text((int)status));
}

static cairn_status add(struct cairn_job_spec_data *next, const Cairn__JobAmend *amend,
                        struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < amend->n_add && status == CAIRN_OK; i++)
        status = add_one(next, amend->add[i], why);
    if (status != CAIRN_OK || amend->n_add == 0) return status;
    cairn_spec_canonicalize(next); // once: what is there twice are neighbours then
    for (size_t i = 1; i < next->tensor_count; i++) {
        if (strcmp(next->tensors[i - 1].name, next->tensors[i].name) == 0)
            return cairn_fail(why, CAIRN_ERR_EXISTS, "job %s has a tensor \"%.128s\" already",
                              next->name, next->tensors[i].name);
    }
    return CAIRN_OK;
}

/* ---- tie ---- */

static bool same_shape(const struct cairn_shape *a, const struct cairn_shape *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, a->rank * sizeof *a->dim) == 0;
}

static cairn_status judge_tie(const struct cairn_tensor_spec *t,
                              const struct cairn_tensor_spec *target, struct cairn_sentence *why)
{
    if (t->alias_of != NULL)
        return cairn_fail(why, CAIRN_ERR_INVALID, "tensor %s is an alias of %s already", t->name,
                          t->alias_of);
    if (target->alias_of != NULL || target == t)
        return cairn_fail(why, CAIRN_ERR_INVALID, "tensor %s: it cannot be tied to %s, which is %s",
                          t->name, target->name, target == t ? "itself" : "an alias");
    if (!same_shape(&t->shape, &target->shape) || t->kind != target->kind)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "tensor %s: it cannot be tied to %s, which has another shape or kind",
                          t->name, target->name);
    if (t->wire != target->wire)
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "tensor %s: its wire dtype is %s, that of %s is %s: an alias has that of its target",
            t->name, cairn_dtype_name((int)t->wire), target->name,
            cairn_dtype_name((int)target->wire));
    return CAIRN_OK;
}

/* As a client says it of an alias (client/base/spec.c). */
static cairn_status make_alias(struct cairn_tensor_spec *t, const char *target,
                               struct cairn_sentence *why)
{
    char *alias_of = strdup(target);
    if (alias_of == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for an alias");
    t->alias_of = alias_of;
    t->group[0] = '\0';
    t->kind = CAIRN_FROZEN;
    t->shape = (struct cairn_shape) { .rank = 1 };
    t->frozen = false;
    t->init = (struct cairn_init) { .kind = CAIRN_INIT_NONE };
    return CAIRN_OK;
}

static cairn_status tie(struct cairn_job_spec_data *next, const Cairn__JobAmend *amend,
                        struct cairn_sentence *why)
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

static cairn_status freeze(struct cairn_job_spec_data *next, const Cairn__JobAmend *amend,
                           struct cairn_sentence *why)
{
    for (size_t i = 0; i < amend->n_freeze_tensors; i++) {
        size_t tensor;
        const cairn_status status = find_tensor(next, amend->freeze_tensors[i], &tensor, why);
        if (status != CAIRN_OK) return status;
        struct cairn_tensor_spec *t = &next->tensors[tensor];
        if (t->alias_of != NULL)
            return cairn_fail(why, CAIRN_ERR_INVALID,
                              "tensor %s is an alias of %s: freeze that, or nothing", t->name,
                              t->alias_of);
        if (t->kind != CAIRN_TRAINED)
            return cairn_fail(why, CAIRN_ERR_INVALID,
                              "tensor %s is not trained: there is nothing to freeze", t->name);
        t->frozen = true;
    }
    return CAIRN_OK;
}

/* The group that a tensor joins which is trained from now on. */
static cairn_status choose_group(const struct cairn_job_spec_data *next,
                                 const struct cairn_tensor_spec *t, const char *named,
                                 char **group_out, struct cairn_sentence *why)
{
    const char *name = named[0] != '\0'         ? named
                       : next->group_count == 1 ? next->groups[0].name
                                                : "default";
    if (cairn_spec_find_group(next, name) == SIZE_MAX)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND,
                          "tensor %s: job %s has no group \"%.128s\" that it could join", t->name,
                          next->name, name);
    *group_out = strdup(name);
    return *group_out != NULL ? CAIRN_OK
                              : cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a group");
}

static cairn_status thaw(struct cairn_job_spec_data *next, struct cairn_tensor_spec *t,
                         const char *named, struct cairn_sentence *why)
{
    char *group;
    if (t->alias_of != NULL || t->kind != CAIRN_FROZEN)
        return cairn_fail(why, CAIRN_ERR_INVALID, "tensor %s is %s: there is nothing to unfreeze",
                          t->name, t->alias_of != NULL ? "an alias" : "a buffer");
    const cairn_status status = choose_group(next, t, named, &group, why);
    if (status != CAIRN_OK) return status;
    free(t->group);
    t->group = group;
    t->kind = CAIRN_TRAINED;
    return CAIRN_OK;
}

static cairn_status unfreeze(struct cairn_job_spec_data *next, const Cairn__JobAmend *amend,
                             bool *thaws_out, struct cairn_sentence *why)
{
    for (size_t i = 0; i < amend->n_unfreeze_tensors; i++) {
        size_t tensor;
        cairn_status status = find_tensor(next, amend->unfreeze_tensors[i], &tensor, why);
        if (status != CAIRN_OK) return status;
        struct cairn_tensor_spec *t = &next->tensors[tensor];
        t->frozen = false;
        if (t->kind == CAIRN_TRAINED) continue;
        status = thaw(next, t, i < amend->n_unfreeze_groups ? amend->unfreeze_groups[i] : "", why);
        if (status != CAIRN_OK) return status;
        *thaws_out = true;
    }
    return CAIRN_OK;
}

cairn_status cairn_cluster_amend_tensors(struct cairn_job_spec_data *next,
                                         const Cairn__JobAmend *amend, bool *extends_out,
                                         struct cairn_sentence *why)
{
    *extends_out = amend->n_add > 0 || amend->n_ties > 0;
    cairn_status status = add(next, amend, why);
    if (status == CAIRN_OK) status = tie(next, amend, why);
    if (status == CAIRN_OK) status = freeze(next, amend, why);
    if (status == CAIRN_OK) status = unfreeze(next, amend, extends_out, why);
    return status;
}

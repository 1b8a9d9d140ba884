/* Judging names of tensors against each other: twice the same, and aliases. */
#include "proto/spec/spec_names.h"

#include <stdlib.h>
#include <string.h>

#include "proto/spec/capability.h"

static int tensor_order(const void *a, const void *b)
{
    const struct cairn_tensor_spec *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static cairn_status refuse_alias(const struct cairn_tensor_spec *t, const char *what,
                                 struct cairn_sentence *why)
{
    return cairn_fail(why, CAIRN_ERR_INVALID, "tensor \"%s\": alias_of names %s", t->name, what);
}

/* Extents of at least 1, none past the end; nothing overflows. */
static bool box_inside(const struct cairn_box *box, const struct cairn_shape *shape)
{
    if (box->rank != shape->rank) return false;
    for (uint32_t d = 0; d < shape->rank; d++) {
        if (box->start[d] > shape->dim[d] || box->extent[d] == 0) return false;
        if (box->extent[d] > shape->dim[d] - box->start[d]) return false;
    }
    return true;
}

static cairn_status check_alias(const struct cairn_tensor_spec *t,
                                const struct cairn_tensor_spec *target, struct cairn_sentence *why)
{
    if (target == NULL) return refuse_alias(t, "no tensor of the job", why);
    if (target->alias_of != NULL)
        return refuse_alias(t, "an alias; name the tensor that that one stands for", why);
    const struct cairn_refusal *refused = cairn_combination_refused(CAIRN_COMBINATION_OF_TARGET,
                                                                    target);
    if (refused != NULL) return refuse_alias(t, refused->why, why);
    if (t->kind != CAIRN_FROZEN || t->shape.rank != 1 || t->shape.dim[0] != 0)
        return refuse_alias(t, "a tensor, but it has a kind or a shape of its own", why);
    if (t->wire != target->wire)
        return refuse_alias(t, "a tensor of another wire dtype; they are one tensor", why);
    if (t->init.kind != CAIRN_INIT_NONE)
        return refuse_alias(t, "a tensor, so it has no init of its own; give that one the init",
                            why);
    if (t->alias_box != NULL && !box_inside(t->alias_box, &target->shape))
        return refuse_alias(
            t, "a tensor that alias_box does not lie inside of, or alias_box is empty", why);
    return CAIRN_OK;
}

static cairn_status check_sorted(const struct cairn_tensor_spec *const *sorted, size_t count,
                                 struct cairn_sentence *why)
{
    for (size_t i = 1; i < count; i++) {
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) != 0) continue;
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "two tensors have the name \"%s\"; names are unique in a job",
                          sorted[i]->name);
    }
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < count && status == CAIRN_OK; i++) {
        const struct cairn_tensor_spec *t = sorted[i];
        if (t->alias_of == NULL && t->alias_box != NULL) {
            return cairn_fail(why, CAIRN_ERR_INVALID,
                              "tensor \"%s\": it has an alias_box but no alias_of", t->name);
        }
        if (t->alias_of == NULL) continue;
        const struct cairn_tensor_spec key = { .name = t->alias_of }, *key_at = &key;
        const struct cairn_tensor_spec *const *target = bsearch(&key_at, sorted, count,
                                                                sizeof *sorted, tensor_order);
        status = check_alias(t, target != NULL ? *target : NULL, why);
    }
    return status;
}

cairn_status cairn_spec_check_names(const struct cairn_job_spec_data *spec,
                                    struct cairn_sentence *why)
{
    const size_t count = spec->tensor_count;
    const struct cairn_tensor_spec **sorted = calloc(count, sizeof *sorted);
    if (sorted == NULL) return CAIRN_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++) sorted[i] = &spec->tensors[i];
    qsort(sorted, count, sizeof *sorted, tensor_order);
    const cairn_status status = check_sorted(sorted, count, why);
    free(sorted);
    return status;
}

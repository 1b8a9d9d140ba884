/* A job spec as a protobuf message and back. */
#include <stdlib.h>
#include <string.h>

#include "proto/wire/messages.h"

/* The protobuf side of a spec: borrows the spec's strings, owns the arrays. */
struct packing {
    Cairn__JobSpec message;
    Cairn__TensorSpec *tensors;
    Cairn__GroupSpec *groups;
    uint64_t *shapes; /* [tensor_count][CAIRN_RANK_MAX] */
};

static void packing_release(struct packing *p)
{
    free(p->tensors);
    free(p->groups);
    free(p->shapes);
    free(p->message.tensors);
    free(p->message.groups);
}

static cairn_status packing_alloc(struct packing *p, const struct cairn_job_spec_data *spec)
{
    // calloc of 0 may give NULL: ask for one more.
    p->tensors = calloc(spec->tensor_count + 1, sizeof *p->tensors);
    p->groups = calloc(spec->group_count + 1, sizeof *p->groups);
    p->shapes = calloc(spec->tensor_count + 1, CAIRN_RANK_MAX * sizeof *p->shapes);
    p->message.tensors = calloc(spec->tensor_count + 1, sizeof *p->message.tensors);
    p->message.groups = calloc(spec->group_count + 1, sizeof *p->message.groups);
    if (p->tensors != NULL && p->groups != NULL && p->shapes != NULL &&
        p->message.tensors != NULL && p->message.groups != NULL)
        return CAIRN_OK;
    packing_release(p);
    return CAIRN_ERR_NO_MEMORY;
}

static void pack_tensor(struct packing *p, const struct cairn_tensor_spec *tensor, size_t i)
{
    Cairn__TensorSpec *out = &p->tensors[i];
    cairn__tensor_spec__init(out);
    out->name = tensor->name;
    out->unit = tensor->unit;
    out->group = tensor->group;
    out->kind = tensor->kind;
    out->wire = tensor->wire;
    out->reduce = tensor->reduce;
    out->master = tensor->master;
    out->whole = tensor->whole;
    out->n_shape = tensor->shape.rank;
    out->shape = p->shapes + i * CAIRN_RANK_MAX;
    memcpy(out->shape, tensor->shape.dim, sizeof tensor->shape.dim);
    p->message.tensors[i] = out;
}

static void pack_group(struct packing *p, const struct cairn_group_spec *group, size_t i)
{
    Cairn__GroupSpec *out = &p->groups[i];
    cairn_group_to_message(group, out);
    p->message.groups[i] = out;
}

void cairn_group_to_message(const struct cairn_group_spec *group, Cairn__GroupSpec *out)
{
    cairn__group_spec__init(out);
    out->name = group->name;
    out->optimizer = group->optimizer;
    out->lr = group->lr;
    out->beta1 = group->beta1;
    out->beta2 = group->beta2;
    out->eps = group->eps;
    out->weight_decay = group->weight_decay;
    out->momentum = group->momentum;
    out->nesterov = group->nesterov;
}

static void pack_job(struct packing *p, const struct cairn_job_spec_data *spec)
{
    Cairn__JobSpec *out = &p->message;
    out->name = spec->name;
    out->n_tensors = spec->tensor_count;
    out->n_groups = spec->group_count;
    out->clip_norm = spec->clip_norm;
    out->loss_scale = spec->loss_scale;
    out->on_nonfinite = spec->on_nonfinite;
    out->stage = spec->stage;
    out->workers_min = spec->workers_min;
    out->chunk_leaves = spec->chunk_leaves;
    out->spread = spec->spread;
    out->window = spec->window;
    out->revision = spec->revision;
}

cairn_status cairn_spec_pack(const struct cairn_job_spec_data *spec, uint8_t **bytes_out,
                             size_t *bytes_len_out)
{
    struct packing p = { .message = CAIRN__JOB_SPEC__INIT };
    cairn_status status = packing_alloc(&p, spec);
    if (status != CAIRN_OK) return status;
    for (size_t i = 0; i < spec->tensor_count; i++) pack_tensor(&p, &spec->tensors[i], i);
    for (size_t i = 0; i < spec->group_count; i++) pack_group(&p, &spec->groups[i], i);
    pack_job(&p, spec);
    const size_t len = cairn__job_spec__get_packed_size(&p.message);
    uint8_t *bytes = malloc(len + 1);
    if (bytes == NULL) {
        packing_release(&p);
        return CAIRN_ERR_NO_MEMORY;
    }
    cairn__job_spec__pack(&p.message, bytes);
    packing_release(&p);
    *bytes_out = bytes;
    *bytes_len_out = len;
    return CAIRN_OK;
}

static cairn_status unpack_tensor(const Cairn__TensorSpec *in, struct cairn_job_spec_data *spec,
                                  struct cairn_sentence *why)
{
    if (in->n_shape > CAIRN_RANK_MAX) {
        cairn_sentence_set(why, "tensor %.80s has %zu dimensions; at most %d are allowed", in->name,
                           in->n_shape, CAIRN_RANK_MAX);
        return CAIRN_ERR_INVALID;
    }
    struct cairn_tensor_spec tensor = {
        .name = in->name,
        .unit = in->unit,
        .group = in->group,
        .kind = (cairn_kind)in->kind,
        .wire = (cairn_dtype)in->wire,
        .reduce = (cairn_dtype)in->reduce,
        .master = (cairn_dtype)in->master,
        .shape = { .rank = (uint32_t)in->n_shape },
        .whole = in->whole,
    };
    if (in->n_shape > 0) memcpy(tensor.shape.dim, in->shape, in->n_shape * sizeof in->shape[0]);
    return cairn_spec_add_tensor(spec, &tensor);
}

static cairn_status unpack_group(const Cairn__GroupSpec *in, struct cairn_job_spec_data *spec)
{
    const struct cairn_group_spec group = {
        .name = in->name,
        .optimizer = in->optimizer,
        .lr = in->lr,
        .beta1 = in->beta1,
        .beta2 = in->beta2,
        .eps = in->eps,
        .weight_decay = in->weight_decay,
        .momentum = in->momentum,
        .nesterov = in->nesterov,
    };
    return cairn_spec_add_group(spec, &group);
}

static cairn_status unpack_job(const Cairn__JobSpec *in, struct cairn_job_spec_data *spec,
                               struct cairn_sentence *why)
{
    cairn_status status = cairn_spec_set_name(spec, in->name);
    for (size_t i = 0; status == CAIRN_OK && i < in->n_tensors; i++)
        status = unpack_tensor(in->tensors[i], spec, why);
    for (size_t i = 0; status == CAIRN_OK && i < in->n_groups; i++)
        status = unpack_group(in->groups[i], spec);
    spec->clip_norm = in->clip_norm;
    spec->loss_scale = in->loss_scale;
    spec->on_nonfinite = (cairn_nonfinite)in->on_nonfinite;
    spec->stage = in->stage;
    spec->workers_min = in->workers_min;
    spec->chunk_leaves = in->chunk_leaves;
    spec->spread = in->spread;
    spec->window = in->window;
    spec->revision = in->revision;
    return status;
}

cairn_status cairn_spec_unpack(const uint8_t *bytes, size_t bytes_len,
                               const char *const *optimizers, struct cairn_job_spec_data *spec_out,
                               struct cairn_sentence *why)
{
    cairn_sentence_set(why, "the job spec does not fit its limits or has an invalid name");
    Cairn__JobSpec *in = (Cairn__JobSpec *)cairn_message_unpack(&cairn__job_spec__descriptor, bytes,
                                                                bytes_len);
    if (in == NULL) {
        cairn_sentence_set(why, "the job spec is not a valid JobSpec message of %zu bytes",
                           bytes_len);
        return CAIRN_ERR_MALFORMED;
    }
    struct cairn_job_spec_data spec;
    cairn_spec_init(&spec);
    cairn_status status = unpack_job(in, &spec, why);
    cairn_message_free(&in->base);
    if (status == CAIRN_OK) {
        cairn_spec_canonicalize(&spec);
        status = cairn_spec_check(&spec, optimizers, why);
    }
    if (status != CAIRN_OK) {
        cairn_spec_release(&spec);
        return status;
    }
    *spec_out = spec;
    return CAIRN_OK;
}

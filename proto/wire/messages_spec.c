/* A job spec as a protobuf message and back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec_fields.h"
#include "proto/wire/messages.h"

/* The protobuf side of a spec: borrows the spec's strings, owns the arrays. */
struct packing {
    Cairn__JobSpec message;
    Cairn__TensorSpec *tensors;
    Cairn__GroupSpec *groups;
    uint64_t *boxes;             /* [aliases of a box][2 * CAIRN_RANK_MAX] */
    ProtobufCBinaryData *former; /* [former_count] */
    Cairn__SettingMade *made;    /* [made_count] */
    size_t box_count;
};

static void packing_release(struct packing *p)
{
    free(p->tensors);
    free(p->groups);
    free(p->boxes);
    free(p->former);
    free(p->made);
    free(p->message.made);
    free(p->message.tensors);
    free(p->message.groups);
}

static cairn_status packing_alloc(struct packing *p, const struct cairn_job_spec_data *spec)
{
    size_t boxes = 0;
    for (size_t i = 0; i < spec->tensor_count; i++) boxes += spec->tensors[i].alias_box != NULL;
    // calloc of 0 may give NULL: ask for one more.
    p->boxes = calloc(boxes + 1, 2 * CAIRN_RANK_MAX * sizeof *p->boxes);
    p->former = calloc(spec->former_count + 1, sizeof *p->former);
    p->made = calloc(spec->made_count + 1, sizeof *p->made);
    p->message.made = calloc(spec->made_count + 1, sizeof *p->message.made);
    p->tensors = calloc(spec->tensor_count + 1, sizeof *p->tensors);
    p->groups = calloc(spec->group_count + 1, sizeof *p->groups);
    p->message.tensors = calloc(spec->tensor_count + 1, sizeof *p->message.tensors);
    p->message.groups = calloc(spec->group_count + 1, sizeof *p->message.groups);
    if (p->boxes != NULL && p->former != NULL && p->made != NULL && p->message.made != NULL &&
        p->tensors != NULL && p->groups != NULL && p->message.tensors != NULL &&
        p->message.groups != NULL)
        return CAIRN_OK;
    packing_release(p);
    return CAIRN_ERR_NO_MEMORY;
}

static void pack_alias(struct packing *p, const struct cairn_tensor_spec *tensor,
                       Cairn__TensorSpec *out)
{
    const struct cairn_box *box = tensor->alias_box;
    if (tensor->alias_of != NULL) out->alias_of = tensor->alias_of;
    if (box == NULL) return;
    out->alias_box = p->boxes + p->box_count++ * 2 * CAIRN_RANK_MAX;
    out->n_alias_box = 2 * (size_t)box->rank;
    memcpy(out->alias_box, box->start, box->rank * sizeof box->start[0]);
    memcpy(out->alias_box + box->rank, box->extent, box->rank * sizeof box->extent[0]);
}

void cairn_tensor_to_message(const struct cairn_tensor_spec *tensor, Cairn__TensorSpec *out)
{
    cairn__tensor_spec__init(out);
    out->name = tensor->name;
    out->unit = tensor->unit;
    out->group = tensor->group;
    out->kind = tensor->kind;
    out->wire = tensor->wire;
    out->reduce = tensor->reduce;
    out->master = tensor->master;
    out->whole = tensor->whole;
    out->frozen = tensor->frozen;
    out->n_shape = tensor->shape.rank;
    out->shape = (uint64_t *)(uintptr_t)tensor->shape.dim;
    out->init = tensor->init.kind;
    out->init_a = tensor->init.a;
    out->init_b = tensor->init.b;
    out->init_seed = tensor->init.seed;
    out->steps_missed = tensor->steps_missed;
    out->order = tensor->order;
}

static void pack_tensor(struct packing *p, const struct cairn_tensor_spec *tensor, size_t i)
{
    Cairn__TensorSpec *out = &p->tensors[i];
    cairn_tensor_to_message(tensor, out);
    pack_alias(p, tensor, out);
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
    out->frozen = group->frozen;
    out->schedule = group->schedule.kind;
#define X(name, ...) out->name = group->name;
    CAIRN_GROUP_FIELDS(X)
#undef X
#define X(name, kind) out->name = group->schedule.name;
    CAIRN_SCHEDULE_FIELDS(X)
#undef X
    // A point is two words of 64 bits, step and factor, and so are two fixed64.
    _Static_assert(sizeof *group->schedule.points == 2 * sizeof *out->points, "no padding");
    out->points = (uint64_t *)(uintptr_t)group->schedule.points;
    out->n_points = 2 * group->schedule.point_count;
}

cairn_status cairn_group_of_message(const Cairn__GroupSpec *in, struct cairn_group_spec *out)
{
    if (in->n_points % 2 != 0 || in->n_points / 2 > CAIRN_SCHEDULE_POINTS_MAX)
        return CAIRN_ERR_INVALID;
    *out = (struct cairn_group_spec) {
        .name = in->name,
        .optimizer = in->optimizer,
        .frozen = in->frozen,
        .schedule = { .kind = (cairn_schedule_kind)in->schedule,
                      .points = (const struct cairn_schedule_point *)(const void *)in->points,
                      .point_count = in->n_points / 2 },
    };
#define X(name, ...) out->name = in->name;
    CAIRN_GROUP_FIELDS(X)
#undef X
#define X(name, kind) out->schedule.name = in->name;
    CAIRN_SCHEDULE_FIELDS(X)
#undef X
    return CAIRN_OK;
}

void cairn_spec_to_message(const struct cairn_job_spec_data *spec, Cairn__JobSpec *out)
{
    cairn__job_spec__init(out);
    out->name = spec->name;
    out->revision = spec->revision;
    out->amend_key = spec->amend_key;
    if (spec->init_from != NULL) out->init_from = spec->init_from;
    if (spec->init_prefix != NULL) out->init_prefix = spec->init_prefix;
#define X(name, member, ...) out->name = spec->member;
    CAIRN_SPEC_FIELDS(X)
#undef X
}

static void pack_job(struct packing *p, const struct cairn_job_spec_data *spec)
{
    Cairn__JobSpec *out = &p->message;
    Cairn__TensorSpec **tensors = out->tensors;
    Cairn__GroupSpec **groups = out->groups;
    Cairn__SettingMade **made = out->made;
    cairn_spec_to_message(spec, out);
    out->tensors = tensors;
    out->groups = groups;
    out->n_tensors = spec->tensor_count;
    out->n_groups = spec->group_count;
    for (size_t i = 0; i < spec->former_count; i++)
        p->former[i] = (ProtobufCBinaryData) { sizeof spec->former[i], spec->former[i] };
    out->former = p->former;
    out->n_former = spec->former_count;
    for (size_t i = 0; i < spec->made_count; i++) {
        cairn__setting_made__init(&p->made[i]);
        p->made[i].key = spec->made[i].key;
        p->made[i].was = spec->made[i].was;
        p->made[i].is = spec->made[i].is;
        made[i] = &p->made[i];
    }
    out->made = made;
    out->n_made = spec->made_count;
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

/* The box of an alias into *box; NULL: all of it. */
static cairn_status unpack_box(const Cairn__TensorSpec *in, struct cairn_box *box,
                               struct cairn_box **box_out)
{
    const size_t rank = in->n_alias_box / 2;
    if (in->n_alias_box % 2 != 0 || rank > CAIRN_RANK_MAX) return CAIRN_ERR_INVALID;
    *box_out = NULL;
    if (rank == 0) return CAIRN_OK;
    *box = (struct cairn_box) { .rank = (uint32_t)rank };
    memcpy(box->start, in->alias_box, rank * sizeof box->start[0]);
    memcpy(box->extent, in->alias_box + rank, rank * sizeof box->extent[0]);
    *box_out = box;
    return CAIRN_OK;
}

cairn_status cairn_tensor_of_message(const Cairn__TensorSpec *in, struct cairn_tensor_spec *out,
                                     struct cairn_box *box, struct cairn_sentence *why)
{
    if (in->n_shape > CAIRN_RANK_MAX) {
        cairn_sentence_set(why, "tensor %.80s has %zu dimensions; at most %d are allowed", in->name,
                           in->n_shape, CAIRN_RANK_MAX);
        return CAIRN_ERR_INVALID;
    }
    *out = (struct cairn_tensor_spec) {
        .name = in->name,
        .unit = in->unit,
        .group = in->group,
        .kind = (cairn_kind)in->kind,
        .wire = (cairn_dtype)in->wire,
        .reduce = (cairn_dtype)in->reduce,
        .master = (cairn_dtype)in->master,
        .shape = { .rank = (uint32_t)in->n_shape },
        .whole = in->whole,
        .frozen = in->frozen,
        .alias_of = in->alias_of[0] != '\0' ? in->alias_of : NULL,
        .init = { (cairn_init_kind)in->init, in->init_a, in->init_b, in->init_seed },
        .steps_missed = in->steps_missed,
        .order = in->order,
    };
    if (unpack_box(in, box, &out->alias_box) != CAIRN_OK) {
        cairn_sentence_set(why, "tensor %.80s: alias_box is no box", in->name);
        return CAIRN_ERR_INVALID;
    }
    if (in->n_shape > 0) memcpy(out->shape.dim, in->shape, in->n_shape * sizeof in->shape[0]);
    return CAIRN_OK;
}

static cairn_status unpack_tensor(const Cairn__TensorSpec *in, struct cairn_job_spec_data *spec,
                                  struct cairn_sentence *why)
{
    struct cairn_tensor_spec tensor;
    struct cairn_box box;
    const cairn_status status = cairn_tensor_of_message(in, &tensor, &box, why);
    return status == CAIRN_OK ? cairn_spec_add_tensor(spec, &tensor) : status;
}

static cairn_status unpack_group(const Cairn__GroupSpec *in, struct cairn_job_spec_data *spec)
{
    struct cairn_group_spec group;
    const cairn_status status = cairn_group_of_message(in, &group);
    return status == CAIRN_OK ? cairn_spec_add_group(spec, &group) : status;
}

void cairn_spec_fields_of_message(const Cairn__JobSpec *in, struct cairn_job_spec_data *spec)
{
    spec->revision = in->revision;
    spec->amend_key = in->amend_key;
#define X(name, member, ...) spec->member = in->name;
    CAIRN_SPEC_FIELDS(X)
#undef X
}

static cairn_status unpack_job(const Cairn__JobSpec *in, struct cairn_job_spec_data *spec,
                               struct cairn_sentence *why)
{
    cairn_status status = cairn_spec_set_name(spec, in->name);
    if (status == CAIRN_OK) status = cairn_spec_set_init_from(spec, in->init_from, in->init_prefix);
    for (size_t i = 0; status == CAIRN_OK && i < in->n_tensors; i++)
        status = unpack_tensor(in->tensors[i], spec, why);
    for (size_t i = 0; status == CAIRN_OK && i < in->n_groups; i++)
        status = unpack_group(in->groups[i], spec);
    cairn_spec_fields_of_message(in, spec);
    if (in->n_former > CAIRN_SPEC_FORMER_MAX) return CAIRN_ERR_INVALID;
    for (size_t i = 0; status == CAIRN_OK && i < in->n_former; i++) {
        if (in->former[i].len != 32) return CAIRN_ERR_INVALID;
        status = cairn_spec_add_former(spec, in->former[i].data);
    }
    if (in->n_made > CAIRN_SPEC_MADE_MAX) return CAIRN_ERR_INVALID;
    for (size_t i = 0; status == CAIRN_OK && i < in->n_made; i++)
        status = cairn_spec_add_made(spec, in->made[i]->key, in->made[i]->was, in->made[i]->is);
    return status;
}

cairn_status cairn_spec_unpack(const uint8_t *bytes, size_t bytes_len,
                               const char *const *optimizers, struct cairn_job_spec_data *spec_out,
                               struct cairn_sentence *why)
{
    cairn_sentence_set(why, "the job spec does not fit its limits or has an invalid name");
    Cairn__JobSpec *in = (Cairn__JobSpec *)cairn_message_unpack(&cairn__job_spec__descriptor, bytes,
                                                                bytes_len);
    if (in == NULL && errno == ENOMEM)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a job spec of %zu bytes",
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

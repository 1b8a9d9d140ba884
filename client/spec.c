#include "client/job.h"

#include <assert.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/op.h"
#include "proto/base/text.h"
#include "proto/spec/spec.h"
#include "proto/spec/spec_fields.h"

/* The structs of the first release end with these fields. */
#define END_OF(type, field) (offsetof(struct type, field) + sizeof((struct type *)NULL)->field)
#define TENSOR_LEAST        END_OF(cairn_tensor, kind)
#define GROUP_LEAST         END_OF(cairn_group, nesterov)
#define OPEN_FLAGS                                                                     \
    (uint64_t)(CAIRN_OPEN_MUST_EXIST | CAIRN_OPEN_RESUME | CAIRN_OPEN_MUST_NOT_EXIST | \
               CAIRN_OPEN_TAKEOVER)
#define OPEN_EITHER (uint64_t)(CAIRN_OPEN_MUST_EXIST | CAIRN_OPEN_MUST_NOT_EXIST)
#define SPEC_LEAST  END_OF(cairn_job_spec, window)

#define START_WAIT_MS     30000
#define START_WAIT_MAX_MS 86400000

static cairn_status copy_struct(void *to, size_t bytes, size_t least_bytes, const void *from,
                                const char *what)
{
    if (struct_copy_in(to, bytes, least_bytes, from)) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID,
                       "%s: its struct_size is not set, or a field is set that this library does "
                       "not know (its own struct has %zu bytes)",
                       what, bytes);
}

/* Refuses an invalid name; NULL stands for a default. */
static cairn_status judge_name(const char *what, size_t i, const char *field, const char *text)
{
    char full[64];
    struct sentence why;
    if (text == NULL) return CAIRN_OK;
    snprintf(full, sizeof full, "%s[%zu].%s", what, i, field);
    const cairn_status status = text_check(full, text, CAIRN_NAME_MAX, &why);
    return status == CAIRN_OK ? status : client_fail(status, "%s", why.text);
}

/* ---- groups ---- */

/* Returns true if all `bytes` are 0, as fields reserved for a later version must be. */
static bool struct_is_zero(const void *reserved, size_t bytes)
{
    const unsigned char *byte = reserved;
    for (size_t i = 0; i < bytes; i++)
        if (byte[i] != 0) return false;
    return true;
}

/* Copies the caller's i-th group of an array, in our struct's size. Sets this thread's sentence. */
static cairn_status copy_group(const struct cairn_group *first, size_t i, struct cairn_group *out)
{
    const cairn_status status = copy_struct(out, sizeof *out, GROUP_LEAST, struct_at(first, i),
                                            "a group");
    const bool is_clear = struct_is_zero(out->reserved, sizeof out->reserved) &&
                          out->reserved_last == 0 && out->reserved_ema == 0;
    if (status != CAIRN_OK || is_clear) return status;
    return client_fail(CAIRN_ERR_INVALID,
                       "groups[%zu]: a reserved field is not 0; begin with CAIRN_GROUP_INIT", i);
}

struct group_spec client_group_of(const struct cairn_group *g)
{
    struct group_spec out = {
        .name = wire_text(g->name != NULL ? g->name : "default"),
        .optimizer = wire_text(g->optimizer),
        .schedule = { .kind = g->schedule,
                      .points = g->points,
                      .point_count = g->points != NULL ? g->point_count : 0 },
    };
#define X(field, ...) out.field = g->field;
    CAIRN_GROUP_FIELDS(X)
#undef X
#define X(field, kind) out.schedule.field = g->field;
    CAIRN_SCHEDULE_FIELDS(X)
#undef X
    return out;
}

/* The caller's groups, in our struct's size, and which of their patterns matched a tensor. */
struct groups {
    struct cairn_group *list; /* owned, [count] */
    bool *matched;            /* owned, [count] */
    size_t count;
};

static cairn_status copy_groups(struct groups *groups, const struct cairn_job_spec *from)
{
    if (from->group_count > CAIRN_SPEC_GROUPS_MAX)
        return client_fail(CAIRN_ERR_INVALID, "group_count is %zu; allowed: 0 to %d",
                           from->group_count, CAIRN_SPEC_GROUPS_MAX);
    groups->list = calloc(from->group_count + 1, sizeof *groups->list);
    groups->matched = calloc(from->group_count + 1, sizeof *groups->matched);
    if (groups->list == NULL || groups->matched == NULL)
        return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the job's spec");
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && i < from->group_count; i++, groups->count++)
        status = copy_group(from->groups, i, &groups->list[i]);
    return status;
}

/* Refuses fields that the group's optimizer would ignore (S2.14). */
static cairn_status judge_unused(const struct group_spec *group)
{
    const char *field = "";
    const cairn_status status = group_spec_unused(group, &field);
    if (status == CAIRN_OK || strcmp(field, "optimizer") == 0)
        return CAIRN_OK; // this value is validated with the rest
    return client_fail(status,
                       "group %.64s: %s has no effect with optimizer %s; allowed: 0, or what "
                       "CAIRN_GROUP_INIT says",
                       group->name, field, group->optimizer);
}

static cairn_status add_groups(struct job_spec_data *spec, const struct groups *groups)
{
    for (size_t i = 0; i < groups->count; i++) {
        const struct group_spec group = client_group_of(&groups->list[i]);
        if (groups->list[i].optimizer == NULL)
            return client_fail(CAIRN_ERR_INVALID,
                               "group %.64s names no optimizer; begin with CAIRN_GROUP_INIT, "
                               "and change what is to be different",
                               group.name);
        cairn_status status = judge_name("groups", i, "name", group.name);
        if (status == CAIRN_OK) status = judge_name("groups", i, "optimizer", group.optimizer);
        if (status != CAIRN_OK) return status;
        status = spec_add_group(spec, &group);
        if (status == CAIRN_OK) {
            status = judge_unused(&group);
            if (status != CAIRN_OK) return status;
        }
        if (status != CAIRN_OK)
            return client_fail(status, "group %.64s has %zu points; at most %d are allowed",
                               group.name, group.schedule.point_count, CAIRN_SCHEDULE_POINTS_MAX);
    }
    return CAIRN_OK;
}

/* Returns the group of a trained tensor that names no group: the first group whose pattern matches the
 * tensor's name. */
static const char *group_by_pattern(struct groups *groups, const char *tensor)
{
    for (size_t i = 0; i < groups->count; i++) {
        const struct cairn_group *g = &groups->list[i];
        if (g->pattern == NULL || fnmatch(g->pattern, tensor, 0) != 0) continue;
        groups->matched[i] = true;
        return g->name != NULL ? g->name : "default";
    }
    return "default";
}

static cairn_status judge_patterns(const struct groups *groups)
{
    for (size_t i = 0; i < groups->count; i++) {
        const struct cairn_group *g = &groups->list[i];
        if (g->pattern == NULL || groups->matched[i]) continue;
        return client_fail(
            CAIRN_ERR_INVALID,
            "group %.64s: the pattern \"%.128s\" matches no trained tensor still free (naming no "
            "group, taken by no earlier pattern); correct or remove it",
            g->name != NULL ? g->name : "default", g->pattern);
    }
    return CAIRN_OK;
}

/* ---- tensors ---- */

/* Adds a tensor. An alias keeps the caller's fields until settle_alias, because its target may not
 * be known yet. */
static cairn_status add_tensor(struct job_spec_data *spec, struct groups *groups,
                               const struct cairn_tensor *t)
{
    if (t->rank > CAIRN_RANK_MAX || (t->alias_box != NULL && t->alias_box->rank > CAIRN_RANK_MAX))
        return client_fail(CAIRN_ERR_INVALID,
                           "tensor %.64s has %u dimensions; at most %d are allowed", t->name,
                           t->rank, CAIRN_RANK_MAX);
    for (uint32_t d = t->rank; d < CAIRN_RANK_MAX; d++)
        if (t->shape[d] != 0)
            return client_fail(CAIRN_ERR_INVALID,
                               "tensor %.64s has rank %u, and yet shape[%u] is %" PRIu64 "; "
                               "allowed: 0 from there on, or a larger rank",
                               t->name, t->rank, d, t->shape[d]);
    const bool is_alias = t->alias_of != NULL;
    const cairn_kind kind = t->kind != 0 || is_alias ? t->kind : CAIRN_TRAINED;
    const cairn_dtype dtype = kind == CAIRN_BLOB ? CAIRN_U8 : CAIRN_F32; // the default dtype
    const char *group = t->group;
    if (group != NULL && group[0] != '\0' && kind != CAIRN_TRAINED && !is_alias)
        return client_fail(CAIRN_ERR_INVALID,
                           "tensor %.64s is not trained, so it is of no group; its group is "
                           "\"%.64s\", allowed: NULL",
                           t->name, group);
    if (group == NULL && kind == CAIRN_TRAINED && !is_alias)
        group = group_by_pattern(groups, t->name);
    struct tensor_spec tensor = {
        .name = wire_text(t->name),
        .unit = wire_text(t->unit),
        .group = wire_text(group),
        .kind = kind,
        .wire = t->wire != 0 || is_alias ? t->wire : dtype,
        .reduce = t->reduce != 0 ? t->reduce : CAIRN_F32,
        .master = t->master != 0 ? t->master : dtype,
        .shape = { .rank = t->rank },
        .whole = t->place == CAIRN_WHOLE,
        .alias_of = wire_text(t->alias_of),
        .alias_box = (struct cairn_box *)(uintptr_t)t->alias_box,
        .init = t->init,
        .steps_missed = t->steps_missed,
        .order = (uint32_t)spec->tensor_count + 1,
    };
    if (t->place != CAIRN_ROWS && t->place != CAIRN_WHOLE)
        return client_fail(CAIRN_ERR_INVALID, "tensor %.64s: place is %d; allowed: 0 (CAIRN_ROWS)",
                           t->name, (int)t->place);
    memcpy(tensor.shape.dim, t->shape, t->rank * sizeof t->shape[0]);
    cairn_status status = spec_add_tensor(spec, &tensor);
    return status == CAIRN_OK ? status
           : status == CAIRN_ERR_INVALID
               ? client_fail(status, "tensor %.64s is one more than the %d that are allowed",
                             t->name, CAIRN_SPEC_TENSORS_MAX)
               : client_fail(status, "tensor %.64s: %s", t->name, status_text((int)status));
}

static cairn_status judge_names(size_t i, const struct cairn_tensor *t)
{
    const char *name = t->name != NULL ? t->name : "";
    cairn_status status = judge_name("tensors", i, "name", name);
    if (status == CAIRN_OK) status = judge_name("tensors", i, "unit", t->unit);
    if (status == CAIRN_OK) status = judge_name("tensors", i, "alias_of", t->alias_of);
    if (status == CAIRN_OK && t->group != NULL && t->group[0] != '\0')
        status = judge_name("tensors", i, "group", t->group);
    return status;
}

static cairn_status add_tensors(struct job_spec_data *spec, struct groups *groups,
                                const struct cairn_job_spec *from)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && i < from->tensor_count; i++) {
        struct cairn_tensor t;
        status = copy_struct(&t, sizeof t, TENSOR_LEAST, struct_at(from->tensors, i), "a tensor");
        if (status == CAIRN_OK) status = judge_names(i, &t);
        if (status == CAIRN_OK) status = add_tensor(spec, groups, &t);
    }
    return status;
}

/* Appends the tensors of an amendment, which may not be aliases. A trained tensor that names no
 * group belongs to "default". */
static cairn_status fill_added(const struct cairn_tensor *first, size_t count,
                               struct job_spec_data *spec)
{
    struct groups none = { NULL, NULL, 0 }; // patterns only apply when the job is created
    const struct cairn_job_spec from = { .tensors = first, .tensor_count = count };
    for (size_t i = 0; i < count; i++) {
        struct cairn_tensor t;
        CAIRN_TRY(copy_struct(&t, sizeof t, TENSOR_LEAST, struct_at(first, i), "a tensor"));
        if (t.alias_of != NULL)
            return client_fail(
                CAIRN_ERR_INVALID,
                "tensor %.64s: an amendment cannot add an alias; add a tensor, and tie it",
                t.name != NULL ? t.name : "?");
    }
    return add_tensors(spec, &none, &from);
}

/* Gives the alias the fields of its target. The kind and shape that the caller gave to the alias must
 * agree with the target; afterwards the alias has no kind and shape of its own. spec_check refuses a
 * target that does not exist or is itself an alias. */
static cairn_status settle_alias(const struct job_spec_data *spec, struct tensor_spec *alias)
{
    const size_t index = spec_find_tensor(spec, alias->alias_of);
    const struct tensor_spec *target = index != SIZE_MAX ? &spec->tensors[index] : NULL;
    if (target != NULL && target->alias_of == NULL) {
        const struct cairn_box *box = alias->alias_box;
        const uint32_t rank = box != NULL ? box->rank : target->shape.rank;
        const uint64_t *dims = box != NULL ? box->extent : target->shape.dim;
        if (alias->shape.rank != rank || memcmp(alias->shape.dim, dims, rank * sizeof dims[0]) != 0)
            return client_fail(CAIRN_ERR_INVALID, "tensor %.64s: its shape is not that of %s %.64s",
                               alias->name, box != NULL ? "its box of" : "its target",
                               target->name);
        if (alias->kind != 0 && alias->kind != target->kind)
            return client_fail(
                CAIRN_ERR_INVALID,
                "tensor %.64s: kind is %d; its target %.64s has %d, allowed: that or 0",
                alias->name, (int)alias->kind, target->name, (int)target->kind);
        if (alias->group[0] != '\0')
            return client_fail(
                CAIRN_ERR_INVALID,
                "tensor %.64s: it is an alias, so its group is that of %.64s; allowed: NULL",
                alias->name, target->name);
        if (alias->wire == 0) alias->wire = target->wire;
    }
    if (alias->wire == 0) alias->wire = CAIRN_F32;
    alias->kind = CAIRN_FROZEN;
    alias->shape = (struct shape) { .rank = 1 };
    return CAIRN_OK;
}

/* Settles all aliases. At that time, every target still has its own shape, since an alias of an
 * alias is refused. */
static cairn_status settle_aliases(struct job_spec_data *spec)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && i < spec->tensor_count; i++) {
        if (spec->tensors[i].alias_of != NULL) status = settle_alias(spec, &spec->tensors[i]);
    }
    return status;
}

/* ---- the job ---- */

static void fill_job(struct job_spec_data *spec, const struct cairn_job_spec *from)
{
#define TAKE_GIVEN(name, member) \
    if (from->name != 0) spec->member = from->name;
#define TAKE_OTHERWISE(name, member)
#define X(name, member, kind, allowed, value, part, given, change) TAKE_##given(name, member)
    CAIRN_SPEC_FIELDS(X)
#undef X
    if (from->stage != 0) spec->stage = from->stage - CAIRN_STAGE(0);
    // these fields have 64 bits: 32 bits would use bytes that are padding for older callers
    if (from->skips_max != 0) spec->skips_max = (uint32_t)from->skips_max;
    spec->global_batch = (uint32_t)from->global_batch;
}

static cairn_status fill_spec(struct job_spec_data *spec, struct groups *groups,
                              const struct cairn_job_spec *from)
{
    CAIRN_TRY(copy_groups(groups, from));
    CAIRN_TRY(add_tensors(spec, groups, from));
    CAIRN_TRY(judge_patterns(groups));
    CAIRN_TRY(add_groups(spec, groups));
    fill_job(spec, from);
    if (spec_set_init_from(spec, from->init_from, from->init_prefix) != CAIRN_OK)
        return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the job's spec");
    spec_canonicalize(spec);
    return settle_aliases(spec);
}

cairn_status client_spec_launch(const struct cairn_job_spec *from, uint32_t *world_out,
                                uint32_t *start_wait_ms_out)
{
    struct cairn_job_spec own;
    CAIRN_TRY(copy_struct(&own, sizeof own, SPEC_LEAST, from, "the job's spec"));
    if (own.start_wait_ms > START_WAIT_MAX_MS)
        return client_fail(CAIRN_ERR_INVALID,
                           "start_wait_ms is %" PRIu64 "; allowed: 0 (30000) to %d",
                           own.start_wait_ms, START_WAIT_MAX_MS);
    *world_out = own.world;
    *start_wait_ms_out = own.start_wait_ms != 0 ? (uint32_t)own.start_wait_ms : START_WAIT_MS;
    return CAIRN_OK;
}

/* Validates numbers that have 64 bits in cairn.h and 32 bits in the job, before they are narrowed. */
static cairn_status judge_wide(const struct cairn_job_spec *from)
{
    if (from->skips_max > UINT32_MAX)
        return client_fail(CAIRN_ERR_INVALID,
                           "skips_max is %" PRIu64 "; allowed: 0 (%d) to %" PRIu32, from->skips_max,
                           CAIRN_SPEC_SKIPS_DEFAULT, UINT32_MAX);
    if (from->global_batch <= CAIRN_SPEC_MICRO_MAX) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID, "global_batch is %" PRIu64 "; allowed: 0 to %u",
                       from->global_batch, (unsigned)CAIRN_SPEC_MICRO_MAX);
}

cairn_status client_spec_fill(const struct cairn_job_spec *from, struct job_spec_data *spec,
                              uint64_t *open_flags_out)
{
    struct cairn_job_spec own;
    struct groups groups = { NULL, NULL, 0 };
    cairn_status status = copy_struct(&own, sizeof own, SPEC_LEAST, from, "the job's spec");
    if (status == CAIRN_OK && ((own.tensors == NULL && own.tensor_count > 0) ||
                               (own.groups == NULL && own.group_count > 0)))
        status = client_fail(CAIRN_ERR_INVALID,
                             "tensors or groups are NULL, but their count is not 0");
    if (status == CAIRN_OK && (own.open_flags & ~OPEN_FLAGS) != 0)
        status = client_fail(CAIRN_ERR_INVALID,
                             "open_flags is %" PRIu64
                             "; allowed: CAIRN_OPEN_MUST_EXIST, CAIRN_OPEN_RESUME, "
                             "CAIRN_OPEN_MUST_NOT_EXIST, CAIRN_OPEN_TAKEOVER",
                             own.open_flags);
    if (status == CAIRN_OK &&
        ((own.open_flags & OPEN_EITHER) == OPEN_EITHER ||
         (own.open_flags & CAIRN_OPEN_MUST_NOT_EXIST && own.open_flags & CAIRN_OPEN_RESUME)))
        status = client_fail(CAIRN_ERR_INVALID, "CAIRN_OPEN_MUST_NOT_EXIST goes with neither "
                                                "CAIRN_OPEN_MUST_EXIST nor CAIRN_OPEN_RESUME");
    if (status == CAIRN_OK && own.stage != 0 &&
        own.stage - CAIRN_STAGE(0) >= CAIRN_STAGE(0)) // the value is not a CAIRN_STAGE(n)
        status = client_fail(CAIRN_ERR_INVALID,
                             "stage is %u; write CAIRN_STAGE(0) to CAIRN_STAGE(3), or 0 for "
                             "CAIRN_STAGE(2)",
                             own.stage);
    if (status == CAIRN_OK) status = judge_wide(&own);
    if (status == CAIRN_OK) *open_flags_out = own.open_flags;
    if (status == CAIRN_OK) status = fill_spec(spec, &groups, &own);
    free(groups.list);
    free(groups.matched);
    if (status != CAIRN_OK) return status;
    struct sentence why = { "" };
    status = spec_check(spec, optimizer_names(), &why);
    if (status == CAIRN_OK) status = spec_check_usable(spec, &why);
    return status == CAIRN_OK ? status : client_fail(status, "%s", why.text);
}

/* ==== describe ==== */

/* cairn_job_describe and cairn_job_tensor describe the job to a member that opened it. Readers need
 * this because they have no spec of their own; trainers compare the job's spec with their own
 * spec. */

static void fill_info(struct job *job, struct cairn_job_info *info)
{
    HOLD_LOCK(&job->session->lock);
    *info = (struct cairn_job_info) {
        .struct_size = sizeof *info,
        .name = job->name,
        .tensor_count = job->spec.tensor_count,
        .group_count = job->spec.group_count,
        .rank = job->member.rank,
        .workers_min = job->spec.workers_min,
        .clip_norm = job->known.clip_norm,
        .loss_scale = job->spec.loss_scale,
        .on_nonfinite = job->spec.on_nonfinite,
        .newest = job->known.newest,
        .initialized = job->known.initialized,
        .stage = CAIRN_STAGE(job->spec.stage),
        .micro_batches = job->spec.micro_batches,
        .global_batch = job->spec.global_batch,
        .seed = job->spec.seed,
        .client_state_max = job->spec.client_state_max,
        .reduce_groups = job->spec.reduce_groups,
        .workers_max = job->spec.workers_max,
        .revision = job->spec.revision,
        .found = job->known.found,
        .found_step = job->known.found_step,
        .made_by = job->known.made_by,
    };
}

cairn_status cairn_job_describe(cairn_job *handle, struct cairn_job_info *out)
{
    API_JOB(job, handle);
    struct cairn_job_info info;
    const size_t least = offsetof(struct cairn_job_info, initialized) + sizeof info.initialized;
    if (!struct_fits(out, least))
        return client_fail(CAIRN_ERR_INVALID, "out must be given, its struct_size at least %zu",
                           least);
    fill_info(job, &info);
    struct_copy_out(out, &info, sizeof info);
    return CAIRN_OK;
}

/* Describes a tensor. An alias is described like its target; an alias of a box is described like
 * the box. */
static void fill_tensor(const struct job_spec_data *spec, size_t index, struct cairn_tensor *out)
{
    const struct tensor_spec *t = &spec->tensors[index];
    const struct tensor_spec *target = &spec->tensors[spec_target(spec, index)];
    const struct cairn_box *box = t->alias_box;
    *out = (struct cairn_tensor) {
        .struct_size = sizeof *out,
        .name = t->name,
        .unit = t->unit,
        .group = t->group,
        .wire = t->wire,
        .rank = target->shape.rank,
        .kind = target->kind,
        .alias_of = t->alias_of,
        .alias_box = box,
        .reduce = t->reduce,
        .master = t->master,
        .place = t->whole ? CAIRN_WHOLE : CAIRN_ROWS,
        .init = t->init,
    };
    const uint64_t *dims = box != NULL ? box->extent : target->shape.dim;
    memcpy(out->shape, dims, target->shape.rank * sizeof dims[0]);
}

cairn_status cairn_job_tensor(cairn_job *handle, size_t index, struct cairn_tensor *out)
{
    API_JOB(job, handle);
    struct cairn_tensor tensor;
    if (!struct_fits(out, offsetof(struct cairn_tensor, kind) + sizeof out->kind))
        return client_fail(CAIRN_ERR_INVALID, "out must be given with its struct_size");
    if (index >= job->spec.tensor_count)
        return client_fail(CAIRN_ERR_NOT_FOUND, "job %s has %zu tensors; none is number %zu",
                           job->name, job->spec.tensor_count, index);
    fill_tensor(&job->spec, index, &tensor);
    struct_copy_out(out, &tensor, sizeof tensor);
    return CAIRN_OK;
}

cairn_status cairn_job_has_plane(cairn_job *handle, const char *tensor, const char *plane,
                                 bool *has_out)
{
    API_JOB(job, handle);
    int number;
    if (tensor == NULL || has_out == NULL)
        return client_fail(CAIRN_ERR_INVALID, "tensor and has_out must be given");
    CAIRN_TRY(api_plane_of(plane, &number));
    const size_t index = spec_find_tensor(&job->spec, tensor);
    if (index == SIZE_MAX)
        return client_fail(CAIRN_ERR_NOT_FOUND, "job %s has no tensor %s", job->name, tensor);
    const uint32_t planes = spec_planes(&job->spec, spec_target(&job->spec, index)) |
                            1u << CAIRN_PLANE_WIRE;
    *has_out = (planes & 1u << number) != 0;
    return CAIRN_OK;
}

/* ==== amend ==== */

/* cairn_job_amend: the caller's changes become one request. */

#define AMEND_BYTES_MAX (512 << 10) // the most bytes of a frame
// the struct of the first release
#define LEAST offsetof(struct cairn_amend, freeze_tensors)

/* The fields of struct cairn_amend that are rows of spec_fields.h, each with the field that tells
 * whether the row is given. The struct gets no further fields of this kind: a newer row is changed
 * by its name, in `settings`. */
#define AMEND_FIELDS(X)                                                                \
    X(set_clip_norm, clip_norm, clip_norm)                                             \
    X(workers_min, workers_min, workers_min)                                           \
    X(workers_min, workers_max, workers_max)                                           \
    X(set_snapshots, snapshot_every, policy.snapshot_every)                            \
    X(set_snapshots, snapshot_keep, policy.snapshot_keep)                              \
    X(set_snapshot_rules, snapshot_every_s, policy.snapshot_every_s)                   \
    X(set_snapshot_rules, snapshot_keep_every, policy.snapshot_keep_every)             \
    X(set_snapshot_rules, snapshot_keep_within_s, policy.snapshot_keep_within_s)       \
    X(set_snapshot_rules, snapshot_max_bytes, policy.snapshot_max_bytes)               \
    X(set_snapshot_rules, snapshot_staging, policy.snapshot_staging)                   \
    X(set_snapshot_rules, snapshot_durable_within_s, policy.snapshot_durable_within_s) \
    X(set_snapshot_rules, snapshot_fallback, policy.snapshot_fallback)                 \
    X(set_snapshot_rules, snapshot_scrub_every_s, policy.snapshot_scrub_every_s)       \
    X(set_shard_loss, on_shard_loss, policy.on_shard_loss)                             \
    X(set_shard_loss, shard_loss_wait_s, policy.shard_loss_wait_s)                     \
    X(set_worker_loss, on_worker_loss, policy.on_worker_loss)                          \
    X(set_worker_loss, worker_loss_wait_s, policy.worker_loss_wait_s)
enum {
#define X(flag, name, member) GIVEN_##name,
    AMEND_FIELDS(X)
#undef X
        GIVEN_MAX
};

/* The request and the memory that it owns. */
struct words {
    Cairn__JobAmend message;
    struct job_spec_data added; /* only the tensors to add */
    Cairn__Setting *settings;   /* in `owned`: [GIVEN_MAX + setting_count] */
    /* the values of the fields of struct cairn_amend that are rows, as texts */
    char given[GIVEN_MAX][CAIRN_SETTING_TEXT_MAX + 1];
    void *owned[16];
    size_t owned_count;
};

/* Returns zeroed memory that the request owns; NULL: out of memory, and this thread's sentence says
 * so. */
static void *own_words(struct words *words, size_t count, size_t bytes)
{
    assert(words->owned_count < sizeof words->owned / sizeof *words->owned);
    void *own = calloc(count + 1, bytes);
    words->owned[words->owned_count++] = own; // NULL is freed, too
    if (own == NULL) client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the amendment");
    return own;
}

/* Returns a list of `count` pointers to the elements of a new array; *first_out is the array. */
static void *own_list(struct words *words, size_t count, size_t bytes, void *first_out)
{
    uint8_t *first = own_words(words, count, bytes);
    void **list = first != NULL ? own_words(words, count, sizeof *list) : NULL;
    for (size_t i = 0; list != NULL && i < count; i++) list[i] = first + i * bytes;
    memcpy(first_out, &first, sizeof first);
    return list;
}

static cairn_status amend_groups(struct words *words, const struct cairn_amend *amend)
{
    const size_t count = amend->group_count;
    Cairn__GroupSpec *packed;
    if (amend->groups == NULL && count > 0)
        return client_fail(CAIRN_ERR_INVALID, "groups is NULL, but group_count is %zu", count);
    words->message.groups = own_list(words, count, sizeof *packed, &packed);
    if (words->message.groups == NULL) return CAIRN_ERR_NO_MEMORY;
    words->message.n_groups = count;
    // The messages borrow from the groups.
    struct cairn_group *groups = own_words(words, count, sizeof *groups);
    if (groups == NULL) return CAIRN_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        CAIRN_TRY(copy_group(amend->groups, i, &groups[i]));
        const struct group_spec group = client_group_of(&groups[i]);
        if (groups[i].pattern != NULL || group.optimizer == NULL)
            return client_fail(CAIRN_ERR_INVALID,
                               "group %.64s of an amendment: pattern must be NULL (which "
                               "tensors it has does not change) and optimizer must be given",
                               group.name);
        group_to_message(&group, &packed[i]);
    }
    return CAIRN_OK;
}

static cairn_status amend_tensors(struct words *words, const struct cairn_amend *amend)
{
    const size_t count = amend->add_count;
    Cairn__TensorSpec *tensors;
    if (count == 0) return CAIRN_OK;
    if (amend->add == NULL)
        return client_fail(CAIRN_ERR_INVALID, "add is NULL, but add_count is %zu", count);
    CAIRN_TRY(fill_added(amend->add, count, &words->added));
    words->message.add = own_list(words, count, sizeof *tensors, &tensors);
    if (words->message.add == NULL) return CAIRN_ERR_NO_MEMORY;
    words->message.n_add = count;
    for (size_t i = 0; i < count; i++) tensor_to_message(&words->added.tensors[i], &tensors[i]);
    return CAIRN_OK;
}

static cairn_status add_ties(struct words *words, const struct cairn_amend *amend)
{
    const size_t count = amend->tie_count;
    Cairn__TensorTie *ties;
    if (count == 0) return CAIRN_OK;
    words->message.ties = own_list(words, count, sizeof *ties, &ties);
    if (words->message.ties == NULL) return CAIRN_ERR_NO_MEMORY;
    words->message.n_ties = count;
    for (size_t i = 0; i < count; i++) {
        if (amend->ties == NULL || amend->ties[i].name == NULL || amend->ties[i].alias_of == NULL)
            return client_fail(CAIRN_ERR_INVALID, "a name of a tensor to tie is NULL");
        cairn__tensor_tie__init(&ties[i]);
        ties[i].name = wire_text(amend->ties[i].name);
        ties[i].alias_of = wire_text(amend->ties[i].alias_of);
    }
    return CAIRN_OK;
}

static cairn_status add_thaw_groups(struct words *words, const struct cairn_amend *amend)
{
    static char none[] = "";
    const size_t count = amend->unfreeze_tensor_count;
    if (amend->unfreeze_tensor_groups == NULL || count == 0) return CAIRN_OK;
    char **groups = own_words(words, count, sizeof *groups);
    if (groups == NULL) return CAIRN_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        const char *group = amend->unfreeze_tensor_groups[i];
        groups[i] = group != NULL ? wire_text(group) : none;
    }
    words->message.unfreeze_groups = groups;
    words->message.n_unfreeze_groups = count;
    return CAIRN_OK;
}

static void add_setting(struct words *words, const char *key, const char *value)
{
    Cairn__Setting *setting = &words->settings[words->message.n_settings++];
    cairn__setting__init(setting);
    setting->key = wire_text(key);
    setting->value = wire_text(value);
}

/* Adds a field of struct cairn_amend whose value is in `given`; refuses a value that is out of its range. */
static cairn_status add_given(struct words *words, const struct job_spec_data *given,
                              const char *name, char text[static CAIRN_SETTING_TEXT_MAX + 1])
{
    struct sentence why;
    const struct spec_field *field = spec_field_find(&spec_fields, name, strlen(name));
    const cairn_status status = spec_field_check(field, given, "", &why);
    if (status != CAIRN_OK) return client_fail(status, "%s", why.text);
    spec_setting_text(field, given, text);
    add_setting(words, name, text);
    return CAIRN_OK;
}

static cairn_status add_all_given(struct words *words, const struct cairn_amend *amend)
{
    struct job_spec_data given; // owns nothing
    spec_init(&given);
#define X(flag, name, member) \
    if (amend->flag) given.member = amend->name;
    AMEND_FIELDS(X)
#undef X
    spec_canonicalize(&given); // 0 stands for the default
    cairn_status status = CAIRN_OK;
#define X(flag, name, member)              \
    if (status == CAIRN_OK && amend->flag) \
        status = add_given(words, &given, #name, words->given[GIVEN_##name]);
    AMEND_FIELDS(X)
#undef X
    return status;
}

/* Makes the list of fields and values: first the fields of the struct, then the settings by
 * name. */
static cairn_status add_settings(struct words *words, const struct cairn_amend *amend)
{
    const size_t count = amend->setting_count;
    words->message.settings = own_list(words, count + GIVEN_MAX, sizeof *words->settings,
                                       &words->settings);
    if (words->message.settings == NULL) return CAIRN_ERR_NO_MEMORY;
    CAIRN_TRY(add_all_given(words, amend));
    for (size_t i = 0; i < count; i++) {
        const struct cairn_setting *from = amend->settings != NULL ? &amend->settings[i] : NULL;
        if (from == NULL || from->key == NULL || from->value == NULL)
            return client_fail(CAIRN_ERR_INVALID, "a key or a value of a setting is NULL");
        add_setting(words, from->key, from->value);
    }
    return CAIRN_OK;
}

static cairn_status judge_amended_names(const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (names == NULL || names[i] == NULL)
            return client_fail(CAIRN_ERR_INVALID, "a name to freeze or unfreeze is NULL");
    return CAIRN_OK;
}

static cairn_status judge_amend(const struct cairn_amend *amend)
{
    if (amend->workers_min == 0 && amend->workers_max != 0)
        return client_fail(CAIRN_ERR_INVALID, "workers_max is %u without workers_min; give both",
                           amend->workers_max);
    const size_t max = CAIRN_SPEC_GROUPS_MAX, most = CAIRN_SPEC_TENSORS_MAX;
    if (amend->group_count > max || amend->freeze_count > max || amend->unfreeze_count > max)
        return client_fail(
            CAIRN_ERR_INVALID,
            "an amendment has %zu groups, %zu to freeze, %zu to unfreeze; allowed: 0 to %zu",
            amend->group_count, amend->freeze_count, amend->unfreeze_count, max);
    if (amend->freeze_tensor_count > most || amend->unfreeze_tensor_count > most ||
        amend->add_count > most || amend->tie_count > most)
        return client_fail(CAIRN_ERR_INVALID,
                           "an amendment freezes %zu tensors, unfreezes %zu, adds %zu, ties "
                           "%zu; allowed: 0 to %zu",
                           amend->freeze_tensor_count, amend->unfreeze_tensor_count,
                           amend->add_count, amend->tie_count, most);
    if (amend->setting_count > CAIRN_SETTINGS_MAX)
        return client_fail(CAIRN_ERR_INVALID, "an amendment has %zu settings; allowed: 0 to %d",
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
        status = judge_amended_names(lists[i].names, lists[i].count);
    return status;
}

static cairn_status fill_amend(struct words *words, const struct cairn_amend *amend)
{
    Cairn__JobAmend *m = &words->message;
    randombytes_buf(&m->key, sizeof m->key);
    m->key |= 1; // not 0
    m->revision = amend->revision;
    m->freeze = (char **)(uintptr_t)amend->freeze; // protobuf-c lacks the const
    m->n_freeze = amend->freeze_count;
    m->unfreeze = (char **)(uintptr_t)amend->unfreeze;
    m->n_unfreeze = amend->unfreeze_count;
    m->freeze_tensors = (char **)(uintptr_t)amend->freeze_tensors;
    m->n_freeze_tensors = amend->freeze_tensor_count;
    m->unfreeze_tensors = (char **)(uintptr_t)amend->unfreeze_tensors;
    m->n_unfreeze_tensors = amend->unfreeze_tensor_count;
    cairn_status status = amend_groups(words, amend);
    if (status == CAIRN_OK) status = amend_tensors(words, amend);
    if (status == CAIRN_OK) status = add_ties(words, amend);
    if (status == CAIRN_OK) status = add_thaw_groups(words, amend);
    if (status == CAIRN_OK) status = add_settings(words, amend);
    if (status != CAIRN_OK || cairn__job_amend__get_packed_size(m) <= AMEND_BYTES_MAX)
        return status;
    return client_fail(CAIRN_ERR_INVALID, "the amendment is over %d bytes: amend less at a time",
                       AMEND_BYTES_MAX);
}

static cairn_status amend_inside(struct job *job, const struct cairn_amend *amend,
                                 struct words *words, uint64_t deadline_ms)
{
    ASK_CALL(call, "cairn_job_amend", JOB_AMEND, JOB_AMENDED);
    CAIRN_TRY(judge_amend(amend));
    CAIRN_TRY(fill_amend(words, amend));
    CAIRN_TRY(ask_coordinator(job, &call, &words->message.base, deadline_ms, NULL));
    bool is_named = false; // a setting by name comes after the struct's field
    for (size_t i = 0; i < amend->setting_count; i++)
        is_named = is_named || strcmp(amend->settings[i].key, "clip_norm") == 0;
    if (amend->set_clip_norm && !is_named)
        job_note_clip_norm(job, amend->clip_norm); // noted before the round that uses it
    return CAIRN_OK;
}

cairn_status cairn_job_amend(cairn_job *handle, const struct cairn_amend *amend, int timeout_ms)
{
    API_ENTER(job, handle);
    struct words words = { .message = CAIRN__JOB_AMEND__INIT };
    struct cairn_amend own;
    if (timeout_ms < 0 || !struct_copy_in(&own, sizeof own, LEAST, amend))
        return client_fail(CAIRN_ERR_INVALID,
                           "give amend with its struct_size (%zu), and a timeout_ms of 0 or more",
                           sizeof own);
    if (!struct_is_zero(own.reserved, sizeof own.reserved) ||
        !struct_is_zero(own.reserved_losses, sizeof own.reserved_losses) ||
        !struct_is_zero(own.reserved_rules, sizeof own.reserved_rules) ||
        !struct_is_zero(own.reserved_settings, sizeof own.reserved_settings))
        return client_fail(CAIRN_ERR_INVALID, "amend: reserved fields must be 0");
    if (job->member.role != CAIRN_WORKER)
        return client_fail(CAIRN_ERR_REFUSED, "a reader does not amend a job");
    spec_init(&words.added);
    const cairn_status status = amend_inside(job, &own, &words, api_deadline(timeout_ms));
    for (size_t i = 0; i < words.owned_count; i++) free(words.owned[i]);
    spec_release(&words.added);
    return status;
}

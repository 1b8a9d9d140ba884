/* Tensors as callers pass them: they are validated, and gathered in host memory if they are on a
 * card, or come in several micro-batches or in parts. */
#include "client/job.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/device.h"
#include "client/layouts.h"
#include "client/op.h"
#include "client/push.h"
#include "client/session.h"
#include "proto/spec/spec.h"

/* ==== judge ==== */

/* Copies the caller's cairn_mem and validates it. For a caller that was compiled before `stride`
 * and the later fields existed, these fields are 0, which means dense memory on the host. */
static cairn_status copy_mem(const struct cairn_mem *given, struct cairn_mem *out)
{
    struct cairn_mem mem;
    if (!struct_copy_in(&mem, sizeof mem, offsetof(struct cairn_mem, stride), given))
        return client_fail(CAIRN_ERR_INVALID, "mem.struct_size is %zu, this library's is %zu",
                           given->struct_size, sizeof mem);
    struct card *card;
    CAIRN_TRY(api_card(&mem, &card));
    if (card == NULL && mem.stream != NULL)
        return client_fail(CAIRN_ERR_INVALID,
                           "mem.stream is %p, but mem.device %d is the host: a stream orders only "
                           "what a GPU writes; give NULL",
                           mem.stream, mem.device);
    *out = mem;
    return CAIRN_OK;
}

cairn_status api_card(const struct cairn_mem *mem, struct card **card_out)
{
    return card_of_device(mem->device, "mem.device", card_out);
}

cairn_status api_judge_data(const struct job *job, const char *name, const struct cairn_mem *given,
                            struct cairn_mem *mem_out, size_t *tensor_out,
                            const struct cairn_box **part_out)
{
    if (name == NULL || given == NULL)
        return client_fail(CAIRN_ERR_INVALID, "tensor and mem must be given");
    CAIRN_TRY(copy_mem(given, mem_out));
    const size_t tensor = spec_find_tensor(&job->spec, name);
    if (tensor == SIZE_MAX)
        return client_fail(
            CAIRN_ERR_NOT_FOUND,
            "job %s has no tensor %s; cairn_job_tensor lists its %zu, as does `cairn job show %s`",
            job->name, name, job->spec.tensor_count, job->name);
    const struct cairn_box *part = job->spec.tensors[tensor].alias_box;
    *part_out = part;
    *tensor_out = spec_target(&job->spec, tensor);
    return CAIRN_OK;
}

static cairn_status judge_part(const char *name, const struct cairn_box *part,
                               const struct cairn_box *box, struct cairn_box *box_out)
{
    struct shape shape = { .rank = part->rank };
    struct sentence why;
    struct cairn_box whole = *part;
    memcpy(shape.dim, part->extent, sizeof shape.dim);
    cairn_status status = box != NULL ? box_check(box, &shape, &why) : CAIRN_OK;
    if (status != CAIRN_OK) return client_fail(status, "tensor %s: %s", name, why.text);
    for (uint32_t d = 0; box != NULL && d < box->rank; d++) {
        whole.start[d] += box->start[d];
        whole.extent[d] = box->extent[d];
    }
    *box_out = whole;
    return CAIRN_OK;
}

cairn_status api_judge_boxed(const struct job *job, const char *name, const struct cairn_mem *given,
                             struct cairn_mem *mem_out, size_t *tensor_out,
                             const struct cairn_box **box, struct cairn_box *room)
{
    const struct cairn_box *part;
    cairn_status status = api_judge_data(job, name, given, mem_out, tensor_out, &part);
    if (status != CAIRN_OK || part == NULL) return status;
    status = judge_part(name, part, *box, room);
    if (status == CAIRN_OK) *box = room;
    return status;
}

/* Checks mem.bytes, if given: at most that many bytes are accessed. Dense memory must have exactly the
 * size of the piece; memory of another size was meant for something else. */
static cairn_status judge_bytes(const char *name, const struct cairn_mem *mem,
                                const struct piece *piece, size_t elem_bytes)
{
    char box[CAIRN_BOX_TEXT_BYTES];
    const size_t needed = strides_span(&piece->strides, box_element_count(&piece->box), elem_bytes);
    if (mem->bytes == 0 || mem->bytes == needed) return CAIRN_OK;
    if (piece->strides.given && mem->bytes > needed) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID,
                       "tensor %s: mem.bytes is %zu, but %s in %s%s has %zu: give memory of that "
                       "size, or the box that the memory holds",
                       name, mem->bytes, box_text(&piece->box, box), dtype_label((int)mem->dtype),
                       piece->strides.given ? " with these mem.stride" : "", needed);
}

/* Validates the memory of the piece. */
static cairn_status judge_place(const struct job *job, size_t tensor, const struct cairn_mem *mem,
                                struct piece *piece)
{
    const char *name = job->spec.tensors[tensor].name;
    struct sentence why;
    if (mem->ptr == NULL && box_element_count(&piece->box) != 0)
        return client_fail(CAIRN_ERR_INVALID, "tensor %s: mem.ptr is NULL", name);
    struct card *card;
    const size_t elem_bytes = dtype_size((int)mem->dtype);
    cairn_status status = strides_judge(mem->stride, &piece->box, elem_bytes, &piece->strides,
                                        &why);
    if (status != CAIRN_OK) return client_fail(status, "tensor %s: %s", name, why.text);
    status = judge_bytes(name, mem, piece, elem_bytes);
    if (status == CAIRN_OK) status = api_card(mem, &card);
    if (status != CAIRN_OK || card == NULL) return status;
    return card_judge(card, mem->ptr,
                      strides_span(&piece->strides, box_element_count(&piece->box), elem_bytes));
}

static cairn_status judge_within(const struct tensor_spec *tensor, const struct cairn_box *box)
{
    struct sentence why;
    const cairn_status status = box_check(box, &tensor->shape, &why);
    if (status == CAIRN_OK) return status;
    return client_fail(status, "tensor %s: %s", tensor->name, why.text);
}

static bool holds_nothing(const struct piece *own)
{
    return !own->whole && box_element_count(&own->box) == 0;
}

static cairn_status refuse_nothing(const char *name)
{
    return client_fail(CAIRN_ERR_INVALID,
                       "tensor %s: this worker holds nothing of it, as it said in cairn_tiles",
                       name);
}

cairn_status api_judge_own(struct job *job, size_t tensor, const struct cairn_box *box,
                           const struct cairn_mem *mem, struct piece *piece_out)
{
    const struct tensor_spec *spec = &job->spec.tensors[tensor];
    struct piece piece = client_tiles_own(job, tensor);
    char given[CAIRN_BOX_TEXT_BYTES], own[CAIRN_BOX_TEXT_BYTES];
    CAIRN_TRY(box != NULL ? judge_within(spec, box) : CAIRN_OK);
    if (holds_nothing(&piece)) return refuse_nothing(spec->name);
    if (box != NULL && !box_equal(box, &piece.box))
        return client_fail(CAIRN_ERR_INVALID,
                           "tensor %s: the box given is %s, but this worker holds %s%s", spec->name,
                           box_text(box, given), box_text(&piece.box, own),
                           piece.whole ? "; declare what it holds by cairn_tiles" : "");
    cairn_status status = judge_place(job, tensor, mem, &piece);
    if (status == CAIRN_OK) *piece_out = piece;
    return status;
}

/* Checks a call without a box; such a call concerns the part that this worker holds. A caller that
 * expects the whole tensor passes memory of the whole tensor's size, and would not notice that only
 * a part was read or written. So mem.bytes must confirm the part's size. */
static cairn_status judge_held(const struct tensor_spec *tensor, const struct piece *own,
                               const struct cairn_mem *mem)
{
    char box[CAIRN_BOX_TEXT_BYTES], whole[CAIRN_BOX_TEXT_BYTES];
    const struct cairn_box all = box_of_shape(&tensor->shape);
    if (holds_nothing(own)) return refuse_nothing(tensor->name);
    if (own->whole || mem->bytes != 0) return CAIRN_OK;
    return client_fail(
        CAIRN_ERR_INVALID,
        "tensor %s: without a box this worker's part is meant, %s of %s, but mem.bytes does not "
        "confirm it; set it to that part's size, or give the box that is meant",
        tensor->name, box_text(&own->box, box), box_text(&all, whole));
}

cairn_status api_judge_box(struct job *job, size_t tensor, const struct cairn_box *box,
                           const struct cairn_mem *mem, struct piece *piece_out)
{
    const struct tensor_spec *spec = &job->spec.tensors[tensor];
    struct piece piece = client_tiles_own(job, tensor);
    CAIRN_TRY(box != NULL ? judge_within(spec, box) : judge_held(spec, &piece, mem));
    if (box != NULL) piece.box = *box;
    piece.whole = box_is_whole(&piece.box, &spec->shape);
    piece.tile = piece.whole ? CAIRN_TILE_WHOLE : CAIRN_TILE_BOX;
    cairn_status status = judge_place(job, tensor, mem, &piece);
    if (status == CAIRN_OK) *piece_out = piece;
    return status;
}

/* Returns CAIRN_ERR_INVALID. */
cairn_status api_refuse_dtype(const char *tensor, const struct cairn_mem *mem, const char *allowed)
{
    return client_fail(CAIRN_ERR_INVALID, "tensor %s: mem.dtype is %d (%s); %s is allowed here",
                       tensor, (int)mem->dtype, dtype_label((int)mem->dtype), allowed);
}

/* ---- a part of a tensor ---- */

cairn_status api_judge_portion(struct job *job, const struct cairn_box *part,
                               const struct cairn_box *box, struct portion *portion)
{
    const char *target = job->spec.tensors[portion->tensor].name;
    struct cairn_box given;
    CAIRN_TRY(judge_part(portion->name, part, box, &given));
    if (!box_equal(&given, part))
        return client_fail(CAIRN_ERR_INVALID,
                           "tensor %s is a box of %s, and goes whole: give NULL for its box",
                           portion->name, target);
    portion->whole = client_tiles_own(job, portion->tensor);
    if (!portion->whole.whole)
        return client_fail(CAIRN_ERR_UNSUPPORTED,
                           "tensor %s is a box of %s, and this worker holds only a tile of that: "
                           "put and push its tile of %s",
                           portion->name, target, target);
    return api_judge_box(job, portion->tensor, part, &portion->mem, &portion->piece);
}

/* ---- planes ---- */

static cairn_status refuse_kind(const struct tensor_spec *t, const char *plane)
{
    return client_fail(CAIRN_ERR_NOT_FOUND,
                       "tensor %s is a %s: it is not optimized and has no plane %s", t->name,
                       t->kind == CAIRN_BUFFER ? "buffer"
                       : t->kind == CAIRN_BLOB ? "blob"
                                               : "frozen tensor",
                       plane);
}

cairn_status api_judge_plane(const struct job *job, size_t tensor, int plane)
{
    const struct tensor_spec *t = &job->spec.tensors[tensor];
    struct group_hyper hyper;
    if (plane == CAIRN_PLANE_PARAM || plane == CAIRN_PLANE_WIRE) return CAIRN_OK;
    if (t->kind != CAIRN_TRAINED) return refuse_kind(t, plane_name(plane));
    const size_t group = spec_find_group(&job->spec, t->group);
    // A validated spec has the group; the shards check it again.
    if (group == SIZE_MAX ||
        group_hyper_of_spec(&job->spec.groups[group], &hyper, NULL) != CAIRN_OK ||
        (optimizer_planes(&hyper) & 1u << plane) != 0)
        return CAIRN_OK;
    if (plane == CAIRN_PLANE_EMA)
        return client_fail(
            CAIRN_ERR_NOT_FOUND,
            "tensor %s has no plane ema: its group %s keeps no average (ema is 0); a "
            "job made from a snapshot with `--set %s.ema=0.999` keeps one",
            t->name, t->group, t->group);
    return client_fail(CAIRN_ERR_NOT_FOUND,
                       "tensor %s has no plane %s: optimizer %s of its group %s, with these "
                       "hyper-parameters, keeps none",
                       t->name, plane_name(plane), job->spec.groups[group].optimizer, t->group);
}

cairn_status api_judge_state(const struct job *job, size_t tensor, const char *plane,
                             int *number_out)
{
    *number_out = plane != NULL ? plane_number(plane) : 0;
    if (*number_out != CAIRN_PLANE_PARAM && *number_out != CAIRN_PLANE_EXP_AVG &&
        *number_out != CAIRN_PLANE_EXP_AVG_SQ && *number_out != CAIRN_PLANE_EMA)
        return client_fail(CAIRN_ERR_UNSUPPORTED,
                           "tensor %s: put \"param\", \"exp_avg\", \"exp_avg_sq\" or \"ema\"",
                           job->spec.tensors[tensor].name);
    return api_judge_plane(job, tensor, *number_out);
}

static const char *dtype_text(cairn_dtype dtype)
{
    return dtype == CAIRN_F32    ? "CAIRN_F32"
           : dtype == CAIRN_BF16 ? "CAIRN_BF16"
           : dtype == CAIRN_U8   ? "CAIRN_U8"
                                 : dtype_label((int)dtype);
}

cairn_status api_judge_dtype(const struct job *job, size_t tensor, int plane,
                             const struct cairn_mem *mem)
{
    const struct tensor_spec *t = &job->spec.tensors[tensor];
    const cairn_dtype dtype = plane == CAIRN_PLANE_WIRE    ? t->wire
                              : plane == CAIRN_PLANE_PARAM ? t->master
                                                           : CAIRN_F32;
    if (mem->dtype == dtype) return CAIRN_OK;
    return api_refuse_dtype(t->name, mem, dtype_text(dtype));
}

/* ==== bring ==== */

/* If the client itself must read memory of a GPU, the memory is first copied to the host. The
 * client reads initial state, which it hashes, and gradients that it adds up, that have strides, or
 * that come in parts. */

static cairn_status copy_from_card(struct card *card, const struct cairn_mem *mem, size_t bytes,
                                   void *copy)
{
    struct card_event *event;
    struct sentence why;
    CAIRN_TRY(card_mark(card, mem->stream, &event));
    cairn_status status = card_event_wait(event);
    card_event_free(event);
    if (status != CAIRN_OK) return status;
    status = card_copy(card, copy, mem->ptr, bytes, CARD_TO_HOST, &why);
    if (status == CAIRN_OK) return status;
    return client_fail(status, "GPU %d: %s", card_number(card), why.text);
}

cairn_status api_bring(struct cairn_mem *mem, const struct piece *piece, void **copy_out)
{
    struct card *card;
    *copy_out = NULL;
    cairn_status status = api_card(mem, &card);
    if (status != CAIRN_OK || card == NULL) return status;
    const size_t bytes = strides_span(&piece->strides, box_element_count(&piece->box),
                                      dtype_size((int)mem->dtype));
    void *copy = malloc(bytes > 0 ? bytes : 1);
    if (copy == NULL)
        return client_fail(CAIRN_ERR_NO_MEMORY,
                           "no host memory for %zu bytes of GPU %d, which go through the host",
                           bytes, card_number(card));
    status = copy_from_card(card, mem, bytes, copy);
    if (status != CAIRN_OK) {
        free(copy);
        return status;
    }
    mem->ptr = *copy_out = copy;
    mem->device = 0;
    mem->stream = NULL;
    return CAIRN_OK;
}

cairn_status api_prepare(struct cairn_mem *mem, bool brings, struct command *pattern)
{
    brings = brings || pattern->piece.strides.given;
    cairn_status status = brings ? api_bring(mem, &pattern->piece, &pattern->owned) : CAIRN_OK;
    if (status == CAIRN_OK) status = api_card(mem, &pattern->card);
    if (status == CAIRN_OK && pattern->card != NULL)
        status = card_mark(pattern->card, mem->stream, &pattern->event);
    pattern->dtype = (uint8_t)mem->dtype;
    pattern->ptr = mem->ptr;
    return status;
}

void api_unprepare(struct command *pattern)
{
    card_event_free(pattern->event);
    free(pattern->owned);
}

/* ==== accumulate ==== */

/* Stages 0 and 1: the micro-batches of a round are added up here, in fp32 and in order, and pushed
 * once, as micro-batch 0. With one micro-batch nothing is copied: the caller's memory is pushed.
 *
 * A sum is created when its tensor is first pushed, and kept as long as the job is open. In the
 * last micro-batch a tensor's sum is pushed as soon as it is complete; sums that the last
 * micro-batch did not touch are pushed at the micro-batch's end. A worker that commits with fewer
 * micro-batches than the job declares pushes the sums that it has. */

static void void_assemblies(struct job *job);
static void drop(struct assembly *assembly);

struct sum {
    /* owned */
    float *values; /* [elems] */
    size_t elems;
    struct piece piece; /* the part of the tensor */
    bool any;           /* pushed in a micro-batch of this round */
    bool sent;
};

bool accumulate_wanted(const struct job *job)
{
    return job->spec.stage < 2 && job->spec.micro_batches > 1;
}

void accumulate_new_round(struct job *job)
{
    void_assemblies(job);
    job->sums.ended = false;
    for (size_t i = 0; job->sums.of != NULL && i < job->spec.tensor_count; i++)
        job->sums.of[i].any = job->sums.of[i].sent = false;
}

void accumulate_release(struct job *job)
{
    for (struct assembly *a; (a = LIST_FIRST(&job->sums.assemblies)) != NULL;) drop(a);
    for (size_t i = 0; job->sums.of != NULL && i < job->spec.tensor_count; i++)
        free(job->sums.of[i].values);
    free(job->sums.of);
}

/* ---- adding ---- */

static bool make_room(struct job *job, struct sum *sum, size_t elems)
{
    if (sum->values != NULL && sum->elems == elems) return true;
    float *values = realloc(sum->values, (elems > 0 ? elems : 1) * sizeof *values);
    if (values == NULL) return false;
    HOLD_LOCK(&job->session->lock);
    job->measured.stats.accumulated_bytes += elems * sizeof *values;
    job->measured.stats.accumulated_bytes -= sum->elems * sizeof *values;
    sum->values = values;
    sum->elems = elems;
    return true;
}

static float of_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* sum: [elems] f32; gradient: [elems] f32 or bf16. The first gradient of a round is copied instead
 * of added: 0 + -0 is not -0. */
static void add_gradient(float *restrict sum, const void *restrict gradient, size_t elems,
                         cairn_dtype dtype, bool first)
{
    const float *wide = gradient;
    const uint16_t *narrow = gradient;
    if (elems == 0) return;
    if (dtype == CAIRN_F32 && first)
        memcpy(sum, wide, elems * sizeof *sum);
    else if (dtype == CAIRN_F32)
        for (size_t i = 0; i < elems; i++) sum[i] += wide[i];
    else if (first)
        for (size_t i = 0; i < elems; i++) sum[i] = of_bf16(narrow[i]);
    else
        for (size_t i = 0; i < elems; i++) sum[i] += of_bf16(narrow[i]);
}

/* Adds the piece from the caller's memory: directly if it is dense, otherwise some elements at a
 * time. */
static void add_piece(struct sum *sum, const struct piece *piece, const struct cairn_mem *mem)
{
    enum { AT_ONCE = 4096 };
    float some[AT_ONCE];
    if (!piece->strides.given) {
        add_gradient(sum->values, mem->ptr, sum->elems, mem->dtype, !sum->any);
        return;
    }
    for (size_t at = 0, count; at < sum->elems; at += count) {
        count = sum->elems - at < AT_ONCE ? sum->elems - at : AT_ONCE;
        strides_gather(&piece->strides, mem->ptr, dtype_size((int)mem->dtype), at, count, some);
        add_gradient(sum->values + at, some, count, mem->dtype, !sum->any);
    }
}

static struct sum *sum_of(struct job *job, size_t tensor)
{
    HOLD_LOCK(&job->session->lock);
    if (job->sums.of == NULL)
        job->sums.of = calloc(job->spec.tensor_count + 1, sizeof *job->sums.of);
    struct sum *sum = job->sums.of != NULL ? &job->sums.of[tensor] : NULL;
    return sum;
}

static cairn_status send_sum(struct job *job, const struct cairn_round *round, size_t tensor)
{
    struct sum *sum = &job->sums.of[tensor];
    const struct command pattern = { .tensor = (uint32_t)tensor,
                                     .micro = 0,
                                     .dtype = CAIRN_F32,
                                     .ptr = (uint8_t *)sum->values,
                                     .piece = sum->piece,
                                     .round = round->round };
    cairn_status status = op_begin(job, CAIRN_CHUNK_PUSH, &pattern, NULL);
    if (status == CAIRN_OK) sum->sent = true;
    return status;
}

static cairn_status add_inside(struct job *job, const struct cairn_round *round, uint32_t micro,
                               size_t tensor, const struct piece *piece,
                               const struct cairn_mem *mem)
{
    const size_t elems = (size_t)box_element_count(&piece->box);
    const void *region;
    struct sum *sum = sum_of(job, tensor);
    if (sum == NULL || !make_room(job, sum, elems))
        return client_fail(CAIRN_ERR_NO_MEMORY,
                           "tensor %s: out of memory to add up micro-batches (stage %u)",
                           job->spec.tensors[tensor].name, (unsigned)job->spec.stage);
    const size_t bytes = strides_span(&piece->strides, elems, dtype_size((int)mem->dtype));
    CAIRN_TRY(memory_lend(job->session, mem->ptr, bytes, NULL, &region));
    add_piece(sum, piece, mem);
    memory_return(job->session, region);
    sum->piece = *piece;
    sum->piece.strides.given = false; // the sum is dense
    sum->any = true;
    // A lack of memory does no harm yet: the sum is then sent at the end of the micro-batch.
    if (micro + 1 == job->spec.micro_batches) (void)send_sum(job, round, tensor);
    return CAIRN_OK;
}

cairn_status accumulate_add(struct job *job, const struct cairn_round *round, uint32_t micro,
                            size_t tensor, const struct piece *piece, const struct cairn_mem *mem)
{
    cairn_status status = add_inside(job, round, micro, tensor, piece, mem);
    HOLD_LOCK(&job->session->lock);
    if (status != CAIRN_OK) job->filling.tensors[tensor] = NOT_PUSHED; // the caller may try again
    if (--job->filling.adding == 0) pthread_cond_broadcast(&job->session->changed);
    return status;
}

/* ---- sending ---- */

cairn_status accumulate_send(struct job *job, const struct cairn_round *round)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && job->sums.of != NULL && i < job->spec.tensor_count;
         i++)
        if (job->sums.of[i].any && !job->sums.of[i].sent) status = send_sum(job, round, i);
    return status;
}

/* ==== assemble ==== */

struct assembly {
    LIST_ENTRY(assembly) next; /* in the job's list, while elements are missing */
    struct job *job;           /* borrowed: the job outlives the assembly */
    uint8_t kind;
    uint32_t tensor, micro;
    uint64_t round;
    struct piece piece; /* the target, dense */
    cairn_dtype dtype;
    uint8_t *values; /* owned: [elems], zeros where nothing was copied */
    uint64_t elems, copied;
    struct cairn_box *boxes; /* owned: [box_count], claimed and disjoint */
    size_t box_count, capacity;
    uint32_t copying; /* portions that are claimed but not copied yet */
    bool is_void;     /* the assembly is no longer in the list, and the last copy frees it */
};

/* ---- the list: under the lock ---- */

static struct assembly *find_for(const struct job *job, const struct portion *p)
{
    struct assembly *a = LIST_FIRST(&job->sums.assemblies);
    while (a != NULL && (a->kind != p->kind || a->tensor != p->tensor || a->round != p->round ||
                         a->micro != p->micro))
        a = LIST_NEXT(a, next);
    return a;
}

bool assemble_begun(const struct job *job, const struct portion *portion)
{
    return find_for(job, portion) != NULL;
}

static void count_assemble(struct job *job, uint64_t more, uint64_t less)
{
    struct cairn_stats *stats = &job->measured.stats;
    stats->assembled_bytes += more;
    stats->assembled_bytes -= less;
    if (stats->assembled_bytes > stats->assembled_bytes_peak)
        stats->assembled_bytes_peak = stats->assembled_bytes;
}

static size_t bytes_of(const struct assembly *assembly)
{
    return (size_t)assembly->elems * dtype_size((int)assembly->dtype);
}

static void free_locked(struct assembly *assembly)
{
    count_assemble(assembly->job, 0, bytes_of(assembly));
    free(assembly->values);
    free(assembly->boxes);
    free(assembly);
}

void assemble_free(struct assembly *assembly)
{
    struct session *s = assembly->job->session;
    HOLD_LOCK(&s->lock);
    free_locked(assembly);
}

static void drop(struct assembly *assembly)
{
    LIST_REMOVE(assembly, next);
    assembly->is_void = true;
    if (assembly->copying == 0) free_locked(assembly);
}

/* Called when another round begins, so that the pushes of the previous round are void. */
static void void_assemblies(struct job *job)
{
    for (struct assembly *a = LIST_FIRST(&job->sums.assemblies), *next; a != NULL; a = next) {
        next = LIST_NEXT(a, next);
        if (a->kind == CAIRN_CHUNK_PUSH) drop(a);
    }
}

static struct assembly *open_assembly(struct job *job, const struct portion *p)
{
    struct assembly *assembly = calloc(1, sizeof *assembly);
    if (assembly == NULL) return NULL;
    *assembly = (struct assembly) { .job = job,
                                    .kind = p->kind,
                                    .tensor = p->tensor,
                                    .micro = p->micro,
                                    .round = p->round,
                                    .piece = p->whole,
                                    .dtype = p->mem.dtype,
                                    .elems = box_element_count(&p->whole.box) };
    assembly->values = calloc(1, bytes_of(assembly) + 1);
    if (assembly->values == NULL) {
        free(assembly);
        return NULL;
    }
    count_assemble(job, bytes_of(assembly), 0);
    LIST_INSERT_HEAD(&job->sums.assemblies, assembly, next);
    return assembly;
}

static cairn_status judge_claim(const struct assembly *assembly, const struct portion *p)
{
    char mine[CAIRN_BOX_TEXT_BYTES], theirs[CAIRN_BOX_TEXT_BYTES];
    const char *target = assembly->job->spec.tensors[p->tensor].name;
    if (assembly->dtype != p->mem.dtype)
        return client_fail(CAIRN_ERR_INVALID,
                           "tensor %s: mem.dtype is %s, but another part of %s had %s; give all "
                           "parts of a tensor in one dtype",
                           p->name, dtype_label((int)p->mem.dtype), target,
                           dtype_label((int)assembly->dtype));
    for (size_t i = 0; i < assembly->box_count; i++)
        if (box_overlap(&assembly->boxes[i], &p->piece.box))
            return client_fail(
                CAIRN_ERR_EXISTS,
                "tensor %s is %s of %s, where %s was given already; give each element only once",
                p->name, box_text(&p->piece.box, mine), target,
                box_text(&assembly->boxes[i], theirs));
    return CAIRN_OK;
}

static bool add_box(struct assembly *assembly, const struct cairn_box *box)
{
    if (assembly->box_count == assembly->capacity) {
        const size_t capacity = assembly->capacity == 0 ? 4 : assembly->capacity * 2;
        struct cairn_box *boxes = realloc(assembly->boxes, capacity * sizeof *boxes);
        if (boxes == NULL) return false;
        assembly->boxes = boxes;
        assembly->capacity = capacity;
    }
    assembly->boxes[assembly->box_count++] = *box;
    return true;
}

static void remove_box(struct assembly *assembly, const struct cairn_box *box)
{
    size_t i = 0;
    while (!box_equal(&assembly->boxes[i], box)) i++;
    assembly->boxes[i] = assembly->boxes[--assembly->box_count];
}

cairn_status assemble_claim(struct job *job, const struct portion *portion, struct assembly **out)
{
    struct assembly *assembly = find_for(job, portion);
    const bool fresh = assembly == NULL;
    if (fresh) assembly = open_assembly(job, portion);
    CAIRN_TRY(assembly != NULL ? judge_claim(assembly, portion) : CAIRN_OK);
    if (assembly == NULL || !add_box(assembly, &portion->piece.box)) {
        if (assembly != NULL && fresh) drop(assembly);
        return client_fail(CAIRN_ERR_NO_MEMORY,
                           "tensor %s: out of memory to put its target together", portion->name);
    }
    assembly->copying++;
    *out = assembly;
    return CAIRN_OK;
}

/* ---- copying ---- */

/* Copies one portion. `from` is the caller's memory; NULL: zeros. */
static void copy_portion(const struct assembly *assembly, const struct portion *p,
                         const uint8_t *from)
{
    const struct shape *shape = &assembly->job->spec.tensors[p->tensor].shape;
    const size_t elem_bytes = dtype_size((int)assembly->dtype);
    struct box_runs runs;
    uint64_t elem, box_elem, run;
    box_runs_begin(&runs, &p->piece.box, shape, 0, assembly->elems);
    while (box_runs_next(&runs, &elem, &box_elem, &run)) {
        uint8_t *to = assembly->values + elem * elem_bytes;
        if (from == NULL)
            memset(to, 0, run * elem_bytes);
        else if (p->piece.strides.given)
            strides_gather(&p->piece.strides, from, elem_bytes, box_elem, run, to);
        else
            memcpy(to, from + box_elem * elem_bytes, run * elem_bytes);
    }
}

cairn_status assemble_copy(struct assembly *assembly, const struct portion *p, bool *whole_out)
{
    struct job *job = assembly->job;
    const uint64_t elems = box_element_count(&p->piece.box);
    const void *region;
    bool whole = false;
    cairn_status status = memory_lend(
        job->session, p->mem.ptr,
        strides_span(&p->piece.strides, elems, dtype_size((int)p->mem.dtype)), NULL, &region);
    if (status == CAIRN_OK) copy_portion(assembly, p, p->mem.ptr);
    if (status == CAIRN_OK) memory_return(job->session, region);
    HOLD_LOCK(&job->session->lock);
    assembly->copying--;
    if (status == CAIRN_OK)
        assembly->copied += elems;
    else
        remove_box(assembly, &p->piece.box);
    if (assembly->is_void) {
        if (assembly->copying == 0) free_locked(assembly);
        status = client_fail(CAIRN_ERR_EPOCH_CHANGED, "round %" PRIu64 " was abandoned", p->round);
    } else if (assembly->copied == assembly->elems && assembly->copying == 0) {
        LIST_REMOVE(assembly, next);
        whole = true;
    } else if (assembly->box_count == 0) {
        drop(assembly);
    }
    if (status == CAIRN_OK) *whole_out = whole;
    return status;
}

void assemble_put_back(struct assembly *assembly)
{
    struct job *job = assembly->job;
    HOLD_LOCK(&job->session->lock);
    LIST_INSERT_HEAD(&job->sums.assemblies, assembly, next);
}

void assemble_undo(struct assembly *assembly, const struct portion *p)
{
    struct job *job = assembly->job;
    copy_portion(assembly, p, NULL);
    HOLD_LOCK(&job->session->lock);
    remove_box(assembly, &p->piece.box);
    assembly->copied -= box_element_count(&p->piece.box);
    LIST_INSERT_HEAD(&job->sums.assemblies, assembly, next);
    if (assembly->box_count == 0) drop(assembly);
}

/* ---- what is missing ---- */

struct assembly *assemble_ended(struct job *job, uint64_t round, uint32_t micro)
{
    HOLD_LOCK(&job->session->lock);
    struct assembly *ended = LIST_FIRST(&job->sums.assemblies);
    while (ended != NULL &&
           (ended->kind != CAIRN_CHUNK_PUSH || ended->round != round || ended->micro != micro))
        ended = LIST_NEXT(ended, next);
    assert(ended == NULL || ended->copying == 0); // the call that ended the micro-batch has waited
    if (ended != NULL) LIST_REMOVE(ended, next);
    return ended;
}

cairn_status assemble_judge_put(struct job *job)
{
    struct sentence why;
    bool missing = false;
    HOLD_LOCK(&job->session->lock);
    const struct assembly *some = LIST_FIRST(&job->sums.assemblies);
    while (some != NULL && some->kind != CAIRN_CHUNK_PUT) some = LIST_NEXT(some, next);
    if (some != NULL && !job->known.initialized) {
        missing = true;
        sentence_set(&why,
                     "tensor %s: only parts were put, %" PRIu64 " of %" PRIu64
                     " elements; put the others",
                     job->spec.tensors[some->tensor].name, some->copied, some->elems);
    }
    return missing ? client_fail(CAIRN_ERR_NOT_READY, "%s", why.text) : CAIRN_OK;
}

/* ---- sending ---- */

static void on_done(void *assembly, cairn_status status, const char *why)
{
    (void)status, (void)why; // the commit, or the end of the initial state, reports the failure
    assemble_free(assembly);
}

void assemble_pattern(struct assembly *assembly, struct command *pattern)
{
    pattern->tensor = assembly->tensor;
    pattern->micro = assembly->micro;
    pattern->round = assembly->round;
    pattern->dtype = (uint8_t)assembly->dtype;
    pattern->ptr = assembly->values;
    pattern->piece = assembly->piece;
    pattern->on_done = on_done;
    pattern->context = assembly;
}

struct cairn_mem assemble_mem(const struct assembly *assembly)
{
    return (struct cairn_mem) { .struct_size = sizeof(struct cairn_mem),
                                .ptr = assembly->values,
                                .dtype = assembly->dtype };
}

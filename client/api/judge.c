#include "client/api/judge.h"

#include <string.h>

#include "client/base/struct.h"
#include "client/device/card.h"
#include "client/push/assemble.h"
#include "proto/spec/optimizer.h"

/* Copies the caller's cairn_mem and judges it. A caller that was compiled before `stride` and what
 * follows it sees them as 0: dense, on the host. */
static cairn_status take_mem(const struct cairn_mem *given, struct cairn_mem *out)
{
    struct cairn_mem mem;
    if (!cairn_struct_take(&mem, sizeof mem, offsetof(struct cairn_mem, stride), given))
        return cairn_client_fail(CAIRN_ERR_INVALID, "mem.struct_size is %zu, this library's is %zu",
                                 given->struct_size, sizeof mem);
    struct card *card;
    const cairn_status status = cairn_api_card(&mem, &card);
    if (status != CAIRN_OK) return status;
    if (card == NULL && mem.stream != NULL)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "mem.stream is %p, and mem.device %d, the host: only what a GPU "
                                 "writes is ordered by a stream; give NULL",
                                 mem.stream, mem.device);
    *out = mem;
    return CAIRN_OK;
}

cairn_status cairn_api_card(const struct cairn_mem *mem, struct card **card_out)
{
    return cairn_card_of_device(mem->device, "mem.device", card_out);
}

cairn_status cairn_api_judge_data(const struct job *job, const char *name,
                                  const struct cairn_mem *given, struct cairn_mem *mem_out,
                                  size_t *tensor_out, const struct cairn_box **part_out)
{
    if (name == NULL || given == NULL)
        return cairn_client_fail(CAIRN_ERR_INVALID, "tensor and mem must be given");
    const cairn_status status = take_mem(given, mem_out);
    if (status != CAIRN_OK) return status;
    const size_t tensor = cairn_spec_find_tensor(&job->spec, name);
    if (tensor == SIZE_MAX)
        return cairn_client_fail(
            CAIRN_ERR_NOT_FOUND,
            "job %s has no tensor %s; cairn_job_tensor lists its %zu, as does `cairn job show %s`",
            job->name, name, job->spec.tensor_count, job->name);
    const struct cairn_box *part = job->spec.tensors[tensor].alias_box;
    *part_out = part;
    *tensor_out = cairn_spec_target(&job->spec, tensor);
    return CAIRN_OK;
}

static cairn_status judge_part(const char *name, const struct cairn_box *part,
                               const struct cairn_box *box, struct cairn_box *box_out)
{
    struct cairn_shape shape = { .rank = part->rank };
    struct cairn_sentence why;
    struct cairn_box whole = *part;
    memcpy(shape.dim, part->extent, sizeof shape.dim);
    cairn_status status = box != NULL ? cairn_box_check(box, &shape, &why) : CAIRN_OK;
    if (status != CAIRN_OK) return cairn_client_fail(status, "tensor %s: %s", name, why.text);
    for (uint32_t d = 0; box != NULL && d < box->rank; d++) {
        whole.start[d] += box->start[d];
        whole.extent[d] = box->extent[d];
    }
    *box_out = whole;
    return CAIRN_OK;
}

cairn_status cairn_api_judge_boxed(const struct job *job, const char *name,
                                   const struct cairn_mem *given, struct cairn_mem *mem_out,
                                   size_t *tensor_out, const struct cairn_box **box,
                                   struct cairn_box *room)
{
    const struct cairn_box *part;
    cairn_status status = cairn_api_judge_data(job, name, given, mem_out, tensor_out, &part);
    if (status != CAIRN_OK || part == NULL) return status;
    status = judge_part(name, part, *box, room);
    if (status == CAIRN_OK) *box = room;
    return status;
}

/* As many bytes as the caller says: no more are touched, and of dense memory no fewer, since it would be
 * memory of something else. */
static cairn_status judge_bytes(const char *name, const struct cairn_mem *mem,
                                const struct piece *piece, size_t elem_bytes)
{
    char box[CAIRN_BOX_TEXT_BYTES];
    const size_t needed = cairn_strides_span(&piece->strides, cairn_box_elems(&piece->box),
                                             elem_bytes);
    if (mem->bytes == 0 || mem->bytes == needed) return CAIRN_OK;
    if (piece->strides.given && mem->bytes > needed) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "tensor %s: mem.bytes is %zu, and %s in %s%s has %zu: give memory of "
                             "that box, or the box that the memory is of",
                             name, mem->bytes, cairn_box_text(&piece->box, box),
                             cairn_dtype_name((int)mem->dtype),
                             piece->strides.given ? " with these mem.stride" : "", needed);
}

/* Where the piece lies. */
static cairn_status judge_place(const struct job *job, size_t tensor, const struct cairn_mem *mem,
                                struct piece *piece)
{
    const char *name = job->spec.tensors[tensor].name;
    struct cairn_sentence why;
    if (mem->ptr == NULL && cairn_box_elems(&piece->box) != 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "tensor %s: mem.ptr is NULL", name);
    struct card *card;
    const size_t elem_bytes = cairn_dtype_bytes((int)mem->dtype);
    cairn_status status = cairn_strides_judge(mem->stride, &piece->box, elem_bytes, &piece->strides,
                                              &why);
    if (status != CAIRN_OK) return cairn_client_fail(status, "tensor %s: %s", name, why.text);
    status = judge_bytes(name, mem, piece, elem_bytes);
    if (status == CAIRN_OK) status = cairn_api_card(mem, &card);
    if (status != CAIRN_OK || card == NULL) return status;
    return cairn_card_judge(
        card, mem->ptr,
        cairn_strides_span(&piece->strides, cairn_box_elems(&piece->box), elem_bytes));
}

static cairn_status judge_within(const struct cairn_tensor_spec *tensor,
                                 const struct cairn_box *box)
{
    struct cairn_sentence why;
    const cairn_status status = cairn_box_check(box, &tensor->shape, &why);
    if (status == CAIRN_OK) return status;
    return cairn_client_fail(status, "tensor %s: %s", tensor->name, why.text);
}

static bool holds_nothing(const struct piece *own)
{
    return !own->whole && cairn_box_elems(&own->box) == 0;
}

static cairn_status refuse_nothing(const char *name)
{
    return cairn_client_fail(
        CAIRN_ERR_INVALID, "tensor %s: this worker holds nothing of it, as it said in cairn_tiles",
        name);
}

cairn_status cairn_api_judge_own(struct job *job, size_t tensor, const struct cairn_box *box,
                                 const struct cairn_mem *mem, struct piece *piece_out)
{
    const struct cairn_tensor_spec *spec = &job->spec.tensors[tensor];
    struct piece piece = cairn_client_tiles_own(job, tensor);
    char given[CAIRN_BOX_TEXT_BYTES], own[CAIRN_BOX_TEXT_BYTES];
    cairn_status status = box != NULL ? judge_within(spec, box) : CAIRN_OK;
    if (status != CAIRN_OK) return status;
    if (holds_nothing(&piece)) return refuse_nothing(spec->name);
    if (box != NULL && !cairn_box_equal(box, &piece.box))
        return cairn_client_fail(
            CAIRN_ERR_INVALID, "tensor %s: the box given is %s, what this worker holds is %s%s",
            spec->name, cairn_box_text(box, given), cairn_box_text(&piece.box, own),
            piece.whole ? "; declare what it holds by cairn_tiles" : "");
    status = judge_place(job, tensor, mem, &piece);
    if (status == CAIRN_OK) *piece_out = piece;
    return status;
}

/* Without a box it is what this worker holds. Somebody who thinks of the whole tensor gives memory of that,
 * and would not see that less was read or written: so the memory's size has to tell. */
static cairn_status judge_held(const struct cairn_tensor_spec *tensor, const struct piece *own,
                               const struct cairn_mem *mem)
{
    char box[CAIRN_BOX_TEXT_BYTES], whole[CAIRN_BOX_TEXT_BYTES];
    const struct cairn_box all = cairn_box_of_shape(&tensor->shape);
    if (holds_nothing(own)) return refuse_nothing(tensor->name);
    if (own->whole || mem->bytes != 0) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "tensor %s: without a box it is what this worker holds, %s of %s, and "
                             "mem.bytes does not say that the memory is of that; set it, or give "
                             "the box that is meant",
                             tensor->name, cairn_box_text(&own->box, box),
                             cairn_box_text(&all, whole));
}

cairn_status cairn_api_judge_box(struct job *job, size_t tensor, const struct cairn_box *box,
                                 const struct cairn_mem *mem, struct piece *piece_out)
{
    const struct cairn_tensor_spec *spec = &job->spec.tensors[tensor];
    struct piece piece = cairn_client_tiles_own(job, tensor);
    cairn_status status = box != NULL ? judge_within(spec, box) : judge_held(spec, &piece, mem);
    if (status != CAIRN_OK) return status;
    if (box != NULL) piece.box = *box;
    piece.whole = cairn_box_is_whole(&piece.box, &spec->shape);
    piece.tile = piece.whole ? CAIRN_TILE_WHOLE : CAIRN_TILE_BOX;
    status = judge_place(job, tensor, mem, &piece);
    if (status == CAIRN_OK) *piece_out = piece;
    return status;
}

cairn_status cairn_api_refuse_dtype(const char *tensor, const struct cairn_mem *mem,
                                    const char *allowed)
{
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "tensor %s: mem.dtype is %d (%s); %s is allowed here", tensor,
                             (int)mem->dtype, cairn_dtype_name((int)mem->dtype), allowed);
}

/* ---- a part of a tensor ---- */

cairn_status cairn_api_judge_portion(struct job *job, const struct cairn_box *part,
                                     const struct cairn_box *box, struct portion *portion)
{
    const char *target = job->spec.tensors[portion->tensor].name;
    struct cairn_box given;
    cairn_status status = judge_part(portion->name, part, box, &given);
    if (status != CAIRN_OK) return status;
    if (!cairn_box_equal(&given, part))
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "tensor %s is a box of %s, and goes whole: give NULL for its box",
                                 portion->name, target);
    portion->whole = cairn_client_tiles_own(job, portion->tensor);
    if (!portion->whole.whole)
        return cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                 "tensor %s is a box of %s, of which this worker holds a tile: put "
                                 "and push %s, as the tile has it",
                                 portion->name, target, target);
    return cairn_api_judge_box(job, portion->tensor, part, &portion->mem, &portion->piece);
}

/* ---- planes ---- */

static cairn_status refuse_kind(const struct cairn_tensor_spec *t, const char *plane)
{
    return cairn_client_fail(CAIRN_ERR_NOT_FOUND,
                             "tensor %s is a %s: it is not optimized and has no plane %s", t->name,
                             t->kind == CAIRN_BUFFER ? "buffer"
                             : t->kind == CAIRN_BLOB ? "blob"
                                                     : "frozen tensor",
                             plane);
}

cairn_status cairn_api_judge_plane(const struct job *job, size_t tensor, int plane)
{
    const struct cairn_tensor_spec *t = &job->spec.tensors[tensor];
    struct cairn_group_hyper hyper;
    if (plane == CAIRN_PLANE_PARAM || plane == CAIRN_PLANE_WIRE) return CAIRN_OK;
    if (t->kind != CAIRN_TRAINED) return refuse_kind(t, cairn_plane_name(plane));
    const size_t group = cairn_spec_find_group(&job->spec, t->group);
    // A spec that was judged has it; the shards judge again.
    if (group == SIZE_MAX ||
        cairn_group_hyper_of_spec(&job->spec.groups[group], &hyper, NULL) != CAIRN_OK ||
        (cairn_optimizer_planes(&hyper) & 1u << plane) != 0)
        return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_NOT_FOUND,
                             "tensor %s has no plane %s: optimizer %s of its group %s, with these "
                             "hyper-parameters, keeps none",
                             t->name, cairn_plane_name(plane), job->spec.groups[group].optimizer,
                             t->group);
}

cairn_status cairn_api_judge_state(const struct job *job, size_t tensor, const char *plane,
                                   int *number_out)
{
    *number_out = plane != NULL ? cairn_plane_number(plane) : 0;
    if (*number_out != CAIRN_PLANE_PARAM && *number_out != CAIRN_PLANE_EXP_AVG &&
        *number_out != CAIRN_PLANE_EXP_AVG_SQ)
        return cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                 "tensor %s: \"param\", \"exp_avg\" and \"exp_avg_sq\" are put",
                                 job->spec.tensors[tensor].name);
    return cairn_api_judge_plane(job, tensor, *number_out);
}

static cairn_dtype plane_dtype(const struct job *job, size_t tensor, int plane)
{
    const struct cairn_tensor_spec *t = &job->spec.tensors[tensor];
    return plane == CAIRN_PLANE_WIRE ? t->wire : plane == CAIRN_PLANE_PARAM ? t->master : CAIRN_F32;
}

static const char *dtype_text(cairn_dtype dtype)
{
    return dtype == CAIRN_F32    ? "CAIRN_F32"
           : dtype == CAIRN_BF16 ? "CAIRN_BF16"
           : dtype == CAIRN_U8   ? "CAIRN_U8"
                                 : cairn_dtype_name((int)dtype);
}

cairn_status cairn_api_judge_dtype(const struct job *job, size_t tensor, int plane,
                                   const struct cairn_mem *mem)
{
    const cairn_dtype dtype = plane_dtype(job, tensor, plane);
    if (mem->dtype == dtype) return CAIRN_OK;
    return cairn_api_refuse_dtype(job->spec.tensors[tensor].name, mem, dtype_text(dtype));
}

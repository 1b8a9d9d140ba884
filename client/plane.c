/* Which planes a tensor has: told at the call, in the caller's words. */
#include "client/api.h"
#include "proto/wire/optimizer.h"

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

cairn_dtype cairn_api_plane_dtype(const struct job *job, size_t tensor, int plane)
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
    const cairn_dtype dtype = cairn_api_plane_dtype(job, tensor, plane);
    if (mem->dtype == dtype) return CAIRN_OK;
    return cairn_api_refuse_dtype(job->spec.tensors[tensor].name, mem, dtype_text(dtype));
}

#include "proto/spec/planes.h"

#include <assert.h>

#include "proto/spec/optimizer.h"

uint32_t cairn_spec_planes(const struct cairn_job_spec_data *spec, size_t tensor)
{
    const struct cairn_tensor_spec *t = &spec->tensors[tensor];
    const uint32_t master = 1u << CAIRN_PLANE_PARAM;
    if (cairn_geometry_of(&t->shape).elems == 0) return 0;
    if (t->kind != CAIRN_TRAINED) return master;
    const size_t group = cairn_spec_find_group(spec, t->group);
    struct cairn_group_hyper hyper;
    assert(group != SIZE_MAX);
    const cairn_status status = cairn_group_hyper_of_spec(&spec->groups[group], &hyper, NULL);
    assert(status == CAIRN_OK); // what cairn_spec_check passes, the registry takes (tested)
    (void)status;
    return master | cairn_optimizer_planes(&hyper);
}

cairn_dtype cairn_spec_plane_dtype(const struct cairn_job_spec_data *spec, size_t tensor,
                                   uint32_t plane)
{
    return cairn_plane_dtype((int)plane, spec->tensors[tensor].master);
}

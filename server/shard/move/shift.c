#include "server/shard/move/shift.h"

/* An extent that shifts. */
struct shift {
    const struct cairn_form *form; /* the same before and after */
    const struct cairn_local_extent *extent, *was;
};

static const struct cairn_local_extent *find(const struct cairn_shard_view *view,
                                             const struct cairn_local_extent *extent)
{
    return view == NULL
               ? NULL
               : cairn_shard_map_find(&view->table.map, extent->tensor, extent->first_leaf);
}

/* The extent of that number, or the first behind it, that shifts; *number: the one behind it. False: none. */
static bool find_shift(const struct cairn_shard_job *job, const struct cairn_shard_view *next,
                       const struct cairn_shard_view *kept, size_t *number, struct shift *out)
{
    if (job->planes.host_from > 0) return false; // on a device a part stays where it is
    while (*number < next->table.map.extent_count) {
        const size_t i = (*number)++;
        const struct cairn_local_extent *extent = &next->table.map.extents[i];
        const struct cairn_local_extent *was = find(job->view, extent);
        if (was == NULL) was = find(kept, extent);
        if (was == NULL) continue; // it comes
        if (was->local_elem + (extent->first_elem - was->first_elem) == extent->local_elem)
            continue;
        *out = (struct shift) { &next->forms[i], extent, was };
        return true;
    }
    return false;
}

uint64_t cairn_shift_bytes(const struct cairn_shard_job *job, const struct cairn_shard_view *next,
                           const struct cairn_shard_view *kept)
{
    struct shift shift;
    uint64_t bytes = 0;
    for (size_t number = 0; find_shift(job, next, kept, &number, &shift);)
        for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++)
            bytes += cairn_form_bytes(shift.form, p, shift.extent->elem_count);
    return bytes;
}

cairn_status cairn_shift_reserve(const struct cairn_shard_job *job,
                                 const struct cairn_shard_view *next,
                                 const struct cairn_shard_view *kept, struct cairn_reserve *reserve)
{
    struct shift shift;
    cairn_status status = CAIRN_OK;
    for (size_t number = 0; find_shift(job, next, kept, &number, &shift);) {
        const uint64_t first = shift.extent->local_elem;
        for (enum cairn_plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++)
            status = cairn_planes_reserve_elems(&job->planes, p, shift.form, first, first,
                                                shift.extent->elem_count, reserve);
    }
    return status;
}

cairn_status cairn_shift_copy(struct cairn_shard_job *job, const struct cairn_shard_view *next,
                              const struct cairn_shard_view *kept, struct cairn_sentence *why)
{
    struct cairn_works *works = cairn_compute_loop(&job->shard->host);
    struct shift shift;
    for (size_t number = 0; find_shift(job, next, kept, &number, &shift);) {
        const uint64_t first = shift.extent->local_elem, was = shift.was->local_elem,
                       skipped = shift.extent->first_elem - shift.was->first_elem;
        for (int p = 0; p < CAIRN_PLANES; p++) {
            if (!cairn_form_stores(shift.form, p)) continue;
            const enum cairn_plane plane = (enum cairn_plane)p;
            cairn_works_copy(
                works, cairn_planes_host_at(&job->planes, shift.form, plane, first, first),
                cairn_planes_host_at(&job->planes, shift.form, plane, was, was + skipped),
                (size_t)cairn_form_bytes(shift.form, plane, shift.extent->elem_count));
        }
    }
    return cairn_works_run(works, why);
}

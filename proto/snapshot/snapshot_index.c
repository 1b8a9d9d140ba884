#include "proto/snapshot/snapshot_index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/snapshot_file.h"
#include "proto/spec/planes.h"

/* A box is a run of elements if, behind the last dimension that it cuts into several, it has
 * everything, and before that one slice of each. Sets the first and the number of elements. */
static bool run_of_box(const struct cairn_shape *shape, const struct cairn_box *box,
                       uint64_t *first_out, uint64_t *count_out)
{
    if (box->rank != shape->rank) return false;
    uint64_t first = 0, count = 1, stride = 1; // elements; all at most the tensor's
    bool whole_so_far = true;
    for (uint32_t d = shape->rank; d-- > 0;) {
        const uint64_t dim = shape->dim[d];
        if (box->extent[d] == 0 || box->extent[d] > dim) return false;
        if (box->start[d] > dim - box->extent[d]) return false;
        if (!whole_so_far && box->extent[d] != 1) return false;
        whole_so_far = whole_so_far && box->extent[d] == dim;
        first += box->start[d] * stride;
        count *= box->extent[d];
        stride *= dim;
    }
    *first_out = first;
    *count_out = count;
    return true;
}

static cairn_status make_room(struct cairn_snapshot_index *index, size_t more)
{
    if (more <= index->piece_capacity - index->piece_count) return CAIRN_OK;
    const size_t wanted = 2 * index->piece_capacity + more;
    struct cairn_snapshot_piece *grown = realloc(index->pieces, wanted * sizeof *grown);
    if (grown == NULL) return CAIRN_ERR_NO_MEMORY;
    index->pieces = grown;
    index->piece_capacity = wanted;
    return CAIRN_OK;
}

cairn_status cairn_snapshot_index_add(struct cairn_snapshot_index *index,
                                      const struct cairn_manifest *manifest, size_t file,
                                      const struct cairn_safetensors *header, uint64_t data_byte,
                                      struct cairn_sentence *why)
{
    const char *path = manifest->files[file].path;
    const enum cairn_snapshot_folder folder = cairn_snapshot_folder_of(path);
    if (header->entry_count > 0 && !header->has_boxes) {
        return cairn_fail(why, CAIRN_ERR_CORRUPT, "%s has no DCP_SHARDING_INFO", path);
    }
    cairn_status status = make_room(index, header->entry_count);
    if (status != CAIRN_OK) return status;
    for (size_t i = 0; i < header->entry_count; i++) {
        const struct cairn_safetensors_entry *e = &header->entries[i];
        struct cairn_snapshot_piece piece = { .file = file, .file_byte = data_byte + e->begin };
        if (!cairn_snapshot_key_find(&manifest->spec, folder, e->key, &piece.tensor,
                                     &piece.plane)) {
            return cairn_fail(why, CAIRN_ERR_CORRUPT, "%s: \"%s\" is not in the snapshot's spec",
                              path, e->key);
        }
        const struct cairn_shape *shape = &manifest->spec.tensors[piece.tensor].shape;
        const cairn_dtype dtype = cairn_spec_plane_dtype(&manifest->spec, piece.tensor,
                                                         piece.plane);
        if (e->dtype != dtype ||
            !run_of_box(shape, &e->box, &piece.first_elem, &piece.elem_count)) {
            return cairn_fail(why, CAIRN_ERR_CORRUPT,
                              "%s: \"%s\" is not %s, or not a run of elements inside its tensor",
                              path, e->key, cairn_dtype_name((int)dtype));
        }
        index->pieces[index->piece_count++] = piece;
    }
    return CAIRN_OK;
}

static int compare(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int piece_order(const void *a, const void *b)
{
    const struct cairn_snapshot_piece *x = a, *y = b;
    int order = compare(x->tensor, y->tensor);
    if (order == 0) order = compare(x->plane, y->plane);
    return order != 0 ? order : compare(x->first_elem, y->first_elem);
}

static cairn_status missing(const struct cairn_manifest *manifest, uint32_t tensor, uint32_t plane,
                            uint64_t first, uint64_t end, struct cairn_sentence *why)
{
    return cairn_fail(why, CAIRN_ERR_CORRUPT,
                      "tensor \"%s\", plane %s: elements %" PRIu64 " to %" PRIu64
                      " are in no file of the snapshot; use another snapshot",
                      manifest->spec.tensors[tensor].name, cairn_plane_name((int)plane), first,
                      end - 1);
}

/* Judges one plane whose pieces begin at *next, and moves *next behind them. */
static cairn_status judge_plane(const struct cairn_snapshot_index *index,
                                const struct cairn_manifest *manifest, uint32_t tensor,
                                uint32_t plane, size_t *next, struct cairn_sentence *why)
{
    const struct cairn_tensor_spec *t = &manifest->spec.tensors[tensor];
    const uint64_t elems = cairn_geometry_of(&t->shape).elems;
    uint64_t covered = 0;
    for (; *next < index->piece_count; (*next)++) {
        const struct cairn_snapshot_piece *piece = &index->pieces[*next];
        if (piece->tensor != tensor || piece->plane != plane) break;
        if (piece->first_elem > covered) {
            return missing(manifest, tensor, plane, covered, piece->first_elem, why);
        }
        if (piece->first_elem < covered) {
            return cairn_fail(why, CAIRN_ERR_CORRUPT,
                              "tensor \"%s\", plane %s: elements from %" PRIu64
                              " are in two files, one is %s; use another snapshot",
                              t->name, cairn_plane_name((int)plane), piece->first_elem,
                              manifest->files[piece->file].path);
        }
        covered += piece->elem_count;
    }
    if (covered < elems) return missing(manifest, tensor, plane, covered, elems, why);
    return CAIRN_OK;
}

cairn_status cairn_snapshot_index_close(struct cairn_snapshot_index *index,
                                        const struct cairn_manifest *manifest,
                                        struct cairn_sentence *why)
{
    if (index->piece_count > 1) {
        qsort(index->pieces, index->piece_count, sizeof *index->pieces, piece_order);
    }
    size_t next = 0; // every piece is of a stored plane, so that the walk meets all of them
    for (uint32_t tensor = 0; tensor < manifest->spec.tensor_count; tensor++) {
        const uint32_t stored = cairn_spec_planes(&manifest->spec, tensor);
        for (uint32_t plane = 0; plane < CAIRN_PLANE_COUNT; plane++) {
            if ((stored & 1u << plane) == 0) continue;
            cairn_status status = judge_plane(index, manifest, tensor, plane, &next, why);
            if (status != CAIRN_OK) return status;
        }
    }
    return CAIRN_OK;
}

const struct cairn_snapshot_piece *
cairn_snapshot_index_find(const struct cairn_snapshot_index *index, uint32_t tensor, uint32_t plane,
                          uint64_t elem)
{
    const struct cairn_snapshot_piece key = { .tensor = tensor,
                                              .plane = plane,
                                              .first_elem = elem };
    size_t low = 0, high = index->piece_count; // ends at the first piece behind the key
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (piece_order(&index->pieces[middle], &key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0) return NULL;
    const struct cairn_snapshot_piece *piece = &index->pieces[low - 1];
    if (piece->tensor != tensor || piece->plane != plane) return NULL;
    return elem - piece->first_elem < piece->elem_count ? piece : NULL;
}

void cairn_snapshot_index_release(struct cairn_snapshot_index *index)
{
    free(index->pieces);
    *index = (struct cairn_snapshot_index) { NULL, 0, 0 };
}

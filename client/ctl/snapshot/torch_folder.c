#include "client/ctl/snapshot/torch_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/snapshot/torch_parts.h"
#include "proto/spec/planes.h"

/* The value of a key: a tensor or an option of a group, and where its archive lies. */
struct item {
    char *key;        /* owned */
    const char *name; /* of the tensor; NULL: an option */
    const char *last; /* "exp_avg", "lr"; NULL: of the model */
    size_t group;     /* of an option */
    struct cairn_shape shape;
    const struct ctl_number_type *type; /* NULL: no tensor */
    uint64_t at, bytes;
};

struct planning {
    struct ctl_torch_file *t;
    struct cairn_snapshot_file *file;
    const struct ctl_torch_wish *wish;
    const struct cairn_job_spec_data *spec;
    struct ctl_torch_order order;
    struct item *items; /* owned */
    size_t item_count, item_capacity;
    size_t *of_model; /* owned: by tensor, its item and 1 */
};

static void add_item(struct planning *p, struct item item)
{
    if (p->item_count == p->item_capacity && !p->t->failed) {
        const size_t wanted = p->item_capacity * 2 + 64;
        struct item *grown = realloc(p->items, wanted * sizeof *grown);
        p->t->failed = grown == NULL;
        if (grown != NULL) {
            p->items = grown;
            p->item_capacity = wanted;
        }
    }
    int printed = 0;
    if (item.last == NULL)
        printed = asprintf(&item.key, "model.%s", item.name);
    else if (item.name != NULL)
        printed = asprintf(&item.key, "optim.state.%s.%s", item.name, item.last);
    else
        printed = asprintf(&item.key, "optim.param_groups.%zu.%s", item.group, item.last);
    p->t->failed |= printed < 0;
    if (!p->t->failed)
        p->items[p->item_count++] = item;
    else if (printed >= 0)
        free(item.key);
}

/* ---- archives: one of each ---- */

/* The text since `from` is the pickle of an archive with these stores; the item is of it. */
static void pack(struct planning *p, size_t from, struct item item, size_t first_store,
                 size_t store_count)
{
    size_t bytes;
    item.at = p->file->file_bytes;
    cairn_ctl_put_text(p->t, ".");
    uint8_t *pickle = cairn_ctl_torch_take_text(p->t, from, &bytes);
    cairn_ctl_torch_pack(p->t, p->file, "archive", pickle, bytes, first_store, store_count);
    item.bytes = p->file->file_bytes - item.at;
    add_item(p, item);
}

static size_t begin_pickle(struct planning *p)
{
    const size_t from = p->t->text_bytes;
    cairn_ctl_put(p->t, "\x80\x02", 2);
    return from;
}

static void pack_tensor(struct planning *p, size_t tensor, uint32_t plane, cairn_dtype dtype,
                        struct item item)
{
    uint64_t bytes = item.type->bytes;
    for (uint32_t d = 0; d < item.shape.rank; d++) bytes *= item.shape.dim[d];
    const size_t from = begin_pickle(p);
    const size_t store = cairn_ctl_torch_add_store(
        p->t, (struct ctl_torch_store) { (uint32_t)tensor, plane, dtype, item.type, bytes });
    if (p->t->failed) return;
    cairn_ctl_say_tensor(p->t, store, store, &item.shape, NULL);
    pack(p, from, item, store, 1);
}

static void pack_of_model(struct planning *p, size_t tensor)
{
    const struct cairn_tensor_spec *t = &p->spec->tensors[tensor];
    const struct ctl_buffer *buffer = &p->wish->buffers[tensor];
    if (t->alias_of != NULL || (t->kind == CAIRN_BLOB && buffer->type == NULL)) return;
    const bool is_blob = t->kind == CAIRN_BLOB;
    const cairn_dtype dtype = is_blob ? CAIRN_U8 : p->wish->dtype;
    p->of_model[tensor] = p->item_count + 1;
    pack_tensor(p, tensor, CAIRN_PLANE_PARAM, dtype,
                (struct item) { .name = t->name,
                                .shape = is_blob ? buffer->shape : t->shape,
                                .type = is_blob ? buffer->type : cairn_ctl_number_type(dtype) });
}

/* All of a tensor under another name: where that is. A part of one that has a name is in the tensor. */
static void add_alias(struct planning *p, size_t tensor)
{
    const struct cairn_tensor_spec *t = &p->spec->tensors[tensor];
    if (t->alias_of == NULL || t->alias_box != NULL || p->t->failed) return;
    const size_t target = p->of_model[cairn_spec_target(p->spec, tensor)];
    if (target == 0) return;
    struct item item = p->items[target - 1];
    item.name = t->name;
    add_item(p, item);
}

static void pack_plane(struct planning *p, size_t tensor, uint32_t plane, const char *what)
{
    const struct cairn_tensor_spec *t = &p->spec->tensors[tensor];
    struct item item = { .name = t->name, .last = what, .type = cairn_ctl_number_type(CAIRN_F32) };
    if (plane != p->wish->step_plane) item.shape = t->shape;
    pack_tensor(p, tensor, plane, CAIRN_F32, item);
}

static void pack_state(struct planning *p, size_t tensor)
{
    const struct cairn_tensor_spec *t = &p->spec->tensors[tensor];
    if (!cairn_ctl_torch_is_whole(t)) return;
    const uint32_t planes = cairn_spec_planes(p->spec, tensor);
    const bool has_square = (planes & 1u << CAIRN_PLANE_EXP_AVG_SQ) != 0;
    if ((planes & 1u << CAIRN_PLANE_EXP_AVG) == 0) return;
    if (!has_square) { // SGD's: torch has no count of its steps
        pack_plane(p, tensor, CAIRN_PLANE_EXP_AVG, "momentum_buffer");
        return;
    }
    pack_plane(p, tensor, p->wish->step_plane, "step");
    pack_plane(p, tensor, CAIRN_PLANE_EXP_AVG, "exp_avg");
    pack_plane(p, tensor, CAIRN_PLANE_EXP_AVG_SQ, "exp_avg_sq");
}

static void say_its_name(void *context, size_t tensor, size_t number)
{
    const struct planning *p = context;
    (void)number;
    cairn_ctl_say(p->t, p->spec->tensors[tensor].name);
}

static void pack_group(struct planning *p, size_t number)
{
    static const char *const lists[] = { "params",
                                         "param_names" }; // get_state_dict has names in both
    struct ctl_torch_option options[CTL_TORCH_OPTIONS_MAX];
    const size_t group = p->order.groups[number];
    const size_t count = cairn_ctl_torch_options(&p->order, group, true, options);
    for (size_t i = 0; i < count; i++) {
        const size_t from = begin_pickle(p);
        cairn_ctl_say_option(p->t, &options[i]);
        pack(p, from, (struct item) { .last = options[i].name, .group = number }, 0, 0);
    }
    for (size_t i = 0; i < 2; i++) {
        const size_t from = begin_pickle(p);
        cairn_ctl_put_text(p->t, "](");
        cairn_ctl_torch_walk(&p->order, group, 0, say_its_name, p);
        cairn_ctl_put_text(p->t, "e");
        pack(p, from, (struct item) { .last = lists[i], .group = number }, 0, 0);
    }
}

static void pack_all(struct planning *p)
{
    const size_t tensors = p->spec->tensor_count;
    for (size_t i = 0; i < tensors && !p->t->failed; i++) pack_of_model(p, i);
    for (size_t i = 0; i < tensors && !p->t->failed; i++) add_alias(p, i);
    for (size_t i = 0; i < tensors && !p->t->failed; i++) pack_state(p, i);
    for (size_t i = 0; i < p->spec->group_count && !p->t->failed; i++) pack_group(p, i);
}

/* ---- .metadata ---- */

#define METADATA "ctorch.distributed.checkpoint.metadata\n"
static const char *const globals[] = {
    METADATA "TensorStorageMetadata\n",
    METADATA "BytesStorageMetadata\n",
    METADATA "ChunkStorageMetadata\n",
    METADATA "MetadataIndex\n",
    METADATA "TensorProperties\n",
    METADATA "_MEM_FORMAT_ENCODING\n",
    "ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n",
    "ctorch\nSize\n",
    "ctorch\nstrided\n",
};
enum { TENSOR, BYTES, CHUNK, INDEX, PROPERTIES, ENCODING, STORAGE, SIZE, STRIDED, GLOBALS };

/* One of these, which was said before. */
static void say_global(struct planning *p, uint8_t which)
{
    cairn_ctl_put(p->t, (uint8_t[]) { 'h', which }, 2);
}

/* An object of a class, whose attributes are to come. */
static void say_object(struct planning *p, uint8_t which)
{
    say_global(p, which);
    cairn_ctl_put_text(p->t, ")\x81}(");
}

static void end_object(struct planning *p)
{
    cairn_ctl_put_text(p->t, "ub");
}

static void say_size(struct planning *p, const struct cairn_shape *shape, bool zeros)
{
    say_global(p, SIZE);
    cairn_ctl_put_text(p->t, "(");
    for (uint32_t d = 0; d < shape->rank; d++)
        cairn_ctl_say_number(p->t, zeros ? 0 : shape->dim[d]);
    cairn_ctl_put_text(p->t, "t\x85R");
}

static void say_tensor_metadata(struct planning *p, const struct item *item)
{
    say_object(p, TENSOR);
    cairn_ctl_say(p->t, "properties");
    say_global(p, PROPERTIES);
    cairn_ctl_put_text(p->t, ")\x81(ctorch\n");
    cairn_ctl_put_text(p->t, item->type->torch);
    cairn_ctl_put_text(p->t, "\n");
    say_global(p, STRIDED);
    cairn_ctl_say_flag(p->t, false);
    say_global(p, ENCODING);
    cairn_ctl_say_number(p->t, 0);
    cairn_ctl_put_text(p->t, "\x85R");
    cairn_ctl_say_flag(p->t, false);
    cairn_ctl_put_text(p->t, "tb");
    cairn_ctl_say(p->t, "size");
    say_size(p, &item->shape, false);
    cairn_ctl_say(p->t, "chunks");
    cairn_ctl_put_text(p->t, "](");
    say_object(p, CHUNK);
    cairn_ctl_say(p->t, "offsets");
    say_size(p, &item->shape, true);
    cairn_ctl_say(p->t, "sizes");
    say_size(p, &item->shape, false);
    end_object(p);
    cairn_ctl_put_text(p->t, "e");
    end_object(p);
}

/* Writes the path that the key had before the state dict was flattened. */
static void say_path(struct planning *p, const struct item *item)
{
    cairn_ctl_put_text(p->t, "(");
    cairn_ctl_say(p->t, item->last == NULL ? "model" : "optim");
    if (item->last != NULL) cairn_ctl_say(p->t, item->name != NULL ? "state" : "param_groups");
    if (item->name != NULL)
        cairn_ctl_say(p->t, item->name);
    else
        cairn_ctl_say_number(p->t, item->group);
    if (item->last != NULL) cairn_ctl_say(p->t, item->last);
    cairn_ctl_put_text(p->t, "t");
}

static void say_place(struct planning *p, const struct item *item)
{
    const bool is_tensor = item->type != NULL;
    say_object(p, INDEX);
    cairn_ctl_say(p->t, "fqn");
    cairn_ctl_say(p->t, item->key);
    cairn_ctl_say(p->t, "offset");
    if (is_tensor)
        say_size(p, &item->shape, true);
    else
        cairn_ctl_put_text(p->t, "N");
    cairn_ctl_say(p->t, "index");
    if (is_tensor)
        cairn_ctl_say_number(p->t, 0);
    else
        cairn_ctl_put_text(p->t, "N");
    end_object(p);
    say_object(p, STORAGE);
    cairn_ctl_say(p->t, "relative_path");
    cairn_ctl_say(p->t, CTL_TORCH_FOLDER_FILE);
    cairn_ctl_say(p->t, "offset");
    cairn_ctl_say_number(p->t, item->at);
    cairn_ctl_say(p->t, "length");
    cairn_ctl_say_number(p->t, item->bytes);
    cairn_ctl_say(p->t, "transform_descriptors");
    cairn_ctl_put_text(p->t, "N");
    end_object(p);
}

static uint8_t *metadata_of(struct planning *p, size_t *bytes_out)
{
    struct ctl_torch_file *t = p->t;
    const size_t from = begin_pickle(p);
    for (uint8_t i = 0; i < GLOBALS; i++) {
        cairn_ctl_put_text(t, globals[i]);
        cairn_ctl_put(t, (uint8_t[]) { 'q', i, '0' },
                      3); // kept under that number, and off the stack
    }
    cairn_ctl_put_text(t, METADATA "Metadata\n)\x81}(");
    cairn_ctl_say(t, "state_dict_metadata");
    cairn_ctl_put_text(t, "}(");
    for (size_t i = 0; i < p->item_count; i++) {
        cairn_ctl_say(t, p->items[i].key);
        if (p->items[i].type != NULL) {
            say_tensor_metadata(p, &p->items[i]);
        } else {
            say_object(p, BYTES);
            end_object(p);
        }
    }
    cairn_ctl_put_text(t, "u");
    cairn_ctl_say(t, "planner_data");
    cairn_ctl_put_text(t, "}(");
    for (size_t i = 0; i < p->item_count; i++) {
        cairn_ctl_say(t, p->items[i].key);
        say_path(p, &p->items[i]);
    }
    cairn_ctl_put_text(t, "u");
    cairn_ctl_say(t, "storage_data");
    cairn_ctl_put_text(t, "}(");
    for (size_t i = 0; i < p->item_count; i++) say_place(p, &p->items[i]);
    cairn_ctl_put_text(t, "u");
    cairn_ctl_say(t, "storage_meta");
    cairn_ctl_put_text(t, "N");
    cairn_ctl_say(t, "version");
    cairn_ctl_put_text(t, "Nub.");
    return cairn_ctl_torch_take_text(t, from, bytes_out);
}

cairn_status cairn_ctl_torch_folder_plan(const struct cairn_manifest *manifest,
                                         const struct ctl_torch_wish *wish,
                                         struct cairn_snapshot_file *file,
                                         struct ctl_torch_file **out, char **metadata_out,
                                         size_t *metadata_bytes_out)
{
    const struct cairn_job_spec_data *spec = &manifest->spec;
    struct ctl_torch_file *t = calloc(1, sizeof *t);
    struct planning p = { .t = t,
                          .file = file,
                          .wish = wish,
                          .spec = spec,
                          .of_model = calloc(spec->tensor_count + 1, sizeof *p.of_model) };
    const bool is_sorted = cairn_ctl_torch_order(manifest, &p.order);
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    uint8_t *metadata = NULL;
    if (t != NULL && p.of_model != NULL && is_sorted) {
        pack_all(&p);
        metadata = metadata_of(&p, metadata_bytes_out);
        status = t->failed             ? CAIRN_ERR_NO_MEMORY
                 : t->store_count == 0 ? CAIRN_ERR_NOT_FOUND
                                       : CAIRN_OK;
    }
    for (size_t i = 0; i < p.item_count; i++) free(p.items[i].key);
    free(p.items);
    free(p.of_model);
    cairn_ctl_torch_order_release(&p.order);
    if (status == CAIRN_OK) {
        *out = t;
        *metadata_out = (char *)metadata;
    } else {
        free(metadata);
        cairn_ctl_torch_free(t);
    }
    return status;
}

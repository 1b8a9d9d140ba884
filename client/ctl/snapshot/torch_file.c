#include "client/ctl/snapshot/torch_file.h"

#include <stdlib.h>

#include "client/ctl/snapshot/torch_parts.h"
#include "proto/spec/planes.h"

struct planning {
    struct ctl_torch_file *t;
    const struct ctl_torch_wish *wish;
    const struct cairn_job_spec_data *spec;
    struct ctl_torch_order order;
    size_t *stored; /* owned: which storage has the parameter of a tensor */
};

static uint64_t bytes_of(const struct cairn_shape *shape, uint32_t each)
{
    uint64_t bytes = each;
    for (uint32_t d = 0; d < shape->rank; d++) bytes *= shape->dim[d];
    return bytes;
}

static size_t add_plane(struct planning *p, size_t tensor, uint32_t plane, cairn_dtype dtype,
                        const struct cairn_shape *shape)
{
    const struct ctl_number_type *type = cairn_ctl_number_type(dtype);
    return cairn_ctl_torch_add_store(
        p->t, (struct ctl_torch_store) { (uint32_t)tensor, plane, dtype, type,
                                         bytes_of(shape, type->bytes) });
}

/* The shape of a tensor of the model, or of a buffer that is kept as its bytes; NULL: it is
 * neither. */
static const struct cairn_shape *model_shape(const struct planning *p, size_t tensor)
{
    const struct cairn_tensor_spec *t = &p->spec->tensors[tensor];
    if (t->kind != CAIRN_BLOB) return &t->shape;
    return p->wish->buffers[tensor].type != NULL ? &p->wish->buffers[tensor].shape : NULL;
}

static size_t add_of_model(struct planning *p, size_t tensor)
{
    const struct cairn_tensor_spec *t = &p->spec->tensors[tensor];
    if (t->kind != CAIRN_BLOB)
        return add_plane(p, tensor, CAIRN_PLANE_PARAM, p->wish->dtype, &t->shape);
    return cairn_ctl_torch_add_store(
        p->t, (struct ctl_torch_store) { (uint32_t)tensor, CAIRN_PLANE_PARAM, CAIRN_U8,
                                         p->wish->buffers[tensor].type, t->shape.dim[0] });
}

static void say_model(struct planning *p)
{
    const struct cairn_job_spec_data *spec = p->spec;
    cairn_ctl_put_text(p->t, "}(");
    for (size_t i = 0; i < spec->tensor_count; i++)
        if (spec->tensors[i].alias_of == NULL && model_shape(p, i) != NULL)
            p->stored[i] = add_of_model(p, i);
    for (size_t i = 0; i < spec->tensor_count && !p->t->failed; i++) {
        const size_t tensor = p->order.tensors[i];
        const struct cairn_tensor_spec *t = &spec->tensors[tensor];
        const size_t target = t->alias_of != NULL ? cairn_spec_target(spec, tensor) : tensor;
        const struct cairn_shape *shape = model_shape(p, target);
        if (shape == NULL) continue;
        cairn_ctl_say(p->t, t->name);
        cairn_ctl_say_tensor(p->t, p->stored[target], 0, shape, t->alias_box);
    }
    cairn_ctl_put_text(p->t, "u");
}

static void say_plane(struct planning *p, size_t tensor, uint32_t plane, const char *name)
{
    static const struct cairn_shape scalar = { 0 };
    const struct cairn_shape *shape = plane == p->wish->step_plane
                                          ? &scalar
                                          : &p->spec->tensors[tensor].shape;
    cairn_ctl_say(p->t, name);
    const size_t store = add_plane(p, tensor, plane, CAIRN_F32, shape);
    if (!p->t->failed) cairn_ctl_say_tensor(p->t, store, 0, shape, NULL);
}

static void say_state(void *context, size_t tensor, size_t number)
{
    struct planning *p = context;
    const uint32_t planes = cairn_spec_planes(p->spec, tensor);
    const bool has_square = (planes & 1u << CAIRN_PLANE_EXP_AVG_SQ) != 0;
    if ((planes & 1u << CAIRN_PLANE_EXP_AVG) == 0) return; // none, as torch's SGD has it
    cairn_ctl_say_number(p->t, number);
    cairn_ctl_put_text(p->t, "}(");
    if (has_square) {
        say_plane(p, tensor, p->wish->step_plane, "step");
        say_plane(p, tensor, CAIRN_PLANE_EXP_AVG, "exp_avg");
        say_plane(p, tensor, CAIRN_PLANE_EXP_AVG_SQ, "exp_avg_sq");
    } else {
        say_plane(p, tensor, CAIRN_PLANE_EXP_AVG, "momentum_buffer");
    }
    cairn_ctl_put_text(p->t, "u");
}

static void say_its_number(void *context, size_t tensor, size_t number)
{
    const struct planning *p = context;
    (void)tensor;
    cairn_ctl_say_number(p->t, number);
}

static void say_its_name(void *context, size_t tensor, size_t number)
{
    const struct planning *p = context;
    (void)number;
    cairn_ctl_say(p->t, p->spec->tensors[tensor].name);
}

static void say_options(struct planning *p, size_t group)
{
    struct ctl_torch_option options[CTL_TORCH_OPTIONS_MAX];
    const size_t count = cairn_ctl_torch_options(&p->order, group, false, options);
    for (size_t i = 0; i < count; i++) {
        cairn_ctl_say(p->t, options[i].name);
        cairn_ctl_say_option(p->t, &options[i]);
    }
}

static void say_groups(struct planning *p)
{
    size_t next = 0;
    cairn_ctl_put_text(p->t, "](");
    for (size_t i = 0; i < p->spec->group_count && !p->t->failed; i++) {
        const size_t group = p->order.groups[i];
        cairn_ctl_put_text(p->t, "}(");
        say_options(p, group);
        cairn_ctl_say(p->t, "params");
        cairn_ctl_put_text(p->t, "](");
        const size_t end = cairn_ctl_torch_walk(&p->order, group, next, say_its_number, p);
        cairn_ctl_put_text(p->t, "e");
        cairn_ctl_say(p->t, "param_names");
        cairn_ctl_put_text(p->t, "](");
        cairn_ctl_torch_walk(&p->order, group, next, say_its_name, p);
        cairn_ctl_put_text(p->t, "eu");
        next = end;
    }
    cairn_ctl_put_text(p->t, "e");
}

static void say_all(struct planning *p)
{
    struct ctl_torch_file *t = p->t;
    size_t next = 0;
    cairn_ctl_put(t, "\x80\x02}(", 4);
    cairn_ctl_say(t, "model");
    say_model(p);
    cairn_ctl_say(t, "optimizer");
    cairn_ctl_put_text(t, "}(");
    cairn_ctl_say(t, "state");
    cairn_ctl_put_text(t, "}(");
    for (size_t i = 0; i < p->spec->group_count && !t->failed; i++)
        next = cairn_ctl_torch_walk(&p->order, p->order.groups[i], next, say_state, p);
    cairn_ctl_put_text(t, "u");
    cairn_ctl_say(t, "param_groups");
    say_groups(p);
    cairn_ctl_put_text(t, "u");
    cairn_ctl_say(t, "step");
    cairn_ctl_say_number(t, p->order.manifest->step);
    cairn_ctl_put_text(t, "u.");
}

cairn_status cairn_ctl_torch_plan(const struct cairn_manifest *manifest,
                                  const struct ctl_torch_wish *wish,
                                  struct cairn_snapshot_file *file, struct ctl_torch_file **out)
{
    const struct cairn_job_spec_data *spec = &manifest->spec;
    struct ctl_torch_file *t = calloc(1, sizeof *t);
    struct planning p = { .t = t,
                          .wish = wish,
                          .spec = spec,
                          .stored = calloc(spec->tensor_count + 1, sizeof *p.stored) };
    const bool is_sorted = cairn_ctl_torch_order(manifest, &p.order);
    cairn_status status = t != NULL && p.stored != NULL && is_sorted ? CAIRN_OK
                                                                     : CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK) {
        size_t bytes;
        say_all(&p);
        uint8_t *pickle = cairn_ctl_torch_take_text(t, 0, &bytes);
        cairn_ctl_torch_pack(t, file, "checkpoint", pickle, bytes, 0, t->store_count);
        if (t->failed) status = CAIRN_ERR_NO_MEMORY;
        if (status == CAIRN_OK && t->store_count == 0) status = CAIRN_ERR_NOT_FOUND;
    }
    cairn_ctl_torch_order_release(&p.order);
    free(p.stored);
    if (status == CAIRN_OK)
        *out = t;
    else
        cairn_ctl_torch_free(t);
    return status;
}

void cairn_ctl_torch_free(struct ctl_torch_file *t)
{
    if (t == NULL) return;
    free(t->text);
    free(t->members);
    free(t->stores);
    free(t);
}

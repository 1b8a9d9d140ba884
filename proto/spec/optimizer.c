#include "proto/spec/optimizer.h"

#include <assert.h>
#include <string.h>

#include "proto/spec/spec_fields.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define HYPER_MAX    1e18 // so that every scalar made of them is finite in fp32
#define FIELD(field) #field, offsetof(struct cairn_group_hyper, field)

static const struct cairn_hyper_info adam_hypers[] = {
    { FIELD(lr), 1e-3, 0, HYPER_MAX, false, false, false },
    { FIELD(beta1), 0.9, 0, 1, true, false, false },
    { FIELD(beta2), 0.999, 0, 1, true, false, false },
    { FIELD(eps), 1e-8, 0, HYPER_MAX, false, false, true },
    { FIELD(weight_decay), 0, 0, HYPER_MAX, false, false, false },
};
static const struct cairn_hyper_info adamw_hypers[] = {
    { FIELD(lr), 1e-3, 0, HYPER_MAX, false, false, false },
    { FIELD(beta1), 0.9, 0, 1, true, false, false },
    { FIELD(beta2), 0.999, 0, 1, true, false, false },
    { FIELD(eps), 1e-8, 0, HYPER_MAX, false, false, true },
    { FIELD(weight_decay), 0.01, 0, HYPER_MAX, false, false, false },
};
static const struct cairn_hyper_info sgd_hypers[] = {
    { FIELD(lr), 1e-3, 0, HYPER_MAX, false, false, false },
    { FIELD(momentum), 0, 0, HYPER_MAX, false, false, false },
    { FIELD(nesterov), 0, 0, 1, false, true, false },
    { FIELD(weight_decay), 0, 0, HYPER_MAX, false, false, false },
};

static uint32_t adam_planes(const struct cairn_group_hyper *hyper)
{
    (void)hyper;
    return 1u << CAIRN_PLANE_EXP_AVG | 1u << CAIRN_PLANE_EXP_AVG_SQ;
}

static uint32_t sgd_planes(const struct cairn_group_hyper *hyper)
{
    return hyper->momentum == 0 ? 0 : 1u << CAIRN_PLANE_EXP_AVG;
}

static void adam_scalars(const struct cairn_group_hyper *h, uint64_t step,
                         struct cairn_group_scalars *out)
{
    // Double: beta^step is close to 1 in the first steps.
    double bc1 = 1.0 - cairn_power(h->beta1, step);
    double bc2 = 1.0 - cairn_power(h->beta2, step);
    out->neg_step_size = cairn_f32_bits((float)-(h->lr / bc1));
    out->decay = cairn_f32_bits((float)h->weight_decay);
    out->one_minus_beta1 = cairn_f32_bits((float)(1.0 - h->beta1));
    out->beta2 = cairn_f32_bits((float)h->beta2);
    out->one_minus_beta2 = cairn_f32_bits((float)(1.0 - h->beta2));
    out->sqrt_bc2 = cairn_f32_bits((float)cairn_square_root(bc2));
    out->eps = cairn_f32_bits((float)h->eps);
}

static void adamw_scalars(const struct cairn_group_hyper *h, uint64_t step,
                          struct cairn_group_scalars *out)
{
    adam_scalars(h, step, out);
    out->decay = cairn_f32_bits((float)(1.0 - h->lr * h->weight_decay));
}

static void sgd_scalars(const struct cairn_group_hyper *h, uint64_t step,
                        struct cairn_group_scalars *out)
{
    if (h->momentum != 0) {
        out->flags = CAIRN_SCALAR_MOMENTUM;
        if (h->nesterov != 0) out->flags |= CAIRN_SCALAR_NESTEROV;
        if (step == 1) out->flags |= CAIRN_SCALAR_FIRST_STEP;
    }
    out->neg_step_size = cairn_f32_bits((float)-h->lr);
    out->decay = cairn_f32_bits((float)h->weight_decay);
    out->momentum = cairn_f32_bits((float)h->momentum);
}

static const struct cairn_optimizer registry[] = {
    { CAIRN_OPTIMIZER_ADAMW, "adamw", adamw_hypers, COUNT(adamw_hypers), adam_planes,
      adamw_scalars },
    { CAIRN_OPTIMIZER_ADAM, "adam", adam_hypers, COUNT(adam_hypers), adam_planes, adam_scalars },
    { CAIRN_OPTIMIZER_SGD, "sgd", sgd_hypers, COUNT(sgd_hypers), sgd_planes, sgd_scalars },
};
static const char *const registry_names[] = { "adamw", "adam", "sgd", NULL };
_Static_assert(COUNT(registry) == CAIRN_OPTIMIZER_COUNT - 1, "every id has its entry");
_Static_assert(COUNT(registry_names) == COUNT(registry) + 1, "every entry has its name");

const struct cairn_optimizer *cairn_optimizer_by_id(uint32_t id)
{
    for (size_t i = 0; i < COUNT(registry); i++) {
        if (registry[i].id == id) return &registry[i];
    }
    return NULL;
}

const struct cairn_optimizer *cairn_optimizer_by_name(const char *name)
{
    for (size_t i = 0; i < COUNT(registry); i++) {
        if (strcmp(registry[i].name, name) == 0) return &registry[i];
    }
    return NULL;
}

const char *const *cairn_optimizer_names(void)
{
    return registry_names;
}

static double *field_at(struct cairn_group_hyper *hyper, size_t offset_bytes)
{
    return (double *)(void *)((char *)hyper + offset_bytes);
}

const struct cairn_hyper_info *cairn_optimizer_hyper(const struct cairn_optimizer *optimizer,
                                                     const char *name)
{
    for (size_t i = 0; optimizer != NULL && i < optimizer->hyper_count; i++) {
        if (strcmp(optimizer->hypers[i].name, name) == 0) return &optimizer->hypers[i];
    }
    return NULL;
}

static bool in_range(const struct cairn_hyper_info *info, double value)
{
    if (info->is_switch) return value == 0 || value == 1;
    if (!(value >= info->min)) return false; // NaN too
    return info->max_open ? value < info->max : value <= info->max;
}

static cairn_status refuse(const char *field, const char **field_out)
{
    if (field_out != NULL) *field_out = field;
    return CAIRN_ERR_INVALID;
}

cairn_status cairn_group_hyper_check(const struct cairn_group_hyper *hyper, const char **field_out)
{
    const struct cairn_optimizer *o = cairn_optimizer_by_id(hyper->optimizer);
    if (o == NULL) return refuse("optimizer", field_out);
    struct cairn_group_hyper rest = *hyper; // what the optimizer does not use stays in it
    for (size_t i = 0; i < o->hyper_count; i++) {
        double *value = field_at(&rest, o->hypers[i].offset_bytes);
        if (!in_range(&o->hypers[i], *value)) return refuse(o->hypers[i].name, field_out);
        *value = 0;
    }
    if (hyper->nesterov != 0 && hyper->momentum == 0) return refuse("nesterov", field_out);
#define X(name, ...) \
    if (rest.name != 0) return refuse(#name, field_out);
    CAIRN_GROUP_FIELDS(X)
#undef X
    return CAIRN_OK;
}

cairn_status cairn_group_hyper_of_spec(const struct cairn_group_spec *group,
                                       struct cairn_group_hyper *out, const char **field_out)
{
    const struct cairn_optimizer *o = cairn_optimizer_by_name(group->optimizer);
    if (o == NULL) return refuse("optimizer", field_out);
    struct cairn_group_hyper all = { .optimizer = o->id };
#define X(name, ...) all.name = group->name;
    CAIRN_GROUP_FIELDS(X)
#undef X
    struct cairn_group_hyper used = { .optimizer = o->id };
    for (size_t i = 0; i < o->hyper_count; i++) {
        size_t at = o->hypers[i].offset_bytes;
        *field_at(&used, at) = *field_at(&all, at);
    }
    cairn_status status = cairn_group_hyper_check(&used, field_out);
    if (status == CAIRN_OK) *out = used;
    return status;
}

cairn_status cairn_group_spec_unused(const struct cairn_group_spec *group, const char **field_out)
{
    const struct cairn_optimizer *o = cairn_optimizer_by_name(group->optimizer);
    if (o == NULL) return refuse("optimizer", field_out);
    for (size_t i = 0; i < cairn_group_fields.count; i++) {
        const struct cairn_spec_field *field = &cairn_group_fields.fields[i];
        const bool unsaid = cairn_spec_field_number(field, group) == 0 ||
                            cairn_spec_field_is_default(field, group);
        if (!unsaid && cairn_optimizer_hyper(o, field->name) == NULL)
            return refuse(field->name, field_out);
    }
    return CAIRN_OK;
}

uint32_t cairn_optimizer_planes(const struct cairn_group_hyper *hyper)
{
    const struct cairn_optimizer *o = cairn_optimizer_by_id(hyper->optimizer);
    assert(o != NULL);
    return o->planes(hyper);
}

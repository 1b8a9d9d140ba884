#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/snapshot/torch_parts.h"
#include "proto/spec/schedule.h"

struct sorting {
    const struct cairn_job_spec_data *spec;
    size_t *first; // of a group: the least place of a tensor of it
};

static uint32_t place_of(const struct cairn_tensor_spec *t)
{
    return t->order > 0 ? t->order : UINT32_MAX;
}

static int by_order(const void *a, const void *b, void *context)
{
    const struct sorting *s = context;
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    const uint32_t at = place_of(&s->spec->tensors[x]), there = place_of(&s->spec->tensors[y]);
    if (at != there) return at < there ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* from_torch calls them default, group1, group2, ... by their place; others go by their first tensor. */
static uint64_t rank_of(const struct sorting *s, size_t group)
{
    const char *name = s->spec->groups[group].name;
    unsigned number;
    int end = 0;
    if (strcmp(name, "default") == 0) return 0;
    if (sscanf(name, "group%u%n", &number, &end) == 1 && name[end] == '\0') return number;
    return UINT64_C(1) << 32 | s->first[group];
}

static int by_rank(const void *a, const void *b, void *context)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    const uint64_t at = rank_of(context, x), there = rank_of(context, y);
    if (at != there) return at < there ? -1 : 1;
    return x < y ? -1 : x > y;
}

bool cairn_ctl_torch_is_whole(const struct cairn_tensor_spec *t)
{
    return t->kind != CAIRN_BLOB && t->alias_of == NULL;
}

bool cairn_ctl_torch_order(const struct cairn_manifest *manifest, struct ctl_torch_order *out)
{
    const struct cairn_job_spec_data *spec = &manifest->spec;
    struct ctl_torch_order o = { manifest, spec, calloc(spec->tensor_count + 1, sizeof *o.tensors),
                                 calloc(spec->group_count + 1, sizeof *o.groups) };
    struct sorting s = { spec, calloc(spec->group_count + 1, sizeof *s.first) };
    const bool ok = o.tensors != NULL && o.groups != NULL && s.first != NULL;
    for (size_t i = 0; i < spec->tensor_count && ok; i++) o.tensors[i] = i;
    for (size_t g = 0; g < spec->group_count && ok; g++) o.groups[g] = g;
    if (ok) qsort_r(o.tensors, spec->tensor_count, sizeof *o.tensors, by_order, &s);
    for (size_t i = spec->tensor_count; i-- > 0 && ok;) {
        const struct cairn_tensor_spec *t = &spec->tensors[o.tensors[i]];
        const size_t g = t->kind == CAIRN_TRAINED ? cairn_spec_find_group(spec, t->group)
                                                  : SIZE_MAX;
        if (g < spec->group_count) s.first[g] = i;
    }
    if (ok) qsort_r(o.groups, spec->group_count, sizeof *o.groups, by_rank, &s);
    free(s.first);
    *out = o;
    return ok;
}

void cairn_ctl_torch_order_release(struct ctl_torch_order *o)
{
    free(o->tensors);
    free(o->groups);
}

/* Whether torch's optimizer has this one in that group. */
static bool is_member(const struct ctl_torch_order *o, size_t tensor, size_t group)
{
    const struct cairn_tensor_spec *t = &o->spec->tensors[tensor];
    return cairn_ctl_torch_is_whole(t) && t->kind == CAIRN_TRAINED &&
           cairn_spec_find_group(o->spec, t->group) == group;
}

size_t cairn_ctl_torch_walk(const struct ctl_torch_order *o, size_t group, size_t next,
                            void (*each)(void *context, size_t tensor, size_t number),
                            void *context)
{
    for (size_t i = 0; i < o->spec->tensor_count; i++)
        if (is_member(o, o->tensors[i], group)) each(context, o->tensors[i], next++);
    return next;
}

/* ---- options ---- */

static struct ctl_torch_option option(const char *name, enum ctl_torch_option_kind kind,
                                      double value, double second)
{
    return (struct ctl_torch_option) { name, kind, value, second };
}

size_t cairn_ctl_torch_options(const struct ctl_torch_order *o, size_t group, bool always_initial,
                               struct ctl_torch_option out[CTL_TORCH_OPTIONS_MAX])
{
    const struct cairn_group_spec *g = &o->spec->groups[group];
    const bool is_sgd = strcmp(g->optimizer, "sgd") == 0;
    const bool is_scheduled = g->schedule.kind != CAIRN_SCHEDULE_CONSTANT ||
                              g->schedule.warmup_steps > 0;
    size_t n = 0;
    out[n++] = option("lr", CTL_OPTION_REAL,
                      cairn_schedule_lr(&g->schedule, g->lr, o->manifest->step), 0);
    if (is_scheduled || always_initial) out[n++] = option("initial_lr", CTL_OPTION_REAL, g->lr, 0);
    out[n++] = option("weight_decay", CTL_OPTION_REAL, g->weight_decay, 0);
    out[n++] = option("maximize", CTL_OPTION_FLAG, false, 0);
    out[n++] = option("foreach", CTL_OPTION_NONE, 0, 0);
    out[n++] = option("differentiable", CTL_OPTION_FLAG, false, 0);
    out[n++] = option("fused", CTL_OPTION_NONE, 0, 0);
    if (is_sgd) {
        out[n++] = option("momentum", CTL_OPTION_REAL, g->momentum, 0);
        out[n++] = option("dampening", CTL_OPTION_REAL, 0, 0);
        out[n++] = option("nesterov", CTL_OPTION_FLAG, g->nesterov, 0);
        return n;
    }
    out[n++] = option("betas", CTL_OPTION_PAIR, g->beta1, g->beta2);
    out[n++] = option("eps", CTL_OPTION_REAL, g->eps, 0);
    out[n++] = option("amsgrad", CTL_OPTION_FLAG, false, 0);
    out[n++] = option("capturable", CTL_OPTION_FLAG, false, 0);
    out[n++] = option("decoupled_weight_decay", CTL_OPTION_FLAG, strcmp(g->optimizer, "adamw") == 0,
                      0);
    return n;
}

/* Its value. */
void cairn_ctl_say_option(struct ctl_torch_file *t, const struct ctl_torch_option *option)
{
    switch (option->kind) {
    case CTL_OPTION_REAL: cairn_ctl_say_real(t, option->value); return;
    case CTL_OPTION_FLAG: cairn_ctl_say_flag(t, option->value != 0); return;
    case CTL_OPTION_NONE: cairn_ctl_put_text(t, "N"); return;
    case CTL_OPTION_PAIR:
        cairn_ctl_say_real(t, option->value);
        cairn_ctl_say_real(t, option->second);
        cairn_ctl_put_text(t, "\x86"); // a tuple of both
        return;
    }
}

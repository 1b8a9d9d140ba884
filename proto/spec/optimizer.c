#if defined(__SSE2__)
#include <inttypes.h>
#include <emmintrin.h>
#endif

#include "proto/spec/spec.h"

#include <assert.h>
#include <math.h>
#include <sodium.h>
#include <stdbool.h>
#include <string.h>

#include "proto/base/text.h"
#include "proto/spec/scalars.h"
#include "proto/spec/spec_fields.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define HYPER_MAX    1e18 // so that every scalar made of them is finite in fp32
#define FIELD(field) #field, offsetof(struct group_hyper, field)

#define EMA                                              \
    { FIELD(ema), 0, 0, 1, true, false, false },         \
    {                                                    \
        FIELD(ema_schedule), 0, 0, 1, false, true, false \
    }

static const struct hyper_info adam_hypers[] = {
    { FIELD(lr), 1e-3, 0, HYPER_MAX, false, false, false },
    { FIELD(beta1), 0.9, 0, 1, true, false, false },
    { FIELD(beta2), 0.999, 0, 1, true, false, false },
    { FIELD(eps), 1e-8, 0, HYPER_MAX, false, false, true },
    { FIELD(weight_decay), 0, 0, HYPER_MAX, false, false, false },
    EMA,
};
static const struct hyper_info adamw_hypers[] = {
    { FIELD(lr), 1e-3, 0, HYPER_MAX, false, false, false },
    { FIELD(beta1), 0.9, 0, 1, true, false, false },
    { FIELD(beta2), 0.999, 0, 1, true, false, false },
    { FIELD(eps), 1e-8, 0, HYPER_MAX, false, false, true },
    { FIELD(weight_decay), 0.01, 0, HYPER_MAX, false, false, false },
    EMA,
};
static const struct hyper_info sgd_hypers[] = {
    { FIELD(lr), 1e-3, 0, HYPER_MAX, false, false, false },
    { FIELD(momentum), 0, 0, HYPER_MAX, false, false, false },
    { FIELD(nesterov), 0, 0, 1, false, true, false },
    { FIELD(weight_decay), 0, 0, HYPER_MAX, false, false, false },
    EMA,
};

static uint32_t adam_planes(const struct group_hyper *hyper)
{
    (void)hyper;
    return 1u << CAIRN_PLANE_EXP_AVG | 1u << CAIRN_PLANE_EXP_AVG_SQ;
}

static uint32_t sgd_planes(const struct group_hyper *hyper)
{
    return hyper->momentum == 0 ? 0 : 1u << CAIRN_PLANE_EXP_AVG;
}

static void adam_scalars(const struct group_hyper *h, uint64_t step, struct group_scalars *out)
{
    // In double, because beta^step is close to 1 in the first steps.
    double bc1 = 1.0 - scalar_power(h->beta1, step);
    double bc2 = 1.0 - scalar_power(h->beta2, step);
    out->neg_step_size = f32_bits((float)-(h->lr / bc1));
    out->decay = f32_bits((float)h->weight_decay);
    out->one_minus_beta1 = f32_bits((float)(1.0 - h->beta1));
    out->beta2 = f32_bits((float)h->beta2);
    out->one_minus_beta2 = f32_bits((float)(1.0 - h->beta2));
    out->sqrt_bc2 = f32_bits((float)init_sqrt(bc2));
    out->eps = f32_bits((float)h->eps);
}

static void adamw_scalars(const struct group_hyper *h, uint64_t step, struct group_scalars *out)
{
    adam_scalars(h, step, out);
    out->decay = f32_bits((float)(1.0 - h->lr * h->weight_decay));
}

static void sgd_scalars(const struct group_hyper *h, uint64_t step, struct group_scalars *out)
{
    if (h->momentum != 0) {
        out->flags = CAIRN_SCALAR_MOMENTUM;
        if (h->nesterov != 0) out->flags |= CAIRN_SCALAR_NESTEROV;
        if (step == 1) out->flags |= CAIRN_SCALAR_FIRST_STEP;
    }
    out->neg_step_size = f32_bits((float)-h->lr);
    out->decay = f32_bits((float)h->weight_decay);
    out->momentum = f32_bits((float)h->momentum);
}

static const struct optimizer_kind registry[] = {
    { CAIRN_OPTIMIZER_ADAMW, "adamw", adamw_hypers, COUNT(adamw_hypers), adam_planes,
      adamw_scalars },
    { CAIRN_OPTIMIZER_ADAM, "adam", adam_hypers, COUNT(adam_hypers), adam_planes, adam_scalars },
    { CAIRN_OPTIMIZER_SGD, "sgd", sgd_hypers, COUNT(sgd_hypers), sgd_planes, sgd_scalars },
};
static const char *const registry_names[] = { "adamw", "adam", "sgd", NULL };
_Static_assert(COUNT(registry) == CAIRN_OPTIMIZER_COUNT - 1, "every id has its entry");
_Static_assert(COUNT(registry_names) == COUNT(registry) + 1, "every entry has its name");

const struct optimizer_kind *optimizer_by_id(uint32_t id)
{
    for (size_t i = 0; i < COUNT(registry); i++) {
        if (registry[i].id == id) return &registry[i];
    }
    return NULL;
}

const struct optimizer_kind *optimizer_by_name(const char *name)
{
    for (size_t i = 0; i < COUNT(registry); i++) {
        if (strcmp(registry[i].name, name) == 0) return &registry[i];
    }
    return NULL;
}

const char *const *optimizer_names(void)
{
    return registry_names;
}

static double *field_at(struct group_hyper *hyper, size_t offset_bytes)
{
    return (double *)(void *)((char *)hyper + offset_bytes);
}

const struct hyper_info *optimizer_hyper(const struct optimizer_kind *optimizer, const char *name)
{
    for (size_t i = 0; optimizer != NULL && i < optimizer->hyper_count; i++) {
        if (strcmp(optimizer->hypers[i].name, name) == 0) return &optimizer->hypers[i];
    }
    return NULL;
}

static bool in_range(const struct hyper_info *info, double value)
{
    if (info->is_switch) return value == 0 || value == 1;
    if (!(value >= info->min)) return false; // refuses NaN, too
    return info->max_open ? value < info->max : value <= info->max;
}

static cairn_status refuse_field(const char *field, const char **field_out)
{
    if (field_out != NULL) *field_out = field;
    return CAIRN_ERR_INVALID;
}

cairn_status group_hyper_check(const struct group_hyper *hyper, const char **field_out)
{
    const struct optimizer_kind *o = optimizer_by_id(hyper->optimizer);
    if (o == NULL) return refuse_field("optimizer", field_out);
    struct group_hyper rest = *hyper; // keeps only what the optimizer does not use
    for (size_t i = 0; i < o->hyper_count; i++) {
        double *value = field_at(&rest, o->hypers[i].offset_bytes);
        if (!in_range(&o->hypers[i], *value)) return refuse_field(o->hypers[i].name, field_out);
        *value = 0;
    }
    if (hyper->nesterov != 0 && hyper->momentum == 0) return refuse_field("nesterov", field_out);
    if (hyper->ema_schedule != 0 && hyper->ema == 0) return refuse_field("ema_schedule", field_out);
#define X(name, ...) \
    if (rest.name != 0) return refuse_field(#name, field_out);
    CAIRN_GROUP_FIELDS(X)
#undef X
    return CAIRN_OK;
}

cairn_status group_hyper_of_spec(const struct group_spec *group, struct group_hyper *out,
                                 const char **field_out)
{
    const struct optimizer_kind *o = optimizer_by_name(group->optimizer);
    if (o == NULL) return refuse_field("optimizer", field_out);
    struct group_hyper all = { .optimizer = o->id };
#define X(name, ...) all.name = group->name;
    CAIRN_GROUP_FIELDS(X)
#undef X
    struct group_hyper used = { .optimizer = o->id };
    for (size_t i = 0; i < o->hyper_count; i++) {
        size_t at = o->hypers[i].offset_bytes;
        *field_at(&used, at) = *field_at(&all, at);
    }
    cairn_status status = group_hyper_check(&used, field_out);
    if (status == CAIRN_OK) *out = used;
    return status;
}

cairn_status group_spec_unused(const struct group_spec *group, const char **field_out)
{
    const struct optimizer_kind *o = optimizer_by_name(group->optimizer);
    if (o == NULL) return refuse_field("optimizer", field_out);
    for (size_t i = 0; i < group_fields.count; i++) {
        const struct spec_field *field = &group_fields.fields[i];
        const bool unsaid = spec_field_number(field, group) == 0 ||
                            spec_field_is_default(field, group);
        if (!unsaid && optimizer_hyper(o, field->name) == NULL)
            return refuse_field(field->name, field_out);
    }
    return CAIRN_OK;
}

uint32_t optimizer_planes(const struct group_hyper *hyper)
{
    const struct optimizer_kind *o = optimizer_by_id(hyper->optimizer);
    assert(o != NULL);
    return o->planes(hyper) | (hyper->ema > 0 ? 1u << CAIRN_PLANE_EMA : 0);
}

/* ==== planes ==== */

uint32_t spec_planes(const struct job_spec_data *spec, size_t tensor)
{
    const struct tensor_spec *t = &spec->tensors[tensor];
    const uint32_t master = 1u << CAIRN_PLANE_PARAM;
    if (geometry_of(&t->shape).elems == 0) return 0;
    if (t->kind != CAIRN_TRAINED) return master;
    const size_t group = spec_find_group(spec, t->group);
    struct group_hyper hyper;
    assert(group != SIZE_MAX);
    const cairn_status status = group_hyper_of_spec(&spec->groups[group], &hyper, NULL);
    assert(status == CAIRN_OK); // the registry accepts whatever spec_check passes (tested)
    (void)status;
    return master | optimizer_planes(&hyper);
}

cairn_dtype spec_plane_dtype(const struct job_spec_data *spec, size_t tensor, uint32_t plane)
{
    return plane_dtype((int)plane, spec->tensors[tensor].master);
}

/* ==== schedule ==== */

#define LR_MAX 1e18 // as for every hyper-parameter (spec.h): scalars made of it are finite in fp32

static const char *const names[] = { "constant", "linear", "cosine", "wsd", "table", "driven" };
#define NAMES (sizeof names / sizeof names[0])

const char *schedule_name(int kind)
{
    return kind >= 0 && (size_t)kind < NAMES ? names[kind] : "?";
}

int schedule_number(const char *name)
{
    for (size_t i = 0; i < NAMES; i++) {
        if (strcmp(names[i], name) == 0) return (int)i;
    }
    return -1;
}

/* ---- the check ---- */

/* The beginning of every sentence that the check writes, and where the sentence is written. */
struct subject {
    const char *group, *kind;
    struct sentence *why;
};

static bool count_in(const struct subject *s, const char *field, uint64_t value, uint64_t min,
                     uint64_t max)
{
    if (value >= min && value <= max) return true;
    sentence_set(s->why,
                 "group \"%s\", schedule %s: %s is %" PRIu64 "; allowed: %" PRIu64 " to %" PRIu64,
                 s->group, s->kind, field, value, min, max);
    return false;
}

static bool unused(const struct subject *s, const char *field, bool is_zero)
{
    if (is_zero) return true;
    sentence_set(s->why, "group \"%s\", schedule %s: it has no %s; allowed: 0 (not set)", s->group,
                 s->kind, field);
    return false;
}

static bool check_points(const struct subject *s, const struct schedule *schedule, double lr)
{
    if (!count_in(s, "point_count", schedule->point_count, 1, CAIRN_SCHEDULE_POINTS_MAX))
        return false;
    for (size_t i = 0; i < schedule->point_count; i++) {
        const struct cairn_schedule_point *p = &schedule->points[i];
        const uint64_t least = i > 0 ? schedule->points[i - 1].step + 1 : 0;
        if (!count_in(s, "the step of a point", p->step, least, CAIRN_SCHEDULE_STEPS_MAX))
            return false;
        if (p->factor >= 0 && p->factor <= LR_MAX && lr * p->factor <= LR_MAX) continue;
        sentence_set(s->why,
                     "group \"%s\", schedule table: the factor of point %zu is %g; allowed: "
                     "0 to %g, lr x factor too",
                     s->group, i, p->factor, LR_MAX);
        return false;
    }
    return true;
}

/* Checks the fields that define how linear, cosine and wsd end: decay_steps, total_steps and lr_min. */
static bool check_end(const struct subject *s, const struct schedule *schedule, double lr)
{
    const bool wsd = schedule->kind == CAIRN_SCHEDULE_WSD;
    if (wsd && !count_in(s, "decay_steps", schedule->decay_steps, 1, CAIRN_SCHEDULE_STEPS_MAX))
        return false;
    const uint64_t before = schedule->warmup_steps + (wsd ? schedule->decay_steps : 1);
    if (!count_in(s, "total_steps", schedule->total_steps, before, CAIRN_SCHEDULE_STEPS_MAX))
        return false;
    if (schedule->lr_min >= 0 && schedule->lr_min <= lr) return true;
    sentence_set(s->why,
                 "group \"%s\", schedule %s: lr_min is %g; allowed: 0 to the group's lr, %g",
                 s->group, s->kind, schedule->lr_min, lr);
    return false;
}

cairn_status schedule_check(const struct schedule *schedule, double lr, const char *group,
                            struct sentence *why)
{
    const int kind = (int)schedule->kind;
    const struct subject s = { group, schedule_name(kind), why };
    const bool has_end = kind == CAIRN_SCHEDULE_LINEAR || kind == CAIRN_SCHEDULE_COSINE ||
                         kind == CAIRN_SCHEDULE_WSD;
    const bool has_points = kind == CAIRN_SCHEDULE_TABLE;
    if (kind < 0 || (size_t)kind >= NAMES) {
        return fail_with(why, CAIRN_ERR_INVALID,
                         "group \"%s\": schedule is %d; allowed: 0 (constant), 1 (linear), 2 "
                         "(cosine), 3 (wsd), 4 (table), 5 (driven)",
                         group, kind);
    }
    if (!count_in(&s, "warmup_steps", schedule->warmup_steps, 0, CAIRN_SCHEDULE_STEPS_MAX))
        return CAIRN_ERR_INVALID;
    if (!unused(&s, "warmup_steps", kind != CAIRN_SCHEDULE_DRIVEN || schedule->warmup_steps == 0) ||
        !unused(&s, "total_steps", has_end || schedule->total_steps == 0) ||
        !unused(&s, "decay_steps", kind == CAIRN_SCHEDULE_WSD || schedule->decay_steps == 0) ||
        !unused(&s, "lr_min", has_end || schedule->lr_min == 0) ||
        !unused(&s, "points", has_points || schedule->point_count == 0)) {
        return CAIRN_ERR_INVALID;
    }
    if (has_end && !check_end(&s, schedule, lr)) return CAIRN_ERR_INVALID;
    if (has_points && !check_points(&s, schedule, lr)) return CAIRN_ERR_INVALID;
    return CAIRN_OK;
}

/* ---- the rate ---- */

#define PI 3.14159265358979323846

/* |y| <= pi/4: the first term left out is below 3e-18. */
static double cos_near_0(double y)
{
    const double z = y * y;
    double sum = 1.0 / 20922789888000.0; // 1/16!
    sum = sum * z - 1.0 / 87178291200.0; // 1/14!
    sum = sum * z + 1.0 / 479001600.0;
    sum = sum * z - 1.0 / 3628800.0;
    sum = sum * z + 1.0 / 40320.0;
    sum = sum * z - 1.0 / 720.0;
    sum = sum * z + 1.0 / 24.0;
    sum = sum * z - 0.5;
    return sum * z + 1.0;
}

static double sin_near_0(double y)
{
    const double z = y * y;
    double sum = -1.0 / 1307674368000.0; // 1/15!
    sum = sum * z + 1.0 / 6227020800.0;
    sum = sum * z - 1.0 / 39916800.0;
    sum = sum * z + 1.0 / 362880.0;
    sum = sum * z - 1.0 / 5040.0;
    sum = sum * z + 1.0 / 120.0;
    sum = sum * z - 1.0 / 6.0;
    return y + sum * z * y;
}

double cos_pi(double x)
{
    if (x <= 0.25) return cos_near_0(PI * x);
    if (x < 0.75) return sin_near_0(PI * (0.5 - x));
    return -cos_near_0(PI * (1.0 - x));
}

/* Exact in double: steps are at most 2^53 in a schedule that was checked. */
static double span(uint64_t from, uint64_t to)
{
    return (double)(to - from);
}

static double table_factor(const struct schedule *s, uint64_t k)
{
    size_t next = 0; // the first point after k
    while (next < s->point_count && s->points[next].step <= k) next++;
    if (next == 0) return s->points[0].factor;
    const struct cairn_schedule_point *a = &s->points[next - 1], *b = a + 1;
    if (next == s->point_count) return a->factor;
    return a->factor + (b->factor - a->factor) * span(a->step, k) / span(a->step, b->step);
}

/* The rate for k >= warmup_steps. */
static double body(const struct schedule *s, double lr, uint64_t k)
{
    const uint64_t warmup = s->warmup_steps, total = s->total_steps;
    switch (s->kind) {
    case CAIRN_SCHEDULE_CONSTANT:
    case CAIRN_SCHEDULE_DRIVEN: return lr;
    case CAIRN_SCHEDULE_LINEAR:
        if (k >= total) return s->lr_min;
        return s->lr_min + (lr - s->lr_min) * (span(k, total) / span(warmup, total));
    case CAIRN_SCHEDULE_COSINE:
        if (k >= total) return s->lr_min;
        return s->lr_min +
               (lr - s->lr_min) * (1.0 + cos_pi(span(warmup, k) / span(warmup, total))) / 2;
    case CAIRN_SCHEDULE_WSD:
        if (k < total - s->decay_steps) return lr;
        if (k >= total) return s->lr_min;
        return s->lr_min + (lr - s->lr_min) * (span(k, total) / (double)s->decay_steps);
    case CAIRN_SCHEDULE_TABLE: return lr * table_factor(s, k);
    }
    assert(false && "a schedule that was not judged");
    return 0;
}

double schedule_lr(const struct schedule *schedule, double lr, uint64_t step)
{
    const uint64_t warmup = schedule->warmup_steps;
    if (step >= warmup) return body(schedule, lr, step);
    return body(schedule, lr, warmup) * (span(0, step) / span(0, warmup));
}

/* ==== ema ==== */

double ema_decay(cairn_ema_schedule schedule, double ema, uint64_t step)
{
    if (step == 0) return 0;
    if (schedule != CAIRN_EMA_WARMUP) return ema;
    const double warm = (1.0 + (double)step) / (10.0 + (double)step);
    return warm < ema ? warm : ema;
}

/* ==== initializer ==== */

static void make_key(uint64_t seed, const char *tensor, uint32_t key_out[2])
{
    static const char domain[] = "cairn initializer 1";
    crypto_generichash_state state;
    uint8_t bytes[8], hash[32];
    le_put(bytes, seed, sizeof bytes);
    crypto_generichash_init(&state, NULL, 0, sizeof hash);
    crypto_generichash_update(&state, (const uint8_t *)domain, sizeof domain - 1);
    crypto_generichash_update(&state, bytes, sizeof bytes);
    crypto_generichash_update(&state, (const uint8_t *)tensor, strlen(tensor));
    crypto_generichash_final(&state, hash, sizeof hash);
    for (size_t k = 0; k < 2; k++) key_out[k] = (uint32_t)le_get(hash + 4 * k, 4);
}

struct init_source init_source_of(const struct cairn_init *init, const char *tensor)
{
    struct init_source source = { .is_uniform = init->kind == CAIRN_INIT_UNIFORM,
                                  .is_normal = init->kind == CAIRN_INIT_NORMAL };
    assert(init->kind != CAIRN_INIT_NONE);
    if (source.is_uniform != 0 || source.is_normal != 0) {
        source.a = init->a;
        source.b = init->b;
        make_key(init->seed, tensor, source.key);
    } else {
        source.a = init->kind == CAIRN_INIT_ONES       ? 1.0
                   : init->kind == CAIRN_INIT_CONSTANT ? init->a
                                                       : 0.0;
    }
    return source;
}

static void fill_random(const struct init_source *source, uint64_t first_elem, uint64_t elem_count,
                        float *out)
{
    uint32_t words[4] = { 0 };
    uint64_t block = UINT64_MAX; // no block yet: elements are below 2^49
    for (uint64_t i = 0; i < elem_count; i++) {
        const uint64_t elem = first_elem + i;
        if (elem / 2 != block) {
            block = elem / 2;
            init_words(source, block, words);
        }
        out[i] = init_random(source, words, elem);
    }
}

void init_elems(const struct init_source *source, uint64_t first_elem, uint64_t elem_count,
                float *out)
{
    if (source->is_uniform != 0 || source->is_normal != 0) {
        fill_random(source, first_elem, elem_count, out);
        return;
    }
    for (uint64_t i = 0; i < elem_count; i++) out[i] = (float)source->a;
}

/* ==== scalars ==== */

#define CLIP_EPS 1e-6 // as torch.nn.utils.clip_grad_norm_
#define F32_EXP  0x7f800000u

double init_sqrt(double x)
{
#if defined(__SSE2__)
    // The instruction itself: sqrt() may be a call into libm, which this code is not linked with.
    return _mm_cvtsd_f64(_mm_sqrt_pd(_mm_set1_pd(x)));
#else
    return sqrt(x); // exact by IEEE 754, on every libm
#endif
}

double scalar_power(double base, uint64_t exponent)
{
    double power = 1.0;
    for (; exponent != 0; exponent >>= 1) {
        if ((exponent & 1) != 0) power *= base;
        base *= base;
    }
    return power;
}

static bool finite_bits(uint32_t bits)
{
    return (bits & F32_EXP) != F32_EXP;
}

cairn_status update_norm_of(const struct exact *sum_squares, uint64_t weight_sum, double loss_scale,
                            double max_norm, struct update_norm *out)
{
    if (!isfinite(loss_scale) || loss_scale <= 0) return CAIRN_ERR_INVALID;
    if (!isfinite(max_norm) || max_norm < 0) return CAIRN_ERR_INVALID;
    double denominator = (double)weight_sum * loss_scale;
    if (!isfinite(denominator) || denominator <= 0) return CAIRN_ERR_INVALID;

    double norm = init_sqrt(exact_to_double(sum_squares)) / denominator;
    double clip = 1.0;
    if (max_norm > 0) {
        double ratio = max_norm / (norm + CLIP_EPS);
        if (ratio < 1.0) clip = ratio;
    }
    uint32_t scale = f32_bits((float)(clip / denominator));
    if (!finite_bits(scale)) return CAIRN_ERR_INVALID;
    *out = (struct update_norm) { norm, clip, scale };
    return CAIRN_OK;
}

static bool all_finite(const struct group_scalars *s)
{
    return finite_bits(s->grad_scale) && finite_bits(s->neg_step_size) && finite_bits(s->decay) &&
           finite_bits(s->one_minus_beta1) && finite_bits(s->beta2) &&
           finite_bits(s->one_minus_beta2) && finite_bits(s->sqrt_bc2) && finite_bits(s->eps) &&
           finite_bits(s->momentum);
}

/* True if the weight of an average is 0, or in (0, 1]. The bits of floats that are not below 0 are in the
 * order of the floats. */
static bool is_weight(uint32_t bits)
{
    return bits <= f32_bits(1.0f);
}

cairn_status group_scalars_of(const struct group_hyper *hyper, uint64_t step, uint32_t grad_scale,
                              struct group_scalars *out)
{
    CAIRN_TRY(group_hyper_check(hyper, NULL));
    if (step == 0) return CAIRN_ERR_INVALID;
    struct group_scalars scalars = { .optimizer = hyper->optimizer };
    optimizer_by_id(hyper->optimizer)->scalars(hyper, step, &scalars);
    scalars.grad_scale = grad_scale;
    if (hyper->ema > 0) {
        const cairn_ema_schedule schedule = hyper->ema_schedule != 0 ? CAIRN_EMA_WARMUP
                                                                     : CAIRN_EMA_CONSTANT;
        scalars.ema_weight = f32_bits((float)(1.0 - ema_decay(schedule, hyper->ema, step - 1)));
    }
    if (!all_finite(&scalars)) return CAIRN_ERR_INVALID; // some value is beyond fp32
    *out = scalars;
    return CAIRN_OK;
}

#define SCALAR_WORDS (CAIRN_GROUP_SCALARS_BYTES / 4)
_Static_assert(sizeof(struct group_scalars) == CAIRN_GROUP_SCALARS_BYTES,
               "the wire format is the struct's words in order");

void group_scalars_encode(const struct group_scalars *scalars,
                          uint8_t out[CAIRN_GROUP_SCALARS_BYTES])
{
    uint32_t words[SCALAR_WORDS];
    memcpy(words, scalars, sizeof words);
    for (size_t i = 0; i < SCALAR_WORDS; i++) le_put(out + 4 * i, words[i], 4);
}

cairn_status group_scalars_decode(const void *bytes, size_t size, struct group_scalars *out)
{
    if (size != CAIRN_GROUP_SCALARS_BYTES) return CAIRN_ERR_MALFORMED;
    uint32_t words[SCALAR_WORDS];
    const uint8_t *in = bytes;
    for (size_t i = 0; i < SCALAR_WORDS; i++) words[i] = (uint32_t)le_get(in + 4 * i, 4);
    struct group_scalars scalars;
    memcpy(&scalars, words, sizeof scalars);

    const uint32_t known_flags = CAIRN_SCALAR_MOMENTUM | CAIRN_SCALAR_NESTEROV |
                                 CAIRN_SCALAR_FIRST_STEP | CAIRN_SCALAR_FROZEN;
    if (optimizer_by_id(scalars.optimizer) == NULL) return CAIRN_ERR_MALFORMED;
    if ((scalars.flags & ~known_flags) != 0 || !is_weight(scalars.ema_weight))
        return CAIRN_ERR_MALFORMED;
    if (!all_finite(&scalars)) return CAIRN_ERR_MALFORMED;
    *out = scalars;
    return CAIRN_OK;
}

void group_hyper_encode(const struct group_hyper *hyper, uint8_t out[CAIRN_GROUP_HYPER_BYTES])
{
    const double values[(CAIRN_GROUP_HYPER_BYTES - 4) / 8] = { hyper->lr,           hyper->beta1,
                                                               hyper->beta2,        hyper->eps,
                                                               hyper->weight_decay, hyper->momentum,
                                                               hyper->nesterov };
    le_put(out, hyper->optimizer, 4);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        le_put(out + 4 + 8 * i, f64_bits(values[i]), 8);
}

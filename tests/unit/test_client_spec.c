/* What a caller declares that no job could mean. */
#include <cairn.h>
#include <check.h>
#include <math.h>
#include <string.h>

#include "client/base.h"
#include "client/session.h"
#include "tests/support/suite.h"

static struct cairn_tensor tensor;
static struct cairn_group group;
static struct cairn_job_spec spec;
static struct job_spec_data data;
static uint64_t open_flags;

static void set_up(void)
{
    const struct cairn_group model = CAIRN_GROUP_INIT;
    tensor = (struct cairn_tensor) { sizeof tensor, .name = "w", .rank = 1, .shape = { 4 } };
    group = model;
    spec = (struct cairn_job_spec) { .struct_size = sizeof spec,
                                     .tensors = &tensor,
                                     .tensor_count = 1,
                                     .groups = &group,
                                     .group_count = 1 };
    spec_init(&data);
    ck_assert_int_eq(spec_set_name(&data, "job"), CAIRN_OK);
}

static void tear_down(void)
{
    spec_release(&data);
}

/* ---- what is refused: a name, what the sentence says, and what is done to a good declaration ---- */

static struct {
    const char *name, *word;
    void (*change)(struct cairn_tensor *two);
} refusals[64];
static int refusal_count;

/* `two`: tensors that are declared instead of the one. */
#define REFUSED(...)          REFUSED_AT(__LINE__, __VA_ARGS__)
#define REFUSED_AT(line, ...) REFUSED_ROW(line, __VA_ARGS__)
#define REFUSED_ROW(line, what, says, ...)                           \
    static void change_##line(struct cairn_tensor *two)              \
    {                                                                \
        (void)two;                                                   \
        __VA_ARGS__;                                                 \
    }                                                                \
    __attribute__((constructor)) static void change_add_##line(void) \
    {                                                                \
        refusals[refusal_count].name = (what);                       \
        refusals[refusal_count].word = (says);                       \
        refusals[refusal_count++].change = change_##line;            \
    }                                                                \
    _Static_assert(1, "a semicolon follows")

static void declare(struct cairn_tensor *two)
{
    two[0] = two[1] = tensor;
    two[1].name = "v";
    spec.tensors = two;
    spec.tensor_count = 2;
}

#define TOO_LONG too_long(300)
static char *too_long(size_t count)
{
    static char text[512];
    return memset(text, 'x', count);
}

REFUSED("an empty name", "tensors[1].name is empty; allowed: 1 to 255 bytes", declare(two);
        two[1].name = "");
REFUSED("no name", "tensors[1].name is empty", declare(two); two[1].name = NULL);
REFUSED("no UTF-8", "tensors[1].name: byte 0xff at 1 is no UTF-8", declare(two);
        two[1].name = "a\xff");
REFUSED("a long name", "tensors[1].name is longer than allowed: 1 to 255 bytes", declare(two);
        two[1].name = TOO_LONG);
REFUSED("a long unit", "tensors[1].unit is longer than allowed: 1 to 255 bytes", declare(two);
        two[1].unit = TOO_LONG);
REFUSED("a group's long name", "groups[0].name is longer than allowed: 1 to 255 bytes",
        group.name = TOO_LONG);
REFUSED("tensors that are not there", "NULL", spec.tensors = NULL);
REFUSED("groups that are not there", "NULL", spec.groups = NULL);
REFUSED("a group without an optimizer", "names no optimizer; begin with CAIRN_GROUP_INIT",
        group = (struct cairn_group) { .struct_size = sizeof group });
// As many elements as the shape seems to have would else not be trained.
REFUSED("a shape behind its rank", "tensor w has rank 1, and yet shape[1] is 256",
        tensor.shape[1] = 256);
REFUSED("what the optimizer ignores", "momentum", group.momentum = 0.5);
// Its rule would divide by 0 wherever a gradient is 0.
REFUSED("an optimizer and nothing else", "eps is 0, and adamw divides by it",
        group = (struct cairn_group) { .struct_size = sizeof group, .optimizer = "adamw" });
REFUSED("an optimizer and nothing else: what to do", "CAIRN_GROUP_INIT",
        group = (struct cairn_group) { .struct_size = sizeof group, .optimizer = "adamw" });
REFUSED("another beta of sgd than the default", "beta2", group.optimizer = "sgd";
        group.beta2 = 0.5);
REFUSED("a loss scale that fp32 cannot bear", "loss_scale", spec.loss_scale = 1e-300);
REFUSED("what is reserved", "groups[0]: a reserved field is not 0", group.reserved[6] = 1);
REFUSED("what is reserved, at the end", "groups[0]: a reserved field is not 0",
        group.reserved_last = 1);
REFUSED("what is reserved, behind the average", "groups[0]: a reserved field is not 0",
        group.reserved_ema = 1);
REFUSED("a schedule of an average that there is not", "ema_schedule warmup needs an ema above 0",
        group.ema_schedule = CAIRN_EMA_WARMUP);
REFUSED("a schedule of an average that nobody knows", "ema_schedule is 7; allowed: 0 (constant)",
        group.ema = 0.5;
        group.ema_schedule = (cairn_ema_schedule)7);
REFUSED("an average that never moves", "ema is 1", group.ema = 1);
REFUSED("a number of 64 bits", "global_batch is 18446744073709551615; allowed: 0 to 65536",
        spec.global_batch = UINT64_MAX);
REFUSED("a number that 32 bits would have as 0", "global_batch is 4294967296; allowed: 0 to 65536",
        spec.global_batch = (uint64_t)1 << 32);
REFUSED("skips", "skips_max is 18446744073709551615; allowed: 0 (100) to 4294967295",
        spec.skips_max = UINT64_MAX);
REFUSED("a buffer in a group", "mean", declare(two); two[1].name = "mean";
        two[1].kind = CAIRN_BUFFER; two[1].group = "default");
REFUSED("a frozen tensor in a group that is none", "nobody", declare(two);
        two[1].kind = CAIRN_FROZEN; two[1].group = "nobody");

TEST_EACH(a_declaration_that_no_job_could_mean_is_refused_by_name, 0, refusal_count)
{
    struct cairn_tensor two[2];
    refusals[_i].change(two);
    const cairn_status status = client_spec_fill(&spec, &data, &open_flags);
    ck_assert_msg(status == CAIRN_ERR_INVALID && strstr(cairn_error(), refusals[_i].word) != NULL,
                  "%s: %d: \"%s\" does not name %s", refusals[_i].name, (int)status, cairn_error(),
                  refusals[_i].word);
}

/* ---- what is taken ---- */

TEST(sgd_needs_no_eps_and_takes_the_betas_that_are_the_defaults)
{
    group.optimizer = "sgd";
    ck_assert_int_eq(client_spec_fill(&spec, &data, &open_flags), CAIRN_OK);
    tear_down();
    set_up();
    group = (struct cairn_group) { .struct_size = sizeof group, .optimizer = "sgd", .lr = 0.1 };
    ck_assert_int_eq(client_spec_fill(&spec, &data, &open_flags), CAIRN_OK);
}

TEST(a_zero_has_no_sign)
{
    spec.clip_norm = -0.0;
    group.weight_decay = -0.0;
    ck_assert_int_eq(client_spec_fill(&spec, &data, &open_flags), CAIRN_OK);
    ck_assert(!signbit(data.clip_norm));
    ck_assert(!signbit(data.groups[0].weight_decay));
}

#define BESIDE(struct_name, member, next)                                  \
    _Static_assert(offsetof(struct struct_name, member) +                  \
                           sizeof(((struct struct_name *)NULL)->member) == \
                       offsetof(struct struct_name, next),                 \
                   "what is between two members has a name, and has to be 0")
#define LAST(struct_name, member)                                          \
    _Static_assert(offsetof(struct struct_name, member) +                  \
                           sizeof(((struct struct_name *)NULL)->member) == \
                       sizeof(struct struct_name),                         \
                   "what is behind the last member has a name, and has to be 0")
BESIDE(cairn_opts, reserved, fabric);
BESIDE(cairn_opts, reserved_too, on_wait);
BESIDE(cairn_opts, reserved_last, token_file);
LAST(cairn_opts, token_file);
BESIDE(cairn_group, reserved, pattern);
BESIDE(cairn_group, reserved_last, ema);
LAST(cairn_group, reserved_ema);
BESIDE(cairn_amend, reserved, freeze_tensors);
BESIDE(cairn_amend, reserved_losses, workers_min);
BESIDE(cairn_amend, reserved_rules, snapshot_keep_every);
BESIDE(cairn_amend, reserved_settings, settings);
LAST(cairn_amend, setting_count);

TEST(what_is_reserved_of_a_session_is_0)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .reserved_too = 1 };
    cairn *session;
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(cairn_error(), "reserved"));
}

SUITE(30, set_up, tear_down);

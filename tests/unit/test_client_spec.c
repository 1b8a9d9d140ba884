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

static void check_refused(const char *word)
{
    ck_assert_int_eq(client_spec_fill(&spec, &data, &open_flags), CAIRN_ERR_INVALID);
    ck_assert_msg(strstr(cairn_error(), word) != NULL, "\"%s\" does not name %s", cairn_error(),
                  word);
}

TEST(a_name_that_cannot_be_one_is_told_by_its_place_with_what_is_allowed)
{
    static char too_long[300];
    struct cairn_tensor two[2] = { tensor, tensor };
    spec.tensors = two;
    spec.tensor_count = 2;
    memset(too_long, 'x', sizeof too_long - 1);
    two[1].name = "";
    check_refused("tensors[1].name is empty; allowed: 1 to 255 bytes");
    two[1].name = NULL;
    check_refused("tensors[1].name is empty");
    two[1].name = "a\xff";
    check_refused("tensors[1].name: byte 0xff at 1 is no UTF-8");
    two[1].name = too_long;
    check_refused("tensors[1].name is longer than allowed: 1 to 255 bytes");
    two[1].name = "v";
    two[1].unit = too_long;
    check_refused("tensors[1].unit is longer than allowed: 1 to 255 bytes");
    two[1].unit = NULL;
    group.name = too_long;
    check_refused("groups[0].name is longer than allowed: 1 to 255 bytes");
}

TEST(a_count_without_an_array_is_refused)
{
    spec.tensors = NULL;
    check_refused("NULL");
    spec.tensors = &tensor;
    spec.groups = NULL;
    check_refused("NULL");
}

TEST(a_group_without_an_optimizer_is_sent_to_CAIRN_GROUP_INIT)
{
    group = (struct cairn_group) { .struct_size = sizeof group };
    check_refused("names no optimizer; begin with CAIRN_GROUP_INIT");
}

/* As many elements as the shape seems to have would else not be trained. */
TEST(a_shape_behind_its_rank_is_refused)
{
    tensor.shape[1] = 256;
    check_refused("tensor w has rank 1, and yet shape[1] is 256");
}

TEST(a_field_that_the_optimizer_ignores_is_refused)
{
    group.momentum = 0.5;
    check_refused("momentum");
}

/* Its rule would divide by 0 wherever a gradient is 0. */
TEST(a_group_that_says_only_its_optimizer_is_sent_to_CAIRN_GROUP_INIT)
{
    group = (struct cairn_group) { .struct_size = sizeof group, .optimizer = "adamw" };
    check_refused("eps is 0, and adamw divides by it");
    ck_assert_ptr_nonnull(strstr(cairn_error(), "CAIRN_GROUP_INIT"));
    tear_down();
    set_up();
    group = (struct cairn_group) { .struct_size = sizeof group, .optimizer = "sgd", .lr = 0.1 };
    ck_assert_int_eq(client_spec_fill(&spec, &data, &open_flags), CAIRN_OK);
}

TEST(betas_of_sgd_are_refused_but_for_the_defaults)
{
    group.optimizer = "sgd";
    ck_assert_int_eq(client_spec_fill(&spec, &data, &open_flags), CAIRN_OK);
    tear_down();
    set_up();
    group.optimizer = "sgd";
    group.beta2 = 0.5;
    check_refused("beta2");
}

TEST(a_loss_scale_that_fp32_cannot_bear_is_refused)
{
    spec.loss_scale = 1e-300;
    check_refused("loss_scale");
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
LAST(cairn_opts, reserved_last);
BESIDE(cairn_group, reserved, pattern);
LAST(cairn_group, reserved_last);
BESIDE(cairn_amend, reserved, freeze_tensors);
BESIDE(cairn_amend, reserved_losses, workers_min);
BESIDE(cairn_amend, reserved_rules, snapshot_keep_every);
BESIDE(cairn_amend, reserved_settings, settings);
LAST(cairn_amend, setting_count);

TEST(what_is_reserved_is_0)
{
    group.reserved[6] = 1;
    check_refused("groups[0]: a reserved field is not 0");
    group.reserved[6] = 0;
    group.reserved_last = 1;
    check_refused("groups[0]: a reserved field is not 0");
    struct cairn_opts opts = { .struct_size = sizeof opts, .reserved_too = 1 };
    cairn *session;
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(cairn_error(), "reserved"));
}

TEST(a_number_is_told_as_it_was_given)
{
    spec.global_batch = UINT64_MAX;
    check_refused("global_batch is 18446744073709551615; allowed: 0 to 65536");
    spec.global_batch = (uint64_t)1 << 32;
    check_refused("global_batch is 4294967296; allowed: 0 to 65536");
    spec.global_batch = 0;
    spec.skips_max = UINT64_MAX;
    check_refused("skips_max is 18446744073709551615; allowed: 0 (100) to 4294967295");
}

TEST(a_group_of_what_is_not_trained_is_refused)
{
    struct cairn_tensor two[] = { tensor, tensor };
    two[1].name = "mean";
    two[1].kind = CAIRN_BUFFER;
    two[1].group = "default";
    spec.tensors = two;
    spec.tensor_count = 2;
    check_refused("mean");
    tear_down();
    set_up();
    two[1].group = "nobody";
    two[1].kind = CAIRN_FROZEN;
    spec.tensors = two;
    spec.tensor_count = 2;
    check_refused("nobody");
}

SUITE(30, set_up, tear_down);

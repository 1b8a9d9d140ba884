/* A spec as a person writes it, and weights as one: what is missing is at its default, what is wrong is
 * said. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "proto/snapshot/snapshot.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"
#include "tests/support/weights_sample.h"

static struct job_spec_data spec;
static struct sentence why;

TEST(a_list_of_tensors_is_enough)
{
    static const char text[] =
        "{\"tensors\": [{\"name\": \"z\", \"shape\": [3, 4]},"
        "{\"name\": \"b\", \"shape\": [9], \"kind\": \"blob\"},"
        "{\"name\": \"f\", \"shape\": [], \"kind\": \"frozen\", \"wire\": \"bf16\"}]}";
    ck_assert_msg(spec_of_json(text, sizeof text - 1, &spec, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_uint_eq(spec.tensor_count, 3);
    ck_assert_str_eq(spec.tensors[0].name, "b"); // in any order
    ck_assert_int_eq(spec.tensors[0].wire, CAIRN_U8);
    ck_assert_int_eq(spec.tensors[1].wire, CAIRN_BF16);
    ck_assert_str_eq(spec.tensors[1].group, "");
    ck_assert_int_eq(spec.tensors[2].kind, CAIRN_TRAINED);
    ck_assert_int_eq(spec.tensors[2].wire, CAIRN_F32);
    ck_assert_str_eq(spec.tensors[2].unit, "z");
    ck_assert_uint_eq(spec.group_count, 1);
    ck_assert_str_eq(spec.groups[0].optimizer, "adamw");
    spec_release(&spec);
}

TEST(what_is_given_stands)
{
    static const char text[] =
        "{\"groups\": [{\"name\": \"g\", \"optimizer\": \"sgd\", \"momentum\": 0.9}], \"window\": "
        "3,"
        "\"stage\": 0, \"tensors\": [{\"name\": \"z\", \"shape\": [3], \"unit\": \"u\"}]}";
    ck_assert_msg(spec_of_json(text, sizeof text - 1, &spec, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_str_eq(spec.tensors[0].group, "g");
    ck_assert_str_eq(spec.tensors[0].unit, "u");
    ck_assert_double_eq(spec.groups[0].momentum, 0.9);
    ck_assert_uint_eq(spec.window, 3);
    ck_assert_uint_eq(spec.stage, 0);
    spec_release(&spec);
}

static const struct {
    const char *text, *said;
} wrong[] = {
    { "{", "not JSON" },
    { "[]", "an object with \"tensors\"" },
    { "{}", "an object with \"tensors\"" },
    { "{\"tensors\": 3}", "an object with \"tensors\"" },
    { "{\"tensors\": [3]}", "tensor 0 is not an object with \"name\"" },
    { "{\"tensors\": [{\"shape\": [1]}]}", "tensor 0 is not an object with \"name\"" },
    { "{\"tensors\": [{\"name\": \"a\"}]}", "shape" },
    { "{\"tensors\": [{\"name\": \"a\", \"shape\": [-1]}]}", "a" },
    { "{\"tensors\": [{\"name\": \"a\", \"shape\": [1], \"colour\": 1}]}", "colour" },
    { "{\"tensors\": [{\"name\": \"a\", \"shape\": [1]}], \"groups\": [4]}", "group 0" },
    { "{\"tensors\": [{\"name\": \"a\", \"shape\": [1]}], \"groups\": []}", "group" },
    { "{\"tensors\": [{\"name\": \"a\", \"shape\": [1]}, {\"name\": \"a\", \"shape\": [1]}]}",
      "spec" },
};

TEST_EACH(what_is_wrong_is_said, 0, sizeof wrong / sizeof *wrong)
{
    const char *text = wrong[_i].text;
    const cairn_status status = spec_of_json(text, strlen(text), &spec, &why);
    ck_assert_int_eq(status, CAIRN_ERR_MALFORMED);
    ck_assert_msg(strstr(why.text, wrong[_i].said) != NULL, "%s: %s", text, why.text);
    ck_assert_msg(strncmp(why.text, "manifest", 8) != 0, "%s", why.text);
}

TEST(weights_are_tensors_that_are_trained)
{
    char root[CAIRN_SCRATCH_BYTES], path[CAIRN_SCRATCH_BYTES + 32];
    static const uint8_t data[12];
    const struct sample_weight weights[] = { { "a", "BF16", 2, { 2, 3 }, data, 12 },
                                             { "b", "F16", 1, { 2 }, data, 4 } };
    cairn_scratch_make(root);
    snprintf(path, sizeof path, "%s/model.safetensors", root);
    sample_weights_write(path, weights, 2);
    const char *const ways[] = { path, root };
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(ctl_plan_spec(ways[i], &spec, &why) == CAIRN_OK, "%s", why.text);
        ck_assert_uint_eq(spec.tensor_count, 2);
        ck_assert_int_eq(spec.tensors[0].wire, CAIRN_BF16);
        ck_assert_int_eq(spec.tensors[0].kind, CAIRN_TRAINED);
        ck_assert_uint_eq(spec.tensors[0].shape.dim[1], 3);
        ck_assert_int_eq(spec.tensors[1].wire, CAIRN_F32);
        spec_release(&spec);
    }
    cairn_scratch_remove(root);
}

SUITE(30);

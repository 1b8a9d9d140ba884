/* Elements that are not finite, of results or gradients, counted by tensor and told by name. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "tests/support/suite.h"

enum { TENSORS = 40 };

static char names[TENSORS][256];
static struct tensor_spec tensors[TENSORS];
static const struct job_spec_data spec = { .tensors = tensors, .tensor_count = TENSORS };

static void set_up(void)
{
    for (int i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        tensors[i].name = names[i];
    }
}

static const char *list(const struct results *results)
{
    static char out[CAIRN_RESULTS_BYTES];
    memset(out, 'x', sizeof out);
    results_list(results, &spec, out);
    return out;
}

TEST(elements_are_summed_by_tensor_and_the_first_tensors_are_named)
{
    struct results results = { 0 };
    ck_assert_str_eq(list(&results), "");
    results_add(&results, 3, 0);
    ck_assert_str_eq(list(&results), "");
    results_add(&results, 7, 2);
    results_add(&results, 3, 1);
    results_add(&results, 7, 2);
    ck_assert_uint_eq(results.nonfinite, 5);
    ck_assert_str_eq(list(&results), "t3 (1), t7 (4)");
    for (uint32_t t = TENSORS; t-- > 10;) results_add(&results, t, 1);
    ck_assert_uint_eq(results.nonfinite, 35);
    ck_assert_str_eq(
        list(&results),
        "t3 (1), t7 (4), t10 (1), t11 (1), t12 (1), t13 (1), t14 (1), t15 (1) and others");
}

TEST(what_shards_count_is_joined_whatever_each_of_them_has_left_out)
{
    struct results all = { 0 }, a = { 0 }, b = { 0 }, whole = { 0 };
    for (uint32_t t = 0; t < TENSORS; t++) {
        results_add(t % 2 == 0 ? &a : &b, t, t + 1);
        if (t % 5 == 0) results_add(&b, t, 1);
        results_add(&whole, t, t + 1 + (t % 5 == 0));
    }
    results_join(&all, &b);
    results_join(&all, &a);
    ck_assert_uint_eq(all.nonfinite, whole.nonfinite);
    ck_assert_uint_eq(all.tensor_count, CAIRN_RESULTS_TENSORS);
    ck_assert_mem_eq(all.tensors, whole.tensors, sizeof all.tensors);
}

TEST(names_that_do_not_fit_are_among_the_others_and_none_is_cut)
{
    struct results results = { 0 };
    for (uint32_t t = 0; t < 3; t++) {
        memset(names[t], 'a' + (int)t, 255);
        names[t][255] = '\0';
        results_add(&results, t, 1);
    }
    const char *text = list(&results);
    ck_assert_ptr_nonnull(strstr(text, "a (1) and others"));
    ck_assert_ptr_null(strstr(text, "bb"));
    ck_assert_uint_eq(strlen(text), 255 + strlen(" (1) and others"));
    struct results unnamed = { .nonfinite = 3 };
    ck_assert_str_eq(list(&unnamed), "others");
}

static const char *gradient(const struct results *results)
{
    static struct sentence said;
    results_gradient(results, &spec, &said);
    return said.text;
}

TEST(a_gradient_is_told_by_its_tensors_as_far_as_they_are_known)
{
    struct results results = { 0 }, unnamed = { .nonfinite = 3 };
    ck_assert_str_eq(gradient(&results), "a gradient is not finite");
    ck_assert_str_eq(gradient(&unnamed), "a gradient is not finite (3 elements)");
    results_add(&results, 7, 1);
    ck_assert_str_eq(gradient(&results), "the gradient of t7 (1) is not finite (1 element)");
    results_add(&results, 3, 4);
    ck_assert_str_eq(gradient(&results),
                     "the gradient of t3 (4), t7 (1) is not finite (5 elements)");
    results.nonfinite += 2;
    ck_assert_str_eq(gradient(&results),
                     "the gradient of t3 (4), t7 (1) and others is not finite (7 elements)");
}

SUITE(30, set_up, NULL);

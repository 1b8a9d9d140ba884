/* `cairn snapshot show`, `diff` and `copy` of folders: tensors, what is in them, in what they differ. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/snapshot.h"
#include "tests/support/cluster.h"
#include "tests/support/snapshot_sample.h"
#include "tests/support/suite.h"

static char scratch[CAIRN_SCRATCH_BYTES];
static struct cluster nobody = { .address = "/nowhere/cairn" };
static struct cluster_said said;
static struct job_spec_data spec;

static void set_up(void)
{
    cairn_scratch_make_quick(scratch);
    spec = cairn_sample_spec("adamw");
    cairn_sample_tensor(&spec, "blob", CAIRN_BLOB, (struct shape) { 1, { 100 } });
    cairn_sample_tensor(&spec, "empty", CAIRN_FROZEN, (struct shape) { 2, { 0, 4 } });
    cairn_sample_tensor(&spec, "frozen", CAIRN_FROZEN, (struct shape) { 0, { 0 } });
    cairn_sample_tensor(&spec, "weight", CAIRN_TRAINED, (struct shape) { 2, { 300, 5000 } });
}

static void tear_down(void)
{
    spec_release(&spec);
    cairn_scratch_remove(scratch);
}

/* The figures of a plane in what `show --stats -o json` said. */
static const json_t *stats_of(const json_t *root, size_t tensor, const char *plane)
{
    const json_t *stats = json_object_get(json_array_get(json_object_get(root, "tensors"), tensor),
                                          "stats");
    const json_t *found = json_object_get(stats, plane);
    ck_assert_msg(found != NULL, "%s", said.out);
    return found;
}

static double figure(const json_t *stats, const char *name)
{
    return json_number_value(json_object_get(stats, name));
}

TEST(show_lists_tensors_without_a_coordinator)
{
    char *folder = cairn_sample_snapshot(scratch, &spec, 7);
    cluster_cli(&nobody, &said, "snapshot show --path %s", folder);
    ck_assert_msg(said.status == 0, "%s", said.err);
    static const char *const lines[] = {
        "snapshot          step-000000000007-g1\n",
        "version           generation 1, step 7\n",
        "TENSOR  KIND     DTYPE  SHAPE        PLANES\n",
        "blob    blob     u8     [100]        param\n",
        "empty   frozen   f32    [0, 4]       \n",
        "frozen  frozen   f32    []           param\n",
        "weight  trained  f32    [300, 5000]  param exp_avg exp_avg_sq\n"
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        ck_assert_msg(strstr(said.out, lines[i]) != NULL, "%s%s", lines[i], said.out);
    cluster_says(&nobody, 4, "has no manifest.json", "snapshot show --path %s", scratch);
    cluster_says(&nobody, 2, "needs JOB ID, or --path FOLDER", "snapshot show job");
    free(folder);
}

TEST(show_has_the_figures_of_every_plane)
{
    cairn_sample_poke = (struct cairn_sample_poke) { true, 3, CAIRN_PLANE_EXP_AVG, 1499999,
                                                     0x7f800000u };
    char *folder = cairn_sample_snapshot(scratch, &spec, 7);
    cluster_cli(&nobody, &said, "snapshot show --path %s --stats -o json", folder);
    ck_assert_msg(said.status == 0, "%s", said.err);
    json_t *root = json_loads(said.out, 0, NULL);
    ck_assert_ptr_nonnull(root);
    double sum = 0, squares = 0, min = INFINITY, max = 0;
    for (uint64_t i = 0; i < 1500000; i++) {
        const uint32_t bits = cairn_sample_value(3, CAIRN_PLANE_PARAM, i);
        float x;
        memcpy(&x, &bits, sizeof x);
        sum += (double)x;
        squares += (double)x * (double)x;
        min = fmin(min, (double)x);
        max = fmax(max, (double)x);
    }
    const json_t *stats = stats_of(root, 3, "param");
    ck_assert_double_eq(figure(stats, "min"), min);
    ck_assert_double_eq(figure(stats, "max"), max);
    ck_assert_double_eq_tol(figure(stats, "mean"), sum / 1500000, 1e-12);
    ck_assert_double_eq_tol(figure(stats, "l2"), sqrt(squares), 1e-9);
    ck_assert_double_eq(figure(stats, "nonfinite"), 0);
    ck_assert_double_eq(figure(stats_of(root, 3, "exp_avg"), "nonfinite"), 1);
    json_decref(root);
    free(folder);
}
TEST(diff_says_which_tensors_differ_and_by_how_much)
{
    char *a = cairn_sample_snapshot(scratch, &spec, 7);
    cluster_says(&nobody, 0, "the same bits", "snapshot diff --path %s --path %s", a, a);
    cairn_sample_poke = (struct cairn_sample_poke) { true, 3, CAIRN_PLANE_PARAM, 1499998,
                                                     0x41000000u };
    char *b = cairn_sample_snapshot(scratch, &spec, 9);
    cluster_cli(&nobody, &said, "snapshot diff --path %s --path %s -o json", a, b);
    ck_assert_msg(said.status == 1, "%d %s", said.status, said.err);
    json_t *root = json_loads(said.out, 0, NULL);
    const json_t *planes = json_object_get(root, "planes"), *only = json_array_get(planes, 0);
    ck_assert_uint_eq(json_array_size(planes), 1);
    ck_assert_str_eq(json_string_value(json_object_get(only, "tensor")), "weight");
    cairn_sample_poke.set = false;
    const uint32_t bits = cairn_sample_value(3, CAIRN_PLANE_PARAM, 1499998);
    float was;
    memcpy(&was, &bits, sizeof was);
    ck_assert_double_eq(figure(only, "elements"), 1);
    ck_assert_double_eq(figure(only, "first"), 1499998);
    ck_assert_double_eq(figure(only, "max_abs"), 8 - (double)was);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(root, "scalars"), 0)),
                     "step: 7 in A, 9 in B");
    json_decref(root);
    cluster_says(&nobody, 2, "needs JOB A B, or --path twice", "snapshot diff --path %s", a);
    free(a);
    free(b);
}

TEST(diff_says_in_what_the_specs_differ)
{
    char *a = cairn_sample_snapshot(scratch, &spec, 7);
    struct job_spec_data other = cairn_sample_spec("sgd");
    cairn_sample_tensor(&other, "frozen", CAIRN_FROZEN, (struct shape) { 1, { 2 } });
    cairn_sample_tensor(&other, "more", CAIRN_FROZEN, (struct shape) { 1, { 2 } });
    cairn_sample_tensor(&other, "weight", CAIRN_TRAINED, (struct shape) { 2, { 300, 5000 } });
    char *b = cairn_sample_snapshot(scratch, &other, 8);
    cluster_cli(&nobody, &said, "snapshot diff --path %s --path %s", a, b);
    ck_assert_int_eq(said.status, 1);
    static const char *const words[] = { "adamw in A, sgd in B", "weight, exp_avg: in A alone",
                                         "frozen, param: of another shape or dtype",
                                         "more: in B alone", "shape [] in A, [2] in B" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        ck_assert_msg(strstr(said.out, words[i]) != NULL, "%s: %s", words[i], said.out);
    spec_release(&other);
    free(a);
    free(b);
}
TEST(a_copy_is_the_snapshot_and_a_damaged_one_is_not_copied)
{
    char root[200], path[300];
    char *a = cairn_sample_snapshot(scratch, &spec, 7);
    cairn_scratch_file(a, "manifest.json.minisig", "a signature\n", path, sizeof path);
    snprintf(root, sizeof root, "%s/elsewhere", scratch);
    snprintf(path, sizeof path, "%s/job/step-000000000007-g1", root);
    cluster_says(&nobody, 1, "No such file", "snapshot copy --path %s --to %s", a, root);
    ck_assert_int_eq(mkdir(root, 0700), 0);
    cluster_says(&nobody, 0, path, "snapshot copy --path %s --to %s", a, root);
    cluster_says(&nobody, 0, "the same bits", "snapshot diff --path %s --path %s", a, path);
    cluster_says(&nobody, 11, "is there already", "snapshot copy --path %s --to %s", a, root);
    snprintf(path, sizeof path, "%s/job/step-000000000007-g1/manifest.json.minisig", root);
    ck_assert_int_eq(access(path, R_OK), 0);
    cairn_scratch_remove(root);
    ck_assert_int_eq(mkdir(root, 0700), 0);
    snprintf(path, sizeof path, "%s/optim/shard-00001-model-00001-of-00001.safetensors", a);
    FILE *file = fopen(path, "r+b");
    ck_assert_int_eq(fseek(file, -1, SEEK_END), 0);
    ck_assert_int_ne(fputc(0xaa, file), EOF);
    fclose(file);
    cluster_says(&nobody, 5, "optim/shard-00001", "snapshot copy --path %s --to %s", a, root);
    snprintf(path, sizeof path, "%s/job/step-000000000007-g1", root);
    ck_assert_int_ne(access(path, F_OK), 0);
    free(a);
}
SUITE(60, set_up, tear_down);

TEST(sums_keep_what_is_small_beside_what_is_large)
{
    static float elems[1 << 20];
    struct ctl_stats stats = { 0 };
    elems[0] = 1e30f;
    elems[1 << 19] = -1e30f;
    elems[5] = NAN;
    for (size_t i = 6; i < 1000; i++) elems[i] = 0.5f;
    ctl_stats_add(&stats, elems + 1024, (1 << 20) - 1024);
    ctl_stats_add(&stats, elems + 1, 1023);
    ctl_stats_add(&stats, elems, 1);
    ck_assert_double_eq(ctl_sum_of(&stats.sum), 497);
    ck_assert_uint_eq(stats.nonfinite, 1);
    ck_assert(stats.min == -1e30f && stats.max == 1e30f);
}

TEST(a_difference_has_its_greatest_its_norm_and_its_first_element)
{
    float a[3000], b[3000];
    for (size_t i = 0; i < 3000; i++) a[i] = b[i] = 2;
    struct ctl_difference d = { 0 };
    ctl_difference_add(&d, 5000, a, b, 3000);
    ck_assert_uint_eq(d.elems, 0);
    ck_assert_double_eq(ctl_difference_relative(&d), 0);
    b[2000] = 5;
    b[2500] = -2;
    b[2999] = NAN;
    a[100] = b[100] = NAN; // the same bits are the same
    ctl_difference_add(&d, 5000, a, b, 3000);
    ck_assert_uint_eq(d.elems, 3);
    ck_assert_uint_eq(d.unlike, 1);
    ck_assert_uint_eq(d.first_elem, 7000);
    ck_assert_double_eq(d.max, 4);
    ck_assert_double_eq_tol(ctl_difference_relative(&d), 5 / sqrt(4 * 5998), 1e-12);
}
SUITE(10);

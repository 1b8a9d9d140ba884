/* Where initial state comes from, as a spec says it: carried, compared, judged. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/snapshot.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"
#include "tests/support/snapshot_sample.h"
#include "tests/support/suite.h"

static struct sentence why;

/* One trained tensor; what it begins as is the test's. */
static struct job_spec_data spec_of(const char *path, const char *prefix, cairn_init_kind init)
{
    struct job_spec_data spec = cairn_sample_spec("adamw");
    cairn_sample_tensor(&spec, "w", CAIRN_TRAINED, (struct shape) { 1, { 9 } });
    spec.tensors[0].init = (struct cairn_init) { .kind = init };
    ck_assert_int_eq(spec_set_init_from(&spec, path, prefix), CAIRN_OK);
    spec_canonicalize(&spec);
    return spec;
}

static void count_line(void *context, const struct spec_difference *d)
{
    ck_assert_msg(strncmp(d->field, "init_", 5) == 0, "%s", d->field);
    ++*(size_t *)context;
}

TEST(path_and_prefix_travel_and_are_stored)
{
    struct job_spec_data spec = spec_of("/models/base", "model.", CAIRN_INIT_NONE), got, copy;
    uint8_t *bytes;
    size_t count;
    ck_assert_int_eq(spec_pack(&spec, &bytes, &count), CAIRN_OK);
    ck_assert_msg(spec_unpack(bytes, count, optimizer_names(), &got, &why) == CAIRN_OK, "%s",
                  why.text);
    ck_assert_str_eq(got.init_from, "/models/base");
    ck_assert_str_eq(got.init_prefix, "model.");
    ck_assert_int_eq(spec_copy(&got, &copy), CAIRN_OK);
    ck_assert_uint_eq(spec_diff(&spec, &copy, 0, NULL, NULL), 0);
    spec_release(&copy);
    spec_release(&got);
    free(bytes);

    struct manifest m, back;
    char *text;
    manifest_init(&m);
    m.spec = spec; // moves
    m.loss_scale = 1;
    ck_assert_msg(manifest_encode(&m, &text, &count, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_msg(manifest_decode(text, count, &back, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_uint_eq(spec_diff(&m.spec, &back.spec, 0, NULL, NULL), 0);
    ck_assert_str_eq(back.spec.init_prefix, "model.");
    free(text);
    manifest_release(&m);
    manifest_release(&back);
}

TEST(another_path_or_prefix_is_another_job)
{
    struct job_spec_data a = spec_of("/models/base", "model.", CAIRN_INIT_NONE);
    struct job_spec_data b = spec_of("/models/other", NULL, CAIRN_INIT_NONE);
    uint8_t hash_a[32], hash_b[32];
    size_t lines = 0;
    ck_assert_uint_eq(spec_diff(&a, &b, 9, count_line, &lines), 2);
    ck_assert_uint_eq(lines, 2);
    ck_assert_int_eq(spec_hash(&a, hash_a), CAIRN_OK);
    ck_assert_int_eq(spec_hash(&b, hash_b), CAIRN_OK);
    ck_assert(memcmp(hash_a, hash_b, 32) != 0);
    spec_release(&a);
    spec_release(&b);
}

TEST(weights_that_are_not_finite_are_wished_for_in_the_spec)
{
    struct job_spec_data a = spec_of("/models/base", NULL, CAIRN_INIT_NONE);
    struct job_spec_data b = spec_of("/models/base", NULL, CAIRN_INIT_NONE);
    uint8_t hash_a[32], hash_b[32];
    b.init_nonfinite_ok = true;
    ck_assert_uint_eq(spec_diff(&a, &b, 0, NULL, NULL), 1);
    ck_assert_int_eq(spec_hash(&a, hash_a), CAIRN_OK);
    ck_assert_int_eq(spec_hash(&b, hash_b), CAIRN_OK);
    ck_assert(memcmp(hash_a, hash_b, 32) != 0);
    ck_assert_int_eq(spec_set_init_from(&b, NULL, NULL), CAIRN_OK);
    ck_assert_int_eq(spec_check(&b, optimizer_names(), &why), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "init_nonfinite_ok without init_from"));
    spec_release(&a);
    spec_release(&b);
}

TEST(a_path_that_cannot_be_one_is_refused)
{
    static char longest[CAIRN_SPEC_PATH_MAX + 3] = "/";
    memset(longest + 1, 'a', CAIRN_SPEC_PATH_MAX + 1);
    const char *const bad[][2] = { { "models/base", NULL }, { "./base", NULL }, { "/a\nb", NULL },
                                   { "/\xff", NULL },       { longest, NULL },  { NULL, "model." },
                                   { "/a", "b\x01" } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct job_spec_data spec = spec_of(bad[i][0], bad[i][1], CAIRN_INIT_NONE);
        ck_assert_int_eq(spec_check(&spec, optimizer_names(), &why), CAIRN_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(why.text, "init_"));
        spec_release(&spec);
    }
    longest[CAIRN_SPEC_PATH_MAX] = '\0';
    struct job_spec_data spec = spec_of(longest, "\xc3\xa4", CAIRN_INIT_NONE);
    ck_assert_int_eq(spec_check(&spec, optimizer_names(), &why), CAIRN_OK);
    spec_release(&spec);
}

TEST(a_job_initializes_itself_if_every_tensor_has_an_origin)
{
    struct job_spec_data spec = spec_of(NULL, "", CAIRN_INIT_NONE);
    ck_assert(!spec_initializes_itself(&spec));
    spec.tensors[0].init.kind = CAIRN_INIT_ZEROS;
    ck_assert(spec_initializes_itself(&spec));
    cairn_sample_tensor(&spec, "x", CAIRN_FROZEN, (struct shape) { 0, { 0 } });
    ck_assert(!spec_initializes_itself(&spec));
    ck_assert_int_eq(spec_set_init_from(&spec, "/a", NULL), CAIRN_OK);
    ck_assert(spec_initializes_itself(&spec));
    spec_release(&spec);
    spec = cairn_sample_spec("adamw");
    cairn_sample_tensor(&spec, "empty", CAIRN_TRAINED, (struct shape) { 1, { 0 } });
    ck_assert(!spec_initializes_itself(&spec)); // nothing to make: as it always was
    spec_release(&spec);
}

SUITE(30);

#include "tests/e2e/bits_check.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>

void bits_check_root(const char *address, const char *root)
{
    static struct cluster_said said;
    struct cluster at = { .folder = "" };
    snprintf(at.address, sizeof at.address, "%s", address);
    cluster_cli(&at, &said, "job", "digest", "-q", BITS_JOB, NULL);
    ck_assert_msg(said.status == 0, "%s", said.err);
    said.out[strcspn(said.out, "\n")] = 0;
    ck_assert_str_eq(said.out, root);
}

void bits_root_at(uint64_t step, char hex_out[65])
{
    struct bits_reference ref;
    bits_reference_open(&ref);
    bits_reference_run(&ref, step);
    bits_reference_root(&ref, hex_out);
    bits_reference_close(&ref);
}

void bits_train_quietly(struct bits_worker pattern, const char *address, uint32_t skipped)
{
    struct bits_run run;
    pattern.endpoint = address;
    bits_run_start(&run, &pattern, BITS_WORKERS);
    bits_run_join(&run);
    for (int i = 0; i < BITS_WORKERS; i++) {
        ck_assert_uint_eq(run.worker[i].void_rounds, 0);
        ck_assert_uint_eq(run.worker[i].skipped, skipped);
    }
}

int bits_run_suite(const char *name, TCase *const *cases)
{
    Suite *suite = suite_create(name);
    for (; *cases != NULL; cases++) {
        tcase_set_timeout(*cases, 60);
        suite_add_tcase(suite, *cases);
    }
    return suite_run(suite);
}

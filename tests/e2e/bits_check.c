#include "tests/e2e/bits_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/trainer.h"

static const char *digest_of(const char *address)
{
    static char root[65];
    struct cluster at = { .folder = "" };
    snprintf(at.address, sizeof at.address, "%s", address);
    trainer_digest(&at, BITS_JOB, root);
    return root;
}

void bits_check_root(const char *address, const char *root)
{
    ck_assert_str_eq(digest_of(address), root);
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

void bits_check_root_at(const char *address, uint64_t step)
{
    struct bits_reference ref;
    char before[65], behind[65];
    const char *digest = digest_of(address);
    bits_reference_open(&ref);
    bits_reference_run(&ref, step);
    bits_reference_root(&ref, before);
    if (step == BITS_NAN_STEP) bits_reference_skip(&ref);
    bits_reference_root(&ref, behind);
    bits_reference_close(&ref);
    ck_assert_msg(strcmp(digest, before) == 0 || strcmp(digest, behind) == 0,
                  "step %" PRIu64 ": %s, not %s or %s", step, digest, before, behind);
}

pid_t bits_spawn_worker(const struct cluster *cluster, int rank, int die_at)
{
    char rank_text[16], die_text[16], log[128];
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(die_text, sizeof die_text, "%d", die_at);
    snprintf(log, sizeof log, "%s/worker-%d.log", cluster->folder, rank);
    const char *const argv[] = { "/proc/self/exe", "--worker", cluster->address,
                                 rank_text,        die_text,   NULL };
    return cluster_spawn(argv, log);
}

int bits_be_worker(char **argv, struct bits_worker pattern)
{
    pattern.endpoint = argv[2];
    pattern.rank = (uint32_t)atoi(argv[3]);
    pattern.until_step = BITS_STEPS;
    pattern.die_at = (uint64_t)atoi(argv[4]);
    if (bits_worker_run(&pattern)) return 0;
    fprintf(stderr, "%s\n", pattern.error);
    return 1;
}

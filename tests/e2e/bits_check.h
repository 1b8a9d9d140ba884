/* What the tests of the bits ask a cluster and hold against the reference. */
#ifndef CAIRN_E2E_BITS_CHECK_H
#define CAIRN_E2E_BITS_CHECK_H

#include <check.h>

#include "tests/e2e/bits_reference.h"
#include "tests/e2e/bits_worker.h"
#include "tests/support/cluster.h"

/* `cairn job digest` of the coordinator at `address` prints this root. */
void bits_check_root(const char *address, const char *root);
/* The reference's root at a step. */
void bits_root_at(uint64_t step, char hex_out[65]);
/* Both workers, as threads, to pattern.until_step; undisturbed: no round is void, and those that were
 * skipped are as many as given. */
void bits_train_quietly(struct bits_worker pattern, const char *address, uint32_t skipped);
/* Runs the suite of one test case; the exit status of main. */
int bits_run_suite(const char *name, TCase *const *cases);

#endif

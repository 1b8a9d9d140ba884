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
/* The digest is the reference's at that step; at BITS_NAN_STEP before the round that is skipped there, or
 * behind it, where the loss scale is another one. */
void bits_check_root_at(const char *address, uint64_t step);
/* Both workers, as threads, to pattern.until_step; undisturbed: no round is void, and those that were
 * skipped are as many as given. */
void bits_train_quietly(struct bits_worker pattern, const char *address, uint32_t skipped);

/* ---- a worker as a process: `PROGRAM --worker ENDPOINT RANK DIE_AT` ---- */
pid_t bits_spawn_worker(const struct cluster *cluster, int rank, int die_at);
/* What main does with these words, on top of `pattern`; its exit status. */
int bits_be_worker(char **argv, struct bits_worker pattern);

#endif

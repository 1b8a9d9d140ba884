/* The job "tiny" of the abuse tests: small enough to train in milliseconds, large enough that two shards
 * own a part of it; and what those tests ask of a process and a text. */
#ifndef CAIRN_E2E_ABUSE_JOB_H
#define CAIRN_E2E_ABUSE_JOB_H

#include <cairn.h>
#include <stdint.h>

#include "tests/support/cluster.h"

enum {
    ABUSE_ELEMS = 512 * 256, /* of the tensor "w"; "b" has 10 */
    ABUSE_WAIT_MS = 15000,
};

/* A session with the cluster; it must come. */
cairn *abuse_session(const struct cluster *cluster, const char *name);
/* The spec of "tiny" for a rank; its tables are static and may be changed by the caller. */
struct cairn_job_spec abuse_spec(uint32_t rank);
/* Opens "tiny" by this spec and brings it to its first round: rank 0 puts the initial state. */
cairn_job *abuse_open(cairn *session, const struct cairn_job_spec *spec);
/* One round with a gradient of `value` everywhere; *out only on CAIRN_OK. */
cairn_status abuse_round(cairn_job *job, float value, int timeout_ms, struct cairn_result *out);
/* `count` rounds that must be applied; gives the step after them. */
uint64_t abuse_train(cairn_job *job, int count);
/* A round without a pushed tensor; it must be applied. */
void abuse_empty_round(cairn_job *job);
/* "w" at the newest version, [ABUSE_ELEMS]; free it. */
float *abuse_parameters(cairn_job *job);
struct cairn_version abuse_version(cairn_job *job);

/* Fails the test unless `text` has `words`; says both. */
void abuse_says(const char *text, const char *words);
/* The number behind "NAME: " in a file of /proc/PID. */
uint64_t abuse_proc_number(pid_t pid, const char *file, const char *name);

#endif

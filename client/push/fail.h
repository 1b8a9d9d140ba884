/* The end of a job. Loop thread. */
#ifndef CAIRN_CLIENT_PUSH_FAIL_H
#define CAIRN_CLIENT_PUSH_FAIL_H

#include "proto/base/status.h"

struct job;

/* Fails the job for good, if it has not failed: every call says so, and whoever waits hears it. */
void cairn_fail_calls(struct job *job, cairn_status status, const char *text);
/* It is detached, and all that is under way ends with `status`. */
void cairn_fail_parcels(struct job *job, cairn_status status);
/* Both. */
void cairn_job_fail(struct job *job, cairn_status status, const char *text);

#endif

/* The steps that all calls of a job share: look up the handle, judge the arguments, hand the work
 * to the loop thread. They run on the caller's threads; a failure sets the calling thread's error
 * sentence. */
#ifndef CAIRN_CLIENT_API_API_H
#define CAIRN_CLIENT_API_API_H

#include "client/job.h"

/* cairn_open; with a hub (tests) the data path is the mem fabric. Not exported. */
cairn_status cairn_client_open(const struct cairn_opts *opts, struct cairn_fabric_hub *hub,
                               cairn **out) CAIRN_MUST_CHECK;

/* The job of a handle, until the call leaves; NULL: it is not open. */
struct job *cairn_api_job(const cairn_job *handle);
/* Returns `status`: how the call ends. */
cairn_status cairn_api_leave(const cairn_job *handle, cairn_status status);
/* The deadline of a call whose timeout begins now, on the clock of cairn_client_now_ms. */
uint64_t cairn_api_deadline(int timeout_ms);
/* Judges the arguments that most calls have. CAIRN_ERR_INVALID names the one that is wrong.
 * `out_name` is the name of the caller's `out`; NULL if the call has none. */
cairn_status cairn_api_judge_call(const char *out_name, const void *out,
                                  int timeout_ms) CAIRN_MUST_CHECK;
/* Fails like the job has, if it has. */
cairn_status cairn_api_check(struct job *job) CAIRN_MUST_CHECK;
/* Sleeps until *open (puts.open, filling.pushes_open) is 0; `what` names them. */
cairn_status cairn_api_await_none(struct job *job, const uint64_t *open, const char *what,
                                  uint64_t deadline_ms) CAIRN_MUST_CHECK;
/* The sizes of these structs in the first release: a caller may have been compiled with it. */
#define CAIRN_API_ROUND_LEAST  offsetof(struct cairn_round, skips)
#define CAIRN_API_RESULT_LEAST offsetof(struct cairn_result, skips)

/* Waits for a round of its own (CAIRN_MSG_WRITE_BEGIN) or of all (CAIRN_MSG_ROUND_BEGIN). */
cairn_status cairn_api_round_begin(struct job *job, uint16_t type, uint64_t deadline_ms,
                                   struct cairn_round *out) CAIRN_MUST_CHECK;
/* The client state and the driven rates that a commit carries. Both have been judged. */
struct cairn_commit_words {
    ProtobufCBinaryData state; /* the client state */
    double *driven; /* [group_count] of the spec, rates of driven groups; NULL: none is */
};
/* Commits it, once, and waits for its end. */
cairn_status cairn_api_commit(struct job *job, const struct cairn_round *round, uint64_t weight,
                              const struct cairn_commit_words *words, uint64_t deadline_ms,
                              struct cairn_result *out) CAIRN_MUST_CHECK;

/* ---- driven.c ---- */
/* The rates that go with a commit, by group; `room`: [group_count]. *driven_out: that, or NULL where no
 * group is driven. CAIRN_ERR_INVALID: one has none yet. */
cairn_status cairn_driven_take(struct job *job, double *room, double **driven_out) CAIRN_MUST_CHECK;

/* ---- batch.c: which micro-batches of a step are this worker's (proto/spec/batch.h) ---- */
/* The number that the caller has for a micro-batch of the open round becomes its place among this worker's.
 * CAIRN_ERR_INVALID: it is another's. Fails as the round does, too. */
cairn_status cairn_api_batch_place(struct job *job, const struct cairn_round *round,
                                   uint32_t *micro) CAIRN_MUST_CHECK;
/* Under the lock: the open round has no micro-batch for this worker. */
bool cairn_batch_is_surplus(const struct job *job);
/* Under the lock, with global_batch: are all of its micro-batches ended, or all but the last? *is_open: that
 * one is to be ended. CAIRN_ERR_INVALID. Without it nothing is judged, and *is_open stays. */
cairn_status cairn_batch_judge_commit(const struct job *job, bool *is_open) CAIRN_MUST_CHECK;
/* May this worker write what is no parameter? CAIRN_ERR_REFUSED. */
cairn_status cairn_api_batch_judge_buffer(struct job *job, size_t tensor) CAIRN_MUST_CHECK;

/* ---- push.c ---- */
/* Did this job begin it? Rounds of two jobs may have the same number. */
cairn_status cairn_api_judge_begun(const struct job *job,
                                   const struct cairn_round *round) CAIRN_MUST_CHECK;
/* Is it the round that this worker has open? Under the lock. */
cairn_status cairn_api_judge_round(const struct job *job,
                                   const struct cairn_round *round) CAIRN_MUST_CHECK;
/* Under the lock. Sleeps until no thread is adding up or copying a push; those wait for nothing. */
void cairn_api_await_added(struct job *job);
/* Is it, and its micro-batch, the one that is being filled, and the tensor not yet in it? Notes the tensor;
 * of CAIRN_API_NO_TENSOR the end of the micro-batch, for which it waits until all is copied. */
#define CAIRN_API_NO_TENSOR SIZE_MAX
cairn_status cairn_api_judge_fill(struct job *job, const struct cairn_round *round, uint32_t micro,
                                  size_t tensor) CAIRN_MUST_CHECK;
/* Pushes tensors of which only parts came in the micro-batch that ended: zeros for the others. */
cairn_status cairn_api_push_incomplete(struct job *job, const struct cairn_round *round,
                                       uint32_t micro) CAIRN_MUST_CHECK;

#endif

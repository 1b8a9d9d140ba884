/* What the calls of a job have in common: look the handle up, judge the arguments, hand the work to
 * the loop thread. Caller's threads; failures set this thread's sentence. */
#ifndef CAIRN_CLIENT_API_H
#define CAIRN_CLIENT_API_H

#include "client/session.h"

/* The job of a handle, to be given back by cairn_handle_put; NULL: it is not open. */
struct job *cairn_api_job(const cairn_job *handle);
/* Of a timeout in milliseconds from now. */
uint64_t cairn_api_deadline(int timeout_ms);
/* Fails like the job has, if it has. */
cairn_status cairn_api_check(struct job *job) CAIRN_MUST_CHECK;
/* Sleeps until *open (puts_open, pushes_open) is 0; `what` names them. */
cairn_status cairn_api_await_none(struct job *job, const uint64_t *open, const char *what,
                                  uint64_t deadline_ms) CAIRN_MUST_CHECK;
/* Finds the tensor and judges what of the caller's memory does not depend on the box; *mem_out is that. An
 * alias gives its target; one of a box gives that box in *part_out (NULL = all of it). */
cairn_status cairn_api_judge_data(const struct job *job, const char *name,
                                  const struct cairn_mem *given, struct cairn_mem *mem_out,
                                  size_t *tensor_out,
                                  const struct cairn_box **part_out) CAIRN_MUST_CHECK;
/* A box of an alias (NULL = all of it) as a box of its target. */
cairn_status cairn_api_judge_part(const char *name, const struct cairn_box *part,
                                  const struct cairn_box *box,
                                  struct cairn_box *box_out) CAIRN_MUST_CHECK;
/* Both: *box becomes the box of the target, in `room`, if the name is an alias of a box. */
cairn_status cairn_api_judge_boxed(const struct job *job, const char *name,
                                   const struct cairn_mem *given, struct cairn_mem *mem_out,
                                   size_t *tensor_out, const struct cairn_box **box,
                                   struct cairn_box *room) CAIRN_MUST_CHECK;
/* Judges the box of a put or push, and the memory's pointer: NULL is what this worker holds, and nothing
 * else will do. */
cairn_status cairn_api_judge_own(struct job *job, size_t tensor, const struct cairn_box *box,
                                 const struct cairn_mem *mem,
                                 struct piece *piece_out) CAIRN_MUST_CHECK;
/* Judges the box of a fetch, and the memory's pointer: any box, NULL is the whole tensor. */
cairn_status cairn_api_judge_box(struct job *job, size_t tensor, const struct cairn_box *box,
                                 const struct cairn_mem *mem,
                                 struct piece *piece_out) CAIRN_MUST_CHECK;
/* plane.c: CAIRN_ERR_NOT_FOUND says why the tensor has no such plane (enum cairn_plane). */
cairn_status cairn_api_judge_plane(const struct job *job, size_t tensor,
                                   int plane) CAIRN_MUST_CHECK;
/* Returns CAIRN_ERR_INVALID. */
cairn_status cairn_api_refuse_dtype(const char *tensor, const struct cairn_mem *mem,
                                    const char *allowed);
/* What a plane (enum cairn_plane) of a tensor is put, written and fetched in; CAIRN_ERR_INVALID: mem is not
 * in it. */
cairn_dtype cairn_api_plane_dtype(const struct job *job, size_t tensor, int plane);
cairn_status cairn_api_judge_dtype(const struct job *job, size_t tensor, int plane,
                                   const struct cairn_mem *mem) CAIRN_MUST_CHECK;
/* A command with a reference to the job; NULL: out of memory. */
struct command *cairn_api_command(struct job *job, bool (*run)(struct command *));
/* An operation that is over already: nothing of the caller's is on loan. op_out may be NULL. */
cairn_status cairn_api_finished(struct job *job, uint8_t kind, cairn_op **op_out) CAIRN_MUST_CHECK;
/* Begins a put, push or fetch. `pattern` says what; job, op and run are filled in. */
cairn_status cairn_api_begin(struct job *job, uint8_t kind, bool (*run)(struct command *),
                             const struct command *pattern, cairn_op **op_out) CAIRN_MUST_CHECK;

/* What these structs were in the first release: a caller may have been compiled with it. */
#define CAIRN_API_ROUND_LEAST  offsetof(struct cairn_round, skips)
#define CAIRN_API_RESULT_LEAST offsetof(struct cairn_result, skips)

/* Waits for a round of its own (CAIRN_MSG_WRITE_BEGIN) or of all (CAIRN_MSG_ROUND_BEGIN). */
cairn_status cairn_api_round_begin(struct job *job, uint16_t type, uint64_t deadline_ms,
                                   struct cairn_round *out) CAIRN_MUST_CHECK;
/* What goes with a commit, judged. */
struct cairn_commit_words {
    ProtobufCBinaryData state; /* the client state */
    double *driven; /* [group_count] of the spec, rates of driven groups; NULL: none is */
};
/* Commits it, once, and waits for its end. */
cairn_status cairn_api_commit(struct job *job, const struct cairn_round *round, uint64_t weight,
                              const struct cairn_commit_words *words, uint64_t deadline_ms,
                              struct cairn_result *out) CAIRN_MUST_CHECK;

/* ---- driven.c ---- */
/* [group_count], of which none was given; NULL: no memory. */
double *cairn_driven_make(size_t group_count);
/* The rates that go with a commit, by group; `room`: [group_count]. *driven_out: that, or NULL where no
 * group is driven. CAIRN_ERR_INVALID: one has none yet. */
cairn_status cairn_driven_take(struct job *job, double *room, double **driven_out) CAIRN_MUST_CHECK;

/* ---- api_push.c ---- */
/* Did this job begin it? Rounds of two jobs may have the same number. */
cairn_status cairn_api_judge_begun(const struct job *job,
                                   const struct cairn_round *round) CAIRN_MUST_CHECK;
/* Is it the round that this worker has open? Under the lock. */
cairn_status cairn_api_judge_round(const struct job *job,
                                   const struct cairn_round *round) CAIRN_MUST_CHECK;
/* Is it, and its micro-batch, the one that is being filled, and the tensor not yet in it? Notes the tensor;
 * of CAIRN_API_NO_TENSOR the end of the micro-batch, for which it waits until all is copied. */
#define CAIRN_API_NO_TENSOR SIZE_MAX
cairn_status cairn_api_judge_fill(struct job *job, const struct cairn_round *round, uint32_t micro,
                                  size_t tensor) CAIRN_MUST_CHECK;
/* Pushes tensors of which only parts came in the micro-batch that ended: zeros for the others. */
cairn_status cairn_api_push_incomplete(struct job *job, const struct cairn_round *round,
                                       uint32_t micro) CAIRN_MUST_CHECK;

/* write.c: the round of the write that is open; 0 = none. */
uint64_t cairn_api_write_round(struct job *job);
/* Until no write of this worker is open, or it is void. CAIRN_ERR_TIMEOUT names it. */
cairn_status cairn_api_await_write(struct job *job, uint64_t deadline_ms) CAIRN_MUST_CHECK;
cairn_status cairn_api_write_put(struct job *job, uint64_t round, const char *tensor,
                                 const char *plane, const struct cairn_box *box,
                                 const struct cairn_mem *mem, cairn_op **op_out) CAIRN_MUST_CHECK;

#endif

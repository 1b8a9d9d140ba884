/* A trainer's side for tests: sessions and jobs of libcairn against the rooms of one process. Everything that
 * is not what the test is about fails the test (Check) with cairn_error(). */
#ifndef CAIRN_SUPPORT_TOY_H
#define CAIRN_SUPPORT_TOY_H

#include <cairn.h>

#include "tests/support/rooms.h"

enum {
    TOY_TENSORS = 5,
    TOY_ELEMS = 1200,
    TOY_VALUES = 1200 + 20 + 1023 + 1 + 77,
    TOY_WAIT_MS = 20000
};

/* In three units: "a" of two tensors, "b" of one whose wire is bf16, each of the others alone; the last
 * one is frozen. */
extern const struct cairn_tensor toy_tensors[TOY_TENSORS];
uint64_t toy_elems(int tensor);
/* Of static memory: good until the next call. */
struct cairn_job_spec toy_spec(uint32_t rank, uint32_t workers_min);

#define toy_good(call)                                                         \
    do {                                                                       \
        const cairn_status toy_status = (call);                                \
        ck_assert_msg(toy_status == CAIRN_OK, "%s: %s", #call, cairn_error()); \
    } while (0)
/* The call fails like this, and cairn_error() has the word. */
#define toy_fails(call, expected, word)                                                  \
    do {                                                                                 \
        const cairn_status toy_status = (call);                                          \
        ck_assert_msg(toy_status == (expected) && strstr(cairn_error(), (word)) != NULL, \
                      "%s gave %d: %s", #call, (int)toy_status,                          \
                      toy_status != CAIRN_OK ? cairn_error() : "");                      \
    } while (0)

cairn *toy_session(const struct rooms *rooms, const char *name);
cairn_job *toy_open(cairn *session, const char *job, const struct cairn_job_spec *spec);
/* A dense tensor of host memory. */
struct cairn_mem toy_mem(void *ptr, cairn_dtype dtype);
/* Element i of a tensor's initial state. */
float toy_initial(int tensor, uint64_t elem);
/* Puts all tensors, as toy_initial has them; does not call cairn_init_done. */
void toy_put(cairn_job *job);
/* toy_open, toy_put of rank 0, and cairn_init_done. */
cairn_job *toy_ready(cairn *session, const char *job, const struct cairn_job_spec *spec);
struct cairn_round toy_begin(cairn_job *job);
/* Pushes a gradient for every trained tensor: a number made of `seed`, tensor and element. */
void toy_push(cairn_job *job, const struct cairn_round *round, uint32_t micro, uint32_t seed);
struct cairn_result toy_commit(cairn_job *job, const struct cairn_round *round);
/* Begin, push, commit. */
struct cairn_result toy_step(cairn_job *job, uint32_t seed);
/* The plane's values of a whole tensor. */
void toy_fetch(cairn_job *job, struct cairn_version version, int tensor, const char *plane,
               cairn_dtype dtype, void *out);

#endif

/* Functions of the calls for single tensors (push.c, put.c, read.c) that the calls for lists
 * (list.c) use too. They run on the caller's threads; a failure sets the calling thread's error
 * sentence. */
#ifndef CAIRN_CLIENT_API_LIST_H
#define CAIRN_CLIENT_API_LIST_H

#include "client/api/api.h"

/* ---- push.c ---- */
/* A push of all that this worker holds of a tensor, or of just that box. CAIRN_ERR_UNSUPPORTED: the name is
 * an alias of a box. */
cairn_status cairn_api_judge_push(struct job *job, const char *tensor, const struct cairn_box *box,
                                  const struct cairn_mem *given, size_t *tensor_out,
                                  struct piece *piece_out,
                                  struct cairn_mem *mem_out) CAIRN_MUST_CHECK;
/* cairn_api_judge_fill of several tensors, none twice, and that none is frozen: all are noted, or none is.
 * *wrong_out: which of them is wrong; `count`: it is none of them. */
cairn_status cairn_api_fill_many(struct job *job, const struct cairn_round *round, uint32_t micro,
                                 const size_t *tensors, size_t count,
                                 size_t *wrong_out) CAIRN_MUST_CHECK;

/* ---- read.c ---- */
/* The number of a plane that is fetched; NULL: of "wire". */
cairn_status cairn_api_plane_of(const char *plane, int *number_out) CAIRN_MUST_CHECK;
cairn_status cairn_api_judge_fetch(struct job *job, const char *tensor, int plane,
                                   const struct cairn_box *box, const struct cairn_mem *given,
                                   size_t *tensor_out, struct piece *piece_out,
                                   struct cairn_mem *mem_out) CAIRN_MUST_CHECK;

#endif

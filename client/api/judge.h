/* Judging what a caller gives of a tensor: name, memory, box, plane. Caller's threads; failures set this
 * thread's sentence. */
#ifndef CAIRN_CLIENT_API_JUDGE_H
#define CAIRN_CLIENT_API_JUDGE_H

#include "client/api/api.h"

struct card;
struct portion;

/* Finds the tensor and judges what of the caller's memory does not depend on the box; *mem_out is that. An
 * alias gives its target; one of a box gives that box in *part_out (NULL = all of it). */
cairn_status cairn_api_judge_data(const struct job *job, const char *name,
                                  const struct cairn_mem *given, struct cairn_mem *mem_out,
                                  size_t *tensor_out,
                                  const struct cairn_box **part_out) CAIRN_MUST_CHECK;
/* The same, and *box becomes the box of the target, in `room`, if the name is an alias of a box. */
cairn_status cairn_api_judge_boxed(const struct job *job, const char *name,
                                   const struct cairn_mem *given, struct cairn_mem *mem_out,
                                   size_t *tensor_out, const struct cairn_box **box,
                                   struct cairn_box *room) CAIRN_MUST_CHECK;
/* Judges the box of a put or push, and the memory's pointer: NULL is what this worker holds, and nothing
 * else will do. */
cairn_status cairn_api_judge_own(struct job *job, size_t tensor, const struct cairn_box *box,
                                 const struct cairn_mem *mem,
                                 struct piece *piece_out) CAIRN_MUST_CHECK;
/* Judges the box of a fetch or a write, and the memory's pointer: any box; NULL is what this worker holds,
 * and needs mem->bytes where that is a tile. */
cairn_status cairn_api_judge_box(struct job *job, size_t tensor, const struct cairn_box *box,
                                 const struct cairn_mem *mem,
                                 struct piece *piece_out) CAIRN_MUST_CHECK;
/* A plane that is put: *number_out (enum cairn_plane). CAIRN_ERR_UNSUPPORTED: none of them; as
 * cairn_api_judge_plane. */
cairn_status cairn_api_judge_state(const struct job *job, size_t tensor, const char *plane,
                                   int *number_out) CAIRN_MUST_CHECK;
/* CAIRN_ERR_NOT_FOUND says why the tensor has no such plane (enum cairn_plane). */
cairn_status cairn_api_judge_plane(const struct job *job, size_t tensor,
                                   int plane) CAIRN_MUST_CHECK;
/* Returns CAIRN_ERR_INVALID. */
cairn_status cairn_api_refuse_dtype(const char *tensor, const struct cairn_mem *mem,
                                    const char *allowed);
/* CAIRN_ERR_INVALID: mem is not in what the plane of the tensor is put, written and fetched in. */
cairn_status cairn_api_judge_dtype(const struct job *job, size_t tensor, int plane,
                                   const struct cairn_mem *mem) CAIRN_MUST_CHECK;
/* Sets whole and piece. CAIRN_ERR_INVALID: the box is not the whole alias, or the memory cannot be;
 * CAIRN_ERR_UNSUPPORTED: this worker holds a tile of the target. */
cairn_status cairn_api_judge_portion(struct job *job, const struct cairn_box *part,
                                     const struct cairn_box *box,
                                     struct portion *portion) CAIRN_MUST_CHECK;

/* ---- memory of a GPU (bring.c) ---- */

/* The card of mem.device; *card_out NULL: the host. */
cairn_status cairn_api_card(const struct cairn_mem *mem, struct card **card_out) CAIRN_MUST_CHECK;
/* Waits until the work queued on mem->stream is done, then copies the memory of `piece` to the
 * host. `mem` must have been judged with that piece. On return *mem describes the host memory;
 * *copy_out is the caller's to free, NULL if the memory was on the host already. */
cairn_status cairn_api_bring(struct cairn_mem *mem, const struct piece *piece,
                             void **copy_out) CAIRN_MUST_CHECK;

#endif

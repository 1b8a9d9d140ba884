/* What moves into a job and out of it: what lands, its first state, writes at a boundary, snapshots. Part of
 * shard.h, which includes it; all of it on the loop thread unless it says otherwise. */
#ifndef CAIRN_SHARD_MOVES_H
#define CAIRN_SHARD_MOVES_H

#include "server/shard/shard.h"

/* ---- job.c: the state itself ---- */
#define CAIRN_STATE_PLANES 3
extern const enum cairn_plane cairn_state_planes[CAIRN_STATE_PLANES]; /* param, then the moments */
bool cairn_part_keeps(const struct cairn_part *part, enum cairn_plane plane);
cairn_dtype cairn_part_dtype(const struct cairn_part *part, enum cairn_plane plane);
/* The arena of CAIRN_PLANE_PARAM or of one of the optimizer's. */
const struct cairn_arena *cairn_shard_job_plane(const struct cairn_shard_job *job,
                                                enum cairn_plane plane);
/* cairn_shard_job_plane_byte of it, as an address. */
uint8_t *cairn_shard_job_at(const struct cairn_shard_job *job, enum cairn_plane plane,
                            uint32_t extent, uint64_t local_elem);

/* ---- landing.c: what comes from the fabric ---- */
void cairn_landing_on_message(void *shard, const void *header, size_t header_bytes,
                              size_t payload_bytes, struct cairn_fabric_message *message);
/* Where a PUSH belongs, judged without side effects. CAIRN_OK: *chunk_out is the core's number. Else
 * `why` says which field is wrong. */
CAIRN_MUST_CHECK cairn_status cairn_landing_judge_push(const struct cairn_member *member,
                                                       const struct cairn_chunk_header *header,
                                                       uint32_t *chunk_out,
                                                       struct cairn_piece *piece_out,
                                                       struct cairn_sentence *why);
/* RECEIVE and DISCARD of the core: what waits goes into a slot, or is dropped. */
void cairn_landing_receive(struct cairn_shard_job *job, uint32_t slot, uint32_t chunk);
void cairn_landing_discard(struct cairn_shard_job *job);
/* Nobody reads the slot's payload any more: a worker's memory goes back to it. */
void cairn_landing_release(struct cairn_slot *slot);
/* The job does nothing any more: all slots that are not being folded. */
void cairn_landing_release_all(struct cairn_shard_job *job);

/* ---- admit.c: memory is there before it is counted on ---- */
/* LOADING: takes the memory of a job that was just opened, then loads or makes its state (`snapshot_path`,
 * extend.h, origin.c) or awaits it; Done or an error, and it leaves, answers job->creating. */
CAIRN_MUST_CHECK cairn_status cairn_admit_job(struct cairn_shard_job *job,
                                              const Cairn__JobCreate *create,
                                              struct cairn_sentence *why);
/* A member joined: answers when all workers that did have their landing slots; without room it leaves. */
void cairn_admit_member(struct cairn_shard_job *job, uint64_t member, struct cairn_request request);
/* Workers may have left: gives back what landed from more of them than there are, when no round uses it;
 * until then job->landing_extra is set, and this is called again. */
void cairn_admit_left(struct cairn_shard_job *job);

/* ---- origin.c: initial state that the shards make themselves ---- */
/* The job names weights, or a tensor here has an initializer. */
bool cairn_origin_wanted(const struct cairn_shard_job *job);
/* LOADING: makes what there is to make, then INITIALIZING and Done; or an error, and leaves. */
CAIRN_MUST_CHECK cairn_status cairn_origin_begin(struct cairn_shard_job *job,
                                                 struct cairn_sentence *why);
void cairn_origin_cancel(struct cairn_shard_job *job);
void cairn_origin_release(struct cairn_shard_job *job);

/* ---- write.c: writes at a step boundary ---- */
/* The round is a write of that member; what another write left is forgotten. */
void cairn_write_open(struct cairn_shard_job *job, uint64_t round, uint64_t member);
void cairn_write_close(struct cairn_shard_job *job);
/* The chunk that a PUT names: chunk and place of *out are set. CAIRN_ERR_MALFORMED: it is not one of
 * here. */
CAIRN_MUST_CHECK cairn_status cairn_put_judge_chunk(const struct cairn_shard_job *job,
                                                    const struct cairn_chunk_header *header,
                                                    struct cairn_put *out,
                                                    struct cairn_sentence *why);
/* What a PUT's plane must be in. */
cairn_dtype cairn_put_dtype(const struct cairn_shard_job *job, const struct cairn_put *put);
/* CAIRN_ERR_MALFORMED: the payload is not as long as put->piece in the header's dtype. */
CAIRN_MUST_CHECK cairn_status cairn_put_judge_payload(const struct cairn_chunk_header *header,
                                                      const struct cairn_put *put,
                                                      struct cairn_sentence *why);
/* A PUT of a job that serves, judged without side effects; chunk and place of *out are set, and its piece
 * unless a box in the payload says that. */
CAIRN_MUST_CHECK cairn_status cairn_write_judge(const struct cairn_member *member,
                                                const struct cairn_chunk_header *header,
                                                struct cairn_put *out, struct cairn_sentence *why);
/* It is of the write that is open. */
bool cairn_write_is(const struct cairn_shard_job *job, const struct cairn_chunk_header *header);
/* Keeps a chunk, or a box of it, beside the state. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_MALFORMED. */
CAIRN_MUST_CHECK cairn_status cairn_write_take(struct cairn_shard_job *job,
                                               const struct cairn_put *put, const uint8_t *bytes,
                                               struct cairn_sentence *why);
/* Compute thread: what was kept of the chunk goes into the state. */
void cairn_write_apply(const struct cairn_shard_job *job, uint64_t chunk,
                       const struct cairn_chunk_place *place);
/* The outcome of that round was told: a write of another one is void. */
void cairn_write_resolved(struct cairn_shard_job *job, uint64_t round);

/* ---- release.c: memory goes back to the system on another thread ---- */
/* The arena becomes CAIRN_ARENA_NONE: nobody touches that memory any more. */
void cairn_release(struct cairn_shard *shard, struct cairn_arena *arena);
/* When all that were released before are unmapped, the budget has the bytes again, and the request (may be
 * NULL) is answered. */
void cairn_release_bytes(struct cairn_shard *shard, uint64_t budget_bytes,
                         const struct cairn_request *request);
/* With the shard, behind its pools. */
void cairn_release_close(struct cairn_shard *shard);

/* ---- pin.c, restore.c ---- */
void cairn_pin_begin(struct cairn_shard_job *job, const Cairn__Pin *message);
/* Where the copy is to be written, if anywhere. */
void cairn_pin_folder(struct cairn_shard_job *job, const Cairn__PinFolder *message);
/* The session ended: no folder comes any more to those that wait for one. */
void cairn_pin_session_ended(struct cairn_shard_job *job);
/* UPDATED: begins the copies that waited. */
void cairn_pin_updated(struct cairn_shard_job *job);
/* The job leaves: what runs on the files thread ends soon. */
void cairn_pin_cancel(struct cairn_shard_job *job);
void cairn_pin_release(struct cairn_shard_job *job);
/* LOADING: reads the state, tells the digests of what it has then as the SnapshotPart `digest` (0: to
 * nobody), and seals; or answers with an error and leaves. */
CAIRN_MUST_CHECK cairn_status cairn_restore_begin(struct cairn_shard_job *job, const char *path,
                                                  uint64_t digest, struct cairn_sentence *why);
void cairn_restore_cancel(struct cairn_shard_job *job);
void cairn_restore_release(struct cairn_shard_job *job);

/* late.c: answers by Lacks. */
void cairn_shard_job_tell_lacks(struct cairn_shard_job *job, const Cairn__LacksGet *message);

#endif

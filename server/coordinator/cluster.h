/* The coordinator: the struct to read first.
 *
 *   cluster ── seats      the shards by name, there or away
 *     │  └──── sessions   the connections that said Hello; each has the members it opened
 *     └─────── jobs       each with its core (server/core/round.h), its shards, its members,
 *                         at most one cut (a snapshot or a digest) and at most one restore
 *
 * Who decides what: a job's rounds and epochs are decided by its core alone; round_world.c tells it
 * what happens and does what it says. Jobs, layouts and generations are decided in jobs.c and
 * restore.c and are durable (store.h) before anyone hears of them. Whether a peer is alive is decided
 * in sessions.c: the end of its connection, or a lease that ran out.
 *
 * Requests to shards that are awaited go through calls.c: a gather is one question to several shards
 * and one answer. A shard that goes away fails its calls with CAIRN_ERR_CLOSED.
 *
 * Memory: every list hangs on a connection or on a job and is bounded by an option or a constant
 * below. Everything runs on the loop's thread, but the store's writes (saves.c, a thread of their own) and
 * what work.c sends to libuv's threads: no file is touched on the loop once it runs. */
#ifndef CAIRN_COORDINATOR_CLUSTER_H
#define CAIRN_COORDINATOR_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "server/base/listener.h"
#include "server/base/log.h"
#include "server/coordinator/state.h"

/* From the configuration; strings are borrowed for the cluster's life. */
struct cairn_cluster_options {
    char *name;
    int64_t shards; /* a job is spread over so many */
    char *store_path;
    char *snapshots_path;
    struct cairn_listener_options network;
    int64_t heartbeat_ms, lease_timeout_ms, step_deadline_ms;
    int64_t workers_max; /* of a job */
    int64_t lease_ttl_max_ms, lease_versions_max;
    char *log_level;
};
/* The table of it, for server/base/config.h. */
const struct cairn_option *cairn_cluster_option_table(size_t *option_count_out);
/* What the table cannot: values that contradict each other. CAIRN_ERR_CONFIG. */
cairn_status cairn_cluster_options_judge(const struct cairn_cluster_options *options,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;

struct cairn_cluster;
/* Locks and opens the data folder, loads the jobs, listens. The loop must run then. */
cairn_status cairn_cluster_open(const struct cairn_cluster_options *options, uv_loop_t *loop,
                                struct cairn_cluster **cluster_out,
                                struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Closes connections, waits for work of other threads, frees itself, then calls on_closed (may be
 * NULL). Nothing is told to anyone: it is the same as being killed, only tidier. */
void cairn_cluster_close(struct cairn_cluster *cluster, void (*on_closed)(void *context),
                         void *context);
/* "/run/cairn/coordinator.sock"; of several, blanks between */
const char *cairn_cluster_address(const struct cairn_cluster *cluster);
/* For tests: rows written to the store since it was opened. */
uint64_t cairn_cluster_store_writes(const struct cairn_cluster *cluster);

/* ---- what follows is for the files of this folder ---- */

/* cluster.c: the clock of deadlines, which stands while this process is stopped. */
uint64_t cairn_cluster_now_ms(const struct cairn_cluster *cluster);
/* A part of it is closed; frees it after the last. */
void cairn_cluster_close_step(struct cairn_cluster *cluster);

/* sessions.c: connections, Hello, leases. */
void cairn_cluster_session_on_frame(struct cairn_peer *peer, const struct cairn_frame *frame,
                                    void *context);
void cairn_cluster_session_on_gone(struct cairn_peer *peer, cairn_status status, const char *why,
                                   void *context);
void cairn_cluster_sessions_tick(struct cairn_cluster *cluster, uint64_t now_ms, uint64_t away_ms);
/* Send what they say; one that cannot be sent to is being closed and goes by itself. */
void cairn_cluster_session_send(struct cairn_cluster_session *session, uint16_t type,
                                uint32_t request, const ProtobufCMessage *message);
void cairn_cluster_session_error(struct cairn_cluster_session *session, uint32_t request,
                                 cairn_status status, const char *text);
/* Unasked: the session's member of the job has its place no more. */
void cairn_cluster_session_expelled(struct cairn_cluster_session *session, uint64_t job,
                                    cairn_status status, const char *text);
void cairn_cluster_session_done(struct cairn_cluster_session *session, uint32_t request);
/* Holds the bytes and sends them as Pages; without a session nothing happens, as with all of these. */
void cairn_cluster_session_pages(struct cairn_cluster_session *session, uint32_t request,
                                 enum cairn_page_what what, struct cairn_packed *packed);

/* calls.c: questions to shards. */
struct cairn_cluster_gather;
/* The id of a request of ours, not 0; of one whose answer nobody waits for, too. */
uint32_t cairn_cluster_request_new(struct cairn_cluster *cluster);
/* `status` CAIRN_OK: all said Done. Else the first failure, and whose. */
typedef void (*cairn_cluster_gather_fn)(void *context, cairn_status status, const char *why);
/* An empty question; ask shards with it, then cairn_cluster_gather_start. NULL: no memory. */
struct cairn_cluster_gather *cairn_cluster_gather_open(struct cairn_cluster *cluster,
                                                       cairn_cluster_gather_fn on_done,
                                                       void *context);
/* The request id to send to that seat with; 0: no memory or it is away, and the gather fails. */
uint32_t cairn_cluster_gather_ask(struct cairn_cluster_gather *gather,
                                  struct cairn_cluster_seat *seat);
/* All were asked: on_done comes when all have answered; at once if nobody is left to answer. */
void cairn_cluster_gather_start(struct cairn_cluster_gather *gather);
/* Adds the names of those that have not answered: "s1, s3". */
void cairn_cluster_gather_awaited(const struct cairn_cluster_gather *gather,
                                  struct cairn_sentence *out);
void cairn_cluster_calls_reply(struct cairn_cluster_seat *seat, uint32_t request,
                               cairn_status status, const char *text);
/* Nobody answers there any more: no new call to it is made in here. */
void cairn_cluster_calls_seat_gone(struct cairn_cluster_seat *seat);

/* members.c: workers and readers of jobs. */
struct cairn_cluster_member *cairn_cluster_member_find(struct cairn_cluster_session *session,
                                                       uint64_t job_id);
struct cairn_cluster_member *cairn_cluster_job_member(struct cairn_cluster_job *job, uint64_t id);
/* Into the job's list and index, which cairn_cluster_member_free takes it out of. */
void cairn_cluster_job_member_add(struct cairn_cluster_job *job,
                                  struct cairn_cluster_member *member);
/* Gone, or gone from the job: the core and the shards hear of it; frees it. */
void cairn_cluster_member_leave(struct cairn_cluster_member *member, const char *reason);
/* Expels it, and the round goes on without it. */
void cairn_cluster_member_put_out(struct cairn_cluster_member *member, cairn_status status,
                                  const char *text);
/* A shard cannot read what it pushed: it is expelled, and the open round is done again without it. */
void cairn_cluster_member_fault(struct cairn_cluster_job *job, uint64_t id, const char *text);
/* It may not go on: its requests fail with this and the shards drop it. One that was attached gets
 * an Error of its own, and its connection is closed. Frees it. The core knows already. */
void cairn_cluster_member_expel(struct cairn_cluster_member *member, cairn_status status,
                                const char *text);
/* Every request that waits fails. */
void cairn_cluster_member_fail_requests(struct cairn_cluster_member *member, cairn_status status,
                                        const char *text);
/* Frees it and tells nobody. */
void cairn_cluster_member_free(struct cairn_cluster_member *member);
/* MemberJoin to all shards of its job; Attached follows when all know it. */
void cairn_cluster_member_tell_shards(struct cairn_cluster_member *member);
/* Those whom all shards know, when the job's version is known. */
void cairn_cluster_members_attach(struct cairn_cluster_job *job);
/* A shard of the job is back: tell it of all members. */
void cairn_cluster_members_tell_shard(struct cairn_cluster_job *job, uint32_t shard);
void cairn_cluster_members_forget_shard(struct cairn_cluster_job *job, uint32_t shard);
void cairn_cluster_members_shards_changed(struct cairn_cluster_job *job);

/* init.c: the initial state is there, and the same for all who looked. */
void cairn_cluster_member_init_done(struct cairn_cluster_member *member, uint32_t request,
                                    const Cairn__InitDone *message);
void cairn_cluster_members_answer_init(struct cairn_cluster_job *job);

/* tiles.c, tiles_declare.c: parts of tensors that workers hold. */
void cairn_cluster_tiles_declare(struct cairn_cluster_member *member, uint32_t request,
                                 const Cairn__TilesDeclare *message);
void cairn_cluster_tiles_page(struct cairn_cluster_session *session, uint32_t request,
                              const Cairn__Page *page);
/* The worker asks for a round. One that declared no tiles, when nobody is left who did, ends them. */
void cairn_cluster_tiles_begins(struct cairn_cluster_member *member);
/* A shard says that it knows tiles of so many ranks; 0: of none. */
void cairn_cluster_tiles_heard(struct cairn_cluster_job *job, uint32_t world);
/* Something changed: tells shards, judges the cover, answers, sets the core's gate. During an event of the
 * core: after it. */
void cairn_cluster_tiles_advance(struct cairn_cluster_job *job);
/* A shard, or a member that leaves the job's list, is not told of any more. */
void cairn_cluster_tiles_shard_gone(struct cairn_cluster_member *m, uint32_t shard);
void cairn_cluster_tiles_member_gone(struct cairn_cluster_job *job,
                                     const struct cairn_cluster_member *m);
/* Takes the tiles that the member declares for member->tiles_world ranks into the table; advance follows.
 * CAIRN_ERR_BUSY: it contributes to an open round. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_cluster_tiles_set(struct cairn_cluster_member *member, struct cairn_tiles *tiles,
                                     struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Nothing is declared any more; who waits, but `by`, hears why. advance follows. */
void cairn_cluster_tiles_clear(struct cairn_cluster_job *job,
                               const struct cairn_cluster_member *by);
/* Its TilesDeclare fails. */
void cairn_cluster_tiles_fail(struct cairn_cluster_member *member, cairn_status status,
                              const char *text);
/* False: a round may open, for all that tiles are concerned. Else `out` says who is missing. */
bool cairn_cluster_tiles_waiting(const struct cairn_cluster_job *job, struct cairn_sentence *out);
/* All declared ranks have said InitDone. */
bool cairn_cluster_tiles_all_put(const struct cairn_cluster_job *job);
/* What the rank holds of a tensor; NULL: the whole. Of a rank that has declared. */
const struct cairn_box *cairn_cluster_tiles_box(const struct cairn_cluster_job *job, uint32_t rank,
                                                uint32_t tensor);
/* replicas.c: InitDone.held of a member. CAIRN_ERR_MALFORMED, CAIRN_ERR_NO_MEMORY. */
#define CAIRN_INIT_HELD_BYTES 8 /* a tensor */
CAIRN_MUST_CHECK cairn_status cairn_cluster_replicas_take(struct cairn_cluster_member *member,
                                                          const ProtobufCBinaryData *held);
/* Ranks that hold the same box of a tensor have put the same; else false, and why. */
bool cairn_cluster_replicas_agree(const struct cairn_cluster_job *job, struct cairn_sentence *why);
void cairn_cluster_tiles_release(struct cairn_cluster_job *job);

/* writes.c: writes at a step boundary. Answered by RoundOpened, later. */
void cairn_cluster_member_write(struct cairn_cluster_member *member, uint32_t request);
void cairn_cluster_member_unwrite(struct cairn_cluster_member *member, uint64_t round);

/* openings.c: those on their way into a job. */
/* Takes what JobOpen says; answers or waits. */
void cairn_cluster_member_open(struct cairn_cluster_session *session, uint32_t request,
                               const Cairn__JobOpen *message);
void cairn_cluster_member_page(struct cairn_cluster_session *session, uint32_t request,
                               const Cairn__Page *page);
/* Its bounds are within round.workers_max. CAIRN_ERR_INVALID. */
cairn_status cairn_cluster_judge_workers(const struct cairn_cluster *cluster,
                                         const struct cairn_job_spec_data *spec,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Those that wait for jobs look again: a shard came, a job was made, restored or dropped. */
void cairn_cluster_openings_advance(struct cairn_cluster *cluster);
/* The job could not be made: those that wait for it hear why. */
/* What those who wait for it wished to be restored is there, or has nothing to be restored from; else they
 * are refused. */
void cairn_cluster_openers_resumed(struct cairn_cluster *cluster, const char *name,
                                   cairn_status status, const char *text);
void cairn_cluster_job_openers_fail(struct cairn_cluster *cluster, const char *name,
                                    cairn_status status, const char *text);

/* jobs.c: what jobs there are. */
struct cairn_cluster_job *cairn_cluster_job_find(struct cairn_cluster *cluster, const char *name);
struct cairn_cluster_job *cairn_cluster_job_by_id(const struct cairn_cluster *cluster, uint64_t id);
cairn_status cairn_cluster_job_load(struct cairn_cluster *cluster,
                                    const struct cairn_stored_job *row, struct cairn_sentence *why);
cairn_status cairn_cluster_jobs_load(struct cairn_cluster *cluster, struct cairn_sentence *why);
/* Begins to make a job of the spec over the shards that are up; its openers wait. */
cairn_status cairn_cluster_job_create(struct cairn_cluster *cluster,
                                      const struct cairn_job_spec_data *spec,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Its members are expelled. may_return: its core goes on hearing of shards, for the parts may come back. */
void cairn_cluster_job_lose(struct cairn_cluster_job *job, bool may_return, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* LOST, and a restore alone ends it. */
bool cairn_cluster_job_dead(const struct cairn_cluster_job *job);
/* A shard has seen more of it than our store knows of, in `what`: nothing is done until it is adopted. */
void cairn_cluster_job_behind(struct cairn_cluster_job *job, const char *shard, const char *what);
/* Forgets it on disk, then here and on its shards; until then it is CREATING. Its members must be gone. */
void cairn_cluster_job_drop(struct cairn_cluster_job *job);
void cairn_cluster_job_free(struct cairn_cluster_job *job);
/* The shard is there and says what it holds (held), or it is gone. */
void cairn_cluster_jobs_seat_up(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                                Cairn__HeldJob *const *held, size_t held_count);
void cairn_cluster_jobs_seat_down(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat);
/* A part that is missing for too long makes its job LOST, until it is back. */
void cairn_cluster_job_parts_tick(struct cairn_cluster_job *job);
/* Of a part whose shard came without it: what is waited for. */
void cairn_cluster_part_waiting(const struct cairn_cluster_job *job, uint32_t shard,
                                struct cairn_sentence *out);
/* It is back: with another address than the members were told? Notes the present one. */
bool cairn_cluster_job_shard_moved(struct cairn_cluster_job_shard *shard);
void cairn_cluster_job_try_seal(struct cairn_cluster_job *job);
const char *cairn_cluster_job_state_name(const struct cairn_cluster_job *job);
struct cairn_version cairn_cluster_job_version(const struct cairn_cluster_job *job);
/* Seats that are up for a job that is being planned: the least loaded ones, by name where they are equal.
 * CAIRN_ERR_NOT_READY: there are not so many. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_cluster_job_choose_shards(struct cairn_cluster_job *job,
                                             uint32_t shard_count) CAIRN_MUST_CHECK;
/* Where the shards are, as messages; the addresses are borrowed from the seats. */
struct cairn_cluster_shard_infos {
    Cairn__ShardInfo *infos; /* owned, [shard_count] */
    Cairn__ShardInfo **list; /* owned, [shard_count] */
};
bool cairn_cluster_shard_infos_init(struct cairn_cluster_shard_infos *infos,
                                    const struct cairn_cluster_job *job);
void cairn_cluster_shard_infos_release(struct cairn_cluster_shard_infos *infos);

/* A spec or a layout that nobody could take is refused before it is stored: CAIRN_ERR_INVALID. */
CAIRN_MUST_CHECK cairn_status cairn_cluster_judge_packed(const char *job,
                                                         const struct cairn_packed *packed,
                                                         struct cairn_sentence *why);
/* A job's body before it is known: spec, layout, shards. Shared by creation and restore. */
struct cairn_cluster_job *cairn_cluster_job_plan(struct cairn_cluster *cluster,
                                                 const struct cairn_job_spec_data *spec,
                                                 struct cairn_sentence *why);
/* JobCreate and its pages to all shards of the body. NULL: no memory. */
struct cairn_cluster_job_load {
    bool extend; /* made of the part that the shard has */
    const char *snapshot_path;
    uint64_t digest; /* of a SnapshotPart of what was loaded; 0: none is wanted */
    struct cairn_version version;
    const struct cairn_decision *last; /* may be NULL */
};
struct cairn_cluster_gather *
cairn_cluster_job_send_create(struct cairn_cluster_job *job,
                              const struct cairn_cluster_job_load *load,
                              cairn_cluster_gather_fn on_done, void *context);
/* All have made their part: is each still the process that did? CAIRN_ERR_CLOSED: not that one. */
cairn_status cairn_cluster_job_judge_shards(const struct cairn_cluster_job *job,
                                            struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_cluster_job_link(struct cairn_cluster_job *job);
void cairn_cluster_job_unlink(struct cairn_cluster_job *job);
void cairn_cluster_job_send_drop(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                                 uint64_t job_id);

/* terms.c */
/* Of a judged spec. */
cairn_status cairn_cluster_terms_make(const struct cairn_job_spec_data *spec,
                                      struct cairn_cluster_terms **terms_out,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_cluster_terms_free(struct cairn_cluster_terms *terms); /* and the older; NULL is fine */
/* A round is being applied: warns, once, of a group that does not learn for long. */
void cairn_cluster_terms_applied(struct cairn_cluster_job *job);
/* Those of the round that is open, of the last one if none is. */
const struct cairn_cluster_terms *cairn_cluster_terms_in_force(const struct cairn_cluster_job *job);
/* The job takes them, and its core goes by them from the next round on. */
void cairn_cluster_terms_replace(struct cairn_cluster_job *job, struct cairn_cluster_terms *terms);

/* amend.c, amend_tensors.c */
/* Judges an amendment, and takes it when it is durable; then the member is answered. */
void cairn_cluster_job_amend(struct cairn_cluster_member *member, uint32_t request,
                             const Cairn__JobAmend *amend);
/* The same, by an admin. */
void cairn_cluster_job_amend_by_name(struct cairn_cluster_session *session, uint32_t request,
                                     const Cairn__JobAmend *amend);
void cairn_cluster_amenders_forget(struct cairn_cluster *cluster,
                                   const struct cairn_cluster_session *session);
/* With the job; NULL is fine. */
void cairn_cluster_amending_free(struct cairn_cluster_amending *amending);
/* Does to a copy of the job's spec what the amendment says of tensors; canonical after it, not judged.
 * *extends_out: planes begin or end, so the shards have to make a new generation. */
cairn_status cairn_cluster_amend_tensors(struct cairn_job_spec_data *next,
                                         const Cairn__JobAmend *amend, bool *extends_out,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* extend.c: a new generation of a job at the same step, with other tensors. */
/* Begins one, and takes `next`, a judged spec; those whose amend_request is set are answered at its end. The
 * open round is void if it is `member`'s, whose amendment it is, too. CAIRN_ERR_BUSY, CAIRN_ERR_NOT_READY,
 * CAIRN_ERR_NO_MEMORY, CAIRN_ERR_INVALID (too large): nothing was begun or taken. */
cairn_status cairn_cluster_extend_begin(struct cairn_cluster_member *member,
                                        struct cairn_job_spec_data *next,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* An event of the core is over: is this a step boundary? */
void cairn_cluster_extend_advance(struct cairn_cluster_job *job);
void cairn_cluster_extend_shard_gone(struct cairn_cluster_job *job);
/* One is under way of an amendment with this key. */
bool cairn_cluster_extend_is(const struct cairn_cluster_job *job, uint64_t key);
/* The shards are at work: nobody joins. */
bool cairn_cluster_extend_making(const struct cairn_cluster_job *job);
/* With the job, or with what it has; NULL is fine. */
void cairn_cluster_extension_free(struct cairn_cluster_extension *extension);
/* Of the job only the part of that generation stays on the shard. */
void cairn_cluster_job_send_switch(const struct cairn_cluster_job *job,
                                   const struct cairn_cluster_seat *seat, uint64_t generation);

/* round_world.c: the core's hands and ears. */
cairn_status cairn_cluster_job_core_open(struct cairn_cluster_job *job,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_cluster_job_core_close(struct cairn_cluster_job *job);
void cairn_cluster_job_event(struct cairn_cluster_job *job, const struct cairn_round_event *event);
void cairn_cluster_job_tick(struct cairn_cluster_job *job, uint64_t now_ms);
void cairn_cluster_job_send_all(struct cairn_cluster_job *job, uint16_t type,
                                const ProtobufCMessage *message);
void cairn_cluster_decision_to_message(const struct cairn_decision *decision, Cairn__Decision *out);
/* Borrows the payload. CAIRN_ERR_MALFORMED. */
cairn_status cairn_cluster_decision_of_message(const Cairn__Decision *message,
                                               struct cairn_decision *out) CAIRN_MUST_CHECK;

/* waiting.c */
void cairn_cluster_job_waiting(const struct cairn_cluster_job *job, struct cairn_sentence *out);
/* So long at most those whom it awaits pause; 0: not all that is awaited is of that kind. */
uint64_t cairn_cluster_job_paused_ms(const struct cairn_cluster_job *job);
/* Its members are put out, for a restore: whoever pauses is waited for in the restored job, too. */
void cairn_cluster_job_keep_pauses(struct cairn_cluster_job *job);
void cairn_cluster_member_pause(struct cairn_cluster_member *member, uint32_t request,
                                const Cairn__Pause *pause);

/* handlers_*.c: judged frames of each role. Returns false if the role may not say that. */
bool cairn_cluster_handle_worker(struct cairn_cluster_session *session,
                                 const struct cairn_frame *frame, const ProtobufCMessage *message);
bool cairn_cluster_handle_shard(struct cairn_cluster_session *session,
                                const struct cairn_frame *frame, const ProtobufCMessage *message);
bool cairn_cluster_handle_admin(struct cairn_cluster_session *session,
                                const struct cairn_frame *frame, const ProtobufCMessage *message);

#endif

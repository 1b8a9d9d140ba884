/* A shard on a stage: the room of the shard daemon in this process, with a coordinator and a worker
 * that say what the test tells them, on one loop. Everything that they hear is kept, in order. */
#ifndef CAIRN_SUPPORT_SHARD_SCENE_H
#define CAIRN_SUPPORT_SHARD_SCENE_H

#include "server/base/listener.h"
#include "server/shard/shard.h"
#include "tests/support/made.h"
#include "tests/support/mem.h"
#include "tests/support/scratch.h"

enum {
    SCENE_DEADLINE_MS = 20000,
    SCENE_JOB = 77,
    SCENE_SHARDS = 2,
    SCENE_RELAY = 900,
    SCENE_RELAY_TOKEN = 9000
};

/* A control message that the coordinator heard. */
struct scene_frame {
    uint16_t type;
    uint32_t request;
    ProtobufCMessage *message; /* owned by the scene */
    bool taken;
};

/* A fabric message that the worker heard. */
struct scene_note {
    struct chunk_header header;
    uint8_t *payload; /* owned by the scene; [header.payload_bytes], once received */
    bool whole, taken;
};

struct scene {
    uv_loop_t loop;
    uv_timer_t deadline;
    struct fabric_hub *hub;
    bool hub_is_lent; /* it is the first scene's */
    struct shard_daemon *shard;
    bool closing;

    struct listener *listener;
    struct peer *session; /* the shard's, once it said Hello; NULL: none */
    char folder[CAIRN_SCRATCH_BYTES], coordinator[CAIRN_SCRATCH_BYTES + 16];
    unsigned hellos;
    uint32_t lease_ms; /* of the next Welcome; 0: a minute */

    struct fabric *fabric; /* the worker's */
    struct fabric_poll poll;
    struct fabric_peer *peer; /* to the shard */
    unsigned sent, sends_over;
    const char
        *row;  /* what of a table is tried: the scene says so when nothing comes; NULL: none */
    bool deaf; /* the worker takes no payload: its DATA stays held */

    struct scene_frame *frames;
    size_t frame_count;
    struct scene_note *notes;
    size_t note_count;

    struct job_spec_data spec;
    struct layout *layout;
    uint32_t index;        /* of the shard on the stage */
    struct shard_map map;  /* its */
    void (*beside)(void);  /* turns other scenes: no wait is for this one's loop alone */
    uint64_t epoch, round; /* put into headers by scene_header */
    bool freezes;          /* the next rounds: frozen_group takes no gradient */
    uint32_t frozen_group;
    bool extends; /* the next create is made of what is held */
    /* borrowed: the outcome with which the next create joins a job; NULL: it does not join */
    Cairn__Decision *last;
    bool freezes_tensor; /* the same of frozen_tensor */
    uint32_t frozen_tensor;
};

/* Opens the shard (named "s0", `threads` compute threads) and waits for its Hello. kind: "mem" or
 * "ucx". `limit_bytes` 0: plenty. */
void scene_open(struct scene *scene, const char *kind, uint32_t threads, uint64_t limit_bytes);
/* The same on a host that is described in `host_root` (server/base/daemon.h) and whose shards lock
 * `memory_lock`; NULL: on this one. */
void scene_open_on(struct scene *scene, const char *host_root, const char *memory_lock);
/* Another shard of the same job ("s1", ...), on a loop of its own and in the network of the first scene,
 * which is closed after it. It has its own coordinator and worker. */
void scene_open_beside(struct scene *scene, const struct scene *first, uint32_t index);
/* The scene goes by another layout, which is its own from here on. */
void scene_relayout(struct scene *scene, struct layout *layout);
/* Closes everything; the loop must be empty after it. */
void scene_close(struct scene *scene);

/* The job of the tests: tensors bias f32 [10] and weight bf16 [50,1000] (adamw), emb f32 [40,300] (sgd
 * with momentum), frozen f32 [20,500]. Shard 0 owns all but the last quanta of weight. */
enum { T_BIAS, T_EMB, T_FROZEN, T_WEIGHT, TENSORS };
enum { SCENE_CHUNK_LEAVES = 4, SCENE_WINDOW = 2, SCENE_MEMBERS = 3 };

/* Another shape for the frozen tensor, before scene_create. */
void scene_reshape_frozen(struct scene *scene, uint64_t rows, uint64_t columns);

/* Turns the loop until the condition holds; the suite's seconds end what never does. */
#define scene_until(scene, condition) \
    while (!(condition)) uv_run(&(scene)->loop, UV_RUN_ONCE)

/* ---- the coordinator ---- */
void scene_say(struct scene *scene, uint16_t type, uint32_t request,
               const ProtobufCMessage *message);
/* scene_tell(&scene, 9, JobDrop, .job = SCENE_JOB) */
#define scene_tell(scene, request, type, ...) \
    scene_say(scene, MADE_##type, request, MADE(type, __VA_ARGS__))
/* The bytes, in pages behind that request. */
void scene_say_pages(struct scene *scene, uint32_t request, enum page_what what,
                     const uint8_t *bytes, size_t size);
/* Runs until a message of that type is heard that was not taken yet, and takes it. */
struct scene_frame scene_hear(struct scene *scene, uint16_t type);
/* scene_heard(&scene, Answer)->epoch */
#define scene_heard(scene, type) ((const Cairn__##type *)scene_hear(scene, MADE_##type).message)
/* Hears Done to that request. */
void scene_done(struct scene *scene, uint32_t request);
/* Hears an Error of that status to that request, whose text has the word; "": any. Returns the text. */
const char *scene_refused(struct scene *scene, uint32_t request, cairn_status status,
                          const char *word);
/* JobCreate with the pages of spec and layout; the answer is not awaited. */
void scene_create(struct scene *scene, uint32_t request, uint64_t generation, uint64_t step,
                  const char *snapshot_path);
/* The same of version GENERATION.0, by request 3; hears Done. */
void scene_make(struct scene *scene, uint64_t generation);
/* Joins a member with token 1000 + member and hears Done. */
void scene_join(struct scene *scene, uint64_t member, uint32_t role);
/* The same; the answer is not awaited. */
void scene_ask_join(struct scene *scene, uint64_t member, uint32_t role);
/* A member leaves, and the shard has seen it. */
void scene_leave(struct scene *scene, uint64_t member);
/* Drops the job and hears Done: the shard has nothing of it any more. */
void scene_drop(struct scene *scene);
/* Leases a version for a minute, and hears Done. */
void scene_lease(struct scene *scene, uint64_t lease, uint64_t generation, uint64_t step);
/* Makes the shard the relay, whose number is SCENE_RELAY, of members 1 to `member_count` to `owner_count`
 * owners from `first_owner` on, named "s<n>", all at the end of that fabric; hears Done. */
void scene_relay(struct scene *scene, const struct fabric *fabric, uint32_t member_count,
                 uint32_t first_owner, uint32_t owner_count);
/* Seals and hears Done. */
void scene_seal(struct scene *scene);
void scene_fence(struct scene *scene, uint64_t epoch);
/* Decide or Resolve, in the scene's epoch. */
void scene_say_decision(struct scene *scene, uint16_t type, Cairn__Decision *decision);
/* Resolve with the outcome "none". */
void scene_resolve_none(struct scene *scene);
/* A fence, whose answer is returned, and a resolve with the outcome "none": what was open is void. */
const Cairn__Answer *scene_begin_epoch(struct scene *scene, uint64_t epoch);
/* A job at version 1.0, of initial values, with workers 1 to `workers`. */
void scene_serve(struct scene *scene, uint32_t workers, uint64_t epoch);
/* Opens round `round` at step `step` for the members 1 to member_count. */
void scene_round_open(struct scene *scene, uint64_t round, uint64_t step, uint32_t member_count);
/* The same, and hears that each of them is granted. */
void scene_round_begin(struct scene *scene, uint64_t round, uint64_t step, uint32_t member_count);
/* Opens a write of member 1, and hears its grant. */
void scene_write_open(struct scene *scene, uint64_t round, uint64_t generation, uint64_t step);

/* ---- the worker, who speaks for all members ---- */
/* A header of member, with its token, and the scene's epoch and round. */
struct chunk_header scene_header(const struct scene *scene, uint8_t kind, uint64_t member);
/* The same for a chunk, as a map has it. */
struct chunk_header scene_place_header(const struct scene *scene, uint8_t kind, uint64_t member,
                                       const struct chunk_place *place);
/* The same for a chunk of shard 0's map, whose number + 1 is the request. */
struct chunk_header scene_chunk_header(const struct scene *scene, uint8_t kind, uint64_t member,
                                       uint64_t chunk);
/* The header of a FETCH of a chunk, by shard 0's map. */
struct chunk_header scene_fetch_header(const struct scene *scene, uint64_t member, uint64_t chunk,
                                       enum plane plane, uint64_t generation, uint64_t step);
/* The first chunk of a tensor; how many bytes a chunk has in f32. */
uint64_t scene_chunk_of(const struct scene *scene, uint32_t tensor);
size_t scene_chunk_bytes(const struct scene *scene, uint64_t chunk);
/* Sends; payload_bytes and checksum of the header are filled in unless checksum is set. The payload
 * must live until the next scene_settle. */
void scene_send(struct scene *scene, struct chunk_header *header, const void *payload,
                size_t payload_bytes);
/* Runs until a message of that kind, with its payload, is heard that was not taken yet; takes it. */
const struct scene_note *scene_note(struct scene *scene, uint8_t kind);
/* Sends, hears the NAK to it, and returns why. */
cairn_status scene_nak(struct scene *scene, struct chunk_header *header, const void *payload,
                       size_t payload_bytes);
/* Sends a FETCH of a chunk; the answer is not awaited. */
void scene_fetch(struct scene *scene, uint64_t member, uint64_t chunk, enum plane plane,
                 uint64_t generation, uint64_t step);
/* Writer 1 has nothing of the trained tensors, and commits; Reduced is not awaited. */
void scene_write_commit(struct scene *scene);
/* Runs until every send is over: payloads may go. */
void scene_sent(struct scene *scene);
/* Takes all that was heard of the fabric. */
void scene_forget_notes(struct scene *scene);
/* Runs until every send is over and nothing has happened for some turns of the loop. */
void scene_settle(struct scene *scene);
/* Messages of a kind heard and not taken. */
size_t scene_waiting(const struct scene *scene, uint8_t kind);
/* Puts every chunk of the shard, waits for the ACKs, with scene_initial as values. */
void scene_put_all(struct scene *scene, uint64_t member);
float scene_initial(uint32_t tensor, uint64_t elem);
/* Of a blob. */
uint8_t scene_byte(uint64_t elem);
/* Until scene_find_pages, with what this gives: the host has no pages for the arena, of one segment. */
void *scene_lose_pages(const struct arena *arena);
void scene_find_pages(const struct arena *arena, void *kept);
/* Bytes of the arena that have pages. */
size_t scene_resident(const struct arena *arena);
/* What a plane of a job has, by local element, copied out of its home: until it is asked for again. */
const void *scene_plane(const struct shard_job *job, enum plane plane);
/* What the shard's job has as parameters of a chunk; likewise. */
const float *scene_param(const struct scene *scene, uint64_t chunk);

#endif

/* A coordinator in this process, with shards and workers that are only framed connections.
 *
 * Everything runs on the test's thread: fake_pump turns the coordinator's loop once and lets every
 * fake shard answer what it was asked, by its script; fake_expect pumps until a message comes or thirty
 * seconds are over. A fake shard holds no numbers: all its planes are zeros, so its files and digests
 * are real ones of an all-zero model. */
#ifndef CAIRN_SUPPORT_FAKE_CLUSTER_H
#define CAIRN_SUPPORT_FAKE_CLUSTER_H

#include "proto/geometry/layout.h"
#include "proto/snapshot/digest_tree.h"
#include "proto/wire/wire.h"
#include "server/base/log.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job.h"
#include "tests/support/made.h"
#include "tests/support/scratch.h"

#define FAKE_SHARDS     5 /* there are as many, or as fake_open is told of, if that is more */
#define FAKE_LEASES_MAX 8
#define FAKE_JOINS_MAX  4

/* What LayoutChanged said last. */
struct fake_told_layout {
    uint64_t version; /* 0: nothing yet */
    struct cairn_version since;
    uint32_t times, shards;
};

struct fake_peer {
    struct fake_cluster *cluster;
    int fd;     /* -1 = closed */
    bool ended; /* the coordinator closed it */
    struct frame_decoder decoder;
    uint32_t last_request;
    struct fake_told_layout layout;
};

struct fake_member {
    uint64_t number; /* 0: none */
    uint32_t rank;
    char name[64];
};

/* A RelaySet. */
struct fake_relay {
    uint64_t number;
    uint64_t members[8];
    uint32_t owners[FAKE_SHARDS];
    uint32_t member_count, owner_count;
};

/* A change of the layout (fake_move.h). */
struct fake_move {
    /* the script */
    bool holds_prepare; /* do not answer PartPrepare */
    bool holds_moved;   /* do not say PartMoved */
    const char *refuse; /* answer PartPrepare with refuse_status, or NO_MEMORY, and this */
    cairn_status refuse_status;
    /* what it has */
    struct layout *next; /* owned: prepared */
    struct paged next_pages;
    uint32_t request, movers;    /* of the last PartPrepare */
    uint64_t coordinator;        /* who sent it */
    uint64_t settled, published; /* the last PartSettled, PartPublish */
    bool is_told;                /* PartMoved was */
    bool is_ended;               /* MemberEnd came */
};

struct fake_shard {
    struct fake_peer peer;
    struct fake_move move;
    char name[16];
    uint64_t incarnation;
    /* the script */
    const char *storage; /* what its heartbeats say of it */
    const char *unheard; /* a shard that they say it does not hear; NULL: none */
    const char *failed; /* its Hello says that its device has, and why; NULL: nothing of a device */
    uint64_t
        awaits; /* its Hello says that this job's part waits for the snapshot of its log; 0: nothing */
    const char
        *refuse_create; /* answer JobCreate with refuse_create_status, or NO_MEMORY, and this */
    cairn_status refuse_create_status;
    const char *fail_part; /* answer Pin with NO_SPACE and this */
    const char *fail_seal;
    uint64_t nonfinite; /* so many elements of tensor 0: what Published tells */
    bool holds_reduced; /* do not report Reduced by itself when a round opens */
    uint64_t lacks[8];  /* [lack_count] members: the answer to LacksGet */
    uint32_t lack_count;
    bool holds_part;          /* do not answer Pin, nor say what was loaded */
    bool ignores_stop;        /* do not answer a PinFolder without a path */
    bool loads_other;         /* what it says of a snapshot that it loaded is not what that has */
    uint32_t part_batch;      /* digests in a SnapshotPart; 0: all of them */
    bool holds_seal;          /* do not answer JobSeal */
    bool holds_create;        /* do not answer JobCreate */
    bool holds_terms;         /* do not answer JobTerms */
    bool holds_join;          /* do not answer MemberJoin */
    bool holds_drop;          /* do not answer JobDrop */
    const char *refuse_terms; /* answer one that has a spec with NO_MEMORY and this */
    bool holds_parts;         /* do not answer PartGet */
    bool dies_at_switch;      /* take nothing from JobSwitch on, until it is up again */
    const char *refuse_tiles; /* answer MemberTiles with NO_MEMORY and this */
    const char *refuse_lease; /* answer LeaseKeep with refuse_lease_status and this */
    cairn_status refuse_lease_status;
    bool holds_lease;        /* do not answer LeaseKeep */
    bool holds_park;         /* do not answer PartPark: it moves */
    const char *refuse_park; /* answer PartPark with refuse_park_status and this */
    cairn_status refuse_park_status;
    const char *refuse_relay;     /* answer MemberJoin of a relay with BUSY and this */
    const char *refuse_relay_set; /* answer RelaySet with NO_MEMORY and this */
    char host[32];       /* where it is, from its next connection on; empty: it does not say */
    const void *address; /* borrowed: where its data goes; NULL: made up */
    size_t address_bytes;
    /* what it has */
    bool parked;                      /* or on its way there, or back */
    uint64_t leases[FAKE_LEASES_MAX]; /* their numbers; 0: none */
    uint32_t lease_count;
    uint32_t lease_request; /* of the last LeaseKeep */
    uint32_t lease_ttl_ms;
    struct cairn_version lease_version;
    Cairn__Keys *keys; /* owned: those that the coordinator told of; NULL: none */
    struct paged spec_pages, layout_pages;
    struct paged tiles_pages;
    uint32_t create_request, held_request, tiles_request;
    uint32_t tiles_world; /* of the last MemberTiles */
    bool has_job;
    uint64_t job, generation, epoch, round; /* round: open; 0 = none */
    uint32_t index;
    struct cairn_version version;
    struct job_spec_data spec;
    struct layout *layout;
    struct decision last;
    uint8_t payload[1024];
    uint64_t store, coordinator_incarnation, coordinator_process; /* that it obeyed last */
    uint64_t welcome_process; /* of the one it is connected to */
    uint64_t round_seen, base_step;
    bool settled; /* a coordinator said that the job is in its store */
    bool serving; /* sealed, loaded or made of another */
    bool joins;   /* made by `joins`, and has heard of no outcome yet */
    struct hash spec_digest;
    struct paged terms_pages;
    uint32_t terms_request, part_request;
    bool reduced;
    uint32_t member_count;            /* of the open round */
    uint64_t opened[8], opened_relay; /* of the last RoundOpen: members, as what it relays */
    struct fake_member *members; /* owned: [member_places], whom it was told of; 0: a free place */
    uint32_t member_places;
    struct fake_relay relay;          /* the last RelaySet */
    uint32_t seen[CAIRN_MSG_MAX + 1]; /* how many of each message came */
    uint32_t withdrawn_count;         /* how many MemberLeave said that a right has ended */
    char snapshot_path[256];          /* of the last JobCreate */
    uint64_t digest;                  /* the same */
    struct part *telling;             /* owned: a part of which more is to come */
    uint32_t part_messages;           /* SnapshotParts that it sent */
    uint32_t drop_request, join_requests[FAKE_JOINS_MAX], join_count; /* that are held */
    uint64_t held_pin;     /* the snapshot, or digest, that holds_part holds; 0: none */
    char held_folder[256]; /* where its files go; empty: a digest */
    bool held_park;        /* where holds_park holds it on its way to */
    uint64_t prepared;     /* the snapshot for which memory was made, until it is pinned; 0: none */
    uint32_t told_to_stop; /* PinFolders without a path */
    struct fake_shard *staged; /* owned: a generation made by `extend`, what it has alone */
    uint64_t member, token;    /* of the last MemberJoin; and where its data goes */
    uint8_t member_address[4096];
    size_t member_address_bytes;
    bool dead;          /* says nothing any more, whatever it is asked */
    cairn_status error; /* the last one that it was told */
    char error_text[512];
};

struct fake_cluster {
    uv_loop_t loop;
    struct coord_options options;
    struct coord *cluster; /* NULL while it is closed */
    char folder[CAIRN_SCRATCH_BYTES];
    char store[96], snapshots[96], listen[96];
    struct fake_shard *shards; /* owned: [shard_count] */
    uint32_t shard_count;
    uint32_t idle_pumps;      /* in a row, in which nothing happened */
    ProtobufCMessage **heard; /* owned: what peers heard, until the cluster is closed */
    size_t heard_count;
};

/* Without ck_assert's note of every place that was passed, which costs a system call. */
#define fake_assert(condition)                            \
    do {                                                  \
        if (!(condition)) ck_abort_msg("%s", #condition); \
    } while (0)

void fake_open(struct fake_cluster *fake, uint32_t shards);
void fake_close(struct fake_cluster *fake);
/* The coordinator alone: as if it was killed, and started again at the same socket and folder. */
void fake_coordinator_stop(struct fake_cluster *fake);
void fake_coordinator_start(struct fake_cluster *fake);
void fake_coordinator_restart(struct fake_cluster *fake);
/* It starts again with an empty store, and nobody has come yet. */
void fake_store_lose(struct fake_cluster *fake);
void fake_pump(struct fake_cluster *fake);
void fake_pumps(struct fake_cluster *fake, uint32_t count);
/* Pumps until it holds, or fails the test, within the 30 seconds that a suite gives. */
#define fake_until(fake, condition)                                               \
    do {                                                                          \
        const uint64_t fake_until_ms = uv_hrtime() / 1000000 + 25000;             \
        while (!(condition)) {                                                    \
            if (uv_hrtime() / 1000000 >= fake_until_ms) ck_abort_msg(#condition); \
            fake_pump(fake);                                                      \
        }                                                                         \
    } while (0)

/* Shard `i`, named "s<i>": connects (again) and says Hello; keeps what it holds. */
void fake_shard_up(struct fake_cluster *fake, uint32_t i);
/* The same, but for the Welcome, which may not come. */
void fake_shard_hello(struct fake_cluster *fake, uint32_t i);
void fake_shards_up(struct fake_cluster *fake, uint32_t count);
/* Its connection ends, and the coordinator has seen it. */
void fake_shard_away(struct fake_cluster *fake, uint32_t i);
/* It lost everything, as a new process. */
void fake_shard_forget(struct fake_cluster *fake, uint32_t i);
/* Its connection ends and is made again; the same, of a new process that has nothing. */
void fake_shard_blink(struct fake_cluster *fake, uint32_t i);
void fake_shard_renew(struct fake_cluster *fake, uint32_t i);
void fake_shard_report_reduced(struct fake_shard *shard);
/* Shards 0 and 1 report that by themselves, or not until they are told to. */
void fake_hold_reduced(struct fake_cluster *fake, bool held);
/* Its relay says that it cannot go on. */
void fake_shard_give_up(struct fake_shard *shard, const char *why);
/* Says Done to what it held. */
void fake_shard_release(struct fake_shard *shard);
/* Does everything that its script holds, and holds nothing any more. */
void fake_shard_let_go(struct fake_shard *shard);
/* The same of a LeaseKeep. */
void fake_shard_lease_done(struct fake_shard *shard);

/* ---- workers, readers, admins ---- */
struct fake_peer fake_connect(struct fake_cluster *fake, uint32_t role, const char *name);
/* The same, on a host. */
struct fake_peer fake_connect_at(struct fake_cluster *fake, uint32_t role, const char *name,
                                 const char *host);
/* Without a Hello. */
struct fake_peer fake_dial(struct fake_cluster *fake);
void fake_peer_close(struct fake_peer *peer);
/* What has arrived, into the decoder; never blocks. */
void fake_peer_read(struct fake_peer *peer);
bool fake_peer_next(struct fake_peer *peer, struct wire_frame *frame_out);
/* Sends a request and returns its id. */
uint32_t fake_request(struct fake_peer *peer, uint16_t type, const ProtobufCMessage *message);
void fake_send(struct fake_peer *peer, uint16_t type, uint32_t request,
               const ProtobufCMessage *message);
/* For pages_each, with the peer as its context: a page behind its last request. */
void fake_send_page(void *peer, const Cairn__Page *page);
/* fake_ask(&admin, JobShow, .name = "toy"): sends that request and returns its id. */
#define fake_ask(peer, type, ...) fake_request(peer, MADE_##type, MADE(type, __VA_ARGS__))
/* The same with an id of the caller's; 0: it is no request. */
#define fake_say(peer, request, type, ...) \
    fake_send(peer, MADE_##type, request, MADE(type, __VA_ARGS__))
/* The next message but Heartbeat and Page, which has to be of this type and id: the cluster's, until it is
 * closed. fake_hear(&w, Attached, request)->job */
#define fake_hear(peer, type, request) fake_hear_##type(peer, request)
/* Asks and hears: fake_call(&admin, JobStatus, JobShow, .name = "toy")->state */
#define fake_call(peer, answer, type, ...) \
    fake_hear(peer, answer, fake_ask(peer, type, __VA_ARGS__))
void *fake_heard(struct fake_peer *peer, uint16_t type, uint32_t request);
#define X(number, constant, type, field)                                                    \
    static inline Cairn__##type *fake_hear_##type(struct fake_peer *peer, uint32_t request) \
    {                                                                                       \
        return fake_heard(peer, number, request);                                           \
    }
CAIRN_MESSAGE_TABLE(X)
#undef X
/* An Error of this status whose text has the word. */
void fake_expect_error(struct fake_peer *peer, uint32_t request, cairn_status status,
                       const char *word);
/* The coordinator closes the connection; what it says before is not looked at. */
void fake_expect_end(struct fake_peer *peer);
/* What WhoIsAwaited is answered; and that its text has the word. */
Cairn__Awaited *fake_awaited(struct fake_peer *peer, uint64_t job);
void fake_expect_awaited(struct fake_peer *peer, uint64_t job, const char *word);
/* Nothing is on its way to the peer: a question is answered first. */
void fake_expect_silence(struct fake_peer *peer, uint64_t job);

/* The job "toy": two trained tensors, AdamW. */
struct job_spec_data fake_spec(uint32_t workers_min);
uint32_t fake_job_open(struct fake_peer *peer, const struct job_spec_data *spec, uint64_t session,
                       uint32_t rank);
/* The same with fake_spec(workers_min). */
uint32_t fake_ask_open(struct fake_peer *peer, uint64_t session, uint32_t rank,
                       uint32_t workers_min);
/* A worker that wishes that the newest snapshot is restored, if there is no job. */
uint32_t fake_ask_resume(struct fake_peer *peer, const struct job_spec_data *spec);
/* The same of a member that was attached already, to that job. */
uint32_t fake_job_open_again(struct fake_peer *peer, const struct job_spec_data *spec,
                             uint64_t session, uint32_t rank, uint64_t attached);
/* Opens and waits for Attached; returns the job's number. */
uint64_t fake_attach(struct fake_peer *peer, uint64_t session, uint32_t rank, uint32_t workers_min);
/* InitDone of the source, to the end. */
void fake_init(struct fake_peer *peer, uint64_t job);
uint32_t fake_ask_begin(struct fake_peer *peer, uint64_t job);
uint32_t fake_ask_commit(struct fake_peer *peer, uint64_t job, uint64_t round);
/* RoundBegin to RoundOpened; returns the round. */
uint64_t fake_begin(struct fake_peer *peer, uint64_t job);
/* RoundCommit to a RoundResult that is applied; returns the step after it. */
uint64_t fake_commit(struct fake_peer *peer, uint64_t job, uint64_t round);
/* Both; the step after it. */
uint64_t fake_step(struct fake_peer *peer, uint64_t job);
/* The amendment with those settings, "KEY=VALUE KEY=VALUE", besides what it has. */
uint32_t fake_ask_amend(struct fake_peer *peer, Cairn__JobAmend amend, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* JobAmend: a trained tensor more, "late"; and its answer. */
uint32_t fake_amend_more(struct fake_peer *peer, uint64_t job, uint64_t key);
/* JobAmend: the only group is frozen. */
uint32_t fake_amend_freeze(struct fake_peer *peer, uint64_t job, uint64_t key);
void fake_expect_amended(struct fake_peer *peer, uint32_t request, uint64_t revision);
/* A worker comes (again) with the spec as it was: a step more, in that generation, on two shards. */
void fake_goes_on(struct fake_cluster *fake, uint64_t generation, size_t tensors);
/* The layout that the job's coordinator and its shards have has another number; none has come to it yet. */
void fake_layout_number(struct fake_cluster *fake, const char *name, uint64_t number);

#endif

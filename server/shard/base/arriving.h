/* Messages of the coordinator whose bytes follow in pages: JobCreate, MemberTiles, JobTerms. When the last
 * page is here, a thread runs the kind's `prepare`, so that a large job holds nobody's round up, and then the
 * kind's `whole` is called; the message is answered and gone with cairn_arriving_end, then or later. `whole`
 * may give it to a thread once more (cairn_arriving_make). All of them are gone with the connection. Loop
 * thread. */
#ifndef CAIRN_SHARD_BASE_ARRIVING_H
#define CAIRN_SHARD_BASE_ARRIVING_H

#include "proto/wire/messages.h"
#include "server/base/pool.h"

#define CAIRN_ARRIVING_MAX   8 /* of a kind */
#define CAIRN_ARRIVING_PAGED 2

struct cairn_shard;
struct cairn_arriving;

struct cairn_arriving_kind {
    const char *name;                                /* "a job": in a refusal */
    enum cairn_page_what what[CAIRN_ARRIVING_PAGED]; /* of each of them; 0: none */
    bool may_be_empty;                               /* what has 0 bytes has come */
    /* On a thread, when all of it is here: makes `made`. It reads the message, its pages, and what of the
     * shard is constant. Not CAIRN_OK, with `why`: the message is refused. NULL, or no bytes came: nothing is
     * made. */
    cairn_status (*prepare)(struct cairn_arriving *arriving, void **made_out,
                            struct cairn_sentence *why);
    /* On a thread, of cairn_arriving_make: makes `made` complete. Not CAIRN_OK: as of `prepare`. */
    cairn_status (*make)(const struct cairn_arriving *arriving, void *made,
                         struct cairn_sentence *why);
    void (*unmake)(void *made); /* frees what nobody took; loop thread */
    /* All of it is here. It may be called again by whoever keeps it waiting. */
    void (*whole)(struct cairn_shard *shard, struct cairn_arriving *arriving);
};

struct cairn_arriving {
    struct cairn_task task;      /* private, as `phase`, `status`, `why` and `is_small` are */
    struct cairn_arriving *next; /* of the shard's */
    const struct cairn_arriving_kind *kind;
    uint32_t request;
    ProtobufCMessage *message; /* owned */
    struct cairn_paged paged[CAIRN_ARRIVING_PAGED];
    struct cairn_shard *shard;
    void *made; /* owned until `whole` takes it (cairn_arriving_take) */
    /* PREPARING: a thread reads it, so it is kept apart if it is dropped, until the thread is through. */
    enum { CAIRN_ARRIVING_PAGES, CAIRN_ARRIVING_PREPARING, CAIRN_ARRIVING_PREPARED } phase;
    bool is_small; /* so few bytes came that a thread would take longer to be told of them */
    cairn_status status;
    struct cairn_sentence why;
};

/* Takes the message, whose pages are so many bytes; a message that is refused is answered. */
void cairn_arriving_begin(struct cairn_shard *shard, const struct cairn_arriving_kind *kind,
                          uint32_t request, ProtobufCMessage *message,
                          const uint64_t bytes[CAIRN_ARRIVING_PAGED]);
/* A page of one of them, or of one that was refused. */
void cairn_arriving_on_page(struct cairn_shard *shard, uint32_t request, const Cairn__Page *page);
/* All pages are here, and what is made of them. */
bool cairn_arriving_whole(const struct cairn_arriving *arriving);
/* The result of `prepare` and `make`. Taking it makes it the caller's. */
void *cairn_arriving_made(const struct cairn_arriving *arriving);
void *cairn_arriving_take(struct cairn_arriving *arriving);
/* Within `whole`, as its last act: a thread runs the kind's `make`, then `whole` is called once more. */
void cairn_arriving_make(struct cairn_arriving *arriving);
/* One of that kind was dropped, and a thread still works on it. */
bool cairn_arriving_lingers(const struct cairn_shard *shard,
                            const struct cairn_arriving_kind *kind);
/* Answers it (CAIRN_OK is Done), and frees it. */
void cairn_arriving_end(struct cairn_shard *shard, struct cairn_arriving *arriving,
                        cairn_status status, const struct cairn_sentence *why);
/* Frees it without an answer. */
void cairn_arriving_drop(struct cairn_shard *shard, struct cairn_arriving *arriving);
void cairn_arriving_drop_all(struct cairn_shard *shard);
/* Frees the messages that were dropped while a thread prepared them. The threads must have
 * ended. */
void cairn_arriving_release(struct cairn_shard *shard);

#endif

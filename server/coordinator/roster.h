/* Who may connect over TCP: the tokens that were given out, the coordinator's own keys, and the keys of the
 * nodes that the shards came from.
 *
 * The lists are in memory, and a change that an admin makes is in the store before anybody is told of it.
 * The key of a node that says a name for the first time, and when tokens were seen, are stored a moment
 * later. Secrets leave the process only in the store's file, in its backups, and in the words that `cairn
 * cluster init` and `cairn key` print.
 *
 *   token    whoever has its word has its roles. A name may have several tokens: `rotate` makes a new one,
 *            and those before it are valid until their grace is over. A token that is not valid any more
 *            stays in the list, so its owner is told why; the oldest such tokens go when the list is full.
 *   curve    the coordinator's key, which a token pins. There are at most two: after a rotation the tokens
 *            that were made before it are still answered with the former one.
 *   node     a shard's name belongs to the node that first said it with a token for shards, until an
 *            operator lets go of it (`cairn key revoke shard:NAME`).
 *
 * A revocation ends each connection of the token at once, and its jobs. A rotation closes those that there
 * are when the grace is over, so that they come again with the new token. Whether a token has expired, or
 * its grace is over, is judged by this host's wall clock, when it connects and once a minute from then on.
 *
 * Loop thread only. */
#ifndef CAIRN_COORDINATOR_ROSTER_H
#define CAIRN_COORDINATOR_ROSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/secure/secure.h"
#include "server/coordinator/base.h"
#include "server/coordinator/store.h"

#define CAIRN_ROSTER_TOKENS_MAX 1024
#define CAIRN_ROSTER_NODES_MAX  4096
#define CAIRN_ROSTER_CURVES_MAX CAIRN_STORE_CURVES_MAX

struct roster_token {
    uint8_t id[CAIRN_PSK_ID_BYTES];
    uint8_t pin[CAIRN_PIN_BYTES];
    uint8_t secret[CAIRN_PSK_BYTES];
    char name[CAIRN_OWNER_BYTES], owner[CAIRN_OWNER_BYTES], jobs[CAIRN_JOBS_TEXT_BYTES];
    uint32_t roles;
    /* seconds since 1970; 0: never. grace_until: a newer token of the name is there */
    uint64_t created_s, not_after_s, grace_until_s, revoked_s, seen_s;
    bool seen_changed; /* the store does not know seen_s yet */
    /* shards were told that what members of this token have mapped is to be written no more */
    bool is_withdrawn;
};

enum roster_state {
    CAIRN_TOKEN_VALID,
    CAIRN_TOKEN_ROTATED,  /* valid, until its grace is over */
    CAIRN_TOKEN_REPLACED, /* its grace is over */
    CAIRN_TOKEN_EXPIRED,
    CAIRN_TOKEN_REVOKED,
};
/* The state of a token at that time. Pure. */
enum roster_state roster_state(const struct roster_token *token, uint64_t now_unix_s);
/* CAIRN_ERR_REFUSED if the token is not valid at that time: the sentence says why, what the time is by this
 * clock, and what to do. Pure. */
CAIRN_MUST_CHECK cairn_status roster_judge(const struct roster_token *token, uint64_t now_unix_s,
                                           struct sentence *why);
bool roster_is_valid(const struct roster_token *token); /* by this host's clock, now */

/* ==== the cluster's ==== */

/* Reads the lists, and makes the coordinator's key if there is none. Must be called before the store's thread
 * begins. Blocks. */
CAIRN_MUST_CHECK cairn_status coord_roster_open(struct coord *cluster, struct sentence *why);
void coord_roster_close(struct coord *cluster); /* wipes */
/* Puts out those whose token has expired, closes the connections of tokens that were replaced, and stores who
 * was seen: once a minute. */
void coord_roster_tick(struct coord *cluster);

/* The same look, at a time that the caller gives. */
void coord_roster_look(struct coord *cluster, uint64_t now_unix_s);

/* For the listener; `cluster` is a struct coord. An unknown id hears nothing; the owner of a token that is
 * not valid is refused. */
bool coord_roster_find(const uint8_t key_id[CAIRN_PSK_ID_BYTES], struct handshake_row *row_out,
                       void *cluster);
/* Who a peer is whose handshake is done. CAIRN_ERR_REFUSED: the token stopped being valid meanwhile. */
CAIRN_MUST_CHECK cairn_status coord_roster_identify(const struct handshake_result *result,
                                                    struct identity *identity_out,
                                                    struct sentence *why, void *cluster);
/* Judges whether the token of a connected identity is still valid, however long it has been since its
 * handshake. A peer over a Unix socket has none, and is always fine. */
CAIRN_MUST_CHECK cairn_status coord_roster_judge(const struct coord *cluster,
                                                 const struct identity *who, struct sentence *why);
/* Judges whether this identity may have the shard's name, and binds the name to the node's key at its first
 * use. CAIRN_ERR_REFUSED: the name is another node's. A peer over a Unix socket may have any name. */
CAIRN_MUST_CHECK cairn_status coord_roster_bind(struct coord *cluster, const struct identity *who,
                                                const char *shard, struct sentence *why);

/* Adds the tokens and nodes to the answer's message. */
void coord_roster_fill(const struct coord *cluster, struct coord_answer *answer, Cairn__Keys *keys);

/* ==== for roster.c and roster_asked.c ==== */

/* roster.c has the lists and judges by them, roster_asked.c changes them as admins say. */

struct roster_curve {
    uint64_t number;
    struct curve_key key;
    uint8_t pin[CAIRN_PIN_BYTES];
    uint64_t since_s;
};

struct roster_node {
    char shard[CAIRN_NAME_MAX];
    uint8_t key[CAIRN_CURVE_BYTES];
    uint8_t token[CAIRN_PSK_ID_BYTES]; /* that it came with */
    uint64_t since_s;
};

/* The change that the store is writing; only one is made at a time. */
struct roster_change {
    struct coord_waiters waiter; /* owned: the request */
    bool is_under_way, is_init;
    enum key_change op;
    struct roster_token *tokens; /* owned; [token_count]: as they will be, a new one last */
    size_t token_count;
    uint8_t dropped[2][CAIRN_PSK_ID_BYTES]; /* [dropped_count]: of dead tokens that make room */
    size_t dropped_count;
    bool has_new;
    struct roster_curve curve;
    char node[CAIRN_NAME_MAX]; /* the shard whose key is forgotten; "": none */
};

struct coord_roster {
    struct roster_token *tokens; /* owned; [token_count], by id */
    size_t token_count;
    struct roster_curve curves[CAIRN_ROSTER_CURVES_MAX]; /* the newest last */
    size_t curve_count;
    struct roster_node *nodes; /* owned; [node_count] */
    size_t node_count;
    struct roster_change change;
    uint64_t look_ms; /* when it was last judged who has expired, on the loop's clock */
};

#define CAIRN_ROSTER_TIME_BYTES 32
/* "2027-01-31 12:00 UTC" */
void roster_time_text(uint64_t unix_s, char out[CAIRN_ROSTER_TIME_BYTES]);
/* The id as the store's number. */
uint64_t roster_number(const uint8_t id[CAIRN_PSK_ID_BYTES]);
struct roster_token *roster_token_find(const struct coord_roster *roster,
                                       const uint8_t id[CAIRN_PSK_ID_BYTES]); /* NULL: none */
struct roster_node *roster_node_find(const struct coord_roster *roster,
                                     const char *shard); /* NULL: none */
/* Adds the token, or replaces the one with its id. There must be room. */
void roster_token_put(struct coord_roster *roster, const struct roster_token *token);
void roster_token_drop(struct coord_roster *roster, struct roster_token *token); /* wipes */
/* The row of a change that needs only a token's id, and when it was seen. */
struct stored_token roster_token_bare(const struct roster_token *token);
/* A new key of the coordinator; and a key as the store has it, which borrows `secret`: wipe that. */
struct roster_curve roster_curve_make(uint64_t number);
struct stored_curve roster_curve_row(const struct roster_curve *curve,
                                     char secret[2 * CAIRN_CURVE_BYTES + 1]);
/* Wipes it, and ends it. Its waiter must be empty. */
void roster_change_release(struct roster_change *change);
/* The connections of a token that is revoked or has expired: ends them, and sees that nothing reaches those
 * that have left before; and counts them. */
void coord_roster_put_out(struct coord *cluster, const struct roster_token *token, const char *why);
uint32_t coord_roster_connected(const struct coord *cluster, const struct roster_token *token);

#endif

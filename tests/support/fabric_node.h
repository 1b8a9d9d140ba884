/* A fabric with the bookkeeping that tests of it need: everything that arrived is written down, and what a
 * test leaves open is closed by its tear_down:
 *
 *   SUITE(30, .tear_down = nodes_close); */
#ifndef CAIRN_TESTS_FABRIC_NODE_H
#define CAIRN_TESTS_FABRIC_NODE_H

#include <stdbool.h>
#include <sys/types.h>

#include "proto/fabric/fabric.h"

enum { NODE_ARRIVALS_MAX = 4096, NODE_DEADLINE_MS = 20000 };

/* What test messages carry as their header. */
struct note {
    uint64_t id;
    uint64_t answer; /* 1: the receiver should answer with the same payload */
};

enum node_manner {
    NODE_HOLDS,    /* keeps every message for later */
    NODE_RECEIVES, /* receives inside on_message into a buffer of its own, freed with the node */
    NODE_DROPS
};

struct arrival {
    struct note note;
    size_t payload_bytes;
    struct fabric_message *message; /* still held */
    uint8_t *buffer;                /* owned, once received */
    cairn_status status;            /* of the receive */
    bool is_over;
    struct node *node;
};

struct node {
    struct fabric *fabric;
    enum node_manner manner;
    struct arrival arrivals[NODE_ARRIVALS_MAX]; /* in order of on_message */
    unsigned arrived, received, receive_errors;
    unsigned sent, send_errors; /* on_sent calls */
    unsigned downs;
    cairn_status why_down;
    unsigned refusals;                  /* on_refused calls */
    char refused[CAIRN_SENTENCE_BYTES]; /* what the last one said */
    struct fabric_peer *answer_peer;    /* borrowed: where answers go */
};

/* options may be NULL; on_message, its arg and on_refused are set here. */
void node_open(struct node *node, const char *kind, const struct fabric_options *options);
void node_close(struct node *node);
/* It cannot be opened so: this status, and a sentence that has the word. */
void node_open_fails(const char *kind, const struct fabric_options *options, cairn_status status,
                     const char *word);
/* Kills the processes of node_fork; closes all nodes, and gives their memory back. */
void nodes_close(void);

struct fabric_peer *node_connect(struct node *node, const void *address, size_t bytes);
struct fabric_peer *node_connect_to(struct node *node, const struct node *other);

/* Asserts that the send is accepted. */
void node_send(struct node *node, struct fabric_peer *peer, uint64_t id, const void *payload,
               size_t payload_bytes);
/* Receives arrival i, which is held, into a buffer of its own. */
void node_receive(struct node *node, unsigned i);
void node_drop(struct node *node, unsigned i);

/* Drives one or two nodes (b may be NULL) until *value >= target; fails the test after the
 * deadline. */
void pump(struct node *a, struct node *b, const unsigned *value, unsigned target);
/* Sends it where nothing else is on its way, and drives both until it has arrived. */
void node_pass(struct node *from, struct node *to, struct fabric_peer *peer, uint64_t id,
               const void *payload, size_t payload_bytes);
/* Fills the payload by its id, sends it, and drives both until it is received, whole, and the sender's
 * again. */
void node_carry(struct node *from, struct node *to, struct fabric_peer *peer, uint64_t id,
                void *payload, size_t payload_bytes);
/* Drives for a while in which nothing in particular should happen. */
void pump_for_ms(struct node *a, struct node *b, unsigned ms);

/* ---- another process ---- */

/* A socket to it, message by message. 0: this is the child, which dies with its parent. */
pid_t node_fork(int *fd_out);
void node_kill(pid_t pid, int fd);
void node_tell_address(int fd, const struct node *node);
struct fabric_peer *node_hear_address(int fd, struct node *node);

/* No packet comes in any more by a TCP socket that this process has, listening ones too, or all do again. */
void node_cut_sockets(bool is_cut);

/* Payload bytes that no two ids share. */
void fill(uint8_t *bytes, size_t count, uint64_t id);
bool is_filled(const uint8_t *bytes, size_t count, uint64_t id);

/* Sealed memory of a memfd that the node told its peers of, with a note: what is in it goes by reference. */
struct node_memory {
    uint8_t *at; /* [bytes] */
    size_t bytes;
    int fd;
    struct fabric_region *region; /* NULL: dropped */
};
struct node_memory node_memory_make(const struct node *node, size_t bytes);
struct node_memory node_memory_noted(const struct node *node, size_t bytes, const char *note);
/* Before the end of the test, while the node is open. */
void node_memory_end(struct node_memory *memory);
/* Drives both until `a` would send such a payload one-sided. */
void node_agree(struct node *a, struct node *b, const struct fabric_peer *peer, const void *payload,
                size_t payload_bytes);
struct fabric_stats node_stats(const struct node *node);

#endif

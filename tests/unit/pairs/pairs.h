/* Two operations of a coordinator: one is under way, another one is asked for. What is answered is kept in
 * tests/golden/pairs, a file for each that is under way.
 *
 * Nothing is held by time. The job seems to be at rest: nobody has made a step for long. Nobody can ask for
 * a snapshot to be read again (scrub), which is only under way; what ends at once (a cancel, a tag, a drop
 * that is not forced) is only asked for.
 *
 * operations.c knows how each is asked for, and what holds it. holds.c holds what no scripted shard can
 * (libuv's threads, the store's, the one that reads snapshots again), and says when nothing more comes.
 * told.c makes text of messages. test_pairs.c does the rest. */
#ifndef CAIRN_TESTS_UNIT_PAIRS_H
#define CAIRN_TESTS_UNIT_PAIRS_H

#include "tests/support/trained_toy.h"

#define PAIRS_TEXT_BYTES 4096

/* What is asked, and what is answered. */
struct question {
    struct fake_peer *peer;
    uint32_t request;
    bool is_answered;
    char answer[PAIRS_TEXT_BYTES];
};

/* What has to be there before anything is under way. */
enum { NEEDS_SNAPSHOT = 1, NEEDS_THIRD = 2, NEEDS_READER = 4, NEEDS_PARKED = 8 };
/* The job's way to the first step goes only so far. */
enum pairs_scene { PAIRS_TRAINED, PAIRS_MADE, PAIRS_BARE };

struct pair_operation {
    const char *name;
    const char *state; /* where it is under way; NULL: it is only asked for */
    unsigned needs;
    enum pairs_scene scene;
    void (*hold)(void);    /* NULL: nothing has to */
    bool (*is_held)(void); /* NULL: it is where it is held once nothing more comes */
    void (*ask)(struct question *q, bool is_second);
    void (*end)(struct question *q); /* once nothing holds it; NULL: it ends by itself */
    bool is_answered_first;          /* its answer comes before it ends */
    bool is_only_running; /* it is another state of one that is asked for, or nobody asks for it */
    bool saves;           /* the snapshot that others need is its own */
};
extern const struct pair_operation pairs_operations[];
extern const size_t pairs_operation_count;

/* More peers; fd -1: not there. */
extern struct fake_peer second, reader, joining[2];
void pairs_open(const struct pair_operation *running, const struct pair_operation *asked);
void pairs_close(void);
/* The round that is open for `w`; 0: none. */
extern uint64_t pairs_round;
/* What the members were told unasked. */
extern char pairs_unasked[PAIRS_TEXT_BYTES];
extern struct question pairs_running, pairs_asked;
/* Takes what has come to the peers. True: something has. */
bool pairs_read(void);

/* ---- holds.c ---- */
void pairs_hold_store(void);
/* The next work that is given to libuv's threads. */
void pairs_hold_work(void);
/* Whoever reads snapshots again. */
void pairs_hold_scrub(void);
/* How many libuv's threads were given. */
uint64_t pairs_works_begun(void);
void pairs_let_go(void);
/* Until nothing more comes, or (NULL: none) the question is answered. */
void pairs_settle(const struct question *until);

/* ---- told.c ---- */
/* The message as a line, without what is another one with each run. */
void pairs_tell(uint16_t type, const ProtobufCMessage *message, char out[PAIRS_TEXT_BYTES]);
void pairs_mend(char text[PAIRS_TEXT_BYTES]);

#endif

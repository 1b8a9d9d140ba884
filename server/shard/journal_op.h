/* The operations on the files of a part's log, each on the journal's threads: journal.h has the picture, and
 * journal.c decides which is next. */
#ifndef CAIRN_SHARD_JOURNAL_OP_H
#define CAIRN_SHARD_JOURNAL_OP_H

#include "server/shard/journal.h"

enum journal_op_kind { OP_END, OP_BEGIN, OP_SEGMENT, OP_ROUND, OP_DECISION, OP_BASE, OP_PART };

/* A run of chunks whose sums one thread writes. */
struct journal_run {
    uint32_t first, end; /* trained chunks */
    uint64_t at;         /* in the data */
};

struct journal_op {
    struct task task; /* first */
    struct shard_job *job;
    enum journal_op_kind kind;
    uint64_t began_ms, said_s;
    /* owned */
    struct journal_part *part;    /* BEGIN, PART */
    struct journal_chunk *chunks; /* ROUND: [head.chunk_count] */
    struct journal_run *runs;     /* ROUND: [task.item_count] */
    uint8_t *payload;             /* of the decision in the head */
    bool *frozen;                 /* [head.frozen_bytes] */
    struct log_base base;         /* BASE */
    /* of START, ROUND and DECISION */
    struct journal_head head;
    /* BEGIN, SEGMENT: what is made. BASE: segments below this number are removed */
    struct journal_segment made;
    uint64_t number, segment_bytes;
    uint64_t budget_bytes;   /* BEGIN: what the disk has room for */
    uint64_t promised_bytes; /* BEGIN: what other logs of the shard may still take */
    _Atomic uint32_t left;   /* ROUND: runs that are not written yet */
    pthread_mutex_t lock;    /* guards the rest */
    cairn_status status;
    struct sentence why;
};

/* Makes an operation of the job, as things are now; journal_op_free's. `done` gets its task, on the loop
 * thread. NULL: no memory. */
struct journal_op *journal_op_make(struct shard_job *job, enum journal_op_kind kind,
                                   void (*done)(struct task *task));
void journal_op_free(struct journal_op *op); /* NULL is fine */
void journal_op_start(struct journal_op *op);

/* The most bytes that an entry takes: a round with its sums, or one without sums. */
uint64_t journal_entry_most(const struct shard_job *job, bool is_round);
/* How large the job's next segment is. */
uint64_t journal_segment_size(const struct shard_job *job);

#endif

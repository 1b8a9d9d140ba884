/* What is true whatever happens: who contributes what, what the state is after each round, and what has to
 * hold. */
#ifndef CAIRN_SIM_TRUTH_H
#define CAIRN_SIM_TRUTH_H

#include "gpu/gpu.h"
#include "tests/sim/messages.h"

struct sim;
struct sim_layout;

struct ledger_entry {
    uint64_t incarnation, lives; /* of the coordinator, of all members, when it was decided */
    bool uncounted;              /* a skip because the weights add up to 0 */
    uint64_t round;
    enum decision_kind kind;
    struct cairn_version after;
    uint8_t payload[PAYLOAD_MAX];
    size_t payload_bytes;
};

struct opened {
    uint64_t round;
    uint32_t count;
    uint64_t members[PROCS_MAX];
    bool write;
    bool voided;       /* a worker was told so */
    uint64_t revision; /* of the terms that it goes by */
    uint64_t by;       /* the coordinator's process */
    uint32_t shards;   /* that the job had, a bit each */
};

struct oracle {
    struct ledger_entry ledger[LEDGER_MAX];
    uint32_t ledger_count;
    struct opened opened[LEDGER_MAX];
    uint32_t opened_count;
    uint64_t step, generation;
    double loss_scale;
    struct skips skips;
    uint8_t state[STATE_MAX]; /* of the trainer, at the step */
    size_t state_bytes;
    double driven[GROUPS];        /* of driven groups, at the step */
    uint64_t missed[TENSORS_MAX]; /* steps that passed the tensor by */
    bool touched[TENSORS_MAX];    /* by the contributions of the round at hand */
    uint32_t applied;
    uint64_t last_epoch;
    const struct sim_layout *layout;  /* in force: a shard has gone over to it */
    const struct sim_layout *settled; /* the last one that was */
    float acc[CHUNKS_MAX][ELEMS_MAX];
    float param[CHUNKS_MAX][ELEMS_MAX], m[CHUNKS_MAX][ELEMS_MAX], v[CHUNKS_MAX][ELEMS_MAX];
};

/* sim_truth.c */
/* Does the member hold the chunk? Like a worker's tiles: constant for its life. */
bool truth_holds(const struct sim *sim, uint64_t member, uint32_t chunk);
uint32_t truth_host(const struct sim *sim, uint64_t member);
/* Do several of these share a host that has some of the shards? Then those of member i's host are one
 * contribution. */
bool truth_grouped(const struct sim *sim, uint32_t shards, const uint64_t *members, uint32_t count,
                   uint32_t i);
/* The contribution: the same for whoever asks. With a batch it is nobody's (truth_owner 0), and `micro`, and
 * `member` of a weight, the micro-batch's number in the step. */
uint64_t truth_owner(const struct sim *sim, uint64_t member);
uint32_t truth_micros(const struct sim *sim, uint64_t round, uint64_t member);
uint64_t truth_weight(const struct sim *sim, uint64_t round, uint64_t member);
bool truth_present(const struct sim *sim, uint64_t round, uint64_t member, uint32_t micro,
                   uint32_t chunk);
void truth_gradient(const struct sim *sim, uint64_t round, uint64_t member, uint32_t micro,
                    uint32_t chunk, float *out);
/* What the worker gives of its own with a commit; returns how many bytes. */
size_t truth_state(const struct sim *sim, uint64_t round, uint64_t member, uint8_t out[STATE_MAX]);
/* The learning rate that it gives for a driven group. */
double truth_lr(const struct sim *sim, uint64_t round, uint64_t member, uint32_t group);
/* After how many calls of the library a worker gives the round up; UINT32_MAX: it does not. */
uint32_t truth_gives_up(const struct sim *sim, uint64_t round, uint64_t member);
/* What a write leaves in a chunk: false, nothing was put. */
bool truth_write(const struct sim *sim, uint64_t round, uint32_t chunk, float *param, float *m);
struct geometry chunk_geometry(const struct sim *sim, uint32_t chunk);
/* NULL: no such round was opened. */
struct opened *truth_opened(struct oracle *oracle, uint64_t round);
/* What the coordinator has to decide of it, and the state after it. */
void truth_next(struct sim *sim, const struct opened *round, struct ledger_entry *entry);

/* sim_oracle.c */
void oracle_start(struct sim *sim);
/* The same for whoever is a member in that round, a relay, too. */
bool oracle_holds(const struct sim *sim, uint64_t round, uint64_t member, uint32_t chunk);
bool oracle_has_executed(const struct sim *sim, uint32_t id, uint32_t index);
/* A standby has it now. */
void oracle_takes_place(struct sim *sim, uint32_t place);
uint32_t oracle_executed(const struct sim *sim, uint32_t place);
/* No round of steps may open: too many skips in a row, and nobody has amended the job since. */
bool oracle_halted(const struct sim *sim);
/* A shard goes over to the layout. */
void oracle_recut(struct sim *sim, uint32_t shard, const struct sim_layout *layout);
/* A coordinator whose store was another one goes on: a layout that none of its shards goes by never was. */
void oracle_slipped(struct sim *sim);
/* A shard that joins has what was decided last. */
void oracle_joins(struct sim *sim, uint32_t shard, const struct decision *last);
void oracle_opened(struct sim *sim, const struct round_action *open);
/* A shard begins to do as the decision says. */
void oracle_executes(struct sim *sim, uint32_t shard, const struct decision *decision);
/* A shard was made from its log; `last` is the last decision that it knows. All that it had done is there. */
void oracle_comes_back(struct sim *sim, uint32_t shard, const struct decision *last);
/* A shard has done so: every bit of its state. */
void oracle_compare(struct sim *sim, uint32_t shard);
void oracle_result(struct sim *sim, const struct message *result);
void oracle_told_worker(struct sim *sim, const struct round_action *opened);
/* A shard has the pin: the version must be the one of the cut. */
void oracle_pinned(struct sim *sim, uint32_t shard, const struct message *pin);

#endif

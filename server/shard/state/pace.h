/* How fast a snapshot is written beside training: as fast as the disk takes it while nobody trains; else so
 * that steps take no longer than before it began, but never slower than its deadline asks. */
#ifndef CAIRN_SHARD_STATE_PACE_H
#define CAIRN_SHARD_STATE_PACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Bytes a second. */
#define CAIRN_PACE_LEAST ((uint64_t)64 << 20)  /* whatever the steps do */
#define CAIRN_PACE_FIRST ((uint64_t)256 << 20) /* until the first step has ended */
#define CAIRN_PACE_FREE  UINT64_MAX

struct cairn_pace {
    /* the loop thread's */
    uint64_t before_us; /* what a step took before; 0: nobody knows */
    /* read by the writer */
    uint64_t total_bytes, deadline_us;
    _Atomic uint64_t rate;    /* that steps allow */
    _Atomic uint64_t step_us; /* when the last one ended, of a monotonic clock; 0: none ever did */
    atomic_bool hurry;        /* somebody waits for its end */
    /* the writer's alone */
    uint64_t counted_us; /* up to when there is an allowance */
    uint64_t allowance;  /* bytes */
    /* the writer's, read by all */
    _Atomic uint64_t done_bytes;
};

/* Loop thread, before the writer begins: of so many bytes, that are to be written by deadline_us. before_us,
 * last_us: how long a step took, and when the last one ended; 0: none did. */
void cairn_pace_init(struct cairn_pace *pace, uint64_t total_bytes, uint64_t before_us,
                     uint64_t last_us, uint64_t deadline_us);
/* Loop thread: a step ended, which took so long. */
void cairn_pace_step(struct cairn_pace *pace, uint64_t took_us, uint64_t now_us);
/* Bytes a second that may be written now; any thread. */
uint64_t cairn_pace_rate(const struct cairn_pace *pace, uint64_t now_us);
/* Nobody trains, or nobody minds. Any thread. */
bool cairn_pace_is_free(const struct cairn_pace *pace, uint64_t now_us);
/* The deadline asks for more than the steps allow, or somebody waits: it is time to be in nobody's way no
 * more. Any thread. */
bool cairn_pace_presses(const struct cairn_pace *pace, uint64_t now_us);
/* The writer: how long to rest before so many bytes more are written; it is to ask again after that. 0: go
 * on, they are counted. */
uint64_t cairn_pace_rest_us(struct cairn_pace *pace, uint64_t bytes, uint64_t now_us);

#endif

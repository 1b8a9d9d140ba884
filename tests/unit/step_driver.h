/* Drives a shard's round machine by hand, for test_step*.c. Two members of ranks 0 and 1 (A and B), four
 * chunks, two slots each, unless a test says otherwise; `begin` opens round 100 of epoch 5 at version
 * (1, 10). */
#ifndef CAIRN_TESTS_STEP_DRIVER_H
#define CAIRN_TESTS_STEP_DRIVER_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/step.h"

#define A      11
#define B      22
#define CHUNKS 4
#define WINDOW 2

static struct step_machine *step;
static struct step_action list[512];
static struct step_actions out;

static inline void make_with(const struct step_config *given)
{
    const struct step_config config = *given;
    ck_assert_uint_gt(step_bytes(&config), 0);
    free(step);
    void *memory = malloc(step_bytes(&config));
    ck_assert_ptr_nonnull(memory);
    step = step_init(memory, &config, (struct cairn_version) { 1, 10 }, NULL);
    out = (struct step_actions) { list, 0, step_actions_max(&config) };
    ck_assert_uint_le(out.capacity, sizeof list / sizeof *list);
}

static inline void make(uint32_t chunks, uint32_t window, uint32_t members)
{
    make_with(&(const struct step_config) {
        .chunk_count = chunks, .window = window, .member_max = members, .payload_bytes_max = 64 });
}

static inline void set_up(void)
{
    step = NULL;
    make(CHUNKS, WINDOW, 4);
}

static inline void tear_down(void)
{
    free(step);
}

/* ---- events, each forgetting the actions of the one before ---- */

static inline void give(const struct step_event *event)
{
    out.count = 0;
    step_on_event(step, event, &out);
}

#define GIVE(...) give(&(const struct step_event) { __VA_ARGS__ })

static inline struct decision decision(enum decision_kind kind, uint64_t round, uint64_t step_after)
{
    return (struct decision) { .kind = kind,
                               .round = round,
                               .version_after = { 1, step_after },
                               .payload = (const uint8_t *)"state",
                               .payload_bytes = 5 };
}

static inline void fence(uint64_t epoch)
{
    GIVE(.kind = CAIRN_STEP_FENCE, .epoch = epoch);
}

static inline void resolve(uint64_t epoch, enum decision_kind kind, uint64_t round, uint64_t after)
{
    const struct decision d = decision(kind, round, after);
    GIVE(.kind = CAIRN_STEP_RESOLVE, .epoch = epoch, .decision = &d);
}

static inline void decide(uint64_t epoch, enum decision_kind kind, uint64_t round, uint64_t after)
{
    const struct decision d = decision(kind, round, after);
    GIVE(.kind = CAIRN_STEP_DECIDE, .epoch = epoch, .decision = &d);
}

static inline void open_at(uint64_t epoch, uint64_t round, uint64_t at)
{
    static const uint64_t members[] = { A, B };
    GIVE(.kind = CAIRN_STEP_OPEN, .epoch = epoch, .round = round, .version = { 1, at },
         .members = members, .member_count = 2);
}

/* Epoch 5, round 100. */
static inline void begin(void)
{
    fence(5);
    resolve(5, CAIRN_DECISION_NONE, 0, 10);
    open_at(5, 100, 10);
}

static inline void chunk(uint64_t member, uint32_t micro, uint32_t index)
{
    GIVE(.kind = CAIRN_STEP_CHUNK, .epoch = 5, .round = 100, .member = member, .micro = micro,
         .chunk = index, .request = 1000 + index, .tag = 7);
}

static inline void micro_end(uint64_t member, uint32_t micro, uint32_t sent)
{
    GIVE(.kind = CAIRN_STEP_MICRO_END, .epoch = 5, .round = 100, .member = member, .micro = micro,
         .sent = sent, .absent = CHUNKS - sent);
}

static inline void commit(uint64_t member, uint32_t last_micro, uint64_t weight)
{
    GIVE(.kind = CAIRN_STEP_COMMIT, .epoch = 5, .round = 100, .member = member, .micro = last_micro,
         .weight = weight);
}

static inline void landed(uint32_t slot, cairn_status status)
{
    GIVE(.kind = CAIRN_STEP_LANDED, .slot = slot, .status = status);
}

static inline void folded(uint32_t index)
{
    GIVE(.kind = CAIRN_STEP_FOLDED, .chunk = index);
}

/* Receives, lands and folds; of the first member in line. */
static inline void contribute(uint64_t member, uint32_t micro, uint32_t index)
{
    chunk(member, micro, index);
    ck_assert_int_eq(list[0].kind, CAIRN_STEP_RECEIVE);
    landed(list[0].slot, CAIRN_OK);
    ck_assert_int_eq(list[0].kind, CAIRN_STEP_FOLD);
    folded(index);
}

/* Everything absent and committed; ends REDUCED with these sums. */
static inline void prepare(void)
{
    begin();
    micro_end(A, 0, 0);
    micro_end(B, 0, 0);
    commit(A, 0, 3);
    commit(B, 0, 4);
    const struct step_sums sums = { .nonfinite = 2 };
    GIVE(.kind = CAIRN_STEP_SUMMED, .sums = &sums);
}

/* ---- what is expected ---- */

static inline const struct step_action *expect(size_t index, enum step_action_kind kind)
{
    ck_assert_uint_lt(index, out.count);
    ck_assert_int_eq(list[index].kind, kind);
    return &list[index];
}

static inline void expect_refused(cairn_status status)
{
    ck_assert_uint_eq(out.count, 2);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_DISCARD)->tag, 7);
    ck_assert_int_eq(expect(1, CAIRN_STEP_REFUSE)->status, status);
}

static inline void expect_fault(void)
{
    ck_assert_uint_eq(out.count, 1);
    ck_assert_ptr_nonnull(expect(0, CAIRN_STEP_FAULT)->why);
}

#endif

/* The files of a part's log: what was acknowledged is there after any crash, or the log is refused with a
 * sentence. Nothing is ever shorter without a word. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/store/storage.h"
#include "proto/wire/wire.h"
#include "server/shard/journal_file.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

enum { CHUNKS = 3, ELEMS = 700, FROZEN = 5, LOG = 77, SEGMENT_BYTES = 128 * 1024 };

static char folder[CAIRN_SCRATCH_BYTES];
static struct journal_segment segment = { .fd = -1 };
static uint64_t entry, segments;
static struct kept_outcome now;
static uint8_t payload[24];
static bool frozen[FROZEN];
static struct sentence why;
static struct journal_entries entries;
static struct journal_plan plan;

static float sum_of(uint64_t round, int chunk, int i)
{
    return (float)round * 1000 + (float)(chunk * ELEMS + i) / 8;
}

/* ---- writing ---- */

static void write_entry(enum journal_kind kind, uint64_t round)
{
    struct journal_head head = { .kind = kind, .log = LOG, .entry = entry++, .outcome = now };
    struct journal_chunk chunks[CHUNKS];
    float *data = io_block_new(JOURNAL_BLOCK * 4);
    uint8_t *fronts = io_block_new(JOURNAL_BLOCK * 4);
    head.frozen_bytes = FROZEN;
    for (int c = 0; kind == JOURNAL_ROUND && c < CHUNKS; c++) {
        float *at = data + c * ELEMS;
        for (int i = 0; i < ELEMS; i++) at[i] = sum_of(round, c, i);
        chunks[c] = (struct journal_chunk) { .tensor = (uint64_t)c,
                                             .at = (uint64_t)c * ELEMS * sizeof(float),
                                             .bytes = ELEMS * sizeof(float),
                                             .checksum = chunk_checksum(at,
                                                                        ELEMS * sizeof(float)) };
    }
    head.chunk_count = kind == JOURNAL_ROUND ? CHUNKS : 0;
    head.data_bytes = head.chunk_count * ELEMS * sizeof(float);
    const uint64_t front = journal_front_bytes(&head), end = segment.end;
    journal_front_make(&head, &segment, chunks, payload, frozen, fronts);
    if (kind == JOURNAL_ROUND)
        ck_assert_int_eq(journal_write(&segment, end + 2 * front, data, 3 * JOURNAL_BLOCK, &why),
                         0);
    ck_assert_int_eq(journal_write(&segment, end, fronts, (size_t)(2 * front), &why), CAIRN_OK);
    ck_assert_int_eq(journal_sync(&segment, &why), CAIRN_OK);
    segment.end += journal_entry_bytes(&head);
    io_block_free(data, JOURNAL_BLOCK * 4);
    io_block_free(fronts, JOURNAL_BLOCK * 4);
}

static void begin_segment_as(enum step_phase phase)
{
    journal_segment_close(&segment);
    ck_assert_int_eq(journal_segment_make(folder, segments++, SEGMENT_BYTES, &segment, &why),
                     CAIRN_OK);
    now.phase = phase;
    if (phase == CAIRN_STEP_IDLE) now.round = 0;
    write_entry(JOURNAL_START, 0);
    ck_assert_int_eq(journal_newest_write(folder, LOG, segment.number, &why), CAIRN_OK);
}

static void begin_segment(void)
{
    begin_segment_as(CAIRN_STEP_IDLE);
}

static void reduce(uint64_t round)
{
    now.phase = CAIRN_STEP_REDUCED;
    now.round = now.round_seen = round;
    frozen[round % FROZEN] = true;
    write_entry(JOURNAL_ROUND, round);
}

/* The decision as the machine has it; its entry is another matter. */
static void decide_unwritten(uint64_t round)
{
    now.phase = CAIRN_STEP_UPDATING;
    now.kind = CAIRN_DECISION_APPLY;
    now.last_round = round;
    now.version_after = (struct cairn_version) { 1, now.version.step + 1 };
    now.payload_bytes = sizeof payload;
    payload[0] = (uint8_t)round;
}

static void update(void)
{
    now.version = now.version_after;
}

static void apply(uint64_t round)
{
    reduce(round);
    decide_unwritten(round);
    write_entry(JOURNAL_DECISION, round);
    update();
}

static void skip(uint64_t round, uint8_t scale)
{
    reduce(round);
    now.phase = CAIRN_STEP_IDLE;
    now.kind = CAIRN_DECISION_SKIP;
    now.last_round = round;
    now.version_after = now.version;
    payload[0] = scale;
    write_entry(JOURNAL_DECISION, round);
}

static void set_up(void)
{
    cairn_scratch_make_quick(folder);
    entry = segments = 0;
    now = (struct kept_outcome) { .version = { 1, 5 } };
    begin_segment();
}

static void forget(void)
{
    journal_plan_release(&plan);
    journal_entries_release(&entries);
}

static void tear_down(void)
{
    forget();
    journal_segment_close(&segment);
    cairn_scratch_remove(folder);
}

/* ---- reading ---- */

/* Makes the plan from the state of this step on, up to the step `to`; 0: to the newest one. */
static cairn_status read_between(uint64_t step, uint64_t to)
{
    const struct cairn_version base = { 1, step }, end = { 1, to };
    forget();
    cairn_status status = journal_read(folder, LOG, &entries, &why);
    if (status == CAIRN_OK)
        status = journal_plan_make(&entries, base, to != 0 ? &end : NULL, &plan, &why);
    return status;
}

static cairn_status read_from(uint64_t step)
{
    return read_between(step, 0);
}

/* Reads the sums of a ROUND, as a replay does. */
static cairn_status read_sums(size_t index, uint64_t round)
{
    const struct journal_entry *one = &entries.list[index];
    const int fd = journal_segment_open(folder, one->head.segment, &why);
    float sums[ELEMS];
    cairn_status status = CAIRN_OK;
    ck_assert_int_ge(fd, 0);
    ck_assert_uint_eq(one->head.chunk_count, CHUNKS);
    for (int c = 0; c < CHUNKS && status == CAIRN_OK; c++) {
        status = journal_read_chunk(fd, one, &journal_entry_chunks(one)[c], sums, &why);
        for (int i = 0; status == CAIRN_OK && i < ELEMS; i++)
            ck_assert_float_eq(sums[i], sum_of(round, c, i));
    }
    close(fd);
    return status;
}

/* Reads all sums that the plan wants. */
static cairn_status read_all(uint64_t step)
{
    cairn_status status = read_from(step);
    for (size_t i = 0; i < plan.count && status == CAIRN_OK; i++) {
        const struct journal_step *one = &plan.steps[i];
        status = read_sums(one->round, entries.list[one->round].head.outcome.round);
        ck_assert_uint_eq(journal_entry_payload(&entries.list[one->decided])[0],
                          entries.list[one->round].head.outcome.round);
    }
    if (status == CAIRN_OK && plan.step.phase == CAIRN_STEP_REDUCED)
        status = read_sums(plan.round, plan.step.round);
    return status;
}

static void expect(uint64_t from, size_t steps, uint64_t step, uint64_t prepared)
{
    ck_assert_msg(read_all(from) == CAIRN_OK, "%s", why.text);
    ck_assert_uint_eq(plan.count, steps);
    ck_assert_uint_eq(plan.step.version.step, step);
    ck_assert_uint_eq(plan.step.round, prepared);
    ck_assert_int_eq(plan.step.phase, prepared != 0 ? CAIRN_STEP_REDUCED : CAIRN_STEP_IDLE);
}

static void expect_refused(uint64_t from, const char *words)
{
    ck_assert_int_eq(read_all(from), CAIRN_ERR_CHECKSUM);
    ck_assert_msg(strstr(why.text, words) != NULL, "%s", why.text);
}

/* ---- tests ---- */

TEST(what_was_written_is_read)
{
    apply(1);
    apply(2);
    expect(5, 2, 7, 0);
    expect(6, 1, 7, 0);
    expect(7, 0, 7, 0);
    ck_assert_uint_eq(plan.step.last.round, 2);
    reduce(3);
    expect(6, 1, 7, 3);
    ck_assert(journal_entry_frozen(&entries.list[plan.round])[3]);
    begin_segment_as(CAIRN_STEP_REDUCED); // the next process, before the round is decided
    expect(6, 1, 7, 3);
    decide_unwritten(3);
    write_entry(JOURNAL_DECISION, 3);
    update();
    expect(6, 2, 8, 0);
}

TEST(a_round_that_was_abandoned_is_left_out)
{
    reduce(1);
    reduce(2);
    apply(3);
    expect(5, 1, 6, 0);
}

TEST(a_round_that_was_skipped_is_the_last_decision)
{
    apply(1);
    skip(2, 99); // another loss scale
    expect(5, 1, 6, 0);
    ck_assert_int_eq(plan.step.last.kind, CAIRN_DECISION_SKIP);
    ck_assert_uint_eq(plan.step.last.round, 2);
    ck_assert_uint_eq(plan.step.last.payload[0], 99);
    apply(3);
    expect(5, 2, 7, 0);
}

static void expect_back(uint64_t from, uint64_t to, size_t steps, uint8_t scale)
{
    ck_assert_msg(read_between(from, to) == CAIRN_OK, "%s", why.text);
    ck_assert_uint_eq(plan.count, steps);
    ck_assert_uint_eq(plan.step.version.step, to);
    ck_assert_int_eq(plan.step.phase, CAIRN_STEP_IDLE);
    ck_assert_uint_eq(plan.step.round, 0);
    ck_assert_uint_eq(plan.step.last.payload[0], scale);
    for (size_t i = 0; i < steps; i++)
        ck_assert_uint_eq(entries.list[plan.steps[i].round].head.outcome.version.step, from + i);
}

/* Each version with its last decision: the rounds after that are as if they never were. */
TEST(a_plan_may_end_at_any_version_on_the_way)
{
    apply(1);
    skip(2, 50);
    reduce(3); // abandoned
    skip(4, 51);
    apply(5);
    begin_segment();
    apply(6);
    reduce(7);
    decide_unwritten(7);
    update();
    begin_segment(); // a keeper had the update, whose decision is in no entry
    apply(8);
    reduce(9);
    expect_back(5, 5, 0, 0);
    expect_back(5, 6, 1, 51);
    expect_back(6, 6, 0, 51);
    expect_back(5, 7, 2, 5);
    expect_back(5, 8, 3, 6);
    expect_back(5, 9, 4, 7);
    expect_back(7, 9, 2, 7);
    expect_back(5, 10, 5, 8); // the newest one, without the round that is prepared
    ck_assert_int_eq(read_between(5, 11), CAIRN_ERR_VERSION_GONE);
    ck_assert_ptr_nonnull(strstr(why.text, "of version 1.5 to 1.10, and does not come by 1.11"));
    journal_segments_remove(folder, 1);
    ck_assert_int_eq(read_between(7, 6), CAIRN_ERR_VERSION_GONE);
    expect_back(7, 8, 1, 6);
}

TEST(a_log_goes_on_in_segments_and_processes)
{
    apply(1);
    begin_segment();
    apply(2);
    reduce(3);
    begin_segment(); // a process that found round 3 prepared, which was abandoned then
    apply(4);
    reduce(5);
    decide_unwritten(5);
    update();
    begin_segment(); // a keeper had the update, whose decision is in no entry
    expect(5, 4, 9, 0);
    journal_segments_remove(folder, 1);
    expect(6, 3, 9, 0);
    expect_refused(5, "its snapshot is of 1.5");
}

/* The snapshot has what came of the sums, which went with the segment before. */
TEST(a_segment_whose_process_found_a_round_prepared_is_read_without_the_one_before)
{
    apply(1);
    reduce(2);
    begin_segment_as(CAIRN_STEP_REDUCED);
    decide_unwritten(2);
    write_entry(JOURNAL_DECISION, 2);
    update();
    apply(3);
    expect(6, 2, 8, 0);
    journal_segments_remove(folder, 1);
    expect(7, 1, 8, 0);
    expect_refused(6, "those before it end at 1.6");
}

/* A process that died while it made a segment: no number is missing when others are removed. */
TEST(a_segment_without_entries_is_no_gap)
{
    struct journal_segment empty = { .fd = -1 };
    apply(1);
    ck_assert_int_eq(journal_segment_make(folder, segments++, SEGMENT_BYTES, &empty, &why), 0);
    journal_segment_close(&empty);
    begin_segment();
    apply(2);
    expect(5, 2, 7, 0);
    begin_segment();
    journal_segments_remove(folder, 3);
    apply(3);
    expect(7, 1, 8, 0);
}

/* A write of a round that was cut off, and a process that began a segment behind it. */
TEST(a_torn_entry_between_processes_is_void)
{
    apply(1);
    const uint64_t end = segment.end;
    reduce(2);
    uint8_t *zeros = io_block_new(2 * JOURNAL_BLOCK);
    ck_assert_int_eq(journal_write(&segment, end, zeros, 2 * JOURNAL_BLOCK, &why), CAIRN_OK);
    io_block_free(zeros, 2 * JOURNAL_BLOCK);
    expect(5, 1, 6, 0);
    ck_assert(!entries.is_torn);
    entry--;
    now.round = 0;
    begin_segment();
    apply(3);
    expect(5, 2, 7, 0);
}

/* Overwrites a byte, or the rest of the segment from there on, of a copy of the file. */
static void spoil(uint64_t at, uint8_t bit, size_t zeros)
{
    char path[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s/%016x.seg", folder, 0);
    const int fd = open(path, O_RDWR);
    uint8_t byte;
    ck_assert_int_ge(fd, 0);
    if (zeros > 0) {
        uint8_t *none = calloc(1, zeros);
        ck_assert_int_eq(pwrite(fd, none, zeros, (off_t)at), (ssize_t)zeros);
        free(none);
    } else {
        ck_assert_int_eq(pread(fd, &byte, 1, (off_t)at), 1);
        byte ^= bit;
        ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    }
    close(fd);
}

static uint8_t *save(void)
{
    char path[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s/%016x.seg", folder, 0);
    const int fd = open(path, O_RDONLY);
    uint8_t *bytes = malloc(SEGMENT_BYTES);
    ck_assert_int_eq(pread(fd, bytes, SEGMENT_BYTES, 0), SEGMENT_BYTES);
    close(fd);
    return bytes;
}

static void put_back(const uint8_t *bytes)
{
    char path[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s/%016x.seg", folder, 0);
    const int fd = open(path, O_WRONLY);
    ck_assert_int_eq(pwrite(fd, bytes, SEGMENT_BYTES, 0), SEGMENT_BYTES);
    close(fd);
}

/* At every byte of heads, and at places of the rest. */
static uint64_t stride(uint64_t at)
{
    const bool is_all = getenv("CAIRN_TEST_LONG") != NULL;
    return is_all || at % JOURNAL_BLOCK < 16 ? 1 : 61;
}

/* A decision is synced after its round: nothing of it is there, or it is. */
TEST(a_decision_torn_at_any_byte_leaves_its_round_prepared)
{
    apply(1);
    reduce(2);
    const uint64_t begin = segment.end;
    decide_unwritten(2);
    write_entry(JOURNAL_DECISION, 2);
    uint8_t *whole = save();
    for (uint64_t at = begin; at < segment.end; at += stride(at)) {
        spoil(at, 0, (size_t)(segment.end - at));
        ck_assert_msg(read_all(5) == CAIRN_OK, "at %lu: %s", (unsigned long)at, why.text);
        ck_assert(plan.count == 2 || (plan.count == 1 && plan.step.round == 2));
        put_back(whole);
    }
    expect(5, 2, 7, 0);
    free(whole);
}

TEST(a_round_torn_at_any_byte_is_found)
{
    apply(1);
    const uint64_t begin = segment.end;
    reduce(2);
    uint8_t *whole = save();
    for (uint64_t at = begin; at < segment.end; at += stride(at)) {
        // the data ends before its last block does, and zeros are its end
        if (at >= segment.end - JOURNAL_BLOCK) break;
        spoil(at, 0, (size_t)(segment.end - at));
        const cairn_status status = read_all(5);
        if (status == CAIRN_OK) { // nothing of the round
            ck_assert_uint_eq(plan.step.version.step, 6);
            ck_assert_uint_eq(plan.step.round, 0);
        } else {
            ck_assert_int_eq(status, CAIRN_ERR_CHECKSUM);
            ck_assert_uint_eq(plan.step.round, 2);
            journal_plan_drop_round(&entries, &plan);
            ck_assert_uint_eq(plan.step.version.step, 6);
            ck_assert_int_eq(plan.step.phase, CAIRN_STEP_IDLE);
        }
        put_back(whole);
    }
    free(whole);
}

/* A skip has no entry: the front of the next round has it, also if the sums behind it were cut off. The
 * workers were told of it. */
TEST(a_torn_round_keeps_the_skip_before_it)
{
    apply(1);
    reduce(2);
    now.kind = CAIRN_DECISION_SKIP;
    now.last_round = 2;
    now.version_after = now.version;
    payload[0] = 2;
    const uint64_t at = segment.end;
    reduce(3);
    spoil(at + 2 * JOURNAL_BLOCK + 40, 4, 0);
    ck_assert_int_eq(read_all(5), CAIRN_ERR_CHECKSUM); // the sums of 3
    journal_plan_drop_round(&entries, &plan);
    ck_assert_int_eq(plan.step.phase, CAIRN_STEP_IDLE);
    ck_assert_uint_eq(plan.step.version.step, 6);
    ck_assert_int_eq(plan.step.last.kind, CAIRN_DECISION_SKIP);
    ck_assert_uint_eq(plan.step.last.round, 2);
    ck_assert_uint_eq(plan.step.last.payload[0], 2);
    entry = entries.list[entries.count - 1].head.entry + 1; // the next process goes on behind it
    begin_segment();
    apply(4);
    expect(5, 2, 7, 0);
}

/* Either the other front has it, or the log is refused: with a step less, or with other values, never. */
TEST(a_flipped_bit_is_healed_or_refused)
{
    int healed = 0, refused = 0;
    apply(1);
    apply(2);
    uint8_t *whole = save();
    for (uint64_t at = 0; at < segment.end; at += stride(at)) {
        spoil(at, (uint8_t)(1u << at % 8), 0);
        const cairn_status status = read_all(5);
        ck_assert_msg(status == CAIRN_OK || status == CAIRN_ERR_CHECKSUM, "%s", why.text);
        if (status == CAIRN_OK) ck_assert(plan.count == 2 && plan.step.version.step == 7);
        healed += status == CAIRN_OK;
        refused += status == CAIRN_ERR_CHECKSUM;
        put_back(whole);
    }
    ck_assert_int_gt(healed, 100);
    ck_assert_int_gt(refused, 100);
    spoil(7 * JOURNAL_BLOCK - 1, 1, 0); // a byte of no chunk
    expect(5, 2, 7, 0);
    put_back(whole);
    free(whole);
}

TEST(damage_of_sums_is_told_by_place)
{
    apply(1);
    apply(2);
    spoil(4 * JOURNAL_BLOCK + ELEMS * sizeof(float) + 8, 4, 0); // of chunk 1 of round 1
    expect_refused(5, "the sums of round 1 are damaged");
    expect_refused(5, "tensor 1, from leaf 0 on");
    expect(6, 1, 7, 0); // the base does not need it
}

TEST(both_fronts_damaged_before_the_end_is_no_torn_end)
{
    apply(1);
    const uint64_t at = segment.end;
    apply(2);
    spoil(at, 1, 0);
    spoil(at + JOURNAL_BLOCK, 1, 0);
    expect_refused(5, "entry 3 of the log is damaged");
}

TEST(a_segment_that_is_missing_is_named)
{
    for (uint64_t round = 1; round <= 4; round++) {
        apply(round);
        begin_segment();
    }
    char path[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s/0000000000000002.seg", folder);
    ck_assert_int_eq(unlink(path), 0);
    expect_refused(5, "lacks 0000000000000002.seg");
}

TEST(the_newest_segment_is_missed_too)
{
    char path[CAIRN_SCRATCH_BYTES + 32];
    apply(1);
    begin_segment();
    apply(2);
    expect(5, 2, 7, 0);
    snprintf(path, sizeof path, "%s/0000000000000001.seg", folder);
    ck_assert_int_eq(truncate(path, 0), 0); // as if nothing had been written
    ck_assert_int_eq(truncate(path, SEGMENT_BYTES), 0);
    expect_refused(5, "0000000000000001.seg, which it had begun, is missing or empty");
    ck_assert_int_eq(unlink(path), 0);
    expect_refused(5, "0000000000000001.seg, which it had begun, is missing or empty");
}

TEST(the_log_of_another_part_is_none)
{
    apply(1);
    ck_assert_int_eq(journal_read(folder, LOG + 1, &entries, &why), CAIRN_ERR_NOT_FOUND);
    char empty[CAIRN_SCRATCH_BYTES + 8];
    snprintf(empty, sizeof empty, "%s/none", folder);
    ck_assert_int_eq(journal_read(empty, LOG, &entries, &why), CAIRN_ERR_NOT_FOUND);
}

static struct journal_part *make_part(void)
{
    struct journal_part *part = calloc(1, sizeof *part + 8);
    part->bytes = sizeof *part + 8;
    part->spec_bytes = 3;
    part->amended_bytes = 1;
    part->layout_bytes = 4;
    part->log = LOG;
    memcpy(part + 1, "specalay", 8);
    journal_part_seal(part);
    return part;
}

TEST(a_part_and_its_base_are_read_again)
{
    struct journal_part *part = make_part(), *read;
    char there[] = "/there/x";
    const struct log_base base = { .version = { 1, 9 }, .root = { { 7, 8 } }, .path = there };
    struct log_base got;
    ck_assert_int_eq(journal_part_read(folder, &read, &why), CAIRN_ERR_NOT_FOUND);
    ck_assert_int_eq(journal_part_write(folder, part, &why), CAIRN_OK);
    ck_assert_int_eq(journal_part_read(folder, &read, &why), CAIRN_OK);
    ck_assert_int_eq(memcmp(read, part, (size_t)part->bytes), 0);
    free(read);
    ck_assert_int_eq(journal_base_read(folder, LOG, &got, &why), CAIRN_ERR_NOT_FOUND);
    ck_assert_int_eq(journal_base_write(folder, LOG, &base, &why), CAIRN_OK);
    ck_assert_int_eq(journal_base_read(folder, LOG + 1, &got, &why), CAIRN_ERR_NOT_FOUND);
    ck_assert_int_eq(journal_base_read(folder, LOG, &got, &why), CAIRN_OK);
    ck_assert_str_eq(got.path, "/there/x");
    ck_assert_uint_eq(got.version.step, 9);
    ck_assert_int_eq(journal_base_judge(&got, base.version, base.root.byte, &why), CAIRN_OK);
    free(got.path);
    ck_assert_int_eq(journal_end(folder, &why), CAIRN_OK);
    ck_assert_int_ne(access(folder, F_OK), 0);
    ck_assert_int_eq(journal_end(folder, &why), CAIRN_OK);
    free(part);
}

TEST(another_snapshot_at_the_path_of_the_base_is_told_apart)
{
    char there[] = "/there/x";
    const struct log_base base = { .version = { 1, 9 }, .root = { { 7, 8 } }, .path = there };
    struct hash other = base.root;
    other.byte[CAIRN_HASH_BYTES - 1] ^= 1;
    ck_assert_int_eq(journal_base_judge(&base, base.version, other.byte, &why), CAIRN_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(why.text, "what lies at /there/x is another one"));
    ck_assert_int_eq(
        journal_base_judge(&base, (struct cairn_version) { 2, 9 }, base.root.byte, &why),
        CAIRN_ERR_MISMATCH);
}

/* The segment that begins at the snapshot's version may have been begun while a round of it was prepared. */
TEST(the_sums_of_a_round_that_begins_at_the_base_stay)
{
    static const struct journal_kept_segment kept[] = {
        { .number = 3, .first = { 1, 5 } }, { .number = 4, .first = { 1, 7 } },
        { .number = 5, .first = { 1, 9 } }, // of a process that took the part from its keeper
        { .number = 6, .first = { 1, 9 } }, { .number = 7, .first = { 1, 12 } },
    };
    static const struct {
        uint64_t step, first;
    } rows[] = {
        { 5, 3 }, { 6, 3 }, { 7, 3 }, { 8, 4 }, { 9, 4 }, { 10, 6 }, { 12, 6 }, { 13, 7 }
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ck_assert_uint_eq(journal_first_needed(kept, 5, (struct cairn_version) { 1, rows[i].step }),
                          rows[i].first);
}

static void overwrite(const char *name, const void *bytes, size_t count)
{
    char path[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_eq(write(fd, bytes, count), (ssize_t)count);
    close(fd);
}

TEST(a_part_of_another_format_or_damaged_is_refused)
{
    struct journal_part *part = make_part(), *read;
    const size_t bytes = (size_t)part->bytes;
    part->format = JOURNAL_FORMAT + 1;
    snprintf(part->build, sizeof part->build, "9.9");
    overwrite("part", part, bytes);
    ck_assert_int_eq(journal_part_read(folder, &read, &why), CAIRN_ERR_VERSION);
    ck_assert(strstr(why.text, "build 9.9 writes logs in format 3") != NULL);
    part->format = JOURNAL_FORMAT;
    for (size_t at = 0; at < bytes; at++) {
        ((uint8_t *)part)[at] ^= 16;
        overwrite("part", part, bytes);
        const cairn_status status = journal_part_read(folder, &read, &why);
        ck_assert(status == CAIRN_ERR_CHECKSUM || status == CAIRN_ERR_VERSION ||
                  (at >= 12 && at < 24 + KEPT_BUILD_BYTES));
        if (status == CAIRN_OK) free(read);
        ((uint8_t *)part)[at] ^= 16;
    }
    for (size_t count = 0; count < bytes; count++) {
        overwrite("part", part, count);
        ck_assert_int_eq(journal_part_read(folder, &read, &why), CAIRN_ERR_CHECKSUM);
    }
    free(part);
}

TEST(a_full_disk_is_found_before_anything_is_written)
{
    const struct rlimit small = { 16384, RLIM_INFINITY };
    struct journal_segment none = { .fd = -1 };
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    ck_assert_int_eq(journal_segment_make(folder, 9, SEGMENT_BYTES, &none, &why),
                     CAIRN_ERR_NO_SPACE);
    ck_assert(strstr(why.text, "free some space") != NULL);
    char path[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s/0000000000000009.seg", folder);
    ck_assert_int_ne(access(path, F_OK), 0);
}

TEST(a_sync_that_fails_is_told)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0); // a pipe cannot be synced
    const struct journal_segment spoiled = { .fd = ends[1] };
    ck_assert_int_eq(journal_sync(&spoiled, &why), CAIRN_ERR_IO);
    ck_assert(strstr(why.text, "fdatasync of the log failed") != NULL);
}

SUITE(60, set_up, tear_down);

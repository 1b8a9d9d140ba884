/* The segments of a part's log, as a disk may give them back. The input is a list of {what 1, a 1, b 2}:
 * entries that are whole, and may follow from nothing, segments that begin, and bytes that are changed. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/store/storage.h"
#include "proto/wire/wire.h"
#include "server/shard/journal_file.h"
#include "tests/fuzz/target.h"

enum { LOG = 5, SEGMENTS = 3, SEGMENT_BYTES = 24 * 4096, CHUNK_BYTES = 64 };

enum what {
    ENTRY, /* the next one: a: its kind, and how far its numbers are beside those that would follow */
    BEGIN,    /* another segment */
    FLIP,     /* byte b of this segment, by a */
    SKIP,     /* a number of an entry is left out */
    RESEALED, /* field b of the head at block a of this segment, and its checksum is right */
    WHATS,
};

struct writing {
    uint8_t segments[SEGMENTS][SEGMENT_BYTES];
    uint32_t segment;
    uint64_t end, entry, round;
    struct cairn_version version;
};

static char folder[64];
static struct writing w;

static void make_folder(void)
{
    if (folder[0] != '\0') return;
    snprintf(folder, sizeof folder, "/dev/shm/cairn-fuzz-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        snprintf(folder, sizeof folder, "/tmp/cairn-fuzz-XXXXXX");
        MUST(mkdtemp(folder) != NULL);
    }
}

static void remove_folder(void)
{
    journal_segments_remove(folder, UINT64_MAX);
    (void)rmdir(folder);
}

static void put_entry(uint8_t a, uint16_t b)
{
    static uint8_t fronts[4 * JOURNAL_BLOCK], payload[8];
    static bool frozen[4];
    const bool is_round = a % 4 == JOURNAL_ROUND;
    struct journal_head head = {
        .kind = a % 4, .log = LOG, .entry = w.entry++, .frozen_bytes = b % 5
    };
    struct journal_chunk chunk = { .tensor = b, .bytes = CHUNK_BYTES };
    const struct journal_segment segment = { .number = w.segment, .end = w.end };
    if (is_round) w.round++;
    head.outcome = (struct kept_outcome) { .phase = is_round ? CAIRN_STEP_REDUCED : a >> 5,
                                           .kind = CAIRN_DECISION_APPLY,
                                           .round = w.round + (a >> 6),
                                           .last_round = w.round + (b >> 14),
                                           .version = w.version,
                                           .version_after = { w.version.generation,
                                                              w.version.step + 1 + (b >> 15) },
                                           .payload_bytes = b % 9 };
    head.chunk_count = is_round;
    head.data_bytes = is_round * CHUNK_BYTES;
    if (w.end + 5 * JOURNAL_BLOCK > SEGMENT_BYTES) return;
    uint8_t *to = w.segments[w.segment] + w.end;
    memset(to + 2 * JOURNAL_BLOCK, (int)w.round, CHUNK_BYTES);
    chunk.checksum = chunk_checksum(to + 2 * JOURNAL_BLOCK, CHUNK_BYTES);
    journal_front_make(&head, &segment, &chunk, payload, frozen, fronts);
    MUST(journal_front_bytes(&head) == JOURNAL_BLOCK);
    memcpy(to, fronts, 2 * JOURNAL_BLOCK);
    w.end += journal_entry_bytes(&head);
    if (head.kind == JOURNAL_DECISION) w.version = head.outcome.version_after;
}

/* A head that says anything, and has the checksum for it. */
static void reseal(uint8_t a, uint16_t b)
{
    struct journal_head head;
    uint8_t *at = w.segments[w.segment] + a % (SEGMENT_BYTES / JOURNAL_BLOCK) * JOURNAL_BLOCK;
    memcpy(&head, at, sizeof head);
    ((uint8_t *)&head)[b % offsetof(struct journal_head, checksum)] ^= (uint8_t)(1u << (b >> 13));
    head.checksum = chunk_checksum(&head, offsetof(struct journal_head, checksum));
    memcpy(at, &head, sizeof head);
}

static void act(enum what what, uint8_t a, uint16_t b)
{
    if (what == ENTRY) put_entry(a, b);
    if (what == BEGIN && w.segment + 1 < SEGMENTS) {
        w.segment++;
        w.end = 0;
        put_entry(JOURNAL_START, b);
    }
    if (what == FLIP) w.segments[w.segment][b % SEGMENT_BYTES] ^= a;
    if (what == SKIP) w.entry++;
    if (what == RESEALED) reseal(a, b);
}

static void write_segments(void)
{
    char path[128];
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        snprintf(path, sizeof path, "%s/%016x.seg", folder, i);
        if (i > w.segment) {
            (void)unlink(path);
            continue;
        }
        const int fd = open(path, O_WRONLY | O_CREAT, 0600);
        MUST(pwrite(fd, w.segments[i], SEGMENT_BYTES, 0) == SEGMENT_BYTES);
        close(fd);
    }
}

/* Whatever the plan has of chunks can be read, or is refused. */
static void read_sums(const struct journal_entry *entry)
{
    struct sentence why;
    const int fd = journal_segment_open(folder, entry->head.segment, &why);
    MUST(fd >= 0);
    for (uint64_t c = 0; c < entry->head.chunk_count; c++) {
        const struct journal_chunk *chunk = &journal_entry_chunks(entry)[c];
        MUST(chunk->bytes <= SEGMENT_BYTES);
        uint8_t *to = malloc((size_t)chunk->bytes + 1);
        MUST(to != NULL);
        const cairn_status status = journal_read_chunk(fd, entry, chunk, to, &why);
        MUST(status == CAIRN_OK || status == CAIRN_ERR_CHECKSUM);
        free(to);
    }
    close(fd);
}

/* Its steps follow each other, from the base to where it ends. */
static void check_plan(const struct journal_entries *entries, const struct journal_plan *plan,
                       struct cairn_version base)
{
    struct cairn_version at = base;
    for (size_t i = 0; i < plan->count; i++) {
        const struct journal_step *step = &plan->steps[i];
        MUST(step->round < step->decided && step->decided < entries->count);
        const struct kept_outcome *round = &entries->list[step->round].head.outcome,
                                  *decided = &entries->list[step->decided].head.outcome;
        MUST(version_compare(round->version, at) == 0 && decided->last_round == round->round);
        MUST(decided->kind == CAIRN_DECISION_APPLY);
        at = decided->version_after;
        (void)journal_entry_payload(&entries->list[step->decided]);
        read_sums(&entries->list[step->round]);
    }
    MUST(version_compare(plan->step.version, at) == 0);
    MUST(plan->step.phase == CAIRN_STEP_IDLE || plan->step.phase == CAIRN_STEP_REDUCED);
    if (plan->step.phase == CAIRN_STEP_REDUCED) read_sums(&entries->list[plan->round]);
}

/* A plan that ends at a version on the way is the beginning of the whole one. */
static void check_part(const struct journal_entries *entries, const struct journal_plan *whole,
                       struct cairn_version base)
{
    struct journal_plan part;
    struct sentence why = { "" };
    if (whole->count == 0) return;
    const size_t steps = whole->count / 2;
    const struct cairn_version to = entries->list[whole->steps[steps].round].head.outcome.version;
    MUST(journal_plan_make(entries, base, &to, &part, &why) == CAIRN_OK);
    MUST(part.count <= steps); // fewer, if numbers that were changed come by the version twice
    MUST(part.step.phase == CAIRN_STEP_IDLE);
    MUST(version_compare(part.step.version, to) == 0);
    check_plan(entries, &part, base);
    journal_plan_release(&part);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct journal_entries entries;
    struct journal_plan plan;
    struct sentence why = { "" };
    if (folder[0] == '\0') {
        make_folder();
        atexit(remove_folder);
    }
    memset(&w, 0, sizeof w);
    w.version.generation = 1;
    put_entry(JOURNAL_START, 0);
    for (size_t at = 0; at + 4 <= size; at += 4)
        act(data[at] % WHATS, data[at + 1], (uint16_t)(data[at + 2] | data[at + 3] << 8));
    write_segments();
    cairn_status status = journal_read(folder, LOG, &entries, &why);
    if (status != CAIRN_OK) {
        MUST(why.text[0] != '\0' && entries.count == 0);
        return 0;
    }
    const struct cairn_version base = { 1, size > 0 ? data[size - 1] % 4 : 0 };
    status = journal_plan_make(&entries, base, NULL, &plan, &why);
    MUST(status == CAIRN_OK || (status == CAIRN_ERR_CHECKSUM && why.text[0] != '\0'));
    if (status == CAIRN_OK) {
        check_plan(&entries, &plan, base);
        check_part(&entries, &plan, base);
        journal_plan_release(&plan);
    }
    journal_entries_release(&entries);
    return 0;
}

/* Which operations are ordered, and which only happen to run one after the other.
 *
 * An operation has a number in its stream, and a clock when it is put into the queue: for each stream, up
 * to which number all is over when this one runs. Stream order, events and what the host has waited for
 * make clocks grow, and nothing else does. Of two operations that touch the same bytes, one of them
 * writing, one must be known to the clock of the other. So a race is seen whatever order they run in, on
 * every seed alike.
 *
 * What a kernel touches is known when it runs: its list of work comes by a copy. What the host knows to be
 * over, and all that waits in queues, is before all that comes, and is forgotten. The host is one: threads
 * of it that tell each other nothing are ThreadSanitizer's to find. */
#include "tests/gpu/emulator/emulator.h"
#include "tests/gpu/kernels/host.h"

#include <inttypes.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct record {
    struct record *next;
    const char *name;
    struct emulator_touch touch; /* owned */
    struct emulator_clock clock;
    uint64_t number;
    uint32_t slot;
    bool ran;
    bool is_spoilt; /* a peek, and something wrote what it reads */
};

struct emulator_clock emulator_host;
static struct record *records; /* those that the host does not know to be over */

void emulator_clock_join(struct emulator_clock *clock, const struct emulator_clock *other)
{
    for (uint32_t slot = 0; slot < EMULATOR_SLOTS; slot++)
        if (other->at[slot] > clock->at[slot]) clock->at[slot] = other->at[slot];
}

void emulator_touch_add(struct emulator_touch *touch, uint64_t from, uint64_t bytes, bool writes)
{
    struct emulator_ranges *ranges = writes ? &touch->writes : &touch->reads;
    if (bytes == 0) return;
    if (ranges->count == ranges->room) {
        ranges->room = ranges->room == 0 ? 8 : 2 * ranges->room;
        ranges->at = realloc(ranges->at, ranges->room * sizeof *ranges->at);
        assert(ranges->at != NULL);
    }
    ranges->at[ranges->count++] = (struct emulator_range) { from, from + bytes };
}

static int compare(const void *one, const void *two)
{
    const struct emulator_range *a = one, *b = two;
    return a->from < b->from ? -1 : a->from > b->from;
}

static void sort(struct emulator_ranges *ranges)
{
    if (ranges->count < 2) return;
    qsort(ranges->at, ranges->count, sizeof *ranges->at, compare);
    size_t last = 0;
    for (size_t i = 1; i < ranges->count; i++) {
        if (ranges->at[i].from > ranges->at[last].to)
            ranges->at[++last] = ranges->at[i];
        else if (ranges->at[i].to > ranges->at[last].to)
            ranges->at[last].to = ranges->at[i].to;
    }
    ranges->count = last + 1;
}

void emulator_touch_sort(struct emulator_touch *touch)
{
    sort(&touch->reads);
    sort(&touch->writes);
}

void emulator_touch_release(struct emulator_touch *touch)
{
    free(touch->reads.at);
    free(touch->writes.at);
    *touch = (struct emulator_touch) { 0 };
}

/* The first bytes that two sorted lists have in common. */
static bool meet(const struct emulator_ranges *a, const struct emulator_ranges *b,
                 struct emulator_range *common_out)
{
    if (a->count == 0 || b->count == 0) return false;
    if (a->at[a->count - 1].to <= b->at[0].from || b->at[b->count - 1].to <= a->at[0].from)
        return false;
    for (size_t i = 0, j = 0; i < a->count && j < b->count;) {
        const struct emulator_range x = a->at[i], y = b->at[j];
        if (x.from < y.to && y.from < x.to) {
            *common_out = (struct emulator_range) { x.from > y.from ? x.from : y.from,
                                                    x.to < y.to ? x.to : y.to };
            return true;
        }
        if (x.to <= y.from)
            i++;
        else
            j++;
    }
    return false;
}

/* How `touch` and what came before clash: "reads" or "writes" of each; NULL: not at all. */
static const char *clash(const struct emulator_touch *before, const struct emulator_touch *touch,
                         struct emulator_range *common_out)
{
    if (meet(&before->writes, &touch->writes, common_out)) return "both write";
    if (meet(&before->writes, &touch->reads, common_out))
        return "the first writes, the second reads";
    if (meet(&before->reads, &touch->writes, common_out))
        return "the first reads, the second writes";
    return NULL;
}

static void name_common(struct emulator_range common, char *text, size_t text_bytes)
{
    char address[64];
    emulator_memory_name(common.from, address, sizeof address);
    snprintf(text, text_bytes, "%" PRIu64 " bytes at %s", (common.to - common.from), address);
}

static void complain_of(const struct record *a, const struct record *b, const char *how,
                        struct emulator_range common)
{
    char where[128];
    name_common(common, where, sizeof where);
    emulator_complain("race: %s (stream %u, operation %" PRIu64
                      ") and %s (stream %u, operation %" PRIu64 "): %s "
                      "%s, and no event "
                      "orders them",
                      a->name, a->slot, a->number, b->name, b->slot, b->number, how, where);
}

/* What a peek has brought, if the host may not have looked at it yet. */
static void poison(const struct record *peek)
{
    if (!peek->ran || emulator_host.at[peek->slot] >= peek->number) return;
    const struct emulator_ranges *to = &peek->touch.writes;
    for (size_t i = 0; i < to->count; i++)
        memset(kernel_memory_at(to->at[i].from), EMULATOR_POISON, to->at[i].to - to->at[i].from);
}

/* False: `peek` is none, or clashes with `writer` in what it writes. */
static bool spoil(struct record *peek, const struct record *writer)
{
    struct emulator_range common;
    if (!emulator_options.peeks || !peek->touch.to_host ||
        meet(&peek->touch.writes, &writer->touch.reads, &common) ||
        meet(&peek->touch.writes, &writer->touch.writes, &common))
        return false;
    peek->is_spoilt = true;
    poison(peek);
    return true;
}

static bool knows(const struct record *later, const struct record *earlier)
{
    return later->clock.at[earlier->slot] >= earlier->number;
}

void emulator_order_add(uint32_t slot, uint64_t number, const struct emulator_clock *clock,
                        const char *name, struct emulator_touch *touch)
{
    struct record *record = malloc(sizeof *record);
    assert(record != NULL);
    *record = (struct record) { records, name, *touch, *clock, number, slot, false, false };
    *touch = (struct emulator_touch) { 0 };
    for (struct record *r = records; r != NULL; r = r->next) {
        struct emulator_range common;
        if (knows(record, r) || knows(r, record)) continue;
        const char *how = clash(&r->touch, &record->touch, &common);
        if (how == NULL || spoil(r, record) || spoil(record, r)) continue;
        complain_of(r, record, how, common);
    }
    records = record;
}

void emulator_order_ran(uint32_t slot, uint64_t number)
{
    for (struct record *r = records; r != NULL; r = r->next) {
        if (r->slot != slot || r->number != number) continue;
        r->ran = true;
        if (r->is_spoilt) poison(r);
    }
}

bool emulator_order_pending(uint64_t from, uint64_t bytes, bool reads)
{
    struct emulator_range range = { from, from + bytes }, common;
    const struct emulator_ranges ranges = { &range, 1, 1 };
    for (const struct record *r = records; r != NULL; r = r->next) {
        if (r->ran) continue;
        if (meet(&r->touch.writes, &ranges, &common) ||
            (reads && meet(&r->touch.reads, &ranges, &common)))
            return true;
    }
    return false;
}

bool emulator_order_written(uint64_t from, uint64_t bytes)
{
    struct emulator_range range = { from, from + bytes }, common;
    const struct emulator_ranges ranges = { &range, 1, 1 };
    for (const struct record *r = records; r != NULL; r = r->next)
        if (r->ran && meet(&r->touch.writes, &ranges, &common)) return true;
    return false;
}

void emulator_order_host(const struct emulator_touch *touch, const char *what)
{
    for (const struct record *r = records; r != NULL; r = r->next) {
        struct emulator_range common;
        if (emulator_host.at[r->slot] >= r->number || clash(&r->touch, touch, &common) == NULL)
            continue;
        char where[128];
        name_common(common, where, sizeof where);
        emulator_complain("race: %s (stream %u, operation %" PRIu64
                          ") and the host, which %s: %s, and "
                          "the host has not waited",
                          r->name, r->slot, r->number, what, where);
    }
}

static void drop(struct record **at)
{
    struct record *record = *at;
    *at = record->next;
    emulator_touch_release(&record->touch);
    free(record);
}

void emulator_host_learns(const struct emulator_clock *clock)
{
    emulator_clock_join(&emulator_host, clock);
    for (struct record **at = &records; *at != NULL;) {
        const struct record *r = *at;
        if (emulator_host.at[r->slot] >= r->number && emulator_stream_all_know(r->slot, r->number))
            drop(at);
        else
            at = &(*at)->next;
    }
}

/* The second way of plan.h: units one after another on a line, the line wound around the receivers in
 * laps. In a lap every receiver gets a piece in proportion to what it wants, less what it is ahead, so
 * that laps of any length end level; a unit's end and a shard's end fall together only by chance, so
 * a unit of b bytes needs pieces of b / (may_use - 1) to be sure of its limit: its step. */
#include "proto/plan/plan_cut.h"

#include <stdlib.h>
#include <string.h>

struct line {
    struct placing *p;
    struct free_unit **units; /* [count], smallest step first */
    size_t count;
    size_t next;           /* the unit being placed */
    struct cursor at;      /* in it */
    uint64_t nominal;      /* bytes of it handed out, before rounding to quanta */
    uint32_t used;         /* shards it has used */
    uint64_t longer, from; /* its pieces are stretched by longer / from >= 1 */
};

static uint64_t step_of(const struct free_unit *unit)
{
    return (unit->bytes - 1) / (unit->may_use - 1) + 1;
}

static int compare_by_step(const void *a, const void *b)
{
    const struct free_unit *x = *(struct free_unit *const *)a, *y = *(struct free_unit *const *)b;
    const uint64_t step_x = step_of(x), step_y = step_of(y);
    if (step_x != step_y) return step_x < step_y ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

void cairn_plan_order_line(struct free_unit **units, size_t count)
{
    qsort(units, count, sizeof(struct free_unit *), compare_by_step);
}

/* A walk along what the receivers want. */
struct walk {
    const struct plan_cut *cut;
    uint32_t next; /* receiver after the present one */
    uint64_t room; /* left in the present one */
};

/* Walks `bytes` on; returns how many receivers gave room. */
static uint32_t walk_on(struct walk *walk, uint64_t bytes)
{
    uint32_t used = 0;
    for (;;) {
        if (walk->room > 0) {
            const uint64_t step = bytes < walk->room ? bytes : walk->room;
            bytes -= step;
            walk->room -= step;
            used++;
        }
        if (bytes == 0 || walk->next == walk->cut->receiver_count) return used;
        walk->room = walk->cut->shards[walk->cut->receivers[walk->next++]].want;
    }
}

size_t cairn_plan_find_stiff(struct placing *p, struct free_unit **units, size_t count)
{
    if (count == 0 || step_of(units[count - 1]) <= p->cut->free_bytes / p->cut->receiver_count)
        return 0; // even the longest step fits an average share
    struct walk walk = { .cut = p->cut };
    size_t fit = 0, stiff = 0;
    for (size_t u = 0; u < count; u++) {
        if (walk_on(&walk, units[u]->bytes) > units[u]->may_use)
            p->spare[stiff++] = units[u];
        else
            units[fit++] = units[u];
    }
    memcpy(units + fit, p->spare, stiff * sizeof(struct free_unit *));
    return stiff;
}

/* The next lap's bytes: pieces as long as the longest step of the units in it, on average; all that
 * is left if a lap after this one would be too short for the longest step of all. */
static uint64_t lap_bytes(const struct line *line)
{
    const struct plan_cut *cut = line->p->cut;
    const uint64_t mean = cut->free_bytes / cut->receiver_count;
    uint64_t step = 0, covered = 0;
    for (size_t u = line->next; u < line->count && covered / cut->receiver_count <= step; u++) {
        if (step_of(line->units[u]) > step) step = step_of(line->units[u]);
        covered += line->units[u]->bytes;
    }
    if (step > mean || mean - step < step_of(line->units[line->count - 1])) return cut->free_bytes;
    return step * cut->receiver_count;
}

/* p->pieces: what each receiver gets of this lap, together `bytes`. */
static void share_lap(struct placing *p, uint64_t bytes)
{
    const uint32_t count = p->cut->receiver_count;
    uint64_t sum = 0, passed = 0, given = 0;
    for (uint32_t i = 0; i < count; i++) {
        p->pieces[i] = cairn_plan_short(p->cut, p->cut->receivers[i], bytes);
        sum += p->pieces[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        passed += sum == 0 ? 1 : p->pieces[i];
        const uint64_t end = cairn_plan_scale(bytes, passed, sum == 0 ? count : sum);
        p->pieces[i] = end - given;
        given = end;
    }
}

static void begin_unit(struct line *line)
{
    line->at = (struct cursor) { .unit = line->units[line->next] };
    line->nominal = 0;
    line->used = 0;
    line->longer = line->from = 0;
}

/* If the pieces ahead in this lap are too short for the unit's limit, all of them are stretched
 * alike. `room` is what is left of piece i. */
static void stretch_unit(struct line *line, uint32_t i, uint64_t room)
{
    const struct free_unit *unit = line->at.unit;
    uint64_t sum = room;
    uint32_t pieces = 1;
    line->longer = line->from = 1;
    while (pieces < unit->may_use && sum < unit->bytes) {
        if (++i == line->p->cut->receiver_count) return; // the next lap is not known yet
        sum += line->p->pieces[i];
        pieces += line->p->pieces[i] > 0;
    }
    if (sum >= unit->bytes) return;
    line->longer = unit->bytes;
    line->from = sum;
}

/* Fills piece i from the line. */
static void fill_piece(struct line *line, uint32_t i)
{
    const uint32_t shard = line->p->cut->receivers[i];
    uint64_t room = line->p->pieces[i];
    while (room > 0 && line->next < line->count) {
        const struct free_unit *unit = line->at.unit;
        if (line->from == 0) stretch_unit(line, i, room);
        const uint64_t left = unit->bytes - line->nominal;
        const uint64_t bytes = cairn_plan_scale(room, line->longer, line->from);
        const int is_last = bytes >= left || line->used + 1 == unit->may_use;
        line->nominal = is_last ? unit->bytes : line->nominal + bytes;
        line->used += cairn_plan_take(line->p, &line->at, line->nominal, shard) > 0;
        if (line->at.bytes < unit->bytes) return; // the piece is full
        room = bytes < left ? 0 : room - cairn_plan_scale(left, line->from, line->longer);
        if (++line->next < line->count) begin_unit(line);
    }
}

void cairn_plan_wind(struct placing *p, struct free_unit **units, size_t count)
{
    if (count == 0) return;
    struct line line = { .p = p, .units = units, .count = count };
    begin_unit(&line);
    while (line.next < count) {
        share_lap(p, lap_bytes(&line));
        for (uint32_t i = 0; i < p->cut->receiver_count && line.next < count; i++)
            fill_piece(&line, i);
    }
}

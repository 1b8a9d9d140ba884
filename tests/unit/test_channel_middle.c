/* A man in the middle of two channels: he drops, repeats, changes, exchanges and invents what passes him,
 * by a seed. Whatever he does, each end takes nothing but a prefix of what the other one sent.
 * CAIRN_SEED: the first seed. */
#include <check.h>
#include <string.h>

#include "proto/base/text.h"
#include "tests/support/random.h"
#include "tests/support/secure_ends.h"
#include "tests/support/suite.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEEDS = 2000 };
#else
enum { SEEDS = 10000 };
#endif
enum { UNITS_MAX = 64, KEPT_MAX = 256, UNIT_BYTES = 700, SAID_BYTES = 16384, TURNS = 40 };

/* Bytes that one call gave: a message of the handshake, or records. */
struct unit {
    uint8_t bytes[UNIT_BYTES];
    size_t count;
};

/* What goes from one end to the other. */
struct way {
    struct unit units[UNITS_MAX]; /* on their way */
    size_t count;
    uint8_t said[SAID_BYTES]; /* by the sender, plain */
    size_t said_bytes;
    bool is_finished, is_touched;
    struct byte_queue heard;
    cairn_status status; /* of the receiver */
};

static struct channel *ends[2];
static struct way ways[2];         /* to end 0, and to end 1 */
static struct unit kept[KEPT_MAX]; /* all that ever passed, of this session and those before */
static uint64_t kept_count;
static uint64_t untouched, torn; /* sessions */

/* ==== the ends ==== */

static void put(struct way *way, const struct byte_queue *wire)
{
    if (wire->end == 0 || way->count == UNITS_MAX) return;
    struct unit *unit = &way->units[way->count++];
    ck_assert_uint_le(wire->end, sizeof unit->bytes);
    memcpy(unit->bytes, wire->bytes, wire->end);
    unit->count = wire->end;
    kept[kept_count++ % KEPT_MAX] = *unit;
}

/* An end says something, or that it has finished. */
static void speak(int end, uint64_t now_ms)
{
    struct way *way = &ways[1 - end];
    struct byte_queue wire = { 0 };
    ck_assert_int_eq(channel_greet(ends[end], &wire), CAIRN_OK);
    const size_t some = 1 + random_below(100);
    if (channel_is_up(ends[end]) && !way->is_finished && way->count + 2 < UNITS_MAX &&
        way->said_bytes + some <= SAID_BYTES) {
        uint8_t *said = way->said + way->said_bytes;
        for (size_t i = 0; i < some; i++) said[i] = (uint8_t)random_next();
        way->said_bytes += some;
        ck_assert_int_eq(channel_seal(ends[end], said, some, now_ms, &wire), CAIRN_OK);
        if (random_below(20) == 0) {
            way->is_finished = true;
            ck_assert_int_eq(channel_finish(ends[end], &wire), CAIRN_OK);
        }
    }
    put(way, &wire);
    byte_queue_release(&wire);
}

static void hear(int end, const struct unit *unit)
{
    struct way *way = &ways[end];
    size_t at = 0;
    while (at < unit->count && way->status == CAIRN_OK) {
        size_t used = 0, some = 1 + random_below(unit->count - at);
        way->status = channel_take(ends[end], unit->bytes + at, some, 1 + random_below(200), &used,
                                   &way->heard, NULL);
        at += used;
    }
}

/* ==== the man ==== */

static void flip(struct unit *unit)
{
    unit->bytes[random_below(unit->count)] ^= (uint8_t)(1u << random_below(8));
}

static void invent(struct unit *unit)
{
    unit->count = 1 + random_below(100);
    for (size_t i = 0; i < unit->count; i++) unit->bytes[i] = (uint8_t)random_next();
}

/* A part of another unit in the place of a part of this one. */
static void splice(struct unit *unit, const struct unit *other)
{
    const size_t some = unit->count < other->count ? unit->count : other->count;
    const size_t from = random_below(some);
    memcpy(unit->bytes + from, other->bytes + from, some - from);
}

/* Does something to the unit that is next. False: it is gone. */
static bool meddle(struct way *way, struct unit *unit)
{
    const struct unit before = *unit;
    const uint64_t those = kept_count < KEPT_MAX ? kept_count : KEPT_MAX;
    const struct unit *old = &kept[random_below(those)];
    switch (random_below(8)) {
    case 0: way->is_touched = true; return false;
    case 1: *unit = *old; break; // of any session and direction
    case 2: splice(unit, old); break;
    case 3: flip(unit); break;
    case 4: invent(unit); break;
    case 5: unit->count -= random_below(unit->count); break;
    case 6: // what comes next comes first
        if (way->count > 1) {
            *unit = way->units[1];
            way->units[1] = before;
        }
        break;
    default: // it comes once more, later
        if (way->count < UNITS_MAX) way->units[way->count++] = before;
        way->is_touched = true;
        return true;
    }
    if (unit->count != before.count || memcmp(unit->bytes, before.bytes, before.count) != 0)
        way->is_touched = true;
    return true;
}

static void carry(int end, uint64_t one_in)
{
    struct way *way = &ways[end];
    if (way->count == 0) return;
    struct unit unit = way->units[0];
    const bool arrives = random_below(one_in) > 0 || meddle(way, &unit);
    memmove(way->units, way->units + 1, --way->count * sizeof *way->units);
    if (arrives) hear(end, &unit);
}

/* ==== what must hold ==== */

static uint64_t seed_now;

static void holds(bool condition, const char *what)
{
    if (!condition) ck_abort_msg("seed %llu: %s", (unsigned long long)seed_now, what);
}

static void is_prefix(int end)
{
    const struct way *way = &ways[end];
    const size_t heard = way->heard.end - way->heard.start;
    holds(heard <= way->said_bytes, "more was heard than was said");
    holds(heard == 0 || memcmp(way->heard.bytes + way->heard.start, way->said, heard) == 0,
          "something else was heard than was said");
    if (way->status == CAIRN_ERR_CLOSED)
        holds(way->is_finished && heard == way->said_bytes, "an early end was believed");
    if (!way->is_touched && !ways[1 - end].is_touched)
        holds(way->status == CAIRN_OK || way->status == CAIRN_ERR_CLOSED, "it failed untouched");
}

/* An end that is up has the other one's key; if both are, they have one session. */
static void is_known(int end)
{
    if (!channel_is_up(ends[end])) return;
    const struct handshake_result *peer = channel_peer(ends[end]);
    const struct curve_key *key = end == 0 ? &ends_coordinator : &ends_node;
    holds(memcmp(peer->peer_key, key->open, sizeof key->open) == 0, "a stranger was let in");
    if (!channel_is_up(ends[1 - end])) return;
    holds(memcmp(peer->session_hash, channel_peer(ends[1 - end])->session_hash,
                 sizeof peer->session_hash) == 0,
          "two ends are up in two sessions");
}

static void run(uint64_t seed)
{
    random_state = seed_now = seed;
    const uint64_t one_in = 2 + random_below(60); // how seldom he meddles
    for (int end = 0; end < 2; end++) {
        ends[end] = ends_channel(end == 0);
        memset(&ways[end], 0, sizeof ways[end]);
    }
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        const int end = (int)random_below(2);
        speak(end, turn * CAIRN_REKEY_MS / 7);
        carry(1 - end, one_in);
        for (int i = 0; i < 2; i++) {
            is_prefix(i);
            is_known(i);
        }
    }
    for (int end = 0; end < 2; end++) {
        const struct way *way = &ways[end];
        torn += way->status == CAIRN_ERR_PROTOCOL;
        untouched += !way->is_touched && way->heard.end > 0;
        channel_close(ends[end]);
        byte_queue_release(&ways[end].heard);
    }
}

TEST(a_man_in_the_middle_gains_nothing)
{
    const char *text = getenv("CAIRN_SEED");
    const uint64_t first = text != NULL ? strtoull(text, NULL, 10) : 1;
    const uint64_t seeds = getenv("CAIRN_TEST_LONG") != NULL ? 10 * SEEDS : SEEDS;
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        mark_point();
        run(seed);
    }
    ck_assert_uint_gt(torn, seeds / 4); // he was there
    ck_assert_uint_gt(untouched, seeds / 50);
}
SUITE(600, ends_make, NULL);

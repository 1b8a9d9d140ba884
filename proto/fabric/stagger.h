/* Chooses where arrays begin that one loop goes through side by side.
 *
 * A core's nearest cache finds a line by the bits of its address below 4 KiB, and AMD's (Zen) then guesses
 * the way by a hash of those above: streams that agree in both, as arrays do that lie 256 MiB apart, throw
 * each other's lines out at every step, down to a fifth of the speed. Bits below 4 KiB alone are enough to
 * keep streams apart, on any processor (on others it spares loads that wait for a store they have nothing
 * to do with). So the n-th stream of a loop begins n times CAIRN_STAGGER_LINES lines later than pages do:
 * five of them, the most that a loop of ours has, are 12 lines or more from any multiple of 4 KiB apart.
 *
 * This holds for streams that advance at the same pace. A bf16 stream beside fp32 ones drifts past
 * them, once in 8 KiB.
 *
 * Pure; any thread. */
#ifndef CAIRN_FABRIC_STAGGER_H
#define CAIRN_FABRIC_STAGGER_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_LINE_BYTES    ((size_t)64)
#define CAIRN_STAGGER_PAGE  ((size_t)4096)
#define CAIRN_STAGGER_LINES ((size_t)13)
#define CAIRN_STAGGER_BYTES (CAIRN_STAGGER_LINES * CAIRN_LINE_BYTES)

/* The streams of an update. The published one begins with a page, since other processes map it,
 * too. */
enum cairn_update_stream {
    CAIRN_STREAM_WIRE,
    CAIRN_STREAM_PARAM,
    CAIRN_STREAM_EXP_AVG,
    CAIRN_STREAM_EXP_AVG_SQ,
    CAIRN_STREAM_SUM,
    CAIRN_STREAMS
};

/* How far behind the beginning of a page the n-th stream begins. */
static inline size_t cairn_stagger_begin(size_t stream)
{
    return stream * CAIRN_STAGGER_BYTES % CAIRN_STAGGER_PAGE;
}

/* An array of `bytes` is cut in so many streams of this many bytes each, of whole lines; there is a rest
 * behind the last one. 0: it is too short to be cut. */
static inline size_t cairn_stagger_cut(size_t bytes, size_t streams)
{
    const size_t page_lines = CAIRN_STAGGER_PAGE / CAIRN_LINE_BYTES;
    const size_t lines = bytes / streams / CAIRN_LINE_BYTES;
    const size_t wanted = page_lines - CAIRN_STAGGER_LINES; // the next one is so much before a page
    return lines < wanted ? 0 : (lines - (lines - wanted) % page_lines) * CAIRN_LINE_BYTES;
}

#endif

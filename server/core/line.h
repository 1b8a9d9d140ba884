/* Decides which versions a job's present state descends from, after it went back to former versions and to
 * snapshots. An automatic recovery takes the newest snapshot on this line, and none of a branch that was
 * given up.
 *
 * The job knows where it went back last (its origin), and before that (its turns). A snapshot's manifest has
 * the job's origin and turns of then, as one origin. So older snapshots are asked only for what lies before
 * all turns: a rollback begins at a version of which there need be no snapshot.
 *
 * Pure; no allocation. */
#ifndef CAIRN_CORE_LINE_H
#define CAIRN_CORE_LINE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/geometry/tensor.h"

/* Where a job went back before its origin, the newest first. Each of them holds besides the origin: a version
 * is on the job's line only if all of them say so. A rollback begins at a version of which there need be no
 * snapshot, so no manifest says where that version's generation began. All are of higher generations than
 * those that the snapshots' manifests have to tell about. */
#define CAIRN_TURNS_MAX 15
struct turns {
    uint32_t count;
    struct origin list[CAIRN_TURNS_MAX];
};

/* True: the version is not one from which the job turned away, as far as the job itself knows. */
bool line_has(const struct origin *origin, const struct turns *turns, struct cairn_version version);
/* Writes the turns of a job that goes back to that version, which is on its line: the origin and those of the
 * turns that lie before it. */
void line_turn(const struct origin *origin, const struct turns *turns, struct cairn_version back_to,
               struct turns *out);
/* Writes the turns of a job that is restored from a snapshot of that version, in whose manifest is that
 * origin. The snapshot need not be on the line of the job, nor the job be known: origin NULL. */
void line_restore(const struct origin *origin, const struct turns *turns,
                  struct cairn_version version, const struct origin *manifest, struct turns *out);
/* Returns the one origin that leaves out whatever the origin and the turns do. It may leave out more. */
struct origin line_as_one(const struct origin *origin, const struct turns *turns);

struct line {
    struct origin origin;
    struct turns turns;
};
/* Takes the next older snapshot, of that version and with that origin in its manifest. True: it is on the
 * line, which begins with the job's origin and turns, or with zeros if they are not known. */
bool line_follow(struct line *line, struct cairn_version version, const struct origin *origin);

#endif

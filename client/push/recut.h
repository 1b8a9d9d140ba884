/* Puts and fetches, cut anew where another layout holds for them by now. Loop thread. */
#ifndef CAIRN_CLIENT_PUSH_RECUT_H
#define CAIRN_CLIENT_PUSH_RECUT_H

#include <cairn.h>

struct body;
struct job;
struct parcel;
struct shard_link;

/* The body by which a put or fetch of a plane at a version is cut: for published parameters the one
 * that serves the version, for state the newest. */
struct body *cairn_recut_body(const struct job *job, uint8_t kind, uint8_t plane,
                              struct cairn_version version);
/* The bodies of the job, or since when they serve, have changed. */
void cairn_recut_all(struct job *job);
/* The shard knows no such chunk. True: the parcel goes on, cut anew, or once more while the word of the
 * coordinator may be on its way. */
bool cairn_recut_refused(struct parcel *parcel, uint64_t status);
/* The shard has left the job and is not there any more: nobody has what is asked of it. */
void cairn_recut_gone(struct shard_link *link);

#endif

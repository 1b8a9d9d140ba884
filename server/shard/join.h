/* A shard gets into a cluster whose coordinator is on another host: its node's key, the folder in which that
 * key and what --join wrote are kept, and `cairn-shard --join`, which asks that coordinator once. */
#ifndef CAIRN_SHARD_JOIN_H
#define CAIRN_SHARD_JOIN_H

#include <limits.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/secure/secure.h"

/* The folder that root joins from, for all shards of the host: FOLDER/coordinator has the coordinator's
 * address, for everybody to read, and FOLDER/token the token. A shard of systemd is given the token as a
 * credential. */
#define CAIRN_JOIN_FOLDER "/etc/cairn"
#define CAIRN_JOIN_PORT   7077 /* of a coordinator, if HOST is given without one */

/* Finds the folder of a shard's state: `configured`, if not empty, else that of systemd ($STATE_DIRECTORY),
 * else /var/lib/cairn of root, else cairn in $XDG_STATE_HOME or ~/.local/state. */
void join_state_folder(const char *configured, char folder_out[PATH_MAX]);

/* Finds what --join wrote: in the folder of state, else in CAIRN_JOIN_FOLDER. join_token gives the path of a
 * file that exists, or of the one in `state`; join_address gives the coordinator's address, or "". */
void join_token(const char *state, char path_out[PATH_MAX]);
void join_address(const char *state, char *text_out, size_t text_bytes);

/* Reads the key of the node for the shard `name`, STATE/NAME.key, or makes it at its first use. The
 * coordinator gives a shard's name to the key that said it first, so a shard with another key is refused.
 * CAIRN_ERR_CONFIG: the folder cannot be written; CAIRN_ERR_REFUSED, _MALFORMED: the file is not as it should
 * be. Blocking. */
CAIRN_MUST_CHECK cairn_status join_node_key(const char *state, const char *name,
                                            struct curve_key *key_out, struct sentence *why);

/* cairn-shard --join HOST[:PORT][,HOST[:PORT]]... TOKEN [--state FOLDER]: returns the exit status of the
 * process. */
int join_main(int argc, char **argv);

#endif

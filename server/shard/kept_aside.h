#ifndef CAIRN_SHARD_KEPT_ASIDE_H
#define CAIRN_SHARD_KEPT_ASIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/base/keeper.h"

/* Sets the parts aside that this process must not use: if is_refused (CAIRN_KEPT_REFUSED), those of which
 * processes died without a step in between. Does what an operator wants done with those that were set
 * aside. Call it at the start. `state`, `shard`: the configured folder of state and the name. Returns how
 * many descriptors are left in `fds`; the others are closed here. Numbers of parts up to *parts_out are in
 * use. */
size_t kept_set_aside(const char *state, const char *shard, struct kept_fd *fds, size_t count,
                      bool is_refused, uint32_t *parts_out);

/* cairn-shard --inspect NAME [--state FOLDER] [drop|return]: returns the exit status of the process. */
int kept_inspect_main(int argc, char **argv);

#endif

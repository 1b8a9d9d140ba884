/* From which version on a layout serves, as a member knows it that keeps the layouts of its job:
 * LayoutChanged says it, and Attached does by the layout that it names. Pure. */
#ifndef CAIRN_GEOMETRY_SINCE_H
#define CAIRN_GEOMETRY_SINCE_H

#include <stdbool.h>

#include "proto/geometry/tensor.h"

/* Attached names the layout in which the newest version is published. A member that knows that layout may
 * have heard that it serves later versions only: the version was published in it once more while the
 * member was not attached, and who had the version before may be gone. */
struct cairn_version cairn_since_attached(struct cairn_version since, struct cairn_version newest);

/* Attached tells the number of the layout in force, too. True: the member knows a later one, by
 * which it must not push. The later layout was durable before anyone heard of it, so the
 * coordinator's store is an older copy, or was made of what shards hold. */
bool cairn_layout_goes_back(uint64_t newest_known, uint64_t in_force);

#endif

/* Which lanes an endpoint of UCX has, out of what UCX prints of it. Pure; private to proto/fabric. */
#ifndef CAIRN_FABRIC_UCX_LANES_H
#define CAIRN_FABRIC_UCX_LANES_H

#include <stdbool.h>

/* A transport whose network card reads the peer's memory by itself: RC and DC of InfiniBand and
 * RoCE (ud has no reads), Cray's, AWS's. False for a name that is not known. */
bool ucx_transport_is_native(const char *name);

/* `text` is what ucp_ep_print_info printed. True: a lane is of a native transport, and UCX uses it for
 * remote memory access. Otherwise UCX would emulate a read by messages, for which there is nothing to
 * gain. */
bool ucx_lanes_are_native(const char *text);

#endif

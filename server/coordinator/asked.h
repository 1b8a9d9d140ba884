/* Every operator's action has its who, from where, when and what: in the log, and in the events. */
#ifndef CAIRN_COORDINATOR_ASKED_H
#define CAIRN_COORDINATOR_ASKED_H

#include "server/coordinator/base/names.h"

/* Notes a request of an admin, if it is one that changes something: as the command line calls it, with all
 * that it was given, as far as that fits, and how much more there is. */
void cairn_cluster_asked_note(const struct cairn_cluster_session *session,
                              const struct cairn_frame *frame, const ProtobufCMessage *message);

#endif

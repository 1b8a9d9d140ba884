/* Every header of the coordinator needs these: its structs by name, messages, and sentences. */
#ifndef CAIRN_COORDINATOR_BASE_NAMES_H
#define CAIRN_COORDINATOR_BASE_NAMES_H

#include <stdbool.h>

#include "proto/base/sentence.h"
#include "proto/wire/messages.h"

struct cairn_cluster;         /* cluster.h */
struct cairn_cluster_session; /* base/session.h */
struct cairn_cluster_seat;    /* base/seat.h */
struct cairn_cluster_job;     /* base/job.h */
struct cairn_cluster_member;  /* base/member.h */
struct cairn_cluster_gather;  /* base/calls.h */
struct cairn_packed;
struct cairn_peer;
struct cairn_frame;

#endif

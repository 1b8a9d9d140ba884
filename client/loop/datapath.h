/* The data path of a session: the fabric, which devices it is opened on, and what is said where nothing comes
 * through, or nothing any more. Loop thread. */
#ifndef CAIRN_CLIENT_LOOP_DATAPATH_H
#define CAIRN_CLIENT_LOOP_DATAPATH_H

#include "proto/base/sentence.h"
#include "proto/loop/fabric_poll.h"
#include "proto/wire/messages.h"

struct session;
struct shard_link;

struct datapath {
    struct cairn_fabric *fabric; /* NULL: the shards' places are not known yet */
    struct cairn_fabric_poll poll;
    uint64_t asked_ms;               /* since when the coordinator is asked for the places */
    struct cairn_fabric_hub *hub;    /* borrowed; NULL but in tests: the data path is that one */
    char text[CAIRN_SENTENCE_BYTES]; /* how it was opened; constant once cairn_open is over */
};

/* Opens the fabric, unless its devices are to be chosen. */
cairn_status cairn_datapath_open(struct session *s, struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* While there is no fabric: chooses and opens, or fails. False: no shard is known yet, ask again. */
bool cairn_datapath_choose(struct session *s, const Cairn__Welcome *welcome,
                           struct cairn_sentence *why, cairn_status *status_out);
/* Every loan comes back by it, those of a shard that is stopped, too. */
void cairn_datapath_close(struct session *s);
/* Each tick: a shard that was never heard fails the job, with both ends' addresses. One that was heard, and
 * is awaited, and there by the coordinator's word, is said to be silent, until it is heard. */
void cairn_datapath_judge(struct shard_link *link, uint64_t now_ms);
/* A message of the shard came. */
void cairn_datapath_heard(struct shard_link *link);

#endif

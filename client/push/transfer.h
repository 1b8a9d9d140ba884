/* Puts and fetches. Loop thread. */
#ifndef CAIRN_CLIENT_PUSH_TRANSFER_H
#define CAIRN_CLIENT_PUSH_TRANSFER_H

#include <stdbool.h>

#include "proto/base/status.h"

struct cairn_chunk_header;
struct cairn_chunk_request;
struct cairn_fabric_message;
struct command;
struct job;
struct shard_link;

bool cairn_transfer_run(struct command *command);
/* The hand of all askers. */
cairn_status cairn_transfer_send(struct cairn_chunk_request *request) CAIRN_MUST_CHECK;
void cairn_transfer_on_answer(struct shard_link *link, const struct cairn_chunk_header *header);
void cairn_transfer_on_data(struct shard_link *link, const struct cairn_chunk_header *header,
                            struct cairn_fabric_message *message);
/* The connection is lost: what was asked over it and is unanswered waits to be sent again. */
void cairn_transfer_lost(struct shard_link *link);
/* Ends the fetches that their caller has canceled, as far as they were not answered. */
void cairn_transfer_cancel(struct job *job);
/* Ends every put and fetch of the job with `status`. */
void cairn_transfer_fail_all(struct job *job, cairn_status status);

#endif

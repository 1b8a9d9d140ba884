/* Is a folder the same storage on all hosts? The coordinator leaves a token in the root of the snapshots, and
 * a shard that joins looks whether it sees it, as the user that it will write as.
 *
 * The file .cairn-storage: the token as 16 hexadecimal digits and a newline. It is made once and stays, also
 * when another coordinator takes the folder over.
 *
 * All functions block, for as long as the storage hangs. Sentences name path, numbers and what to do. */
#ifndef CAIRN_WIRE_STORAGE_H
#define CAIRN_WIRE_STORAGE_H

#include <stdint.h>

#include "proto/wire/sentence.h"
#include "proto/wire/status.h"

#define CAIRN_STORAGE_FILE ".cairn-storage"

/* The token of the folder `root`, made if there is none; never 0. */
cairn_status cairn_storage_mark(const char *root, uint64_t *token_out,
                                struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* CAIRN_ERR_NOT_FOUND: this is not the folder that has the token. CAIRN_ERR_REFUSED: it is, and we cannot
 * write there. CAIRN_ERR_IO. */
cairn_status cairn_storage_check(const char *root, uint64_t token,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif

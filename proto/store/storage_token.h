/* Is a folder the same storage on all hosts? The coordinator leaves a token in the root of the snapshots, and
 * a shard that joins looks whether it sees it, as the user that it will write as.
 *
 * The file .cairn-storage: the token as 16 hexadecimal digits and a newline. It is made once, and stays when
 * another coordinator takes the folder over; its owner is the user that the coordinator has there. A second
 * line says whose the folder is: the identity of a coordinator's store, and for people, which cluster's. Two
 * clusters in one folder would write the same jobs, and each would take the other's snapshots for its own.
 *
 * All functions block, for as long as the storage hangs. Sentences name path, numbers and what to do. */
#ifndef CAIRN_STORE_STORAGE_TOKEN_H
#define CAIRN_STORE_STORAGE_TOKEN_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/base/status.h"

#define CAIRN_STORAGE_FILE ".cairn-storage"

enum { CAIRN_STORAGE_WHO_BYTES = 200 };
/* A cluster to which a folder may belong. */
struct cairn_storage_owner {
    uint64_t store;  /* the identity of its coordinator's store; 0: nobody, who owns nothing */
    uint64_t former; /* one that it had before: that one's folder is its own; 0: none */
    char who[CAIRN_STORAGE_WHO_BYTES]; /* a line for people: "cluster NAME, coordinator at HOST" */
};

/* The token of the folder `root`, made if there is none, and then as the owner's; never 0. */
cairn_status cairn_storage_mark(const char *root, const struct cairn_storage_owner *owner,
                                uint64_t *token_out, struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The folder has that token, and belongs to that cluster or to none. CAIRN_ERR_NOT_FOUND: this is not the
 * folder that has it. CAIRN_ERR_EXISTS: it is another cluster's. CAIRN_ERR_IO. Writes nothing. */
cairn_status cairn_storage_seen(const char *root, uint64_t token,
                                const struct cairn_storage_owner *owner,
                                struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* It belongs to that cluster from now on, whoever had it. */
cairn_status cairn_storage_take(const char *root, uint64_t token,
                                const struct cairn_storage_owner *owner,
                                struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* For a shard, whosever the folder is. As cairn_storage_seen; CAIRN_ERR_REFUSED: it is, and we cannot write
 * there, or not as the user that the coordinator is. It tries, with a file that it removes: a host's numbers
 * need not be the storage's. */
cairn_status cairn_storage_check(const char *root, uint64_t token,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* For the coordinator. As cairn_storage_seen; the token is its user's after it, and the folder, if it was
 * nobody's, its own. CAIRN_ERR_REFUSED: it cannot write there. */
cairn_status cairn_storage_own(const char *root, uint64_t token,
                               const struct cairn_storage_owner *owner,
                               struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* There is something in it besides the token. False, too, if it cannot be read. */
bool cairn_storage_is_used(const char *root);

#endif

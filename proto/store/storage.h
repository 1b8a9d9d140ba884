/* Storage behind a few functions: where the parts of snapshots lie, and how they get there. Callers name
 * a place by a location, a text that they do not take apart:
 *
 *   /var/lib/cairn/snapshots        a folder: on this host, or on NFS, Lustre, ... that is mounted here
 *   NAME:anything                   whatever the storage registered as NAME makes of it
 *
 * A name in a location is a path of at most three parts between slashes ("toy/step-000000000002-g1/model");
 * the callers have checked the parts. A storage must promise:
 *
 *   make, put_end, commit, remove   have happened when they returned CAIRN_OK, and stay so after a loss of
 *                                   power (remove: once `settle` has returned)
 *   put                             is not visible under its name before put_end, then it is complete; it
 *                                   never replaces another
 *   commit                          the same for a small file, at once; with `replace`, the old file stays
 *                                   until the new one is complete. Readers see one of the two
 *   list, open                      see what was made before they were called, from whichever host
 *   failure                         what a failed make, put or commit has made does not exist, but with
 *                                   `replace` one of the two files exists, complete; nothing is synced a
 *                                   second time after a failed sync, which may have lost the data
 *
 * A folder that hosts share must therefore have an atomic rename within a folder, an fsync of files
 * and folders that reaches the server, and names that a host sees when another has made them and
 * closed the file (NFS: close-to-open, no `async` export, no `nocto`; Lustre, GPFS and CephFS do by
 * default).
 *
 * No other code touches files by a location: for every need there is a function here.
 *
 * All functions block for as long as the storage hangs; call them from any thread. Statuses:
 * CAIRN_ERR_NO_SPACE (also quota and limits of a file's size), CAIRN_ERR_IO, CAIRN_ERR_EXISTS,
 * CAIRN_ERR_NOT_FOUND, CAIRN_ERR_CORRUPT (no regular file), CAIRN_ERR_NO_MEMORY. The sentence names
 * the step (open, write, fsync, rename, ...) and the path. */
#ifndef CAIRN_STORE_STORAGE_H
#define CAIRN_STORE_STORAGE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"

/* Set whatever the umask is. The group may read, because the user who reads snapshots need not be the one
 * who writes them. */
#define CAIRN_SNAPSHOT_FOLDER_MODE 0750
#define CAIRN_SNAPSHOT_FILE_MODE   0640

/* The alignment of writes and reads around the page cache: in memory, and in the file. */
#define CAIRN_STORAGE_ALIGN ((size_t)4096)

/* A part that is being written, and an open file. The storage's own fields follow. */
struct storage_put {
    const struct storage *storage;
    bool is_buffered; /* the storage refuses direct writes: they go through the page cache */
};
struct storage_file {
    const struct storage *storage;
    uint64_t bytes;   /* the file's size when it was opened */
    bool is_buffered; /* as above, for reads that were to be direct */
};

typedef void (*storage_name_fn)(void *context, const char *name, bool is_folder);

struct storage {
    const char *scheme; /* the NAME of its locations; "": paths */

    /* Returns the one name of a location, whichever of its names is given: for a folder an absolute path,
     * and without links if the folder exists. *out is the caller's to free. */
    cairn_status (*resolve)(const char *at, char **out, struct sentence *why);

    /* ---- folders ---- */
    /* Makes a folder; it may exist already, but CAIRN_ERR_EXISTS if `exclusive`. */
    cairn_status (*make)(const char *at, const char *path, bool exclusive, struct sentence *why);
    /* Passes each name in a folder to on_name, in no order. CAIRN_ERR_NOT_FOUND. */
    cairn_status (*list)(const char *at, const char *path, storage_name_fn on_name, void *context,
                         struct sentence *why);
    /* The size of a regular file; with path "": whether the location is a folder. Follows no link. */
    cairn_status (*stat)(const char *at, const char *path, uint64_t *bytes_out,
                         struct sentence *why);
    /* Removes a file, or an empty folder; *bytes_out: the file's size. CAIRN_ERR_NOT_FOUND. */
    cairn_status (*remove)(const char *at, const char *path, bool is_folder, uint64_t *bytes_out,
                           struct sentence *why);
    /* Makes sure that everything removed in a folder is gone for good. */
    cairn_status (*settle)(const char *at, const char *path, struct sentence *why);

    /* ---- parts: large, of a known size, written from several threads ---- */
    cairn_status (*put_begin)(const char *at, const char *path, uint64_t bytes,
                              struct storage_put **put_out, struct sentence *why);
    /* `offset` and `from` are multiples of CAIRN_STORAGE_ALIGN, and so is `count`, except for the last
     * bytes of the part: then the memory after them, up to the next multiple, may be read. */
    cairn_status (*put_write)(struct storage_put *put, uint64_t offset, const void *from,
                              size_t count, struct sentence *why);
    /* Ends the writing, which had this status; afterwards the part exists, or is gone. Frees `put`. */
    cairn_status (*put_end)(struct storage_put *put, cairn_status status, struct sentence *why);

    /* ---- small ones ---- */
    cairn_status (*commit)(const char *at, const char *path, const void *bytes, size_t count,
                           bool replace, struct sentence *why);

    /* ---- reading ---- */
    /* is_direct: reads bypass the page cache if possible; then offset and memory are aligned as
     * above, and there is room for the next multiple of `count`. */
    cairn_status (*open)(const char *at, const char *path, bool is_direct,
                         struct storage_file **file_out, struct sentence *why);
    /* *got_out is less than `count` only at the end of the file. May be called from several threads. */
    cairn_status (*read)(struct storage_file *file, uint64_t offset, void *to, size_t count,
                         size_t *got_out, struct sentence *why);
    void (*close)(struct storage_file *file);
};

/* Returns the storage of a location; it never changes. A location with a name that is not registered is
 * taken as a path, and nothing will be found there. */
const struct storage *storage_of(const char *location);
/* Adds a storage, borrowed, before any thread uses one. At most four. Tests add a storage in memory. */
void storage_register(const struct storage *storage);

/* The storage of paths. */
extern const struct storage storage_folder;

/* ==== storage token ==== */

/* Tells whether a folder is the same storage on all hosts. The coordinator leaves a token in the root of
 * the snapshots, and a shard that joins checks that it sees the token, as the user that it will write as.
 *
 * The file .cairn-storage has the token as 16 hexadecimal digits and a newline. It is made once, and stays
 * when another coordinator takes the folder over; its owner is the coordinator's user there. A second line
 * tells who owns the folder: the identity of a coordinator's store and, for people, the cluster. Two
 * clusters in one folder would write the same jobs, and each would take the other's snapshots for its own.
 *
 * All functions block for as long as the storage hangs. Sentences name path, numbers and what to do. */

#define CAIRN_STORAGE_FILE ".cairn-storage"

enum { CAIRN_STORAGE_WHO_BYTES = 200 };
/* A cluster to which a folder may belong. */
struct storage_owner {
    uint64_t store;  /* the identity of its coordinator's store; 0: nobody, who owns nothing */
    uint64_t former; /* an earlier identity, whose folder is its own, too; 0: none */
    char who[CAIRN_STORAGE_WHO_BYTES]; /* a line for people: "cluster NAME, coordinator at HOST" */
};

/* Returns the token of the folder `root`, never 0. If there is none, makes one that belongs to `owner`. */
cairn_status storage_mark(const char *root, const struct storage_owner *owner, uint64_t *token_out,
                          struct sentence *why) CAIRN_MUST_CHECK;
/* Checks that the folder has that token, and belongs to that cluster or to none. CAIRN_ERR_NOT_FOUND: this
 * is not the folder with the token. CAIRN_ERR_EXISTS: it is another cluster's. CAIRN_ERR_IO. Writes
 * nothing. */
cairn_status storage_seen(const char *root, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why) CAIRN_MUST_CHECK;
/* Makes the folder belong to that cluster, whoever owned it before. */
cairn_status storage_take(const char *root, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why) CAIRN_MUST_CHECK;
/* For a shard, whichever cluster owns the folder. Statuses as storage_seen; CAIRN_ERR_REFUSED: it is the
 * right folder, but we cannot write there, or not as the coordinator's user. It tries with a file that it
 * removes, because a host's user numbers need not be the storage's. */
cairn_status storage_check(const char *root, uint64_t token, struct sentence *why) CAIRN_MUST_CHECK;
/* For the coordinator. Statuses as storage_seen; afterwards the token's file belongs to its user, and the
 * folder, if it was nobody's, to its cluster. CAIRN_ERR_REFUSED: it cannot write there. */
cairn_status storage_own(const char *root, uint64_t token, const struct storage_owner *owner,
                         struct sentence *why) CAIRN_MUST_CHECK;
/* True if the folder has a name that does not begin with a dot. False, too, if it cannot be read. */
bool storage_is_used(const char *root);

/* ==== names ==== */

/* The names in a folder of storage, in order. */

struct stored_names {
    char **
        list; /* owned, [count]: numbers in names are compared as numbers ("...-g1-10" after "...-g1-9") */
    size_t count, capacity;
    cairn_status status;
};
/* Lists them as a storage's list does (above); release them, whatever it returned. */
cairn_status names_list(const char *at, const char *path, struct stored_names *out,
                        struct sentence *why) CAIRN_MUST_CHECK;
void names_release(struct stored_names *names);

/* ==== io thread ==== */

/* Threads and memory for code that writes and reads blocks around the page cache. */

/* Starts a thread that takes no signals, with the priorities of the caller. `name`: at most 15 bytes. */
bool io_thread_start(pthread_t *thread_out, const char *name, void *(*run)(void *context),
                     void *context);
/* Allocates whole pages for a block; NULL: no memory. */
void *io_block_new(size_t bytes);
void io_block_free(void *block, size_t bytes);

#endif

/* Storage for the parts of snapshots, behind a few functions. Callers name a place by its location, which
 * is a text that they do not take apart:
 *
 *   /var/lib/cairn/snapshots        a folder, on this host or on a mounted file system (NFS, Lustre, ...)
 *   NAME:anything                   a place in the storage that is registered as NAME
 *
 * A name in a location is a path of at most three parts between slashes ("toy/step-000000000002-g1/model");
 * the callers have checked the parts. A storage must promise:
 *
 *   make, put_end, commit, remove   are done when they have returned CAIRN_OK, and survive a loss of power
 *                                   (remove: only after `settle` has returned)
 *   put                             makes a part that is not visible under its name before put_end, and
 *                                   complete from then on. It never replaces another part
 *   commit                          makes a small file at once. With `replace`, the old file stays until
 *                                   the new one is complete, and readers see one of the two
 *   list, open                      see everything that any host made before they were called
 *   failure                         a failed make, put or commit leaves nothing behind, except that with
 *                                   `replace` one of the two files exists, and is complete. After a failed
 *                                   sync nothing is synced a second time, because the failed sync may have
 *                                   lost the data
 *
 * A folder that hosts share must therefore have an atomic rename within a folder, an fsync of files and
 * folders that reaches the server, and names that every host sees as soon as one host has made them and
 * closed the file. For NFS this means close-to-open, no `async` export, and no `nocto`. Lustre, GPFS and
 * CephFS behave like this by default.
 *
 * No other code reads or writes files by a location, because there is a function here for every need.
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

/* These modes are set whatever the umask is. The group may read, because the user who reads snapshots may
 * be another than the one who writes them. */
#define CAIRN_SNAPSHOT_FOLDER_MODE 0750
#define CAIRN_SNAPSHOT_FILE_MODE   0640

/* The alignment, in memory and in the file, of writes and reads that bypass the page cache. */
#define CAIRN_STORAGE_ALIGN ((size_t)4096)

/* storage_put: a part that is being written. storage_file: an open file. A storage appends its own fields
 * to both. */
struct storage_put {
    const struct storage *storage;
    /* true: the storage refuses direct writes, so they go through the page cache */
    bool is_buffered;
};
struct storage_file {
    const struct storage *storage;
    uint64_t bytes; /* the file's size when it was opened */
    /* true: the storage refuses direct reads, so they go through the page cache */
    bool is_buffered;
};

typedef void (*storage_name_fn)(void *context, const char *name, bool is_folder);

struct storage {
    const char *scheme; /* the NAME with which its locations begin; "": its locations are paths */

    /* Sets *out to the canonical name of a location, whichever of its names is given. For a folder this is
     * an absolute path, without links if the folder exists. The caller frees *out. */
    cairn_status (*resolve)(const char *at, char **out, struct sentence *why);

    /* ---- folders ---- */
    /* Makes a folder. If it exists already: CAIRN_OK, or, with `exclusive`, CAIRN_ERR_EXISTS. */
    cairn_status (*make)(const char *at, const char *path, bool exclusive, struct sentence *why);
    /* Passes each name in a folder to on_name, in any order. CAIRN_ERR_NOT_FOUND. */
    cairn_status (*list)(const char *at, const char *path, storage_name_fn on_name, void *context,
                         struct sentence *why);
    /* Sets *bytes_out to the size of a regular file. With path "", only checks that the location is a
     * folder. Follows no link. */
    cairn_status (*stat)(const char *at, const char *path, uint64_t *bytes_out,
                         struct sentence *why);
    /* Removes a file, or an empty folder. Sets *bytes_out to the file's size. CAIRN_ERR_NOT_FOUND. */
    cairn_status (*remove)(const char *at, const char *path, bool is_folder, uint64_t *bytes_out,
                           struct sentence *why);
    /* Makes sure that everything that was removed in a folder stays removed. */
    cairn_status (*settle)(const char *at, const char *path, struct sentence *why);

    /* ---- parts: large, of a known size, written from several threads ---- */
    cairn_status (*put_begin)(const char *at, const char *path, uint64_t bytes,
                              struct storage_put **put_out, struct sentence *why);
    /* `offset` and `from` are multiples of CAIRN_STORAGE_ALIGN. `count` is one, too, except for the last
     * bytes of the part. After these bytes, the memory up to the next multiple may be read. */
    cairn_status (*put_write)(struct storage_put *put, uint64_t offset, const void *from,
                              size_t count, struct sentence *why);
    /* Ends the writing. `status` tells how the writing went. After this the part exists, or is gone. Frees
     * `put`. */
    cairn_status (*put_end)(struct storage_put *put, cairn_status status, struct sentence *why);

    /* ---- small ones ---- */
    cairn_status (*commit)(const char *at, const char *path, const void *bytes, size_t count,
                           bool replace, struct sentence *why);

    /* ---- reading ---- */
    /* With `is_direct`, reads bypass the page cache if possible. In that case the offset and the memory of
     * each read must be aligned as above, and `to` must have room for `count`, rounded up to the next
     * multiple. */
    cairn_status (*open)(const char *at, const char *path, bool is_direct,
                         struct storage_file **file_out, struct sentence *why);
    /* Sets *got_out, which is less than `count` only at the end of the file. Several threads may read at
     * the same time. */
    cairn_status (*read)(struct storage_file *file, uint64_t offset, void *to, size_t count,
                         size_t *got_out, struct sentence *why);
    void (*close)(struct storage_file *file);
};

/* Returns the storage of a location. A location always has the same storage. If its NAME is not registered,
 * the location is taken as a path, where nothing will be found. */
const struct storage *storage_of(const char *location);
/* Adds a storage, which is borrowed. Must be called before any thread uses a storage, and for at most four
 * storages. Tests add a storage in memory. */
void storage_register(const struct storage *storage);

/* The storage of paths. */
extern const struct storage storage_folder;

/* ==== storage token ==== */

/* The token tells whether a folder is the same storage on all hosts. The coordinator leaves a token in the
 * root of the snapshots. Each shard that joins checks that it sees this token, as the user as which it will
 * write.
 *
 * The file .cairn-storage has the token as 16 hexadecimal digits and a newline. The token is made only
 * once, and stays the same when another coordinator takes over the folder. The file belongs to the user as
 * which the coordinator runs. A second line in it tells who owns the folder: the identity of a
 * coordinator's store and, for people, the cluster. If two clusters had the same folder, they would write
 * the same jobs, and each would take the other's snapshots for its own.
 *
 * All functions block for as long as the storage hangs. Sentences give the path, the numbers, and what to
 * do. */

#define CAIRN_STORAGE_FILE ".cairn-storage"

enum { CAIRN_STORAGE_WHO_BYTES = 200 };
/* A cluster to which a folder may belong. */
struct storage_owner {
    /* the identity of the store of the cluster's coordinator; 0: there is no owner */
    uint64_t store;
    /* an earlier identity; a folder that belongs to it is the cluster's, too; 0: none */
    uint64_t former;
    char who[CAIRN_STORAGE_WHO_BYTES]; /* a line for people: "cluster NAME, coordinator at HOST" */
};

/* Sets *token_out to the token of the folder `root`, which is never 0. If the folder has no token, makes
 * one, and makes the folder belong to `owner`. */
cairn_status storage_mark(const char *root, const struct storage_owner *owner, uint64_t *token_out,
                          struct sentence *why) CAIRN_MUST_CHECK;
/* Checks that the folder has that token, and belongs to that cluster or to none. Writes nothing.
 * CAIRN_ERR_NOT_FOUND: this folder does not have the token. CAIRN_ERR_EXISTS: the folder belongs to another
 * cluster. CAIRN_ERR_IO. */
cairn_status storage_seen(const char *root, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why) CAIRN_MUST_CHECK;
/* Makes the folder belong to that cluster, whoever owned it before. */
cairn_status storage_take(const char *root, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why) CAIRN_MUST_CHECK;
/* For a shard: checks that the folder has the token, and that we can write there as the coordinator's user.
 * Does not check who owns the folder. Makes a file and removes it, because the storage may have other user
 * numbers than this host. CAIRN_ERR_REFUSED: the folder is the right one, but we cannot write there, or
 * write as another user. Other statuses are as for storage_seen. */
cairn_status storage_check(const char *root, uint64_t token, struct sentence *why) CAIRN_MUST_CHECK;
/* For the coordinator: does the checks of storage_seen. After that, the token's file belongs to the
 * coordinator's user, and a folder that had no owner belongs to the cluster. CAIRN_ERR_REFUSED: the
 * coordinator cannot write there. Other statuses are as for storage_seen. */
cairn_status storage_own(const char *root, uint64_t token, const struct storage_owner *owner,
                         struct sentence *why) CAIRN_MUST_CHECK;
/* Returns true if the folder contains a name that does not begin with a dot. Returns false if there is
 * none, or the folder cannot be read. */
bool storage_is_used(const char *root);

/* ==== names ==== */

/* The names in a folder of storage, in order. */

struct stored_names {
    /* owned: [count], sorted; numbers in names are compared as numbers ("...-g1-10" after "...-g1-9") */
    char **list;
    size_t count, capacity;
    cairn_status status;
};
/* Lists the names as `list` of the storage does (above). `out` must be released whatever the function
 * returned. */
cairn_status names_list(const char *at, const char *path, struct stored_names *out,
                        struct sentence *why) CAIRN_MUST_CHECK;
void names_release(struct stored_names *names);

/* ==== io block ==== */

/* Memory for code whose writes and reads of blocks bypass the page cache. */

/* Allocates whole pages for a block. NULL: no memory. */
void *io_block_new(size_t bytes);
void io_block_free(void *block, size_t bytes);

#endif

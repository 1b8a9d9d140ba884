/* Storage behind a few functions: where the parts of snapshots lie, and how they get there. For the
 * callers a place is a location, a text that they do not take apart:
 *
 *   /var/lib/cairn/snapshots        a folder: of this host, or of NFS, Lustre, ... that is mounted here
 *   NAME:anything                   what the storage that is registered as NAME makes of it
 *
 * A name in a location is a path of at most three parts between slashes ("toy/step-000000000002-g1/model");
 * the callers have judged the parts. A storage must promise:
 *
 *   make, put_end, commit, remove   has happened when it returned CAIRN_OK, and stays so after a loss of
 *                                   power (remove: once `settle` has returned)
 *   put                             is not there under its name before put_end, then whole; never over
 *                                   another
 *   commit                          the same of a small one, at once; with `replace`, the one before it
 *                                   stays until the new one is there whole. Readers see one of the two
 *   list, open                      see what was made before they were called, from whichever host
 *   failure                         what a failed make, put or commit has made is not there, but with
 *                                   `replace` one of the two is, whole; nothing is synced a second time
 *                                   after a failed sync, which may have lost the data
 *
 * A folder that hosts share must therefore have an atomic rename within a folder, an fsync of files
 * and folders that reaches the server, and names that a host sees when another has made them and
 * closed the file (NFS: close-to-open, no `async` export, no `nocto`; Lustre, GPFS and CephFS do by
 * default).
 *
 * Nobody else touches files by a location: for every need there is a function here.
 *
 * All functions block, for as long as the storage hangs; call them from any thread. Statuses:
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

/* Whatever the umask. The group's, too: whoever reads snapshots need not be who writes them. */
#define CAIRN_SNAPSHOT_FOLDER_MODE 0750
#define CAIRN_SNAPSHOT_FILE_MODE   0640

/* The alignment of writes and reads around the page cache: in memory, and in the file. */
#define CAIRN_STORAGE_ALIGN ((size_t)4096)

/* A part that is being written; a file that is open. The storage's own fields follow. */
struct storage_put {
    const struct storage *storage;
    bool is_buffered; /* the storage refuses direct writes: they go through the page cache */
};
struct storage_file {
    const struct storage *storage;
    uint64_t bytes;   /* of all of it, when it was opened */
    bool is_buffered; /* as above, of reads that were to be direct */
};

typedef void (*storage_name_fn)(void *context, const char *name, bool is_folder);

struct storage {
    const char *scheme; /* the NAME of its locations; "": paths */

    /* The one name of a location, whichever of its names is given: of a folder absolute, and without links if
     * it is there. *out is the caller's to free. */
    cairn_status (*resolve)(const char *at, char **out, struct sentence *why);

    /* ---- folders ---- */
    /* Makes a folder; one that is there is fine, but CAIRN_ERR_EXISTS if `exclusive`. */
    cairn_status (*make)(const char *at, const char *path, bool exclusive, struct sentence *why);
    /* Gives each name in a folder, in no order. CAIRN_ERR_NOT_FOUND. */
    cairn_status (*list)(const char *at, const char *path, storage_name_fn on_name, void *context,
                         struct sentence *why);
    /* The size of a regular file; of path "": whether the location is a folder. Follows no link. */
    cairn_status (*stat)(const char *at, const char *path, uint64_t *bytes_out,
                         struct sentence *why);
    /* Removes a file, or an empty folder; *bytes_out: of the file. CAIRN_ERR_NOT_FOUND. */
    cairn_status (*remove)(const char *at, const char *path, bool is_folder, uint64_t *bytes_out,
                           struct sentence *why);
    /* Makes sure that all that was removed in a folder is gone for good. */
    cairn_status (*settle)(const char *at, const char *path, struct sentence *why);

    /* ---- parts: large, of a known size, written from several threads ---- */
    cairn_status (*put_begin)(const char *at, const char *path, uint64_t bytes,
                              struct storage_put **put_out, struct sentence *why);
    /* `offset` and `from` are multiples of CAIRN_STORAGE_ALIGN, and so is `count`, but of the last bytes of
     * the part: what follows them in memory up to the next multiple may be read. */
    cairn_status (*put_write)(struct storage_put *put, uint64_t offset, const void *from,
                              size_t count, struct sentence *why);
    /* All is written, with this status; the part is there, or gone. Frees it. */
    cairn_status (*put_end)(struct storage_put *put, cairn_status status, struct sentence *why);

    /* ---- small ones ---- */
    cairn_status (*commit)(const char *at, const char *path, const void *bytes, size_t count,
                           bool replace, struct sentence *why);

    /* ---- reading ---- */
    /* is_direct: reads go past the page cache where that is possible, with offset and memory aligned as
     * above, and room for the next multiple of `count`. */
    cairn_status (*open)(const char *at, const char *path, bool is_direct,
                         struct storage_file **file_out, struct sentence *why);
    /* *got_out is less than `count` at the end of the file alone. From several threads. */
    cairn_status (*read)(struct storage_file *file, uint64_t offset, void *to, size_t count,
                         size_t *got_out, struct sentence *why);
    void (*close)(struct storage_file *file);
};

/* The storage of a location; constant. A location whose name nobody has registered is taken as a
 * path, and nothing is there. */
const struct storage *storage_of(const char *location);
/* Adds one, before any thread uses one; borrowed. At most four. Tests add a storage in memory. */
void storage_register(const struct storage *storage);

/* The storage of paths. */
extern const struct storage storage_folder;

/* ==== storage token ==== */

/* Is a folder the same storage on all hosts? The coordinator leaves a token in the root of the snapshots, and
 * a shard that joins looks whether it sees it, as the user that it will write as.
 *
 * The file .cairn-storage: the token as 16 hexadecimal digits and a newline. It is made once, and stays when
 * another coordinator takes the folder over; its owner is the user that the coordinator has there. A second
 * line says whose the folder is: the identity of a coordinator's store, and for people, which cluster's. Two
 * clusters in one folder would write the same jobs, and each would take the other's snapshots for its own.
 *
 * All functions block, for as long as the storage hangs. Sentences name path, numbers and what to do. */

#define CAIRN_STORAGE_FILE ".cairn-storage"

enum { CAIRN_STORAGE_WHO_BYTES = 200 };
/* A cluster to which a folder may belong. */
struct storage_owner {
    uint64_t store;  /* the identity of its coordinator's store; 0: nobody, who owns nothing */
    uint64_t former; /* one that it had before: that one's folder is its own; 0: none */
    char who[CAIRN_STORAGE_WHO_BYTES]; /* a line for people: "cluster NAME, coordinator at HOST" */
};

/* The token of the folder `root`, made if there is none, and then as the owner's; never 0. */
cairn_status storage_mark(const char *root, const struct storage_owner *owner, uint64_t *token_out,
                          struct sentence *why) CAIRN_MUST_CHECK;
/* The folder has that token, and belongs to that cluster or to none. CAIRN_ERR_NOT_FOUND: this is not the
 * folder that has it. CAIRN_ERR_EXISTS: it is another cluster's. CAIRN_ERR_IO. Writes nothing. */
cairn_status storage_seen(const char *root, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why) CAIRN_MUST_CHECK;
/* It belongs to that cluster from now on, whoever had it. */
cairn_status storage_take(const char *root, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why) CAIRN_MUST_CHECK;
/* For a shard, whosever the folder is. As storage_seen; CAIRN_ERR_REFUSED: it is, and we cannot write
 * there, or not as the user that the coordinator is. It tries, with a file that it removes: a host's numbers
 * need not be the storage's. */
cairn_status storage_check(const char *root, uint64_t token, struct sentence *why) CAIRN_MUST_CHECK;
/* For the coordinator. As storage_seen; the token is its user's after it, and the folder, if it was
 * nobody's, its own. CAIRN_ERR_REFUSED: it cannot write there. */
cairn_status storage_own(const char *root, uint64_t token, const struct storage_owner *owner,
                         struct sentence *why) CAIRN_MUST_CHECK;
/* There is something in it besides the token. False, too, if it cannot be read. */
bool storage_is_used(const char *root);

/* ==== folder ==== */

/* For the files of the storage of folders. Every step below a location follows no symbolic link. */

/* ==== names ==== */

/* The names in a folder of storage, in order. */

struct stored_names {
    char **
        list; /* owned, [count]: numbers in names are compared as numbers ("...-g1-10" after "...-g1-9") */
    size_t count, capacity;
    cairn_status status;
};
/* As a storage's list (above); release it, whatever it returned. */
cairn_status names_list(const char *at, const char *path, struct stored_names *out,
                        struct sentence *why) CAIRN_MUST_CHECK;
void names_release(struct stored_names *names);

/* ==== io thread ==== */

/* Threads and memory of those who write and read blocks around the page cache. */

/* Starts a thread that takes no signals, with the priorities of who calls. `name`: at most 15 bytes. */
bool io_thread_start(pthread_t *thread_out, const char *name, void *(*run)(void *context),
                     void *context);
/* Pages of its own; NULL: no memory. */
void *io_block_new(size_t bytes);
void io_block_free(void *block, size_t bytes);

#endif

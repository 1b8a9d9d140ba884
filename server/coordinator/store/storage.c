#include "server/coordinator/store/storage.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/utsname.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "proto/store/storage_token.h"
#include "server/base/durable.h"
#include "server/base/log.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/store/events.h"
#include "server/coordinator/store/store.h"

/* ---- on a thread ---- */

static cairn_status fail_other(const char *path, uint64_t token, struct cairn_sentence *why)
{
    return cairn_fail(
        why, CAIRN_ERR_IO,
        "the folder %s is not the one that snapshots were written to; is the storage mounted? "
        "Mount it, or take this folder from now on: mkdir -p %s && echo %016" PRIx64
        " > %s/" CAIRN_STORAGE_FILE,
        path, path, token, path);
}

static cairn_status explain(cairn_status status, const char *path, uint64_t token,
                            struct cairn_sentence *why)
{
    if (status == CAIRN_ERR_NOT_FOUND) return fail_other(path, token, why);
    if (status != CAIRN_ERR_EXISTS) return status;
    cairn_sentence_add(why,
                       "; give this one a snapshots.path of its own. If the store of that one is "
                       "lost, and this is its successor, `cairn cluster adopt` takes the folder "
                       "with the jobs; if that cluster is gone for good, start once with --set "
                       "snapshots.foreign=yes, which takes it from whoever has it");
    return CAIRN_ERR_REFUSED;
}

static cairn_status judge(const char *path, uint64_t token, const struct cairn_storage_owner *owner,
                          struct cairn_sentence *why)
{
    return explain(cairn_storage_own(path, token, owner, why), path, token, why);
}

cairn_status cairn_cluster_storage_seen(const struct cairn_cluster *cluster,
                                        struct cairn_sentence *why)
{
    const char *path = cluster->storage.path;
    struct cairn_sentence said;
    uint64_t bytes;
    const uint64_t token = cluster->storage.token;
    if (token != 0) {
        const struct cairn_storage_owner owner = { .store = cluster->storage.store,
                                                   .former = cluster->storage.former };
        return explain(cairn_storage_seen(path, token, &owner, why), path, token, why);
    }
    if (cairn_storage_of(path)->stat(path, "", &bytes, &said) == CAIRN_OK) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_IO, "snapshots.path %s: %s", path, said.text);
}

/* ---- on the loop ---- */

static void on_said(struct cairn_storage_watch *watch)
{
    const struct cairn_cluster *cluster = watch->context;
    if (watch->said.text[0] != '\0')
        cairn_log_warn("no snapshot can be saved: %s", watch->said.text);
    else
        cairn_log_info("snapshots go to %s", cluster->storage.path);
}

static void on_remembered(const struct cairn_cluster_saved *saved)
{
    if (saved->status == CAIRN_OK) return;
    saved->cluster->storage.remembered = false; // the next snapshot tries again
    cairn_log_warn("which folder snapshots go to could not be stored: %s", saved->why);
}

void cairn_cluster_storage_used(struct cairn_cluster *cluster)
{
    const struct cairn_stored_meta row = { .storage = cluster->storage.token };
    struct cairn_sentence why;
    if (cluster->storage.remembered || cluster->storage.token == 0) return;
    cluster->storage.remembered = cairn_cluster_save(cluster, CAIRN_STORE_STORAGE, &row, 1, 0,
                                                     on_remembered, &why) == CAIRN_OK;
}

void cairn_cluster_storage_adopted(struct cairn_cluster *cluster, uint64_t former)
{
    struct cairn_storage_owner *owner = &cluster->storage.watch.owner;
    cluster->storage.former = owner->former = former;
    cluster->storage.store = owner->store = cluster->identity.id.store;
    // The last complaint about the folder was for another owner, and would refuse the first
    // snapshot.
    cluster->storage.watch.said.text[0] = '\0';
    cairn_storage_watch_doubt(&cluster->storage.watch);
}

/* ---- at the start ---- */

static void name_owner(const struct cairn_cluster *cluster, struct cairn_storage_owner *owner)
{
    struct utsname host;
    *owner = (struct cairn_storage_owner) { .store = cairn_store_meta(cluster->store)->identity };
    snprintf(owner->who, sizeof owner->who, "cluster %.100s, coordinator at %.64s",
             cluster->options->name, uname(&host) == 0 ? host.nodename : "a host without a name");
}

/* Takes a folder that is another cluster's, because the operator says so (snapshots.foreign). */
static cairn_status take_over(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    const struct cairn_storage_owner *owner = &cluster->storage.watch.owner;
    const char *path = cluster->storage.path;
    const cairn_status seen = cairn_storage_seen(path, cluster->storage.token, owner, why);
    if (seen != CAIRN_ERR_EXISTS) return CAIRN_OK; // ours; or the watch will say what is wrong
    cairn_log_warn("%s: this one takes it, as snapshots.foreign says", why->text);
    cairn_cluster_event_note(cluster, CAIRN_EVENT_STORAGE, NULL, NULL,
                             "%s: this one has taken it, as snapshots.foreign says", why->text);
    return cairn_storage_take(path, cluster->storage.token, owner, why);
}

/* A path leads to another place where nothing is mounted; what a storage makes of its own names does not, and
 * has no token. */
static bool is_path(const char *location)
{
    return cairn_storage_of(location) == &cairn_storage_folder;
}

static cairn_status make_root(const char *location, struct cairn_sentence *why)
{
    return is_path(location) ? cairn_durable_folder(location, CAIRN_SNAPSHOT_FOLDER_MODE, why)
                             : cairn_storage_of(location)->make(location, "", false, why);
}

/* The token of a folder that the store does not remember; 0: without it the shards are not asked, and what
 * is wrong with the folder shows at the first snapshot. */
static cairn_status begin_with(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    const char *path = cluster->storage.path;
    struct cairn_sentence no_mark;
    if (!is_path(path)) return CAIRN_OK;
    if (cairn_storage_mark(path, &cluster->storage.watch.owner, &cluster->storage.token,
                           &no_mark) != CAIRN_OK) {
        cairn_log_warn("whether the shards see the snapshots' storage is not known: %s",
                       no_mark.text);
        return CAIRN_OK;
    }
    struct cairn_sentence other;
    if (cluster->options->snapshots_foreign && take_over(cluster, why) != CAIRN_OK)
        return CAIRN_ERR_IO;
    if (!cairn_storage_is_used(path) || cairn_cluster_storage_seen(cluster, &other) != CAIRN_OK)
        return CAIRN_OK;
    cluster->storage.remembered = true;
    const struct cairn_stored_meta row = { .storage = cluster->storage.token };
    return cairn_store_write(cluster->store, CAIRN_STORE_STORAGE, &row, 1, why);
}

cairn_status cairn_cluster_storage_open(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    const char *path = cluster->options->snapshots_path;
    cluster->storage.watch =
        (struct cairn_storage_watch) { .judge = judge, .on_said = on_said, .context = cluster };
    name_owner(cluster, &cluster->storage.watch.owner);
    cluster->storage.store = cluster->storage.watch.owner.store;
    cluster->storage.token = cairn_store_meta(cluster->store)->storage;
    cluster->storage.remembered = cluster->storage.token != 0;
    cairn_status status = cluster->storage.remembered ? CAIRN_OK : make_root(path, why);
    if (status == CAIRN_OK)
        status = cairn_storage_of(path)->resolve(path, &cluster->storage.path, why);
    if (status == CAIRN_OK && !cluster->storage.remembered)
        status = begin_with(cluster, why);
    else if (status == CAIRN_OK && cluster->options->snapshots_foreign)
        status = take_over(cluster, why);
    if (status == CAIRN_OK)
        status = cairn_storage_watch_open(&cluster->storage.watch, cluster->loop, why);
    if (status == CAIRN_OK)
        cairn_storage_watch_told(&cluster->storage.watch, cluster->storage.path,
                                 cluster->storage.token);
    return status;
}

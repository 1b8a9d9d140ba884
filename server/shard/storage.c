#include "server/shard/storage.h"

#include <stdlib.h>
#include <string.h>

#include "proto/wire/storage.h"
#include "server/shard/shard.h"

#define AGAIN_MS 2000 /* after something was wrong */
#define HANGS_MS 3000 /* then it is said */

cairn_status cairn_shard_storage_open(struct cairn_shard *shard, struct cairn_sentence *why)
{
    return cairn_pool_open(shard->loop, "cairn-storage", 1, NULL, &shard->storage.thread, why);
}

bool cairn_shard_storage_close(struct cairn_shard *shard, void (*on_closed)(void *context))
{
    if (shard->storage.thread == NULL) return false;
    cairn_pool_close(shard->storage.thread, on_closed, shard);
    return true;
}

void cairn_shard_storage_free(struct cairn_shard *shard)
{
    free(shard->storage.path);
    free(shard->storage.looked_path);
}

static struct cairn_shard_storage *storage_of(struct cairn_task *task)
{
    return (struct cairn_shard_storage *)((char *)task -
                                          offsetof(struct cairn_shard_storage, task));
}

static void look(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_shard_storage *storage = storage_of(task);
    (void)item, (void)thread;
    storage->found = cairn_storage_check(storage->looked_path, storage->looked_token,
                                         &storage->found_why);
}

static void say(struct cairn_shard *shard, const struct cairn_sentence *why)
{
    struct cairn_shard_storage *storage = &shard->storage;
    if (strcmp(storage->said.text, why->text) == 0) return;
    storage->said = *why;
    if (why->text[0] != '\0')
        cairn_log_warn("no snapshot can be saved by this shard: %s", why->text);
    else
        cairn_log_info("snapshots go to %s", storage->path);
    cairn_session_beat(shard);
}

static void look_again(struct cairn_shard *shard);

static void on_looked(struct cairn_task *task)
{
    struct cairn_shard_storage *storage = storage_of(task);
    struct cairn_shard *shard = (struct cairn_shard *)((char *)storage -
                                                       offsetof(struct cairn_shard, storage));
    storage->is_looking = false;
    storage->since_ms = uv_now(shard->loop);
    if (storage->path == NULL) return;
    if (storage->looked_token != storage->token ||
        strcmp(storage->path, storage->looked_path) != 0) { // told anew meanwhile
        look_again(shard);
        return;
    }
    struct cairn_sentence why = { "" };
    if (storage->found != CAIRN_OK)
        cairn_sentence_set(&why,
                           "%s; mount the coordinator's snapshots.path at that path, for one user",
                           storage->found_why.text);
    say(shard, &why);
}

static void look_again(struct cairn_shard *shard)
{
    struct cairn_shard_storage *storage = &shard->storage;
    char *path = strdup(storage->path);
    if (path == NULL) return; // with the next heartbeat
    free(storage->looked_path);
    storage->looked_path = path;
    storage->looked_token = storage->token;
    storage->is_looking = true;
    storage->since_ms = uv_now(shard->loop);
    storage->task = (struct cairn_task) { .run = look, .done = on_looked, .item_count = 1 };
    cairn_pool_submit(storage->thread, &storage->task);
}

void cairn_shard_storage_told(struct cairn_shard *shard, const char *path, uint64_t token)
{
    struct cairn_shard_storage *storage = &shard->storage;
    free(storage->path);
    storage->path = token != 0 && path[0] == '/' ? strdup(path) : NULL;
    storage->token = token;
    storage->said.text[0] = '\0';
    if (storage->path != NULL && !storage->is_looking) look_again(shard);
}

static void say_that_it_hangs(struct cairn_shard *shard, uint64_t ms)
{
    struct cairn_sentence why;
    cairn_sentence_set(&why,
                       "%s has not answered for %u s or more: its storage hangs; see to the mount",
                       shard->storage.path, (unsigned)(HANGS_MS / 1000));
    if (ms >= HANGS_MS) say(shard, &why);
}

void cairn_shard_storage_tick(struct cairn_shard *shard)
{
    struct cairn_shard_storage *storage = &shard->storage;
    const uint64_t ms = uv_now(shard->loop) - storage->since_ms;
    if (storage->path == NULL) return;
    if (storage->is_looking)
        say_that_it_hangs(shard, ms);
    else if (storage->said.text[0] != '\0' && ms >= AGAIN_MS)
        look_again(shard);
}

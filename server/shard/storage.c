#include "server/shard/storage.h"

#include <stdlib.h>
#include <string.h>

#include "proto/wire/storage.h"
#include "server/shard/shard.h"

#define AGAIN_MS 2000 /* after something was wrong */
#define HANGS_MS 3000 /* then it is said */
#define CLOSE_MS 500  /* then the thread is left behind */

/* Of memory of its own: the storage may hang for longer than the shard lives. */
struct cairn_storage_look {
    struct cairn_task task;
    struct cairn_shard *shard; /* borrowed; the loop's */
    char *path;                /* owned */
    uint64_t token;
    cairn_status found;
    struct cairn_sentence why;
};

cairn_status cairn_shard_storage_open(struct cairn_shard *shard, struct cairn_sentence *why)
{
    return cairn_pool_open(shard->loop, "cairn-storage", 1, NULL, &shard->storage.thread, why);
}

bool cairn_shard_storage_close(struct cairn_shard *shard, void (*on_closed)(void *context))
{
    struct cairn_shard_storage *storage = &shard->storage;
    if (storage->thread == NULL) return false;
    if (!cairn_pool_close_within(storage->thread, CLOSE_MS, on_closed, shard)) storage->look = NULL;
    return true;
}

static void free_look(struct cairn_storage_look *look)
{
    if (look == NULL) return;
    free(look->path);
    free(look);
}

void cairn_shard_storage_free(struct cairn_shard *shard)
{
    free(shard->storage.path);
    free_look(shard->storage.look);
}

static void run_look(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_storage_look *look = (struct cairn_storage_look *)task;
    (void)item, (void)thread;
    look->found = cairn_storage_check(look->path, look->token, &look->why);
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
    const struct cairn_storage_look *look = (const struct cairn_storage_look *)task;
    struct cairn_shard *shard = look->shard;
    struct cairn_shard_storage *storage = &shard->storage;
    storage->is_looking = false;
    storage->since_ms = uv_now(shard->loop);
    if (storage->path == NULL) return;
    if (look->token != storage->token || strcmp(storage->path, look->path) != 0) {
        look_again(shard); // it was told anew meanwhile
        return;
    }
    struct cairn_sentence why = { "" };
    if (look->found != CAIRN_OK)
        cairn_sentence_set(&why,
                           "%s; mount the coordinator's snapshots.path at that path, for one user",
                           look->why.text);
    say(shard, &why);
}

static void look_again(struct cairn_shard *shard)
{
    struct cairn_shard_storage *storage = &shard->storage;
    struct cairn_storage_look *next = calloc(1, sizeof *next);
    char *path = strdup(storage->path);
    if (next == NULL || path == NULL) {
        free(next);
        free(path);
        return; // it is not looked at; a snapshot says what is wrong
    }
    *next = (struct cairn_storage_look) {
        .task = { .run = run_look, .done = on_looked, .item_count = 1 },
        .shard = shard,
        .path = path,
        .token = storage->token,
    };
    free_look(storage->look);
    storage->look = next;
    storage->is_looking = true;
    storage->since_ms = uv_now(shard->loop);
    cairn_pool_submit(storage->thread, &next->task);
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

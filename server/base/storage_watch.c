#include "server/base/storage_watch.h"

#include <stdlib.h>
#include <string.h>

#define AGAIN_MS 2000 /* after something was wrong */
#define HANGS_MS 3000 /* then it is said */
#define CLOSE_MS 500  /* then the thread is left behind */

/* Allocated apart from the watch: the storage may hang for longer than the daemon lives. */
struct cairn_storage_look {
    struct cairn_task task;
    struct cairn_storage_watch *watch; /* borrowed; the loop's */
    cairn_status (*judge)(const char *path, uint64_t token, const struct cairn_storage_owner *owner,
                          struct cairn_sentence *why);
    struct cairn_storage_owner owner;
    char *path; /* owned */
    uint64_t token;
    cairn_status found;
    struct cairn_sentence why;
};

cairn_status cairn_storage_watch_open(struct cairn_storage_watch *watch, uv_loop_t *loop,
                                      struct cairn_sentence *why)
{
    watch->loop = loop;
    return cairn_pool_open(loop, "cairn-storage", 1, NULL, &watch->thread, why);
}

bool cairn_storage_watch_close(struct cairn_storage_watch *watch, void (*on_closed)(void *context),
                               void *context)
{
    if (watch->thread == NULL) return false;
    if (!cairn_pool_close_within(watch->thread, CLOSE_MS, on_closed, context)) watch->look = NULL;
    return true;
}

static void free_look(struct cairn_storage_look *look)
{
    if (look == NULL) return;
    free(look->path);
    free(look);
}

void cairn_storage_watch_release(struct cairn_storage_watch *watch)
{
    free(watch->path);
    free_look(watch->look);
}

static void run_look(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_storage_look *look = (struct cairn_storage_look *)task;
    (void)item, (void)thread;
    look->found = look->judge(look->path, look->token, &look->owner, &look->why);
}

static void say(struct cairn_storage_watch *watch, const struct cairn_sentence *why)
{
    if (strcmp(watch->said.text, why->text) == 0) return;
    watch->said = *why;
    watch->on_said(watch);
}

static void look_again(struct cairn_storage_watch *watch);

static void on_looked(struct cairn_task *task)
{
    struct cairn_storage_look *look = (struct cairn_storage_look *)task;
    struct cairn_storage_watch *watch = look->watch;
    watch->is_looking = false;
    watch->since_ms = uv_now(watch->loop);
    if (watch->path == NULL) return;
    if (look->token != watch->token || look->owner.store != watch->owner.store ||
        strcmp(watch->path, look->path) != 0) {
        look_again(watch); // it was told anew meanwhile
        return;
    }
    if (look->found == CAIRN_OK) look->why.text[0] = '\0';
    say(watch, &look->why);
}

static void look_again(struct cairn_storage_watch *watch)
{
    struct cairn_storage_look *next = calloc(1, sizeof *next);
    char *path = strdup(watch->path);
    if (next == NULL || path == NULL) {
        free(next);
        free(path);
        return; // it is not looked at; a snapshot says what is wrong
    }
    *next = (struct cairn_storage_look) {
        .task = { .run = run_look, .done = on_looked, .item_count = 1 },
        .watch = watch,
        .judge = watch->judge,
        .owner = watch->owner,
        .path = path,
        .token = watch->token,
    };
    free_look(watch->look);
    watch->look = next;
    watch->is_looking = true;
    watch->since_ms = uv_now(watch->loop);
    cairn_pool_submit(watch->thread, &next->task);
}

void cairn_storage_watch_told(struct cairn_storage_watch *watch, const char *path, uint64_t token)
{
    free(watch->path);
    watch->path = token != 0 && path[0] == '/' ? strdup(path) : NULL;
    watch->token = token;
    if (watch->path == NULL) watch->said.text[0] = '\0'; // else it stands until there is a look
    if (watch->path != NULL && !watch->is_looking) look_again(watch);
}

void cairn_storage_watch_doubt(struct cairn_storage_watch *watch)
{
    if (watch->path != NULL && !watch->is_looking) look_again(watch);
}

static void say_that_it_hangs(struct cairn_storage_watch *watch, uint64_t ms)
{
    struct cairn_sentence why;
    cairn_sentence_set(&why,
                       "%s has not answered for %u s or more: its storage hangs; see to the mount",
                       watch->path, (unsigned)(HANGS_MS / 1000));
    if (ms >= HANGS_MS) say(watch, &why);
}

void cairn_storage_watch_tick(struct cairn_storage_watch *watch)
{
    const uint64_t ms = uv_now(watch->loop) - watch->since_ms;
    if (watch->path == NULL) return;
    if (watch->is_looking)
        say_that_it_hangs(watch, ms);
    else if (watch->said.text[0] != '\0' && ms >= AGAIN_MS)
        look_again(watch);
}

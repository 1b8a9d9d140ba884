/* The storage of the snapshots, looked at on a thread of its own: it may hang, and then the daemon serves
 * on, says so, and ends without it. It is looked at when it is told, when something in it has failed, and
 * again until it is right. Loop thread. */
#ifndef CAIRN_BASE_STORAGE_WATCH_H
#define CAIRN_BASE_STORAGE_WATCH_H

#include "proto/store/storage_token.h"
#include "server/base/pool.h"

struct cairn_storage_look;

struct cairn_storage_watch {
    /* the owner's, before it is opened */
    /* On the thread, may hang: is the folder the one that has the token, may the owner use it, and what is to
     * be done? */
    cairn_status (*judge)(const char *path, uint64_t token, const struct cairn_storage_owner *owner,
                          struct cairn_sentence *why);
    void (*on_said)(struct cairn_storage_watch *watch); /* `said` is another one now */
    void *context;
    struct cairn_storage_owner
        owner; /* a look has that of when it begins; cairn_storage_watch_doubt */

    struct cairn_sentence said; /* what is wrong; empty: nothing, or it is not known yet */

    /* private */
    uv_loop_t *loop;
    struct cairn_pool *thread; /* owned */
    char *path;                /* owned; NULL: not told */
    uint64_t token;
    struct cairn_storage_look *look; /* owned; while is_looking the thread's */
    uint64_t since_ms;               /* of the loop's clock: when it was begun, or ended */
    bool is_looking;
};

CAIRN_MUST_CHECK cairn_status cairn_storage_watch_open(struct cairn_storage_watch *watch,
                                                       uv_loop_t *loop, struct cairn_sentence *why);
/* Closes the thread; on_closed(context) follows from the loop. False: nothing was open, and
 * on_closed does not come. */
bool cairn_storage_watch_close(struct cairn_storage_watch *watch, void (*on_closed)(void *context),
                               void *context);
/* Frees what the watch holds; call it after on_closed. */
void cairn_storage_watch_release(struct cairn_storage_watch *watch);

/* This is the folder, and its token. Path "" or token 0: there is nothing to look at. */
void cairn_storage_watch_told(struct cairn_storage_watch *watch, const char *path, uint64_t token);
/* Something in it has failed: looks whether it is still there. */
void cairn_storage_watch_doubt(struct cairn_storage_watch *watch);
/* From time to time: looks again, or says that it hangs. */
void cairn_storage_watch_tick(struct cairn_storage_watch *watch);

#endif

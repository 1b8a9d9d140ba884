/* Memory that is given back: to unmap a GiB takes 0.2 s, and to free what a job of a million tensors is made
 * of as long, so a thread of its own does it, one after the other, and the budget has the bytes again when
 * that is done. Until then a JobCreate waits for them. */
#include <stdlib.h>

#include "server/shard/shard.h"

struct cairn_release {
    struct cairn_task task;
    struct cairn_shard *shard; /* borrowed */
    struct cairn_release *next;
    struct cairn_arena arena; /* owned */
    void (*free_it)(void *what);
    void *what; /* owned; NULL: none */
    uint64_t budget_bytes;
    struct cairn_request request; /* answered when it is done */
};

static void release_it(struct cairn_release *release)
{
    cairn_arena_close(&release->arena);
    if (release->what != NULL) release->free_it(release->what);
    release->what = NULL;
}

static void run_release(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    release_it((struct cairn_release *)task);
}

static void account(struct cairn_shard *shard, uint64_t budget_bytes, struct cairn_request *request)
{
    cairn_budget_give(&shard->memory.budget, budget_bytes);
    if (request->session != 0) cairn_session_answer(shard, request, CAIRN_OK, NULL);
}

static void on_released(struct cairn_task *task)
{
    struct cairn_release *release = (struct cairn_release *)task;
    struct cairn_shard *shard = release->shard;
    struct cairn_release **at = &shard->memory.releases;
    while (*at != release) at = &(*at)->next;
    *at = release->next;
    account(shard, release->budget_bytes, &release->request);
    free(release);
    shard->up->memory_back(shard);
}

/* False: without a thread, then. */
static bool begin(struct cairn_shard *shard, const struct cairn_release *what)
{
    struct cairn_release *release = shard->closing ? NULL : malloc(sizeof *release);
    if (release == NULL) return false;
    *release = *what;
    release->task =
        (struct cairn_task) { .run = run_release, .done = on_released, .item_count = 1 };
    release->shard = shard;
    release->next = shard->memory.releases;
    shard->memory.releases = release;
    cairn_pool_submit(shard->memory.releaser, &release->task);
    return true;
}

void cairn_release(struct cairn_shard *shard, struct cairn_arena *arena)
{
    cairn_arena_unshare(arena,
                        shard->closing); // the fabric of one that closes has dropped its regions
    const struct cairn_release release = { .arena = *arena };
    if (arena->base != NULL && begin(shard, &release)) *arena = CAIRN_ARENA_NONE;
    cairn_arena_close(arena);
}

void cairn_release_by(struct cairn_shard *shard, void (*free_it)(void *what), void *what)
{
    const struct cairn_release release = { .arena = CAIRN_ARENA_NONE,
                                           .free_it = free_it,
                                           .what = what };
    if (!begin(shard, &release)) free_it(what);
}

void cairn_release_bytes(struct cairn_shard *shard, uint64_t budget_bytes,
                         const struct cairn_request *request)
{
    struct cairn_release release = { .arena = CAIRN_ARENA_NONE, .budget_bytes = budget_bytes };
    if (request != NULL) release.request = *request;
    if (begin(shard, &release)) return;
    struct cairn_release *newest = shard->closing ? NULL : shard->memory.releases;
    if (newest == NULL) {
        account(shard, budget_bytes, &release.request);
        return;
    }
    // No memory for one of its own: with the newest, behind which it would have come. If somebody waits for
    // that one already, this is answered too early, which is no harm: a JobCreate waits for all of them.
    newest->budget_bytes += budget_bytes;
    if (newest->request.session == 0)
        newest->request = release.request;
    else
        account(shard, 0, &release.request);
}

void cairn_release_close(struct cairn_shard *shard)
{
    while (shard->memory.releases != NULL) {
        struct cairn_release *release = shard->memory.releases;
        shard->memory.releases = release->next;
        release_it(release);
        free(release);
    }
}

#include "server/shard/base/arriving.h"

#include <stdlib.h>

#include "server/shard/shard.h"

#define SMALL_BYTES 32768 /* of pages: prepared sooner than a thread is told */

static void arriving_free(struct cairn_arriving *arriving)
{
    if (arriving->made != NULL) arriving->kind->unmake(arriving->made);
    for (int i = 0; i < CAIRN_ARRIVING_PAGED; i++) cairn_paged_release(&arriving->paged[i]);
    cairn_message_free(arriving->message);
    free(arriving);
}

void cairn_arriving_drop(struct cairn_shard *shard, struct cairn_arriving *arriving)
{
    struct cairn_arriving **link = &shard->arriving;
    while (*link != arriving) link = &(*link)->next;
    *link = arriving->next;
    if (arriving->phase != CAIRN_ARRIVING_PREPARING) {
        arriving_free(arriving);
        return;
    }
    arriving->next = shard->arriving_dropped;
    shard->arriving_dropped = arriving;
}

/* One that was dropped, or all of them (NULL). */
static bool free_dropped(struct cairn_shard *shard, const struct cairn_arriving *which)
{
    bool any = false;
    for (struct cairn_arriving **link = &shard->arriving_dropped; *link != NULL;) {
        struct cairn_arriving *arriving = *link;
        if (which != NULL && arriving != which) {
            link = &arriving->next;
            continue;
        }
        *link = arriving->next;
        arriving_free(arriving);
        any = true;
    }
    return any;
}

bool cairn_arriving_lingers(const struct cairn_shard *shard, const struct cairn_arriving_kind *kind)
{
    const struct cairn_arriving *arriving = shard->arriving_dropped;
    while (arriving != NULL && arriving->kind != kind) arriving = arriving->next;
    return arriving != NULL;
}

void cairn_arriving_release(struct cairn_shard *shard)
{
    (void)free_dropped(shard, NULL);
}

void cairn_arriving_drop_all(struct cairn_shard *shard)
{
    while (shard->arriving != NULL) cairn_arriving_drop(shard, shard->arriving);
}

static void answer(struct cairn_shard *shard, const struct cairn_arriving_kind *kind,
                   uint32_t request, cairn_status status, const struct cairn_sentence *why)
{
    struct cairn_request answered = cairn_session_request(shard, request);
    if (status != CAIRN_OK) cairn_log_warn("%s was refused: %s", kind->name, why->text);
    cairn_session_answer(shard, &answered, status, why);
}

void cairn_arriving_end(struct cairn_shard *shard, struct cairn_arriving *arriving,
                        cairn_status status, const struct cairn_sentence *why)
{
    answer(shard, arriving->kind, arriving->request, status, why);
    cairn_arriving_drop(shard, arriving);
}

static bool pages_are_here(const struct cairn_arriving *arriving)
{
    for (int i = 0; i < CAIRN_ARRIVING_PAGED; i++)
        if (!cairn_paged_whole(&arriving->paged[i])) return false;
    return true;
}

bool cairn_arriving_whole(const struct cairn_arriving *arriving)
{
    return arriving->phase == CAIRN_ARRIVING_PREPARED;
}

void *cairn_arriving_made(const struct cairn_arriving *arriving)
{
    return arriving->made;
}

void *cairn_arriving_take(struct cairn_arriving *arriving)
{
    void *made = arriving->made;
    arriving->made = NULL;
    return made;
}

/* ---- on a thread ---- */

static void run_prepare(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    struct cairn_arriving *arriving = (struct cairn_arriving *)task;
    arriving->status = arriving->kind->prepare(arriving, &arriving->made, &arriving->why);
}

static void run_make(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    struct cairn_arriving *arriving = (struct cairn_arriving *)task;
    arriving->status = arriving->kind->make(arriving, arriving->made, &arriving->why);
}

static void on_through(struct cairn_task *task)
{
    struct cairn_arriving *arriving = (struct cairn_arriving *)task;
    struct cairn_shard *shard = arriving->shard;
    arriving->phase = CAIRN_ARRIVING_PREPARED;
    if (free_dropped(shard, arriving))
        shard->up->memory_back(shard); // others may have waited for what it had
    else if (arriving->status != CAIRN_OK)
        cairn_arriving_end(shard, arriving, arriving->status, &arriving->why);
    else
        arriving->kind->whole(shard, arriving);
}

static void begin(struct cairn_arriving *arriving,
                  void (*run)(struct cairn_task *task, uint32_t item, uint32_t thread))
{
    arriving->phase = CAIRN_ARRIVING_PREPARING;
    arriving->task = (struct cairn_task) {
        .run = run, .done = on_through, .item_count = 1, .is_small = arriving->is_small
    };
    cairn_pool_submit(arriving->shard->memory.pool, &arriving->task);
}

void cairn_arriving_make(struct cairn_arriving *arriving)
{
    begin(arriving, run_make);
}

/* All pages are here. */
static void go_on(struct cairn_shard *shard, struct cairn_arriving *arriving)
{
    uint64_t bytes = 0;
    for (int i = 0; i < CAIRN_ARRIVING_PAGED; i++) bytes += arriving->paged[i].have_bytes;
    arriving->is_small = bytes <= SMALL_BYTES;
    if (arriving->kind->prepare == NULL || bytes == 0) {
        arriving->phase = CAIRN_ARRIVING_PREPARED;
        arriving->kind->whole(shard, arriving);
        return;
    }
    begin(arriving, run_prepare);
}

static cairn_status judge(const struct cairn_shard *shard, const struct cairn_arriving_kind *kind,
                          struct cairn_sentence *why)
{
    size_t count = 0;
    for (const struct cairn_arriving *a = shard->arriving; a != NULL; a = a->next)
        count += a->kind == kind;
    if (count < CAIRN_ARRIVING_MAX) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_BUSY, "%s: %zu are on their way already", kind->name, count);
}

static cairn_status set_paged(struct cairn_arriving *arriving, const uint64_t *bytes,
                              struct cairn_sentence *why)
{
    const struct cairn_arriving_kind *kind = arriving->kind;
    for (int i = 0; i < CAIRN_ARRIVING_PAGED && kind->what[i] != 0; i++)
        if ((bytes[i] == 0 && !kind->may_be_empty) ||
            cairn_paged_init(&arriving->paged[i], bytes[i]) != CAIRN_OK)
            return cairn_fail(why, CAIRN_ERR_INVALID, "%s with pages of %llu bytes: 1 to %llu",
                              kind->name, (unsigned long long)bytes[i],
                              (unsigned long long)CAIRN_PAGED_BYTES_MAX);
    return CAIRN_OK;
}

void cairn_arriving_begin(struct cairn_shard *shard, const struct cairn_arriving_kind *kind,
                          uint32_t request, ProtobufCMessage *message,
                          const uint64_t bytes[CAIRN_ARRIVING_PAGED])
{
    struct cairn_sentence why;
    cairn_status status = judge(shard, kind, &why);
    struct cairn_arriving *arriving = status == CAIRN_OK ? calloc(1, sizeof *arriving) : NULL;
    if (arriving == NULL) {
        if (status == CAIRN_OK) status = cairn_fail(&why, CAIRN_ERR_NO_MEMORY, "no memory");
        answer(shard, kind, request, status, &why);
        cairn_message_free(message);
        return;
    }
    arriving->kind = kind;
    arriving->shard = shard;
    arriving->request = request;
    arriving->message = message;
    struct cairn_arriving **last = &shard->arriving;
    while (*last != NULL) last = &(*last)->next;
    *last = arriving;
    status = set_paged(arriving, bytes, &why);
    if (status != CAIRN_OK)
        cairn_arriving_end(shard, arriving, status, &why);
    else if (pages_are_here(arriving))
        go_on(shard, arriving);
}

void cairn_arriving_on_page(struct cairn_shard *shard, uint32_t request, const Cairn__Page *page)
{
    struct cairn_arriving *arriving = shard->arriving;
    while (arriving != NULL && arriving->request != request) arriving = arriving->next;
    if (arriving == NULL) return; // of one that was refused
    cairn_status status = CAIRN_ERR_PROTOCOL;
    for (int i = 0; i < CAIRN_ARRIVING_PAGED; i++)
        if (arriving->phase == CAIRN_ARRIVING_PAGES && page->what != 0 &&
            page->what == arriving->kind->what[i])
            status = cairn_paged_add(&arriving->paged[i], page);
    if (status != CAIRN_OK) {
        struct cairn_sentence why;
        cairn_sentence_set(&why, "%s: page at %llu of part %u does not follow those before",
                           arriving->kind->name, (unsigned long long)page->offset, page->what);
        cairn_arriving_end(shard, arriving, status, &why);
    } else if (pages_are_here(arriving)) {
        go_on(shard, arriving);
    }
}

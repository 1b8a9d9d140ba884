/* The hub of the mem fabric: time, chance, the events of its nodes, and who is next. */
#include "tests/support/mem_hub.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/eventfd.h>

/* splitmix64 (Vigna): any seed is a good seed. */
static uint64_t next_random(struct mem_hub *hub)
{
    uint64_t z = hub->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

bool mem_chance(struct mem_hub *hub, uint32_t permille)
{
    return permille > 0 && next_random(hub) % 1000 < permille;
}

struct mem_node *mem_find_node(struct mem_hub *hub, uint64_t id)
{
    struct mem_node *node;
    LIST_FOREACH (node, &hub->nodes, link)
        if (node->id == id) return node;
    return NULL;
}

/* The simulator has no answer to a lack of a few bytes: it stops. */
void *mem_need(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL) abort();
    return memory;
}

struct mem_event *mem_post(struct mem_node *node, enum mem_kind kind)
{
    struct mem_hub *hub = node->hub;
    uint32_t delay_max = hub->options.delay_max_ticks > 0 ? hub->options.delay_max_ticks : 1;
    struct mem_event *event = mem_need(sizeof *event);
    event->kind = kind;
    event->due = hub->ticks + 1 + next_random(hub) % delay_max;
    event->sequence = hub->sequence++;
    struct mem_event *before = TAILQ_FIRST(&node->events);
    while (before != NULL && before->due <= event->due) before = TAILQ_NEXT(before, link);
    if (before != NULL)
        TAILQ_INSERT_BEFORE(before, event, link);
    else
        TAILQ_INSERT_TAIL(&node->events, event, link);
    eventfd_write(node->common.event_fd, 1);
    return event;
}

void mem_post_sent(struct mem_transfer *transfer, cairn_status status)
{
    if (transfer->op == NULL) return;
    struct mem_event *event = mem_post(transfer->sender, MEM_SENT);
    event->op = transfer->op;
    event->status = status;
    transfer->op = NULL;
}

void mem_release(struct mem_transfer *transfer)
{
    if (--transfer->references > 0) return;
    mem_post_sent(transfer, CAIRN_OK);
    LIST_REMOVE(transfer, link);
    free(transfer->copy);
    free(transfer);
}

/* The node's next event if it is due by `ticks`. Its transfer's connection may be gone: lost. */
struct mem_event *mem_take(struct mem_node *node, uint64_t ticks, bool *is_lost_out)
{
    struct mem_event *event = TAILQ_FIRST(&node->events);
    if (event == NULL || event->due > ticks) return NULL;
    TAILQ_REMOVE(&node->events, event, link);
    *is_lost_out = event->kind == MEM_MESSAGE && event->transfer->peer == NULL;
    return event;
}

cairn_status cairn_fabric_mem_hub_open(const struct cairn_fabric_mem_options *options,
                                       struct fabric_hub **hub_out)
{
    struct mem_hub *hub = calloc(1, sizeof *hub);
    if (hub == NULL) return CAIRN_ERR_NO_MEMORY;
    hub->common.backend = &fabric_mem;
    pthread_mutex_init(&hub->lock, NULL);
    hub->options = *options;
    hub->name = hub->random = options->seed;
    LIST_INIT(&hub->nodes);
    LIST_INIT(&hub->peers);
    LIST_INIT(&hub->transfers);
    *hub_out = &hub->common;
    return CAIRN_OK;
}

void cairn_fabric_mem_hub_close(struct fabric_hub *common)
{
    struct mem_hub *hub = hub_of(common);
    assert(LIST_EMPTY(&hub->nodes) && LIST_EMPTY(&hub->peers) && LIST_EMPTY(&hub->transfers));
    pthread_mutex_destroy(&hub->lock);
    free(hub);
}

void cairn_fabric_mem_hub_set(struct fabric_hub *common,
                              const struct cairn_fabric_mem_options *options)
{
    struct mem_hub *hub = hub_of(common);
    pthread_mutex_lock(&hub->lock);
    hub->options = *options;
    pthread_mutex_unlock(&hub->lock);
}

static struct mem_node *next_node(struct mem_hub *hub)
{
    struct mem_node *node, *best = NULL;
    const struct mem_event *first = NULL;
    LIST_FOREACH (node, &hub->nodes, link) {
        const struct mem_event *event = TAILQ_FIRST(&node->events);
        if (event == NULL) continue;
        if (first == NULL || event->due < first->due ||
            (event->due == first->due && event->sequence < first->sequence)) {
            first = event;
            best = node;
        }
    }
    return best;
}

/* What the owners asked for outside of any event: closed peers. */
static unsigned settle(struct mem_hub *hub)
{
    unsigned count = 0;
    struct mem_node *node;
    LIST_FOREACH (node, &hub->nodes, link) count += fabric_deliver(&node->common);
    return count;
}

unsigned cairn_fabric_mem_hub_step(struct fabric_hub *common)
{
    struct mem_hub *hub = hub_of(common);
    if (settle(hub) > 0) return 1;
    bool is_lost = false;
    struct mem_event *event = NULL;
    pthread_mutex_lock(&hub->lock);
    struct mem_node *node = next_node(hub);
    if (node != NULL) {
        const uint64_t due = TAILQ_FIRST(&node->events)->due;
        if (due > hub->ticks) hub->ticks = due;
        event = mem_take(node, hub->ticks, &is_lost);
    }
    pthread_mutex_unlock(&hub->lock);
    if (event == NULL) return 0;
    mem_handle(node, event, is_lost);
    fabric_deliver(&node->common);
    return 1;
}

uint64_t cairn_fabric_mem_hub_run(struct fabric_hub *hub, uint64_t steps_max)
{
    uint64_t steps = 0;
    while (steps < steps_max && cairn_fabric_mem_hub_step(hub) > 0) steps++;
    return steps;
}

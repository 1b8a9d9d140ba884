/* Streams: queues of operations that nothing runs until somebody waits, asks, or chance has it.
 *
 *   put ──► [op][op][wait for (stream, number)][op]     any head that waits for nothing may be next
 *
 * So what is not ordered runs in another order on another seed, and what nobody waits for is late. A thread
 * that waits runs operations of all streams, several threads beside each other. With one thread a seed
 * gives one order. */
#include "tests/gpu/emulator/emulator.h"

#include <assert.h>
#include <stdlib.h>
#include <time.h>

#define QUEUED_MAX 4096 /* operations that may wait, of all streams; who puts more runs some */

static struct slot {
    struct emulator_op *head, **tail;
    struct emulator_clock clock; /* of what comes next */
    uint64_t last, done;         /* numbers of operations: put, and run */
    uint32_t generation;
    uint32_t device;
    bool open, blocks; /* blocks: the null stream waits for it, and it for the null stream */
    bool busy;         /* its head is running */
    bool is_above;     /* of a priority that has hardware queues for itself */
} slots[EMULATOR_SLOTS] = { [0] = { .open = true } };
static uint64_t queued, turns;

/* ---- who runs ---- */

/* The host writes it without the lock, and tells nobody. */
static bool has_word(const struct emulator_op *op)
{
    if (op->word == NULL) return true;
    return (int32_t)(__atomic_load_n(op->word, __ATOMIC_ACQUIRE) - op->value) >= 0;
}

static bool shares_queue(const struct slot *a, const struct slot *b)
{
    return a != b && !a->is_above && !b->is_above && a->device == b->device &&
           (uint64_t)(a - slots) % emulator_options.queues ==
               (uint64_t)(b - slots) % emulator_options.queues;
}

/* Another stream's, in the same queue of the hardware. */
static bool is_behind_other(const struct slot *slot)
{
    if (emulator_options.queues == 0) return false;
    for (uint32_t i = 0; i < EMULATOR_SLOTS; i++)
        if (slots[i].head != NULL && shares_queue(slot, &slots[i]) &&
            slots[i].head->turn < slot->head->turn)
            return true;
    return false;
}

static bool may_run(const struct slot *slot)
{
    const struct emulator_op *op = slot->head;
    if (op == NULL || slot->busy || !has_word(op) || is_behind_other(slot)) return false;
    if (emulator_options.stuck && op->word == NULL) return false;
    return op->awaited_number <= slots[op->awaited_slot].done;
}

static enum emulator_result run_counted(uint32_t slot, struct emulator_op *op)
{
    enum emulator_result result = op->counts ? emulator_fault_run() : EMULATOR_OK;
    if (result == EMULATOR_OK && op->touch != NULL) {
        struct emulator_touch touch = { 0 };
        result = op->touch(op, &touch);
        emulator_touch_sort(&touch);
        emulator_order_add(slot, op->number, &op->clock, op->name, &touch);
    }
    if (result == EMULATOR_OK && op->is_late)
        emulator_order_add(slot, op->number, &op->clock, op->name, &op->late_touch);
    if (result != EMULATOR_OK || op->run == NULL) return result;
    pthread_mutex_unlock(&emulator_lock);
    result = op->run(op);
    pthread_mutex_lock(&emulator_lock);
    return result;
}

/* The host wrote a word that the stream waited for: what is behind knows what the host does. */
static void learn_of_host(struct slot *slot)
{
    emulator_clock_join(&slot->clock, &emulator_host);
    for (struct emulator_op *op = slot->head; op != NULL; op = op->next)
        emulator_clock_join(&op->clock, &emulator_host);
}

static void run(struct slot *slot)
{
    struct emulator_op *op = slot->head;
    const uint32_t number = (uint32_t)(slot - slots);
    slot->busy = true;
    if (emulator_sticky(op->device) == EMULATOR_OK) {
        const enum emulator_result result = run_counted(number, op);
        if (result != EMULATOR_OK) emulator_fail(op->device, result);
    }
    slot->busy = false;
    slot->head = op->next;
    slot->done = op->number;
    queued--;
    if (op->word != NULL) learn_of_host(slot);
    emulator_order_ran(number, op->number);
    op->close(op);
    pthread_cond_broadcast(&emulator_progress);
}

/* Runs one operation that may; false: none may. */
static bool run_one(void)
{
    struct slot *able[EMULATOR_SLOTS];
    uint32_t count = 0;
    for (uint32_t i = 0; i < EMULATOR_SLOTS; i++)
        if (may_run(&slots[i])) able[count++] = &slots[i];
    if (count == 0) return false;
    run(able[emulator_chance(count)]);
    return true;
}

static bool any_busy(void)
{
    bool busy = false;
    for (uint32_t i = 0; i < EMULATOR_SLOTS; i++) busy |= slots[i].busy;
    return busy;
}

static bool any_word(void)
{
    bool waits = false;
    for (uint32_t i = 0; i < EMULATOR_SLOTS; i++)
        waits |= slots[i].head != NULL && slots[i].head->word != NULL;
    return waits;
}

/* Until an operation has ended, or for a moment: nobody says that a word was written. */
static void sleep_some(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&emulator_progress, &emulator_lock, &until);
}

enum emulator_result emulator_stream_wait(const struct emulator_mark *mark)
{
    while (slots[mark->slot].done < mark->number) {
        if (run_one()) continue;
        assert(any_busy() || any_word() ||
               emulator_options.stuck); // what is awaited was there before
        sleep_some();
    }
    if (emulator_sticky(mark->device) == EMULATOR_OK) emulator_host_learns(&mark->clock);
    return emulator_sticky(mark->device);
}

/* Who asks gives it a chance to be over, sooner or later. */
enum emulator_result emulator_stream_query(const struct emulator_mark *mark)
{
    for (uint64_t more = emulator_chance(3); more > 0; more--) run_one();
    if (emulator_sticky(mark->device) != EMULATOR_OK) return emulator_sticky(mark->device);
    if (slots[mark->slot].done < mark->number) return EMULATOR_NOT_READY;
    emulator_host_learns(&mark->clock);
    return EMULATOR_OK;
}

/* Of the device, anywhere in a queue. */
static bool waits_for_host(uint32_t device)
{
    for (uint32_t i = 0; i < EMULATOR_SLOTS; i++)
        for (const struct emulator_op *op = slots[i].head; op != NULL; op = op->next)
            if (op->device == device && !has_word(op)) return true;
    return false;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void emulator_stream_wait_all(uint32_t device)
{
    const uint64_t from = now_ms();
    while (emulator_options.maps_wait != 0 && waits_for_host(device)) {
        if (now_ms() - from >= emulator_options.maps_wait) {
            emulator_complain(
                "a call that maps, registers or unmaps memory waits for a stream that "
                "waits for the host");
            return;
        }
        if (!run_one()) sleep_some();
    }
}

/* ---- streams ---- */

static bool is_free(uint32_t slot)
{
    return !slots[slot].open && slots[slot].head == NULL &&
           emulator_host.at[slot] >= slots[slot].last;
}

enum emulator_result emulator_stream_open(uint32_t device, bool blocks, bool is_above,
                                          uint64_t *stream_out)
{
    uint32_t slot = 1;
    while (slot < EMULATOR_SLOTS && !is_free(slot)) slot++;
    if (slot == EMULATOR_SLOTS) return EMULATOR_OUT_OF_MEMORY;
    struct slot *s = &slots[slot];
    s->open = true;
    s->blocks = blocks;
    s->is_above = is_above;
    s->device = device;
    s->generation++;
    s->clock = emulator_host;
    s->clock.at[slot] = s->last;
    *stream_out = emulator_handle(EMULATOR_STREAM, s->generation, slot);
    return EMULATOR_OK;
}

enum emulator_result emulator_stream_slot(uint64_t stream, uint32_t device, uint32_t *slot_out)
{
    const uint32_t slot = emulator_handle_index(stream) % EMULATOR_SLOTS;
    const struct slot *s = &slots[slot];
    if (stream != 0) {
        if (slot == 0 || !s->open || s->device != device) return EMULATOR_INVALID_HANDLE;
        if (stream != emulator_handle(EMULATOR_STREAM, s->generation, slot))
            return EMULATOR_INVALID_HANDLE;
    }
    *slot_out = slot;
    return EMULATOR_OK;
}

/* What is in its queue runs all the same. */
enum emulator_result emulator_stream_close(uint64_t stream)
{
    uint32_t slot;
    const uint32_t device = slots[emulator_handle_index(stream) % EMULATOR_SLOTS].device;
    if (stream == 0 || emulator_stream_slot(stream, device, &slot) != EMULATOR_OK)
        return EMULATOR_INVALID_HANDLE;
    slots[slot].open = false;
    return EMULATOR_OK;
}

static void append(uint32_t slot, uint32_t device, struct emulator_op *op)
{
    struct slot *s = &slots[slot];
    emulator_clock_join(&s->clock, &emulator_host);
    op->number = ++s->last;
    op->turn = ++turns;
    op->next = NULL;
    op->device = device;
    s->clock.at[slot] = op->number;
    op->clock = s->clock;
    if (s->head == NULL) s->tail = &s->head;
    *s->tail = op;
    s->tail = &op->next;
    queued++;
}

static void close_wait(struct emulator_op *op)
{
    free(op);
}

void emulator_stream_await(uint32_t slot, uint32_t device, const struct emulator_mark *mark)
{
    emulator_clock_join(&slots[slot].clock, &mark->clock);
    if (slots[mark->slot].done >= mark->number) return;
    struct emulator_op *op = calloc(1, sizeof *op);
    assert(op != NULL);
    op->name = "a wait";
    op->close = close_wait;
    op->awaited_slot = mark->slot;
    op->awaited_number = mark->number;
    append(slot, device, op);
}

void emulator_stream_await_word(uint32_t slot, uint32_t device, const uint32_t *word,
                                uint32_t value)
{
    struct emulator_op *op = calloc(1, sizeof *op);
    assert(op != NULL);
    op->name = "a wait for a word";
    op->close = close_wait;
    op->word = word;
    op->value = value;
    append(slot, device, op);
}

struct emulator_mark emulator_stream_mark(uint32_t slot, uint32_t device)
{
    return (struct emulator_mark) { slots[slot].clock, slots[slot].last, slot, device };
}

/* The null stream and those that block it wait for each other. */
static void order_with_null(uint32_t slot, uint32_t device)
{
    for (uint32_t other = 0; other < EMULATOR_SLOTS; other++) {
        const bool both = slot == 0 ? other != 0 && slots[other].blocks
                                    : other == 0 && slots[slot].blocks;
        if (!both || slots[other].last == 0) continue;
        const struct emulator_mark mark = emulator_stream_mark(other, device);
        emulator_stream_await(slot, device, &mark);
    }
}

/* What is behind a word is ordered by whatever the host knows when it writes it. */
static bool is_behind_word(uint32_t slot)
{
    const struct emulator_op *op = slots[slot].head;
    while (op != NULL && op->word == NULL) op = op->next;
    return op != NULL;
}

/* Some of what is put there runs early. */
void emulator_stream_put(uint32_t slot, uint32_t device, struct emulator_op *op,
                         struct emulator_touch *touch)
{
    order_with_null(slot, device);
    op->is_late = touch != NULL && is_behind_word(slot);
    if (op->is_late) op->late_touch = *touch;
    append(slot, device, op);
    if (touch != NULL && !op->is_late)
        emulator_order_add(slot, op->number, &op->clock, op->name, touch);
    if (emulator_chance(8) == 0) run_one();
    while (queued > QUEUED_MAX && run_one()) continue;
}

void emulator_stream_forget(uint32_t device)
{
    for (uint32_t slot = 1; slot < EMULATOR_SLOTS; slot++) {
        struct slot *s = &slots[slot];
        if (s->device != device) continue;
        for (struct emulator_op *op = s->head, *next; op != NULL; op = next) {
            next = op->next;
            if (op->is_late) emulator_touch_release(&op->late_touch);
            op->close(op);
            queued--;
        }
        s->head = NULL;
        s->done = s->last;
        s->open = false;
        emulator_host.at[slot] = s->last;
    }
    emulator_host_learns(&emulator_host);
}

uint64_t emulator_stream_left(void)
{
    uint64_t left = 0;
    for (uint32_t slot = 1; slot < EMULATOR_SLOTS; slot++) left += slots[slot].open;
    return left;
}

bool emulator_stream_all_know(uint32_t slot, uint64_t number)
{
    for (uint32_t i = 0; i < EMULATOR_SLOTS; i++)
        if (slots[i].head != NULL && slots[i].head->clock.at[slot] < number) return false;
    return true;
}

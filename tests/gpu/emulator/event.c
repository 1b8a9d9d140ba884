/* Events: a mark of a stream, taken when the event is recorded, and kept until it is recorded again. */
#include "tests/gpu/emulator/emulator.h"

#define EVENTS 4096

static struct event {
    struct emulator_mark mark; /* number 0: never recorded */
    uint32_t generation;
    bool open, spins; /* spins: who waits for it keeps a processor busy */
} events[EVENTS];

static struct event *find(uint64_t handle)
{
    struct event *event = &events[emulator_handle_index(handle) % EVENTS];
    const uint64_t own = emulator_handle(EMULATOR_EVENT, event->generation,
                                         (uint32_t)(event - events));
    return event->open && own == handle ? event : NULL;
}

uint64_t emulator_spins, emulator_events, emulator_waits, emulator_flushes;

enum emulator_result emulator_event_open(bool spins, uint64_t *event_out)
{
    for (uint32_t i = 0; i < EVENTS; i++) {
        if (events[i].open) continue;
        emulator_events++;
        events[i] =
            (struct event) { .generation = events[i].generation + 1, .open = true, .spins = spins };
        *event_out = emulator_handle(EMULATOR_EVENT, events[i].generation, i);
        return EMULATOR_OK;
    }
    return EMULATOR_OUT_OF_MEMORY;
}

enum emulator_result emulator_event_close(uint64_t handle)
{
    struct event *event = find(handle);
    if (event == NULL) return EMULATOR_INVALID_HANDLE;
    event->open = false;
    return EMULATOR_OK;
}

enum emulator_result emulator_event_record(uint64_t handle, uint32_t slot, uint32_t device)
{
    struct event *event = find(handle);
    if (event == NULL) return EMULATOR_INVALID_HANDLE;
    event->mark = emulator_stream_mark(slot, device);
    return EMULATOR_OK;
}

enum emulator_result emulator_event_await(uint64_t handle, uint32_t slot, uint32_t device)
{
    const struct event *event = find(handle);
    if (event == NULL) return EMULATOR_INVALID_HANDLE;
    emulator_stream_await(slot, device, &event->mark);
    return EMULATOR_OK;
}

/* The mark is copied: another thread may record the event anew while this one waits. */
enum emulator_result emulator_event_wait(uint64_t handle)
{
    const struct event *event = find(handle);
    if (event == NULL) return EMULATOR_INVALID_HANDLE;
    const struct emulator_mark mark = event->mark;
    emulator_waits++;
    if (event->spins) emulator_spins++;
    return emulator_stream_wait(&mark);
}

enum emulator_result emulator_event_query(uint64_t handle)
{
    const struct event *event = find(handle);
    if (event == NULL) return EMULATOR_INVALID_HANDLE;
    const struct emulator_mark mark = event->mark;
    return emulator_stream_query(&mark);
}

uint64_t emulator_event_left(void)
{
    uint64_t left = 0;
    for (uint32_t i = 0; i < EVENTS; i++) left += events[i].open;
    return left;
}

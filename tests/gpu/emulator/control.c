#include "tests/gpu/emulator/control.h"

#include "tests/gpu/emulator/calls.h"

#define CONTROL(type, name, parameters) EMULATOR_EXPORT type name parameters;
CAIRN_EMULATOR_CONTROLS(CONTROL)
#undef CONTROL

int cairn_emulator_set(const char *options)
{
    pthread_mutex_lock(&emulator_lock);
    const bool understood = emulator_options_set(options);
    pthread_mutex_unlock(&emulator_lock);
    return understood;
}

static uint64_t read_count(const uint64_t *at)
{
    pthread_mutex_lock(&emulator_lock);
    const uint64_t count = *at;
    pthread_mutex_unlock(&emulator_lock);
    return count;
}

uint64_t cairn_emulator_complaints(void)
{
    pthread_mutex_lock(&emulator_lock);
    const uint64_t count = emulator_complaints();
    pthread_mutex_unlock(&emulator_lock);
    return count;
}

const char *cairn_emulator_words(void)
{
    return emulator_words();
}

int cairn_emulator_pinned_node(void)
{
    pthread_mutex_lock(&emulator_lock);
    const int node = emulator_host_node;
    pthread_mutex_unlock(&emulator_lock);
    return node;
}

uint64_t cairn_emulator_spins(void)
{
    return read_count(&emulator_spins);
}

uint64_t cairn_emulator_launches(void)
{
    return read_count(&emulator_launches);
}

uint64_t cairn_emulator_gaps(void)
{
    return read_count(&emulator_gaps);
}

uint64_t cairn_emulator_events(void)
{
    return read_count(&emulator_events);
}

uint64_t cairn_emulator_waits(void)
{
    return read_count(&emulator_waits);
}

uint64_t cairn_emulator_flushes(void)
{
    return read_count(&emulator_flushes);
}

uint64_t cairn_emulator_left(void)
{
    pthread_mutex_lock(&emulator_lock);
    const uint64_t left = emulator_memory_left() + emulator_host_left() + emulator_stream_left() +
                          emulator_event_left();
    pthread_mutex_unlock(&emulator_lock);
    return left;
}

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

uint64_t cairn_emulator_spins(void)
{
    pthread_mutex_lock(&emulator_lock);
    const uint64_t count = emulator_spins;
    pthread_mutex_unlock(&emulator_lock);
    return count;
}

int cairn_emulator_pinned_node(void)
{
    pthread_mutex_lock(&emulator_lock);
    const int node = emulator_host_node;
    pthread_mutex_unlock(&emulator_lock);
    return node;
}

uint64_t cairn_emulator_launches(void)
{
    pthread_mutex_lock(&emulator_lock);
    const uint64_t count = emulator_launches;
    pthread_mutex_unlock(&emulator_lock);
    return count;
}

uint64_t cairn_emulator_gaps(void)
{
    pthread_mutex_lock(&emulator_lock);
    const uint64_t count = emulator_gaps;
    pthread_mutex_unlock(&emulator_lock);
    return count;
}

uint64_t cairn_emulator_left(void)
{
    pthread_mutex_lock(&emulator_lock);
    const uint64_t left = emulator_memory_left() + emulator_host_left() + emulator_stream_left() +
                          emulator_event_left();
    pthread_mutex_unlock(&emulator_lock);
    return left;
}

/* The door to homes: each call goes to the home's kind. */
#include "gpu/home_kind.h"

#include <assert.h>

void cairn_home_close(struct cairn_home *home)
{
    if (home != NULL) home->kind->close(home);
}

const struct cairn_home_info *cairn_home_info(const struct cairn_home *home)
{
    return &home->info;
}

uint64_t cairn_home_free_bytes(struct cairn_home *home)
{
    return home->kind->free_bytes(home);
}

bool cairn_home_has(const struct cairn_home *home, const void *address)
{
    return home->kind->has(home, address);
}

cairn_status cairn_home_memory_open(struct cairn_home *home, const char *label, uint64_t bytes,
                                    struct cairn_home_memory *memory_out,
                                    struct cairn_sentence *why)
{
    struct cairn_home_memory memory = { .home = home, .bytes = bytes };
    const cairn_status status = bytes == 0 ? CAIRN_OK
                                           : home->kind->memory_open(home, label, &memory, why);
    if (status == CAIRN_OK) *memory_out = memory;
    return status;
}

void cairn_home_memory_close(struct cairn_home_memory *memory)
{
    if (memory->base != NULL) memory->home->kind->memory_close(memory);
    *memory = (struct cairn_home_memory) { 0 };
}

cairn_status cairn_home_pin(struct cairn_home *home, void *host, uint64_t bytes,
                            struct cairn_sentence *why)
{
    return home->kind->pin(home, host, bytes, why);
}

void cairn_home_unpin(struct cairn_home *home, void *host)
{
    home->kind->unpin(home, host);
}

cairn_status cairn_home_stream_open(struct cairn_home *home, struct cairn_home_stream **stream_out,
                                    struct cairn_sentence *why)
{
    return home->kind->stream_open(home, stream_out, why);
}

void cairn_home_stream_close(struct cairn_home_stream *stream)
{
    if (stream != NULL) stream->home->kind->stream_close(stream);
}

cairn_status cairn_home_run(struct cairn_home_stream *stream, struct cairn_work *works,
                            size_t count, struct cairn_sentence *why)
{
    return count == 0 ? CAIRN_OK : stream->home->kind->run(stream, works, count, why);
}

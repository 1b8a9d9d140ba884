/* The door to homes: each call goes to the home's kind. */
#include "gpu/home_kind.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

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

const char *cairn_home_failure(struct cairn_home *home)
{
    return home->kind->failure != NULL ? home->kind->failure(home) : NULL;
}

bool cairn_home_has_failed(struct cairn_home *home)
{
    return cairn_home_failure(home) != NULL;
}

struct cairn_home_use cairn_home_use(struct cairn_home *home)
{
    return home->kind->use(home);
}

bool cairn_home_has(const struct cairn_home *home, const void *address)
{
    return home->kind->has(home, address);
}

static cairn_status open_memory(const char *label, struct cairn_home_memory memory,
                                struct cairn_home_memory *memory_out, struct cairn_sentence *why)
{
    const cairn_status status = memory.bytes == 0 ? CAIRN_OK
                                                  : memory.home->kind->memory_open(
                                                        memory.home, label, &memory, why);
    if (status == CAIRN_OK) *memory_out = memory;
    return status;
}

cairn_status cairn_home_memory_open(struct cairn_home *home, const char *label, uint64_t bytes,
                                    struct cairn_home_memory *memory_out,
                                    struct cairn_sentence *why)
{
    const struct cairn_home_memory memory = { .home = home, .bytes = bytes };
    return open_memory(label, memory, memory_out, why);
}

cairn_status cairn_home_memory_open_exportable(struct cairn_home *home, const char *label,
                                               uint64_t bytes, struct cairn_home_memory *memory_out,
                                               struct cairn_sentence *why)
{
    const struct cairn_home_memory memory = { .home = home, .bytes = bytes, .is_exportable = true };
    if (!home->info.exports)
        return cairn_fail(why, CAIRN_ERR_UNSUPPORTED,
                          "%s: %s has no memory that other processes can map", label,
                          home->info.device);
    return open_memory(label, memory, memory_out, why);
}

cairn_status cairn_home_memory_open_room(const char *label, uint64_t bytes, uint64_t room_bytes,
                                         bool is_exportable, struct cairn_home_memory *memory_out,
                                         struct cairn_sentence *why)
{
    const struct cairn_home_memory memory = { .home = cairn_home_host(),
                                              .bytes = bytes,
                                              .room_bytes = room_bytes > bytes ? room_bytes : bytes,
                                              .is_exportable = is_exportable };
    return open_memory(label, memory, memory_out, why);
}

cairn_status cairn_home_memory_resize(struct cairn_home_memory *memory, const char *label,
                                      uint64_t bytes, struct cairn_sentence *why)
{
    assert(memory->base != NULL && memory->home->kind->memory_resize != NULL);
    if (bytes > memory->room_bytes)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY,
                          "%s: %llu bytes are wanted, and there are addresses for %llu", label,
                          (unsigned long long)bytes, (unsigned long long)memory->room_bytes);
    return bytes == memory->bytes ? CAIRN_OK
                                  : memory->home->kind->memory_resize(memory, label, bytes, why);
}

uint64_t cairn_home_memory_segments(const struct cairn_home_memory *memory)
{
    return cairn_segments(memory->bytes);
}

cairn_status cairn_home_memory_export(const struct cairn_home_memory *memory, uint64_t segment,
                                      int *fd_out, uint64_t *bytes_out, struct cairn_sentence *why)
{
    assert(segment < cairn_home_memory_segments(memory));
    if (!memory->is_exportable)
        return cairn_fail(
            why, CAIRN_ERR_UNSUPPORTED,
            "only published copies are exported: what was not opened for it cannot be");
    return memory->home->kind->memory_export(memory, segment, fd_out, bytes_out, why);
}

void cairn_home_memory_give(struct cairn_home_memory *memory, uint64_t segment)
{
    assert(segment < cairn_home_memory_segments(memory));
    memory->home->kind->memory_give(memory, segment);
}

void cairn_home_memory_close(struct cairn_home_memory *memory)
{
    if (memory->base != NULL) memory->home->kind->memory_close(memory);
    *memory = (struct cairn_home_memory) { 0 };
}

cairn_status cairn_home_import(struct cairn_home *home, int fd, uint64_t bytes,
                               const void **address_out, struct cairn_sentence *why)
{
    if (home->kind->import != NULL) return home->kind->import(home, fd, bytes, address_out, why);
    close(fd);
    return cairn_fail(why, CAIRN_ERR_UNSUPPORTED, "state lies in host memory here");
}

void cairn_home_import_release(struct cairn_home *home, const void *address, uint64_t bytes)
{
    home->kind->import_release(home, address, bytes);
}

cairn_status cairn_home_pin(struct cairn_home *home, void *host, uint64_t bytes,
                            struct cairn_sentence *why)
{
    return home->kind->pin(home, host, bytes, why);
}

void cairn_home_unpin(struct cairn_home *home, void *host, uint64_t bytes)
{
    home->kind->unpin(home, host, bytes);
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

cairn_status cairn_home_stream_begin(struct cairn_home_stream *stream, struct cairn_sentence *why)
{
    const struct cairn_home_kind *kind = stream->home->kind;
    return kind->stream_begin == NULL ? CAIRN_OK : kind->stream_begin(stream, why);
}

cairn_status cairn_home_run(struct cairn_home_stream *stream, struct cairn_work *works,
                            size_t count, struct cairn_sentence *why)
{
    if (count == 0) return CAIRN_OK;
    const cairn_status status = cairn_home_run_begin(stream, works, count, why);
    return status == CAIRN_OK ? cairn_home_run_finish(stream, why) : status;
}

cairn_status cairn_home_run_begin(struct cairn_home_stream *stream, struct cairn_work *works,
                                  size_t count, struct cairn_sentence *why)
{
    assert(count > 0);
    return stream->home->kind->run_begin(stream, works, count, why);
}

cairn_status cairn_home_run_finish(struct cairn_home_stream *stream, struct cairn_sentence *why)
{
    const struct cairn_home_kind *kind = stream->home->kind;
    return kind->run_finish == NULL ? CAIRN_OK : kind->run_finish(stream, why);
}

void cairn_copy_runs(const struct cairn_work *work)
{
    uint8_t *to = work->runs.to;
    const uint8_t *from = work->runs.from;
    for (uint64_t i = 0; i < work->runs.run_count; i++)
        memcpy(to + i * work->runs.to_stride, from + i * work->runs.from_stride,
               work->runs.run_bytes);
}

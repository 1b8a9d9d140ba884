/* The public functions of homes: each calls the function of the home's kind. */
#include "gpu/home_kind.h"

#include <inttypes.h>
#include <assert.h>
#include <string.h>
#include <unistd.h>

void home_close(struct home *home)
{
    if (home != NULL && home->kind->close != NULL) home->kind->close(home);
}

const struct home_info *home_info(const struct home *home)
{
    return &home->info;
}

uint64_t home_free_bytes(struct home *home)
{
    return home->kind->free_bytes(home);
}

const char *home_failure(struct home *home)
{
    return home->kind->failure != NULL ? home->kind->failure(home) : NULL;
}

bool home_has_failed(struct home *home)
{
    return home_failure(home) != NULL;
}

struct home_use home_use(struct home *home)
{
    return home->kind->use != NULL ? home->kind->use(home) : (struct home_use) { 0 };
}

static cairn_status open_memory(const char *label, struct home_memory memory,
                                struct home_memory *memory_out, struct sentence *why)
{
    const cairn_status status = memory.bytes == 0 ? CAIRN_OK
                                                  : memory.home->kind->memory_open(
                                                        memory.home, label, &memory, why);
    if (status == CAIRN_OK) *memory_out = memory;
    return status;
}

cairn_status home_memory_open(struct home *home, const char *label, uint64_t bytes,
                              struct home_memory *memory_out, struct sentence *why)
{
    const struct home_memory memory = { .home = home, .bytes = bytes };
    return open_memory(label, memory, memory_out, why);
}

cairn_status home_memory_open_exportable(struct home *home, const char *label, uint64_t bytes,
                                         struct home_memory *memory_out, struct sentence *why)
{
    const struct home_memory memory = { .home = home, .bytes = bytes, .is_exportable = true };
    if (!home->info.exports)
        return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                         "%s: %s has no memory that other processes can map", label,
                         home->info.device);
    return open_memory(label, memory, memory_out, why);
}

cairn_status home_memory_open_room(const char *label, uint64_t bytes, uint64_t room_bytes,
                                   bool is_exportable, struct home_memory *memory_out,
                                   struct sentence *why)
{
    const struct home_memory memory = { .home = home_host(),
                                        .bytes = bytes,
                                        .room_bytes = room_bytes > bytes ? room_bytes : bytes,
                                        .is_exportable = is_exportable };
    return open_memory(label, memory, memory_out, why);
}

cairn_status home_memory_adopt(const char *label, const int *fds, uint64_t bytes,
                               uint64_t room_bytes, struct home_memory *memory_out,
                               struct sentence *why)
{
    struct home_memory memory = { .home = home_host(),
                                  .bytes = bytes,
                                  .room_bytes = room_bytes > bytes ? room_bytes : bytes };
    if (bytes > 0) CAIRN_TRY(host_memory_adopt(label, fds, &memory, why));
    *memory_out = memory;
    return CAIRN_OK;
}

int home_memory_fd(const struct home_memory *memory, uint64_t segment)
{
    assert(segment < home_memory_segments(memory) && memory->home == home_host());
    return host_memory_fd(memory, segment);
}

cairn_status home_memory_resize(struct home_memory *memory, const char *label, uint64_t bytes,
                                struct sentence *why)
{
    assert(memory->base != NULL && memory->home->kind->memory_resize != NULL);
    if (bytes > memory->room_bytes)
        return fail_with(why, CAIRN_ERR_NO_MEMORY,
                         "%s: %" PRIu64 " bytes are wanted, and there are addresses for %" PRIu64,
                         label, bytes, memory->room_bytes);
    return bytes == memory->bytes ? CAIRN_OK
                                  : memory->home->kind->memory_resize(memory, label, bytes, why);
}

uint64_t home_memory_segments(const struct home_memory *memory)
{
    return memory_segments(memory->bytes);
}

cairn_status home_memory_export(const struct home_memory *memory, uint64_t segment, int *fd_out,
                                uint64_t *bytes_out, struct sentence *why)
{
    assert(segment < home_memory_segments(memory));
    if (!memory->is_exportable)
        return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                         "only published copies are exported: this memory was not opened for that");
    return memory->home->kind->memory_export(memory, segment, fd_out, bytes_out, why);
}

void home_memory_give(struct home_memory *memory, uint64_t segment)
{
    assert(segment < home_memory_segments(memory));
    memory->home->kind->memory_give(memory, segment);
}

void home_memory_close(struct home_memory *memory)
{
    if (memory->base != NULL) memory->home->kind->memory_close(memory);
    *memory = (struct home_memory) { 0 };
}

cairn_status home_import(struct home *home, int fd, uint64_t bytes, const void **address_out,
                         struct sentence *why)
{
    if (home->kind->import != NULL) return home->kind->import(home, fd, bytes, address_out, why);
    close(fd);
    return fail_with(why, CAIRN_ERR_UNSUPPORTED, "state lies in host memory here");
}

void home_import_release(struct home *home, const void *address, uint64_t bytes)
{
    home->kind->import_release(home, address, bytes);
}

cairn_status home_pin(struct home *home, void *host, uint64_t bytes, struct sentence *why)
{
    return home->kind->pin != NULL ? home->kind->pin(home, host, bytes, why) : CAIRN_OK;
}

void home_unpin(struct home *home, void *host, uint64_t bytes)
{
    if (home->kind->unpin != NULL) home->kind->unpin(home, host, bytes);
}

cairn_status home_stream_open(struct home *home, struct home_stream **stream_out,
                              struct sentence *why)
{
    return home->kind->stream_open(home, stream_out, why);
}

void home_stream_close(struct home_stream *stream)
{
    if (stream != NULL && stream->home->kind->stream_close != NULL)
        stream->home->kind->stream_close(stream);
}

cairn_status home_stream_begin(struct home_stream *stream, struct sentence *why)
{
    const struct home_kind *kind = stream->home->kind;
    return kind->stream_begin == NULL ? CAIRN_OK : kind->stream_begin(stream, why);
}

cairn_status home_run(struct home_stream *stream, struct home_work *works, size_t count,
                      struct sentence *why)
{
    if (count == 0) return CAIRN_OK;
    const cairn_status status = home_run_begin(stream, works, count, why);
    return status == CAIRN_OK ? home_run_finish(stream, why) : status;
}

cairn_status home_run_begin(struct home_stream *stream, struct home_work *works, size_t count,
                            struct sentence *why)
{
    assert(count > 0);
    return stream->home->kind->run_begin(stream, works, count, why);
}

cairn_status home_run_finish(struct home_stream *stream, struct sentence *why)
{
    const struct home_kind *kind = stream->home->kind;
    return kind->run_finish == NULL ? CAIRN_OK : kind->run_finish(stream, why);
}

void home_copy_runs(const struct runs_work *runs)
{
    uint8_t *to = runs->to;
    const uint8_t *from = runs->from;
    for (uint64_t i = 0; i < runs->run_count; i++)
        memcpy(to + i * runs->to_stride, from + i * runs->from_stride, runs->run_bytes);
}

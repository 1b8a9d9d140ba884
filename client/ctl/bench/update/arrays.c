/* The arrays of cairn bench update: where a shard of that home has them. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/ctl/bench/update/update.h"
#include "proto/base/pages.h"
#include "proto/fabric/stagger.h"

#define LIST_CHUNKS_MAX 1024
#define FILL_WORKS      (CAIRN_UPDATE_SOURCES + 1)

static bool is_host(const struct cairn_update_arrays *arrays)
{
    return cairn_home_info(arrays->home)->is_host;
}

/* ---- memory ---- */

/* In large pages, as a shard's arenas are. */
static void *map_host(struct cairn_update_map *map, size_t bytes)
{
    char *at = cairn_pages_map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (at == MAP_FAILED) return NULL;
    madvise(at, bytes, MADV_HUGEPAGE);
    map->map = at;
    map->bytes = bytes;
    return at;
}

static void *make_memory(struct cairn_update_arrays *arrays, size_t bytes,
                         struct cairn_sentence *why)
{
    struct cairn_update_map *map = &arrays->maps[arrays->map_count];
    void *base = NULL;
    if (is_host(arrays)) {
        base = map_host(map, bytes);
        if (base == NULL) cairn_sentence_set(why, "no memory for %zu parameters", arrays->elems);
    } else if (cairn_home_memory_open(arrays->home, "bench", bytes, &map->memory, why) ==
               CAIRN_OK) {
        base = map->memory.base;
    }
    if (base != NULL) arrays->map_count++;
    return base;
}

/* `begin`: where a shard has it in a page, proto/fabric/stagger.h. */
static void *make_array(struct cairn_update_arrays *arrays, size_t stream, size_t bytes_per_elem,
                        struct cairn_sentence *why)
{
    const size_t begin = is_host(arrays) ? cairn_stagger_begin(stream) : 0;
    char *base = make_memory(arrays, begin + arrays->elems * bytes_per_elem, why);
    if (base == NULL) return NULL;
    arrays->streams[arrays->stream_count++] = (struct cairn_bench_stream) { base + begin,
                                                                            bytes_per_elem };
    arrays->streams_bytes += bytes_per_elem;
    return base + begin;
}

/* Pinned as a shard's landing is; where that fails, copies are slower, and right. */
static bool make_host(struct cairn_update_arrays *arrays, struct cairn_sentence *why)
{
    const size_t bytes = arrays->elems * sizeof *arrays->host;
    struct cairn_sentence unpinned;
    arrays->host = map_host(&arrays->maps[arrays->map_count], bytes);
    if (arrays->host == NULL) {
        cairn_sentence_set(why, "no memory for %zu parameters", arrays->elems);
        return false;
    }
    arrays->map_count++;
    memset(arrays->host, 0, bytes);
    arrays->is_pinned = cairn_home_pin(arrays->home, arrays->host, bytes, &unpinned) == CAIRN_OK;
    return true;
}

static bool make_arrays(struct cairn_update_arrays *a, struct cairn_sentence *why)
{
    const size_t wire = cairn_dtype_bytes((int)a->wire_dtype);
    const bool is_all = a->only == CAIRN_UPDATE_ALL;
    const bool updates = is_all || a->only == CAIRN_UPDATE_ADAMW || a->only == CAIRN_UPDATE_ZEROS;
    const bool folds = is_all || a->only == CAIRN_UPDATE_FOLD;
    bool ok = true;
    for (size_t s = 0; s < CAIRN_UPDATE_SOURCES && folds; s++)
        ok = ok && (a->sources[s] = make_array(a, s, wire, why)) != NULL;
    if (folds || updates) ok = ok && (a->sum = make_array(a, CAIRN_STREAM_SUM, 4, why)) != NULL;
    if (updates || !folds)
        ok = ok && (a->param = make_array(a, CAIRN_STREAM_PARAM, 4, why)) != NULL;
    if (updates) {
        ok = ok && (a->exp_avg = make_array(a, CAIRN_STREAM_EXP_AVG, 4, why)) != NULL;
        ok = ok && (a->exp_avg_sq = make_array(a, CAIRN_STREAM_EXP_AVG_SQ, 4, why)) != NULL;
    }
    if (is_all) ok = ok && (a->wire = make_array(a, CAIRN_STREAM_WIRE, wire, why)) != NULL;
    if (!is_host(a))
        ok = ok && (a->copies = make_memory(a, a->elems * a->streams_bytes, why)) != NULL;
    return ok && (a->only != CAIRN_UPDATE_COPY || make_host(a, why));
}

/* ---- threads ---- */

static bool make_thread(struct cairn_update_arrays *arrays, struct cairn_update_thread *thread,
                        struct cairn_sentence *why)
{
    const size_t works = arrays->list_chunks > FILL_WORKS ? arrays->list_chunks : FILL_WORKS;
    if (cairn_home_stream_open(arrays->home, &thread->stream, why) != CAIRN_OK) return false;
    thread->slots = calloc(arrays->list_chunks, sizeof *thread->slots);
    thread->works = calloc(works, sizeof *thread->works);
    thread->values = calloc(CAIRN_UPDATE_CHUNK_ELEMS, sizeof *thread->values);
    if (thread->slots != NULL && thread->works != NULL && thread->values != NULL) return true;
    cairn_sentence_set(why, "no memory for the works of a thread");
    return false;
}

bool cairn_update_arrays_open(struct cairn_update_arrays *arrays, struct cairn_sentence *why)
{
    const uint32_t best = cairn_home_info(arrays->home)->works_best;
    arrays->list_chunks = best < 1 ? 1 : best < LIST_CHUNKS_MAX ? best : LIST_CHUNKS_MAX;
    if (!make_arrays(arrays, why)) return false;
    for (uint32_t i = 0; i < arrays->threads; i++)
        if (!make_thread(arrays, &arrays->thread[i], why)) return false;
    return cairn_update_pass_fill(arrays, why);
}

void cairn_update_arrays_close(struct cairn_update_arrays *arrays)
{
    for (uint32_t i = 0; i < CAIRN_UPDATE_THREADS_MAX; i++) {
        cairn_home_stream_close(arrays->thread[i].stream);
        free(arrays->thread[i].slots);
        free(arrays->thread[i].works);
        free(arrays->thread[i].values);
    }
    if (arrays->is_pinned)
        cairn_home_unpin(arrays->home, arrays->host, arrays->elems * sizeof *arrays->host);
    for (size_t m = 0; m < arrays->map_count; m++) {
        cairn_home_memory_close(&arrays->maps[m].memory);
        if (arrays->maps[m].map != NULL) munmap(arrays->maps[m].map, arrays->maps[m].bytes);
    }
}

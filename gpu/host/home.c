/* The host's home: memory of this process, and works that the thread which runs them does at once. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "gpu/host/host.h"
#include "gpu/host/memory.h"

static void close_home(struct cairn_home *home)
{
    (void)home; // static memory
}

static uint64_t free_bytes(struct cairn_home *home)
{
    (void)home;
    return UINT64_MAX;
}

static struct cairn_home_use use(struct cairn_home *home)
{
    (void)home;
    return (struct cairn_home_use) { 0 };
}

static bool has(const struct cairn_home *home, const void *address)
{
    (void)home;
    (void)address;
    return true;
}

static cairn_status pin(struct cairn_home *home, void *host, uint64_t bytes,
                        struct cairn_sentence *why)
{
    (void)home;
    (void)host;
    (void)bytes;
    (void)why;
    return CAIRN_OK;
}

static void unpin(struct cairn_home *home, void *host, uint64_t bytes)
{
    (void)home;
    (void)host;
    (void)bytes;
}

/* ---- streams ---- */

static struct cairn_home host_home;
static struct cairn_home_stream the_stream = {
    .home = &host_home
}; // nothing more is to be known of one

static cairn_status stream_open(struct cairn_home *home, struct cairn_home_stream **stream_out,
                                struct cairn_sentence *why)
{
    (void)home;
    (void)why;
    *stream_out = &the_stream;
    return CAIRN_OK;
}

static void stream_close(struct cairn_home_stream *closed)
{
    (void)closed;
}

/* ---- works ---- */

static void fold_sums(const struct cairn_backend *host, const struct cairn_leaf_fold *fold)
{
    if (fold->source_count > 0)
        host->fold_leaves(fold);
    else
        host->sum_leaves(fold->acc, fold->geometry, fold->first_leaf, fold->leaf_count, fold->sums);
}

static void run_one(const struct cairn_backend *host, struct cairn_work *work)
{
    switch (work->kind) {
    case CAIRN_WORK_FOLD:
        host->fold(work->fold.acc, work->fold.sources, work->fold.source_count, work->fold.first,
                   work->fold.elems);
        break;
    case CAIRN_WORK_FOLD_SUMS: fold_sums(host, &work->fold_sums); break;
    case CAIRN_WORK_UPDATE:
        *work->update.nonfinite = host->update[work->update.scalars->optimizer](
            &work->update.planes, work->update.scalars);
        break;
    case CAIRN_WORK_CONVERT:
        host->convert(work->convert.dst, work->convert.dst_dtype, work->convert.src,
                      work->convert.src_dtype, work->convert.elems);
        break;
    case CAIRN_WORK_COPY: memcpy(work->copy.to, work->copy.from, work->copy.bytes); break;
    case CAIRN_WORK_ZERO: memset(work->zero.at, 0, work->zero.bytes); break;
    case CAIRN_WORK_HASH:
        host->hash_each(work->hash.plane, work->hash.dtype, work->hash.geometry,
                        work->hash.first_leaf, work->hash.leaf_count, work->hash.hashes);
        break;
    case CAIRN_WORK_INIT:
        cairn_init_elems(&work->init.source, work->init.first_elem, work->init.elems,
                         work->init.out);
        break;
    case CAIRN_WORK_RUNS: cairn_copy_runs(work); break;
    case CAIRN_WORK_KINDS: break;
    }
}

static cairn_status run_begin(struct cairn_home_stream *of, struct cairn_work *works, size_t count,
                              struct cairn_sentence *why)
{
    (void)of;
    (void)why;
    const struct cairn_backend *host = cairn_backend_host();
    for (size_t i = 0; i < count; i++) run_one(host, &works[i]);
    return CAIRN_OK;
}

/* ---- the home ---- */

static const struct cairn_home_kind kind = {
    .close = close_home,
    .free_bytes = free_bytes,
    .use = use,
    .has = has,
    .memory_open = cairn_host_memory_open,
    .memory_close = cairn_host_memory_close,
    .memory_resize = cairn_host_memory_resize,
    .memory_export = cairn_host_memory_export,
    .memory_give = cairn_host_memory_give,
    .pin = pin,
    .unpin = unpin,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .run_begin = run_begin,
};

static struct cairn_home host_home = {
    .kind = &kind,
    .info = { .backend = "host",
              .is_host = true,
              .exports = true,
              .works_best = 1,
              .lists_max = 1,
              .numa_node = CAIRN_NUMA_NONE },
};

static void name_device(void)
{
    snprintf(host_home.info.device, sizeof host_home.info.device, "%s", cairn_backend_host()->isa);
}

struct cairn_home *cairn_home_host(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, name_device);
    return &host_home;
}

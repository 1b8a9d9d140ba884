/* Passes of cairn bench update. Every thread has its part of the chunks, always the same, and has touched it
 * first; it gives its home as many chunks at once as the home likes best. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/update/update.h"

#define CHUNK_ELEMS CAIRN_UPDATE_CHUNK_ELEMS

struct pass_thread;
/* Chunks [first, first + count), at most list_chunks of them. */
typedef cairn_status (*list_fn)(struct pass_thread *thread, size_t first, size_t count);

struct pass_thread {
    struct cairn_update_arrays *arrays;
    struct cairn_update_thread *own;
    list_fn run;
    uint32_t number;
    size_t list_chunks;
    double cpu; /* seconds of the core that it took */
    cairn_status status;
    struct cairn_sentence why;
};

static char *at(void *array, size_t chunk, size_t bytes_per_elem)
{
    return (char *)array + chunk * CHUNK_ELEMS * bytes_per_elem;
}

/* ---- lists of works ---- */

static struct cairn_work fold_of(const struct cairn_update_arrays *arrays, size_t chunk,
                                 struct cairn_update_slot *slot)
{
    const size_t wire = cairn_dtype_bytes((int)arrays->wire_dtype);
    memset(&slot->sums, 0, sizeof slot->sums);
    for (int s = 0; s < CAIRN_UPDATE_SOURCES; s++)
        slot->sources[s] = (struct cairn_source) { .data = at(arrays->sources[s], chunk, wire),
                                                   .dtype = arrays->wire_dtype };
    return (struct cairn_work) { .kind = CAIRN_WORK_FOLD_SUMS,
                                 .fold_sums = { .acc = arrays->sum + chunk * CHUNK_ELEMS,
                                                .sources = slot->sources,
                                                .source_count = CAIRN_UPDATE_SOURCES,
                                                .first = true,
                                                .far = true,
                                                .geometry = &arrays->geometry,
                                                .first_leaf = chunk * CAIRN_UPDATE_CHUNK_LEAVES,
                                                .leaf_count = CAIRN_UPDATE_CHUNK_LEAVES,
                                                .sums = &slot->sums } };
}

static struct cairn_work update_of(const struct cairn_update_arrays *arrays, size_t chunk,
                                   struct cairn_update_slot *slot)
{
    const size_t first = chunk * CHUNK_ELEMS, wire = cairn_dtype_bytes((int)arrays->wire_dtype);
    return (struct cairn_work) {
        .kind = CAIRN_WORK_UPDATE,
        .update = { .planes = { .grad = arrays->sum + first,
                                .param = arrays->param + first,
                                .exp_avg = arrays->exp_avg + first,
                                .exp_avg_sq = arrays->exp_avg_sq + first,
                                .wire = arrays->wire != NULL ? at(arrays->wire, chunk, wire) : NULL,
                                .wire_dtype = arrays->wire_dtype,
                                .elems = CHUNK_ELEMS,
                                .far = true },
                    .scalars = &arrays->scalars,
                    .nonfinite = &slot->nonfinite }
    };
}

static cairn_status fold_list(struct pass_thread *thread, size_t first, size_t count)
{
    struct cairn_update_thread *own = thread->own;
    for (size_t i = 0; i < count; i++)
        own->works[i] = fold_of(thread->arrays, first + i, &own->slots[i]);
    return cairn_home_run(own->stream, own->works, count, &thread->why);
}

static cairn_status update_list(struct pass_thread *thread, size_t first, size_t count)
{
    struct cairn_update_thread *own = thread->own;
    for (size_t i = 0; i < count; i++)
        own->works[i] = update_of(thread->arrays, first + i, &own->slots[i]);
    return cairn_home_run(own->stream, own->works, count, &thread->why);
}

static struct cairn_work hash_of(const struct cairn_update_arrays *arrays, size_t chunk,
                                 struct cairn_update_slot *slot)
{
    return (struct cairn_work) { .kind = CAIRN_WORK_HASH,
                                 .hash = { .plane = arrays->param + chunk * CHUNK_ELEMS,
                                           .dtype = CAIRN_F32,
                                           .geometry = &arrays->geometry,
                                           .first_leaf = chunk * CAIRN_UPDATE_CHUNK_LEAVES,
                                           .leaf_count = CAIRN_UPDATE_CHUNK_LEAVES,
                                           .hashes = slot->hashes } };
}

static cairn_status hash_list(struct pass_thread *thread, size_t first, size_t count)
{
    struct cairn_update_thread *own = thread->own;
    for (size_t i = 0; i < count; i++)
        own->works[i] = hash_of(thread->arrays, first + i, &own->slots[i]);
    return cairn_home_run(own->stream, own->works, count, &thread->why);
}

/* A leaf after the other. */
static cairn_status libsodium_list(struct pass_thread *thread, size_t first, size_t count)
{
    struct cairn_update_thread *own = thread->own;
    for (size_t i = 0; i < count; i++) {
        const struct cairn_work work = hash_of(thread->arrays, first + i, &own->slots[i]);
        cairn_backend_host_at(0)->hash_each(work.hash.plane, work.hash.dtype, work.hash.geometry,
                                            work.hash.first_leaf, work.hash.leaf_count,
                                            work.hash.hashes);
    }
    return CAIRN_OK;
}

static cairn_status copy_list(struct pass_thread *thread, float *to, const float *from,
                              size_t first, size_t count)
{
    struct cairn_update_thread *own = thread->own;
    for (size_t i = 0; i < count; i++) {
        const size_t at = (first + i) * CHUNK_ELEMS;
        own->works[i] = (struct cairn_work) {
            .kind = CAIRN_WORK_COPY,
            .copy = { .to = to + at, .from = from + at, .bytes = CHUNK_ELEMS * sizeof(float) }
        };
    }
    return cairn_home_run(own->stream, own->works, count, &thread->why);
}

static cairn_status in_list(struct pass_thread *thread, size_t first, size_t count)
{
    return copy_list(thread, thread->arrays->param, thread->arrays->host, first, count);
}

static cairn_status out_list(struct pass_thread *thread, size_t first, size_t count)
{
    return copy_list(thread, thread->arrays->host, thread->arrays->param, first, count);
}

/* Used by the reference pass on the host alone. */
static cairn_status touch_list(struct pass_thread *thread, size_t first, size_t count)
{
    cairn_bench_streams_touch(thread->arrays->streams, thread->arrays->stream_count,
                              first * CHUNK_ELEMS, count * CHUNK_ELEMS);
    return CAIRN_OK;
}

static cairn_status fill_list(struct pass_thread *thread, size_t first, size_t count)
{
    const struct cairn_update_arrays *arrays = thread->arrays;
    struct cairn_update_thread *own = thread->own;
    const size_t wire = cairn_dtype_bytes((int)arrays->wire_dtype);
    uint32_t state = (uint32_t)first * 2654435761u + 1;
    size_t works = 0;
    for (size_t i = 0; i < CHUNK_ELEMS; i++) {
        state = state * 1664525u + 1013904223u;
        own->values[i] = arrays->only == CAIRN_UPDATE_ZEROS
                             ? 0
                             : ((float)(state >> 8) - 8388608.0f) * 0x1p-30f;
    }
    float *plain = arrays->sum != NULL ? arrays->sum : arrays->param;
    own->works[works++] = (struct cairn_work) { .kind = CAIRN_WORK_COPY,
                                                .copy = { .to = plain + first * CHUNK_ELEMS,
                                                          .from = own->values,
                                                          .bytes = CHUNK_ELEMS * sizeof(float) } };
    for (int s = 0; s < CAIRN_UPDATE_SOURCES && arrays->sources[s] != NULL; s++)
        own->works[works++] =
            (struct cairn_work) { .kind = CAIRN_WORK_CONVERT,
                                  .convert = { .dst = at(arrays->sources[s], first, wire),
                                               .dst_dtype = arrays->wire_dtype,
                                               .src = own->values,
                                               .src_dtype = CAIRN_F32,
                                               .elems = CHUNK_ELEMS } };
    const cairn_status status = cairn_home_run(own->stream, own->works, works, &thread->why);
    if (status != CAIRN_OK || arrays->exp_avg == NULL) return status;
    return update_list(thread, first, count);
}

/* ---- threads ---- */

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *pass_main(void *argument)
{
    struct pass_thread *thread = argument;
    const double begin = cpu_now();
    const size_t chunks = thread->arrays->elems / CHUNK_ELEMS;
    const size_t end = chunks * (thread->number + 1) / thread->arrays->threads;
    size_t c = chunks * thread->number / thread->arrays->threads;
    while (c < end && thread->status == CAIRN_OK) {
        const size_t count = end - c < thread->list_chunks ? end - c : thread->list_chunks;
        thread->status = thread->run(thread, c, count);
        c += count;
    }
    thread->cpu = cpu_now() - begin;
    return NULL;
}

/* The seconds it took, and of all cores in *cpu_sum; 0: it failed. */
static double run_pass(struct cairn_update_arrays *arrays, list_fn run, size_t list_chunks,
                       double *cpu_sum, struct cairn_sentence *why)
{
    static struct pass_thread threads[CAIRN_UPDATE_THREADS_MAX];
    pthread_t ids[CAIRN_UPDATE_THREADS_MAX];
    uint32_t started = 1;
    int failed = 0;
    const double begin = cairn_bench_now();
    for (uint32_t i = 0; i < arrays->threads; i++) {
        threads[i] = (struct pass_thread) { .arrays = arrays, .run = run, .number = i };
        threads[i].own = &arrays->thread[i];
        threads[i].list_chunks = list_chunks;
    }
    for (; started < arrays->threads && failed == 0; started += failed == 0)
        failed = pthread_create(&ids[started], NULL, pass_main, &threads[started]);
    pass_main(&threads[0]);
    for (uint32_t i = 1; i < started; i++) pthread_join(ids[i], NULL);
    const double seconds = cairn_bench_now() - begin;
    for (uint32_t i = 0; i < started; i++) {
        *cpu_sum += threads[i].cpu;
        if (threads[i].status == CAIRN_OK) continue;
        *why = threads[i].why;
        return 0;
    }
    if (failed == 0) return seconds;
    cairn_sentence_set(why, "cannot start thread %u of %u: %s", started + 1, arrays->threads,
                       strerror(failed));
    return 0;
}

/* ---- the passes ---- */

bool cairn_update_pass_fill(struct cairn_update_arrays *arrays, struct cairn_sentence *why)
{
    double unused = 0;
    return run_pass(arrays, fill_list, 1, &unused, why) > 0;
}

double cairn_update_pass_fold(struct cairn_update_arrays *arrays, double *cpu_sum,
                              struct cairn_sentence *why)
{
    return run_pass(arrays, fold_list, arrays->list_chunks, cpu_sum, why);
}

double cairn_update_pass_update(struct cairn_update_arrays *arrays, double *cpu_sum,
                                struct cairn_sentence *why)
{
    return run_pass(arrays, update_list, arrays->list_chunks, cpu_sum, why);
}

double cairn_update_pass_hash(struct cairn_update_arrays *arrays, double *cpu_sum,
                              struct cairn_sentence *why)
{
    return run_pass(arrays, hash_list, arrays->list_chunks, cpu_sum, why);
}

double cairn_update_pass_libsodium(struct cairn_update_arrays *arrays, double *cpu_sum,
                                   struct cairn_sentence *why)
{
    return run_pass(arrays, libsodium_list, arrays->list_chunks, cpu_sum, why);
}

double cairn_update_pass_in(struct cairn_update_arrays *arrays, double *cpu_sum,
                            struct cairn_sentence *why)
{
    return run_pass(arrays, in_list, arrays->list_chunks, cpu_sum, why);
}

double cairn_update_pass_out(struct cairn_update_arrays *arrays, double *cpu_sum,
                             struct cairn_sentence *why)
{
    return run_pass(arrays, out_list, arrays->list_chunks, cpu_sum, why);
}

/* One list: the device has all of it at once. */
static double copy_all(struct cairn_update_arrays *arrays, struct cairn_sentence *why)
{
    struct cairn_work works[CAIRN_BENCH_STREAMS_MAX];
    char *to = arrays->copies;
    for (size_t s = 0; s < arrays->stream_count; s++) {
        const size_t bytes = arrays->elems * arrays->streams[s].bytes_per_elem;
        works[s] = (struct cairn_work) { .kind = CAIRN_WORK_COPY,
                                         .copy = { to, arrays->streams[s].data, bytes } };
        to += bytes;
    }
    const double begin = cairn_bench_now();
    if (cairn_home_run(arrays->thread[0].stream, works, arrays->stream_count, why) != CAIRN_OK)
        return 0;
    return cairn_bench_now() - begin;
}

double cairn_update_pass_reference(struct cairn_update_arrays *arrays, double *cpu_sum,
                                   struct cairn_sentence *why)
{
    if (arrays->copies != NULL) return copy_all(arrays, why);
    return run_pass(arrays, touch_list, 1, cpu_sum, why);
}

/* cairn bench update: what a shard does with the gradients of a step, by the kernels and in the passes of
 * server/shard/job/update.c, without the messages: two contributions are folded and summed, then AdamW
 * updates and publishes. Counted bytes an element, with bf16 on the wire (fp32):
 *
 *   fold      reads 2 contributions of 2 (4), writes the sum 4                          8  (12)
 *   update    reads the sum 4, reads and writes parameter and two moments 24,
 *             writes the published copy 2 (4)                                          30  (32)
 *
 * What the hardware adds (it reads a line before it writes a part of it) is not counted. The reference
 * updates the same seven arrays in place: each is read and written, 38 bytes an element (48).
 * On a device (--backend cuda) the arrays lie on it, and the reference copies as many bytes there.
 * --only adamw: the update of one fp32 gradient without a published copy, as an optimizer in the trainer
 * has it: 28 bytes against four arrays in place. --only zeros: the same where gradients and moments are 0, as
 * of rows that nobody uses; a device's square root and division have a slow way for zero. --only fold: the
 * first row above. --only hash: the leaf hashes of an fp32 plane, 4, against libsodium's. --only copy: such
 * a plane out of pinned host memory into a device, and back, 8. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/update/update.h"

#define PARAMS_DEFAULT      ((uint64_t)64 << 20)
#define THREADS_OF_DEVICE   2 /* while one waits for its list the other one's is at work */
#define PASSES_MAX          2
#define BYTES_MAX           (CAIRN_UPDATE_SOURCES * 4 + 5 * 4) /* an element, of all arrays */
#define BYTES_MAX_OF_DEVICE (2 * BYTES_MAX)                    /* and where they are copied to */

struct update_bench {
    struct cairn_update_arrays arrays;
    double best[PASSES_MAX]; /* seconds of each pass */
    uint64_t launches;       /* of a device, for all of them once */
    /* processor time of all runs: their ratio stands on a machine whose cores others use, too */
    double subject_cpu, reference_cpu;
    struct cairn_sentence why;
};

/* ---- the two runs ---- */

/* Indexed by enum cairn_update_only: --only NAME, its passes, and the counted bytes an element:
 * `bytes`, and `wires` times those of the wire type. */
static const struct subject {
    const char *name;
    struct {
        const char *part;
        cairn_update_pass_fn *run;
    } passes[PASSES_MAX];
    size_t bytes, wires;
} subjects[CAIRN_UPDATE_ONLIES] = {
    [CAIRN_UPDATE_ALL] = { "",
                           { { "fold_s", cairn_update_pass_fold },
                             { "update_s", cairn_update_pass_update } },
                           4 + 28,
                           CAIRN_UPDATE_SOURCES + 1 },
    [CAIRN_UPDATE_ADAMW] = { "adamw", { { "update_s", cairn_update_pass_update } }, 28, 0 },
    [CAIRN_UPDATE_ZEROS] = { "zeros", { { "update_s", cairn_update_pass_update } }, 28, 0 },
    [CAIRN_UPDATE_FOLD] = { "fold",
                            { { "fold_s", cairn_update_pass_fold } },
                            4,
                            CAIRN_UPDATE_SOURCES },
    [CAIRN_UPDATE_HASH] = { "hash", { { "hash_s", cairn_update_pass_hash } }, 4, 0 },
    [CAIRN_UPDATE_COPY] = { "copy",
                            { { "in_s", cairn_update_pass_in },
                              { "out_s", cairn_update_pass_out } },
                            8,
                            0 },
};

static size_t counted_bytes(const struct cairn_update_arrays *arrays)
{
    const struct subject *subject = &subjects[arrays->only];
    return subject->bytes + subject->wires * cairn_dtype_bytes((int)arrays->wire_dtype);
}

/* Hashes of the host are measured against libsodium's, by the same threads; all else against memory. */
static bool is_by_libsodium(const struct cairn_update_arrays *arrays)
{
    return arrays->only == CAIRN_UPDATE_HASH && cairn_home_info(arrays->home)->is_host;
}

static size_t reference_bytes(const struct cairn_update_arrays *arrays)
{
    return is_by_libsodium(arrays) ? counted_bytes(arrays) : 2 * arrays->streams_bytes;
}

static double rate(const struct cairn_update_arrays *arrays, size_t bytes_per_elem, double seconds)
{
    return (double)bytes_per_elem * (double)arrays->elems / seconds * 1e-9;
}

static double fail_run(const struct update_bench *bench)
{
    cairn_ctl_fail(CAIRN_ERR_IO, "%s", bench->why.text);
    return 0;
}

static double run_subject(void *context)
{
    struct update_bench *bench = context;
    struct cairn_update_arrays *arrays = &bench->arrays;
    const struct subject *subject = &subjects[arrays->only];
    double all = 0;
    const uint64_t launches = cairn_home_use(arrays->home).launches;
    for (int p = 0; p < PASSES_MAX && subject->passes[p].run != NULL; p++) {
        const double seconds = subject->passes[p].run(arrays, &bench->subject_cpu, &bench->why);
        if (!(seconds > 0)) return fail_run(bench);
        if (bench->best[p] == 0 || seconds < bench->best[p]) bench->best[p] = seconds;
        all += seconds;
    }
    bench->launches = cairn_home_use(arrays->home).launches - launches;
    return rate(arrays, counted_bytes(arrays), all);
}

static double run_reference(void *context)
{
    struct update_bench *bench = context;
    cairn_update_pass_fn *pass = is_by_libsodium(&bench->arrays) ? cairn_update_pass_libsodium
                                                                 : cairn_update_pass_reference;
    const double seconds = pass(&bench->arrays, &bench->reference_cpu, &bench->why);
    return seconds > 0 ? rate(&bench->arrays, reference_bytes(&bench->arrays), seconds)
                       : fail_run(bench);
}

/* ---- what is asked for ---- */

static bool only_of(const char *name, enum cairn_update_only *out)
{
    for (int i = CAIRN_UPDATE_ALL + 1; i < CAIRN_UPDATE_ONLIES; i++) {
        if (strcmp(name, subjects[i].name) != 0) continue;
        *out = (enum cairn_update_only)i;
        return true;
    }
    return false;
}

/* -1: go on; else the exit status. */
static int judge_words(const struct ctl *ctl, struct cairn_update_arrays *arrays)
{
    const char *wire = ctl->bench.wire, *only = ctl->bench.only, *backend = ctl->bench.backend;
    const bool is_host = backend == NULL || strcmp(backend, "host") == 0;
    if (only != NULL && !only_of(only, &arrays->only))
        return cairn_ctl_usage_fail(ctl, "--only %s: adamw, zeros, fold, hash and copy are allowed",
                                    only);
    if (is_host && arrays->only == CAIRN_UPDATE_COPY)
        return cairn_ctl_usage_fail(ctl, "--only copy is of a device; with --backend cuda");
    if (ctl->bench.device != NULL && is_host)
        return cairn_ctl_usage_fail(ctl, "--device %s: the host has none; with --backend cuda",
                                    ctl->bench.device);
    arrays->wire_dtype = wire != NULL && strcmp(wire, "f32") == 0 ? CAIRN_F32 : CAIRN_BF16;
    return -1;
}

static int open_home(const struct ctl *ctl, struct update_bench *bench)
{
    const char *backend = ctl->bench.backend;
    bench->arrays.home = cairn_home_host();
    if (backend == NULL || strcmp(backend, "host") == 0) return -1;
    const cairn_status status = cairn_home_open_cuda(ctl->bench.device, &bench->arrays.home,
                                                     &bench->why);
    return status == CAIRN_OK ? -1 : cairn_ctl_fail(status, "%s", bench->why.text);
}

static int judge_size(const struct ctl *ctl, struct cairn_update_arrays *arrays)
{
    const bool is_host = cairn_home_info(arrays->home)->is_host;
    const uint64_t room = is_host
                              ? cairn_bench_memory_bytes() / 2 / BYTES_MAX
                              : cairn_home_free_bytes(arrays->home) / 10 * 9 / BYTES_MAX_OF_DEVICE;
    const uint64_t wanted = ctl->bench.params > 0 ? ctl->bench.params : PARAMS_DEFAULT;
    if (ctl->bench.params > room)
        return cairn_ctl_usage_fail(ctl, "--params %llu: %s holds %llu", (unsigned long long)wanted,
                                    is_host ? "half of the memory that is free"
                                            : "what is free of the device, with room for a copy,",
                                    (unsigned long long)room);
    arrays->elems = (size_t)(wanted < room ? wanted : room) / CAIRN_UPDATE_CHUNK_ELEMS *
                    CAIRN_UPDATE_CHUNK_ELEMS;
    if (arrays->elems == 0) arrays->elems = CAIRN_UPDATE_CHUNK_ELEMS;
    const uint32_t threads = is_host ? cairn_bench_core_count() : THREADS_OF_DEVICE;
    arrays->threads = ctl->bench.threads > 0 ? ctl->bench.threads : threads;
    if (arrays->threads > CAIRN_UPDATE_THREADS_MAX) arrays->threads = CAIRN_UPDATE_THREADS_MAX;
    return -1;
}

/* ---- the bench ---- */

static void describe(const struct update_bench *bench, struct cairn_bench_result *result)
{
    const struct cairn_update_arrays *arrays = &bench->arrays;
    const struct cairn_home_info *home = cairn_home_info(arrays->home);
    result->params = json_pack(
        "{s:I, s:I, s:s, s:I, s:I, s:s, s:s}", "params", (json_int_t)arrays->elems, "threads",
        (json_int_t)arrays->threads, "wire", arrays->wire_dtype == CAIRN_F32 ? "f32" : "bf16",
        "bytes_per_param", (json_int_t)counted_bytes(arrays), "reference_bytes_per_param",
        (json_int_t)reference_bytes(arrays), "backend", home->backend, "device", home->device);
    if (home->driver[0] != 0)
        json_object_set_new(result->params, "driver", json_string(home->driver));
    if (arrays->only == CAIRN_UPDATE_COPY)
        json_object_set_new(result->params, "pinned", json_boolean(arrays->is_pinned));
    result->parts = json_object();
    for (int p = 0; p < PASSES_MAX && subjects[arrays->only].passes[p].run != NULL; p++)
        json_object_set_new(result->parts, subjects[arrays->only].passes[p].part,
                            json_real(bench->best[p]));
    if (!home->is_host) {
        json_object_set_new(result->parts, "launches", json_integer((json_int_t)bench->launches));
        return;
    }
    if (arrays->only == CAIRN_UPDATE_HASH) cairn_update_hash_sets(arrays, result->parts);
    const double cpu_ratio = (double)counted_bytes(arrays) / bench->subject_cpu /
                             ((double)reference_bytes(arrays) / bench->reference_cpu);
    json_object_set_new(result->parts, "cpu_ratio", json_real(cpu_ratio));
}

/* Once the arrays are there. */
static const char *reference_name(const struct cairn_update_arrays *arrays)
{
    static char name[48];
    if (is_by_libsodium(arrays)) return "libsodium, a leaf after the other";
    if (!cairn_home_info(arrays->home)->is_host) return "copy of the same arrays on the device";
    snprintf(name, sizeof name, "in-place update of %zu stream%s", arrays->stream_count,
             arrays->stream_count == 1 ? "" : "s");
    return name;
}

static int run_bench(struct ctl *ctl, struct update_bench *bench)
{
    const struct cairn_group_hyper hyper = { .optimizer = CAIRN_OPTIMIZER_ADAMW,
                                             .lr = 1e-3,
                                             .beta1 = 0.9,
                                             .beta2 = 0.999,
                                             .eps = 1e-8,
                                             .weight_decay = 0.01 };
    struct cairn_update_arrays *arrays = &bench->arrays;
    char name[24];
    snprintf(name, sizeof name, "update%s%s", arrays->only != CAIRN_UPDATE_ALL ? "." : "",
             subjects[arrays->only].name);
    struct cairn_bench_result result = { .bench = name, .unit = "GB/s" };
    const struct cairn_shape shape = { .rank = 1, .dim = { arrays->elems } };
    arrays->geometry = cairn_geometry_of(&shape);
    int done = -1;
    if (cairn_group_scalars_of(&hyper, 1, cairn_f32_bits(0.5f), &arrays->scalars) != CAIRN_OK)
        done = cairn_ctl_fail(CAIRN_ERR_INVALID, "no scalars of the first step");
    else if (!cairn_update_arrays_open(arrays, &bench->why))
        done = cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "%s", bench->why.text);
    result.reference_name = reference_name(arrays);
    if (done < 0)
        done = cairn_bench_alternate(&result, ctl->bench.seconds, run_subject, run_reference,
                                     bench);
    if (done < 0) describe(bench, &result);
    cairn_update_arrays_close(arrays);
    return done < 0 ? cairn_bench_print(&result, ctl) : done;
}

int cairn_bench_update(struct ctl *ctl)
{
    static struct update_bench bench;
    int done = judge_words(ctl, &bench.arrays);
    if (done < 0 && sodium_init() < 0) // until then libsodium hashes by its portable code
        done = cairn_ctl_fail(CAIRN_ERR_INTERNAL, "libsodium does not start");
    if (done < 0) done = open_home(ctl, &bench);
    if (done >= 0) return done;
    done = judge_size(ctl, &bench.arrays);
    if (done < 0) done = run_bench(ctl, &bench);
    cairn_home_close(bench.arrays.home);
    return done;
}

/* cairn bench fabric: what the fabric makes of the bytes of pushes and fetches, with all that client and
 * shard do to a chunk on its way (bench.h), against what moves as many and does nothing else:
 *
 *   --path ucx        ucx_perftest -t ucp_am_bw -E sleep -e with chunks, window, header and settings of the
 *                     fabric (raw TCP where it is not installed)
 *   --path one-sided  the same; chunks are read by their receiver, over TCP emulated by UCX
 *   --path mapped     memcpy
 *
 * A run pushes RUN_BYTES and fetches as many; its figure is all of it by the time of both.
 *
 * perftest sends one buffer, in the cache, again and again, and looks at no byte. So a run on the path "ucx"
 * has three turns more, which say what of the difference is whose: without checksums (and received as UCX
 * does it by itself), of one chunk, and both, which is what perftest does. */
#include <inttypes.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "client/ctl/bench/bench.h"
#include "proto/base/machine.h"
#include "proto/geometry/tensor.h"
#include "proto/loop/loop.h"
#include "proto/wire/wire.h"

#define RUN_BYTES     ((uint64_t)128 << 20)
#define PERFTEST_RUNS 4
#define CHUNK_DEFAULT ((uint64_t)1 << 20)
#define CHUNK_MAX     ((uint64_t)4 << 20) /* as chunks of a layout */

/* A run's other turns, of half as many chunks. */
static const struct {
    unsigned less;
    const char *name, *ratio_name;
} turns[] = {
    { CAIRN_BENCH_UNCHECKED, "unchecked_GB/s", "unchecked_ratio" },
    { CAIRN_BENCH_ONE_CHUNK, "one_chunk_GB/s", "one_chunk_ratio" },
    { CAIRN_BENCH_UNCHECKED | CAIRN_BENCH_ONE_CHUNK, "one_chunk_unchecked_GB/s",
      "one_chunk_unchecked_ratio" },
};
enum { TURNS = sizeof turns / sizeof *turns };

struct fabric_bench {
    struct bench_ends *ends;
    size_t chunk_bytes;
    uint64_t chunks; /* of a run, each way */
    const char *path;
    bool is_mapped, has_perftest;
    uint32_t runs;
    /* [runs] */
    double pushes[CAIRN_BENCH_RUNS_MAX + 1], fetches[CAIRN_BENCH_RUNS_MAX + 1];
    double push_cpu[CAIRN_BENCH_RUNS_MAX + 1], fetch_cpu[CAIRN_BENCH_RUNS_MAX + 1];
    double turns[TURNS][CAIRN_BENCH_RUNS_MAX + 1];
};

static double bench_ends_push(struct bench_ends *ends, uint64_t chunks, unsigned less);
static double bench_ends_fetch(struct bench_ends *ends, uint64_t chunks, unsigned less);
static double bench_ends_cpu(const struct bench_ends *ends);
static const char *bench_ends_describe(const struct bench_ends *ends);
static struct bench_ends *bench_ends_open(const char *path, size_t chunk_bytes);
static void bench_ends_close(struct bench_ends *ends);

static bool run_turns(struct fabric_bench *bench, uint32_t number)
{
    const uint64_t chunks = (bench->chunks + 1) / 2;
    const double gigabytes = (double)(chunks * bench->chunk_bytes) * 1e-9;
    for (int i = 0; i < TURNS && !bench->is_mapped; i++) {
        const unsigned less = turns[i].less;
        const double push = bench_ends_push(bench->ends, chunks, less);
        const double fetch = push > 0 ? bench_ends_fetch(bench->ends, chunks, less) : 0;
        if (!(fetch > 0)) return false;
        bench->turns[i][number] = 2 * gigabytes / (push + fetch);
    }
    return true;
}

static double run_fabric(void *context)
{
    struct fabric_bench *bench = context;
    const double gigabytes = (double)(bench->chunks * bench->chunk_bytes) * 1e-9;
    const uint32_t i = bench->runs++;
    const double before = bench_ends_cpu(bench->ends);
    const double push = bench_ends_push(bench->ends, bench->chunks, 0);
    const double between = bench_ends_cpu(bench->ends);
    const double fetch = push > 0 ? bench_ends_fetch(bench->ends, bench->chunks, 0) : 0;
    if (!(fetch > 0)) return 0;
    bench->pushes[i] = gigabytes / push;
    bench->fetches[i] = gigabytes / fetch;
    bench->push_cpu[i] = (between - before) / gigabytes;
    bench->fetch_cpu[i] = (bench_ends_cpu(bench->ends) - between) / gigabytes;
    return run_turns(bench, i) ? 2 * gigabytes / (push + fetch) : 0;
}

static double run_reference(void *context)
{
    const struct fabric_bench *bench = context;
    if (bench->is_mapped)
        return bench_memcpy(CAIRN_BENCH_AREA_BYTES, bench->chunk_bytes, bench->chunks);
    if (bench->has_perftest) // of more: it calls sent what lies in the sockets
        return bench_perftest(bench->chunk_bytes, PERFTEST_RUNS * bench->chunks);
    return bench_raw_tcp(bench->chunk_bytes, bench->chunks);
}

/* -1: go on; else the exit status. */
static int judge_fabric(const struct ctl *ctl, struct fabric_bench *bench)
{
    const char *path = ctl->path != NULL ? ctl->path : "ucx";
    const uint64_t chunk = ctl->bench.chunk > 0 ? ctl->bench.chunk : CHUNK_DEFAULT;
    bench->is_mapped = strcmp(path, "mapped") == 0;
    bench->path = path;
    if (!bench->is_mapped && strcmp(path, "ucx") != 0 && strcmp(path, "one-sided") != 0)
        return ctl_usage_fail(ctl, "--path %s: ucx, one-sided and mapped are allowed", path);
    if (chunk > CHUNK_MAX || chunk % sizeof(float) != 0)
        return ctl_usage_fail(ctl,
                              "--chunk %" PRIu64 ": 4 to %" PRIu64 " bytes, in fours, are allowed",
                              chunk, CHUNK_MAX);
    bench->chunk_bytes = (size_t)chunk;
    bench->chunks = RUN_BYTES / chunk;
    if (bench->chunks > 65536) bench->chunks = 65536; // of small ones it is their number that costs
    bench->has_perftest = !bench->is_mapped && bench_perftest_is_there();
    return -1;
}

static void describe(struct fabric_bench *bench, struct bench_result *result)
{
    const uint32_t count = bench->runs - 1; // the first was not measured
    const double push = bench_spread_of(bench->pushes + 1, count).median;
    const double fetch = bench_spread_of(bench->fetches + 1, count).median;
    result->params = json_pack("{s:s, s:I, s:I, s:I, s:s}", "path", bench->path, "chunk_bytes",
                               (json_int_t)bench->chunk_bytes, "window",
                               (json_int_t)CAIRN_BENCH_WINDOW, "chunks", (json_int_t)bench->chunks,
                               "fabric", bench_ends_describe(bench->ends));
    result->parts = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "push_GB/s", push, "fetch_GB/s",
                              fetch, "push_ratio", push / result->reference.median, "fetch_ratio",
                              fetch / result->reference.median, "push_cpu_s/GB",
                              bench_spread_of(bench->push_cpu + 1, count).median, "fetch_cpu_s/GB",
                              bench_spread_of(bench->fetch_cpu + 1, count).median);
    for (int i = 0; i < TURNS && !bench->is_mapped; i++) {
        const double value = bench_spread_of(bench->turns[i] + 1, count).median;
        json_object_set_new(result->parts, turns[i].name, json_real(value));
        json_object_set_new(result->parts, turns[i].ratio_name,
                            json_real(value / result->reference.median));
    }
}

int bench_fabric(struct ctl *ctl)
{
    static struct fabric_bench bench;
    int done = judge_fabric(ctl, &bench);
    if (done >= 0) return done;
    bench.ends = bench_ends_open(bench.path, bench.chunk_bytes);
    if (bench.ends == NULL) return 1;
    struct bench_result result = {
        .bench = "fabric",
        .unit = "GB/s",
        .reference_name = bench.is_mapped      ? "memcpy"
                          : bench.has_perftest ? "ucx_perftest -t ucp_am_bw -E sleep -e"
                                               : "raw TCP over loopback",
    };
    done = bench_alternate(&result, ctl->bench.seconds, run_fabric, run_reference, &bench);
    if (done < 0) describe(&bench, &result);
    if (done < 0) done = bench_print(&result, ctl);
    bench_ends_close(bench.ends);
    return done;
}

/* ==== map ==== */

/* cairn bench map: a unit of one tensor, cut over the shards, is mapped where they published it, and one
 * load of every cache line of it is summed; by one worker, and after a round, so that it is a version
 * that was never mapped before. The reference is memcpy of as many bytes to memory that was written before:
 * what gathering the unit would take at least. */

#define PARAMS_DEFAULT 16777216u /* 64 MiB of fp32 */
#define LINE_BYTES     64

enum { ORDER_MAP = 1, ORDER_COPY = 2 };
enum { FIGURE_ALL, FIGURE_MAP, FIGURE_SUM, FIGURE_UNMAP, FIGURE_LENT, FIGURES };
static const char *const part_names[FIGURES] = { NULL, "1_map_s", "2_sum_s", "3_unmap_s", "lent" };

struct map_bench {
    const struct ctl *ctl;
    struct bench_result *result;
    struct bench_model model;
    struct bench_crew crew;
    double parts[FIGURES][CAIRN_BENCH_RUNS_MAX + 1];
    uint32_t part_count; /* the first is of the run that is not measured */
};

/* ---- the worker ---- */

struct map_worker {
    struct bench_member member;
    size_t bytes;    /* of the unit */
    uint8_t *memory; /* [2][bytes]: from and to, of the reference */
    uint64_t sum;    /* of what was read: the loads are for something */
};

static bool take_memory(struct map_worker *w)
{
    w->memory = mmap(NULL, 2 * w->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                     0);
    if (w->memory == MAP_FAILED) {
        (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory for twice %s", ctl_bytes(w->bytes));
        return false;
    }
    madvise(w->memory, 2 * w->bytes, MADV_HUGEPAGE);
    memset(w->memory, 1, 2 * w->bytes);
    return true;
}

static uint64_t sum_lines(const uint8_t *memory, size_t bytes)
{
    uint64_t sum = 0, line;
    for (size_t at = 0; at + LINE_BYTES <= bytes; at += LINE_BYTES) {
        memcpy(&line, memory + at, sizeof line);
        sum += line;
    }
    return sum;
}

/* A round in which nothing is pushed: what is published is a new version all the same. */
static cairn_status make_version(struct map_worker *w, struct cairn_version *version_out)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(w->member.job, CAIRN_BENCH_CALL_MS, &round);
    if (status == CAIRN_OK)
        status = cairn_commit(w->member.job, &round, 1, NULL, 0, CAIRN_BENCH_CALL_MS, &result);
    *version_out = result.version;
    return status;
}

static cairn_status map_once(struct map_worker *w, struct cairn_version version, double at[4])
{
    struct cairn_view view = { .struct_size = sizeof view };
    size_t views = 1;
    cairn_op *op;
    at[0] = bench_now();
    cairn_status status = cairn_map(w->member.job, version, w->member.names[0], &view, &views, &op);
    if (status == CAIRN_OK) status = cairn_wait(op, CAIRN_BENCH_CALL_MS);
    if (status != CAIRN_OK) return status;
    at[1] = bench_now();
    w->sum += sum_lines(view.ptr, w->bytes);
    at[2] = bench_now();
    status = cairn_unmap(w->member.job, &view, NULL);
    at[3] = bench_now();
    return status;
}

static bool run_map(struct map_worker *w, struct bench_report *report)
{
    struct cairn_stats before = { .struct_size = sizeof before }, after = before;
    struct cairn_version version;
    double at[4] = { 0 };
    cairn_status status = cairn_job_stats(w->member.job, &before);
    if (status == CAIRN_OK) status = make_version(w, &version);
    if (status == CAIRN_OK) status = map_once(w, version, at);
    if (status == CAIRN_OK) status = cairn_job_stats(w->member.job, &after);
    *report = (struct bench_report) { .figures = { [FIGURE_ALL] = at[3] - at[0],
                                                   [FIGURE_MAP] = at[1] - at[0],
                                                   [FIGURE_SUM] = at[2] - at[1],
                                                   [FIGURE_UNMAP] = at[3] - at[2],
                                                   [FIGURE_LENT] = (double)(after.maps_lent -
                                                                            before.maps_lent) } };
    return bench_is_ok(status);
}

static void run_copy(struct map_worker *w, struct bench_report *report)
{
    const double begin = bench_now();
    memcpy(w->memory, w->memory + w->bytes, w->bytes);
    __asm__ volatile("" : : "r"(w->memory) : "memory"); // somebody reads it
    report->figures[FIGURE_ALL] = bench_now() - begin;
}

static int work(const struct bench_worker *worker)
{
    static struct map_worker w;
    const struct bench_model *model = worker->plan;
    struct bench_order order;
    struct bench_report report = { { 0 } };
    w.bytes = bench_model_elems(model) * (model->wire == CAIRN_F32 ? 4 : 2);
    if (!bench_member_open(&w.member, model, worker) || !take_memory(&w)) return 1;
    while (bench_worker_report(worker, &report) && bench_worker_next(worker, &order)) {
        if (order.word == ORDER_COPY)
            run_copy(&w, &report);
        else if (!run_map(&w, &report))
            return 1;
    }
    __asm__ volatile("" : : "r"(w.sum));
    cairn_close(w.member.session);
    return 0;
}

/* ---- the bench ---- */

static double giga_bytes(const struct map_bench *bench, double seconds)
{
    const double elem_bytes = bench->model.wire == CAIRN_F32 ? 4 : 2;
    return seconds > 0 ? (double)bench_model_elems(&bench->model) * elem_bytes * 1e-9 / seconds : 0;
}

static double order(struct map_bench *bench, uint32_t word)
{
    struct bench_report report;
    const struct bench_order order = { word, 1 };
    if (!bench_crew_do(&bench->crew, order, &report)) return 0;
    if (word == ORDER_MAP && bench->part_count <= CAIRN_BENCH_RUNS_MAX) {
        for (int f = 0; f < FIGURES; f++) bench->parts[f][bench->part_count] = report.figures[f];
        bench->part_count++;
    }
    return giga_bytes(bench, report.figures[FIGURE_ALL]);
}

static double subject(void *context)
{
    return order(context, ORDER_MAP);
}

static double reference(void *context)
{
    return order(context, ORDER_COPY);
}

static void add_parts(struct map_bench *bench)
{
    bench->result->parts = json_pack("{s:f}", "first_GB/s",
                                     giga_bytes(bench, bench->parts[FIGURE_ALL][0]));
    for (int f = FIGURE_MAP; f < FIGURES; f++)
        json_object_set_new(
            bench->result->parts, part_names[f],
            json_real(bench_spread_of(bench->parts[f] + 1, bench->part_count - 1).median));
}

static int run_there(struct local *local, void *context)
{
    struct map_bench *bench = context;
    int done = 1;
    if (bench->ctl->path != NULL) setenv("CAIRN_FABRIC", bench->ctl->path, 1);
    if (bench_crew_start(&bench->crew, local, 1, work, &bench->model))
        done = bench_alternate(bench->result, bench->ctl->bench.seconds, subject, reference, bench);
    if (done < 0) add_parts(bench);
    bench_crew_stop(&bench->crew);
    return done;
}

static void make_model(struct map_bench *bench)
{
    const struct ctl_bench *asked = &bench->ctl->bench;
    struct bench_model *model = &bench->model;
    const uint64_t params = asked->params > 0 ? asked->params : PARAMS_DEFAULT;
    model->tensors = 1;
    model->rows = params / CAIRN_BENCH_COLUMNS + (params % CAIRN_BENCH_COLUMNS != 0);
    model->wire = asked->wire != NULL && strcmp(asked->wire, "bf16") == 0 ? CAIRN_BF16 : CAIRN_F32;
    snprintf(model->job, sizeof model->job, "bench.map.%" PRIu64 ".%s", model->rows,
             model->wire == CAIRN_F32 ? "f32" : "bf16");
}

/* -1: go on. */
static int judge_map(const struct map_bench *bench)
{
    const uint64_t needed = bench_model_elems(&bench->model) * 36;
    const uint64_t there = bench_memory_bytes();
    const char *path = bench->ctl->path;
    if (!bench_is_path(path))
        return ctl_fail(CAIRN_ERR_INVALID, "--path %s: auto, mapped and ucx are allowed", path);
    if (bench->ctl->endpoint == NULL && needed > there)
        return ctl_fail(CAIRN_ERR_NO_MEMORY, "it needs %s, and %s are free; give fewer --params",
                        ctl_bytes(needed), ctl_bytes(there));
    return -1;
}

int bench_map(struct ctl *ctl)
{
    static struct map_bench bench;
    static struct local local;
    struct bench_result result = {
        .bench = "map",
        .unit = "GB/s",
        .reference_name = "memcpy of the same size",
    };
    if (ctl->shards == 0) ctl->shards = 2;
    bench.ctl = local.ctl = ctl;
    bench.result = &result;
    make_model(&bench);
    int done = judge_map(&bench);
    if (done < 0) done = local_run(&local, run_there, &bench);
    if (done >= 0) return done;
    result.params = json_pack(
        "{s:I, s:I, s:s, s:s}", "params", (json_int_t)bench_model_elems(&bench.model), "shards",
        (json_int_t)ctl->shards, "wire", bench.model.wire == CAIRN_F32 ? "f32" : "bf16", "path",
        ctl->path != NULL ? ctl->path : "auto");
    return bench_print(&result, ctl);
}

/* ==== ends ==== */

/* The worker's end and the shard's: bench.h. */

#define SLOTS      (8 * CAIRN_BENCH_WINDOW) /* releases come by another way than what is asked next */
#define STALLED_MS 10000                    /* without a chunk: it will not come any more */
#define JOB        1
#define MEMBER     1

/* A chunk under way: of the worker's end, or a slot or reply of the shard's. */
struct flight {
    struct end *end;
    struct chunk_header header;
    uint8_t *bytes; /* borrowed: of the landing area */
    uint64_t came;  /* the checksum of what did */
    bool lent;      /* the fabric has its memory */
    bool answered;
    struct flight *next; /* of the free ones */
};

/* One process. */
struct end {
    uv_loop_t loop;
    struct fabric *fabric;
    struct fabric_poll poll;
    struct fabric_peer *peer;
    struct fabric_region *region;
    bool is_shard, is_mapped, is_lost, is_open;
    size_t chunk_bytes, area_chunks;
    /* owned: mapped */
    uint8_t *area,
        *landing; /* [area_chunks] chunks in shared memory; the same, or [SLOTS] of the shard */
    uint64_t *checksums; /* shard: [area_chunks], 0: not asked for yet */
    struct flight flights[SLOTS];
    struct flight *free;
    /* worker: the run */
    uint64_t asked, done, wanted, stalled_at;
    uint8_t kind;
    unsigned less;
    uv_timer_t stall; /* ends a run in which nothing comes */
};

struct bench_ends {
    struct end worker;
    pid_t shard;
    int line; /* to the shard's process: addresses, then its end says that we are gone */
};

/* ---- both ---- */

static struct flight *take(struct end *end)
{
    struct flight *flight = end->free;
    if (flight != NULL) end->free = flight->next;
    return flight;
}

static void give(struct flight *flight)
{
    flight->next = flight->end->free;
    flight->end->free = flight;
}

static bool send_header(struct flight *flight, const void *payload, fabric_done_fn *on_sent)
{
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    chunk_encode(&flight->header, bytes);
    flight->lent = payload != NULL;
    const size_t payload_bytes = payload != NULL ? (size_t)flight->header.payload_bytes : 0;
    const cairn_status status = fabric_send(flight->end->peer, bytes, sizeof bytes, payload,
                                            payload_bytes, on_sent, flight);
    if (status != CAIRN_OK) flight->end->is_lost = true;
    return status == CAIRN_OK;
}

static void on_down(void *arg, struct fabric_peer *peer, cairn_status why)
{
    struct end *end = arg;
    (void)peer, (void)why;
    end->is_lost = true;
    uv_stop(&end->loop);
}

/* ---- the shard ---- */

static void answer(struct flight *flight, uint8_t kind)
{
    flight->header.kind = kind;
    flight->header.payload_bytes = flight->header.checksum = 0;
    flight->header.dtype = 0;
    send_header(flight, NULL, NULL);
}

static void judge_push(struct flight *flight, const void *bytes)
{
    const size_t byte_count = (size_t)flight->header.payload_bytes;
    const bool whole = flight->header.checksum == 0 ||
                       chunk_checksum(bytes, byte_count) == flight->header.checksum;
    answer(flight, whole ? CAIRN_CHUNK_ACK : CAIRN_CHUNK_NAK);
    give(flight);
}

/* Where it lies: a checksum is as quick a reader as the fold. */
static void read_push(struct flight *flight, const void *bytes)
{
    flight->header.checksum = chunk_checksum(bytes, (size_t)flight->header.payload_bytes);
    answer(flight, CAIRN_CHUNK_ACK);
    give(flight);
}

static void on_landed(void *arg, cairn_status status)
{
    struct flight *flight = arg;
    if (status == CAIRN_OK)
        judge_push(flight, flight->bytes);
    else
        give(flight);
}

static void shard_on_push(struct flight *flight, struct fabric_message *message)
{
    const void *view = fabric_message_view(message);
    if (view != NULL) {
        read_push(flight, view);
        fabric_drop(message);
    } else if (fabric_receive(message, flight->bytes, flight->end->chunk_bytes, on_landed,
                              flight) != CAIRN_OK) {
        flight->end->is_lost = true;
    }
}

static void on_reply_sent(void *arg, cairn_status status)
{
    (void)status;
    give(arg);
}

static void shard_on_fetch(struct flight *flight)
{
    struct end *end = flight->end;
    const size_t chunk = (size_t)flight->header.step % end->area_chunks;
    const uint8_t *bytes = end->area + chunk * end->chunk_bytes; // right out of what is published
    if (end->checksums[chunk] == 0) end->checksums[chunk] = chunk_checksum(bytes, end->chunk_bytes);
    flight->header.kind = CAIRN_CHUNK_DATA;
    flight->header.dtype = CAIRN_F32;
    flight->header.payload_bytes = end->chunk_bytes;
    flight->header.checksum = end->checksums[chunk];
    send_header(flight, bytes, on_reply_sent);
}

/* ---- the worker ---- */

static void pump(struct end *end);

/* Answered, and the fabric has given its memory back. */
static void finish(struct flight *flight)
{
    struct end *end = flight->end;
    if (!flight->answered || flight->lent) return;
    give(flight);
    end->done++;
    if (end->done == end->wanted) uv_stop(&end->loop);
    pump(end);
}

static void on_pushed(void *arg, cairn_status status)
{
    struct flight *flight = arg;
    (void)status;
    flight->lent = false;
    finish(flight);
}

static void ask(struct end *end, struct flight *flight)
{
    const uint64_t leaf_bytes = CAIRN_LEAF_ELEMS * sizeof(float);
    const uint8_t *bytes = NULL;
    flight->answered = false;
    flight->header = (struct chunk_header) {
        .kind = end->kind,
        .plane = CAIRN_PLANE_WIRE,
        .job = JOB,
        .member = MEMBER,
        .leaf_count = (uint32_t)((end->chunk_bytes + leaf_bytes - 1) / leaf_bytes),
        // which of the area: this bench's own use of it
        .step = (end->less & CAIRN_BENCH_ONE_CHUNK) != 0 ? 0 : end->asked % end->area_chunks,
        .request = (uint64_t)(flight - end->flights),
    };
    if (end->kind == CAIRN_CHUNK_PUSH) {
        bytes = end->area + flight->header.step * end->chunk_bytes;
        flight->header.dtype = CAIRN_F32;
        flight->header.payload_bytes = end->chunk_bytes;
        if ((end->less & CAIRN_BENCH_UNCHECKED) == 0 && !end->is_mapped)
            flight->header.checksum = chunk_checksum(bytes, end->chunk_bytes);
    }
    end->asked++;
    send_header(flight, bytes, bytes != NULL ? on_pushed : NULL);
}

static void pump(struct end *end)
{
    while (end->asked < end->wanted && !end->is_lost && end->asked - end->done < CAIRN_BENCH_WINDOW)
        ask(end, take(end)); // there are more than the window
}

static void on_received(void *arg, cairn_status status)
{
    struct flight *flight = arg;
    struct end *end = flight->end;
    const bool is_checked = (end->less & CAIRN_BENCH_UNCHECKED) == 0;
    flight->lent = false;
    if (status != CAIRN_OK || (is_checked && flight->came != flight->header.checksum))
        end->is_lost = true;
    finish(flight);
}

static void worker_on_answer(struct end *end, const struct chunk_header *header,
                             struct fabric_message *message)
{
    if (header->request >= SLOTS || (header->kind == CAIRN_CHUNK_DATA) != (message != NULL) ||
        header->kind == CAIRN_CHUNK_NAK || header->payload_bytes > end->chunk_bytes) {
        end->is_lost = true; // nothing here is answered so, but by a fault
        if (message != NULL) fabric_drop(message);
        return;
    }
    struct flight *flight = &end->flights[header->request];
    flight->answered = true;
    flight->header.checksum = header->checksum;
    if (message == NULL) {
        finish(flight);
        return;
    }
    uint8_t *bytes = end->landing + flight->header.step * end->chunk_bytes;
    flight->lent = true;
    const cairn_status status = (end->less & CAIRN_BENCH_UNCHECKED) != 0
                                    ? fabric_receive(message, bytes, end->chunk_bytes, on_received,
                                                     flight)
                                    : fabric_receive_far(message, bytes, end->chunk_bytes,
                                                         &flight->came, on_received, flight);
    if (status != CAIRN_OK) end->is_lost = true;
}

/* ---- an end's life ---- */

static void on_message(void *arg, const void *bytes, size_t size, size_t payload_bytes,
                       struct fabric_message *message)
{
    struct end *end = arg;
    struct chunk_header header;
    struct flight *flight = NULL;
    const bool is_ours = chunk_decode(bytes, size, payload_bytes, &header) == CAIRN_OK;
    if (is_ours && !end->is_shard) {
        worker_on_answer(end, &header, message);
        return;
    }
    if (is_ours) flight = take(end);
    if (flight == NULL) { // more is under way than the window explains
        end->is_lost = true;
        uv_stop(&end->loop); // its end is the other's
        if (message != NULL) fabric_drop(message);
        return;
    }
    flight->header = header;
    if (header.kind == CAIRN_CHUNK_PUSH)
        shard_on_push(flight, message);
    else
        shard_on_fetch(flight);
}

static uint8_t *map_area(struct end *end, size_t bytes)
{
    const int fd = memfd_create("cairn-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return NULL;
    void *area = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0)
        area = pages_map(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
    if (area != MAP_FAILED) pages_back(area, bytes); // as library and shard do
    if (area != MAP_FAILED)
        for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
            const uint32_t word = (uint32_t)(i * 2654435761u);
            memcpy((uint8_t *)area + i, &word, sizeof word);
        }
    // The descriptor is the region's; both end with the process.
    const bool ok = area != MAP_FAILED && fcntl(fd, F_ADD_SEALS, CAIRN_FABRIC_SEALS) == 0 &&
                    fabric_region_add(end->fabric, area, bytes, fd, "", 0, &end->region) ==
                        CAIRN_OK;
    return ok ? area : NULL;
}

static bool make_memory(struct end *end)
{
    const size_t area_bytes = end->area_chunks * end->chunk_bytes;
    const size_t bytes = end->is_shard ? SLOTS * end->chunk_bytes : area_bytes;
    end->area = map_area(end, area_bytes);
    end->checksums = calloc(end->area_chunks, sizeof *end->checksums);
    end->landing = pages_map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (end->area == NULL || end->checksums == NULL || end->landing == MAP_FAILED) return false;
    madvise(end->landing, bytes, MADV_HUGEPAGE);
    madvise(end->landing, bytes, MADV_DONTFORK); // else each fork of a reference costs us faults
    memset(end->landing, 0, bytes);
    for (size_t i = 0; i < SLOTS; i++) {
        end->flights[i] = (struct flight) { .end = end, .bytes = end->landing };
        if (end->is_shard) end->flights[i].bytes += i * end->chunk_bytes;
        give(&end->flights[i]);
    }
    return true;
}

/* Exchanges fabric addresses with the other process over `line` and connects to it; an address fits
 * into a socket's buffer. */
static bool exchange(struct end *end, int line)
{
    uint8_t theirs[CAIRN_FABRIC_ADDRESS_MAX];
    size_t bytes;
    const void *ours = fabric_own_address(end->fabric, &bytes);
    if (send(line, ours, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) return false;
    const ssize_t got = recv(line, theirs, sizeof theirs, 0);
    return got > 0 && fabric_connect_to(end->fabric, theirs, (size_t)got, on_down, end,
                                        &end->peer) == CAIRN_OK;
}

static bool end_open(struct end *end, const char *path, int line)
{
    struct sentence why = { "" };
    const bool one_sided = strcmp(path, "one-sided") == 0;
    const struct fabric_options options = {
        .on_message = on_message,
        .on_message_arg = end,
        .max_payload = CAIRN_CHUNK_PAYLOAD_MAX,
        .one_sided = one_sided ? CAIRN_ONE_SIDED_ON : CAIRN_ONE_SIDED_OFF,
    };
    cairn_status status = fabric_open(one_sided ? "ucx" : path, &options, &end->fabric, &why);
    if (status != CAIRN_OK) {
        ctl_fail(status, "no fabric of kind %s: %s", path, why.text);
        return false;
    }
    if (uv_loop_init(&end->loop) != 0 ||
        fabric_poll_init(&end->poll, &end->loop, end->fabric, 0) != CAIRN_OK || !make_memory(end) ||
        !exchange(end, line)) {
        ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory or no way to the other end of the bench");
        return false;
    }
    end->is_mapped = strcmp(fabric_peer_path(end->peer), "mapped") == 0;
    return true;
}

/* ---- the shard's process ---- */

static void on_line(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    uv_stop(poll->loop); // nobody writes to it any more: it is the end
}

static int shard_main(struct end *end, const char *path, int line)
{
    uv_poll_t watch;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    end->is_shard = true;
    if (!end_open(end, path, line)) return 1;
    uv_poll_init(&end->loop, &watch, line);
    uv_poll_start(&watch, UV_READABLE | UV_DISCONNECT, on_line);
    uv_run(&end->loop, UV_RUN_DEFAULT);
    fabric_close(end->fabric);
    return 0; // the process is its memory's end
}

/* ---- the worker's process ---- */

static void on_stall(uv_timer_t *stall)
{
    struct end *end = stall->data;
    if (end->done == end->stalled_at) end->is_lost = true;
    end->stalled_at = end->done;
    if (end->is_lost) uv_stop(&end->loop);
}

/* path: a kind of fabric, or "one-sided": ucx, whose ends read each other's memory.
 * NULL: they could not be opened, and that was said. */
static struct bench_ends *bench_ends_open(const char *path, size_t chunk_bytes)
{
    struct bench_ends *ends = calloc(1, sizeof *ends);
    int line[2];
    if (ends == NULL || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) != 0) {
        ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory or no descriptors for the bench");
        free(ends);
        return NULL;
    }
    struct end *worker = &ends->worker;
    worker->chunk_bytes = chunk_bytes;
    worker->area_chunks = CAIRN_BENCH_AREA_BYTES / chunk_bytes;
    fflush(NULL);
    ends->shard = fork(); // before there is a fabric: its threads are not forked
    if (ends->shard == 0) {
        close(line[0]);
        _exit(shard_main(worker, path, line[1]));
    }
    close(line[1]);
    ends->line = line[0];
    const bool ok = ends->shard > 0 && end_open(worker, path, ends->line);
    if (ok) {
        uv_timer_init(&worker->loop, &worker->stall);
        worker->stall.data = worker;
        worker->is_open = true;
        return ends;
    }
    bench_ends_close(ends);
    return NULL;
}

static void bench_ends_close(struct bench_ends *ends)
{
    struct end *worker = &ends->worker;
    close(ends->line);
    if (worker->is_open) {
        fabric_poll_close(&worker->poll, NULL, NULL);
        uv_close((uv_handle_t *)&worker->stall, NULL);
        uv_run(&worker->loop, UV_RUN_DEFAULT);
        uv_loop_close(&worker->loop);
    }
    if (worker->fabric != NULL) fabric_close(worker->fabric);
    if (ends->shard > 0)
        while (waitpid(ends->shard, NULL, 0) < 0 && errno == EINTR) {}
    free(worker->checksums);
    free(ends); // its maps end with the process, which has no more to do
}

static double run(struct bench_ends *ends, uint8_t kind, uint64_t chunks, unsigned less)
{
    struct end *worker = &ends->worker;
    const double begin = bench_now();
    worker->asked = worker->done = 0;
    worker->stalled_at = UINT64_MAX;
    worker->wanted = chunks;
    worker->kind = kind;
    worker->less = less;
    uv_timer_start(&worker->stall, on_stall, STALLED_MS, STALLED_MS);
    pump(worker);
    while (worker->done < chunks && !worker->is_lost) uv_run(&worker->loop, UV_RUN_DEFAULT);
    uv_timer_stop(&worker->stall);
    if (worker->done == chunks && !worker->is_lost) return bench_now() - begin;
    ctl_fail(CAIRN_ERR_CLOSED, "chunk %" PRIu64 " of %" PRIu64 " did not arrive whole",
             worker->done + 1, chunks);
    return 0;
}

/* Moves so many chunks, one way or the other, leaving out `less` (enum bench_less). Returns
 * the seconds it took; 0: it failed, and that was said. */
static double bench_ends_push(struct bench_ends *ends, uint64_t chunks, unsigned less)
{
    return run(ends, CAIRN_CHUNK_PUSH, chunks, less);
}

static double bench_ends_fetch(struct bench_ends *ends, uint64_t chunks, unsigned less)
{
    return run(ends, CAIRN_CHUNK_FETCH, chunks, less);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t = { 0 };
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds of CPU that both processes have used so far. */
static double bench_ends_cpu(const struct bench_ends *ends)
{
    clockid_t shard;
    const double ours = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    return clock_getcpuclockid(ends->shard, &shard) == 0 ? ours + seconds_of(shard) : ours;
}

/* As fabric_describe; borrowed. */
static const char *bench_ends_describe(const struct bench_ends *ends)
{
    return fabric_describe(ends->worker.fabric);
}

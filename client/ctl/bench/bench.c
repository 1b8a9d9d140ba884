#include "client/ctl/bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#include "client/ctl/ctl.h"
#include "gpu/gpu.h"
#include "proto/base/machine.h"

/* ==== processes and threads ==== */

#define TURN_MS 100
#define STOP_MS 1000

bool bench_is_interrupted(struct local *local)
{
    if (local == NULL) return false;
    const int number = local_signal(local, 0, NULL);
    return (number != 0 && number != SIGCHLD) || local_daemons_reap(local) > 0;
}

bool bench_child_start(struct bench_child *child, struct local *local, int (*run)(void *own),
                       void *own)
{
    int ends[2];
    *child = (struct bench_child) { .pid = 0 };
    if (pipe2(ends, O_CLOEXEC) != 0) {
        (void)ctl_fail(CAIRN_ERR_IO, "no pipe: %s", strerror(errno));
        return false;
    }
    fflush(NULL); // else the child would print buffered output again
    const pid_t pid = local != NULL ? local_fork(local) : fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]), close(ends[1]);
        const int status = run(own);
        fflush(NULL);
        _exit(status);
    }
    close(ends[1]);
    if (pid < 0)
        close(ends[0]);
    else
        *child = (struct bench_child) { pid, ends[0] };
    return pid > 0;
}

int bench_child_become(const char *program, char *const *arguments)
{
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(nothing, STDIN_FILENO), dup2(nothing, STDERR_FILENO);
    execvp(program, arguments);
    return 127;
}

int bench_child_read(const struct bench_child *child, struct local *local, int limit_ms, char *text,
                     size_t text_bytes)
{
    size_t have = 0;
    int waited_ms = 0;
    while (have < text_bytes - 1) {
        struct pollfd wait = { .fd = child->out_fd, .events = POLLIN };
        if (poll(&wait, 1, TURN_MS) <= 0) {
            waited_ms += TURN_MS;
            if (bench_is_interrupted(local)) return -1;
            if (limit_ms >= 0 && waited_ms >= limit_ms) return 0;
            continue;
        }
        const ssize_t got = read(child->out_fd, text + have, text_bytes - 1 - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            text[have] = '\0';
            return got == 0;
        }
        have += (size_t)got;
    }
    return 0;
}

int bench_child_end(struct bench_child *child, int signal_number)
{
    int status = 0;
    if (child->pid <= 0) return -1;
    if (signal_number != 0) kill(child->pid, signal_number);
    close(child->out_fd);
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR) {}
    child->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int bench_child_numbers(struct bench_child *child, struct local *local,
                        double numbers_out[static 2])
{
    char text[128];
    const int is_read = bench_child_read(child, local, -1, text, sizeof text);
    bench_child_end(child, SIGKILL); // a process that has printed has no more work
    if (is_read <= 0) return is_read;
    return sscanf(text, "%lf %lf", &numbers_out[0], &numbers_out[1]) == 2;
}

struct thread {
    pthread_t id;
    uint32_t number;
    void (*run)(void *own, uint32_t number);
    void *own;
};

static void *thread_main(void *context)
{
    const struct thread *thread = context;
    thread->run(thread->own, thread->number);
    return NULL;
}

int bench_threads_run(uint32_t count, void (*run)(void *own, uint32_t number), void *own)
{
    struct thread threads[BENCH_THREADS_MAX];
    uint32_t started = 1;
    int failed = 0;
    for (; started < count; started++) {
        threads[started] = (struct thread) { .number = started, .run = run, .own = own };
        failed = pthread_create(&threads[started].id, NULL, thread_main, &threads[started]);
        if (failed != 0) break;
    }
    run(own, 0);
    for (uint32_t i = 1; i < started; i++) pthread_join(threads[i].id, NULL);
    return failed;
}

/* ==== workers ==== */

bool bench_worker_report(const struct bench_worker *worker, const struct bench_report *report)
{
    return send(worker->fd, report, sizeof *report, MSG_NOSIGNAL) == sizeof *report;
}

int bench_serve(const struct bench_worker *worker, struct bench_member *member,
                bool (*obey)(void *own, const struct bench_order *order,
                             struct bench_report *report),
                void *own)
{
    struct bench_order order;
    struct bench_report report = { { 0 } };
    while (bench_worker_report(worker, &report) &&
           recv(worker->fd, &order, sizeof order, 0) == sizeof order)
        if (!obey(own, &order, &report)) return 1;
    cairn_close(member->session);
    return 0;
}

static bool start_worker(struct bench *b, int (*run)(const struct bench_worker *worker))
{
    int ends[2];
    const uint32_t i = b->crew.count;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
    const pid_t pid = local_fork(b->local);
    if (pid == 0) {
        for (uint32_t k = 0; k < i; k++) close(b->crew.fds[k]);
        close(ends[0]);
        const struct bench_worker worker = { i, b->workers, ends[1], b };
        _exit(run(&worker));
    }
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return false;
    }
    b->crew.pids[i] = pid;
    b->crew.fds[i] = ends[0];
    b->crew.count++;
    return true;
}

/* Waits for a report of every worker, and takes the greatest figures. */
static bool await_reports(struct bench *b)
{
    memset(b->figures, 0, sizeof b->figures);
    for (uint32_t i = 0; i < b->crew.count; i++) {
        struct bench_report report;
        struct pollfd wait = { .fd = b->crew.fds[i], .events = POLLIN };
        while (poll(&wait, 1, TURN_MS) <= 0)
            if (bench_is_interrupted(b->local)) return false;
        if (recv(b->crew.fds[i], &report, sizeof report, 0) != sizeof report) return false;
        for (int f = 0; f < BENCH_FIGURES; f++)
            if (report.figures[f] > b->figures[f]) b->figures[f] = report.figures[f];
    }
    return true;
}

bool bench_crew_start(struct bench *b, int (*run)(const struct bench_worker *worker))
{
    while (b->crew.count < b->workers)
        if (!start_worker(b, run)) return false;
    return await_reports(b);
}

bool bench_order_begin(struct bench *b, uint32_t word, uint32_t count)
{
    const struct bench_order order = { word, count };
    for (uint32_t i = 0; i < b->crew.count; i++)
        if (send(b->crew.fds[i], &order, sizeof order, MSG_NOSIGNAL) != sizeof order) return false;
    return true;
}

double bench_order_end(struct bench *b)
{
    return await_reports(b) ? b->figures[0] : 0;
}

double bench_order(struct bench *b, uint32_t word, uint32_t count)
{
    return bench_order_begin(b, word, count) ? bench_order_end(b) : 0;
}

void bench_crew_stop(struct bench *b)
{
    for (uint32_t i = 0; i < b->crew.count; i++) shutdown(b->crew.fds[i], SHUT_WR);
    for (uint32_t i = 0; i < b->crew.count; i++) {
        struct pollfd wait = { .fd = b->crew.fds[i] }; // the worker's end shows as a hang-up
        if (poll(&wait, 1, STOP_MS) <= 0) kill(b->crew.pids[i], SIGKILL);
        close(b->crew.fds[i]);
        while (waitpid(b->crew.pids[i], NULL, 0) < 0 && errno == EINTR) {}
    }
    b->crew.count = 0;
}

/* ==== machine ==== */

/* Describes the machine that a figure was measured on. */

uint32_t bench_core_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (uint32_t)count : 1;
}

/* Reads the text behind `name` in the first line that begins with it; false: the file has no such line. */
static bool read_line_of(const char *path, const char *name, char text_out[static 128])
{
    const size_t length = strlen(name);
    char line[256];
    bool is_found = false;
    FILE *file = fopen(path, "re");
    while (file != NULL && !is_found && fgets(line, sizeof line, file) != NULL)
        is_found = strncmp(line, name, length) == 0;
    if (file != NULL) fclose(file);
    if (is_found) snprintf(text_out, 128, "%.*s", (int)strcspn(line + length, "\n"), line + length);
    return is_found;
}

/* Returns the bytes in such a line, which has kibibytes; 0: there is none. */
static uint64_t read_bytes_of(const char *path, const char *name)
{
    char text[128];
    return read_line_of(path, name, text) ? strtoull(text, NULL, 10) << 10 : 0;
}

uint64_t bench_memory_bytes(void)
{
    return read_bytes_of("/proc/meminfo", "MemAvailable:");
}

/* Returns the value of this name; 0: the system does not report the value. */
static json_int_t cache(int name)
{
    const long value = sysconf(name);
    return value > 0 ? (json_int_t)value : 0;
}

/* Returns a new object: cpu, cores, memory_bytes, kernel, isa (of the kernels in gpu/host), l1d_bytes
 * and _ways, l2_bytes, l3_bytes (of one core). */
static json_t *bench_machine(void)
{
    char cpu[128] = "unknown";
    struct utsname name = { .release = "unknown" };
    (void)read_line_of("/proc/cpuinfo", "model name\t: ", cpu); // of the first core
    uname(&name);
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGE_SIZE);
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:s, s:s}", "l1d_bytes", cache(_SC_LEVEL1_DCACHE_SIZE),
        "l1d_ways", cache(_SC_LEVEL1_DCACHE_ASSOC), "l2_bytes", cache(_SC_LEVEL2_CACHE_SIZE),
        "l3_bytes", cache(_SC_LEVEL3_CACHE_SIZE), "cpu", cpu, "cores",
        (json_int_t)bench_core_count(), "memory_bytes", (json_int_t)pages * (json_int_t)page_bytes,
        "kernel", name.release, "isa", backend_host()->isa);
}

/* ==== model ==== */

bool bench_is_ok(cairn_status status)
{
    if (status != CAIRN_OK) (void)ctl_fail(status, "a worker of the bench: %s", cairn_error());
    return status == CAIRN_OK;
}

void bench_model_cut(struct bench_model *model, uint64_t params)
{
    const uint64_t row_elems = (uint64_t)model->tensors * BENCH_COLUMNS;
    model->rows = params / row_elems + (params % row_elems != 0);
}

static cairn_status open_job(struct bench_member *member, const struct bench_model *model,
                             const struct bench_worker *worker)
{
    struct cairn_tensor *tensors = calloc(model->tensors, sizeof *tensors);
    const struct cairn_init zeros = { .kind = CAIRN_INIT_ZEROS };
    const struct cairn_init normal = { .kind = CAIRN_INIT_NORMAL, .b = 0.02, .seed = 1 };
    const struct cairn_init init = model->begins_random ? normal : zeros;
    if (tensors == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < model->tensors; i++) {
        snprintf(member->names[i], sizeof member->names[i], "w%04u", i % BENCH_TENSORS_MAX);
        tensors[i] = (struct cairn_tensor) { .struct_size = sizeof tensors[i],
                                             .name = member->names[i],
                                             .wire = model->wire,
                                             .rank = 2,
                                             .shape = { model->rows, BENCH_COLUMNS },
                                             .init = init };
    }
    const struct cairn_group group = CAIRN_GROUP_INIT;
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = model->tensors,
                                         .groups = &group,
                                         .group_count = 1,
                                         .rank = worker->rank,
                                         .workers_min = worker->world,
                                         .global_batch = model->batch,
                                         .micro_batches = model->added,
                                         .snapshot_durable_within_s = model->durable_s,
                                         .durability = model->is_logged ? CAIRN_DURABILITY_LOG
                                                                        : CAIRN_DURABILITY_DEFAULT,
                                         .stage = model->added > 0 ? CAIRN_STAGE(1) : 0 };
    const cairn_status status = cairn_job_open(member->session, model->job, &spec, CAIRN_WORKER,
                                               BENCH_CALL_MS, &member->job);
    free(tensors);
    return status;
}

bool bench_member_join(struct bench_member *member, const struct bench_model *model,
                       const struct bench_worker *worker)
{
    cairn_status status = open_job(member, model, worker);
    if (status == CAIRN_OK) status = cairn_init_done(member->job, NULL, BENCH_CALL_MS);
    return bench_is_ok(status);
}

bool bench_member_open(struct bench_member *member, const struct bench_model *model,
                       const struct bench_worker *worker)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = model->endpoint,
                                     .device = model->device };
    const cairn_status status = cairn_open(&opts, &member->session);
    return bench_is_ok(status) && bench_member_join(member, model, worker);
}

struct cairn_mem bench_mem_of(const struct bench_model *model, char *memory, uint32_t i)
{
    const size_t bytes = bench_model_bytes(model);
    return (struct cairn_mem) { .struct_size = sizeof(struct cairn_mem),
                                .ptr = memory + i * bytes,
                                .dtype = model->wire,
                                .bytes = bytes,
                                .device = model->device };
}

cairn_status bench_push_each(const struct bench_member *member, const struct bench_model *model,
                             const struct cairn_round *round, uint32_t micro, char *memory)
{
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < model->tensors && status == CAIRN_OK; i++) {
        const struct cairn_mem mem = bench_mem_of(model, memory, i);
        status = cairn_push(member->job, round, micro, member->names[i], NULL, &mem, NULL);
    }
    return status;
}

cairn_status bench_fetch_each(const struct bench_member *member, const struct bench_model *model,
                              struct cairn_version version, char *memory, cairn_op **ops)
{
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < model->tensors && status == CAIRN_OK; i++) {
        const struct cairn_mem mem = bench_mem_of(model, memory, i);
        status = cairn_fetch(member->job, version, member->names[i], NULL, NULL, &mem, &ops[i]);
    }
    return status;
}

cairn_status bench_step_do(struct bench_step *s)
{
    struct cairn_result result = { .struct_size = sizeof result };
    s->round = (struct cairn_round) { .struct_size = sizeof s->round };
    s->at[0] = bench_now();
    cairn_status status = cairn_round_begin(s->job, BENCH_CALL_MS, &s->round);
    s->at[1] = bench_now();
    if (status == CAIRN_OK && s->push != NULL) status = s->push(s->own, &s->round);
    s->at[2] = bench_now();
    if (status == CAIRN_OK)
        status = cairn_commit(s->job, &s->round, s->micros, NULL, 0, BENCH_CALL_MS, &result);
    s->version = result.version;
    s->at[3] = bench_now();
    if (status == CAIRN_OK && s->fetch != NULL) status = s->fetch(s->own, result.version);
    s->at[4] = bench_now();
    return status;
}

bool bench_step_run(struct bench_step *s, struct bench_report *report)
{
    const cairn_status status = bench_step_do(s);
    report->figures[BENCH_FIGURE_ALL] = s->at[4] - s->at[0];
    report->figures[BENCH_FIGURE_PUSH] = s->at[2] - s->at[0];
    report->figures[BENCH_FIGURE_COMMIT] = s->at[3] - s->at[2];
    report->figures[BENCH_FIGURE_FETCH] = s->at[4] - s->at[3];
    return bench_is_ok(status);
}

/* ==== checks ==== */

int bench_check(const struct ctl *ctl, uint32_t workers, uint32_t tensors)
{
    uint64_t path; // the library takes it from CAIRN_FABRIC
    if (workers > BENCH_WORKERS_MAX)
        return ctl_fail(CAIRN_ERR_INVALID, "--workers %u: 1 to %d is allowed", workers,
                        BENCH_WORKERS_MAX);
    if (tensors > BENCH_TENSORS_MAX)
        return ctl_fail(CAIRN_ERR_INVALID, "--tensors %u: 1 to %d is allowed", tensors,
                        BENCH_TENSORS_MAX);
    if (ctl->path == NULL) return -1;
    return ctl_parse_choice("path", "auto|mapped|stream|sealed|ucx", ctl->path, &path);
}

int bench_check_device(const struct ctl *ctl)
{
    if (ctl->bench.device == NULL || bench_is_on_card(ctl)) return -1;
    return ctl_usage_fail(ctl, "--device %s: the host has none; give --backend cuda, too",
                          ctl->bench.device);
}

bool bench_is_on_card(const struct ctl *ctl)
{
    return ctl->bench.backend != NULL && strcmp(ctl->bench.backend, "cuda") == 0;
}

int bench_check_memory(uint64_t needed_bytes, const char *what, const char *fewer)
{
    const uint64_t there = bench_memory_bytes();
    if (needed_bytes <= there) return -1;
    return ctl_fail(CAIRN_ERR_NO_MEMORY, "it needs %s%s, and %s are free; give fewer %s",
                    ctl_bytes(needed_bytes), what, ctl_bytes(there), fewer);
}

void *bench_memory_map(size_t bytes, enum bench_pages pages)
{
    const int sharing = pages == BENCH_SHARED ? MAP_SHARED : MAP_PRIVATE;
    void *memory = pages_map(bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1);
    if (memory == MAP_FAILED) {
        (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory for %s", ctl_bytes(bytes));
        return NULL;
    }
    if (pages == BENCH_LARGE) madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

int bench_listen(uint16_t *port_out)
{
    struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t bytes = sizeof here;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&here, bytes) == 0 && listen(fd, 1) == 0 &&
        getsockname(fd, (struct sockaddr *)&here, &bytes) == 0) {
        *port_out = ntohs(here.sin_port);
        return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

bool bench_connect_self(int ends[static 2])
{
    struct sockaddr_in there = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    uint16_t port = 0;
    const int listener = bench_listen(&port);
    ends[0] = ends[1] = -1;
    if (listener < 0) return false;
    there.sin_port = htons(port);
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (ends[0] >= 0 && connect(ends[0], (struct sockaddr *)&there, sizeof there) == 0)
        ends[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    close(listener);
    return ends[1] >= 0;
}

/* ==== result ==== */

/* Alternating runs, their medians, and the printing of a result. */

#define SECONDS_DEFAULT 5.0

double bench_clock(clockid_t clock)
{
    struct timespec t = { 0 };
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double bench_now(void)
{
    return bench_clock(CLOCK_MONOTONIC);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench_spread bench_spread_of(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, by_size);
    const double middle = values[count / 2];
    return (struct bench_spread) {
        .median = count % 2 == 1 ? middle : (values[count / 2 - 1] + middle) / 2,
        .min = values[0],
        .max = values[count - 1],
    };
}

/* Runs one side once, keeps its figures, and returns its value. */
static double run_side(struct bench *b, int side, bench_fn *run)
{
    struct bench_series *series = &b->series[side];
    const double value = run(b);
    for (int f = 0; f < BENCH_FIGURES; f++) series->values[f][series->count] = b->figures[f];
    series->count++;
    return value;
}

static bool goes_on(const struct bench *b, uint32_t runs, double end)
{
    if (b->runs_wanted > 0) return runs < b->runs_wanted;
    return runs < BENCH_RUNS_MIN || (runs < BENCH_RUNS_MAX && bench_now() < end);
}

int bench_alternate(struct bench *b, struct bench_result *result, double seconds, bench_fn *subject,
                    bench_fn *reference)
{
    static double values[BENCH_RUNS_MAX], others[BENCH_RUNS_MAX], ratios[BENCH_RUNS_MAX];
    double end = 0;
    uint32_t runs = 0;
    b->series[BENCH_SUBJECT].count = b->series[BENCH_REFERENCE].count = 0;
    for (bool is_first = true; is_first || goes_on(b, runs, end);) {
        const double value = run_side(b, BENCH_SUBJECT, subject);
        const double other = value > 0 ? run_side(b, BENCH_REFERENCE, reference) : 0;
        if (!(other > 0)) return 1;
        if (is_first) { // it touches new memory and fills caches
            end = bench_now() + (seconds > 0 ? seconds : SECONDS_DEFAULT);
            is_first = false;
            continue;
        }
        values[runs] = value;
        others[runs] = other;
        ratios[runs++] = result->less_is_better ? other / value : value / other;
    }
    result->value = bench_spread_of(values, runs);
    result->reference = bench_spread_of(others, runs);
    result->ratio = bench_spread_of(ratios, runs);
    result->runs = runs;
    return -1;
}

/* ---- printing ---- */

static void set_spread(json_t *object, const char *name, const struct bench_spread *spread)
{
    char key[32];
    json_object_set_new(object, name, json_real(spread->median));
    snprintf(key, sizeof key, "%s_min", name);
    json_object_set_new(object, key, json_real(spread->min));
    snprintf(key, sizeof key, "%s_max", name);
    json_object_set_new(object, key, json_real(spread->max));
}

static void print_json(const struct bench *b, const char *name)
{
    const struct bench_result *result = &b->result;
    json_t *object = json_pack("{s:s, s:s, s:s, s:I, s:O, s:O, s:o}", "bench", name, "unit",
                               result->unit, "reference_name", result->reference_name, "runs",
                               (json_int_t)result->runs, "params", b->params, "parts", b->parts,
                               "machine", bench_machine());
    set_spread(object, "value", &result->value);
    set_spread(object, "reference", &result->reference);
    set_spread(object, "ratio", &result->ratio);
    ctl_print_json(object);
}

/* Prints "name value" pairs on one line. */
static void print_object(const char *name, json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(6));
    const size_t length = text != NULL ? strlen(text) : 0;
    size_t kept = 0;
    for (size_t i = 0; i < length; i++) {
        if (strchr("{}\"", text[i]) != NULL) continue;
        text[kept++] = text[i] == ',' || text[i] == ':' ? ' ' : text[i];
    }
    if (kept > 0) ctl_line(name, "%.*s", (int)kept, text);
    free(text);
}

static void print_spread(const char *name, const char *unit, const struct bench_spread *spread,
                         const char *note)
{
    ctl_line(name, "%.4g%s%s (%.4g to %.4g)%s%s", spread->median, unit[0] != 0 ? " " : "", unit,
             spread->min, spread->max, note[0] != 0 ? ", " : "", note);
}

static void print_table(const struct bench *b, const char *name)
{
    const struct bench_result *result = &b->result;
    json_t *machine = bench_machine();
    print_spread(name, result->unit, &result->value, "");
    print_spread("reference", result->unit, &result->reference, result->reference_name);
    print_spread("ratio", "", &result->ratio, "");
    ctl_line("runs", "%u of each, by turns", result->runs);
    print_object("parts", b->parts);
    print_object("params", b->params);
    print_object("machine", machine);
    json_decref(machine);
}

/* Prints the result. If only one part of the bench ran, the printed name includes this part. */
static void print_result(const struct bench *b)
{
    char name[48];
    const char *only = b->ctl->bench.only;
    snprintf(name, sizeof name, "%s%s%s", b->row->name, only != NULL ? "." : "",
             only != NULL ? only : "");
    (b->ctl->json ? print_json : print_table)(b, name);
}

void bench_add_parts(struct bench *b, const struct bench_figure *figures)
{
    for (; figures->name != NULL; figures++)
        json_object_set_new(b->parts, figures->name, json_real(figures->value));
}

double bench_median(struct bench *b, int side, int figure)
{
    struct bench_series *series = &b->series[side];
    return bench_spread_of(series->values[figure] + 1, series->count - 1).median;
}

void bench_add_columns(struct bench *b, int side, const char *prefix,
                       const struct bench_column *columns)
{
    for (; columns->name != NULL; columns++) {
        char name[64];
        const double median = bench_median(b, side, columns->figure);
        snprintf(name, sizeof name, "%s%s", prefix, columns->name);
        BENCH_PARTS(b, { name, median });
        if (columns->ratio_name != NULL)
            BENCH_PARTS(b, { columns->ratio_name, median / b->result.reference.median });
    }
}

void bench_add_count(struct bench *b, const char *name, uint64_t count)
{
    json_object_set_new(b->parts, name, json_integer((json_int_t)count));
}

int bench_add_params(struct bench *b, json_t *more)
{
    json_object_update_missing(b->params, more);
    json_decref(more);
    return -1;
}

/* Returns the processor time, in seconds, that all threads of a process have used since it began,
 * ended threads included. Below 0: the process has ended. */
double bench_used_s(pid_t pid)
{
    clockid_t clock;
    struct timespec t;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0) return -1;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ==== memory of processes ==== */

uint64_t bench_process_bytes(pid_t pid)
{
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    return read_bytes_of(path, "VmRSS:");
}

uint64_t bench_process_peak(pid_t pid)
{
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    const uint64_t peak = read_bytes_of(path, "VmHWM:");
    snprintf(path, sizeof path, "/proc/%d/clear_refs", (int)pid);
    FILE *file = fopen(path, "we");
    if (file == NULL) return peak; // the next peak then counts from the start of the process, too
    fputs("5\n", file);
    fclose(file);
    return peak;
}

/* ==== times ==== */

#define TIMES_GROWTH 4096

/* Returns the number after " key="; 0: there is none. */
static uint64_t field(const char *line, const char *key)
{
    char wanted[32];
    snprintf(wanted, sizeof wanted, " %s=", key);
    const char *found = strstr(line, wanted);
    return found != NULL ? strtoull(found + strlen(wanted), NULL, 10) : 0;
}

static struct bench_times times_of(const char *line, int shard)
{
    return (struct bench_times) {
        .shard = (uint32_t)shard,
        .round = field(line, "round"),
        .grant = field(line, "grant_us"),
        .receive = field(line, "receive_us"),
        .fold = field(line, "fold_us"),
        .reduce = field(line, "reduce_us"),
        .reduced = field(line, "reduced_us"),
        .update = field(line, "update_us"),
        .published = field(line, "published_us"),
        .launches = field(line, "launches"),
        .in_bytes = field(line, "in_bytes"),
        .out_bytes = field(line, "out_bytes"),
    };
}

static void read_shard_times(struct bench *b, int shard)
{
    char path[PATH_MAX + 32], line[2560];
    snprintf(path, sizeof path, "%s/shard-%d.log", b->local->folder, shard);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strstr(line, "msg=\"times of a round\"") == NULL) continue;
        if (b->time_count % TIMES_GROWTH == 0) {
            const size_t room = b->time_count + TIMES_GROWTH;
            struct bench_times *grown = realloc(b->times, room * sizeof *grown);
            if (grown == NULL) break;
            b->times = grown;
        }
        b->times[b->time_count++] = times_of(line, shard);
    }
    if (file != NULL) fclose(file);
}

void bench_times_read(struct bench *b)
{
    free(b->times);
    b->times = NULL;
    b->time_count = 0;
    for (int s = 1; s < b->local->daemon_count; s++) read_shard_times(b, s);
}

/* ==== harness ==== */

static const struct bench_row *const rows[] = {
    &bench_update, &bench_layout,  &bench_latency,  &bench_fabric, &bench_step,    &bench_tensors,
    &bench_open,   &bench_reshard, &bench_snapshot, &bench_map,    &bench_recover,
};

/* Adds the row's parameters to the result. */
static void tell_params(struct bench *b)
{
    const struct bench_model *model = &b->model;
    const struct {
        const char *name, *text;
        uint64_t number;
    } params[] = {
        { "params", NULL, bench_model_params(model) },
        { "tensors", NULL, model->tensors },
        { "workers", NULL, b->workers },
        { "shards", NULL, b->ctl->shards },
        { "threads", NULL, b->ctl->bench.threads },
        { "wire", bench_wire_name(model->wire), 0 },
        { "path", b->ctl->path != NULL ? b->ctl->path : "auto", 0 },
    };
    const char *told = b->row->params_told != NULL ? b->row->params_told : "";
    for (size_t i = 0; i < sizeof params / sizeof *params; i++)
        if (strstr(told, params[i].name) != NULL)
            bench_add_params(
                b, params[i].text != NULL
                       ? json_pack("{s:s}", params[i].name, params[i].text)
                       : json_pack("{s:I}", params[i].name, (json_int_t)params[i].number));
}

static int do_stage(bench_stage *stage, struct bench *b)
{
    return stage != NULL ? stage(b) : -1;
}

/* Makes the model from the command line and the row. -1: continue. */
static int make_model(struct bench *b)
{
    const struct bench_row *row = b->row;
    const struct ctl_bench *asked = &b->ctl->bench;
    struct bench_model *model = &b->model;
    if (b->ctl->shards == 0) b->ctl->shards = row->shards;
    b->workers = asked->workers > 0 ? asked->workers : row->workers;
    model->wire = asked->wire == NULL               ? row->wire
                  : strcmp(asked->wire, "f32") == 0 ? CAIRN_F32
                                                    : CAIRN_BF16;
    snprintf(model->job, sizeof model->job, "bench.%s", row->name);
    if (row->tensors > 0) {
        model->tensors = asked->tensors > 0 ? asked->tensors : row->tensors;
        bench_model_cut(model, asked->params > 0 ? asked->params : row->params);
    }
    return row->work != NULL ? bench_check(b->ctl, b->workers, model->tensors) : -1;
}

/* Runs the stages of the bench, in the cluster if the bench needs one. */
static int measure(struct local *local, void *bench)
{
    struct bench *b = bench;
    const struct bench_row *row = b->row;
    b->local = local;
    if (local != NULL && b->ctl->path != NULL) setenv("CAIRN_FABRIC", b->ctl->path, 1);
    int done = do_stage(row->open, b);
    if (done < 0 && row->work != NULL && !bench_crew_start(b, row->work)) done = 1;
    if (done < 0) done = do_stage(row->begin, b);
    if (done < 0 && row->run != NULL)
        done = bench_alternate(b, &b->result,
                               row->seconds > 0 ? row->seconds : b->ctl->bench.seconds, row->run,
                               row->reference);
    if (done < 0 && b->logs_rounds) bench_times_read(b);
    if (done < 0) done = do_stage(row->report, b);
    if (done < 0 && b->is_compared) done = bench_tier_report(b);
    if (done < 0 && row->columns != NULL) bench_add_columns(b, BENCH_SUBJECT, "", row->columns);
    bench_crew_stop(b);
    return done;
}

static int measure_again(struct local *local, void *bench)
{
    struct bench *b = bench;
    b->local = local;
    const int done = bench_crew_start(b, b->row->work) ? b->row->again(b) : 1;
    bench_crew_stop(b);
    return done;
}

/* Runs a cluster without the tier, and in it, so that both are up, the bench's cluster. */
static int measure_beside(struct local *beside, void *bench)
{
    struct bench *b = bench;
    b->beside = beside;
    b->local->signals = beside->signals; // they are blocked already
    b->local->old_signals = beside->old_signals;
    b->local->is_blocked = true;
    return local_run(b->local, measure, b);
}

int bench_measure(void *bench)
{
    static struct local local, beside;
    struct bench *b = bench;
    const struct bench_row *row = b->row;
    b->result = (struct bench_result) { .unit = row->unit,
                                        .reference_name = row->reference_name,
                                        .less_is_better = row->less_is_better };
    b->logs_rounds = row->logs_rounds;
    b->tier = bench_tier_of(b->ctl->bench.tier);
    int done = make_model(b);
    if (done < 0) done = do_stage(row->prepare, b);
    local.ctl = b->ctl;
    local.is_debug = b->logs_rounds;
    // A shard whose keeper is killed becomes a child of this process.
    local.is_kept = (b->tier == BENCH_TIER_PROCESS || b->tier == BENCH_TIER_PEER) &&
                    prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
    local.has_logs = b->model.is_logged = b->tier == BENCH_TIER_LOG;
    local.threads = b->ctl->bench.threads;
    local.backend = b->ctl->bench.backend;
    local.device = b->ctl->bench.device;
    beside = local;
    beside.is_kept = beside.has_logs = false;
    b->local = &local;
    if (done < 0 && b->is_compared)
        done = local_run(&beside, measure_beside, b);
    else if (done < 0)
        done = row->in_cluster ? local_run(&local, measure, b) : measure(NULL, b);
    local.is_debug = true;
    if (done < 0 && row->again != NULL && b->ctl->endpoint == NULL)
        done = local_run(&local, measure_again, b);
    if (done < 0) tell_params(b);
    return done;
}

int bench_run(struct ctl *ctl)
{
    static struct bench *b; // not freed: the program ends after it
    size_t i = 0;
    while (strcmp(rows[i]->name, ctl->row->verb) != 0) i++; // each command is a row
    b = calloc(1, rows[i]->bytes);
    if (b == NULL) return ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    *b = (struct bench) {
        .row = rows[i], .ctl = ctl, .params = json_object(), .parts = json_object()
    };
    const int done = b->row->all != NULL ? b->row->all(b) : bench_measure(b);
    if (done < 0) print_result(b);
    return done < 0 ? 0 : done;
}

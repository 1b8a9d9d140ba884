/* cairn bench fabric: the throughput of the fabric for pushes and fetches, including all work of client and
 * shard on a chunk in transit, compared with programs that only move the same number of bytes:
 *
 *   --path ucx        ucx_perftest -t ucp_am_bw -E sleep -e with chunks, window, header and settings of the
 *                     fabric (raw TCP where it is not installed)
 *   --path one-sided  the same; the receiver reads the chunks; over TCP UCX emulates these reads
 *   --path mapped     memcpy
 *
 * A run pushes RUN_BYTES and fetches as many bytes. The figure of the run is the sum of the bytes, divided
 * by the sum of both times.
 *
 * perftest repeatedly sends one buffer, which stays in the cache, and never reads the bytes of the buffer.
 * So a run on the path "ucx" has three more variants, which show the causes of the difference: without
 * checksums (and with UCX's own way of receiving), with a single chunk, and with both changes, as perftest
 * works. */
#include "client/ctl/bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "proto/base/machine.h"
#include "proto/geometry/tensor.h"
#include "proto/loop/loop.h"
#include "proto/wire/wire.h"

/* ==== reference ==== */

#define BENCH_WINDOW 8
#define BENCH_AREA_BYTES \
    ((size_t)64 << 20) /* the area that is pushed, and the area that is published, reused */

/* The reference that the fabric is measured against: moves the same bytes by the shortest path. */

/* Functions return GB/s. If the run failed, they print the error and return 0. */

#define PROGRAM     "ucx_perftest"
#define WARM_CHUNKS 16
#define TRIES       100 /* connection attempts until the server listens */
#define TRY_MS      20
#define LIMIT_MS    120000
#define OUTPUT_MAX  4096

/* ---- processes ---- */

static void end_process(pid_t pid)
{
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
}

/* ---- ucx_perftest ---- */

/* The reference is ucx_perftest -t ucp_am_bw -E sleep -e. Its two processes send one buffer into
 * one other buffer, with the fabric's settings, and sleep like the fabric. (With -E poll, perftest
 * is faster if both processes have an idle core, and many times slower if they do not. The option
 * -e selects endpoints with error handling, like Cairn's, because a dead peer is never noticed
 * without error handling. Without -e, perftest uses another lane, and is 1.4 times as fast.)
 * start_perftest starts one of the two processes, with the settings of proto/fabric/ucx.c; `out` is
 * the descriptor for its output. */
static char perftest[PATH_MAX]; /* the program; "": it is not installed */

static pid_t start_perftest(char *const *arguments, int out)
{
    static const char *const settings[][2] = {
        { "UCX_TLS", "tcp" },
        { "UCX_NET_DEVICES", "lo" },
        { "UCX_TCP_TX_SEG_SIZE", "256k" },
        { "UCX_TCP_RX_SEG_SIZE", "256k" },
        { "UCX_RX_MPOOL_SIZES", "64,1k,64k" },
        { "UCX_RNDV_THRESH", "32k" },
        { "UCX_PROTO_ENABLE", "n" },
        { "UCX_RCACHE_ENABLE", "n" },
        { "UCX_WARN_UNUSED_ENV_VARS", "n" },
    };
    const pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(nothing, STDIN_FILENO), dup2(nothing, STDERR_FILENO);
    dup2(out >= 0 ? out : nothing, STDOUT_FILENO);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        setenv(settings[i][0], settings[i][1], 1);
    execv(perftest, arguments);
    _exit(127);
}

/* Reads until the other end closes the pipe. False: the other end did not close the pipe within the time
 * limit. */
static bool read_output(int fd, char text[OUTPUT_MAX])
{
    size_t have = 0;
    for (;;) {
        struct pollfd wait = { .fd = fd, .events = POLLIN };
        if (have == OUTPUT_MAX - 1 || poll(&wait, 1, LIMIT_MS) <= 0) return false;
        const ssize_t got = read(fd, text + have, OUTPUT_MAX - 1 - have);
        if (got < 0) return false;
        if (got == 0) break;
        have += (size_t)got;
    }
    text[have] = '\0';
    return true;
}

/* Parses " 256,2.6,2069.0,4621.6,...": the fourth number is the microseconds per message over all
 * messages. 0: not found. */
static double microseconds_of(const char *text)
{
    const char *line = strrchr(text, '\n');
    while (line != NULL && line > text && line[1] == '\0') // the last line that is not empty
        do line--;
        while (line > text && *line != '\n');
    double us = 0;
    if (line == NULL || sscanf(line, " %*[^,],%*[^,],%*[^,],%lf", &us) != 1) return 0;
    return us;
}

/* Makes one attempt, and returns microseconds per message; 0 if the server does not listen yet. */
static double try_client(char *const *arguments)
{
    char text[OUTPUT_MAX];
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0) return 0;
    const pid_t client = start_perftest(arguments, out[1]);
    close(out[1]);
    const bool whole = read_output(out[0], text);
    close(out[0]);
    end_process(client);
    return whole ? microseconds_of(text) : 0;
}

/* Returns microseconds per message; 0: no client could connect to the server. */
static double try_pair(char *const *server_line, char *const *client_line)
{
    const struct timespec pause = { .tv_nsec = TRY_MS * 1000000L };
    double us = 0;
    fflush(NULL);
    const pid_t server = start_perftest(server_line, -1);
    for (int i = 0; i < TRIES && !(us > 0) && server > 0; i++) {
        nanosleep(&pause, NULL);
        if (waitpid(server, NULL, WNOHANG) == server) return 0;
        us = try_client(client_line);
    }
    end_process(server);
    return us;
}

static double bench_perftest(size_t chunk_bytes, uint64_t chunks)
{
    char port[8], size[24], count[24], warm[8], window[8];
    uint16_t number = 0;
    const int probe = bench_listen(&number);
    if (probe >= 0) close(probe); // the port was just freed: no other process gets it this soon
    snprintf(port, sizeof port, "%u", number);
    snprintf(size, sizeof size, "%zu", chunk_bytes);
    snprintf(count, sizeof count, "%" PRIu64, chunks);
    snprintf(warm, sizeof warm, "%d", WARM_CHUNKS);
    snprintf(window, sizeof window, "%d", BENCH_WINDOW);
    // If built with MPI (Debian 13), perftest exits immediately because mpirun did not start it, unless the
    // option -P 0 turns MPI off. If built without MPI, perftest rejects that option.
    char *server_line[] = { PROGRAM, "-p", port, "-E", "sleep", "-e", NULL, "0", NULL };
    char *client_line[] = { PROGRAM, "127.0.0.1", "-p", port,  "-t", "ucp_am_bw", "-s", size,
                            "-n",    count,       "-w", warm,  "-O", window,      "-H", "128",
                            "-E",    "sleep",     "-e", "-fv", NULL, "0",         NULL };
    static bool has_mpi; // set by the first call that gives a figure
    double us = 0;
    for (int mpi = has_mpi; mpi < 2 && !(us > 0); mpi++) {
        server_line[6] = client_line[20] = mpi ? "-P" : NULL;
        us = try_pair(server_line, client_line);
        has_mpi = us > 0 && mpi;
    }
    if (us > 0) return (double)chunk_bytes / us * 1e-3;
    ctl_fail(CAIRN_ERR_UNREACHABLE,
             PROGRAM " gave no figure: does `" PROGRAM " -l -t ucp_am_bw -s %s -n 10` run?", size);
    return 0;
}

/* ---- raw TCP ---- */

static uint8_t *make_bytes(size_t bytes)
{
    void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return made != MAP_FAILED ? made : NULL;
}

/* Runs in the child: reads all bytes into memory for one window of chunks, and acknowledges the bytes. */
static int swallow(int fd, size_t chunk_bytes, uint64_t chunks)
{
    const size_t room = BENCH_WINDOW * chunk_bytes;
    uint8_t *bytes = make_bytes(room);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint64_t left = chunks * chunk_bytes, at = 0; left > 0 && bytes != NULL;) {
        const ssize_t got = read(fd, bytes + at % room, room - at % room);
        if (got <= 0) return 1;
        left -= (uint64_t)got;
        at += (uint64_t)got;
    }
    return write(fd, "", 1) == 1 && bytes != NULL ? 0 : 1;
}

static bool pour(int fd, size_t chunk_bytes, uint64_t chunks)
{
    char answer;
    uint8_t *bytes = make_bytes(BENCH_AREA_BYTES);
    const size_t area_chunks = BENCH_AREA_BYTES / chunk_bytes;
    bool ok = bytes != NULL;
    for (uint64_t i = 0; i < chunks && ok; i++)
        for (size_t sent = 0; sent < chunk_bytes && ok;) {
            const uint8_t *from = bytes + i % area_chunks * chunk_bytes + sent;
            const ssize_t put = send(fd, from, chunk_bytes - sent, MSG_NOSIGNAL);
            ok = put > 0;
            if (ok) sent += (size_t)put;
        }
    ok = ok && read(fd, &answer, 1) == 1;
    if (bytes != NULL) munmap(bytes, BENCH_AREA_BYTES);
    return ok;
}

/* Measures write() and read() over loopback, between two processes. */
static double bench_raw_tcp(size_t chunk_bytes, uint64_t chunks)
{
    int ends[2];
    bool ok = bench_connect_self(ends);
    fflush(NULL);
    const pid_t child = ok ? fork() : -1;
    if (child == 0) _exit((close(ends[0]), swallow(ends[1], chunk_bytes, chunks)));
    if (ends[1] >= 0) close(ends[1]);
    const double begin = bench_now();
    ok = child > 0 && pour(ends[0], chunk_bytes, chunks);
    const double seconds = bench_now() - begin;
    if (ends[0] >= 0) close(ends[0]);
    end_process(child);
    if (ok) return (double)(chunks * chunk_bytes) / seconds * 1e-9;
    ctl_fail(CAIRN_ERR_IO, "raw TCP over loopback failed: %s", strerror(errno));
    return 0;
}

/* ---- memcpy ---- */

/* Measures memcpy of one area to another, each of `area_bytes`. */
static double bench_memcpy(size_t area_bytes, size_t chunk_bytes, uint64_t chunks)
{
    // The memory is kept between calls, because the fabric's memory was touched before, too.
    static uint8_t *from, *to;
    if (from == NULL) from = make_bytes(area_bytes);
    if (to == NULL) to = make_bytes(area_bytes);
    if (from == NULL || to == NULL) {
        ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the copies of the reference");
        return 0;
    }
    const double begin = bench_now();
    for (uint64_t i = 0; i < chunks; i++) {
        const size_t at = i % (area_bytes / chunk_bytes) * chunk_bytes;
        memcpy(to + at, from + at, chunk_bytes);
    }
    return (double)(chunks * chunk_bytes) / (bench_now() - begin) * 1e-9;
}

/* ==== ends ==== */

/* The two ends of a bench of the fabric: this process as the worker, and a child as the shard. For
 * a chunk in transit, each process does exactly the work of the client library or of a shard, and
 * no other work.
 *
 *   push:  worker  checksum, PUSH ──►  shard  receive into a slot, checksum, ACK
 *          (to a peer that maps: no checksum; the peer reads the complete chunk in place)
 *   fetch: worker  FETCH ──►  shard  copy of the published bytes, their stored checksum, DATA ──►
 *          worker  receive around the caches, checksum in the same pass
 *          (to a peer that maps: directly from the published memory)
 *
 * Headers have 128 bytes, BENCH_WINDOW chunks are in flight, and each end has one libuv loop that sleeps
 * when idle. The child ends when the worker's end closes, or with this process. */

/* Bits for the work that a run omits, to measure the cost of this work. */
enum bench_less {
    BENCH_UNCHECKED = 1, /* no checksum is computed or compared */
    BENCH_ONE_CHUNK = 2  /* one chunk, which stays in the caches, is moved instead of the area */
};

struct bench_ends;

/* The worker's end and the shard's end. */

/* more than the window, because releases and new requests take different paths */
#define SLOTS      (8 * BENCH_WINDOW)
#define STALLED_MS 10000 /* after this time without a chunk the connection counts as lost */
#define JOB        1
#define MEMBER     1

/* A chunk in flight: at the worker's end, a request; at the shard's end, a slot or a reply. */
struct flight {
    struct end *end;
    struct chunk_header header;
    uint8_t *bytes; /* borrowed: from the landing area */
    uint64_t came;  /* the checksum of the received bytes */
    bool lent;      /* the fabric is using the chunk's memory */
    bool answered;
    struct flight *next; /* in the list of free flights */
};

/* One of the two processes. */
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
        /* area: [area_chunks] chunks in shared memory. landing: as many chunks, or [SLOTS] for the
         * shard */
        *landing;
    uint64_t *checksums; /* shard: [area_chunks], 0: not requested yet */
    struct flight flights[SLOTS];
    struct flight *free;
    /* worker: state of the run */
    uint64_t asked, done, wanted, stalled_at;
    uint8_t kind;
    unsigned less;
    uv_timer_t stall; /* ends a run in which nothing arrives */
};

struct bench_ends {
    struct end worker;
    pid_t shard;
    /* a connection to the shard's process, to exchange addresses; closing it ends the shard */
    int line;
};

/* ---- both ---- */

static struct flight *take_flight(struct end *end)
{
    struct flight *flight = end->free;
    if (flight != NULL) end->free = flight->next;
    return flight;
}

static void give_flight(struct flight *flight)
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

static void answer_chunk(struct flight *flight, uint8_t kind)
{
    flight->header.kind = kind;
    flight->header.payload_bytes = flight->header.checksum = 0;
    flight->header.dtype = 0;
    send_header(flight, NULL, NULL);
}

static void check_push(struct flight *flight, const void *bytes)
{
    const size_t byte_count = (size_t)flight->header.payload_bytes;
    const bool whole = flight->header.checksum == 0 ||
                       chunk_checksum(bytes, byte_count) == flight->header.checksum;
    answer_chunk(flight, whole ? CAIRN_CHUNK_ACK : CAIRN_CHUNK_NAK);
    give_flight(flight);
}

/* Reads the chunk in place, by a checksum, which reads as fast as the fold. */
static void read_push(struct flight *flight, const void *bytes)
{
    flight->header.checksum = chunk_checksum(bytes, (size_t)flight->header.payload_bytes);
    answer_chunk(flight, CAIRN_CHUNK_ACK);
    give_flight(flight);
}

static void on_landed(void *arg, cairn_status status)
{
    struct flight *flight = arg;
    if (status == CAIRN_OK)
        check_push(flight, flight->bytes);
    else
        give_flight(flight);
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
    give_flight(arg);
}

static void shard_on_fetch(struct flight *flight)
{
    struct end *end = flight->end;
    const size_t chunk = (size_t)flight->header.step % end->area_chunks;
    const uint8_t *bytes = end->area + chunk * end->chunk_bytes; // directly from published memory
    if (end->checksums[chunk] == 0) end->checksums[chunk] = chunk_checksum(bytes, end->chunk_bytes);
    flight->header.kind = CAIRN_CHUNK_DATA;
    flight->header.dtype = CAIRN_F32;
    flight->header.payload_bytes = end->chunk_bytes;
    flight->header.checksum = end->checksums[chunk];
    send_header(flight, bytes, on_reply_sent);
}

/* ---- the worker ---- */

static void pump(struct end *end);

/* Finishes a chunk that was answered and whose memory the fabric no longer uses. */
static void finish_flight(struct flight *flight)
{
    struct end *end = flight->end;
    if (!flight->answered || flight->lent) return;
    give_flight(flight);
    end->done++;
    if (end->done == end->wanted) uv_stop(&end->loop);
    pump(end);
}

static void on_pushed(void *arg, cairn_status status)
{
    struct flight *flight = arg;
    (void)status;
    flight->lent = false;
    finish_flight(flight);
}

static void ask_chunk(struct end *end, struct flight *flight)
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
        // the chunk's index in the area; only this bench uses the field in this way
        .step = (end->less & BENCH_ONE_CHUNK) != 0 ? 0 : end->asked % end->area_chunks,
        .request = (uint64_t)(flight - end->flights),
    };
    if (end->kind == CAIRN_CHUNK_PUSH) {
        bytes = end->area + flight->header.step * end->chunk_bytes;
        flight->header.dtype = CAIRN_F32;
        flight->header.payload_bytes = end->chunk_bytes;
        if ((end->less & BENCH_UNCHECKED) == 0 && !end->is_mapped)
            flight->header.checksum = chunk_checksum(bytes, end->chunk_bytes);
    }
    end->asked++;
    send_header(flight, bytes, bytes != NULL ? on_pushed : NULL);
}

static void pump(struct end *end)
{
    while (end->asked < end->wanted && !end->is_lost && end->asked - end->done < BENCH_WINDOW)
        ask_chunk(end, take_flight(end)); // there are more flights than the window
}

static void on_received(void *arg, cairn_status status)
{
    struct flight *flight = arg;
    struct end *end = flight->end;
    const bool is_checked = (end->less & BENCH_UNCHECKED) == 0;
    flight->lent = false;
    if (status != CAIRN_OK || (is_checked && flight->came != flight->header.checksum))
        end->is_lost = true;
    finish_flight(flight);
}

static void worker_on_answer(struct end *end, const struct chunk_header *header,
                             struct fabric_message *message)
{
    if (header->request >= SLOTS || (header->kind == CAIRN_CHUNK_DATA) != (message != NULL) ||
        header->kind == CAIRN_CHUNK_NAK || header->payload_bytes > end->chunk_bytes) {
        end->is_lost = true; // this answer means that something is broken
        if (message != NULL) fabric_drop(message);
        return;
    }
    struct flight *flight = &end->flights[header->request];
    flight->answered = true;
    flight->header.checksum = header->checksum;
    if (message == NULL) {
        finish_flight(flight);
        return;
    }
    uint8_t *bytes = end->landing + flight->header.step * end->chunk_bytes;
    flight->lent = true;
    const cairn_status status = (end->less & BENCH_UNCHECKED) != 0
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
    if (is_ours) flight = take_flight(end);
    if (flight == NULL) { // more chunks are in flight than the window allows
        end->is_lost = true;
        uv_stop(&end->loop); // the other end notices when this end closes
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
    // The region owns the descriptor. Both are released when the process ends.
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
    madvise(end->landing, bytes, MADV_DONTFORK); // else a fork of the reference causes page faults
    memset(end->landing, 0, bytes);
    for (size_t i = 0; i < SLOTS; i++) {
        end->flights[i] = (struct flight) { .end = end, .bytes = end->landing };
        if (end->is_shard) end->flights[i].bytes += i * end->chunk_bytes;
        give_flight(&end->flights[i]);
    }
    return true;
}

/* Exchanges fabric addresses with the other process over `line` and connects to that process; an address
 * fits into a socket's buffer. */
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
    uv_stop(poll->loop); // the worker closed the line: end
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
    return 0; // the end's memory is freed when the process ends
}

/* ---- the worker's process ---- */

static void on_stall(uv_timer_t *stall)
{
    struct end *end = stall->data;
    if (end->done == end->stalled_at) end->is_lost = true;
    end->stalled_at = end->done;
    if (end->is_lost) uv_stop(&end->loop);
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
    free(ends); // the mappings are released when the process ends, which is soon
}

/* Opens both ends. `path` is a kind of fabric, or "one-sided", which means the kind ucx with ends
 * that read each other's memory. Returns NULL after printing the error if the ends could not be
 * opened. */
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
    worker->area_chunks = BENCH_AREA_BYTES / chunk_bytes;
    fflush(NULL);
    ends->shard = fork(); // before the fabric opens, because its threads would not be forked
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

/* Moves `chunks` chunks in one direction, omitting the work in `less` (enum bench_less). Returns the
 * seconds of the run. Returns 0 after printing the error if the run failed. */
static double run_chunks(struct bench_ends *ends, uint8_t kind, uint64_t chunks, unsigned less)
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

/* Returns the seconds of CPU that both processes have used since they began. */
static double ends_cpu_s(const struct bench_ends *ends)
{
    clockid_t shard;
    const double ours = bench_clock(CLOCK_PROCESS_CPUTIME_ID);
    return clock_getcpuclockid(ends->shard, &shard) == 0 ? ours + bench_clock(shard) : ours;
}

/* ==== bench ==== */

#define RUN_BYTES     ((uint64_t)128 << 20)
#define PERFTEST_RUNS 4
#define CHUNK_DEFAULT ((uint64_t)1 << 20)
#define CHUNK_MAX     ((uint64_t)4 << 20) /* the limit that chunks of a layout have, too */

/* The other variants of a run; each moves half as many chunks. */
static const struct {
    unsigned less;
    const char *name, *ratio_name;
} turns[] = {
    { BENCH_UNCHECKED, "unchecked_GB/s", "unchecked_ratio" },
    { BENCH_ONE_CHUNK, "one_chunk_GB/s", "one_chunk_ratio" },
    { BENCH_UNCHECKED | BENCH_ONE_CHUNK, "one_chunk_unchecked_GB/s", "one_chunk_unchecked_ratio" },
};
enum { TURNS = sizeof turns / sizeof *turns };

struct fabric_bench {
    struct bench b;
    struct bench_ends *ends;
    size_t chunk_bytes;
    uint64_t chunks; /* per run, in each direction */
    const char *path;
    bool is_mapped, has_perftest;
    struct bench_series runs; /* indexed by the figures below */
};
/* GB/s, and seconds of CPU per GB; the variants follow. */
enum { FIGURE_PUSH, FIGURE_FETCH, FIGURE_PUSH_CPU, FIGURE_FETCH_CPU, FIGURE_TURNS };
_Static_assert(FIGURE_TURNS + TURNS <= BENCH_FIGURES, "a column each");

static bool run_turns(struct fabric_bench *f, uint32_t number)
{
    const uint64_t chunks = (f->chunks + 1) / 2;
    const double gigabytes = (double)(chunks * f->chunk_bytes) * 1e-9;
    for (int i = 0; i < TURNS && !f->is_mapped; i++) {
        const double push = run_chunks(f->ends, CAIRN_CHUNK_PUSH, chunks, turns[i].less);
        const double fetch = push > 0
                                 ? run_chunks(f->ends, CAIRN_CHUNK_FETCH, chunks, turns[i].less)
                                 : 0;
        if (!(fetch > 0)) return false;
        f->runs.values[FIGURE_TURNS + i][number] = 2 * gigabytes / (push + fetch);
    }
    return true;
}

static double run_fabric(void *bench)
{
    struct fabric_bench *f = bench;
    const double gigabytes = (double)(f->chunks * f->chunk_bytes) * 1e-9;
    const uint32_t i = f->runs.count++;
    const double before = ends_cpu_s(f->ends);
    const double push = run_chunks(f->ends, CAIRN_CHUNK_PUSH, f->chunks, 0);
    const double between = ends_cpu_s(f->ends);
    const double fetch = push > 0 ? run_chunks(f->ends, CAIRN_CHUNK_FETCH, f->chunks, 0) : 0;
    if (!(fetch > 0)) return 0;
    f->runs.values[FIGURE_PUSH][i] = gigabytes / push;
    f->runs.values[FIGURE_FETCH][i] = gigabytes / fetch;
    f->runs.values[FIGURE_PUSH_CPU][i] = (between - before) / gigabytes;
    f->runs.values[FIGURE_FETCH_CPU][i] = (ends_cpu_s(f->ends) - between) / gigabytes;
    return run_turns(f, i) ? 2 * gigabytes / (push + fetch) : 0;
}

static double run_reference(void *bench)
{
    const struct fabric_bench *f = bench;
    if (f->is_mapped) return bench_memcpy(BENCH_AREA_BYTES, f->chunk_bytes, f->chunks);
    if (f->has_perftest) // perftest counts bytes in sockets as sent, so it gets a longer run
        return bench_perftest(f->chunk_bytes, PERFTEST_RUNS * f->chunks);
    return bench_raw_tcp(f->chunk_bytes, f->chunks);
}

static int prepare_fabric(void *bench)
{
    struct fabric_bench *f = bench;
    const struct ctl *ctl = f->b.ctl;
    const char *path = ctl->path != NULL ? ctl->path : "ucx";
    const uint64_t chunk = ctl->bench.chunk > 0 ? ctl->bench.chunk : CHUNK_DEFAULT;
    struct sentence why;
    f->is_mapped = strcmp(path, "mapped") == 0;
    f->path = path;
    if (!f->is_mapped && strcmp(path, "ucx") != 0 && strcmp(path, "one-sided") != 0)
        return ctl_usage_fail(ctl, "--path %s: ucx, one-sided and mapped are allowed", path);
    if (chunk > CHUNK_MAX || chunk % sizeof(float) != 0)
        return ctl_usage_fail(ctl,
                              "--chunk %" PRIu64 ": 4 to %" PRIu64 " bytes, in fours, are allowed",
                              chunk, CHUNK_MAX);
    f->chunk_bytes = (size_t)chunk;
    f->chunks = RUN_BYTES / chunk;
    // a limit for small chunks, whose number would dominate
    if (f->chunks > 65536) f->chunks = 65536;
    f->has_perftest = !f->is_mapped && local_find_program(PROGRAM, perftest, &why);
    f->b.result.reference_name = f->is_mapped      ? "memcpy"
                                 : f->has_perftest ? "ucx_perftest -t ucp_am_bw -E sleep -e"
                                                   : "raw TCP over loopback";
    f->ends = bench_ends_open(path, f->chunk_bytes);
    return f->ends != NULL ? -1 : 1;
}

static int report_fabric(void *bench)
{
    struct fabric_bench *f = bench;
    const double reference = f->b.result.reference.median;
    const double push = bench_series_median(&f->runs, FIGURE_PUSH);
    const double fetch = bench_series_median(&f->runs, FIGURE_FETCH);
    BENCH_PARTS(&f->b, { "push_GB/s", push }, { "fetch_GB/s", fetch },
                { "push_ratio", push / reference }, { "fetch_ratio", fetch / reference },
                { "push_cpu_s/GB", bench_series_median(&f->runs, FIGURE_PUSH_CPU) },
                { "fetch_cpu_s/GB", bench_series_median(&f->runs, FIGURE_FETCH_CPU) });
    for (int i = 0; i < TURNS && !f->is_mapped; i++) {
        const double value = bench_series_median(&f->runs, FIGURE_TURNS + i);
        BENCH_PARTS(&f->b, { turns[i].name, value }, { turns[i].ratio_name, value / reference });
    }
    return bench_add_params(
        bench, json_pack("{s:s, s:I, s:I, s:I, s:s}", "path", f->path, "chunk_bytes",
                         (json_int_t)f->chunk_bytes, "window", (json_int_t)BENCH_WINDOW, "chunks",
                         (json_int_t)f->chunks, "fabric", fabric_describe(f->ends->worker.fabric)));
}

static void close_fabric(void *bench)
{
    struct fabric_bench *f = bench;
    if (f->ends != NULL) bench_ends_close(f->ends);
}

const struct bench_row bench_fabric = {
    .name = "fabric",
    .unit = "GB/s",
    .bytes = sizeof(struct fabric_bench),
    .prepare = prepare_fabric,
    .run = run_fabric,
    .reference = run_reference,
    .report = report_fabric,
    .close = close_fabric,
};

/* cairn bench fabric: the throughput of the fabric for pushes and fetches, including all work of client and
 * shard on a chunk in transit, compared with programs that only move the same number of bytes:
 *
 *   --path stream     raw TCP: send and recv of memory that is in no cache, on as many connections
 *   --path sealed     the cipher alone, or raw TCP as above if that is slower, each on two cores
 *   --path ucx        ucx_perftest -t ucp_am_bw -E sleep -e with chunks, window, header and settings of the
 *                     fabric (raw TCP where it is not installed)
 *   --path one-sided  the same; the receiver reads the chunks; over TCP UCX emulates these reads
 *   --path mapped     memcpy
 *
 * A run pushes RUN_BYTES and fetches as many bytes. The figure of the run is the sum of the bytes, divided
 * by the sum of both times.
 *
 * Raw TCP and the cipher both need the cores. On a machine with no more than two cores, which both ends
 * share, no program can seal as fast as the slower of the two: the part both_GB/s says what remains if each
 * byte takes the time of both.
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "proto/base/machine.h"
#include "proto/fabric/fabric.h"
#include "proto/geometry/tensor.h"
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

/* ---- ucx_perftest ---- */

/* The reference is ucx_perftest -t ucp_am_bw -E sleep -e. Its two processes send one buffer into
 * one other buffer, with the fabric's settings, and sleep like the fabric. (With -E poll, perftest
 * is faster if both processes have an idle core, and many times slower if they do not. The option
 * -e selects endpoints with error handling, like Cairn's, because a dead peer is never noticed
 * without error handling. Without -e, perftest uses another lane, and is 1.4 times as fast.)
 * run_perftest is one of the two processes, with the settings of proto/fabric/ucx.c. */
static char perftest[PATH_MAX]; /* the program; "": it is not installed */

static int run_perftest(void *arguments)
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
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        setenv(settings[i][0], settings[i][1], 1);
    return bench_child_become(perftest, arguments);
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
static double try_client(char **arguments)
{
    char text[OUTPUT_MAX];
    struct bench_child client;
    if (!bench_child_start(&client, NULL, run_perftest, arguments)) return 0;
    const int is_read = bench_child_read(&client, NULL, LIMIT_MS, text, sizeof text);
    bench_child_end(&client, SIGKILL);
    return is_read > 0 ? microseconds_of(text) : 0;
}

/* Returns microseconds per message; 0: no client could connect to the server. */
static double try_pair(char **server_line, char **client_line)
{
    const struct timespec pause = { .tv_nsec = TRY_MS * 1000000L };
    struct bench_child server;
    double us = 0;
    bool is_there = bench_child_start(&server, NULL, run_perftest, server_line);
    for (int i = 0; i < TRIES && !(us > 0) && is_there; i++) {
        nanosleep(&pause, NULL);
        siginfo_t ended = { 0 };
        is_there = waitid(P_PID, (id_t)server.pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
                   ended.si_pid == 0;
        if (is_there) us = try_client(client_line);
    }
    bench_child_end(&server, SIGKILL);
    return us;
}

static double time_perftest(size_t chunk_bytes, uint64_t chunks)
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

enum { LANES = 2 }; /* connections, as many as a node of the fabric makes for data */

struct tcp {
    int ends[LANES][2]; /* [1]: of the child */
    size_t chunk_bytes;
    uint64_t chunks;
    double cpu_s; /* of both processes */
};

/* Returns memory that was written before; NULL after printing the error. */
static uint8_t *make_bytes(size_t bytes)
{
    uint8_t *made = bench_memory_map(bytes, BENCH_SMALL);
    if (made != NULL) memset(made, 0, bytes);
    return made;
}

/* Reads all bytes of all connections. */
static bool drain(const struct tcp *tcp, uint8_t *bytes, size_t room)
{
    struct pollfd waits[LANES];
    uint64_t left = tcp->chunks * tcp->chunk_bytes, at = 0;
    for (int i = 0; i < LANES; i++)
        waits[i] = (struct pollfd) { .fd = tcp->ends[i][1], .events = POLLIN };
    while (left > 0) {
        if (poll(waits, LANES, -1) < 0) return false;
        for (int i = 0; i < LANES; i++) {
            if (waits[i].revents == 0) continue;
            const ssize_t got = recv(waits[i].fd, bytes + at % room, room - at % room,
                                     MSG_DONTWAIT);
            if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
            if (got < 0) continue;
            left -= (uint64_t)got;
            at += (uint64_t)got;
        }
    }
    return true;
}

/* Runs in the child: says that it is ready, reads all bytes into memory for one window of chunks, says that
 * they are there, and waits until the other end closes. */
static int swallow(void *own)
{
    const struct tcp *tcp = own;
    char end;
    const size_t room = BENCH_WINDOW * tcp->chunk_bytes;
    uint8_t *bytes = make_bytes(room);
    const int fd = tcp->ends[0][1];
    for (int i = 0; i < LANES; i++) close(tcp->ends[i][0]);
    return bytes != NULL && write(fd, "", 1) == 1 && drain(tcp, bytes, room) &&
                   write(fd, "", 1) == 1 && read(fd, &end, 1) == 0
               ? 0
               : 1;
}

static bool pour(const struct tcp *tcp, const uint8_t *bytes)
{
    const size_t area_chunks = BENCH_AREA_BYTES / tcp->chunk_bytes;
    for (uint64_t i = 0; i < tcp->chunks; i++)
        for (size_t sent = 0; sent < tcp->chunk_bytes;) {
            const uint8_t *from = bytes + i % area_chunks * tcp->chunk_bytes + sent;
            const ssize_t put = send(tcp->ends[i % LANES][0], from, tcp->chunk_bytes - sent,
                                     MSG_NOSIGNAL);
            if (put <= 0) return false;
            sent += (size_t)put;
        }
    return true;
}

/* Moves the bytes between this process and the child. Returns the seconds; 0: it failed. */
static double move_raw(struct tcp *tcp, const uint8_t *bytes, pid_t child)
{
    char answer;
    const int fd = tcp->ends[0][0];
    if (read(fd, &answer, 1) != 1) return 0;
    const double before_s = bench_used_s(getpid()) + bench_used_s(child), begin = bench_now();
    if (!pour(tcp, bytes) || read(fd, &answer, 1) != 1) return 0;
    const double seconds = bench_now() - begin;
    tcp->cpu_s = bench_used_s(getpid()) + bench_used_s(child) - before_s;
    return seconds;
}

/* Measures send() and recv() over loopback, between two processes. *cpu_out: seconds of CPU per GB. */
static double time_raw_tcp(size_t chunk_bytes, uint64_t chunks, double *cpu_out)
{
    static uint8_t *bytes; // kept, as the fabric's memory is
    struct tcp tcp = { .chunk_bytes = chunk_bytes, .chunks = chunks };
    struct bench_child child = { .pid = 0 };
    if (bytes == NULL) bytes = make_bytes(BENCH_AREA_BYTES);
    bool ok = bytes != NULL;
    for (int i = 0; i < LANES; i++) ok = bench_connect_self(tcp.ends[i]) && ok;
    ok = ok && bench_child_start(&child, NULL, swallow, &tcp);
    for (int i = 0; i < LANES; i++)
        if (tcp.ends[i][1] >= 0) close(tcp.ends[i][1]);
    const double seconds = ok ? move_raw(&tcp, bytes, child.pid) : 0;
    for (int i = 0; i < LANES; i++)
        if (tcp.ends[i][0] >= 0) close(tcp.ends[i][0]);
    bench_child_end(&child, SIGKILL);
    const double gigabytes = (double)(chunks * chunk_bytes) * 1e-9;
    *cpu_out = tcp.cpu_s / gigabytes;
    if (seconds > 0) return gigabytes / seconds;
    ctl_fail(CAIRN_ERR_IO, "raw TCP over loopback failed: %s", strerror(errno));
    return 0;
}

/* ---- the cipher ---- */

#define RECORD_BYTES ((size_t)64 << 10) /* as the fabric's records */

struct ciphers {
    const uint8_t *from;
    uint8_t *to;
    uint64_t records;
    _Atomic bool has_failed;
};

/* Seals records from memory into a buffer (number 0), or opens them from a buffer into memory (number 1). A
 * record that is opened was never sealed: its tag is computed, and is wrong. */
static void run_cipher(void *own, uint32_t number)
{
    struct ciphers *all = own;
    static const uint8_t key[32];
    static uint8_t buffers[2][RECORD_BYTES];
    uint8_t nonce[12] = { 0 }, tag[16];
    const bool seals = number == 0;
    int count;
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    bool ok = context != NULL &&
              EVP_CipherInit_ex(context, EVP_aes_256_gcm(), NULL, key, nonce, seals) == 1;
    for (uint64_t i = 0; i < all->records && ok; i++) {
        const size_t at = i % (BENCH_AREA_BYTES / RECORD_BYTES) * RECORD_BYTES;
        memcpy(nonce, &i, sizeof i);
        ok = EVP_CipherInit_ex(context, NULL, NULL, NULL, nonce, seals) == 1 &&
             EVP_CipherUpdate(context, seals ? buffers[0] : all->to + at, &count,
                              seals ? all->from + at : buffers[1], (int)RECORD_BYTES) == 1 &&
             (seals || EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, 16, tag) == 1);
        if (ok) (void)EVP_CipherFinal_ex(context, tag, &count);
    }
    EVP_CIPHER_CTX_free(context);
    if (!ok) all->has_failed = true;
}

/* Measures AES-256-GCM: one core seals while another one opens as much. */
static double time_cipher(uint64_t bytes)
{
    static uint8_t *from, *to;
    if (from == NULL) from = make_bytes(BENCH_AREA_BYTES);
    if (to == NULL) to = make_bytes(BENCH_AREA_BYTES);
    struct ciphers all = { .from = from, .to = to, .records = bytes / RECORD_BYTES };
    if (from == NULL || to == NULL) return 0;
    const double begin = bench_now();
    const int error = bench_threads_run(2, run_cipher, &all);
    const double seconds = bench_now() - begin;
    if (error == 0 && !all.has_failed) return (double)bytes * 1e-9 / seconds;
    ctl_fail(CAIRN_ERR_IO, "the cipher did not run: %s", strerror(error));
    return 0;
}

/* ---- memcpy ---- */

/* Measures memcpy of one area to another, each of `area_bytes`. */
static double time_memcpy(size_t area_bytes, size_t chunk_bytes, uint64_t chunks)
{
    // The memory is kept between calls, because the fabric's memory was touched before, too.
    static uint8_t *from, *to;
    if (from == NULL) from = make_bytes(area_bytes);
    if (to == NULL) to = make_bytes(area_bytes);
    if (from == NULL || to == NULL) return 0;
    const double begin = bench_now();
    for (uint64_t i = 0; i < chunks; i++) {
        const size_t at = i % (area_bytes / chunk_bytes) * chunk_bytes;
        memcpy(to + at, from + at, chunk_bytes);
    }
    return (double)(chunks * chunk_bytes) / (bench_now() - begin) * 1e-9;
}

double bench_fabric_limit(const char *path, uint64_t bytes)
{
    const size_t chunk_bytes = (size_t)1 << 20;
    const uint64_t chunks = bytes / chunk_bytes + 1;
    double cpu_s;
    if (path == NULL || strcmp(path, "auto") == 0 || strcmp(path, "mapped") == 0)
        return time_memcpy(BENCH_AREA_BYTES, chunk_bytes, chunks);
    const double tcp = time_raw_tcp(chunk_bytes, chunks, &cpu_s);
    const double cipher = tcp > 0 && strcmp(path, "sealed") == 0 ? time_cipher(bytes) : tcp;
    return cipher < tcp ? cipher : tcp;
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
 * Headers have 128 bytes, BENCH_WINDOW chunks are in flight, and each end sleeps when idle. The child ends
 * when the worker's end closes, or with this process. */

/* Bits for the work that a run omits, to measure the cost of this work. */
enum bench_less {
    BENCH_UNCHECKED = 1, /* no checksum is computed or compared */
    BENCH_ONE_CHUNK = 2  /* one chunk, which stays in the caches, is moved instead of the area */
};

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
    struct fabric *fabric;
    struct fabric_peer *peer;
    struct fabric_region *region;
    const char *path;
    /* a connection to the other process, to exchange addresses; closing it ends the shard */
    int line, lines[2]; /* lines: of the worker, of the shard */
    bool is_shard, is_mapped, is_lost;
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
    uint64_t asked, done, wanted;
    uint8_t kind;
    unsigned less;
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

static void send_header(struct flight *flight, const void *payload, fabric_done_fn *on_sent)
{
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    chunk_encode(&flight->header, bytes);
    flight->lent = payload != NULL;
    const size_t payload_bytes = payload != NULL ? (size_t)flight->header.payload_bytes : 0;
    const cairn_status status = fabric_send(flight->end->peer, bytes, sizeof bytes, payload,
                                            payload_bytes, on_sent, flight);
    if (status != CAIRN_OK) flight->end->is_lost = true;
}

static void on_down(void *arg, struct fabric_peer *peer, cairn_status why)
{
    struct end *end = arg;
    (void)peer, (void)why;
    end->is_lost = true;
}

/* ---- the shard ---- */

/* Answers a push whose bytes are there, and reads them by their checksum: it reads as fast as the fold. A
 * chunk without a checksum is read only in place (`is_view`). */
static void answer_push(struct flight *flight, const void *bytes, bool is_view)
{
    struct chunk_header *header = &flight->header;
    const uint64_t wanted = header->checksum;
    const uint64_t sum = is_view || wanted != 0
                             ? chunk_checksum(bytes, (size_t)header->payload_bytes)
                             : 0;
    header->kind = wanted == 0 || sum == wanted ? CAIRN_CHUNK_ACK : CAIRN_CHUNK_NAK;
    header->payload_bytes = header->checksum = 0;
    header->dtype = 0;
    send_header(flight, NULL, NULL);
    give_flight(flight);
}

static void on_landed(void *arg, cairn_status status)
{
    struct flight *flight = arg;
    if (status == CAIRN_OK)
        answer_push(flight, flight->bytes, false);
    else
        give_flight(flight);
}

static void shard_on_push(struct flight *flight, struct fabric_message *message)
{
    const void *view = fabric_message_view(message);
    if (view != NULL) {
        answer_push(flight, view, true);
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
    if (flight == NULL) {    // more chunks are in flight than the window allows
        end->is_lost = true; // the other end notices when this end closes
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

/* Exchanges fabric addresses with the other process and connects to that process; an address
 * fits into a socket's buffer. */
static bool exchange(struct end *end)
{
    uint8_t theirs[CAIRN_FABRIC_ADDRESS_MAX];
    size_t bytes;
    const void *ours = fabric_own_address(end->fabric, &bytes);
    if (send(end->line, ours, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) return false;
    const ssize_t got = recv(end->line, theirs, sizeof theirs, 0);
    return got > 0 && fabric_connect_to(end->fabric, theirs, (size_t)got, on_down, end,
                                        &end->peer) == CAIRN_OK;
}

/* Returns false after printing the error. */
static bool end_open(struct end *end)
{
    const char *path = end->path;
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
    if (!make_memory(end) || !exchange(end)) {
        ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory or no way to the other end of the bench");
        return false;
    }
    end->is_mapped = strcmp(fabric_peer_path(end->peer), "mapped") == 0;
    return true;
}

/* Works until *count is `wanted`, the end is lost, the other process closes the line, or nothing has arrived
 * for STALLED_MS (of the worker). */
static void drive(struct end *end, const uint64_t *count, uint64_t wanted)
{
    struct pollfd waits[] = { { .fd = fabric_event_fd(end->fabric), .events = POLLIN },
                              { .fd = end->line, .events = POLLIN } };
    while (*count < wanted && !end->is_lost && waits[1].revents == 0) {
        if (fabric_progress(end->fabric) > 0 || fabric_arm(end->fabric) != CAIRN_OK) continue;
        if (poll(waits, 2, end->is_shard ? -1 : STALLED_MS) == 0) end->is_lost = true;
    }
}

/* The shard's process. */
static int shard_main(void *own)
{
    static const uint64_t none;
    struct end *end = own;
    end->is_shard = true;
    end->line = end->lines[1];
    close(end->lines[0]);
    if (!end_open(end)) return 1;
    drive(end, &none, UINT64_MAX);
    fabric_close(end->fabric);
    return 0; // the end's memory is freed when the process ends
}

/* Opens both ends. `path` is a kind of fabric, or "one-sided", which means the kind ucx with ends
 * that read each other's memory. Returns false after printing the error if the ends could not be
 * opened. */
static bool open_ends(struct end *worker, struct bench_child *shard)
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, worker->lines) != 0) {
        ctl_fail(CAIRN_ERR_NO_MEMORY, "no descriptors for the bench");
        return false;
    }
    worker->area_chunks = BENCH_AREA_BYTES / worker->chunk_bytes;
    worker->line = worker->lines[0];
    // before the fabric opens, because its threads would not be forked
    const bool is_started = bench_child_start(shard, NULL, shard_main, worker);
    close(worker->lines[1]);
    return is_started && end_open(worker);
}

/* Moves `chunks` chunks in one direction, omitting the work in `less` (enum bench_less). Returns the
 * seconds of the run. Returns 0 after printing the error if the run failed. */
static double run_chunks(struct end *worker, uint8_t kind, uint64_t chunks, unsigned less)
{
    const double begin = bench_now();
    worker->asked = worker->done = 0;
    worker->wanted = chunks;
    worker->kind = kind;
    worker->less = less;
    pump(worker);
    drive(worker, &worker->done, chunks);
    if (worker->done == chunks && !worker->is_lost) return bench_now() - begin;
    ctl_fail(CAIRN_ERR_CLOSED, "chunk %" PRIu64 " of %" PRIu64 " did not arrive whole",
             worker->done + 1, chunks);
    return 0;
}

/* ==== bench ==== */

#define RUN_BYTES     ((uint64_t)128 << 20)
#define PERFTEST_RUNS 4
#define CHUNK_DEFAULT ((uint64_t)1 << 20)
#define CHUNK_MAX     ((uint64_t)4 << 20) /* the limit that chunks of a layout have, too */

/* The other variants of a run; each moves half as many chunks. */
static const unsigned turns[] = { BENCH_UNCHECKED, BENCH_ONE_CHUNK,
                                  BENCH_UNCHECKED | BENCH_ONE_CHUNK };
enum { TURNS = sizeof turns / sizeof *turns };

struct fabric_bench {
    struct bench b;
    struct end worker;
    struct bench_child shard;
    uint64_t chunks; /* per run, in each direction */
    bool is_mapped, is_sealed, has_perftest;
};
/* GB/s, and seconds of CPU per GB; the variants follow, and then the figures of the reference. */
enum { FIGURE_PUSH, FIGURE_FETCH, FIGURE_PUSH_CPU, FIGURE_FETCH_CPU, FIGURE_TURNS };
enum { FIGURE_RAW = FIGURE_TURNS + TURNS, FIGURE_RAW_CPU, FIGURE_CIPHER, FIGURES };
_Static_assert(FIGURES <= BENCH_FIGURES, "a column each");
static const struct bench_column fabric_columns[] = {
    { "push_GB/s", FIGURE_PUSH, "push_ratio" },
    { "fetch_GB/s", FIGURE_FETCH, "fetch_ratio" },
    { "push_cpu_s/GB", FIGURE_PUSH_CPU, NULL },
    { "fetch_cpu_s/GB", FIGURE_FETCH_CPU, NULL },
    { .name = NULL },
};
static const struct bench_column raw_columns[] = {
    { "raw_GB/s", FIGURE_RAW, NULL },
    { "raw_cpu_s/GB", FIGURE_RAW_CPU, NULL },
    { .name = NULL },
};
static const struct bench_column cipher_columns[] = {
    { "cipher_GB/s", FIGURE_CIPHER, NULL },
    { .name = NULL },
};
static const struct bench_column turn_columns[] = {
    { "unchecked_GB/s", FIGURE_TURNS, "unchecked_ratio" },
    { "one_chunk_GB/s", FIGURE_TURNS + 1, "one_chunk_ratio" },
    { "one_chunk_unchecked_GB/s", FIGURE_TURNS + 2, "one_chunk_unchecked_ratio" },
    { .name = NULL },
};

/* Moves the chunks in both directions. out[2]: the GB/s and cpu[2]: the seconds of CPU per GB, of both
 * processes, of each direction. Returns the GB/s of both together; 0 after printing the error if the run
 * failed. */
static double run_both(struct fabric_bench *f, uint64_t chunks, unsigned less, double speeds[2],
                       double cpu[2])
{
    static const uint8_t kinds[2] = { CAIRN_CHUNK_PUSH, CAIRN_CHUNK_FETCH };
    const double gigabytes = (double)(chunks * f->worker.chunk_bytes) * 1e-9;
    double all_s = 0;
    for (int i = 0; i < 2; i++) {
        const double before = bench_used_s(getpid()) + bench_used_s(f->shard.pid);
        const double seconds = run_chunks(&f->worker, kinds[i], chunks, less);
        if (!(seconds > 0)) return 0;
        const double after = bench_used_s(getpid()) + bench_used_s(f->shard.pid);
        speeds[i] = gigabytes / seconds;
        cpu[i] = (after - before) / gigabytes;
        all_s += seconds;
    }
    return 2 * gigabytes / all_s;
}

static double run_fabric(void *bench)
{
    struct fabric_bench *f = bench;
    double *figures = f->b.figures, speeds[2], cpu[2];
    const double all = run_both(f, f->chunks, 0, &figures[FIGURE_PUSH], &figures[FIGURE_PUSH_CPU]);
    for (int i = 0; i < TURNS && all > 0 && !f->is_mapped; i++) {
        figures[FIGURE_TURNS + i] = run_both(f, (f->chunks + 1) / 2, turns[i], speeds, cpu);
        if (!(figures[FIGURE_TURNS + i] > 0)) return 0;
    }
    return all;
}

static double run_reference(void *bench)
{
    struct fabric_bench *f = bench;
    double *figures = f->b.figures;
    if (f->is_mapped) return time_memcpy(BENCH_AREA_BYTES, f->worker.chunk_bytes, f->chunks);
    if (f->has_perftest) // perftest counts bytes in sockets as sent, so it gets a longer run
        return time_perftest(f->worker.chunk_bytes, PERFTEST_RUNS * f->chunks);
    const double raw = time_raw_tcp(f->worker.chunk_bytes, f->chunks, &figures[FIGURE_RAW_CPU]);
    figures[FIGURE_RAW] = raw;
    if (!f->is_sealed || !(raw > 0)) return raw;
    const double cipher = time_cipher(RUN_BYTES);
    figures[FIGURE_CIPHER] = cipher;
    return cipher < raw ? cipher : raw;
}

static int prepare_fabric(void *bench)
{
    struct fabric_bench *f = bench;
    const struct ctl *ctl = f->b.ctl;
    const char *path = ctl->path != NULL ? ctl->path : "ucx";
    const uint64_t chunk = ctl->bench.chunk > 0 ? ctl->bench.chunk : CHUNK_DEFAULT;
    struct sentence why;
    uint64_t number;
    const int done = ctl_parse_choice("path", "stream|sealed|ucx|one-sided|mapped", path, &number);
    if (done >= 0) return done;
    f->is_mapped = strcmp(path, "mapped") == 0;
    f->worker.path = path;
    if (chunk > CHUNK_MAX || chunk % sizeof(float) != 0)
        return ctl_usage_fail(ctl,
                              "--chunk %" PRIu64 ": 4 to %" PRIu64 " bytes, in fours, are allowed",
                              chunk, CHUNK_MAX);
    f->worker.chunk_bytes = (size_t)chunk;
    f->chunks = RUN_BYTES / chunk;
    // a limit for small chunks, whose number would dominate
    if (f->chunks > 65536) f->chunks = 65536;
    const bool is_ucx = strcmp(path, "ucx") == 0 || strcmp(path, "one-sided") == 0;
    f->is_sealed = strcmp(path, "sealed") == 0;
    f->has_perftest = is_ucx && local_find_program(PROGRAM, perftest, &why);
    f->b.result.reference_name = f->is_mapped      ? "memcpy"
                                 : f->has_perftest ? "ucx_perftest -t ucp_am_bw -E sleep -e"
                                 : f->is_sealed    ? "the cipher alone, or raw TCP: the slower one"
                                                   : "raw TCP over loopback";
    return open_ends(&f->worker, &f->shard) ? -1 : 1;
}

static void add_cipher(struct fabric_bench *f)
{
    const double raw = bench_median(&f->b, BENCH_REFERENCE, FIGURE_RAW);
    const double cipher = bench_median(&f->b, BENCH_REFERENCE, FIGURE_CIPHER);
    const double both = 1 / (1 / raw + 1 / cipher);
    bench_add_columns(&f->b, BENCH_REFERENCE, "", cipher_columns);
    BENCH_PARTS(&f->b, { "both_GB/s", both }, { "both_ratio", f->b.result.value.median / both });
}

static int report_fabric(void *bench)
{
    struct fabric_bench *f = bench;
    if (!f->is_mapped) bench_add_columns(&f->b, BENCH_SUBJECT, "", turn_columns);
    if (!f->is_mapped && !f->has_perftest)
        bench_add_columns(&f->b, BENCH_REFERENCE, "", raw_columns);
    if (f->is_sealed) add_cipher(f);
    bench_add_params(&f->b, json_pack("{s:s, s:I, s:I, s:I, s:s}", "path", f->worker.path,
                                      "chunk_bytes", (json_int_t)f->worker.chunk_bytes, "window",
                                      (json_int_t)BENCH_WINDOW, "chunks", (json_int_t)f->chunks,
                                      "fabric", fabric_describe(f->worker.fabric)));
    close(f->worker.line); // which ends the shard
    bench_child_end(&f->shard, 0);
    fabric_close(f->worker.fabric);
    return -1;
}

const struct bench_row bench_fabric = {
    .name = "fabric",
    .unit = "GB/s",
    .bytes = sizeof(struct fabric_bench),
    .columns = fabric_columns,
    .prepare = prepare_fabric,
    .run = run_fabric,
    .reference = run_reference,
    .report = report_fabric,
};

#include "tests/support/fake_cluster.h"

#include <check.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/fabric/fabric.h"
#include "proto/spec/spec.h"
#include "server/coordinator/base.h"
#include "server/coordinator/members.h"
#include "server/coordinator/store.h"
#include "server/core/round_state.h"
#include "tests/support/fake_shard.h"
#include "tests/support/pages.h"

#define IDLE_PUMPS_MAX 8

/* ---- the coordinator ---- */

void fake_coordinator_start(struct fake_cluster *fake)
{
    struct sentence why = { "" };
    fake->options.network.listen = fake->listen;
    const cairn_status status = coord_open(&fake->options, &fake->loop, &fake->cluster, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    snprintf(fake->listen, sizeof fake->listen, "%s", coord_address(fake->cluster));
}

static void on_closed(void *context)
{
    ((struct fake_cluster *)context)->cluster = NULL;
}

void fake_coordinator_stop(struct fake_cluster *fake)
{
    coord_close(fake->cluster, on_closed, fake);
    while (fake->cluster != NULL) uv_run(&fake->loop, UV_RUN_ONCE);
}

void fake_coordinator_restart(struct fake_cluster *fake)
{
    fake_coordinator_stop(fake);
    fake_coordinator_start(fake);
}

void fake_store_lose(struct fake_cluster *fake)
{
    char path[160];
    fake_coordinator_stop(fake);
    snprintf(path, sizeof path, "%s/coordinator.db", fake->store);
    ck_assert_int_eq(unlink(path), 0);
    snprintf(path, sizeof path, "%s/" CAIRN_KEY_FILE, fake->store);
    ck_assert_int_eq(unlink(path), 0);
    fake_coordinator_start(fake);
}

void fake_open(struct fake_cluster *fake, uint32_t shards)
{
    memset(fake, 0, sizeof *fake);
    signal(SIGPIPE, SIG_IGN); // as a daemon does: peers close connections that it still writes to
    log_init("test", CAIRN_LOG_ERROR);
    cairn_scratch_make_quick(fake->folder);
    snprintf(fake->store, sizeof fake->store, "%s/store", fake->folder);
    snprintf(fake->snapshots, sizeof fake->snapshots, "%s/snapshots", fake->folder);
    snprintf(fake->listen, sizeof fake->listen, "%s/socket", fake->folder);
    uv_loop_init(&fake->loop);
    fake->options = (struct coord_options) {
        .name = "test",
        .shards = shards,
        .store_path = fake->store,
        .snapshots_path = fake->snapshots,
        .network = { .connections_max = 64,
                     .half_open_max = 16,
                     .hello_timeout_ms = 5000,
                     .send_queue_bytes = 8 << 20 },
        .heartbeat_ms = 1000,
        .lease_timeout_ms = 60000,
        .step_deadline_ms = 0,
        .workers_max = 8,
        .lease_ttl_max_ms = 600000,
        .lease_versions_max = CAIRN_LEASED_VERSIONS_MAX,
    };
    fake->shard_count = shards > FAKE_SHARDS ? shards : FAKE_SHARDS;
    fake->shards = calloc(fake->shard_count, sizeof *fake->shards);
    ck_assert_ptr_nonnull(fake->shards);
    for (uint32_t i = 0; i < fake->shard_count; i++) {
        snprintf(fake->shards[i].name, sizeof fake->shards[i].name, "s%" PRIu32, i);
        fake->shards[i].peer.fd = -1;
        fake->shards[i].incarnation = 100 + i;
    }
    fake_coordinator_start(fake);
}

void fake_close(struct fake_cluster *fake)
{
    for (uint32_t i = 0; i < fake->shard_count; i++) {
        fake_peer_close(&fake->shards[i].peer);
        fake_shard_clear(&fake->shards[i]);
        fake_shard_forget_keys(&fake->shards[i]);
        free(fake->shards[i].members);
    }
    for (size_t i = 0; i < fake->heard_count; i++) message_free(fake->heard[i]);
    free(fake->heard);
    free(fake->shards);
    if (fake->cluster != NULL) fake_coordinator_stop(fake);
    ck_assert_int_eq(uv_run(&fake->loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&fake->loop), 0);
    cairn_scratch_remove(fake->folder);
}

/* ---- a connection ---- */

void fake_peer_close(struct fake_peer *peer)
{
    if (peer->fd < 0) return;
    close(peer->fd);
    peer->fd = -1;
    frame_decoder_release(&peer->decoder);
}

/* Lets the coordinator, which is in this thread, read what a socket has no more room for. */
static bool send_all(const struct fake_peer *peer, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t n = send(peer->fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno != EAGAIN || peer->cluster->cluster == NULL)) return false;
        if (n < 0) uv_run(&peer->cluster->loop, UV_RUN_NOWAIT);
        bytes += n > 0 ? n : 0;
        count -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

void fake_send(struct fake_peer *peer, uint16_t type, uint32_t request,
               const ProtobufCMessage *message)
{
    uint8_t *frame;
    size_t bytes;
    if (peer->fd < 0) return;
    fake_assert(frame_pack(type, request, message, CAIRN_FRAME_BYTES_MAX, &frame, &bytes, NULL) ==
                CAIRN_OK);
    if (!send_all(peer, frame, bytes)) peer->ended = true;
    free(frame);
}

void fake_send_page(void *peer, const Cairn__Page *page)
{
    struct fake_peer *to = peer;
    fake_send(to, CAIRN_MSG_PAGE, to->last_request, &page->base);
}

uint32_t fake_request(struct fake_peer *peer, uint16_t type, const ProtobufCMessage *message)
{
    fake_send(peer, type, ++peer->last_request, message);
    return peer->last_request;
}

/* What has arrived goes into the decoder; never blocks. */
void fake_peer_read(struct fake_peer *peer)
{
    uint8_t *room;
    size_t room_bytes;
    while (peer->fd >= 0 && !peer->ended) {
        if (frame_decoder_reserve(&peer->decoder, &room, &room_bytes) != CAIRN_FRAME_NONE) {
            return;
        }
        const ssize_t n = recv(peer->fd, room, room_bytes, MSG_DONTWAIT);
        frame_decoder_added(&peer->decoder, n > 0 ? (size_t)n : 0);
        if (n > 0) continue;
        if (n == 0 || (errno != EAGAIN && errno != EINTR)) peer->ended = true;
        return;
    }
}

bool fake_peer_next(struct fake_peer *peer, struct wire_frame *frame_out)
{
    if (peer->fd < 0) return false;
    return frame_decoder_next(&peer->decoder, frame_out, NULL) == CAIRN_FRAME_READY;
}

/* Where nothing happens, a ms for something to happen: the processor is for other tests, then. */
static void pause_pump(struct fake_cluster *fake)
{
    struct pollfd coordinator = { .fd = uv_backend_fd(&fake->loop), .events = POLLIN };
    const bool waits = fake->idle_pumps > IDLE_PUMPS_MAX && uv_backend_timeout(&fake->loop) != 0;
    fake->idle_pumps = poll(&coordinator, 1, waits ? 1 : 0) > 0 ? 0 : fake->idle_pumps + 1;
}

void fake_pump(struct fake_cluster *fake)
{
    pause_pump(fake);
    if (fake->cluster != NULL) uv_run(&fake->loop, UV_RUN_NOWAIT);
    for (uint32_t i = 0; i < fake->shard_count; i++)
        if (fake_shard_serve(&fake->shards[i])) fake->idle_pumps = 0;
}

void fake_pumps(struct fake_cluster *fake, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) fake_pump(fake);
}

struct fake_peer fake_dial(struct fake_cluster *fake)
{
    static const struct frame_limits limits = { 1, CAIRN_MSG_MAX, CAIRN_FRAME_BYTES_MAX };
    struct fake_peer peer = { .cluster = fake, .fd = cairn_scratch_dial(fake->listen) };
    frame_decoder_init(&peer.decoder, limits);
    return peer;
}

static void say_hello(struct fake_cluster *fake, struct fake_peer *peer, Cairn__Hello *hello)
{
    *peer = fake_dial(fake);
    hello->protocol = CAIRN_CONTROL_PROTOCOL;
    hello->version = wire_text("test");
    fake_request(peer, CAIRN_MSG_HELLO, &hello->base);
}

static void on_fabric_message(void *arg, const void *header, size_t header_bytes,
                              size_t payload_bytes, struct fabric_message *message)
{
    (void)arg;
    (void)header;
    (void)header_bytes;
    (void)payload_bytes;
    (void)message;
    ck_abort_msg("nobody knows this address");
}

/* The address of somebody on that host. Freed by the caller. */
static ProtobufCBinaryData address_on(const char *host)
{
    const struct fabric_options options = { .on_message = on_fabric_message, .host = host };
    struct sentence why = { "" };
    struct fabric *fabric;
    size_t bytes;
    ck_assert_msg(fabric_open("mapped", &options, &fabric, &why) == CAIRN_OK, "%s", why.text);
    const void *address = fabric_own_address(fabric, &bytes);
    const ProtobufCBinaryData copy = { bytes, memcpy(malloc(bytes), address, bytes) };
    fabric_close(fabric);
    return copy;
}

struct fake_peer fake_connect(struct fake_cluster *fake, uint32_t role, const char *name)
{
    return fake_connect_at(fake, role, name, "");
}

struct fake_peer fake_connect_at(struct fake_cluster *fake, uint32_t role, const char *name,
                                 const char *host)
{
    struct fake_peer peer;
    Cairn__Hello hello = CAIRN__HELLO__INIT;
    if (host[0] != '\0') hello.fabric_address = address_on(host);
    hello.role = role;
    hello.name = wire_text(name);
    hello.incarnation = 1;
    say_hello(fake, &peer, &hello);
    free(hello.fabric_address.data);
    fake_hear(&peer, Welcome, 1);
    return peer;
}

/* ---- shards ---- */

void fake_shard_hello(struct fake_cluster *fake, uint32_t i)
{
    struct fake_shard *shard = &fake->shards[i];
    Cairn__Hello hello = CAIRN__HELLO__INIT;
    Cairn__HeldJob held[2], *list[2] = { &held[0], &held[1] };
    uint8_t address[2] = { 'a', (uint8_t)shard->incarnation };
    hello.role = CAIRN_ROLE_WIRE_SHARD;
    hello.name = shard->name;
    hello.incarnation = shard->incarnation;
    hello.fabric_address = (ProtobufCBinaryData) { sizeof address, address };
    if (shard->address != NULL)
        hello.fabric_address = (ProtobufCBinaryData) { shard->address_bytes,
                                                       (uint8_t *)(uintptr_t)shard->address };
    if (shard->host[0] != '\0') hello.fabric_address = address_on(shard->host);
    for (uint32_t m = 0; m < shard->member_places; m++) shard->members[m].number = 0; // told anew
    hello.n_held = fake_shard_fill_held(shard, held, false);
    hello.held = list;
    if (hello.n_held > 0) {
        hello.store = shard->store;
        hello.coordinator_incarnation = shard->coordinator_incarnation;
        hello.coordinator_process = shard->coordinator_process;
    }
    Cairn__Home home = CAIRN__HOME__INIT;
    home.backend = "cuda";
    home.failed = wire_text(shard->failed);
    if (shard->failed != NULL) hello.home = &home;
    Cairn__ShardTiers tiers = CAIRN__SHARD_TIERS__INIT;
    tiers.awaited = &shard->awaits;
    tiers.n_awaited = 1;
    if (shard->awaits != 0) hello.tiers = &tiers;
    shard->dead = false;
    fake_peer_close(&shard->peer);
    say_hello(fake, &shard->peer, &hello);
    if (shard->host[0] != '\0') free(hello.fabric_address.data);
}

void fake_shard_up(struct fake_cluster *fake, uint32_t i)
{
    struct fake_shard *shard = &fake->shards[i];
    const uint32_t welcomed = shard->seen[CAIRN_MSG_WELCOME];
    fake_shard_hello(fake, i);
    fake_until(fake, shard->seen[CAIRN_MSG_WELCOME] > welcomed);
}

void fake_shards_up(struct fake_cluster *fake, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) fake_shard_up(fake, i);
}

static bool is_seated(const struct fake_cluster *fake, const char *name)
{
    const struct coord_shard_entry *seat = coord_shard_find(fake->cluster, name);
    return seat != NULL && seat->session != NULL;
}

void fake_shard_away(struct fake_cluster *fake, uint32_t i)
{
    if (fake->shards[i].peer.fd < 0) return;
    fake_peer_close(&fake->shards[i].peer);
    fake_until(fake, !is_seated(fake, fake->shards[i].name));
}

void fake_shard_forget(struct fake_cluster *fake, uint32_t i)
{
    fake_shard_away(fake, i);
    fake_shard_clear(&fake->shards[i]);
    fake->shards[i].incarnation += 10;
}

void fake_shard_blink(struct fake_cluster *fake, uint32_t i)
{
    fake_shard_away(fake, i);
    fake_shard_up(fake, i);
}

void fake_shard_renew(struct fake_cluster *fake, uint32_t i)
{
    fake_shard_forget(fake, i);
    fake_shard_up(fake, i);
}

void fake_hold_reduced(struct fake_cluster *fake, bool held)
{
    for (int i = 0; i < 2; i++) fake->shards[i].holds_reduced = held;
}

/* ---- expectations ---- */

/* What comes at any time, unless it is awaited. */
static bool skipped(uint16_t type, uint16_t awaited)
{
    return type == CAIRN_MSG_HEARTBEAT || type == CAIRN_MSG_PAGE ||
           (type == CAIRN_MSG_SHARDS_CHANGED && type != awaited);
}

static void note_layout(struct fake_peer *peer, const Cairn__LayoutChanged *message)
{
    peer->layout = (struct fake_told_layout) {
        .version = message->layout,
        .since = { message->since_generation, message->since_step },
        .times = peer->layout.times + 1,
        .shards = (uint32_t)message->n_shards,
    };
}

/* Of the Error that is awaited, the word: so that whoever gets another message sees which row of a table it
 * was. "": none is. */
static const char *word_awaited = "";

/* Kept until the cluster is closed. */
static void *keep(struct fake_cluster *fake, ProtobufCMessage *message)
{
    fake->heard = realloc(fake->heard, (fake->heard_count + 1) * sizeof(ProtobufCMessage *));
    fake_assert(fake->heard != NULL);
    fake->heard[fake->heard_count++] = message;
    return message;
}

void *fake_heard(struct fake_peer *peer, uint16_t type, uint32_t request)
{
    struct wire_frame frame;
    const uint64_t end_ms = uv_hrtime() / 1000000 + 30000;
    for (;;) {
        fake_peer_read(peer); // first: what is there need not be waited for
        while (fake_peer_next(peer, &frame)) {
            if (skipped(frame.type, type)) continue;
            ProtobufCMessage *message = message_unpack(message_type(frame.type), frame.payload,
                                                       frame.payload_bytes);
            ck_assert_ptr_nonnull(message);
            if (frame.type == CAIRN_MSG_LAYOUT_CHANGED && type != frame.type) {
                note_layout(peer, (const Cairn__LayoutChanged *)message);
                message_free(message);
                continue;
            }
            const char *text = frame.type == CAIRN_MSG_ERROR ? ((Cairn__Error *)message)->text : "";
            ck_assert_msg(frame.type == type && frame.request == request,
                          "wanted %s %u %s, got %s %u %s", message_name(type), request,
                          word_awaited, message_name(frame.type), frame.request, text);
            return keep(peer->cluster, message);
        }
        if (peer->ended) ck_abort_msg("closed while waiting for %s", message_name(type));
        if (uv_hrtime() / 1000000 >= end_ms) ck_abort_msg("no %s came", message_name(type));
        fake_pump(peer->cluster);
    }
}

void fake_expect_error(struct fake_peer *peer, uint32_t request, cairn_status status,
                       const char *word)
{
    word_awaited = word;
    const Cairn__Error *error = fake_hear(peer, Error, request);
    word_awaited = "";
    ck_assert_msg(error->status == (int32_t)status && strstr(error->text, word) != NULL,
                  "wanted %s with \"%s\", got %s: %s", status_code_name((int)status), word,
                  status_code_name(error->status), error->text);
}

void fake_expect_end(struct fake_peer *peer)
{
    struct wire_frame frame;
    const uint64_t end_ms = uv_hrtime() / 1000000 + 30000;
    while (!peer->ended) {
        if (uv_hrtime() / 1000000 >= end_ms) ck_abort_msg("the connection stays open");
        fake_pump(peer->cluster);
        fake_peer_read(peer);
        while (fake_peer_next(peer, &frame)) {}
    }
}

Cairn__Awaited *fake_awaited(struct fake_peer *peer, uint64_t job)
{
    const uint32_t request = fake_ask(peer, WhoIsAwaited, .job = job);
    return fake_hear(peer, Awaited, request);
}

void fake_expect_awaited(struct fake_peer *peer, uint64_t job, const char *word)
{
    Cairn__Awaited *awaited = fake_awaited(peer, job);
    ck_assert_msg(strstr(awaited->text, word) != NULL, "\"%s\" has no \"%s\"", awaited->text, word);
}

void fake_expect_silence(struct fake_peer *peer, uint64_t job)
{
    fake_awaited(peer, job);
}

/* ---- a worker's way ---- */

struct job_spec_data fake_spec(uint32_t workers_min)
{
    struct job_spec_data spec;
    struct group_spec group = group_default();
    struct tensor_spec t = { .group = "all",
                             .kind = CAIRN_TRAINED,
                             .wire = CAIRN_F32,
                             .reduce = CAIRN_F32,
                             .master = CAIRN_F32,
                             .shape = { .rank = 2, .dim = { 128, 1024 } } };
    spec_init(&spec);
    ck_assert_int_eq(spec_set_name(&spec, "toy"), CAIRN_OK);
    group.name = "all";
    group.optimizer = "adamw";
    ck_assert_int_eq(spec_add_group(&spec, &group), CAIRN_OK);
    t.name = "fc.weight";
    ck_assert_int_eq(spec_add_tensor(&spec, &t), CAIRN_OK);
    t.name = "fc.bias";
    t.shape = (struct shape) { .rank = 1, .dim = { 10 } };
    ck_assert_int_eq(spec_add_tensor(&spec, &t), CAIRN_OK);
    spec.workers_min = workers_min;
    spec_canonicalize(&spec);
    return spec;
}

/* JobOpen with the pages of a spec. */
static uint32_t open_with(struct fake_peer *peer, const struct job_spec_data *spec,
                          Cairn__JobOpen open)
{
    uint8_t *bytes;
    size_t size;
    ck_assert_int_eq(spec_pack(spec, &bytes, &size), CAIRN_OK);
    open.name = spec->name;
    open.role = CAIRN_ROLE_WIRE_WORKER;
    open.spec_bytes = size;
    const uint32_t request = fake_request(peer, CAIRN_MSG_JOB_OPEN,
                                          made_as(CAIRN_MSG_JOB_OPEN, &open.base));
    pages_each(CAIRN_PAGE_SPEC, bytes, size, fake_send_page, peer);
    free(bytes);
    return request;
}

uint32_t fake_job_open(struct fake_peer *peer, const struct job_spec_data *spec, uint64_t session,
                       uint32_t rank)
{
    return fake_job_open_again(peer, spec, session, rank, 0);
}

uint32_t fake_job_open_again(struct fake_peer *peer, const struct job_spec_data *spec,
                             uint64_t session, uint32_t rank, uint64_t attached)
{
    // A test that wants another rank's place does not wait for it.
    return open_with(peer, spec,
                     (Cairn__JobOpen) { .rank = rank,
                                        .attached = attached,
                                        .takeover = attached == 0,
                                        .session = session,
                                        .token = session * 7 });
}

uint32_t fake_ask_resume(struct fake_peer *peer, const struct job_spec_data *spec)
{
    return open_with(peer, spec,
                     (Cairn__JobOpen) { .session = 50, .token = 51, .resume_latest = true });
}

uint32_t fake_ask_open(struct fake_peer *peer, uint64_t session, uint32_t rank,
                       uint32_t workers_min)
{
    struct job_spec_data spec = fake_spec(workers_min);
    const uint32_t request = fake_job_open(peer, &spec, session, rank);
    spec_release(&spec);
    return request;
}

uint64_t fake_attach(struct fake_peer *peer, uint64_t session, uint32_t rank, uint32_t workers_min)
{
    return fake_hear(peer, Attached, fake_ask_open(peer, session, rank, workers_min))->job;
}

void fake_init(struct fake_peer *peer, uint64_t job)
{
    const uint32_t request = fake_ask(peer, InitDone, .job = job, .source = true);
    fake_hear(peer, Done, request);
}

uint32_t fake_ask_begin(struct fake_peer *peer, uint64_t job)
{
    return fake_ask(peer, RoundBegin, .job = job);
}

uint64_t fake_begin(struct fake_peer *peer, uint64_t job)
{
    Cairn__RoundOpened *opened = fake_hear(peer, RoundOpened, fake_ask_begin(peer, job));
    const uint64_t round = opened->round;
    return round;
}

uint32_t fake_ask_commit(struct fake_peer *peer, uint64_t job, uint64_t round)
{
    return fake_ask(peer, RoundCommit, .job = job, .round = round);
}

uint64_t fake_commit(struct fake_peer *peer, uint64_t job, uint64_t round)
{
    Cairn__RoundResult *result = fake_hear(peer, RoundResult, fake_ask_commit(peer, job, round));
    ck_assert_msg(result->status == CAIRN_OK && result->applied, "%s", result->text);
    const uint64_t step = result->step;
    return step;
}

uint64_t fake_step(struct fake_peer *peer, uint64_t job)
{
    return fake_commit(peer, job, fake_begin(peer, job));
}

uint32_t fake_ask_amend(struct fake_peer *peer, Cairn__JobAmend amend, const char *format, ...)
{
    enum { MOST = 4 };
    Cairn__Setting settings[MOST], *list[MOST];
    char words[200], *rest = words;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    for (char *word; (word = strsep(&rest, " ")) != NULL && *word != '\0';) {
        const size_t at = amend.n_settings++;
        ck_assert_uint_lt(at, MOST);
        char *const value = strchr(word, '=') + 1;
        value[-1] = '\0';
        settings[at] = (Cairn__Setting) { .key = word, .value = value };
        list[at] = &settings[at];
    }
    amend.settings = list;
    return fake_request(peer, CAIRN_MSG_JOB_AMEND, made_as(CAIRN_MSG_JOB_AMEND, &amend.base));
}

uint32_t fake_amend_more(struct fake_peer *peer, uint64_t job, uint64_t key)
{
    Cairn__TensorSpec tensor = CAIRN__TENSOR_SPEC__INIT;
    Cairn__TensorSpec *list[1] = { &tensor };
    struct job_spec_data spec = fake_spec(1);
    uint64_t shape[2] = { 300, 1000 };
    tensor_to_message(&spec.tensors[0], &tensor);
    tensor.name = "late";
    tensor.unit = tensor.name;
    tensor.shape = shape;
    tensor.n_shape = 2;
    tensor.init = CAIRN_INIT_ONES;
    const uint32_t request = fake_ask(peer, JobAmend, .job = job, .key = key, .add = list,
                                      .n_add = 1);
    spec_release(&spec);
    return request;
}

uint32_t fake_amend_freeze(struct fake_peer *peer, uint64_t job, uint64_t key)
{
    char *freeze[] = { wire_text("all") };
    return fake_ask(peer, JobAmend, .job = job, .key = key, .freeze = freeze, .n_freeze = 1);
}

void fake_expect_amended(struct fake_peer *peer, uint32_t request, uint64_t revision)
{
    Cairn__JobAmended *amended = fake_hear(peer, JobAmended, request);
    ck_assert_uint_eq(amended->revision, revision);
}

void fake_goes_on(struct fake_cluster *fake, uint64_t generation, size_t tensors)
{
    struct fake_peer w = fake_connect(fake, CAIRN_ROLE_WIRE_WORKER, "again");
    struct job_spec_data spec = fake_spec(1);
    const uint32_t request = fake_job_open(&w, &spec, 77, 0);
    Cairn__Attached *attached = fake_hear(&w, Attached, request);
    ck_assert_uint_eq(attached->generation, generation);
    const uint64_t job = attached->job, step = fake->shards[0].version.step;
    ck_assert_uint_eq(fake_step(&w, job), step + 1);
    for (int i = 0; i < 2; i++) {
        const struct fake_shard *shard = &fake->shards[i];
        ck_assert_ptr_null(shard->staged);
        ck_assert_uint_eq(shard->spec.tensor_count, tensors);
        ck_assert_uint_eq(shard->version.generation, generation);
        ck_assert_uint_eq(shard->version.step, step + 1);
    }
    spec_release(&spec);
    fake_peer_close(&w);
}

void fake_layout_number(struct fake_cluster *fake, const char *name, uint64_t number)
{
    struct coord_job *job = coord_job_find(fake->cluster, name);
    job->layout->version = job->core->config.layout = number;
    CAIRN_EACH_SHARD (job, i) fake->shards[i].layout->version = number;
}

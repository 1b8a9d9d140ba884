/* The data path of a session: the devices that it is opened on, and the errors for data that never
 * gets through, or that no longer gets through.
 *
 * UCX's devices are fixed when the fabric is opened. Unless the devices are set, they are the
 * devices of the routes to the shards. So the client first asks the coordinator for the shards'
 * places: the client sends a Hello without an address, and the Welcome lists the places. Then the
 * connection is established again, with this process's address. The route to the coordinator gives
 * no hint, since it may lead through a management network. */
#include "client/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/device.h"
#include "client/job.h"
#include "client/push.h"
#include "proto/fabric/fabric.h"

#define SHARDS_WAIT_MS 3000       /* the longest wait for the first shard, with several hosts */
#define SENDS_MAX      (1u << 16) /* the sends in the windows of all shards */
#define SILENCE_MS \
    CAIRN_LINK_SILENT_MS /* for a shard that already knew us when we first sent to it */
#define STARVED_MS 5000  /* the longest time without memory to send to a shard */
/* if more time passes between two checks, this process did not run, and read nothing */
#define LATE_MS    1000
#define INFINIBAND "/sys/class/infiniband"

static void link_on_message(void *session, const void *header, size_t header_bytes,
                            size_t payload_bytes, struct fabric_message *message);

static const char *text_of(const struct session *s, enum env_key key)
{
    return s->env.values[key].text;
}

/* Returns true if the devices, or the ways to other hosts, are chosen later. For "lo", too, the first step
 * is to ask whether any shard listens there. */
static bool is_chosen_later(const struct session *s)
{
    const char *device = text_of(s, CAIRN_ENV_DEVICE), *kind = text_of(s, CAIRN_ENV_FABRIC);
    return s->path.hub == NULL && strcmp(kind, "mapped") != 0 &&
           (strcmp(kind, "auto") == 0 || device[0] == '\0' || strcmp(device, "lo") == 0);
}

static const char *set_or_null(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

/* Called when this process cannot map the memory of shards of this host, and therefore copies it. */
static void on_refused(void *session, const char *what)
{
    session_say(session, what);
}

/* A forked child, such as a loader of data, closes its copies: while it had them, the shards would not notice
 * that this process was killed. */
static void on_socket(void *session, int fd, bool is_open)
{
    struct session *s = session;
    if (is_open)
        fork_watch(&s->path, fd);
    else
        fork_forget_socket(&s->path, fd);
}

static cairn_status open_on(struct session *s, const char *devices, const char *transports,
                            bool has_loopback, unsigned ways, struct sentence *why)
{
    enum one_sided one_sided = CAIRN_ONE_SIDED_AUTO;
    enum device_memory device_memory = CAIRN_DEVICE_MEMORY_AUTO;
    // both texts were validated before
    (void)one_sided_parse(text_of(s, CAIRN_ENV_ONE_SIDED), &one_sided);
    (void)device_memory_parse(text_of(s, CAIRN_ENV_DEVICE_MEMORY), &device_memory);
    const struct fabric_options options = {
        .on_message = link_on_message,
        .on_message_arg = s,
        .on_refused = on_refused,
        .on_socket = on_socket,
        .on_mapping = mapped_on_mapping,
        .on_mapping_gone = mapped_on_gone,
        .max_payload = CAIRN_CHUNK_PAYLOAD_MAX,
        .sends_max = SENDS_MAX,
        .net_devices = set_or_null(devices),
        .host = set_or_null(text_of(s, CAIRN_ENV_HOST)),
        .port_range = set_or_null(text_of(s, CAIRN_ENV_PORTS)),
        .transports = transports,
        .one_sided = one_sided,
        .device_memory = device_memory,
        .has_loopback = has_loopback,
        .ways = ways,
        .is_strict = true,
        .hub = s->path.hub,
        .device = card_imports_table(s->imports),
    };
    const char *kind = s->path.hub != NULL ? "mem" : text_of(s, CAIRN_ENV_FABRIC);
    return fabric_open(kind, &options, &s->path.fabric, why);
}

/* NULL: the fabric's default, tcp. */
static const char *set_transports(const struct session *s)
{
    const char *transports = text_of(s, CAIRN_ENV_TRANSPORTS);
    return strcmp(transports, "tcp") == 0 ? NULL : set_or_null(transports);
}

static void describe(struct session *s, const char *who_chose)
{
    char places[CAIRN_PLACE_BYTES];
    size_t bytes;
    const void *address = fabric_own_address(s->path.fabric, &bytes);
    const char *kind = fabric_address_kind(address, bytes);
    fabric_address_print_places(address, bytes, places);
    snprintf(s->path.text, sizeof s->path.text, "%s%s%s%s%s", kind,
             places[0] != '\0' ? "; between hosts by " : "", places, places[0] != '\0' ? ", " : "",
             places[0] != '\0' ? who_chose : "");
}

/* Describes a data path whose devices were set, not chosen. */
static void describe_set(struct session *s)
{
    const char *source = s->env.values[CAIRN_ENV_DEVICE].source;
    char who[64];
    snprintf(who, sizeof who, "which %s sets", source != NULL ? source : "the default");
    describe(s, who);
}

cairn_status datapath_open(struct session *s, struct sentence *why)
{
    if (is_chosen_later(s)) return CAIRN_OK;
    const cairn_status status = open_on(s, text_of(s, CAIRN_ENV_DEVICE), set_transports(s), false,
                                        0, why);
    if (status == CAIRN_OK) describe_set(s);
    return status;
}

void datapath_close(struct session *s)
{
    if (s->path.fabric == NULL) return;
    fabric_poll_close(&s->path.poll, NULL, NULL);
    mapped_release(s);
    fabric_close(s->path.fabric);
    s->path.fabric = NULL;
}

/* ---- the choice ---- */

static size_t read_places(const Cairn__Welcome *welcome, struct fabric_place *places, size_t max)
{
    size_t count = 0;
    for (size_t i = 0; i < welcome->n_places && count < max; i++)
        count += place_parse(welcome->places[i], &places[count]);
    return count;
}

/* Returns true if a shard listens on loopback: such a shard is on this host, or unreachable. */
static bool has_loopback(const struct fabric_place *places, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(places[i].devices, "lo") == 0 &&
            strcmp(places[i].transports, CAIRN_PLACE_MAPPED) != 0)
            return true;
    return false;
}

/* Returns the ways that the shards serve. This process follows them: the coordinator, which it trusts, says
 * where the shards are. */
static unsigned ways_of(const struct fabric_place *places, size_t count)
{
    unsigned ways = 0;
    for (size_t i = 0; i < count; i++) ways |= fabric_ways_of_place(&places[i]);
    return ways;
}

/* Opens the fabric on the InfiniBand or RoCE cards if possible, else on the other devices. */
static cairn_status open_chosen(struct session *s, const struct fabric_place *places, size_t count,
                                struct sentence *why)
{
    struct choice choice;
    const char *set = set_transports(s), *device = text_of(s, CAIRN_ENV_DEVICE);
    const bool loopback = has_loopback(places, count);
    const unsigned ways = ways_of(places, count);
    fabric_choose(places, device[0] != '\0' ? 0 : count, INFINIBAND, &choice);
    cairn_status status = CAIRN_ERR_UNREACHABLE;
    if (choice.transports != NULL)
        status = open_on(s, choice.devices, set != NULL ? set : choice.transports, loopback, ways,
                         why);
    if (status != CAIRN_OK) {
        fabric_choose(places, device[0] != '\0' ? 0 : count, "", &choice);
        // for ucx, the devices belong to one fabric
        if (strcmp(text_of(s, CAIRN_ENV_FABRIC), "ucx") == 0)
            for (char *c = choice.devices; *c != '\0'; c++) *c = *c == ';' ? ',' : *c;
        status = open_on(s, device[0] != '\0' ? device : choice.devices, set, loopback, ways, why);
    }
    if (status == CAIRN_OK && device[0] != '\0')
        describe_set(s);
    else if (status == CAIRN_OK)
        describe(s, choice.devices[0] != '\0' ? "chosen by the routes to the shards"
                                              : "since no shard with a route was known");
    return status;
}

/* Returns true if the coordinator is on this host; its shards then most likely are, too. */
static bool is_local(const struct stream_address *coordinator)
{
    return coordinator->is_unix || address_names_loopback(coordinator->host);
}

bool datapath_choose(struct session *s, const Cairn__Welcome *welcome, struct sentence *why,
                     cairn_status *status_out)
{
    struct fabric_place places[64];
    const size_t count = read_places(welcome, places, sizeof places / sizeof *places);
    const uint64_t now_ms = monotonic_ms();
    const uint64_t most_ms = s->connect_ms / 2; // cairn_open must not fail for lack of shards
    const uint64_t wait_ms = most_ms < SHARDS_WAIT_MS ? most_ms : SHARDS_WAIT_MS;
    *status_out = CAIRN_OK;
    if (s->path.asked_ms == 0) s->path.asked_ms = now_ms;
    if (count == 0 && !is_local(&s->endpoint) && now_ms - s->path.asked_ms < wait_ms) return false;
    *status_out = open_chosen(s, places, count, why);
    if (*status_out == CAIRN_OK &&
        fabric_poll_init(&s->path.poll, &s->loop.uv, s->path.fabric, 0) != CAIRN_OK) {
        fabric_close(s->path.fabric);
        s->path.fabric = NULL;
        *status_out = fail_with(why, CAIRN_ERR_NO_MEMORY, "no event loop for it");
    }
    return true;
}

/* ---- a way that leads nowhere ---- */

static bool is_open_on(const void *address, size_t bytes, const char *device)
{
    struct fabric_place place;
    for (int i = 0; fabric_address_place(address, bytes, i, &place); i++)
        if (devices_have(place.devices, device)) return true;
    return false;
}

static void add_advice(const struct shard_link *link, const struct fabric_place *there,
                       struct sentence *out)
{
    struct route route;
    size_t bytes;
    const void *address = fabric_own_address(link->job->session->path.fabric, &bytes);
    if (address_names_loopback(there->ip))
        sentence_add(
            out, "the shard listens on loopback only: set fabric.device of that cairn-shard to the "
                 "device of the data network (CAIRN_FABRIC_DEVICE here is found by it)");
    else if (!route_find(there->ip, &route))
        sentence_add(out, "this host has no route to it: give it one, or set fabric.device "
                          "there and CAIRN_FABRIC_DEVICE here to devices of one network");
    else if (!is_open_on(address, bytes, route.device))
        sentence_add(out, "the route to it is device %s: set CAIRN_FABRIC_DEVICE=%s", route.device,
                     route.device);
    else
        sentence_add(out, "look for a firewall on the way, in both directions, or set "
                          "fabric.device there and CAIRN_FABRIC_DEVICE here to another network");
}

/* Adds "the data path from here (ADDRESS) to it (ADDRESS)". */
static void add_way(const struct shard_link *link, const struct fabric_place *there,
                    struct sentence *out)
{
    char here[CAIRN_PLACE_BYTES];
    size_t bytes;
    const void *address = fabric_own_address(link->job->session->path.fabric, &bytes);
    fabric_address_print_places(address, bytes, here);
    sentence_add(out, "the data path from here (%s) to it (%s %s %s)", here, there->ip,
                 there->devices, there->transports);
}

/* Adds the advice for a shard that listens on no network. */
static void add_advice_mapped(const struct shard_link *link, struct sentence *out)
{
    size_t bytes;
    const void *address = fabric_own_address(link->job->session->path.fabric, &bytes);
    sentence_add(
        out,
        "it takes data from its own host only, by mapped memory, and fabric %s of this process "
        "does "
        "not lead there: on another host set fabric.device of that cairn-shard to the device of "
        "the data network; on its host leave CAIRN_FABRIC here unset, or set fabric.kind = ucx "
        "there",
        fabric_address_kind(address, bytes));
}

/* Fails the job because a shard was never heard. */
static void fail_job(struct shard_link *link)
{
    struct fabric_place there;
    struct sentence why;
    sentence_set(&why, "nothing came from shard %s in %d s: ", link->name, SILENCE_MS / 1000);
    if (fabric_address_place(link->address, link->address_bytes, 0, &there)) {
        add_way(link, &there, &why);
        sentence_add(&why, " does not lead there and back; ");
        add_advice(link, &there, &why);
    } else {
        add_advice_mapped(link, &why);
    }
    job_fail(link->job, CAIRN_ERR_UNREACHABLE, why.text);
}

/* ---- a way that led there ---- */

static void explain_silence(const struct shard_link *link, struct sentence *out)
{
    struct fabric_place there;
    if (!fabric_address_place(link->address, link->address_bytes, 0, &there)) return;
    sentence_set(out, "nothing has come from shard %s for %d s and more over ", link->name,
                 SILENCE_MS / 1000);
    add_way(link, &there, out);
    sentence_add(out, ", which led there before: if the shard runs, ");
    add_advice(link, &there, out);
}

/* Explains that this process cannot send its own data; no shard is to blame. */
static void explain_starving(const struct shard_link *link, struct sentence *out)
{
    char size[48] = "";
    if (link->conn.starved.bytes > 0)
        snprintf(size, sizeof size, " (%zu bytes at a time)", link->conn.starved.bytes);
    sentence_set(out,
                 "this process has no memory to send to shard %s%s: free some, or raise its limits "
                 "(ulimit -v, memory.max of its control group, vm.max_map_count)",
                 link->name, size);
}

/* Records in the job the first link that is silent or starved, and the number of further such links. */
static void note_silence(struct job *job)
{
    struct sentence silence = { "" };
    uint32_t more = 0;
    for (uint32_t i = 0; i < job->shards.count; i++) {
        const struct shard_link *link = job->shards.links[i];
        if (!link->silent && !link->starves) continue;
        if (silence.text[0] != '\0')
            more++;
        else if (link->starves)
            explain_starving(link, &silence);
        else
            explain_silence(link, &silence);
    }
    if (more > 0) sentence_add(&silence, " (and so it is with %" PRIu32 " shards more)", more);
    HOLD_LOCK(&job->session->lock);
    job->shards.silence = silence;
}

static void begin_silence(struct shard_link *link)
{
    struct sentence silence = { "" };
    link->silent = true;
    note_silence(link->job);
    explain_silence(link, &silence);
    if (silence.text[0] != '\0' && link->job->session->on_wait.call == NULL)
        fprintf(stderr, "cairn: job %s: %s\n", link->job->name, silence.text);
}

static void end_silence(struct shard_link *link, bool is_heard)
{
    if (!link->silent) return;
    link->silent = false;
    note_silence(link->job);
    if (is_heard && link->job->session->on_wait.call == NULL)
        fprintf(stderr, "cairn: job %s: shard %s is heard again\n", link->job->name, link->name);
}

/* ---- a process without memory ---- */

/* Fails the job for this worker if memory for sending is lacking for STARVED_MS. A chunk that is sent
 * in part counts neither as sent nor as absent, so the round could not end. */
static void judge_memory(struct shard_link *link, uint64_t now_ms)
{
    const uint64_t starved_ms = chunk_link_starved_ms(&link->conn, now_ms);
    const bool starves = starved_ms > 0;
    struct sentence why;
    if (link->starves != starves) {
        link->starves = starves;
        note_silence(link->job);
    }
    if (starved_ms < STARVED_MS || link->job->failure.status != CAIRN_OK) return;
    explain_starving(link, &why);
    sentence_add(&why, "; it has been so for %d s: close the job, and open it again",
                 STARVED_MS / 1000);
    job_fail(link->job, CAIRN_ERR_NO_MEMORY, why.text);
}

/* ---- all of them ---- */

void datapath_heard(struct shard_link *link)
{
    link->reached = true;
    link->unheard_since_ms = 0;
}

/* Returns true if the shard would send, so that silence means a failure: every shard answers the
 * HELLO that breaks a silence. A shard of this host is not checked, since its end is noticed
 * anyway. The exception is a shard that has left the job, because the shard's process may then know
 * nothing of the job any more. */
static bool would_speak(const struct shard_link *link, bool has_left)
{
    if (link->address_bytes == 0) return false;
    if (chunk_link_shares(&link->conn) && !has_left) return false;
    return !link->reached || (link->job->attachment.state == JOB_ATTACHED &&
                              link->conn.callbacks->waits(&link->conn));
}

void datapath_judge(struct shard_link *link, uint64_t now_ms)
{
    const bool has_left = served_layouts_left_by(link->job, link->index);
    const bool speaks = would_speak(link, has_left), is_heard = link->unheard_since_ms == 0;
    const bool is_late = now_ms - link->judged_ms > LATE_MS;
    judge_memory(link, now_ms);
    link->judged_ms = now_ms;
    if (!speaks || is_heard || has_left) end_silence(link, is_heard);
    if (!speaks || is_late || is_heard) link->unheard_since_ms = now_ms;
    if (link->silent || now_ms - link->unheard_since_ms < SILENCE_MS) return;
    if (has_left) {
        recut_gone(link);
        return;
    }
    if (link->reached) {
        begin_silence(link);
        return;
    }
    link->unheard_since_ms = 0;
    if (link->job->failure.status == CAIRN_OK) fail_job(link);
}

/* ==== link ==== */

/* Connections to the shards of a job, and the messages that arrive on them. Loop thread.
 *
 * A shard may act for other shards (proto/wire/wire.h, "Relays"). The state of its connection is in
 * the shard's own link; the state of chunks is in the link of the chunks' owner. */

static struct shard_link *link_of(const struct chunk_link *conn)
{
    return (struct shard_link *)((char *)conn - offsetof(struct shard_link, conn));
}

static void sign(const struct chunk_link *conn, struct chunk_header *header)
{
    const struct job *job = link_of(conn)->job;
    header->job = job->attachment.job;
    header->member = job->member.id;
    header->token = job->member.token;
}

static bool link_waits(const struct chunk_link *conn)
{
    const struct shard_link *link = link_of(conn);
    return link->asked > 0 || !TAILQ_EMPTY(&link->asker.waiting) || pushes_waits(link);
}

static void lost(struct chunk_link *conn)
{
    struct shard_link *link = link_of(conn);
    pushes_lost(link);
    transfer_lost(link);
    link->relays = false;
}

static const struct chunk_link_callbacks hands = { .sign = sign,
                                                   .waits = link_waits,
                                                   .lost = lost };

static struct shard_link *open_link(struct job *job, uint32_t index)
{
    struct shard_link *link = calloc(1, sizeof *link);
    if (link != NULL) TAILQ_INIT(&link->staging.queue);
    if (link == NULL) return NULL;
    link->job = job;
    link->index = index;
    link->conn.callbacks = &hands;
    asker_open(&link->asker, transfer_send);
    return link;
}

cairn_status links_add(struct job *job, uint32_t count)
{
    struct job_shards *shards = &job->shards;
    if (count <= shards->count) return CAIRN_OK;
    struct shard_link **links = realloc(shards->links, count * sizeof(struct shard_link *));
    if (links == NULL) return CAIRN_ERR_NO_MEMORY;
    shards->links = links;
    for (; shards->count < count; shards->count++) {
        links[shards->count] = open_link(job, shards->count);
        if (links[shards->count] == NULL) return CAIRN_ERR_NO_MEMORY;
    }
    return CAIRN_OK;
}

void links_close(struct job *job, bool shared)
{
    for (uint32_t i = 0; i < job->shards.count; i++) {
        struct chunk_link *conn = &job->shards.links[i]->conn;
        if (shared || !chunk_link_shares(conn)) chunk_link_close(conn);
    }
}

void links_release(struct job *job)
{
    for (uint32_t i = 0; i < job->shards.count; i++) {
        free(job->shards.links[i]->address);
        free(job->shards.links[i]);
    }
    free(job->shards.links);
    HOLD_LOCK(&job->session->lock);
    job->shards = (struct job_shards) { .links = NULL };
}

void link_tick(struct shard_link *link, uint64_t now_ms)
{
    const struct job *job = link->job;
    datapath_judge(link, now_ms); // may fail the job
    const bool is_wanted = !served_layouts_left_by(job, link->index) || link_waits(&link->conn);
    const bool is_over = job->closing || job->failure.status != CAIRN_OK;
    const bool connects = job->served != NULL && !is_over && is_wanted;
    asker_retry(&link->asker);
    chunk_link_tick(&link->conn, connects ? job->session->path.fabric : NULL, link->address,
                    link->address_bytes, now_ms);
}

/* ---- what comes in ---- */

/* Returns the job that a header is for; the token proves that one of the job's shards sent it. */
static struct job *job_of_header(struct session *s, const struct chunk_header *h)
{
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->member.id == h->member && job->member.token == h->token && job->served != NULL)
            return job;
    return NULL;
}

/* Returns the owner in whose name a shard sends. The owner's index is in the `tile` field. */
static struct shard_link *link_of_header(struct job *job, const struct chunk_header *h)
{
    if (h->tile >= job->shards.count) return NULL;
    if (h->kind == CAIRN_CHUNK_GRANT && h->tensor > job->shards.count) return NULL;
    return job->shards.links[h->tile];
}

/* Returns the shard that sent the header, as far as this can be determined: the shard that was
 * asked. */
static struct shard_link *sender_of_header(struct shard_link *owner, const struct chunk_header *h)
{
    struct job *job = owner->job;
    if (h->kind == CAIRN_CHUNK_HELLO) return owner;
    if (h->kind == CAIRN_CHUNK_GRANT)
        return h->tensor == 0 ? owner : job->shards.links[h->tensor - 1];
    if ((h->request & CAIRN_REQUEST_OF_ASKER) == 0)
        return owner->carrier != NULL ? owner->carrier : owner;
    const struct parcel *parcel = parcel_of_request(job, h->request);
    return parcel != NULL && parcel->shard == owner->index ? job->shards.links[parcel->via] : owner;
}

static void on_hello(struct shard_link *link, const struct chunk_header *h)
{
    const struct job *job = link->job;
    const uint64_t way = h->request;
    link->takes_unsummed = (h->value & CAIRN_CHUNK_UNSUMMED) != 0;
    if (chunk_link_on_hello(&link->conn, way)) {
        transfer_lost(link);
        for (uint32_t i = 0; link->relays && i < job->shards.count; i++)
            asker_pump(&job->shards.links[i]->asker);
        asker_retry(&link->asker);
    }
    pushes_on_hello(link, way);
}

static void on_grant(struct shard_link *owner, const struct chunk_header *h)
{
    if (!grant_is_newer(&owner->grant, h)) return;
    owner->grant = *h;
    owner->declined = false;
    if (h->tensor != 0) pushes_granter(owner)->relays = true;
    pushes_on_grant(owner);
    asker_pump(&owner->asker);
}

static void dispatch_chunk(struct shard_link *link, const struct chunk_header *h,
                           struct fabric_message *message)
{
    switch (h->kind) {
    case CAIRN_CHUNK_HELLO: on_hello(link, h); break;
    case CAIRN_CHUNK_GRANT: on_grant(link, h); break;
    case CAIRN_CHUNK_MICRO_ACK:
    case CAIRN_CHUNK_ACK:
    case CAIRN_CHUNK_NAK: pushes_on_answer(link, h); break;
    case CAIRN_CHUNK_DATA: transfer_on_data(link, h, message); return;
    default: break;
    }
    if (message != NULL) fabric_drop(message);
}

/* fabric_options.on_message */
static void link_on_message(void *session, const void *header, size_t header_bytes,
                            size_t payload_bytes, struct fabric_message *message)
{
    struct session *s = session;
    struct chunk_header h;
    struct job *job = NULL;
    struct shard_link *link = NULL, *sender = NULL;
    if (chunk_decode(header, header_bytes, payload_bytes, &h) == CAIRN_OK)
        job = job_of_header(s, &h);
    if (job != NULL) link = link_of_header(job, &h);
    if (link != NULL) sender = sender_of_header(link, &h);
    if (link != NULL && chunk_link_heard(&sender->conn)) {
        datapath_heard(sender);
        dispatch_chunk(link, &h, message);
        session_kick(s); // a stalled command may be able to proceed
    } else if (message != NULL) {
        fabric_drop(message);
    }
}

/* The data path of a session: which devices it is opened on, and what is said where nothing comes through.
 *
 * UCX's devices are fixed when the fabric is opened. Unless they are set, they are those of the routes to the
 * shards, so that the coordinator is asked for the shards' places first: a Hello without an address, whose
 * Welcome lists them; then the connection is made anew, with ours. The way to the coordinator says
 * nothing: it may be a network of management. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/mapped.h"
#include "client/session.h"
#include "proto/fabric/where.h"

#define SHARDS_WAIT_MS 3000 /* for the first shard to join a cluster of several hosts */
#define SILENCE_MS     5000 /* of a shard that knew of us when we began to speak to it */
#define LATE_MS        1000 /* between two looks: this process did not run, and read nothing */
#define INFINIBAND     "/sys/class/infiniband"

static const char *text_of(const struct session *s, enum cairn_env_key key)
{
    return s->env.values[key].text;
}

static bool devices_matter(const struct session *s)
{
    return s->hub == NULL && strcmp(text_of(s, CAIRN_ENV_FABRIC), "mapped") != 0;
}

static bool is_chosen_later(const struct session *s)
{
    return devices_matter(s) && text_of(s, CAIRN_ENV_DEVICE)[0] == '\0';
}

static const char *set_or_null(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

static cairn_status open_on(struct session *s, const char *devices, const char *transports,
                            struct cairn_sentence *why)
{
    enum cairn_one_sided one_sided = CAIRN_ONE_SIDED_AUTO;
    (void)cairn_one_sided_parse(text_of(s, CAIRN_ENV_ONE_SIDED), &one_sided); // was judged
    const struct cairn_fabric_options options = {
        .on_message = cairn_link_on_message,
        .on_message_arg = s,
        .on_mapping = cairn_mapped_on_mapping,
        .on_mapping_gone = cairn_mapped_on_gone,
        .max_payload = CAIRN_CHUNK_PAYLOAD_MAX,
        .net_devices = set_or_null(devices),
        .host = set_or_null(text_of(s, CAIRN_ENV_HOST)),
        .transports = transports,
        .one_sided = one_sided,
        .hub = s->hub,
    };
    const char *kind = s->hub != NULL ? "mem" : text_of(s, CAIRN_ENV_FABRIC);
    return cairn_fabric_open(kind, &options, &s->fabric, why);
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
    const void *address = cairn_fabric_address(s->fabric, &bytes);
    const char *kind = cairn_fabric_address_kind(address, bytes);
    cairn_fabric_address_print_places(address, bytes, places);
    snprintf(s->data_path, sizeof s->data_path, "%s%s%s%s%s", kind,
             places[0] != '\0' ? "; between hosts by " : "", places, places[0] != '\0' ? ", " : "",
             places[0] != '\0' ? who_chose : "");
}

cairn_status cairn_datapath_open(struct session *s, struct cairn_sentence *why)
{
    if (is_chosen_later(s)) return CAIRN_OK;
    const cairn_status status = open_on(s, text_of(s, CAIRN_ENV_DEVICE), set_transports(s), why);
    const char *source = s->env.values[CAIRN_ENV_DEVICE].source;
    char who[64];
    snprintf(who, sizeof who, "which %s sets", source != NULL ? source : "the default");
    if (status == CAIRN_OK) describe(s, who);
    return status;
}

/* ---- the choice ---- */

static size_t read_places(const Cairn__Welcome *welcome, struct cairn_place *places, size_t max)
{
    size_t count = 0;
    for (size_t i = 0; i < welcome->n_places && count < max; i++)
        count += cairn_place_parse(welcome->places[i], &places[count]);
    return count;
}

/* The cards first, if they can be opened. */
static cairn_status open_chosen(struct session *s, const struct cairn_place *places, size_t count,
                                struct cairn_sentence *why)
{
    struct cairn_choice choice;
    const char *set = set_transports(s);
    cairn_choose(places, count, INFINIBAND, &choice);
    cairn_status status = CAIRN_ERR_UNREACHABLE;
    if (choice.transports != NULL)
        status = open_on(s, choice.devices, set != NULL ? set : choice.transports, why);
    if (status != CAIRN_OK) {
        cairn_choose(places, count, "", &choice);
        if (strcmp(text_of(s, CAIRN_ENV_FABRIC), "ucx") == 0) // it is one fabric
            for (char *c = choice.devices; *c != '\0'; c++) *c = *c == ';' ? ',' : *c;
        status = open_on(s, choice.devices, set, why);
    }
    if (status == CAIRN_OK)
        describe(s, choice.devices[0] != '\0' ? "chosen by the routes to the shards"
                                              : "since no shard with a route was known");
    return status;
}

static bool is_loopback(const char *ip)
{
    return strncmp(ip, "127.", 4) == 0 || strcmp(ip, "::1") == 0;
}

/* Its shards are, most likely, on this host, too. */
static bool is_local(const struct cairn_address *coordinator)
{
    return coordinator->is_unix || strcmp(coordinator->host, "localhost") == 0 ||
           is_loopback(coordinator->host);
}

bool cairn_datapath_choose(struct session *s, const Cairn__Welcome *welcome,
                           struct cairn_sentence *why, cairn_status *status_out)
{
    struct cairn_place places[64];
    const size_t count = read_places(welcome, places, sizeof places / sizeof *places);
    const uint64_t now_ms = cairn_client_now_ms();
    const uint64_t most_ms = s->connect_ms / 2; // cairn_open may not fail for want of shards
    const uint64_t wait_ms = most_ms < SHARDS_WAIT_MS ? most_ms : SHARDS_WAIT_MS;
    *status_out = CAIRN_OK;
    if (s->asked_places_ms == 0) s->asked_places_ms = now_ms;
    if (count == 0 && !is_local(&s->endpoint) && now_ms - s->asked_places_ms < wait_ms)
        return false;
    *status_out = open_chosen(s, places, count, why);
    if (*status_out == CAIRN_OK &&
        cairn_fabric_poll_init(&s->poll, &s->loop, s->fabric, 0) != CAIRN_OK) {
        cairn_fabric_close(s->fabric);
        s->fabric = NULL;
        *status_out = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no event loop for it");
    }
    return true;
}

/* ---- a way that leads nowhere ---- */

static bool is_open_on(const void *address, size_t bytes, const char *device)
{
    struct cairn_place place;
    for (int i = 0; cairn_fabric_address_place(address, bytes, i, &place); i++)
        if (cairn_devices_have(place.devices, device)) return true;
    return false;
}

static void add_advice(const void *address, size_t bytes, const struct cairn_place *there,
                       struct cairn_sentence *out)
{
    struct cairn_route route;
    if (is_loopback(there->ip))
        cairn_sentence_add(out,
                           "the shard listens on loopback only: set fabric.device of that "
                           "cairn-shard to the device of the data network (CAIRN_FABRIC_DEVICE "
                           "here is found by it)");
    else if (!cairn_route_find(there->ip, &route))
        cairn_sentence_add(out,
                           "this host has no route to it: give it one, or set fabric.device there "
                           "and CAIRN_FABRIC_DEVICE here to devices of one network");
    else if (!is_open_on(address, bytes, route.device))
        cairn_sentence_add(out, "the route to it is device %s: set CAIRN_FABRIC_DEVICE=%s",
                           route.device, route.device);
    else
        cairn_sentence_add(out,
                           "look for a firewall on the way, in both directions, or set "
                           "fabric.device there and CAIRN_FABRIC_DEVICE here to another network");
}

static void explain_silence(const struct shard_link *link, const struct cairn_place *there,
                            struct cairn_sentence *out)
{
    char here[CAIRN_PLACE_BYTES];
    size_t bytes;
    const void *address = cairn_fabric_address(link->job->session->fabric, &bytes);
    cairn_fabric_address_print_places(address, bytes, here);
    cairn_sentence_set(out,
                       "nothing came from shard %s in %d s: the data path from here (%s) to it (%s "
                       "%s %s) does not lead there and back; ",
                       link->name, SILENCE_MS / 1000, here, there->ip, there->devices,
                       there->transports);
    add_advice(address, bytes, there, out);
}

void cairn_datapath_judge(struct shard_link *link, uint64_t now_ms)
{
    struct cairn_place there;
    struct cairn_sentence why;
    const bool is_there = link->address_bytes > 0 && !cairn_link_shares(link);
    if (link->reached) return;
    const bool is_late = now_ms - link->judged_ms > LATE_MS;
    link->judged_ms = now_ms;
    if (!is_there || is_late || link->unheard_since_ms == 0) link->unheard_since_ms = now_ms;
    if (now_ms - link->unheard_since_ms < SILENCE_MS) return;
    link->unheard_since_ms = 0;
    if (link->job->failed != CAIRN_OK ||
        !cairn_fabric_address_place(link->address, link->address_bytes, 0, &there))
        return;
    explain_silence(link, &there, &why);
    cairn_job_fail(link->job, CAIRN_ERR_UNREACHABLE, why.text);
}

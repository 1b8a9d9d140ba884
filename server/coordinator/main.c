/* The program cairn-coordinator, which keeps the members, epochs, rounds and snapshots of a
 * cluster. */

#include <string.h>

#include "server/coordinator/cluster.h"
#include "server/coordinator/lead.h"

static struct coord_options options;
static struct coord *cluster; /* NULL: closed, or being closed */
/* NULL: the store is a file, and not shared. The cluster is open while this process leads. */
static struct lead *lead;
static struct listener *refuser; /* while this process stands by; NULL: none */
/* is_closing: the cluster, or the refuser; has_led: meanwhile this process has ceased to lead */
static bool is_closing, has_led, is_stopping;

static const struct config_option *option_table(size_t *option_count_out);

/* ==== standing by ==== */

/* While this process stands by, it answers commands of this host, at its Unix sockets, and says who leads.
 * Others hear nothing, and try their next address. */

static void refuse(struct peer *peer, const struct wire_frame *frame, void *context)
{
    Cairn__Hello *hello = (Cairn__Hello *)message_unpack(&cairn__hello__descriptor, frame->payload,
                                                         frame->payload_bytes);
    const bool is_command = hello != NULL && hello->role == CAIRN_ROLE_WIRE_ADMIN;
    Cairn__Error error = CAIRN__ERROR__INIT;
    struct sentence why, text;
    (void)context;
    if (hello != NULL) message_free(&hello->base);
    lead_why(lead, &why);
    sentence_set(&text,
                 "this coordinator %s; ask the one that leads, or give the addresses of all "
                 "coordinators, with commas",
                 why.text);
    error.status = CAIRN_ERR_UNREACHABLE;
    error.text = text.text;
    if (!is_command || peer_send(peer, CAIRN_MSG_ERROR, frame->request, &error.base) == CAIRN_OK)
        peer_finish(peer, CAIRN_ERR_UNREACHABLE, "%s", text.text);
}

static void on_refused(struct peer *peer, cairn_status status, const char *why, void *context)
{
    (void)peer, (void)status, (void)why, (void)context;
}

static void open_refuser(struct daemon *daemon)
{
    static const struct listener_events events = { .on_frame = refuse, .on_gone = on_refused };
    struct listener_options sockets = options.network;
    struct sentence list = { "" }, why;
    const char *at = options.network.listen;
    for (; *(at += strspn(at, " ")) != '\0'; at += strcspn(at, " "))
        if (*at == '/' || strncmp(at, "unix:", 5) == 0)
            sentence_add(&list, "%s%.*s", list.text[0] != '\0' ? " " : "", (int)strcspn(at, " "),
                         at);
    if (list.text[0] == '\0' && options.network.listen[0] != '\0') return; // it has none
    sockets.listen = list.text;
    if (listener_open(&daemon->loop, &sockets, CAIRN_MSG_HELLO, CAIRN_MSG_MAX, &events, daemon,
                      &refuser, &why) == CAIRN_OK)
        return;
    refuser = NULL;
    log_warn("nobody hears at this host that this coordinator stands by: %s", why.text);
}

/* ==== leading ==== */

static void stand_by(struct daemon *daemon)
{
    has_led = false;
    open_refuser(daemon);
    lead_release(lead);
}

static void on_closed(void *context)
{
    is_closing = false;
    if (lead == NULL) return;
    if (is_stopping)
        lead_close(lead);
    else
        stand_by(context);
}

static void close_cluster(struct daemon *daemon)
{
    struct coord *closed = cluster;
    cluster = NULL;
    is_closing = true;
    coord_close(closed, on_closed, daemon);
}

static void on_stop(struct daemon *daemon, void *context)
{
    (void)context;
    if (refuser != NULL) listener_close(refuser, NULL);
    refuser = NULL;
    if (!is_stopping && cluster == NULL && !is_closing) lead_close(lead);
    is_stopping = true;
    if (cluster != NULL) close_cluster(daemon);
    daemon_stop(daemon, 0);
}

static cairn_status start_coordinator(struct daemon *daemon, struct sentence *why)
{
    CAIRN_TRY(coord_open(&options, &daemon->loop, &cluster, why));
    return daemon_ready(daemon, coord_address(cluster), why);
}

static void fail(struct daemon *daemon, cairn_status status, const struct sentence *why)
{
    daemon_fail(daemon, status, why);
    on_stop(daemon, NULL);
}

/* True if an operator has to act before any start can succeed. Whatever else keeps this process from leading,
 * such as an etcd that is full, may pass. */
static bool is_for_good(cairn_status status)
{
    return status == CAIRN_ERR_CONFIG || status == CAIRN_ERR_MISMATCH ||
           status == CAIRN_ERR_VERSION || status == CAIRN_ERR_CORRUPT;
}

/* Opens the store, and serves. */
static void serve(struct daemon *daemon)
{
    struct sentence why;
    options.backing = lead_backing(lead);
    const cairn_status status = start_coordinator(daemon, &why);
    if (status == CAIRN_OK) return;
    if (cluster != NULL || is_for_good(status)) {
        fail(daemon, status, &why);
        return;
    }
    log_warn("does not lead after all: %s; another coordinator may, and this one tries again",
             why.text);
    stand_by(daemon);
}

static void on_refuser_closed(void *context)
{
    is_closing = false;
    if (is_stopping)
        lead_close(lead);
    else if (has_led)
        stand_by(context);
    else
        serve(context);
}

static void on_lead(enum lead_change change, void *context)
{
    struct daemon *daemon = context;
    if (is_stopping) return;
    if (change == CAIRN_LED) {
        has_led = true;
        if (cluster != NULL) close_cluster(daemon);
        return;
    }
    if (refuser == NULL) {
        serve(daemon);
        return;
    }
    is_closing = true;
    listener_close(refuser, on_refuser_closed); // its sockets will be the cluster's
    refuser = NULL;
}

/* Leads at once if the store is a file, and otherwise when no other coordinator does. */
static cairn_status begin(struct daemon *daemon, struct sentence *why)
{
    if (options.store_url[0] == '\0') return start_coordinator(daemon, why);
    CAIRN_TRY(lead_open(&options, &daemon->loop, on_lead, daemon, &lead, why));
    open_refuser(daemon);
    daemon_stand_by(daemon);
    return CAIRN_OK;
}

static cairn_status judge_options(const void *values, struct sentence *why)
{
    struct etcd etcd;
    CAIRN_TRY(log_judge(&options.log, why));
    CAIRN_TRY(coord_options_judge(values, why));
    if (options.store_url[0] == '\0') return CAIRN_OK;
    const cairn_status status = etcd_init(&etcd, &options, why);
    etcd_release(&etcd);
    return status;
}

int main(int argc, char **argv)
{
    struct daemon_spec spec = {
        .name = "cairn-coordinator",
        .purpose =
            "Keeps the members, epochs, rounds, layouts and snapshots of a cluster of cairn-shard.",
        .build = CAIRN_BUILD,
        .values = &options,
        .judge = judge_options,
        .on_stop = on_stop
    };
    struct daemon daemon;
    struct sentence why;
    int exit_code;
    spec.options = option_table(&spec.option_count);
    if (!daemon_begin(&daemon, &spec, argc, argv, &exit_code)) return exit_code;
    options.build = CAIRN_BUILD;
    daemon_log(&daemon, spec.name, &options.log);
    daemon_confine(&daemon, false);
    const cairn_status status = begin(&daemon, &why);
    if (status != CAIRN_OK) fail(&daemon, status, &why);
    return daemon_run(&daemon);
}

/* ==== options ==== */

/* The coordinator's configuration, as a table. */

#define AT(member) offsetof(struct coord_options, member)

static const struct config_option table[] = {
    { "cluster", "name", CAIRN_OPTION_STRING, AT(name), "cairn", 0, 0, "Name, for people." },
    { "cluster", "shards", CAIRN_OPTION_INT, AT(shards), "1", 1, 4096,
      "Shards that a job is spread over. A job is made when so many are up." },
    { "cluster", "shards_min", CAIRN_OPTION_INT, AT(shards_min), "0", 0, 4096,
      "Shards that are enough for a lost job with on_shard_loss = restore-latest, when it has "
      "waited for shards_wait. 0: cluster.shards." },
    { "cluster", "shards_wait", CAIRN_OPTION_DURATION, AT(shards_wait_ms), "1min", 0, 86400000,
      "How long a lost job waits for cluster.shards before fewer are taken." },
    { "cluster", "standby_after", CAIRN_OPTION_DURATION, AT(standby_after_ms), "1s", 0, 86400000,
      "How long a shard that has a standby (shard.standby_of) may be away before the standby takes "
      "its place. Longer than its supervisor takes to start it again, if that keeps its state." },
    { "store", "path", CAIRN_OPTION_PATH, AT(store_path), "coordinator", 0, 0,
      "Data folder: jobs, layouts, epochs. One coordinator at a time." },
    { "store", "url", CAIRN_OPTION_STRING, AT(store_url), "", 0, 0,
      "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]: the store is in etcd, so that several "
      "coordinators "
      "may run, of which one leads. etcds: by TLS. Empty: the store is in store.path." },
    { "store", "credentials", CAIRN_OPTION_STRING, AT(store_credentials), "", 0, 0,
      "File of mode 0600 with USER:PASSWORD of etcd. Empty: etcd asks for none." },
    { "store", "ca", CAIRN_OPTION_STRING, AT(store_ca), "", 0, 0,
      "File with the authority that signed etcd's certificate. Empty: those that the host "
      "trusts." },
    { "store", "trust", CAIRN_OPTION_BOOL, AT(store_trust), "no", 0, 0,
      "Go to an etcd of another host without TLS: whoever reads that network has the cluster's "
      "keys." },
    { "store", "lease", CAIRN_OPTION_DURATION, AT(store_lease_ms), "4s", 2000, 60000,
      "How long a leader that is not heard of leads; then another coordinator does." },
    { "store", "from", CAIRN_OPTION_STRING, AT(store_from), "", 0, 0,
      "File of `cairn cluster backup` with which an empty store in etcd begins." },
    { "snapshots", "path", CAIRN_OPTION_PATH, AT(snapshots_path), "snapshots", 0, 0,
      "Folder of snapshots; the shards write there too, so in a cluster it is shared." },
    { "snapshots", "trust", CAIRN_OPTION_STRING, AT(snapshots_trust), "signed", 0, 0,
      "Snapshots restored without an operator: signed (by a key of `cairn key list`, or older than "
      "signatures) or any." },
    { "snapshots", "foreign", CAIRN_OPTION_BOOL, AT(snapshots_foreign), "no", 0, 0,
      "Take snapshots.path at the start though another cluster has it; that one then writes there "
      "no more." },
    CAIRN_LISTENER_CONFIG(struct coord_options, network),
    { "socket", "mode", CAIRN_OPTION_STRING, AT(network.socket_mode), "0660", 0, 0,
      "Mode of the Unix socket: 0660 lets the daemon's user and group connect, 0666 everybody on "
      "the host." },
    { "access", "admin_group", CAIRN_OPTION_STRING, AT(admin_group), "", 0, 0,
      "Over the Unix socket root, the daemon's user and the members of this group are admins. "
      "Empty: the daemon's own group." },
    { "access", "socket_roles", CAIRN_OPTION_STRING, AT(socket_roles), "worker,reader", 0, 0,
      "Roles of everybody else over the Unix socket: worker, reader, shard, admin, monitor; or "
      "none." },
    { "lease", "heartbeat", CAIRN_OPTION_DURATION, AT(heartbeat_ms), "1s", 10, 60000,
      "How often members are told that the coordinator lives, and report themselves." },
    { "lease", "timeout", CAIRN_OPTION_DURATION, AT(lease_timeout_ms), "5s", 100, 600000,
      "How long a member may be silent until it is lost. At least twice the heartbeat." },
    { "round", "step_deadline", CAIRN_OPTION_DURATION, AT(step_deadline_ms), "10min", 0, 86400000,
      "How long after a round opened a worker is dropped if a shard still lacks something from it. "
      "0: never." },
    { "round", "workers_max", CAIRN_OPTION_INT, AT(workers_max), "64", 1, 65536,
      "Workers of a job at a time. Shards reserve memory for that many." },
    { "leases", "ttl_max", CAIRN_OPTION_DURATION, AT(lease_ttl_max_ms), "10min", 100, 86400000,
      "The longest lease of a version a reader may take; it may be renewed again and again." },
    { "leases", "versions_max", CAIRN_OPTION_INT, AT(lease_versions_max), "4", 0,
      CAIRN_LEASED_VERSIONS_MAX,
      "Versions of a job that readers may lease at a time: each keeps one more copy of what is "
      "fetched." },
    { "reshard", "policy", CAIRN_OPTION_STRING, AT(reshard), "manual", 0, 0,
      "manual: by an operator's word alone; on_join: a shard that comes gets its share of the "
      "jobs." },
    { "reshard", "rebalance_above", CAIRN_OPTION_FACTOR, AT(rebalance_above), "1.1", 1000, 100000,
      "on_join moves something only when a shard has more than this many times its share." },
    { "quota", "others", CAIRN_OPTION_STRING, AT(quota_others), "", 0, 0,
      "What an owner may have that has no line of its own: jobs=4 sessions=64 bytes=100GiB "
      "in_flight=8GiB, as many of these as shall be limited. `cairn cluster quota` shows what they "
      "use." },
    { "quota", "owner", CAIRN_OPTION_LINES, AT(quota_owners), "", 0, 0,
      "An owner's own quota, a line for each: team-a jobs=8 bytes=1TiB. What the line does not "
      "name "
      "is not limited." },
    CAIRN_LOG_CONFIG(struct coord_options, log),
};

/* Returns the table of options, for server/base/daemon.h. */
static const struct config_option *option_table(size_t *option_count_out)
{
    *option_count_out = sizeof table / sizeof *table;
    return table;
}

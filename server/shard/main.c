/* cairn-shard: the daemon. */
#include <ctype.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/fabric/fabric.h"
#include "proto/spec/spec.h"
#include "server/base/daemon.h"
#include "server/base/keeper.h"
#include "server/shard/join.h"
#include "server/shard/kept_aside.h"
#include "server/shard/shard.h"

/* ==== addresses ==== */

/* Waits for the network devices that carry bulk data, and for their addresses. At boot a device may
 * appear late (a bond, a virtual function), or its address may (DHCP, a slow switch). Before that,
 * UCX cannot be opened on the device. If the daemon ended for this reason again and again, its
 * supervisor would give it up. So the daemon waits, and logs the reason. Loop thread. */

#define LOOK_MS 500
#define SAY_MS  60000

struct addresses {
    uv_timer_t timer;
    const char *devices; /* borrowed: the value of fabric.device */
    uint64_t said_ms;    /* the uv_now of the last log line; 0: none */
    /* the last log line was about a missing device, not about a missing address */
    bool said_absent;
    void (*on_there)(void *context);
    void *context;
};

/* Stops waiting: on_there is not called afterwards. May be called again. */
static void addresses_close(struct addresses *addresses)
{
    uv_handle_t *handle = (uv_handle_t *)&addresses->timer;
    if (handle->loop != NULL && !uv_is_closing(handle)) uv_close(handle, NULL);
}

/* True if this host has the device. A name like "mlx5_0:1" is a card's; any other name is that of a
 * device of the kernel. */
static bool is_device(const char *name)
{
    char path[CAIRN_PLACE_DEVICES_BYTES + 64];
    const size_t length = strcspn(name, ":");
    if (name[length] != ':') return if_nametoindex(name) != 0;
    snprintf(path, sizeof path, "/sys/class/infiniband/%.*s", (int)length, name);
    return access(path, F_OK) == 0;
}

/* Finds the first of these devices that this host does not have. Returns false if it has all of
 * them. */
static bool addresses_find_absent(const char *devices, char out[CAIRN_PLACE_DEVICES_BYTES])
{
    for (const char *at = devices; *at != '\0';) {
        const size_t length = strcspn(at, ",;");
        snprintf(out, CAIRN_PLACE_DEVICES_BYTES, "%.*s", (int)length, at);
        if (!is_device(out)) return true;
        at += length + (at[length] != '\0');
    }
    return false;
}

/* True if `one` is an address by which UCX's tcp can use the device: the device has an IP, it is
 * up, and the other end of its cable is up, too. */
static bool is_usable(const struct ifaddrs *one, const char *device, size_t length)
{
    const unsigned up = IFF_UP | IFF_RUNNING;
    char ip[INET6_ADDRSTRLEN];
    return strcspn(one->ifa_name, ":") == length && strncmp(one->ifa_name, device, length) == 0 &&
           (one->ifa_flags & up) == up && ip_print(one->ifa_addr, ip);
}

/* True if a device of the network is usable. A card ("mlx5_0:1") is usable even without an IP. */
static bool is_there(const char *network, const struct ifaddrs *all)
{
    if (strchr(network, ':') != NULL) return true;
    for (const char *at = network; *at != '\0';) {
        const size_t length = strcspn(at, ",");
        for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next)
            if (is_usable(one, at, length)) return true;
        at += length + (at[length] == ',');
    }
    return false;
}

/* Finds the devices of the first network that lacks an address, and writes them with ',' between
 * them. Returns false if no network lacks an address. */
static bool find_lacking(const char *devices, char out[CAIRN_PLACE_DEVICES_BYTES])
{
    struct ifaddrs *all;
    bool lacks = false;
    if (getifaddrs(&all) != 0) return false;
    for (const char *at = devices; *at != '\0' && !lacks;) {
        const size_t length = strcspn(at, ";");
        snprintf(out, CAIRN_PLACE_DEVICES_BYTES, "%.*s", (int)length, at);
        at += length + (at[length] == ';');
        lacks = length > 0 && !is_there(out, all);
    }
    freeifaddrs(all);
    return lacks;
}

static void say(struct addresses *addresses, const char *device, bool is_absent)
{
    char status[CAIRN_PLACE_DEVICES_BYTES + 64];
    const uint64_t now_ms = uv_now(addresses->timer.loop);
    if (addresses->said_ms != 0 && addresses->said_absent == is_absent &&
        now_ms - addresses->said_ms < SAY_MS)
        return;
    addresses->said_ms = now_ms + 1; // 0 means that nothing was said yet
    addresses->said_absent = is_absent;
    snprintf(status, sizeof status, "waits for device %s: %s", device,
             is_absent ? "it is not there" : "no address, or not up");
    notify_status(status);
    if (is_absent)
        log_warn("this host has no device %s: this shard waits for it; `ip link` and "
                 "/sys/class/infiniband list those it has, and fabric.device names it",
                 device);
    else
        log_warn("device %s has no address yet, or is not up: this shard waits for that; "
                 "`ip -br addr` shows what it has, and fabric.device names it",
                 device);
}

static void look_addresses(uv_timer_t *timer)
{
    struct addresses *addresses = timer->data;
    char lacking[CAIRN_PLACE_DEVICES_BYTES];
    const bool is_absent = addresses_find_absent(addresses->devices, lacking);
    if (is_absent || find_lacking(addresses->devices, lacking)) {
        say(addresses, lacking, is_absent);
        uv_timer_start(timer, look_addresses, LOOK_MS, 0);
        return;
    }
    addresses_close(addresses);
    addresses->on_there(addresses->context);
}

/* Calls on_there when this host has all of these devices, and each network has a device that is up
 * and has an address. If this is so already, on_there is called before this call returns, else from
 * the loop. */
static void addresses_await(struct addresses *addresses, uv_loop_t *loop, const char *devices,
                            void (*on_there)(void *context), void *context)
{
    addresses->devices = devices;
    addresses->said_ms = 0;
    addresses->on_there = on_there;
    addresses->context = context;
    uv_timer_init(loop, &addresses->timer);
    addresses->timer.data = addresses;
    look_addresses(&addresses->timer);
}

/* ==== libcrypto ==== */

/* libcrypto gets a signal if there is no memory for what it prepares at its first use, which is when the
 * fabric is opened. So the shard ends with a sentence until it is open; after that, a connection is refused.
 * Only a connection makes other threads ask for memory here. */
static bool is_opening = true;

static void *crypto_grow(void *memory, size_t bytes, const char *file, int line)
{
    (void)file, (void)line;
    void *grown = realloc(memory, bytes);
    if (grown != NULL || bytes == 0 || !is_opening) return grown;
    log_error("cannot start: out of memory for the ciphers");
    _exit(status_exit(CAIRN_ERR_NO_MEMORY));
}

static void *crypto_allocate(size_t bytes, const char *file, int line)
{
    return crypto_grow(NULL, bytes, file, line);
}

static void crypto_free(void *memory, const char *file, int line)
{
    (void)file, (void)line;
    free(memory);
}

/* ==== the program ==== */

struct values {
    char *name, *standby_of, *domain, *coordinator, *state, *token_file, *import_folders,
        *on_sigterm;
    int64_t drain_seconds;
    int64_t memory_bytes, relay_cache_bytes, compute_threads;
    char *log_path;
    int64_t log_budget;
    char *backend, *device;
    char *memory_lock;
    char *fabric_kind, *fabric_device, *fabric_port_range, *fabric_host, *fabric_transports,
        *fabric_one_sided, *fabric_device_memory;
    bool fabric_trust;
    struct log_options log;
};

static const struct config_option options[] = {
    { "shard", "name", CAIRN_OPTION_STRING, offsetof(struct values, name), NULL, 0, 0,
      "This shard's name in the cluster: unique, and the same after a restart." },
    { "shard", "standby_of", CAIRN_OPTION_STRING, offsetof(struct values, standby_of), "", 0, 0,
      "Mirror the parts of the shard of this name, on another host, and take its place if it is "
      "lost. Two shards may do so; a third one is a spare. Empty: this shard owns parts itself." },
    { "shard", "domain", CAIRN_OPTION_STRING, offsetof(struct values, domain), "", 0, 0,
      "The rack, zone or power supply that fails as a whole with this shard's host: a standby is "
      "to be in another one than its shard. Empty: the host alone." },
    { "shard", "coordinator", CAIRN_OPTION_ENDPOINTS, offsetof(struct values, coordinator), "", 0,
      0,
      "The coordinator's control address; a name is looked up for each connection, so that its "
      "host may change. Of several coordinators, all of their addresses. Empty: CAIRN_ENDPOINT of "
      "the environment, else the one that --join wrote, "
      "else cairn/coordinator.sock in $XDG_RUNTIME_DIR, else in /run." },
    { "shard", "state", CAIRN_OPTION_STRING, offsetof(struct values, state), "", 0, 0,
      "Folder of this shard's key, by which a coordinator at host:port knows it again, and of what "
      "--join wrote. Empty: $STATE_DIRECTORY, else /var/lib/cairn of root, else cairn in "
      "$XDG_STATE_HOME or ~/.local/state." },
    { "shard", "on_sigterm", CAIRN_OPTION_STRING, offsetof(struct values, on_sigterm), "exit", 0, 0,
      "exit: the shard ends at once and loses what it holds; drain: its state is brought to other "
      "shards first." },
    { "shard", "drain_seconds", CAIRN_OPTION_INT, offsetof(struct values, drain_seconds), "100", 1,
      1000000,
      "Seconds for a drain; then the shard ends all the same. Keep it below TimeoutStopSec of its "
      "unit." },
    { "memory", "limit", CAIRN_OPTION_BYTES, offsetof(struct values, memory_bytes), "0", 0,
      INT64_MAX,
      "Memory for state, landing, staging and replies. 0: four fifths of the machine's, or of its "
      "control group's. The memory a job takes must also be free." },
    { "memory", "lock", CAIRN_OPTION_STRING, offsetof(struct values, memory_lock),
      CAIRN_HOST_LOCK_PATH, 0, 0,
      "A folder or file that all shards of this host lock while they take memory, one at a time: "
      "the same for all." },
    { "memory", "relay_cache", CAIRN_OPTION_BYTES, offsetof(struct values, relay_cache_bytes),
      "256MiB", 0, INT64_MAX,
      "How much of the limit may hold what is fetched once for all workers of a job on this host. "
      "0: each fetches for itself." },
    { "import", "folders", CAIRN_OPTION_STRING, offsetof(struct values, import_folders), "", 0, 0,
      "Absolute folders, ':' between them, that a job's weights may be read from (init_from). "
      "Empty: none." },
    { "compute", "threads", CAIRN_OPTION_INT, offsetof(struct values, compute_threads), "0", 0,
      CAIRN_POOL_THREADS_MAX, "Threads for arithmetic. 0: one for each core, at most 8." },
    { "compute", "backend", CAIRN_OPTION_STRING, offsetof(struct values, backend), "host", 0, 0,
      "Where the state of jobs lies and is worked on: host, cuda (a GPU, or it does not start), or "
      "auto: a GPU if there is one that will do, else host; the log says why." },
    { "compute", "device", CAIRN_OPTION_STRING, offsetof(struct values, device), "", 0, 0,
      "The GPU: a number among those that this process sees, or a UUID as nvidia-smi -L names it. "
      "Empty: the first." },
    { "fabric", "kind", CAIRN_OPTION_STRING, offsetof(struct values, fabric_kind), "auto", 0, 0,
      "How bulk data travels: mapped (memory that processes of this host share), sealed (encrypted "
      "TCP), or auto: mapped where it can be, else sealed; stream (TCP in clear) and ucx need "
      "trust = yes on any device but lo. auto opens no port if device is lo alone and host is "
      "empty." },
    { "fabric", "trust", CAIRN_OPTION_BOOL, offsetof(struct values, fabric_trust), "no", 0, 0,
      "The network of device is trusted: nobody there reads or changes what he should not. Then "
      "auto sends in clear between hosts: over ucx where transports has more than tcp, else by "
      "stream." },
    { "fabric", "device", CAIRN_OPTION_STRING, offsetof(struct values, fabric_device), "lo", 0, 0,
      "Network device of the bulk data, such as lo, eth1 or mlx5_0:1,eth1. Of several networks: "
      "eth1;eth2. Workers take the device of their route to it." },
    { "fabric", "port_range", CAIRN_OPTION_STRING, offsetof(struct values, fabric_port_range), "",
      0, 0,
      "Ports of the bulk data, first-last; one port does, if ucx is not used. Empty: any free "
      "one." },
    { "fabric", "host", CAIRN_OPTION_STRING, offsetof(struct values, fabric_host), "", 0, 0,
      "This host's name, as in CAIRN_HOST of its workers: memory is shared within a host only. "
      "Empty: what the kernel says." },
    { "fabric", "transports", CAIRN_OPTION_STRING, offsetof(struct values, fabric_transports),
      "tcp", 0, 0,
      "UCX's transports between hosts, as UCX_TLS names them: tcp, or rc or dc with tcp beside it. "
      "Never sysv or posix." },
    { "fabric", "one_sided", CAIRN_OPTION_STRING, offsetof(struct values, fabric_one_sided), "auto",
      0, 0,
      "Read the peer's memory over ucx instead of being sent it: auto, where the endpoint's lanes "
      "do it natively (rc, dc); on, always (over tcp it is emulated, for tests); off." },
    { "fabric", "device_memory", CAIRN_OPTION_STRING, offsetof(struct values, fabric_device_memory),
      "auto", 0, 0,
      "How data on a GPU goes to other hosts: auto, directly where UCX has CUDA and the network "
      "card reaches the GPU's memory, else through host memory; host, always through host "
      "memory." },
    { "network", "token_file", CAIRN_OPTION_STRING, offsetof(struct values, token_file), "", 0, 0,
      "The file of the token that a coordinator at host:port asks for, if $CREDENTIALS_DIRECTORY "
      "has no cairn-token. Empty: the file that CAIRN_TOKEN_FILE names, else the one that --join "
      "wrote." },
    { "log", "path", CAIRN_OPTION_STRING, offsetof(struct values, log_path), "", 0, 0,
      "A folder on a disk of this host, for jobs with durability = log: the sums of each round are "
      "on it before the round counts. Empty: none; such jobs are refused." },
    { "log", "budget", CAIRN_OPTION_BYTES, offsetof(struct values, log_budget), "0", 0, INT64_MAX,
      "How much of log.path the log of each job may take. At half of it a snapshot is taken; at "
      "all of it rounds wait. 0: 8 times the job's state here, at most half of what is free." },
    CAIRN_LOG_CONFIG(struct values, log),
};

struct program {
    struct values values;
    struct daemon daemon;
    struct addresses addresses;
    struct kept_fd *kept; /* owned until the shard is opened: [kept_count] */
    size_t kept_count;
    struct shard_daemon *shard; /* NULL: the shard is not open yet, or is being closed */
    int exit_code;
    char coordinator[CAIRN_ENDPOINTS_TEXT_BYTES]; /* the default, if no address is configured */
};

static void on_closed(void *context)
{
    struct program *program = context;
    daemon_stop(&program->daemon, program->exit_code);
}

/* Closes the shard, which leaves the cluster. The process then ends with exit_code. */
static void end_shard(struct program *program, int exit_code)
{
    struct shard_daemon *shard = program->shard;
    program->shard = NULL;
    program->exit_code = exit_code;
    shard_close(shard, on_closed, program);
}

static void on_stop(struct daemon *daemon, void *context)
{
    struct program *program = context;
    addresses_close(&program->addresses);
    if (program->shard == NULL) {
        daemon_stop(daemon, 0);
        return;
    }
    if (strcmp(program->values.on_sigterm, "drain") == 0)
        shard_drain(program->shard, (uint32_t)program->values.drain_seconds);
    else
        end_shard(program, 0);
}

static void on_ready(struct shard_daemon *shard, void *context)
{
    (void)shard;
    struct program *program = context;
    struct sentence why;
    const cairn_status status = daemon_ready(&program->daemon, program->values.name, &why);
    if (status == CAIRN_OK) return;
    log_error("cannot start: %s", why.text);
    end_shard(program, status_exit((int)status));
}

static void on_end(struct shard_daemon *shard, cairn_status why, void *context)
{
    (void)shard;
    end_shard(context, status_exit((int)why));
}

/* True if bulk data may travel over network devices. */
static bool is_far(const struct values *values)
{
    return strcmp(values->fabric_kind, "mapped") != 0;
}

/* True if a device may have this name. A name like "mlx5_0:1" is a card's; any other name is that
 * of a device of the kernel. */
static bool may_be_device(const char *name, size_t length)
{
    const size_t length_max = memchr(name, ':', length) != NULL ? CAIRN_PLACE_DEVICES_BYTES - 1
                                                                : IFNAMSIZ - 1;
    if (length == 0 || length > length_max || memchr(name, '/', length) != NULL) return false;
    for (size_t i = 0; i < length; i++)
        if (!isgraph((unsigned char)name[i])) return false;
    return true;
}

/* Judges the networks as the fabric would: proto/fabric/auto.c. */
static cairn_status judge_networks(const struct values *values, struct sentence *why)
{
    int count = 1;
    for (const char *c = values->fabric_device; *c != '\0'; c++) count += *c == ';' && c[1] != '\0';
    if (count > CAIRN_NETWORKS_MAX)
        return fail_with(why, CAIRN_ERR_CONFIG, "fabric.device = %s: at most %d networks",
                         values->fabric_device, CAIRN_NETWORKS_MAX);
    if (strchr(values->fabric_device, ';') != NULL && strcmp(values->fabric_kind, "ucx") == 0)
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "fabric.device = %s: only fabric.kind = auto takes several networks",
                         values->fabric_device);
    return CAIRN_OK;
}

/* Returns UCX's transports. NULL stands for the fabric's default, which needs no cache of
 * registered memory. */
static const char *transports_of(const struct values *values)
{
    const char *transports = values->fabric_transports;
    return transports[0] == '\0' || strcmp(transports, "tcp") == 0 ? NULL : transports;
}

static bool is_local(const struct values *values)
{
    return strcmp(values->fabric_device, "lo") == 0;
}

static bool is_kind(const struct values *values, const char *kind)
{
    return strcmp(values->fabric_kind, kind) == 0;
}

/* True if data goes to other hosts in clear. */
static bool is_clear(const struct values *values)
{
    if (is_local(values)) return false;
    return is_kind(values, "ucx") || is_kind(values, "stream") ||
           (is_kind(values, "auto") && values->fabric_trust);
}

/* Refuses what is for trusted networks only. */
static cairn_status judge_trust(const struct values *values, struct sentence *why)
{
    if (is_local(values) || values->fabric_trust) return CAIRN_OK;
    if (is_clear(values))
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "fabric.kind = %s sends in clear over device %s%s: use kind = auto, which "
                         "seals everything, or set fabric.trust = yes on a network that you trust",
                         values->fabric_kind, values->fabric_device,
                         is_kind(values, "stream") ? ""
                                                   : ", and whoever reaches it may write to this "
                                                     "process");
    if (is_kind(values, "auto") && fabric_transports_have_cards(transports_of(values)))
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "fabric.transports = %s is for UCX, which kind = auto opens only on a "
                         "network that is trusted, because it seals nothing: set transports = tcp, "
                         "with which everything is sealed, or fabric.trust = yes on a network that "
                         "you trust",
                         values->fabric_transports);
    return CAIRN_OK;
}

static cairn_status judge_devices(const struct values *values, struct sentence *why)
{
    CAIRN_TRY(judge_trust(values, why));
    for (const char *at = values->fabric_device; *at != '\0';) {
        const size_t length = strcspn(at, ",;");
        if (!may_be_device(at, length))
            return fail_with(
                why, CAIRN_ERR_CONFIG,
                "fabric.device = %s: \"%.*s\" is no device name: a network device's has at most %d "
                "visible characters, a card's ends in a port (mlx5_0:1)",
                values->fabric_device, (int)length, at, IFNAMSIZ - 1);
        at += length + (at[length] != '\0');
    }
    return judge_networks(values, why);
}

static uint32_t default_threads(void)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > 8 ? 8 : (uint32_t)cores;
}

static uint64_t default_memory(void)
{
    struct headroom headroom;
    if (headroom_read("", &headroom, NULL) != CAIRN_OK) return (uint64_t)1 << 30;
    return headroom.most_bytes / 5 * 4;
}

static cairn_status judge_folders(const char *folders, struct sentence *why)
{
    for (const char *at = folders; *at != '\0';) {
        const size_t length = strcspn(at, ":");
        if (*at != '/') {
            return fail_with(why, CAIRN_ERR_CONFIG,
                             "import.folders = %s: \"%.*s\" is not an absolute path", folders,
                             (int)length, at);
        }
        at += length + (at[length] == ':');
    }
    return CAIRN_OK;
}

/* Judges a range of ports such as "7100-7199", because UCX takes any port if it does not understand
 * the range. */
static cairn_status judge_ports(const char *range, struct sentence *why)
{
    if (range[0] == '\0' || port_range_ok(range)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_CONFIG,
                     "fabric.port_range is \"%.40s\"; " CAIRN_PORT_RANGE_ALLOWED, range);
}

/* Judges the shard's name, by the coordinator's rule, before the shard connects to a
 * coordinator. */
static cairn_status judge_name(const char *name, struct sentence *why)
{
    if (job_name_ok(name)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_CONFIG,
                     "shard.name is \"%.100s\"; allowed: letters, digits, '.', '_' and '-', at "
                     "most %d, and neither '.' nor '-' first",
                     name, CAIRN_NAME_MAX);
}

/* The options whose value is one of a few words. */
static const struct {
    size_t value; /* the offset in struct values */
    const char *option, *words[5], *allowed;
} choices[] = {
    { offsetof(struct values, on_sigterm),
      "shard.on_sigterm",
      { "exit", "drain" },
      "exit or drain is allowed" },
    { offsetof(struct values, backend),
      "compute.backend",
      { "host", "cuda", "auto" },
      "host, cuda or auto is allowed" },
    { offsetof(struct values, fabric_kind),
      "fabric.kind",
      { "auto", "mapped", "sealed", "stream", "ucx" },
      "auto, mapped, sealed, stream or ucx is allowed" },
    { offsetof(struct values, fabric_one_sided),
      "fabric.one_sided",
      { "auto", "on", "off" },
      "auto, on or off is allowed" },
    { offsetof(struct values, fabric_device_memory),
      "fabric.device_memory",
      { "auto", "device", "host" },
      CAIRN_DEVICE_MEMORY_ALLOWED },
};

static cairn_status judge_words(const struct values *values, struct sentence *why)
{
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const char *const *words = choices[i].words;
        const char *value = *(char *const *)((const char *)values + choices[i].value);
        size_t k = 0;
        const size_t most = sizeof choices->words / sizeof *choices->words;
        while (k < most && words[k] != NULL && strcmp(words[k], value) != 0) k++;
        if (k == most || words[k] == NULL)
            return fail_with(why, CAIRN_ERR_CONFIG, "%s = %s: %s", choices[i].option, value,
                             choices[i].allowed);
    }
    return CAIRN_OK;
}

/* Judges options by the rules that the table of options cannot express. */
static cairn_status judge_options(const void *of_daemon, struct sentence *why)
{
    const struct values *values = of_daemon;
    CAIRN_TRY(judge_words(values, why));
    if (values->fabric_host[0] != '\0' && !fabric_host_is_name(values->fabric_host)) {
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "fabric.host = %s: at most %d visible characters are allowed",
                         values->fabric_host, CAIRN_FABRIC_HOST_BYTES - 1);
    }
    cairn_status status = log_judge(&values->log, why);
    if (status == CAIRN_OK) status = judge_name(values->name, why);
    if (status == CAIRN_OK) status = judge_devices(values, why);
    if (status == CAIRN_OK) status = judge_ports(values->fabric_port_range, why);
    return status == CAIRN_OK ? judge_folders(values->import_folders, why) : status;
}

/* Fails if a device does not exist now. (A shard that starts would wait for such a device.) */
static cairn_status judge_now(const void *of_daemon, struct sentence *why)
{
    const struct values *values = of_daemon;
    char absent[CAIRN_PLACE_DEVICES_BYTES];
    if (!is_far(values) || !addresses_find_absent(values->fabric_device, absent)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_CONFIG,
                     "fabric.device = %s: this host has no device %s now; a shard that starts "
                     "waits for it; `ip link` and /sys/class/infiniband list those it has",
                     values->fabric_device, absent);
}

static const char *find_coordinator(struct program *program)
{
    const char *endpoint = getenv("CAIRN_ENDPOINT");
    if (program->values.coordinator[0] != '\0') return program->values.coordinator;
    if (endpoint != NULL && endpoint[0] != '\0') return endpoint;
    char state[PATH_MAX];
    join_state_folder(program->values.state, state);
    join_address(state, program->coordinator, sizeof program->coordinator);
    if (program->coordinator[0] == '\0')
        address_find(getenv("XDG_RUNTIME_DIR"), program->coordinator);
    return program->coordinator;
}

static unsigned ways_of(const struct values *values)
{
    if (!values->fabric_trust) return CAIRN_WAY_SEALED;
    return fabric_transports_have_cards(transports_of(values)) ? CAIRN_WAY_UCX | CAIRN_WAY_STREAM
                                                               : CAIRN_WAY_STREAM;
}

static cairn_status open_shard(struct program *program, struct sentence *why)
{
    const struct values *values = &program->values;
    enum one_sided one_sided = CAIRN_ONE_SIDED_AUTO;
    if (is_clear(values))
        log_warn("fabric.trust = yes: data goes over device %s in clear, and nobody checks that it "
                 "arrives as it was sent: only a network that is trusted may be there",
                 values->fabric_device);
    enum device_memory device_memory = CAIRN_DEVICE_MEMORY_AUTO;
    (void)one_sided_parse(values->fabric_one_sided, &one_sided); // both values were judged before
    (void)device_memory_parse(values->fabric_device_memory, &device_memory);
    const struct shard_options shard_options = {
        .name = values->name,
        .coordinator = find_coordinator(program),
        .token_file = values->token_file,
        .state = values->state,
        .import_folders = values->import_folders,
        .standby_of = values->standby_of,
        .log_path = values->log_path,
        .log_budget = (uint64_t)values->log_budget,
        .domain = values->domain,
        .memory_bytes = values->memory_bytes > 0 ? (uint64_t)values->memory_bytes
                                                 : default_memory(),
        .relay_cache_bytes = (uint64_t)values->relay_cache_bytes,
        .memory_lock = values->memory_lock,
        .compute_threads = values->compute_threads > 0 ? (uint32_t)values->compute_threads
                                                       : default_threads(),
        .backend = values->backend,
        .device = values->device,
        .fabric_kind = values->fabric_kind,
        .fabric_device = values->fabric_device,
        .fabric_port_range = values->fabric_port_range[0] != '\0' ? values->fabric_port_range
                                                                  : NULL,
        .fabric_transports = transports_of(values),
        .fabric_ways = ways_of(values),
        .fabric_one_sided = one_sided,
        .fabric_device_memory = device_memory,
        .fabric_host = values->fabric_host[0] != '\0' ? values->fabric_host : NULL,
        .events = { on_ready, on_end, program },
        .build = CAIRN_BUILD,
        .kept = program->kept,
        .kept_count = program->kept_count,
    };
    program->kept_count = 0;
    const cairn_status status = shard_open(&program->daemon.loop, &shard_options, &program->shard,
                                           why);
    is_opening = false;
    return status;
}

static void on_addresses(void *context)
{
    struct program *program = context;
    struct sentence why;
    const cairn_status status = open_shard(program, &why);
    if (status == CAIRN_OK) return;
    program->shard = NULL;
    daemon_fail(&program->daemon, status, &why);
}

int main(int argc, char **argv)
{
    static struct program program;
    const struct daemon_spec spec = {
        .name = "cairn-shard",
        .purpose = "Holds a part of every job's state, and updates it.",
        .more_usage =
            "       cairn-shard --join HOST[:PORT][,HOST[:PORT]]... TOKEN [--state FOLDER]\n"
            "  --join                   asks the coordinator at HOST (port 7077) whether it "
            "knows the\n                           token, and keeps both for the shards of "
            "this host; TOKEN is the\n                           word that `cairn cluster "
            "init` printed, a file that has it, or -\n                           for "
            "standard input; it is kept in /etc/cairn of root, else in\n"
            "                           FOLDER (shard.state)\n"
            "       cairn-shard --keep [options]\n"
            "  --keep                   the first option: a small process runs the shard with "
            "the\n                           others, holds what it stores while it is started "
            "again after\n                           a crash, and starts the program anew on "
            "SIGUSR2\n"
            "       cairn-shard --inspect NAME [--state FOLDER] [drop|return]\n"
            "  --inspect                says which parts of the shard of that name are set aside, "
            "because\n                           it died of them; at its next start it drops them, "
            "or uses\n                           them again\n",
        .build = CAIRN_BUILD,
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .values = &program.values,
        .judge = judge_options,
        .judge_now = judge_now,
        .on_stop = on_stop,
        .context = &program,
    };
    int exit_code;
    struct sentence why;
    if (argc > 1 && strcmp(argv[1], "--join") == 0) return join_main(argc, argv);
    if (argc > 1 && strcmp(argv[1], "--inspect") == 0) return kept_inspect_main(argc, argv);
    if (argc > 1 && strcmp(argv[1], "--keep") == 0) {
        argv[1] = argv[0];
        return keeper_run(argv[0], argv + 1);
    }
    program.kept_count = keeper_take(&program.kept, &why);
    (void)CRYPTO_set_mem_functions(crypto_allocate, crypto_grow, crypto_free);
    if (!daemon_begin(&program.daemon, &spec, argc, argv, &exit_code)) return exit_code;
    daemon_log(&program.daemon, program.values.name, &program.values.log);
    if (why.text[0] != '\0') log_warn("%s", why.text);
    // CUDA may start nvidia-modprobe, which makes the nodes of its devices where nobody else has.
    daemon_confine(&program.daemon, strcmp(program.values.backend, "host") != 0);
    addresses_await(&program.addresses, &program.daemon.loop,
                    is_far(&program.values) ? program.values.fabric_device : "", on_addresses,
                    &program);
    return daemon_run(&program.daemon);
}

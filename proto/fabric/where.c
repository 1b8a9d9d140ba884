#include "proto/fabric/fabric.h"

#include <inttypes.h>
#include <arpa/inet.h>
#include <assert.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <limits.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "proto/fabric/backend.h"
#include "proto/fabric/mapped.h"

/* ---- places ---- */

bool ip_print(const struct sockaddr *address, char out[INET6_ADDRSTRLEN])
{
    if (address == NULL) return false;
    if (address->sa_family == AF_INET)
        return inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)address)->sin_addr,
                         out, INET6_ADDRSTRLEN) != NULL;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return address->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(six) &&
           inet_ntop(AF_INET6, six, out, INET6_ADDRSTRLEN) != NULL;
}

/* A second address of a device has a label behind ':'. */
static bool is_of_device(const struct ifaddrs *one, const char *device, size_t length)
{
    return strcspn(one->ifa_name, ":") == length && strncmp(one->ifa_name, device, length) == 0;
}

/* Finds IPv4 addresses first, as UCX does. */
static bool find_ip(const struct ifaddrs *all, const char *device, size_t length,
                    char out[INET6_ADDRSTRLEN])
{
    static const int families[] = { AF_INET, AF_INET6 };
    for (int f = 0; f < 2; f++)
        for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next)
            if (is_of_device(one, device, length) && one->ifa_addr != NULL &&
                one->ifa_addr->sa_family == families[f] && ip_print(one->ifa_addr, out))
                return true;
    return false;
}

bool fabric_place_of(const char *devices, const char *transports, struct fabric_place *out)
{
    struct ifaddrs *all = NULL;
    if (strlen(devices) >= sizeof out->devices || strlen(transports) >= sizeof out->transports)
        return false;
    *out = (struct fabric_place) { .ip = "-" };
    memcpy(out->devices, devices, strlen(devices) + 1);
    memcpy(out->transports, transports, strlen(transports) + 1);
    if (getifaddrs(&all) != 0) return true;
    bool found = false;
    for (const char *at = devices; *at != '\0' && !found;) {
        const size_t length = strcspn(at, ",");
        found = find_ip(all, at, length, out->ip);
        at += length + (at[length] == ',');
    }
    freeifaddrs(all);
    return true;
}

void place_print(const struct fabric_place *place, char out[CAIRN_PLACE_BYTES])
{
    static_assert(sizeof *place <= CAIRN_PLACE_BYTES, "two blanks and a NUL for three NULs");
    snprintf(out, CAIRN_PLACE_BYTES, "%s %s %s", place->ip, place->devices, place->transports);
}

bool place_parse(const char *text, struct fabric_place *out)
{
    int end = 0;
    return sscanf(text, "%45[^ ] %95[^ ] %47[^ ]%n", out->ip, out->devices, out->transports,
                  &end) == 3 &&
           text[end] == '\0';
}

/* ---- routes ---- */

bool ip_parse(const char *ip, struct sockaddr_storage *out, socklen_t *bytes_out)
{
    struct sockaddr_in *four = (struct sockaddr_in *)out;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, ip, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons(9);
        *bytes_out = sizeof *four;
        return true;
    }
    if (inet_pton(AF_INET6, ip, &six->sin6_addr) != 1) return false;
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(9);
    *bytes_out = sizeof *six;
    return true;
}

/* Connects a datagram socket, which sends nothing, to learn the source address of the route. */
static bool find_source(const char *ip, char out[INET6_ADDRSTRLEN])
{
    struct sockaddr_storage to, from;
    socklen_t to_bytes, from_bytes = sizeof from;
    if (!ip_parse(ip, &to, &to_bytes)) return false;
    const int fd = socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool ok = connect(fd, (const struct sockaddr *)&to, to_bytes) == 0 &&
                    getsockname(fd, (struct sockaddr *)&from, &from_bytes) == 0 &&
                    ip_print((const struct sockaddr *)&from, out);
    close(fd);
    return ok;
}

/* The kernel's answer to a request for a route, with the route's attributes. */
struct route_answer {
    struct nlmsghdr head;
    struct rtmsg route;
    uint8_t attributes[1024];
};

static bool ask_route(const struct sockaddr_storage *to, struct route_answer *answer)
{
    const bool is_four = to->ss_family == AF_INET;
    const void *ip = is_four ? (const void *)&((const struct sockaddr_in *)to)->sin_addr
                             : (const void *)&((const struct sockaddr_in6 *)to)->sin6_addr;
    const unsigned short ip_bytes = is_four ? sizeof(struct in_addr) : sizeof(struct in6_addr);
    struct {
        struct nlmsghdr head;
        struct rtmsg route;
        struct rtattr to;
        uint8_t ip[sizeof(struct in6_addr)];
    } ask = { .head = { .nlmsg_type = RTM_GETROUTE, .nlmsg_flags = NLM_F_REQUEST },
              .route = { .rtm_family = (uint8_t)to->ss_family,
                         .rtm_dst_len = (uint8_t)(ip_bytes * 8) },
              .to = { .rta_type = RTA_DST, .rta_len = (unsigned short)RTA_LENGTH(ip_bytes) } };
    memcpy(ask.ip, ip, ip_bytes);
    ask.head.nlmsg_len = (uint32_t)(sizeof ask - sizeof ask.ip + ip_bytes);
    const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0) return false;
    const ssize_t count = send(fd, &ask, ask.head.nlmsg_len, 0) == (ssize_t)ask.head.nlmsg_len
                              ? recv(fd, answer, sizeof *answer, 0)
                              : -1;
    close(fd);
    return count >= (ssize_t)NLMSG_LENGTH(sizeof answer->route) &&
           answer->head.nlmsg_type == RTM_NEWROUTE && answer->head.nlmsg_len <= (size_t)count;
}

/* Finds the device of the route to an IP. Returns false if the kernel does not name the device, or if the
 * IP is ours: the route to an IP of our own is loopback. */
static bool find_device_of_route(const char *ip, char out[IF_NAMESIZE])
{
    struct sockaddr_storage to;
    socklen_t to_bytes;
    struct route_answer answer;
    if (!ip_parse(ip, &to, &to_bytes) || !ask_route(&to, &answer) ||
        answer.route.rtm_type != RTN_UNICAST)
        return false;
    size_t left = RTM_PAYLOAD(&answer.head);
    for (const struct rtattr *one = RTM_RTA(&answer.route); RTA_OK(one, left);
         one = RTA_NEXT(one, left)) {
        unsigned index;
        if (one->rta_type != RTA_OIF || one->rta_len < RTA_LENGTH(sizeof index)) continue;
        memcpy(&index, RTA_DATA(one), sizeof index);
        return if_indextoname(index, out) != NULL;
    }
    return false;
}

static bool find_device_with(const char *ip, char out[IF_NAMESIZE])
{
    struct ifaddrs *all = NULL;
    char one_ip[INET6_ADDRSTRLEN];
    bool found = false;
    if (getifaddrs(&all) != 0) return false;
    for (const struct ifaddrs *one = all; one != NULL && !found; one = one->ifa_next) {
        if (!ip_print(one->ifa_addr, one_ip) || strcmp(one_ip, ip) != 0) continue;
        snprintf(out, IF_NAMESIZE, "%.*s", (int)strcspn(one->ifa_name, ":"), one->ifa_name);
        found = true;
    }
    freeifaddrs(all);
    return found;
}

bool route_find(const char *ip, struct route *out)
{
    return find_source(ip, out->source) &&
           (find_device_of_route(ip, out->device) || find_device_with(out->source, out->device));
}

/* ---- the choice ---- */

bool devices_have(const char *devices, const char *device)
{
    const size_t length = strlen(device);
    for (const char *at = devices; *at != '\0';) {
        const size_t one = strcspn(at, ",;");
        if (one == length && strncmp(at, device, one) == 0) return true;
        at += one + (at[one] != '\0');
    }
    return false;
}

static int count_networks(const char *devices)
{
    int count = devices[0] != '\0';
    for (; *devices != '\0'; devices++) count += *devices == ';';
    return count;
}

static unsigned ways_of(const char *transports)
{
    if (strcmp(transports, CAIRN_PLACE_MAPPED) == 0) return 0;
    if (strcmp(transports, "sealed") == 0) return CAIRN_WAY_SEALED;
    return strcmp(transports, "stream") == 0 ? CAIRN_WAY_STREAM : CAIRN_WAY_UCX;
}

unsigned fabric_ways_of_place(const struct fabric_place *place)
{
    return ways_of(place->transports);
}

bool fabric_transports_have_cards(const char *transports)
{
    return transports != NULL && strcmp(transports, "tcp") != 0 &&
           ways_of(transports) == CAIRN_WAY_UCX;
}

/* Adds a device, or omits it if there is no room for it. */
static void add_device(char devices[CAIRN_PLACE_DEVICES_BYTES], const char *device, char between)
{
    const size_t used = strlen(devices);
    const char mark[2] = { used > 0 ? between : '\0', '\0' };
    if (devices_have(devices, device) || used + strlen(device) + 2 > CAIRN_PLACE_DEVICES_BYTES)
        return;
    if (between == ';' && count_networks(devices) == CAIRN_NETWORKS_MAX) return;
    snprintf(devices + used, CAIRN_PLACE_DEVICES_BYTES - used, "%s%s", mark, device);
}

static bool is_active(const char *infiniband, const char *card, const char *port)
{
    char path[PATH_MAX], state[32] = "";
    snprintf(path, sizeof path, "%s/%s/ports/%s/state", infiniband, card, port);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const bool is_read = fgets(state, sizeof state, file) != NULL;
    fclose(file);
    return is_read && strstr(state, "ACTIVE") != NULL;
}

static void add_ports(const char *infiniband, const char *card, char *devices)
{
    char path[PATH_MAX], device[64];
    snprintf(path, sizeof path, "%s/%s/ports", infiniband, card);
    DIR *ports = opendir(path);
    if (ports == NULL) return;
    for (const struct dirent *port; (port = readdir(ports)) != NULL;) {
        if (port->d_name[0] == '.' || !is_active(infiniband, card, port->d_name)) continue;
        if (snprintf(device, sizeof device, "%s:%s", card, port->d_name) < (int)sizeof device)
            add_device(devices, device, ',');
    }
    closedir(ports);
}

static void add_cards(const char *infiniband, char *devices)
{
    DIR *cards = opendir(infiniband);
    if (cards == NULL) return;
    for (const struct dirent *card; (card = readdir(cards)) != NULL;)
        if (card->d_name[0] != '.') add_ports(infiniband, card->d_name, devices);
    closedir(cards);
}

void fabric_choose(const struct fabric_place *places, size_t count, const char *infiniband,
                   struct choice *out)
{
    struct route route;
    *out = (struct choice) { .transports = NULL };
    for (size_t i = 0; i < count && out->transports == NULL; i++) {
        if (!fabric_transports_have_cards(places[i].transports)) continue;
        add_cards(infiniband, out->devices);
        if (out->devices[0] != '\0') out->transports = places[i].transports;
    }
    const char between = out->transports != NULL ? ',' : ';';
    for (size_t i = 0; i < count; i++)
        if (route_find(places[i].ip, &route)) add_device(out->devices, route.device, between);
}

/* ---- with an address ---- */

/* The address of a fabric between hosts consists of its own bytes, which contain their length, and its
 * places, each of them as text, the text's length as one byte, and this magic. ucx has one place. */
static const char tail_magic[8] = "CAIRNAT1";

size_t fabric_add_place(const struct fabric_place *place, uint8_t *raw, size_t bytes, size_t room)
{
    char text[CAIRN_PLACE_BYTES];
    place_print(place, text);
    const size_t length = strlen(text);
    if (room - bytes < length + 1 + sizeof tail_magic) return bytes;
    memcpy(raw + bytes, text, length);
    raw[bytes + length] = (uint8_t)length;
    memcpy(raw + bytes + length + 1, tail_magic, sizeof tail_magic);
    return bytes + length + 1 + sizeof tail_magic;
}

size_t fabric_find_place(const uint8_t *raw, size_t bytes, struct fabric_place *out)
{
    char text[CAIRN_PLACE_BYTES];
    if (bytes < 1 + sizeof tail_magic) return bytes;
    const uint8_t *magic = raw + bytes - sizeof tail_magic;
    const size_t length = magic[-1];
    if (memcmp(magic, tail_magic, sizeof tail_magic) != 0 || length >= sizeof text ||
        bytes - sizeof tail_magic - 1 < length)
        return bytes;
    memcpy(text, magic - 1 - length, length);
    text[length] = '\0';
    for (size_t i = 0; i < length; i++)
        if (text[i] < 0x20 || text[i] > 0x7e) return bytes;
    return place_parse(text, out) ? bytes - sizeof tail_magic - 1 - length : bytes;
}

/* The kinds of fabrics that listen on networks. An auto fabric may contain several ucx fabrics, each with one
 * place, and one stream and one sealed fabric, each with a place for each network. */
static const char *const network_kinds[] = { "sealed", "stream", "ucx" };

/* Finds place number *index of a fabric of this kind, or subtracts from *index the places that it has. */
static bool find_place_of(const void *address, size_t bytes, const char *kind, int *index,
                          struct fabric_place *out)
{
    size_t part_bytes, raw_bytes;
    const void *part;
    for (int n = 0; (part = fabric_find_part(address, bytes, kind, n, &part_bytes)) != NULL; n++) {
        const void *raw = fabric_open_part(part, part_bytes, kind, &raw_bytes);
        while (raw != NULL) {
            const size_t before = fabric_find_place(raw, raw_bytes, out);
            if (before == raw_bytes) break;
            if ((*index)-- == 0) return true;
            raw_bytes = before;
        }
    }
    return false;
}

bool fabric_address_place(const void *address, size_t bytes, int index, struct fabric_place *out)
{
    for (size_t i = 0; i < sizeof network_kinds / sizeof *network_kinds; i++)
        if (find_place_of(address, bytes, network_kinds[i], &index, out)) return true;
    return false;
}

void fabric_address_print_places(const void *address, size_t bytes, char out[CAIRN_PLACE_BYTES])
{
    struct fabric_place place;
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; fabric_address_place(address, bytes, i, &place); i++) {
        char one[CAIRN_PLACE_BYTES];
        place_print(&place, one);
        if (used + strlen(one) + 3 > CAIRN_PLACE_BYTES) return;
        used += (size_t)snprintf(out + used, CAIRN_PLACE_BYTES - used, "%s%s", used > 0 ? "; " : "",
                                 one);
    }
}

/* ==== address ==== */

/* The envelope around a backend's address: UCX trusts the lengths inside its own addresses and
 * aborts on nonsense, so garbage has to be refused before UCX sees it. */

/* An address is sent in this form: the envelope, then the backend's own bytes. Little endian, like all
 * hosts here. */
struct envelope {
    char magic[8];
    char kind[7];
    /* bits of enum flag; other bits belong to later versions, and are ignored here */
    uint8_t flags;
    uint64_t bytes;    /* the size of the address that follows */
    uint64_t checksum; /* XXH3-64 of the address, seeded with the address's size, plus the flags */
};
static_assert(sizeof(struct envelope) == 32, "wire format");
/* The number in this magic grows with every property that two ends must share. Since 2, UCX's segments are
 * 256 KiB; a segment that is longer than the receiver's segments aborts the receiver. Since 3, small
 * messages are sent over UCX in bundles. */
static const char envelope_magic[8] = "CAIRNFA3";
enum flag { FLAG_ONE_SIDED = 1 }; /* the owner may read, and be read, one-sidedly */

/* Writes the kind as 7 bytes, padded with NUL. The names of all backends are shorter. */
static void write_kind(const char *kind, char kind_out[7])
{
    memset(kind_out, 0, 7);
    memcpy(kind_out, kind, strnlen(kind, 7));
}

uint64_t fabric_hash(const void *bytes, size_t count)
{
    return XXH3_64bits_withSeed(bytes, count, count);
}

cairn_status fabric_set_address(struct fabric *fabric, const void *raw, size_t bytes)
{
    struct envelope envelope = { .bytes = bytes, .checksum = fabric_hash(raw, bytes) };
    if (bytes > sizeof fabric->address - sizeof envelope) return CAIRN_ERR_UNSUPPORTED;
    memcpy(envelope.magic, envelope_magic, sizeof envelope.magic);
    write_kind(fabric->backend->kind, envelope.kind);
    envelope.flags = fabric->is_one_sided ? FLAG_ONE_SIDED : 0;
    envelope.checksum += envelope.flags;
    memcpy(fabric->address, &envelope, sizeof envelope);
    memcpy(fabric->address + sizeof envelope, raw, bytes);
    fabric->address_bytes = sizeof envelope + bytes;
    return CAIRN_OK;
}

/* Validates an address, writes its envelope, and returns the bytes inside. NULL: the address is invalid. */
static const uint8_t *open_envelope(const uint8_t *address, size_t bytes,
                                    struct envelope *envelope_out)
{
    struct envelope envelope;
    if (bytes <= sizeof envelope || bytes > CAIRN_FABRIC_ADDRESS_MAX) return NULL;
    memcpy(&envelope, address, sizeof envelope);
    const uint8_t *raw = address + sizeof envelope;
    if (memcmp(envelope.magic, envelope_magic, sizeof envelope.magic) != 0 ||
        envelope.bytes != bytes - sizeof envelope ||
        envelope.checksum != fabric_hash(raw, envelope.bytes) + envelope.flags)
        return NULL;
    *envelope_out = envelope;
    return raw;
}

const void *fabric_find_part(const void *address, size_t bytes, const char *of_kind, int index,
                             size_t *part_bytes_out)
{
    static const char several[7] = "auto";
    struct envelope part;
    char kind[sizeof part.kind];
    write_kind(of_kind, kind);
    const uint8_t *at = open_envelope(address, bytes, &part);
    if (at == NULL) return NULL;
    // the address has no parts inside: it counts as one part, the whole address
    if (memcmp(part.kind, several, sizeof several) != 0) {
        *part_bytes_out = bytes;
        return memcmp(part.kind, kind, sizeof kind) == 0 && index == 0 ? address : NULL;
    }
    bytes = part.bytes;
    while (bytes > sizeof part) {
        memcpy(&part, at, sizeof part);
        if (part.bytes > bytes - sizeof part) return NULL;
        const size_t part_bytes = sizeof part + part.bytes;
        if (open_envelope(at, part_bytes, &part) == NULL) return NULL;
        if (memcmp(part.kind, kind, sizeof part.kind) == 0 && index-- == 0) {
            *part_bytes_out = part_bytes;
            return at;
        }
        at += part_bytes;
        bytes -= part_bytes;
    }
    return NULL;
}

const void *fabric_open_part(const void *address, size_t bytes, const char *of_kind,
                             size_t *raw_bytes_out)
{
    struct envelope envelope;
    size_t part_bytes;
    const void *part = fabric_find_part(address, bytes, of_kind, 0, &part_bytes);
    if (part == NULL) return NULL;
    const void *raw = open_envelope(part, part_bytes, &envelope);
    *raw_bytes_out = envelope.bytes;
    return raw;
}

const void *fabric_open_address(const struct fabric *fabric, const void *address, size_t bytes,
                                size_t *raw_bytes_out)
{
    return fabric_open_part(address, bytes, fabric->backend->kind, raw_bytes_out);
}

const char *fabric_address_kind(const void *address, size_t bytes)
{
    static const char *const kinds[] = { "auto", "mapped", "sealed", "stream", "ucx", "mem" };
    struct envelope envelope;
    if (open_envelope(address, bytes, &envelope) == NULL) return "";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strncmp(envelope.kind, kinds[i], sizeof envelope.kind) == 0) return kinds[i];
    return "";
}

static bool fabric_address_imports(const void *address, size_t bytes);

const char *fabric_address_ways(const void *address, size_t bytes)
{
    struct envelope envelope;
    const char *kind = fabric_address_kind(address, bytes);
    if (open_envelope(address, bytes, &envelope) == NULL) return kind;
    const bool reads = (envelope.flags & FLAG_ONE_SIDED) != 0;
    const bool imports = fabric_address_imports(address, bytes);
    if (strcmp(kind, "mapped") == 0) return imports ? "mapped, device" : kind;
    if (strcmp(kind, "auto") != 0) return reads ? "ucx, one-sided" : kind;
    if (imports) return reads ? "auto, one-sided, device" : "auto, device";
    return reads ? "auto, one-sided" : kind;
}

const void *fabric_own_address(const struct fabric *fabric, size_t *bytes_out)
{
    *bytes_out = fabric->address_bytes;
    return fabric->address;
}

/* ==== mapped host ==== */

/* Identifies this host, so that we neither map peers on another host nor try to. */

bool fabric_host_is_name(const char *host)
{
    const size_t length = strnlen(host, CAIRN_FABRIC_HOST_BYTES);
    for (size_t i = 0; i < length; i++)
        if (host[i] <= 0x20 || host[i] >= 0x7f) return false;
    return length > 0 && length < CAIRN_FABRIC_HOST_BYTES;
}

/* Finds the part by the name of the kind, not by fabric_mapped: a program that only reads
 * addresses, as the coordinator does, links no fabric, and so loads no UCX. */
static bool find_mapped(const void *address, size_t bytes, struct mapped_address *out)
{
    size_t raw_bytes;
    const void *raw = fabric_open_part(address, bytes, "mapped", &raw_bytes);
    if (raw == NULL || raw_bytes != sizeof *out) return false;
    memcpy(out, raw, sizeof *out);
    return true;
}

/* True if the owner of this address imports memory of some card. */
static bool fabric_address_imports(const void *address, size_t bytes)
{
    struct mapped_address mapped;
    return find_mapped(address, bytes, &mapped) && mapped.cards.count > 0;
}

bool fabric_address_host(const void *address, size_t bytes, char *out, size_t out_bytes)
{
    struct mapped_address mapped;
    if (!find_mapped(address, bytes, &mapped)) return false;
    if (!fabric_host_is_name(mapped.host)) return false;
    const size_t length = strlen(mapped.host);
    if (length >= out_bytes) return false;
    memcpy(out, mapped.host, length + 1);
    return true;
}

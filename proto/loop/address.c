#include "proto/loop/loop.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

_Static_assert(CAIRN_ADDRESS_PATH_BYTES + 1 < sizeof((struct sockaddr_un *)0)->sun_path,
               "a path and one byte more fit, with a NUL");

static cairn_status bad_address(const char *text, const char *what, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_INVALID,
                     "\"%.200s\" is not an address: %s; write host:port, [v6 address]:port or the "
                     "/path of a socket",
                     text, what);
}

static cairn_status parse_unix(const char *text, const char *path, struct stream_address *address,
                               struct sentence *why)
{
    char what[96];
    if (path[0] != '/') return bad_address(text, "the path of a socket must begin with /", why);
    if (strlen(path) > CAIRN_ADDRESS_PATH_BYTES) {
        snprintf(what, sizeof what, "its path has %zu bytes, a socket's may have %d", strlen(path),
                 CAIRN_ADDRESS_PATH_BYTES);
        return bad_address(text, what, why);
    }
    address->is_unix = true;
    memcpy(address->host, path, strlen(path) + 1);
    return CAIRN_OK;
}

// Decimal digits only, 0..65535; strtol would take " +7".
static int parse_port(const char *text, uint16_t *port_out)
{
    uint32_t port = 0;
    if (text[0] == '\0' || strlen(text) > 5) return -1;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p < '0' || *p > '9') return -1;
        port = port * 10 + (uint32_t)(*p - '0');
    }
    if (port > UINT16_MAX) return -1;
    *port_out = (uint16_t)port;
    return 0;
}

cairn_status address_parse(const char *text, struct stream_address *address_out,
                           struct sentence *why)
{
    struct stream_address address = { 0 };
    const bool is_named = strncmp(text, "unix:", 5) == 0;
    if (is_named || text[0] == '/') {
        const cairn_status status = parse_unix(text, text + (is_named ? 5 : 0), &address, why);
        if (status == CAIRN_OK) *address_out = address;
        return status;
    }
    const char *colon = strrchr(text, ':');
    if (colon == NULL) return bad_address(text, "there is no port", why);
    if (parse_port(colon + 1, &address.port) != 0)
        return bad_address(text, "the port must be a number from 0 to 65535", why);
    const char *host = text;
    size_t host_bytes = (size_t)(colon - text);
    if (host_bytes >= 2 && host[0] == '[' && host[host_bytes - 1] == ']') {
        host++;
        host_bytes -= 2;
    } else if (memchr(host, ':', host_bytes) != NULL) {
        return bad_address(text, "a v6 address stands in brackets", why);
    }
    if (host_bytes == 0) return bad_address(text, "there is no host", why);
    if (host_bytes == 1 && host[0] == '*')
        return bad_address(text, "* stands for every address to listen on; name one to connect to",
                           why);
    if (host_bytes >= sizeof address.host) return bad_address(text, "the host is too long", why);
    memcpy(address.host, host, host_bytes);
    *address_out = address;
    return CAIRN_OK;
}

cairn_status address_parse_listen(const char *text, struct stream_address *address_out,
                                  struct sentence *why)
{
    char all[16];
    if (strncmp(text, "*:", 2) != 0 || strlen(text) > 7)
        return address_parse(text, address_out, why);
    snprintf(all, sizeof all, "0.0.0.0%s", text + 1);
    return address_parse(all, address_out, why);
}

void address_print(const struct stream_address *address, char text_out[CAIRN_ADDRESS_TEXT_BYTES])
{
    const char *format = strchr(address->host, ':') != NULL ? "[%s]:%u" : "%s:%u";
    if (address->is_unix)
        snprintf(text_out, CAIRN_ADDRESS_TEXT_BYTES, "%s", address->host);
    else
        snprintf(text_out, CAIRN_ADDRESS_TEXT_BYTES, format, address->host, address->port);
}

static cairn_status parse_endpoint(const char *text, size_t bytes, struct stream_address *out,
                                   struct sentence *why)
{
    char one[CAIRN_ADDRESS_TEXT_BYTES];
    if (bytes >= sizeof one) return bad_address(text, "it is too long", why);
    snprintf(one, sizeof one, "%.*s", (int)bytes, text);
    CAIRN_TRY(address_parse(one, out, why));
    if (out->is_unix || out->port != 0) return CAIRN_OK;
    return bad_address(one, "a port to connect to is from 1 to 65535", why);
}

cairn_status endpoints_parse(const char *text, struct endpoints *endpoints_out,
                             struct sentence *why)
{
    struct endpoints endpoints = { .count = 0 };
    for (const char *at = text;; at++) {
        at += strspn(at, " ");
        size_t bytes = strcspn(at, ",");
        const char *end = at + bytes;
        while (bytes > 0 && at[bytes - 1] == ' ') bytes--;
        if (endpoints.count == CAIRN_ENDPOINTS_MAX)
            return fail_with(why, CAIRN_ERR_INVALID, "\"%.200s\" has more than %d addresses", text,
                             CAIRN_ENDPOINTS_MAX);
        CAIRN_TRY(parse_endpoint(at, bytes, &endpoints.list[endpoints.count++], why));
        at = end;
        if (*at == '\0') break;
    }
    *endpoints_out = endpoints;
    return CAIRN_OK;
}

void endpoints_print(const struct endpoints *endpoints, char text_out[CAIRN_ENDPOINTS_TEXT_BYTES])
{
    size_t used = 0;
    text_out[0] = '\0';
    for (size_t i = 0; i < endpoints->count; i++) {
        char one[CAIRN_ADDRESS_TEXT_BYTES];
        address_print(&endpoints->list[i], one);
        if (used + strlen(one) + 2 > CAIRN_ENDPOINTS_TEXT_BYTES) break;
        used += (size_t)snprintf(text_out + used, CAIRN_ENDPOINTS_TEXT_BYTES - used, "%s%s",
                                 i > 0 ? "," : "", one);
    }
}

const struct stream_address *endpoints_next(struct endpoints *endpoints)
{
    return &endpoints->list[endpoints->tried++ % endpoints->count];
}

bool endpoints_are_tried(const struct endpoints *endpoints)
{
    return endpoints->tried % endpoints->count == 0;
}

#define ENDPOINT_PATIENCE_MS 1500

uint64_t endpoints_patience_ms(const struct endpoints *endpoints, uint64_t timeout_ms)
{
    return endpoints->count > 1 && timeout_ms > ENDPOINT_PATIENCE_MS ? ENDPOINT_PATIENCE_MS
                                                                     : timeout_ms;
}

static void fill_unix(const char *path, struct sockaddr_storage *addr_out)
{
    struct sockaddr_un *addr = (struct sockaddr_un *)addr_out;
    memset(addr_out, 0, sizeof *addr_out);
    addr->sun_family = AF_UNIX;
    memcpy(addr->sun_path, path, strnlen(path, CAIRN_ADDRESS_PATH_BYTES));
}

socklen_t address_socket_bytes(const struct sockaddr_storage *addr)
{
    switch (addr->ss_family) {
    case AF_UNIX: return sizeof(struct sockaddr_un);
    case AF_INET: return sizeof(struct sockaddr_in);
    default: return sizeof(struct sockaddr_in6);
    }
}

static void take(const struct addrinfo *item, struct socket_addresses *addresses)
{
    if (item->ai_family != AF_INET && item->ai_family != AF_INET6) return;
    if (addresses->count == CAIRN_SOCKET_ADDRESSES_MAX) return;
    memcpy(&addresses->list[addresses->count++], item->ai_addr, item->ai_addrlen);
}

static bool are_loopback(const struct addrinfo *found)
{
    for (; found != NULL; found = found->ai_next) {
        struct sockaddr_storage addr = { 0 };
        memcpy(&addr, found->ai_addr, found->ai_addrlen);
        if (!address_is_loopback(&addr)) return false;
    }
    return true;
}

void address_take(const struct addrinfo *found, struct socket_addresses *addresses_out)
{
    const bool is_v4_first = are_loopback(found);
    *addresses_out = (struct socket_addresses) { .count = 0 };
    for (const struct addrinfo *item = found; item != NULL; item = item->ai_next)
        if (!is_v4_first || item->ai_family == AF_INET) take(item, addresses_out);
    for (const struct addrinfo *item = found; item != NULL; item = item->ai_next)
        if (is_v4_first && item->ai_family != AF_INET) take(item, addresses_out);
}

const struct sockaddr_storage *address_to_listen(const struct socket_addresses *addresses)
{
    for (size_t i = 0; i < addresses->count; i++)
        if (addresses->list[i].ss_family == AF_INET) return &addresses->list[i];
    return &addresses->list[0];
}

#define PATIENCE_MAX_MS 500

uint64_t address_patience_ms(size_t count, uint64_t timeout_ms)
{
    const uint64_t fair = timeout_ms / (count + 1);
    return fair < PATIENCE_MAX_MS ? fair : PATIENCE_MAX_MS;
}

cairn_status address_resolve(const struct stream_address *address,
                             struct socket_addresses *addresses_out, struct sentence *why)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
    struct addrinfo *found = NULL;
    char port[8];
    if (address->is_unix) {
        fill_unix(address->host, &addresses_out->list[0]);
        addresses_out->count = 1;
        return CAIRN_OK;
    }
    snprintf(port, sizeof port, "%u", address->port);
    const int error = getaddrinfo(address->host, port, &hints, &found);
    if (error != 0)
        return fail_with(why, CAIRN_ERR_UNREACHABLE, "there is no host \"%.200s\": %s",
                         address->host, gai_strerror(error));
    struct socket_addresses addresses;
    address_take(found, &addresses);
    freeaddrinfo(found);
    if (addresses.count == 0)
        return fail_with(why, CAIRN_ERR_UNREACHABLE, "\"%.200s\" has no IPv4 or IPv6 address",
                         address->host);
    *addresses_out = addresses;
    return CAIRN_OK;
}

void address_default(const char *runtime_dir, char text_out[CAIRN_ADDRESS_TEXT_BYTES])
{
    const bool is_own = runtime_dir != NULL && runtime_dir[0] != '\0';
    snprintf(text_out, CAIRN_ADDRESS_TEXT_BYTES, "%s/cairn/coordinator.sock",
             is_own ? runtime_dir : "/run");
}

static bool is_socket(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

bool address_find(const char *runtime_dir, char text_out[CAIRN_ADDRESS_TEXT_BYTES])
{
    char system[CAIRN_ADDRESS_TEXT_BYTES];
    address_default(NULL, system);
    address_default(runtime_dir, text_out);
    if (is_socket(text_out) || !is_socket(system)) return strcmp(text_out, system) != 0;
    memcpy(text_out, system, sizeof system);
    return false;
}

bool address_is_loopback(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)addr;
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    if (addr->ss_family != AF_INET6) return false;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)addr)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

bool address_names_loopback(const char *host)
{
    struct sockaddr_storage addr = { .ss_family = AF_INET };
    struct sockaddr_in *v4 = (struct sockaddr_in *)&addr;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&addr;
    if (strcmp(host, "localhost") == 0) return true;
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) return address_is_loopback(&addr);
    addr.ss_family = AF_INET6;
    return inet_pton(AF_INET6, host, &v6->sin6_addr) == 1 && address_is_loopback(&addr);
}

void address_print_socket(const struct sockaddr_storage *addr,
                          char text_out[CAIRN_ADDRESS_TEXT_BYTES])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)addr;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(text_out, CAIRN_ADDRESS_TEXT_BYTES, "%s:%u", host, ntohs(v4->sin_port));
    } else if (addr->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)addr;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(text_out, CAIRN_ADDRESS_TEXT_BYTES, "[%s]:%u", host, ntohs(v6->sin6_port));
    } else {
        snprintf(text_out, CAIRN_ADDRESS_TEXT_BYTES, "?");
    }
}

/* ==== entrance ==== */

cairn_status entrance_find(struct entrance *entrance, const struct stream_address *address,
                           const char *given, const char *fallback, struct sentence *why)
{
    char text[CAIRN_ADDRESS_TEXT_BYTES];
    struct token token;
    struct sentence inner = { "" };
    entrance->is_needed = !address->is_unix;
    if (address->is_unix) return CAIRN_OK;
    const cairn_status status = token_find(given, fallback, &token, &inner);
    address_print(address, text);
    if (status == CAIRN_ERR_NOT_FOUND)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%s is reached over TCP, which takes a token of that cluster; %s", text,
                         inner.text);
    if (status != CAIRN_OK) return fail_with(why, status, "%s", inner.text);
    if (!entrance->has_key) curve_key_make(&entrance->key);
    entrance->has_key = true;
    entrance->token = token;
    sodium_memzero(&token, sizeof token);
    return CAIRN_OK;
}

const struct handshake_options *entrance_secure(const struct entrance *entrance,
                                                struct handshake_options *options_out)
{
    if (!entrance->is_needed) return NULL;
    *options_out = handshake_by_token(&entrance->token, &entrance->key);
    return options_out;
}

void entrance_wipe(struct entrance *entrance)
{
    sodium_memzero(entrance, sizeof *entrance);
}

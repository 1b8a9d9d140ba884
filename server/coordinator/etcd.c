#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef CAIRN_CURL
#include <curl/curl.h>
#include <dlfcn.h>
#endif

#include "server/coordinator/lead.h"

#define ANSWER_BYTES_MAX  ((size_t)32 << 20)
#define CODE_REFUSED      7 /* numbers of gRPC, which the gateway passes on */
#define CODE_FULL         8
#define CODE_NOT_FOUND    5
#define CODE_INVALID      3
#define CODE_PRECONDITION 9
#define CODE_OUT_OF_RANGE 11
#define CODE_NOT_BUILT    12
#define CODE_UNKNOWN_USER 16

#ifdef CAIRN_CURL

/* ==== libcurl ==== */

/* The library is opened when a store in etcd is asked for. Else no coordinator would have the two dozen
 * libraries that it brings along. */

#define CURL_CALLS(X) \
    X(global_init)    \
    X(easy_init)      \
    X(easy_reset)     \
    X(easy_setopt)    \
    X(easy_perform)   \
    X(easy_getinfo)   \
    X(easy_strerror)  \
    X(easy_cleanup)   \
    X(slist_append)   \
    X(slist_free_all)

#define AS_FIELD(call) __typeof__(&curl_##call) call;
static struct curl {
    CURL_CALLS(AS_FIELD)
} curl;
#undef AS_FIELD

/* Opens the library once. Must be called while there is one thread. */
static cairn_status open_curl(struct sentence *why)
{
    if (curl.global_init != NULL) return CAIRN_OK;
    void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL)
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "a store in etcd is asked by libcurl, which is not here (%s): install it "
                         "(Debian: libcurl4, or libcurl4t64)",
                         dlerror());
    struct curl found;
    bool has_all = true;
#define FIND(call)                                                 \
    do {                                                           \
        void *at = dlsym(library, "curl_" #call);                  \
        memcpy(&found.call, &at, sizeof at); /* as ISO C has it */ \
        has_all = has_all && at != NULL;                           \
    } while (0);
    CURL_CALLS(FIND)
#undef FIND
    if (!has_all || found.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return fail_with(why, CAIRN_ERR_CONFIG, "libcurl.so.4 does not start: install another one");
    curl = found;
    return CAIRN_OK;
}

#endif

/* ==== options ==== */

static cairn_status bad_url(const char *url, const char *what, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_CONFIG,
                     "store.url is \"%.300s\": %s; write etcd://HOST:PORT[,HOST:PORT...][/PREFIX], "
                     "or etcds:// for TLS",
                     url, what);
}

static cairn_status read_endpoints(struct etcd *etcd, const char *url, const char *list,
                                   size_t list_bytes, struct sentence *why)
{
    struct sentence inner = { "" };
    for (size_t at = 0; at <= list_bytes;) {
        char one[CAIRN_ADDRESS_TEXT_BYTES];
        const size_t left = list_bytes - at, bytes = strcspn(list + at, ",");
        const size_t one_bytes = bytes < left ? bytes : left;
        if (etcd->endpoint_count == CAIRN_ETCD_ENDPOINTS_MAX)
            return bad_url(url, "it has more than 8 endpoints", why);
        struct stream_address *address = &etcd->endpoints[etcd->endpoint_count++];
        snprintf(one, sizeof one, "%.*s", (int)one_bytes, list + at);
        if (address_parse(one, address, &inner) != CAIRN_OK) return bad_url(url, inner.text, why);
        if (address->is_unix || address->port == 0)
            return bad_url(url, "an endpoint is HOST:PORT with a port from 1 to 65535", why);
        at += one_bytes + 1;
    }
    return CAIRN_OK;
}

static cairn_status read_prefix(struct etcd *etcd, const char *url, const char *prefix,
                                struct sentence *why)
{
    const char *name = *prefix != '\0' ? prefix + 1 : "cairn";
    const size_t bytes = strlen(name);
    if (bytes == 0 || bytes + 2 > sizeof etcd->prefix || name[bytes - 1] == '/' ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") != bytes)
        return bad_url(url, "a prefix has up to 126 letters, digits and ._-/, and no / at its end",
                       why);
    snprintf(etcd->prefix, sizeof etcd->prefix, "/%s", name);
    return CAIRN_OK;
}

/* Rows have keys and tokens in them, so they go in clear only where the operator trusts the network. */
static cairn_status judge_network(const struct etcd *etcd, bool is_trusted, struct sentence *why)
{
    for (size_t i = 0; i < etcd->endpoint_count && !etcd->is_secure && !is_trusted; i++)
        if (!address_names_loopback(etcd->endpoints[i].host))
            return fail_with(
                why, CAIRN_ERR_CONFIG,
                "store.url: %s would be reached without TLS, and whoever reads the network "
                "would have this cluster's keys; write etcds://, or store.trust = yes if "
                "nobody else is on that network",
                etcd->endpoints[i].host);
    return CAIRN_OK;
}

static cairn_status read_url(struct etcd *etcd, const char *url, struct sentence *why)
{
    static const struct {
        const char *text;
        bool is_secure;
    } schemes[] = { { "etcd://", false }, { "etcds://", true } };
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        const size_t bytes = strlen(schemes[i].text);
        if (strncmp(url, schemes[i].text, bytes) != 0) continue;
        const char *list = url + bytes;
        const size_t list_bytes = strcspn(list, "/");
        etcd->is_secure = schemes[i].is_secure;
        snprintf(etcd->name, sizeof etcd->name, "%s", url);
        CAIRN_TRY(read_endpoints(etcd, url, list, list_bytes, why));
        return read_prefix(etcd, url, list + list_bytes, why);
    }
    return bad_url(url, "it is no store that this program knows", why);
}

static cairn_status bad_credentials(const char *path, const char *what, struct sentence *why)
{
    return fail_with(
        why, CAIRN_ERR_CONFIG,
        "store.credentials, %.300s: %s; write USER:PASSWORD of etcd into a file of mode "
        "0600",
        path, what);
}

static cairn_status read_credentials(struct etcd *etcd, const char *path, struct sentence *why)
{
    char text[sizeof etcd->user + sizeof etcd->password];
    struct stat info;
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return bad_credentials(path, strerror(errno), why);
    const bool is_file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    const ssize_t got = is_file && (info.st_mode & 0077) == 0
                            ? read_fully(fd, text, sizeof text - 1)
                            : -1;
    close(fd);
    if (!is_file) return bad_credentials(path, "it is no file", why);
    if (got < 0) return bad_credentials(path, "other users may read it", why);
    text[got] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    char *colon = strchr(text, ':');
    const bool fits = colon != NULL && colon > text && colon[1] != '\0' &&
                      (size_t)(colon - text) < sizeof etcd->user &&
                      strlen(colon + 1) < sizeof etcd->password;
    if (fits) {
        snprintf(etcd->user, sizeof etcd->user, "%.*s", (int)(colon - text), text);
        snprintf(etcd->password, sizeof etcd->password, "%s", colon + 1);
    }
    sodium_memzero(text, sizeof text);
    return fits ? CAIRN_OK : bad_credentials(path, "there is no USER:PASSWORD in it", why);
}

cairn_status etcd_init(struct etcd *etcd, const struct coord_options *options, struct sentence *why)
{
    const char *credentials = options->store_credentials;
    memset(etcd, 0, sizeof *etcd);
#ifndef CAIRN_CURL
    return fail_with(
        why, CAIRN_ERR_CONFIG,
        "store.url is \"%.300s\", and this program was built without libcurl, by which it "
        "would ask etcd: build it where libcurl is (Debian: libcurl4-openssl-dev)",
        options->store_url);
#else
    CAIRN_TRY(open_curl(why));
#endif
    CAIRN_TRY(read_url(etcd, options->store_url, why));
    CAIRN_TRY(judge_network(etcd, options->store_trust, why));
    etcd->ca = options->store_ca;
    return credentials[0] != '\0' ? read_credentials(etcd, credentials, why) : CAIRN_OK;
}

/* ==== requests ==== */

#ifdef CAIRN_CURL

struct answer {
    char *text; /* owned */
    size_t bytes;
};

static size_t on_bytes(char *bytes, size_t one, size_t count, void *context)
{
    struct answer *answer = context;
    (void)one; // always 1
    if (count > ANSWER_BYTES_MAX - answer->bytes) return 0;
    char *grown = realloc(answer->text, answer->bytes + count + 1);
    if (grown == NULL) return 0;
    memcpy(grown + answer->bytes, bytes, count);
    answer->text = grown;
    answer->bytes += count;
    grown[answer->bytes] = '\0';
    return count;
}

static void set_up(struct etcd *etcd)
{
    CURL *easy = etcd->curl;
    curl.easy_reset(easy);
    curl.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl.easy_setopt(easy, CURLOPT_PROXY, ""); // nobody's variable sends the keys elsewhere
    curl.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, etcd->is_secure ? "https" : "http");
    curl.easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl.easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl.easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes);
    if (etcd->ca[0] != '\0') curl.easy_setopt(easy, CURLOPT_CAINFO, etcd->ca);
}

/* Posts the text to the endpoint. Returns what curl says, and sets the status of HTTP. */
static CURLcode post(struct etcd *etcd, const char *path, const char *text, long timeout_ms,
                     struct answer *answer, long *http_out)
{
    char place[CAIRN_ADDRESS_TEXT_BYTES], url[sizeof place + 64], line[sizeof etcd->token + 32];
    address_print(&etcd->endpoints[etcd->endpoint], place);
    snprintf(url, sizeof url, "http%s://%s%s", etcd->is_secure ? "s" : "", place, path);
    snprintf(line, sizeof line, "Authorization: %s", etcd->token);
    struct curl_slist *headers = curl.slist_append(NULL, "Content-Type: application/json");
    if (etcd->token[0] != '\0') headers = curl.slist_append(headers, line);
    set_up(etcd);
    curl.easy_setopt(etcd->curl, CURLOPT_URL, url);
    curl.easy_setopt(etcd->curl, CURLOPT_HTTPHEADER, headers);
    curl.easy_setopt(etcd->curl, CURLOPT_POSTFIELDS, text);
    curl.easy_setopt(etcd->curl, CURLOPT_TIMEOUT_MS, timeout_ms);
    curl.easy_setopt(etcd->curl, CURLOPT_WRITEDATA, answer);
    const CURLcode code = curl.easy_perform(etcd->curl);
    curl.easy_getinfo(etcd->curl, CURLINFO_RESPONSE_CODE, http_out);
    curl.slist_free_all(headers);
    return code;
}

static cairn_status judge_code(const struct etcd *etcd, CURLcode code, struct sentence *why)
{
    char place[CAIRN_ADDRESS_TEXT_BYTES];
    address_print(&etcd->endpoints[etcd->endpoint], place);
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE)
        return fail_with(
            why, CAIRN_ERR_REFUSED,
            "etcd at %s is not believed: %s; name the file of the authority that signed "
            "its certificate in store.ca",
            place, curl.easy_strerror(code));
    if (code == CURLE_OUT_OF_MEMORY)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a request to etcd");
    return fail_with(why, CAIRN_ERR_UNREACHABLE, "etcd at %s does not answer: %s", place,
                     curl.easy_strerror(code));
}

/* True if a request that ended with this code of gRPC was not carried out. With any other code it may have
 * been: "canceled" is said by a member that stops behind its commit. */
static bool is_refusal(json_int_t code)
{
    static const int refusals[] = { CODE_INVALID,   CODE_NOT_FOUND,    CODE_REFUSED,
                                    CODE_FULL,      CODE_PRECONDITION, CODE_OUT_OF_RANGE,
                                    CODE_NOT_BUILT, CODE_UNKNOWN_USER };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        if (code == refusals[i]) return true;
    return false;
}

/* Judges what etcd refused. `code` is of gRPC. */
static cairn_status judge_refusal(const struct etcd *etcd, json_int_t code, const char *text,
                                  struct sentence *why)
{
    if (code == CODE_FULL && strstr(text, "space") != NULL)
        return fail_with(
            why, CAIRN_ERR_NO_SPACE,
            "%s is full (%s) and takes nothing more: compact and defragment it, or raise "
            "its quota, then `etcdctl alarm disarm`",
            etcd->name, text);
    if (code == CODE_REFUSED || code == CODE_UNKNOWN_USER || strstr(text, "user name is empty") ||
        strstr(text, "authentication failed"))
        return fail_with(
            why, CAIRN_ERR_REFUSED,
            "%s refused user \"%s\": %s; store.credentials names the file with user and "
            "password, and the user's role must read and write %s/",
            etcd->name, etcd->user, text, etcd->prefix);
    if (!is_refusal(code))
        return fail_with(why, CAIRN_ERR_UNREACHABLE,
                         "%s answers that it cannot (%s): do most of its members run?", etcd->name,
                         text);
    return fail_with(why, CAIRN_ERR_IO, "%s: %s", etcd->name, text);
}

static cairn_status read_answer(struct etcd *etcd, const struct answer *answer, long http,
                                json_t **answer_out, struct sentence *why)
{
    const char *text = answer->text != NULL ? answer->text : "";
    json_t *json = json_loads(text, JSON_ALLOW_NUL | JSON_DISABLE_EOF_CHECK, NULL);
    cairn_status status = CAIRN_OK;
    if (!json_is_object(json)) {
        // an answer that is cut off, or a proxy's word about a member that is gone
        const bool is_lost = http == 200 || http >= 500;
        etcd->may_be_made = etcd->may_be_made || is_lost;
        status = fail_with(
            why, is_lost ? CAIRN_ERR_UNREACHABLE : CAIRN_ERR_IO,
            "%s answered HTTP %ld and no JSON: is it an etcd of version 3.4 or newer?", etcd->name,
            http);
    } else if (http != 200) {
        const json_int_t code = json_integer_value(json_object_get(json, "code"));
        const char *said = json_string_value(json_object_get(json, "error"));
        if (said == NULL) said = json_string_value(json_object_get(json, "message"));
        etcd->may_be_made = etcd->may_be_made || !is_refusal(code);
        status = judge_refusal(etcd, code, said != NULL ? said : "it said no more", why);
    }
    if (status != CAIRN_OK)
        json_decref(json);
    else
        *answer_out = json;
    return status;
}

static cairn_status ask_one(struct etcd *etcd, const char *path, const char *text, long timeout_ms,
                            json_t **answer_out, struct sentence *why)
{
    struct answer answer = { 0 };
    long http = 0;
    if (etcd->curl == NULL) etcd->curl = curl.easy_init();
    if (etcd->curl == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for etcd");
    const CURLcode code = post(etcd, path, text, timeout_ms, &answer, &http);
    const bool is_unsent = code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST ||
                           code == CURLE_PEER_FAILED_VERIFICATION ||
                           code == CURLE_SSL_CACERT_BADFILE;
    etcd->may_be_made = etcd->may_be_made || (code != CURLE_OK && !is_unsent);
    const cairn_status status = code != CURLE_OK
                                    ? judge_code(etcd, code, why)
                                    : read_answer(etcd, &answer, http, answer_out, why);
    if (answer.text != NULL) sodium_memzero(answer.text, answer.bytes); // it may have secrets
    free(answer.text);
    return status;
}

static void close_curl(struct etcd *etcd)
{
    if (etcd->curl != NULL) curl.easy_cleanup(etcd->curl);
    etcd->curl = NULL;
}

#else

static cairn_status ask_one(struct etcd *etcd, const char *path, const char *text, long timeout_ms,
                            json_t **answer_out, struct sentence *why)
{
    (void)path, (void)text, (void)timeout_ms, (void)answer_out;
    return fail_with(why, CAIRN_ERR_UNSUPPORTED, "%s: no libcurl", etcd->name);
}

static void close_curl(struct etcd *etcd)
{
    (void)etcd;
}

#endif

/* Asks each endpoint, from the one that answered last. */
static cairn_status ask_any(struct etcd *etcd, const char *path, const char *text, long timeout_ms,
                            json_t **answer_out, struct sentence *why)
{
    cairn_status status = CAIRN_ERR_UNREACHABLE;
    for (size_t i = 0; i < etcd->endpoint_count && status == CAIRN_ERR_UNREACHABLE; i++) {
        status = ask_one(etcd, path, text, timeout_ms, answer_out, why);
        if (status == CAIRN_ERR_UNREACHABLE)
            etcd->endpoint = (etcd->endpoint + 1) % etcd->endpoint_count;
    }
    return status;
}

static char *print_json(json_t *request)
{
    char *text = request != NULL ? json_dumps(request, JSON_COMPACT) : NULL;
    json_decref(request);
    return text;
}

static void wipe_text(char *text)
{
    sodium_memzero(text, strlen(text));
    free(text);
}

/* Gets a token for the user. */
static cairn_status sign_in(struct etcd *etcd, long timeout_ms, struct sentence *why)
{
    json_t *answer = NULL;
    char *text = print_json(
        json_pack("{s:s, s:s}", "name", etcd->user, "password", etcd->password));
    if (text == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for etcd");
    etcd->token[0] = '\0';
    const cairn_status status = ask_any(etcd, "/v3/auth/authenticate", text, timeout_ms, &answer,
                                        why);
    wipe_text(text);
    if (status != CAIRN_OK) return status;
    const char *token = json_string_value(json_object_get(answer, "token"));
    const bool fits = token != NULL && strlen(token) < sizeof etcd->token;
    snprintf(etcd->token, sizeof etcd->token, "%s", fits ? token : "");
    json_decref(answer);
    if (fits) return CAIRN_OK;
    return fail_with(
        why, CAIRN_ERR_REFUSED,
        "%s gave a token of %zu bytes or more for user \"%s\": have it give simple ones "
        "(--auth-token=simple)",
        etcd->name, sizeof etcd->token, etcd->user);
}

cairn_status etcd_ask(struct etcd *etcd, const char *path, json_t *request, long timeout_ms,
                      json_t **answer_out, struct sentence *why)
{
    char *text = print_json(request);
    if (text == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for etcd");
    const bool has_user = etcd->user[0] != '\0', had_token = etcd->token[0] != '\0';
    cairn_status status = has_user && !had_token ? sign_in(etcd, timeout_ms, why) : CAIRN_OK;
    if (status == CAIRN_OK) status = ask_any(etcd, path, text, timeout_ms, answer_out, why);
    // A token ends when it was not used for some minutes.
    if (status == CAIRN_ERR_REFUSED && has_user && had_token) {
        status = sign_in(etcd, timeout_ms, why);
        if (status == CAIRN_OK) status = ask_any(etcd, path, text, timeout_ms, answer_out, why);
    }
    wipe_text(text);
    return status;
}

void etcd_release(struct etcd *etcd)
{
    close_curl(etcd);
    sodium_memzero(etcd, sizeof *etcd);
}

/* A store in etcd, and which coordinator leads: against a real etcd, whose faults are real. */
#include <arpa/inet.h>
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/coordinator/lead.h"
#include "tests/support/cluster.h"
#include "tests/support/etcd_server.h"
#include "tests/support/now.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/suite.h"

#define WAIT_MS 40000

static struct etcd_server server;
static uv_loop_t loop;
static uv_timer_t tick; /* so that a turn of the loop ends */

/* A coordinator, as far as it has a store. */
struct candidate {
    struct coord_options options;
    struct lead *lead;
    struct coord_store *store;
    bool leads, has_led;
};
static struct candidate a, b;

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

static void on_change(enum lead_change change, void *context)
{
    struct candidate *one = context;
    one->leads = change == CAIRN_LEADS;
    one->has_led |= change == CAIRN_LED;
}

#define await(condition)                                               \
    do {                                                               \
        const int64_t end_ms = now_ms() + WAIT_MS;                     \
        while (!(condition)) {                                         \
            ck_assert_msg(now_ms() < end_ms, "never: %s", #condition); \
            uv_run(&loop, UV_RUN_ONCE);                                \
        }                                                              \
    } while (0)

static void stand(struct candidate *one)
{
    struct sentence why = { "" };
    if (one->options.name == NULL) one->options.name = wire_text("toy");
    if (one->options.store_url == NULL) one->options.store_url = server.url;
    if (one->options.store_credentials == NULL) one->options.store_credentials = wire_text("");
    if (one->options.store_ca == NULL) one->options.store_ca = wire_text("");
    if (one->options.store_from == NULL) one->options.store_from = wire_text("");
    one->options.network.listen = wire_text("nowhere");
    one->options.store_lease_ms = 2000;
    ck_assert_msg(lead_open(&one->options, &loop, on_change, one, &one->lead, &why) == CAIRN_OK,
                  "%s", why.text);
}

static void open_store(struct candidate *one)
{
    struct sentence why = { "" };
    await(one->leads);
    ck_assert_msg(store_open(scratch, lead_backing(one->lead), &one->store, &why) == CAIRN_OK, "%s",
                  why.text);
}

/* It is not opened by who leads, for that reason. */
static void expect_unopened(struct candidate *one, cairn_status status, const char *word)
{
    struct sentence why = { "" };
    await(one->leads);
    ck_assert_int_eq(store_open(scratch, lead_backing(one->lead), &one->store, &why), status);
    ck_assert_msg(strstr(why.text, word) != NULL, "%s", why.text);
}

static void end(struct candidate *one)
{
    store_close(one->store);
    lead_close(one->lead);
    memset(one, 0, sizeof *one);
    uv_run(&loop, UV_RUN_NOWAIT);
}

static void set_up(void)
{
    scratch_make();
    etcd_server_start(&server, scratch, NULL);
    uv_loop_init(&loop);
    uv_timer_init(&loop, &tick);
    uv_timer_start(&tick, on_tick, 5, 5);
}

static void tear_down(void)
{
    end(&a);
    end(&b);
    uv_close((uv_handle_t *)&tick, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    etcd_server_kill(&server);
    scratch_remove();
}

/* ---- rows ---- */

static const struct stored_shard shards[] = { { .name = "s0" }, { .name = "s1" } };

/* A job whose layout has that many bytes. */
static cairn_status put_job(struct candidate *one, uint64_t id, const char *name, size_t bytes,
                            struct sentence *why)
{
    uint8_t *layout = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) layout[i] = (uint8_t)(i * 2654435761u >> 13);
    const struct stored_job job = { .id = id,
                                    .name = name,
                                    .spec = (const uint8_t *)"spec",
                                    .spec_bytes = 4,
                                    .layout = layout,
                                    .layout_bytes = bytes,
                                    .shards = shards,
                                    .shard_count = 2,
                                    .epoch = 7 };
    const cairn_status status = store_write(one->store, CAIRN_STORE_JOB, &job, 1, why);
    free(layout);
    return status;
}

static void put(struct candidate *one, uint64_t id, const char *name, size_t bytes)
{
    struct sentence why = { "" };
    ck_assert_msg(put_job(one, id, name, bytes, &why) == CAIRN_OK, "%s", why.text);
}

static void drop(struct candidate *one, uint64_t id)
{
    const struct stored_job job = { .id = id };
    ck_assert_int_eq(store_write(one->store, CAIRN_STORE_JOB_DROP, &job, 1, NULL), CAIRN_OK);
}

struct seen {
    uint64_t jobs, shards, bytes, sum, dropped;
};

static cairn_status see_job(void *context, const void *row, struct sentence *why)
{
    const struct stored_job *job = row;
    struct seen *seen = context;
    (void)why;
    seen->jobs++;
    seen->shards += job->shard_count;
    seen->bytes += job->layout_bytes;
    for (size_t i = 0; i < job->layout_bytes; i++) seen->sum = seen->sum * 31 + job->layout[i];
    return CAIRN_OK;
}

static cairn_status see_dropped(void *context, const void *row, struct sentence *why)
{
    (void)row, (void)why;
    ((struct seen *)context)->dropped++;
    return CAIRN_OK;
}

static struct seen look(struct candidate *one)
{
    struct seen seen = { 0 };
    ck_assert_int_eq(store_each(one->store, CAIRN_STORED_JOBS, see_job, &seen, NULL), CAIRN_OK);
    ck_assert_int_eq(store_each(one->store, CAIRN_STORED_DROPPED, see_dropped, &seen, NULL),
                     CAIRN_OK);
    return seen;
}

TEST(what_a_leader_wrote_the_next_one_reads)
{
    stand(&a);
    open_store(&a);
    const struct stored_meta before = *store_meta(a.store);
    put(&a, 1, "small", 100);
    put(&a, 2, "large", 3 * CAIRN_PIECE_BYTES / 2);
    put(&a, 3, "gone", 10);
    drop(&a, 3); // with it its shards go, and a row of dropped jobs comes, by rules of the tables
    const struct seen seen = look(&a);
    ck_assert_uint_eq(seen.jobs, 2);
    ck_assert_uint_eq(seen.dropped, 1);
    end(&a);
    stand(&b);
    open_store(&b);
    const struct seen again = look(&b);
    ck_assert_mem_eq(&seen, &again, sizeof seen);
    ck_assert_uint_eq(store_meta(b.store)->identity, before.identity);
    ck_assert_uint_eq(store_meta(b.store)->incarnation, before.incarnation + 1);
}

TEST(a_change_that_the_rows_refuse_is_nowhere)
{
    struct sentence why = { "" };
    stand(&a);
    open_store(&a);
    put(&a, 1, "name", 10);
    ck_assert_int_eq(put_job(&a, 2, "name", 10, &why), CAIRN_ERR_EXISTS);
    end(&a);
    stand(&a);
    open_store(&a);
    ck_assert_uint_eq(look(&a).jobs, 1);
}

/* What etcd answers to this question about the key, without a coordinator. */
static json_t *ask_etcd(const char *path, const char *key, json_t *request)
{
    struct etcd etcd;
    char text[128];
    json_t *answer;
    struct sentence why = { "" };
    const struct coord_options options = { .store_url = server.url,
                                           .store_credentials = wire_text(""),
                                           .store_ca = wire_text("") };
    ck_assert_int_eq(etcd_init(&etcd, &options, &why), CAIRN_OK);
    sodium_bin2base64(text, sizeof text, (const uint8_t *)key, strlen(key),
                      sodium_base64_VARIANT_ORIGINAL);
    json_object_set_new(request, "key", json_string(text));
    ck_assert_msg(etcd_ask(&etcd, path, request, 5000, &answer, &why) == CAIRN_OK, "%s", why.text);
    etcd_release(&etcd);
    return answer;
}

/* Changes that are kept one by one. "/cairn/log0" follows all keys that begin with "/cairn/log/". */
static int change_count(void)
{
    json_t *answer = ask_etcd(
        "/v3/kv/range", "/cairn/log/",
        json_pack("{s:s, s:b}", "range_end", "L2NhaXJuL2xvZzA=", "count_only", 1));
    const char *count = json_string_value(json_object_get(answer, "count"));
    const int number = count != NULL ? atoi(count) : 0;
    json_decref(answer);
    return number;
}

TEST(many_changes_become_a_picture)
{
    stand(&a);
    open_store(&a);
    ck_assert_int_eq(change_count(), 0);
    put(&a, 1, "job", 1000);
    ck_assert_int_eq(change_count(), 1);
    for (int i = 0; i < 4; i++) put(&a, 1, "job", CAIRN_PIECE_BYTES + (size_t)i);
    ck_assert_int_le(change_count(), 4);
    const struct seen seen = look(&a);
    end(&a);
    stand(&a);
    open_store(&a);
    ck_assert_uint_eq(look(&a).sum, seen.sum);
    ck_assert_int_eq(change_count(), 0);
}

/* ---- who leads ---- */

TEST(one_leads_and_the_other_stands_by_until_it_ends)
{
    stand(&a);
    open_store(&a);
    stand(&b);
    put(&a, 1, "job", 10);
    ck_assert(!b.leads);
    end(&a);
    open_store(&b);
    ck_assert_uint_eq(look(&b).jobs, 1);
}

/* Takes the key of the leader away, as the end of its lease would. */
static void depose(void)
{
    json_decref(ask_etcd("/v3/kv/deleterange", "/cairn/leader", json_object()));
}

TEST(a_leader_of_former_times_writes_nothing)
{
    struct sentence why = { "" };
    stand(&a);
    open_store(&a);
    put(&a, 1, "job", 10);
    stand(&b);
    depose();
    open_store(&b);
    put(&b, 2, "other", 10);
    ck_assert_int_eq(put_job(&a, 3, "late", 10, &why), CAIRN_ERR_UNREACHABLE);
    ck_assert_msg(strstr(why.text, "does not lead any more") != NULL, "%s", why.text);
    await(a.has_led); // it hears of it, too
    const struct seen seen = look(&b);
    end(&b);
    store_close(a.store);
    a.store = NULL;
    lead_release(a.lead);
    open_store(&a); // it stood by, and leads again
    ck_assert_uint_eq(look(&a).sum, seen.sum);
    ck_assert_uint_eq(look(&a).jobs, 2);
}

/* ---- etcd ---- */

TEST(who_finds_no_etcd_waits_for_it)
{
    etcd_server_kill(&server);
    stand(&a);
    for (int i = 0; i < 100; i++) uv_run(&loop, UV_RUN_ONCE);
    ck_assert(!a.leads);
    etcd_server_start(&server, scratch, NULL);
    open_store(&a);
}

/* A relay before etcd. Once armed, the answer to the next transaction is lost, and what follows is refused
 * as by an etcd that is full. */
static struct relay {
    int listener;
    uint16_t port;
    pthread_t thread;
    atomic_bool loses, is_full;
} relay;

static int connect_to(uint16_t port)
{
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_port = htons(port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0) return fd;
    close(fd); // it begins to listen a little later
    return -1;
}

/* One request, with its body; returns its bytes. */
static size_t read_request(int fd, char *text, size_t room)
{
    size_t bytes = 0, whole = SIZE_MAX;
    while (bytes < whole && bytes < room - 1) {
        const ssize_t got = read(fd, text + bytes, room - 1 - bytes);
        if (got <= 0) return 0;
        bytes += (size_t)got;
        text[bytes] = '\0';
        const char *body = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "content-length: ");
        if (body != NULL && length != NULL)
            whole = (size_t)(body + 4 - text) + strtoul(length + 16, NULL, 10);
    }
    return bytes;
}

/* Passes one request on as HTTP/1.0, whose answer ends with the connection. */
static void pass_on(int from)
{
    static const char full[] =
        "HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\n\r\n"
        "{\"error\":\"etcdserver: mvcc: database space exceeded\",\"code\":8}";
    static char text[1 << 20];
    const size_t bytes = read_request(from, text, sizeof text);
    char *version = strstr(text, "HTTP/1.1");
    if (bytes == 0 || version == NULL) return;
    version[7] = '0';
    const bool is_write = strncmp(text, "POST /v3/kv/txn", 15) == 0;
    if (is_write && atomic_load(&relay.is_full)) {
        ck_assert_int_eq(write(from, full, sizeof full - 1), (int)sizeof full - 1);
        return;
    }
    const int to = connect_to(server.ports[0]);
    if (to < 0) return;
    ck_assert_int_eq(write(to, text, bytes), (int)bytes);
    const bool is_lost = is_write && atomic_load(&relay.loses);
    for (ssize_t got; (got = read(to, text, sizeof text)) > 0;)
        if (!is_lost) ck_assert_int_eq(write(from, text, (size_t)got), (int)got);
    if (is_lost) atomic_store(&relay.is_full, true);
    close(to);
}

static void *run_relay(void *unused)
{
    (void)unused;
    for (int fd; (fd = accept(relay.listener, NULL, NULL)) >= 0; close(fd)) pass_on(fd);
    return NULL;
}

static void start_relay(char url_out[64])
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof at;
    signal(SIGPIPE, SIG_IGN);
    relay.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(relay.listener, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(relay.listener, 16), 0);
    ck_assert_int_eq(getsockname(relay.listener, (struct sockaddr *)&at, &bytes), 0);
    snprintf(url_out, 64, "etcd://127.0.0.1:%d", ntohs(at.sin_port));
    ck_assert_int_eq(pthread_create(&relay.thread, NULL, run_relay, NULL), 0);
}

TEST(a_leader_that_does_not_know_what_became_of_a_write_steps_down)
{
    static char url[64];
    struct sentence why = { "" };
    start_relay(url);
    a.options.store_url = url;
    stand(&a);
    open_store(&a);
    atomic_store(&relay.loses, true);
    ck_assert_int_eq(put_job(&a, 1, "lost", 10, &why), CAIRN_ERR_UNREACHABLE);
    await(a.has_led);
    store_close(a.store);
    a.store = NULL;
    lead_release(a.lead);
    stand(&b);
    open_store(&b);
    ck_assert_uint_eq(look(&b).jobs, 1); // it was carried out
    end(&a);
    shutdown(relay.listener, SHUT_RDWR);
    pthread_join(relay.thread, NULL);
    close(relay.listener);
}

TEST(a_leader_that_etcd_does_not_answer_steps_down)
{
    struct sentence why = { "" };
    stand(&a);
    open_store(&a);
    cluster_freeze(server.pid);
    ck_assert_int_eq(put_job(&a, 1, "job", 10, &why), CAIRN_ERR_UNREACHABLE);
    ck_assert_msg(strstr(why.text, "does not answer") != NULL, "%s", why.text);
    await(a.has_led);
    kill(server.pid, SIGCONT);
    store_close(a.store);
    a.store = NULL;
    lead_release(a.lead);
    open_store(&a);
    ck_assert_uint_le(look(&a).jobs, 1); // whether it was made is not known
}

TEST(a_full_etcd_takes_no_change_and_says_so)
{
    struct sentence why = { "" };
    static const char *const small[] = { "--quota-backend-bytes", "4000000", NULL };
    etcd_server_kill(&server);
    etcd_server_start(&server, scratch, small);
    stand(&a);
    open_store(&a);
    put(&a, 1, "job", 10);
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < 40 && status == CAIRN_OK; i++)
        status = put_job(&a, 2, "large", CAIRN_PIECE_BYTES / 2 + (size_t)i, &why);
    ck_assert_int_eq(status, CAIRN_ERR_NO_SPACE);
    ck_assert_msg(strstr(why.text, "alarm disarm") != NULL, "%s", why.text);
    ck_assert(!a.has_led); // it leads on, and what it had is there
    const struct seen seen = look(&a);
    ck_assert_int_eq(put_job(&a, 3, "more", 10, &why), CAIRN_ERR_NO_SPACE);
    ck_assert_uint_eq(look(&a).jobs, seen.jobs);
}

TEST(another_clusters_rows_are_refused)
{
    stand(&a);
    open_store(&a);
    end(&a);
    b.options.name = wire_text("other");
    stand(&b);
    expect_unopened(&b, CAIRN_ERR_MISMATCH, "has the rows of cluster \"toy\"");
}

TEST(a_prefix_with_the_keys_of_others_is_refused)
{
    stand(&a);
    await(a.leads);
    json_decref(ask_etcd("/v3/kv/put", "/cairn/toys", json_pack("{s:s}", "value", "")));
    expect_unopened(&a, CAIRN_ERR_MISMATCH, "\"/cairn/toys\", which is no coordinator's");
}

TEST(an_empty_store_begins_with_a_backup_and_one_with_rows_does_not)
{
    char path[CAIRN_SCRATCH_BYTES + 16], url[96];
    uint8_t *picture;
    size_t bytes;
    snprintf(path, sizeof path, "%s/backup", scratch);
    snprintf(url, sizeof url, "%s/second", server.url);
    stand(&a);
    open_store(&a);
    put(&a, 1, "job", 1000);
    ck_assert_int_eq(store_picture(a.store, &picture, &bytes, NULL), CAIRN_OK);
    const struct seen seen = look(&a);
    FILE *file = fopen(path, "w");
    ck_assert_uint_eq(fwrite(picture, 1, bytes, file), bytes);
    fclose(file);
    free(picture);
    b.options.store_url = url;
    b.options.store_from = path;
    stand(&b);
    open_store(&b);
    ck_assert_uint_eq(look(&b).sum, seen.sum);
    end(&b);
    b.options.store_url = url;
    b.options.store_from = path;
    stand(&b);
    expect_unopened(&b, CAIRN_ERR_CONFIG, "has rows already");
}

/* ---- who may ask ---- */

/* A question to the server, by options that the test chooses. */
static cairn_status question(const char *url, const char *credentials, const char *ca,
                             struct sentence *why)
{
    struct etcd etcd;
    json_t *answer = NULL;
    const struct coord_options options = { .store_url = wire_text(url),
                                           .store_credentials = wire_text(credentials),
                                           .store_ca = wire_text(ca) };
    ck_assert_msg(etcd_init(&etcd, &options, why) == CAIRN_OK, "%s", why->text);
    cairn_status status = CAIRN_ERR_UNREACHABLE; // as long as the server starts
    for (const int64_t end_ms = now_ms() + WAIT_MS;
         status == CAIRN_ERR_UNREACHABLE && now_ms() < end_ms; poll(NULL, 0, 10))
        status = etcd_ask(&etcd, "/v3/kv/range", json_pack("{s:s}", "key", "L2NhaXJuL2hlYWQ="),
                          1000, &answer, why);
    json_decref(answer);
    etcd_release(&etcd);
    return status;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_int_ge(fputs(text, file), 0);
    fclose(file);
    chmod(path, 0600);
}

TEST(a_user_of_etcd_is_asked_for_its_password)
{
    static const struct {
        const char *path, *key, *value, *more, *more_value;
    } steps[] = {
        { "/v3/auth/user/add", "name", "root", "password", "secret" },
        { "/v3/auth/role/add", "name", "root", "name", "root" },
        { "/v3/auth/user/grant", "user", "root", "role", "root" },
        { "/v3/auth/enable", "a", "", "a", "" },
    };
    char path[CAIRN_SCRATCH_BYTES + 16];
    struct sentence why = { "" };
    snprintf(path, sizeof path, "%s/user", scratch);
    ck_assert_int_eq(question(server.url, "", "", &why), CAIRN_OK);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct etcd etcd;
        json_t *answer;
        const struct coord_options options = { .store_url = server.url,
                                               .store_credentials = wire_text(""),
                                               .store_ca = wire_text("") };
        json_t *request = i == 3 ? json_object()
                                 : json_pack("{s:s, s:s}", steps[i].key, steps[i].value,
                                             steps[i].more, steps[i].more_value);
        ck_assert_int_eq(etcd_init(&etcd, &options, &why), CAIRN_OK);
        ck_assert_msg(etcd_ask(&etcd, steps[i].path, request, 5000, &answer, &why) == CAIRN_OK,
                      "%s: %s", steps[i].path, why.text);
        json_decref(answer);
        etcd_release(&etcd);
    }
    ck_assert_int_eq(question(server.url, "", "", &why), CAIRN_ERR_REFUSED);
    ck_assert_msg(strstr(why.text, "store.credentials") != NULL, "%s", why.text);
    write_file(path, "root:wrong\n");
    ck_assert_int_eq(question(server.url, path, "", &why), CAIRN_ERR_REFUSED);
    write_file(path, "root:secret\n");
    a.options.store_credentials = path;
    stand(&a);
    open_store(&a);
    put(&a, 1, "job", 10);
}

TEST(an_etcd_whose_certificate_nobody_signed_is_refused)
{
    char command[1024], key[CAIRN_SCRATCH_BYTES + 16], ca[sizeof key], url[64];
    struct sentence why = { "" };
    snprintf(key, sizeof key, "%s/key", scratch);
    snprintf(ca, sizeof ca, "%s/ca", scratch);
    snprintf(command, sizeof command,
             "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=etcd -addext "
             "subjectAltName=IP:127.0.0.1 -keyout %s -out %s >/dev/null 2>&1",
             key, ca);
    if (system(command) != 0) {
        printf("skip: no openssl makes a certificate\n");
        return;
    }
    const char *const tls[] = { "--cert-file", ca, "--key-file", key, NULL };
    etcd_server_kill(&server);
    etcd_server_start(&server, scratch, tls);
    snprintf(url, sizeof url, "etcds://127.0.0.1:%u", server.ports[0]);
    ck_assert_int_eq(question(url, "", "", &why), CAIRN_ERR_REFUSED);
    ck_assert_msg(strstr(why.text, "store.ca") != NULL, "%s", why.text);
    a.options.store_url = url;
    a.options.store_ca = ca;
    stand(&a);
    open_store(&a);
    put(&a, 1, "job", 10);
}

SUITE(60, set_up, tear_down);

/* ---- what is refused at the start ---- */

TEST(an_url_that_cannot_be_is_refused_by_name)
{
    static const struct {
        const char *url, *word;
    } rows[] = {
        { "https://127.0.0.1:1", "it is no store" },
        { "etcd://", "there is no port" },
        { "etcd://host", "there is no port" },
        { "etcd://127.0.0.1:0", "a port from 1" },
        { "etcd:///tmp/socket", "there is no port" },
        { "etcd://127.0.0.1:1,", "there is no port" },
        { "etcd://127.0.0.1:1/", "a prefix has" },
        { "etcd://127.0.0.1:1/a b", "a prefix has" },
        { "etcd://127.0.0.1:1/a/", "a prefix has" },
        { "etcd://[::1]:1,127.0.0.1:2,localhost:3,10.0.0.1:4",
          "10.0.0.1 would be reached without TLS" },
        { "etcd://[::1]:1,[::1]:2,[::1]:3,[::1]:4,[::1]:5,[::1]:6,[::1]:7,[::1]:8,[::1]:9",
          "more than 8" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct etcd etcd;
        struct sentence why = { "" };
        struct coord_options options = { .store_url = wire_text(rows[i].url),
                                         .store_credentials = wire_text(""),
                                         .store_ca = wire_text("") };
        ck_assert_msg(etcd_init(&etcd, &options, &why) == CAIRN_ERR_CONFIG, "%s", rows[i].url);
        ck_assert_msg(strstr(why.text, rows[i].word) != NULL, "%s: %s", rows[i].url, why.text);
    }
}

TEST(a_file_of_credentials_that_others_may_read_is_refused)
{
    struct etcd etcd;
    struct sentence why = { "" };
    char path[CAIRN_SCRATCH_BYTES + 16];
    snprintf(path, sizeof path, "%s/user", scratch);
    struct coord_options options = { .store_url = wire_text("etcds://10.0.0.1:1"),
                                     .store_credentials = path,
                                     .store_ca = wire_text("") };
    ck_assert_int_eq(etcd_init(&etcd, &options, &why), CAIRN_ERR_CONFIG);
    FILE *file = fopen(path, "w");
    fputs("cairn:secret\n", file);
    fclose(file);
    chmod(path, 0640);
    ck_assert_int_eq(etcd_init(&etcd, &options, &why), CAIRN_ERR_CONFIG);
    ck_assert_msg(strstr(why.text, "other users may read it") != NULL, "%s", why.text);
    chmod(path, 0600);
    ck_assert_int_eq(etcd_init(&etcd, &options, &why), CAIRN_OK);
    ck_assert_str_eq(etcd.password, "secret");
    etcd_release(&etcd);
}

SUITE(30, scratch_make, scratch_remove);

int main(void)
{
    return etcd_server_is_here() ? suite_main() : SUITE_SKIPPED;
}

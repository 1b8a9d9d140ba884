/* Opening and closing a session. */
#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/api/api.h"
#include "client/base/handle.h"
#include "client/base/struct.h"
#include "client/device/card.h"
#include "client/device/import.h"
#include "client/pieces.h"
#include "proto/base/text.h"

#define PREFETCH_UNITS 2
#define CONNECT_MS     10000

static void on_handle_free(void *object)
{
    cairn_session_unref(object);
}

/* ---- open ---- */

static uint64_t hash_of(const char *text)
{
    uint8_t bytes[crypto_generichash_BYTES];
    uint64_t hash;
    crypto_generichash(bytes, sizeof bytes, (const uint8_t *)text, strlen(text), NULL, 0);
    memcpy(&hash, bytes, sizeof hash);
    return hash | 1; // never 0
}

/* Notes which run this process belongs to, and how often the run was restarted. A run named "none"
 * counts as unnamed, since that is how torchrun calls a run that was given no name. */
static void note_run(struct session *s)
{
    const struct cairn_env_input input = { .get = cairn_env_get };
    struct cairn_env_report report;
    struct cairn_sentence why;
    if (cairn_env_find(&input, CAIRN_ENV_RUN_ID, &report, &why) != CAIRN_OK ||
        cairn_env_find(&input, CAIRN_ENV_RESTARTS, &report, &why) != CAIRN_OK)
        return;
    const char *run = report.values[CAIRN_ENV_RUN_ID].text;
    if (run[0] == '\0' || strcmp(run, "none") == 0) return;
    s->run = hash_of(run);
    s->restarts = (uint32_t)report.values[CAIRN_ENV_RESTARTS].number;
}

/* Endpoint, fabric, device and host: of the options, of the environment, the defaults. */
static cairn_status read_environment(const struct cairn_opts *opts, struct cairn_env_report *report)
{
    const struct cairn_env_input input = {
        .get = cairn_env_get,
        .given = { [CAIRN_ENV_ENDPOINT] = { opts->endpoint, "cairn_opts.endpoint" },
                   [CAIRN_ENV_FABRIC] = { opts->fabric, "cairn_opts.fabric" },
                   [CAIRN_ENV_DEVICE] = { opts->fabric_device, "cairn_opts.fabric_device" } },
    };
    struct cairn_sentence why = { "" };
    const cairn_status status = cairn_env_find_cluster(&input, report, &why);
    return status == CAIRN_OK ? CAIRN_OK : cairn_client_fail(status, "%s", why.text);
}

static char *own_name(const struct cairn_opts *opts)
{
    char text[320], host[200] = "?";
    if (opts->name != NULL) return strdup(opts->name);
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "pid %ld on %s", (long)getpid(), host);
    cairn_text_mend(text, "");
    return strdup(text);
}

static cairn_status init_shared(struct session *s, const struct cairn_opts *opts)
{
    s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->event_fd < 0)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "no descriptor: %s", strerror(errno));
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&s->lock, NULL);
    cairn_streams_init(s);
    s->refs = 1;
    s->reach.away_since_ms = cairn_client_now_ms();
    s->name = own_name(opts);
    randombytes_buf(&s->incarnation, sizeof s->incarnation);
    return s->name != NULL ? CAIRN_OK : cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
}

/* To go on trying would not help. */
static bool is_final(cairn_status status)
{
    return status == CAIRN_ERR_VERSION || status == CAIRN_ERR_REFUSED;
}

static cairn_status await_welcome(struct session *s)
{
    const uint64_t deadline_ms = cairn_client_now_ms() + s->connect_ms;
    pthread_mutex_lock(&s->lock);
    while (!s->reach.welcome && !s->reach.no_path && !is_final(s->reach.status) &&
           cairn_session_sleep(s, deadline_ms)) {}
    const bool welcome = s->reach.welcome;
    const cairn_status last = s->reach.status;
    const struct cairn_sentence why = s->reach.why;
    const bool no_path = s->reach.no_path;
    pthread_mutex_unlock(&s->lock);
    if (welcome) return CAIRN_OK;
    if (no_path) return cairn_client_fail(last, "the data path cannot be opened: %s", why.text);
    if (is_final(last) || last == CAIRN_ERR_NO_MEMORY)
        return cairn_client_fail(last, "%s", why.text);
    return cairn_client_fail(
        CAIRN_ERR_UNREACHABLE,
        "no coordinator answered at %s within %u ms (%s); is cairn-coordinator running there? The "
        "address comes from cairn_opts.endpoint or CAIRN_ENDPOINT, else it is a socket in "
        "$XDG_RUNTIME_DIR/cairn or /run/cairn",
        s->endpoint_text, s->connect_ms, why.text[0] != 0 ? why.text : "no answer");
}

/* Before the fabric: its address names the card. */
static cairn_status open_device(struct session *s, int device)
{
    struct card *card;
    const cairn_status status = cairn_card_of_device(device, "opts.device", &card);
    if (status != CAIRN_OK || card == NULL) return status;
    return cairn_card_imports_open(card, &s->imports);
}

cairn_status cairn_open(const struct cairn_opts *opts, cairn **out)
{
    return cairn_client_open(opts, NULL, out);
}

cairn_status cairn_client_open(const struct cairn_opts *opts, struct cairn_fabric_hub *hub,
                               cairn **out)
{
    struct cairn_opts taken = { .struct_size = sizeof taken };
    if (out == NULL) return cairn_client_fail(CAIRN_ERR_INVALID, "out is NULL");
    if (opts != NULL &&
        !cairn_struct_take(&taken, sizeof taken, offsetof(struct cairn_opts, prefetch_units), opts))
        return cairn_client_fail(
            CAIRN_ERR_INVALID,
            "opts.struct_size is %zu, this library's is %zu (a larger struct must be 0 behind it)",
            opts->struct_size, sizeof taken);
    opts = &taken;
    if (opts->reserved != 0 || opts->reserved_too != 0 || opts->reserved_last != 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "opts: what is reserved is not 0");
    if (opts->connect_timeout_ms < 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "opts.connect_timeout_ms is negative");
    struct cairn_sentence why = { "" };
    if (opts->name != NULL &&
        cairn_text_check("opts.name", opts->name, CAIRN_NAME_MAX, &why) != CAIRN_OK)
        return cairn_client_fail(CAIRN_ERR_INVALID, "%s", why.text);
    if (sodium_init() < 0) return cairn_client_fail(CAIRN_ERR_INTERNAL, "libsodium does not start");
    struct session *s = calloc(1, sizeof *s);
    if (s == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    s->path.hub = hub;
    s->on_wait = opts->on_wait;
    s->on_wait_context = opts->on_wait_context;
    s->prefetch_units = opts->prefetch_units != 0 ? opts->prefetch_units : PREFETCH_UNITS;
    s->connect_ms = opts->connect_timeout_ms > 0 ? (uint32_t)opts->connect_timeout_ms : CONNECT_MS;
    cairn_status status = read_environment(opts, &s->env);
    if (status != CAIRN_OK) {
        free(s);
        return status;
    }
    note_run(s);
    status = cairn_address_parse(s->env.values[CAIRN_ENV_ENDPOINT].text, &s->endpoint, NULL);
    assert(status == CAIRN_OK); // judged above
    cairn_address_print(&s->endpoint, s->endpoint_text);
    status = init_shared(s, opts);
    if (status != CAIRN_OK) {
        free(s);
        return status;
    }
    status = open_device(s, opts->device);
    if (status == CAIRN_OK) status = cairn_loop_start(s);
    if (status == CAIRN_OK) {
        status = await_welcome(s);
        if (status == CAIRN_OK) {
            s->handle = cairn_handle_open(CAIRN_HANDLE_SESSION, s, on_handle_free);
            if (s->handle == NULL)
                status = cairn_client_fail(CAIRN_ERR_NO_MEMORY, "too many handles");
        }
        if (status != CAIRN_OK) cairn_loop_stop(s);
    }
    if (status != CAIRN_OK) {
        cairn_session_unref(s);
        return status;
    }
    *out = s->handle;
    return CAIRN_OK;
}

/* ---- close ---- */

/* The handle of a job that is open; it is told to close. One that is being opened has no handle yet and
 * fails by `stopping`. */
static cairn_job *next_job(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    cairn_job *handle = NULL;
    for (struct job *job = s->jobs; job != NULL && handle == NULL; job = job->next)
        if (!job->closing && job->handle != NULL) {
            job->closing = true;
            handle = job->handle;
        }
    pthread_mutex_unlock(&s->lock);
    return handle;
}

/* Until no stream of another session waits, or for a second: what is given back then could wait for it. */
static bool await_change(void)
{
    enum { TRIES = 100, PAUSE_US = 10000 };
    for (int i = 0; i < TRIES; i++) {
        if (cairn_card_change_begin()) return true;
        usleep(PAUSE_US);
    }
    return false;
}

void cairn_close(cairn *handle)
{
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) return;
    if (cairn_handle_close(CAIRN_HANDLE_SESSION, handle)) {
        // Not one after the other: each may wait for a shard.
        for (cairn_job *job; (job = next_job(s)) != NULL;)
            (void)cairn_handle_close(CAIRN_HANDLE_JOB, job);
        cairn_loop_stop(s);
        const bool changes = await_change();
        cairn_card_imports_turn(s->imports);
        cairn_pieces_close(s);
        cairn_memory_close(s);
        if (changes) cairn_card_change_end();
    }
    cairn_handle_put(handle);
}

const char *cairn_data_path(const cairn *handle)
{
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) {
        cairn_handle_fail(handle, "session");
        return NULL;
    }
    cairn_handle_put(handle);
    return s->path.text; // constant once it is open
}

int cairn_event_fd(const cairn *handle)
{
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) {
        cairn_handle_fail(handle, "session");
        return -1;
    }
    const int fd = s->event_fd;
    cairn_handle_put(handle);
    return fd;
}

/* Opening and closing a session. */
#include "client/session.h"

#include <inttypes.h>
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/base.h"
#include "client/layouts.h"
#include "client/device.h"
#include "client/job.h"
#include "client/op.h"
#include "proto/base/text.h"

static void streams_release(struct session *s);
static void streams_init(struct session *s);

void session_say(const struct session *s, const char *what)
{
    if (s->on_wait == NULL) fprintf(stderr, "cairn: %s\n", what);
}

void session_kick(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    // After the end the loop is gone, and libuv aborts on a dead handle.
    if (!s->ended) uv_async_send(&s->loop.kick);
    pthread_mutex_unlock(&s->lock);
}

#define WAKE_US 100

static void wake_now(struct session *s)
{
    const uint64_t one = 1;
    pthread_cond_broadcast(&s->changed);
    if (s->wake.tells) {
        const ssize_t written = write(s->event_fd, &one, sizeof one);
        (void)written; // a full counter is readable already
    }
    s->wake.is_due = s->wake.tells = false;
}

void session_wake(struct session *s, bool tells)
{
    const uint64_t now_us = client_now_us();
    s->wake.tells = s->wake.tells || tells;
    s->wake.is_due = now_us - s->wake.last_us < WAKE_US &&
                     pthread_equal(pthread_self(), s->loop.thread) != 0;
    if (s->wake.is_due) return;
    s->wake.last_us = now_us;
    wake_now(s);
}

void session_wake_due(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    if (s->wake.is_due) wake_now(s);
    pthread_mutex_unlock(&s->lock);
}

bool session_sleep(struct session *s, uint64_t deadline_ms)
{
    const struct timespec until = { .tv_sec = (time_t)(deadline_ms / 1000),
                                    .tv_nsec = (long)(deadline_ms % 1000) * 1000000 };
    return pthread_cond_timedwait(&s->changed, &s->lock, &until) != ETIMEDOUT;
}

static void end_command(struct command *command)
{
    if (command->op != NULL) op_let_go(command->op, CAIRN_ERR_CLOSED, "the session is closed");
    job_unref(command->job);
    command_free(command);
}

void session_commands(struct session *s, struct command *first, struct command *last)
{
    last->next = NULL;
    pthread_mutex_lock(&s->lock);
    const bool ended = s->ended;
    if (!ended && s->commands.last != NULL)
        s->commands.last->next = first;
    else if (!ended)
        s->commands.first = first;
    if (!ended) s->commands.last = last;
    pthread_mutex_unlock(&s->lock);
    for (struct command *next; ended && first != NULL; first = next) {
        next = first->next;
        end_command(first);
    }
    session_kick(s);
}

void session_command(struct session *s, struct command *command)
{
    session_commands(s, command, command);
}

void session_unref(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    const uint32_t left = --s->refs;
    pthread_mutex_unlock(&s->lock);
    if (left > 0) return;
    ops_release(s);
    memory_release(s);
    card_imports_close(s->imports);
    streams_release(s);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    close(s->event_fd);
    free(s->name);
    free(s);
}

/* ==== session ==== */

#define PREFETCH_UNITS 2
#define CONNECT_MS     10000

static void on_handle_free(void *object)
{
    session_unref(object);
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
    const struct env_input input = { .get = env_get };
    struct env_report report;
    struct sentence why;
    if (env_find(&input, CAIRN_ENV_RUN_ID, &report, &why) != CAIRN_OK ||
        env_find(&input, CAIRN_ENV_RESTARTS, &report, &why) != CAIRN_OK)
        return;
    const char *run = report.values[CAIRN_ENV_RUN_ID].text;
    if (run[0] == '\0' || strcmp(run, "none") == 0) return;
    s->run = hash_of(run);
    s->restarts = (uint32_t)report.values[CAIRN_ENV_RESTARTS].number;
}

/* Endpoint, fabric, device and host: of the options, of the environment, the defaults. */
static cairn_status read_environment(const struct cairn_opts *opts, struct env_report *report)
{
    const struct env_input input = {
        .get = env_get,
        .given = { [CAIRN_ENV_ENDPOINT] = { opts->endpoint, "cairn_opts.endpoint" },
                   [CAIRN_ENV_FABRIC] = { opts->fabric, "cairn_opts.fabric" },
                   [CAIRN_ENV_DEVICE] = { opts->fabric_device, "cairn_opts.fabric_device" } },
    };
    struct sentence why = { "" };
    const cairn_status status = env_find_cluster(&input, report, &why);
    return status == CAIRN_OK ? CAIRN_OK : client_fail(status, "%s", why.text);
}

static char *own_name(const struct cairn_opts *opts)
{
    char text[320], host[200] = "?";
    if (opts->name != NULL) return strdup(opts->name);
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "pid %ld on %s", (long)getpid(), host);
    text_mend(text, "");
    return strdup(text);
}

static cairn_status init_shared(struct session *s, const struct cairn_opts *opts)
{
    s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->event_fd < 0)
        return client_fail(CAIRN_ERR_NO_MEMORY, "no descriptor: %s", strerror(errno));
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&s->lock, NULL);
    streams_init(s);
    s->refs = 1;
    s->reach.away_since_ms = client_now_ms();
    s->name = own_name(opts);
    randombytes_buf(&s->incarnation, sizeof s->incarnation);
    return s->name != NULL ? CAIRN_OK : client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
}

/* To go on trying would not help. */
static bool is_final(cairn_status status)
{
    return status == CAIRN_ERR_VERSION || status == CAIRN_ERR_REFUSED;
}

static cairn_status await_welcome(struct session *s)
{
    const uint64_t deadline_ms = client_now_ms() + s->connect_ms;
    pthread_mutex_lock(&s->lock);
    while (!s->reach.welcome && !s->reach.no_path && !is_final(s->reach.status) &&
           session_sleep(s, deadline_ms)) {}
    const bool welcome = s->reach.welcome;
    const cairn_status last = s->reach.status;
    const struct sentence why = s->reach.why;
    const bool no_path = s->reach.no_path;
    pthread_mutex_unlock(&s->lock);
    if (welcome) return CAIRN_OK;
    if (no_path) return client_fail(last, "the data path cannot be opened: %s", why.text);
    if (is_final(last) || last == CAIRN_ERR_NO_MEMORY) return client_fail(last, "%s", why.text);
    return client_fail(
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
    const cairn_status status = card_of_device(device, "opts.device", &card);
    if (status != CAIRN_OK || card == NULL) return status;
    return card_imports_open(card, &s->imports);
}

cairn_status cairn_open(const struct cairn_opts *opts, cairn **out)
{
    return client_open(opts, NULL, out);
}

cairn_status client_open(const struct cairn_opts *opts, struct fabric_hub *hub, cairn **out)
{
    struct cairn_opts own = { .struct_size = sizeof own };
    if (out == NULL) return client_fail(CAIRN_ERR_INVALID, "out is NULL");
    if (opts != NULL &&
        !struct_copy_in(&own, sizeof own, offsetof(struct cairn_opts, prefetch_units), opts))
        return client_fail(
            CAIRN_ERR_INVALID,
            "opts.struct_size is %zu, this library's is %zu (a larger struct must be 0 behind it)",
            opts->struct_size, sizeof own);
    opts = &own;
    if (opts->reserved != 0 || opts->reserved_too != 0 || opts->reserved_last != 0)
        return client_fail(CAIRN_ERR_INVALID, "opts: what is reserved is not 0");
    if (opts->connect_timeout_ms < 0)
        return client_fail(CAIRN_ERR_INVALID, "opts.connect_timeout_ms is negative");
    struct sentence why = { "" };
    if (opts->name != NULL && text_check("opts.name", opts->name, CAIRN_NAME_MAX, &why) != CAIRN_OK)
        return client_fail(CAIRN_ERR_INVALID, "%s", why.text);
    if (sodium_init() < 0) return client_fail(CAIRN_ERR_INTERNAL, "libsodium does not start");
    struct session *s = calloc(1, sizeof *s);
    if (s == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
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
    status = address_parse(s->env.values[CAIRN_ENV_ENDPOINT].text, &s->endpoint, NULL);
    assert(status == CAIRN_OK); // judged above
    address_print(&s->endpoint, s->endpoint_text);
    status = init_shared(s, opts);
    if (status != CAIRN_OK) {
        free(s);
        return status;
    }
    status = open_device(s, opts->device);
    if (status == CAIRN_OK) status = loop_start(s);
    if (status == CAIRN_OK) {
        status = await_welcome(s);
        if (status == CAIRN_OK) {
            s->handle = handle_open(CAIRN_HANDLE_SESSION, s, on_handle_free);
            if (s->handle == NULL) status = client_fail(CAIRN_ERR_NO_MEMORY, "too many handles");
        }
        if (status != CAIRN_OK) loop_stop(s);
    }
    if (status != CAIRN_OK) {
        session_unref(s);
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
        if (card_change_begin()) return true;
        usleep(PAUSE_US);
    }
    return false;
}

void cairn_close(cairn *handle)
{
    struct session *s = handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) return;
    if (handle_close(CAIRN_HANDLE_SESSION, handle)) {
        // Not one after the other: each may wait for a shard.
        for (cairn_job *job; (job = next_job(s)) != NULL;)
            (void)handle_close(CAIRN_HANDLE_JOB, job);
        loop_stop(s);
        const bool changes = await_change();
        card_imports_turn(s->imports);
        staging_close(s);
        memory_close_session(s);
        if (changes) card_change_end();
    }
    handle_put(handle);
}

const char *cairn_data_path(const cairn *handle)
{
    struct session *s = handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) {
        handle_fail(handle, "session");
        return NULL;
    }
    handle_put(handle);
    return s->path.text; // constant once it is open
}

int cairn_event_fd(const cairn *handle)
{
    struct session *s = handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) {
        handle_fail(handle, "session");
        return -1;
    }
    const int fd = s->event_fd;
    handle_put(handle);
    return fd;
}

/* ==== api ==== */

/* The steps that all calls of a job share: see job.h. */

struct job *api_job(const cairn_job *handle)
{
    struct job *job = handle_get(CAIRN_HANDLE_JOB, handle);
    if (job == NULL) handle_fail(handle, "job");
    return job;
}

cairn_status api_leave(const cairn_job *handle, cairn_status status)
{
    handle_put(handle);
    return status;
}

uint64_t api_deadline(int timeout_ms)
{
    return client_now_ms() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0);
}

cairn_status api_judge_call(const char *out_name, const void *out, int timeout_ms)
{
    if (out_name != NULL && out == NULL)
        return client_fail(CAIRN_ERR_INVALID, "%s is NULL", out_name);
    if (timeout_ms >= 0) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID, "timeout_ms is %d; give 0 or more", timeout_ms);
}

cairn_status api_await_none(struct job *job, const uint64_t *open, const char *what,
                            uint64_t deadline_ms)
{
    struct session *s = job->session;
    struct patience patience = client_patience(job, deadline_ms);
    for (;;) {
        const uint64_t until_ms = client_says_at(&patience, deadline_ms);
        pthread_mutex_lock(&s->lock);
        while (*open > 0 && session_sleep(s, until_ms)) {}
        const uint64_t left = *open;
        pthread_mutex_unlock(&s->lock);
        if (left == 0) return CAIRN_OK;
        struct sentence text;
        sentence_set(&text, "%" PRIu64 " %s of job %s still wait for shards", left, what,
                     job->name);
        if (client_now_ms() >= deadline_ms) return client_fail(CAIRN_ERR_TIMEOUT, "%s", text.text);
        client_say_wait(&patience, text.text);
    }
}

cairn_status api_check(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    const cairn_status failed = job->failure.status;
    if (failed != CAIRN_OK) client_fail(failed, "%s", job->failure.why.text);
    pthread_mutex_unlock(&job->session->lock);
    return failed;
}

/* ==== env ==== */

/* cairn_env_read: what client/env.h finds, in the caller's struct. */

static void copy_text(char *out, size_t out_bytes, const char *text)
{
    snprintf(out, out_bytes, "%.*s", (int)out_bytes - 1, text);
}

static void fill_env(const struct env_report *report, struct cairn_env *env)
{
    const struct env_value *values = report->values;
    *env = (struct cairn_env) {
        .struct_size = sizeof *env,
        .rank = (uint32_t)values[CAIRN_ENV_RANK].number,
        .world = (uint32_t)values[CAIRN_ENV_WORLD].number,
        .local_rank = (uint32_t)values[CAIRN_ENV_LOCAL_RANK].number,
        .node_rank = (uint32_t)values[CAIRN_ENV_NODE_RANK].number,
        .restarts = values[CAIRN_ENV_RESTARTS].number,
    };
    copy_text(env->launcher, sizeof env->launcher, report->launcher);
    copy_text(env->run_id, sizeof env->run_id, values[CAIRN_ENV_RUN_ID].text);
    copy_text(env->endpoint, sizeof env->endpoint, values[CAIRN_ENV_ENDPOINT].text);
}

cairn_status cairn_env_read(struct cairn_env *out)
{
    const struct env_input input = { .get = env_get };
    struct env_report report;
    struct cairn_env env;
    struct sentence why = { "" };
    if (!struct_fits(out, sizeof env))
        return client_fail(CAIRN_ERR_INVALID, "out must be given, its struct_size be at least %zu",
                           sizeof env);
    cairn_status status = env_find_cluster(&input, &report, &why);
    if (status == CAIRN_OK) status = env_find_process(&input, &report, &why);
    if (status != CAIRN_OK) return client_fail(status, "%s", why.text);
    const struct env_value *endpoint = &report.values[CAIRN_ENV_ENDPOINT];
    if (strlen(endpoint->text) >= sizeof env.endpoint)
        return client_fail(CAIRN_ERR_INVALID, "%s = \"%s\" is longer than %zu bytes",
                           endpoint->source, endpoint->text, sizeof env.endpoint - 1);
    fill_env(&report, &env);
    struct_copy_out(out, &env, sizeof env);
    return CAIRN_OK;
}

/* ==== streams ==== */

static void streams_init(struct session *s)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->streams.changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&s->streams.lock, NULL);
}

static void streams_release(struct session *s)
{
    pthread_mutex_destroy(&s->streams.lock);
    pthread_cond_destroy(&s->streams.changed);
}

/* ---- words: under the lock ---- */

static struct card_word *detach_words(struct op *op)
{
    struct card_word *words = op->words;
    struct op **link = &op->session->streams.first;
    if (words == NULL) return NULL;
    while (*link != op) link = &(*link)->next_words;
    *link = op->next_words;
    op->words = NULL;
    return words;
}

static void add_word(struct op *op, struct card_word *word)
{
    struct stream_waits *waits = &op->session->streams;
    if (op->words == NULL) {
        op->words_until_ms = client_now_ms() + CAIRN_STREAMS_WAIT_MS;
        op->next_words = waits->first;
        waits->first = op;
    }
    word->next = op->words;
    op->words = word;
    pthread_cond_signal(&waits->changed);
}

/* The word of an operation that is late. NULL: none is. */
static struct card_word *detach_late(struct stream_waits *waits, uint64_t now_ms)
{
    const bool all = waits->is_over || (waits->close_ms != 0 && now_ms >= waits->close_ms);
    struct op *op = waits->first;
    while (op != NULL && !all && now_ms < op->words_until_ms) op = op->next_words;
    if (op == NULL) return NULL;
    op->is_late = true;
    return detach_words(op);
}

/* ---- the thread ---- */

static void sleep_until_late(struct stream_waits *waits)
{
    uint64_t until_ms = waits->close_ms != 0 ? waits->close_ms : UINT64_MAX;
    for (const struct op *op = waits->first; op != NULL; op = op->next_words)
        if (op->words_until_ms < until_ms) until_ms = op->words_until_ms;
    if (waits->first == NULL) {
        pthread_cond_wait(&waits->changed, &waits->lock);
        return;
    }
    const struct timespec until = { .tv_sec = (time_t)(until_ms / 1000),
                                    .tv_nsec = (long)(until_ms % 1000) * 1000000 };
    pthread_cond_timedwait(&waits->changed, &waits->lock, &until);
}

static void *watch(void *arg)
{
    struct stream_waits *waits = arg;
    pthread_mutex_lock(&waits->lock);
    for (;;) {
        struct card_word *late = detach_late(waits, client_now_ms());
        if (late == NULL && waits->is_over) break;
        if (late == NULL) {
            sleep_until_late(waits);
            continue;
        }
        pthread_mutex_unlock(&waits->lock);
        streams_let_go(late);
        pthread_mutex_lock(&waits->lock);
    }
    pthread_mutex_unlock(&waits->lock);
    return NULL;
}

/* Under the lock. The library's threads take no signal of their host's. */
static cairn_status start(struct stream_waits *waits)
{
    sigset_t all, old;
    if (waits->is_running || waits->is_over) return CAIRN_OK;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int error = pthread_create(&waits->thread, NULL, watch, waits);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error != 0)
        return client_fail(CAIRN_ERR_NO_MEMORY,
                           "no thread to let the stream go in time: %s; use cairn_wait",
                           strerror(error));
    waits->is_running = true;
    return CAIRN_OK;
}

/* ---- */

/* The operation's from now on; *is_done: it is over, and nobody has to wait. */
static cairn_status give(struct op *op, struct card_word *word, bool *is_done_out)
{
    struct session *s = op->session;
    pthread_mutex_lock(&s->lock);
    pthread_mutex_lock(&s->streams.lock);
    const cairn_status status = start(&s->streams);
    const bool waits = status == CAIRN_OK && !op->done && !s->streams.is_over;
    if (waits) add_word(op, word);
    pthread_mutex_unlock(&s->streams.lock);
    pthread_mutex_unlock(&s->lock);
    if (!waits) card_word_set(word);
    *is_done_out = !waits;
    return status;
}

/* No stream waits for it; false: it was let go meanwhile. */
static bool withdraw_word(struct op *op, const struct card_word *word)
{
    struct stream_waits *waits = &op->session->streams;
    pthread_mutex_lock(&waits->lock);
    struct card_word **link = &op->words;
    while (*link != NULL && *link != word) link = &(*link)->next;
    const bool found = *link != NULL;
    if (found && op->words == word && word->next == NULL)
        (void)detach_words(op);
    else if (found)
        *link = word->next;
    pthread_mutex_unlock(&waits->lock);
    return found;
}

/* The word is watched before the stream waits for it: nothing can come between. */
cairn_status streams_await(struct op *op, struct card *card, void *stream)
{
    struct card_word *word;
    struct card_wait wait;
    bool is_done = false;
    cairn_status status = card_word_acquire(card, &word, &wait);
    if (status == CAIRN_OK) status = give(op, word, &is_done);
    if (status != CAIRN_OK || is_done) return status;
    status = card_stream_await_word(card, stream, &wait);
    if (status != CAIRN_OK && withdraw_word(op, word)) card_word_set(word);
    return status;
}

struct card_word *streams_detach_words(struct op *op, bool *is_late_out)
{
    struct stream_waits *waits = &op->session->streams;
    pthread_mutex_lock(&waits->lock);
    struct card_word *words = detach_words(op);
    *is_late_out = op->is_late;
    pthread_mutex_unlock(&waits->lock);
    return words;
}

void streams_let_go(struct card_word *words)
{
    while (words != NULL) {
        struct card_word *next = words->next;
        card_word_set(words);
        words = next;
    }
}

void streams_close_at(struct session *s, uint64_t close_ms)
{
    pthread_mutex_lock(&s->streams.lock);
    s->streams.close_ms = close_ms;
    pthread_cond_signal(&s->streams.changed);
    pthread_mutex_unlock(&s->streams.lock);
}

void streams_end(struct session *s)
{
    pthread_mutex_lock(&s->streams.lock);
    s->streams.is_over = true;
    const bool was_running = s->streams.is_running;
    s->streams.is_running = false;
    pthread_cond_signal(&s->streams.changed);
    pthread_mutex_unlock(&s->streams.lock);
    if (was_running) pthread_join(s->streams.thread, NULL);
}

/* Opening and closing sessions and jobs. A caller's options become a spec, and the loop thread
 * attaches the job. */
#include "client/job.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/base.h"
#include "client/device.h"
#include "client/layouts.h"
#include "client/op.h"
#include "client/push.h"
#include "client/read.h"
#include "client/session.h"
#include "proto/base/text.h"
#include "proto/spec/spec.h"

/* ==== session ==== */

#define PREFETCH_UNITS 2
#define CONNECT_MS     10000

/* Frees the session with the last reference; not under the lock. */
static void session_unref(void *object)
{
    struct session *s = object;
    const uint32_t left = WITH_LOCK(&s->lock, --s->refs);
    if (left > 0) return;
    for (struct op *op; (op = SLIST_FIRST(&s->spare.ops)) != NULL; free(op))
        SLIST_REMOVE_HEAD(&s->spare.ops, next_spare);
    memory_release(s);
    card_imports_close(s->imports);
    pthread_mutex_destroy(&s->streams.lock);
    pthread_cond_destroy(&s->streams.changed);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    close(s->event_fd);
    entrance_wipe(&s->entrance);
    free(s->name);
    free(s->token_file);
    free(s);
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

/* Records which run this process belongs to, and how often the run was restarted. A run named
 * "none" counts as unnamed, since torchrun uses this word for a run without a name. */
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
    s->launch.run = hash_of(run);
    s->launch.restarts = (uint32_t)report.values[CAIRN_ENV_RESTARTS].number;
}

/* Reads endpoint, fabric, device and host from the options, the environment or the defaults. */
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
    pthread_cond_init(&s->streams.changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&s->lock, NULL);
    TAILQ_INIT(&s->commands);
    pthread_mutex_init(&s->streams.lock, NULL);
    s->refs = 1;
    s->reach.away_since_ms = monotonic_ms();
    s->name = own_name(opts);
    randombytes_buf(&s->incarnation, sizeof s->incarnation);
    if (opts->token_file != NULL) s->token_file = strdup(opts->token_file);
    if (s->name == NULL || (opts->token_file != NULL && s->token_file == NULL))
        return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    return CAIRN_OK;
}

/* Finds the token, without which no attempt to connect over TCP would help. */
static cairn_status find_entry(struct session *s)
{
    struct sentence why = { "" };
    const cairn_status status = entrance_find(&s->entrance, &s->endpoint, s->token_file, NULL,
                                              &why);
    return status == CAIRN_OK ? CAIRN_OK : client_fail(status, "%s", why.text);
}

/* Returns true if another attempt would not help. */
static bool is_final(cairn_status status)
{
    return status == CAIRN_ERR_VERSION || status == CAIRN_ERR_REFUSED;
}

static cairn_status await_welcome(struct session *s)
{
    const uint64_t deadline_ms = monotonic_ms() + s->connect_ms;
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

/* Called before the fabric is opened, because the fabric's address names the card. */
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
        return client_fail(CAIRN_ERR_INVALID,
                           "opts.struct_size is %zu, this library's is %zu (the rest of a larger "
                           "struct must be 0)",
                           opts->struct_size, sizeof own);
    opts = &own;
    if (opts->reserved != 0 || opts->reserved_too != 0 || opts->reserved_last != 0)
        return client_fail(CAIRN_ERR_INVALID, "opts: a reserved field is not 0");
    if (opts->connect_timeout_ms < 0)
        return client_fail(CAIRN_ERR_INVALID, "opts.connect_timeout_ms is negative");
    struct sentence why = { "" };
    if (opts->name != NULL && text_check("opts.name", opts->name, CAIRN_NAME_MAX, &why) != CAIRN_OK)
        return client_fail(CAIRN_ERR_INVALID, "%s", why.text);
    if (sodium_init() < 0) return client_fail(CAIRN_ERR_INTERNAL, "libsodium does not start");
    struct session *s = calloc(1, sizeof *s);
    if (s == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    s->path.hub = hub;
    s->on_wait.call = opts->on_wait;
    s->on_wait.context = opts->on_wait_context;
    s->prefetch_units = opts->prefetch_units != 0 ? opts->prefetch_units : PREFETCH_UNITS;
    s->connect_ms = opts->connect_timeout_ms > 0 ? (uint32_t)opts->connect_timeout_ms : CONNECT_MS;
    cairn_status status = read_environment(opts, &s->env);
    if (status != CAIRN_OK) {
        free(s);
        return status;
    }
    note_run(s);
    status = endpoints_parse(s->env.values[CAIRN_ENV_ENDPOINT].text, &s->endpoints, NULL);
    assert(status == CAIRN_OK); // validated above
    s->endpoint = s->endpoints.list[0];
    endpoints_print(&s->endpoints, s->endpoint_text);
    status = init_shared(s, opts);
    if (status != CAIRN_OK) {
        free(s);
        return status;
    }
    status = find_entry(s);
    if (status == CAIRN_OK) status = open_device(s, opts->device);
    if (status == CAIRN_OK) status = loop_start(s);
    if (status == CAIRN_OK) {
        status = await_welcome(s);
        if (status == CAIRN_OK) {
            s->handle = handle_open(CAIRN_HANDLE_SESSION, s, session_unref);
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

/* Returns the handle of an open job, and tells that job to close. A job that is still being opened has
 * no handle yet; its open fails because of `stopping`. */
static cairn_job *next_job(struct session *s)
{
    HOLD_LOCK(&s->lock);
    cairn_job *handle = NULL;
    for (struct job *job = s->jobs; job != NULL && handle == NULL; job = job->next)
        if (!job->closing && job->handle != NULL) {
            job->closing = true;
            handle = job->handle;
        }
    return handle;
}

/* Waits, for at most a second, until no stream of another session waits, because such a stream
 * could block a call that frees memory. */
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
        // All handles are closed before any wait, since each job may wait for a shard.
        for (cairn_job *job; (job = next_job(s)) != NULL;)
            (void)handle_close(CAIRN_HANDLE_JOB, job);
        loop_stop(s);
        const bool changes = await_change();
        card_imports_turn(s->imports);
        stage_close_areas(s);
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
    return s->path.text; // constant while the session is open
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

/* ==== env ==== */

/* cairn_env_read: copies the results of client/env.h to the caller's struct. */

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
        return client_fail(CAIRN_ERR_INVALID,
                           "out must be given, with a struct_size of at least %zu", sizeof env);
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

/* ==== filling ==== */

/* Returns false if memory is lacking; the caller must release `filling` nevertheless. */
static bool filling_init(struct filling *filling, const struct job_spec_data *spec)
{
    filling->tensors = calloc(spec->tensor_count + 1, sizeof *filling->tensors);
    filling->frozen_tensors = calloc(spec->tensor_count + 1, sizeof *filling->frozen_tensors);
    filling->frozen_groups = calloc(spec->group_count + 1, sizeof *filling->frozen_groups);
    filling->rates = calloc(spec->group_count + 1, sizeof *filling->rates);
    if (filling->tensors == NULL || filling->frozen_tensors == NULL ||
        filling->frozen_groups == NULL || filling->rates == NULL)
        return false;
    // before its first round, a worker may write the state with which it begins
    filling->had_last = true;
    for (size_t g = 0; g < spec->group_count; g++) filling->rates[g] = (double)NAN;
    return true;
}

/* ==== job ==== */

#define CLOSE_MS 1000

static void free_job(struct job *job)
{
    struct session *s = job->session;
    for (uint32_t i = 0; i < job->parcels.count; i++) free(job->parcels.all[i]);
    free(job->parcels.all);
    packed_release(job->attachment.spec_packed);
    cairn__error__free_unpacked(job->attachment.refused, NULL); // NULL is fine
    client_tiles_free(job->tiles.declared);
    free(job->filling.tensors);
    free(job->filling.frozen_tensors);
    free(job->filling.frozen_groups);
    free(job->filling.rates);
    free(job->puts.notes);
    write_release(job);
    accumulate_release(job);
    cache_release(job);
    free(job->name);
    spec_release(&job->spec);
    free(job);
    session_unref(s);
}

static void on_job_handle_free(void *object)
{
    job_unref(object);
}

/* ---- the spec ---- */

static cairn_status fill_spec(struct job *job, const struct cairn_job_spec *from)
{
    cairn_status status = spec_set_name(&job->spec, job->name);
    if (status != CAIRN_OK) return client_fail(status, "the job's name is not valid");
    CAIRN_TRY(client_spec_fill(from, &job->spec, &job->attachment.open_flags));
    job->member.rank = from->rank;
    CAIRN_TRY(client_spec_launch(from, &job->attachment.launch, &job->attachment.start_wait_ms));
    job->attachment.spec_packed = packed_spec(&job->spec);
    return job->attachment.spec_packed != NULL
               ? CAIRN_OK
               : client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the job's spec");
}

/* ---- open ---- */

/* Returns a number that is not 0, since 0 marks a round that no job began. */
static uint32_t next_number(void)
{
    static atomic_uint_least32_t last;
    const uint32_t number = atomic_fetch_add(&last, 1) + 1;
    return number != 0 ? number : atomic_fetch_add(&last, 1) + 1;
}

static struct job *new_job(struct session *s, const char *name, cairn_role role)
{
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL) return NULL;
    job->session = s;
    job->on_last_unref = free_job;
    job->member.role = role;
    job->member.number = next_number();
    job->refs = 1;
    TAILQ_INIT(&job->parcels.landed);
    spec_init(&job->spec);
    randombytes_buf(&job->member.id, sizeof job->member.id);
    randombytes_buf(&job->member.token, sizeof job->member.token);
    if (job->member.id == 0) job->member.id = 1;
    WITH_LOCK(&s->lock, s->refs++);
    job->name = strdup(name);
    if (job->name == NULL) {
        free_job(job);
        return NULL;
    }
    return job;
}

/* The command that puts a job into the session's list. The command's reference becomes the
 * list's. */
static bool list_job_run(struct command *command)
{
    struct job *job = command->job;
    struct session *s = job->session;
    command->job = NULL;
    HOLD_LOCK(&s->lock);
    job->next = s->jobs;
    s->jobs = job;
    return true;
}

/* Hands the job to the loop thread, which attaches it. */
static cairn_status begin_attach(struct job *job)
{
    struct command *command = calloc(1, sizeof *command);
    if (command == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    command->run = list_job_run;
    command->job = job;
    job_ref(job);
    session_command(job->session, command);
    return CAIRN_OK;
}

static struct sentence awaited_text(struct job *job)
{
    const struct sentence put_off = WITH_LOCK(&job->session->lock, job->attachment.put_off);
    return put_off.text[0] != '\0' ? put_off : ask_opening_awaits(job);
}

/* Sleeps until the job is attached or has failed, or the deadline has passed. */
static void sleep_for_attach(struct job *job, uint64_t deadline_ms)
{
    struct session *s = job->session;
    struct patience patience = client_patience(job, deadline_ms);
    for (;;) {
        const uint64_t until_ms = client_says_at(&patience, deadline_ms);
        pthread_mutex_lock(&s->lock);
        bool waits = true;
        while ((waits = !job->attachment.attached_once && job->failure.status == CAIRN_OK &&
                        !s->ended) &&
               session_sleep(s, until_ms)) {}
        pthread_mutex_unlock(&s->lock);
        if (!waits || monotonic_ms() >= deadline_ms) return;
        client_say_wait(&patience, awaited_text(job).text);
    }
}

static cairn_status await_attach(struct job *job, uint64_t deadline_ms)
{
    struct session *s = job->session;
    sleep_for_attach(job, deadline_ms);
    pthread_mutex_lock(&s->lock);
    const bool ended = s->ended;
    const bool attached = job->attachment.attached_once;
    const cairn_status failed = job->failure.status;
    const struct sentence why = job->failure.why;
    pthread_mutex_unlock(&s->lock);
    if (failed != CAIRN_OK) {
        const cairn_status status = client_fail(failed, "%s", why.text);
        const Cairn__Error *refused = job->attachment.refused;
        for (size_t i = 0; refused != NULL && i < refused->n_differences; i++)
            client_differ(refused->differences[i]);
        return status;
    }
    if (ended) return client_fail(CAIRN_ERR_CLOSED, "the session was closed");
    if (attached) return CAIRN_OK;
    return client_fail(CAIRN_ERR_TIMEOUT, "cairn_job_open timed out: %s%s", awaited_text(job).text,
                       job->member.role == CAIRN_WORKER
                           ? "; if there was no such job, it may still be made: open it again to "
                             "go on, which does no harm, or drop it (`cairn job drop`)"
                           : "");
}

/* Ends the loop thread's work for the job. The wait is bounded, since a stopped fabric never
 * returns its loans. */
static void leave_job(struct job *job)
{
    struct session *s = job->session;
    const uint64_t deadline_ms = monotonic_ms() + CLOSE_MS;
    job->closing = true;
    session_kick(s);
    HOLD_LOCK(&s->lock);
    while (!job->closed && !s->ended && session_sleep(s, deadline_ms)) {}
}

static cairn_status open_inside(struct job *job, const struct cairn_job_spec *spec, int timeout_ms)
{
    const uint64_t deadline_ms = monotonic_ms() + (uint64_t)timeout_ms;
    CAIRN_TRY(spec != NULL ? fill_spec(job, spec) : CAIRN_OK);
    CAIRN_TRY(begin_attach(job));
    cairn_status status = await_attach(job, deadline_ms);
    if (status == CAIRN_OK && !filling_init(&job->filling, &job->spec))
        status = client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    if (status == CAIRN_OK) {
        job_ref(job); // taken before anyone can close the handle
        void *handle = handle_open(CAIRN_HANDLE_JOB, job, on_job_handle_free);
        pthread_mutex_lock(&job->session->lock); // cairn_close reads job->handle
        job->handle = handle;
        pthread_mutex_unlock(&job->session->lock);
        if (handle == NULL) {
            job_unref(job);
            status = client_fail(CAIRN_ERR_NO_MEMORY, "too many handles are open");
        }
    }
    if (status != CAIRN_OK) leave_job(job);
    return status;
}

/* Returns true if the job is open. A control connection can only be used by one member of a job. */
static bool is_open(struct session *s, const char *name)
{
    bool found = false;
    HOLD_LOCK(&s->lock);
    for (const struct job *job = s->jobs; job != NULL && !found; job = job->next)
        found = !job->closing && strcmp(job->name, name) == 0;
    return found;
}

cairn_status cairn_job_open(cairn *session, const char *name, const struct cairn_job_spec *spec,
                            cairn_role role, int timeout_ms, cairn_job **out)
{
    CAIRN_TRY(api_judge_call("out", out, timeout_ms));
    if (!job_name_ok(name))
        return client_fail(CAIRN_ERR_INVALID,
                           "the job's name is \"%.300s\"; allowed: 1 to 255 bytes of "
                           "[A-Za-z0-9._-], not beginning with '.' or '-'",
                           name != NULL ? name : "");
    if (role != CAIRN_WORKER && role != CAIRN_READER)
        return client_fail(CAIRN_ERR_INVALID,
                           "role is %d; CAIRN_WORKER (1) and CAIRN_READER (2) are allowed",
                           (int)role);
    if ((role == CAIRN_READER) != (spec == NULL))
        return client_fail(CAIRN_ERR_INVALID, "a worker gives a spec, a reader gives none");
    API_SESSION(s, session);
    if (is_open(s, name))
        return client_fail(CAIRN_ERR_EXISTS,
                           "job %s is open in this session; a second worker or reader of it "
                           "needs a session of its own",
                           name);
    struct job *job = new_job(s, name, role);
    cairn_status status = job != NULL ? open_inside(job, spec, timeout_ms)
                                      : client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    if (status == CAIRN_OK) *out = job->handle;
    const struct sentence notice = WITH_LOCK(&s->lock, job->known.notice);
    if (status == CAIRN_OK && notice.text[0] != '\0') session_tell(s, name, notice.text);
    job_unref(job);
    return status;
}

void cairn_job_close(cairn_job *handle)
{
    struct job *job = handle_get(CAIRN_HANDLE_JOB, handle);
    if (job == NULL) return;
    if (handle_close(CAIRN_HANDLE_JOB, handle)) leave_job(job);
    handle_put(handle);
}

cairn_status cairn_job_stats(cairn_job *handle, struct cairn_stats *out)
{
    API_JOB(job, handle);
    if (!struct_fits(out, offsetof(struct cairn_stats, accumulated_bytes)))
        return client_fail(CAIRN_ERR_INVALID, "out must be given, with its struct_size %zu",
                           sizeof *out);
    const struct cairn_stats stats = WITH_LOCK(&job->session->lock, job->measured.stats);
    struct_copy_out(out, &stats, sizeof stats);
    return CAIRN_OK;
}

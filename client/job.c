/* Opening and closing a job: what the caller says becomes a spec, and the loop thread attaches. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "client/accumulate.h"
#include "client/api.h"
#include "client/assemble.h"
#include "client/cache.h"
#include "client/handle.h"
#include "client/session.h"
#include "client/spec.h"
#include "client/struct.h"

#define CLOSE_MS 1000

void cairn_job_ref(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    job->refs++;
    pthread_mutex_unlock(&job->session->lock);
}

static void free_job(struct job *job)
{
    struct session *s = job->session;
    for (uint32_t i = 0; i < job->part_count; i++) free(job->parts[i]);
    free(job->parts);
    free(job->push_memory);
    free(job->actions.list);
    cairn_packed_release(job->spec_packed);
    cairn_client_tiles_free(job->declared);
    free(job->filled);
    free(job->frozen);
    free(job->driven);
    free(job->frozen_tensors);
    free(job->puts);
    cairn_client_write_release(job);
    cairn_assemble_release(job);
    cairn_accumulate_release(job);
    cairn_cache_release(job);
    free(job->name);
    cairn_spec_release(&job->spec);
    free(job);
    cairn_session_unref(s);
}

void cairn_job_unref(struct job *job)
{
    if (job == NULL) return;
    struct session *s = job->session;
    pthread_mutex_lock(&s->lock);
    const uint32_t left = --job->refs;
    pthread_mutex_unlock(&s->lock);
    if (left == 0) free_job(job);
}

static void on_handle_free(void *object)
{
    cairn_job_unref(object);
}

/* ---- the spec ---- */

static cairn_status fill_spec(struct job *job, const struct cairn_job_spec *from)
{
    cairn_status status = cairn_spec_set_name(&job->spec, job->name);
    if (status != CAIRN_OK) return cairn_client_fail(status, "the job's name is not valid");
    status = cairn_client_spec_fill(from, &job->spec, &job->open_flags);
    if (status != CAIRN_OK) return status;
    job->rank = from->rank;
    status = cairn_client_spec_launch(from, &job->launch, &job->start_wait_ms);
    if (status != CAIRN_OK) return status;
    job->spec_packed = cairn_packed_spec(&job->spec);
    return job->spec_packed != NULL
               ? CAIRN_OK
               : cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the job's spec");
}

/* ---- open ---- */

/* Not 0, which a round has that no job began. */
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
    job->role = role;
    job->number = next_number();
    job->refs = 1;
    cairn_spec_init(&job->spec);
    randombytes_buf(&job->member, sizeof job->member);
    randombytes_buf(&job->token, sizeof job->token);
    if (job->member == 0) job->member = 1;
    pthread_mutex_lock(&s->lock);
    s->refs++;
    pthread_mutex_unlock(&s->lock);
    job->name = strdup(name);
    if (job->name == NULL) {
        free_job(job);
        return NULL;
    }
    return job;
}

/* Loop thread: the list is its own. The command's reference becomes the list's. */
static bool list_run(struct command *command)
{
    struct job *job = command->job;
    struct session *s = job->session;
    command->job = NULL;
    pthread_mutex_lock(&s->lock);
    job->next = s->jobs;
    s->jobs = job;
    pthread_mutex_unlock(&s->lock);
    return true;
}

/* Hands the job to the loop thread, which attaches it. */
static cairn_status begin_attach(struct job *job)
{
    struct command *command = calloc(1, sizeof *command);
    if (command == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    command->run = list_run;
    command->job = job;
    cairn_job_ref(job);
    cairn_session_command(job->session, command);
    return CAIRN_OK;
}

static cairn_status await_attach(struct job *job, uint64_t deadline_ms)
{
    struct session *s = job->session;
    pthread_mutex_lock(&s->lock);
    while (!job->attached_once && job->failed == CAIRN_OK && !s->ended &&
           cairn_session_sleep(s, deadline_ms)) {}
    const bool ended = s->ended;
    const bool attached = job->attached_once;
    const cairn_status failed = job->failed;
    const struct cairn_sentence why = job->failed_why, put_off = job->put_off;
    pthread_mutex_unlock(&s->lock);
    if (failed != CAIRN_OK) return cairn_client_fail(failed, "%s", why.text);
    if (ended) return cairn_client_fail(CAIRN_ERR_CLOSED, "the session was closed");
    if (attached) return CAIRN_OK;
    if (put_off.text[0] != '\0')
        return cairn_client_fail(CAIRN_ERR_TIMEOUT, "JobOpen timed out: %s", put_off.text);
    return cairn_control_fail_awaited(s, job, CAIRN_MSG_JOB_OPEN);
}

/* Ends what the loop thread has of the job; bounded, since a stopped fabric keeps loans. */
static void leave(struct job *job)
{
    struct session *s = job->session;
    const uint64_t deadline_ms = cairn_client_now_ms() + CLOSE_MS;
    job->closing = true;
    cairn_session_kick(s);
    pthread_mutex_lock(&s->lock);
    while (!job->closed && !s->ended && cairn_session_sleep(s, deadline_ms)) {}
    pthread_mutex_unlock(&s->lock);
}

static cairn_status open_inside(struct job *job, const struct cairn_job_spec *spec, int timeout_ms)
{
    const uint64_t deadline_ms = cairn_client_now_ms() + (uint64_t)timeout_ms;
    cairn_status status = spec != NULL ? fill_spec(job, spec) : CAIRN_OK;
    if (status == CAIRN_OK) status = begin_attach(job);
    if (status != CAIRN_OK) return status;
    status = await_attach(job, deadline_ms);
    job->filled = status == CAIRN_OK ? calloc(job->spec.tensor_count + 1, 1) : NULL;
    job->frozen = status == CAIRN_OK ? calloc(job->spec.group_count + 1, sizeof *job->frozen)
                                     : NULL;
    job->driven = status == CAIRN_OK ? cairn_driven_make(job->spec.group_count) : NULL;
    job->frozen_tensors = status == CAIRN_OK
                              ? calloc(job->spec.tensor_count + 1, sizeof *job->frozen_tensors)
                              : NULL;
    if (status == CAIRN_OK && (job->filled == NULL || job->frozen == NULL || job->driven == NULL ||
                               job->frozen_tensors == NULL))
        status = cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    if (status == CAIRN_OK) {
        cairn_job_ref(job); // before the handle can be closed by anyone
        void *handle = cairn_handle_open(CAIRN_HANDLE_JOB, job, on_handle_free);
        pthread_mutex_lock(&job->session->lock); // cairn_close looks for it
        job->handle = handle;
        pthread_mutex_unlock(&job->session->lock);
        if (handle == NULL) {
            cairn_job_unref(job);
            status = cairn_client_fail(CAIRN_ERR_NO_MEMORY, "too many handles are open");
        }
    }
    if (status != CAIRN_OK) leave(job);
    return status;
}

/* A control connection speaks for one member of a job. */
static bool is_open(struct session *s, const char *name)
{
    bool found = false;
    pthread_mutex_lock(&s->lock);
    for (const struct job *job = s->jobs; job != NULL && !found; job = job->next)
        found = !job->closing && strcmp(job->name, name) == 0;
    pthread_mutex_unlock(&s->lock);
    return found;
}

cairn_status cairn_job_open(cairn *session, const char *name, const struct cairn_job_spec *spec,
                            cairn_role role, int timeout_ms, cairn_job **out)
{
    if (out == NULL || name == NULL || timeout_ms < 0 || !cairn_job_name_ok(name))
        return cairn_client_fail(
            CAIRN_ERR_INVALID,
            "out and name must be given, timeout_ms be 0 or more, and the name be of "
            "[A-Za-z0-9._-], at most 255 bytes, not beginning with '.' or '-'");
    if (role != CAIRN_WORKER && role != CAIRN_READER)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "role is %d; CAIRN_WORKER (1) and CAIRN_READER (2) are allowed",
                                 (int)role);
    if ((role == CAIRN_READER) != (spec == NULL))
        return cairn_client_fail(CAIRN_ERR_INVALID, "a worker gives a spec, a reader gives none");
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, session);
    if (s == NULL) return cairn_client_fail(CAIRN_ERR_HANDLE, "not an open session");
    if (is_open(s, name)) {
        cairn_handle_put(session);
        return cairn_client_fail(CAIRN_ERR_EXISTS,
                                 "job %s is open in this session; a second worker or reader of it "
                                 "needs a session of its own",
                                 name);
    }
    struct job *job = new_job(s, name, role);
    cairn_status status = job != NULL ? open_inside(job, spec, timeout_ms)
                                      : cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    if (status == CAIRN_OK) *out = job->handle;
    cairn_job_unref(job);
    cairn_handle_put(session);
    return status;
}

void cairn_job_close(cairn_job *handle)
{
    struct job *job = cairn_handle_get(CAIRN_HANDLE_JOB, handle);
    if (job == NULL) return;
    if (cairn_handle_close(CAIRN_HANDLE_JOB, handle)) leave(job);
    cairn_handle_put(handle);
}

cairn_status cairn_job_stats(cairn_job *handle, struct cairn_stats *out)
{
    struct job *job = cairn_handle_get(CAIRN_HANDLE_JOB, handle);
    if (job == NULL) return cairn_client_fail(CAIRN_ERR_HANDLE, "not an open job");
    cairn_status status = CAIRN_OK;
    struct cairn_stats stats;
    if (!cairn_struct_fits(out, offsetof(struct cairn_stats, accumulated_bytes))) {
        status = cairn_client_fail(CAIRN_ERR_INVALID, "out must be given, its struct_size be %zu",
                                   sizeof *out);
    } else {
        pthread_mutex_lock(&job->session->lock);
        stats = job->stats;
        pthread_mutex_unlock(&job->session->lock);
        cairn_struct_give(out, &stats, sizeof stats);
    }
    cairn_handle_put(handle);
    return status;
}

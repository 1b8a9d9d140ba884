/* Opening and closing a job: what the caller says becomes a spec, and the loop thread attaches. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "client/api/api.h"
#include "client/ask.h"
#include "client/base/error.h"
#include "client/base/handle.h"
#include "client/base/spec.h"
#include "client/base/struct.h"
#include "client/loop/attach.h"
#include "client/op.h"
#include "client/push/assemble.h"

#define CLOSE_MS 1000

static void free_job(struct job *job)
{
    struct session *s = job->session;
    cairn_parcels_release(&job->parcels);
    cairn_packed_release(job->attachment.spec_packed);
    cairn__error__free_unpacked(job->attachment.refused, NULL); // NULL is fine
    cairn_client_tiles_free(job->tiles.declared);
    cairn_filling_release(&job->filling);
    free(job->puts.notes);
    cairn_write_release(job);
    cairn_assemble_release(job);
    cairn_accumulate_release(job);
    cairn_cache_release(job);
    free(job->name);
    cairn_spec_release(&job->spec);
    free(job);
    cairn_session_unref(s);
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
    status = cairn_client_spec_fill(from, &job->spec, &job->attachment.open_flags);
    if (status != CAIRN_OK) return status;
    job->member.rank = from->rank;
    status = cairn_client_spec_launch(from, &job->attachment.launch,
                                      &job->attachment.start_wait_ms);
    if (status != CAIRN_OK) return status;
    job->attachment.spec_packed = cairn_packed_spec(&job->spec);
    return job->attachment.spec_packed != NULL
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
    job->on_last_unref = free_job;
    job->member.role = role;
    job->member.number = next_number();
    job->refs = 1;
    TAILQ_INIT(&job->landed.parcels);
    cairn_spec_init(&job->spec);
    randombytes_buf(&job->member.id, sizeof job->member.id);
    randombytes_buf(&job->member.token, sizeof job->member.token);
    if (job->member.id == 0) job->member.id = 1;
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

/* Hands the job to the loop thread, which attaches it. */
static cairn_status begin_attach(struct job *job)
{
    struct command *command = calloc(1, sizeof *command);
    if (command == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    command->run = cairn_attach_list_run;
    command->job = job;
    cairn_job_ref(job);
    cairn_session_command(job->session, command);
    return CAIRN_OK;
}

static struct cairn_sentence awaited_text(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    const struct cairn_sentence put_off = job->attachment.put_off;
    pthread_mutex_unlock(&job->session->lock);
    return put_off.text[0] != '\0' ? put_off : cairn_ask_opening_awaits(job);
}

/* Sleeps until the job is attached, or fails, or the time is over. */
static void sleep_for_attach(struct job *job, uint64_t deadline_ms)
{
    struct session *s = job->session;
    struct patience patience = cairn_client_patience(job, deadline_ms);
    for (;;) {
        const uint64_t until_ms = cairn_client_says_at(&patience, deadline_ms);
        pthread_mutex_lock(&s->lock);
        bool waits = true;
        while ((waits = !job->attachment.attached_once && job->failure.status == CAIRN_OK &&
                        !s->ended) &&
               cairn_session_sleep(s, until_ms)) {}
        pthread_mutex_unlock(&s->lock);
        if (!waits || cairn_client_now_ms() >= deadline_ms) return;
        cairn_client_say_wait(&patience, awaited_text(job).text);
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
    const struct cairn_sentence why = job->failure.why;
    pthread_mutex_unlock(&s->lock);
    if (failed != CAIRN_OK) {
        const cairn_status status = cairn_client_fail(failed, "%s", why.text);
        const Cairn__Error *refused = job->attachment.refused;
        for (size_t i = 0; refused != NULL && i < refused->n_differences; i++)
            cairn_client_differ(refused->differences[i]);
        return status;
    }
    if (ended) return cairn_client_fail(CAIRN_ERR_CLOSED, "the session was closed");
    if (attached) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_TIMEOUT, "cairn_job_open timed out: %s%s",
                             awaited_text(job).text,
                             job->member.role == CAIRN_WORKER
                                 ? "; where there was no such job it may be made all the same: "
                                   "open it again to go on, which does no harm, or drop it "
                                   "(`cairn job drop`)"
                                 : "");
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
    if (status == CAIRN_OK && !cairn_filling_init(&job->filling, &job->spec))
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
    cairn_status status = cairn_api_judge_call("out", out, timeout_ms);
    if (status != CAIRN_OK) return status;
    if (!cairn_job_name_ok(name))
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "the job's name is \"%.300s\"; allowed: 1 to 255 bytes of "
                                 "[A-Za-z0-9._-], not beginning with '.' or '-'",
                                 name != NULL ? name : "");
    if (role != CAIRN_WORKER && role != CAIRN_READER)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "role is %d; CAIRN_WORKER (1) and CAIRN_READER (2) are allowed",
                                 (int)role);
    if ((role == CAIRN_READER) != (spec == NULL))
        return cairn_client_fail(CAIRN_ERR_INVALID, "a worker gives a spec, a reader gives none");
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, session);
    if (s == NULL) return cairn_handle_fail(session, "session");
    if (is_open(s, name)) {
        cairn_handle_put(session);
        return cairn_client_fail(CAIRN_ERR_EXISTS,
                                 "job %s is open in this session; a second worker or reader of it "
                                 "needs a session of its own",
                                 name);
    }
    struct job *job = new_job(s, name, role);
    status = job != NULL ? open_inside(job, spec, timeout_ms)
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
    if (job == NULL) return cairn_handle_fail(handle, "job");
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

/* Writing planes at a step boundary: a round of this worker alone, with puts instead of gradients. */
#include <stdlib.h>

#include "client/api/judge.h"
#include "client/ask.h"
#include "client/op.h"
#include "client/push/transfer.h"

#define CANCEL_MS 1000

static struct cairn_round open_write(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    const struct cairn_round round = job->writing.round;
    pthread_mutex_unlock(&job->session->lock);
    return round;
}

static void set_write(struct job *job, struct cairn_round round)
{
    pthread_mutex_lock(&job->session->lock);
    job->writing.round = round;
    pthread_cond_broadcast(&job->session->changed);
    pthread_mutex_unlock(&job->session->lock);
}

/* Under the lock: a write of ours that nothing has voided yet. */
static bool is_writing(const struct job *job)
{
    return job->writing.round.round != 0 && job->writing.round.round > job->filling.void_round;
}

cairn_status cairn_api_await_write(struct job *job, uint64_t deadline_ms)
{
    struct session *s = job->session;
    pthread_mutex_lock(&s->lock);
    while (is_writing(job) && !job->closed && !s->ended && job->failure.status == CAIRN_OK &&
           cairn_session_sleep(s, deadline_ms)) {}
    const bool ended = job->closed || s->ended;
    const uint64_t open = is_writing(job) && !ended ? job->writing.round.round : 0;
    pthread_mutex_unlock(&s->lock);
    const cairn_status status = cairn_api_check(job);
    if (status != CAIRN_OK || open == 0) return status; // closed: what is asked next says so
    return cairn_client_fail(
        CAIRN_ERR_TIMEOUT,
        "a write of this worker is open (round %llu): no round opens before its cairn_write_end",
        (unsigned long long)open);
}

uint64_t cairn_api_write_round(struct job *job)
{
    return open_write(job).round;
}

/* The write is void, or the wish for one (round 0) is withdrawn; keeps this thread's sentence. */
static void cancel(struct job *job, uint64_t round)
{
    struct cairn_sentence said;
    Cairn__WriteCancel message = CAIRN__WRITE_CANCEL__INIT;
    cairn_sentence_set(&said, "%s", cairn_error());
    message.round = round;
    // Unanswered, it is void all the same: nobody commits it.
    (void)!cairn_ask(job, CAIRN_MSG_WRITE_CANCEL, &message.base, CAIRN_MSG_DONE,
                     cairn_api_deadline(CANCEL_MS), NULL);
    cairn_client_fail(CAIRN_OK, "%s", said.text);
}

/* Nobody commits it: it is void here before the coordinator says so, and the next one may begin. */
static void give_up(struct job *job, uint64_t round)
{
    pthread_mutex_lock(&job->session->lock);
    job->writing.round = (struct cairn_round) { .round = 0 };
    if (round > job->filling.void_round) {
        job->filling.void_round = round;
        job->filling.void_why.text[0] = '\0';
    }
    pthread_cond_broadcast(&job->session->changed);
    pthread_mutex_unlock(&job->session->lock);
    cancel(job, round);
}

/* ---- begin ---- */

static cairn_status judge_begin(struct job *job)
{
    if (job->member.role != CAIRN_WORKER)
        return cairn_client_fail(CAIRN_ERR_REFUSED, "a reader cannot write");
    pthread_mutex_lock(&job->session->lock);
    const bool writing = job->writing.round.round != 0;
    const bool open = job->filling.round > job->filling.void_round && !job->filling.committed;
    pthread_mutex_unlock(&job->session->lock);
    if (writing)
        return cairn_client_fail(CAIRN_ERR_EXISTS, "a write is open: end it with cairn_write_end");
    if (open)
        return cairn_client_fail(CAIRN_ERR_REFUSED,
                                 "this worker has a round open: commit it, then write");
    return CAIRN_OK;
}

static cairn_status begin_inside(struct job *job, uint64_t deadline_ms)
{
    struct cairn_round round = { .struct_size = sizeof round };
    cairn_status status = judge_begin(job);
    if (status != CAIRN_OK) return status;
    status = cairn_api_round_begin(job, CAIRN_MSG_WRITE_BEGIN, deadline_ms, &round);
    if (status == CAIRN_ERR_TIMEOUT) cancel(job, 0);
    if (status != CAIRN_OK) return status;
    pthread_mutex_lock(&job->session->lock);
    cairn_write_release(job);
    job->writing.round = round;
    job->puts.status = CAIRN_OK;
    pthread_mutex_unlock(&job->session->lock);
    return CAIRN_OK;
}

cairn_status cairn_write_begin(cairn_job *handle, int timeout_ms)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = cairn_api_judge_call(NULL, NULL, timeout_ms);
    if (status == CAIRN_OK) status = begin_inside(job, cairn_api_deadline(timeout_ms));
    return cairn_api_leave(handle, status);
}

/* ---- put ---- */

/* A box of a plane that was put in the write that is open. */
struct written {
    struct written *next;
    uint32_t tensor;
    uint8_t plane;
    struct cairn_box box;
};

void cairn_write_release(struct job *job)
{
    for (struct written *w = job->writing.boxes, *next; w != NULL; w = next) {
        next = w->next;
        free(w);
    }
    job->writing.boxes = NULL;
}

/* Notes what is put, so that no element is put twice. */
static cairn_status claim(struct job *job, const struct command *pattern)
{
    char mine[CAIRN_BOX_TEXT_BYTES], theirs[CAIRN_BOX_TEXT_BYTES];
    struct written *fresh = malloc(sizeof *fresh);
    if (fresh == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    *fresh = (struct written) { NULL, pattern->tensor, pattern->plane, pattern->piece.box };
    pthread_mutex_lock(&job->session->lock);
    const struct written *had = job->writing.boxes;
    while (had != NULL && (had->tensor != fresh->tensor || had->plane != fresh->plane ||
                           !cairn_box_overlap(&had->box, &fresh->box)))
        had = had->next;
    const bool twice = had != NULL;
    if (twice) {
        cairn_box_text(&had->box, theirs);
    } else {
        fresh->next = job->writing.boxes;
        job->writing.boxes = fresh;
    }
    pthread_mutex_unlock(&job->session->lock);
    if (!twice) return CAIRN_OK;
    cairn_box_text(&fresh->box, mine);
    free(fresh);
    return cairn_client_fail(CAIRN_ERR_EXISTS,
                             "tensor %s, %s: box %s has elements of %s, which was put in this "
                             "write already; each element is put once",
                             job->spec.tensors[pattern->tensor].name,
                             cairn_plane_name(pattern->plane), mine, theirs);
}

/* It was not put after all. */
static void unclaim(struct job *job, const struct command *pattern)
{
    pthread_mutex_lock(&job->session->lock);
    struct written **link = &job->writing.boxes;
    while (*link != NULL &&
           ((*link)->tensor != pattern->tensor || (*link)->plane != pattern->plane ||
            !cairn_box_equal(&(*link)->box, &pattern->piece.box)))
        link = &(*link)->next;
    struct written *gone = *link;
    if (gone != NULL) *link = gone->next;
    pthread_mutex_unlock(&job->session->lock);
    free(gone);
}

cairn_status cairn_api_write_put(struct job *job, uint64_t round, const char *tensor,
                                 const char *plane, const struct cairn_box *box,
                                 const struct cairn_mem *given, cairn_op **op_out)
{
    size_t index;
    struct cairn_mem mem;
    struct cairn_box of_target;
    cairn_status status = cairn_api_judge_boxed(job, tensor, given, &mem, &index, &box, &of_target);
    if (status != CAIRN_OK) return status;
    int number;
    status = cairn_api_judge_state(job, index, plane, &number);
    if (status == CAIRN_OK) status = cairn_api_batch_judge_buffer(job, index);
    if (status != CAIRN_OK) return status;
    status = cairn_api_judge_dtype(job, index, number, &mem);
    if (status != CAIRN_OK) return status;
    struct command pattern = { .tensor = (uint32_t)index,
                               .plane = (uint8_t)number,
                               .dtype = (uint8_t)mem.dtype,
                               .ptr = mem.ptr,
                               .round = round };
    status = cairn_api_judge_box(job, index, box, &mem, &pattern.piece);
    if (status != CAIRN_OK) return status;
    if (job->spec.tensors[index].kind == CAIRN_BLOB && !pattern.piece.whole)
        return cairn_client_fail(
            CAIRN_ERR_INVALID,
            "tensor %s: a blob is written whole; give NULL for the box, or [0, %llu)", tensor,
            (unsigned long long)job->spec.tensors[index].shape.dim[0]);
    status = cairn_api_bring(&mem, &pattern.piece, &pattern.owned);
    if (status != CAIRN_OK) return status;
    pattern.ptr = mem.ptr;
    status = claim(job, &pattern);
    if (status == CAIRN_OK) {
        status = cairn_op_begin(job, CAIRN_CHUNK_PUT, cairn_transfer_run, &pattern, op_out);
        if (status != CAIRN_OK) unclaim(job, &pattern);
    }
    if (status != CAIRN_OK) free(pattern.owned);
    return status;
}

/* ---- end ---- */

/* The first put that failed since the write began. */
static cairn_status judge_puts(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    const cairn_status status = job->puts.status;
    const struct cairn_sentence why = job->puts.why;
    pthread_mutex_unlock(&job->session->lock);
    if (status == CAIRN_OK) return CAIRN_OK;
    if (status == CAIRN_ERR_STALE) // the write had become void, which is no fault of the put
        return cairn_client_fail(CAIRN_ERR_EPOCH_CHANGED, "nothing was written, begin again: %s",
                                 why.text);
    return cairn_client_fail(status, "nothing was written, because a put failed: %s", why.text);
}

static cairn_status end_inside(struct job *job, uint64_t deadline_ms, struct cairn_version *out)
{
    const struct cairn_round round = open_write(job);
    struct cairn_result result = { .struct_size = sizeof result };
    if (round.round == 0)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "no write is open: begin one with cairn_write_begin");
    cairn_status status = cairn_api_await_none(job, &job->puts.open, "puts", deadline_ms);
    if (status != CAIRN_OK) return status;
    status = judge_puts(job);
    if (status != CAIRN_OK) {
        give_up(job, round.round);
        return status;
    }
    status = cairn_api_commit(job, &round, 1, &(struct cairn_commit_words) { { 0, NULL }, NULL },
                              deadline_ms, &result);
    if (status == CAIRN_ERR_TIMEOUT || status == CAIRN_ERR_NO_MEMORY)
        return status; // called again, it goes on
    set_write(job, (struct cairn_round) { .round = 0 });
    if (status == CAIRN_OK) *out = result.version;
    if (status != CAIRN_ERR_EPOCH_CHANGED) return status;
    struct cairn_sentence why;
    cairn_sentence_set(&why, "%s", cairn_error());
    return cairn_client_fail(status, "nothing was written, begin again: %s", why.text);
}

cairn_status cairn_write_end(cairn_job *handle, int timeout_ms, struct cairn_version *out)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = cairn_api_judge_call("out", out, timeout_ms);
    if (status == CAIRN_OK) status = end_inside(job, cairn_api_deadline(timeout_ms), out);
    return cairn_api_leave(handle, status);
}

/* A process that maps memory of a GPU which another process owns cannot be restored from a
 * checkpoint. A trainer may therefore let go of such memory for a while: the fabric sends the
 * shards away, and they come back when they are let in. Nothing may be open meanwhile, and
 * published memory that was mapped for reading is gone, as when a shard is lost. */
#include "client/loop/detach.h"

#include "client/device/import.h"
#include "client/job.h"

static void answer(struct session *s, cairn_status status)
{
    s->detachment.is_answered = true;
    s->detachment.status = status;
    pthread_cond_broadcast(&s->changed);
}

static bool has_parcels(const struct job *job)
{
    for (uint32_t i = 0; i < job->parcels.count; i++)
        if (job->parcels.all[i]->op != NULL) return true;
    return false;
}

/* Under the lock. */
static cairn_status judge_job(struct job *job, struct cairn_sentence *why)
{
    const struct filling *filling = &job->filling;
    if (filling->round > filling->void_round && !filling->committed)
        return cairn_fail(why, CAIRN_ERR_BUSY, "job %s: round %llu is open: commit it first",
                          job->name, (unsigned long long)filling->round);
    if (has_parcels(job))
        return cairn_fail(why, CAIRN_ERR_BUSY, "job %s: an operation is under way: wait for it",
                          job->name);
    if (!cairn_cache_forget(job))
        return cairn_fail(why, CAIRN_ERR_BUSY, "job %s: a unit is mapped: unmap it first",
                          job->name);
    return CAIRN_OK;
}

/* Under the lock. */
static cairn_status judge(struct session *s, struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    if (s->commands.first != NULL)
        return cairn_fail(why, CAIRN_ERR_BUSY, "an operation is under way: wait for it");
    for (struct job *job = s->jobs; job != NULL && status == CAIRN_OK; job = job->next)
        status = judge_job(job, why);
    return status;
}

static void hold_off(struct session *s, bool is_off)
{
    if (s->detachment.is_off == is_off) return;
    s->detachment.is_off = is_off;
    if (s->path.fabric != NULL) cairn_fabric_hold_off(s->path.fabric, is_off);
    cairn_session_kick(s); // behind the fabric's next progress
}

void cairn_detach_turn(struct session *s)
{
    struct detachment *d = &s->detachment;
    bool wants_off = d->is_off;
    pthread_mutex_lock(&s->lock);
    if (d->is_asked && !d->is_answered) {
        cairn_status status = CAIRN_OK;
        if (d->wants_off && !d->is_off) status = judge(s, &d->why);
        if (status == CAIRN_OK) wants_off = d->wants_off;
        // The answer waits until imported memory is unmapped, for which the fabric must let it go.
        if (status != CAIRN_OK || !wants_off ||
            (d->is_off && s->published == NULL && !cairn_card_imports_wait(s->imports)))
            answer(s, status);
    } else if (!d->is_asked) {
        wants_off = d->wants_off;
    }
    pthread_mutex_unlock(&s->lock);
    hold_off(s, wants_off);
}

cairn_status cairn_detach_ask(struct session *s, bool wants_off, uint64_t deadline_ms)
{
    struct detachment *d = &s->detachment;
    cairn_status status = CAIRN_OK;
    struct cairn_sentence why = { "" };
    pthread_mutex_lock(&s->lock);
    if (d->is_asked)
        status = cairn_fail(&why, CAIRN_ERR_BUSY, "another thread detaches or attaches");
    if (status == CAIRN_OK) {
        const bool was_off = d->wants_off;
        d->is_asked = true;
        d->is_answered = false;
        d->wants_off = wants_off;
        pthread_mutex_unlock(&s->lock);
        cairn_session_kick(s);
        pthread_mutex_lock(&s->lock);
        while (!d->is_answered && !s->ended && cairn_session_sleep(s, deadline_ms)) {}
        status = d->is_answered ? d->status : CAIRN_ERR_TIMEOUT;
        if (status == CAIRN_ERR_TIMEOUT)
            cairn_sentence_set(&why, "what shards showed was not all taken back in time");
        else
            why = d->why;
        d->is_asked = false;
        if (status != CAIRN_OK) d->wants_off = was_off;
    }
    pthread_mutex_unlock(&s->lock);
    if (status == CAIRN_OK) return CAIRN_OK;
    cairn_session_kick(s);
    return cairn_client_fail(status, "%s", why.text);
}

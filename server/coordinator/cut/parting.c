#include "server/coordinator/cut/parting.h"

#include <inttypes.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/cut/cut.h"
#include "server/coordinator/cut/cuts.h"

static void say_unsaved(struct cairn_cluster_job *job, const char *why)
{
    cairn_sentence_set(&job->parting.outcome,
                       "nothing durable is left of job %s but older snapshots: %s", job->spec.name,
                       why);
}

void cairn_cluster_parting_want(struct cairn_cluster_job *job)
{
    struct cairn_cluster_parting *p = &job->parting;
    if (p->state == CAIRN_PARTING_WANTED || p->state == CAIRN_PARTING_TAKEN) return;
    if (p->is_saved && (job->state == CAIRN_CLUSTER_JOB_LOST ||
                        cairn_version_compare(p->version, cairn_cluster_job_version(job)) == 0))
        return;
    p->state = CAIRN_PARTING_WANTED;
    p->is_saved = false;
    say_unsaved(job, "its snapshot had not begun");
}

bool cairn_cluster_parting_advance(struct cairn_cluster_job *job)
{
    struct cairn_cluster_parting *p = &job->parting;
    struct cairn_sentence why;
    if (p->state != CAIRN_PARTING_WANTED) return p->state != CAIRN_PARTING_TAKEN;
    p->state = CAIRN_PARTING_TAKEN;
    say_unsaved(job, "its snapshot was not done in time");
    const cairn_status status = cairn_cluster_cut_begin_unasked(job, CAIRN_CUT_PARTING, &why);
    if (status == CAIRN_OK) return p->state == CAIRN_PARTING_ENDED;
    if (status == CAIRN_ERR_BUSY) cairn_cluster_cut_hurry(job); // it is behind that one
    p->state = status == CAIRN_ERR_BUSY ? CAIRN_PARTING_WANTED : CAIRN_PARTING_ENDED;
    say_unsaved(job, why.text);
    return p->state == CAIRN_PARTING_ENDED;
}

void cairn_cluster_parting_cut_ended(const struct cairn_cluster_cut *cut)
{
    struct cairn_cluster_parting *p = &cut->job->parting;
    p->state = CAIRN_PARTING_ENDED;
    p->is_saved = cut->status == CAIRN_OK;
    p->version = cut->version;
    if (p->is_saved)
        cairn_sentence_set(&p->outcome, "job %s is saved as snapshot %s of step %" PRIu64,
                           cut->job->spec.name, cut->id, cut->version.step);
    else
        say_unsaved(cut->job, cut->why.text);
}

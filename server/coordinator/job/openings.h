/* Openings: workers and readers on their way into a job. */
#ifndef CAIRN_COORDINATOR_JOB_OPENINGS_H
#define CAIRN_COORDINATOR_JOB_OPENINGS_H

#include "server/coordinator/base/names.h"

/* A member's JobOpen, until the member is ATTACHED. */
struct cairn_cluster_opening {
    struct cairn_paged pages;    /* owned; in PAGES */
    struct cairn_packed *packed; /* held: the spec as it came; NULL: a reader's, or not whole yet */
    struct cairn_job_spec_data spec; /* owned; a reader's has no name */
    /* held: the job's spec that this one was compared with; NULL: none yet */
    struct cairn_packed *compared;
    bool joins;                        /* that spec is the same, or was */
    struct cairn_sentence differences; /* unless it joins */
    Cairn__Error *rows;                /* owned: the same, a Difference each; NULL: it joins */
    uint32_t launch, start_wait_ms;    /* JobOpen.world: so many came together; 0: not said */
    uint64_t attached_id;              /* of the job that it was a member of already; 0: of none */
    uint64_t seen_epoch;               /* of that job, under a store of our identity; 0: none */
    bool must_exist;                   /* it begins no job */
    bool resumes;                      /* without the job it wants the newest snapshot restored */
    bool must_not_exist;               /* it joins none that has taken a step */
    bool takes_over;                   /* a rank from a worker that lives */
    uint32_t restarts;                 /* of the launcher's run */
    uint64_t run;                      /* 0: not known */
    uint64_t contested_ms; /* since when it waits for its rank (now_ms + 1); 0: it does not */
    bool put_off;          /* it failed too often: member/relapse.h */
};

/* The cluster's openings. The flags keep cairn_cluster_openings_advance from being entered
 * twice. */
struct cairn_cluster_openings {
    bool advancing, again;
    struct cairn_cluster_plan *plans; /* jobs.c: jobs that a thread plans */
    bool contested;                   /* one waits for its rank to be free, or is put off */
};

/* JobOpen: answered at once, or when the job is there. */
void cairn_cluster_member_open(struct cairn_cluster_session *session, uint32_t request,
                               const Cairn__JobOpen *message);
/* A page of the spec that a JobOpen announced. */
void cairn_cluster_member_page(struct cairn_cluster_session *session, uint32_t request,
                               const Cairn__Page *page);
/* The spec's bounds of workers are within round.workers_max. CAIRN_ERR_INVALID. */
cairn_status cairn_cluster_judge_workers(const struct cairn_cluster *cluster,
                                         const struct cairn_job_spec_data *spec,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Who waits for a job looks again: a shard came, a job was made, restored or dropped. */
void cairn_cluster_openings_advance(struct cairn_cluster *cluster);
/* Whoever waits for a rank does not wait for ever. */
void cairn_cluster_openings_tick(struct cairn_cluster *cluster);
/* The restore that the job's openers wished has ended. CAIRN_OK: the job is there, or there is nothing to
 * restore it from; with another status the openers are refused. */
void cairn_cluster_openers_resumed(struct cairn_cluster *cluster, const char *name,
                                   cairn_status status, const char *text);
/* Does the spec of an opener join a job that is to be restored? */
struct cairn_cluster_verdict;
/* Adds to the list the specs of those who wish that the job is restored. True: some are new. */
bool cairn_cluster_openers_list(struct cairn_cluster *cluster, const char *name,
                                struct cairn_cluster_verdict **list);
/* Compares those that were not yet with what is to be restored. Any thread. */
void cairn_cluster_verdicts_judge(struct cairn_cluster_verdict *list,
                                  const struct cairn_job_spec_data *saved);
void cairn_cluster_verdicts_free(struct cairn_cluster_verdict *list);
/* The snapshot is to be restored for the openers who wish it, all of whom are in the list: refuses who came
 * with another spec. CAIRN_ERR_MISMATCH: all of them did. */
cairn_status cairn_cluster_openers_judge(struct cairn_cluster *cluster, const char *name,
                                         struct cairn_cluster_verdict *list,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The job could not be made: its openers hear why. */
void cairn_cluster_job_openers_fail(struct cairn_cluster *cluster, const char *name,
                                    cairn_status status, const char *text);

/* ---- join.c, for openings.c ---- */

/* Its job is there: the member joins it, or is refused. */
void cairn_cluster_opening_join(struct cairn_cluster_member *member, struct cairn_cluster_job *job);
/* The worker whose rank the member wants, and may not take now; NULL: there is none. */
const struct cairn_cluster_member *
cairn_cluster_opening_rival(const struct cairn_cluster_member *member,
                            const struct cairn_cluster_job *job);
/* The member's JobOpen fails. Frees the member. */
void cairn_cluster_opening_refuse(struct cairn_cluster_member *member, cairn_status status,
                                  const char *text);
/* True: opening.joins says whether the member's spec is the job's, or was. False: a thread looks, or has
 * looked, and who waits for the job looks again; or the member was refused, and is gone. */
bool cairn_cluster_opening_compare(struct cairn_cluster_member *member,
                                   struct cairn_cluster_job *job);
/* Adds what a spec has other than the job's, and what makes the job so, in words; and as rows of an Error
 * (the caller's, by cairn__error__free_unpacked; NULL: no memory). Any thread. */
void cairn_cluster_opening_differences(const struct cairn_job_spec_data *spec,
                                       const struct cairn_job_spec_data *job,
                                       struct cairn_sentence *why, Cairn__Error **rows_out);

#endif

#ifndef CAIRN_COORDINATOR_MIRROR_H
#define CAIRN_COORDINATOR_MIRROR_H

#include "server/coordinator/cluster.h"
#include "server/core/mirror.h"

/* The mirrors of a shard's part of a job, as the files see them that make mirrors: mirror.c has a mirror's
 * life, mirror_rounds.c a mirror's part in the rounds, and mirror_audits.c the comparison of all copies.
 * job.h has what others call. Loop thread. */

/* A report of the owner that waits for those of its standbys. */
struct mirror_waiting {
    uint8_t *bytes; /* owned: the packed message; NULL: none waits */
    size_t byte_count;
    struct mirror_report report;
    uint64_t since_ms; /* coord_now_ms */
};

/* Who has the state: the owner, and the standby of each of its mirrors. */
enum { CAIRN_AUDIT_OWNER, CAIRN_AUDIT_STANDBYS, CAIRN_AUDIT_SIDES = 1 + CAIRN_STANDBYS_MAX };

/* The digests that one side has told: of an audited version, or of a range of its checksums. */
struct audit_told {
    struct mirror_report of; /* the round that made the version */
    uint64_t all;            /* checksums; 0: it was not audited */
    uint32_t count;
    uint64_t digests[CAIRN_AUDIT_RANGES];
    bool changed; /* the leaf has changed in that side's memory */
};

/* The word of one side on the sums of a round. */
struct sums_told {
    struct mirror_report of;
    /* of the sum of squares and the count of elements that are not finite: the weights of the members are
     * the owner's alone; 0: nothing was told */
    uint64_t hash;
};

/* The mirror of a part at one standby. */
struct coord_mirror {
    struct coord_mirrors *all; /* that it is one of */
    uint64_t serial;           /* of the mirror as it is now: tells late answers apart */
    struct mirror_state state;
    uint64_t generation,
        layout; /* of the job when the standby's part was made; layout: its version */
    char name[CAIRN_NAME_MAX + 1];   /* of the standby; "": there was none yet */
    uint64_t incarnation;            /* of its process */
    struct coord_shard_entry *entry; /* borrowed; NULL: the process is away */
    uint64_t member, token;          /* as which it asks the owner */
    uint8_t *answer; /* owned: the standby's last answer to a Fence, packed; NULL: none */
    size_t answer_bytes;
    struct sums_told sums; /* the last */
    uint64_t again_ms;     /* coord_now_ms: no mirror is made before */
    unsigned failures;     /* since it was in step */
    struct sentence why;   /* why there is no mirror, if there is none */
};

/* The mirrors of a shard's part of a job. */
struct coord_mirrors {
    struct coord_mirrors *next; /* of the job */
    struct coord_job *job;
    uint32_t shard; /* the owner's index */
    struct coord_mirror of[CAIRN_STANDBYS_MAX];
    struct mirror_waiting waiting[CAIRN_MIRROR_REPORTS]; /* the owner's */
    struct sums_told sums;                               /* the owner's, of the report that waits */
    struct audit_told audited[CAIRN_AUDIT_SIDES];        /* the last of each */
    /* the range of checksums in which some of them differ; count 0: none is looked for */
    struct {
        uint64_t first, count;
        bool is_asked[CAIRN_AUDIT_SIDES];
        struct audit_told told[CAIRN_AUDIT_SIDES];
    } look;
};

/* Goes through all mirrors of a job: `all` is those of a part, and `mirror` one of them. */
#define CAIRN_EACH_MIRROR(job, all, mirror)                                             \
    for (struct coord_mirrors *all = (job)->loss.mirrors; all != NULL; all = all->next) \
        for (struct coord_mirror *mirror = all->of; mirror < all->of + CAIRN_STANDBYS_MAX; mirror++)

/* Returns the mirrors of the part at the index; NULL if there was none yet. */
struct coord_mirrors *coord_mirrors_find(const struct coord_job *job, uint32_t shard);
/* Returns the mirror that the shard holds, or is given; NULL if there is none. */
struct coord_mirror *coord_mirror_at(const struct coord_job *job,
                                     const struct coord_shard_entry *entry);
/* True if the standby's part has the shape that the job has now. A part of another layout is never used. */
bool coord_mirror_fits(const struct coord_mirror *mirror);
struct mirror_view coord_mirror_view(const struct coord_mirror *mirror);
/* Returns the owner's name, for a sentence. */
const char *coord_mirrors_owner(const struct coord_mirrors *all);
/* Ends the mirror, unless the standby alone has the part. If the store says that it is in step, the owner's
 * reports wait until the store does not. */
void coord_mirror_end(struct coord_mirror *mirror, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- rounds (mirror_rounds.c) ---- */

/* Lets a standby take part that is READY, if no round is open. It is filled before the next one opens. */
void coord_mirror_join_at_rest(struct coord_mirror *mirror);
void coord_mirrors_forget_reports(struct coord_mirrors *all);
/* Hands the core those reports of the owner that need not wait any longer. The job may be lost by that, and
 * the mirrors with it. */
void coord_mirrors_pass_reports(struct coord_job *job, uint32_t shard);
/* True if the standby has not reported for too long what the owner has, while the owner was heard. */
bool coord_mirror_is_late(const struct coord_mirror *mirror);

/* ---- audits (mirror_audits.c) ---- */

/* Takes what one side has told of a version that it has published. */
void coord_mirrors_take_audit(struct coord_mirrors *all, int side,
                              const Cairn__Published *published);
/* Takes the AuditLooked of one of them. */
void coord_mirror_looked(struct coord_session *session, uint32_t request, const void *any);
/* Forgets what all have told of audits, or what the standby has. Nobody is asked any more where that
 * differs, so no report waits for that. */
void coord_mirrors_forget_audits(struct coord_mirrors *all);
/* Returns what the report says of the sums of its round. */
struct sums_told coord_mirrors_sums(const Cairn__Reduced *reduced);
/* True if the standby has told what it computed of the sums of the owner's report that waits. */
bool coord_mirror_told_sums(const struct coord_mirror *mirror);
/* Compares what the owner and its standbys computed of the sums of the report that waits. The report of a
 * standby with the owner's sums counts from here on. A standby that differs waits for the word of the other
 * standby: two against one say who is wrong. An owner that no standby can replace yet goes on alone, as it
 * does with one standby. False: the owner is to stop its part, so its report counts no more. */
bool coord_mirrors_judge_sums(struct coord_mirrors *all) CAIRN_MUST_CHECK;
void coord_mirror_forget_audits(struct coord_mirror *mirror);

#endif

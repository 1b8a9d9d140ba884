/* Workers and readers that are joining a job: their requests, the pages of their specs, and their
 * wait until the job is created or restored. The section `join` has the rest. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/restore.h"

/* ==== first ====
 *
 * Chooses the generation with which a new job begins. It is higher than the generation of every
 * snapshot in the folder that has the job's name. So no two snapshots in this folder have the same
 * version, and a newer snapshot has a higher version. */

#define LOOK_MS 5000 /* a storage that has not answered after this time counts as hanging */

/* Whose the snapshots of a job's name are. */
struct name_owner {
    cairn_status status; /* CAIRN_ERR_NOT_FOUND: there are none. Any other error: it is not known */
    char name[CAIRN_OWNER_BYTES];
    struct sentence why;
};

struct coord_first {
    struct coord_work work;   /* the first member */
    struct coord_first *next; /* in the cluster's list */
    char job[CAIRN_NAME_MAX + 1];
    uint64_t begun_ms;
    bool ended; /* true: `last` is known, or reading it has failed */
    bool given_up;
    /* the results of the thread; nobody else uses them before the thread is done */
    uint64_t last;
    struct name_owner owner; /* of the newest snapshot */
    cairn_status status;
    struct sentence why;
};

static void look_for_generation(struct coord_work *work)
{
    struct coord_first *first = (struct coord_first *)work;
    first->status = coord_storage_seen(work->cluster, &first->why);
    if (first->status == CAIRN_OK)
        first->status = snapshot_last_generation(work->cluster->storage.path, first->job,
                                                 &first->last, &first->why);
    if (first->status != CAIRN_OK)
        first->owner.status = fail_with(&first->owner.why, first->status, "%s", first->why.text);
    else if (first->last == 0) // no snapshot, whole or not
        first->owner.status = CAIRN_ERR_NOT_FOUND;
    else
        first->owner.status = coord_snapshot_owner(work->cluster, first->job, NULL,
                                                   first->owner.name, &first->owner.why);
}

static void say_unknown(const char *job, const char *why)
{
    log_warn("job %s begins with generation 1, and snapshots left by an older job of that name, if "
             "any, would count as its own: %s",
             job, why);
}

/* The waiting openers use the generation at once. The generation is not kept, because a newer
 * snapshot may appear in the folder later. */
static void on_generation_found(struct coord_work *work)
{
    struct coord_first *first = (struct coord_first *)work;
    if (!work->cluster->closing && !first->given_up) {
        first->ended = true;
        if (first->status != CAIRN_OK) say_unknown(first->job, first->why.text);
        if (first->status != CAIRN_OK) first->last = 0;
        coord_openings_advance(work->cluster);
    }
    struct coord_first **at = &first->work.cluster->under_way.firsts;
    while (*at != NULL && *at != first) at = &(*at)->next;
    if (*at == first) *at = first->next;
    free(first);
}

static void begin_look(struct coord *cluster, const char *job)
{
    struct coord_first *first = calloc(1, sizeof *first);
    if (first == NULL) return;
    snprintf(first->job, sizeof first->job, "%s", job);
    first->work.run = look_for_generation;
    first->work.done = on_generation_found;
    first->begun_ms = coord_now_ms(cluster);
    if (!coord_work_start(&first->work, cluster, NULL, 0)) {
        free(first);
        return;
    }
    first->next = cluster->under_way.firsts;
    cluster->under_way.firsts = first;
}

/* Sets *out to the generation with which a new job begins, and *owner_out to the owner of the snapshots
 * that have its name. Returns false while a thread is reading the folder; the openers are judged again
 * when the thread is done. If the folder cannot be read, or has not been read after LOOK_MS, the owner is
 * not known, the job begins with generation 1, and a warning is logged. */
static bool first_generation(struct coord *cluster, const char *job, uint64_t *out,
                             struct name_owner *owner_out)
{
    const struct coord_first *first = cluster->under_way.firsts;
    while (first != NULL && strcmp(first->job, job) != 0) first = first->next;
    if (first == NULL) {
        begin_look(cluster, job); // if there is no memory, the next judging tries again
        return false;
    }
    if (!first->ended && !first->given_up) return false;
    *out = first->given_up ? 1 : first->last + 1;
    if (!first->given_up)
        *owner_out = first->owner;
    else
        owner_out->status = fail_with(&owner_out->why, CAIRN_ERR_IO,
                                      "the storage of the snapshots does not answer");
    return true;
}

static void opening_refuse(struct coord_member *member, cairn_status status, const char *text);
static const struct coord_member *opening_rival(const struct coord_member *member,
                                                const struct coord_job *job);
static bool opening_compare(struct coord_member *member, struct coord_job *job);
static void opening_join(struct coord_member *member, struct coord_job *job);
static void opening_differences(const struct job_spec_data *spec, const struct job_spec_data *job,
                                bool has_way, struct sentence *why, Cairn__Error **rows_out);

/* Refuses a member of a job that no longer exists here, because the member must never create another job
 * of that name. */
static void refuse_another(struct coord_member *member)
{
    struct sentence why;
    sentence_set(
        &why,
        "the coordinator does not know the job %s that this %s was attached to (%016" PRIx64
        "), and no shard that is here holds it: it was dropped, or the coordinator runs on another "
        "store.path; close it and open it again to begin a new one",
        member->job_name, role_name(member->role), member->opening.attached_id);
    opening_refuse(member, CAIRN_ERR_NOT_FOUND, why.text);
}

/* True if the member is a worker that has not been in a job yet, and still wants the job's newest
 * snapshot to be restored. */
static bool wants_restore(const struct coord_member *member)
{
    return member->opening.resumes && member->opening.attached_id == 0 &&
           member->role == CAIRN_ROLE_WIRE_WORKER;
}

/* Judges whether the owner may begin a job of that name, whose snapshots another owner may have. */
static cairn_status judge_name(const struct coord_member *member, const struct name_owner *owner,
                               struct sentence *why)
{
    const struct identity *who = coord_who(member->session);
    const char *job = member->job_name;
    const bool is_known = owner->status == CAIRN_OK || owner->status == CAIRN_ERR_NOT_FOUND;
    const bool is_anothers = owner->status == CAIRN_OK && owner->name[0] != '\0' &&
                             strcmp(owner->name, who->owner) != 0;
    const cairn_status status = access_job(
        who, job, owner->status == CAIRN_OK ? owner->name : who->owner, "", CAIRN_ACCESS_OWN, why);
    if (access_role(who, CAIRN_MAY_ADMIN)) return CAIRN_OK;
    if (status != CAIRN_OK && is_anothers)
        return fail_with(why, status,
                         "another owner has snapshots of a job of the name %s: %s (owner %s) gives "
                         "its own another name",
                         job, who->name, who->owner);
    if (status != CAIRN_OK || is_known) return status;
    return fail_with(why, CAIRN_ERR_NOT_READY,
                     "job %s is not begun, because whose the snapshots of that name are is not "
                     "known: %s; open it when the storage can be read again, or an admin begins it",
                     job, sentence_brief(owner->why.text, 300).text);
}

/* Refuses a member that may not begin a job of that name. True: the member is gone. */
static bool refuse_taken(struct coord_member *member, const struct name_owner *owner)
{
    struct sentence why;
    const cairn_status status = judge_name(member, owner, &why);
    if (status == CAIRN_OK) return false;
    coord_audit_refused_peer(member->session->cluster, member->session->peer, "make a job",
                             why.text);
    opening_refuse(member, status, why.text);
    return true;
}

/* The restore that the job's openers asked for has ended. */
static void on_resumed(struct coord *cluster, const char *name, cairn_status status,
                       const char *text)
{
    for (struct coord_session *s = cluster->sessions; s != NULL; s = s->next) {
        struct coord_member *m = s->members;
        while (m != NULL) {
            struct coord_member *next = m->next_of_session;
            if (m->phase == CAIRN_MEMBER_WAITING && m->opening.resumes &&
                strcmp(m->job_name, name) == 0) {
                m->opening.resumes = false;
                if (status != CAIRN_OK) opening_refuse(m, status, text);
            }
            m = next;
        }
    }
    coord_openings_advance(cluster);
}

/* Begins the restore that the member asks for. True: the member was refused and is gone. False: the
 * member waits. */
static bool begin_resume(struct coord_member *member)
{
    struct coord *cluster = member->session->cluster;
    struct coord_resumer by = { .who = *coord_who(member->session) };
    coord_tenant_make(&by.maker, member->session);
    if (coord_resume_begin(cluster, member->job_name, &by, on_resumed)) return false;
    opening_refuse(member, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    return true;
}

/* Refuses a member with must_not_exist if the job has taken a step or is lost. Such a job cannot be
 * the member's own, because the member has not been in a job yet. True: the member is gone. */
static bool refuse_begun(struct coord_member *member, const struct coord_job *job)
{
    struct sentence why, maker;
    const uint64_t step = coord_job_version(job).step;
    const bool lost = job->state == CAIRN_CLUSTER_JOB_LOST;
    if (!member->opening.must_not_exist || (!lost && step <= job->spec.first_step)) return false;
    sentence_set(&maker, "%s", job->tenant.made_by);
    if (maker.text[0] == '\0') coord_events_maker(member->session->cluster, job->spec.name, &maker);
    sentence_set(&why, "there is a job %s already, at step %" PRIu64 "%s%s%s%s", job->spec.name,
                 step, maker.text[0] != '\0' ? ", made by " : "", maker.text,
                 lost ? ", which is lost" : "",
                 "; open it without must_not_exist to go on with it, give yours another "
                 "name, or drop that one (`cairn job drop`)");
    opening_refuse(member, CAIRN_ERR_EXISTS, why.text);
    return true;
}

/* Judges whether another worker has the member's rank. If so, the member waits for one lease,
 * because a dead worker is gone by then, and is refused after the lease. True: the member waits,
 * or, if *gone_out is set, was refused and is gone. */
static bool is_contested(struct coord_member *member, const struct coord_job *job, bool *gone_out)
{
    struct coord *cluster = member->session->cluster;
    const struct coord_member *rival = opening_rival(member, job);
    const uint64_t now_ms = coord_now_ms(cluster),
                   lease_ms = (uint64_t)cluster->options->lease_timeout_ms;
    struct sentence why;
    *gone_out = false;
    if (rival == NULL) return false;
    cluster->openings.contested = true;
    if (member->opening.contested_ms == 0) member->opening.contested_ms = now_ms + 1;
    if (now_ms + 1 - member->opening.contested_ms <= lease_ms) return true;
    const bool was_in = member->opening.attached_id != 0;
    sentence_set(&why,
                 "rank %" PRIu32 " of job %s (at step %" PRIu64
                 ") is the place of worker %s, which lives: it was heard %" PRIu64 " ms ago%s",
                 member->rank, job->spec.name, coord_job_version(job).step, rival->session->name,
                 uv_now(cluster->loop) - rival->session->last_frame_ms,
                 was_in ? "; end this process"
                        : "; end that process, give this job another name or this process "
                          "another rank, or take the place: CAIRN_OPEN_TAKEOVER, in Python "
                          "takeover=True");
    *gone_out = true;
    opening_refuse(member, was_in ? CAIRN_ERR_FENCED : CAIRN_ERR_PLACE_TAKEN, why.text);
    return true;
}

/* Judges whether the member may open the job. True: it may. Otherwise it was refused and is gone, or, if
 * *waits_out is set, waits: it was in the job, which was adopted since and has no owner yet. */
static bool may_open(struct coord_member *member, const struct coord_job *job, bool *waits_out)
{
    struct sentence why;
    const cairn_status access = coord_judge_opener(member->session, job,
                                                   member->role == CAIRN_ROLE_WIRE_WORKER, &why);
    *waits_out = access != CAIRN_OK && coord_job_lacks_owner(member, job);
    if (access == CAIRN_OK || *waits_out) return access == CAIRN_OK;
    coord_audit_refused_peer(member->session->cluster, member->session->peer, "open a job",
                             why.text);
    opening_refuse(member, access, why.text);
    return false;
}

/* Judges a member that waits for the job, which exists. The same results as advance_opening. */
static bool advance_joining(struct coord_member *member, struct coord_job *job)
{
    struct coord *cluster = member->session->cluster;
    bool gone = false, waits;
    if (!may_open(member, job, &waits)) return !waits;
    if (member->opening.attached_id == job->id)
        coord_job_seen(job, role_name(member->role), member->session->name,
                       member->opening.seen_epoch);
    if ((coord_operations_hold(job) & CAIRN_HOLD_MEMBERS) != 0 || job->loss.behind ||
        coord_recovery_pending(job))
        return false;
    // also true if the job's parts may return
    const bool lost = job->state == CAIRN_CLUSTER_JOB_LOST;
    if (lost && wants_restore(member))
        return coord_shards_staying(cluster, &job->spec, false) >= coord_recovery_shards(job) &&
               begin_resume(member);
    if (member->opening.attached_id != 0 && member->opening.attached_id != job->id) {
        refuse_another(member);
        return true;
    }
    if (member->opening.must_not_exist && member->opening.attached_id == 0 && job->version_unknown)
        return false;
    if (member->opening.attached_id == 0 && refuse_begun(member, job)) return true;
    if (!opening_compare(member, job)) return true;
    const bool fits = member->role != CAIRN_ROLE_WIRE_WORKER || member->opening.joins;
    if (!lost && fits && is_contested(member, job, &gone)) return gone;
    member->opening.put_off = !lost && fits && coord_relapse_wait_ms(job, member) > 0;
    if (member->opening.put_off) {
        cluster->openings.contested = true; // the next tick judges the member again
        return false;
    }
    opening_join(member, job);
    return true;
}

/* Begins the job for the member. The same results as advance_opening. */
static bool advance_beginning(struct coord_member *member)
{
    struct coord *cluster = member->session->cluster;
    struct coord_tenant maker;
    struct sentence why;
    uint64_t generation;
    struct name_owner owner = { .status = CAIRN_OK };
    if (!first_generation(cluster, member->job_name, &generation, &owner)) return false;
    if (refuse_taken(member, &owner)) return true;
    if (wants_restore(member)) return begin_resume(member);
    coord_tenant_make(&maker, member->session);
    const cairn_status status = coord_job_create(cluster, &member->opening.spec, generation,
                                                 member->opening.packed, &maker, &why);
    if (status != CAIRN_OK) opening_refuse(member, status, why.text);
    // the member may be gone: a small job is planned at once, and its openers may be refused
    return true;
}

/* True: a thread is planning a job of that name. */
static bool is_planned(const struct coord *cluster, const char *name)
{
    const struct coord_planning *p = cluster->openings.planned;
    while (p != NULL && strcmp(p->name, name) != 0) p = p->next;
    return p != NULL;
}

/* Judges a member that waits. True: something has changed, and the member may be gone. False: the
 * member waits on. */
static bool advance_opening(struct coord_member *member)
{
    struct coord *cluster = member->session->cluster;
    struct coord_job *job = coord_job_find(cluster, member->job_name);
    struct sentence why;
    if (job != NULL) return advance_joining(member, job);
    if (is_planned(cluster, member->job_name) ||
        coord_job_is_strange(cluster, member->job_name, &why))
        return false;
    if (member->role != CAIRN_ROLE_WIRE_WORKER) {
        sentence_set(&why, "there is no job %s; `cairn job list` shows those there are",
                     member->job_name);
        opening_refuse(member, CAIRN_ERR_NOT_FOUND, why.text);
        return true;
    }
    if (coord_shards_up(cluster) < (uint64_t)cluster->options->shards) return false;
    if (member->opening.attached_id != 0) {
        refuse_another(member);
        return true;
    }
    // the restore that other openers asked for serves this member, too
    if (coord_resuming(cluster, member->job_name)) return false;
    if (member->opening.must_exist && !wants_restore(member)) {
        sentence_set(&why,
                     "there is no job %s, and must_exist begins none; see `cairn job list`, `cairn "
                     "snapshot list`",
                     member->job_name);
        opening_refuse(member, CAIRN_ERR_NOT_FOUND, why.text);
        return true;
    }
    return advance_beginning(member);
}

static bool advance_any(struct coord *cluster)
{
    for (struct coord_session *s = cluster->sessions; s != NULL; s = s->next) {
        if (s->closing) continue;
        for (struct coord_member *m = s->members; m != NULL; m = m->next_of_session) {
            if (m->phase == CAIRN_MEMBER_WAITING && advance_opening(m)) return true;
        }
    }
    return false;
}

void coord_openings_advance(struct coord *cluster)
{
    cluster->openings.again = true;
    if (cluster->openings.advancing || cluster->closing) return;
    cluster->openings.advancing = true;
    while (cluster->openings.again) {
        cluster->openings.again = false;
        while (advance_any(cluster)) {}
    }
    cluster->openings.advancing = false;
}

void coord_openings_tick(struct coord *cluster)
{
    // No job waits any longer for a folder that takes too long to read.
    bool advance = false;
    for (struct coord_first *f = cluster->under_way.firsts; f != NULL; f = f->next) {
        if (f->ended || f->given_up || coord_now_ms(cluster) - f->begun_ms < LOOK_MS) continue;
        f->given_up = advance = true;
        say_unknown(f->job, "the storage of the snapshots does not answer");
    }
    if (advance) coord_openings_advance(cluster);
    if (!cluster->openings.contested) return;
    cluster->openings.contested = false; // the next line sets it again if a member still waits
    coord_openings_advance(cluster);
}

void coord_job_openers_fail(struct coord *cluster, const char *name, cairn_status status,
                            const char *text)
{
    for (struct coord_session *s = cluster->sessions; s != NULL; s = s->next) {
        struct coord_member *m = s->members;
        while (m != NULL) {
            struct coord_member *next = m->next_of_session;
            if (m->phase == CAIRN_MEMBER_WAITING && strcmp(m->job_name, name) == 0)
                opening_refuse(m, status, text);
            m = next;
        }
    }
}

/* Returns the first member, from `m` on, that waits for a restore of the job. NULL: there is none. */
static struct coord_member *find_resuming(struct coord_member *m, const char *name)
{
    while (m != NULL && (m->phase != CAIRN_MEMBER_WAITING || !wants_restore(m) ||
                         strcmp(m->job_name, name) != 0))
        m = m->next_of_session;
    return m;
}

struct coord_verdict {
    struct coord_verdict *next;
    /* held: the opener's spec, as received; a verdict is found by this pointer */
    struct packed *packed;
    bool judged, joins;
    cairn_status status;
    struct sentence why; /* why the opener is refused; unused if `joins` */
    /* owned: the differences as messages; the first opener that is refused takes them */
    Cairn__Error *rows;
};

static struct coord_verdict *find_verdict(struct coord_verdict *list, const struct packed *packed)
{
    while (list != NULL && list->packed != packed) list = list->next;
    return list;
}

bool coord_openers_list(struct coord *cluster, const char *name, struct coord_verdict **list)
{
    bool any = false;
    for (struct coord_session *s = cluster->sessions; s != NULL; s = s->next) {
        struct coord_member *m = find_resuming(s->members, name);
        for (; m != NULL; m = find_resuming(m->next_of_session, name)) {
            if (find_verdict(*list, m->opening.packed) != NULL) continue;
            struct coord_verdict *verdict = calloc(1, sizeof *verdict);
            if (verdict == NULL) return any; // openers that are not in the list are refused
            verdict->packed = packed_hold(m->opening.packed);
            verdict->next = *list;
            *list = verdict;
            any = true;
        }
    }
    return any;
}

static void judge_verdict(struct coord_verdict *verdict, const struct job_spec_data *saved)
{
    struct job_spec_data spec;
    verdict->judged = true;
    verdict->status = spec_unpack(verdict->packed->bytes, verdict->packed->size, optimizer_names(),
                                  &spec, &verdict->why);
    if (verdict->status != CAIRN_OK) return;
    verdict->joins = spec_joins(&spec, saved);
    if (!verdict->joins) {
        verdict->status = CAIRN_ERR_MISMATCH;
        sentence_set(&verdict->why, "the snapshot of job %s does not fit this spec:\n",
                     saved->name);
        opening_differences(&spec, saved, true, &verdict->why, &verdict->rows);
    }
    spec_release(&spec);
}

void coord_verdicts_judge(struct coord_verdict *list, const struct job_spec_data *saved)
{
    for (; list != NULL; list = list->next)
        if (!list->judged) judge_verdict(list, saved);
}

void coord_verdicts_free(struct coord_verdict *list)
{
    while (list != NULL) {
        struct coord_verdict *next = list->next;
        packed_release(list->packed);
        cairn__error__free_unpacked(list->rows, NULL);
        free(list);
        list = next;
    }
}

/* Refuses the member for the reason in its verdict. */
static void refuse_resuming(struct coord_member *m, struct coord_verdict *verdict,
                            struct sentence *why)
{
    if (verdict == NULL) {
        opening_refuse(m, CAIRN_ERR_NO_MEMORY, "out of memory to read the spec");
        return;
    }
    *why = verdict->why;
    cairn__error__free_unpacked(m->opening.rows, NULL);
    m->opening.rows = verdict->rows;
    verdict->rows = NULL;
    opening_refuse(m, verdict->status, why->text);
}

cairn_status coord_openers_judge(struct coord *cluster, const char *name,
                                 struct coord_verdict *list, struct sentence *why)
{
    size_t refused = 0, kept = 0;
    for (struct coord_session *s = cluster->sessions; s != NULL; s = s->next) {
        struct coord_member *m = find_resuming(s->members, name), *next;
        for (; m != NULL; m = next) {
            struct coord_verdict *verdict = find_verdict(list, m->opening.packed);
            next = find_resuming(m->next_of_session, name);
            if (verdict != NULL && verdict->joins) {
                kept++;
                continue;
            }
            refuse_resuming(m, verdict, why);
            refused++;
        }
    }
    return refused > 0 && kept == 0 ? CAIRN_ERR_MISMATCH : CAIRN_OK;
}

static cairn_status judge_open(const struct coord_session *session, const Cairn__JobOpen *open,
                               struct sentence *why)
{
    const bool worker = open->role == CAIRN_ROLE_WIRE_WORKER;
    uint32_t arriving = 0;
    for (const struct coord_member *m = session->members; m != NULL; m = m->next_of_session)
        arriving += m->phase == CAIRN_MEMBER_PAGES || m->phase == CAIRN_MEMBER_JUDGED;
    // The answer is not BUSY. After BUSY a client asks again until its deadline. Here this would be
    // useless, because the client itself must first close a job.
    if (session->member_count >= CAIRN_SESSION_MEMBERS_MAX)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%" PRIu32 " jobs are open on this connection, the most allowed: close "
                         "one, or open this one in another session",
                         session->member_count);
    if (arriving >= CAIRN_SESSION_PAGED_MAX)
        return fail_with(why, CAIRN_ERR_BUSY,
                         "%" PRIu32 " specs are on their way on this connection already", arriving);
    if (!job_name_ok(open->name))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "a job's name has letters, digits, '.', '_' and '-' only, and does not "
                         "begin with '.' or '-'");
    if (!worker && open->role != CAIRN_ROLE_WIRE_READER)
        return fail_with(why, CAIRN_ERR_INVALID, "a job is opened by a worker or a reader");
    if (worker && session->role != CAIRN_ROLE_WIRE_WORKER)
        return fail_with(why, CAIRN_ERR_REFUSED, "a reader cannot become a worker");
    if (open->session == 0) return fail_with(why, CAIRN_ERR_INVALID, "a session number is not 0");
    if (worker != (open->spec_bytes > 0))
        return fail_with(why, CAIRN_ERR_INVALID, "a worker sends its spec, a reader does not");
    return CAIRN_OK;
}

/* Drops the members of this connection that have the session number and the job name of this
 * JobOpen, and are in no job yet. This JobOpen replaces their requests. */
static void drop_stale(struct coord_session *session, const Cairn__JobOpen *open)
{
    struct coord_member *m = session->members;
    while (m != NULL) {
        struct coord_member *next = m->next_of_session;
        if (m->id == open->session && m->job == NULL && strcmp(m->job_name, open->name) == 0)
            coord_member_free(m);
        m = next;
    }
}

/* Handles JobOpen. The answer is sent at once, or when the job exists. */
static void on_job_open(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__JobOpen *open = any;
    struct sentence why;
    drop_stale(session, open);
    cairn_status status = judge_open(session, open, &why);
    struct coord_member *member = status == CAIRN_OK ? calloc(1, sizeof *member) : NULL;
    if (member != NULL && (member->job_name = strdup(open->name)) == NULL) {
        free(member);
        member = NULL;
    }
    if (member == NULL) {
        if (status == CAIRN_OK) status = fail_with(&why, CAIRN_ERR_NO_MEMORY, "out of memory");
        coord_session_error(session, request, status, why.text);
        return;
    }
    member->session = session;
    member->id = open->session;
    member->token = open->token;
    member->role = open->role;
    member->rank = open->rank;
    member->opening.attached_id = open->attached;
    if (open->seen_store == session->cluster->identity.id.store)
        member->opening.seen_epoch = open->seen_epoch;
    member->opening.launch = open->world;
    member->opening.start_wait_ms = open->start_wait_ms;
    member->opening.must_exist = open->must_exist;
    member->opening.resumes = open->resume_latest;
    member->opening.must_not_exist = open->must_not_exist;
    member->opening.takes_over = open->takeover;
    member->opening.run = open->run;
    member->opening.restarts = open->restarts;
    member->open_request = request;
    spec_init(&member->opening.spec);
    member->next_of_session = session->members;
    session->members = member;
    session->member_count++;
    member->phase = open->spec_bytes > 0 ? CAIRN_MEMBER_PAGES : CAIRN_MEMBER_WAITING;
    status = paged_init(&member->opening.pages, CAIRN_PAGE_SPEC, open->spec_bytes);
    if (status != CAIRN_OK) {
        opening_refuse(member, status, "the spec is larger than a coordinator takes (64 MiB)");
        return;
    }
    if (member->phase == CAIRN_MEMBER_WAITING) coord_openings_advance(session->cluster);
}

/* ---- the spec, on a thread: a million tensors take seconds ---- */

struct judging {
    struct coord_work work;
    char *job_name;        /* owned */
    struct packed *packed; /* held: the member's spec */
    struct packed *job;    /* held: the job's spec; NULL: the member's spec is only read */
    /* results */
    struct job_spec_data spec; /* owned */
    cairn_status status;
    struct sentence why; /* why the work failed; if it did not fail: how the specs differ */
    Cairn__Error *rows;  /* owned: the differences as messages */
    bool joins;
};

static void judging_free(void *arg)
{
    struct judging *judging = arg;
    spec_release(&judging->spec);
    packed_release(judging->packed);
    packed_release(judging->job);
    cairn__error__free_unpacked(judging->rows, NULL);
    free(judging->job_name);
    free(judging);
}

static void compare_specs(struct judging *judging)
{
    struct job_spec_data job;
    const struct packed *a = judging->packed, *b = judging->job;
    judging->joins = a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
    if (judging->joins) return;
    judging->status = spec_unpack(b->bytes, b->size, optimizer_names(), &job, &judging->why);
    if (judging->status != CAIRN_OK) return;
    judging->joins = spec_joins(&judging->spec, &job);
    judging->why.text[0] = '\0';
    opening_differences(&judging->spec, &job, !judging->joins, &judging->why, &judging->rows);
    spec_release(&job);
}

static void read_spec(struct judging *judging)
{
    judging->status = spec_unpack(judging->packed->bytes, judging->packed->size, optimizer_names(),
                                  &judging->spec, &judging->why);
    if (judging->status != CAIRN_OK) {
        spec_init(&judging->spec);
        return;
    }
    if (strcmp(judging->spec.name, judging->job_name) == 0) return;
    judging->status = fail_with(&judging->why, CAIRN_ERR_INVALID,
                                "the spec is of job %s, the request of job %s", judging->spec.name,
                                judging->job_name);
}

static void run_judging(struct coord_work *work)
{
    struct judging *judging = (struct judging *)work;
    if (judging->spec.name == NULL) read_spec(judging);
    if (judging->status == CAIRN_OK && judging->job != NULL) compare_specs(judging);
    if (judging->status == CAIRN_OK && !judging->joins) return;
    // Nobody needs the spec any more. Freeing it takes long, too, so it is freed on this thread.
    spec_release(&judging->spec);
    spec_init(&judging->spec);
}

/* Returns the member that is being judged. NULL: the member is gone, by itself or with its session. */
static struct coord_member *judged_member(const struct judging *judging)
{
    struct coord_session *session = judging->work.session;
    struct coord_member *m = session != NULL && !session->closing ? session->members : NULL;
    while (m != NULL &&
           (m->phase != CAIRN_MEMBER_JUDGED || m->open_request != judging->work.request))
        m = m->next_of_session;
    return m;
}

static void done_judging(struct coord_work *work)
{
    struct judging *judging = (struct judging *)work;
    struct coord *cluster = work->cluster;
    struct coord_member *member = cluster->closing ? NULL : judged_member(judging);
    struct sentence why = judging->why;
    cairn_status status = judging->status;
    if (member == NULL) {
        coord_free_by(cluster, judging_free, judging, judging->packed->size);
        return;
    }
    member->phase = CAIRN_MEMBER_WAITING;
    member->opening.spec = judging->spec;
    spec_init(&judging->spec);
    if (status == CAIRN_OK && judging->job != NULL) {
        packed_release(member->opening.compared);
        member->opening.compared = packed_hold(judging->job);
        member->opening.joins = judging->joins;
        member->opening.differences = why;
        cairn__error__free_unpacked(member->opening.rows, NULL);
        member->opening.rows = judging->rows;
        judging->rows = NULL;
    } else if (status == CAIRN_OK) {
        status = coord_judge_workers(cluster, &member->opening.spec, &why);
    }
    judging_free(judging);
    if (status != CAIRN_OK) opening_refuse(member, status, why.text);
    coord_openings_advance(cluster);
}

/* Reads the member's spec, or compares it with `job`. When this returns, the member may have been
 * refused, and be gone. */
static void begin_judging(struct coord_member *member, struct packed *job)
{
    struct coord_session *session = member->session;
    struct judging *judging = calloc(1, sizeof *judging);
    if (judging != NULL) judging->job_name = strdup(member->job_name);
    if (judging == NULL || judging->job_name == NULL) {
        free(judging);
        opening_refuse(member, CAIRN_ERR_NO_MEMORY, "out of memory to read the spec");
        return;
    }
    judging->work.run = run_judging;
    judging->work.done = done_judging;
    judging->packed = packed_hold(member->opening.packed);
    judging->job = job != NULL ? packed_hold(job) : NULL;
    judging->spec = member->opening.spec; // the thread uses the spec meanwhile
    spec_init(&member->opening.spec);
    member->phase = CAIRN_MEMBER_JUDGED;
    if (!coord_work_do(&judging->work, session->cluster, session, member->open_request,
                       judging->packed->size)) {
        judging_free(judging);
        opening_refuse(member, CAIRN_ERR_BUSY,
                       "this connection waits for too many answers already");
    }
}

/* True: the member is no worker, or opening.joins says whether its spec is, or once was, the job's
 * spec. False: the comparison of the specs has begun, and when it is done, the waiting openers are
 * judged again; or the member was refused and is gone. */
static bool opening_compare(struct coord_member *member, struct coord_job *job)
{
    if (member->role != CAIRN_ROLE_WIRE_WORKER || member->opening.compared == job->planned.spec)
        return true;
    begin_judging(member, job->planned.spec);
    return false;
}

void coord_member_page(struct coord_session *session, uint32_t request, const Cairn__Page *page)
{
    struct coord_member *member = session->members;
    while (member != NULL &&
           (member->phase != CAIRN_MEMBER_PAGES || member->open_request != request))
        member = member->next_of_session;
    if (member == NULL) return; // a remaining page of a request that was refused
    const cairn_status status = paged_add(&member->opening.pages, 1, page);
    if (status != CAIRN_OK) {
        opening_refuse(member, status, "the pages of the spec do not follow each other");
        return;
    }
    if (!paged_whole(&member->opening.pages, 1)) return;
    struct coord_opening *opening = &member->opening;
    opening->packed = packed_take(opening->pages.bytes, (size_t)opening->pages.have_bytes);
    opening->pages = (struct paged) { .bytes = NULL };
    if (opening->packed != NULL)
        begin_judging(member, NULL);
    else
        opening_refuse(member, CAIRN_ERR_NO_MEMORY, "out of memory for the spec");
}

/* ==== join ==== */

/* A member whose job exists joins the job if the specs agree and the job has room. Otherwise the member
 * is refused. */

/* Judges whether the job has room for the worker. If the job has none, the answer is BUSY. After
 * BUSY a client asks again until its deadline, and meanwhile a worker that died is put out when its
 * lease ends. */
static cairn_status judge_room(const struct coord_member *member, const struct coord_job *job,
                               struct sentence *why)
{
    const uint32_t most = job->spec.workers_max;
    uint32_t others = 0;
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        const bool is_worker = m->role == CAIRN_ROLE_WIRE_WORKER;
        others += is_worker && m->id != member->id && m->rank != member->rank;
    }
    if (most == 0 || others < most) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_BUSY,
                     "job %s has %" PRIu32 " workers, and its workers_max is %" PRIu32
                     ": raise it (`cairn job amend %s --workers MIN:MAX`), or end one",
                     job->spec.name, others, most, job->spec.name);
}

/* Returns the worker whose rank the member wants and may not take now. NULL: there is none. */
static const struct coord_member *opening_rival(const struct coord_member *member,
                                                const struct coord_job *job)
{
    const struct coord_opening *mine = &member->opening;
    if (member->role != CAIRN_ROLE_WIRE_WORKER || mine->takes_over) return NULL;
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        const bool is_older_start = mine->run != 0 && m->opening.run == mine->run &&
                                    m->opening.restarts < mine->restarts;
        if (m->role == CAIRN_ROLE_WIRE_WORKER && m->rank == member->rank && m->id != member->id &&
            m->session != member->session && !is_older_start)
            return m;
    }
    return NULL;
}

/* Judges whether the worker's owner may have so many bytes more in flight as the worker may send. */
static cairn_status judge_in_flight(const struct coord_member *member, const struct coord_job *job,
                                    const struct coord_member *same, struct sentence *why)
{
    const struct quota more = { .in_flight = quota_in_flight(job) };
    if (same != NULL) return CAIRN_OK; // it has them already
    return coord_quota_judge(job->cluster, coord_who(member->session)->owner, &more, why);
}

static cairn_status judge_join(const struct coord_member *member, struct coord_job *job,
                               struct sentence *why)
{
    const struct coord_member *same = coord_job_member(job, member->id);
    if (job->state == CAIRN_CLUSTER_JOB_LOST)
        return fail_with(why, CAIRN_ERR_JOB_LOST, "job %s is %s", job->spec.name,
                         job->loss.why.text);
    if (same != NULL && same->token != member->token)
        return fail_with(why, CAIRN_ERR_REFUSED, "that session number belongs to another member");
    if (same == NULL && job->members.count >= 2 * (uint64_t)job->cluster->options->workers_max)
        return fail_with(why, CAIRN_ERR_BUSY,
                         "job %s has %" PRIu32 " members; raise round.workers_max", job->spec.name,
                         job->members.count);
    if (member->role != CAIRN_ROLE_WIRE_WORKER) return CAIRN_OK;
    if (member->opening.joins) CAIRN_TRY(judge_in_flight(member, job, same, why));
    if (member->opening.joins) return judge_room(member, job, why);
    sentence_set(
        why,
        "job %s, which is at step %" PRIu64 "%s%s, differs from this spec: give the job's "
        "values, or choose another name, or drop it (`cairn job drop`), or change it as the "
        "last line says:\n",
        job->spec.name, coord_job_version(job).step,
        job->tenant.made_by[0] != '\0' ? " and was made by " : "", job->tenant.made_by);
    sentence_add(why, "%s", member->opening.differences.text);
    return CAIRN_ERR_MISMATCH;
}

/* Fails the member's JobOpen, and frees the member. */
static void opening_refuse(struct coord_member *member, cairn_status status, const char *text)
{
    // Two scripts that use one name: whoever runs the other one should hear of it, too.
    log_fields(status == CAIRN_ERR_MISMATCH ? CAIRN_LOG_WARN : CAIRN_LOG_INFO,
               CAIRN_FIELDS({ "job", member->job_name, 0 }), "refused to open job %s for %s %s: %s",
               member->job_name, role_name(member->role), member->session->name, text);
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = wire_text(text);
    if (status == CAIRN_ERR_MISMATCH && member->opening.rows != NULL) {
        error.differences = member->opening.rows->differences;
        error.n_differences = member->opening.rows->n_differences;
    }
    coord_session_send(member->session, CAIRN_MSG_ERROR, member->open_request, &error.base);
    coord_member_free(member);
}

/* Puts `member` in the place of `same`, which is the same member from an earlier JobOpen, and frees
 * `same`. If both are on one connection, `member` gets the requests of `same`. On a new connection
 * the peer sends its requests again. */
static void take_over(struct coord_member *member, struct coord_member *same)
{
    if (same->session == member->session) {
        member->init.request = same->init.request;
        member->begin_request = same->begin_request;
        member->write.request = same->write.request;
        member->write.reserves = same->write.reserves;
        member->amend.request = same->amend.request;
        member->amend.later = same->amend.later; // ownership moves
        same->amend.later = NULL;
        member->amend.revision = same->amend.revision;
        member->pause.ends_ms = same->pause.ends_ms;
        memcpy(member->pause.what, same->pause.what, sizeof member->pause.what);
        memcpy(member->commits.list, same->commits.list, sizeof member->commits.list);
        member->commits.count = same->commits.count;
        memcpy(member->waits.list, same->waits.list, sizeof member->waits.list);
        member->waits.count = same->waits.count;
        if (!same->tiles.arriving) member->tiles.request = same->tiles.request;
        member->tiles.world = same->tiles.world;
    }
    member->tiles.declared = same->tiles.declared;
    member->has_ended_round = same->has_ended_round;
    coord_member_free(same);
}

/* Puts the member into the job's list and index; coord_member_free takes it out. */
static void add_member(struct coord_job *job, struct coord_member *member)
{
    struct coord_member **bucket = &job->members.by_id[member->id % CAIRN_MEMBER_BUCKETS];
    member->job = job;
    member->job_id = job->id;
    member->next_of_job = job->members.list;
    member->next_of_bucket = *bucket;
    job->members.list = *bucket = member;
    job->members.count++;
}

/* Notes, for the worker's log and ours, how the job differs from the spec with which the worker may join all
 * the same, because it once was the job's. It is said at a worker's first attach, not when it comes back. */
static void note_differences(struct coord_member *member, const struct coord_job *job)
{
    struct coord_opening *opening = &member->opening;
    struct sentence *text = &opening->differences;
    const bool is_said = member->role == CAIRN_ROLE_WIRE_WORKER && opening->attached_id == 0 &&
                         text->text[0] != '\0';
    const struct sentence found = *text;
    text->text[0] = '\0';
    if (!is_said) return;
    sentence_set(text,
                 "it is at step %" PRIu64 ", and was changed since this spec was its: the job's "
                 "values are taken:\n%s",
                 coord_job_version(job).step, found.text);
    log_fields(CAIRN_LOG_WARN, CAIRN_FIELDS({ "job", job->spec.name, 0 }),
               "worker %s opens job %s by a former spec: %s", member->session->name, job->spec.name,
               text->text);
}

/* Called when the member's job exists: the member joins the job, or is refused. */
static void opening_join(struct coord_member *member, struct coord_job *job)
{
    struct sentence why;
    cairn_status status = judge_join(member, job, &why);
    if (status == CAIRN_OK) {
        member->known_to = calloc(job->shard_room, 2);
        if (member->known_to == NULL)
            status = fail_with(&why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    }
    if (status != CAIRN_OK) {
        opening_refuse(member, status, why.text);
        return;
    }
    // If the job has the member already, the member has reconnected, or has asked again. The member
    // does not count as having left.
    struct coord_member *same = coord_job_member(job, member->id);
    if (same != NULL) take_over(member, same);
    note_differences(member, job);
    coord_member_forget_spec(member);
    member->tiles.known_to = member->known_to + job->shard_room;
    member->phase = CAIRN_MEMBER_JOINING;
    add_member(job, member);
    coord_member_tell_shards(member);
}

/* ==== mismatch ==== */

/* Says how a worker's spec differs from the job's spec, and how the job could be changed to the
 * worker's spec: in words for people, and in rows for programs. spec_fields.h says how each field
 * is compared and named. */

#define LINES_SHOWN  10
#define ROWS_TOLD    64
#define SETTINGS_MAX 16 // the most settings in a command that is written out

struct rows {
    struct sentence *why;
    size_t lines;
    Cairn__Error *error; /* NULL: no memory */
    bool whole; /* true: each difference has a row, and each row names a setting and its value */
};

static bool add_row(Cairn__Error *error, const struct spec_difference *d)
{
    Cairn__Difference *row = malloc(sizeof *row);
    if (row == NULL) return false;
    cairn__difference__init(row);
    row->change = (uint32_t)d->change;
    error->differences[error->n_differences++] = row;
    row->object = (uint32_t)d->object;
    row->point = d->point;
    const char *const texts[] = { d->name, d->field, d->here, d->there, d->key, d->value };
    char **const copies[] = { &row->name,  &row->field, &row->here,
                              &row->there, &row->key,   &row->value };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *copy = strdup(texts[i] != NULL ? texts[i] : "");
        if (copy == NULL) return false;
        *copies[i] = copy;
    }
    return true;
}

static void on_difference(void *context, const struct spec_difference *d)
{
    struct rows *rows = context;
    char line[CAIRN_DIFFERENCE_TEXT_MAX];
    difference_text(d, "here", "on the servers", line);
    if (rows->lines < LINES_SHOWN)
        sentence_add(rows->why, "%s%s", rows->lines == 0 ? "" : "\n", line);
    rows->lines++;
    if (d->key == NULL || d->value == NULL) rows->whole = false;
    if (rows->error == NULL || add_row(rows->error, d)) return;
    cairn__error__free_unpacked(rows->error, NULL);
    rows->error = NULL;
}

/* True if an earlier row has the same key. The key `wire`, for example, has a row for each
 * tensor. */
static bool is_told(const Cairn__Error *error, size_t row)
{
    for (size_t i = 0; i < row; i++)
        if (strcmp(error->differences[i]->key, error->differences[row]->key) == 0) return true;
    return false;
}

/* Writes the settings as options, such as " --set stage=3 --set 'a b.lr=1'". Returns false if the
 * settings are too many, or cannot be quoted. */
static bool spell_settings(const Cairn__Error *error, struct sentence *out)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "._:,+-/";
    size_t count = 0;
    out->text[0] = '\0';
    for (size_t i = 0; i < error->n_differences; i++) {
        const Cairn__Difference *row = error->differences[i];
        if (is_told(error, i)) continue;
        if (count++ == SETTINGS_MAX || strchr(row->key, '\'') != NULL) return false;
        const bool is_plain = strspn(row->key, plain) == strlen(row->key) &&
                              strspn(row->value, plain) == strlen(row->value);
        const char *quote = is_plain ? "" : "'";
        sentence_add(out, " --set %s%s=%s%s", quote, row->key, row->value, quote);
    }
    return true;
}

/* Returns the hardest kind of change that any row needs. A change of this kind can do what every
 * other row needs, too. */
static enum spec_change hardest_change(const Cairn__Error *error)
{
    enum spec_change most = CAIRN_SPEC_NEXT_ROUND;
    for (size_t i = 0; i < error->n_differences; i++)
        if (error->differences[i]->change > (uint32_t)most)
            most = (enum spec_change)error->differences[i]->change;
    return most;
}

static void add_way(const char *job, const struct rows *rows)
{
    struct sentence settings;
    struct sentence *why = rows->why;
    if (rows->error == NULL || rows->error->n_differences == 0) return;
    const enum spec_change change = hardest_change(rows->error);
    if (change == CAIRN_SPEC_NEVER) {
        sentence_add(why, "\nno setting makes it so: %s",
                     "an optimizer and how a job began stay as they are; tensors are added, "
                     "frozen and thawed by cairn_job_amend");
        return;
    }
    if (!rows->whole || !spell_settings(rows->error, &settings)) {
        sentence_add(why, "\nan amendment makes it so: cairn_job_amend, or m.amend(...)");
        return;
    }
    if (change == CAIRN_SPEC_CREATED)
        sentence_add(why,
                     "\na job made from its snapshot is so, moments and step included: `cairn "
                     "snapshot create %s --wait`, then `cairn job create %s --from %s/latest%s`",
                     job, job, job, settings.text);
    else
        sentence_add(
            why, "\nan amendment makes it so: `cairn job amend %s%s`%s", job, settings.text,
            change == CAIRN_SPEC_REOPENED ? " (every worker of it is told, and opens it again)"
                                          : "");
}

/* Adds to `why` how the spec differs from the job's spec and, with has_way, how the job could be changed to
 * the spec. Sets *rows_out to an Error that has the differences as rows, or to NULL if there is no
 * memory. The caller frees the Error with cairn__error__free_unpacked. Any thread may call this. */
static void opening_differences(const struct job_spec_data *spec, const struct job_spec_data *job,
                                bool has_way, struct sentence *why, Cairn__Error **rows_out)
{
    const struct job_spec_data mine = spec_with_workers(spec, job);
    struct rows rows = { .why = why, .error = malloc(sizeof *rows.error), .whole = true };
    if (rows.error != NULL) cairn__error__init(rows.error);
    if (rows.error != NULL)
        rows.error->differences = calloc(ROWS_TOLD, sizeof(Cairn__Difference *));
    if (rows.error != NULL && rows.error->differences == NULL) {
        free(rows.error);
        rows.error = NULL;
    }
    const size_t found = spec_diff(&mine, job, ROWS_TOLD, on_difference, &rows);
    if (found > LINES_SHOWN) sentence_add(why, "\nand %zu more differences", found - LINES_SHOWN);
    if (found > ROWS_TOLD) rows.whole = false;
    if (has_way) add_way(job->name, &rows);
    *rows_out = rows.error;
}

/* ==== messages ==== */

const struct coord_row coord_openings_rows[] = {
    { CAIRN_MSG_JOB_OPEN, CAIRN_FROM_TRAINER, .by_session = on_job_open },
    { 0 },
};

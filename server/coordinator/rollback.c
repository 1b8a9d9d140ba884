/* Takes a job back to a former version, as an operator asks: `cairn job rollback`.
 *
 * The shards keep the last versions of a job (keep_versions; server/shard/part.h, "former"), and tell which
 * these are in their heartbeats. From its log (durability; server/shard/journal.h) a shard makes each
 * version again since that of the snapshot on which the log stands, which it tells, too. A version can be
 * gone back to if each shard has it in one of the two ways; which way it takes, the shard decides. All of
 * them are asked for a heartbeat, so that what is chosen from is what they have now. Then the job gets a
 * new generation, which is made as an amendment makes one (amend.c), but of that version: the open round is
 * given up, each shard makes the new part beside the one that serves, the store says that the new
 * generation is the job, and the old parts are dropped. So whoever dies on the way, the job is at the
 * version where it was, or at the one that it went back to. The logs begin anew with the new generation,
 * and protect it when there is a snapshot of it. */
#include <inttypes.h>
#include <stdlib.h>

#include "server/coordinator/cluster.h"

/* ---- which versions there are ---- */

static int order_versions(const void *a, const void *b)
{
    const struct former_version *x = a, *y = b;
    if (x->job != y->job) return x->job < y->job ? -1 : 1;
    return version_compare(x->version, y->version);
}

void coord_former_take(struct coord_shard_entry *entry, const Cairn__Heartbeat *message)
{
    const size_t most = CAIRN_FORMER_TOLD_MAX;
    const size_t count = message->n_former < most ? message->n_former : most;
    entry->told.former_count = 0;
    struct former_version *former = realloc(entry->told.former, (count + 1) * sizeof *former);
    if (former == NULL) return;
    entry->told.former = former;
    for (size_t i = 0; i < count; i++) {
        const Cairn__FormerTold *told = message->former[i];
        former[i] = (struct former_version) { told->job, { told->generation, told->step } };
    }
    qsort(former, count, sizeof *former, order_versions);
    entry->told.former_count = count;
}

/* The version from which on the shard can make each one from its log; 0.0: none. */
static struct cairn_version logged_from(const struct coord_job *job, uint32_t shard)
{
    return coord_logs_wanted(job) ? job->shards[shard].log.base : (struct cairn_version) { 0, 0 };
}

/* True if the shard has kept the version, or can make it from its log. */
static bool shard_has(const struct coord_job *job, uint32_t shard, struct cairn_version version)
{
    const struct coord_shard_entry *entry = job->shards[shard].entry;
    const struct former_version wanted = { job->id, version };
    const struct cairn_version base = logged_from(job, shard);
    const bool is_kept = entry->told.former_count > 0 &&
                         bsearch(&wanted, entry->told.former, entry->told.former_count,
                                 sizeof wanted, order_versions) != NULL;
    return is_kept ||
           (base.generation == version.generation && version_compare(base, version) <= 0 &&
            version_compare(version, coord_job_version(job)) < 0);
}

/* Returns the first shard that has not told that it has the version; NULL: all have it. */
static const char *who_lacks(const struct coord_job *job, struct cairn_version version)
{
    CAIRN_EACH_SHARD (job, i)
        if (coord_job_in_force(job, i) && !shard_has(job, i, version))
            return job->shards[i].entry->name;
    return NULL;
}

/* Finds the versions that all shards can make from their logs. */
static bool find_logged(const struct coord_job *job, Cairn__FormerRange *out)
{
    const struct cairn_version now = coord_job_version(job);
    uint64_t from = 0;
    CAIRN_EACH_SHARD (job, i) {
        const struct cairn_version base = logged_from(job, i);
        if (!coord_job_in_force(job, i)) continue;
        if (base.generation != now.generation) return false;
        if (base.step > from) from = base.step;
    }
    cairn__former_range__init(out);
    out->generation = now.generation;
    out->from_step = from;
    out->to_step = now.step - 1;
    return from < now.step && job->state == CAIRN_CLUSTER_JOB_RUNNING;
}

/* Finds the newest version before `before` that the shard has. */
static bool find_at(const struct coord_job *job, const struct coord_shard_entry *entry,
                    struct cairn_version before, struct cairn_version *out)
{
    for (size_t i = entry->told.former_count; i-- > 0;) {
        const struct former_version *former = &entry->told.former[i];
        if (former->job != job->id || version_compare(former->version, before) >= 0) continue;
        *out = former->version;
        return true;
    }
    return false;
}

/* Finds the newest version before `before` that all shards have. */
static bool find_common(const struct coord_job *job, struct cairn_version before,
                        struct cairn_version *out)
{
    const uint32_t first = coord_job_shard_from(job, 0);
    if (first == job->shard_count) return false;
    do {
        if (!find_at(job, job->shards[first].entry, before, &before)) return false;
    } while (who_lacks(job, before) != NULL);
    *out = before;
    return true;
}

/* Finds the newest version before `before` that any shard has. */
static bool find_any(const struct coord_job *job, struct cairn_version before,
                     struct cairn_version *out)
{
    bool found = false;
    CAIRN_EACH_SHARD (job, i) {
        struct cairn_version at;
        if (!find_at(job, job->shards[i].entry, before, &at)) continue;
        if (!found || version_compare(at, *out) > 0) *out = at;
        found = true;
    }
    return found;
}

Cairn__FormerRange *coord_former_show(const struct coord_job *job, struct coord_answer *answer,
                                      ProtobufCMessage *message)
{
    struct cairn_version at = { UINT64_MAX, UINT64_MAX };
    Cairn__FormerRange logged, *by_log = NULL;
    while (find_common(job, at, &at)) {
        Cairn__FormerTold *told = coord_answer_add(answer, message, "former");
        if (told == NULL) return NULL;
        told->generation = at.generation;
        told->step = at.step;
    }
    if (find_logged(job, &logged)) by_log = coord_answer_bytes(answer, sizeof *by_log);
    if (by_log != NULL) *by_log = logged;
    return by_log;
}

/* Adds the versions that are in memory, as "to 3 versions, ...". */
static void say_kept(const struct coord_job *job, struct sentence *out)
{
    struct cairn_version at = { UINT64_MAX, UINT64_MAX }, newest = { 0, 0 };
    uint32_t count = 0;
    while (find_common(job, at, &at))
        if (count++ == 0) newest = at;
    if (count == 1)
        sentence_add(out, "to step %" PRIu64 " of generation %" PRIu64, newest.step,
                     newest.generation);
    if (count > 1)
        sentence_add(out,
                     "to %" PRIu32 " versions, from step %" PRIu64 " of generation %" PRIu64
                     " to step %" PRIu64 " of generation %" PRIu64,
                     count, at.step, at.generation, newest.step, newest.generation);
}

/* Adds those that the logs have: "to each step from 4 to 9 of generation 2 by its logs". */
static void say_logged(const struct coord_job *job, struct sentence *out)
{
    Cairn__FormerRange logged;
    if (!find_logged(job, &logged)) return;
    sentence_add(
        out, "%sto each step from %" PRIu64 " to %" PRIu64 " of generation %" PRIu64 " by its logs",
        out->text[0] != '\0' ? ", and " : "", logged.from_step, logged.to_step, logged.generation);
}

const char *coord_former_say(const struct coord_job *job, struct coord_answer *answer)
{
    struct sentence said = { "" };
    if (job->spec.policy.keep_versions == 0 && !coord_logs_wanted(job)) return "";
    say_kept(job, &said);
    say_logged(job, &said);
    if (said.text[0] == '\0') return "to no version yet";
    return coord_answer_text(answer, "%s", said.text);
}

static void list_former(const struct coord_job *job, struct sentence *out)
{
    struct cairn_version at = { UINT64_MAX, UINT64_MAX };
    bool any = false;
    while (find_common(job, at, &at)) {
        sentence_add(out, "%s%" PRIu64 ":%" PRIu64, any ? ", " : "", at.generation, at.step);
        any = true;
    }
    if (!any) sentence_add(out, "none");
}

/* Adds how the job could go back further, or will. */
static void say_further(const struct coord_job *job, struct sentence *out)
{
    const bool keeps = job->spec.policy.keep_versions != 0, logs = coord_logs_wanted(job);
    if (!keeps)
        sentence_add(out,
                     "; its keep_versions is 0: `cairn job amend %s --keep-versions K` has the "
                     "next versions kept",
                     job->spec.name);
    if (!keeps && !logs)
        sentence_add(out, ", `cairn job durability %s log` has each step since a snapshot",
                     job->spec.name);
    if (!keeps || logs) sentence_add(out, "; `cairn snapshot restore` goes back further");
}

/* Chooses the version that was asked for: the newest one with that step, if no generation was named. */
static cairn_status choose(const struct coord_job *job, struct cairn_version *version,
                           struct sentence *why)
{
    struct cairn_version at = { UINT64_MAX, UINT64_MAX };
    Cairn__FormerRange logged;
    const bool is_logged = find_logged(job, &logged);
    if (version->generation == 0 && is_logged && version->step >= logged.from_step &&
        version->step <= logged.to_step)
        version->generation = logged.generation;
    while (version->generation == 0 && find_any(job, at, &at)) {
        if (at.step == version->step) version->generation = at.generation;
    }
    const char *lacks = version->generation != 0 ? who_lacks(job, *version) : NULL;
    if (version->generation != 0 && lacks == NULL) return CAIRN_OK;
    sentence_set(why, "job %s cannot go back to step %" PRIu64, job->spec.name, version->step);
    if (version->generation != 0)
        sentence_add(why, " of generation %" PRIu64 ": shard %s does not have that version",
                     version->generation, lacks);
    else
        sentence_add(why, ": no shard has such a version");
    sentence_add(why, "; all shards have (generation:step): ");
    list_former(job, why);
    if (is_logged)
        sentence_add(why,
                     "; by their logs they have each step from %" PRIu64 " to %" PRIu64
                     " of generation %" PRIu64,
                     logged.from_step, logged.to_step, logged.generation);
    else if (coord_logs_wanted(job))
        sentence_add(why, "; their logs have no other step yet since their snapshot");
    say_further(job, why);
    return CAIRN_ERR_VERSION_GONE;
}

/* ---- the request ---- */

static cairn_status judge_rollback(const struct coord_job *job, struct sentence *why)
{
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING || !job->initialized)
        return coord_job_fail_not_running(job, why);
    return coord_operation_judge(job, CAIRN_OPERATION_EXTEND, why);
}

/* The shards are asked about this; `asked` is the number of the request. */
struct going_back {
    struct cairn_version version;
    uint64_t asked;
};

/* All shards have told which versions they have. An asker who is gone meanwhile has changed his mind, and
 * another request may have come since. */
static void on_told(struct coord_job *job, const void *about, cairn_status status, const char *text)
{
    struct cairn_version version = ((const struct going_back *)about)->version;
    const uint64_t asked = ((const struct going_back *)about)->asked;
    struct sentence why;
    if (asked != job->amends.rollbacks_asked || LIST_EMPTY(&job->amends.rollbacks)) return;
    sentence_set(&why, "job %s was not taken back, it goes on as it is: %s", job->spec.name, text);
    // To the asker, CLOSED would mean that the asker's own connection was lost.
    if (status == CAIRN_ERR_CLOSED) status = CAIRN_ERR_NOT_READY;
    if (status == CAIRN_OK) status = judge_rollback(job, &why);
    if (status == CAIRN_OK) status = choose(job, &version, &why);
    if (status == CAIRN_OK) status = coord_extend_back(job, version, &why);
    if (status != CAIRN_OK) coord_waiters_fail(&job->amends.rollbacks, status, why.text);
}

static cairn_status ask_shards(const struct coord_job *job, struct cairn_version version,
                               struct sentence *why)
{
    const struct going_back about = { version, job->amends.rollbacks_asked };
    struct coord_gather *gather = coord_gather_open_job(job, on_told, &about, sizeof about);
    if (gather == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    Cairn__PartFormer message = CAIRN__PART_FORMER__INIT;
    message.job = job->id;
    CAIRN_EACH_SHARD (job, i)
        (void)coord_gather_send(gather, job->shards[i].entry, CAIRN_MSG_PART_FORMER, &message.base);
    coord_gather_start(gather);
    return CAIRN_OK;
}

static void answer_list(const struct coord_job *job, struct coord_session *session,
                        uint32_t request)
{
    struct coord_answer answer = { .blocks = NULL };
    Cairn__JobRolledBack list = CAIRN__JOB_ROLLED_BACK__INIT;
    const struct cairn_version now = coord_job_version(job);
    struct cairn_version any = { UINT64_MAX, UINT64_MAX };
    list.name = job->spec.name;
    list.generation = now.generation;
    list.step = now.step;
    list.keep_versions = job->spec.policy.keep_versions;
    list.by_log = coord_former_show(job, &answer, &list.base);
    while (list.note[0] == '\0' && find_any(job, any, &any)) {
        const char *lacks = who_lacks(job, any);
        if (lacks != NULL)
            list.note = coord_answer_text(&answer, "shard %s lacks version %" PRIu64 ":%" PRIu64,
                                          lacks, any.generation, any.step);
    }
    coord_answer_send(&answer, session, request, CAIRN_MSG_JOB_ROLLED_BACK, &list.base);
}

static cairn_status on_job_rollback(struct coord_session *session, uint32_t request,
                                    const void *any, struct sentence *why)
{
    const Cairn__JobRollback *message = any;
    struct coord_job *job = coord_job_named(session->cluster, message->name, why);
    if (job == NULL) return CAIRN_ERR_NOT_FOUND;
    if (message->lists) {
        answer_list(job, session, request);
        return CAIRN_OK;
    }
    CAIRN_TRY(judge_rollback(job, why));
    if (!LIST_EMPTY(&job->amends.rollbacks))
        return fail_with(why, CAIRN_ERR_BUSY, "job %s is being taken back already", job->spec.name);
    CAIRN_TRY(coord_waiters_add(&job->amends.rollbacks, session, request, why));
    const struct cairn_version version = { message->generation, message->step };
    job->amends.rollbacks_asked++;
    const cairn_status status = ask_shards(job, version, why);
    if (status != CAIRN_OK) coord_waiters_fail(&job->amends.rollbacks, status, why->text);
    return CAIRN_OK;
}

const struct coord_row coord_rollback_rows[] = {
    { CAIRN_MSG_JOB_ROLLBACK, CAIRN_FROM_ADMIN, .asks = on_job_rollback, .verb = "job rollback",
      .awaits = CAIRN_AWAITS_REPORTS, .job = "name", .wants = CAIRN_ACCESS_OWN },
    { 0 },
};

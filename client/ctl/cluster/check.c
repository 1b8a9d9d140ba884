/* cairn cluster status --check, cairn job check: what is not well, for a supervisor that goes by the exit
 * status. */
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "proto/spec/without.h"

/* The kinds of what is not well, the worst first: the exit status is the first's of those that were found. */
enum trouble {
    TROUBLE_SHARD,    /* a shard is away, is not ours, or is not reached by other hosts */
    TROUBLE_WAITS,    /* a job is lost, halted, or waits */
    TROUBLE_SNAPSHOT, /* one failed, is damaged, unverified or older than asked; none can be saved */
    TROUBLE_DEGRADED, /* all goes on, but not as it should */
    TROUBLE_COUNT
};
static const struct {
    const char *name;
    int exit_status;
} troubles[TROUBLE_COUNT] = { [TROUBLE_SHARD] = { "shard", 20 },
                              [TROUBLE_WAITS] = { "waits", 21 },
                              [TROUBLE_SNAPSHOT] = { "snapshot", 22 },
                              [TROUBLE_DEGRADED] = { "degraded", 23 } };

/* A job that has stood still for so long waits, */
#define WAITS_MS 60000
/* and so long `latest` may lie before the coordinator reads it again, beyond the interval that it was
 * given. */
#define UNREAD_S 3600

struct check {
    const struct ctl *ctl;
    enum trouble worst; /* TROUBLE_COUNT: nothing was found */
    json_t *found;      /* owned, if JSON is wanted */
};

static void add(struct check *check, enum trouble kind, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void add(struct check *check, enum trouble kind, const char *what, const char *format, ...)
{
    char text[CAIRN_SENTENCE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (kind < check->worst) check->worst = kind;
    if (check->found != NULL)
        json_array_append_new(
            check->found,
            json_pack("{s:s, s:s, s:s}", "kind", troubles[kind].name, "what", what, "text", text));
    else if (!check->ctl->quiet)
        printf("%s: %s: %s\n", troubles[kind].name, what, text);
}

/* ---- shards ---- */

static void check_shard(struct check *check, const Cairn__MemberStatus *m)
{
    if (strcmp(m->state, "up") != 0)
        add(check, TROUBLE_SHARD, m->name, "%s for %llu s", m->state,
            (unsigned long long)m->since_ms / 1000);
    if (m->apart[0] != '\0') add(check, TROUBLE_SHARD, m->name, "%s", m->apart);
    if (m->storage[0] != '\0') add(check, TROUBLE_SNAPSHOT, m->name, "cannot save: %s", m->storage);
    if (m->home != NULL && m->home->failed[0] != '\0')
        add(check, TROUBLE_SHARD, m->name, "is unfit: %s; %s", m->home->failed, m->unfit);
    if (m->home != NULL && m->home->warning[0] != '\0')
        add(check, TROUBLE_DEGRADED, m->name, "%s", m->home->warning);
    if (m->stats != NULL && m->stats->unpinned_bytes > 0)
        add(check, TROUBLE_DEGRADED, m->name, "%s of host memory could not be pinned",
            cairn_ctl_bytes(m->stats->unpinned_bytes));
}

static void check_cluster(struct check *check, const Cairn__ClusterStatus *status)
{
    uint32_t up = 0;
    const char *version = status->version;
    for (size_t i = 0; i < status->n_members; i++) {
        const Cairn__MemberStatus *m = status->members[i];
        if (m->unheard[0] != '\0')
            add(check, TROUBLE_WAITS, m->name, "hears nothing over the data path of %s",
                m->unheard);
        if (m->role != CAIRN_ROLE_WIRE_SHARD) continue;
        check_shard(check, m);
        if (strcmp(m->state, "up") != 0) continue;
        up++;
        if (strcmp(m->version, version) != 0)
            add(check, TROUBLE_DEGRADED, m->name, "is build %s, the coordinator %s",
                m->version[0] != '\0' ? m->version : "of no name", version);
    }
    if (up < status->shards_expected)
        add(check, TROUBLE_SHARD, status->cluster, "%u of %u shards are up", up,
            status->shards_expected);
    if (status->storage[0] != '\0')
        add(check, TROUBLE_SNAPSHOT, "coordinator", "cannot save: %s", status->storage);
    if (status->n_strangers > 0)
        add(check, TROUBLE_WAITS, status->cluster,
            "shards hold %zu parts of jobs that are not acted on: `cairn cluster status` lists "
            "them",
            status->n_strangers);
}

/* ---- jobs ---- */

static void check_state(struct check *check, const Cairn__JobStatus *j)
{
    const bool runs = strcmp(j->state, "running") == 0;
    if (j->loss[0] != '\0')
        add(check, TROUBLE_WAITS, j->name, "is %s", j->loss);
    else if (!runs && strcmp(j->state, "parked") != 0)
        add(check, TROUBLE_WAITS, j->name, "is %s%s%s", j->state, j->awaited[0] != 0 ? ": " : "",
            j->awaited);
    else if (runs && j->still_ms > WAITS_MS)
        add(check, TROUBLE_WAITS, j->name, "has applied no step for %llu s, and waits for %s",
            (unsigned long long)j->still_ms / 1000,
            j->awaited[0] != '\0' ? j->awaited : "what nobody knows");
    if (j->nonfinite > 0)
        add(check, TROUBLE_WAITS, j->name, "%llu elements are not finite (%s)",
            (unsigned long long)j->nonfinite, j->nonfinite_tensors);
    if (j->path_cut[0] != '\0')
        add(check, TROUBLE_WAITS, j->name, "the data path is cut: %s", j->path_cut);
    if (j->straggler != NULL) add(check, TROUBLE_DEGRADED, j->name, "%s", j->straggler->text);
    if (j->reduce_groups_off[0] != '\0')
        add(check, TROUBLE_DEGRADED, j->name, "no reduce groups: %s", j->reduce_groups_off);
}

static uint64_t age_s(uint64_t unix_ms)
{
    const uint64_t now_s = (uint64_t)time(NULL), then_s = unix_ms / 1000;
    return now_s > then_s ? now_s - then_s : 0;
}

/* `list`: the newest first. */
static void check_newest(struct check *check, const Cairn__JobStatus *j,
                         const Cairn__SnapshotList *list)
{
    const uint64_t every_s = j->spec != NULL ? j->spec->snapshot_scrub_every_s : 0;
    const uint64_t unread_s = UNREAD_S + every_s;
    const uint32_t most_s = check->ctl->snapshot_age_s;
    const Cairn__SnapshotStatus *newest = list->n_snapshots > 0 ? list->snapshots[0] : NULL;
    if (newest == NULL && most_s > 0) add(check, TROUBLE_SNAPSHOT, j->name, "has no snapshot");
    if (newest != NULL && most_s > 0 && age_s(newest->created_unix_ms) > most_s)
        add(check, TROUBLE_SNAPSHOT, j->name, "the newest snapshot, %s, is %llu s old", newest->id,
            (unsigned long long)age_s(newest->created_unix_ms));
    for (size_t i = 0; i < list->n_snapshots; i++) {
        const Cairn__SnapshotStatus *s = list->snapshots[i];
        if (s->check_failed)
            add(check, TROUBLE_SNAPSHOT, j->name, "%s is damaged", s->id);
        else if (s->latest && s->checked_unix_ms == 0 && age_s(s->created_unix_ms) > unread_s)
            add(check, TROUBLE_SNAPSHOT, j->name,
                "latest, %s, was never read again: `cairn snapshot verify %s latest`", s->id,
                j->name);
    }
}

/* The coordinator answered, and what it said is of this job's snapshots alone: all else is looked at. */
static bool is_answer(cairn_status status)
{
    return status != CAIRN_ERR_UNREACHABLE && status != CAIRN_ERR_CLOSED &&
           status != CAIRN_ERR_TIMEOUT;
}

static cairn_status check_snapshots(struct check *check, struct ctl *ctl, const Cairn__JobStatus *j)
{
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    ProtobufCMessage *reply;
    if (j->snapshot_failed[0] != '\0')
        add(check, TROUBLE_SNAPSHOT, j->name, "the last one failed, %s", j->snapshot_failed);
    if (j->passed_over[0] != '\0')
        add(check, TROUBLE_SNAPSHOT, j->name, "restored past a damaged one: %s", j->passed_over);
    get.job = j->name;
    struct cairn_sentence why;
    ctl->failed = &why;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base,
                                               CAIRN_MSG_SNAPSHOT_LIST, &reply);
    ctl->failed = NULL;
    if (called != CAIRN_OK && !is_answer(called)) {
        cairn_ctl_fail(called, "%s", why.text);
        return called;
    }
    if (called != CAIRN_OK) {
        add(check, TROUBLE_SNAPSHOT, j->name, "its snapshots cannot be listed: %s", why.text);
        return CAIRN_OK;
    }
    check_newest(check, j, (const Cairn__SnapshotList *)reply);
    cairn_message_free(reply);
    return CAIRN_OK;
}

static cairn_status check_job(struct check *check, struct ctl *ctl, const Cairn__JobStatus *j)
{
    check_state(check, j);
    return check_snapshots(check, ctl, j);
}

/* ---- the commands ---- */

static struct check begin(const struct ctl *ctl)
{
    return (struct check) { .ctl = ctl,
                            .worst = TROUBLE_COUNT,
                            .found = ctl->json ? json_array() : NULL };
}

/* Prints what is to be printed last, and returns the exit status. */
static int end(struct check *check, cairn_status status)
{
    const int found = check->worst < TROUBLE_COUNT ? troubles[check->worst].exit_status : 0;
    if (status != CAIRN_OK)
        json_decref(check->found);
    else if (check->found != NULL)
        cairn_ctl_print_json(json_pack("{s:b, s:o}", "well", found == 0, "found", check->found));
    else if (found == 0 && !check->ctl->quiet)
        printf("all is well\n");
    return status == CAIRN_OK ? found : cairn_status_exit((int)status);
}

int cairn_ctl_cluster_check(struct ctl *ctl, const Cairn__ClusterStatus *status)
{
    const Cairn__JobListGet get = CAIRN__JOB_LIST_GET__INIT;
    struct check check = begin(ctl);
    ProtobufCMessage *reply;
    check_cluster(&check, status);
    cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_JOB_LIST_GET, &get.base, CAIRN_MSG_JOB_LIST,
                                         &reply);
    if (called != CAIRN_OK) return end(&check, called);
    const Cairn__JobList *list = (const Cairn__JobList *)reply;
    for (size_t i = 0; i < list->n_jobs && called == CAIRN_OK; i++)
        called = check_job(&check, ctl, list->jobs[i]);
    cairn_message_free(reply);
    return end(&check, called);
}

int cairn_ctl_job_check(struct ctl *ctl)
{
    Cairn__JobShow show = CAIRN__JOB_SHOW__INIT;
    struct check check = begin(ctl);
    ProtobufCMessage *reply;
    show.name = ctl->argv[0];
    cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_JOB_SHOW, &show.base, CAIRN_MSG_JOB_STATUS,
                                         &reply);
    if (called != CAIRN_OK) return end(&check, called);
    called = check_job(&check, ctl, (const Cairn__JobStatus *)reply);
    cairn_message_free(reply);
    return end(&check, called);
}

/* cairn cluster status | adopt | events, cairn job check | list */
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "shown.pb-c.h"
#include "proto/spec/spec.h"

/* The coordinator stops earlier if a shard does not answer, and names that shard. */
#define ADOPT_TIMEOUT_MS 600000

/* ==== check ==== */

/* cairn cluster status --check, cairn job check: print what is wrong, for a supervisor that reads the
 * exit status. */

/* The kinds of trouble, the worst first: the exit status is that of the worst kind found. */
enum trouble {
    /* a shard is not up, is unfit, or is not reached by other hosts; or too few shards are up */
    TROUBLE_SHARD,
    TROUBLE_WAITS,    /* a job is lost, halted, or waits */
    TROUBLE_SNAPSHOT, /* a snapshot failed, is damaged, unverified or too old; or none can be saved */
    TROUBLE_DEGRADED, /* everything works, but not as it should */
    TROUBLE_SAFETY,   /* everything works, but a job is less safe than it could be */
    TROUBLE_COUNT
};
static const struct {
    const char *name;
    int exit_status;
} troubles[TROUBLE_COUNT] = { [TROUBLE_SHARD] = { "shard", 20 },
                              [TROUBLE_WAITS] = { "waits", 21 },
                              [TROUBLE_SNAPSHOT] = { "snapshot", 22 },
                              [TROUBLE_DEGRADED] = { "degraded", 23 },
                              [TROUBLE_SAFETY] = { "safety", 3 } };

/* `latest` may remain unread by the coordinator for this long beyond its scrub interval. */
#define UNREAD_S 3600

struct check {
    const struct ctl *ctl;
    enum trouble worst;       /* TROUBLE_COUNT: no trouble was found */
    Cairn__ShownCheck *shown; /* owned */
};

static void add_trouble(struct check *check, enum trouble kind, const char *what,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));
static void add_trouble(struct check *check, enum trouble kind, const char *what,
                        const char *format, ...)
{
    char text[CAIRN_SENTENCE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (kind < check->worst) check->worst = kind;
    Cairn__ShownTrouble *trouble = ctl_add(check->shown, "found");
    trouble->kind = ctl_copy(troubles[kind].name);
    trouble->what = ctl_copy(what);
    trouble->text = ctl_copy(text);
}

/* A trouble of a message. The message has this trouble if the text, which has fields of the
 * message, is not left out. `what` is a text, too: it names what has the trouble. */
struct complaint {
    enum trouble kind;
    const char *what, *text;
};

static void add_complaints(struct check *check, const void *message,
                           const struct complaint *complaints)
{
    for (; complaints->text != NULL; complaints++) {
        char *text = ctl_text_of(message, complaints->text);
        char *what = ctl_text_of(message, complaints->what);
        if (text != NULL) add_trouble(check, complaints->kind, what, "%s", text);
        free(text);
        free(what);
    }
}

/* ---- the cluster ---- */

static void check_shard(struct check *check, const Cairn__MemberStatus *m, const char *version)
{
    static const struct complaint complaints[] = {
        { TROUBLE_SHARD, "{name}", "{!state=up}{state} for {since_ms/s}" },
        { TROUBLE_SHARD, "{name}", "{apart?}" },
        { TROUBLE_SNAPSHOT, "{name}", "cannot save: {storage?}" },
        { TROUBLE_SHARD, "{name}", "is unfit: {home.failed?}; {unfit}" },
        { TROUBLE_DEGRADED, "{name}", "{home.warning?}" },
        { TROUBLE_DEGRADED, "{name}",
          "{stats.unpinned_bytes/bytes?} of host memory could not be pinned" },
        { 0, NULL, NULL },
    };
    add_complaints(check, m, complaints);
    if (strcmp(m->state, "up") == 0 && strcmp(m->version, version) != 0)
        add_trouble(check, TROUBLE_DEGRADED, m->name, "is build %s, the coordinator %s",
                    m->version[0] != '\0' ? m->version : "of no name", version);
}

static void check_cluster(struct check *check, const Cairn__ClusterStatus *status)
{
    static const struct complaint of_member[] = {
        { TROUBLE_WAITS, "{name}", "hears nothing from {unheard?} over the data path" },
        { 0, NULL, NULL },
    };
    static const struct complaint of_all[] = {
        { TROUBLE_SHARD, "{cluster}",
          "{?shards_expected>up}{up} of {shards_expected} shards are up" },
        { TROUBLE_SNAPSHOT, "coordinator", "cannot save: {storage?}" },
        { TROUBLE_WAITS, "{cluster}",
          "shards hold {strangers?} parts of jobs that are not acted on: `cairn cluster status` "
          "lists them" },
        { 0, NULL, NULL },
    };
    for (size_t i = 0; i < status->n_members; i++) {
        const Cairn__MemberStatus *m = status->members[i];
        add_complaints(check, m, of_member);
        if (m->role == CAIRN_ROLE_WIRE_SHARD) check_shard(check, m, status->version);
    }
    add_complaints(check, status, of_all);
}

/* ---- jobs ---- */

static void check_state(struct check *check, const Cairn__JobStatus *j)
{
    static const struct complaint complaints[] = {
        { TROUBLE_WAITS, "{name}", "is {loss?}" },
        { TROUBLE_WAITS, "{name}", "{!loss,state=running,state=parked}is {state}[: {awaited}]" },
        { TROUBLE_WAITS, "{name}",
          "{!loss}{?state=running}{?still_ms>60000}has applied no step for {still_ms/s}, and waits "
          "for "
          "[{awaited}][{!awaited}what nobody knows]" },
        { TROUBLE_WAITS, "{name}", "{nonfinite?} elements are not finite ({nonfinite_tensors})" },
        { TROUBLE_WAITS, "{name}", "the data path is cut: {path_cut?}" },
        { TROUBLE_DEGRADED, "{name}", "{?straggler}{straggler.text}" },
        { TROUBLE_DEGRADED, "{name}", "no reduce groups: {reduce_groups_off?}" },
        { TROUBLE_SAFETY, "{name}", "is less safe than it asks for: {unsafe?}" },
        { TROUBLE_SNAPSHOT, "{name}", "the last one failed, {snapshot_failed?}" },
        { TROUBLE_SNAPSHOT, "{name}", "restored past a damaged one: {passed_over?}" },
        { 0, NULL, NULL },
    };
    add_complaints(check, j, complaints);
}

/* Names the shards with which a part of the job dies, if the job leaves its durability to the cluster. */
static void check_kept(struct check *check, const Cairn__JobStatus *j)
{
    struct sentence names = { "" };
    const bool is_running = strcmp(j->state, "running") == 0 && j->loss[0] == '\0';
    const bool is_asked = j->spec != NULL && j->spec->durability != CAIRN_DURABILITY_DEFAULT;
    const bool is_safe = strcmp(j->durability, "none") != 0 || j->unsafe[0] != '\0';
    if (!is_running || is_asked || is_safe || j->parts_kept >= j->shards) return;
    for (size_t i = 0; i < j->n_memory; i++)
        if (!j->memory[i]->untold && !j->memory[i]->kept)
            sentence_add(&names, "%s%s", names.text[0] != '\0' ? ", " : "", j->memory[i]->shard);
    if (names.text[0] == '\0') return;
    add_trouble(check, TROUBLE_SAFETY, j->name,
                "nothing keeps its part when the process ends of %s: start these under systemd "
                "with FileDescriptorStoreMax=, or by `cairn-shard --keep`; a part on a GPU is not "
                "kept",
                sentence_brief(names.text, 600).text);
}

static uint64_t age_s(uint64_t unix_ms)
{
    const uint64_t now_s = (uint64_t)time(NULL), then_s = unix_ms / 1000;
    return now_s > then_s ? now_s - then_s : 0;
}

/* `list` has the newest snapshot first. */
static void check_newest(struct check *check, const Cairn__JobStatus *j,
                         const Cairn__SnapshotList *list)
{
    const uint64_t every_s = j->spec != NULL ? j->spec->snapshot_scrub_every_s : 0;
    const uint64_t unread_s = UNREAD_S + every_s;
    const uint32_t most_s = check->ctl->times.snapshot_age_s;
    const Cairn__SnapshotStatus *newest = list->n_snapshots > 0 ? list->snapshots[0] : NULL;
    if (newest == NULL && most_s > 0)
        add_trouble(check, TROUBLE_SNAPSHOT, j->name, "has no snapshot");
    if (newest != NULL && most_s > 0 && age_s(newest->created_unix_ms) > most_s)
        add_trouble(check, TROUBLE_SNAPSHOT, j->name,
                    "the newest snapshot, %s, is %" PRIu64 " s old", newest->id,
                    age_s(newest->created_unix_ms));
    for (size_t i = 0; i < list->n_snapshots; i++) {
        const Cairn__SnapshotStatus *s = list->snapshots[i];
        if (s->check_failed)
            add_trouble(check, TROUBLE_SNAPSHOT, j->name, "%s is damaged", s->id);
        else if (s->latest && s->checked_unix_ms == 0 && age_s(s->created_unix_ms) > unread_s)
            add_trouble(check, TROUBLE_SNAPSHOT, j->name,
                        "latest, %s, was never read again: `cairn snapshot verify %s latest`",
                        s->id, j->name);
    }
}

static cairn_status check_snapshots(struct check *check, struct ctl *ctl, const Cairn__JobStatus *j)
{
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    ProtobufCMessage *reply;
    get.job = j->name;
    struct sentence why;
    ctl->call.failed = &why;
    const cairn_status called = ctl_call(ctl, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base,
                                         CAIRN_MSG_SNAPSHOT_LIST, &reply);
    ctl->call.failed = NULL;
    // If the coordinator answered, a bad status concerns only this job's snapshots.
    if (called == CAIRN_ERR_UNREACHABLE || called == CAIRN_ERR_CLOSED ||
        called == CAIRN_ERR_TIMEOUT) {
        ctl_fail(called, "%s", why.text);
        return called;
    }
    if (called != CAIRN_OK) {
        add_trouble(check, TROUBLE_SNAPSHOT, j->name, "its snapshots cannot be listed: %s",
                    why.text);
        return CAIRN_OK;
    }
    check_newest(check, j, (const Cairn__SnapshotList *)reply);
    message_free(reply);
    return CAIRN_OK;
}

static cairn_status check_job(struct check *check, struct ctl *ctl, const Cairn__JobStatus *j)
{
    check_state(check, j);
    check_kept(check, j);
    return check_snapshots(check, ctl, j);
}

/* ---- the commands ---- */

static struct check begin_check(const struct ctl *ctl)
{
    return (struct check) { .ctl = ctl,
                            .worst = TROUBLE_COUNT,
                            .shown = ctl_message(&cairn__shown_check__descriptor) };
}

/* Prints what was found, a line each, and returns the exit status. */
static int end_check(struct check *check, cairn_status status)
{
    const bool is_done = status == CAIRN_OK;
    const int found = check->worst < TROUBLE_COUNT ? troubles[check->worst].exit_status : 0;
    check->shown->well = is_done && found == 0;
    if (is_done || !check->ctl->json)
        ctl_show(check->ctl, check->shown,
                 "*found {kind}: {what}: {text}\n"
                 "{?well}all is well",
                 NULL);
    message_free(&check->shown->base);
    return is_done ? found : status_exit((int)status);
}

/* With --check: prints what is wrong with the cluster and all its jobs, one line per trouble. Returns the
 * exit status of the worst kind. */
static int show_cluster_check(struct ctl *ctl, const void *status)
{
    const Cairn__JobListGet get = CAIRN__JOB_LIST_GET__INIT;
    ProtobufCMessage *reply;
    if (!ctl_is_given(ctl, "check")) return -1;
    struct check check = begin_check(ctl);
    check_cluster(&check, status);
    cairn_status called = ctl_call(ctl, CAIRN_MSG_JOB_LIST_GET, &get.base, CAIRN_MSG_JOB_LIST,
                                   &reply);
    if (called != CAIRN_OK) return end_check(&check, called);
    const Cairn__JobList *list = (const Cairn__JobList *)reply;
    for (size_t i = 0; i < list->n_jobs && called == CAIRN_OK; i++)
        called = check_job(&check, ctl, list->jobs[i]);
    message_free(reply);
    return end_check(&check, called);
}

static int show_job_check(struct ctl *ctl, const void *job)
{
    struct check check = begin_check(ctl);
    return end_check(&check, check_job(&check, ctl, job));
}

const struct ctl_question ctl_job_check = { CTL_ASKS(JOB_SHOW, job_show, JOB_STATUS),
                                            .fill = "name=@0", .show = show_job_check };

/* ==== status ==== */

const struct ctl_question ctl_cluster_status = {
    CTL_ASKS(CLUSTER_STATUS_GET, cluster_status_get, CLUSTER_STATUS),
    .fill = "",
    .show = show_cluster_check,
    .page =
        "cluster {cluster}: coordinator {version}, store {store/hex}, start "
        "{coordinator_incarnation}, up {uptime_ms/s}; {shards_expected} "
        "shard{shards_expected/plural} expected, {job_count} job{job_count/plural}{;}\n"
        "#members\n"
        "{?homes}\n"
        "*members {?home}"
        "[{?home.backend=host}{name}: state lies in host memory ({home.device}): {home.why}]"
        "[{!home.backend=host}{name}: state lies on {home.device} ({home.backend}, {home.driver}), "
        "{home.total_bytes/bytes}, of which its context and others took {home.taken_bytes/bytes}"
        "[{?home.device_memory}{;}{name}: this state goes to other hosts "
        "[{?home.device_memory=device}from there][{!home.device_memory=device}through host "
        "memory]: "
        "{home.device_memory_why}]"
        "[{;}{name}: warning: {home.warning?}]"
        "[{;}{name}: unfit, so that nothing more comes to that device: {home.failed?}; {unfit}]"
        "[{?stats}{;}{name}: {stats.launches} launches, {stats.in_bytes/bytes} copied in, "
        "{stats.out_bytes/bytes} out; {stats.pinned_bytes/bytes} of host memory pinned]"
        "[{;}{name}: {stats.unpinned_bytes/bytes?} of host memory could not be pinned: copies of "
        "it are slower]]\n"
        "{without?}\n"
        "*unsafe {;}{.}\n"
        "{;}no snapshot can be saved: {storage?}\n"
        "*members {;}no snapshot can be saved: shard {name}: {storage?}\n"
        "*members {;}{name} hears nothing from {unheard?} over the data path: look for a firewall "
        "or a cut between them, in both directions\n"
        "*members {;}{name} {apart?}\n"
        "*members {;}{name} is a standby of {standby_of?}\n"
        "*members {;}{name} {spare?}\n"
        "*members {;}warning: shard {name} {clear?}\n"
        "{?strangers}{;}held by shards, but not acted on (`cairn cluster adopt` takes it, `cairn "
        "cluster forget JOB` drops it):{;}\n"
        "#strangers?",
    .quiet = "#members\n"
             "#strangers?",
};

/* Prints to stderr how many parts of jobs lie on the shards although nothing acts on these parts, if there
 * are any and the coordinator knows no job. */
static int say_strangers(struct ctl *ctl, const void *jobs)
{
    const Cairn__ClusterStatusGet get = CAIRN__CLUSTER_STATUS_GET__INIT;
    ProtobufCMessage *reply;
    if (((const Cairn__JobList *)jobs)->n_jobs > 0 || ctl->quiet ||
        ctl_call(ctl, CAIRN_MSG_CLUSTER_STATUS_GET, &get.base, CAIRN_MSG_CLUSTER_STATUS, &reply) !=
            CAIRN_OK)
        return 0;
    const size_t count = ((const Cairn__ClusterStatus *)reply)->n_strangers;
    if (count > 0)
        fprintf(stderr,
                "cairn: the coordinator's store knows no job, and shards hold %zu part%s of jobs "
                "that are not acted on: `cairn cluster status` lists them, `cairn cluster adopt` "
                "takes them\n",
                count, count == 1 ? "" : "s");
    message_free(reply);
    return 0;
}

const struct ctl_question ctl_job_list = { CTL_ASKS(JOB_LIST_GET, job_list_get, JOB_LIST),
                                           .fill = "", .page = "#jobs", .quiet = "*jobs {name}",
                                           .after = say_strangers };

/* ==== adopt ==== */

static json_t *adopted_json(struct ctl *ctl, const void *reply)
{
    const Cairn__ClusterAdopted *adopted = reply;
    json_t *ids = json_array(), *object = json_object();
    for (size_t i = 0; adopted->keys != NULL && i < adopted->keys->n_keys; i++)
        json_array_append_new(ids, json_string(adopted->keys->keys[i]->id));
    json_object_set_new(object, "done", json_boolean(ctl->yes && ctl_number(adopted, "whole") > 0));
    json_object_set_new(object, "keys", ids);
    ctl_json_add(object, adopted, "jobs silent");
    return object;
}

static int check_adopted(struct ctl *ctl, const void *reply)
{
    const Cairn__ClusterAdopted *adopted = reply;
    (void)ctl;
    return ctl_number(adopted, "whole") == 0 && (adopted->n_jobs > 0 || adopted->n_silent > 0);
}

/* The page lists the keys that the lost store trusted, because snapshots signed by these keys can be restored
 * only if the new store trusts the keys, too; and the silent shards: the command does not wait for them, but
 * they may explain a refusal. */
const struct ctl_question ctl_cluster_adopt = {
    CTL_ASKS(CLUSTER_ADOPT, cluster_adopt, CLUSTER_ADOPTED),
    .fill = "plan=!yes",
    .timeout_ms = ADOPT_TIMEOUT_MS,
    .page = "#jobs\n"
            "{?keys.keys}\n"
            "*keys.keys key {id}, which the lost store trusted, [{?@yes}is][{!@yes}would be] "
            "trusted here\n"
            "{?silent}\n"
            "*silent shard {.} did not say what it holds, and stays as it is: see whether its "
            "process is stopped, and adopt again when it answers\n"
            "{!jobs}{;}nothing to adopt: the shards that are here[{?silent} and answer] hold no "
            "job but those of this coordinator\n"
            "{?whole}{!@yes}{;}nothing was adopted: --yes takes the jobs that are not refused, and "
            "from then on the shards no longer obey the store that these came from",
    .json = adopted_json,
    .after = check_adopted,
};

/* ==== events ==== */

/* cairn cluster events; cairn cluster audit, whose entries are events, too */

struct seen {
    uint64_t after;   /* the number of the last event */
    uint64_t process; /* the coordinator process that assigned this number; 0: none yet */
};

/* Returns true if the events must be fetched again, because a new coordinator process has reused
 * numbers that were already seen. A new process reuses the numbers of events that the previous
 * process had not stored when it was killed; if the store was lost, it reuses all numbers. */
static bool goes_back(struct seen *seen, const Cairn__Events *page)
{
    const bool is_other = seen->process != 0 && page->process != seen->process;
    seen->process = page->process;
    if (!is_other || seen->after < page->began) return false;
    seen->after = page->began - 1;
    return true;
}

/* Fetches all pages after the events already seen. */
static cairn_status ask_events(struct ctl *ctl, Cairn__Events *all, struct seen *seen)
{
    Cairn__EventsGet get = CAIRN__EVENTS_GET__INIT;
    Cairn__AuditGet audit = CAIRN__AUDIT_GET__INIT;
    const bool is_audit = ctl->row->question == &ctl_cluster_audit;
    get.since_unix_ms = audit.since_unix_ms = ctl->times.since_unix_ms;
    for (bool more = true; more;) {
        ProtobufCMessage *reply;
        get.after = audit.after = seen->after;
        CAIRN_TRY(ctl_call(ctl, is_audit ? CAIRN_MSG_AUDIT_GET : CAIRN_MSG_EVENTS_GET,
                           is_audit ? &audit.base : &get.base, CAIRN_MSG_EVENTS, &reply));
        Cairn__Events *page = (Cairn__Events *)reply;
        const bool anew = goes_back(seen, page);
        more = anew || (page->more && page->n_events > 0);
        for (size_t i = 0; i < page->n_events && !anew; i++) {
            seen->after = page->events[i]->number;
            ctl_append(all, "events", page->events[i]);
        }
        if (!anew) page->n_events = 0; // they belong to `all` now
        message_free(reply);
    }
    return CAIRN_OK;
}

/* Prints the events that were not seen yet, each as one row or one JSON object. */
static cairn_status print_new(struct ctl *ctl, struct seen *seen)
{
    Cairn__Events *all = ctl_message(&cairn__events__descriptor);
    const cairn_status status = ask_events(ctl, all, seen);
    for (size_t i = 0; ctl->json && ctl->watch && i < all->n_events; i++) {
        json_t *event = ctl_json(all->events[i]);
        json_dumpf(event, stdout, JSON_COMPACT);
        printf("\n");
        json_decref(event);
    }
    if (!ctl->json || (status == CAIRN_OK && !ctl->watch)) ctl_show(ctl, all, "#events", NULL);
    message_free(&all->base);
    return status;
}

static int follow(struct ctl *ctl, struct seen *seen)
{
    ctl->no_headers = true;
    ctl->call.tries_again = true;
    ctl_on_interrupt("%s", ""); // ends silently
    for (;;) {
        if (fflush(stdout) != 0) return 1; // nobody reads the output
        poll(NULL, 0, (int)(ctl->times.every_s * 1000));
        const cairn_status status = print_new(ctl, seen);
        if (status != CAIRN_OK && status != CAIRN_ERR_UNREACHABLE && status != CAIRN_ERR_TIMEOUT)
            return status_exit((int)status);
    }
}

static int run_cluster_events(struct ctl *ctl)
{
    struct seen seen = { 0 };
    const cairn_status status = print_new(ctl, &seen);
    if (status != CAIRN_OK) return status_exit((int)status);
    return ctl->watch ? follow(ctl, &seen) : 0;
}

const struct ctl_question ctl_cluster_events = { .run = run_cluster_events };
const struct ctl_question ctl_cluster_audit = { .run = run_cluster_events };

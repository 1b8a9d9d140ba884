/* cairn cluster status | adopt | backup | forget */
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
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
    TROUBLE_COUNT
};
static const struct {
    const char *name;
    int exit_status;
} troubles[TROUBLE_COUNT] = { [TROUBLE_SHARD] = { "shard", 20 },
                              [TROUBLE_WAITS] = { "waits", 21 },
                              [TROUBLE_SNAPSHOT] = { "snapshot", 22 },
                              [TROUBLE_DEGRADED] = { "degraded", 23 } };

/* A job waits if it has made no progress for this long. */
#define WAITS_MS 60000
/* `latest` may remain unread by the coordinator for this long beyond its scrub interval. */
#define UNREAD_S 3600

struct check {
    const struct ctl *ctl;
    enum trouble worst; /* TROUBLE_COUNT: no trouble was found */
    json_t *found;      /* owned, if JSON is wanted */
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
    if (check->found != NULL)
        json_array_append_new(
            check->found,
            json_pack("{s:s, s:s, s:s}", "kind", troubles[kind].name, "what", what, "text", text));
    else if (!check->ctl->quiet)
        printf("%s: %s: %s\n", troubles[kind].name, what, text);
}

/* ---- shards ---- */

/* A trouble of a message. The message has this trouble if the text, which has fields of the
 * message, is not left out. */
struct complaint {
    enum trouble kind;
    const char *text;
};

static void add_complaints(struct check *check, const char *what, const void *message,
                           const struct complaint *complaints)
{
    for (; complaints->text != NULL; complaints++) {
        char *text = ctl_text_of(message, complaints->text);
        if (text != NULL) add_trouble(check, complaints->kind, what, "%s", text);
        free(text);
    }
}

static void check_shard(struct check *check, const Cairn__MemberStatus *m)
{
    static const struct complaint complaints[] = {
        { TROUBLE_SHARD, "{apart?}" },
        { TROUBLE_SNAPSHOT, "cannot save: {storage?}" },
        { TROUBLE_SHARD, "is unfit: {home.failed?}; {unfit}" },
        { TROUBLE_DEGRADED, "{home.warning?}" },
        { TROUBLE_DEGRADED, "{stats.unpinned_bytes/bytes?} of host memory could not be pinned" },
        { 0, NULL },
    };
    if (strcmp(m->state, "up") != 0)
        add_trouble(check, TROUBLE_SHARD, m->name, "%s for %" PRIu64 " s", m->state,
                    m->since_ms / 1000);
    add_complaints(check, m->name, m, complaints);
}

static void check_cluster(struct check *check, const Cairn__ClusterStatus *status)
{
    uint32_t up = 0;
    const char *version = status->version;
    for (size_t i = 0; i < status->n_members; i++) {
        const Cairn__MemberStatus *m = status->members[i];
        if (m->unheard[0] != '\0')
            add_trouble(check, TROUBLE_WAITS, m->name, "hears nothing from %s over the data path",
                        m->unheard);
        if (m->role != CAIRN_ROLE_WIRE_SHARD) continue;
        check_shard(check, m);
        if (strcmp(m->state, "up") != 0) continue;
        up++;
        if (strcmp(m->version, version) != 0)
            add_trouble(check, TROUBLE_DEGRADED, m->name, "is build %s, the coordinator %s",
                        m->version[0] != '\0' ? m->version : "of no name", version);
    }
    if (up < status->shards_expected)
        add_trouble(check, TROUBLE_SHARD, status->cluster, "%u of %u shards are up", up,
                    status->shards_expected);
    if (status->storage[0] != '\0')
        add_trouble(check, TROUBLE_SNAPSHOT, "coordinator", "cannot save: %s", status->storage);
    if (status->n_strangers > 0)
        add_trouble(
            check, TROUBLE_WAITS, status->cluster,
            "shards hold %zu parts of jobs that are not acted on: `cairn cluster status` lists "
            "them",
            status->n_strangers);
}

/* ---- jobs ---- */

static void check_state(struct check *check, const Cairn__JobStatus *j)
{
    static const struct complaint complaints[] = {
        { TROUBLE_WAITS, "{nonfinite?} elements are not finite ({nonfinite_tensors})" },
        { TROUBLE_WAITS, "the data path is cut: {path_cut?}" },
        { TROUBLE_DEGRADED, "{?straggler}{straggler.text}" },
        { TROUBLE_DEGRADED, "no reduce groups: {reduce_groups_off?}" },
        { TROUBLE_SNAPSHOT, "the last one failed, {snapshot_failed?}" },
        { TROUBLE_SNAPSHOT, "restored past a damaged one: {passed_over?}" },
        { 0, NULL },
    };
    const bool runs = strcmp(j->state, "running") == 0;
    if (j->loss[0] != '\0')
        add_trouble(check, TROUBLE_WAITS, j->name, "is %s", j->loss);
    else if (!runs && strcmp(j->state, "parked") != 0)
        add_trouble(check, TROUBLE_WAITS, j->name, "is %s%s%s", j->state,
                    j->awaited[0] != 0 ? ": " : "", j->awaited);
    else if (runs && j->still_ms > WAITS_MS)
        add_trouble(check, TROUBLE_WAITS, j->name,
                    "has applied no step for %" PRIu64 " s, and waits for %s", j->still_ms / 1000,
                    j->awaited[0] != '\0' ? j->awaited : "what nobody knows");
    add_complaints(check, j->name, j, complaints);
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
    const uint32_t most_s = check->ctl->snapshot_age_s;
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

/* Returns true if the coordinator answered. A bad status then concerns only this job's snapshots,
 * and the check continues. */
static bool is_answer(cairn_status status)
{
    return status != CAIRN_ERR_UNREACHABLE && status != CAIRN_ERR_CLOSED &&
           status != CAIRN_ERR_TIMEOUT;
}

static cairn_status check_snapshots(struct check *check, struct ctl *ctl, const Cairn__JobStatus *j)
{
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    ProtobufCMessage *reply;
    get.job = j->name;
    struct sentence why;
    ctl->failed = &why;
    const cairn_status called = ctl_call(ctl, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base,
                                         CAIRN_MSG_SNAPSHOT_LIST, &reply);
    ctl->failed = NULL;
    if (called != CAIRN_OK && !is_answer(called)) {
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
    return check_snapshots(check, ctl, j);
}

/* ---- the commands ---- */

static struct check begin_check(const struct ctl *ctl)
{
    return (struct check) { .ctl = ctl,
                            .worst = TROUBLE_COUNT,
                            .found = ctl->json ? json_array() : NULL };
}

/* Prints the final output, and returns the exit status. */
static int end_check(struct check *check, cairn_status status)
{
    const int found = check->worst < TROUBLE_COUNT ? troubles[check->worst].exit_status : 0;
    if (status != CAIRN_OK)
        json_decref(check->found);
    else if (check->found != NULL)
        ctl_print_json(json_pack("{s:b, s:o}", "well", found == 0, "found", check->found));
    else if (found == 0 && !check->ctl->quiet)
        printf("all is well\n");
    return status == CAIRN_OK ? found : status_exit((int)status);
}

/* Prints what is wrong with the cluster and all its jobs, one line per trouble. Returns the exit status of
 * the worst kind. */
static int cluster_check(struct ctl *ctl, const Cairn__ClusterStatus *status)
{
    const Cairn__JobListGet get = CAIRN__JOB_LIST_GET__INIT;
    struct check check = begin_check(ctl);
    ProtobufCMessage *reply;
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

static int run_job_check(struct ctl *ctl)
{
    Cairn__JobShow show = CAIRN__JOB_SHOW__INIT;
    struct check check = begin_check(ctl);
    ProtobufCMessage *reply;
    show.name = ctl->argv[0];
    cairn_status called = ctl_call(ctl, CAIRN_MSG_JOB_SHOW, &show.base, CAIRN_MSG_JOB_STATUS,
                                   &reply);
    if (called != CAIRN_OK) return end_check(&check, called);
    called = check_job(&check, ctl, (const Cairn__JobStatus *)reply);
    message_free(reply);
    return end_check(&check, called);
}

/* ==== cluster ==== */

/* Prints which capabilities the builds or hosts of shards lack. Shards that lack the same capabilities, as
 * shards on the same kind of machine do, share one line. */
static void print_without(const Cairn__ClusterStatus *status)
{
    for (uint32_t without = 1; without < 1u << CAIRN_WITHOUT_COUNT; without++) {
        struct sentence what, who = { "" };
        size_t count = 0;
        for (size_t i = 0; i < status->n_members; i++) {
            if ((status->members[i]->without & ((1u << CAIRN_WITHOUT_COUNT) - 1)) != without)
                continue;
            sentence_add(&who, "%s%s", count++ > 0 ? ", " : "", status->members[i]->name);
        }
        without_print(without, &what);
        if (count > 0) printf("\nwithout %s: %s\n", what.text, who.text);
    }
}

static bool is_of_device(const Cairn__Home *home)
{
    return home != NULL && strcmp(home->backend, "host") != 0;
}

static void print_home(const Cairn__MemberStatus *m)
{
    if (!is_of_device(m->home)) {
        ctl_line_of(NULL, m, "{name}: state lies in host memory ({home.device}): {home.why}");
        return;
    }
    ctl_line_of(
        NULL, m,
        "{name}: state lies on {home.device} ({home.backend}, {home.driver}), "
        "{home.total_bytes/bytes}, of which its context and others took {home.taken_bytes/bytes}");
    if (m->home->device_memory[0] != '\0')
        printf("%s: this state goes to other hosts %s: %s\n", m->name,
               strcmp(m->home->device_memory, "device") == 0 ? "from there" : "through host memory",
               m->home->device_memory_why);
    ctl_lines(m,
              "{name}: warning: {home.warning?}\n"
              "{name}: unfit, so that nothing more comes to that device: {home.failed?}; {unfit}\n"
              "{?stats}{name}: {stats.launches} launches, {stats.in_bytes/bytes} copied in, "
              "{stats.out_bytes/bytes} out; {stats.pinned_bytes/bytes} of host memory pinned\n"
              "{name}: {stats.unpinned_bytes/bytes?} of host memory could not be pinned: copies of "
              "it are slower");
}

static void print_homes(const Cairn__ClusterStatus *status)
{
    bool any = false;
    for (size_t i = 0; i < status->n_members; i++) {
        if (status->members[i]->home == NULL) continue;
        if (!any) printf("\n");
        print_home(status->members[i]);
        any = true;
    }
}

/* Prints the text for each member for which the text is not left out. */
static void print_each(const Cairn__ClusterStatus *status, const char *text)
{
    for (size_t i = 0; i < status->n_members; i++) ctl_line_of(NULL, status->members[i], text);
}

static void print_strangers(const struct ctl *ctl, Cairn__StrangePart *const *parts, size_t count)
{
    static const struct ctl_column columns[] = {
        { "JOB", "part.name", NULL },
        { "NUMBER", "part.job/hex", NULL },
        { "GENERATION", "part.generation", NULL },
        { "STEP", "part.version_step", NULL },
        { "PART", "{part.shard_index/1+%.0f} of {part.shard_count}", NULL },
        { "SHARD", "shard", NULL },
        { "MEMORY", "part.bytes/bytes", NULL },
        { "WHY", "why", NULL },
    };
    ctl_table_print(ctl, CTL_COLUMNS(columns), parts, count);
}

/* Prints the status. The usage figures of a shard's device are next to the description of the
 * device. */
static void print_json(const Cairn__ClusterStatus *status)
{
    json_t *object = ctl_json(status), *members = json_object_get(object, "members");
    for (size_t i = 0; i < status->n_members; i++) {
        const Cairn__MemberStatus *m = status->members[i];
        if (m->stats == NULL || !is_of_device(m->home)) continue;
        json_t *use = json_object();
        ctl_json_add(use, m->stats, "launches in_bytes out_bytes pinned_bytes unpinned_bytes");
        json_object_set_new(json_object_get(json_array_get(members, i), "home"), "use", use);
    }
    ctl_print_json(object);
}

static cairn_status ask_status(struct ctl *ctl, ProtobufCMessage **reply_out)
{
    const Cairn__ClusterStatusGet get = CAIRN__CLUSTER_STATUS_GET__INIT;
    return ctl_call(ctl, CAIRN_MSG_CLUSTER_STATUS_GET, &get.base, CAIRN_MSG_CLUSTER_STATUS,
                    reply_out);
}

void ctl_say_strangers(struct ctl *ctl)
{
    ProtobufCMessage *reply;
    if (ask_status(ctl, &reply) != CAIRN_OK) return;
    const size_t count = ((const Cairn__ClusterStatus *)reply)->n_strangers;
    if (count > 0)
        fprintf(stderr,
                "cairn: the coordinator's store knows no job, and shards hold %zu part%s of jobs "
                "that are not acted on: `cairn cluster status` lists them, `cairn cluster adopt` "
                "takes them\n",
                count, count == 1 ? "" : "s");
    message_free(reply);
}

static void print_status(const struct ctl *ctl, const Cairn__ClusterStatus *status)
{
    static const struct ctl_column columns[] = {
        { "NAME", "name", NULL },
        { "ROLE", "role/role", NULL },
        { "STATE", "state", NULL },
        { "FOR", "since_ms/s", NULL },
        { "PATH", "path", NULL },
        { "PLACE", "place", NULL },
        { "MEMORY", "{state_bytes/bytes}[ of {memory_bytes/bytes}]", NULL },
        { "ADDRESS", "address", NULL },
        { "VERSION", "version", NULL },
    };
    if (!ctl->quiet)
        ctl_line_of(NULL, status,
                    "cluster {cluster}: coordinator {version}, store {store/hex}, start "
                    "{coordinator_incarnation}, up {uptime_ms/s}; {shards_expected} "
                    "shard{shards_expected/plural} expected, {job_count} job{job_count/plural}\n");
    ctl_table_print(ctl, CTL_COLUMNS(columns), status->members, status->n_members);
    if (!ctl->quiet) {
        print_homes(status);
        print_without(status);
        ctl_line_of(NULL, status, "\nno snapshot can be saved: {storage?}");
        print_each(status, "{?storage}\nno snapshot can be saved: shard {name}: {storage}");
        print_each(status,
                   "{?unheard}\n{name} hears nothing from {unheard} over the data path: look "
                   "for a firewall or a cut between them, in both directions");
        print_each(status, "{?apart}\n{name} {apart}");
    }
    if (status->n_strangers == 0) return;
    if (!ctl->quiet)
        printf("\nheld by shards, but not acted on (`cairn cluster adopt` takes it, `cairn "
               "cluster forget JOB` drops it):\n\n");
    print_strangers(ctl, status->strangers, status->n_strangers);
}

static int run_cluster_status(struct ctl *ctl)
{
    ProtobufCMessage *reply;
    int found = 0;
    const cairn_status called = ask_status(ctl, &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    const Cairn__ClusterStatus *status = (const Cairn__ClusterStatus *)reply;
    if (ctl->check)
        found = cluster_check(ctl, status);
    else if (ctl->json)
        print_json(status);
    else
        print_status(ctl, status);
    message_free(reply);
    return found;
}

static void print_forgotten(struct ctl *ctl, const void *reply)
{
    const Cairn__ClusterForgotten *forgotten = reply;
    print_strangers(ctl, forgotten->parts, forgotten->n_parts);
    if (!ctl->yes)
        printf("\nnothing was dropped: --yes drops these parts, and nothing brings them back\n");
}

static const struct ctl_question cluster_forget_question = CTL_QUESTION(
    CLUSTER_FORGET, cluster_forget, "job=@0 plan=!yes", CLUSTER_FORGOTTEN, .print = print_forgotten,
    .is_quiet_too = true, .fields = "done=@yes parts");

static const struct ctl_question cluster_backup_question = CTL_QUESTION(
    CLUSTER_BACKUP, cluster_backup, "path=/0", CLUSTER_BACKED_UP, .quiet = "{path}",
    .lines = "copied to|{path}, {bytes/bytes}, on the coordinator's host");

/* Lists the silent shards: the command does not wait for them, but they may explain a refusal. */
static void say_silent(const Cairn__ClusterAdopted *adopted)
{
    for (size_t i = 0; i < adopted->n_silent; i++)
        printf("%sshard %s did not say what it holds, and stays as it is: see whether its process "
               "is stopped, and adopt again when it answers\n",
               i == 0 ? "\n" : "", adopted->silent[i]);
}

static json_t *keys_json(const Cairn__Keys *keys)
{
    json_t *ids = json_array();
    for (size_t i = 0; keys != NULL && i < keys->n_keys; i++)
        json_array_append_new(ids, json_string(keys->keys[i]->id));
    return ids;
}

/* Lists the keys that the lost store trusted. Snapshots signed by these keys can be restored only if the
 * new store trusts the keys, too. */
static void say_keys(const Cairn__Keys *keys, bool done)
{
    for (size_t i = 0; keys != NULL && i < keys->n_keys; i++)
        printf("%skey %s, which the lost store trusted, %s trusted here\n", i == 0 ? "\n" : "",
               keys->keys[i]->id, done ? "is" : "would be");
}

/* Returns how many jobs can be adopted. */
static size_t whole_jobs(const Cairn__ClusterAdopted *adopted)
{
    size_t whole = 0;
    for (size_t i = 0; i < adopted->n_jobs; i++) whole += adopted->jobs[i]->refused[0] == '\0';
    return whole;
}

static void print_adopted(struct ctl *ctl, const void *reply)
{
    static const struct ctl_column columns[] = {
        { "JOB", "name", NULL },        { "GENERATION", "generation", NULL },
        { "STEP", "step", NULL },       { "SHARDS", "shards", NULL },
        { "REFUSED", "refused", NULL },
    };
    const Cairn__ClusterAdopted *adopted = reply;
    ctl_table_print(ctl, CTL_COLUMNS(columns), adopted->jobs, adopted->n_jobs);
    say_keys(adopted->keys, ctl->yes);
    say_silent(adopted);
    if (adopted->n_jobs == 0)
        ctl_line_of(NULL, adopted,
                    "\nnothing to adopt: the shards that are here[{?silent} and answer] hold no "
                    "job but those of this coordinator");
    else if (!ctl->yes && whole_jobs(adopted) > 0)
        printf("\nnothing was adopted: --yes takes the jobs that are not refused, and from then on "
               "the shards no longer obey the store that these came from\n");
}

static json_t *adopted_json(struct ctl *ctl, const void *reply)
{
    const Cairn__ClusterAdopted *adopted = reply;
    json_t *object = json_pack("{s:b, s:o}", "done", (int)(ctl->yes && whole_jobs(adopted) > 0),
                               "keys", keys_json(adopted->keys));
    ctl_json_add(object, adopted, "jobs silent");
    return object;
}

static int check_adopted(struct ctl *ctl, const void *reply)
{
    const Cairn__ClusterAdopted *adopted = reply;
    (void)ctl;
    return whole_jobs(adopted) == 0 && (adopted->n_jobs > 0 || adopted->n_silent > 0) ? 1 : 0;
}

static const struct ctl_question cluster_adopt_question = CTL_QUESTION(
    CLUSTER_ADOPT, cluster_adopt, "plan=!yes", CLUSTER_ADOPTED, .timeout_ms = ADOPT_TIMEOUT_MS,
    .print = print_adopted, .json = adopted_json, .check = check_adopted);

/* ==== events ==== */

/* cairn cluster events */

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

static void take_page(struct ctl_table *table, json_t *list, const Cairn__Events *page,
                      struct seen *seen)
{
    for (size_t i = 0; i < page->n_events; i++) {
        seen->after = page->events[i]->number;
        if (table != NULL)
            ctl_table_rows(table, &page->events[i], 1);
        else
            json_array_append_new(list, ctl_json(page->events[i]));
    }
}

/* Fetches all pages after the events already seen, into the table or the list. */
static cairn_status ask_events(struct ctl *ctl, struct ctl_table *table, json_t *list,
                               struct seen *seen)
{
    Cairn__EventsGet get = CAIRN__EVENTS_GET__INIT;
    get.since_unix_ms = ctl->since_unix_ms;
    for (bool more = true; more;) {
        ProtobufCMessage *reply;
        get.after = seen->after;
        CAIRN_TRY(ctl_call(ctl, CAIRN_MSG_EVENTS_GET, &get.base, CAIRN_MSG_EVENTS, &reply));
        const Cairn__Events *page = (const Cairn__Events *)reply;
        const bool anew = goes_back(seen, page);
        if (!anew) take_page(table, list, page, seen);
        more = anew || (page->more && page->n_events > 0);
        message_free(reply);
    }
    return CAIRN_OK;
}

/* Prints the events that were not seen yet, each as one row or one JSON object. */
static cairn_status print_new(struct ctl *ctl, struct seen *seen)
{
    static const struct ctl_column columns[] = {
        { "TIME", "unix_ms/instant", NULL },
        { "EVENT", "kind", NULL },
        { "JOB", "job?", NULL },
        { "WHO", "who?", NULL },
        { "WHAT", "text", NULL },
    };
    json_t *list = ctl->json ? json_array() : NULL;
    struct ctl_table *table = ctl->json ? NULL : ctl_table_of(CTL_COLUMNS(columns));
    const cairn_status status = ask_events(ctl, table, list, seen);
    if (table != NULL)
        ctl_table_close(table, ctl);
    else if (status == CAIRN_OK && !ctl->watch)
        ctl_print_json(json_pack("{s:O}", "events", list));
    for (size_t i = 0; ctl->json && ctl->watch && i < json_array_size(list); i++) {
        json_dumpf(json_array_get(list, i), stdout, JSON_COMPACT);
        printf("\n");
    }
    json_decref(list);
    return status;
}

static int follow(struct ctl *ctl, struct seen *seen)
{
    ctl->no_headers = true;
    ctl->tries_again = true;
    ctl_on_interrupt("%s", ""); // ends silently
    for (;;) {
        if (fflush(stdout) != 0) return 1; // nobody reads the output
        poll(NULL, 0, (int)(ctl->every_s * 1000));
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

/* ==== shard ==== */

/* cairn shard forget */

static const struct ctl_question shard_forget_question = CTL_QUESTION(
    SHARD_FORGET, shard_forget, "name=@0", DONE, .lines = "forgotten|{@0}",
    .fields = "forgotten=@0");

/* ==== commands ==== */

const struct ctl_row ctl_cluster_rows[] = {
    { "cluster", "status", "[--check [--snapshot-age TIME]]",
      "the coordinator, its shards and workers; with --check, what is wrong with them and with all "
      "jobs",
      0, 0, CTL_LISTS "check snapshot-age ", CTL_RUN(run_cluster_status) },
    { "cluster", "events", "[--since TIME] [--watch]",
      "who came, went, was lost or put out, what befell the jobs, and what operators asked for: "
      "when, and why",
      0, 0, CTL_ASKS "no-headers since follow ", CTL_RUN(run_cluster_events) },
    { "cluster", "adopt", "[--yes]",
      "take what the shards hold into the coordinator's store: after the store was lost, or an "
      "older copy was put back",
      0, 0, CTL_ASKS "yes ", CTL_ASK(cluster_adopt_question) },
    { "cluster", "backup", "FILE",
      "a copy of the coordinator's store, while it runs, into a new file on its host", 1, 1,
      CTL_ASKS "quiet ", CTL_ASK(cluster_backup_question) },
    { "cluster", "forget", "JOB [--yes]",
      "drop the parts of a job that shards hold and that this coordinator does not know", 1, 1,
      CTL_ASKS "yes ", CTL_ASK(cluster_forget_question) },
    { "shard", "forget", "NAME",
      "forget a shard that is gone for good, and on which no job has a part", 1, 1,
      CTL_ASKS "quiet ", CTL_ASK(shard_forget_question) },
    { "job", "check", "JOB [--snapshot-age TIME]",
      "what is wrong with a job, a line each; the exit status says which kind is the worst", 1, 1,
      CTL_ASKS "quiet snapshot-age ", CTL_RUN(run_job_check) },
    { .noun = NULL },
};

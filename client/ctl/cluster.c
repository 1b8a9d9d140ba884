/* cairn cluster status | adopt | backup | forget */
#include <inttypes.h>
#include <ctype.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "proto/spec/spec.h"

/* The coordinator gives up sooner where nobody answers it, and says who. */
#define ADOPT_TIMEOUT_MS 600000

static int cluster_check(struct ctl *ctl, const Cairn__ClusterStatus *status);

static json_t *without_json(uint32_t without)
{
    json_t *names = json_array();
    for (uint32_t i = 0; i < CAIRN_WITHOUT_COUNT; i++)
        if ((without & 1u << i) != 0) json_array_append_new(names, json_string(without_name(i)));
    return names;
}

/* Prints which shards' builds or hosts lack what, in one line for all that lack the same: shards on
 * one kind of machine do. */
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

static json_t *home_json(const Cairn__MemberStatus *m)
{
    const Cairn__Home *home = m->home;
    const Cairn__ShardStats *stats = m->stats;
    if (home == NULL) return json_null();
    json_t *json = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:s}", "backend",
                             home->backend, "device", home->device, "driver", home->driver, "why",
                             home->why, "total_bytes", (json_int_t)home->total_bytes, "taken_bytes",
                             (json_int_t)home->taken_bytes, "warning", home->warning, "failed",
                             home->failed, "device_memory", home->device_memory,
                             "device_memory_why", home->device_memory_why);
    if (stats == NULL || !is_of_device(home)) return json;
    json_object_set_new(
        json, "use",
        json_pack("{s:I, s:I, s:I, s:I, s:I}", "launches", (json_int_t)stats->launches, "in_bytes",
                  (json_int_t)stats->in_bytes, "out_bytes", (json_int_t)stats->out_bytes,
                  "pinned_bytes", (json_int_t)stats->pinned_bytes, "unpinned_bytes",
                  (json_int_t)stats->unpinned_bytes));
    return json;
}

static void print_use(const Cairn__MemberStatus *m)
{
    const Cairn__ShardStats *stats = m->stats;
    if (stats == NULL) return;
    printf("%s: %" PRIu64 " launches, %s copied in, %s out; %s of host memory pinned\n", m->name,
           stats->launches, ctl_bytes(stats->in_bytes), ctl_bytes(stats->out_bytes),
           ctl_bytes(stats->pinned_bytes));
    if (stats->unpinned_bytes > 0)
        printf("%s: %s of host memory could not be pinned: copies of it are slower\n", m->name,
               ctl_bytes(stats->unpinned_bytes));
}

static void print_home(const Cairn__MemberStatus *m)
{
    if (!is_of_device(m->home)) {
        printf("%s: state lies in host memory (%s): %s\n", m->name, m->home->device, m->home->why);
        return;
    }
    printf("%s: state lies on %s (%s, %s), %s, of which its context and others took %s\n", m->name,
           m->home->device, m->home->backend, m->home->driver, ctl_bytes(m->home->total_bytes),
           ctl_bytes(m->home->taken_bytes));
    if (m->home->device_memory[0] != '\0')
        printf("%s: what lies there goes to other hosts %s: %s\n", m->name,
               strcmp(m->home->device_memory, "device") == 0 ? "from there" : "through host memory",
               m->home->device_memory_why);
    if (m->home->warning[0] != '\0') printf("%s: warning: %s\n", m->name, m->home->warning);
    if (m->home->failed[0] != '\0')
        printf("%s: unfit, so that nothing more comes to that device: %s; %s\n", m->name,
               m->home->failed, m->unfit);
    print_use(m);
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

static void print_storage(const Cairn__ClusterStatus *status)
{
    if (status->storage[0] != '\0') printf("\nno snapshot can be saved: %s\n", status->storage);
    for (size_t i = 0; i < status->n_members; i++) {
        const Cairn__MemberStatus *m = status->members[i];
        if (m->storage[0] != '\0')
            printf("\nno snapshot can be saved: shard %s: %s\n", m->name, m->storage);
    }
}

static void print_unheard(const Cairn__ClusterStatus *status)
{
    for (size_t i = 0; i < status->n_members; i++) {
        const Cairn__MemberStatus *m = status->members[i];
        if (m->unheard[0] != '\0')
            printf("\n%s hears nothing from %s over the data path: look for a firewall or a cut "
                   "between them, in both directions\n",
                   m->name, m->unheard);
    }
}

static void print_apart(const Cairn__ClusterStatus *status)
{
    for (size_t i = 0; i < status->n_members; i++)
        if (status->members[i]->apart[0] != '\0')
            printf("\n%s %s\n", status->members[i]->name, status->members[i]->apart);
}

static json_t *strange_json(const Cairn__StrangePart *s)
{
    char number[20];
    snprintf(number, sizeof number, "%016" PRIx64, s->part->job);
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:I, s:s}", "shard", s->shard, "job",
                     s->part->name, "number", number, "generation", (json_int_t)s->part->generation,
                     "version_generation", (json_int_t)s->part->version_generation, "step",
                     (json_int_t)s->part->version_step, "part", (int)s->part->shard_index + 1,
                     "parts", (int)s->part->shard_count, "bytes", (json_int_t)s->part->bytes, "why",
                     s->why);
}

static json_t *strangers_json(Cairn__StrangePart *const *parts, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(list, strange_json(parts[i]));
    return list;
}

static void print_strangers(const struct ctl *ctl, Cairn__StrangePart *const *parts, size_t count)
{
    static const char *const headers[] = { "JOB",  "NUMBER", "GENERATION", "STEP",
                                           "PART", "SHARD",  "MEMORY",     "WHY" };
    struct ctl_table *table = ctl_table_open(headers, 8);
    for (size_t i = 0; i < count; i++) {
        const Cairn__HeldJob *part = parts[i]->part;
        ctl_table_cell(table, "%s", part->name);
        ctl_table_cell(table, "%016" PRIx64, part->job);
        ctl_table_cell(table, "%" PRIu64, part->generation);
        ctl_table_cell(table, "%" PRIu64, part->version_step);
        ctl_table_cell(table, "%u of %u", part->shard_index + 1, part->shard_count);
        ctl_table_cell(table, "%s", parts[i]->shard);
        ctl_table_cell(table, "%s", ctl_bytes(part->bytes));
        ctl_table_cell(table, "%s", parts[i]->why);
    }
    ctl_table_close(table, ctl);
}

static int print_json(const Cairn__ClusterStatus *status)
{
    char store[20];
    snprintf(store, sizeof store, "%016" PRIx64, status->store);
    json_t *members = json_array();
    for (size_t i = 0; i < status->n_members; i++) {
        const Cairn__MemberStatus *m = status->members[i];
        json_array_append_new(
            members,
            json_pack(
                "{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:o, s:o}",
                "name", m->name, "role", role_name(m->role), "state", m->state, "address",
                m->address, "path", m->path, "place", m->place, "storage", m->storage, "unheard",
                m->unheard, "unfit", m->unfit, "apart", m->apart, "since_ms",
                (json_int_t)m->since_ms, "state_bytes", (json_int_t)m->state_bytes, "memory_bytes",
                (json_int_t)m->memory_bytes, "version", m->version, "without",
                without_json(m->without), "home", home_json(m)));
    }
    return ctl_print_json(
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:s, s:o, s:o}", "cluster", status->cluster,
                  "store", store, "version", status->version, "coordinator_incarnation",
                  (json_int_t)status->coordinator_incarnation, "uptime_ms",
                  (json_int_t)status->uptime_ms, "shards_expected", (int)status->shards_expected,
                  "jobs", (int)status->job_count, "storage", status->storage, "members", members,
                  "strangers", strangers_json(status->strangers, status->n_strangers)));
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

int ctl_cluster_status(struct ctl *ctl)
{
    static const char *const headers[] = { "NAME",  "ROLE",   "STATE",   "FOR",    "PATH",
                                           "PLACE", "MEMORY", "ADDRESS", "VERSION" };
    ProtobufCMessage *reply;
    const cairn_status called = ask_status(ctl, &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    const Cairn__ClusterStatus *status = (const Cairn__ClusterStatus *)reply;
    if (ctl->check) {
        const int found = cluster_check(ctl, status);
        message_free(reply);
        return found;
    }
    if (ctl->json) {
        print_json(status);
    } else {
        if (!ctl->quiet)
            printf("cluster %s: coordinator %s, store %016" PRIx64 ", start %" PRIu64
                   ", up %" PRIu64 " s; %u shard%s "
                   "expected, %u job%s\n\n",
                   status->cluster, status->version, status->store, status->coordinator_incarnation,
                   status->uptime_ms / 1000, status->shards_expected,
                   status->shards_expected == 1 ? "" : "s", status->job_count,
                   status->job_count == 1 ? "" : "s");
        struct ctl_table *table = ctl_table_open(headers, 9);
        for (size_t i = 0; i < status->n_members; i++) {
            const Cairn__MemberStatus *m = status->members[i];
            ctl_table_cell(table, "%s", m->name);
            ctl_table_cell(table, "%s", role_name(m->role));
            ctl_table_cell(table, "%s", m->state);
            ctl_table_cell(table, "%" PRIu64 " s", m->since_ms / 1000);
            ctl_table_cell(table, "%s", m->path);
            ctl_table_cell(table, "%s", m->place);
            if (m->memory_bytes > 0)
                ctl_table_cell(table, "%s of %s", ctl_bytes(m->state_bytes),
                               ctl_bytes(m->memory_bytes));
            else
                ctl_table_cell(table, "%s", ctl_bytes(m->state_bytes));
            ctl_table_cell(table, "%s", m->address);
            ctl_table_cell(table, "%s", m->version);
        }
        ctl_table_close(table, ctl);
        if (!ctl->quiet) print_homes(status);
        if (!ctl->quiet) print_without(status);
        if (!ctl->quiet) print_storage(status);
        if (!ctl->quiet) print_unheard(status);
        if (!ctl->quiet) print_apart(status);
        if (status->n_strangers > 0) {
            if (!ctl->quiet)
                printf("\nheld by shards, but not acted on (`cairn cluster adopt` takes it, `cairn "
                       "cluster forget JOB` drops it):\n\n");
            print_strangers(ctl, status->strangers, status->n_strangers);
        }
    }
    message_free(reply);
    return 0;
}

int ctl_cluster_forget(struct ctl *ctl)
{
    Cairn__ClusterForget forget = CAIRN__CLUSTER_FORGET__INIT;
    ProtobufCMessage *reply;
    forget.job = ctl->argv[0];
    forget.plan = !ctl->yes;
    const cairn_status called = ctl_call(ctl, CAIRN_MSG_CLUSTER_FORGET, &forget.base,
                                         CAIRN_MSG_CLUSTER_FORGOTTEN, &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    const Cairn__ClusterForgotten *forgotten = (const Cairn__ClusterForgotten *)reply;
    if (ctl->json) {
        ctl_print_json(json_pack("{s:b, s:o}", "done", (int)ctl->yes, "parts",
                                 strangers_json(forgotten->parts, forgotten->n_parts)));
    } else {
        print_strangers(ctl, forgotten->parts, forgotten->n_parts);
        if (!ctl->yes)
            printf("\nnothing was dropped: with --yes these parts are, and nothing brings them "
                   "back\n");
    }
    message_free(reply);
    return 0;
}

int ctl_cluster_backup(struct ctl *ctl)
{
    Cairn__ClusterBackup backup = CAIRN__CLUSTER_BACKUP__INIT;
    ProtobufCMessage *reply;
    char path[PATH_MAX];
    const int refused = ctl_absolute("FILE", ctl->argv[0], path);
    if (refused >= 0) return refused;
    backup.path = path;
    const cairn_status called = ctl_call(ctl, CAIRN_MSG_CLUSTER_BACKUP, &backup.base,
                                         CAIRN_MSG_CLUSTER_BACKED_UP, &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    const Cairn__ClusterBackedUp *made = (const Cairn__ClusterBackedUp *)reply;
    if (ctl->json)
        ctl_print_json(
            json_pack("{s:s, s:I}", "path", made->path, "bytes", (json_int_t)made->bytes));
    else if (ctl->quiet)
        printf("%s\n", made->path);
    else
        ctl_line("copied to", "%s, %s, on the coordinator's host", made->path,
                 ctl_bytes(made->bytes));
    message_free(reply);
    return 0;
}

static json_t *adopted_json(const Cairn__ClusterAdopted *adopted)
{
    json_t *jobs = json_array();
    for (size_t i = 0; i < adopted->n_jobs; i++) {
        const Cairn__AdoptedJob *j = adopted->jobs[i];
        json_array_append_new(jobs,
                              json_pack("{s:s, s:I, s:I, s:i, s:s}", "job", j->name, "generation",
                                        (json_int_t)j->generation, "step", (json_int_t)j->step,
                                        "shards", (int)j->shards, "refused", j->refused));
    }
    return jobs;
}

static json_t *silent_json(const Cairn__ClusterAdopted *adopted)
{
    json_t *names = json_array();
    for (size_t i = 0; i < adopted->n_silent; i++)
        json_array_append_new(names, json_string(adopted->silent[i]));
    return names;
}

/* They are no reason to wait for, and may be one for what is refused. */
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

/* Without a new store's word for them no snapshot that they signed would be restored. */
static void say_keys(const Cairn__Keys *keys, bool done)
{
    for (size_t i = 0; keys != NULL && i < keys->n_keys; i++)
        printf("%skey %s, which the lost store trusted, %s trusted here\n", i == 0 ? "\n" : "",
               keys->keys[i]->id, done ? "is" : "would be");
}

int ctl_cluster_adopt(struct ctl *ctl)
{
    static const char *const headers[] = { "JOB", "GENERATION", "STEP", "SHARDS", "REFUSED" };
    Cairn__ClusterAdopt adopt = CAIRN__CLUSTER_ADOPT__INIT;
    ProtobufCMessage *reply;
    size_t whole = 0;
    adopt.plan = !ctl->yes;
    if (ctl->timeout_ms == 0) ctl->timeout_ms = ADOPT_TIMEOUT_MS;
    const cairn_status called = ctl_call(ctl, CAIRN_MSG_CLUSTER_ADOPT, &adopt.base,
                                         CAIRN_MSG_CLUSTER_ADOPTED, &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    const Cairn__ClusterAdopted *adopted = (const Cairn__ClusterAdopted *)reply;
    for (size_t i = 0; i < adopted->n_jobs; i++) whole += adopted->jobs[i]->refused[0] == '\0';
    if (ctl->json) {
        ctl_print_json(json_pack("{s:b, s:o, s:o, s:o}", "done", (int)(ctl->yes && whole > 0),
                                 "jobs", adopted_json(adopted), "keys", keys_json(adopted->keys),
                                 "silent", silent_json(adopted)));
    } else {
        struct ctl_table *table = ctl_table_open(headers, 5);
        for (size_t i = 0; i < adopted->n_jobs; i++) {
            const Cairn__AdoptedJob *j = adopted->jobs[i];
            ctl_table_cell(table, "%s", j->name);
            ctl_table_cell(table, "%" PRIu64, j->generation);
            ctl_table_cell(table, "%" PRIu64, j->step);
            ctl_table_cell(table, "%u", j->shards);
            ctl_table_cell(table, "%s", j->refused);
        }
        ctl_table_close(table, ctl);
        say_keys(adopted->keys, ctl->yes);
        say_silent(adopted);
        if (adopted->n_jobs == 0)
            printf("\nnothing to adopt: the shards that are here%s hold no job but those of this "
                   "coordinator\n",
                   adopted->n_silent > 0 ? " and answer" : "");
        else if (!ctl->yes && whole > 0)
            printf(
                "\nnothing was adopted: --yes takes the jobs that are not refused, and from then "
                "on the shards obey the store that these are of no more\n");
    }
    const bool none = whole == 0 && (adopted->n_jobs > 0 || adopted->n_silent > 0);
    message_free(reply);
    return none ? 1 : 0;
}

/* ==== check ==== */

/* cairn cluster status --check, cairn job check: what is not well, for a supervisor that goes by the exit
 * status. */

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
        add(check, TROUBLE_SHARD, m->name, "%s for %" PRIu64 " s", m->state, m->since_ms / 1000);
    if (m->apart[0] != '\0') add(check, TROUBLE_SHARD, m->name, "%s", m->apart);
    if (m->storage[0] != '\0') add(check, TROUBLE_SNAPSHOT, m->name, "cannot save: %s", m->storage);
    if (m->home != NULL && m->home->failed[0] != '\0')
        add(check, TROUBLE_SHARD, m->name, "is unfit: %s; %s", m->home->failed, m->unfit);
    if (m->home != NULL && m->home->warning[0] != '\0')
        add(check, TROUBLE_DEGRADED, m->name, "%s", m->home->warning);
    if (m->stats != NULL && m->stats->unpinned_bytes > 0)
        add(check, TROUBLE_DEGRADED, m->name, "%s of host memory could not be pinned",
            ctl_bytes(m->stats->unpinned_bytes));
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
        add(check, TROUBLE_WAITS, j->name,
            "has applied no step for %" PRIu64 " s, and waits for %s", j->still_ms / 1000,
            j->awaited[0] != '\0' ? j->awaited : "what nobody knows");
    if (j->nonfinite > 0)
        add(check, TROUBLE_WAITS, j->name, "%" PRIu64 " elements are not finite (%s)", j->nonfinite,
            j->nonfinite_tensors);
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
        add(check, TROUBLE_SNAPSHOT, j->name, "the newest snapshot, %s, is %" PRIu64 " s old",
            newest->id, age_s(newest->created_unix_ms));
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
        add(check, TROUBLE_SNAPSHOT, j->name, "its snapshots cannot be listed: %s", why.text);
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
        ctl_print_json(json_pack("{s:b, s:o}", "well", found == 0, "found", check->found));
    else if (found == 0 && !check->ctl->quiet)
        printf("all is well\n");
    return status == CAIRN_OK ? found : status_exit((int)status);
}

/* Prints what is wrong with the cluster and all its jobs, a line each. The exit status says which
 * kind is the worst. */
static int cluster_check(struct ctl *ctl, const Cairn__ClusterStatus *status)
{
    const Cairn__JobListGet get = CAIRN__JOB_LIST_GET__INIT;
    struct check check = begin(ctl);
    ProtobufCMessage *reply;
    check_cluster(&check, status);
    cairn_status called = ctl_call(ctl, CAIRN_MSG_JOB_LIST_GET, &get.base, CAIRN_MSG_JOB_LIST,
                                   &reply);
    if (called != CAIRN_OK) return end(&check, called);
    const Cairn__JobList *list = (const Cairn__JobList *)reply;
    for (size_t i = 0; i < list->n_jobs && called == CAIRN_OK; i++)
        called = check_job(&check, ctl, list->jobs[i]);
    message_free(reply);
    return end(&check, called);
}

int ctl_job_check(struct ctl *ctl)
{
    Cairn__JobShow show = CAIRN__JOB_SHOW__INIT;
    struct check check = begin(ctl);
    ProtobufCMessage *reply;
    show.name = ctl->argv[0];
    cairn_status called = ctl_call(ctl, CAIRN_MSG_JOB_SHOW, &show.base, CAIRN_MSG_JOB_STATUS,
                                   &reply);
    if (called != CAIRN_OK) return end(&check, called);
    called = check_job(&check, ctl, (const Cairn__JobStatus *)reply);
    message_free(reply);
    return end(&check, called);
}

/* ==== events ==== */

/* cairn cluster events */

static const char *time_text(uint64_t unix_ms)
{
    static char text[40];
    char seconds[24];
    struct tm utc;
    const time_t whole = (time_t)(unix_ms / 1000);
    if (gmtime_r(&whole, &utc) == NULL) return "-";
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text, sizeof text, "%s.%03uZ", seconds, (unsigned)(unix_ms % 1000));
    return text;
}

static json_t *event_json(const Cairn__Event *e)
{
    return json_pack("{s:I, s:s, s:s, s:s, s:s, s:s}", "number", (json_int_t)e->number, "time",
                     time_text(e->unix_ms), "event", e->kind, "job", e->job, "who", e->who, "text",
                     e->text);
}

static void add_row(struct ctl_table *table, const Cairn__Event *e)
{
    ctl_table_cell(table, "%s", time_text(e->unix_ms));
    ctl_table_cell(table, "%s", e->kind);
    ctl_table_cell(table, "%s", e->job[0] != '\0' ? e->job : "-");
    ctl_table_cell(table, "%s", e->who[0] != '\0' ? e->who : "-");
    ctl_table_cell(table, "%s", e->text);
}

struct seen {
    uint64_t after;   /* the number of the last event */
    uint64_t process; /* the coordinator that gave it; 0: none yet */
};

/* Another coordinator than before has numbered other events with what was seen already: those that the former
 * one had not stored when it was killed, or all, if its store was lost. True: to be asked anew. */
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
            add_row(table, page->events[i]);
        else
            json_array_append_new(list, event_json(page->events[i]));
    }
}

/* All pages behind what was seen, into one of both. */
static cairn_status ask(struct ctl *ctl, struct ctl_table *table, json_t *list, struct seen *seen)
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

/* Lines of what has happened behind what was seen: a row, or an object, each. */
static cairn_status print_new(struct ctl *ctl, struct seen *seen)
{
    static const char *const headers[] = { "TIME", "EVENT", "JOB", "WHO", "WHAT" };
    json_t *list = ctl->json ? json_array() : NULL;
    struct ctl_table *table = ctl->json ? NULL : ctl_table_open(headers, 5);
    const cairn_status status = ask(ctl, table, list, seen);
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
    ctl_on_interrupt("%s", ""); // ends without a word
    for (;;) {
        if (fflush(stdout) != 0) return 1; // nobody reads it
        poll(NULL, 0, (int)(ctl->every_s * 1000));
        const cairn_status status = print_new(ctl, seen);
        if (status != CAIRN_OK && status != CAIRN_ERR_UNREACHABLE && status != CAIRN_ERR_TIMEOUT)
            return status_exit((int)status);
    }
}

int ctl_cluster_events(struct ctl *ctl)
{
    struct seen seen = { 0 };
    const cairn_status status = print_new(ctl, &seen);
    if (status != CAIRN_OK) return status_exit((int)status);
    return ctl->watch ? follow(ctl, &seen) : 0;
}

/* ==== shard ==== */

/* cairn shard forget */

int ctl_shard_forget(struct ctl *ctl)
{
    Cairn__ShardForget forget = CAIRN__SHARD_FORGET__INIT;
    ProtobufCMessage *reply;
    forget.name = ctl->argv[0];
    const cairn_status called = ctl_call(ctl, CAIRN_MSG_SHARD_FORGET, &forget.base, CAIRN_MSG_DONE,
                                         &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    if (ctl->json)
        ctl_print_json(json_pack("{s:s}", "forgotten", forget.name));
    else if (!ctl->quiet)
        ctl_line("forgotten", "%s", forget.name);
    message_free(reply);
    return 0;
}

/* ==== since ==== */

/* A time of the past, as people write it: --since. */

/* "2h", "1.5d", "90s" before now. */
static bool parse_ago(const char *text, uint64_t now_ms, uint64_t *unix_ms_out)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = { { "ms", 1 }, { "s", 1e3 }, { "m", 60e3 }, { "h", 3600e3 }, { "d", 86400e3 } };
    char *end;
    if (!isdigit((unsigned char)*text)) return false;
    const double number = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit) != 0) continue;
        const double ago_ms = number * units[i].ms;
        *unix_ms_out = ago_ms < (double)now_ms ? now_ms - (uint64_t)ago_ms : 0;
        return true;
    }
    return false;
}

/* Behind the seconds: ".250", then "Z" or "+02:00". */
static bool parse_rest(const char *text, int64_t *ms_out, int64_t *offset_s_out)
{
    int hours, minutes, read = 0;
    char sign;
    double fraction = 0;
    if (*text == '.') {
        char *end;
        fraction = strtod(text, &end);
        text = end;
    }
    *ms_out = (int64_t)(fraction * 1000);
    *offset_s_out = 0;
    if ((*text == 'Z' || *text == 'z') && text[1] == '\0') return true;
    if (sscanf(text, "%c%2d:%2d%n", &sign, &hours, &minutes, &read) != 3 || text[read] != '\0')
        return false;
    if ((sign != '+' && sign != '-') || hours < 0 || hours > 23 || minutes < 0 || minutes > 59)
        return false;
    *offset_s_out = (sign == '+' ? 1 : -1) * (hours * 3600 + minutes * 60);
    return true;
}

/* RFC 3339. */
static bool parse_time(const char *text, uint64_t *unix_ms_out)
{
    struct tm utc = { .tm_sec = 0 };
    int64_t ms, offset_s;
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &utc);
    if (rest == NULL || !parse_rest(rest, &ms, &offset_s)) return false;
    const int64_t seconds = (int64_t)timegm(&utc) - offset_s;
    if (seconds < 0) return false;
    *unix_ms_out = (uint64_t)(seconds * 1000 + ms);
    return true;
}

bool ctl_since(const char *text, uint64_t now_ms, uint64_t *unix_ms_out)
{
    return parse_ago(text, now_ms, unix_ms_out) || parse_time(text, unix_ms_out);
}

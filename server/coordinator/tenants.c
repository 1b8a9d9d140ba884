#include "server/coordinator/tenants.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"

/* ==== tenant ==== */

const struct identity *coord_who(const struct coord_session *session)
{
    return peer_identity(session->peer);
}

void coord_tenant_make(struct coord_tenant *tenant, const struct coord_session *maker)
{
    *tenant = (struct coord_tenant) { .owner = "" };
    const struct identity *who = coord_who(maker);
    snprintf(tenant->owner, sizeof tenant->owner, "%s", who->owner);
    snprintf(tenant->made_by, sizeof tenant->made_by, "%s %s", role_name(maker->role), maker->name);
    if (!who->is_local) // its name is what it says, and this is what it has shown
        snprintf(tenant->made_by, sizeof tenant->made_by, "%s %s (token %s)",
                 role_name(maker->role), maker->name, who->name);
    snprintf(tenant->made_from, sizeof tenant->made_from, "%s", peer_name(maker->peer));
    tenant->made_unix_s = wall_unix_s();
}

void coord_tenant_load(struct coord_tenant *tenant, const struct stored_tenant *row)
{
    *tenant = (struct coord_tenant) { .owner = "" };
    if (row == NULL) return;
    snprintf(tenant->owner, sizeof tenant->owner, "%s", row->owner);
    snprintf(tenant->shared, sizeof tenant->shared, "%s", row->shared);
    snprintf(tenant->shared_read, sizeof tenant->shared_read, "%s", row->shared_read);
    snprintf(tenant->made_by, sizeof tenant->made_by, "%s", row->made_by);
    snprintf(tenant->made_from, sizeof tenant->made_from, "%s", row->made_from);
    tenant->made_unix_s = row->made_unix_s;
}

struct stored_tenant coord_tenant_row(const struct coord_job *job)
{
    const struct coord_tenant *tenant = &job->tenant;
    return (struct stored_tenant) {
        job->id,         tenant->owner,     tenant->shared,     tenant->shared_read,
        tenant->made_by, tenant->made_from, tenant->made_unix_s
    };
}

void coord_tenant_show(const struct coord_job *job, Cairn__JobStatus *status)
{
    const struct coord_tenant *tenant = &job->tenant;
    status->owner = wire_text(tenant->owner);
    status->shared = wire_text(tenant->shared);
    status->shared_read = wire_text(tenant->shared_read);
    status->made_by = wire_text(tenant->made_by);
    status->made_from = wire_text(tenant->made_from);
    status->made_unix_ms = 1000 * tenant->made_unix_s;
}

/* ==== access ==== */

/* The requests that are about a job, the field that names it, and what they want of it. All others of the
 * command line are judged by their row alone (messages.c), so what is forgotten here is an admin's. */
static const struct touch {
    uint16_t type;
    const char *field;
    enum access_kind kind;
} touches[] = {
    { CAIRN_MSG_JOB_SHOW, "name", CAIRN_ACCESS_LOOK },
    { CAIRN_MSG_WHO_IS_AWAITED, "name", CAIRN_ACCESS_LOOK },
    { CAIRN_MSG_SNAPSHOT_ADVISE, "job", CAIRN_ACCESS_LOOK },
    { CAIRN_MSG_JOB_SPEC_GET, "name", CAIRN_ACCESS_READ },
    { CAIRN_MSG_JOB_DIGEST_GET, "name", CAIRN_ACCESS_READ },
    { CAIRN_MSG_SNAPSHOT_LIST_GET, "job", CAIRN_ACCESS_READ },
    { CAIRN_MSG_SNAPSHOT_SHOW, "job", CAIRN_ACCESS_READ },
    { CAIRN_MSG_SNAPSHOT_CREATE, "job", CAIRN_ACCESS_WRITE },
    { CAIRN_MSG_SNAPSHOT_CANCEL, "job", CAIRN_ACCESS_WRITE },
    { CAIRN_MSG_SNAPSHOT_TAG, "job", CAIRN_ACCESS_WRITE },
    { CAIRN_MSG_JOB_REMOVE, "name", CAIRN_ACCESS_OWN },
    { CAIRN_MSG_JOB_AMEND, "name", CAIRN_ACCESS_OWN },
    { CAIRN_MSG_JOB_PARK, "name", CAIRN_ACCESS_OWN },
    { CAIRN_MSG_JOB_SHARE, "name", CAIRN_ACCESS_OWN },
    { CAIRN_MSG_SNAPSHOT_REMOVE, "job", CAIRN_ACCESS_OWN },
    { CAIRN_MSG_SNAPSHOT_PRUNE, "job", CAIRN_ACCESS_OWN },
    { CAIRN_MSG_SNAPSHOT_RESTORE, "job", CAIRN_ACCESS_OWN },
};

static const struct touch *find_touch(uint16_t type)
{
    for (size_t i = 0; i < sizeof touches / sizeof *touches; i++)
        if (touches[i].type == type) return &touches[i];
    return NULL;
}

/* Returns the text of that field, which the message must have. */
static const char *field_text(const ProtobufCMessage *message, const char *name)
{
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
        message->descriptor, name);
    assert(field != NULL && field->type == PROTOBUF_C_TYPE_STRING);
    return *(const char *const *)(const void *)((const char *)message + field->offset);
}

/* Judges what of two lists of owners counts for this kind of access. */
static cairn_status judge_tenant(const struct identity *who, const char *job,
                                 const struct coord_tenant *tenant, enum access_kind kind,
                                 struct sentence *why)
{
    char allowed[2 * CAIRN_SHARED_BYTES];
    const bool reads = kind <= CAIRN_ACCESS_READ;
    snprintf(allowed, sizeof allowed, "%s,%s", tenant->shared, reads ? tenant->shared_read : "");
    return access_job(who, job, tenant->owner, allowed, kind, why);
}

/* To whom may not even look, the job is not there. */
static cairn_status judge_or_hide(const struct identity *who, const char *job,
                                  const struct coord_tenant *tenant, enum access_kind kind,
                                  struct sentence *why)
{
    const cairn_status status = judge_tenant(who, job, tenant, kind, why);
    struct sentence ignored;
    if (status == CAIRN_OK ||
        judge_tenant(who, job, tenant, CAIRN_ACCESS_LOOK, &ignored) == CAIRN_OK)
        return status;
    return fail_with(
        why, CAIRN_ERR_NOT_FOUND,
        "there is no job \"%.128s\" that %s (owner %s) may use; `cairn job list` shows "
        "those there are, and the owner of one or an admin can share it (`cairn job "
        "share`)",
        job, who->name, who->owner[0] != '\0' ? who->owner : "none");
}

cairn_status coord_job_judge_access(const struct identity *who, const struct coord_job *job,
                                    enum access_kind kind, struct sentence *why)
{
    return judge_or_hide(who, job->spec.name, &job->tenant, kind, why);
}

bool coord_job_is_seen(const struct coord_session *session, const struct coord_job *job)
{
    struct sentence ignored;
    return judge_tenant(coord_who(session), job->spec.name, &job->tenant, CAIRN_ACCESS_LOOK,
                        &ignored) == CAIRN_OK;
}

/* Members of a job send some of these requests about their own job, by its number. */
bool coord_names_job(const struct coord_session *session, uint16_t type)
{
    if (session->role != CAIRN_ROLE_WIRE_ADMIN) return type == CAIRN_MSG_SNAPSHOT_CREATE;
    return find_touch(type) != NULL;
}

cairn_status coord_judge_access(const struct coord_session *session, uint16_t type,
                                const ProtobufCMessage *message, struct sentence *why)
{
    const struct touch *touch = find_touch(type);
    const struct identity *who = coord_who(session);
    const char *name = field_text(message, touch->field);
    const struct coord_job *job = coord_job_find(session->cluster, name);
    if (job != NULL) return coord_job_judge_access(who, job, touch->kind, why);
    // A list of everything has what the asker may look at.
    return access_by_role(who, name, name[0] == '\0' ? CAIRN_ACCESS_LOOK : touch->kind, why);
}

cairn_status coord_judge_opener(const struct coord_session *session, const struct coord_job *job,
                                bool is_worker, struct sentence *why)
{
    const struct identity *who = coord_who(session);
    const cairn_status status = coord_job_judge_access(
        who, job, is_worker ? CAIRN_ACCESS_WRITE : CAIRN_ACCESS_READ, why);
    if (status != CAIRN_ERR_NOT_FOUND || !is_worker) return status;
    return fail_with(why, CAIRN_ERR_REFUSED,
                     "another owner has a job of the name %s: %s (owner %s) gives its own another "
                     "name, or that one's owner or an admin shares it (`cairn job share`)",
                     job->spec.name, who->name, who->owner);
}

bool coord_job_lacks_owner(const struct coord_member *member, const struct coord_job *job)
{
    return member->opening.attached_id == job->id && job->tenant.owner[0] == '\0';
}

cairn_status coord_owner_judge_access(const struct identity *who, const char *job,
                                      const char *owner, enum access_kind kind,
                                      struct sentence *why)
{
    struct coord_tenant tenant = { .owner = "" };
    snprintf(tenant.owner, sizeof tenant.owner, "%s", owner);
    return judge_or_hide(who, job, &tenant, kind, why);
}

bool coord_owner_is_jobs(const char *owner, const char *of_job)
{
    return owner[0] == '\0' || strcmp(owner, of_job) == 0;
}

cairn_status coord_snapshot_judge_access(struct coord *cluster, const struct identity *who,
                                         const char *job, const char *owner, enum access_kind kind,
                                         struct sentence *why)
{
    const struct coord_job *live = coord_job_find(cluster, job);
    return live != NULL && coord_owner_is_jobs(owner, live->tenant.owner)
               ? coord_job_judge_access(who, live, kind, why)
               : coord_owner_judge_access(who, job, owner, kind, why);
}

/* ==== shares ==== */

/* An owner with connections. */
struct coord_owner {
    LIST_ENTRY(coord_owner) link; /* in the cluster's list */
    char name[CAIRN_OWNER_BYTES];
    size_t sessions;
    uint64_t number;
    struct stream_share share;
};

/* NULL: the owner has no connection. */
static struct coord_owner *find_owner(const struct coord *cluster, const char *name)
{
    struct coord_owner *owner;
    LIST_FOREACH (owner, &cluster->tenants.owners, link)
        if (strcmp(owner->name, name) == 0) break;
    return owner;
}

/* An owner that is alone has all the time. */
static void bound_shares(struct coord_owners *owners)
{
    struct coord_owner *first = LIST_FIRST(owners), *owner;
    const bool are_several = first != NULL && LIST_NEXT(first, link) != NULL;
    LIST_FOREACH (owner, owners, link) owner->share.is_bounded = are_several;
}

void coord_owner_join(struct coord_session *session)
{
    struct coord_owners *owners = &session->cluster->tenants.owners;
    const char *name = coord_who(session)->owner;
    if (session->role == CAIRN_ROLE_WIRE_SHARD) return;
    struct coord_owner *owner = find_owner(session->cluster, name);
    if (owner == NULL) {
        owner = calloc(1, sizeof *owner);
        if (owner == NULL) return; // the session's own turn bounds it
        snprintf(owner->name, sizeof owner->name, "%s", name);
        owner->number = ++session->cluster->tenants.owners_seen;
        LIST_INSERT_HEAD(owners, owner, link);
        bound_shares(owners);
    }
    owner->sessions++;
    session->owner = owner;
    session->owner_number = owner->number;
    peer_set_share(session->peer, &owner->share);
}

void coord_owner_leave(struct coord_session *session)
{
    struct coord_owner *owner = session->owner;
    session->owner = NULL;
    if (owner == NULL || --owner->sessions > 0) return;
    LIST_REMOVE(owner, link);
    bound_shares(&session->cluster->tenants.owners);
    free(owner);
}

/* ==== share ==== */

/* Gives a job to another owner, or shares it with others. */

static cairn_status judge_owners(const Cairn__JobShare *share, struct sentence *why)
{
    const char *at = share->owners;
    if (share->owner && (!access_owner_ok(at, strlen(at), false)))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "\"%.100s\" is no owner: `cairn job show` and `cairn key list` show those "
                         "there are, such as team-a or uid:1000",
                         at);
    if (strlen(at) >= CAIRN_SHARED_BYTES)
        return fail_with(why, CAIRN_ERR_INVALID, "a list of owners has at most %d characters",
                         CAIRN_SHARED_BYTES - 1);
    while (*at != '\0' && !share->owner) {
        const size_t length = strcspn(at, ",");
        if (!access_owner_ok(at, length, true))
            return fail_with(why, CAIRN_ERR_INVALID,
                             "\"%.100s\" is no list of owners: give names separated by ',', with * "
                             "for any text, or \"\" for nobody",
                             share->owners);
        at += length;
        at += *at == ',';
    }
    return CAIRN_OK;
}

/* Puts out the members that may not use the job any more. Some that may not may have left before. */
static void put_out_strangers(struct coord_job *job)
{
    struct coord_member *m = job->members.list;
    while (m != NULL) {
        struct sentence why;
        if (coord_judge_opener(m->session, job, m->role == CAIRN_ROLE_WIRE_WORKER, &why) ==
            CAIRN_OK) {
            m = m->next_of_job;
            continue;
        }
        coord_member_put_out(m, CAIRN_ERR_REFUSED, why.text);
        m = job->members.list; // others may have gone with it
    }
    coord_members_withdraw(job);
}

/* The change of a job's tenant is not stored: takes it back. */
static void refuse_shared(struct coord_job *job, cairn_status status, const char *why)
{
    job->is_sharing = false;
    job->tenant = job->former_tenant;
    log_error("whose job %s is was not written, and stays as it was: %s", job->spec.name, why);
    coord_waiters_fail(&job->sharers, status, why);
    put_out_strangers(job);
}

static void on_share_saved(const struct coord_saved *saved)
{
    struct coord_job *job = coord_job_by_id(saved->cluster, saved->number);
    if (job == NULL) return;      // whoever freed it has answered
    if (!job->is_sharing) return; // a restore has made the job anew, with the tenant that it had
    job->is_sharing = false;
    if (saved->status != CAIRN_OK) {
        refuse_shared(job, saved->status, saved->why);
        return;
    }
    Cairn__JobShared message = CAIRN__JOB_SHARED__INIT;
    message.name = job->spec.name;
    message.owner = job->tenant.owner;
    message.shared = job->tenant.shared;
    message.shared_read = job->tenant.shared_read;
    coord_waiters_answer(&job->sharers, CAIRN_MSG_JOB_SHARED, &message.base);
}

static cairn_status on_job_share(struct coord_session *session, uint32_t request, const void *any,
                                 struct sentence *why)
{
    const Cairn__JobShare *share = any;
    struct coord_job *job = coord_job_named(session->cluster, share->name, why);
    if (job == NULL) return CAIRN_ERR_NOT_FOUND;
    struct coord_tenant *tenant = &job->tenant;
    if (share->owner && !access_role(coord_who(session), CAIRN_MAY_ADMIN))
        return fail_with(
            why, CAIRN_ERR_REFUSED,
            "only an admin gives a job to another owner; `cairn job share` lets others "
            "use it");
    CAIRN_TRY(judge_owners(share, why));
    if (!job->stored || job->making != NULL || job->is_sharing)
        return fail_with(why, CAIRN_ERR_NOT_READY,
                         "job %s is being made, dropped or shared: ask again", job->spec.name);
    CAIRN_TRY(coord_waiters_add(&job->sharers, session, request, why));
    job->former_tenant = *tenant;
    job->is_sharing = true;
    if (share->owner)
        snprintf(tenant->owner, sizeof tenant->owner, "%s", share->owners);
    else if (share->read)
        snprintf(tenant->shared_read, sizeof tenant->shared_read, "%s", share->owners);
    else
        snprintf(tenant->shared, sizeof tenant->shared, "%s", share->owners);
    const struct stored_tenant row = coord_tenant_row(job);
    const cairn_status status = coord_save(session->cluster, CAIRN_STORE_TENANT, &row, 1, job->id,
                                           on_share_saved, why);
    if (status != CAIRN_OK) {
        refuse_shared(job, status, why->text);
        return CAIRN_OK;
    }
    log_info("job %s belongs to %s now, and is shared with \"%s\", to be read by \"%s\"",
             job->spec.name, tenant->owner[0] != '\0' ? tenant->owner : "nobody", tenant->shared,
             tenant->shared_read);
    put_out_strangers(job);
    coord_openings_advance(session->cluster);
    return CAIRN_OK;
}

/* ==== quotas ==== */

static const struct quota_key {
    const char *name;
    size_t at; /* of the field in struct quota */
    enum option_type type;
    cairn_status status; /* of a request for too much: BUSY if what there is ends by itself */
    const char *advice;
} quota_keys[] = {
    { "jobs", offsetof(struct quota, jobs), CAIRN_OPTION_INT, .status = CAIRN_ERR_REFUSED,
      .advice = "drop a job (`cairn job drop`)" },
    { "sessions", offsetof(struct quota, sessions), CAIRN_OPTION_INT, .status = CAIRN_ERR_BUSY,
      .advice = "end a process, or wait until a dead one's lease ends" },
    { "bytes", offsetof(struct quota, bytes), CAIRN_OPTION_BYTES, .status = CAIRN_ERR_REFUSED,
      .advice = "drop a job (`cairn job drop`), or make this one smaller" },
    { "in_flight", offsetof(struct quota, in_flight), CAIRN_OPTION_BYTES, .status = CAIRN_ERR_BUSY,
      .advice = "give the job a smaller window, or fewer workers" },
};
#define QUOTA_KEYS (sizeof quota_keys / sizeof *quota_keys)

static uint64_t *quota_field(struct quota *quota, const struct quota_key *key)
{
    return (uint64_t *)(void *)((char *)quota + key->at);
}

/* Reads "jobs=4". Returns NULL on success, otherwise the error. */
static const char *read_limit(const char *word, struct quota *out)
{
    const char *equals = strchr(word, '=');
    for (size_t i = 0; equals != NULL && i < QUOTA_KEYS; i++) {
        const struct quota_key *key = &quota_keys[i];
        int64_t number;
        if (strncmp(key->name, word, (size_t)(equals - word)) != 0 ||
            strlen(key->name) != (size_t)(equals - word))
            continue;
        const char *wrong = config_read_number(equals + 1, key->type, &number);
        if (wrong != NULL) return wrong;
        if (number <= 0) return "a limit is above 0";
        *quota_field(out, key) = (uint64_t)number;
        return NULL;
    }
    return "there are jobs=, sessions=, bytes= and in_flight=";
}

/* Reads a line's limits, of which the words that strsep finds are left. */
static cairn_status read_limits(char *words, const char *what, struct quota *out,
                                struct sentence *why)
{
    for (char *word; (word = strsep(&words, " ")) != NULL;) {
        const char *wrong = *word != '\0' ? read_limit(word, out) : NULL;
        if (wrong != NULL)
            return fail_with(why, CAIRN_ERR_CONFIG, "%s in [quota]: \"%.100s\": %s", what, word,
                             wrong);
    }
    return CAIRN_OK;
}

static cairn_status read_owner(char *line, struct coord_quotas *quotas, struct sentence *why)
{
    line += strspn(line, " ");
    const char *owner = strsep(&line, " ");
    if (*owner == '\0') return CAIRN_OK;
    if (!access_owner_ok(owner, strlen(owner), false))
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "owner in [quota]: \"%.100s\" is no owner, with which a line begins: "
                         "team-a jobs=4",
                         owner);
    for (size_t i = 0; i < quotas->count; i++)
        if (strcmp(quotas->rows[i].owner, owner) == 0)
            return fail_with(why, CAIRN_ERR_CONFIG, "owner in [quota]: %s has two lines", owner);
    if (quotas->count == CAIRN_QUOTAS_MAX)
        return fail_with(why, CAIRN_ERR_CONFIG, "owner in [quota]: %d lines are the most allowed",
                         CAIRN_QUOTAS_MAX);
    struct owner_quota *row = &quotas->rows[quotas->count++];
    snprintf(row->owner, sizeof row->owner, "%s", owner);
    return line != NULL ? read_limits(line, "owner", &row->quota, why) : CAIRN_OK;
}

cairn_status quotas_read(const char *others, const char *lines, struct coord_quotas *out,
                         struct sentence *why)
{
    char *text = strdup(others != NULL ? others : ""), *rest = strdup(lines != NULL ? lines : "");
    char *const to_free = rest;
    *out = (struct coord_quotas) { .rows = calloc(CAIRN_QUOTAS_MAX, sizeof *out->rows) };
    cairn_status status = text != NULL && rest != NULL && out->rows != NULL
                              ? read_limits(text, "others", &out->others, why)
                              : fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for quotas");
    for (char *line; status == CAIRN_OK && (line = strsep(&rest, "\n")) != NULL;)
        status = read_owner(line, out, why);
    free(text);
    free(to_free);
    if (status != CAIRN_OK) quotas_release(out);
    return status;
}

void quotas_release(struct coord_quotas *quotas)
{
    free(quotas->rows);
    *quotas = (struct coord_quotas) { .rows = NULL };
}

static struct quota quota_of(const struct coord *cluster, const char *owner)
{
    const struct coord_quotas *quotas = &cluster->tenants.quotas;
    for (size_t i = 0; i < quotas->count; i++)
        if (strcmp(quotas->rows[i].owner, owner) == 0) return quotas->rows[i].quota;
    return quotas->others;
}

uint64_t quota_in_flight_if(const struct coord_job *job, const struct job_spec_data *spec,
                            uint32_t shards)
{
    const uint64_t window = (uint64_t)spec->window * spec->chunk_leaves * CAIRN_LEAF_ELEMS *
                            sizeof(float) * shards;
    uint64_t gradient = 0;
    for (size_t i = 0; i < spec->tensor_count; i++)
        if (spec->tensors[i].kind == CAIRN_TRAINED)
            gradient += job->layout->geometry[i].elems * sizeof(float);
    return window < gradient ? window : gradient;
}

uint64_t quota_in_flight(const struct coord_job *job)
{
    return quota_in_flight_if(job, &job->spec, job->entry_count);
}

static uint32_t workers_of(const struct coord_job *job, const char *owner)
{
    uint32_t count = 0;
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        count += m->role == CAIRN_ROLE_WIRE_WORKER &&
                 strcmp(coord_who(m->session)->owner, owner) == 0;
    return count;
}

cairn_status coord_quota_judge_workers(const struct coord_job *job, uint64_t in_flight,
                                       struct sentence *why)
{
    const uint64_t now = quota_in_flight(job);
    const char *judged = "";
    for (const struct coord_member *m = job->members.list; m != NULL && in_flight > now;
         m = m->next_of_job) {
        const char *owner = coord_who(m->session)->owner;
        if (m->role != CAIRN_ROLE_WIRE_WORKER || strcmp(owner, judged) == 0) continue;
        const struct quota more = { .in_flight = (in_flight - now) * workers_of(job, owner) };
        CAIRN_TRY(coord_quota_judge(job->cluster, owner, &more, why));
        judged = owner;
    }
    return CAIRN_OK;
}

/* Adds what the owner's workers on this connection may have in flight. */
static uint64_t in_flight_of(const struct coord_session *session)
{
    uint64_t bytes = 0;
    for (const struct coord_member *m = session->members; m != NULL; m = m->next_of_session)
        if (m->job != NULL && m->role == CAIRN_ROLE_WIRE_WORKER) bytes += quota_in_flight(m->job);
    return bytes;
}

/* Returns what an owner has, in the units of its quota. */
static struct quota quota_used(struct coord *cluster, const char *owner)
{
    struct quota used = { .jobs = coord_jobs_planned(cluster, owner) };
    for (struct coord_job *j = cluster->jobs; j != NULL; j = j->next) {
        if (strcmp(j->tenant.owner, owner) != 0) continue;
        used.jobs++;
        used.bytes += coord_job_state_bytes(j);
    }
    for (const struct coord_session *s = cluster->sessions; s != NULL; s = s->next) {
        if (s->role == CAIRN_ROLE_WIRE_SHARD || strcmp(coord_who(s)->owner, owner) != 0) continue;
        used.sessions++;
        used.in_flight += in_flight_of(s);
    }
    return used;
}

/* Writes "3" or "1.5 GiB". */
static void print_amount(uint64_t amount, const struct quota_key *key, char text_out[32])
{
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double number = (double)amount;
    size_t unit = 0;
    while (key->type == CAIRN_OPTION_BYTES && number >= 1024 && unit < 6) {
        number /= 1024;
        unit++;
    }
    snprintf(text_out, 32, "%.*f%s%s", number == (double)(uint64_t)number ? 0 : 1, number,
             key->type == CAIRN_OPTION_BYTES ? " " : "",
             key->type == CAIRN_OPTION_BYTES ? units[unit] : "");
}

/* Judges whether an owner may have another session that has no quota for them: so that one token cannot take
 * all connections, an owner has half of them at most. */
static cairn_status judge_unlimited(const struct coord *cluster, const char *owner,
                                    struct sentence *why)
{
    const uint64_t limit = ((uint64_t)cluster->options->network.connections_max + 1) / 2;
    const struct coord_owner *found = find_owner(cluster, owner);
    if (found == NULL || found->sessions < limit) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_BUSY,
                     "owner %s has %zu connections, half of what connections_max in [network] of "
                     "the coordinator allows to all: end a process, or wait until a dead one's "
                     "lease ends, or ask an admin for sessions= in [quota], or for a larger "
                     "connections_max",
                     owner, found->sessions);
}

cairn_status coord_quota_judge(struct coord *cluster, const char *owner, const struct quota *more,
                               struct sentence *why)
{
    struct quota limits = quota_of(cluster, owner), asked = *more;
    const bool is_limited = (limits.jobs | limits.sessions | limits.bytes | limits.in_flight) != 0;
    if (owner[0] == '\0') return CAIRN_OK;
    if (more->sessions > 0 && limits.sessions == 0) CAIRN_TRY(judge_unlimited(cluster, owner, why));
    if (!is_limited) return CAIRN_OK;
    struct quota used = quota_used(cluster, owner);
    for (size_t i = 0; i < QUOTA_KEYS; i++) {
        const struct quota_key *key = &quota_keys[i];
        const uint64_t limit = *quota_field(&limits, key), has = *quota_field(&used, key),
                       wants = *quota_field(&asked, key);
        if (limit == 0 || wants == 0 || (wants <= limit && has <= limit - wants)) continue;
        char texts[3][32];
        print_amount(has, key, texts[0]);
        print_amount(wants, key, texts[1]);
        print_amount(limit, key, texts[2]);
        return fail_with(
            why, key->status,
            "owner %s uses %s=%s and wants %s more, and its quota is %s: %s, or ask an "
            "admin for a larger one ([quota] of the coordinator)",
            owner, key->name, texts[0], texts[1], texts[2], key->advice);
    }
    return CAIRN_OK;
}

/* ---- shown ---- */

static void show_use(struct coord *cluster, const char *owner, struct coord_answer *answer,
                     Cairn__Quotas *quotas)
{
    for (size_t i = 0; i < quotas->n_owners; i++)
        if (strcmp(quotas->owners[i]->owner, owner) == 0) return;
    Cairn__OwnerUse *use = coord_answer_add(answer, &quotas->base, "owners");
    if (use == NULL) return;
    const struct quota used = quota_used(cluster, owner);
    const struct quota limits = owner[0] != '\0' ? quota_of(cluster, owner) : (struct quota) { 0 };
    use->owner = coord_answer_text(answer, "%s", owner);
    use->jobs = used.jobs;
    use->jobs_max = limits.jobs;
    use->sessions = used.sessions;
    use->sessions_max = limits.sessions;
    use->bytes = used.bytes;
    use->bytes_max = limits.bytes;
    use->in_flight = used.in_flight;
    use->in_flight_max = limits.in_flight;
}

/* Shows an admin or a monitor every owner, and everybody else itself. */
static void on_quota_get(struct coord_session *session, uint32_t request, const void *any)
{
    (void)any;
    struct coord *cluster = session->cluster;
    struct coord_answer answer = { 0 };
    Cairn__Quotas quotas = CAIRN__QUOTAS__INIT;
    const bool all = access_role(coord_who(session), CAIRN_MAY_ADMIN | CAIRN_MAY_MONITOR);
    if (!all) show_use(cluster, coord_who(session)->owner, &answer, &quotas);
    for (const struct coord_job *j = cluster->jobs; all && j != NULL; j = j->next)
        show_use(cluster, j->tenant.owner, &answer, &quotas);
    for (const struct coord_session *s = cluster->sessions; all && s != NULL; s = s->next)
        if (s->role != CAIRN_ROLE_WIRE_SHARD && s != session)
            show_use(cluster, coord_who(s)->owner, &answer, &quotas);
    for (size_t i = 0; all && i < cluster->tenants.quotas.count; i++)
        show_use(cluster, cluster->tenants.quotas.rows[i].owner, &answer, &quotas);
    coord_answer_send(&answer, session, request, CAIRN_MSG_QUOTAS, &quotas.base);
}

/* ==== messages ==== */

const struct coord_row coord_tenants_rows[] = {
    { CAIRN_MSG_JOB_SHARE, CAIRN_FROM_ADMIN, .asks = on_job_share, .verb = "job share" },
    { CAIRN_MSG_QUOTA_GET, CAIRN_FROM_ADMIN, .by_session = on_quota_get,
      .needs = CAIRN_MAY_WORK | CAIRN_MAY_READ | CAIRN_MAY_MONITOR },
    { 0 },
};

/* The life of a mirror: it is made, filled, takes the place of its owner, and ends. */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/mirror.h"

/* After a failure a mirror is made anew, later each time: until it is given up, rounds wait for it. */
#define AGAIN_MS  1000
#define TWICE_MAX 9

const char *coord_mirror_owner(const struct coord_mirror *mirror)
{
    const struct coord_job *job = mirror->job;
    const bool is_there = mirror->shard < job->shard_count &&
                          job->shards[mirror->shard].entry != NULL;
    return is_there ? job->shards[mirror->shard].entry->name : "that left the job";
}

bool coord_mirror_takes_part(const struct coord_mirror *mirror)
{
    return mirror->stage == CAIRN_MIRROR_FILLING || mirror->stage == CAIRN_MIRROR_STORING ||
           mirror->stage == CAIRN_MIRROR_IN_STEP;
}

/* Finds the mirror to which a late answer belongs. */
static struct coord_mirror *find_serial(const struct coord *cluster, uint64_t serial)
{
    for (const struct coord_job *job = cluster->jobs; job != NULL; job = job->next)
        for (struct coord_mirror *m = job->loss.mirrors; m != NULL; m = m->next)
            if (m->serial == serial) return m;
    return NULL;
}

static struct coord_mirror *add_mirror(struct coord_job *job, uint32_t shard)
{
    struct coord_mirror *mirror = calloc(1, sizeof *mirror);
    if (mirror == NULL) return NULL;
    mirror->job = job;
    mirror->shard = shard;
    mirror->next = job->loss.mirrors;
    job->loss.mirrors = mirror;
    return mirror;
}

/* ---- what is known ---- */

static bool has_part(const struct coord_shard_entry *entry, const struct coord_job *job)
{
    const struct seat_part wanted = { job->id, job->generation, layout_number(job->layout) };
    return seat_has(&wanted, entry->held, entry->held_count);
}

struct mirror_view coord_mirror_view(const struct coord_mirror *mirror)
{
    const struct coord_job *job = mirror->job;
    const struct coord_job_shard *owner = &job->shards[mirror->shard];
    const struct coord *cluster = job->cluster;
    const uint64_t now_ms = coord_now_ms(cluster);
    const uint64_t patience_ms = (uint64_t)cluster->options->standby_after_ms,
                   lease_ms = (uint64_t)cluster->options->lease_timeout_ms;
    // A coordinator that has just started gives the owner time to come back to it.
    const bool is_early = !coord_mirror_takes_part(mirror) && patience_ms < lease_ms;
    // Whatever waits for a standby that does not fit waits for the store to forget the standby.
    if (!coord_mirror_fits(mirror)) return (struct mirror_view) { .is_stored = mirror->is_stored };
    return (struct mirror_view) {
        .is_stored = mirror->is_stored,
        .takes_part = coord_mirror_takes_part(mirror),
        .has_standby = mirror->entry != NULL && coord_shard_obeys(mirror->entry) &&
                       (coord_mirror_takes_part(mirror) || has_part(mirror->entry, job)),
        .has_owner = owner->up,
        .owner_is_empty = owner->missed_ms != 0,
        .away_ms = owner->entry->session == NULL ? now_ms - owner->entry->gone_ms : 0,
        .patience_ms = is_early ? lease_ms : patience_ms,
    };
}

bool coord_mirrors_is_taking(const struct coord_job *job, uint32_t shard)
{
    const struct coord_mirror *mirror = coord_mirror_find(job, shard);
    return mirror != NULL && mirror->stage == CAIRN_MIRROR_TAKING;
}

/* True if the job has a shape that a standby can have, and keeps it for now. */
static bool may_mirror(const struct coord_job *job)
{
    return job->state == CAIRN_CLUSTER_JOB_RUNNING && job->initialized && job->core != NULL &&
           !job->reshard.running && job->layouts.next == NULL && !job->layouts.storing &&
           coord_stage(job, CAIRN_OPERATION_PARK) == CAIRN_STAGE_NONE;
}

/* ---- the store ---- */

static cairn_status save_row(struct coord_mirror *mirror, enum store_change change,
                             cluster_saved_fn then, struct sentence *why)
{
    char part[48];
    snprintf(part, sizeof part, "%016" PRIx64 "/%" PRIu32, mirror->job->id, mirror->shard);
    const struct stored_mirror row = { .part = part,
                                       .job = mirror->job->id,
                                       .generation = mirror->generation,
                                       .layout = mirror->layout,
                                       .place = mirror->shard,
                                       .shard = mirror->name,
                                       .incarnation = mirror->incarnation };
    return coord_save(mirror->job->cluster, change, &row, 1, mirror->serial, then, why);
}

static bool has_place(const struct coord_job *job, const char *name)
{
    CAIRN_EACH_SHARD (job, i)
        if (strcmp(job->shards[i].entry->name, name) == 0) return true;
    return false;
}

static cairn_status load_mirror(void *context, const void *any, struct sentence *why)
{
    struct coord *cluster = context;
    const struct stored_mirror *row = any;
    struct coord_job *job = coord_job_by_id(cluster, row->job);
    if (job == NULL || row->place >= CAIRN_SHARDS_MAX) return CAIRN_OK; // of no use to anybody
    struct coord_mirror *mirror = add_mirror(job, (uint32_t)row->place);
    if (mirror == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a mirror");
    snprintf(mirror->name, sizeof mirror->name, "%s", row->shard);
    // The row of a standby that has taken a place is a leftover: it fits nothing, and a tick drops it.
    mirror->generation = has_place(job, row->shard) ? 0 : row->generation;
    mirror->layout = row->layout;
    mirror->incarnation = row->incarnation;
    mirror->is_stored = true;
    sentence_set(&mirror->why, "the coordinator has just started, and waits for %s", row->shard);
    return CAIRN_OK;
}

cairn_status coord_mirrors_load(struct coord *cluster, struct sentence *why)
{
    return store_each(cluster->store, CAIRN_STORED_MIRRORS, load_mirror, cluster, why);
}

/* ---- a mirror ends ---- */

/* The mirror is gone, and the store does not say otherwise. */
static void is_gone(struct coord_mirror *mirror)
{
    mirror->stage = CAIRN_MIRROR_NONE;
    mirror->is_stored = false;
    const unsigned twice = mirror->failures < TWICE_MAX ? mirror->failures : TWICE_MAX;
    mirror->again_ms = coord_now_ms(mirror->job->cluster) + ((uint64_t)AGAIN_MS << twice);
    mirror->failures++;
    coord_mirror_pass_reports(mirror->job, mirror->shard);
}

static void on_row_dropped(const struct coord_saved *saved)
{
    struct coord_mirror *mirror = find_serial(saved->cluster, saved->number);
    if (mirror == NULL || mirror->stage != CAIRN_MIRROR_ENDING) return;
    if (saved->status == CAIRN_OK) {
        is_gone(mirror);
        return;
    }
    log_error("job %s waits: the store cannot be told that standby %s is not in step: %s",
              mirror->job->spec.name, mirror->name, saved->why);
    mirror->stage = CAIRN_MIRROR_NONE; // a later tick tries again, because the row is there
    mirror->again_ms = coord_now_ms(saved->cluster) + AGAIN_MS;
}

/* Tells the owner and the standby. */
static void part_both(const struct coord_mirror *mirror)
{
    const struct coord_job *job = mirror->job;
    Cairn__MemberLeave leave = CAIRN__MEMBER_LEAVE__INIT;
    leave.job = job->id;
    leave.member = mirror->member;
    if (mirror->stage >= CAIRN_MIRROR_JOINING && mirror->shard < job->shard_count &&
        job->shards[mirror->shard].up)
        coord_session_send(job->shards[mirror->shard].entry->session, CAIRN_MSG_MEMBER_LEAVE, 0,
                           &leave.base);
    // the part of a shard that has a place of its own is no mirror any more
    if (mirror->entry != NULL && mirror->entry->session != NULL &&
        !coord_job_has_shard(job, mirror->entry))
        coord_job_send_drop(job->cluster, mirror->entry, job->id);
}

static void drop_row(struct coord_mirror *mirror)
{
    struct sentence why;
    mirror->stage = CAIRN_MIRROR_ENDING;
    randombytes_buf(&mirror->serial, sizeof mirror->serial);
    if (save_row(mirror, CAIRN_STORE_MIRROR_DROP, on_row_dropped, &why) != CAIRN_OK)
        mirror->stage = CAIRN_MIRROR_NONE; // the next tick tries again
}

/* True if the standby alone has the part now. */
static bool is_last(const struct coord_mirror *mirror)
{
    return mirror->is_stored && coord_mirror_fits(mirror) && !mirror->job->shards[mirror->shard].up;
}

void coord_mirror_end(struct coord_mirror *mirror, const char *format, ...)
{
    va_list args;
    char text[CAIRN_SENTENCE_BYTES];
    if (mirror->stage == CAIRN_MIRROR_ENDING || mirror->stage == CAIRN_MIRROR_TAKING ||
        is_last(mirror))
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (coord_mirror_takes_part(mirror) || strcmp(mirror->why.text, text) != 0)
        log_info("job %s: shard %s is mirrored no more by %s: %s", mirror->job->spec.name,
                 coord_mirror_owner(mirror), mirror->name, text);
    sentence_set(&mirror->why, "%s", text);
    part_both(mirror);
    mirror->entry = NULL;
    randombytes_buf(&mirror->serial, sizeof mirror->serial);
    if (mirror->is_stored)
        drop_row(mirror);
    else
        is_gone(mirror);
}

/* A row is a leftover if its standby is the owner, or its job is gone. */
static void on_leftover(const struct coord_saved *saved)
{
    if (saved->status != CAIRN_OK) log_debug("a row of a mirror stays: %s", saved->why);
}

/* The job is gone, so what the standby and the store have of it is of no use. */
static void leave_nothing(struct coord_mirror *mirror)
{
    struct sentence why;
    if (mirror->entry != NULL && mirror->entry->session != NULL)
        coord_job_send_drop(mirror->job->cluster, mirror->entry, mirror->job->id);
    if (mirror->is_stored &&
        save_row(mirror, CAIRN_STORE_MIRROR_DROP, on_leftover, &why) != CAIRN_OK)
        log_debug("a row of a mirror stays: %s", why.text);
}

void coord_mirrors_free(struct coord_job *job)
{
    while (job->loss.mirrors != NULL) {
        struct coord_mirror *mirror = job->loss.mirrors;
        job->loss.mirrors = mirror->next;
        if (!job->cluster->closing) leave_nothing(mirror);
        coord_mirror_forget_reports(mirror);
        free(mirror);
    }
}

/* ---- a mirror is made ---- */

static void fill_owner(const struct coord_mirror *mirror, Cairn__ShardInfo *info)
{
    const struct coord_shard_entry *owner = mirror->job->shards[mirror->shard].entry;
    cairn__shard_info__init(info);
    info->index = mirror->shard;
    info->name = owner->name;
    info->fabric_address = (ProtobufCBinaryData) { owner->fabric_address_bytes,
                                                   owner->fabric_address };
}

static void on_paired(struct coord_job *job, const void *about, cairn_status status,
                      const char *why)
{
    struct coord_mirror *mirror = find_serial(job->cluster, *(const uint64_t *)about);
    if (mirror == NULL || mirror->job != job) return;
    if (status != CAIRN_OK)
        coord_mirror_end(mirror, "%s", why);
    else if (mirror->stage == CAIRN_MIRROR_JOINING)
        mirror->stage = CAIRN_MIRROR_READY;
}

/* Asks both at once; whoever is first tries again until the other knows it, too. */
static void pair(struct coord_mirror *mirror)
{
    struct coord_job *job = mirror->job;
    struct coord_shard_entry *owner = job->shards[mirror->shard].entry;
    struct coord_gather *gather = coord_gather_open_job(job, on_paired, &mirror->serial,
                                                        sizeof mirror->serial);
    Cairn__MemberJoin join = CAIRN__MEMBER_JOIN__INIT;
    Cairn__MirrorOf of = CAIRN__MIRROR_OF__INIT;
    Cairn__ShardInfo info;
    if (gather == NULL) return; // the owner's reports wait too long, and the mirror ends
    join.job = of.job = job->id;
    join.member = of.member = mirror->member;
    join.token = of.token = mirror->token;
    join.role = CAIRN_ROLE_WIRE_READER;
    join.relay = true;
    join.name = mirror->name;
    join.fabric_address = (ProtobufCBinaryData) { mirror->entry->fabric_address_bytes,
                                                  mirror->entry->fabric_address };
    fill_owner(mirror, &info);
    of.owner = &info;
    coord_gather_send(gather, owner, CAIRN_MSG_MEMBER_JOIN, &join.base);
    coord_gather_send(gather, mirror->entry, CAIRN_MSG_MIRROR_OF, &of.base);
    coord_gather_start(gather);
}

static void on_made(struct coord_job *job, const void *about, cairn_status status, const char *why)
{
    struct coord_mirror *mirror = find_serial(job->cluster, *(const uint64_t *)about);
    if (mirror == NULL || mirror->job != job || mirror->stage != CAIRN_MIRROR_MAKING) return;
    if (status != CAIRN_OK) {
        coord_mirror_end(mirror, "%s", why);
        return;
    }
    mirror->stage = CAIRN_MIRROR_JOINING;
    pair(mirror);
}

static void make_mirror(struct coord_mirror *mirror, struct coord_shard_entry *entry)
{
    struct coord_job *job = mirror->job;
    struct decision last = *round_last(job->core);
    const struct coord_create load = {
        .joins = true, .mirror = true, .version = { job->generation, job->base_step }, .last = &last
    };
    last.kind = CAIRN_DECISION_NONE;
    last.version_after = load.version;
    randombytes_buf(&mirror->serial, sizeof mirror->serial);
    randombytes_buf(&mirror->member, sizeof mirror->member);
    randombytes_buf(&mirror->token, sizeof mirror->token);
    mirror->member |= 1; // the number is never 0
    snprintf(mirror->name, sizeof mirror->name, "%s", entry->name);
    mirror->entry = entry;
    mirror->incarnation = entry->incarnation;
    mirror->generation = job->generation;
    mirror->layout = job->layout->version;
    mirror->heard[CAIRN_MIRROR_REDUCED] = mirror->heard[CAIRN_MIRROR_PUBLISHED] =
        (struct mirror_report) { 0 };
    mirror->stage = CAIRN_MIRROR_MAKING;
    struct coord_gather *gather = coord_gather_open_job(job, on_made, &mirror->serial,
                                                        sizeof mirror->serial);
    if (gather == NULL) {
        coord_mirror_end(mirror, "the coordinator is out of memory");
        return;
    }
    coord_job_send_drop(job->cluster, entry, job->id); // an earlier mirror may have left a part
    coord_job_ask_create(job, &load, mirror->shard, entry, job->planned.layout, gather);
    coord_gather_start(gather);
}

static void begin_mirror(struct coord_job *job, uint32_t shard)
{
    const struct coord_job_shard *owner = &job->shards[shard];
    struct coord_mirror *mirror = coord_mirror_find(job, shard);
    if (!owner->up || !coord_job_in_force(job, shard)) return;
    if (mirror != NULL && (mirror->stage != CAIRN_MIRROR_NONE || mirror->is_stored ||
                           coord_now_ms(job->cluster) < mirror->again_ms))
        return;
    struct coord_shard_entry *entry = coord_mirrors_standby(job, owner->entry);
    if (entry == NULL) return;
    if (mirror == NULL) mirror = add_mirror(job, shard);
    if (mirror != NULL) make_mirror(mirror, entry);
}

/* ---- it is filled ---- */

static void on_row_saved(const struct coord_saved *saved)
{
    struct coord_mirror *mirror = find_serial(saved->cluster, saved->number);
    if (mirror == NULL || mirror->stage != CAIRN_MIRROR_STORING) return;
    if (saved->status != CAIRN_OK) {
        coord_mirror_end(mirror, "the store cannot be told that it is in step: %s", saved->why);
        // It is not ended while it alone has the part: the store is told again.
        mirror->again_ms = coord_now_ms(saved->cluster) + AGAIN_MS;
        return;
    }
    mirror->stage = CAIRN_MIRROR_IN_STEP;
    mirror->failures = 0;
    log_info("job %s: shard %s is mirrored by %s", mirror->job->spec.name,
             coord_mirror_owner(mirror), mirror->name);
    coord_event_note(saved->cluster, CAIRN_EVENT_MIRRORED, mirror->job->spec.name, NULL,
                     "shard %s, by %s", coord_mirror_owner(mirror), mirror->name);
}

static void store_in_step(struct coord_mirror *mirror)
{
    struct sentence why;
    mirror->again_ms = UINT64_MAX;
    if (save_row(mirror, CAIRN_STORE_MIRROR, on_row_saved, &why) == CAIRN_OK) return;
    coord_mirror_end(mirror, "%s", why.text);
    mirror->again_ms = coord_now_ms(mirror->job->cluster) + AGAIN_MS;
}

static void on_filled(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__MirrorFilled *message = any;
    struct coord_job *job = coord_job_by_id(session->cluster, message->job);
    (void)request;
    if (job == NULL || session->entry == NULL) return;
    struct coord_mirror *mirror = coord_mirror_at(job, session->entry);
    if (mirror == NULL || mirror->stage != CAIRN_MIRROR_FILLING ||
        mirror->member != message->member)
        return;
    if (!coord_mirror_fits(mirror)) {
        coord_mirror_end(mirror, "the job has another layout now");
        return;
    }
    mirror->is_stored = true; // or will be
    mirror->stage = CAIRN_MIRROR_STORING;
    store_in_step(mirror);
}

const struct coord_row coord_mirror_rows[] = {
    { CAIRN_MSG_MIRROR_FILLED, CAIRN_FROM_SHARD, .by_session = on_filled },
    { 0 },
};

/* ---- it takes the owner's place ---- */

/* The part as the standby would report it: it has the job's shape, and all that the store knows. */
static void tell_up(struct coord_job *job, const struct coord_shard_entry *entry)
{
    Cairn__HeldJob held = CAIRN__HELD_JOB__INIT;
    held.job = job->id;
    held.generation = job->generation;
    held.layout_hash = layout_number(job->layout);
    held.layout_version = job->layout->version;
    held.epoch = job->epoch;
    held.unsettled = true; // it is told the job's terms, which may have been amended since
    coord_job_shard_has(job, entry, &held);
}

/* Tells the shard that its part is no mirror any more; the gather, if there is one, has the answer. */
static void end_at_standby(struct coord_gather *gather, const struct coord_job *job,
                           struct coord_shard_entry *entry)
{
    Cairn__MirrorOf of = CAIRN__MIRROR_OF__INIT;
    if (gather == NULL) return;
    of.job = job->id;
    coord_gather_send(gather, entry, CAIRN_MSG_MIRROR_OF, &of.base);
    coord_gather_start(gather);
}

/* About a mirror that has the place. */
struct taken {
    char name[CAIRN_NAME_MAX + 1];
    uint64_t incarnation;
};

static void on_standby_free(struct coord_job *job, const void *about, cairn_status status,
                            const char *why)
{
    const struct taken *taken = about;
    struct coord_shard_entry *entry = coord_shard_find(job->cluster, taken->name);
    // if its connection was lost, its next session reports the part as any owner's
    if (status == CAIRN_ERR_CLOSED || entry == NULL || !coord_shard_obeys(entry)) return;
    if (status != CAIRN_OK)
        log_error("job %s: shard %s has a part now, and says: %s", job->spec.name, taken->name,
                  why);
    if (status == CAIRN_OK && entry->incarnation == taken->incarnation)
        tell_up(job, entry);
    else
        coord_job_shard_has(job, entry, NULL);
}

static void free_standby(struct coord_job *job, struct coord_shard_entry *entry,
                         uint64_t incarnation)
{
    struct taken taken = { .incarnation = incarnation };
    snprintf(taken.name, sizeof taken.name, "%s", entry->name);
    end_at_standby(coord_gather_open_job(job, on_standby_free, &taken, sizeof taken), job, entry);
}

static void remove_mirror(struct coord_mirror *mirror)
{
    struct coord_mirror **at = &mirror->job->loss.mirrors;
    while (*at != mirror) at = &(*at)->next;
    *at = mirror->next;
    coord_mirror_forget_reports(mirror);
    free(mirror);
}

static void on_taken(const struct coord_saved *saved)
{
    struct coord_mirror *mirror = find_serial(saved->cluster, saved->number);
    struct sentence why;
    if (mirror == NULL || mirror->stage != CAIRN_MIRROR_TAKING) return;
    struct coord_job *job = mirror->job;
    if (saved->status != CAIRN_OK) {
        log_error("job %s waits: the store cannot be told that shard %s has the place of a lost "
                  "one: %s",
                  job->spec.name, mirror->name, saved->why);
        // It is the owner here, and in step in the store, so a new coordinator does the same again.
        mirror->again_ms = coord_now_ms(saved->cluster) + AGAIN_MS;
        return;
    }
    struct coord_shard_entry *entry = job->shards[mirror->shard].entry;
    if (save_row(mirror, CAIRN_STORE_MIRROR_DROP, on_leftover, &why) != CAIRN_OK)
        log_debug("a row of a mirror stays: %s", why.text);
    const uint64_t incarnation = mirror->incarnation;
    remove_mirror(mirror);
    if (coord_shard_obeys(entry)) free_standby(job, entry, incarnation);
}

static void store_place(struct coord_mirror *mirror)
{
    struct sentence why;
    mirror->again_ms = UINT64_MAX;
    randombytes_buf(&mirror->serial, sizeof mirror->serial);
    if (coord_save_job(mirror->job, CAIRN_STORE_LAYOUT, NULL, mirror->serial, on_taken, &why) !=
        CAIRN_OK)
        mirror->again_ms = coord_now_ms(mirror->job->cluster) + AGAIN_MS;
}

/* The standby gets the owner's place in the layout. From here on the former owner has no part of the job: if
 * it comes back, what it holds is dropped. */
static void take_place(struct coord_mirror *mirror)
{
    struct coord_job *job = mirror->job;
    struct coord_job_shard *s = &job->shards[mirror->shard];
    struct coord_shard_entry *former = s->entry;
    struct sentence why;
    sentence_set(&why, "%s was lost, and its standby %s takes its place", former->name,
                 mirror->name);
    log_warn("job %s: shard %s", job->spec.name, why.text);
    coord_event_note(job->cluster, CAIRN_EVENT_TAKEN, job->spec.name, NULL, "shard %s", why.text);
    coord_mirror_forget_reports(mirror);
    s->entry = mirror->entry;
    s->incarnation = mirror->incarnation;
    s->missed_ms = s->away_ms = 0;
    mirror->entry = NULL; // it is an owner, whose messages are handled as any other's
    mirror->stage = CAIRN_MIRROR_TAKING;
    if (job->state == CAIRN_CLUSTER_JOB_LOST && job->loss.may_return)
        job->state = CAIRN_CLUSTER_JOB_RUNNING;
    if (former->session != NULL) coord_job_send_drop(job->cluster, former, job->id);
    store_place(mirror);
    coord_shard_drop_unused(job->cluster, former);
}

/* ---- what happens to shards ---- */

void coord_mirrors_standby_up(struct coord *cluster, struct coord_shard_entry *entry)
{
    for (struct coord_job *job = cluster->jobs; job != NULL; job = job->next)
        for (struct coord_mirror *m = job->loss.mirrors; m != NULL; m = m->next)
            if (m->is_stored && m->stage != CAIRN_MIRROR_ENDING &&
                m->stage != CAIRN_MIRROR_TAKING && m->entry == NULL && coord_mirror_fits(m) &&
                !coord_job_has_shard(job, entry) && strcmp(m->name, entry->name) == 0 &&
                m->incarnation == entry->incarnation)
                m->entry = entry;
}

void coord_mirrors_standby_down(struct coord *cluster, struct coord_shard_entry *entry)
{
    for (struct coord_job *job = cluster->jobs; job != NULL; job = job->next) {
        struct coord_mirror *mirror = coord_mirror_at(job, entry);
        if (mirror == NULL) continue;
        mirror->entry = NULL;
        // While the owner is away, too, nobody goes on, so the standby stays in step.
        if (!job->shards[mirror->shard].up && mirror->is_stored)
            mirror->stage = CAIRN_MIRROR_NONE;
        else
            coord_mirror_end(mirror, "the connection to it was lost");
    }
}

static void on_told(struct coord_job *job, const void *about, cairn_status status, const char *why)
{
    (void)about;
    if (status != CAIRN_OK) log_debug("job %s: a shard with a place: %s", job->spec.name, why);
}

void coord_mirrors_owner_up(struct coord_job *job, uint32_t shard)
{
    struct coord_mirror *mirror = coord_mirror_find(job, shard);
    struct coord_shard_entry *owner = job->shards[shard].entry;
    // A standby that has a place is told again: whoever gave it the place may have died before that.
    if (owner->told.standby_of[0] != '\0')
        end_at_standby(coord_gather_open_job(job, on_told, NULL, 0), job, owner);
    if (mirror == NULL || mirror->stage == CAIRN_MIRROR_TAKING) return;
    if (coord_mirror_takes_part(mirror) && mirror->entry != NULL && coord_mirror_fits(mirror))
        pair(mirror);
    else if (mirror->stage != CAIRN_MIRROR_NONE || mirror->is_stored)
        coord_mirror_end(mirror, "the owner is back, and the standby may have missed something");
}

void coord_mirrors_owner_down(struct coord_job *job, uint32_t shard)
{
    struct coord_mirror *mirror = coord_mirror_find(job, shard);
    if (mirror == NULL) return;
    coord_mirror_forget_reports(mirror);
    if (mirror->stage != CAIRN_MIRROR_NONE && !mirror->is_stored)
        coord_mirror_end(mirror, "the owner was lost before the standby had all that it has");
}

/* ---- time ---- */

static void tick_mirror(struct coord_mirror *mirror)
{
    struct coord_job *job = mirror->job;
    const bool is_under_way = mirror->stage == CAIRN_MIRROR_MAKING ||
                              mirror->stage == CAIRN_MIRROR_JOINING ||
                              mirror->stage == CAIRN_MIRROR_READY;
    if (mirror->stage == CAIRN_MIRROR_TAKING && coord_now_ms(job->cluster) >= mirror->again_ms)
        store_place(mirror);
    if (mirror->stage == CAIRN_MIRROR_STORING && coord_now_ms(job->cluster) >= mirror->again_ms)
        store_in_step(mirror);
    if (mirror->stage == CAIRN_MIRROR_ENDING || mirror->stage == CAIRN_MIRROR_TAKING) return;
    if (mirror->stage == CAIRN_MIRROR_NONE && !mirror->is_stored) return;
    if (mirror->stage == CAIRN_MIRROR_NONE && coord_now_ms(job->cluster) < mirror->again_ms) return;
    if (!coord_mirror_fits(mirror)) {
        coord_mirror_end(mirror, "the job has another shape now");
        return;
    }
    if (coord_mirror_takes_part(mirror) && coord_mirror_is_late(mirror)) {
        coord_mirror_end(mirror, "it did not keep up with the owner");
        return;
    }
    if (is_under_way && may_mirror(job)) {
        if (mirror->stage == CAIRN_MIRROR_READY) coord_mirror_join_at_rest(mirror);
        return;
    }
    const struct mirror_view view = coord_mirror_view(mirror);
    const enum mirror_verdict verdict = mirror_judge(&view);
    const bool may_take = !job->layouts.storing && job->layouts.next == NULL &&
                          !job->reshard.running && !job->loss.behind &&
                          (job->state == CAIRN_CLUSTER_JOB_RUNNING ||
                           (job->state == CAIRN_CLUSTER_JOB_LOST && job->loss.may_return));
    if (verdict == CAIRN_MIRROR_TAKES && may_take)
        take_place(mirror);
    else if (verdict == CAIRN_MIRROR_TAKES)
        return; // the job cannot be changed for now
    else if (verdict == CAIRN_MIRROR_ENDS)
        coord_mirror_end(mirror, "it cannot be known whether it has all that the owner has");
    else if (view.has_owner && !may_mirror(job))
        coord_mirror_end(mirror, "the job's state is being moved");
}

void coord_mirrors_end(struct coord_job *job, const char *why)
{
    for (struct coord_mirror *m = job->loss.mirrors; m != NULL; m = m->next)
        if (m->stage != CAIRN_MIRROR_NONE || m->is_stored) coord_mirror_end(m, "%s", why);
}

void coord_mirrors_part_stopped(struct coord_job *job, const struct coord_shard_entry *entry,
                                const char *why)
{
    struct sentence text;
    sentence_set(&text,
                 "%s has stopped its part, and mirrors nothing until it is started again: %s",
                 entry->name, sentence_brief(why, 600).text);
    for (struct coord_mirror *m = job->loss.mirrors; m != NULL; m = m->next) {
        if (strcmp(m->name, entry->name) != 0 || coord_job_has_shard(job, entry)) continue;
        coord_mirror_end(m, "%s", text.text);
        m->why = text; // also if it had ended with the connection
    }
}

void coord_mirrors_tick(struct coord_job *job)
{
    struct coord_mirror *next;
    for (struct coord_mirror *m = job->loss.mirrors; m != NULL; m = next) {
        next = m->next;
        tick_mirror(m);
    }
    const bool is_asked = safety_mirrors(job->spec.policy.durability);
    if (!is_asked) coord_mirrors_end(job, "the job asks for a durability without standbys");
    if (!is_asked || !may_mirror(job)) return;
    CAIRN_EACH_SHARD (job, i) begin_mirror(job, i);
}

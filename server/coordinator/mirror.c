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

const char *coord_mirrors_owner(const struct coord_mirrors *all)
{
    const struct coord_job *job = all->job;
    const bool is_there = all->shard < job->shard_count && job->shards[all->shard].entry != NULL;
    return is_there ? job->shards[all->shard].entry->name : "that left the job";
}

static void act(struct coord_mirror *mirror, enum mirror_event event, const char *why);

/* Finds the mirror to which a late answer belongs. */
static struct coord_mirror *find_serial(const struct coord *cluster, uint64_t serial)
{
    for (const struct coord_job *job = cluster->jobs; job != NULL; job = job->next)
        CAIRN_EACH_MIRROR (job, all, m)
            if (m->serial == serial) return m;
    return NULL;
}

/* Returns the mirrors of the part, of which there may be none yet. NULL: there is no memory for that. */
static struct coord_mirrors *have_mirrors(struct coord_job *job, uint32_t shard)
{
    struct coord_mirrors *all = coord_mirrors_find(job, shard);
    if (all != NULL) return all;
    all = calloc(1, sizeof *all);
    if (all == NULL) return NULL;
    all->job = job;
    all->shard = shard;
    for (int i = 0; i < CAIRN_STANDBYS_MAX; i++) all->of[i].all = all;
    all->next = job->loss.mirrors;
    job->loss.mirrors = all;
    return all;
}

/* ---- what is known ---- */

static bool has_part(const struct coord_shard_entry *entry, const struct coord_job *job)
{
    const struct seat_part wanted = { job->id, job->generation, layout_number(job->layout) };
    return seat_has(&wanted, entry->held, entry->held_count);
}

/* True if the job has a shape that a standby can have, and keeps it for now. */
static bool may_mirror(const struct coord_job *job)
{
    return job->state == CAIRN_CLUSTER_JOB_RUNNING && job->initialized && job->core != NULL &&
           !job->reshard.running && job->layouts.next == NULL && !job->layouts.storing &&
           coord_stage(job, CAIRN_OPERATION_PARK) == CAIRN_STAGE_NONE;
}

/* True if a shard of the job may be replaced. */
static bool may_take(const struct coord_job *job)
{
    return !job->layouts.storing && job->layouts.next == NULL && !job->reshard.running &&
           !job->loss.behind &&
           (job->state == CAIRN_CLUSTER_JOB_RUNNING ||
            (job->state == CAIRN_CLUSTER_JOB_LOST && job->loss.may_return));
}

struct mirror_view coord_mirror_view(const struct coord_mirror *mirror)
{
    const struct coord_job *job = mirror->all->job;
    const struct coord_job_shard *owner = &job->shards[mirror->all->shard];
    const struct coord *cluster = job->cluster;
    const uint64_t now_ms = coord_now_ms(cluster);
    const uint64_t patience_ms = (uint64_t)cluster->options->standby_after_ms,
                   lease_ms = (uint64_t)cluster->options->lease_timeout_ms;
    const bool takes_part = mirror_takes_part(&mirror->state);
    // A coordinator that has just started gives the owner time to come back to it.
    const bool is_early = !takes_part && patience_ms < lease_ms;
    // Whatever waits for a standby that does not fit waits for the store to forget the standby.
    if (!coord_mirror_fits(mirror)) return (struct mirror_view) { .fits = false };
    return (struct mirror_view) {
        .fits = true,
        .has_standby = mirror->entry != NULL && coord_shard_obeys(mirror->entry) &&
                       (takes_part || has_part(mirror->entry, job)),
        .has_owner = owner->up,
        .owner_is_empty = owner->missed_ms != 0,
        .owner_comes = coord_mirrors_is_taking(job, mirror->all->shard) ||
                       (owner->entry->session != NULL && owner->missed_ms == 0),
        .may_mirror = may_mirror(job),
        .may_take = may_take(job),
        .away_ms = owner->entry->session == NULL ? now_ms - owner->entry->gone_ms : 0,
        .patience_ms = is_early ? lease_ms : patience_ms,
    };
}

bool coord_mirrors_is_taking(const struct coord_job *job, uint32_t shard)
{
    const struct coord_mirrors *all = coord_mirrors_find(job, shard);
    for (int i = 0; all != NULL && i < CAIRN_STANDBYS_MAX; i++)
        if (mirror_is_taking(&all->of[i].state)) return true;
    return false;
}

/* ---- the store ---- */

static cairn_status save_row(struct coord_mirror *mirror, enum store_change change,
                             cluster_saved_fn then, struct sentence *why)
{
    char part[64];
    const int length = snprintf(part, sizeof part, "%016" PRIx64 "/%" PRIu32, mirror->all->job->id,
                                mirror->all->shard);
    const int which = (int)(mirror - mirror->all->of);
    if (which > 0) snprintf(part + length, sizeof part - (size_t)length, "/%d", which);
    const struct stored_mirror row = { .part = part,
                                       .job = mirror->all->job->id,
                                       .generation = mirror->generation,
                                       .layout = mirror->layout,
                                       .place = mirror->all->shard,
                                       .shard = mirror->name,
                                       .incarnation = mirror->incarnation };
    return coord_save(mirror->all->job->cluster, change, &row, 1, mirror->serial, then, why);
}

/* Returns which of the part's mirrors a row is of. The first one has no number in it, as when there was but
 * one. */
static uint64_t which_of(const struct stored_mirror *row)
{
    const char *shard = strchr(row->part, '/'),
               *which = strchr(shard != NULL ? shard + 1 : "", '/');
    return which != NULL ? strtoull(which + 1, NULL, 10) : 0;
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
    const uint64_t which = which_of(row);
    if (job == NULL || row->place >= CAIRN_SHARDS_MAX || which >= CAIRN_STANDBYS_MAX)
        return CAIRN_OK; // of no use to anybody
    struct coord_mirrors *all = have_mirrors(job, (uint32_t)row->place);
    if (all == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a mirror");
    struct coord_mirror *mirror = &all->of[which];
    snprintf(mirror->name, sizeof mirror->name, "%s", row->shard);
    // The row of a standby that has taken a place is a leftover: it fits nothing, and a tick drops it.
    mirror->generation = has_place(job, row->shard) ? 0 : row->generation;
    mirror->layout = row->layout;
    mirror->incarnation = row->incarnation;
    mirror->state.is_stored = true;
    sentence_set(&mirror->why, "the coordinator has just started, and waits for %s", row->shard);
    return CAIRN_OK;
}

cairn_status coord_mirrors_load(struct coord *cluster, struct sentence *why)
{
    return store_each(cluster->store, CAIRN_STORED_MIRRORS, load_mirror, cluster, why);
}

/* ---- a mirror ends ---- */

/* There is no such mirror any more, and none that had ended. */
static void clear_mirror(struct coord_mirror *mirror)
{
    free(mirror->answer);
    *mirror = (struct coord_mirror) { .all = mirror->all };
}

/* The mirror is gone, and the store does not say otherwise. */
static void go_alone(struct coord_mirror *mirror)
{
    const unsigned twice = mirror->failures < TWICE_MAX ? mirror->failures : TWICE_MAX;
    if (has_place(mirror->all->job, mirror->name)) {
        clear_mirror(mirror);
    } else {
        mirror->again_ms = coord_now_ms(mirror->all->job->cluster) + ((uint64_t)AGAIN_MS << twice);
        mirror->failures++;
    }
    coord_mirrors_pass_reports(mirror->all->job, mirror->all->shard);
}

/* Takes the store's answer to the last order that wrote to it. `why` is the reason if it fails. */
static void store_answers(struct coord_mirror *mirror, cairn_status status, const char *why)
{
    mirror->again_ms = coord_now_ms(mirror->all->job->cluster) +
                       AGAIN_MS; // if it is to be told again
    act(mirror, status == CAIRN_OK ? CAIRN_MIRROR_ON_SAVED : CAIRN_MIRROR_ON_NOT_SAVED, why);
}

static void on_row_dropped(const struct coord_saved *saved)
{
    struct coord_mirror *mirror = find_serial(saved->cluster, saved->number);
    if (mirror == NULL || mirror->state.stage != CAIRN_MIRROR_ENDING) return;
    if (saved->status != CAIRN_OK)
        log_error("job %s waits: the store cannot be told that standby %s is not in step: %s",
                  mirror->all->job->spec.name, mirror->name, saved->why);
    store_answers(mirror, saved->status, saved->why);
}

/* Tells the owner and the standby. */
static void part_both(const struct coord_mirror *mirror, bool owner_knows)
{
    const struct coord_job *job = mirror->all->job;
    Cairn__MemberLeave leave = CAIRN__MEMBER_LEAVE__INIT;
    leave.job = job->id;
    leave.member = mirror->member;
    if (owner_knows && mirror->all->shard < job->shard_count && job->shards[mirror->all->shard].up)
        coord_session_send(job->shards[mirror->all->shard].entry->session, CAIRN_MSG_MEMBER_LEAVE,
                           0, &leave.base);
    // the part of a shard that has a place of its own is no mirror any more
    if (mirror->entry != NULL && mirror->entry->session != NULL &&
        !coord_job_has_shard(job, mirror->entry))
        coord_job_send_drop(job->cluster, mirror->entry, job->id);
}

static void drop_row(struct coord_mirror *mirror)
{
    struct sentence why;
    const cairn_status status = save_row(mirror, CAIRN_STORE_MIRROR_DROP, on_row_dropped, &why);
    if (status != CAIRN_OK) store_answers(mirror, status, why.text); // a later tick tries again
}

/* `before`: the stage that ends. */
static void say_end(struct coord_mirror *mirror, const struct mirror_state *before, const char *why)
{
    if (mirror_takes_part(before) || strcmp(mirror->why.text, why) != 0)
        log_info("job %s: shard %s is mirrored no more by %s: %s", mirror->all->job->spec.name,
                 coord_mirrors_owner(mirror->all), mirror->name, why);
    sentence_set(&mirror->why, "%s", why);
}

void coord_mirror_end(struct coord_mirror *mirror, const char *format, ...)
{
    va_list args;
    char text[CAIRN_SENTENCE_BYTES];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    act(mirror, CAIRN_MIRROR_ON_END, text);
}

static void on_leftover(const struct coord_saved *saved)
{
    if (saved->status != CAIRN_OK) log_debug("a row of a mirror stays: %s", saved->why);
}

/* The job is gone, so what the standby and the store have of it is of no use. */
static void leave_nothing(struct coord_mirror *mirror)
{
    struct sentence why;
    if (mirror->entry != NULL && mirror->entry->session != NULL)
        coord_job_send_drop(mirror->all->job->cluster, mirror->entry, mirror->all->job->id);
    if (mirror->state.is_stored &&
        save_row(mirror, CAIRN_STORE_MIRROR_DROP, on_leftover, &why) != CAIRN_OK)
        log_debug("a row of a mirror stays: %s", why.text);
}

void coord_mirrors_free(struct coord_job *job)
{
    while (job->loss.mirrors != NULL) {
        struct coord_mirrors *all = job->loss.mirrors;
        for (struct coord_mirror *m = all->of; m < all->of + CAIRN_STANDBYS_MAX; m++) {
            if (!job->cluster->closing) leave_nothing(m);
            clear_mirror(m);
        }
        coord_mirrors_forget_reports(all);
        job->loss.mirrors = all->next;
        free(all);
    }
}

/* ---- a mirror is made ---- */

static void fill_owner(const struct coord_mirror *mirror, Cairn__ShardInfo *info)
{
    const struct coord_shard_entry *owner = mirror->all->job->shards[mirror->all->shard].entry;
    cairn__shard_info__init(info);
    info->index = mirror->all->shard;
    info->name = owner->name;
    info->fabric_address = (ProtobufCBinaryData) { owner->fabric_address_bytes,
                                                   owner->fabric_address };
}

static void on_paired(struct coord_job *job, const void *about, cairn_status status,
                      const char *why)
{
    struct coord_mirror *mirror = find_serial(job->cluster, *(const uint64_t *)about);
    if (mirror == NULL || mirror->all->job != job) return;
    // a standby in step outlives the loss of the owner, and what follows from a loss is heard of as such
    if (status == CAIRN_ERR_CLOSED && mirror->state.is_stored) return;
    act(mirror, status == CAIRN_OK ? CAIRN_MIRROR_ON_PAIRED : CAIRN_MIRROR_ON_END, why);
}

/* Asks both at once; whoever is first tries again until the other knows it, too. */
static void pair(struct coord_mirror *mirror)
{
    struct coord_job *job = mirror->all->job;
    struct coord_shard_entry *owner = job->shards[mirror->all->shard].entry;
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
    if (mirror == NULL || mirror->all->job != job || mirror->state.stage != CAIRN_MIRROR_MAKING)
        return;
    act(mirror, status == CAIRN_OK ? CAIRN_MIRROR_ON_MADE : CAIRN_MIRROR_ON_END, why);
}

static void make_mirror(struct coord_mirror *mirror, struct coord_shard_entry *entry)
{
    struct coord_job *job = mirror->all->job;
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
    act(mirror, CAIRN_MIRROR_ON_BEGIN, NULL);
    struct coord_gather *gather = coord_gather_open_job(job, on_made, &mirror->serial,
                                                        sizeof mirror->serial);
    if (gather == NULL) {
        coord_mirror_end(mirror, "the coordinator is out of memory");
        return;
    }
    coord_job_send_drop(job->cluster, entry, job->id); // an earlier mirror may have left a part
    coord_job_ask_create(job, &load, mirror->all->shard, entry, job->planned.layout, gather);
    coord_gather_start(gather);
}

/* Begins with each mirror that has no standby, if there is one for it. */
static void begin_mirrors(struct coord_job *job, uint32_t shard)
{
    struct coord_mirrors *all = coord_mirrors_find(job, shard);
    if (!job->shards[shard].up || !coord_job_in_force(job, shard)) return;
    // what the owner published in the layout before, a standby could not serve in its place
    if (coord_layouts_behind(job)) return;
    for (int i = 0; i < CAIRN_STANDBYS_MAX; i++) {
        if (all != NULL &&
            (all->of[i].state.stage != CAIRN_MIRROR_NONE || all->of[i].state.is_stored ||
             coord_now_ms(job->cluster) < all->of[i].again_ms))
            continue;
        struct coord_shard_entry *entry = coord_mirrors_standby(job, shard, i);
        if (entry == NULL) continue;
        if (all == NULL) all = have_mirrors(job, shard);
        if (all != NULL) make_mirror(&all->of[i], entry);
    }
}

/* ---- it is filled ---- */

static void on_row_saved(const struct coord_saved *saved)
{
    struct coord_mirror *mirror = find_serial(saved->cluster, saved->number);
    struct sentence why;
    if (mirror == NULL || mirror->state.stage != CAIRN_MIRROR_STORING) return;
    sentence_set(&why, "the store cannot be told that it is in step: %s",
                 saved->status != CAIRN_OK ? saved->why : "");
    store_answers(mirror, saved->status, why.text);
    if (saved->status != CAIRN_OK) return;
    mirror->failures = 0;
    log_info("job %s: shard %s is mirrored by %s", mirror->all->job->spec.name,
             coord_mirrors_owner(mirror->all), mirror->name);
    coord_event_note(saved->cluster, CAIRN_EVENT_MIRRORED, mirror->all->job->spec.name, NULL,
                     "shard %s, by %s", coord_mirrors_owner(mirror->all), mirror->name);
}

static void store_in_step(struct coord_mirror *mirror)
{
    struct sentence why;
    const cairn_status status = save_row(mirror, CAIRN_STORE_MIRROR, on_row_saved, &why);
    if (status != CAIRN_OK) store_answers(mirror, status, why.text);
}

static void on_filled(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__MirrorFilled *message = any;
    struct coord_job *job = coord_job_by_id(session->cluster, message->job);
    (void)request;
    if (job == NULL || session->entry == NULL) return;
    struct coord_mirror *mirror = coord_mirror_at(job, session->entry);
    if (mirror != NULL && mirror->member == message->member)
        act(mirror, CAIRN_MIRROR_ON_FILLED, "the job has another layout now");
}

const struct coord_row coord_mirror_rows[] = {
    { CAIRN_MSG_MIRROR_FILLED, CAIRN_FROM_SHARD, .by_session = on_filled },
    { CAIRN_MSG_AUDIT_LOOKED, CAIRN_FROM_SHARD, .by_session = coord_mirror_looked },
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

/* The store says that it has the place: the mirror is gone, and the shard is the owner. Its row is a leftover
 * that must go before the job goes on: with another owner's loss it would count as in step again. */
static void own(struct coord_mirror *mirror)
{
    static const char why[] = "it has the place of the shard that it mirrored";
    struct coord_job *job = mirror->all->job;
    struct coord_shard_entry *entry = job->shards[mirror->all->shard].entry;
    const uint64_t incarnation = mirror->incarnation;
    clear_mirror(mirror);
    snprintf(mirror->name, sizeof mirror->name, "%s", entry->name);
    sentence_set(&mirror->why, "%s", why);
    mirror->state.is_stored = true; // it fits nothing, without a generation
    if (coord_shard_obeys(entry)) free_standby(job, entry, incarnation);
    act(mirror, CAIRN_MIRROR_ON_END, why);
}

static void on_taken(const struct coord_saved *saved)
{
    struct coord_mirror *mirror = find_serial(saved->cluster, saved->number);
    if (mirror == NULL || mirror->state.stage != CAIRN_MIRROR_TAKING) return;
    // It is the owner here, and in step in the store, so a new coordinator does the same again.
    if (saved->status != CAIRN_OK)
        log_error("job %s waits: the store cannot be told that shard %s has the place of a lost "
                  "one: %s",
                  mirror->all->job->spec.name, mirror->name, saved->why);
    store_answers(mirror, saved->status, saved->why);
}

static void store_place(struct coord_mirror *mirror)
{
    struct sentence why;
    mirror->again_ms = UINT64_MAX;
    randombytes_buf(&mirror->serial, sizeof mirror->serial);
    if (coord_save_job(mirror->all->job, CAIRN_STORE_LAYOUT, NULL, mirror->serial, on_taken,
                       &why) != CAIRN_OK)
        mirror->again_ms = coord_now_ms(mirror->all->job->cluster) + AGAIN_MS;
}

/* The standby gets the owner's place in the layout. From here on the former owner has no part of the job: if
 * it comes back, what it holds is dropped. */
static void take_place(struct coord_mirror *mirror)
{
    struct coord_job *job = mirror->all->job;
    struct coord_job_shard *s = &job->shards[mirror->all->shard];
    struct coord_shard_entry *former = s->entry;
    struct sentence why;
    sentence_set(&why, "%s was lost, and its standby %s takes its place", former->name,
                 mirror->name);
    log_warn("job %s: shard %s", job->spec.name, why.text);
    coord_event_note(job->cluster, CAIRN_EVENT_TAKEN, job->spec.name, NULL, "shard %s", why.text);
    coord_mirrors_forget_reports(mirror->all);
    coord_mirrors_forget_audits(mirror->all);
    s->entry = mirror->entry;
    s->incarnation = mirror->incarnation;
    s->missed_ms = s->away_ms = 0;
    mirror->entry = NULL; // it is an owner, whose messages are handled as any other's
    if (job->state == CAIRN_CLUSTER_JOB_LOST && job->loss.may_return)
        job->state = CAIRN_CLUSTER_JOB_RUNNING;
    if (former->session != NULL) coord_job_send_drop(job->cluster, former, job->id);
    store_place(mirror);
    coord_shard_drop_unused(job->cluster, former);
}

/* ---- what the core says ---- */

/* Does what the core's machine says to the event. `why`: the mirror ends because of that, if it does. */
static void act(struct coord_mirror *mirror, enum mirror_event event, const char *why)
{
    const struct mirror_state before = mirror->state;
    const struct mirror_view view = coord_mirror_view(mirror);
    const enum mirror_order order = mirror_on(&mirror->state, event, &view);
    switch (order) {
    case CAIRN_MIRROR_DO_NOTHING:
    case CAIRN_MIRROR_DO_JOIN: return; // mirror_rounds.c
    case CAIRN_MIRROR_DO_PAIR: pair(mirror); return;
    case CAIRN_MIRROR_DO_STORE: store_in_step(mirror); return;
    case CAIRN_MIRROR_DO_END:
    case CAIRN_MIRROR_DO_UNSTORE:
        say_end(mirror, &before, why);
        part_both(mirror, before.stage >= CAIRN_MIRROR_JOINING);
        mirror->entry = NULL;
        randombytes_buf(&mirror->serial, sizeof mirror->serial);
        coord_mirror_forget_audits(mirror);
        if (order == CAIRN_MIRROR_DO_UNSTORE)
            drop_row(mirror);
        else
            go_alone(mirror);
        return;
    case CAIRN_MIRROR_DO_GO_ALONE: go_alone(mirror); return;
    case CAIRN_MIRROR_DO_TAKE: take_place(mirror); return;
    case CAIRN_MIRROR_DO_TAKE_AGAIN: store_place(mirror); return;
    case CAIRN_MIRROR_DO_OWN: own(mirror); return;
    }
}

/* ---- what happens to shards ---- */

void coord_mirrors_standby_up(struct coord *cluster, struct coord_shard_entry *entry)
{
    for (struct coord_job *job = cluster->jobs; job != NULL; job = job->next)
        CAIRN_EACH_MIRROR (job, all, m) {
            const struct mirror_view view = coord_mirror_view(m);
            if (mirror_expects(&m->state, &view) && m->entry == NULL &&
                !coord_job_has_shard(job, entry) && strcmp(m->name, entry->name) == 0 &&
                m->incarnation == entry->incarnation)
                m->entry = entry;
        }
}

void coord_mirrors_standby_down(struct coord *cluster, struct coord_shard_entry *entry)
{
    for (struct coord_job *job = cluster->jobs; job != NULL; job = job->next) {
        struct coord_mirror *mirror = coord_mirror_at(job, entry);
        if (mirror == NULL) continue;
        mirror->entry = NULL;
        act(mirror, CAIRN_MIRROR_ON_STANDBY_LOST, "the connection to it was lost");
    }
}

static void on_told(struct coord_job *job, const void *about, cairn_status status, const char *why)
{
    (void)about;
    if (status != CAIRN_OK) log_debug("job %s: a shard with a place: %s", job->spec.name, why);
}

void coord_mirrors_owner_up(struct coord_job *job, uint32_t shard)
{
    struct coord_mirrors *all = coord_mirrors_find(job, shard);
    struct coord_shard_entry *owner = job->shards[shard].entry;
    // A standby that has a place is told again: whoever gave it the place may have died before that.
    if (owner->told.standby_of[0] != '\0')
        end_at_standby(coord_gather_open_job(job, on_told, NULL, 0), job, owner);
    for (int i = 0; all != NULL && i < CAIRN_STANDBYS_MAX; i++)
        act(&all->of[i], CAIRN_MIRROR_ON_OWNER_BACK,
            "the owner is back, and the standby may have missed something");
}

void coord_mirrors_owner_down(struct coord_job *job, uint32_t shard)
{
    struct coord_mirrors *all = coord_mirrors_find(job, shard);
    if (all == NULL) return;
    coord_mirrors_forget_reports(all);
    for (int i = 0; i < CAIRN_STANDBYS_MAX; i++)
        act(&all->of[i], CAIRN_MIRROR_ON_OWNER_LOST,
            "the owner was lost before the standby had all that it has");
}

/* ---- time ---- */

/* Says why a look at the mirror ends it, if it does. */
static const char *why_not(const struct coord_mirror *mirror)
{
    if (!coord_mirror_fits(mirror)) return "the job has another shape now";
    if (!may_mirror(mirror->all->job)) return "the job's state is being moved";
    return "it cannot be known whether it has all that the owner has";
}

static void tick_mirror(struct coord_mirror *mirror)
{
    const enum mirror_stage stage = mirror->state.stage;
    const bool waits = stage == CAIRN_MIRROR_NONE || stage == CAIRN_MIRROR_TAKING;
    if (waits && coord_now_ms(mirror->all->job->cluster) < mirror->again_ms) return;
    if (coord_mirror_fits(mirror) && mirror_takes_part(&mirror->state) &&
        coord_mirror_is_late(mirror)) {
        coord_mirror_end(mirror, "it did not keep up with the owner");
        return;
    }
    if (stage == CAIRN_MIRROR_READY && mirror->entry != NULL && may_mirror(mirror->all->job))
        coord_mirror_join_at_rest(mirror);
    act(mirror, CAIRN_MIRROR_ON_TICK, why_not(mirror));
}

void coord_mirrors_end(struct coord_job *job, const char *why)
{
    CAIRN_EACH_MIRROR (job, all, m) act(m, CAIRN_MIRROR_ON_END, why);
}

void coord_mirrors_part_stopped(struct coord_job *job, const struct coord_shard_entry *entry,
                                const char *why)
{
    struct sentence text;
    sentence_set(&text,
                 "%s has stopped its part, and mirrors nothing until it is started again: %s",
                 entry->name, sentence_brief(why, 600).text);
    CAIRN_EACH_MIRROR (job, all, m) {
        if (strcmp(m->name, entry->name) != 0 || coord_job_has_shard(job, entry)) continue;
        coord_mirror_end(m, "%s", text.text);
        m->why = text; // also if it had ended with the connection
    }
}

void coord_mirrors_tick(struct coord_job *job)
{
    CAIRN_EACH_MIRROR (job, all, m) tick_mirror(m);
    const bool is_asked = safety_mirrors(job->spec.policy.durability);
    if (!is_asked) coord_mirrors_end(job, "the job asks for a durability without standbys");
    if (!is_asked || !may_mirror(job)) return;
    CAIRN_EACH_SHARD (job, i) begin_mirrors(job, i);
}

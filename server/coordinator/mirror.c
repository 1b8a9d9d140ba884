#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"
#include "server/core/standing.h"

/* After a failure a mirror is made anew, later each time: until it is given up, rounds wait for it. */
#define AGAIN_MS  1000
#define TWICE_MAX 9
#define SAY_MS    (60 * 60 * 1000)

enum stage {
    NONE,    /* there is no mirror, for the reason `why` */
    MAKING,  /* the standby makes its part */
    JOINING, /* the owner and the standby are told of each other */
    READY,   /* the standby takes part from the next round on */
    FILLING,
    STORING, /* it is filled, and the store is told that it is in step */
    IN_STEP,
    TAKING, /* the store is told that it is the owner */
    ENDING  /* the store is told that it is not in step */
};

/* A report of the owner that waits for the standby's. */
struct waiting {
    uint8_t *bytes; /* owned: the packed message; NULL: none waits */
    size_t byte_count;
    struct mirror_report report;
    uint64_t since_ms; /* coord_now_ms */
};

enum { REDUCED, PUBLISHED, REPORTS };

static const uint16_t report_types[REPORTS] = { CAIRN_MSG_REDUCED, CAIRN_MSG_PUBLISHED };

/* The mirror of a shard's part of a job. */
struct coord_mirror {
    struct coord_mirror *next; /* of the job */
    struct coord_job *job;
    uint32_t shard;  /* the owner's index */
    uint64_t serial; /* of the mirror as it is now: tells late answers apart */
    enum stage stage;
    uint64_t generation,
        layout; /* of the job when the standby's part was made; layout: its version */
    char name[CAIRN_NAME_MAX + 1];       /* of the standby; "": there was none yet */
    uint64_t incarnation;                /* of its process */
    struct coord_shard_entry *entry;     /* borrowed; NULL: the process is away */
    bool is_stored;                      /* the store has the row, or may have it */
    uint64_t member, token;              /* as which it asks the owner */
    struct waiting waiting[REPORTS];     /* the owner's */
    struct mirror_report heard[REPORTS]; /* the last of the standby's */
    uint64_t again_ms;                   /* coord_now_ms: no mirror is made before */
    unsigned failures;                   /* since it was in step */
    uint64_t said_ms; /* coord_now_ms + 1: when the log said that there is none */
    struct sentence why;
};

static void end_mirror(struct coord_mirror *mirror, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static const char *owner_name(const struct coord_mirror *mirror)
{
    const struct coord_job *job = mirror->job;
    const bool is_there = mirror->shard < job->shard_count &&
                          job->shards[mirror->shard].entry != NULL;
    return is_there ? job->shards[mirror->shard].entry->name : "that left the job";
}

/* True if the standby's part has the shape that the job has now. A part of another layout is never used. */
static bool fits(const struct coord_mirror *mirror)
{
    const struct coord_job *job = mirror->job;
    return mirror->generation == job->generation && mirror->layout == job->layout->version &&
           mirror->shard < job->layout->shard_count && job->shards[mirror->shard].entry != NULL;
}

static bool takes_part(const struct coord_mirror *mirror)
{
    return mirror->stage == FILLING || mirror->stage == STORING || mirror->stage == IN_STEP;
}

static struct coord_mirror *find_mirror(const struct coord_job *job, uint32_t shard)
{
    struct coord_mirror *mirror = job->loss.mirrors;
    while (mirror != NULL && mirror->shard != shard) mirror = mirror->next;
    return mirror;
}

static struct coord_mirror *mirror_at(const struct coord_job *job,
                                      const struct coord_shard_entry *entry)
{
    struct coord_mirror *mirror = job->loss.mirrors;
    while (mirror != NULL && mirror->entry != entry) mirror = mirror->next;
    return mirror;
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

static struct mirror_view view_of(const struct coord_mirror *mirror)
{
    const struct coord_job *job = mirror->job;
    const struct coord_job_shard *owner = &job->shards[mirror->shard];
    const struct coord *cluster = job->cluster;
    const uint64_t now_ms = coord_now_ms(cluster);
    const uint64_t patience_ms = (uint64_t)cluster->options->standby_after_ms,
                   lease_ms = (uint64_t)cluster->options->lease_timeout_ms;
    // A coordinator that has just started gives the owner time to come back to it.
    const bool is_early = !takes_part(mirror) && patience_ms < lease_ms;
    // Whatever waits for a standby that does not fit waits for the store to forget the standby.
    if (!fits(mirror)) return (struct mirror_view) { .is_stored = mirror->is_stored };
    return (struct mirror_view) {
        .is_stored = mirror->is_stored,
        .takes_part = takes_part(mirror),
        .has_standby = mirror->entry != NULL && coord_shard_obeys(mirror->entry) &&
                       (takes_part(mirror) || has_part(mirror->entry, job)),
        .has_owner = owner->up,
        .owner_is_empty = owner->missed_ms != 0,
        .away_ms = owner->entry->session == NULL ? now_ms - owner->entry->gone_ms : 0,
        .patience_ms = is_early ? lease_ms : patience_ms,
    };
}

bool coord_shard_is_standby(const struct coord *cluster, const struct coord_shard_entry *entry)
{
    if (entry->told.standby_of[0] == '\0') return false;
    for (const struct coord_job *job = cluster->jobs; job != NULL; job = job->next)
        if (coord_job_has_shard(job, entry)) return false;
    return true;
}

bool coord_mirrors_is_taking(const struct coord_job *job, uint32_t shard)
{
    const struct coord_mirror *mirror = find_mirror(job, shard);
    return mirror != NULL && mirror->stage == TAKING;
}

bool coord_mirrors_has(const struct coord_job *job, const struct coord_shard_entry *entry)
{
    const struct coord_mirror *mirror = mirror_at(job, entry);
    return mirror != NULL && mirror->is_stored && mirror->incarnation == entry->incarnation;
}

/* True if the job has a shape that a standby can have, and keeps it for now. */
static bool may_mirror(const struct coord_job *job)
{
    return job->state == CAIRN_CLUSTER_JOB_RUNNING && job->initialized && job->core != NULL &&
           !job->reshard.running && job->layouts.next == NULL && !job->layouts.storing &&
           coord_stage(job, CAIRN_OPERATION_PARK) == CAIRN_STAGE_NONE;
}

/* ---- reports that wait ---- */

static void forget_waiting(struct waiting *waiting)
{
    free(waiting->bytes);
    *waiting = (struct waiting) { .bytes = NULL };
}

static void forget_reports(struct coord_mirror *mirror)
{
    for (int kind = 0; kind < REPORTS; kind++) forget_waiting(&mirror->waiting[kind]);
}

/* Hands the owner's report to the core. */
static void pass(struct coord_mirror *mirror, int kind)
{
    struct waiting waiting = mirror->waiting[kind];
    mirror->waiting[kind] = (struct waiting) { .bytes = NULL };
    ProtobufCMessage *message = message_unpack(message_type(report_types[kind]), waiting.bytes,
                                               waiting.byte_count);
    struct coord_job *job = mirror->job;
    const uint32_t shard = mirror->shard;
    free(waiting.bytes);
    // without memory the report is lost, and the round ends at the step's deadline
    if (message == NULL) return;
    if (job->shards[shard].up) coord_part_message(job, shard, report_types[kind], message);
    message_free(message);
}

/* Passes on what need not wait any longer. The job may be lost by that, and the mirror with it. */
static void pass_all(struct coord_job *job, uint32_t shard)
{
    for (int kind = 0; kind < REPORTS; kind++) {
        struct coord_mirror *mirror = find_mirror(job, shard);
        if (mirror == NULL || mirror->waiting[kind].bytes == NULL) continue;
        const struct mirror_view view = view_of(mirror);
        if (mirror_passes(&view, mirror->waiting[kind].report, mirror->heard[kind]))
            pass(mirror, kind);
    }
}

static struct mirror_report report_of(int kind, const ProtobufCMessage *message)
{
    if (kind == REDUCED) {
        const Cairn__Reduced *reduced = (const Cairn__Reduced *)message;
        return (struct mirror_report) { reduced->epoch, reduced->round };
    }
    const Cairn__Published *published = (const Cairn__Published *)message;
    return (struct mirror_report) { published->epoch, published->round };
}

static int kind_of(uint16_t type)
{
    int kind = 0;
    while (kind < REPORTS && report_types[kind] != type) kind++;
    return kind;
}

/* Keeps the owner's report until the standby has reported the same. */
static void hold(struct coord_mirror *mirror, int kind, const struct wire_frame *frame,
                 struct mirror_report report)
{
    struct waiting *waiting = &mirror->waiting[kind];
    forget_waiting(waiting);
    waiting->bytes = malloc(frame->payload_bytes + 1);
    if (waiting->bytes == NULL) return; // the round ends at the step's deadline
    memcpy(waiting->bytes, frame->payload, frame->payload_bytes);
    waiting->byte_count = frame->payload_bytes;
    waiting->report = report;
    waiting->since_ms = coord_now_ms(mirror->job->cluster);
}

static void tell_sums(const struct coord_mirror *mirror, struct mirror_report report)
{
    Cairn__MirrorSums message = CAIRN__MIRROR_SUMS__INIT;
    message.job = mirror->job->id;
    message.epoch = report.epoch;
    message.round = report.round;
    coord_session_send(mirror->entry->session, CAIRN_MSG_MIRROR_SUMS, 0, &message.base);
}

static bool same_bytes(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

/* True if both have the same sum of squares, and as many elements that are not finite. The weights of the
 * members are the owner's alone. */
static bool same_sums(const Cairn__Reduced *a, const Cairn__Reduced *b)
{
    if (a->n_values != b->n_values) return false;
    for (size_t i = 0; i < a->n_values; i++) {
        if (a->values[i]->key != b->values[i]->key) return false;
        if (a->values[i]->key < 3 && !same_bytes(&a->values[i]->value, &b->values[i]->value))
            return false;
    }
    return true;
}

/* Compares the standby's sums with those of the owner that wait for it. */
static bool agrees(const struct coord_mirror *mirror, struct mirror_report report,
                   const ProtobufCMessage *message)
{
    const struct waiting *waiting = &mirror->waiting[REDUCED];
    if (waiting->bytes == NULL || waiting->report.epoch != report.epoch ||
        waiting->report.round != report.round)
        return true;
    Cairn__Reduced *owners = (Cairn__Reduced *)message_unpack(message_type(CAIRN_MSG_REDUCED),
                                                              waiting->bytes, waiting->byte_count);
    if (owners == NULL) return true;
    const bool same = same_sums(owners, (const Cairn__Reduced *)message);
    message_free(&owners->base);
    return same;
}

static void take_standbys(struct coord_mirror *mirror, int kind, const ProtobufCMessage *message)
{
    const struct mirror_report report = report_of(kind, message);
    if (kind == REDUCED && !agrees(mirror, report, message)) {
        log_error("job %s: shard %s and its standby %s have other sums of round %" PRIu64
                  ": one of the two has bad memory, or is broken otherwise",
                  mirror->job->spec.name, owner_name(mirror), mirror->name, report.round);
        end_mirror(mirror, "its sums of round %" PRIu64 " were not those of the owner",
                   report.round);
        return;
    }
    mirror->heard[kind] = report;
    pass_all(mirror->job, mirror->shard);
}

/* Returns the mirror of the shard's part, if it has one. */
static struct coord_mirror *mirror_of(const struct coord_job *job,
                                      const struct coord_shard_entry *entry)
{
    for (struct coord_mirror *m = job->loss.mirrors; m != NULL; m = m->next)
        if (m->shard < job->shard_count && job->shards[m->shard].entry == entry &&
            job->shards[m->shard].up)
            return m;
    return NULL;
}

bool coord_mirrors_take(struct coord_session *session, const struct wire_frame *frame,
                        const ProtobufCMessage *message)
{
    const uint64_t *number = message_job((ProtobufCMessage *)(uintptr_t)message);
    struct coord_job *job = number != NULL ? coord_job_by_id(session->cluster, *number) : NULL;
    const int kind = kind_of(frame->type);
    if (job == NULL || job->loss.mirrors == NULL || session->entry == NULL) return false;
    struct coord_mirror *mirror = mirror_at(job, session->entry);
    if (mirror != NULL && mirror->stage != TAKING && !coord_job_has_shard(job, session->entry)) {
        if (kind < REPORTS && takes_part(mirror)) take_standbys(mirror, kind, message);
        return true; // the core knows nothing of it
    }
    mirror = kind < REPORTS ? mirror_of(job, session->entry) : NULL;
    if (mirror == NULL) return false;
    const struct mirror_view view = view_of(mirror);
    const struct mirror_report report = report_of(kind, message);
    if (mirror_passes(&view, report, mirror->heard[kind])) return false;
    hold(mirror, kind, frame, report);
    if (kind == REDUCED && takes_part(mirror) && mirror->entry != NULL) tell_sums(mirror, report);
    return true;
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

static void say_degraded(struct coord_mirror *mirror)
{
    const uint64_t now_ms = coord_now_ms(mirror->job->cluster);
    if (mirror->said_ms != 0 && now_ms - mirror->said_ms < SAY_MS) return;
    mirror->said_ms = now_ms + 1;
    log_warn("job %s: the part on shard %s is not mirrored: %s; a loss of that shard's host now "
             "loses the steps since the newest snapshot",
             mirror->job->spec.name, owner_name(mirror), mirror->why.text);
}

/* The mirror is gone, and the store does not say otherwise. */
static void is_gone(struct coord_mirror *mirror)
{
    mirror->stage = NONE;
    mirror->is_stored = false;
    const unsigned twice = mirror->failures < TWICE_MAX ? mirror->failures : TWICE_MAX;
    mirror->again_ms = coord_now_ms(mirror->job->cluster) + ((uint64_t)AGAIN_MS << twice);
    mirror->failures++;
    say_degraded(mirror);
    pass_all(mirror->job, mirror->shard);
}

static void on_row_dropped(const struct coord_saved *saved)
{
    struct coord_mirror *mirror = find_serial(saved->cluster, saved->number);
    if (mirror == NULL || mirror->stage != ENDING) return;
    if (saved->status == CAIRN_OK) {
        is_gone(mirror);
        return;
    }
    log_error("job %s waits: the store cannot be told that standby %s is not in step: %s",
              mirror->job->spec.name, mirror->name, saved->why);
    mirror->stage = NONE; // a later tick tries again, because the row is there
    mirror->again_ms = coord_now_ms(saved->cluster) + AGAIN_MS;
}

/* Tells the owner and the standby. */
static void part_both(const struct coord_mirror *mirror)
{
    const struct coord_job *job = mirror->job;
    Cairn__MemberLeave leave = CAIRN__MEMBER_LEAVE__INIT;
    leave.job = job->id;
    leave.member = mirror->member;
    if (mirror->stage >= JOINING && mirror->shard < job->shard_count &&
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
    mirror->stage = ENDING;
    randombytes_buf(&mirror->serial, sizeof mirror->serial);
    if (save_row(mirror, CAIRN_STORE_MIRROR_DROP, on_row_dropped, &why) != CAIRN_OK)
        mirror->stage = NONE; // the next tick tries again
}

/* True if the standby alone has the part now. */
static bool is_last(const struct coord_mirror *mirror)
{
    return mirror->is_stored && fits(mirror) && !mirror->job->shards[mirror->shard].up;
}

/* Ends the mirror, unless the standby alone has the part. If the store says that it is in step, the owner's
 * reports wait until the store does not. */
static void end_mirror(struct coord_mirror *mirror, const char *format, ...)
{
    va_list args;
    char text[CAIRN_SENTENCE_BYTES];
    if (mirror->stage == ENDING || mirror->stage == TAKING || is_last(mirror)) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (takes_part(mirror) || strcmp(mirror->why.text, text) != 0) mirror->said_ms = 0;
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
        forget_reports(mirror);
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
        end_mirror(mirror, "%s", why);
    else if (mirror->stage == JOINING)
        mirror->stage = READY;
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
    if (mirror == NULL || mirror->job != job || mirror->stage != MAKING) return;
    if (status != CAIRN_OK) {
        end_mirror(mirror, "%s", why);
        return;
    }
    mirror->stage = JOINING;
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
    mirror->heard[REDUCED] = mirror->heard[PUBLISHED] = (struct mirror_report) { 0 };
    mirror->stage = MAKING;
    struct coord_gather *gather = coord_gather_open_job(job, on_made, &mirror->serial,
                                                        sizeof mirror->serial);
    if (gather == NULL) {
        end_mirror(mirror, "the coordinator is out of memory");
        return;
    }
    coord_job_send_drop(job->cluster, entry, job->id); // an earlier mirror may have left a part
    coord_job_ask_create(job, &load, mirror->shard, entry, job->planned.layout, gather);
    coord_gather_start(gather);
}

/* Finds a standby of the owner that has nothing of the job. */
static struct coord_shard_entry *find_standby(const struct coord_job *job,
                                              const struct coord_shard_entry *owner)
{
    for (struct coord_shard_entry *s = job->cluster->shards; s != NULL; s = s->next)
        if (strcmp(s->told.standby_of, owner->name) == 0 && coord_shard_stays(s) &&
            !coord_shard_unfit(s) && !coord_job_has_shard(job, s) && mirror_at(job, s) == NULL)
            return s;
    return NULL;
}

static void begin_mirror(struct coord_job *job, uint32_t shard)
{
    const struct coord_job_shard *owner = &job->shards[shard];
    struct coord_mirror *mirror = find_mirror(job, shard);
    if (!owner->up || !coord_job_in_force(job, shard)) return;
    if (mirror != NULL && (mirror->stage != NONE || mirror->is_stored ||
                           coord_now_ms(job->cluster) < mirror->again_ms))
        return;
    struct coord_shard_entry *entry = find_standby(job, owner->entry);
    if (entry == NULL) {
        if (mirror != NULL) say_degraded(mirror);
        return;
    }
    if (mirror == NULL) mirror = add_mirror(job, shard);
    if (mirror != NULL) make_mirror(mirror, entry);
}

/* ---- it takes part ---- */

void coord_mirrors_send(const struct coord_job *job, uint16_t type, const ProtobufCMessage *message)
{
    for (const struct coord_mirror *m = job->loss.mirrors; m != NULL; m = m->next)
        if (takes_part(m) && m->entry != NULL)
            coord_session_send(m->entry->session, type, 0, message);
}

/* Brings the standby's machine to where the owner's is: no round is open, and the last one is resolved. */
static void join_rounds(struct coord_mirror *mirror, const struct round_action *action)
{
    struct coord_job *job = mirror->job;
    const struct decision *last = round_last(job->core);
    Cairn__Fence fence = CAIRN__FENCE__INIT;
    Cairn__Resolve resolve = CAIRN__RESOLVE__INIT;
    Cairn__Decision decision;
    if (version_compare(last->version_after, action->version) != 0) return; // at a later round
    coord_decision_to_message(last, &decision);
    fence.job = resolve.job = job->id;
    fence.epoch = resolve.epoch = action->epoch;
    resolve.round = action->round - 1;
    resolve.decision = &decision;
    coord_session_send(mirror->entry->session, CAIRN_MSG_FENCE, 0, &fence.base);
    coord_session_send(mirror->entry->session, CAIRN_MSG_RESOLVE, 0, &resolve.base);
    mirror->stage = FILLING;
}

void coord_mirrors_fence(struct coord_job *job, const Cairn__Fence *fence)
{
    // reports of an epoch before count no more
    for (struct coord_mirror *m = job->loss.mirrors; m != NULL; m = m->next) forget_reports(m);
    coord_mirrors_send(job, CAIRN_MSG_FENCE, &fence->base);
}

void coord_mirrors_open(struct coord_job *job, const struct round_action *action,
                        const Cairn__RoundOpen *owners)
{
    Cairn__RoundOpen open = CAIRN__ROUND_OPEN__INIT;
    struct coord_mirror *next;
    open.job = owners->job;
    open.epoch = owners->epoch;
    open.round = owners->round;
    open.generation = owners->generation;
    open.step = owners->step;
    open.frozen = owners->frozen;
    open.n_frozen = owners->n_frozen;
    open.frozen_tensors = owners->frozen_tensors;
    open.n_frozen_tensors = owners->n_frozen_tensors;
    open.n_members = 1;
    for (struct coord_mirror *m = job->loss.mirrors; m != NULL; m = next) {
        next = m->next;
        if (m->stage == READY && fits(m)) join_rounds(m, action);
        if (!takes_part(m) || m->entry == NULL) continue;
        if (action->write) {
            end_mirror(m, "a member writes into the job's state");
            continue;
        }
        open.members = &m->member;
        coord_session_send(m->entry->session, CAIRN_MSG_ROUND_OPEN, 0, &open.base);
    }
}

static void on_row_saved(const struct coord_saved *saved)
{
    struct coord_mirror *mirror = find_serial(saved->cluster, saved->number);
    if (mirror == NULL || mirror->stage != STORING) return;
    if (saved->status != CAIRN_OK) {
        end_mirror(mirror, "the store cannot be told that it is in step: %s", saved->why);
        return;
    }
    mirror->stage = IN_STEP;
    mirror->failures = 0;
    mirror->said_ms = 0;
    log_info("job %s: shard %s is mirrored by %s", mirror->job->spec.name, owner_name(mirror),
             mirror->name);
    coord_event_note(saved->cluster, CAIRN_EVENT_MIRRORED, mirror->job->spec.name, NULL,
                     "shard %s, by %s", owner_name(mirror), mirror->name);
}

static void on_filled(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__MirrorFilled *message = any;
    struct coord_job *job = coord_job_by_id(session->cluster, message->job);
    struct sentence why;
    (void)request;
    if (job == NULL || session->entry == NULL) return;
    struct coord_mirror *mirror = mirror_at(job, session->entry);
    if (mirror == NULL || mirror->stage != FILLING || mirror->member != message->member) return;
    if (!fits(mirror)) {
        end_mirror(mirror, "the job has another layout now");
        return;
    }
    mirror->is_stored = true; // or will be
    mirror->stage = STORING;
    if (save_row(mirror, CAIRN_STORE_MIRROR, on_row_saved, &why) != CAIRN_OK)
        end_mirror(mirror, "%s", why.text);
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
    forget_reports(mirror);
    free(mirror);
}

static void on_taken(const struct coord_saved *saved)
{
    struct coord_mirror *mirror = find_serial(saved->cluster, saved->number);
    struct sentence why;
    if (mirror == NULL || mirror->stage != TAKING) return;
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
    forget_reports(mirror);
    s->entry = mirror->entry;
    s->incarnation = mirror->incarnation;
    s->missed_ms = s->away_ms = 0;
    mirror->entry = NULL; // it is an owner, whose messages are handled as any other's
    mirror->stage = TAKING;
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
            if (m->is_stored && m->stage != ENDING && m->stage != TAKING && m->entry == NULL &&
                fits(m) && !coord_job_has_shard(job, entry) && strcmp(m->name, entry->name) == 0 &&
                m->incarnation == entry->incarnation)
                m->entry = entry;
}

void coord_mirrors_standby_down(struct coord *cluster, struct coord_shard_entry *entry)
{
    for (struct coord_job *job = cluster->jobs; job != NULL; job = job->next) {
        struct coord_mirror *mirror = mirror_at(job, entry);
        if (mirror == NULL) continue;
        mirror->entry = NULL;
        // While the owner is away, too, nobody goes on, so the standby stays in step.
        if (!job->shards[mirror->shard].up && mirror->is_stored)
            mirror->stage = NONE;
        else
            end_mirror(mirror, "the connection to it was lost");
    }
}

static void on_told(struct coord_job *job, const void *about, cairn_status status, const char *why)
{
    (void)about;
    if (status != CAIRN_OK) log_debug("job %s: a shard with a place: %s", job->spec.name, why);
}

void coord_mirrors_owner_up(struct coord_job *job, uint32_t shard)
{
    struct coord_mirror *mirror = find_mirror(job, shard);
    struct coord_shard_entry *owner = job->shards[shard].entry;
    // A standby that has a place is told again: whoever gave it the place may have died before that.
    if (owner->told.standby_of[0] != '\0')
        end_at_standby(coord_gather_open_job(job, on_told, NULL, 0), job, owner);
    if (mirror == NULL || mirror->stage == TAKING) return;
    if (takes_part(mirror) && mirror->entry != NULL && fits(mirror))
        pair(mirror);
    else if (mirror->stage != NONE || mirror->is_stored)
        end_mirror(mirror, "the owner is back, and the standby may have missed something");
}

void coord_mirrors_owner_down(struct coord_job *job, uint32_t shard)
{
    struct coord_mirror *mirror = find_mirror(job, shard);
    if (mirror == NULL) return;
    forget_reports(mirror);
    if (mirror->stage != NONE && !mirror->is_stored)
        end_mirror(mirror, "the owner was lost before the standby had all that it has");
}

/* ---- time ---- */

/* True if the standby has not reported for too long what the owner has. */
static bool is_late(const struct coord_mirror *mirror)
{
    const uint64_t now_ms = coord_now_ms(mirror->job->cluster);
    const uint64_t most_ms = (uint64_t)mirror->job->cluster->options->lease_timeout_ms;
    for (int kind = 0; kind < REPORTS; kind++)
        if (mirror->waiting[kind].bytes != NULL &&
            now_ms - mirror->waiting[kind].since_ms > most_ms)
            return true;
    return false;
}

static void tick_mirror(struct coord_mirror *mirror)
{
    struct coord_job *job = mirror->job;
    const bool is_under_way = mirror->stage == MAKING || mirror->stage == JOINING ||
                              mirror->stage == READY;
    if (mirror->stage == TAKING && coord_now_ms(job->cluster) >= mirror->again_ms)
        store_place(mirror);
    if (mirror->stage == ENDING || mirror->stage == TAKING) return;
    if (mirror->stage == NONE && !mirror->is_stored) return;
    if (mirror->stage == NONE && coord_now_ms(job->cluster) < mirror->again_ms) return;
    if (!fits(mirror)) {
        end_mirror(mirror, "the job has another shape now");
        return;
    }
    if (takes_part(mirror) && is_late(mirror)) {
        end_mirror(mirror, "it did not keep up with the owner");
        return;
    }
    if (is_under_way && may_mirror(job)) return;
    const struct mirror_view view = view_of(mirror);
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
        end_mirror(mirror, "it cannot be known whether it has all that the owner has");
    else if (view.has_owner && !may_mirror(job))
        end_mirror(mirror, "the job's state is being moved");
}

void coord_mirrors_end(struct coord_job *job, const char *why)
{
    for (struct coord_mirror *m = job->loss.mirrors; m != NULL; m = m->next)
        if (m->stage != NONE || m->is_stored) end_mirror(m, "%s", why);
}

void coord_mirrors_part_stopped(struct coord_job *job, const struct coord_shard_entry *entry,
                                const char *why)
{
    struct coord_mirror *mirror = mirror_at(job, entry);
    if (mirror != NULL && !coord_job_has_shard(job, entry))
        end_mirror(mirror, "it has stopped its part: %.300s", why);
}

void coord_mirrors_tick(struct coord_job *job)
{
    struct coord_mirror *next;
    for (struct coord_mirror *m = job->loss.mirrors; m != NULL; m = next) {
        next = m->next;
        tick_mirror(m);
    }
    if (!may_mirror(job)) return;
    CAIRN_EACH_SHARD (job, i) begin_mirror(job, i);
}

/* ---- shown ---- */

bool coord_mirrors_say(const struct coord_job *job, uint32_t shard, struct sentence *out,
                       bool *is_in_step_out)
{
    const struct coord_mirror *mirror = find_mirror(job, shard);
    if (mirror == NULL || mirror->stage == TAKING) return false;
    *is_in_step_out = mirror->stage == IN_STEP;
    if (mirror->stage == IN_STEP)
        sentence_set(out, "is mirrored by %s", mirror->name);
    else if (mirror->stage == NONE || mirror->stage == ENDING)
        sentence_set(out, "is not mirrored: %s", mirror->why.text);
    else
        sentence_set(out, "is not mirrored yet: %s is being filled", mirror->name);
    return true;
}

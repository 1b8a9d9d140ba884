/* Attaching to a job, repeating reports to a new coordinator, and the layouts and shards that the
 * coordinator names. */
#include "client/session.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/job.h"
#include "client/op.h"
#include "client/push.h"
#include "client/read.h"
#include "proto/geometry/layout.h"

/* ==== layouts ==== */

/* ---- where shards are ---- */

static cairn_status set_address(struct shard_link *link, const Cairn__ShardInfo *info)
{
    uint8_t *address = malloc(info->fabric_address.len + 1);
    if (address == NULL) return CAIRN_ERR_NO_MEMORY;
    if (info->fabric_address.len > 0)
        memcpy(address, info->fabric_address.data, info->fabric_address.len);
    const bool same = info->fabric_address.len == link->address_bytes && link->address != NULL &&
                      memcmp(address, link->address, link->address_bytes) == 0;
    free(link->address);
    link->address = address;
    link->address_bytes = info->fabric_address.len;
    snprintf(link->name, sizeof link->name, "%s", info->name);
    if (!same) chunk_link_restart(&link->conn);
    return CAIRN_OK;
}

/* Notes the addresses of shards. For a shard that joins, this may be the first message that names
 * the shard. */
static cairn_status set_addresses(struct job *job, Cairn__ShardInfo *const *infos,
                                  size_t info_count)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && i < info_count; i++) {
        if (infos[i]->index >= CAIRN_CLIENT_SHARDS_MAX) return CAIRN_ERR_PROTOCOL;
        status = links_add(job, infos[i]->index + 1);
        if (status == CAIRN_OK) status = set_address(job->shards.links[infos[i]->index], infos[i]);
    }
    return status;
}

static bool is_named(uint32_t shard, Cairn__ShardInfo *const *infos, size_t info_count)
{
    size_t i = 0;
    while (i < info_count && (infos[i]->index != shard || infos[i]->name[0] == '\0')) i++;
    return i < info_count;
}

/* Marks absent shards. A shard without extents is present if the message names it, as when the
 * shard joins; a shard that has left is absent. */
static void note_holes(struct served_layout *served, Cairn__ShardInfo *const *infos,
                       size_t info_count)
{
    for (uint32_t i = 0; i < served->layout->shard_count; i++)
        served->parts[i].absent = served->parts[i].map.extent_count == 0 &&
                                  !is_named(i, infos, info_count);
}

/* Returns true if the shard owns something in a layout of the job, or takes part in its rounds. */
static bool served_layouts_need(const struct job *job, uint32_t shard)
{
    const struct served_layout *served = job->served;
    if (served == NULL) return false;
    if (shard < served->layout->shard_count && !served->parts[shard].absent) return true;
    for (served = served->older; served != NULL; served = served->older)
        if (shard < served->layout->shard_count && served->parts[shard].map.extent_count > 0)
            return true;
    return false;
}

/* Closes the connections to shards that left the job and that the job no longer needs. No more requests
 * are sent to a shard that is not needed any more or is gone for good. */
static void let_go_of_holes(struct job *job)
{
    for (uint32_t i = 0; i < job->shards.count; i++) {
        struct shard_link *link = job->shards.links[i];
        if (!served_layouts_left_by(job, i)) continue;
        if (link->address_bytes > 0 && !served_layouts_need(job, i)) {
            link->address_bytes = 0;
            chunk_link_close(&link->conn);
        }
        if (link->address_bytes == 0) recut_gone(link);
    }
}

/* Called when the job is attached, or its layout has changed: connects to the shards, and continues
 * everything in progress with the new layouts. */
static void layouts_apply(struct job *job)
{
    const uint64_t now_ms = monotonic_ms();
    // The links are ticked now, since the next tick of the loop would delay the first messages to
    // new shards.
    for (uint32_t i = 0; i < job->shards.count; i++) link_tick(job->shards.links[i], now_ms);
    recut_all(job);
    let_go_of_holes(job);
}

/* Gives up on a message that cannot be applied. If only memory was lacking, the connection is
 * established again and the coordinator resends the message. Otherwise the job fails. */
static void give_up_layout(struct job *job, cairn_status status, const char *of, const char *why)
{
    if (status == CAIRN_ERR_NO_MEMORY)
        control_starve(job->session, of);
    else
        job_fail(job, status, why);
}

static cairn_status on_shards_changed(struct job *job, uint32_t request, ProtobufCMessage *message)
{
    const Cairn__ShardsChanged *changed = (const Cairn__ShardsChanged *)message;
    (void)request;
    const cairn_status status = set_addresses(job, changed->shards, changed->n_shards);
    if (status == CAIRN_OK)
        let_go_of_holes(job);
    else
        give_up_layout(job, status, "ShardsChanged", "the coordinator named a shard out of range");
    return CAIRN_OK;
}

/* ---- layouts ---- */

/* Takes over `layout` in any case; *served_out becomes the job's newest layout. */
static cairn_status add_served(struct job *job, struct layout *layout, struct cairn_version since,
                               struct served_layout **served_out)
{
    cairn_status status = links_add(job, layout->shard_count);
    if (status == CAIRN_OK) status = served_layout_open(&job->spec, layout, since, served_out);
    if (status != CAIRN_OK)
        layout_close(layout);
    else
        served_layouts_add(job, *served_out);
    return status;
}

static bool is_layout(const struct served_layout *served, const struct layout *layout)
{
    return served != NULL && memcmp(served->layout->hash, layout->hash, sizeof layout->hash) == 0;
}

/* Returns true if a restore gave shards other numbers than before. Otherwise a shard keeps its number, or its
 * standby has that number from then on. A restore makes a new generation, as a write does. */
static bool are_renumbered(const struct job *job, Cairn__ShardInfo *const *infos, size_t info_count)
{
    const uint64_t known = WITH_LOCK(&job->session->lock, job->known.newest.generation);
    if (job->attachment.reply->generation == known) return false;
    for (size_t i = 0; i < info_count; i++) {
        if (infos[i]->index >= job->shards.count || infos[i]->name[0] == '\0') continue;
        const struct shard_link *link = job->shards.links[infos[i]->index];
        if (link->name[0] != '\0' && strcmp(link->name, infos[i]->name) != 0) return true;
    }
    return false;
}

/* Returns the layout with that number; NULL: the job has no such layout. */
static struct served_layout *served_layout_of_number(const struct job *job, uint64_t layout)
{
    struct served_layout *served = job->served;
    while (served != NULL && served->layout->version != layout) served = served->older;
    return served;
}

/* Returns the known layout with that number, or else the newest layout if it assigns the same
 * owners. NULL: neither layout matches. */
static struct served_layout *find_layout(struct job *job, const struct layout *layout)
{
    struct served_layout *served = served_layout_of_number(job, layout->version);
    if (is_layout(served, layout)) return served;
    return is_layout(job->served, layout) ? job->served : NULL;
}

/* Adds the first layout, as the reading thread built it. On success, takes the layout over. */
static cairn_status add_first(struct job *job, struct reading *reading,
                              struct served_layout **served_out)
{
    CAIRN_TRY(links_add(job, reading->served->layout->shard_count));
    *served_out = reading->served;
    reading->served = NULL;
    served_layouts_add(job, *served_out);
    return CAIRN_OK;
}

/* Refuses a coordinator that uses an earlier layout than this worker knows: no other member would know
 * the data that this worker has in the later layout. */
static cairn_status judge_known(const struct job *job, const struct served_layout *known,
                                struct sentence *why)
{
    const uint64_t newest = job->served->layout->version, in_force = job->attachment.reply->layout;
    if (known == job->served || in_force == 0 || !layout_goes_back(newest, in_force))
        return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_ROLLED_BACK,
                     "the coordinator uses layout %" PRIu64 " of job %s, but layout %" PRIu64
                     " was in force: its store is an older copy, or was rebuilt from what the "
                     "shards hold (`cairn cluster adopt`); close the job and open it again",
                     in_force, job->name, newest);
}

/* Applies the layout of a later attachment: a known layout, or a newer one. Fails if a restore
 * happened in between. */
static cairn_status apply_attached(struct job *job, struct layout *layout,
                                   struct served_layout **served_out, struct sentence *why)
{
    const Cairn__Attached *a = job->attachment.reply;
    const struct cairn_version now = { a->generation, a->step };
    struct served_layout *known = find_layout(job, layout);
    if (known != NULL) {
        layout_close(layout);
        const cairn_status status = judge_known(job, known, why);
        if (status != CAIRN_OK) return status;
        const struct cairn_version since = since_attached(known->since, now);
        if (version_compare(since, known->since) != 0)
            served_layouts_serve_since(job, known, since);
        *served_out = known;
        return CAIRN_OK;
    }
    if (layout->version > job->served->layout->version &&
        !are_renumbered(job, a->shards, a->n_shards)) {
        const cairn_status status = add_served(job, layout, now, served_out);
        if (status == CAIRN_OK) (*served_out)->found = true;
        return status;
    }
    layout_close(layout);
    return fail_with(why, CAIRN_ERR_ROLLED_BACK,
                     "job %s was restored onto other shards; close it and open it again",
                     job->name);
}

/* Applies the layout of the newest version, as `reading` read it, and the shards in the job's
 * attachment. CAIRN_ERR_ROLLED_BACK: the job was restored onto other shards. `why` is set only if
 * the caller's text, "not a layout", does not describe the failure. */
static cairn_status layouts_attached(struct job *job, struct reading *reading, struct sentence *why)
{
    const Cairn__Attached *a = job->attachment.reply;
    struct served_layout *served;
    cairn_status status = reading->layout_status;
    if (status == CAIRN_OK && reading->served != NULL) {
        status = add_first(job, reading, &served);
    } else if (status == CAIRN_OK) {
        struct layout *layout = reading->layout;
        reading->layout = NULL;
        status = apply_attached(job, layout, &served, why);
    }
    if (status == CAIRN_OK) status = set_addresses(job, a->shards, a->n_shards);
    if (status != CAIRN_OK) return status;
    note_holes(served, a->shards, a->n_shards);
    return CAIRN_OK;
}

/* ---- a change while the job goes on ---- */

static cairn_status judge_changed(struct job *job, const struct layout *layout,
                                  struct sentence *why)
{
    const Cairn__LayoutChanged *message = job->attachment.changed;
    const struct served_layout *known = served_layout_of_number(job, layout->version);
    const struct served_layout *newest = job->served;
    if (layout->version != message->layout)
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "the coordinator announced layout %" PRIu64 " and sent layout %" PRIu64,
                         message->layout, layout->version);
    if (known != NULL && !is_layout(known, layout))
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "the coordinator sent another layout %" PRIu64 " than before",
                         layout->version);
    if (known == NULL && layout->version < newest->layout->version)
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "the coordinator sent layout %" PRIu64 " after layout %" PRIu64,
                         layout->version, newest->layout->version);
    return CAIRN_OK;
}

/* Takes over `layout` in any case. */
static cairn_status apply_changed(struct job *job, struct layout *layout, struct sentence *why)
{
    const Cairn__LayoutChanged *message = job->attachment.changed;
    const struct cairn_version since = { message->since_generation, message->since_step };
    struct served_layout *served = served_layout_of_number(job, layout->version);
    cairn_status status = judge_changed(job, layout, why);
    if (status != CAIRN_OK || served != NULL)
        layout_close(layout);
    else
        status = add_served(job, layout, since, &served);
    if (status == CAIRN_OK) status = set_addresses(job, message->shards, message->n_shards);
    if (status != CAIRN_OK) return status;
    note_holes(served, message->shards, message->n_shards);
    served_layouts_serve_since(job, served, since);
    return CAIRN_OK;
}

/* Drops the grants of rounds that are over: their relays may not act for the owners any more. */
static void forget_grants(struct job *job)
{
    for (uint32_t i = 0; i < job->shards.count; i++) {
        struct shard_link *owner = job->shards.links[i];
        if (owner->grant.round > job->pushing.pusher.round) continue;
        owner->grant = (struct chunk_header) { 0 };
        owner->declined = false;
    }
}

static void on_layout_read(struct job *job)
{
    struct sentence why;
    struct layout *layout;
    const struct paged *pages = &job->attachment.changed_part;
    sentence_set(
        &why, "the coordinator sent a layout %" PRIu64 " of %zu bytes that is not one of this job",
        job->attachment.changed->layout, (size_t)pages->have_bytes);
    cairn_status status = layout_of_pages(&job->spec, pages, &layout);
    if (status == CAIRN_OK) status = apply_changed(job, layout, &why);
    attachment_drop_changed(&job->attachment);
    if (status != CAIRN_OK) {
        give_up_layout(job, status, "LayoutChanged", why.text);
        return;
    }
    forget_grants(job);
    layouts_apply(job);
    session_kick(job->session); // a stalled command may be able to proceed
}

/* Keeps the message until its pages have arrived. If the message does not fit the job, the job
 * fails. */
static cairn_status on_layout_changed(struct job *job, uint32_t request, ProtobufCMessage *message)
{
    Cairn__LayoutChanged *changed = (Cairn__LayoutChanged *)message;
    (void)request;
    attachment_drop_changed(&job->attachment);
    job->attachment.changed = changed;
    if (paged_init(&job->attachment.changed_part, CAIRN_PAGE_LAYOUT, changed->layout_bytes) !=
            CAIRN_OK ||
        changed->layout_bytes == 0)
        job_fail(job, CAIRN_ERR_PROTOCOL,
                 "the coordinator announced a layout that is empty, or too large");
    return CAIRN_OK;
}

/* Handles a page of the preceding LayoutChanged, which has no request. */
static void on_layout_page(struct job *job, const Cairn__Page *page)
{
    const cairn_status status = paged_add(&job->attachment.changed_part, 1, page);
    if (status != CAIRN_OK)
        give_up_layout(job, status, "LayoutChanged",
                       "the coordinator sent the pages of a layout out of order");
    else if (paged_whole(&job->attachment.changed_part, 1))
        on_layout_read(job);
}

void layouts_trim(struct job *job)
{
    if (!served_layouts_trim(job)) return;
    recut_all(job);
    let_go_of_holes(job);
}

/* ==== again ==== */

/* After an attach, repeats to the coordinator what this client reported to the previous coordinator: a
 * new coordinator does not know these reports. */

/* Repeats the declaration of tiles. The declaration is sent before anything else. */
static void again_tiles(struct job *job)
{
    const struct declared *declared = job->tiles.declared; // changed by this thread only
    if (declared == NULL || declared->world == 0) return;
    Cairn__TilesDeclare message = client_tiles_message(declared);
    message.job = job->attachment.job;
    job->tiles.request = ++job->session->control.last_request;
    control_send(job->session, CAIRN_MSG_TILES_DECLARE, job->tiles.request, &message.base);
    control_send_pages(job->session, job->tiles.request, CAIRN_PAGE_TILES, declared->packed);
}

/* Returns true if the call that now waits sent this request. Under the lock. */
static bool is_awaited(const struct job *job, uint32_t request)
{
    const struct ask *ask = LIST_FIRST(&job->session->asks);
    while (ask != NULL && (ask->job != job || ask->call->type != CAIRN_MSG_TILES_DECLARE))
        ask = LIST_NEXT(ask, next);
    return ask != NULL && ask->request == request;
}

/* Handles the reply to a repeated declaration, or to the declaration of a cairn_tiles call that waits. */
static cairn_status on_tiles_set(struct job *job, uint32_t request, ProtobufCMessage *message)
{
    (void)message; // the message only says that the declaration is in effect
    struct declared *former = NULL;
    if (request == job->tiles.request) {
        job->tiles.request = 0;
        return CAIRN_OK;
    }
    pthread_mutex_lock(&job->session->lock);
    if (is_awaited(job, request)) {
        former = job->tiles.declared;
        job->tiles.declared = job->tiles.declaring;
        job->tiles.declaring_holds = true;
    }
    pthread_mutex_unlock(&job->session->lock);
    client_tiles_free(former);
    return CAIRN_OK;
}

/* Repeats this worker's pause, if it is paused. */
static void again_pause(struct job *job)
{
    struct session *s = job->session;
    const uint64_t now_ms = monotonic_ms();
    Cairn__Pause message = CAIRN__PAUSE__INIT;
    char what[sizeof job->pause.what];
    pthread_mutex_lock(&s->lock);
    memcpy(what, job->pause.what, sizeof what);
    const uint64_t left_ms = job->pause.ends_ms > now_ms ? job->pause.ends_ms - now_ms : 0;
    pthread_mutex_unlock(&s->lock);
    if (left_ms == 0) return;
    message.job = job->attachment.job;
    message.at_most_ms = (uint32_t)left_ms;
    message.what = what;
    job->pause.request = ++s->control.last_request;
    control_send(s, CAIRN_MSG_PAUSE, job->pause.request, &message.base);
}

/* Called when the job was attached in the middle of a round, which by now is decided or void.
 * Perhaps no shard is left to report the outcome: a shard that never granted the round answers
 * nothing. So this asks the coordinator, which always knows the outcome. */
static void again_ask_round(struct job *job)
{
    Cairn__RoundCommit ask = CAIRN__ROUND_COMMIT__INIT;
    if (job->pushing.pusher.push == NULL) return;
    ask.job = job->attachment.job;
    ask.round = job->pushing.pusher.round;
    control_send(job->session, CAIRN_MSG_ROUND_COMMIT, ++job->session->control.last_request,
                 &ask.base);
}

void attach_give_up_round(struct job *job)
{
    Cairn__RoundCommit message = CAIRN__ROUND_COMMIT__INIT;
    message.job = job->attachment.job;
    message.round = job->pushing.gives_up;
    message.abandon = true;
    job->pushing.gives_up = 0;
    control_send(job->session, CAIRN_MSG_ROUND_COMMIT, ++job->session->control.last_request,
                 &message.base);
}

/* ==== attach ==== */

/* The delay after the coordinator answered that it cannot attach the job now. The delay is needed
 * because each attempt sends the spec again, which may be large. */
#define RETRY_MIN_MS 100
#define RETRY_MAX_MS 1000

void attach_begin(struct job *job)
{
    struct session *s = job->session;
    Cairn__JobOpen open = CAIRN__JOB_OPEN__INIT;
    open.name = job->name;
    open.role = job->member.role == CAIRN_READER ? CAIRN_ROLE_WIRE_READER : CAIRN_ROLE_WIRE_WORKER;
    open.rank = job->member.rank;
    open.session = job->member.id;
    open.token = job->member.token;
    open.spec_bytes = job->attachment.spec_packed != NULL ? job->attachment.spec_packed->size : 0;
    open.start_wait_ms = job->attachment.start_wait_ms;
    open.attached = job->attachment.attached_once ? job->attachment.job
                                                  : 0; // an attached job is not created again
    open.must_exist = (job->attachment.open_flags & CAIRN_OPEN_MUST_EXIST) != 0;
    open.resume_latest = (job->attachment.open_flags & CAIRN_OPEN_RESUME) != 0;
    open.must_not_exist = (job->attachment.open_flags & CAIRN_OPEN_MUST_NOT_EXIST) != 0;
    open.takeover = (job->attachment.open_flags & CAIRN_OPEN_TAKEOVER) != 0 &&
                    // a member that was attached before has taken the place over, or has lost it
                    !job->attachment.attached_once;
    open.run = s->launch.run;
    open.restarts = s->launch.restarts;
    open.seen_epoch = job->attachment.seen_epoch;
    open.seen_store = job->attachment.seen_store;
    job->attachment.state = JOB_ATTACHING;
    attachment_put_off(job, "");
    open.world = WITH_LOCK(&s->lock, job->attachment.launch);
    job->attachment.request = ++s->control.last_request;
    control_send(s, CAIRN_MSG_JOB_OPEN, job->attachment.request, &open.base);
    if (job->attachment.spec_packed != NULL)
        control_send_pages(s, job->attachment.request, CAIRN_PAGE_SPEC,
                           job->attachment.spec_packed);
}

/* Returns true if the job existed, and was lost while its shards were being told of this worker, so that the
 * caller repeats the request. A job that is restored by itself is waited for then; one that the request
 * restores is tried once more. */
static bool was_lost_under_way(struct job *job, cairn_status status)
{
    if (job->attachment.attached_once) return false;
    if (status == CAIRN_ERR_ROLLED_BACK) return true;
    const bool resumes = (job->attachment.open_flags & CAIRN_OPEN_RESUME) != 0;
    const bool again = resumes && status == CAIRN_ERR_JOB_LOST && !job->attachment.lost_under_way;
    job->attachment.lost_under_way |= again;
    return again;
}

static void attach_differ(struct job *job, const Cairn__Error *error)
{
    uint8_t *bytes = malloc(cairn__error__get_packed_size(error) + 1);
    if (bytes != NULL && error->n_differences > 0 && job->attachment.refused == NULL)
        job->attachment.refused = cairn__error__unpack(NULL, cairn__error__pack(error, bytes),
                                                       bytes);
    free(bytes);
}

void attach_expelled(struct job *job, cairn_status status, const char *text)
{
    job_fail(job, status, text);
    links_close(job, false);
}

static void put_off_or_fail(struct job *job, cairn_status status, const char *text)
{
    attachment_lost(job);
    if (status != CAIRN_ERR_BUSY && status != CAIRN_ERR_NOT_READY &&
        !was_lost_under_way(job, status)) {
        attach_expelled(job, status, text);
        return;
    }
    attachment_put_off(job, text);
    const uint32_t twice_ms = 2 * job->attachment.delay_ms;
    job->attachment.delay_ms = twice_ms < RETRY_MIN_MS   ? RETRY_MIN_MS
                               : twice_ms > RETRY_MAX_MS ? RETRY_MAX_MS
                                                         : twice_ms;
    job->attachment.at_ms = monotonic_ms() + job->attachment.delay_ms;
}

/* ---- what Attached brings ---- */

/* Detects a restore that happened while the coordinator was away and therefore was never reported. */
static cairn_status judge_step(const struct job *job, struct sentence *why)
{
    const uint64_t now = job->attachment.reply->step;
    const uint64_t was = WITH_LOCK(&job->session->lock, job->known.newest.step);
    if (!job->attachment.attached_once || now >= was) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_ROLLED_BACK,
                     "job %s was restored: it was at step %" PRIu64 ", and is at step %" PRIu64
                     "; close it and open it again",
                     job->name, was, now);
}

/* Takes over the spec that the reading thread read. Only the first such spec becomes the job's
 * spec. */
static cairn_status adopt_spec(struct job *job, struct reading *reading, struct sentence *why)
{
    if (reading->tells_clip_norm) job_note_clip_norm(job, reading->clip_norm);
    if (reading->spec_status != CAIRN_OK) {
        *why = reading->why;
        return reading->spec_status;
    }
    if (reading->takes_spec) {
        const struct job_spec_data was = job->spec;
        job->spec = reading->spec;
        reading->spec = was; // the job's former spec, freed with the reading
    }
    return CAIRN_OK;
}

/* If memory is lacking while a job is being opened, the open fails and may be tried again; if the job
 * is already open, it is attached again. */
static void give_up_attach(struct job *job, cairn_status status, const char *why)
{
    if (status != CAIRN_ERR_NO_MEMORY)
        job_fail(job, status, why);
    else if (job->attachment.attached_once)
        control_starve(job->session, "Attached");
    else
        job_fail(job, status, "out of memory for the job's spec and layout");
}

void attach_read(struct job *job)
{
    struct session *s = job->session;
    const Cairn__Attached *a = job->attachment.reply;
    struct reading *reading = job->attachment.reading;
    struct sentence why;
    reading_await(reading);
    sentence_set(&why, "the coordinator sent a layout that is not one of this job");
    cairn_status status = adopt_spec(job, reading, &why);
    if (status == CAIRN_OK) status = judge_step(job, &why);
    if (status == CAIRN_OK) status = layouts_attached(job, reading, &why);
    if (status != CAIRN_OK) {
        attachment_drop_pages(&job->attachment);
        give_up_attach(job, status, why.text);
        return;
    }
    job->attachment.state = JOB_ATTACHED;
    job->attachment.delay_ms = 0;
    if (job->attachment.attached_once && s->control.was_given_up) {
        // If the coordinator is the same as before, it considered the member lost and had the
        // shards cut their endpoints to this process: both ends start again. A new coordinator did
        // not do so: connections and everything in progress on them continue.
        for (uint32_t i = 0; i < job->shards.count; i++)
            chunk_link_restart(&job->shards.links[i]->conn);
        // this part was counted for the lost member
        job->reads.reported_before = job->reads.reported;
    }
    job->reads.reported = job->reads.reported_before;
    pthread_mutex_lock(&s->lock);
    job->attachment.job = a->job;
    if (!job->attachment.attached_once) {
        job->known.found = a->step > a->first_step;
        job->known.found_step = a->step;
        snprintf(job->known.made_by, sizeof job->known.made_by, "%s", a->made_by);
        sentence_set(&job->known.notice, "%s", a->notice);
    }
    job->attachment.attached_once = true;
    job->known.initialized = a->initialized;
    job->known.newest = (struct cairn_version) { a->generation, a->step };
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    attachment_drop_pages(&job->attachment);
    layouts_apply(job);
    again_tiles(job);
    again_ask_round(job);
    again_pause(job);
    session_kick(s);
}

static cairn_status on_attached(struct job *job, uint32_t request, ProtobufCMessage *message)
{
    Cairn__Attached *a = (Cairn__Attached *)message;
    (void)request;
    attachment_drop_pages(&job->attachment);
    job->attachment.reply = a;
    cairn_status status = paged_init_job(job->attachment.parts, a->spec_bytes, a->layout_bytes);
    if (a->n_shards > CAIRN_CLIENT_SHARDS_MAX) status = CAIRN_ERR_PROTOCOL;
    if (status != CAIRN_OK) job_fail(job, status, "the coordinator announced too large a job");
    return CAIRN_OK;
}

static void begin_reading(struct job *job)
{
    const cairn_status status = reading_begin(job);
    if (status != CAIRN_OK)
        give_up_attach(job, status, "");
    else if (atomic_load(&job->attachment.reading->is_over))
        attach_read(job);
}

static void on_attached_page(struct job *job, const Cairn__Page *page)
{
    if (job->attachment.reply == NULL) return;
    const cairn_status status = paged_add(job->attachment.parts, CAIRN_PARTS, page);
    if (status != CAIRN_OK)
        give_up_attach(job, status, "the coordinator sent the pages of the job out of order");
    else if (paged_whole(job->attachment.parts, CAIRN_PARTS))
        begin_reading(job);
}

/* ---- the list, and the end ---- */

static bool loans_are_back(const struct job *job)
{
    for (uint32_t i = 0; i < job->shards.count; i++)
        if (job->shards.links[i]->conn.on_loan > 0) return false;
    return true;
}

static void unlink_job(struct job *job)
{
    struct session *s = job->session;
    HOLD_LOCK(&s->lock);
    struct job **link = &s->jobs;
    while (*link != job) link = &(*link)->next;
    *link = job->next;
    job->closed = true;
    pthread_cond_broadcast(&s->changed);
}

void attach_release(struct job *job)
{
    attachment_drop_pages(&job->attachment);
    if (job->failure.status == CAIRN_OK) {
        struct sentence closed;
        sentence_set(&closed, "job %s was closed", job->name);
        fail_calls(job, CAIRN_ERR_CANCELED, closed.text);
        session_kick(job->session); // the loop thread then answers the asks
    }
    // A member that is given up while it attaches has no number for a JobLeave, so the end of the
    // connection informs the coordinator. Otherwise the coordinator would wait for a worker that
    // nobody runs, and fence the next worker of the same rank.
    if (job->attachment.state == JOB_ATTACHING && job->session->control.stream != NULL)
        stream_close(job->session->control.stream, CAIRN_OK, "job %s was given up", job->name);
    if (job->attachment.state == JOB_ATTACHED) {
        Cairn__JobLeave leave = CAIRN__JOB_LEAVE__INIT;
        leave.job = job->attachment.job;
        leave.fetched_shared = control_job_read(job);
        control_send(job->session, CAIRN_MSG_JOB_LEAVE, 0, &leave.base);
    }
    fail_parcels(job, CAIRN_ERR_CANCELED);
    links_close(job, true);
    // the fabric returns the loans soon, and the next tick tries again
    if (!loans_are_back(job)) return;
    served_layouts_release(job);
    pushes_release(job);
    links_release(job);
    unlink_job(job);
    job_unref(job);
}

/* ---- messages ---- */

cairn_status attach_error(const Cairn__Error *error, const char **text_out)
{
    const cairn_status status = status_known(error->status) && error->status != CAIRN_OK
                                    ? (cairn_status)error->status
                                    : CAIRN_ERR_PROTOCOL;
    *text_out = error->text[0] != 0 ? error->text : status_text((int)status);
    return status;
}

static bool is_attaching(const struct job *job, uint32_t request)
{
    return job->attachment.state == JOB_ATTACHING && job->attachment.request == request;
}

static struct job *job_attaching(struct session *s, uint32_t request)
{
    struct job *job = s->jobs;
    while (job != NULL && !is_attaching(job, request)) job = job->next;
    return job;
}

/* Returns the job whose pages are arriving. The pages belong to the reply to `request`, or to a
 * LayoutChanged, which has no request. */
static struct job *job_of_page(struct session *s, uint32_t request)
{
    struct job *job = job_attaching(s, request);
    if (job != NULL) return job;
    job = s->jobs;
    while (job != NULL && job->attachment.changed == NULL) job = job->next;
    return job;
}

static cairn_status on_page(struct job *job, uint32_t request, ProtobufCMessage *message)
{
    if (is_attaching(job, request))
        on_attached_page(job, (const Cairn__Page *)message);
    else
        on_layout_page(job, (const Cairn__Page *)message);
    return CAIRN_OK;
}

/* Returns the job whose attach, or whose repeated declaration or pause, is refused. */
static struct job *job_refused(struct session *s, uint32_t request)
{
    struct job *job = s->jobs;
    while (job != NULL && !is_attaching(job, request) && job->tiles.request != request &&
           job->pause.request != request)
        job = job->next;
    return request != 0 ? job : NULL;
}

static cairn_status on_error(struct job *job, uint32_t request, ProtobufCMessage *message)
{
    const Cairn__Error *error = (const Cairn__Error *)message;
    const char *text;
    const cairn_status status = attach_error(error, &text);
    if (is_attaching(job, request)) {
        attach_differ(job, error);
        put_off_or_fail(job, status, text);
        return CAIRN_OK;
    }
    if (job->tiles.request == request) job->tiles.request = 0;
    if (job->pause.request == request) job->pause.request = 0;
    job_fail(job, status, text);
    return CAIRN_OK;
}

const struct message_row attach_rows[] = {
    { .type = CAIRN_MSG_ATTACHED, .keeps = true, .find = job_attaching, .handle = on_attached },
    { .type = CAIRN_MSG_LAYOUT_CHANGED, .keeps = true, .handle = on_layout_changed },
    { .type = CAIRN_MSG_PAGE, .find = job_of_page, .handle = on_page },
    { .type = CAIRN_MSG_SHARDS_CHANGED, .handle = on_shards_changed },
    { .type = CAIRN_MSG_TILES_SET, .handle = on_tiles_set },
    { .type = CAIRN_MSG_ERROR, .find = job_refused, .handle = on_error },
    { .type = 0 },
};

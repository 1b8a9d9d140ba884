#include "client/loop/layouts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/job.h"
#include "client/loop/link.h"
#include "client/push/fail.h"
#include "client/push/recut.h"
#include "client/reading.h"
#include "proto/geometry/since.h"

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
    if (!same) cairn_chunk_link_restart(&link->conn);
    return CAIRN_OK;
}

/* Notes the addresses of shards. For a shard that joins, this may be the first message that names
 * it. */
static cairn_status set_addresses(struct job *job, Cairn__ShardInfo *const *infos,
                                  size_t info_count)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && i < info_count; i++) {
        if (infos[i]->index >= CAIRN_CLIENT_SHARDS_MAX) return CAIRN_ERR_PROTOCOL;
        status = cairn_links_add(job, infos[i]->index + 1);
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

/* A shard that owns nothing joins, or has left: then it is not named. */
static void note_holes(struct body *body, Cairn__ShardInfo *const *infos, size_t info_count)
{
    for (uint32_t i = 0; i < body->layout->shard_count; i++)
        body->parts[i].absent = body->parts[i].map.extent_count == 0 &&
                                !is_named(i, infos, info_count);
}

/* Closes the connections to shards that left the job and that nobody needs. A shard that is needed
 * no more, or is away for good, is asked for nothing any more. */
static void let_go_of_holes(struct job *job)
{
    for (uint32_t i = 0; i < job->shards.count; i++) {
        struct shard_link *link = job->shards.links[i];
        if (!cairn_bodies_left_by(job, i)) continue;
        if (link->address_bytes > 0 && !cairn_bodies_need(job, i)) {
            link->address_bytes = 0;
            cairn_chunk_link_close(&link->conn);
        }
        if (link->address_bytes == 0) cairn_recut_gone(link);
    }
}

void cairn_layouts_apply(struct job *job)
{
    const uint64_t now_ms = cairn_client_now_ms();
    // Not with the next tick: the first words to new shards would wait for that.
    for (uint32_t i = 0; i < job->shards.count; i++) cairn_link_tick(job->shards.links[i], now_ms);
    cairn_recut_all(job);
    let_go_of_holes(job);
}

/* Gives up on a message that cannot be applied: the job fails. If only memory was lacking, the
 * connection is made anew and the coordinator sends the message again. */
static void give_up(struct job *job, cairn_status status, const char *of, const char *why)
{
    if (status == CAIRN_ERR_NO_MEMORY)
        cairn_control_starve(job->session, of);
    else
        cairn_job_fail(job, status, why);
}

void cairn_layouts_on_shards(struct job *job, const Cairn__ShardsChanged *message)
{
    cairn_status status = set_addresses(job, message->shards, message->n_shards);
    if (status == CAIRN_OK)
        let_go_of_holes(job);
    else
        give_up(job, status, "ShardsChanged", "the coordinator named a shard out of range");
}

/* ---- layouts ---- */

/* Takes `layout` in any case; *body_out is the job's newest. */
static cairn_status add_body(struct job *job, struct cairn_layout *layout,
                             struct cairn_version since, struct body **body_out)
{
    cairn_status status = cairn_links_add(job, layout->shard_count);
    if (status == CAIRN_OK) status = cairn_body_open(&job->spec, layout, since, body_out);
    if (status != CAIRN_OK)
        cairn_layout_close(layout);
    else
        cairn_bodies_add(job, *body_out);
    return status;
}

static bool is_layout(const struct body *body, const struct cairn_layout *layout)
{
    return body != NULL && memcmp(body->layout->hash, layout->hash, sizeof layout->hash) == 0;
}

/* A restore numbers shards anew; while a job goes on a number stays with its shard. */
static bool are_renumbered(const struct job *job, Cairn__ShardInfo *const *infos, size_t info_count)
{
    for (size_t i = 0; i < info_count; i++) {
        if (infos[i]->index >= job->shards.count || infos[i]->name[0] == '\0') continue;
        const struct shard_link *link = job->shards.links[infos[i]->index];
        if (link->name[0] != '\0' && strcmp(link->name, infos[i]->name) != 0) return true;
    }
    return false;
}

/* The body that is known by that number, or the newest, if it has those owners. NULL: neither. */
static struct body *find_layout(struct job *job, const struct cairn_layout *layout)
{
    struct body *body = cairn_body_of_layout(job, layout->version);
    if (is_layout(body, layout)) return body;
    return is_layout(job->bodies, layout) ? job->bodies : NULL;
}

/* The first body, which was read with its layout. Takes it if it can. */
static cairn_status take_first(struct job *job, struct reading *reading, struct body **body_out)
{
    const cairn_status status = cairn_links_add(job, reading->body->layout->shard_count);
    if (status != CAIRN_OK) return status;
    *body_out = reading->body;
    reading->body = NULL;
    cairn_bodies_add(job, *body_out);
    return CAIRN_OK;
}

/* Refuses a coordinator that goes by an earlier layout than this worker knows: nobody else would
 * know what this worker has of the later layout. */
static cairn_status judge_known(const struct job *job, const struct body *known,
                                struct cairn_sentence *why)
{
    const uint64_t newest = job->bodies->layout->version, in_force = job->attachment.reply->layout;
    if (known == job->bodies || in_force == 0 || !cairn_layout_goes_back(newest, in_force))
        return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_ROLLED_BACK,
                      "the coordinator goes by layout %" PRIu64 " of job %s, and layout %" PRIu64
                      " was in force: its store is an older copy, or was made of what the shards "
                      "hold (`cairn cluster adopt`); close the job and open it again",
                      in_force, job->name, newest);
}

/* Later one that is known, or a newer one, if what happened in between was no
 * restore. */
static cairn_status take_attached(struct job *job, struct cairn_layout *layout,
                                  struct body **body_out, struct cairn_sentence *why)
{
    const Cairn__Attached *a = job->attachment.reply;
    const struct cairn_version now = { a->generation, a->step };
    struct body *known = find_layout(job, layout);
    if (known != NULL) {
        cairn_layout_close(layout);
        const cairn_status status = judge_known(job, known, why);
        if (status != CAIRN_OK) return status;
        const struct cairn_version since = cairn_since_attached(known->since, now);
        if (cairn_version_compare(since, known->since) != 0)
            cairn_bodies_serve_since(job, known, since);
        *body_out = known;
        return CAIRN_OK;
    }
    if (layout->version > job->bodies->layout->version &&
        !are_renumbered(job, a->shards, a->n_shards)) {
        const cairn_status status = add_body(job, layout, now, body_out);
        if (status == CAIRN_OK) (*body_out)->found = true;
        return status;
    }
    cairn_layout_close(layout);
    cairn_sentence_set(why, "job %s was restored onto other shards; close it and open it again",
                       job->name);
    return CAIRN_ERR_ROLLED_BACK;
}

cairn_status cairn_layouts_attached(struct job *job, struct reading *reading,
                                    struct cairn_sentence *why)
{
    const Cairn__Attached *a = job->attachment.reply;
    struct body *body;
    cairn_status status = reading->layout_status;
    if (status == CAIRN_OK && reading->body != NULL) {
        status = take_first(job, reading, &body);
    } else if (status == CAIRN_OK) {
        struct cairn_layout *layout = reading->layout;
        reading->layout = NULL;
        status = take_attached(job, layout, &body, why);
    }
    if (status == CAIRN_OK) status = set_addresses(job, a->shards, a->n_shards);
    if (status != CAIRN_OK) return status;
    note_holes(body, a->shards, a->n_shards);
    return CAIRN_OK;
}

/* ---- a change while the job goes on ---- */

static cairn_status judge_changed(struct job *job, const struct cairn_layout *layout,
                                  struct cairn_sentence *why)
{
    const Cairn__LayoutChanged *message = job->attachment.changed;
    const struct body *known = cairn_body_of_layout(job, layout->version);
    const struct body *newest = job->bodies;
    if (layout->version != message->layout)
        return cairn_fail(why, CAIRN_ERR_PROTOCOL,
                          "the coordinator announced layout %" PRIu64 " and sent layout %" PRIu64,
                          message->layout, layout->version);
    if (known != NULL && !is_layout(known, layout))
        return cairn_fail(why, CAIRN_ERR_PROTOCOL,
                          "the coordinator sent another layout %" PRIu64 " than before",
                          layout->version);
    if (known == NULL && layout->version < newest->layout->version)
        return cairn_fail(why, CAIRN_ERR_PROTOCOL,
                          "the coordinator sent layout %" PRIu64 " after layout %" PRIu64,
                          layout->version, newest->layout->version);
    return CAIRN_OK;
}

/* Takes `layout` in any case. */
static cairn_status take_changed(struct job *job, struct cairn_layout *layout,
                                 struct cairn_sentence *why)
{
    const Cairn__LayoutChanged *message = job->attachment.changed;
    const struct cairn_version since = { message->since_generation, message->since_step };
    struct body *body = cairn_body_of_layout(job, layout->version);
    cairn_status status = judge_changed(job, layout, why);
    if (status != CAIRN_OK || body != NULL)
        cairn_layout_close(layout);
    else
        status = add_body(job, layout, since, &body);
    if (status == CAIRN_OK) status = set_addresses(job, message->shards, message->n_shards);
    if (status != CAIRN_OK) return status;
    note_holes(body, message->shards, message->n_shards);
    cairn_bodies_serve_since(job, body, since);
    return CAIRN_OK;
}

/* Grants of rounds that are over: who relayed then may not do so any more. */
static void forget_grants(struct job *job)
{
    for (uint32_t i = 0; i < job->shards.count; i++) {
        struct shard_link *owner = job->shards.links[i];
        if (owner->grant.round > job->pushing.pusher.round) continue;
        owner->grant = (struct cairn_chunk_header) { 0 };
        owner->declined = false;
    }
}

static void changed(struct job *job)
{
    struct cairn_sentence why;
    struct cairn_layout *layout;
    const struct cairn_paged *pages = &job->attachment.changed_pages;
    cairn_sentence_set(
        &why, "the coordinator sent a layout %" PRIu64 " of %zu bytes that is not one of this job",
        job->attachment.changed->layout, (size_t)pages->have_bytes);
    cairn_status status = cairn_layout_of_pages(&job->spec, pages, &layout);
    if (status == CAIRN_OK) status = take_changed(job, layout, &why);
    cairn_attachment_drop_changed(&job->attachment);
    if (status != CAIRN_OK) {
        give_up(job, status, "LayoutChanged", why.text);
        return;
    }
    forget_grants(job);
    cairn_layouts_apply(job);
    cairn_session_kick(job->session); // a stalled command may go on
}

void cairn_layouts_on_changed(struct job *job, Cairn__LayoutChanged *message)
{
    cairn_attachment_drop_changed(&job->attachment);
    job->attachment.changed = message;
    if (cairn_paged_init(&job->attachment.changed_pages, message->layout_bytes) != CAIRN_OK ||
        message->layout_bytes == 0)
        cairn_job_fail(job, CAIRN_ERR_PROTOCOL,
                       "the coordinator announced a layout that is empty, or too large");
}

void cairn_layouts_on_page(struct job *job, const Cairn__Page *page)
{
    const cairn_status status = page->what == CAIRN_PAGE_LAYOUT
                                    ? cairn_paged_add(&job->attachment.changed_pages, page)
                                    : CAIRN_ERR_PROTOCOL;
    if (status != CAIRN_OK)
        give_up(job, status, "LayoutChanged",
                "the coordinator sent the pages of a layout out of order");
    else if (cairn_paged_whole(&job->attachment.changed_pages))
        changed(job);
}

void cairn_layouts_trim(struct job *job)
{
    if (!cairn_bodies_trim(job)) return;
    cairn_recut_all(job);
    let_go_of_holes(job);
}

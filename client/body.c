#include "client/body.h"

#include <stdlib.h>

#include "client/job.h"

/* A version may be read until so many are newer; or longer, by who knows of somebody's lease: bodies have as
 * many extents in all. */
#define KEPT_STEPS   2
#define KEPT_EXTENTS ((size_t)1 << 17)

static void free_body(struct body *body)
{
    for (uint32_t i = 0; i < body->layout->shard_count; i++) {
        cairn_shard_map_release(&body->parts[i].map);
        free(body->parts[i].published_at);
    }
    cairn_layout_close(body->layout);
    free(body);
}

cairn_status cairn_body_open(const struct cairn_job_spec_data *spec, struct cairn_layout *layout,
                             struct cairn_version since, struct body **out)
{
    struct body *body = calloc(1, sizeof *body + layout->shard_count * sizeof body->parts[0]);
    cairn_status status = body != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
    uint32_t count = 0;
    for (; status == CAIRN_OK && count < layout->shard_count; count++)
        status = cairn_shard_map_init(&body->parts[count].map, layout, count, spec->chunk_leaves);
    if (status != CAIRN_OK) {
        for (uint32_t i = 0; body != NULL && i < count; i++)
            cairn_shard_map_release(&body->parts[i].map);
        free(body);
        return status;
    }
    body->layout = layout;
    body->since = since;
    body->refs = 1;
    *out = body;
    return CAIRN_OK;
}

struct body *cairn_body_get(struct body *body)
{
    body->refs++;
    return body;
}

void cairn_body_put(struct body *body)
{
    if (body != NULL && --body->refs == 0) free_body(body);
}

/* ---- those of a job ---- */

void cairn_bodies_add(struct job *job, struct body *body)
{
    pthread_mutex_lock(&job->session->lock);
    body->older = job->bodies;
    job->bodies = body;
    pthread_mutex_unlock(&job->session->lock);
}

void cairn_bodies_serve_since(struct job *job, struct body *body, struct cairn_version since)
{
    pthread_mutex_lock(&job->session->lock);
    body->since = since;
    body->found = false;
    pthread_mutex_unlock(&job->session->lock);
}

static struct body *take_out(struct body **link)
{
    struct body *body = *link;
    *link = body->older;
    body->older = NULL;
    return body;
}

static bool are_too_much(const struct job *job)
{
    size_t extents = 0;
    for (const struct body *body = job->bodies; body != NULL; body = body->older)
        extents += body->layout->extent_count;
    return extents > KEPT_EXTENTS;
}

/* Nothing that the body would serve is read any more, once `newer` serves what comes. Under the lock. */
static bool is_outlived(const struct job *job, const struct body *body, const struct body *newer)
{
    const struct cairn_version newest = job->known.newest, since = newer->since;
    if (cairn_version_compare(since, body->since) <= 0) return true; // it serves no version
    if (!are_too_much(job)) return false;
    if (job->leased.until_ms > cairn_client_now_ms() &&
        cairn_version_compare(job->leased.oldest, since) < 0)
        return false;
    return newest.generation > since.generation ||
           (newest.generation == since.generation && newest.step >= since.step &&
            newest.step - since.step >= KEPT_STEPS);
}

/* The oldest; one that is in use stays. NULL: there is none. Under the lock. */
static struct body **find_outlived(struct job *job)
{
    struct body **found = NULL;
    for (struct body *newer = job->bodies; newer->older != NULL; newer = newer->older)
        if (newer->older->refs == 1 && is_outlived(job, newer->older, newer)) found = &newer->older;
    return found;
}

bool cairn_bodies_trim(struct job *job)
{
    bool any = false;
    while (job->bodies != NULL && job->bodies->older != NULL) {
        pthread_mutex_lock(&job->session->lock);
        struct body **link = find_outlived(job);
        struct body *body = link != NULL ? take_out(link) : NULL;
        pthread_mutex_unlock(&job->session->lock);
        if (body == NULL) break;
        cairn_body_put(body);
        any = true;
    }
    return any;
}

void cairn_bodies_release(struct job *job)
{
    while (job->bodies != NULL) {
        pthread_mutex_lock(&job->session->lock);
        struct body *body = take_out(&job->bodies);
        pthread_mutex_unlock(&job->session->lock);
        cairn_body_put(body);
    }
}

struct body *cairn_body_of_version(const struct job *job, struct cairn_version version)
{
    struct body *body = job->bodies;
    while (body->older != NULL && cairn_version_compare(body->since, version) > 0)
        body = body->older;
    return body;
}

struct body *cairn_body_of_layout(const struct job *job, uint64_t layout)
{
    struct body *body = job->bodies;
    while (body != NULL && body->layout->version != layout) body = body->older;
    return body;
}

bool cairn_bodies_left_by(const struct job *job, uint32_t shard)
{
    const struct body *newest = job->bodies;
    return newest != NULL && shard < newest->layout->shard_count && newest->parts[shard].absent;
}

bool cairn_bodies_need(const struct job *job, uint32_t shard)
{
    const struct body *body = job->bodies;
    if (body == NULL) return false;
    if (shard < body->layout->shard_count && !body->parts[shard].absent) return true;
    for (body = body->older; body != NULL; body = body->older)
        if (shard < body->layout->shard_count && body->parts[shard].map.extent_count > 0)
            return true;
    return false;
}

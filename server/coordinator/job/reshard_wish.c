/* Makes the wish for a run: an operator's, the run's own, or all shards that are here. See
 * reshard.h. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/member/seats.h"
#include "server/coordinator/member/standing.h"

void cairn_cluster_reshard_wish_release(struct cairn_cluster_reshard_wish *wish)
{
    free(wish->shards);
    wish->shards = NULL;
    wish->count = 0;
}

cairn_status cairn_cluster_reshard_wish_of(const struct cairn_cluster_job *job,
                                           struct cairn_cluster_reshard_wish *wish_out)
{
    const struct cairn_cluster_reshard *r = &job->reshard;
    *wish_out = (struct cairn_cluster_reshard_wish) { .pause = r->pace.pause };
    wish_out->shards = calloc((size_t)job->shard_count + r->joiner_count + 1,
                              sizeof *wish_out->shards);
    if (wish_out->shards == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < job->shard_count; i++)
        wish_out->shards[wish_out->count++] =
            (struct cairn_cluster_joiner) { job->shards[i].seat, job->shards[i].weight };
    for (uint32_t i = 0; i < r->joiner_count; i++)
        wish_out->shards[wish_out->count++] = r->joiners[i];
    return CAIRN_OK;
}

uint32_t cairn_cluster_reshard_wish_owners(const struct cairn_cluster_reshard_wish *wish)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < wish->count; i++) count += wish->shards[i].weight > 0;
    return count;
}

/* ---- of what there is ---- */

static struct cairn_cluster_joiner *find(struct cairn_cluster_reshard_wish *wish,
                                         const struct cairn_cluster_seat *seat)
{
    for (uint32_t i = 0; i < wish->count; i++)
        if (wish->shards[i].seat == seat) return &wish->shards[i];
    return NULL;
}

static bool is_named(char *const *names, size_t count, const struct cairn_cluster_seat *seat)
{
    size_t i = 0;
    while (i < count && strcmp(names[i], seat->name) != 0) i++;
    return i < count;
}

static void add(struct cairn_cluster_reshard_wish *wish, struct cairn_cluster_seat *seat)
{
    struct cairn_cluster_joiner *there = find(wish, seat);
    if (there == NULL) there = &wish->shards[wish->count++];
    *there = (struct cairn_cluster_joiner) { seat, 1 };
}

cairn_status cairn_cluster_reshard_wish_present(const struct cairn_cluster_job *job,
                                                struct cairn_cluster_reshard_wish *wish_out)
{
    size_t room = job->shard_count + 1;
    for (const struct cairn_cluster_seat *s = job->cluster->seats; s != NULL; s = s->next) room++;
    *wish_out = (struct cairn_cluster_reshard_wish) { .shards = calloc(room,
                                                                       sizeof *wish_out->shards) };
    if (wish_out->shards == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < job->shard_count; i++) {
        struct cairn_cluster_seat *seat = job->shards[i].seat;
        const bool unfit = seat != NULL && cairn_cluster_seat_stays(seat) &&
                           cairn_cluster_seat_unfit(seat) &&
                           !cairn_cluster_seat_fits(seat, &job->spec);
        const bool goes = seat == NULL || seat->leaving || unfit;
        const double weight = goes ? 0 : 1;
        wish_out->shards[wish_out->count++] = (struct cairn_cluster_joiner) { seat, weight };
    }
    return CAIRN_OK;
}

void cairn_cluster_reshard_wish_all(const struct cairn_cluster_job *job,
                                    struct cairn_cluster_reshard_wish *wish)
{
    if (job->spec.stage == 0 && cairn_cluster_reshard_wish_owners(wish) > 0) return;
    for (struct cairn_cluster_seat *s = job->cluster->seats; s != NULL; s = s->next)
        if (cairn_cluster_seat_fits(s, &job->spec) &&
            (job->spec.stage != 0 || cairn_cluster_reshard_wish_owners(wish) == 0))
            add(wish, s);
}

/* ---- of what operators say ---- */

static struct cairn_cluster_seat *seat_named(const struct cairn_cluster *cluster, const char *name,
                                             struct cairn_sentence *why)
{
    struct cairn_cluster_seat *seat = cairn_cluster_seat_find(cluster, name);
    if (seat == NULL)
        cairn_sentence_set(why, "there is no shard \"%.128s\"; `cairn cluster status` lists them",
                           name);
    return seat;
}

static const char *why_not(const struct cairn_cluster_seat *seat)
{
    if (seat->leaving) return "is being drained";
    if (!cairn_cluster_seat_stays(seat)) return "is not here";
    return cairn_cluster_seat_apart(seat) ? CAIRN_SEAT_APART_TEXT
                                          : "is unfit, since its device failed";
}

static cairn_status take_names(const struct cairn_cluster_job *job, const Cairn__ReshardAsk *ask,
                               struct cairn_cluster_reshard_wish *wish, struct cairn_sentence *why)
{
    for (size_t i = 0; i < ask->n_add; i++) {
        struct cairn_cluster_seat *seat = seat_named(job->cluster, ask->add[i], why);
        if (seat == NULL) return CAIRN_ERR_NOT_FOUND;
        if (!cairn_cluster_seat_fits(seat, &job->spec))
            return cairn_fail(why, CAIRN_ERR_NOT_READY, "nothing can go to shard %s, which %s",
                              seat->name, why_not(seat));
        add(wish, seat);
    }
    for (size_t i = 0; i < ask->n_drain; i++) {
        const struct cairn_cluster_seat *seat = seat_named(job->cluster, ask->drain[i], why);
        if (seat == NULL) return CAIRN_ERR_NOT_FOUND;
        if (is_named(ask->add, ask->n_add, seat))
            return cairn_fail(why, CAIRN_ERR_INVALID,
                              "shard %s is to be added and drained: one of them", seat->name);
        struct cairn_cluster_joiner *there = find(wish, seat);
        if (there == NULL && ask->all) continue;
        if (there == NULL)
            return cairn_fail(why, CAIRN_ERR_INVALID,
                              "job %s has no part on shard %s: there is nothing to drain",
                              job->spec.name, seat->name);
        there->weight = 0;
    }
    if (cairn_cluster_reshard_wish_owners(wish) > 0) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_INVALID,
                      "no shard would be left for job %s: add another one first", job->spec.name);
}

/* The last ones go, but for those that are added; the next ones by name come. */
static cairn_status take_count(const struct cairn_cluster_job *job, const Cairn__ReshardAsk *ask,
                               struct cairn_cluster_reshard_wish *wish, struct cairn_sentence *why)
{
    uint32_t owners = cairn_cluster_reshard_wish_owners(wish), here = 0;
    for (uint32_t i = wish->count; i-- > 0 && owners > ask->shards;) {
        struct cairn_cluster_joiner *shard = &wish->shards[i];
        if (shard->weight <= 0 || is_named(ask->add, ask->n_add, shard->seat)) continue;
        shard->weight = 0;
        owners--;
    }
    if (owners > ask->shards)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "%zu shards are to be added, and %" PRIu32
                          " are to have job %s in all: give a higher number",
                          ask->n_add, ask->shards, job->spec.name);
    for (struct cairn_cluster_seat *s = job->cluster->seats; s != NULL; s = s->next) {
        here += cairn_cluster_seat_fits(s, &job->spec);
        const struct cairn_cluster_joiner *there = find(wish, s);
        if (owners >= ask->shards || !cairn_cluster_seat_fits(s, &job->spec) ||
            is_named(ask->drain, ask->n_drain, s) || (there != NULL && there->weight > 0))
            continue;
        add(wish, s);
        owners++;
    }
    if (owners == ask->shards) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_INVALID,
                      "job %s cannot be spread over %" PRIu32 " shards: %" PRIu32
                      " are here that it could have, of %" PRIu32,
                      job->spec.name, ask->shards, owners, here);
}

static cairn_status take_weights(const struct cairn_cluster_job *job, const Cairn__ReshardAsk *ask,
                                 struct cairn_cluster_reshard_wish *wish,
                                 struct cairn_sentence *why)
{
    for (size_t i = 0; i < ask->n_weights; i++) {
        const Cairn__ShardWeight *w = ask->weights[i];
        if (!isfinite(w->weight) || w->weight <= 0 || w->weight > 1e6)
            return cairn_fail(why, CAIRN_ERR_INVALID,
                              "the weight of shard %.128s is %g: give a number above 0, at most "
                              "1000000; --drain takes everything off a shard",
                              w->name, w->weight);
        const struct cairn_cluster_seat *seat = seat_named(job->cluster, w->name, why);
        if (seat == NULL) return CAIRN_ERR_NOT_FOUND;
        struct cairn_cluster_joiner *there = find(wish, seat);
        if (there == NULL || there->weight <= 0)
            return cairn_fail(why, CAIRN_ERR_INVALID,
                              "shard %s has a weight, and job %s is not to be on it: add it, too",
                              seat->name, job->spec.name);
        there->weight = w->weight;
    }
    return CAIRN_OK;
}

cairn_status cairn_cluster_reshard_wish_asked(const struct cairn_cluster_job *job,
                                              const Cairn__ReshardAsk *ask,
                                              struct cairn_cluster_reshard_wish *wish_out,
                                              struct cairn_sentence *why)
{
    if (!isfinite(ask->pause) || ask->pause < 0 || ask->pause > 100)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "a pause of %g: give a part of a step from 0 to 100, as 0.1", ask->pause);
    cairn_status status = cairn_cluster_reshard_wish_present(job, wish_out);
    if (status != CAIRN_OK) return cairn_fail(why, status, "the coordinator is out of memory");
    wish_out->pause = ask->pause;
    if (ask->shards == 0 && ask->n_add == 0 && ask->n_drain == 0)
        cairn_cluster_reshard_wish_all(job, wish_out);
    status = take_names(job, ask, wish_out, why);
    if (status == CAIRN_OK && ask->shards > 0) status = take_count(job, ask, wish_out, why);
    if (status == CAIRN_OK) status = take_weights(job, ask, wish_out, why);
    if (status != CAIRN_OK) cairn_cluster_reshard_wish_release(wish_out);
    return status;
}

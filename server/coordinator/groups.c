/* The reduce groups of a job: how they are formed, told to the shards, recorded and shown. round.h
 * explains what they are. */

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/job.h"

static void groups_take_back(struct coord_job *job);
static bool groups_plan_equal(const struct groups_plan *a, const struct groups_plan *b);
static void groups_tell(struct coord_job *job);

/* ---- lifetime ---- */

static void release_formed(struct coord_groups *groups)
{
    for (uint32_t g = 0; groups->names != NULL && g < groups->now.group_count; g++)
        free(groups->names[g]);
    free(groups->names);
    free(groups->members);
    free(groups->relays);
    free(groups->relay_of);
    free(groups->opened);
    groups_plan_release(&groups->plan);
    groups->names = NULL;
    groups->members = groups->opened = NULL;
    groups->relays = NULL;
    groups->relay_of = NULL;
}

void coord_groups_free(struct coord_job *job)
{
    struct coord_groups *groups = job->groups;
    if (groups == NULL) return;
    release_formed(groups);
    rank_groups_release(&groups->now);
    rank_groups_release(&groups->before);
    free(groups->knows);
    free(groups->may_relay);
    free(groups);
    job->groups = NULL;
}

/* Returns job->groups, and allocates it first if it is NULL. Returns NULL if there is no memory. */
static struct coord_groups *groups_of(struct coord_job *job)
{
    if (job->groups != NULL) return job->groups;
    job->groups = calloc(1, sizeof *job->groups);
    if (job->groups == NULL) return NULL;
    job->groups->knows = calloc(job->shard_room, sizeof *job->groups->knows);
    job->groups->may_relay = calloc(job->shard_room, sizeof *job->groups->may_relay);
    if (job->groups->knows == NULL || job->groups->may_relay == NULL) coord_groups_free(job);
    return job->groups;
}

cairn_status coord_groups_doubt(struct coord_job *job)
{
    if (job->spec.reduce_groups != CAIRN_GROUPS_HOST) return CAIRN_OK;
    const struct coord_groups *groups = groups_of(job);
    if (groups == NULL) return CAIRN_ERR_NO_MEMORY;
    CAIRN_EACH_SHARD (job, i) groups->may_relay[i] = true;
    return CAIRN_OK;
}

/* ---- in words ---- */

/* Writes, for example, "2 (ranks 0-3 by s0; ranks 4,6 by s1, s2; ranks 5,7 alone)". If the relays
 * are not known, writes "... (ranks 0-3; ranks 4-7)". */
static void describe_groups(const struct coord_groups *groups, struct sentence *out)
{
    const struct rank_groups *now = &groups->now;
    if (now->group_count == 0) {
        sentence_set(out, "none, because %s", groups->off.text);
        return;
    }
    sentence_set(out, "%" PRIu32 " (", now->group_count);
    for (uint32_t g = 0; g < now->group_count; g++) {
        const char *name = groups->names != NULL ? groups->names[g] : NULL;
        uint32_t count;
        const uint32_t *ranks = rank_groups_at(now, g, &count);
        sentence_add(out, "%srank%s ", g > 0 ? "; " : "", count == 1 ? "" : "s");
        ranks_add_text(ranks, count, out);
        if (name != NULL) sentence_add(out, " by %s", name);
    }
    sentence_add(out, ")");
}

/* Logs the groups when they have changed, because the bits of a step depend on the groups. `same`:
 * each group has the same ranks as before, so the sums stay the same. */
static void log_change(struct coord_job *job, uint64_t round, bool same)
{
    struct coord_groups *groups = job->groups;
    struct sentence now = { "" };
    describe_groups(groups, &now);
    if (strcmp(now.text, groups->told.text) == 0) return;
    if (groups->told.text[0] == '\0')
        log_info("job %s: reduce groups of round %" PRIu64 ": %s", job->spec.name, round, now.text);
    else
        log_info("job %s: reduce groups from round %" PRIu64 " on: %s; before: %s%s",
                 job->spec.name, round, sentence_brief(now.text, 900).text,
                 sentence_brief(groups->told.text, 900).text,
                 same ? "; the sums are the same" : "; gradients are added up in another order");
    groups->told = now;
}

/* ---- who there is ---- */

struct hosts {
    char (*names)[CAIRN_FABRIC_HOST_BYTES]; /* owned: [count]; "" if the host is not known */
    const char **list;                      /* owned: [count]: points to each of the names */
};

static bool hosts_init(struct hosts *hosts, uint32_t count)
{
    hosts->names = calloc((size_t)count + 1, sizeof *hosts->names);
    hosts->list = calloc((size_t)count + 1, sizeof *hosts->list);
    for (uint32_t i = 0; hosts->names != NULL && hosts->list != NULL && i < count; i++)
        hosts->list[i] = hosts->names[i];
    return hosts->names != NULL && hosts->list != NULL;
}

static void hosts_release(struct hosts *hosts)
{
    free(hosts->names);
    free(hosts->list);
}

static void find_host(struct hosts *hosts, uint32_t at, const uint8_t *address, size_t bytes)
{
    if (!fabric_address_host(address, bytes, hosts->names[at], sizeof hosts->names[at]))
        hosts->names[at][0] = '\0';
}

static int by_id(const void *a, const void *b)
{
    const uint64_t x = (*(struct coord_member *const *)a)->id;
    const uint64_t y = (*(struct coord_member *const *)b)->id;
    return (x > y) - (x < y);
}

/* Returns the job's members, sorted by id. The caller frees the list. Returns NULL if there is no
 * memory. */
static struct coord_member **sort_members(const struct coord_job *job, size_t *count_out)
{
    struct coord_member **sorted = calloc((size_t)job->members.count + 1, sizeof *sorted);
    size_t count = 0;
    if (sorted == NULL) return NULL;
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        sorted[count++] = m;
    qsort(sorted, count, sizeof *sorted, by_id);
    *count_out = count;
    return sorted;
}

/* Looks up the ranks and hosts of the contributors. A contributor that is not found gets no host,
 * and so stays alone. */
static bool look_up(const struct coord_job *job, const uint64_t *members, uint32_t count,
                    struct hosts *hosts, uint32_t *ranks)
{
    size_t sorted_count;
    struct coord_member **sorted = sort_members(job, &sorted_count);
    if (sorted == NULL) return false;
    for (uint32_t i = 0; i < count; i++) {
        struct coord_member wanted = { .id = members[i] }, *key = &wanted;
        struct coord_member **found = bsearch(&key, sorted, sorted_count, sizeof *sorted, by_id);
        if (found == NULL) continue;
        const struct coord_session *session = (*found)->session;
        ranks[i] = (*found)->rank;
        find_host(hosts, i, session->fabric_address, session->fabric_address_bytes);
    }
    free(sorted);
    return true;
}

/* ---- forming ---- */

/* The groups with which a round will be opened, before they become the job's groups. */
struct formed {
    struct groups_plan plan;
    uint32_t *ranks; /* [worker_count] */
};

static void set_off(struct coord_job *job, struct sentence *off)
{
    if (job->tiles.world != 0)
        sentence_set(off, CAIRN_GROUPS_NOT_OF_TILES);
    else
        sentence_set(off, "%s", job->groups->refused.text);
}

static cairn_status form_groups(struct coord_job *job, const uint64_t *members, uint32_t count,
                                struct formed *out)
{
    const uint32_t shard_count = job->layout->shard_count;
    struct hosts workers = { NULL, NULL }, shards = { NULL, NULL };
    struct sentence off = { "" };
    uint32_t *ranks = calloc((size_t)count + 1, sizeof *ranks);
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    if (ranks != NULL && hosts_init(&workers, count) && hosts_init(&shards, shard_count) &&
        look_up(job, members, count, &workers, ranks)) {
        set_off(job, &off);
        CAIRN_EACH_SHARD (job, i) {
            const struct coord_shard_entry *entry = job->shards[i].entry;
            if (i >= shard_count) break;
            if (job->shards[i].up && off.text[0] == '\0')
                find_host(&shards, i, entry->fabric_address, entry->fabric_address_bytes);
        }
        status = groups_plan_make(workers.list, count, shards.list, shard_count, &out->plan);
    }
    hosts_release(&workers);
    hosts_release(&shards);
    out->ranks = status == CAIRN_OK ? ranks : NULL;
    if (status != CAIRN_OK) free(ranks);
    return status;
}

/* Lists the ranks of the plan's groups. Lists no groups if no shard relays. */
static cairn_status list_ranks(const struct formed *formed, struct rank_groups *out)
{
    const struct groups_plan *plan = &formed->plan;
    if (plan->relay_count == 0) return rank_groups_init(out, 0, 0);
    CAIRN_TRY(rank_groups_init(out, plan->worker_count, plan->group_count));
    for (uint32_t w = 0; w < plan->worker_count; w++) out->ends[plan->group_of[w]]++;
    for (uint32_t g = 1; g < plan->group_count; g++) out->ends[g] += out->ends[g - 1];
    // Visits the workers backwards. Each worker takes the place before the end of its group, and
    // moves this end there. So each end arrives at the beginning of its group.
    for (uint32_t w = plan->worker_count; w-- > 0;)
        out->ranks[--out->ends[plan->group_of[w]]] = formed->ranks[w];
    for (uint32_t g = 0; g + 1 < plan->group_count; g++) out->ends[g] = out->ends[g + 1];
    out->ends[plan->group_count - 1] = plan->worker_count;
    return CAIRN_OK;
}

static char *name_group(const struct coord_job *job, const struct groups_plan *plan, uint32_t group)
{
    struct sentence name = { "" };
    for (uint32_t r = group == 0 ? 0 : plan->ends[group - 1]; r < plan->ends[group]; r++)
        sentence_add(&name, "%s%s", name.text[0] != '\0' ? ", " : "",
                     job->shards[plan->relays[r]].entry->name);
    return name.text[0] != '\0' ? strdup(name.text) : NULL;
}

/* Allocates what the formed groups need, and fills in members, relays and ranks. */
static bool make_room(const struct coord_job *job, const struct formed *formed,
                      const uint64_t *members, struct coord_groups *into)
{
    const struct groups_plan *plan = &formed->plan;
    into->members = calloc((size_t)plan->worker_count + 1, sizeof *into->members);
    into->opened = calloc((size_t)plan->group_count + 1, sizeof *into->opened);
    into->relays = calloc((size_t)plan->relay_count + 1, sizeof *into->relays);
    into->relay_of = calloc(job->shard_room, sizeof *into->relay_of);
    into->names = calloc((size_t)plan->group_count + 1, sizeof *into->names);
    if (into->members == NULL || into->opened == NULL || into->relays == NULL ||
        into->relay_of == NULL || into->names == NULL)
        return false;
    memcpy(into->members, members, plan->worker_count * sizeof *members);
    CAIRN_EACH_SHARD (job, i) into->relay_of[i] = CAIRN_GROUPS_ALONE;
    for (uint32_t g = 0, r = 0; g < plan->group_count; g++) {
        for (; r < plan->ends[g]; r++) {
            into->relays[r] = (struct group_relay) { .shard = plan->relays[r], .group = g };
            into->relay_of[plan->relays[r]] = r;
        }
    }
    return list_ranks(formed, &into->now) == CAIRN_OK;
}

static void keep_before(struct coord_groups *groups)
{
    if (groups->made_step) {
        rank_groups_release(&groups->before);
        groups->before = groups->now;
    } else {
        rank_groups_release(&groups->now);
    }
    groups->now = (struct rank_groups) { NULL, NULL, 0, 0 };
    groups->made_step = false;
}

/* Makes the formed groups the job's groups. The job takes all that `formed` and `room` own. */
static void take_groups(struct coord_job *job, uint64_t round, struct formed *formed,
                        struct coord_groups *room)
{
    struct coord_groups *groups = job->groups;
    const bool same = rank_groups_equal(&groups->now, &room->now);
    release_formed(groups);
    keep_before(groups);
    groups->members = room->members;
    groups->opened = room->opened;
    groups->relays = room->relays;
    groups->relay_of = room->relay_of;
    groups->names = room->names;
    groups->now = room->now;
    groups->plan = formed->plan;
    groups->off.text[0] = '\0';
    if (groups->plan.relay_count == 0) {
        set_off(job, &groups->off);
        if (groups->off.text[0] == '\0')
            sentence_set(&groups->off, "no host has two contributors and a shard of the job");
    }
    for (uint32_t g = 0; g < groups->now.group_count; g++)
        groups->names[g] = name_group(job, &groups->plan, g);
    log_change(job, round, same);
}

static bool all_know(const struct coord_job *job)
{
    CAIRN_EACH_SHARD (job, i)
        if (coord_job_in_force(job, i) && !job->groups->knows[i]) return false;
    return true;
}

static bool same_members(const struct coord_groups *groups, const uint64_t *members, uint32_t count)
{
    return groups->members != NULL && groups->plan.worker_count == count &&
           memcmp(groups->members, members, count * sizeof *members) == 0;
}

/* Gives the groups up for lack of memory. The round is opened without groups, and the next round
 * tries again. */
static void give_up(struct coord_job *job, uint64_t round)
{
    struct coord_groups *groups = job->groups;
    groups_take_back(job);
    release_formed(groups);
    keep_before(groups);
    sentence_set(&groups->off, "the coordinator is out of memory");
    log_change(job, round, false);
}

static void form_anew(struct coord_job *job, uint64_t round, const uint64_t *members,
                      uint32_t count)
{
    struct coord_groups *groups = job->groups;
    struct coord_groups room = { .members = NULL };
    struct formed formed = { .ranks = NULL };
    if (form_groups(job, members, count, &formed) != CAIRN_OK) {
        give_up(job, round);
        return;
    }
    if (same_members(groups, members, count) && all_know(job) &&
        groups_plan_equal(&groups->plan, &formed.plan)) {
        groups_plan_release(&formed.plan);
    } else if (make_room(job, &formed, members, &room)) {
        groups_take_back(job);
        take_groups(job, round, &formed, &room);
        groups_tell(job);
    } else {
        release_formed(&room);
        groups_plan_release(&formed.plan);
        give_up(job, round);
    }
    free(formed.ranks);
}

bool coord_groups_open(struct coord_job *job, uint64_t round, const uint64_t *members,
                       uint32_t member_count)
{
    const bool tiled = job->tiles.world != 0;
    if (job->spec.reduce_groups != CAIRN_GROUPS_HOST) return false;
    struct coord_groups *groups = groups_of(job);
    if (groups == NULL) {
        log_error("job %s: out of memory for its reduce groups; round %" PRIu64 " has none",
                  job->spec.name, round);
        return false;
    }
    const bool same = same_members(groups, members, member_count);
    if (!same) groups->refused.text[0] = '\0';
    if (!same || groups->stale || groups->tiled != tiled) {
        groups->tiled = tiled;
        groups->stale = false;
        form_anew(job, round, members, member_count);
        if (groups->stale) { // groups_tell had no memory, and refused the groups
            groups->stale = false;
            form_anew(job, round, members, member_count);
        }
    }
    return groups->plan.relay_count > 0;
}

void coord_groups_stepped(struct coord_job *job)
{
    if (job->groups != NULL) job->groups->made_step = true;
}

void coord_groups_fill(const struct coord_job *job, uint32_t shard, Cairn__RoundOpen *open)
{
    const struct coord_groups *groups = job->groups;
    const uint32_t own = groups->relay_of[shard];
    for (uint32_t g = 0; g < groups->plan.group_count; g++) {
        const uint32_t relay = groups_relay_of(&groups->plan, g, shard);
        groups->opened[g] = relay == CAIRN_GROUPS_ALONE ? groups->members[groups->plan.first[g]]
                                                        : groups->relays[relay].number;
    }
    open->members = groups->opened;
    open->n_members = groups->plan.group_count;
    open->relay = own == CAIRN_GROUPS_ALONE ? 0 : groups->relays[own].number;
}

/* ---- what happens ---- */

void coord_groups_member_gone(struct coord_job *job)
{
    if (job->groups == NULL) return;
    job->groups->stale = true;
    job->groups->refused.text[0] = '\0';
}

void coord_groups_shard_gone(struct coord_job *job, uint32_t shard)
{
    if (job->groups == NULL) return;
    job->groups->knows[shard] = false;
    coord_groups_member_gone(job);
}

void coord_groups_forget(struct coord_job *job)
{
    struct coord_groups *groups = job->groups;
    if (groups == NULL) return;
    release_formed(groups);
    if (!groups->made_step) { // the present groups have made no step yet
        rank_groups_release(&groups->now);
        groups->now = groups->before;
        groups->before = (struct rank_groups) { NULL, NULL, 0, 0 };
    }
    rank_groups_release(&groups->before);
    groups->made_step = true;
    memset(groups->knows, 0, job->shard_room * sizeof *groups->knows);
    memset(groups->may_relay, 0, job->shard_room * sizeof *groups->may_relay);
}

void coord_groups_forget_sent(struct coord_job *job)
{
    if (job->groups == NULL) return;
    groups_take_back(job);
    coord_groups_forget(job);
}

cairn_status coord_groups_restored(struct coord_job *job, const struct rank_groups *recorded)
{
    if (job->spec.reduce_groups != CAIRN_GROUPS_HOST || recorded->group_count == 0) return CAIRN_OK;
    struct coord_groups *groups = groups_of(job);
    if (groups == NULL) return CAIRN_ERR_NO_MEMORY;
    const cairn_status status = rank_groups_copy(recorded, &groups->now);
    groups->made_step = true;
    if (status == CAIRN_OK) describe_groups(groups, &groups->told);
    return status;
}

static void abandon_round(struct coord_job *job, const char *text)
{
    if (job->core == NULL || job->rounds.in_event || round_stage_of(job->core) != CAIRN_ROUND_OPEN)
        return;
    sentence_set(&job->rounds.epoch_reason, "the reduce groups were given up: %s",
                 sentence_brief(text, 900).text);
    const struct round_event event = { .kind = CAIRN_ROUND_WORKER_ABANDON,
                                       .member = job->groups->members[0],
                                       .round = round_open_round(job->core) };
    coord_job_event(job, &event);
}

bool coord_groups_fault(struct coord_job *job, uint64_t member, const char *text)
{
    struct coord_groups *groups = job->groups;
    if (groups == NULL) return false;
    for (uint32_t r = 0; r < groups->plan.relay_count; r++) {
        const struct group_relay *relay = &groups->relays[r];
        if (relay->number != member) continue;
        if (!all_know(job)) return true; // a shard is or was away: the groups are sent anew
        log_warn("job %s: no reduce groups until somebody comes or goes: relay %s: %s",
                 job->spec.name, job->shards[relay->shard].entry->name, text);
        sentence_set(&groups->refused, "relay %s failed: %.900s",
                     job->shards[relay->shard].entry->name, text);
        groups->stale = true;
        abandon_round(job, text);
        return true;
    }
    return false;
}

/* ---- what there is ---- */

void coord_groups_show(const struct coord_job *job, struct coord_answer *answer,
                       Cairn__JobStatus *out)
{
    static const char no_tiles[] = CAIRN_GROUPS_NOT_OF_TILES;
    const struct coord_groups *groups = job->groups;
    if (job->tiles.world != 0) out->reduce_groups_off = wire_text(no_tiles);
    if (groups == NULL || job->tiles.world != 0) return;
    out->reduce_groups_off = wire_text(groups->off.text);
    out->reduce_group_count = groups->now.group_count;
    for (uint32_t g = 0; g < groups->now.group_count && g < CAIRN_GROUPS_SHOWN; g++) {
        Cairn__ReduceGroup *to = coord_answer_add(answer, &out->base, "reduce_groups");
        uint32_t count;
        if (to == NULL) return;
        to->ranks = (uint32_t *)(uintptr_t)rank_groups_at(&groups->now, g, &count);
        to->n_ranks = count;
        if (groups->names != NULL && groups->names[g] != NULL) to->host = groups->names[g];
    }
}

/* ==== groups form ==== */

/* Decides which workers form a group, and which relay serves which owner. Takes plain data and
 * returns plain data. */

/* A worker or a shard, and the host that it is on. */
struct place {
    const char *host;
    uint32_t index;
    bool is_shard;
};

/* Orders places by host. On each host, the workers (by rank) come before the shards (by index). */
static int by_host(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    const int order = strcmp(x->host, y->host);
    if (order != 0) return order;
    if (x->is_shard != y->is_shard) return x->is_shard ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

static size_t add_places(struct place *places, size_t at, const char *const *hosts, uint32_t count,
                         bool is_shard)
{
    for (uint32_t i = 0; i < count; i++) {
        if (hosts[i][0] == '\0') continue;
        places[at++] = (struct place) { hosts[i], i, is_shard };
    }
    return at;
}

/* The places of one host: [first, shards) are its workers, [shards, end) its shards. */
struct run {
    size_t first, shards, end;
};

static struct run run_at(const struct place *places, size_t count, size_t first)
{
    struct run run = { first, first, first };
    while (run.end < count && strcmp(places[run.end].host, places[first].host) == 0) {
        if (!places[run.end].is_shard) run.shards++;
        run.end++;
    }
    return run;
}

/* `run_of` has an element for each worker. If relays serve the worker, this element is the index in
 * the sorted `places` at which the worker's host begins. Otherwise the element is NO_RUN. */
#define NO_RUN SIZE_MAX
/* Visits the workers in the order of their ranks. So the groups are numbered in the order of their
 * least ranks. */
static void number_groups(struct groups_plan *plan, const struct place *places, size_t count,
                          const size_t *run_of)
{
    for (uint32_t w = 0; w < plan->worker_count; w++) {
        if (run_of[w] != NO_RUN && places[run_of[w]].index != w) {
            plan->group_of[w] = plan->group_of[places[run_of[w]].index];
            continue;
        }
        plan->first[plan->group_count] = w;
        plan->group_of[w] = plan->group_count++;
        if (run_of[w] != NO_RUN) {
            const struct run run = run_at(places, count, run_of[w]);
            for (size_t p = run.shards; p < run.end; p++)
                plan->relays[plan->relay_count++] = places[p].index;
        }
        plan->ends[plan->group_count - 1] = plan->relay_count;
    }
}

cairn_status groups_plan_make(const char *const *worker_hosts, uint32_t worker_count,
                              const char *const *shard_hosts, uint32_t shard_count,
                              struct groups_plan *plan_out)
{
    struct groups_plan plan = {
        .group_of = calloc((size_t)worker_count + 1, sizeof *plan.group_of),
        .first = calloc((size_t)worker_count + 1, sizeof *plan.first),
        .relays = calloc((size_t)shard_count + 1, sizeof *plan.relays),
        .ends = calloc((size_t)worker_count + 1, sizeof *plan.ends),
        .worker_count = worker_count,
    };
    struct place *places = calloc((size_t)worker_count + shard_count + 1, sizeof *places);
    size_t *run_of = calloc((size_t)worker_count + 1, sizeof *run_of);
    const bool room = plan.group_of != NULL && plan.first != NULL && plan.relays != NULL &&
                      plan.ends != NULL && places != NULL && run_of != NULL;
    if (room) {
        size_t count = add_places(places, 0, worker_hosts, worker_count, false);
        count = add_places(places, count, shard_hosts, shard_count, true);
        qsort(places, count, sizeof *places, by_host);
        for (uint32_t w = 0; w < worker_count; w++) run_of[w] = NO_RUN;
        for (size_t i = 0; i < count;) {
            const struct run run = run_at(places, count, i);
            const bool grouped = run.shards - run.first >= 2 && run.end > run.shards;
            for (size_t p = run.first; grouped && p < run.shards; p++)
                run_of[places[p].index] = run.first;
            i = run.end;
        }
        number_groups(&plan, places, count, run_of);
        *plan_out = plan;
    } else {
        groups_plan_release(&plan);
    }
    free(places);
    free(run_of);
    return room ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void groups_plan_release(struct groups_plan *plan)
{
    free(plan->group_of);
    free(plan->first);
    free(plan->relays);
    free(plan->ends);
    *plan = (struct groups_plan) { .group_of = NULL };
}

static bool same_numbers(const uint32_t *a, const uint32_t *b, uint32_t count)
{
    return count == 0 || memcmp(a, b, count * sizeof *a) == 0;
}

static bool groups_plan_equal(const struct groups_plan *a, const struct groups_plan *b)
{
    return a->worker_count == b->worker_count && a->group_count == b->group_count &&
           a->relay_count == b->relay_count &&
           same_numbers(a->group_of, b->group_of, a->worker_count) &&
           same_numbers(a->relays, b->relays, a->relay_count) &&
           same_numbers(a->ends, b->ends, a->group_count);
}

uint32_t groups_relay_of(const struct groups_plan *plan, uint32_t group, uint32_t owner)
{
    const uint32_t first = group == 0 ? 0 : plan->ends[group - 1];
    const uint32_t count = plan->ends[group] - first;
    if (count == 0) return CAIRN_GROUPS_ALONE;
    for (uint32_t i = 0; i < count; i++)
        if (plan->relays[first + i] == owner) return first + i;
    return first + owner % count;
}

/* ==== groups tell ==== */

/* Tells the shards about the reduce groups, and makes them forget earlier groups. */

/* Returns the shard's session, or NULL if the shard is away. A shard that is away forgets the
 * groups by itself. */
static struct coord_session *session_of(const struct coord_job *job, uint32_t shard)
{
    const struct coord_job_shard *s = &job->shards[shard];
    return s->up && s->entry->session != NULL && !s->entry->session->closing ? s->entry->session
                                                                             : NULL;
}

static bool relay_serves(const struct coord_groups *groups, uint32_t relay, uint32_t owner)
{
    return groups_relay_of(&groups->plan, groups->relays[relay].group, owner) == relay;
}

/* ---- what a shard answers ---- */

/* Takes the answer to a MemberJoin or a RelaySet. `about` is the relay's number. A shard that has
 * disconnected is told the groups again when it is back. */
static void on_groups_answered(struct coord_job *job, const void *about, cairn_status status,
                               const char *why)
{
    if (status != CAIRN_OK && status != CAIRN_ERR_CLOSED)
        (void)coord_groups_fault(job, *(const uint64_t *)about, why);
}

/* Prepares a question to the shard about the relay `number`. Returns the id with which the question
 * must be sent, or 0 if the shard cannot be asked. */
static uint32_t ask_relay(struct coord_job *job, uint32_t shard, uint64_t number,
                          struct coord_gather **gather_out)
{
    struct coord_gather *gather = coord_gather_open_job(job, on_groups_answered, &number,
                                                        sizeof number);
    if (gather == NULL) {
        (void)coord_groups_fault(job, number, "the coordinator is out of memory");
        return 0;
    }
    *gather_out = gather;
    return coord_gather_ask(gather, job->shards[shard].entry);
}

/* ---- members of the owners ---- */

/* Writes, for example, "relay s0 (ranks 0-3)". */
static void name_relay(const struct coord_job *job, const struct group_relay *relay,
                       struct sentence *out)
{
    uint32_t count;
    const uint32_t *ranks = rank_groups_at(&job->groups->now, relay->group, &count);
    sentence_set(out, "relay %s (ranks ", job->shards[relay->shard].entry->name);
    ranks_add_text(ranks, count, out);
    sentence_add(out, ")");
}

static void join_at(struct coord_job *job, const struct group_relay *relay, uint32_t owner,
                    char *name)
{
    struct coord_session *session = session_of(job, owner);
    const struct coord_shard_entry *entry = job->shards[relay->shard].entry;
    if (session == NULL) return;
    struct coord_gather *gather = NULL;
    const uint32_t request = ask_relay(job, owner, relay->number, &gather);
    if (gather == NULL) return;
    Cairn__MemberJoin join = CAIRN__MEMBER_JOIN__INIT;
    join.job = job->id;
    join.member = relay->number;
    join.token = relay->token;
    join.rank = *rank_groups_at(&job->groups->now, relay->group, &(uint32_t) { 0 });
    join.role = CAIRN_ROLE_WIRE_WORKER;
    join.relay = true;
    join.name = name;
    join.fabric_address = (ProtobufCBinaryData) { entry->fabric_address_bytes,
                                                  entry->fabric_address };
    coord_session_send(session, CAIRN_MSG_MEMBER_JOIN, request, &join.base);
    coord_gather_start(gather);
}

static void leave_at(struct coord_job *job, uint64_t number, uint32_t owner)
{
    struct coord_session *session = session_of(job, owner);
    Cairn__MemberLeave leave = CAIRN__MEMBER_LEAVE__INIT;
    if (session == NULL || !job->groups->knows[owner]) return;
    leave.job = job->id;
    leave.member = number;
    coord_session_send(session, CAIRN_MSG_MEMBER_LEAVE, 0, &leave.base);
}

/* ---- relays ---- */

/* Tells a shard that it is no longer a relay, if the shard may still take itself for a relay. */
static void release_relay(struct coord_job *job, uint32_t shard)
{
    struct coord_session *session = session_of(job, shard);
    Cairn__RelaySet set = CAIRN__RELAY_SET__INIT;
    if (session == NULL || !job->groups->may_relay[shard]) return;
    set.job = job->id;
    coord_session_send(session, CAIRN_MSG_RELAY_SET, 0, &set.base);
    job->groups->may_relay[shard] = false;
}

/* Lists the workers of the group, by rank. Returns the number of these workers. */
static size_t list_workers(const struct coord_groups *groups, uint32_t group, uint64_t *out)
{
    size_t count = 0;
    for (uint32_t w = 0; w < groups->plan.worker_count; w++)
        if (groups->plan.group_of[w] == group) out[count++] = groups->members[w];
    return count;
}

static size_t list_owners(const struct coord_job *job, uint32_t relay,
                          const struct coord_shard_infos *infos, Cairn__ShardInfo **out)
{
    size_t count = 0;
    CAIRN_EACH_SHARD (job, i)
        if (relay_serves(job->groups, relay, i)) out[count++] = &infos->infos[i];
    return count;
}

static void send_relay(struct coord_job *job, uint32_t shard, const Cairn__RelaySet *set)
{
    struct coord_gather *gather = NULL;
    const uint32_t request = ask_relay(job, shard, set->relay, &gather);
    if (gather == NULL) return;
    coord_session_send(session_of(job, shard), CAIRN_MSG_RELAY_SET, request, &set->base);
    coord_gather_start(gather);
    job->groups->may_relay[shard] = true;
}

static void set_relay(struct coord_job *job, uint32_t relay, const struct coord_shard_infos *infos)
{
    const struct coord_groups *groups = job->groups;
    const struct group_relay *r = &groups->relays[relay];
    Cairn__RelaySet set = CAIRN__RELAY_SET__INIT;
    if (session_of(job, r->shard) == NULL) return;
    uint64_t *members = calloc(groups->plan.worker_count, sizeof *members);
    Cairn__ShardInfo **owners = calloc(job->shard_count, sizeof *owners);
    if (members != NULL && owners != NULL) {
        set.job = job->id;
        set.relay = r->number;
        set.token = r->token;
        set.members = members;
        set.n_members = list_workers(groups, r->group, members);
        set.owners = owners;
        set.n_owners = list_owners(job, relay, infos, owners);
        send_relay(job, r->shard, &set);
    } else {
        (void)coord_groups_fault(job, r->number, "the coordinator is out of memory");
    }
    free(members);
    free(owners);
}

/* ---- all of it ---- */

/* Makes the owners forget the relays. */
static void groups_take_back(struct coord_job *job)
{
    struct coord_groups *groups = job->groups;
    for (uint32_t r = 0; r < groups->plan.relay_count; r++)
        CAIRN_EACH_SHARD (job, i)
            if (relay_serves(groups, r, i)) leave_at(job, groups->relays[r].number, i);
}

/* Gives each relay a number. Tells the owners about their relays, and each relay about its workers
 * and owners. Each other shard that may still take itself for a relay is told that it is no
 * relay. */
static void groups_tell(struct coord_job *job)
{
    struct coord_groups *groups = job->groups;
    struct coord_shard_infos infos;
    CAIRN_EACH_SHARD (job, i) {
        if (groups->relay_of[i] == CAIRN_GROUPS_ALONE) release_relay(job, i);
        groups->knows[i] = session_of(job, i) != NULL;
    }
    if (groups->plan.relay_count == 0) return;
    if (!coord_shard_infos_init(&infos, job, job->layout->shard_count)) {
        (void)coord_groups_fault(job, groups->relays[0].number, "the coordinator is out of memory");
        return;
    }
    for (uint32_t r = 0; r < groups->plan.relay_count; r++) {
        // A relay's number is random, not counted, because an earlier incarnation of the
        // coordinator may have given any number.
        randombytes_buf(&groups->relays[r].number, sizeof groups->relays[r].number);
        randombytes_buf(&groups->relays[r].token, sizeof groups->relays[r].token);
        groups->relays[r].number |= 1; // the number is never 0
        struct sentence name;
        name_relay(job, &job->groups->relays[r], &name);
        name.text[CAIRN_NAME_MAX] = '\0';
        CAIRN_EACH_SHARD (job, i)
            if (relay_serves(job->groups, r, i))
                join_at(job, &job->groups->relays[r], i, name.text);
    }
    for (uint32_t r = 0; r < groups->plan.relay_count; r++) set_relay(job, r, &infos);
    coord_shard_infos_release(&infos);
}

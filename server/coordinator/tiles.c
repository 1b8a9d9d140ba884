/* Keeps the tiles of a job's ranks: which rank holds which boxes, whether all boxes together make
 * up the tensors, and which shards know the tiles. See proto/wire/wire.h and TilesDeclare in
 * control.proto.
 *
 * Tiles belong to ranks and outlive sessions; they are kept in memory only. Every worker declares
 * its own tiles after each attach, even if they are known already. The core's gate holds rounds
 * back. The gate is shut until every attached worker has declared, the cover is exact, and all
 * shards know every worker's list. Then the gate lets exactly the declared ranks through. Before
 * any round can open, a new coordinator process hears from the shards (Answer.tiles_world) that the
 * job had tiles, and then waits for all declarations.
 *
 * Ranks with equal lists share one list. The coordinator sends a shard a few more lists before the
 * shard has answered the earlier lists. So a thousand ranks do not take a thousand round trips, and
 * no queue grows without limit. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"
#include "server/coordinator/job.h"
#include "server/coordinator/store.h"

enum { UNKNOWN, SENT, KNOWN }; /* the state of a member's tiles at a shard */

/* a shard has at most this many unanswered bytes, or one larger list */
#define TELL_AHEAD_BYTES   (64u << 10)
#define MEMBER_TILES_BYTES 64 /* about the bytes of a MemberTiles without its list */

/* A list that some ranks have declared. */
struct coord_tile_list {
    struct coord_tile_list *next;
    uint32_t refs; /* number of ranks that share the list */
    uint64_t hash;
    struct tiles tiles; /* owned */
    /* held: `tiles` in packed form; NULL: this is the list of whole tensors */
    struct packed *packed;
};

/* ---- lists ---- */

static void list_free(struct coord_tile_list *list)
{
    tiles_release(&list->tiles);
    packed_release(list->packed);
    free(list);
}

static void list_put(struct coord_tiles *t, struct coord_tile_list *list)
{
    if (list == NULL || --list->refs > 0) return;
    struct coord_tile_list **at = &t->lists;
    while (*at != list) at = &(*at)->next;
    *at = list->next;
    list_free(list);
}

/* Returns the list that has these tiles, and takes ownership of `tiles`. Returns NULL, and takes
 * nothing, if there is no memory. */
static struct coord_tile_list *list_get(struct coord_tiles *t, struct tiles *tiles)
{
    const uint64_t hash = tiles_digest(tiles);
    for (struct coord_tile_list *l = t->lists; l != NULL; l = l->next) {
        if (l->hash != hash || !tiles_equal(&l->tiles, tiles)) continue;
        tiles_release(tiles);
        l->refs++;
        return l;
    }
    struct coord_tile_list *list = calloc(1, sizeof *list);
    if (list == NULL) return NULL;
    list->packed = packed_tiles(tiles);
    if (list->packed == NULL) {
        free(list);
        return NULL;
    }
    list->refs = 1;
    list->hash = hash;
    list->tiles = *tiles;
    list->next = t->lists;
    t->lists = list;
    *tiles = (struct tiles) { 0 };
    return list;
}

/* ---- the table ---- */

static bool is_worker(const struct coord_member *m)
{
    return m->phase == CAIRN_MEMBER_ATTACHED && m->role == CAIRN_ROLE_WIRE_WORKER;
}

static bool is_halted(const struct coord_job *job)
{
    return job->cluster->closing || job->core == NULL || job->state == CAIRN_CLUSTER_JOB_LOST;
}

/* True if the member has declared everything, and waits for the answer. */
static bool waits_for_answer(const struct coord_member *m)
{
    return m->tiles.request != 0 && !m->tiles.arriving;
}

/* Fails the member's TilesDeclare. */
static void tiles_fail(struct coord_member *m, cairn_status status, const char *text)
{
    coord_session_error(m->session, m->tiles.request, status, text);
    m->tiles.request = 0;
}

static void forget_sent(struct coord_member *m)
{
    memset(m->tiles.known_to, UNKNOWN, m->job->shard_count);
    m->tiles.knowing = 0;
    m->tiles.serial++; // an answer that still arrives is about the earlier list
}

static void free_table(struct coord_tiles *t)
{
    while (t->lists != NULL) {
        struct coord_tile_list *list = t->lists;
        t->lists = list->next;
        list_free(list);
    }
    free(t->of_rank);
    t->of_rank = NULL;
    t->world = 0;
    t->covered = false;
}

void coord_tiles_release(struct coord_job *job)
{
    free_table(&job->tiles);
}

/* Forgets all declarations, because `by` declares other tiles. The other members that wait for an
 * answer are told the reason. The caller must call coord_gate_update afterwards. */
static void tiles_clear(struct coord_job *job, const struct coord_member *by)
{
    struct sentence why;
    sentence_set(&why,
                 "rank %" PRIu32 " declared tiles of %" PRIu32 " ranks, where %" PRIu32
                 " were said before; declare again, all ranks with the same number",
                 by->rank, by->tiles.world, job->tiles.world);
    if (job->tiles.world != 0) log_info("job %s: tiles forgotten: %s", job->spec.name, why.text);
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m != by && waits_for_answer(m)) tiles_fail(m, CAIRN_ERR_MISMATCH, why.text);
        m->tiles.declared = false;
        forget_sent(m);
    }
    free_table(&job->tiles);
}

static bool table_open(struct coord_tiles *t, uint32_t world)
{
    t->of_rank = calloc(world, sizeof *t->of_rank);
    if (t->of_rank == NULL) return false;
    t->world = world;
    return true;
}

void coord_tiles_heard(struct coord_job *job, uint32_t world)
{
    struct coord_tiles *t = &job->tiles;
    if (world == 0 || t->known || world > CAIRN_SPEC_WORKERS_MAX) return;
    log_info("job %s: its shards know tiles of %" PRIu32 " ranks; waiting for their declarations",
             job->spec.name, world);
    if (!table_open(t, world)) return; // the next Answer tries again
    t->known = t->telling = true;
    coord_gate_update(job);
}

/* Called when a member declares another list than its rank had. True: this begins new tiles for all
 * ranks. False: the ranks do not cover the tensors yet, or the member is a newcomer, whose list
 * must fit the lists of the others. */
static bool begins_anew(const struct coord_member *member)
{
    if (!member->job->tiles.covered || member->tiles.declared) return member->job->tiles.covered;
    for (const struct coord_member *m = member->job->members.list; m != NULL; m = m->next_of_job)
        if (m != member && m->tiles.declared) return false;
    return true;
}

/* Puts the tiles that the member declares, as one of member->tiles.world ranks, into the table. The
 * caller must call coord_gate_update afterwards. CAIRN_ERR_BUSY: the member contributes to an open
 * round. CAIRN_ERR_NO_MEMORY. */
static cairn_status member_tiles_set(struct coord_member *member, struct tiles *tiles,
                                     struct sentence *why)
{
    struct coord_job *job = member->job;
    struct coord_tiles *t = &job->tiles;
    const uint32_t world = member->tiles.world;
    struct coord_tile_list *before = NULL;
    if (world > 0 && job->spec.global_batch > 0)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "job %s has global_batch = %" PRIu32
                         ", whose workers hold whole tensors: it has no tiles",
                         job->spec.name, job->spec.global_batch);
    if (world == t->world && world > 0) before = t->of_rank[member->rank];
    const bool same = world == t->world &&
                      (world == 0 || (before != NULL && tiles_equal(&before->tiles, tiles)));
    if (!same && job->core != NULL && round_contributes(job->core, member->id))
        return fail_with(why, CAIRN_ERR_BUSY,
                         "rank %" PRIu32
                         " contributes to an open round: tiles change between rounds",
                         member->rank);
    if (world != t->world || (!same && begins_anew(member))) {
        tiles_clear(job, member);
        before = NULL;
        if (world > 0 && !table_open(t, world))
            return fail_with(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    }
    t->known = t->telling = true;
    if (world > 0 && !same) {
        struct coord_tile_list *list = list_get(t, tiles);
        if (list == NULL)
            return fail_with(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        list_put(t, before);
        t->of_rank[member->rank] = list;
        t->covered = false;
        forget_sent(member);
    }
    member->tiles.declared = world > 0;
    return CAIRN_OK;
}

/* Returns the box of a tensor that a rank holds, or NULL for the whole tensor. The rank must have
 * declared. */
static const struct cairn_box *tiles_box(const struct coord_job *job, uint32_t rank,
                                         uint32_t tensor)
{
    const struct coord_tile_list *list = job->tiles.of_rank[rank];
    return list != NULL ? tiles_find(&list->tiles, tensor) : NULL;
}

/* ---- telling the shards ---- */

/* Returns the tiles of the worker, which the shards must know. Returns NULL if the shards are not
 * to be told yet. */
static const struct coord_tile_list *list_of(const struct coord_member *m)
{
    static const struct coord_tile_list whole = { .hash = CAIRN_TABLE_HASH_WHOLE };
    const struct coord_tiles *t = &m->job->tiles;
    if (!is_worker(m) || !t->telling) return NULL;
    if (t->world == 0) return &whole;
    return t->covered && m->tiles.declared ? t->of_rank[m->rank] : NULL;
}

static bool all_know(const struct coord_member *m)
{
    return m->tiles.knowing == m->job->entry_count;
}

/* A MemberTiles message that is not answered yet. */
struct telling {
    uint64_t member;
    size_t bytes; /* about the bytes of the message */
    uint32_t shard, serial;
};

/* Called when a shard cannot hold the member's tiles: fails the member's declaration, or expels the
 * member. */
static void refuse_tiles(struct coord_member *member, cairn_status status, const char *why)
{
    struct coord_job *job = member->job;
    log_warn("job %s: tiles of rank %" PRIu32 ": %s", job->spec.name, member->rank, why);
    if (waits_for_answer(member)) {
        member->tiles.declared = false;
        tiles_fail(member, status, why);
        return;
    }
    const struct round_event down = { .kind = CAIRN_ROUND_WORKER_DOWN,
                                      .member = member->id,
                                      .lost = true };
    coord_halts_lost(job, member, why);
    coord_member_expel(member, status, why);
    coord_job_event(job, &down);
}

static void tell_more(struct coord_job *job, uint32_t shard);
static void gate_open_if_ready(struct coord_job *job);

static void on_tiles_answered(struct coord_job *job, const void *about, cairn_status status,
                              const char *why)
{
    const struct telling telling = *(const struct telling *)about;
    if (telling.shard >= job->shard_count || job->shards[telling.shard].entry == NULL) return;
    size_t *unanswered_bytes = &job->shards[telling.shard].tiles.unanswered_bytes;
    *unanswered_bytes -= telling.bytes < *unanswered_bytes
                             ? telling.bytes
                             // the sum may be less, because another shard may have this index by
                             // now
                             : *unanswered_bytes;
    struct coord_member *member = coord_job_member(job, telling.member);
    const bool awaited = member != NULL && member->tiles.serial == telling.serial &&
                         member->tiles.known_to[telling.shard] == SENT;
    if (awaited && status == CAIRN_OK) {
        member->tiles.known_to[telling.shard] = KNOWN;
        member->tiles.knowing++;
        if (is_halted(job)) return;
        tell_more(job, telling.shard);
        if (all_know(member)) gate_open_if_ready(job);
        return;
    }
    if (awaited) member->tiles.known_to[telling.shard] = UNKNOWN;
    if (awaited && status != CAIRN_ERR_CLOSED) refuse_tiles(member, status, why);
    coord_gate_update(job);
}

static size_t unanswered_bytes(const struct coord_tile_list *list)
{
    return MEMBER_TILES_BYTES + (list->packed != NULL ? list->packed->size : 0);
}

static void tell_tiles(struct coord_member *member, uint32_t shard,
                       const struct coord_tile_list *list)
{
    struct coord_job *job = member->job;
    struct coord_shard_entry *entry = job->shards[shard].entry;
    const size_t bytes = unanswered_bytes(list);
    const struct telling telling = { member->id, bytes, shard, member->tiles.serial };
    struct coord_gather *gather = coord_gather_open_job(job, on_tiles_answered, &telling,
                                                        sizeof telling);
    if (gather == NULL) return; // the next coord_gate_update tries again
    member->tiles.known_to[shard] = SENT;
    job->shards[shard].tiles.unanswered_bytes += bytes;
    Cairn__MemberTiles message = CAIRN__MEMBER_TILES__INIT;
    message.job = job->id;
    message.member = member->id;
    message.tiles_hash = list->hash;
    message.tiles_bytes = list->packed != NULL ? list->packed->size : 0;
    message.world = job->tiles.world;
    const uint32_t request = coord_gather_ask(gather, entry);
    coord_session_send(entry->session, CAIRN_MSG_MEMBER_TILES, request, &message.base);
    if (list->packed != NULL)
        coord_session_pages(entry->session, request, CAIRN_PAGE_TILES, list->packed);
    coord_gather_start(gather);
}

/* Tells a shard about the next workers whose tiles the shard does not know. Each call continues where the
 * previous call stopped, so each worker is visited once. */
static void tell_more(struct coord_job *job, uint32_t shard)
{
    struct coord_job_shard *s = &job->shards[shard];
    for (; s->tiles.next != NULL; s->tiles.next = s->tiles.next->next_of_job) {
        const struct coord_tile_list *list = list_of(s->tiles.next);
        if (list == NULL || s->tiles.next->tiles.known_to[shard] != UNKNOWN) continue;
        if (s->entry->session == NULL || s->entry->session->closing) return;
        if (s->tiles.unanswered_bytes > 0 &&
            s->tiles.unanswered_bytes + unanswered_bytes(list) > TELL_AHEAD_BYTES)
            return;
        tell_tiles(s->tiles.next, shard, list);
    }
}

/* Tells all shards, beginning again with the first worker. */
static void tell_all(struct coord_job *job)
{
    const struct coord_tiles *t = &job->tiles;
    if (!t->telling || (t->world > 0 && !t->covered)) return;
    CAIRN_EACH_SHARD (job, i) {
        job->shards[i].tiles.next = job->members.list;
        tell_more(job, i);
    }
}

void coord_tiles_shard_gone(struct coord_member *m, uint32_t shard)
{
    if (m->tiles.known_to[shard] == KNOWN) m->tiles.knowing--;
    m->tiles.known_to[shard] = UNKNOWN;
}

/* ---- what follows ---- */

/* When all ranks have declared, judges whether their tiles make up the tensors. */
static void judge_cover(struct coord_job *job)
{
    struct coord_tiles *t = &job->tiles;
    if (t->covered || t->world == 0) return;
    for (uint32_t r = 0; r < t->world; r++)
        if (t->of_rank[r] == NULL) return;
    struct sentence why = { "the coordinator is out of memory" };
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    const struct tiles **of_rank = calloc(t->world, sizeof *of_rank);
    for (uint32_t r = 0; of_rank != NULL && r < t->world; r++) of_rank[r] = &t->of_rank[r]->tiles;
    if (of_rank != NULL) status = tiles_cover(&job->spec, of_rank, t->world, &why);
    free(of_rank);
    t->covered = status == CAIRN_OK;
    if (t->covered) {
        const bool in_groups = job->spec.reduce_groups == CAIRN_GROUPS_HOST;
        log_info("job %s: tiles of %" PRIu32 " ranks%s", job->spec.name, t->world,
                 in_groups ? "; no reduce groups, because " CAIRN_GROUPS_NOT_OF_TILES : "");
        return;
    }
    log_warn("job %s: %s", job->spec.name, why.text);
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (!waits_for_answer(m)) continue;
        if (m->tiles.declared) {
            list_put(t, t->of_rank[m->rank]);
            t->of_rank[m->rank] = NULL;
            m->tiles.declared = false;
        }
        tiles_fail(m, status, why.text);
    }
}

static void answer_declared(struct coord_job *job)
{
    Cairn__TilesSet set = CAIRN__TILES_SET__INIT;
    set.job = job->id;
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (!waits_for_answer(m)) continue;
        coord_session_send(m->session, CAIRN_MSG_TILES_SET, m->tiles.request, &set.base);
        m->tiles.request = 0;
    }
}

/* ==== gate ==== */

/* The gate of the core. No round opens while the gate is shut. The gate is shut while tiles are declared
 * or told, and while a stage of an operation holds it (server/core/operation.c). */

static void gate_set(struct coord_job *job, bool shut)
{
    struct coord_gate *gate = &job->tiles.gate;
    const uint32_t world = job->tiles.world;
    if (gate->world == world && gate->shut == shut) return;
    *gate = (struct coord_gate) { .shut = shut, .world = world };
    const struct round_event event = { .kind = CAIRN_ROUND_GATE, .world = world, .shut = shut };
    coord_job_event(job, &event);
}

/* Opens the gate if all workers have declared, all shards know the tiles, and no operation holds
 * the gate. Otherwise shuts the gate. */
static void gate_open_if_ready(struct coord_job *job)
{
    const struct coord_tiles *t = &job->tiles;
    bool known = t->world == 0 || t->covered, all_declared = true;
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (!is_worker(m) || !t->telling) continue;
        if (list_of(m) == NULL)
            all_declared = false;
        else if (!all_know(m))
            known = false;
    }
    gate_set(job, !known || !all_declared || (coord_operations_hold(job) & CAIRN_HOLD_GATE) != 0);
    if (known) answer_declared(job);
}

void coord_gate_update(struct coord_job *job)
{
    if (is_halted(job)) return;
    if (job->rounds.in_event) {
        job->tiles.changed = true; // the update is made when the event is over
        return;
    }
    job->tiles.changed = false;
    judge_cover(job);
    tell_all(job);
    gate_open_if_ready(job);
}

/* ==== tiles declare ==== */

/* Takes the tiles that workers declare, and says for which workers a job with tiles waits. */

#define NAMES_MAX 5 /* the most names in a sentence */

static cairn_status judge_declare(const struct coord_member *member, uint32_t world, uint64_t bytes,
                                  struct sentence *why)
{
    const struct coord_options *options = member->session->cluster->options;
    uint32_t arriving = 0;
    for (const struct coord_member *m = member->session->members; m != NULL; m = m->next_of_session)
        arriving += m != member && m->tiles.arriving;
    if (arriving >= CAIRN_SESSION_PAGED_MAX)
        return fail_with(why, CAIRN_ERR_BUSY, "too many lists of tiles arrive on this connection");
    if (world > (uint64_t)options->workers_max)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "tiles of %" PRIu32 " ranks; raise round.workers_max (%" PRId64 ")", world,
                         options->workers_max);
    if (world > 0 && member->rank >= world)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "tiles of %" PRIu32 " ranks, declared by rank %" PRIu32
                         ": the ranks are 0 to %" PRIu32,
                         world, member->rank, world - 1);
    if (world == 0 && bytes > 0)
        return fail_with(why, CAIRN_ERR_INVALID, "tiles of no ranks at all");
    return CAIRN_OK;
}

static void take_declared(struct coord_member *member)
{
    struct tiles tiles = { 0 };
    struct sentence why = { "" };
    struct coord_job *job = member->job;
    member->tiles.arriving = false;
    cairn_status status = tiles_unpack(member->tiles.pages.bytes, member->tiles.pages.have_bytes,
                                       &job->spec, &tiles, &why);
    if (status == CAIRN_OK) status = member_tiles_set(member, &tiles, &why);
    tiles_release(&tiles);
    paged_release(&member->tiles.pages, 1);
    if (status != CAIRN_OK) tiles_fail(member, status, why.text);
    coord_gate_update(job);
}

static void on_tiles_declare(struct coord_member *member, uint32_t request, const void *any)
{
    const Cairn__TilesDeclare *message = any;
    struct sentence why;
    cairn_status status = judge_declare(member, message->world, message->tiles_bytes, &why);
    if (status != CAIRN_OK) {
        coord_session_error(member->session, request, status, why.text);
        return;
    }
    paged_release(&member->tiles.pages, 1);
    status = paged_init(&member->tiles.pages, CAIRN_PAGE_TILES, message->tiles_bytes);
    member->tiles.request = request;
    member->tiles.world = message->world;
    member->tiles.arriving = true;
    if (status != CAIRN_OK) {
        member->tiles.arriving = false;
        tiles_fail(member, status, "a list of tiles is larger than a coordinator takes (64 MiB)");
    } else if (paged_whole(&member->tiles.pages, 1)) {
        take_declared(member);
    }
}

void coord_tiles_page(struct coord_session *session, uint32_t request, const Cairn__Page *page)
{
    struct coord_member *member = session->members;
    while (member != NULL && (!member->tiles.arriving || member->tiles.request != request))
        member = member->next_of_session;
    if (member == NULL) return; // a page of a declaration that was refused already
    if (paged_add(&member->tiles.pages, 1, page) != CAIRN_OK) {
        member->tiles.arriving = false;
        paged_release(&member->tiles.pages, 1);
        tiles_fail(member, CAIRN_ERR_PROTOCOL, "the pages of the tiles do not follow each other");
        return;
    }
    if (paged_whole(&member->tiles.pages, 1)) take_declared(member);
}

void coord_tiles_begins(struct coord_member *member)
{
    struct coord_job *job = member->job;
    if (job->tiles.world == 0 || member->tiles.declared) return;
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->tiles.declared || m->tiles.request != 0) return;
    // No worker that has declared tiles is left, so the job continues with whole tensors.
    member->tiles.world = 0;
    tiles_clear(job, member);
    coord_gate_update(job);
}

/* ---- whom it waits for ---- */

/* A list of names in a sentence. The list ends after NAMES_MAX names. */
struct names {
    struct sentence *out;
    size_t count;
};

static void add_rank(struct names *names, const struct coord_member *m, uint32_t rank,
                     const char *what)
{
    if (names->count++ >= NAMES_MAX) return;
    sentence_add(names->out, "%s", names->count > 1 ? ", " : "");
    if (m != NULL) sentence_add(names->out, "worker %.80s of ", m->session->name);
    sentence_add(names->out, "rank %" PRIu32 " (%s)", rank, what);
}

/* Returns a malloc'ed array that has the attached worker of each rank below the world; NULL for a
 * rank that has none. Returns NULL if there is no memory. */
static const struct coord_member **by_rank(const struct coord_job *job)
{
    const struct coord_member **list = calloc(job->tiles.world, sizeof *list);
    for (const struct coord_member *m = job->members.list; list != NULL && m != NULL;
         m = m->next_of_job)
        if (m->phase == CAIRN_MEMBER_ATTACHED && m->role == CAIRN_ROLE_WIRE_WORKER &&
            m->rank < job->tiles.world)
            list[m->rank] = m;
    return list;
}

static void add_ranks(const struct coord_job *job, struct names *names)
{
    const struct coord_member **members = by_rank(job);
    for (uint32_t r = 0; members != NULL && r < job->tiles.world; r++) {
        if (members[r] == NULL)
            add_rank(names, NULL, r, "not attached");
        else if (!members[r]->tiles.declared)
            add_rank(names, members[r], r, "has not declared its tiles");
    }
    free(members);
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->phase == CAIRN_MEMBER_ATTACHED && m->role == CAIRN_ROLE_WIRE_WORKER &&
            m->rank >= job->tiles.world)
            add_rank(names, m, m->rank, "is not one of the ranks whose tiles are declared");
}

bool coord_tiles_waiting(const struct coord_job *job, struct sentence *out)
{
    struct names names = { out, 0 };
    out->text[0] = '\0';
    if (job->tiles.world > 0) add_ranks(job, &names);
    if (names.count > NAMES_MAX) sentence_add(out, " and %zu more", names.count - NAMES_MAX);
    if (names.count == 0 && job->tiles.gate.shut)
        sentence_set(out, "the shards to be told of the tiles");
    return out->text[0] != '\0';
}

/* True if all declared ranks have sent InitDone. */
static bool tiles_all_put(const struct coord_job *job)
{
    const struct coord_member **members = by_rank(job);
    bool all = members != NULL;
    for (uint32_t r = 0; all && r < job->tiles.world; r++)
        all = members[r] != NULL && members[r]->init.request != 0;
    free(members);
    return all;
}

/* ==== the initial state ==== */

/* The initial state of a job: a source puts the state, the digests of the ranks are compared, and
 * the shards seal the state. */

/* ---- replicas ---- */

/* Replicas are ranks that hold the same box of a tensor. Each replica puts its values, and the
 * values that are put last remain. So, before the state is sealed, the digests that the ranks
 * report (InitDone.held) are compared. */

enum { HELD = 8 }; /* bytes per tensor in InitDone.held */

/* Takes a member's InitDone.held. CAIRN_ERR_MALFORMED, CAIRN_ERR_NO_MEMORY. */
static cairn_status take_replicas(struct coord_member *member, const ProtobufCBinaryData *held)
{
    if (held->len != 0 && held->len != member->job->spec.tensor_count * HELD)
        return CAIRN_ERR_MALFORMED;
    uint8_t *bytes = held->len > 0 ? malloc(held->len) : NULL;
    if (held->len > 0 && bytes == NULL) return CAIRN_ERR_NO_MEMORY;
    if (bytes != NULL) memcpy(bytes, held->data, held->len);
    free(member->init.held);
    member->init.held = bytes;
    return CAIRN_OK;
}

/* The box that a rank holds of the tensor being compared, and the digest that the rank reports for it. */
struct entry {
    struct cairn_box box;
    uint32_t rank;
    const uint8_t *digest;
};

/* Orders entries by box, then by rank, so that replicas of a box are neighbours. */
static int compare_replicas(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    for (uint32_t d = 0; d < a->box.rank; d++) {
        if (a->box.start[d] != b->box.start[d]) return a->box.start[d] < b->box.start[d] ? -1 : 1;
        if (a->box.extent[d] != b->box.extent[d])
            return a->box.extent[d] < b->box.extent[d] ? -1 : 1;
    }
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Lists the ranks that report a digest of the tensor, and returns their number. */
static size_t list_entries(const struct coord_job *job, uint32_t tensor, struct entry *entries)
{
    static const uint8_t nothing[HELD] = { 0 };
    const struct cairn_box whole = box_of_shape(&job->spec.tensors[tensor].shape);
    size_t count = 0;
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m->init.request == 0 || m->init.held == NULL || m->rank >= job->tiles.world) continue;
        const uint8_t *digest = m->init.held + (size_t)tensor * HELD;
        if (memcmp(digest, nothing, HELD) == 0) continue;
        const struct cairn_box *box = tiles_box(job, m->rank, tensor);
        entries[count++] = (struct entry) { box != NULL ? *box : whole, m->rank, digest };
    }
    return count;
}

static void say_replicas_differ(const struct coord_job *job, uint32_t tensor, const struct entry *a,
                                const struct entry *b, struct sentence *why)
{
    char box[CAIRN_BOX_TEXT_BYTES];
    sentence_set(why,
                 "tensor %.200s: rank %" PRIu32 " and rank %" PRIu32
                 " hold the same box %.120s and have put different values; put it again, "
                 "from the same seed or file on both",
                 job->spec.tensors[tensor].name, a->rank, b->rank, box_text(&a->box, box));
}

/* True if all ranks that hold the same box of a tensor have put the same values. Otherwise `why` gives
 * the reason. */
static bool replicas_agree(const struct coord_job *job, struct sentence *why)
{
    size_t members = 0;
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) members++;
    struct entry *entries = calloc(members + 1, sizeof *entries);
    bool agree = true;
    if (entries == NULL) {
        sentence_set(why, "the coordinator is out of memory to compare what was put");
        return false;
    }
    for (uint32_t t = 0; agree && t < job->spec.tensor_count; t++) {
        const size_t count = list_entries(job, t, entries);
        qsort(entries, count, sizeof *entries, compare_replicas);
        for (size_t i = 1; agree && i < count; i++) {
            agree = !box_equal(&entries[i - 1].box, &entries[i].box) ||
                    memcmp(entries[i - 1].digest, entries[i].digest, HELD) == 0;
            if (!agree) say_replicas_differ(job, t, &entries[i - 1], &entries[i], why);
        }
    }
    free(entries);
    return agree;
}

/* ---- init ---- */

/* The source reports that the initial state is put. Then the shards seal the state, and all members
 * that wait are answered. Ranks that report a digest of the put state are compared with the source.
 * Ranks that report a digest of the values that they gave are compared with each other; these digests
 * are kept until this coordinator ends. The source's is kept with the job in the store, and compared
 * with what a worker brings that comes later. */

enum { HEX_BYTES = 2 * 8 + 1 }; /* the first eight bytes distinguish two digests */

static bool digest_ok(const ProtobufCBinaryData *bytes)
{
    return bytes->len == 0 || bytes->len == CAIRN_INIT_DIGEST_BYTES;
}

static void take_digest(struct init_digest *digest, const ProtobufCBinaryData *bytes, uint32_t rank)
{
    if (bytes->len == 0) return;
    digest->known = true;
    digest->rank = rank;
    memcpy(digest->bytes, bytes->data, CAIRN_INIT_DIGEST_BYTES);
}

static bool same_digest(const struct init_digest *a, const struct init_digest *b)
{
    return !a->known || !b->known || memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static void print_hex(const struct init_digest *digest, char out[HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < HEX_BYTES / 2; i++) {
        out[2 * i] = digits[digest->bytes[i] >> 4];
        out[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    out[HEX_BYTES - 1] = 0;
}

static void refuse_init(struct coord_member *member, uint32_t request,
                        const struct init_digest *here, const struct init_digest *there)
{
    char mine[HEX_BYTES], theirs[HEX_BYTES];
    struct sentence why;
    print_hex(here, mine);
    print_hex(there, theirs);
    sentence_set(&why,
                 "rank %" PRIu32 " has another initial state of job %s than rank %" PRIu32
                 ": digest %s here, %s there; begin from the same seed or file on all ranks",
                 member->rank, member->job->spec.name, there->rank, mine, theirs);
    coord_session_error(member->session, request, CAIRN_ERR_MISMATCH, why.text);
}

static void answer_init(struct coord_member *member)
{
    const uint32_t request = member->init.request;
    member->init.request = 0;
    if (same_digest(&member->init.digest, &member->job->init.source))
        coord_session_done(member->session, request);
    else
        refuse_init(member, request, &member->init.digest, &member->job->init.source);
}

/* Refuses the InitDone of every member that waits. All these members may put the state again. */
static void refuse_all(struct coord_job *job, const struct sentence *why)
{
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        const uint32_t request = m->init.request;
        m->init.request = 0;
        if (request != 0) coord_session_error(m->session, request, CAIRN_ERR_MISMATCH, why->text);
    }
}

/* Tells a worker whose puts were refused, because the job has its state, if it would have put another. */
static void compare_init(struct coord_member *member, uint32_t request,
                         const struct init_digest *here)
{
    const struct coord_job *job = member->job;
    char mine[HEX_BYTES], theirs[HEX_BYTES];
    struct sentence notice = { "" };
    Cairn__Done done = CAIRN__DONE__INIT;
    if (!same_digest(here, &job->init.source)) {
        print_hex(here, mine);
        print_hex(&job->init.source, theirs);
        sentence_set(&notice,
                     "it is at step %" PRIu64 ", and began with another initial state than this "
                     "worker brings, which is not taken: digest %s here, %s there",
                     coord_job_version(job).step, mine, theirs);
        log_fields(CAIRN_LOG_WARN, CAIRN_FIELDS({ "job", job->spec.name, 0 }),
                   "worker %s opens job %s: %s", member->session->name, job->spec.name,
                   notice.text);
    }
    done.notice = notice.text;
    coord_session_send(member->session, CAIRN_MSG_DONE, request, &done.base);
}

static void on_init_done(struct coord_member *member, uint32_t request, const void *any)
{
    const Cairn__InitDone *message = any;
    struct coord_job *job = member->job;
    struct init_digest given = { .known = false };
    if (!digest_ok(&message->digest) || !digest_ok(&message->given)) {
        coord_session_error(member->session, request, CAIRN_ERR_MALFORMED,
                            "a digest of the initial state has 32 bytes");
        return;
    }
    take_digest(&given, &message->given, member->rank);
    if (!same_digest(&given, &job->init.given)) {
        refuse_init(member, request, &given, &job->init.given);
        return;
    }
    if (!job->init.given.known) job->init.given = given;
    if (message->compares && job->initialized) {
        struct init_digest brought = { .known = false };
        take_digest(&brought, &message->digest, member->rank);
        compare_init(member, request, &brought);
        return;
    }
    // ranks with tiles put different parts, so their digests differ
    const bool tiled = job->tiles.world > 0;
    if (!tiled) take_digest(&member->init.digest, &message->digest, member->rank);
    if (message->source && !job->init.source.known) job->init.source = member->init.digest;
    const cairn_status status = take_replicas(member, &message->held);
    if (status != CAIRN_OK) {
        coord_session_error(member->session, request, status,
                            "the digests of what is held cannot be taken");
        return;
    }
    member->init.request = request;
    if (job->initialized) {
        answer_init(member);
        return;
    }
    if (message->source) job->init.sourced = true;
    if (member->rank == 0) job->init.moments_of = message->moments ? member->id : 0;
    if (tiled ? !job->init.sourced || !tiles_all_put(job) : !message->source) return;
    struct sentence why;
    if (tiled && !replicas_agree(job, &why)) {
        refuse_all(job, &why);
        return;
    }
    job->init.source = member->init.digest;
    job->init.seal_wanted = true;
    coord_job_try_seal(job);
}

/* Answers the members that wait for the initial state, if it exists. */
static void answer_all(struct coord_job *job)
{
    if (!job->initialized) return;
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->init.request != 0) answer_init(m);
}

/* ---- the seal ---- */

/* True if all shards can be asked to seal the initial state. */
static bool may_seal(const struct coord_steps *steps)
{
    const struct coord_job *job = steps->job;
    if (job->state != CAIRN_CLUSTER_JOB_INITIALIZING) return false;
    CAIRN_EACH_SHARD (job, i) {
        if (!job->shards[i].up || !coord_shard_obeys(job->shards[i].entry)) return false;
    }
    return true;
}

static cairn_status ask_to_seal(struct coord_steps *steps, struct sentence *why)
{
    const struct coord_job *job = steps->job;
    Cairn__JobSeal seal = CAIRN__JOB_SEAL__INIT;
    (void)why;
    seal.job = job->id;
    seal.moments_of = job->init.moments_of;
    coord_steps_ask_all(steps, CAIRN_MSG_JOB_SEAL, &seal.base);
    return CAIRN_OK;
}

static cairn_status judge_sealed(struct coord_steps *steps, cairn_status status,
                                 struct sentence *why)
{
    (void)why;
    if (status != CAIRN_ERR_CLOSED) {
        steps->job->init.seal_wanted = false;
        return status;
    }
    coord_steps_go(steps, 0, false); // the seal begins again now, or when the shard is back
    return CAIRN_OK;
}

static cairn_status save_initialized(struct coord_steps *steps, struct sentence *why)
{
    return coord_steps_save(steps, steps->job, CAIRN_STORE_INITIALIZED, NULL, 0, why);
}

/* The store has recorded that the initial state is complete: rounds may begin. */
static void begin_rounds(struct coord_steps *steps)
{
    struct coord_job *job = steps->job;
    job->initialized = true;
    job->state = CAIRN_CLUSTER_JOB_RUNNING;
    log_info("job %s is initialized", job->spec.name);
    const struct round_event ready = { .kind = CAIRN_ROUND_READY,
                                       .version = { job->generation, job->base_step } };
    coord_job_event(job, &ready);
    answer_all(job);
    coord_members_answer_versions(job);
}

static void fail_seal(struct coord_steps *steps, cairn_status status, const char *text)
{
    log_warn("job %s is not initialized: %s", steps->job->spec.name, text);
    for (struct coord_member *m = steps->job->members.list; m != NULL; m = m->next_of_job) {
        if (m->init.request == 0) continue;
        coord_session_error(m->session, m->init.request, status, text);
        m->init.request = 0;
    }
}

static const struct coord_step seal_steps[] = {
    { CAIRN_STEP_WAIT, .is_ready = may_seal },
    { CAIRN_STEP_ASK, .begin = ask_to_seal, .end = judge_sealed },
    { CAIRN_STEP_STORE, .begin = save_initialized },
    { .kind = CAIRN_STEP_LAST },
};

static const struct coord_operation_plan seal_plan = { seal_steps, .done = begin_rounds,
                                                       .failed = fail_seal };

void coord_job_try_seal(struct coord_job *job)
{
    struct coord_steps *seal = &job->init.seal;
    if (!job->init.seal_wanted) return;
    if (seal->at == NULL) coord_steps_start(seal, &seal_plan, job->cluster, job);
    coord_steps_advance(seal);
}

/* ==== messages ==== */

const struct coord_row coord_tiles_rows[] = {
    { CAIRN_MSG_INIT_DONE, CAIRN_FROM_WORKER, .by_member = on_init_done },
    { CAIRN_MSG_TILES_DECLARE, CAIRN_FROM_WORKER, .by_member = on_tiles_declare },
    { 0 },
};

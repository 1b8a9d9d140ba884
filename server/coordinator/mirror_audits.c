/* How the copies of a part that has standbys are compared. All have the same bits, so the checksums of an
 * audited version are the same, leaf by leaf. Where they differ, the range is divided until it is one leaf,
 * and each says whether that leaf has changed in its memory since. The sums of a round are
 * the same, too: all tell what they computed of them before the round is decided. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "server/coordinator/mirror.h"

static struct coord_mirror *mirror_of_side(struct coord_mirrors *all, int side)
{
    return side == CAIRN_AUDIT_OWNER ? NULL : &all->of[side - CAIRN_AUDIT_STANDBYS];
}

static const char *side_name(struct coord_mirrors *all, int side)
{
    const struct coord_mirror *mirror = mirror_of_side(all, side);
    return mirror != NULL ? mirror->name : coord_mirrors_owner(all);
}

/* Returns the session of a side that has all of the state; NULL: it has not, or is away. */
static struct coord_session *session_of_side(struct coord_mirrors *all, int side)
{
    const struct coord_mirror *mirror = mirror_of_side(all, side);
    if (mirror == NULL) {
        const struct coord_job *job = all->job;
        const bool is_up = all->shard < job->shard_count && job->shards[all->shard].up;
        return is_up ? job->shards[all->shard].entry->session : NULL;
    }
    const bool is_filled = mirror->state.stage == CAIRN_MIRROR_STORING ||
                           mirror->state.stage == CAIRN_MIRROR_IN_STEP;
    return is_filled && mirror->entry != NULL ? mirror->entry->session : NULL;
}

static bool is_same_round(struct mirror_report a, struct mirror_report b)
{
    return a.epoch == b.epoch && a.round == b.round;
}

/* Writes the digests to `out`, at most as many as there is room for. */
static void take_digests(struct audit_told *out, const uint64_t *digests, size_t count)
{
    out->count = (uint32_t)(count < CAIRN_AUDIT_RANGES ? count : CAIRN_AUDIT_RANGES);
    if (out->count > 0) memcpy(out->digests, digests, out->count * sizeof *digests);
}

/* Finds the first range in which both are known, and differ. */
static bool find_difference(const struct audit_told *a, const struct audit_told *b, uint32_t *out)
{
    for (uint32_t i = 0; i < a->count && i < b->count; i++) {
        if (a->digests[i] == 0 || b->digests[i] == 0 || a->digests[i] == b->digests[i]) continue;
        *out = i;
        return true;
    }
    return false;
}

static void begin_look(struct coord_mirrors *all, uint64_t first, uint64_t count)
{
    Cairn__AuditLook look = CAIRN__AUDIT_LOOK__INIT;
    memset(&all->look, 0, sizeof all->look);
    all->look.first = look.first = first;
    all->look.count = look.count = count;
    look.job = all->job->id;
    for (int side = 0; side < CAIRN_AUDIT_SIDES; side++) {
        struct coord_session *session = session_of_side(all, side);
        all->look.is_asked[side] = session != NULL;
        if (session != NULL) coord_session_send(session, CAIRN_MSG_AUDIT_LOOK, 0, &look.base);
    }
}

/* Looks into one of the ranges of a range. */
static void look_into(struct coord_mirrors *all, uint64_t first, uint64_t count, uint32_t range)
{
    const uint64_t step = audit_range(count), from = range * step;
    if (from >= count) return; // more digests than there are ranges: a shard that is broken
    begin_look(all, first + from, count - from < step ? count - from : step);
}

/* True if a standby has yet to publish the version that the owner told of. Without its word, two of three
 * copies would be taken for all. */
static bool lacks_a_word(struct coord_mirrors *all)
{
    const struct mirror_report owner = all->audited[CAIRN_AUDIT_OWNER].of;
    for (int i = CAIRN_AUDIT_STANDBYS; i < CAIRN_AUDIT_SIDES; i++) {
        if (session_of_side(all, i) != NULL && !is_same_round(all->audited[i].of, owner))
            return true;
    }
    return false;
}

/* Compares the owner with each standby. While it is looked for what differs, the version is not committed. */
static void compare_audits(struct coord_mirrors *all)
{
    const struct audit_told *owner = &all->audited[CAIRN_AUDIT_OWNER];
    uint32_t range;
    if (owner->all == 0 || session_of_side(all, CAIRN_AUDIT_OWNER) == NULL || lacks_a_word(all))
        return;
    for (int i = CAIRN_AUDIT_STANDBYS; i < CAIRN_AUDIT_SIDES && all->look.count == 0; i++) {
        const struct audit_told *told = &all->audited[i];
        if (session_of_side(all, i) == NULL || owner->all != told->all ||
            !find_difference(owner, told, &range))
            continue;
        log_error("job %s: shard %s and its standby %s differ in the state that round %" PRIu64
                  " made: one of the two has bad memory; looking where",
                  all->job->spec.name, coord_mirrors_owner(all), side_name(all, i), told->of.round);
        look_into(all, 0, owner->all, range);
    }
}

void coord_mirrors_take_audit(struct coord_mirrors *all, int side,
                              const Cairn__Published *published)
{
    struct audit_told *told = &all->audited[side];
    told->of = (struct mirror_report) { published->epoch, published->round };
    told->all = published->n_audit > 0 ? published->audited : 0;
    take_digests(told, published->audit, published->n_audit);
    compare_audits(all);
}

void coord_mirrors_forget_audits(struct coord_mirrors *all)
{
    all->look.count = 0;
    memset(all->audited, 0, sizeof all->audited);
}

void coord_mirror_forget_audits(struct coord_mirror *mirror)
{
    struct coord_mirrors *all = mirror->all;
    all->look.count = 0;
    memset(&all->audited[CAIRN_AUDIT_STANDBYS + (mirror - all->of)], 0, sizeof all->audited[0]);
    compare_audits(all); // another one may differ, too
}

static_assert(CAIRN_AUDIT_SIDES == 3, "whoever is outvoted is so by both others");

/* Says who has another leaf than both others. Returns its side; -1: it is not known. */
static int outvote(struct coord_mirrors *all, const char *leaf, struct sentence *why)
{
    uint64_t digests[CAIRN_AUDIT_SIDES] = { 0 };
    for (int side = 0; side < CAIRN_AUDIT_SIDES; side++)
        if (all->look.told[side].count > 0) digests[side] = all->look.told[side].digests[0];
    const int wrong = mirror_outvoted(digests, CAIRN_AUDIT_SIDES);
    if (wrong < 0) return -1;
    const int others[2] = { wrong == 0 ? 1 : 0, wrong == 2 ? 1 : 2 };
    sentence_set(
        why,
        "%s is wrong at shard %s: shards %s and %s have the same, and it has not: test the "
        "memory and the processor of its host",
        leaf, side_name(all, wrong), side_name(all, others[0]), side_name(all, others[1]));
    return wrong;
}

/* True if the standby's leaf is not the owner's. */
static bool has_other_leaf(const struct coord_mirrors *all, int side)
{
    const struct audit_told *told = all->look.told;
    uint32_t range;
    return told[side].changed || find_difference(&told[CAIRN_AUDIT_OWNER], &told[side], &range);
}

static void end_mirrors_that_differ(struct coord_mirrors *all, const char *why)
{
    bool differs[CAIRN_AUDIT_SIDES];
    for (int i = CAIRN_AUDIT_STANDBYS; i < CAIRN_AUDIT_SIDES; i++)
        differs[i] = has_other_leaf(all, i);
    coord_mirrors_forget_audits(all);
    for (int i = CAIRN_AUDIT_STANDBYS; i < CAIRN_AUDIT_SIDES; i++)
        if (differs[i]) coord_mirror_end(mirror_of_side(all, i), "%s", why);
}

/* Names the first standby that differs. */
static const char *name_other(struct coord_mirrors *all)
{
    int side = CAIRN_AUDIT_STANDBYS;
    while (side + 1 < CAIRN_AUDIT_SIDES && !has_other_leaf(all, side)) side++;
    return side_name(all, side);
}

/* `what`: a sentence, how both standbys contradict the owner. One of them takes the place. */
static void stop_owner(const struct coord_mirrors *all, const char *what)
{
    Cairn__AuditLook look = CAIRN__AUDIT_LOOK__INIT;
    look.job = all->job->id;
    look.outvoted = wire_text(what);
    coord_session_send(all->job->shards[all->shard].entry->session, CAIRN_MSG_AUDIT_LOOK, 0,
                       &look.base);
}

/* The leaf is known. A side of which the leaf changed in memory has stopped its part itself: the owner's
 * place is taken, or the mirror is over. Otherwise all are as their updates left them: two copies do not
 * tell which of the updates was wrong, and of three the one that is unlike the others was. */
static void end_look(struct coord_mirrors *all, const char *leaf)
{
    struct coord_job *job = all->job;
    struct sentence why;
    int changed = -1, changes = 0;
    for (int side = 0; side < CAIRN_AUDIT_SIDES; side++) {
        if (!all->look.told[side].changed) continue;
        changed = side;
        changes++;
    }
    int wrong = changes == 1 ? changed : -1;
    if (changes == 1)
        sentence_set(&why, "%s changed in the memory of shard %s", leaf, side_name(all, wrong));
    else if ((wrong = outvote(all, leaf, &why)) < 0)
        sentence_set(
            &why,
            "%s differs between shard %s and its standby %s, and it cannot be known which "
            "of the two is wrong: test the memory of both hosts, and restore a snapshot if "
            "it is that of the shard",
            leaf, coord_mirrors_owner(all), name_other(all));
    log_error("job %s: %s", job->spec.name, why.text);
    coord_event_note(job->cluster, CAIRN_EVENT_STOPPED, job->spec.name, NULL, "%s", why.text);
    if (wrong != CAIRN_AUDIT_OWNER) end_mirrors_that_differ(all, why.text);
    if (wrong != CAIRN_AUDIT_OWNER || changes != 0) return;
    // its version is not committed: a standby takes the place
    sentence_set(&why, "its state is not what both of its standbys made of the same sums: %s",
                 leaf);
    stop_owner(all, why.text);
}

/* Goes on when all have told that were asked. */
static void look_on(struct coord_mirrors *all, const char *leaf)
{
    const struct audit_told *told = all->look.told;
    uint32_t range;
    for (int side = 0; side < CAIRN_AUDIT_SIDES; side++)
        if (all->look.is_asked[side] && told[side].all == 0) return;
    for (int i = CAIRN_AUDIT_STANDBYS; i < CAIRN_AUDIT_SIDES && all->look.count > 1; i++) {
        if (!find_difference(&told[CAIRN_AUDIT_OWNER], &told[i], &range)) continue;
        look_into(all, all->look.first, all->look.count, range);
        return;
    }
    end_look(all, leaf[0] != '\0' ? leaf : "a part of the state");
}

void coord_mirror_looked(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__AuditLooked *looked = any;
    const struct coord_job *job = coord_job_by_id(session->cluster, looked->job);
    (void)request;
    if (job == NULL || session->entry == NULL) return;
    for (struct coord_mirrors *all = job->loss.mirrors; all != NULL; all = all->next) {
        if (all->look.count == 0 || all->look.first != looked->first ||
            all->look.count != looked->count)
            continue;
        int side = 0;
        while (side < CAIRN_AUDIT_SIDES && session_of_side(all, side) != session) side++;
        if (side == CAIRN_AUDIT_SIDES || !all->look.is_asked[side]) continue;
        struct audit_told *told = &all->look.told[side];
        take_digests(told, looked->digests, looked->n_digests);
        told->all = 1; // it has told
        told->changed = looked->changed;
        look_on(all, looked->leaf);
        return;
    }
}

/* ---- the sums of a round ---- */

struct sums_told coord_mirrors_sums(const Cairn__Reduced *reduced)
{
    uint64_t hashes[2] = { 0, 1 };
    for (size_t i = 0; i < reduced->n_values; i++) {
        const Cairn__ReducedValue *value = reduced->values[i];
        if (value->key > 2) continue;
        hashes[1] = chunk_checksum(value->value.data, value->value.len) + value->key;
        hashes[0] = chunk_checksum(hashes, sizeof hashes);
    }
    return (struct sums_told) { { reduced->epoch, reduced->round }, hashes[0] | 1 };
}

bool coord_mirror_told_sums(const struct coord_mirror *mirror)
{
    return is_same_round(mirror->sums.of, mirror->all->sums.of);
}

/* Says which sides differ. `wrong`: the one that both others contradict; -1: there is none. */
static void say_sums_differ(struct coord_mirrors *all, int wrong, const struct coord_mirror *first,
                            int count)
{
    struct coord_job *job = all->job;
    const uint64_t round = all->sums.of.round;
    struct sentence text;
    if (wrong >= 0)
        sentence_set(&text,
                     "shard %s computed of the sums of round %" PRIu64
                     " what both other copies contradict: test the memory and the processor of its "
                     "host",
                     side_name(all, wrong), round);
    else
        sentence_set(&text,
                     "shard %s and its standby %s differ in the sums of round %" PRIu64
                     ", and it cannot be known which of the %s is wrong: test the memory of their "
                     "hosts",
                     coord_mirrors_owner(all), first->name, round,
                     count > 1 ? "three copies" : "two");
    log_error("job %s: %s", job->spec.name, text.text);
    coord_event_note(job->cluster, CAIRN_EVENT_STOPPED, job->spec.name, NULL, "%s", text.text);
}

bool coord_mirrors_judge_sums(struct coord_mirrors *all)
{
    uint64_t hashes[CAIRN_AUDIT_SIDES] = { all->sums.hash };
    struct coord_mirror *differs[CAIRN_STANDBYS_MAX];
    const uint64_t round = all->sums.of.round;
    int count = 0;
    bool is_awaited = false;
    struct sentence why;
    for (int side = CAIRN_AUDIT_STANDBYS; side < CAIRN_AUDIT_SIDES; side++) {
        struct coord_mirror *mirror = mirror_of_side(all, side);
        if (!mirror_takes_part(&mirror->state) || mirror->entry == NULL) continue;
        is_awaited = is_awaited || !coord_mirror_told_sums(mirror);
        if (!coord_mirror_told_sums(mirror)) continue;
        hashes[side] = mirror->sums.hash;
        if (mirror->sums.hash == all->sums.hash)
            mirror_hears(&mirror->state, CAIRN_MIRROR_REDUCED, all->sums.of);
        else
            differs[count++] = mirror;
    }
    if (count == 0 || is_awaited) return true;
    const int wrong = mirror_outvoted(hashes, CAIRN_AUDIT_SIDES);
    say_sums_differ(all, wrong, differs[0], count);
    if (wrong == CAIRN_AUDIT_OWNER && coord_mirrors_may_take(all->job, all->shard)) {
        sentence_set(&why, "its sums of round %" PRIu64 " are not those that both standbys fetched",
                     round);
        stop_owner(all, why.text);
        return false;
    }
    // the end of one has the reports judged again, and the other is to be ended once
    for (int i = 0; i < count; i++) differs[i]->sums = (struct sums_told) { .hash = 0 };
    for (int i = 0; i < count; i++)
        coord_mirror_end(differs[i], "its sums of round %" PRIu64 " were not those of the owner",
                         round);
    return true;
}

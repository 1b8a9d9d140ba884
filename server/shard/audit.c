/* Audits: part.h has the picture. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "server/shard/part.h"
#include "server/shard/shard.h"
#include "server/shard/state.h"

#define CHANGED_TEXT "its state changed in the memory of this host, and nothing wrote it: "
#define TEST_TEXT    "; test this host's memory before it is trusted again"

/* ---- the checksums of a layout ---- */

static bool is_open(const struct audit_checks *checks)
{
    return checks->before != NULL;
}

void audit_checks_close(struct audit_checks *checks)
{
    free(checks->before);
    for (int p = 0; p < CAIRN_PLANE_COUNT; p++) free(checks->of[p]);
    *checks = (struct audit_checks) { .map = NULL };
}

static bool any_stores(const struct shard_map *map, const struct form *forms, int plane)
{
    size_t i = 0;
    while (i < map->extent_count && !form_stores(&forms[i], plane)) i++;
    return i < map->extent_count;
}

/* Makes checksums that are not known yet. CAIRN_ERR_NO_MEMORY. */
static cairn_status checks_open(struct audit_checks *checks, const struct shard_map *map,
                                const struct form *forms)
{
    *checks = (struct audit_checks) { .map = map };
    checks->before = calloc(map->extent_count + 1, sizeof *checks->before);
    bool have = checks->before != NULL;
    for (int p = 0; p < CAIRN_PLANE_COUNT && have; p++) {
        if (!any_stores(map, forms, p)) continue;
        checks->of[p] = calloc((size_t)map->leaf_count + 1, sizeof *checks->of[p]);
        have = checks->of[p] != NULL;
    }
    for (size_t i = 0; i < map->extent_count && have; i++)
        checks->before[i + 1] = checks->before[i] + map->extents[i].leaf_count;
    if (have) return CAIRN_OK;
    audit_checks_close(checks);
    return CAIRN_ERR_NO_MEMORY;
}

/* Returns the number of a leaf, which an extent has, among the leaves of the part. */
static uint64_t number_of(const struct audit_checks *checks, size_t extent, uint64_t leaf)
{
    return checks->before[extent] + leaf - checks->map->extents[extent].first_leaf;
}

/* A leaf of a plane. */
struct leaf_place {
    enum plane plane;
    size_t extent;
    uint64_t leaf; /* of the tensor */
};

/* Returns the leaf that the checksum `at` is of. */
static struct leaf_place place_of(const struct audit_checks *checks, const uint64_t *at)
{
    const struct shard_map *map = checks->map;
    int plane = 0;
    size_t extent = 0;
    while (checks->of[plane] == NULL || at < checks->of[plane] ||
           at >= checks->of[plane] + map->leaf_count)
        plane++;
    const uint64_t number = (uint64_t)(at - checks->of[plane]);
    while (checks->before[extent + 1] <= number) extent++;
    return (struct leaf_place) {
        (enum plane)plane, extent, map->extents[extent].first_leaf + number - checks->before[extent]
    };
}

/* Says which leaf the checksum `at` is of. */
static void locate(const struct shard_job *job, const struct audit_checks *checks,
                   const uint64_t *at, struct sentence *out)
{
    const struct leaf_place place = place_of(checks, at);
    const struct local_extent *of = &checks->map->extents[place.extent];
    const struct geometry *geometry = &checks->map->layout->geometry[of->tensor];
    sentence_add(out, "%s of tensor %s, elements %" PRIu64 " to %" PRIu64 " (leaf %" PRIu64 ")",
                 plane_name((int)place.plane), job->spec.tensors[of->tensor].name,
                 leaf_start(geometry, place.leaf), leaf_start(geometry, place.leaf + 1) - 1,
                 place.leaf);
}

/* ---- the checksums of a job ---- */

static void close_checks(struct shard_job *job)
{
    struct audit *audit = &job->audit;
    audit_checks_close(&audit->checks);
    shard_job_give(job, &job->memory.tables, audit->counted_bytes);
    audit->counted_bytes = 0;
    memset(audit->steps, 0, sizeof audit->steps);
    audit->count = 0;
}

/* Counts checksums that were made. */
static cairn_status count_checks(struct shard_job *job, struct sentence *why)
{
    struct audit *audit = &job->audit;
    const struct shard_map *map = audit->checks.map;
    uint64_t bytes = (map->extent_count + 1) * sizeof(uint64_t);
    for (int p = 0; p < CAIRN_PLANE_COUNT; p++)
        if (audit->checks.of[p] != NULL) bytes += (map->leaf_count + 1) * sizeof(uint64_t);
    CAIRN_TRY(shard_job_take(job, &job->memory.tables, bytes, "the checksums of audits", why));
    audit->counted_bytes = bytes;
    return CAIRN_OK;
}

static void open_checks(struct shard_job *job)
{
    struct sentence why;
    cairn_status status = checks_open(&job->audit.checks, &job->view->table.map, job->view->forms);
    if (status != CAIRN_OK)
        status = fail_with(&why, status, "out of memory for the checksums of audits");
    else
        status = count_checks(job, &why);
    if (status == CAIRN_OK) return;
    close_checks(job);
    log_limited(&job->audit.said, CAIRN_LOG_ERROR,
                "job %s: its state is not audited here, though audit_every is %" PRIu64 ": %s",
                job->spec.name, job->audit.every, why.text);
}

void audit_want(struct shard_job *job, uint64_t every)
{
    job->audit.every = every;
}

void audit_begin(struct shard_job *job, bool is_seal)
{
    struct audit *audit = &job->audit;
    const bool is_on_device = job->planes.host_from != 0,
               is_wanted = audit->every != 0 && !is_on_device;
    if (audit->every != 0 && is_on_device)
        log_limited(&audit->said, CAIRN_LOG_ERROR,
                    "job %s: its state lies on a device, and is not audited, though audit_every is "
                    "%" PRIu64,
                    job->spec.name, audit->every);
    if (!is_wanted && is_open(&audit->checks)) close_checks(job);
    if (is_wanted && !is_open(&audit->checks)) open_checks(job);
    audit->turns = audit->turn = 0;
    atomic_store(&audit->lacks, false);
    if (!is_open(&audit->checks) || is_seal) return;
    const uint64_t step = job->pass.version_next.step;
    audit->takes = step % audit->every == 0;
    if (job->pass.update_writes) { // what a write overwrites in part is compared as a whole
        audit->turns = 1;
    } else if ((step - 1) % audit->every == 0) {
        audit->turns = CAIRN_AUDIT_TURNS;
        audit->turn = audit->count % CAIRN_AUDIT_TURNS;
    }
}

/* Takes the checksums of the leaves of an extent that the part had before. */
static void take_over(struct audit_checks *to, size_t extent, const struct audit_checks *from)
{
    const struct local_extent *of = &to->map->extents[extent];
    const uint64_t end = of->first_leaf + of->leaf_count;
    for (uint64_t leaf = of->first_leaf, some = 1; leaf < end; leaf += some) {
        const struct local_extent *had = shard_map_find(from->map, of->tensor, leaf);
        some = 1;
        if (had == NULL) continue;
        const uint64_t left = had->first_leaf + had->leaf_count - leaf;
        some = left < end - leaf ? left : end - leaf;
        const uint64_t at = number_of(to, extent, leaf),
                       was = number_of(from, (size_t)(had - from->map->extents), leaf);
        for (int p = 0; p < CAIRN_PLANE_COUNT; p++)
            if (to->of[p] != NULL && from->of[p] != NULL)
                memcpy(to->of[p] + at, from->of[p] + was, (size_t)some * sizeof(uint64_t));
    }
}

void audit_switch(struct shard_job *job, const struct shard_view *next)
{
    struct audit_checks before = job->audit.checks, checks;
    if (!is_open(&before)) return;
    const bool is_made = checks_open(&checks, &next->table.map, next->forms) == CAIRN_OK;
    for (size_t i = 0; is_made && i < next->table.map.extent_count; i++)
        take_over(&checks, i, &before);
    close_checks(job); // without memory the next UPDATE tries again
    if (!is_made) return;
    struct sentence why;
    job->audit.checks = checks;
    if (count_checks(job, &why) != CAIRN_OK) close_checks(job);
}

void audit_forget(struct shard_job *job)
{
    if (is_open(&job->audit.checks)) close_checks(job);
}

/* ---- the end of an UPDATE ---- */

static void say_found(const struct shard_job *job, struct sentence *why)
{
    const struct check_found *found = &job->audit.found;
    const uint32_t count = atomic_load(&found->count);
    sentence_set(why, CHANGED_TEXT);
    locate(job, &job->audit.checks, found->at[0], why);
    if (count > 1) sentence_add(why, ", and %" PRIu32 " more leaves", count - 1);
    sentence_add(why, TEST_TEXT);
}

bool audit_end(struct shard_job *job)
{
    struct audit *audit = &job->audit;
    if (!is_open(&audit->checks)) return false;
    if (atomic_load(&audit->found.count) > 0) {
        struct sentence why;
        say_found(job, &why);
        shard_job_fault(job, why.text);
        return true;
    }
    if (audit->turns == CAIRN_AUDIT_TURNS) {
        if (!atomic_load(&audit->lacks)) audit->steps[audit->turn] = job->pass.version_next.step;
        audit->count++;
    }
    return false;
}

uint64_t audit_since(const struct shard_job *job)
{
    uint64_t since = UINT64_MAX;
    for (uint32_t i = 0; i < CAIRN_AUDIT_TURNS; i++)
        if (job->audit.steps[i] < since) since = job->audit.steps[i];
    return since;
}

/* ---- compared with the standby's ---- */

/* Checksums are counted by plane, and by leaf in each. Returns the n-th. */
static uint64_t *check_at(const struct audit_checks *checks, uint64_t n)
{
    const uint64_t leaves = checks->map->leaf_count;
    int plane = 0;
    for (uint64_t planes = n / leaves;; plane++)
        if (checks->of[plane] != NULL && planes-- == 0) return checks->of[plane] + n % leaves;
}

static uint64_t count_all(const struct audit_checks *checks)
{
    uint64_t planes = 0;
    for (int p = 0; p < CAIRN_PLANE_COUNT; p++) planes += checks->of[p] != NULL;
    return planes * checks->map->leaf_count;
}

/* The checksums are hashes already. 0: one of them is not known. */
static uint64_t digest_of(const struct audit_checks *checks, uint64_t first, uint64_t count)
{
    uint64_t digest = count;
    for (uint64_t n = first; n < first + count; n++) {
        const uint64_t check = *check_at(checks, n);
        if (check == 0) return 0;
        digest = (digest ^ check) * UINT64_C(0x9e3779b97f4a7c15);
        digest ^= digest >> 29;
    }
    return digest != 0 ? digest : 1;
}

uint64_t audit_digests(const struct shard_job *job, uint64_t first, uint64_t count,
                       uint64_t out[static CAIRN_AUDIT_RANGES], size_t *digests_out)
{
    const struct audit_checks *checks = &job->audit.checks;
    *digests_out = 0;
    if (!is_open(checks) || !job->audit.takes || job->pass.updating) return 0;
    const uint64_t all = count_all(checks);
    if (first > all) return 0;
    if (count > all - first) count = all - first;
    const uint64_t step = audit_range(count);
    for (uint64_t n = 0; n < count; n += step)
        out[(*digests_out)++] = digest_of(checks, first + n, count - n < step ? count - n : step);
    return all;
}

/* Makes the checksum of the leaf as it is in memory now. */
static uint64_t check_now(const struct shard_job *job, const uint64_t *check)
{
    const struct audit_checks *checks = &job->audit.checks;
    const struct leaf_place at = place_of(checks, check);
    const struct local_extent *of = &checks->map->extents[at.extent];
    const struct geometry *geometry = &checks->map->layout->geometry[of->tensor];
    const uint64_t begin = leaf_start(geometry, of->first_leaf),
                   from = leaf_start(geometry, at.leaf), to = leaf_start(geometry, at.leaf + 1);
    const size_t elem = dtype_size((int)form_dtype(&job->view->forms[at.extent], at.plane));
    const uint8_t *bytes = planes_at(&job->planes, at.plane, (uint32_t)at.extent,
                                     of->local_elem + from - begin);
    return backend_host()->check(bytes, (size_t)(to - from) * elem);
}

/* The coordinator looks for what differs between this part and its mirror, or its owner's. */
static void on_look(struct shard_job *job, const void *body)
{
    const Cairn__AuditLook *look = body;
    Cairn__AuditLooked looked = CAIRN__AUDIT_LOOKED__INIT;
    uint64_t digests[CAIRN_AUDIT_RANGES];
    struct sentence leaf = { "" }, why;
    if (look->outvoted[0] != '\0') {
        sentence_set(&why, "%s" TEST_TEXT, look->outvoted);
        shard_job_fault(job, why.text);
        return;
    }
    looked.job = job->number;
    looked.first = look->first;
    looked.count = look->count;
    looked.digests = digests;
    const uint64_t all = audit_digests(job, look->first, look->count, digests, &looked.n_digests);
    if (look->count == 1 && look->first < all) {
        const uint64_t *check = check_at(&job->audit.checks, look->first);
        locate(job, &job->audit.checks, check, &leaf);
        looked.changed = check_now(job, check) != *check;
    }
    looked.leaf = leaf.text;
    session_send(job->shard, CAIRN_MSG_AUDIT_LOOKED, 0, &looked.base);
    if (!looked.changed) return;
    sentence_set(&why, CHANGED_TEXT "%s" TEST_TEXT, leaf.text);
    shard_job_fault(job, why.text);
}

/* ---- any thread ---- */

/* Returns the number of a chunk's first leaf. */
static uint64_t first_of(const struct shard_job *job, uint32_t chunk,
                         const struct chunk_place *place)
{
    return number_of(&job->audit.checks, job->pass.table->extent_of[chunk], place->first_leaf);
}

/* A leaf with this checksum is about to be compared. */
static void note_lack(struct audit *audit, uint64_t check)
{
    if (check == 0) atomic_store(&audit->lacks, true);
}

void audit_update(struct shard_job *job, uint32_t chunk, const struct chunk_place *place,
                  struct update_checks *out)
{
    struct audit *audit = &job->audit;
    const uint32_t extent = job->pass.table->extent_of[chunk];
    if (!is_open(&audit->checks)) return;
    const uint64_t first = first_of(job, chunk, place);
    size_t count = 0;
    for (enum plane p = 0; p < CAIRN_PLANE_COUNT; p++) {
        if (!form_stores(&job->view->forms[extent], (int)p)) continue;
        out->of[count].plane = planes_at(&job->planes, p, extent, place->local_elem);
        out->of[count].checks = audit->checks.of[p] + first;
        for (uint64_t i = 0; audit->turns != 0 && i < place->leaf_count; i++)
            note_lack(audit, out->of[count].checks[i]);
        count++;
    }
    out->geometry = &job->pass.table->map.layout->geometry[place->tensor];
    out->first_leaf = place->first_leaf;
    out->leaf_count = place->leaf_count;
    out->found = &audit->found;
    out->takes = audit->takes;
}

/* Goes through the leaves of a chunk, in each plane of state. */
static void look(struct shard_job *job, uint32_t chunk, bool takes)
{
    struct audit *audit = &job->audit;
    const struct chunk_place place = shard_map_chunk(&job->pass.table->map, chunk);
    const struct geometry *geometry = &job->pass.table->map.layout->geometry[place.tensor];
    const uint32_t extent = job->pass.table->extent_of[chunk];
    const struct form *form = &job->view->forms[extent];
    const uint64_t first = first_of(job, chunk, &place),
                   begin = leaf_start(geometry, place.first_leaf);
    for (uint64_t i = 0; i < place.leaf_count; i++) {
        if (!takes && (first + i) % audit->turns != audit->turn) continue;
        const uint64_t at = leaf_start(geometry, place.first_leaf + i) - begin,
                       end = leaf_start(geometry, place.first_leaf + i + 1) - begin;
        for (enum plane p = 0; p < CAIRN_PLANE_COUNT; p++) {
            if (!form_stores(form, (int)p)) continue;
            const uint8_t *bytes = planes_at(&job->planes, p, extent, place.local_elem);
            const size_t elem = dtype_size((int)form_dtype(form, p));
            const uint64_t is = backend_host()->check(bytes + at * elem, (size_t)(end - at) * elem);
            uint64_t *check = &audit->checks.of[p][first + i];
            if (!takes) note_lack(audit, *check);
            if (takes || *check == 0)
                *check = is;
            else if (*check != is)
                check_found_add(&audit->found, check);
        }
    }
}

void audit_compare(struct shard_job *job, uint32_t chunk)
{
    if (is_open(&job->audit.checks) && job->audit.turns != 0) look(job, chunk, false);
}

void audit_take(struct shard_job *job, uint32_t chunk)
{
    if (is_open(&job->audit.checks)) look(job, chunk, true);
}

/* ---- a pinned version ---- */

void audit_copy(struct shard_job *job, struct audit_checks *out)
{
    const struct audit_checks *from = &job->audit.checks;
    *out = (struct audit_checks) { .map = NULL };
    if (!is_open(from)) return;
    if (checks_open(out, from->map, job->view->forms) != CAIRN_OK) {
        log_warn("job %s: out of memory to compare a snapshot with the checksums of audits",
                 job->spec.name);
        return;
    }
    for (int p = 0; p < CAIRN_PLANE_COUNT; p++)
        if (out->of[p] != NULL)
            memcpy(out->of[p], from->of[p], (size_t)from->map->leaf_count * sizeof(uint64_t));
}

cairn_status audit_judge(const struct shard_job *job, const struct audit_checks *checks,
                         size_t extent, enum plane plane, uint64_t first_leaf, uint64_t leaves,
                         const uint8_t *bytes, size_t elem_bytes, struct sentence *why)
{
    if (!is_open(checks)) return CAIRN_OK;
    const struct geometry *geometry =
        &checks->map->layout->geometry[checks->map->extents[extent].tensor];
    const uint64_t *check = checks->of[plane] + number_of(checks, extent, first_leaf);
    for (uint64_t i = 0; i < leaves; i++) {
        const size_t size = (size_t)(leaf_start(geometry, first_leaf + i + 1) -
                                     leaf_start(geometry, first_leaf + i)) *
                            elem_bytes;
        if (check[i] != 0 && check[i] != backend_host()->check(bytes, size)) {
            sentence_set(why, "what was to be saved or sent changed in the memory of this host, "
                              "and nothing wrote it: ");
            locate(job, checks, &check[i], why);
            return CAIRN_ERR_CHECKSUM;
        }
        bytes += size;
    }
    return CAIRN_OK;
}

static const struct shard_message messages[] = { { CAIRN_MSG_AUDIT_LOOK, .on_job = on_look },
                                                 { 0 } };
const struct shard_module audit_module = { .messages = messages,
                                           .on = { [SHARD_JOB_FREED] = close_checks } };

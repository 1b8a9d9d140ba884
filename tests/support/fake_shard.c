#include "tests/support/fake_move.h"
#include "tests/support/fake_shard.h"
#include "tests/support/pages.h"
#include "tests/support/snapshot_sample.h"

#include <check.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "proto/snapshot/digest_tree.h"
#include "proto/snapshot_io/snapshot_io.h"
#include "proto/spec/spec.h"

static void free_part(struct part *part);

static void drop_staged(struct fake_shard *shard)
{
    if (shard->staged == NULL) return;
    fake_shard_clear(shard->staged);
    free(shard->staged);
    shard->staged = NULL;
}

void fake_shard_clear(struct fake_shard *shard)
{
    drop_staged(shard);
    fake_move_clear(shard);
    if (shard->has_job) spec_release(&shard->spec);
    layout_close(shard->layout);
    paged_release(&shard->spec_pages, 1);
    paged_release(&shard->layout_pages, 1);
    paged_release(&shard->tiles_pages, 1);
    shard->layout = NULL;
    shard->tiles_world = 0;
    paged_release(&shard->terms_pages, 1);
    shard->has_job = shard->reduced = shard->settled = shard->serving = shard->parked = false;
    shard->round_seen = 0;
    shard->epoch = 0;
    shard->round = shard->create_request = 0;
    free_part(shard->telling);
    shard->telling = NULL;
    shard->held_pin = 0;
    shard->last = (struct decision) { .kind = CAIRN_DECISION_NONE };
}

static void done(struct fake_shard *shard, uint32_t request)
{
    fake_say(&shard->peer, request, Done);
}

static void refuse(struct fake_shard *shard, uint32_t request, cairn_status status,
                   const char *text)
{
    fake_say(&shard->peer, request, Error, .status = (int32_t)status, .text = wire_text(text));
}

static void keep(struct fake_shard *shard, const Cairn__Decision *decision)
{
    ck_assert_uint_le(decision->payload.len, sizeof shard->payload);
    if (decision->payload.len > 0) {
        memcpy(shard->payload, decision->payload.data, decision->payload.len);
    }
    shard->last = (struct decision) { (enum decision_kind)decision->kind,
                                      decision->round,
                                      { decision->generation, decision->step },
                                      shard->payload,
                                      decision->payload.len };
}

/* ---- a job ---- */

/* Into a job of its own, which has no connection. */
static struct fake_shard *stage(struct fake_shard *shard)
{
    drop_staged(shard);
    shard->staged = calloc(1, sizeof *shard->staged);
    ck_assert_ptr_nonnull(shard->staged);
    return shard->staged;
}

/* The staged one becomes what the shard has. */
static void adopt(struct fake_shard *shard)
{
    struct fake_shard *from = shard->staged;
    shard->staged = NULL;
    fake_shard_clear(shard);
    shard->spec_pages = from->spec_pages;
    shard->layout_pages = from->layout_pages;
    shard->job = from->job;
    shard->has_job = shard->settled = shard->serving = true;
    shard->spec_digest = from->spec_digest;
    shard->generation = from->generation;
    shard->index = from->index;
    shard->base_step = from->base_step;
    shard->version = from->version;
    shard->spec = from->spec;
    shard->layout = from->layout;
    shard->last = from->last;
    memcpy(shard->payload, from->payload, sizeof shard->payload);
    if (shard->last.payload != NULL) shard->last.payload = shard->payload;
    free(from);
}

static void on_switch(struct fake_shard *shard, const Cairn__JobSwitch *message)
{
    if (shard->dies_at_switch) {
        shard->dead = true;
        return;
    }
    if (shard->staged != NULL && shard->staged->generation == message->generation)
        adopt(shard);
    else
        drop_staged(shard);
    ck_assert_uint_eq(shard->generation, message->generation);
}

static void on_create(struct fake_shard *shard, uint32_t request, const Cairn__JobCreate *create)
{
    if (create->extend) {
        ck_assert(shard->has_job && shard->round == 0);
        ck_assert_uint_gt(create->generation, shard->version.generation);
        ck_assert_uint_eq(create->step, shard->version.step);
        shard = stage(shard);
    } else {
        fake_shard_clear(shard);
    }
    shard->create_request = request;
    shard->job = create->job;
    shard->generation = create->generation;
    shard->base_step = create->step;
    shard->version = (struct cairn_version) { create->generation, create->step };
    shard->index = create->shard_index;
    shard->digest = create->digest;
    shard->serving = create->extend || create->digest != 0 || create->joins;
    shard->joins = create->joins;
    snprintf(shard->snapshot_path, sizeof shard->snapshot_path, "%s", create->snapshot_path);
    shard->last.version_after = shard->version;
    if (create->last != NULL) keep(shard, create->last);
    ck_assert_int_eq(paged_init(&shard->spec_pages, CAIRN_PAGE_SPEC, create->spec_bytes), CAIRN_OK);
    ck_assert_int_eq(paged_init(&shard->layout_pages, CAIRN_PAGE_LAYOUT, create->layout_bytes),
                     CAIRN_OK);
}

static void note_digest(struct fake_shard *shard)
{
    leaf_hash(shard->spec_pages.bytes, shard->spec_pages.have_bytes, &shard->spec_digest);
}

static void build(struct fake_shard *shard)
{
    note_digest(shard);
    ck_assert_int_eq(spec_unpack(shard->spec_pages.bytes, shard->spec_pages.have_bytes,
                                 optimizer_names(), &shard->spec, NULL),
                     CAIRN_OK);
    shard->has_job = true;
    shard->layout = fake_layout_decode(shard, &shard->layout_pages);
}

static void end_tiles(struct fake_shard *shard)
{
    if (!paged_whole(&shard->tiles_pages, 1)) return;
    if (shard->refuse_tiles != NULL)
        refuse(shard, shard->tiles_request, CAIRN_ERR_NO_MEMORY, shard->refuse_tiles);
    else
        done(shard, shard->tiles_request);
}

static void on_tiles(struct fake_shard *shard, uint32_t request, const Cairn__MemberTiles *message)
{
    paged_release(&shard->tiles_pages, 1);
    fake_assert(paged_init(&shard->tiles_pages, CAIRN_PAGE_TILES, message->tiles_bytes) ==
                CAIRN_OK);
    shard->tiles_request = request;
    shard->tiles_world = message->world;
    end_tiles(shard);
}

/* What is loaded has the checksums of its manifest; a folder that is none is a test's own matter. */
static cairn_status judge_snapshot(const struct fake_shard *shard, struct sentence *why)
{
    struct snapshot snapshot;
    if (shard->snapshot_path[0] == '\0') return CAIRN_OK;
    if (snapshot_open(shard->snapshot_path, &snapshot, NULL) != CAIRN_OK) return CAIRN_OK;
    const cairn_status status = snapshot_verify(&snapshot, NULL, why);
    snapshot_close(&snapshot);
    return status;
}

static void end_terms(struct fake_shard *shard);

static void on_page(struct fake_shard *shard, uint32_t request, const Cairn__Page *page)
{
    if (request == shard->terms_request && !paged_whole(&shard->terms_pages, 1)) {
        ck_assert_int_eq(paged_add(&shard->terms_pages, 1, page), CAIRN_OK);
        end_terms(shard);
        return;
    }
    if (page->what == CAIRN_PAGE_TILES) {
        fake_assert(request == shard->tiles_request);
        fake_assert(paged_add(&shard->tiles_pages, 1, page) == CAIRN_OK);
        end_tiles(shard);
        return;
    }
    struct fake_shard *into = shard->staged != NULL && request == shard->staged->create_request
                                  ? shard->staged
                                  : shard;
    struct paged *paged = page->what == CAIRN_PAGE_SPEC ? &into->spec_pages : &into->layout_pages;
    ck_assert_uint_eq(request, into->create_request);
    ck_assert_int_eq(paged_add(paged, 1, page), CAIRN_OK);
    if (!paged_whole(&into->spec_pages, 1) || !paged_whole(&into->layout_pages, 1)) return;
    if (shard->refuse_create != NULL) {
        const cairn_status status = shard->refuse_create_status;
        refuse(shard, request, status != CAIRN_OK ? status : CAIRN_ERR_NO_MEMORY,
               shard->refuse_create);
        return;
    }
    struct sentence why = { "" };
    const cairn_status loaded = judge_snapshot(into, &why);
    if (loaded != CAIRN_OK) {
        refuse(shard, request, loaded, why.text);
        return;
    }
    build(into);
    shard->held_request = request;
    if (shard->digest != 0 && !shard->holds_part) {
        fake_shard_answer_pin(shard, shard->digest, "");
    }
    if (!shard->holds_create) done(shard, request);
}

void fake_shard_release(struct fake_shard *shard)
{
    shard->holds_create = shard->holds_seal = shard->holds_terms = false;
    done(shard, shard->held_request);
}

/* ---- rounds ---- */

void fake_shard_give_up(struct fake_shard *shard, const char *why)
{
    fake_say(&shard->peer, 0, MemberFault, .job = shard->job, .member = shard->relay.number,
             .text = wire_text(why));
}

void fake_shard_report_reduced(struct fake_shard *shard)
{
    uint8_t squares[CAIRN_EXACT_BYTES], zero[8] = { 0 }, weight[8] = { 0 };
    struct exact sum = { { 0 } };
    ck_assert_int_eq(exact_add_double(&sum, 4.0), CAIRN_OK);
    exact_encode(&sum, squares);
    weight[0] = (uint8_t)shard->member_count;
    Cairn__ReducedValue values[3], *list[3];
    for (uint32_t i = 0; i < 3; i++) {
        cairn__reduced_value__init(&values[i]);
        values[i].key = values[i].op = i + 1;
        list[i] = &values[i];
    }
    values[0].value = (ProtobufCBinaryData) { sizeof squares, squares };
    values[1].value = (ProtobufCBinaryData) { sizeof zero, zero };
    values[2].value = (ProtobufCBinaryData) { sizeof weight, weight };
    shard->reduced = true;
    fake_say(&shard->peer, 0, Reduced, .job = shard->job, .epoch = shard->epoch,
             .round = shard->round, .values = list, .n_values = 3);
}

static void publish(struct fake_shard *shard, uint64_t round)
{
    Cairn__Published published = CAIRN__PUBLISHED__INIT;
    published.job = shard->job;
    published.epoch = shard->epoch;
    published.round = round;
    published.generation = shard->version.generation;
    published.step = shard->version.step;
    Cairn__TensorElems elems = CAIRN__TENSOR_ELEMS__INIT, *list[] = { &elems };
    elems.elems = published.nonfinite = shard->nonfinite;
    published.nonfinite_tensors = list;
    published.n_nonfinite_tensors = shard->nonfinite > 0;
    fake_send(&shard->peer, CAIRN_MSG_PUBLISHED, 0, &published.base);
}

static void obey(struct fake_shard *shard, const Cairn__Decision *decision)
{
    if (shard->joins || (decision->round != 0 && decision->round != shard->last.round)) {
        keep(shard, decision);
        shard->version = shard->last.version_after;
    }
    shard->joins = false;
    shard->round = 0;
    shard->reduced = false;
    publish(shard, decision->round);
}

static void on_fence(struct fake_shard *shard, const Cairn__Fence *fence)
{
    Cairn__Decision last;
    shard->epoch = fence->epoch;
    fake_move_fence(shard, fence->layout);
    coord_decision_to_message(&shard->last, &last);
    if (!shard->reduced) shard->round = 0;
    fake_say(&shard->peer, 0, Answer, .job = shard->job, .epoch = shard->epoch,
             .phase = shard->reduced ? CAIRN_STEP_REDUCED
                      : shard->joins ? CAIRN_STEP_JOINING
                                     : CAIRN_STEP_IDLE,
             .open_round = shard->reduced ? shard->round : 0,
             .generation = shard->version.generation, .step = shard->version.step, .last = &last,
             .tiles_world = shard->tiles_world);
}

/* ---- members ---- */

/* The one of that number; 0: a free place. NULL: there is none. */
static struct fake_member *find_member(struct fake_shard *shard, uint64_t number)
{
    for (uint32_t i = 0; i < shard->member_places; i++)
        if (shard->members[i].number == number) return &shard->members[i];
    return NULL;
}

static struct fake_member *free_place(struct fake_shard *shard)
{
    struct fake_member *member = find_member(shard, 0);
    if (member != NULL) return member;
    const uint32_t places = shard->member_places * 2 + 8;
    shard->members = realloc(shard->members, places * sizeof *shard->members);
    ck_assert_ptr_nonnull(shard->members);
    member = &shard->members[shard->member_places];
    memset(member, 0, (places - shard->member_places) * sizeof *member);
    shard->member_places = places;
    return member;
}

static void keep_address(struct fake_shard *shard, const Cairn__MemberJoin *join)
{
    fake_assert(join->fabric_address.len <= sizeof shard->member_address);
    shard->member = join->member;
    shard->token = join->token;
    shard->member_address_bytes = join->fabric_address.len;
    if (join->fabric_address.len > 0)
        memcpy(shard->member_address, join->fabric_address.data, join->fabric_address.len);
}

static void on_join(struct fake_shard *shard, uint32_t request, const Cairn__MemberJoin *join)
{
    if (shard->refuse_relay != NULL && strncmp(join->name, "relay ", 6) == 0) {
        refuse(shard, request, CAIRN_ERR_BUSY, shard->refuse_relay);
        return;
    }
    struct fake_member *member = find_member(shard, join->member);
    if (member == NULL) member = free_place(shard);
    member->number = join->member;
    member->rank = join->rank;
    snprintf(member->name, sizeof member->name, "%s", join->name);
    keep_address(shard, join);
    if (!shard->holds_join) {
        done(shard, request);
        return;
    }
    ck_assert_uint_lt(shard->join_count, FAKE_JOINS_MAX);
    shard->join_requests[shard->join_count++] = request;
}

static void on_leave(struct fake_shard *shard, const Cairn__MemberLeave *leave)
{
    struct fake_member *member = find_member(shard, leave->member);
    if (member != NULL) member->number = 0;
    shard->withdrawn_count += leave->withdrawn ? 1 : 0;
}

static void on_relay_set(struct fake_shard *shard, uint32_t request, const Cairn__RelaySet *set)
{
    struct fake_relay *relay = &shard->relay;
    if (shard->refuse_relay_set != NULL && set->n_members > 0) {
        refuse(shard, request, CAIRN_ERR_NO_MEMORY, shard->refuse_relay_set);
        return;
    }
    if (request != 0) done(shard, request);
    *relay = (struct fake_relay) { .number = set->relay };
    ck_assert_uint_le(set->n_members, 8);
    for (size_t i = 0; i < set->n_members; i++) {
        ck_assert_ptr_nonnull(find_member(shard, set->members[i]));
        relay->members[relay->member_count++] = set->members[i];
    }
    for (size_t i = 0; i < set->n_owners; i++)
        relay->owners[relay->owner_count++] = set->owners[i]->index;
}

/* What a round refers to was told before it. */
static void expect_told(struct fake_shard *shard, const Cairn__RoundOpen *open)
{
    ck_assert_uint_le(open->n_members, 8);
    for (size_t i = 0; i < open->n_members; i++) {
        shard->opened[i] = open->members[i];
        if (shard->refuse_relay == NULL)
            ck_assert_ptr_nonnull(find_member(shard, open->members[i]));
    }
    shard->opened_relay = open->relay;
    if (open->relay != 0 && shard->refuse_relay_set == NULL)
        ck_assert_uint_eq(open->relay, shard->relay.number);
}

static void on_open(struct fake_shard *shard, const Cairn__RoundOpen *open)
{
    ck_assert_uint_eq(open->epoch, shard->epoch);
    expect_told(shard, open);
    shard->round = shard->round_seen = open->round;
    shard->member_count = (uint32_t)open->n_members;
    if (!shard->holds_reduced) fake_shard_report_reduced(shard);
}

/* ---- leases ---- */

static uint64_t *find_lease(struct fake_shard *shard, uint64_t number)
{
    for (int i = 0; i < FAKE_LEASES_MAX; i++)
        if (shard->leases[i] == number) return &shard->leases[i];
    return NULL;
}

static void on_lease_keep(struct fake_shard *shard, uint32_t request, const Cairn__LeaseKeep *keep)
{
    shard->lease_request = request;
    shard->lease_ttl_ms = keep->ttl_ms;
    shard->lease_version = (struct cairn_version) { keep->generation, keep->step };
    if (shard->holds_lease) return;
    if (shard->refuse_lease != NULL) {
        refuse(shard, request, shard->refuse_lease_status, shard->refuse_lease);
        return;
    }
    if (find_lease(shard, keep->lease) == NULL) {
        uint64_t *lease = find_lease(shard, 0);
        ck_assert_ptr_nonnull(lease);
        *lease = keep->lease;
        shard->lease_count++;
    }
    done(shard, request);
}

static void on_lease_end(struct fake_shard *shard, const Cairn__LeaseEnd *end)
{
    uint64_t *lease = find_lease(shard, end->lease);
    ck_assert_uint_ne(end->lease, 0);
    if (lease == NULL) return;
    *lease = 0;
    shard->lease_count--;
}

void fake_shard_lease_done(struct fake_shard *shard)
{
    done(shard, shard->lease_request);
}

/* ---- snapshots ---- */

static cairn_status zeros(void *context, const struct safetensors_entry *entry, uint64_t first_elem,
                          uint64_t elem_count, void *to, struct sentence *why)
{
    (void)context;
    (void)first_elem;
    (void)why;
    memset(to, 0, (size_t)elem_count * dtype_size((int)entry->dtype));
    return CAIRN_OK;
}

struct part {
    Cairn__SnapshotPart message;
    struct sentence why;                   /* what its text is of, if it failed */
    size_t file_count, digest_count, told; /* of the digests */
    Cairn__DigestNode *digests[4096];
    Cairn__SnapshotFile *files[16];
};

static void add_digests(struct part *part, const struct local_extent *e, uint32_t plane)
{
    static const uint8_t nothing[CAIRN_LEAF_ELEMS * 4];
    struct hash_tree tree;
    tree_init(&tree, e->first_leaf);
    uint64_t left = e->elem_count;
    for (uint64_t i = 0; i < e->leaf_count; i++) {
        struct hash leaf;
        const uint64_t elems = left < CAIRN_LEAF_ELEMS ? left : CAIRN_LEAF_ELEMS;
        leaf_hash(nothing, elems * 4, &leaf);
        tree_push_leaf(&tree, &leaf);
        left -= elems;
    }
    for (uint32_t i = 0; i < tree.node_count; i++) {
        Cairn__DigestNode *node = calloc(1, sizeof *node + CAIRN_HASH_BYTES);
        cairn__digest_node__init(node);
        node->tensor = e->tensor;
        node->plane = plane;
        node->level = tree.node[i].level;
        node->index = tree.node[i].index;
        node->hash.data = memcpy(node + 1, tree.node[i].hash.byte, CAIRN_HASH_BYTES);
        node->hash.len = CAIRN_HASH_BYTES;
        part->digests[part->digest_count++] = node;
    }
}

/* What cannot be written is told, as a shard does it: the folder of what was given up may be gone. */
static void write_files(struct fake_shard *shard, struct part *part, const char *folder,
                        const struct shard_map *map)
{
    struct snapshot_range *ranges = calloc(map->extent_count + 1, sizeof *ranges);
    struct snapshot_plan plan;
    for (size_t i = 0; i < map->extent_count; i++) {
        ranges[i] = (struct snapshot_range) { map->extents[i].tensor, map->extents[i].first_elem,
                                              map->extents[i].elem_count };
    }
    ck_assert_int_eq(
        snapshot_plan_make(&shard->spec, shard->index, ranges, map->extent_count, &plan), CAIRN_OK);
    for (size_t i = 0; i < plan.file_count && part->message.status == CAIRN_OK; i++) {
        const size_t sums = CAIRN_SNAPSHOT_SUM_BYTES *
                            (size_t)snapshot_block_count(plan.files[i].file_bytes);
        Cairn__SnapshotFile *file = calloc(1, sizeof *file + sums);
        cairn__snapshot_file__init(file);
        file->sums = (ProtobufCBinaryData) { sums, (uint8_t *)(file + 1) };
        part->message.status = (int32_t)snapshot_write_file(folder, &plan.files[i], zeros, NULL,
                                                            file->sums.data, &part->why);
        file->path = strdup(plan.files[i].path);
        file->bytes = plan.files[i].file_bytes;
        part->files[part->file_count++] = file;
    }
    snapshot_plan_release(&plan);
    free(ranges);
}

static void fill_part(struct fake_shard *shard, struct part *part, const char *folder)
{
    struct shard_map map;
    ck_assert_int_eq(shard_map_init(&map, shard->layout, shard->index, 64), CAIRN_OK);
    for (size_t i = 0; i < map.extent_count; i++) {
        const uint32_t planes = spec_planes(&shard->spec, map.extents[i].tensor);
        for (uint32_t p = 1; p < CAIRN_PLANE_COUNT; p++) {
            if (planes & (1u << p)) add_digests(part, &map.extents[i], p);
        }
    }
    if (*folder != '\0') write_files(shard, part, folder, &map);
    if (part->message.status != CAIRN_OK) part->message.text = part->why.text;
    shard_map_release(&map);
}

static void free_part(struct part *part)
{
    if (part == NULL) return;
    for (size_t i = 0; i < part->digest_count; i++) free(part->digests[i]);
    for (size_t i = 0; i < part->file_count; i++) {
        free(part->files[i]->path);
        free(part->files[i]);
    }
    free(part);
}

/* What was not told yet of shard->telling, or as many digests of it as a batch has. */
static void tell_part(struct fake_shard *shard)
{
    struct part *part = shard->telling;
    Cairn__SnapshotPart *m = &part->message;
    const size_t left = part->digest_count - part->told;
    m->digests = part->digests + part->told;
    m->n_digests = shard->part_batch != 0 && left > shard->part_batch ? shard->part_batch : left;
    m->more = m->n_digests < left;
    part->told += m->n_digests;
    fake_send(&shard->peer, CAIRN_MSG_SNAPSHOT_PART, 0, &m->base);
    m->payload.len = m->n_files = 0;
    shard->part_messages++;
    if (m->more) return;
    free_part(part);
    shard->telling = NULL;
}

void fake_shard_answer_pin(struct fake_shard *shard, uint64_t snapshot, const char *folder)
{
    struct part *part = calloc(1, sizeof *part);
    Cairn__SnapshotPart *m = &part->message;
    cairn__snapshot_part__init(m);
    m->job = shard->job;
    m->snapshot = snapshot;
    m->generation = shard->version.generation;
    m->step = shard->version.step;
    m->files = part->files;
    m->payload = (ProtobufCBinaryData) { shard->last.payload_bytes, shard->payload };
    if (shard->fail_part != NULL) {
        m->status = CAIRN_ERR_NO_SPACE;
        m->text = wire_text(shard->fail_part);
    } else {
        fill_part(shard, part, folder);
    }
    m->n_files = part->file_count;
    if (shard->loads_other && shard->digest == snapshot) part->digests[0]->hash.data[5] ^= 1;
    free_part(shard->telling);
    shard->telling = part;
    tell_part(shard);
}

/* ---- of which store it is ---- */

static void fill_held(const struct fake_shard *shard, Cairn__HeldJob *out)
{
    cairn__held_job__init(out);
    out->job = shard->job;
    out->generation = shard->generation;
    memcpy(&out->layout_hash, shard->layout->hash, 8);
    out->epoch = shard->epoch;
    out->revision = shard->spec.revision;
    out->round = shard->round_seen;
    out->unsettled = !shard->settled;
    out->parked = shard->parked;
    out->layout_version = shard->layout->version;
    if (shard->move.next == NULL) return;
    memcpy(&out->next_layout_hash, shard->move.next->hash, 8);
    out->next_layout_version = shard->move.next->version;
}

/* What a Hello has no room for. */
static void fill_more(struct fake_shard *shard, Cairn__HeldJob *out)
{
    out->name = shard->spec.name;
    out->shard_index = shard->index;
    out->shard_count = shard->layout->shard_count;
    out->version_generation = shard->version.generation;
    out->version_step = shard->version.step;
    out->base_step = shard->base_step;
    out->serving = shard->serving;
    out->spec_hash = (ProtobufCBinaryData) { sizeof shard->spec_digest.byte,
                                             shard->spec_digest.byte };
}

size_t fake_shard_fill_held(struct fake_shard *shard, Cairn__HeldJob out[2], bool full)
{
    struct fake_shard *parts[2] = { shard, shard->staged };
    size_t count = 0;
    for (int i = 0; i < 2; i++) {
        if (parts[i] == NULL || !parts[i]->has_job) continue;
        fill_held(parts[i], &out[count]);
        out[count].staged = i == 1;
        if (full) fill_more(parts[i], &out[count]);
        count++;
    }
    return count;
}

void fake_shard_tell_held(struct fake_shard *shard, uint32_t request)
{
    Cairn__HeldJob held[2], *list[] = { &held[0], &held[1] };
    fake_say(&shard->peer, request, HeldJobs, .n_held = fake_shard_fill_held(shard, held, true),
             .held = list, .keys = shard->keys);
}

/* A copy: of who is obeyed. */
static void keep_keys(struct fake_shard *shard, const Cairn__Keys *keys)
{
    uint8_t packed[16384];
    if (keys == NULL) return;
    ck_assert_uint_le(cairn__keys__get_packed_size(keys), sizeof packed);
    fake_shard_forget_keys(shard);
    shard->keys = cairn__keys__unpack(NULL, cairn__keys__pack(keys, packed), packed);
}

void fake_shard_forget_keys(struct fake_shard *shard)
{
    if (shard->keys != NULL) cairn__keys__free_unpacked(shard->keys, NULL);
    shard->keys = NULL;
}

static void on_welcome(struct fake_shard *shard, const Cairn__Welcome *welcome)
{
    if (shard->has_job) fake_shard_tell_held(shard, 0);
    shard->welcome_process = welcome->process;
    if (shard->has_job && shard->store != welcome->store) return; // it is not obeyed
    shard->store = welcome->store;
    shard->coordinator_incarnation = welcome->coordinator_incarnation;
    shard->coordinator_process = welcome->process;
    keep_keys(shard, welcome->keys);
}

static void end_terms(struct fake_shard *shard)
{
    if (!paged_whole(&shard->terms_pages, 1)) return;
    if (shard->refuse_terms != NULL && shard->terms_pages.total_bytes > 0) {
        refuse(shard, shard->terms_request, CAIRN_ERR_NO_MEMORY, shard->refuse_terms);
        return;
    }
    if (shard->holds_terms)
        shard->held_request = shard->terms_request;
    else
        done(shard, shard->terms_request);
    if (shard->terms_pages.have_bytes == 0) return;
    spec_release(&shard->spec);
    ck_assert_int_eq(spec_unpack(shard->terms_pages.bytes, shard->terms_pages.have_bytes,
                                 optimizer_names(), &shard->spec, NULL),
                     CAIRN_OK);
    paged_release(&shard->spec_pages, 1);
    shard->spec_pages = shard->terms_pages;
    shard->terms_pages = (struct paged) { .bytes = NULL };
    note_digest(shard);
}

static void on_terms(struct fake_shard *shard, uint32_t request, const Cairn__JobTerms *terms)
{
    shard->settled = true;
    shard->terms_request = request;
    paged_release(&shard->terms_pages, 1);
    ck_assert_int_eq(paged_init(&shard->terms_pages, CAIRN_PAGE_SPEC, terms->spec_bytes), CAIRN_OK);
    end_terms(shard);
}

static void send_page(void *context, const Cairn__Page *page)
{
    struct fake_shard *shard = context;
    fake_send(&shard->peer, CAIRN_MSG_PAGE, shard->part_request, &page->base);
}

static void send_pages(struct fake_shard *shard, uint32_t what, const struct paged *paged)
{
    pages_each(what, paged->bytes, paged->have_bytes, send_page, shard);
}

static void on_part_get(struct fake_shard *shard, uint32_t request, const Cairn__PartGet *message)
{
    shard->part_request = request;
    if (shard->holds_parts) return;
    if (message->job == 0) {
        fake_shard_tell_held(shard, request);
        return;
    }
    const struct fake_shard *from = shard->generation == message->generation ? shard
                                                                             : shard->staged;
    ck_assert(from != NULL && from->generation == message->generation && from->job == message->job);
    fake_say(&shard->peer, request, Part, .spec_bytes = from->spec_pages.have_bytes,
             .layout_bytes = from->layout_pages.have_bytes);
    send_pages(shard, CAIRN_PAGE_SPEC, &from->spec_pages);
    send_pages(shard, CAIRN_PAGE_LAYOUT, &from->layout_pages);
}

/* Nothing of it is a leftover any more. */
static void on_adopted(struct fake_shard *shard, uint32_t request,
                       const Cairn__StoreAdopted *message)
{
    shard->store = message->store;
    shard->coordinator_incarnation = message->incarnation;
    shard->coordinator_process = shard->welcome_process;
    shard->settled = true;
    if (shard->staged != NULL) shard->staged->settled = true;
    done(shard, request);
}

static void on_park(struct fake_shard *shard, uint32_t request, const Cairn__PartPark *message)
{
    if (shard->refuse_park != NULL) {
        refuse(shard, request, shard->refuse_park_status, shard->refuse_park);
    } else if (shard->holds_park) {
        shard->held_request = request;
        shard->held_park = message->parked;
        shard->parked = true; // until it is back
    } else {
        shard->parked = message->parked;
        done(shard, request);
    }
}

static void pinned(struct fake_shard *shard, uint64_t snapshot, const char *folder)
{
    if (!shard->holds_part) {
        fake_shard_answer_pin(shard, snapshot, folder);
        return;
    }
    shard->held_pin = snapshot;
    snprintf(shard->held_folder, sizeof shard->held_folder, "%s", folder);
}

static void on_pin(struct fake_shard *shard, const Cairn__Pin *pin)
{
    shard->prepared = 0;
    if (!pin->files) pinned(shard, pin->snapshot, "");
}

static void answer_stop(struct fake_shard *shard, uint64_t snapshot)
{
    fake_say(&shard->peer, 0, SnapshotPart, .job = shard->job, .snapshot = snapshot,
             .status = CAIRN_ERR_CANCELED, .text = "it was given up");
}

static void on_pin_folder(struct fake_shard *shard, const Cairn__PinFolder *folder)
{
    if (folder->snapshot == shard->prepared) { // it is not pinned, and nobody waits for it
        shard->prepared = 0;
    } else if (folder->path[0] == '\0') {
        shard->told_to_stop++;
        shard->held_pin = 0;
        if (!shard->ignores_stop) answer_stop(shard, folder->snapshot);
    } else {
        pinned(shard, folder->snapshot, folder->path);
    }
}

/* ---- what comes ---- */

static void beat(struct fake_shard *shard)
{
    Cairn__ShardStats stats = CAIRN__SHARD_STATS__INIT;
    Cairn__Heartbeat heartbeat = CAIRN__HEARTBEAT__INIT;
    if (shard->storage != NULL) {
        heartbeat.stats = &stats;
        heartbeat.storage = wire_text(shard->storage);
    }
    char *unheard = wire_text(shard->unheard);
    heartbeat.unheard = &unheard;
    heartbeat.n_unheard = unheard != NULL;
    fake_send(&shard->peer, CAIRN_MSG_HEARTBEAT, 0, &heartbeat.base);
}

static void tell_lacks(struct fake_shard *shard, const Cairn__LacksGet *get)
{
    uint32_t zeros[8] = { 0 };
    Cairn__Lacks lacks = CAIRN__LACKS__INIT;
    lacks.job = get->job;
    lacks.epoch = get->epoch;
    lacks.round = get->round;
    lacks.members = shard->lacks;
    lacks.micros = lacks.flags = zeros;
    lacks.n_members = lacks.n_micros = lacks.n_flags = shard->lack_count;
    fake_send(&shard->peer, CAIRN_MSG_LACKS, 0, &lacks.base);
}

static void note_error(struct fake_shard *shard, const Cairn__Error *error)
{
    shard->error = (cairn_status)error->status;
    snprintf(shard->error_text, sizeof shard->error_text, "%s", error->text);
}

static void handle(struct fake_shard *shard, uint16_t type, uint32_t request,
                   const ProtobufCMessage *message)
{
    if (shard->dead || fake_move_handle(shard, type, request, message)) return;
    switch (type) {
    case CAIRN_MSG_WELCOME: on_welcome(shard, (const Cairn__Welcome *)message); break;
    case CAIRN_MSG_JOB_TERMS: on_terms(shard, request, (const Cairn__JobTerms *)message); break;
    case CAIRN_MSG_PART_GET: on_part_get(shard, request, (const Cairn__PartGet *)message); break;
    case CAIRN_MSG_STORE_ADOPTED:
        on_adopted(shard, request, (const Cairn__StoreAdopted *)message);
        break;
    case CAIRN_MSG_JOB_SWITCH: on_switch(shard, (const Cairn__JobSwitch *)message); break;
    case CAIRN_MSG_JOB_CREATE: on_create(shard, request, (const Cairn__JobCreate *)message); break;
    case CAIRN_MSG_PAGE: on_page(shard, request, (const Cairn__Page *)message); break;
    case CAIRN_MSG_JOB_SEAL:
        shard->held_request = request;
        if (shard->holds_seal) {
            break;
        } else if (shard->fail_seal != NULL) {
            refuse(shard, request, CAIRN_ERR_NOT_READY, shard->fail_seal);
        } else {
            shard->serving = true;
            done(shard, request);
        }
        break;
    case CAIRN_MSG_HEARTBEAT:
        keep_keys(shard, ((const Cairn__Heartbeat *)message)->keys);
        beat(shard);
        break;
    case CAIRN_MSG_PROBE: done(shard, request); break;
    case CAIRN_MSG_LACKS_GET: tell_lacks(shard, (const Cairn__LacksGet *)message); break;
    case CAIRN_MSG_ERROR: note_error(shard, (const Cairn__Error *)message); break;
    case CAIRN_MSG_JOB_DROP:
        fake_shard_clear(shard);
        if (shard->holds_drop)
            shard->drop_request = request;
        else
            done(shard, request);
        break;
    case CAIRN_MSG_MEMBER_JOIN: on_join(shard, request, (const Cairn__MemberJoin *)message); break;
    case CAIRN_MSG_MEMBER_LEAVE: on_leave(shard, (const Cairn__MemberLeave *)message); break;
    case CAIRN_MSG_RELAY_SET: on_relay_set(shard, request, (const Cairn__RelaySet *)message); break;
    case CAIRN_MSG_MEMBER_TILES:
        on_tiles(shard, request, (const Cairn__MemberTiles *)message);
        break;
    case CAIRN_MSG_FENCE: on_fence(shard, (const Cairn__Fence *)message); break;
    case CAIRN_MSG_RESOLVE:
        obey(shard, ((const Cairn__Resolve *)message)->decision);
        fake_move_tell(shard);
        break;
    case CAIRN_MSG_ROUND_OPEN: on_open(shard, (const Cairn__RoundOpen *)message); break;
    case CAIRN_MSG_DECIDE: obey(shard, ((const Cairn__Decide *)message)->decision); break;
    case CAIRN_MSG_LEASE_KEEP:
        on_lease_keep(shard, request, (const Cairn__LeaseKeep *)message);
        break;
    case CAIRN_MSG_LEASE_END: on_lease_end(shard, (const Cairn__LeaseEnd *)message); break;
    case CAIRN_MSG_PART_PARK: on_park(shard, request, (const Cairn__PartPark *)message); break;
    case CAIRN_MSG_PIN_PREPARE:
        shard->prepared = ((const Cairn__PinPrepare *)message)->snapshot;
        done(shard, request);
        break;
    case CAIRN_MSG_PIN: on_pin(shard, (const Cairn__Pin *)message); break;
    case CAIRN_MSG_PIN_FOLDER: on_pin_folder(shard, (const Cairn__PinFolder *)message); break;
    case CAIRN_MSG_SNAPSHOT_PART_NEXT:
        if (shard->telling != NULL) tell_part(shard);
        break;
    default: break;
    }
}

bool fake_shard_serve(struct fake_shard *shard)
{
    struct wire_frame frame;
    bool any = false;
    fake_peer_read(&shard->peer);
    while (fake_peer_next(&shard->peer, &frame)) {
        ProtobufCMessage *message = message_unpack(message_type(frame.type), frame.payload,
                                                   frame.payload_bytes);
        fake_assert(message != NULL);
        shard->seen[frame.type]++;
        handle(shard, frame.type, frame.request, message);
        message_free(message);
        any = true;
    }
    return any;
}

static void let_move_go(struct fake_shard *shard)
{
    const bool is_prepared = shard->move.holds_prepare && shard->move.next != NULL;
    const bool is_moved = shard->move.holds_moved && shard->has_job && !shard->move.is_told &&
                          shard->layout->version > 1;
    shard->move.holds_prepare = shard->move.holds_moved = false;
    if (is_prepared) fake_move_prepared(shard);
    if (is_moved) fake_move_release(shard);
}

void fake_shard_let_go(struct fake_shard *shard)
{
    const bool asked = shard->holds_create || shard->holds_seal || shard->holds_terms ||
                       shard->holds_park;
    for (uint32_t i = 0; i < shard->join_count; i++) done(shard, shard->join_requests[i]);
    if (shard->holds_drop) done(shard, shard->drop_request);
    shard->join_count = 0;
    if (shard->holds_park && shard->has_job) shard->parked = shard->held_park;
    if (shard->holds_lease) fake_shard_lease_done(shard);
    if (shard->holds_parts) fake_shard_tell_held(shard, shard->part_request);
    shard->holds_join = shard->holds_drop = shard->holds_park = shard->holds_lease = false;
    shard->holds_parts = shard->holds_part = false;
    if (asked) fake_shard_release(shard);
    if (shard->held_pin != 0) fake_shard_answer_pin(shard, shard->held_pin, shard->held_folder);
    shard->held_pin = 0;
    let_move_go(shard);
    if (shard->holds_reduced && shard->round != 0) fake_shard_report_reduced(shard);
    shard->holds_reduced = false;
}

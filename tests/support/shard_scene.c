#include "tests/support/pages.h"
#include "tests/support/shard_scene.h"
#include "tests/support/test_backend.h"

#include <inttypes.h>
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- running ---- */

static void on_deadline(uv_timer_t *timer)
{
    const struct scene *scene = timer->data;
    ck_abort_msg("nothing came within %d ms%s%s", SCENE_DEADLINE_MS,
                 scene->row != NULL ? ", of: " : "", scene->row != NULL ? scene->row : "");
}

static void turn(struct scene *scene)
{
    uv_run(&scene->loop, scene->beside != NULL ? UV_RUN_NOWAIT : UV_RUN_ONCE);
    if (scene->beside != NULL) scene->beside();
}

static void watch(struct scene *scene)
{
    uv_timer_start(&scene->deadline, on_deadline, SCENE_DEADLINE_MS, 0);
}

/* ---- the coordinator ---- */

static void keep_frame(struct scene *scene, const struct wire_frame *frame)
{
    scene->frames = realloc(scene->frames, (scene->frame_count + 1) * sizeof *scene->frames);
    ck_assert_ptr_nonnull(scene->frames);
    ProtobufCMessage *message = message_unpack(message_type(frame->type), frame->payload,
                                               frame->payload_bytes);
    ck_assert_ptr_nonnull(message);
    scene->frames[scene->frame_count++] =
        (struct scene_frame) { .type = frame->type, .request = frame->request, .message = message };
}

static void on_frame(struct peer *peer, const struct wire_frame *frame, void *context)
{
    struct scene *scene = context;
    keep_frame(scene, frame);
    if (frame->type != CAIRN_MSG_HELLO) return;
    peer_admit(peer);
    scene->session = peer;
    scene->hellos++;
    scene_tell(scene, 0, Welcome, .cluster = (char *)"scene", .coordinator_incarnation = 1,
               .heartbeat_ms = 20, .store = 1, .process = 1,
               .lease_ms = scene->lease_ms == 0 ? 60000 : scene->lease_ms);
}

static void on_gone(struct peer *peer, cairn_status status, const char *why, void *context)
{
    struct scene *scene = context;
    (void)status;
    (void)why;
    if (scene->session == peer) scene->session = NULL;
}

void scene_say(struct scene *scene, uint16_t type, uint32_t request,
               const ProtobufCMessage *message)
{
    ck_assert_ptr_nonnull(scene->session);
    ck_assert_int_eq(peer_send(scene->session, type, request, message), CAIRN_OK);
}

struct scene_frame scene_hear(struct scene *scene, uint16_t type)
{
    watch(scene);
    for (;;) {
        for (size_t i = 0; i < scene->frame_count; i++) {
            struct scene_frame *frame = &scene->frames[i];
            if (frame->taken || frame->type != type) continue;
            frame->taken = true;
            uv_timer_stop(&scene->deadline);
            return *frame;
        }
        turn(scene);
    }
}

void scene_done(struct scene *scene, uint32_t request)
{
    ck_assert_uint_eq(scene_hear(scene, CAIRN_MSG_DONE).request, request);
}

const char *scene_refused(struct scene *scene, uint32_t request, cairn_status status,
                          const char *word)
{
    const struct scene_frame frame = scene_hear(scene, CAIRN_MSG_ERROR);
    const Cairn__Error *error = (const Cairn__Error *)frame.message;
    ck_assert_msg(frame.request == request && error->status == (int32_t)status &&
                      strstr(error->text, word) != NULL,
                  "wanted %s to %u with \"%s\", got %s to %u: %s", status_code_name((int)status),
                  request, word, status_code_name(error->status), frame.request, error->text);
    return error->text;
}

struct pages_to {
    struct scene *scene;
    uint32_t request;
};

static void send_page(void *context, const Cairn__Page *page)
{
    const struct pages_to *to = context;
    scene_say(to->scene, CAIRN_MSG_PAGE, to->request, &page->base);
}

void scene_say_pages(struct scene *scene, uint32_t request, enum page_what what,
                     const uint8_t *bytes, size_t size)
{
    struct pages_to to = { scene, request };
    pages_each(what, bytes, size, send_page, &to);
}

void scene_create(struct scene *scene, uint32_t request, uint64_t generation, uint64_t step,
                  const char *snapshot_path)
{
    uint8_t *spec;
    size_t spec_bytes;
    ck_assert_int_eq(spec_pack(&scene->spec, &spec, &spec_bytes), CAIRN_OK);
    const size_t layout_bytes = layout_encoded_bytes(scene->layout);
    uint8_t *layout = malloc(layout_bytes);
    layout_encode(scene->layout, layout);

    scene_tell(scene, request, JobCreate, .job = SCENE_JOB, .generation = generation, .step = step,
               .spec_bytes = spec_bytes, .layout_bytes = layout_bytes, .member_max = SCENE_MEMBERS,
               .shard_index = scene->index, .extend = scene->extends, .joins = scene->last != NULL,
               .last = scene->last, .snapshot_path = (char *)snapshot_path);
    scene_say_pages(scene, request, CAIRN_PAGE_SPEC, spec, spec_bytes);
    scene_say_pages(scene, request, CAIRN_PAGE_LAYOUT, layout, layout_bytes);
    free(spec);
    free(layout);
}

void scene_make(struct scene *scene, uint64_t generation)
{
    scene_create(scene, 3, generation, 0, "");
    scene_done(scene, 3);
}

void scene_ask_join(struct scene *scene, uint64_t member, uint32_t role)
{
    char name[16];
    size_t size;
    uint8_t *address = (uint8_t *)fabric_own_address(scene->fabric, &size);
    snprintf(name, sizeof name, "w%" PRIu64, member);
    scene_tell(scene, 5, MemberJoin, .job = SCENE_JOB, .member = member, .token = 1000 + member,
               .rank = (uint32_t)member, .role = role, .name = name,
               .fabric_address = { size, address });
}

void scene_join(struct scene *scene, uint64_t member, uint32_t role)
{
    scene_ask_join(scene, member, role);
    scene_hear(scene, CAIRN_MSG_DONE);
}

void scene_leave(struct scene *scene, uint64_t member)
{
    scene_tell(scene, 0, MemberLeave, .job = SCENE_JOB, .member = member);
    scene_settle(scene);
}

void scene_drop(struct scene *scene)
{
    scene_tell(scene, 9, JobDrop, .job = SCENE_JOB);
    scene_done(scene, 9);
    ck_assert_ptr_null(scene->shard->jobs);
    ck_assert_uint_eq(scene->shard->memory.budget.used_bytes, 0);
}

void scene_lease(struct scene *scene, uint64_t lease, uint64_t generation, uint64_t step)
{
    scene_tell(scene, 40, LeaseKeep, .job = SCENE_JOB, .lease = lease, .generation = generation,
               .step = step, .ttl_ms = 60000);
    scene_done(scene, 40);
}

void scene_relay(struct scene *scene, const struct fabric *fabric, uint32_t member_count,
                 uint32_t first_owner, uint32_t owner_count)
{
    uint64_t members[SCENE_MEMBERS] = { 1, 2, 3 };
    Cairn__ShardInfo infos[SCENE_SHARDS], *owners[SCENE_SHARDS];
    char names[SCENE_SHARDS][12];
    size_t size;
    uint8_t *address = (uint8_t *)fabric_own_address(fabric, &size);
    for (uint32_t o = 0; o < owner_count; o++) {
        snprintf(names[o], sizeof names[o], "s%u", first_owner + o);
        infos[o] = (Cairn__ShardInfo) { .index = first_owner + o,
                                        .name = names[o],
                                        .fabric_address = { size, address } };
        owners[o] = &infos[o];
    }
    scene_tell(scene, 9, RelaySet, .job = SCENE_JOB, .relay = SCENE_RELAY,
               .token = SCENE_RELAY_TOKEN, .n_members = member_count, .members = members,
               .n_owners = owner_count, .owners = owners);
    scene_done(scene, 9);
}

void scene_seal(struct scene *scene)
{
    scene_tell(scene, 6, JobSeal, .job = SCENE_JOB);
    scene_done(scene, 6);
}

void scene_fence(struct scene *scene, uint64_t epoch)
{
    scene_tell(scene, 0, Fence, .job = SCENE_JOB, .epoch = epoch);
    scene->epoch = epoch;
}

void scene_say_decision(struct scene *scene, uint16_t type, Cairn__Decision *decision)
{
    if (type == CAIRN_MSG_DECIDE)
        scene_tell(scene, 0, Decide, .job = SCENE_JOB, .epoch = scene->epoch, .decision = decision);
    else
        scene_tell(scene, 0, Resolve, .job = SCENE_JOB, .epoch = scene->epoch,
                   .decision = decision);
}

void scene_resolve_none(struct scene *scene)
{
    scene_say_decision(scene, CAIRN_MSG_RESOLVE, &(Cairn__Decision) { .generation = 0 });
}

const Cairn__Answer *scene_begin_epoch(struct scene *scene, uint64_t epoch)
{
    scene_fence(scene, epoch);
    const Cairn__Answer *answer = scene_heard(scene, Answer);
    scene_resolve_none(scene);
    scene_hear(scene, CAIRN_MSG_PUBLISHED);
    return answer;
}

void scene_serve(struct scene *scene, uint32_t workers, uint64_t epoch)
{
    scene_make(scene, 1);
    for (uint64_t m = 1; m <= workers; m++) scene_join(scene, m, CAIRN_ROLE_WIRE_WORKER);
    scene_put_all(scene, 1);
    scene_seal(scene);
    scene_begin_epoch(scene, epoch);
}

void scene_round_open(struct scene *scene, uint64_t round, uint64_t step, uint32_t member_count)
{
    uint64_t members[SCENE_MEMBERS] = { 1, 2, 3 };
    scene->round = round;
    scene_tell(scene, 0, RoundOpen, .job = SCENE_JOB, .epoch = scene->epoch, .round = round,
               .generation = 1, .step = step, .n_members = member_count, .members = members,
               .n_frozen = scene->freezes ? 1 : 0, .frozen = &scene->frozen_group,
               .n_frozen_tensors = scene->freezes_tensor ? 1 : 0,
               .frozen_tensors = &scene->frozen_tensor);
}

void scene_round_begin(struct scene *scene, uint64_t round, uint64_t step, uint32_t member_count)
{
    scene_round_open(scene, round, step, member_count);
    for (uint32_t i = 0; i < member_count; i++) scene_note(scene, CAIRN_CHUNK_GRANT);
}

void scene_write_open(struct scene *scene, uint64_t round, uint64_t generation, uint64_t step)
{
    uint64_t writer = 1;
    scene->round = round;
    scene_tell(scene, 0, RoundOpen, .job = SCENE_JOB, .epoch = scene->epoch, .round = round,
               .generation = generation, .step = step, .n_members = 1, .members = &writer,
               .write = true);
    scene_note(scene, CAIRN_CHUNK_GRANT);
}

/* ---- the worker ---- */

static void on_received(void *arg, cairn_status status)
{
    bool *whole = arg;
    ck_assert_int_eq(status, CAIRN_OK);
    *whole = true;
}

static void on_message(void *arg, const void *header, size_t header_bytes, size_t payload_bytes,
                       struct fabric_message *message)
{
    struct scene *scene = arg;
    // Never moved: a receive may still point into it.
    ck_assert_uint_lt(scene->note_count, 4096);
    struct scene_note *note = &scene->notes[scene->note_count++];
    *note = (struct scene_note) { .whole = message == NULL };
    ck_assert_int_eq(chunk_decode(header, header_bytes, payload_bytes, &note->header), CAIRN_OK);
    if (message == NULL || scene->deaf) return;
    note->payload = malloc(payload_bytes);
    ck_assert_int_eq(
        fabric_receive(message, note->payload, payload_bytes, on_received, &note->whole), CAIRN_OK);
}

static void on_down(void *arg, struct fabric_peer *peer, cairn_status why);

static void connect_shard(struct scene *scene)
{
    size_t bytes;
    const void *address = fabric_own_address(scene->shard->fabric, &bytes);
    ck_assert_int_eq(fabric_connect_to(scene->fabric, address, bytes, on_down, scene, &scene->peer),
                     CAIRN_OK);
}

/* The shard let a member go: the worker is back at once. */
static void on_down(void *arg, struct fabric_peer *peer, cairn_status why)
{
    struct scene *scene = arg;
    (void)why;
    fabric_peer_close(peer);
    scene->peer = NULL;
    if (!scene->closing) connect_shard(scene);
}

static void on_sent(void *arg, cairn_status status)
{
    struct scene *scene = arg;
    (void)status;
    scene->sends_over++;
}

struct chunk_header scene_header(const struct scene *scene, uint8_t kind, uint64_t member)
{
    return (struct chunk_header) { .kind = kind,
                                   .job = SCENE_JOB,
                                   .member = member,
                                   .token = 1000 + member,
                                   .epoch = scene->epoch,
                                   .round = scene->round };
}

struct chunk_header scene_place_header(const struct scene *scene, uint8_t kind, uint64_t member,
                                       const struct chunk_place *place)
{
    struct chunk_header header = scene_header(scene, kind, member);
    header.tensor = place->tensor;
    header.first_leaf = place->first_leaf;
    header.leaf_count = (uint32_t)place->leaf_count;
    header.table_hash = CAIRN_TABLE_HASH_WHOLE;
    header.dtype = CAIRN_F32;
    header.plane = kind == CAIRN_CHUNK_PUSH ? 0 : CAIRN_PLANE_PARAM;
    return header;
}

struct chunk_header scene_chunk_header(const struct scene *scene, uint8_t kind, uint64_t member,
                                       uint64_t chunk)
{
    const struct chunk_place place = shard_map_chunk(&scene->map, chunk);
    struct chunk_header header = scene_place_header(scene, kind, member, &place);
    header.request = chunk + 1;
    return header;
}

struct chunk_header scene_fetch_header(const struct scene *scene, uint64_t member, uint64_t chunk,
                                       enum plane plane, uint64_t generation, uint64_t step)
{
    struct chunk_header fetch = scene_chunk_header(scene, CAIRN_CHUNK_FETCH, member, chunk);
    fetch.plane = (uint8_t)plane;
    fetch.generation = generation;
    fetch.step = step;
    return fetch;
}

uint64_t scene_chunk_of(const struct scene *scene, uint32_t tensor)
{
    uint64_t chunk = 0;
    while (shard_map_chunk(&scene->map, chunk).tensor != tensor) chunk++;
    return chunk;
}

size_t scene_chunk_bytes(const struct scene *scene, uint64_t chunk)
{
    return (size_t)shard_map_chunk(&scene->map, chunk).elem_count * sizeof(float);
}

void scene_send(struct scene *scene, struct chunk_header *header, const void *payload,
                size_t payload_bytes)
{
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    header->payload_bytes = payload_bytes;
    if (header->checksum == 0 && payload_bytes > 0)
        header->checksum = chunk_checksum(payload, payload_bytes);
    chunk_encode(header, bytes);
    scene->sent++;
    ck_assert_int_eq(
        fabric_send(scene->peer, bytes, sizeof bytes, payload, payload_bytes, on_sent, scene),
        CAIRN_OK);
}

const struct scene_note *scene_note(struct scene *scene, uint8_t kind)
{
    watch(scene);
    for (;;) {
        for (size_t i = 0; i < scene->note_count; i++) {
            struct scene_note *note = &scene->notes[i];
            if (note->taken || !note->whole || note->header.kind != kind) continue;
            note->taken = true;
            uv_timer_stop(&scene->deadline);
            return note;
        }
        turn(scene);
    }
}

cairn_status scene_nak(struct scene *scene, struct chunk_header *header, const void *payload,
                       size_t payload_bytes)
{
    scene_send(scene, header, payload, payload_bytes);
    const struct chunk_header nak = scene_note(scene, CAIRN_CHUNK_NAK)->header;
    ck_assert_uint_eq(nak.member, header->member);
    ck_assert_uint_eq(nak.request, header->request);
    scene_sent(scene);
    return (cairn_status)nak.value;
}

void scene_fetch(struct scene *scene, uint64_t member, uint64_t chunk, enum plane plane,
                 uint64_t generation, uint64_t step)
{
    struct chunk_header fetch = scene_fetch_header(scene, member, chunk, plane, generation, step);
    scene_send(scene, &fetch, NULL, 0);
}

void scene_write_commit(struct scene *scene)
{
    static const uint32_t absent[] = { T_BIAS, T_EMB, T_WEIGHT };
    struct chunk_header end = scene_header(scene, CAIRN_CHUNK_MICRO_END, 1);
    struct chunk_header commit = scene_header(scene, CAIRN_CHUNK_COMMIT, 1);
    commit.value = 1;
    scene_send(scene, &end, absent, sizeof absent);
    scene_send(scene, &commit, NULL, 0);
}

void scene_forget_notes(struct scene *scene)
{
    for (size_t i = 0; i < scene->note_count; i++) scene->notes[i].taken = true;
}

size_t scene_waiting(const struct scene *scene, uint8_t kind)
{
    size_t count = 0;
    for (size_t i = 0; i < scene->note_count; i++)
        count += !scene->notes[i].taken && scene->notes[i].header.kind == kind;
    return count;
}

void scene_sent(struct scene *scene)
{
    watch(scene);
    while (scene->sends_over < scene->sent) turn(scene);
    uv_timer_stop(&scene->deadline);
}

void scene_settle(struct scene *scene)
{
    scene_sent(scene);
    // Heartbeats come every 20 ms: two of them, and everything before them was said.
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < scene->frame_count; k++)
            if (scene->frames[k].type == CAIRN_MSG_HEARTBEAT) scene->frames[k].taken = true;
        scene_hear(scene, CAIRN_MSG_HEARTBEAT);
    }
}

float scene_initial(uint32_t tensor, uint64_t elem)
{
    return (float)((elem * 2654435761u + tensor * 97u) % 2001u) / 1000.0f - 1.0f;
}

void *scene_lose_pages(const struct arena *arena)
{
    const int fd = memfd_create("of no pages", MFD_CLOEXEC);
    void *kept = pages_reserve(arena->bytes);
    ck_assert(kept != MAP_FAILED && fd >= 0);
    ck_assert(pages_double(kept, arena->base, arena->bytes));
    ck_assert(mmap(arena->base, arena->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                   0) != MAP_FAILED);
    close(fd);
    return kept;
}

void scene_find_pages(const struct arena *arena, void *kept)
{
    ck_assert(pages_double(arena->base, kept, arena->bytes));
    munmap(kept, arena->bytes);
}

size_t scene_resident(const struct arena *arena)
{
    const size_t bytes = arena->begin + arena->bytes, pages = (bytes + 4095) / 4096;
    unsigned char *there = malloc(pages);
    size_t count = 0;
    ck_assert_int_eq(mincore(arena->base - arena->begin, bytes, there), 0);
    for (size_t i = 0; i < pages; i++) count += there[i] & 1;
    free(there);
    return count * 4096;
}

const void *scene_plane(const struct shard_job *job, enum plane plane)
{
    static uint8_t *copies[CAIRN_PLANES];
    struct sentence why;
    const struct shard_map *map = &job->view->table.map;
    uint8_t *copy = realloc(copies[plane], map->elem_count * sizeof(float) + 1);
    ck_assert_ptr_nonnull(copy);
    copies[plane] = copy;
    memset(copy, 0, map->elem_count * sizeof(float));
    struct works *works = compute_loop(job->compute);
    for (uint64_t c = 0; c < map->chunk_count; c++) {
        const struct chunk_place place = shard_map_chunk(map, c);
        const uint32_t extent = job->view->table.extent_of[c];
        const void *at = planes_at(&job->planes, plane, extent, place.local_elem);
        const struct form *form = &job->view->forms[extent];
        const uint64_t first = map->extents[extent].local_elem;
        if (at != NULL)
            works_copy(works,
                       copy + first * sizeof(float) +
                           form_bytes(form, plane, place.local_elem - first),
                       at, (size_t)form_bytes(form, plane, place.elem_count));
    }
    ck_assert_int_eq(works_run(works, &why), CAIRN_OK);
    return copy;
}

const float *scene_param(const struct scene *scene, uint64_t chunk)
{
    const float *param = scene_plane(scene->shard->jobs, CAIRN_PLANE_PARAM);
    return param + shard_map_chunk(&scene->map, chunk).local_elem;
}

uint8_t scene_byte(uint64_t elem)
{
    return (uint8_t)(elem % 251);
}

/* Of a chunk; malloc'ed. */
static void *make_initial(const struct chunk_place *place, bool is_blob)
{
    float *values = malloc(place->elem_count * sizeof *values);
    for (uint64_t i = 0; i < place->elem_count && !is_blob; i++)
        values[i] = scene_initial(place->tensor, place->first_elem + i);
    for (uint64_t i = 0; i < place->elem_count && is_blob; i++)
        ((uint8_t *)values)[i] = scene_byte(place->first_elem + i);
    return values;
}

void scene_put_all(struct scene *scene, uint64_t member)
{
    for (uint64_t c = 0; c < scene->map.chunk_count; c++) {
        const struct chunk_place place = shard_map_chunk(&scene->map, c);
        const bool is_blob = scene->spec.tensors[place.tensor].kind == CAIRN_BLOB;
        void *values = make_initial(&place, is_blob);
        struct chunk_header put = scene_chunk_header(scene, CAIRN_CHUNK_PUT, member, c);
        if (is_blob) put.dtype = CAIRN_U8;
        scene_send(scene, &put, values, place.elem_count * (is_blob ? 1 : sizeof(float)));
        ck_assert_uint_eq(scene_note(scene, CAIRN_CHUNK_ACK)->header.request, put.request);
        scene_sent(scene);
        free(values);
    }
}

/* ---- the job ---- */

static void add_tensor(struct job_spec_data *spec, const char *name, const char *group,
                       cairn_kind kind, cairn_dtype wire, uint32_t rank, uint64_t rows,
                       uint64_t columns)
{
    const struct tensor_spec tensor = {
        .name = (char *)name,
        .group = (char *)group,
        .kind = kind,
        .wire = wire,
        .reduce = CAIRN_F32,
        .master = CAIRN_F32,
        .shape = { .rank = rank, .dim = { rows, columns } },
    };
    ck_assert_int_eq(spec_add_tensor(spec, &tensor), CAIRN_OK);
}

static void make_spec(struct job_spec_data *spec)
{
    spec_init(spec);
    ck_assert_int_eq(spec_set_name(spec, "play"), CAIRN_OK);
    struct group_spec group = group_default();
    group.name = (char *)"a";
    group.optimizer = (char *)"adamw";
    group.weight_decay = 0.01;
    group.ema = 0.75;
    group.ema_schedule = CAIRN_EMA_WARMUP;
    ck_assert_int_eq(spec_add_group(spec, &group), CAIRN_OK);
    group = group_default();
    group.name = (char *)"s";
    group.optimizer = (char *)"sgd";
    group.momentum = 0.9;
    ck_assert_int_eq(spec_add_group(spec, &group), CAIRN_OK);
    add_tensor(spec, "bias", "a", CAIRN_TRAINED, CAIRN_F32, 1, 10, 0);
    add_tensor(spec, "emb", "s", CAIRN_TRAINED, CAIRN_F32, 2, 40, 300);
    add_tensor(spec, "frozen", "", CAIRN_FROZEN, CAIRN_F32, 2, 20, 500);
    add_tensor(spec, "weight", "a", CAIRN_TRAINED, CAIRN_BF16, 2, 50, 1000);
    spec->chunk_leaves = SCENE_CHUNK_LEAVES;
    spec->window = SCENE_WINDOW;
    spec->offload_fraction = cairn_test_offload();
    spec_canonicalize(spec);
    struct sentence why;
    ck_assert_msg(spec_check(spec, optimizer_names(), &why) == CAIRN_OK, "%s", why.text);
}

static void make_layout(struct scene *scene)
{
    struct layout_tensor tensors[TENSORS];
    struct extent *extents = calloc(TENSORS + 1, sizeof *extents);
    for (uint32_t t = 0; t < TENSORS; t++) {
        const struct tensor_spec *spec = &scene->spec.tensors[t];
        const struct geometry geometry = geometry_of(&spec->shape);
        tensors[t] = (struct layout_tensor) {
            .name = spec->name, .unit = spec->unit, .shape = spec->shape, .elem_bytes = 1
        };
        extents[t] = (struct extent) { .tensor = t, .quantum_count = geometry.quantum_count };
    }
    extents[TENSORS] = extents[T_WEIGHT]; // its last quanta stand on shard 1
    extents[T_WEIGHT].quantum_count -= 3;
    extents[TENSORS].first_quantum = extents[T_WEIGHT].quantum_count;
    extents[TENSORS].quantum_count = 3;
    extents[TENSORS].shard = 1;
    const uint32_t shards = scene->index < SCENE_SHARDS ? SCENE_SHARDS : scene->index + 1;
    ck_assert_int_eq(layout_make(tensors, TENSORS, shards, 1, extents, TENSORS + 1, &scene->layout),
                     CAIRN_OK);
    ck_assert_int_eq(shard_map_init(&scene->map, scene->layout, scene->index, SCENE_CHUNK_LEAVES),
                     CAIRN_OK);
}

void scene_relayout(struct scene *scene, struct layout *layout)
{
    shard_map_release(&scene->map);
    layout_close(scene->layout);
    scene->layout = layout;
    ck_assert_int_eq(shard_map_init(&scene->map, layout, scene->index, SCENE_CHUNK_LEAVES),
                     CAIRN_OK);
}

void scene_reshape_frozen(struct scene *scene, uint64_t rows, uint64_t columns)
{
    scene->spec.tensors[T_FROZEN].shape = (struct shape) { .rank = 2, .dim = { rows, columns } };
    shard_map_release(&scene->map);
    layout_close(scene->layout);
    make_layout(scene);
}

/* ---- open and close ---- */

static void open_worker(struct scene *scene, const char *kind)
{
    struct sentence why;
    const struct fabric_options options = {
        .on_message = on_message,
        .on_message_arg = scene,
        .max_payload = CAIRN_CHUNK_PAYLOAD_MAX,
        .hub = scene->hub,
    };
    ck_assert_msg(fabric_open(kind, &options, &scene->fabric, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_int_eq(fabric_poll_init(&scene->poll, &scene->loop, scene->fabric, 0), CAIRN_OK);
    connect_shard(scene);
}

static void open_scene(struct scene *scene, const char *kind, const struct shard_options *as)
{
    struct sentence why;
    log_init("test", CAIRN_LOG_ERROR);
    uv_loop_init(&scene->loop);
    uv_timer_init(&scene->loop, &scene->deadline);
    scene->deadline.data = scene;
    scene->notes = calloc(4096, sizeof *scene->notes);
    if (strcmp(kind, "mem") == 0 && scene->hub == NULL) {
        const struct cairn_fabric_mem_options mem = { .seed = 7, .delay_max_ticks = 4 };
        ck_assert_int_eq(cairn_fabric_mem_hub_open(&mem, &scene->hub), CAIRN_OK);
    }
    signal(SIGPIPE, SIG_IGN); // as a daemon does
    cairn_scratch_make_quick(scene->folder);
    snprintf(scene->coordinator, sizeof scene->coordinator, "%s/socket", scene->folder);
    const struct listener_options listen = {
        .listen = scene->coordinator,
        .connections_max = 8,
        .half_open_max = 4,
        .hello_timeout_ms = 5000,
        .send_queue_bytes = 8 << 20,
    };
    const struct listener_events events = { .on_frame = on_frame, .on_gone = on_gone };
    ck_assert_msg(listener_open(&scene->loop, &listen, CAIRN_MSG_HELLO, CAIRN_MSG_MAX, &events,
                                scene, &scene->listener, &why) == CAIRN_OK,
                  "%s", why.text);
    struct shard_options options = *as;
    char name[12];
    snprintf(name, sizeof name, "s%u", scene->index);
    options.name = name;
    options.backend = cairn_test_backend();
    options.coordinator = scene->coordinator;
    options.fabric_kind = kind;
    options.hub = scene->hub;
    ck_assert_msg(shard_open(&scene->loop, &options, &scene->shard, &why) == CAIRN_OK, "%s",
                  why.text);
    make_spec(&scene->spec);
    make_layout(scene);
    open_worker(scene, kind);
    scene_hear(scene, CAIRN_MSG_HELLO);
}

void scene_open(struct scene *scene, const char *kind, uint32_t threads, uint64_t limit_bytes)
{
    const struct shard_options options = {
        .memory_bytes = limit_bytes != 0 ? limit_bytes : (uint64_t)1 << 30,
        .compute_threads = threads,
        .memory_lock = "/proc/self", // other tests have theirs
    };
    memset(scene, 0, sizeof *scene);
    open_scene(scene, kind, &options);
}

void scene_open_beside(struct scene *scene, const struct scene *first, uint32_t index)
{
    const struct shard_options options = { .memory_bytes = (uint64_t)1 << 30,
                                           .compute_threads = 1,
                                           .memory_lock = "/proc/self" };
    memset(scene, 0, sizeof *scene);
    scene->index = index;
    scene->hub = first->hub;
    scene->hub_is_lent = true;
    open_scene(scene, first->hub != NULL ? "mem" : "ucx", &options);
}

void scene_open_on(struct scene *scene, const char *host_root, const char *memory_lock)
{
    const struct shard_options options = { .memory_bytes = (uint64_t)1 << 30,
                                           .compute_threads = 1,
                                           .host_root = host_root,
                                           .memory_lock = memory_lock };
    memset(scene, 0, sizeof *scene);
    open_scene(scene, "mem", &options);
}

void scene_close(struct scene *scene)
{
    scene->closing = true;
    if (scene->shard != NULL) shard_close(scene->shard, NULL, NULL);
    listener_close(scene->listener, NULL);
    fabric_poll_close(&scene->poll, NULL, NULL);
    fabric_close(scene->fabric);
    uv_close((uv_handle_t *)&scene->deadline, NULL);
    uv_run(&scene->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&scene->loop), 0);
    if (scene->hub != NULL && !scene->hub_is_lent) cairn_fabric_mem_hub_close(scene->hub);
    for (size_t i = 0; i < scene->frame_count; i++) message_free(scene->frames[i].message);
    for (size_t i = 0; i < scene->note_count; i++) free(scene->notes[i].payload);
    free(scene->frames);
    free(scene->notes);
    shard_map_release(&scene->map);
    layout_close(scene->layout);
    spec_release(&scene->spec);
    cairn_scratch_remove(scene->folder);
}

#include "proto/wire/wire.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/text.h"
#include "proto/spec/spec_fields.h"

struct row {
    uint16_t number;
    const ProtobufCMessageDescriptor *type;
};

static const struct row rows[] = {
#define X(number, constant, type, field) { number, &cairn__##field##__descriptor },
    CAIRN_MESSAGE_TABLE(X)
#undef X
};

const ProtobufCMessageDescriptor *message_type(uint16_t number)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].number == number) return rows[i].type;
    return NULL;
}

const char *message_name(uint16_t number)
{
    const ProtobufCMessageDescriptor *type = message_type(number);
    return type != NULL ? type->short_name : "?";
}

uint64_t *message_job(ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *type = message->descriptor;
    const ProtobufCFieldDescriptor *first = type->n_fields > 0 ? &type->fields[0] : NULL;
    if (first == NULL || first->type != PROTOBUF_C_TYPE_FIXED64 || strcmp(first->name, "job") != 0)
        return NULL;
    return (uint64_t *)(void *)((uint8_t *)message + first->offset);
}

/* Real messages take up to about ten times their length in memory; see the test of a full spec. */
#define UNPACK_FACTOR 24
#define UNPACK_BASE   ((size_t)16 << 10)

static void *budget_alloc(void *left, size_t bytes)
{
    size_t *left_bytes = left;
    if (bytes > *left_bytes) {
        errno = EMSGSIZE;
        return NULL;
    }
    *left_bytes -= bytes;
    return malloc(bytes);
}

static void budget_free(void *left, void *memory)
{
    (void)left;
    free(memory);
}

ProtobufCMessage *message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes,
                                 size_t bytes_len)
{
    size_t left_bytes = UNPACK_BASE + bytes_len * UNPACK_FACTOR;
    ProtobufCAllocator budget = { budget_alloc, budget_free, &left_bytes };
    errno = 0;
    return protobuf_c_message_unpack(type, &budget, bytes_len, bytes);
}

void message_free(ProtobufCMessage *message)
{
    ProtobufCAllocator budget = { budget_alloc, budget_free, NULL };
    if (message != NULL) protobuf_c_message_free_unpacked(message, &budget);
}

/* Mends a field's value, or one value of a repeated field. control.proto has no oneof, and no message
 * that contains itself. */
static void mend_value(const ProtobufCFieldDescriptor *field, void *value)
{
    if (value == NULL || value == field->default_value || value == protobuf_c_empty_string) return;
    if (field->type == PROTOBUF_C_TYPE_STRING) text_mend(value, "\n");
    if (field->type == PROTOBUF_C_TYPE_MESSAGE) message_mend(value);
}

void message_mend(ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        uint8_t *at = (uint8_t *)message + field->offset;
        const bool is_pointer = field->type == PROTOBUF_C_TYPE_STRING ||
                                field->type == PROTOBUF_C_TYPE_MESSAGE;
        const bool is_list = field->label == PROTOBUF_C_LABEL_REPEATED;
        if (!is_pointer) continue;
        const size_t count = is_list ? *(size_t *)((uint8_t *)message + field->quantifier_offset)
                                     : 1;
        void **values = is_list ? *(void ***)at : (void **)at;
        for (size_t k = 0; k < count; k++) mend_value(field, values[k]);
    }
}

const char *role_name(uint32_t role)
{
    static const char *const names[] = { "?", "worker", "reader", "shard", "admin" };
    return role < sizeof names / sizeof names[0] ? names[role] : names[0];
}

cairn_status paged_init(struct paged *part, enum page_what what, uint64_t total_bytes)
{
    *part = (struct paged) { .what = what };
    if (total_bytes > CAIRN_PAGED_BYTES_MAX) return CAIRN_ERR_INVALID;
    part->total_bytes = total_bytes;
    return CAIRN_OK;
}

cairn_status paged_init_job(struct paged parts[CAIRN_PARTS], uint64_t spec_bytes,
                            uint64_t layout_bytes)
{
    CAIRN_TRY(paged_init(&parts[CAIRN_PART_SPEC], CAIRN_PAGE_SPEC, spec_bytes));
    return paged_init(&parts[CAIRN_PART_LAYOUT], CAIRN_PAGE_LAYOUT, layout_bytes);
}

void paged_release(struct paged *parts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(parts[i].bytes);
        parts[i] = (struct paged) { 0 };
    }
}

static cairn_status paged_reserve(struct paged *paged, size_t more_bytes)
{
    const size_t need = paged->have_bytes + more_bytes;
    if (need <= paged->capacity_bytes) return CAIRN_OK;
    size_t capacity = paged->capacity_bytes * 2 > need ? paged->capacity_bytes * 2 : need;
    if (capacity > paged->total_bytes) capacity = (size_t)paged->total_bytes;
    uint8_t *bytes = realloc(paged->bytes, capacity);
    if (bytes == NULL) return CAIRN_ERR_NO_MEMORY;
    paged->bytes = bytes;
    paged->capacity_bytes = capacity;
    return CAIRN_OK;
}

cairn_status paged_add(struct paged *parts, size_t count, const Cairn__Page *page)
{
    struct paged *paged = parts;
    while (paged < parts + count && paged->what != page->what) paged++;
    if (paged == parts + count) return CAIRN_ERR_PROTOCOL;
    if (page->total_bytes != paged->total_bytes) return CAIRN_ERR_PROTOCOL;
    if (page->offset != paged->have_bytes) return CAIRN_ERR_PROTOCOL;
    if (page->bytes.len == 0) return CAIRN_ERR_PROTOCOL;
    if (page->bytes.len > paged->total_bytes - paged->have_bytes) return CAIRN_ERR_PROTOCOL;
    CAIRN_TRY(paged_reserve(paged, page->bytes.len));
    memcpy(paged->bytes + paged->have_bytes, page->bytes.data, page->bytes.len);
    paged->have_bytes += page->bytes.len;
    return CAIRN_OK;
}

bool paged_whole(const struct paged *parts, size_t count)
{
    size_t i = 0;
    while (i < count && parts[i].have_bytes == parts[i].total_bytes) i++;
    return i == count;
}

size_t page_cut(enum page_what what, const uint8_t *bytes, size_t bytes_len, size_t offset,
                Cairn__Page *page_out)
{
    const size_t left = bytes_len - offset;
    Cairn__Page page = CAIRN__PAGE__INIT;
    page.what = what;
    page.offset = offset;
    page.total_bytes = bytes_len;
    page.bytes.data = (uint8_t *)(uintptr_t)(bytes + offset); // protobuf-c lacks the const
    page.bytes.len = left < CAIRN_PAGE_BYTES ? left : CAIRN_PAGE_BYTES;
    *page_out = page;
    return page.bytes.len;
}

#define VARINT_BYTES 5 /* the most bytes of a tag, or of a length */

size_t hello_fit(const Cairn__Hello *hello, Cairn__HeldJob *const *held, size_t count)
{
    Cairn__Hello bare = *hello;
    bare.n_held = 0;
    bare.held_after = UINT32_MAX;
    size_t bytes = CAIRN_FRAME_HEADER_BYTES + protobuf_c_message_get_packed_size(&bare.base);
    size_t fit = 0;
    for (; fit < count; fit++) {
        bytes += 2 * VARINT_BYTES + protobuf_c_message_get_packed_size(&held[fit]->base);
        if (bytes > CAIRN_FRAME_HELLO_BYTES) break;
    }
    return fit;
}

/* ==== messages spec ==== */

/* Converts a job spec to a protobuf message, and back. */

/* The protobuf side of a spec. This struct borrows the spec's strings, and owns the arrays. */
struct packing {
    Cairn__JobSpec message;
    Cairn__TensorSpec *tensors;
    Cairn__GroupSpec *groups;
    uint64_t *boxes;             /* [aliases of a box][2 * CAIRN_RANK_MAX] */
    ProtobufCBinaryData *former; /* [former_count] */
    Cairn__SettingMade *made;    /* [made_count] */
    size_t box_count;
};

static void packing_release(struct packing *p)
{
    free(p->tensors);
    free(p->groups);
    free(p->boxes);
    free(p->former);
    free(p->made);
    free(p->message.made);
    free(p->message.tensors);
    free(p->message.groups);
}

static cairn_status packing_alloc(struct packing *p, const struct job_spec_data *spec)
{
    size_t boxes = 0;
    for (size_t i = 0; i < spec->tensor_count; i++) boxes += spec->tensors[i].alias_box != NULL;
    // calloc of 0 may give NULL: ask for one more.
    p->boxes = calloc(boxes + 1, 2 * CAIRN_RANK_MAX * sizeof *p->boxes);
    p->former = calloc(spec->former_count + 1, sizeof *p->former);
    p->made = calloc(spec->made_count + 1, sizeof *p->made);
    p->message.made = calloc(spec->made_count + 1, sizeof *p->message.made);
    p->tensors = calloc(spec->tensor_count + 1, sizeof *p->tensors);
    p->groups = calloc(spec->group_count + 1, sizeof *p->groups);
    p->message.tensors = calloc(spec->tensor_count + 1, sizeof *p->message.tensors);
    p->message.groups = calloc(spec->group_count + 1, sizeof *p->message.groups);
    if (p->boxes != NULL && p->former != NULL && p->made != NULL && p->message.made != NULL &&
        p->tensors != NULL && p->groups != NULL && p->message.tensors != NULL &&
        p->message.groups != NULL)
        return CAIRN_OK;
    packing_release(p);
    return CAIRN_ERR_NO_MEMORY;
}

static void pack_alias(struct packing *p, const struct tensor_spec *tensor, Cairn__TensorSpec *out)
{
    const struct cairn_box *box = tensor->alias_box;
    if (tensor->alias_of != NULL) out->alias_of = tensor->alias_of;
    if (box == NULL) return;
    out->alias_box = p->boxes + p->box_count++ * 2 * CAIRN_RANK_MAX;
    out->n_alias_box = 2 * (size_t)box->rank;
    memcpy(out->alias_box, box->start, box->rank * sizeof box->start[0]);
    memcpy(out->alias_box + box->rank, box->extent, box->rank * sizeof box->extent[0]);
}

void tensor_to_message(const struct tensor_spec *tensor, Cairn__TensorSpec *out)
{
    cairn__tensor_spec__init(out);
    out->name = tensor->name;
    out->unit = tensor->unit;
    out->group = tensor->group;
    out->kind = tensor->kind;
    out->wire = tensor->wire;
    out->reduce = tensor->reduce;
    out->master = tensor->master;
    out->whole = tensor->whole;
    out->frozen = tensor->frozen;
    out->n_shape = tensor->shape.rank;
    out->shape = (uint64_t *)(uintptr_t)tensor->shape.dim;
    out->init = tensor->init.kind;
    out->init_a = tensor->init.a;
    out->init_b = tensor->init.b;
    out->init_seed = tensor->init.seed;
    out->steps_missed = tensor->steps_missed;
    out->order = tensor->order;
}

void group_to_message(const struct group_spec *group, Cairn__GroupSpec *out)
{
    cairn__group_spec__init(out);
    out->name = group->name;
    out->optimizer = group->optimizer;
    out->frozen = group->frozen;
    out->schedule = group->schedule.kind;
#define X(name, ...) out->name = group->name;
    CAIRN_GROUP_FIELDS(X)
#undef X
#define X(name, kind) out->name = group->schedule.name;
    CAIRN_SCHEDULE_FIELDS(X)
#undef X
    // A point is two words of 64 bits, step and factor, and so are two fixed64.
    _Static_assert(sizeof *group->schedule.points == 2 * sizeof *out->points, "no padding");
    out->points = (uint64_t *)(uintptr_t)group->schedule.points;
    out->n_points = 2 * group->schedule.point_count;
}

cairn_status group_of_message(const Cairn__GroupSpec *in, struct group_spec *out)
{
    if (in->n_points % 2 != 0 || in->n_points / 2 > CAIRN_SCHEDULE_POINTS_MAX)
        return CAIRN_ERR_INVALID;
    *out = (struct group_spec) {
        .name = in->name,
        .optimizer = in->optimizer,
        .frozen = in->frozen,
        .schedule = { .kind = (cairn_schedule_kind)in->schedule,
                      .points = (const struct cairn_schedule_point *)(const void *)in->points,
                      .point_count = in->n_points / 2 },
    };
#define X(name, ...) out->name = in->name;
    CAIRN_GROUP_FIELDS(X)
#undef X
#define X(name, kind) out->schedule.name = in->name;
    CAIRN_SCHEDULE_FIELDS(X)
#undef X
    return CAIRN_OK;
}

/* NULL and "" are the same in a message. */
static const char *given(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

void difference_of_message(const Cairn__Difference *in, struct spec_difference *out)
{
    *out = (struct spec_difference) {
        .object = in->object <= CAIRN_SPEC_OF_TENSOR ? (enum spec_object)in->object
                                                     : CAIRN_SPEC_OF_JOB,
        .name = given(in->name),
        .field = given(in->field),
        .point = in->point,
        .here = given(in->here),
        .there = given(in->there),
        .key = given(in->key),
        .value = given(in->value),
        .change = in->change <= CAIRN_SPEC_NEVER ? (enum spec_change)in->change : CAIRN_SPEC_NEVER,
    };
}

void spec_to_message(const struct job_spec_data *spec, Cairn__JobSpec *out)
{
    cairn__job_spec__init(out);
    out->name = spec->name;
    out->revision = spec->revision;
    out->amend_key = spec->amend_key;
    if (spec->init_from != NULL) out->init_from = spec->init_from;
    if (spec->init_prefix != NULL) out->init_prefix = spec->init_prefix;
#define X(name, member, ...) out->name = spec->member;
    CAIRN_SPEC_FIELDS(X)
#undef X
}

static void pack_job(struct packing *p, const struct job_spec_data *spec)
{
    Cairn__JobSpec *out = &p->message;
    Cairn__TensorSpec **tensors = out->tensors;
    Cairn__GroupSpec **groups = out->groups;
    Cairn__SettingMade **made = out->made;
    spec_to_message(spec, out);
    out->tensors = tensors;
    out->groups = groups;
    out->n_tensors = spec->tensor_count;
    out->n_groups = spec->group_count;
    for (size_t i = 0; i < spec->former_count; i++)
        p->former[i] = (ProtobufCBinaryData) { sizeof spec->former[i], spec->former[i] };
    out->former = p->former;
    out->n_former = spec->former_count;
    for (size_t i = 0; i < spec->made_count; i++) {
        cairn__setting_made__init(&p->made[i]);
        p->made[i].key = spec->made[i].key;
        p->made[i].was = spec->made[i].was;
        p->made[i].is = spec->made[i].is;
        made[i] = &p->made[i];
    }
    out->made = made;
    out->n_made = spec->made_count;
}

cairn_status spec_pack(const struct job_spec_data *spec, uint8_t **bytes_out, size_t *bytes_len_out)
{
    struct packing p = { .message = CAIRN__JOB_SPEC__INIT };
    CAIRN_TRY(packing_alloc(&p, spec));
    for (size_t i = 0; i < spec->tensor_count; i++) {
        Cairn__TensorSpec *out = &p.tensors[i];
        tensor_to_message(&spec->tensors[i], out);
        pack_alias(&p, &spec->tensors[i], out);
        p.message.tensors[i] = out;
    }
    for (size_t i = 0; i < spec->group_count; i++) {
        Cairn__GroupSpec *out = &p.groups[i];
        group_to_message(&spec->groups[i], out);
        p.message.groups[i] = out;
    }
    pack_job(&p, spec);
    const size_t len = cairn__job_spec__get_packed_size(&p.message);
    uint8_t *bytes = malloc(len + 1);
    if (bytes == NULL) {
        packing_release(&p);
        return CAIRN_ERR_NO_MEMORY;
    }
    cairn__job_spec__pack(&p.message, bytes);
    packing_release(&p);
    *bytes_out = bytes;
    *bytes_len_out = len;
    return CAIRN_OK;
}

/* Reads the box of an alias into *box. *box_out is NULL if the alias has no box: then the alias is the
 * complete tensor. */
static cairn_status unpack_box(const Cairn__TensorSpec *in, struct cairn_box *box,
                               struct cairn_box **box_out)
{
    const size_t rank = in->n_alias_box / 2;
    if (in->n_alias_box % 2 != 0 || rank > CAIRN_RANK_MAX) return CAIRN_ERR_INVALID;
    *box_out = NULL;
    if (rank == 0) return CAIRN_OK;
    *box = (struct cairn_box) { .rank = (uint32_t)rank };
    memcpy(box->start, in->alias_box, rank * sizeof box->start[0]);
    memcpy(box->extent, in->alias_box + rank, rank * sizeof box->extent[0]);
    *box_out = box;
    return CAIRN_OK;
}

cairn_status tensor_of_message(const Cairn__TensorSpec *in, struct tensor_spec *out,
                               struct cairn_box *box, struct sentence *why)
{
    if (in->n_shape > CAIRN_RANK_MAX) {
        sentence_set(why, "tensor %.80s has %zu dimensions; at most %d are allowed", in->name,
                     in->n_shape, CAIRN_RANK_MAX);
        return CAIRN_ERR_INVALID;
    }
    *out = (struct tensor_spec) {
        .name = in->name,
        .unit = in->unit,
        .group = in->group,
        .kind = (cairn_kind)in->kind,
        .wire = (cairn_dtype)in->wire,
        .reduce = (cairn_dtype)in->reduce,
        .master = (cairn_dtype)in->master,
        .shape = { .rank = (uint32_t)in->n_shape },
        .whole = in->whole,
        .frozen = in->frozen,
        .alias_of = in->alias_of[0] != '\0' ? in->alias_of : NULL,
        .init = { (cairn_init_kind)in->init, in->init_a, in->init_b, in->init_seed },
        .steps_missed = in->steps_missed,
        .order = in->order,
    };
    if (unpack_box(in, box, &out->alias_box) != CAIRN_OK) {
        sentence_set(why, "tensor %.80s: alias_box is no box", in->name);
        return CAIRN_ERR_INVALID;
    }
    if (in->n_shape > 0) memcpy(out->shape.dim, in->shape, in->n_shape * sizeof in->shape[0]);
    return CAIRN_OK;
}

static cairn_status unpack_tensor(const Cairn__TensorSpec *in, struct job_spec_data *spec,
                                  struct sentence *why)
{
    struct tensor_spec tensor;
    struct cairn_box box;
    const cairn_status status = tensor_of_message(in, &tensor, &box, why);
    return status == CAIRN_OK ? spec_add_tensor(spec, &tensor) : status;
}

static cairn_status unpack_group(const Cairn__GroupSpec *in, struct job_spec_data *spec)
{
    struct group_spec group;
    const cairn_status status = group_of_message(in, &group);
    return status == CAIRN_OK ? spec_add_group(spec, &group) : status;
}

void spec_fields_of_message(const Cairn__JobSpec *in, struct job_spec_data *spec)
{
    spec->revision = in->revision;
    spec->amend_key = in->amend_key;
#define X(name, member, ...) spec->member = in->name;
    CAIRN_SPEC_FIELDS(X)
#undef X
}

static cairn_status unpack_job(const Cairn__JobSpec *in, struct job_spec_data *spec,
                               struct sentence *why)
{
    cairn_status status = spec_set_name(spec, in->name);
    if (status == CAIRN_OK) status = spec_set_init_from(spec, in->init_from, in->init_prefix);
    for (size_t i = 0; status == CAIRN_OK && i < in->n_tensors; i++)
        status = unpack_tensor(in->tensors[i], spec, why);
    for (size_t i = 0; status == CAIRN_OK && i < in->n_groups; i++)
        status = unpack_group(in->groups[i], spec);
    spec_fields_of_message(in, spec);
    if (in->n_former > CAIRN_SPEC_FORMER_MAX) return CAIRN_ERR_INVALID;
    for (size_t i = 0; status == CAIRN_OK && i < in->n_former; i++) {
        if (in->former[i].len != 32) return CAIRN_ERR_INVALID;
        status = spec_add_former(spec, in->former[i].data);
    }
    if (in->n_made > CAIRN_SPEC_MADE_MAX) return CAIRN_ERR_INVALID;
    for (size_t i = 0; status == CAIRN_OK && i < in->n_made; i++)
        status = spec_add_made(spec, in->made[i]->key, in->made[i]->was, in->made[i]->is);
    return status;
}

cairn_status spec_unpack(const uint8_t *bytes, size_t bytes_len, const char *const *optimizers,
                         struct job_spec_data *spec_out, struct sentence *why)
{
    sentence_set(why, "the job spec does not fit its limits or has an invalid name");
    Cairn__JobSpec *in = (Cairn__JobSpec *)message_unpack(&cairn__job_spec__descriptor, bytes,
                                                          bytes_len);
    if (in == NULL && errno == ENOMEM)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a job spec of %zu bytes",
                         bytes_len);
    if (in == NULL) {
        sentence_set(why, "the job spec is not a valid JobSpec message of %zu bytes", bytes_len);
        return CAIRN_ERR_MALFORMED;
    }
    struct job_spec_data spec;
    spec_init(&spec);
    cairn_status status = unpack_job(in, &spec, why);
    message_free(&in->base);
    if (status == CAIRN_OK) {
        spec_canonicalize(&spec);
        status = spec_check(&spec, optimizers, why);
    }
    if (status != CAIRN_OK) {
        spec_release(&spec);
        return status;
    }
    *spec_out = spec;
    return CAIRN_OK;
}

/* ==== frame ==== */

#define IDLE_BYTES 4096u // what a connection may keep while it is idle

static const uint8_t magic[4] = { 'C', 'R', 'N', '1' };

void frame_decoder_init(struct frame_decoder *decoder, struct frame_limits limits)
{
    memset(decoder, 0, sizeof *decoder);
    frame_decoder_limit(decoder, limits);
}

void frame_decoder_release(struct frame_decoder *decoder)
{
    free(decoder->bytes);
    memset(decoder, 0, sizeof *decoder);
}

void frame_decoder_limit(struct frame_decoder *decoder, struct frame_limits limits)
{
    assert(limits.frame_bytes >= CAIRN_FRAME_HEADER_BYTES);
    assert(limits.frame_bytes <= CAIRN_FRAME_BYTES_MAX);
    decoder->limits = limits;
}

static size_t grown_capacity(const struct frame_decoder *decoder)
{
    const size_t wish = decoder->capacity == 0 ? IDLE_BYTES : 2 * decoder->capacity;
    const size_t limit = decoder->limits.frame_bytes;
    return wish < limit ? wish : limit;
}

enum frame_state frame_decoder_reserve(struct frame_decoder *decoder, uint8_t **room_out,
                                       size_t *room_bytes_out)
{
    if (decoder->malformed) return CAIRN_FRAME_MALFORMED;
    if (decoder->start > 0) {
        memmove(decoder->bytes, decoder->bytes + decoder->start, decoder->end - decoder->start);
        decoder->end -= decoder->start;
        decoder->start = 0;
    }
    if (decoder->end == decoder->capacity) {
        const size_t capacity = grown_capacity(decoder);
        if (capacity <= decoder->capacity) return CAIRN_FRAME_READY;
        uint8_t *bytes = realloc(decoder->bytes, capacity);
        if (bytes == NULL) return CAIRN_FRAME_NO_MEMORY;
        decoder->bytes = bytes;
        decoder->capacity = capacity;
    }
    *room_out = decoder->bytes + decoder->end;
    *room_bytes_out = decoder->capacity - decoder->end;
    return CAIRN_FRAME_NONE;
}

void frame_decoder_added(struct frame_decoder *decoder, size_t added_bytes)
{
    assert(added_bytes <= decoder->capacity - decoder->end);
    decoder->end += added_bytes;
}

enum frame_state frame_decoder_feed(struct frame_decoder *decoder, const uint8_t *bytes,
                                    size_t count, size_t *taken_out)
{
    uint8_t *room;
    size_t room_bytes;
    const enum frame_state state = frame_decoder_reserve(decoder, &room, &room_bytes);
    if (state != CAIRN_FRAME_NONE) return state;
    *taken_out = count < room_bytes ? count : room_bytes;
    memcpy(room, bytes, *taken_out);
    frame_decoder_added(decoder, *taken_out);
    return CAIRN_FRAME_NONE;
}

void frame_decoder_trim(struct frame_decoder *decoder)
{
    if (decoder->start != decoder->end) return;
    decoder->start = decoder->end = 0;
    if (decoder->capacity <= IDLE_BYTES) return;
    free(decoder->bytes);
    decoder->bytes = NULL;
    decoder->capacity = 0;
}

// Validates a complete header against the present limits; `why` says which number is wrong.
static cairn_status judge_header(const uint8_t *header, const struct frame_limits *limits,
                                 struct sentence *why)
{
    const unsigned type = (unsigned)le_get(header + 4, 2);
    const unsigned flags = (unsigned)le_get(header + 6, 2);
    const uint32_t payload_bytes = (uint32_t)le_get(header + 8, 4);
    if (type < limits->type_min || type > limits->type_max)
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "message type %u is not expected here (%u to %u are): another version of "
                         "Cairn, or no Hello yet",
                         type, limits->type_min, limits->type_max);
    if (flags != 0)
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "frame flags 0x%x are unknown: the peer is a newer version", flags);
    if (payload_bytes > limits->frame_bytes - CAIRN_FRAME_HEADER_BYTES)
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "a frame of type %u claims %u bytes of payload, the limit is %u", type,
                         payload_bytes, limits->frame_bytes - CAIRN_FRAME_HEADER_BYTES);
    return CAIRN_OK;
}

static cairn_status judge_magic(const uint8_t *bytes, size_t byte_count, struct sentence *why)
{
    if (byte_count > sizeof magic) byte_count = sizeof magic;
    for (size_t i = 0; i < byte_count; i++)
        if (bytes[i] != magic[i])
            return fail_with(why, CAIRN_ERR_PROTOCOL,
                             "byte %zu of a frame is 0x%02x, not 0x%02x: this is not Cairn's "
                             "protocol (is the port the right one?)",
                             i, bytes[i], magic[i]);
    return CAIRN_OK;
}

enum frame_state frame_decoder_next(struct frame_decoder *decoder, struct wire_frame *frame_out,
                                    struct sentence *why)
{
    const size_t arrived = decoder->end - decoder->start;
    if (decoder->malformed) {
        sentence_set(why, "the stream was malformed before");
        return CAIRN_FRAME_MALFORMED;
    }
    if (arrived == 0) return CAIRN_FRAME_NONE; // there may be no buffer at all in this case
    const uint8_t *header = decoder->bytes + decoder->start;
    if (judge_magic(header, arrived, why) != CAIRN_OK) goto malformed;
    if (arrived < CAIRN_FRAME_HEADER_BYTES) return CAIRN_FRAME_NONE;
    if (judge_header(header, &decoder->limits, why) != CAIRN_OK) goto malformed;

    const size_t payload_bytes = le_get(header + 8, 4);
    if (arrived - CAIRN_FRAME_HEADER_BYTES < payload_bytes) return CAIRN_FRAME_NONE;
    frame_out->type = (uint16_t)le_get(header + 4, 2);
    frame_out->request = (uint32_t)le_get(header + 12, 4);
    frame_out->payload = header + CAIRN_FRAME_HEADER_BYTES;
    frame_out->payload_bytes = payload_bytes;
    decoder->start += CAIRN_FRAME_HEADER_BYTES + payload_bytes;
    return CAIRN_FRAME_READY;
malformed:
    decoder->malformed = 1;
    return CAIRN_FRAME_MALFORMED;
}

void frame_header_write(uint8_t header_out[CAIRN_FRAME_HEADER_BYTES], uint16_t type,
                        uint32_t request, uint32_t payload_bytes)
{
    memcpy(header_out, magic, sizeof magic);
    le_put(header_out + 4, type, 2);
    le_put(header_out + 6, 0, 2);
    le_put(header_out + 8, payload_bytes, 4);
    le_put(header_out + 12, request, 4);
}

cairn_status frame_pack(uint16_t type, uint32_t request, const ProtobufCMessage *message,
                        uint32_t frame_bytes_max, uint8_t **frame_out, size_t *frame_bytes_out,
                        struct sentence *why)
{
    assert(frame_bytes_max >= CAIRN_FRAME_HEADER_BYTES);
    const size_t payload_bytes = protobuf_c_message_get_packed_size(message);
    if (payload_bytes > frame_bytes_max - CAIRN_FRAME_HEADER_BYTES)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "a %s of %zu bytes is larger than a frame may be (%u): send it in pages",
                         message->descriptor->short_name, payload_bytes,
                         frame_bytes_max - CAIRN_FRAME_HEADER_BYTES);
    uint8_t *frame = malloc(CAIRN_FRAME_HEADER_BYTES + payload_bytes);
    if (frame == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a frame of %zu bytes",
                         payload_bytes);
    frame_header_write(frame, type, request, (uint32_t)payload_bytes);
    protobuf_c_message_pack(message, frame + CAIRN_FRAME_HEADER_BYTES);
    *frame_out = frame;
    *frame_bytes_out = CAIRN_FRAME_HEADER_BYTES + payload_bytes;
    return CAIRN_OK;
}

/* ==== packed ==== */

struct packed *packed_take(uint8_t *bytes, size_t size)
{
    struct packed *packed = bytes != NULL ? malloc(sizeof *packed) : NULL;
    if (packed == NULL) {
        free(bytes);
        return NULL;
    }
    atomic_init(&packed->holds, 1);
    packed->size = size;
    packed->bytes = bytes;
    return packed;
}

struct packed *packed_copy(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size + 1);
    if (copy != NULL && size > 0) memcpy(copy, bytes, size);
    return packed_take(copy, size);
}

struct packed *packed_spec(const struct job_spec_data *spec)
{
    uint8_t *bytes;
    size_t size;
    return spec_pack(spec, &bytes, &size) == CAIRN_OK ? packed_take(bytes, size) : NULL;
}

struct packed *packed_tiles(const struct tiles *tiles)
{
    uint8_t *bytes;
    size_t size;
    return tiles_pack(tiles, &bytes, &size) == CAIRN_OK ? packed_take(bytes, size) : NULL;
}

struct packed *packed_layout(const struct layout *layout)
{
    const size_t size = layout_encoded_bytes(layout);
    uint8_t *bytes = malloc(size);
    if (bytes != NULL) layout_encode(layout, bytes);
    return packed_take(bytes, size);
}

struct packed *packed_hold(struct packed *packed)
{
    atomic_fetch_add_explicit(&packed->holds, 1, memory_order_relaxed);
    return packed;
}

void packed_release(struct packed *packed)
{
    if (packed == NULL || atomic_fetch_sub_explicit(&packed->holds, 1, memory_order_acq_rel) > 1)
        return;
    free((void *)(uintptr_t)packed->bytes);
    free(packed);
}

/* ==== outbox ==== */

struct outbox_pages {
    struct outbox_pages *next;
    struct packed *packed; /* held */
    size_t offset;         /* the bytes before this offset were taken */
    uint32_t request;
    enum page_what what;
    struct outbox_frames behind; /* frames between these pages and the next pages */
};

void outbox_frames_release(struct outbox_frames *frames)
{
    free(frames->bytes);
    *frames = (struct outbox_frames) { 0 };
}

// The capacity at least doubles if it must grow. The sender has checked the queue's bound.
static cairn_status reserve_frames(struct outbox_frames *frames, size_t more_bytes)
{
    if (more_bytes <= frames->capacity_bytes - frames->used_bytes) return CAIRN_OK;
    size_t capacity = frames->used_bytes + more_bytes;
    if (capacity < 2 * frames->capacity_bytes) capacity = 2 * frames->capacity_bytes;
    uint8_t *grown = realloc(frames->bytes, capacity);
    if (grown == NULL) return CAIRN_ERR_NO_MEMORY;
    frames->bytes = grown;
    frames->capacity_bytes = capacity;
    return CAIRN_OK;
}

static void append_frame(struct outbox_frames *frames, const uint8_t *bytes, size_t byte_count)
{
    if (byte_count > 0) memcpy(frames->bytes + frames->used_bytes, bytes, byte_count);
    frames->used_bytes += byte_count;
}

cairn_status outbox_add(struct outbox *box, const uint8_t *head, size_t head_bytes,
                        const uint8_t *tail, size_t tail_bytes)
{
    struct outbox_frames *frames = box->last != NULL ? &box->last->behind : &box->frames;
    CAIRN_TRY(reserve_frames(frames, head_bytes + tail_bytes));
    append_frame(frames, head, head_bytes);
    append_frame(frames, tail, tail_bytes);
    box->frame_bytes += head_bytes + tail_bytes;
    return CAIRN_OK;
}

cairn_status outbox_add_pages(struct outbox *box, uint32_t request, enum page_what what,
                              struct packed *packed)
{
    if (packed->size == 0) return CAIRN_OK;
    struct outbox_pages *pages = calloc(1, sizeof *pages);
    if (pages == NULL) return CAIRN_ERR_NO_MEMORY;
    pages->packed = packed_hold(packed);
    pages->request = request;
    pages->what = what;
    if (box->last != NULL)
        box->last->next = pages;
    else
        box->first = pages;
    box->last = pages;
    box->paged_bytes += packed->size;
    return CAIRN_OK;
}

/* Drops the first pages, which were sent: the frames behind them are next. */
static void drop_pages(struct outbox *box)
{
    struct outbox_pages *pages = box->first;
    outbox_frames_release(&box->frames);
    box->frames = pages->behind;
    box->first = pages->next;
    if (box->first == NULL) box->last = NULL;
    box->paged_bytes -= pages->packed->size;
    packed_release(pages->packed);
    free(pages);
}

static cairn_status take_page(struct outbox *box, struct outbox_frames *out)
{
    struct outbox_pages *pages = box->first;
    const struct packed *packed = pages->packed;
    Cairn__Page page;
    uint8_t *frame;
    size_t frame_bytes;
    const size_t cut = page_cut(pages->what, packed->bytes, packed->size, pages->offset, &page);
    CAIRN_TRY(frame_pack(CAIRN_MSG_PAGE, pages->request, &page.base, CAIRN_FRAME_BYTES_MAX, &frame,
                         &frame_bytes, NULL));
    outbox_frames_release(out);
    *out = (struct outbox_frames) { frame, frame_bytes, frame_bytes };
    pages->offset += cut;
    if (pages->offset == packed->size) drop_pages(box);
    return CAIRN_OK;
}

cairn_status outbox_take(struct outbox *box, struct outbox_frames *out)
{
    if (box->frames.used_bytes > 0) {
        const struct outbox_frames emptied = *out;
        *out = box->frames;
        box->frames = emptied;
        box->frame_bytes -= out->used_bytes;
        return CAIRN_OK;
    }
    return box->first != NULL ? take_page(box, out) : CAIRN_ERR_NOT_FOUND;
}

void outbox_release(struct outbox *box)
{
    while (box->first != NULL) drop_pages(box);
    outbox_frames_release(&box->frames);
}

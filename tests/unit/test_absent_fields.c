/* Every field of every control message, tried absent. The messages are made of their descriptors, so that a
 * new field is tried by itself: all fields have a value that means something in a job that is there, but one,
 * which is left out. The coordinator hears each from a peer of every role, a shard each from its
 * coordinator. Nobody may fall over it or leak (this runs under the sanitizers, too), what is refused is
 * refused with a sentence, and both serve as before in the end. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/base.h"
#include "client/job.h"
#include "proto/wire/wire.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"
#include "tests/support/toy.h"

/* ---- messages ---- */

enum { DEPTH_MAX = 3, BYTES = 32, FIELDS_MAX = 256 };

static const uint8_t some_bytes[BYTES] = { 1, 2, 3 };
static struct sentence told; /* which message, without which field */

/* A number by the field's name: of the job and the version that are there. */
static uint64_t number_of(const char *name, uint64_t job)
{
    if (strcmp(name, "job") == 0) return job;
    if (strcmp(name, "protocol") == 0) return CAIRN_CONTROL_PROTOCOL;
    if (strcmp(name, "role") == 0) return CAIRN_ROLE_WIRE_READER;
    if (strcmp(name, "step") == 0 || strcmp(name, "rank") == 0) return 0;
    return 1;
}

static void *arena_take(size_t bytes)
{
    static _Alignas(16) uint8_t arena[1 << 16];
    static size_t used;
    if (bytes == 0) used = 0;
    used = (used + 15) / 16 * 16;
    ck_assert_uint_le(used + bytes, sizeof arena);
    used += bytes;
    return memset(arena + used - bytes, 0, bytes);
}

static ProtobufCMessage *fill(const ProtobufCMessageDescriptor *type,
                              const ProtobufCFieldDescriptor *absent, uint64_t job, int depth);

static void fill_value(const ProtobufCFieldDescriptor *field, void *at,
                       const ProtobufCFieldDescriptor *absent, uint64_t job, int depth)
{
    const uint64_t number = number_of(field->name, job);
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        *(const char **)at = strstr(field->name, "path") != NULL ? "/proc/no/such" : "toy";
        return;
    case PROTOBUF_C_TYPE_BYTES:
        *(ProtobufCBinaryData *)at = (ProtobufCBinaryData) { BYTES,
                                                             (uint8_t *)(uintptr_t)some_bytes };
        return;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(ProtobufCMessage **)at = depth > 0 ? fill(field->descriptor, absent, job, depth - 1)
                                             : NULL;
        return;
    case PROTOBUF_C_TYPE_DOUBLE: *(double *)at = 0.5; return;
    case PROTOBUF_C_TYPE_FLOAT: *(float *)at = 0.5f; return;
    case PROTOBUF_C_TYPE_BOOL: *(protobuf_c_boolean *)at = 1; return;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64: *(uint64_t *)at = number; return;
    default: *(uint32_t *)at = (uint32_t)number; return;
    }
}

static size_t size_of(const ProtobufCFieldDescriptor *field)
{
    return field->type == PROTOBUF_C_TYPE_BYTES ? sizeof(ProtobufCBinaryData) : sizeof(uint64_t);
}

static ProtobufCMessage *fill(const ProtobufCMessageDescriptor *type,
                              const ProtobufCFieldDescriptor *absent, uint64_t job, int depth)
{
    ProtobufCMessage *message = arena_take(type->sizeof_message);
    protobuf_c_message_init(type, message);
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        uint8_t *at = (uint8_t *)message + field->offset;
        const bool too_deep = field->type == PROTOBUF_C_TYPE_MESSAGE && depth == 0;
        if (field == absent || too_deep) continue;
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            fill_value(field, at, absent, job, depth);
            continue;
        }
        void *list = arena_take(size_of(field));
        fill_value(field, list, absent, job, depth);
        *(void **)(void *)at = list;
        *(size_t *)(void *)((uint8_t *)message + field->quantifier_offset) = 1;
    }
    return message;
}

/* The fields of a type and of the types inside it, each once. */
static size_t collect(const ProtobufCMessageDescriptor *type, int depth,
                      const ProtobufCFieldDescriptor *fields[FIELDS_MAX], size_t count)
{
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        bool is_known = false;
        for (size_t k = 0; k < count && !is_known; k++) is_known = fields[k] == field;
        if (is_known) continue;
        ck_assert_msg(count < FIELDS_MAX, "%s has more fields than are tried", type->short_name);
        fields[count++] = field;
        if (field->type == PROTOBUF_C_TYPE_MESSAGE && depth > 0)
            count = collect(field->descriptor, depth - 1, fields, count);
    }
    return count;
}

/* Calls `try` for each message with all of its fields, and without each one, unless it says that this type
 * is none of theirs to whom it is told. How many that were. */
static int try_all(uint64_t job, bool (*try)(uint16_t number, const ProtobufCMessage *message))
{
    int tried = 0;
    for (uint16_t number = 1; number <= CAIRN_MSG_MAX; number++) {
        const ProtobufCFieldDescriptor *fields[FIELDS_MAX + 1] = { NULL }; // first: none is absent
        const ProtobufCMessageDescriptor *type = message_type(number);
        if (type == NULL) continue;
        const size_t count = collect(type, DEPTH_MAX, fields + 1, 0);
        bool is_theirs = true;
        for (size_t i = 0; i <= count && is_theirs; i++, tried++) {
            arena_take(0);
            sentence_set(&told, "%s without %s", type->short_name,
                         fields[i] != NULL ? fields[i]->name : "nothing");
            is_theirs = try(number, fill(type, fields[i], job, DEPTH_MAX)) || i > 0;
        }
    }
    return tried;
}

/* ---- to a coordinator ---- */

static struct rooms rooms;
static uint32_t role; /* of who says it */

static int dial(void)
{
    const struct timeval patience = { 10, 0 };
    const int fd = cairn_scratch_dial(rooms.address);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

static void say(int fd, uint16_t number, const ProtobufCMessage *message)
{
    uint8_t *frame;
    size_t frame_bytes;
    ck_assert_int_eq(
        frame_pack(number, 7, message, CAIRN_FRAME_BYTES_MAX, &frame, &frame_bytes, NULL),
        CAIRN_OK);
    (void)!send(fd, frame, frame_bytes, MSG_NOSIGNAL);
    free(frame);
}

/* False: the connection ended. Errors have a sentence. */
static bool hear(int fd, struct frame_decoder *decoder, struct wire_frame *frame)
{
    uint8_t *room;
    size_t room_bytes;
    while (frame_decoder_next(decoder, frame, NULL) != CAIRN_FRAME_READY) {
        ck_assert_int_eq(frame_decoder_reserve(decoder, &room, &room_bytes), CAIRN_FRAME_NONE);
        const ssize_t got = recv(fd, room, room_bytes, 0);
        frame_decoder_added(decoder, got > 0 ? (size_t)got : 0);
        if (got <= 0) return false;
    }
    if (frame->type != CAIRN_MSG_ERROR) return true;
    Cairn__Error *error = (Cairn__Error *)message_unpack(&cairn__error__descriptor, frame->payload,
                                                         frame->payload_bytes);
    ck_assert_ptr_nonnull(error);
    ck_assert_msg(strlen(error->text) > 8, "%s: \"%s\"", told.text, error->text);
    message_free(&error->base);
    return true;
}

static void say_hello(int fd, uint32_t as)
{
    static uint64_t incarnation = 1000;
    Cairn__Hello hello = CAIRN__HELLO__INIT;
    hello.protocol = CAIRN_CONTROL_PROTOCOL;
    hello.role = as;
    hello.name = wire_text("stranger");
    hello.version = wire_text(CAIRN_VERSION);
    hello.incarnation = ++incarnation;
    say(fd, CAIRN_MSG_HELLO, &hello.base);
}

/* On a connection of its own; what comes back is heard to its end. */
static bool tell_coordinator(uint16_t number, const ProtobufCMessage *message)
{
    const int fd = dial();
    struct wire_frame frame;
    struct frame_decoder decoder;
    const struct frame_limits limits = { 1, CAIRN_MSG_MAX, CAIRN_FRAME_BYTES_MAX };
    frame_decoder_init(&decoder, limits);
    if (number != CAIRN_MSG_HELLO) say_hello(fd, role);
    say(fd, number, message);
    shutdown(fd, SHUT_WR);
    while (hear(fd, &decoder, &frame)) {}
    frame_decoder_release(&decoder);
    close(fd);
    return true;
}

/* A step of a job, whose number it gives. */
static uint64_t train(const char *name)
{
    cairn *session = toy_session(&rooms, "trainer");
    cairn_job *handle = toy_ready(session, name, TOY_SPEC());
    const struct job *job = handle_get(CAIRN_HANDLE_JOB, handle);
    const uint64_t number = job->attachment.job;
    handle_put(handle);
    toy_step(handle, 1);
    cairn_close(session);
    return number;
}

TEST_EACH(a_coordinator_takes_or_refuses_each_from_every_role, CAIRN_ROLE_WIRE_WORKER,
          CAIRN_ROLE_WIRE_ADMIN + 1)
{
    const struct cairn_fabric_mem_options fabric = { .seed = 5 };
    rooms_open(&rooms, 1, &fabric);
    role = (uint32_t)_i;
    ck_assert_int_gt(try_all(train("toy"), tell_coordinator), 300);
    train("after");
    rooms_close(&rooms);
}

/* ---- to a shard ---- */

static struct scene scene;

/* Until the shard has answered what was asked behind it, or has ended the connection (as of a type that is
 * not for shards) and is back. */
static bool tell_shard(uint16_t number, const ProtobufCMessage *message)
{
    const Cairn__Probe probe = CAIRN__PROBE__INIT;
    const unsigned hellos = scene.hellos;
    size_t seen = scene.frame_count;
    if (number == CAIRN_MSG_JOB_DROP) return false; // the job is to stay, for the others
    scene_say(&scene, number, 9, message);
    scene_say(&scene, CAIRN_MSG_PROBE, 10, &probe.base);
    while (scene.hellos == hellos) {
        uv_run(&scene.loop, UV_RUN_ONCE);
        for (; seen < scene.frame_count; seen++)
            if (scene.frames[seen].type == CAIRN_MSG_DONE && scene.frames[seen].request == 10)
                return true;
    }
    return false;
}

TEST(a_shard_takes_or_refuses_each_from_its_coordinator)
{
    Cairn__JobDrop drop = CAIRN__JOB_DROP__INIT;
    scene_open(&scene, "mem", 1, 0);
    scene_create(&scene, 11, 1, 0, "");
    scene_hear(&scene, CAIRN_MSG_DONE);
    for (uint64_t m = 1; m <= SCENE_MEMBERS; m++) scene_join(&scene, m, CAIRN_ROLE_WIRE_WORKER);
    scene_put_all(&scene, 1);
    scene_seal(&scene);
    scene_fence(&scene, 1);
    ck_assert_int_gt(try_all(SCENE_JOB, tell_shard), 100);
    drop.job = SCENE_JOB;
    scene_say(&scene, CAIRN_MSG_JOB_DROP, 12, &drop.base);
    while (scene_hear(&scene, CAIRN_MSG_DONE).request != 12) {}
    scene_create(&scene, 13, 9, 0, "");
    while (scene_hear(&scene, CAIRN_MSG_DONE).request != 13) {}
    scene_close(&scene);
}

SUITE(100);

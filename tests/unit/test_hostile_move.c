/* What the coordinator and a shard do with any message about layouts that move, drains and events, from
 * anybody and in any order: thousands of them, made of good ones, of which fields are changed at random. The
 * seed is fixed: a failure comes again. */
#include <check.h>
#include <float.h>
#include <malloc.h>
#include <math.h>
#include <string.h>

#include "server/coordinator/job.h"
#include "tests/support/move_stage.h"
#include "tests/support/pages.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

enum { SEED = 14, MESSAGES = 2000, MEMORY_MORE = 16 << 20 };

/* ---- fields, changed at random ---- */

static char long_name[] = "0123456789012345678901234567890123456789012345678901234567890123456789"
                          "0123456789012345678901234567890123456789012345678901234567890123456789";
static char *const names[] = { "",   "s0",  "s1",       "s2",      "s2 ", "toy",
                               "to", "../", "\xff\xfe", long_name, "%s%n" };

static uint64_t any_number(uint64_t was)
{
    const uint64_t edges[] = { 0,          1,          was - 1,        was + 1,    2,
                               UINT32_MAX, UINT64_MAX, UINT64_MAX - 1, 1ull << 63, random_next() };
    return edges[random_below(sizeof edges / sizeof *edges)];
}

static double any_real(void)
{
    const double edges[] = { 0, -1, NAN, INFINITY, -INFINITY, DBL_MAX, DBL_MIN, 1e-300, 2 };
    return edges[random_below(sizeof edges / sizeof *edges)];
}

static void change(ProtobufCMessage *message);

static void change_one(ProtobufCType type, void *at)
{
    static uint8_t bytes[64];
    uint64_t number;
    switch (type) {
    case PROTOBUF_C_TYPE_MESSAGE:
        if (*(ProtobufCMessage **)at != NULL) change(*(ProtobufCMessage **)at);
        return;
    case PROTOBUF_C_TYPE_STRING:
        *(char **)at = names[random_below(sizeof names / sizeof *names)];
        return;
    case PROTOBUF_C_TYPE_BYTES:
        *(ProtobufCBinaryData *)at = (ProtobufCBinaryData) { random_below(sizeof bytes), bytes };
        return;
    case PROTOBUF_C_TYPE_BOOL: *(protobuf_c_boolean *)at = random_below(2) == 1; return;
    case PROTOBUF_C_TYPE_DOUBLE: *(double *)at = any_real(); return;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32: *(uint32_t *)at = (uint32_t)any_number(*(uint32_t *)at); return;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        memcpy(&number, at, sizeof number);
        number = any_number(number);
        memcpy(at, &number, sizeof number);
        return;
    default: return;
    }
}

/* A list becomes shorter, or has an entry twice. */
static void change_list(const ProtobufCFieldDescriptor *f, char *message)
{
    size_t *count = (size_t *)(void *)(message + f->quantifier_offset);
    void **list = *(void ***)(void *)(message + f->offset);
    const bool of_pointers = f->type == PROTOBUF_C_TYPE_MESSAGE ||
                             f->type == PROTOBUF_C_TYPE_STRING;
    if (*count == 0) return;
    if (random_below(3) == 0) *count = random_below(*count + 1);
    if (of_pointers && *count > 1 && random_below(3) == 0) list[0] = list[*count - 1];
    if (of_pointers && *count > 0) change_one(f->type, &list[random_below(*count)]);
}

/* Each field with one half of probability, or none. */
static void change(ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *d = message->descriptor;
    if (random_below(4) == 0) return;
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        if (random_below(2) == 0) continue;
        if (f->label == PROTOBUF_C_LABEL_REPEATED)
            change_list(f, (char *)message);
        else
            change_one(f->type, (char *)message + f->offset);
    }
}

static size_t memory_in_use(void)
{
    return mallinfo2().uordblks;
}

/* ---- to the coordinator ---- */

/* Who says it, each on a connection of its own. */
enum { ADMIN, WORKER, READER, SHARD, STRANGERS };
static struct fake_peer strangers[STRANGERS];

static void come(int who)
{
    static const uint32_t roles[] = { CAIRN_ROLE_WIRE_ADMIN, CAIRN_ROLE_WIRE_WORKER,
                                      CAIRN_ROLE_WIRE_READER };
    if (who != SHARD) strangers[who] = fake_connect(&fake, roles[who], "stranger");
}

static struct fake_peer *peer_of(int who)
{
    return who == SHARD ? &fake.shards[2].peer : &strangers[who];
}

/* What they are told is said, and to whom the coordinator does not listen any more they come again. */
static void hear(int who)
{
    struct fake_peer *peer = peer_of(who);
    struct wire_frame frame;
    for (int i = 0; i < 3; i++) fake_pump(&fake);
    if (who != SHARD) fake_peer_read(peer);
    while (who != SHARD && fake_peer_next(peer, &frame)) {
        if (frame.type != CAIRN_MSG_ERROR) continue;
        ProtobufCMessage *message = message_unpack(&cairn__error__descriptor, frame.payload,
                                                   frame.payload_bytes);
        ck_assert_uint_gt(strlen(((Cairn__Error *)message)->text), 8);
        message_free(message);
    }
    if (!peer->ended) return;
    if (who == SHARD) {
        fake_shard_up(&fake, 2);
        return;
    }
    fake_peer_close(peer);
    come(who);
}

static void say_to_coordinator(int who, uint16_t type, ProtobufCMessage *message)
{
    struct fake_peer *peer = peer_of(who);
    change(message);
    fake_send(peer, type, (uint32_t)random_below(3) == 0 ? 0 : ++peer->last_request, message);
    hear(who);
}

static void say_any_to_coordinator(int who)
{
    char *add[] = { "s2", "s1" }, *drain[] = { "s1", "s0" };
    Cairn__ShardWeight weight = CAIRN__SHARD_WEIGHT__INIT, *weights[] = { &weight, &weight };
    Cairn__ReshardAsk ask = CAIRN__RESHARD_ASK__INIT;
    Cairn__MemberDrain member = CAIRN__MEMBER_DRAIN__INIT;
    Cairn__EventsGet events = CAIRN__EVENTS_GET__INIT;
    Cairn__DrainMe me = CAIRN__DRAIN_ME__INIT;
    Cairn__PartMoved moved = CAIRN__PART_MOVED__INIT;
    Cairn__PartPrepare prepare = CAIRN__PART_PREPARE__INIT;
    Cairn__PartSettled settled = CAIRN__PART_SETTLED__INIT;
    Cairn__PartPublish publish = CAIRN__PART_PUBLISH__INIT;
    Cairn__LayoutChanged changed = CAIRN__LAYOUT_CHANGED__INIT;
    Cairn__MemberEnd end = CAIRN__MEMBER_END__INIT;
    Cairn__PartUnprepare unprepare = CAIRN__PART_UNPREPARE__INIT;
    ask.job = "toy";
    ask.op = (uint32_t)random_below(5);
    ask.add = add;
    ask.drain = drain;
    ask.n_add = ask.n_drain = random_below(3);
    weight.name = "s0";
    weight.weight = 2;
    ask.weights = weights;
    ask.n_weights = random_below(3);
    member.name = "s2";
    moved.job = prepare.job = settled.job = publish.job = changed.job = unprepare.job = job;
    moved.layout = prepare.layout = settled.layout = publish.layout = changed.layout =
        unprepare.layout = toy()->layout->version;
    const struct {
        uint16_t type;
        ProtobufCMessage *message;
    } all[] = {
        { CAIRN_MSG_RESHARD_ASK, &ask.base },      { CAIRN_MSG_RESHARD_ASK, &ask.base },
        { CAIRN_MSG_MEMBER_DRAIN, &member.base },  { CAIRN_MSG_EVENTS_GET, &events.base },
        { CAIRN_MSG_DRAIN_ME, &me.base },          { CAIRN_MSG_PART_MOVED, &moved.base },
        { CAIRN_MSG_PART_PREPARE, &prepare.base }, { CAIRN_MSG_PART_SETTLED, &settled.base },
        { CAIRN_MSG_PART_PUBLISH, &publish.base }, { CAIRN_MSG_LAYOUT_CHANGED, &changed.base },
        { CAIRN_MSG_MEMBER_END, &end.base },       { CAIRN_MSG_PART_UNPREPARE, &unprepare.base }
    };
    const size_t n = random_below(sizeof all / sizeof *all);
    say_to_coordinator(who, all[n].type, all[n].message);
}

TEST(the_coordinator_takes_any_message_from_anybody_and_training_goes_on)
{
    for (int who = 0; who < STRANGERS; who++) come(who);
    const size_t before = memory_in_use();
    for (int i = 0; i < MESSAGES; i++) {
        say_any_to_coordinator((int)random_below(STRANGERS));
        if (i % 100 == 0) train();
    }
    fake_ask(&admin, ReshardAsk, .job = "toy", .op = CAIRN_RESHARD_CANCEL);
    for (int i = 0; i < 50 && toy()->reshard.running; i++) train();
    fake_until(&fake, !toy()->reshard.running);
    train();
    ck_assert_uint_lt(memory_in_use(), before + MEMORY_MORE);
    for (int who = 0; who < SHARD; who++) fake_peer_close(&strangers[who]);
}

static void open_three(void)
{
    random_state = SEED;
    open_ticking();
    fake_shard_up(&fake, 2);
}

SUITE(120, open_three, close_fake);

/* ---- to a shard ---- */

static void send_page(void *context, const Cairn__Page *page)
{
    struct scene *scene = context;
    Cairn__Page copy = *page;
    if (scene->session == NULL || random_below(8) == 0) return; // one is missing
    if (random_below(8) == 0) change(&copy.base);
    scene_say(scene, CAIRN_MSG_PAGE, stage.requests, &copy.base);
    if (random_below(16) == 0) scene_say(scene, CAIRN_MSG_PAGE, stage.requests, &copy.base);
}

/* Of a layout that shard 0 has half of: bytes are changed, too. */
static void say_prepare(struct scene *scene)
{
    Cairn__Mover mover = CAIRN__MOVER__INIT, again = mover, *movers[] = { &mover, &again };
    Cairn__ShardInfo info = CAIRN__SHARD_INFO__INIT, other = info, *infos[] = { &info, &other };
    Cairn__PartPrepare prepare = CAIRN__PART_PREPARE__INIT;
    const struct stage_run *const tables[] = { stage_half, stage_before };
    struct layout *layout = stage_make(tables[random_below(2)], stage.layout + 1, stage.count);
    const size_t bytes = layout_encoded_bytes(layout);
    uint8_t *encoded = malloc(bytes);
    layout_encode(layout, encoded);
    for (int i = (int)random_below(3); i > 0; i--)
        encoded[random_below(bytes)] ^= (uint8_t)(1u << random_below(8));
    mover.shard = info.index = 0;
    again.shard = other.index = 1;
    mover.member = 5000;
    again.member = 5001;
    mover.name = info.name = "s0";
    again.name = other.name = "s1";
    info.fabric_address.data = (uint8_t *)fabric_own_address(stage.shard[0].shard->fabric,
                                                             &info.fabric_address.len);
    mover.fabric_address = info.fabric_address;
    other.fabric_address.data = (uint8_t *)fabric_own_address(stage.shard[1].shard->fabric,
                                                              &other.fabric_address.len);
    again.fabric_address = other.fabric_address;
    prepare.job = SCENE_JOB;
    prepare.layout = stage.layout + 1;
    prepare.layout_bytes = bytes;
    prepare.shard_index = scene->index;
    prepare.movers = movers;
    prepare.shards = infos;
    prepare.n_movers = prepare.n_shards = 2;
    change(&prepare.base);
    scene_say(scene, CAIRN_MSG_PART_PREPARE, ++stage.requests, &prepare.base);
    pages_each(CAIRN_PAGE_LAYOUT, encoded, bytes, send_page, scene);
    free(encoded);
    layout_close(layout);
}

static void say_any_to_shard(struct scene *scene)
{
    Cairn__PartUnprepare unprepare = CAIRN__PART_UNPREPARE__INIT;
    Cairn__PartSettled settled = CAIRN__PART_SETTLED__INIT;
    Cairn__PartPublish publish = CAIRN__PART_PUBLISH__INIT;
    Cairn__PartMoved moved = CAIRN__PART_MOVED__INIT;
    Cairn__LayoutChanged changed = CAIRN__LAYOUT_CHANGED__INIT;
    Cairn__ReshardAsk ask = CAIRN__RESHARD_ASK__INIT;
    unprepare.job = settled.job = publish.job = moved.job = changed.job = SCENE_JOB;
    unprepare.layout = settled.layout = publish.layout = moved.layout = changed.layout =
        stage.layout + random_below(2);
    const struct {
        uint16_t type;
        ProtobufCMessage *message;
    } all[] = {
        { CAIRN_MSG_PART_UNPREPARE, &unprepare.base }, { CAIRN_MSG_PART_SETTLED, &settled.base },
        { CAIRN_MSG_PART_PUBLISH, &publish.base },     { CAIRN_MSG_PART_MOVED, &moved.base },
        { CAIRN_MSG_LAYOUT_CHANGED, &changed.base },   { CAIRN_MSG_RESHARD_ASK, &ask.base },
    };
    // Those that are not for a shard end the connection, and another one takes a while.
    const bool is_wrong = random_below(400) == 0;
    const size_t n = is_wrong ? 3 + random_below(3) : random_below(6);
    if (!is_wrong && n >= 3) {
        say_prepare(scene);
        return;
    }
    change(all[n].message);
    scene_say(scene, all[n].type, random_below(2) == 0 ? 0 : ++stage.requests, all[n].message);
}

/* It answers in a sentence, or has ended the connection and comes again. */
static void hear_shard(struct scene *scene)
{
    scene_settle(scene);
    for (size_t i = 0; i < scene->frame_count; i++) {
        struct scene_frame *frame = &scene->frames[i];
        if (frame->taken || frame->type != CAIRN_MSG_ERROR) continue;
        frame->taken = true;
        ck_assert_uint_gt(strlen(((const Cairn__Error *)frame->message)->text), 8);
    }
    const uint64_t end_ms = uv_hrtime() / 1000000 + 10000;
    while (scene->session == NULL) {
        ck_assert_uint_lt(uv_hrtime() / 1000000, end_ms);
        scene_settle(scene);
    }
}

TEST(a_shard_takes_any_message_and_its_state_stays)
{
    stage_open("mem");
    random_state = SEED;
    stage_round();
    const size_t before = memory_in_use();
    for (int i = 0; i < MESSAGES / 2;) {
        struct scene *scene = &stage.shard[random_below(2)];
        for (uint64_t burst = 1 + random_below(8); burst > 0 && scene->session != NULL;
             burst--, i++)
            say_any_to_shard(scene);
        hear_shard(scene);
    }
    ck_assert_uint_lt(memory_in_use(), before + MEMORY_MORE);
    stage_check();
    stage_close();
}

SUITE(120);

/* Strangers and liars at the sockets of the mapped fabric: whatever they say ends their connection,
 * costs nothing afterwards, and harms nobody else. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/fabric/mapped.h"
#include "tests/support/descriptors.h"
#include "tests/support/fabric_node.h"
#include "tests/support/suite.h"

enum { BYTES = 1 << 16, SEALS = CAIRN_FABRIC_SEALS, ENVELOPE_BYTES = 32 };

static struct node here;

static void open_here(void)
{
    node_open(&here, "mapped", NULL);
}

/* Strangers are heard, and what they closed is closed, one after the other: as long as that takes. */
static void pump_until_descriptors(unsigned count)
{
    const time_t end = time(NULL) + 20;
    while (descriptors_here() != count && time(NULL) < end) pump_for_ms(&here, NULL, 2);
    pump_for_ms(&here, NULL, 20); // no more follow, and no fewer
    ck_assert_uint_eq(descriptors_here(), count);
}

static uint64_t refused(void)
{
    return node_stats(&here).connections_refused;
}

/* -- a peer by hand ----------------------------------------------------------------------------- */

static struct mapped_address address_of(const struct node *node)
{
    struct mapped_address address;
    size_t bytes;
    const uint8_t *whole = fabric_own_address(node->fabric, &bytes);
    ck_assert_uint_eq(bytes, ENVELOPE_BYTES + sizeof address);
    memcpy(&address, whole + ENVELOPE_BYTES, sizeof address);
    return address;
}

static int knock(void)
{
    const struct mapped_address address = address_of(&here);
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    memcpy(to.sun_path, address.path, address.path_bytes);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(
        connect(fd, (struct sockaddr *)&to,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + address.path_bytes)),
        0);
    return fd;
}

/* The next frame that the fabric says; 0: it closed. */
static size_t hear(int fd, union frame *frame)
{
    for (int turn = 0; turn < 2000; turn++) {
        const ssize_t count = recv(fd, frame, sizeof *frame, 0);
        if (count >= 0) return (size_t)count;
        pump_for_ms(&here, NULL, 1);
    }
    ck_abort_msg("nothing heard");
    return 0;
}

static void say(int fd, const void *frame, size_t bytes, const int *fds, size_t fd_count)
{
    struct iovec part = { .iov_base = (void *)(uintptr_t)frame, .iov_len = bytes };
    char control[CMSG_SPACE(8 * sizeof(int))] = { 0 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    if (fd_count > 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr) { .cmsg_level = SOL_SOCKET,
                                     .cmsg_type = SCM_RIGHTS,
                                     .cmsg_len = CMSG_LEN(fd_count * sizeof(int)) };
        memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
    }
    ck_assert_int_eq(sendmsg(fd, &message, MSG_NOSIGNAL), (ssize_t)bytes);
}

/* The connection proves itself. */
static void prove(int fd)
{
    const struct mapped_address address = address_of(&here);
    struct frame_greeting hello = { .head = frame_head(FRAME_HELLO), .nonce = { 1, 2, 3 } };
    union frame frame;
    ck_assert_uint_eq(hear(fd, &frame), sizeof frame.greeting);
    ck_assert_uint_eq(frame.head.kind, FRAME_CHALLENGE);
    frame_prove(address.key, false, frame.greeting.nonce, hello.nonce, hello.proof);
    const struct frame_greeting challenge = frame.greeting;
    say(fd, &hello, sizeof hello, NULL, 0);
    ck_assert_uint_eq(hear(fd, &frame), sizeof frame.greeting);
    ck_assert_uint_eq(frame.head.kind, FRAME_WELCOME);
    ck_assert(frame_proves(address.key, true, challenge.nonce, hello.nonce, frame.greeting.proof));
}

static int enter(void)
{
    const int fd = knock();
    prove(fd);
    return fd;
}

static int make_memory(size_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static struct frame_region region_frame(uint16_t slot, uint64_t bytes)
{
    return (struct frame_region) { .head = frame_head(FRAME_REGION), .slot = slot, .bytes = bytes };
}

static void show_region(int fd, uint16_t slot)
{
    const struct frame_region frame = region_frame(slot, BYTES);
    int memory = make_memory(BYTES, SEALS);
    say(fd, &frame, sizeof frame, &memory, 1);
    close(memory);
}

/* -- lies --------------------------------------------------------------------------------------- */

struct lie {
    const char *what;
    union frame frame;
    size_t bytes;
};

#define HEAD(k)       .head = { 0x32504d43, (k) }
#define MESSAGE_BYTES (sizeof(struct frame_message))
/* A message, and so many bytes behind its head. */
#define MESSAGE(more, ...) \
    { .message = { HEAD(FRAME_MESSAGE), __VA_ARGS__ } }, MESSAGE_BYTES + (more)
#define INLINE(header, payload) \
    .header_bytes = (header), .payload_bytes = (payload), .slot = FRAME_INLINE
/* A payload in memory that was shown: slot 5 is. */
#define BY_SLOT(of, payload, at) \
    .header_bytes = 16, .payload_bytes = (payload), .slot = (of), .offset = (at)
static const struct lie lies[] = {
    { "another magic", { .head = { 0x12345678, FRAME_MESSAGE } }, MESSAGE_BYTES + 1 },
    { "half a head", { HEAD(FRAME_MESSAGE) }, 4 },
    { "a kind nobody knows", { HEAD(99) }, 64 },
    { "kind 0", { HEAD(FRAME_MALFORMED) }, 64 },
    { "a second hello", { HEAD(FRAME_HELLO) }, sizeof(struct frame_greeting) },
    { "what only an acceptor says", { HEAD(FRAME_WELCOME) }, sizeof(struct frame_greeting) },
    { "a release of the wrong way", { HEAD(FRAME_RELEASE) }, 16 },
    { "what only an acceptor says of cards", { HEAD(FRAME_NO_IMPORTS) }, 8 },
    { "half a message", { HEAD(FRAME_MESSAGE) }, MESSAGE_BYTES - 1 },
    { "no header", MESSAGE(0, INLINE(0, 0)) },
    { "a header over the limit", MESSAGE(257, INLINE(257, 0)) },
    { "a header that is not there", MESSAGE(15, INLINE(16, 0)) },
    { "a payload that is not there", MESSAGE(16, INLINE(16, 8192)) },
    { "an inline payload over the limit", MESSAGE(8194, INLINE(1, 8193)) },
    { "a slot that is none", MESSAGE(16, BY_SLOT(FRAME_SLOTS, 1, 0)) },
    { "an empty slot", MESSAGE(16, BY_SLOT(6, 1, 0)) },
    { "an empty slot far away", MESSAGE(16, BY_SLOT(4095, 1, 0)) },
    { "nothing by reference", MESSAGE(16, BY_SLOT(5, 0, 0)) },
    { "one byte past the end", MESSAGE(16, BY_SLOT(5, BYTES, 1)) },
    { "an offset past the end", MESSAGE(16, BY_SLOT(5, 1, BYTES)) },
    { "an offset that overflows", MESSAGE(16, BY_SLOT(5, 2, UINT64_MAX)) },
    { "a payload of which no page is there", MESSAGE(16, BY_SLOT(5, 16, 0)) },
    { "a message that brings a payload by both ways", MESSAGE(32, BY_SLOT(5, 16, 0)) },
    { "a region without memory",
      { .region = { HEAD(FRAME_REGION), .slot = 7, .bytes = BYTES } },
      sizeof(struct frame_region) },
    { "the end of a region that is not there",
      { .gone = { HEAD(FRAME_REGION_GONE), .slot = 6 } },
      16 },
    { "the end of no slot", { .gone = { HEAD(FRAME_REGION_GONE), .slot = FRAME_SLOTS } }, 16 },
};
enum { LIES = sizeof lies / sizeof lies[0] };

static void assert_refused(int fd, uint64_t before, const char *what)
{
    union frame frame;
    ck_assert_msg(hear(fd, &frame) == 0, "answered: %s", what);
    ck_assert_msg(refused() == before + 1, "not counted: %s", what);
    close(fd);
}

TEST(a_lie_ends_its_connection_and_leaves_nothing)
{
    pump_for_ms(&here, NULL, 2);
    const unsigned descriptors = descriptors_here();
    for (unsigned i = 0; i < LIES; i++) {
        const uint64_t before = refused();
        int fd = enter();
        show_region(fd, 5);
        say(fd, &lies[i].frame, lies[i].bytes, NULL, 0);
        assert_refused(fd, before, lies[i].what);
        ck_assert_msg(descriptors_here() == descriptors, "descriptors: %s", lies[i].what);
    }
    ck_assert_uint_eq(here.arrived, 0);
}

/* -- bundles ------------------------------------------------------------------------------------ */

/* Puts a message with so much payload of its own at the end of the bundle. */
static void bundle_add(union frame *bundle, size_t *bytes, uint32_t payload_bytes)
{
    const struct frame_message message = { .head = frame_head(FRAME_MESSAGE),
                                           .header_bytes = 16,
                                           .payload_bytes = payload_bytes,
                                           .slot = FRAME_INLINE };
    memcpy(bundle->bytes + *bytes, &message, sizeof message);
    *bytes += frame_filled(frame_message_bytes(&message));
}

static size_t bundle_of(union frame *bundle, int count)
{
    size_t bytes = sizeof bundle->head;
    memset(bundle, 0, sizeof *bundle);
    bundle->head = frame_head(FRAME_BUNDLE);
    for (int i = 0; i < count; i++) bundle_add(bundle, &bytes, (uint32_t)i * 3);
    return bytes;
}

TEST(a_bundle_is_the_messages_in_it)
{
    static union frame bundle;
    here.manner = NODE_DROPS;
    int fd = enter();
    say(fd, &bundle, bundle_of(&bundle, 100), NULL, 0);
    pump(&here, NULL, &here.arrived, 100);
    say(fd, &bundle, bundle_of(&bundle, 1), NULL, 0);
    pump(&here, NULL, &here.arrived, 101);
    ck_assert_uint_eq(refused(), 0);
    close(fd);
}

enum bundle_lie {
    OF_NOTHING,
    CUT_SHORT,
    TOO_LONG, /* by 8 bytes that are no message */
    OF_BUNDLES,
    OF_RELEASES,
    HUGE_INSIDE, /* a payload that the frame has not */
    BUNDLE_LIES
};

TEST_EACH(a_bundle_that_lies_ends_its_connection_before_anything_of_it_is_told, 0, BUNDLE_LIES)
{
    static union frame bundle;
    size_t bytes = bundle_of(&bundle, _i == OF_NOTHING ? 0 : 3);
    struct frame_message *last = (void *)(bundle.bytes + bytes - frame_filled(48 + 6));
    if (_i == CUT_SHORT) bytes -= 8;
    if (_i == TOO_LONG) bytes += 8;
    if (_i == OF_BUNDLES) last->head = frame_head(FRAME_BUNDLE);
    if (_i == OF_RELEASES) last->head = frame_head(FRAME_RELEASE);
    if (_i == HUGE_INSIDE) last->payload_bytes = FRAME_INLINE_MAX;
    here.manner = NODE_DROPS;
    int fd = enter();
    say(fd, &bundle, bytes, NULL, 0);
    assert_refused(fd, 0, "a bundle");
    ck_assert_uint_eq(here.arrived, 0);
}

/* What a slot means only the connection knows: messages before the lie came, and none behind it does. */
TEST(a_lie_within_a_bundle_ends_it_there)
{
    static union frame bundle;
    size_t bytes = bundle_of(&bundle, 2);
    struct frame_message unknown = {
        .head = frame_head(FRAME_MESSAGE), .header_bytes = 16, .payload_bytes = 16, .slot = 6
    };
    memcpy(bundle.bytes + bytes, &unknown, sizeof unknown);
    bytes += frame_message_bytes(&unknown);
    bundle_add(&bundle, &bytes, 8);
    here.manner = NODE_DROPS;
    int fd = enter();
    say(fd, &bundle, bytes, NULL, 0);
    assert_refused(fd, 0, "a message of no region");
    ck_assert_uint_eq(here.arrived, 2);
}

TEST(a_frame_longer_than_any_is_a_lie)
{
    static uint8_t endless[FRAME_BYTES_MAX + 1];
    const struct frame_message message = { .head = frame_head(FRAME_MESSAGE),
                                           .payload_bytes = FRAME_INLINE_MAX,
                                           .header_bytes = CAIRN_FABRIC_HEADER_MAX,
                                           .slot = FRAME_INLINE };
    memcpy(endless, &message, sizeof message);
    int fd = enter();
    say(fd, endless, sizeof endless, NULL, 0);
    assert_refused(fd, 0, "longer");
}

/* -- descriptors -------------------------------------------------------------------------------- */

enum offer {
    UNSEALED,
    HALF_SEALED,
    CAN_BE_EMPTIED, /* by MADV_REMOVE, or fallocate */
    OF_HUGE_PAGES,  /* whose pool may be empty when one is read */
    TOO_SMALL,
    A_PIPE,
    A_FILE,
    TWICE,
    MANY,
    TOO_MUCH,
    OF_A_CARD, /* of which nothing is imported here */
    OF_NO_KIND,
    OFFERS
};

/* None of them need be there: nobody touches one. */
static int make_huge_memory(void)
{
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (fd < 0) return make_memory(BYTES, 0); // a kernel without them, which has no such danger
    ck_assert_int_eq(ftruncate(fd, 1 << 30), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, SEALS), 0);
    return fd;
}

static void offer(int fd, enum offer what)
{
    struct frame_region frame = region_frame(7, BYTES);
    int fds[8], pipes[2] = { -1, -1 };
    size_t count = what == MANY ? 8 : 1;
    for (size_t i = 0; i < count; i++) fds[i] = make_memory(BYTES, SEALS);
    if (what == UNSEALED) fds[0] = make_memory(BYTES, 0);
    if (what == HALF_SEALED) fds[0] = make_memory(BYTES, F_SEAL_SHRINK | F_SEAL_SEAL);
    if (what == CAN_BE_EMPTIED) fds[0] = make_memory(BYTES, SEALS & ~F_SEAL_FUTURE_WRITE);
    if (what == OF_HUGE_PAGES) fds[0] = make_huge_memory();
    if (what == OF_A_CARD) frame.memory = FRAME_MEMORY_DEVICE;
    if (what == OF_NO_KIND) frame.memory = FRAME_MEMORY_DEVICE + 1;
    if (what == TOO_SMALL) fds[0] = make_memory(BYTES - 1, SEALS);
    if (what == A_FILE) fds[0] = open("/dev/shm", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (what == A_PIPE) {
        ck_assert_int_eq(pipe(pipes), 0);
        fds[0] = pipes[0];
    }
    if (what == TWICE) say(fd, &frame, sizeof frame, fds, 1);
    if (what == TOO_MUCH) { // slot by slot, up to what one may have mapped
        for (frame.slot = 8; frame.slot < 8 + 4; frame.slot++)
            say(fd, &frame, sizeof frame, fds, 1);
    }
    say(fd, &frame, sizeof frame, fds, count);
}

TEST_EACH(memory_that_is_none_or_too_much_is_refused_and_all_of_it_is_closed, 0, OFFERS)
{
    const struct fabric_options options = { .mapped_max = 4 * BYTES };
    node_close(&here);
    node_open(&here, "mapped", &options);
    int fd = enter();
    close(fd);
    pump_for_ms(&here, NULL, 2);
    const unsigned descriptors = descriptors_here();
    offer(fd = enter(), (enum offer)_i);
    unsigned own = descriptors_here(); // of this test, and the two ends of the connection
    union frame frame;
    ck_assert_uint_eq(hear(fd, &frame), 0);
    ck_assert_uint_eq(refused(), 1);
    ck_assert_uint_eq(descriptors_here(), own - 1); // the fabric kept none: its end is closed
    close(fd);
    ck_assert_uint_gt(own, descriptors);
}

/* Of sparse memory, as a staging area is: what was written is read, in any order and again, what was not is
 * refused, beside what was read and between it. */
TEST_EACH(only_pages_that_are_there_are_read, 0, 3)
{
    enum { PAGE = 4096, MIDDLE = BYTES / 2 };
    static const uint64_t there[] = { MIDDLE, MIDDLE + 2 * PAGE, MIDDLE - 2 * PAGE, MIDDLE,
                                      MIDDLE + PAGE };
    static const uint64_t missing[] = { MIDDLE + 3 * PAGE, MIDDLE - PAGE, MIDDLE - 3 * PAGE };
    enum { THERE = sizeof there / sizeof *there };
    const struct frame_region region = region_frame(5, BYTES);
    struct {
        struct frame_message frame;
        uint8_t header[16];
    } say_it = { .frame = { .head = frame_head(FRAME_MESSAGE),
                            .header_bytes = 16,
                            .slot = 5,
                            .payload_bytes = PAGE } };
    const int memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    uint8_t byte = 1;
    ck_assert_int_eq(ftruncate(memory, BYTES), 0);
    for (int i = 0; i < THERE; i++) ck_assert_int_eq(pwrite(memory, &byte, 1, (off_t)there[i]), 1);
    ck_assert_int_eq(fcntl(memory, F_ADD_SEALS, SEALS), 0);
    here.manner = NODE_DROPS;
    int fd = enter();
    say(fd, &region, sizeof region, &memory, 1);
    for (uint64_t i = 0; i < THERE; i++) {
        say_it.frame.serial = i;
        say_it.frame.offset = there[i];
        say(fd, &say_it, sizeof say_it, NULL, 0);
    }
    pump(&here, NULL, &here.arrived, THERE);
    say_it.frame.serial = THERE;
    say_it.frame.offset = missing[_i] -
                          1; // a byte of a page that is there, or of another that is not
    say(fd, &say_it, sizeof say_it, NULL, 0);
    union frame frame;
    size_t heard;
    while ((heard = hear(fd, &frame)) != 0) ck_assert_uint_eq(frame.head.kind, FRAME_RELEASE);
    ck_assert_uint_eq(refused(), 1);
    ck_assert_uint_eq(here.arrived, THERE);
    close(fd);
    close(memory);
}

TEST(a_descriptor_with_anything_but_a_region_is_refused)
{
    struct frame_message message = { .head = frame_head(FRAME_MESSAGE),
                                     .header_bytes = 1,
                                     .slot = FRAME_INLINE };
    uint8_t frame[sizeof message + 1] = { 0 };
    memcpy(frame, &message, sizeof message);
    int fd = enter(), memory = make_memory(BYTES, SEALS);
    const unsigned descriptors = descriptors_here();
    say(fd, frame, sizeof frame, &memory, 1);
    assert_refused(fd, 0, "a descriptor with a message");
    ck_assert_uint_eq(descriptors_here(), descriptors - 2);
    fd = knock(); // a stranger's
    say(fd, frame, sizeof frame, &memory, 1);
    union frame answer;
    ck_assert_uint_eq(hear(fd, &answer), sizeof answer.greeting); // the challenge
    assert_refused(fd, 1, "a descriptor of a stranger");
    ck_assert_uint_eq(descriptors_here(), descriptors - 2);
    close(memory);
}

/* -- strangers ---------------------------------------------------------------------------------- */

TEST(who_does_not_know_the_address_is_not_let_in)
{
    struct frame_greeting hello = { .head = frame_head(FRAME_HELLO) };
    uint8_t key[FRAME_KEY_BYTES] = { 9 };
    union frame frame;
    int fd = knock();
    ck_assert_uint_eq(hear(fd, &frame), sizeof frame.greeting);
    frame_prove(key, false, frame.greeting.nonce, hello.nonce, hello.proof);
    say(fd, &hello, sizeof hello, NULL, 0);
    assert_refused(fd, 0, "another key");
    fd = knock();
    ck_assert_uint_eq(hear(fd, &frame), sizeof frame.greeting);
    show_region(fd, 5); // before hello
    assert_refused(fd, 1, "no hello");
}

TEST(silent_strangers_are_few_and_do_not_stay)
{
    enum { CROWD = MAPPED_STRANGERS_MAX + 20 };
    static struct node there;
    int fds[CROWD];
    const unsigned descriptors = descriptors_here();
    for (unsigned i = 0; i < CROWD; i++) fds[i] = knock();
    pump_until_descriptors(descriptors + CROWD + MAPPED_STRANGERS_MAX);
    for (unsigned i = 0; i < MAPPED_STRANGERS_MAX; i++) close(fds[i]); // room for the others
    pump_until_descriptors(descriptors + 2 * 20);
    struct mapped_in *in;
    LIST_FOREACH (in, &mapped_of(here.fabric)->ins, entry) in->since_ms -= MAPPED_STRANGER_MS;
    union frame frame;
    ck_assert_uint_gt(hear(fds[CROWD - 1], &frame), 0);
    ck_assert_uint_eq(hear(fds[CROWD - 1], &frame), 0); // with the next tick
    ck_assert_uint_eq(refused(), 20);
    for (unsigned i = MAPPED_STRANGERS_MAX; i < CROWD; i++) close(fds[i]);
    node_open(&there, "mapped", NULL);
    node_pass(&there, &here, node_connect_to(&there, &here), 1, NULL, 0); // and a member is served
}

/* A connection of that user; the credentials are those of its beginning. */
static int knock_as(uid_t user)
{
    ck_assert_int_eq(seteuid(user), 0);
    const int fd = knock();
    ck_assert_int_eq(seteuid(0), 0);
    return fd;
}

static bool is_heard(int fd)
{
    union frame frame;
    return hear(fd, &frame) == sizeof frame.greeting && recv(fd, &frame, sizeof frame, 0) < 0;
}

TEST(a_crowd_of_another_user_pushes_out_its_own_and_delays_nobody)
{
    enum { CROWD = MAPPED_STRANGERS_MAX + 20, CROWDS_USER = 65534, USER = 65533 };
    int fds[CROWD];
    if (geteuid() != 0) {
        printf("skip: needs root, to connect as two users\n");
        return;
    }
    const unsigned descriptors = descriptors_here();
    for (unsigned i = 0; i < CROWD; i++) fds[i] = knock_as(CROWDS_USER);
    pump_until_descriptors(descriptors + CROWD + MAPPED_STRANGERS_MAX);
    ck_assert_uint_eq(refused(), 20);
    union frame frame;
    ck_assert_uint_gt(hear(fds[0], &frame), 0);
    ck_assert_uint_eq(hear(fds[0], &frame), 0); // the oldest of them
    const int other = knock_as(USER); // whom nobody knows, either: one more of the crowd goes
    pump_for_ms(&here, NULL, 20);
    for (unsigned i = 0; i < 20; i++) {
        close(fds[i]);
        fds[i] = knock_as(CROWDS_USER);
    }
    const int member = enter(); // of our own, at once
    ck_assert(is_heard(other));
    ck_assert_uint_eq(refused(), 20 + 1 + 20);
    for (unsigned i = 0; i < CROWD; i++) close(fds[i]);
    close(member);
    close(other);
    pump_until_descriptors(descriptors);
}

/* Its trainers may come by the hundred at once: they wait, and are not pushed out. */
TEST(a_user_that_has_proved_itself_once_is_known)
{
    enum { CROWD = MAPPED_STRANGERS_MAX + 20, USER = 65533 };
    int fds[CROWD];
    if (geteuid() != 0) {
        printf("skip: needs root, to connect as another user\n");
        return;
    }
    const int member = knock_as(USER);
    prove(member);
    const unsigned descriptors = descriptors_here();
    for (unsigned i = 0; i < CROWD; i++) fds[i] = knock_as(USER);
    pump_until_descriptors(descriptors + CROWD + MAPPED_STRANGERS_MAX);
    ck_assert_uint_eq(refused(), 0);
    for (unsigned i = 0; i < CROWD; i++) close(fds[i]);
    close(member);
}

/* -- who accepts may lie, too ------------------------------------------------------------------- */

static int listen_as(struct mapped_address *address_out, struct fabric *face_out)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    const struct mapped_address real = address_of(&here);
    *address_out = real;
    address_out->path[real.path_bytes - 1] ^= 1;
    memcpy(name.sun_path, address_out->path, real.path_bytes);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + real.path_bytes);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&name, bytes), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    *face_out = (struct fabric) { .backend = &fabric_mapped };
    ck_assert_int_eq(fabric_set_address(face_out, address_out, sizeof *address_out), CAIRN_OK);
    return fd;
}

TEST(who_took_the_name_of_a_node_gets_no_message_and_who_releases_what_he_never_had_is_lost)
{
    static struct fabric face;
    struct mapped_address address;
    union frame frame;
    int listener = listen_as(&address, &face);
    for (unsigned lie = 0; lie < 2; lie++) {
        struct fabric_peer *peer = node_connect(&here, face.address, face.address_bytes);
        node_send(&here, peer, 1, NULL, 0);
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        struct frame_greeting challenge = { .head = frame_head(FRAME_CHALLENGE) };
        struct frame_greeting welcome = { .head = frame_head(FRAME_WELCOME) };
        say(fd, &challenge, sizeof challenge, NULL, 0);
        ck_assert_uint_eq(hear(fd, &frame), sizeof frame.greeting);
        ck_assert_uint_eq(frame.head.kind, FRAME_HELLO);
        if (lie == 1) // this one has the key
            frame_prove(address.key, true, challenge.nonce, frame.greeting.nonce, welcome.proof);
        say(fd, &welcome, sizeof welcome, NULL, 0);
        if (lie == 1) {
            ck_assert_uint_gt(hear(fd, &frame), 0);
            ck_assert_uint_eq(frame.head.kind, FRAME_MESSAGE);
            const struct frame_release release = { .head = frame_head(FRAME_RELEASE),
                                                   .serials = { UINT64_C(1) << 32 } };
            say(fd, &release, 16, NULL, 0);
        }
        pump(&here, NULL, &here.downs, lie + 1);
        pump(&here, NULL, &here.sent, lie + 1);
        ck_assert_int_eq(here.why_down, lie == 0 ? CAIRN_ERR_UNREACHABLE : CAIRN_ERR_CLOSED);
        ck_assert_uint_eq(here.send_errors, 1);
        fabric_peer_close(peer);
        pump_for_ms(&here, NULL, 2);
        ck_assert_uint_eq(hear(fd, &frame), 0);
        close(fd);
    }
    close(listener);
}

SUITE(30, open_here, nodes_close);

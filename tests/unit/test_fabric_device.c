/* Memory of cards in a fabric: a peer of this host that imports it reads it by reference, nobody else gets
 * any of it, and no host code follows its address. The card is one of the test's own: a memfd, mapped where
 * its importer reads it, under an address of its owner that may not be touched. */
#include <check.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/fabric/backend.h"
#include "tests/support/descriptors.h"
#include "tests/support/fabric_pair.h"
#include "tests/support/suite.h"

enum { BYTES = 1 << 20 };

static const uint8_t card[CAIRN_FABRIC_UUID_BYTES] = "card 0", other_card[16] = "card 1";

/* -- the importer's card ------------------------------------------------------------------------ */

static struct {
    unsigned imported, released, copied;
    bool copies_fail;
    cairn_status imports_fail; /* CAIRN_OK: they do not */
    char note[CAIRN_FABRIC_NOTE_MAX];
} counts;

static cairn_status import(void *context, const struct fabric_offer *offer, int fd,
                           void **address_out, struct sentence *why)
{
    struct stat file;
    ck_assert_ptr_eq(context, &counts);
    ck_assert_int_eq(memcmp(offer->uuid, card, sizeof card), 0);
    ck_assert_int_eq(fstat(fd, &file), 0);
    const bool fits = (uint64_t)file.st_size == offer->bytes;
    void *at = fits ? mmap(NULL, offer->bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (counts.imports_fail != CAIRN_OK) {
        ck_assert_int_eq(munmap(at, offer->bytes), 0);
        return fail_with(why, counts.imports_fail, "there is no room");
    }
    if (at == MAP_FAILED) return fail_with(why, CAIRN_ERR_REFUSED, "it has not that size");
    memcpy(counts.note, offer->note, offer->note_bytes);
    counts.imported++;
    *address_out = at;
    return CAIRN_OK;
}

static void release(void *context, void *address, uint64_t bytes)
{
    ck_assert_ptr_eq(context, &counts);
    ck_assert_int_eq(munmap(address, bytes), 0);
    counts.released++;
}

static cairn_status copy(void *context, void *to_host, const void *from_device, size_t bytes)
{
    ck_assert_ptr_eq(context, &counts);
    counts.copied++;
    if (counts.copies_fail) return CAIRN_ERR_IO;
    memcpy(to_host, from_device, bytes);
    return CAIRN_OK;
}

static struct fabric_device device_of(const uint8_t *uuid)
{
    struct fabric_device device = {
        .uuid_count = 1, .context = &counts, .import = import, .release = release, .copy = copy
    };
    memcpy(device.uuids[0], uuid, sizeof device.uuids[0]);
    memset(&counts, 0, sizeof counts);
    return device;
}

/* -- the owner's memory ------------------------------------------------------------------------- */

struct memory {
    uint8_t *base;  /* PROT_NONE */
    uint8_t *bytes; /* what a card would see */
    struct fabric_region *region;
};

static struct memory make_memory(const struct node *node, size_t file_bytes)
{
    struct memory memory;
    const int fd = memfd_create("card", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(fd, (off_t)file_bytes), 0);
    memory.base = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory.bytes = mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(memory.bytes, MAP_FAILED);
    ck_assert_int_eq(fabric_region_add_device(node->fabric, memory.base, BYTES, fd, card, "grads",
                                              5, &memory.region),
                     CAIRN_OK);
    close(fd);
    return memory;
}

/* -- two nodes: a sends to b -------------------------------------------------------------------- */

static struct fabric_device device;

static unsigned shown, gone;
static struct fabric_mapping *kept;

static void on_mapping(void *arg, struct fabric_mapping *mapping)
{
    (void)arg;
    shown++;
    if (fabric_mapping_uuid(mapping) != NULL) kept = mapping;
}

static void on_mapping_gone(void *arg, struct fabric_mapping *mapping)
{
    (void)arg, (void)mapping;
    gone++;
}

/* uuid NULL: b imports nothing. */
static void open_importer(const char *kind, const uint8_t *uuid)
{
    shown = gone = 0;
    kept = NULL;
    device = device_of(uuid != NULL ? uuid : card);
    pair_open_as(kind, NULL,
                 &(struct fabric_options) { .device = uuid != NULL ? &device : NULL,
                                            .on_mapping = on_mapping,
                                            .on_mapping_gone = on_mapping_gone });
}

static const char *const mapping_kinds[] = { "mapped", "auto" };

TEST_EACH(memory_of_a_card_goes_by_reference_whatever_its_size_to_who_imports_it, 0, 2)
{
    static const size_t sizes[] = { 1, 8192, BYTES };
    open_importer(mapping_kinds[_i], card);
    struct memory memory = make_memory(&a, BYTES);
    ck_assert(fabric_peer_imports(to_b, card));
    size_t address_bytes;
    const void *address = fabric_own_address(b.fabric, &address_bytes);
    ck_assert_ptr_nonnull(strstr(fabric_address_ways(address, address_bytes), ", device"));
    for (unsigned i = 0; i < 3; i++) {
        uint8_t *from = memory.base + BYTES - sizes[i];
        fill(memory.bytes + BYTES - sizes[i], sizes[i], i);
        ck_assert_str_eq(fabric_payload_path(to_b, from, sizes[i]), "device");
        node_pass(&a, &b, to_b, i, from, sizes[i]);
        const struct fabric_message *message = b.arrivals[i].message;
        ck_assert_str_eq(fabric_message_path(message), "device");
        ck_assert(is_filled(fabric_message_view(message), sizes[i], i));
        pump_for_ms(&a, &b, 5);
        ck_assert_uint_eq(a.sent, i);
        node_drop(&b, i);
        pump(&a, &b, &a.sent, i + 1);
    }
    ck_assert_uint_eq(counts.imported, 1);
    ck_assert_uint_eq(counts.copied, 0);
    ck_assert_int_eq(memcmp(counts.note, "grads", 5), 0);
    ck_assert_int_eq(memcmp(fabric_mapping_uuid(kept), card, sizeof card), 0);
    pair_close();
    ck_assert_uint_eq(counts.released, 1);
}

TEST_EACH(what_is_received_is_copied_by_the_importers_hand_and_its_failure_is_told, 0, 2)
{
    open_importer("mapped", card);
    struct memory memory = make_memory(&a, BYTES);
    fill(memory.bytes, BYTES, 7);
    counts.copies_fail = _i == 1;
    node_pass(&a, &b, to_b, 7, memory.base, BYTES);
    node_receive(&b, 0);
    pump(&a, &b, &b.received, 1);
    pump(&a, &b, &a.sent, 1);
    ck_assert_uint_eq(counts.copied, 1);
    ck_assert_int_eq(b.arrivals[0].status, _i == 1 ? CAIRN_ERR_IO : CAIRN_OK);
    if (_i == 0) ck_assert(is_filled(b.arrivals[0].buffer, BYTES, 7));
}

static cairn_status try(const uint8_t *payload, size_t bytes)
{
    const struct note note = { .id = 9 };
    return fabric_send(to_b, &note, sizeof note, payload, bytes, (fabric_done_fn *)1, NULL);
}

/* mem, ucx, auto and mapped; then who imports another card, and none. */
TEST_EACH(a_peer_that_does_not_import_it_is_sent_none_of_it_and_the_rest_as_ever, 0, 5)
{
    static const struct {
        const char *kind;
        const uint8_t *uuid;
    } cases[] = {
        { "mem", card },          { "ucx", card },    { "auto", other_card },
        { "mapped", other_card }, { "mapped", NULL },
    };
    static uint8_t bytes[100000];
    open_importer(cases[_i].kind, cases[_i].uuid);
    struct memory memory = make_memory(&a, BYTES);
    ck_assert(!fabric_peer_imports(to_b, card));
    ck_assert_str_eq(fabric_payload_path(to_b, memory.base, BYTES), "");
    ck_assert_int_eq(try(memory.base, BYTES), CAIRN_ERR_UNSUPPORTED);
    ck_assert_int_eq(try(memory.base + BYTES - 1, 1), CAIRN_ERR_UNSUPPORTED);
    ck_assert_int_eq(fabric_region_show(memory.region, to_b), CAIRN_OK);
    node_carry(&a, &b, to_b, 3, bytes, sizeof bytes);
    ck_assert_uint_eq(shown, 0);
    fabric_region_drop(memory.region);
    ck_assert_uint_eq(counts.imported, 0);
}

TEST(a_payload_that_reaches_beyond_its_memory_is_not_sent)
{
    open_importer("mapped", card);
    struct memory memory = make_memory(&a, BYTES);
    ck_assert_int_eq(try(memory.base + 1, BYTES), CAIRN_ERR_UNSUPPORTED);
}

TEST(a_region_of_a_card_is_judged)
{
    struct fabric_region *region;
    open_importer("mapped", card);
    struct memory memory = make_memory(&a, BYTES);
    const int fd = dup(0);
    ck_assert_int_eq(fabric_region_add_device(a.fabric, memory.base + BYTES - 1, 4096, fd, card,
                                              NULL, 0, &region),
                     CAIRN_ERR_INVALID);
    ck_assert_int_eq(fabric_region_add_device(a.fabric, NULL, 4096, fd, card, NULL, 0, &region),
                     CAIRN_ERR_INVALID);
    ck_assert_int_eq(fabric_region_add_device(a.fabric, &a, 4096, -1, card, NULL, 0, &region),
                     CAIRN_ERR_INVALID);
    close(fd);
}

TEST(memory_stays_readable_while_it_is_held_when_its_owner_has_dropped_it_and_is_gone)
{
    open_importer("mapped", card);
    pump_for_ms(&a, &b, 5);
    const unsigned before = descriptors_here();
    struct memory memory = make_memory(&a, BYTES);
    ck_assert_uint_eq(descriptors_here(), before + 1); // while it is shown
    fill(memory.bytes, BYTES, 5);
    ck_assert_int_eq(fabric_region_show(memory.region, to_b), CAIRN_OK);
    pump(&a, &b, &shown, 1);
    ck_assert_uint_eq(descriptors_here(), before + 1); // the importer has closed its own
    fabric_mapping_hold(kept);
    node_pass(&a, &b, to_b, 5, memory.base, BYTES);
    fabric_region_drop(memory.region);
    pump(&a, &b, &gone, 1);
    ck_assert_uint_eq(descriptors_here(), before);
    node_close(&a);
    pump_for_ms(&b, NULL, 5);
    ck_assert(is_filled(fabric_message_view(b.arrivals[0].message), BYTES, 5));
    node_drop(&b, 0);
    size_t bytes;
    ck_assert(is_filled(fabric_mapping_memory(kept, &bytes), BYTES, 5));
    ck_assert_uint_eq(bytes, BYTES);
    node_close(&b);
    ck_assert_uint_eq(counts.released, 0);
    fabric_mapping_release(kept);
    ck_assert_uint_eq(counts.released, 1);
}

TEST(who_is_held_off_loses_what_it_showed_and_shows_it_again_when_it_is_let_in)
{
    open_importer("auto", card);
    struct memory memory = make_memory(&a, BYTES);
    fill(memory.bytes, BYTES, 5);
    ck_assert_int_eq(fabric_region_show(memory.region, to_b), CAIRN_OK);
    pump(&a, &b, &shown, 1);
    fabric_hold_off(b.fabric, true);
    ck_assert_uint_eq(gone, 0); // not inside the call
    pump(&a, &b, &gone, 1);
    ck_assert_uint_eq(counts.released, 1);
    pump(&a, &b, &a.downs, 1);
    fabric_peer_close(to_b);
    to_b = node_connect_to(&a, &b);
    node_send(&a, to_b, 5, memory.base, BYTES);
    pump_for_ms(&a, &b, 20);
    ck_assert_uint_eq(b.arrived, 0);
    fabric_hold_off(b.fabric, false);
    pump(&a, &b, &b.arrived, 1);
    ck_assert(is_filled(fabric_message_view(b.arrivals[0].message), BYTES, 5));
    ck_assert_uint_eq(counts.imported, 2);
}

TEST(a_descriptor_that_is_not_what_it_is_said_to_be_ends_its_connection_with_a_sentence)
{
    open_importer("mapped", card);
    pump_for_ms(&a, &b, 5);
    const unsigned before = descriptors_here();
    struct memory memory = make_memory(&a, BYTES / 2);
    node_send(&a, to_b, 1, memory.base, BYTES);
    pump(&a, &b, &a.downs, 1);
    ck_assert_uint_eq(b.refusals, 1);
    ck_assert_msg(strstr(b.refused, "it has not that size") != NULL, "%s", b.refused);
    ck_assert_uint_eq(node_stats(&b).connections_refused, 1);
    fabric_region_drop(memory.region);
    fabric_peer_close(to_b);
    pump_for_ms(&a, &b, 5);
    ck_assert_uint_eq(descriptors_here(), before - 2); // both ends of the connection, and no other
    to_b = node_connect_to(&a, &b);
    node_pass(&a, &b, to_b, 2, "next", 4);
}

/* Want of room, or a card that failed: what is shown is not mapped, and nothing else comes of it. */
TEST_EACH(who_cannot_import_keeps_the_connection_until_something_is_sent_and_is_sent_no_more, 0, 2)
{
    open_importer(mapping_kinds[_i], card);
    counts.imports_fail = _i == 0 ? CAIRN_ERR_NO_MEMORY : CAIRN_ERR_IO;
    struct memory first = make_memory(&a, BYTES), second = make_memory(&a, BYTES);
    ck_assert_int_eq(fabric_region_show(first.region, to_b), CAIRN_OK);
    ck_assert_int_eq(fabric_region_show(second.region, to_b), CAIRN_OK);
    pump(&a, &b, &b.refusals, 1);
    node_pass(&a, &b, to_b, 1, "still", 5);
    pump_for_ms(&a, &b, 5);
    ck_assert_uint_eq(a.downs, 0);
    ck_assert(!fabric_peer_imports(to_b, card));
    ck_assert_int_eq(try(first.base, BYTES), CAIRN_ERR_UNSUPPORTED);
    ck_assert_uint_eq(shown, 0);
    ck_assert_uint_eq(b.refusals, 1);
    ck_assert_msg(strstr(b.refused, "goes through the host from now on: there is no room") != NULL,
                  "%s", b.refused);
    fabric_region_drop(first.region);
    fabric_peer_close(to_b);
    to_b = node_connect_to(&a, &b);
    ck_assert(!fabric_peer_imports(to_b, card));
    node_pass(&a, &b, to_b, 2, "next", 4);
    pair_close();
    ck_assert_uint_eq(counts.released, 0);
}

TEST(what_is_sent_by_reference_to_who_cannot_import_ends_one_connection_and_not_the_next)
{
    open_importer("mapped", card);
    counts.imports_fail = CAIRN_ERR_NO_MEMORY;
    struct memory memory = make_memory(&a, BYTES);
    node_send(&a, to_b, 1, memory.base, BYTES);
    pump(&a, &b, &a.downs, 1);
    fabric_peer_close(to_b);
    to_b = node_connect_to(&a, &b);
    ck_assert(!fabric_peer_imports(to_b, card));
    node_pass(&a, &b, to_b, 2, "next", 4);
    ck_assert_uint_eq(a.downs, 1);
}

TEST(an_address_with_more_cards_than_there_may_be_is_none)
{
    open_importer("mapped", card);
    size_t bytes;
    struct fabric face = { .backend = &fabric_mapped };
    struct fabric_peer *peer;
    const uint8_t *address = fabric_own_address(b.fabric, &bytes);
    uint8_t raw[CAIRN_FABRIC_ADDRESS_MAX];
    memcpy(raw, address + 32, bytes - 32);
    raw[208] = CAIRN_FABRIC_UUIDS_MAX + 1;
    ck_assert_int_eq(fabric_set_address(&face, raw, bytes - 32), CAIRN_OK);
    ck_assert_int_eq(
        fabric_connect_to(a.fabric, face.address, face.address_bytes, NULL, NULL, &peer),
        CAIRN_ERR_MALFORMED);
}

SUITE(30, .tear_down = pair_close);

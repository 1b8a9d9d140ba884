/* Control messages: the table, pages, and a spec on its way. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/status.h"
#include "proto/fabric/fabric.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"
#include "server/shard/shard.h"
#include "tests/support/pages.h"
#include "tests/support/suite.h"

static struct job_spec_data a_spec(size_t tensor_count)
{
    struct job_spec_data spec;
    struct group_spec group = group_default();
    spec_init(&spec);
    group.name = wire_text("g");
    group.optimizer = wire_text("adamw");
    ck_assert_int_eq(spec_set_name(&spec, "job"), CAIRN_OK);
    ck_assert_int_eq(spec_add_group(&spec, &group), CAIRN_OK);
    for (size_t i = 0; i < tensor_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%06zu", i);
        const struct tensor_spec tensor = { .name = name,
                                            .group = group.name,
                                            .kind = CAIRN_TRAINED,
                                            .wire = CAIRN_F32,
                                            .reduce = CAIRN_F32,
                                            .master = CAIRN_F32,
                                            .shape = { 2, { 3, i + 1 } } };
        ck_assert_int_eq(spec_add_tensor(&spec, &tensor), CAIRN_OK);
    }
    spec_canonicalize(&spec);
    return spec;
}

TEST(every_number_of_the_table_has_its_own_type)
{
    size_t count = 0;
    for (uint16_t a = 0; a <= CAIRN_MSG_MAX + 10; a++) {
        if (message_type(a) == NULL) continue;
        count++;
        for (uint16_t b = 0; b < a; b++) ck_assert_ptr_ne(message_type(a), message_type(b));
    }
    ck_assert_uint_gt(count, 40);
    ck_assert_str_eq(message_name(CAIRN_MSG_ROUND_OPENED), "RoundOpened");
    ck_assert_ptr_null(message_type(CAIRN_MSG_MAX + 1));
}

TEST(a_spec_comes_back_as_it_was_sent)
{
    struct job_spec_data spec = a_spec(1000), back;
    uint8_t *bytes, *again;
    size_t len, again_len;
    struct sentence why;
    ck_assert_int_eq(spec_pack(&spec, &bytes, &len), CAIRN_OK);
    ck_assert_int_eq(spec_unpack(bytes, len, optimizer_names(), &back, &why), CAIRN_OK);
    ck_assert_uint_eq(spec_diff(&spec, &back, 0, NULL, NULL), 0);
    ck_assert_int_eq(spec_pack(&back, &again, &again_len), CAIRN_OK);
    ck_assert_uint_eq(len, again_len);
    ck_assert_mem_eq(bytes, again, len);
    free(bytes);
    free(again);
    spec_release(&spec);
    spec_release(&back);
}

TEST(a_message_of_few_bytes_cannot_take_much_memory)
{
    // A million empty tensors: 2 bytes each on the wire, over 100 bytes each in memory.
    const size_t len = 2000000;
    uint8_t *bytes = malloc(len);
    for (size_t i = 0; i < len; i += 2) {
        bytes[i] = 2 << 3 | 2; // field 2 of JobSpec, length-delimited,
        bytes[i + 1] = 0;      // no bytes
    }
    struct job_spec_data spec;
    struct sentence why;
    ck_assert_int_eq(spec_unpack(bytes, len, optimizer_names(), &spec, &why), CAIRN_ERR_MALFORMED);
    free(bytes);
}

TEST(garbage_is_not_a_spec)
{
    unsigned seed = 7;
    struct job_spec_data spec = a_spec(3), back;
    uint8_t *bytes;
    size_t len;
    ck_assert_int_eq(spec_pack(&spec, &bytes, &len), CAIRN_OK);
    for (int i = 0; i < 20000; i++) {
        uint8_t *bad = malloc(len);
        struct sentence why = { "" };
        memcpy(bad, bytes, len);
        for (int k = 0; k < 3; k++) bad[(size_t)rand_r(&seed) % len] = (uint8_t)rand_r(&seed);
        cairn_status status = spec_unpack(bad, len, optimizer_names(), &back, &why);
        if (status == CAIRN_OK)
            spec_release(&back);
        else
            ck_assert_int_ne(why.text[0], 0);
        free(bad);
    }
    free(bytes);
    spec_release(&spec);
}

static void take_page(void *context, const Cairn__Page *page)
{
    ck_assert_int_eq(paged_add(context, 1, page), CAIRN_OK);
}

TEST(pages_come_together_in_order)
{
    const size_t len = 3 * CAIRN_PAGE_BYTES + 17;
    uint8_t *bytes = malloc(len);
    for (size_t i = 0; i < len; i++) bytes[i] = (uint8_t)(i * 7);
    struct paged paged;
    ck_assert_int_eq(paged_init(&paged, CAIRN_PAGE_SPEC, len), CAIRN_OK);
    pages_each(CAIRN_PAGE_SPEC, bytes, len, take_page, &paged);
    ck_assert(paged_whole(&paged, 1));
    ck_assert_mem_eq(paged.bytes, bytes, len);
    paged_release(&paged, 1);
    free(bytes);
}

TEST(memory_for_pages_grows_with_what_came_and_not_with_what_was_announced)
{
    struct paged paged;
    uint8_t byte = 1;
    Cairn__Page page = CAIRN__PAGE__INIT;
    ck_assert_int_eq(paged_init(&paged, CAIRN_PAGE_SPEC, CAIRN_PAGED_BYTES_MAX + 1),
                     CAIRN_ERR_INVALID);
    ck_assert_int_eq(paged_init(&paged, CAIRN_PAGE_SPEC, CAIRN_PAGED_BYTES_MAX), CAIRN_OK);
    page.what = CAIRN_PAGE_SPEC;
    page.total_bytes = CAIRN_PAGED_BYTES_MAX;
    page.bytes = (ProtobufCBinaryData) { 1, &byte };
    ck_assert_int_eq(paged_add(&paged, 1, &page), CAIRN_OK);
    ck_assert_uint_le(paged.capacity_bytes, 16);
    ck_assert_int_eq(paged_add(&paged, 1, &page), CAIRN_ERR_PROTOCOL); // offset 0 again
    page.offset = 2;
    ck_assert_int_eq(paged_add(&paged, 1, &page), CAIRN_ERR_PROTOCOL); // a gap
    page.offset = 1;
    page.total_bytes = 5;
    ck_assert_int_eq(paged_add(&paged, 1, &page), CAIRN_ERR_PROTOCOL); // another total
    paged_release(&paged, 1);
}

TEST(a_page_goes_to_the_part_of_its_kind)
{
    struct paged parts[CAIRN_PARTS] = { 0 };
    uint8_t bytes[2] = { 1, 2 };
    Cairn__Page page = CAIRN__PAGE__INIT;
    page.bytes = (ProtobufCBinaryData) { 1, bytes };
    ck_assert(paged_whole(parts, CAIRN_PARTS));
    ck_assert_int_eq(paged_add(parts, CAIRN_PARTS, &page), CAIRN_ERR_PROTOCOL); // nothing follows
    ck_assert_int_eq(paged_init_job(parts, 1, 2), CAIRN_OK);
    page.what = CAIRN_PAGE_TILES;
    page.total_bytes = 2;
    ck_assert_int_eq(paged_add(parts, CAIRN_PARTS, &page), CAIRN_ERR_PROTOCOL);
    page.what = CAIRN_PAGE_LAYOUT;
    page.bytes.len = 2;
    ck_assert_int_eq(paged_add(parts, CAIRN_PARTS, &page), CAIRN_OK);
    ck_assert(!paged_whole(parts, CAIRN_PARTS));
    page.what = CAIRN_PAGE_SPEC;
    page.total_bytes = page.bytes.len = 1;
    ck_assert_int_eq(paged_add(parts, CAIRN_PARTS, &page), CAIRN_OK);
    ck_assert(paged_whole(parts, CAIRN_PARTS));
    ck_assert_mem_eq(parts[CAIRN_PART_LAYOUT].bytes, bytes, 2);
    paged_release(parts, CAIRN_PARTS);
}

/* Every number of it as long as it can be. */
static void fill_numbers(ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        void *value = (uint8_t *)message + field->offset;
        switch (field->type) {
        case PROTOBUF_C_TYPE_UINT64:
        case PROTOBUF_C_TYPE_FIXED64: memset(value, 0xff, 8); break;
        case PROTOBUF_C_TYPE_UINT32:
        case PROTOBUF_C_TYPE_FIXED32: memset(value, 0xff, 4); break;
        case PROTOBUF_C_TYPE_BOOL: *(protobuf_c_boolean *)value = true; break;
        default: break; // what has no end of its own is not in the Hello of a shard, or set below
        }
    }
}

TEST(the_largest_hello_of_a_shard_is_said_in_frames_that_are_taken)
{
    static Cairn__HeldJob held[CAIRN_SHARD_JOBS_MAX];
    static Cairn__HeldJob *list[CAIRN_SHARD_JOBS_MAX];
    static uint8_t address[CAIRN_FABRIC_ADDRESS_MAX];
    static char name[CAIRN_NAME_MAX + 1], version[64 + 1], sentence[CAIRN_SENTENCE_BYTES];
    Cairn__Hello hello = CAIRN__HELLO__INIT;
    struct sentence why;
    uint8_t *bytes;
    size_t byte_count;
    for (size_t i = 0; i < CAIRN_SHARD_JOBS_MAX; i++) {
        cairn__held_job__init(&held[i]);
        fill_numbers(&held[i].base);
        list[i] = &held[i];
    }
    fill_numbers(&hello.base);
    memset(name, 'n', sizeof name - 1);
    memset(version, 'v', sizeof version - 1);
    hello.name = name;
    hello.version = version;
    hello.fabric_address = (ProtobufCBinaryData) { sizeof address, address };
    Cairn__Home home = CAIRN__HOME__INIT;
    home.why = home.warning = memset(sentence, 's', sizeof sentence - 1);
    hello.home = &home;
    size_t hellos = 0;
    for (size_t said = 0; said < CAIRN_SHARD_JOBS_MAX; hellos++) {
        const size_t fit = hello_fit(&hello, list + said, CAIRN_SHARD_JOBS_MAX - said);
        hello.held = list + said;
        hello.n_held = fit;
        said += fit;
        hello.held_after = (uint32_t)(CAIRN_SHARD_JOBS_MAX - said);
        ck_assert(said == CAIRN_SHARD_JOBS_MAX || hellos == 0 || fit >= 24);
        ck_assert_msg(frame_pack(CAIRN_MSG_HELLO, 1, &hello.base, CAIRN_FRAME_HELLO_BYTES, &bytes,
                                 &byte_count, &why) == CAIRN_OK,
                      "%s", why.text);
        ck_assert(hellos > 0 || byte_count > CAIRN_FABRIC_ADDRESS_MAX);
        free(bytes);
        hello.fabric_address.len = 0;
        hello.home = NULL;
    }
    ck_assert_uint_gt(hellos, 1);
}

TEST(every_status_has_a_name_a_sentence_and_its_own_number)
{
    ck_assert_str_eq(status_code_name(CAIRN_ERR_EPOCH_CHANGED), "CAIRN_ERR_EPOCH_CHANGED");
    ck_assert_int_eq(status_exit(CAIRN_ERR_UNREACHABLE), 10);
    ck_assert_int_eq(status_exit(CAIRN_ERR_TIMEOUT), 124);
    ck_assert_int_eq(status_known(77), 0);
    ck_assert_str_eq(status_code_name(77), "CAIRN_ERR_?");
}

SUITE(30);

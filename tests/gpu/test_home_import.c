/* Memory of the card that another process owns, in a home: read where it lies, for as long as it is held, and
 * whatever is wrong with a descriptor is refused with a sentence and harms nothing. */
#include <fcntl.h>
#include <sys/mman.h>

#include "tests/gpu/home_scene.h"
#include "tests/support/descriptors.h"

enum { BYTES = 4 << 20, ELEMS = BYTES / 4 };

static struct emulated card;

/* With a plane. */
static void open_home(const char *options)
{
    card = emulated_open(options);
    home_on_with(options, BYTES);
    ck_assert(home_info(home)->exports);
    ck_assert_int_eq(card.driver.cuCtxSetCurrent(card.context), CAIRN_CU_OK);
}

static int export(const struct emulated_memory *memory)
{
    int fd;
    ck_assert_int_eq(
        card.driver.cuMemExportToShareableHandle(&fd, memory->handle, CAIRN_CU_HANDLE_POSIX, 0),
        CAIRN_CU_OK);
    return fd;
}

static void fill(const struct emulated_memory *memory, int value)
{
    ck_assert_int_eq(
        card.driver.cuMemsetD8Async(memory->at, (unsigned char)value, memory->bytes, NULL),
        CAIRN_CU_OK);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(NULL), CAIRN_CU_OK);
}

/* The words that the home finds there, all alike. */
static uint32_t read_word(const void *from)
{
    static uint32_t words[ELEMS];
    copy_bytes(words, from, sizeof words);
    ck_assert_int_eq(memcmp(words, words + 1, sizeof words - sizeof words[0]), 0);
    return words[0];
}

TEST(it_is_folded_from_where_it_lies_and_stays_when_its_owner_is_gone)
{
    const void *at;
    open_home(NULL);
    read_word(plane.base); // the stream's staging is taken now
    const unsigned before = descriptors_here();
    struct emulated_memory owned = emulated_alloc(&card, BYTES);
    fill(&owned, 0x3f); // 0.747...
    const uint64_t free_bytes = home_free_bytes(home);
    const int fd = export(&owned);
    must(home_import(home, fd, BYTES, &at, &why));
    ck_assert_uint_eq(home_free_bytes(home), free_bytes);
    emulated_free(&card, &owned);
    // The owner's own descriptor, and the stand-in's for each handle, aside.
    ck_assert_uint_le(descriptors_here(), before + 2);
    const struct fold_source source = { .data = at, .dtype = CAIRN_F32 };
    struct home_work fold = { .kind = CAIRN_WORK_FOLD,
                              .fold = { plane.base, &source, 1, true, ELEMS } };
    run_work(fold);
    ck_assert_uint_eq(read_word(plane.base), 0x3f3f3f3f);
    ck_assert_uint_eq(read_word(at), 0x3f3f3f3f);
    home_import_release(home, at, BYTES);
    home_memory_close(&plane);
    ck_assert_uint_eq(descriptors_here(), before - 1); // that of the sums' handle, too
}

enum lie {
    A_PIPE, /* the driver notices it */
    A_MEMFD,
    CLOSED,
    TOO_LARGE,
    TOO_SMALL,
    ODD, /* the home notices it */
    EMPTY,
    ENDLESS,
    OF_ANOTHER_CARD,
    LIES
};

static int make_lie(enum lie lie, const struct emulated_memory *owned, uint64_t *bytes_out)
{
    int pipes[2], fd = -1;
    *bytes_out = BYTES;
    if (lie == A_PIPE) {
        ck_assert_int_eq(pipe(pipes), 0);
        close(pipes[1]);
        return pipes[0];
    }
    if (lie == A_MEMFD) {
        fd = memfd_create("not of a card", MFD_CLOEXEC);
        ck_assert_int_eq(ftruncate(fd, BYTES), 0);
        return fd;
    }
    fd = export(owned);
    if (lie == TOO_LARGE) *bytes_out = 2 * BYTES;
    if (lie == TOO_SMALL) *bytes_out = BYTES / 2;
    if (lie == ODD) *bytes_out = BYTES - 1;
    if (lie == EMPTY) *bytes_out = 0;
    if (lie == ENDLESS) *bytes_out = UINT64_MAX / 2 + 1;
    if (lie == CLOSED) close(fd);
    return fd;
}

/* Memory of card 1, for a home on card 0. */
static struct emulated_memory make_other(void)
{
    const struct cu_allocation how = { .type = CAIRN_CU_ALLOCATION_PINNED,
                                       .handle_types = CAIRN_CU_HANDLE_POSIX,
                                       .location = { CAIRN_CU_LOCATION_DEVICE, 1 } };
    struct emulated_memory other = { .bytes = BYTES };
    ck_assert_int_eq(card.driver.cuMemCreate(&other.handle, BYTES, &how, 0), CAIRN_CU_OK);
    return other;
}

TEST_EACH(what_is_no_memory_of_the_card_is_refused_closed_and_harms_nothing, 0, LIES)
{
    const void *at = NULL;
    uint64_t bytes;
    open_home("devices=2,quiet=1");
    struct emulated_memory owned = emulated_alloc(&card, BYTES);
    struct emulated_memory other = make_other();
    fill(&owned, 7);
    read_word(plane.base); // the stream's staging is taken now
    const unsigned before = descriptors_here();
    const uint64_t left = card.cairn_emulator_left();
    const int fd = make_lie((enum lie)_i, _i == OF_ANOTHER_CARD ? &other : &owned, &bytes);
    const cairn_status status = home_import(home, fd, bytes, &at, &why);
    // What the driver refuses may lack something here, and then goes through the host (gpu/gpu.h).
    ck_assert_int_eq(status, _i <= TOO_SMALL ? CAIRN_ERR_IO : CAIRN_ERR_REFUSED);
    ck_assert_uint_gt(strlen(why.text), 10);
    ck_assert_uint_eq(descriptors_here(), before);
    ck_assert_uint_eq(card.cairn_emulator_left(), left);
    must(home_import(home, export(&owned), BYTES, &at, &why));
    ck_assert_uint_eq(read_word(at), 0x07070707);
    home_import_release(home, at, BYTES);
    ck_assert_uint_eq(descriptors_here(), before);
}

/* Memory of card 1 that card 0 reads, if it does. */
TEST_EACH(memory_of_another_card_is_read_where_that_can_be, 0, 2)
{
    struct CUctx_st *context;
    const void *at = NULL;
    open_home(_i == 1 ? "devices=2,peers=1" : "devices=2,quiet=1");
    struct emulated_memory other = make_other();
    ck_assert_uint_eq(home_info(home)->peer_count, (uint32_t)_i);
    const cairn_status status = home_import(home, export(&other), BYTES, &at, &why);
    ck_assert_int_eq(status, _i == 1 ? CAIRN_OK : CAIRN_ERR_REFUSED);
    if (_i == 1) {
        const struct cu_access access = { .location = { CAIRN_CU_LOCATION_DEVICE, 1 },
                                          .flags = CAIRN_CU_ACCESS_READWRITE };
        ck_assert_int_eq(home_info(home)->peer_uuids[0][15], 1);
        ck_assert_int_eq(card.driver.cuDevicePrimaryCtxRetain(&context, 1), CAIRN_CU_OK);
        ck_assert_int_eq(card.driver.cuCtxSetCurrent(context), CAIRN_CU_OK);
        ck_assert_int_eq(card.driver.cuMemAddressReserve(&other.at, BYTES, 0, 0, 0), CAIRN_CU_OK);
        ck_assert_int_eq(card.driver.cuMemMap(other.at, BYTES, 0, other.handle, 0), CAIRN_CU_OK);
        ck_assert_int_eq(card.driver.cuMemSetAccess(other.at, BYTES, &access, 1), CAIRN_CU_OK);
        fill(&other, 9);
        ck_assert_uint_eq(read_word(at), 0x09090909);
        home_import_release(home, at, BYTES);
    }
}

/* One owner shows the same again and again. */
TEST(as_much_as_the_cards_have_is_mapped_at_a_time_and_none_of_it_where_planes_lie)
{
    enum { LARGE = 64 << 20, MOST = 16 };
    const void *at[MOST];
    open_home("total=1G,quiet=1");
    struct emulated_memory owned = emulated_alloc(&card, LARGE);
    unsigned count = 0;
    const void *more;
    while (count < MOST && home_import(home, export(&owned), LARGE, &at[count], &why) == CAIRN_OK)
        count++;
    ck_assert_uint_eq(count, MOST);
    refused(home_import(home, export(&owned), LARGE, &more, &why), CAIRN_ERR_NO_MEMORY,
            "as many as the cards have");
    home_memory_close(home_take("planes", 3 * LARGE));
    home_import_release(home, at[0], LARGE);
    must(home_import(home, export(&owned), LARGE, &at[0], &why));
    for (unsigned i = 0; i < count; i++) home_import_release(home, at[i], LARGE);
    emulated_free(&card, &owned);
}

TEST(the_host_imports_nothing_and_closes_what_it_was_given)
{
    const void *at;
    const unsigned before = descriptors_here();
    ck_assert_int_eq(home_import(home_host(), dup(0), BYTES, &at, &why), CAIRN_ERR_UNSUPPORTED);
    ck_assert_uint_eq(descriptors_here(), before);
}

SUITE(60, .tear_down = home_off);

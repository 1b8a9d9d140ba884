/* What a home on a card counts, has pinned of the host's memory, as a trainer has, and warns of. */
#include <sys/stat.h>

#include "client/device.h"
#include "tests/gpu/home_scene.h"
#include "tests/support/made_up_sysfs.h"

#define PAGE  ((size_t)4096)
#define BYTES (64 * PAGE)

static uint8_t *take_pages(void)
{
    uint8_t *host = aligned_alloc(PAGE, BYTES);
    ck_assert_ptr_nonnull(host);
    return host;
}

/* ---- pinning ---- */

static uint64_t pinned(void)
{
    return home_use(home).pinned_bytes;
}

TEST(whole_pages_are_pinned_each_once)
{
    uint8_t *host = take_pages();
    home_on("quiet=1");
    must(home_pin(home, host + 10, PAGE, &why));
    ck_assert_uint_eq(pinned(), 2 * PAGE);
    must(home_pin(home, host + PAGE + 100, 3 * PAGE, &why)); // its first page has been
    ck_assert_uint_eq(pinned(), 5 * PAGE);
    must(home_pin(home, host + PAGE, PAGE, &why));
    must(home_pin(home, host + 8 * PAGE, PAGE, &why));
    must(home_pin(home, host + 4 * PAGE, 5 * PAGE, &why)); // between both
    ck_assert_uint_eq(pinned(), 9 * PAGE);
    home_unpin(home, host, BYTES);
    ck_assert_uint_eq(pinned(), 0);
    home_unpin(home, host, BYTES);
    free(host);
}

TEST(what_goes_back_to_the_system_is_unpinned_and_the_rest_stays)
{
    uint8_t *host = take_pages(), *back = take_pages();
    home_on_with("quiet=1", BYTES);
    must(home_pin(home, host, BYTES, &why));
    home_unpin(home, host + 16 * PAGE, 8 * PAGE); // in the middle
    ck_assert_uint_eq(pinned(), BYTES - 8 * PAGE);
    home_unpin(home, host + 60 * PAGE, 4 * PAGE); // the end
    ck_assert_uint_eq(pinned(), BYTES - 12 * PAGE);
    for (size_t i = 0; i < BYTES; i++) host[i] = (uint8_t)(i / 7);
    copy_bytes(plane.base, host, BYTES); // partly pinned
    copy_bytes((uint8_t *)plane.base + PAGE, host + PAGE, 2 * PAGE);
    copy_bytes(back, plane.base, BYTES);
    ck_assert_int_eq(memcmp(host, back, BYTES), 0);
    home_unpin(home, host, BYTES);
    ck_assert_uint_eq(pinned(), 0);
    free(host);
    free(back);
}

TEST(what_cannot_be_pinned_is_said_and_counted)
{
    uint8_t *host = take_pages();
    home_on("no_pinning=1,quiet=1");
    refused(home_pin(home, host, BYTES, &why), CAIRN_ERR_NO_MEMORY,
            "cannot pin 262144 bytes of host memory");
    ck_assert_msg(strstr(why.text, "too little that may be pinned") != NULL, "%s", why.text);
    ck_assert_uint_eq(pinned(), 0);
    ck_assert_uint_eq(home_use(home).unpinned_bytes, BYTES);
    home_unpin(home, host, BYTES);
    free(host);
}

/* ---- counts ---- */

TEST(runs_launches_and_bytes_are_counted)
{
    uint8_t host[1000] = { 0 };
    home_on_with("quiet=1", BYTES);
    struct home_work works[8];
    for (size_t i = 0; i < 8; i++) works[i] = zero_work((uint8_t *)plane.base + i * PAGE, PAGE);
    must(home_run(stream, works, 8, &why));
    ck_assert_uint_eq(home_use(home).launches, 1); // for all of them
    const uint64_t in = home_use(home).bytes_in, out = home_use(home).bytes_out;
    copy_bytes(plane.base, host, sizeof host);
    copy_bytes(host, plane.base, sizeof host);
    const struct home_use use = home_use(home);
    ck_assert_uint_eq(use.runs, 3);
    ck_assert_uint_eq(use.bytes_in - in, sizeof host);
    ck_assert_uint_eq(use.bytes_out - out, sizeof host);
    ck_assert_uint_gt(home_info(home)->total_bytes, home_info(home)->taken_bytes);
}

TEST(who_waits_for_the_card_sleeps)
{
    const struct emulated card = emulated_open("quiet=1");
    uint8_t host[1000] = { 0 };
    home_on_with("quiet=1", BYTES);
    copy_bytes(plane.base, host, sizeof host);
    emulated_set(&card, "result=1,call_fails=1");
    struct home_work zero = zero_work(plane.base, BYTES);
    ck_assert_int_eq(home_run(stream, &zero, 1, &why), CAIRN_ERR_IO);
    home_off();
    ck_assert_uint_eq(card.cairn_emulator_spins(), 0);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(NULL), CAIRN_CU_OK);
    ck_assert_uint_eq(card.cairn_emulator_spins(), 1);
}

/* ---- two tenants ---- */

static const struct {
    const char *options, *folder, *warns;
} rows[] = {
    { "quiet=1", "/no/such/folder", "" },
    { "mps=1,quiet=1", "/no/such/folder", "a fault of one of its processes ends all of them" },
    { "mode=3,quiet=1", "/no/such/folder", "for one process alone" },
    { "mps=2,quiet=1", "/no/such/folder", "" }, /* a driver that cannot say: is its daemon there? */
    { "mps=2,quiet=1", NULL, "shared by MPS" },
};

static char pipe_path[64];

/* Of a control daemon. */
static const char *make_pipes(void)
{
    static char folder[] = "/tmp/cairn-mps-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(pipe_path, sizeof pipe_path, "%s/control", folder);
    ck_assert_int_eq(mkfifo(pipe_path, 0600), 0);
    return folder;
}

TEST_EACH(whoever_shares_the_card_is_warned_of, 0, sizeof rows / sizeof *rows)
{
    const char *folder = rows[_i].folder != NULL ? rows[_i].folder : make_pipes();
    ck_assert_int_eq(setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1), 0);
    home_on(rows[_i].options);
    const char *warning = home_info(home)->warning;
    if (rows[_i].warns[0] == '\0')
        ck_assert_str_eq(warning, "");
    else
        ck_assert_msg(strstr(warning, rows[_i].warns) != NULL, "%s", warning);
    if (rows[_i].folder == NULL) ck_assert(unlink(pipe_path) == 0 && rmdir(folder) == 0);
}

/* ---- the card's node of memory ---- */

static struct made_up_sysfs made;

/* What a trainer pins: words that its streams wait for, which come with the card, and memory. */
static void expect_client_pins_on(const struct emulated *emulated, int node, uint8_t *host)
{
    struct card *card;
    ck_assert_int_eq(card_get(0, &card), CAIRN_OK);
    ck_assert_int_eq(emulated->cairn_emulator_pinned_node(), node);
    ck_assert(card_pin(card, host, BYTES));
    ck_assert_int_eq(emulated->cairn_emulator_pinned_node(), node);
    card_unpin(card, host);
}

/* What is pinned is to be of `node`: a stream's staging, and memory that was there before. */
static void expect_pinned_on(int node)
{
    const struct emulated card = emulated_open("quiet=1");
    uint8_t *host = take_pages();
    home_on("quiet=1");
    ck_assert_int_eq(home_info(home)->numa_node, node);
    must(home_stream_open(home, &stream, &why));
    must(home_stream_begin(stream, &why));
    ck_assert_int_eq(card.cairn_emulator_pinned_node(), node);
    must(home_pin(home, host, BYTES, &why));
    ck_assert_int_eq(card.cairn_emulator_pinned_node(), node);
    home_unpin(home, host, BYTES);
    home_off();
    free(host);
    host = take_pages();
    expect_client_pins_on(&card, node, host);
    free(host);
}

TEST(pinned_memory_of_a_card_is_of_the_node_that_it_is_next_to)
{
    struct numa_before before;
    made_up_sysfs_open(&made);
    made_up_sysfs_node(&made, 0, made_up_sysfs_last_processor());
    if (numa_go(0, &before) && before.is_preferring) { // else nobody may ask for it here
        numa_return(&before);
        made_up_sysfs_device(&made, "0000:e0:00.0", "0\n");
        expect_pinned_on(0);
    }
    made_up_sysfs_close(&made);
}

TEST(where_no_node_is_told_pinned_memory_is_of_any)
{
    made_up_sysfs_open(&made);
    made_up_sysfs_device(&made, "0000:e0:00.0", "-1\n");
    expect_pinned_on(CAIRN_NUMA_NONE);
    made_up_sysfs_close(&made);
}

SUITE(30, .tear_down = home_off);

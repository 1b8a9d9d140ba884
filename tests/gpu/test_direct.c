/* What lies on a card goes to other hosts from where it lies, or through host memory: which way is taken and
 * why, and that what goes from the card is whole. What needs a UCX with CUDA runs where one is
 * (gpu.direct_cuda; cmake -DUCX_CUDA=...), over TCP, where UCX itself copies: no network card is here. */
#include "tests/gpu/card.h"
#include "tests/support/fabric_node.h"

enum { BYTES = 2 << 20, PAYLOAD_MAX = 1 << 20 };

static struct node a, b;
static struct fabric_device device; /* of no importer: nobody shows anything */

static bool has_cuda(void)
{
    return getenv("CAIRN_TEST_UCX_CUDA") != NULL;
}

/* True, and it is said: there is no UCX with CUDA. */
static bool lacks_cuda(void)
{
    if (has_cuda()) return false;
    printf("note: not shown without a UCX that has CUDA: pip install libucx-cu13, and cmake "
           "-DUCX_CUDA=.../libucx/lib\n");
    return true;
}

static void open_node(struct node *node, const char *kind, enum device_memory memory)
{
    node_open(node, kind,
              &(struct fabric_options) {
                  .device_memory = memory, .has_loopback = true, .device = &device });
}

/* ---- which way, and why ---- */

static void expect_way(const char *kind, enum device_memory memory, bool is_direct,
                       const char *word)
{
    const char *why;
    open_node(&a, kind, memory);
    ck_assert_int_eq(fabric_takes_device(a.fabric, &why), is_direct);
    ck_assert_msg(strstr(why, word) != NULL, "%s: %s", kind, why);
    node_close(&a);
}

TEST(a_fabric_says_which_way_memory_of_a_card_goes_and_why)
{
    const char *const built = "was built without CUDA";
    const bool has = has_cuda();
    if (has) emulated_choose("quiet=1");
    device.is_reached = true;
    expect_way("ucx", CAIRN_DEVICE_MEMORY_HOST, false, "device_memory is host");
    expect_way("ucx", CAIRN_DEVICE_MEMORY_AUTO, false, has ? "transports are tcp" : built);
    expect_way("ucx", CAIRN_DEVICE_MEMORY_DEVICE, has, has ? "is device" : built);
    device.is_reached = false;
    expect_way("ucx", CAIRN_DEVICE_MEMORY_AUTO, false, has ? "no network card reaches" : built);
    expect_way("mapped", CAIRN_DEVICE_MEMORY_DEVICE, false, "there is no ucx");
    expect_way("auto", CAIRN_DEVICE_MEMORY_DEVICE, false, "there is no ucx"); // it seals
}

/* UCX's own domains stand in for network cards: that of TCP registers nothing, that of CUDA does. */
TEST(the_network_cards_among_the_devices_are_asked_whether_they_take_memory_of_a_card)
{
    static const struct {
        const char *devices, *why;
        bool is_direct;
    } cases[] = {
        { "lo", "there is no RDMA card among the devices lo", false },
        { "tcp:1,lo", "tcp registers no memory of a GPU: load nvidia_peermem", false },
        { "cuda_cpy:1,tcp,lo", "tcp registers no memory of a GPU", false },
        { "cuda_cpy:1,lo", "cuda_cpy:1,lo reaches the GPU's memory by itself", true },
    };
    if (lacks_cuda()) return;
    emulated_choose("quiet=1");
    device.is_reached = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *why;
        node_open(&a, "ucx",
                  &(struct fabric_options) { .transports = "tcp,self",
                                             .net_devices = cases[i].devices,
                                             .device = &device });
        const bool is_direct = fabric_takes_device(a.fabric, &why);
        // Built with Debian's headers it goes without all the same.
        const bool is_old = strstr(why, "made with a UCX before 1.14") != NULL;
        ck_assert_int_eq(is_direct || is_old, cases[i].is_direct);
        ck_assert_msg(is_old || strncmp(why, cases[i].why, strlen(cases[i].why)) == 0, "%s", why);
        node_close(&a);
    }
}

TEST(cluster_status_says_which_way_and_why)
{
    start_on("cuda", 1, .shard_set = SETTINGS("memory.limit=256MiB", "fabric.kind=ucx"));
    ask("cluster status");
    const char *text = strstr(said.out,
                              "shard-0: this state goes to other hosts through host memory: ");
    ck_assert_msg(text != NULL, "%s%s", said.out, said.err);
    expect_said(0, has_cuda() ? "transports are tcp" : "was built without CUDA");
    ask("cluster status -o json");
    expect_said(0, "\"device_memory\": \"host\"", "\"device_memory_why\": \"");
    ck_assert_int_eq(logged("shard-0.log", "goes to other hosts through host memory"), 1);
}

/* ---- from a card ---- */

static struct emulated_memory memory;

/* a and b have the card; a tells b of nothing, since they are no fabrics that map. */
static struct fabric_region *open_pair(struct fabric_peer **to_b_out)
{
    struct fabric_region *region;
    int fd;
    card = emulated_open("quiet=1");
    memory = emulated_alloc(&card, BYTES);
    device = (struct fabric_device) { .uuid_count = 1, .is_reached = true };
    open_node(&a, "ucx", CAIRN_DEVICE_MEMORY_DEVICE);
    open_node(&b, "ucx", CAIRN_DEVICE_MEMORY_DEVICE);
    *to_b_out = node_connect_to(&a, &b);
    ck_assert_int_eq(
        card.driver.cuMemExportToShareableHandle(&fd, memory.handle, CAIRN_CU_HANDLE_POSIX, 0),
        CAIRN_CU_OK);
    ck_assert_int_eq(fabric_region_add_device(a.fabric, (void *)(uintptr_t)memory.at, BYTES, fd,
                                              device.uuids[0], NULL, 0, &region),
                     CAIRN_OK);
    close(fd);
    return region;
}

static void close_pair(struct fabric_region *region)
{
    fabric_region_drop(region);
    node_close(&a);
    node_close(&b);
    emulated_free(&card, &memory);
    ck_assert_uint_eq(card.cairn_emulator_complaints(), 0);
}

static void fill_card(uint64_t at, size_t bytes, uint64_t id)
{
    static uint8_t host[BYTES];
    fill(host, bytes, id);
    ck_assert_int_eq(card.driver.cuMemcpyHtoDAsync(at, host, bytes, NULL), CAIRN_CU_OK);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(NULL), CAIRN_CU_OK);
}

static unsigned landed;

static void on_landed(void *arg, cairn_status status)
{
    (void)arg;
    ck_assert_int_eq(status, CAIRN_OK);
    landed++;
}

TEST(what_lies_on_a_card_goes_from_there_unless_it_is_small)
{
    static const size_t sizes[] = { CAIRN_FABRIC_DIRECT_MIN, 60000, PAYLOAD_MAX };
    const struct note note = { .id = 9 };
    struct fabric_peer *to_b;
    if (lacks_cuda()) return;
    struct fabric_region *region = open_pair(&to_b);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const uint64_t at = memory.at + BYTES - sizes[i];
        fill_card(at, sizes[i], i);
        const void *payload = (const void *)(uintptr_t)at;
        ck_assert_str_eq(fabric_payload_path(to_b, payload, sizes[i]), CAIRN_FABRIC_PATH_DIRECT);
        node_send(&a, to_b, i, payload, sizes[i]);
        pump(&a, &b, &b.arrived, i + 1);
        node_receive(&b, i);
        pump(&a, &b, &b.received, i + 1);
        pump(&a, &b, &a.sent, i + 1);
        ck_assert(is_filled(b.arrivals[i].buffer, sizes[i], i));
    }
    const void *small = (const void *)(uintptr_t)memory.at;
    const size_t bytes = CAIRN_FABRIC_DIRECT_MIN - 1;
    ck_assert_str_eq(fabric_payload_path(to_b, small, bytes), "");
    ck_assert_int_eq(fabric_send(to_b, &note, sizeof note, small, bytes, on_landed, NULL),
                     CAIRN_ERR_UNSUPPORTED);
    ck_assert_uint_eq(a.send_errors + b.receive_errors, 0);
    close_pair(region);
}

/* What was sent by then is received whole, also from a region that is dropped. */
TEST(a_region_of_a_card_that_is_dropped_is_read_to_the_end)
{
    struct fabric_peer *to_b;
    if (lacks_cuda()) return;
    struct fabric_region *region = open_pair(&to_b);
    fill_card(memory.at, PAYLOAD_MAX, 7);
    for (unsigned i = 0; i < 2; i++)
        node_send(&a, to_b, i, (const void *)(uintptr_t)memory.at, PAYLOAD_MAX);
    pump(&a, &b, &b.arrived, 2);
    fabric_region_drop(region);
    for (unsigned i = 0; i < 2; i++) {
        node_receive(&b, i);
        pump(&a, &b, &b.received, i + 1);
        ck_assert(is_filled(b.arrivals[i].buffer, PAYLOAD_MAX, 7));
    }
    pump(&a, &b, &a.sent, 2);
    ck_assert_uint_eq(a.send_errors + b.receive_errors, 0);
    close_pair(NULL);
}

/* ---- to a card ---- */

static cairn_status receive_on_card(unsigned i, uint64_t at)
{
    struct fabric_message *message = a.arrivals[i].message;
    const cairn_status status = fabric_receive(message, (void *)(uintptr_t)at, PAYLOAD_MAX,
                                               on_landed, NULL);
    if (status == CAIRN_OK) a.arrivals[i].message = NULL;
    return status;
}

TEST(what_comes_from_a_host_or_a_card_lands_on_a_card_unless_it_is_small)
{
    static uint8_t host[PAYLOAD_MAX];
    struct fabric_peer *to_b;
    if (lacks_cuda()) return;
    struct fabric_region *region = open_pair(&to_b);
    struct fabric_peer *to_a = node_connect_to(&b, &a), *to_itself = node_connect_to(&a, &a);
    fill(host, PAYLOAD_MAX, 3);
    node_send(&b, to_a, 0, host, PAYLOAD_MAX);
    pump(&a, &b, &a.arrived, 1);
    ck_assert_int_eq(receive_on_card(0, memory.at), CAIRN_OK);
    pump(&a, &b, &landed, 1);
    // and on, from where it is now: a card at both ends
    node_send(&a, to_itself, 1, (const void *)(uintptr_t)memory.at, PAYLOAD_MAX);
    pump(&a, &b, &a.arrived, 2);
    ck_assert_int_eq(receive_on_card(1, memory.at + PAYLOAD_MAX), CAIRN_OK);
    pump(&a, &b, &landed, 2);
    memset(host, 0, sizeof host);
    ck_assert_int_eq(
        card.driver.cuMemcpyDtoHAsync(host, memory.at + PAYLOAD_MAX, PAYLOAD_MAX, NULL),
        CAIRN_CU_OK);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(NULL), CAIRN_CU_OK);
    ck_assert(is_filled(host, PAYLOAD_MAX, 3));
    node_send(&b, to_a, 2, host, 100);
    pump(&a, &b, &a.arrived, 3);
    ck_assert_int_eq(receive_on_card(2, memory.at), CAIRN_ERR_UNSUPPORTED);
    node_receive(&a, 2);
    pump(&a, &b, &a.received, 1);
    ck_assert(is_filled(a.arrivals[2].buffer, 100, 3));
    close_pair(region);
}

/* ---- a job, whose worker is a host apart ---- */

/* Into memory of cairn_alloc, which the network card writes: for the card to see that this one needs a flush,
 * of which there is none for what comes by the host. */
static void fetch_on_card(const struct worker *w, struct cairn_version version, const float *is)
{
    static float got[CARD_BIG_ELEMS];
    const struct memory *to = &w->gradients[0];
    const uint64_t at = memory_address(to), flushes = card.cairn_emulator_flushes();
    const struct cairn_mem mem = memory_mem(to, CAIRN_F32);
    cairn_op *op;
    ck_assert_int_eq(card.driver.cuMemsetD8Async(at, 0x55, sizeof got, to->stream), CAIRN_CU_OK);
    good(cairn_fetch(w->job, version, card_model[0].name, NULL, NULL, &mem, &op));
    good(cairn_wait(op, CLUSTER_WAIT_MS));
    ck_assert_int_eq(card.driver.cuMemcpyDtoHAsync(got, at, sizeof got, to->stream), CAIRN_CU_OK);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(to->stream), CAIRN_CU_OK);
    ck_assert(memcmp(got, is, sizeof got) == 0);
    ck_assert_uint_gt(card.cairn_emulator_flushes(), flushes);
}

/* Once the shards' next heartbeats have come: all but what is small, and what was pushed before the shards'
 * HELLO said that they take it. */
static void expect_direct(const char *name)
{
    await((ask("job show -o json %s", name),
           said_number("bytes.fetched.direct") > 0 &&
               2 * said_number("bytes.pushed.direct") > said_number("bytes.pushed.carried") &&
               2 * said_number("bytes.fetched.direct") > said_number("bytes.fetched.carried")));
    says(0, "of the carried, right from a card: pushed", "job show %s", name);
}

TEST(gradients_and_parameters_go_right_from_a_card_and_make_the_bits_of_the_host)
{
    static float of_host[CARD_BIG_ELEMS], of_card[CARD_BIG_ELEMS];
    char root[65];
    if (lacks_cuda()) return;
    card_options = "quiet=1,unordered=1";
    setenv("CAIRN_FABRIC", "ucx", 1); // its workers are hosts apart
    start_on("cuda", 2, .coordinator_set = SETTINGS("lease.heartbeat=50ms"),
             .shard_set = SETTINGS("compute.threads=1", "memory.limit=256MiB", "fabric.kind=ucx",
                                   "fabric.device_memory=device"));
    card = emulated_open(card_options);
    struct worker host = worker_open("host", HOST);
    const struct cairn_version version = worker_train(&host, 3);
    trainer_digest(&cluster, "host", root);
    setenv("CAIRN_FABRIC_DEVICE_MEMORY", "device", 1);
    struct worker on_card = worker_open("card", ALLOCATED);
    const struct cairn_version same = worker_train(&on_card, 3);
    trainer_expect_digest(&cluster, "card", root);
    for (int t = 0; t < CARD_TENSORS; t++) {
        worker_fetch(&host, version, t, of_host);
        worker_fetch(&on_card, same, t, of_card);
        ck_assert(memcmp(of_host, of_card, trainer_wire_bytes(&card_model[t])) == 0);
    }
    worker_fetch(&on_card, same, 0, of_card);
    fetch_on_card(&on_card, same, of_card);
    expect_direct("card");
    says(0, "goes to other hosts from there: device_memory is device", "cluster status");
    worker_close(&on_card);
    worker_close(&host);
}

SUITE(60, .tear_down = stop);

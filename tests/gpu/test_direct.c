/* What lies on a card goes to other hosts from where it lies, or through host memory: which way is taken and
 * why, and that what goes from the card is whole. What needs a UCX with CUDA runs where one is
 * (gpu.direct_cuda; cmake -DUCX_CUDA=...), over TCP, where UCX itself copies: no network card is here. */
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/cluster.h"
#include "tests/support/emulated.h"
#include "tests/support/fabric_node.h"
#include "tests/support/suite.h"
#include "tests/support/trainer.h"

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
    static const char *const kinds[] = { "ucx", "auto" };
    const char *const built = "was built without CUDA";
    const bool has = has_cuda();
    if (has) emulated_choose("quiet=1");
    device.is_reached = true;
    for (int i = 0; i < 2; i++) {
        expect_way(kinds[i], CAIRN_DEVICE_MEMORY_HOST, false, "device_memory is host");
        expect_way(kinds[i], CAIRN_DEVICE_MEMORY_AUTO, false, has ? "transports are tcp" : built);
        expect_way(kinds[i], CAIRN_DEVICE_MEMORY_DEVICE, has, has ? "is device" : built);
    }
    device.is_reached = false;
    expect_way("ucx", CAIRN_DEVICE_MEMORY_AUTO, false, has ? "no network card reaches" : built);
    expect_way("mapped", CAIRN_DEVICE_MEMORY_DEVICE, false, "there is no ucx");
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
    static const char *const set[] = { "compute.backend=cuda", "compute.threads=1",
                                       "memory.limit=256MiB", "fabric.kind=ucx", NULL };
    static struct cluster cluster;
    struct cluster_said said;
    const char *const why = has_cuda() ? "transports are tcp" : "was built without CUDA";
    emulated_choose("");
    cluster_start(&cluster, 1, &(struct cluster_options) { .shard_set = set });
    cluster_cli(&cluster, &said, "cluster status");
    const char *text = strstr(said.out,
                              "shard-0: this state goes to other hosts through host memory: ");
    ck_assert_msg(text != NULL && strstr(text, why) != NULL, "%s%s", said.out, said.err);
    cluster_cli(&cluster, &said, "cluster status -o json");
    ck_assert_msg(strstr(said.out, "\"device_memory\": \"host\"") != NULL, "%s", said.out);
    ck_assert_ptr_nonnull(strstr(said.out, "\"device_memory_why\": \""));
    ck_assert_int_eq(
        cluster_logged(&cluster, "shard-0.log", "goes to other hosts through host memory"), 1);
    cluster_stop(&cluster);
}

/* ---- from a card ---- */

static struct emulated card;
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

enum { WAIT_MS = 20000, TENSORS = 2, STEPS = 3, ROOM = 2 << 20 };

static const struct cairn_tensor model[TENSORS] = {
    TRAINER_MATRIX("big", "u", 700, 311, 1),
    TRAINER_ONES("small", "v", 77),
};

static struct cluster cluster;

static void start_cluster(void)
{
    static const char *const set[] = { "compute.backend=cuda",        "compute.threads=1",
                                       "memory.limit=256MiB",         "fabric.kind=ucx",
                                       "fabric.device_memory=device", NULL };
    static const char *const quick[] = { "lease.heartbeat=50ms", NULL };
    emulated_choose("quiet=1,unordered=1");
    setenv("CAIRN_FABRIC", "ucx", 1);
    cluster_start(&cluster, 2,
                  &(struct cluster_options) { .shard_set = set, .coordinator_set = quick });
    card = emulated_open("quiet=1,unordered=1");
}

struct worker {
    cairn *session;
    cairn_job *job;
    float *values[TENSORS];         /* [ROOM / 4], of the host */
    void *at[TENSORS];              /* what is pushed */
    struct emulated_memory foreign; /* of a card, not the session's */
    bool on_card;
};

static struct worker open_worker(const char *name, bool on_card)
{
    struct worker w = { .on_card = on_card };
    struct cairn_job_spec spec = trainer_spec(model, TENSORS);
    spec.chunk_leaves = 4;
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = cluster.address,
                                     .device = on_card ? CAIRN_GPU(0) : 0 };
    good(cairn_open(&opts, &w.session));
    w.job = trainer_ready(w.session, name, &spec);
    for (int t = 0; t < TENSORS; t++) w.at[t] = w.values[t] = malloc(ROOM);
    if (!on_card) return w;
    good(cairn_alloc(w.session, ROOM, CAIRN_GPU(0), &w.at[0]));
    w.foreign = emulated_alloc(&card, ROOM);
    w.at[1] = (void *)(uintptr_t)w.foreign.at;
    return w;
}

static void close_worker(struct worker *w)
{
    cairn_close(w->session);
    if (w->on_card) emulated_free(&card, &w->foreign);
    for (int t = 0; t < TENSORS; t++) free(w->values[t]);
}

static struct cairn_version train(const struct worker *w)
{
    struct cairn_version version = { 0 };
    for (int step = 0; step < STEPS; step++) {
        const struct cairn_round round = trainer_begin(w->job);
        for (int t = 0; t < TENSORS; t++) {
            const size_t elems = trainer_elems(&model[t]);
            struct cairn_mem mem = trainer_mem(w->at[t], CAIRN_F32);
            float *values = w->values[t];
            for (size_t i = 0; i < elems; i++)
                values[i] = (float)((i * 2654435761u + (unsigned)(step * 97 + t)) % 2001) / 1000;
            if (w->on_card) {
                mem.device = CAIRN_GPU(0);
                ck_assert_int_eq(card.driver.cuMemcpyHtoDAsync((uint64_t)(uintptr_t)w->at[t],
                                                               values, elems * 4, NULL),
                                 CAIRN_CU_OK);
            }
            good(cairn_push(w->job, &round, 0, model[t].name, NULL, &mem, NULL));
        }
        version = trainer_commit(w->job, &round, 1).version;
    }
    return version;
}

static void fetch(const struct worker *w, struct cairn_version version, int t, float *out)
{
    const struct cairn_mem mem = trainer_mem(out, CAIRN_F32);
    cairn_op *op;
    good(cairn_fetch(w->job, version, model[t].name, NULL, NULL, &mem, &op));
    good(cairn_wait(op, WAIT_MS));
}

/* Into memory of cairn_alloc, which the network card writes: for the card to see that this one needs a flush,
 * of which there is none for what comes by the host. */
static void fetch_on_card(const struct worker *w, struct cairn_version version, const float *is)
{
    static float got[ROOM / 4];
    const size_t bytes = trainer_elems(&model[0]) * 4;
    const uint64_t at = (uint64_t)(uintptr_t)w->at[0], flushes = card.cairn_emulator_flushes();
    struct cairn_mem mem = trainer_mem(w->at[0], CAIRN_F32);
    cairn_op *op;
    mem.device = CAIRN_GPU(0);
    ck_assert_int_eq(card.driver.cuMemsetD8Async(at, 0x55, bytes, NULL), CAIRN_CU_OK);
    good(cairn_fetch(w->job, version, model[0].name, NULL, NULL, &mem, &op));
    good(cairn_wait(op, WAIT_MS));
    ck_assert_int_eq(card.driver.cuMemcpyDtoHAsync(got, at, bytes, NULL), CAIRN_CU_OK);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(NULL), CAIRN_CU_OK);
    ck_assert(memcmp(got, is, bytes) == 0);
    ck_assert_uint_gt(card.cairn_emulator_flushes(), flushes);
}

static int64_t bytes_of(const json_t *show, const char *what, const char *way)
{
    const json_t *bytes = json_object_get(json_object_get(show, "bytes"), what);
    return json_integer_value(json_object_get(bytes, way));
}

/* Once the shards' next heartbeats have come: all but what is small, and what was pushed before the shards'
 * HELLO said that they take it. */
static void expect_direct(const char *name)
{
    static struct cluster_said said;
    bool is_direct = false;
    for (int i = 0; i < WAIT_MS / 20 && !is_direct; i++) {
        cluster_cli(&cluster, &said, "job show -o json %s", name);
        json_t *show = json_loads(said.out, 0, NULL);
        is_direct = bytes_of(show, "fetched", "direct") > 0 &&
                    2 * bytes_of(show, "pushed", "direct") > bytes_of(show, "pushed", "carried") &&
                    2 * bytes_of(show, "fetched", "direct") > bytes_of(show, "fetched", "carried");
        json_decref(show);
        if (!is_direct) usleep(20000);
    }
    ck_assert_msg(is_direct, "%s", said.out);
    cluster_says(&cluster, 0, "of the carried, right from a card: pushed", "job show %s", name);
}

TEST(gradients_and_parameters_go_right_from_a_card_and_make_the_bits_of_the_host)
{
    static float of_host[ROOM / 4], of_card[ROOM / 4];
    char roots[2][65];
    if (lacks_cuda()) return;
    start_cluster();
    struct worker host = open_worker("host", false);
    const struct cairn_version version = train(&host);
    trainer_digest(&cluster, "host", roots[0]);
    setenv("CAIRN_FABRIC_DEVICE_MEMORY", "device", 1);
    struct worker on_card = open_worker("card", true);
    const struct cairn_version same = train(&on_card);
    trainer_digest(&cluster, "card", roots[1]);
    ck_assert_str_eq(roots[1], roots[0]);
    for (int t = 0; t < TENSORS; t++) {
        fetch(&host, version, t, of_host);
        fetch(&on_card, same, t, of_card);
        ck_assert(memcmp(of_host, of_card, trainer_elems(&model[t]) * 4) == 0);
    }
    fetch(&on_card, same, 0, of_card);
    fetch_on_card(&on_card, same, of_card);
    expect_direct("card");
    cluster_says(&cluster, 0, "goes to other hosts from there: device_memory is device",
                 "cluster status");
    close_worker(&on_card);
    close_worker(&host);
    cluster_stop(&cluster);
}

SUITE(60);

/* Published copies as a client puts them together: segments that come one by one, tensors that go over the
 * ends of segments and shards, and shards that show what does not fit together. */
#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/job.h"
#include "client/read.h"
#include "proto/plan/plan.h"
#include "server/shard/memory.h"
#include "tests/support/fabric_node.h"
#include "tests/support/suite.h"

enum { SHARDS = 2, JOB = 7, ROWS = 40000, COLUMNS = 1024 };

static const struct cairn_version version = { 1, 5 }, later = { 1, 6 };
static struct node daemon_node, worker;
static struct fabric_peer *to_worker;
static unsigned shown;

/* What a worker is, as far as it reads. */
static struct session session;
static struct job job;
static struct tensor_spec tensor;
static struct served_layout *served;

/* What shards publish. */
static struct arena heads[SHARDS], wires[SHARDS];

static void on_mapping(void *arg, struct fabric_mapping *mapping)
{
    (void)arg;
    mapped_on_mapping(&session, mapping);
    shown++;
}

static void on_gone(void *arg, struct fabric_mapping *mapping)
{
    (void)arg;
    mapped_on_gone(&session, mapping);
}

/* One tensor of 160 MB, over so many shards. */
static void open_all(uint32_t shard_count)
{
    const struct shape shape = { .rank = 2, .dim = { ROWS, COLUMNS } };
    const struct layout_tensor planned = {
        .name = "a", .unit = "a", .shape = shape, .elem_bytes = 20
    };
    const struct plan_request request = { .tensors = &planned,
                                          .tensor_count = 1,
                                          .shard_count = shard_count };
    const struct fabric_options options = { .on_mapping = on_mapping, .on_mapping_gone = on_gone };
    const struct cairn_version none = { 0, 0 };
    struct layout *layout;
    shown = 0;
    memset(&session, 0, sizeof session);
    memset(&job, 0, sizeof job);
    pthread_mutex_init(&session.lock, NULL);
    session.jobs = &job;
    tensor = (struct tensor_spec) { .shape = shape, .wire = CAIRN_F32 };
    job.session = &session;
    job.spec.tensors = &tensor;
    job.spec.tensor_count = 1;
    job.attachment.job = JOB;
    job.spec.chunk_leaves = 4;
    ck_assert_int_eq(plan_make(&request, &layout, NULL), CAIRN_OK);
    ck_assert_int_eq(served_layout_open(&job.spec, layout, none, &served), CAIRN_OK);
    served_layouts_add(&job, served);
    node_open(&daemon_node, "mapped", NULL);
    node_open(&worker, "mapped", &options);
    to_worker = node_connect_to(&daemon_node, &worker);
}

static void close_all(void)
{
    stitches_release(&job);
    mapped_release(&session);
    node_close(&worker);
    node_close(&daemon_node);
    for (uint32_t i = 0; i < SHARDS && heads[i].base != NULL; i++) {
        arena_unshare(&heads[i], true);
        arena_unshare(&wires[i], true);
        arena_close(&heads[i]);
        arena_close(&wires[i]);
    }
    served_layouts_release(&job);
    pthread_mutex_destroy(&session.lock);
}

static uint64_t published_bytes(uint32_t shard)
{
    uint64_t end = 0;
    for (size_t i = 0; i < served->parts[shard].map.extent_count; i++)
        (void)published_place(&served->parts[shard].map, i, sizeof(float), &end);
    return end;
}

static struct published_note note_of(uint32_t shard, uint32_t copy)
{
    struct published_note note = { .magic = CAIRN_PUBLISHED_MAGIC,
                                   .shard = shard,
                                   .job = JOB,
                                   .incarnation = 99,
                                   .side = CAIRN_PUBLISHED_HOST,
                                   .copy = copy };
    memcpy(&note.layout_hash, served->layout->hash, sizeof note.layout_hash);
    note.segment_count = (uint32_t)memory_segments(published_bytes(shard));
    return note;
}

static struct published_head *head_of(uint32_t shard)
{
    return (struct published_head *)heads[shard].base;
}

/* The n-th byte of the tensor at a version. */
static uint8_t byte_of(uint64_t n, struct cairn_version at)
{
    return (uint8_t)(n * 31 + n / 4096 + at.step);
}

/* The pages at both ends of each segment and extent, of an extent that begins at `at` of the wire. */
static void write_some(uint32_t shard, const struct local_extent *extent, uint64_t at)
{
    const uint64_t from = extent->first_elem * sizeof(float);
    const uint64_t bytes = extent->elem_count * sizeof(float);
    for (uint64_t i = 0; i < bytes; i++) {
        const uint64_t in_segment = (at + i) % CAIRN_SEGMENT_BYTES;
        const bool is_end = in_segment < 4096 || in_segment >= CAIRN_SEGMENT_BYTES - 4096 ||
                            i < 4096 || i >= bytes - 4096;
        if (is_end)
            wires[shard].base[at + i] = byte_of(from + i, version);
        else
            i += 63;
    }
}

static void write_version(uint32_t shard)
{
    uint64_t end = 0;
    published_write_begin(head_of(shard));
    for (size_t i = 0; i < served->parts[shard].map.extent_count; i++)
        write_some(shard, &served->parts[shard].map.extents[i],
                   published_place(&served->parts[shard].map, i, sizeof(float), &end));
    published_write_end(head_of(shard), version, CAIRN_PUBLISHED_HOST);
}

static void open_copy(uint32_t shard)
{
    struct sentence why;
    struct home *host = home_host();
    ck_assert_int_eq(arena_open_shared(host, "head", 4096, &heads[shard], &why), CAIRN_OK);
    ck_assert_int_eq(arena_open_shared(host, "wire", published_bytes(shard), &wires[shard], &why),
                     CAIRN_OK);
    published_head_init(head_of(shard), &served->parts[shard].map, JOB, published_bytes(shard));
    published_set_copy(head_of(shard), 1);
    write_version(shard);
    struct published_note note = note_of(shard, 1);
    ck_assert(arena_share(&wires[shard], daemon_node.fabric, &note));
    note.segment = note.segment_count;
    ck_assert(arena_share(&heads[shard], daemon_node.fabric, &note));
}

static struct published_view *lend(void)
{
    static const uint32_t first = 0;
    pthread_mutex_lock(&session.lock);
    struct published_view *lent = published_view_open(&job, version, CAIRN_PUBLISHED_HOST, &first,
                                                      1);
    pthread_mutex_unlock(&session.lock);
    return lent;
}

static void give_back(struct published_view *lent)
{
    pthread_mutex_lock(&session.lock);
    published_view_close(lent);
    pthread_mutex_unlock(&session.lock);
}

/* Of what was written, all that there is. */
static void check_bytes(const uint8_t *tensor_bytes)
{
    size_t wrong = 0, seen = 0;
    for (uint32_t s = 0; s < served->layout->shard_count; s++) {
        uint64_t end = 0;
        for (size_t e = 0; e < served->parts[s].map.extent_count; e++) {
            const struct local_extent *extent = &served->parts[s].map.extents[e];
            const uint64_t at = published_place(&served->parts[s].map, e, sizeof(float), &end);
            const uint64_t from = extent->first_elem * sizeof(float);
            for (uint64_t cut = CAIRN_SEGMENT_BYTES; cut < end; cut += CAIRN_SEGMENT_BYTES) {
                if (cut < at + 4096) continue;
                for (uint64_t i = cut - at - 4096; i < cut - at + 4096; i++, seen++)
                    wrong += tensor_bytes[from + i] != byte_of(from + i, version);
            }
            const uint64_t last = extent->elem_count * sizeof(float) - 4096;
            for (uint64_t i = 0; i < 4096; i++, seen += 2) {
                wrong += tensor_bytes[from + i] != byte_of(from + i, version);
                wrong += tensor_bytes[from + last + i] != byte_of(from + last + i, version);
            }
        }
    }
    ck_assert_uint_eq(wrong, 0);
    ck_assert_uint_ge(seen, 3 * 8192);
}

static void check_all(uint32_t shard_count, unsigned segments)
{
    open_all(shard_count);
    for (uint32_t s = 0; s < shard_count; s++) open_copy(s);
    unsigned awaited = 0;
    for (uint32_t s = 0; s < shard_count; s++) {
        ck_assert_ptr_null(lend()); // not all is here
        arena_show(&heads[s], to_worker);
        arena_show(&wires[s], to_worker);
        awaited += 1 + (unsigned)home_memory_segments(&wires[s].memory);
        pump(&daemon_node, &worker, &shown, awaited);
    }
    ck_assert_uint_eq(awaited, segments + shard_count);
    for (int again = 0; again < 2; again++) {
        struct published_view *lent = lend();
        ck_assert_ptr_nonnull(lent);
        check_bytes(published_view_at(lent, 0));
        ck_assert(published_view_whole(lent));
        give_back(lent);
    }
    struct published_view *lent = lend();
    published_write_begin(head_of(shard_count - 1));
    published_write_end(head_of(shard_count - 1), later, CAIRN_PUBLISHED_HOST);
    ck_assert(!published_view_whole(lent));
    give_back(lent);
    ck_assert_ptr_null(lend());
    close_all();
}

TEST(a_tensor_goes_over_the_ends_of_segments)
{
    check_all(1, 3);
}

TEST(a_tensor_of_two_shards_goes_over_the_ends_of_their_segments)
{
    check_all(2, 4);
}

TEST(a_segment_that_is_given_back_takes_the_copy_away_but_not_from_whoever_reads_it)
{
    open_all(1);
    open_copy(0);
    arena_show(&wires[0], to_worker);
    arena_show(&heads[0], to_worker);
    pump(&daemon_node, &worker, &shown, 4);
    struct published_view *lent = lend();
    ck_assert_ptr_nonnull(lent);
    arena_give_segment(&wires[0], 1);
    for (int i = 0; i < 10000 && !session.published->gone; i++)
        pump_for_ms(&daemon_node, &worker, 1);
    ck_assert(session.published->gone);
    ck_assert_ptr_null(lend());
    check_bytes(published_view_at(lent, 0));
    give_back(lent);
    mapped_sweep(&session);
    ck_assert_ptr_null(session.published);
    close_all();
}

/* A copy is read by the layout that it was written by, and a version by the one that serves it. */
TEST(after_a_change_each_version_is_lent_by_its_own_layout)
{
    const struct shape shape = { .rank = 2, .dim = { ROWS, COLUMNS } };
    const struct layout_tensor planned = {
        .name = "a", .unit = "a", .shape = shape, .elem_bytes = 20
    };
    open_all(1);
    open_copy(0);
    arena_show(&wires[0], to_worker);
    arena_show(&heads[0], to_worker);
    pump(&daemon_node, &worker, &shown, 4);
    struct served_layout *before = served, *after;
    struct layout *layout;
    struct extent *extents = malloc(2 * sizeof *extents);
    const uint64_t quanta = served->layout->extents[0].quantum_count;
    extents[0] = (struct extent) { .shard = 1, .quantum_count = quanta / 2 };
    extents[1] = (struct extent) { .shard = 0,
                                   .first_quantum = quanta / 2,
                                   .quantum_count = quanta - quanta / 2 };
    ck_assert_int_eq(layout_make(&planned, 1, 2, 2, extents, 2, &layout), CAIRN_OK);
    ck_assert_int_eq(served_layout_open(&job.spec, layout, later, &after), CAIRN_OK);
    served_layouts_add(&job, after);
    struct published_view *lent = lend();
    ck_assert_ptr_nonnull(lent); // the older version, by the older layout
    check_bytes(published_view_at(lent, 0));
    give_back(lent);
    served_layouts_serve_since(&job, after, version);
    ck_assert_ptr_null(lend()); // nobody has shown what it is by the newer one
    ck_assert_ptr_eq(served_layout_of_version(&job, version), after);
    served_layouts_serve_since(&job, after, later);
    job.known.newest = (struct cairn_version) { later.generation, later.step + 1 };
    after->layout->extent_count = 1 << 20; // as if it were so large that nothing is kept in vain
    ck_assert(!served_layouts_trim(&job));
    job.known.newest.step++;
    served_layout_get(before); // by something that is under way
    ck_assert(!served_layouts_trim(&job));
    served_layout_put(before);
    job.leased.oldest = version;
    job.leased.until_ms = monotonic_ms() + 60000;
    ck_assert(!served_layouts_trim(&job));
    job.leased.until_ms = 0;
    after->layout->extent_count = 2;
    ck_assert(!served_layouts_trim(&job));
    after->layout->extent_count = 1 << 20;
    ck_assert(served_layouts_trim(&job));
    ck_assert_ptr_null(after->older);
    after->layout->extent_count = 2;
    served = NULL;
    close_all();
}

/* ---- what does not fit together ---- */

static void show_region(const struct published_note *note, uint64_t bytes, bool is_head)
{
    struct fabric_region *region;
    const int fd = memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (is_head) {
        struct published_head *head = base;
        published_head_init(head, &served->parts[0].map, JOB, published_bytes(0));
        published_set_copy(head, note->copy);
        published_write_end(head, version, CAIRN_PUBLISHED_HOST);
    }
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, CAIRN_FABRIC_SEALS), 0);
    ck_assert_int_eq(
        fabric_region_add(daemon_node.fabric, base, bytes, fd, note, sizeof *note, &region),
        CAIRN_OK);
    ck_assert_int_eq(fabric_region_show(region, to_worker), CAIRN_OK);
    const unsigned before = shown;
    pump(&daemon_node, &worker, &shown, before + 1);
}

TEST(what_does_not_fit_together_is_never_read)
{
    enum { NONE = -1, HEAD = 3 };
    static const struct {
        const char *what;
        int segments[5];
        uint64_t last_bytes, head_bytes; /* 0: as they should be */
        uint32_t more_segments;
    } cases[] = {
        { "all is right", { 0, HEAD, 2, 1, NONE }, 0, 0, 0 },
        { "the last one has room", { 0, 1, 2, HEAD, NONE }, CAIRN_SEGMENT_BYTES, 0, 0 },
        { "a segment is missing", { 0, HEAD, 2, NONE }, 0, 0, 0 },
        { "the head is missing", { 0, 1, 2, NONE }, 0, 0, 0 },
        { "a segment comes twice", { 0, 1, 1, HEAD, NONE }, 0, 0, 0 },
        { "a segment comes once more", { 0, 1, 2, HEAD, 2 }, 0, 0, 0 },
        { "a number is beyond the count", { 0, 1, 4, HEAD, NONE }, 0, 0, 0 },
        { "the last one is too short", { 0, 1, 2, HEAD, NONE }, 4096, 0, 0 },
        { "the head is too short", { 0, 1, 2, HEAD, NONE }, 0, 2048, 0 },
        { "there are to be more segments", { 0, 1, 2, HEAD, NONE }, 0, 0, 1 },
        { "there are to be very many segments", { 0, 1, 2, NONE }, 0, 0, UINT32_MAX - 3 },
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        open_all(1);
        const uint64_t bytes = published_bytes(0), last = bytes - 2 * CAIRN_SEGMENT_BYTES;
        struct published_note note = note_of(0, 1);
        ck_assert_uint_eq(note.segment_count, HEAD);
        note.segment_count += cases[c].more_segments;
        for (int i = 0; i < 5 && cases[c].segments[i] != NONE; i++) {
            const bool is_head = cases[c].segments[i] == HEAD;
            note.segment = is_head ? note.segment_count : (uint32_t)cases[c].segments[i];
            uint64_t size = CAIRN_SEGMENT_BYTES;
            if (is_head) size = cases[c].head_bytes > 0 ? cases[c].head_bytes : 4096;
            if (note.segment == 2) size = cases[c].last_bytes > 0 ? cases[c].last_bytes : last;
            show_region(&note, size, is_head);
        }
        struct published_view *lent = lend();
        ck_assert_msg((lent != NULL) == (c < 2), "%s", cases[c].what);
        give_back(lent);
        close_all();
    }
}

SUITE(60);

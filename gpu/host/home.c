/* The home `host`. Its memory is memory of this process, and work items run at once in the calling
 * thread. */
#if defined(__SSE2__)
#include <inttypes.h>
#include <xmmintrin.h>
#endif

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <float.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/home_kind.h"
#include "proto/base/machine.h"

/* ==== memory ==== */

/* The memory of `host` consists of segments of at most 64 MiB. Each segment is a memfd of its own, and all
 * are mapped side by side. */

struct home_segment {
    int fd; /* owned; -1: not created yet, or given back to the system */
};

static uint64_t room_of(const struct home_memory *memory)
{
    return memory->room_bytes != 0 ? memory->room_bytes : memory->bytes;
}

/* Returns the size of a segment's memfd. A segment that other processes have mapped cannot change its size.
 * So an exportable segment has from the start the largest size that it can have in the room. Only pages
 * that are touched use memory. */
static uint64_t bytes_of(const struct home_memory *memory, uint64_t segment)
{
    return segment_bytes(memory->is_exportable ? room_of(memory) : memory->bytes, segment);
}

static uint8_t *address_of(const struct home_memory *memory, uint64_t segment)
{
    return (uint8_t *)memory->base + segment * CAIRN_SEGMENT_BYTES;
}

/* Maps the segment's bytes from `from` on, which is a multiple of a page. The bytes before `from` are
 * already mapped. */
static bool map_from(const struct home_memory *memory, uint64_t segment, size_t from)
{
    const int fd = memory->segments[segment].fd;
    const size_t bytes = (size_t)bytes_of(memory, segment);
    if (ftruncate(fd, (off_t)bytes) != 0) return false;
    if (from >= bytes) return true;
    void *at = mmap(address_of(memory, segment) + from, bytes - from, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)from);
    if (at == MAP_FAILED) return false;
    // work on the memory is a third faster if the kernel gives large pages
    madvise(at, bytes - from, MADV_HUGEPAGE);
    return true;
}

/* Makes a segment of a new memfd. */
static bool make(const struct home_memory *memory, const char *label, uint64_t segment)
{
    const int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return false;
    memory->segments[segment].fd = fd;
    return map_from(memory, segment, 0);
}

static void host_memory_close(struct home_memory *memory)
{
    munmap(memory->base, (size_t)room_of(memory));
    for (uint64_t i = 0; memory->segments != NULL && i < home_memory_segments(memory); i++)
        if (memory->segments[i].fd >= 0) close(memory->segments[i].fd);
    free(memory->segments);
}

static cairn_status fails(const struct home_memory *memory, const char *label, struct sentence *why)
{
    const int error = errno;
    return fail_with(
        why, CAIRN_ERR_NO_MEMORY, "cannot make %" PRIu64 " bytes of memory for %s: %s%s",
        memory->bytes, label, strerror(error),
        error != EMFILE
            ? ""
            : " (one per 64 MiB: raise the limit of open files, as by LimitNOFILE of the unit)");
}

/* Reserves the addresses of memory that has no segment yet. */
static bool reserve_room(struct home_memory *memory)
{
    const uint64_t count = home_memory_segments(memory);
    memory->base = pages_reserve((size_t)room_of(memory));
    if (memory->base == MAP_FAILED) return false;
    memory->segments = malloc((size_t)count * sizeof *memory->segments);
    for (uint64_t i = 0; memory->segments != NULL && i < count; i++) memory->segments[i].fd = -1;
    return true;
}

static cairn_status host_memory_open(struct home *home, const char *label,
                                     struct home_memory *memory_out, struct sentence *why)
{
    const uint64_t count = home_memory_segments(memory_out);
    struct home_memory memory = *memory_out;
    (void)home;
    if (!reserve_room(&memory)) return fails(memory_out, label, why);
    bool made = memory.segments != NULL;
    for (uint64_t i = 0; made && i < count; i++) made = make(&memory, label, i);
    if (made) {
        *memory_out = memory;
        return CAIRN_OK;
    }
    const cairn_status status = fails(memory_out, label, why);
    host_memory_close(&memory);
    return status;
}

/* Maps what another process made. Its size may be larger, if that process was about to grow the memory. */
static cairn_status adopt(const struct home_memory *memory, const char *label, uint64_t segment,
                          struct sentence *why)
{
    const int fd = memory->segments[segment].fd;
    struct stat is;
    if (fstat(fd, &is) != 0 || fcntl(fd, F_GET_SEALS) < 0)
        return fail_with(why, CAIRN_ERR_IO, "segment %" PRIu64 " of %s is no memory: %s", segment,
                         label, strerror(errno));
    if ((uint64_t)is.st_size < bytes_of(memory, segment))
        return fail_with(why, CAIRN_ERR_IO,
                         "segment %" PRIu64 " of %s has %lld bytes, and %" PRIu64 " are wanted",
                         segment, label, (long long)is.st_size, bytes_of(memory, segment));
    return map_from(memory, segment, 0) ? CAIRN_OK : fails(memory, label, why);
}

cairn_status host_memory_adopt(const char *label, const int *fds, struct home_memory *memory_out,
                               struct sentence *why)
{
    const uint64_t count = home_memory_segments(memory_out);
    struct home_memory memory = *memory_out;
    const bool is_reserved = reserve_room(&memory);
    cairn_status status = CAIRN_OK;
    if (!is_reserved || memory.segments == NULL) {
        status = fails(memory_out, label, why);
        for (uint64_t i = 0; i < count; i++) close(fds[i]);
    }
    for (uint64_t i = 0; memory.segments != NULL && i < count; i++) memory.segments[i].fd = fds[i];
    for (uint64_t i = 0; i < count && status == CAIRN_OK; i++)
        status = adopt(&memory, label, i, why);
    if (status == CAIRN_OK)
        *memory_out = memory;
    else if (is_reserved)
        host_memory_close(&memory);
    return status;
}

int host_memory_fd(const struct home_memory *memory, uint64_t segment)
{
    return memory->segments[segment].fd;
}

/* Gives a segment back to the system. Processes that have mapped the segment keep it. */
static void host_memory_give(struct home_memory *memory, uint64_t segment)
{
    if (memory->segments[segment].fd < 0) return;
    void *none = mmap(address_of(memory, segment), (size_t)bytes_of(memory, segment), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (none == MAP_FAILED) return; // the segment stays mapped until the memory is closed
    close(memory->segments[segment].fd);
    memory->segments[segment].fd = -1;
}

static cairn_status host_memory_resize(struct home_memory *memory, const char *label,
                                       uint64_t bytes, struct sentence *why)
{
    struct home_memory now = *memory;
    now.bytes = bytes;
    const uint64_t was = home_memory_segments(memory), is = home_memory_segments(&now);
    const uint64_t first = (bytes < memory->bytes ? bytes : memory->bytes) / CAIRN_SEGMENT_BYTES;
    struct home_segment *more = realloc(now.segments, (size_t)(is > was ? is : was) * sizeof *more);
    if (more == NULL) return fails(&now, label, why);
    now.segments = memory->segments = more;
    for (uint64_t i = was; i < is; i++) more[i].fd = -1;
    for (uint64_t i = is; i < was; i++) host_memory_give(memory, i);
    bool made = true;
    for (uint64_t i = first; made && i < is; i++)
        made = more[i].fd < 0
                   ? make(&now, label, i)
                   : memory->is_exportable ||
                         map_from(&now, i, (size_t)((bytes_of(memory, i) + 4095) / 4096 * 4096));
    if (made) {
        *memory = now;
        return CAIRN_OK;
    }
    const cairn_status status = fails(&now, label, why);
    for (uint64_t i = was; i < is; i++) host_memory_give(&now, i);
    for (uint64_t i = first; i < was; i++)
        if (more[i].fd < 0) (void)make(memory, label, i);
    return status;
}

static cairn_status host_memory_export(const struct home_memory *memory, uint64_t segment,
                                       int *fd_out, uint64_t *bytes_out, struct sentence *why)
{
    const int given = fcntl(memory->segments[segment].fd, F_DUPFD_CLOEXEC, 0);
    if (given < 0)
        return fail_with(why, CAIRN_ERR_IO, "cannot give memory to be mapped by others: %s",
                         strerror(errno));
    *fd_out = given;
    *bytes_out = bytes_of(memory, segment);
    return CAIRN_OK;
}

/* ==== digest ==== */

/* Hashes of leaves. The elements are hashed as little-endian bytes, with every NaN replaced by the
 * canonical NaN of its dtype. Bytes (CAIRN_U8) are hashed as they are. */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "state is hashed as it lies in memory");

/* Copies elements of `bits` bits. Without its sign, every NaN is above `infinity`, and becomes `nan`. */
#define DEFINE_CANONICAL(bits)                                                  \
    static void canonical_##bits(uint8_t *out, const uint8_t *in, size_t elems, \
                                 uint##bits##_t infinity, uint##bits##_t nan)   \
    {                                                                           \
        for (size_t i = 0; i < elems; i++) {                                    \
            uint##bits##_t u;                                                   \
            memcpy(&u, in + sizeof u * i, sizeof u);                            \
            if ((u & INT##bits##_MAX) > infinity) u = nan;                      \
            memcpy(out + sizeof u * i, &u, sizeof u);                           \
        }                                                                       \
    }
DEFINE_CANONICAL(16)
DEFINE_CANONICAL(32)
DEFINE_CANONICAL(64)

void host_canonical(void *out, const void *in, cairn_dtype dtype, size_t elems)
{
    assert(dtype_size((int)dtype) != 0);
    switch (dtype) {
    case CAIRN_F32: canonical_32(out, in, elems, 0x7f800000u, 0x7fc00000u); break;
    case CAIRN_BF16: canonical_16(out, in, elems, 0x7f80, 0x7fc0); break;
    case CAIRN_F16: canonical_16(out, in, elems, 0x7c00, 0x7e00); break;
    case CAIRN_F64:
        canonical_64(out, in, elems, (uint64_t)0x7ff << 52, (uint64_t)0x7ff8 << 48);
        break;
    case CAIRN_U8: memcpy(out, in, elems); break;
    }
}

static const uint8_t *hash_leaf(const uint8_t *in, cairn_dtype dtype,
                                const struct geometry *geometry, uint64_t leaf, struct hash *out)
{
    uint8_t bytes[CAIRN_LEAF_ELEMS * sizeof(double)];
    const size_t elems = (size_t)(leaf_start(geometry, leaf + 1) - leaf_start(geometry, leaf));
    const size_t size = elems * dtype_size((int)dtype);
    host_canonical(bytes, in, dtype, elems);
    leaf_hash(bytes, size, out);
    return in + size;
}

static void assert_leaves(const struct geometry *geometry, uint64_t first, uint64_t count)
{
    assert(count <= geometry->leaf_count && first <= geometry->leaf_count - count);
}

void host_hash_each(const void *plane, cairn_dtype dtype, const struct geometry *geometry,
                    uint64_t first_leaf, uint64_t leaf_count, struct hash *hashes_out)
{
    const uint8_t *in = plane;
    assert_leaves(geometry, first_leaf, leaf_count);
    for (uint64_t i = 0; i < leaf_count; i++)
        in = hash_leaf(in, dtype, geometry, first_leaf + i, &hashes_out[i]);
}

/* The number of leaves that are hashed before their hashes are pushed to the tree. */
#define BATCH_LEAVES ((uint64_t)256)

void backend_hash_leaves(const struct backend *backend, const void *plane, cairn_dtype dtype,
                         const struct geometry *geometry, uint64_t leaf_count,
                         struct hash_tree *tree)
{
    const size_t elem_bytes = dtype_size((int)dtype);
    const uint64_t first = leaf_start(geometry, tree->next_leaf);
    assert_leaves(geometry, tree->next_leaf, leaf_count);
    for (uint64_t left = leaf_count, count; left > 0; left -= count) {
        struct hash hashes[BATCH_LEAVES];
        count = left < BATCH_LEAVES ? left : BATCH_LEAVES;
        const uint64_t at = leaf_start(geometry, tree->next_leaf) - first;
        backend->hash_each((const uint8_t *)plane + at * elem_bytes, dtype, geometry,
                           tree->next_leaf, count, hashes);
        for (uint64_t i = 0; i < count; i++) tree_push_leaf(tree, &hashes[i]);
    }
}

/* ==== backend ==== */

/* Selects the host's table of kernels, and checks that a thread may use it. */

_Static_assert(FLT_EVAL_METHOD == 0, "fp32 operations round to fp32, not to x87 registers");

const char *backend_host_isa(uint32_t isa)
{
    static const char *const names[CAIRN_HOST_ISA_COUNT] = { "plain", "avx2", "avx512" };
    assert(isa < CAIRN_HOST_ISA_COUNT);
    return names[isa];
}

const struct backend *backend_host_at(uint32_t isa)
{
    assert(isa < CAIRN_HOST_ISA_COUNT);
#if defined(__x86_64__)
    if (isa == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return &host_avx512;
    if (isa == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &host_avx2;
#endif
    return isa == 0 ? &host_plain : NULL;
}

const struct backend *backend_host(void)
{
    // threads that come here at the same time choose the same table
    static const struct backend *chosen;
    const struct backend *host = __atomic_load_n(&chosen, __ATOMIC_ACQUIRE);
    if (host != NULL) return host;
    const char *wanted = getenv("CAIRN_HOST_ISA");
    for (uint32_t isa = 0; isa < CAIRN_HOST_ISA_COUNT; isa++) {
        const struct backend *at = backend_host_at(isa);
        if (at == NULL) continue;
        host = at;
        if (wanted != NULL && strcmp(wanted, at->isa) == 0) break;
    }
    __atomic_store_n(&chosen, host, __ATOMIC_RELEASE);
    return host;
}

bool wire_dtype_ok(int dtype)
{
    return dtype == CAIRN_F32 || dtype == CAIRN_BF16;
}

bool float_env_ok(void)
{
#if defined(__SSE2__)
    // All exceptions are masked, rounding is to nearest, and subnormals are neither flushed to zero nor
    // read as zero. The low six bits are sticky flags that any operation may have set.
    return (_mm_getcsr() & ~0x3fu) == 0x1f80;
#else
    volatile float least_normal = FLT_MIN;
    return fegetround() == FE_TONEAREST && least_normal / 2 != 0;
#endif
}

/* ==== home ==== */

static uint64_t free_bytes(struct home *home)
{
    (void)home;
    return UINT64_MAX;
}

/* ---- streams ---- */

static struct home host_home;
static struct home_stream the_stream = { .home = &host_home }; // a host stream has no further state

static cairn_status stream_open(struct home *home, struct home_stream **stream_out,
                                struct sentence *why)
{
    (void)home;
    (void)why;
    *stream_out = &the_stream;
    return CAIRN_OK;
}

/* ---- work items ---- */

static void host_fold(const struct backend *host, struct fold_work *w)
{
    host->fold(w->acc, w->sources, w->source_count, w->first, w->elems);
}

static void host_fold_sums(const struct backend *host, struct leaf_fold *w)
{
    if (w->source_count > 0)
        host->fold_leaves(w);
    else
        host->sum_leaves(w->acc, w->geometry, w->first_leaf, w->leaf_count, w->sums);
}

/* Returns elements [at, at + elems) of an update. */
static struct update part_of(const struct update *all, size_t at, size_t elems)
{
    struct update part = *all;
    part.grad += at;
    part.param += at;
    if (part.exp_avg != NULL) part.exp_avg += at;
    if (part.exp_avg_sq != NULL) part.exp_avg_sq += at;
    if (part.ema != NULL) part.ema += at;
    if (part.wire != NULL) part.wire = (uint8_t *)part.wire + at * dtype_size((int)part.wire_dtype);
    part.elems = elems;
    return part;
}

/* Stores a word after everything that the program has stored before, and before everything that it stores
 * later, as this thread sees it: the kernels are in other files, so only the compiler could exchange
 * stores. */
static void store_in_order(uint64_t *at, uint64_t value)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* Brings the planes of a work that was cut off back to where a run ends; else begins the undo of the work.
 * Returns the number of elements that are updated. */
static size_t begin_runs(const struct update_work *work)
{
    struct update_undo *undo = work->undo;
    const size_t at = (size_t)(undo->progress / 2);
    if (undo->stamp != work->stamp || undo->work != work->work) {
        store_in_order(&undo->stamp, 0);
        store_in_order(&undo->progress, 0);
        store_in_order(&undo->work, work->work);
        store_in_order(&undo->stamp, work->stamp);
        return 0;
    }
    assert(at <= work->planes.elems);
    if (undo->progress % 2 == 0) return at;
    assert(undo->elems <= CAIRN_UNDO_ELEMS && undo->elems <= work->planes.elems - at);
    const struct update part = part_of(&work->planes, at, (size_t)undo->elems);
    const size_t bytes = part.elems * sizeof(float);
    memcpy(part.param, undo->param, bytes);
    if (part.exp_avg != NULL) memcpy(part.exp_avg, undo->exp_avg, bytes);
    if (part.exp_avg_sq != NULL) memcpy(part.exp_avg_sq, undo->exp_avg_sq, bytes);
    if (part.ema != NULL) memcpy(part.ema, undo->ema, bytes);
    store_in_order(&undo->progress, 2 * at);
    return at;
}

/* Updates the elements from `at` to `end`. */
static uint64_t update_some(update_fn update, const struct update_work *w, size_t at, size_t end)
{
    struct update part = part_of(&w->planes, at, end - at);
    part.undo = w->undo;
    part.undo_from = at;
    return update(&part, w->scalars);
}

/* ---- checksums ---- */

void check_found_add(struct check_found *found, const uint64_t *check)
{
    const uint32_t i = atomic_fetch_add(&found->count, 1);
    if (i < CAIRN_CHECK_FOUND_MAX) found->at[i] = check;
}

/* Returns how many elements of the update are before the i-th of its leaves. */
static size_t leaf_at(const struct update_checks *checks, uint64_t i)
{
    return (size_t)(leaf_start(checks->geometry, checks->first_leaf + i) -
                    leaf_start(checks->geometry, checks->first_leaf));
}

static uint64_t check_of(const struct update_checks *checks, size_t plane, size_t at, size_t end)
{
    return backend_host()->check((const float *)checks->of[plane].plane + at,
                                 (end - at) * sizeof(float));
}

/* True if a plane of the i-th leaf differs from its checksum. */
static bool leaf_differs(const struct update_checks *checks, uint64_t i, size_t at, size_t end)
{
    bool differs = false;
    for (size_t p = 0; p < CAIRN_PLANE_COUNT && checks->of[p].plane != NULL; p++) {
        const uint64_t *check = &checks->of[p].checks[i];
        if (*check == 0 || *check == check_of(checks, p, at, end)) continue;
        check_found_add(checks->found, check);
        differs = true;
    }
    return differs;
}

static void take_checks(const struct update_checks *checks, uint64_t i, size_t at, size_t end)
{
    for (size_t p = 0; p < CAIRN_PLANE_COUNT && checks->of[p].plane != NULL; p++)
        checks->of[p].checks[i] = checks->takes ? check_of(checks, p, at, end) : 0;
}

/* Updates leaf by leaf, from element `from` on. Returns true if all was updated. */
static bool update_leaves(update_fn update, struct update_work *w, size_t from,
                          uint64_t *nonfinite_out)
{
    const struct update_checks *checks = &w->checks;
    // a leaf that is compared is read before its update, so it comes while the leaf before is updated
    if (checks->of[0].checks[0] != 0) w->planes.ahead_bytes = CAIRN_LEAF_ELEMS * sizeof(float);
    for (uint64_t i = 0; i < checks->leaf_count; i++) {
        const size_t at = leaf_at(checks, i), end = leaf_at(checks, i + 1);
        if (end <= from) continue;
        if (at >= from && leaf_differs(checks, i, at, end)) return false;
        *nonfinite_out += update_some(update, w, at > from ? at : from, end);
        take_checks(checks, i, at, end);
    }
    return true;
}

static void host_update(const struct backend *host, struct update_work *w)
{
    const update_fn update = host->update[w->scalars->optimizer];
    const size_t from = w->undo != NULL ? begin_runs(w) : 0;
    bool is_whole = true;
    *w->nonfinite = 0;
    if (w->checks.of[0].plane != NULL)
        is_whole = update_leaves(update, w, from, w->nonfinite);
    else
        *w->nonfinite = update_some(update, w, from, w->planes.elems);
    if (w->undo != NULL && is_whole) store_in_order(w->ended, w->stamp);
}

static void host_convert(const struct backend *host, struct convert_work *w)
{
    host->convert(w->dst, w->dst_dtype, w->src, w->src_dtype, w->elems);
}

static void host_copy(const struct backend *host, struct copy_work *w)
{
    (void)host;
    memcpy(w->to, w->from, w->bytes);
}

static void host_zero(const struct backend *host, struct zero_work *w)
{
    (void)host;
    memset(w->at, 0, w->bytes);
}

static void host_hash(const struct backend *host, struct hash_work *w)
{
    host->hash_each(w->plane, w->dtype, w->geometry, w->first_leaf, w->leaf_count, w->hashes);
}

static void host_init(const struct backend *host, struct init_work *w)
{
    (void)host;
    init_elems(&w->source, w->first_elem, w->elems, w->out);
}

static void host_runs(const struct backend *host, struct runs_work *w)
{
    (void)host;
    home_copy_runs(w);
}

static void run_one(const struct backend *host, struct home_work *work)
{
    switch (work->kind) {
#define RUN(name, member, type, size) \
    case CAIRN_WORK_##name: host_##member(host, &work->member); break;
        CAIRN_WORKS(RUN)
#undef RUN
    case CAIRN_WORK_KINDS: break;
    }
}

static cairn_status run_begin(struct home_stream *of, struct home_work *works, size_t count,
                              struct sentence *why)
{
    (void)of;
    (void)why;
    const struct backend *host = backend_host();
    for (size_t i = 0; i < count; i++) run_one(host, &works[i]);
    return CAIRN_OK;
}

/* ---- the home ---- */

static const struct home_kind kind = {
    .free_bytes = free_bytes,
    .memory_open = host_memory_open,
    .memory_close = host_memory_close,
    .memory_resize = host_memory_resize,
    .memory_export = host_memory_export,
    .memory_give = host_memory_give,
    .stream_open = stream_open,
    .run_begin = run_begin,
};

static struct home host_home = {
    .kind = &kind,
    .info = { .backend = "host",
              .is_host = true,
              .exports = true,
              .works_best = 1,
              .lists_max = 1,
              .numa_node = CAIRN_NUMA_NONE },
};

static void name_device(void)
{
    snprintf(host_home.info.device, sizeof host_home.info.device, "%s", backend_host()->isa);
}

struct home *home_host(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, name_device);
    return &host_home;
}

/* The interface to the arithmetic on state. The kernels of `host` are the reference. A device has the same
 * kernels, and their results have the same bits.
 *
 * These rules make the bits reproducible. Every operation is in IEEE fp32, or in double where that is
 * stated. The operations run in the order in which they are written. Each rounds once, to nearest even, so
 * no two are contracted into an fma, and subnormals are kept. A kernel works on each element independently,
 * or on each leaf in a fixed order inside the leaf. So the bits are the same however the work is split into
 * ranges of elements (for sums and digests, into ranges of leaves), and on any number of threads. The
 * payloads of NaNs are not guaranteed.
 *
 * For `host`, pointers point to host memory and are aligned to the element. Buffers never overlap unless
 * that is stated. Kernels allocate nothing, take no lock, and touch only the memory that their arguments
 * name. Any thread in which float_env_ok() is true may call them. Arguments are checked only by asserts,
 * because they are computed from a layout, and never received from a peer. */
#ifndef CAIRN_GPU_H
#define CAIRN_GPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/exact.h"
#include "proto/base/machine.h"
#include "proto/base/text.h"
#include "proto/geometry/tensor.h"
#include "proto/snapshot/digest_tree.h"
#include "proto/spec/spec.h"
#include "proto/spec/scalars.h"

/* A received contribution: `elems` elements of one chunk. */
struct fold_source {
    const void *data;  /* [elems] */
    cairn_dtype dtype; /* CAIRN_F32 or CAIRN_BF16 */
};

/* The sums over a shard's part, or over any other range of leaves. To add two such sums, use exact_add for
 * sum_squares, and + for nonfinite. All zero is the sum over no leaf. If a leaf has elements that are not
 * finite, the leaf counts only in nonfinite. */
struct sums {
    struct exact sum_squares;
    uint64_t nonfinite; /* elements that are NaN or infinite */
};

/* A fold of complete leaves, with their sums. The last fold of a chunk is of this kind, because only the
 * result of the last fold is final. */
struct leaf_fold {
    float *acc; /* the first element of first_leaf */
    /* [source_count] at least one; each has the leaves' elements */
    const struct fold_source *sources;
    size_t source_count;
    bool first;
    /* acc will have left the caches before it is read again, so writes may bypass the caches */
    bool far;
    const struct geometry *geometry;
    uint64_t first_leaf, leaf_count;
    struct sums *sums; /* the sums of the leaves are added to *sums */
};

struct update_undo;

/* A run of elements of one tensor to update. */
struct update {
    const float *grad;      /* [elems] the folded sum, not yet scaled */
    float *param;           /* [elems] */
    float *exp_avg;         /* [elems]; NULL if the optimizer has none */
    float *exp_avg_sq;      /* [elems]; NULL if the optimizer has none */
    float *ema;             /* [elems] the average; NULL if the scalars have no ema_weight */
    void *wire;             /* [elems] the copy to publish, in wire_dtype; NULL: no copy */
    cairn_dtype wire_dtype; /* CAIRN_F32 or CAIRN_BF16 */
    size_t elems;
    /* wire will have left the caches before it is read, so writes may bypass the caches */
    bool far;
    size_t
        ahead_bytes; /* how far ahead planes are fetched into the caches; 0: as far as is usual */
    /* Old values go here before they are overwritten, a few at a time; NULL: nowhere. This run's first
     * element is the element undo_from of the work that the undo is of */
    struct update_undo *undo;
    size_t undo_from;
};

/* Returns the number of elements for which a result is not finite. The results are the parameter, the
 * moments that the optimizer keeps, the average, and the wire copy, which in bf16 may be infinite where the
 * parameter is finite. */
typedef uint64_t (*update_fn)(const struct update *update, const struct group_scalars *scalars);

struct backend {
    const char *name; /* "host" */
    /* the instruction set for which its kernels are compiled: "avx512", "avx2", "plain" */
    const char *isa;

    /* The strict left fold acc = ((acc + s0) + s1) + ... over [elems]. `first`: nothing was folded before,
     * so s0 is copied, and the old values in acc are ignored; if there is no source then, acc becomes +0.
     * The bits are the same whether sources are folded in one call or in several. */
    void (*fold)(float *acc, const struct fold_source *sources, size_t source_count, bool first,
                 size_t elems);

    /* Does the work of fold and then of sum_leaves in one pass over memory, with the same bits. */
    void (*fold_leaves)(const struct leaf_fold *leaf_fold);

    /* Adds the sums of the leaves [first_leaf, first_leaf + leaf_count) to *sums. `acc` points to the first
     * element of first_leaf. A leaf has 32 lanes. The square of element i, which is exact in double, is
     * added to lane i mod 32, in the order of i. Then lane k + w is added to lane k, for w = 16, 8, 4, 2,
     * 1. The sums of the leaves are added exactly. */
    void (*sum_leaves)(const float *acc, const struct geometry *geometry, uint64_t first_leaf,
                       uint64_t leaf_count, struct sums *sums);

    /* The update of each optimizer, by enum optimizer_id; [0] is NULL. It updates the planes and writes the
     * wire copy. The comment above each kernel has the order of the operations. */
    update_fn update[CAIRN_OPTIMIZER_COUNT];

    /* Converts between CAIRN_F32 and CAIRN_BF16, or copies if both dtypes are the same. A conversion to
     * bf16 rounds to nearest even, gives infinity at an overflow, and makes every NaN a quiet NaN. */
    void (*convert)(void *dst, cairn_dtype dst_dtype, const void *src, cairn_dtype src_dtype,
                    size_t elems);

    /* Hashes each of the leaves [first_leaf, first_leaf + leaf_count). `plane` points to the first element
     * of first_leaf, in any dtype of proto/geometry/tensor.h. Every NaN is hashed as the quiet NaN with a
     * positive sign and no payload. */
    void (*hash_each)(const void *plane, cairn_dtype dtype, const struct geometry *geometry,
                      uint64_t first_leaf, uint64_t leaf_count, struct hash *hashes_out);

    /* Returns the checksum XXH3-64 of bytes as they lie in memory, but 1 instead of 0. */
    uint64_t (*check)(const void *bytes, size_t byte_count);
};

/* Hashes the next `leaf_count` leaves, from tree->next_leaf on, and pushes the hashes to the tree. `plane`
 * points to the first element of the first of these leaves. */
void backend_hash_leaves(const struct backend *backend, const void *plane, cairn_dtype dtype,
                         const struct geometry *geometry, uint64_t leaf_count,
                         struct hash_tree *tree);

/* Returns the reference for the widest instruction set that this CPU has. If the environment variable
 * CAIRN_HOST_ISA names another set that this CPU has, returns the reference for that set. The variable is
 * for tests that compare instruction sets, and is read once. Static memory. */
const struct backend *backend_host(void);
/* Returns the reference for one instruction set. The sets are numbered from 0, with the widest last, and
 * all give the same bits. NULL: this CPU lacks the set. */
#define CAIRN_HOST_ISA_COUNT 3
const struct backend *backend_host_at(uint32_t isa);
/* Returns the name of the set: "plain", "avx2", "avx512". */
const char *backend_host_isa(uint32_t isa);

/* True if contributions can have this dtype. The wire copies of all tensors except blobs can have the same
 * dtypes. */
bool wire_dtype_ok(int dtype);

/* True if this thread rounds to nearest and keeps subnormals. (On x86: MXCSR is 0x1F80, apart from its
 * sticky flags.) Every compute thread asserts this before its first kernel, because a library that the
 * process loads can change these modes. */
bool float_env_ok(void);

/* ==== homes ==== */

/* A home is the memory that holds planes of a job, with the processor that works on them there. The home
 * `host` is this process's memory and its CPU; a home `cuda` is one card. Code outside gpu/ accesses the
 * memory of a home only by copies and lists of work. Only the memory of a home with `is_host` is also
 * accessed through pointers.
 *
 *   a pool's thread ── home_run(works) ──► host: kernels of gpu.h, at once
 *                                             └──► cuda: copies in ─► kernels ─► copies out ─► event
 *
 * An address in a home is a pointer that only the home may dereference. Where a work item allows "any
 * memory", the address may be in the home or in host memory, and the home tells from the address which one
 * it is. Host memory that a work item names must stay unchanged until the run returns, and must be readable
 * without a fault.
 *
 * Every home gives the bits that this header specifies.
 *
 * Memory that other processes may map is opened by home_memory_open_exportable. Memory of a device cannot
 * be sealed, so any process that imports the memory may map it for writing. So only published copies are
 * opened as exportable, because nothing is ever computed from them. State and staging are never exportable,
 * and no call can export them.
 *
 * Errors: CAIRN_ERR_NO_MEMORY means that the home is full; nothing else is affected. CAIRN_ERR_IO means
 * that the device failed (a launch, an ECC error, a lost device), and `why` names the error and what to do.
 * Then every later call of this home fails with the same message, because the contents of the memory may be
 * wrong. CAIRN_ERR_IO is also returned if the driver refused a call without damage: then only the result of
 * that call is missing, and later calls work. */

struct home;
struct home_stream;

#define CAIRN_HOME_PEERS_MAX 7

struct home_info {
    const char *backend; /* "host", "cuda": static */
    char device[128];    /* "NVIDIA H200, GPU-6f2c..."; the instruction set of `host` */
    char driver[64];     /* "CUDA driver 13.0, image of 13.0"; "" for `host` */
    bool is_host;        /* true: any code of this process may dereference the home's addresses */
    /* A run is fastest with this many work items, if the caller has so many. 1 for `host`, where each
     * thread runs one item. */
    uint32_t works_best;
    /* The most lists of a stream that may be begun and unfinished at the same time; 1 for `host`, which
     * completes a list when it is begun. */
    uint32_t lists_max;
    uint64_t total_bytes; /* all memory of the device; 0 for `host` */
    /* a warning about the device, for the machine's administrator; "": there is none. The cause of the
     * warning does not affect this process */
    char warning[320];
    /* memory in use on the device after it was opened, by the context, its kernels, and other processes */
    uint64_t taken_bytes;
    uint8_t uuid[16]; /* the UUID of the device, or of a slice of a device; all 0 for `host` */
    int numa_node; /* the node nearest to the device (proto/base/machine.h); CAIRN_NUMA_NONE: unknown */
    bool exports;     /* the home can make memory that other processes may map */
    bool is_reached;  /* network cards may access exportable memory directly (GPUDirect RDMA) */
    bool has_dma_buf; /* the driver exports exportable memory to other drivers as a dma-buf */
    /* Other devices of this host, visible to this process, whose memory this device reads directly (NVLink,
     * PCIe) */
    uint8_t peer_uuids[CAIRN_HOME_PEERS_MAX][16];
    uint32_t peer_count;
    /* the bytes of device memory that a stream allocates when it begins, and also the bytes of pinned host
     * memory that it allocates; 0: none */
    uint64_t stream_bytes;
};

/* ---- a home; any thread opens and closes it, after all other threads have stopped using it ---- */

/* Returns the CPU's home, in static memory. Never fails; closing this home does nothing. */
struct home *home_host(void);
/* Opens a card. `device` is the card's number among the cards that this process sees, or its UUID
 * ("GPU-...", "MIG-..."), or NULL for the first card. CAIRN_ERR_NOT_FOUND: there is no driver, or no such
 * device. CAIRN_ERR_UNSUPPORTED: the driver is older than the image, or this daemon was built without
 * kernels. CAIRN_ERR_NO_MEMORY. `why` has the reason, and says what to do. */
CAIRN_MUST_CHECK cairn_status home_open_cuda(const char *device, struct home **home_out,
                                             struct sentence *why);
void home_close(struct home *home);
const struct home_info *home_info(const struct home *home);
/* Returns the bytes of the device's memory that no process uses now; UINT64_MAX for `host`. */
uint64_t home_free_bytes(struct home *home);
/* True if the device failed. Then the contents of its memory may be wrong, and every call fails. `host`
 * never fails. Any thread. */
bool home_has_failed(struct home *home);
/* Returns the error message that every call returns after a failure; NULL if there was no failure. The
 * message is valid while the home is open. Any thread. */
const char *home_failure(struct home *home);
/* Counts of a home's work since it was opened; all 0 for `host`. Any thread. */
struct home_use {
    /* runs: lists of work; launches: kernels that were launched for these lists */
    uint64_t runs, launches;
    /* bytes_in: copied to the device; bytes_out: copied from the device */
    uint64_t bytes_in, bytes_out;
    /* host memory that is pinned now, without the memory of streams */
    uint64_t pinned_bytes;
    /* bytes that could not be pinned as requested, so copies of them are slower */
    uint64_t unpinned_bytes;
};
struct home_use home_use(struct home *home);

/* ---- memory of a home ---- */

/* Memory consists of contiguous segments of CAIRN_SEGMENT_BYTES; the last segment may be shorter. */
struct home_memory {
    struct home *home; /* borrowed */
    void *base;        /* an address in the home, at a multiple of 512; NULL if bytes is 0 */
    uint64_t bytes;
    uint64_t room_bytes; /* the number of addresses reserved from base on; 0: as many as `bytes` */
    bool is_exportable;
    struct home_segment *segments; /* owned; only the home knows this struct */
};

/* Opens memory of a home, which is zeroed. Any thread. CAIRN_ERR_NO_MEMORY: `why` has the requested and the
 * free bytes. */
CAIRN_MUST_CHECK cairn_status home_memory_open(struct home *home, const char *label, uint64_t bytes,
                                               struct home_memory *memory_out,
                                               struct sentence *why);
/* Opens memory that other processes may map: for published copies, never for state. CAIRN_ERR_UNSUPPORTED:
 * the home does not export (home_info). */
CAIRN_MUST_CHECK cairn_status home_memory_open_exportable(struct home *home, const char *label,
                                                          uint64_t bytes,
                                                          struct home_memory *memory_out,
                                                          struct sentence *why);
/* Opens memory of `host`, with addresses for room_bytes, so that home_memory_resize can later grow the
 * memory to room_bytes. */
CAIRN_MUST_CHECK cairn_status home_memory_open_room(const char *label, uint64_t bytes,
                                                    uint64_t room_bytes, bool is_exportable,
                                                    struct home_memory *memory_out,
                                                    struct sentence *why);
/* Opens memory of `host` as home_memory_open_room does, for state (not exportable), out of the segments of a
 * process that has ended: fds[i] is what home_memory_fd returned for segment i. The contents are as that
 * process left them. Takes over the descriptors, even on failure. CAIRN_ERR_IO: a segment is too small, or is
 * no memory. */
CAIRN_MUST_CHECK cairn_status home_memory_adopt(const char *label, const int *fds, uint64_t bytes,
                                                uint64_t room_bytes, struct home_memory *memory_out,
                                                struct sentence *why);
/* Returns the descriptor of a segment of `host`'s memory, which stays the memory's; -1: it was given back. */
int home_memory_fd(const struct home_memory *memory, uint64_t segment);
/* Changes the size of memory that was opened with room, to at most room_bytes. The remaining segments keep
 * their contents. If the memory is exportable, its last segment keeps all its pages, because a segment that
 * other processes have mapped cannot change its size. No work item may use the memory meanwhile.
 * CAIRN_ERR_NO_MEMORY: the size is unchanged, but segments that the call had already removed are now 0. Any
 * thread. */
CAIRN_MUST_CHECK cairn_status home_memory_resize(struct home_memory *memory, const char *label,
                                                 uint64_t bytes, struct sentence *why);
/* Returns the number of segments; segment i begins at base + i * CAIRN_SEGMENT_BYTES. */
uint64_t home_memory_segments(const struct home_memory *memory);
/* Returns a descriptor of one segment of exportable memory, which another process can import, and the size
 * of the exported segment, which may be up to a page of the device larger than the memory's segment. The
 * caller closes the descriptor, because the segment's memory is not freed while the descriptor is open. Any
 * thread. CAIRN_ERR_UNSUPPORTED: the memory is not exportable. CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status home_memory_export(const struct home_memory *memory, uint64_t segment,
                                                 int *fd_out, uint64_t *bytes_out,
                                                 struct sentence *why);
/* Gives one segment back to the system; the rest of the memory stays open. Work items must not use the
 * segment any more. Its addresses are not used for anything else. Processes that have mapped the segment
 * keep it. May be called again. Any thread. */
void home_memory_give(struct home_memory *memory, uint64_t segment);
/* Closes the memory, which work items must not use any more. May be called again, and for a struct that is
 * all zero. */
void home_memory_close(struct home_memory *memory);

/* ---- memory of the device, or of one of its peers, that another process owns ----
 *
 * The owner exported the memory as a descriptor (VMM, POSIX). The import closes the descriptor, even if the
 * import fails. The memory is mapped for reading, at an address of the home, so that work items can read it
 * in place. The memory stays readable until it is released, even when its owner has ended. An import that
 * fails changes nothing. One thread makes all of these calls. CAIRN_ERR_REFUSED: the memory is on neither
 * this device nor a peer, or the size is impossible. CAIRN_ERR_NO_MEMORY: memory or addresses are lacking,
 * or the imports would exceed the memory of the devices. CAIRN_ERR_IO: the driver refuses the memory, or
 * the device failed before. CAIRN_ERR_UNSUPPORTED: the home is `host`. After an error the owner's data must
 * pass through the host. */
CAIRN_MUST_CHECK cairn_status home_import(struct home *home, int fd, uint64_t bytes,
                                          const void **address_out, struct sentence *why);
/* Releases an import, whose addresses work items must not name any more. */
void home_import_release(struct home *home, const void *address, uint64_t bytes);

/* Pins host memory from or to which data is copied repeatedly. Such copies are faster, and can run at the
 * same time as kernels. The bytes must be complete pages; some of these pages may be pinned already. The
 * caller may log a failure and go on, because copies stay correct. Does nothing for `host`. Any thread;
 * slow, because the system looks up each page. */
CAIRN_MUST_CHECK cairn_status home_pin(struct home *home, void *host, uint64_t bytes,
                                       struct sentence *why);
/* Unpins every page of these bytes. Call this before the memory, or some of its pages, are given back to
 * the system. No copy may be using these bytes, or bytes that were pinned together with these. */
void home_unpin(struct home *home, void *host, uint64_t bytes);

/* ---- work ---- */

/* Planes are in the home. All other memory is host memory, unless a comment says "any memory". */

struct fold_work {
    float *acc;                        /* [elems] */
    const struct fold_source *sources; /* [source_count]; `data` of each: any memory */
    size_t source_count;
    bool first;
    size_t elems;
};

/* An update that the death of the process may cut off anywhere, and that another process ends. The planes,
 * this struct and *ended lie in memory that outlives the process.
 *
 * The elements are updated in runs of at most CAIRN_UNDO_ELEMS. Before a run changes anything, its old
 * values are copied here. A process dies between two instructions, and what it has stored until then is in
 * memory: so only the order of the stores matters, not when other processors see them.
 *
 * The kernel makes a run of each few vectors, in the loop that updates them: an update of 64 million elements
 * by AdamW, on one thread of an AMD EPYC, takes 7 to 9 % longer than without an undo. With a loop of its own
 * for the copies, however long its runs, memory waited for the kernel in between (30 %), and where stores
 * bypass the caches, each run waited for them (80 %). */
#define CAIRN_UNDO_ELEMS ((size_t)256)
struct update_undo {
    uint64_t stamp; /* of the update whose work is or was the last here */
    uint64_t work;  /* the caller's number of that work */
    /* 2 x the elements that are updated, + 1 while the next run may be half updated; its old values are
     * below then */
    uint64_t progress;
    uint64_t elems; /* of that run, which may be shorter than CAIRN_UNDO_ELEMS */
    uint64_t unused[4];
    float param[CAIRN_UNDO_ELEMS], exp_avg[CAIRN_UNDO_ELEMS], exp_avg_sq[CAIRN_UNDO_ELEMS];
    float ema[CAIRN_UNDO_ELEMS];
};

/* Leaves that differ from their checksums. Several threads add to it. */
#define CAIRN_CHECK_FOUND_MAX 16
struct check_found {
    _Atomic uint32_t count;                    /* of all that were found */
    const uint64_t *at[CAIRN_CHECK_FOUND_MAX]; /* the checksums of the first of them */
};
/* Adds the leaf of this checksum. Any thread. */
void check_found_add(struct check_found *found, const uint64_t *check);

/* The checksums of the leaves that an update goes over, only for the home `host`. They are compared and made
 * while a leaf is in the nearest caches. A checksum of 0 is not known. */
struct update_checks {
    const struct geometry *geometry;
    uint64_t first_leaf, leaf_count; /* of the tensor; they have the update's elements */
    /* The planes that the update writes, up to the first whose `plane` is NULL. */
    struct {
        const void *plane; /* [elems] f32: the first element of first_leaf */
        uint64_t *checks;  /* [leaf_count] */
    } of[CAIRN_PLANE_COUNT];
    /* A leaf whose checksums are known is compared with them before it is updated. If it differs, it is added
     * to *found, and neither that leaf nor the leaves after it are updated. */
    struct check_found *found;
    bool takes; /* the leaf gets new checksums; else they are not known from then on */
};

struct update_work {
    struct update planes; /* the planes are in the home; wire: any memory */
    const struct group_scalars *scalars;
    uint64_t *nonfinite;         /* the run sets it to the number that update_fn returns */
    struct update_checks checks; /* of[0].plane is NULL: no checksums are kept */
    /* Only for the home `host`; NULL: the update need not outlive the process. One work at a time uses an
     * undo; `stamp` (not 0) and `work` go into it. When all is updated, *ended becomes `stamp`. If the undo
     * has the same stamp and work already, a process died in this work, which is then continued. */
    struct update_undo *undo;
    uint64_t *ended;
    uint64_t stamp, work;
};

struct convert_work {
    void *dst; /* any memory */
    const void *src;
    cairn_dtype dst_dtype, src_dtype;
    size_t elems;
};

/* From any memory to any memory; the two do not overlap. */
struct copy_work {
    void *to;
    const void *from;
    size_t bytes;
};

struct zero_work {
    void *at;
    size_t bytes;
};

struct hash_work {
    const void *plane; /* the first element of first_leaf */
    cairn_dtype dtype;
    const struct geometry *geometry;
    uint64_t first_leaf, leaf_count;
    struct hash *hashes; /* [leaf_count] */
};

struct init_work {
    float *out; /* [elems] */
    struct init_source source;
    uint64_t first_elem; /* the index of out[0] in the tensor */
    size_t elems;
};

/* Copies runs of bytes at constant distances, to pack or unpack a box of a plane. */
struct runs_work {
    /* any memory. If one of `to` and `from` is on a device and the other is not, the runs on the host's
     * side are packed */
    void *to;
    const void *from;
    size_t run_bytes;
    /* strides in bytes; packed runs have the stride run_bytes */
    uint64_t run_count, to_stride, from_stride;
};

/* The kinds of work: the name, the member of struct home_work and its struct, and the size of `w`, such a
 * struct, by which a device cuts the work into parts. Each home has a function for each row: host_<member>
 * in gpu/host/home.c, add_<member> in gpu/cuda/run.c. */
#define CAIRN_WORKS(X)                                                                              \
    X(FOLD, fold, struct fold_work, w->elems) /* backend.fold */                                    \
    /* .fold_leaves; if there is no source, .sum_leaves. acc is in the home; sources: any memory */ \
    X(FOLD_SUMS, fold_sums, struct leaf_fold, w->leaf_count)                                        \
    X(UPDATE, update, struct update_work, w->planes.elems) /* .update */                            \
    X(CONVERT, convert, struct convert_work, w->elems)     /* .convert */                           \
    X(COPY, copy, struct copy_work, w->bytes)                                                       \
    X(ZERO, zero, struct zero_work, w->bytes)                                                       \
    X(HASH, hash, struct hash_work, w->leaf_count) /* the leaf hashes of .hash_each */              \
    X(INIT, init, struct init_work, w->elems)      /* init_elems */                                 \
    X(RUNS, runs, struct runs_work, w->run_count * w->run_bytes)

enum work_kind {
#define CAIRN_WORK_KIND(name, member, type, size) CAIRN_WORK_##name,
    CAIRN_WORKS(CAIRN_WORK_KIND)
#undef CAIRN_WORK_KIND
        CAIRN_WORK_KINDS
};

struct home_work {
    enum work_kind kind;
    union {
#define CAIRN_WORK_MEMBER(name, member, type, size) type member;
        CAIRN_WORKS(CAIRN_WORK_MEMBER)
#undef CAIRN_WORK_MEMBER
    };
};

/* A stream runs lists of work. One thread at a time uses it. Several streams of a home run concurrently,
 * and only the return of a run puts their work in order. */
CAIRN_MUST_CHECK cairn_status home_stream_open(struct home *home, struct home_stream **stream_out,
                                               struct sentence *why);
void home_stream_close(struct home_stream *stream);
/* Allocates now the memory that the first run would allocate (home_info.stream_bytes), so that no run can
 * fail because this memory is lacking. May be called again. CAIRN_ERR_NO_MEMORY: the home or the host is
 * full, and a later call may succeed. CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status home_stream_begin(struct home_stream *stream, struct sentence *why);
/* Runs all work items of a list, in any order and concurrently. So no two items of the list may touch the
 * same elements, unless both only read them. Returns when all items are done, and their results for the
 * host are in host memory. If the status is not OK, none of the results may be used. */
CAIRN_MUST_CHECK cairn_status home_run(struct home_stream *stream, struct home_work *works,
                                       size_t count, struct sentence *why);
/* Begins a list, as the first half of home_run, so that a device can get the next list before the caller
 * waits for the previous one. `count` is not 0. The work items, and everything that they name, must stay
 * unchanged until the list is finished. The items of two lists that run at the same time must not touch the
 * same elements either, unless both only read them. If the status is not OK, no part of this list is
 * running, and the caller must not finish it; the previous list is not affected. */
CAIRN_MUST_CHECK cairn_status home_run_begin(struct home_stream *stream, struct home_work *works,
                                             size_t count, struct sentence *why);
/* Finishes the oldest list that is not finished, as the second half of home_run. */
CAIRN_MUST_CHECK cairn_status home_run_finish(struct home_stream *stream, struct sentence *why);

#endif

/* The interface to arithmetic on state. The kernels of `host` are the reference; a device plugin implements
 * the same kernels with bit-identical results.
 *
 * Rules that make the bits reproducible: every operation is IEEE fp32 (or double where stated), in the
 * written order, rounded once (no contraction into fma), to nearest even, with subnormals preserved. A
 * kernel works on each element independently, or on each leaf with a fixed order inside the leaf. So any
 * split of the work into ranges of elements (or of leaves, for sums and digests), on any number of threads,
 * gives the same bits. NaN payloads are not guaranteed.
 *
 * For `host`, pointers are to host memory and aligned to the element; buffers never overlap unless stated.
 * Kernels allocate nothing, take no lock and touch only the memory in their arguments; call them from any
 * thread whose float_env_ok() holds. Arguments are checked by asserts only, because they are computed from
 * a layout and never received from a peer. */
#ifndef CAIRN_GPU_H
#define CAIRN_GPU_H

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

/* A received contribution: elems elements of one chunk. */
struct fold_source {
    const void *data;  /* [elems] */
    cairn_dtype dtype; /* CAIRN_F32 or CAIRN_BF16 */
};

/* The sums of a shard's part, or of any other range of leaves. To combine two of them use exact_add for the
 * squares and + for the count. All zero is the empty sum. A leaf that has a non-finite element is added to
 * nonfinite only. */
struct sums {
    struct exact sum_squares;
    uint64_t nonfinite; /* elements that are NaN or infinite */
};

/* A fold of complete leaves, with their sums. A chunk's last fold is of this kind, because only the last
 * fold's result is final. */
struct leaf_fold {
    float *acc;                        /* the first element of first_leaf */
    const struct fold_source *sources; /* [source_count], at least one, of the leaves' elements */
    size_t source_count;
    bool first;
    /* acc is evicted from the caches before it is read again, so writes may bypass the caches */
    bool far;
    const struct geometry *geometry;
    uint64_t first_leaf, leaf_count;
    struct sums *sums; /* the leaves are added to it */
};

/* A run of elements of one tensor to update. */
struct update {
    const float *grad;      /* [elems] the folded sum, not yet scaled */
    float *param;           /* [elems] */
    float *exp_avg;         /* [elems]; NULL where the optimizer does not keep it */
    float *exp_avg_sq;      /* [elems]; NULL where the optimizer does not keep it */
    void *wire;             /* [elems] the copy to publish, in wire_dtype; NULL: none */
    cairn_dtype wire_dtype; /* CAIRN_F32 or CAIRN_BF16 */
    size_t elems;
    /* wire is evicted from the caches before it is read, so writes may bypass the caches */
    bool far;
};

/* Returns the number of elements with a non-finite result: in the parameter, in a moment that the optimizer
 * keeps, or in the wire copy, which in bf16 may be infinite where the parameter is not. */
typedef uint64_t (*update_fn)(const struct update *update, const struct group_scalars *scalars);

struct backend {
    const char *name; /* "host" */
    const char *isa;  /* what its kernels are compiled for: "avx512", "avx2", "plain" */

    /* The strict left fold acc = ((acc + s0) + s1) + ... over [elems]. With `first`, nothing was folded
     * before: s0 is copied and acc's old value is ignored; without a source, acc becomes +0. Sources folded
     * in one call or in several give the same bits. */
    void (*fold)(float *acc, const struct fold_source *sources, size_t source_count, bool first,
                 size_t elems);

    /* fold and sum_leaves in one pass over memory, with the bits of both. */
    void (*fold_leaves)(const struct leaf_fold *leaf_fold);

    /* Adds the leaves [first_leaf, first_leaf + leaf_count) to *sums. acc: the first element of
     * first_leaf. Within a leaf the square of element i, which is exact in double, is added to lane
     * i mod 32, in order of i; then lane k += lane k + w for w = 16, 8, 4, 2, 1. The leaves' sums
     * are added exactly. */
    void (*sum_leaves)(const float *acc, const struct geometry *geometry, uint64_t first_leaf,
                       uint64_t leaf_count, struct sums *sums);

    /* The update of each optimizer, by enum optimizer_id ([0] is NULL): updates the planes
     * and writes the wire copy. The order of operations is written above each kernel. */
    update_fn update[CAIRN_OPTIMIZER_COUNT];

    /* Converts between CAIRN_F32 and CAIRN_BF16, or copies if both dtypes are the same. To bf16 it rounds
     * to nearest even, overflow gives infinity, and NaN becomes a quiet NaN. */
    void (*convert)(void *dst, cairn_dtype dst_dtype, const void *src, cairn_dtype src_dtype,
                    size_t elems);

    /* The hashes of the leaves [first_leaf, first_leaf + leaf_count). plane: the first element of
     * first_leaf, in any dtype of proto/geometry/tensor.h. NaN is hashed as the quiet NaN with a positive
     * sign and no payload. */
    void (*hash_each)(const void *plane, cairn_dtype dtype, const struct geometry *geometry,
                      uint64_t first_leaf, uint64_t leaf_count, struct hash *hashes_out);
};

/* Pushes the hashes of the leaves [tree->next_leaf, + leaf_count) to the tree; plane as for hash_each. */
void backend_hash_leaves(const struct backend *backend, const void *plane, cairn_dtype dtype,
                         const struct geometry *geometry, uint64_t leaf_count,
                         struct hash_tree *tree);

/* Returns the reference for the widest instruction set that this CPU has, or for the set that the
 * environment variable CAIRN_HOST_ISA names, if this CPU has that set. The variable is read once; it exists
 * for tests that compare instruction sets. Static memory. */
const struct backend *backend_host(void);
/* Returns the reference for one instruction set, numbered from 0, the widest last; all sets give the same
 * bits. NULL: this CPU lacks the set. */
#define CAIRN_HOST_ISA_COUNT 3
const struct backend *backend_host_at(uint32_t isa);
/* "plain", "avx2", "avx512" */
const char *backend_host_isa(uint32_t isa);

/* True if contributions can have this dtype, and so can the wire copy of every tensor that is not a
 * blob. */
bool wire_dtype_ok(int dtype);

/* True if this thread rounds to nearest and keeps subnormals (x86: MXCSR is 0x1F80, apart from its sticky
 * flags). Every compute thread asserts this before its first kernel, because a library that a process loads
 * can change these modes. */
bool float_env_ok(void);

/* ==== homes ==== */

/* A home: the memory that holds planes of a job, and the processor that works on them there. `host` is this
 * process's memory and its CPU; `cuda` is one card. Code outside gpu/ accesses a home's memory only by
 * copies and lists of work; only the memory of a home with `is_host` is also accessed through pointers.
 *
 *   a pool's thread ── home_run(works) ──► host: kernels of gpu.h, at once
 *                                             └──► cuda: copies in ─► kernels ─► copies out ─► event
 *
 * An address in a home is a pointer that only the home may dereference. Where a work item allows "any
 * memory", the address may be in the home or in host memory; the home tells from the address which memory
 * is meant. Host memory that a work item names must stay unchanged until the run returns, and be readable
 * without a fault.
 *
 * Every home gives the bits that this header specifies.
 *
 * Memory that other processes may map is opened by home_memory_open_exportable. Memory of a device has no
 * seals: any process that imports the memory may map it writable. So only published copies are opened as
 * exportable, since nothing is ever computed from a published copy. State and staging are never exportable,
 * and no call can export state or staging.
 *
 * Errors: CAIRN_ERR_NO_MEMORY (the home is full; nothing else is affected), CAIRN_ERR_IO (the device
 * failed: a launch, an ECC error, a lost device; `why` names the error and what to do. Every later call of
 * this home fails with the same message, since the memory's contents are suspect. CAIRN_ERR_IO is also
 * returned if the driver refused a call without damage: then only the result of that call is missing, and
 * later calls work). */

struct home;
struct home_stream;

#define CAIRN_HOME_PEERS_MAX 7

struct home_info {
    const char *backend; /* "host", "cuda": static */
    char device[128];    /* "NVIDIA H200, GPU-6f2c..."; the instruction set of `host` */
    char driver[64];     /* "CUDA driver 13.0, image of 13.0"; "" for `host` */
    bool is_host;        /* any code of this process may dereference the home's addresses */
    /* The number of work items per run that is fastest, if the caller has so many items. 1 for `host`,
     * where each thread runs one item. */
    uint32_t works_best;
    /* The most lists of a stream that may be begun and unfinished at the same time; 1 for `host`, which
     * completes a list when it is begun. */
    uint32_t lists_max;
    uint64_t total_bytes; /* of the device; 0 for `host` */
    /* a warning about the device for the machine's administrator, without an effect on this process; "":
     * none */
    char warning[320];
    /* in use on the device when it was opened: by the context, its kernels, other processes */
    uint64_t taken_bytes;
    uint8_t uuid[16]; /* of the device, or of the slice of one; all 0 for `host` */
    int numa_node; /* the node nearest to the device (proto/base/machine.h); CAIRN_NUMA_NONE: unknown */
    bool exports;     /* the home supports memory that other processes may map */
    bool is_reached;  /* network cards may access exportable memory directly (GPUDirect RDMA) */
    bool has_dma_buf; /* the driver exports such memory to other drivers as a dma-buf */
    /* Other devices of this host whose memory this device reads directly (NVLink, PCIe), if this process
     * sees these devices */
    uint8_t peer_uuids[CAIRN_HOME_PEERS_MAX][16];
    uint32_t peer_count;
    /* allocated by a stream when it begins: this much on the device, and as much pinned host memory; 0:
     * none */
    uint64_t stream_bytes;
};

/* ---- a home; any thread opens and closes it, after all other threads have stopped using it ---- */

/* Returns the CPU's home, in static memory. Never fails; closing this home does nothing. */
struct home *home_host(void);
/* Opens a card. device: the card's number among the cards that this process sees, or its UUID ("GPU-...",
 * "MIG-..."); NULL means the first card. CAIRN_ERR_NOT_FOUND: no driver, or no such device;
 * CAIRN_ERR_UNSUPPORTED: the driver is older than the image, or this daemon was built without kernels;
 * CAIRN_ERR_NO_MEMORY. `why` has the reason, and what to do. */
CAIRN_MUST_CHECK cairn_status home_open_cuda(const char *device, struct home **home_out,
                                             struct sentence *why);
void home_close(struct home *home);
const struct home_info *home_info(const struct home *home);
/* Returns the bytes of the device that no process uses now; UINT64_MAX for `host`. */
uint64_t home_free_bytes(struct home *home);
/* True if the device failed: its memory's contents are suspect, and every call fails. `host`: never. Any
 * thread. */
bool home_has_failed(struct home *home);
/* Returns the error message of every call after a failure, valid while the home is open; else NULL. Any
 * thread. */
const char *home_failure(struct home *home);
/* Counts of a home's work since it was opened; all 0 for `host`. Any thread. */
struct home_use {
    uint64_t runs, launches;      /* lists of work; kernels that were launched for them */
    uint64_t bytes_in, bytes_out; /* copied to the device; copied from the device */
    uint64_t pinned_bytes;        /* of the host, now; without those of streams */
    uint64_t unpinned_bytes;      /* could not be pinned as requested, so their copies are slower */
};
struct home_use home_use(struct home *home);

/* ---- memory of a home ---- */

/* Memory consists of contiguous segments of CAIRN_SEGMENT_BYTES; the last segment may be shorter. */
struct home_memory {
    struct home *home; /* borrowed */
    void *base;        /* an address in the home, at a multiple of 512; NULL if bytes is 0 */
    uint64_t bytes;
    uint64_t room_bytes; /* addresses reserved from base on; 0: as many as bytes */
    bool is_exportable;
    struct home_segment *segments; /* owned: the home's */
};

/* Opens memory of a home, zeroed. Any thread. CAIRN_ERR_NO_MEMORY: `why` has the requested and the free
 * bytes. */
CAIRN_MUST_CHECK cairn_status home_memory_open(struct home *home, const char *label, uint64_t bytes,
                                               struct home_memory *memory_out,
                                               struct sentence *why);
/* Opens memory that other processes may map: for published copies, never for state. CAIRN_ERR_UNSUPPORTED:
 * the home does not export (home_info). */
CAIRN_MUST_CHECK cairn_status home_memory_open_exportable(struct home *home, const char *label,
                                                          uint64_t bytes,
                                                          struct home_memory *memory_out,
                                                          struct sentence *why);
/* Opens memory of `host` with addresses for room_bytes, so that home_memory_resize can later grow it to at
 * most room_bytes. */
CAIRN_MUST_CHECK cairn_status home_memory_open_room(const char *label, uint64_t bytes,
                                                    uint64_t room_bytes, bool is_exportable,
                                                    struct home_memory *memory_out,
                                                    struct sentence *why);
/* Changes the size of memory that was opened with room, to at most room_bytes. The remaining segments keep
 * their contents. If the memory is exportable, its last segment keeps the pages that it had before, since a
 * segment that others have mapped cannot change its size. No work item may use the memory meanwhile.
 * CAIRN_ERR_NO_MEMORY: the size is unchanged, but the contents of segments that the call had to remove are
 * now 0. Any thread. */
CAIRN_MUST_CHECK cairn_status home_memory_resize(struct home_memory *memory, const char *label,
                                                 uint64_t bytes, struct sentence *why);
/* Returns the number of segments; segment i begins at base + i * CAIRN_SEGMENT_BYTES. */
uint64_t home_memory_segments(const struct home_memory *memory);
/* Returns a descriptor of one segment of exportable memory, for another process to import. Also returns the
 * size of the exported segment: up to one page of the device more than the memory has. The caller closes
 * the descriptor: while it is open, the segment's memory cannot be freed. Any thread.
 * CAIRN_ERR_UNSUPPORTED: the memory is not exportable; CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status home_memory_export(const struct home_memory *memory, uint64_t segment,
                                                 int *fd_out, uint64_t *bytes_out,
                                                 struct sentence *why);
/* Returns one segment to the system while the rest stays open. Work items must not use the segment any
 * more, and its addresses stay unused. Processes that have mapped the segment keep it. Safe to call again.
 * Any thread. */
void home_memory_give(struct home_memory *memory, uint64_t segment);
/* Closes the memory; work items must not use it any more. Safe to call again, and for an all-zero
 * struct. */
void home_memory_close(struct home_memory *memory);

/* ---- memory of the device, or of one of its peers, that another process owns ----
 *
 * The owner exported the memory as a descriptor (VMM, POSIX). The import consumes the descriptor, even if
 * the import fails. The memory is mapped for reading, at an address of the home, so that work items can
 * read it in place. It stays readable until it is released, even when its owner has ended. A refused import
 * changes nothing. One thread makes all of these calls. CAIRN_ERR_REFUSED: the memory is on neither this
 * device nor a peer, or the size is impossible; CAIRN_ERR_NO_MEMORY, also if the imports would exceed the
 * memory of the devices; CAIRN_ERR_IO: the driver refuses the memory, or the device failed before; the
 * owner's data must then pass through the host; CAIRN_ERR_UNSUPPORTED: `host`. */
CAIRN_MUST_CHECK cairn_status home_import(struct home *home, int fd, uint64_t bytes,
                                          const void **address_out, struct sentence *why);
/* Releases an import; work items must not name its addresses any more. */
void home_import_release(struct home *home, const void *address, uint64_t bytes);

/* Pins host memory that is copied from or to repeatedly: its copies become faster, and can overlap kernels.
 * The bytes must be complete pages; some of these pages may be pinned already. The caller may log a failure
 * and continue, because copies stay correct. Does nothing for `host`. Any thread; slow, as pages are looked
 * up one by one. */
CAIRN_MUST_CHECK cairn_status home_pin(struct home *home, void *host, uint64_t bytes,
                                       struct sentence *why);
/* Unpins every page of these bytes. Call this before the memory, or its pages, are returned to the system.
 * No copy may be using these bytes, or bytes that were pinned together with them. */
void home_unpin(struct home *home, void *host, uint64_t bytes);

/* ---- work ---- */

enum work_kind {
    CAIRN_WORK_FOLD,      /* backend.fold */
    CAIRN_WORK_FOLD_SUMS, /* .fold_leaves; without a source .sum_leaves */
    CAIRN_WORK_UPDATE,    /* .update */
    CAIRN_WORK_CONVERT,   /* .convert */
    CAIRN_WORK_COPY,      /* bytes from any memory to any memory that do not overlap */
    CAIRN_WORK_ZERO,
    CAIRN_WORK_HASH, /* the leaf hashes of .hash_each */
    CAIRN_WORK_INIT, /* init_elems */
    CAIRN_WORK_RUNS, /* bytes in runs at constant distances: packs or unpacks a box of a plane */
    CAIRN_WORK_KINDS
};

/* Planes are in the home. Everything else is in host memory, unless its comment says "any memory". */
struct home_work {
    enum work_kind kind;
    union {
        struct {
            float *acc;                        /* [elems] */
            const struct fold_source *sources; /* [source_count]; their data: any memory */
            size_t source_count;
            bool first;
            size_t elems;
        } fold;
        struct leaf_fold fold_sums; /* acc in the home; the data of sources: any memory */
        struct {
            struct update planes; /* in the home; wire: any memory */
            const struct group_scalars *scalars;
            uint64_t *nonfinite; /* set by the run: what update_fn returns */
        } update;
        struct {
            void *dst; /* any memory */
            const void *src;
            cairn_dtype dst_dtype, src_dtype;
            size_t elems;
        } convert;
        struct {
            void *to;
            const void *from;
            size_t bytes;
        } copy;
        struct {
            void *at;
            size_t bytes;
        } zero;
        struct {
            const void *plane; /* the first element of first_leaf */
            cairn_dtype dtype;
            const struct geometry *geometry;
            uint64_t first_leaf, leaf_count;
            struct hash *hashes; /* [leaf_count] */
        } hash;
        struct {
            float *out; /* [elems] */
            struct init_source source;
            uint64_t first_elem; /* of the tensor */
            size_t elems;
        } init;
        struct {
            /* any memory; if only one of `to` and `from` is on a device, the host's side is packed */
            void *to;
            const void *from;
            size_t run_bytes;
            uint64_t run_count, to_stride, from_stride; /* bytes; packed: run_bytes */
        } runs;
    };
};

/* A stream runs lists; one thread uses it at a time. Several streams of a home run concurrently, and only
 * the return of a run orders them. */
CAIRN_MUST_CHECK cairn_status home_stream_open(struct home *home, struct home_stream **stream_out,
                                               struct sentence *why);
void home_stream_close(struct home_stream *stream);
/* Allocates now the memory that the first run would allocate (home_info.stream_bytes), so that no run can
 * fail for lack of this memory. Safe to call again. CAIRN_ERR_NO_MEMORY: the home or the host is full; a
 * later call may succeed. CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status home_stream_begin(struct home_stream *stream, struct sentence *why);
/* Runs all work items, in any order and concurrently, so no two items of one list may touch the same
 * elements, unless both only read. Returns when all items are done and their results for the host are in
 * host memory. If the status is not OK, none of their results may be used. */
CAIRN_MUST_CHECK cairn_status home_run(struct home_stream *stream, struct home_work *works,
                                       size_t count, struct sentence *why);
/* Splits home_run in two, so that a device receives the next list before the caller waits for the previous
 * list. count: not 0. The work items, and everything that they name, must stay unchanged until the list is
 * finished; the work items of two concurrent lists must not touch common elements either, unless both only
 * read. If the status is not OK, no part of this list is running, and the caller must not finish this list;
 * the previous list is not affected. */
CAIRN_MUST_CHECK cairn_status home_run_begin(struct home_stream *stream, struct home_work *works,
                                             size_t count, struct sentence *why);
/* Finishes the oldest unfinished list, and returns like home_run. */
CAIRN_MUST_CHECK cairn_status home_run_finish(struct home_stream *stream, struct sentence *why);

#endif

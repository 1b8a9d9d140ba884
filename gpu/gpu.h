/* The door to arithmetic on state: kernels that `host` has as the reference, and that a device plugin
 * gives with the same bits.
 *
 * How the bits are kept: every operation is IEEE fp32 (or double where it says so), in the order that
 * is written, rounds once (no contraction into fma), round to nearest even, subnormals kept. A kernel
 * works on elements independently, or by leaf with a fixed order inside the leaf, so any split of the
 * work into ranges of elements (leaves for sums and digests), on any number of threads, gives the same
 * bits. NaN payloads are not promised.
 *
 * Pointers are to host memory for `host`, aligned to the element, and never overlap unless it says so.
 * Kernels allocate nothing, take no lock, touch only what they are given; call them from any thread
 * whose float_env_ok() holds. Arguments are checked by asserts: they come from a layout, never
 * from a peer. */
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

/* A landed contribution: elems elements of one chunk. */
struct fold_source {
    const void *data;  /* [elems] */
    cairn_dtype dtype; /* CAIRN_F32 or CAIRN_BF16 */
};

/* The sums of a shard's part, or of any part: add them up with exact_add and +. All zero is the
 * sum of nothing. A leaf that has a non-finite element adds to nonfinite only. */
struct sums {
    struct exact sum_squares;
    uint64_t nonfinite; /* elements that are NaN or infinite */
};

/* A fold of whole leaves, with their sums. A chunk's last fold is one of these: what is added up is final. */
struct leaf_fold {
    float *acc;                        /* the first element of first_leaf */
    const struct fold_source *sources; /* [source_count], at least one, of the leaves' elements */
    size_t source_count;
    bool first;
    bool
        far; /* acc is not read again before the caches have forgotten it: it may be written around them */
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
    bool
        far; /* wire is not read before the caches have forgotten it: it may be written around them */
};

/* Returns of how many elements a result is not finite: the parameter, a moment that the optimizer keeps, or
 * the wire copy, which bf16 may have as infinite where the parameter is not. */
typedef uint64_t (*update_fn)(const struct update *update, const struct group_scalars *scalars);

struct backend {
    const char *name; /* "host" */
    const char *isa;  /* what its kernels are compiled for: "avx512", "avx2", "plain" */

    /* The strict left fold acc = ((acc + s0) + s1) + ... over [elems]. `first`: nothing was folded yet,
     * and s0 is copied instead of added to anything; with no source at all acc is then +0. Sources
     * folded in one call or in several give the same bits. */
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

    /* Converts between CAIRN_F32 and CAIRN_BF16, or copies what has the same dtype. To bf16 it rounds to
     * nearest even, overflow gives infinity, NaN stays a quiet NaN. */
    void (*convert)(void *dst, cairn_dtype dst_dtype, const void *src, cairn_dtype src_dtype,
                    size_t elems);

    /* The hashes of the leaves [first_leaf, first_leaf + leaf_count). plane: the first element of
     * first_leaf, any dtype of proto/geometry/tensor.h. NaN is hashed as the quiet NaN with a positive
     * sign and no payload. */
    void (*hash_each)(const void *plane, cairn_dtype dtype, const struct geometry *geometry,
                      uint64_t first_leaf, uint64_t leaf_count, struct hash *hashes_out);
};

/* Pushes the hashes of the leaves [tree->next_leaf, + leaf_count) to the tree; plane as of hash_each. */
void backend_hash_leaves(const struct backend *backend, const void *plane, cairn_dtype dtype,
                         const struct geometry *geometry, uint64_t leaf_count,
                         struct hash_tree *tree);

/* The reference, for the widest instruction set that this CPU has; or that the environment's CAIRN_HOST_ISA
 * names, if it has that (read once: tests compare them). Static memory. */
const struct backend *backend_host(void);
/* The reference for one instruction set, from 0 on, the widest last; the bits of all are the same. NULL:
 * this CPU lacks it. */
#define CAIRN_HOST_ISA_COUNT 3
const struct backend *backend_host_at(uint32_t isa);
/* "plain", "avx2", "avx512" */
const char *backend_host_isa(uint32_t isa);

/* The dtypes that contributions, and the wire copy of all but a blob, can have. */
bool wire_dtype_ok(int dtype);

/* True if this thread rounds to nearest and keeps subnormals (x86: MXCSR is 0x1F80 but for its sticky
 * flags). Every compute thread asserts it before its first kernel: a library that a process loads can
 * change it. */
bool float_env_ok(void);

/* ==== homes ==== */

/* A home: the memory in which planes of a job lie, and what works on them there. `host` is this
 * process's memory and its CPU; `cuda` is one card. Nothing outside gpu/ reads or writes what lies
 * in a home through a pointer, unless the home says `is_host`: everything goes through copies and
 * lists of work.
 *
 *   a pool's thread ── home_run(works) ──► host: kernels of gpu.h, at once
 *                                             └──► cuda: copies in ─► kernels ─► copies out ─► event
 *
 * An address in a home is a pointer that only its home may follow. Where a work says "any memory" the address
 * may lie in the home or in host memory; the home tells which by the address. Host memory that a work names
 * stays as it is until the run returns, and may be read without a fault.
 *
 * The bits are those of gpu.h, in every home.
 *
 * Memory that other processes may map is opened by home_memory_open_exportable. Memory of a
 * device has no seals: whoever imports it may map it writable. So only published copies are opened
 * that way, since nothing is ever computed from them. State and staging are not, and no call can
 * export them.
 *
 * Errors: CAIRN_ERR_NO_MEMORY (the home is full; nothing else suffered), CAIRN_ERR_IO (the device failed: a
 * launch, an ECC error, a lost device; `why` names it and says what to do. Every later call of this home
 * fails with the same sentence: what lies there is suspect. Or the driver refused a call, and broke nothing:
 * then only what the call was for is not there, and later calls go on). */

struct home;
struct home_stream;

#define CAIRN_HOME_PEERS_MAX 7

struct home_info {
    const char *backend; /* "host", "cuda": static */
    char device[128];    /* "NVIDIA H200, GPU-6f2c..."; the instruction set of `host` */
    char driver[64];     /* "CUDA driver 13.0, image of 13.0"; "" for `host` */
    bool is_host;        /* any code of this process may follow addresses in it */
    /* How many works a run should be given, if there are as many; 1 for `host`: each thread runs one. */
    uint32_t works_best;
    /* Lists of a stream that are begun and not finished; 1 for `host`, where the first is done at once. */
    uint32_t lists_max;
    uint64_t total_bytes; /* of the device; 0 for `host` */
    /* about the device, for whoever runs the machine; it harms nothing now; "": nothing */
    char warning[320];
    uint64_t
        taken_bytes;  /* of the device when it was opened: by the context, its kernels, others */
    uint8_t uuid[16]; /* of the device, or of the slice of one; all 0 for `host` */
    int numa_node; /* that the device is next to (proto/base/machine.h); CAIRN_NUMA_NONE: not known */
    bool exports;     /* it has memory that other processes may map */
    bool is_reached;  /* network cards may read and write that by themselves (GPUDirect RDMA) */
    bool has_dma_buf; /* its driver gives it to theirs as a dma-buf */
    /* Other devices of this host whose memory this one reads by itself (NVLink, PCIe), as far as this process
     * sees them */
    uint8_t peer_uuids[CAIRN_HOME_PEERS_MAX][16];
    uint32_t peer_count;
    /* taken from the device by a stream when it begins, and as much of pinned host memory; 0:
     * none */
    uint64_t stream_bytes;
};

/* ---- a home; any thread opens and closes, all others end first ---- */

/* The CPU's, of static memory. Never fails; closing it does nothing. */
struct home *home_host(void);
/* device: a number among those that this process sees, a UUID ("GPU-...", "MIG-..."), or NULL: the first.
 * CAIRN_ERR_NOT_FOUND: no driver, no such device; CAIRN_ERR_UNSUPPORTED: a driver older than the image, or a
 * daemon that was built without kernels; CAIRN_ERR_NO_MEMORY. `why` says which, and what to do. */
CAIRN_MUST_CHECK cairn_status home_open_cuda(const char *device, struct home **home_out,
                                             struct sentence *why);
void home_close(struct home *home);
const struct home_info *home_info(const struct home *home);
/* Bytes of the device that nobody has taken now, other processes included; UINT64_MAX for `host`. */
uint64_t home_free_bytes(struct home *home);
/* The device failed: what lies there is suspect, and every call fails. Of `host`: never. Any thread. */
bool home_has_failed(struct home *home);
/* Then the sentence of every call, as long as the home is open; else NULL. Any thread. */
const char *home_failure(struct home *home);
/* Counts of a home's work since it was opened; all 0 for `host`. Any thread. */
struct home_use {
    uint64_t runs, launches;      /* lists of work; kernels that were launched for them */
    uint64_t bytes_in, bytes_out; /* copied to the device, and from it */
    uint64_t pinned_bytes;        /* of the host, now; those of streams not counted */
    uint64_t unpinned_bytes; /* were to be pinned, and could not be: copies of them are slower */
};
struct home_use home_use(struct home *home);

/* ---- memory of it ---- */

/* In segments of CAIRN_SEGMENT_BYTES, side by side; the last one is shorter. */
struct home_memory {
    struct home *home; /* borrowed */
    void *base;        /* an address in the home, at a multiple of 512; NULL if bytes is 0 */
    uint64_t bytes;
    uint64_t room_bytes; /* addresses from base on that are its own; 0: as many as bytes */
    bool is_exportable;
    struct home_segment *segments; /* owned: the home's */
};

/* Zero at first. Any thread. CAIRN_ERR_NO_MEMORY says how much it wanted, and how much there is. */
CAIRN_MUST_CHECK cairn_status home_memory_open(struct home *home, const char *label, uint64_t bytes,
                                               struct home_memory *memory_out,
                                               struct sentence *why);
/* The same, of what other processes may map: published copies, never state. CAIRN_ERR_UNSUPPORTED: the home
 * does not export (home_info). */
CAIRN_MUST_CHECK cairn_status home_memory_open_exportable(struct home *home, const char *label,
                                                          uint64_t bytes,
                                                          struct home_memory *memory_out,
                                                          struct sentence *why);
/* Opens memory of `host` with addresses for room_bytes, so that it can later be resized up to
 * that. */
CAIRN_MUST_CHECK cairn_status home_memory_open_room(const char *label, uint64_t bytes,
                                                    uint64_t room_bytes, bool is_exportable,
                                                    struct home_memory *memory_out,
                                                    struct sentence *why);
/* Changes the size, to at most room_bytes, of memory that was opened with room. The contents of its
 * segments stay. If the memory is exportable, its last segment keeps the pages that it had before,
 * since a segment that others have mapped cannot change its size. Nothing may work on the memory
 * meanwhile. CAIRN_ERR_NO_MEMORY: it has as many bytes as before; segments that were to go are all
 * 0. Any thread. */
CAIRN_MUST_CHECK cairn_status home_memory_resize(struct home_memory *memory, const char *label,
                                                 uint64_t bytes, struct sentence *why);
/* Segment i of it begins at base + i * CAIRN_SEGMENT_BYTES. */
uint64_t home_memory_segments(const struct home_memory *memory);
/* A descriptor of one segment of exportable memory, for another process to import, and the bytes that it
 * has: up to a page of the device more than the memory. The caller closes it: an open one keeps the segment's
 * memory from being given back. Any thread. CAIRN_ERR_UNSUPPORTED: it is not exportable; CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status home_memory_export(const struct home_memory *memory, uint64_t segment,
                                                 int *fd_out, uint64_t *bytes_out,
                                                 struct sentence *why);
/* Gives one segment back to the system before the rest. Nothing may work on it any more, and its
 * addresses belong to nobody. Processes that have mapped it keep it. Safe to call again. Any
 * thread. */
void home_memory_give(struct home_memory *memory, uint64_t segment);
/* Nothing works on it any more. Safe to call again, and of what is all 0. */
void home_memory_close(struct home_memory *memory);

/* ---- memory of the device, or of one of its peers, that another process owns ----
 *
 * Its owner exported it as a descriptor (VMM, POSIX), which is used up in any case. It is mapped
 * for reading, at an address of the home, so that works can read it where it lies. It
 * stays readable until it is released, even when its owner is gone. A refused import changes
 * nothing. One thread for all of these. CAIRN_ERR_REFUSED: memory of other devices, or a size that
 * no memory has; CAIRN_ERR_NO_MEMORY, also where as much is imported as the devices have;
 * CAIRN_ERR_IO: the driver refuses it, or the device failed before, and what its owner has goes
 * through the host; CAIRN_ERR_UNSUPPORTED: of `host`. */
CAIRN_MUST_CHECK cairn_status home_import(struct home *home, int fd, uint64_t bytes,
                                          const void **address_out, struct sentence *why);
/* No work names it any more. */
void home_import_release(struct home *home, const void *address, uint64_t bytes);

/* Host memory that is copied from or to again and again: its copies become faster, and go on beside kernels.
 * Whole pages; some of them may be pinned already. A failure is no error to the caller, who may log it:
 * copies stay right. Nothing for `host`. Any thread; it takes a while, as pages are looked up one by one. */
CAIRN_MUST_CHECK cairn_status home_pin(struct home *home, void *host, uint64_t bytes,
                                       struct sentence *why);
/* Before the memory, or its pages, go back to the system: no page of these bytes is pinned any more. Nothing
 * copies them, or what was pinned together with them. */
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
    CAIRN_WORK_RUNS, /* bytes in runs at even distances: a box of a plane, packed or unpacked */
    CAIRN_WORK_KINDS
};

/* Planes lie in the home; all else lies in host memory, but where "any memory" stands. */
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
            /* any memory; if the other one lies in a device, what is not there is packed */
            void *to;
            const void *from;
            size_t run_bytes;
            uint64_t run_count, to_stride, from_stride; /* bytes; packed: run_bytes */
        } runs;
    };
};

/* A stream runs lists; one thread uses it at a time. Several of a home run beside each other, and nothing
 * orders them but that a run has returned. */
CAIRN_MUST_CHECK cairn_status home_stream_open(struct home *home, struct home_stream **stream_out,
                                               struct sentence *why);
void home_stream_close(struct home_stream *stream);
/* Takes now what the first run would take (home_info.stream_bytes): no run lacks it then. Safe to call
 * again. CAIRN_ERR_NO_MEMORY: the home or the host is full; a later call may go well. CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status home_stream_begin(struct home_stream *stream, struct sentence *why);
/* Does all of the works, in any order and beside each other: no two of one list touch the same elements,
 * unless both only read. Returns when all are done and what they make is in host memory. Not OK: nothing of
 * what they were to make may be used. */
CAIRN_MUST_CHECK cairn_status home_run(struct home_stream *stream, struct home_work *works,
                                       size_t count, struct sentence *why);
/* The same in two, so that a device has the next list before the last is waited for. count: not 0. The works,
 * and all that they name, stay as they are until it is finished; of two lists, too, no two works touch the
 * same elements, unless both only read. Not OK: nothing of this list is under way, and no finish is for it;
 * the one ahead of it is as it would be without it. */
CAIRN_MUST_CHECK cairn_status home_run_begin(struct home_stream *stream, struct home_work *works,
                                             size_t count, struct sentence *why);
/* Finishes the list that was begun first, and returns as home_run does. */
CAIRN_MUST_CHECK cairn_status home_run_finish(struct home_stream *stream, struct sentence *why);

#endif

/* The functions that each kind of home implements; gpu/gpu.h documents them. Private to gpu/. */
#ifndef CAIRN_GPU_HOME_KIND_H
#define CAIRN_GPU_HOME_KIND_H

#include "gpu/gpu.h"

struct home_kind {
    void (*close)(struct home *home);
    uint64_t (*free_bytes)(struct home *home);
    const char *(*failure)(struct home *home); /* NULL: the home never fails */
    struct home_use (*use)(struct home *home);
    /* home, bytes and is_exportable of *memory_out are set; bytes is not 0. */
    cairn_status (*memory_open)(struct home *home, const char *label,
                                struct home_memory *memory_out, struct sentence *why);
    void (*memory_close)(struct home_memory *memory); /* base is not NULL */
    /* Called only for memory with room, and only if `bytes` changes; NULL: no memory of this kind has
     * room. */
    cairn_status (*memory_resize)(struct home_memory *memory, const char *label, uint64_t bytes,
                                  struct sentence *why);
    /* NULL if the home does not export. The caller has checked that the segment exists and is
     * exportable. */
    cairn_status (*memory_export)(const struct home_memory *memory, uint64_t segment, int *fd_out,
                                  uint64_t *bytes_out, struct sentence *why);
    cairn_status (*import)(struct home *home, int fd, uint64_t bytes, const void **address_out,
                           struct sentence *why); /* NULL: imports are unsupported */
    void (*import_release)(struct home *home, const void *address, uint64_t bytes);
    /* The caller has checked that the segment exists; it may have been returned before. */
    void (*memory_give)(struct home_memory *memory, uint64_t segment);
    cairn_status (*pin)(struct home *home, void *host, uint64_t bytes, struct sentence *why);
    void (*unpin)(struct home *home, void *host, uint64_t bytes);
    cairn_status (*stream_open)(struct home *home, struct home_stream **stream_out,
                                struct sentence *why);
    void (*stream_close)(struct home_stream *stream);
    cairn_status (*stream_begin)(struct home_stream *stream,
                                 struct sentence *why); /* NULL: a run allocates nothing */
    cairn_status (*run_begin)(struct home_stream *stream, struct home_work *works, size_t count,
                              struct sentence *why);
    cairn_status (*run_finish)(struct home_stream *stream,
                               struct sentence *why); /* NULL: run_begin completes the list */
};

/* The first field of each kind's own struct. */
struct home {
    const struct home_kind *kind; /* static */
    struct home_info info;
};

struct home_stream {
    struct home *home; /* borrowed */
};

/* Copies runs of bytes that are all in host memory (home.c). */
void home_copy_runs(const struct home_work *work);

/* ==== the host ==== */

/* Private to gpu/host: the tables behind backend_host(), and the kernel that all these tables share.
 *
 * isa/table.c has the kernels, written once as arithmetic on vectors (isa/vector.h) and compiled for each
 * instruction set. The bits are the same: nothing is contracted into fma, and the code, not the vector's
 * width, fixes the order of additions. */

extern const struct backend host_plain;
#if defined(__x86_64__)
extern const struct backend host_avx2, host_avx512;
#endif

/* Copies the elements, replacing every NaN by its dtype's canonical NaN; elements of a byte dtype are
 * unchanged. */
void host_canonical(void *out, const void *in, cairn_dtype dtype, size_t elems);
/* Does the same as hash_each of gpu.h, with libsodium, one leaf after the other. */
void host_hash_each(const void *plane, cairn_dtype dtype, const struct geometry *geometry,
                    uint64_t first_leaf, uint64_t leaf_count, struct hash *hashes_out);

#endif

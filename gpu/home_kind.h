/* The functions that each kind of home implements; gpu/gpu.h documents them. Private to gpu/. */
#ifndef CAIRN_GPU_HOME_KIND_H
#define CAIRN_GPU_HOME_KIND_H

#include "gpu/gpu.h"

struct home_kind {
    void (*close)(struct home *home); /* NULL: static memory */
    uint64_t (*free_bytes)(struct home *home);
    const char *(*failure)(struct home *home); /* NULL: the home never fails */
    struct home_use (*use)(struct home *home); /* NULL: nothing is counted */
    /* The caller has set home, bytes, room_bytes and is_exportable of *memory_out; bytes is not 0. */
    cairn_status (*memory_open)(struct home *home, const char *label,
                                struct home_memory *memory_out, struct sentence *why);
    void (*memory_close)(struct home_memory *memory); /* memory->base is not NULL */
    /* Called only for memory with room, and only if `bytes` changes; NULL: no memory of this kind has
     * room. */
    cairn_status (*memory_resize)(struct home_memory *memory, const char *label, uint64_t bytes,
                                  struct sentence *why);
    /* The caller has checked that the segment exists and is exportable. NULL if the home does not
     * export. */
    cairn_status (*memory_export)(const struct home_memory *memory, uint64_t segment, int *fd_out,
                                  uint64_t *bytes_out, struct sentence *why);
    cairn_status (*import)(struct home *home, int fd, uint64_t bytes, const void **address_out,
                           struct sentence *why); /* NULL: the home has no imports */
    void (*import_release)(struct home *home, const void *address, uint64_t bytes);
    /* The caller has checked that the segment number is valid. The segment may have been given back
     * before. */
    void (*memory_give)(struct home_memory *memory, uint64_t segment);
    /* NULL, as is unpin: no device copies host memory */
    cairn_status (*pin)(struct home *home, void *host, uint64_t bytes, struct sentence *why);
    void (*unpin)(struct home *home, void *host, uint64_t bytes);
    cairn_status (*stream_open)(struct home *home, struct home_stream **stream_out,
                                struct sentence *why);
    void (*stream_close)(struct home_stream *stream); /* NULL: static memory */
    cairn_status (*stream_begin)(struct home_stream *stream,
                                 struct sentence *why); /* NULL: a run allocates nothing */
    cairn_status (*run_begin)(struct home_stream *stream, struct home_work *works, size_t count,
                              struct sentence *why);
    cairn_status (*run_finish)(struct home_stream *stream,
                               struct sentence *why); /* NULL: run_begin completes the list */
};

/* The struct of each kind begins with this struct. */
struct home {
    const struct home_kind *kind; /* static */
    struct home_info info;
};

struct home_stream {
    struct home *home; /* borrowed */
};

/* home_memory_adopt and home_memory_fd, of gpu/host/home.c. */
CAIRN_MUST_CHECK cairn_status host_memory_adopt(const char *label, const int *fds,
                                                struct home_memory *memory_out,
                                                struct sentence *why);
int host_memory_fd(const struct home_memory *memory, uint64_t segment);

/* Does the work of runs that are all in host memory (home.c). */
void home_copy_runs(const struct runs_work *runs);

/* ==== the host ==== */

/* Private to gpu/host: the tables that backend_host() returns, and the functions that all these tables
 * share.
 *
 * isa/table.c has the kernels. They are written once, as arithmetic on vectors (isa/vector.h), and compiled
 * for each instruction set. The bits are the same, because nothing is contracted into fma, and because the
 * order of additions does not depend on the width of a vector. */

extern const struct backend host_plain;
#if defined(__x86_64__)
extern const struct backend host_avx2, host_avx512;
#endif

/* Copies the elements, and replaces every NaN by the canonical NaN of its dtype. Bytes (CAIRN_U8) stay as
 * they are. */
void host_canonical(void *out, const void *in, cairn_dtype dtype, size_t elems);
/* Does the work of hash_each (gpu.h) with libsodium, one leaf after the other. */
void host_hash_each(const void *plane, cairn_dtype dtype, const struct geometry *geometry,
                    uint64_t first_leaf, uint64_t leaf_count, struct hash *hashes_out);

#endif

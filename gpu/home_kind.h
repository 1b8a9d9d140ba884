/* The functions that each kind of home provides behind gpu/home.h, which says what each does.
 * Private to gpu/. */
#ifndef CAIRN_GPU_HOME_KIND_H
#define CAIRN_GPU_HOME_KIND_H

#include "gpu/home.h"

struct cairn_home_kind {
    void (*close)(struct cairn_home *home);
    uint64_t (*free_bytes)(struct cairn_home *home);
    const char *(*failure)(struct cairn_home *home); /* NULL: it never fails */
    struct cairn_home_use (*use)(struct cairn_home *home);
    bool (*has)(const struct cairn_home *home, const void *address);
    /* home, bytes and is_exportable of *memory_out are set; bytes is not 0. */
    cairn_status (*memory_open)(struct cairn_home *home, const char *label,
                                struct cairn_home_memory *memory_out, struct cairn_sentence *why);
    void (*memory_close)(struct cairn_home_memory *memory); /* base is not NULL */
    /* Other bytes than it has, of memory with room; NULL: none has. */
    cairn_status (*memory_resize)(struct cairn_home_memory *memory, const char *label,
                                  uint64_t bytes, struct cairn_sentence *why);
    /* NULL where the home does not export; there is such a segment, and it is exportable. */
    cairn_status (*memory_export)(const struct cairn_home_memory *memory, uint64_t segment,
                                  int *fd_out, uint64_t *bytes_out, struct cairn_sentence *why);
    cairn_status (*import)(struct cairn_home *home, int fd, uint64_t bytes,
                           const void **address_out, struct cairn_sentence *why); /* NULL: none */
    void (*import_release)(struct cairn_home *home, const void *address, uint64_t bytes);
    /* There is such a segment, given back before or not. */
    void (*memory_give)(struct cairn_home_memory *memory, uint64_t segment);
    cairn_status (*pin)(struct cairn_home *home, void *host, uint64_t bytes,
                        struct cairn_sentence *why);
    void (*unpin)(struct cairn_home *home, void *host, uint64_t bytes);
    cairn_status (*stream_open)(struct cairn_home *home, struct cairn_home_stream **stream_out,
                                struct cairn_sentence *why);
    void (*stream_close)(struct cairn_home_stream *stream);
    cairn_status (*stream_begin)(struct cairn_home_stream *stream,
                                 struct cairn_sentence *why); /* NULL: a run takes nothing */
    cairn_status (*run_begin)(struct cairn_home_stream *stream, struct cairn_work *works,
                              size_t count, struct cairn_sentence *why);
    cairn_status (*run_finish)(struct cairn_home_stream *stream,
                               struct cairn_sentence *why); /* NULL: what is begun is done */
};

/* The first field of each kind's own struct. */
struct cairn_home {
    const struct cairn_home_kind *kind; /* static */
    struct cairn_home_info info;
};

struct cairn_home_stream {
    struct cairn_home *home; /* borrowed */
};

/* Runs of bytes that all lie in host memory: home.c. */
void cairn_copy_runs(const struct cairn_work *work);

#endif

/* The scene (tests/e2e/scene.h) with a card: shards whose state lies on it or in host memory, and workers
 * whose gradients, and what they fetch, lie on it or in host memory.
 *
 *   start_on("cuda", 2, .both_ways = true);
 *   card = emulated_open(NULL);
 *   struct worker w = worker_open("card", ALLOCATED);
 *   worker_train(&w, 3);
 *   worker_close(&w);
 *   stop(); */
#ifndef CAIRN_TESTS_GPU_CARD_H
#define CAIRN_TESTS_GPU_CARD_H

#include "tests/e2e/scene.h"
#include "tests/support/emulated.h"

extern struct emulated card;

/* So many shards of that backend; options as of `start`. The emulated card begins with card_options. */
#define start_on(backend, shards, ...) (card_choose(backend), start(shards, __VA_ARGS__))
extern const char *card_options; /* NULL: none */
void card_choose(const char *backend);

/* Cut over the shards, in the middle of pages; bf16, with whole rows of a leaf; small; not trained. */
enum { CARD_PUSHED = 3, CARD_TENSORS = 4, CARD_BIG_ELEMS = 700 * 311, CARD_ROOM = 2 << 20 };
extern const struct cairn_tensor card_model[CARD_TENSORS];
struct cairn_job_spec card_spec(void);
/* A session that maps what shards publish on the card, or one that does not. */
cairn *card_session(bool reads_on_card);
struct cairn_stats card_stats(cairn_job *of);

/* ---- memory ---- */

enum where {
    HOST,
    SHARED,
    ALLOCATED,
    FOREIGN
}; /* of cairn_alloc: those in between, on host and card */

struct memory {
    enum where where;
    int gpu;
    float *host; /* [CARD_ROOM / 4], what it is */
    void *at;    /* what is pushed */
    struct emulated_memory foreign;
    struct CUstream_st *stream; /* of a card's */
};
struct memory memory_take(cairn *of, enum where where, int gpu);
/* The same for the gradient of a tensor of the model: what the library gives has exactly its size. */
struct memory memory_of_gradient(cairn *of, enum where where, int gpu, int tensor);
void memory_give(cairn *of, struct memory *memory);
static inline bool memory_is_on_card(const struct memory *memory)
{
    return memory->where >= ALLOCATED;
}
static inline uint64_t memory_address(const struct memory *memory)
{
    return (uint64_t)(uintptr_t)memory->at;
}
struct cairn_mem memory_mem(const struct memory *memory, cairn_dtype dtype);
/* The gradient of a tensor; the card writes it when its stream comes to that. */
void memory_fill(const struct memory *memory, int tensor, unsigned seed);
/* Rounds with all of their micro-batches. */
struct cairn_version memory_train(cairn_job *of, const struct memory gradients[CARD_PUSHED],
                                  int steps);

/* ---- a worker ---- */

struct worker {
    cairn *session;
    cairn_job *job;
    struct memory gradients[CARD_PUSHED], values[CARD_TENSORS];
};
/* HOST: it has nothing on the card; else it maps what shards publish there, and fetches there. */
struct worker worker_open(const char *name, enum where where);
/* One that only reads, of the host, by that data path. */
struct worker worker_reads(const char *name, const char *fabric);
void worker_close(struct worker *w);
/* The same where the card may have failed: what lies on it goes with this process. */
void worker_leave(struct worker *w);
struct cairn_version worker_train(const struct worker *w, int steps);
/* The tensor's wire plane, as bytes of the host: from where the worker fetches it to. */
void worker_fetch(const struct worker *w, struct cairn_version version, int tensor, void *out);
/* All that two workers fetch of the version is the same. */
void workers_see_the_same(const struct worker *a, const struct worker *b,
                          struct cairn_version version);

#endif

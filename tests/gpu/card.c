#include "tests/gpu/card.h"

#include <stdlib.h>

struct emulated card;
const char *card_options;

const struct cairn_tensor card_model[CARD_TENSORS] = {
    TRAINER_MATRIX("big", "u", 700, 311, 1),
    TRAINER_MATRIX("half", "u", 311, 500, 2, .wire = CAIRN_BF16),
    TRAINER_ONES("small", "v", 77),
    TRAINER_ONES("still", "v", 5000, .kind = CAIRN_FROZEN),
};

void card_choose(const char *backend)
{
    ck_assert_int_eq(setenv("CAIRN_TEST_BACKEND", backend, 1), 0);
    emulated_choose(card_options);
}

struct cairn_job_spec card_spec(void)
{
    static struct cairn_group adamw = CAIRN_GROUP_INIT;
    adamw.weight_decay = 0.1;
    return (struct cairn_job_spec) { .struct_size = sizeof(struct cairn_job_spec),
                                     .tensors = card_model,
                                     .tensor_count = CARD_TENSORS,
                                     .groups = &adamw,
                                     .group_count = 1,
                                     .chunk_leaves = 4 };
}

cairn *card_session(bool reads_on_card)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = cluster.address,
                                     .device = reads_on_card ? CAIRN_GPU(0) : 0 };
    cairn *opened;
    good(cairn_open(&opts, &opened));
    return opened;
}

struct cairn_stats card_stats(cairn_job *of)
{
    struct cairn_stats out = { .struct_size = sizeof out };
    good(cairn_job_stats(of, &out));
    return out;
}

/* ---- memory ---- */

static struct memory take(cairn *of, enum where where, int gpu, size_t bytes)
{
    struct memory memory = { .where = where, .gpu = gpu, .host = malloc(CARD_ROOM) };
    memory.at = memory.host;
    if (where == SHARED) good(cairn_alloc(of, bytes, 0, &memory.at));
    if (where == ALLOCATED) good(cairn_alloc(of, bytes, CAIRN_GPU(gpu), &memory.at));
    if (where == FOREIGN) {
        memory.foreign = emulated_alloc(&card, CARD_ROOM);
        memory.at = (void *)(uintptr_t)memory.foreign.at;
    }
    if (where >= ALLOCATED)
        ck_assert_int_eq(card.driver.cuStreamCreate(&memory.stream, CAIRN_CU_STREAM_NON_BLOCKING),
                         0);
    return memory;
}

struct memory memory_take(cairn *of, enum where where, int gpu)
{
    return take(of, where, gpu, CARD_ROOM);
}

struct memory memory_of_gradient(cairn *of, enum where where, int gpu, int tensor)
{
    return take(of, where, gpu, trainer_elems(&card_model[tensor]) * sizeof(float));
}

void memory_give(cairn *of, struct memory *memory)
{
    if (memory->where == SHARED || memory->where == ALLOCATED) good(cairn_free(of, memory->at));
    if (memory->where == FOREIGN) emulated_free(&card, &memory->foreign);
    if (memory_is_on_card(memory)) ck_assert_int_eq(card.driver.cuStreamDestroy(memory->stream), 0);
    free(memory->host);
}

struct cairn_mem memory_mem(const struct memory *memory, cairn_dtype dtype)
{
    struct cairn_mem mem = trainer_mem(memory->at, dtype);
    if (!memory_is_on_card(memory)) return mem;
    mem.device = CAIRN_GPU(memory->gpu);
    mem.stream = memory->stream;
    return mem;
}

void memory_fill(const struct memory *memory, int tensor, unsigned seed)
{
    const size_t elems = trainer_elems(&card_model[tensor]);
    float *values = memory_is_on_card(memory) ? memory->host : memory->at;
    for (size_t i = 0; i < elems; i++)
        values[i] = (float)((i * 2654435761u + seed * 97u + (unsigned)tensor) % 2001) / 1000 - 1;
    if (!memory_is_on_card(memory)) return;
    const uint64_t at = memory_address(memory);
    ck_assert_int_eq(card.driver.cuMemsetD8Async(at, 0x55, elems * 4, memory->stream), 0);
    ck_assert_int_eq(card.driver.cuMemcpyHtoDAsync(at, memory->host, elems * 4, memory->stream), 0);
}

struct cairn_version memory_train(cairn_job *of, const struct memory gradients[CARD_PUSHED],
                                  int steps)
{
    struct cairn_version version = { 0, 0 };
    for (int step = 0; step < steps; step++) {
        const struct cairn_round round = trainer_begin(of);
        for (uint32_t micro = 0; micro < round.micro_batches; micro++) {
            const bool is_last = micro + 1 == round.micro_batches;
            for (int t = 0; t < CARD_PUSHED; t++) {
                cairn_op *op;
                memory_fill(&gradients[t], t, (unsigned)round.step * 7 + micro);
                const struct cairn_mem mem = memory_mem(&gradients[t], CAIRN_F32);
                good(cairn_push(of, &round, micro, card_model[t].name, NULL, &mem, &op));
                if (!is_last) good(cairn_wait(op, CLUSTER_WAIT_MS));
            }
            if (!is_last) good(cairn_micro_end(of, &round, micro));
        }
        version = trainer_commit(of, &round, 1).version;
    }
    return version;
}

/* ---- a worker ---- */

struct worker worker_open(const char *name, enum where where)
{
    const struct cairn_job_spec spec = card_spec();
    struct worker w = { .session = card_session(where != HOST) };
    w.job = trainer_ready(w.session, name, &spec);
    for (int t = 0; t < CARD_PUSHED; t++)
        w.gradients[t] = memory_of_gradient(w.session, where, 0, t);
    for (int t = 0; t < CARD_TENSORS && where != HOST; t++)
        w.values[t] = memory_take(w.session, FOREIGN, 0);
    return w;
}

struct worker worker_reads(const char *name, const char *fabric)
{
    struct worker w = { .session = NULL };
    w.job = join_reader(name, fabric, &w.session);
    return w;
}

void worker_close(struct worker *w)
{
    for (int t = 0; t < CARD_PUSHED; t++)
        if (w->gradients[t].at != NULL) memory_give(w->session, &w->gradients[t]);
    cairn_close(w->session);
    for (int t = 0; t < CARD_TENSORS; t++)
        if (w->values[t].at != NULL) memory_give(NULL, &w->values[t]);
}

void worker_leave(struct worker *w)
{
    cairn_close(w->session);
    for (int t = 0; t < CARD_PUSHED; t++) free(w->gradients[t].host);
    for (int t = 0; t < CARD_TENSORS; t++) free(w->values[t].host);
}

struct cairn_version worker_train(const struct worker *w, int steps)
{
    return memory_train(w->job, w->gradients, steps);
}

void worker_fetch(const struct worker *w, struct cairn_version version, int tensor, void *out)
{
    const struct cairn_tensor *t = &card_model[tensor];
    const struct memory *to = &w->values[tensor];
    if (to->at == NULL) {
        trainer_fetch(w->job, version, t->name, NULL, trainer_wire(t), out);
        return;
    }
    cairn_op *op;
    const struct cairn_mem mem = memory_mem(to, trainer_wire(t));
    const size_t bytes = trainer_wire_bytes(t);
    // before the fetch, on the same stream
    ck_assert_int_eq(card.driver.cuMemsetD8Async(to->foreign.at, 0x55, CARD_ROOM, to->stream), 0);
    good(cairn_fetch(w->job, version, t->name, NULL, NULL, &mem, &op));
    good(cairn_stream_wait(op, to->stream));
    ck_assert_int_eq(card.driver.cuMemcpyDtoHAsync(out, to->foreign.at, bytes, to->stream), 0);
    good(cairn_wait(op, CLUSTER_WAIT_MS));
    ck_assert_int_eq(card.driver.cuStreamSynchronize(to->stream), 0);
}

void workers_see_the_same(const struct worker *a, const struct worker *b,
                          struct cairn_version version)
{
    static uint8_t of_a[CARD_ROOM], of_b[CARD_ROOM];
    for (int t = 0; t < CARD_TENSORS; t++) {
        worker_fetch(a, version, t, of_a);
        worker_fetch(b, version, t, of_b);
        ck_assert_msg(memcmp(of_a, of_b, trainer_wire_bytes(&card_model[t])) == 0, "%s",
                      card_model[t].name);
    }
}

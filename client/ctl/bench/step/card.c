/* A worker of the bench of a step whose gradients and parameters lie on a card. */
#include <stdlib.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/step/worker.h"
#include "gpu/home.h"

/* For the reference alone: what is copied on the card, and the stream that copies it. */
struct step_card {
    struct cairn_home *home;
    struct cairn_home_stream *stream;
    struct cairn_home_memory from, to; /* as many bytes as all gradients */
};

static bool is_ok(cairn_status status, const struct cairn_sentence *why)
{
    if (status != CAIRN_OK) (void)cairn_ctl_fail(status, "a worker of the bench: %s", why->text);
    return status == CAIRN_OK;
}

/* The process ends with it: nothing is given back. */
static bool open_reference(struct step_worker *w, size_t bytes)
{
    struct cairn_sentence why;
    struct step_card *card = calloc(1, sizeof *card);
    if (card == NULL) return cairn_bench_is_ok(CAIRN_ERR_NO_MEMORY);
    cairn_status status = cairn_home_open_cuda(w->plan->device, &card->home, &why);
    if (status == CAIRN_OK) status = cairn_home_stream_open(card->home, &card->stream, &why);
    if (status == CAIRN_OK)
        status = cairn_home_memory_open(card->home, "bench", bytes, &card->from, &why);
    if (status == CAIRN_OK)
        status = cairn_home_memory_open(card->home, "bench", bytes, &card->to, &why);
    w->card = card;
    return is_ok(status, &why);
}

/* The gradients are the parameters as they begin. */
static cairn_status fill_gradients(struct step_worker *w)
{
    struct cairn_version newest;
    const uint32_t tensors = w->plan->model.tensors;
    cairn_status status = cairn_version_wait(w->member.job, (struct cairn_version) { 0 },
                                             CAIRN_BENCH_CALL_MS, &newest);
    for (uint32_t i = 0; i < tensors && status == CAIRN_OK; i++) {
        struct cairn_mem grad = step_tensor_of(w, w->grads, i);
        status = cairn_fetch(w->member.job, newest, w->member.names[i], NULL, NULL, &grad,
                             &w->ops[i]);
    }
    for (uint32_t i = 0; i < tensors && status == CAIRN_OK; i++)
        status = cairn_wait(w->ops[i], CAIRN_BENCH_CALL_MS);
    return status;
}

bool step_card_take(struct step_worker *w)
{
    const size_t bytes = w->plan->model.tensors * w->elems * w->elem_bytes;
    void *grads = NULL, *params = NULL;
    cairn_status status = cairn_alloc(w->member.session, bytes, CAIRN_GPU(w->plan->card), &grads);
    if (status == CAIRN_OK)
        status = cairn_alloc(w->member.session, bytes, CAIRN_GPU(w->plan->card), &params);
    w->grads = grads;
    w->params = params;
    if (status == CAIRN_OK) status = fill_gradients(w);
    return cairn_bench_is_ok(status) && open_reference(w, bytes);
}

double step_card_copy(struct step_worker *w, int copies)
{
    struct cairn_sentence why;
    struct cairn_work work = {
        .kind = CAIRN_WORK_COPY,
        .copy = { .to = w->card->to.base, .from = w->card->from.base, .bytes = w->card->to.bytes }
    };
    cairn_status status = CAIRN_OK;
    const double begin = cairn_bench_now();
    for (int i = 0; i < copies && status == CAIRN_OK; i++)
        status = cairn_home_run(w->card->stream, &work, 1, &why);
    return is_ok(status, &why) ? cairn_bench_now() - begin : 0;
}

/* global_batch on real daemons: a run whose workers come, leave between rounds and leave in the middle of
 * one has the content root of a run of one worker that nobody disturbs. Weights are tokens, the norm is
 * clipped, there is dropout by the seed of the micro-batch, and one batch overflows at the loss scale that
 * it comes at. */
#include <math.h>
#include <pthread.h>
#include <semaphore.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 20000, BATCH = 5, STEPS = 10, CREW = 3, OVERFLOW_INDEX = 4 };

static void open_cluster(void)
{
    start(2);
}

/* A worker: it leaves when the job is at step `until`, or in a round of step `abandons`. */
struct worker {
    const char *job;
    uint32_t rank, together; /* how many come at once */
    uint64_t until, abandons;
    uint64_t pauses; /* before that step it waits for `go` */
    sem_t here;      /* posted when it is attached, and in each round in which it is surplus */
    sem_t go;
    pthread_t thread;
    uint32_t most; /* workers that it was one of */
    float gradients[BATCH][ELEMS];
};

static uint64_t tokens(uint32_t micro)
{
    return 7 + 3 * micro;
}

static void compute(const struct cairn_round *round, uint32_t micro, float *out)
{
    uint64_t state = cairn_micro_seed(round, micro);
    for (int i = 0; i < ELEMS; i++) {
        state = state * 6364136223846793005 + 1442695040888963407;
        const float value = (float)(state >> 40) / 4194304 - 2;
        const bool dropped = state >> 33 & 1;
        out[i] = dropped ? 0 : value * (float)tokens(micro) * (float)round->loss_scale;
    }
    if (round->index == OVERFLOW_INDEX && micro == 3) out[17] = INFINITY;
}

/* False: the round became void meanwhile, since a worker left in the middle of it. */
static bool is_pushed(const struct trainer *t, const struct cairn_round *round, uint32_t micro,
                      const struct cairn_mem *mem)
{
    cairn_status status = cairn_push(t->job, round, micro, "w", NULL, mem, NULL);
    if (status == CAIRN_OK) status = cairn_micro_end(t->job, round, micro);
    if (status != CAIRN_ERR_EPOCH_CHANGED) good(status);
    return status == CAIRN_OK;
}

/* Pushes the worker's micro-batches; of a round that it gives up the first alone. *weight_out: their tokens.
 * False: the round is void. */
static bool push_own(struct worker *w, const struct trainer *t, const struct cairn_round *round,
                     uint64_t *weight_out)
{
    *weight_out = 0;
    for (uint32_t k = round->rank; k < round->global_batch; k += round->world) {
        const struct cairn_mem mem = trainer_mem(w->gradients[k], CAIRN_F32);
        compute(round, k, w->gradients[k]);
        if (!is_pushed(t, round, k, &mem)) return false;
        *weight_out += tokens(k);
        if (round->step == w->abandons) break;
    }
    return true;
}

/* The step after it, or the same: it was void. */
static uint64_t train_round(struct worker *w, const struct trainer *t,
                            const struct cairn_round *round)
{
    struct cairn_result result = { .struct_size = sizeof result };
    char state[16];
    const int bytes = snprintf(state, sizeof state, "batch %u", (unsigned)round->index + 1);
    const bool gives = round->rank == 0;
    uint64_t weight;
    const bool is_whole = push_own(w, t, round, &weight);
    if (round->step == w->abandons) return w->until; // in the middle of its round
    if (!is_whole) return round->step;
    if (round->world > w->most) w->most = round->world;
    if (round->micro_batches == 0) sem_post(&w->here);
    const cairn_status status = cairn_commit(t->job, round, weight, gives ? state : NULL,
                                             gives ? (size_t)bytes : 0, CLUSTER_WAIT_MS, &result);
    if (status == CAIRN_ERR_EPOCH_CHANGED) return round->step;
    good(status);
    return result.step;
}

static void wait_for(sem_t *sem)
{
    while (sem_wait(sem) != 0) {}
}

static void *work(void *arg)
{
    struct worker *w = arg;
    const struct trainer t = attach(
        w->job, TINY(ELEMS, .rank = w->rank, .world = w->together, .global_batch = BATCH, .seed = 5,
                     .clip_norm = 0.25, .loss_scale = 1024, .client_state_max = 16));
    sem_post(&w->here);
    for (uint64_t step = 0; step < w->until;) {
        if (step == w->pauses) {
            wait_for(&w->go);
            w->pauses = UINT64_MAX;
        }
        const struct cairn_round round = trainer_begin(t.job);
        if (round.step >= w->until) break; // others were faster
        step = train_round(w, &t, &round);
    }
    cairn_close(t.session);
    return NULL;
}

static void begin(struct worker *w)
{
    if (w->until == 0) w->until = STEPS;
    if (w->abandons == 0) w->abandons = UINT64_MAX;
    if (w->pauses == 0) w->pauses = UINT64_MAX;
    ck_assert_int_eq(sem_init(&w->here, 0, 0), 0);
    ck_assert_int_eq(sem_init(&w->go, 0, 0), 0);
    ck_assert_int_eq(pthread_create(&w->thread, NULL, work, w), 0);
}

static void end(struct worker *w)
{
    ck_assert_int_eq(pthread_join(w->thread, NULL), 0);
    sem_destroy(&w->here);
    sem_destroy(&w->go);
}

static void run_alone(struct worker *w)
{
    begin(w);
    end(w);
}

TEST(a_run_that_is_disturbed_has_the_content_root_of_one_that_is_not)
{
    static struct worker alone = { .job = "alone" };
    static struct worker crew[CREW] = { { .job = "crowd", .pauses = 2 },
                                        { .job = "crowd", .rank = 1, .until = 6 },
                                        { .job = "crowd", .rank = 2, .abandons = 8 } };
    run_alone(&alone);
    ck_assert_uint_eq(alone.most, 1);
    // One, then three, of which one leaves by itself and one in the middle of a round, then one.
    begin(&crew[0]);
    wait_for(&crew[0].here);
    for (uint32_t i = 1; i < CREW; i++) begin(&crew[i]);
    for (uint32_t i = 1; i < CREW; i++) wait_for(&crew[i].here);
    sem_post(&crew[0].go);
    for (uint32_t i = 0; i < CREW; i++) end(&crew[i]);
    ck_assert_uint_eq(crew[0].most, CREW);
    expect_same_bits("alone", "crowd");
    says(0, "5 micro-batches a round, dealt to the workers", "job show crowd");
}

TEST(more_workers_than_micro_batches_idle_and_make_the_same_bits)
{
    enum { MANY = BATCH + 2 };
    static struct worker alone = { .job = "few" }, many[MANY];
    run_alone(&alone);
    for (uint32_t i = 0; i < MANY; i++) {
        many[i] = (struct worker) { .job = "many", .rank = i, .together = MANY, .pauses = i == 0 };
        begin(&many[i]);
    }
    for (uint32_t i = BATCH; i < MANY; i++) {
        wait_for(&many[i].here);
        wait_for(&many[i].here); // at the latest in the round of step 1, which worker 0 holds up
    }
    sem_post(&many[0].go);
    for (uint32_t i = 0; i < MANY; i++) end(&many[i]);
    expect_same_bits("few", "many");
}

/* Saved by two workers on two shards, with the overflow still to come; gone on with by three on four. */
TEST(a_run_that_is_restored_over_other_shards_to_other_workers_has_the_same_root)
{
    enum { SAVED_AT = 3 };
    static struct worker alone = { .job = "calm" }, crew[CREW];
    char id[CLUSTER_WORD_BYTES];
    run_alone(&alone);
    for (uint32_t i = 0; i < 2; i++) {
        crew[i] = (struct worker) { .job = "saved", .rank = i, .together = 2, .until = SAVED_AT };
        begin(&crew[i]);
    }
    for (uint32_t i = 0; i < 2; i++) end(&crew[i]);
    word_of(id, "snapshot create -q saved --wait");
    for (int i = 2; i < 4; i++) cluster_add_shard(&cluster, i);
    says(0, "", "snapshot restore saved %s --yes", id);
    says(0, "shards            4,", "job show saved");
    for (uint32_t i = 0; i < CREW; i++) {
        crew[i] = (struct worker) { .job = "saved", .rank = i, .together = CREW };
        begin(&crew[i]);
    }
    for (uint32_t i = 0; i < CREW; i++) end(&crew[i]);
    ck_assert_uint_eq(crew[0].most, CREW);
    expect_same_bits("calm", "saved");
}

SUITE(60, open_cluster, stop);

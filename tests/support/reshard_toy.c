#include "tests/support/reshard_toy.h"

#include <check.h>

#include "server/base/daemon.h"

char s0[] = "s0", s1[] = "s1", s2[] = "s2", toy_name[] = "toy";

Cairn__ReshardAsk question(uint32_t op)
{
    Cairn__ReshardAsk ask = CAIRN__RESHARD_ASK__INIT;
    ask.job = toy_name;
    ask.op = op;
    return ask;
}

uint32_t ask_reshard(const Cairn__ReshardAsk *message)
{
    return fake_request(&admin, CAIRN_MSG_RESHARD_ASK, &message->base);
}

Cairn__ReshardTold *expect_told(uint32_t request)
{
    Cairn__ReshardTold *told = fake_hear(&admin, ReshardTold, request);
    ck_assert_uint_eq(told->n_jobs, 1);
    return told;
}

void apply_shards(uint32_t shards)
{
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_APPLY);
    message.shards = shards;
    expect_told(ask_reshard(&message));
}

void expect_refused(const Cairn__ReshardAsk *message, cairn_status status, const char *word)
{
    fake_expect_error(&admin, ask_reshard(message), status, word);
}

void expect_state(const char *state)
{
    const Cairn__ReshardAsk message = question(CAIRN_RESHARD_STATUS);
    Cairn__ReshardTold *told = expect_told(ask_reshard(&message));
    ck_assert_str_eq(told->jobs[0]->state, state);
}

static uv_sem_t disk;

static void on_disk(struct task *task, uint32_t item, uint32_t thread)
{
    (void)task;
    (void)item;
    (void)thread;
    uv_sem_wait(&disk);
}

static void on_disk_done(struct task *task)
{
    (void)task;
}

void hold_disk(void)
{
    static struct task task;
    task = (struct task) { .run = on_disk, .done = on_disk_done, .item_count = 1 };
    ck_assert_int_eq(uv_sem_init(&disk, 0), 0);
    pool_submit(toy()->cluster->saves.pool, &task);
}

void release_disk(void)
{
    uv_sem_post(&disk);
}

bool owns(uint32_t shard)
{
    const struct layout *l = toy()->layout;
    return shard < l->shard_count && l->shard_extents[shard + 1] > l->shard_extents[shard];
}

uint32_t owners(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < toy()->layout->shard_count; i++) count += owns(i);
    return count;
}

bool ended(void)
{
    return !toy()->reshard.running;
}

void train_until_ended(void)
{
    for (int i = 0; i < 50 && !ended(); i++) {
        train();
        for (int k = 0; k < 20; k++) fake_pump(&fake);
    }
    fake_until(&fake, ended());
}

void open_three(void)
{
    open_ticking();
    fake_shard_up(&fake, 2);
}

void expect_text(const char *text)
{
    const Cairn__ReshardAsk message = question(CAIRN_RESHARD_STATUS);
    Cairn__ReshardTold *told = expect_told(ask_reshard(&message));
    ck_assert_str_eq(told->jobs[0]->text, text);
}

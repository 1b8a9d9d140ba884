/* Driven groups on real daemons: the trainer's own learning rate, by rank 0 of the round, kept with the
 * version. A driven run has the bits of one whose schedule the servers know, whoever dies and whatever the
 * others give. */
#include <math.h>
#include <stdlib.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 5000, STEPS = 6 };
#define LR 0.25

/* A table that halves lr with every step: the same doubles as the trainer's own. */
static struct cairn_group group_of(cairn_schedule_kind kind, struct cairn_schedule_point *points)
{
    struct cairn_group group = CAIRN_GROUP_INIT;
    group.lr = LR;
    group.schedule = kind;
    for (uint64_t k = 0; k <= STEPS; k++)
        points[k] = (struct cairn_schedule_point) { k, ldexp(1, -(int)k) };
    if (kind == CAIRN_SCHEDULE_TABLE) group.points = points, group.point_count = STEPS + 1;
    return group;
}

static cairn_status open_job(const char *name, uint32_t rank, uint32_t workers_min,
                             const struct cairn_group *group, struct trainer *t)
{
    struct tiny_job *tiny = TINY(ELEMS, .rank = rank, .workers_min = workers_min);
    tiny->group = *group;
    t->session = trainer_session(cluster.address, NULL);
    return cairn_job_open(t->session, name, &tiny->spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &t->job);
}

static struct trainer attach_kind(const char *name, uint32_t rank, uint32_t workers_min,
                                  cairn_schedule_kind kind)
{
    struct cairn_schedule_point points[STEPS + 1];
    const struct cairn_group group = group_of(kind, points);
    struct trainer t;
    good(open_job(name, rank, workers_min, &group, &t));
    good(cairn_init_done(t.job, NULL, CLUSTER_WAIT_MS));
    return t;
}

static cairn_status commit(const struct trainer *t, const struct cairn_round *round, int timeout_ms)
{
    return trainer_try_commit(t->job, round, NULL, 0, timeout_ms);
}

/* By step and world alone, so that a step done again is the same. */
static void push(const struct trainer *t, const struct cairn_round *round, bool is_finite)
{
    static float gradients[2][ELEMS]; // on loan until the rank's commit
    float *gradient = gradients[round->rank];
    for (int i = 0; i < ELEMS; i++)
        gradient[i] = (float)sin((double)(i + 1) * (double)(round->step + 1)) + (float)round->rank;
    if (!is_finite) gradient[7] = NAN;
    trainer_push(t->job, round, "w", gradient);
}

static void attach_both(struct trainer t[2], const char *name, cairn_schedule_kind kind)
{
    for (uint32_t i = 0; i < 2; i++) t[i] = attach_kind(name, i, 2, kind);
}

static void leave_both(struct trainer t[2])
{
    for (int i = 0; i < 2; i++) cairn_close(t[i].session);
}

/* One step of both; rank 1's learning rate is another, and counts for nothing. */
static void train_both(const struct trainer t[2], bool driven, bool is_finite)
{
    struct cairn_round rounds[2] = { trainer_begin(t[0].job), trainer_begin(t[1].job) };
    for (int i = 0; i < 2; i++) {
        if (driven)
            good(cairn_group_lr(t[i].job, NULL, i == 0 ? ldexp(LR, -(int)rounds[0].step) : 7));
        push(&t[i], &rounds[i], is_finite);
    }
    for (int ms = 1; ms < CLUSTER_WAIT_MS; ms *= 2) { // a slow coordinator has named nobody yet
        ck_assert_int_eq(commit(&t[1], &rounds[1], ms), CAIRN_ERR_TIMEOUT);
        if (strstr(cairn_error(), "rank 0") != NULL) break;
    }
    expect_error("rank 0");
    for (int i = 0; i < 2; i++) good(commit(&t[i], &rounds[i], CLUSTER_WAIT_MS));
}

static void weights(const struct trainer *t, float out[ELEMS])
{
    trainer_fetch(t->job, newest(t->job), "w", "param", CAIRN_F32, out);
}

TEST(a_driven_run_has_the_bits_of_the_servers_schedule_whoever_dies)
{
    static float expected[ELEMS], got[ELEMS];
    char quiet[128], disturbed[128], id[128];
    start(2);
    struct trainer t[2];
    attach_both(t, "table", CAIRN_SCHEDULE_TABLE);
    for (int k = 0; k < STEPS; k++) train_both(t, false, true);
    weights(&t[0], expected);
    leave_both(t);

    attach_both(t, "quiet", CAIRN_SCHEDULE_DRIVEN);
    for (int k = 0; k < STEPS; k++) train_both(t, true, true);
    weights(&t[0], got);
    ck_assert_mem_eq(got, expected, sizeof got);
    word_of(quiet, "job digest -q quiet");
    leave_both(t);

    attach_both(t, "tried", CAIRN_SCHEDULE_DRIVEN);
    train_both(t, true, true);
    cairn_close(t[0].session); // rank 0 dies, and comes again with another lr in its spec
    struct cairn_group group = CAIRN_GROUP_INIT;
    group.lr = 99;
    group.schedule = CAIRN_SCHEDULE_DRIVEN;
    good(open_job("tried", 0, 2, &group, &t[0]));
    good(cairn_init_done(t[0].job, NULL, CLUSTER_WAIT_MS));
    train_both(t, true, true);
    restart_coordinator();
    train_both(t, true, true);
    word_of(id, "snapshot create -q tried --wait");
    train_both(t, true, true); // is undone
    leave_both(t);
    says(0, "", "snapshot restore tried %s --yes", id);
    attach_both(t, "tried", CAIRN_SCHEDULE_DRIVEN);
    says(0, "driven; lr of the last round 0.0625", "job show tried");
    for (int k = 3; k < STEPS; k++) train_both(t, true, true);
    weights(&t[0], got);
    ck_assert_mem_eq(got, expected, sizeof got);
    word_of(disturbed, "job digest -q tried");
    ck_assert_str_eq(disturbed, quiet);
    leave_both(t);
}

TEST(what_cannot_be_is_refused)
{
    start(1);
    struct trainer t = attach_kind("tiny", 0, 1, CAIRN_SCHEDULE_DRIVEN);
    struct cairn_round round = trainer_begin(t.job);
    const double bad[] = { NAN, -1, -INFINITY, INFINITY, 1e19 };
    fails(commit(&t, &round, 0), CAIRN_ERR_INVALID,
          "group default is driven, and has no learning rate");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        fails(cairn_group_lr(t.job, "default", bad[i]), CAIRN_ERR_INVALID, "group default: lr is");
    fails(cairn_group_lr(t.job, "other", 1), CAIRN_ERR_NOT_FOUND, "no group \"other\"");
    push(&t, &round, true);
    good(cairn_group_lr(t.job, "default", 1e-3));
    good(commit(&t, &round, CLUSTER_WAIT_MS));
    round = trainer_begin(t.job); // it stays
    good(commit(&t, &round, CLUSTER_WAIT_MS));
    struct cairn_group group = CAIRN_GROUP_INIT;
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .groups = &group,
                                       .group_count = 1 };
    fails(cairn_job_amend(t.job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_UNSUPPORTED, "is driven");
    ask("job amend tiny --lr 0.5");
    ck_assert_int_ne(said.status, 0);
    expect_said(said.status, "group default is driven: the trainer sets its lr with each commit");
    struct trainer other = attach_kind("own", 0, 1, CAIRN_SCHEDULE_TABLE);
    fails(cairn_group_lr(other.job, "default", 1), CAIRN_ERR_REFUSED, "is not driven");
    cairn_close(t.session);
    cairn_close(other.session);
    struct trainer mismatched;
    fails(open_job("tiny", 0, 1, &group, &mismatched), CAIRN_ERR_MISMATCH,
          "schedule constant here, driven on the servers");
    cairn_close(mismatched.session);
}

TEST(a_group_at_0_for_100_steps_is_in_the_log_once)
{
    start(1);
    struct trainer t = attach_kind("tiny", 0, 1, CAIRN_SCHEDULE_DRIVEN);
    good(cairn_group_lr(t.job, NULL, 0));
    for (int k = 0; k < 103; k++) {
        const struct cairn_round round = trainer_begin(t.job);
        good(commit(&t, &round, CLUSTER_WAIT_MS));
    }
    cairn_close(t.session);
    ck_assert_int_eq(logged("coordinator.log", "group default does not learn"), 1);
}

SUITE(90, .tear_down = stop);

/* A shard whose state lies on the emulated card, when the card, or what is asked of it, is not right. */
#include <inttypes.h>
#include <check.h>
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "server/shard/jobs.h"
#include "server/shard/shard.h"
#include "tests/support/emulated.h"
#include "tests/support/made_up_sysfs.h"
#include "tests/support/shard_model.h"
#include "tests/support/suite.h"

static struct scene scene;
static bool is_open;

static void close_scene(void)
{
    if (is_open) scene_close(&scene);
}

static struct emulated open_scene(const char *backend)
{
    emulated_choose("quiet=1"); // before the backend is named, which would mean a real card
    ck_assert_int_eq(setenv("CAIRN_TEST_BACKEND", backend, 1), 0);
    const struct emulated card = emulated_open("quiet=1");
    scene_open(&scene, "mem", 1, 0);
    is_open = true;
    return card;
}

/* The last that the coordinator is told of the job. */
static void expect_stopped(const char *word)
{
    const Cairn__Error *error = scene_heard(&scene, Error);
    ck_assert_msg(strstr(error->text, "job play on shard s0: ") != NULL, "%s", error->text);
    ck_assert_msg(strstr(error->text, word) != NULL, "%s", error->text);
    ck_assert_int_eq(scene.shard->jobs->state, CAIRN_JOB_FAULTED);
}

TEST(a_launch_that_fails_in_a_round_stops_the_job_with_a_sentence_and_nothing_is_published)
{
    const struct emulated card = open_scene("cuda");
    scene_serve(&scene, 2, 1);
    ck_assert(!compute_is_host(scene.shard->jobs->compute));
    scene_round_begin(&scene, 1, 0, 2);
    emulated_set(&card, "launch_fails=1");
    model_push_chunk(&scene, 1, 0, 0);
    model_push_chunk(&scene, 2, 0, 0);
    expect_stopped("CUDA");
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_DATA), 0);
    const struct versions *versions = &scene.shard->jobs->versions;
    ck_assert_uint_eq(versions->copies[versions->newest].version.step, 0);
}

TEST(an_ecc_error_while_the_initial_state_is_published_stops_the_job)
{
    const struct emulated card = open_scene("cuda");
    scene_make(&scene, 1);
    scene_join(&scene, 1, CAIRN_ROLE_WIRE_WORKER);
    scene_put_all(&scene, 1);
    emulated_set(&card, "ecc_at=1");
    scene_tell(&scene, 6, JobSeal, .job = SCENE_JOB);
    expect_stopped("ECC");
}

TEST(a_job_that_does_not_fit_on_the_card_is_refused_with_both_numbers_and_the_shard_goes_on)
{
    const struct emulated card = open_scene("cuda");
    emulated_set(&card, "others=8G");
    scene_create(&scene, 5, 1, 0, "");
    const char *text = scene_refused(&scene, 5, CAIRN_ERR_NO_MEMORY, "of Emulated card 0");
    ck_assert_msg(strstr(text, "are free; it also needs ") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "bytes of host memory: 1073741824 of memory.limit are free") != NULL,
                  "%s", text);
    emulated_set(&card, "others=0");
    scene_create(&scene, 7, 1, 0, "");
    scene_done(&scene, 7);
}

TEST(what_a_job_takes_of_the_card_is_what_it_was_admitted_for)
{
    (void)open_scene("cuda");
    scene_reshape_frozen(&scene, 4096,
                         2048); // 32 MiB of parameters, no other plane, and two copies
    struct home *home = scene.shard->device.home;
    const uint64_t before = home_free_bytes(home) - compute_staging_left(&scene.shard->device);
    scene_make(&scene, 1);
    const uint64_t taken = before - home_free_bytes(home);
    ck_assert_uint_eq(taken, scene.shard->jobs->memory.device);
    ck_assert_uint_lt(taken, (uint64_t)112 << 20);
}

TEST(a_job_that_leaves_no_room_for_the_staging_of_streams_is_refused)
{
    char others[64];
    const struct emulated card = open_scene("cuda");
    const struct compute *device = &scene.shard->device;
    const uint64_t staging = compute_staging_left(device);
    ck_assert_uint_ge(staging, (uint64_t)compute_lanes(device) << 20);
    snprintf(others, sizeof others, "others=%" PRIu64 "M",
             ((home_free_bytes(device->home) - staging / 2) >> 20));
    emulated_set(&card, others);
    scene_create(&scene, 6, 2, 0, ""); // which would fit without
    scene_refused(&scene, 6, CAIRN_ERR_NO_MEMORY, " for staging");
}

TEST(a_card_that_others_fill_once_a_job_is_admitted_stops_nobody)
{
    const struct emulated card = open_scene("cuda");
    scene_make(&scene, 1);
    ck_assert_uint_eq(compute_staging_left(&scene.shard->device), 0);
    emulated_set(&card, "others=8G");
    scene_join(&scene, 1, CAIRN_ROLE_WIRE_WORKER);
    scene_put_all(&scene, 1);
    scene_seal(&scene);
    ck_assert_int_eq(scene.shard->jobs->state, CAIRN_JOB_SERVING);
}

TEST(the_pages_that_a_list_pins_are_no_other_lists)
{
    (void)open_scene("cuda");
    const struct compute *device = &scene.shard->device;
    ck_assert_uint_eq((uintptr_t)works_now(compute_loop(device))->scratch % 4096, 0);
    ck_assert_uint_eq((uintptr_t)works_now(compute_files(device))->scratch % 4096, 0);
}

static struct home_use use_now(void)
{
    return home_use(scene.shard->device.home);
}

TEST(what_a_device_copies_is_pinned_while_it_is_there_and_no_longer)
{
    (void)open_scene("cuda");
    scene_make(&scene, 1);
    struct shard_job *job = scene.shard->jobs;
    const uint64_t puts = job->puts.arena.bytes, empty = use_now().pinned_bytes;
    ck_assert_uint_ge(empty, puts + 2 * job->versions.copies[0].wire.bytes);
    scene_join(&scene, 1, CAIRN_ROLE_WIRE_WORKER);
    const uint64_t one = use_now().pinned_bytes;
    ck_assert_uint_ge(one - empty, landing_at(&job->landing, job->landing.made));
    scene_put_all(&scene, 1);
    scene_seal(&scene); // which closes the buffers of puts
    while (!LIST_EMPTY(&scene.shard->memory.releases)) scene_settle(&scene);
    const uint64_t served = use_now().pinned_bytes;
    ck_assert_uint_lt(served, one);
    scene_join(&scene, 2, CAIRN_ROLE_WIRE_WORKER);
    ck_assert_uint_gt(use_now().pinned_bytes, served);
    members_leave(job, 2);
    admit_left(job);
    ck_assert_uint_le(use_now().pinned_bytes, served + 4096); // the next slot's first page
    ck_assert_uint_eq(use_now().unpinned_bytes, 0);
}

TEST(a_job_whose_memory_cannot_be_pinned_trains_and_it_is_told)
{
    const struct emulated card = open_scene("cuda");
    emulated_set(&card, "no_pinning=2");
    scene_serve(&scene, 2, 1);
    scene_round_begin(&scene, 1, 0, 2);
    Cairn__ShardStats stats = CAIRN__SHARD_STATS__INIT;
    shard_device_stats(scene.shard, &stats);
    ck_assert_uint_eq(stats.pinned_bytes, 0);
    ck_assert_uint_gt(stats.unpinned_bytes, scene.shard->jobs->landing.slot_bytes);
    ck_assert_uint_gt(stats.launches, 0);
}

TEST(a_card_that_has_failed_refuses_every_job_with_its_sentence)
{
    const struct emulated card = open_scene("cuda");
    emulated_set(&card, "ecc_at=1");
    for (uint32_t request = 5; request < 7; request++) {
        scene_create(&scene, request, 1, 0, "");
        scene_refused(&scene, request, CAIRN_ERR_IO, "ECC");
    }
}

static uint32_t ends; /* of the process, that were asked for */

static void on_unfit(struct shard_daemon *shard, cairn_status why, void *context)
{
    (void)shard, (void)context;
    ck_assert_int_eq(why, CAIRN_ERR_IO);
    ends++;
}

/* As by any launch or copy of the device. */
static void break_card(const struct emulated *card)
{
    struct home_memory memory;
    struct sentence why;
    emulated_set(card, "ecc_at=1");
    ck_assert_int_eq(home_memory_open(scene.shard->device.home, "it", 4096, &memory, &why),
                     CAIRN_ERR_IO);
}

/* With the heartbeats of some time; the first one ends the session, and the next Hello says it. */
static void look_often(void)
{
    unfit_look(scene.shard);
    scene_until(&scene, scene.shard->unfit.is_told);
    for (int i = 0; i < 20 && ends == 0; i++) unfit_look(scene.shard);
}

TEST(a_shard_whose_card_has_failed_ends_when_nothing_else_is_there)
{
    const struct emulated card = open_scene("cuda");
    scene.shard->events.on_end = on_unfit;
    scene_serve(&scene, 2, 1);
    unfit_look(scene.shard);
    break_card(&card);
    look_often();
    ck_assert_uint_eq(ends, 1);
}

/* Of the job nothing lies on the card: it is served on. */
TEST(a_shard_whose_card_has_failed_serves_what_lies_elsewhere_and_says_that_it_is_unfit)
{
    ck_assert_int_eq(setenv("CAIRN_TEST_OFFLOAD", "1", 1), 0);
    const struct emulated card = open_scene("cuda");
    scene.shard->events.on_end = on_unfit;
    scene_serve(&scene, 2, 1);
    break_card(&card);
    Cairn__Home told;
    device_tell(scene.shard, &told);
    ck_assert_msg(strstr(told.failed, "ECC") != NULL, "%s", told.failed);
    const uint64_t serial = scene.shard->session.serial;
    look_often();
    ck_assert_uint_eq(ends, 0);
    ck_assert_uint_eq(scene.shard->session.serial, serial + 1); // once
    ck_assert_int_eq(scene.shard->jobs->state, CAIRN_JOB_SERVING);
}

TEST(without_a_driver_auto_takes_host_memory_and_says_why)
{
    ck_assert_int_eq(setenv("CAIRN_TEST_BACKEND", "auto", 1), 0);
    ck_assert_int_eq(setenv("CAIRN_CUDA_DRIVER", "/nonexistent/libcuda.so.1", 1), 0);
    scene_open(&scene, "mem", 1, 0);
    is_open = true;
    ck_assert_ptr_null(scene.shard->device.home);
    ck_assert_msg(strstr(scene.shard->no_device.text, "/nonexistent/libcuda.so.1") != NULL, "%s",
                  scene.shard->no_device.text);
    scene_serve(&scene, 2, 1);
}

/* What the daemon says when it does not start. */
static void expect_refusal(const char *settings, const char *word)
{
    char command[4096], text[4096];
    snprintf(command, sizeof command,
             "'%s/cairn-shard' --set shard.name=s --set compute.backend=cuda %s 2>&1",
             CAIRN_BIN_DIR, settings);
    FILE *daemon = popen(command, "r");
    ck_assert_ptr_nonnull(daemon);
    text[fread(text, 1, sizeof text - 1, daemon)] = '\0';
    const int status = pclose(daemon);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) != 0, "%s", text);
    ck_assert_msg(strstr(text, "compute.backend = cuda: ") != NULL, "%s", text);
    ck_assert_msg(strstr(text, word) != NULL, "%s", text);
}

/* ---- lists that follow one another ---- */

enum { LIST = 256, ZEROED_BYTES = 512 }; /* items of a list, at most; bytes of an item */
static struct home_memory zeroed;
static uint32_t zeroed_runs; /* that are done */
static atomic_uint described, lists;
static _Atomic(const struct works_list *) list_of[8]; /* the lists */

static bool describe_zero(struct work_run *run, uint32_t item, uint32_t stage, struct works *works)
{
    const struct works_list *now = works_now(works);
    (void)run, (void)stage;
    for (int i = 0; i < 8; i++) {
        const struct works_list *none = NULL;
        if (atomic_load(&list_of[i]) == now) break;
        if (!atomic_compare_exchange_strong(&list_of[i], &none, now)) continue;
        atomic_fetch_add(&lists, 1);
        break;
    }
    atomic_fetch_add(&described, 1);
    struct home_work *work = works_add(works, CAIRN_WORK_ZERO);
    work->zero.at = (uint8_t *)zeroed.base + (size_t)item * ZEROED_BYTES;
    work->zero.bytes = ZEROED_BYTES;
    return false;
}

static void zero_done(struct work_run *run)
{
    (void)run;
    zeroed_runs++;
}

static struct work_run zeroing(struct compute *compute, uint32_t items)
{
    return (struct work_run) {
        .compute = compute, .item_count = items, .describe = describe_zero, .done = zero_done
    };
}

static void open_zeroed(struct compute *compute, uint32_t items)
{
    struct sentence why;
    ck_assert_int_eq(compute_begin(compute, &why), CAIRN_OK);
    ck_assert_int_eq(
        home_memory_open(compute->home, "test", (uint64_t)items * ZEROED_BYTES, &zeroed, &why),
        CAIRN_OK);
}

/* Nothing runs on the card until all of them are there. */
TEST(lists_of_a_run_are_begun_before_the_first_is_waited_for)
{
    enum { ITEMS = 2 * LIST + LIST / 3 };
    const struct emulated card = open_scene("cuda");
    struct compute *compute = &scene.shard->device;
    struct work_run run = zeroing(compute, ITEMS);
    open_zeroed(compute, ITEMS);
    const uint64_t launches = card.cairn_emulator_launches(), gaps = card.cairn_emulator_gaps();
    emulated_set(&card, "stuck=1");
    compute_submit(&run);
    while (atomic_load(&described) < ITEMS ||
           card.cairn_emulator_launches() < launches + atomic_load(&lists))
        sched_yield();
    emulated_set(&card, "stuck=0");
    scene_until(&scene, zeroed_runs != 0);
    ck_assert_int_eq(atomic_load(&run.status), CAIRN_OK);
    ck_assert_uint_ge(atomic_load(&lists), 3);
    ck_assert_uint_eq(card.cairn_emulator_launches(), launches + atomic_load(&lists));
    ck_assert_uint_eq(card.cairn_emulator_gaps(), gaps + 1);
    home_memory_close(&zeroed);
}

/* A card with one thread, without a shard. */
static struct {
    struct emulated card;
    uv_loop_t loop;
    struct compute compute;
} alone;

static void open_alone(uint32_t items)
{
    struct home *home;
    struct sentence why;
    emulated_choose("quiet=1");
    alone.card = emulated_open("quiet=1");
    ck_assert_int_eq(uv_loop_init(&alone.loop), 0);
    ck_assert_int_eq(home_open_cuda("0", &home, &why), CAIRN_OK);
    ck_assert_int_eq(compute_open(&alone.compute, &alone.loop, home, "alone", 1, &why), CAIRN_OK);
    open_zeroed(&alone.compute, items);
}

static void close_alone(void)
{
    home_memory_close(&zeroed);
    ck_assert(compute_stop(&alone.compute, NULL, NULL));
    uv_run(&alone.loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&alone.loop), 0);
    compute_close(&alone.compute);
    ck_assert_uint_eq(alone.card.cairn_emulator_complaints(), 0);
}

TEST(a_thread_begins_each_list_before_it_waits_for_the_one_ahead)
{
    enum { LISTS = 5 };
    open_alone(LISTS * LIST);
    const struct emulated *card = &alone.card;
    struct work_run run = zeroing(&alone.compute, LISTS * LIST);
    const uint64_t launches = card->cairn_emulator_launches(), gaps = card->cairn_emulator_gaps();
    compute_submit(&run);
    while (zeroed_runs == 0) uv_run(&alone.loop, UV_RUN_ONCE);
    ck_assert_int_eq(atomic_load(&run.status), CAIRN_OK);
    ck_assert_uint_eq(card->cairn_emulator_launches(), launches + LISTS);
    ck_assert_uint_eq(card->cairn_emulator_gaps(), gaps + 1);
    close_alone();
}

static atomic_bool is_at_gate, is_gate_open;

/* The thread's, until what is to be in the lists behind it is there. */
static bool describe_gate(struct work_run *run, uint32_t item, uint32_t stage, struct works *works)
{
    (void)run, (void)item, (void)stage, (void)works;
    atomic_store(&is_at_gate, true);
    while (!atomic_load(&is_gate_open)) sched_yield();
    return false;
}

TEST(a_list_that_fails_beside_another_fails_alone)
{
    enum { RUNS = 3 };
    open_alone(LIST);
    struct work_run gate = zeroing(&alone.compute, 1), runs[RUNS];
    gate.describe = describe_gate;
    compute_submit(&gate);
    while (!atomic_load(&is_at_gate)) sched_yield();
    for (int i = 0; i < RUNS; i++) {
        runs[i] = zeroing(&alone.compute, LIST);
        compute_submit(&runs[i]);
    }
    emulated_set(&alone.card, "result=1,call_fails=2"); // the second launch
    atomic_store(&is_gate_open, true);
    while (zeroed_runs < 1 + RUNS) uv_run(&alone.loop, UV_RUN_ONCE);
    ck_assert_int_eq(atomic_load(&runs[0].status), CAIRN_OK);
    ck_assert_int_eq(atomic_load(&runs[1].status), CAIRN_ERR_IO);
    ck_assert_int_eq(atomic_load(&runs[2].status), CAIRN_OK);
    close_alone();
}

/* Threads of that name of this process; processors_out: where they all may run. */
static int threads_named(const char *name, cpu_set_t *processors_out)
{
    char path[300], comm[32];
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(tasks);
    for (const struct dirent *task; (task = readdir(tasks)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file == NULL) continue;
        if (fgets(comm, sizeof comm, file) != NULL && strncmp(comm, name, strlen(name)) == 0) {
            cpu_set_t own;
            ck_assert_int_eq(sched_getaffinity(atoi(task->d_name), sizeof own, &own), 0);
            if (count++ == 0) *processors_out = own;
            ck_assert(CPU_EQUAL(processors_out, &own));
        }
        fclose(file);
    }
    closedir(tasks);
    return count;
}

TEST(threads_of_a_card_run_on_the_node_that_it_is_next_to_and_no_others_do)
{
    struct made_up_sysfs made;
    cpu_set_t before, after, there;
    const unsigned last = made_up_sysfs_last_processor();
    made_up_sysfs_open(&made);
    made_up_sysfs_device(&made, "0000:e0:00.0", "0\n");
    made_up_sysfs_node(&made, 0, last);
    ck_assert_int_eq(sched_getaffinity(0, sizeof before, &before), 0);
    open_scene("cuda");
    while (threads_named("cairn-device", &there) < 4) sched_yield(); // each names itself
    ck_assert(CPU_ISSET(last, &there) && CPU_COUNT(&there) == 1);
    ck_assert_int_eq(sched_getaffinity(0, sizeof after, &after), 0);
    ck_assert(CPU_EQUAL(&before, &after));
    scene_serve(&scene, 2, 1);
    close_scene();
    is_open = false;
    made_up_sysfs_close(&made);
}

TEST(a_device_that_is_not_there_is_a_sentence)
{
    emulated_choose("devices=2");
    expect_refusal("--set compute.device=3", "3");
    expect_refusal("--set compute.device=GPU-11111111", "GPU-11111111");
}

TEST(a_driver_that_is_missing_or_too_old_is_a_sentence)
{
    emulated_choose("driver=11040");
    expect_refusal("", "11.4");
    ck_assert_int_eq(setenv("CAIRN_CUDA_DRIVER", "/nonexistent/libcuda.so.1", 1), 0);
    expect_refusal("", "/nonexistent/libcuda.so.1");
}

SUITE(60, .tear_down = close_scene);

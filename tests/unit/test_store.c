/* What the coordinator keeps on disk: it comes back, whole, and a foreign file is refused. */
#include <check.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/coordinator/store.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/suite.h"

static struct coord_store *open_store(void)
{
    struct coord_store *store;
    struct sentence why = { "" };
    ck_assert_msg(store_open(scratch, &store, &why) == CAIRN_OK, "%s", why.text);
    return store;
}

static const struct stored_shard shards[] = { { .name = "s0" },
                                              { .name = "s1" },
                                              { .name = "s2" } };
static struct stored_job sample(void)
{
    return (struct stored_job) { .name = "mnist",
                                 .spec = (const uint8_t *)"spec",
                                 .spec_bytes = 4,
                                 .layout = (const uint8_t *)"layout",
                                 .layout_bytes = 6,
                                 .shards = shards,
                                 .shard_count = 3,
                                 .id = 0xfedcba9876543210u,
                                 .generation = 2,
                                 .generation_reserved = 2,
                                 .epoch = 7,
                                 .round_reserved = 4096,
                                 .base_step = 12,
                                 .initialized = false };
}

struct seen {
    size_t count;
    struct stored_job last;
    char name[32], spec[32], shard[32];
};
static cairn_status see(void *context, const void *row, struct sentence *why)
{
    const struct stored_job *job = row;
    struct seen *seen = context;
    (void)why;
    seen->count++;
    seen->last = *job;
    snprintf(seen->name, sizeof seen->name, "%s", job->name);
    snprintf(seen->spec, sizeof seen->spec, "%.*s", (int)job->spec_bytes, (const char *)job->spec);
    if (job->shard_count > 0) {
        snprintf(seen->shard, sizeof seen->shard, "%s", job->shards[job->shard_count - 1].name);
    }
    return CAIRN_OK;
}
static struct seen read_all(struct coord_store *store)
{
    struct seen seen = { 0 };
    ck_assert_int_eq(store_each(store, CAIRN_STORED_JOBS, see, &seen, NULL), CAIRN_OK);
    return seen;
}

static cairn_status put(struct coord_store *store, enum store_change change, const void *row,
                        struct sentence *why)
{
    return store_write(store, change, row, 1, why);
}
static void set_epoch(struct coord_store *store, uint64_t epoch, uint64_t round)
{
    struct stored_job job = sample();
    job.epoch = epoch;
    job.round_reserved = round;
    ck_assert_int_eq(put(store, CAIRN_STORE_EPOCH, &job, NULL), CAIRN_OK);
}
static void reserve_generation(struct coord_store *store, uint64_t generation)
{
    struct stored_job job = sample();
    job.generation_reserved = generation;
    ck_assert_int_eq(put(store, CAIRN_STORE_GENERATION, &job, NULL), CAIRN_OK);
}

TEST(the_incarnation_grows_by_one_with_every_open)
{
    for (uint64_t i = 1; i <= 3; i++) {
        struct coord_store *store = open_store();
        ck_assert_uint_eq(store_meta(store)->incarnation, i);
        ck_assert_uint_eq(store_rows_written(store), 0);
        store_close(store);
    }
}

TEST(a_job_comes_back_as_it_was)
{
    struct coord_store *store = open_store();
    const struct stored_job job = sample();
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, NULL), CAIRN_OK);
    set_epoch(store, 9, 8192);
    struct stored_job begun = job;
    begun.initialized = true;
    ck_assert_int_eq(put(store, CAIRN_STORE_INITIALIZED, &begun, NULL), CAIRN_OK);
    reserve_generation(store, 5);
    store_close(store);
    store = open_store();
    const struct seen seen = read_all(store);
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_str_eq(seen.name, "mnist");
    ck_assert_str_eq(seen.spec, "spec");
    ck_assert_str_eq(seen.shard, "s2");
    ck_assert_uint_eq(seen.last.id, job.id);
    ck_assert_uint_eq(seen.last.generation, 2);
    ck_assert_uint_eq(seen.last.generation_reserved, 5);
    ck_assert_uint_eq(seen.last.epoch, 9);
    ck_assert_uint_eq(seen.last.round_reserved, 8192);
    ck_assert_uint_eq(seen.last.base_step, 12);
    ck_assert(seen.last.initialized);
    store_close(store);
}

/* One of which each field is another. */
static struct stored_job full_job(void)
{
    static const struct stored_shard weighed[] = { { .name = "s0", .weight = 0 },
                                                   { .name = "", .weight = 1 },
                                                   { .name = "s2", .weight = 2.5 } };
    struct stored_job job = sample();
    job.shards = weighed;
    job.weighed = true;
    job.layout_before = (const uint8_t *)"before";
    job.layout_before_bytes = 6;
    job.layout_at_generation = 21;
    job.layout_at_step = 22;
    job.pause = 0.25;
    job.origin.generation = 23;
    job.origin.from.generation = 24;
    job.origin.from.step = 25;
    return job;
}

/* It is that row, field by field. */
static cairn_status expect_job(void *context, const void *row, struct sentence *why)
{
    const struct stored_job *is = row, *want = context;
    (void)why;
#define SAME(field) ck_assert_uint_eq((uint64_t)is->field, (uint64_t)want->field)
    SAME(id);
    ck_assert_str_eq(is->name, want->name);
    SAME(spec_bytes);
    ck_assert_mem_eq(is->spec, want->spec, want->spec_bytes);
    SAME(layout_bytes);
    ck_assert_mem_eq(is->layout, want->layout, want->layout_bytes);
    SAME(generation);
    SAME(generation_reserved);
    SAME(epoch);
    SAME(round_reserved);
    SAME(base_step);
    SAME(initialized);
    SAME(origin.generation);
    SAME(origin.from.generation);
    SAME(origin.from.step);
    SAME(layout_at_generation);
    SAME(layout_at_step);
    SAME(layout_before_bytes);
    if (want->layout_before_bytes > 0)
        ck_assert_mem_eq(is->layout_before, want->layout_before, want->layout_before_bytes);
    ck_assert_double_eq(is->pause, want->pause);
    SAME(weighed);
    SAME(shard_count);
    for (uint32_t i = 0; i < want->shard_count; i++) {
        ck_assert_str_eq(is->shards[i].name, want->shards[i].name);
        ck_assert_double_eq(is->shards[i].weight, want->shards[i].weight);
    }
#undef SAME
    return CAIRN_OK;
}
static void expect_stored(struct coord_store *store, struct stored_job job)
{
    ck_assert_int_eq(store_each(store, CAIRN_STORED_JOBS, expect_job, &job, NULL), CAIRN_OK);
    ck_assert_uint_eq(read_all(store).count, 1);
}

TEST(every_field_of_a_job_comes_back_and_a_change_sets_no_more_than_it_says)
{
    struct coord_store *store = open_store();
    const struct stored_job full = full_job();
    struct stored_job want = sample(), other = full;
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &want, NULL), CAIRN_OK);
    expect_stored(store, want);
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &full, NULL), CAIRN_OK);
    expect_stored(store, full);
    other.name = "other";
    other.spec = other.layout = (const uint8_t *)"else";
    other.spec_bytes = other.layout_bytes = 4;
    other.generation = other.generation_reserved = other.epoch = other.round_reserved = 5000;
    other.base_step = other.layout_at_generation = other.layout_at_step = 5001;
    other.origin = (struct origin) { 0 };
    other.initialized = true;
    other.layout_before = NULL;
    other.layout_before_bytes = 0;
    other.weighed = false;
    other.shards = shards;
    want = full;
    want.initialized = true;
    ck_assert_int_eq(put(store, CAIRN_STORE_INITIALIZED, &other, NULL), CAIRN_OK);
    expect_stored(store, want);
    want.generation_reserved = 5000;
    ck_assert_int_eq(put(store, CAIRN_STORE_GENERATION, &other, NULL), CAIRN_OK);
    expect_stored(store, want);
    want.epoch = want.round_reserved = 5000;
    ck_assert_int_eq(put(store, CAIRN_STORE_EPOCH, &other, NULL), CAIRN_OK);
    expect_stored(store, want);
    want = other;
    want.name = full.name;
    want.spec = full.spec;
    want.spec_bytes = full.spec_bytes;
    want.generation = full.generation;
    want.base_step = full.base_step;
    want.origin = full.origin;
    ck_assert_int_eq(put(store, CAIRN_STORE_LAYOUT, &other, NULL), CAIRN_OK);
    expect_stored(store, want);
    store_close(store);
}

TEST(a_copy_of_rows_has_its_own_texts)
{
    char name[] = "mnist", line[] = "line";
    struct stored_job job = full_job();
    struct stored_key keys[2] = { { line, true, 1 }, { "other", false, 2 } };
    job.name = name;
    struct stored_job *copy = store_copy(CAIRN_STORE_JOB, &job, 1);
    struct stored_key *pair = store_copy(CAIRN_STORE_KEY, keys, 2);
    ck_assert(copy != NULL && pair != NULL);
    memset(name, 'x', sizeof name);
    memset(line, 'x', sizeof line);
    struct stored_job want = full_job();
    ck_assert_int_eq(expect_job(&want, copy, NULL), CAIRN_OK);
    ck_assert_str_eq(pair[0].line, "line");
    ck_assert_str_eq(pair[1].line, "other");
    ck_assert(pair[0].is_own && !pair[1].is_own);
    free(copy);
    free(pair);
}

static cairn_status count_row(void *context, const void *row, struct sentence *why)
{
    (void)row;
    (void)why;
    ++*(size_t *)context;
    return CAIRN_OK;
}

/* Numbers from `from` on. */
static void add_events(struct coord_store *store, uint64_t from, size_t count)
{
    struct stored_event *events = calloc(count, sizeof *events);
    ck_assert_ptr_nonnull(events);
    for (size_t i = 0; i < count; i++)
        events[i] = (struct stored_event) { from + i, 7, "up", "", "shard s0", "it came" };
    ck_assert_int_eq(store_write(store, CAIRN_STORE_EVENTS, events, count, NULL), CAIRN_OK);
    free(events);
}

TEST(the_newest_events_and_the_last_dropped_jobs_are_kept_and_events_count_as_no_writes)
{
    struct coord_store *store = open_store();
    size_t events = 0, dropped = 0;
    add_events(store, 1, CAIRN_STORE_EVENTS_MAX);
    add_events(store, CAIRN_STORE_EVENTS_MAX, 6); // the first of them is there already
    ck_assert_uint_eq(store_rows_written(store), 0);
    ck_assert_int_eq(store_each(store, CAIRN_STORED_EVENTS, count_row, &events, NULL), CAIRN_OK);
    ck_assert_uint_eq(events, CAIRN_STORE_EVENTS_MAX);
    struct stored_job *jobs = calloc(CAIRN_STORE_DROPPED_MAX + 1, sizeof *jobs);
    char(*names)[16] = calloc(CAIRN_STORE_DROPPED_MAX + 1, sizeof *names);
    ck_assert(jobs != NULL && names != NULL);
    for (size_t i = 0; i <= CAIRN_STORE_DROPPED_MAX; i++) {
        snprintf(names[i], sizeof names[i], "job-%zu", i);
        jobs[i] = sample();
        jobs[i].id = i + 1;
        jobs[i].name = names[i];
        jobs[i].shard_count = 0;
    }
    ck_assert_int_eq(store_write(store, CAIRN_STORE_JOB, jobs, CAIRN_STORE_DROPPED_MAX + 1, NULL),
                     CAIRN_OK);
    ck_assert_int_eq(
        store_write(store, CAIRN_STORE_JOB_DROP, jobs, CAIRN_STORE_DROPPED_MAX + 1, NULL),
        CAIRN_OK);
    ck_assert_int_eq(store_each(store, CAIRN_STORED_DROPPED, count_row, &dropped, NULL), CAIRN_OK);
    ck_assert_uint_eq(dropped, CAIRN_STORE_DROPPED_MAX);
    free(names);
    free(jobs);
    store_close(store);
}

TEST(a_row_that_was_copied_earlier_takes_no_number_back)
{
    struct coord_store *store = open_store();
    const struct stored_job job = sample();
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, NULL), CAIRN_OK);
    set_epoch(store, 9, 8192);
    reserve_generation(store, 50);
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, NULL), CAIRN_OK);
    set_epoch(store, 8, 4096);
    reserve_generation(store, 5);
    const struct seen seen = read_all(store);
    ck_assert_uint_eq(seen.last.epoch, 9);
    ck_assert_uint_eq(seen.last.round_reserved, 8192);
    ck_assert_uint_eq(seen.last.generation_reserved, 50);
    store_close(store);
}

TEST(a_job_put_again_replaces_itself_and_its_shards)
{
    struct coord_store *store = open_store();
    struct stored_job job = sample();
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, NULL), CAIRN_OK);
    job.shard_count = 1;
    job.generation = 3;
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, NULL), CAIRN_OK);
    const struct seen seen = read_all(store);
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_uint_eq(seen.last.shard_count, 1);
    ck_assert_uint_eq(seen.last.generation, 3);
    store_close(store);
}

TEST(a_second_job_of_a_name_is_refused_and_changes_nothing)
{
    struct coord_store *store = open_store();
    struct stored_job job = sample();
    struct sentence why = { "" };
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, NULL), CAIRN_OK);
    job.id = 1;
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, &why), CAIRN_ERR_EXISTS);
    ck_assert_ptr_nonnull(strstr(why.text, "mnist"));
    ck_assert_uint_eq(read_all(store).last.id, sample().id);
    store_close(store);
}

TEST(a_dropped_job_is_gone_with_its_shards)
{
    struct coord_store *store = open_store();
    struct stored_job job = sample();
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, NULL), CAIRN_OK);
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB_DROP, &job, NULL), CAIRN_OK);
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB_DROP, &job, NULL), CAIRN_ERR_NOT_FOUND);
    ck_assert_uint_eq(read_all(store).count, 0);
    job.shard_count = 2;
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, NULL), CAIRN_OK);
    ck_assert_uint_eq(read_all(store).last.shard_count, 2);
    store_close(store);
}

static void write_file(const char *name, const void *bytes, size_t size, off_t at)
{
    char path[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, bytes, size, at), (ssize_t)size);
    close(fd);
}

TEST_EACH(it_is_for_this_user_only_whatever_the_umask, 0, 2)
{
    static const mode_t umasks[] = { 0, 077 };
    struct stat info;
    char path[300];
    umask(umasks[_i]);
    struct coord_store *store = open_store();
    snprintf(path, sizeof path, "%s/coordinator.db", scratch);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    store_close(store);
    ck_assert_int_eq(chmod(path, 0644), 0); // as a former version made it
    store_close(open_store());
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
}

TEST(a_file_that_is_no_database_is_refused)
{
    struct coord_store *store;
    struct sentence why = { "" };
    char text[4096];
    memset(text, 'x', sizeof text);
    write_file("coordinator.db", text, sizeof text, 0);
    ck_assert_int_eq(store_open(scratch, &store, &why), CAIRN_ERR_CORRUPT);
    ck_assert_ptr_nonnull(strstr(why.text, "coordinator.db"));
}

TEST(a_database_of_another_program_is_refused)
{
    struct coord_store *store = open_store();
    struct sentence why = { "" };
    const uint8_t id[4] = { 0, 0, 0, 1 }; // SQLite's header has the application id at 68
    const struct stored_job job = sample();
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, NULL), CAIRN_OK);
    store_close(store);
    write_file("coordinator.db", id, sizeof id, 68);
    ck_assert_int_eq(store_open(scratch, &store, &why), CAIRN_ERR_CORRUPT);
    ck_assert_ptr_nonnull(strstr(why.text, "not the database of a cairn-coordinator"));
}

/* As a program of another version left it that was killed: the last change is in the journal alone. */
static void change_store(const char *sql)
{
    char path[CAIRN_SCRATCH_BYTES + 32], journal[sizeof path + 8];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/coordinator.db", scratch);
    store_close(open_store());
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
    snprintf(journal, sizeof journal, "%s-wal", path);
    ck_assert_int_eq(access(journal, F_OK), 0);
}

/* Each time, and the file is all there is to move away then. */
static void expect_version_refused(const char *version)
{
    struct coord_store *store;
    struct sentence why = { "" };
    char journal[CAIRN_SCRATCH_BYTES + 32];
    snprintf(journal, sizeof journal, "%s/coordinator.db-wal", scratch);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(store_open(scratch, &store, &why), CAIRN_ERR_VERSION);
        ck_assert_msg(strstr(why.text, version) != NULL, "%s", why.text);
        ck_assert_ptr_nonnull(strstr(why.text, "this program has version 1 "));
        ck_assert_ptr_nonnull(strstr(why.text, "Move the file away and start again"));
        ck_assert_ptr_nonnull(strstr(why.text, "`cairn cluster adopt --yes`"));
        ck_assert_int_ne(access(journal, F_OK), 0);
    }
}

TEST_EACH(a_store_of_another_version_is_refused_with_what_to_do, 0, 3)
{
    static const char *const sql[] = { "PRAGMA user_version = 0", "PRAGMA user_version = 8",
                                       "PRAGMA user_version = 99" };
    static const char *const said[] = { "of version 0;", "of version 8;", "of version 99;" };
    change_store(sql[_i]);
    expect_version_refused(said[_i]);
}

TEST(a_store_that_says_this_version_of_other_tables_is_refused)
{
    change_store("ALTER TABLE meta RENAME identity TO name");
    expect_version_refused("of version 1 with other tables;");
}

static cairn_status see_name(void *context, const void *row, struct sentence *why)
{
    const char *shard = ((const struct stored_leaving *)row)->shard;
    char *seen = context;
    const size_t length = strlen(seen);
    (void)why;
    snprintf(seen + length, 8 - length, "%s", shard);
    return CAIRN_OK;
}

TEST(shards_that_leave_are_known_until_they_do_not)
{
    struct coord_store *store = open_store();
    struct sentence why;
    char seen[8] = "";
    ck_assert_int_eq(put(store, CAIRN_STORE_LEAVE, &(struct stored_leaving) { "s0" }, &why),
                     CAIRN_OK);
    ck_assert_int_eq(put(store, CAIRN_STORE_LEAVE, &(struct stored_leaving) { "s1" }, &why),
                     CAIRN_OK);
    ck_assert_int_eq(put(store, CAIRN_STORE_LEAVE, &(struct stored_leaving) { "s1" }, &why),
                     CAIRN_OK);
    ck_assert_int_eq(put(store, CAIRN_STORE_STAY, &(struct stored_leaving) { "s0" }, &why),
                     CAIRN_OK);
    store_close(store);
    store = open_store();
    ck_assert_int_eq(store_each(store, CAIRN_STORED_LEAVING, see_name, seen, &why), CAIRN_OK);
    ck_assert_str_eq(seen, "s1");
    store_close(store);
}

static cairn_status see_dropped(void *context, const void *row, struct sentence *why)
{
    uint64_t *seen = context;
    (void)why;
    seen[0]++;
    seen[1] = ((const struct stored_dropped *)row)->job;
    return CAIRN_OK;
}

TEST(the_identity_stays_and_a_dropped_job_is_known_after_a_start)
{
    struct coord_store *store = open_store();
    const struct stored_job job = sample();
    const uint64_t identity = store_meta(store)->identity;
    uint64_t seen[2] = { 0 };
    ck_assert_uint_ne(identity, 0);
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, NULL), CAIRN_OK);
    ck_assert_int_eq(store_each(store, CAIRN_STORED_DROPPED, see_dropped, seen, NULL), CAIRN_OK);
    ck_assert_uint_eq(seen[0], 0);
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB_DROP, &job, NULL), CAIRN_OK);
    store_close(store);
    store = open_store();
    ck_assert_uint_eq(store_meta(store)->identity, identity);
    ck_assert_int_eq(store_each(store, CAIRN_STORED_DROPPED, see_dropped, seen, NULL), CAIRN_OK);
    ck_assert_uint_eq(seen[0], 1);
    ck_assert_uint_eq(seen[1], job.id);
    store_close(store);
}

TEST(the_token_of_the_snapshots_folder_comes_back)
{
    struct coord_store *store = open_store();
    ck_assert_uint_eq(store_meta(store)->storage, 0);
    const struct stored_meta meta = { .storage = UINT64_MAX - 1 };
    ck_assert_int_eq(put(store, CAIRN_STORE_STORAGE, &meta, NULL), CAIRN_OK);
    store_close(store);
    store = open_store();
    ck_assert_uint_eq(store_meta(store)->storage, UINT64_MAX - 1);
    store_close(store);
}

TEST(a_damaged_database_is_refused)
{
    struct coord_store *store = open_store();
    struct sentence why = { "" };
    uint8_t noise[4096];
    const struct stored_job job = sample();
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, NULL), CAIRN_OK);
    store_close(store);
    memset(noise, 0xa5, sizeof noise);
    for (off_t page = 1; page < 4; page++)
        write_file("coordinator.db", noise, sizeof noise, page * 4096);
    ck_assert_int_eq(store_open(scratch, &store, &why), CAIRN_ERR_CORRUPT);
    ck_assert_ptr_nonnull(strstr(why.text, "restore"));
}

TEST(a_picture_of_the_store_opens_as_a_store_with_its_jobs_and_its_identity)
{
    struct coord_store *store = open_store();
    struct stored_job job = sample();
    struct sentence why = { "" };
    uint8_t *bytes;
    size_t byte_count;
    char path[CAIRN_SCRATCH_BYTES + 32];
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, &why), CAIRN_OK);
    ck_assert_int_eq(store_picture(store, &bytes, &byte_count, &why), CAIRN_OK);
    job.id++;
    job.name = "later";
    ck_assert_int_eq(put(store, CAIRN_STORE_JOB, &job, &why), CAIRN_OK); // it goes on
    ck_assert_uint_eq(read_all(store).count, 2);
    const uint64_t identity = store_meta(store)->identity;
    store_close(store);
    scratch_remove();
    scratch_make(); // another folder
    snprintf(path, sizeof path, "%s/coordinator.db", scratch);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, byte_count, file), byte_count);
    ck_assert_int_eq(fclose(file), 0);
    free(bytes);
    store = open_store();
    const struct seen seen = read_all(store);
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_str_eq(seen.name, "mnist");
    ck_assert_str_eq(seen.shard, "s2");
    ck_assert_uint_eq(seen.last.epoch, 7);
    ck_assert_uint_eq(store_meta(store)->identity, identity);
    ck_assert_uint_eq(store_meta(store)->incarnation, 2);
    store_close(store);
}

SUITE(30, scratch_make, scratch_remove);

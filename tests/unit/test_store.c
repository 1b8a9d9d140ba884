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

static struct coord_store *store; /* NULL: closed */

static void open_store(void)
{
    struct sentence why = { "" };
    ck_assert_msg(store_open(scratch, NULL, &store, &why) == CAIRN_OK, "%s", why.text);
}

static void close_store(void)
{
    store_close(store);
    store = NULL;
}

static void reopen(void)
{
    close_store();
    open_store();
}

/* It is not opened, and the sentence has the word. */
static void expect_unopened(cairn_status status, const char *word)
{
    struct coord_store *none;
    struct sentence why = { "" };
    ck_assert_int_eq(store_open(scratch, NULL, &none, &why), status);
    ck_assert_msg(strstr(why.text, word) != NULL, "%s", why.text);
}

static void set_up(void)
{
    scratch_make();
    open_store();
}

static void tear_down(void)
{
    if (store != NULL) close_store();
    scratch_remove();
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
static struct seen read_all(void)
{
    struct seen seen = { 0 };
    ck_assert_int_eq(store_each(store, CAIRN_STORED_JOBS, see, &seen, NULL), CAIRN_OK);
    return seen;
}

static void put(enum store_change change, const void *row)
{
    struct sentence why = { "" };
    ck_assert_msg(store_write(store, change, row, 1, &why) == CAIRN_OK, "%s", why.text);
}
static void set_epoch(uint64_t epoch, uint64_t round)
{
    struct stored_job job = sample();
    job.epoch = epoch;
    job.round_reserved = round;
    put(CAIRN_STORE_EPOCH, &job);
}
static void reserve_generation(uint64_t generation)
{
    struct stored_job job = sample();
    job.generation_reserved = generation;
    put(CAIRN_STORE_GENERATION, &job);
}

TEST(the_incarnation_grows_by_one_with_every_open)
{
    for (uint64_t i = 1; i <= 3; i++) {
        ck_assert_uint_eq(store_meta(store)->incarnation, i);
        ck_assert_uint_eq(store_rows_written(store), 0);
        reopen();
    }
}

TEST(a_job_comes_back_as_it_was)
{
    const struct stored_job job = sample();
    put(CAIRN_STORE_JOB, &job);
    set_epoch(9, 8192);
    struct stored_job begun = job;
    begun.initialized = true;
    put(CAIRN_STORE_INITIALIZED, &begun);
    reserve_generation(5);
    reopen();
    const struct seen seen = read_all();
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
}

/* One of which each field is another. */
static struct stored_job full_job(void)
{
    static const struct stored_shard weighed[] = { { .name = "s0", .weight = 0 },
                                                   { .name = "", .weight = 1 },
                                                   { .name = "s2", .weight = 2.5 } };
    static const struct stored_tenant tenant = { .owner = "team-a",
                                                 .shared = "team-b",
                                                 .shared_read = "team-c,team-d",
                                                 .made_by = "worker w3",
                                                 .made_from = "10.0.0.3:4123",
                                                 .made_unix_s = 26 };
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
    job.turns = (struct turns) { 2, { { 20, { 19, 18 } }, { 17, { 16, 15 } } } };
    job.tenant = &tenant;
    return job;
}

static void expect_tenant(const struct stored_tenant *is, const struct stored_tenant *want)
{
    ck_assert_int_eq(is != NULL, want != NULL);
    if (want == NULL) return;
    ck_assert_str_eq(is->owner, want->owner);
    ck_assert_str_eq(is->shared, want->shared);
    ck_assert_str_eq(is->shared_read, want->shared_read);
    ck_assert_str_eq(is->made_by, want->made_by);
    ck_assert_str_eq(is->made_from, want->made_from);
    ck_assert_uint_eq(is->made_unix_s, want->made_unix_s);
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
    SAME(turns.count);
    for (uint32_t i = 0; i < want->turns.count; i++) {
        SAME(turns.list[i].generation);
        SAME(turns.list[i].from.generation);
        SAME(turns.list[i].from.step);
    }
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
    expect_tenant(is->tenant, want->tenant);
    return CAIRN_OK;
}
static void expect_stored(struct stored_job job)
{
    ck_assert_int_eq(store_each(store, CAIRN_STORED_JOBS, expect_job, &job, NULL), CAIRN_OK);
    ck_assert_uint_eq(read_all().count, 1);
}

TEST(every_field_of_a_job_comes_back_and_a_change_sets_no_more_than_it_says)
{
    const struct stored_job full = full_job();
    struct stored_job want = sample(), other = full;
    put(CAIRN_STORE_JOB, &want);
    expect_stored(want);
    put(CAIRN_STORE_JOB, &full);
    expect_stored(full);
    other.name = "other";
    other.spec = other.layout = (const uint8_t *)"else";
    other.spec_bytes = other.layout_bytes = 4;
    other.generation = other.generation_reserved = other.epoch = other.round_reserved = 5000;
    other.base_step = other.layout_at_generation = other.layout_at_step = 5001;
    other.origin = (struct origin) { 0 };
    other.turns = (struct turns) { 0 };
    other.initialized = true;
    other.layout_before = NULL;
    other.layout_before_bytes = 0;
    other.weighed = false;
    other.shards = shards;
    const struct stored_tenant else_s = { full.id, "else", "", "", "", "", 27 };
    other.tenant = &else_s;
    want = full;
    want.initialized = true;
    put(CAIRN_STORE_INITIALIZED, &other);
    expect_stored(want);
    want.generation_reserved = 5000;
    put(CAIRN_STORE_GENERATION, &other);
    expect_stored(want);
    want.epoch = want.round_reserved = 5000;
    put(CAIRN_STORE_EPOCH, &other);
    expect_stored(want);
    want = other;
    want.tenant = full.tenant;
    want.name = full.name;
    want.spec = full.spec;
    want.spec_bytes = full.spec_bytes;
    want.generation = full.generation;
    want.base_step = full.base_step;
    want.origin = full.origin;
    want.turns = full.turns;
    put(CAIRN_STORE_LAYOUT, &other);
    expect_stored(want);
    want.tenant = &else_s;
    put(CAIRN_STORE_TENANT, &else_s);
    expect_stored(want);
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
static void add_events(uint64_t from, size_t count)
{
    struct stored_event *events = calloc(count, sizeof *events);
    ck_assert_ptr_nonnull(events);
    for (size_t i = 0; i < count; i++)
        events[i] = (struct stored_event) { 0, from + i, 7, "up", "", "shard s0", "it came" };
    ck_assert_int_eq(store_write(store, CAIRN_STORE_EVENTS, events, count, NULL), CAIRN_OK);
    free(events);
}

TEST(the_newest_events_and_the_last_dropped_jobs_are_kept_and_events_count_as_no_writes)
{
    size_t events = 0, dropped = 0;
    add_events(1, CAIRN_STORE_EVENTS_MAX);
    add_events(CAIRN_STORE_EVENTS_MAX, 6); // the first of them is there already
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
}

TEST(a_row_that_was_copied_earlier_takes_no_number_back)
{
    const struct stored_job job = sample();
    put(CAIRN_STORE_JOB, &job);
    set_epoch(9, 8192);
    reserve_generation(50);
    put(CAIRN_STORE_JOB, &job);
    set_epoch(8, 4096);
    reserve_generation(5);
    const struct seen seen = read_all();
    ck_assert_uint_eq(seen.last.epoch, 9);
    ck_assert_uint_eq(seen.last.round_reserved, 8192);
    ck_assert_uint_eq(seen.last.generation_reserved, 50);
}

TEST(a_job_put_again_replaces_itself_and_its_shards)
{
    struct stored_job job = sample();
    put(CAIRN_STORE_JOB, &job);
    job.shard_count = 1;
    job.generation = 3;
    put(CAIRN_STORE_JOB, &job);
    const struct seen seen = read_all();
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_uint_eq(seen.last.shard_count, 1);
    ck_assert_uint_eq(seen.last.generation, 3);
}

TEST(a_second_job_of_a_name_is_refused_and_changes_nothing)
{
    struct stored_job job = sample();
    struct sentence why = { "" };
    put(CAIRN_STORE_JOB, &job);
    job.id = 1;
    ck_assert_int_eq(store_write(store, CAIRN_STORE_JOB, &job, 1, &why), CAIRN_ERR_EXISTS);
    ck_assert_ptr_nonnull(strstr(why.text, "mnist"));
    ck_assert_uint_eq(read_all().last.id, sample().id);
}

TEST(a_dropped_job_is_gone_with_its_shards)
{
    struct stored_job job = sample();
    put(CAIRN_STORE_JOB, &job);
    put(CAIRN_STORE_JOB_DROP, &job);
    ck_assert_int_eq(store_write(store, CAIRN_STORE_JOB_DROP, &job, 1, NULL), CAIRN_ERR_NOT_FOUND);
    ck_assert_uint_eq(read_all().count, 0);
    job.shard_count = 2;
    put(CAIRN_STORE_JOB, &job);
    ck_assert_uint_eq(read_all().last.shard_count, 2);
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
    close_store();
    scratch_remove();
    umask(umasks[_i]);
    scratch_make();
    open_store();
    snprintf(path, sizeof path, "%s/coordinator.db", scratch);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    close_store();
    ck_assert_int_eq(chmod(path, 0644), 0); // as a former version made it
    open_store();
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
}

TEST(a_file_that_is_no_database_is_refused)
{
    char text[4096];
    memset(text, 'x', sizeof text);
    close_store();
    write_file("coordinator.db", text, sizeof text, 0);
    expect_unopened(CAIRN_ERR_CORRUPT, "coordinator.db");
}

TEST(a_database_of_another_program_is_refused)
{
    const uint8_t id[4] = { 0, 0, 0, 1 }; // SQLite's header has the application id at 68
    const struct stored_job job = sample();
    put(CAIRN_STORE_JOB, &job);
    close_store();
    write_file("coordinator.db", id, sizeof id, 68);
    expect_unopened(CAIRN_ERR_CORRUPT, "not the database of a cairn-coordinator");
}

/* As a program of another version left it that was killed: the last change is in the journal alone. */
static void change_store(const char *sql)
{
    char path[CAIRN_SCRATCH_BYTES + 32], journal[sizeof path + 8];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/coordinator.db", scratch);
    close_store();
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
    char journal[CAIRN_SCRATCH_BYTES + 32];
    snprintf(journal, sizeof journal, "%s/coordinator.db-wal", scratch);
    for (int i = 0; i < 2; i++) {
        const char *const words[] = { version, "this program has version 1 ",
                                      "Move the file away and start again",
                                      "`cairn cluster adopt --yes`" };
        for (size_t k = 0; k < sizeof words / sizeof *words; k++)
            expect_unopened(CAIRN_ERR_VERSION, words[k]);
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

static cairn_status count_tenant(void *context, const void *row, struct sentence *why)
{
    (void)row;
    (void)why;
    ++*(int *)context;
    return CAIRN_OK;
}

static int count_tenants(void)
{
    int count = 0;
    ck_assert_int_eq(store_each(store, CAIRN_STORED_TENANTS, count_tenant, &count, NULL), CAIRN_OK);
    return count;
}

TEST(a_store_older_than_owners_has_jobs_that_are_nobodys_and_gets_owners)
{
    struct stored_job want = full_job();
    put(CAIRN_STORE_JOB, &want);
    change_store("DROP TABLE tenants");
    open_store();
    want.tenant = NULL;
    expect_stored(want);
    want = full_job();
    put(CAIRN_STORE_JOB, &want);
    reopen();
    expect_stored(want);
}

TEST(who_owned_a_job_is_forgotten_with_it)
{
    const struct stored_job job = full_job();
    put(CAIRN_STORE_JOB, &job);
    ck_assert_int_eq(count_tenants(), 1);
    put(CAIRN_STORE_JOB_DROP, &job);
    ck_assert_int_eq(count_tenants(), 0);
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
    char seen[8] = "";
    put(CAIRN_STORE_LEAVE, &(struct stored_leaving) { "s0" });
    put(CAIRN_STORE_LEAVE, &(struct stored_leaving) { "s1" });
    put(CAIRN_STORE_LEAVE, &(struct stored_leaving) { "s1" });
    put(CAIRN_STORE_STAY, &(struct stored_leaving) { "s0" });
    reopen();
    ck_assert_int_eq(store_each(store, CAIRN_STORED_LEAVING, see_name, seen, NULL), CAIRN_OK);
    ck_assert_str_eq(seen, "s1");
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
    const struct stored_job job = sample();
    const uint64_t identity = store_meta(store)->identity;
    uint64_t seen[2] = { 0 };
    ck_assert_uint_ne(identity, 0);
    put(CAIRN_STORE_JOB, &job);
    ck_assert_int_eq(store_each(store, CAIRN_STORED_DROPPED, see_dropped, seen, NULL), CAIRN_OK);
    ck_assert_uint_eq(seen[0], 0);
    put(CAIRN_STORE_JOB_DROP, &job);
    reopen();
    ck_assert_uint_eq(store_meta(store)->identity, identity);
    ck_assert_int_eq(store_each(store, CAIRN_STORED_DROPPED, see_dropped, seen, NULL), CAIRN_OK);
    ck_assert_uint_eq(seen[0], 1);
    ck_assert_uint_eq(seen[1], job.id);
}

TEST(the_token_of_the_snapshots_folder_comes_back)
{
    ck_assert_uint_eq(store_meta(store)->storage, 0);
    const struct stored_meta meta = { .storage = UINT64_MAX - 1 };
    put(CAIRN_STORE_STORAGE, &meta);
    reopen();
    ck_assert_uint_eq(store_meta(store)->storage, UINT64_MAX - 1);
}

TEST(a_damaged_database_is_refused)
{
    uint8_t noise[4096];
    const struct stored_job job = sample();
    put(CAIRN_STORE_JOB, &job);
    close_store();
    memset(noise, 0xa5, sizeof noise);
    for (off_t page = 1; page < 4; page++)
        write_file("coordinator.db", noise, sizeof noise, page * 4096);
    expect_unopened(CAIRN_ERR_CORRUPT, "restore");
}

TEST(a_picture_of_the_store_opens_as_a_store_with_its_jobs_and_its_identity)
{
    struct stored_job job = sample();
    struct sentence why = { "" };
    uint8_t *bytes;
    size_t byte_count;
    char path[CAIRN_SCRATCH_BYTES + 32];
    put(CAIRN_STORE_JOB, &job);
    ck_assert_int_eq(store_picture(store, &bytes, &byte_count, &why), CAIRN_OK);
    job.id++;
    job.name = "later";
    put(CAIRN_STORE_JOB, &job); // it goes on
    ck_assert_uint_eq(read_all().count, 2);
    const uint64_t identity = store_meta(store)->identity;
    close_store();
    scratch_remove();
    scratch_make(); // another folder
    snprintf(path, sizeof path, "%s/coordinator.db", scratch);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, byte_count, file), byte_count);
    ck_assert_int_eq(fclose(file), 0);
    free(bytes);
    open_store();
    const struct seen seen = read_all();
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_str_eq(seen.name, "mnist");
    ck_assert_str_eq(seen.shard, "s2");
    ck_assert_uint_eq(seen.last.epoch, 7);
    ck_assert_uint_eq(store_meta(store)->identity, identity);
    ck_assert_uint_eq(store_meta(store)->incarnation, 2);
}

SUITE(30, set_up, tear_down);

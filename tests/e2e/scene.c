#include "tests/e2e/scene.h"

#include <jansson.h>
#include <stdarg.h>

#include "tests/support/scratch.h"

struct cluster cluster;
struct cluster_said said;
cairn *session;
cairn_job *job;
char logs_folder[CAIRN_SCRATCH_BYTES], logs_setting[CAIRN_SCRATCH_BYTES + 16];

enum { TRAIN_ELEMS_MAX = 1 << 17 };

static const char *job_name;

uint16_t coordinator_port(void)
{
    return (uint16_t)atoi(strrchr(cluster.address, ':') + 1);
}

void stop(void)
{
    leave();
    if (cluster.folder[0] != '\0') cluster_stop(&cluster);
    cluster.folder[0] = '\0';
}

void logs_begin(void)
{
    cairn_scratch_make(logs_folder);
    snprintf(logs_setting, sizeof logs_setting, "log.path=%s", logs_folder);
}

void logs_end(void)
{
    stop();
    cairn_scratch_remove(logs_folder);
}

void join_spec(const char *name, const struct cairn_job_spec *spec)
{
    if (session == NULL) session = trainer_session(cluster.address, NULL);
    job = trainer_ready(session, name, spec);
    job_name = name;
}

void join(const char *name, const struct tiny_job *tiny)
{
    join_spec(name, &tiny->spec);
}

void leave(void)
{
    if (session != NULL) cairn_close(session);
    session = NULL;
    job = NULL;
}

uint64_t train(int rounds)
{
    uint64_t step = 0;
    for (int i = 0; i < rounds; i++) step = tiny_step(job);
    return step;
}

uint64_t train_pushing(float value, int rounds)
{
    static float gradient[TRAIN_ELEMS_MAX];
    uint64_t step = 0;
    for (size_t i = 0; i < TRAIN_ELEMS_MAX; i++) gradient[i] = value;
    for (int i = 0; i < rounds;) {
        const cairn_status status = trainer_try_step(job, "w", gradient, &step);
        if (status == CAIRN_ERR_EPOCH_CHANGED) continue;
        good(status);
        i++;
    }
    return step;
}

cairn *session_named(const char *name)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = cluster.address,
                                     .name = name };
    cairn *opened;
    good(cairn_open(&opts, &opened));
    return opened;
}

struct trainer attach(const char *name, const struct tiny_job *tiny)
{
    return tiny_attach(&cluster, name, tiny);
}

cairn_job *join_reader(const char *name, const char *fabric, cairn **session_out)
{
    cairn_job *reader;
    *session_out = trainer_session(cluster.address, fabric);
    good(cairn_job_open(*session_out, name, NULL, CAIRN_READER, CLUSTER_WAIT_MS, &reader));
    return reader;
}

void expect_refusal(cairn_job *of, cairn_status status, const char *word)
{
    struct cairn_round round = { .struct_size = sizeof round };
    fails(cairn_round_begin(of, CLUSTER_WAIT_MS, &round), status, word);
}

void expect_error(const char *word)
{
    ck_assert_msg(strstr(cairn_error(), word) != NULL, "no \"%s\": %s", word, cairn_error());
}

struct cairn_version newest(cairn_job *of)
{
    struct cairn_version version = { 0, 0 };
    good(cairn_version_wait(of, version, CLUSTER_WAIT_MS, &version));
    return version;
}

void bits(char root_out[65])
{
    trainer_digest(&cluster, job_name, root_out);
}

void expect_bits(const char *root)
{
    trainer_expect_digest(&cluster, job_name, root);
}

void expect_same_bits(const char *name, const char *other)
{
    char root[65];
    trainer_digest(&cluster, name, root);
    trainer_expect_digest(&cluster, other, root);
}

void kill_coordinator(void)
{
    cluster_kill_coordinator(&cluster);
}

void restart_coordinator(void)
{
    if (cluster.coordinator != 0) kill_coordinator();
    cluster_restart_coordinator(&cluster);
}

void lose_store(void)
{
    if (cluster.coordinator != 0) kill_coordinator();
    ck_assert_int_eq(rename(in_folder("coordinator"), in_folder("lost")), 0);
    restart_coordinator();
}

void kill_shard(int shard)
{
    cluster_kill_shard(&cluster, shard);
}

void restart_shard(int shard)
{
    if (cluster.shards[shard] != 0) kill_shard(shard);
    cluster_restart_shard(&cluster, shard);
}

void ask_line(const char *line)
{
    struct cluster_command command;
    cluster_cli_begin_line(&cluster, &command, line);
    cluster_cli_end(&command, cluster_wait(command.pid, CLUSTER_WAIT_MS), &said);
}

void expect_words(int status, ...)
{
    va_list words;
    ck_assert_msg(said.status == status, "%d instead of %d: %.2000s%.2000s", said.status, status,
                  said.out, said.err);
    va_start(words, status);
    for (const char *word; (word = va_arg(words, const char *)) != NULL;)
        ck_assert_msg(strstr(said.out, word) != NULL || strstr(said.err, word) != NULL,
                      "no \"%s\": %.2000s%.2000s", word, said.out, said.err);
    va_end(words);
}

void expect_unsaid(const char *word)
{
    ck_assert_msg(strstr(said.out, word) == NULL, "\"%s\": %s", word, said.out);
}

void drain_shard(int shard)
{
    says(0, "", "member drain shard-%d", shard);
    cluster_await_end_of_shard(&cluster, shard);
}

/* Of what was printed, in *all_out, to be given back; NULL: there is none. */
static const json_t *said_at(const char *path, json_t **all_out)
{
    const json_t *at = *all_out = json_loads(said.out, 0, NULL);
    ck_assert_msg(at != NULL, "no JSON: %.2000s%.2000s", said.out, said.err);
    for (char key[64]; *path != '\0'; path += strcspn(path, ".") + (strchr(path, '.') != NULL)) {
        snprintf(key, sizeof key, "%.*s", (int)strcspn(path, "."), path);
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10))
                               : json_object_get(at, key);
    }
    return at;
}

int64_t said_number(const char *path)
{
    json_t *all;
    const int64_t number = (int64_t)json_number_value(said_at(path, &all));
    json_decref(all);
    return number;
}

double said_real(const char *path)
{
    json_t *all;
    const json_t *at = said_at(path, &all);
    ck_assert_msg(json_is_number(at) || json_is_boolean(at), "%s: %s", path, said.out);
    const double number = json_is_boolean(at) ? json_is_true(at) : json_number_value(at);
    json_decref(all);
    return number;
}

size_t said_count(const char *path)
{
    json_t *all;
    const size_t count = json_array_size(said_at(path, &all));
    json_decref(all);
    return count;
}

int logged(const char *log, const char *text)
{
    return cluster_logged(&cluster, log, text);
}

pid_t fork_child(void)
{
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    return pid;
}

static char *next_path(void)
{
    static char paths[4][512];
    static int next;
    return paths[next++ % 4];
}

const char *in_folder(const char *format, ...)
{
    char *path = next_path();
    const int bytes = snprintf(path, 512, "%s/", cluster.folder);
    va_list list;
    va_start(list, format);
    ck_assert_int_lt(vsnprintf(path + bytes, 512 - (size_t)bytes, format, list), 512 - bytes);
    va_end(list);
    return path;
}

const char *snapshot_folder(const char *name, const char *id)
{
    char *path = next_path();
    ck_assert_int_lt(snprintf(path, 512, "%s/%s/%s", cluster.snapshots_path, name, id), 512);
    return path;
}

#include "tests/e2e/abuse_job.h"
#include "tests/support/now.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float gradient[ABUSE_ELEMS];

cairn *abuse_session(const struct cluster *cluster, const char *name)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = cluster->address,
                                     .name = name };
    cairn *session = NULL;
    const cairn_status status = cairn_open(&opts, &session);
    ck_assert_msg(status == CAIRN_OK, "open: %s", cairn_error());
    return session;
}

struct cairn_job_spec abuse_spec(uint32_t rank)
{
    static struct cairn_tensor tensors[2];
    static struct cairn_group group;
    tensors[0] = (struct cairn_tensor) {
        .struct_size = sizeof *tensors, .name = "w", .rank = 2, .shape = { 512, 256 }
    };
    tensors[1] = (struct cairn_tensor) {
        .struct_size = sizeof *tensors, .name = "b", .rank = 1, .shape = { 10 }
    };
    group = (struct cairn_group)CAIRN_GROUP_INIT;
    return (struct cairn_job_spec) { .struct_size = sizeof(struct cairn_job_spec),
                                     .tensors = tensors,
                                     .tensor_count = 2,
                                     .groups = &group,
                                     .group_count = 1,
                                     .rank = rank };
}

static void put_all(cairn_job *job)
{
    static float zeros[ABUSE_ELEMS];
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = zeros, .dtype = CAIRN_F32 };
    const char *const names[] = { "w", "b" };
    for (int i = 0; i < 2; i++) {
        const cairn_status status = cairn_put(job, names[i], "param", NULL, &mem, NULL);
        ck_assert_msg(status == CAIRN_OK || status == CAIRN_ERR_EXISTS, "put: %s", cairn_error());
    }
}

cairn_job *abuse_open(cairn *session, const struct cairn_job_spec *spec)
{
    cairn_job *job = NULL;
    cairn_status status = cairn_job_open(session, "tiny", spec, CAIRN_WORKER, ABUSE_WAIT_MS, &job);
    ck_assert_msg(status == CAIRN_OK, "open tiny: %s", cairn_error());
    if (spec->rank == 0) put_all(job);
    status = cairn_init_done(job, NULL, ABUSE_WAIT_MS);
    ck_assert_msg(status == CAIRN_OK, "init_done: %s", cairn_error());
    return job;
}

static cairn_status push_all(cairn_job *job, const struct cairn_round *round)
{
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = gradient, .dtype = CAIRN_F32 };
    cairn_status status = cairn_push(job, round, 0, "w", NULL, &mem, NULL);
    return status == CAIRN_OK ? cairn_push(job, round, 0, "b", NULL, &mem, NULL) : status;
}

cairn_status abuse_round(cairn_job *job, float value, int timeout_ms, struct cairn_result *out)
{
    struct cairn_round round = { .struct_size = sizeof round };
    out->struct_size = sizeof *out;
    cairn_status status = cairn_round_begin(job, timeout_ms, &round);
    if (status != CAIRN_OK) return status;
    for (size_t i = 0; i < ABUSE_ELEMS; i++) gradient[i] = value;
    status = push_all(job, &round);
    return status == CAIRN_OK ? cairn_commit(job, &round, 0, NULL, 0, timeout_ms, out) : status;
}

uint64_t abuse_train(cairn_job *job, int count)
{
    struct cairn_result result = { .struct_size = sizeof result };
    for (int i = 0; i < count;) {
        const cairn_status status = abuse_round(job, 0.5f, ABUSE_WAIT_MS, &result);
        if (status == CAIRN_ERR_EPOCH_CHANGED) continue;
        ck_assert_msg(status == CAIRN_OK, "a round: %s", cairn_error());
        ck_assert(result.applied);
        i++;
    }
    return result.version.step;
}

void abuse_empty_round(cairn_job *job)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(job, ABUSE_WAIT_MS, &round);
    if (status == CAIRN_OK) status = cairn_commit(job, &round, 0, NULL, 0, ABUSE_WAIT_MS, &result);
    ck_assert_msg(status == CAIRN_OK, "an empty round: %s", cairn_error());
}

struct cairn_version abuse_version(cairn_job *job)
{
    struct cairn_version version = { 0, 0 };
    const cairn_status status = cairn_version_wait(job, version, ABUSE_WAIT_MS, &version);
    ck_assert_msg(status == CAIRN_OK, "the newest version: %s", cairn_error());
    return version;
}

float *abuse_parameters(cairn_job *job)
{
    float *w = calloc(ABUSE_ELEMS, sizeof *w);
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = w, .dtype = CAIRN_F32 };
    cairn_op *op = NULL;
    cairn_status status = cairn_fetch(job, abuse_version(job), "w", "param", NULL, &mem, &op);
    if (status == CAIRN_OK) status = cairn_wait(op, ABUSE_WAIT_MS);
    ck_assert_msg(status == CAIRN_OK, "fetch: %s", cairn_error());
    return w;
}

void abuse_says(const char *text, const char *words)
{
    ck_assert_msg(strstr(text, words) != NULL, "\"%s\" should say \"%s\"", text, words);
}

uint64_t abuse_proc_number(pid_t pid, const char *file, const char *name)
{
    char path[64], line[256];
    uint64_t number = UINT64_MAX;
    const size_t length = strlen(name);
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    FILE *stream = fopen(path, "re");
    ck_assert_ptr_nonnull(stream);
    while (fgets(line, sizeof line, stream) != NULL)
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            number = strtoull(line + length + 1, NULL, 10);
    fclose(stream);
    ck_assert_msg(number != UINT64_MAX, "%s has no %s", path, name);
    return number;
}

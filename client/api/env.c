/* cairn_env_read: what client/base/env.h finds, in the caller's struct. */
#include <stdio.h>
#include <string.h>

#include "client/base/struct.h"
#include "client/session.h"

static void copy(char *out, size_t out_bytes, const char *text)
{
    snprintf(out, out_bytes, "%.*s", (int)out_bytes - 1, text);
}

static void fill(const struct cairn_env_report *report, struct cairn_env *env)
{
    const struct cairn_env_value *values = report->values;
    *env = (struct cairn_env) {
        .struct_size = sizeof *env,
        .rank = (uint32_t)values[CAIRN_ENV_RANK].number,
        .world = (uint32_t)values[CAIRN_ENV_WORLD].number,
        .local_rank = (uint32_t)values[CAIRN_ENV_LOCAL_RANK].number,
        .node_rank = (uint32_t)values[CAIRN_ENV_NODE_RANK].number,
        .restarts = values[CAIRN_ENV_RESTARTS].number,
    };
    copy(env->launcher, sizeof env->launcher, report->launcher);
    copy(env->run_id, sizeof env->run_id, values[CAIRN_ENV_RUN_ID].text);
    copy(env->endpoint, sizeof env->endpoint, values[CAIRN_ENV_ENDPOINT].text);
}

cairn_status cairn_env_read(struct cairn_env *out)
{
    const struct cairn_env_input input = { .get = cairn_env_get };
    struct cairn_env_report report;
    struct cairn_env env;
    struct cairn_sentence why = { "" };
    if (!cairn_struct_fits(out, sizeof env))
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "out must be given, its struct_size be at least %zu", sizeof env);
    cairn_status status = cairn_env_find_cluster(&input, &report, &why);
    if (status == CAIRN_OK) status = cairn_env_find_process(&input, &report, &why);
    if (status != CAIRN_OK) return cairn_client_fail(status, "%s", why.text);
    const struct cairn_env_value *endpoint = &report.values[CAIRN_ENV_ENDPOINT];
    if (strlen(endpoint->text) >= sizeof env.endpoint)
        return cairn_client_fail(CAIRN_ERR_INVALID, "%s = \"%s\" is longer than %zu bytes",
                                 endpoint->source, endpoint->text, sizeof env.endpoint - 1);
    fill(&report, &env);
    cairn_struct_give(out, &env, sizeof env);
    return CAIRN_OK;
}

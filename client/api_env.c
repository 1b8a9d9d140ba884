/* cairn_env_read: what client/env.h finds, in the caller's struct. */
#include <stdio.h>
#include <string.h>

#include "client/env.h"
#include "client/session.h"

static void copy(char *out, size_t out_bytes, const char *text)
{
    snprintf(out, out_bytes, "%.*s", (int)out_bytes - 1, text);
}

static void fill(const struct cairn_env_report *report, struct cairn_env *out)
{
    const struct cairn_env_value *values = report->values;
    out->rank = (uint32_t)values[CAIRN_ENV_RANK].number;
    out->world = (uint32_t)values[CAIRN_ENV_WORLD].number;
    out->local_rank = (uint32_t)values[CAIRN_ENV_LOCAL_RANK].number;
    out->node_rank = (uint32_t)values[CAIRN_ENV_NODE_RANK].number;
    out->restarts = values[CAIRN_ENV_RESTARTS].number;
    copy(out->launcher, sizeof out->launcher, report->launcher);
    copy(out->run_id, sizeof out->run_id, values[CAIRN_ENV_RUN_ID].text);
    copy(out->endpoint, sizeof out->endpoint, values[CAIRN_ENV_ENDPOINT].text);
}

cairn_status cairn_env_read(struct cairn_env *out)
{
    const struct cairn_env_input input = { .get = cairn_env_get };
    struct cairn_env_report report;
    struct cairn_sentence why = { "" };
    if (out == NULL) return cairn_client_fail(CAIRN_ERR_INVALID, "out is NULL");
    if (out->struct_size != sizeof *out)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "out->struct_size is %zu, this library's is %zu", out->struct_size,
                                 sizeof *out);
    cairn_status status = cairn_env_find_cluster(&input, &report, &why);
    if (status == CAIRN_OK) status = cairn_env_find_process(&input, &report, &why);
    if (status != CAIRN_OK) return cairn_client_fail(status, "%s", why.text);
    const struct cairn_env_value *endpoint = &report.values[CAIRN_ENV_ENDPOINT];
    if (strlen(endpoint->text) >= sizeof out->endpoint)
        return cairn_client_fail(CAIRN_ERR_INVALID, "%s = \"%s\" is longer than %zu bytes",
                                 endpoint->source, endpoint->text, sizeof out->endpoint - 1);
    fill(&report, out);
    return CAIRN_OK;
}

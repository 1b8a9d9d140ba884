#include "client/env.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/text.h"
#include "proto/fabric/fabric.h"
#include "proto/loop/loop.h"

struct launcher {
    const char *name;
    const char *variables[CAIRN_ENV_KEYS];
};

/* The first launcher with a value wins. Open MPI's NODE_RANK is not used: it numbers the processes
 * of a node, and not the nodes. */
static const struct launcher launchers[] = {
    { "cairn",
      { [CAIRN_ENV_ENDPOINT] = "CAIRN_ENDPOINT",
        [CAIRN_ENV_FABRIC] = "CAIRN_FABRIC",
        [CAIRN_ENV_DEVICE] = "CAIRN_FABRIC_DEVICE",
        [CAIRN_ENV_HOST] = "CAIRN_HOST",
        [CAIRN_ENV_TRANSPORTS] = "CAIRN_FABRIC_TRANSPORTS",
        [CAIRN_ENV_ONE_SIDED] = "CAIRN_FABRIC_ONE_SIDED",
        [CAIRN_ENV_DEVICE_MEMORY] = "CAIRN_FABRIC_DEVICE_MEMORY",
        [CAIRN_ENV_PORTS] = "CAIRN_FABRIC_PORT_RANGE",
        [CAIRN_ENV_RANK] = "CAIRN_RANK",
        [CAIRN_ENV_WORLD] = "CAIRN_WORLD",
        [CAIRN_ENV_LOCAL_RANK] = "CAIRN_LOCAL_RANK",
        [CAIRN_ENV_RUN_ID] = "CAIRN_RUN_ID" } },
    { "torchrun",
      { [CAIRN_ENV_RANK] = "RANK",
        [CAIRN_ENV_WORLD] = "WORLD_SIZE",
        [CAIRN_ENV_LOCAL_RANK] = "LOCAL_RANK",
        [CAIRN_ENV_NODE_RANK] = "GROUP_RANK",
        [CAIRN_ENV_RUN_ID] = "TORCHELASTIC_RUN_ID",
        [CAIRN_ENV_RESTARTS] = "TORCHELASTIC_RESTART_COUNT" } },
    { "slurm",
      { [CAIRN_ENV_RANK] = "SLURM_PROCID",
        [CAIRN_ENV_WORLD] = "SLURM_NTASKS",
        [CAIRN_ENV_LOCAL_RANK] = "SLURM_LOCALID",
        [CAIRN_ENV_NODE_RANK] = "SLURM_NODEID",
        [CAIRN_ENV_RUN_ID] = "SLURM_JOB_ID",
        [CAIRN_ENV_RESTARTS] = "SLURM_RESTART_COUNT" } },
    { "openmpi",
      { [CAIRN_ENV_RANK] = "OMPI_COMM_WORLD_RANK",
        [CAIRN_ENV_WORLD] = "OMPI_COMM_WORLD_SIZE",
        [CAIRN_ENV_LOCAL_RANK] = "OMPI_COMM_WORLD_LOCAL_RANK" } },
};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

static const char *const names[CAIRN_ENV_KEYS] = {
    [CAIRN_ENV_ENDPOINT] = "endpoint",     [CAIRN_ENV_FABRIC] = "fabric",
    [CAIRN_ENV_DEVICE] = "device",         [CAIRN_ENV_RANK] = "rank",
    [CAIRN_ENV_WORLD] = "world",           [CAIRN_ENV_LOCAL_RANK] = "local rank",
    [CAIRN_ENV_NODE_RANK] = "node rank",   [CAIRN_ENV_RUN_ID] = "run id",
    [CAIRN_ENV_RESTARTS] = "restarts",     [CAIRN_ENV_HOST] = "host",
    [CAIRN_ENV_TRANSPORTS] = "transports", [CAIRN_ENV_ONE_SIDED] = "one-sided reads",
    [CAIRN_ENV_PORTS] = "ports",           [CAIRN_ENV_DEVICE_MEMORY] = "device memory",
};

static const char *const defaults[CAIRN_ENV_KEYS] = {
    [CAIRN_ENV_ENDPOINT] = "", // determined by find_default_endpoint
    [CAIRN_ENV_FABRIC] = "auto",
    [CAIRN_ENV_DEVICE] = "",
    [CAIRN_ENV_HOST] = "",
    [CAIRN_ENV_TRANSPORTS] = "",
    [CAIRN_ENV_ONE_SIDED] = "auto",
    [CAIRN_ENV_RANK] = "0",
    [CAIRN_ENV_WORLD] = "1",
    [CAIRN_ENV_LOCAL_RANK] = "0",
    [CAIRN_ENV_NODE_RANK] = "0",
    [CAIRN_ENV_RUN_ID] = "",
    [CAIRN_ENV_RESTARTS] = "0",
    [CAIRN_ENV_PORTS] = "",
    [CAIRN_ENV_DEVICE_MEMORY] = "auto",
};

const char *env_get(void *context, const char *variable)
{
    (void)context;
    return getenv(variable);
}

const char *env_key_name(enum env_key key)
{
    return names[key];
}

/* ---- judging a value ---- */

/* Accepts only decimal digits, while strtoull would also take " +7". */
static bool parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *number_out)
{
    uint64_t number = 0;
    if (text[0] == 0) return false;
    for (const char *c = text; *c != 0; c++) {
        if (*c < '0' || *c > '9') return false;
        const uint64_t digit = (uint64_t)(*c - '0');
        if (number > (max - digit) / 10) return false;
        number = number * 10 + digit;
    }
    if (number < min) return false;
    *number_out = number;
    return true;
}

static cairn_status judge_number(enum env_key key, struct env_value *value, struct sentence *why)
{
    const uint64_t min = key == CAIRN_ENV_WORLD ? 1 : 0;
    const uint64_t max = key == CAIRN_ENV_WORLD ? UINT32_MAX : UINT32_MAX - 1u;
    if (parse_number(value->text, min, max, &value->number)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "%s = \"%.100s\" is no %s: a whole number from %" PRIu64 " to %" PRIu64
                     " is allowed",
                     value->source, value->text, names[key], min, max);
}

static cairn_status judge_endpoint(const struct env_value *value, struct sentence *why)
{
    struct endpoints endpoints;
    const cairn_status status = endpoints_parse(value->text, &endpoints, why);
    return status == CAIRN_OK ? CAIRN_OK
                              : fail_with(why, status, "%s: %s", value->source, why->text);
}

static cairn_status judge_host(const struct env_value *value, struct sentence *why)
{
    if (value->text[0] == 0 || fabric_host_is_name(value->text)) return CAIRN_OK;
    return fail_with(
        why, CAIRN_ERR_INVALID,
        "%s = \"%.100s\" is no name of a host: at most %d visible characters are allowed",
        value->source, value->text, CAIRN_FABRIC_HOST_BYTES - 1);
}

static cairn_status judge_ports(const struct env_value *value, struct sentence *why)
{
    if (value->text[0] == 0 || port_range_ok(value->text)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID, "%s = \"%.40s\": " CAIRN_PORT_RANGE_ALLOWED,
                     value->source, value->text);
}

static cairn_status judge_word(const struct env_value *value, bool is_allowed, const char *allowed,
                               struct sentence *why)
{
    if (is_allowed) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID, "%s = \"%.100s\"%s", value->source, value->text,
                     allowed);
}

static cairn_status judge_value(enum env_key key, struct env_value *value, struct sentence *why)
{
    const char *text = value->text;
    enum one_sided one_sided;
    enum device_memory device_memory;
    switch (key) {
    case CAIRN_ENV_ENDPOINT: return judge_endpoint(value, why);
    case CAIRN_ENV_FABRIC:
        return judge_word(value,
                          strcmp(text, "auto") == 0 || strcmp(text, "mapped") == 0 ||
                              strcmp(text, "sealed") == 0 || strcmp(text, "stream") == 0 ||
                              strcmp(text, "ucx") == 0,
                          " is no fabric: auto, mapped, sealed, stream or ucx is allowed", why);
    case CAIRN_ENV_DEVICE:
    case CAIRN_ENV_TRANSPORTS: return CAIRN_OK; // only the fabric knows which are valid
    case CAIRN_ENV_ONE_SIDED:
        return judge_word(value, one_sided_parse(text, &one_sided), ": auto, on or off is allowed",
                          why);
    case CAIRN_ENV_DEVICE_MEMORY:
        return judge_word(value, device_memory_parse(text, &device_memory),
                          ": " CAIRN_DEVICE_MEMORY_ALLOWED, why);
    case CAIRN_ENV_PORTS: return judge_ports(value, why);
    case CAIRN_ENV_HOST: return judge_host(value, why);
    case CAIRN_ENV_RUN_ID:
        return text[0] == '\0' ? CAIRN_OK
                               : text_check(value->source, text, CAIRN_ENV_ID_BYTES - 1, why);
    default: return judge_number(key, value, why);
    }
}

/* ---- finding it ---- */

static const char *variable_of(const struct env_input *input, size_t launcher, enum env_key key)
{
    const char *variable = launchers[launcher].variables[key];
    const char *text = variable != NULL ? input->get(input->context, variable) : NULL;
    return text != NULL && text[0] != 0 ? text : NULL;
}

static cairn_status note_value(enum env_key key, const char *text, const char *source,
                               struct env_report *report, struct sentence *why)
{
    struct sentence unused;
    struct env_value *value = &report->values[key];
    const char *said = source != NULL ? source : "the default";
    const int length = snprintf(value->text, sizeof value->text, "%s", text);
    if (length < 0 || (size_t)length >= sizeof value->text)
        return fail_with(why, CAIRN_ERR_INVALID, "%s is too long: the %s has at most %zu bytes",
                         said, names[key], sizeof value->text - 1);
    value->source = said;
    const cairn_status status = judge_value(key, value, why != NULL ? why : &unused);
    value->source = source;
    return status;
}

static cairn_status find_default_endpoint(const struct env_input *input, struct env_report *report,
                                          struct sentence *why)
{
    char text[CAIRN_ADDRESS_TEXT_BYTES];
    const bool is_own = address_find(input->get(input->context, "XDG_RUNTIME_DIR"), text);
    return note_value(CAIRN_ENV_ENDPOINT, text, is_own ? "XDG_RUNTIME_DIR" : NULL, report, why);
}

cairn_status env_find(const struct env_input *input, enum env_key key, struct env_report *report,
                      struct sentence *why)
{
    const struct env_given *given = &input->given[key];
    if (given->text != NULL) return note_value(key, given->text, given->source, report, why);
    for (size_t i = 0; i < LAUNCHERS; i++) {
        const char *text = variable_of(input, i, key);
        if (text != NULL) return note_value(key, text, launchers[i].variables[key], report, why);
    }
    if (key == CAIRN_ENV_ENDPOINT) return find_default_endpoint(input, report, why);
    return note_value(key, defaults[key], NULL, report, why);
}

cairn_status env_find_cluster(const struct env_input *input, struct env_report *report,
                              struct sentence *why)
{
    CAIRN_TRY(env_find(input, CAIRN_ENV_ENDPOINT, report, why));
    CAIRN_TRY(env_find(input, CAIRN_ENV_FABRIC, report, why));
    CAIRN_TRY(env_find(input, CAIRN_ENV_DEVICE, report, why));
    CAIRN_TRY(env_find(input, CAIRN_ENV_HOST, report, why));
    CAIRN_TRY(env_find(input, CAIRN_ENV_TRANSPORTS, report, why));
    CAIRN_TRY(env_find(input, CAIRN_ENV_ONE_SIDED, report, why));
    CAIRN_TRY(env_find(input, CAIRN_ENV_DEVICE_MEMORY, report, why));
    return env_find(input, CAIRN_ENV_PORTS, report, why);
}

/* Returns true for the shell of an allocation, which knows the number of tasks, but is not a task. */
static bool is_allocation(const struct env_input *input, size_t launcher)
{
    return strcmp(launchers[launcher].name, "slurm") == 0 &&
           variable_of(input, launcher, CAIRN_ENV_RANK) == NULL;
}

/* Finds the launcher whose rank and world apply; LAUNCHERS: none. */
static cairn_status find_launcher(const struct env_input *input, size_t *launcher_out,
                                  struct sentence *why)
{
    for (size_t i = 0; i < LAUNCHERS; i++) {
        const char *const *variables = launchers[i].variables;
        const bool rank = variable_of(input, i, CAIRN_ENV_RANK) != NULL;
        const bool world = variable_of(input, i, CAIRN_ENV_WORLD) != NULL;
        if ((!rank && !world) || is_allocation(input, i)) continue;
        if (rank != world)
            return fail_with(why, CAIRN_ERR_INVALID,
                             "%s is set and %s is not: set both (or CAIRN_RANK and CAIRN_WORLD, "
                             "which win), or neither",
                             variables[rank ? CAIRN_ENV_RANK : CAIRN_ENV_WORLD],
                             variables[rank ? CAIRN_ENV_WORLD : CAIRN_ENV_RANK]);
        *launcher_out = i;
        return CAIRN_OK;
    }
    *launcher_out = LAUNCHERS;
    return CAIRN_OK;
}

static cairn_status find_rank(const struct env_input *input, struct env_report *report,
                              struct sentence *why)
{
    size_t launcher;
    CAIRN_TRY(find_launcher(input, &launcher, why));
    report->launcher = launcher == LAUNCHERS ? "single" : launchers[launcher].name;
    for (enum env_key key = CAIRN_ENV_RANK; key <= CAIRN_ENV_WORLD; key++) {
        const bool is_default = launcher == LAUNCHERS;
        CAIRN_TRY(note_value(key, is_default ? defaults[key] : variable_of(input, launcher, key),
                             is_default ? NULL : launchers[launcher].variables[key], report, why));
    }
    const struct env_value *rank = &report->values[CAIRN_ENV_RANK];
    const struct env_value *world = &report->values[CAIRN_ENV_WORLD];
    if (rank->number < world->number) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "%s = \"%s\" is no rank in a world of %s = \"%s\": 0 to %" PRIu64
                     " is allowed",
                     rank->source, rank->text, world->source, world->text, world->number - 1);
}

cairn_status env_find_process(const struct env_input *input, struct env_report *report,
                              struct sentence *why)
{
    cairn_status status = find_rank(input, report, why);
    for (enum env_key key = CAIRN_ENV_LOCAL_RANK; key < CAIRN_ENV_KEYS; key++)
        if (status == CAIRN_OK) status = env_find(input, key, report, why);
    return status;
}

/* cairn env */
#include <string.h>

#include "client/base/env.h"
#include "client/ctl/ctl.h"

static const char *source_of(const struct cairn_env_report *report, enum cairn_env_key key)
{
    const char *source = report->values[key].source;
    return source != NULL ? source : "default";
}

static bool is_number(enum cairn_env_key key)
{
    return key >= CAIRN_ENV_PROCESS && key != CAIRN_ENV_RUN_ID;
}

/* {"rank": {"value": 0, "from": "RANK"}, ...} */
static int print_json(const struct cairn_env_report *report)
{
    json_t *object = json_pack("{s:s}", "launcher", report->launcher);
    for (enum cairn_env_key key = 0; key < CAIRN_ENV_KEYS; key++) {
        const struct cairn_env_value *value = &report->values[key];
        char name[32];
        snprintf(name, sizeof name, "%s", cairn_env_key_name(key));
        for (char *space; (space = strchr(name, ' ')) != NULL;) *space = '_';
        json_t *text = is_number(key) ? json_integer((json_int_t)value->number)
                                      : json_string(value->text);
        if (text == NULL) // a device in bytes that are no UTF-8
            text = json_string("?");
        json_object_set_new(object, name,
                            json_pack("{s:o, s:s}", "value", text, "from", source_of(report, key)));
    }
    return cairn_ctl_print_json(object);
}

static void print_table(const struct ctl *ctl, const struct cairn_env_report *report)
{
    static const char *const headers[] = { "WHAT", "VALUE", "FROM" };
    struct ctl_table *table = cairn_ctl_table_open(headers, 3);
    cairn_ctl_table_cell(table, "launcher");
    cairn_ctl_table_cell(table, "%s", report->launcher);
    cairn_ctl_table_cell(table, "%s", source_of(report, CAIRN_ENV_RANK));
    for (enum cairn_env_key key = 0; key < CAIRN_ENV_KEYS; key++) {
        cairn_ctl_table_cell(table, "%s", cairn_env_key_name(key));
        cairn_ctl_table_cell(table, "%s", report->values[key].text);
        cairn_ctl_table_cell(table, "%s", source_of(report, key));
    }
    cairn_ctl_table_close(table, ctl);
}

int cairn_ctl_env(struct ctl *ctl)
{
    const struct cairn_env_input input = {
        .get = cairn_env_get, .given[CAIRN_ENV_ENDPOINT] = { ctl->endpoint, "--endpoint" }
    };
    struct cairn_env_report report;
    struct cairn_sentence why;
    cairn_status status = cairn_env_find_cluster(&input, &report, &why);
    if (status == CAIRN_OK) status = cairn_env_find_process(&input, &report, &why);
    if (status != CAIRN_OK) return cairn_ctl_fail(status, "%s", why.text);
    if (ctl->json) return print_json(&report);
    print_table(ctl, &report);
    return 0;
}

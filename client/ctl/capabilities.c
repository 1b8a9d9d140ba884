/* cairn capabilities: what this version supports, from the table that judges specs. Asks nobody. */
#include "client/ctl/ctl.h"
#include "proto/spec/capability.h"

static int print_json(const struct cairn_capability *rows, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:i, s:s, s:b, s:s?}", "field",
                                        cairn_capability_field_name(rows[i].field), "value",
                                        rows[i].value, "name", rows[i].value_name, "supported",
                                        (int)rows[i].supported, "instead", rows[i].instead));
    return cairn_ctl_print_json(json_pack("{s:o}", "capabilities", list));
}

int cairn_ctl_capabilities(struct ctl *ctl)
{
    static const char *const headers[] = { "FIELD", "VALUE", "NAME", "SUPPORTED" };
    size_t count;
    const struct cairn_capability *rows = cairn_capability_table(&count);
    if (ctl->json) return print_json(rows, count);
    struct ctl_table *table = cairn_ctl_table_open(headers, 4);
    for (size_t i = 0; i < count; i++) {
        cairn_ctl_table_cell(table, "%s", cairn_capability_field_name(rows[i].field));
        cairn_ctl_table_cell(table, "%d", rows[i].value);
        cairn_ctl_table_cell(table, "%s", rows[i].value_name);
        if (rows[i].supported)
            cairn_ctl_table_cell(table, "yes");
        else
            cairn_ctl_table_cell(table, "no: %s",
                                 rows[i].instead != NULL ? rows[i].instead : "refused");
    }
    cairn_ctl_table_close(table, ctl);
    return 0;
}

/* cairn cluster events */
#include <time.h>

#include "client/ctl/ctl.h"

static const char *time_text(uint64_t unix_ms)
{
    static char text[40];
    char seconds[24];
    struct tm utc;
    const time_t whole = (time_t)(unix_ms / 1000);
    if (gmtime_r(&whole, &utc) == NULL) return "-";
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text, sizeof text, "%s.%03uZ", seconds, (unsigned)(unix_ms % 1000));
    return text;
}

static json_t *event_json(const Cairn__Event *e)
{
    return json_pack("{s:I, s:s, s:s, s:s, s:s, s:s}", "number", (json_int_t)e->number, "time",
                     time_text(e->unix_ms), "event", e->kind, "job", e->job, "who", e->who, "text",
                     e->text);
}

static void add_row(struct ctl_table *table, const Cairn__Event *e)
{
    cairn_ctl_table_cell(table, "%s", time_text(e->unix_ms));
    cairn_ctl_table_cell(table, "%s", e->kind);
    cairn_ctl_table_cell(table, "%s", e->job[0] != '\0' ? e->job : "-");
    cairn_ctl_table_cell(table, "%s", e->who[0] != '\0' ? e->who : "-");
    cairn_ctl_table_cell(table, "%s", e->text);
}

/* All pages, into one of both. */
static cairn_status ask(struct ctl *ctl, struct ctl_table *table, json_t *list)
{
    Cairn__EventsGet get = CAIRN__EVENTS_GET__INIT;
    get.since_unix_ms = ctl->since_unix_ms;
    for (bool more = true; more;) {
        ProtobufCMessage *reply;
        const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_EVENTS_GET, &get.base,
                                                   CAIRN_MSG_EVENTS, &reply);
        if (called != CAIRN_OK) return called;
        const Cairn__Events *page = (const Cairn__Events *)reply;
        for (size_t i = 0; i < page->n_events; i++) {
            get.after = page->events[i]->number;
            if (table != NULL)
                add_row(table, page->events[i]);
            else
                json_array_append_new(list, event_json(page->events[i]));
        }
        more = page->more && page->n_events > 0;
        cairn_message_free(reply);
    }
    return CAIRN_OK;
}

int cairn_ctl_cluster_events(struct ctl *ctl)
{
    static const char *const headers[] = { "TIME", "EVENT", "JOB", "WHO", "WHAT" };
    json_t *list = ctl->json ? json_array() : NULL;
    struct ctl_table *table = ctl->json ? NULL : cairn_ctl_table_open(headers, 5);
    const cairn_status status = ask(ctl, table, list);
    if (table != NULL)
        cairn_ctl_table_close(table, ctl);
    else if (status == CAIRN_OK)
        cairn_ctl_print_json(json_pack("{s:o}", "events", list));
    else
        json_decref(list);
    return status == CAIRN_OK ? 0 : cairn_status_exit((int)status);
}

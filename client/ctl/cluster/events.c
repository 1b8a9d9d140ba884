/* cairn cluster events */
#include <poll.h>
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

struct seen {
    uint64_t after;   /* the number of the last event */
    uint64_t process; /* the coordinator that gave it; 0: none yet */
};

/* Another coordinator than before has numbered other events with what was seen already: those that the former
 * one had not stored when it was killed, or all, if its store was lost. True: to be asked anew. */
static bool goes_back(struct seen *seen, const Cairn__Events *page)
{
    const bool is_other = seen->process != 0 && page->process != seen->process;
    seen->process = page->process;
    if (!is_other || seen->after < page->began) return false;
    seen->after = page->began - 1;
    return true;
}

static void take_page(struct ctl_table *table, json_t *list, const Cairn__Events *page,
                      struct seen *seen)
{
    for (size_t i = 0; i < page->n_events; i++) {
        seen->after = page->events[i]->number;
        if (table != NULL)
            add_row(table, page->events[i]);
        else
            json_array_append_new(list, event_json(page->events[i]));
    }
}

/* All pages behind what was seen, into one of both. */
static cairn_status ask(struct ctl *ctl, struct ctl_table *table, json_t *list, struct seen *seen)
{
    Cairn__EventsGet get = CAIRN__EVENTS_GET__INIT;
    get.since_unix_ms = ctl->since_unix_ms;
    for (bool more = true; more;) {
        ProtobufCMessage *reply;
        get.after = seen->after;
        const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_EVENTS_GET, &get.base,
                                                   CAIRN_MSG_EVENTS, &reply);
        if (called != CAIRN_OK) return called;
        const Cairn__Events *page = (const Cairn__Events *)reply;
        const bool anew = goes_back(seen, page);
        if (!anew) take_page(table, list, page, seen);
        more = anew || (page->more && page->n_events > 0);
        cairn_message_free(reply);
    }
    return CAIRN_OK;
}

/* Lines of what has happened behind what was seen: a row, or an object, each. */
static cairn_status print_new(struct ctl *ctl, struct seen *seen)
{
    static const char *const headers[] = { "TIME", "EVENT", "JOB", "WHO", "WHAT" };
    json_t *list = ctl->json ? json_array() : NULL;
    struct ctl_table *table = ctl->json ? NULL : cairn_ctl_table_open(headers, 5);
    const cairn_status status = ask(ctl, table, list, seen);
    if (table != NULL)
        cairn_ctl_table_close(table, ctl);
    else if (status == CAIRN_OK && !ctl->watch)
        cairn_ctl_print_json(json_pack("{s:O}", "events", list));
    for (size_t i = 0; ctl->json && ctl->watch && i < json_array_size(list); i++) {
        json_dumpf(json_array_get(list, i), stdout, JSON_COMPACT);
        printf("\n");
    }
    json_decref(list);
    return status;
}

static int follow(struct ctl *ctl, struct seen *seen)
{
    ctl->no_headers = true;
    ctl->tries_again = true;
    cairn_ctl_on_interrupt("%s", ""); // ends without a word
    for (;;) {
        if (fflush(stdout) != 0) return 1; // nobody reads it
        poll(NULL, 0, (int)(ctl->every_s * 1000));
        const cairn_status status = print_new(ctl, seen);
        if (status != CAIRN_OK && status != CAIRN_ERR_UNREACHABLE && status != CAIRN_ERR_TIMEOUT)
            return cairn_status_exit((int)status);
    }
}

int cairn_ctl_cluster_events(struct ctl *ctl)
{
    struct seen seen = { 0 };
    const cairn_status status = print_new(ctl, &seen);
    if (status != CAIRN_OK) return cairn_status_exit((int)status);
    return ctl->watch ? follow(ctl, &seen) : 0;
}

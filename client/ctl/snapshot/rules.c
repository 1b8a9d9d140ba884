/* Prints a job's snapshot rules for `cairn job show`. */
#include "client/ctl/ctl.h"
#include "proto/spec/capability.h"

/* "90 s", "10 min", "7 d": in the greatest unit that it is whole in. */
static void add_time(struct cairn_sentence *out, uint32_t seconds)
{
    static const struct {
        const char *name;
        uint32_t seconds;
    } units[] = { { "d", 86400 }, { "h", 3600 }, { "min", 60 }, { "s", 1 } };
    size_t i = 0;
    while (seconds % units[i].seconds != 0) i++;
    cairn_sentence_add(out, "%u %s", seconds / units[i].seconds, units[i].name);
}

static void print_periodic(const Cairn__JobSpec *s)
{
    struct cairn_sentence text = { "every " };
    if (s->snapshot_every > 0)
        cairn_sentence_add(&text, "%llu step%s", (unsigned long long)s->snapshot_every,
                           s->snapshot_every == 1 ? "" : "s");
    else
        add_time(&text, s->snapshot_every_s);
    if (s->snapshot_keep > 0)
        cairn_sentence_add(&text, ", the newest %llu", (unsigned long long)s->snapshot_keep);
    if (s->snapshot_keep_every > 0)
        cairn_sentence_add(&text, ", the first of every %llu steps",
                           (unsigned long long)s->snapshot_keep_every);
    if (s->snapshot_keep_within_s > 0) {
        cairn_sentence_add(&text, ", those of the last ");
        add_time(&text, s->snapshot_keep_within_s);
    }
    const bool has_rule = s->snapshot_keep > 0 || s->snapshot_keep_every > 0 ||
                          s->snapshot_keep_within_s > 0;
    cairn_sentence_add(&text, "%s are kept", has_rule ? "" : ", all");
    if (s->snapshot_max_bytes > 0)
        cairn_sentence_add(&text, ", at most %s of all", cairn_ctl_bytes(s->snapshot_max_bytes));
    cairn_ctl_line("snapshots", "%s", text.text);
}

void cairn_ctl_rules_print(const Cairn__JobSpec *s)
{
    struct cairn_sentence text = { "" };
    if (s->snapshot_every > 0 || s->snapshot_every_s > 0) print_periodic(s);
    cairn_ctl_line("staging", "%s",
                   cairn_capability_name(CAIRN_CAPABILITY_STAGING, (int)s->snapshot_staging));
    if (s->snapshot_durable_within_s > 0) {
        add_time(&text, s->snapshot_durable_within_s);
        cairn_ctl_line("durable within", "%s", text.text);
        text.text[0] = '\0';
    }
    if (s->snapshot_scrub_every_s > 0) {
        add_time(&text, s->snapshot_scrub_every_s);
        cairn_ctl_line("scrubbed every", "%s", text.text);
    }
    if (s->snapshot_fallback)
        cairn_ctl_line("fallback", "a damaged snapshot: the newest good one before it");
}

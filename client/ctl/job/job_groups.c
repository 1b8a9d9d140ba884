#include "client/ctl/job/job_groups.h"

#include <string.h>

#include "proto/spec/rank_groups.h"
#include "proto/spec/spec.h"

static bool wants_them(const Cairn__JobStatus *j)
{
    return j->spec != NULL && j->spec->reduce_groups != CAIRN_GROUPS_NONE;
}

static json_t *group_json(const Cairn__ReduceGroup *group)
{
    json_t *ranks = json_array();
    for (size_t i = 0; i < group->n_ranks; i++)
        json_array_append_new(ranks, json_integer((json_int_t)group->ranks[i]));
    return json_pack("{s:s, s:o}", "relays", group->host, "ranks", ranks);
}

void cairn_ctl_groups_json(const Cairn__JobStatus *j, json_t *object)
{
    if (!wants_them(j)) return;
    json_t *groups = json_array();
    for (size_t i = 0; i < j->n_reduce_groups; i++)
        json_array_append_new(groups, group_json(j->reduce_groups[i]));
    json_object_set_new(object, "reduce_groups", groups);
    json_object_set_new(object, "reduce_group_count", json_integer(j->reduce_group_count));
    json_object_set_new(object, "reduce_groups_off", json_string(j->reduce_groups_off));
}

/* "ranks 0-3 by shard s0", "rank 4" of one that is alone. */
static void add_group(const Cairn__ReduceGroup *group, struct cairn_sentence *out)
{
    cairn_sentence_add(out, "rank%s ", group->n_ranks == 1 ? "" : "s");
    cairn_ranks_add_text(group->ranks, group->n_ranks, out);
    if (group->host[0] == '\0') return;
    cairn_sentence_add(out, " by shard%s %s", strchr(group->host, ',') == NULL ? "" : "s",
                       group->host);
}

void cairn_ctl_groups_print(const Cairn__JobStatus *j)
{
    struct cairn_sentence text = { "" };
    if (!wants_them(j)) return;
    for (size_t i = 0; i < j->n_reduce_groups; i++) {
        cairn_sentence_add(&text, "%s", i > 0 ? "; " : "");
        add_group(j->reduce_groups[i], &text);
    }
    if (j->reduce_group_count > j->n_reduce_groups)
        cairn_sentence_add(&text, "; and %zu more", j->reduce_group_count - j->n_reduce_groups);
    if (j->reduce_group_count > 0)
        cairn_ctl_line("reduce groups", "%u (%s)", j->reduce_group_count, text.text);
    else
        cairn_ctl_line("reduce groups", "none%s%s", j->reduce_groups_off[0] != '\0' ? ": " : " yet",
                       j->reduce_groups_off);
}

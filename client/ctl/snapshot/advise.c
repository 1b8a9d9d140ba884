/* cairn snapshot advise */
#include "client/ctl/ctl.h"

static json_t *known(uint64_t value, bool is_known)
{
    return is_known ? json_integer((json_int_t)value) : json_null();
}

static json_t *seconds(uint64_t us, bool is_known)
{
    return is_known ? json_real((double)us * 1e-6) : json_null();
}

/* Figures that are not known are null. */
static json_t *advice_json(const Cairn__SnapshotAdvice *a, const char *line)
{
    const bool is_measured = a->measured > 0;
    json_t *object = json_pack(
        "{s:s, s:i, s:I, s:I, s:I, s:b, s:s, s:I, s:I}", "job", a->job, "measured_snapshots",
        (int)a->measured, "shard_faults", (json_int_t)a->shard_faults, "worker_faults",
        (json_int_t)a->worker_faults, "observed_s", (json_int_t)a->observed_s, "mtbf_given",
        (int)a->mtbf_given, "note", a->note, "snapshot_every", (json_int_t)a->every,
        "snapshot_every_s", (json_int_t)a->every_s);
    json_object_set_new(object, "cost_s", seconds(a->cost_us, is_measured));
    json_object_set_new(object, "write_s", seconds(a->write_us, is_measured));
    json_object_set_new(object, "step_s", seconds(a->step_us, a->step_us > 0));
    json_object_set_new(object, "mtbf_s", known(a->mtbf_s, a->mtbf_s > 0));
    json_object_set_new(object, "interval_s", known(a->interval_s, a->interval_s > 0));
    json_object_set_new(object, "interval_steps", known(a->interval_steps, a->interval_steps > 0));
    json_object_set_new(object, "amend", a->interval_s > 0 ? json_string(line) : json_null());
    return object;
}

static void print_assumed(const Cairn__SnapshotAdvice *a)
{
    if (a->measured > 0)
        cairn_ctl_line("cost", "%.3f s of training a snapshot, which takes %.3f s (median of %u)",
                       (double)a->cost_us * 1e-6, (double)a->write_us * 1e-6, a->measured);
    else
        cairn_ctl_line("cost", "not measured yet");
    if (a->step_us > 0) cairn_ctl_line("step", "%.6f s", (double)a->step_us * 1e-6);
    cairn_ctl_line("faults", "%llu of shards, %llu of workers, in %llu s",
                   (unsigned long long)a->shard_faults, (unsigned long long)a->worker_faults,
                   (unsigned long long)a->observed_s);
    if (a->mtbf_s > 0)
        cairn_ctl_line("between faults", "%llu s (%s)", (unsigned long long)a->mtbf_s,
                       a->mtbf_given ? "given" : "seen");
}

static void print_table(const Cairn__SnapshotAdvice *a, const char *line)
{
    cairn_ctl_line("job", "%s", a->job);
    print_assumed(a);
    if (a->interval_s == 0) {
        cairn_ctl_line("advice", "none: %s", a->note);
        return;
    }
    if (a->interval_steps > 0)
        cairn_ctl_line("advice", "every %llu s, that is %llu steps",
                       (unsigned long long)a->interval_s, (unsigned long long)a->interval_steps);
    else
        cairn_ctl_line("advice", "every %llu s", (unsigned long long)a->interval_s);
    if (a->note[0] != '\0') cairn_ctl_line("note", "%s", a->note);
    cairn_ctl_line("set it by", "%s", line);
}

int cairn_ctl_snapshot_advise(struct ctl *ctl)
{
    Cairn__SnapshotAdvise ask = CAIRN__SNAPSHOT_ADVISE__INIT;
    ProtobufCMessage *reply;
    char line[CAIRN_NAME_MAX + 64];
    ask.job = ctl->argv[0];
    ask.mtbf_s = ctl->mtbf_s;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_SNAPSHOT_ADVISE, &ask.base,
                                               CAIRN_MSG_SNAPSHOT_ADVICE, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__SnapshotAdvice *advice = (const Cairn__SnapshotAdvice *)reply;
    snprintf(line, sizeof line, "cairn job amend %s --snapshot-every %llus", advice->job,
             (unsigned long long)advice->interval_s);
    if (ctl->json)
        cairn_ctl_print_json(advice_json(advice, line));
    else
        print_table(advice, line);
    cairn_message_free(reply);
    return 0;
}

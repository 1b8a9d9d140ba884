#include "client/ctl/ctl.h"

static json_t *entry_json(const Cairn__BytesTold *b)
{
    return json_pack(
        "{s:{s:I, s:I, s:I, s:I, s:I}, s:{s:I, s:I, s:I, s:I, s:I}, s:I, s:I, s:{s:f, s:f}}",
        "pushed", "shared", (json_int_t)b->pushed_shared, "carried", (json_int_t)b->pushed_carried,
        "one_sided", (json_int_t)b->pushed_one_sided, "device", (json_int_t)b->pushed_device,
        "direct", (json_int_t)b->pushed_direct, "fetched", "shared", (json_int_t)b->fetched_shared,
        "carried", (json_int_t)b->fetched_carried, "one_sided", (json_int_t)b->fetched_one_sided,
        "device", (json_int_t)b->fetched_device, "direct", (json_int_t)b->fetched_direct, "put",
        (json_int_t)b->put, "steps", (json_int_t)b->steps, "per_step", "pushed", b->pushed_a_step,
        "fetched", b->fetched_a_step);
}

json_t *cairn_ctl_job_bytes_json(const Cairn__JobStatus *job)
{
    json_t *workers = json_array();
    json_t *object = json_object();
    for (size_t i = 0; i < job->n_bytes; i++) {
        const Cairn__BytesTold *b = job->bytes[i];
        json_t *entry = entry_json(b);
        if (b->of_worker) {
            json_object_set_new(entry, "rank", json_integer((json_int_t)b->rank));
            json_array_append_new(workers, entry);
        } else {
            json_object_update(object, entry);
            json_decref(entry);
        }
    }
    json_object_set_new(object, "workers", workers);
    return object;
}

static void print_entry(const char *name, const Cairn__BytesTold *b)
{
    cairn_ctl_line(name, "pushed %s shared, %s carried; fetched %s, %s",
                   cairn_ctl_bytes(b->pushed_shared), cairn_ctl_bytes(b->pushed_carried),
                   cairn_ctl_bytes(b->fetched_shared), cairn_ctl_bytes(b->fetched_carried));
    if (b->pushed_one_sided > 0 || b->fetched_one_sided > 0)
        cairn_ctl_line("", "of the carried, read one-sidedly: pushed %s, fetched %s",
                       cairn_ctl_bytes(b->pushed_one_sided), cairn_ctl_bytes(b->fetched_one_sided));
    if (b->pushed_direct > 0 || b->fetched_direct > 0)
        cairn_ctl_line("", "of the carried, right from a card: pushed %s, fetched %s",
                       cairn_ctl_bytes(b->pushed_direct), cairn_ctl_bytes(b->fetched_direct));
    if (b->pushed_device > 0 || b->fetched_device > 0)
        cairn_ctl_line("",
                       "of the shared, from and to a card, past the host: pushed %s, fetched %s",
                       cairn_ctl_bytes(b->pushed_device), cairn_ctl_bytes(b->fetched_device));
    if (b->steps == 0) return;
    cairn_ctl_line("", "a step, of %llu: pushed %s, fetched %s", (unsigned long long)b->steps,
                   cairn_ctl_bytes((uint64_t)b->pushed_a_step),
                   cairn_ctl_bytes((uint64_t)b->fetched_a_step));
}

void cairn_ctl_job_bytes_print(const Cairn__JobStatus *job)
{
    char name[32];
    for (size_t i = 0; i < job->n_bytes; i++) {
        const Cairn__BytesTold *b = job->bytes[i];
        if (b->of_worker) snprintf(name, sizeof name, "  worker %u", b->rank);
        print_entry(b->of_worker ? name : "  by way", b);
    }
}

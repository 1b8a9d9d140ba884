#include "tests/support/call_fault.h"

#include <check.h>
#include <string.h>
#include <sys/stat.h>

static struct call_sync *note_sync(struct call_fault *fault, const struct tracer_call *call)
{
    char path[sizeof fault->syncs->path];
    struct stat info;
    if (!tracer_call_syncs(call, path, sizeof path)) return NULL;
    ck_assert_uint_lt(fault->sync_count, CALL_SYNCS_MAX);
    struct call_sync *sync = &fault->syncs[fault->sync_count++];
    *sync = (struct call_sync) { .failed = false };
    memcpy(sync->path, path, sizeof path);
    sync->is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    return sync;
}

int call_fault_judge(void *context, const struct tracer_call *call)
{
    struct call_fault *fault = context;
    struct call_sync *sync = note_sync(fault, call);
    if (fault->syncs_only && sync == NULL) return 0;
    if (++fault->count != fault->nth) return 0;
    fault->met = call->name;
    if (sync != NULL) sync->failed = true;
    return fault->fate;
}

const char *call_fault_unsynced(const struct call_fault *fault)
{
    for (size_t i = 0; i < fault->sync_count; i++)
        if (fault->syncs[i].failed) return fault->syncs[i].path;
    return NULL;
}

static bool is_unnamed_file(const struct call_sync *sync)
{
    static const char suffix[] = ".tmp";
    const size_t bytes = strlen(sync->path), suffix_bytes = sizeof suffix - 1;
    return !sync->is_folder && bytes > suffix_bytes &&
           strcmp(sync->path + bytes - suffix_bytes, suffix) == 0;
}

const char *call_fault_synced_twice(const struct call_fault *fault)
{
    for (size_t i = 0; i < fault->sync_count; i++) {
        const struct call_sync *sync = &fault->syncs[i];
        if (!is_unnamed_file(sync)) continue;
        for (size_t k = i + 1; k < fault->sync_count; k++)
            if (strcmp(sync->path, fault->syncs[k].path) == 0) return sync->path;
    }
    return NULL;
}

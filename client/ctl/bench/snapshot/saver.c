#include "client/ctl/bench/snapshot/saver.h"

#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <unistd.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/crew.h"

#define LOOK_MS     5
#define LOOK_DUE_MS 20 /* each look reads the store */

static void take_reply(struct cairn_bench_saver *s, const Cairn__SnapshotStatus *reply)
{
    snprintf(s->id, sizeof s->id, "%s", reply->id);
    snprintf(s->path, sizeof s->path, "%s", reply->path);
    s->bytes = reply->bytes;
}

/* ---- the job's own ---- */

static cairn_status set_every(struct cairn_bench_saver *s, uint64_t every)
{
    Cairn__JobAmend amend = CAIRN__JOB_AMEND__INIT;
    uint64_t revision;
    amend.name = (char *)(uintptr_t)s->job;
    amend.set_snapshots = true;
    amend.snapshot_every = every;
    return cairn_ctl_amend(&s->ctl, &amend, &revision);
}

/* Notes when it begins. The one before was removed: the first that is listed is it. */
static cairn_status look(struct cairn_bench_saver *s)
{
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    ProtobufCMessage *reply;
    get.job = (char *)(uintptr_t)s->job;
    const cairn_status status = cairn_ctl_call(&s->ctl, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base,
                                               CAIRN_MSG_SNAPSHOT_LIST, &reply);
    if (status != CAIRN_OK) return status;
    const Cairn__SnapshotList *list = (const Cairn__SnapshotList *)reply;
    const bool is_seen = list->n_running > 0 || list->n_snapshots > 0;
    if (is_seen && !(s->begin > 0)) s->begin = cairn_bench_now();
    if (list->n_snapshots > 0) take_reply(s, list->snapshots[0]);
    cairn_message_free(reply);
    return CAIRN_OK;
}

static cairn_status await_due(struct cairn_bench_saver *s)
{
    s->begin = 0;
    cairn_status status = set_every(s, s->every);
    while (status == CAIRN_OK && s->id[0] == '\0') {
        poll(NULL, 0, LOOK_DUE_MS);
        status = look(s);
    }
    s->end = cairn_bench_now();
    return status == CAIRN_OK ? set_every(s, 0) : status;
}

/* ---- the thread ---- */

static cairn_status ask(struct cairn_bench_saver *s)
{
    Cairn__SnapshotCreate create = CAIRN__SNAPSHOT_CREATE__INIT;
    Cairn__SnapshotRestore restore = CAIRN__SNAPSHOT_RESTORE__INIT;
    ProtobufCMessage *reply = NULL;
    create.job = restore.job = (char *)(uintptr_t)s->job;
    create.wait = true;
    restore.id = s->id;
    s->begin = cairn_bench_now();
    const cairn_status called = s->restores ? cairn_ctl_call(&s->ctl, CAIRN_MSG_SNAPSHOT_RESTORE,
                                                             &restore.base,
                                                             CAIRN_MSG_SNAPSHOT_STATUS, &reply)
                                            : cairn_ctl_call(&s->ctl, CAIRN_MSG_SNAPSHOT_CREATE,
                                                             &create.base,
                                                             CAIRN_MSG_SNAPSHOT_STATUS, &reply);
    s->end = cairn_bench_now();
    if (called != CAIRN_OK) return called;
    if (!s->restores) take_reply(s, (const Cairn__SnapshotStatus *)reply);
    cairn_message_free(reply);
    return CAIRN_OK;
}

static void *run(void *context)
{
    struct cairn_bench_saver *s = context;
    s->is_ok = (s->every > 0 && !s->restores ? await_due(s) : ask(s)) == CAIRN_OK;
    atomic_store(&s->is_over, true);
    return NULL;
}

static void prepare_call(struct cairn_bench_saver *s)
{
    s->ctl = *s->local->ctl;
    s->ctl.endpoint = s->local->endpoint;
    s->ctl.timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS;
}

bool cairn_bench_save_begin(struct cairn_bench_saver *s)
{
    prepare_call(s);
    s->is_ok = false;
    atomic_store(&s->is_over, false);
    if (pthread_create(&s->thread, NULL, run, s) == 0) return true;
    (void)cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "no thread");
    return false;
}

bool cairn_bench_save_end(struct cairn_bench_saver *s, bool gives_up)
{
    while (!gives_up && !atomic_load(&s->is_over)) {
        gives_up = cairn_bench_is_interrupted(s->local);
        poll(NULL, 0, LOOK_MS);
    }
    if (gives_up) cairn_local_daemons_stop(s->local);
    pthread_join(s->thread, NULL);
    return s->is_ok && !gives_up;
}

double cairn_bench_save(struct cairn_bench_saver *s)
{
    if (!cairn_bench_save_begin(s) || !cairn_bench_save_end(s, false)) return 0;
    return s->end - s->begin;
}

bool cairn_bench_save_remove(struct cairn_bench_saver *s)
{
    Cairn__SnapshotRemove remove = CAIRN__SNAPSHOT_REMOVE__INIT;
    ProtobufCMessage *reply;
    if (s->id[0] == '\0') return true;
    prepare_call(s);
    remove.job = (char *)(uintptr_t)s->job;
    remove.id = s->id;
    remove.force = true; // it is the only one that there is
    if (cairn_ctl_call(&s->ctl, CAIRN_MSG_SNAPSHOT_REMOVE, &remove.base, CAIRN_MSG_SNAPSHOT_REMOVED,
                       &reply) != CAIRN_OK)
        return false;
    cairn_message_free(reply);
    s->id[0] = '\0';
    return true;
}

bool cairn_bench_save_drop_job(struct cairn_bench_saver *s)
{
    Cairn__JobRemove remove = CAIRN__JOB_REMOVE__INIT;
    ProtobufCMessage *reply;
    prepare_call(s);
    remove.name = (char *)(uintptr_t)s->job;
    remove.force = true;
    if (cairn_ctl_call(&s->ctl, CAIRN_MSG_JOB_REMOVE, &remove.base, CAIRN_MSG_JOB_REMOVED,
                       &reply) != CAIRN_OK)
        return false;
    cairn_message_free(reply);
    return true;
}

static int make_cold(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)walk;
    const int fd = type == FTW_F ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return 0;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return 0;
}

void cairn_bench_save_make_cold(const struct cairn_bench_saver *s)
{
    nftw(s->path, make_cold, 16, FTW_PHYS);
}

/* An admin gives a snapshot a tag, or takes one off: on another thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/base/log.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/snapshot/keep.h"

struct tagging {
    struct cairn_cluster_work work;
    bool is_removal;
    char job[CAIRN_NAME_MAX + 1], id[CAIRN_SNAPSHOT_ID_BYTES], name[CAIRN_SNAPSHOT_TAG_BYTES];
    cairn_status status;
    struct cairn_sentence why;
};

/* The one that has it; NULL: nobody. */
static const struct cairn_snapshot_tag *find(const struct cairn_snapshot_words *words,
                                             const char *name)
{
    for (size_t i = 0; i < words->tag_count; i++)
        if (strcmp(words->tags[i].name, name) == 0) return &words->tags[i];
    return NULL;
}

static cairn_status take_off(const struct tagging *t, const struct cairn_snapshot_words *words,
                             struct cairn_sentence *why)
{
    const struct cairn_snapshot_tag *tag = find(words, t->name);
    if (tag == NULL || strcmp(tag->id, t->id) != 0)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "snapshot %s of job %s has no tag %s", t->id,
                          t->job, t->name);
    return cairn_snapshot_tag_remove(t->work.cluster->storage.path, t->job, t->name, why);
}

/* It moves off another one, which is said in the answer of `snapshot list`; the snapshot must be there. */
static cairn_status put_on(const struct tagging *t, const struct cairn_snapshot_words *words,
                           struct cairn_sentence *why)
{
    struct cairn_cluster_found found = { .list = NULL };
    const struct cairn_snapshot_tag *tag = find(words, t->name);
    if (tag == NULL && words->tag_count >= CAIRN_SNAPSHOT_WORDS_MAX)
        return cairn_fail(why, CAIRN_ERR_REFUSED, "job %s has %d tags, which is all there may be",
                          t->job, CAIRN_SNAPSHOT_WORDS_MAX);
    cairn_status status = cairn_cluster_find_snapshots(t->work.cluster, t->job, t->id, &found, why);
    if (status == CAIRN_OK && found.count == 0)
        status = cairn_fail(why, CAIRN_ERR_NOT_FOUND,
                            "there is no committed snapshot %s of job %s; `cairn snapshot list`",
                            t->id, t->job);
    cairn_cluster_found_release(&found);
    return status == CAIRN_OK
               ? cairn_snapshot_tag_set(t->work.cluster->storage.path, t->job, t->name, t->id, why)
               : status;
}

static void run(struct cairn_cluster_work *work)
{
    struct tagging *t = (struct tagging *)work;
    struct cairn_snapshot_words words = { .latest = "" };
    cairn_cluster_snapshot_words_lock();
    t->status = cairn_cluster_storage_seen(work->cluster, &t->why);
    if (t->status == CAIRN_OK)
        t->status = cairn_snapshot_words_load(work->cluster->storage.path, t->job, &words, &t->why);
    if (t->status == CAIRN_OK) t->status = (t->is_removal ? take_off : put_on)(t, &words, &t->why);
    cairn_cluster_snapshot_words_unlock();
    cairn_snapshot_words_release(&words);
}

static void on_done(struct cairn_cluster_work *work)
{
    struct tagging *t = (struct tagging *)work;
    Cairn__SnapshotTagged message = CAIRN__SNAPSHOT_TAGGED__INIT;
    message.job = t->job;
    message.id = t->id;
    message.name = t->name;
    if (t->status == CAIRN_OK)
        cairn_log_info("snapshot %s of job %s: tag %s is %s", t->id, t->job, t->name,
                       t->is_removal ? "off" : "on");
    if (work->session != NULL && t->status == CAIRN_OK)
        cairn_cluster_session_send(work->session, CAIRN_MSG_SNAPSHOT_TAGGED, work->request,
                                   &message.base);
    else if (work->session != NULL)
        cairn_cluster_session_error(work->session, work->request, t->status, t->why.text);
    free(t);
}

static cairn_status judge(const Cairn__SnapshotTag *message, struct cairn_sentence *why)
{
    uint64_t generation, step;
    if (!cairn_job_name_ok(message->job) ||
        !cairn_snapshot_id_parse(message->id, &generation, &step))
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "\"%.100s\", \"%.100s\": not a job's name and an id of a snapshot; "
                          "`cairn snapshot list` prints them",
                          message->job, message->id);
    if (!cairn_snapshot_tag_ok(message->name))
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "\"%.100s\" is no tag: allowed are 1 to %d of A-Z a-z 0-9 . _ -, first no "
            ". or -, not latest, no id, and no .tmp at the end",
            message->name, CAIRN_SNAPSHOT_TAG_BYTES - 1);
    return CAIRN_OK;
}

void cairn_cluster_snapshot_tag(struct cairn_cluster_session *session, uint32_t request,
                                const Cairn__SnapshotTag *message)
{
    struct cairn_sentence why;
    cairn_status status = judge(message, &why);
    struct tagging *t = status == CAIRN_OK ? calloc(1, sizeof *t) : NULL;
    if (status == CAIRN_OK && t == NULL)
        status = cairn_fail(&why, CAIRN_ERR_NO_MEMORY, "no memory");
    if (status == CAIRN_OK) {
        t->work.run = run;
        t->work.done = on_done;
        t->is_removal = message->remove;
        snprintf(t->job, sizeof t->job, "%s", message->job);
        snprintf(t->id, sizeof t->id, "%s", message->id);
        snprintf(t->name, sizeof t->name, "%s", message->name);
        if (cairn_cluster_work_start(&t->work, session->cluster, session, request)) return;
        free(t);
        status = cairn_fail(&why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    }
    cairn_cluster_session_error(session, request, status, why.text);
}

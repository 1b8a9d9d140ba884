/* The words of a job's snapshots, on other threads than the loop's: what was verified, what is latest. */
#include <pthread.h>
#include <string.h>

#include "server/base/log.h"
#include "server/base/wall.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/snapshot/keep.h"

static pthread_mutex_t one_writer = PTHREAD_MUTEX_INITIALIZER; // of words

void cairn_cluster_snapshot_words_lock(void)
{
    pthread_mutex_lock(&one_writer);
}

void cairn_cluster_snapshot_words_unlock(void)
{
    pthread_mutex_unlock(&one_writer);
}

/* Its results are finite. */
static bool is_finite(const struct cairn_found_snapshot *found)
{
    return found->manifest.nonfinite.nonfinite == 0;
}

/* It was read and found good, and its results are finite. */
static bool stands(const struct cairn_found_snapshot *found,
                   const struct cairn_snapshot_words *words)
{
    const struct cairn_snapshot_check *check = cairn_snapshot_words_check(words, found->place.id);
    return check != NULL && check->is_good && is_finite(found);
}

/* Nobody has read it yet, and its results are finite. */
static bool is_unread(const struct cairn_found_snapshot *found,
                      const struct cairn_snapshot_words *words)
{
    return cairn_snapshot_words_check(words, found->place.id) == NULL && is_finite(found);
}

/* The newest of the job's line that is so, but for this id; NULL: none is. */
static const char *newest(const struct cairn_cluster_found *found,
                          const struct cairn_snapshot_words *words, const char *but,
                          bool (*is_so)(const struct cairn_found_snapshot *found,
                                        const struct cairn_snapshot_words *words))
{
    for (size_t i = 0; i < found->count; i++) {
        const char *id = found->list[i].place.id;
        if (strcmp(id, but) != 0 && !found->list[i].is_left && is_so(&found->list[i], words))
            return id;
    }
    return NULL;
}

/* Both are to be released, whatever it returned. */
static cairn_status look(const struct cairn_cluster *cluster, const char *job,
                         struct cairn_cluster_found *found, struct cairn_snapshot_words *words,
                         struct cairn_sentence *why)
{
    *words = (struct cairn_snapshot_words) { .latest = "" };
    cairn_status status = cairn_cluster_find_snapshots(cluster, job, NULL, found, why);
    if (status == CAIRN_OK)
        status = cairn_snapshot_words_load(cluster->storage.path, job, words, why);
    return status;
}

static const struct cairn_found_snapshot *listed(const struct cairn_cluster_found *found,
                                                 const char *id)
{
    for (size_t i = 0; i < found->count; i++)
        if (strcmp(found->list[i].place.id, id) == 0) return &found->list[i];
    return NULL;
}

/* `latest` moves to a newer one alone, unless what it names is gone, or the job has turned away from it. */
static cairn_status move_latest(const struct cairn_cluster *cluster, const char *job,
                                const char *id, struct cairn_sentence *why)
{
    struct cairn_cluster_found found = { .list = NULL };
    struct cairn_snapshot_words words;
    cairn_status status = look(cluster, job, &found, &words, why);
    const struct cairn_found_snapshot *mine = listed(&found, id),
                                      *latest = listed(&found, words.latest);
    const bool may = mine != NULL && !mine->is_left && is_finite(mine);
    const bool stays = may && latest != NULL && !latest->is_left &&
                       !cairn_snapshot_place_behind(&latest->place, &mine->place);
    if (status == CAIRN_OK && may && !stays)
        status = cairn_snapshot_latest_set(cluster->storage.path, job, id, why);
    cairn_snapshot_words_release(&words);
    cairn_cluster_found_release(&found);
    return status;
}

/* `latest` does not stay on one that is damaged: it goes back to the newest that stands, else to the newest
 * whose headers alone were read, as it was committed; else it is taken away. */
static cairn_status leave_damaged(const struct cairn_cluster *cluster, const char *job,
                                  const char *id, struct cairn_sentence *why)
{
    const char *root = cluster->storage.path;
    struct cairn_cluster_found found = { .list = NULL };
    struct cairn_snapshot_words words;
    cairn_status status = look(cluster, job, &found, &words, why);
    if (status == CAIRN_OK && strcmp(words.latest, id) == 0) {
        const char *next = newest(&found, &words, id, stands);
        if (next == NULL) next = newest(&found, &words, id, is_unread);
        status = next != NULL ? cairn_snapshot_latest_set(root, job, next, why)
                              : cairn_snapshot_latest_remove(root, job, why);
        if (status == CAIRN_OK)
            cairn_log_error(
                "`latest` of job %s named snapshot %s, which is damaged; it names %s now", job, id,
                next != NULL ? next : "none: no other one is whole");
    }
    cairn_snapshot_words_release(&words);
    cairn_cluster_found_release(&found);
    return status;
}

cairn_status cairn_cluster_snapshot_note_latest(const struct cairn_cluster *cluster,
                                                const char *job, const char *id,
                                                struct cairn_sentence *why)
{
    pthread_mutex_lock(&one_writer);
    cairn_status status = cairn_cluster_storage_seen(cluster, why);
    if (status == CAIRN_OK) status = move_latest(cluster, job, id, why);
    pthread_mutex_unlock(&one_writer);
    return status;
}

cairn_status cairn_cluster_snapshot_note_check(const struct cairn_cluster *cluster, const char *job,
                                               const char *id, bool is_good,
                                               struct cairn_sentence *why)
{
    const char *root = cluster->storage.path;
    struct cairn_snapshot_check check = { .is_good = is_good, .unix_s = cairn_wall_unix_s() };
    strncpy(check.id, id, sizeof check.id - 1);
    pthread_mutex_lock(&one_writer); // it is not removed now, so that no word of it is left over
    cairn_status status = cairn_cluster_storage_seen(cluster, why);
    if (status == CAIRN_OK) status = cairn_snapshot_committed(root, job, id, why);
    if (status == CAIRN_OK) status = cairn_snapshot_check_set(root, job, &check, why);
    if (status == CAIRN_OK)
        status = is_good ? move_latest(cluster, job, id, why)
                         : leave_damaged(cluster, job, id, why);
    pthread_mutex_unlock(&one_writer);
    return status;
}

/* Nothing but the tags, and the others that are verified, says no. */
static cairn_status judge_release(const struct cairn_cluster_found *found,
                                  const struct cairn_snapshot_words *words, const char *job,
                                  const char *id, enum cairn_removal_cause cause,
                                  struct cairn_sentence *why)
{
    const struct cairn_found_snapshot *it = listed(found, id);
    for (size_t i = 0; i < words->tag_count; i++)
        if (strcmp(words->tags[i].id, id) == 0)
            return cairn_fail(why, CAIRN_ERR_REFUSED,
                              "snapshot %s of job %s has the tag %s: `cairn snapshot tag %s %s %s "
                              "--delete` takes it off, --force removes it all the same",
                              id, job, words->tags[i].name, job, id, words->tags[i].name);
    if (it == NULL || newest(found, words, id, stands) != NULL) return CAIRN_OK;
    if (stands(it, words))
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "snapshot %s is the only verified one of job %s: --force removes it "
                          "all the same",
                          id, job);
    return cause == CAIRN_REMOVAL_ASKED
               ? CAIRN_OK
               : cairn_fail(why, CAIRN_ERR_REFUSED, "no other one is verified any more");
}

/* One whose manifest is there and cannot be read is not listed, and was committed all the same. */
static cairn_status judge_left(const char *root, const char *job, const char *id,
                               struct cairn_sentence *why)
{
    struct cairn_sentence said;
    const cairn_status status = cairn_snapshot_committed(root, job, id, &said);
    if (status == CAIRN_ERR_NOT_FOUND) return CAIRN_OK;
    if (status == CAIRN_OK) return cairn_fail(why, CAIRN_ERR_REFUSED, "it was committed");
    return cairn_fail(why, status, "%s", said.text);
}

cairn_status cairn_cluster_snapshot_release(const struct cairn_cluster *cluster, const char *job,
                                            const char *id, enum cairn_removal_cause cause,
                                            struct cairn_snapshot_removed *removed_out,
                                            struct cairn_sentence *why)
{
    const char *root = cluster->storage.path;
    struct cairn_cluster_found found = { .list = NULL };
    struct cairn_snapshot_words words = { .latest = "" };
    pthread_mutex_lock(&one_writer);
    cairn_status status = look(cluster, job, &found, &words, why);
    if (status == CAIRN_OK && cause == CAIRN_REMOVAL_LEFT)
        status = judge_left(root, job, id, why);
    else if (status == CAIRN_OK && cause != CAIRN_REMOVAL_FORCED)
        status = judge_release(&found, &words, job, id, cause, why);
    if (status == CAIRN_OK && listed(&found, id) != NULL) // before its words go
        status = cairn_snapshot_removable(root, job, id, why);
    const char *latest = status == CAIRN_OK ? newest(&found, &words, id, stands) : NULL;
    if (latest != NULL && strcmp(words.latest, id) == 0)
        status = cairn_snapshot_latest_set(root, job, latest, why);
    for (size_t i = 0; i < words.tag_count && status == CAIRN_OK; i++)
        if (strcmp(words.tags[i].id, id) == 0)
            status = cairn_snapshot_tag_remove(root, job, words.tags[i].name, why);
    if (status == CAIRN_OK) status = cairn_snapshot_uncommit(root, job, id, removed_out, why);
    pthread_mutex_unlock(&one_writer);
    cairn_snapshot_words_release(&words);
    cairn_cluster_found_release(&found);
    return status;
}

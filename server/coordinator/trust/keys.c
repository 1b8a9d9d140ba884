#include "server/coordinator/trust/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "server/base/durable.h"
#include "server/base/log.h"
#include "server/base/wall.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/store/events.h"
#include "server/coordinator/store/store.h"

struct trusted_key {
    struct cairn_public_key key;
    bool is_own;
    uint64_t since_unix_s;
};

struct cairn_cluster_keys {
    struct cairn_secret_key signer;
    struct trusted_key list[CAIRN_KEYS_MAX];
    size_t count;
    /* what is on its way to the store, one at a time */
    struct trusted_key changing;
    bool is_changing, is_untrust;
    struct cairn_cluster_waiter *waiter;
};

/* By its key, not by its id. */
static struct trusted_key *find(struct cairn_cluster_keys *keys, const struct cairn_public_key *key)
{
    for (size_t i = 0; i < keys->count; i++)
        if (memcmp(&keys->list[i].key, key, sizeof *key) == 0) return &keys->list[i];
    return NULL;
}

/* ---- the file ---- */

static cairn_status fail_file(const char *path, const char *what, struct cairn_sentence *why)
{
    return cairn_fail(why, CAIRN_ERR_CONFIG, "the key that snapshots are signed with, %.300s: %s",
                      path, what);
}

static cairn_status judge_text(const char *path, const char *text, struct cairn_secret_key *out,
                               struct cairn_sentence *why)
{
    struct cairn_sentence said, whole;
    if (cairn_secret_key_parse(text, out, &said) == CAIRN_OK) return CAIRN_OK;
    cairn_sentence_set(&whole,
                       "%s; put it back from a copy, or move it away: then a new key is made, and "
                       "what the old one signed stays trusted",
                       said.text);
    return fail_file(path, whole.text, why);
}

/* CAIRN_ERR_NOT_FOUND: there is none. */
static cairn_status read_file(const char *path, struct cairn_secret_key *out,
                              struct cairn_sentence *why)
{
    char text[CAIRN_KEY_TEXT_BYTES];
    struct stat info;
    struct cairn_sentence said;
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return CAIRN_ERR_NOT_FOUND;
    if (fd < 0) return fail_file(path, strerror(errno), why);
    cairn_status status = CAIRN_OK;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        status = fail_file(path, "it is no file", why);
    } else if ((info.st_mode & 0077) != 0) {
        cairn_sentence_set(&said,
                           "its mode is %04o, so others could sign as this cluster: chmod 600 it, "
                           "or move it away: then a new key is made",
                           (unsigned)(info.st_mode & 07777));
        status = fail_file(path, said.text, why);
    }
    const ssize_t got = status == CAIRN_OK ? read(fd, text, sizeof text - 1) : 0;
    if (got < 0) status = fail_file(path, strerror(errno), why);
    close(fd);
    if (status != CAIRN_OK) return status;
    text[got] = '\0';
    status = judge_text(path, text, out, why);
    sodium_memzero(text, sizeof text);
    return status;
}

static cairn_status make_file(const char *path, struct cairn_secret_key *out,
                              struct cairn_sentence *why)
{
    char text[CAIRN_KEY_TEXT_BYTES], begun[PATH_MAX + 8];
    snprintf(begun, sizeof begun, "%s.new", path);
    unlink(begun); // of a start that was killed: the folder is locked, so nobody writes it
    cairn_secret_key_make(out);
    cairn_secret_key_text(out, text);
    const cairn_status status = cairn_durable_create(path, text, strlen(text), why);
    sodium_memzero(text, sizeof text);
    return status;
}

/* ---- opening ---- */

static cairn_status load(void *context, const struct cairn_stored_key *stored,
                         struct cairn_sentence *why)
{
    struct cairn_cluster_keys *keys = context;
    if (keys->count == CAIRN_KEYS_MAX)
        return cairn_fail(why, CAIRN_ERR_CORRUPT, "the store has more than %d keys",
                          CAIRN_KEYS_MAX);
    struct trusted_key *key = &keys->list[keys->count];
    const cairn_status status = cairn_public_key_parse(stored->line, &key->key, why);
    if (status != CAIRN_OK) return status;
    key->is_own = stored->is_own;
    key->since_unix_s = stored->since_unix_s;
    keys->count++;
    return CAIRN_OK;
}

static cairn_status put(struct cairn_store *store, const struct trusted_key *key,
                        struct cairn_sentence *why)
{
    char line[CAIRN_KEY_LINE_BYTES];
    cairn_public_key_line(&key->key, line);
    return cairn_store_put_key(
        store, &(struct cairn_stored_key) { line, key->is_own, key->since_unix_s }, why);
}

/* The file is not there, and the store knows who signed before. */
static void say_missing(struct cairn_cluster *cluster, const char *path)
{
    const struct cairn_cluster_keys *keys = cluster->keys;
    char was[CAIRN_KEY_NAME_BYTES], is[CAIRN_KEY_NAME_BYTES];
    const struct trusted_key *own = NULL;
    for (size_t i = 0; i < keys->count; i++)
        if (keys->list[i].is_own) own = &keys->list[i];
    if (own == NULL) return;
    cairn_key_name(own->key.id, was);
    cairn_key_name(keys->signer.public_key.id, is);
    cairn_log_warn(
        "the key %s, which signed this cluster's snapshots, is not in %s: a new one, %s, "
        "signs from now on, and what %s signed stays trusted; to go on with it, stop "
        "the coordinator and put the file back",
        was, path, is, was);
    cairn_cluster_event_note(cluster, CAIRN_EVENT_KEY, NULL, NULL,
                             "%s was not there: key %s signs snapshots from now on, in place of %s",
                             path, is, was);
}

/* This cluster's own is trusted, and the store knows it. */
static cairn_status trust_own(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    struct cairn_cluster_keys *keys = cluster->keys;
    struct trusted_key *there = find(keys, &keys->signer.public_key);
    if (there != NULL && there->is_own) return CAIRN_OK;
    if (there == NULL && keys->count == CAIRN_KEYS_MAX)
        return cairn_fail(why, CAIRN_ERR_CONFIG,
                          "%d keys are trusted already: start with the key that was there, and "
                          "take some off with `cairn key untrust`",
                          CAIRN_KEYS_MAX);
    if (there == NULL) there = &keys->list[keys->count++];
    *there = (struct trusted_key) { keys->signer.public_key, true, cairn_wall_unix_s() };
    return put(cluster->store, there, why);
}

cairn_status cairn_cluster_keys_open(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    char path[PATH_MAX];
    struct cairn_cluster_keys *keys = calloc(1, sizeof *keys);
    if (keys == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for keys");
    cluster->keys = keys;
    const int length = snprintf(path, sizeof path - 8, "%s/" CAIRN_KEY_FILE,
                                cluster->options->store_path);
    if (length < 0 || (size_t)length >= sizeof path - 8)
        return cairn_fail(why, CAIRN_ERR_CONFIG, "store.path is too long");
    cairn_status status = cairn_store_each_key(cluster->store, load, keys, why);
    if (status != CAIRN_OK) return status;
    status = read_file(path, &keys->signer, why);
    if (status == CAIRN_ERR_NOT_FOUND) {
        status = make_file(path, &keys->signer, why);
        if (status == CAIRN_OK) say_missing(cluster, path);
    }
    return status == CAIRN_OK ? trust_own(cluster, why) : status;
}

void cairn_cluster_keys_close(struct cairn_cluster *cluster)
{
    struct cairn_cluster_keys *keys = cluster->keys;
    if (keys == NULL) return;
    cairn_cluster_waiters_release(&keys->waiter);
    sodium_memzero(keys, sizeof *keys);
    free(keys);
    cluster->keys = NULL;
}

const struct cairn_secret_key *cairn_cluster_keys_signer(const struct cairn_cluster *cluster)
{
    return &cluster->keys->signer;
}

void cairn_cluster_keys_ring(const struct cairn_cluster *cluster, struct cairn_key_ring *out)
{
    out->count = cluster->keys->count;
    for (size_t i = 0; i < out->count; i++) out->keys[i] = cluster->keys->list[i].key;
}

/* ---- what an admin asks ---- */

struct key_view {
    Cairn__Key key;
    char id[CAIRN_KEY_NAME_BYTES], line[CAIRN_KEY_LINE_BYTES];
};

/* Those there are, as a message whose texts are in `views`. */
static void fill(const struct cairn_cluster_keys *keys, struct key_view views[CAIRN_KEYS_MAX],
                 Cairn__Key *list[CAIRN_KEYS_MAX], Cairn__Keys *out)
{
    cairn__keys__init(out);
    for (size_t i = 0; i < keys->count; i++) {
        const struct trusted_key *from = &keys->list[i];
        struct key_view *view = &views[i];
        cairn__key__init(&view->key);
        cairn_key_name(from->key.id, view->id);
        cairn_public_key_line(&from->key, view->line);
        view->key.id = view->id;
        view->key.line = view->line;
        view->key.own = from->is_own;
        view->key.signs = memcmp(&from->key, &keys->signer.public_key, sizeof from->key) == 0;
        view->key.since_unix_ms = from->since_unix_s * 1000;
        list[i] = &view->key;
    }
    out->keys = list;
    out->n_keys = keys->count;
}

void cairn_cluster_keys_answer(struct cairn_cluster_session *session, uint32_t request)
{
    struct key_view views[CAIRN_KEYS_MAX];
    Cairn__Key *list[CAIRN_KEYS_MAX];
    Cairn__Keys message;
    fill(session->cluster->keys, views, list, &message);
    cairn_cluster_session_send(session, CAIRN_MSG_KEYS, request, &message.base);
}

static void apply(struct cairn_cluster_keys *keys)
{
    struct trusted_key *there = find(keys, &keys->changing.key);
    if (keys->is_untrust && there != NULL)
        *there = keys->list[--keys->count];
    else if (!keys->is_untrust && there == NULL)
        keys->list[keys->count++] = keys->changing;
}

static void on_saved(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster_keys *keys = saved->cluster->keys;
    keys->is_changing = false;
    if (saved->status != CAIRN_OK) {
        cairn_cluster_waiters_fail(&keys->waiter, saved->status, saved->why);
        return;
    }
    char id[CAIRN_KEY_NAME_BYTES];
    struct key_view views[CAIRN_KEYS_MAX];
    Cairn__Key *list[CAIRN_KEYS_MAX];
    Cairn__Keys message;
    apply(keys);
    cairn_key_name(keys->changing.key.id, id);
    cairn_log_info("key %s is %s", id, keys->is_untrust ? "not trusted any more" : "trusted");
    cairn_cluster_event_note(saved->cluster, CAIRN_EVENT_KEY, NULL, NULL,
                             "key %s is %s, by an operator's word", id,
                             keys->is_untrust ? "not trusted any more" : "trusted");
    fill(keys, views, list, &message);
    cairn_cluster_waiters_answer(&keys->waiter, CAIRN_MSG_KEYS, &message.base);
}

/* The key of the list that has the id "0123456789ABCDEF", or is that line. */
static struct trusted_key *named(struct cairn_cluster_keys *keys, const char *text)
{
    struct cairn_public_key key;
    char id[CAIRN_KEY_NAME_BYTES];
    if (cairn_public_key_parse(text, &key, NULL) == CAIRN_OK) return find(keys, &key);
    for (size_t i = 0; i < keys->count; i++) {
        cairn_key_name(keys->list[i].key.id, id);
        if (strcmp(id, text) == 0) return &keys->list[i];
    }
    return NULL;
}

static cairn_status judge_untrust(struct cairn_cluster_keys *keys, const char *text,
                                  struct cairn_sentence *why)
{
    const struct trusted_key *key = named(keys, text);
    if (key == NULL)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND,
                          "no key \"%.100s\" is trusted; `cairn key list` shows those that are",
                          text);
    if (memcmp(&key->key, &keys->signer.public_key, sizeof key->key) == 0)
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "key %.100s signs this cluster's snapshots: without it none of them could "
            "be restored",
            text);
    keys->changing = *key;
    return CAIRN_OK;
}

static cairn_status judge_trust(struct cairn_cluster_keys *keys, const char *text,
                                struct cairn_sentence *why)
{
    struct cairn_public_key key;
    const cairn_status status = cairn_public_key_parse(text, &key, why);
    if (status != CAIRN_OK) return status;
    const struct trusted_key *there = find(keys, &key);
    if (there == NULL && keys->count == CAIRN_KEYS_MAX)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "%d keys are trusted already; `cairn key untrust` takes one off",
                          CAIRN_KEYS_MAX);
    keys->changing = there != NULL ? *there
                                   : (struct trusted_key) { key, false, cairn_wall_unix_s() };
    return CAIRN_OK;
}

void cairn_cluster_key_trust(struct cairn_cluster_session *session, uint32_t request,
                             const Cairn__KeyTrust *message)
{
    struct cairn_cluster *cluster = session->cluster;
    struct cairn_cluster_keys *keys = cluster->keys;
    struct cairn_sentence why = { "" };
    cairn_status status = keys->is_changing  ? cairn_fail(&why, CAIRN_ERR_BUSY,
                                                          "the keys are being changed: ask again")
                          : message->untrust ? judge_untrust(keys, message->key, &why)
                                             : judge_trust(keys, message->key, &why);
    if (status == CAIRN_OK && !cairn_cluster_waiters_add(&keys->waiter, session, request))
        status = cairn_fail(&why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    if (status != CAIRN_OK) {
        cairn_cluster_session_error(session, request, status, why.text);
        return;
    }
    char line[CAIRN_KEY_LINE_BYTES];
    cairn_public_key_line(&keys->changing.key, line);
    keys->is_changing = true;
    keys->is_untrust = message->untrust;
    status = cairn_cluster_save_key(
        cluster,
        &(struct cairn_stored_key) { line, keys->changing.is_own, keys->changing.since_unix_s },
        !message->untrust, on_saved, &why);
    if (status == CAIRN_OK) return;
    keys->is_changing = false;
    cairn_cluster_waiters_fail(&keys->waiter, status, why.text);
}

void cairn_cluster_keys_forget(struct cairn_cluster *cluster,
                               const struct cairn_cluster_session *session)
{
    if (cluster->keys != NULL) cairn_cluster_waiters_forget(&cluster->keys->waiter, session);
}

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/coordinator/cluster.h"
#include "server/coordinator/roster.h"

struct coord_keys {
    struct secret_key signer;
    struct trusted_key list[CAIRN_KEYS_MAX];
    size_t count;
    /* The change that the store is writing, while is_changing. Only one change is made at a time.
     * changing: the key that changes. is_untrust: the key will not be trusted any more. waiter: the
     * request for the change */
    struct trusted_key changing;
    bool is_changing, is_untrust;
    struct coord_waiters waiter;
};

/* Finds a trusted key by the key itself, not by its id. */
static struct trusted_key *find_key(struct coord_keys *keys, const struct public_key *key)
{
    for (size_t i = 0; i < keys->count; i++)
        if (memcmp(&keys->list[i].key, key, sizeof *key) == 0) return &keys->list[i];
    return NULL;
}

/* ---- the file ---- */

static cairn_status fail_file(const char *path, const char *what, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_CONFIG, "the key that snapshots are signed with, %.300s: %s",
                     path, what);
}

static cairn_status judge_text(const char *path, const char *text, struct secret_key *out,
                               struct sentence *why)
{
    struct sentence said, whole;
    if (secret_key_parse(text, out, &said) == CAIRN_OK) return CAIRN_OK;
    sentence_set(&whole,
                 "%s; put it back from a copy, or move it away: then a new key is made, and "
                 "what the old one signed stays trusted",
                 said.text);
    return fail_file(path, whole.text, why);
}

/* Reads the key from the file. CAIRN_ERR_NOT_FOUND: the file does not exist. */
static cairn_status read_file(const char *path, struct secret_key *out, struct sentence *why)
{
    char text[CAIRN_KEY_TEXT_BYTES];
    struct stat info;
    struct sentence said;
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return CAIRN_ERR_NOT_FOUND;
    if (fd < 0) return fail_file(path, strerror(errno), why);
    cairn_status status = CAIRN_OK;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        status = fail_file(path, "it is no file", why);
    } else if ((info.st_mode & 0077) != 0) {
        sentence_set(&said,
                     "its mode is %04o, so others could sign as this cluster: chmod 600 it, "
                     "or move it away: then a new key is made",
                     (unsigned)(info.st_mode & 07777));
        status = fail_file(path, said.text, why);
    }
    const ssize_t got = status == CAIRN_OK ? read_fully(fd, text, sizeof text - 1) : 0;
    if (got < 0) status = fail_file(path, strerror(errno), why);
    close(fd);
    if (status != CAIRN_OK) return status;
    text[got] = '\0';
    status = judge_text(path, text, out, why);
    sodium_memzero(text, sizeof text);
    return status;
}

static cairn_status write_file(const char *path, const struct secret_key *key, struct sentence *why)
{
    char text[CAIRN_KEY_TEXT_BYTES], begun[PATH_MAX + 8];
    snprintf(begun, sizeof begun, "%s.new", path);
    // A start that was killed may have left this file. No other process uses it, because the folder
    // is locked.
    unlink(begun);
    secret_key_text(key, text);
    const cairn_status status = durable_create(path, text, strlen(text), why);
    sodium_memzero(text, sizeof text);
    return status;
}

/* Takes the key from the store. CAIRN_ERR_NOT_FOUND: the store does not contain the key. */
static cairn_status take_from_store(struct coord_store *store, const char *path,
                                    struct secret_key *out, struct sentence *why)
{
    char text[CAIRN_KEY_TEXT_BYTES];
    cairn_status status = store_signer(store, text, why);
    if (status == CAIRN_OK) status = judge_text(path, text, out, why);
    sodium_memzero(text, sizeof text);
    return status;
}

/* Finds the key of a store that is a file: in a file beside it. The store itself contains the key only if the
 * store was restored from a backup. */
static cairn_status find_own(struct coord_store *store, const char *path, struct secret_key *out,
                             struct sentence *why)
{
    const cairn_status status = read_file(path, out, why);
    if (status != CAIRN_ERR_NOT_FOUND) return status;
    CAIRN_TRY(take_from_store(store, path, out, why));
    CAIRN_TRY(write_file(path, out, why));
    log_info("%s was made from the store's copy", path);
    return CAIRN_OK;
}

/* Finds the key of a shared store, which all of its coordinators have from there. A store that was in a file
 * before has it in the file beside that. */
static cairn_status find_shared(struct coord_store *store, const char *path, struct secret_key *out,
                                struct sentence *why)
{
    const cairn_status status = take_from_store(store, path, out, why);
    return status == CAIRN_ERR_NOT_FOUND ? read_file(path, out, why) : status;
}

/* ---- opening ---- */

static cairn_status load_key(void *context, const void *row, struct sentence *why)
{
    const struct stored_key *stored = row;
    struct coord_keys *keys = context;
    if (keys->count == CAIRN_KEYS_MAX)
        return fail_with(why, CAIRN_ERR_CORRUPT, "the store has more than %d keys", CAIRN_KEYS_MAX);
    struct trusted_key *key = &keys->list[keys->count];
    CAIRN_TRY(public_key_parse(stored->line, &key->key, why));
    key->is_own = stored->is_own;
    key->since_unix_s = stored->since_unix_s;
    keys->count++;
    return CAIRN_OK;
}

/* Reports that the key file is missing, if the store knows which key signed before. */
static void say_missing(struct coord *cluster, const char *path)
{
    const struct coord_keys *keys = cluster->keys;
    char was[CAIRN_KEY_NAME_BYTES], is[CAIRN_KEY_NAME_BYTES];
    const struct trusted_key *own = NULL;
    for (size_t i = 0; i < keys->count; i++)
        if (keys->list[i].is_own) own = &keys->list[i];
    if (own == NULL) return;
    key_name(own->key.id, was);
    key_name(keys->signer.public_key.id, is);
    log_warn("the key %s, which signed this cluster's snapshots, is not in %s: a new one, %s, "
             "signs from now on, and what %s signed stays trusted; to go on with it, stop "
             "the coordinator and put the file back",
             was, path, is, was);
    coord_event_note(cluster, CAIRN_EVENT_KEY, NULL, NULL,
                     "%s was not there: key %s signs snapshots from now on, in place of %s", path,
                     is, was);
}

/* Trusts this cluster's own key, and records this in the store. */
static cairn_status trust_own(struct coord *cluster, struct sentence *why)
{
    struct coord_keys *keys = cluster->keys;
    struct trusted_key *there = find_key(keys, &keys->signer.public_key);
    if (there != NULL && there->is_own) return CAIRN_OK;
    if (there == NULL && keys->count == CAIRN_KEYS_MAX)
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "%d keys are trusted already: start with the key that was there, and "
                         "take some off with `cairn key untrust`",
                         CAIRN_KEYS_MAX);
    if (there == NULL) there = &keys->list[keys->count++];
    *there = (struct trusted_key) { keys->signer.public_key, true, wall_unix_s() };
    char line[CAIRN_KEY_LINE_BYTES];
    public_key_line(&there->key, line);
    const struct stored_key row = { line, there->is_own, there->since_unix_s };
    return store_write(cluster->store, CAIRN_STORE_KEY, &row, 1, why);
}

/* Gives the store the secret key, which the store puts into its backups. */
static cairn_status tell_store(struct coord *cluster, struct sentence *why)
{
    char text[CAIRN_KEY_TEXT_BYTES];
    secret_key_text(&cluster->keys->signer, text);
    const cairn_status status = store_set_signer(cluster->store, text, why);
    sodium_memzero(text, sizeof text);
    return status;
}

cairn_status coord_keys_open(struct coord *cluster, struct sentence *why)
{
    char path[PATH_MAX];
    struct coord_keys *keys = calloc(1, sizeof *keys);
    if (keys == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for keys");
    cluster->keys = keys;
    const int length = snprintf(path, sizeof path - 8, "%s/" CAIRN_KEY_FILE,
                                cluster->options->store_path);
    if (length < 0 || (size_t)length >= sizeof path - 8)
        return fail_with(why, CAIRN_ERR_CONFIG, "store.path is too long");
    cairn_status status = store_each(cluster->store, CAIRN_STORED_KEYS, load_key, keys, why);
    if (status != CAIRN_OK) return status;
    const bool is_shared = cluster->options->backing != NULL;
    status = (is_shared ? find_shared : find_own)(cluster->store, path, &keys->signer, why);
    if (status == CAIRN_ERR_NOT_FOUND) {
        secret_key_make(&keys->signer);
        status = is_shared ? CAIRN_OK : write_file(path, &keys->signer, why);
        if (status == CAIRN_OK) say_missing(cluster, is_shared ? "the store" : path);
    }
    if (status == CAIRN_OK) status = tell_store(cluster, why);
    return status == CAIRN_OK ? trust_own(cluster, why) : status;
}

void coord_keys_close(struct coord *cluster)
{
    struct coord_keys *keys = cluster->keys;
    if (keys == NULL) return;
    coord_waiters_release(&keys->waiter);
    sodium_memzero(keys, sizeof *keys);
    free(keys);
    cluster->keys = NULL;
}

const struct secret_key *coord_keys_signer(const struct coord *cluster)
{
    return &cluster->keys->signer;
}

void coord_keys_ring(const struct coord *cluster, struct key_ring *out)
{
    out->count = cluster->keys->count;
    for (size_t i = 0; i < out->count; i++) out->keys[i] = cluster->keys->list[i].key;
}

/* ---- what an admin asks ---- */

void coord_keys_fill_list(const struct coord *cluster, const struct trusted_key *list, size_t count,
                          struct keys_message *room)
{
    const struct public_key *signer = &cluster->keys->signer.public_key;
    cairn__keys__init(&room->keys);
    for (size_t i = 0; i < count; i++) {
        Cairn__Key *view = &room->views[i];
        cairn__key__init(view);
        key_name(list[i].key.id, room->ids[i]);
        public_key_line(&list[i].key, room->lines[i]);
        view->id = room->ids[i];
        view->line = room->lines[i];
        view->own = list[i].is_own;
        view->signs = memcmp(&list[i].key, signer, sizeof *signer) == 0;
        view->since_unix_ms = list[i].since_unix_s * 1000;
        room->list[i] = view;
    }
    room->keys.keys = room->list;
    room->keys.n_keys = count;
}

void coord_keys_fill(const struct coord *cluster, struct keys_message *room)
{
    coord_keys_fill_list(cluster, cluster->keys->list, cluster->keys->count, room);
}

/* ---- requests of admins ---- */
static void on_keys_get(struct coord_session *session, uint32_t request, const void *any)
{
    (void)any;
    struct keys_message message;
    struct coord_answer answer = { 0 };
    coord_keys_fill(session->cluster, &message);
    coord_roster_fill(session->cluster, &answer, &message.keys);
    coord_answer_send(&answer, session, request, CAIRN_MSG_KEYS, &message.keys.base);
}

/* ---- what shards keep ---- */

size_t coord_keys_unknown(struct coord *cluster, const Cairn__Keys *kept,
                          struct trusted_key list[CAIRN_KEYS_MAX], size_t count)
{
    for (size_t i = 0; kept != NULL && i < kept->n_keys; i++) {
        struct trusted_key key = { .is_own = kept->keys[i]->own,
                                   .since_unix_s = kept->keys[i]->since_unix_ms / 1000 };
        bool known = public_key_parse(kept->keys[i]->line, &key.key, NULL) != CAIRN_OK ||
                     find_key(cluster->keys, &key.key) != NULL;
        for (size_t k = 0; k < count; k++)
            known = known || memcmp(&list[k].key, &key.key, sizeof key.key) == 0;
        if (!known && cluster->keys->count + count < CAIRN_KEYS_MAX) list[count++] = key;
    }
    return count;
}

void coord_keys_adopted(struct coord *cluster, const struct trusted_key *list, size_t count)
{
    struct coord_keys *keys = cluster->keys;
    char id[CAIRN_KEY_NAME_BYTES];
    for (size_t i = 0; i < count; i++) {
        keys->list[keys->count++] = list[i];
        key_name(list[i].key.id, id);
        log_info("key %s was trusted by the lost store, and is trusted here too", id);
        coord_event_note(cluster, CAIRN_EVENT_KEY, NULL, NULL,
                         "key %s, which the lost store trusted, was adopted", id);
    }
}

bool coord_keys_are_changing(const struct coord *cluster)
{
    return cluster->keys->is_changing;
}

/* ---- a change ---- */

static void apply_key_change(struct coord_keys *keys)
{
    struct trusted_key *there = find_key(keys, &keys->changing.key);
    if (keys->is_untrust && there != NULL)
        *there = keys->list[--keys->count];
    else if (!keys->is_untrust && there == NULL)
        keys->list[keys->count++] = keys->changing;
}

static void on_saved(const struct coord_saved *saved)
{
    struct coord_keys *keys = saved->cluster->keys;
    keys->is_changing = false;
    if (saved->status != CAIRN_OK) {
        coord_waiters_fail(&keys->waiter, saved->status, saved->why);
        return;
    }
    char id[CAIRN_KEY_NAME_BYTES];
    struct keys_message message;
    apply_key_change(keys);
    key_name(keys->changing.key.id, id);
    log_info("key %s is %s", id, keys->is_untrust ? "not trusted any more" : "trusted");
    coord_event_note(saved->cluster, CAIRN_EVENT_KEY, NULL, NULL,
                     "key %s is %s, by an operator's word", id,
                     keys->is_untrust ? "not trusted any more" : "trusted");
    coord_keys_fill(saved->cluster, &message);
    Cairn__Heartbeat beat = CAIRN__HEARTBEAT__INIT;
    beat.keys = &message.keys;
    for (struct coord_shard_entry *s = saved->cluster->shards; s != NULL; s = s->next)
        if (s->session != NULL && !s->session->closing)
            coord_session_send(s->session, CAIRN_MSG_HEARTBEAT, 0, &beat.base);
    coord_waiters_answer(&keys->waiter, CAIRN_MSG_KEYS, &message.keys.base);
}

/* Returns the trusted key whose id (such as "0123456789ABCDEF") or line is `text`. Returns NULL if
 * there is no such key. */
static struct trusted_key *key_named(struct coord_keys *keys, const char *text)
{
    struct public_key key;
    char id[CAIRN_KEY_NAME_BYTES];
    if (public_key_parse(text, &key, NULL) == CAIRN_OK) return find_key(keys, &key);
    for (size_t i = 0; i < keys->count; i++) {
        key_name(keys->list[i].key.id, id);
        if (strcmp(id, text) == 0) return &keys->list[i];
    }
    return NULL;
}

static cairn_status judge_untrust(struct coord_keys *keys, const char *text, struct sentence *why)
{
    const struct trusted_key *key = key_named(keys, text);
    if (key == NULL)
        return fail_with(why, CAIRN_ERR_NOT_FOUND,
                         "no key \"%.100s\" is trusted; `cairn key list` shows those that are",
                         text);
    if (memcmp(&key->key, &keys->signer.public_key, sizeof key->key) == 0)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "key %.100s signs this cluster's snapshots: without it none of them could "
                         "be restored",
                         text);
    keys->changing = *key;
    return CAIRN_OK;
}

static cairn_status judge_trust(struct coord_keys *keys, const char *text, struct sentence *why)
{
    struct public_key key;
    CAIRN_TRY(public_key_parse(text, &key, why));
    const struct trusted_key *there = find_key(keys, &key);
    if (there == NULL && keys->count == CAIRN_KEYS_MAX)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "%d keys are trusted already; `cairn key untrust` takes one off",
                         CAIRN_KEYS_MAX);
    keys->changing = there != NULL ? *there : (struct trusted_key) { key, false, wall_unix_s() };
    return CAIRN_OK;
}

static cairn_status on_key_trust(struct coord_session *session, uint32_t request, const void *any,
                                 struct sentence *why)
{
    const Cairn__KeyTrust *message = any;
    struct coord *cluster = session->cluster;
    struct coord_keys *keys = cluster->keys;
    if (keys->is_changing || cluster->under_way.adoption != NULL)
        return fail_with(why, CAIRN_ERR_BUSY, "the keys are being changed: ask again");
    CAIRN_TRY((message->untrust ? judge_untrust : judge_trust)(keys, message->key, why));
    CAIRN_TRY(coord_waiters_add(&keys->waiter, session, request, why));
    char line[CAIRN_KEY_LINE_BYTES];
    public_key_line(&keys->changing.key, line);
    keys->is_changing = true;
    keys->is_untrust = message->untrust;
    const struct stored_key row = { line, keys->changing.is_own, keys->changing.since_unix_s };
    const cairn_status status = coord_save(
        cluster, message->untrust ? CAIRN_STORE_KEY_DROP : CAIRN_STORE_KEY, &row, 1, 0, on_saved,
        why);
    if (status == CAIRN_OK) return CAIRN_OK;
    keys->is_changing = false;
    coord_waiters_fail(&keys->waiter, status, why->text);
    return CAIRN_OK;
}

/* ==== messages ==== */

const struct coord_row coord_keys_rows[] = {
    { CAIRN_MSG_KEYS_GET, CAIRN_FROM_ADMIN, .by_session = on_keys_get },
    { CAIRN_MSG_KEY_TRUST, CAIRN_FROM_ADMIN, .asks = on_key_trust, .verb = "key trust" },
    { 0 },
};

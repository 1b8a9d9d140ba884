#include "server/coordinator/lead.h"

#include <inttypes.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "server/core/lead.h"

#define FORMAT       1
#define SLOW_MS      1000 /* a change that took longer is worth a line in the log */
#define AGAIN_MS     100  /* between two attempts to write */
#define PAGE         48   /* changes that are asked for at once */
#define PIECES_MAX   2048 /* of a picture or a change: a GiB */
#define NUMBER_BYTES 16   /* digits of a number in a key */
#define COUNT_BYTES  8    /* digits of the number of pieces */
#define KEY_BYTES    (CAIRN_ETCD_PREFIX_BYTES + 64)

enum lead_phase { STANDS_BY, LEADS, LED };

struct lead {
    struct backing backing; /* the first field: the store has no other pointer to this */
    /* borrowed */
    const struct coord_options *options;
    lead_fn on_change;
    void *context;
    /* owned */
    uv_async_t wake; /* tells the loop that `phase` has changed */
    pthread_t thread;
    struct etcd asks;   /* the thread's own */
    struct etcd writes; /* the store's */
    char self[512];     /* what PREFIX/leader says */
    /* the store's */
    uint64_t picture, next; /* number of the picture, and of the next change */

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    enum lead_phase phase;
    char said
        [CAIRN_SENTENCE_BYTES]; /* the thread's last line of the log, which it does not repeat */
    bool is_stopping;
    struct lead_term term; /* on the clock of now_ms; made: the revision of PREFIX/leader */
    /* the loop's */
    enum lead_change told;
};

/* A clock that goes on while the host sleeps, as that of etcd does. */
static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t lease_ms(const struct lead *lead)
{
    return (uint64_t)lead->options->store_lease_ms;
}

/* How long one endpoint may take. Several have to be tried before the lease ends. */
static long patience_ms(const struct lead *lead)
{
    return (long)(lease_ms(lead) / (2 + 2 * lead->asks.endpoint_count));
}

static bool may_write(struct lead *lead)
{
    HOLD_LOCK(&lead->lock);
    return lead_may_write(&lead->term, now_ms());
}

static void set_phase(struct lead *lead, enum lead_phase phase)
{
    HOLD_LOCK(&lead->lock);
    if (lead->is_stopping) return;
    lead->phase = phase;
    pthread_cond_broadcast(&lead->changed);
    uv_async_send(&lead->wake);
}

static enum lead_verdict judge_write(struct lead *lead, const struct lead_written *written)
{
    HOLD_LOCK(&lead->lock);
    return lead_judge(&lead->term, written, now_ms());
}

/* A write has found that another one leads, or that nobody can say so. */
static void end_lease(struct lead *lead)
{
    HOLD_LOCK(&lead->lock);
    lead_ends(&lead->term);
    pthread_cond_broadcast(&lead->changed);
}

/* Waits for that long, or until this process does not lead any more, or stops. Returns false if it stops. */
static bool rest(struct lead *lead, uint64_t rest_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t end_ns = (uint64_t)until.tv_nsec + rest_ms % 1000 * 1000000;
    until.tv_sec += (time_t)(rest_ms / 1000 + end_ns / 1000000000);
    until.tv_nsec = (long)(end_ns % 1000000000);
    HOLD_LOCK(&lead->lock);
    if (!lead->is_stopping) pthread_cond_timedwait(&lead->changed, &lead->lock, &until);
    return !lead->is_stopping;
}

/* ==== keys and values ==== */

static json_t *encode(const void *bytes, size_t byte_count)
{
    const size_t text_bytes = sodium_base64_ENCODED_LEN(byte_count, sodium_base64_VARIANT_ORIGINAL);
    char *text = malloc(text_bytes);
    if (text == NULL) return NULL;
    sodium_bin2base64(text, text_bytes, bytes, byte_count, sodium_base64_VARIANT_ORIGINAL);
    json_t *json = json_string(text);
    sodium_memzero(text, text_bytes); // it may have secrets
    free(text);
    return json;
}

static json_t *encode_text(const char *text)
{
    return encode(text, strlen(text));
}

/* Returns the bytes with a NUL behind them, which the caller frees; NULL: there are none, or no memory. */
static uint8_t *decode(const json_t *json, size_t *byte_count_out)
{
    const char *text = json_string_value(json);
    const size_t text_bytes = text != NULL ? strlen(text) : 0;
    uint8_t *bytes = malloc(text_bytes + 1);
    if (bytes == NULL || text == NULL ||
        sodium_base642bin(bytes, text_bytes, text, text_bytes, NULL, byte_count_out, NULL,
                          sodium_base64_VARIANT_ORIGINAL) != 0) {
        free(bytes);
        return NULL;
    }
    bytes[*byte_count_out] = '\0';
    return bytes;
}

static void key_of(const struct lead *lead, const char *kind, uint64_t number, char out[KEY_BYTES])
{
    snprintf(out, KEY_BYTES, "%s/%s/%016" PRIx64, lead->asks.prefix, kind, number);
}

static void key_named(const struct lead *lead, const char *name, char out[KEY_BYTES])
{
    snprintf(out, KEY_BYTES, "%s/%s", lead->asks.prefix, name);
}

static json_t *put(const char *key, json_t *value)
{
    return json_pack("{s:{s:o, s:o}}", "request_put", "key", encode_text(key), "value", value);
}

static json_t *delete_range(const char *key, const char *end)
{
    return json_pack("{s:{s:o, s:o}}", "request_delete_range", "key", encode_text(key), "range_end",
                     encode_text(end));
}

static json_t *if_made_at(const char *key, json_int_t revision)
{
    return json_pack("{s:o, s:s, s:s, s:I}", "key", encode_text(key), "target", "CREATE", "result",
                     "EQUAL", "create_revision", revision);
}

/* The gateway prints numbers of 64 bits as texts. */
static json_int_t number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    return text != NULL ? (json_int_t)strtoll(text, NULL, 10) : json_integer_value(value);
}

/* ==== rows ==== */

/* Carries the operations out if this process leads, and tries until that is known, or until nobody can tell
 * (core/lead.h). Steals `operations`. */
static cairn_status write_guarded(struct lead *lead, json_t *operations, struct sentence *why)
{
    char leader[KEY_BYTES];
    struct sentence inner = { "it was not asked" };
    const uint64_t began_ms = now_ms();
    const json_int_t made = WITH_LOCK(&lead->lock, lead->term.made);
    key_named(lead, "leader", leader);
    json_t *request = json_pack("{s:[o], s:o}", "compare", if_made_at(leader, made), "success",
                                operations);
    if (request == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for etcd");
    cairn_status status = CAIRN_ERR_UNREACHABLE;
    struct lead_written written = { .is_unreachable = true };
    lead->writes.may_be_made = false;
    enum lead_verdict verdict;
    while ((verdict = judge_write(lead, &written)) == CAIRN_LEAD_AGAIN) {
        json_t *answer = NULL;
        status = etcd_ask(&lead->writes, "/v3/kv/txn", json_incref(request), patience_ms(lead),
                          &answer, &inner);
        written = (struct lead_written) {
            .is_answered = status == CAIRN_OK,
            .is_leader = json_is_true(json_object_get(answer, "succeeded")),
            .is_unreachable = status == CAIRN_ERR_UNREACHABLE,
            .may_be_done = lead->writes.may_be_made,
        };
        json_decref(answer);
        if (written.is_unreachable) (void)rest(lead, AGAIN_MS);
    }
    json_decref(request);
    if (verdict == CAIRN_LEAD_REFUSED) return fail_with(why, status, "%s", inner.text);
    if (verdict == CAIRN_LEAD_WRITTEN) {
        const uint64_t took_ms = now_ms() - began_ms;
        if (took_ms > SLOW_MS)
            log_warn("%s took %" PRIu64
                     " ms for a change: jobs that begin, end or change wait for it",
                     lead->backing.name, took_ms);
        return CAIRN_OK;
    }
    end_lease(lead);
    return fail_with(why, CAIRN_ERR_UNREACHABLE,
                     "this coordinator does not lead any more (%s): ask the one that does",
                     status == CAIRN_OK ? "another one does" : inner.text);
}

/* Writes one piece. Steals `operations`, which follow it in the same transaction. */
static cairn_status write_piece(struct lead *lead, const char *key, json_t *value,
                                json_t *operations, struct sentence *why)
{
    if (operations == NULL || json_array_insert_new(operations, 0, put(key, value)) != 0) {
        json_decref(operations);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for etcd");
    }
    return write_guarded(lead, operations, why);
}

/* Writes a picture or a change: the first piece last. */
static cairn_status write_pieces(struct lead *lead, const char *key, const uint8_t *bytes,
                                 size_t byte_count, struct sentence *why)
{
    const size_t first = byte_count < CAIRN_PIECE_BYTES ? byte_count : CAIRN_PIECE_BYTES;
    uint32_t more = 0;
    for (size_t at = first; at < byte_count; more++) {
        char piece[KEY_BYTES + 16];
        const size_t left = byte_count - at;
        const size_t bytes_here = left < CAIRN_PIECE_BYTES ? left : CAIRN_PIECE_BYTES;
        snprintf(piece, sizeof piece, "%s/%08" PRIx32, key, more);
        CAIRN_TRY(write_piece(lead, piece, encode(bytes + at, bytes_here), json_array(), why));
        at += bytes_here;
    }
    char *whole = malloc(COUNT_BYTES + first + 1);
    if (whole == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for etcd");
    snprintf(whole, COUNT_BYTES + 1, "%08" PRIx32, more);
    memcpy(whole + COUNT_BYTES, bytes, first);
    json_t *value = encode(whole, COUNT_BYTES + first);
    sodium_memzero(whole, COUNT_BYTES + first); // it may have secrets
    free(whole);
    return write_piece(lead, key, value, json_array(), why);
}

static cairn_status append(struct backing *backing, const uint8_t *bytes, size_t byte_count,
                           struct sentence *why)
{
    struct lead *lead = (struct lead *)backing;
    char key[KEY_BYTES];
    key_of(lead, "log", lead->next, key);
    CAIRN_TRY(write_pieces(lead, key, bytes, byte_count, why));
    lead->next++;
    return CAIRN_OK;
}

static json_t *head_of(const struct lead *lead, uint64_t picture)
{
    json_t *head = json_pack("{s:i, s:s, s:I, s:I}", "format", FORMAT, "cluster",
                             lead->options->name, "image", (json_int_t)picture, "next",
                             (json_int_t)lead->next);
    char *text = head != NULL ? json_dumps(head, JSON_SORT_KEYS) : NULL;
    json_t *value = text != NULL ? encode_text(text) : NULL;
    json_decref(head);
    free(text);
    return value;
}

static cairn_status replace(struct backing *backing, const uint8_t *bytes, size_t byte_count,
                            struct sentence *why)
{
    struct lead *lead = (struct lead *)backing;
    char key[KEY_BYTES], head[KEY_BYTES], images[KEY_BYTES], log[KEY_BYTES], next[KEY_BYTES];
    const uint64_t picture = lead->picture + 1;
    key_of(lead, "image", picture, key);
    CAIRN_TRY(write_pieces(lead, key, bytes, byte_count, why));
    key_named(lead, "head", head);
    key_named(lead, "image/", images);
    key_named(lead, "log/", log);
    key_of(lead, "log", lead->next, next);
    CAIRN_TRY(write_piece(lead, head, head_of(lead, picture),
                          json_pack("[o, o]", delete_range(images, key), delete_range(log, next)),
                          why));
    lead->picture = picture;
    return CAIRN_OK;
}

/* ---- loading ---- */

/* Asks for the keys from `key` up to `end` (NULL: for `key` alone), at most `limit` of them. The answer
 * belongs to the caller. Tries as long as this process leads. */
static cairn_status read_range(struct lead *lead, const char *key, const char *end, int limit,
                               json_t **answer_out, struct sentence *why)
{
    struct sentence inner = { "it was not asked" };
    cairn_status status = CAIRN_ERR_UNREACHABLE;
    while (status == CAIRN_ERR_UNREACHABLE && may_write(lead)) {
        json_t *request = json_pack("{s:o, s:I}", "key", encode_text(key), "limit",
                                    (json_int_t)limit);
        if (end != NULL) json_object_set_new(request, "range_end", encode_text(end));
        status = etcd_ask(&lead->writes, "/v3/kv/range", request, patience_ms(lead), answer_out,
                          &inner);
        if (status == CAIRN_ERR_UNREACHABLE) (void)rest(lead, AGAIN_MS);
    }
    if (status == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, status, "%s", inner.text);
}

static cairn_status fail_rows(const struct lead *lead, const char *what, struct sentence *why)
{
    return fail_with(
        why, CAIRN_ERR_CORRUPT,
        "%s: %s; put a copy of etcd back, or give another prefix in store.url and begin "
        "with a backup (store.from) or from the shards (`cairn cluster adopt`)",
        lead->backing.name, what);
}

/* Reads one key. *bytes_out is the caller's. CAIRN_ERR_NOT_FOUND: there is no such key. */
static cairn_status read_key(struct lead *lead, const char *key, uint8_t **bytes_out,
                             size_t *byte_count_out, struct sentence *why)
{
    json_t *answer = NULL;
    CAIRN_TRY(read_range(lead, key, NULL, 1, &answer, why));
    const json_t *value = json_object_get(json_array_get(json_object_get(answer, "kvs"), 0),
                                          "value");
    *bytes_out = value != NULL ? decode(value, byte_count_out) : NULL;
    json_decref(answer);
    return *bytes_out != NULL ? CAIRN_OK : CAIRN_ERR_NOT_FOUND;
}

typedef cairn_status (*take_fn)(void *context, const uint8_t *bytes, size_t byte_count,
                                struct sentence *why);

/* Adds the pieces that the first one, `whole`, announces. */
static cairn_status join_pieces(struct lead *lead, const char *key, uint8_t **whole,
                                size_t *byte_count, struct sentence *why)
{
    char digits[COUNT_BYTES + 1] = "";
    if (*byte_count < COUNT_BYTES) return fail_rows(lead, "a piece is too short", why);
    memcpy(digits, *whole, COUNT_BYTES);
    const unsigned long more = strtoul(digits, NULL, 16);
    if (strspn(digits, "0123456789abcdef") != COUNT_BYTES || more > PIECES_MAX)
        return fail_rows(lead, "the number of pieces is malformed", why);
    for (unsigned long i = 0; i < more; i++) {
        char piece[KEY_BYTES + 16];
        uint8_t *bytes;
        size_t count = 0;
        snprintf(piece, sizeof piece, "%s/%08lx", key, i);
        const cairn_status status = read_key(lead, piece, &bytes, &count, why);
        if (status == CAIRN_ERR_NOT_FOUND) return fail_rows(lead, "a piece is missing", why);
        if (status != CAIRN_OK) return status;
        uint8_t *grown = realloc(*whole, *byte_count + count);
        if (grown != NULL) memcpy(grown + *byte_count, bytes, count);
        free(bytes);
        if (grown == NULL)
            return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the store");
        *whole = grown;
        *byte_count += count;
    }
    return CAIRN_OK;
}

/* Takes a picture or a change whose first piece is `first`, which is freed. */
static cairn_status take_pieces(struct lead *lead, const char *key, uint8_t *first,
                                size_t byte_count, take_fn take, void *context,
                                struct sentence *why)
{
    cairn_status status = join_pieces(lead, key, &first, &byte_count, why);
    if (status == CAIRN_OK)
        status = take(context, first + COUNT_BYTES, byte_count - COUNT_BYTES, why);
    sodium_memzero(first, byte_count); // it has secrets
    free(first);
    return status;
}

/* Takes one entry of a page of the log, unless it is a further piece. Writes its key to `key`. */
static cairn_status take_entry(struct lead *lead, const json_t *entry, char key[KEY_BYTES],
                               take_fn take, void *context, struct sentence *why)
{
    size_t key_bytes = 0, byte_count = 0;
    char expected[KEY_BYTES];
    uint8_t *own = decode(json_object_get(entry, "key"), &key_bytes);
    if (own == NULL || key_bytes >= KEY_BYTES) {
        free(own);
        return fail_rows(lead, "a key is malformed", why);
    }
    const bool is_next = strcmp((const char *)own, key) >= 0;
    memcpy(key, own, key_bytes + 1);
    free(own);
    if (!is_next) return fail_rows(lead, "keys come in no order", why);
    key_of(lead, "log", lead->next, expected);
    if (strlen(key) > strlen(expected)) return CAIRN_OK; // a further piece
    if (strcmp(key, expected) != 0) return fail_rows(lead, "a change is missing", why);
    uint8_t *first = decode(json_object_get(entry, "value"), &byte_count);
    if (first == NULL) return fail_rows(lead, "a change is empty", why);
    lead->next++;
    return take_pieces(lead, key, first, byte_count, take, context, why);
}

static cairn_status take_log(struct lead *lead, take_fn take, void *context, struct sentence *why)
{
    char key[KEY_BYTES], end[KEY_BYTES];
    cairn_status status = CAIRN_OK;
    size_t count = PAGE;
    key_of(lead, "log", lead->next, key);
    key_named(lead, "log0", end); // the first key behind those that begin with "log/"
    while (status == CAIRN_OK && count == PAGE) {
        json_t *answer = NULL;
        CAIRN_TRY(read_range(lead, key, end, PAGE, &answer, why));
        const json_t *kvs = json_object_get(answer, "kvs");
        count = json_array_size(kvs);
        for (size_t i = 0; i < count && status == CAIRN_OK; i++)
            status = take_entry(lead, json_array_get(kvs, i), key, take, context, why);
        json_decref(answer);
        // The next page begins behind the last one, and before its further pieces: '!' < '/'.
        const size_t length = strlen(key);
        if (count == PAGE) snprintf(key + length, sizeof key - length, "!");
    }
    return status;
}

static cairn_status judge_head(struct lead *lead, const json_t *head, struct sentence *why)
{
    const char *cluster = json_string_value(json_object_get(head, "cluster"));
    const json_int_t format = json_integer_value(json_object_get(head, "format"));
    if (cluster == NULL || format < 1) return fail_rows(lead, "its head is malformed", why);
    if (strcmp(cluster, lead->options->name) != 0)
        return fail_with(
            why, CAIRN_ERR_MISMATCH,
            "%s has the rows of cluster \"%.100s\", and this coordinator is of cluster "
            "\"%.100s\" (cluster.name): give each cluster a prefix of its own in store.url",
            lead->backing.name, cluster, lead->options->name);
    if (format != FORMAT)
        return fail_with(why, CAIRN_ERR_VERSION,
                         "%s has rows of format %lld, and this program reads %d alone: start the "
                         "version that wrote them",
                         lead->backing.name, (long long)format, FORMAT);
    lead->picture = (uint64_t)json_integer_value(json_object_get(head, "image"));
    lead->next = (uint64_t)json_integer_value(json_object_get(head, "next"));
    return CAIRN_OK;
}

/* A prefix without a head is new, unless it has keys that no coordinator makes. */
static cairn_status judge_new(struct lead *lead, struct sentence *why)
{
    char all[KEY_BYTES], end[KEY_BYTES];
    json_t *answer = NULL;
    key_named(lead, "", all);
    snprintf(end, sizeof end, "%s0", lead->asks.prefix); // behind all that begin with "PREFIX/"
    CAIRN_TRY(read_range(lead, all, end, 2, &answer, why));
    cairn_status status = CAIRN_OK;
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(answer, "kvs"), i, entry)
    {
        size_t bytes = 0;
        char *key = (char *)decode(json_object_get(entry, "key"), &bytes);
        const char *name = key != NULL && bytes > strlen(all) ? key + strlen(all) : "";
        if (strcmp(name, "leader") != 0 && strncmp(name, "image/", 6) != 0)
            status = fail_with(
                why, CAIRN_ERR_MISMATCH,
                "%s has the key \"%.200s\", which is no coordinator's: give another prefix "
                "in store.url",
                lead->backing.name, key != NULL ? key : "");
        free(key);
    }
    json_decref(answer);
    lead->picture = 0;
    lead->next = 1;
    return status;
}

/* A store in etcd begins with a backup, if that is asked for. */
static cairn_status take_file(const struct lead *lead, take_fn take, void *context,
                              struct sentence *why)
{
    const char *path = lead->options->store_from;
    char beside[PATH_MAX];
    snprintf(beside, sizeof beside, "%.*s-wal", PATH_MAX - 8, path);
    FILE *file = fopen(path, "re");
    uint8_t *bytes = NULL;
    long count = -1;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0) count = ftell(file);
    if (count > 0) bytes = malloc((size_t)count);
    const bool is_whole = bytes != NULL && access(beside, F_OK) != 0 &&
                          fseek(file, 0, SEEK_SET) == 0 &&
                          fread(bytes, 1, (size_t)count, file) == (size_t)count;
    if (file != NULL) fclose(file);
    const cairn_status status =
        is_whole
            ? take(context, bytes, (size_t)count, why)
            : fail_with(
                  why, CAIRN_ERR_CONFIG,
                  "store.from is \"%.300s\": it cannot be read as a whole; give a file that `cairn "
                  "cluster backup` wrote, or the coordinator.db of a coordinator that has ended",
                  path);
    if (bytes != NULL) sodium_memzero(bytes, (size_t)count);
    free(bytes);
    if (status == CAIRN_OK) log_info("%s begins with %s", lead->backing.name, path);
    return status;
}

static cairn_status load(struct backing *backing, take_fn take, void *context, struct sentence *why)
{
    struct lead *lead = (struct lead *)backing;
    char key[KEY_BYTES];
    uint8_t *bytes;
    size_t byte_count = 0;
    key_named(lead, "head", key);
    cairn_status status = read_key(lead, key, &bytes, &byte_count, why);
    if (status == CAIRN_ERR_NOT_FOUND) {
        CAIRN_TRY(judge_new(lead, why));
        return lead->options->store_from[0] != '\0' ? take_file(lead, take, context, why)
                                                    : CAIRN_OK;
    }
    if (status != CAIRN_OK) return status;
    json_t *head = json_loadb((const char *)bytes, byte_count, 0, NULL);
    free(bytes);
    status = judge_head(lead, head, why);
    json_decref(head);
    if (status == CAIRN_OK && lead->options->store_from[0] != '\0')
        return fail_with(
            why, CAIRN_ERR_CONFIG,
            "%s has rows already, and store.from begins a store that has none: leave it out, "
            "or give another prefix in store.url",
            lead->backing.name);
    if (status != CAIRN_OK) return status;
    key_of(lead, "image", lead->picture, key);
    status = read_key(lead, key, &bytes, &byte_count, why);
    if (status == CAIRN_ERR_NOT_FOUND) return fail_rows(lead, "the picture is missing", why);
    if (status == CAIRN_OK) status = take_pieces(lead, key, bytes, byte_count, take, context, why);
    return status == CAIRN_OK ? take_log(lead, take, context, why) : status;
}

/* ==== the leader ==== */

static void say(struct lead *lead, bool is_well, const char *text)
{
    pthread_mutex_lock(&lead->lock);
    const bool is_said = strcmp(lead->said, text) == 0;
    snprintf(lead->said, sizeof lead->said, "%s", text);
    pthread_mutex_unlock(&lead->lock);
    if (is_said) return;
    if (is_well)
        log_info("%s", text);
    else
        log_warn("%s", text);
    notify_status(text);
}

static void say_leader(struct lead *lead, const json_t *entry)
{
    struct sentence text;
    size_t bytes = 0;
    char *value = (char *)decode(json_object_get(entry, "value"), &bytes);
    sentence_set(&text, "stands by: %.300s leads, by %s",
                 value != NULL ? value : "another coordinator", lead->backing.name);
    free(value);
    text_mend(text.text, "");
    say(lead, true, text.text);
}

static cairn_status ask_grant(struct lead *lead, struct lead_answer *out, struct sentence *why)
{
    json_t *answer = NULL;
    CAIRN_TRY(etcd_ask(&lead->asks, "/v3/lease/grant",
                       json_pack("{s:I}", "TTL", (json_int_t)((lease_ms(lead) + 999) / 1000)),
                       patience_ms(lead), &answer, why));
    out->lease = number_of(answer, "ID");
    json_decref(answer);
    return CAIRN_OK;
}

static cairn_status ask_drop(struct lead *lead, json_int_t lease, struct sentence *why)
{
    json_t *answer = NULL;
    CAIRN_TRY(etcd_ask(&lead->asks, "/v3/lease/revoke", json_pack("{s:I}", "ID", lease),
                       patience_ms(lead), &answer, why));
    json_decref(answer);
    return CAIRN_OK;
}

static cairn_status ask_look(struct lead *lead, struct lead_answer *out, struct sentence *why)
{
    char key[KEY_BYTES];
    json_t *answer = NULL;
    key_named(lead, "leader", key);
    CAIRN_TRY(etcd_ask(&lead->asks, "/v3/kv/range", json_pack("{s:o}", "key", encode_text(key)),
                       patience_ms(lead), &answer, why));
    const json_t *entry = json_array_get(json_object_get(answer, "kvs"), 0);
    out->is_led = entry != NULL;
    if (entry != NULL) say_leader(lead, entry);
    json_decref(answer);
    return CAIRN_OK;
}

/* Makes PREFIX/leader if nobody else has. */
static cairn_status ask_make(struct lead *lead, json_int_t lease, struct lead_answer *out,
                             struct sentence *why)
{
    char key[KEY_BYTES];
    json_t *answer = NULL;
    key_named(lead, "leader", key);
    json_t *request = json_pack("{s:[o], s:[{s:{s:o, s:o, s:I}}]}", "compare", if_made_at(key, 0),
                                "success", "request_put", "key", encode_text(key), "value",
                                encode_text(lead->self), "lease", lease);
    CAIRN_TRY(etcd_ask(&lead->asks, "/v3/kv/txn", request, patience_ms(lead), &answer, why));
    out->made = json_is_true(json_object_get(answer, "succeeded"))
                    ? number_of(json_object_get(answer, "header"), "revision")
                    : 0;
    json_decref(answer);
    return CAIRN_OK;
}

static cairn_status ask_renew(struct lead *lead, json_int_t lease, struct lead_answer *out,
                              struct sentence *why)
{
    json_t *answer = NULL;
    CAIRN_TRY(etcd_ask(&lead->asks, "/v3/lease/keepalive", json_pack("{s:I}", "ID", lease),
                       patience_ms(lead), &answer, why));
    out->is_alive = number_of(json_object_get(answer, "result"), "TTL") > 0;
    json_decref(answer);
    if (!out->is_alive)
        sentence_set(why, "etcd has let its lease end, since it did not hear of it in time");
    return CAIRN_OK;
}

/* Carries the order out. `why` is set if the lease cannot go on because of what came of it. */
static struct lead_answer carry_out(struct lead *lead, const struct lead_order *order,
                                    struct sentence *why)
{
    struct lead_answer answer = { .is_known = false };
    cairn_status status = CAIRN_OK;
    switch (order->kind) {
    case CAIRN_LEAD_LOOK: status = ask_look(lead, &answer, why); break;
    case CAIRN_LEAD_GRANT: status = ask_grant(lead, &answer, why); break;
    case CAIRN_LEAD_MAKE: status = ask_make(lead, order->lease, &answer, why); break;
    case CAIRN_LEAD_RENEW: status = ask_renew(lead, order->lease, &answer, why); break;
    case CAIRN_LEAD_DROP: status = ask_drop(lead, order->lease, why); break;
    case CAIRN_LEAD_REST: (void)rest(lead, order->rest_ms); break;
    }
    answer.is_known = status == CAIRN_OK;
    return answer;
}

static void say_waits(struct lead *lead, const struct sentence *why)
{
    struct sentence text;
    sentence_set(&text, "waits for the store: %s", why->text);
    say(lead, false, text.text);
}

/* Says what the answer has changed, and tells the loop. */
static void tell(struct lead *lead, enum lead_stage before, enum lead_stage now,
                 const struct sentence *why)
{
    if (before == CAIRN_LEAD_MAKES && now == CAIRN_LEAD_LEADS) {
        log_info("leads, by %s", lead->backing.name);
        (void)WITH_LOCK(&lead->lock, lead->said[0] = '\0');
        set_phase(lead, LEADS);
    }
    if (before == CAIRN_LEAD_RENEWS && now == CAIRN_LEAD_LED) {
        log_error("steps down: %s; trainers wait until a coordinator leads again",
                  why->text[0] != '\0' ? why->text : "another coordinator has taken its place");
        set_phase(lead, LED);
    }
}

/* The process ends: another one may lead at once. */
static void leave(struct lead *lead)
{
    struct sentence why;
    if (WITH_LOCK(&lead->lock, lead_has_lease(&lead->term)))
        (void)!ask_drop(lead, lead->term.lease, &why);
}

static void *run(void *context)
{
    struct lead *lead = context;
    struct sentence why = { "" };
    while (!WITH_LOCK(&lead->lock, lead->is_stopping)) {
        enum lead_stage before, now;
        struct lead_order order;
        pthread_mutex_lock(&lead->lock);
        before = lead->term.stage;
        order = lead_next(&lead->term, now_ms());
        pthread_mutex_unlock(&lead->lock);
        if (before == CAIRN_LEAD_LEADS) why.text[0] = '\0';
        const struct lead_answer answer = carry_out(lead, &order, &why);
        if (before <= CAIRN_LEAD_MAKES && !answer.is_known) say_waits(lead, &why);
        pthread_mutex_lock(&lead->lock);
        lead_hears(&lead->term, &answer, now_ms());
        now = lead->term.stage;
        if (now == CAIRN_LEAD_STANDS_BY && !lead->is_stopping) lead->phase = STANDS_BY;
        pthread_mutex_unlock(&lead->lock);
        tell(lead, before, now, &why);
    }
    leave(lead);
    return NULL;
}

/* ==== the loop's side ==== */

void lead_release(struct lead *lead)
{
    HOLD_LOCK(&lead->lock);
    lead->told = CAIRN_LED;
    lead_released(&lead->term); // unless the thread has seen it already
    pthread_cond_broadcast(&lead->changed);
}

static void on_wake(uv_async_t *wake)
{
    struct lead *lead = wake->data;
    const enum lead_phase phase = WITH_LOCK(&lead->lock, lead->phase);
    if (phase == STANDS_BY) return;
    const enum lead_change change = phase == LEADS ? CAIRN_LEADS : CAIRN_LED;
    if (lead->told == change) {
        if (change == CAIRN_LED) lead_release(lead); // it led for less than a turn of the loop
        return;
    }
    lead->told = change;
    lead->on_change(change, lead->context);
}

static void on_wake_closed(uv_handle_t *handle)
{
    struct lead *lead = handle->data;
    pthread_cond_destroy(&lead->changed);
    pthread_mutex_destroy(&lead->lock);
    free(lead);
}

static void name_self(struct lead *lead)
{
    char host[256] = "?";
    gethostname(host, sizeof host - 1);
    snprintf(lead->self, sizeof lead->self, "pid %ld on %.200s (%.200s)", (long)getpid(), host,
             lead->options->network.listen);
}

cairn_status lead_open(const struct coord_options *options, uv_loop_t *loop, lead_fn on_change,
                       void *context, struct lead **lead_out, struct sentence *why)
{
    struct lead *lead = calloc(1, sizeof *lead);
    if (lead == NULL || sodium_init() < 0) {
        free(lead);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    }
    cairn_status status = etcd_init(&lead->asks, options, why);
    if (status == CAIRN_OK) status = etcd_init(&lead->writes, options, why);
    if (status != CAIRN_OK) {
        free(lead);
        return status;
    }
    lead->backing = (struct backing) { lead->asks.name, load, append, replace };
    lead->options = options;
    lead->on_change = on_change;
    lead->context = context;
    lead->term.lease_ms = lease_ms(lead);
    lead->told = CAIRN_LED;
    name_self(lead);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&lead->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&lead->lock, NULL);
    uv_async_init(loop, &lead->wake, on_wake);
    lead->wake.data = lead;
    if (thread_start(&lead->thread, run, lead) == 0) {
        *lead_out = lead;
        return CAIRN_OK;
    }
    uv_close((uv_handle_t *)&lead->wake, on_wake_closed);
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "no thread to renew the lease");
}

void lead_why(struct lead *lead, struct sentence *out)
{
    HOLD_LOCK(&lead->lock);
    sentence_set(out, "%s", lead->said[0] != '\0' ? lead->said : "stands by");
}

struct backing *lead_backing(struct lead *lead)
{
    return &lead->backing;
}

void lead_close(struct lead *lead)
{
    if (lead == NULL) return;
    pthread_mutex_lock(&lead->lock);
    lead->is_stopping = true;
    pthread_cond_broadcast(&lead->changed);
    pthread_mutex_unlock(&lead->lock);
    pthread_join(lead->thread, NULL);
    etcd_release(&lead->asks);
    etcd_release(&lead->writes);
    uv_close((uv_handle_t *)&lead->wake, on_wake_closed);
}

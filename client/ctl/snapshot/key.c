/* cairn key show | list | trust | untrust: whose signatures of snapshots are trusted. */
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "client/ctl/snapshot/place.h"
#include "proto/snapshot/manifest_trust.h"

/* JSON and one key as minisign prints it. */
static json_t *key_json(const Cairn__Key *key)
{
    return json_pack("{s:s, s:s, s:b, s:b, s:I}", "id", key->id, "key", key->line, "own",
                     (int)key->own, "signs", (int)key->signs, "since_ms",
                     (json_int_t)key->since_unix_ms);
}

static int print_list(const struct ctl *ctl, const Cairn__Keys *keys)
{
    static const char *const headers[] = { "ID", "WHOSE", "SINCE", "KEY" };
    if (ctl->json) {
        json_t *list = json_array();
        for (size_t i = 0; i < keys->n_keys; i++)
            json_array_append_new(list, key_json(keys->keys[i]));
        return cairn_ctl_print_json(json_pack("{s:o}", "keys", list));
    }
    struct ctl_table *table = cairn_ctl_table_open(headers, 4);
    for (size_t i = 0; i < keys->n_keys; i++) {
        const Cairn__Key *key = keys->keys[i];
        const time_t seconds = (time_t)(key->since_unix_ms / 1000);
        char since[32] = "";
        struct tm utc;
        if (gmtime_r(&seconds, &utc) != NULL)
            strftime(since, sizeof since, "%Y-%m-%dT%H:%M:%SZ", &utc);
        cairn_ctl_table_cell(table, "%s", key->id);
        cairn_ctl_table_cell(table, "%s",
                             key->signs ? "this cluster's"
                             : key->own ? "this cluster's, before"
                                        : "another's");
        cairn_ctl_table_cell(table, "%s", since);
        cairn_ctl_table_cell(table, "%s", key->line);
    }
    cairn_ctl_table_close(table, ctl);
    return 0;
}

static cairn_status ask(struct ctl *ctl, ProtobufCMessage **reply_out)
{
    const Cairn__KeysGet get = CAIRN__KEYS_GET__INIT;
    return cairn_ctl_call(ctl, CAIRN_MSG_KEYS_GET, &get.base, CAIRN_MSG_KEYS, reply_out);
}

int cairn_ctl_key_list(struct ctl *ctl)
{
    ProtobufCMessage *reply;
    const cairn_status called = ask(ctl, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const int done = print_list(ctl, (const Cairn__Keys *)reply);
    cairn_message_free(reply);
    return done;
}

static int print_own(const struct ctl *ctl, const Cairn__Key *key)
{
    struct cairn_public_key public_key;
    struct cairn_sentence why;
    char text[CAIRN_KEY_TEXT_BYTES];
    const cairn_status status = cairn_public_key_parse(key->line, &public_key, &why);
    if (status != CAIRN_OK) return cairn_ctl_fail(status, "the coordinator's key: %s", why.text);
    if (ctl->json) return cairn_ctl_print_json(key_json(key));
    cairn_public_key_text(&public_key, text);
    printf("%s%s", ctl->quiet ? key->line : text, ctl->quiet ? "\n" : "");
    return 0;
}

int cairn_ctl_key_show(struct ctl *ctl)
{
    ProtobufCMessage *reply;
    const cairn_status called = ask(ctl, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__Keys *keys = (const Cairn__Keys *)reply;
    size_t at = 0;
    while (at < keys->n_keys && !keys->keys[at]->signs) at++;
    const int done = at < keys->n_keys ? print_own(ctl, keys->keys[at])
                                       : cairn_ctl_fail(CAIRN_ERR_NOT_FOUND,
                                                        "the coordinator names no key of its own");
    cairn_message_free(reply);
    return done;
}

/* A file of it, or the key itself. False: it is too large to be one; else what was given, or read. */
static bool read_key(const char *given, char text[CAIRN_KEY_TEXT_BYTES])
{
    FILE *file = fopen(given, "re");
    if (file == NULL)
        return (size_t)snprintf(text, CAIRN_KEY_TEXT_BYTES, "%s", given) < CAIRN_KEY_TEXT_BYTES;
    const size_t got = fread(text, 1, CAIRN_KEY_TEXT_BYTES - 1, file);
    text[got] = '\0';
    const bool fits = fgetc(file) == EOF;
    fclose(file);
    return fits;
}

int cairn_ctl_key_read(const char *given, struct cairn_public_key *out)
{
    char text[CAIRN_KEY_TEXT_BYTES];
    struct cairn_sentence why = { "it is too long for one" };
    const bool is_read = read_key(given, text);
    const cairn_status status = is_read ? cairn_public_key_parse(text, out, &why)
                                        : CAIRN_ERR_MALFORMED;
    if (status == CAIRN_OK) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "%s is no file of a key, and no key: %s", given,
                          why.text);
}

int cairn_ctl_key_ring(struct ctl *ctl, struct cairn_key_ring *out)
{
    ProtobufCMessage *reply;
    const cairn_status called = ask(ctl, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__Keys *keys = (const Cairn__Keys *)reply;
    out->count = 0;
    for (size_t i = 0; i < keys->n_keys && out->count < CAIRN_KEYS_MAX; i++)
        if (cairn_public_key_parse(keys->keys[i]->line, &out->keys[out->count], NULL) == CAIRN_OK)
            out->count++;
    cairn_message_free(reply);
    return -1;
}

static int change(struct ctl *ctl, char *key, bool untrust)
{
    Cairn__KeyTrust trust = CAIRN__KEY_TRUST__INIT;
    ProtobufCMessage *reply;
    trust.key = key;
    trust.untrust = untrust;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_KEY_TRUST, &trust.base,
                                               CAIRN_MSG_KEYS, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const int done = ctl->quiet ? 0 : print_list(ctl, (const Cairn__Keys *)reply);
    cairn_message_free(reply);
    return done;
}

int cairn_ctl_key_trust(struct ctl *ctl)
{
    char line[CAIRN_KEY_LINE_BYTES];
    struct cairn_public_key key;
    const int done = cairn_ctl_key_read(ctl->argv[0], &key);
    if (done >= 0) return done;
    cairn_public_key_line(&key, line);
    return change(ctl, line, false);
}

int cairn_ctl_key_untrust(struct ctl *ctl)
{
    return change(ctl, ctl->argv[0], true);
}

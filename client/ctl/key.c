/* cairn cluster init, cairn key add | rotate | revoke: who may connect. Words of tokens are printed once,
 * and kept nowhere here. */
#include <string.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "proto/secure/secure.h"

#define GRACE_S 3600

/* ==== init ==== */

/* No word stands in a command line, so none comes into a shell's history. */
const struct ctl_question ctl_cluster_init = {
    CTL_ASKS(CLUSTER_INIT, cluster_init, CLUSTER_INITED),
    .fill = "",
    .page = "cluster|{cluster}\n"
            "reached at|{address?}\n"
            "reached at|{!address}{listens}, which no other host reaches: set network.listen\n"
            "on each node|cairn-shard --join [{?address}{address}][{!address}HOST] -\n"
            "then type|{nodes}\n"
            "for trainers|(umask 077; head -n 1 > cairn-token); "
            "export CAIRN_TOKEN_FILE=$PWD/cairn-token "
            "CAIRN_ENDPOINT=[{?address}{address}][{!address}HOST]\n"
            "then type|{trainers}",
    .quiet = "{nodes}\n{trainers}",
};

/* ==== changes ==== */

static int fill_change(struct ctl *ctl, void *request, enum key_change op)
{
    Cairn__KeyChange *change = request;
    change->op = op;
    if (ctl->argc > 0) change->name = ctl->argv[0];
    change->roles = wire_text(ctl->key.roles != NULL ? ctl->key.roles : "");
    change->owner = wire_text(ctl->key.owner != NULL ? ctl->key.owner : "");
    change->jobs = wire_text(ctl->key.jobs != NULL ? ctl->key.jobs : "");
    change->not_after_unix_ms = ctl->key.until_unix_ms;
    if (op == CAIRN_KEY_ROTATE)
        change->grace_ms = (ctl_is_given(ctl, "grace") ? ctl->key.grace_s : GRACE_S) *
                           UINT64_C(1000);
    return -1;
}

static int fill_add(struct ctl *ctl, void *request)
{
    if (ctl->key.roles == NULL)
        return ctl_usage_fail(ctl, "--role says what the token is for, as --role worker,reader");
    return fill_change(ctl, request, CAIRN_KEY_ADD);
}

static int fill_rotate(struct ctl *ctl, void *request)
{
    const bool is_cluster = ctl_is_given(ctl, "cluster");
    if (is_cluster == (ctl->argc > 0))
        return ctl_usage_fail(ctl, "give the name of a token, or --cluster");
    return fill_change(ctl, request, is_cluster ? CAIRN_KEY_ROTATE_CLUSTER : CAIRN_KEY_ROTATE);
}

static int fill_revoke(struct ctl *ctl, void *request)
{
    return fill_change(ctl, request, CAIRN_KEY_REVOKE);
}

/* ==== the answer ==== */

/* Writes the word into the file of --to. -1: continue; else the exit status. */
static int write_word(const struct ctl *ctl, const char *word)
{
    struct token token;
    struct sentence why;
    if (ctl->to == NULL || word[0] == '\0') return -1;
    cairn_status status = token_parse(word, &token, &why);
    if (status == CAIRN_OK) status = token_write_file(ctl->to, &token, &why);
    explicit_bzero(&token, sizeof token);
    if (status == CAIRN_OK) return -1;
    return ctl_fail(status,
                    "%s; the token was made, and `cairn key rotate --grace 0` makes another in its "
                    "place",
                    why.text);
}

/* Prints the word alone, unless it is in a file. */
static int show_change(struct ctl *ctl, const void *reply)
{
    const Cairn__KeyChanged *changed = reply;
    const int done = write_word(ctl, changed->word);
    if (done >= 0) return done;
    if (ctl->json) {
        json_t *object = changed->token != NULL ? ctl_json(changed->token) : json_object();
        if (ctl->to != NULL) json_object_set_new(object, "file", json_string(ctl->to));
        if (ctl->to == NULL && changed->word[0] != '\0')
            json_object_set_new(object, "token", json_string(changed->word));
        json_object_set_new(object, "closed", json_integer(changed->closed));
        if (changed->text[0] != '\0')
            json_object_set_new(object, "note", json_string(changed->text));
        return ctl_print_json(object);
    }
    if (ctl->to == NULL && changed->word[0] != '\0') {
        printf("%s\n", changed->word);
        return 0;
    }
    return -1;
}

#define ROW_LINES                      \
    "token|{token.name}\n"             \
    "roles|{token.roles}\n"            \
    "owner|{token.owner}\n"            \
    "jobs|{?token.jobs}{token.jobs}\n" \
    "until|{?token.not_after_unix_ms}{token.not_after_unix_ms/time}"

const struct ctl_question ctl_key_add = { CTL_ASKS(KEY_CHANGE, key_change, KEY_CHANGED), .fill = "",
                                          .fill_by = fill_add, .show = show_change,
                                          .page = ROW_LINES };
const struct ctl_question ctl_key_rotate = { CTL_ASKS(KEY_CHANGE, key_change, KEY_CHANGED),
                                             .fill = "", .fill_by = fill_rotate,
                                             .show = show_change,
                                             .page = "rotated|{?token}{token.name}\n"
                                                     "rotated|{!token}the coordinator's key\n"
                                                     "note|{text?}" };
const struct ctl_question ctl_key_revoke = { CTL_ASKS(KEY_CHANGE, key_change, KEY_CHANGED),
                                             .fill = "", .fill_by = fill_revoke,
                                             .show = show_change,
                                             .page = "revoked|{@0}\n"
                                                     "put out|{?token}{closed} connections\n"
                                                     "note|{text?}" };

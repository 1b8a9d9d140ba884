/* The requests of admins about the roster: who may connect, as they say it. */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "server/coordinator/cluster.h"
#include "server/coordinator/roster.h"

#define NODES_SHOWN   2048 /* so many fit a frame, with all tokens */
#define GRACE_MS_MAX  (UINT64_C(30) * 86400 * 1000)
#define JOIN_NODES    "nodes"
#define JOIN_TRAINERS "trainers"

/* ==== lists ==== */

/* Returns the valid token of that name for which no newer one was made; NULL: there is none. */
static struct roster_token *find_current(const struct coord_roster *roster, const char *name)
{
    for (size_t i = 0; i < roster->token_count; i++) {
        struct roster_token *token = &roster->tokens[i];
        if (strcmp(token->name, name) == 0 &&
            roster_state(token, wall_unix_s()) == CAIRN_TOKEN_VALID)
            return token;
    }
    return NULL;
}

static struct roster_curve *newest_curve(struct coord_roster *roster)
{
    return &roster->curves[roster->curve_count - 1];
}

static void drop_node(struct coord_roster *roster, struct roster_node *node)
{
    *node = roster->nodes[--roster->node_count];
}

/* A token as the store has it; the row borrows from the rest. */
struct token_row {
    struct stored_token row;
    char secret[2 * CAIRN_PSK_BYTES + 1], pin[2 * CAIRN_PIN_BYTES + 1];
};

static void print_token(const struct roster_token *token, struct token_row *out)
{
    sodium_bin2hex(out->secret, sizeof out->secret, token->secret, sizeof token->secret);
    sodium_bin2hex(out->pin, sizeof out->pin, token->pin, sizeof token->pin);
    out->row = (struct stored_token) { .id = roster_number(token->id),
                                       .name = token->name,
                                       .owner = token->owner,
                                       .jobs = token->jobs,
                                       .secret = out->secret,
                                       .pin = out->pin,
                                       .roles = token->roles,
                                       .created_unix_s = token->created_s,
                                       .not_after_unix_s = token->not_after_s,
                                       .grace_until_unix_s = token->grace_until_s,
                                       .revoked_unix_s = token->revoked_s,
                                       .seen_unix_s = token->seen_s };
}

/* ==== changes ==== */

/* An operator's change is made in two steps: the rows are made as they will be, and put into the lists when
 * the store has them. Nobody hears of a new token before that. */

static const char *state_name(enum roster_state state)
{
    static const char *const names[] = {
        [CAIRN_TOKEN_VALID] = "valid",       [CAIRN_TOKEN_ROTATED] = "rotated",
        [CAIRN_TOKEN_REPLACED] = "replaced", [CAIRN_TOKEN_EXPIRED] = "expired",
        [CAIRN_TOKEN_REVOKED] = "revoked",
    };
    return names[state];
}

static void fill_token(const struct coord *cluster, struct coord_answer *answer,
                       const struct roster_token *token, Cairn__TokenRow *out)
{
    const struct coord_roster *roster = cluster->roster;
    const struct roster_curve *newest = &roster->curves[roster->curve_count - 1];
    char roles[64];
    roles_print(token->roles, roles);
    out->id = coord_answer_text(answer, "%016" PRIx64, roster_number(token->id));
    out->name = coord_answer_text(answer, "%s", token->name);
    out->owner = coord_answer_text(answer, "%s", token->owner);
    out->roles = coord_answer_text(answer, "%s", roles);
    out->jobs = coord_answer_text(answer, "%s", token->jobs);
    out->state = wire_text(state_name(roster_state(token, wall_unix_s())));
    out->created_unix_ms = token->created_s * 1000;
    out->not_after_unix_ms = token->not_after_s * 1000;
    out->grace_until_unix_ms = token->grace_until_s * 1000;
    out->seen_unix_ms = token->seen_s * 1000;
    out->connected = coord_roster_connected(cluster, token);
    out->former = roster_is_valid(token) && memcmp(token->pin, newest->pin, sizeof token->pin) != 0;
}

static int compare_names(const void *a, const void *b)
{
    const struct roster_token *const *left = a, *const *right = b;
    const int order = strcmp((*left)->name, (*right)->name);
    if (order != 0) return order;
    if ((*left)->created_s != (*right)->created_s)
        return (*left)->created_s < (*right)->created_s ? -1 : 1;
    if (((*left)->grace_until_s != 0) != ((*right)->grace_until_s != 0)) // of the same second
        return (*left)->grace_until_s != 0 ? -1 : 1;
    return memcmp((*left)->id, (*right)->id, CAIRN_PSK_ID_BYTES);
}

/* Lists the tokens by name, and those of a name by age. */
static void list_tokens(const struct coord_roster *roster,
                        const struct roster_token *list_out[CAIRN_ROSTER_TOKENS_MAX])
{
    for (size_t i = 0; i < roster->token_count; i++) list_out[i] = &roster->tokens[i];
    qsort(list_out, roster->token_count, sizeof(struct roster_token *), compare_names);
}

void coord_roster_fill(const struct coord *cluster, struct coord_answer *answer, Cairn__Keys *keys)
{
    const struct coord_roster *roster = cluster->roster;
    const struct roster_token *list[CAIRN_ROSTER_TOKENS_MAX];
    list_tokens(roster, list);
    for (size_t i = 0; i < roster->token_count; i++) {
        Cairn__TokenRow *out = coord_answer_add(answer, &keys->base, "tokens");
        if (out != NULL) fill_token(cluster, answer, list[i], out);
    }
    for (size_t i = 0; i < roster->node_count && i < NODES_SHOWN; i++) {
        const struct roster_node *node = &roster->nodes[i];
        const struct roster_token *token = roster_token_find(roster, node->token);
        char key[2 * CAIRN_CURVE_BYTES + 1];
        Cairn__NodeRow *out = coord_answer_add(answer, &keys->base, "nodes");
        if (out == NULL) return;
        sodium_bin2hex(key, sizeof key, node->key, sizeof node->key);
        out->shard = coord_answer_text(answer, "%s", node->shard);
        out->key = coord_answer_text(answer, "%s", key);
        out->token = coord_answer_text(answer, "%s", token != NULL ? token->name : "");
        out->since_unix_ms = node->since_s * 1000;
    }
}

static void print_word(const struct roster_token *row, char word[CAIRN_TOKEN_TEXT_BYTES])
{
    struct token token;
    memcpy(token.id, row->id, sizeof token.id);
    memcpy(token.pin, row->pin, sizeof token.pin);
    memcpy(token.secret, row->secret, sizeof token.secret);
    token_print(&token, word);
    sodium_memzero(&token, sizeof token);
}

/* Adds a row to the change under way, which has room for it. */
static struct roster_token *add_row(struct roster_change *change, const struct roster_token *token)
{
    return memcpy(&change->tokens[change->token_count++], token, sizeof *token);
}

/* Adds a new token to the change. It pins the coordinator's newest key. */
static void add_new(struct coord_roster *roster, const struct roster_token *like)
{
    struct roster_token *token = add_row(&roster->change, like);
    do {
        randombytes_buf(token->id, sizeof token->id);
    } while (roster_token_find(roster, token->id) != NULL ||
             sodium_is_zero(token->id, sizeof token->id));
    randombytes_buf(token->secret, sizeof token->secret);
    memcpy(token->pin, newest_curve(roster)->pin, sizeof token->pin);
    token->created_s = wall_unix_s();
    token->grace_until_s = token->revoked_s = token->seen_s = 0;
    token->seen_changed = false;
    roster->change.has_new = true;
}

static bool is_dropped(const struct roster_change *change, const struct roster_token *token)
{
    for (size_t i = 0; i < change->dropped_count; i++)
        if (memcmp(change->dropped[i], token->id, sizeof token->id) == 0) return true;
    return false;
}

/* Makes room for `count` more tokens: the change takes off the oldest of those that are not valid any
 * more. */
static cairn_status make_room(struct coord *cluster, size_t count, struct sentence *why)
{
    struct coord_roster *roster = cluster->roster;
    struct roster_change *change = &roster->change;
    while (roster->token_count - change->dropped_count + count > CAIRN_ROSTER_TOKENS_MAX) {
        const struct roster_token *oldest = NULL;
        for (size_t i = 0; i < roster->token_count; i++) {
            const struct roster_token *token = &roster->tokens[i];
            if (!roster_is_valid(token) && !is_dropped(change, token) &&
                coord_roster_connected(cluster, token) == 0 &&
                (oldest == NULL || token->created_s < oldest->created_s))
                oldest = token;
        }
        if (oldest == NULL)
            return fail_with(why, CAIRN_ERR_REFUSED,
                             "there are %d valid tokens, and that is the most: `cairn key revoke` "
                             "takes one back",
                             CAIRN_ROSTER_TOKENS_MAX);
        memcpy(change->dropped[change->dropped_count++], oldest->id, sizeof oldest->id);
    }
    return CAIRN_OK;
}

/* ---- the change is stored ---- */

static void answer_init(struct coord *cluster);
static void answer_change(struct coord *cluster);

/* Puts the stored change into the lists. */
static void apply_change(struct coord_roster *roster)
{
    const struct roster_change *change = &roster->change;
    for (size_t i = 0; i < change->dropped_count; i++)
        roster_token_drop(roster, roster_token_find(roster, change->dropped[i]));
    for (size_t i = 0; i < change->token_count; i++) roster_token_put(roster, &change->tokens[i]);
    if (change->op == CAIRN_KEY_ROTATE_CLUSTER) {
        if (roster->curve_count == CAIRN_ROSTER_CURVES_MAX)
            roster->curves[0] = roster->curves[--roster->curve_count];
        roster->curves[roster->curve_count++] = change->curve;
    }
    struct roster_node *node = roster_node_find(roster, change->node);
    if (node != NULL) drop_node(roster, node);
}

/* Puts out those whose tokens were revoked. */
static void put_out_revoked(struct coord *cluster)
{
    const struct roster_change *change = &cluster->roster->change;
    for (size_t i = 0; i < change->token_count && change->op == CAIRN_KEY_REVOKE; i++) {
        struct sentence why;
        if (roster_judge(&change->tokens[i], wall_unix_s(), &why) != CAIRN_OK)
            coord_roster_put_out(cluster, &change->tokens[i], why.text);
    }
}

/* Whoever asked is answered first, because its own token may be the one that was revoked. */
static void on_change_saved(const struct coord_saved *saved)
{
    struct coord *cluster = saved->cluster;
    struct roster_change *change = &cluster->roster->change;
    if (saved->status != CAIRN_OK) {
        coord_waiters_fail(&change->waiter, saved->status, saved->why);
    } else {
        apply_change(cluster->roster);
        if (change->is_init)
            answer_init(cluster);
        else
            answer_change(cluster);
        put_out_revoked(cluster);
    }
    roster_change_release(change);
}

/* Stores the tokens of the change, and with them takes off those that make room. */
static cairn_status save_tokens(struct coord *cluster, struct sentence *why)
{
    const struct roster_change *change = &cluster->roster->change;
    const size_t count = change->token_count + change->dropped_count;
    struct token_row *printed = calloc(change->token_count, sizeof *printed);
    struct stored_token *rows = calloc(count, sizeof *rows);
    cairn_status status = CAIRN_OK;
    if (printed == NULL || rows == NULL)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    for (size_t i = 0; i < change->token_count && status == CAIRN_OK; i++) {
        print_token(&change->tokens[i], &printed[i]);
        rows[i] = printed[i].row;
    }
    for (size_t i = 0; i < change->dropped_count && status == CAIRN_OK; i++)
        rows[change->token_count + i] = roster_token_bare(
            roster_token_find(cluster->roster, change->dropped[i]));
    if (status == CAIRN_OK)
        status = coord_save(cluster, CAIRN_STORE_TOKEN, rows, count, 0, on_change_saved, why);
    if (printed != NULL) sodium_memzero(printed, change->token_count * sizeof *printed);
    free(printed);
    free(rows);
    return status;
}

/* The store takes off the former key in the same transaction. */
static cairn_status save_curve(struct coord *cluster, struct sentence *why)
{
    const struct coord_roster *roster = cluster->roster;
    char secret[2 * CAIRN_CURVE_BYTES + 1];
    const struct stored_curve row = roster_curve_row(&roster->change.curve, secret);
    const cairn_status status = coord_save(cluster, CAIRN_STORE_CURVE, &row, 1, 0, on_change_saved,
                                           why);
    sodium_memzero(secret, sizeof secret);
    return status;
}

static cairn_status save_change(struct coord *cluster, struct sentence *why)
{
    const struct roster_change *change = &cluster->roster->change;
    if (change->op == CAIRN_KEY_ROTATE_CLUSTER) return save_curve(cluster, why);
    if (change->node[0] == '\0') return save_tokens(cluster, why);
    const struct stored_node row = { change->node, "", 0, 0 };
    return coord_save(cluster, CAIRN_STORE_NODE_DROP, &row, 1, 0, on_change_saved, why);
}

/* Begins a change, with room for all tokens that it may touch. */
static cairn_status begin_change(struct coord *cluster, enum key_change op, struct sentence *why)
{
    struct coord_roster *roster = cluster->roster;
    struct roster_change *change = &roster->change;
    if (change->is_under_way)
        return fail_with(why, CAIRN_ERR_BUSY, "the roster is being changed: ask again");
    change->dropped_count = 0;
    if (op == CAIRN_KEY_ADD || op == CAIRN_KEY_ROTATE) CAIRN_TRY(make_room(cluster, 2, why));
    change->tokens = calloc(roster->token_count + 2, sizeof *change->tokens);
    if (change->tokens == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    change->is_under_way = true;
    change->op = op;
    return CAIRN_OK;
}

/* Stores the change, if there is something to store; the session is answered then. */
static cairn_status carry_out(struct coord_session *session, uint32_t request, struct sentence *why)
{
    struct coord *cluster = session->cluster;
    struct roster_change *change = &cluster->roster->change;
    const bool is_done = change->is_init && change->token_count == 0;
    cairn_status status = coord_waiters_add(&change->waiter, session, request, why);
    if (status == CAIRN_OK && is_done) answer_init(cluster);
    if (status == CAIRN_OK && !is_done) {
        const cairn_status saved = save_change(cluster, why);
        if (saved == CAIRN_OK) return CAIRN_OK;
        coord_waiters_fail(&change->waiter, saved, why->text);
    }
    roster_change_release(change);
    return status;
}

/* ---- init ---- */

/* Finds an address by which other hosts reach the coordinator; "": there is none. */
static void find_address(const char *addresses, char out[CAIRN_ADDRESS_TEXT_BYTES])
{
    struct utsname host;
    out[0] = '\0';
    for (const char *at = addresses; *at != '\0' && out[0] == '\0'; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        const char *colon = at + length;
        while (colon > at && *colon != ':') colon--;
        const size_t host_length = (size_t)(colon - at);
        const bool is_any = (host_length == 7 && strncmp(at, "0.0.0.0", 7) == 0) ||
                            (host_length == 4 && strncmp(at, "[::]", 4) == 0) ||
                            (host_length == 1 && *at == '*');
        const bool is_near = *at == '/' || strncmp(at, "127.", 4) == 0 ||
                             strncmp(at, "[::1]", 5) == 0 || strncmp(at, "localhost:", 10) == 0;
        if (is_any && uname(&host) == 0)
            snprintf(out, CAIRN_ADDRESS_TEXT_BYTES, "%.200s%.*s", host.nodename,
                     (int)(at + length - colon), colon);
        else if (!is_near)
            snprintf(out, CAIRN_ADDRESS_TEXT_BYTES, "%.*s", (int)length, at);
        at += length;
    }
}

static void answer_init(struct coord *cluster)
{
    struct coord_roster *roster = cluster->roster;
    const struct roster_token *nodes = find_current(roster, JOIN_NODES),
                              *trainers = find_current(roster, JOIN_TRAINERS);
    char words[2][CAIRN_TOKEN_TEXT_BYTES] = { "", "" }, address[CAIRN_ADDRESS_TEXT_BYTES];
    Cairn__ClusterInited message = CAIRN__CLUSTER_INITED__INIT;
    if (nodes != NULL) print_word(nodes, words[0]);
    if (trainers != NULL) print_word(trainers, words[1]);
    find_address(listener_address(cluster->listener), address);
    message.cluster = cluster->options->name;
    message.nodes = words[0];
    message.trainers = words[1];
    message.address = address;
    message.listens = wire_text(listener_address(cluster->listener));
    message.made = roster->change.has_new;
    coord_waiters_answer(&roster->change.waiter, CAIRN_MSG_CLUSTER_INITED, &message.base);
    sodium_memzero(words, sizeof words);
}

static cairn_status on_cluster_init(struct coord_session *session, uint32_t request,
                                    const void *any, struct sentence *why)
{
    static const struct roster_token joiners[] = {
        { .name = JOIN_NODES, .owner = JOIN_NODES, .roles = CAIRN_MAY_SHARD },
        { .name = JOIN_TRAINERS, .owner = JOIN_TRAINERS, .roles = CAIRN_MAY_WORK | CAIRN_MAY_READ },
    };
    struct coord *cluster = session->cluster;
    struct roster_change *change = &cluster->roster->change;
    (void)any;
    CAIRN_TRY(begin_change(cluster, CAIRN_KEY_ADD, why));
    change->is_init = true;
    for (size_t i = 0; i < sizeof joiners / sizeof *joiners; i++)
        if (find_current(cluster->roster, joiners[i].name) == NULL)
            add_new(cluster->roster, &joiners[i]);
    return carry_out(session, request, why);
}

/* ---- add, revoke, rotate ---- */

static void answer_change(struct coord *cluster)
{
    struct coord_roster *roster = cluster->roster;
    struct roster_change *change = &roster->change;
    struct coord_answer answer = { 0 };
    char word[CAIRN_TOKEN_TEXT_BYTES] = "";
    Cairn__KeyChanged message = CAIRN__KEY_CHANGED__INIT;
    Cairn__TokenRow row = CAIRN__TOKEN_ROW__INIT;
    const struct roster_token *last = change->token_count > 0
                                          ? &change->tokens[change->token_count - 1]
                                          : NULL;
    if (last != NULL) {
        fill_token(cluster, &answer, last, &row);
        message.token = &row;
    }
    if (change->has_new) print_word(last, word);
    message.word = word;
    for (size_t i = 0; i < change->token_count && change->op == CAIRN_KEY_REVOKE; i++)
        message.closed += coord_roster_connected(cluster, &change->tokens[i]);
    if (change->op == CAIRN_KEY_ROTATE_CLUSTER)
        message.text = wire_text(
            "tokens that are made from now on name the new key; rotate the others "
            "(`cairn key list` shows which): then the former key can go");
    else if (change->node[0] != '\0')
        message.text = wire_text(
            "the next node that says this name with a token for shards has it");
    coord_waiters_answer(&change->waiter, CAIRN_MSG_KEY_CHANGED, &message.base);
    coord_answer_release(&answer);
    sodium_memzero(word, sizeof word);
}

/* True if the text has 1 to bytes - 1 letters, digits and characters of `others`. */
static bool is_word(const char *text, size_t bytes, const char *others)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t length = 0;
    while (text[length] != '\0' &&
           (strchr(letters, text[length]) != NULL || strchr(others, text[length]) != NULL))
        length++;
    return length > 0 && length < bytes && text[length] == '\0';
}

/* Reads what the new token may do. Fields that the request leaves out stay. */
static cairn_status read_terms(const Cairn__KeyChange *message, struct roster_token *token,
                               struct sentence *why)
{
    if (message->roles[0] != '\0' &&
        (!roles_parse(message->roles, &token->roles) || token->roles == 0))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "\"%.60s\" are no roles: give some of worker, reader, shard, admin, "
                         "monitor, separated by ','",
                         message->roles);
    if (message->owner[0] != '\0' &&
        !access_owner_ok(message->owner, strlen(message->owner), false))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "an owner has 1 to %d letters, digits, '.', '_', '-', ':', '@' and '+'",
                         CAIRN_OWNER_BYTES - 1);
    if (message->jobs[0] != '\0' && !is_word(message->jobs, sizeof token->jobs, "._-*,"))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "--jobs takes names of jobs, with '*' for any text, separated by ','; at "
                         "most %d characters",
                         CAIRN_JOBS_TEXT_BYTES - 1);
    if (message->not_after_unix_ms != 0 && message->not_after_unix_ms / 1000 <= wall_unix_s()) {
        char now[CAIRN_ROSTER_TIME_BYTES];
        roster_time_text(wall_unix_s(), now);
        return fail_with(why, CAIRN_ERR_INVALID,
                         "the token would have expired already: the coordinator's clock says %s",
                         now);
    }
    if (message->owner[0] != '\0')
        snprintf(token->owner, sizeof token->owner, "%s", message->owner);
    if (message->jobs[0] != '\0') snprintf(token->jobs, sizeof token->jobs, "%s", message->jobs);
    if (message->not_after_unix_ms != 0) token->not_after_s = message->not_after_unix_ms / 1000;
    const bool is_admin = (token->roles & CAIRN_MAY_ADMIN) != 0;
    if (is_admin && message->jobs[0] == '\0') token->jobs[0] = '\0'; // of a former version
    if (is_admin && token->jobs[0] != '\0')
        return fail_with(why, CAIRN_ERR_INVALID,
                         "an admin may do everything to all jobs, so --jobs would not limit it: "
                         "leave out --jobs, or give the token other roles");
    return CAIRN_OK;
}

static cairn_status judge_add(struct coord_roster *roster, const Cairn__KeyChange *message,
                              struct sentence *why)
{
    struct roster_token token = { .roles = 0 };
    if (!is_word(message->name, sizeof token.name, "._-"))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "a token's name has 1 to %d letters, digits, '.', '_' and '-'",
                         CAIRN_OWNER_BYTES - 1);
    if (find_current(roster, message->name) != NULL)
        return fail_with(why, CAIRN_ERR_EXISTS,
                         "there is a token %s: `cairn key rotate %s` makes a new one in its place",
                         message->name, message->name);
    if (message->roles[0] == '\0')
        return fail_with(why, CAIRN_ERR_INVALID,
                         "say what the token is for: --role worker,reader (or shard, admin, "
                         "monitor)");
    snprintf(token.name, sizeof token.name, "%s", message->name);
    snprintf(token.owner, sizeof token.owner, "%s", message->name);
    CAIRN_TRY(read_terms(message, &token, why));
    add_new(roster, &token);
    return CAIRN_OK;
}

static cairn_status fail_unknown(const char *name, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_NOT_FOUND,
                     "there is no valid token \"%.64s\"; `cairn key list` shows those there are",
                     name);
}

/* The tokens of the name, or the one with that id, that are not revoked yet. */
static cairn_status judge_revoke(struct coord_roster *roster, const Cairn__KeyChange *message,
                                 struct sentence *why)
{
    struct roster_change *change = &roster->change;
    char id[2 * CAIRN_PSK_ID_BYTES + 1];
    if (strncmp(message->name, "shard:", 6) == 0) {
        const struct roster_node *node = roster_node_find(roster, message->name + 6);
        if (node == NULL)
            return fail_with(why, CAIRN_ERR_NOT_FOUND,
                             "the name \"%.64s\" is bound to no node; `cairn key list` shows those "
                             "that are",
                             message->name + 6);
        memcpy(change->node, node->shard, sizeof change->node);
        return CAIRN_OK;
    }
    for (size_t i = 0; i < roster->token_count; i++) {
        const struct roster_token *token = &roster->tokens[i];
        snprintf(id, sizeof id, "%016" PRIx64, roster_number(token->id));
        if (token->revoked_s != 0 ||
            (strcmp(token->name, message->name) != 0 && strcmp(id, message->name) != 0))
            continue;
        add_row(change, token)->revoked_s = wall_unix_s();
    }
    return change->token_count > 0 ? CAIRN_OK : fail_unknown(message->name, why);
}

static cairn_status judge_rotate(struct coord_roster *roster, const Cairn__KeyChange *message,
                                 struct sentence *why)
{
    const struct roster_token *token = find_current(roster, message->name);
    if (token == NULL) return fail_unknown(message->name, why);
    if (message->grace_ms > GRACE_MS_MAX)
        return fail_with(why, CAIRN_ERR_INVALID, "the grace of an old token is at most 30 days");
    struct roster_token like = *token;
    cairn_status status = read_terms(message, &like, why);
    if (status == CAIRN_OK) {
        add_row(&roster->change, token)->grace_until_s = wall_unix_s() +
                                                         (message->grace_ms + 999) / 1000;
        add_new(roster, &like);
    }
    sodium_memzero(&like, sizeof like);
    return status;
}

/* A new key of the coordinator takes the place of the former one, so no valid token may name that. */
static cairn_status judge_rotate_cluster(struct coord_roster *roster, struct sentence *why)
{
    const struct roster_token *list[CAIRN_ROSTER_TOKENS_MAX];
    struct sentence names = { "" };
    list_tokens(roster, list);
    for (size_t i = 0; i < roster->token_count && roster->curve_count == 2; i++) {
        const struct roster_token *token = list[i];
        if (!roster_is_valid(token) ||
            memcmp(token->pin, roster->curves[0].pin, sizeof token->pin) != 0)
            continue;
        sentence_add(&names, "%s%s", names.text[0] != '\0' ? ", " : "", token->name);
    }
    if (names.text[0] != '\0')
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "these tokens still name the key before the present one, which would go: "
                         "%s; rotate or revoke them first",
                         names.text);
    roster->change.curve = roster_curve_make(newest_curve(roster)->number + 1);
    return CAIRN_OK;
}

static cairn_status judge_change(struct coord_roster *roster, const Cairn__KeyChange *message,
                                 struct sentence *why)
{
    switch (message->op) {
    case CAIRN_KEY_ADD: return judge_add(roster, message, why);
    case CAIRN_KEY_REVOKE: return judge_revoke(roster, message, why);
    case CAIRN_KEY_ROTATE: return judge_rotate(roster, message, why);
    case CAIRN_KEY_ROTATE_CLUSTER: return judge_rotate_cluster(roster, why);
    default:
        return fail_with(why, CAIRN_ERR_UNSUPPORTED, "there is no change %" PRIu32 " of keys",
                         message->op);
    }
}

static cairn_status on_key_change(struct coord_session *session, uint32_t request, const void *any,
                                  struct sentence *why)
{
    const Cairn__KeyChange *message = any;
    struct coord *cluster = session->cluster;
    CAIRN_TRY(begin_change(cluster, (enum key_change)message->op, why));
    const cairn_status status = judge_change(cluster->roster, message, why);
    if (status == CAIRN_OK) return carry_out(session, request, why);
    roster_change_release(&cluster->roster->change);
    return status;
}

/* ==== messages ==== */

const struct coord_row coord_roster_rows[] = {
    { CAIRN_MSG_CLUSTER_INIT, CAIRN_FROM_ADMIN, .asks = on_cluster_init, .verb = "cluster init" },
    { CAIRN_MSG_KEY_CHANGE, CAIRN_FROM_ADMIN, .asks = on_key_change, .verb = "key change" },
    { 0 },
};

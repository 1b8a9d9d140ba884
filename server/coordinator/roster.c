#include "server/coordinator/roster.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/coordinator/cluster.h"

#define LOOK_MS 60000 /* how often it is judged whether those that are connected have expired */

/* ==== judgement ==== */

void roster_time_text(uint64_t unix_s, char out[CAIRN_ROSTER_TIME_BYTES])
{
    const time_t at = (time_t)unix_s;
    struct tm utc;
    if (gmtime_r(&at, &utc) == NULL ||
        strftime(out, CAIRN_ROSTER_TIME_BYTES, "%Y-%m-%d %H:%M UTC", &utc) == 0)
        snprintf(out, CAIRN_ROSTER_TIME_BYTES, "%" PRIu64 " s", unix_s);
}

enum roster_state roster_state(const struct roster_token *token, uint64_t now_unix_s)
{
    if (token->revoked_s != 0) return CAIRN_TOKEN_REVOKED;
    if (token->not_after_s != 0 && now_unix_s >= token->not_after_s) return CAIRN_TOKEN_EXPIRED;
    if (token->grace_until_s == 0) return CAIRN_TOKEN_VALID;
    return now_unix_s < token->grace_until_s ? CAIRN_TOKEN_ROTATED : CAIRN_TOKEN_REPLACED;
}

cairn_status roster_judge(const struct roster_token *token, uint64_t now_unix_s,
                          struct sentence *why)
{
    char now[CAIRN_ROSTER_TIME_BYTES], then[CAIRN_ROSTER_TIME_BYTES];
    roster_time_text(now_unix_s, now);
    switch (roster_state(token, now_unix_s)) {
    case CAIRN_TOKEN_VALID:
    case CAIRN_TOKEN_ROTATED: return CAIRN_OK;
    case CAIRN_TOKEN_REVOKED:
        roster_time_text(token->revoked_s, then);
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "the token of %s was revoked at %s: an admin gives out another one with "
                         "`cairn key add`",
                         token->name, then);
    case CAIRN_TOKEN_EXPIRED:
        roster_time_text(token->not_after_s, then);
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "the token of %s was valid until %s, and the coordinator's clock says %s: "
                         "an admin gives out another one with `cairn key add`, or sets the clock",
                         token->name, then, now);
    case CAIRN_TOKEN_REPLACED: break;
    }
    roster_time_text(token->grace_until_s, then);
    return fail_with(why, CAIRN_ERR_REFUSED,
                     "the token of %s was rotated, and the old one was valid until %s, while the "
                     "coordinator's clock says %s: take the new one, or have an admin make another "
                     "with `cairn key rotate %s`",
                     token->name, then, now, token->name);
}

bool roster_is_valid(const struct roster_token *token)
{
    return roster_judge(token, wall_unix_s(), NULL) == CAIRN_OK;
}

/* ==== lists ==== */

static int compare_ids(const void *a, const void *b)
{
    return memcmp(a, b, CAIRN_PSK_ID_BYTES);
}

struct roster_token *roster_token_find(const struct coord_roster *roster,
                                       const uint8_t id[CAIRN_PSK_ID_BYTES])
{
    return bsearch(id, roster->tokens, roster->token_count, sizeof *roster->tokens, compare_ids);
}

void roster_token_put(struct coord_roster *roster, const struct roster_token *token)
{
    struct roster_token *at = roster_token_find(roster, token->id);
    if (at == NULL) {
        at = roster->tokens;
        while (at < roster->tokens + roster->token_count && compare_ids(at, token) < 0) at++;
        memmove(at + 1, at, (size_t)(roster->tokens + roster->token_count++ - at) * sizeof *at);
    }
    *at = *token;
}

void roster_token_drop(struct coord_roster *roster, struct roster_token *token)
{
    struct roster_token *end = roster->tokens + --roster->token_count;
    memmove(token, token + 1, (size_t)(end - token) * sizeof *token);
    sodium_memzero(end, sizeof *end);
}

static struct roster_curve *find_curve(struct coord_roster *roster,
                                       const uint8_t pin[CAIRN_PIN_BYTES])
{
    for (size_t i = 0; i < roster->curve_count; i++)
        if (memcmp(roster->curves[i].pin, pin, CAIRN_PIN_BYTES) == 0) return &roster->curves[i];
    return NULL;
}

struct roster_node *roster_node_find(const struct coord_roster *roster, const char *shard)
{
    for (size_t i = 0; i < roster->node_count; i++)
        if (strcmp(roster->nodes[i].shard, shard) == 0) return &roster->nodes[i];
    return NULL;
}

/* ==== rows of the store ==== */

uint64_t roster_number(const uint8_t id[CAIRN_PSK_ID_BYTES])
{
    uint64_t number = 0;
    for (int i = 0; i < CAIRN_PSK_ID_BYTES; i++) number = number << 8 | id[i];
    return number;
}

static void id_of(uint64_t number, uint8_t id[CAIRN_PSK_ID_BYTES])
{
    for (int i = CAIRN_PSK_ID_BYTES; i-- > 0; number >>= 8) id[i] = (uint8_t)number;
}

struct stored_token roster_token_bare(const struct roster_token *token)
{
    return (struct stored_token) { .id = roster_number(token->id),
                                   .name = "",
                                   .owner = "",
                                   .jobs = "",
                                   .secret = "",
                                   .pin = "",
                                   .seen_unix_s = token->seen_s };
}

static bool read_hex(const char *text, uint8_t *bytes, size_t count)
{
    size_t got;
    return sodium_hex2bin(bytes, count, text, strlen(text), NULL, &got, NULL) == 0 && got == count;
}

static cairn_status fail_row(const char *what, const char *name, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_CORRUPT, "the store has a %s, %.100s, that cannot be read",
                     what, name);
}

/* Takes a token off the list that is not valid any more. False: all are valid. */
static bool forget_dead(struct coord_roster *roster)
{
    struct roster_token *at = roster->tokens, *end = at + roster->token_count;
    while (at < end && roster_is_valid(at)) at++;
    if (at == end) return false;
    roster_token_drop(roster, at);
    return true;
}

/* The store may have too many tokens, or keys of the coordinator, because those that were to go could not be
 * deleted. Then the dead ones, and the oldest, are left out. */
static cairn_status load_token(void *context, const void *any, struct sentence *why)
{
    struct coord_roster *roster = context;
    const struct stored_token *row = any;
    struct roster_token token = { .roles = (uint32_t)row->roles & CAIRN_MAY_ALL,
                                  .created_s = row->created_unix_s,
                                  .not_after_s = row->not_after_unix_s,
                                  .grace_until_s = row->grace_until_unix_s,
                                  .revoked_s = row->revoked_unix_s,
                                  .seen_s = row->seen_unix_s };
    if (strlen(row->name) >= sizeof token.name || strlen(row->owner) >= sizeof token.owner ||
        strlen(row->jobs) >= sizeof token.jobs ||
        !read_hex(row->secret, token.secret, sizeof token.secret) ||
        !read_hex(row->pin, token.pin, sizeof token.pin))
        return fail_row("token", row->name, why);
    id_of(row->id, token.id);
    snprintf(token.name, sizeof token.name, "%s", row->name);
    snprintf(token.owner, sizeof token.owner, "%s", row->owner);
    snprintf(token.jobs, sizeof token.jobs, "%s", row->jobs);
    cairn_status status = CAIRN_OK;
    const bool is_full = roster->token_count == CAIRN_ROSTER_TOKENS_MAX;
    if (!is_full || (roster_is_valid(&token) && forget_dead(roster)))
        roster_token_put(roster, &token);
    else if (roster_is_valid(&token))
        status = fail_with(why, CAIRN_ERR_CORRUPT, "the store has more than %d valid tokens",
                           CAIRN_ROSTER_TOKENS_MAX);
    sodium_memzero(&token, sizeof token);
    return status;
}

static void complete_curve(struct roster_curve *curve)
{
    crypto_scalarmult_base(curve->key.open, curve->key.secret);
    curve_pin(curve->key.open, curve->pin);
}

static cairn_status load_curve(void *context, const void *any, struct sentence *why)
{
    struct coord_roster *roster = context;
    const struct stored_curve *row = any;
    struct roster_curve curve = { .number = row->number, .since_s = row->since_unix_s };
    if (!read_hex(row->secret, curve.key.secret, sizeof curve.key.secret))
        return fail_row("key of the coordinator", "a broken one", why);
    complete_curve(&curve);
    if (roster->curve_count == CAIRN_ROSTER_CURVES_MAX) {
        log_warn("the store has a key of the coordinator that was to go, and that is not used");
        roster->curves[0] = roster->curves[--roster->curve_count];
    }
    roster->curves[roster->curve_count++] = curve;
    sodium_memzero(&curve, sizeof curve);
    return CAIRN_OK;
}

static cairn_status load_node(void *context, const void *any, struct sentence *why)
{
    struct coord_roster *roster = context;
    const struct stored_node *row = any;
    struct roster_node node = { .since_s = row->since_unix_s };
    if (strlen(row->shard) >= sizeof node.shard || !read_hex(row->key, node.key, sizeof node.key) ||
        roster->node_count == CAIRN_ROSTER_NODES_MAX)
        return fail_row("node", row->shard, why);
    snprintf(node.shard, sizeof node.shard, "%s", row->shard);
    id_of(row->token, node.token);
    roster->nodes[roster->node_count++] = node;
    return CAIRN_OK;
}

struct stored_curve roster_curve_row(const struct roster_curve *curve,
                                     char secret[2 * CAIRN_CURVE_BYTES + 1])
{
    sodium_bin2hex(secret, 2 * CAIRN_CURVE_BYTES + 1, curve->key.secret, CAIRN_CURVE_BYTES);
    return (struct stored_curve) { curve->number, secret, curve->since_s };
}

struct roster_curve roster_curve_make(uint64_t number)
{
    struct roster_curve curve = { .number = number, .since_s = wall_unix_s() };
    curve_key_make(&curve.key);
    curve_pin(curve.key.open, curve.pin);
    return curve;
}

/* ==== opening ==== */

static cairn_status make_first_curve(struct coord *cluster, struct sentence *why)
{
    struct coord_roster *roster = cluster->roster;
    char secret[2 * CAIRN_CURVE_BYTES + 1];
    roster->curves[roster->curve_count++] = roster_curve_make(1);
    const struct stored_curve row = roster_curve_row(&roster->curves[0], secret);
    const cairn_status status = store_write(cluster->store, CAIRN_STORE_CURVE, &row, 1, why);
    sodium_memzero(secret, sizeof secret);
    if (status == CAIRN_OK)
        log_info("made the key by which nodes and trainers know this coordinator; `cairn cluster "
                 "init` prints what they need");
    return status;
}

cairn_status coord_roster_open(struct coord *cluster, struct sentence *why)
{
    struct coord_roster *roster = cluster->roster = calloc(1, sizeof *roster);
    if (roster != NULL) {
        roster->tokens = calloc(CAIRN_ROSTER_TOKENS_MAX, sizeof *roster->tokens);
        roster->nodes = calloc(CAIRN_ROSTER_NODES_MAX, sizeof *roster->nodes);
    }
    if (roster == NULL || roster->tokens == NULL || roster->nodes == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the roster");
    CAIRN_TRY(store_each(cluster->store, CAIRN_STORED_TOKENS, load_token, roster, why));
    CAIRN_TRY(store_each(cluster->store, CAIRN_STORED_CURVES, load_curve, roster, why));
    CAIRN_TRY(store_each(cluster->store, CAIRN_STORED_NODES, load_node, roster, why));
    return roster->curve_count > 0 ? CAIRN_OK : make_first_curve(cluster, why);
}

void roster_change_release(struct roster_change *change)
{
    if (change->tokens != NULL)
        sodium_memzero(change->tokens, change->token_count * sizeof *change->tokens);
    free(change->tokens);
    curve_key_wipe(&change->curve.key);
    *change = (struct roster_change) { .is_under_way = false };
}

void coord_roster_close(struct coord *cluster)
{
    struct coord_roster *roster = cluster->roster;
    if (roster == NULL) return;
    coord_waiters_release(&roster->change.waiter);
    roster_change_release(&roster->change);
    if (roster->tokens != NULL)
        sodium_memzero(roster->tokens, CAIRN_ROSTER_TOKENS_MAX * sizeof *roster->tokens);
    free(roster->tokens);
    free(roster->nodes);
    sodium_memzero(roster, sizeof *roster);
    free(roster);
    cluster->roster = NULL;
}

/* ==== connections ==== */

/* Only an owner of the secret comes into the audit log: a stranger can name any id. */
static void audit_refused(void *cluster, const uint8_t key_id[CAIRN_PSK_ID_BYTES],
                          const struct sentence *why)
{
    const struct roster_token *token = roster_token_find(((struct coord *)cluster)->roster, key_id);
    coord_audit_refused(cluster, token->name, "connect", why->text);
}

bool coord_roster_find(const uint8_t key_id[CAIRN_PSK_ID_BYTES], struct handshake_row *row_out,
                       void *cluster)
{
    struct coord_roster *roster = ((struct coord *)cluster)->roster;
    const struct roster_token *token = roster_token_find(roster, key_id);
    const struct roster_curve *curve = token != NULL ? find_curve(roster, token->pin) : NULL;
    if (curve == NULL) {
        coord_audit_refused(cluster, "a stranger", "connect", "the token is not known here");
        return false;
    }
    *row_out = (struct handshake_row) { .own = &curve->key,
                                        .on_refused = audit_refused,
                                        .refused_arg = cluster };
    memcpy(row_out->secret, token->secret, sizeof row_out->secret);
    row_out->refused = roster_judge(token, wall_unix_s(), &row_out->why);
    return true;
}

static cairn_status fail_gone(struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_REFUSED,
                     "the token was taken off the roster: ask an admin for another one");
}

cairn_status coord_roster_judge(const struct coord *cluster, const struct identity *who,
                                struct sentence *why)
{
    if (who->is_local || sodium_is_zero(who->key_id, sizeof who->key_id)) return CAIRN_OK;
    const struct roster_token *token = roster_token_find(cluster->roster, who->key_id);
    return token == NULL ? fail_gone(why) : roster_judge(token, wall_unix_s(), why);
}

cairn_status coord_roster_identify(const struct handshake_result *result,
                                   struct identity *identity_out, struct sentence *why,
                                   void *cluster)
{
    struct coord_roster *roster = ((struct coord *)cluster)->roster;
    struct roster_token *token = roster_token_find(roster, result->key_id);
    if (token == NULL) return fail_gone(why);
    CAIRN_TRY(roster_judge(token, wall_unix_s(), why));
    struct identity identity = { .roles = token->roles };
    memcpy(identity.name, token->name, sizeof identity.name);
    memcpy(identity.owner, token->owner, sizeof identity.owner);
    memcpy(identity.jobs, token->jobs, sizeof identity.jobs);
    memcpy(identity.key_id, token->id, sizeof identity.key_id);
    memcpy(identity.key, result->peer_key, sizeof identity.key);
    token->seen_s = wall_unix_s();
    token->seen_changed = true;
    *identity_out = identity;
    return CAIRN_OK;
}

/* ---- those who are connected ---- */

static bool is_by_token(const struct coord_session *session, const uint8_t id[CAIRN_PSK_ID_BYTES])
{
    const struct identity *who = peer_identity(session->peer);
    return !who->is_local && memcmp(who->key_id, id, CAIRN_PSK_ID_BYTES) == 0;
}

/* Sees that nothing reaches those of the token that have left; once. */
static void withdraw(struct coord *cluster, const struct roster_token *token)
{
    struct roster_token *own = roster_token_find(cluster->roster, token->id);
    if (own == NULL || own->is_withdrawn) return;
    own->is_withdrawn = true;
    for (struct coord_job *job = cluster->jobs; job != NULL; job = job->next)
        coord_members_withdraw(job);
}

void coord_roster_put_out(struct coord *cluster, const struct roster_token *token, const char *why)
{
    for (struct coord_session *s = cluster->sessions; s != NULL; s = s->next)
        if (!s->closing && is_by_token(s, token->id)) cluster->put_out(s, CAIRN_ERR_REFUSED, why);
    withdraw(cluster, token);
}

uint32_t coord_roster_connected(const struct coord *cluster, const struct roster_token *token)
{
    uint32_t count = 0;
    for (const struct coord_session *s = cluster->sessions; s != NULL; s = s->next)
        count += !s->closing && is_by_token(s, token->id);
    return count;
}

/* ---- nodes ---- */

static void on_node_saved(const struct coord_saved *saved)
{
    if (saved->status != CAIRN_OK)
        log_warn("the key of a node is not stored, and is bound again when its shard connects "
                 "next: %s",
                 saved->why);
}

static cairn_status save_node(struct coord *cluster, const struct roster_node *node,
                              struct sentence *why)
{
    char key[2 * CAIRN_CURVE_BYTES + 1];
    sodium_bin2hex(key, sizeof key, node->key, sizeof node->key);
    const struct stored_node row = { node->shard, key, roster_number(node->token), node->since_s };
    return coord_save(cluster, CAIRN_STORE_NODE, &row, 1, 0, on_node_saved, why);
}

cairn_status coord_roster_bind(struct coord *cluster, const struct identity *who, const char *shard,
                               struct sentence *why)
{
    struct coord_roster *roster = cluster->roster;
    const struct roster_node *there = roster_node_find(roster, shard);
    char since[CAIRN_ROSTER_TIME_BYTES];
    if (who->is_local || sodium_is_zero(who->key, sizeof who->key)) return CAIRN_OK;
    if (there != NULL && memcmp(there->key, who->key, sizeof who->key) == 0) return CAIRN_OK;
    if (there != NULL) {
        roster_time_text(there->since_s, since);
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "the name %s has belonged to the key of another node since %s: give this "
                         "shard another name (shard.name), or, if the node was installed anew, "
                         "have an admin let go of the old key: cairn key revoke shard:%s",
                         shard, since, shard);
    }
    if (roster->node_count == CAIRN_ROSTER_NODES_MAX)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%d names of shards are bound to nodes already: `cairn key revoke "
                         "shard:NAME` lets go of one",
                         CAIRN_ROSTER_NODES_MAX);
    struct roster_node *node = &roster->nodes[roster->node_count];
    *node = (struct roster_node) { .since_s = wall_unix_s() };
    snprintf(node->shard, sizeof node->shard, "%s", shard);
    memcpy(node->key, who->key, sizeof node->key);
    memcpy(node->token, who->key_id, sizeof node->token);
    CAIRN_TRY(save_node(cluster, node, why));
    roster->node_count++;
    log_info("the name %s belongs to the node of token %s from now on", shard, who->name);
    return CAIRN_OK;
}

/* ---- time ---- */

static void on_seen_saved(const struct coord_saved *saved)
{
    if (saved->status != CAIRN_OK)
        log_warn("when tokens were last seen is not stored for now: %s", saved->why);
}

static void save_seen(struct coord *cluster)
{
    struct coord_roster *roster = cluster->roster;
    struct stored_token *rows = calloc(roster->token_count + 1, sizeof *rows);
    struct sentence why;
    size_t count = 0;
    if (rows == NULL) return; // the next look tries again
    for (size_t i = 0; i < roster->token_count; i++) {
        struct roster_token *token = &roster->tokens[i];
        if (!token->seen_changed) continue;
        token->seen_changed = false;
        rows[count++] = roster_token_bare(token);
    }
    if (count > 0 &&
        coord_save(cluster, CAIRN_STORE_SEEN, rows, count, 0, on_seen_saved, &why) != CAIRN_OK)
        log_warn("when tokens were last seen is not stored for now: %s", why.text);
    free(rows);
}

/* Closes the connections of the token, and returns how many there were, so whose members have yet to leave.
 * Whoever has another one by now comes again with that, and its jobs go on; whoever has not is refused then,
 * and hears why. Shards stay connected: a shard that a supervisor
 * gave its token has the word of its start, and would lose its state when it were refused. */
static size_t cut_off(struct coord *cluster, const struct roster_token *token, const char *why)
{
    size_t count = 0;
    for (struct coord_session *s = cluster->sessions; s != NULL; s = s->next) {
        if (s->closing || !is_by_token(s, token->id)) continue;
        if (s->role == CAIRN_ROLE_WIRE_SHARD) {
            if (!s->has_old_token)
                log_warn("shard %s is connected with a token that is replaced, and is refused when "
                         "its connection is lost: give its host the new one, and restart it after "
                         "`cairn member drain %s` if its unit holds a copy",
                         s->name, s->name);
            s->has_old_token = true;
            continue;
        }
        log_info("%s %s has to come again: %s", role_name(s->role), s->name, why);
        s->closing = true;
        peer_close(s->peer, CAIRN_ERR_REFUSED, "%s", why);
        count++;
    }
    return count;
}

void coord_roster_look(struct coord *cluster, uint64_t now_unix_s)
{
    const struct coord_roster *roster = cluster->roster;
    for (size_t i = 0; i < roster->token_count; i++) {
        const struct roster_token *token = &roster->tokens[i];
        struct sentence why;
        if (roster_judge(token, now_unix_s, &why) == CAIRN_OK) continue;
        if (roster_state(token, now_unix_s) != CAIRN_TOKEN_REPLACED)
            coord_roster_put_out(cluster, token, why.text);
        else if (cut_off(cluster, token, why.text) == 0) // else by the next look
            withdraw(cluster, token);
    }
    save_seen(cluster);
}

void coord_roster_tick(struct coord *cluster)
{
    const uint64_t now_ms = uv_now(cluster->loop);
    if (now_ms - cluster->roster->look_ms < LOOK_MS) return;
    cluster->roster->look_ms = now_ms;
    coord_roster_look(cluster, wall_unix_s());
}

/* Who may connect: tokens that are added, rotated, revoked and expire, through restarts; the coordinator's
 * keys; the names of shards. The handshakes are real ones, without a connection. */
#include <check.h>
#include <signal.h>
#include <sodium.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/coordinator/roster.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static struct curve_key node;

static void set_up(void)
{
    open_fake();
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "admin");
    curve_key_make(&node);
}

static struct token token_of(const char *word)
{
    struct token token;
    struct sentence why;
    ck_assert_int_eq(token_parse(word, &token, &why), CAIRN_OK);
    return token;
}

#define change(...)     fake_call(&admin, KeyChanged, KeyChange, __VA_ARGS__)
#define ask_change(...) fake_ask(&admin, KeyChange, __VA_ARGS__)
#define add(name_, role_) \
    change(.op = CAIRN_KEY_ADD, .name = wire_text(name_), .roles = wire_text(role_))

static struct token added(const char *name, const char *roles)
{
    return token_of(add(name, roles)->word);
}

static struct token rotated(const char *name, uint64_t grace_ms)
{
    return token_of(
        change(.op = CAIRN_KEY_ROTATE, .name = wire_text(name), .grace_ms = grace_ms)->word);
}

static void refused(uint32_t request, cairn_status status, const char *word)
{
    fake_expect_error(&admin, request, status, word);
}

static bool find_row(void *cluster, const uint8_t key_id[CAIRN_PSK_ID_BYTES],
                     struct handshake_row *row_out)
{
    return coord_roster_find(key_id, row_out, cluster);
}

/* Both ends of a handshake, until neither has anything to say. */
static cairn_status shake(struct handshake *first, struct handshake *second, struct sentence *why)
{
    struct handshake *from = first, *to = second;
    enum handshake_state ends[2] = { CAIRN_HANDSHAKE_GOES_ON, CAIRN_HANDSHAKE_GOES_ON };
    for (size_t count, used; true;) {
        cairn_status status = CAIRN_OK;
        const uint8_t *bytes = handshake_to_send(from, &count);
        if (count == 0) break;
        const enum handshake_state state = handshake_take(to, bytes, count, &used, &status, why);
        if (state == CAIRN_HANDSHAKE_FAILED && to == first) return status;
        ends[to == second] = state;
        struct handshake *next = to;
        to = from;
        from = next;
    }
    // nothing was said to a stranger
    return ends[1] == CAIRN_HANDSHAKE_DONE ? CAIRN_OK : CAIRN_ERR_UNREACHABLE;
}

/* The node connects with that token. CAIRN_ERR_UNREACHABLE: the coordinator said nothing. */
static cairn_status greet(struct token token, struct identity *who, struct sentence *why)
{
    struct handshake *first, *second;
    const struct handshake_options options = handshake_by_token(&token, &node);
    const struct handshake_options answers = { .purpose = CAIRN_PURPOSE_CONTROL,
                                               .find = find_row,
                                               .arg = fake.cluster };
    ck_assert_int_eq(handshake_open(&options, &first), CAIRN_OK);
    ck_assert_int_eq(handshake_open(&answers, &second), CAIRN_OK);
    cairn_status status = shake(first, second, why);
    if (status == CAIRN_OK) {
        struct handshake_result result;
        handshake_result(second, &result);
        status = coord_roster_identify(&result, who, why, fake.cluster);
    }
    handshake_close(first);
    handshake_close(second);
    return status;
}

static void is_in(struct token token)
{
    struct identity who;
    struct sentence why = { "" };
    const cairn_status status = greet(token, &who, &why);
    ck_assert_msg(status == CAIRN_OK, "%d: %s", (int)status, why.text);
}

static void is_out(struct token token, cairn_status expected, const char *word)
{
    struct identity who;
    struct sentence why = { "" };
    ck_assert_int_eq(greet(token, &who, &why), expected);
    ck_assert_msg(strstr(why.text, word) != NULL, "%s", why.text);
}

static const Cairn__TokenRow *row_named(const char *name, const char *state)
{
    const Cairn__Keys *keys = fake_call(&admin, Keys, KeysGet);
    for (size_t i = 0; i < keys->n_tokens; i++)
        if (strcmp(keys->tokens[i]->name, name) == 0 && strcmp(keys->tokens[i]->state, state) == 0)
            return keys->tokens[i];
    ck_abort_msg("no %s token %s", state, name);
}

/* ==== tokens ==== */

TEST(a_token_is_what_it_was_made_for_also_after_a_restart)
{
    struct identity who;
    struct sentence why;
    const struct token token = token_of(
        change(.op = CAIRN_KEY_ADD, .name = wire_text("alice"), .roles = wire_text("worker,reader"),
               .owner = wire_text("red"), .jobs = wire_text("exp-*"))
            ->word);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(greet(token, &who, &why), CAIRN_OK);
        ck_assert_str_eq(who.name, "alice");
        ck_assert_str_eq(who.owner, "red");
        ck_assert_str_eq(who.jobs, "exp-*");
        ck_assert_uint_eq(who.roles, CAIRN_MAY_WORK | CAIRN_MAY_READ);
        ck_assert(!who.is_local);
        ck_assert_mem_eq(who.key, node.open, sizeof who.key);
        ck_assert_mem_eq(who.key_id, token.id, sizeof who.key_id);
        restart_coordinator();
    }
    ck_assert_uint_gt(row_named("alice", "valid")->created_unix_ms, 0);
}

TEST(a_stranger_hears_nothing)
{
    struct token token = added("alice", "worker");
    struct token other = token, forged = token;
    other.id[0] ^= 1;
    forged.secret[0] ^= 1;
    is_out(other, CAIRN_ERR_UNREACHABLE, "");
    is_out(forged, CAIRN_ERR_UNREACHABLE, "");
    is_in(token);
    const Cairn__Events *page = fake_call(&admin, Events, AuditGet);
    ck_assert_str_eq(page->events[page->n_events - 1]->who, "a stranger");
}

static const struct {
    const char *claim;
    Cairn__KeyChange change;
    cairn_status status;
    const char *word;
} bad[] = {
#define BAD(...)                                                                     \
    {                                                                                \
        .base = PROTOBUF_C_MESSAGE_INIT(&cairn__key_change__descriptor), __VA_ARGS__ \
    }
#define TEXTS(name_, roles_, owner_, jobs_) \
    .name = (char *)name_, .roles = (char *)roles_, .owner = (char *)owner_, .jobs = (char *)jobs_
    { "no name", BAD(.op = CAIRN_KEY_ADD, TEXTS("", "worker", "", "")), CAIRN_ERR_INVALID, "name" },
    { "a name with a colon", BAD(.op = CAIRN_KEY_ADD, TEXTS("shard:a", "worker", "", "")),
      CAIRN_ERR_INVALID, "letters" },
    { "no role", BAD(.op = CAIRN_KEY_ADD, TEXTS("a", "", "", "")), CAIRN_ERR_INVALID, "--role" },
    { "another role", BAD(.op = CAIRN_KEY_ADD, TEXTS("a", "king", "", "")), CAIRN_ERR_INVALID,
      "monitor" },
    { "an owner with a blank", BAD(.op = CAIRN_KEY_ADD, TEXTS("a", "worker", "b c", "")),
      CAIRN_ERR_INVALID, "owner" },
    { "jobs with a quote", BAD(.op = CAIRN_KEY_ADD, TEXTS("a", "worker", "", "x'")),
      CAIRN_ERR_INVALID, "--jobs" },
    { "jobs that do not limit an admin", BAD(.op = CAIRN_KEY_ADD, TEXTS("a", "admin", "", "x")),
      CAIRN_ERR_INVALID, "would not limit it" },
    { "over at once",
      BAD(.op = CAIRN_KEY_ADD, TEXTS("a", "worker", "", ""), .not_after_unix_ms = 1000),
      CAIRN_ERR_INVALID, "clock says" },
    { "there already", BAD(.op = CAIRN_KEY_ADD, TEXTS("there", "worker", "", "")), CAIRN_ERR_EXISTS,
      "cairn key rotate there" },
    { "rotating nobody", BAD(.op = CAIRN_KEY_ROTATE, TEXTS("a", "", "", "")), CAIRN_ERR_NOT_FOUND,
      "cairn key list" },
    { "revoking nobody", BAD(.op = CAIRN_KEY_REVOKE, TEXTS("a", "", "", "")), CAIRN_ERR_NOT_FOUND,
      "cairn key list" },
    { "letting go of no node", BAD(.op = CAIRN_KEY_REVOKE, TEXTS("shard:a", "", "", "")),
      CAIRN_ERR_NOT_FOUND, "bound to no node" },
    { "a grace of a year",
      BAD(.op = CAIRN_KEY_ROTATE, TEXTS("there", "", "", ""), .grace_ms = UINT64_C(31536000000)),
      CAIRN_ERR_INVALID, "30 days" },
    { "another change", BAD(.op = 9, TEXTS("a", "", "", "")), CAIRN_ERR_UNSUPPORTED, "9" },
};

TEST_EACH(a_bad_change_is_refused_and_changes_nothing, 0, sizeof bad / sizeof *bad)
{
    const struct token there = added("there", "worker");
    refused(fake_request(&admin, CAIRN_MSG_KEY_CHANGE, &bad[_i].change.base), bad[_i].status,
            bad[_i].word);
    is_in(there);
    ck_assert_uint_eq(fake_call(&admin, Keys, KeysGet)->n_tokens, 1);
}

/* Whoever can be given a job can have a token. */
TEST(an_owner_is_the_same_text_for_tokens_and_jobs)
{
    change(.op = CAIRN_KEY_ADD, .name = wire_text("alice"), .roles = wire_text("worker"),
           .owner = wire_text("alice+red@site"));
    ck_assert_str_eq(row_named("alice", "valid")->owner, "alice+red@site");
    refused(ask_change(.op = CAIRN_KEY_ADD, .name = wire_text("bob"), .roles = wire_text("worker"),
                       .owner = wire_text("a*")),
            CAIRN_ERR_INVALID, "an owner has");
}

TEST(a_revoked_token_hears_why_also_after_a_restart)
{
    const struct token token = added("alice", "worker");
    change(.op = CAIRN_KEY_REVOKE, .name = wire_text("alice"));
    is_out(token, CAIRN_ERR_REFUSED, "was revoked");
    restart_coordinator();
    is_out(token, CAIRN_ERR_REFUSED, "was revoked");
    is_in(added("alice", "worker")); // the name is free again
}

TEST(one_token_of_a_name_is_revoked_by_its_id)
{
    char id[17];
    const struct token first = added("alice", "worker"), second = rotated("alice", 3600000);
    snprintf(id, sizeof id, "%s", row_named("alice", "rotated")->id);
    change(.op = CAIRN_KEY_REVOKE, .name = id);
    is_out(first, CAIRN_ERR_REFUSED, "was revoked");
    is_in(second);
}

TEST(both_tokens_are_valid_until_the_grace_is_over)
{
    const struct token first = added("alice", "worker"), second = rotated("alice", 3600000);
    is_in(first);
    is_in(second);
    restart_coordinator();
    is_in(first);
    const struct token third = rotated("alice", 0);
    is_in(first);
    is_out(second, CAIRN_ERR_REFUSED, "was rotated");
    is_in(third);
}

static const struct {
    const char *claim;
    struct roster_token token;
    enum roster_state state;
    const char *word;
} times[] = {
    { "no limit", { .name = "a" }, CAIRN_TOKEN_VALID, "" },
    { "a second before the end", { .name = "a", .not_after_s = 1001 }, CAIRN_TOKEN_VALID, "" },
    { "at the end",
      { .name = "a", .not_after_s = 1000 },
      CAIRN_TOKEN_EXPIRED,
      "the coordinator's clock says 1970-01-01 00:16 UTC" },
    { "in its grace", { .name = "a", .grace_until_s = 1001 }, CAIRN_TOKEN_ROTATED, "" },
    { "after its grace",
      { .name = "a", .grace_until_s = 1000 },
      CAIRN_TOKEN_REPLACED,
      "cairn key rotate a" },
    { "expired in its grace",
      { .name = "a", .not_after_s = 999, .grace_until_s = 1001 },
      CAIRN_TOKEN_EXPIRED,
      "valid until" },
    { "revoked before all",
      { .name = "a", .not_after_s = 999, .revoked_s = 5 },
      CAIRN_TOKEN_REVOKED,
      "revoked at 1970-01-01 00:00 UTC" },
};

TEST_EACH(a_token_is_judged_by_the_clock, 0, sizeof times / sizeof *times)
{
    struct sentence why = { "" };
    const cairn_status status = roster_judge(&times[_i].token, 1000, &why);
    ck_assert_int_eq(roster_state(&times[_i].token, 1000), times[_i].state);
    ck_assert_int_eq(status, times[_i].word[0] == '\0' ? CAIRN_OK : CAIRN_ERR_REFUSED);
    ck_assert_msg(strstr(why.text, times[_i].word) != NULL, "%s: %s", times[_i].claim, why.text);
}

/* The oldest that are not valid any more make room. */
TEST(a_full_roster_lets_go_of_the_dead)
{
    char name[16];
    for (int i = 0; i < CAIRN_ROSTER_TOKENS_MAX - 1; i++) {
        snprintf(name, sizeof name, "t%d", i);
        added(name, "reader");
        if (i == 7) change(.op = CAIRN_KEY_REVOKE, .name = name);
    }
    is_in(added("one-more", "reader"));
    refused(ask_change(.op = CAIRN_KEY_ADD, .name = wire_text("too-many"),
                       .roles = wire_text("reader")),
            CAIRN_ERR_REFUSED, "cairn key revoke");
    change(.op = CAIRN_KEY_REVOKE, .name = wire_text("t8"));
    is_in(added("after-all", "reader"));
    restart_coordinator();
    ck_assert_uint_lt(fake_call(&admin, Keys, KeysGet)->n_tokens, CAIRN_ROSTER_TOKENS_MAX);
}

/* ==== those who are connected ==== */

/* The connection `w`, which is one of this host, counts as one that came with the token of alice. */
static void make_alice(uint64_t not_after_unix_ms)
{
    struct sentence why;
    struct identity who;
    start_trained();
    const struct token token = token_of(change(.op = CAIRN_KEY_ADD, .name = wire_text("alice"),
                                               .roles = wire_text("worker"),
                                               .not_after_unix_ms = not_after_unix_ms)
                                            ->word);
    ck_assert_int_eq(greet(token, &who, &why), CAIRN_OK);
    for (struct coord_session *s = fake.cluster->sessions; s != NULL; s = s->next)
        if (s->role == CAIRN_ROLE_WIRE_WORKER)
            *(struct identity *)(uintptr_t)peer_identity(s->peer) = who;
    ck_assert_uint_eq(row_named("alice", "valid")->connected, 1);
}

static void is_put_out(const char *word)
{
    ck_assert_uint_eq(fake_call(&admin, JobStatus, JobShow, .name = wire_text("toy"))->workers, 0);
    fake_expect_error(&w, 0, CAIRN_ERR_REFUSED, word);
    fake_expect_end(&w);
}

TEST(whoever_has_expired_is_put_out_by_the_look_of_a_minute)
{
    const uint64_t end_s = wall_unix_s() + 3600;
    make_alice(end_s * 1000);
    coord_roster_look(fake.cluster, end_s - 1);
    train();
    coord_roster_look(fake.cluster, end_s); // as if the clock had jumped
    is_put_out("the coordinator's clock says");
}

/* Also one that reads nothing, whose connection ends only later. */
TEST(whoever_is_revoked_has_left_its_job_when_the_command_returns)
{
    make_alice(0);
    ck_assert_uint_eq(change(.op = CAIRN_KEY_REVOKE, .name = wire_text("alice"))->closed, 1);
    is_put_out("was revoked");
    fake_until(&fake, fake.shards[0].withdrawn_count == 1); // after the MemberLeave, in order
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_MEMBER_LEAVE], 2);
}

/* What it has mapped on a shard's host outlives its connections. */
TEST(shards_are_told_once_when_a_right_ends_also_of_who_has_left_before)
{
    const uint64_t end_s = wall_unix_s() + 3600;
    start_trained();
    change(.op = CAIRN_KEY_ADD, .name = wire_text("alice"), .roles = wire_text("reader"));
    change(.op = CAIRN_KEY_ADD, .name = wire_text("bob"), .roles = wire_text("reader"),
           .not_after_unix_ms = end_s * 1000);
    coord_roster_look(fake.cluster, end_s - 1);
    train();
    ck_assert_uint_eq(fake.shards[0].withdrawn_count, 0);
    change(.op = CAIRN_KEY_REVOKE, .name = wire_text("alice"));
    coord_roster_look(fake.cluster, end_s - 1);
    train();
    ck_assert_uint_eq(fake.shards[0].withdrawn_count, 1);
    for (int i = 0; i < 3; i++) coord_roster_look(fake.cluster, end_s);
    train();
    ck_assert_uint_eq(fake.shards[0].withdrawn_count, 2);
}

/* Its members come again with the new token, and whoever has not got that keeps what it mapped. */
TEST(shards_are_told_too_when_the_grace_of_a_token_is_over_and_its_members_have_left)
{
    const uint64_t end_s = wall_unix_s() + 3600;
    make_alice(0);
    rotated("alice", 1800000);
    train();
    ck_assert_uint_eq(fake.shards[0].withdrawn_count, 0);
    coord_roster_look(fake.cluster, end_s);
    fake_expect_end(&w);
    fake_until(&fake, fake.shards[0].seen[CAIRN_MSG_MEMBER_LEAVE] == 1);
    ck_assert_uint_eq(fake.shards[0].withdrawn_count, 0);
    for (int i = 0; i < 3; i++) coord_roster_look(fake.cluster, end_s);
    fake_until(&fake, fake.shards[0].withdrawn_count == 1); // after the MemberLeave, in order
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_MEMBER_LEAVE], 2);
}

TEST(a_rotation_disturbs_nobody_before_its_grace_is_over)
{
    make_alice(0);
    rotated("alice", 3600000);
    coord_roster_look(fake.cluster, wall_unix_s() + 3000);
    train();
    coord_roster_look(fake.cluster, wall_unix_s() + 3700);
    fake_expect_end(&w); // it comes again, with what its file has
}

/* ==== the coordinator's key ==== */

static void rotate_cluster(void)
{
    change(.op = CAIRN_KEY_ROTATE_CLUSTER);
}

TEST(tokens_go_on_with_the_key_that_they_name)
{
    const struct token before = added("alice", "worker");
    rotate_cluster();
    const struct token after = added("bob", "worker");
    ck_assert_mem_ne(before.pin, after.pin, sizeof before.pin);
    is_in(before);
    is_in(after);
    restart_coordinator();
    is_in(before);
    is_in(after);
    ck_assert(row_named("alice", "valid")->former);
    ck_assert(!row_named("bob", "valid")->former);
}

TEST(a_key_goes_only_when_no_valid_token_names_it)
{
    const struct token first = added("alice", "worker");
    rotate_cluster();
    refused(ask_change(.op = CAIRN_KEY_ROTATE_CLUSTER), CAIRN_ERR_REFUSED, "alice");
    const struct token second = rotated("alice", 0);
    rotate_cluster();
    restart_coordinator();
    is_out(first, CAIRN_ERR_UNREACHABLE, ""); // its key is gone, and nothing can be proved to it
    is_in(second);
}

/* ==== joining ==== */

TEST(the_words_to_join_are_made_once)
{
    struct identity who;
    struct sentence why;
    const Cairn__ClusterInited *first = fake_call(&admin, ClusterInited, ClusterInit);
    const Cairn__ClusterInited *again = fake_call(&admin, ClusterInited, ClusterInit);
    ck_assert(first->made && !again->made);
    ck_assert_str_eq(first->nodes, again->nodes);
    ck_assert_str_eq(first->trainers, again->trainers);
    ck_assert_int_eq(greet(token_of(first->nodes), &who, &why), CAIRN_OK);
    ck_assert_uint_eq(who.roles, CAIRN_MAY_SHARD);
    ck_assert_int_eq(greet(token_of(first->trainers), &who, &why), CAIRN_OK);
    ck_assert_uint_eq(who.roles, CAIRN_MAY_WORK | CAIRN_MAY_READ);
    change(.op = CAIRN_KEY_REVOKE, .name = wire_text("nodes"));
    const Cairn__ClusterInited *anew = fake_call(&admin, ClusterInited, ClusterInit);
    ck_assert_str_ne(first->nodes, anew->nodes);
    ck_assert_str_eq(first->trainers, anew->trainers);
}

/* ==== nodes ==== */

static cairn_status bind_name(const struct identity *who, const char *shard, struct sentence *why)
{
    return coord_roster_bind(fake.cluster, who, shard, why);
}

TEST(the_name_of_a_shard_is_its_nodes_until_it_is_let_go_of)
{
    struct identity who, other;
    struct sentence why = { "" };
    const struct token token = added("nodes", "shard");
    ck_assert_int_eq(greet(token, &who, &why), CAIRN_OK);
    other = who;
    other.key[3] ^= 1;
    ck_assert_int_eq(bind_name(&who, "s0", &why), CAIRN_OK);
    ck_assert_int_eq(bind_name(&who, "s0", &why), CAIRN_OK);
    ck_assert_int_eq(bind_name(&other, "s1", &why), CAIRN_OK);
    ck_assert_int_eq(bind_name(&other, "s0", &why), CAIRN_ERR_REFUSED);
    ck_assert_msg(strstr(why.text, "cairn key revoke shard:s0") != NULL, "%s", why.text);
    (void)fake_call(&admin, Keys, KeysGet);
    fake_until(&fake, fake.cluster->saves.list == NULL);
    restart_coordinator();
    ck_assert_int_eq(bind_name(&other, "s0", &why), CAIRN_ERR_REFUSED);
    const Cairn__Keys *keys = fake_call(&admin, Keys, KeysGet);
    ck_assert_uint_eq(keys->n_nodes, 2);
    ck_assert_str_eq(keys->nodes[0]->token, "nodes");
    change(.op = CAIRN_KEY_REVOKE, .name = wire_text("shard:s0"));
    ck_assert_int_eq(bind_name(&other, "s0", &why), CAIRN_OK);
    ck_assert_int_eq(bind_name(&who, "s0", &why), CAIRN_ERR_REFUSED);
}

TEST(a_peer_of_this_host_may_have_any_name)
{
    struct identity who = { .is_local = true, .name = "root (uid 0)" };
    struct sentence why;
    ck_assert_int_eq(bind_name(&who, "s0", &why), CAIRN_OK);
    ck_assert_uint_eq(fake_call(&admin, Keys, KeysGet)->n_nodes, 0);
}

/* ==== the store ==== */

/* Runs SQL on the store of a coordinator that is not running. */
static void on_store(const char *sql)
{
    char path[sizeof fake.store + 32];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/coordinator.db", fake.store);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

TEST(a_store_of_an_older_program_gets_a_roster)
{
    fake_peer_close(&admin);
    fake_coordinator_stop(&fake);
    on_store("DROP TABLE tokens; DROP TABLE curves; DROP TABLE nodes; DROP TABLE audit");
    fake_coordinator_start(&fake);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "admin");
    const struct token token = added("alice", "worker");
    restart_coordinator();
    is_in(token);
}

/* As a disk leaves it that was full when the former key and the dead tokens were to go, and then was not. */
TEST(rows_that_could_not_be_deleted_are_no_hindrance)
{
    const struct token token = added("alice", "worker");
    fake_peer_close(&admin);
    fake_coordinator_stop(&fake);
    on_store("UPDATE curves SET number = 9; INSERT INTO curves VALUES (1, hex(randomblob(32)), 1), "
             "(2, hex(randomblob(32)), 2)");
    on_store("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1100) "
             "INSERT INTO tokens SELECT i, 'a' || i, 'o', '', hex(randomblob(32)), "
             "hex(randomblob(16)), 1, i, 0, 0, 5, 0 FROM n");
    fake_coordinator_start(&fake);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "admin");
    is_in(token);
    is_in(added("bob", "worker"));
    rotate_cluster();
    restart_coordinator();
    is_in(token);
}

static const char *const broken[] = { "UPDATE tokens SET secret = 'xyz'",
                                      "UPDATE tokens SET pin = ''",
                                      "UPDATE tokens SET name = hex(zeroblob(64))",
                                      "UPDATE curves SET secret = '00'" };

TEST_EACH(a_row_that_cannot_be_read_is_said_at_the_start, 0, sizeof broken / sizeof *broken)
{
    struct coord *cluster = NULL;
    struct sentence why = { "" };
    added("alice", "worker");
    fake_peer_close(&admin);
    fake_coordinator_stop(&fake);
    on_store(broken[_i]);
    ck_assert_int_eq(coord_open(&fake.options, &fake.loop, &cluster, &why), CAIRN_ERR_CORRUPT);
    ck_assert_msg(strstr(why.text, "cannot be read") != NULL, "%s", why.text);
    on_store("DELETE FROM tokens; DELETE FROM curves");
    fake_coordinator_start(&fake);
}

/* ==== the audit log ==== */

static const Cairn__Event *last_audit(void)
{
    const Cairn__Events *page = fake_call(&admin, Events, AuditGet);
    ck_assert_uint_gt(page->n_events, 0);
    return page->events[page->n_events - 1];
}

static void last_is(const char *kind, const char *what, const char *who)
{
    const Cairn__Event *entry = last_audit();
    ck_assert_str_eq(entry->kind, kind);
    ck_assert_msg(strstr(entry->text, what) != NULL, "%s", entry->text);
    ck_assert_msg(strstr(entry->who, who) != NULL, "%s", entry->who);
}

TEST(actions_are_noted_with_their_outcome_also_after_a_restart)
{
    added("alice", "worker");
    last_is("ended", "key add name=alice roles=worker (entry 1)", " at ");
    refused(ask_change(.op = CAIRN_KEY_REVOKE, .name = wire_text("bob")), CAIRN_ERR_NOT_FOUND, "");
    last_is("failed", "key revoke name=bob: CAIRN_ERR_NOT_FOUND", " at ");
    restart_coordinator();
    last_is("failed", "key revoke name=bob", " at ");
}

static void let_refusals_pass(uint64_t ms)
{
    for (size_t i = 0; i <= CAIRN_REFUSALS_MAX; i++)
        fake.cluster->audit.refusals.list[i].since_ms -= ms;
}

/* The count is noted when the next look is due, so it is made due. */
TEST(refusals_that_repeat_are_counted)
{
    const struct token token = added("alice", "worker");
    change(.op = CAIRN_KEY_REVOKE, .name = wire_text("alice"));
    for (int i = 0; i < 18; i++) is_out(token, CAIRN_ERR_REFUSED, "was revoked");
    last_is("refused", "connect: the token of alice was revoked", "alice");
    const size_t before = fake_call(&admin, Events, AuditGet)->n_events;
    let_refusals_pass(CAIRN_REFUSALS_MS);
    last_is("refused", "connect: 17 more", "alice");
    ck_assert_uint_eq(fake_call(&admin, Events, AuditGet)->n_events, before + 1);
    is_out(token, CAIRN_ERR_REFUSED, "was revoked");
    let_refusals_pass(CAIRN_REFUSALS_MS); // from now on twice as long
    ck_assert_uint_eq(fake_call(&admin, Events, AuditGet)->n_events, before + 1);
    restart_coordinator();
    last_is("refused", "connect: 1 more", "alice"); // what was counted is not lost
}

/* A name may have anything in it, and any length: an entry stays one line, and short. */
TEST(a_name_makes_no_entry_long_and_none_of_its_own)
{
    static char name[100000];
    memset(name, 'x', sizeof name - 1);
    memcpy(name, "a\nb", 3);
    fake_heard(&admin, CAIRN_MSG_ERROR, fake_ask(&admin, JobRemove, .name = name));
    const Cairn__Event *entry = last_audit();
    ck_assert_ptr_nonnull(strstr(entry->text, "job drop"));
    ck_assert_ptr_null(strchr(entry->text, '\n'));
    ck_assert_ptr_null(strchr(entry->who, '\n'));
    ck_assert_str_eq(entry->job, "");
    ck_assert_uint_lt(strlen(entry->text), CAIRN_SENTENCE_BYTES);
    const Cairn__Events *events = fake_call(&admin, Events, EventsGet);
    for (size_t i = 0; i < events->n_events; i++) {
        ck_assert_ptr_null(strchr(events->events[i]->text, '\n'));
        ck_assert_uint_lt(strlen(events->events[i]->job), CAIRN_NAME_MAX);
    }
}

/* A limit of files stands for a disk that is full. */
static void let_files_grow(bool may)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = may ? limit.rlim_max : 1;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST(a_full_disk_refuses_nothing_and_the_entry_comes_later)
{
    signal(SIGXFSZ, SIG_IGN);
    fake_until(&fake, fake.cluster->saves.list == NULL);
    let_files_grow(false);
    coord_audit_refused(fake.cluster, "mallory", "connect", "no");
    coord_events_tick(fake.cluster);
    fake_until(&fake, fake.cluster->audit.log.rings[CAIRN_EVENTS_OF_ALL].failed);
    last_is("refused", "connect: no", "mallory");
    let_files_grow(true);
    coord_events_tick(fake.cluster);
    fake_until(&fake, !fake.cluster->audit.log.rings[CAIRN_EVENTS_OF_ALL].failed);
    restart_coordinator();
    last_is("refused", "connect: no", "mallory");
}

/* A change that is not stored takes nothing off, neither here nor in the store. */
TEST(a_full_disk_changes_no_roster)
{
    const struct token dead = added("dead", "worker"), alice = added("alice", "worker");
    struct coord_roster *roster = fake.cluster->roster;
    change(.op = CAIRN_KEY_REVOKE, .name = wire_text("dead"));
    rotate_cluster();
    struct roster_token more = *roster_token_find(roster, alice.id);
    for (uint32_t i = 0; roster->token_count < CAIRN_ROSTER_TOKENS_MAX - 1; i++) {
        memcpy(more.id, &i, sizeof i);
        roster_token_put(roster, &more);
    }
    signal(SIGXFSZ, SIG_IGN);
    fake_until(&fake, fake.cluster->saves.list == NULL);
    let_files_grow(false);
    fake_heard(&admin, CAIRN_MSG_ERROR,
               fake_ask(&admin, KeyChange, .op = CAIRN_KEY_ADD, .name = wire_text("bob"),
                        .roles = wire_text("worker")));
    is_out(dead, CAIRN_ERR_REFUSED, "was revoked");
    let_files_grow(true);
    is_in(added("bob", "worker"));
    is_out(dead, CAIRN_ERR_UNREACHABLE, ""); // it made room
    restart_coordinator();
    is_out(dead, CAIRN_ERR_UNREACHABLE, "");
    is_in(alice);
}

TEST(refusals_of_too_many_are_counted_together)
{
    char who[32];
    for (int i = 0; i < CAIRN_REFUSALS_MAX + 5; i++) {
        snprintf(who, sizeof who, "user%d", i);
        coord_audit_refused(fake.cluster, who, "connect", "no");
    }
    let_refusals_pass(CAIRN_REFUSALS_MS);
    last_is("refused", "5 more", "others: user256, user257");
}

/* Whoever is refused in many ways takes nobody's place. */
TEST(an_identity_has_a_few_places_of_its_own)
{
    char what[32];
    for (int i = 0; i < CAIRN_REFUSALS_MAX + 5; i++) {
        snprintf(what, sizeof what, "request %d", i);
        coord_audit_refused(fake.cluster, "mallory", what, "no");
    }
    coord_audit_refused(fake.cluster, "alice", "connect", "no");
    last_is("refused", "connect: no", "alice");
    ck_assert_uint_le(fake_call(&admin, Events, AuditGet)->n_events, CAIRN_REFUSALS_EACH + 1);
    let_refusals_pass(CAIRN_REFUSALS_MS);
    last_is("refused", "requests: 257 more", "mallory");
}

/* A pause makes no new entry of what is counted. */
TEST(whoever_pauses_is_still_counted)
{
    coord_audit_refused(fake.cluster, "mallory", "connect", "no");
    const uint64_t before = fake_call(&admin, Events, AuditGet)->n_events;
    let_refusals_pass(CAIRN_REFUSALS_MS);
    ck_assert_uint_eq(fake_call(&admin, Events, AuditGet)->n_events, before);
    ck_assert(!coord_audit_refused(fake.cluster, "mallory", "connect", "no"));
}

/* The session of that name is another's from now on, who is no admin. */
static void be_nobody(const char *name)
{
    for (struct coord_session *s = fake.cluster->sessions; s != NULL; s = s->next) {
        if (strcmp(s->name, name) != 0) continue;
        struct identity *who = (struct identity *)(uintptr_t)coord_who(s);
        *who = (struct identity) { .roles = CAIRN_MAY_WORK, .name = "mallory", .owner = "mallory" };
    }
}

/* Asks for what is not there, again and again. */
TEST(requests_of_one_who_is_no_admin_push_no_entry_out)
{
    static char long_name[60000];
    added("alice", "worker");
    struct fake_peer other = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "other");
    be_nobody("other");
    memset(long_name, 'x', sizeof long_name - 1);
    for (int i = 0; i < 3 * CAIRN_ASKED_FIRST; i++)
        fake_heard(&other, CAIRN_MSG_ERROR, fake_ask(&other, JobRemove, .name = long_name));
    const Cairn__Events *page = fake_call(&admin, Events, AuditGet);
    ck_assert_uint_le(page->n_events, CAIRN_ASKED_FIRST + CAIRN_REFUSALS_EACH + 1);
    ck_assert_ptr_nonnull(strstr(page->events[0]->text, "key add name=alice"));
    ck_assert_uint_le(fake_call(&admin, Events, EventsGet)->n_events, CAIRN_ASKED_FIRST + 4);
    fake_peer_close(&other);
}

SUITE(60, set_up, close_fake);

/* Who may do what to whose job, as a table. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/coordinator/access.h"
#include "tests/support/suite.h"

#define WORK    CAIRN_MAY_WORK
#define READER  CAIRN_MAY_READ
#define MONITOR CAIRN_MAY_MONITOR
#define ADMIN   CAIRN_MAY_ADMIN
#define SHARD   CAIRN_MAY_SHARD

/* `most`: the letters of what is allowed, out of "lrwo": look, read, write, own. */
static const struct {
    const char *claim;
    uint32_t roles;
    const char *owner, *jobs; /* of the identity */
    const char *job, *belongs_to, *allowed, *most;
} cases[] = {
    { "a worker owns what it made", WORK, "red", "", "a", "red", "", "lrwo" },
    { "a worker has nothing of another's", WORK, "red", "", "a", "blue", "", "" },
    { "a reader reads", READER, "red", "", "a", "red", "", "lr" },
    { "a monitor looks at everybody's", MONITOR, "red", "", "a", "blue", "", "l" },
    { "an admin may do everything", ADMIN, "red", "", "a", "blue", "", "lrwo" },
    { "a shard asks for no job", SHARD, "red", "", "a", "red", "", "" },
    { "no role, no right", 0, "red", "", "a", "red", "", "" },
    { "an allowed owner may all but own", WORK, "red", "", "a", "blue", "green,red", "lrw" },
    { "an allowed owner, by a star", WORK, "red", "", "a", "blue", "r*", "lrw" },
    { "an allowed reader reads", READER, "red", "", "a", "blue", "*", "lr" },
    { "a job without an owner is an admin's", WORK, "red", "", "a", "", "", "l" },
    { "a job without an owner, and one who has none", WORK, "", "", "a", "", "", "l" },
    { "a job without an owner that is shared", WORK, "red", "", "a", "", "red", "lrw" },
    { "a job without an owner, for an admin", ADMIN, "red", "", "a", "", "", "lrwo" },
    { "a limited token, its own job", WORK, "red", "exp-*", "exp-1", "red", "", "lrwo" },
    { "a limited token, its owner's other job", WORK, "red", "exp-*", "a", "red", "", "" },
    { "a limited token, another's job that it names", WORK, "red", "exp-*,b", "b", "blue", "",
      "lrw" },
    { "a limited token, allowed but not named", WORK, "red", "exp-*", "a", "blue", "red", "" },
    { "an owner's name is no prefix", WORK, "re", "", "a", "red", "", "" },
    { "a list's name is whole", WORK, "red", "", "a", "blue", "redder,ed", "" },
};

static const char kinds[] = "lrwo";

TEST_EACH(each_kind_is_allowed_or_refused_with_names, 0, sizeof cases / sizeof *cases)
{
    struct identity who = { .name = "w1", .roles = cases[_i].roles };
    snprintf(who.owner, sizeof who.owner, "%s", cases[_i].owner);
    snprintf(who.jobs, sizeof who.jobs, "%s", cases[_i].jobs);
    for (int kind = CAIRN_ACCESS_LOOK; kind <= CAIRN_ACCESS_OWN; kind++) {
        struct sentence why = { "" };
        const cairn_status status = access_job(&who, cases[_i].job, cases[_i].belongs_to,
                                               cases[_i].allowed, (enum access_kind)kind, &why);
        const bool is_allowed = strchr(cases[_i].most, kinds[kind - CAIRN_ACCESS_LOOK]) != NULL;
        ck_assert_msg(status == (is_allowed ? CAIRN_OK : CAIRN_ERR_REFUSED), "%s: %c: %s",
                      cases[_i].claim, kinds[kind - CAIRN_ACCESS_LOOK], why.text);
        if (is_allowed) continue;
        ck_assert_ptr_nonnull(strstr(why.text, "w1"));
        ck_assert_ptr_nonnull(strstr(why.text, "admin"));
    }
}

/* A row that forgets to say what its request wants of a job gives nothing away. */
TEST(a_wish_of_no_kind_is_an_admins)
{
    struct identity who = { .name = "w1", .roles = WORK | READER | MONITOR, .owner = "red" };
    struct sentence why;
    ck_assert_int_eq(access_job(&who, "a", "red", "red", CAIRN_ACCESS_NONE, &why),
                     CAIRN_ERR_REFUSED);
    who.roles = ADMIN;
    ck_assert_int_eq(access_job(&who, "a", "blue", "", CAIRN_ACCESS_NONE, &why), CAIRN_OK);
}

static const struct {
    const char *list, *name;
    bool is_listed;
} lists[] = {
    { "a", "a", true },
    { "a", "b", false },
    { "", "a", false },
    { NULL, "a", false },
    { "*", "", true },
    { "*", "anything", true },
    { "a*c", "abbc", true },
    { "a*c", "abcb", false },
    { "a*b*c", "a-b-b-c", true },
    { "x,a*", "abc", true },
    { "x, a*", "abc", true },
    { "a**", "a", true },
    { "a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaa", false },
    { ",,", "", false },
    { "ab", "a", false },
    { "a", "ab", false },
    { "exp-*", "exp-", true },
};

TEST_EACH(a_list_names_with_stars, 0, sizeof lists / sizeof *lists)
{
    ck_assert_msg(access_listed(lists[_i].list, lists[_i].name) == lists[_i].is_listed, "%s in %s",
                  lists[_i].name, lists[_i].list != NULL ? lists[_i].list : "NULL");
}

/* ==== users of this host ==== */

#define OTHERS (CAIRN_MAY_WORK | CAIRN_MAY_READ | CAIRN_MAY_MONITOR)

static const struct {
    const char *claim;
    uid_t uid;
    gid_t groups[3];
    uint32_t roles;
} users[] = {
    { "root", 0, { 7, 8, 9 }, CAIRN_MAY_ALL },
    { "the daemon's user", 990, { 7, 8, 9 }, CAIRN_MAY_ALL },
    { "by the group that it runs as", 1000, { 50, 8, 9 }, CAIRN_MAY_ALL },
    { "by its last group", 1000, { 7, 8, 50 }, CAIRN_MAY_ALL },
    { "anybody else", 1000, { 7, 8, 9 }, OTHERS },
    { "a user with the group's number", 50, { 7, 8, 9 }, OTHERS },
};

TEST_EACH(a_user_is_judged_by_its_groups, 0, sizeof users / sizeof *users)
{
    const struct access_rules rules = { .own = 990, .admin_gid = 50, .socket_roles = OTHERS };
    ck_assert_msg(access_local(&rules, users[_i].uid, users[_i].groups, 3) == users[_i].roles, "%s",
                  users[_i].claim);
}

TEST(without_a_word_the_admins_are_the_daemons_own)
{
    struct access_rules rules;
    struct sentence why;
    ck_assert_int_eq(access_rules_read("", NULL, &rules, &why), CAIRN_OK);
    ck_assert_uint_eq(rules.own, geteuid());
    ck_assert_uint_eq(rules.admin_gid, getegid());
    ck_assert_uint_eq(rules.socket_roles,
                      CAIRN_MAY_WORK | CAIRN_MAY_READ); // not all jobs of others
}

static const struct {
    const char *group, *roles;
    cairn_status status;
    gid_t gid;
    uint32_t socket_roles;
    const char *word;
} written[] = {
    { "root", "none", CAIRN_OK, 0, 0, "" },
    { "4711", "reader", CAIRN_OK, 4711, CAIRN_MAY_READ, "" },
    { "0", "admin,shard", CAIRN_OK, 0, CAIRN_MAY_ADMIN | CAIRN_MAY_SHARD, "" },
    { "no such group", "none", CAIRN_ERR_CONFIG, 0, 0, "groupadd" },
    { "4294967295", "none", CAIRN_ERR_CONFIG, 0, 0, "admin_group" },
    { "root", "king", CAIRN_ERR_CONFIG, 0, 0, "socket_roles" },
};

TEST_EACH(the_rules_are_read, 0, sizeof written / sizeof *written)
{
    struct access_rules rules = { 0 };
    struct sentence why = { "" };
    ck_assert_int_eq(access_rules_read(written[_i].group, written[_i].roles, &rules, &why),
                     written[_i].status);
    ck_assert_uint_eq(rules.admin_gid, written[_i].gid);
    ck_assert_uint_eq(rules.socket_roles, written[_i].socket_roles);
    ck_assert_msg(strstr(why.text, written[_i].word) != NULL, "%s", why.text);
}

SUITE(10, NULL, NULL);

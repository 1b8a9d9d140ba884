/* Each role against each kind of request: users of this host, whom the kernel knows. Shards are fake. */
#include <check.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/coordinator/access.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"
#include "tests/support/scratch.h"

#define NOBODY CAIRN_SCRATCH_NOBODY

static void set_up(void)
{
    open_trained();
    ck_assert_int_eq(setgroups(0, NULL), 0);
    ck_assert_int_eq(chmod(fake.folder, 0711), 0);
    ck_assert_int_eq(chmod(fake.listen, 0666), 0);
}

static void be(uid_t uid, gid_t gid)
{
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(setegid(gid), 0);
    ck_assert_int_eq(seteuid(uid), 0);
}

/* Somebody else on this host, to whom socket_roles gives these roles, connects. */
static struct fake_peer dial_as(uint32_t roles)
{
    fake.cluster->rules.socket_roles = roles;
    be(NOBODY, NOBODY);
    const struct fake_peer peer = fake_dial(&fake);
    be(0, 0);
    return peer;
}

static uint32_t say_hello(struct fake_peer *peer, uint32_t role)
{
    return fake_ask(peer, Hello, .protocol = CAIRN_CONTROL_PROTOCOL, .role = role,
                    .name = wire_text("somebody"), .incarnation = 7);
}

/* ==== Hello ==== */

static const struct {
    uint32_t role, needs;
} hellos[] = {
    { CAIRN_ROLE_WIRE_WORKER, CAIRN_MAY_READ | CAIRN_MAY_WORK | CAIRN_MAY_ADMIN },
    { CAIRN_ROLE_WIRE_READER, CAIRN_MAY_READ | CAIRN_MAY_WORK | CAIRN_MAY_ADMIN },
    { CAIRN_ROLE_WIRE_SHARD, CAIRN_MAY_SHARD | CAIRN_MAY_ADMIN },
    { CAIRN_ROLE_WIRE_ADMIN,
      CAIRN_MAY_MONITOR | CAIRN_MAY_READ | CAIRN_MAY_WORK | CAIRN_MAY_ADMIN },
};

TEST_EACH(a_hello_is_taken_from_an_identity_that_may_say_it, 0, 4 * 32)
{
    const uint32_t roles = (uint32_t)_i / 4;
    struct fake_peer peer = dial_as(roles);
    const uint32_t request = say_hello(&peer, hellos[_i % 4].role);
    if ((roles & hellos[_i % 4].needs) != 0)
        fake_hear(&peer, Welcome, request);
    else
        fake_expect_error(&peer, request, CAIRN_ERR_REFUSED, "access.socket_roles");
    fake_peer_close(&peer);
}

/* ==== requests of the command line ==== */

/* Requests that change nothing; `reads`: what is in a job, which is for those that its owner lets. */
static const struct {
    uint16_t type;
    bool reads;
} questions[] = {
    { CAIRN_MSG_CLUSTER_STATUS_GET, false }, { CAIRN_MSG_EVENTS_GET, false },
    { CAIRN_MSG_KEYS_GET, false },           { CAIRN_MSG_QUOTA_GET, false },
    { CAIRN_MSG_JOB_LIST_GET, false },       { CAIRN_MSG_JOB_SHOW, false },
    { CAIRN_MSG_SNAPSHOT_ADVISE, false },    { CAIRN_MSG_WHO_IS_AWAITED, false },
    { CAIRN_MSG_RESHARD_ASK, false },        { CAIRN_MSG_JOB_SPEC_GET, true },
    { CAIRN_MSG_JOB_DIGEST_GET, true },      { CAIRN_MSG_SNAPSHOT_LIST_GET, true },
    { CAIRN_MSG_SNAPSHOT_SHOW, true },
};

static bool is_question(uint16_t type)
{
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++)
        if (questions[i].type == type) return true;
    return false;
}

enum outcome { ANSWERED, FAILED, DENIED, ENDED };

/* Denied is who may not, and who may not even know that the job is there. */
static enum outcome judge(uint16_t type, const Cairn__Error *error)
{
    if (type != CAIRN_MSG_ERROR) return ANSWERED;
    return strstr(error->text, "may not") != NULL || strstr(error->text, "may use") != NULL
               ? DENIED
               : FAILED;
}

/* A request of that type about that job, where it is about one, and else empty. */
static uint32_t ask_type(struct fake_peer *peer, uint16_t type, const char *about)
{
    const ProtobufCMessageDescriptor *descriptor = message_type(type);
    const bool is_of_job = strncmp(descriptor->short_name, "Job", 3) == 0;
    ProtobufCMessage *message = calloc(1, descriptor->sizeof_message);
    descriptor->message_init(message);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        if (field->type == PROTOBUF_C_TYPE_STRING && field->label != PROTOBUF_C_LABEL_REPEATED &&
            (strcmp(field->name, "job") == 0 || (is_of_job && strcmp(field->name, "name") == 0)))
            *(char **)(void *)((char *)message + field->offset) = wire_text(about);
    }
    const uint32_t request = fake_request(peer, type, message);
    free(message);
    return request;
}

static enum outcome try_type(uint32_t roles, uint16_t type, const char *about)
{
    struct fake_peer peer = dial_as(roles);
    struct wire_frame frame;
    enum outcome outcome = ENDED;
    fake_hear(&peer, Welcome, say_hello(&peer, CAIRN_ROLE_WIRE_ADMIN));
    const uint32_t request = ask_type(&peer, type, about);
    for (bool is_over = false; !is_over;) {
        fake_pump(&fake);
        fake_peer_read(&peer);
        is_over = peer.ended;
        while (fake_peer_next(&peer, &frame)) {
            if (frame.request != request) continue;
            ProtobufCMessage *answer = message_unpack(message_type(frame.type), frame.payload,
                                                      frame.payload_bytes);
            outcome = judge(frame.type, (const Cairn__Error *)answer);
            is_over = true;
            message_free(answer);
        }
    }
    fake_peer_close(&peer);
    return outcome;
}

static const uint32_t lesser[] = { CAIRN_MAY_WORK, CAIRN_MAY_READ, CAIRN_MAY_WORK | CAIRN_MAY_READ,
                                   CAIRN_MAY_MONITOR };

/* By default nothing is changed: also by a request that is added tomorrow. The job is another owner's, and
 * the other one is not there. */
TEST_EACH(only_an_admin_changes_what_is_not_its_own, 0, 2 * sizeof lesser / sizeof *lesser)
{
    const uint32_t roles = lesser[_i / 2];
    for (uint16_t type = 1; type <= CAIRN_MSG_MAX; type++) {
        // an admin's Heartbeat has no answer, and a worker may prune what it has none of
        const bool is_free = type == CAIRN_MSG_SNAPSHOT_PRUNE && _i % 2 == 1;
        if (message_type(type) == NULL || type == CAIRN_MSG_HEARTBEAT || is_question(type) ||
            is_free)
            continue;
        const enum outcome outcome = try_type(roles, type, _i % 2 == 0 ? "toy" : "fresh");
        ck_assert_msg(outcome != ANSWERED, "%s of roles %u", message_name(type), roles);
    }
}

TEST(an_admin_is_denied_nothing)
{
    static const uint16_t types[] = { CAIRN_MSG_KEY_CHANGE,      CAIRN_MSG_AUDIT_GET,
                                      CAIRN_MSG_CLUSTER_BACKUP,  CAIRN_MSG_SHARD_FORGET,
                                      CAIRN_MSG_SNAPSHOT_REMOVE, CAIRN_MSG_CLUSTER_INIT,
                                      CAIRN_MSG_KEY_TRUST,       CAIRN_MSG_JOB_REMOVE };
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        const bool is_denied = try_type(CAIRN_MAY_MONITOR, questions[i].type, "toy") >= DENIED;
        ck_assert_msg(is_denied == questions[i].reads, "%s", message_name(questions[i].type));
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        ck_assert_int_eq(try_type(CAIRN_MAY_MONITOR, types[i], "toy"), DENIED);
        ck_assert_int_lt(try_type(CAIRN_MAY_ADMIN, types[i], "toy"), DENIED);
    }
}

/* A plan of a change only asks. */
TEST(a_plan_is_a_question)
{
    struct fake_peer peer = dial_as(CAIRN_MAY_MONITOR);
    fake_hear(&peer, Welcome, say_hello(&peer, CAIRN_ROLE_WIRE_ADMIN));
    fake_call(&peer, ClusterAdopted, ClusterAdopt, .plan = true);
    fake_expect_error(&peer, fake_ask(&peer, ClusterAdopt, .plan = false), CAIRN_ERR_REFUSED,
                      "cairn cluster adopt");
    fake_peer_close(&peer);
}

/* ==== trainers ==== */

/* The session of a reader says Hello as a worker's. */
TEST(a_reader_opens_a_job_as_a_reader_alone)
{
    struct fake_peer peer = dial_as(CAIRN_MAY_READ);
    fake_hear(&peer, Welcome, say_hello(&peer, CAIRN_ROLE_WIRE_WORKER));
    fake_expect_error(&peer, fake_ask_open(&peer, 5, 1, 1), CAIRN_ERR_REFUSED,
                      "that needs the role worker");
    fake_peer_close(&peer);
}

/* ==== who they are ==== */

static uint32_t roles_of_next(uid_t uid, gid_t gid, const gid_t *groups, size_t count)
{
    uint32_t roles = 0;
    ck_assert_int_eq(setgroups(count, groups), 0);
    be(uid, gid);
    struct fake_peer peer = fake_dial(&fake);
    be(0, 0);
    ck_assert_int_eq(setgroups(0, NULL), 0);
    fake_hear(&peer, Welcome, say_hello(&peer, CAIRN_ROLE_WIRE_ADMIN));
    for (const struct coord_session *s = fake.cluster->sessions; s != NULL; s = s->next)
        if (strcmp(s->name, "somebody") == 0) roles = peer_identity(s->peer)->roles;
    fake_peer_close(&peer);
    return roles;
}

TEST(groups_make_an_admin_and_so_does_a_long_list_of_them)
{
    gid_t many[300];
    for (gid_t i = 0; i < 300; i++) many[i] = 20000 + i;
    fake.cluster->rules.admin_gid = 4711;
    fake.cluster->rules.socket_roles = CAIRN_MAY_READ;
    ck_assert_uint_eq(roles_of_next(NOBODY, NOBODY, many, 300), CAIRN_MAY_READ);
    many[299] = 4711;
    ck_assert_uint_eq(roles_of_next(NOBODY, NOBODY, many, 300), CAIRN_MAY_ALL);
    ck_assert_uint_eq(roles_of_next(NOBODY, 4711, many, 0), CAIRN_MAY_ALL);
    ck_assert_uint_eq(roles_of_next(NOBODY, NOBODY, many, 0), CAIRN_MAY_READ);
    ck_assert_uint_eq(roles_of_next(0, 0, many, 0), CAIRN_MAY_ALL);
}

TEST(a_refusal_is_in_the_audit_log)
{
    try_type(CAIRN_MAY_MONITOR, CAIRN_MSG_CLUSTER_INIT, "");
    const Cairn__Events *page = fake_call(&admin, Events, AuditGet);
    const Cairn__Event *last = page->events[page->n_events - 1];
    ck_assert_str_eq(last->kind, "refused");
    ck_assert_msg(strstr(last->text, "cluster init: uid 65534 may not") != NULL, "%s", last->text);
    ck_assert_msg(strstr(last->who, "uid:65534") != NULL, "%s", last->who);
}

SUITE(60, set_up, close_fake);

int main(void)
{
    if (cairn_scratch_has_nobody()) return suite_main();
    printf("skipped: only root can be somebody else, where others may enter the folders\n");
    return SUITE_SKIPPED;
}

/* What happened to the cluster is kept: bounded, in order, with its cause, and across restarts. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/store.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

enum { LONG = 300 }; // the longest events that do not fit one page

static Cairn__Events *ask(uint64_t since_unix_ms, uint64_t after)
{
    return fake_call(&admin, Events, EventsGet, .since_unix_ms = since_unix_ms, .after = after);
}

static bool is_one(const Cairn__Event *event, const char *kind, const char *who, const char *word)
{
    return strcmp(event->kind, kind) == 0 && strstr(event->who, who) != NULL &&
           strstr(event->text, word) != NULL;
}

/* Of the first page: one from `at` on of that kind; the place behind it. */
static size_t expect(const Cairn__Events *page, size_t at, const char *kind, const char *who,
                     const char *word)
{
    for (; at < page->n_events; at++)
        if (is_one(page->events[at], kind, who, word)) return at + 1;
    ck_abort_msg("no %s of %s: %s", kind, who, word);
}

TEST(who_came_and_went_is_listed_in_order_with_the_cause)
{
    fake_peer_close(&w);
    fake_shard_blink(&fake, 1);
    fake_until(&fake, coord_job_shards_up(toy()));
    Cairn__Events *page = ask(0, 0);
    size_t at = expect(page, 0, "started", "", "incarnation 1");
    at = expect(page, at, "up", "shard s1", "pid=");
    at = expect(page, at, "job-created", "", "2 tensors over 2 shards");
    const size_t created = at;
    at = expect(page, at, "attached", "worker w0 (rank 0)", "pid=");
    at = expect(page, at, "lost", "worker w0 (rank 0)", "");
    at = expect(page, at, "away", "shard s1", "");
    at = expect(page, at, "back", "shard s1", "");
    expect(page, at, "epoch", "", "because");
    ck_assert_str_eq(page->events[created - 1]->job, "toy");
    ck_assert(!page->more);
}

TEST(they_are_there_after_a_restart_and_numbers_go_on)
{
    Cairn__Events *before = ask(0, 0);
    ck_assert_uint_ge(before->n_events, 4);
    const Cairn__Event *last = before->events[before->n_events - 1];
    restart_coordinator();
    Cairn__Events *now = ask(0, 0);
    ck_assert_uint_gt(now->n_events, before->n_events);
    ck_assert_str_eq(now->events[before->n_events - 1]->kind, last->kind);
    ck_assert_uint_eq(now->events[before->n_events - 1]->unix_ms, last->unix_ms);
    expect(now, before->n_events, "started", "", "incarnation 2");
    for (size_t i = 1; i < now->n_events; i++)
        ck_assert_uint_gt(now->events[i]->number, now->events[i - 1]->number);
}

static void note_many(int count)
{
    for (int i = 0; i < count; i++)
        coord_event_note(fake.cluster, CAIRN_EVENT_UP, NULL, "shard many", "%d", i);
}

static void note_long(void)
{
    char longest[3000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    for (int i = 0; i < LONG; i++)
        coord_event_note(fake.cluster, CAIRN_EVENT_LOST, "toy", longest, "%s", longest);
}

TEST(pages_follow_one_another)
{
    note_long();
    note_long();
    uint64_t after = 0;
    size_t count = 0, pages = 0;
    for (bool more = true; more; pages++) {
        Cairn__Events *page = ask(0, after);
        ck_assert_uint_lt(cairn__events__get_packed_size(page), CAIRN_FRAME_BYTES_MAX);
        ck_assert_uint_gt(page->events[0]->number, after);
        after = page->events[page->n_events - 1]->number;
        count += page->n_events;
        more = page->more;
    }
    ck_assert_uint_ge(pages, 3);
    ck_assert_uint_gt(count, 2 * LONG);
    Cairn__Events *none = ask(UINT64_MAX, 0);
    ck_assert(none->n_events == 0 && !none->more);
}

TEST(of_more_than_are_kept_the_oldest_go_here_and_in_the_store)
{
    const uint64_t writes = coord_store_writes(fake.cluster);
    for (int i = 0; i < 12; i++) { // each is written before the next ones come
        note_many(512);
        fake_until(&fake,
                   fake.cluster->events.rings[0].saved == fake.cluster->events.rings[0].next);
    }
    ck_assert_uint_eq(coord_store_writes(fake.cluster), writes);
    for (int i = 0; i < 2; i++) {
        const struct event_ring *events = &fake.cluster->events.rings[CAIRN_EVENTS_OF_ALL];
        ck_assert_uint_eq(events->next - events->first, CAIRN_STORE_EVENTS_MAX);
        Cairn__Events *page = ask(0, 0);
        ck_assert_uint_eq(page->events[0]->number, events->first);
        ck_assert_str_eq(page->events[0]->who, "shard many");
        restart_coordinator();
    }
}

enum { SETTINGS = 60 };

/* The last "asked", whose text begins so. */
static void expect_asked(const char *begins, const char *has, const char *ends)
{
    Cairn__Events *page = ask(0, 0);
    const Cairn__Event *last = NULL;
    for (size_t i = 0; i < page->n_events; i++)
        if (strcmp(page->events[i]->kind, "asked") == 0) last = page->events[i];
    ck_assert_ptr_nonnull(last);
    const char *text = last->text;
    ck_assert_msg(strncmp(text, begins, strlen(begins)) == 0, "%s", text);
    ck_assert_ptr_nonnull(strstr(last->who, " at pid="));
    ck_assert_str_eq(last->job, "toy");
    ck_assert_msg(strstr(text, has) != NULL, "%s", text);
    ck_assert_msg(strlen(text) >= strlen(ends) &&
                      strcmp(text + strlen(text) - strlen(ends), ends) == 0,
                  "%s", text);
}

TEST(what_an_operator_asked_for_is_noted_with_every_value_that_was_given)
{
    char *freeze[] = { wire_text("a"), wire_text("b") };
    Cairn__GroupSpec group = { .name = "default", .lr = 0.125 }, *groups[] = { &group };
    const uint32_t request = fake_ask_amend(&admin,
                                            (Cairn__JobAmend) { .name = "toy",
                                                                .key = 7,
                                                                .groups = groups,
                                                                .n_groups = 1,
                                                                .freeze_tensors = freeze,
                                                                .n_freeze_tensors = 2 },
                                            "clip_norm=0.5");
    fake_expect_error(&admin, request, CAIRN_ERR_NOT_FOUND, "no group");
    expect_asked("job amend name=toy groups={ name=default lr=0.125 }",
                 " freeze_tensors=a freeze_tensors=b", " --set clip_norm=0.5");
}

TEST(of_many_settings_it_is_noted_how_many_more_there_are)
{
    Cairn__SnapshotRestore restore = CAIRN__SNAPSHOT_RESTORE__INIT;
    Cairn__Setting settings[SETTINGS], *list[SETTINGS];
    char keys[SETTINGS][40];
    for (int i = 0; i < SETTINGS; i++) {
        cairn__setting__init(&settings[i]);
        snprintf(keys[i], sizeof keys[i], "group-%03d.weight_decay", i);
        settings[i].key = keys[i];
        settings[i].value = "0.25";
        list[i] = &settings[i];
    }
    restore.job = "toy";
    restore.id = "newest";
    restore.settings = list;
    restore.n_settings = 2;
    fake_expect_error(&admin, fake_request(&admin, CAIRN_MSG_SNAPSHOT_RESTORE, &restore.base),
                      CAIRN_ERR_INVALID, "not \"newest\"");
    expect_asked("snapshot restore job=toy id=newest", " --set group-000.weight_decay=0.25",
                 " --set group-001.weight_decay=0.25");
    restore.n_settings = SETTINGS;
    fake_expect_error(&admin, fake_request(&admin, CAIRN_MSG_SNAPSHOT_RESTORE, &restore.base),
                      CAIRN_ERR_INVALID, "not \"newest\"");
    expect_asked("snapshot restore job=toy id=newest", " --set group-030.weight_decay=0.25",
                 " more of settings");
}

static bool shows_cut(const char *who)
{
    Cairn__JobStatus *status = show_job("toy");
    return who != NULL ? strstr(status->path_cut, who) != NULL : status->path_cut[0] == '\0';
}

static size_t count_of(const char *kind)
{
    Cairn__Events *page = ask(0, 0);
    size_t count = 0;
    for (size_t i = 0; i < page->n_events; i++) count += strcmp(page->events[i]->kind, kind) == 0;
    return count;
}

TEST(a_cut_data_path_is_an_event_said_once_and_shown_by_the_job_while_it_lasts)
{
    fake.shards[0].unheard = "s1";
    fake_until(&fake, shows_cut("shard s0 hears nothing from s1"));
    fake.shards[1].unheard = "s0";
    fake_until(&fake, shows_cut("shard s1 hears nothing from s0"));
    ck_assert_uint_eq(count_of("path-cut"), 1);
    char *name = wire_text("s1");
    Cairn__Heartbeat beat = CAIRN__HEARTBEAT__INIT;
    beat.unheard = &name;
    beat.n_unheard = 1;
    fake_send(&w, CAIRN_MSG_HEARTBEAT, 0, &beat.base);
    fake_until(&fake, shows_cut("worker w0 hears nothing from s1"));
    ck_assert_uint_eq(count_of("path-cut"), 2);
    fake_shard_away(&fake, 1); // all of it is about who is away
    ck_assert(shows_cut(NULL));
    beat.n_unheard = 0;
    fake_send(&w, CAIRN_MSG_HEARTBEAT, 0, &beat.base);
    fake.shards[0].unheard = NULL;
    fake.shards[1].unheard = NULL;
    fake_shard_up(&fake, 1);
    fake_until(&fake, shows_cut(NULL));
    fake.shards[0].unheard = "s1";
    fake_until(&fake, shows_cut("shard s0"));
    fake.shards[0].unheard = NULL;
    fake_until(&fake, count_of("path-whole") > 0);
    Cairn__Events *page = ask(0, 0);
    size_t at = expect(page, 0, "path-cut", "shard s0", "hears nothing from s1 over the data path");
    at = expect(page, at, "path-cut", "worker w0", "hears nothing from s1");
    expect(page, at, "path-whole", "shard s0", "hears s1 over the data path again");
}

/* ---- the audit log ---- */

static const Cairn__Event *last_audit(void)
{
    const Cairn__Events *page = fake_call(&admin, Events, AuditGet);
    ck_assert_uint_gt(page->n_events, 0);
    return page->events[page->n_events - 1];
}

/* Of the request that was noted last: begun, and then this. */
static void expect_end(const char *kind, const char *word)
{
    char begun[64];
    const Cairn__Events *page = fake_call(&admin, Events, AuditGet);
    ck_assert_uint_ge(page->n_events, 2);
    const Cairn__Event *const *last =
        (const Cairn__Event *const *)&page->events[page->n_events - 2];
    ck_assert_str_eq(last[0]->kind, "begun");
    ck_assert_str_eq(last[1]->kind, kind);
    ck_assert_str_eq(last[1]->who, last[0]->who);
    ck_assert_str_eq(last[1]->job, "toy");
    snprintf(begun, sizeof begun, "%.40s (entry %llu)", last[0]->text,
             (unsigned long long)last[0]->number);
    ck_assert_msg(strncmp(last[1]->text, begun, strlen(begun)) == 0, "%s", last[1]->text);
    ck_assert_msg(strstr(last[1]->text, word) != NULL, "%s", last[1]->text);
}

static void expect_share(void)
{
    const Cairn__Events *page = ask(0, 0);
    expect(page, 0, "asked", "", "job share");
    page = fake_call(&admin, Events, AuditGet);
    expect(page, 0, "begun", "", "job share name=toy");
    for (size_t i = 1; i < page->n_events; i++)
        ck_assert_uint_gt(page->events[i]->number, page->events[i - 1]->number);
}

/* Attaching and dropping, and what is refused to one who is no admin. */
TEST(what_any_token_can_cause_pushes_no_admins_request_out)
{
    char who[32];
    fake_call(&admin, JobShared, JobShare, .name = "toy", .owners = "green");
    for (int i = 0; i < CAIRN_STORE_EVENTS_MAX + 10; i++) {
        snprintf(who, sizeof who, "user%d", i);
        coord_event_note(fake.cluster, CAIRN_EVENT_ATTACHED, "toy", who, "%d", i);
        for (size_t r = 0; r <= CAIRN_REFUSALS_MAX; r++)
            fake.cluster->audit.refusals.list[r].who[0] = '\0';
        ck_assert(coord_audit_refused(fake.cluster, who, "connect", "no"));
    }
    expect_share();
    restart_coordinator();
    expect_share();
}

/* Whoever asked waits for it, or does not, or is gone. */
TEST_EACH(work_that_fails_later_is_in_the_audit_log, 0, 3)
{
    struct fake_peer peer = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "peer");
    fake.shards[0].fail_part = "the disk of s0 is full";
    const uint32_t request = fake_ask(&peer, SnapshotCreate, .job = "toy", .wait = _i != 1);
    if (_i == 2) fake_peer_close(&peer);
    if (_i == 1) fake_hear(&peer, SnapshotStatus, request);
    if (_i == 0) fake_expect_error(&peer, request, CAIRN_ERR_NO_SPACE, "is full");
    fake_until(&fake, fake.cluster->audit.log.next > 1 && strcmp(last_audit()->kind, "begun") != 0);
    expect_end("failed", "CAIRN_ERR_NO_SPACE: s0: the disk of s0 is full");
    restart_coordinator();
    ck_assert_str_eq(last_audit()->kind, "failed");
    if (_i != 2) fake_peer_close(&peer);
}

/* Else the end of what somebody else asks later would be noted as its own. */
TEST(a_request_that_is_refused_for_lack_of_room_has_no_end)
{
    const struct coord_shard_entry *entry = coord_shard_find(fake.cluster, "s0");
    struct coord_session *session = fake.cluster->sessions;
    while (session->role != CAIRN_ROLE_WIRE_ADMIN) session = session->next;
    const uint32_t waits = session->wait_count;
    session->wait_count = CAIRN_SESSION_WAITS_MAX;
    fake_expect_error(&admin, fake_ask(&admin, MemberDrain, .name = wire_text("s0")),
                      CAIRN_ERR_BUSY, "too many requests wait");
    session->wait_count = waits;
    ck_assert(LIST_EMPTY(&entry->drain.waiters));
    ck_assert_str_eq(last_audit()->kind, "failed");
}

TEST(work_that_is_done_later_is_in_the_audit_log_too)
{
    take_snapshot();
    expect_end("ended", "");
}

SUITE(60, open_ticking, close_fake);

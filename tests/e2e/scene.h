/* A scene: one cluster of real daemons, a trainer of it, and what happens to them, a word each.
 *
 *   start(2, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
 *   join("tiny", TINY(5000));
 *   train(3);
 *   says(0, "committed", "snapshot create tiny --wait");
 *   bits(root);
 *   restart_coordinator();
 *   expect_bits(root);
 *   stop();
 *
 * There is one in a process, as a test is. Of several clusters: cluster.h; of several trainers: `attach`. */
#ifndef CAIRN_E2E_SCENE_H
#define CAIRN_E2E_SCENE_H

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/now.h"
#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

extern struct cluster cluster;
extern struct cluster_said said; /* by the last command of `ask` */
extern cairn *session;           /* of the scene's trainer; NULL: none */
extern cairn_job *job;

/* ---- its beginning and end ---- */

/* So many shards; options as in struct cluster_options: .both_ways = true. */
#define start(shards, ...) \
    cluster_start(&cluster, (shards), &(struct cluster_options) { __VA_ARGS__ })
/* The port of its coordinator, which listens on an IP. */
uint16_t coordinator_port(void);
/* The trainer leaves, if there is one; all daemons end, if there are any: SUITE(60, .tear_down = stop). */
void stop(void);
/* Logs of shards lie in this folder, with logs_setting in .shard_set: SUITE(60, logs_begin, logs_end). The
 * end of the logs is that of the scene. */
extern char logs_folder[CAIRN_SCRATCH_BYTES], logs_setting[CAIRN_SCRATCH_BYTES + 16];
void logs_begin(void);
void logs_end(void);

/* ---- the trainer ---- */

/* It has a session, and opens the job, which is initialized; `join_spec`: one of any tensors, with their
 * initializers. */
void join(const char *name, const struct tiny_job *tiny);
void join_spec(const char *name, const struct cairn_job_spec *spec);
/* It closes its session. */
void leave(void);
/* Rounds of it with nothing in them; the step after them. */
uint64_t train(int rounds);
/* The same with a gradient of "w", `value` everywhere. A round that is void is made again. */
uint64_t train_pushing(float value, int rounds);
/* One more trainer of the scene. */
struct trainer attach(const char *name, const struct tiny_job *tiny);
/* A session more, under that name, by which sentences name it. */
cairn *session_named(const char *name);
/* A reader of the job in a session of its own, by the data path of that name; NULL: the default. */
cairn_job *join_reader(const char *name, const char *fabric, cairn **session_out);

/* No round of the job opens: for that reason, with that word. */
void expect_refusal(cairn_job *of, cairn_status status, const char *word);
/* cairn_error() of the call that failed has the word. */
void expect_error(const char *word);
/* The newest version of the job. */
struct cairn_version newest(cairn_job *of);

/* The content root of the scene's job; it has this one. */
void bits(char root_out[65]);
void expect_bits(const char *root);
/* Two jobs have the same. */
void expect_same_bits(const char *name, const char *other);

/* ---- what happens to the daemons ---- */

void kill_coordinator(void);
/* It is killed, and comes back with an empty store; the other one is in "lost". */
void lose_store(void);
/* It is killed, if it runs, and comes back with its store. */
void restart_coordinator(void);
void kill_shard(int shard);
/* It is killed, if it runs; an empty one of its name comes. */
void restart_shard(int shard);

/* It is drained, and ends by itself. */
void drain_shard(int shard);

/* ---- commands, as in cluster.h ---- */

#define says(status, word, ...) cluster_says(&cluster, status, word, __VA_ARGS__)
#define await_said(word, ...)   cluster_await(&cluster, true, word, __VA_ARGS__)
#define await_unsaid(word, ...) cluster_await(&cluster, false, word, __VA_ARGS__)
#define word_of(word_out, ...)  cluster_word(&cluster, word_out, __VA_ARGS__)
/* What it says, and its status: `said`. */
#define ask(...) cluster_cli(&cluster, &said, __VA_ARGS__)
void ask_line(const char *line);
/* Of what was asked last: it ended with that status, and each of these words is in what it printed. */
#define expect_said(...) expect_words(__VA_ARGS__, NULL)
void expect_words(int status, ...) __attribute__((sentinel));
/* And this word is not in it. */
void expect_unsaid(const char *word);
/* In the JSON that was printed: the number at "memory.device" or "jobs.0.pieces", 0 where there is none; the
 * same, which has to be there (true is 1); the length of a list. */
int64_t said_number(const char *path);
double said_real(const char *path);
size_t said_count(const char *path);
/* Lines with this text in a log: "coordinator.log", "shard-0.log". */
int logged(const char *log, const char *text);

/* A path in the scene's folder; a snapshot's folder. Good for the next three calls. */
const char *in_folder(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *snapshot_folder(const char *name, const char *id);
/* A program beside, as cluster_run. */
#define run_on(netns, log, ...) cluster_run(&cluster, netns, log, __VA_ARGS__)

/* Until it holds, for as long as one waits for any one thing. */
#define await(condition)                                                                    \
    do {                                                                                    \
        const int64_t await_end_ms = now_ms() + CLUSTER_WAIT_MS;                            \
        while (!(condition)) {                                                              \
            ck_assert_msg(now_ms() < await_end_ms, "never: %s; %.2000s%.2000s", #condition, \
                          said.out, said.err);                                              \
            poll(NULL, 0, 2);                                                               \
        }                                                                                   \
    } while (0)

/* A child of the test, which is in it when 0 is returned. */
pid_t fork_child(void);

#endif

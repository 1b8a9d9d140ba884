/* cairn: the command line of a cluster. This file has the table of subcommands, and parses the line into a
 * subcommand. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/ctl.h"
#include "client/env.h"

struct subcommand {
    const char *noun, *verb; /* verb "": the noun alone */
    const char *arguments, *help;
    int min_args, max_args;
    const char *takes; /* kinds of options, each followed by a space */
    ctl_command *run;  /* or the question below */
    const struct ctl_question *question;
};
#define RUN(function) function, NULL
#define ASK(question) NULL, &question

enum { ANY_ARGS = 1 << 20 };
#define BENCHES    "output seconds "
#define ASKS       "endpoint timeout output "
#define LISTS_ONCE ASKS "no-headers quiet "
#define LISTS      LISTS_ONCE "watch "
#define RESHARDS   ASKS "no-headers shards all reshard "

static const struct subcommand subcommands[] = {
    { "local", "", "[--shards N] [--] [COMMAND...]",
      "a cluster on this machine, for as long as the command runs (without one: until Ctrl-C)", 0,
      ANY_ARGS, "local shards quiet ", RUN(ctl_local) },
    { "env", "", "", "what the environment says of this process, and which variable says it", 0, 0,
      "endpoint output no-headers ", RUN(ctl_env) },
    { "capabilities", "", "",
      "what a job may ask for: every choice of its spec, and whether this version supports it", 0,
      0, "output no-headers ", RUN(ctl_capabilities) },
    { "cluster", "status", "[--check [--snapshot-age TIME]]",
      "the coordinator, its shards and workers; with --check, what is wrong with them and with all "
      "jobs",
      0, 0, LISTS "check snapshot-age ", RUN(ctl_cluster_status) },
    { "cluster", "events", "[--since TIME] [--watch]",
      "who came, went, was lost or put out, what befell the jobs, and what operators asked for: "
      "when, and why",
      0, 0, ASKS "no-headers since follow ", RUN(ctl_cluster_events) },
    { "cluster", "adopt", "[--yes]",
      "take what the shards hold into the coordinator's store: after the store was lost, or an "
      "older copy was put back",
      0, 0, ASKS "yes ", RUN(ctl_cluster_adopt) },
    { "cluster", "backup", "FILE",
      "a copy of the coordinator's store, while it runs, into a new file on its host", 1, 1,
      ASKS "quiet ", RUN(ctl_cluster_backup) },
    { "cluster", "forget", "JOB [--yes]",
      "drop the parts of a job that shards hold and that this coordinator does not know", 1, 1,
      ASKS "yes ", ASK(ctl_cluster_forget) },
    { "key", "show", "",
      "the public key for the signatures of this cluster's snapshots, as minisign prints it", 0, 0,
      ASKS "quiet ", RUN(ctl_key_show) },
    { "key", "list", "", "the keys whose signatures of snapshots are trusted", 0, 0,
      ASKS "no-headers ", ASK(ctl_key_list) },
    { "key", "trust", "FILE|KEY",
      "trust snapshots that another cluster signed: give what `cairn key show` prints there", 1, 1,
      ASKS "no-headers quiet ", RUN(ctl_key_trust) },
    { "key", "untrust", "ID|KEY", "trust that key no more", 1, 1, ASKS "no-headers quiet ",
      RUN(ctl_key_untrust) },
    { "shard", "forget", "NAME",
      "forget a shard that is gone for good, and on which no job has a part", 1, 1, ASKS "quiet ",
      ASK(ctl_shard_forget) },
    { "member", "drain", "NAME",
      "move all that a shard holds to the others while jobs train; then it ends, and is forgotten",
      1, 1, ASKS "quiet ", ASK(ctl_member_drain) },
    { "reshard", "plan",
      "JOB|--all [--shards N] [--add NAME]... [--drain NAME]... [--weight NAME=W]...",
      "what would move from where to where, how long it would take, and what a step would feel", 0,
      1, RESHARDS, RUN(ctl_reshard_plan) },
    { "reshard", "apply",
      "JOB|--all [--shards N] [--add NAME]... [--drain NAME]... [--weight NAME=W]... [--pause P%]",
      "spread a job over other shards while it trains, and wait for the end", 0, 1,
      RESHARDS "quiet pause ", RUN(ctl_reshard_apply) },
    { "reshard", "status", "[JOB]", "how far the move is, or how the last ended", 0, 1,
      ASKS "no-headers watch ", RUN(ctl_reshard_status) },
    { "reshard", "cancel", "JOB|--all",
      "end the move after the current slice: what has moved stays where it is", 0, 1,
      ASKS "quiet all ", RUN(ctl_reshard_cancel) },
    { "job", "list", "", "jobs, their versions and for whom they wait", 0, 0, LISTS,
      ASK(ctl_job_list) },
    { "job", "show", "JOB", "one job in full", 1, 1, ASKS, ASK(ctl_job_show) },
    { "job", "check", "JOB [--snapshot-age TIME]",
      "what is wrong with a job, a line each; the exit status says which kind is the worst", 1, 1,
      ASKS "quiet snapshot-age ", RUN(ctl_job_check) },
    { "job", "top", "JOB [--every SECONDS] [--once]",
      "where the last steps went: each worker's and shard's time by phase, and who is slow", 1, 1,
      ASKS "no-headers every ", RUN(ctl_job_top) },
    { "job", "plan",
      "SPEC|JOB [--shards N] [--workers N] [--stage N] [--wire f32|bf16] [--backend host|cuda "
      "[--offload X]]",
      "how much memory a job takes on its shards, by kind; a file or folder needs no coordinator",
      1, 1, ASKS "no-headers shards workers plan ", RUN(ctl_job_plan) },
    { "job", "digest", "JOB",
      "the content root of the newest version: equal across layouts and restores (reads the whole "
      "state)",
      1, 1, ASKS "quiet ", ASK(ctl_job_digest) },
    { "job", "amend",
      "JOB [--workers MIN:MAX] [--lr X [--group NAME]] "
      /* The next lines are made by tests/tree/spec_fields.py. */
      "[--clip-norm X] [--snapshot-every N|TIME] [--snapshot-keep N] [--snapshot-keep-every N] "
      "[--snapshot-keep-within TIME] [--snapshot-max-bytes N] [--snapshot-staging state|small] "
      "[--snapshot-durable-within TIME] [--snapshot-fallback yes|no] [--snapshot-scrub-every "
      "TIME] [--on-shard-loss wait|restore-latest [--shard-loss-wait SECONDS]] [--on-worker-loss "
      "redo|wait|fail [--worker-loss-wait SECONDS]] "
      /* From here on by hand. */
      "[--set KEY=VALUE]...",
      "change a job while it trains, from the next round on; scripts with the old spec go on", 1, 1,
      ASKS "quiet terms set ", RUN(ctl_job_amend) },
    { "job", "park", "JOB",
      "take its state off GPUs to host memory: no round opens until it is taken back", 1, 1,
      ASKS "quiet ", ASK(ctl_job_park) },
    { "job", "unpark", "JOB", "take a parked job's state back to where it lay", 1, 1, ASKS "quiet ",
      ASK(ctl_job_unpark) },
    { "job", "create", "[NAME] --from JOB/ID|FOLDER [--set KEY=VALUE]... [--dry-run] [--yes]",
      "a job out of a snapshot, over the shards there are, with other terms where --set says so; "
      "asks before it replaces one",
      0, 1, ASKS "set quiet create yes trust no-headers ", RUN(ctl_job_create) },
    { "job", "drop", "JOB [--yes] [--force]",
      "free a job's memory on all shards, for good; its snapshots stay", 1, 1,
      ASKS "quiet yes force ", ASK(ctl_job_drop) },
    { "snapshot", "create", "JOB [--wait]", "take a snapshot while training goes on", 1, 1,
      ASKS "quiet wait ", ASK(ctl_snapshot_create) },
    { "snapshot", "cancel", "JOB [ID]",
      "give up the snapshot or digest that is being taken; what was written of it is removed", 1, 2,
      ASKS "quiet ", ASK(ctl_snapshot_cancel) },
    { "snapshot", "list", "[JOB]", "committed snapshots, the newest first", 0, 1, LISTS,
      ASK(ctl_snapshot_list) },
    { "snapshot", "show", "JOB ID | --path FOLDER [--stats]",
      "one snapshot and its tensors; with --stats what is in them", 0, 2, LISTS_ONCE "place stats ",
      RUN(ctl_snapshot_show) },
    { "snapshot", "copy", "JOB ID | --path FOLDER --to ROOT",
      "copy a snapshot, with its signature, beneath another root of snapshots", 0, 2,
      ASKS "quiet place copy ", RUN(ctl_snapshot_copy) },
    { "snapshot", "diff", "JOB ID ID | --path FOLDER --path FOLDER",
      "which tensors of two snapshots differ, and by how much; exits 0: none, 1: some", 0, 3,
      LISTS_ONCE "places ", RUN(ctl_snapshot_diff) },
    { "snapshot", "export",
      "JOB ID | --path FOLDER --to DIR [--format hf|dcp|torch] [--dtype f32|bf16] [--max-file 5GB]",
      "write its weights as transformers and safetensors read them, or all of it as PyTorch does",
      0, 2, ASKS "quiet place export ", RUN(ctl_snapshot_export) },
    { "snapshot", "verify",
      "JOB ID | --path FOLDER [--quick | --read-data-subset P%] [--key FILE|KEY]",
      "read a snapshot past the page cache, and compare it with its checksums and its signature", 0,
      2, ASKS "quiet place verify ", RUN(ctl_snapshot_verify) },
    { "snapshot", "restore",
      "JOB ID|latest | --path FOLDER [--job NAME] [--yes] [--fallback] [--allow-unsigned] "
      "[--allow-untrusted]",
      "load a snapshot into a new generation, over the shards there are; asks before it replaces a "
      "job",
      0, 2, ASKS "quiet restore yes trust ", RUN(ctl_snapshot_restore) },
    { "snapshot", "rm", "JOB ID [--yes] [--force]", "remove a snapshot, for good", 2, 2,
      ASKS "quiet yes rm ", ASK(ctl_snapshot_rm) },
    { "snapshot", "tag", "JOB ID NAME [--delete]",
      "name a snapshot: it stays until the tag is off; a tag of another snapshot moves here", 3, 3,
      ASKS "quiet delete ", ASK(ctl_snapshot_tag) },
    { "snapshot", "prune",
      "JOB [--dry-run] [--keep-last N] [--keep-every N] [--keep-within TIME] [--max-bytes N]",
      "remove periodic snapshots that no rule keeps (the job's, or those given), and what a crash "
      "left; says of each why",
      1, 1, ASKS "no-headers quiet keeping ", RUN(ctl_snapshot_prune) },
    { "snapshot", "advise", "JOB [--mtbf TIME]",
      "how often to take snapshots, from what they cost and how often something fails (Young's "
      "rule)",
      1, 1, ASKS "mtbf ", RUN(ctl_snapshot_advise) },
    { "bench", "update", "",
      "the shard's arithmetic (fold of 2 workers, norm, AdamW, publish) against the speed of "
      "memory; parts of it with --only; on a device with --backend cuda",
      0, 0, BENCHES "params threads wire only backend ", RUN(bench_update) },
    { "bench", "layout", "", "the planner, as a process of its own, against 1 s and 1 GiB", 0, 0,
      BENCHES "params shards tensors ", RUN(bench_layout) },
    { "bench", "latency", "",
      "an empty step of a tiny model and its parts, in a cluster of its own or in yours, against "
      "raw TCP",
      0, 0, BENCHES "endpoint shards workers ", RUN(bench_latency) },
    { "bench", "fabric", "",
      "pushes and fetches between two processes, as the fabric moves them, against raw UCX or "
      "memcpy",
      0, 0, BENCHES "way chunk ", RUN(bench_fabric) },
    { "bench", "step", "",
      "a step of worker processes: push, update, fetch; in a cluster of its own or in yours, "
      "against memcpy",
      0, 0,
      BENCHES "endpoint shards workers params tensors threads wire way timeline backend memory ",
      RUN(bench_step) },
    { "bench", "tensors", "",
      "a step of many small tensors, in a cluster of its own or in yours, against the step of one "
      "tensor of as many bytes",
      0, 0, BENCHES "endpoint shards workers params tensors wire way ", RUN(bench_tensors) },
    { "bench", "open", "",
      "the longest step of a small job while one of very many tensors is opened, against its "
      "longest step at rest",
      0, 0, BENCHES "shards tensors ", RUN(bench_open) },
    { "bench", "reshard", "[--from N] [--to N]",
      "a job moves from so many shards to so many, at rest against memcpy, and while it trains", 0,
      0, BENCHES "params tensors threads wire from-to ", RUN(bench_reshard) },
    { "bench", "snapshot", "--dir FOLDER",
      "a snapshot, its restore, and what training feels of it, against the raw rate of the disk "
      "and torch.save",
      0, 0, BENCHES "dir shards workers params tensors only ", RUN(bench_snapshot) },
    { "bench", "map", "",
      "one tensor over all shards, mapped where they published it and read, in a cluster of its "
      "own or in yours, against memcpy",
      0, 0, BENCHES "endpoint shards params wire way ", RUN(bench_map) },
};
#define SUBCOMMAND_COUNT (sizeof subcommands / sizeof subcommands[0])

static bool matches(const struct subcommand *s, const char *noun, const char *verb)
{
    return (noun == NULL || strcmp(s->noun, noun) == 0) &&
           (verb == NULL || strcmp(s->verb, verb) == 0);
}

/* Prints the usage of all subcommands, of a noun's subcommands, or of one subcommand. */
static void usage(FILE *out, const char *noun, const char *verb)
{
    char takes[1 << 13] = "";
    size_t used = 0;
    fprintf(out, noun == NULL ? "usage: cairn [OPTIONS] NOUN VERB [ARGUMENTS]\n\n" : "usage:\n");
    for (size_t i = 0; i < SUBCOMMAND_COUNT; i++) {
        const struct subcommand *s = &subcommands[i];
        if (!matches(s, noun, verb)) continue;
        fprintf(out, "  cairn %s%s%s%s%s\n        %s\n", s->noun, s->verb[0] != 0 ? " " : "",
                s->verb, s->arguments[0] != 0 ? " " : "", s->arguments, s->help);
        used += (size_t)snprintf(takes + used, sizeof takes - used, "%s", s->takes);
    }
    ctl_options_print(out, takes);
    fprintf(out,
            "\nexit status: 0 done, 1 failed, 2 usage, 4 not found, 5 damaged data, 10 "
            "unreachable,\n  11 busy, 12 not allowed, 13 another protocol, 124 timeout, 130 "
            "interrupted; local: the command's;\n  of a check: 20 a shard is missing, 21 a job "
            "waits, 22 snapshots, 23 degraded\n");
}

static const struct subcommand *find_subcommand(const char *noun, const char *verb)
{
    for (size_t i = 0; i < SUBCOMMAND_COUNT; i++)
        if (matches(&subcommands[i], noun, verb)) return &subcommands[i];
    return NULL;
}

/* Reads the options up to the next word of the line, and then this word. -1: continue; *word_out is NULL at
 * the line's end. */
static int next_word(struct ctl *ctl, const char **word_out)
{
    const int done = ctl_options_read(ctl, false);
    if (done >= 0) return done;
    *word_out = ctl->argc > 0 ? ctl->argv[0] : NULL;
    if (*word_out == NULL) return -1;
    const size_t length = strlen(ctl->words);
    snprintf(ctl->words + length, sizeof ctl->words - length, "%s%.24s", length > 0 ? " " : "",
             *word_out);
    return -1;
}

static int no_subcommand(struct ctl *ctl, const char *noun, const char *verb)
{
    if (ctl->help && (noun == NULL || find_subcommand(noun, NULL) != NULL)) {
        usage(stdout, noun, NULL);
        return 0;
    }
    if (noun == NULL) {
        usage(stderr, NULL, NULL);
        return 2;
    }
    const bool is_noun = find_subcommand(noun, NULL) != NULL;
    if (!is_noun || verb != NULL)
        return ctl_fail(CAIRN_ERR_INVALID,
                        "there is no subcommand \"%s%s%s\"; see cairn %s%s--help", noun,
                        verb != NULL && is_noun ? " " : "", verb != NULL && is_noun ? verb : "",
                        is_noun ? noun : "", is_noun ? " " : "");
    return ctl_usage_fail(ctl, "cairn %s needs a verb", noun);
}

/* Parses the line into a subcommand and its arguments. -1: continue. */
static int parse_line(struct ctl *ctl, const struct subcommand **subcommand_out)
{
    const char *noun = NULL, *verb = NULL;
    int done = next_word(ctl, &noun);
    if (done >= 0) return done;
    const struct subcommand *s = noun != NULL ? find_subcommand(noun, "") : NULL;
    if (s == NULL && noun != NULL && find_subcommand(noun, NULL) != NULL) {
        done = next_word(ctl, &verb);
        if (done >= 0) return done;
        s = verb != NULL ? find_subcommand(noun, verb) : NULL;
    }
    if (s == NULL) return no_subcommand(ctl, noun, verb);
    done = ctl_options_read(ctl, s->max_args != ANY_ARGS); // a command has its own options
    if (done >= 0) return done;
    if (ctl->help) {
        usage(stdout, s->noun, s->verb);
        return 0;
    }
    done = ctl_options_check(ctl, s->takes);
    if (done >= 0) return done;
    if (ctl->argc < s->min_args || ctl->argc > s->max_args)
        return ctl_usage_fail(ctl, "usage: cairn %s%s%s", ctl->words,
                              s->arguments[0] != 0 ? " " : "", s->arguments);
    *subcommand_out = s;
    return -1;
}

static const struct subcommand *subcommand;

static int run_subcommand(struct ctl *ctl)
{
    return subcommand->question != NULL ? ctl_ask(ctl, subcommand->question) : subcommand->run(ctl);
}

int main(int argc, char **argv)
{
    struct ctl ctl = { .argc = argc, .argv = argv, .build = CAIRN_BUILD };
    const int done = parse_line(&ctl, &subcommand);
    if (done >= 0) return done;
    struct env_report env;
    if (ctl_takes(subcommand->takes, "timeout")) {
        const struct env_input input = {
            .get = env_get, .given[CAIRN_ENV_ENDPOINT] = { ctl.endpoint, "--endpoint" }
        };
        struct sentence why;
        const cairn_status status = env_find(&input, CAIRN_ENV_ENDPOINT, &env, &why);
        if (status != CAIRN_OK) return ctl_fail(status, "%s", why.text);
        ctl.endpoint = env.values[CAIRN_ENV_ENDPOINT].text;
    }
    const bool repeats = ctl.watch && ctl_takes(subcommand->takes, "watch");
    return repeats ? ctl_watch(&ctl, run_subcommand) : run_subcommand(&ctl);
}

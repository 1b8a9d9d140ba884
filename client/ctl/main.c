/* cairn: the command line of a cluster. A row for each command says how it is called and used, what it asks
 * the coordinator, and how it shows the reply. `cairn --help`, the man page and the completions are made from
 * these rows. A command that does more than to ask once has a question with functions in another file.
 *
 * output.c has the syntax of pages; ctl.h that of what fills a request. */
#include "client/ctl/ctl.h"

/* Options that usage does not show. */
#define ASKS       "endpoint token-file timeout output "
#define LISTS_ONCE ASKS "no-headers quiet "
#define LISTS      LISTS_ONCE "watch "

#define SNAPSHOTS_MS CTL_SNAPSHOT_TIMEOUT_MS
#define LONG_MS \
    600000 /* moves of state; the coordinator stops earlier if a shard does not answer */

#define ASK(type_, message, fill_, reply, ...)                      \
    &(const struct ctl_question)                                    \
    {                                                               \
        CTL_ASKS(type_, message, reply), .fill = fill_, __VA_ARGS__ \
    }

#define PARKED_PAGE              \
    "parked|{?parked}{name}\n"   \
    "unparked|{!parked}{name}\n" \
    "shards|{shards}\n"          \
    "note|{note?}"

#define SHARED_PAGE             \
    "job|{name}\n"              \
    "owner|{owner?}\n"          \
    "owner|{!owner}not known\n" \
    "shared with|{shared?}\n"   \
    "to be read by|{shared_read?}"

static const struct ctl_row commands[] = {
    { "local", "", "[--shards N] [--] [COMMAND...]",
      "a cluster on this machine, for as long as the command runs (without one: until Ctrl-C)", 0,
      CTL_ANY_ARGS, "endpoint-file keep import quiet", &ctl_local },
    { "env", "", "", "what the environment says of this process, and which variable says it", 0, 0,
      "endpoint output no-headers", &ctl_env },
    { "capabilities", "", "",
      "what a job may ask for: every choice of its spec, and whether this version supports it", 0,
      0, "output no-headers", &ctl_capabilities },

    /* ---- the cluster ---- */
    { "cluster", "status", "[--check [--snapshot-age TIME]]",
      "the coordinator, its shards and workers; with --check, what is wrong with them and with all "
      "jobs",
      0, 0, LISTS, &ctl_cluster_status },
    { "cluster", "events", "[--since TIME] [--watch]",
      "who came, went, was lost or put out, what befell the jobs, and what operators asked for: "
      "when, and why",
      0, 0, ASKS "no-headers", &ctl_cluster_events },
    { "cluster", "init", "",
      "the tokens with which nodes and trainers join, each with the command that does it; made at "
      "the "
      "first call",
      0, 0, ASKS "quiet", &ctl_cluster_init },
    { "cluster", "audit", "[--since TIME] [--watch]",
      "what admins did, and what was refused to whom: when, from where, and how it ended", 0, 0,
      ASKS "no-headers", &ctl_cluster_audit },
    { "cluster", "quota", "",
      "what each owner uses of jobs, sessions, state and bytes in flight, and how much it may", 0,
      0, ASKS "no-headers watch", ASK(QUOTA_GET, quota_get, "", QUOTAS, .page = "#owners") },
    { "cluster", "adopt", "[--yes]",
      "take what the shards hold into the coordinator's store: after the store was lost, or an "
      "older copy was put back",
      0, 0, ASKS, &ctl_cluster_adopt },
    { "cluster", "backup", "FILE",
      "a copy of the coordinator's store, while it runs, into a new file on its host", 1, 1,
      ASKS "quiet",
      ASK(CLUSTER_BACKUP, cluster_backup, "path=/0", CLUSTER_BACKED_UP, .quiet = "{path}",
          .page = "copied to|{path}, {bytes/bytes}, on the coordinator's host") },
    { "cluster", "forget", "JOB [--yes]",
      "drop the parts of a job that shards hold and that this coordinator does not know", 1, 1,
      ASKS,
      ASK(CLUSTER_FORGET, cluster_forget, "job=@0 plan=!yes", CLUSTER_FORGOTTEN,
          .page = "#parts\n"
                  "{!@yes}{;}nothing was dropped: --yes drops these parts, and nothing brings them "
                  "back",
          .fields = "done=@yes parts") },
    { "key", "show", "",
      "the public key for the signatures of this cluster's snapshots, as minisign prints it", 0, 0,
      ASKS "quiet", &ctl_key_show },
    { "key", "list", "",
      "who may connect: the tokens that were given out, and the nodes that shards came from; and "
      "the "
      "keys whose signatures of snapshots are trusted",
      0, 0, ASKS "no-headers",
      ASK(KEYS_GET, keys_get, "", KEYS, .page = "#tokens?\n{?tokens}\n#nodes?\n{?nodes}\n#keys",
          .fields = "tokens nodes keys") },
    { "key", "add",
      "NAME --role ROLES [--owner TEAM] [--jobs NAMES] [--until DATE|TIME] [--to FILE]",
      "a token for somebody who may connect from now on; it is printed this once", 1, 1, ASKS,
      &ctl_key_add },
    { "key", "rotate", "NAME|--cluster [--grace TIME] [--until DATE|TIME] [--to FILE]",
      "a new token in place of the one of that name, or a new key of the coordinator; nobody who "
      "is "
      "connected is disturbed",
      0, 1, ASKS, &ctl_key_rotate },
    { "key", "revoke", "NAME|ID|shard:NAME",
      "put out whoever has that token, now and for good; shard:NAME: let another node have that "
      "shard's name",
      1, 1, ASKS "quiet", &ctl_key_revoke },
    { "key", "trust", "FILE|KEY",
      "trust snapshots that another cluster signed: give what `cairn key show` prints there", 1, 1,
      ASKS "no-headers quiet", &ctl_key_trust },
    { "key", "untrust", "ID|KEY", "trust that key no more", 1, 1, ASKS "no-headers quiet",
      ASK(KEY_TRUST, key_trust, "key=@0 untrust=1", KEYS, .page = "#keys",
          .quiet_hides_all = true) },
    { "shard", "forget", "NAME",
      "forget a shard that is gone for good, and on which no job has a part", 1, 1, ASKS "quiet",
      ASK(SHARD_FORGET, shard_forget, "name=@0", DONE, .page = "forgotten|{@0}",
          .fields = "forgotten=@0") },
    { "member", "drain", "NAME",
      "move all that a shard holds to the others while jobs train; then it ends, and is forgotten",
      1, 1, ASKS "quiet",
      ASK(MEMBER_DRAIN, member_drain, "name=@0 wait=1", DONE, .timeout_ms = LONG_MS,
          .farewell = "\ncairn: the drain goes on: `cairn reshard status` says how far it is, "
                      "`cairn reshard cancel --all` ends it\n",
          .page = "drained|{@0}, which ends and is forgotten", .fields = "drained=@0") },

    /* ---- re-shardings ---- */
    { "reshard", "plan",
      "JOB|--all [--shards N] [--add NAME]... [--drain NAME]... [--weight NAME=W]...",
      "what would move from where to where, how long it would take, and what a step would feel", 0,
      1, ASKS "no-headers", &ctl_reshard_plan },
    { "reshard", "apply",
      "JOB|--all [--shards N] [--add NAME]... [--drain NAME]... [--weight NAME=W]... [--pause P%]",
      "spread a job over other shards while it trains, and wait for the end", 0, 1,
      ASKS "no-headers quiet", &ctl_reshard_apply },
    { "reshard", "status", "[JOB]", "how far the move is, or how the last ended", 0, 1,
      ASKS "no-headers watch", &ctl_reshard_status },
    { "reshard", "cancel", "JOB|--all",
      "end the move after the current slice: what has moved stays where it is", 0, 1, ASKS "quiet",
      &ctl_reshard_cancel },

    /* ---- jobs ---- */
    { "job", "list", "", "jobs, their versions and for whom they wait", 0, 0, LISTS,
      &ctl_job_list },
    { "job", "show", "JOB", "one job in full", 1, 1, ASKS, &ctl_job_show },
    { "job", "check", "JOB [--snapshot-age TIME]",
      "what is wrong with a job, a line each; the exit status says which kind is the worst", 1, 1,
      ASKS "quiet", &ctl_job_check },
    { "job", "top", "JOB [--every SECONDS] [--once]",
      "where the last steps went: each worker's and shard's time by phase, and who is slow", 1, 1,
      ASKS "no-headers", &ctl_job_top },
    { "job", "plan",
      "SPEC|JOB [--shards N] [--workers N] [--stage N] [--wire f32|bf16] [--backend host|cuda "
      "[--offload X]]",
      "how much memory a job takes on its shards, by kind; a file or folder needs no coordinator",
      1, 1, ASKS "no-headers", &ctl_job_plan },
    { "job", "digest", "JOB",
      "the content root of the newest version: equal across layouts and restores (reads the whole "
      "state)",
      1, 1, ASKS "quiet",
      ASK(JOB_DIGEST_GET, job_digest_get, "name=@0", JOB_DIGEST, .timeout_ms = LONG_MS,
          .awaits = true, .quiet = "{root}",
          .page = "{root}  {@0} generation {generation} step {step}",
          .fields = "job=@0 generation step content_root=root") },
    { "job", "amend",
      "JOB [--workers MIN:MAX] [--lr X [--group NAME]] "
      /* The next lines are made by tests/tree/spec_fields.py. */
      "[--clip-norm X] [--snapshot-every N|TIME] [--snapshot-keep N] [--snapshot-keep-every N] "
      "[--snapshot-keep-within TIME] [--snapshot-max-bytes N] [--snapshot-staging state|small] "
      "[--snapshot-durable-within TIME] [--snapshot-fallback yes|no] [--snapshot-scrub-every "
      "TIME] [--on-shard-loss wait|restore-latest [--shard-loss-wait SECONDS]] [--on-worker-loss "
      "redo|wait|fail [--worker-loss-wait SECONDS]] [--audit-every N] [--keep-versions K] "
      /* From here on by hand. */
      "[--set KEY=VALUE]...",
      "change a job while it trains, from the next round on; scripts with the old spec go on", 1, 1,
      ASKS "quiet", &ctl_job_amend },
    { "job", "durability", "JOB default|process|peer|log|log+peer",
      "what the job loses no step by, from the next round on: a shard's process ends, its host is "
      "lost, or all hosts; refused if it cannot be had",
      2, 2, ASKS "quiet", &ctl_job_durability },
    { "job", "rollback", "JOB [--to-version VERSION [--yes]]",
      "go back, in a new generation, to a version that shards have kept (--keep-versions), or make "
      "again from the job's log",
      1, 1, ASKS "quiet no-headers", &ctl_job_rollback },
    { "job", "park", "JOB",
      "take its state off GPUs to host memory: no round opens until it is taken back", 1, 1,
      ASKS "quiet",
      ASK(JOB_PARK, job_park, "name=@0 parked=1", JOB_PARKED, .timeout_ms = LONG_MS,
          .page = PARKED_PAGE) },
    { "job", "unpark", "JOB", "take a parked job's state back to where it lay", 1, 1, ASKS "quiet",
      ASK(JOB_PARK, job_park, "name=@0", JOB_PARKED, .timeout_ms = LONG_MS, .page = PARKED_PAGE) },
    { "job", "create", "[NAME] --from JOB/ID|FOLDER [--set KEY=VALUE]... [--dry-run] [--yes]",
      "a job out of a snapshot, over the shards there are, with other terms where --set says so; "
      "asks before it replaces one",
      0, 1, ASKS "quiet no-headers as allow-unsigned allow-untrusted fallback", &ctl_job_create },
    { "job", "share", "JOB OWNERS [--read-only]",
      "let other owners train a job, or only read it: team-b,uid:1000; \"\" for nobody", 2, 2,
      ASKS "quiet",
      ASK(JOB_SHARE, job_share, "name=@0 owners=@1 read=@read-only", JOB_SHARED,
          .page = SHARED_PAGE) },
    { "job", "chown", "JOB OWNER", "give a job to another owner", 2, 2, ASKS "quiet",
      ASK(JOB_SHARE, job_share, "name=@0 owners=@1 owner=1", JOB_SHARED, .page = SHARED_PAGE) },
    { "job", "drop", "JOB [--yes] [--force]",
      "free a job's memory on all shards, for good; its snapshots stay", 1, 1, ASKS "quiet",
      ASK(JOB_REMOVE, job_remove, "name=@0 force=@force", JOB_REMOVED, .timeout_ms = LONG_MS,
          .confirm = "The state of the job on its shards",
          .page = "dropped|{name}\n"
                  "was at|" CTL_VERSION "\n"
                  "shards|{shards} have given its memory back\n"
                  "*away away|{.}, which drops its part when it is back\n"
                  "note|{note?}") },

    /* ---- snapshots ---- */
    { "snapshot", "create", "JOB [--wait]", "take a snapshot while training goes on", 1, 1,
      ASKS "quiet", &ctl_snapshot_create },
    { "snapshot", "cancel", "JOB [ID]",
      "give up the snapshot or digest that is being taken; what was written of it is removed", 1, 2,
      ASKS "quiet",
      ASK(SNAPSHOT_CANCEL, snapshot_cancel, "job=@0 id=@1", SNAPSHOT_CANCELED, .awaits = true,
          .page = "given up|{what} {id}[{?id} ]of job {job}") },
    { "snapshot", "list", "[JOB]", "committed snapshots, the newest first", 0, 1, LISTS,
      &ctl_snapshot_list },
    { "snapshot", "show", "JOB ID | --path FOLDER [--stats]",
      "one snapshot and its tensors; with --stats what is in them", 0, 2, LISTS_ONCE,
      &ctl_snapshot_show },
    { "snapshot", "copy", "JOB ID | --path FOLDER --to ROOT",
      "copy a snapshot, with its signature, beneath another root of snapshots", 0, 2, ASKS "quiet",
      &ctl_snapshot_copy },
    { "snapshot", "diff", "JOB ID ID | --path FOLDER --path FOLDER",
      "which tensors of two snapshots differ, and by how much; exits 0: none, 1: some", 0, 3,
      LISTS_ONCE, &ctl_snapshot_diff },
    { "snapshot", "export",
      "JOB ID | --path FOLDER --to DIR [--format hf|dcp|torch] [--dtype f32|bf16] [--ema] "
      "[--max-file 5GB]",
      "write its weights as transformers and safetensors read them, or all of it as PyTorch does",
      0, 2, ASKS "quiet", &ctl_snapshot_export },
    { "snapshot", "verify",
      "JOB ID | --path FOLDER [--quick | --read-data-subset P%] [--key FILE|KEY]",
      "read a snapshot past the page cache, and compare it with its checksums and its signature", 0,
      2, ASKS "quiet", &ctl_snapshot_verify },
    { "snapshot", "restore",
      "JOB ID|latest | --path FOLDER [--job NAME] [--yes] [--fallback] [--allow-unsigned] "
      "[--allow-untrusted]",
      "load a snapshot into a new generation, over the shards there are; asks before it replaces a "
      "job",
      0, 2, ASKS "quiet", &ctl_snapshot_restore },
    { "snapshot", "rm", "JOB ID [--yes] [--force]", "remove a snapshot, for good", 2, 2,
      ASKS "quiet",
      ASK(SNAPSHOT_REMOVE, snapshot_remove, "job=@0 id=@1 force=@force", SNAPSHOT_REMOVED,
          .timeout_ms = SNAPSHOTS_MS, .confirm = "The snapshot's files",
          .page = "removed|{id} of job {job}\n"
                  "size|{bytes/bytes} in {files} files") },
    { "snapshot", "tag", "JOB ID NAME [--delete]",
      "name a snapshot: it stays until the tag is off; a tag of another snapshot moves here", 3, 3,
      ASKS "quiet",
      ASK(SNAPSHOT_TAG, snapshot_tag, "job=@0 id=@1 name=@2 remove=@delete", SNAPSHOT_TAGGED,
          .page = "[{?@delete}tag off][{!@delete}tagged]|{id} of job {job}: {name}",
          .fields = "job id tag=name deleted=@delete") },
    { "snapshot", "prune",
      "JOB [--dry-run] [--keep-last N] [--keep-every N] [--keep-within TIME] [--max-bytes N]",
      "remove periodic snapshots that no rule keeps (the job's, or those given), and what a crash "
      "left; says of each why",
      1, 1, ASKS "no-headers quiet",
      ASK(SNAPSHOT_PRUNE, snapshot_prune,
          "job=@0 plan=@dry-run has_rules=@keep-last,keep-every,keep-within,max-bytes "
          "keep_last=@keep-last "
          "keep_every=@keep-every keep_within_s=@keep-within max_bytes=@max-bytes",
          SNAPSHOT_PRUNED, .timeout_ms = SNAPSHOTS_MS, .page = "#fates",
          .quiet = "*fates {?goes}{id}", .fields = "job=@0 dry_run=@dry-run snapshots=fates") },
    { "snapshot", "advise", "JOB [--mtbf TIME]",
      "how often to take snapshots, from what they cost and how often something fails (Young's "
      "rule)",
      1, 1, ASKS,
      ASK(SNAPSHOT_ADVISE, snapshot_advise, "job=@0 mtbf_s=@mtbf", SNAPSHOT_ADVICE,
          .page = "job|{job}\n"
                  "cost|{cost_us/us%.3f} s of training a snapshot, which takes {write_us/us%.3f} s "
                  "(median of {measured?})\n"
                  "cost|{!measured}not measured yet\n"
                  "step|{step_us/us%.6f?} s\n"
                  "faults|{shard_faults} of shards, {worker_faults} of workers, in {observed_s} s\n"
                  "between faults|{mtbf_s?} s ([{?mtbf_given}given][{!mtbf_given}seen])\n"
                  "advice|{!interval_s}none: {note}\n"
                  "advice|every {interval_s?} s[, that is {interval_steps} steps]\n"
                  "note|{?interval_s}{?note}{note}\n"
                  "set it by|{amend?}") },
    { .noun = NULL },
};

int main(int argc, char **argv)
{
    static const struct ctl_row *const tables[] = { commands, ctl_bench_rows, NULL };
    return ctl_main(argc, argv, &(const struct ctl_program) { CAIRN_BUILD, tables, NULL, NULL });
}

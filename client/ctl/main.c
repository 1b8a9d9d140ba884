/* cairn: the admin CLI. A table of subcommands, and the command line. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

struct subcommand {
    const char *noun, *verb, *arguments, *help;
    int min_args, max_args;
    int (*run)(struct ctl *ctl);
};

static const struct subcommand subcommands[] = {
    { "cluster", "status", "", "the coordinator, its shards and workers", 0, 0,
      cairn_ctl_cluster_status },
    { "job", "list", "", "jobs, their versions and for whom they wait", 0, 0, cairn_ctl_job_list },
    { "job", "show", "JOB", "one job in full", 1, 1, cairn_ctl_job_show },
    { "job", "digest", "JOB",
      "the content root of the newest version: equal across layouts and restores (reads the whole "
      "state)",
      1, 1, cairn_ctl_job_digest },
    { "snapshot", "create", "JOB [--wait]", "take a snapshot while training goes on", 1, 1,
      cairn_ctl_snapshot_create },
    { "snapshot", "list", "[JOB]", "committed snapshots", 0, 1, cairn_ctl_snapshot_list },
    { "snapshot", "show", "JOB ID", "one snapshot", 2, 2, cairn_ctl_snapshot_show },
    { "snapshot", "restore", "JOB ID | --path FOLDER [--job NAME]",
      "load a snapshot into a new generation, over the shards there are", 0, 2,
      cairn_ctl_snapshot_restore },
};
#define SUBCOMMAND_COUNT (sizeof subcommands / sizeof subcommands[0])

static void usage(FILE *out)
{
    fprintf(out, "usage: cairn [OPTIONS] NOUN VERB [ARGUMENTS]\n\n");
    for (size_t i = 0; i < SUBCOMMAND_COUNT; i++)
        fprintf(out, "  %s %s %s\n        %s\n", subcommands[i].noun, subcommands[i].verb,
                subcommands[i].arguments, subcommands[i].help);
    fprintf(
        out,
        "\noptions:\n"
        "  --endpoint HOST:PORT  the coordinator (else CAIRN_ENDPOINT, else 127.0.0.1:7077)\n"
        "  --timeout SECONDS     how long to wait for an answer (30; snapshots and digests 600)\n"
        "  -o table|json         how to print (table)\n"
        "  --no-headers          a table without its first line\n"
        "  -q, --quiet           print only what was asked for: an id, a root\n"
        "  --wait                snapshot create: return when it is committed\n"
        "  --help, --version\n"
        "\nexit status: 0 done, 1 failed, 2 usage, 4 not found, 5 damaged data, 10 unreachable,\n"
        "  11 busy, 12 not allowed, 13 another protocol, 124 timeout, 130 interrupted\n");
}

enum {
    OPT_ENDPOINT = 256,
    OPT_TIMEOUT,
    OPT_NO_HEADERS,
    OPT_WAIT,
    OPT_JOB,
    OPT_PATH,
    OPT_HELP,
    OPT_VERSION
};

static bool parse_timeout(struct ctl *ctl, const char *text)
{
    char *end;
    errno = 0;
    const double seconds = strtod(text, &end);
    if (errno != 0 || end == text || *end != 0 || !(seconds > 0) || seconds > 1e6) return false;
    ctl->timeout_ms = (int)(seconds * 1000);
    return true;
}

static bool parse_output(struct ctl *ctl, const char *text)
{
    ctl->json = strcmp(text, "json") == 0;
    return ctl->json || strcmp(text, "table") == 0;
}

/* -1: go on; else the exit status. */
static int parse(int argc, char **argv, struct ctl *ctl)
{
    static const struct option known[] = {
        { "endpoint", 1, 0, OPT_ENDPOINT },
        { "timeout", 1, 0, OPT_TIMEOUT },
        { "no-headers", 0, 0, OPT_NO_HEADERS },
        { "quiet", 0, 0, 'q' },
        { "wait", 0, 0, OPT_WAIT },
        { "job", 1, 0, OPT_JOB },
        { "path", 1, 0, OPT_PATH },
        { "help", 0, 0, OPT_HELP },
        { "version", 0, 0, OPT_VERSION },
        { "output", 1, 0, 'o' },
        { 0, 0, 0, 0 },
    };
    for (int c; (c = getopt_long(argc, argv, "o:q", known, NULL)) != -1;) {
        switch (c) {
        case OPT_ENDPOINT: ctl->endpoint = optarg; break;
        case OPT_TIMEOUT:
            if (!parse_timeout(ctl, optarg))
                return cairn_ctl_fail(CAIRN_ERR_INVALID, "--timeout %s: give seconds, more than 0",
                                      optarg);
            break;
        case 'o':
            if (!parse_output(ctl, optarg))
                return cairn_ctl_fail(CAIRN_ERR_INVALID, "-o %s: table and json are allowed",
                                      optarg);
            break;
        case OPT_NO_HEADERS: ctl->no_headers = true; break;
        case 'q': ctl->quiet = true; break;
        case OPT_WAIT: ctl->wait = true; break;
        case OPT_JOB: ctl->job = optarg; break;
        case OPT_PATH: ctl->path = optarg; break;
        case OPT_HELP: usage(stdout); return 0;
        case OPT_VERSION: printf("cairn %s\n", CAIRN_VERSION); return 0;
        default: usage(stderr); return 2;
        }
    }
    return -1;
}

static const struct subcommand *find(const char *noun, const char *verb)
{
    for (size_t i = 0; i < SUBCOMMAND_COUNT; i++)
        if (strcmp(subcommands[i].noun, noun) == 0 && strcmp(subcommands[i].verb, verb) == 0)
            return &subcommands[i];
    return NULL;
}

int main(int argc, char **argv)
{
    struct ctl ctl = { .fd = -1 };
    const char *endpoint = getenv("CAIRN_ENDPOINT");
    ctl.endpoint = endpoint != NULL && endpoint[0] != 0 ? endpoint : "127.0.0.1:7077";
    const int done = parse(argc, argv, &ctl);
    if (done >= 0) return done;
    if (argc - optind < 2) {
        usage(stderr);
        return 2;
    }
    const struct subcommand *subcommand = find(argv[optind], argv[optind + 1]);
    if (subcommand == NULL)
        return cairn_ctl_fail(CAIRN_ERR_INVALID,
                              "there is no subcommand \"%s %s\"; see cairn --help", argv[optind],
                              argv[optind + 1]);
    ctl.argc = argc - optind - 2;
    ctl.argv = argv + optind + 2;
    if (ctl.argc < subcommand->min_args || ctl.argc > subcommand->max_args)
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "usage: cairn %s %s %s", subcommand->noun,
                              subcommand->verb, subcommand->arguments);
    return subcommand->run(&ctl);
}

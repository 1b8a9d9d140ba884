/* The options of the command line: one table, from which they are read, judged and explained. */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

enum {
    OPT_ENDPOINT = 256,
    OPT_TIMEOUT,
    OPT_NO_HEADERS,
    OPT_WAIT,
    OPT_JOB,
    OPT_PATH,
    OPT_SHARDS,
    OPT_ENDPOINT_FILE,
    OPT_KEEP,
    OPT_IMPORT,
    OPT_HELP,
    OPT_VERSION
};

static const struct {
    struct option option;
    unsigned kind; /* CTL_TAKES_*; 0: of every subcommand */
    const char *shown, *help;
} table[] = {
    { { "endpoint", 1, 0, OPT_ENDPOINT },
      CTL_TAKES_ENDPOINT,
      "--endpoint HOST:PORT",
      "the coordinator (else CAIRN_ENDPOINT, else 127.0.0.1:7077)" },
    { { "timeout", 1, 0, OPT_TIMEOUT },
      CTL_TAKES_TIMEOUT,
      "--timeout SECONDS",
      "how long to wait for an answer (30; snapshots and digests 600)" },
    { { "output", 1, 0, 'o' }, CTL_TAKES_OUTPUT, "-o table|json", "how to print (table)" },
    { { "no-headers", 0, 0, OPT_NO_HEADERS },
      CTL_TAKES_NO_HEADERS,
      "--no-headers",
      "a table without its first line" },
    { { "quiet", 0, 0, 'q' },
      CTL_TAKES_QUIET,
      "-q, --quiet",
      "only what was asked for: names, an id, a root; local: no word that is not an error" },
    { { "wait", 0, 0, OPT_WAIT }, CTL_TAKES_WAIT, "--wait", "return when it is committed" },
    { { "path", 1, 0, OPT_PATH }, CTL_TAKES_RESTORE, "--path FOLDER", "the folder of a snapshot" },
    { { "job", 1, 0, OPT_JOB }, CTL_TAKES_RESTORE, "--job NAME", "its job (else the snapshot's)" },
    { { "shards", 1, 0, OPT_SHARDS }, CTL_TAKES_LOCAL, "--shards N", "how many shards (1)" },
    { { "endpoint-file", 1, 0, OPT_ENDPOINT_FILE },
      CTL_TAKES_LOCAL,
      "--endpoint-file FILE",
      "holds the endpoint while the cluster is up" },
    { { "keep", 1, 0, OPT_KEEP },
      CTL_TAKES_LOCAL,
      "--keep FOLDER",
      "use this folder and leave it there (else a temporary one)" },
    { { "import", 1, 0, OPT_IMPORT },
      CTL_TAKES_LOCAL,
      "--import FOLDER",
      "weights may be read from it (else from the working folder)" },
    { { "help", 0, 0, OPT_HELP }, 0, "--help, --version", "this; which version it is" },
    { { "version", 0, 0, OPT_VERSION }, 0, NULL, NULL },
};
enum { OPTIONS = sizeof table / sizeof *table };

int cairn_ctl_usage_fail(const struct ctl *ctl, const char *fmt, ...)
{
    struct cairn_sentence text;
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(text.text, sizeof text.text, fmt, arguments);
    va_end(arguments);
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "%s; see cairn %s%s--help", text.text, ctl->words,
                          ctl->words[0] != 0 ? " " : "");
}

void cairn_ctl_options_print(FILE *out, unsigned takes)
{
    fprintf(out, "\noptions:\n");
    for (size_t i = 0; i < OPTIONS; i++)
        if (table[i].shown != NULL && (table[i].kind == 0 || (takes & table[i].kind) != 0))
            fprintf(out, "  %-21s %s\n", table[i].shown, table[i].help);
}

/* ---- values ---- */

static int parse_timeout(struct ctl *ctl, const char *text)
{
    char *end;
    errno = 0;
    const double seconds = strtod(text, &end);
    if (errno != 0 || end == text || *end != 0 || !(seconds > 0) || seconds > 1e6)
        return cairn_ctl_fail(CAIRN_ERR_INVALID,
                              "--timeout %s: seconds, more than 0 and at most 1000000, are allowed",
                              text);
    ctl->timeout_ms = (int)(seconds * 1000);
    if (ctl->timeout_ms == 0) ctl->timeout_ms = 1;
    return -1;
}

static int parse_output(struct ctl *ctl, const char *text)
{
    ctl->json = strcmp(text, "json") == 0;
    if (ctl->json || strcmp(text, "table") == 0) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "-o %s: table and json are allowed", text);
}

static int parse_shards(struct ctl *ctl, const char *text)
{
    char *end;
    const long shards = strtol(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0 || shards < 1 || shards > CTL_SHARDS_MAX)
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--shards %s: 1 to %d is allowed", text,
                              CTL_SHARDS_MAX);
    ctl->shards = (int)shards;
    return -1;
}

static int take(struct ctl *ctl, int option)
{
    switch (option) {
    case OPT_ENDPOINT: ctl->endpoint = optarg; return -1;
    case OPT_TIMEOUT: return parse_timeout(ctl, optarg);
    case 'o': return parse_output(ctl, optarg);
    case OPT_NO_HEADERS: ctl->no_headers = true; return -1;
    case 'q': ctl->quiet = true; return -1;
    case OPT_WAIT: ctl->wait = true; return -1;
    case OPT_JOB: ctl->job = optarg; return -1;
    case OPT_PATH: ctl->path = optarg; return -1;
    case OPT_SHARDS: return parse_shards(ctl, optarg);
    case OPT_ENDPOINT_FILE: ctl->endpoint_file = optarg; return -1;
    case OPT_KEEP: ctl->keep = optarg; return -1;
    case OPT_IMPORT: ctl->import = optarg; return -1;
    case OPT_HELP: ctl->help = true; return -1;
    default: printf("cairn %s\n", CAIRN_VERSION); return 0;
    }
}

/* ---- the line ---- */

/* What getopt does not know; `text` is the argument it stands in. */
static int refuse(const struct ctl *ctl, int answer, const char *text)
{
    const bool is_short = optopt > 0 && optopt < 256 && optopt != 'q'; // it is --quiet=3, not -q
    if (answer == ':') return cairn_ctl_usage_fail(ctl, "%s needs a value", text);
    if (is_short) return cairn_ctl_usage_fail(ctl, "there is no option -%c", optopt);
    if (optopt != 0) return cairn_ctl_usage_fail(ctl, "%s: it takes no value", text);
    return cairn_ctl_usage_fail(ctl, "there is no option %s", text);
}

static void note(struct ctl *ctl, int option)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        if (table[i].option.val != option || table[i].kind == 0) continue;
        ctl->given |= table[i].kind;
        for (unsigned bit = 0; bit < sizeof ctl->last / sizeof *ctl->last; bit++)
            if ((table[i].kind >> bit & 1) != 0) ctl->last[bit] = table[i].option.name;
    }
}

int cairn_ctl_options_read(struct ctl *ctl, bool all)
{
    struct option known[OPTIONS + 1] = { 0 };
    for (size_t i = 0; i < OPTIONS; i++) known[i] = table[i].option;
    opterr = 0;
    optind = 0; // glibc's getopt starts over
    // It takes argv[0] for a program's name: the word before.
    for (int c;
         (c = getopt_long(ctl->argc, ctl->argv, all ? ":o:q" : "+:o:q", known, NULL)) != -1;) {
        if (c == '?' || c == ':') return refuse(ctl, c, ctl->argv[optind - 1]);
        note(ctl, c);
        const int done = take(ctl, c);
        if (done >= 0) return done;
    }
    ctl->argc -= optind;
    ctl->argv += optind;
    return -1;
}

int cairn_ctl_options_judge(const struct ctl *ctl, unsigned takes)
{
    const unsigned foreign = ctl->given & ~takes;
    for (unsigned bit = 0; bit < sizeof ctl->last / sizeof *ctl->last; bit++)
        if ((foreign >> bit & 1) != 0)
            return cairn_ctl_usage_fail(ctl, "cairn %s does not take --%s", ctl->words,
                                        ctl->last[bit]);
    return -1;
}

/* The options of `cairn snapshot`. */
#include <stdlib.h>
#include <string.h>

#include "client/ctl/options/options.h"

static int parse_format(const char *text, const char **out)
{
    *out = text;
    if (strcmp(text, "hf") == 0 || strcmp(text, "dcp") == 0 || strcmp(text, "torch") == 0)
        return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--format %s: hf, dcp and torch are allowed", text);
}

static int parse_word(const char *name, const char *text, const char *one, const char *other,
                      const char **out)
{
    *out = text;
    if (strcmp(text, one) == 0 || strcmp(text, other) == 0) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--%s %s: %s and %s are allowed", name, text, one,
                          other);
}

/* As the Hub's tools write it: 5GB, 500MB; a B at the end may be left out. */
static int parse_max_file(struct ctl *ctl, char *text)
{
    const size_t length = strlen(text);
    if (length > 1 && text[length - 1] == 'B') text[length - 1] = '\0';
    return cairn_ctl_parse_count("max-file", text, UINT64_C(1) << 60, &ctl->export.file_bytes_max);
}

int cairn_ctl_take_snapshot(struct ctl *ctl, int option)
{
    switch (option) {
    case OPT_FORMAT: return parse_format(optarg, &ctl->export.format);
    case OPT_DTYPE: return parse_word("dtype", optarg, "f32", "bf16", &ctl->export.dtype);
    case OPT_MAX_FILE: return parse_max_file(ctl, optarg);
    case OPT_ALLOW_UNSIGNED: ctl->allow_unsigned = true; return -1;
    case OPT_ALLOW_UNTRUSTED: ctl->allow_untrusted = true; return -1;
    case OPT_FALLBACK: ctl->fallback = true; return -1;
    case OPT_QUICK: ctl->quick = true; return -1;
    case OPT_READ_DATA_SUBSET:
        return cairn_ctl_parse_percent("read-data-subset", optarg, 100, &ctl->subset);
    case OPT_KEY: ctl->key = optarg; return -1;
    case OPT_STATS: ctl->export.stats = true; return -1;
    default: abort(); // getopt gives what is in the table
    }
}

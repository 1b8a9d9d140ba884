/* Values of the options that say over which shards a job is spread, and what it is otherwise. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/options/options.h"

int cairn_ctl_parse_name(struct ctl_names *names, const char *option, const char *text)
{
    if (text[0] == '\0')
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--%s needs the name of a shard", option);
    if (names->count == CTL_NAMES_MAX)
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--%s may be given %d times", option,
                              CTL_NAMES_MAX);
    names->names[names->count++] = text;
    return -1;
}

int cairn_ctl_parse_weight(struct ctl_names *names, char *text)
{
    char *equals = strrchr(text, '=');
    char *end = NULL;
    errno = 0;
    const double weight = equals != NULL ? strtod(equals + 1, &end) : 0;
    const bool is_number = end != NULL && end != equals + 1 && *end == '\0' && errno == 0;
    if (!is_number || equals == text)
        return cairn_ctl_fail(CAIRN_ERR_INVALID,
                              "--weight %s: NAME=W, a shard and a number, is allowed", text);
    if (!isfinite(weight) || weight <= 0)
        return cairn_ctl_fail(
            CAIRN_ERR_INVALID,
            "--weight %s: a number above 0 is allowed; --drain takes all off a shard", text);
    *equals = '\0';
    const size_t at = names->count;
    const int done = cairn_ctl_parse_name(names, "weight", text);
    if (done < 0) names->weights[at] = weight;
    return done;
}

int cairn_ctl_parse_setting(struct ctl_settings *settings, char *text)
{
    char *equals = strchr(text, '=');
    if (equals == NULL || equals == text)
        return cairn_ctl_fail(CAIRN_ERR_INVALID,
                              "--set %s: KEY=VALUE is allowed, as stage=3 or default.lr=1e-4",
                              text);
    if (settings->count == CTL_NAMES_MAX)
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--set may be given %d times", CTL_NAMES_MAX);
    Cairn__Setting *setting = &settings->room[settings->count];
    *equals = '\0';
    cairn__setting__init(setting);
    setting->key = text;
    setting->value = equals + 1;
    settings->list[settings->count++] = setting;
    return -1;
}

int cairn_ctl_parse_percent(const char *name, const char *text, double most, double *out)
{
    char *end;
    errno = 0;
    const double percent = strtod(text, &end);
    if (errno != 0 || end == text || strcmp(end, "%") != 0 || !(percent > 0) || percent > most)
        return cairn_ctl_fail(CAIRN_ERR_INVALID,
                              "--%s %s: a percentage above 0 and up to %.0f, as 10%%, is allowed",
                              name, text, most);
    *out = percent / 100;
    return -1;
}

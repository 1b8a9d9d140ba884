/* Values of options: times, counts, numbers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/options/options.h"

int cairn_ctl_parse_seconds(const char *name, const char *text, double *out)
{
    char *end;
    errno = 0;
    const double seconds = strtod(text, &end);
    if (errno != 0 || end == text || *end != 0 || !(seconds > 0) || seconds > 1e6)
        return cairn_ctl_fail(CAIRN_ERR_INVALID,
                              "--%s %s: seconds, more than 0 and at most 1000000, are allowed",
                              name, text);
    *out = seconds;
    return -1;
}

int cairn_ctl_parse_milliseconds(const char *name, const char *text, double *out)
{
    char *end;
    errno = 0;
    const double ms = strtod(text, &end);
    if (errno != 0 || end == text || *end != 0 || !(ms >= 0) || ms > 1e6)
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--%s %s: milliseconds, 0 to 1000000, are allowed",
                              name, text);
    *out = ms;
    return -1;
}

/* 1 to max, with K, M, G or T for thousands of it. */
int cairn_ctl_parse_count(const char *name, const char *text, uint64_t max, uint64_t *out)
{
    static const char suffixes[] = "KMGT";
    char *end;
    errno = 0;
    uint64_t count = strtoull(text, &end, 10);
    bool ok = text[0] >= '0' && text[0] <= '9' && errno == 0 && count >= 1 && count <= max;
    const char *suffix = ok && *end != 0 ? strchr(suffixes, *end) : NULL;
    for (const char *s = suffixes; suffix != NULL && s <= suffix && ok; s++) {
        ok = count <= max / 1000;
        count *= 1000;
    }
    if (!ok || end[suffix != NULL] != 0)
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--%s %s: 1 to %llu is allowed", name, text,
                              (unsigned long long)max);
    *out = count;
    return -1;
}

int cairn_ctl_parse_number(const char *name, const char *text, uint32_t max, uint32_t *out)
{
    uint64_t count = 0;
    const int done = cairn_ctl_parse_count(name, text, max, &count);
    *out = (uint32_t)count;
    return done;
}

/* The same, or 0. */
int cairn_ctl_parse_count_or_none(const char *name, const char *text, uint64_t max, uint64_t *out)
{
    *out = 0;
    return strcmp(text, "0") == 0 ? -1 : cairn_ctl_parse_count(name, text, max, out);
}

int cairn_ctl_parse_real(const char *name, const char *text, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    if (errno == 0 && end != text && *end == 0 && *out >= 0 && *out <= 1e30) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--%s %s: a number of at least 0 is allowed", name,
                          text);
}

int cairn_ctl_parse_duration(const char *name, const char *text, uint32_t max_s, uint32_t *out)
{
    static const struct {
        const char *name;
        uint32_t seconds;
    } units[] = {
        { "", 1 }, { "s", 1 }, { "m", 60 }, { "min", 60 }, { "h", 3600 }, { "d", 86400 }
    };
    char *end;
    errno = 0;
    const uint64_t count = strtoull(text, &end, 10);
    const bool ok = text[0] >= '0' && text[0] <= '9' && errno == 0;
    const char *unit = end + strspn(end, " ");
    for (size_t i = 0; ok && i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(unit, units[i].name) != 0 || count > max_s / units[i].seconds) continue;
        *out = (uint32_t)count * units[i].seconds;
        return -1;
    }
    return cairn_ctl_fail(
        CAIRN_ERR_INVALID,
        "--%s %s: a time like 90s, 10min, 36h or 7d is allowed, at most %us, or 0", name, text,
        max_s);
}

/* A time of the past, as people write it: --since. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"

/* "2h", "1.5d", "90s" before now. */
static bool parse_ago(const char *text, uint64_t now_ms, uint64_t *unix_ms_out)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = { { "ms", 1 }, { "s", 1e3 }, { "m", 60e3 }, { "h", 3600e3 }, { "d", 86400e3 } };
    char *end;
    if (!isdigit((unsigned char)*text)) return false;
    const double number = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit) != 0) continue;
        const double ago_ms = number * units[i].ms;
        *unix_ms_out = ago_ms < (double)now_ms ? now_ms - (uint64_t)ago_ms : 0;
        return true;
    }
    return false;
}

/* Behind the seconds: ".250", then "Z" or "+02:00". */
static bool parse_rest(const char *text, int64_t *ms_out, int64_t *offset_s_out)
{
    int hours, minutes, read = 0;
    char sign;
    double fraction = 0;
    if (*text == '.') {
        char *end;
        fraction = strtod(text, &end);
        text = end;
    }
    *ms_out = (int64_t)(fraction * 1000);
    *offset_s_out = 0;
    if ((*text == 'Z' || *text == 'z') && text[1] == '\0') return true;
    if (sscanf(text, "%c%2d:%2d%n", &sign, &hours, &minutes, &read) != 3 || text[read] != '\0')
        return false;
    if ((sign != '+' && sign != '-') || hours < 0 || hours > 23 || minutes < 0 || minutes > 59)
        return false;
    *offset_s_out = (sign == '+' ? 1 : -1) * (hours * 3600 + minutes * 60);
    return true;
}

/* RFC 3339. */
static bool parse_time(const char *text, uint64_t *unix_ms_out)
{
    struct tm utc = { .tm_sec = 0 };
    int64_t ms, offset_s;
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &utc);
    if (rest == NULL || !parse_rest(rest, &ms, &offset_s)) return false;
    const int64_t seconds = (int64_t)timegm(&utc) - offset_s;
    if (seconds < 0) return false;
    *unix_ms_out = (uint64_t)(seconds * 1000 + ms);
    return true;
}

bool cairn_ctl_since(const char *text, uint64_t now_ms, uint64_t *unix_ms_out)
{
    return parse_ago(text, now_ms, unix_ms_out) || parse_time(text, unix_ms_out);
}

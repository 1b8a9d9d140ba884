#include "server/base/wall.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "server/base/log.h"

int64_t cairn_wall_look(struct cairn_wall *wall, int64_t unix_s, uint64_t steady_s)
{
    const int64_t passed_s = (int64_t)(steady_s - wall->steady_s);
    int64_t jump_s = wall->begun ? unix_s - wall->unix_s - passed_s : 0;
    if (jump_s >= -CAIRN_WALL_SKEW_S && jump_s <= CAIRN_WALL_SKEW_S) jump_s = 0;
    wall->begun = true;
    wall->unix_s = unix_s;
    wall->steady_s = steady_s;
    if (jump_s != 0) cairn_wall_doubt(wall);
    return jump_s;
}

void cairn_wall_doubt(struct cairn_wall *wall)
{
    wall->jumped = true;
    wall->jumped_at_s = wall->steady_s;
}

uint64_t cairn_wall_sound_s(const struct cairn_wall *wall)
{
    return wall->jumped ? wall->steady_s - wall->jumped_at_s : UINT64_MAX;
}

void cairn_wall_jump_text(int64_t jump_s, char out[CAIRN_WALL_JUMP_BYTES])
{
    static const struct {
        uint64_t s;
        const char *name;
    } units[] = {
        { 31557600, "year" }, { 86400, "day" }, { 3600, "hour" }, { 60, "minute" }, { 1, "second" }
    };
    const uint64_t size_s = jump_s < 0 ? -(uint64_t)jump_s : (uint64_t)jump_s;
    size_t u = 0;
    while (units[u].s > 1 && size_s + units[u].s / 100 < units[u].s) u++;
    const uint64_t count = (size_s + units[u].s / 2) / units[u].s;
    snprintf(out, CAIRN_WALL_JUMP_BYTES, "%" PRIu64 " %s%s %s", count, units[u].name,
             count == 1 ? "" : "s", jump_s < 0 ? "back" : "ahead");
}

uint64_t cairn_wall_unix_s(void)
{
    const time_t now = time(NULL);
    return now > 0 ? (uint64_t)now : 0;
}

uint64_t cairn_wall_steady_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec;
}

bool cairn_wall_watch(struct cairn_wall *wall, char out[CAIRN_WALL_JUMP_BYTES])
{
    const int64_t jump_s = cairn_wall_look(wall, (int64_t)time(NULL), cairn_wall_steady_s());
    if (jump_s == 0) return false;
    cairn_wall_jump_text(jump_s, out);
    cairn_log_warn(
        "the clock of this host jumped, %s: times in logs, events and lists of snapshots "
        "are off; no step, lease, interval or restore goes by them",
        out);
    return true;
}

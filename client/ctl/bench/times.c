#include "client/ctl/bench/times.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number behind " key="; 0: it is not there. */
static uint64_t field(const char *line, const char *key)
{
    char wanted[32];
    snprintf(wanted, sizeof wanted, " %s=", key);
    const char *found = strstr(line, wanted);
    return found != NULL ? strtoull(found + strlen(wanted), NULL, 10) : 0;
}

static struct cairn_bench_times times_of(const char *line)
{
    return (struct cairn_bench_times) {
        .round = field(line, "round"),
        .grant = field(line, "grant_us"),
        .receive = field(line, "receive_us"),
        .fold = field(line, "fold_us"),
        .reduce = field(line, "reduce_us"),
        .reduced = field(line, "reduced_us"),
        .update = field(line, "update_us"),
        .published = field(line, "published_us"),
        .launches = field(line, "launches"),
        .in_bytes = field(line, "in_bytes"),
        .out_bytes = field(line, "out_bytes"),
    };
}

bool cairn_bench_times_read(const struct local *local, int number, struct cairn_bench_times **out,
                            size_t *count_out)
{
    char path[PATH_MAX + 32], line[2560];
    snprintf(path, sizeof path, "%s/shard-%d.log", local->folder, number);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    struct cairn_bench_times *list = NULL;
    size_t count = 0, capacity = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (strstr(line, "msg=\"times of a round\"") == NULL) continue;
        if (count == capacity) {
            capacity = capacity == 0 ? 256 : 2 * capacity;
            struct cairn_bench_times *grown = realloc(list, capacity * sizeof *list);
            if (grown == NULL) break;
            list = grown;
        }
        list[count++] = times_of(line);
    }
    fclose(file);
    *out = list;
    *count_out = count;
    return true;
}

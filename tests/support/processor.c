#include "tests/support/processor.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct processor_time processor_time_of_thread(pid_t pid, pid_t thread)
{
    struct processor_time time = { 0 };
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", (int)pid, (int)thread);
    FILE *file = fopen(path, "re");
    if (file == NULL) return time;
    if (fscanf(file, "%" SCNu64 " %" SCNu64, &time.ran_ns, &time.waited_ns) != 2)
        time = (struct processor_time) { 0 };
    fclose(file);
    return time;
}

struct processor_time processor_time(pid_t pid)
{
    struct processor_time sum = { 0 };
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *folder = opendir(path);
    if (folder == NULL) return sum;
    for (const struct dirent *e; (e = readdir(folder)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        const struct processor_time one = processor_time_of_thread(pid, atoi(e->d_name));
        sum.ran_ns += one.ran_ns;
        sum.waited_ns += one.waited_ns;
    }
    closedir(folder);
    return sum;
}

/* A folder in place of /sys, for what asks which node of memory a device is next to
 * (proto/base/machine.h). */
#ifndef CAIRN_TESTS_MADE_UP_SYSFS_H
#define CAIRN_TESTS_MADE_UP_SYSFS_H

#include <check.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "proto/base/machine.h"
#include "tests/support/scratch.h"

struct made_up_sysfs {
    char folder[CAIRN_SCRATCH_BYTES];
    const char *before;
};

static inline void made_up_sysfs_open(struct made_up_sysfs *made)
{
    cairn_scratch_make(made->folder);
    made->before = numa_sysfs;
    numa_sysfs = made->folder;
}

static inline void made_up_sysfs_close(const struct made_up_sysfs *made)
{
    numa_sysfs = made->before;
    cairn_scratch_remove(made->folder);
}

/* path: "a/b/file"; makes its folders. */
static inline void made_up_sysfs_write(const struct made_up_sysfs *made, const char *path,
                                       const char *text)
{
    char whole[PATH_MAX];
    for (const char *c = path; *c != '\0'; c++) {
        if (*c != '/') continue;
        snprintf(whole, sizeof whole, "%s/%.*s", made->folder, (int)(c - path), path);
        (void)mkdir(whole, 0700); // or it is there
    }
    cairn_scratch_file(made->folder, path, text, whole, sizeof whole);
}

static inline void made_up_sysfs_device(const struct made_up_sysfs *made, const char *pci,
                                        const char *node)
{
    char path[128];
    snprintf(path, sizeof path, "bus/pci/devices/%s/numa_node", pci);
    made_up_sysfs_write(made, path, node);
}

/* A node with that processor alone. */
static inline void made_up_sysfs_node(const struct made_up_sysfs *made, int node,
                                      unsigned processor)
{
    char path[128], list[32];
    snprintf(path, sizeof path, "devices/system/node/node%d/cpulist", node);
    snprintf(list, sizeof list, "%u\n", processor);
    made_up_sysfs_write(made, path, list);
}

/* The last processor that this thread may run on. */
static inline unsigned made_up_sysfs_last_processor(void)
{
    cpu_set_t set;
    unsigned last = CPU_SETSIZE - 1;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    while (last > 0 && !CPU_ISSET(last, &set)) last--;
    return last;
}

#endif

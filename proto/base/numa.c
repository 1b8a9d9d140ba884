#include "proto/base/numa.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MAX 1024u
#define WORD_BITS (8 * sizeof(unsigned long))

/* As the kernel takes it: a bit a node. */
struct nodes {
    unsigned long words[NODES_MAX / WORD_BITS];
};

const char *cairn_numa_sysfs = "/sys";

/* ---- what the kernel tells ---- */

/* The file's only line; false: there is none. */
static bool read_line(const char *path, char *line, int bytes)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const bool is_read = fgets(line, bytes, file) != NULL;
    fclose(file);
    return is_read;
}

int cairn_numa_of_pci(const char *pci)
{
    char path[PATH_MAX], line[32], *end;
    const int length = snprintf(path, sizeof path, "%s/bus/pci/devices/", cairn_numa_sysfs);
    const int whole = snprintf(path + length, sizeof path - (size_t)length, "%s/numa_node", pci);
    if (strchr(pci, '/') != NULL || whole >= (int)sizeof path - length) return CAIRN_NUMA_NONE;
    for (char *c = path + length; *c != '\0'; c++) *c = (char)tolower((unsigned char)*c);
    if (!read_line(path, line, sizeof line)) return CAIRN_NUMA_NONE;
    errno = 0;
    const long node = strtol(line, &end, 10);
    const bool is_number = end != line && (*end == '\n' || *end == '\0') && errno == 0;
    return is_number && node >= 0 && node < (long)NODES_MAX ? (int)node : CAIRN_NUMA_NONE;
}

/* Sets the CPUs of a list "0-3,8,12-15"; the first text that is not such a list ends it. */
static void set_listed(const char *list, cpu_set_t *out)
{
    CPU_ZERO(out);
    while (isdigit((unsigned char)*list)) {
        char *end;
        const unsigned long first = strtoul(list, &end, 10);
        const unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        for (unsigned long i = first; i <= last && i < CPU_SETSIZE; i++) CPU_SET(i, out);
        list = *end == ',' ? end + 1 : end;
    }
}

static bool processors_of(int node, cpu_set_t *out)
{
    char path[PATH_MAX], list[4096];
    const int length = snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist",
                                cairn_numa_sysfs, node);
    if (length >= (int)sizeof path || !read_line(path, list, sizeof list)) return false;
    set_listed(list, out);
    return true;
}

/* ---- threads and memory ---- */

static struct nodes only(int node)
{
    struct nodes nodes = { { 0 } };
    nodes.words[(size_t)node / WORD_BITS] = 1ul << ((size_t)node % WORD_BITS);
    return nodes;
}

/* True: nobody chose where this thread's memory lies. */
static bool is_by_default(void)
{
    int mode = MPOL_DEFAULT;
    struct nodes nodes;
    return syscall(SYS_get_mempolicy, &mode, nodes.words, (unsigned long)NODES_MAX, NULL, 0ul) ==
               0 &&
           mode == MPOL_DEFAULT;
}

bool cairn_numa_go(int node, struct cairn_numa_before *before_out)
{
    cpu_set_t there;
    memset(before_out, 0, sizeof *before_out);
    if (node == CAIRN_NUMA_NONE) return true;
    if (!processors_of(node, &there)) return false;
    if (sched_getaffinity(0, sizeof before_out->processors, &before_out->processors) != 0)
        return false;
    CPU_AND(&there, &there, &before_out->processors);
    if (CPU_COUNT(&there) == 0) {
        errno = ENOENT;
        return false;
    }
    if (sched_setaffinity(0, sizeof there, &there) != 0) return false;
    before_out->is_moved = true;
    const struct nodes nodes = only(node);
    before_out->is_preferring = is_by_default() &&
                                syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes.words,
                                        (unsigned long)NODES_MAX) == 0;
    return true;
}

void cairn_numa_return(const struct cairn_numa_before *before)
{
    if (before->is_preferring) (void)syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0ul);
    if (before->is_moved)
        (void)sched_setaffinity(0, sizeof before->processors, &before->processors);
}

void cairn_numa_move(void *memory, size_t bytes, int node)
{
    if (node == CAIRN_NUMA_NONE || !is_by_default()) return;
    const struct nodes nodes = only(node);
    (void)syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes.words, (unsigned long)NODES_MAX,
                  (unsigned)MPOL_MF_MOVE);
}

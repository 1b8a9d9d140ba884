/* Describes the machine that a figure was measured on. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "client/ctl/bench/bench.h"
#include "gpu/gpu.h"

uint32_t cairn_bench_core_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (uint32_t)count : 1;
}

uint64_t cairn_bench_memory_bytes(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %llu kB", &kib) != 1) kib = 0;
    if (file != NULL) fclose(file);
    return (uint64_t)kib << 10;
}

/* "model name : X" of the first core; "unknown" where the kernel says nothing of it. */
static void read_cpu(char *name_out, size_t name_bytes)
{
    char line[256];
    bool is_found = false;
    snprintf(name_out, name_bytes, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file != NULL && !is_found && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        is_found = strncmp(line, "model name", 10) == 0 && colon != NULL;
        if (is_found)
            snprintf(name_out, name_bytes, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    }
    if (file != NULL) fclose(file);
}

/* 0: the system does not say. */
static json_int_t cache(int name)
{
    const long value = sysconf(name);
    return value > 0 ? (json_int_t)value : 0;
}

json_t *cairn_bench_machine(void)
{
    char cpu[128];
    struct utsname name = { .release = "unknown" };
    read_cpu(cpu, sizeof cpu);
    uname(&name);
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGE_SIZE);
    return json_pack("{s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:s, s:s}", "l1d_bytes",
                     cache(_SC_LEVEL1_DCACHE_SIZE), "l1d_ways", cache(_SC_LEVEL1_DCACHE_ASSOC),
                     "l2_bytes", cache(_SC_LEVEL2_CACHE_SIZE), "l3_bytes",
                     cache(_SC_LEVEL3_CACHE_SIZE), "cpu", cpu, "cores",
                     (json_int_t)cairn_bench_core_count(), "memory_bytes",
                     (json_int_t)pages * (json_int_t)page_bytes, "kernel", name.release, "isa",
                     cairn_backend_host()->isa);
}

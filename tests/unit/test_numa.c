/* Nodes of memory (proto/base/machine.h), by a made-up /sys: which node a device is next to, and
 * that a thread
 * goes there and comes back. */
#include <errno.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "proto/base/machine.h"
#include "tests/support/made_up_sysfs.h"
#include "tests/support/suite.h"

static struct made_up_sysfs made;

static void set_up(void)
{
    made_up_sysfs_open(&made);
}

static void tear_down(void)
{
    made_up_sysfs_close(&made);
}

/* ---- which node ---- */

TEST(a_device_is_next_to_the_node_that_the_kernel_says)
{
    made_up_sysfs_device(&made, "0000:3b:00.0", "1\n");
    ck_assert_int_eq(numa_of_pci("0000:3B:00.0"), 1); // as CUDA writes it
    ck_assert_int_eq(numa_of_pci("0000:3b:00.0"), 1);
}

TEST(where_the_kernel_says_none_there_is_none)
{
    static const char *const said[] = { "-1\n", "", "node\n", "1 2\n", "99999999999999999999\n" };
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        made_up_sysfs_device(&made, "0000:3b:00.0", said[i]);
        ck_assert_int_eq(numa_of_pci("0000:3B:00.0"), CAIRN_NUMA_NONE);
    }
    ck_assert_int_eq(numa_of_pci("0000:FF:00.0"), CAIRN_NUMA_NONE);
    ck_assert_int_eq(numa_of_pci(""), CAIRN_NUMA_NONE);
    ck_assert_int_eq(numa_of_pci("../devices/0000:3b:00.0"), CAIRN_NUMA_NONE);
}

/* ---- going there ---- */

static cpu_set_t own_processors(void)
{
    cpu_set_t set;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    return set;
}

static int policy(void)
{
    int mode = -1;
    return syscall(SYS_get_mempolicy, &mode, NULL, 0ul, NULL, 0ul) == 0 ? mode : -1;
}

static void *tell_processors(void *set)
{
    *(cpu_set_t *)set = own_processors();
    return NULL;
}

TEST(a_thread_goes_to_a_node_and_comes_back_and_those_that_it_starts_there_stay)
{
    const cpu_set_t before = own_processors();
    const unsigned last = made_up_sysfs_last_processor();
    const int policy_before = policy();
    struct numa_before back;
    cpu_set_t there;
    pthread_t thread;
    made_up_sysfs_node(&made, 0, last);
    ck_assert(numa_go(0, &back));
    ck_assert_int_eq(pthread_create(&thread, NULL, tell_processors, &there), 0);
    ck_assert(policy() == MPOL_PREFERRED || policy_before != MPOL_DEFAULT);
    numa_return(&back);
    pthread_join(thread, NULL);
    ck_assert_int_eq(CPU_COUNT(&there), 1);
    ck_assert(CPU_ISSET(last, &there));
    const cpu_set_t after = own_processors();
    ck_assert(CPU_EQUAL(&before, &after));
    ck_assert_int_eq(policy(), policy_before);
}

TEST(a_thread_that_may_not_run_there_stays_where_it_was)
{
    const cpu_set_t before = own_processors();
    struct numa_before back;
    made_up_sysfs_node(&made, 0, CPU_SETSIZE - 1);
    ck_assert(!numa_go(0, &back));
    ck_assert_int_eq(errno, ENOENT);
    numa_return(&back);
    ck_assert(!numa_go(7, &back)); // of which the kernel tells nothing
    numa_return(&back);
    ck_assert(numa_go(CAIRN_NUMA_NONE, &back));
    numa_return(&back);
    const cpu_set_t after = own_processors();
    ck_assert(CPU_EQUAL(&before, &after));
    ck_assert_int_ne(policy(), MPOL_PREFERRED);
}

TEST(what_an_operator_chose_stays)
{
    unsigned long nodes = 1;
    struct numa_before back;
    if (syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &nodes, 64ul) != 0) return; // not here
    made_up_sysfs_node(&made, 0, made_up_sysfs_last_processor());
    ck_assert(numa_go(0, &back));
    ck_assert_int_eq(policy(), MPOL_INTERLEAVE);
    numa_return(&back);
    ck_assert_int_eq(policy(), MPOL_INTERLEAVE);
}

TEST(memory_that_is_moved_keeps_its_bytes)
{
    enum { BYTES = 64 << 10 };
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    memset(memory, 'x', BYTES);
    numa_move(memory, BYTES, 0);
    numa_move(memory, BYTES, CAIRN_NUMA_NONE);
    for (int i = 0; i < BYTES; i++)
        if (memory[i] != 'x') ck_abort_msg("byte %d", i);
    munmap(memory, BYTES);
}

SUITE(10, set_up, tear_down);

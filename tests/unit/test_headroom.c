/* What may still be taken, read from trees of files as kernels show them; and the lock of a host. */
#include <inttypes.h>
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/base/daemon.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/suite.h"

#define MIB ((uint64_t)1 << 20)

/* Writes root/PATH with its folders. */
static void put(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s/%s", scratch, path);
    for (char *at = strchr(whole + strlen(scratch) + 1, '/'); at != NULL;
         at = strchr(at + 1, '/')) {
        *at = '\0';
        ck_assert(mkdir(whole, 0700) == 0 || errno == EEXIST);
        *at = '/';
    }
    cairn_scratch_file(scratch, path, text, whole, sizeof whole);
}

static void put_number(const char *path, uint64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64 "\n", number);
    put(path, text);
}

/* A host of 1,000 MiB, 700 of them available, without control groups. */
static void set_up(void)
{
    scratch_make();
    put("proc/meminfo", "MemTotal:        1024000 kB\nMemFree:          100000 kB\n"
                        "MemAvailable:     716800 kB\nBuffers:             300 kB\n");
}

static void put_v2(const char *group, const char *top)
{
    char line[512];
    snprintf(line, sizeof line, "0::%s\n", group);
    put("proc/self/cgroup", line);
    snprintf(line, sizeof line,
             "22 1 0:20 / /proc rw,nosuid - proc proc rw\n"
             "31 23 0:28 %s /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
             top);
    put("proc/self/mountinfo", line);
}

static struct headroom headroom(void)
{
    struct headroom found;
    struct sentence why;
    ck_assert_msg(headroom_read(scratch, &found, &why) == CAIRN_OK, "%s", why.text);
    return found;
}

static void check(uint64_t available_bytes, uint64_t limit_bytes, const char *by)
{
    const struct headroom found = headroom();
    ck_assert_uint_eq(found.available_bytes, available_bytes);
    ck_assert_uint_eq(found.limit_bytes, limit_bytes);
    ck_assert_str_eq(found.by, by);
}

TEST(without_control_groups_the_host_s_memory_counts)
{
    check(700 * MIB, 1000 * MIB, "the host's RAM");
    ck_assert_uint_eq(headroom().most_bytes, 1000 * MIB);
}

TEST(every_group_above_counts_and_cache_that_is_not_in_use_does_not)
{
    put_v2("/system.slice/cairn.service", "/");
    put("sys/fs/cgroup/system.slice/cairn.service/memory.max", "max\n");
    put_number("sys/fs/cgroup/system.slice/cairn.service/memory.current", 90 * MIB);
    put_number("sys/fs/cgroup/system.slice/memory.max", 500 * MIB);
    put_number("sys/fs/cgroup/system.slice/memory.current", 400 * MIB);
    check(100 * MIB, 500 * MIB, "/sys/fs/cgroup/system.slice");
    put("sys/fs/cgroup/system.slice/memory.stat",
        "anon 1\ninactive_file 52428800\nactive_file 1048576\n"); // 50 MiB go when they are wanted
    check(150 * MIB, 500 * MIB, "/sys/fs/cgroup/system.slice");
    put_number("sys/fs/cgroup/system.slice/cairn.service/memory.max", 95 * MIB);
    check(5 * MIB, 95 * MIB, "/sys/fs/cgroup/system.slice/cairn.service");
    ck_assert_uint_eq(headroom().most_bytes, 95 * MIB);
}

TEST(a_group_that_is_past_its_limit_has_nothing)
{
    put_v2("/g", "/");
    put_number("sys/fs/cgroup/g/memory.max", 50 * MIB);
    put_number("sys/fs/cgroup/g/memory.current", 60 * MIB);
    check(0, 50 * MIB, "/sys/fs/cgroup/g");
}

/* Mounted from the container's group on, or seen from a namespace of its own, or from within one that is
 * elsewhere. */
TEST(a_container_s_group_is_found_where_it_is_mounted)
{
    const struct {
        const char *group, *top;
    } seen[] = { { "/docker/abc", "/docker/abc" }, { "/", "/" }, { "/../other", "/" } };
    put_number("sys/fs/cgroup/memory.max", 80 * MIB);
    put_number("sys/fs/cgroup/memory.current", 30 * MIB);
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        put_v2(seen[i].group, seen[i].top);
        check(50 * MIB, 80 * MIB, "/sys/fs/cgroup");
    }
}

TEST(the_older_hierarchy_is_read_where_it_is_the_one)
{
    put("proc/self/cgroup", "9:cpu,cpuacct:/x\n5:hugetlb,memory:/a/b\n0::/\n");
    put("proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
        "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,hugetlb,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
    put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    put_number("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", 300 * MIB);
    put_number("sys/fs/cgroup/memory/a/memory.limit_in_bytes", 400 * MIB);
    put_number("sys/fs/cgroup/memory/a/memory.usage_in_bytes", 300 * MIB);
    put("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 10485760\n");
    check(110 * MIB, 400 * MIB, "/sys/fs/cgroup/memory/a");
}

TEST(a_host_that_does_not_say_is_an_error)
{
    struct headroom found;
    struct sentence why;
    put("proc/meminfo", "MemTotal: 1000 kB\n");
    ck_assert_int_eq(headroom_read(scratch, &found, &why), CAIRN_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why.text, "/meminfo"));
}

TEST(a_refusal_says_what_is_needed_what_there_is_and_who_limits)
{
    const struct headroom found = { .available_bytes = 100 * MIB,
                                    .limit_bytes = 300 * MIB,
                                    .by = "/sys/fs/cgroup/g" };
    struct sentence why;
    ck_assert_int_eq(headroom_judge(&found, 90 * MIB, "it", &why), CAIRN_OK);
    ck_assert_int_eq(headroom_judge(&found, 100 * MIB, "it", &why), CAIRN_ERR_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(why.text, "it needs 104857600 bytes"));
    ck_assert_ptr_nonnull(strstr(why.text, "104857600 are available"));
    ck_assert_ptr_nonnull(strstr(why.text, "available: /sys/fs/cgroup/g has 314572800"));
    ck_assert_int_eq(headroom_judge(&found, UINT64_MAX, "it", &why), CAIRN_ERR_NO_MEMORY);
    const struct headroom none = { .by = "nothing" };
    ck_assert_int_eq(headroom_judge(&none, 0, "it", &why), CAIRN_OK);
}

/* ---- the lock ---- */

TEST(one_at_a_time_has_the_lock_and_the_other_hears_who_does)
{
    atomic_bool canceled = false;
    struct sentence why;
    char holder[64];
    int first, second;
    ck_assert_int_eq(host_lock_take(scratch, 1000, &canceled, &first, &why), CAIRN_OK);
    ck_assert_int_eq(host_lock_take(scratch, 20, &canceled, &second, &why), CAIRN_ERR_BUSY);
    snprintf(holder, sizeof holder, "process %d ", (int)getpid());
    ck_assert_msg(strstr(why.text, holder) != NULL, "%s", why.text);
    canceled = true;
    ck_assert_int_eq(host_lock_take(scratch, 1000, &canceled, &second, &why), CAIRN_ERR_CANCELED);
    canceled = false;
    close(first);
    ck_assert_int_eq(host_lock_take(scratch, 1000, &canceled, &second, &why), CAIRN_OK);
    close(second);
}

TEST(a_lock_that_cannot_be_opened_says_so)
{
    atomic_bool canceled = false;
    struct sentence why;
    int fd;
    ck_assert_int_eq(host_lock_take("/nowhere/at/all", 1000, &canceled, &fd, &why), CAIRN_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why.text, "/nowhere/at/all"));
}

SUITE(30, set_up, scratch_remove);

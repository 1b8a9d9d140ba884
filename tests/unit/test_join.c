/* What a shard keeps of its cluster: its node's key, and what --join wrote. */
#include "server/shard/join.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct curve_key key;
static struct sentence why;

static void key_file(char out[CAIRN_SCRATCH_BYTES + 32])
{
    snprintf(out, CAIRN_SCRATCH_BYTES + 32, "%s/state/s0.key", scratch);
}

static const char *state(void)
{
    static char path[CAIRN_SCRATCH_BYTES + 16];
    snprintf(path, sizeof path, "%s/state", scratch);
    return path;
}

TEST(a_key_is_made_once_and_is_the_same_from_then_on)
{
    struct curve_key again, other;
    struct stat info;
    char path[CAIRN_SCRATCH_BYTES + 32];
    key_file(path);
    ck_assert_int_eq(join_node_key(state(), "s0", &key, &why), CAIRN_OK);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_int_eq(info.st_mode & 07777, 0600);
    ck_assert_int_eq(join_node_key(state(), "s0", &again, &why), CAIRN_OK);
    ck_assert_mem_eq(&key, &again, sizeof key);
    ck_assert_int_eq(join_node_key(state(), "s1", &other, &why), CAIRN_OK);
    ck_assert_mem_ne(key.open, other.open, sizeof key.open);
}

TEST(a_key_that_others_may_read_is_refused)
{
    char path[CAIRN_SCRATCH_BYTES + 32];
    key_file(path);
    ck_assert_int_eq(join_node_key(state(), "s0", &key, &why), CAIRN_OK);
    ck_assert_int_eq(chmod(path, 0640), 0);
    ck_assert_int_eq(join_node_key(state(), "s0", &key, &why), CAIRN_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(why.text, "chmod 600"));
}

/* Somebody put the token where the key belongs. */
TEST(a_token_is_no_key)
{
    char path[CAIRN_SCRATCH_BYTES + 32];
    const struct token token = { .secret = { 7 }, .pin = { 1 } };
    key_file(path);
    ck_assert_int_eq(join_node_key(state(), "s0", &key, &why), CAIRN_OK);
    ck_assert_int_eq(token_write_file(path, &token, &why), CAIRN_OK);
    ck_assert_int_eq(join_node_key(state(), "s0", &key, &why), CAIRN_ERR_MALFORMED);
    ck_assert_ptr_nonnull(strstr(why.text, "cairn key revoke shard:s0"));
}

TEST(a_folder_that_cannot_be_made_is_named)
{
    ck_assert_int_eq(join_node_key("/proc/cairn/state", "s0", &key, &why), CAIRN_ERR_CONFIG);
    ck_assert_msg(strstr(why.text, "/proc/cairn/state") != NULL, "%s", why.text);
    ck_assert_ptr_nonnull(strstr(why.text, "set shard.state"));
}

TEST(the_folder_is_the_configured_one_then_systemds)
{
    char folder[PATH_MAX];
    setenv("STATE_DIRECTORY", "/var/lib/one:/var/lib/two", 1);
    join_state_folder("/srv/state", folder);
    ck_assert_str_eq(folder, "/srv/state");
    join_state_folder("", folder);
    ck_assert_str_eq(folder, "/var/lib/one");
    unsetenv("STATE_DIRECTORY");
    join_state_folder("", folder);
    ck_assert_ptr_nonnull(strstr(folder, "/cairn"));
}

TEST(the_address_is_what_join_wrote)
{
    char text[64];
    ck_assert_int_eq(mkdir(state(), 0755), 0);
    char path[CAIRN_SCRATCH_BYTES + 32];
    cairn_scratch_file(state(), "coordinator", "here:7077\n", path, sizeof path);
    join_address(state(), text, sizeof text);
    ck_assert_str_eq(text, "here:7077");
}

SUITE(20, scratch_make, scratch_remove);

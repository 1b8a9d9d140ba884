#include "server/base/daemon.h"
#include "server/base/listener.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct values {
    char *name;
    char *folder;
    char *friends;
    bool loud;
    int64_t count;
    int64_t memory_bytes;
    int64_t wait_ms;
    int64_t above;
    struct listener_options network;
};

static const struct config_option options[] = {
    { "shard", "name", CAIRN_OPTION_STRING, offsetof(struct values, name), "s0", 0, 0,
      "The name in logs." },
    { "shard", "data", CAIRN_OPTION_PATH, offsetof(struct values, folder), NULL, 0, 0,
      "Where state is kept." },
    { "shard", "friend", CAIRN_OPTION_LINES, offsetof(struct values, friends), "", 0, 0,
      "A friend, a line for each." },
    { "shard", "loud", CAIRN_OPTION_BOOL, offsetof(struct values, loud), "no", 0, 0, "Be loud." },
    { "limits", "count", CAIRN_OPTION_INT, offsetof(struct values, count), "4", -2, 64,
      "How many." },
    { "limits", "memory", CAIRN_OPTION_BYTES, offsetof(struct values, memory_bytes), "64MiB",
      1 << 20, INT64_C(1) << 40, "How much." },
    { "limits", "wait", CAIRN_OPTION_DURATION, offsetof(struct values, wait_ms), "250ms", 1,
      86400000, "How long." },
    { "limits", "above", CAIRN_OPTION_FACTOR, offsetof(struct values, above), "1.1", 1000, 100000,
      "How many times." },
    CAIRN_LISTENER_CONFIG(struct values, network),
};
#define OPTION_COUNT (sizeof options / sizeof options[0])

// 107 bytes, one more than a path may have behind its /.
#define TEN_BYTES "0123456789"
#define LONG_NAME                                                                             \
    TEN_BYTES TEN_BYTES TEN_BYTES TEN_BYTES TEN_BYTES TEN_BYTES TEN_BYTES TEN_BYTES TEN_BYTES \
        TEN_BYTES "0123456"

static char folder[CAIRN_SCRATCH_BYTES];
static struct values values;
static struct config config;
static struct sentence why;

static void set_up(void)
{
    cairn_scratch_make(folder);
    memset(&values, 0, sizeof values);
    config_init(&config, options, OPTION_COUNT, &values);
}

static void tear_down(void)
{
    config_release(&config);
    cairn_scratch_remove(folder);
}

static cairn_status read_text(const char *text)
{
    char path[256];
    cairn_scratch_file(folder, "cairn.conf", text, path, sizeof path);
    return config_read(&config, path, &why);
}

TEST(values_come_from_defaults_then_file_then_command_line)
{
    ck_assert_int_eq(values.count, 4);
    ck_assert_int_eq(values.memory_bytes, 64 << 20);
    ck_assert_int_eq(read_text("# a comment\n"
                               "[shard]\n"
                               "  data = /var/lib/cairn ; the usual place\n"
                               "loud = yes\n"
                               "\n"
                               "[limits]\n"
                               "count = 7\n"
                               "memory = 2 GiB\n"
                               "wait = 2min\n"),
                     CAIRN_OK);
    ck_assert_str_eq(values.folder, "/var/lib/cairn");
    ck_assert(values.loud);
    ck_assert_int_eq(values.count, 7);
    ck_assert_int_eq(values.memory_bytes, INT64_C(2) << 30);
    ck_assert_int_eq(values.wait_ms, 120000);
    ck_assert_int_eq(config_set(&config, "limits.count=9", &why), CAIRN_OK);
    ck_assert_int_eq(config_set(&config, "shard.name=a=b.c", &why), CAIRN_OK);
    ck_assert_int_eq(values.count, 9);
    ck_assert_str_eq(values.name, "a=b.c");
    ck_assert_int_eq(config_finish(&config, &why), CAIRN_OK);
}

TEST(a_key_of_lines_may_be_given_again_and_the_command_line_replaces_the_file)
{
    ck_assert_str_eq(values.friends, "");
    ck_assert_int_eq(read_text("[shard]\nfriend = a b=1\nloud = yes\nfriend = c\n"), CAIRN_OK);
    ck_assert_str_eq(values.friends, "a b=1\nc");
    ck_assert_int_eq(config_set(&config, "shard.friend=d", &why), CAIRN_OK);
    ck_assert_str_eq(values.friends, "d");
    ck_assert_int_eq(config_set(&config, "shard.friend=e", &why), CAIRN_OK);
    ck_assert_str_eq(values.friends, "d\ne");
}

TEST(a_factor_is_read_to_the_thousandth)
{
    static const struct {
        const char *assignment;
        int64_t value;
    } rows[] = { { "limits.above=1", 1000 },
                 { "limits.above=1.1", 1100 },
                 { "limits.above=1.005", 1005 },
                 { "limits.above=100.000", 100000 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        config_release(&config);
        memset(&values, 0, sizeof values);
        config_init(&config, options, OPTION_COUNT, &values);
        ck_assert_int_eq(config_set(&config, rows[i].assignment, &why), CAIRN_OK);
        ck_assert_int_eq(values.above, rows[i].value);
    }
}

struct refusal {
    const char *text;
    const char *says; /* "LINE: ..." after the file's name */
};

static const struct refusal refusals[] = {
    { "[shard]\nnmae = x\n",
      ":2: there is no key \"nmae\" in [shard]; there are: name data friend loud" },
    { "\n[shrad]\nname = x\n", ":3: there is no section [shrad]; there are: [shard] [limits]" },
    { "name = x\n", ":1: \"name\" stands before any section" },
    { "[shard]\nname = x\n\nname = y\n", ":4: name in [shard] was given before, in line 2" },
    { "[shard]\nwhat is this\n", ":2: the line is neither [section] nor key = value" },
    { "[shard\nname = x\n", ":1: the line is neither" },
    { "[limits]\ncount = 65\n",
      ":2: count = \"65\" in [limits]: it is out of range; allowed is -2 to 64" },
    { "[limits]\ncount = -3\n", "out of range" },
    { "[limits]\ncount = 5s\n", "it is not a whole number" },
    { "[limits]\ncount = 0x10\n", "it is not a whole number" },
    { "[limits]\ncount =\n", "it is not a whole number" },
    { "[limits]\ncount = 99999999999999999999\n", "the number is too large" },
    { "[limits]\nmemory = 64\n",
      "a size has a unit, B KiB MiB GiB or TiB (64MiB); allowed is 1MiB to 1TiB" },
    { "[limits]\nmemory = 64MB\n", "a size has a unit" },
    { "[limits]\nmemory = 64 ms\n", "a size has a unit" },
    { "[limits]\nmemory = 9999999TiB\n", "the number is too large" },
    { "[limits]\nmemory = 0\n", "it is out of range" },
    { "[limits]\nwait = 5\n",
      "a duration has a unit, ms s min or h (250ms); allowed is 1ms to 24h" },
    { "[limits]\nwait = 1.5s\n", "a duration has a unit" },
    { "[limits]\nabove = 0.999\n",
      ":2: above = \"0.999\" in [limits]: it is out of range; allowed is 1 to 100" },
    { "[limits]\nabove = 110\n", "it is out of range; allowed is 1 to 100" },
    { "[limits]\nabove = 1.1234\n", "a factor has three places behind the point at most" },
    { "[limits]\nabove = 1.\n", "it is not a factor such as 1.1" },
    { "[limits]\nabove = .5\n", "it is not a factor such as 1.1" },
    { "[limits]\nabove = 1.1.1\n", "it is not a factor such as 1.1" },
    { "[limits]\nabove = 110%\n", "it is not a factor such as 1.1" },
    { "[limits]\nabove = nan\n", "it is not a factor such as 1.1" },
    { "[limits]\nabove = -2\n", "it is not a factor such as 1.1" },
    { "[limits]\nabove = 9999999999999999999999\n", "the number is too large" },
    { "[shard]\nloud = maybe\n", "allowed is yes or no" },
    { "[shard]\ndata =\n", "it is empty" },
    { "[network]\nlisten = 127.0.0.1\n", "is not an address: there is no port" },
    { "[network]\nlisten = /run/x 127.0.0.1:99999\n", "is not an address: the port must" },
    { "[network]\nlisten = ::1:80\n", "is not an address: a v6 address stands in brackets; write "
                                      "host:port, [v6 address]:port or the "
                                      "/path of a socket" },
    { "[network]\nlisten = unix:run/x\n", "the path of a socket must begin with /" },
    { "[network]\nlisten = /" LONG_NAME "\n", "its path has 108 bytes, a socket's may have 106" },
};

TEST_EACH(a_bad_line_is_refused_with_file_line_value_and_what_is_allowed, 0,
          sizeof refusals / sizeof refusals[0])
{
    const struct refusal *row = &refusals[_i];
    ck_assert_int_eq(read_text(row->text), CAIRN_ERR_CONFIG);
    ck_assert_msg(strstr(why.text, "cairn.conf:") != NULL, "%s", why.text);
    ck_assert_msg(strstr(why.text, row->says) != NULL, "%s", why.text);
}

TEST(a_line_too_long_is_refused_and_not_cut)
{
    char text[6000];
    memset(text, 'x', sizeof text - 1);
    memcpy(text, "[shard]\nname = ", 15);
    text[sizeof text - 1] = '\0';
    ck_assert_int_eq(read_text(text), CAIRN_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(why.text, ":2: the line is longer than"));
    text[4000] = '\0';
    ck_assert_int_eq(read_text(text), CAIRN_OK);
    ck_assert_uint_eq(strlen(values.name), 4000 - 15);
}

TEST(a_refused_value_changes_nothing)
{
    ck_assert_int_eq(read_text("[limits]\ncount = 5\nmemory = 1\ncount = 6\n"), CAIRN_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(why.text, ":3:")); // the first error is the one told
    ck_assert_int_eq(values.memory_bytes, 64 << 20);
}

TEST(a_bad_override_is_quoted)
{
    ck_assert_int_eq(config_set(&config, "limits.count=many", &why), CAIRN_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(why.text, "--set limits.count=many: count = \"many\""));
    ck_assert_int_eq(config_set(&config, "count=1", &why), CAIRN_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(why.text, "section.key=value"));
    ck_assert_int_eq(config_set(&config, "a.b=1", &why), CAIRN_ERR_CONFIG);
}

TEST(what_has_no_default_must_be_given)
{
    ck_assert_int_eq(config_finish(&config, &why), CAIRN_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(why.text, "data in [shard] must be set"));
    ck_assert_ptr_nonnull(strstr(why.text, "--set shard.data=..."));
}

TEST(a_missing_file_is_named)
{
    ck_assert_int_eq(config_read(&config, "/nonexistent/cairn.conf", &why), CAIRN_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why.text, "/nonexistent/cairn.conf: No such file"));
}

// The sample, with its comment signs before keys removed, is a good file that changes nothing.
TEST(the_printed_sample_is_read_back)
{
    static char sample[8192];
    FILE *out = fmemopen(sample, sizeof sample, "w");
    config_print(&config, out);
    fclose(out);
    for (char *line = strstr(sample, "\n#"); line != NULL; line = strstr(line + 1, "\n#"))
        if (line[2] != ' ') line[1] = ' ';
    char *data = strstr(sample, "data = ");
    ck_assert_ptr_nonnull(data);
    memmove(data + 9, data + 7, strlen(data + 7) + 1);
    memcpy(data + 7, "/x", 2);
    ck_assert_msg(read_text(sample) == CAIRN_OK, "%s\n%s", why.text, sample);
    ck_assert_int_eq(values.count, 4);
    ck_assert_int_eq(values.wait_ms, 250);
    ck_assert_int_eq(values.above, 1100);
    ck_assert_str_eq(values.network.listen, "");
    ck_assert_int_eq(values.network.connections_max, 4096);
    for (size_t i = 0; i < OPTION_COUNT; i++) ck_assert_int_gt(config.given[i], 0);
}

SUITE(30, set_up, tear_down);

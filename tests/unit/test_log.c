#include "server/base/log.h"
#include "tests/support/suite.h"

#include <inttypes.h>
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char line[4096];

static const char *format(const char *message, const struct log_field *fields, size_t count)
{
    const size_t length = log_format_line(CAIRN_LOG_LOGFMT, line, sizeof line - 1, "T", "info",
                                          "s0", message, fields, count);
    line[length] = '\0';
    return line;
}

TEST(a_line_is_logfmt)
{
    ck_assert_str_eq(
        format("refused chunk 17", CAIRN_FIELDS({ "peer", "w5", 0 }, { "step", NULL, 41 })),
        "ts=T level=info name=s0 msg=\"refused chunk 17\" peer=w5 step=41\n");
    ck_assert_str_eq(format("ready", NULL, 0), "ts=T level=info name=s0 msg=ready\n");
    ck_assert_str_eq(format("", NULL, 0), "ts=T level=info name=s0 msg=\"\"\n");
}

TEST(a_strangers_text_cannot_forge_a_line)
{
    ck_assert_str_eq(format("a\nts=X level=error", NULL, 0),
                     "ts=T level=info name=s0 msg=\"a\\nts=X level=error\"\n");
    ck_assert_str_eq(format("\"q\" \\ \x1b[1m\xc3\xa9\t", NULL, 0),
                     "ts=T level=info name=s0 msg=\"\\\"q\\\" \\\\ \\x1b[1m\\xc3\\xa9\\t\"\n");
    ck_assert_str_eq(format("x", CAIRN_FIELDS({ "peer", "a b", 0 })),
                     "ts=T level=info name=s0 msg=x peer=\"a b\"\n");
}

TEST(a_long_line_is_cut_within_its_quotes)
{
    char message[300];
    char cut[100];
    memset(message, '"', sizeof message - 1);
    message[sizeof message - 1] = '\0';
    const size_t length = log_format_line(CAIRN_LOG_LOGFMT, cut, sizeof cut, "T", "info", "",
                                          message, NULL, 0);
    ck_assert_uint_le(length, sizeof cut);
    ck_assert_int_eq(cut[length - 1], '\n');
    ck_assert_int_eq(cut[length - 2], '"');
    ck_assert_int_eq(cut[length - 3], '"'); // of a whole escape
    ck_assert_int_eq(cut[length - 4], '\\');
}

TEST(a_line_is_an_object_of_json)
{
    const struct log_field fields[] = { { "peer", "a \"b\"\n", 0 }, { "step", NULL, 41 } };
    size_t length = log_format_line(CAIRN_LOG_JSON, line, sizeof line - 1, "T", "info", "s0",
                                    "it\xc3\xa9\x7f\xc3", fields, 2); // a name, and a cut one
    line[length] = '\0';
    ck_assert_str_eq(line, "{\"ts\":\"T\",\"level\":\"info\",\"name\":\"s0\","
                           "\"msg\":\"it\xc3\xa9\\u007f\\u00c3\","
                           "\"peer\":\"a \\\"b\\\"\\u000a\",\"step\":41}\n");
    char message
        [300]; // what is cut is an object all the same; a field that does not fit is left out
    message[sizeof message - 1] = '\0';
    for (size_t bytes = 60; bytes < 120; bytes++) {
        for (size_t i = 0; i < sizeof message - 1; i++) message[i] = "\"\xc3\xa9"[i % 3];
        length = log_format_line(CAIRN_LOG_JSON, line, bytes, "T", "info", "", message, fields, 2);
        ck_assert_uint_le(length, bytes);
        line[length] = '\0';
        json_t *object = json_loads(line, 0, NULL);
        ck_assert_msg(object != NULL, "%s", line);
        json_decref(object);
    }
}

// Runs `work` with stderr in a file, and gives what it wrote.
static const char *capture(void (*work)(void))
{
    FILE *file = tmpfile();
    const int saved = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    work();
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    line[fread(line, 1, sizeof line - 1, file)] = '\0';
    fclose(file);
    return line;
}

static void log_at_all_levels(void)
{
    log_init("shard-0", CAIRN_LOG_WARN);
    log_error("one");
    log_warn("two %d", 2);
    log_info("three");
    log_debug("four");
}

TEST(levels_below_the_wanted_one_are_silent)
{
    const char *text = capture(log_at_all_levels);
    ck_assert_ptr_nonnull(strstr(text, "level=error name=shard-0 msg=one\n"));
    ck_assert_ptr_nonnull(strstr(text, "level=warn name=shard-0 msg=\"two 2\"\n"));
    ck_assert_ptr_null(strstr(text, "three"));
    ck_assert_ptr_null(strstr(text, "four"));
    ck_assert_int_eq(strncmp(text, "ts=20", 5), 0);
    ck_assert_int_eq(text[strcspn(text, " ") - 1], 'Z');
}

static void log_to_the_journal(void)
{
    struct stat info;
    char stream[64];
    struct log_options options = { .level = "", .format = "json" };
    ck_assert_int_eq(fstat(STDERR_FILENO, &info), 0);
    snprintf(stream, sizeof stream, "%" PRIu64 ":%" PRIu64, info.st_dev, info.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_init("other", CAIRN_LOG_INFO);
    log_set("s1", &options);
    log_error("one");
    log_debug("unheard");
    ck_assert(log_toggle_debug());
    log_debug("two");
    ck_assert(!log_toggle_debug());
    log_debug("unheard");
    options.format = "logfmt";
    log_set("s1", &options);
    log_info("three");
    setenv("JOURNAL_STREAM", "1:2", 1); // another one's stderr
    log_init("s1", CAIRN_LOG_INFO);
    log_warn("four");
    unsetenv("JOURNAL_STREAM");
    log_init("s1", CAIRN_LOG_INFO);
}

TEST(the_journal_gets_priorities)
{
    const char *text = capture(log_to_the_journal);
    ck_assert_int_eq(strncmp(text, "<3>{\"ts\":", 9), 0);
    ck_assert_ptr_nonnull(strstr(text, "\n<7>{\"ts\":"));
    ck_assert_ptr_nonnull(strstr(text, "\n<6>ts="));
    ck_assert_ptr_nonnull(strstr(text, "\nts="));
    ck_assert_ptr_nonnull(strstr(text, "name=s1 msg=four\n"));
    ck_assert_ptr_null(strstr(text, "unheard"));
}

static void log_of_jobs(void)
{
    log_init("s1", CAIRN_LOG_INFO);
    log_warn("job %s: shard %s holds round %" PRIu64 " up: %.1f s, %zu bytes, %d of %*d, shard %s",
             "a", "s0", (uint64_t)7, 1.5, (size_t)9, -1, 4, 5, "s1");
    log_info("snapshot %s of job %s at step %u, rank %d: 100 %%", "s 1", "b", 12u, -3);
    log_info("job %016" PRIx64 ", the shard%s, %s", (uint64_t)5, "s", "job c shard d");
    log_fields(CAIRN_LOG_INFO, CAIRN_FIELDS({ "job", "given", 0 }), "of job %s", "said");
}

TEST(the_words_of_a_sentence_are_fields)
{
    const char *text = capture(log_of_jobs);
    ck_assert_ptr_nonnull(
        strstr(text, "up: 1.5 s, 9 bytes, -1 of    5, shard s1\" job=a shard=s0 round=7\n"));
    ck_assert_ptr_nonnull(strstr(text, "100 %\" snapshot=\"s 1\" job=b step=12\n"));
    ck_assert_ptr_nonnull(strstr(text, "job c shard d\"\n"));
    ck_assert_ptr_nonnull(strstr(text, "msg=\"of job said\" job=given\n"));
}

static void log_a_flood(void)
{
    struct log_limit limit = { 0 };
    log_init(NULL, CAIRN_LOG_INFO);
    for (int i = 0; i < 1000; i++) log_limited(&limit, CAIRN_LOG_WARN, "garbage %d", i);
    limit.next_ms = 0; // as if a second had passed
    log_limited(&limit, CAIRN_LOG_WARN, "more");
}

TEST(a_flood_of_one_kind_is_one_line_and_a_count)
{
    const char *text = capture(log_a_flood);
    int lines = 0;
    for (const char *p = text; *p != '\0'; p++) lines += *p == '\n';
    ck_assert_int_eq(lines, 2);
    ck_assert_ptr_nonnull(strstr(text, "msg=\"garbage 0\"\n"));
    ck_assert_ptr_nonnull(strstr(text, "msg=more suppressed=999\n"));
}

TEST(a_log_that_nobody_reads_holds_nobody_up_and_says_what_it_lost)
{
    enum { LINES = 5000 }; // much more than a pipe takes
    static char said[1 << 20];
    int ends[2];
    size_t length = 0;
    ssize_t got;
    const int saved = dup(STDERR_FILENO);
    ck_assert_int_eq(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    for (int i = 0; i < LINES; i++) log_info("line %d, which nobody reads", i);
    length += (size_t)read(ends[0], said, sizeof said / 2);
    log_info("the last");
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    while ((got = read(ends[0], said + length, sizeof said - 1 - length)) > 0)
        length += (size_t)got;
    said[length] = '\0';
    close(ends[0]);
    uint64_t lines = 0, dropped = 0;
    const char *told = strstr(said, "lines=");
    for (const char *at = said; (at = strstr(at, "which nobody reads")) != NULL; at++) lines++;
    ck_assert_ptr_nonnull(told);
    ck_assert_int_eq(sscanf(told, "lines=%" PRIu64, &dropped), 1);
    ck_assert_uint_eq(lines + dropped, LINES);
    ck_assert_ptr_nonnull(strstr(told, "the last"));
}

TEST(a_level_is_one_of_four_words)
{
    enum log_level level = CAIRN_LOG_ERROR;
    ck_assert(log_level_parse("debug", &level));
    ck_assert_int_eq(level, CAIRN_LOG_DEBUG);
    ck_assert(!log_level_parse("loud", &level));
    ck_assert_int_eq(level, CAIRN_LOG_DEBUG);
}

SUITE(30);

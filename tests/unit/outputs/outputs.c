#include "tests/unit/outputs/outputs.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <regex.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/golden.h"

#define ARGUMENTS_MAX 32
#define TEXT_BYTES    (1 << 18)

static char *record;
static size_t record_bytes;
static FILE *out;
static const char *record_name;
static int part, parts = 1;

void outputs_part(int number, int count)
{
    part = number;
    parts = count;
}

bool outputs_open(const char *name)
{
    int sum = 0;
    for (const char *at = name; *at != '\0'; at++) sum = (sum * 31 + *at) & 0xffff;
    if (sum % parts != part) return false;
    record_name = name;
    out = open_memstream(&record, &record_bytes);
    ck_assert_ptr_nonnull(out);
    return true;
}

void outputs_close(void)
{
    char path[128];
    ck_assert_int_eq(fclose(out), 0);
    snprintf(path, sizeof path, "outputs/%s.txt", record_name);
    golden_expect(path, record);
    free(record);
}

/* ---- what is another one with each run ---- */

/* What a pattern's first group has stays. */
static const struct {
    const char *pattern, *to;
} varying[] = {
    { "()[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9.]+)?Z?", "TIME" },
    { "()uid [0-9]+ of uid:[0-9]+ at [a-z0-9=:.,]+", "WHO" },
    { "()RW[A-Za-z0-9+/]{54}", "KEY" },
    { "()cairn1-[0-9a-z]{80,}", "TOKEN" },
    { "(pid=)[0-9]+,uid=[0-9]+", "N" },
    { "(uid:)[0-9]+", "N" },
    { "(admin cairn [a-z ]+, pid )[0-9]+", "N" },
    { "(\"(since_unix_ms|since_ms|uptime_ms|created_unix_ms)\": )[0-9]+", "N" },
    { "(\"(seconds|seconds_since_step|elapsed_s|expected_s|expected_pause_s)\": )[0-9.e+-]+", "N" },
    { "(^|[^.0-9])[0-9]{15,}", "N" },
    { "()[0-9.]+ [kMG]?B/s", "N B/s" },
    { "()[0-9.]+ (ms|us|min|s|h)\\b", "N s" },
};

/* What matches becomes `to`, which is no longer. True: any does. */
static bool mend(char *text, const char *pattern, const char *to)
{
    regex_t regex;
    regmatch_t at[2];
    bool any = false;
    ck_assert_int_eq(regcomp(&regex, pattern, REG_EXTENDED), 0);
    for (; regexec(&regex, text, 2, at, 0) == 0; any = true) {
        char *from = text + at[1].rm_eo, *end = text + at[0].rm_eo;
        ck_assert_uint_le(strlen(to), (size_t)(end - from));
        memcpy(from, to, strlen(to));
        text = from + strlen(to);
        memmove(text, end, strlen(end) + 1);
    }
    regfree(&regex);
    return any;
}

/* The columns of a table are as wide as what varied: two blanks stand for more, but where a line begins. */
static void narrow(char *text)
{
    char *to = text;
    bool inside = false;
    for (const char *at = text; *at != '\0'; at++) {
        inside = *at != '\n' && (inside || *at != ' ');
        if (inside && at[0] == ' ' && at[1] == ' ' && at[2] == ' ') continue;
        *to++ = *at;
    }
    *to = '\0';
}

static void mend_paragraph(char *text)
{
    bool any = false;
    for (size_t i = 0; i < sizeof varying / sizeof *varying; i++)
        any |= mend(text, varying[i].pattern, varying[i].to);
    if (any) narrow(text);
}

static void mend_host(char *text)
{
    char name[64], from[96];
    ck_assert_int_eq(gethostname(name, sizeof name - 1), 0);
    name[sizeof name - 1] = '\0';
    snprintf(from, sizeof from, "coordinator at %s", name);
    golden_replace(text, from, "coordinator at H");
}

static void mend_all(char *text, bool varies)
{
    static char whole[TEXT_BYTES];
    golden_replace(text, CAIRN_BIN_DIR, "BIN");
    golden_replace_hex(text);
    if (!varies) return;
    golden_replace(text, fake.folder, "FOLDER");
    golden_replace(text, fake.listen, "ENDPOINT");
    golden_replace(text, CAIRN_VERSION, "X.Y");
    mend_host(text);
    whole[0] = '\0';
    for (char *at = text, *end; *at != '\0'; at = end) {
        char paragraph[TEXT_BYTES];
        end = strstr(at, "\n\n");
        end = end != NULL ? end + 2 : at + strlen(at);
        snprintf(paragraph, sizeof paragraph, "%.*s", (int)(end - at), at);
        mend_paragraph(paragraph);
        strncat(whole, paragraph, sizeof whole - strlen(whole) - 1);
    }
    memcpy(text, whole, strlen(whole) + 1);
}

/* ---- a command ---- */

/* Its output goes to the second end of `ends`. */
static void pipe_from(posix_spawn_file_actions_t *actions, int fd, int ends[2])
{
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    ck_assert_int_eq(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    ck_assert_int_eq(posix_spawn_file_actions_adddup2(actions, ends[1], fd), 0);
}

/* True: it has ended. */
static bool take(int fd, char *text, size_t *length)
{
    for (;;) {
        ck_assert_uint_lt(*length + 1, TEXT_BYTES);
        const ssize_t got = read(fd, text + *length, TEXT_BYTES - 1 - *length);
        if (got < 0) return errno != EAGAIN && errno != EINTR;
        text[ *length += (size_t)got] = '\0';
        if (got == 0) return true;
    }
}

static void turn(void)
{
    if (fake.cluster != NULL)
        fake_pump(&fake);
    else
        usleep(200);
}

static pid_t start(const char *const *arguments, int fds[2])
{
    char *const environment[] = { "PATH=" CAIRN_BIN_DIR ":/usr/local/bin:/usr/bin:/bin", "TZ=UTC",
                                  "LC_ALL=C", "HOME=/nonexistent", NULL };
    posix_spawn_file_actions_t actions;
    int pipes[2][2];
    pid_t pid;
    ck_assert_int_eq(posix_spawn_file_actions_init(&actions), 0);
    ck_assert_int_eq(
        posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0), 0);
    for (int i = 0; i < 2; i++) pipe_from(&actions, STDOUT_FILENO + i, pipes[i]);
    ck_assert_int_eq(posix_spawnp(&pid, arguments[0], &actions, NULL,
                                  (char *const *)(uintptr_t)arguments, environment),
                     0);
    posix_spawn_file_actions_destroy(&actions);
    for (int i = 0; i < 2; i++) {
        close(pipes[i][1]);
        fds[i] = pipes[i][0];
    }
    return pid;
}

static void print_stderr(char *text)
{
    for (char *line = strtok_r(text, "\n", &text); line != NULL; line = strtok_r(NULL, "\n", &text))
        if (strstr(line, " %: ") == NULL) // how far it is, if it takes long
            fprintf(out, "! %s\n", line);
}

void outputs_of(const char *const *arguments, const char *shown)
{
    static char texts[2][TEXT_BYTES];
    size_t lengths[2] = { 0, 0 };
    bool ended[2] = { false, false };
    int fds[2], status;
    const bool varies = fake.cluster != NULL;
    const uint64_t end_ms = uv_hrtime() / 1000000 + 30000;
    texts[0][0] = texts[1][0] = '\0';
    const pid_t pid = start(arguments, fds);
    while (!ended[0] || !ended[1]) {
        if (uv_hrtime() / 1000000 > end_ms) {
            kill(pid, SIGKILL);
            ck_abort_msg("it does not end: %s: %s%s", shown, texts[0], texts[1]);
        }
        turn();
        for (int i = 0; i < 2; i++) ended[i] = ended[i] || take(fds[i], texts[i], &lengths[i]);
    }
    for (int i = 0; i < 2; i++) {
        close(fds[i]);
        mend_all(texts[i], varies);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    fprintf(out, "$ %s\n%s", shown, texts[0]);
    if (lengths[0] > 0 && texts[0][strlen(texts[0]) - 1] != '\n') fprintf(out, "\n");
    print_stderr(texts[1]);
    if (WEXITSTATUS(status) != 0) fprintf(out, "= %d\n", WEXITSTATUS(status));
    fprintf(out, "\n");
}

/* Nothing is on its way to the store, or to a thread. */
static void settle(void)
{
    for (int quiet = 0; quiet < 5;) {
        fake_pump(&fake);
        quiet = fake.cluster->saves.list == NULL && fake.cluster->under_way.works == NULL
                    ? quiet + 1
                    : 0;
    }
}

/* `endpoint` NULL: none. */
static void run(const char *endpoint, const char *line, const char *more)
{
    const char *arguments[ARGUMENTS_MAX] = { CAIRN_BIN_DIR "/cairn" };
    char whole[1024], shown[1100];
    size_t count = 1, length = 0;
    if (endpoint != NULL) {
        settle();
        arguments[count++] = "--endpoint";
        arguments[count++] = endpoint;
    }
    for (const char *at = line; *at != '\0'; at++)
        length += (size_t)snprintf(whole + length, sizeof whole - length, "%.*s",
                                   *at == '@' ? 64 : 1, *at == '@' ? fake.folder : at);
    snprintf(whole + length, sizeof whole - length, "%s%s", more[0] != '\0' ? " " : "", more);
    snprintf(shown, sizeof shown, "cairn %s%s%s", line, more[0] != '\0' ? " " : "", more);
    char *rest = whole;
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        ck_assert_uint_lt(count + 1, ARGUMENTS_MAX);
        arguments[count++] = word;
    }
    outputs_of(arguments, shown);
}

void outputs_one(const char *line)
{
    run(fake.listen, line, "");
}

void outputs_quiet(const char *line)
{
    run(fake.listen, line, "");
    run(fake.listen, line, "-q");
}

void outputs_two(const char *line)
{
    run(fake.listen, line, "");
    run(fake.listen, line, "-o json");
}

void outputs_all(const char *line)
{
    outputs_quiet(line);
    run(fake.listen, line, "-o json");
}

void outputs_alone(const char *line)
{
    run(NULL, line, "");
}

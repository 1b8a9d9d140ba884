#include "tests/support/golden.h"

#include <check.h>
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void write_to(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

void golden_expect(const char *name, const char *text)
{
    char path[512], command[640], other[] = "/tmp/cairn-golden.XXXXXX";
    snprintf(path, sizeof path, CAIRN_SOURCE_DIR "/tests/golden/%s", name);
    if (getenv("CAIRN_GOLDEN_WRITE") != NULL) {
        write_to(path, text);
        return;
    }
    const int fd = mkstemp(other);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(close(fd), 0);
    write_to(other, text);
    snprintf(command, sizeof command, "diff -u '%s' '%s' >&2", path, other);
    const int differs = system(command);
    (void)unlink(other);
    ck_assert_msg(differs == 0,
                  "%s is another one now; if that is meant, CAIRN_GOLDEN_WRITE=1 writes it anew",
                  path);
}

void golden_replace(char *text, const char *from, const char *to)
{
    for (char *at = text; (at = strstr(at, from)) != NULL; at += strlen(to)) {
        memmove(at + strlen(to), at + strlen(from), strlen(at + strlen(from)) + 1);
        memcpy(at, to, strlen(to));
    }
}

void golden_replace_hex(char *text)
{
    for (char *at = text; *at != '\0';) {
        size_t length = 0;
        while (isxdigit((unsigned char)at[length])) length++;
        const bool is_fraction = at > text && at[-1] == '.';
        if (length >= 16 && !is_fraction) {
            memmove(at + 3, at + length, strlen(at + length) + 1);
            memcpy(at, "HEX", 3);
            length = 3;
        }
        at += length > 0 ? length : 1;
    }
}

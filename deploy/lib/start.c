/* The starter that a bundle has under bin/, once for each program: it becomes the program of its own name,
 * with a libc that will do. It is linked statically, so it starts where there is no libc at all.
 *
 *   bin/cairn-shard ──► host's libc has every symbol version that the bundle needs (CAIRN_GLIBC):
 *                       programs/cairn-shard, by the host's loader; its run path finds lib/
 *                   └─► else: bin/loader, the bundle's, with lib/libc in front of lib/
 *
 * The host's libc comes first because a device's driver is the host's: it may need as new a libc as the host
 * has. An older libc than the bundle's has no driver that the bundle's could not load.
 *
 * The loader lies in bin/ so that /proc/self/exe has the programs beside it in both cases (`cairn local`).
 * CAIRN_LIBC=host|own decides in place of the version. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOST_LOADER "/lib64/ld-linux-x86-64.so.2"
#define PATH_BYTES  (PATH_MAX + 64)

struct version {
    unsigned long major, minor;
};

/* "2.36..." */
static struct version version_of(const char *text)
{
    char *end;
    struct version version = { .major = strtoul(text, &end, 10) };
    if (*end == '.') version.minor = strtoul(end + 1, NULL, 10);
    return version;
}

static bool is_at_least(struct version have, struct version want)
{
    return have.major != want.major ? have.major > want.major : have.minor >= want.minor;
}

/* The words stand in the loader's answer to --version, which it has since 2.33: without them it is older, or
 * of another libc. */
static struct version version_in(const char *loader, size_t bytes)
{
    static const char words[] = "stable release version ";
    char number[16] = "0.0";
    const char *found = memmem(loader, bytes, words, sizeof words - 1);
    if (found != NULL && (size_t)(loader + bytes - found) > sizeof words + sizeof number)
        memcpy(number, found + sizeof words - 1, sizeof number - 1);
    return version_of(number);
}

static bool host_will_do(void)
{
    struct stat st;
    struct version version = { 0 };
    const int fd = open(HOST_LOADER, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    if (fstat(fd, &st) == 0 && st.st_size > 0) {
        const size_t bytes = (size_t)st.st_size;
        char *loader = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (loader != MAP_FAILED) version = version_in(loader, bytes);
        if (loader != MAP_FAILED) munmap(loader, bytes);
    }
    close(fd);
    return is_at_least(version, version_of(CAIRN_GLIBC));
}

static bool use_host(void)
{
    const char *said = getenv("CAIRN_LIBC");
    if (said != NULL && strcmp(said, "own") == 0) return false;
    if (said != NULL && strcmp(said, "host") == 0) return true;
    return host_will_do();
}

/* The bundle's folder, and this program's name: of the link that this file is. Without /proc: of how it was
 * called. */
static bool find_self(char folder_out[PATH_MAX], char name_out[PATH_MAX])
{
    const ssize_t length = readlink("/proc/self/exe", folder_out, PATH_MAX - 1);
    const char *called = (const char *)getauxval(AT_EXECFN);
    if (length > 0)
        folder_out[length] = 0;
    else if (called == NULL || realpath(called, folder_out) == NULL)
        return false;
    char *slash = strrchr(folder_out, '/');
    if (slash == NULL) return false;
    snprintf(name_out, PATH_MAX, "%s", slash + 1);
    *slash = 0;
    slash = strrchr(folder_out, '/');
    if (slash == NULL) return false;
    *slash = 0;
    return true;
}

static void start_with_own(const char *folder, const char *program, int argc, char **argv)
{
    static char loader[PATH_BYTES], libraries[32 * PATH_BYTES];
    const char *more = getenv("LD_LIBRARY_PATH"); // --library-path stands in its place
    char **all = calloc((size_t)argc + 7, sizeof *all);
    int count = 0;
    if (all == NULL) return;
    snprintf(loader, sizeof loader, "%s/bin/loader", folder);
    snprintf(libraries, sizeof libraries, "%s/lib/libc:%s/lib%s%s", folder, folder,
             more != NULL && more[0] != 0 ? ":" : "", more != NULL ? more : "");
    all[count++] = loader;
    all[count++] = (char[]) { "--argv0" };
    all[count++] = argc > 0 ? argv[0] : loader;
    all[count++] = (char[]) { "--library-path" };
    all[count++] = libraries;
    all[count++] = (char *)(uintptr_t)program;
    for (int i = 1; i < argc; i++) all[count++] = argv[i];
    execv(loader, all);
    free(all);
}

int main(int argc, char **argv)
{
    static char folder[PATH_MAX], name[PATH_MAX], program[2 * PATH_BYTES];
    if (!find_self(folder, name)) {
        fprintf(stderr, "%s: no /proc, and not called by its path\n", argc > 0 ? argv[0] : "?");
        return 126;
    }
    snprintf(program, sizeof program, "%s/programs/%s", folder, name);
    if (use_host())
        execv(program, argv);
    else
        start_with_own(folder, program, argc, argv);
    fprintf(stderr, "%s cannot be started: %s\n", program, strerror(errno));
    return 126;
}

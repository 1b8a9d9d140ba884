#include "client/ctl/bench/card.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "gpu/home.h"

/* In the process of its own; its exit status. */
static int ask(const char *device, int answer_fd)
{
    struct cairn_home *home = NULL;
    struct cairn_sentence why;
    const cairn_status status = cairn_home_open_cuda(device, &home, &why);
    if (status != CAIRN_OK) return cairn_ctl_fail(status, "%s", why.text);
    const uint64_t bytes = cairn_home_free_bytes(home);
    cairn_home_close(home);
    return write(answer_fd, &bytes, sizeof bytes) == sizeof bytes ? 0 : 1;
}

bool cairn_bench_card_free(const char *device, uint64_t *bytes_out)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return false;
    fflush(NULL); // what is not written yet would be written twice
    const pid_t pid = fork();
    if (pid == 0) _exit(ask(device, fds[1]));
    close(fds[1]);
    uint64_t bytes = 0;
    const bool is_told = pid > 0 && read(fds[0], &bytes, sizeof bytes) == sizeof bytes;
    close(fds[0]);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
    if (is_told) *bytes_out = bytes;
    return is_told;
}

/* The line that begins with `name`, in kibibytes there. */
static uint64_t status_bytes(pid_t pid, const char *name)
{
    const size_t length = strlen(name);
    char path[48], line[128];
    unsigned long long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, length) != 0 || sscanf(line + length, "%llu kB", &kib) != 1)
            kib = 0;
    if (file != NULL) fclose(file);
    return (uint64_t)kib << 10;
}

uint64_t cairn_bench_process_bytes(pid_t pid)
{
    return status_bytes(pid, "VmRSS:");
}

uint64_t cairn_bench_process_peak(pid_t pid)
{
    return status_bytes(pid, "VmHWM:");
}

void cairn_bench_process_peak_forget(pid_t pid)
{
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/clear_refs", (int)pid);
    FILE *file = fopen(path, "we");
    if (file == NULL) return; // then the peak is of all the time
    fputs("5\n", file);
    fclose(file);
}

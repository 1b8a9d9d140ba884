#include "proto/store/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/store/storage.h"

/* ==== the kernel's words ==== */

/* Headers may be older than the kernel: rights and fields of later versions are spelled out here. */
struct rules {
    uint64_t files, ports, scopes;
};
#define TRUNCATE       (UINT64_C(1) << 14) /* from version 3 on */
#define CONTROL_DEVICE (UINT64_C(1) << 15) /* from version 5 on */
#define ALL_FILES_V1   ((UINT64_C(1) << 13) - 1)
#define PORTS          UINT64_C(3) /* to listen on one, to connect to one: from version 4 on */
#define NAMED_SOCKETS  UINT64_C(1) /* without a path: from version 6 on */

#define TO_READ (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)

/* All rights over files that a version knows. */
static uint64_t all_files(int version)
{
    uint64_t all = ALL_FILES_V1;
    if (version >= 2) all |= LANDLOCK_ACCESS_FS_REFER;
    if (version >= 3) all |= TRUNCATE;
    if (version >= 5) all |= CONTROL_DEVICE;
    return all;
}

static int make_rules(const struct rules *rules)
{
    return (int)syscall(SYS_landlock_create_ruleset, rules, sizeof *rules, 0);
}

int confine_version(void)
{
    const long version = syscall(SYS_landlock_create_ruleset, NULL, 0,
                                 LANDLOCK_CREATE_RULESET_VERSION);
    return version > 0 ? (int)version : 0;
}

/* For this thread, and those that it starts. */
static bool obey(int rules)
{
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_landlock_restrict_self, rules, 0) == 0;
}

/* ==== rules ==== */

void confine_begin(struct confine *confine)
{
    const int version = confine_version();
    const struct rules rules = { .files = all_files(version),
                                 .ports = version >= 4 ? PORTS : 0,
                                 .scopes = version >= 6 ? NAMED_SOCKETS : 0 };
    *confine = (struct confine) { .rules = -1, .status = CAIRN_OK };
    if (version == 0) return;
    confine->rules = make_rules(&rules);
    if (confine->rules < 0) confine->status = CAIRN_ERR_NO_MEMORY;
}

static void allow(struct confine *confine, const char *path, uint64_t files)
{
    if (confine->rules < 0) return;
    struct landlock_path_beneath_attr beneath = { .allowed_access = files,
                                                  .parent_fd = open(path, O_PATH | O_CLOEXEC) };
    if (beneath.parent_fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
            confine->status = CAIRN_ERR_NO_MEMORY;
        return;
    }
    int failed = (int)syscall(SYS_landlock_add_rule, confine->rules, LANDLOCK_RULE_PATH_BENEATH,
                              &beneath, 0);
    if (failed != 0 && errno == EINVAL) { // a file: folders' rights are none of its own
        beneath.allowed_access &= ~(uint64_t)LANDLOCK_ACCESS_FS_READ_DIR;
        failed = (int)syscall(SYS_landlock_add_rule, confine->rules, LANDLOCK_RULE_PATH_BENEATH,
                              &beneath, 0);
    }
    if (failed != 0) confine->status = CAIRN_ERR_NO_MEMORY;
    close(beneath.parent_fd);
}

void confine_read(struct confine *confine, const char *location)
{
    if (storage_of(location) == &storage_folder) allow(confine, location, TO_READ);
}

void confine_read_each(struct confine *confine, const char *paths)
{
    while (*paths != '\0') {
        const size_t length = strcspn(paths, ":");
        char *path = strndup(paths, length);
        if (path == NULL) confine->status = CAIRN_ERR_NO_MEMORY;
        if (path != NULL && length > 0) allow(confine, path, TO_READ);
        free(path);
        paths += length + (paths[length] == ':');
    }
}

void confine_use_devices(struct confine *confine)
{
    const uint64_t control = all_files(confine_version()) & CONTROL_DEVICE;
    allow(confine, "/dev", TO_READ | LANDLOCK_ACCESS_FS_WRITE_FILE | control);
    allow(confine, "/proc", TO_READ);
    allow(confine, "/sys", TO_READ);
}

/* ==== what runs ==== */

struct confined {
    void (*run)(void *context);
    void *context;
    int rules;
    int error; /* an errno: it did not run */
};

static void *run_confined(void *argument)
{
    struct confined *confined = argument;
    if (!obey(confined->rules))
        confined->error = errno;
    else
        confined->run(confined->context);
    return NULL;
}

static cairn_status run_apart(struct confined *confined, struct sentence *why)
{
    pthread_t thread;
    int error = pthread_create(&thread, NULL, run_confined, confined); // has this one's name
    if (error != 0)
        return fail_with(why, CAIRN_ERR_NO_MEMORY,
                         "no thread could be started to read with fewer rights: %s",
                         strerror(error));
    pthread_join(thread, NULL);
    if (confined->error == 0) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_IO, "the kernel did not take rights away (Landlock): %s",
                     strerror(confined->error));
}

cairn_status confine_run(struct confine *confine, void (*run)(void *context), void *context,
                         struct sentence *why)
{
    struct confined confined = { .run = run, .context = context, .rules = confine->rules };
    if (confine->status != CAIRN_OK) {
        if (confine->rules >= 0) close(confine->rules);
        return fail_with(why, confine->status,
                         "no memory or no descriptor was left for the rules of a reading thread");
    }
    if (confine->rules < 0) {
        run(context);
        return CAIRN_OK;
    }
    const cairn_status status = run_apart(&confined, why);
    close(confine->rules);
    return status;
}

cairn_status confine_run_in(const char *location, void (*run)(void *context), void *context,
                            struct sentence *why)
{
    struct confine confine;
    confine_begin(&confine);
    confine_read(&confine, location);
    return confine_run(&confine, run, context, why);
}

/* In every process with rules, no file goes to another folder (rename, link) unless a rule allows it. */
static bool allow_moves(int rules, int version)
{
    struct confine confine = { .rules = rules, .status = CAIRN_OK };
    if (version >= 2) allow(&confine, "/", LANDLOCK_ACCESS_FS_REFER);
    return confine.status == CAIRN_OK;
}

bool confine_process(void)
{
    const int version = confine_version();
    const struct rules rules = { .files = LANDLOCK_ACCESS_FS_EXECUTE |
                                          LANDLOCK_ACCESS_FS_MAKE_CHAR |
                                          LANDLOCK_ACCESS_FS_MAKE_BLOCK |
                                          (version >= 2 ? LANDLOCK_ACCESS_FS_REFER : 0) };
    if (version == 0) return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
    const int fd = make_rules(&rules);
    const bool obeys = fd >= 0 && allow_moves(fd, version) && obey(fd);
    if (fd >= 0) close(fd);
    return obeys;
}

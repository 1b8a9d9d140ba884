/* A daemon's configuration: as a file, and as one word of the command line. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server/base/daemon.h"
#include "tests/fuzz/target.h"

struct values {
    char *name, *folder, *address, *addresses;
    bool loud;
    int64_t count, memory_bytes, wait_ms, above;
};

static const struct config_option options[] = {
    { "shard", "name", CAIRN_OPTION_STRING, offsetof(struct values, name), "s0", 0, 0, "A name." },
    { "shard", "data", CAIRN_OPTION_PATH, offsetof(struct values, folder), NULL, 0, 0, "A path." },
    { "network", "coordinator", CAIRN_OPTION_ENDPOINTS, offsetof(struct values, address), "", 0, 0,
      "An address." },
    { "network", "listen", CAIRN_OPTION_ADDRESSES, offsetof(struct values, addresses), "", 0, 0,
      "Addresses." },
    { "shard", "loud", CAIRN_OPTION_BOOL, offsetof(struct values, loud), "no", 0, 0, "Loud." },
    { "limits", "count", CAIRN_OPTION_INT, offsetof(struct values, count), "4", -2, 64, "Count." },
    { "limits", "memory", CAIRN_OPTION_BYTES, offsetof(struct values, memory_bytes), "64MiB",
      1 << 20, INT64_C(1) << 40, "Bytes." },
    { "limits", "wait", CAIRN_OPTION_DURATION, offsetof(struct values, wait_ms), "250ms", 1,
      86400000, "A time." },
    { "limits", "above", CAIRN_OPTION_FACTOR, offsetof(struct values, above), "1.1", 1000, 100000,
      "A factor." },
};
enum { OPTIONS = sizeof options / sizeof *options };

/* Whatever was read, numbers are within their bounds, and strings are there. */
static void is_sane(const struct values *values)
{
    MUST(values->count >= -2 && values->count <= 64);
    MUST(values->memory_bytes >= 1 << 20 && values->memory_bytes <= INT64_C(1) << 40);
    MUST(values->wait_ms >= 1 && values->wait_ms <= 86400000);
    MUST(values->above >= 1000 && values->above <= 100000);
    MUST(values->name != NULL && values->address != NULL && values->addresses != NULL);
    MUST(values->folder == NULL || values->folder[0] != '\0');
}

static void read_by(bool is_file, const char *text, size_t size)
{
    static int file = -1;
    static char path[64];
    struct values values = { 0 };
    struct config config;
    struct sentence why = { 0 };
    config_init(&config, options, OPTIONS, &values);
    cairn_status status;
    if (is_file) {
        if (file < 0) file = memfd_create("config", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
        MUST(ftruncate(file, 0) == 0 && pwrite(file, text, size, 0) == (ssize_t)size);
        status = config_read(&config, path, &why);
    } else {
        status = config_set(&config, text, &why);
    }
    MUST((status == CAIRN_OK) == (why.text[0] == '\0'));
    is_sane(&values);
    if (config_finish(&config, &why) == CAIRN_OK) MUST(values.folder != NULL);
    config_release(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    MUST(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    read_by(true, text, size);
    read_by(false, text, size);
    free(text);
    return 0;
}

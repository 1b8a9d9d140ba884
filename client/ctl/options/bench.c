/* The options of `cairn bench`, and of `cairn job plan`. */
#include <getopt.h>
#include <string.h>

#include "client/ctl/options/options.h"
#include "proto/geometry/layout.h"

#define DEVICE_LETTERS "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-/"

static int parse_wire(struct ctl *ctl, const char *text)
{
    ctl->bench.wire = text;
    if (strcmp(text, "f32") == 0 || strcmp(text, "bf16") == 0) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--wire %s: f32 and bf16 are allowed", text);
}

static int parse_backend(struct ctl *ctl, const char *text)
{
    ctl->bench.backend = text;
    if (strcmp(text, "host") == 0 || strcmp(text, "cuda") == 0) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--backend %s: host and cuda are allowed", text);
}

static int parse_memory(struct ctl *ctl, const char *text)
{
    ctl->bench.has_device_memory = strcmp(text, "device") == 0;
    if (ctl->bench.has_device_memory || strcmp(text, "host") == 0) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--memory %s: host and device are allowed", text);
}

/* It goes into configurations as it is. */
static int parse_device(struct ctl *ctl, const char *text)
{
    const size_t length = strlen(text);
    ctl->bench.device = text;
    if (length > 0 && length < 64 && strspn(text, DEVICE_LETTERS) == length) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID,
                          "--device %s: a number, or a UUID as nvidia-smi -L has it, is allowed",
                          text);
}

static int parse_stage(struct ctl *ctl, const char *text)
{
    ctl->plan.has_stage = true;
    ctl->plan.stage = (uint32_t)(text[0] - '0');
    if (text[0] >= '0' && text[0] <= '3' && text[1] == '\0') return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--stage %s: 0 to 3 is allowed", text);
}

static int parse_offload(struct ctl *ctl, const char *text)
{
    ctl->plan.has_offload = true;
    const int done = cairn_ctl_parse_real("offload", text, &ctl->plan.offload);
    if (done >= 0 || ctl->plan.offload <= 1) return done;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--offload %s: 0 to 1 is allowed", text);
}

/* Takes the options of `cairn bench` and of `cairn plan`. */
int cairn_ctl_take_bench(struct ctl *ctl, int option)
{
    switch (option) {
    case OPT_THREADS: return cairn_ctl_parse_number("threads", optarg, 1024, &ctl->bench.threads);
    case OPT_TENSORS:
        return cairn_ctl_parse_number("tensors", optarg, CAIRN_LAYOUT_TENSORS_MAX,
                                      &ctl->bench.tensors);
    case OPT_PARAMS:
        return cairn_ctl_parse_count("params", optarg, (uint64_t)1 << 56, &ctl->bench.params);
    case OPT_SECONDS: return cairn_ctl_parse_seconds("seconds", optarg, &ctl->bench.seconds);
    case OPT_WIRE: return parse_wire(ctl, optarg);
    case OPT_BACKEND: return parse_backend(ctl, optarg);
    case OPT_DEVICE: return parse_device(ctl, optarg);
    case OPT_STAGE: return parse_stage(ctl, optarg);
    case OPT_OFFLOAD: return parse_offload(ctl, optarg);
    case OPT_MEMORY: return parse_memory(ctl, optarg);
    case OPT_GLOBAL_BATCH:
        return cairn_ctl_parse_number("global-batch", optarg, CAIRN_SPEC_MICRO_MAX,
                                      &ctl->bench.global_batch);
    case OPT_TIMELINE: ctl->bench.timeline = optarg; return -1;
    case OPT_READ: ctl->bench.read = optarg; return -1;
    case OPT_BACKWARD:
        return cairn_ctl_parse_milliseconds("backward", optarg, &ctl->bench.backward_ms);
    case OPT_CHUNK: return cairn_ctl_parse_count("chunk", optarg, 4 << 20, &ctl->bench.chunk);
    case OPT_DIR: ctl->bench.folder = optarg; return -1;
    case OPT_ONLY: ctl->bench.only = optarg; return -1;
    default: return cairn_ctl_take_snapshot(ctl, option);
    }
}

/* Which card: a number, a UUID, or the first; and what it is. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "gpu/cuda/cuda.h"
#include "gpu/cuda/image.h"
#include "gpu/cuda/vmm.h"

#define NAME_BYTES 64
#define UUID_BYTES 48 /* "GPU-", 36 characters, NUL */

static void write_uuid(const struct cairn_cu_uuid *uuid, bool is_slice, char text[UUID_BYTES])
{
    const unsigned char *b = uuid->bytes;
    snprintf(text, UUID_BYTES,
             "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             is_slice ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9],
             b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* Name and UUID of a device; empty, and 0, where the driver does not say. */
static void describe(const struct cairn_driver *driver, int device, char name[NAME_BYTES],
                     char uuid_text[UUID_BYTES], struct cairn_cu_uuid *uuid_out)
{
    *uuid_out = (struct cairn_cu_uuid) { { 0 } };
    name[0] = uuid_text[0] = '\0';
    if (driver->cuDeviceGetName(name, NAME_BYTES, device) != CAIRN_CU_OK) name[0] = '\0';
    if (driver->cuDeviceGetUuid(uuid_out, device) == CAIRN_CU_OK)
        write_uuid(uuid_out, strstr(name, "MIG ") != NULL, uuid_text);
}

static cairn_status find_by_uuid(struct cairn_cuda *cuda, const char *wanted, int count,
                                 int *number_out, struct cairn_sentence *why)
{
    char name[NAME_BYTES], uuid[UUID_BYTES];
    struct cairn_cu_uuid bytes;
    for (int i = 0; i < count; i++) {
        int device;
        if (cuda->driver.cuDeviceGet(&device, i) != CAIRN_CU_OK) continue;
        describe(&cuda->driver, device, name, uuid, &bytes);
        if (strcasecmp(uuid, wanted) != 0) continue;
        *number_out = i;
        return CAIRN_OK;
    }
    return cairn_fail(
        why, CAIRN_ERR_NOT_FOUND,
        "no device %s among the %d that this process sees: look at nvidia-smi -L, and at the "
        "environment's CUDA_VISIBLE_DEVICES",
        wanted, count);
}

static cairn_status find_number(struct cairn_cuda *cuda, const char *wanted, int count,
                                int *number_out, struct cairn_sentence *why)
{
    *number_out = 0;
    if (wanted == NULL) return CAIRN_OK;
    if (strncasecmp(wanted, "GPU-", 4) == 0 || strncasecmp(wanted, "MIG-", 4) == 0)
        return find_by_uuid(cuda, wanted, count, number_out, why);
    char *end;
    const unsigned long number = strtoul(wanted, &end, 10);
    if (wanted[0] < '0' || wanted[0] > '9' || *end != '\0')
        return cairn_fail(
            why, CAIRN_ERR_NOT_FOUND,
            "\"%s\" names no device: a number, or a UUID that begins with GPU- or MIG-", wanted);
    if (number >= (unsigned long)count)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND,
                          "no device %s: this process sees %d, and they count from 0", wanted,
                          count);
    *number_out = (int)number;
    return CAIRN_OK;
}

static int attribute(const struct cairn_cuda *cuda, int which)
{
    int value = 0;
    if (cuda->driver.cuDeviceGetAttribute(&value, which, cuda->device) != CAIRN_CU_OK) return 0;
    return value;
}

/* Before a driver can say it: whether a control daemon of MPS has its pipes there. */
static bool has_control_daemon(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof path, "%s/control",
                                folder != NULL ? folder : "/tmp/nvidia-mps");
    return length > 0 && (size_t)length < sizeof path && access(path, F_OK) == 0;
}

static void warn(struct cairn_cuda *cuda)
{
    struct cairn_home_info *info = &cuda->home.info;
    int shared = 0;
    const bool is_told = cuda->driver.cuDeviceGetAttribute(&shared, CAIRN_CU_IS_UNDER_MPS,
                                                           cuda->device) == CAIRN_CU_OK;
    if (is_told ? shared != 0 : has_control_daemon())
        snprintf(info->warning, sizeof info->warning,
                 "this card is shared by MPS: a fault of one of its processes ends all of them, so "
                 "that a trainer's bug takes the state here with it; keep snapshots, or stop the "
                 "control daemon (echo quit | nvidia-cuda-mps-control)");
    else if (attribute(cuda, CAIRN_CU_COMPUTE_MODE) == CAIRN_CU_MODE_EXCLUSIVE_PROCESS)
        snprintf(info->warning, sizeof info->warning,
                 "this card is for one process alone: no trainer can use it beside the shard; "
                 "nvidia-smi -c 0 lets them");
}

static cairn_status look(struct cairn_cuda *cuda, struct cairn_sentence *why)
{
    struct cairn_home_info *info = &cuda->home.info;
    // Pages of memory with a handle are at least as large as others: their granularity serves both.
    const struct cairn_cu_allocation how = cairn_vmm_allocation(cuda->device, info->exports,
                                                                info->is_reached);
    size_t granularity = 0, total = 0;
    if (attribute(cuda, CAIRN_CU_HAS_VIRTUAL_MEMORY) == 0)
        return cairn_fail(why, CAIRN_ERR_UNSUPPORTED, "%s cannot map memory (cuMemCreate)",
                          info->device);
    int result = cuda->driver.cuDeviceTotalMem(&total, cuda->device);
    if (result == CAIRN_CU_OK)
        result = cuda->driver.cuMemGetAllocationGranularity(&granularity, &how,
                                                            CAIRN_CU_GRANULARITY_MINIMUM);
    if (result != CAIRN_CU_OK || granularity == 0 || CAIRN_SEGMENT_BYTES % granularity != 0)
        return cairn_cuda_check(cuda, result == CAIRN_CU_OK ? CAIRN_CU_INVALID_VALUE : result,
                                "asking for the memory", why);
    info->total_bytes = total;
    cuda->granularity = granularity;
    cuda->multiprocessors = (unsigned)attribute(cuda, CAIRN_CU_MULTIPROCESSOR_COUNT);
    if (cuda->multiprocessors == 0) cuda->multiprocessors = 1;
    warn(cuda);
    return CAIRN_OK;
}

cairn_status cairn_cuda_find(struct cairn_cuda *cuda, const char *wanted,
                             struct cairn_sentence *why)
{
    char name[NAME_BYTES], uuid[UUID_BYTES];
    int count = 0, number = 0;
    struct cairn_home_info *info = &cuda->home.info;
    if (cuda->driver.cuDeviceGetCount(&count) != CAIRN_CU_OK || count <= 0)
        return cairn_fail(
            why, CAIRN_ERR_NOT_FOUND,
            "this process sees no CUDA device: look at nvidia-smi, and at the environment's "
            "CUDA_VISIBLE_DEVICES");
    const cairn_status status = find_number(cuda, wanted, count, &number, why);
    if (status != CAIRN_OK) return status;
    if (cuda->driver.cuDeviceGet(&cuda->device, number) != CAIRN_CU_OK)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "the driver does not open device %d", number);
    struct cairn_cu_uuid bytes;
    describe(&cuda->driver, cuda->device, name, uuid, &bytes);
    memcpy(info->uuid, bytes.bytes, sizeof info->uuid);
    info->numa_node = cairn_driver_numa_node(&cuda->driver, cuda->device);
    snprintf(info->device, sizeof info->device, "%s, %s", name, uuid);
    const int version = cuda->driver.version, toolkit = cairn_image().toolkit;
    snprintf(info->driver, sizeof info->driver, "CUDA driver %d.%d, image of %d.%d", version / 1000,
             version % 1000 / 10, toolkit / 1000, toolkit % 1000 / 10);
    info->exports = attribute(cuda, CAIRN_CU_HAS_POSIX_HANDLES) != 0;
    info->is_reached = cairn_vmm_is_reached(&cuda->driver, cuda->device);
    info->has_dma_buf = cairn_vmm_has_dma_buf(&cuda->driver, cuda->device);
    cairn_cuda_find_peers(cuda, count);
    return look(cuda, why);
}

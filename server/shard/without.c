/* Finds which optional features this build and this host lack. */
#include <dirent.h>
#include <string.h>

#include "gpu/gpu.h"
#include "server/shard/without.h"

static bool has_card(void)
{
    DIR *folder = opendir("/sys/class/infiniband");
    bool found = false;
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        found |= entry->d_name[0] != '.';
    if (folder != NULL) closedir(folder);
    return found;
}

uint32_t cairn_shard_find_without(bool has_device)
{
    uint32_t without = 0;
    if (!has_card()) without |= CAIRN_WITHOUT_RDMA;
    if (!has_device) without |= CAIRN_WITHOUT_GPU;
    if (strcmp(cairn_backend_host()->isa, "avx512") != 0) without |= CAIRN_WITHOUT_AVX512;
    return without;
}

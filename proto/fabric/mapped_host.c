/* Which host this is: peers of another one are not mapped, nor tried in vain. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/fabric/mapped.h"

static bool read_boot(char boot_out[37])
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL) return false;
    const size_t count = fread(boot_out, 1, 36, file);
    fclose(file);
    boot_out[36] = '\0';
    return count == 36;
}

/* An abstract socket is reached within one network namespace only, a file by all that share its folder. */
bool mapped_host_find(const struct cairn_fabric_options *options,
                      char host_out[CAIRN_FABRIC_HOST_BYTES])
{
    char boot[37];
    struct stat namespace = { 0 };
    memset(host_out, 0, CAIRN_FABRIC_HOST_BYTES);
    if (options->host != NULL) {
        snprintf(host_out, CAIRN_FABRIC_HOST_BYTES, "%s", options->host);
        return true;
    }
    if (!read_boot(boot)) return false;
    if (options->socket_folder != NULL) {
        snprintf(host_out, CAIRN_FABRIC_HOST_BYTES, "%s", boot);
        return true;
    }
    // Not to be read: a kernel without namespaces, which has one network.
    if (stat("/proc/self/ns/net", &namespace) != 0) namespace.st_ino = 0;
    snprintf(host_out, CAIRN_FABRIC_HOST_BYTES, "%s:%llu", boot,
             (unsigned long long)namespace.st_ino);
    return true;
}

bool mapped_is_this_host(const struct mapped_fabric *fabric, const struct mapped_address *address)
{
    return memcmp(fabric->host, address->host, sizeof fabric->host) == 0;
}

bool cairn_fabric_host_is_name(const char *host)
{
    const size_t length = strnlen(host, CAIRN_FABRIC_HOST_BYTES);
    for (size_t i = 0; i < length; i++)
        if (host[i] <= 0x20 || host[i] >= 0x7f) return false;
    return length > 0 && length < CAIRN_FABRIC_HOST_BYTES;
}

/* Looks the part up by the name of the kind, not by fabric_mapped: a program that only reads
 * addresses, as the coordinator does, links no fabric, and so loads no UCX. */
static bool find_mapped(const void *address, size_t bytes, struct mapped_address *out)
{
    size_t raw_bytes;
    const void *raw = fabric_open_part(address, bytes, "mapped", &raw_bytes);
    if (raw == NULL || raw_bytes != sizeof *out) return false;
    memcpy(out, raw, sizeof *out);
    return true;
}

bool fabric_address_imports(const void *address, size_t bytes)
{
    struct mapped_address mapped;
    return find_mapped(address, bytes, &mapped) && mapped.cards.count > 0;
}

bool cairn_fabric_address_host(const void *address, size_t bytes, char *out, size_t out_bytes)
{
    struct mapped_address mapped;
    if (!find_mapped(address, bytes, &mapped)) return false;
    if (!cairn_fabric_host_is_name(mapped.host)) return false;
    const size_t length = strlen(mapped.host);
    if (length >= out_bytes) return false;
    memcpy(out, mapped.host, length + 1);
    return true;
}

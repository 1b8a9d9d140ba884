/* The envelope around a backend's address: UCX takes the lengths inside its own addresses on trust and
 * aborts on nonsense, so that garbage has to be refused before UCX sees it. */
#include "proto/fabric/backend.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

/* How an address travels: this, then the backend's own bytes. Little endian, as all hosts here. */
struct envelope {
    char magic[8];
    char kind[7];
    uint8_t flags;  /* of enum flag; others are of later versions, and mean nothing to this one */
    uint64_t bytes; /* of the address behind this */
    uint64_t checksum; /* XXH3-64 of those, seeded with their number, plus the flags */
};
static_assert(sizeof(struct envelope) == 32, "wire format");
/* The number grows with what two ends have to have alike. 2: UCX's segments are 256 KiB; one that is
 * longer than its receiver's aborts the receiver. 3: over UCX small messages come in bundles. */
static const char envelope_magic[8] = "CAIRNFA3";
enum flag { FLAG_ONE_SIDED = 1 }; /* it may read, and be read */

/* The kind as 7 bytes, padded with NUL; names of backends are shorter. */
static void write_kind(const char *kind, char kind_out[7])
{
    memset(kind_out, 0, 7);
    memcpy(kind_out, kind, strnlen(kind, 7));
}

uint64_t fabric_hash(const void *bytes, size_t count)
{
    return XXH3_64bits_withSeed(bytes, count, count);
}

cairn_status fabric_set_address(struct cairn_fabric *fabric, const void *raw, size_t bytes)
{
    struct envelope envelope = { .bytes = bytes, .checksum = fabric_hash(raw, bytes) };
    if (bytes > sizeof fabric->address - sizeof envelope) return CAIRN_ERR_UNSUPPORTED;
    memcpy(envelope.magic, envelope_magic, sizeof envelope.magic);
    write_kind(fabric->backend->kind, envelope.kind);
    envelope.flags = fabric->is_one_sided ? FLAG_ONE_SIDED : 0;
    envelope.checksum += envelope.flags;
    memcpy(fabric->address, &envelope, sizeof envelope);
    memcpy(fabric->address + sizeof envelope, raw, bytes);
    fabric->address_bytes = sizeof envelope + bytes;
    return CAIRN_OK;
}

/* Opens an address: gives its envelope and returns the bytes inside; NULL: it is not whole. */
static const uint8_t *open_envelope(const uint8_t *address, size_t bytes,
                                    struct envelope *envelope_out)
{
    struct envelope envelope;
    if (bytes <= sizeof envelope || bytes > CAIRN_FABRIC_ADDRESS_MAX) return NULL;
    memcpy(&envelope, address, sizeof envelope);
    const uint8_t *raw = address + sizeof envelope;
    if (memcmp(envelope.magic, envelope_magic, sizeof envelope.magic) != 0 ||
        envelope.bytes != bytes - sizeof envelope ||
        envelope.checksum != fabric_hash(raw, envelope.bytes) + envelope.flags)
        return NULL;
    *envelope_out = envelope;
    return raw;
}

const void *fabric_find_part(const void *address, size_t bytes, const char *of_kind, int index,
                             size_t *part_bytes_out)
{
    static const char several[7] = "auto";
    struct envelope part;
    char kind[sizeof part.kind];
    write_kind(of_kind, kind);
    const uint8_t *at = open_envelope(address, bytes, &part);
    if (at == NULL) return NULL;
    if (memcmp(part.kind, several, sizeof several) != 0) { // it is its only part
        *part_bytes_out = bytes;
        return memcmp(part.kind, kind, sizeof kind) == 0 && index == 0 ? address : NULL;
    }
    bytes = part.bytes;
    while (bytes > sizeof part) {
        memcpy(&part, at, sizeof part);
        if (part.bytes > bytes - sizeof part) return NULL;
        const size_t part_bytes = sizeof part + part.bytes;
        if (open_envelope(at, part_bytes, &part) == NULL) return NULL;
        if (memcmp(part.kind, kind, sizeof part.kind) == 0 && index-- == 0) {
            *part_bytes_out = part_bytes;
            return at;
        }
        at += part_bytes;
        bytes -= part_bytes;
    }
    return NULL;
}

const void *fabric_open_part(const void *address, size_t bytes, const char *of_kind,
                             size_t *raw_bytes_out)
{
    struct envelope envelope;
    size_t part_bytes;
    const void *part = fabric_find_part(address, bytes, of_kind, 0, &part_bytes);
    if (part == NULL) return NULL;
    const void *raw = open_envelope(part, part_bytes, &envelope);
    *raw_bytes_out = envelope.bytes;
    return raw;
}

const void *fabric_open_address(const struct cairn_fabric *fabric, const void *address,
                                size_t bytes, size_t *raw_bytes_out)
{
    return fabric_open_part(address, bytes, fabric->backend->kind, raw_bytes_out);
}

const char *cairn_fabric_address_kind(const void *address, size_t bytes)
{
    static const char *const kinds[] = { "auto", "mapped", "ucx", "mem" };
    struct envelope envelope;
    if (open_envelope(address, bytes, &envelope) == NULL) return "";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strncmp(envelope.kind, kinds[i], sizeof envelope.kind) == 0) return kinds[i];
    return "";
}

const char *cairn_fabric_address_ways(const void *address, size_t bytes)
{
    struct envelope envelope;
    const char *kind = cairn_fabric_address_kind(address, bytes);
    if (open_envelope(address, bytes, &envelope) == NULL) return kind;
    const bool reads = (envelope.flags & FLAG_ONE_SIDED) != 0;
    const bool imports = fabric_address_imports(address, bytes);
    if (strcmp(kind, "mapped") == 0) return imports ? "mapped, device" : kind;
    if (strcmp(kind, "auto") != 0) return reads ? "ucx, one-sided" : kind;
    if (imports) return reads ? "auto, one-sided, device" : "auto, device";
    return reads ? "auto, one-sided" : kind;
}

const void *cairn_fabric_address(const struct cairn_fabric *fabric, size_t *bytes_out)
{
    *bytes_out = fabric->address_bytes;
    return fabric->address;
}

/* Frames that ucx nodes send each other beside messages, so that one may read the other's memory
 * (one-sided reads): one frame in the header of an active message, numbers little-endian; and how
 * small messages are bundled. Pure; private to proto/fabric.
 *
 *   who has the memory (sends messages)             who reads it (receives them)
 *                                               <-  HELLO { number of my endpoint, whether I read }
 *   REGION { slot, generation, bytes, key }     ->
 *   REFERENCE { serial, where } header ...      ->  (reads, when it has room for it)
 *                                               <-  RELEASE { serial }: the memory is yours again
 *                                               <-  DECLINE { serial, why }: send it whole
 *   REGION_GONE { slot, generation }            ->
 *
 * Each node says HELLO over each endpoint that it makes, and answers the other's if it asks: so
 * both know, in whatever order they were connected. Each of two nodes has one endpoint to the other
 * (ucx_link.c). UCX takes these for a pair, by the order in which either node made them: a read
 * over the one is answered over the other, and never ends if that is gone (UCX 1.13). So every
 * frame about reads is of the endpoint that it came by, which UCX tells. The end of an endpoint
 * ends the other one of its pair: a node that closes one without an end of the connection says BYE
 * { its number }, and HELLO says which is the oldest that is left. BYE and PORT { of its socket }
 * are said without reads, too: a node that ends a link looks for the socket, which either of the
 * two has made. PROOF follows PORT on the same endpoint, and comes only if the other endpoint of
 * the pair is there: else BYE.
 *
 * `from` names the sender: the hash of its worker's address, which only members have. Frames MAY OVERTAKE
 * EACH OTHER: slots carry generations, serials too, and a REFERENCE of a region that is not known (yet)
 * is declined, which costs no more than sending the payload. */
#ifndef CAIRN_FABRIC_UCX_FRAME_H
#define CAIRN_FABRIC_UCX_FRAME_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/fabric/fabric.h"

enum {
    UCX_FRAME_SLOTS = 4096,      /* regions that a peer may tell of at a time */
    UCX_FRAME_KEY_MAX = 1024,    /* bytes of a packed remote key: TCP 12, InfiniBand some 60 */
    UCX_FRAME_MAGIC = 0x31425543 /* "CUB1" */
};

enum ucx_frame_kind {
    UCX_FRAME_MALFORMED = 0,
    UCX_FRAME_HELLO = 1,
    UCX_FRAME_REGION = 2,
    UCX_FRAME_REGION_GONE = 3,
    UCX_FRAME_REFERENCE = 4,
    UCX_FRAME_RELEASE = 5,
    UCX_FRAME_DECLINE = 6,
    UCX_FRAME_BYE = 7,
    UCX_FRAME_PORT = 8,
    UCX_FRAME_PROOF = 9,
};

enum ucx_decline {                          /* DECLINE: why */
                   UCX_DECLINE_UNKNOWN = 0, /* no such region was told: tell of it again */
                   UCX_DECLINE_CANNOT = 1,  /* it cannot be read: refer to nothing any more */
};

struct ucx_frame_head {
    uint32_t magic;
    uint32_t kind;
    uint64_t from;
};
struct ucx_frame_hello { /* and BYE, which says no more than its number */
    struct ucx_frame_head head;
    uint32_t endpoint; /* its number: grows with every one that the node makes */
    uint32_t oldest;   /* of those to you that are left; BYE: 0 */
    uint8_t reads;     /* 1: refer to your memory */
    uint8_t asks;      /* 1: say HELLO, too */
    uint8_t zero[6];
};
struct ucx_frame_region { /* key_bytes of packed key follow */
    struct ucx_frame_head head;
    uint64_t address; /* of the memory in its process, as reads name it */
    uint64_t bytes;
    uint64_t key_checksum; /* XXH3-64: UCX believes the lengths inside a key */
    uint32_t generation;   /* not 0 */
    uint16_t slot;
    uint16_t key_bytes;
};
struct ucx_frame_gone {
    struct ucx_frame_head head;
    uint32_t generation;
    uint16_t slot;
    uint16_t zero;
};
struct ucx_frame_reference { /* header_bytes of the message's header follow */
    struct ucx_frame_head head;
    uint64_t serial;
    uint64_t offset; /* in the region */
    uint32_t payload_bytes;
    uint32_t generation;
    uint16_t slot;
    uint16_t header_bytes;
    uint32_t zero;
};
struct ucx_frame_release { /* and DECLINE */
    struct ucx_frame_head head;
    uint64_t serial;
    uint32_t why; /* DECLINE: enum ucx_decline; else 0 */
    uint32_t zero;
};

struct ucx_frame_port {
    struct ucx_frame_head head;
    uint16_t
        port; /* of the TCP connection that the sender has made to you; 0: you have made it, say yours */
    uint16_t zero[3];
};

static_assert(sizeof(struct ucx_frame_port) == 24, "wire format");
static_assert(sizeof(struct ucx_frame_head) == 16, "wire format");
static_assert(sizeof(struct ucx_frame_hello) == 32, "wire format");
static_assert(sizeof(struct ucx_frame_region) == 48, "wire format");
static_assert(offsetof(struct ucx_frame_region, generation) == 40, "wire format");
static_assert(sizeof(struct ucx_frame_gone) == 24, "wire format");
static_assert(sizeof(struct ucx_frame_reference) == 48, "wire format");
static_assert(offsetof(struct ucx_frame_reference, slot) == 40, "wire format");
static_assert(sizeof(struct ucx_frame_release) == 32, "wire format");

enum { UCX_FRAME_MAX = sizeof(struct ucx_frame_region) + UCX_FRAME_KEY_MAX };
static_assert(sizeof(struct ucx_frame_reference) + CAIRN_FABRIC_HEADER_MAX <= UCX_FRAME_MAX, "");

union ucx_frame {
    struct ucx_frame_head head;
    struct ucx_frame_hello hello; /* and BYE */
    struct ucx_frame_region region;
    struct ucx_frame_gone gone;
    struct ucx_frame_reference reference;
    struct ucx_frame_release release; /* and DECLINE */
    struct ucx_frame_port port;
};

/* A bundle of messages (ucx_bundle.c): an active message of its own. */
struct ucx_frame_bundle { /* .. and then each message */
    uint32_t magic;
    uint32_t count; /* at least one */
};
struct ucx_frame_bundled { /* header and payload follow, filled up to 8 bytes */
    uint32_t header_bytes; /* at least one */
    uint32_t payload_bytes;
};
static_assert(sizeof(struct ucx_frame_bundle) == 8, "wire format");
static_assert(sizeof(struct ucx_frame_bundled) == 8, "wire format");

/* With its lengths and what it is filled up with. */
static inline size_t ucx_frame_bundled_bytes(const struct ucx_frame_bundled *lengths)
{
    const size_t bytes = (size_t)lengths->header_bytes + lengths->payload_bytes;
    return sizeof *lengths + (bytes + 7) / 8 * 8;
}

/* The lengths of the message that begins at `at`, which becomes where the next one does; false: none that is
 * whole begins there. */
bool ucx_frame_next_bundled(const void *bytes, size_t count, size_t *at,
                            struct ucx_frame_bundled *lengths_out);
/* It is whole: as many messages as it says, up to its last byte. */
bool ucx_frame_is_bundle(const void *bytes, size_t count);

static inline struct ucx_frame_head ucx_frame_head(enum ucx_frame_kind kind, uint64_t from)
{
    return (struct ucx_frame_head) { .magic = UCX_FRAME_MAGIC, .kind = kind, .from = from };
}

/* The kind of a frame that is whole and of one of the forms above, copied into `frame_out` without
 * what follows it, which begins at `bytes + *size_out`. Slots and sizes are not judged, as only the
 * receiver of the frame knows which are right. */
enum ucx_frame_kind ucx_frame_judge(const void *bytes, size_t count, union ucx_frame *frame_out,
                                    size_t *size_out);

#endif

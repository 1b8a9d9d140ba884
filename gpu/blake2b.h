/* The tables of BLAKE2b (RFC 7693) for the two implementations of the hash in Cairn: the host's vectors
 * (gpu/host/isa/table.c) and the device's lanes (gpu/kernel/bodies.h). The tables are macros, so that nvcc
 * can use them in device code, too. Numbers such as 2.6 are sections of the RFC. */
#ifndef CAIRN_GPU_BLAKE2B_H
#define CAIRN_GPU_BLAKE2B_H

#define BLAKE2B_WORDS 16 /* words of a block */
#define BLAKE2B_BLOCK 128

/* 2.6: the initialization vector, eight words. */
#define BLAKE2B_IV                                                                         \
    {                                                                                      \
        0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,    \
            0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179 \
    }

/* 2.5: the parameter block, which is xored into the first word of the state. It means: no key, a digest of
 * 32 bytes, sequential. */
#define BLAKE2B_256 0x01010020

/* 2.7: calls ROUND() for each round, with the order in which the round uses the words of the message.
 * Rounds 10 and 11 use the orders of rounds 0 and 1. */
#define BLAKE2B_ROUNDS(ROUND)                                   \
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) \
    ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3) \
    ROUND(11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4) \
    ROUND(7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8) \
    ROUND(9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13) \
    ROUND(2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9) \
    ROUND(12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11) \
    ROUND(13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10) \
    ROUND(6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5) \
    ROUND(10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0) \
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) \
    ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3)

#endif

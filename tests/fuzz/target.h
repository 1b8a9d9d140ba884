/* A fuzz target: bytes of a stranger into one parser, and what must hold of every answer. By libFuzzer
 * (FUZZ=ON, clang) or by driver.c. A property that does not hold aborts. */
#ifndef CAIRN_TESTS_FUZZ_TARGET_H
#define CAIRN_TESTS_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define MUST(condition) ((condition) ? (void)0 : abort())

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif

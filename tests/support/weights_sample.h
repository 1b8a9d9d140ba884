/* Files of weights for tests, written without the library's own writer: safetensors, and a Hugging Face
 * index. What fails, fails the test. */
#ifndef CAIRN_SUPPORT_WEIGHTS_SAMPLE_H
#define CAIRN_SUPPORT_WEIGHTS_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

struct sample_weight {
    const char *key, *dtype; /* "F32" */
    uint32_t rank;
    uint64_t shape[4];
    const void *bytes; /* [byte_count] */
    size_t byte_count;
};

void sample_weights_write(const char *path, const struct sample_weight *weights, size_t count);
/* {"metadata": ..., "weight_map": {keys[i]: files[i], ...}} */
void sample_index_write(const char *path, const char *const *keys, const char *const *files,
                        size_t count);
/* A file of exactly these bytes. */
void sample_bytes_write(const char *path, const void *bytes, size_t byte_count);

#endif

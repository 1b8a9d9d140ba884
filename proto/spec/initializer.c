#include "proto/spec/initializer.h"

#include <assert.h>
#include <sodium.h>
#include <string.h>

static void make_key(uint64_t seed, const char *tensor, uint32_t key_out[2])
{
    static const char domain[] = "cairn initializer 1";
    crypto_generichash_state state;
    uint8_t bytes[8], hash[32];
    for (size_t i = 0; i < 8; i++) bytes[i] = (uint8_t)(seed >> (8 * i));
    crypto_generichash_init(&state, NULL, 0, sizeof hash);
    crypto_generichash_update(&state, (const uint8_t *)domain, sizeof domain - 1);
    crypto_generichash_update(&state, bytes, sizeof bytes);
    crypto_generichash_update(&state, (const uint8_t *)tensor, strlen(tensor));
    crypto_generichash_final(&state, hash, sizeof hash);
    for (size_t k = 0; k < 2; k++) {
        key_out[k] = 0;
        for (size_t i = 0; i < 4; i++) key_out[k] |= (uint32_t)hash[4 * k + i] << (8 * i);
    }
}

struct cairn_init_source cairn_init_source_of(const struct cairn_init *init, const char *tensor)
{
    struct cairn_init_source source = { .is_uniform = init->kind == CAIRN_INIT_UNIFORM,
                                        .is_normal = init->kind == CAIRN_INIT_NORMAL };
    assert(init->kind != CAIRN_INIT_NONE);
    if (source.is_uniform != 0 || source.is_normal != 0) {
        source.a = init->a;
        source.b = init->b;
        make_key(init->seed, tensor, source.key);
    } else {
        source.a = init->kind == CAIRN_INIT_ONES       ? 1.0
                   : init->kind == CAIRN_INIT_CONSTANT ? init->a
                                                       : 0.0;
    }
    return source;
}

static void fill_random(const struct cairn_init_source *source, uint64_t first_elem,
                        uint64_t elem_count, float *out)
{
    uint32_t words[4] = { 0 };
    uint64_t block = UINT64_MAX; // none: elements are below 2^49
    for (uint64_t i = 0; i < elem_count; i++) {
        const uint64_t elem = first_elem + i;
        if (elem / 2 != block) {
            block = elem / 2;
            cairn_init_words(source, block, words);
        }
        out[i] = cairn_init_random(source, words, elem);
    }
}

void cairn_init_elems(const struct cairn_init_source *source, uint64_t first_elem,
                      uint64_t elem_count, float *out)
{
    if (source->is_uniform != 0 || source->is_normal != 0) {
        fill_random(source, first_elem, elem_count, out);
        return;
    }
    for (uint64_t i = 0; i < elem_count; i++) out[i] = (float)source->a;
}

void cairn_init_fill(const struct cairn_init *init, const char *tensor, uint64_t first_elem,
                     uint64_t elem_count, float *out)
{
    const struct cairn_init_source source = cairn_init_source_of(init, tensor);
    cairn_init_elems(&source, first_elem, elem_count, out);
}

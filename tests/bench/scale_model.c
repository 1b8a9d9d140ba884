#include "tests/bench/scale_model.h"

#include <stdio.h>
#include <stdlib.h>

const struct scale_model scale_models[SCALE_MODELS] = {
    { .name = "7 B",
      .source = "Llama 2 7B (Touvron et al. 2023)",
      .block_count = 32,
      .vocabulary = 32000,
      .width = 4096,
      .block = { { "q", 4096, 4096 },
                 { "k", 4096, 4096 },
                 { "v", 4096, 4096 },
                 { "o", 4096, 4096 },
                 { "gate", 11008, 4096 },
                 { "up", 11008, 4096 },
                 { "down", 4096, 11008 },
                 { "norms", 2 * 4096, 0 } } },
    { .name = "70 B",
      .source = "Llama 2 70B (the same)",
      .block_count = 80,
      .vocabulary = 32000,
      .width = 8192,
      .block = { { "q", 8192, 8192 },
                 { "k", 1024, 8192 },
                 { "v", 1024, 8192 },
                 { "o", 8192, 8192 },
                 { "gate", 28672, 8192 },
                 { "up", 28672, 8192 },
                 { "down", 8192, 28672 },
                 { "norms", 2 * 8192, 0 } } },
    { .name = "1 T",
      .source = "the 1008 B GPT of Narayanan et al., SC 2021, table 1",
      .block_count = 128,
      .vocabulary = 51200,
      .width = 25600,
      .block = { { "qkv", 3 * 25600, 25600 },
                 { "proj", 25600, 25600 },
                 { "fc1", 4 * 25600, 25600 },
                 { "fc2", 25600, 4 * 25600 },
                 { "norms", 2 * 25600, 0 } } },
};

static void add(struct scale_tensors *out, uint32_t unit, uint32_t elem_bytes,
                const struct scale_block_tensor *tensor)
{
    const uint32_t t = out->count++;
    char *name = out->names[(size_t)2 * t], *unit_name = out->names[(size_t)2 * t + 1];
    snprintf(name, SCALE_NAME_BYTES, "%u.%s", unit, tensor->name);
    snprintf(unit_name, SCALE_NAME_BYTES, "%u", unit);
    const uint32_t rank = tensor->columns > 0 ? 2 : 1;
    out->list[t] = (struct layout_tensor) {
        .name = name,
        .unit = unit_name,
        .shape = { .rank = rank, .dim = { tensor->rows, tensor->columns } },
        .elem_bytes = elem_bytes,
    };
    out->unit[t] = unit;
    out->elems += tensor->rows * (rank == 2 ? tensor->columns : 1);
}

void scale_tensors_make(const struct scale_model *model, uint32_t elem_bytes,
                        struct scale_tensors *out)
{
    const size_t most = (size_t)model->block_count * SCALE_BLOCK_TENSORS_MAX + 2;
    const struct scale_block_tensor words = { "words", model->vocabulary, model->width };
    *out = (struct scale_tensors) {
        .list = calloc(most, sizeof *out->list),
        .unit = calloc(most, sizeof *out->unit),
        .names = calloc(2 * most, sizeof *out->names),
    };
    if (out->list == NULL || out->unit == NULL || out->names == NULL) abort();
    add(out, out->unit_count++, elem_bytes, &words);
    for (uint32_t b = 0; b < model->block_count; b++, out->unit_count++)
        for (uint32_t t = 0; model->block[t].name != NULL; t++)
            add(out, out->unit_count, elem_bytes, &model->block[t]);
    add(out, out->unit_count++, elem_bytes, &words);
}

void scale_tensors_release(struct scale_tensors *tensors)
{
    free(tensors->list);
    free(tensors->unit);
    free(tensors->names);
    *tensors = (struct scale_tensors) { .list = NULL };
}

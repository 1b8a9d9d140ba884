#include "proto/spec/without.h"

static const struct {
    const char *name, *because;
} lacks_table[CAIRN_WITHOUT_COUNT] = {
    { "RDMA", "no card in /sys/class/infiniband" },
    { "GPU", "compute.backend is host, or there is none that will do" },
    { "AVX-512", "not of this processor, or not wanted" },
};

const char *cairn_without_name(uint32_t index)
{
    return index < CAIRN_WITHOUT_COUNT ? lacks_table[index].name : "?";
}

void cairn_without_print(uint32_t without, struct cairn_sentence *out)
{
    cairn_sentence_set(out, "%s", "");
    for (uint32_t i = 0; i < CAIRN_WITHOUT_COUNT; i++)
        if ((without & 1u << i) != 0)
            cairn_sentence_add(out, "%s%s (%s)", out->text[0] != '\0' ? ", " : "",
                               lacks_table[i].name, lacks_table[i].because);
}

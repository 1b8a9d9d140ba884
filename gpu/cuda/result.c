#include "gpu/cuda/result.h"

#include "gpu/cuda/driver.h"

static const struct {
    int result;
    bool breaks;
    const char *advice;
} meanings[] = {
#define CAIRN_MEANING(name, number, breaks, advice) { number, breaks, advice },
    CAIRN_MEANINGS(CAIRN_MEANING)
#undef CAIRN_MEANING
};

#define MEANINGS (sizeof meanings / sizeof meanings[0])

static size_t find(int result)
{
    size_t i = 0;
    while (i < MEANINGS && meanings[i].result != result) i++;
    return i;
}

const char *cairn_driver_advice(int result)
{
    const size_t i = find(result);
    return i < MEANINGS ? meanings[i].advice : CAIRN_ADVICE_SEE;
}

/* A result that is not in the table, perhaps of a newer driver, is taken for the worst. */
bool cairn_driver_breaks(int result)
{
    const size_t i = find(result);
    return i == MEANINGS || meanings[i].breaks;
}

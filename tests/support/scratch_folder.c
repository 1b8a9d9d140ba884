#include "tests/support/scratch_folder.h"

char scratch[CAIRN_SCRATCH_BYTES];

void scratch_make(void)
{
    cairn_scratch_make(scratch);
}

void scratch_remove(void)
{
    cairn_scratch_remove(scratch);
}

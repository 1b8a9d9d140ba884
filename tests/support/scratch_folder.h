/* A folder of the test's own, as a fixture: SUITE(30, scratch_make, scratch_remove). */
#ifndef CAIRN_SUPPORT_SCRATCH_FOLDER_H
#define CAIRN_SUPPORT_SCRATCH_FOLDER_H

#include "tests/support/scratch.h"

extern char scratch[CAIRN_SCRATCH_BYTES];

void scratch_make(void);
void scratch_remove(void);

#endif

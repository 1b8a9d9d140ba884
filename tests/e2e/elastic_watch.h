/* How long nothing is trained, and whether that may be the machine's doing. */
#ifndef CAIRN_E2E_ELASTIC_WATCH_H
#define CAIRN_E2E_ELASTIC_WATCH_H

#include "tests/e2e/elastic_worker.h"

/* Times begin anew. `steps` of `shared`, which is borrowed until the next call, counts them. */
void elastic_watch_begin(const struct elastic_shared *shared, const _Atomic uint64_t *steps);
/* Notes what has happened, and sleeps for a moment. */
void elastic_watch_look(void);
/* The longest time between two steps that elastic_watch_look saw, or since the last one. */
int64_t elastic_watch_longest_ms(void);
/* True if that is below `most_ms`. False if others on this machine may have held the step up: the test is to
 * do it again. The test fails if processors were not waited for so long that this explains it, or if it was
 * false several times in succession, which `again` counts: what the product does it does each time. */
bool elastic_watch_is_below(int64_t most_ms, int *again);

#endif

/* Checks whether the process has what libraries take without asking. libuv and UCX end the process
 * if they find no descriptor, or no thread, in the middle of their initialization (libuv 1.44,
 * uv__signal_global_init; UCX 1.13, ucs/async/thread.c): so this is checked before they begin.
 * Resources that were at hand may be gone a moment later. */
#ifndef CAIRN_BASE_AT_HAND_H
#define CAIRN_BASE_AT_HAND_H

#include "proto/base/sentence.h"

/* So many descriptors, tried with copies of `fd`, at most 256. CAIRN_ERR_NO_MEMORY: fewer; `why` says how
 * many, and what is to be done. `whose`: "a session". */
cairn_status cairn_descriptors_at_hand(int fd, int count, const char *whose,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* So many threads, at most 64, which begin and end. */
cairn_status cairn_threads_at_hand(int count, const char *whose,
                                   struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif

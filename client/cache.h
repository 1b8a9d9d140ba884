/* Gathered units: what cairn_prefetch and cairn_map have in the library's memory, by unit and version.
 *
 * A block holds the tensors of one unit at one version. It is fetched once, whoever asks for it first; it is
 * lent to each cairn_map until its cairn_unmap, and goes when it is on loan no more and was not prefetched
 * again. At most `window` blocks are held: a prefetch beyond it puts out the oldest one that is not on
 * loan, or is dropped; a map beyond it is counted. What is of an older version than the one that is asked
 * for goes, too, unless it is on loan. Any thread; one lock, the session's. */
#ifndef CAIRN_CLIENT_CACHE_H
#define CAIRN_CLIENT_CACHE_H

#include "client/session.h"

/* With the job: no operation is under way any more. */
void cairn_cache_release(struct job *job);

#endif

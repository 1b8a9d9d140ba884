/* Known bugs of published copies, seeded one at a time: test_shard_bring_mutant_<n> is built with
 * -DCAIRN_READ_MUTANT=<n>, and has to fail (tests/gpu). A daemon is always built with none, and every
 * MUTANT(n) folds to 0 there. */
#ifndef CAIRN_SHARD_MUTANT_H
#define CAIRN_SHARD_MUTANT_H

#ifndef CAIRN_READ_MUTANT
#define CAIRN_READ_MUTANT 0
#endif
#define MUTANT(n) (CAIRN_READ_MUTANT == (n))

/*  1  a chunk counts as brought before its copy is done
 *  2  what was brought of the version before counts for the one that is written over it */
#define CAIRN_READ_MUTANT_COUNT 2

#endif

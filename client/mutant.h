/* Known bugs of order, seeded one at a time: test_device_wait_mutant_<n> is built with
 * -DCAIRN_DEVICE_MUTANT=<n>, and the emulated card has to catch it (tests/gpu). The library is always built
 * with none, and every MUTANT(n) folds to 0 there. */
#ifndef CAIRN_CLIENT_MUTANT_H
#define CAIRN_CLIENT_MUTANT_H

#ifndef CAIRN_DEVICE_MUTANT
#define CAIRN_DEVICE_MUTANT 0
#endif
#define MUTANT(n) (CAIRN_DEVICE_MUTANT == (n))

/*  1  who sets a word maps memory while a stream waits for one
 *  2  a stream begins to wait while memory is being mapped
 *  3  a word that is set counts as one that is waited for */
#define CAIRN_DEVICE_MUTANT_COUNT 3

#endif

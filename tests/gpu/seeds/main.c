/* cairn-home-seeds: random lists of work on a home of the emulated card, and the same ones on the host's
 * home.
 *
 *   cairn-home-seeds --seeds A-B [--quiet]    exit 1 at the first seed in which a bit differs or a call
 *                                             fails; the emulated card aborts at the first race
 *
 * A seed is two streams, used one after the other, and tensors of several sizes; each run works on all of
 * them, in lists of which two are under way at a time, with sources and results in the home, in pinned and in
 * other memory. When it is over, what it read is overwritten: who reads late, reads that. Before some runs
 * there is one in which the driver refuses a launch, at times with a list ahead of it. CAIRN_CUDA_DRIVER
 * names the emulated driver. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/seeds/world.h"

static int (*emulator_set)(const char *options);

static bool find_emulator(void)
{
    const char *name = getenv("CAIRN_CUDA_DRIVER");
    void *library = name == NULL ? NULL : dlopen(name, RTLD_NOW);
    void *at = library == NULL ? NULL : dlsym(library, "cairn_emulator_set");
    memcpy(&emulator_set, &at, sizeof at);
    return at != NULL;
}

static bool run_seed(uint64_t seed)
{
    char options[64];
    snprintf(options, sizeof options, "seed=%" PRIu64, seed);
    emulator_set(options);
    const char *wrong = world_run(seed, emulator_set);
    if (wrong != NULL) printf("seed %" PRIu64 ": %s\n", seed, wrong);
    return wrong == NULL;
}

int main(int argc, char **argv)
{
    uint64_t first = 1, last = 0;
    bool quiet = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quiet") == 0)
            quiet = true;
        else if (strcmp(argv[i], "--seeds") != 0 || i + 1 == argc ||
                 sscanf(argv[++i], "%" SCNu64 "-%" SCNu64, &first, &last) != 2)
            last = 0;
    }
    if (last < first) {
        fprintf(stderr, "usage: cairn-home-seeds --seeds A-B [--quiet]\n");
        return 2;
    }
    if (!find_emulator()) {
        fprintf(stderr, "CAIRN_CUDA_DRIVER names no emulated driver\n");
        return 2;
    }
    for (uint64_t seed = first; seed <= last; seed++)
        if (!run_seed(seed)) return 1;
    if (!quiet) printf("seeds %" PRIu64 " to %" PRIu64 ": the bits of the host\n", first, last);
    return 0;
}

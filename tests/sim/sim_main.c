/* cairn-sim: runs seeds, and says what was seen. A seed that runs twice has to do the same twice.
 *
 *   cairn-sim --seeds A-B [--quiet]     the seeds A to B; exit 1 at the first failure, which prints its seed
 *   cairn-sim --seed S [--verbose]      one of them, telling every event
 *   --repeat-every N                    only every N-th seed runs twice; 1: each, the default
 *   --require-all                       also fail if something that should have been seen was not */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/sim.h"

static const char *const seen_texts[] = {
#define X(name, text) text,
    SIM_SEEN(X)
#undef X
};

struct options {
    uint64_t first, last, repeat_every;
    bool verbose, quiet, require_all;
};

static int usage(void)
{
    fprintf(stderr,
            "usage: cairn-sim (--seeds A-B | --seed S) [--verbose] [--quiet] [--repeat-every N] "
            "[--require-all]\n");
    return 2;
}

static bool parse(int argc, char **argv, struct options *options)
{
    *options = (struct options) { .repeat_every = 1 };
    bool seeds = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--seeds") == 0)
            seeds = sscanf(value, "%" SCNu64 "-%" SCNu64, &options->first, &options->last) == 2;
        else if (strcmp(argv[i], "--seed") == 0)
            seeds = sscanf(value, "%" SCNu64, &options->first) == 1;
        else if (strcmp(argv[i], "--repeat-every") == 0)
            options->repeat_every = strtoull(argv[++i] != NULL ? value : "0", NULL, 10);
        else if (strcmp(argv[i], "--verbose") == 0)
            options->verbose = true;
        else if (strcmp(argv[i], "--quiet") == 0)
            options->quiet = true;
        else if (strcmp(argv[i], "--require-all") == 0)
            options->require_all = true;
        else
            return false;
        if (i < argc && strcmp(argv[i], "--seed") == 0) options->last = options->first;
        if (i < argc && strncmp(argv[i], "--seed", 6) == 0) i++;
    }
    return seeds && options->repeat_every > 0 && options->first <= options->last;
}

/* What the second run of a seed sees is what the first one saw, and is counted once. */
static bool run_seed(struct sim *sim, uint64_t seed, const struct options *options)
{
    uint64_t seen[SEEN_COUNT];
    sim_run(sim, seed, options->verbose);
    const uint64_t trace = sim->trace;
    if (sim->failed) {
        printf("seed %" PRIu64 ": %s\n  again: cairn-sim --seed %" PRIu64 " --verbose\n", seed,
               sim->failure, seed);
        return false;
    }
    if (seed % options->repeat_every != 0) return true;
    memcpy(seen, sim->seen, sizeof seen);
    sim_run(sim, seed, false);
    memcpy(sim->seen, seen, sizeof seen);
    if (sim->trace == trace && !sim->failed) return true;
    printf("seed %" PRIu64 ": two runs had different traces\n", seed);
    return false;
}

static bool summary(const struct sim *sim, const struct options *options)
{
    bool all = true;
    for (int i = 0; i < SEEN_COUNT; i++) {
        if (!options->quiet) printf("%12" PRIu64 "  %s\n", sim->seen[i], seen_texts[i]);
        if (sim->seen[i] > 0) continue;
        all = false;
        if (options->require_all) printf("never seen: %s\n", seen_texts[i]);
    }
    return all || !options->require_all;
}

int main(int argc, char **argv)
{
    struct options options;
    if (!parse(argc, argv, &options)) return usage();
    struct sim *sim = sim_open();
    const clock_t began = clock();
    uint64_t trace = 0;
    bool good = sim_operations();
    for (uint64_t seed = options.first; good && seed <= options.last; seed++) {
        good = run_seed(sim, seed, &options);
        trace = mix(trace, sim->trace);
    }
    good = good && summary(sim, &options);
    const double seconds = (double)(clock() - began) / (double)CLOCKS_PER_SEC;
    if (good)
        printf("%" PRIu64 " seeds, every %" PRIu64 ". twice, trace %016" PRIx64 ", %.1f s\n",
               options.last - options.first + 1, options.repeat_every, trace, seconds);
    sim_close(sim);
    return good ? 0 : 1;
}

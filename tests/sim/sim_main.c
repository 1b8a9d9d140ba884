/* cairn-sim: runs seeds, each twice, and says what was seen.
 *
 *   cairn-sim --seeds A-B [--quiet]     the seeds A to B; exit 1 at the first failure, which prints its seed
 *   cairn-sim --seed S [--verbose]      one of them, telling every event
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
    uint64_t first, last;
    bool verbose, quiet, require_all;
};

static int usage(void)
{
    fprintf(stderr,
            "usage: cairn-sim (--seeds A-B | --seed S) [--verbose] [--quiet] [--require-all]\n");
    return 2;
}

static bool parse(int argc, char **argv, struct options *options)
{
    memset(options, 0, sizeof *options);
    bool seeds = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--seeds") == 0)
            seeds = sscanf(value, "%" SCNu64 "-%" SCNu64, &options->first, &options->last) == 2;
        else if (strcmp(argv[i], "--seed") == 0)
            seeds = sscanf(value, "%" SCNu64, &options->first) == 1;
        else if (strcmp(argv[i], "--verbose") == 0)
            options->verbose = true;
        else if (strcmp(argv[i], "--quiet") == 0)
            options->quiet = true;
        else if (strcmp(argv[i], "--require-all") == 0)
            options->require_all = true;
        else
            return false;
        if (strcmp(argv[i], "--seed") == 0) options->last = options->first;
        if (strncmp(argv[i], "--seed", 6) == 0) i++;
    }
    return seeds && options->first <= options->last;
}

static bool run_seed(struct sim *sim, uint64_t seed, const struct options *options)
{
    sim_run(sim, seed, options->verbose);
    const uint64_t trace = sim->trace;
    if (sim->failed) {
        printf("seed %" PRIu64 ": %s\n  again: cairn-sim --seed %" PRIu64 " --verbose\n", seed,
               sim->failure, seed);
        return false;
    }
    sim_run(sim, seed, false);
    if (sim->trace == trace && !sim->failed) return true;
    printf("seed %" PRIu64 ": two runs had different traces\n", seed);
    return false;
}

/* Each seed ran twice, so everything was counted twice. */
static bool summary(const struct sim *sim, const struct options *options)
{
    bool all = true;
    for (int i = 0; i < SEEN_COUNT; i++) {
        if (!options->quiet) printf("%12" PRIu64 "  %s\n", sim->seen[i] / 2, seen_texts[i]);
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
        printf("%" PRIu64 " seeds, each twice, trace %016" PRIx64 ", %.1f s\n",
               options.last - options.first + 1, trace, seconds);
    sim_close(sim);
    return good ? 0 : 1;
}

/* Runs a target without libFuzzer: all files of the corpus as they are, then changed ones, for some seconds.
 * usage: fuzz_NAME CORPUS_FOLDER SECONDS [SEED]
 * What makes the target fail is left as ./fuzz_NAME.failed; the seed is printed. A file is tried again by
 * giving its folder and 0 seconds. */
#include <inttypes.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/fuzz/target.h"
#include "tests/support/random.h"

enum { INPUTS_MAX = 64, INPUT_BYTES_MAX = 65536, CHANGES_MAX = 8 };

struct input {
    uint8_t *bytes; // owned
    size_t size;
};

static struct input corpus[INPUTS_MAX];
static size_t corpus_count;
static uint8_t trial[INPUT_BYTES_MAX];
static size_t trial_bytes;
static char failed_path[256];

static void on_failure(int signal_number)
{
    FILE *out = fopen(failed_path, "wb");
    if (out != NULL) {
        fwrite(trial, 1, trial_bytes, out);
        fclose(out);
        fprintf(stderr, "signal %d: the input is in %s\n", signal_number, failed_path);
    }
    _exit(1);
}

static void read_input(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *in = fopen(path, "rb");
    if (in == NULL) return;
    struct input *input = &corpus[corpus_count];
    input->bytes = malloc(INPUT_BYTES_MAX);
    if (input->bytes == NULL) abort();
    input->size = fread(input->bytes, 1, INPUT_BYTES_MAX, in);
    fclose(in);
    corpus_count++;
}

static void read_corpus(const char *folder)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) return;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL && corpus_count < INPUTS_MAX)
        if (entry->d_name[0] != '.') read_input(folder, entry->d_name);
    closedir(dir);
}

/* In memory of its own size, so that a byte read beyond it is found by ASan. */
static void run_trial(void)
{
    uint8_t *exact = malloc(trial_bytes > 0 ? trial_bytes : 1);
    if (exact == NULL) abort();
    memcpy(exact, trial, trial_bytes);
    LLVMFuzzerTestOneInput(exact, trial_bytes);
    free(exact);
}

static void take(const struct input *input)
{
    memcpy(trial, input->bytes, input->size);
    trial_bytes = input->size;
}

/* `count` bytes at `from` are there once more, behind themselves, or are gone. */
static void repeat(size_t from, size_t count)
{
    if (trial_bytes + count > INPUT_BYTES_MAX) return;
    memmove(trial + from + count, trial + from, trial_bytes - from);
    trial_bytes += count;
}

static void cut(size_t from, size_t count)
{
    memmove(trial + from, trial + from + count, trial_bytes - from - count);
    trial_bytes -= count;
}

/* `count` bytes from somewhere else in the corpus over those at `from`. */
static void splice(size_t from, size_t count)
{
    const struct input *other = &corpus[random_below(corpus_count)];
    if (other->size < count) return;
    memcpy(trial + from, other->bytes + random_below(other->size - count + 1), count);
}

static void change(void)
{
    static const char telling[] = "0123456789-\"\\{}[]:,.eE\n\xff";
    if (trial_bytes == 0) return;
    const size_t from = random_below(trial_bytes), rest = trial_bytes - from;
    const size_t count = 1 + random_below(rest < 32 ? rest : 32);
    switch (random_below(6)) {
    case 0: trial[from] ^= (uint8_t)(1U << random_below(8)); break;
    case 1: trial[from] = (uint8_t)telling[random_below(sizeof telling)]; break;
    case 2: trial[from] = (uint8_t)random_below(256); break;
    case 3: repeat(from, count); break;
    case 4: cut(from, count); break;
    default: splice(from, count); break;
    }
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER SECONDS [SEED]\n", argv[0]);
        return 2;
    }
    const char *slash = strrchr(argv[0], '/');
    snprintf(failed_path, sizeof failed_path, "%s.failed", slash == NULL ? argv[0] : slash + 1);
    const double end_s = now_s() + strtod(argv[2], NULL);
    random_state = argc > 3 ? strtoull(argv[3], NULL, 10) : (uint64_t)time(NULL);
    printf("seed %" PRIu64 "\n", random_state);
    fflush(stdout);
    signal(SIGABRT, on_failure);
    signal(SIGSEGV, on_failure);
    read_corpus(argv[1]);
    if (corpus_count == 0) {
        fprintf(stderr, "%s has no file\n", argv[1]);
        return 2;
    }
    for (size_t i = 0; i < corpus_count; i++) {
        take(&corpus[i]);
        run_trial();
    }
    uint64_t trials = 0;
    for (; trials % 64 != 0 || now_s() < end_s; trials++) {
        take(&corpus[random_below(corpus_count)]);
        for (uint64_t left = 1 + random_below(CHANGES_MAX); left > 0; left--) change();
        run_trial();
    }
    printf("%zu files, %" PRIu64 " changed ones\n", corpus_count, trials);
    for (size_t i = 0; i < corpus_count; i++) free(corpus[i].bytes);
    return 0;
}

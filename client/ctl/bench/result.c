/* Runs by turns, their medians, and how a result is printed. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/bench/bench.h"

#define SECONDS_DEFAULT 5.0

struct runs {
    double values[CAIRN_BENCH_RUNS_MAX], references[CAIRN_BENCH_RUNS_MAX];
    double ratios[CAIRN_BENCH_RUNS_MAX];
    uint32_t count;
};

double cairn_bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct cairn_bench_spread cairn_bench_spread_of(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, by_size);
    const double middle = values[count / 2];
    return (struct cairn_bench_spread) {
        .median = count % 2 == 1 ? middle : (values[count / 2 - 1] + middle) / 2,
        .min = values[0],
        .max = values[count - 1],
    };
}

/* One of each. False: one of them failed. */
static bool run_pair(bool less_is_better, cairn_bench_fn subject, cairn_bench_fn reference,
                     void *context, struct runs *runs)
{
    const double value = subject(context);
    const double other = value > 0 ? reference(context) : 0;
    if (!(value > 0) || !(other > 0)) return false;
    runs->values[runs->count] = value;
    runs->references[runs->count] = other;
    runs->ratios[runs->count] = less_is_better ? other / value : value / other;
    runs->count++;
    return true;
}

int cairn_bench_alternate(struct cairn_bench_result *result, double seconds, cairn_bench_fn subject,
                          cairn_bench_fn reference, void *context)
{
    static struct runs runs;
    if (!(seconds > 0)) seconds = SECONDS_DEFAULT;
    runs.count = 0;
    if (!run_pair(result->less_is_better, subject, reference, context, &runs)) return 1;
    runs.count =
        0; // the first touches memory that nothing has touched, and fills what is filled once
    const double end = cairn_bench_now() + seconds;
    while (runs.count < CAIRN_BENCH_RUNS_MAX &&
           (runs.count < CAIRN_BENCH_RUNS_MIN || cairn_bench_now() < end))
        if (!run_pair(result->less_is_better, subject, reference, context, &runs)) return 1;
    result->value = cairn_bench_spread_of(runs.values, runs.count);
    result->reference = cairn_bench_spread_of(runs.references, runs.count);
    result->ratio = cairn_bench_spread_of(runs.ratios, runs.count);
    result->runs = runs.count;
    return -1;
}

/* ---- printing ---- */

static void set_spread(json_t *object, const char *name, const struct cairn_bench_spread *spread)
{
    char key[32];
    json_object_set_new(object, name, json_real(spread->median));
    snprintf(key, sizeof key, "%s_min", name);
    json_object_set_new(object, key, json_real(spread->min));
    snprintf(key, sizeof key, "%s_max", name);
    json_object_set_new(object, key, json_real(spread->max));
}

static int print_json(const struct cairn_bench_result *result)
{
    json_t *object = json_pack("{s:s, s:s, s:s, s:I, s:O, s:O, s:o}", "bench", result->bench,
                               "unit", result->unit, "reference_name", result->reference_name,
                               "runs", (json_int_t)result->runs, "params", result->params, "parts",
                               result->parts, "machine", cairn_bench_machine());
    set_spread(object, "value", &result->value);
    set_spread(object, "reference", &result->reference);
    set_spread(object, "ratio", &result->ratio);
    return cairn_ctl_print_json(object);
}

/* "name value" by turns, on one line. */
static void print_object(const char *name, json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(6));
    const size_t length = text != NULL ? strlen(text) : 0;
    size_t kept = 0;
    for (size_t i = 0; i < length; i++) {
        if (strchr("{}\"", text[i]) != NULL) continue;
        text[kept++] = text[i] == ',' || text[i] == ':' ? ' ' : text[i];
    }
    if (kept > 0) cairn_ctl_line(name, "%.*s", (int)kept, text);
    free(text);
}

static void print_spread(const char *name, const char *unit,
                         const struct cairn_bench_spread *spread, const char *note)
{
    cairn_ctl_line(name, "%.4g%s%s (%.4g to %.4g)%s%s", spread->median, unit[0] != 0 ? " " : "",
                   unit, spread->min, spread->max, note[0] != 0 ? ", " : "", note);
}

static void print_table(const struct cairn_bench_result *result)
{
    json_t *machine = cairn_bench_machine();
    print_spread(result->bench, result->unit, &result->value, "");
    print_spread("reference", result->unit, &result->reference, result->reference_name);
    print_spread("ratio", "", &result->ratio, "");
    cairn_ctl_line("runs", "%u of each, by turns", result->runs);
    print_object("parts", result->parts);
    print_object("params", result->params);
    print_object("machine", machine);
    json_decref(machine);
}

int cairn_bench_print(struct cairn_bench_result *result, const struct ctl *ctl)
{
    if (result->params == NULL) result->params = json_object();
    if (result->parts == NULL) result->parts = json_object();
    if (ctl->json)
        print_json(result);
    else
        print_table(result);
    json_decref(result->params);
    json_decref(result->parts);
    return 0;
}

/* cairn bench layout: one plan, by a process of its own, so that its time and its memory are the planner's
 * alone. The model is like a language model's: blocks of a few large and many small tensors. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/bench/bench.h"
#include "proto/plan/plan.h"

#define BOUND_SECONDS  1.0
#define BOUND_BYTES    ((uint64_t)1 << 30)
#define UNIT_TENSORS   16 /* of a block */
#define LARGE_OF_UNIT  7  /* attention and feed-forward; the others are norms and biases */
#define SMALL_ELEMS    ((uint64_t)8192)
#define NAME_BYTES     32
#define PARAMS_DEFAULT ((uint64_t)1000000000000)

struct layout_bench {
    uint64_t params;
    uint32_t tensors, shards;
    double rss_bytes;
};

static bool is_large(uint32_t tensor)
{
    return tensor % UNIT_TENSORS < LARGE_OF_UNIT;
}

static uint32_t large_count(uint32_t tensors)
{
    const uint32_t rest = tensors % UNIT_TENSORS;
    return tensors / UNIT_TENSORS * LARGE_OF_UNIT + (rest < LARGE_OF_UNIT ? rest : LARGE_OF_UNIT);
}

/* Rows of 1024 elements; the parameters that norms and biases leave, spread over the large ones. */
static struct cairn_shape shape_of(const struct layout_bench *bench, uint32_t tensor)
{
    const uint32_t large = large_count(bench->tensors);
    const uint64_t small = (uint64_t)(bench->tensors - large) * SMALL_ELEMS;
    const uint64_t left = bench->params > small ? bench->params - small : 0;
    if (!is_large(tensor)) return (struct cairn_shape) { .rank = 1, .dim = { SMALL_ELEMS } };
    const uint64_t rows = left / large / 1024 + (tensor % UNIT_TENSORS) * 7;
    return (struct cairn_shape) { .rank = 2, .dim = { rows > 0 ? rows : 1, 1024 } };
}

/* The child: 0 if the plan was made. */
static int plan(const struct layout_bench *bench)
{
    const size_t count = bench->tensors;
    struct cairn_layout_tensor *tensors = calloc(count, sizeof *tensors);
    char *names = malloc(count * 2 * NAME_BYTES);
    if (tensors == NULL || names == NULL) return 1;
    for (uint32_t t = 0; t < bench->tensors; t++) {
        char *name = names + (size_t)t * 2 * NAME_BYTES, *unit = name + NAME_BYTES;
        snprintf(name, NAME_BYTES, "layers.%u.tensor.%u", t / UNIT_TENSORS, t % UNIT_TENSORS);
        snprintf(unit, NAME_BYTES, "layers.%u", t / UNIT_TENSORS);
        tensors[t] = (struct cairn_layout_tensor) {
            .name = name, .unit = unit, .shape = shape_of(bench, t), .elem_bytes = 20
        };
    }
    const struct cairn_plan_request request = { .tensors = tensors,
                                                .tensor_count = bench->tensors,
                                                .shard_count = bench->shards };
    struct cairn_layout *layout = NULL;
    return cairn_plan_make(&request, &layout, NULL) == CAIRN_OK ? 0 : 1;
}

static double run_plan(void *context)
{
    struct layout_bench *bench = context;
    const double begin = cairn_bench_now();
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) _exit(plan(bench));
    struct rusage usage = { 0 };
    int status = 1;
    if (child < 0 || wait4(child, &status, 0, &usage) != child || status != 0) {
        cairn_ctl_fail(CAIRN_ERR_INVALID,
                       "there is no plan of %llu parameters in %u tensors on %u shards: too many "
                       "parameters, or too little memory",
                       (unsigned long long)bench->params, bench->tensors, bench->shards);
        return 0;
    }
    const double rss_bytes = (double)usage.ru_maxrss * 1024;
    if (rss_bytes > bench->rss_bytes) bench->rss_bytes = rss_bytes;
    return cairn_bench_now() - begin;
}

static double bound(void *context)
{
    (void)context;
    return BOUND_SECONDS;
}

int cairn_bench_layout(struct ctl *ctl)
{
    struct layout_bench bench = {
        .params = ctl->bench.params > 0 ? ctl->bench.params : PARAMS_DEFAULT,
        .tensors = ctl->bench.tensors > 0 ? ctl->bench.tensors : 100000,
        .shards = ctl->shards > 0 ? ctl->shards : 10000,
    };
    struct cairn_bench_result result = {
        .bench = "layout",
        .unit = "s",
        .reference_name = "the bound",
        .less_is_better = true,
    };
    const int done = cairn_bench_alternate(&result, ctl->bench.seconds, run_plan, bound, &bench);
    if (done >= 0) return done;
    result.params = json_pack("{s:I, s:I, s:I}", "params", (json_int_t)bench.params, "tensors",
                              (json_int_t)bench.tensors, "shards", (json_int_t)bench.shards);
    result.parts = json_pack("{s:f, s:I}", "rss_bytes", bench.rss_bytes, "rss_bound_bytes",
                             (json_int_t)BOUND_BYTES);
    return cairn_bench_print(&result, ctl);
}

/* Trains a 784-512-256-10 perceptron on Fashion-MNIST through a Cairn cluster.
 *
 *   fashion_mnist --rank 0 --workers 2 --steps 1000        (and --rank 1 in another process)
 *
 * The whole trainer is here: read the images, compute a loss and its gradient, and call Cairn where an
 * in-process trainer would call its optimizer. It owns no state: kill it at any moment, start it again,
 * and it goes on from the step the servers are at. Which images make up a batch follows from (step,
 * rank, world), so that a round that is computed again gives the same gradients. With --global-batch K a step
 * is K such batches whoever is there, and any workers that come and go train the same model, to the bit.
 *
 * Legend: B = images a batch, layer l maps in[l] to out[l] features; weights are [in][out], row-major. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime, with -std=c11 too */
#endif

#include <inttypes.h>
#include <cairn.h>

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

enum { PIXELS = 784, CLASSES = 10, LAYERS = 3, BATCH = 128 };
static const size_t width[LAYERS + 1] = { PIXELS, 512, 256, CLASSES };
static const char *const weight_name[LAYERS] = { "fc1.weight", "fc2.weight", "fc3.weight" };
static const char *const bias_name[LAYERS] = { "fc1.bias", "fc2.bias", "fc3.bias" };
static const char *const unit_name[LAYERS] = { "fc1", "fc2", "fc3" };

/* ---- the data: gzip'd IDX files of Debian's dataset-fashion-mnist ---- */

struct images {
    uint8_t *pixel; /* [count][PIXELS] */
    uint8_t *label; /* [count] */
    size_t count;
};

static uint32_t big_endian(const uint8_t byte[4])
{
    return (uint32_t)byte[0] << 24 | (uint32_t)byte[1] << 16 | (uint32_t)byte[2] << 8 | byte[3];
}

/* Reads an IDX file of `item_bytes` an item; the counts in its header are checked against the data. */
static uint8_t *read_idx(const char *folder, const char *file, uint32_t magic, size_t item_bytes,
                         size_t *count_out)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    const size_t header_bytes = item_bytes == 1 ? 8 : 16;
    uint8_t header[16];
    gzFile in = gzopen(path, "rb");
    if (in == NULL) {
        fprintf(stderr,
                "cannot open %s: %s; install the package dataset-fashion-mnist, or use --data\n",
                path, strerror(errno));
        return NULL;
    }
    uint8_t *bytes = NULL;
    if (gzread(in, header, (unsigned)header_bytes) != (int)header_bytes ||
        big_endian(header) != magic || big_endian(header + 4) > 1000000) {
        fprintf(stderr, "%s is not the IDX file expected here\n", path);
        goto close;
    }
    const size_t count = big_endian(header + 4), total = count * item_bytes;
    bytes = malloc(total);
    if (bytes == NULL || gzread(in, bytes, (unsigned)total) != (int)total) {
        fprintf(stderr, "%s is cut off, or memory ran out\n", path);
        free(bytes);
        bytes = NULL;
        goto close;
    }
    *count_out = count;
close:
    gzclose(in);
    return bytes;
}

static int read_images(const char *folder, const char *set, struct images *images)
{
    char pixels[64], labels[64];
    snprintf(pixels, sizeof pixels, "%s-images-idx3-ubyte.gz", set);
    snprintf(labels, sizeof labels, "%s-labels-idx1-ubyte.gz", set);
    size_t label_count = 0;
    images->pixel = read_idx(folder, pixels, 0x803, PIXELS, &images->count);
    images->label = images->pixel != NULL ? read_idx(folder, labels, 0x801, 1, &label_count) : NULL;
    if (images->label == NULL) return -1;
    if (label_count == images->count) return 0;
    fprintf(stderr, "%zu images but %zu labels in %s\n", images->count, label_count, folder);
    return -1;
}

/* ---- the model ---- */

struct model {
    float *weight[LAYERS]; /* [in][out] */
    float *bias[LAYERS];   /* [out] */
};

static size_t weight_elems(size_t l)
{
    return width[l] * width[l + 1];
}

static float *floats(size_t count)
{
    float *memory = calloc(count, sizeof *memory);
    if (memory != NULL) return memory;
    fprintf(stderr, "out of memory\n");
    exit(1);
}

static void model_alloc(struct model *m)
{
    for (size_t l = 0; l < LAYERS; l++) {
        m->weight[l] = floats(weight_elems(l));
        m->bias[l] = floats(width[l + 1]);
    }
}

static uint64_t splitmix(uint64_t *state) /* Steele, Lea, Flood: Fast splittable PRNGs, 2014 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Uniform in ±sqrt(6/in), He et al. 2015; biases 0. */
static void model_init(struct model *m, uint64_t seed)
{
    for (size_t l = 0; l < LAYERS; l++) {
        const double bound = sqrt(6.0 / (double)width[l]);
        for (size_t i = 0; i < weight_elems(l); i++) {
            const double unit = (double)(splitmix(&seed) >> 11) * 0x1p-53;
            m->weight[l][i] = (float)((2 * unit - 1) * bound);
        }
    }
}

#if defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* c[rows][cols] = a[rows][inner] · b[inner][cols]; a tile of 4 x 32 sums stays in registers. */
WIDE static void multiply(size_t rows, size_t cols, size_t inner, const float *restrict a,
                          const float *restrict b, float *restrict c)
{
    for (size_t r0 = 0; r0 < rows; r0 += 4) {
        for (size_t c0 = 0; c0 < cols; c0 += 32) {
            const size_t nr = rows - r0 < 4 ? rows - r0 : 4, nc = cols - c0 < 32 ? cols - c0 : 32;
            float sum[4][32] = { { 0 } };
            if (nr == 4 && nc == 32) {
                for (size_t k = 0; k < inner; k++)
                    for (size_t r = 0; r < 4; r++)
                        for (size_t j = 0; j < 32; j++)
                            sum[r][j] += a[(r0 + r) * inner + k] * b[k * cols + c0 + j];
            } else {
                for (size_t k = 0; k < inner; k++)
                    for (size_t r = 0; r < nr; r++)
                        for (size_t j = 0; j < nc; j++)
                            sum[r][j] += a[(r0 + r) * inner + k] * b[k * cols + c0 + j];
            }
            for (size_t r = 0; r < nr; r++)
                memcpy(c + (r0 + r) * cols + c0, sum[r], nc * sizeof(float));
        }
    }
}

/* out[cols][rows] = in[rows][cols] transposed. */
static void transpose(size_t rows, size_t cols, const float *in, float *out)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) out[c * rows + r] = in[r * cols + c];
}

struct pass {
    float *x[LAYERS + 1]; /* [B][width[l]]: x[0] the images, x[LAYERS] the logits */
    float *d[LAYERS + 1]; /* the same, of the loss */
    float *turned;        /* room for a transposed matrix */
    uint8_t label[BATCH];
};

static void pass_alloc(struct pass *p)
{
    for (size_t l = 0; l <= LAYERS; l++) {
        p->x[l] = floats(BATCH * width[l]);
        p->d[l] = floats(BATCH * width[l]);
    }
    p->turned = floats(weight_elems(0));
}

static void forward(const struct model *m, struct pass *p)
{
    for (size_t l = 0; l < LAYERS; l++) {
        const size_t out = width[l + 1];
        multiply(BATCH, out, width[l], p->x[l], m->weight[l], p->x[l + 1]);
        for (size_t i = 0; i < BATCH * out; i++) {
            const float y = p->x[l + 1][i] + m->bias[l][i % out];
            p->x[l + 1][i] = l + 1 < LAYERS && y < 0 ? 0 : y; // ReLU, but for the logits
        }
    }
}

/* Mean cross-entropy of the batch; p->d[LAYERS] becomes its gradient times `scale`. */
static double loss_and_gradient(struct pass *p, double scale)
{
    double loss = 0;
    for (size_t b = 0; b < BATCH; b++) {
        const float *y = p->x[LAYERS] + b * CLASSES;
        double top = y[0], sum = 0;
        for (size_t c = 1; c < CLASSES; c++) top = y[c] > top ? y[c] : top;
        for (size_t c = 0; c < CLASSES; c++) sum += exp(y[c] - top);
        loss += log(sum) + top - y[p->label[b]];
        for (size_t c = 0; c < CLASSES; c++) {
            const double softmax = exp(y[c] - top) / sum;
            p->d[LAYERS][b * CLASSES + c] = (float)((softmax - (c == p->label[b])) * scale / BATCH);
        }
    }
    return loss / BATCH;
}

/* Gradients of layer l from p->d[l + 1]; p->d[l] is filled for the layer below. */
static void backward_layer(const struct model *m, struct pass *p, size_t l, struct model *grad)
{
    const size_t in = width[l], out = width[l + 1];
    transpose(BATCH, in, p->x[l], p->turned);
    multiply(in, out, BATCH, p->turned, p->d[l + 1], grad->weight[l]);
    memset(grad->bias[l], 0, out * sizeof(float));
    for (size_t i = 0; i < BATCH * out; i++) grad->bias[l][i % out] += p->d[l + 1][i];
    if (l == 0) return;
    transpose(in, out, m->weight[l], p->turned);
    multiply(BATCH, in, out, p->d[l + 1], p->turned, p->d[l]);
    for (size_t i = 0; i < BATCH * in; i++)
        if (p->x[l][i] <= 0) p->d[l][i] = 0;
}

/* Part `part` of `parts` of the batch `index`: it goes through the images part, part + parts, ... in an order
 * that each pass over them draws anew. */
static void load_batch(const struct images *set, uint64_t index, uint32_t part, uint32_t parts,
                       struct pass *p)
{
    const uint64_t mine = set->count / parts;
    for (size_t b = 0; b < BATCH; b++) {
        const uint64_t at = index * BATCH + b;
        uint64_t draw = at / mine * 1000003 + part;
        const uint64_t shift = splitmix(&draw) % mine;
        // 7919 is prime and divides no part of the set: multiplying permutes it.
        const uint64_t image = (at % mine * 7919 + shift) % mine * parts + part;
        for (size_t i = 0; i < PIXELS; i++)
            p->x[0][b * PIXELS + i] = (float)set->pixel[image * PIXELS + i] / 255.0f - 0.286f;
        p->label[b] = set->label[image];
    }
}

/* Share of the test images that the model names right. */
static double accuracy(const struct model *m, const struct images *set, struct pass *p)
{
    size_t right = 0;
    for (size_t first = 0; first < set->count; first += BATCH) {
        const size_t n = set->count - first < BATCH ? set->count - first : BATCH;
        for (size_t i = 0; i < n * PIXELS; i++)
            p->x[0][i] = (float)set->pixel[first * PIXELS + i] / 255.0f - 0.286f;
        forward(m, p);
        for (size_t b = 0; b < n; b++) {
            const float *y = p->x[LAYERS] + b * CLASSES;
            size_t best = 0;
            for (size_t c = 1; c < CLASSES; c++) best = y[c] > y[best] ? c : best;
            right += best == set->label[first + b];
        }
    }
    return (double)right / (double)set->count;
}

/* ---- Cairn ---- */

struct options {
    const char *endpoint, *data, *job;
    uint32_t rank, workers;
    uint64_t steps, global_batch;
    int timeout_ms;
};

static cairn_status report(const char *what, cairn_status status)
{
    if (status != CAIRN_OK) fprintf(stderr, "%s: %s\n", what, cairn_error());
    return status;
}

static cairn_status open_job(cairn *session, const struct options *o, cairn_job **job_out)
{
    struct cairn_tensor tensors[2 * LAYERS];
    for (size_t l = 0; l < LAYERS; l++) {
        tensors[2 * l] = (struct cairn_tensor) { .struct_size = sizeof tensors[0],
                                                 .name = weight_name[l],
                                                 .unit = unit_name[l],
                                                 .rank = 2,
                                                 .shape = { width[l], width[l + 1] } };
        tensors[2 * l + 1] = (struct cairn_tensor) { .struct_size = sizeof tensors[0],
                                                     .name = bias_name[l],
                                                     .unit = unit_name[l],
                                                     .group = "no_decay",
                                                     .rank = 1,
                                                     .shape = { width[l + 1] } };
    }
    struct cairn_group groups[2] = { CAIRN_GROUP_INIT, CAIRN_GROUP_INIT };
    groups[0].weight_decay = 0.01;
    groups[1].name = "no_decay";
    const struct cairn_job_spec spec = {
        .struct_size = sizeof spec,
        .tensors = tensors,
        .tensor_count = 2 * LAYERS,
        .groups = groups,
        .group_count = 2,
        .rank = o->rank,
        .workers_min = o->workers,
        .clip_norm = 1.0,
        .global_batch = o->global_batch,
        .chunk_leaves = 16, // 256 KiB: a model this small still has chunks for everyone
    };
    return cairn_job_open(session, o->job, &spec, CAIRN_WORKER, o->timeout_ms, job_out);
}

static struct cairn_mem memory(float *ptr, size_t count)
{
    return (struct cairn_mem) { .struct_size = sizeof(struct cairn_mem),
                                .ptr = ptr,
                                .dtype = CAIRN_F32,
                                .bytes = count * sizeof *ptr };
}

static struct cairn_mem weight_memory(const struct model *m, size_t l)
{
    return memory(m->weight[l], weight_elems(l));
}

static struct cairn_mem bias_memory(const struct model *m, size_t l)
{
    return memory(m->bias[l], width[l + 1]);
}

/* Rank 0 puts the initial parameters, unless the servers have the job already. */
static cairn_status init_job(cairn_job *job, const struct options *o, struct model *m)
{
    cairn_status status = CAIRN_OK;
    if (o->rank == 0) model_init(m, 42);
    for (size_t l = 0; o->rank == 0 && status == CAIRN_OK && l < LAYERS; l++) {
        const struct cairn_mem weight = weight_memory(m, l), bias = bias_memory(m, l);
        status = cairn_put(job, weight_name[l], "param", NULL, &weight, NULL);
        if (status == CAIRN_OK) status = cairn_put(job, bias_name[l], "param", NULL, &bias, NULL);
    }
    if (status != CAIRN_OK && status != CAIRN_ERR_EXISTS) return status;
    return cairn_init_done(job, NULL, o->timeout_ms);
}

static cairn_status begin_fetch(cairn_job *job, struct cairn_version version, const char *tensor,
                                struct cairn_mem to, cairn_op **ops, size_t *op_count)
{
    cairn_status status = cairn_fetch(job, version, tensor, NULL, NULL, &to, &ops[*op_count]);
    if (status == CAIRN_OK) (*op_count)++;
    return status;
}

static cairn_status fetch_model(cairn_job *job, struct cairn_version version, struct model *m,
                                int timeout_ms)
{
    cairn_op *ops[2 * LAYERS];
    size_t op_count = 0;
    cairn_status status = CAIRN_OK;
    for (size_t l = 0; status == CAIRN_OK && l < LAYERS; l++) {
        status = begin_fetch(job, version, weight_name[l], weight_memory(m, l), ops, &op_count);
        if (status == CAIRN_OK)
            status = begin_fetch(job, version, bias_name[l], bias_memory(m, l), ops, &op_count);
    }
    for (size_t i = 0; i < op_count; i++) { // each one that began, since it has our memory on loan
        const cairn_status waited = cairn_wait(ops[i], timeout_ms);
        if (status == CAIRN_OK) status = waited;
    }
    return status;
}

struct trainer {
    const struct options *options;
    cairn *session;
    cairn_job *job; /* NULL: not open */
    struct images train, test;
    struct model model, grad;
    cairn_op *pushes[2 * LAYERS]; /* that have the gradients of a layer on loan; NULL: none */
    struct pass pass;
};

/* The gradients of layer l are ours again. */
static cairn_status take_back(struct trainer *t, size_t l)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 2 * l; i < 2 * l + 2; i++) {
        if (t->pushes[i] == NULL) continue;
        const cairn_status waited = cairn_wait(t->pushes[i], t->options->timeout_ms);
        if (waited == CAIRN_ERR_TIMEOUT) return waited; // they are not
        t->pushes[i] = NULL;
        if (status == CAIRN_OK) status = waited;
    }
    return status;
}

/* A backward pass, with pushes as gradients appear. */
static cairn_status push_gradients(struct trainer *t, const struct cairn_round *round,
                                   uint32_t micro)
{
    cairn_status status = CAIRN_OK;
    for (size_t l = LAYERS; status == CAIRN_OK && l-- > 0;) {
        status = take_back(t, l);
        if (status != CAIRN_OK) break;
        backward_layer(&t->model, &t->pass, l, &t->grad);
        const struct cairn_mem weight = weight_memory(&t->grad, l), bias = bias_memory(&t->grad, l);
        cairn_op **ops = &t->pushes[2 * l];
        status = cairn_push(t->job, round, micro, weight_name[l], NULL, &weight, &ops[0]);
        if (status == CAIRN_OK)
            status = cairn_push(t->job, round, micro, bias_name[l], NULL, &bias, &ops[1]);
    }
    return status == CAIRN_OK ? cairn_micro_end(t->job, round, micro) : status;
}

/* The parts of the batch that are this worker's: one, or with a global batch those that it is dealt, by their
 * numbers; of more workers than parts the last ones have none, and wait in their commit. */
static cairn_status compute(struct trainer *t, const struct cairn_round *round, double *loss_out)
{
    const uint32_t batch = (uint32_t)round->global_batch, parts = batch > 0 ? batch : round->world;
    cairn_status status = CAIRN_OK;
    for (uint32_t k = round->rank; status == CAIRN_OK && k < parts; k += round->world) {
        load_batch(&t->train, round->index, k, parts, &t->pass);
        forward(&t->model, &t->pass);
        *loss_out = loss_and_gradient(&t->pass, round->loss_scale);
        status = push_gradients(t, round, batch > 0 ? k : 0);
    }
    return status;
}

/* One round: fetch, compute, commit. */
static cairn_status train_round(struct trainer *t, const struct cairn_round *round,
                                double *loss_out, struct cairn_result *result)
{
    const int timeout_ms = t->options->timeout_ms;
    cairn_status status = fetch_model(t->job, round->version, &t->model, timeout_ms);
    if (status == CAIRN_OK) status = compute(t, round, loss_out);
    if (status == CAIRN_OK)
        status = cairn_commit(t->job, round, 0, NULL, 0, timeout_ms, result); // one a part
    for (size_t l = 0; l < LAYERS; l++) (void)!take_back(t, l);               // it is over, or void
    return status;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Opens the job, once more if it is open already. */
static cairn_status attach(struct trainer *t)
{
    const struct options *o = t->options;
    struct cairn_version at = { 0, 0 };
    cairn_job_close(t->job);
    t->job = NULL;
    cairn_status status = report("cairn_job_open", open_job(t->session, o, &t->job));
    if (status != CAIRN_OK) return status;
    status = report("initial state", init_job(t->job, o, &t->model));
    if (status == CAIRN_OK)
        status = report("version", cairn_version_wait(t->job, at, o->timeout_ms, &at));
    if (status != CAIRN_OK) return status;
    printf("rank %u attached at step %" PRIu64 " of generation %" PRIu64 "\n", o->rank, at.step,
           at.generation);
    fflush(stdout);
    return CAIRN_OK;
}

static cairn_status train(struct trainer *t)
{
    const struct options *o = t->options;
    double began_s = now_s();
    uint64_t images = 0;
    for (;;) {
        struct cairn_round round = { .struct_size = sizeof round };
        struct cairn_version version;
        cairn_status status = cairn_version_wait(t->job, (struct cairn_version) { 0, 0 },
                                                 o->timeout_ms, &version);
        if (status == CAIRN_OK && version.step >= o->steps) return CAIRN_OK;
        if (status == CAIRN_OK) status = cairn_round_begin(t->job, o->timeout_ms, &round);
        struct cairn_result result = { .struct_size = sizeof result };
        double loss = 0;
        if (status == CAIRN_OK) status = train_round(t, &round, &loss, &result);
        if (status == CAIRN_ERR_EPOCH_CHANGED || status == CAIRN_ERR_STALE) {
            printf("rank %u: the membership changed, computing step %" PRIu64 " again\n", o->rank,
                   round.step);
            fflush(stdout);
            continue;
        }
        if (status == CAIRN_ERR_ROLLED_BACK) { // restored from a snapshot: go on from there
            if ((status = attach(t)) != CAIRN_OK) return status;
            continue;
        }
        if (report("round", status) != CAIRN_OK) return status;
        images += BATCH * (round.global_batch > 0 ? round.global_batch : round.world);
        if (result.step % 50 != 0) continue;
        if (round.micro_batches == 0) { // of global_batch none was left for it
            printf("step %" PRIu64 ": rank %u is surplus, and idles\n", result.step, o->rank);
            fflush(stdout);
            continue;
        }
        printf("step %" PRIu64 " loss %.4f norm %.3f images/s %.0f\n", result.step, loss,
               result.grad_norm, (double)images / (now_s() - began_s));
        fflush(stdout);
        began_s = now_s();
        images = 0;
    }
}

static cairn_status finish(struct trainer *t)
{
    struct cairn_version version;
    struct cairn_stats stats = { .struct_size = sizeof stats };
    cairn_status status = cairn_version_wait(t->job, (struct cairn_version) { 0, 0 },
                                             t->options->timeout_ms, &version);
    if (status == CAIRN_OK)
        status = fetch_model(t->job, version, &t->model, t->options->timeout_ms);
    if (status == CAIRN_OK) status = cairn_job_stats(t->job, &stats);
    if (status != CAIRN_OK) return report("reading the trained model", status);
    printf("done step %" PRIu64 " pushed_bytes %" PRIu64 " fetched_bytes %" PRIu64 "\n",
           version.step, stats.pushed_bytes, stats.fetched_bytes);
    if (t->options->rank == 0) printf("accuracy %.4f\n", accuracy(&t->model, &t->test, &t->pass));
    return CAIRN_OK;
}

static void usage(FILE *out)
{
    fprintf(
        out,
        "usage: fashion_mnist [--endpoint ADDRESS] [--data FOLDER] [--job NAME]\n"
        "                     [--rank R] [--workers N] [--steps N] [--global-batch K]\n"
        "                     [--timeout SECONDS]\n"
        "Trains until the job is at step N; rank 0 then prints the accuracy on the test set.\n");
}

static int parse(int argc, char **argv, struct options *o)
{
    static const struct option known[] = {
        { "endpoint", 1, 0, 'e' },     { "data", 1, 0, 'd' },
        { "job", 1, 0, 'j' },          { "rank", 1, 0, 'r' },
        { "workers", 1, 0, 'w' },      { "steps", 1, 0, 's' },
        { "timeout", 1, 0, 't' },      { "help", 0, 0, 'h' },
        { "global-batch", 1, 0, 'g' }, { 0, 0, 0, 0 },
    };
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (c == 'e')
            o->endpoint = optarg;
        else if (c == 'd')
            o->data = optarg;
        else if (c == 'j')
            o->job = optarg;
        else if (c == 'r')
            o->rank = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'w')
            o->workers = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 's')
            o->steps = strtoull(optarg, NULL, 10);
        else if (c == 'g')
            o->global_batch = strtoull(optarg, NULL, 10);
        else if (c == 't')
            o->timeout_ms = (int)strtol(optarg, NULL, 10) * 1000;
        else {
            usage(c == 'h' ? stdout : stderr);
            return c == 'h' ? 0 : 2;
        }
    }
    return -1;
}

int main(int argc, char **argv)
{
    struct options o = { .data = "/usr/share/datasets/fashion-mnist",
                         .job = "fashion-mnist",
                         .workers = 1,
                         .steps = 1000,
                         .timeout_ms = 60000 };
    const int done = parse(argc, argv, &o);
    if (done >= 0) return done;
    struct trainer t = { .options = &o };
    if (read_images(o.data, "train", &t.train) != 0 || read_images(o.data, "t10k", &t.test) != 0)
        return 1;
    model_alloc(&t.model);
    model_alloc(&t.grad);
    pass_alloc(&t.pass);

    struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = o.endpoint };
    if (report("cairn_open", cairn_open(&opts, &t.session)) != CAIRN_OK) return 1;
    cairn_status status = attach(&t);
    if (status == CAIRN_OK) status = train(&t);
    if (status == CAIRN_OK) status = finish(&t);
    cairn_job_close(t.job);
    cairn_close(t.session);
    return status == CAIRN_OK ? 0 : 1;
}

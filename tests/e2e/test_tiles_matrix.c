/* Every combination of mesh, optimizer, wire dtype and stage: trained with the bits of one process that has
 * whole tensors, or refused with a sentence. */
#include <string.h>

#include "tests/e2e/crew.h"
#include "tests/support/rooms.h"
#include "tests/support/suite.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
enum { STEPS = 2 }; // of several micro-batches, and of one; the second has moments

static const struct crew_mesh meshes[] = {
    { .tp = 1, .dp = 1 }, { .tp = 2, .dp = 1 }, { .tp = 1, .dp = 2 }, { .tp = 2, .dp = 2 }
};

/* Of each of the following the last ones are refused. */
static const struct optimizer {
    const char *name;
    double momentum;
    bool nesterov;
} optimizers[] = { { "adamw", 0, false }, { "adam", 0, false }, { "sgd", 0, false },
                   { "sgd", 0.9, false }, { "sgd", 0.9, true }, { "lion", 0, false } };
static const cairn_dtype wires[] = { CAIRN_F32, CAIRN_BF16, CAIRN_F16, CAIRN_F64 };
static const uint32_t stages[] = { 0, 1, 2, 3, 4 };
enum { MESHES = COUNT(meshes), OPTIMIZERS = 5, WIRES = 2, STAGES = 4 }; // those that are not
enum { ACCEPTED = MESHES * OPTIMIZERS * WIRES * STAGES };
enum { ALL = MESHES * COUNT(optimizers) * COUNT(wires) * COUNT(stages) };

struct combination {
    struct crew_mesh mesh;
    struct optimizer optimizer;
    cairn_dtype wire;
    bool wrong_optimizer, wrong_wire, wrong_stage;
};

/* The n-th of so many optimizers, wire dtypes and stages. */
static struct combination combination_of(int n, int optimizer_count, int wire_count)
{
    const int mesh = n % MESHES, optimizer = n / MESHES % optimizer_count;
    const int wire = n / MESHES / optimizer_count % wire_count;
    const int stage = n / MESHES / optimizer_count / wire_count;
    struct combination c = { meshes[mesh],  optimizers[optimizer],
                             wires[wire],   optimizer >= OPTIMIZERS,
                             wire >= WIRES, stage >= STAGES };
    c.mesh.stage = CAIRN_STAGE(stages[stage]);
    return c;
}

/* All tensors and groups of the job are as the combination has it. */
static void make_job_of(const struct combination *c)
{
    for (int t = 0; t < TILES_TENSORS; t++) tiles_tensors[t].wire = c->wire;
    for (int g = 0; g < CREW_GROUPS; g++) {
        struct cairn_group group = CAIRN_GROUP_INIT;
        group.name = crew_groups[g].name;
        group.lr = crew_groups[g].lr;
        group.weight_decay = crew_groups[g].weight_decay;
        group.optimizer = c->optimizer.name;
        group.momentum = c->optimizer.momentum;
        group.nesterov = c->optimizer.nesterov;
        crew_groups[g] = group;
    }
}

/* ---- what is accepted ---- */

TEST_EACH(each_that_is_accepted_has_the_bits_of_one_process, 0, ACCEPTED)
{
    const struct combination c = combination_of(_i, OPTIMIZERS, WIRES);
    struct rooms rooms;
    const struct cairn_fabric_mem_options fabric = { .seed = 1 + (uint64_t)_i };
    make_job_of(&c);
    rooms_open(&rooms, 1 + (uint32_t)_i % 3, &fabric);
    const struct crew crew = { .job = &tiles_job,
                               .endpoint = rooms.address,
                               .hub = rooms.hub,
                               .mesh = c.mesh,
                               .until_step = STEPS };
    crew_train(&crew);
    crew_check_state(&crew, CREW_WHOLE_TENSORS);
    rooms_close(&rooms);
}

/* ---- what is not ---- */

/* The sentence names what is at fault, one of them if there are several, and what there is instead. */
static bool explains(const struct combination *c, const char *sentence)
{
    const bool fault = (c->wrong_optimizer && strstr(sentence, c->optimizer.name) != NULL) ||
                       (c->wrong_wire && strstr(sentence, "wire") != NULL) ||
                       (c->wrong_stage && strstr(sentence, "stage") != NULL);
    return fault && (strstr(sentence, "allowed") != NULL || strstr(sentence, "known") != NULL);
}

TEST(each_other_is_refused_with_a_sentence)
{
    struct rooms rooms;
    const struct cairn_fabric_mem_options fabric = { .seed = 1 };
    struct cairn_tensor tensors[CREW_TENSORS_MAX];
    int refused = 0;
    rooms_open(&rooms, 1, &fabric);
    cairn *session = crew_session(rooms.address, rooms.hub);
    for (int n = 0; n < ALL; n++) {
        const struct combination c = combination_of(n, COUNT(optimizers), COUNT(wires));
        cairn_job *job = NULL;
        if (!c.wrong_optimizer && !c.wrong_wire && !c.wrong_stage) continue;
        make_job_of(&c);
        const struct cairn_job_spec spec = crew_spec(&tiles_job, tensors, c.mesh, 0);
        const cairn_status status = cairn_job_open(session, tiles_job.name, &spec, CAIRN_WORKER,
                                                   CREW_WAIT_MS, &job);
        ck_assert_msg(status == CAIRN_ERR_UNSUPPORTED || status == CAIRN_ERR_INVALID, "%d: %d", n,
                      (int)status);
        ck_assert_msg(explains(&c, cairn_error()), "%d: %s", n, cairn_error());
        refused++;
    }
    ck_assert_int_eq(refused, ALL - ACCEPTED);
    printf("note: of %d combinations of mesh, optimizer, wire dtype and stage %d train\n", ALL,
           ACCEPTED);
    cairn_close(session);
    rooms_close(&rooms);
}

SUITE(60);

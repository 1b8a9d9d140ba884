#include "client/push/assemble.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/job.h"
#include "client/op.h"

struct assembly {
    struct assembly *next; /* of the job's list, while something is missing */
    struct job *job;       /* borrowed: outlives it */
    uint8_t kind;
    uint32_t tensor, micro;
    uint64_t round;
    struct piece piece; /* the target, dense */
    cairn_dtype dtype;
    uint8_t *values; /* owned: [elems], zeros where nothing was copied */
    uint64_t elems, copied;
    struct cairn_box *boxes; /* owned: [box_count], claimed, without a common element */
    size_t box_count, capacity;
    uint32_t copying; /* portions that were claimed and are not copied */
    bool is_void;     /* not in the list any more: who copies last frees it */
};

/* ---- the list: under the lock ---- */

static struct assembly **find(struct job *job, uint8_t kind, uint32_t tensor, uint64_t round,
                              uint32_t micro)
{
    struct assembly **link = &job->sums.assemblies;
    while (*link != NULL && ((*link)->kind != kind || (*link)->tensor != tensor ||
                             (*link)->round != round || (*link)->micro != micro))
        link = &(*link)->next;
    return link;
}

static struct assembly **find_for(struct job *job, const struct portion *p)
{
    return find(job, p->kind, p->tensor, p->round, p->micro);
}

bool cairn_assemble_begun(const struct job *job, const struct portion *portion)
{
    return *find_for((struct job *)(uintptr_t)job, portion) != NULL;
}

static void count(struct job *job, uint64_t more, uint64_t less)
{
    struct cairn_stats *stats = &job->stats;
    stats->assembled_bytes += more;
    stats->assembled_bytes -= less;
    if (stats->assembled_bytes > stats->assembled_bytes_peak)
        stats->assembled_bytes_peak = stats->assembled_bytes;
}

static size_t bytes_of(const struct assembly *assembly)
{
    return (size_t)assembly->elems * cairn_dtype_bytes((int)assembly->dtype);
}

static void free_locked(struct assembly *assembly)
{
    count(assembly->job, 0, bytes_of(assembly));
    free(assembly->values);
    free(assembly->boxes);
    free(assembly);
}

void cairn_assemble_free(struct assembly *assembly)
{
    struct session *s = assembly->job->session;
    pthread_mutex_lock(&s->lock);
    free_locked(assembly);
    pthread_mutex_unlock(&s->lock);
}

static void drop(struct assembly **link)
{
    struct assembly *assembly = *link;
    *link = assembly->next;
    assembly->is_void = true;
    if (assembly->copying == 0) free_locked(assembly);
}

void cairn_assemble_new_round(struct job *job)
{
    for (struct assembly **link = &job->sums.assemblies; *link != NULL;)
        if ((*link)->kind == CAIRN_CHUNK_PUSH)
            drop(link);
        else
            link = &(*link)->next;
}

void cairn_assemble_release(struct job *job)
{
    while (job->sums.assemblies != NULL) drop(&job->sums.assemblies);
}

static struct assembly *open_assembly(struct job *job, const struct portion *p)
{
    struct assembly *assembly = calloc(1, sizeof *assembly);
    if (assembly == NULL) return NULL;
    *assembly = (struct assembly) { .job = job,
                                    .kind = p->kind,
                                    .tensor = p->tensor,
                                    .micro = p->micro,
                                    .round = p->round,
                                    .piece = p->whole,
                                    .dtype = p->mem.dtype,
                                    .elems = cairn_box_elems(&p->whole.box) };
    assembly->values = calloc(1, bytes_of(assembly) + 1);
    if (assembly->values == NULL) {
        free(assembly);
        return NULL;
    }
    count(job, bytes_of(assembly), 0);
    assembly->next = job->sums.assemblies;
    job->sums.assemblies = assembly;
    return assembly;
}

static cairn_status judge_claim(const struct assembly *assembly, const struct portion *p)
{
    char mine[CAIRN_BOX_TEXT_BYTES], theirs[CAIRN_BOX_TEXT_BYTES];
    const char *target = assembly->job->spec.tensors[p->tensor].name;
    if (assembly->dtype != p->mem.dtype)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "tensor %s: mem.dtype is %s, that of another part of %s was %s; "
                                 "give all parts of a tensor in one",
                                 p->name, cairn_dtype_name((int)p->mem.dtype), target,
                                 cairn_dtype_name((int)assembly->dtype));
    for (size_t i = 0; i < assembly->box_count; i++)
        if (cairn_box_overlap(&assembly->boxes[i], &p->piece.box))
            return cairn_client_fail(
                CAIRN_ERR_EXISTS,
                "tensor %s is %s of %s, of which %s was given already; no element is given twice",
                p->name, cairn_box_text(&p->piece.box, mine), target,
                cairn_box_text(&assembly->boxes[i], theirs));
    return CAIRN_OK;
}

static bool add_box(struct assembly *assembly, const struct cairn_box *box)
{
    if (assembly->box_count == assembly->capacity) {
        const size_t capacity = assembly->capacity == 0 ? 4 : assembly->capacity * 2;
        struct cairn_box *boxes = realloc(assembly->boxes, capacity * sizeof *boxes);
        if (boxes == NULL) return false;
        assembly->boxes = boxes;
        assembly->capacity = capacity;
    }
    assembly->boxes[assembly->box_count++] = *box;
    return true;
}

static void remove_box(struct assembly *assembly, const struct cairn_box *box)
{
    size_t i = 0;
    while (!cairn_box_equal(&assembly->boxes[i], box)) i++;
    assembly->boxes[i] = assembly->boxes[--assembly->box_count];
}

cairn_status cairn_assemble_claim(struct job *job, const struct portion *portion,
                                  struct assembly **out)
{
    struct assembly *assembly = *find_for(job, portion);
    const bool fresh = assembly == NULL;
    if (fresh) assembly = open_assembly(job, portion);
    cairn_status status = assembly != NULL ? judge_claim(assembly, portion) : CAIRN_OK;
    if (status != CAIRN_OK) return status;
    if (assembly == NULL || !add_box(assembly, &portion->piece.box)) {
        if (assembly != NULL && fresh) drop(find_for(job, portion));
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                 "tensor %s: out of memory to put its target together",
                                 portion->name);
    }
    assembly->copying++;
    *out = assembly;
    return CAIRN_OK;
}

/* ---- copying ---- */

/* `from` is the caller's memory; NULL: zeros. */
static void copy(const struct assembly *assembly, const struct portion *p, const uint8_t *from)
{
    const struct cairn_shape *shape = &assembly->job->spec.tensors[p->tensor].shape;
    const size_t elem_bytes = cairn_dtype_bytes((int)assembly->dtype);
    struct cairn_box_runs runs;
    uint64_t elem, box_elem, run;
    cairn_box_runs_begin(&runs, &p->piece.box, shape, 0, assembly->elems);
    while (cairn_box_runs_next(&runs, &elem, &box_elem, &run)) {
        uint8_t *to = assembly->values + elem * elem_bytes;
        if (from == NULL)
            memset(to, 0, run * elem_bytes);
        else if (p->piece.strides.given)
            cairn_strides_gather(&p->piece.strides, from, elem_bytes, box_elem, run, to);
        else
            memcpy(to, from + box_elem * elem_bytes, run * elem_bytes);
    }
}

cairn_status cairn_assemble_copy(struct assembly *assembly, const struct portion *p,
                                 bool *whole_out)
{
    struct job *job = assembly->job;
    const uint64_t elems = cairn_box_elems(&p->piece.box);
    const void *lent;
    bool whole = false;
    cairn_status status = cairn_memory_lend(
        job->session, p->mem.ptr,
        cairn_strides_span(&p->piece.strides, elems, cairn_dtype_bytes((int)p->mem.dtype)), NULL,
        &lent);
    if (status == CAIRN_OK) copy(assembly, p, p->mem.ptr);
    if (status == CAIRN_OK) cairn_memory_return(job->session, lent);
    pthread_mutex_lock(&job->session->lock);
    assembly->copying--;
    if (status == CAIRN_OK)
        assembly->copied += elems;
    else
        remove_box(assembly, &p->piece.box);
    if (assembly->is_void) {
        if (assembly->copying == 0) free_locked(assembly);
        status = cairn_client_fail(CAIRN_ERR_EPOCH_CHANGED, "round %llu was abandoned",
                                   (unsigned long long)p->round);
    } else if (assembly->copied == assembly->elems && assembly->copying == 0) {
        *find_for(job, p) = assembly->next;
        whole = true;
    } else if (assembly->box_count == 0) {
        drop(find_for(job, p));
    }
    pthread_mutex_unlock(&job->session->lock);
    if (status == CAIRN_OK) *whole_out = whole;
    return status;
}

void cairn_assemble_put_back(struct assembly *assembly)
{
    struct job *job = assembly->job;
    pthread_mutex_lock(&job->session->lock);
    assembly->next = job->sums.assemblies;
    job->sums.assemblies = assembly;
    pthread_mutex_unlock(&job->session->lock);
}

void cairn_assemble_undo(struct assembly *assembly, const struct portion *p)
{
    struct job *job = assembly->job;
    copy(assembly, p, NULL);
    pthread_mutex_lock(&job->session->lock);
    remove_box(assembly, &p->piece.box);
    assembly->copied -= cairn_box_elems(&p->piece.box);
    assembly->next = job->sums.assemblies;
    job->sums.assemblies = assembly;
    if (assembly->box_count == 0) drop(&job->sums.assemblies);
    pthread_mutex_unlock(&job->session->lock);
}

/* ---- what is missing ---- */

struct assembly *cairn_assemble_ended(struct job *job, uint64_t round, uint32_t micro)
{
    struct assembly *ended = NULL;
    pthread_mutex_lock(&job->session->lock);
    for (struct assembly **link = &job->sums.assemblies; *link != NULL && ended == NULL;) {
        struct assembly *assembly = *link;
        if (assembly->kind == CAIRN_CHUNK_PUSH && assembly->round == round &&
            assembly->micro == micro) {
            assert(assembly->copying == 0); // whoever ended it has waited
            *link = assembly->next;
            ended = assembly;
        } else {
            link = &assembly->next;
        }
    }
    pthread_mutex_unlock(&job->session->lock);
    return ended;
}

cairn_status cairn_assemble_judge_put(struct job *job)
{
    struct cairn_sentence why;
    bool missing = false;
    pthread_mutex_lock(&job->session->lock);
    const struct assembly *some = job->sums.assemblies;
    while (some != NULL && some->kind != CAIRN_CHUNK_PUT) some = some->next;
    if (some != NULL && !job->known.initialized) {
        missing = true;
        cairn_sentence_set(
            &why, "of tensor %s only parts were put, %llu of %llu elements; put the others",
            job->spec.tensors[some->tensor].name, (unsigned long long)some->copied,
            (unsigned long long)some->elems);
    }
    pthread_mutex_unlock(&job->session->lock);
    return missing ? cairn_client_fail(CAIRN_ERR_NOT_READY, "%s", why.text) : CAIRN_OK;
}

/* ---- sending ---- */

static void on_done(void *assembly, cairn_status status, const char *why)
{
    (void)status, (void)why; // the commit, or the end of the initial state, says it
    cairn_assemble_free(assembly);
}

void cairn_assemble_pattern(struct assembly *assembly, struct command *pattern)
{
    pattern->tensor = assembly->tensor;
    pattern->micro = assembly->micro;
    pattern->round = assembly->round;
    pattern->dtype = (uint8_t)assembly->dtype;
    pattern->ptr = assembly->values;
    pattern->piece = assembly->piece;
    pattern->on_done = on_done;
    pattern->context = assembly;
}

struct cairn_mem cairn_assemble_mem(const struct assembly *assembly)
{
    return (struct cairn_mem) { .struct_size = sizeof(struct cairn_mem),
                                .ptr = assembly->values,
                                .dtype = assembly->dtype };
}

/* Many tensors at once: lists that are described once, and then pushed or fetched by one call. */
#include "client/job.h"

#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/device.h"
#include "client/op.h"
#include "client/push.h"
#include "proto/base/text.h"

/* ==== list ==== */

/* Lists of tensors that are pushed or fetched together. A list is described once, and is validated then
 * as far as possible. The checks that depend on the round are done for all entries before any entry is
 * sent. A list is one operation; if the list has memory of cards, each entry has an operation of its
 * own. */

struct list {
    struct job *job; /* holds a reference */
    int plane;       /* the plane of fetches; 0: a list of pushes */
    bool has_card;   /* some of the memory is a card's */
    size_t count;
    struct target *targets;  /* owned: [count] */
    struct cairn_mem mems[]; /* [count], as validated */
};

static void free_list(struct list *list)
{
    free(list->targets);
    free(list);
}

static void on_handle_free(void *object)
{
    struct list *list = object;
    job_unref(list->job);
    free_list(list);
}

static const char *name_of(const struct list *list, size_t index)
{
    return list->job->spec.tensors[list->targets[index].tensor].name;
}

/* ---- describing ---- */

/* Puts the number and name of the wrong entry in front of the error text. */
static cairn_status refuse_entry(cairn_status status, size_t index, const char *tensor)
{
    struct sentence why;
    sentence_set(&why, "%s", cairn_error());
    return client_fail(status, "entry %zu of the list (%s): %s", index,
                       tensor != NULL ? tensor : "without a name", why.text);
}

static cairn_status judge_entry(struct list *list, const struct cairn_part *part, size_t index)
{
    struct cairn_part given;
    struct command pattern = { .plane = 0 };
    struct cairn_mem *mem = &list->mems[index];
    size_t tensor;
    cairn_status status;
    if (!struct_copy_in(&given, sizeof given, sizeof given, part))
        return client_fail(CAIRN_ERR_INVALID, "struct_size is %zu, this library's is %zu",
                           part->struct_size, sizeof given);
    if (list->plane == 0)
        status = api_judge_push(list->job, given.tensor, given.box, &given.mem, &tensor,
                                &pattern.piece, mem);
    else
        status = api_judge_fetch(list->job, given.tensor, list->plane, given.box, &given.mem,
                                 &tensor, &pattern.piece, mem);
    if (status == CAIRN_OK) status = api_card(mem, &pattern.card);
    if (status != CAIRN_OK) return status;
    pattern.tensor = (uint32_t)tensor;
    pattern.dtype = (uint8_t)mem->dtype;
    pattern.ptr = mem->ptr;
    op_describe_target(&pattern, &list->targets[index]);
    list->has_card = list->has_card || pattern.card != NULL;
    return CAIRN_OK;
}

/* Refuses a list of pushes that names a tensor twice. */
static cairn_status note_twice(const struct list *list, uint8_t *seen, size_t index)
{
    const size_t tensor = list->targets[index].tensor;
    if (list->plane != 0) return CAIRN_OK;
    if (seen[tensor])
        return client_fail(CAIRN_ERR_EXISTS, "an earlier entry names this tensor, too; add "
                                             "gradients before pushing, or end the micro-batch");
    seen[tensor] = 1;
    return CAIRN_OK;
}

static cairn_status judge_entries(struct list *list, const struct cairn_part *parts)
{
    cairn_status status = CAIRN_OK;
    uint8_t *seen = calloc(list->job->spec.tensor_count + 1, 1);
    if (seen == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for a list");
    for (size_t i = 0; i < list->count && status == CAIRN_OK; i++) {
        status = judge_entry(list, &parts[i], i);
        if (status == CAIRN_OK) status = note_twice(list, seen, i);
        if (status != CAIRN_OK) status = refuse_entry(status, i, parts[i].tensor);
    }
    free(seen);
    return status;
}

static cairn_status open_list(struct job *job, int plane, const struct cairn_part *parts,
                              size_t count, cairn_list **out)
{
    if (out == NULL || count == 0 || parts == NULL)
        return client_fail(CAIRN_ERR_INVALID, "out and at least one part must be given");
    if (count > job->spec.tensor_count * 64)
        return client_fail(CAIRN_ERR_INVALID, "%zu parts, and job %s has %zu tensors", count,
                           job->name, job->spec.tensor_count);
    struct list *list = calloc(1, sizeof *list + count * sizeof *list->mems);
    if (list == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for a list");
    *list = (struct list) { .job = job, .plane = plane, .count = count };
    list->targets = calloc(count, sizeof *list->targets);
    const cairn_status status = list->targets != NULL
                                    ? judge_entries(list, parts)
                                    : client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for a list");
    void *handle = NULL;
    if (status == CAIRN_OK) handle = handle_open(CAIRN_HANDLE_LIST, list, on_handle_free);
    if (handle == NULL) {
        free_list(list);
        return status != CAIRN_OK
                   ? status
                   : client_fail(CAIRN_ERR_NO_MEMORY, "out of memory, or too much is open");
    }
    job_ref(job);
    *out = handle;
    return CAIRN_OK;
}

cairn_status cairn_push_list(cairn_job *handle, const struct cairn_part *parts, size_t count,
                             cairn_list **out)
{
    API_ENTER(job, handle);
    return open_list(job, 0, parts, count, out);
}

cairn_status cairn_fetch_list(cairn_job *handle, const char *plane, const struct cairn_part *parts,
                              size_t count, cairn_list **out)
{
    API_ENTER(job, handle);
    int number = 0;
    CAIRN_TRY(api_plane_of(plane, &number));
    return open_list(job, number, parts, count, out);
}

void cairn_list_close(cairn_list *list)
{
    if (list != NULL) (void)handle_close(CAIRN_HANDLE_LIST, list);
}

/* ---- posting ---- */

static struct list *list_of(const cairn_list *handle, bool is_fetch)
{
    struct list *list = handle_get(CAIRN_HANDLE_LIST, handle);
    if (list == NULL) {
        handle_fail(handle, "list");
        return NULL;
    }
    if ((list->plane != 0) == is_fetch && !list->job->closing) return list;
    client_fail(CAIRN_ERR_HANDLE,
                list->job->closing ? "the job of this list is closed"
                                   : "this list is of cairn_%s_list: post it with cairn_%s_many",
                is_fetch ? "push" : "fetch", is_fetch ? "push" : "fetch");
    handle_put(handle);
    return NULL;
}

/* Passes the end of an entry's operation on to the operation of the list. */
static void on_entry_done(void *context, cairn_status status, const char *why)
{
    op_let_go(context, status, status != CAIRN_OK ? why : NULL);
}

/* Fills in the command that entry `index` is posted as. */
static cairn_status describe(const struct list *list, size_t index, struct command *pattern)
{
    const struct target *target = &list->targets[index];
    struct cairn_mem mem = list->mems[index];
    pattern->tensor = target->tensor;
    pattern->piece = target->piece;
    pattern->event = NULL;
    pattern->owned = NULL;
    return api_prepare(&mem, false, pattern);
}

/* Chains a command for each entry; after a failure the caller drops all of them. */
static cairn_status begin_entries(const struct list *list, uint8_t kind, struct command *pattern,
                                  struct command_chain *chain)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < list->count && status == CAIRN_OK; i++) {
        status = describe(list, i, pattern);
        if (status == CAIRN_OK) status = op_chain(list->job, kind, pattern, chain);
        if (status == CAIRN_OK) continue;
        api_unprepare(pattern);
        status = refuse_entry(status, i, name_of(list, i));
    }
    return status;
}

/* Gives each entry an operation of its own, which waits for the entry's stream. No caller waits for
 * these operations. The caller's operation, if requested, ends with the last of them. */
static cairn_status post_each(const struct list *list, uint8_t kind, struct command *pattern,
                              cairn_op **op_out)
{
    struct command_chain chain = { .of = NULL };
    TAILQ_INIT(&chain.commands);
    if (op_out != NULL) {
        chain.of = op_create(list->job, kind, true);
        if (chain.of == NULL)
            return client_fail(CAIRN_ERR_NO_MEMORY,
                               "out of memory, or too many operations are open");
        pattern->on_done = on_entry_done;
        pattern->context = chain.of;
    }
    const cairn_status status = begin_entries(list, kind, pattern, &chain);
    void *handle = chain.of != NULL ? chain.of->handle : NULL;
    if (status == CAIRN_OK) {
        op_chain_go(list->job->session, &chain);
        if (op_out != NULL) *op_out = handle;
        return CAIRN_OK;
    }
    op_chain_drop(&chain);
    if (handle != NULL) (void)handle_close(CAIRN_HANDLE_OP, handle);
    return status;
}

/* Hands the entire list over, as one operation if no entry waits for a stream. */
static cairn_status post(const struct list *list, const cairn_list *handle, uint8_t kind,
                         struct command *pattern, cairn_op **op_out)
{
    size_t wrong;
    if (list->has_card) return post_each(list, kind, pattern, op_out);
    const struct op_list of = { .handle = handle, .targets = list->targets, .count = list->count };
    const cairn_status status = op_begin_list(list->job, kind, pattern, &of, op_out, &wrong);
    return status != CAIRN_OK && wrong < list->count
               ? refuse_entry(status, wrong, name_of(list, wrong))
               : status;
}

/* ---- pushes ---- */

static cairn_status fill_list(const struct list *list, const struct cairn_round *round,
                              uint32_t micro)
{
    size_t wrong;
    const size_t count = list->count;
    size_t *tensors = malloc(count * sizeof *tensors);
    if (tensors == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for a push");
    for (size_t i = 0; i < count; i++) tensors[i] = list->targets[i].tensor;
    cairn_status status = api_fill_many(list->job, round, micro, tensors, count, &wrong);
    if (status != CAIRN_OK && wrong < count)
        status = refuse_entry(status, wrong, list->job->spec.tensors[tensors[wrong]].name);
    free(tensors);
    return status;
}

/* Decrements filling.adding for a push that is not added in the end; the caller may try the push
 * again. */
static void accumulate_skip(struct job *job, size_t tensor)
{
    HOLD_LOCK(&job->session->lock);
    job->filling.tensors[tensor] = NOT_PUSHED;
    if (--job->filling.adding == 0) pthread_cond_broadcast(&job->session->changed);
}

/* Adds up all entries. Each entry was counted in filling.adding, and the entry's call decrements
 * filling.adding in any case. */
static cairn_status add_up(const struct list *list, const struct cairn_round *round, uint32_t micro)
{
    cairn_status first = CAIRN_OK;
    for (size_t i = 0; i < list->count; i++) {
        const struct target *target = &list->targets[i];
        struct cairn_mem mem = list->mems[i];
        void *copy = NULL;
        cairn_status status = api_bring(&mem, &target->piece, &copy);
        if (status == CAIRN_OK)
            status = accumulate_add(list->job, round, micro, target->tensor, &target->piece, &mem);
        else
            accumulate_skip(list->job, target->tensor);
        free(copy);
        if (status != CAIRN_OK && first == CAIRN_OK)
            first = refuse_entry(status, i, name_of(list, i));
    }
    return first;
}

static cairn_status push_many(const struct list *list, const cairn_list *handle,
                              const struct cairn_round *round, uint32_t micro, cairn_op **op_out)
{
    struct job *job = list->job;
    cairn_status status = api_batch_place(job, round, &micro);
    if (status == CAIRN_OK) status = fill_list(list, round, micro);
    if (status != CAIRN_OK) return status;
    if (accumulate_wanted(job)) {
        status = add_up(list, round, micro);
        return status == CAIRN_OK ? op_finished(job, CAIRN_CHUNK_PUSH, op_out) : status;
    }
    struct command pattern = { .micro = micro, .round = round->round };
    status = post(list, handle, CAIRN_CHUNK_PUSH, &pattern, op_out);
    if (status == CAIRN_OK) return CAIRN_OK;
    pthread_mutex_lock(&job->session->lock); // the caller may try again
    for (size_t i = 0; i < list->count; i++)
        job->filling.tensors[list->targets[i].tensor] = NOT_PUSHED;
    pthread_mutex_unlock(&job->session->lock);
    return status;
}

cairn_status cairn_push_many(cairn_list *handle, const struct cairn_round *round, uint32_t micro,
                             cairn_op **op_out)
{
    const struct list *list = list_of(handle, false);
    if (list == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(list->job);
    if (status == CAIRN_OK) status = push_many(list, handle, round, micro, op_out);
    handle_put(handle);
    return status;
}

/* ---- fetches ---- */

cairn_status cairn_fetch_many(cairn_list *handle, struct cairn_version version, cairn_op **op_out)
{
    if (op_out == NULL)
        return client_fail(CAIRN_ERR_INVALID,
                           "op_out is NULL: nothing else says when a fetch is done");
    const struct list *list = list_of(handle, true);
    if (list == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(list->job);
    struct command pattern = { .plane = (uint8_t)list->plane, .version = version };
    if (status == CAIRN_OK) status = post(list, handle, CAIRN_CHUNK_FETCH, &pattern, op_out);
    handle_put(handle);
    return status;
}

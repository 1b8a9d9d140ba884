#include "client/reading.h"

#include <stdlib.h>
#include <string.h>

#include "client/job.h"
#include "proto/plan/plan_job.h"
#include "proto/spec/optimizer.h"
#include "proto/spec/spec_fields.h"

#define SMALL_BYTES 32768 /* of pages: read sooner than a thread has begun */

/* ---- the spec ---- */

/* Compares the names, and what an amendment may change of a tensor: its kind, its wire dtype, and
 * whether it is an alias. */
static bool same_tensors(const struct cairn_job_spec_data *a, const struct cairn_job_spec_data *b)
{
    if (a->tensor_count != b->tensor_count) return false;
    for (size_t i = 0; i < a->tensor_count; i++) {
        const struct cairn_tensor_spec *x = &a->tensors[i], *y = &b->tensors[i];
        if (strcmp(x->name, y->name) != 0 || x->kind != y->kind || x->wire != y->wire ||
            (x->alias_of == NULL) != (y->alias_of == NULL))
            return false;
    }
    return true;
}

/* True if the terms are equal that must not change as long as a handle is open. */
static bool same_terms(const struct cairn_job_spec_data *a, const struct cairn_job_spec_data *b)
{
    for (size_t i = 0; i < cairn_spec_fields.count; i++) {
        const struct cairn_spec_field *field = &cairn_spec_fields.fields[i];
        if (field->change != CAIRN_SPEC_NEXT_ROUND &&
            cairn_spec_field_bits(field, a) != cairn_spec_field_bits(field, b))
            return false;
    }
    return true;
}

/* The servers' spec is byte for byte what this worker sent. Most are, and reading a million tensors again
 * would take seconds, and the memory of another spec. */
static bool is_what_was_sent(const struct job *job)
{
    const struct cairn_packed *sent = job->attachment.spec_packed;
    const struct cairn_paged *came = &job->attachment.spec_pages;
    return sent != NULL && sent->size == came->have_bytes &&
           memcmp(sent->bytes, came->bytes, sent->size) == 0;
}

static cairn_status judge_spec(struct reading *reading)
{
    const struct job *job = reading->job;
    const struct cairn_job_spec_data *spec = &reading->spec;
    if (!(reading->first && job->member.role == CAIRN_READER) &&
        !cairn_spec_joins(&job->spec, spec)) {
        cairn_sentence_set(&reading->why,
                           "job %s is another one now (%zu differences); open it again", job->name,
                           cairn_spec_diff(&job->spec, spec, 0, NULL, NULL));
        return CAIRN_ERR_MISMATCH;
    }
    reading->tells_clip_norm = true;
    reading->clip_norm = spec->clip_norm;
    reading->takes_spec = reading->first;
    if (reading->first || (same_tensors(&job->spec, spec) && same_terms(&job->spec, spec)))
        return CAIRN_OK;
    cairn_sentence_set(&reading->why,
                       "job %s was amended, revision %llu: its tensors or terms are others now; "
                       "close it and open it again, with the spec as it was or as it is",
                       job->name, (unsigned long long)spec->revision);
    return CAIRN_ERR_REOPEN;
}

/* The first time the spec of the servers is taken: a reader has none, and a worker's may be that of before
 * an amendment. It stays what it was at a later attach: with other tensors, nothing that this member knows
 * of the job holds any more. */
static cairn_status read_spec(struct reading *reading)
{
    const struct job *job = reading->job;
    if (reading->first && is_what_was_sent(job)) {
        reading->tells_clip_norm = true;
        reading->clip_norm = job->spec.clip_norm;
        return CAIRN_OK;
    }
    const cairn_status status = cairn_spec_unpack(
        job->attachment.spec_pages.bytes, job->attachment.spec_pages.have_bytes,
        cairn_optimizer_names(), &reading->spec, &reading->why);
    if (status == CAIRN_OK) return judge_spec(reading);
    cairn_spec_init(&reading->spec);
    return status;
}

/* ---- the layout ---- */

cairn_status cairn_layout_of_pages(const struct cairn_job_spec_data *spec,
                                   const struct cairn_paged *pages,
                                   struct cairn_layout **layout_out)
{
    struct cairn_layout *layout;
    const cairn_status status = cairn_plan_job_decode(spec, pages->bytes, pages->have_bytes,
                                                      &layout);
    if (status != CAIRN_OK) return status;
    if (layout->shard_count > CAIRN_CLIENT_SHARDS_MAX) {
        cairn_layout_close(layout);
        return CAIRN_ERR_PROTOCOL;
    }
    *layout_out = layout;
    return CAIRN_OK;
}

static cairn_status read_layout(struct reading *reading)
{
    const struct job *job = reading->job;
    const struct cairn_paged *pages = &job->attachment.layout_pages;
    const struct cairn_job_spec_data *spec = reading->takes_spec ? &reading->spec : &job->spec;
    const struct cairn_version none = { 0, 0 };
    cairn_status status = cairn_layout_of_pages(spec, pages, &reading->layout);
    if (status != CAIRN_OK || !reading->wants_body) return status;
    status = cairn_body_open(spec, reading->layout, none, &reading->body);
    if (status == CAIRN_OK) reading->layout = NULL;
    return status;
}

/* ---- both ---- */

static void *run(void *arg)
{
    struct reading *reading = arg;
    reading->spec_status = read_spec(reading);
    if (reading->spec_status == CAIRN_OK) reading->layout_status = read_layout(reading);
    atomic_store(&reading->is_over, true);
    if (reading->has_thread) cairn_session_kick(reading->job->session);
    return NULL;
}

cairn_status cairn_reading_begin(struct job *job)
{
    const struct attachment *attachment = &job->attachment;
    const uint64_t bytes = attachment->spec_pages.have_bytes + attachment->layout_pages.have_bytes;
    struct reading *reading = calloc(1, sizeof *reading);
    if (reading == NULL) return CAIRN_ERR_NO_MEMORY;
    cairn_spec_init(&reading->spec);
    reading->job = job;
    reading->first = !attachment->attached_once;
    reading->wants_body = job->bodies == NULL;
    reading->has_thread = bytes > SMALL_BYTES;
    job->attachment.reading = reading;
    if (reading->has_thread && pthread_create(&reading->thread, NULL, run, reading) == 0)
        return CAIRN_OK;
    reading->has_thread = false;
    run(reading);
    return CAIRN_OK;
}

void cairn_reading_await(struct reading *reading)
{
    if (reading->has_thread) pthread_join(reading->thread, NULL);
    reading->has_thread = false;
}

void cairn_reading_free(struct reading *reading)
{
    if (reading == NULL) return;
    cairn_reading_await(reading);
    cairn_spec_release(&reading->spec);
    if (reading->layout != NULL) cairn_layout_close(reading->layout);
    cairn_body_put(reading->body);
    free(reading);
}

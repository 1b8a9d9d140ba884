/* Texts with fields of a message, as commands print them (client/ctl/output.c). */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/ctl/ctl.h"
#include "tests/support/suite.h"

static void expect(const void *message, const char *text, const char *expected)
{
    char *made = ctl_text_of(message, text);
    if (expected == NULL)
        ck_assert_ptr_null(made);
    else
        ck_assert_str_eq(made, expected);
    free(made);
}

TEST(a_field_is_printed_as_it_is_or_as_a_cell_has_it)
{
    Cairn__JobStatus job = CAIRN__JOB_STATUS__INIT;
    Cairn__BytesTold bytes = CAIRN__BYTES_TOLD__INIT;
    job.name = wire_text("toy");
    job.step = 7;
    job.state_bytes = 2048;
    job.stepped_ms_ago = 2340;
    job.last_grad_norm = 0.5;
    bytes.pushed_a_step = 3072.7;
    expect(&job, "{name} at {step}", "toy at 7");
    expect(&job, "{state_bytes/bytes}, {stepped_ms_ago/s}", "2.0 KiB, 2 s");
    expect(&job, "{stepped_ms_ago/1000%.1f} s, {last_grad_norm/%g}", "2.3 s, 0.5");
    expect(&job, "{step} step{step/plural}", "7 steps");
    expect(&bytes, "{pushed_a_step/bytes}", "3.0 KiB");
}

TEST(a_text_is_left_out_by_its_conditions)
{
    Cairn__JobStatus job = CAIRN__JOB_STATUS__INIT;
    expect(&job, "waits for {awaited?}", NULL);
    expect(&job, "{?straggler}held up by {straggler.text}", NULL);
    expect(&job, "{!version_unknown}known", "known");
    job.version_unknown = true;
    expect(&job, "{step!version_unknown}", NULL);
    job.awaited = wire_text("w1");
    expect(&job, "waits for {awaited?}", "waits for w1");
}

TEST(a_part_is_left_out_by_itself)
{
    Cairn__JobStatus job = CAIRN__JOB_STATUS__INIT;
    job.state = wire_text("running");
    expect(&job, "{state}[: {awaited}], [{?stepped}a step][{!stepped}none]", "running, none");
    job.awaited = wire_text("w1");
    job.stepped = true;
    expect(&job, "{state}[: {awaited}], [{?stepped}a step][{!stepped}none]", "running: w1, a step");
    expect(&job, "{state}[{?stepped}, {restores} restores[, {skips} skips]]",
           "running, 0 restores");
}

TEST(conditions_compare_fields)
{
    Cairn__JobStatus job = CAIRN__JOB_STATUS__INIT;
    Cairn__JobSpec spec = CAIRN__JOB_SPEC__INIT;
    job.state = wire_text("running");
    job.workers_min = 2;
    job.workers_max = 3;
    expect(&job, "{?state=running}runs", "runs");
    expect(&job, "{!state=running,state=parked}stopped", NULL);
    expect(&job, "{?workers_max>workers_min}elastic", "elastic");
    expect(&job, "{?workers_max>3}many", NULL);
    expect(&job,
           "[{?spec.on_worker_loss/word=wait}waits][{!spec.on_worker_loss/word=wait}does not]",
           "does not");
    job.spec = &spec;
    spec.on_worker_loss = CAIRN_WORKER_LOSS_WAIT;
    expect(&job, "{?spec.on_worker_loss/word=wait}{spec.on_worker_loss/word}", "wait");
    expect(&job, "{?skips,restores}one of both", NULL);
    job.restores = 1;
    expect(&job, "{?skips,restores}one of both", "one of both");
}

TEST(fields_are_added_up)
{
    Cairn__JobStatus job = CAIRN__JOB_STATUS__INIT;
    job.step = 7;
    job.skips = 2;
    expect(&job, "{step+skips}, {step-skips}, {skips-step}", "9, 5, 0");
    expect(&job, "{skips-step?} more", NULL);
}

TEST(a_list_of_texts_stands_one_beneath_the_other)
{
    Cairn__JobStatus job = CAIRN__JOB_STATUS__INIT;
    char *names[] = { wire_text("a"), wire_text("b") };
    job.frozen_tensors = names;
    job.n_frozen_tensors = 2;
    job.frozen_tensor_count = 5;
    expect(&job, "{frozen_tensors?}[{:}and {frozen_tensor_count-frozen_tensors} more]",
           "a\n                  b\n                  and 3 more");
}

/* ---- rows ---- */

static char word[] = "word", *no_words[] = { word, word, word };

/* A message with one element in every list, and every nested message. */
static void *filled(const ProtobufCMessageDescriptor *type, int depth)
{
    ProtobufCMessage *message = ctl_message(type);
    for (unsigned i = 0; i < type->n_fields && depth < 4; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        void *at = (char *)message + field->offset;
        if (field->type == PROTOBUF_C_TYPE_MESSAGE && field->label == PROTOBUF_C_LABEL_REPEATED)
            ctl_append(message, field->name, filled(field->descriptor, depth + 1));
        else if (field->type == PROTOBUF_C_TYPE_STRING && field->label == PROTOBUF_C_LABEL_REPEATED)
            ctl_append(message, field->name, ctl_copy("text"));
        else if (field->type == PROTOBUF_C_TYPE_MESSAGE)
            *(void **)at = filled(field->descriptor, depth + 1);
    }
    return message;
}

TEST(rows_name_only_fields_that_exist)
{
    static const struct ctl_question *const questions[] = {
        &ctl_cluster_status, &ctl_cluster_adopt, &ctl_key_trust,        &ctl_reshard_status,
        &ctl_reshard_cancel, &ctl_job_list,      &ctl_job_show,         &ctl_job_amend,
        &ctl_job_create,     &ctl_snapshot_list, &ctl_snapshot_restore, &ctl_snapshot_create,
    };
    const struct ctl ctl = { .argv = no_words, .argc = 3 };
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stdout));
    ctl_output_begin(&ctl);
    for (const struct ctl_shape *shape = ctl_shapes; shape->of != NULL; shape++) {
        void *message = filled(shape->of, 0);
        json_decref(ctl_json(message));
        if (shape->columns != NULL) {
            struct ctl_table *table = ctl_table_open(shape->columns);
            ctl_table_rows(table, &message, 1);
            ctl_table_close(table, &ctl);
        }
        message_free(message);
    }
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        ProtobufCMessage *message = filled(message_type(questions[i]->reply_type), 0);
        ctl_page(message, questions[i]->page);
        message_free(message);
    }
}

SUITE(30);

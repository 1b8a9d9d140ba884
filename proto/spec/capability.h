/* The capabilities of this version: every choice that a job's spec offers, a row each, and choices
 * that do not go together. The judge of specs reads it, `cairn capabilities` prints it, and a test
 * (e2e.capabilities) makes each row's choice: one that is supported has an effect that can be seen,
 * one that is not is refused when a worker attaches, and nothing is ignored without a word.
 *
 * Pure; static memory. */
#ifndef CAIRN_SPEC_CAPABILITY_H
#define CAIRN_SPEC_CAPABILITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/base/status.h"

enum cairn_capability_field {
    CAIRN_CAPABILITY_KIND, /* of a tensor; cairn_kind */
    CAIRN_CAPABILITY_WIRE, /* cairn_dtype of what is fetched; u8: of blobs only, and theirs */
    CAIRN_CAPABILITY_REDUCE,
    CAIRN_CAPABILITY_MASTER,
    CAIRN_CAPABILITY_PLACE,       /* 0 rows, 1 whole */
    CAIRN_CAPABILITY_INIT,        /* cairn_init_kind */
    CAIRN_CAPABILITY_ALIAS,       /* 0 none, 1 whole, 2 box: fetched; 3 box: pushed */
    CAIRN_CAPABILITY_SCHEDULE,    /* of a group; cairn_schedule_kind */
    CAIRN_CAPABILITY_STAGE,       /* of the job */
    CAIRN_CAPABILITY_LOSS_SCALE,  /* cairn_loss_scale */
    CAIRN_CAPABILITY_NONFINITE,   /* cairn_nonfinite */
    CAIRN_CAPABILITY_GROUPS,      /* cairn_reduce_groups */
    CAIRN_CAPABILITY_SHARD_LOSS,  /* cairn_shard_loss */
    CAIRN_CAPABILITY_WORKER_LOSS, /* cairn_worker_loss */
    CAIRN_CAPABILITY_STAGING,     /* cairn_snapshot_staging */
    CAIRN_CAPABILITY_TIERS,       /* cairn_tiers: what may lie on a device without what else */
    CAIRN_CAPABILITY_MISSING,     /* cairn_missing */
    CAIRN_CAPABILITY_COMBINATION, /* cairn_combination */
    CAIRN_CAPABILITY_FIELD_COUNT
};

/* Choices that are supported, but not together: rows of COMBINATIONS in capability.c, which say all of a pair
 * that is refused. */
enum cairn_combination {
    CAIRN_COMBINATION_GROUPS_TILES, /* reduce_groups host, and workers that declare tiles */
    CAIRN_COMBINATION_PARTS_TILES,  /* a tile of what is an alias of a box */
    CAIRN_COMBINATION_BLOB_TILE,
    CAIRN_COMBINATION_BLOB_INIT,
    CAIRN_COMBINATION_BLOB_ALIAS,
    CAIRN_COMBINATION_NUMBERS_U8, /* u8 of what is no blob */
};

struct cairn_capability {
    enum cairn_capability_field field;
    int value;
    const char *value_name;
    bool supported;
    const char *instead; /* not supported, and taken: what is done; NULL: it is refused */
};

/* The tensor whose properties a combination is looked for in. */
enum cairn_combination_of {
    CAIRN_COMBINATION_OF_TENSOR, /* one of the spec, no alias */
    CAIRN_COMBINATION_OF_TARGET, /* the one that an alias names */
    CAIRN_COMBINATION_OF_TILED, /* the one that a tile is declared of, under the name that is given */
    CAIRN_COMBINATION_OF_CUT,   /* likewise, its target, and the tile is not all of it */
    CAIRN_COMBINATION_OF_NONE, /* it is taken: `instead` */
};
struct cairn_tensor_spec;
struct cairn_refusal {
    enum cairn_combination_of of;
    bool (*has)(const struct cairn_tensor_spec *tensor);
    cairn_status status;
    const char *why; /* the end of a sentence that begins with the tensor's name */
};

/* The row that refuses the tensor; NULL: none. Static memory. */
const struct cairn_refusal *cairn_combination_refused(enum cairn_combination_of of,
                                                      const struct cairn_tensor_spec *tensor);

/* All rows, by field. */
const struct cairn_capability *cairn_capability_table(size_t *count_out);
/* As in cairn.h: "on_nonfinite". */
const char *cairn_capability_field_name(enum cairn_capability_field field);
/* The name of a value: "bf16"; "?" if it is none of the field's. */
const char *cairn_capability_name(enum cairn_capability_field field, int value);
/* The value of a name; -1 if there is none. */
int cairn_capability_value(enum cairn_capability_field field, const char *name);
/* CAIRN_ERR_INVALID: no value of the field; CAIRN_ERR_UNSUPPORTED: one, but not in this version. `why` (may
 * be NULL) begins with `subject` ("tensor \"x\": "), and names the field, the value and all that are
 * supported. */
cairn_status cairn_capability_check(enum cairn_capability_field field, int64_t value,
                                    const char *subject,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif

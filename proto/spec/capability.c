#include "proto/spec/capability.h"

#include <inttypes.h>
#include <string.h>

#include "proto/spec/spec.h"

static const char *const field_names[CAIRN_CAPABILITY_FIELD_COUNT] = {
    "kind",
    "wire",
    "reduce",
    "master",
    "place",
    "init",
    "alias",
    "schedule",
    "stage",
    "loss_scale_policy",
    "on_nonfinite",
    "reduce_groups",
    "on_shard_loss",
    "on_worker_loss",
    "snapshot_staging",
    "tiers",
    "missing_gradients",
    "combination",
};

/* Rows by field; the names of the fields stand once, above. */
#define TABLE(X)                                                           \
    X(KIND, CAIRN_TRAINED, "trained", true)                                \
    X(KIND, CAIRN_FROZEN, "frozen", true)                                  \
    X(KIND, CAIRN_BUFFER, "buffer", true)                                  \
    X(KIND, CAIRN_BLOB, "blob", true)                                      \
    X(WIRE, CAIRN_F32, "f32", true)                                        \
    X(WIRE, CAIRN_BF16, "bf16", true)                                      \
    X(WIRE, CAIRN_F16, "f16", false)                                       \
    X(WIRE, CAIRN_F64, "f64", false)                                       \
    X(WIRE, CAIRN_U8, "u8", true)                                          \
    X(REDUCE, CAIRN_F32, "f32", true)                                      \
    X(REDUCE, CAIRN_BF16, "bf16", false)                                   \
    X(REDUCE, CAIRN_F16, "f16", false)                                     \
    X(REDUCE, CAIRN_F64, "f64", false)                                     \
    X(MASTER, CAIRN_F32, "f32", true)                                      \
    X(MASTER, CAIRN_BF16, "bf16", false)                                   \
    X(MASTER, CAIRN_F16, "f16", false)                                     \
    X(MASTER, CAIRN_F64, "f64", false)                                     \
    X(MASTER, CAIRN_U8, "u8", true)                                        \
    X(PLACE, 0, "rows", true)                                              \
    X(PLACE, 1, "whole", false)                                            \
    X(INIT, CAIRN_INIT_NONE, "none", true)                                 \
    X(INIT, CAIRN_INIT_ZEROS, "zeros", true)                               \
    X(INIT, CAIRN_INIT_ONES, "ones", true)                                 \
    X(INIT, CAIRN_INIT_CONSTANT, "constant", true)                         \
    X(INIT, CAIRN_INIT_UNIFORM, "uniform", true)                           \
    X(INIT, CAIRN_INIT_NORMAL, "normal", true)                             \
    X(ALIAS, 0, "none", true)                                              \
    X(ALIAS, 1, "whole", true)                                             \
    X(ALIAS, 2, "box, fetched", true)                                      \
    X(ALIAS, 3, "box, put or pushed", true)                                \
    X(SCHEDULE, CAIRN_SCHEDULE_CONSTANT, "constant", true)                 \
    X(SCHEDULE, CAIRN_SCHEDULE_LINEAR, "linear", true)                     \
    X(SCHEDULE, CAIRN_SCHEDULE_COSINE, "cosine", true)                     \
    X(SCHEDULE, CAIRN_SCHEDULE_WSD, "wsd", true)                           \
    X(SCHEDULE, CAIRN_SCHEDULE_TABLE, "table", true)                       \
    X(SCHEDULE, CAIRN_SCHEDULE_DRIVEN, "driven", true)                     \
    X(STAGE, 0, "state on one shard, pushed once a round", true)           \
    X(STAGE, 1, "state on all shards, pushed once a round", true)          \
    X(STAGE, 2, "every micro-batch pushed", true)                          \
    X(STAGE, 3, "as 2; the Python package keeps few units", true)          \
    X(LOSS_SCALE, CAIRN_LOSS_SCALE_FIXED, "fixed", true)                   \
    X(LOSS_SCALE, CAIRN_LOSS_SCALE_DYNAMIC, "dynamic", true)               \
    X(NONFINITE, CAIRN_NONFINITE_SKIP, "skip", true)                       \
    X(NONFINITE, CAIRN_NONFINITE_FAIL, "fail", true)                       \
    X(GROUPS, CAIRN_GROUPS_NONE, "none", true)                             \
    X(GROUPS, CAIRN_GROUPS_HOST, "host", true)                             \
    X(SHARD_LOSS, CAIRN_SHARD_LOSS_WAIT, "wait", true)                     \
    X(SHARD_LOSS, CAIRN_SHARD_LOSS_RESTORE_LATEST, "restore-latest", true) \
    X(WORKER_LOSS, CAIRN_WORKER_LOSS_REDO, "redo", true)                   \
    X(WORKER_LOSS, CAIRN_WORKER_LOSS_WAIT, "wait", true)                   \
    X(WORKER_LOSS, CAIRN_WORKER_LOSS_FAIL, "fail", true)                   \
    X(STAGING, CAIRN_SNAPSHOT_STAGING_STATE, "state", true)                \
    X(STAGING, CAIRN_SNAPSHOT_STAGING_SMALL, "small", true)                \
    X(TIERS, CAIRN_TIERS_TOGETHER, "together", true)                       \
    X(TIERS, CAIRN_TIERS_MOMENTS_ON_HOST, "moments on the host", false)    \
    X(TIERS, CAIRN_TIERS_PARAM_ON_HOST, "param on the host", false)        \
    X(MISSING, CAIRN_MISSING_ZERO, "zero", true)                           \
    X(MISSING, CAIRN_MISSING_LEAVE, "leave", true)

/* value, name | what is done instead; NULL: it is refused | of what, which tensors `t`, with which status and
 * sentence */
#define COMBINATIONS(X)                                                                           \
    X(GROUPS_TILES, "reduce_groups host, with tiles", "no groups; the log and job show say so",   \
      NONE, false, CAIRN_OK, "")                                                                  \
    X(PARTS_TILES, "alias of a box, declared as a tile", NULL, TILED, t->alias_box != NULL,       \
      CAIRN_ERR_UNSUPPORTED,                                                                      \
      "an alias of a box; declare what is held of the tensor that it is of")                      \
    X(BLOB_TILE, "blob, a part of it declared as a tile", NULL, CUT, t->kind == CAIRN_BLOB,       \
      CAIRN_ERR_INVALID, "a blob is held whole by every worker; list no tile of it")              \
    X(BLOB_INIT, "blob, with an init", NULL, TENSOR,                                              \
      t->kind == CAIRN_BLOB && t->init.kind != CAIRN_INIT_NONE, CAIRN_ERR_INVALID,                \
      "a blob is put: init 0 (none)")                                                             \
    X(BLOB_ALIAS, "blob, with an alias", NULL, TARGET, t->kind == CAIRN_BLOB, CAIRN_ERR_INVALID,  \
      "a blob, which has one name")                                                               \
    X(NUMBERS_U8, "u8, of what is no blob", NULL, TENSOR,                                         \
      t->kind != CAIRN_BLOB && (t->wire == CAIRN_U8 || t->master == CAIRN_U8), CAIRN_ERR_INVALID, \
      "u8 is of blobs only: kind 4 (blob), or wire and master 1 (f32)")

static const struct cairn_capability table[] = {
#define X(field, value, name, supported) \
    { CAIRN_CAPABILITY_##field, (value), (name), (supported), NULL },
    TABLE(X)
#undef X
#define X(value, name, instead, ...) \
    { CAIRN_CAPABILITY_COMBINATION, CAIRN_COMBINATION_##value, (name), false, (instead) },
        COMBINATIONS(X)
#undef X
};
#define ROWS (sizeof table / sizeof table[0])

#define X(value, name, instead, of, condition, ...)            \
    static bool has_##value(const struct cairn_tensor_spec *t) \
    {                                                          \
        (void)t;                                               \
        return condition;                                      \
    }
COMBINATIONS(X)
#undef X
static const struct cairn_refusal refusals[] = {
#define X(value, name, instead, of, condition, status, why) \
    { CAIRN_COMBINATION_OF_##of, has_##value, (status), (why) },
    COMBINATIONS(X)
#undef X
};

const struct cairn_refusal *cairn_combination_refused(enum cairn_combination_of of,
                                                      const struct cairn_tensor_spec *tensor)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        if (refusals[i].of == of && refusals[i].has(tensor)) return &refusals[i];
    return NULL;
}

const struct cairn_capability *cairn_capability_table(size_t *count_out)
{
    *count_out = ROWS;
    return table;
}

const char *cairn_capability_field_name(enum cairn_capability_field field)
{
    return (unsigned)field < CAIRN_CAPABILITY_FIELD_COUNT ? field_names[field] : "?";
}

const char *cairn_capability_name(enum cairn_capability_field field, int value)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (table[i].field == field && table[i].value == value) return table[i].value_name;
    }
    return "?";
}

int cairn_capability_value(enum cairn_capability_field field, const char *name)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (table[i].field == field && strcmp(table[i].value_name, name) == 0)
            return table[i].value;
    }
    return -1;
}

/* "0 (rows), 1 (whole)" of those supported, behind the sentence. */
static void add_supported(enum cairn_capability_field field, struct cairn_sentence *why)
{
    const char *comma = "; allowed: ";
    for (size_t i = 0; i < ROWS; i++) {
        if (table[i].field != field || !table[i].supported) continue;
        cairn_sentence_add(why, "%s%d (%s)", comma, table[i].value, table[i].value_name);
        comma = ", ";
    }
}

cairn_status cairn_capability_check(enum cairn_capability_field field, int64_t value,
                                    const char *subject, struct cairn_sentence *why)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (table[i].field != field || table[i].value != value) continue;
        if (table[i].supported) return CAIRN_OK;
        cairn_sentence_set(why, "%s%s %s (%" PRId64 ") is not supported by this version", subject,
                           field_names[field], table[i].value_name, value);
        add_supported(field, why);
        return CAIRN_ERR_UNSUPPORTED;
    }
    cairn_sentence_set(why, "%s%s is %" PRId64, subject, field_names[field], value);
    add_supported(field, why);
    return CAIRN_ERR_INVALID;
}

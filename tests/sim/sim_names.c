/* Names for --verbose. */
#include "tests/sim/sim.h"

#define NAME(table, kind) ((unsigned)(kind) < sizeof table / sizeof *table ? table[kind] : "?")

const char *sim_message_name(enum message_kind kind)
{
    static const char *const names[] = {
        "FENCE",          "RESOLVE",    "OPEN",         "DECIDE",    "PIN",
        "SHARD_HELLO",    "ANSWER",     "REDUCED",      "PUBLISHED", "ATTACH",
        "BEGIN",          "WRITE",      "COMMIT",       "ABANDON",   "PAUSE",
        "OPENED",         "RESULT",     "FENCED",       "REFUSED",   "HELLO",
        "CHUNK",          "MICRO_END",  "SHARD_COMMIT", "GRANT",     "ACK",
        "REFUSE",         "MICRO_ACK",  "ASK_LACKS",    "LACKS",     "PROBE",
        "ALIVE",          "COME_AGAIN", "END",          "JOIN",      "PREPARE",
        "PREPARED",       "UNPREPARE",  "MOVED",        "SETTLED",   "PUBLISH",
        "PUBLISHED_ANEW", "LEAVE",      "ATTACHED",     "LAYOUT",    "MIRROR_MAKE",
        "MIRROR_MADE",    "MIRROR_OF",  "MIRROR_JOIN",  "PAIRED",    "MIRROR_SUMS",
        "FILLED",         "DROP",       "OWNS",         "FREE",
    };
    return NAME(names, kind);
}

const char *event_name(enum event_kind kind)
{
    static const char *const names[] = {
        "nothing",
        "shard -> coordinator",
        "worker -> coordinator",
        "coordinator -> shard",
        "coordinator -> worker",
        "worker -> shard",
        "shard -> worker",
        "landed",
        "folded",
        "summed",
        "updated",
        "relay: landed",
        "relay: folded",
        "relay: waits",
        "persisted",
        "tick",
        "computed",
        "lease ends",
        "shard is missed",
        "peer is missed",
        "endpoint is missed",
        "reconnects",
        "fabric reconnects",
        "coordinator start",
        "process start",
        "fault",
        "heal",
        "twin connects",
        "coordinator -> twin",
        "twin -> coordinator",
        "probe ends",
        "adopt",
        "amend",
        "asks again",
        "taken",
        "takes again",
        "attack",
        "standby asks",
        "piece of state",
        "sums of a chunk",
        "host starts",
        "row saved",
        "logged",
        "snapshot",
        "candidate rests",
        "-> etcd",
        "etcd ->",
        "etcd is silent",
        "writes again",
        "operator",
        "coordinator is missed",
    };
    return NAME(names, kind);
}

const char *step_action_name(enum step_action_kind kind)
{
    static const char *const names[] = {
        [CAIRN_STEP_GRANT] = "shard: GRANT",
        [CAIRN_STEP_ACK] = "shard: ACK",
        [CAIRN_STEP_REFUSE] = "shard: REFUSE",
        [CAIRN_STEP_MICRO_ACK] = "shard: MICRO_ACK",
        [CAIRN_STEP_RECEIVE] = "shard: RECEIVE",
        [CAIRN_STEP_DISCARD] = "shard: DISCARD",
        [CAIRN_STEP_FOLD] = "shard: FOLD",
        [CAIRN_STEP_ZERO] = "shard: ZERO",
        [CAIRN_STEP_FORWARD] = "relay: FORWARD",
        [CAIRN_STEP_FORWARD_END] = "relay: FORWARD_END",
        [CAIRN_STEP_FORWARD_COMMIT] = "relay: FORWARD_COMMIT",
        [CAIRN_STEP_REDUCE] = "shard: REDUCE",
        [CAIRN_STEP_UPDATE] = "shard: UPDATE",
        [CAIRN_STEP_REDUCED_REPORT] = "shard: REDUCED",
        [CAIRN_STEP_PUBLISHED_REPORT] = "shard: PUBLISHED",
        [CAIRN_STEP_ANSWER] = "shard: ANSWER",
        [CAIRN_STEP_FAULT] = "shard: FAULT",
    };
    return NAME(names, kind);
}

const char *round_action_name(enum round_action_kind kind)
{
    static const char *const names[] = {
        [CAIRN_ROUND_PERSIST] = "coordinator: PERSIST",
        [CAIRN_ROUND_FENCE] = "coordinator: FENCE",
        [CAIRN_ROUND_RESOLVE] = "coordinator: RESOLVE",
        [CAIRN_ROUND_OPEN_SEND] = "coordinator: OPEN",
        [CAIRN_ROUND_DECIDE] = "coordinator: DECIDE",
        [CAIRN_ROUND_ASK_LACKS] = "coordinator: ASK_LACKS",
        [CAIRN_ROUND_SHARD_LATE] = "coordinator: SHARD_LATE",
        [CAIRN_ROUND_PIN_SEND] = "coordinator: PIN",
        [CAIRN_ROUND_WORKER_OPENED] = "coordinator: OPENED",
        [CAIRN_ROUND_WORKER_RESULT] = "coordinator: RESULT",
        [CAIRN_ROUND_WORKER_FENCE] = "coordinator: FENCED",
        [CAIRN_ROUND_WORKER_REFUSED] = "coordinator: REFUSED",
        [CAIRN_ROUND_FAIL] = "coordinator: FAIL",
        [CAIRN_ROUND_BEHIND] = "coordinator: BEHIND",
    };
    return NAME(names, kind);
}

#include "server/coordinator/asked.h"

#include <inttypes.h>
#include <string.h>

#include "proto/wire/frame.h"
#include "server/base/log.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/store/events.h"

enum { WHAT_CHARS = 1200, DEPTH_MAX = 3 };

/* The requests that change something, each with its command line. All other requests only ask. */
static const struct {
    uint16_t type;
    const char *verb;
} actions[] = {
    { CAIRN_MSG_CLUSTER_ADOPT, "cluster adopt" },
    { CAIRN_MSG_CLUSTER_FORGET, "cluster forget" },
    { CAIRN_MSG_CLUSTER_BACKUP, "cluster backup" },
    { CAIRN_MSG_KEY_TRUST, "key trust" },
    { CAIRN_MSG_SHARD_FORGET, "shard forget" },
    { CAIRN_MSG_RESHARD_ASK, "reshard" },
    { CAIRN_MSG_MEMBER_DRAIN, "member drain" },
    { CAIRN_MSG_JOB_AMEND, "job amend" },
    { CAIRN_MSG_JOB_REMOVE, "job drop" },
    { CAIRN_MSG_JOB_PARK, "job park" },
    { CAIRN_MSG_SNAPSHOT_CREATE, "snapshot create" },
    { CAIRN_MSG_SNAPSHOT_CANCEL, "snapshot cancel" },
    { CAIRN_MSG_SNAPSHOT_REMOVE, "snapshot rm" },
    { CAIRN_MSG_SNAPSHOT_PRUNE, "snapshot prune" },
    { CAIRN_MSG_SNAPSHOT_TAG, "snapshot tag" },
    { CAIRN_MSG_SNAPSHOT_RESTORE, "snapshot restore" },
};

static const char *verb_of(const struct cairn_frame *frame, const ProtobufCMessage *message)
{
    const Cairn__ReshardAsk *reshard = (const Cairn__ReshardAsk *)message;
    if (frame->type == CAIRN_MSG_RESHARD_ASK)
        return reshard->op == CAIRN_RESHARD_APPLY    ? "reshard apply"
               : reshard->op == CAIRN_RESHARD_CANCEL ? "reshard cancel"
                                                     : NULL;
    if (frame->type == CAIRN_MSG_JOB_PARK && !((const Cairn__JobPark *)message)->parked)
        return "job unpark";
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        if (actions[i].type == frame->type) return actions[i].verb;
    return NULL;
}

/* ---- what it was given ---- */

/* The member of a message, by the name that control.proto has for it. */
static const void *member_of(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    return (const char *)message + field->offset;
}

static void add_fields(const ProtobufCMessage *message, unsigned depth, struct cairn_sentence *out);

static void add_message(const char *name, const ProtobufCMessage *message, unsigned depth,
                        struct cairn_sentence *out)
{
    const Cairn__Setting *setting = (const Cairn__Setting *)message;
    if (message->descriptor == &cairn__setting__descriptor) {
        cairn_sentence_add(out, " --set %.200s=%.200s", setting->key, setting->value);
        return;
    }
    cairn_sentence_add(out, " %s={", name);
    if (depth < DEPTH_MAX) add_fields(message, depth + 1, out);
    cairn_sentence_add(out, " }");
}

/* " id=step-000000000002-g1", " force": what is given. Numbers that only programs read (fixed64), and bytes,
 * nobody gave by hand. */
static void add_value(const ProtobufCFieldDescriptor *field, const void *value, unsigned depth,
                      struct cairn_sentence *out)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL:
        if (*(const protobuf_c_boolean *)value) cairn_sentence_add(out, " %s", field->name);
        break;
    case PROTOBUF_C_TYPE_STRING:
        if ((*(char *const *)value)[0] != '\0')
            cairn_sentence_add(out, " %s=%.200s", field->name, *(char *const *)value);
        break;
    case PROTOBUF_C_TYPE_UINT32:
        if (*(const uint32_t *)value != 0)
            cairn_sentence_add(out, " %s=%" PRIu32, field->name, *(const uint32_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT64:
        if (*(const uint64_t *)value != 0)
            cairn_sentence_add(out, " %s=%" PRIu64, field->name, *(const uint64_t *)value);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        if (*(const double *)value != 0)
            cairn_sentence_add(out, " %s=%g", field->name, *(const double *)value);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        if (*(ProtobufCMessage *const *)value != NULL)
            add_message(field->name, *(ProtobufCMessage *const *)value, depth, out);
        break;
    default: break;
    }
}

static size_t size_of(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL: return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING: return sizeof(char *);
    case PROTOBUF_C_TYPE_UINT32: return sizeof(uint32_t);
    case PROTOBUF_C_TYPE_UINT64: return sizeof(uint64_t);
    case PROTOBUF_C_TYPE_DOUBLE: return sizeof(double);
    case PROTOBUF_C_TYPE_MESSAGE: return sizeof(ProtobufCMessage *);
    default: return 0; // is not shown
    }
}

static void add_each(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                     unsigned depth, struct cairn_sentence *out)
{
    const size_t count = *(const size_t *)((const char *)message + field->quantifier_offset);
    const char *values = *(const char *const *)member_of(message, field);
    const size_t each = size_of(field);
    size_t i = 0;
    for (; each > 0 && i < count && strlen(out->text) < WHAT_CHARS; i++)
        add_value(field, values + i * each, depth, out);
    if (each > 0 && i < count)
        cairn_sentence_add(out, " ... and %zu more of %s", count - i, field->name);
}

static bool is_text(const ProtobufCFieldDescriptor *field)
{
    return field->type == PROTOBUF_C_TYPE_STRING && field->label != PROTOBUF_C_LABEL_REPEATED;
}

/* Adds the texts first, since they are names and say what is meant; then the fields that say
 * how. */
static void add_fields(const ProtobufCMessage *message, unsigned depth, struct cairn_sentence *out)
{
    const ProtobufCFieldDescriptor *fields = message->descriptor->fields;
    const unsigned count = message->descriptor->n_fields;
    for (unsigned i = 0; i < count; i++)
        if (is_text(&fields[i])) add_value(&fields[i], member_of(message, &fields[i]), depth, out);
    for (unsigned i = 0; i < count; i++) {
        const bool is_said = depth == 1 && strcmp(fields[i].name, "op") == 0; // by the verb
        if (is_said || is_text(&fields[i])) continue;
        if (fields[i].label == PROTOBUF_C_LABEL_REPEATED)
            add_each(message, &fields[i], depth, out);
        else
            add_value(&fields[i], member_of(message, &fields[i]), depth, out);
    }
}

/* The field of that name, if it is of that type; NULL: it has none. */
static const void *named(const ProtobufCMessage *message, const char *name, ProtobufCType type)
{
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
        message->descriptor, name);
    return field != NULL && field->type == type ? member_of(message, field) : NULL;
}

/* The job that it is about, where it is about one: "job", or "name" of messages that begin with Job. */
static const char *job_of(const ProtobufCMessage *message)
{
    const bool is_of_job = strncmp(message->descriptor->short_name, "Job", 3) == 0;
    char *const *job = named(message, "job", PROTOBUF_C_TYPE_STRING);
    if (job == NULL && is_of_job) job = named(message, "name", PROTOBUF_C_TYPE_STRING);
    return job != NULL ? *job : "";
}

void cairn_cluster_asked_note(const struct cairn_cluster_session *session,
                              const struct cairn_frame *frame, const ProtobufCMessage *message)
{
    const char *verb = verb_of(frame, message);
    struct cairn_sentence who, what;
    if (verb == NULL) return;
    const protobuf_c_boolean *plan = named(message, "plan", PROTOBUF_C_TYPE_BOOL);
    if (plan != NULL && *plan) return; // it only asks what would be
    const char *job = job_of(message);
    cairn_sentence_set(&what, "%s", verb);
    add_fields(message, 1, &what);
    cairn_sentence_set(&who, "admin %s at %s", session->name, cairn_peer_name(session->peer));
    cairn_log_fields(CAIRN_LOG_INFO, CAIRN_FIELDS({ "job", job, 0 }, { "who", who.text, 0 }),
                     "asked: %s", what.text);
    cairn_cluster_event_note(session->cluster, CAIRN_EVENT_ASKED, job, who.text, "%s", what.text);
}

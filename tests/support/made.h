/* A control message as one expression: MADE(LeaseKeep, .job = 7, .lease = 1). What is not named is zero;
 * messages inside it need no more than their fields, too. */
#ifndef CAIRN_SUPPORT_MADE_H
#define CAIRN_SUPPORT_MADE_H

#include "proto/wire/wire.h"

/* The number of each message, by its type: MADE_LeaseKeep is CAIRN_MSG_LEASE_KEEP. */
#define X(number, constant, type, field) MADE_##type = (number),
enum made_number { CAIRN_MESSAGE_TABLE(X) };
#undef X

/* Fills in what makes a struct a message, in it and in those that it has. */
static inline void made_describe(ProtobufCMessage *message, const ProtobufCMessageDescriptor *type)
{
    message->descriptor = type;
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        uint8_t *const base = (uint8_t *)message;
        if (field->type != PROTOBUF_C_TYPE_MESSAGE) continue;
        const bool is_list = field->label == PROTOBUF_C_LABEL_REPEATED;
        void *const at = base + field->offset;
        ProtobufCMessage **const list = is_list ? *(ProtobufCMessage ***)at : at;
        const size_t count = is_list ? *(size_t *)(void *)(base + field->quantifier_offset) : 1;
        for (size_t k = 0; k < count; k++)
            if (list[k] != NULL) made_describe(list[k], field->descriptor);
    }
}

static inline const ProtobufCMessage *made_as(uint16_t number, ProtobufCMessage *message)
{
    made_describe(message, message_type(number));
    return message;
}

#define MADE(type, ...) made_as(MADE_##type, &(Cairn__##type) { __VA_ARGS__ }.base)

#endif

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/status.h"
#include "tests/support/golden.h"
#include "tests/unit/pairs/pairs.h"

/* Without what is another one with each run. */
void pairs_mend(char text[PAIRS_TEXT_BYTES])
{
    golden_replace(text, fake.folder, "FOLDER");
    golden_replace_hex(text);
    for (char *at = text; *at != '\0'; at++)
        if (*at == '\n') *at = ' ';
}

/* ---- a message ---- */

static bool is_telling(const char *field)
{
    static const char *const numbers[] = { "generation", "step",   "revision", "shards",
                                           "world",      "status", "files" };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(field, numbers[i]) == 0) return true;
    return false;
}

static void tell_fields(FILE *out, const ProtobufCMessage *message);

static void tell_value(FILE *out, const ProtobufCFieldDescriptor *f, const void *at)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(char *const *)at;
        const bool is_key = strcmp(f->name, "line") == 0;
        if (text != NULL && text[0] != '\0')
            fprintf(out, " %s=\"%s\"", f->name, is_key ? "KEY" : text);
        break;
    }
    case PROTOBUF_C_TYPE_BOOL:
        if (*(const protobuf_c_boolean *)at) fprintf(out, " %s", f->name);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        if (*(ProtobufCMessage *const *)at == NULL) break;
        fprintf(out, " %s {", f->name);
        tell_fields(out, *(ProtobufCMessage *const *)at);
        fprintf(out, " }");
        break;
    case PROTOBUF_C_TYPE_UINT32:
        if (is_telling(f->name)) fprintf(out, " %s=%" PRIu32, f->name, *(const uint32_t *)at);
        break;
    case PROTOBUF_C_TYPE_UINT64:
        if (is_telling(f->name)) fprintf(out, " %s=%" PRIu64, f->name, *(const uint64_t *)at);
        break;
    default: break;
    }
}

static void tell_fields(FILE *out, const ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &message->descriptor->fields[i];
        const char *at = (const char *)message + f->offset;
        if (f->label != PROTOBUF_C_LABEL_REPEATED) {
            tell_value(out, f, at);
            continue;
        }
        const size_t count = *(const size_t *)((const char *)message + f->quantifier_offset);
        const bool is_list = f->type == PROTOBUF_C_TYPE_MESSAGE ||
                             f->type == PROTOBUF_C_TYPE_STRING;
        for (size_t k = 0; is_list && k < count; k++) tell_value(out, f, *(void ***)at + k);
    }
}

void pairs_tell(uint16_t type, const ProtobufCMessage *message, char out[PAIRS_TEXT_BYTES])
{
    FILE *file = fmemopen(out, PAIRS_TEXT_BYTES, "w");
    if (type == CAIRN_MSG_ERROR) {
        const Cairn__Error *error = (const Cairn__Error *)message;
        fprintf(file, "%s: %s", status_code_name(error->status), error->text);
    } else if (type == CAIRN_MSG_ROUND_RESULT) {
        const Cairn__RoundResult *result = (const Cairn__RoundResult *)message;
        fprintf(file, "RoundResult %s%s%s%s", status_code_name(result->status),
                result->applied ? " applied" : "", result->text[0] != '\0' ? ": " : "",
                result->text);
    } else {
        fprintf(file, "%s", message_name(type));
        tell_fields(file, message);
    }
    fclose(file);
    pairs_mend(out);
}

/* Control messages: two bytes for the number, then the message as it comes in a frame. If the second byte is
 * PAGED or more, something follows that comes in pages: a spec, a layout, or a list of tiles. */
#include <errno.h>
#include <string.h>

#include "proto/plan/plan.h"
#include "proto/wire/wire.h"
#include "tests/fuzz/target.h"

enum { PAGED = 0x80 };
enum paged_kind { PAGED_SPEC, PAGED_LAYOUT, PAGED_TILES, PAGED_KINDS };

static const char *const optimizers[] = { "adamw", "adam", "sgd", NULL };

/* ==== messages ==== */

static void convert_tensor(const Cairn__TensorSpec *in)
{
    struct tensor_spec tensor;
    struct cairn_box box;
    struct sentence why = { 0 };
    Cairn__TensorSpec again;
    if (tensor_of_message(in, &tensor, &box, &why) != CAIRN_OK) {
        MUST(why.text[0] != '\0');
        return;
    }
    MUST(tensor.shape.rank <= CAIRN_RANK_MAX);
    tensor_to_message(&tensor, &again);
}

static void convert_group(const Cairn__GroupSpec *in)
{
    struct group_spec group;
    Cairn__GroupSpec again;
    if (group_of_message(in, &group) == CAIRN_OK) group_to_message(&group, &again);
}

static void convert_spec(const Cairn__JobSpec *in)
{
    struct job_spec_data spec;
    spec_init(&spec);
    spec_fields_of_message(in, &spec);
    for (size_t i = 0; i < in->n_tensors; i++) convert_tensor(in->tensors[i]);
    for (size_t i = 0; i < in->n_groups; i++) convert_group(in->groups[i]);
}

/* Messages of these types are in others, at any depth: all of them are converted. */
static void convert(const ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *type = message->descriptor;
    struct spec_difference difference;
    if (type == &cairn__job_spec__descriptor) convert_spec((const Cairn__JobSpec *)message);
    if (type == &cairn__tensor_spec__descriptor) convert_tensor((const Cairn__TensorSpec *)message);
    if (type == &cairn__group_spec__descriptor) convert_group((const Cairn__GroupSpec *)message);
    if (type == &cairn__difference__descriptor)
        difference_of_message((const Cairn__Difference *)message, &difference);
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        const char *at = (const char *)message + field->offset;
        if (field->type != PROTOBUF_C_TYPE_MESSAGE) continue;
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            const ProtobufCMessage *below = *(ProtobufCMessage *const *)at;
            if (below != NULL) convert(below);
            continue;
        }
        const size_t count = *(const size_t *)((const char *)message + field->quantifier_offset);
        ProtobufCMessage *const *list = *(ProtobufCMessage *const *const *)at;
        for (size_t k = 0; k < count; k++) convert(list[k]);
    }
}

static void take_message(uint16_t number, const uint8_t *bytes, size_t count)
{
    const ProtobufCMessageDescriptor *type = message_type(number);
    if (type == NULL) return;
    MUST(strcmp(message_name(number), "?") != 0);
    ProtobufCMessage *message = message_unpack(type, bytes, count);
    if (message == NULL) return;
    uint64_t *job = message_job(message);
    if (job != NULL) ++*job;
    message_mend(message);
    convert(message);
    if (number == CAIRN_MSG_HELLO) {
        const Cairn__Hello *hello = (const Cairn__Hello *)message;
        MUST(hello_fit(hello, hello->held, hello->n_held) <= hello->n_held);
    }
    message_free(message);
}

/* ==== pages ==== */

/* What was read is packed as a spec that is read as the same. */
static void take_spec(const uint8_t *bytes, size_t count)
{
    struct job_spec_data spec, again;
    struct sentence why = { 0 };
    uint8_t *packed;
    size_t packed_bytes;
    if (spec_unpack(bytes, count, optimizers, &spec, &why) != CAIRN_OK) {
        MUST(why.text[0] != '\0');
        return;
    }
    MUST(spec_pack(&spec, &packed, &packed_bytes) == CAIRN_OK);
    MUST(spec_unpack(packed, packed_bytes, optimizers, &again, &why) == CAIRN_OK);
    MUST(again.tensor_count == spec.tensor_count && again.group_count == spec.group_count);
    spec_release(&again);
    spec_release(&spec);
    free(packed);
}

static const struct job_spec_data *some_spec(void)
{
    static struct job_spec_data spec;
    static const struct shape shapes[] = { { 2, { 300, 200 } }, { 1, { 77 } }, { 0, { 0 } } };
    static const char *const names[] = { "a", "b", "c" };
    if (spec.tensor_count > 0) return &spec;
    spec_init(&spec);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct tensor_spec tensor = { .name = wire_text(names[i]), .shape = shapes[i] };
        MUST(spec_add_tensor(&spec, &tensor) == CAIRN_OK);
    }
    return &spec;
}

static void take_layout(const uint8_t *bytes, size_t count)
{
    struct layout *layout;
    if (plan_job_decode(some_spec(), bytes, count, &layout) != CAIRN_OK) return;
    uint8_t *again = malloc(count);
    MUST(again != NULL && layout_encoded_bytes(layout) == count);
    layout_encode(layout, again);
    MUST(memcmp(bytes, again, count) == 0);
    free(again);
    layout_close(layout);
}

static void take_tiles(const uint8_t *bytes, size_t count)
{
    struct tiles tiles, again;
    struct sentence why = { 0 };
    uint8_t *packed;
    size_t packed_bytes;
    if (tiles_unpack(bytes, count, some_spec(), &tiles, &why) != CAIRN_OK) {
        MUST(why.text[0] != '\0');
        return;
    }
    MUST(tiles_pack(&tiles, &packed, &packed_bytes) == CAIRN_OK);
    MUST(tiles_unpack(packed, packed_bytes, some_spec(), &again, &why) == CAIRN_OK);
    MUST(tiles_equal(&tiles, &again) && tiles_digest(&tiles) == tiles_digest(&again));
    tiles_release(&tiles);
    tiles_release(&again);
    free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    const uint8_t *bytes = data + 2;
    const size_t count = size - 2;
    if (data[1] < PAGED) {
        take_message((uint16_t)(le_get(data, 2) % (CAIRN_MSG_MAX + 1)), bytes, count);
        return 0;
    }
    switch (data[0] % PAGED_KINDS) {
    case PAGED_SPEC: take_spec(bytes, count); break;
    case PAGED_LAYOUT: take_layout(bytes, count); break;
    default: take_tiles(bytes, count); break;
    }
    return 0;
}

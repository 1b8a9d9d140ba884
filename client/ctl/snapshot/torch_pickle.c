#include "client/ctl/snapshot/torch_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- text ---- */

void cairn_ctl_put(struct ctl_torch_file *t, const void *from, size_t bytes)
{
    if (t->text_capacity - t->text_bytes < bytes && !t->failed) {
        const size_t wanted = (t->text_capacity + bytes) * 2 + 4096;
        uint8_t *grown = realloc(t->text, wanted);
        t->failed = grown == NULL;
        if (grown != NULL) {
            t->text = grown;
            t->text_capacity = wanted;
        }
    }
    if (t->failed) return;
    if (from != NULL) memcpy(t->text + t->text_bytes, from, bytes);
    if (from == NULL) memset(t->text + t->text_bytes, 0, bytes);
    t->text_bytes += bytes;
}

void cairn_ctl_put_number(struct ctl_torch_file *t, uint64_t value, size_t bytes)
{
    uint8_t text[8];
    for (size_t i = 0; i < 8; i++) text[i] = (uint8_t)(value >> 8 * i);
    cairn_ctl_put(t, text, bytes);
}

void cairn_ctl_put_text(struct ctl_torch_file *t, const char *text)
{
    cairn_ctl_put(t, text, strlen(text));
}

/* ---- the pickle: the few opcodes that it takes ---- */

void cairn_ctl_say(struct ctl_torch_file *t, const char *text)
{
    cairn_ctl_put_text(t, "X"); // BINUNICODE
    cairn_ctl_put_number(t, strlen(text), 4);
    cairn_ctl_put_text(t, text);
}

void cairn_ctl_say_number(struct ctl_torch_file *t, uint64_t value)
{
    const bool is_small = value <= INT32_MAX;
    cairn_ctl_put(t, is_small ? "J" : "\x8a\x09",
                  is_small ? 1 : 2); // BININT, or LONG1 of nine bytes
    cairn_ctl_put_number(t, value, is_small ? 4 : 8);
    if (!is_small) cairn_ctl_put_number(t, 0, 1);
}

void cairn_ctl_say_real(struct ctl_torch_file *t, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    cairn_ctl_put_text(t, "G"); // BINFLOAT, the highest byte first
    for (size_t i = 8; i-- > 0;) cairn_ctl_put_number(t, bits >> 8 * i, 1);
}

void cairn_ctl_say_flag(struct ctl_torch_file *t, bool value)
{
    cairn_ctl_put_text(t, value ? "\x88" : "\x89");
}

/* A tensor of a storage: all of it, or a box. */
void cairn_ctl_say_tensor(struct ctl_torch_file *t, size_t store, size_t first_of_archive,
                          const struct cairn_shape *shape, const struct cairn_box *box)
{
    const struct ctl_torch_store *s = &t->stores[store];
    char key[24];
    uint64_t strides[CAIRN_RANK_MAX], first = 0, stride = 1;
    for (uint32_t d = shape->rank; d-- > 0; stride *= shape->dim[d]) {
        strides[d] = stride;
        if (box != NULL) first += box->start[d] * stride;
    }
    snprintf(key, sizeof key, "%zu", store - first_of_archive);
    cairn_ctl_put_text(t, "ctorch._utils\n_rebuild_tensor_v2\n((");
    cairn_ctl_say(t, "storage");
    cairn_ctl_put_text(t, "ctorch\n");
    cairn_ctl_put_text(t, s->type->storage);
    cairn_ctl_put_text(t, "\n");
    cairn_ctl_say(t, key);
    cairn_ctl_say(t, "cpu");
    cairn_ctl_say_number(t, s->bytes / s->type->bytes);
    cairn_ctl_put_text(t, "tQ"); // a reference to what lies beside the pickle
    cairn_ctl_say_number(t, first);
    cairn_ctl_put_text(t, "(");
    for (uint32_t d = 0; d < shape->rank; d++)
        cairn_ctl_say_number(t, box != NULL ? box->extent[d] : shape->dim[d]);
    cairn_ctl_put_text(t, "t(");
    for (uint32_t d = 0; d < shape->rank; d++) cairn_ctl_say_number(t, strides[d]);
    cairn_ctl_put_text(t, "t");
    cairn_ctl_say_flag(t, false);
    cairn_ctl_put_text(t, "ccollections\nOrderedDict\n)RtR");
}

size_t cairn_ctl_torch_add_store(struct ctl_torch_file *t, struct ctl_torch_store store)
{
    if (t->store_count == t->store_capacity && !t->failed) {
        const size_t wanted = t->store_capacity * 2 + 64;
        struct ctl_torch_store *grown = realloc(t->stores, wanted * sizeof *grown);
        t->failed = grown == NULL;
        if (grown != NULL) {
            t->stores = grown;
            t->store_capacity = wanted;
        }
    }
    if (t->failed) return 0;
    t->stores[t->store_count] = store;
    return t->store_count++;
}

/* Takes what was put since, the caller's then: of an archive to come. */
uint8_t *cairn_ctl_torch_take_text(struct ctl_torch_file *t, size_t from, size_t *bytes_out)
{
    *bytes_out = t->text_bytes - from;
    uint8_t *taken = t->failed ? NULL : malloc(*bytes_out + 1);
    t->failed |= taken == NULL;
    if (taken != NULL) memcpy(taken, t->text + from, *bytes_out);
    t->text_bytes = from;
    return taken;
}

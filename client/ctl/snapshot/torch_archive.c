/* A zip as torch has it: stored, not compressed. Sums of what is written are filled in behind it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "client/ctl/snapshot/torch_parts.h"

#define PLANE_TEXT CAIRN_PLANE_COUNT
#define ALIGN      64 // where a tensor begins, as torch has it

bool cairn_ctl_torch_is_text(const struct cairn_safetensors_entry *entry)
{
    return entry->plane == PLANE_TEXT;
}

void cairn_ctl_torch_text(const struct ctl_torch_file *t, uint64_t first, uint64_t count, void *to)
{
    memcpy(to, t->text + first, count);
}

struct packing {
    struct ctl_torch_file *t;
    struct cairn_snapshot_file *file;
    const char *folder; /* of all its members */
    uint64_t base;      /* where it begins in the file */
    size_t text_from;   /* of text that no entry has yet */
};

static void add_entry(struct packing *k, struct cairn_safetensors_entry entry, uint64_t bytes)
{
    struct cairn_snapshot_file *f = k->file;
    if (f->entry_count == f->entry_capacity) {
        const size_t wanted = f->entry_capacity * 2 + 64;
        struct cairn_safetensors_entry *grown = realloc(f->entries, wanted * sizeof *grown);
        k->t->failed |= grown == NULL;
        if (grown == NULL) return;
        f->entries = grown;
        f->entry_capacity = wanted;
    }
    entry.begin = f->file_bytes;
    entry.end = f->file_bytes += bytes;
    f->entries[f->entry_count++] = entry;
}

/* Makes the text that was put since the last flush a piece of the file. */
static void flush(struct packing *k)
{
    const size_t bytes = k->t->text_bytes - k->text_from;
    if (bytes > 0)
        add_entry(k,
                  (struct cairn_safetensors_entry) {
                      .dtype = CAIRN_U8, .plane = PLANE_TEXT, .first_elem = k->text_from },
                  bytes);
    k->text_from = k->t->text_bytes;
}

/* In the archive. */
static uint64_t position(const struct packing *k)
{
    return k->file->file_bytes - k->base + (k->t->text_bytes - k->text_from);
}

/* Puts the fields that all headers of a member have alike, from the version to the CRC. */
static void put_head(struct ctl_torch_file *t)
{
    cairn_ctl_put_number(t, 45, 2);                 // zip64
    cairn_ctl_put_number(t, 1u << 3 | 1u << 11, 2); // the sum stands behind; names are UTF-8
    cairn_ctl_put_number(t, 0, 2);                  // stored
    cairn_ctl_put_number(t, 0, 2);                  // time
    cairn_ctl_put_number(t, 0x21, 2); // of 1980-01-01: the same snapshot, the same bytes
}

static void put_local(struct packing *k, struct ctl_torch_member *m)
{
    struct ctl_torch_file *t = k->t;
    const size_t name = strlen(m->name);
    m->header_at = position(k);
    const uint64_t bare = k->base + m->header_at + 30 + name + 20 + 4;
    const size_t pad = (size_t)(-bare & (ALIGN - 1));
    cairn_ctl_put_text(t, "PK\3\4");
    put_head(t);
    cairn_ctl_put_number(t, 0, 4);
    cairn_ctl_put_number(t, UINT32_MAX, 4);
    cairn_ctl_put_number(t, UINT32_MAX, 4);
    cairn_ctl_put_number(t, name, 2);
    cairn_ctl_put_number(t, 20 + 4 + pad, 2);
    cairn_ctl_put_text(t, m->name);
    cairn_ctl_put_number(t, 1, 2); // sizes of zip64
    cairn_ctl_put_number(t, 16, 2);
    cairn_ctl_put_number(t, m->bytes, 8);
    cairn_ctl_put_number(t, m->bytes, 8);
    cairn_ctl_put_text(t, "FB"); // torch's, for what is aligned
    cairn_ctl_put_number(t, pad, 2);
    cairn_ctl_put(t, NULL, pad);
}

static void put_descriptor(struct packing *k, struct ctl_torch_member *m)
{
    cairn_ctl_put_text(k->t, "PK\7\b");
    m->sum_at[0] = k->t->text_bytes;
    cairn_ctl_put_number(k->t, 0, 4);
    cairn_ctl_put_number(k->t, m->bytes, 8);
    cairn_ctl_put_number(k->t, m->bytes, 8);
}

static void put_central(struct packing *k, struct ctl_torch_member *m)
{
    struct ctl_torch_file *t = k->t;
    cairn_ctl_put_text(t, "PK\1\2");
    cairn_ctl_put_number(t, 45, 2);
    put_head(t);
    m->sum_at[1] = t->text_bytes;
    cairn_ctl_put_number(t, 0, 4);
    cairn_ctl_put_number(t, UINT32_MAX, 4);
    cairn_ctl_put_number(t, UINT32_MAX, 4);
    cairn_ctl_put_number(t, strlen(m->name), 2);
    cairn_ctl_put_number(t, 28, 2);
    cairn_ctl_put(t, NULL, 2 + 2 + 2 + 4);
    cairn_ctl_put_number(t, UINT32_MAX, 4);
    cairn_ctl_put_text(t, m->name);
    cairn_ctl_put_number(t, 1, 2);
    cairn_ctl_put_number(t, 24, 2);
    cairn_ctl_put_number(t, m->bytes, 8);
    cairn_ctl_put_number(t, m->bytes, 8);
    cairn_ctl_put_number(t, m->header_at, 8);
}

static void put_end(struct packing *k, uint64_t central_at, size_t members)
{
    struct ctl_torch_file *t = k->t;
    const uint64_t end_at = position(k);
    cairn_ctl_put_text(t, "PK\6\6");
    cairn_ctl_put_number(t, 44, 8);
    cairn_ctl_put_number(t, 45, 2);
    cairn_ctl_put_number(t, 45, 2);
    cairn_ctl_put(t, NULL, 8);
    cairn_ctl_put_number(t, members, 8);
    cairn_ctl_put_number(t, members, 8);
    cairn_ctl_put_number(t, end_at - central_at, 8);
    cairn_ctl_put_number(t, central_at, 8);
    cairn_ctl_put_text(t, "PK\6\7");
    cairn_ctl_put_number(t, 0, 4);
    cairn_ctl_put_number(t, end_at, 8);
    cairn_ctl_put_number(t, 1, 4);
    cairn_ctl_put_text(t, "PK\5\6");
    cairn_ctl_put(t, NULL, 4);
    cairn_ctl_put_number(t, UINT64_MAX, 4); // both counts, the size and the place: those of zip64
    cairn_ctl_put_number(t, UINT64_MAX, 8);
    cairn_ctl_put_number(t, 0, 2);
}

static void set_sum(struct ctl_torch_file *t, const struct ctl_torch_member *m)
{
    for (size_t i = 0; i < 2; i++)
        for (size_t byte = 0; byte < 4; byte++)
            t->text[m->sum_at[i] + byte] = (uint8_t)(m->sum >> 8 * byte);
}

/* A member whose bytes are text: put between its headers. */
static void pack_text(struct packing *k, struct ctl_torch_member *m, const char *name,
                      const void *from, size_t bytes)
{
    snprintf(m->name, sizeof m->name, "%s/%s", k->folder, name);
    m->bytes = bytes;
    m->sum = (uint32_t)crc32_z(0, from, bytes);
    put_local(k, m);
    cairn_ctl_put(k->t, from, bytes);
    put_descriptor(k, m);
}

static void pack_store(struct packing *k, struct ctl_torch_member *m, size_t store, size_t number)
{
    const struct ctl_torch_store *s = &k->t->stores[store];
    snprintf(m->name, sizeof m->name, "%s/data/%zu", k->folder, number);
    m->bytes = s->bytes;
    put_local(k, m);
    flush(k);
    add_entry(k,
              (struct cairn_safetensors_entry) {
                  .dtype = s->dtype,
                  .tensor = s->tensor,
                  .plane = s->plane,
                  .box = { .rank = 1, .start = { (uint64_t)(m - k->t->members) } } },
              m->bytes);
    put_descriptor(k, m);
}

/* So many more, zeros; NULL: there was no memory. */
static struct ctl_torch_member *add_members(struct ctl_torch_file *t, size_t count)
{
    if (t->member_capacity - t->member_count < count && !t->failed) {
        const size_t wanted = (t->member_capacity + count) * 2;
        struct ctl_torch_member *grown = realloc(t->members, wanted * sizeof *grown);
        t->failed = grown == NULL;
        if (grown != NULL) {
            t->members = grown;
            t->member_capacity = wanted;
        }
    }
    if (t->failed) return NULL;
    struct ctl_torch_member *first = &t->members[t->member_count];
    memset(first, 0, count * sizeof *first);
    t->member_count += count;
    return first;
}

void cairn_ctl_torch_pack(struct ctl_torch_file *t, struct cairn_snapshot_file *file,
                          const char *folder, uint8_t *pickle, size_t pickle_bytes,
                          size_t first_store, size_t store_count)
{
    struct packing k = { t, file, folder, file->file_bytes, t->text_bytes };
    const size_t count = store_count + 3;
    struct ctl_torch_member *m = pickle != NULL ? add_members(t, count) : NULL;
    if (m != NULL) {
        pack_text(&k, &m[0], "data.pkl", pickle, pickle_bytes);
        pack_text(&k, &m[1], "byteorder", "little", 6);
        for (size_t i = 0; i < store_count && !t->failed; i++)
            pack_store(&k, &m[2 + i], first_store + i, i);
        pack_text(&k, &m[count - 1], "version", "3\n", 2);
        const uint64_t central_at = position(&k);
        for (size_t i = 0; i < count; i++) put_central(&k, &m[i]);
        put_end(&k, central_at, count);
        flush(&k);
        for (size_t i = 0; i < count && !t->failed; i++) set_sum(t, &m[i]);
    }
    free(pickle);
}

void cairn_ctl_torch_pass(struct ctl_torch_file *t, const struct cairn_safetensors_entry *entry,
                          const void *from, uint64_t bytes)
{
    struct ctl_torch_member *m = &t->members[entry->box.start[0]];
    m->sum = (uint32_t)crc32_z(m->sum, from, bytes);
    set_sum(t, m);
}

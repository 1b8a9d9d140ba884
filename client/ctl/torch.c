#include "client/ctl/snapshot.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "proto/spec/spec.h"

/* ==== torch parts ==== */

/* The building blocks of torch's files: text, the opcodes of a pickle, archives. */

/* A file of an archive. */
struct ctl_torch_member {
    char name[40];
    /* header_at: the place of the file's header in the archive. bytes: the size of the file */
    uint64_t header_at, bytes;
    size_t sum_at[2]; /* the places of the file's CRC-32 in the text */
    uint32_t sum;
};
/* A storage: one plane of a tensor. */
struct ctl_torch_store {
    uint32_t tensor, plane;
    cairn_dtype dtype;                  /* the stored dtype */
    const struct ctl_number_type *type; /* the type written for torch */
    uint64_t bytes;
};

struct ctl_torch_file {
    uint8_t *text;                    /* owned */
    struct ctl_torch_member *members; /* owned, of all archives */
    struct ctl_torch_store *stores;   /* owned */
    size_t text_bytes, text_capacity, member_count, member_capacity, store_count, store_capacity;
    bool failed; /* memory ran out */
};

/* ---- torch.c: parameters and groups in the order of torch's optimizer ---- */

struct ctl_torch_order {
    const struct manifest *manifest;
    const struct job_spec_data *spec;
    /* owned: tensors in their creator's order, then the tensors without a position, by name */
    size_t *tensors;
    size_t *groups; /* owned: the groups in torch's order */
};

enum ctl_torch_option_kind { CTL_OPTION_REAL, CTL_OPTION_PAIR, CTL_OPTION_FLAG, CTL_OPTION_NONE };
struct ctl_torch_option {
    const char *name;
    enum ctl_torch_option_kind kind;
    double value, second;
};
#define CTL_TORCH_OPTIONS_MAX 16

/* ==== torch pickle ==== */

/* ---- text ---- */

/* Writes the bytes at `from`, or zeros if `from` is NULL. */
static void ctl_put(struct ctl_torch_file *t, const void *from, size_t bytes)
{
    t->failed = t->failed || !ctl_grow(&t->text, &t->text_capacity, t->text_bytes + bytes, 1);
    if (t->failed) return;
    if (from != NULL) memcpy(t->text + t->text_bytes, from, bytes);
    if (from == NULL) memset(t->text + t->text_bytes, 0, bytes);
    t->text_bytes += bytes;
}

static void put_number(struct ctl_torch_file *t, uint64_t value, size_t bytes)
{
    uint8_t text[8];
    for (size_t i = 0; i < 8; i++) text[i] = (uint8_t)(value >> 8 * i);
    ctl_put(t, text, bytes);
}

struct number {
    uint64_t value;
    size_t bytes;
};
#define PUT(t, ...)                                         \
    put_numbers(t, (const struct number[]) { __VA_ARGS__ }, \
                sizeof((const struct number[]) { __VA_ARGS__ }) / sizeof(struct number))

static void put_numbers(struct ctl_torch_file *t, const struct number *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) put_number(t, numbers[i].value, numbers[i].bytes);
}

static void put_text(struct ctl_torch_file *t, const char *text)
{
    ctl_put(t, text, strlen(text));
}

/* ---- the pickle: the few opcodes that it needs ---- */

static void ctl_say(struct ctl_torch_file *t, const char *text)
{
    put_text(t, "X"); // BINUNICODE
    put_number(t, strlen(text), 4);
    put_text(t, text);
}

static void say_number(struct ctl_torch_file *t, uint64_t value)
{
    const bool is_small = value <= INT32_MAX;
    ctl_put(t, is_small ? "J" : "\x8a\x09",
            is_small ? 1 : 2); // BININT, or LONG1 of nine bytes
    put_number(t, value, is_small ? 4 : 8);
    if (!is_small) put_number(t, 0, 1);
}

static void say_real(struct ctl_torch_file *t, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_text(t, "G"); // BINFLOAT, the highest byte first
    for (size_t i = 8; i-- > 0;) put_number(t, bits >> 8 * i, 1);
}

static void say_flag(struct ctl_torch_file *t, bool value)
{
    put_text(t, value ? "\x88" : "\x89");
}

/* Writes opcodes; the parts between apostrophes are texts. %s: a text; %t: opcodes, as a text; %u: a number,
 * uint64_t; %g: a global, which was stored under this number, int. */
static void say(struct ctl_torch_file *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    for (const char *at = format; *at != '\0'; at++) {
        char text[64];
        if (*at == '\'') {
            const size_t length = strcspn(at + 1, "'");
            snprintf(text, sizeof text, "%.*s", (int)length, at + 1);
            ctl_say(t, text);
            at += length + 1;
        } else if (*at != '%') {
            ctl_put(t, at, 1);
        } else if (*++at == 's') {
            ctl_say(t, va_arg(arguments, const char *));
        } else if (*at == 't') {
            put_text(t, va_arg(arguments, const char *));
        } else if (*at == 'u') {
            say_number(t, va_arg(arguments, uint64_t));
        } else {
            ctl_put(t, (uint8_t[]) { 'h', (uint8_t)va_arg(arguments, int) }, 2);
        }
    }
    va_end(arguments);
}

/* Writes a tensor that uses all of a storage, or a box of the storage. `first_of_archive` is the store that
 * is data/0. */
static void say_tensor(struct ctl_torch_file *t, size_t store, size_t first_of_archive,
                       const struct shape *shape, const struct cairn_box *box)
{
    const struct ctl_torch_store *s = &t->stores[store];
    char key[24];
    uint64_t strides[CAIRN_RANK_MAX], first = 0, stride = 1;
    for (uint32_t d = shape->rank; d-- > 0; stride *= shape->dim[d]) {
        strides[d] = stride;
        if (box != NULL) first += box->start[d] * stride;
    }
    snprintf(key, sizeof key, "%zu", store - first_of_archive);
    // Q: a reference to data beside the pickle
    say(t, "ctorch._utils\n_rebuild_tensor_v2\n(('storage'ctorch\n%t\n%s'cpu'%utQ%u(",
        s->type->storage, key, s->bytes / s->type->bytes, first);
    for (uint32_t d = 0; d < shape->rank; d++)
        say_number(t, box != NULL ? box->extent[d] : shape->dim[d]);
    put_text(t, "t(");
    for (uint32_t d = 0; d < shape->rank; d++) say_number(t, strides[d]);
    say(t, "t\x89"
           "ccollections\nOrderedDict\n)RtR");
}

static size_t torch_add_store(struct ctl_torch_file *t, struct ctl_torch_store store)
{
    t->failed = t->failed ||
                !ctl_grow(&t->stores, &t->store_capacity, t->store_count + 1, sizeof store);
    if (t->failed) return 0;
    t->stores[t->store_count] = store;
    return t->store_count++;
}

/* Removes from the file the text that was written since `from`, for use in a later archive. The
 * caller owns this text. NULL: no memory. */
static uint8_t *torch_take_text(struct ctl_torch_file *t, size_t from, size_t *bytes_out)
{
    *bytes_out = t->text_bytes - from;
    uint8_t *taken = t->failed ? NULL : malloc(*bytes_out + 1);
    t->failed |= taken == NULL;
    if (taken != NULL) memcpy(taken, t->text + from, *bytes_out);
    t->text_bytes = from;
    return taken;
}

/* ==== torch archive ==== */

/* A zip in torch's form: stored, not compressed. The checksum of written data follows the data, so it is
 * filled in later. */

#define PLANE_TEXT CAIRN_PLANE_COUNT
#define ALIGN      64 // where torch aligns a tensor

bool ctl_torch_is_text(const struct safetensors_entry *entry)
{
    return entry->plane == PLANE_TEXT;
}

void ctl_torch_text(const struct ctl_torch_file *t, uint64_t first, uint64_t count, void *to)
{
    memcpy(to, t->text + first, count);
}

struct packing {
    struct ctl_torch_file *t;
    struct snapshot_file *file;
    const char *folder; /* the folder of all members */
    uint64_t base;      /* where the archive begins in the file */
    size_t text_from;   /* the start of the text that has no entry yet */
};

static void add_entry(struct packing *k, struct safetensors_entry entry, uint64_t bytes)
{
    struct snapshot_file *f = k->file;
    if (!ctl_grow(&f->entries, &f->entry_capacity, f->entry_count + 1, sizeof entry)) {
        k->t->failed = true;
        return;
    }
    entry.begin = f->file_bytes;
    entry.end = f->file_bytes += bytes;
    f->entries[f->entry_count++] = entry;
}

/* Adds to the file, as an entry, the text that was written since the last flush. */
static void flush(struct packing *k)
{
    const size_t bytes = k->t->text_bytes - k->text_from;
    if (bytes > 0)
        add_entry(k,
                  (struct safetensors_entry) {
                      .dtype = CAIRN_U8, .plane = PLANE_TEXT, .first_elem = k->text_from },
                  bytes);
    k->text_from = k->t->text_bytes;
}

/* Returns the position in the archive. */
static uint64_t position(const struct packing *k)
{
    return k->file->file_bytes - k->base + (k->t->text_bytes - k->text_from);
}

/* Writes the fields that all headers of a member share, from the version to the CRC. */
static void put_head(struct ctl_torch_file *t)
{
    put_number(t, 45, 2);                 // zip64
    put_number(t, 1u << 3 | 1u << 11, 2); // the CRC follows the data; names are UTF-8
    put_number(t, 0, 2);                  // stored
    put_number(t, 0, 2);                  // time
    put_number(t, 0x21, 2);               // 1980-01-01: the same snapshot gives the same bytes
}

static void put_local(struct packing *k, struct ctl_torch_member *m)
{
    struct ctl_torch_file *t = k->t;
    const size_t name = strlen(m->name);
    m->header_at = position(k);
    const uint64_t bare = k->base + m->header_at + 30 + name + 20 + 4;
    const size_t pad = (size_t)(-bare & (ALIGN - 1));
    put_text(t, "PK\3\4");
    put_head(t);
    PUT(t, { 0, 4 }, { UINT32_MAX, 4 }, { UINT32_MAX, 4 }, { name, 2 }, { 20 + 4 + pad, 2 });
    put_text(t, m->name);
    // sizes of zip64
    PUT(t, { 1, 2 }, { 16, 2 }, { m->bytes, 8 }, { m->bytes, 8 });
    put_text(t, "FB"); // torch's field for alignment
    put_number(t, pad, 2);
    ctl_put(t, NULL, pad);
}

static void put_descriptor(struct packing *k, struct ctl_torch_member *m)
{
    struct ctl_torch_file *t = k->t;
    put_text(t, "PK\7\b");
    m->sum_at[0] = t->text_bytes;
    PUT(t, { 0, 4 }, { m->bytes, 8 }, { m->bytes, 8 });
}

static void put_central(struct packing *k, struct ctl_torch_member *m)
{
    struct ctl_torch_file *t = k->t;
    put_text(t, "PK\1\2");
    put_number(t, 45, 2);
    put_head(t);
    m->sum_at[1] = t->text_bytes;
    PUT(t, { 0, 4 }, { UINT32_MAX, 4 }, { UINT32_MAX, 4 }, { strlen(m->name), 2 }, { 28, 2 });
    ctl_put(t, NULL, 2 + 2 + 2 + 4);
    put_number(t, UINT32_MAX, 4);
    put_text(t, m->name);
    PUT(t, { 1, 2 }, { 24, 2 }, { m->bytes, 8 }, { m->bytes, 8 }, { m->header_at, 8 });
}

static void put_end(struct packing *k, uint64_t central_at, size_t members)
{
    struct ctl_torch_file *t = k->t;
    const uint64_t end_at = position(k);
    put_text(t, "PK\6\6");
    PUT(t, { 44, 8 }, { 45, 2 }, { 45, 2 });
    ctl_put(t, NULL, 8);
    PUT(t, { members, 8 }, { members, 8 }, { end_at - central_at, 8 }, { central_at, 8 });
    put_text(t, "PK\6\7");
    PUT(t, { 0, 4 }, { end_at, 8 }, { 1, 4 });
    put_text(t, "PK\5\6");
    ctl_put(t, NULL, 4);
    // both counts, the size and the offset are those of zip64
    PUT(t, { UINT64_MAX, 4 }, { UINT64_MAX, 8 }, { 0, 2 });
}

static void set_sum(struct ctl_torch_file *t, const struct ctl_torch_member *m)
{
    for (size_t i = 0; i < 2; i++)
        for (size_t byte = 0; byte < 4; byte++)
            t->text[m->sum_at[i] + byte] = (uint8_t)(m->sum >> 8 * byte);
}

/* Writes a member whose bytes are text, between the member's headers. */
static void pack_text(struct packing *k, struct ctl_torch_member *m, const char *name,
                      const void *from, size_t bytes)
{
    snprintf(m->name, sizeof m->name, "%s/%s", k->folder, name);
    m->bytes = bytes;
    m->sum = (uint32_t)crc32_z(0, from, bytes);
    put_local(k, m);
    ctl_put(k->t, from, bytes);
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
              (struct safetensors_entry) {
                  .dtype = s->dtype,
                  .tensor = s->tensor,
                  .plane = s->plane,
                  .box = { .rank = 1, .start = { (uint64_t)(m - k->t->members) } } },
              m->bytes);
    put_descriptor(k, m);
}

/* Adds `count` members, zeroed; NULL: no memory. */
static struct ctl_torch_member *add_members(struct ctl_torch_file *t, size_t count)
{
    t->failed = t->failed || !ctl_grow(&t->members, &t->member_capacity, t->member_count + count,
                                       sizeof *t->members);
    if (t->failed) return NULL;
    struct ctl_torch_member *first = &t->members[t->member_count];
    memset(first, 0, count * sizeof *first);
    t->member_count += count;
    return first;
}

/* Appends an archive with the pickle and these stores to the file. The pickle is consumed and freed. */
static void torch_pack(struct ctl_torch_file *t, struct snapshot_file *file, const char *folder,
                       uint8_t *pickle, size_t pickle_bytes, size_t first_store, size_t store_count)
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

void ctl_torch_pass(struct ctl_torch_file *t, const struct safetensors_entry *entry,
                    const void *from, uint64_t bytes)
{
    struct ctl_torch_member *m = &t->members[entry->box.start[0]];
    m->sum = (uint32_t)crc32_z(m->sum, from, bytes);
    set_sum(t, m);
}

/* ==== torch order ==== */

struct sorting {
    const struct job_spec_data *spec;
    size_t *first; // per group: the lowest position of a tensor in it
};

static uint32_t place_of(const struct tensor_spec *t)
{
    return t->order > 0 ? t->order : UINT32_MAX;
}

static int by_order(const void *a, const void *b, void *context)
{
    const struct sorting *s = context;
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    const uint32_t at = place_of(&s->spec->tensors[x]), there = place_of(&s->spec->tensors[y]);
    if (at != there) return at < there ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* from_torch names groups default, group1, group2, ... by position; other groups sort by their first
 * tensor. */
static uint64_t rank_of(const struct sorting *s, size_t group)
{
    const char *name = s->spec->groups[group].name;
    unsigned number;
    int end = 0;
    if (strcmp(name, "default") == 0) return 0;
    if (sscanf(name, "group%u%n", &number, &end) == 1 && name[end] == '\0') return number;
    return UINT64_C(1) << 32 | s->first[group];
}

static int by_rank(const void *a, const void *b, void *context)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    const uint64_t at = rank_of(context, x), there = rank_of(context, y);
    if (at != there) return at < there ? -1 : 1;
    return x < y ? -1 : x > y;
}

static bool torch_is_whole(const struct tensor_spec *t)
{
    return t->kind != CAIRN_BLOB && t->alias_of == NULL;
}

static bool torch_order(const struct manifest *manifest, struct ctl_torch_order *out)
{
    const struct job_spec_data *spec = &manifest->spec;
    struct ctl_torch_order o = { manifest, spec, calloc(spec->tensor_count + 1, sizeof *o.tensors),
                                 calloc(spec->group_count + 1, sizeof *o.groups) };
    struct sorting s = { spec, calloc(spec->group_count + 1, sizeof *s.first) };
    const bool ok = o.tensors != NULL && o.groups != NULL && s.first != NULL;
    for (size_t i = 0; i < spec->tensor_count && ok; i++) o.tensors[i] = i;
    for (size_t g = 0; g < spec->group_count && ok; g++) o.groups[g] = g;
    if (ok) qsort_r(o.tensors, spec->tensor_count, sizeof *o.tensors, by_order, &s);
    for (size_t i = spec->tensor_count; i-- > 0 && ok;) {
        const struct tensor_spec *t = &spec->tensors[o.tensors[i]];
        const size_t g = t->kind == CAIRN_TRAINED ? spec_find_group(spec, t->group) : SIZE_MAX;
        if (g < spec->group_count) s.first[g] = i;
    }
    if (ok) qsort_r(o.groups, spec->group_count, sizeof *o.groups, by_rank, &s);
    free(s.first);
    *out = o;
    return ok;
}

static void torch_order_release(struct ctl_torch_order *o)
{
    free(o->tensors);
    free(o->groups);
}

/* True if torch's optimizer has this tensor in that group. */
static bool is_member(const struct ctl_torch_order *o, size_t tensor, size_t group)
{
    const struct tensor_spec *t = &o->spec->tensors[tensor];
    return torch_is_whole(t) && t->kind == CAIRN_TRAINED &&
           spec_find_group(o->spec, t->group) == group;
}

/* Calls `each` for every parameter of the group, numbered from `next` on; returns the next free number. */
static size_t torch_walk(const struct ctl_torch_order *o, size_t group, size_t next,
                         void (*each)(void *context, size_t tensor, size_t number), void *context)
{
    for (size_t i = 0; i < o->spec->tensor_count; i++)
        if (is_member(o, o->tensors[i], group)) each(context, o->tensors[i], next++);
    return next;
}

/* ---- options ---- */

static struct ctl_torch_option option(const char *name, enum ctl_torch_option_kind kind,
                                      double value, double second)
{
    return (struct ctl_torch_option) { name, kind, value, second };
}

/* Stores the options of a group at the snapshot's step, and returns their count. `always_initial`:
 * writes initial_lr even without a schedule. */
static size_t torch_options(const struct ctl_torch_order *o, size_t group, bool always_initial,
                            struct ctl_torch_option out[CTL_TORCH_OPTIONS_MAX])
{
    const struct group_spec *g = &o->spec->groups[group];
    const bool is_sgd = strcmp(g->optimizer, "sgd") == 0;
    const bool is_scheduled = g->schedule.kind != CAIRN_SCHEDULE_CONSTANT ||
                              g->schedule.warmup_steps > 0;
    size_t n = 0;
    out[n++] = option("lr", CTL_OPTION_REAL, schedule_lr(&g->schedule, g->lr, o->manifest->step),
                      0);
    if (is_scheduled || always_initial) out[n++] = option("initial_lr", CTL_OPTION_REAL, g->lr, 0);
    out[n++] = option("weight_decay", CTL_OPTION_REAL, g->weight_decay, 0);
    out[n++] = option("maximize", CTL_OPTION_FLAG, false, 0);
    out[n++] = option("foreach", CTL_OPTION_NONE, 0, 0);
    out[n++] = option("differentiable", CTL_OPTION_FLAG, false, 0);
    out[n++] = option("fused", CTL_OPTION_NONE, 0, 0);
    if (is_sgd) {
        out[n++] = option("momentum", CTL_OPTION_REAL, g->momentum, 0);
        out[n++] = option("dampening", CTL_OPTION_REAL, 0, 0);
        out[n++] = option("nesterov", CTL_OPTION_FLAG, g->nesterov, 0);
        return n;
    }
    out[n++] = option("betas", CTL_OPTION_PAIR, g->beta1, g->beta2);
    out[n++] = option("eps", CTL_OPTION_REAL, g->eps, 0);
    out[n++] = option("amsgrad", CTL_OPTION_FLAG, false, 0);
    out[n++] = option("capturable", CTL_OPTION_FLAG, false, 0);
    out[n++] = option("decoupled_weight_decay", CTL_OPTION_FLAG, strcmp(g->optimizer, "adamw") == 0,
                      0);
    return n;
}

/* Writes the option's value. */
static void say_option(struct ctl_torch_file *t, const struct ctl_torch_option *option)
{
    switch (option->kind) {
    case CTL_OPTION_REAL: say_real(t, option->value); return;
    case CTL_OPTION_FLAG: say_flag(t, option->value != 0); return;
    case CTL_OPTION_NONE: put_text(t, "N"); return;
    case CTL_OPTION_PAIR:
        say_real(t, option->value);
        say_real(t, option->second);
        put_text(t, "\x86"); // a tuple of both
        return;
    }
}

/* ==== planning ==== */

/* The value of a key: either a tensor or an option of a group, with the position of its archive. */
struct item {
    char *key;        /* owned */
    const char *name; /* the tensor's; NULL: an option */
    const char *last; /* "exp_avg", "lr"; NULL: a model tensor */
    size_t group;     /* for an option */
    struct shape shape;
    const struct ctl_number_type *type; /* NULL: not a tensor */
    uint64_t at, bytes;
};
/* The state of planning a file or a folder. */
struct planning {
    struct ctl_torch_file *t;
    struct snapshot_file *file;
    const struct ctl_torch_wish *wish;
    const struct job_spec_data *spec;
    struct ctl_torch_order order;
    /* owned; indexed by tensor. For a file: the storage of the parameter. For a folder: the
     * tensor's item + 1 */
    size_t *of_model;
    struct item *items; /* owned; for a folder */
    size_t item_count, item_capacity;
};

/* ==== torch file ==== */

static uint64_t bytes_of(const struct shape *shape, uint32_t each)
{
    uint64_t bytes = each;
    for (uint32_t d = 0; d < shape->rank; d++) bytes *= shape->dim[d];
    return bytes;
}

static size_t add_plane(struct planning *p, size_t tensor, uint32_t plane, cairn_dtype dtype,
                        const struct shape *shape)
{
    const struct ctl_number_type *type = ctl_number_type(dtype);
    return torch_add_store(p->t, (struct ctl_torch_store) { (uint32_t)tensor, plane, dtype, type,
                                                            bytes_of(shape, type->bytes) });
}

/* Returns the shape of a tensor of the model, or of a buffer stored as raw bytes; NULL: neither. */
static const struct shape *model_shape(const struct planning *p, size_t tensor)
{
    const struct tensor_spec *t = &p->spec->tensors[tensor];
    if (t->kind != CAIRN_BLOB) return &t->shape;
    return p->wish->buffers[tensor].type != NULL ? &p->wish->buffers[tensor].shape : NULL;
}

static size_t add_of_model(struct planning *p, size_t tensor)
{
    const struct tensor_spec *t = &p->spec->tensors[tensor];
    if (t->kind != CAIRN_BLOB)
        return add_plane(p, tensor, ctl_model_plane(p->spec, tensor, p->wish->is_average),
                         p->wish->dtype, &t->shape);
    return torch_add_store(p->t, (struct ctl_torch_store) { (uint32_t)tensor, CAIRN_PLANE_PARAM,
                                                            CAIRN_U8, p->wish->buffers[tensor].type,
                                                            t->shape.dim[0] });
}

static void say_model(struct planning *p)
{
    const struct job_spec_data *spec = p->spec;
    put_text(p->t, "}(");
    for (size_t i = 0; i < spec->tensor_count; i++)
        if (spec->tensors[i].alias_of == NULL && model_shape(p, i) != NULL)
            p->of_model[i] = add_of_model(p, i);
    for (size_t i = 0; i < spec->tensor_count && !p->t->failed; i++) {
        const size_t tensor = p->order.tensors[i];
        const struct tensor_spec *t = &spec->tensors[tensor];
        const size_t target = t->alias_of != NULL ? spec_target(spec, tensor) : tensor;
        const struct shape *shape = model_shape(p, target);
        if (shape == NULL) continue;
        ctl_say(p->t, t->name);
        say_tensor(p->t, p->of_model[target], 0, shape, t->alias_box);
    }
    put_text(p->t, "u");
}

static void say_plane(struct planning *p, size_t tensor, uint32_t plane, const char *name)
{
    static const struct shape scalar = { 0 };
    const struct shape *shape = plane == p->wish->step_plane ? &scalar
                                                             : &p->spec->tensors[tensor].shape;
    ctl_say(p->t, name);
    const size_t store = add_plane(p, tensor, plane, CAIRN_F32, shape);
    if (!p->t->failed) say_tensor(p->t, store, 0, shape, NULL);
}

/* A plane of the optimizer's state, as torch calls it. */
struct state {
    uint32_t plane;
    const char *name;
};

/* Lists the planes of a tensor's state, and returns their number. A tensor without a moment has no
 * such planes, as in torch's SGD, whose steps torch does not count. */
static size_t state_of(const struct planning *p, size_t tensor, struct state out[static 3])
{
    const uint32_t planes = spec_planes(p->spec, tensor);
    if ((planes & 1u << CAIRN_PLANE_EXP_AVG) == 0) return 0;
    if ((planes & 1u << CAIRN_PLANE_EXP_AVG_SQ) == 0) {
        out[0] = (struct state) { CAIRN_PLANE_EXP_AVG, "momentum_buffer" };
        return 1;
    }
    out[0] = (struct state) { p->wish->step_plane, "step" };
    out[1] = (struct state) { CAIRN_PLANE_EXP_AVG, "exp_avg" };
    out[2] = (struct state) { CAIRN_PLANE_EXP_AVG_SQ, "exp_avg_sq" };
    return 3;
}

static void say_state(void *context, size_t tensor, size_t number)
{
    struct planning *p = context;
    struct state state[3];
    const size_t count = state_of(p, tensor, state);
    if (count == 0) return;
    say(p->t, "%u}(", (uint64_t)number);
    for (size_t i = 0; i < count; i++) say_plane(p, tensor, state[i].plane, state[i].name);
    put_text(p->t, "u");
}

static void say_its_number(void *context, size_t tensor, size_t number)
{
    const struct planning *p = context;
    (void)tensor;
    say_number(p->t, number);
}

static void say_its_name(void *context, size_t tensor, size_t number)
{
    const struct planning *p = context;
    (void)number;
    ctl_say(p->t, p->spec->tensors[tensor].name);
}

static void say_options(struct planning *p, size_t group)
{
    struct ctl_torch_option options[CTL_TORCH_OPTIONS_MAX];
    const size_t count = torch_options(&p->order, group, false, options);
    for (size_t i = 0; i < count; i++) {
        ctl_say(p->t, options[i].name);
        say_option(p->t, &options[i]);
    }
}

static void say_groups(struct planning *p)
{
    size_t next = 0;
    put_text(p->t, "](");
    for (size_t i = 0; i < p->spec->group_count && !p->t->failed; i++) {
        const size_t group = p->order.groups[i];
        put_text(p->t, "}(");
        say_options(p, group);
        say(p->t, "'params'](");
        const size_t end = torch_walk(&p->order, group, next, say_its_number, p);
        say(p->t, "e'param_names'](");
        torch_walk(&p->order, group, next, say_its_name, p);
        put_text(p->t, "eu");
        next = end;
    }
    put_text(p->t, "e");
}

static void say_all(struct planning *p)
{
    struct ctl_torch_file *t = p->t;
    size_t next = 0;
    say(t, "\x80\x02}('model'");
    say_model(p);
    say(t, "'optimizer'}('state'}(");
    for (size_t i = 0; i < p->spec->group_count && !t->failed; i++)
        next = torch_walk(&p->order, p->order.groups[i], next, say_state, p);
    say(t, "u'param_groups'");
    say_groups(p);
    say(t, "u'step'%uu.", p->order.manifest->step);
}

/* ==== torch folder ==== */

static void add_item(struct planning *p, struct item item)
{
    p->t->failed = p->t->failed ||
                   !ctl_grow(&p->items, &p->item_capacity, p->item_count + 1, sizeof item);
    int printed = 0;
    if (item.last == NULL)
        printed = asprintf(&item.key, "model.%s", item.name);
    else if (item.name != NULL)
        printed = asprintf(&item.key, "optim.state.%s.%s", item.name, item.last);
    else
        printed = asprintf(&item.key, "optim.param_groups.%zu.%s", item.group, item.last);
    p->t->failed |= printed < 0;
    if (!p->t->failed)
        p->items[p->item_count++] = item;
    else if (printed >= 0)
        free(item.key);
}

/* ---- archives: one of each ---- */

/* Turns the text that was written since `from` into the pickle of an archive with these stores, and
 * adds the archive's item. */
static void pack(struct planning *p, size_t from, struct item item, size_t first_store,
                 size_t store_count)
{
    size_t bytes;
    item.at = p->file->file_bytes;
    put_text(p->t, ".");
    uint8_t *pickle = torch_take_text(p->t, from, &bytes);
    torch_pack(p->t, p->file, "archive", pickle, bytes, first_store, store_count);
    item.bytes = p->file->file_bytes - item.at;
    add_item(p, item);
}

static size_t begin_pickle(struct planning *p)
{
    const size_t from = p->t->text_bytes;
    ctl_put(p->t, "\x80\x02", 2);
    return from;
}

static void pack_tensor(struct planning *p, size_t tensor, uint32_t plane, cairn_dtype dtype,
                        struct item item)
{
    const uint64_t bytes = bytes_of(&item.shape, item.type->bytes);
    const size_t from = begin_pickle(p);
    const size_t store = torch_add_store(
        p->t, (struct ctl_torch_store) { (uint32_t)tensor, plane, dtype, item.type, bytes });
    if (p->t->failed) return;
    say_tensor(p->t, store, store, &item.shape, NULL);
    pack(p, from, item, store, 1);
}

static void pack_of_model(struct planning *p, size_t tensor)
{
    const struct tensor_spec *t = &p->spec->tensors[tensor];
    const struct ctl_buffer *buffer = &p->wish->buffers[tensor];
    if (t->alias_of != NULL || (t->kind == CAIRN_BLOB && buffer->type == NULL)) return;
    const bool is_blob = t->kind == CAIRN_BLOB;
    const cairn_dtype dtype = is_blob ? CAIRN_U8 : p->wish->dtype;
    p->of_model[tensor] = p->item_count + 1;
    pack_tensor(p, tensor, ctl_model_plane(p->spec, tensor, p->wish->is_average), dtype,
                (struct item) { .name = t->name,
                                .shape = is_blob ? buffer->shape : t->shape,
                                .type = is_blob ? buffer->type : ctl_number_type(dtype) });
}

/* Adds an alias of a complete tensor, as a key with the position of that tensor. An alias of a part of a
 * tensor gets no key. */
static void add_alias(struct planning *p, size_t tensor)
{
    const struct tensor_spec *t = &p->spec->tensors[tensor];
    if (t->alias_of == NULL || t->alias_box != NULL || p->t->failed) return;
    const size_t target = p->of_model[spec_target(p->spec, tensor)];
    if (target == 0) return;
    struct item item = p->items[target - 1];
    item.name = t->name;
    add_item(p, item);
}

static void pack_state(struct planning *p, size_t tensor)
{
    const struct tensor_spec *t = &p->spec->tensors[tensor];
    struct state state[3];
    const size_t count = torch_is_whole(t) ? state_of(p, tensor, state) : 0;
    for (size_t i = 0; i < count; i++) {
        struct item item = { .name = t->name,
                             .last = state[i].name,
                             .type = ctl_number_type(CAIRN_F32) };
        if (state[i].plane != p->wish->step_plane) item.shape = t->shape;
        pack_tensor(p, tensor, state[i].plane, CAIRN_F32, item);
    }
}

static void pack_group(struct planning *p, size_t number)
{
    static const char *const lists[] = { "params",
                                         "param_names" }; // get_state_dict has names in both
    struct ctl_torch_option options[CTL_TORCH_OPTIONS_MAX];
    const size_t group = p->order.groups[number];
    const size_t count = torch_options(&p->order, group, true, options);
    for (size_t i = 0; i < count; i++) {
        const size_t from = begin_pickle(p);
        say_option(p->t, &options[i]);
        pack(p, from, (struct item) { .last = options[i].name, .group = number }, 0, 0);
    }
    for (size_t i = 0; i < 2; i++) {
        const size_t from = begin_pickle(p);
        put_text(p->t, "](");
        torch_walk(&p->order, group, 0, say_its_name, p);
        put_text(p->t, "e");
        pack(p, from, (struct item) { .last = lists[i], .group = number }, 0, 0);
    }
}

static void pack_all(struct planning *p)
{
    const size_t tensors = p->spec->tensor_count;
    for (size_t i = 0; i < tensors && !p->t->failed; i++) pack_of_model(p, i);
    for (size_t i = 0; i < tensors && !p->t->failed; i++) add_alias(p, i);
    for (size_t i = 0; i < tensors && !p->t->failed; i++) pack_state(p, i);
    for (size_t i = 0; i < p->spec->group_count && !p->t->failed; i++) pack_group(p, i);
}

/* ---- .metadata ---- */

#define METADATA "ctorch.distributed.checkpoint.metadata\n"
static const char *const globals[] = {
    METADATA "TensorStorageMetadata\n",
    METADATA "BytesStorageMetadata\n",
    METADATA "ChunkStorageMetadata\n",
    METADATA "MetadataIndex\n",
    METADATA "TensorProperties\n",
    METADATA "_MEM_FORMAT_ENCODING\n",
    "ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n",
    "ctorch\nSize\n",
    "ctorch\nstrided\n",
};
enum { TENSOR, BYTES, CHUNK, INDEX, PROPERTIES, ENCODING, STORAGE, SIZE, STRIDED, GLOBALS };

#define OBJECT "%g)\x81}(" // an object of a class; the attributes follow, then "ub"

static void say_size(struct planning *p, const struct shape *shape, bool zeros)
{
    say(p->t, "%g(", SIZE);
    for (uint32_t d = 0; d < shape->rank; d++) say_number(p->t, zeros ? 0 : shape->dim[d]);
    say(p->t, "t\x85R");
}

static void say_tensor_metadata(struct planning *p, const struct item *item)
{
    say(p->t, OBJECT "'properties'%g)\x81(ctorch\n%t\n%g\x89%g%u\x85R\x89tb'size'", TENSOR,
        PROPERTIES, item->type->torch, STRIDED, ENCODING, UINT64_C(0));
    say_size(p, &item->shape, false);
    say(p->t, "'chunks'](" OBJECT "'offsets'", CHUNK);
    say_size(p, &item->shape, true);
    say(p->t, "'sizes'");
    say_size(p, &item->shape, false);
    say(p->t, "ubeub");
}

/* Writes the path that the key had in the state dict before the dict was flattened. */
static void say_path(struct planning *p, const struct item *item)
{
    if (item->last == NULL)
        say(p->t, "('model'%st", item->name);
    else if (item->name != NULL)
        say(p->t, "('optim''state'%s%st", item->name, item->last);
    else
        say(p->t, "('optim''param_groups'%u%st", (uint64_t)item->group, item->last);
}

static void say_place(struct planning *p, const struct item *item)
{
    say(p->t, OBJECT "'fqn'%s'offset'", INDEX, item->key);
    if (item->type != NULL)
        say_size(p, &item->shape, true);
    else
        put_text(p->t, "N");
    say(p->t, item->type != NULL ? "'index'%uub" : "'index'Nub", UINT64_C(0));
    say(p->t, OBJECT "'relative_path'%s'offset'%u'length'%u'transform_descriptors'Nub", STORAGE,
        CTL_TORCH_FOLDER_FILE, item->at, item->bytes);
}

static uint8_t *metadata_of(struct planning *p, size_t *bytes_out)
{
    struct ctl_torch_file *t = p->t;
    const size_t from = begin_pickle(p);
    for (uint8_t i = 0; i < GLOBALS; i++) {
        put_text(t, globals[i]);
        ctl_put(t, (uint8_t[]) { 'q', i, '0' }, 3); // stored under that number, and popped
    }
    say(t, METADATA "Metadata\n)\x81}('state_dict_metadata'}(");
    for (size_t i = 0; i < p->item_count; i++) {
        ctl_say(t, p->items[i].key);
        if (p->items[i].type != NULL)
            say_tensor_metadata(p, &p->items[i]);
        else
            say(t, OBJECT "ub", BYTES);
    }
    say(t, "u'planner_data'}(");
    for (size_t i = 0; i < p->item_count; i++) {
        ctl_say(t, p->items[i].key);
        say_path(p, &p->items[i]);
    }
    say(t, "u'storage_data'}(");
    for (size_t i = 0; i < p->item_count; i++) say_place(p, &p->items[i]);
    say(t, "u'storage_meta'N'version'Nub.");
    return torch_take_text(t, from, bytes_out);
}

void ctl_torch_free(struct ctl_torch_file *t)
{
    if (t == NULL) return;
    free(t->text);
    free(t->members);
    free(t->stores);
    free(t);
}

/* ==== plans ==== */

static cairn_status begin_plan(struct planning *p, const struct manifest *manifest,
                               const struct ctl_torch_wish *wish, struct snapshot_file *file)
{
    const struct job_spec_data *spec = &manifest->spec;
    *p = (struct planning) { .t = calloc(1, sizeof *p->t),
                             .file = file,
                             .wish = wish,
                             .spec = spec,
                             .of_model = calloc(spec->tensor_count + 1, sizeof *p->of_model) };
    const bool is_sorted = torch_order(manifest, &p->order);
    return p->t != NULL && p->of_model != NULL && is_sorted ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

static cairn_status end_plan(struct planning *p, cairn_status status, struct ctl_torch_file **out)
{
    if (status == CAIRN_OK && p->t->failed) status = CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK && p->t->store_count == 0) status = CAIRN_ERR_NOT_FOUND;
    for (size_t i = 0; i < p->item_count; i++) free(p->items[i].key);
    free(p->items);
    free(p->of_model);
    torch_order_release(&p->order);
    if (status == CAIRN_OK)
        *out = p->t;
    else
        ctl_torch_free(p->t);
    return status;
}

cairn_status ctl_torch_plan(const struct manifest *manifest, const struct ctl_torch_wish *wish,
                            struct snapshot_file *file, struct ctl_torch_file **out)
{
    struct planning p;
    const cairn_status status = begin_plan(&p, manifest, wish, file);
    if (status == CAIRN_OK) {
        size_t bytes;
        say_all(&p);
        uint8_t *pickle = torch_take_text(p.t, 0, &bytes);
        torch_pack(p.t, file, "checkpoint", pickle, bytes, 0, p.t->store_count);
    }
    return end_plan(&p, status, out);
}

cairn_status ctl_torch_folder_plan(const struct manifest *manifest,
                                   const struct ctl_torch_wish *wish, struct snapshot_file *file,
                                   struct ctl_torch_file **out, char **metadata_out,
                                   size_t *metadata_bytes_out)
{
    struct planning p;
    uint8_t *metadata = NULL;
    cairn_status status = begin_plan(&p, manifest, wish, file);
    if (status == CAIRN_OK) {
        pack_all(&p);
        metadata = metadata_of(&p, metadata_bytes_out);
    }
    status = end_plan(&p, status, out);
    if (status == CAIRN_OK)
        *metadata_out = (char *)metadata;
    else
        free(metadata);
    return status;
}

#include "tests/support/holding.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/descriptors.h"

void holding_prepare(const char *path)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, sizeof(struct nth_counts)), 0);
    close(fd);
}

/* ---- addresses ---- */

struct code {
    uintptr_t begin, end, offset;
    char object[sizeof(((struct holding_site *)0)->object)];
};
enum { CODES = 128 };

/* The code that the process has mapped. */
static size_t read_codes(pid_t pid, struct code codes[CODES])
{
    char path[64], line[512], file[256], rights[8];
    size_t count = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "re");
    ck_assert_ptr_nonnull(maps);
    while (count < CODES && fgets(line, sizeof line, maps) != NULL) {
        struct code *code = &codes[count];
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %" SCNxPTR " %*s %*s %255s", &code->begin,
                   &code->end, rights, &code->offset, file) != 5 ||
            strchr(rights, 'x') == NULL)
            continue;
        const char *name = strrchr(file, '/');
        snprintf(code->object, sizeof code->object, "%.*s", (int)sizeof code->object - 1,
                 name != NULL ? name + 1 : file);
        count++;
    }
    fclose(maps);
    return count;
}

static void name_site(struct holding_site *site, const struct code *codes, size_t count,
                      uintptr_t caller)
{
    snprintf(site->object, sizeof site->object, "?");
    site->at = 0;
    for (size_t i = 0; i < count; i++) {
        if (caller < codes[i].begin || caller >= codes[i].end) continue;
        memcpy(site->object, codes[i].object, sizeof site->object);
        site->at = caller - codes[i].begin + codes[i].offset;
    }
}

/* ---- what is held ---- */

static struct holding_site *find_site(struct holding *in, const struct holding_site *like)
{
    for (size_t i = 0; i < in->count; i++)
        if (in->sites[i].at == like->at && strcmp(in->sites[i].object, like->object) == 0)
            return &in->sites[i];
    return NULL;
}

/* A new one if there is none. */
static struct holding_site *need_site(struct holding *in, const struct holding_site *like)
{
    struct holding_site *site = find_site(in, like);
    if (site != NULL) return site;
    ck_assert_uint_lt(in->count, NTH_SITES);
    site = &in->sites[in->count++];
    *site = *like;
    site->blocks = site->bytes = 0;
    return site;
}

void holding_read(pid_t pid, const char *path, struct holding *out)
{
    struct code codes[CODES];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    const struct nth_counts *counts = mmap(NULL, sizeof *counts, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(counts, MAP_FAILED);
    close(fd);
    const size_t count = read_codes(pid, codes);
    *out = (struct holding) { .mapped_bytes = counts->mapped_bytes,
                              .descriptors = descriptors_of(pid) };
    for (size_t i = 0; i < NTH_SITES; i++) {
        struct holding_site named = { .blocks = counts->sites[i].blocks,
                                      .bytes = counts->sites[i].bytes };
        if (named.blocks == 0) continue;
        name_site(&named, codes, count, counts->sites[i].caller);
        struct holding_site *site = need_site(out, &named);
        site->blocks += named.blocks;
        site->bytes += named.bytes;
    }
    munmap((void *)(uintptr_t)counts, sizeof *counts);
}

static void widen(int64_t *usual, int64_t seen)
{
    if (*usual < seen) *usual = seen;
}

void holding_widen(struct holding *usual, const struct holding *seen, bool growing)
{
    widen(&usual->descriptors, seen->descriptors);
    widen(&usual->mapped_bytes, seen->mapped_bytes);
    const bool is_first = usual->count == 0;
    for (size_t i = 0; i < seen->count; i++) {
        struct holding_site *site = need_site(usual, &seen->sites[i]);
        if (is_first) site->least = seen->sites[i].blocks;
        if (growing && seen->sites[i].blocks >= site->blocks + HOLDING_GROWTH) site->grows = true;
        widen(&site->blocks, seen->sites[i].blocks);
        widen(&site->bytes, seen->sites[i].bytes);
    }
    for (size_t i = 0; i < usual->count; i++) {
        const struct holding_site *site = find_site((struct holding *)(uintptr_t)seen,
                                                    &usual->sites[i]);
        const int64_t blocks = site != NULL ? site->blocks : 0;
        if (usual->sites[i].least > blocks) usual->sites[i].least = blocks;
    }
}

static bool is_of_pool(const struct holding_site *more, const struct holding_pool *pools)
{
    for (; pools->object != NULL; pools++)
        if (strncmp(more->object, pools->object, strlen(pools->object)) == 0 &&
            (pools->bytes == 0 || more->bytes == more->blocks * pools->bytes))
            return true;
    return false;
}

/* What is held there beyond what is usual; blocks: 0, nothing. */
static struct holding_site more_at(const struct holding *usual, const struct holding_site *site,
                                   const struct holding_pool *pools)
{
    const struct holding_site *was = find_site((struct holding *)(uintptr_t)usual, site);
    struct holding_site more = *site;
    if (was != NULL) more.blocks -= was->blocks, more.bytes -= was->bytes;
    if (more.blocks < 0 || (was != NULL && was->grows) || is_of_pool(&more, pools)) more.blocks = 0;
    return more;
}

/* Blocks of that object that are there beyond what is usual, less those that were there whenever `usual` was
 * seen and are not now. */
static int64_t more_of(const struct holding *usual, const struct holding *now,
                       const struct holding_pool *pools, const char *object)
{
    int64_t blocks = 0;
    for (size_t i = 0; i < now->count; i++)
        if (strcmp(now->sites[i].object, object) == 0)
            blocks += more_at(usual, &now->sites[i], pools).blocks;
    for (size_t i = 0; i < usual->count; i++) {
        const struct holding_site *was = &usual->sites[i];
        const struct holding_site *is = find_site((struct holding *)(uintptr_t)now, was);
        const int64_t left = is != NULL ? is->blocks : 0;
        if (strcmp(was->object, object) == 0 && left < was->least) blocks -= was->least - left;
    }
    return blocks;
}

const char *holding_beyond(const struct holding *usual, const struct holding *now,
                           const struct holding_pool *pools, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
#define BEYOND(...) \
    if (used < bytes) used += (size_t)snprintf(text + used, bytes - used, __VA_ARGS__)
    if (now->descriptors > usual->descriptors)
        BEYOND("%" PRId64 " descriptors, not %" PRId64 "\n", now->descriptors, usual->descriptors);
    if (now->mapped_bytes > usual->mapped_bytes)
        BEYOND("%" PRId64 " bytes mapped, not %" PRId64 "\n", now->mapped_bytes,
               usual->mapped_bytes);
    for (size_t i = 0; i < now->count; i++) {
        const struct holding_site more = more_at(usual, &now->sites[i], pools);
        if (more.blocks > 0 && more_of(usual, now, pools, more.object) > 0)
            BEYOND("%s+%" PRIx64 ": %" PRId64 " blocks of %" PRId64 " bytes more\n", more.object,
                   more.at, more.blocks, more.bytes);
    }
    return text;
}

#include "server/shard/kept_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/text.h"
#include "server/base/log.h"

static const char magic[8] = "cairnk1";

struct kept_head kept_head(uint32_t edition)
{
    struct kept_head head = { .format = KEPT_FORMAT, .edition = edition };
    memcpy(head.magic, magic, sizeof head.magic);
    return head;
}

bool kept_head_is_known(const struct kept_head *head)
{
    return memcmp(head->magic, magic, sizeof magic) == 0 && head->format == KEPT_FORMAT;
}

/* ---- names ---- */

void kept_name_edition(char name[CAIRN_KEEPER_NAME_MAX + 1], uint32_t part, char what,
                       uint32_t edition)
{
    snprintf(name, CAIRN_KEEPER_NAME_MAX + 1, "%x.%c%x", part, what, edition);
}

void kept_name_segment(char name[CAIRN_KEEPER_NAME_MAX + 1], uint32_t part, int plane,
                       uint64_t segment)
{
    snprintf(name, CAIRN_KEEPER_NAME_MAX + 1, "%x.p%d.%" PRIx64, part, plane, segment);
}

bool kept_name_may_be(const char *text, uint32_t part, char what)
{
    char *end;
    return strtoul(text, &end, 16) == part && end[0] == '.' && end[1] == what;
}

struct kept_name kept_name_read(const char *text)
{
    struct kept_name name = { .what = 0 };
    int end = -1;
    const int count = sscanf(text, "%" SCNx32 ".%c%" SCNx32 "%n.%" SCNx64 "%n", &name.part,
                             &name.what, &name.number, &end, &name.segment, &end);
    const bool is_segment = count == 4 && name.what == 'p',
               is_edition = count == 3 && strchr("rln", name.what) != NULL;
    if ((!is_segment && !is_edition) || text[end] != '\0') name.what = 0;
    return name;
}

/* ---- memory ---- */

void *kept_map_new(const char *label, uint64_t bytes, int *fd_out, struct sentence *why)
{
    const int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *at = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        at = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        sentence_set(why, "cannot make %" PRIu64 " bytes for %s: %s", bytes, label,
                     strerror(errno));
        if (fd >= 0) close(fd);
        return NULL;
    }
    *fd_out = fd;
    return at;
}

void *kept_map(int fd, uint64_t least, int protection, uint64_t *bytes_out)
{
    struct stat is;
    if (fd < 0 || fstat(fd, &is) != 0 || (uint64_t)is.st_size < least) return NULL;
    void *at = mmap(NULL, (size_t)is.st_size, protection, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return NULL;
    *bytes_out = (uint64_t)is.st_size;
    return at;
}

/* The checksum of a file: of all bytes behind the field that has it. */
static uint64_t checksum_behind(const uint64_t *field, const void *file, uint64_t bytes)
{
    const uint8_t *from = (const uint8_t *)(field + 1);
    return chunk_checksum(from, (size_t)((const uint8_t *)file + bytes - from));
}

/* ---- the record ---- */

void kept_record_seal(struct kept_record *record)
{
    record->checksum = checksum_behind(&record->checksum, record, record->bytes);
}

/* True if the parts of the record have the size that its head says. */
static bool record_adds_up(const struct kept_record *record, uint64_t bytes)
{
    const uint64_t most = CAIRN_PAGED_BYTES_MAX;
    return record->bytes == bytes && record->extent_count <= bytes / sizeof(uint64_t) &&
           record->spec_bytes <= most && record->amended_bytes <= most &&
           record->layout_bytes <= most &&
           sizeof *record + record->extent_count * sizeof(uint64_t) + record->spec_bytes +
                   record->amended_bytes + record->layout_bytes ==
               bytes;
}

cairn_status kept_record_read(int fd, const struct kept_record **record_out, struct sentence *why)
{
    uint64_t bytes = 0;
    struct kept_record *record = kept_map(fd, sizeof *record, PROT_READ, &bytes);
    if (record == NULL) return fail_with(why, CAIRN_ERR_NOT_FOUND, KEPT_NO_MORE);
    cairn_status status = CAIRN_OK;
    if (!kept_head_is_known(&record->head))
        status = fail_with(why, CAIRN_ERR_VERSION,
                           "build %.*s keeps state in format %u, and this build reads %d",
                           KEPT_BUILD_BYTES, record->build, record->head.format, KEPT_FORMAT);
    else if (!record_adds_up(record, bytes) ||
             checksum_behind(&record->checksum, record, bytes) != record->checksum)
        status = fail_with(why, CAIRN_ERR_CHECKSUM, "its record is damaged");
    if (status == CAIRN_OK)
        *record_out = record;
    else
        munmap(record, (size_t)bytes);
    return status;
}

/* ---- the layout that is prepared ---- */

void kept_next_seal(struct kept_next *next)
{
    next->checksum = checksum_behind(&next->checksum, next, next->bytes);
}

static bool next_adds_up(const struct kept_next *next, uint64_t bytes)
{
    const uint64_t most = CAIRN_PAGED_BYTES_MAX;
    return next->bytes == bytes && next->extent_count <= bytes / sizeof(uint64_t) &&
           next->message_bytes <= most && next->layout_bytes <= most &&
           sizeof *next + next->extent_count * sizeof(uint64_t) + next->message_bytes +
                   next->layout_bytes ==
               bytes;
}

cairn_status kept_next_read(int fd, struct kept_next **next_out, struct sentence *why)
{
    uint64_t bytes = 0;
    struct kept_next *next = kept_map(fd, sizeof *next, PROT_READ | PROT_WRITE, &bytes);
    cairn_status status = CAIRN_OK;
    if (next == NULL)
        return fd < 0 ? fail_with(why, CAIRN_ERR_NOT_FOUND, "no layout is prepared")
                      : fail_with(why, CAIRN_ERR_CHECKSUM, "it is damaged");
    if (next->head.format == KEPT_VOID_FORMAT)
        status = fail_with(why, CAIRN_ERR_NOT_FOUND, "no layout is prepared");
    else if (!kept_head_is_known(&next->head) || !next_adds_up(next, bytes) ||
             checksum_behind(&next->checksum, next, bytes) != next->checksum)
        status = fail_with(why, CAIRN_ERR_CHECKSUM, "it is damaged");
    if (status == CAIRN_OK)
        *next_out = next;
    else
        munmap(next, (size_t)bytes);
    return status;
}

/* ---- the ledger ---- */

#define LEDGER_ALIGN 4096u

static uint64_t outcome_bytes(const struct kept_ledger *ledger)
{
    return ALIGN_UP(sizeof(struct kept_outcome) + ledger->payload_max + ledger->group_count +
                        ledger->tensor_count,
                    64u);
}

struct kept_outcome *kept_outcome(const struct kept_ledger *ledger, uint64_t count)
{
    uint8_t *first = (uint8_t *)(uintptr_t)(ledger + 1);
    return (struct kept_outcome *)(first + count % 2 * outcome_bytes(ledger));
}

const struct kept_outcome *kept_last(const struct kept_ledger *ledger)
{
    return kept_outcome(ledger, ledger->count);
}

uint8_t *kept_payload(const struct kept_outcome *outcome)
{
    return (uint8_t *)(uintptr_t)(outcome + 1);
}

bool *kept_frozen(const struct kept_ledger *ledger, const struct kept_outcome *outcome)
{
    return (bool *)(kept_payload(outcome) + ledger->payload_max);
}

uint64_t *kept_ended(const struct kept_ledger *ledger)
{
    return (uint64_t *)kept_outcome(ledger, 0) + 2 * outcome_bytes(ledger) / sizeof(uint64_t);
}

static uint64_t undos_from(const struct kept_ledger *ledger)
{
    return ALIGN_UP(sizeof *ledger + 2 * outcome_bytes(ledger) +
                        ledger->trained_count * sizeof(uint64_t),
                    LEDGER_ALIGN);
}

struct update_undo *kept_undo_at(const struct kept_ledger *ledger, uint32_t lane)
{
    return (struct update_undo *)((uint8_t *)(uintptr_t)ledger + undos_from(ledger)) + lane;
}

uint64_t kept_ledger_bytes(const struct kept_ledger *ledger)
{
    return undos_from(ledger) + KEPT_LANES * sizeof(struct update_undo);
}

struct step_kept kept_outcome_step(const struct kept_outcome *outcome, const void *payload)
{
    return (struct step_kept) {
        .phase = (enum step_phase)outcome->phase,
        .epoch = outcome->epoch,
        .round = outcome->round,
        .round_seen = outcome->round_seen,
        .round_epoch = outcome->round_epoch,
        .version = outcome->version,
        .last = { .kind = (enum decision_kind)outcome->kind,
                  .round = outcome->last_round,
                  .version_after = outcome->version_after,
                  .payload = payload,
                  .payload_bytes = (size_t)outcome->payload_bytes },
    };
}

bool kept_ledger_is_whole(const struct kept_ledger *ledger, uint64_t bytes)
{
    const uint64_t most = (uint64_t)1 << 40;
    return ledger->payload_max <= most && ledger->group_count <= most &&
           ledger->tensor_count <= most && ledger->trained_count <= most &&
           kept_ledger_bytes(ledger) == bytes && ledger->bytes == bytes &&
           kept_last(ledger)->payload_bytes <= ledger->payload_max;
}

/* ---- to the keeper ---- */

void kept_forget(const char *name)
{
    struct sentence why;
    // A keeper that is gone keeps nothing; if it is not, the memory is freed when this unit ends.
    if (keeper_forget(name, &why) != CAIRN_OK) log_debug("%s", why.text);
}

void kept_forget_edition(uint32_t part, char what, uint32_t edition)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    kept_name_edition(name, part, what, edition);
    kept_forget(name);
}

void kept_forget_segments(uint32_t part, int plane, uint64_t first, uint64_t end)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    for (uint64_t s = first; s < end; s++) {
        kept_name_segment(name, part, plane, s);
        kept_forget(name);
    }
}

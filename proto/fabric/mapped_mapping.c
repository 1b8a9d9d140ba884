/* Memory of peers, mapped here to be read. A mapping lives as long as its slot, a message or a holder
 * refers to it, so that nobody who reads is harmed by its maker's end. Nor by its emptiness: a page that is
 * missing would be made for whoever reads it, at the cost of the reader's control group, which may kill it
 * for that; so nothing is read that is not there, and seals keep it there. */
#include "proto/fabric/mapped.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/fabric/pages.h"

static cairn_status map(struct cairn_fabric_mapping *mapping, uint64_t bytes, int fd)
{
    if (fabric_judge_memory(fd, bytes) != CAIRN_OK) return CAIRN_ERR_REFUSED;
    void *memory = cairn_pages_map(bytes, PROT_READ, MAP_SHARED, fd);
    if (memory == MAP_FAILED) return CAIRN_ERR_NO_MEMORY;
    struct stat file;
    mapping->memory = memory;
    mapping->bytes = bytes;
    mapping->fd = fd;
    mapping->is_whole = fstat(fd, &file) == 0 &&
                        (uint64_t)file.st_blocks * 512 >= (uint64_t)file.st_size;
    return CAIRN_OK;
}

bool mapped_mapping_has(const struct cairn_fabric_mapping *mapping, uint64_t offset, size_t bytes)
{
    if (mapping->is_whole) return true;
    const off_t hole = lseek(mapping->fd, (off_t)offset, SEEK_HOLE);
    return hole >= 0 && (uint64_t)hole >= offset + bytes;
}

cairn_status mapped_mapping_open(struct mapped_in *in, const struct frame_region *frame, int fd,
                                 struct cairn_fabric_mapping **mapping_out)
{
    const struct cairn_fabric_options *options = &in->fabric->common.options;
    struct cairn_fabric_mapping *mapping = NULL;
    cairn_status status = CAIRN_ERR_REFUSED;
    if (frame->bytes > options->mapped_max - in->mapped_bytes) goto err_close;
    status = CAIRN_ERR_NO_MEMORY;
    if ((mapping = calloc(1, sizeof *mapping)) == NULL) goto err_close;
    if ((status = map(mapping, frame->bytes, fd)) != CAIRN_OK) goto err_free;
    mapping->references = 1;
    mapping->in = in;
    LIST_INSERT_HEAD(&in->all, mapping, entry);
    in->mapped_bytes += mapping->bytes;
    mapping->is_staging = frame->is_staging != 0;
    mapping->note_bytes = frame->note_bytes;
    memcpy(mapping->note, frame->note, sizeof mapping->note);
    if (mapping->is_whole && (mapping->is_staging || options->on_mapping == NULL)) {
        close(mapping->fd);
        mapping->fd = -1;
    }
    *mapping_out = mapping;
    return CAIRN_OK;
err_free:
    free(mapping);
err_close:
    close(fd);
    return status;
}

void mapped_mapping_end(struct cairn_fabric_mapping *mapping)
{
    const struct cairn_fabric_options *options = &mapping->in->fabric->common.options;
    if (mapping->is_shown && options->on_mapping_gone != NULL)
        options->on_mapping_gone(options->on_message_arg, mapping);
    cairn_fabric_mapping_release(mapping);
}

const void *cairn_fabric_mapping_memory(const struct cairn_fabric_mapping *mapping,
                                        size_t *bytes_out)
{
    *bytes_out = mapping->bytes;
    return mapping->memory;
}

const void *cairn_fabric_mapping_note(const struct cairn_fabric_mapping *mapping,
                                      size_t *note_bytes_out)
{
    *note_bytes_out = mapping->note_bytes;
    return mapping->note;
}

int cairn_fabric_mapping_fd(const struct cairn_fabric_mapping *mapping)
{
    return mapping->fd;
}

void cairn_fabric_mapping_hold(struct cairn_fabric_mapping *mapping)
{
    mapping->references++;
}

void cairn_fabric_mapping_release(struct cairn_fabric_mapping *mapping)
{
    assert(mapping->references > 0);
    if (--mapping->references > 0) return;
    if (mapping->in != NULL) {
        LIST_REMOVE(mapping, entry);
        mapping->in->mapped_bytes -= mapping->bytes;
    }
    munmap(mapping->memory, mapping->bytes);
    if (mapping->fd >= 0) close(mapping->fd);
    free(mapping);
}

/* Reads the files of a snapshot in blocks of 4 MiB, past the page cache, several ahead of who takes them,
 * each judged by its checksum while it is in the cache. Files before version 4 of the manifest have no
 * checksums of blocks: theirs come unjudged.
 *
 * A reader is used by one thread; its threads are started with that one's priorities. Memory: the blocks
 * that are read ahead. */
#ifndef CAIRN_SNAPSHOT_IO_BLOCK_READER_H
#define CAIRN_SNAPSHOT_IO_BLOCK_READER_H

#include "proto/snapshot/manifest.h"
#include "proto/store/storage.h"

#define CAIRN_READ_AHEAD 4 /* blocks, if nothing else is said */

struct cairn_block_reader;
/* Opens a reader of the snapshot at `folder`; folder and manifest are borrowed, the manifest is
 * constant. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_block_reader_open(const char *folder, const struct cairn_manifest *manifest,
                                     uint32_t ahead, struct cairn_block_reader **out,
                                     struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Gives a block of a file of the manifest, borrowed until the next get or return, and how many
 * bytes it has. The blocks behind it in the file are read meanwhile, unless `want` has said which
 * come next. CAIRN_ERR_CHECKSUM: the block is damaged, which concerns no other; CAIRN_ERR_CORRUPT:
 * the file is missing or has another size; CAIRN_ERR_IO. The sentence names the file and, for
 * damage, the block. */
cairn_status cairn_block_reader_get(struct cairn_block_reader *reader, size_t file, uint64_t block,
                                    const uint8_t **bytes_out, size_t *count_out,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The block that get gave last is not needed any more: its place is reused first. */
void cairn_block_reader_return(struct cairn_block_reader *reader);
/* For a caller that does not read one file after the other: this block will be asked for, after
 * those that were wanted before. False: there is no room for it yet (blocks that are returned make
 * some), or nothing is read ahead. */
bool cairn_block_reader_want(struct cairn_block_reader *reader, size_t file, uint64_t block);
void cairn_block_reader_close(struct cairn_block_reader *reader);

/* The sentence of a file that cannot be opened, or has another size than the manifest says; what the
 * storage's open returned. */
cairn_status cairn_block_reader_judge(const struct cairn_manifest_file *listed,
                                      const struct cairn_storage_file *file, cairn_status opened,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif

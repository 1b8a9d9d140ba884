/* What a test needs from the machine and leaves nothing of: a folder of its own, a free port. */
#ifndef CAIRN_SUPPORT_SCRATCH_H
#define CAIRN_SUPPORT_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CAIRN_SCRATCH_BYTES 64

/* A new folder under $TMPDIR's usual place, /tmp. Aborts the test if there is none. */
void cairn_scratch_make(char folder_out[CAIRN_SCRATCH_BYTES]);
/* The same in memory, if there is a place: where nothing is asked of the disk, an fsync or unlink that waits
 * for others' is only time. */
void cairn_scratch_make_quick(char folder_out[CAIRN_SCRATCH_BYTES]);
/* Removes it with everything in it. */
void cairn_scratch_remove(const char *folder);

/* True if a child may be the user nobody, and that user reaches our folders and programs: the caller
 * is root, and no folder on the way is closed to others. */
bool cairn_scratch_has_nobody(void);
#define CAIRN_SCRATCH_NOBODY 65534
/* Makes this process that user, who is in no other group, for good. False: it may not. */
bool cairn_scratch_be_nobody(void);

/* A loopback port that was free a moment ago. Better: listen on port 0 and ask which it is. */
uint16_t cairn_scratch_port(void);

/* Connects to the Unix socket at `path`. */
int cairn_scratch_dial(const char *path);

/* Writes `text` to FOLDER/NAME and gives that path in path_out. */
void cairn_scratch_file(const char *folder, const char *name, const char *text, char *path_out,
                        size_t path_bytes);

/* The next number of a seeded sequence (splitmix64): the same on every machine. */
uint64_t cairn_scratch_random(uint64_t *seed);

#endif

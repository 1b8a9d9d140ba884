/* The reference for the bench of snapshots: one file of as many bytes, written from its begin to
 * its end and synced, and read, or both, by direct I/O of large blocks, several in flight. The
 * files have no name, so nothing of them stays. */
#ifndef CAIRN_CTL_BENCH_SNAPSHOT_DISK_H
#define CAIRN_CTL_BENCH_SNAPSHOT_DISK_H

#include "client/ctl/local/local.h"

#define CAIRN_BENCH_DISK_BLOCK_BYTES ((size_t)8 << 20)
#define CAIRN_BENCH_DISK_THREADS     4

struct cairn_bench_disk {
    struct local *local; /* borrowed; the file is in its folder */
    bool
        is_buffered; /* the file system refuses direct I/O: then through the page cache, and synced */
    /* owned: by the first read, until close */
    int fd; /* 0: none */
    uint64_t bytes;
};

/* GB/s until all is on the disk; 0, and said: it failed, or a signal came. */
double cairn_bench_disk_write(struct cairn_bench_disk *disk, uint64_t bytes);
/* GB/s of the file's bytes, which are not in the page cache; as above. The first time it is written. */
double cairn_bench_disk_read(struct cairn_bench_disk *disk, uint64_t bytes);
/* The same of a file that is read and, by the same threads, written to another, until all is on the disk. */
double cairn_bench_disk_copy(struct cairn_bench_disk *disk, uint64_t bytes);
void cairn_bench_disk_close(struct cairn_bench_disk *disk);

#endif

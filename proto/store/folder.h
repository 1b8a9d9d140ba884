/* For the files of the storage of folders. Every step below a location follows no symbolic link. */
#ifndef CAIRN_STORE_FOLDER_H
#define CAIRN_STORE_FOLDER_H

#include "proto/store/storage.h"

/* The status of errno, and a sentence of the step that failed. */
cairn_status cairn_folder_failed(struct cairn_sentence *why, const char *step, const char *path);
/* The same, for what may be missing: CAIRN_ERR_NOT_FOUND. */
cairn_status cairn_folder_missed(struct cairn_sentence *why, const char *step, const char *path);
/* The folder that `path` ends in, beneath `at`; *name_out: the last part of the path, "." of "". -1: errno.
 * */
int cairn_folder_open_parent(const char *at, const char *path, const char **name_out);

/* folder_put.c */
cairn_status cairn_folder_put_begin(const char *at, const char *path, uint64_t bytes,
                                    struct cairn_storage_put **put_out, struct cairn_sentence *why);
cairn_status cairn_folder_put_write(struct cairn_storage_put *put, uint64_t offset,
                                    const void *from, size_t count, struct cairn_sentence *why);
cairn_status cairn_folder_put_end(struct cairn_storage_put *put, cairn_status status,
                                  struct cairn_sentence *why);
cairn_status cairn_folder_commit(const char *at, const char *path, const void *bytes, size_t count,
                                 bool replace, struct cairn_sentence *why);

/* folder_read.c */
cairn_status cairn_folder_open(const char *at, const char *path, bool is_direct,
                               struct cairn_storage_file **file_out, struct cairn_sentence *why);
cairn_status cairn_folder_read(struct cairn_storage_file *file, uint64_t offset, void *to,
                               size_t count, size_t *got_out, struct cairn_sentence *why);
void cairn_folder_close(struct cairn_storage_file *file);

#endif

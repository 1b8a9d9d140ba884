/* Attaching to a job, and again after every loss of the control connection. Loop thread. */
#ifndef CAIRN_CLIENT_LOOP_ATTACH_H
#define CAIRN_CLIENT_LOOP_ATTACH_H

#include "proto/wire/messages.h"

struct command;
struct job;

/* The command by which a job is put into the session's list: its reference becomes the list's. */
bool cairn_attach_list_run(struct command *command);
void cairn_attach_begin(struct job *job);
void cairn_attach_on_attached(struct job *job, Cairn__Attached *attached); /* takes it */
void cairn_attach_on_page(struct job *job, const Cairn__Page *page);
/* Waits for the thread that reads the pages of `job`, and attaches the job by what it read. */
void cairn_attach_read(struct job *job);
/* The Error lists differences: they are kept for the thread that opens the job. To be called before
 * cairn_attach_on_error. */
void cairn_attach_differ(struct job *job, const Cairn__Error *error);
void cairn_attach_on_error(struct job *job, cairn_status status, const char *text);
/* The job is closing: leaves it, and takes it out of the list once the fabric has nothing of it on loan. */
void cairn_attach_release(struct job *job);

#endif

#include "client/attachment.h"

#include "client/job.h"
#include "client/reading.h"

void cairn_attachment_put_off(struct job *job, const char *why)
{
    pthread_mutex_lock(&job->session->lock);
    cairn_sentence_set(&job->attachment.put_off, "%s", why);
    pthread_mutex_unlock(&job->session->lock);
}

void cairn_attachment_drop_pages(struct attachment *attachment)
{
    cairn_reading_free(attachment->reading);
    attachment->reading = NULL;
    cairn_paged_release(&attachment->spec_pages);
    cairn_paged_release(&attachment->layout_pages);
    cairn_message_free((ProtobufCMessage *)attachment->reply);
    attachment->reply = NULL;
}

void cairn_attachment_drop_changed(struct attachment *attachment)
{
    cairn_paged_release(&attachment->changed_pages);
    cairn_message_free((ProtobufCMessage *)attachment->changed);
    attachment->changed = NULL;
}

void cairn_attachment_lost(struct job *job)
{
    cairn_attachment_drop_pages(&job->attachment);
    cairn_attachment_drop_changed(&job->attachment);
    cairn_attachment_put_off(job, "");
    job->tiles.request = 0;
    job->attachment.state = JOB_DETACHED;
}

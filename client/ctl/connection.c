/* The command's one request, by the connection that calls of the library have, too (client/base/admin.h). */
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "client/base/admin.h"
#include "client/ctl/ctl.h"

int cairn_ctl_fail(cairn_status status, const char *fmt, ...)
{
    va_list arguments;
    va_start(arguments, fmt);
    fprintf(stderr, "cairn: ");
    vfprintf(stderr, fmt, arguments);
    fprintf(stderr, " [CAIRN-E%04d]\n", (int)status);
    va_end(arguments);
    return cairn_status_exit((int)status);
}

/* Says for whom a snapshot or digest waits, once: if they are not there, or it is late. */
static void on_awaited(void *context, const Cairn__Awaited *awaited, bool is_late)
{
    struct ctl *ctl = context;
    const bool worth = awaited->text[0] != '\0' && (awaited->away || is_late);
    if (!worth || ctl->awaited_said) return;
    fprintf(stderr, "cairn: %s: waits for %s\n", ctl->words, awaited->text);
    ctl->awaited_said = true;
}

cairn_status cairn_ctl_call_paged(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                                  uint16_t reply_type, ProtobufCMessage **reply_out,
                                  struct cairn_paged *pages)
{
    char name[CAIRN_NAME_MAX];
    struct cairn_sentence why;
    snprintf(name, sizeof name, "cairn %s, pid %ld", ctl->words, (long)getpid());
    if (ctl->timeout_ms == 0) ctl->timeout_ms = 30000;
    struct cairn_admin admin = {
        .endpoint = ctl->endpoint,
        .name = name,
        .build = ctl->build,
        .advice = ", is --endpoint or CAIRN_ENDPOINT right? (without them it is looked for in "
                  "$XDG_RUNTIME_DIR/cairn and /run/cairn)",
        .timeout_ms = ctl->timeout_ms,
        .cut_of = ctl->cut_of,
        .on_awaited = on_awaited,
        .context = ctl,
    };
    const cairn_status status = cairn_admin_call(&admin, type, message, reply_type, reply_out,
                                                 pages, &why);
    const bool passes = status == CAIRN_ERR_UNREACHABLE || status == CAIRN_ERR_TIMEOUT;
    if (status != CAIRN_OK && ctl->failed != NULL)
        *ctl->failed = why;
    else if (status != CAIRN_OK && !(passes && ctl->tries_again))
        cairn_ctl_fail(status, "%s", why.text);
    return status;
}

cairn_status cairn_ctl_call(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                            uint16_t reply_type, ProtobufCMessage **reply_out)
{
    return cairn_ctl_call_paged(ctl, type, message, reply_type, reply_out, NULL);
}

/* A command asks the coordinator: the single request, the question as a row, confirmation, interrupts, and
 * --watch. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "proto/spec/spec.h"

/* ==== confirm ==== */

/* Asks for confirmation before a step that cannot be undone. On a terminal the user types the name of the
 * thing that is deleted; without a terminal --yes is needed. */

int ctl_confirm(const struct ctl *ctl, const char *what, const char *name)
{
    char line[512];
    if (ctl->yes) return -1;
    if (!isatty(STDIN_FILENO))
        return ctl_usage_fail(ctl, "%s cannot be brought back: without a terminal say --yes", what);
    fprintf(stderr, "%s cannot be brought back. To go on, type %s: ", what, name);
    fflush(stderr);
    if (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, name) == 0) return -1;
    }
    return ctl_fail(CAIRN_ERR_CANCELED, "nothing was done");
}

/* ==== interrupt ==== */

/* The line printed when a signal interrupts the command. */

static char farewell[512];

static void on_signal_interrupt(int signal)
{
    (void)signal;
    const ssize_t written = write(STDERR_FILENO, farewell, strlen(farewell));
    (void)written;
    _exit(130);
}

void ctl_on_interrupt(const char *fmt, ...)
{
    const struct sigaction action = { .sa_handler = on_signal_interrupt };
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(farewell, sizeof farewell, fmt, arguments);
    va_end(arguments);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ==== absolute ==== */

/* Makes paths absolute, because the coordinator, which opens these paths, runs in another
 * folder. */

int ctl_absolute(const char *what, const char *path, char out[static PATH_MAX])
{
    char here[PATH_MAX] = "";
    const bool relative = path[0] != '/';
    if (relative && getcwd(here, sizeof here) == NULL)
        return ctl_fail(CAIRN_ERR_IO, "the working folder: %s", strerror(errno));
    const int n = snprintf(out, PATH_MAX, "%s%s%s", here, relative ? "/" : "", path);
    if (n < PATH_MAX) return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "%s %.60s...: it is too long", what, path);
}

/* ==== connection ==== */

/* The command's single request, over the same kind of connection as calls of the library
 * (client/admin.h). */

int ctl_fail(cairn_status status, const char *fmt, ...)
{
    va_list arguments;
    va_start(arguments, fmt);
    fprintf(stderr, "cairn: ");
    vfprintf(stderr, fmt, arguments);
    fprintf(stderr, " [CAIRN-E%04d]\n", (int)status);
    va_end(arguments);
    return status_exit((int)status);
}

/* Prints for whom a snapshot or digest waits, if the awaited processes are away, or if the snapshot
 * or digest is late. Prints this only once. */
static void on_awaited(void *context, const Cairn__Awaited *awaited, bool is_late)
{
    struct ctl *ctl = context;
    const bool worth = awaited->text[0] != '\0' && (awaited->away || is_late);
    if (!worth || ctl->call.awaited_said) return;
    fprintf(stderr, "cairn: %s: waits for %s\n", ctl->words, awaited->text);
    ctl->call.awaited_said = true;
}

cairn_status ctl_call_paged(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                            uint16_t reply_type, ProtobufCMessage **reply_out, struct paged *pages)
{
    char name[CAIRN_NAME_MAX];
    struct sentence why;
    snprintf(name, sizeof name, "cairn %s, pid %ld", ctl->words, (long)getpid());
    if (ctl->call.timeout_ms == 0) ctl->call.timeout_ms = 30000;
    ctl_output_begin(ctl);
    struct admin admin = {
        .endpoint = ctl->endpoint,
        .token_file = ctl->token_file,
        .name = name,
        .build = ctl->program->build,
        .advice = ", is --endpoint or CAIRN_ENDPOINT right? (without them it is looked for in "
                  "$XDG_RUNTIME_DIR/cairn and /run/cairn)",
        .timeout_ms = ctl->call.timeout_ms,
        .cut_of = ctl->call.cut_of,
        .on_awaited = on_awaited,
        .context = ctl,
    };
    const cairn_status status = admin_call(&admin, type, message, reply_type, reply_out, pages,
                                           &why);
    const bool passes = status == CAIRN_ERR_UNREACHABLE || status == CAIRN_ERR_TIMEOUT;
    if (status != CAIRN_OK && ctl->call.failed != NULL)
        *ctl->call.failed = why;
    else if (status != CAIRN_OK && !(passes && ctl->call.tries_again))
        ctl_fail(status, "%s", why.text);
    return status;
}

cairn_status ctl_call(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                      uint16_t reply_type, ProtobufCMessage **reply_out)
{
    return ctl_call_paged(ctl, type, message, reply_type, reply_out, NULL);
}

/* Fills one field of the request. -1: continue; else the exit status. */
static int fill_field(struct ctl *ctl, ProtobufCMessage *request, const char *word)
{
    static char path[PATH_MAX];
    char name[64], options[128];
    const char *value = strchr(word, '=') + 1;
    const int argument = value[1] >= '0' && value[1] <= '9' ? value[1] - '0' : -1;
    snprintf(name, sizeof name, "%.*s", (int)(value - 1 - word), word);
    snprintf(options, sizeof options, "%s", value + 1);
    for (char *comma; (comma = strchr(options, ',')) != NULL;) *comma = ' ';
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
        request->descriptor, name);
    void *to = (char *)request + field->offset;
    if (value[0] == '/') {
        *(char **)to = path;
        return ctl_absolute(ctl->row->arguments, ctl->argv[argument], path);
    }
    if (field->type == PROTOBUF_C_TYPE_STRING && argument >= 0) {
        if (ctl->argc > argument) *(char **)to = ctl->argv[argument];
    } else if (field->type == PROTOBUF_C_TYPE_UINT32) {
        *(uint32_t *)to = (uint32_t)ctl_option_number(ctl, options);
    } else if (field->type == PROTOBUF_C_TYPE_UINT64) {
        *(uint64_t *)to = ctl_option_number(ctl, options);
    } else {
        *(protobuf_c_boolean *)to = value[0] == '1' ||
                                    ctl_is_given(ctl, options) == (value[0] == '@');
    }
    return -1;
}

/* Returns the reply as a new object: with the question's fields, "*" being those of the reply's type. */
static json_t *reply_json(struct ctl *ctl, const struct ctl_question *q, const void *reply)
{
    if (q->json != NULL) return q->json(ctl, reply);
    const bool has_all = q->fields == NULL || q->fields[0] == '*';
    json_t *object = has_all ? ctl_json(reply) : json_object();
    if (q->fields != NULL) ctl_json_add(object, reply, q->fields + (has_all ? strlen("* ") : 0));
    return object;
}

static void print_reply(struct ctl *ctl, const struct ctl_question *q, const void *reply)
{
    const char *page = ctl->quiet ? q->quiet : q->page;
    if (ctl->json && !(ctl->quiet && q->quiet_hides_all))
        ctl_print_json(reply_json(ctl, q, reply));
    else if (!ctl->json && page != NULL)
        ctl_page(reply, page);
}

static int ask_by(struct ctl *ctl, const struct ctl_question *q, const ProtobufCMessage *request)
{
    ProtobufCMessage *reply;
    const int refused = q->confirm != NULL ? ctl_confirm(ctl, q->confirm, ctl->argv[ctl->argc - 1])
                                           : -1;
    if (refused >= 0) return refused;
    if (q->awaits) ctl->call.cut_of = ctl->argv[0];
    if (q->farewell != NULL) ctl_on_interrupt("%s", q->farewell);
    const cairn_status called = ctl_call(ctl, q->type, request, q->reply_type, &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    int status = q->show != NULL ? q->show(ctl, reply) : -1;
    if (status < 0) {
        print_reply(ctl, q, reply);
        status = q->after != NULL ? q->after(ctl, reply) : 0;
    }
    message_free(reply);
    return status;
}

int ctl_ask(struct ctl *ctl, const struct ctl_question *q)
{
    char words[256], *rest = words;
    int done = -1;
    ProtobufCMessage *request = malloc(q->request->sizeof_message);
    if (request == NULL) return ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    if (ctl->call.timeout_ms == 0)
        ctl->call.timeout_ms = q->timeout_ms; // also for what fill_by asks
    q->request->message_init(request);
    snprintf(words, sizeof words, "%s", q->fill);
    for (char *word; done < 0 && (word = strsep(&rest, " ")) != NULL && word[0] != '\0';)
        done = fill_field(ctl, request, word);
    if (done < 0 && q->fill_by != NULL) done = q->fill_by(ctl, request);
    if (done < 0) done = ask_by(ctl, q, request);
    free(request);
    return done;
}

/* ==== watch ==== */

/* --watch and `job top`: repeat a command until it is interrupted. */

#define HOME_AND_CLEAR "\033[H\033[J"

/* Exits immediately, even during a call to a coordinator that does not answer. An incomplete screen is not
 * shown. */
static void on_signal_watch(int signal)
{
    (void)signal;
    _exit(130);
}

int ctl_watch(struct ctl *ctl, int (*run)(struct ctl *ctl))
{
    static char buffer[1 << 16];
    const bool is_terminal = isatty(STDOUT_FILENO) == 1;
    const struct sigaction action = { .sa_handler = on_signal_watch };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer); // show a complete screen at once
    for (bool first = true;; first = false) {
        if (is_terminal)
            printf(HOME_AND_CLEAR);
        else if (!first)
            printf("\n");
        const int status = run(ctl);
        if (fflush(stdout) != 0) return 1; // nobody reads the output
        // An unreachable coordinator may come back, as after a restart.
        if (status != 0 && (first || status != status_exit(CAIRN_ERR_UNREACHABLE))) return status;
        poll(NULL, 0, (int)(ctl->times.every_s * 1000));
    }
}

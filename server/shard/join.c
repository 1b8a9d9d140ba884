#include "server/shard/join.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "proto/base/durable.h"
#include "proto/loop/loop.h"
#include "server/base/daemon.h"

/* ==== the folders ==== */

/* STATE/NAME, cut off if it is too long: then no file has that name. */
static void path_in(const char *folder, const char *name, char path_out[PATH_MAX])
{
    snprintf(path_out, PATH_MAX, "%.3000s/%.1000s", folder, name);
}

void join_state_folder(const char *configured, char folder_out[PATH_MAX])
{
    const char *state = getenv("STATE_DIRECTORY"), *xdg = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    if (configured[0] != '\0')
        snprintf(folder_out, PATH_MAX, "%s", configured);
    else if (state != NULL && state[0] == '/')
        snprintf(folder_out, PATH_MAX, "%.*s", (int)strcspn(state, ":"), state);
    else if (geteuid() == 0)
        snprintf(folder_out, PATH_MAX, "/var/lib/cairn");
    else if (xdg != NULL && xdg[0] == '/')
        path_in(xdg, "cairn", folder_out);
    else
        path_in(home != NULL ? home : "", ".local/state/cairn", folder_out);
}

void join_token(const char *state, char path_out[PATH_MAX])
{
    path_in(state, "token", path_out);
    if (access(path_out, F_OK) != 0 && access(CAIRN_JOIN_FOLDER "/token", F_OK) == 0)
        path_in(CAIRN_JOIN_FOLDER, "token", path_out);
}

static bool read_address(const char *folder, char *text_out, size_t text_bytes)
{
    char path[PATH_MAX];
    path_in(folder, "coordinator", path);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const bool is_read = fgets(text_out, (int)text_bytes, file) != NULL;
    fclose(file);
    if (is_read) text_out[strcspn(text_out, "\n")] = '\0';
    return is_read && text_out[0] != '\0';
}

void join_address(const char *state, char *text_out, size_t text_bytes)
{
    if (!read_address(state, text_out, text_bytes) &&
        !read_address(CAIRN_JOIN_FOLDER, text_out, text_bytes))
        text_out[0] = '\0';
}

/* Makes the folder, which other users of this host may look into, and those above it that are missing. */
static cairn_status make_folder(const char *folder, struct sentence *why)
{
    struct sentence inner = { "" };
    if (durable_folder(folder, 0755, &inner) == CAIRN_OK) return CAIRN_OK;
    return fail_with(
        why, CAIRN_ERR_CONFIG,
        "the folder %.200s cannot be made: %s; set shard.state to a folder of this user", folder,
        inner.text);
}

/* ==== the node's key ==== */

/* The file has the form of a token's, with its checksum, and is judged as one: its secret is the secret half
 * of the key, its pin that of the public half. */
static cairn_status make_key(const char *state, const char *path, struct curve_key *key_out,
                             struct sentence *why)
{
    struct token file = { .id = { 0 } };
    struct sentence inner = { "" };
    CAIRN_TRY(make_folder(state, why));
    curve_key_make(key_out);
    memcpy(file.secret, key_out->secret, sizeof file.secret);
    curve_pin(key_out->open, file.pin);
    const cairn_status status = token_write_file(path, &file, &inner);
    sodium_memzero(&file, sizeof file);
    if (status == CAIRN_OK) return CAIRN_OK;
    return fail_with(
        why, CAIRN_ERR_CONFIG,
        "the key of this shard cannot be kept: %s; set shard.state to a folder of this "
        "user",
        inner.text);
}

cairn_status join_node_key(const char *state, const char *name, struct curve_key *key_out,
                           struct sentence *why)
{
    char path[PATH_MAX], file_name[CAIRN_NAME_MAX + 8];
    struct token file;
    uint8_t pin[CAIRN_PIN_BYTES];
    snprintf(file_name, sizeof file_name, "%s.key", name);
    path_in(state, file_name, path);
    const cairn_status status = token_read_file(path, &file, why);
    if (status == CAIRN_ERR_NOT_FOUND) return make_key(state, path, key_out, why);
    if (status != CAIRN_OK) return status;
    memcpy(key_out->secret, file.secret, sizeof key_out->secret);
    crypto_scalarmult_curve25519_base(key_out->open, key_out->secret);
    curve_pin(key_out->open, pin);
    const bool is_key = memcmp(pin, file.pin, sizeof pin) == 0;
    sodium_memzero(&file, sizeof file);
    if (is_key) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_MALFORMED,
                     "%.300s is no key of a shard; remove it, and have the cluster's operator let "
                     "go of the name %.60s (cairn key revoke shard:%.60s)",
                     path, name, name);
}

/* ==== --join ==== */

#define JOIN_MS   10000
#define SETTLE_MS 300 /* who is refused after the handshake hears it within a round trip */

struct join {
    struct token token;
    struct endpoints endpoints;
    char address_text[CAIRN_ENDPOINTS_TEXT_BYTES]; /* of all of them */
    char folder[PATH_MAX];
    uv_timer_t settled;
    struct stream *stream;
    cairn_status status;
    struct sentence why;
};

static int complain(cairn_status status, const char *sentence)
{
    fprintf(stderr, "cairn-shard: %s\n", sentence);
    return status_exit((int)status);
}

/* Writes over the word, so that `ps` shows it no longer. */
static void wipe_word(char *word)
{
    sodium_memzero(word, strlen(word));
}

static cairn_status read_token_line(struct token *token_out, struct sentence *why)
{
    char line[2 * CAIRN_TOKEN_TEXT_BYTES] = "";
    if (fgets(line, sizeof line, stdin) == NULL)
        return fail_with(why, CAIRN_ERR_MALFORMED, "there is no token on standard input");
    const cairn_status status = token_parse(line, token_out, why);
    sodium_memzero(line, sizeof line);
    return status;
}

/* TOKEN is the word, "-" for standard input, or a file. */
static cairn_status take_token(char *given, struct token *token_out, struct sentence *why)
{
    if (strcmp(given, "-") == 0) return read_token_line(token_out, why);
    if (strchr(given, '/') != NULL || access(given, F_OK) == 0)
        return token_read_file(given, token_out, why);
    const cairn_status status = token_parse(given, token_out, why);
    wipe_word(given);
    return status;
}

/* HOST, HOST:PORT, [v6 address] or [v6 address]:PORT, or several of these with commas. */
static cairn_status take_addresses(const char *given, struct join *join, struct sentence *why)
{
    struct sentence all = { "" };
    for (const char *at = given;; at++) {
        const size_t length = strcspn(at, ",");
        const bool has_port = memchr(at, ':', length) != NULL && at[length - 1] != ']';
        sentence_add(&all, has_port ? "%s%.*s" : "%s%.*s:%d", at == given ? "" : ",", (int)length,
                     at, CAIRN_JOIN_PORT);
        at += length;
        if (*at == '\0') break;
    }
    CAIRN_TRY(endpoints_parse(all.text, &join->endpoints, why));
    for (size_t i = 0; i < join->endpoints.count; i++)
        if (join->endpoints.list[i].is_unix)
            return fail_with(
                why, CAIRN_ERR_INVALID,
                "%.200s is a socket of this host, for which no token is needed: start the "
                "shard with shard.coordinator = %.200s",
                given, given);
    endpoints_print(&join->endpoints, join->address_text);
    return CAIRN_OK;
}

static void end_join(struct join *join, cairn_status status, const char *why)
{
    if (!uv_is_closing((uv_handle_t *)&join->settled))
        uv_close((uv_handle_t *)&join->settled, NULL);
    if (join->why.text[0] == '\0' && status != CAIRN_OK) {
        join->status = status;
        sentence_set(&join->why, "%s", why);
    }
    if (join->stream != NULL) stream_close(join->stream, CAIRN_OK, "asked");
}

static void on_settled(uv_timer_t *timer)
{
    end_join(timer->data, CAIRN_OK, "");
}

static void on_open(struct stream *stream, void *context)
{
    struct join *join = context;
    (void)stream;
    uv_timer_start(&join->settled, on_settled, SETTLE_MS, 0);
}

static void on_frame(struct stream *stream, const struct wire_frame *frame, void *context)
{
    ProtobufCMessage *message = message_unpack(&cairn__error__descriptor, frame->payload,
                                               frame->payload_bytes);
    (void)stream;
    if (message != NULL) message_mend(message);
    end_join(context, CAIRN_ERR_REFUSED,
             message != NULL ? ((const Cairn__Error *)message)->text
                             : "it refused without a reason");
    message_free(message);
}

static void on_close(struct stream *stream, cairn_status status, const char *why, void *context)
{
    struct join *join = context;
    (void)stream;
    join->stream = NULL;
    end_join(join, status == CAIRN_ERR_PROTOCOL ? CAIRN_ERR_REFUSED : status, why);
}

/* Connects once, which shows that the coordinator is the token's and knows the token. */
static cairn_status try_token(struct join *join, const struct stream_address *address)
{
    static const struct stream_events events = { .on_open = on_open,
                                                 .on_frame = on_frame,
                                                 .on_close = on_close };
    struct entrance entrance = { .is_needed = true, .has_key = true, .token = join->token };
    struct handshake_options secure;
    const struct stream_options options = {
        .limits = { CAIRN_MSG_ERROR, CAIRN_MSG_ERROR, CAIRN_FRAME_HELLO_BYTES },
        .secure = entrance_secure(&entrance, &secure),
    };
    uv_loop_t loop;
    curve_key_make(&entrance.key);
    if (uv_loop_init(&loop) != 0)
        return fail_with(&join->why, CAIRN_ERR_NO_MEMORY, "no event loop");
    uv_timer_init(&loop, &join->settled);
    join->settled.data = join;
    const cairn_status status = stream_connect(&loop, address, JOIN_MS / join->endpoints.count,
                                               &options, &events, join, &join->stream, &join->why);
    entrance_wipe(&entrance);
    sodium_memzero(&secure, sizeof secure);
    if (status != CAIRN_OK) end_join(join, status, join->why.text);
    uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    return status != CAIRN_OK ? status : join->status;
}

/* Tries the coordinators one after the other: those that stand by do not let themselves be reached. */
static cairn_status try_each(struct join *join)
{
    cairn_status status = CAIRN_ERR_UNREACHABLE;
    do {
        join->status = CAIRN_OK;
        join->why.text[0] = '\0';
        status = try_token(join, endpoints_next(&join->endpoints));
    } while ((status == CAIRN_ERR_UNREACHABLE || status == CAIRN_ERR_TIMEOUT) &&
             !endpoints_are_tried(&join->endpoints));
    return status;
}

static cairn_status write_files(const struct join *join, struct sentence *why)
{
    char path[PATH_MAX], line[CAIRN_ENDPOINTS_TEXT_BYTES + 1];
    CAIRN_TRY(make_folder(join->folder, why));
    path_in(join->folder, "token", path);
    CAIRN_TRY(token_write_file(path, &join->token, why));
    path_in(join->folder, "coordinator", path);
    const int count = snprintf(line, sizeof line, "%s\n", join->address_text);
    return durable_write(path, 0644, line, (size_t)count, why);
}

static int usage(void)
{
    fprintf(
        stderr,
        "cairn-shard: write cairn-shard --join HOST[:PORT][,HOST[:PORT]]... TOKEN [--state "
        "FOLDER]; TOKEN is the "
        "word that `cairn cluster init` printed, a file that has it, or - for standard input\n");
    return 2;
}

static void say_what_next(const struct join *join)
{
    const bool is_root = strcmp(join->folder, CAIRN_JOIN_FOLDER) == 0;
    printf("%s is the token's coordinator, and knows this token.\n"
           "Wrote %s/token and %s/coordinator. Now start a shard: %s\n",
           join->address_text, join->folder, join->folder,
           is_root ? "systemctl enable --now cairn-shard@0" : "cairn-shard --set shard.name=NAME");
}

int join_main(int argc, char **argv)
{
    static struct join join;
    struct sentence why = { "" };
    if (argc != 4 && !(argc == 6 && strcmp(argv[4], "--state") == 0)) return usage();
    cairn_status status = take_token(argv[3], &join.token, &why);
    if (status == CAIRN_OK) status = take_addresses(argv[2], &join, &why);
    if (argc == 6)
        snprintf(join.folder, sizeof join.folder, "%s", argv[5]);
    else if (geteuid() == 0 && getenv("STATE_DIRECTORY") == NULL)
        snprintf(join.folder, sizeof join.folder, "%s", CAIRN_JOIN_FOLDER);
    else
        join_state_folder("", join.folder);
    if (status == CAIRN_OK && (status = try_each(&join)) != CAIRN_OK) why = join.why;
    if (status == CAIRN_OK) status = write_files(&join, &why);
    if (status == CAIRN_OK) say_what_next(&join);
    sodium_memzero(&join.token, sizeof join.token);
    return status == CAIRN_OK ? 0 : complain(status, why.text);
}

#include "proto/secure/secure.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/durable.h"

/* ==== keys ==== */

void curve_key_make(struct curve_key *out)
{
    if (sodium_init() < 0) abort(); // there are no random numbers
    randombytes_buf(out->secret, sizeof out->secret);
    crypto_scalarmult_curve25519_base(out->open, out->secret);
}

void curve_key_wipe(struct curve_key *key)
{
    sodium_memzero(key, sizeof *key);
}

void curve_pin(const uint8_t open[CAIRN_CURVE_BYTES], uint8_t pin_out[CAIRN_PIN_BYTES])
{
    static const char for_pin[crypto_generichash_blake2b_PERSONALBYTES + 1] = "cairn: curve pin";
    crypto_generichash_blake2b_salt_personal(pin_out, CAIRN_PIN_BYTES, open, CAIRN_CURVE_BYTES,
                                             NULL, 0, NULL, (const uint8_t *)for_pin);
}

/* ==== token as text ==== */

/* The letters are Crockford's: without I, L, O and U. I and L are read as 1, and O as 0. */
static const char prefix[] = "cairn1-";
static const char letters[] = "0123456789abcdefghjkmnpqrstvwxyz";

enum {
    PREFIX_BYTES = sizeof prefix - 1,
    VERSION_AT = 5, /* of the digit in the prefix */
    SUM_BYTES = 4,
    PIN_AT = CAIRN_PSK_ID_BYTES,
    SECRET_AT = PIN_AT + CAIRN_PIN_BYTES,
    BODY_BYTES = SECRET_AT + CAIRN_PSK_BYTES,
    PACKED_BYTES = BODY_BYTES + SUM_BYTES,
    LETTERS = PACKED_BYTES * 8 / 5,
    LINE_BYTES_MAX = 1024, /* of a token's file */
};
_Static_assert(PACKED_BYTES % 5 == 0, "no letter has bits to spare");
_Static_assert(PREFIX_BYTES + LETTERS < CAIRN_TOKEN_TEXT_BYTES, "room for a NUL");

/* CRC-32 (IEEE 802.3). A wrong letter, or two that changed places, are an error of at most ten bits in a row,
 * and every such error of up to 32 bits is found. Against strangers it does nothing, and need not. */
static uint32_t sum_of(const uint8_t *bytes, size_t count)
{
    uint32_t sum = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        sum ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) sum = (sum >> 1) ^ (0xedb88320u & (0u - (sum & 1)));
    }
    return ~sum;
}

void token_print(const struct token *token, char text_out[CAIRN_TOKEN_TEXT_BYTES])
{
    uint8_t packed[PACKED_BYTES];
    memcpy(packed, token->id, sizeof token->id);
    memcpy(packed + PIN_AT, token->pin, sizeof token->pin);
    memcpy(packed + SECRET_AT, token->secret, sizeof token->secret);
    le_put(packed + BODY_BYTES, sum_of(packed, BODY_BYTES), SUM_BYTES);
    memcpy(text_out, prefix, PREFIX_BYTES);
    for (size_t i = 0; i < LETTERS; i++) {
        unsigned letter = 0;
        for (size_t bit = 5 * i; bit < 5 * i + 5; bit++)
            letter = letter << 1 | ((unsigned)packed[bit / 8] >> (7 - bit % 8) & 1u);
        text_out[PREFIX_BYTES + i] = letters[letter];
    }
    text_out[PREFIX_BYTES + LETTERS] = '\0';
    sodium_memzero(packed, sizeof packed);
}

/* -1: no letter of a token. */
static int value_of(char letter)
{
    char low = (char)tolower((unsigned char)letter);
    if (low == 'i' || low == 'l') low = '1';
    if (low == 'o') low = '0';
    const char *found = low != '\0' ? strchr(letters, low) : NULL;
    return found != NULL ? (int)(found - letters) : -1;
}

/* Returns the number of the first letter that is none, from 1; 0: all are letters. */
static size_t unpack(const char *text, uint8_t packed_out[PACKED_BYTES])
{
    memset(packed_out, 0, PACKED_BYTES);
    for (size_t i = 0; i < LETTERS; i++) {
        const int value = value_of(text[i]);
        if (value < 0) return i + 1;
        for (size_t b = 0; b < 5; b++)
            packed_out[(5 * i + b) / 8] |= (uint8_t)((value >> (4 - b) & 1)
                                                     << (7 - (5 * i + b) % 8));
    }
    return 0;
}

static cairn_status malformed(struct sentence *why, const char *what)
{
    return fail_with(why, CAIRN_ERR_MALFORMED, "%s", what);
}

/* Cuts the blanks off both sides. */
static const char *trim(const char *text, size_t *count_out)
{
    while (isspace((unsigned char)*text)) text++;
    size_t count = strlen(text);
    while (count > 0 && isspace((unsigned char)text[count - 1])) count--;
    *count_out = count;
    return text;
}

/* Judges the form of `text`, which has `count` letters. */
static cairn_status check_form(const char *text, size_t count, struct sentence *why)
{
    const bool is_token = count >= VERSION_AT && strncasecmp(text, prefix, VERSION_AT) == 0;
    if (count == 0) return malformed(why, "there is no token: it is empty; copy the whole word");
    if (!is_token)
        return malformed(why, "this is no token of Cairn: one begins with cairn1- (cairn cluster "
                              "init prints it, and cairn key add)");
    if (count >= PREFIX_BYTES && text[PREFIX_BYTES - 1] == '-' && text[VERSION_AT] != '1')
        return malformed(why, "this token is of another version of Cairn: this one reads tokens "
                              "that begin with cairn1-; install the same version on all hosts");
    if (count >= PREFIX_BYTES && strncasecmp(text, prefix, PREFIX_BYTES) != 0)
        return malformed(why, "this token has a typing error in its beginning, which is cairn1-; "
                              "copy it again");
    if (count != PREFIX_BYTES + LETTERS)
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "this token %s: it has %zu characters, and a whole one %d; copy it again",
                         count < PREFIX_BYTES + LETTERS ? "is cut off" : "has too much in it",
                         count, PREFIX_BYTES + LETTERS);
    return CAIRN_OK;
}

cairn_status token_parse(const char *text, struct token *token_out, struct sentence *why)
{
    uint8_t packed[PACKED_BYTES];
    size_t count;
    text = trim(text, &count);
    CAIRN_TRY(check_form(text, count, why));
    const size_t wrong = unpack(text + PREFIX_BYTES, packed);
    cairn_status status = CAIRN_OK;
    if (wrong > 0)
        status = fail_with(why, CAIRN_ERR_MALFORMED,
                           "this token has a typing error: character %zu is none that a token has; "
                           "copy it again",
                           PREFIX_BYTES + wrong);
    else if (le_get(packed + BODY_BYTES, SUM_BYTES) != sum_of(packed, BODY_BYTES))
        status = malformed(why, "this token has a typing error: its checksum does not match; copy "
                                "it again");
    if (status == CAIRN_OK) {
        memcpy(token_out->id, packed, sizeof token_out->id);
        memcpy(token_out->pin, packed + PIN_AT, sizeof token_out->pin);
        memcpy(token_out->secret, packed + SECRET_AT, sizeof token_out->secret);
    }
    sodium_memzero(packed, sizeof packed);
    return status;
}

/* ==== token in a file ==== */

static bool is_trusted(uid_t owner)
{
    return owner == geteuid() || owner == 0;
}

/* May others read or write the file? The mode of a credential of systemd has the group's read bit, which
 * there is the mask of an access list that names this user alone. */
static cairn_status check_mode(const char *path, const struct stat *info, bool is_credential,
                               struct sentence *why)
{
    const unsigned mode = info->st_mode & 07777, shut = is_credential ? 0037 : 0077;
    if (S_ISDIR(info->st_mode))
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%.300s is a folder: name the file in it that has the token", path);
    if (!S_ISREG(info->st_mode))
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%.300s is no regular file: put the token into one", path);
    if (!is_trusted(info->st_uid))
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%.300s belongs to the user %u, who could put another token there: chown "
                         "it to this user (%u), or to root",
                         path, (unsigned)info->st_uid, (unsigned)geteuid());
    if ((mode & shut) != 0)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%.300s has the mode %04o, so others may read the token or write it: "
                         "chmod 600 %.300s; if others could read it for long, revoke the token "
                         "(cairn key revoke) and make another (cairn key add)",
                         path, mode, path);
    return CAIRN_OK;
}

/* Reads the only line of an open file. line_out: [LINE_BYTES_MAX + 1]. */
static cairn_status read_line(int fd, const char *path, char *line_out, struct sentence *why)
{
    const ssize_t got = read_fully(fd, line_out, LINE_BYTES_MAX + 1);
    if (got < 0)
        return fail_with(why, CAIRN_ERR_IO, "reading %.300s failed: %s", path, strerror(errno));
    size_t count = (size_t)got;
    while (count > 0 && isspace((unsigned char)line_out[count - 1])) count--;
    const bool is_long = got > LINE_BYTES_MAX;
    if (count == 0)
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "%.300s is empty: put the token into it, as one line", path);
    if (memchr(line_out, '\n', count) != NULL)
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "%.300s has more than one line: leave the line of the token alone in it",
                         path);
    if (is_long || memchr(line_out, '\0', count) != NULL)
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "%.300s has no token: put the token into it, as one line", path);
    line_out[count] = '\0';
    return CAIRN_OK;
}

static cairn_status fail_open(const char *path, struct sentence *why)
{
    if (errno == ENOENT || errno == ENOTDIR)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "there is no file %.300s", path);
    return fail_with(why, errno == EACCES ? CAIRN_ERR_REFUSED : CAIRN_ERR_IO,
                     "opening %.300s failed: %s%s", path, strerror(errno),
                     errno == EACCES ? "; this user has to own the token's file" : "");
}

/* True if nobody but this user and root can choose where a symbolic link leads: a secret that Kubernetes
 * mounts is one of root, in a sticky folder of root. */
static bool link_is_ours(const char *path)
{
    char folder[PATH_MAX];
    struct stat link, parent;
    path_parent(path, folder);
    if (lstat(path, &link) != 0 || stat(folder, &parent) != 0) return false;
    const bool is_shut = (parent.st_mode & 0022) == 0 || (parent.st_mode & S_ISVTX) != 0;
    return is_trusted(link.st_uid) && is_trusted(parent.st_uid) && is_shut;
}

static cairn_status open_token(const char *path, int *fd_out, struct sentence *why)
{
    const int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;
    *fd_out = open(path, flags | O_NOFOLLOW);
    if (*fd_out < 0 && errno == ELOOP) {
        if (!link_is_ours(path))
            return fail_with(why, CAIRN_ERR_REFUSED,
                             "%.300s is a symbolic link, whose target others might choose: name "
                             "the file itself, or let nobody else write to the link's folder",
                             path);
        *fd_out = open(path, flags);
    }
    return *fd_out < 0 ? fail_open(path, why) : CAIRN_OK;
}

/* Where a unit has no token to load, it sets this word (SetCredential=): there is none. */
static bool is_none(const char *line)
{
    return strcmp(line, "none") == 0;
}

static cairn_status read_token(const char *path, bool is_credential, struct token *token_out,
                               struct sentence *why)
{
    char line[LINE_BYTES_MAX + 1];
    struct stat info;
    struct sentence said;
    int fd;
    cairn_status status = open_token(path, &fd, why);
    if (status != CAIRN_OK) return status;
    if (fstat(fd, &info) != 0)
        status = fail_with(why, CAIRN_ERR_IO, "fstat of %.300s failed: %s", path, strerror(errno));
    if (status == CAIRN_OK) status = check_mode(path, &info, is_credential, why);
    if (status == CAIRN_OK) status = read_line(fd, path, line, why);
    close(fd);
    if (status == CAIRN_OK && is_credential && is_none(line))
        status = fail_with(why, CAIRN_ERR_NOT_FOUND, "%.300s has no token", path);
    if (status == CAIRN_OK && (status = token_parse(line, token_out, &said)) != CAIRN_OK)
        sentence_set(why, "%.300s: %s", path, said.text);
    sodium_memzero(line, sizeof line);
    return status;
}

cairn_status token_read_file(const char *path, struct token *token_out, struct sentence *why)
{
    return read_token(path, false, token_out, why);
}

cairn_status token_write_file(const char *path, const struct token *token, struct sentence *why)
{
    char line[CAIRN_TOKEN_TEXT_BYTES + 1];
    token_print(token, line);
    const size_t length = strlen(line);
    line[length] = '\n';
    const cairn_status status = durable_write(path, 0600, line, length + 1, why);
    sodium_memzero(line, sizeof line);
    return status;
}

/* ==== this process's token ==== */

/* Somebody may give the token where its file's name belongs. */
static cairn_status check_path(const char *where, const char *path, struct sentence *why)
{
    if (strncasecmp(path, prefix, VERSION_AT) != 0 || strchr(path, '/') != NULL ||
        strlen(path) < LETTERS)
        return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_REFUSED,
                     "%s holds a token, which others can read there: write the token into a file "
                     "of mode 0600, name the file here, and have the token revoked (cairn key "
                     "revoke) and another made (cairn key add)",
                     where);
}

/* A file that somebody named. */
static cairn_status read_named(const char *where, const char *path, struct token *token_out,
                               struct sentence *why)
{
    struct sentence said;
    CAIRN_TRY(check_path(where, path, why));
    const cairn_status status = token_read_file(path, token_out, &said);
    if (status != CAIRN_OK) sentence_set(why, "%s: %s", where, said.text);
    return status;
}

/* The file of systemd's LoadCredential=. NOT_FOUND: there is none, or it says so. */
static cairn_status read_credential(struct token *token_out, struct sentence *why)
{
    char path[PATH_MAX];
    const char *folder = getenv("CREDENTIALS_DIRECTORY");
    if (folder == NULL || folder[0] == '\0') return CAIRN_ERR_NOT_FOUND;
    const int bytes = snprintf(path, sizeof path, "%s/cairn-token", folder);
    if (bytes < 0 || (size_t)bytes >= sizeof path) return CAIRN_ERR_NOT_FOUND;
    return read_token(path, true, token_out, why);
}

cairn_status token_find(const char *given, const char *fallback, struct token *token_out,
                        struct sentence *why)
{
    cairn_status status = read_credential(token_out, why);
    if (status != CAIRN_ERR_NOT_FOUND) return status;
    if (given != NULL && given[0] != '\0')
        return read_named("the configured token", given, token_out, why);
    const char *named = getenv("CAIRN_TOKEN_FILE");
    if (named != NULL && named[0] != '\0')
        return read_named("CAIRN_TOKEN_FILE", named, token_out, why);
    if (fallback != NULL) status = token_read_file(fallback, token_out, why);
    if (status != CAIRN_ERR_NOT_FOUND) return status;
    return fail_with(why, CAIRN_ERR_NOT_FOUND,
                     "there is no token: $CREDENTIALS_DIRECTORY has no cairn-token, none is "
                     "configured, CAIRN_TOKEN_FILE names no file%s%.300s%s; get a token (cairn "
                     "cluster init prints one, or cairn key add), write it into a file of mode "
                     "0600, and name the file in CAIRN_TOKEN_FILE",
                     fallback != NULL ? ", and " : "", fallback != NULL ? fallback : "",
                     fallback != NULL ? " does not exist" : "");
}

/* ==== identity ==== */

static const struct {
    uint32_t bit;
    const char *word;
} roles_by_word[] = {
    { CAIRN_MAY_WORK, "worker" }, { CAIRN_MAY_READ, "reader" },     { CAIRN_MAY_SHARD, "shard" },
    { CAIRN_MAY_ADMIN, "admin" }, { CAIRN_MAY_MONITOR, "monitor" },
};
enum { ROLES = sizeof roles_by_word / sizeof *roles_by_word, ROLES_TEXT_BYTES = 64 };

void roles_print(uint32_t roles, char text_out[ROLES_TEXT_BYTES])
{
    size_t used = 0;
    snprintf(text_out, ROLES_TEXT_BYTES, "none");
    for (size_t i = 0; i < ROLES; i++)
        if ((roles & roles_by_word[i].bit) != 0)
            used += (size_t)snprintf(text_out + used, ROLES_TEXT_BYTES - used, "%s%s",
                                     used > 0 ? "," : "", roles_by_word[i].word);
}

/* The bit of a word of `count` bytes; 0: unknown. */
static uint32_t role_of(const char *word, size_t count)
{
    for (size_t i = 0; i < ROLES; i++)
        if (strlen(roles_by_word[i].word) == count &&
            strncmp(word, roles_by_word[i].word, count) == 0)
            return roles_by_word[i].bit;
    return 0;
}

bool roles_parse(const char *text, uint32_t *roles_out)
{
    uint32_t roles = 0;
    for (;;) {
        while (*text == ' ') text++;
        const size_t count = strcspn(text, ", ");
        const uint32_t bit = role_of(text, count);
        if (bit == 0) return false;
        roles |= bit;
        text += count;
        while (*text == ' ') text++;
        if (*text == '\0') break;
        if (*text++ != ',') return false;
    }
    *roles_out = roles;
    return true;
}

#include "server/base/daemon.h"

#include <assert.h>
#include <errno.h>
#include <ini.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/loop/loop.h"

#define LINE_BYTES    4096 // the longest line of a file, with its newline
#define GIVEN_BY_LINE (-1) // the value was given on the command line

/* ==== config value ==== */

struct unit {
    const char *name;
    int64_t factor;
};

static const struct unit byte_units[] = {
    { "TiB", INT64_C(1) << 40 }, { "GiB", 1 << 30 }, { "MiB", 1 << 20 },
    { "KiB", 1 << 10 },          { "B", 1 },         { NULL, 0 },
};
static const struct unit time_units[] = {
    { "h", 3600000 }, { "min", 60000 }, { "s", 1000 }, { "ms", 1 }, { NULL, 0 },
};
static const struct unit no_units[] = { { "", 1 }, { NULL, 0 } };

static const struct unit *units_of(enum option_type type)
{
    if (type == CAIRN_OPTION_BYTES) return byte_units;
    return type == CAIRN_OPTION_DURATION ? time_units : no_units;
}

// Prints a number with the largest unit that divides it: 65536 becomes "64KiB". Prints a factor as it is
// written: 1100 becomes "1.1".
static void print_number(int64_t number, enum option_type type, char *text_out, size_t text_bytes)
{
    const struct unit *unit = units_of(type);
    if (type == CAIRN_OPTION_FACTOR) {
        snprintf(text_out, text_bytes, "%g", (double)number / 1000);
        return;
    }
    while (unit[1].name != NULL && (number == 0 || number % unit->factor != 0)) unit++;
    snprintf(text_out, text_bytes, "%" PRId64 "%s", number / unit->factor, unit->name);
}

/* Describes for people what the option takes: "1 to 4096", "yes or no", "1MiB to 1GiB". */
static void config_value_describe(const struct config_option *option, char *text_out,
                                  size_t text_bytes)
{
    char least[32];
    char most[32];
    switch (option->type) {
    case CAIRN_OPTION_STRING: snprintf(text_out, text_bytes, "a text"); return;
    case CAIRN_OPTION_LINES:
        snprintf(text_out, text_bytes, "a text; the key may be given several times");
        return;
    case CAIRN_OPTION_PATH: snprintf(text_out, text_bytes, "a path"); return;
    case CAIRN_OPTION_ENDPOINTS:
        snprintf(text_out, text_bytes, "host:port or /path, commas between several");
        return;
    case CAIRN_OPTION_ADDRESSES:
        snprintf(text_out, text_bytes, "host:port or /path, blanks between several");
        return;
    case CAIRN_OPTION_BOOL: snprintf(text_out, text_bytes, "yes or no"); return;
    case CAIRN_OPTION_INT:
    case CAIRN_OPTION_BYTES:
    case CAIRN_OPTION_DURATION:
    case CAIRN_OPTION_FACTOR: break;
    }
    print_number(option->min, option->type, least, sizeof least);
    print_number(option->max, option->type, most, sizeof most);
    snprintf(text_out, text_bytes, "%s to %s", least, most);
}

static cairn_status refuse_value(const struct config_option *option, const char *text,
                                 const char *what, struct sentence *why)
{
    char allowed[96];
    config_value_describe(option, allowed, sizeof allowed);
    return fail_with(why, CAIRN_ERR_CONFIG, "%s = \"%.100s\" in [%s]: %s; allowed is %s",
                     option->key, text, option->section, what, allowed);
}

static const char *unit_sentence(enum option_type type)
{
    if (type == CAIRN_OPTION_BYTES) return "a size has a unit, B KiB MiB GiB or TiB (64MiB)";
    if (type == CAIRN_OPTION_DURATION) return "a duration has a unit, ms s min or h (250ms)";
    return "it is not a whole number";
}

// Parses an optional minus, digits, an optional blank, and a unit.
const char *config_read_number(const char *text, enum option_type type, int64_t *number_out)
{
    int64_t number = 0;
    const char *p = text;
    const bool negative = *p == '-';
    if (negative) p++;
    if (*p < '0' || *p > '9') return "it is not a whole number";
    for (; *p >= '0' && *p <= '9'; p++) {
        if (number > (INT64_MAX - 9) / 10) return "the number is too large";
        number = number * 10 + (*p - '0');
    }
    if (*p == ' ') p++;
    const struct unit *unit = units_of(type);
    while (unit->name != NULL && strcmp(unit->name, p) != 0) unit++;
    if (unit->name == NULL && !(number == 0 && *p == '\0')) return unit_sentence(type);
    const int64_t factor = unit->name != NULL ? unit->factor : 1;
    if (number > INT64_MAX / factor) return "the number is too large";
    *number_out = negative ? -number * factor : number * factor;
    return NULL;
}

// Parses digits, and optionally a point and one to three more digits. Returns NULL on success, otherwise
// the error.
static const char *parse_factor(const char *text, int64_t *thousandths_out)
{
    int64_t number = 0;
    const char *p = text;
    int places = -1; // the number of digits after the point; -1: there is no point
    if (*p < '0' || *p > '9') return "it is not a factor such as 1.1";
    for (; (*p >= '0' && *p <= '9') || (*p == '.' && places < 0); p++) {
        if (*p == '.' || places >= 0) places++;
        if (*p == '.') continue;
        if (places > 3) return "a factor has three places behind the point at most";
        if (number > (INT64_MAX / 1000 - 9) / 10) return "the number is too large";
        number = number * 10 + (*p - '0');
    }
    if (*p != '\0' || places == 0) return "it is not a factor such as 1.1";
    for (int i = places < 0 ? 0 : places; i < 3; i++) number *= 10;
    *thousandths_out = number;
    return NULL;
}

static cairn_status store_number(const struct config_option *option, const char *text,
                                 int64_t *place, struct sentence *why)
{
    int64_t number = 0;
    const char *what = option->type == CAIRN_OPTION_FACTOR
                           ? parse_factor(text, &number)
                           : config_read_number(text, option->type, &number);
    if (what != NULL) return refuse_value(option, text, what, why);
    if (number < option->min || number > option->max)
        return refuse_value(option, text, "it is out of range", why);
    *place = number;
    return CAIRN_OK;
}

static cairn_status store_bool(const struct config_option *option, const char *text, bool *place,
                               struct sentence *why)
{
    static const char *const words[] = { "no", "yes", "false", "true", "off", "on" };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *place = i % 2 == 1;
        return CAIRN_OK;
    }
    return refuse_value(option, text, "it is neither yes nor no", why);
}

// Returns NULL if all addresses are valid, otherwise the error.
static const char *judge_addresses(const char *text, struct sentence *what)
{
    char one[CAIRN_ADDRESS_TEXT_BYTES];
    struct stream_address address;
    for (const char *at = text; *(at += strspn(at, " ")) != '\0'; at += strcspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        if (length >= sizeof one) return "an address in it is too long";
        snprintf(one, sizeof one, "%.*s", (int)length, at);
        if (address_parse_listen(one, &address, what) != CAIRN_OK) return what->text;
    }
    return NULL;
}

static const char *judge_string(const struct config_option *option, const char *text,
                                struct sentence *what)
{
    struct endpoints endpoints;
    const bool may_be_empty = option->default_text != NULL && option->default_text[0] == '\0';
    if (option->type == CAIRN_OPTION_PATH && text[0] == '\0') return "it is empty";
    if (option->type == CAIRN_OPTION_ADDRESSES) return judge_addresses(text, what);
    if (option->type != CAIRN_OPTION_ENDPOINTS || (text[0] == '\0' && may_be_empty)) return NULL;
    return endpoints_parse(text, &endpoints, what) == CAIRN_OK ? NULL : what->text;
}

static cairn_status store_string(const struct config_option *option, const char *text, char **place,
                                 struct sentence *why)
{
    struct sentence sentence;
    const char *what = judge_string(option, text, &sentence);
    if (what != NULL) return refuse_value(option, text, what, why);
    char *copy = strdup(text);
    if (copy == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a value");
    free(*place);
    *place = copy;
    return CAIRN_OK;
}

/* Judges `text` as a value of the option. If the value is valid, stores it at the option's place in
 * `values`. CAIRN_ERR_CONFIG: nothing is stored, and the sentence says what is allowed, without file and
 * line. */
static cairn_status config_value_store(const struct config_option *option, const char *text,
                                       void *values, struct sentence *why)
{
    void *place = (char *)values + option->offset;
    if (option->type <= CAIRN_OPTION_ADDRESSES) // the string types come first
        return store_string(option, text, place, why);
    if (option->type == CAIRN_OPTION_BOOL) return store_bool(option, text, place, why);
    return store_number(option, text, place, why);
}

/* ==== configuration ==== */

void config_init(struct config *config, const struct config_option *options, size_t option_count,
                 void *values)
{
    assert(option_count <= CAIRN_CONFIG_OPTIONS_MAX);
    memset(config, 0, sizeof *config);
    config->options = options;
    config->option_count = option_count;
    config->values = values;
    for (size_t i = 0; i < option_count; i++) {
        if (options[i].default_text == NULL) continue;
        const cairn_status status = config_value_store(&options[i], options[i].default_text, values,
                                                       NULL);
        assert(status == CAIRN_OK ||
               status == CAIRN_ERR_NO_MEMORY); // a row accepts its own default
        config->lacks_memory |= status != CAIRN_OK;
    }
}

void config_release(struct config *config)
{
    for (size_t i = 0; i < config->option_count; i++) {
        const struct config_option *option = &config->options[i];
        if (option->type > CAIRN_OPTION_ADDRESSES) continue;
        char **place = (char **)(void *)((char *)config->values + option->offset);
        free(*place);
        *place = NULL;
    }
}

static const struct config_option *find_option(const struct config *config, const char *section,
                                               const char *key)
{
    for (size_t i = 0; i < config->option_count; i++)
        if (strcmp(config->options[i].section, section) == 0 &&
            strcmp(config->options[i].key, key) == 0)
            return &config->options[i];
    return NULL;
}

// True if a section begins at row i. The rows of a section are adjacent, so it begins where the section's
// name changes.
static bool begins_section(const struct config *config, size_t i)
{
    return i == 0 || strcmp(config->options[i].section, config->options[i - 1].section) != 0;
}

/* Keys of former versions, and what has replaced each. */
static const struct {
    const char *section, *key, *instead;
} retired[] = {
    { "network", "insecure_network",
      "connections between hosts are always authenticated and encrypted now, so remove the line; "
      "`cairn cluster init` prints the tokens by which shards and trainers come in" },
};

static const char *find_retired(const char *section, const char *key)
{
    for (size_t i = 0; i < sizeof retired / sizeof *retired; i++)
        if (strcmp(retired[i].section, section) == 0 && strcmp(retired[i].key, key) == 0)
            return retired[i].instead;
    return NULL;
}

static cairn_status refuse_unknown(const struct config *config, const char *section,
                                   const char *key, struct sentence *why)
{
    bool section_known = false;
    const char *instead = find_retired(section, key);
    if (instead != NULL)
        return fail_with(why, CAIRN_ERR_CONFIG, "%s in [%s] is a key of a former version: %s", key,
                         section, instead);
    for (size_t i = 0; i < config->option_count; i++)
        section_known |= strcmp(config->options[i].section, section) == 0;
    if (section_known)
        sentence_set(why, "there is no key \"%.60s\" in [%.60s]; there are:", key, section);
    else if (section[0] == '\0')
        sentence_set(why, "\"%.60s\" stands before any section; sections are:", key);
    else
        sentence_set(why, "there is no section [%.60s]; there are:", section);
    for (size_t i = 0; i < config->option_count; i++) {
        const struct config_option *option = &config->options[i];
        if (section_known && strcmp(option->section, section) == 0)
            sentence_add(why, " %s", option->key);
        if (!section_known && begins_section(config, i))
            sentence_add(why, " [%s]", option->section);
    }
    return CAIRN_ERR_CONFIG;
}

// Adds a line to the value of an option of lines.
static cairn_status add_line(const struct config_option *option, const char *text, void *values,
                             struct sentence *why)
{
    char **place = (char **)(void *)((char *)values + option->offset);
    char *lines;
    if (asprintf(&lines, "%s\n%s", *place, text) < 0)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a value");
    free(*place);
    *place = lines;
    return CAIRN_OK;
}

// Assigns a value. `line` is the line of the file, or GIVEN_BY_LINE. A value from the command line
// overrides the file, and may be given again.
static cairn_status assign(struct config *config, const char *section, const char *key,
                           const char *text, int line, struct sentence *why)
{
    const struct config_option *option = find_option(config, section, key);
    if (option == NULL) return refuse_unknown(config, section, key, why);
    int *given = &config->given[option - config->options];
    const bool is_more = *given != 0 && (*given == GIVEN_BY_LINE) == (line == GIVEN_BY_LINE);
    if (option->type == CAIRN_OPTION_LINES && is_more)
        return add_line(option, text, config->values, why);
    if (line != GIVEN_BY_LINE && *given > 0)
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "%s in [%s] was given before, in line %d; remove one of them", key,
                         section, *given);
    const cairn_status status = config_value_store(option, text, config->values, why);
    if (status == CAIRN_OK) *given = line;
    return status;
}

// A file that is being read. inih does not report line numbers, so they are counted whenever inih asks for
// a line.
struct reading {
    struct config *config;
    FILE *file;
    char *text; /* [text_bytes], allocated by getline */
    size_t text_bytes;
    int line;
    int bad_line; /* the line of the first error that this file found; 0 = none */
    cairn_status status;
    struct sentence why;
};

static void note(struct reading *reading, cairn_status status)
{
    reading->status = status;
    reading->bad_line = reading->line;
}

static char *on_line_wanted(char *room, int room_bytes, void *context)
{
    struct reading *reading = context;
    if (reading->status != CAIRN_OK) return NULL;
    const ssize_t length = getline(&reading->text, &reading->text_bytes, reading->file);
    if (length < 0) return NULL;
    reading->line++;
    if (length >= room_bytes || strlen(reading->text) != (size_t)length) {
        note(reading,
             fail_with(&reading->why, CAIRN_ERR_CONFIG,
                       "the line is longer than %d bytes, or has a NUL in it", room_bytes - 1));
        return NULL;
    }
    memcpy(room, reading->text, (size_t)length + 1);
    return room;
}

static int on_value(void *context, const char *section, const char *key, const char *text)
{
    struct reading *reading = context;
    if (reading->status != CAIRN_OK) return 1;
    const cairn_status status = assign(reading->config, section, key, text, reading->line,
                                       &reading->why);
    if (status != CAIRN_OK) note(reading, status);
    return 1;
}

// The settings of inih are global. This does no harm, because a daemon reads files only at start-up.
static int parse(struct reading *reading)
{
    ini_allow_multiline = false; // an indented line does not continue the line before
    ini_use_stack = false;       // with the stack, a line could have only 200 bytes
    ini_allow_realloc = false;
    ini_initial_alloc = LINE_BYTES;
    ini_max_line = LINE_BYTES;
    return ini_parse_stream(on_line_wanted, reading, on_value, reading);
}

static cairn_status read_file(struct config *config, FILE *file, const char *path,
                              struct sentence *why)
{
    struct reading reading = { .config = config, .file = file };
    const int error_line = parse(&reading);
    const bool failed = ferror(file) != 0;
    free(reading.text);
    // inih itself reports a line that is neither a section nor key = value. The error in the earlier line
    // is returned.
    if (error_line > 0 && (reading.bad_line == 0 || error_line < reading.bad_line))
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "%.200s:%d: the line is neither [section] nor key = value", path,
                         error_line);
    if (reading.status != CAIRN_OK)
        return fail_with(why, reading.status, "%.200s:%d: %s", path, reading.bad_line,
                         reading.why.text);
    if (failed || error_line < 0)
        return fail_with(why, CAIRN_ERR_IO, "reading the configuration %.200s failed", path);
    return CAIRN_OK;
}

cairn_status config_read(struct config *config, const char *path, struct sentence *why)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return fail_with(why, CAIRN_ERR_IO, "cannot read the configuration %.200s: %s", path,
                         strerror(errno));
    const cairn_status status = read_file(config, file, path, why);
    fclose(file);
    return status;
}

cairn_status config_set(struct config *config, const char *assignment, struct sentence *why)
{
    char section[64];
    char key[64];
    const char *dot = strchr(assignment, '.');
    const char *equals = strchr(assignment, '=');
    if (dot == NULL || equals == NULL || dot > equals)
        return fail_with(why, CAIRN_ERR_CONFIG, "--set %.100s: write --set section.key=value",
                         assignment);
    snprintf(section, sizeof section, "%.*s", (int)(dot - assignment), assignment);
    snprintf(key, sizeof key, "%.*s", (int)(equals - dot - 1), dot + 1);
    struct sentence inner;
    const cairn_status status = assign(config, section, key, equals + 1, GIVEN_BY_LINE, &inner);
    if (status != CAIRN_OK) sentence_set(why, "--set %.100s: %s", assignment, inner.text);
    return status;
}

cairn_status config_finish(const struct config *config, struct sentence *why)
{
    if (config->lacks_memory)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the configuration");
    for (size_t i = 0; i < config->option_count; i++) {
        const struct config_option *option = &config->options[i];
        if (option->default_text != NULL || config->given[i] != 0) continue;
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "%s in [%s] must be set, in the file or by --set %s.%s=...", option->key,
                         option->section, option->section, option->key);
    }
    return CAIRN_OK;
}

void config_print(const struct config *config, FILE *out)
{
    for (size_t i = 0; i < config->option_count; i++) {
        const struct config_option *option = &config->options[i];
        char allowed[96];
        config_value_describe(option, allowed, sizeof allowed);
        if (begins_section(config, i)) fprintf(out, "%s[%s]\n", i > 0 ? "\n" : "", option->section);
        fprintf(out, "# %s (%s)\n", option->doc, allowed);
        if (option->default_text == NULL) fprintf(out, "# It must be set.\n");
        fprintf(out, "#%s = %s\n", option->key,
                option->default_text != NULL ? option->default_text : "");
    }
}

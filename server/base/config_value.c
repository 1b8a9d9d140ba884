#include "server/base/config_value.h"

#include "proto/loop/address.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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

static const struct unit *units_of(enum cairn_option_type type)
{
    if (type == CAIRN_OPTION_BYTES) return byte_units;
    return type == CAIRN_OPTION_DURATION ? time_units : no_units;
}

static bool is_string(enum cairn_option_type type)
{
    return type <= CAIRN_OPTION_ADDRESSES; // the strings come first
}

// The largest unit that divides it: 65536 -> "64KiB"; a factor as it is written: 1100 -> "1.1".
static void print_number(int64_t number, enum cairn_option_type type, char *text_out,
                         size_t text_bytes)
{
    const struct unit *unit = units_of(type);
    if (type == CAIRN_OPTION_FACTOR) {
        snprintf(text_out, text_bytes, "%g", (double)number / 1000);
        return;
    }
    while (unit[1].name != NULL && (number == 0 || number % unit->factor != 0)) unit++;
    snprintf(text_out, text_bytes, "%" PRId64 "%s", number / unit->factor, unit->name);
}

void cairn_config_value_describe(const struct cairn_option *option, char *text_out,
                                 size_t text_bytes)
{
    char least[32];
    char most[32];
    switch (option->type) {
    case CAIRN_OPTION_STRING: snprintf(text_out, text_bytes, "a text"); return;
    case CAIRN_OPTION_PATH: snprintf(text_out, text_bytes, "a path"); return;
    case CAIRN_OPTION_ADDRESS: snprintf(text_out, text_bytes, "host:port or /path"); return;
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

static cairn_status refuse(const struct cairn_option *option, const char *text, const char *what,
                           struct cairn_sentence *why)
{
    char allowed[96];
    cairn_config_value_describe(option, allowed, sizeof allowed);
    return cairn_fail(why, CAIRN_ERR_CONFIG, "%s = \"%.100s\" in [%s]: %s; allowed is %s",
                      option->key, text, option->section, what, allowed);
}

static const char *unit_sentence(enum cairn_option_type type)
{
    if (type == CAIRN_OPTION_BYTES) return "a size has a unit, B KiB MiB GiB or TiB (64MiB)";
    if (type == CAIRN_OPTION_DURATION) return "a duration has a unit, ms s min or h (250ms)";
    return "it is not a whole number";
}

// Digits, perhaps a blank, a unit. NULL if well, else what is wrong.
static const char *parse_number(const char *text, enum cairn_option_type type, int64_t *number_out)
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

// Digits, perhaps a point and one to three more. NULL if well, else what is wrong.
static const char *parse_factor(const char *text, int64_t *thousandths_out)
{
    int64_t number = 0;
    const char *p = text;
    int places = -1; // behind the point; -1: there is none
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

static cairn_status store_number(const struct cairn_option *option, const char *text,
                                 int64_t *place, struct cairn_sentence *why)
{
    int64_t number = 0;
    const char *what = option->type == CAIRN_OPTION_FACTOR
                           ? parse_factor(text, &number)
                           : parse_number(text, option->type, &number);
    if (what != NULL) return refuse(option, text, what, why);
    if (number < option->min || number > option->max)
        return refuse(option, text, "it is out of range", why);
    *place = number;
    return CAIRN_OK;
}

static cairn_status store_bool(const struct cairn_option *option, const char *text, bool *place,
                               struct cairn_sentence *why)
{
    static const char *const words[] = { "no", "yes", "false", "true", "off", "on" };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *place = i % 2 == 1;
        return CAIRN_OK;
    }
    return refuse(option, text, "it is neither yes nor no", why);
}

// NULL if well, else what is wrong.
static const char *judge_addresses(const char *text, struct cairn_sentence *what)
{
    char one[CAIRN_ADDRESS_TEXT_BYTES];
    struct cairn_address address;
    for (const char *at = text; *(at += strspn(at, " ")) != '\0'; at += strcspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        if (length >= sizeof one) return "an address in it is too long";
        snprintf(one, sizeof one, "%.*s", (int)length, at);
        if (cairn_address_parse_listen(one, &address, what) != CAIRN_OK) return what->text;
    }
    return NULL;
}

static const char *judge_string(const struct cairn_option *option, const char *text,
                                struct cairn_sentence *what)
{
    struct cairn_address address;
    const bool may_be_empty = option->default_text != NULL && option->default_text[0] == '\0';
    if (option->type == CAIRN_OPTION_PATH && text[0] == '\0') return "it is empty";
    if (option->type == CAIRN_OPTION_ADDRESSES) return judge_addresses(text, what);
    if (option->type != CAIRN_OPTION_ADDRESS || (text[0] == '\0' && may_be_empty)) return NULL;
    return cairn_address_parse(text, &address, what) == CAIRN_OK ? NULL : what->text;
}

static cairn_status store_string(const struct cairn_option *option, const char *text, char **place,
                                 struct cairn_sentence *why)
{
    struct cairn_sentence sentence;
    const char *what = judge_string(option, text, &sentence);
    if (what != NULL) return refuse(option, text, what, why);
    char *copy = strdup(text);
    if (copy == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a value");
    free(*place);
    *place = copy;
    return CAIRN_OK;
}

cairn_status cairn_config_value_store(const struct cairn_option *option, const char *text,
                                      void *values, struct cairn_sentence *why)
{
    void *place = (char *)values + option->offset;
    if (is_string(option->type)) return store_string(option, text, place, why);
    if (option->type == CAIRN_OPTION_BOOL) return store_bool(option, text, place, why);
    return store_number(option, text, place, why);
}

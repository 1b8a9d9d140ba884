#include "proto/base/text.h"

#include <string.h>

/* Bytes of the well-formed UTF-8 sequence at s, which ends in NUL; 0 if there is none. */
static size_t sequence_at(const unsigned char *s)
{
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    unsigned low = 0x80, high = 0xbf; // of the second byte
    if (s[0] == 0xe0) low = 0xa0;
    if (s[0] == 0xed) high = 0x9f;
    if (s[0] == 0xf0) low = 0x90;
    if (s[0] == 0xf4) high = 0x8f;
    if (s[1] < low || s[1] > high) return 0;
    const size_t length = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    for (size_t i = 2; i < length; i++)
        if (s[i] < 0x80 || s[i] > 0xbf) return 0;
    return length;
}

/* True if a well-formed sequence is a control character; the second byte of U+0080 to U+009F is
 * their number. */
static bool is_control(const unsigned char *s)
{
    return s[0] < 0x20 || s[0] == 0x7f || (s[0] == 0xc2 && s[1] < 0xa0);
}

size_t cairn_text_beyond_ascii(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    return s[0] >= 0x80 && !is_control(s) ? sequence_at(s) : 0;
}

/* The first byte that is not part of text, or the NUL. */
static const unsigned char *find_fault(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t length; *s != '\0' && !is_control(s) && (length = sequence_at(s)) > 0;) s += length;
    return s;
}

bool cairn_text_ok(const char *text, size_t bytes_max)
{
    return cairn_text_check("", text, bytes_max, NULL) == CAIRN_OK;
}

cairn_status cairn_text_check(const char *what, const char *text, size_t bytes_max,
                              struct cairn_sentence *why)
{
    static const char allowed[] = "bytes of UTF-8 without control characters";
    if (text == NULL || text[0] == '\0')
        return cairn_fail(why, CAIRN_ERR_INVALID, "%s is empty; allowed: 1 to %zu %s", what,
                          bytes_max, allowed);
    if (strnlen(text, bytes_max + 1) > bytes_max)
        return cairn_fail(why, CAIRN_ERR_INVALID, "%s is longer than allowed: 1 to %zu %s", what,
                          bytes_max, allowed);
    const unsigned char *fault = find_fault(text);
    const size_t at = (size_t)(fault - (const unsigned char *)text);
    if (*fault == '\0') return CAIRN_OK;
    if (sequence_at(fault) == 0)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "%s: byte 0x%02x at %zu is no UTF-8; allowed: 1 to %zu %s", what, *fault,
                          at, bytes_max, allowed);
    return cairn_fail(why, CAIRN_ERR_INVALID,
                      "%s has the control character U+%04X at byte %zu; allowed: 1 to %zu %s", what,
                      fault[0] == 0xc2 ? fault[1] : fault[0], at, bytes_max, allowed);
}

void cairn_text_mend(char *text, const char *keep)
{
    for (unsigned char *s = (unsigned char *)text; *s != '\0';) {
        size_t length = sequence_at(s);
        if (length == 0 || (is_control(s) && strchr(keep, *s) == NULL)) {
            length = length > 0 ? length : 1;
            memset(s, '?', length);
        }
        s += length;
    }
}

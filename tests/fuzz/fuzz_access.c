/* The lists of jobs and owners that a token or an owner allows: the first line is a list, the second a name.
 * The answer is that of a table of every prefix of a pattern and of the name. */
#include <string.h>

#include "server/coordinator/access.h"
#include "tests/fuzz/target.h"

enum { LONGEST = 256 };

static bool matches(const char *pattern, size_t length, const char *name)
{
    static bool fits[LONGEST + 1][LONGEST + 1]; /* [of the pattern][of the name] */
    const size_t name_bytes = strlen(name);
    for (size_t p = 0; p <= length; p++) {
        for (size_t n = 0; n <= name_bytes; n++) {
            const bool is_star = p > 0 && pattern[p - 1] == '*';
            if (p == 0)
                fits[p][n] = n == 0;
            else if (is_star)
                fits[p][n] = fits[p - 1][n] || (n > 0 && fits[p][n - 1]);
            else
                fits[p][n] = n > 0 && pattern[p - 1] == name[n - 1] && fits[p - 1][n - 1];
        }
    }
    return fits[length][name_bytes];
}

static bool is_listed(const char *list, const char *name)
{
    for (const char *at = list; *at != '\0';) {
        const size_t length = strcspn(at, ", ");
        if (length > 0 && matches(at, length, name)) return true;
        at += length;
        at += strspn(at, ", ");
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char list[LONGEST] = "", name[LONGEST] = "";
    const uint8_t *end = memchr(data, '\n', size);
    const size_t list_bytes = end != NULL ? (size_t)(end - data) : size;
    const size_t name_bytes = end != NULL ? size - list_bytes - 1 : 0;
    if (list_bytes >= sizeof list || name_bytes >= sizeof name) return 0;
    memcpy(list, data, list_bytes);
    if (name_bytes > 0) memcpy(name, end + 1, name_bytes);
    MUST(access_listed(list, name) == is_listed(list, name));
    return 0;
}

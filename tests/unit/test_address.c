#include "proto/loop/loop.h"
#include "tests/support/suite.h"

#include <check.h>

struct written {
    const char *text;
    const char *host; /* NULL: refused */
    uint16_t port;
    bool is_unix;
};

TEST(an_address_has_one_written_form)
{
    static const struct written rows[] = {
        { "127.0.0.1:7400", "127.0.0.1", 7400, false },
        { "node-7.cluster:1", "node-7.cluster", 1, false },
        { "[::1]:0", "::1", 0, false },
        { "/run/cairn.sock", "/run/cairn.sock", 0, true },
        { "/run/cairn:80", "/run/cairn:80", 0, true },
        { "127.0.0.1", NULL, 0, false },
        { ":80", NULL, 0, false },
        { "[]:80", NULL, 0, false },
        { "::1:80", NULL, 0, false },
        { "a:65536", NULL, 0, false },
        { "a:+80", NULL, 0, false },
        { "a:", NULL, 0, false },
        { "", NULL, 0, false },
        { "run/cairn.sock", NULL, 0, false },
        { "*:80", NULL, 0, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct stream_address parsed;
        struct sentence why;
        char text[CAIRN_ADDRESS_TEXT_BYTES];
        const cairn_status status = address_parse(rows[i].text, &parsed, &why);
        ck_assert_msg((status == CAIRN_OK) == (rows[i].host != NULL), "%s", rows[i].text);
        if (status != CAIRN_OK) continue;
        ck_assert_str_eq(parsed.host, rows[i].host);
        ck_assert_uint_eq(parsed.port, rows[i].port);
        ck_assert_int_eq(parsed.is_unix, rows[i].is_unix);
        address_print(&parsed, text);
        ck_assert_str_eq(text, rows[i].text);
    }
}

TEST(addresses_of_several_coordinators_are_tried_in_turn)
{
    static const struct {
        const char *text, *printed; /* NULL: refused */
    } rows[] = {
        { "a:1", "a:1" },
        { "a:1,[::1]:2, /run/c.sock", "a:1,[::1]:2,/run/c.sock" },
        { " a:1 , b:2", "a:1,b:2" },
        { "a:1,", NULL },
        { ",a:1", NULL },
        { "a:1 b:2", NULL },
        { "a:0", NULL },
        { "a:1,*:2", NULL },
        { "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9", NULL },
    };
    struct endpoints endpoints;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sentence why;
        char text[CAIRN_ENDPOINTS_TEXT_BYTES];
        const cairn_status status = endpoints_parse(rows[i].text, &endpoints, &why);
        ck_assert_msg((status == CAIRN_OK) == (rows[i].printed != NULL), "%s", rows[i].text);
        if (status != CAIRN_OK) continue;
        endpoints_print(&endpoints, text);
        ck_assert_str_eq(text, rows[i].printed);
    }
    ck_assert_int_eq(endpoints_parse("a:1,b:2", &endpoints, NULL), CAIRN_OK);
    ck_assert_str_eq(endpoints_next(&endpoints)->host, "a");
    ck_assert(!endpoints_are_tried(&endpoints)); // so the next one's turn comes without a pause
    ck_assert_str_eq(endpoints_next(&endpoints)->host, "b");
    ck_assert(endpoints_are_tried(&endpoints));
    ck_assert_str_eq(endpoints_next(&endpoints)->host, "a");
}

TEST(a_host_that_is_written_down_is_loopback_or_not)
{
    static const struct {
        const char *host;
        bool is_loopback;
    } rows[] = {
        { "127.0.0.1", true },
        { "127.8.9.10", true },
        { "::1", true },
        { "localhost", true },
        { "::ffff:127.0.0.1", true },
        { "127.example.org", false },
        { "10.0.0.1", false },
        { "::ffff:10.0.0.1", false },
        { "127.0.0", false },
        { "localhost.", false },
        { "", false },
        { "::2", false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ck_assert_msg(address_names_loopback(rows[i].host) == rows[i].is_loopback, "%s",
                      rows[i].host);
}

SUITE(10, NULL, NULL);

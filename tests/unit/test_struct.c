/* Structs of older and newer callers. */
#include <check.h>
#include <stdint.h>
#include <string.h>

#include "client/base.h"
#include "tests/support/suite.h"

struct ours { /* of this library: `c` is new */
    size_t struct_size;
    uint32_t a, b;
    uint64_t c;
};
struct older {
    size_t struct_size;
    uint32_t a, b;
};
struct newer {
    size_t struct_size;
    uint32_t a, b;
    uint64_t c, d;
};

TEST(what_an_older_caller_lacks_is_0)
{
    const struct older from = { sizeof from, 1, 2 };
    struct ours to;
    memset(&to, 0xff, sizeof to);
    ck_assert(struct_copy_in(&to, sizeof to, sizeof(struct older), &from));
    ck_assert_uint_eq(to.struct_size, sizeof to);
    ck_assert_uint_eq(to.a, 1);
    ck_assert_uint_eq(to.b, 2);
    ck_assert_uint_eq(to.c, 0);
}

TEST(what_we_do_not_know_must_be_0)
{
    struct newer from = { sizeof from, 1, 2, 3, 0 };
    struct ours to = { 0 };
    ck_assert(struct_copy_in(&to, sizeof to, sizeof(struct older), &from));
    ck_assert_uint_eq(to.c, 3);
    from.d = 1;
    to.c = 77;
    ck_assert(!struct_copy_in(&to, sizeof to, sizeof(struct older), &from));
    ck_assert_uint_eq(to.c, 77);
}

TEST(a_size_that_was_never_set_is_refused)
{
    struct ours to = { 0 }, from = { 0, 1, 2, 3 };
    ck_assert(!struct_copy_in(&to, sizeof to, sizeof(struct older), NULL));
    ck_assert(!struct_copy_in(&to, sizeof to, sizeof(struct older), &from));
    from.struct_size = sizeof(struct older) - 1;
    ck_assert(!struct_copy_in(&to, sizeof to, sizeof(struct older), &from));
    from.struct_size = SIZE_MAX;
    ck_assert(!struct_copy_in(&to, sizeof to, sizeof(struct older), &from));
    ck_assert(!struct_fits(&from, sizeof(struct older)));
}

TEST(a_result_fills_what_the_caller_has_room_for)
{
    const struct ours from = { sizeof from, 1, 2, 3 };
    struct {
        struct older out;
        uint32_t behind;
    } old = { { sizeof(struct older), 0, 0 }, 99 };
    struct newer out = { sizeof out, 0, 0, 0, 5 };
    struct_copy_out(&old.out, &from, sizeof from);
    ck_assert_uint_eq(old.out.struct_size, sizeof old.out);
    ck_assert_uint_eq(old.out.b, 2);
    ck_assert_uint_eq(old.behind, 99);
    struct_copy_out(&out, &from, sizeof from);
    ck_assert_uint_eq(out.struct_size, sizeof out);
    ck_assert_uint_eq(out.c, 3);
    ck_assert_uint_eq(out.d, 0);
}

TEST(an_array_is_as_wide_as_its_caller_says)
{
    const struct newer list[2] = { { sizeof list[0], 1, 0, 0, 0 }, { sizeof list[0], 2, 0, 0, 0 } };
    ck_assert_ptr_eq(struct_at(list, 1), &list[1]);
}

SUITE(30);

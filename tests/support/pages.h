/* Bytes in pages, where a test has no stream that cuts them. */
#ifndef CAIRN_TESTS_PAGES_H
#define CAIRN_TESTS_PAGES_H

#include "proto/wire/wire.h"

static inline void pages_each(enum page_what what, const uint8_t *bytes, size_t bytes_len,
                              void (*take)(void *context, const Cairn__Page *page), void *context)
{
    for (size_t offset = 0; offset < bytes_len;) {
        Cairn__Page page;
        offset += page_cut(what, bytes, bytes_len, offset, &page);
        take(context, &page);
    }
}

#endif

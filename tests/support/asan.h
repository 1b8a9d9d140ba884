/* HAS_ASAN: 1 in a build with AddressSanitizer, by gcc or clang; else 0. */
#ifndef CAIRN_SUPPORT_ASAN_H
#define CAIRN_SUPPORT_ASAN_H

#ifdef __has_feature
#define CAIRN_HAS_FEATURE(name) __has_feature(name)
#else
#define CAIRN_HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || CAIRN_HAS_FEATURE(address_sanitizer)
#define HAS_ASAN 1
#else
#define HAS_ASAN 0
#endif

#endif

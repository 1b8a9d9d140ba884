#include "gpu/cuda/cuda.h"

#ifdef CAIRN_IMAGE_FILE

__asm__(".section .rodata.cairn_image, \"a\"\n"
        ".balign 64\n"
        "cairn_image_begin:\n"
        ".incbin \"" CAIRN_IMAGE_FILE "\"\n"
        "cairn_image_end:\n"
        ".byte 0\n"
        ".previous\n");

extern const char cairn_image_begin[], cairn_image_end[];

struct cairn_image cairn_image(void)
{
    return (struct cairn_image) { .bytes = cairn_image_begin,
                                  .size = (size_t)(cairn_image_end - cairn_image_begin),
                                  .toolkit = CAIRN_IMAGE_TOOLKIT };
}

#else

struct cairn_image cairn_image(void)
{
    return (struct cairn_image) { 0 };
}

#endif

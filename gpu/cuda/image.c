#include "gpu/cuda/cuda.h"

#ifdef CAIRN_IMAGE_FILE

__asm__(".section .rodata.cuda_image, \"a\"\n"
        ".balign 64\n"
        "cuda_image_begin:\n"
        ".incbin \"" CAIRN_IMAGE_FILE "\"\n"
        "cuda_image_end:\n"
        ".byte 0\n"
        ".previous\n");

extern const char cuda_image_begin[], cuda_image_end[];

struct cuda_image cuda_image(void)
{
    return (struct cuda_image) { .bytes = cuda_image_begin,
                                 .size = (size_t)(cuda_image_end - cuda_image_begin),
                                 .toolkit = CAIRN_IMAGE_TOOLKIT };
}

#else

struct cuda_image cuda_image(void)
{
    return (struct cuda_image) { 0 };
}

#endif

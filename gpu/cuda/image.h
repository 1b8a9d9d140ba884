/* The image of kernels in this program: what cuLibraryLoadData takes. image.cmake makes it. Static memory. */
#ifndef CAIRN_GPU_CUDA_IMAGE_H
#define CAIRN_GPU_CUDA_IMAGE_H

#include <stddef.h>

struct cairn_image {
    const void *bytes; /* NULL: this build has no kernels */
    size_t size;
    int toolkit; /* 13000: compiled by that of CUDA 13.0; 0: not known */
};

struct cairn_image cairn_image(void);

#endif

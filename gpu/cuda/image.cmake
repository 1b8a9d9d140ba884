# The image of the kernels: kernels.cu, compiled for each kind of card, and as PTX for future cards, in one file that
# becomes a part of the daemon. Options:
#   CUDA         AUTO (default): with kernels if there is an nvcc; ON: without an nvcc it is an error; OFF: no kernels
#   CAIRN_NVCC   the nvcc to use (also an environment variable); if not set, the nvcc of PATH or of /usr/local/cuda/bin
#   CAIRN_IMAGE  an image that another build of the same source has made; then no image is compiled
# The flags for C do not change the image, and the options here do not change how C is compiled.
set(CUDA AUTO CACHE STRING "kernels for CUDA devices: AUTO, ON, OFF")
set(CAIRN_IMAGE "" CACHE FILEPATH "an image of kernels that is there already")
if(DEFINED ENV{CAIRN_NVCC})
  set(CAIRN_NVCC $ENV{CAIRN_NVCC} CACHE FILEPATH "the compiler of kernels")
endif()
find_program(CAIRN_NVCC nvcc PATHS /usr/local/cuda/bin DOC "the compiler of kernels")

# Every operation rounds once, keeps subnormals, and is IEEE's division and square root (gpu/gpu.h).
set(CAIRN_NVCC_FLAGS -std=c++17 -O3 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true
  -Werror all-warnings -I${CMAKE_SOURCE_DIR})
set(CAIRN_NVCC_CARDS
  -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_100,code=sm_100
  -gencode arch=compute_120,code=[sm_120,compute_120])

# nvcc_toolkit(OUT): 13000 for "release 13.0"; 0 if nvcc does not say its release
function(nvcc_toolkit out)
  execute_process(COMMAND ${CAIRN_NVCC} --version OUTPUT_VARIABLE text ERROR_QUIET)
  set(${out} 0 PARENT_SCOPE)
  if(text MATCHES "release ([0-9]+)\\.([0-9]+)")
    math(EXPR number "${CMAKE_MATCH_1} * 1000 + ${CMAKE_MATCH_2} * 10")
    set(${out} ${number} PARENT_SCOPE)
  endif()
endfunction()

# kernels_image(TARGET): adds the image to the target, if there is to be an image.
function(kernels_image target)
  set(source ${CMAKE_SOURCE_DIR}/gpu/cuda/kernels.cu)
  set(holder ${CMAKE_SOURCE_DIR}/gpu/cuda/image.c)
  set(image ${CMAKE_BINARY_DIR}/kernels.fatbin)
  if(CUDA STREQUAL OFF OR NOT EXISTS ${source})
    message(STATUS "kernels for CUDA devices: none")
    return()
  endif()
  set(toolkit 0)
  if(CAIRN_NVCC)
    nvcc_toolkit(toolkit)
  endif()
  if(CAIRN_IMAGE)
    add_custom_command(OUTPUT ${image} COMMAND ${CMAKE_COMMAND} -E copy ${CAIRN_IMAGE} ${image}
      DEPENDS ${CAIRN_IMAGE} VERBATIM)
  elseif(CAIRN_NVCC AND toolkit GREATER_EQUAL 12080) # the first toolkit that knows sm_120
    add_custom_command(OUTPUT ${image}
      COMMAND ${CAIRN_NVCC} -fatbin ${CAIRN_NVCC_FLAGS} ${CAIRN_NVCC_CARDS} -MD -MF ${image}.d -o ${image} ${source}
      DEPENDS ${source} ${CAIRN_NVCC} DEPFILE ${image}.d COMMENT "Compiling kernels.fatbin" VERBATIM)
  elseif(CUDA STREQUAL ON)
    message(FATAL_ERROR "CUDA=ON, and no nvcc of CUDA 12.8 or newer (CAIRN_NVCC says where it is)")
  else()
    message(STATUS "kernels for CUDA devices: none, there is no nvcc of CUDA 12.8 or newer")
    return()
  endif()
  message(STATUS "kernels for CUDA devices: by ${CAIRN_NVCC} (${toolkit})")
  set_source_files_properties(${holder} TARGET_DIRECTORY ${target} PROPERTIES OBJECT_DEPENDS ${image}
    COMPILE_DEFINITIONS "CAIRN_IMAGE_FILE=\"${image}\";CAIRN_IMAGE_TOOLKIT=${toolkit}")
  set(CAIRN_HAS_IMAGE ON PARENT_SCOPE)
endfunction()

# The toolkit's cuda.h, beside its nvcc: a test compares driver.h with it. Nothing else reads it.
set(toolkit_bin "")
if(CAIRN_NVCC)
  get_filename_component(toolkit_bin ${CAIRN_NVCC} REALPATH)
  get_filename_component(toolkit_bin ${toolkit_bin} DIRECTORY)
endif()
find_path(CAIRN_CUDA_H cuda.h HINTS ${toolkit_bin}/../include DOC "the folder of the toolkit's cuda.h")

# cuda_prototypes(OUT): writes a file with CAIRN_PROTOTYPE(cuInit, (unsigned int Flags)) and so on: the calls of
# driver.h, as cuda.h declares them
function(cuda_prototypes out)
  file(READ ${CAIRN_CUDA_H}/cuda.h header)
  file(READ ${CMAKE_SOURCE_DIR}/gpu/cuda/driver.h door)
  string(REGEX MATCHALL "call\\(cu[A-Za-z0-9]+" calls "${door}")
  set(text "")
  foreach(call ${calls} "call(cuGetProcAddress")
    string(REPLACE "call(" "" name "${call}")
    string(REGEX MATCH "\nCUresult CUDAAPI ${name}(\\([^;]*\\));" found "${header}")
    if(found)
      string(APPEND text "CAIRN_PROTOTYPE(${name}, ${CMAKE_MATCH_1})\n")
    endif()
  endforeach()
  file(CONFIGURE OUTPUT ${out} CONTENT "${text}" @ONLY) # the file is written only if it changes
endfunction()

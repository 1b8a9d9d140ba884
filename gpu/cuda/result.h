/* The meaning of the driver's results, by what cuda.h says of each: whether the context goes on, and
 * what the administrator of the machine can do. A table, which tests read, too. */
#ifndef CAIRN_GPU_CUDA_RESULT_H
#define CAIRN_GPU_CUDA_RESULT_H

// clang-format off
#define CAIRN_ADVICE_SEE     "look for NVRM and Xid in dmesg"
#define CAIRN_ADVICE_MODULES \
    "the driver's kernel module and its libraries are of different versions: restart the machine"
#define CAIRN_ADVICE_IMAGE "the driver and the kernels in this daemon do not fit: update the driver"
#define CAIRN_ADVICE_MPS   "of MPS: look at its control daemon's log, and start it and this process again"
#define CAIRN_ADVICE_NODES \
    "are /dev/nvidiactl, /dev/nvidia-uvm and the card's /dev/nvidia0 there, and this user's to open? " \
    "nvidia-modprobe -u -c 0 makes them, but not for a unit with NoNewPrivileges: start " \
    "nvidia-persistenced first"
#define CAIRN_ADVICE_GONE \
    "a kernel of this process did what may not be, or under MPS one of another client: " CAIRN_ADVICE_SEE \
    ", and start this process again"

/* meaning(CUDA_ERROR_..., its number, true: the context is gone, advice or "") */
#define CAIRN_MEANINGS(meaning)                                                                            \
    meaning(INVALID_VALUE, 1, false, "")                                                                   \
    meaning(OUT_OF_MEMORY, 2, false, "look at nvidia-smi for who has it")                                  \
    meaning(STUB_LIBRARY, 34, false,                                                                       \
            "libcuda.so.1 is a toolkit's stub: take its folder out of LD_LIBRARY_PATH")                    \
    meaning(CALL_REQUIRES_NEWER_DRIVER, 36, false, "update the driver")                                    \
    meaning(DEVICE_UNAVAILABLE, 46, false,                                                                 \
            "another process has the card for itself, or nobody may use it: nvidia-smi -q -d "             \
            "COMPUTE says the mode, nvidia-smi -c 0 lets several share it")                                \
    meaning(NO_DEVICE, 100, false,                                                                         \
            "look at nvidia-smi, and at the environment's CUDA_VISIBLE_DEVICES; in a "                     \
            "container, was it given a GPU?")                                                              \
    meaning(INVALID_DEVICE, 101, false,                                                                    \
            "look at nvidia-smi -L, and at the environment's CUDA_VISIBLE_DEVICES")                        \
    meaning(DEVICE_NOT_LICENSED, 102, false, "the virtual GPU has no licence")                             \
    meaning(INVALID_IMAGE, 200, false, CAIRN_ADVICE_IMAGE)                                                 \
    meaning(MAP_FAILED, 205, false, "")                                                                    \
    meaning(UNMAP_FAILED, 206, false, "")                                                                  \
    meaning(ALREADY_MAPPED, 208, false, "")                                                                \
    meaning(NO_BINARY_FOR_GPU, 209, false, CAIRN_ADVICE_IMAGE)                                             \
    meaning(ALREADY_ACQUIRED, 210, false, "")                                                              \
    meaning(NOT_MAPPED, 211, false, "")                                                                    \
    meaning(ECC_UNCORRECTABLE, 214, true,                                                                  \
            "uncorrectable ECC error: nvidia-smi -q -d ECC,ROW_REMAPPER says where; reset "                \
            "the card, and have it replaced if it comes again")                                            \
    meaning(PEER_ACCESS_UNSUPPORTED, 217, false, "")                                                       \
    meaning(INVALID_PTX, 218, false, CAIRN_ADVICE_IMAGE)                                                   \
    meaning(NVLINK_UNCORRECTABLE, 220, true,                                                               \
            "uncorrectable NVLink error: "                                                                 \
            CAIRN_ADVICE_SEE                                                                               \
            ", and look at nvidia-smi nvlink -e")                                                          \
    meaning(JIT_COMPILER_NOT_FOUND, 221, false,                                                            \
            "libnvidia-ptxjitcompiler.so.1 is missing, which a card newer than this daemon's "             \
            "kernels needs: install the whole driver, or build with a newer toolkit")                      \
    meaning(UNSUPPORTED_PTX_VERSION, 222, false, CAIRN_ADVICE_IMAGE)                                       \
    meaning(JIT_COMPILATION_DISABLED, 223, false,                                                          \
            "take CUDA_DISABLE_PTX_JIT out of the environment, or build with a newer toolkit")             \
    meaning(CONTAINED, 226, true,                                                                          \
            "a fault that the hardware contained: "                                                        \
            CAIRN_ADVICE_SEE                                                                               \
            ", and start this process again")                                                               \
    meaning(OPERATING_SYSTEM, 304, false, CAIRN_ADVICE_NODES)                                              \
    meaning(INVALID_HANDLE, 400, false, "")                                                                \
    meaning(ILLEGAL_STATE, 401, false, "")                                                                 \
    meaning(NOT_FOUND, 500, false, "")                                                                     \
    meaning(NOT_READY, 600, false, "")                                                                     \
    meaning(ILLEGAL_ADDRESS, 700, true, CAIRN_ADVICE_GONE)                                                 \
    meaning(LAUNCH_OUT_OF_RESOURCES, 701, false, "")                                                       \
    meaning(LAUNCH_TIMEOUT, 702, true,                                                                     \
            "the watchdog of a display ended a kernel: take a card without a display for the "             \
            "shard")                                                                                       \
    meaning(PEER_ACCESS_ALREADY_ENABLED, 704, false, "")                                                   \
    meaning(PEER_ACCESS_NOT_ENABLED, 705, false, "")                                                       \
    meaning(TOO_MANY_PEERS, 711, false, "")                                                                \
    meaning(HOST_MEMORY_ALREADY_REGISTERED, 712, false, "")                                                \
    meaning(HOST_MEMORY_NOT_REGISTERED, 713, false, "")                                                    \
    meaning(HARDWARE_STACK_ERROR, 714, true, CAIRN_ADVICE_GONE)                                            \
    meaning(ILLEGAL_INSTRUCTION, 715, true, CAIRN_ADVICE_GONE)                                             \
    meaning(MISALIGNED_ADDRESS, 716, true, CAIRN_ADVICE_GONE)                                              \
    meaning(INVALID_ADDRESS_SPACE, 717, true, CAIRN_ADVICE_GONE)                                           \
    meaning(INVALID_PC, 718, true, CAIRN_ADVICE_GONE)                                                      \
    meaning(LAUNCH_FAILED, 719, true, CAIRN_ADVICE_GONE)                                                   \
    meaning(NOT_PERMITTED, 800, false, "may this user? In a container, which capabilities has it?")        \
    meaning(NOT_SUPPORTED, 801, false,                                                                     \
            "the card, its slice or this kind of machine (a virtual GPU, WSL) does not have "              \
            "it")                                                                                          \
    meaning(SYSTEM_NOT_READY, 802, false,                                                                  \
            "the machine is not ready: where GPUs have NVSwitch, nvidia-fabricmanager runs "               \
            "first (systemctl status nvidia-fabricmanager), of the driver's version; in "                  \
            "confidential computing, the GPU is to be set ready")                                          \
    meaning(SYSTEM_DRIVER_MISMATCH, 803, false, CAIRN_ADVICE_MODULES)                                      \
    meaning(COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, false,                                                    \
            "the libcuda.so.1 of a compatibility package does not drive this card: take its "              \
            "folder out of LD_LIBRARY_PATH")                                                               \
    meaning(MPS_CONNECTION_FAILED, 805, true, CAIRN_ADVICE_MPS)                                            \
    meaning(MPS_RPC_FAILURE, 806, true, CAIRN_ADVICE_MPS)                                                  \
    meaning(MPS_SERVER_NOT_READY, 807, true, CAIRN_ADVICE_MPS)                                             \
    meaning(MPS_MAX_CLIENTS_REACHED, 808, false, "MPS has no room for one more client")                    \
    meaning(MPS_MAX_CONNECTIONS_REACHED, 809, false, "MPS has no room for one more client")                \
    meaning(MPS_CLIENT_TERMINATED, 810, true, CAIRN_ADVICE_MPS)                                            \
    meaning(STREAM_CAPTURE_UNSUPPORTED, 900, false, "")                                                    \
    meaning(STREAM_CAPTURE_INVALIDATED, 901, false, "")                                                    \
    meaning(STREAM_CAPTURE_MERGE, 902, false, "")                                                          \
    meaning(STREAM_CAPTURE_UNMATCHED, 903, false, "")                                                      \
    meaning(STREAM_CAPTURE_UNJOINED, 904, false, "")                                                       \
    meaning(STREAM_CAPTURE_ISOLATION, 905, false, "")                                                      \
    meaning(STREAM_CAPTURE_IMPLICIT, 906, false, "")                                                       \
    meaning(CAPTURED_EVENT, 907, false, "")                                                                \
    meaning(STREAM_CAPTURE_WRONG_THREAD, 908, false, "")                                                   \
    meaning(UNKNOWN, 999, true,                                                                            \
            "the card may have fallen off its bus, or /dev/nvidia-uvm cannot be opened: "                  \
            CAIRN_ADVICE_SEE                                                                               \
            ", try nvidia-modprobe -u, reset the card")
// clang-format on

#endif

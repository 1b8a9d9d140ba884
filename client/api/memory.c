/* The calls of memory: what they ask for is judged here. */
#include <sys/resource.h>
#include <unistd.h>

#include "client/api/api.h"
#include "client/base/handle.h"
#include "client/device/card.h"
#include "client/session.h"

/* More than the machine has is refused now: it is not reserved, and would end the process later. */
static cairn_status judge_bytes(size_t bytes)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    struct rlimit file;
    // The kernel would answer with a signal.
    if (getrlimit(RLIMIT_FSIZE, &file) == 0 && bytes > file.rlim_cur)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                 "%zu bytes of shared memory are more than this process's limit of "
                                 "file size (%llu): raise it (ulimit -f)",
                                 bytes, (unsigned long long)file.rlim_cur);
    if (pages <= 0 || page <= 0 || bytes / (size_t)page < (size_t)pages) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "%zu bytes are more than this machine has (%zu)",
                             bytes, (size_t)pages * (size_t)page);
}

cairn_status cairn_alloc(cairn *handle, size_t bytes, int device, void **out)
{
    if (out == NULL) return cairn_client_fail(CAIRN_ERR_INVALID, "out is NULL");
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) return cairn_handle_fail(handle, "session");
    struct card *card;
    cairn_status status = cairn_card_of_device(device, "device", &card);
    if (status == CAIRN_OK && bytes == 0)
        status = cairn_client_fail(CAIRN_ERR_INVALID, "bytes is 0");
    if (status == CAIRN_OK && card == NULL) status = judge_bytes(bytes);
    if (status == CAIRN_OK) status = cairn_memory_take(s, bytes, card, out);
    cairn_handle_put(handle);
    return status;
}

cairn_status cairn_free(cairn *handle, void *ptr)
{
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) return cairn_handle_fail(handle, "session");
    const cairn_status status = cairn_memory_free(s, ptr);
    cairn_handle_put(handle);
    return status;
}

cairn_status cairn_register(cairn *handle, void *ptr, size_t bytes, int device)
{
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) return cairn_handle_fail(handle, "session");
    struct card *card;
    cairn_status status = cairn_card_of_device(device, "device", &card);
    if (status == CAIRN_OK && (ptr == NULL || bytes == 0))
        status = cairn_client_fail(CAIRN_ERR_INVALID, "ptr is NULL or bytes is 0");
    if (status == CAIRN_OK)
        status = cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                   "memory of the caller is staged, not registered, in this build: "
                                   "put, push and fetch of it are right as they are");
    cairn_handle_put(handle);
    return status;
}

cairn_status cairn_unregister(cairn *handle, void *ptr)
{
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) return cairn_handle_fail(handle, "session");
    cairn_handle_put(handle);
    return cairn_client_fail(CAIRN_ERR_INVALID, "%p is not registered", ptr);
}

static cairn_status detach_or_attach(cairn *handle, bool wants_off, int timeout_ms)
{
    cairn_status status = cairn_api_judge_call(NULL, NULL, timeout_ms);
    if (status != CAIRN_OK) return status;
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) return cairn_handle_fail(handle, "session");
    status = cairn_detach_ask(s, wants_off, cairn_api_deadline(timeout_ms));
    cairn_handle_put(handle);
    return status;
}

cairn_status cairn_detach_memory(cairn *handle, int timeout_ms)
{
    return detach_or_attach(handle, true, timeout_ms);
}

cairn_status cairn_attach_memory(cairn *handle, int timeout_ms)
{
    return detach_or_attach(handle, false, timeout_ms);
}

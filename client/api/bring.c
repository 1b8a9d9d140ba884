/* Memory of a GPU that the client itself has to read: initial state, which it hashes; gradients that it adds
 * up, or of which some lie apart. It comes to host memory first. */
#include <stdlib.h>

#include "client/api/judge.h"
#include "client/device/card.h"

static cairn_status bring(struct card *card, const struct cairn_mem *mem, size_t bytes, void *copy)
{
    struct card_event *event;
    struct cairn_sentence why;
    cairn_status status = cairn_card_mark(card, mem->stream, &event);
    if (status != CAIRN_OK) return status;
    status = cairn_card_event_wait(event);
    cairn_card_event_free(event);
    if (status != CAIRN_OK) return status;
    status = cairn_card_copy(card, copy, mem->ptr, bytes, CARD_TO_HOST, &why);
    if (status == CAIRN_OK) return status;
    return cairn_client_fail(status, "GPU %d: %s", cairn_card_number(card), why.text);
}

cairn_status cairn_api_bring(struct cairn_mem *mem, const struct piece *piece, void **copy_out)
{
    struct card *card;
    *copy_out = NULL;
    cairn_status status = cairn_api_card(mem, &card);
    if (status != CAIRN_OK || card == NULL) return status;
    const size_t bytes = cairn_strides_span(&piece->strides, cairn_box_elems(&piece->box),
                                            cairn_dtype_bytes((int)mem->dtype));
    void *copy = malloc(bytes > 0 ? bytes : 1);
    if (copy == NULL)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                 "no host memory for %zu bytes of GPU %d, which pass the host here",
                                 bytes, cairn_card_number(card));
    status = bring(card, mem, bytes, copy);
    if (status != CAIRN_OK) {
        free(copy);
        return status;
    }
    mem->ptr = *copy_out = copy;
    mem->device = 0;
    mem->stream = NULL;
    return CAIRN_OK;
}

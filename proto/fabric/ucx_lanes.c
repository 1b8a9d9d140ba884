/* UCX prints a line for each lane (src/ucp/core/ucp_ep.c), such as
 *
 *   #                 lane[0]:  0:tcp/lo.0 md[0]           -> md[0]/tcp/sysdev[255] am am_bw#0 wireup
 *   #                 lane[1]:  4:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma_bw#0 rma#0
 *
 * index, resource, transport/device, memory domains, uses. It is text for people: what is not understood
 * counts as no native lane, and then messages go as they always did. */
#include "proto/fabric/ucx_lanes.h"

#include <ctype.h>
#include <string.h>

bool ucx_transport_is_native(const char *name)
{
    static const char *const native[] = { "rc",     "rc_verbs", "rc_mlx5",  "rc_x",
                                          "dc",     "dc_mlx5",  "dc_x",     "gga_mlx5",
                                          "rc_gga", "srd",      "ugni_rdma" };
    for (size_t i = 0; i < sizeof native / sizeof *native; i++)
        if (strcmp(name, native[i]) == 0) return true;
    return false;
}

/* The transport of a line behind its "lane["; false: it is no such line. */
static bool read_transport(const char *line, const char *end, char *name_out, size_t name_bytes)
{
    const char *at = memchr(line, ']', (size_t)(end - line));
    if (at == NULL || end - at < 2 || at[1] != ':') return false;
    at += 2;
    while (at < end && *at == ' ') at++;
    while (at < end && isdigit((unsigned char)*at)) at++;
    if (at == end || *at != ':') return false;
    at++;
    const char *slash = memchr(at, '/', (size_t)(end - at));
    if (slash == NULL || (size_t)(slash - at) >= name_bytes) return false;
    memcpy(name_out, at, (size_t)(slash - at));
    name_out[slash - at] = '\0';
    return true;
}

static bool is_for_rma(const char *line, const char *end)
{
    for (const char *at = line; at < end; at++)
        if (strncmp(at, " rma#", 5) == 0 || strncmp(at, " rma_bw#", 8) == 0) return true;
    return false;
}

bool ucx_lanes_are_native(const char *text)
{
    static const char mark[] = "lane[";
    for (const char *lane = strstr(text, mark); lane != NULL; lane = strstr(lane, mark)) {
        char name[32];
        const char *end = lane + strcspn(lane, "\n");
        lane += sizeof mark - 1;
        if (read_transport(lane, end, name, sizeof name) && ucx_transport_is_native(name) &&
            is_for_rma(lane, end))
            return true;
    }
    return false;
}

#include "proto/base/status.h"

#include <stddef.h>

struct row {
    int number;
    int exit_code;
    const char *name;
    const char *text;
};

static const struct row rows[] = {
#define X(name, number, exit_code, text) { number, exit_code, "CAIRN_" #name, text },
    CAIRN_STATUS_TABLE(X)
#undef X
};

static const struct row *find(int status)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].number == status) return &rows[i];
    return NULL;
}

const char *cairn_status_code_name(int status)
{
    const struct row *row = find(status);
    return row != NULL ? row->name : "CAIRN_ERR_?";
}

const char *cairn_status_text(int status)
{
    const struct row *row = find(status);
    return row != NULL ? row->text : "an unknown status code";
}

int cairn_status_exit(int status)
{
    const struct row *row = find(status);
    return row != NULL ? row->exit_code : 1;
}

int cairn_status_known(int status)
{
    return find(status) != NULL;
}

/* The status codes of Cairn. The daemons, the library, the CLI and the docs all use this one table.
 *
 * A code says what kind of thing went wrong. With the code comes a sentence (the `error` string of a
 * message, cairn_error() in a client) that says what exactly went wrong, why, and what to do. Codes are
 * grouped by the largest thing that is permanently broken, so that a caller knows what to throw away:
 * nothing, the operation, the round, the member, the job, or the peer. The numbers are sent over the wire
 * and used in scripts, so they never change, and are never used again for something else.
 *
 * X(name, number, exit status of the CLI, "meaning") */
#ifndef CAIRN_BASE_STATUS_H
#define CAIRN_BASE_STATUS_H

#define CAIRN_STATUS_TABLE(X)                                                             \
    X(OK, 0, 0, "success")                                                                \
    /* nothing is broken: call again, or differently */                                   \
    X(ERR_INVALID, 1, 2, "an argument is not valid")                                      \
    X(ERR_HANDLE, 2, 2, "the handle is closed or is not one of this library")             \
    X(ERR_UNSUPPORTED, 3, 2, "not supported by this version")                             \
    X(ERR_TIMEOUT, 4, 124, "the deadline passed; nothing was changed")                    \
    X(ERR_BUSY, 5, 11, "busy; try again later")                                           \
    X(ERR_NOT_FOUND, 6, 4, "no such job, tensor, plane or snapshot")                      \
    X(ERR_EXISTS, 7, 11, "it exists already")                                             \
    X(ERR_NO_MEMORY, 8, 1, "out of memory, or over the configured memory limit")          \
    X(ERR_NO_SPACE, 9, 1, "no space left on the storage")                                 \
    X(ERR_IO, 10, 1, "reading or writing failed")                                         \
    X(ERR_CONFIG, 11, 2, "the configuration is not valid")                                \
    /* this message or operation is void */                                               \
    X(ERR_PROTOCOL, 20, 13, "the peer broke the protocol")                                \
    X(ERR_VERSION, 21, 13, "the peer speaks another version of the protocol")             \
    X(ERR_MALFORMED, 22, 5, "the message or file is malformed")                           \
    X(ERR_STALE, 23, 1, "of a finished round or an older epoch; dropped")                 \
    X(ERR_DUPLICATE, 24, 1, "had already; dropped")                                       \
    X(ERR_CHECKSUM, 25, 5, "a checksum does not match")                                   \
    X(ERR_CORRUPT, 26, 5, "stored data is damaged or incomplete")                         \
    X(ERR_VERSION_GONE, 27, 4, "that version is no longer kept")                          \
    X(ERR_CANCELED, 28, 130, "canceled")                                                  \
    /* the round is void: begin a new one and recompute */                                \
    X(ERR_EPOCH_CHANGED, 40, 1, "the membership changed; nothing was applied: recompute") \
    X(ERR_NONFINITE, 41, 1, "a gradient or an initial weight is not finite")              \
    /* this member, or its view of the job, is void */                                    \
    X(ERR_MISMATCH, 60, 1, "the job on the servers is another one than this spec")        \
    X(ERR_FENCED, 61, 14, "a newer member took this one's place")                         \
    X(ERR_REFUSED, 62, 12, "not allowed")                                                 \
    X(ERR_NOT_READY, 63, 11, "the job is not ready")                                      \
    X(ERR_JOB_LOST, 64, 1, "a shard lost its part of the job; restore a snapshot")        \
    X(ERR_ROLLED_BACK, 65, 1, "the job was restored from a snapshot; open it again")      \
    X(ERR_HALTED, 66, 1, "the job is halted: no round opens until somebody acts")         \
    X(ERR_PLACE_TAKEN, 67, 11, "another process has this rank of the job, and lives")     \
    X(ERR_REOPEN, 68, 1, "close the job and open it again")                               \
    /* the peer is gone */                                                                \
    X(ERR_UNREACHABLE, 80, 10, "the peer cannot be reached")                              \
    X(ERR_CLOSED, 81, 10, "the connection or session is closed")                          \
    X(ERR_INTERNAL, 99, 1, "a fault in Cairn; please report it")

/* cairn.h includes no other header of Cairn, so it repeats these numbers (tested) */
#ifndef CAIRN_STATUS_DEFINED
#define CAIRN_STATUS_DEFINED
typedef enum cairn_status {
#define X(name, number, exit_code, text) CAIRN_##name = (number),
    CAIRN_STATUS_TABLE(X)
#undef X
} cairn_status;
#endif

/* "CAIRN_ERR_TIMEOUT"; "CAIRN_ERR_?" for a number that is not in the table. Never NULL. */
const char *status_code_name(int status);
/* The meaning of the status, from the table. Never NULL. */
const char *status_text(int status);
/* The exit status of the CLI for this status; 1 for an unknown number. */
int status_exit(int status);
/* 1 if the number is in the table. Call this for a number from the wire before you use the number. */
int status_known(int status);

/* An attribute for every function whose status must not be ignored. */
#define CAIRN_MUST_CHECK __attribute__((warn_unused_result))

/* If the status of `expression` is not CAIRN_OK, returns that status from the function that contains this
 * line. Only for functions that hold nothing yet that they would have to release. */
#define CAIRN_TRY(expression)                     \
    do {                                          \
        const cairn_status tried_ = (expression); \
        if (tried_ != CAIRN_OK) return tried_;    \
    } while (0)

#endif

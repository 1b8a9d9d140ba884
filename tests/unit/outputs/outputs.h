/* What `cairn` prints, kept in tests/golden/outputs: a file for each test, in the order of its commands.
 *
 *   $ cairn job show toy
 *   NAME ...
 *   ! what it says on stderr
 *   = 4                            its exit status, if it is not 0
 *
 * The cluster is one of trained_toy.h, in this process, which is turned while the command runs: all numbers
 * of the job are zeros. What is another one with each run (ports, times, hashes, the folder) is replaced, and
 * so are the blanks of tables that had any of it. */
#ifndef CAIRN_TESTS_UNIT_OUTPUTS_H
#define CAIRN_TESTS_UNIT_OUTPUTS_H

#include "tests/support/trained_toy.h"

/* ---- the record of a test ---- */
/* False: another part of the tests has it. NAME is without a folder and .txt. */
bool outputs_open(const char *name);
void outputs_close(void);
/* This process does one of so many parts. */
void outputs_part(int part, int parts);

/* ---- commands; words are divided by blanks, @ is the folder of the test ---- */
/* As it is, with -q, and with -o json. */
void outputs_all(const char *line);
/* As it is, and with -o json: it takes no -q. */
void outputs_two(const char *line);
/* As it is, and with -q. */
void outputs_quiet(const char *line);
void outputs_one(const char *line);
/* Not of the cluster: without an endpoint. */
void outputs_alone(const char *line);
/* The same of another program; it prints what it likes. */
void outputs_of(const char *const *arguments, const char *shown);

#endif

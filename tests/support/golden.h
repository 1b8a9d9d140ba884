/* Text that is kept in tests/golden and must not change unseen. CAIRN_GOLDEN_WRITE=1 writes it anew. */
#ifndef CAIRN_SUPPORT_GOLDEN_H
#define CAIRN_SUPPORT_GOLDEN_H

/* Fails the test, and shows the difference, unless tests/golden/NAME has that text. */
void golden_expect(const char *name, const char *text);

/* ---- what is another one with each run ---- */
/* Each `from` becomes `to`, which is no longer. */
void golden_replace(char *text, const char *from, const char *to);
/* Each run of 16 or more hexadecimal digits becomes HEX. */
void golden_replace_hex(char *text);

#endif

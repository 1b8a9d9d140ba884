/* One sentence about what went wrong, for a person: what, why, what to do. The status says which
 * kind of fault it is; the sentence names the numbers. It lives on the caller's stack, is cut rather
 * than grown, and whoever decides the error writes it, once. */
#ifndef CAIRN_WIRE_SENTENCE_H
#define CAIRN_WIRE_SENTENCE_H

struct cairn_sentence {
    char text[512]; /* NUL-terminated */
};

/* Replaces the text as printf would, cut to fit. `s` may be NULL: nobody wants to know. */
void cairn_sentence_set(struct cairn_sentence *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif

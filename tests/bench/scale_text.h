/* The words of scale.md: what stands around its tables. */
#ifndef CAIRN_BENCH_SCALE_TEXT_H
#define CAIRN_BENCH_SCALE_TEXT_H

extern const char scale_text_head[], scale_text_end[];
/* Heads of the four tables of a model. */
extern const char scale_text_table[], scale_text_counts[], scale_text_times[], scale_text_others[];

#endif

/* Lines of text in memory of the caller, for the messages of the comm plugins: always ended, cut where they are full.
 */
#ifndef COMM_COMMON_TEXT_H
#define COMM_COMMON_TEXT_H
#include <stddef.h>
#include <stdint.h>

typedef struct comm_text {
    char *text;
    size_t bytes, at; /* room; written so far, without the end */
} comm_text;

/* An empty text; bytes 0 is allowed, and stays so. */
comm_text comm_text_begin(char *text, size_t bytes);
__attribute__((format(printf, 2, 3))) void comm_text_add(comm_text *t, const char *format, ...);

/* Numbers of ranks, gathered one by one. */
enum { COMM_LISTED = 16 };
typedef struct comm_list {
    uint32_t n, first[COMM_LISTED], last;
} comm_list;
void comm_list_add(comm_list *l, uint32_t number);
/* "0 2 4 6"; of more than 16 numbers the first 15, then "... 4095 (4096 in all)". */
void comm_text_add_list(comm_text *t, const comm_list *l, const char *between);

#endif

/* Which source a sample is of, for sources with weights: a periodic sequence, made once, whose every prefix of n
 * samples has n * share of each source to less than one sample. So a sample's source and its number within that source
 * follow from the sample's index alone. The sequence is that of proportionate-fair scheduling (Baruah, Cohen, Plaxton,
 * Varvel, "Proportionate progress", Algorithmica 1996): the (c+1)-th sample of a source of share p may come from index
 * floor(c / p) on and must come before ceil((c+1) / p); of those that may, the one that must come first does, ties to
 * the lowest source. To always take the source that is furthest behind would not do: with shares
 * 100 1 3 5 1 100 1 100 3 3 3 of 320 one falls 1.375 behind. */
#ifndef CORE_DATA_BLEND_H
#define CORE_DATA_BLEND_H
#include <moe/base.h>
#include <stdint.h>

#define BLEND_MAX_PERIOD (1u << 20)
#define BLEND_MAX_SOURCES (1u << 16)

typedef struct blend {
    uint64_t n, period;
    uint32_t *counts;  /* [n] samples of each source in a period, each >= 1 */
    uint16_t *sources; /* [period] */
    uint32_t *before;  /* [period] samples of the same source earlier in the period */
    int exact;         /* 0: the weights are no fractions of a period up to the maximum and were rounded to 1 / it */
} blend;

typedef struct blend_place {
    uint64_t source, index; /* sample number `index` of that source */
} blend_place;

/* weights[n], in any unit. MOE_E_ARG: a weight that is not positive and finite, or too small for one sample in a
 * longest period; MOE_E_NOMEM. *out (zeroed before) has to be freed in any case. */
moe_status blend_make(blend *out, const double *weights, uint64_t n, moe_err *err);
void blend_free(blend *b);
blend_place blend_at(const blend *b, uint64_t sample); /* any thread */
#endif

/* A permutation of 0..n-1 without a table: the i-th entry is computed from (key, epoch, i) alone, so that a resumed run
 * and every data-parallel rank agree on the order. Feistel network over the smallest even number of bits that holds n,
 * round function Philox (moe/random.h), and cycle walking: an image outside 0..n-1 is mapped again (Black and Rogaway,
 * "Ciphers with arbitrary finite domains", CT-RSA 2002). Four times n values at most, so below four walks on average.
 */
#ifndef CORE_DATA_SHUFFLE_H
#define CORE_DATA_SHUFFLE_H
#include <moe/random.h>
#include <stdint.h>

/* i < n. Any thread. */
uint64_t shuffle_at(moe_random_key key, uint64_t epoch, uint64_t n, uint64_t i);
#endif

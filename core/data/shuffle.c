/* A permutation without a table; see shuffle.h. */
#include "data/shuffle.h"

enum { SHUFFLE_ROUNDS = 8 };

/* Bits of one half: 2 * half_bits hold n values, n >= 1. */
static uint32_t half_bits(uint64_t n) {
    uint32_t bits = 0;
    while (bits < 64 && (n - 1) >> bits) bits++;
    return bits < 2 ? 1 : (bits + 1) / 2;
}

uint64_t shuffle_at(moe_random_key key, uint64_t epoch, uint64_t n, uint64_t i) {
    uint32_t bits = half_bits(n);
    uint64_t mask = (1ull << bits) - 1;
    do {
        uint64_t left = i >> bits, right = i & mask;
        for (uint64_t round = 0; round < SHUFFLE_ROUNDS; round++) {
            uint64_t f = moe_random_words(key, right, epoch * SHUFFLE_ROUNDS + round).v[0];
            uint64_t next = left ^ (f & mask);
            left = right;
            right = next;
        }
        i = left << bits | right;
    } while (i >= n);
    return i;
}

/* Router "topk": the scores of an element, for all devices. Included where row_f is a number or a vector of floats:
 *   row_f, row_mask        the floats, and what comparing them gives
 *   ROW_FN                 what a function begins with
 *   row_splat(float), row_pick(mask, yes, no), row_power(z, magic): 2^n, where the low bits of z are n more than
 * magic's Every result is made of single IEEE operations that nothing may contract, and so has the same bits
 * everywhere: the choice of experts does not depend on the device. */

#define EXP_LEAST -88.0f /* exp of this and of all below is 0: its power of two, 2^-127, is made as 0 */

ROW_FN row_f row_clamp(row_f x) {
    return row_pick(x < row_splat(EXP_LEAST), row_splat(EXP_LEAST), x);
}

/* exp(x), EXP_LEAST <= x <= 0: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor to r^7 (error below 1e-8), times 2^n. */
ROW_FN row_f row_exp_of(row_f x) {
    const row_f magic = row_splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer, kept in the low bits */
    row_f z = x * row_splat(1.44269504f) + magic;
    row_f n = z - magic;
    row_f r = (x - n * row_splat(0.693359375f)) - n * row_splat(-2.12194440e-4f);
    row_f p = row_splat(1.0f / 5040.0f);
    p = p * r + row_splat(1.0f / 720.0f);
    p = p * r + row_splat(1.0f / 120.0f);
    p = p * r + row_splat(1.0f / 24.0f);
    p = p * r + row_splat(1.0f / 6.0f);
    p = p * r + row_splat(0.5f);
    p = p * (r * r) + r + row_splat(1.0f);
    return p * row_power(z, magic);
}

/* log(a), 0.5 <= a <= 1: -2 artanh(z), z = (1 - a) / (1 + a) <= 1/3, odd series to z^13. */
ROW_FN row_f row_log_of(row_f a) {
    row_f z = (row_splat(1.0f) - a) / (row_splat(1.0f) + a), s = z * z;
    row_f p = row_splat(1.0f / 13.0f);
    p = p * s + row_splat(1.0f / 11.0f);
    p = p * s + row_splat(1.0f / 9.0f);
    p = p * s + row_splat(1.0f / 7.0f);
    p = p * s + row_splat(1.0f / 5.0f);
    p = p * s + row_splat(1.0f / 3.0f);
    p = p * s + row_splat(1.0f);
    return row_splat(-2.0f) * z * p;
}

/* exp(x - max) */
ROW_FN row_f row_softmax_of(row_f x, float max) {
    return row_exp_of(row_clamp(x - row_splat(max)));
}

/* With m = min(max, 0) and c = exp(m): u = exp(x - m) for x < 0, exp(-x) else (then m = 0), and 1 + u c = 1 +
 * exp(-|x|). r = sigmoid(x) / c = u / (1 + u c) for x < 0, 1 / (1 + u c) else; q = 1 - sigmoid(x) the other way round.
 */
ROW_FN void row_sigmoid_of(row_f x, float m, float c, row_f *r, row_f *q) {
    const row_mask below = x < row_splat(0.0f);
    const row_f one = row_splat(1.0f);
    row_f u = row_exp_of(row_clamp(row_pick(below, x - row_splat(m), -x)));
    row_f inv = one / (one + u * row_splat(c)), share = u * inv;
    *r = row_pick(below, share, inv);
    *q = row_pick(below, inv, share);
}

/* log r of these: min(x, 0) - m + log(1 / (1 + u c)), and that last factor is q below 0 and r else. */
ROW_FN row_f row_sigmoid_log(row_f x, float m, row_f r, row_f q) {
    const row_mask below = x < row_splat(0.0f);
    row_f power = row_clamp(row_pick(below, x - row_splat(m), row_splat(0.0f)));
    return power + row_log_of(row_pick(below, q, r));
}

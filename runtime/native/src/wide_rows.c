/* Attention over the slots that all queries see, and the exponential, with AVX-512. */
#include "wide.h"
#if NATIVE_WIDE

#include <math.h>

enum { MOST = QUERIES_AT_ONCE };

/* Asks for `count` numbers of what is read in order, CACHE_AHEAD of them later. */
WITHIN void ask_floats(const float *x, int count) {
    for (int i = 0; i < count; i += LINE_FLOATS) _mm_prefetch((const char *)(x + CACHE_AHEAD + i), _MM_HINT_T0);
}

/* exp8 of rows.c. */
WITHIN __m512 exp16(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), _mm512_min_ps(_mm512_set1_ps(88.0f), x));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.0f / 720);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    const __m512i whole = _mm512_cvtps_epi32(n);
    const __m512i first = _mm512_srai_epi32(whole, 1), second = _mm512_sub_epi32(whole, first);
    const __m512i bias = _mm512_set1_epi32(127);
    const __m512 a = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(first, bias), 23));
    const __m512 b = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(second, bias), 23));
    return _mm512_mul_ps(_mm512_mul_ps(p, a), b);
}

/* exp_sum of rows.c; sums gets its eight parts. What lies behind the last number adds nothing. */
AVX512 void wide_exp_sum(float *x, int count, float highest, float *sums) {
    const __m512 high = _mm512_set1_ps(highest), none = _mm512_set1_ps(-INFINITY);
    __m256 total = _mm256_setzero_ps();
    for (int i = 0; i < count; i += WIDE) {
        const __mmask16 there = (__mmask16)(count - i < WIDE ? (1 << (count - i)) - 1 : 0xffff);
        const __m512 e = exp16(_mm512_sub_ps(_mm512_mask_loadu_ps(none, there, x + i), high));
        _mm512_mask_storeu_ps(x + i, there, e);
        total = _mm256_add_ps(total, _mm512_castps512_ps256(e));
        total = _mm256_add_ps(total, _mm512_extractf32x8_ps(e, 1));
    }
    _mm256_storeu_ps(sums, total);
}

/* silu_times of rows.c; count a multiple of 16. */
AVX512 void wide_silu_times(const float *gate, const float *up, float *y, int count) {
    for (int i = 0; i < count; i += WIDE) {
        const __m512 g = _mm512_loadu_ps(gate + i);
        const __m512 e = exp16(_mm512_sub_ps(_mm512_setzero_ps(), g));
        const __m512 s = _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
        _mm512_storeu_ps(y + i, _mm512_mul_ps(s, _mm512_loadu_ps(up + i)));
    }
}

/* Neighbours' sums in every 128 bits, as vhaddps makes them: two of a, then two of b. */
WITHIN __m512 neighbours(__m512 a, __m512 b) { return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd)); }

WITHIN __m512 twice(const float *x) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(x)); }

WITHIN __m512 two_rows(const float *low, const float *high) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(low)), _mm256_loadu_ps(high), 1);
}

/* Both sums of each of eight registers' halves, as sums8 of attention.c makes them: those of s[0] first. */
WITHIN __m512 sums16(const __m512 *s) {
    const __m512 a = neighbours(neighbours(s[0], s[1]), neighbours(s[2], s[3]));
    const __m512 b = neighbours(neighbours(s[4], s[5]), neighbours(s[6], s[7]));
    const __m512 sum = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    /* s[j]'s two sums are at 8 * (j / 4) + j % 4 and 4 behind it */
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15), sum);
}

/* R queries times 2 * PAIRS keys, R * PAIRS at most 16. A register holds one query's products with two keys. */
WITHIN void scores(const int R, const int PAIRS, const float *const *query, float *const *out, const float *keys, int at, int dim, __m512 by) {
    const float *first = keys + (size_t)at * dim;
    __m512 s[16];
    ask_floats(first, 2 * PAIRS * dim);
    for (int j = 0; j < 16; j++) s[j] = _mm512_setzero_ps();
    for (int i = 0; i < dim; i += LANES) {
        __m512 k[4];
        for (int p = 0; p < PAIRS; p++) k[p] = two_rows(first + (size_t)(2 * p) * dim + i, first + (size_t)(2 * p + 1) * dim + i);
        for (int r = 0; r < R; r++) {
            const __m512 a = twice(query[r] + i);
            for (int p = 0; p < PAIRS; p++) s[r * PAIRS + p] = _mm512_fmadd_ps(k[p], a, s[r * PAIRS + p]);
        }
    }
    float made[2 * WIDE];
    _mm512_storeu_ps(made, _mm512_mul_ps(sums16(s), by));
    if (R * PAIRS > 8) _mm512_storeu_ps(made + WIDE, _mm512_mul_ps(sums16(s + 8), by));
    for (int r = 0; r < R; r++) memcpy(out[r] + at, made + 2 * PAIRS * r, sizeof(float) * 2 * PAIRS);
}

/* Sums of COUNT vectors of the values from column d on, weighted. */
WITHIN void weigh(const int R, const int COUNT, float *const *weights, const float *values, int common, int dim, int d, float (*out)[WIDEST_HEAD]) {
    __m512 sum[MOST][4];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < COUNT; j++) sum[r][j] = _mm512_setzero_ps();
    for (int i = 0; i < common; i++) {
        const float *value = values + (size_t)i * dim + d;
        __m512 v[4];
        ask_floats(value, COUNT * WIDE);
        for (int j = 0; j < COUNT; j++) v[j] = _mm512_loadu_ps(value + WIDE * j);
        for (int r = 0; r < R; r++) {
            const __m512 p = _mm512_set1_ps(weights[r][i]);
            for (int j = 0; j < COUNT; j++) sum[r][j] = _mm512_fmadd_ps(p, v[j], sum[r][j]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < COUNT; j++) _mm512_storeu_ps(out[r] + d + WIDE * j, sum[r][j]);
}

#define QUERIES(R, PAIRS, COUNT)                                                                                                  \
    AVX512 static void scores_##R(const float *const *query, float *const *out, const float *keys, int common, int dim, float by) { \
        for (int i = 0; i < common; i += 2 * PAIRS) scores(R, PAIRS, query, out, keys, i, dim, _mm512_set1_ps(by));               \
    }                                                                                                                             \
    AVX512 static void weigh_##R(float *const *weights, const float *values, int common, int dim, float (*out)[WIDEST_HEAD]) {    \
        int d = 0;                                                                                                                \
        for (; d + COUNT * WIDE <= dim; d += COUNT * WIDE) weigh(R, COUNT, weights, values, common, dim, d, out);                 \
        for (; d < dim; d += 2 * WIDE) weigh(R, 2, weights, values, common, dim, d, out);                                         \
    }
QUERIES(1, 4, 4)
QUERIES(2, 4, 4)
QUERIES(3, 4, 4)
QUERIES(4, 4, 4)
QUERIES(5, 2, 4)
QUERIES(6, 2, 4)
QUERIES(7, 2, 2)
QUERIES(8, 2, 2)

void wide_scores(int queries, const float *const *query, float *const *out, const float *keys, int common, int dim, float scale) {
    static void (*const all[MOST])(const float *const *, float *const *, const float *, int, int, float) = EIGHT_OF(scores);
    all[queries - 1](query, out, keys, common, dim, scale);
}

void wide_weigh(int queries, float *const *weights, const float *values, int common, int dim, float (*out)[WIDEST_HEAD]) {
    static void (*const all[MOST])(float *const *, const float *, int, int, float (*)[WIDEST_HEAD]) = EIGHT_OF(weigh);
    all[queries - 1](weights, values, common, dim, out);
}

#elif NATIVE_X86

/* This compiler knows no AVX-512: it is never chosen, and these are never called. */
void wide_exp_sum(float *x, int count, float highest, float *sums) { (void)x, (void)count, (void)highest, (void)sums; }
void wide_silu_times(const float *gate, const float *up, float *y, int count) { (void)gate, (void)up, (void)y, (void)count; }
void wide_scores(int queries, const float *const *query, float *const *out, const float *keys, int common, int dim, float scale) {
    (void)queries, (void)query, (void)out, (void)keys, (void)common, (void)dim, (void)scale;
}
void wide_weigh(int queries, float *const *weights, const float *values, int common, int dim, float (*out)[WIDEST_HEAD]) {
    (void)queries, (void)weights, (void)values, (void)common, (void)dim, (void)out;
}
void wide_panel(const Matrix *m, const Quantised *x, int row, int count, int group, float *to, int stride) {
    (void)m, (void)x, (void)row, (void)count, (void)group, (void)to, (void)stride;
}
void wide_tile(const Matrix *m, const Quantised *x, int row, int count, int group, float *to, int stride) {
    (void)m, (void)x, (void)row, (void)count, (void)group, (void)to, (void)stride;
}

#endif

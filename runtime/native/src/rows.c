/* What is done to one row: embedding, norm, quantisation, rotation, the exponential. */
#include "native.h"
#if NATIVE_X86

#include <immintrin.h>
#include <math.h>
#include <string.h>

INLINE float sum8(__m256 v) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

INLINE float max8(__m256 v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

/* exp within 2 units of the last place where the result is a normal number, 0 far below. The range is cut by powers of
 * two, and a polynomial of degree 6 (its Taylor series, |r| <= ln(2) / 2) gives the rest. */
INLINE __m256 exp8(__m256 x) {
    /* In this order what is no number stays none. */
    x = _mm256_max_ps(_mm256_set1_ps(-104.0f), _mm256_min_ps(_mm256_set1_ps(88.0f), x));
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.0f / 720);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    /* 2^n in two factors: n reaches -150. */
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i first = _mm256_srai_epi32(whole, 1), second = _mm256_sub_epi32(whole, first);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
    const __m256 b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(p, a), b);
}

/* x = exp(x - highest) for `count` numbers, which must be followed by room up to a multiple of 8; their sum. */
AVX2 float exp_sum(float *x, int count, float highest) {
    if (wide_chosen()) {
        float sums[LANES];
        wide_exp_sum(x, count, highest, sums);
        return sum8(_mm256_loadu_ps(sums));
    }
    const __m256 high = _mm256_set1_ps(highest);
    __m256 total = _mm256_setzero_ps();
    for (int i = count; i % LANES; i++) x[i] = -INFINITY;
    for (int i = 0; i < count; i += LANES) {
        const __m256 e = exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i), high));
        _mm256_storeu_ps(x + i, e);
        total = _mm256_add_ps(total, e);
    }
    return sum8(total);
}

/* y = gate * sigmoid(gate) * up; count a multiple of 16. */
AVX2 void silu_times(const float *gate, const float *up, float *y, int count) {
    if (wide_chosen()) {
        wide_silu_times(gate, up, y, count);
        return;
    }
    for (int i = 0; i < count; i += LANES) {
        const __m256 g = _mm256_loadu_ps(gate + i);
        const __m256 e = exp8(_mm256_sub_ps(_mm256_setzero_ps(), g));
        const __m256 s = _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(s, _mm256_loadu_ps(up + i)));
    }
}

/* y = x + gate * sigmoid(gate); count a multiple of 8. */
AVX2 void silu_plus(const float *gate, const float *x, float *y, int count) {
    for (int i = 0; i < count; i += LANES) {
        const __m256 g = _mm256_loadu_ps(gate + i);
        const __m256 e = exp8(_mm256_sub_ps(_mm256_setzero_ps(), g));
        const __m256 s = _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(x + i), s));
    }
}

/* A number that is none is greater than nothing: it takes no place, and makes every log-probability none. */
INLINE void enter(float x, int place, float *best, int32_t *places, int count) {
    int i = count - 1;
    if (!(x > best[i])) return;
    for (; i > 0 && x > best[i - 1]; i--) {
        best[i] = best[i - 1];
        places[i] = places[i - 1];
    }
    best[i] = x;
    places[i] = place;
}

/* The `count` largest of x, at most MOST_BEST: log-probabilities and names. spare: width + 8 numbers. */
AVX2 void top_row(const float *x, int width, const int32_t *names, int count, float *best, int32_t *ids, float *spare) {
    int32_t places[MOST_BEST];
    for (int i = 0; i < count; i++) {
        best[i] = -INFINITY;
        places[i] = i;
    }
    int i = 0;
    for (; i + LANES <= width; i += LANES) {
        const __m256 v = _mm256_loadu_ps(x + i);
        if (!_mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_set1_ps(best[count - 1]), _CMP_GT_OQ))) continue;
        for (int j = i; j < i + LANES; j++) enter(x[j], j, best, places, count);
    }
    for (; i < width; i++) enter(x[i], i, best, places, count);
    memcpy(spare, x, sizeof(float) * (size_t)width);
    const float highest = best[0], below = logf(exp_sum(spare, width, highest));
    for (i = 0; i < count; i++) {
        best[i] = best[i] - highest - below;
        ids[i] = names ? names[places[i]] : places[i];
    }
}

/* Below it 127 / highest is no number; such a block is zeros. */
static const float LEAST = 1e-36f;

INLINE __m256i eight(const float *x, __m256 inverse) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
}

/* x[0, width) into columns from `from` on of row `row`; width and from multiples of 32. */
AVX2 void quantise_row(const float *x, const Quantised *y, int row, int from, int width) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256 positive = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    int8_t *q = y->q + (size_t)row * y->k + from;
    const size_t block = ((size_t)row * y->k + from) / BLOCK;
    for (int b = 0; b < width / BLOCK; b++, x += BLOCK, q += BLOCK) {
        __m256 most = _mm256_setzero_ps(), wrong = _mm256_setzero_ps();
        for (int i = 0; i < BLOCK; i += LANES) {
            const __m256 v = _mm256_loadu_ps(x + i);
            most = _mm256_max_ps(most, _mm256_and_ps(positive, v));
            wrong = _mm256_or_ps(wrong, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        }
        const float highest = _mm256_movemask_ps(wrong) ? NAN : max8(most); /* what is no number must be seen */
        const float scale = highest / 127.0f;
        const __m256 inverse = _mm256_set1_ps(highest > LEAST ? 127.0f / highest : 0.0f);
        const __m256i low = _mm256_packs_epi32(eight(x, inverse), eight(x + 8, inverse));
        const __m256i high = _mm256_packs_epi32(eight(x + 16, inverse), eight(x + 24, inverse));
        const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        _mm256_storeu_si256((__m256i *)q, bytes);
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
        const __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        y->scale[block + b] = scale;
        y->sum[block + b] = scale * sum8(_mm256_cvtepi32_ps(sums));
        __m256i half = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
        half = _mm256_add_epi16(half, _mm256_shuffle_epi32(half, 0xb1));
        half = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(half, 5));
        y->minus32[2 * (block + b)] = _mm256_extract_epi32(half, 0);
        y->minus32[2 * (block + b) + 1] = _mm256_extract_epi32(half, 4);
    }
}

/* A row of a table; k a multiple of its block. */
AVX2 void embed_row(const Table *t, int id, float *y) {
    const uint8_t *codes = t->codes + (size_t)id * t->k * t->bits / 8;
    const size_t blocks = (size_t)id * (t->k / t->block);
    for (int i = 0; i < t->k; i++) {
        const int code = t->bits == 8 ? codes[i] : (codes[i / 2] >> (4 * (i % 2))) & 15;
        const size_t b = blocks + i / t->block;
        y[i] = (float)(code - t->middle) * t->scale[b] + (t->offset ? t->offset[b] : 0.0f);
    }
}

/* sum = x + y (y may be NULL: no sum), normed = sum / rms(sum) * gamma; width a multiple of 8. */
AVX2 void norm_row(const Stage *stage, const float *x, const float *y, float *sum, float *normed, int width) {
    __m256 squares = _mm256_setzero_ps();
    for (int i = 0; i < width; i += LANES) {
        __m256 v = _mm256_loadu_ps(x + i);
        if (y) {
            v = _mm256_add_ps(v, _mm256_loadu_ps(y + i));
            _mm256_storeu_ps(sum + i, v);
        }
        squares = _mm256_fmadd_ps(v, v, squares);
    }
    if (y) x = sum;
    const __m256 factor = _mm256_set1_ps(1.0f / sqrtf(sum8(squares) / (float)width + stage->epsilon));
    for (int i = 0; i < width; i += LANES) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor);
        _mm256_storeu_ps(normed + i, _mm256_mul_ps(v, _mm256_loadu_ps(stage->gamma + i)));
    }
}

/* Half-split rotation of `dim` numbers at a position. */
INLINE void rotate(const float *x, float *y, const float *cos, const float *sin, int dim) {
    const int half = dim / 2;
    for (int i = 0; i < half; i += LANES) {
        const __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
        const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
        _mm256_storeu_ps(y + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(y + half + i, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
}

/* Rotates the queries in place, and writes keys (rotated) and values behind the committed rows; dim a multiple of 16. */
AVX2 void rope_row(const Stage *stage, const Run *run, int row) {
    const int dim = stage->dim;
    const size_t at = (size_t)run->positions[row] * (dim / 2);
    const float *cos = stage->cos + at, *sin = stage->sin + at;
    const Floats *f = run->floats;
    float *q = f[stage->f0].data + (size_t)row * f[stage->f0].width + stage->columns[0];
    const float *k = f[stage->f1].data + (size_t)row * f[stage->f1].width + stage->columns[1];
    const float *v = f[stage->f2].data + (size_t)row * f[stage->f2].width + stage->columns[2];
    for (int h = 0; h < stage->heads; h++) rotate(q + h * dim, q + h * dim, cos, sin, dim);
    for (int h = 0; h < stage->kv_heads; h++) {
        const size_t slot = ((size_t)h * run->slots + run->before + row) * dim;
        rotate(k + h * dim, run->past[2 * stage->layer] + slot, cos, sin, dim);
        memcpy(run->past[2 * stage->layer + 1] + slot, v + h * dim, sizeof(float) * (size_t)dim);
    }
}

#endif

/* Attention of one row and head over the cache, in fp32.
 *
 * The columns that a row sees are taken in order and numbered without gaps, and every sum runs over those numbers: what a
 * row sees decides its result, not the slots at which it lies or what else is beside it.
 */
#include "native.h"

#include <immintrin.h>

enum { WIDEST_HEAD = 256 };

/* x[i] . y for eight rows x of `stride` floats. */
INLINE __m256 dot8(const float *const *x, const float *y, int dim) {
    __m256 s[LANES];
    for (int j = 0; j < LANES; j++) s[j] = _mm256_setzero_ps();
    for (int i = 0; i < dim; i += LANES) {
        const __m256 v = _mm256_loadu_ps(y + i);
        for (int j = 0; j < LANES; j++) s[j] = _mm256_fmadd_ps(_mm256_loadu_ps(x[j] + i), v, s[j]);
    }
    const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(s[0], s[1]), _mm256_hadd_ps(s[2], s[3]));
    const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(s[4], s[5]), _mm256_hadd_ps(s[6], s[7]));
    const __m128 low = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 high = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    return _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
}

/* What a row sees: the slots before the first that it does not, and the others after that. */
AVX2 void look(const Run *run, int row) {
    const float *bias = run->bias + (size_t)row * run->slots;
    const int columns = run->before + run->rows;
    int32_t *seen = run->seen + (size_t)row * run->slots;
    int at = 0, more = 0;
    while (at + LANES <= columns) {
        const __m256 shut = _mm256_cmp_ps(_mm256_loadu_ps(bias + at), _mm256_setzero_ps(), _CMP_NEQ_UQ);
        if (_mm256_movemask_ps(shut)) break;
        at += LANES;
    }
    while (at < columns && bias[at] == 0.0f) at++;
    run->prefix[row] = at;
    for (; at < columns; at++)
        if (bias[at] == 0.0f) seen[more++] = at;
    run->more[row] = more;
}

/* scores: room of this thread for slots + 8 numbers. */
AVX2 void attend(const Stage *stage, const Run *run, int row, int head, float *scores) {
    const int dim = stage->dim, kv = head / (stage->heads / stage->kv_heads), width = run->floats[stage->f0].width;
    const float *query = run->floats[stage->f0].data + (size_t)row * width + stage->columns[0] + head * dim;
    const float *keys = run->past[2 * stage->layer] + (size_t)kv * run->slots * dim;
    const float *values = run->past[2 * stage->layer + 1] + (size_t)kv * run->slots * dim;
    const int32_t *seen = run->seen + (size_t)row * run->slots;
    const int prefix = run->prefix[row], count = prefix + run->more[row];
    const __m256 scale = _mm256_set1_ps(stage->scale);
    __m256 most = _mm256_set1_ps(-3e38f);
    for (int i = 0; i < count; i += LANES) {
        const float *rows[LANES];
        for (int j = 0; j < LANES; j++) {
            const int at = i + j < count ? i + j : count - 1;
            rows[j] = keys + (size_t)(at < prefix ? at : seen[at - prefix]) * dim;
        }
        const __m256 s = _mm256_mul_ps(dot8(rows, query, dim), scale);
        _mm256_storeu_ps(scores + i, s);
        most = _mm256_max_ps(most, s);
    }
    float all[LANES], highest;
    _mm256_storeu_ps(all, most);
    highest = all[0];
    for (int j = 1; j < LANES; j++) highest = all[j] > highest ? all[j] : highest;
    const float inverse = 1.0f / exp_sum(scores, count, highest);
    float out[WIDEST_HEAD];
    for (int d = 0; d < dim; d += 64) {
        const int wide = dim - d < 64 ? (dim - d) / LANES : 8;
        __m256 sum[8];
        for (int j = 0; j < 8; j++) sum[j] = _mm256_setzero_ps();
        for (int i = 0; i < count; i++) {
            const float *value = values + (size_t)(i < prefix ? i : seen[i - prefix]) * dim + d;
            const __m256 p = _mm256_broadcast_ss(scores + i);
            if (wide == 8) {
                for (int j = 0; j < 8; j++) sum[j] = _mm256_fmadd_ps(p, _mm256_loadu_ps(value + LANES * j), sum[j]);
            } else {
                for (int j = 0; j < wide; j++) sum[j] = _mm256_fmadd_ps(p, _mm256_loadu_ps(value + LANES * j), sum[j]);
            }
        }
        for (int j = 0; j < wide; j++) _mm256_storeu_ps(out + d + LANES * j, _mm256_mul_ps(sum[j], _mm256_set1_ps(inverse)));
    }
    if (stage->q0 >= 0) quantise_row(out, run->quantised + stage->q0, row, head * dim, dim);
    if (stage->f1 >= 0) {
        float *to = run->floats[stage->f1].data + (size_t)row * run->floats[stage->f1].width + head * dim;
        for (int d = 0; d < dim; d += LANES) _mm256_storeu_ps(to + d, _mm256_loadu_ps(out + d));
    }
}

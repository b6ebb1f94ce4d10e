/* Attention of up to eight queries of one key and value head over the cache, in fp32.
 *
 * The columns that a row sees are taken in order and numbered without gaps, and every sum runs over those numbers: what a
 * row sees decides its result, not the slots at which it lies or what else is beside it. Queries that stand together share
 * what is read of the cache, and nothing else.
 */
#include "native.h"
#if NATIVE_X86

#include <immintrin.h>

/* FEW: columns that are added for one query before the next. */
enum { MOST = QUERIES_AT_ONCE, FOUR = 4, FEW = 32 };

/* query, out  of each; sees: columns it sees, of which the first `prefix` are the first slots, the rest in `seen` */
typedef struct {
    const float *query;
    const int32_t *seen;
    float *scores;
    int prefix, sees, row, head;
} Query;

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

/* The sums of eight vectors, in order; each is added up as ((0+1)+(2+3)) + ((4+5)+(6+7)). */
INLINE __m256 sums8(const __m256 *s) {
    const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(s[0], s[1]), _mm256_hadd_ps(s[2], s[3]));
    const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(s[4], s[5]), _mm256_hadd_ps(s[6], s[7]));
    const __m128 low = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 high = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    return _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
}

/* Asks for `count` numbers of what is read in order, CACHE_AHEAD of them later. */
INLINE void ask_ahead(const float *x, int count) {
    for (int i = 0; i < count; i += LINE_FLOATS) _mm_prefetch((const char *)(x + CACHE_AHEAD + i), _MM_HINT_T0);
}

/* R queries times 8 / R keys (R = 3: two), which are rows of `dim` numbers: the products, query by query. */
INLINE __m256 products(const int R, const int keys, const Query *q, const float *const *key, int dim) {
    __m256 s[8];
    for (int j = 0; j < 8; j++) s[j] = _mm256_setzero_ps();
    for (int i = 0; i < dim; i += LANES) {
        __m256 k[8];
        for (int j = 0; j < keys; j++) k[j] = _mm256_loadu_ps(key[j] + i);
        for (int r = 0; r < R; r++) {
            const __m256 a = _mm256_loadu_ps(q[r].query + i);
            for (int j = 0; j < keys; j++) s[r * keys + j] = _mm256_fmadd_ps(k[j], a, s[r * keys + j]);
        }
    }
    return sums8(s);
}

/* Scores of the first `common` slots for R queries; common a multiple of the keys at once. */
INLINE void score_common(const int R, const Query *q, const float *keys, int common, int dim, __m256 scale) {
    const int at_once = R == 1 ? 8 : R == 2 ? 4 : 2;
    for (int i = 0; i < common; i += at_once) {
        const float *key[8];
        float made[8];
        ask_ahead(keys + (size_t)i * dim, at_once * dim);
        for (int j = 0; j < at_once; j++) key[j] = keys + (size_t)(i + j) * dim;
        _mm256_storeu_ps(made, _mm256_mul_ps(products(R, at_once, q, key, dim), scale));
        for (int r = 0; r < R; r++)
            for (int j = 0; j < at_once; j++) q[r].scores[i + j] = made[r * at_once + j];
    }
}

INLINE const float *column(const Query *q, const float *rows, int at, int dim) {
    return rows + (size_t)(at < q->prefix ? at : q->seen[at - q->prefix]) * dim;
}

/* Asks for columns [at, at + count) of a query, which may lie anywhere. */
INLINE void ask(const Query *q, const float *rows, int at, int count, int dim) {
    for (int i = at; i < at + count && i < q->sees; i++)
        for (int d = 0; d < dim; d += LINE_FLOATS) _mm_prefetch((const char *)(column(q, rows, i, dim) + d), _MM_HINT_T0);
}

/* Scores of the columns from `from` on for R queries of one row. */
INLINE void score_rest(const int R, const Query *q, const float *keys, int from, int dim, __m256 scale) {
    for (int i = from; i < q->sees; i += LANES) {
        const float *key[LANES];
        ask(q, keys, i + LANES, LANES, dim);
        for (int j = 0; j < LANES; j++) key[j] = column(q, keys, i + j < q->sees ? i + j : q->sees - 1, dim);
        for (int r = 0; r < R; r++) _mm256_storeu_ps(q[r].scores + i, _mm256_mul_ps(products(1, 8, q + r, key, dim), scale));
    }
}

AVX2 static float highest(const float *x, int count) {
    float most = x[0];
    int i = 0;
    if (count >= LANES) {
        __m256 m = _mm256_loadu_ps(x);
        for (i = LANES; i + LANES <= count; i += LANES) m = _mm256_max_ps(m, _mm256_loadu_ps(x + i));
        float all[LANES];
        _mm256_storeu_ps(all, m);
        for (int j = 0; j < LANES; j++) most = all[j] > most ? all[j] : most;
    }
    for (; i < count; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* Sums of WIDE vectors of the values of the common slots from column d on, weighted, for R queries. */
INLINE void weigh(const int R, const int WIDE, const Query *q, const float *values, int common, int dim, int d, float (*out)[WIDEST_HEAD]) {
    __m256 sum[FOUR][4];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < WIDE; j++) sum[r][j] = _mm256_setzero_ps();
    for (int i = 0; i < common; i++) {
        const float *value = values + (size_t)i * dim + d;
        __m256 v[4];
        ask_ahead(value, WIDE * LANES);
        for (int j = 0; j < WIDE; j++) v[j] = _mm256_loadu_ps(value + LANES * j);
        for (int r = 0; r < R; r++) {
            const __m256 p = _mm256_broadcast_ss(q[r].scores + i);
            for (int j = 0; j < WIDE; j++) sum[r][j] = _mm256_fmadd_ps(p, v[j], sum[r][j]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < WIDE; j++) _mm256_storeu_ps(out[r] + d + LANES * j, sum[r][j]);
}

/* Adds columns [from, until) of one query to its sums, WIDE vectors from column d on. */
INLINE void add_columns(const int WIDE, const Query *q, const float *values, int from, int until, int dim, int d, float *out) {
    __m256 sum[8];
    for (int j = 0; j < WIDE; j++) sum[j] = _mm256_loadu_ps(out + d + LANES * j);
    for (int i = from; i < until; i++) {
        const float *value = column(q, values, i, dim) + d;
        const __m256 p = _mm256_broadcast_ss(q->scores + i);
        for (int j = 0; j < WIDE; j++) sum[j] = _mm256_fmadd_ps(p, _mm256_loadu_ps(value + LANES * j), sum[j]);
    }
    for (int j = 0; j < WIDE; j++) _mm256_storeu_ps(out + d + LANES * j, sum[j]);
}

/* The same for all columns from `from` on and R queries of one row, a few columns after the other. */
INLINE void weigh_rest(const int R, const Query *q, const float *values, int from, int dim, float (*out)[WIDEST_HEAD]) {
    for (int i = from; i < q->sees; i += FEW) {
        const int until = i + FEW < q->sees ? i + FEW : q->sees;
        ask(q, values, until, FEW, dim);
        for (int r = 0; r < R; r++) {
            int d = 0;
            for (; d + LANES * 8 <= dim; d += LANES * 8) add_columns(8, q + r, values, i, until, dim, d, out[r]);
            for (; d < dim; d += LANES * 4) add_columns(4, q + r, values, i, until, dim, d, out[r]);
        }
    }
}

/* Queries from r on that are of one row. */
INLINE int together(const Query *q, int r, int count) {
    int n = 1;
    while (r + n < count && q[r + n].row == q[r].row) n++;
    return n;
}

/* The slots that all of them see, as far as a vector of them is full. */
static int common_of(const Query *q, int count) {
    int common = q->prefix;
    for (int r = 1; r < count; r++) common = q[r].prefix < common ? q[r].prefix : common;
    return common & ~(LANES - 1);
}

/* Scores of the columns behind the common ones, and of all columns what the softmax makes of them; its sums' inverses. */
AVX2 static void soften(int R, const Query *q, const float *keys, int common, int dim, float scale, float *inverse) {
    const __m256 by = _mm256_set1_ps(scale);
    for (int r = 0, n; r < R; r += n) score_rest(n = together(q, r, R), q + r, keys, common, dim, by);
    for (int r = 0; r < R; r++) {
        const int sees = q[r].sees; /* a row that sees nothing gives zeros */
        inverse[r] = sees ? 1.0f / exp_sum(q[r].scores, sees, highest(q[r].scores, sees)) : 0.0f;
    }
}

/* Adds the values behind the common ones. */
AVX2 static void end(int R, const Query *q, const float *values, int common, int dim, const float *inverse, float (*out)[WIDEST_HEAD]) {
    for (int r = 0, n; r < R; r += n) weigh_rest(n = together(q, r, R), q + r, values, common, dim, out + r);
    for (int r = 0; r < R; r++)
        for (int d = 0; d < dim; d += LANES)
            _mm256_storeu_ps(out[r] + d, _mm256_mul_ps(_mm256_loadu_ps(out[r] + d), _mm256_set1_ps(inverse[r])));
}

INLINE void mix(const int R, const Query *q, const float *keys, const float *values, int dim, float scale, float (*out)[WIDEST_HEAD]) {
    const int common = common_of(q, R);
    float inverse[FOUR];
    score_common(R, q, keys, common, dim, _mm256_set1_ps(scale));
    soften(R, q, keys, common, dim, scale, inverse);
    if (R == FOUR) {
        for (int d = 0; d < dim; d += LANES * 2) weigh(R, 2, q, values, common, dim, d, out);
    } else {
        for (int d = 0; d < dim; d += LANES * 4) weigh(R, 4, q, values, common, dim, d, out);
    }
    end(R, q, values, common, dim, inverse, out);
}

#define MIX_OF(R)                                                                                                             \
    AVX2 static void mix_##R(const Query *q, const float *keys, const float *values, int dim, float scale, float (*out)[WIDEST_HEAD]) { \
        mix(R, q, keys, values, dim, scale, out);                                                                             \
    }
MIX_OF(1)
MIX_OF(2)
MIX_OF(3)
MIX_OF(4)

static void mix_wide(int R, const Query *q, const float *keys, const float *values, int dim, float scale, float (*out)[WIDEST_HEAD]) {
    const int common = common_of(q, R);
    const float *query[MOST];
    float *weights[MOST], inverse[MOST];
    for (int r = 0; r < R; r++) {
        query[r] = q[r].query;
        weights[r] = q[r].scores;
    }
    wide_scores(R, query, weights, keys, common, dim, scale);
    soften(R, q, keys, common, dim, scale, inverse);
    wide_weigh(R, weights, values, common, dim, out);
    end(R, q, values, common, dim, inverse, out);
}

static void mix_all(int R, const Query *q, const float *keys, const float *values, int dim, float scale, float (*out)[WIDEST_HEAD]) {
    static void (*const mixes[])(const Query *, const float *, const float *, int, float, float (*)[WIDEST_HEAD]) = {
        mix_1, mix_2, mix_3, mix_4};
    if (wide_chosen()) {
        mix_wide(R, q, keys, values, dim, scale, out);
        return;
    }
    for (int r = 0; r < R; r += FOUR) mixes[(R - r < FOUR ? R - r : FOUR) - 1](q + r, keys, values, dim, scale, out + r);
}

/* Queries [from, from + count) of the rows x heads that share key and value head `kv`; scores: room of this thread for
 * slots + 8 numbers of each. */
void attend(const Stage *stage, const Run *run, int kv, int from, int count, float *scores) {
    const int dim = stage->dim, share = stage->heads / stage->kv_heads;
    const Floats *x = run->floats + stage->f0;
    const size_t first = (size_t)kv * run->slots * dim;
    Query q[MOST];
    float out[MOST][WIDEST_HEAD];
    for (int r = 0; r < count; r++) {
        const int row = (from + r) / share, head = kv * share + (from + r) % share, prefix = run->prefix[row];
        const float *query = x->data + (size_t)row * x->width + stage->columns[0] + head * dim;
        float *own = scores + (size_t)r * (run->slots + LANES);
        q[r] = (Query){query, run->seen + (size_t)row * run->slots, own, prefix, prefix + run->more[row], row, head};
    }
    mix_all(count, q, run->past[2 * stage->layer] + first, run->past[2 * stage->layer + 1] + first, dim, stage->scale, out);
    for (int r = 0; r < count; r++) {
        if (stage->q0 >= 0) quantise_row(out[r], run->quantised + stage->q0, q[r].row, q[r].head * dim, dim);
        if (stage->f1 < 0) continue;
        float *to = run->floats[stage->f1].data + (size_t)q[r].row * run->floats[stage->f1].width + q[r].head * dim;
        for (int d = 0; d < dim; d++) to[d] = out[r][d];
    }
}

#endif

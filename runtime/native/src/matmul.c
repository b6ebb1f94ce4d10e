/* Matrix times rows of 8-bit activations.
 *
 * A matrix lies in groups of 8 rows, a group in blocks of 32 columns, so that a lane of a 256-bit register is a row and
 * its four bytes are four neighbouring columns. A block is 8 such quads; quad j of a row's block is columns 4j..4j+3.
 *
 *   U4_OFFSET   128 bytes: vector i holds quads 2i (low halves) and 2i+1 (high halves); 8 float16 scales; 8 float16
 *               offsets. A weight is scale * code + offset.
 *   U4_MIDDLE   the same without offsets. A weight is scale * (code - 8).
 *   U5_OFFSET   160 bytes: vector i holds quad 2i (low five bits) and more than half of quad 2i+1; vector 4 the rest: quad
 *               2i+1 is (vector i >> 3 ^ vector 4 >> 2i) & 31, with shifts of 16 bits, whatever that brings along (an `and`
 *               less per quad than two fields put together). 8 float16 scales; 8 float16 offsets. scale * code + offset.
 *   U5_MIDDLE   the same without offsets. A weight is scale * (code - 16).
 *   U6_SIXTEEN  192 bytes: vector 3h + i holds quad 4h + i (low six bits) and two bits of quad 4h + 3, which is (vector 3h >> 2
 *               ^ vector 3h + 1 >> 4 ^ vector 3h + 2 >> 6) & 63; 2 x 8 float16 scales, of 16 columns each.
 *               scale * (code - 32).
 *   S8_BLOCK    256 bytes of codes; 8 float16 scales.
 *
 * vpmaddubsw adds two products into 16 bits. 15 * 127 * 2 * 8 and 31 * 127 * 2 * 4 stay within them, so that 4-bit forms
 * widen once a block, 5-bit ones once a half; S8_BLOCK must widen at once. Sums of 6-bit codes start from minus32: they may
 * leave the 16 bits on the way, but 32 * 127 * 2 * 4 is within them, so that what wrapped around has wrapped back.
 */
#include "native.h"
#if NATIVE_X86

#include <immintrin.h>
#include <string.h>

enum { TILE = 4, AHEAD = 3072 };

static const int SIZE[FORMS] = {BYTES_OF_FORMS};

/* Keeps a value in its register, so that sums are built one after the other and not all at the end: compilers reorder them
 * into a tree that needs more registers than there are. */
#if defined(_MSC_VER) && !defined(__clang__)
#define PIN(x) (void)0
#else
#define PIN(x) __asm__ volatile("" : "+x"(x))
#endif

/* A loop over the rows of a tile. GCC unrolls it by itself too, but late: it then stores every sum in every block. */
#if defined(__GNUC__) && !defined(__clang__)
#define EACH_ROW(r) _Pragma("GCC unroll 4") for (int r = 0; r < R; r++)
#else
#define EACH_ROW(r) for (int r = 0; r < R; r++)
#endif

INLINE __m256i quad(const int8_t *a) {
    int32_t four;
    memcpy(&four, a, 4);
    return _mm256_set1_epi32(four);
}

/* Asks for what comes AHEAD bytes later: codes are read once, in order, faster than processors foresee by themselves. */
INLINE void ask_ahead(const uint8_t *w, int size) {
    for (int i = 0; i < size; i += 64) _mm_prefetch((const char *)w + AHEAD + i, _MM_HINT_T0);
}

INLINE __m256 half8(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }

/* Sums of pairs of 16-bit sums. */
INLINE __m256i wide(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }

/* The sums of a block's unsigned codes of 4 or 5 BITS, times the activations of their columns. */
INLINE void unsigned_sums(const int R, const int BITS, const uint8_t *w, const int8_t *const *a, __m256i *sums) {
    const __m256i mask = _mm256_set1_epi8((1 << BITS) - 1);
    const int fitting = BITS == 4 ? 4 : 2;
    for (int first = 0; first < 4; first += fitting) {
        __m256i few[TILE];
        EACH_ROW(r) few[r] = _mm256_setzero_si256();
        for (int i = first; i < first + fitting; i++) {
            const __m256i both = _mm256_loadu_si256((const __m256i *)(w + 32 * i));
            const __m256i even = _mm256_and_si256(both, mask);
            __m256i odd = _mm256_srli_epi16(both, BITS == 4 ? 4 : 3);
            if (BITS == 5) {
                const __m256i rest = _mm256_loadu_si256((const __m256i *)(w + 128));
                odd = _mm256_xor_si256(odd, _mm256_srli_epi16(rest, 2 * i));
            }
            odd = _mm256_and_si256(odd, mask);
            EACH_ROW(r) {
                few[r] = _mm256_add_epi16(few[r], _mm256_maddubs_epi16(even, quad(a[r] + 8 * i)));
                few[r] = _mm256_add_epi16(few[r], _mm256_maddubs_epi16(odd, quad(a[r] + 8 * i + 4)));
                PIN(few[r]);
            }
        }
        EACH_ROW(r) sums[r] = first ? _mm256_add_epi32(sums[r], wide(few[r])) : wide(few[r]);
    }
}

/* OWN: every weight's offset is stored; otherwise it is minus half the range of codes, times its scale. */
INLINE void unsigned_codes(const int R, const int BITS, const int OWN, const uint8_t *w, const Quantised *x, int row,
                           __m256 *out) {
    const int blocks = x->k / BLOCK, codes = BITS * BLOCK, size = codes + (OWN ? 4 : 2) * LANES;
    __m256 total[TILE], shift[TILE];
    const int8_t *a[TILE];
    const float *scale[TILE], *sum[TILE];
    EACH_ROW(r) {
        total[r] = shift[r] = _mm256_setzero_ps();
        a[r] = x->q + (size_t)(row + r) * x->k;
        scale[r] = x->scale + (size_t)(row + r) * blocks;
        sum[r] = x->sum + (size_t)(row + r) * blocks;
    }
    for (int b = 0; b < blocks; b++, w += size) {
        __m256i sums[TILE];
        ask_ahead(w, size);
        unsigned_sums(R, BITS, w, a, sums);
        const __m256 ws = half8(w + codes), wo = OWN ? half8(w + codes + 2 * LANES) : ws;
        EACH_ROW(r) {
            const __m256 s = _mm256_mul_ps(ws, _mm256_broadcast_ss(scale[r] + b));
            total[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r]), s, total[r]);
            shift[r] = _mm256_fmadd_ps(wo, _mm256_broadcast_ss(sum[r] + b), shift[r]);
            a[r] += BLOCK;
        }
    }
    const __m256 by = _mm256_set1_ps(OWN ? 1.0f : -(float)(1 << (BITS - 1)));
    EACH_ROW(r) out[r] = _mm256_fmadd_ps(shift[r], by, total[r]);
}

#define UNSIGNED_CODES(form, BITS, OWN) \
    INLINE void form(const int R, const uint8_t *w, const Quantised *x, int row, __m256 *out) { \
        unsigned_codes(R, BITS, OWN, w, x, row, out); \
    }
UNSIGNED_CODES(u4_offset, 4, 1)
UNSIGNED_CODES(u4_middle, 4, 0)
UNSIGNED_CODES(u5_offset, 5, 1)
UNSIGNED_CODES(u5_middle, 5, 0)

INLINE void u6_sixteen(const int R, const uint8_t *w, const Quantised *x, int row, __m256 *out) {
    const int blocks = x->k / BLOCK;
    const __m256i mask = _mm256_set1_epi8(63);
    __m256 total[TILE];
    const int8_t *a[TILE];
    const float *scale[TILE];
    const int32_t *start[TILE];
    EACH_ROW(r) {
        total[r] = _mm256_setzero_ps();
        a[r] = x->q + (size_t)(row + r) * x->k;
        scale[r] = x->scale + (size_t)(row + r) * blocks;
        start[r] = x->minus32 + (size_t)(row + r) * blocks * 2;
    }
    for (int b = 0; b < blocks; b++, w += BYTES_U6_SIXTEEN) {
        ask_ahead(w, BYTES_U6_SIXTEEN);
        for (int h = 0; h < 2; h++) {
            __m256i sums[TILE], last = _mm256_setzero_si256();
            EACH_ROW(r) sums[r] = _mm256_set1_epi32(start[r][2 * b + h]);
            for (int i = 0; i < 4; i++) {
                __m256i code = last;
                if (i < 3) {
                    code = _mm256_loadu_si256((const __m256i *)(w + 96 * h + 32 * i));
                    last = _mm256_xor_si256(last, _mm256_srli_epi16(code, 2 * i + 2));
                }
                code = _mm256_and_si256(code, mask);
                EACH_ROW(r) {
                    sums[r] = _mm256_add_epi16(sums[r], _mm256_maddubs_epi16(code, quad(a[r] + 16 * h + 4 * i)));
                    PIN(sums[r]);
                }
            }
            const __m256 ws = half8(w + 192 + 2 * LANES * h);
            EACH_ROW(r) {
                const __m256 s = _mm256_mul_ps(ws, _mm256_broadcast_ss(scale[r] + b));
                total[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide(sums[r])), s, total[r]);
            }
        }
        EACH_ROW(r) a[r] += BLOCK;
    }
    EACH_ROW(r) out[r] = total[r];
}

INLINE void s8_block(const int R, const uint8_t *w, const Quantised *x, int row, __m256 *out) {
    const int blocks = x->k / BLOCK;
    const int8_t *a[TILE];
    const float *scale[TILE];
    EACH_ROW(r) {
        out[r] = _mm256_setzero_ps();
        a[r] = x->q + (size_t)(row + r) * x->k;
        scale[r] = x->scale + (size_t)(row + r) * blocks;
    }
    for (int b = 0; b < blocks; b++, w += BYTES_S8_BLOCK) {
        ask_ahead(w, BYTES_S8_BLOCK);
        __m256i sums[TILE];
        EACH_ROW(r) sums[r] = _mm256_setzero_si256();
        for (int i = 0; i < 8; i++) {
            const __m256i code = _mm256_loadu_si256((const __m256i *)(w + 32 * i));
            const __m256i size = _mm256_abs_epi8(code);
            EACH_ROW(r) {
                const __m256i signed_ = _mm256_sign_epi8(quad(a[r] + 4 * i), code);
                const __m256i pairs = _mm256_maddubs_epi16(size, signed_);
                sums[r] = _mm256_add_epi32(sums[r], wide(pairs));
                PIN(sums[r]);
            }
        }
        const __m256 ws = half8(w + 256);
        EACH_ROW(r) {
            const __m256 s = _mm256_mul_ps(ws, _mm256_broadcast_ss(scale[r] + b));
            out[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r]), s, out[r]);
            a[r] += BLOCK;
        }
    }
}

typedef void (*Tile)(const uint8_t *, const Quantised *, int, __m256 *);

/* One function per form and number of rows, so that every loop over rows is unrolled into registers. */
#define TILE_OF(form, R) \
    AVX2 static void form##_##R(const uint8_t *w, const Quantised *x, int row, __m256 *out) { form(R, w, x, row, out); }
#define TILES(form) TILE_OF(form, 1) TILE_OF(form, 2) TILE_OF(form, 3) TILE_OF(form, 4)
TILES(u4_offset)
TILES(u4_middle)
TILES(u5_offset)
TILES(u5_middle)
TILES(u6_sixteen)
TILES(s8_block)
#define NAMES(form) {form##_1, form##_2, form##_3, form##_4}
static const Tile TILES_OF[FORMS][TILE] = {
    NAMES(u4_offset), NAMES(u4_middle), NAMES(u5_offset), NAMES(u5_middle), NAMES(u6_sixteen), NAMES(s8_block),
};

INLINE const uint8_t *group_of(const Matrix *m, int group) {
    return m->data + (size_t)group * (m->k / BLOCK) * SIZE[m->form];
}

/* Eight results of each of at most four rows from `row` on. */
INLINE void tile(const Matrix *m, const Quantised *x, int row, int count, int group, __m256 *out) {
    TILES_OF[m->form][count - 1](group_of(m, group), x, row, out);
    const __m256 unscale = _mm256_set1_ps(m->unscale);
    const __m256 bias = m->bias ? _mm256_loadu_ps(m->bias + (size_t)LANES * group) : _mm256_setzero_ps();
    for (int r = 0; r < count; r++) out[r] = _mm256_fmadd_ps(out[r], unscale, bias);
}

/* y[row, 8 group ...] of `groups` groups for every row; stride: floats from a row of y to the next. */
AVX2 void matmul(const Matrix *m, const Quantised *x, int rows, int group, int groups, float *y, int stride) {
    __m256 out[TILE];
    for (int g = group; g < group + groups; g++) {
        const int from = LANES * g;
        for (int row = 0; row < rows; row += TILE) {
            const int count = rows - row < TILE ? rows - row : TILE;
            tile(m, x, row, count, g, out);
            for (int r = 0; r < count; r++) {
                float *to = y + (size_t)(row + r) * stride + from;
                if (from + LANES <= m->n) {
                    _mm256_storeu_ps(to, out[r]);
                } else {
                    float last[LANES];
                    _mm256_storeu_ps(last, out[r]);
                    memcpy(to, last, sizeof(float) * (size_t)(m->n - from));
                }
            }
        }
    }
}

/* Block `block` of silu(gate) * up of every row, quantised. */
AVX2 void swiglu(const Stage *stage, const Quantised *x, int rows, int block, const Quantised *y) {
    __m256 out[TILE];
    float half[2][TILE][BLOCK], made[BLOCK];
    for (int row = 0; row < rows; row += TILE) {
        const int count = rows - row < TILE ? rows - row : TILE;
        for (int i = 0; i < 2; i++) {
            const int group = (stage->first[i] + BLOCK * block) / LANES;
            for (int g = 0; g < BLOCK / LANES; g++) {
                tile(stage->matrices + i, x, row, count, group + g, out);
                for (int r = 0; r < count; r++) _mm256_storeu_ps(half[i][r] + LANES * g, out[r]);
            }
        }
        for (int r = 0; r < count; r++) {
            silu_times(half[0][r], half[1][r], made, BLOCK);
            quantise_row(made, y, row + r, BLOCK * block, BLOCK);
        }
    }
}

#endif

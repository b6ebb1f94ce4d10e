/* The forms of matmul.c with AVX-512 VNNI: sixteen results, those of two neighbouring groups, and up to eight rows at a time.
 * The low half of a register is the first group's, the high half the second's.
 */
#include "wide.h"
#if NATIVE_WIDE

static const int SIZE[FORMS] = {BYTES_OF_FORMS};

/* OWN: every weight's offset is stored; otherwise it is minus half the range of codes, times its scale. */
WITHIN void unsigned_codes(const int R, const int BITS, const int OWN, Pair w, const Quantised *x, int row, __m512 *out) {
    const int blocks = x->k / BLOCK, codes = BITS * BLOCK, size = codes + (OWN ? 4 : 2) * LANES;
    const __m512i mask = _mm512_set1_epi8((1 << BITS) - 1);
    __m512 total[WIDE_ROWS], shift[WIDE_ROWS];
    const int8_t *a = x->q + (size_t)row * x->k;
    const float *scale = x->scale + (size_t)row * blocks, *sum = x->sum + (size_t)row * blocks;
    EACH_ROW(r) total[r] = shift[r] = _mm512_setzero_ps();
    for (int b = 0; b < blocks; b++, go_on(&w, size), a += BLOCK) {
        __m512i sums[WIDE_ROWS];
        ask_ahead(&w, blocks, size);
        EACH_ROW(r) sums[r] = _mm512_setzero_si512();
        for (int i = 0; i < 4; i++) {
            const __m512i two = both(w, 32 * i), even = _mm512_and_si512(two, mask);
            __m512i odd = _mm512_srli_epi16(two, BITS == 4 ? 4 : 3);
            if (BITS == 5) odd = _mm512_xor_si512(odd, _mm512_srli_epi16(both(w, 128), 2 * i));
            odd = _mm512_and_si512(odd, mask);
            EACH_ROW(r) {
                const int8_t *at = a + (size_t)r * x->k + 8 * i;
                sums[r] = _mm512_dpbusd_epi32(sums[r], even, quad(at));
                sums[r] = _mm512_dpbusd_epi32(sums[r], odd, quad(at + 4));
                PIN(sums[r]);
            }
        }
        const __m512 ws = halves(w, codes), wo = OWN ? halves(w, codes + 2 * LANES) : ws;
        EACH_ROW(r) {
            const size_t at = (size_t)r * blocks + b;
            const __m512 s = _mm512_mul_ps(ws, _mm512_set1_ps(scale[at]));
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r]), s, total[r]);
            shift[r] = _mm512_fmadd_ps(wo, _mm512_set1_ps(sum[at]), shift[r]);
        }
    }
    const __m512 by = _mm512_set1_ps(OWN ? 1.0f : -(float)(1 << (BITS - 1)));
    EACH_ROW(r) out[r] = _mm512_fmadd_ps(shift[r], by, total[r]);
}

WITHIN void u4_offset(const int R, Pair w, const Quantised *x, int row, __m512 *out) { unsigned_codes(R, 4, 1, w, x, row, out); }
WITHIN void u4_middle(const int R, Pair w, const Quantised *x, int row, __m512 *out) { unsigned_codes(R, 4, 0, w, x, row, out); }
WITHIN void u5_offset(const int R, Pair w, const Quantised *x, int row, __m512 *out) { unsigned_codes(R, 5, 1, w, x, row, out); }
WITHIN void u5_middle(const int R, Pair w, const Quantised *x, int row, __m512 *out) { unsigned_codes(R, 5, 0, w, x, row, out); }

WITHIN void u6_sixteen(const int R, Pair w, const Quantised *x, int row, __m512 *out) {
    const int blocks = x->k / BLOCK;
    const __m512i mask = _mm512_set1_epi8(63);
    const int8_t *a = x->q + (size_t)row * x->k;
    const float *scale = x->scale + (size_t)row * blocks;
    const int32_t *start = x->minus32 + (size_t)row * blocks * 2;
    __m512 total[WIDE_ROWS];
    EACH_ROW(r) total[r] = _mm512_setzero_ps();
    for (int b = 0; b < blocks; b++, go_on(&w, BYTES_U6_SIXTEEN), a += BLOCK) {
        ask_ahead(&w, blocks, BYTES_U6_SIXTEEN);
        for (int h = 0; h < 2; h++) {
            __m512i sums[WIDE_ROWS], last = _mm512_setzero_si512();
            EACH_ROW(r) sums[r] = begin(start[((size_t)r * blocks + b) * 2 + h]);
            for (int i = 0; i < 4; i++) {
                __m512i code = last;
                if (i < 3) {
                    code = both(w, 96 * h + 32 * i);
                    last = _mm512_xor_si512(last, _mm512_srli_epi16(code, 2 * i + 2));
                }
                code = _mm512_and_si512(code, mask);
                EACH_ROW(r) {
                    sums[r] = _mm512_dpbusd_epi32(sums[r], code, quad(a + (size_t)r * x->k + 16 * h + 4 * i));
                    PIN(sums[r]);
                }
            }
            const __m512 ws = halves(w, 192 + 2 * LANES * h);
            EACH_ROW(r) {
                const __m512 s = _mm512_mul_ps(ws, _mm512_set1_ps(scale[(size_t)r * blocks + b]));
                total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r]), s, total[r]);
            }
        }
    }
    EACH_ROW(r) out[r] = total[r];
}

/* Codes are unsigned behind 128: four times what minus32 holds of both halves makes up for it. */
WITHIN void s8_block(const int R, Pair w, const Quantised *x, int row, __m512 *out) {
    const int blocks = x->k / BLOCK;
    const __m512i flip = _mm512_set1_epi8(-128);
    const int8_t *a = x->q + (size_t)row * x->k;
    const float *scale = x->scale + (size_t)row * blocks;
    const int32_t *start = x->minus32 + (size_t)row * blocks * 2;
    EACH_ROW(r) out[r] = _mm512_setzero_ps();
    for (int b = 0; b < blocks; b++, go_on(&w, BYTES_S8_BLOCK), a += BLOCK) {
        __m512i sums[WIDE_ROWS];
        ask_ahead(&w, blocks, BYTES_S8_BLOCK);
        EACH_ROW(r) {
            const int32_t *at = start + ((size_t)r * blocks + b) * 2;
            sums[r] = _mm512_slli_epi32(_mm512_add_epi32(begin(at[0]), begin(at[1])), 2);
        }
        for (int i = 0; i < 8; i++) {
            const __m512i code = _mm512_xor_si512(both(w, 32 * i), flip);
            EACH_ROW(r) {
                sums[r] = _mm512_dpbusd_epi32(sums[r], code, quad(a + (size_t)r * x->k + 4 * i));
                PIN(sums[r]);
            }
        }
        const __m512 ws = halves(w, 256);
        EACH_ROW(r) {
            const __m512 s = _mm512_mul_ps(ws, _mm512_set1_ps(scale[(size_t)r * blocks + b]));
            out[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r]), s, out[r]);
        }
    }
}

#define TILE(form, R) \
    AVX512 static void form##_##R(Pair w, const Quantised *x, int row, __m512 *out) { form(R, w, x, row, out); }
#define TILES(form) \
    TILE(form, 1) TILE(form, 2) TILE(form, 3) TILE(form, 4) TILE(form, 5) TILE(form, 6) TILE(form, 7) TILE(form, 8)
TILES(u4_offset)
TILES(u4_middle)
TILES(u5_offset)
TILES(u5_middle)
TILES(u6_sixteen)
TILES(s8_block)

static void (*const TILES_OF[FORMS][WIDE_ROWS])(Pair, const Quantised *, int, __m512 *) = {
    EIGHT_OF(u4_offset), EIGHT_OF(u4_middle), EIGHT_OF(u5_offset), EIGHT_OF(u5_middle), EIGHT_OF(u6_sixteen), EIGHT_OF(s8_block)};

AVX512 void wide_tile(const Matrix *m, const Quantised *x, int row, int count, int group, float *to, int stride) {
    const int blocks = m->k / BLOCK, size = SIZE[m->form];
    const Pair pair = pair_of(m->data + (size_t)group * blocks * size, blocks, size);
    __m512 out[WIDE_ROWS];
    TILES_OF[m->form][count - 1](pair, x, row, out);
    const __m512 unscale = _mm512_set1_ps(m->unscale);
    const __m512 bias = m->bias ? _mm512_loadu_ps(m->bias + (size_t)LANES * group) : _mm512_setzero_ps();
    for (int r = 0; r < count; r++) _mm512_storeu_ps(to + (size_t)r * stride, _mm512_fmadd_ps(out[r], unscale, bias));
}

#endif

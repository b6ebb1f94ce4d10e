/* The forms of matmul.c with AVX-512 VNNI for many rows: the codes of four groups are taken apart once, a slab of columns at a time,
 * and then stand ready for every four rows. The steps of a lane are those of wide.c. Eight rows of two groups would need twice
 * as many loads of activations, and be bound by these.
 */
#include "wide.h"
#if NATIVE_WIDE

#include <immintrin.h>
#include <string.h>

/* SLAB: blocks that are taken apart at once; with the rows' sums they fit into a core's first cache. FEW: rows of a tile. */
enum { SLAB = 18, QUADS = 8, FEW = 4, PAIRS = 2, TILES = PANEL_ROWS / FEW, LINE = 64 };

static const int SIZE[FORMS] = {BYTES_OF_FORMS};

/* Quads of the groups' rows as bytes; factors: scales and offsets, or the scales of both halves. */
typedef struct {
    __m512i quads[SLAB][QUADS][PAIRS];
    __m512 factors[SLAB][2][PAIRS];
} Slab;

/* What sums a tile up over the slabs; shift: of offsets. */
typedef struct {
    __m512 total[FEW][PAIRS], shift[FEW][PAIRS];
} Sums;

/* The activations of some rows from a block on. */
typedef struct {
    const int8_t *q;
    const float *scale, *sum;
    const int32_t *minus32;
    int k;
} Rows;

WITHIN Rows rows_from(const Quantised *x, int row, int block) {
    const size_t at = (size_t)row * (x->k / BLOCK) + block;
    return (Rows){x->q + at * BLOCK, x->scale + at, x->sum + at, x->minus32 + 2 * at, x->k};
}

AVX512 static void apart_unsigned(int bits, int own, Pair w, int count, Slab *to, int p) {
    const int codes = bits * BLOCK, size = codes + (own ? 4 : 2) * LANES;
    const __m512i mask = _mm512_set1_epi8((char)((1 << bits) - 1));
    for (int b = 0; b < count; b++, go_on(&w, size)) {
        for (int i = 0; i < 4; i++) {
            const __m512i two = both(w, 32 * i);
            __m512i odd = _mm512_srli_epi16(two, bits == 4 ? 4 : 3);
            if (bits == 5) odd = _mm512_xor_si512(odd, _mm512_srl_epi16(both(w, 128), _mm_cvtsi32_si128(2 * i)));
            to->quads[b][2 * i][p] = _mm512_and_si512(two, mask);
            to->quads[b][2 * i + 1][p] = _mm512_and_si512(odd, mask);
        }
        to->factors[b][0][p] = halves(w, codes);
        to->factors[b][1][p] = own ? halves(w, codes + 2 * LANES) : to->factors[b][0][p];
    }
}

AVX512 static void apart_sixteen(Pair w, int count, Slab *to, int p) {
    const __m512i mask = _mm512_set1_epi8(63);
    for (int b = 0; b < count; b++, go_on(&w, BYTES_U6_SIXTEEN)) {
        for (int h = 0; h < 2; h++) {
            __m512i last = _mm512_setzero_si512();
            for (int i = 0; i < 3; i++) {
                const __m512i code = both(w, 96 * h + 32 * i);
                last = _mm512_xor_si512(last, _mm512_srl_epi16(code, _mm_cvtsi32_si128(2 * i + 2)));
                to->quads[b][4 * h + i][p] = _mm512_and_si512(code, mask);
            }
            to->quads[b][4 * h + 3][p] = _mm512_and_si512(last, mask);
            to->factors[b][h][p] = halves(w, 192 + 2 * LANES * h);
        }
    }
}

AVX512 static void apart_block(Pair w, int count, Slab *to, int p) {
    for (int b = 0; b < count; b++, go_on(&w, BYTES_S8_BLOCK)) {
        for (int i = 0; i < QUADS; i++) to->quads[b][i][p] = _mm512_xor_si512(both(w, 32 * i), _mm512_set1_epi8(-128));
        to->factors[b][0][p] = halves(w, 256);
    }
}

static void apart(int form, Pair w, int count, Slab *to, int p) {
    switch (form) {
    case U4_OFFSET: apart_unsigned(4, 1, w, count, to, p); break;
    case U4_MIDDLE: apart_unsigned(4, 0, w, count, to, p); break;
    case U5_OFFSET: apart_unsigned(5, 1, w, count, to, p); break;
    case U5_MIDDLE: apart_unsigned(5, 0, w, count, to, p); break;
    case U6_SIXTEEN: apart_sixteen(w, count, to, p); break;
    default: apart_block(w, count, to, p); break;
    }
}

#define EACH_PAIR(p) for (int p = 0; p < PAIRS; p++)

/* The whole-number sums of quads [from, from + count) of a block, added to `sums`. */
WITHIN void add_quads(const int R, const __m512i (*quads)[PAIRS], const int from, const int count, const int8_t *q, size_t k, __m512i (*sums)[PAIRS]) {
    UNROLLED for (int i = from; i < from + count; i++) {
        const __m512i first = quads[i][0], second = quads[i][1];
        EACH_ROW(r) {
            const __m512i four = quad(q + r * k + 4 * i);
            sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], first, four);
            sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], second, four);
            PIN(sums[r][0]);
            PIN(sums[r][1]);
        }
    }
}

WITHIN void add_scaled(const int R, const __m512i (*sums)[PAIRS], const __m512 *scale, const float *row_scale, size_t blocks, __m512 (*total)[PAIRS]) {
    EACH_ROW(r) {
        const __m512 by = _mm512_set1_ps(row_scale[r * blocks]);
        EACH_PAIR(p) total[r][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][p]), _mm512_mul_ps(scale[p], by), total[r][p]);
    }
}

WITHIN void unsigned_rows(const int R, const Slab *slab, int count, Rows x, Sums *to) {
    const size_t k = (size_t)x.k, blocks = k / BLOCK;
    __m512 total[FEW][PAIRS], shift[FEW][PAIRS];
    EACH_ROW(r) EACH_PAIR(p) total[r][p] = to->total[r][p];
    EACH_ROW(r) EACH_PAIR(p) shift[r][p] = to->shift[r][p];
    for (int b = 0; b < count; b++) {
        __m512i sums[FEW][PAIRS];
        EACH_ROW(r) EACH_PAIR(p) sums[r][p] = _mm512_setzero_si512();
        add_quads(R, slab->quads[b], 0, QUADS, x.q + (size_t)b * BLOCK, k, sums);
        add_scaled(R, (const __m512i (*)[PAIRS])sums, slab->factors[b][0], x.scale + b, blocks, total);
        EACH_ROW(r) {
            const __m512 sum = _mm512_set1_ps(x.sum[r * blocks + b]);
            EACH_PAIR(p) shift[r][p] = _mm512_fmadd_ps(slab->factors[b][1][p], sum, shift[r][p]);
        }
    }
    EACH_ROW(r) EACH_PAIR(p) to->total[r][p] = total[r][p];
    EACH_ROW(r) EACH_PAIR(p) to->shift[r][p] = shift[r][p];
}

WITHIN void sixteen_rows(const int R, const Slab *slab, int count, Rows x, Sums *to) {
    const size_t k = (size_t)x.k, blocks = k / BLOCK;
    __m512 total[FEW][PAIRS];
    EACH_ROW(r) EACH_PAIR(p) total[r][p] = to->total[r][p];
    for (int b = 0; b < count; b++) {
        for (int h = 0; h < 2; h++) {
            __m512i sums[FEW][PAIRS];
            EACH_ROW(r) sums[r][0] = sums[r][1] = begin(x.minus32[(r * blocks + b) * 2 + h]);
            add_quads(R, slab->quads[b] + 4 * h, 0, 4, x.q + (size_t)b * BLOCK + 16 * h, k, sums);
            add_scaled(R, (const __m512i (*)[PAIRS])sums, slab->factors[b][h], x.scale + b, blocks, total);
        }
    }
    EACH_ROW(r) EACH_PAIR(p) to->total[r][p] = total[r][p];
}

WITHIN void block_rows(const int R, const Slab *slab, int count, Rows x, Sums *to) {
    const size_t k = (size_t)x.k, blocks = k / BLOCK;
    __m512 total[FEW][PAIRS];
    EACH_ROW(r) EACH_PAIR(p) total[r][p] = to->total[r][p];
    for (int b = 0; b < count; b++) {
        __m512i sums[FEW][PAIRS];
        EACH_ROW(r) {
            const int32_t *at = x.minus32 + (r * blocks + b) * 2;
            sums[r][0] = sums[r][1] = _mm512_slli_epi32(_mm512_add_epi32(begin(at[0]), begin(at[1])), 2);
        }
        add_quads(R, slab->quads[b], 0, QUADS, x.q + (size_t)b * BLOCK, k, sums);
        add_scaled(R, (const __m512i (*)[PAIRS])sums, slab->factors[b][0], x.scale + b, blocks, total);
    }
    EACH_ROW(r) EACH_PAIR(p) to->total[r][p] = total[r][p];
}

#define OF_ROWS(form, R) \
    AVX512 static void form##_##R(const Slab *slab, int count, Rows x, Sums *to) { form(R, slab, count, x, to); }
#define FORMS_OF(R) OF_ROWS(unsigned_rows, R) OF_ROWS(sixteen_rows, R) OF_ROWS(block_rows, R)
FORMS_OF(1)
FORMS_OF(2)
FORMS_OF(3)
FORMS_OF(4)

#define FOUR_OF(name) {name##_1, name##_2, name##_3, name##_4}
typedef void (*Of)(const Slab *, int, Rows, Sums *);

static Of rows_of(int form, int count) {
    static const Of all[3][FEW] = {FOUR_OF(unsigned_rows), FOUR_OF(sixteen_rows), FOUR_OF(block_rows)};
    return all[form <= U5_MIDDLE ? 0 : form == U6_SIXTEEN ? 1 : 2][count - 1];
}

/* What is left to do with a tile's sums: as in wide.c. */
AVX512 static void finish(const Matrix *m, const Sums *sums, int count, int group, float *to, int stride) {
    static const float SHIFT[FORMS] = {1, -8, 1, -16, 0, 0};
    const __m512 by = _mm512_set1_ps(SHIFT[m->form]), unscale = _mm512_set1_ps(m->unscale);
    EACH_PAIR(p) {
        const __m512 bias = m->bias ? _mm512_loadu_ps(m->bias + (size_t)LANES * group + WIDE * p) : _mm512_setzero_ps();
        for (int r = 0; r < count; r++) {
            __m512 total = sums->total[r][p];
            if (m->form <= U5_MIDDLE) total = _mm512_fmadd_ps(sums->shift[r][p], by, total);
            _mm512_storeu_ps(to + (size_t)r * stride + WIDE * p, _mm512_fmadd_ps(total, unscale, bias));
        }
    }
}

/* Asks for a part of what is taken apart next: `part` of `parts` of `bytes` of each of four groups. */
WITHIN void ask_part(const uint8_t *first, size_t group, size_t bytes, int part, int parts) {
    const size_t from = bytes * part / parts / LINE, until = bytes * (part + 1) / parts / LINE;
    for (int g = 0; g < 2 * PAIRS; g++)
        for (size_t i = from; i <= until; i++) _mm_prefetch((const char *)first + g * group + LINE * i, _MM_HINT_T0);
}

AVX512 void wide_panel(const Matrix *m, const Quantised *x, int row, int count, int group, float *to, int stride) {
    const int blocks = m->k / BLOCK, size = SIZE[m->form], tiles = (count + FEW - 1) / FEW;
    const size_t bytes = (size_t)blocks * size;
    const uint8_t *first = m->data + bytes * group;
    Sums sums[TILES];
    Slab slab;
    memset(sums, 0, sizeof(Sums) * (size_t)tiles);
    for (int b = 0; b < blocks; b += SLAB) {
        const int few = blocks - b < SLAB ? blocks - b : SLAB;
        const uint8_t *from = first + (size_t)b * size, *next = b + few < blocks ? from + (size_t)few * size : first + 2 * PAIRS * bytes;
        EACH_PAIR(p) apart(m->form, (Pair){from + 2 * p * bytes, from + (2 * p + 1) * bytes, NULL, 0}, few, &slab, p);
        for (int t = 0; t < tiles; t++) {
            const int at = t * FEW, rows = count - at < FEW ? count - at : FEW;
            ask_part(next, bytes, (size_t)few * size, t, tiles);
            rows_of(m->form, rows)(&slab, few, rows_from(x, row + at, b), sums + t);
        }
    }
    for (int t = 0; t < tiles; t++) {
        const int at = t * FEW, rows = count - at < FEW ? count - at : FEW;
        finish(m, sums + t, rows, group, to + (size_t)at * stride, stride);
    }
}

#endif

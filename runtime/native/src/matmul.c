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
 * tiles.h computes with them, once for each way of multiplying that processors have. The sums of a block are whole numbers, the
 * same in all of them, and so is every step that follows: all give the same bits.
 *
 * vpmaddubsw adds two products into 16 bits. 15 * 127 * 2 * 8 and 31 * 127 * 2 * 4 stay within them, so that 4-bit forms
 * widen once a block, 5-bit ones once a half; S8_BLOCK must widen at once. Sums of 6-bit codes start from minus32: they may
 * leave the 16 bits on the way, but 32 * 127 * 2 * 4 is within them, so that what wrapped around has wrapped back. vpdpbusd
 * (VNNI) adds four products into 32 bits.
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

typedef void (*Tile)(const uint8_t *, const Quantised *, int, __m256 *);

#define PASTE(form, set, R) form##_##set##_##R
#define NAME(form, set, R) PASTE(form, set, R)

#define SET avx2
#define KERNEL AVX2
#define VNNI 0
#include "tiles.h"

/* AVX-VNNI (Alder Lake, Zen 5), and AVX-512's (Ice Lake, Zen 4): 256 bits here for a single group, 512 in wide.c for two. */
#if NATIVE_WIDE
enum { SETS = 3, WIDE_SET = 2 };
#define SET avxvnni
#define KERNEL __attribute__((target("avx2,fma,f16c,avxvnni")))
#define VNNI 1
#define DOT(sum, code, quad) _mm256_dpbusd_avx_epi32(sum, code, quad)
#include "tiles.h"
#define SET avx512vnni
#define KERNEL __attribute__((target("avx2,fma,f16c,avx512f,avx512vl,avx512vnni")))
#define VNNI 1
#define DOT(sum, code, quad) _mm256_dpbusd_epi32(sum, code, quad)
#include "tiles.h"
#else
enum { SETS = 1, WIDE_SET = -1 };
#endif

#define NAMES(form, set) {form##_##set##_1, form##_##set##_2, form##_##set##_3, form##_##set##_4}
#define TABLE(set) \
    {NAMES(u4_offset, set), NAMES(u4_middle, set), NAMES(u5_offset, set), NAMES(u5_middle, set), NAMES(u6_sixteen, set), NAMES(s8_block, set)}
static const Tile TILES_OF[SETS][FORMS][TILE] = {
    TABLE(avx2),
#if NATIVE_WIDE
    TABLE(avxvnni),
    TABLE(avx512vnni),
#endif
};

/* The set that is used; it is chosen when the library is loaded. */
static int chosen = 0;

static int usable(int set) {
#if NATIVE_WIDE
    if (set == 1) return processor_has(HAS_AVX_VNNI);
    if (set == 2) return processor_has(HAS_AVX512_VNNI);
#endif
    return set == 0;
}

/* wanted: a set's number, -1: the best that this processor has. What is used from now on, another where it has not that one. */
EXPORT int native_instructions(int wanted) {
    static const int preferred[] = {2, 1, 0};
    for (int i = 0; wanted < 0 || !usable(wanted); i++) wanted = preferred[i];
    return chosen = wanted;
}

int wide_chosen(void) { return chosen == WIDE_SET; }

INLINE const uint8_t *group_of(const Matrix *m, int group) {
    return m->data + (size_t)group * (m->k / BLOCK) * SIZE[m->form];
}

/* Eight results of each of at most four rows from `row` on; stride: floats from a row of them to the next. */
AVX2 static void tile(const Matrix *m, const Quantised *x, int row, int count, int group, float *to, int stride) {
    __m256 out[TILE];
    TILES_OF[chosen][m->form][count - 1](group_of(m, group), x, row, out);
    const __m256 unscale = _mm256_set1_ps(m->unscale);
    const __m256 bias = m->bias ? _mm256_loadu_ps(m->bias + (size_t)LANES * group) : _mm256_setzero_ps();
    for (int r = 0; r < count; r++) _mm256_storeu_ps(to + (size_t)r * stride, _mm256_fmadd_ps(out[r], unscale, bias));
}

typedef void (*Some)(const Matrix *, const Quantised *, int, int, int, float *, int);

/* How many of `groups` groups are best done at once for so many rows: 1, 2 or 4. */
static int groups_at_once(int rows, int groups) {
    if (!wide_chosen() || groups < 2) return 1;
    return rows >= PANEL_FROM && groups >= 4 ? 4 : 2;
}

/* The results of `count` groups, 1, 2 or 4, of some rows; to: those of the first of them. */
static void tiles(const Matrix *m, const Quantised *x, Span rows, int group, int count, float *to, int stride) {
    const Some some = count == 1 ? tile : count == 2 ? wide_tile : wide_panel;
    const int most = count == 1 ? TILE : count == 2 ? WIDE_ROWS : PANEL_ROWS;
    for (int r = 0; r < rows.count; r += most)
        some(m, x, rows.from + r, rows.count - r < most ? rows.count - r : most, group, to + (size_t)r * stride, stride);
}

/* The last group of a matrix whose results are no multiple of eight. */
static void last_tile(const Matrix *m, const Quantised *x, Span rows, int group, float *y, int stride) {
    float few[TILE * LANES];
    const int from = LANES * group, end = rows.from + rows.count;
    for (int row = rows.from; row < end; row += TILE) {
        const int count = end - row < TILE ? end - row : TILE;
        tile(m, x, row, count, group, few, LANES);
        for (int r = 0; r < count; r++)
            memcpy(y + (size_t)(row + r) * stride + from, few + r * LANES, sizeof(float) * (size_t)(m->n - from));
    }
}

/* y[row, 8 group ...] of `groups` groups for these rows; stride: floats from a row of y to the next. */
void matmul(const Matrix *m, const Quantised *x, Span rows, int group, int groups, float *y, int stride) {
    const int end = group + groups, whole = end < m->n / LANES ? end : m->n / LANES;
    int g = group;
    for (int count; g < whole; g += count) {
        count = groups_at_once(rows.count, whole - g);
        tiles(m, x, rows, g, count, y + (size_t)rows.from * stride + LANES * g, stride);
    }
    if (g < end) last_tile(m, x, rows, g, y, stride);
}

/* Block `block` of silu(gate) * up of these rows, quantised. */
void swiglu(const Stage *stage, const Quantised *x, Span rows, int block, const Quantised *y) {
    enum { AT_ONCE = PANEL_ROWS };
    float half[2][AT_ONCE * BLOCK], made[BLOCK];
    const int count = groups_at_once(rows.count, BLOCK / LANES), end = rows.from + rows.count;
    for (int row = rows.from; row < end; row += AT_ONCE) {
        const int few = end - row < AT_ONCE ? end - row : AT_ONCE;
        for (int i = 0; i < 2; i++) {
            const int group = (stage->first[i] + BLOCK * block) / LANES;
            for (int g = 0; g < BLOCK / LANES; g += count)
                tiles(stage->matrices + i, x, (Span){row, few}, group + g, count, half[i] + LANES * g, BLOCK);
        }
        for (int r = 0; r < few; r++) {
            silu_times(half[0] + r * BLOCK, half[1] + r * BLOCK, made, BLOCK);
            quantise_row(made, y, row + r, BLOCK * block, BLOCK);
        }
    }
}

#endif

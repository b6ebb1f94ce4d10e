/* What files for AVX-512 share. They are used where native_instructions has chosen it: every lane of theirs goes through the steps that
 * it goes through in 256 bits, so that the bits are the same. */
#ifndef SPEC_EDGE_WIDE_H
#define SPEC_EDGE_WIDE_H

#include "native.h"
#if NATIVE_WIDE

#include <immintrin.h>
#include <string.h>

#define AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define WITHIN static inline __attribute__((always_inline)) AVX512

enum { WIDE = 2 * LANES, AHEAD = 3072 };

#define EIGHT_OF(name) {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8}

#define PIN(x) __asm__ volatile("" : "+v"(x))
#if defined(__clang__)
#define EACH_ROW(r) for (int r = 0; r < R; r++)
#define UNROLLED
#else
#define EACH_ROW(r) _Pragma("GCC unroll 8") for (int r = 0; r < R; r++)
#define UNROLLED _Pragma("GCC unroll 8")
#endif

/* Where the next block of both groups is, and the bytes that are asked for meanwhile: AHEAD of them in the order of reading, in which
 * the next two groups follow both of these. */
typedef struct {
    const uint8_t *low, *high, *asked;
    int left; /* blocks until `asked` is at the end of a group */
} Pair;

WITHIN __m512i both(Pair w, int at) {
    const __m256i low = _mm256_loadu_si256((const __m256i *)(w.low + at)), high = _mm256_loadu_si256((const __m256i *)(w.high + at));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

WITHIN __m512 halves(Pair w, int at) {
    const __m128i low = _mm_loadu_si128((const __m128i *)(w.low + at)), high = _mm_loadu_si128((const __m128i *)(w.high + at));
    return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
}

WITHIN __m512i quad(const int8_t *a) {
    int32_t four;
    memcpy(&four, a, 4);
    return _mm512_set1_epi32(four);
}

WITHIN Pair pair_of(const uint8_t *first, int blocks, int size) {
    const size_t group = (size_t)blocks * size;
    const int ahead = AHEAD / size;
    return (Pair){first, first + group, first + ahead / blocks * 2 * group + (size_t)(ahead % blocks) * size, blocks - ahead % blocks};
}

/* Asks for a block of both groups, and goes on to the next. */
WITHIN void ask_ahead(Pair *w, int blocks, int size) {
    const size_t group = (size_t)blocks * size;
    for (int i = 0; i < size; i += 64) {
        _mm_prefetch((const char *)w->asked + i, _MM_HINT_T0);
        _mm_prefetch((const char *)w->asked + group + i, _MM_HINT_T0);
    }
    w->asked += size;
    if (--w->left) return;
    w->asked += group;
    w->left = blocks;
}

WITHIN void go_on(Pair *w, int size) {
    w->low += size;
    w->high += size;
}

/* What minus32 holds of 16 columns: the sum of its halves. */
WITHIN __m512i begin(int32_t parts) { return _mm512_set1_epi32((int16_t)parts + (parts >> 16)); }

#endif

#endif

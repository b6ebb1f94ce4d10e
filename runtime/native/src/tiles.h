/* The kernels of every form with one set of instructions; matmul.c includes this file once for each. SET: its name. KERNEL:
 * what a function that uses it is declared with. VNNI: 1 where DOT(sum, code, quad) adds four products of unsigned and signed
 * bytes into 32 bits. */

#define JOINED(name, set) name##_##set
#define JOIN_NAMES(name, set) JOINED(name, set)
#define OF_SET(name) JOIN_NAMES(name, SET)
#if defined(_MSC_VER) && !defined(__clang__)
#define KERNEL_INLINE static __forceinline
#else
#define KERNEL_INLINE static inline __attribute__((always_inline)) KERNEL
#endif

#if VNNI
KERNEL_INLINE __m256i OF_SET(sum_up)(__m256i sum, __m256i code, __m256i quad) { return DOT(sum, code, quad); }
KERNEL_INLINE __m256i OF_SET(widen)(__m256i sums) { return sums; }
KERNEL_INLINE __m256i OF_SET(begin)(int32_t halves) { return wide(_mm256_set1_epi32(halves)); }
#else
KERNEL_INLINE __m256i OF_SET(sum_up)(__m256i sum, __m256i code, __m256i quad) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(code, quad));
}
KERNEL_INLINE __m256i OF_SET(widen)(__m256i sums) { return wide(sums); }
KERNEL_INLINE __m256i OF_SET(begin)(int32_t halves) { return _mm256_set1_epi32(halves); }
#endif

/* The sums of a block's unsigned codes of 4 or 5 BITS, times the activations of their columns. */
KERNEL_INLINE void OF_SET(unsigned_sums)(const int R, const int BITS, const uint8_t *w, const int8_t *const *a, __m256i *sums) {
    const __m256i mask = _mm256_set1_epi8((1 << BITS) - 1);
    const int fitting = VNNI || BITS == 4 ? 4 : 2;
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
                few[r] = OF_SET(sum_up)(few[r], even, quad(a[r] + 8 * i));
                few[r] = OF_SET(sum_up)(few[r], odd, quad(a[r] + 8 * i + 4));
                PIN(few[r]);
            }
        }
        EACH_ROW(r) sums[r] = first ? _mm256_add_epi32(sums[r], OF_SET(widen)(few[r])) : OF_SET(widen)(few[r]);
    }
}

/* OWN: every weight's offset is stored; otherwise it is minus half the range of codes, times its scale. */
KERNEL_INLINE void OF_SET(unsigned_codes)(const int R, const int BITS, const int OWN, const uint8_t *w, const Quantised *x, int row,
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
        OF_SET(unsigned_sums)(R, BITS, w, a, sums);
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

KERNEL_INLINE void OF_SET(u4_offset)(const int R, const uint8_t *w, const Quantised *x, int row, __m256 *out) {
    OF_SET(unsigned_codes)(R, 4, 1, w, x, row, out);
}
KERNEL_INLINE void OF_SET(u4_middle)(const int R, const uint8_t *w, const Quantised *x, int row, __m256 *out) {
    OF_SET(unsigned_codes)(R, 4, 0, w, x, row, out);
}
KERNEL_INLINE void OF_SET(u5_offset)(const int R, const uint8_t *w, const Quantised *x, int row, __m256 *out) {
    OF_SET(unsigned_codes)(R, 5, 1, w, x, row, out);
}
KERNEL_INLINE void OF_SET(u5_middle)(const int R, const uint8_t *w, const Quantised *x, int row, __m256 *out) {
    OF_SET(unsigned_codes)(R, 5, 0, w, x, row, out);
}

KERNEL_INLINE void OF_SET(u6_sixteen)(const int R, const uint8_t *w, const Quantised *x, int row, __m256 *out) {
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
            EACH_ROW(r) sums[r] = OF_SET(begin)(start[r][2 * b + h]);
            for (int i = 0; i < 4; i++) {
                __m256i code = last;
                if (i < 3) {
                    code = _mm256_loadu_si256((const __m256i *)(w + 96 * h + 32 * i));
                    last = _mm256_xor_si256(last, _mm256_srli_epi16(code, 2 * i + 2));
                }
                code = _mm256_and_si256(code, mask);
                EACH_ROW(r) {
                    sums[r] = OF_SET(sum_up)(sums[r], code, quad(a[r] + 16 * h + 4 * i));
                    PIN(sums[r]);
                }
            }
            const __m256 ws = half8(w + 192 + 2 * LANES * h);
            EACH_ROW(r) {
                const __m256 s = _mm256_mul_ps(ws, _mm256_broadcast_ss(scale[r] + b));
                total[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(OF_SET(widen)(sums[r])), s, total[r]);
            }
        }
        EACH_ROW(r) a[r] += BLOCK;
    }
    EACH_ROW(r) out[r] = total[r];
}

KERNEL_INLINE void OF_SET(s8_block)(const int R, const uint8_t *w, const Quantised *x, int row, __m256 *out) {
    const int blocks = x->k / BLOCK;
    const int8_t *a[TILE];
    const float *scale[TILE];
#if VNNI
    const int32_t *start[TILE];
#endif
    EACH_ROW(r) {
        out[r] = _mm256_setzero_ps();
        a[r] = x->q + (size_t)(row + r) * x->k;
        scale[r] = x->scale + (size_t)(row + r) * blocks;
#if VNNI
        start[r] = x->minus32 + (size_t)(row + r) * blocks * 2;
#endif
    }
    for (int b = 0; b < blocks; b++, w += BYTES_S8_BLOCK) {
        ask_ahead(w, BYTES_S8_BLOCK);
        __m256i sums[TILE];
#if VNNI /* codes are unsigned behind 128: four times what minus32 holds of both halves makes up for it */
        EACH_ROW(r) {
            const __m256i both = _mm256_add_epi32(OF_SET(begin)(start[r][2 * b]), OF_SET(begin)(start[r][2 * b + 1]));
            sums[r] = _mm256_slli_epi32(both, 2);
        }
        for (int i = 0; i < 8; i++) {
            const __m256i signed_ = _mm256_loadu_si256((const __m256i *)(w + 32 * i));
            const __m256i code = _mm256_xor_si256(signed_, _mm256_set1_epi8(-128));
            EACH_ROW(r) {
                sums[r] = DOT(sums[r], code, quad(a[r] + 4 * i));
                PIN(sums[r]);
            }
        }
#else
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
#endif
        const __m256 ws = half8(w + 256);
        EACH_ROW(r) {
            const __m256 s = _mm256_mul_ps(ws, _mm256_broadcast_ss(scale[r] + b));
            out[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r]), s, out[r]);
            a[r] += BLOCK;
        }
    }
}

/* One function per form and number of rows, so that every loop over rows is unrolled into registers. */
#define TILE_OF(form, R) \
    KERNEL static void NAME(form, SET, R)(const uint8_t *w, const Quantised *x, int row, __m256 *out) { OF_SET(form)(R, w, x, row, out); }
#define TILES(form) TILE_OF(form, 1) TILE_OF(form, 2) TILE_OF(form, 3) TILE_OF(form, 4)
TILES(u4_offset)
TILES(u4_middle)
TILES(u5_offset)
TILES(u5_middle)
TILES(u6_sixteen)
TILES(s8_block)

#undef TILES
#undef TILE_OF
#undef KERNEL_INLINE
#undef OF_SET
#undef JOIN_NAMES
#undef JOINED
#undef SET
#undef KERNEL
#undef VNNI
#undef DOT

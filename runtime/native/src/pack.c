/* Matrices as MatMulNBits keeps them, into the layout of matmul.c. */
#include "native.h"
#if NATIVE_X86

#include <immintrin.h>
#include <string.h>

enum { CENTRE4 = 8, CENTRE5 = 16, CENTRE6 = 32, CENTRE8 = 128 };

AVX2 static uint16_t half_of(float x) {
    return (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT), 0);
}

/* The least n for which every 8-bit code lies within [middle - n, middle + n). */
EXPORT int native_reach(const uint8_t *codes, int64_t count) {
    int low = CENTRE8, high = CENTRE8;
    for (int64_t i = 0; i < count; i++) {
        low = codes[i] < low ? codes[i] : low;
        high = codes[i] > high ? codes[i] : high;
    }
    return CENTRE8 - low > high - CENTRE8 + 1 ? CENTRE8 - low : high - CENTRE8 + 1;
}

/* Block `b` of one row: its codes to every 8 * 4 th byte from `to` on. */
static void row_u4(const uint8_t *codes, uint8_t *to) {
    for (int i = 0; i < 4; i++)
        for (int t = 0; t < 4; t++) {
            const int low = 8 * i + t, high = low + 4;
            const uint8_t a = (codes[low / 2] >> (4 * (low % 2))) & 15, b = (codes[high / 2] >> (4 * (high % 2))) & 15;
            to[32 * i + t] = (uint8_t)(a | b << 4);
        }
}

static void put16(uint8_t *to, unsigned bits) {
    const uint16_t both = (uint16_t)bits;
    memcpy(to, &both, 2);
}

/* Two neighbouring columns of 8-bit codes around another centre: kernels shift them together. */
static unsigned two_of(const uint8_t *codes, int centre) {
    return (unsigned)(codes[0] - CENTRE8 + centre) | (unsigned)(codes[1] - CENTRE8 + centre) << 8;
}

static void row_u5(const uint8_t *codes, uint8_t *to) {
    for (int t = 0; t < 4; t += 2) {
        unsigned two[8], rest = 0;
        for (int j = 0; j < 8; j++) two[j] = two_of(codes + 4 * j + t, CENTRE5);
        for (int i = 0; i < 4; i++) rest |= ((two[2 * i + 1] ^ two[2 * i] >> 3) & 0x0303) << (2 * i);
        for (int i = 0; i < 4; i++)
            put16(to + 32 * i + t, two[2 * i] | ((two[2 * i + 1] ^ rest >> (2 * i)) & 0x1c1c) << 3);
        put16(to + 128 + t, rest);
    }
}

static void row_u6(const uint8_t *codes, uint8_t *to) {
    for (int half = 0; half < 2; half++, codes += 16, to += 96)
        for (int t = 0; t < 4; t += 2) {
            unsigned two[4];
            for (int j = 0; j < 4; j++) two[j] = two_of(codes + 4 * j + t, CENTRE6);
            const unsigned rest = two[3] ^ two[0] >> 2 ^ two[1] >> 4 ^ two[2] >> 6;
            for (int i = 0; i < 3; i++) put16(to + 32 * i + t, two[i] | (rest & 0x3030 >> 2 * i) << (2 * i + 2));
        }
}

static void row_s8(const uint8_t *codes, uint8_t *to) {
    for (int i = 0; i < 8; i++)
        for (int t = 0; t < 4; t++) to[32 * i + t] = codes[4 * i + t] ^ CENTRE8;
}

static void put_half(uint8_t *to, int lane, float x) { put16(to + 2 * lane, half_of(x)); }

/* codes [n, k * bits / 8]; scale [n, k / block]; offset [k / block, n] where the form keeps one: a weight is scale * (code - middle)
 * + offset; both are multiplied by `times`, a power of two, before they are rounded to float16.
 * out: (n + 7) / 8 groups of rows; what lies behind the last row is never used. */
AVX2 EXPORT void native_pack(int form, const uint8_t *codes, const float *scale, const float *offset, int n, int k, int block,
                        float times, uint8_t *out) {
    static const int size[FORMS] = {BYTES_OF_FORMS};
    const int blocks = k / BLOCK, bytes = form <= U4_MIDDLE ? BLOCK / 2 : BLOCK, per = k / block;
    for (int row = 0; row < n; row++) {
        const int lane = row % LANES;
        uint8_t *to = out + (size_t)(row / LANES) * blocks * size[form];
        const uint8_t *from = codes + (size_t)row * blocks * bytes;
        const float *s = scale + (size_t)row * per;
        for (int b = 0; b < blocks; b++, to += size[form], from += bytes) {
            const int at = b * BLOCK / block;
            if (form <= U5_MIDDLE) {
                const int bits = form <= U4_MIDDLE ? 4 : 5, middle = bits == 4 ? CENTRE4 : CENTRE5;
                uint8_t *scales = to + bits * BLOCK;
                (bits == 4 ? row_u4 : row_u5)(from, to + 4 * lane);
                put_half(scales, lane, s[at] * times);
                if (form == U4_OFFSET || form == U5_OFFSET)
                    put_half(scales + 2 * LANES, lane, (offset[(size_t)at * n + row] - middle * s[at]) * times);
            } else if (form == U6_SIXTEEN) {
                row_u6(from, to + 4 * lane);
                put_half(to + 192, lane, s[at] * times);
                put_half(to + 208, lane, s[block == BLOCK / 2 ? at + 1 : at] * times);
            } else {
                row_s8(from, to + 4 * lane);
                put_half(to + 256, lane, s[at] * times);
            }
        }
    }
}

#endif

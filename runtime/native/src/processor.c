/* What this processor and its system can do. */
#include "native.h"
#if NATIVE_X86

#include <immintrin.h>

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>

static void leaf(int number, int sub, unsigned *found) { __cpuidex((int *)found, number, sub); }
static unsigned kept(void) { return (unsigned)_xgetbv(0); }

#else
#include <cpuid.h>

static void leaf(int number, int sub, unsigned *found) {
    if (!__get_cpuid_count((unsigned)number, (unsigned)sub, found, found + 1, found + 2, found + 3))
        found[0] = found[1] = found[2] = found[3] = 0;
}

/* Registers that the system keeps when it changes threads. */
static unsigned kept(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}
#endif

enum { A, B, C, D, WIDE_REGISTERS = 6, WIDER_REGISTERS = 0xe6 };

static int bit(unsigned word, int number) { return word >> number & 1; }

int processor_has(int what) {
    unsigned one[4], seven[4], more[4];
    leaf(1, 0, one);
    if (!bit(one[C], 27) || (kept() & WIDE_REGISTERS) != WIDE_REGISTERS) return 0; /* OSXSAVE */
    leaf(7, 0, seven);
    leaf(7, 1, more);
    const int avx2 = bit(one[C], 12) && bit(one[C], 28) && bit(one[C], 29) && bit(seven[B], 5); /* FMA, AVX, F16C */
    switch (what) {
    case HAS_AVX2: return avx2;
    case HAS_AVX_VNNI: return avx2 && seven[A] >= 1 && bit(more[A], 4);
    default: /* AVX512F, DQ, BW, VL, VNNI */
        return avx2 && (kept() & WIDER_REGISTERS) == WIDER_REGISTERS && bit(seven[B], 16) && bit(seven[B], 17) && bit(seven[B], 30) &&
               bit(seven[B], 31) && bit(seven[C], 11);
    }
}

/* 1 where this processor and its system have AVX2, FMA and F16C. */
EXPORT int native_supported(void) { return processor_has(HAS_AVX2); }

#endif

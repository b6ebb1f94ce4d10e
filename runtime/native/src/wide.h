/* What files for AVX-512 share. They are used where native_instructions has chosen it: every lane of theirs goes through the steps that
 * it goes through in 256 bits, so that the bits are the same. */
#ifndef SPEC_EDGE_WIDE_H
#define SPEC_EDGE_WIDE_H

#include "native.h"

#define AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define WITHIN static inline __attribute__((always_inline)) AVX512

enum { WIDE = 2 * LANES };

#endif

/* spec-edge's kernels for x86-64 CPUs with AVX2: what a program is made of.
 *
 * A program is a list of stages over buffers. Every stage is a set of tasks that may run on any thread in any order;
 * a barrier ends it. No number depends on how many rows a run has or on which thread made it: a row's result is the same
 * to the last bit in a run of one row and in a run of sixty-four, whatever else is in that run.
 */
#ifndef SPEC_EDGE_NATIVE_H
#define SPEC_EDGE_NATIVE_H

/* A universal build compiles every file for other processors too; there is nothing in them then. */
#if defined(__x86_64__) || defined(_M_X64)
#define NATIVE_X86 1
#else
#define NATIVE_X86 0
#endif

/* Whether the compiler knows AVX-VNNI and AVX-512's. */
#if NATIVE_X86 && (defined(__clang__) ? __clang_major__ >= 12 : defined(__GNUC__) && __GNUC__ >= 11)
#define NATIVE_WIDE 1
#else
#define NATIVE_WIDE 0
#endif

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define AVX2
#define INLINE static __forceinline
#else
#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) AVX2
#endif

enum { LANES = 8, WIDE_ROWS = 8, PANEL_FROM = 32, PANEL_ROWS = 64, BLOCK = 32, QUERIES_AT_ONCE = 8, WIDEST_HEAD = 256, MOST_BEST = 16, VERSION = 4 };

/* LINE_FLOATS: floats that memory brings at once. CACHE_AHEAD: floats of keys or values that are asked for before they are needed. */
enum { LINE_FLOATS = 16, CACHE_AHEAD = 1024 };

/* Parts of a run of many rows that threads keep to: what a thread has made is in its own cache. PART_ROWS: fewest rows of one. */
enum { MOST_PARTS = 16, PART_ROWS = 64 };

/* How a matrix is packed: groups of 8 rows, blocks of 32 columns; see matmul.c. */
enum { U4_OFFSET, U4_MIDDLE, U5_OFFSET, U5_MIDDLE, U6_SIXTEEN, S8_BLOCK, FORMS };
enum { BYTES_U6_SIXTEEN = 224, BYTES_S8_BLOCK = 272 };
#define BYTES_OF_FORMS 160, 144, 192, 176, BYTES_U6_SIXTEEN, BYTES_S8_BLOCK /* of a block of 8 rows */

/* n rows (outputs) and k columns, k a multiple of 32. Results are times `unscale`, plus bias[n] where there is one. */
typedef struct {
    const uint8_t *data;
    const float *bias;
    int32_t n, k, form;
    float unscale;
} Matrix;

/* Rows of activations as 8-bit integers: q [rows, k], and per block of 32 the scale and the scaled sum of q. minus32, per 16
 * columns: -32 times the sums of columns 4j and 4j + 1 (low half) and of 4j + 2 and 4j + 3 (high half). */
typedef struct {
    int8_t *q;
    float *scale, *sum;
    int32_t *minus32;
    int32_t k;
} Quantised;

/* A matrix as rows of a table: codes [n, k * bits / 8], low half first; scale, offset [n, k / block]. */
typedef struct {
    const uint8_t *codes;
    const float *scale, *offset;
    int32_t n, k, block, bits, middle;
} Table;

/* What a stage does. The buffers are numbers of the program's floats (f) or quantised activations (q); -1: none.
 *
 *   EMBED     f0 = rows of `table` by the ids
 *   NORM      f0 + f1 -> f2 (sum; f1 may be none), times its inverse root mean square and gamma -> f3 and q0
 *   QUANTISE  f0 -> q0
 *   GATHER    the asked rows of f0 -> f1 and q0
 *   MATMUL    q0 x matrices[0..count) -> f0, at columns[i]
 *   SWIGLU    q0 x matrices[0] (gate) and matrices[1] (up), each from row first[i] on, width rows -> q1
 *   ROPE      rotates q in f0, and writes k (f1), rotated, and v (f2) into the cache of `layer`
 *   ATTEND    f0 (queries) over the cache of `layer` -> f1 and q0
 *   JOIN      f0 (width columns of it) -> f1 at column columns[0]
 *   SPREAD    the one row of f0, as asked rows of the width of f1: f1 + SiLU(row) -> f2 and q0
 *   TOP       the `width` largest of each row of f0, best first, the first of equals before the others: their
 *             log-probabilities -> f1, their columns, or what `ids` names them, as whole numbers -> f2
 */
enum { EMBED, NORM, QUANTISE, GATHER, MATMUL, SWIGLU, ROPE, ATTEND, JOIN, SPREAD, TOP, KINDS };

typedef struct {
    int32_t kind, count, layer, width;
    int32_t f0, f1, f2, f3, q0, q1;
    int32_t columns[4], first[2];
    int32_t heads, kv_heads, dim;
    float epsilon, scale;
    const float *gamma, *cos, *sin;
    const int32_t *ids;
    Matrix matrices[4];
    Table table;
} Stage;

typedef struct {
    float *data;
    int32_t width;
    int32_t asked; /* 1: it has the asked rows only */
} Floats;

/* One run. rows: of it; asked: those of the output; before: the slot of its first row; slots: of the cache.
 * past: key and value of each layer, [kv_heads, slots, dim]. bias [rows, slots]: 0 where a row sees a column.
 * What the rows see is worked out first: row r sees the first prefix[r] slots, then those of seen[r * slots ...], of
 * which there are more[r]. Programs that embed nothing have no ids, those without attention no positions and no bias. vocabulary, positions_known: ends of what ids and positions may be. scores: `tables` floats per thread, for the scores of QUERIES_AT_ONCE queries (slots + 8 each) or a normed row. */
typedef struct {
    const Stage *stages;
    const Floats *floats;
    const Quantised *quantised;
    const int32_t *ids, *asked_rows;
    const int64_t *positions;
    float *const *past;
    const float *bias;
    float *scores;
    int32_t *prefix, *more, *seen;
    int32_t count, rows, asked, slots, before, tables, vocabulary, positions_known;
} Run;

/* Rows [from, from + count). */
typedef struct {
    int from, count;
} Span;

/* What processor_has may be asked. */
enum { HAS_AVX2, HAS_AVX_VNNI, HAS_AVX512_VNNI };
int processor_has(int what);

typedef struct Pool Pool;
typedef void (*Work)(void *context, int thread);

Pool *pool_new(int threads);
void pool_free(Pool *pool);
void pool_run(Pool *pool, Work work, void *context, int parts); /* on every thread, this one being 0; ends when all have */
void pool_barrier(Pool *pool, int stage); /* of that stage; they run in order from 0 on */
int pool_threads(const Pool *pool);
int pool_claim(Pool *pool, int stage, int part, int many); /* the first of `many` tasks of a part of a stage that nobody has */

EXPORT int native_instructions(int wanted);
int wide_chosen(void); /* 1: AVX-512 has been; only then may what follows be called */
void wide_exp_sum(float *x, int count, float highest, float *sums);
void wide_silu_times(const float *gate, const float *up, float *y, int count);
void wide_scores(int queries, const float *const *query, float *const *out, const float *keys, int common, int dim, float scale);
void wide_weigh(int queries, float *const *weights, const float *values, int common, int dim, float (*out)[WIDEST_HEAD]);
/* Sixteen results, of groups `group` and `group` + 1, of each of at most WIDE_ROWS rows from `row` on; stride: floats from one to the next. */
void wide_tile(const Matrix *m, const Quantised *x, int row, int count, int group, float *to, int stride);
/* Thirty-two results, of four groups, of each of at most PANEL_ROWS rows: for many. */
void wide_panel(const Matrix *m, const Quantised *x, int row, int count, int group, float *to, int stride);
void matmul(const Matrix *m, const Quantised *x, Span rows, int group, int groups, float *y, int stride);
void swiglu(const Stage *stage, const Quantised *x, Span rows, int block, const Quantised *y);
void quantise_row(const float *x, const Quantised *y, int row, int from, int width);
void embed_row(const Table *table, int id, float *y);
void norm_row(const Stage *stage, const float *x, const float *y, float *sum, float *normed, int width);
void rope_row(const Stage *stage, const Run *run, int row);
void look(const Run *run, int row);
void attend(const Stage *stage, const Run *run, int kv, int from, int count, float *scores);
void silu_times(const float *gate, const float *up, float *y, int count);
void silu_plus(const float *gate, const float *x, float *y, int count);
void top_row(const float *x, int width, const int32_t *names, int count, float *best, int32_t *ids, float *spare);
float exp_sum(float *x, int count, float highest);

#endif

/* Stages to tasks to threads, and what Python calls. */
#include "native.h"
#if NATIVE_X86

#include <immintrin.h>
#include <string.h>

/* Claims of a thread in a stage: one costs what a few hundred columns of eight rows do. */
enum { SHARE = 3, FINE_SHARE = 8, FINEST_SHARE = 32, LONG_RUN = 16 };

typedef struct {
    Pool *pool;
    const Run *run;
    int threads, parts;
} Job;

static float *at(const Run *run, int buffer, int row) {
    if (buffer < 0) return NULL;
    return run->floats[buffer].data + (size_t)row * run->floats[buffer].width;
}

static int groups(const Stage *stage) {
    int total = 0;
    for (int i = 0; i < stage->count; i++) total += (stage->matrices[i].n + LANES - 1) / LANES;
    return total;
}

static int rows_of(const Run *run, const Stage *stage) {
    switch (stage->kind) {
    case GATHER:
    case SPREAD: return run->asked;
    case QUANTISE:
    case MATMUL:
    case TOP: return run->floats[stage->f0].asked ? run->asked : run->rows;
    default: return run->rows;
    }
}

static int pieces(int all, int size) { return (all + size - 1) / size; }

/* Parts of a run: as many as there are threads, where each gets enough rows. */
static int parts_of(const Run *run, int threads) {
    const int parts = run->rows / PART_ROWS < threads ? run->rows / PART_ROWS : threads;
    return parts < 1 ? 1 : parts < MOST_PARTS ? parts : MOST_PARTS;
}

/* The rows of a stage that belong to a part; few ones to the first. */
static Span span(const Job *job, int rows, int part) {
    if (rows < job->run->rows) return (Span){0, part ? 0 : rows};
    const int each = (pieces(rows, job->parts) + LANES - 1) / LANES * LANES, from = part * each < rows ? part * each : rows;
    return (Span){from, rows - from < each ? rows - from : each};
}

/* Pieces of work on one key and value head: as few as there may be queries in them, but something for every thread. */
static int shares(const Stage *stage, int rows, int threads) {
    const int queries = rows * (stage->heads / stage->kv_heads);
    const int few = pieces(queries, QUERIES_AT_ONCE), wanted = pieces(threads, stage->kv_heads);
    return wanted <= few ? few : wanted < queries ? wanted : queries;
}

/* Tasks of some rows of a stage. */
static int tasks(const Stage *stage, int rows, int threads) {
    if (!rows) return 0;
    switch (stage->kind) {
    case MATMUL: return groups(stage);
    case SWIGLU: return stage->width / BLOCK;
    case ATTEND: return stage->kv_heads * shares(stage, rows, threads);
    default: return rows;
    }
}

static void multiply(const Run *run, const Stage *stage, Span rows, int from, int until) {
    const Quantised *x = run->quantised + stage->q0;
    const Floats *y = run->floats + stage->f0;
    for (int i = 0, base = 0; i < stage->count && base < until; i++) {
        const Matrix *m = stage->matrices + i;
        const int size = (m->n + LANES - 1) / LANES;
        const int first = from > base ? from - base : 0, last = until - base < size ? until - base : size;
        if (first < last) matmul(m, x, rows, first, last - first, y->data + stage->columns[i], y->width);
        base += size;
    }
}

static void norm(const Run *run, const Stage *stage, int row, float *spare) {
    const int width = run->floats[stage->f0].width;
    float *normed = stage->f3 >= 0 ? at(run, stage->f3, row) : spare;
    norm_row(stage, at(run, stage->f0, row), at(run, stage->f1, row), at(run, stage->f2, row), normed, width);
    if (stage->q0 >= 0) quantise_row(normed, run->quantised + stage->q0, row, 0, width);
}

static void gather(const Run *run, const Stage *stage, int row) {
    const int width = run->floats[stage->f0].width;
    const float *x = at(run, stage->f0, run->asked_rows[row]);
    if (stage->f1 >= 0) memcpy(at(run, stage->f1, row), x, sizeof(float) * (size_t)width);
    if (stage->q0 >= 0) quantise_row(x, run->quantised + stage->q0, row, 0, width);
}

static void share(const Run *run, const Stage *stage, Span rows, int i, int threads, float *spare) {
    const int each = stage->heads / stage->kv_heads, queries = rows.count * each, all = shares(stage, rows.count, threads);
    const int64_t at = i % all;
    const int from = (int)(at * queries / all), until = (int)((at + 1) * queries / all);
    attend(stage, run, i / all, rows.from * each + from, until - from, spare);
}

static void join(const Run *run, const Stage *stage, int row) {
    const float *x = at(run, stage->f0, row);
    memcpy(at(run, stage->f1, row) + stage->columns[0], x, sizeof(float) * (size_t)stage->width);
}

static void spread(const Run *run, const Stage *stage, int row, float *spare) {
    const int width = run->floats[stage->f1].width;
    float *y = stage->f2 >= 0 ? at(run, stage->f2, row) : spare;
    silu_plus(run->floats[stage->f0].data + (size_t)row * width, run->floats[stage->f1].data, y, width);
    if (stage->q0 >= 0) quantise_row(y, run->quantised + stage->q0, row, 0, width);
}

static void top(const Run *run, const Stage *stage, int row, float *spare) {
    int32_t *ids = (int32_t *)run->floats[stage->f2].data + (size_t)row * stage->width;
    top_row(at(run, stage->f0, row), run->floats[stage->f0].width, stage->ids, stage->width, at(run, stage->f1, row), ids, spare);
}

/* What is one task of a row. */
static void row_task(const Run *run, const Stage *stage, int row, float *spare) {
    switch (stage->kind) {
    case EMBED: embed_row(&stage->table, run->ids[row], at(run, stage->f0, row)); break;
    case NORM: norm(run, stage, row, spare); break;
    case QUANTISE: quantise_row(at(run, stage->f0, row), run->quantised + stage->q0, row, 0, run->floats[stage->f0].width); break;
    case GATHER: gather(run, stage, row); break;
    case ROPE: rope_row(stage, run, row); break;
    case SPREAD: spread(run, stage, row, spare); break;
    case TOP: top(run, stage, row, spare); break;
    default: join(run, stage, row); break;
    }
}

/* Tasks [from, until) of a stage's rows; no stage: what the rows see. */
static void work_on(const Job *job, const Stage *stage, Span rows, int from, int until, float *spare) {
    const Run *run = job->run;
    if (stage && stage->kind == MATMUL) {
        multiply(run, stage, rows, from, until);
        return;
    }
    for (int i = from; i < until; i++) {
        if (!stage) look(run, rows.from + i);
        else if (stage->kind == SWIGLU) swiglu(stage, run->quantised + stage->q0, rows, i, run->quantised + stage->q1);
        else if (stage->kind == ATTEND) share(run, stage, rows, i, job->threads, spare);
        else row_task(run, stage, rows.from + i, spare);
    }
}

static int by_rows(const Stage *stage) { return !stage || (stage->kind != MATMUL && stage->kind != SWIGLU && stage->kind != ATTEND); }

/* Tasks of a claim: kernels like two groups better than one, and of many rows four. */
static int at_once(const Stage *stage, int rows, int total, int threads) {
    const int share = rows < LONG_RUN ? SHARE : by_rows(stage) ? FINE_SHARE : FINEST_SHARE, many = pieces(total, threads * share);
    if (!stage || stage->kind != MATMUL) return many;
    return rows >= PANEL_FROM ? (many + 3) & ~3 : many < 2 ? 1 : (many + 1) & ~1;
}

/* A thread's own part first, then what the others have left. */
static void work(void *context, int thread) {
    const Job *job = context;
    const Run *run = job->run;
    float *spare = run->scores + (size_t)thread * run->tables;
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x1f80); /* every thread rounds alike, whatever its program has set */
    for (int s = -1; s < run->count; s++) {
        const Stage *stage = s < 0 ? NULL : run->stages + s;
        const int all = stage ? rows_of(run, stage) : run->bias ? run->rows : 0;
        for (int p = 0; p < job->parts; p++) {
            const int part = (thread + p) % job->parts;
            const Span rows = span(job, all, part);
            const int total = stage ? tasks(stage, rows.count, job->threads) : rows.count;
            const int many = at_once(stage, rows.count, total, all < run->rows ? job->threads : pieces(job->threads, job->parts));
            for (int from; (from = pool_claim(job->pool, s + 1, part, many)) < total;)
                work_on(job, stage, rows, from, from + many < total ? from + many : total, spare);
        }
        pool_barrier(job->pool, s + 1);
    }
    _mm_setcsr(before);
}

EXPORT Pool *native_pool(int threads) { return pool_new(threads); }

EXPORT void native_free(Pool *pool) { pool_free(pool); }

EXPORT int native_threads(const Pool *pool) { return pool_threads(pool); }

/* What a run would read that is not there. */
enum { FINE, BAD_TOKEN, BAD_POSITION, BAD_ROW, BAD_PLACE };

static int wrong(const Run *run) {
    if (run->asked_rows && run->asked > run->rows) return BAD_ROW;
    if (run->bias && (run->before < 0 || run->before > run->slots - run->rows)) return BAD_PLACE;
    for (int i = 0; i < run->rows; i++) {
        if (run->ids && (run->ids[i] < 0 || run->ids[i] >= run->vocabulary)) return BAD_TOKEN;
        if (run->positions && (run->positions[i] < 0 || run->positions[i] >= run->positions_known)) return BAD_POSITION;
    }
    for (int i = 0; run->asked_rows && i < run->asked; i++)
        if (run->asked_rows[i] < 0 || run->asked_rows[i] >= run->rows) return BAD_ROW;
    return FINE;
}

/* 0, or which input names something that is not there; then nothing has run. */
EXPORT int native_run(Pool *pool, const Run *run) {
    const int code = wrong(run);
    if (code) return code;
    const int threads = pool_threads(pool);
    Job job = {pool, run, threads, parts_of(run, threads)};
    pool_run(pool, work, &job, job.parts);
    return FINE;
}

/* y [rows, stride] = x times m, on this thread: for tests and measurements of one kernel. */
EXPORT void native_product(const Matrix *m, const Quantised *x, int rows, float *y, int stride) {
    matmul(m, x, (Span){0, rows}, 0, (m->n + LANES - 1) / LANES, y, stride);
}

/* x [rows, k] as 8-bit blocks, by the same functions as a program's. */
EXPORT void native_quantise(const float *x, const Quantised *y, int rows) {
    for (int i = 0; i < rows; i++) quantise_row(x + (size_t)i * y->k, y, i, 0, y->k);
}

/* The same of a law's best: see top_row. */
EXPORT void native_top(const float *x, int width, const int32_t *names, int count, float *best, int32_t *ids, float *spare) {
    top_row(x, width, names, count, best, ids, spare);
}

/* What Python's side must agree with; at most `count` numbers. */
EXPORT void native_facts(int32_t *facts, int count) {
    const int32_t all[] = {
        VERSION, sizeof(Run), sizeof(Stage), sizeof(Matrix), sizeof(Table), sizeof(Floats), sizeof(Quantised), WIDEST_HEAD,
        QUERIES_AT_ONCE, MOST_BEST, BYTES_OF_FORMS,
    };
    for (int i = 0; i < count && i < (int)(sizeof(all) / sizeof(all[0])); i++) facts[i] = all[i];
}

/* What setuptools expects of an extension; Python itself never imports this library. */
EXPORT void *PyInit__kernels(void) { return NULL; }

#endif

/* A pool of threads that run one piece of work together: spinning between stages, asleep between runs. */
#include "native.h"
#if NATIVE_X86

#include <immintrin.h>
#include <stdlib.h>

#if defined(_WIN32)
#include <windows.h>
typedef SRWLOCK Lock;
typedef CONDITION_VARIABLE Signal;
typedef HANDLE Thread;
#define lock(x) AcquireSRWLockExclusive(x)
#define unlock(x) ReleaseSRWLockExclusive(x)
#define wait_for(s, l) SleepConditionVariableSRW(s, l, INFINITE, 0)
#define wake(s) WakeAllConditionVariable(s)
#define give_way() SwitchToThread()
#define THREAD_MAIN(name) static DWORD WINAPI name(void *argument)
#else
#include <pthread.h>
#include <sched.h>
typedef pthread_mutex_t Lock;
typedef pthread_cond_t Signal;
typedef pthread_t Thread;
#define lock(x) pthread_mutex_lock(x)
#define unlock(x) pthread_mutex_unlock(x)
#define wait_for(s, l) pthread_cond_wait(s, l)
#define wake(s) pthread_cond_broadcast(s)
#define give_way() sched_yield()
#define THREAD_MAIN(name) static void *name(void *argument)
#endif

#if defined(_MSC_VER) && !defined(__clang__)
typedef volatile long Count;
#define load(x) InterlockedCompareExchange(x, 0, 0)
#define store(x, v) InterlockedExchange(x, v)
#define add(x, v) InterlockedExchangeAdd(x, v)
#else
typedef long Count;
#define load(x) __atomic_load_n(x, __ATOMIC_ACQUIRE)
#define store(x, v) __atomic_store_n(x, v, __ATOMIC_RELEASE)
#define add(x, v) __atomic_fetch_add(x, v, __ATOMIC_ACQ_REL)
#endif

enum { SPINS = 4000, PATIENCE = 20000, LINE = 64, TURNS = 3 };

typedef struct {
    Count value;
    char apart[LINE - sizeof(Count)];
} Padded;

/* claims: of each part of the stage that runs, of the next one, which threads that have passed the barrier may take already,
 * and of the one behind that, which is cleared in the meantime. */
struct Pool {
    Padded arrived, turn, epoch, running, claims[TURNS][MOST_PARTS];
    Work work;
    void *context;
    Thread *workers;
    Lock mutex;
    Signal signal;
    int threads, parts, ending;
};

typedef struct {
    Pool *pool;
    int number;
} Seat;

/* Waits until `count` differs from `old`. A processor that others want is given away now and then. */
static void spin(Count *count, long old) {
    for (int i = 0; load(count) == old;) {
        if (i < SPINS) {
            _mm_pause();
            i++;
        } else {
            give_way();
        }
    }
}

static long next_epoch(Pool *pool, long old) {
    for (int i = 0; i < PATIENCE; i++) {
        if (load(&pool->epoch.value) != old) return load(&pool->epoch.value);
        _mm_pause();
    }
    lock(&pool->mutex);
    while (load(&pool->epoch.value) == old) wait_for(&pool->signal, &pool->mutex);
    unlock(&pool->mutex);
    return load(&pool->epoch.value);
}

THREAD_MAIN(serve) {
    Seat seat = *(Seat *)argument;
    free(argument);
    long epoch = 0;
    for (;;) {
        epoch = next_epoch(seat.pool, epoch);
        if (seat.pool->ending) return 0;
        seat.pool->work(seat.pool->context, seat.number);
        add(&seat.pool->running.value, -1);
    }
}

static int start(Thread *thread, Seat *seat) {
#if defined(_WIN32)
    *thread = CreateThread(NULL, 0, serve, seat, 0, NULL);
    return *thread != NULL;
#else
    return pthread_create(thread, NULL, serve, seat) == 0;
#endif
}

static void end(Thread thread) {
#if defined(_WIN32)
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
#else
    pthread_join(thread, NULL);
#endif
}

/* NULL: no memory. Fewer threads than were asked for where the system gives no more. */
Pool *pool_new(int threads) {
    Pool *pool = calloc(1, sizeof(Pool));
    if (!pool) return NULL;
    pool->workers = calloc((size_t)threads, sizeof(Thread));
    if (!pool->workers) {
        free(pool);
        return NULL;
    }
    pool->threads = 1;
#if defined(_WIN32)
    InitializeSRWLock(&pool->mutex);
    InitializeConditionVariable(&pool->signal);
#else
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->signal, NULL);
#endif
    while (pool->threads < threads) {
        Seat *seat = malloc(sizeof(Seat));
        if (!seat) break;
        *seat = (Seat){pool, pool->threads};
        if (!start(pool->workers + pool->threads, seat)) {
            free(seat);
            break;
        }
        pool->threads++;
    }
    return pool;
}

static void publish(Pool *pool) {
    lock(&pool->mutex);
    add(&pool->epoch.value, 1);
    wake(&pool->signal);
    unlock(&pool->mutex);
}

void pool_free(Pool *pool) {
    if (!pool) return;
    pool->ending = 1;
    publish(pool);
    for (int i = 1; i < pool->threads; i++) end(pool->workers[i]);
#if !defined(_WIN32)
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->signal);
#endif
    free(pool->workers);
    free(pool);
}

int pool_threads(const Pool *pool) { return pool->threads; }

static void clear(Pool *pool, int stage) {
    for (int part = 0; part < pool->parts; part++) store(&pool->claims[stage % TURNS][part].value, 0);
}

void pool_run(Pool *pool, Work work, void *context, int parts) {
    pool->parts = parts;
    for (int i = 0; i < TURNS; i++) clear(pool, i);
    pool->work = work;
    pool->context = context;
    store(&pool->running.value, pool->threads - 1);
    if (pool->threads > 1) publish(pool);
    work(context, 0);
    for (int i = 0; load(&pool->running.value);) {
        if (i < SPINS) {
            _mm_pause();
            i++;
        } else {
            give_way();
        }
    }
}

void pool_barrier(Pool *pool, int stage) {
    if (pool->threads == 1) {
        clear(pool, stage + 2);
        return;
    }
    const long turn = load(&pool->turn.value);
    if (add(&pool->arrived.value, 1) == pool->threads - 1) {
        store(&pool->arrived.value, 0);
        clear(pool, stage + 2);
        store(&pool->turn.value, turn + 1);
    } else {
        spin(&pool->turn.value, turn);
    }
}

int pool_claim(Pool *pool, int stage, int part, int many) { return (int)add(&pool->claims[stage % TURNS][part].value, many); }

#endif

// Makes one large allocation fail. Preload it:
//
//     cc -shared -fPIC -o failing_malloc.so failing_malloc.c && LD_PRELOAD=./failing_malloc.so program
//
// `fail_large(n)` makes the n-th later allocation of at least LARGE_BYTES fail, in any thread.
// `large_failed()` returns whether that has happened.

#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

#define LARGE_BYTES (64 << 10)

static atomic_long left;
static atomic_int failed;

void fail_large(long n) {
    atomic_store(&failed, 0);
    atomic_store(&left, n);
}

int large_failed(void) { return atomic_load(&failed); }

static int fails(size_t bytes) {
    if (bytes < LARGE_BYTES || atomic_load(&left) <= 0 || atomic_fetch_sub(&left, 1) != 1) return 0;
    atomic_store(&failed, 1);
    errno = ENOMEM;
    return 1;
}

// These are glibc's own names. dlsym(3) allocates, so a lookup of the next functions would recurse.
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t bytes) { return fails(bytes) ? NULL : __libc_malloc(bytes); }

void *calloc(size_t count, size_t bytes) {
    return count && bytes <= (size_t)-1 / count && fails(count * bytes) ? NULL : __libc_calloc(count, bytes);
}

// Shrinking never fails, because glibc does it in place.
void *realloc(void *old, size_t bytes) {
    return bytes > malloc_usable_size(old) && fails(bytes) ? NULL : __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    return fails(bytes) ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **found, size_t alignment, size_t bytes) {
    if (fails(bytes)) return ENOMEM;
    *found = __libc_memalign(alignment, bytes);
    return *found ? 0 : ENOMEM;
}

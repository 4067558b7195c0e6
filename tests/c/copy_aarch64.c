/* Runs the aarch64 copy routine, with a handler like ours, on memory that ends in unreadable pages.
 * tests/python/test_copy_aarch64.py compiles it and runs it under qemu. */
#define _GNU_SOURCE
#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

size_t pagestream_copy_plain(void *destination, const void *source, size_t length);
extern char pagestream_copy_start[], pagestream_copy_end[], pagestream_copy_landing[];

enum { PAGE = 65536, BLOCK = 64, GUARD = 0xaa };
static int faults;
static unsigned char reference[2 * PAGE], out[2 * PAGE];

static void on_fault(int signal, siginfo_t *info, void *context) {
    ucontext_t *thread = context;
    char *pc = (char *)thread->uc_mcontext.pc;
    (void)signal;
    (void)info;
    if (pc < pagestream_copy_start || pc >= pagestream_copy_end)
        _exit(9);
    thread->uc_mcontext.pc = (unsigned long)pagestream_copy_landing;
    faults++;
}

/* Copies `length` bytes from `offset`. Only the bytes before PAGE are readable. */
static void check(unsigned char *source, int offset, int length, int shift) {
    memset(out, GUARD, sizeof out);
    int left = (int)pagestream_copy_plain(out + shift, source + offset, length);
    int copied = length - left;
    int readable = length < PAGE - offset ? length : PAGE - offset;
    assert(length <= PAGE - offset ? left == 0 : left > 0);
    assert(copied <= readable && readable - copied <= BLOCK);
    assert(memcmp(out + shift, reference + offset, copied) == 0);
    assert(out[shift + length] == GUARD && (shift == 0 || out[shift - 1] == GUARD));
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    assert(sigaction(SIGBUS, &action, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
    unsigned char *source = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(source != MAP_FAILED);
    for (int i = 0; i < 2 * PAGE; i++)
        reference[i] = source[i] = (unsigned char)(i * 7 + i / 256);
    assert(mprotect(source + PAGE, PAGE, PROT_NONE) == 0);
    static const int lengths[] = {0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 200, 5000, 60000};
    int checks = 0;
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (int distance = 0; distance < 300; distance++, checks += 2) {
            check(source, distance, lengths[k], distance % 17);
            check(source, PAGE - distance, lengths[k], distance % 17);
        }
    printf("%d checks, %d faults\n", checks, faults);
    return 0;
}

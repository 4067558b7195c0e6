/* Preloaded into User Mode Linux 6.1, whose buffer for the registers of a guest's process has no room for those of AMX. A
 * host that has them takes none but a whole buffer (EFAULT), so that no guest boots. What the guest knows of is put into a
 * whole one, and the rest of that says "unused". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef long (*ptrace_function)(int, pid_t, void *, void *);

long ptrace(enum __ptrace_request request, ...)
{
    static ptrace_function next;
    static size_t whole_bytes;
    static _Alignas(64) char whole[1 << 16];
    va_list arguments;
    va_start(arguments, request);
    pid_t process = va_arg(arguments, pid_t);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);
    if (!next)
        next = (ptrace_function)dlsym(RTLD_NEXT, "ptrace");
    if (request != PTRACE_SETREGSET || (long)address != NT_X86_XSTATE)
        return next(request, process, address, data);
    struct iovec *known = data;
    if (!whole_bytes) {
        struct iovec all = {whole, sizeof whole};
        if (next(PTRACE_GETREGSET, process, address, &all))
            return -1;
        whole_bytes = all.iov_len;
    }
    if (known->iov_len >= whole_bytes)
        return next(request, process, address, data);
    memset(whole, 0, whole_bytes);
    memcpy(whole, known->iov_base, known->iov_len);
    struct iovec all = {whole, whole_bytes};
    return next(request, process, address, &all);
}

/* Counts instructions between `begin` and `end` in a program that callgrind runs.
   https://valgrind.org/docs/manual/cl-manual.html#cl-manual.clientrequests */
#include <valgrind/callgrind.h>

void begin(void) {
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
}

void end(const char *name) {
    CALLGRIND_DUMP_STATS_AT(name);
    CALLGRIND_STOP_INSTRUMENTATION;
}

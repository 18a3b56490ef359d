/* The wall clock of one process, moved by as many seconds as the file that BERTH_TEST_CLOCK names says (a double).
   The clock that only runs (CLOCK_MONOTONIC) stays what it is, as when somebody sets a machine's time.
   Built in the tests:  cc -shared -fPIC -o clock.so clock.c */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double *ahead;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("BERTH_TEST_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *at = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) ahead = at;
    close(file);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, which, now);
    if (!failed && ahead && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += (time_t)*ahead;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec fine;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &fine)) return -1;
    now->tv_sec = fine.tv_sec;
    now->tv_usec = fine.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec fine;
    clock_gettime(CLOCK_REALTIME, &fine);
    if (at) *at = fine.tv_sec;
    return fine.tv_sec;
}

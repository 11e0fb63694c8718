/* A process whose wall clock is off: preloaded, it adds the seconds in the file $TORTURE_CLOCK to CLOCK_REALTIME, and to nothing
   else. The file is read anew at most a hundredth of a second after it was replaced. libfaketime is not used because with a
   monotonic clock that stays as it is (FAKETIME_DONT_FAKE_MONOTONIC) its version 0.9.10 makes clock_nanosleep and
   pthread_cond_timedwait fail with EINVAL; then CPython waits for its lock in a loop that takes a whole processor. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const long long SECOND = 1000000000LL, AGAIN = 10000000LL;
static _Atomic long long offset_ns, read_ns;
static int (*real)(clockid_t, struct timespec *);

static long long ns_of(clockid_t clock)
{
    struct timespec now;
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    real(clock, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

static long long wall_ns(void)
{
    long long now = ns_of(CLOCK_MONOTONIC_COARSE), before = atomic_load(&read_ns);
    if ((!before || now - before > AGAIN) && atomic_compare_exchange_strong(&read_ns, &before, now)) {
        char text[32] = "";
        const char *path = getenv("TORTURE_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (file >= 0) {
            if (read(file, text, sizeof text - 1) > 0)
                atomic_store(&offset_ns, (long long)(strtod(text, NULL) * 1e9));
            close(file);
        }
    }
    return ns_of(CLOCK_REALTIME) + atomic_load(&offset_ns);
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
        long long now = wall_ns();
        out->tv_sec = now / SECOND;
        out->tv_nsec = now % SECOND;
        return 0;
    }
    ns_of(CLOCK_MONOTONIC_COARSE);
    return real(clock, out);
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    long long now = wall_ns();
    (void)zone;
    out->tv_sec = now / SECOND;
    out->tv_usec = now % SECOND / 1000;
    return 0;
}

time_t time(time_t *out)
{
    time_t now = wall_ns() / SECOND;
    if (out)
        *out = now;
    return now;
}

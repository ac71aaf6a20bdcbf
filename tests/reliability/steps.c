/* A wall clock that steps while a process runs; preloaded into it (see steps.py).

   The file that STEPPED_CLOCK names holds the step in nanoseconds, as eight bytes. It is mapped: a step
   is there at once, and a look costs nothing. libfaketime reads a file under a lock at each look, which
   makes a server slow that looks a hundred thousand times a second; it asks for memory when it starts,
   which jemalloc does not bear; and short sleeps of Python end with EINVAL under it.

   A wait until a moment of the wall clock ends when it would have: the kernel's clock does not step.
*/

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define SINCE_START_MAX 1000000000LL /* seconds; a later moment is of the wall clock */

static const volatile int64_t *step;

static int (*next_gettime)(clockid_t, struct timespec *);
static int (*next_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*next_clockwait)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
static int (*next_semwait)(sem_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    next_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    /* Without its version the one of old programs might be found. */
    next_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    next_clockwait = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    next_semwait = dlsym(RTLD_NEXT, "sem_timedwait");
    const char *path = getenv("STEPPED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        abort(); /* better no server than one whose clock never steps */
    void *found = mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found == MAP_FAILED)
        abort();
    step = found;
}

static int64_t step_now(void)
{
    return step ? *step : 0; /* others' constructors run before ours */
}

static struct timespec moved(struct timespec from, int64_t by)
{
    int64_t ns = from.tv_nsec + by % SECOND;
    from.tv_sec += by / SECOND + (ns >= SECOND) - (ns < 0);
    from.tv_nsec = ns + (ns < 0 ? SECOND : 0) - (ns >= SECOND ? SECOND : 0);
    return from;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    int failed = next_gettime ? next_gettime(clock, out) : (int)syscall(SYS_clock_gettime, clock, out);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *out = moved(*out, step_now());
    return failed;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

static struct timespec true_moment(const struct timespec *until)
{
    return until->tv_sec > SINCE_START_MAX ? moved(*until, -step_now()) : *until;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    struct timespec moment = true_moment(until);
    return next_timedwait(cond, mutex, &moment);
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict until)
{
    struct timespec moment = true_moment(until);
    return next_clockwait(cond, mutex, clock, &moment);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
    struct timespec moment = true_moment(until);
    return next_semwait(semaphore, &moment);
}

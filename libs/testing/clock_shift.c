/* Preloaded into a process, shifts its wall clock by the nanoseconds that the file named in
 * IMPALA_CLOCK_SHIFT holds (8 bytes, this machine's order). The file is mapped: writing it jumps the
 * clock of every process that holds it, while it runs. CLOCK_MONOTONIC is left alone.
 *
 * Waits until a moment of the shifted clock are translated back, so that they last as long as they
 * were meant to from where they began; a wait that is under way does not see the clock jump. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NANOS 1000000000LL
/* Seconds; a monotonic clock counts from the start of the machine and is smaller. */
#define SURELY_WALL 500000000LL

static const volatile int64_t zero = 0;
static const volatile int64_t *shift_ns = &zero;

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_sem_timedwait)(sem_t *, const struct timespec *);
static int (*real_cond_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static long (*real_syscall)(long, ...);

__attribute__((constructor)) static void attach(void) {
  real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  real_sem_timedwait = dlsym(RTLD_NEXT, "sem_timedwait");
  /* By version, or the one with the old layout of pthread_cond_t may come. */
  real_cond_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (!real_cond_timedwait)
    real_cond_timedwait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  real_syscall = dlsym(RTLD_NEXT, "syscall");
  const char *path = getenv("IMPALA_CLOCK_SHIFT");
  if (!path)
    return;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return;
  void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (page != MAP_FAILED)
    shift_ns = page;
}

static void add(struct timespec *at, int64_t nanos) {
  int64_t sum = at->tv_nsec + nanos % NANOS;
  at->tv_sec += nanos / NANOS;
  if (sum >= NANOS) {
    sum -= NANOS;
    at->tv_sec++;
  } else if (sum < 0) {
    sum += NANOS;
    at->tv_sec--;
  }
  at->tv_nsec = sum;
}

/* The unshifted moment; one of another clock stays as it is. */
static const struct timespec *unshifted(const struct timespec *at, struct timespec *room) {
  if (!at || at->tv_sec < SURELY_WALL)
    return at;
  *room = *at;
  add(room, -*shift_ns);
  return room;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  if (!real_clock_gettime) /* another library's constructor came before ours */
    attach();
  int failed = real_clock_gettime(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    add(now, *shift_ns);
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out)
    *out = now.tv_sec;
  return now.tv_sec;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
  struct timespec room;
  return real_sem_timedwait(semaphore, unshifted(until, &room));
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
  struct timespec room;
  return real_cond_timedwait(cond, mutex, unshifted(until, &room));
}

/* abseil, and so gRPC, waits by bare futex calls. */
long syscall(long number, ...) {
  long args[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; i++)
    args[i] = va_arg(list, long);
  va_end(list);
  struct timespec room;
  if (number == SYS_futex && (args[1] & FUTEX_CLOCK_REALTIME))
    args[3] = (long)unshifted((const struct timespec *)args[3], &room);
  return real_syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}

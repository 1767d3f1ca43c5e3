// A clock that a test sets: preloaded into a server, it adds to the time of day what stands in the file that
// HEADGATE_TEST_CLOCK names, a number of microseconds. The monotonic clock is left alone.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *offset;

__attribute__((constructor)) static void map(void) {
  const char *file = getenv("HEADGATE_TEST_CLOCK");
  int fd = file ? open(file, O_RDONLY) : -1;
  if (fd < 0) abort();
  void *at = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) abort();
  offset = at;
  close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
  int failed = syscall(SYS_clock_gettime, clock, t);
  if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) t->tv_sec += *offset / 1000000;
  return failed;
}

int gettimeofday(struct timeval *t, void *zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *t) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (t) *t = now.tv_sec;
  return now.tv_sec;
}

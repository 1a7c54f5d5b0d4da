/* LD_PRELOAD: has calls that write to the files of one folder fail. A test says which by the functions below (ctypes); the
 * library does nothing before watch_faults(). One thread may call these functions, all may meet the faults.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum call { OPEN, WRITE, SYNC, ALLOCATE, TRUNCATE, RENAME, FOLDER, CALLS };
static const char* const names[CALLS] = {"open", "write", "sync", "allocate", "truncate", "rename", "mkdir"};

static char folder[PATH_MAX];
static long count[CALLS]; /* of calls since watch_faults */
static long first_fault, last_fault;
static int fault_call = -1, fault_error, faults_met;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define NEXT(result, name, ...) \
  static result (*next_##name)(__VA_ARGS__); \
  if (!next_##name) next_##name = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

/* Watch the files below this absolute path, and the folder itself. */
void watch_faults(const char* path) { snprintf(folder, sizeof folder, "%s", path); }

/* Calls number first..last of a name, counted from 1 and from now, fail with this error; 0: writes write half. */
int inject_fault(const char* name, long first, long last, int error) {
  for (int call = 0; call < CALLS; ++call) {
    if (strcmp(names[call], name) != 0) continue;
    pthread_mutex_lock(&mutex);
    first_fault = count[call] + first;
    last_fault = count[call] + last;
    fault_error = error;
    fault_call = call;
    pthread_mutex_unlock(&mutex);
    return 0;
  }
  return -1;
}

long count_calls(const char* name) {
  for (int call = 0; call < CALLS; ++call) {
    if (strcmp(names[call], name) == 0) return count[call];
  }
  return -1;
}

int count_faults(void) { return faults_met; }

static int is_below(const char* path) {
  const size_t n = strlen(folder);
  return n > 0 && strncmp(path, folder, n) == 0 && (path[n] == 0 || path[n] == '/');
}

static int is_watched(int file) {
  char link[64], path[PATH_MAX];
  if (folder[0] == 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return is_below(path);
}

/* Counts a call; whether it is to fail. */
static int fails(enum call call) {
  pthread_mutex_lock(&mutex);
  ++count[call];
  const int fault = (int)call == fault_call && count[call] >= first_fault && count[call] <= last_fault;
  faults_met += fault;
  pthread_mutex_unlock(&mutex);
  return fault;
}

static int open_mode(int flags, va_list arguments) {
  return flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, int) : 0;
}

int open(const char* path, int flags, ...) {
  NEXT(int, open, const char*, int, ...);
  va_list arguments;
  va_start(arguments, flags);
  const int mode = open_mode(flags, arguments);
  va_end(arguments);
  if (is_below(path) && fails(OPEN)) return errno = fault_error, -1;
  return next_open(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  NEXT(int, open64, const char*, int, ...);
  va_list arguments;
  va_start(arguments, flags);
  const int mode = open_mode(flags, arguments);
  va_end(arguments);
  if (is_below(path) && fails(OPEN)) return errno = fault_error, -1;
  return next_open64(path, flags, mode);
}

ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  NEXT(ssize_t, pwrite, int, const void*, size_t, off_t);
  if (is_watched(file) && fails(WRITE)) {
    if (fault_error != 0) return errno = fault_error, -1;
    bytes /= 2;
  }
  return next_pwrite(file, data, bytes, offset);
}

ssize_t pwrite64(int file, const void* data, size_t bytes, off_t offset) { return pwrite(file, data, bytes, offset); }

ssize_t pwritev(int file, const struct iovec* parts, int number, off_t offset) {
  NEXT(ssize_t, pwritev, int, const struct iovec*, int, off_t);
  if (is_watched(file) && fails(WRITE)) {
    if (fault_error != 0) return errno = fault_error, -1;
    const struct iovec half = {parts[0].iov_base, parts[0].iov_len / 2};
    return next_pwritev(file, &half, 1, offset);
  }
  return next_pwritev(file, parts, number, offset);
}

ssize_t pwritev64(int file, const struct iovec* parts, int number, off_t offset) {
  return pwritev(file, parts, number, offset);
}

ssize_t write(int file, const void* data, size_t bytes) {
  NEXT(ssize_t, write, int, const void*, size_t);
  if (is_watched(file) && fails(WRITE)) {
    if (fault_error != 0) return errno = fault_error, -1;
    bytes /= 2;
  }
  return next_write(file, data, bytes);
}

ssize_t writev(int file, const struct iovec* parts, int number) {
  NEXT(ssize_t, writev, int, const struct iovec*, int);
  if (is_watched(file) && fails(WRITE)) {
    if (fault_error != 0) return errno = fault_error, -1;
    const struct iovec half = {parts[0].iov_base, parts[0].iov_len / 2};
    return next_writev(file, &half, 1);
  }
  return next_writev(file, parts, number);
}

int fsync(int file) {
  NEXT(int, fsync, int);
  if (is_watched(file) && fails(SYNC)) return errno = fault_error, -1;
  return next_fsync(file);
}

int fdatasync(int file) {
  NEXT(int, fdatasync, int);
  if (is_watched(file) && fails(SYNC)) return errno = fault_error, -1;
  return next_fdatasync(file);
}

int msync(void* address, size_t bytes, int flags) {
  NEXT(int, msync, void*, size_t, int);
  if (folder[0] != 0 && fails(SYNC)) return errno = fault_error, -1;
  return next_msync(address, bytes, flags);
}

int posix_fallocate(int file, off_t offset, off_t bytes) {
  NEXT(int, posix_fallocate, int, off_t, off_t);
  if (is_watched(file) && fails(ALLOCATE)) return fault_error;
  return next_posix_fallocate(file, offset, bytes);
}

int posix_fallocate64(int file, off_t offset, off_t bytes) { return posix_fallocate(file, offset, bytes); }

int ftruncate(int file, off_t size) {
  NEXT(int, ftruncate, int, off_t);
  if (is_watched(file) && fails(TRUNCATE)) return errno = fault_error, -1;
  return next_ftruncate(file, size);
}

int ftruncate64(int file, off_t size) { return ftruncate(file, size); }

int mkdir(const char* path, mode_t mode) {
  NEXT(int, mkdir, const char*, mode_t);
  if (is_below(path) && fails(FOLDER)) return errno = fault_error, -1;
  return next_mkdir(path, mode);
}

int rename(const char* from, const char* to) {
  NEXT(int, rename, const char*, const char*);
  if (is_below(from) && fails(RENAME)) return errno = fault_error, -1;
  return next_rename(from, to);
}

/* LD_PRELOAD: records what reaches the files of one folder, so that a test can build the disks a power loss may leave.
 *
 * RECORD_FOLDER names the folder, RECORD_LOG the log. Every record: kind u32 (below), length of the name u32,
 * offset u64, length of the data u64, then name and data. A rename's data is the new name; the offset of a truncation or
 * an allocation is the size that the file has then, at least or exactly. The process itself goes on unchanged.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_FILES = 1024 };
enum kind { WRITE = 1, SYNC = 2, DURABLE_WRITE = 3, RENAME = 4, FOLDER_SYNC = 5, TRUNCATE = 6, CREATE = 7, ALLOCATE = 8, FOLDER = 9 };

struct header {
  uint32_t kind, name_bytes;
  uint64_t offset, data_bytes;
};

static struct {
  char name[256]; /* relative to the folder; "" if it is not recorded */
  int durable, folder;
} files[MAX_FILES];

static char folder[PATH_MAX];
static int log_descriptor = -1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define NEXT(result, name, ...) \
  static result (*next_##name)(__VA_ARGS__); \
  if (!next_##name) next_##name = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
  NEXT(int, open, const char*, int, ...);
  const char* where = getenv("RECORD_FOLDER");
  const char* log = getenv("RECORD_LOG");
  if (!where || !log || !realpath(where, folder)) return;
  log_descriptor = next_open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* The part of `path` below the folder, or NULL. "." is the folder itself. */
static const char* recorded_name(const char* path, char* buffer) {
  char parent[PATH_MAX];
  if (log_descriptor < 0) return NULL;
  if (!realpath(path, buffer)) {
    snprintf(parent, sizeof parent, "%s", path);
    char* slash = strrchr(parent, '/');
    if (!slash) return NULL;
    *slash = 0;
    if (!realpath(parent, buffer) || strlen(buffer) + strlen(slash + 1) + 2 > PATH_MAX) return NULL;
    strcat(strcat(buffer, "/"), slash + 1);
  }
  const size_t n = strlen(folder);
  if (strncmp(buffer, folder, n) != 0) return NULL;
  if (buffer[n] == 0) return ".";
  return buffer[n] == '/' ? buffer + n + 1 : NULL;
}

static void record(enum kind kind, const char* name, uint64_t offset, const void* data, size_t bytes) {
  NEXT(ssize_t, writev, int, const struct iovec*, int);
  struct header header = {kind, (uint32_t)strlen(name), offset, bytes};
  struct iovec parts[3] = {{&header, sizeof header}, {(void*)name, header.name_bytes}, {(void*)data, bytes}};
  pthread_mutex_lock(&mutex);
  if (next_writev(log_descriptor, parts, 3) != (ssize_t)(sizeof header + header.name_bytes + bytes)) abort();
  pthread_mutex_unlock(&mutex);
}

static int is_recorded(int file) { return file >= 0 && file < MAX_FILES && files[file].name[0] != 0; }

static void opened(int file, const char* path, int flags) {
  char buffer[PATH_MAX];
  struct stat status;
  if (file < 0 || file >= MAX_FILES) return;
  files[file].name[0] = 0;
  const char* name = recorded_name(path, buffer);
  if (!name || strlen(name) >= sizeof files[file].name) return;
  strcpy(files[file].name, name);
  files[file].durable = (flags & O_DSYNC) != 0;
  files[file].folder = fstat(file, &status) == 0 && S_ISDIR(status.st_mode);
  if (flags & O_CREAT) record(CREATE, name, 0, NULL, 0);
}

static int open_mode(int flags, va_list arguments) {
  return flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, int) : 0;
}

int open(const char* path, int flags, ...) {
  NEXT(int, open, const char*, int, ...);
  va_list arguments;
  va_start(arguments, flags);
  const int file = next_open(path, flags, open_mode(flags, arguments));
  va_end(arguments);
  opened(file, path, flags);
  return file;
}

int open64(const char* path, int flags, ...) {
  NEXT(int, open64, const char*, int, ...);
  va_list arguments;
  va_start(arguments, flags);
  const int file = next_open64(path, flags, open_mode(flags, arguments));
  va_end(arguments);
  opened(file, path, flags);
  return file;
}

int close(int file) {
  NEXT(int, close, int);
  if (file >= 0 && file < MAX_FILES) files[file].name[0] = 0;
  return next_close(file);
}

static void wrote(int file, const void* data, ssize_t bytes, off_t offset) {
  if (bytes > 0 && is_recorded(file)) {
    record(files[file].durable ? DURABLE_WRITE : WRITE, files[file].name, (uint64_t)offset, data, (size_t)bytes);
  }
}

static void wrote_parts(int file, const struct iovec* parts, int count, ssize_t bytes, off_t offset) {
  for (int i = 0; i < count && bytes > 0; ++i) {
    const ssize_t part = (ssize_t)parts[i].iov_len < bytes ? (ssize_t)parts[i].iov_len : bytes;
    wrote(file, parts[i].iov_base, part, offset);
    offset += part;
    bytes -= part;
  }
}

ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  NEXT(ssize_t, pwrite, int, const void*, size_t, off_t);
  const ssize_t done = next_pwrite(file, data, bytes, offset);
  wrote(file, data, done, offset);
  return done;
}

ssize_t pwrite64(int file, const void* data, size_t bytes, off_t offset) { return pwrite(file, data, bytes, offset); }

ssize_t pwritev(int file, const struct iovec* parts, int count, off_t offset) {
  NEXT(ssize_t, pwritev, int, const struct iovec*, int, off_t);
  const ssize_t done = next_pwritev(file, parts, count, offset);
  wrote_parts(file, parts, count, done, offset);
  return done;
}

ssize_t pwritev64(int file, const struct iovec* parts, int count, off_t offset) {
  return pwritev(file, parts, count, offset);
}

ssize_t write(int file, const void* data, size_t bytes) {
  NEXT(ssize_t, write, int, const void*, size_t);
  const off_t offset = is_recorded(file) ? lseek(file, 0, SEEK_CUR) : 0;
  const ssize_t done = next_write(file, data, bytes);
  wrote(file, data, done, offset);
  return done;
}

ssize_t writev(int file, const struct iovec* parts, int count) {
  NEXT(ssize_t, writev, int, const struct iovec*, int);
  const off_t offset = is_recorded(file) ? lseek(file, 0, SEEK_CUR) : 0;
  const ssize_t done = next_writev(file, parts, count);
  wrote_parts(file, parts, count, done, offset);
  return done;
}

static void synced(int file, int result) {
  if (result == 0 && is_recorded(file)) record(files[file].folder ? FOLDER_SYNC : SYNC, files[file].name, 0, NULL, 0);
}

int fsync(int file) {
  NEXT(int, fsync, int);
  const int result = next_fsync(file);
  synced(file, result);
  return result;
}

int fdatasync(int file) {
  NEXT(int, fdatasync, int);
  const int result = next_fdatasync(file);
  synced(file, result);
  return result;
}

int ftruncate(int file, off_t size) {
  NEXT(int, ftruncate, int, off_t);
  const int result = next_ftruncate(file, size);
  if (result == 0 && is_recorded(file)) record(TRUNCATE, files[file].name, (uint64_t)size, NULL, 0);
  return result;
}

int ftruncate64(int file, off_t size) { return ftruncate(file, size); }

int posix_fallocate(int file, off_t offset, off_t bytes) {
  NEXT(int, posix_fallocate, int, off_t, off_t);
  const int result = next_posix_fallocate(file, offset, bytes);
  if (result == 0 && is_recorded(file)) record(ALLOCATE, files[file].name, (uint64_t)(offset + bytes), NULL, 0);
  return result;
}

int posix_fallocate64(int file, off_t offset, off_t bytes) { return posix_fallocate(file, offset, bytes); }

int mkdir(const char* path, mode_t mode) {
  NEXT(int, mkdir, const char*, mode_t);
  char buffer[PATH_MAX];
  const int result = next_mkdir(path, mode);
  const char* name = result == 0 ? recorded_name(path, buffer) : NULL;
  if (name) record(FOLDER, name, 0, NULL, 0);
  return result;
}

int rename(const char* from, const char* to) {
  NEXT(int, rename, const char*, const char*);
  char old_path[PATH_MAX], new_path[PATH_MAX];
  const char* old_name = recorded_name(from, old_path);
  const char* new_name = recorded_name(to, new_path);
  const int result = next_rename(from, to);
  if (result == 0 && old_name && new_name) record(RENAME, old_name, 0, new_name, strlen(new_name));
  return result;
}

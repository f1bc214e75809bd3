/* Notes what a process does to the files below a folder: LD_PRELOAD=recorder.so POWER_ROOT=/folder POWER_JOURNAL=/file.
 *
 * A note is made while a lock is held that all recorded processes share, so that their order is that of the deeds.
 * Format of a note, in the machine's byte order: kind (1 byte), inode (8), offset (8), length of path (4), of the other
 * path (4), of the data (4), then these three. Kinds: c created or opened to be, t truncated to offset, w data written at
 * offset, s file flushed, S folder flushed, r renamed, l linked, u unlinked, m folder made, d folder removed.
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
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS 65536
static char root[PATH_MAX];
static size_t root_length;
static int journal = -1;
static pthread_mutex_t *shared;
static unsigned char watched[FDS];

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int raw_open(const char *path, int flags, int mode) { return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode); }

__attribute__((constructor)) static void begin(void) {
  const char *folder = getenv("POWER_ROOT"), *file = getenv("POWER_JOURNAL");
  if (!folder || !file || shared) return;
  snprintf(root, sizeof root, "%s", folder);
  root_length = strlen(root);
  char lock[PATH_MAX];
  snprintf(lock, sizeof lock, "%s.lock", file);
  int descriptor = raw_open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  struct stat found;
  if (descriptor < 0 || fstat(descriptor, &found)) return;
  int first = found.st_size == 0;
  if (first && ftruncate(descriptor, 4096)) return;
  void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  syscall(SYS_close, descriptor);
  if (memory == MAP_FAILED) return;
  if (first) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(memory, &kind);
  }
  int low = raw_open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  journal = fcntl(low, F_DUPFD_CLOEXEC, 900);
  syscall(SYS_close, low);
  shared = memory;
}

static void lock(void) {
  if (pthread_mutex_lock(shared) == EOWNERDEAD) pthread_mutex_consistent(shared);
}
static void unlock(void) { pthread_mutex_unlock(shared); }

static int inside(const char *path) {
  return shared && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

/* The absolute path, without following the last name. */
static int absolute(int folder, const char *path, char *found) {
  if (!path || !shared) return 0;
  if (path[0] == '/') {
    if (strlen(path) >= PATH_MAX) return 0;
    strcpy(found, path);
  } else {
    char link[64], base[PATH_MAX];
    if (folder == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, base, sizeof base - 1);
    if (length <= 0) return 0;
    base[length] = 0;
    if (length + strlen(path) + 2 > PATH_MAX) return 0;
    strcpy(found, base);
    strcat(found, "/");
    strcat(found, path);
  }
  /* "/./", "//" and a slash at the end */
  char *to = found;
  for (char *from = found; *from;) {
    if (*from == '/' && (from[1] == '/' || !from[1])) { from++; continue; }
    if (*from == '/' && from[1] == '.' && (from[2] == '/' || !from[2])) { from += 2; continue; }
    *to++ = *from++;
  }
  *to = 0;
  return inside(found);
}

static int path_of(int descriptor, char *found) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, found, PATH_MAX - 1);
  if (length <= 0) return 0;
  found[length] = 0;
  return inside(found) && !strstr(found, " (deleted)");
}

static void note(char kind, uint64_t inode, int64_t offset, const char *path, const char *other, const void *data,
                 uint32_t size) {
  uint32_t lengths[3] = {path ? strlen(path) : 0, other ? strlen(other) : 0, size};
  unsigned char head[29];
  head[0] = kind;
  memcpy(head + 1, &inode, 8);
  memcpy(head + 9, &offset, 8);
  memcpy(head + 17, lengths, 12);
  struct iovec parts[4] = {{head, 29}, {(void *)path, lengths[0]}, {(void *)other, lengths[1]}, {(void *)data, size}};
  syscall(SYS_writev, journal, parts, 4);
}

static uint64_t inode_of(int descriptor) {
  struct stat found;
  return fstat(descriptor, &found) ? 0 : found.st_ino;
}

static int opened(int descriptor, int flags) {
  char path[PATH_MAX];
  if (descriptor < 0 || descriptor >= FDS || !shared) return descriptor;
  watched[descriptor] = 0;
  if ((flags & O_ACCMODE) == O_RDONLY && !(flags & (O_CREAT | O_TRUNC))) return descriptor;
  if (!path_of(descriptor, path)) return descriptor;
  watched[descriptor] = 1;
  uint64_t inode = inode_of(descriptor);
  if (flags & (O_CREAT | O_TRUNC)) note('c', inode, 0, path, NULL, NULL, 0);
  if (flags & O_TRUNC) note('t', inode, 0, NULL, NULL, NULL, 0);
  return descriptor;
}

#define OPEN(name, ...) \
  int mode = 0; \
  if (flags & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, int); va_end(rest); } \
  REAL(name); \
  int changes = shared && (flags & (O_CREAT | O_TRUNC)); \
  if (changes) lock(); \
  int found = real(__VA_ARGS__, flags, mode); \
  int error = errno; \
  found = opened(found, flags); \
  if (changes) unlock(); \
  errno = error; \
  return found;

int open(const char *path, int flags, ...) { OPEN(open, path) }
int open64(const char *path, int flags, ...) { OPEN(open64, path) }
int openat(int folder, const char *path, int flags, ...) { OPEN(openat, folder, path) }
int openat64(int folder, const char *path, int flags, ...) { OPEN(openat64, folder, path) }
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

FILE *fopen64(const char *path, const char *how) {
  REAL(fopen64);
  char found[PATH_MAX];
  if (how[0] != 'r' && absolute(AT_FDCWD, path, found)) {
    /* stdio writes inside of libc, where nothing is seen: none of ours does */
    fprintf(stderr, "recorder: fopen of %s is not recorded\n", path);
    abort();
  }
  return real(path, how);
}
FILE *fopen(const char *path, const char *how) { return fopen64(path, how); }

int close(int descriptor) {
  REAL(close);
  if (descriptor >= 0 && descriptor < FDS) {
    if (descriptor == journal && shared) { errno = EBADF; return -1; }
    watched[descriptor] = 0;
  }
  return real(descriptor);
}

static int is_watched(int descriptor) { return shared && descriptor >= 0 && descriptor < FDS && watched[descriptor]; }

ssize_t write(int descriptor, const void *data, size_t size) {
  REAL(write);
  if (!is_watched(descriptor)) return real(descriptor, data, size);
  lock();
  ssize_t done = real(descriptor, data, size);
  int error = errno;
  if (done > 0) note('w', inode_of(descriptor), lseek(descriptor, 0, SEEK_CUR) - done, NULL, NULL, data, done);
  unlock();
  errno = error;
  return done;
}

static ssize_t at(ssize_t done, int descriptor, const void *data, off_t offset) {
  if (done > 0) note('w', inode_of(descriptor), offset, NULL, NULL, data, done);
  return done;
}
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
  REAL(pwrite);
  if (!is_watched(descriptor)) return real(descriptor, data, size, offset);
  lock();
  ssize_t done = at(real(descriptor, data, size, offset), descriptor, data, offset);
  unlock();
  return done;
}
ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
  return pwrite(descriptor, data, size, offset);
}
ssize_t writev(int descriptor, const struct iovec *parts, int number) {
  REAL(writev);
  if (!is_watched(descriptor)) return real(descriptor, parts, number);
  ssize_t all = 0;
  for (int i = 0; i < number; i++) {
    ssize_t done = write(descriptor, parts[i].iov_base, parts[i].iov_len);
    if (done < 0) return all ? all : done;
    all += done;
    if ((size_t)done < parts[i].iov_len) break;
  }
  return all;
}

/* What the kernel has copied is read again. */
static void copied(int descriptor, off64_t from, ssize_t size) {
  char part[65536];
  while (size > 0) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    int again = raw_open(link, O_RDONLY | O_CLOEXEC, 0);
    ssize_t got = pread(again, part, size < (ssize_t)sizeof part ? size : (ssize_t)sizeof part, from);
    syscall(SYS_close, again);
    if (got <= 0) return;
    note('w', inode_of(descriptor), from, NULL, NULL, part, got);
    from += got;
    size -= got;
  }
}
ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t size, unsigned flags) {
  REAL(copy_file_range);
  if (!is_watched(out)) return real(in, in_at, out, out_at, size, flags);
  lock();
  off64_t from = out_at ? *out_at : lseek(out, 0, SEEK_CUR);
  ssize_t done = real(in, in_at, out, out_at, size, flags);
  copied(out, from, done);
  unlock();
  return done;
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t size) {
  static ssize_t (*real)(int, int, off64_t *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "sendfile64");
  if (!is_watched(out)) return real(out, in, offset, size);
  lock();
  off64_t from = lseek(out, 0, SEEK_CUR);
  ssize_t done = real(out, in, offset, size);
  copied(out, from, done);
  unlock();
  return done;
}
ssize_t sendfile(int out, int in, off_t *offset, size_t size) { return sendfile64(out, in, (off64_t *)offset, size); }

int ftruncate(int descriptor, off_t size) {
  REAL(ftruncate);
  if (!is_watched(descriptor)) return real(descriptor, size);
  lock();
  int done = real(descriptor, size);
  if (!done) note('t', inode_of(descriptor), size, NULL, NULL, NULL, 0);
  unlock();
  return done;
}
int ftruncate64(int descriptor, off64_t size) { return ftruncate(descriptor, size); }

static int flushed(int descriptor, int done) {
  char path[PATH_MAX];
  struct stat found;
  if (!done && shared && path_of(descriptor, path) && !fstat(descriptor, &found))
    note(S_ISDIR(found.st_mode) ? 'S' : 's', found.st_ino, 0, path, NULL, NULL, 0);
  return done;
}
#define FLUSH(name) \
  REAL(name); \
  if (!shared) return real(descriptor); \
  lock(); \
  int done = flushed(descriptor, real(descriptor)); \
  unlock(); \
  return done;
int fsync(int descriptor) { FLUSH(fsync) }
int fdatasync(int descriptor) { FLUSH(fdatasync) }

static int two(char kind, int done, int a_in, const char *a, int b_in, const char *b) {
  char from[PATH_MAX], to[PATH_MAX];
  int error = errno;
  if (!done && (absolute(a_in, a, from) & absolute(b_in, b, to))) note(kind, 0, 0, from, to, NULL, 0);
  errno = error;
  return done;
}
#define TWO(kind, call, a_in, a, b_in, b) \
  if (shared) lock(); \
  int done = two(kind, call, a_in, a, b_in, b); \
  if (shared) unlock(); \
  return done;
int rename(const char *a, const char *b) { REAL(rename); TWO('r', real(a, b), AT_FDCWD, a, AT_FDCWD, b) }
int renameat(int x, const char *a, int y, const char *b) { REAL(renameat); TWO('r', real(x, a, y, b), x, a, y, b) }
int renameat2(int x, const char *a, int y, const char *b, unsigned f) { REAL(renameat2); TWO('r', real(x, a, y, b, f), x, a, y, b) }
int link(const char *a, const char *b) { REAL(link); TWO('l', real(a, b), AT_FDCWD, a, AT_FDCWD, b) }
int linkat(int x, const char *a, int y, const char *b, int f) { REAL(linkat); TWO('l', real(x, a, y, b, f), x, a, y, b) }

static int one(char kind, int done, int folder, const char *path) {
  char found[PATH_MAX];
  int error = errno;
  if (!done && absolute(folder, path, found)) note(kind, 0, 0, found, NULL, NULL, 0);
  errno = error;
  return done;
}
#define ONE(kind, call, folder, path) \
  if (shared) lock(); \
  int done = one(kind, call, folder, path); \
  if (shared) unlock(); \
  return done;
int unlink(const char *path) { REAL(unlink); ONE('u', real(path), AT_FDCWD, path) }
int remove(const char *path) { REAL(remove); ONE('u', real(path), AT_FDCWD, path) }
int rmdir(const char *path) { REAL(rmdir); ONE('d', real(path), AT_FDCWD, path) }
int unlinkat(int folder, const char *path, int flags) { REAL(unlinkat); ONE('u', real(folder, path, flags), folder, path) }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); ONE('m', real(path, mode), AT_FDCWD, path) }
int mkdirat(int folder, const char *path, mode_t mode) { REAL(mkdirat); ONE('m', real(folder, path, mode), folder, path) }

static int again(int from, int to) {
  if (to >= 0 && to < FDS) watched[to] = is_watched(from);
  return to;
}
int dup(int from) { REAL(dup); return again(from, real(from)); }
int dup2(int from, int to) { REAL(dup2); return again(from, real(from, to)); }
int dup3(int from, int to, int flags) { REAL(dup3); return again(from, real(from, to, flags)); }
#define FCNTL(name) \
  va_list rest; \
  va_start(rest, command); \
  long argument = va_arg(rest, long); \
  va_end(rest); \
  REAL(name); \
  int done = real(descriptor, command, argument); \
  return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? again(descriptor, done) : done;
int fcntl(int descriptor, int command, ...) { FCNTL(fcntl) }
int fcntl64(int descriptor, int command, ...) { FCNTL(fcntl64) }

// A library for LD_PRELOAD that makes one call of libc fail, to test how the program reacts. Linux, glibc.
//
//   FAULT=CALL:N:ERROR   the Nth call of CALL since main began (from 1 on) fails with ERROR: EIO, ENOSPC, EINTR,
//                        ENOMEM; or "short": a read or write of half the bytes. "N+": the Nth and all later ones.
//   FAULT_MARK=FILE      created when the call fails: a sweep over N ends when this file is missing
//   FAULT=exploit:1:EIO  no call fails: when the model is mapped, the process does what an attacker's code
//                        would do, and reports the errors on descriptor 2: "exploit: file 13 made 13 program 1 ..."
//   FAULT=landlock:1:EIO the kernel has no Landlock; "seccomp", no seccomp; "sandbox", neither.
//   FAULT_LOG=FILE       each change of a file is appended to FILE as a record: KIND TAB PATH TAB NUMBER TAB SIZE LF,
//                        then SIZE bytes and LF. create; write (NUMBER: offset; the bytes); truncate (NUMBER: size);
//                        sync; unlink; rename (the bytes: the new path)
// CALL: open read write fsync rename mmap malloc thread. Descriptor 2 never fails: tests check the messages.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *call = "", *mark;
static long at;
static int error, later, shorter, record_to = -1;
static atomic_long count;
static atomic_int active;

__attribute__((constructor)) static void start(void) {
    static char name[16], number[16], kind[16];
    const char *fault = getenv("FAULT");
    mark = getenv("FAULT_MARK");
    syscall(SYS_getpid);  // looks up the real syscall() while no call fails
    if (getenv("FAULT_LOG"))
        record_to = (int)syscall(SYS_openat, AT_FDCWD, getenv("FAULT_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (!fault || sscanf(fault, "%15[a-z]:%15[0-9+]:%15s", name, number, kind) != 3) return;
    at = atol(number);
    later = strchr(number, '+') != NULL;
    shorter = strcmp(kind, "short") == 0;
    error = !strcmp(kind, "ENOSPC") ? ENOSPC : !strcmp(kind, "EINTR") ? EINTR : !strcmp(kind, "ENOMEM") ? ENOMEM : EIO;
    call = name;
}

// Counting begins with main: calls of library constructors do not fail (the CUDA runtime does not survive a failed
// allocation while it registers its kernels).
static int (*program)(int, char **, char **);
static int begin(int argc, char **argv, char **environment) {
    active = 1;
    return program(argc, argv, environment);
}
int __libc_start_main(int (*run)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end) {
    int (*real)(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    *(void **)&real = dlsym(RTLD_NEXT, "__libc_start_main");
    program = run;
    return real(begin, argc, argv, init, fini, rtld_fini, stack_end);
}

// Whether the current call must fail.
static int fails(const char *name) {
    if (!active || strcmp(name, call) != 0) return 0;
    const long n = ++count;
    if (n != at && !(later && n > at)) return 0;
    if (mark) {
        const long fd = syscall(SYS_openat, AT_FDCWD, mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0) syscall(SYS_close, fd);
    }
    if (!shorter) errno = error;
    return 1;
}

// The path of a descriptor, or of a name in the folder that a descriptor is open on.
static int path_of(int fd, const char *name, char *path, size_t size) {
    char link[32];
    if (name && *name == '/') return snprintf(path, size, "%s", name) < (int)size;
    snprintf(link, sizeof link, fd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", fd);
    const long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, size - 1);
    if (length <= 0 || *path != '/') return 0;
    path[length] = 0;
    if (name) snprintf(path + length, size - (size_t)length, "/%s", name);
    return 1;
}
static void record(const char *kind, const char *path, long number, const void *bytes, size_t size) {
    char head[5000];
    const int length = snprintf(head, sizeof head, "%s\t%s\t%ld\t%zu\n", kind, path, number, size);
    const struct iovec parts[3] = {{head, (size_t)length}, {(void *)bytes, size}, {"\n", 1}};
    syscall(SYS_writev, record_to, parts, 3);
}
static void record_fd(const char *kind, int fd, const char *name, long number, const void *bytes, size_t size) {
    char path[4096];
    if (active && record_to >= 0 && path_of(fd, name, path, sizeof path)) record(kind, path, number, bytes, size);
}
static long wrote(int fd, const void *bytes, long size) {
    if (size > 0 && record_to >= 0)
        record_fd("write", fd, NULL, syscall(SYS_lseek, fd, 0, SEEK_CUR) - size, bytes, (size_t)size);
    return size;
}
static int renamed(int a, const char *from, int b, const char *to) {
    char path[4096];
    if (record_to >= 0 && path_of(b, to, path, sizeof path)) record_fd("rename", a, from, 0, path, strlen(path));
    return 0;
}

#define REAL(type, name, ...)                                   \
    static type (*real)(__VA_ARGS__);                           \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, name)

static int opened(int folder, const char *path, int flags, mode_t mode) {
    if (fails("open")) return -1;
    const long fd = syscall(SYS_openat, folder, path, flags, mode);
    if (fd >= 0 && flags & O_CREAT) record_fd("create", (int)fd, NULL, 0, "", 0);
    if (fd >= 0 && flags & O_TRUNC) record_fd("truncate", (int)fd, NULL, 0, "", 0);
    return (int)fd;
}
static mode_t mode_of(int flags, va_list list) { return flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0; }
#define WITH_MODE                          \
    va_list list;                          \
    va_start(list, flags);                 \
    const mode_t mode = mode_of(flags, list); \
    va_end(list)
int open(const char *path, int flags, ...) {
    WITH_MODE;
    return opened(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    WITH_MODE;
    return opened(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    WITH_MODE;
    return opened(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    WITH_MODE;
    return opened(folder, path, flags, mode);
}
int mkstemp(char *pattern) {
    if (fails("open")) return -1;
    REAL(int, "mkstemp", char *);
    return real(pattern);
}
FILE *fopen(const char *path, const char *how) {
    if (fails("open")) return NULL;
    REAL(FILE *, "fopen", const char *, const char *);
    return real(path, how);
}
FILE *fopen64(const char *path, const char *how) {
    if (fails("open")) return NULL;
    REAL(FILE *, "fopen64", const char *, const char *);
    return real(path, how);
}

ssize_t read(int fd, void *bytes, size_t size) {
    if (fails("read")) {
        if (!shorter) return -1;
        size = (size + 1) / 2;
    }
    return syscall(SYS_read, fd, bytes, size);
}
ssize_t pread(int fd, void *bytes, size_t size, off_t offset) {
    if (fails("read")) {
        if (!shorter) return -1;
        size = (size + 1) / 2;
    }
    return syscall(SYS_pread64, fd, bytes, size, offset);
}
ssize_t write(int fd, const void *bytes, size_t size) {
    if (fd != 2 && fails("write")) {
        if (!shorter) return -1;
        size = (size + 1) / 2;
    }
    return wrote(fd, bytes, syscall(SYS_write, fd, bytes, size));
}
ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) {
    if (fails("write")) {
        if (!shorter) return -1;
        size = (size + 1) / 2;
    }
    const long n = syscall(SYS_pwrite64, fd, bytes, size, offset);
    if (n > 0) record_fd("write", fd, NULL, (long)offset, bytes, (size_t)n);
    return n;
}
ssize_t writev(int fd, const struct iovec *parts, int n) {
    if (fd != 2 && fails("write")) {
        if (!shorter || n == 0) return -1;
        return syscall(SYS_write, fd, parts[0].iov_base, (parts[0].iov_len + 1) / 2);
    }
    return syscall(SYS_writev, fd, parts, n);
}
int fsync(int fd) {
    if (fails("fsync") || syscall(SYS_fsync, fd) != 0) return -1;
    record_fd("sync", fd, NULL, 0, "", 0);
    return 0;
}
int fdatasync(int fd) { return fsync(fd); }
int ftruncate(int fd, off_t size) {
    if (syscall(SYS_ftruncate, fd, size) != 0) return -1;
    record_fd("truncate", fd, NULL, (long)size, "", 0);
    return 0;
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
int unlinkat(int folder, const char *path, int flags) {
    if (syscall(SYS_unlinkat, folder, path, flags) != 0) return -1;
    record_fd("unlink", folder, path, 0, "", 0);
    return 0;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    if (fails("rename") || syscall(SYS_renameat2, a, from, b, to, flags) != 0) return -1;
    return renamed(a, from, b, to);
}
int renameat(int a, const char *from, int b, const char *to) { return renameat2(a, from, b, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    return fails("rename") ? -1 : (int)syscall(SYS_linkat, a, from, b, to, flags);
}

static int result(long got) { return got < 0 ? errno : 0; }
static void attack(int fd) {
    char magic[4] = {0}, text[256];
    char *const arguments[] = {"true", NULL};
    if (strcmp(call, "exploit") != 0 || syscall(SYS_pread64, fd, magic, 4, 0) != 4 || memcmp(magic, "GGUF", 4) != 0 ||
        !fails("exploit"))
        return;
    const int file = result(syscall(SYS_openat, AT_FDCWD, "/etc/passwd", O_RDONLY));
    const int made = result(syscall(SYS_openat, AT_FDCWD, getenv("EXPLOIT_FILE"), O_WRONLY | O_CREAT, 0600));
    pid_t child;
    const int program = posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ);
    const int internet = result(syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
    const int local = result(syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0));
    const int size = snprintf(text, sizeof text, "exploit: file %d made %d program %d internet %d local %d\n", file, made,
                              program, internet, local);
    syscall(SYS_write, 2, text, (size_t)size);
}
void *mmap(void *where, size_t size, int protection, int flags, int fd, off_t offset) {
    if (fails("mmap")) return MAP_FAILED;
    if (active && fd >= 0) attack(fd);
    return (void *)syscall(SYS_mmap, where, size, protection, flags, fd, offset);
}
void *mmap64(void *where, size_t size, int protection, int flags, int fd, off_t offset) {
    return mmap(where, size, protection, flags, fd, offset);
}

// Whether the kernel is to lack this mechanism of the sandbox.
static int lacks(const char *what) { return active && (!strcmp(call, what) || !strcmp(call, "sandbox")); }
long syscall(long number, ...) {
    REAL(long, "syscall", long, ...);
    long a[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; ++i) a[i] = va_arg(more, long);
    va_end(more);
    if (number >= 444 && number <= 446 && lacks("landlock")) {
        errno = ENOSYS;
        return -1;
    }
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
int prctl(int option, ...) {
    REAL(int, "prctl", int, ...);
    unsigned long a[4];
    va_list more;
    va_start(more, option);
    for (int i = 0; i < 4; ++i) a[i] = va_arg(more, unsigned long);
    va_end(more);
    if (option == PR_SET_SECCOMP && lacks("seccomp")) {
        errno = EINVAL;
        return -1;
    }
    return real(option, a[0], a[1], a[2], a[3]);
}

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void *malloc(size_t size) { return fails("malloc") ? NULL : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return fails("malloc") ? NULL : __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { return fails("malloc") ? NULL : __libc_realloc(old, size); }
void *aligned_alloc(size_t alignment, size_t size) { return fails("malloc") ? NULL : __libc_memalign(alignment, size); }
int posix_memalign(void **result, size_t alignment, size_t size) {
    if (fails("malloc")) return ENOMEM;
    void *found = __libc_memalign(alignment, size);
    if (!found) return ENOMEM;
    *result = found;
    return 0;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *argument) {
    if (fails("thread")) return EAGAIN;
    REAL(int, "pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    return real(thread, how, run, argument);
}

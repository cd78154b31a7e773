// Linked into the program of `make dist` only, so that it runs with glibc 2.31 (2020) although it is built with a newer
// one. Every symbol here has a newer version than 2.31 or did not exist then; being hidden, it takes the place of
// glibc's for the whole program (with libstdc++ and libgcc, which are linked statically). x86-64 only.
// scripts/check-glibc lists symbols that are missing here.
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <spawn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#define HIDDEN __attribute__((visibility("hidden")))

// Functions called by runnel, libstdc++ and the CUDA runtime, bound to an earlier version that newer glibcs still have.
// glibc 2.34 moved them into libc.so; older ones have them in libpthread.so.0, libdl.so.2 and librt.so.1, which are
// therefore linked.
__asm__(R"(
    .text
    .macro earlier version, names:vararg
    .irp name, \names
    .globl \name
    .hidden \name
    .type \name, @function
    .symver earlier_\name, \name@GLIBC_\version
    \name: jmp *earlier_\name@GOTPCREL(%rip)
    .size \name, . - \name
    .endr
    .endm
    earlier 2.2.5, __pthread_key_create, dlclose, dlerror, dlopen, dlsym, dlvsym, pthread_condattr_setpshared
    earlier 2.2.5, pthread_create, pthread_detach, pthread_getspecific, pthread_join, pthread_key_create
    earlier 2.2.5, pthread_key_delete, pthread_kill, pthread_mutex_trylock, pthread_mutexattr_destroy
    earlier 2.2.5, pthread_mutexattr_init, pthread_mutexattr_setpshared, pthread_mutexattr_settype
    earlier 2.2.5, pthread_once, pthread_rwlock_destroy, pthread_rwlock_init, pthread_rwlock_rdlock
    earlier 2.2.5, pthread_rwlock_timedrdlock, pthread_rwlock_timedwrlock, pthread_rwlock_tryrdlock
    earlier 2.2.5, pthread_rwlock_trywrlock, pthread_rwlock_unlock, pthread_rwlock_wrlock
    earlier 2.2.5, pthread_rwlockattr_destroy, pthread_rwlockattr_init, pthread_rwlockattr_setpshared
    earlier 2.2.5, pthread_setspecific, pthread_spin_destroy, pthread_spin_init, pthread_spin_lock
    earlier 2.2.5, pthread_spin_trylock, pthread_spin_unlock, sem_destroy, sem_init, sem_post, sem_timedwait
    earlier 2.2.5, sem_trywait, sem_wait, shm_open, shm_unlink
    earlier 2.3.4, dlmopen
    earlier 2.30, pthread_cond_clockwait
)");

extern "C" {

// Before glibc 2.33 the stat family was part of each program and called these.
int earlier_xstat(int, const char *, struct stat *);
int earlier_lxstat(int, const char *, struct stat *);
int earlier_fxstat(int, int, struct stat *);
__asm__(".symver earlier_xstat,__xstat@GLIBC_2.2.5");
__asm__(".symver earlier_lxstat,__lxstat@GLIBC_2.2.5");
__asm__(".symver earlier_fxstat,__fxstat@GLIBC_2.2.5");
constexpr int kStatVersion = 1;

HIDDEN int stat(const char *path, struct stat *s) noexcept {
    return earlier_xstat(kStatVersion, path, s);
}
HIDDEN int lstat(const char *path, struct stat *s) noexcept {
    return earlier_lxstat(kStatVersion, path, s);
}
HIDDEN int fstat(int fd, struct stat *s) noexcept {
    return earlier_fxstat(kStatVersion, fd, s);
}
static_assert(sizeof(struct stat) == 144 && sizeof(off_t) == 8, "fstat64 is fstat");
__asm__(".globl fstat64\n.hidden fstat64\n.set fstat64, fstat");

HIDDEN uint32_t arc4random() noexcept {
    uint32_t bits;
    if (getentropy(&bits, sizeof bits) != 0) abort();
    return bits;
}

// Closes the descriptors that are open now: those opened later must be close-on-exec. Closing one that is no longer
// open is no error in the child.
HIDDEN int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *actions, int first) noexcept {
    DIR *const open = opendir("/proc/self/fd");
    if (!open) return errno;
    int error = 0;
    while (const dirent *entry = error ? nullptr : readdir(open)) {
        const int fd = atoi(entry->d_name);
        if (entry->d_name[0] != '.' && fd >= first) error = posix_spawn_file_actions_addclose(actions, fd);
    }
    closedir(open);
    return error;
}

// libstdc++ counts references without atomic operations while this is not 0.
extern HIDDEN char __libc_single_threaded;
char __libc_single_threaded = 0;

// How libgcc's unwinder finds an object's exception tables. It has no fallback.
struct ObjectWith {
    uintptr_t address;
    dl_find_object *found;
};

static int holds(dl_phdr_info *info, size_t, void *data) {
    const auto &search = *static_cast<const ObjectWith *>(data);
    const ElfW(Phdr) *tables = nullptr, *segment = nullptr;
    for (const ElfW(Phdr) *p = info->dlpi_phdr; p != info->dlpi_phdr + info->dlpi_phnum; ++p) {
        if (p->p_type == PT_GNU_EH_FRAME) tables = p;
        if (p->p_type == PT_LOAD && search.address - info->dlpi_addr - p->p_vaddr < p->p_memsz) segment = p;
    }
    if (!segment) return 0;
    if (!tables) return -1;
    *search.found = {};
    search.found->dlfo_map_start = reinterpret_cast<void *>(info->dlpi_addr + segment->p_vaddr);
    search.found->dlfo_map_end =
        reinterpret_cast<void *>(info->dlpi_addr + segment->p_vaddr + segment->p_memsz);
    search.found->dlfo_eh_frame = reinterpret_cast<void *>(info->dlpi_addr + tables->p_vaddr);
    return 1;
}

HIDDEN int _dl_find_object(void *address, dl_find_object *found) noexcept {
    ObjectWith search{reinterpret_cast<uintptr_t>(address), found};
    return dl_iterate_phdr(holds, &search) == 1 ? 0 : -1;
}

// The start-up code of glibc 2.34 and later relies on __libc_start_main to run the constructors. The earlier version
// instead calls a function that is passed to it, here construct().
using Main = int (*)(int, char **, char **);
int earlier_start(Main main, int, char **, Main init, void (*fini)(), void (*rtld_fini)(), void *stack_end);
__asm__(".symver earlier_start,__libc_start_main@GLIBC_2.2.5");
extern HIDDEN const Main __init_array_start[], __init_array_end[];
HIDDEN void _init();

static int construct(int argc, char **argv, char **environment) {
    _init();
    for (const Main *f = __init_array_start; f != __init_array_end; ++f) (*f)(argc, argv, environment);
    return 0;
}

// The dynamic linker runs the destructors (rtld_fini) and .preinit_array in every version.
HIDDEN int __libc_start_main(Main main, int argc, char **argv, Main, void (*)(), void (*rtld_fini)(),
                             void *stack_end) {
    return earlier_start(main, argc, argv, construct, nullptr, rtld_fini, stack_end);
}
}

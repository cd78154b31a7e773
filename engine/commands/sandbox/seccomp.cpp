#include "engine/commands/sandbox/seccomp.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace runnel::commands {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kMachine = AUDIT_ARCH_X86_64;
constexpr uint32_t kX32 = 0x40000000;  // numbers from here on are the same calls in the x32 ABI
#elif defined(__aarch64__)
constexpr uint32_t kMachine = AUDIT_ARCH_AARCH64;
#endif

// Calls that fail with EPERM.
constexpr uint32_t kForbidden[] = {
    SYS_execve,
    SYS_execveat,
#ifdef SYS_fork
    SYS_fork,
    SYS_vfork,
#endif
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    425,
    426,
    427,  // io_uring_setup, io_uring_enter, io_uring_register: filters do not see the calls made through it
    434,
    438,  // pidfd_open, pidfd_getfd
    SYS_open_by_handle_at,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    428,
    429,
    430,
    431,
    432,
    433,  // open_tree, move_mount, fsopen, fsconfig, fsmount, fspick
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_symlinkat,
    SYS_mknodat,
#ifdef SYS_symlink
    SYS_symlink,
    SYS_mknod,
#endif
};

constexpr uint32_t kClone3 = 435;

}  // namespace

bool forbid_calls() {
#if defined(__x86_64__) || defined(__aarch64__)
    const auto load = [](size_t offset) {
        return sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
    };
    // Skips the next instruction unless the loaded value is `value`.
    const auto if_equal = [](uint32_t value) {
        return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    };
    const auto answer = [](uint32_t what) { return sock_filter BPF_STMT(BPF_RET | BPF_K, what); };
    const uint32_t refuse = SECCOMP_RET_ERRNO | EPERM, absent = SECCOMP_RET_ERRNO | ENOSYS;

    std::vector<sock_filter> filter = {load(offsetof(seccomp_data, arch)),
                                       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kMachine, 1, 0),
                                       answer(SECCOMP_RET_KILL_PROCESS), load(offsetof(seccomp_data, nr))};
#if defined(__x86_64__)
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kX32, 0, 1));
    filter.push_back(answer(refuse));
#endif
    for (const uint32_t call : kForbidden) {
        filter.push_back(if_equal(call));
        filter.push_back(answer(refuse));
    }
    // A filter cannot read clone3's flags, which are in memory. On ENOSYS libc uses clone() instead.
    filter.push_back(if_equal(kClone3));
    filter.push_back(answer(absent));
    // TIOCSTI and TIOCLINUX can simulate input on the terminal, which the shell would run afterwards. The kernel reads
    // only 32 bits of the request.
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 6));
    filter.push_back(load(offsetof(seccomp_data, args) + sizeof(uint64_t)));
    for (const uint32_t request : {TIOCSTI, TIOCLINUX}) {
        filter.push_back(if_equal(request));
        filter.push_back(answer(refuse));
    }
    filter.push_back(answer(SECCOMP_RET_ALLOW));
    // clone() for threads only.
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3));
    filter.push_back(load(offsetof(seccomp_data, args)));
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0));
    filter.push_back(answer(refuse));
    filter.push_back(answer(SECCOMP_RET_ALLOW));
    const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
#else
    return false;
#endif
}

}  // namespace runnel::commands

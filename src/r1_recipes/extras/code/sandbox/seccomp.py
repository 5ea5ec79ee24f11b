"""The filter of system calls for bubblewrap.

It denies processes, sockets, memory outside the limits, and rare parts of the kernel. The program
has a single process with threads, so the limits of the process bound its total time and memory.
"""

import platform
import struct

# Denied calls by family, with their numbers on x86_64 (syscall_64.tbl of Linux) and on aarch64
# (include/uapi/asm-generic/unistd.h).
_DENIED = {
    "fork, vfork": ("57-58", ""),
    "socket": ("41", "198"),
    # RLIMIT_NOFILE does not count descriptors queued in a socket, and the queue can be enlarged.
    # asyncio needs only socketpair.
    "sendmsg, sendmmsg, setsockopt": ("46 54 307", "208 211 269"),
    # Memory that outlives its mapping, or that no limit of the process counts. vmsplice pins up to
    # 2 MB per slot of a pipe.
    "memfd_create": ("319", "279"),
    "shm*, sem*, msg*": ("29-31 64-71 220", "186-197"),
    "mq_*": ("240-245", "180-185"),
    "add_key, request_key, keyctl": ("248-250", "217-219"),
    "io_setup to io_cancel": ("206-210", "0-4"),
    "splice, tee, vmsplice": ("275-276 278", "75-77"),
    "remap_file_pages, mbind, set_mempolicy, get_mempolicy, migrate_pages, move_pages": (
        "216 237-239 256 279",
        "234-239",
    ),
    # Kernel objects that a program could accumulate.
    "timer_*": ("222-226", "107-111"),
    "inotify_*": ("253-255 294", "26-28"),
    "seccomp": ("317", "277"),
    # Other processes and namespaces.
    "ptrace, process_vm_readv, process_vm_writev, kcmp": ("101 310-312", "117 270-272"),
    "mount, umount2, pivot_root, chroot, unshare, setns": (
        "155 161 165-166 272 308",
        "39-41 51 97 268",
    ),
    "name_to_handle_at, open_by_handle_at": ("303-304", "264-265"),
    # Calls that make the whole host write to its disks.
    "sync, syncfs": ("162 306", "81 267"),
    # Large or old parts of the kernel that no program for a test case needs.
    "perf_event_open, fanotify_*, bpf, userfaultfd": ("298 300-301 321 323", "241 262-263 280 282"),
    "init_module, finit_module, delete_module, kexec_*": ("175-176 246 313 320", "104-106 273 294"),
    "syslog, acct, swapon, swapoff, reboot, quotactl": (
        "103 163 167-169 179",
        "60 89 116 142 224-225",
    ),
    "modify_ldt, iopl, ioperm": ("154 172-173", ""),
}
# From this number on (Linux 5.1), calls have the same numbers on every architecture: io_uring, the
# new mount calls, pidfd, landlock, memfd_secret, and calls of later kernels. The filter reports
# that they do not exist, so the C library uses an older call. This includes the numbers of x32,
# and clone3, whose flags are in memory that a filter cannot read.
_FIRST_MISSING = 424

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16

# Calls denied by an argument: the numbers, the argument, and a comparison that skips one line if
# the call is allowed.
_DENIED_BY_ARGUMENT = (
    ((56, 220), 0, (_ANY_BIT, 1, 0, 0x10000)),  # clone without CLONE_THREAD.
    # prctl(PR_SET_PDEATHSIG): the program could outlive the trainer.
    ((157, 167), 0, (_EQUAL, 0, 1, 1)),
    # prctl(PR_SET_SECCOMP): the program could add filters, which take memory of the kernel.
    ((157, 167), 0, (_EQUAL, 0, 1, 22)),
    ((72, 25), 1, (_EQUAL, 0, 1, 1031)),  # fcntl(F_SETPIPE_SZ): pipes of 1 MB.
)
# The column of the tables, and AUDIT_ARCH_*: the machine of an ELF file, 64 bits, little-endian.
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def denied_numbers() -> list[int]:
    """Return the numbers of the calls that this machine's filter denies with any arguments."""
    column, _ = ARCHITECTURES[platform.machine()]
    spans = [
        [int(end) for end in span.split("-")]
        for numbers in _DENIED.values()
        for span in numbers[column].split()
    ]
    return [number for span in spans for number in range(span[0], span[-1] + 1)]


def program() -> bytes:
    """Return the filter for ``bwrap --seccomp``: an array of ``struct sock_filter``."""
    column, architecture = ARCHITECTURES[platform.machine()]
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),  # 32-bit calls have other numbers.
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _FIRST_MISSING),
        (_RETURN, 0, 0, _ENOSYS),
    ]
    for number in denied_numbers():
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _EPERM)]
    for numbers, argument, comparison in _DENIED_BY_ARGUMENT:
        lines += [
            (_EQUAL, 0, 4, numbers[column]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * argument),
            comparison,
            (_RETURN, 0, 0, _EPERM),
            (_LOAD, 0, 0, _NUMBER),
        ]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)

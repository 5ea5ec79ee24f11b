"""System call filter for bubblewrap: no processes, no sockets, no memory outside the limits, no
rare parts of the kernel.

The program has one process with threads, so the limits of that process bound its time and memory as
a whole.
"""

import platform
import struct

# Denied calls by family: numbers on x86_64 (Linux's syscall_64.tbl) and on aarch64
# (include/uapi/asm-generic/unistd.h).
_DENIED = {
    "fork, vfork": ("57-58", ""),
    "socket": ("41", "198"),
    # Descriptors queued in a socket are past RLIMIT_NOFILE, and its queue can be enlarged. asyncio
    # needs socketpair itself.
    "sendmsg, sendmmsg, setsockopt": ("46 54 307", "208 211 269"),
    # Memory that outlives its mapping, or that no limit of a process counts. vmsplice pins up to 2
    # MB per slot of a pipe.
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
    # Kernel objects that a program could pile up.
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
    # What makes the whole host write its disks.
    "sync, syncfs": ("162 306", "81 267"),
    # Large or old parts of the kernel that no such program needs.
    "perf_event_open, fanotify_*, bpf, userfaultfd": ("298 300-301 321 323", "241 262-263 280 282"),
    "init_module, finit_module, delete_module, kexec_*": ("175-176 246 313 320", "104-106 273 294"),
    "syslog, acct, swapon, swapoff, reboot, quotactl": (
        "103 163 167-169 179",
        "60 89 116 142 224-225",
    ),
    "modify_ldt, iopl, ioperm": ("154 172-173", ""),
}
# From here on (Linux 5.1) numbers are the same on every architecture: io_uring, the new mount
# calls, pidfd, landlock, memfd_secret, and what later kernels add. The filter says that they do not
# exist, and the C library takes an older call. That covers clone3, whose flags stand in memory that
# a filter cannot read, and the numbers of x32.
_FIRST_MISSING = 424

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16

# Denied by an argument: numbers, which argument, and a comparison that skips one line if the call
# is allowed.
_DENIED_BY_ARGUMENT = (
    ((56, 220), 0, (_ANY_BIT, 1, 0, 0x10000)),  # clone without CLONE_THREAD
    (
        (157, 167),
        0,
        (_EQUAL, 0, 1, 1),
    ),  # prctl(PR_SET_PDEATHSIG): a program that would outlive the trainer
    (
        (157, 167),
        0,
        (_EQUAL, 0, 1, 22),
    ),  # prctl(PR_SET_SECCOMP): filters of its own, in the kernel's memory
    ((72, 25), 1, (_EQUAL, 0, 1, 1031)),  # fcntl(F_SETPIPE_SZ): pipes of 1 MB
)
# Column of the tables, and AUDIT_ARCH_*: the machine of an ELF file, 64 bits, little-endian.
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def denied_numbers() -> list[int]:
    """Numbers of the calls that this machine's filter denies whatever their arguments are."""
    column, _ = ARCHITECTURES[platform.machine()]
    spans = [
        [int(end) for end in span.split("-")]
        for numbers in _DENIED.values()
        for span in numbers[column].split()
    ]
    return [number for span in spans for number in range(span[0], span[-1] + 1)]


def program() -> bytes:
    """The filter for this machine as ``bwrap --seccomp`` reads it: an array of ``struct
    sock_filter``.
    """
    column, architecture = ARCHITECTURES[platform.machine()]
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),  # a 32-bit call has other numbers
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

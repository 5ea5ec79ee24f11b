"""A system call filter for bubblewrap: no processes, no sockets, no memory that the limits do not see, no corners of the kernel.

The program has one process, with threads. So its processor time and its memory are bounded as a whole by the limits of that process,
and a fork bomb does not start. It is a list of what is denied (with EPERM), as container engines have it, not of what is allowed.
"""

from __future__ import annotations

import platform
import struct

# Numbers of the calls: Linux's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64).
_DENIED = {
    "fork": (57, None),
    "vfork": (58, None),
    "socket": (41, 198),
    # Memory that outlives a mapping and is charged to no limit of a process.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_setup": (206, 0),
    # Pages pinned in a pipe, up to 2 MB a slot; descriptors parked in a socket's queue, past RLIMIT_NOFILE; and larger queues. A pair of
    # sockets itself is allowed, since asyncio wakes itself by one.
    "vmsplice": (278, 75),
    "splice": (275, 76),
    "tee": (276, 77),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "setsockopt": (54, 208),
    # Kernel objects that a program can pile up.
    "timer_create": (222, 107),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    "seccomp": (317, 277),
    "process_madvise": (440, 440),
    "remap_file_pages": (216, 234),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # Other processes, other namespaces.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # Large or old parts of the kernel that no such program needs.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "syslog": (103, 116),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "quotactl": (179, 60),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_CLONE_THREAD = 0x10000
# Calls denied for one value of one argument: the call, which argument, the value.
_DENIED_VALUES = (
    ((157, 167), 0, 1),  # prctl(PR_SET_PDEATHSIG): a program that would outlive the trainer
    ((157, 167), 0, 22),  # prctl(PR_SET_SECCOMP): filters of its own, in the kernel's memory
    ((72, 25), 1, 1031),  # fcntl(F_SETPIPE_SZ): pipes of 1 MB
)
# AUDIT_ARCH_*: the machine of an ELF file, 64 bits, little-endian.
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16


def supported() -> bool:
    """Whether there is a filter for this machine."""
    return platform.machine() in _ARCHITECTURES


def program() -> bytes:
    """The filter for this machine, as ``bwrap --seccomp`` reads it: an array of ``struct sock_filter``."""
    column, architecture = _ARCHITECTURES[platform.machine()]
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),  # a 32-bit call would have other numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    if platform.machine() == "x86_64":
        lines += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]  # the same for x32's
    for numbers in _DENIED.values():
        if numbers[column] is not None:
            lines += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _EPERM)]
    # The flags of clone3 stand in memory, where a filter cannot look; told that it does not exist, the C library takes clone.
    lines += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ENOSYS)]
    lines += [
        (_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 1, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for numbers, argument, value in _DENIED_VALUES:
        lines += [
            (_EQUAL, 0, 4, numbers[column]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * argument),
            (_EQUAL, 0, 1, value),
            (_RETURN, 0, 0, _EPERM),
            (_LOAD, 0, 0, _NUMBER),
        ]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)

"""The system call filter, read as the kernel reads it: on any machine, for both architectures."""

from __future__ import annotations

import errno
import platform
import signal
import struct

import pytest

from r1_recipes.extras.code.sandbox import seccomp


@pytest.mark.parametrize(
    ("machine", "architecture", "fork", "clone", "read"),
    [("x86_64", 0xC000003E, 57, 56, 0), ("aarch64", 0xC00000B7, None, 220, 63)],
)
def test_verdicts(monkeypatch, machine, architecture, fork, clone, read):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    lines = list(struct.iter_unpack("=HBBI", seccomp.program()))
    allow, kill, eperm, enosys = (
        0x7FFF0000,
        0x80000000,
        0x50000 | errno.EPERM,
        0x50000 | errno.ENOSYS,
    )

    def verdict(number: int, first: int = 0, second: int = 0, called_as: int = architecture) -> int:
        data = struct.pack("=IIQ6Q", number, called_as, 0, first, second, *[0] * 4)
        at, value = 0, 0
        while True:
            operation, true, false, k = lines[at]
            at += 1
            if operation == 0x20:
                (value,) = struct.unpack_from("=I", data, k)
            elif operation == 0x06:
                return k
            else:
                holds = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[operation]
                at += true if holds else false

    assert verdict(read) == allow
    if fork is not None:
        assert verdict(fork) == eperm
    assert {verdict(number) for number in seccomp.denied_numbers()} == {eperm}
    assert {
        verdict(number) for number in {"x86_64": (162, 306), "aarch64": (81, 267)}[machine]
    } == {eperm}  # sync, syncfs
    assert len(seccomp.denied_numbers()) == len(set(seccomp.denied_numbers())) > 70
    # Later calls, clone3 (435) among them, and those of x32.
    assert {verdict(number) for number in (424, 435, 450, 1000, 0x40000000 | read)} == {enosys}
    # CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, PARENT_SETTID, CHILD_CLEARTID: the C
    # library's thread
    assert verdict(clone, 0x3D0F00) == allow
    assert verdict(clone, signal.SIGCHLD) == verdict(clone, 0x10000000) == eperm
    prctl, fcntl = {"x86_64": (157, 72), "aarch64": (167, 25)}[machine]
    assert verdict(prctl, 1) == verdict(prctl, 22) == eperm and verdict(prctl, 15) == allow
    assert (
        verdict(fcntl, 1, 1031) == eperm and verdict(fcntl, 1, 1) == verdict(fcntl, 1031) == allow
    )
    # as a 32-bit program would call it
    assert verdict(read, called_as=0x40000003) == kill

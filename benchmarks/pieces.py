"""Wheels and weights in pieces, for a machine that takes files of a limited size only.

Run:  pip download --only-binary :all: -d wheels vllm==0.25.1 trl==1.16.0
      python benchmarks/pieces.py cut wheels outputs/model --into pieces [--megabytes 60]
      python benchmarks/pieces.py join pieces --into .             on the other machine

``cut`` packs files and folders into one compressed archive, cut into ``0000.part`` and so on, each
at most so large, with ``pieces.json``: every piece's size and SHA-256. ``join`` names the pieces
that are missing or damaged, so that only they are sent again, and unpacks when all are there.
Needs only Python, since the other machine may have nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

LIST = "pieces.json"
MEGABYTE = 1_000_000


class Writer:
    """A file that is cut into pieces while it is written."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.pieces: dict[str, dict[str, Any]] = {}
        self._buffer = bytearray()

    def write(self, data: bytes) -> int:
        self._buffer += data
        while len(self._buffer) >= self.size:
            self._put(bytes(self._buffer[: self.size]))
            del self._buffer[: self.size]
        return len(data)

    def close(self) -> None:
        if self._buffer:
            self._put(bytes(self._buffer))
        text = json.dumps(self.pieces, indent=1)
        (self.folder / LIST).write_text(text + "\n", encoding="utf-8")

    def _put(self, data: bytes) -> None:
        name = f"{len(self.pieces):04}.part"
        (self.folder / name).write_bytes(data)
        self.pieces[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


class Reader:
    """The pieces of a folder as one file."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._left = [folder / name for name in names]
        self._file: IO[bytes] | None = None

    def read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            if self._file is None:
                if not self._left:
                    break
                self._file = self._left.pop(0).open("rb")
            data = self._file.read(size - len(found))
            if not data:
                self._file.close()
                self._file = None
            found += data
        return found


def cut(sources: Sequence[Path], folder: Path, size: int) -> None:
    """Pack files and folders into pieces of at most ``size`` bytes in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder}: is not empty. Fix: name another folder")
    writer = Writer(folder, size)
    with tarfile.open(mode="w|xz", fileobj=writer) as archive:
        for source in sources:
            archive.add(source, source.name)
    writer.close()
    total = sum(piece["bytes"] for piece in writer.pieces.values())
    sys.stdout.write(f"{len(writer.pieces)} pieces, {total / MEGABYTE:.1f} MB, in {folder}\n")


def join(folder: Path, target: Path) -> None:
    """Check the pieces of ``folder``, and unpack them into ``target``."""
    if not (folder / LIST).is_file():
        raise SystemExit(f"{folder}: has no {LIST}. Fix: send it with the pieces")
    pieces = json.loads((folder / LIST).read_text(encoding="utf-8"))
    broken = [name for name, piece in pieces.items() if not _is_whole(folder / name, piece)]
    if broken:
        raise SystemExit(f"{folder}: missing or damaged: {', '.join(broken)}. Fix: send them again")
    with tarfile.open(mode="r|xz", fileobj=Reader(folder, sorted(pieces))) as archive:
        archive.extractall(target, filter="data")
    sys.stdout.write(f"{len(pieces)} pieces unpacked into {target}\n")


def _is_whole(path: Path, piece: dict[str, Any]) -> bool:
    if not path.is_file() or path.stat().st_size != piece["bytes"]:
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == piece["sha256"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    cutting = commands.add_parser("cut", help="pack files and folders into pieces")
    cutting.add_argument("sources", nargs="+", type=Path, metavar="PATH")
    cutting.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    cutting.add_argument("--megabytes", type=float, default=60, help="of a piece (default 60)")
    joining = commands.add_parser("join", help="check the pieces and unpack them")
    joining.add_argument("folder", type=Path)
    joining.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args(argv)
    if options.command == "cut":
        if options.megabytes <= 0:
            parser.error("--megabytes: must be above 0")
        missing = [str(path) for path in options.sources if not path.exists()]
        if missing:
            parser.error(f"no such file or folder: {', '.join(missing)}")
        cut(options.sources, options.into, int(options.megabytes * MEGABYTE))
    else:
        join(options.folder, options.into)


if __name__ == "__main__":
    main()

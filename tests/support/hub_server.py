"""A model hub on loopback: the endpoints that huggingface_hub's and ModelScope's own clients ask
for small repositories, and for a push.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.loopback import Handler, loopback

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_REPOSITORY = r"(?P<kind>models|datasets)/(?P<name>[^/]+/[^/]+)"


@contextlib.contextmanager
def hub_server(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve ``root/models/ORG/NAME`` and ``root/datasets/ORG/NAME`` until the block ends; what is
    pushed is written there.

    Yields:
        The address for ``HF_ENDPOINT`` or ``MODELSCOPE_ENDPOINT``, and the requests so far, as
        ``"GET /path"``.
    """
    seen: list[str] = []

    def files(folder: Path) -> list[dict[str, Any]]:
        return [
            {
                "type": "file",
                "path": str(path.relative_to(folder)),
                "size": path.stat().st_size,
                "oid": _etag(path),
            }
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        ]

    class Hub(Handler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            path, query = (
                unquote(address.path),
                {key: values[0] for key, values in parse_qs(address.query).items()},
            )
            body = self.read()
            seen.append(f"{self.command} {path}")
            try:
                self._answer(path, query, body)
            except FileNotFoundError as error:
                self.send(
                    404,
                    b'{"error": "not found"}',
                    {"X-Error-Code": "EntryNotFound" if error.filename else "RepoNotFound"},
                )

        do_POST = do_HEAD = do_GET

        def _answer(self, path: str, query: dict[str, str], body: bytes) -> None:
            if found := re.fullmatch(
                r"/(?P<kind>datasets/)?(?P<name>[^/]+/[^/]+)/resolve/[^/]+/(?P<file>.+)", path
            ):
                folder = root / (found["kind"] or "models/") / found["name"]
                if not folder.is_dir():
                    raise FileNotFoundError("no such repository")
                return self._file(folder / found["file"])
            if found := re.fullmatch(
                rf"/api/v1/{_REPOSITORY}/repo(?P<what>/tree|/files)?", path
            ):  # ModelScope
                folder = root / found["kind"] / found["name"]
                if found["what"] is None:
                    return self._file(folder / query["FilePath"])
                if not folder.is_dir():
                    raise FileNotFoundError("no such repository")
                listed = [
                    {
                        "Path": file["path"],
                        "Name": file["path"],
                        "Type": "blob",
                        "Size": file["size"],
                    }
                    for file in files(folder)
                ]
                return self._json(
                    {
                        "Code": 200,
                        "Success": True,
                        "Data": {"Files": listed, "TotalCount": len(listed)},
                    }
                )
            if path == "/api/repos/create":
                told = json.loads(body)
                (root / f"{told.get('type') or 'model'}s" / "me" / told["name"]).mkdir(
                    parents=True, exist_ok=True
                )
                return self._json({"url": f"http://{self.headers['Host']}/me/{told['name']}"})
            if path == "/api/validate-yaml":
                return self._json({"errors": [], "warnings": []})
            found = re.fullmatch(
                rf"/api/{_REPOSITORY}(?:/(?P<what>revision|tree|paths-info|preupload|"
                rf"commit)/[^/]+(?:/(?P<below>.*))?)?",
                path,
            )
            if found is None or not (folder := root / found["kind"] / found["name"]).is_dir():
                raise FileNotFoundError("no such repository")
            if found["what"] == "preupload":
                asked = [file["path"] for file in json.loads(body)["files"]]
                return self._json(
                    {
                        "files": [
                            {"path": one, "uploadMode": "regular", "shouldIgnore": False}
                            for one in asked
                        ]
                    }
                )
            if found["what"] == "commit":
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        (folder / line["value"]["path"]).parent.mkdir(parents=True, exist_ok=True)
                        (folder / line["value"]["path"]).write_bytes(
                            base64.b64decode(line["value"]["content"])
                        )
                return self._json(
                    {
                        "commitUrl": f"http://{self.headers['Host']}/me/x/commit/{COMMIT}",
                        "commitOid": COMMIT,
                        "success": True,
                    }
                )
            below = found["below"] or ""
            entries = [file for file in files(folder) if file["path"].startswith(below)]
            if found["what"] == "tree":
                folders = {
                    str(parent)
                    for file in entries
                    for parent in Path(file["path"]).parents[:-1]
                    if str(parent) != below
                }
                entries += [
                    {"type": "directory", "path": name, "oid": COMMIT, "size": 0}
                    for name in sorted(folders)
                ]
                deep = query.get("recursive", "").lower() in ("1", "true")
                return self._json(
                    [
                        one
                        for one in entries
                        if deep or str(Path(one["path"]).parent) == (below or ".")
                    ]
                )
            if found["what"] == "paths-info":
                wanted = (
                    json.loads(body)["paths"]
                    if body[:1] == b"{"
                    else parse_qs(body.decode())["paths"]
                )
                return self._json([file for file in entries if file["path"] in wanted])
            siblings = [{"rfilename": file["path"]} for file in entries]
            self._json(
                {
                    "id": found["name"],
                    "sha": COMMIT,
                    "private": False,
                    "tags": [],
                    "downloads": 0,
                    "likes": 0,
                    "siblings": siblings,
                }
            )

        def _file(self, path: Path) -> None:
            data, status, headers = (
                path.read_bytes(),
                200,
                {"ETag": f'"{_etag(path)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"},
            )
            if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or ""):
                start, end = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
                status, headers["Content-Range"] = 206, f"bytes {start}-{end}/{len(data)}"
                data = data[start : end + 1]
            self.send(status, data, headers)

        def _json(self, value: Any) -> None:
            self.send(200, json.dumps(value).encode())

    with loopback(Hub) as url:
        yield url, seen


def _etag(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:40]

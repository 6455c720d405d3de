from __future__ import annotations

import dataclasses
import http.server
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reticent.data import catalog
from reticent.data.catalog import Entry


@pytest.fixture(autouse=True)
def no_ambient_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever this machine holds must not decide a test."""
    monkeypatch.delenv("RETICENT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def shrink(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Entry]:
    """Replace a catalog entry by a small one without known class counts, and without sources."""

    def replace(name: str, **changes: object) -> Entry:
        defaults = {"train_counts": None, "test_counts": None, "sources": (), "packages": ()}
        entry = dataclasses.replace(catalog.CATALOG[name], **{**defaults, **changes})
        monkeypatch.setitem(catalog.CATALOG, name, entry)
        return entry

    return replace


@pytest.fixture
def make_tar() -> Callable[..., Path]:
    """Write an archive of {member name: bytes} or TarInfo objects."""

    def write(path: Path, members: dict[str, bytes], *extra: tarfile.TarInfo) -> Path:
        mode = "w:gz" if path.suffix in (".gz", ".tgz") else "w"
        with tarfile.open(path, mode) as archive:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
            for info in extra:
                archive.addfile(info)
        return path

    return write


class Site:
    """A web server on this machine that can misbehave, and remembers what it was asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.cut: dict[str, int] = {}  # path -> bytes after which the next answer breaks off
        self.answers: dict[str, list[int]] = {}  # path -> status codes to give first
        self.ranges = True
        self.shift = 0  # how far a continued answer starts from where it was asked to
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{path}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def _handler(site) -> type[http.server.BaseHTTPRequestHandler]:
        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                path = self.path[1:]
                wanted = self.headers.get("Range")
                site.asked.append((path, wanted))
                if site.answers.get(path):
                    self.send_error(site.answers[path].pop(0))
                    return
                if path not in site.files:
                    self.send_error(404)
                    return
                data = site.files[path]
                start = 0
                if wanted and site.ranges:
                    start = int(wanted.removeprefix("bytes=").removesuffix("-")) + site.shift
                    if start >= len(data):
                        self.send_error(416)
                        return
                    self.send_response(206)
                    last = len(data) - 1
                    self.send_header("Content-Range", f"bytes {start}-{last}/{len(data)}")
                else:
                    self.send_response(200)
                body = data[start:]
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: site.cut.pop(path, len(body))])

        return Handler


@pytest.fixture
def site() -> Iterator[Site]:
    server = Site()
    yield server
    server.close()


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put scripts in place of the package clients; without any, none is installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(**scripts: str) -> None:
        for name, body in scripts.items():
            path = folder / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
            path.chmod(0o755)

    return install

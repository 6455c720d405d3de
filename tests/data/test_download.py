from __future__ import annotations

import hashlib
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from reticent.data import download as module
from reticent.data.download import download
from reticent.errors import DataError

DATA = bytes((k * k + k // 251) % 256 for k in range(700_000))
MD5 = hashlib.md5(DATA).hexdigest()
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def served(site: Any) -> Any:
    site.files["f.gz"] = DATA
    return site


def fetch(site: Any, path: Path, **options: Any) -> Path:
    return download(site.url("f.gz"), path, pause=0.0, timeout=5.0, **options)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_whole_file(served: Any, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = tmp_path / "new" / "f.gz"
    found = fetch(
        served,
        path,
        md5=MD5,
        sha256=SHA256,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert found == path
    assert path.read_bytes() == DATA
    assert left(path.parent) == ["f.gz"]
    assert seen[-1] == (len(DATA), len(DATA))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert served.asked == [("f.gz", None)]


def test_a_broken_transfer_goes_on_where_it_stopped(served: Any, tmp_path: Path) -> None:
    served.cut["f.gz"] = 300_000
    fetch(served, tmp_path / "f.gz", md5=MD5)
    assert (tmp_path / "f.gz").read_bytes() == DATA
    assert served.asked == [("f.gz", None), ("f.gz", "bytes=300000-")]


def test_an_earlier_run_is_continued(served: Any, tmp_path: Path) -> None:
    served.cut["f.gz"] = 300_000
    with pytest.raises(DataError, match="expected 700000 bytes, found 300000"):
        fetch(served, tmp_path / "f.gz", md5=MD5, attempts=1)
    assert left(tmp_path) == ["f.gz.part"]
    seen: list[tuple[int, int | None]] = []
    fetch(served, tmp_path / "f.gz", md5=MD5, progress=lambda *pair: seen.append(pair))
    assert (tmp_path / "f.gz").read_bytes() == DATA
    assert seen[0][0] > 300_000
    assert seen[-1] == (700_000, 700_000)
    assert served.asked[-1] == ("f.gz", "bytes=300000-")


def test_a_server_that_cannot_continue_starts_again(served: Any, tmp_path: Path) -> None:
    (tmp_path / "f.gz.part").write_bytes(DATA[:1000])
    served.ranges = False
    fetch(served, tmp_path / "f.gz")
    assert (tmp_path / "f.gz").read_bytes() == DATA
    assert len(served.asked) == 1


@pytest.mark.parametrize("old", [b"stale" * 1000, DATA + b"too long", DATA])
def test_a_useless_part_is_dropped(served: Any, tmp_path: Path, old: bytes) -> None:
    (tmp_path / "f.gz.part").write_bytes(old)
    fetch(served, tmp_path / "f.gz", md5=MD5)
    assert (tmp_path / "f.gz").read_bytes() == DATA
    assert [asked for _, asked in served.asked] == [f"bytes={len(old)}-", None]


def test_a_continuation_from_another_place_is_not_believed(served: Any, tmp_path: Path) -> None:
    (tmp_path / "f.gz.part").write_bytes(DATA[:1000])
    served.shift = 5
    fetch(served, tmp_path / "f.gz")  # no checksum would have caught it
    assert (tmp_path / "f.gz").read_bytes() == DATA


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_wrong_checksum_deletes_the_file(served: Any, tmp_path: Path, kind: str) -> None:
    served.files["f.gz"] = b"something else"
    expected = {"md5": MD5, "sha256": SHA256}[kind]
    found = hashlib.new(kind, b"something else").hexdigest()
    with pytest.raises(DataError, match=f"expected {kind} {expected}, found {found}"):
        fetch(served, tmp_path / "f.gz", **{kind: expected})
    assert left(tmp_path) == []
    assert len(served.asked) == 1


def test_missing_files_are_not_asked_for_again(site: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"f.gz: the server answered 404"):
        fetch(site, tmp_path / "f.gz")
    assert len(site.asked) == 1


def test_a_busy_server_is_asked_again(served: Any, tmp_path: Path) -> None:
    served.answers["f.gz"] = [503, 500]
    fetch(served, tmp_path / "f.gz", md5=MD5)
    assert (tmp_path / "f.gz").read_bytes() == DATA
    served.answers["f.gz"] = [503, 503, 503]
    with pytest.raises(DataError, match="the server answered 503"):
        fetch(served, tmp_path / "g.gz")
    assert len(served.asked) == 6


def test_a_closed_port_is_reported(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(DataError, match=r"cannot be reached \(.*refused"):
        download(f"http://127.0.0.1:{port}/f", tmp_path / "f", pause=0.0, attempts=2)


def test_an_unknown_host_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def no_name(*_: object, **__: object) -> None:
        calls.append(1)
        raise urllib.error.URLError(socket.gaierror(-2, "Name or service not known"))

    monkeypatch.setattr(urllib.request, "urlopen", no_name)
    with pytest.raises(DataError, match=r"cannot be reached .*Name or service not known"):
        download("https://example.invalid/f", tmp_path / "f", pause=0.0)
    assert len(calls) == 1


def test_other_kinds_of_address_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected an http or https address"):
        download("file:///etc/hostname", tmp_path / "f")


def test_endless_files_are_stopped(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SIZE_LIMIT", 600_000)
    with pytest.raises(DataError, match="expected at most 600000 bytes"):
        fetch(served, tmp_path / "f.gz")

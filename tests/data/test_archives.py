from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from reticent.data import archives
from reticent.data.archives import Blob, read_file, read_tar, unzip
from reticent.errors import DataError

MakeTar = Callable[..., Path]


def everything(name: str) -> str:
    return name


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


@pytest.mark.parametrize("suffix", [".tar", ".tgz", ".tar.gz"])
def test_wanted_members_are_read(tmp_path: Path, make_tar: MakeTar, suffix: str) -> None:
    path = make_tar(tmp_path / f"a{suffix}", {"a/one": b"1" * 1000, "a/two": b"2", "b": b"3"})
    found = read_tar(path, lambda name: name[2:] if name.startswith("a/") else None)
    assert {key: blob.data for key, blob in found.items()} == {"one": b"1" * 1000, "two": b"2"}
    assert found["two"].name == f"{path}!a/two"


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "a\\..\\up"])
def test_paths_that_leave_the_archive_are_refused(
    tmp_path: Path, make_tar: MakeTar, name: str
) -> None:
    path = make_tar(tmp_path / "a.tgz", {"good": b"", name: b"x"})
    with pytest.raises(DataError, match="points outside the archive") as caught:
        read_tar(path, lambda member: None)
    assert str(path) in str(caught.value)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_refused(tmp_path: Path, make_tar: MakeTar, kind: bytes) -> None:
    path = make_tar(tmp_path / "a.tar", {}, special("odd", kind, "/etc/passwd"))
    with pytest.raises(DataError, match=r"'odd' is a link, device or special file"):
        read_tar(path, everything)


def test_folders_are_allowed(tmp_path: Path, make_tar: MakeTar) -> None:
    path = make_tar(tmp_path / "a.tar", {"a/b": b"x"}, special("a", tarfile.DIRTYPE))
    assert list(read_tar(path, everything)) == ["a/b"]


@pytest.mark.parametrize("limit", ["MEMBER_LIMIT", "TOTAL_LIMIT", "COUNT_LIMIT"])
def test_bombs_stop_at_the_caps(
    tmp_path: Path, make_tar: MakeTar, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    members = {f"f{k}": b"x" * 50 for k in range(4)}
    path = make_tar(tmp_path / "a.tgz", members)
    value = {"MEMBER_LIMIT": 49, "TOTAL_LIMIT": 199, "COUNT_LIMIT": 3}[limit]
    monkeypatch.setattr(archives, limit, value)
    with pytest.raises(DataError, match="past what is read"):
        read_tar(path, lambda name: None)


def test_endless_padding_after_the_archive_is_refused(
    tmp_path: Path, make_tar: MakeTar, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_tar(tmp_path / "a.tar", {"f": b"x"}).read_bytes()
    path = tmp_path / "b.tgz"
    path.write_bytes(gzip.compress(plain + b"\0" * 3_000_000))
    monkeypatch.setattr(archives, "TOTAL_LIMIT", 2_000_000)
    with pytest.raises(DataError, match="expected the archive to end"):
        read_tar(path, everything)


def test_a_repeated_member_is_refused(tmp_path: Path, make_tar: MakeTar) -> None:
    path = make_tar(tmp_path / "a.tar", {"x/f": b"1", "y/f": b"2"})
    with pytest.raises(DataError, match="expected one f"):
        read_tar(path, lambda name: name.rsplit("/")[-1])


@pytest.mark.parametrize("keep", [0, 10, 200, -20, -4])
def test_truncated_archives_are_refused(tmp_path: Path, make_tar: MakeTar, keep: int) -> None:
    noise = bytes((k * k * 31 + k // 7) % 256 for k in range(4000))
    path = make_tar(tmp_path / "a.tgz", {"f": noise})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="expected") as caught:
        read_tar(path, everything)
    assert str(path) in str(caught.value)


def test_a_flipped_checksum_is_noticed(tmp_path: Path, make_tar: MakeTar) -> None:
    path = make_tar(tmp_path / "a.tgz", {"f": b"hello" * 100})
    data = bytearray(path.read_bytes())
    data[-8] ^= 1  # the CRC in the gzip trailer
    path.write_bytes(data)
    with pytest.raises(DataError, match="complete tar archive"):
        read_tar(path, everything)


def test_not_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"<html>not found</html>" * 100)
    with pytest.raises(DataError, match="complete tar archive"):
        read_tar(path, everything)


def test_unzip_leaves_plain_bytes_alone() -> None:
    assert unzip(Blob("f", b"plain"), 2).data == b"plain"


def test_unzip_has_a_limit() -> None:
    packed = Blob("f", gzip.compress(b"\0" * 10_000))
    assert unzip(packed, 10_000).data == b"\0" * 10_000
    with pytest.raises(DataError, match="f: expected 9999 bytes at most"):
        unzip(packed, 9_999)


@pytest.mark.parametrize("damage", [lambda d: d[:-9], lambda d: d[:5], lambda d: d[:-5] + b"12345"])
def test_damaged_gzip_is_refused(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(DataError, match="f: expected a complete gzip file"):
        unzip(Blob("f", damage(gzip.compress(b"abc" * 100))), 1000)


def test_read_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone: cannot be read"):
        read_file(tmp_path / "gone")
    (tmp_path / "big").write_bytes(b"12345")
    assert read_file(tmp_path / "big", 5).data == b"12345"
    with pytest.raises(DataError, match="at most 4 bytes"):
        read_file(tmp_path / "big", 4)

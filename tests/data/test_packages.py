from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from reticent.data.catalog import Package
from reticent.data.packages import fetch_package
from reticent.errors import DataError

Clients = Callable[..., None]
CONTENT = hashlib.sha256(b"content\n").hexdigest()
NPM = Package("npm", "thing", "1.2.3", CONTENT)
APT = Package("apt", "thing")
GOOD_NPM = 'test "$1 $2 $3" = "pack --ignore-scripts thing@1.2.3" && echo content > thing-1.2.3.tgz'


def test_npm(tmp_path: Path, clients: Clients) -> None:
    clients(npm=GOOD_NPM)
    found = fetch_package(NPM, tmp_path / "data")
    assert found == tmp_path / "data" / "thing-1.2.3.tgz"
    assert found.read_text() == "content\n"
    assert list(found.parent.iterdir()) == [found]


def test_apt(tmp_path: Path, clients: Clients) -> None:
    clients(
        apt_get='test "$1 $2" = "download thing" && echo deb > thing_1_all.deb',
        dpkg_deb='test "$1" = --fsys-tarfile && cat "$2"',
    )
    found = fetch_package(APT, tmp_path / "data")
    assert found.name == "thing.tar"
    assert found.read_text() == "deb\n"
    assert list(found.parent.iterdir()) == [found]


def test_a_missing_client_is_named(tmp_path: Path, clients: Clients) -> None:
    with pytest.raises(DataError, match=r"npm pack thing@1.2.3: npm is not installed"):
        fetch_package(NPM, tmp_path)
    clients(apt_get="exit 0")
    with pytest.raises(DataError, match="apt-get download thing: dpkg-deb is not installed"):
        fetch_package(APT, tmp_path)


def test_a_failing_client_is_quoted(tmp_path: Path, clients: Clients) -> None:
    clients(
        npm="echo 'npm notice hello' >&2; echo 'npm error code E404' >&2; echo bye >&2; exit 7",
        apt_get="echo 'W: hm' >&2; echo 'E: Unable to locate package thing' >&2; exit 100",
        dpkg_deb="exit 0",
    )
    with pytest.raises(
        DataError, match=r"npm pack thing@1.2.3: exit status 7; npm error code E404"
    ):
        fetch_package(NPM, tmp_path / "data")
    with pytest.raises(DataError, match=r"status 100 .*apt-get update.*E: Unable to locate"):
        fetch_package(APT, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_other_content_than_published_is_refused(tmp_path: Path, clients: Clients) -> None:
    clients(npm="echo tampered > thing-1.2.3.tgz")
    with pytest.raises(DataError, match=f"npm pack thing@1.2.3: expected sha256 {CONTENT}"):
        fetch_package(NPM, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("script", ["exit 0", "touch a.tgz b.tgz"])
def test_a_client_that_leaves_no_single_archive(
    tmp_path: Path, clients: Clients, script: str
) -> None:
    clients(npm=script)
    with pytest.raises(DataError, match=r"expected one \*.tgz file, found [02]"):
        fetch_package(NPM, tmp_path)

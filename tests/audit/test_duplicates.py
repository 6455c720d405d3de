import math

import numpy as np
import pytest
import torch

from reticent.audit.duplicates import near_duplicates
from reticent.errors import DataError, OptionError


def by_loops(a, b, limit, distance):
    """Every pair, one at a time: near_across, nearest, near_within, repeats."""
    nearest, within, repeats = [], [], []
    for i in range(len(a)):
        gaps = [distance(a[i], other) for other in b]
        best = min(range(len(b)), key=gaps.__getitem__)
        nearest.append(best if gaps[best] <= limit else -1)
        close = [j for j in range(len(a)) if j != i and distance(a[i], a[j]) <= limit]
        within.append(bool(close))
        repeats.append(any(j < i for j in close))
    return [j >= 0 for j in nearest], nearest, within, repeats


def assert_same(found, wanted):
    across, nearest, within, repeats = wanted
    assert found.near_across.tolist() == across
    assert found.nearest.tolist() == nearest
    assert found.near_within.tolist() == within
    assert found.repeats.tolist() == repeats
    assert any(across)
    assert not all(across)
    assert any(within)


def with_copies(make, n, m, noise, seed):
    """Random records, with near and exact copies of some of them put in."""
    generator = torch.Generator().manual_seed(seed)
    a, b = make(n, generator), make(m, generator)
    b[: m // 4] = a[: m // 4] + noise * torch.randn(b[: m // 4].shape, generator=generator)
    b[m // 4 : m // 3] = a[m // 4 : m // 3]
    a[n // 2 : n // 2 + 5] = a[:5]
    a[-5:] = a[5:10] + noise * torch.randn(a[:5].shape, generator=generator)
    return a, b


@pytest.mark.parametrize("block", [7, 4096])
@pytest.mark.parametrize("width", [3, 100])  # compared directly, and sifted in 64 directions
def test_tables_against_every_pair(width, block):
    scales = 10.0 ** torch.arange(width).fmod(5)  # columns of very different units

    def make(n, generator):
        return torch.randn(n, width, generator=generator)

    a, b = with_copies(make, 60, 45, 0.05, 1)
    a, b = a * scales, b * scales
    x, y = a.double().numpy(), b.double().numpy()
    sigma = x.std(0)
    unit = math.sqrt(2 * width)
    found = near_duplicates(a, b, block=block)
    assert_same(found, by_loops(x, y, 0.1 * unit, lambda p, q: np.linalg.norm((p - q) / sigma)))
    bytes_b = {row.tobytes() for row in b.numpy()}
    assert found.exact_across.tolist() == [row.tobytes() in bytes_b for row in a.numpy()]
    rows = [row.tobytes() for row in a.numpy()]
    assert found.exact_within.tolist() == [rows.count(row) > 1 for row in rows]
    assert int(found.exact_within.sum()) == 10
    assert found.to_json()["exact_within"] == 10


def test_images_against_every_pair():
    def make(n, generator):
        return torch.rand(n, 1, 9, 9, generator=generator)

    a, b = with_copies(make, 50, 40, 0.02, 2)
    x, y = a.flatten(1).double().numpy(), b.flatten(1).double().numpy()
    pairs = [np.sum((p - q) ** 2) for p in x for q in x]
    limit = 0.2 * math.sqrt(np.mean(pairs))  # the mean over all pairs is 2 Σ variance
    found = near_duplicates(a, b, threshold=0.2, block=16)
    assert_same(found, by_loops(x, y, limit, lambda p, q: np.linalg.norm(p - q)))


def test_whole_numbers_of_images_and_masks():
    a = torch.randint(0, 256, (20, 3, 4, 4), dtype=torch.uint8)
    b = a[[3, 4]].clone()
    b[1, 0, 0, 0] ^= 1
    found = near_duplicates(a, b, threshold=0.02)
    assert found.exact_across.nonzero().flatten().tolist() == [3]
    assert found.near_across.nonzero().flatten().tolist() == [3, 4]
    assert found.nearest[[3, 4]].tolist() == [0, 1]
    only = near_duplicates(a.bool(), threshold=0, kind="values")
    assert torch.equal(only.near_within, only.exact_within)


def jaccard(length, padding=0):
    def runs(row):
        kept = tuple(t for t in row.tolist() if t != padding)
        return {kept[i : i + length] for i in range(max(1, len(kept) - length + 1))}

    def distance(p, q):
        x, y = runs(p), runs(q)
        return 1 - len(x & y) / len(x | y)

    return distance


def sequences(n, length, words, seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, words, (n, length))
    for row, kept in zip(rows, rng.integers(0, length + 1, n), strict=True):
        row[: length - kept] = 0  # padded in front, some empty
    return torch.from_numpy(rows)


@pytest.mark.parametrize(("shingle", "threshold"), [(1, 0.3), (2, 0.5), (3, 0.0), (3, 0.7)])
def test_sequences_against_every_pair(shingle, threshold):
    a, b = sequences(70, 12, 6, 3), sequences(50, 12, 6, 4)
    b[:10] = a[:10]
    b[5:10, -1] = 5
    a[-4:] = torch.roll(a[:4], -1, 1)
    found = near_duplicates(a, b, threshold=threshold, shingle=shingle, block=16)
    across, nearest, within, repeats = by_loops(a, b, threshold + 1e-9, jaccard(shingle))
    assert found.kind == "tokens"
    assert found.near_across.tolist() == across
    assert found.near_within.tolist() == within
    assert found.repeats.tolist() == repeats
    gap = jaccard(shingle)  # of several at the same distance, any will do
    for i, (mine, right) in enumerate(zip(found.nearest.tolist(), nearest, strict=True)):
        assert (mine < 0) == (right < 0)
        assert mine < 0 or gap(a[i], b[mine]) == gap(a[i], b[right])


def test_padding_may_count():
    a, b = torch.tensor([[0, 0, 1, 2, 3]]), torch.tensor([[1, 2, 3, 0, 0]])
    assert near_duplicates(a, b, threshold=0.0).near_across.item()
    assert not near_duplicates(a, b, threshold=0.0).exact_across.item()
    assert not near_duplicates(a, b, threshold=0.0, padding=None).near_across.item()


def test_one_set_alone_and_without_looking_inside():
    a = torch.randn(30, 8)
    a[20] = a[3] + 1e-4
    a[11] = a[10] + 1e-4  # side by side
    found = near_duplicates(a)
    assert found.near_within.nonzero().flatten().tolist() == [3, 10, 11, 20]
    assert found.repeats.nonzero().flatten().tolist() == [11, 20]
    assert not found.near_across.any()
    assert not near_duplicates(a, within=False).near_within.any()


def test_all_the_same():
    found = near_duplicates(torch.ones(6, 4), torch.ones(2, 4))
    assert found.near_across.all()
    assert found.repeats.tolist() == [False, *[True] * 5]


def test_what_is_refused():
    x = torch.randn(4, 3)
    with pytest.raises(DataError, match="one shape and dtype"):
        near_duplicates(x, torch.randn(4, 2))
    with pytest.raises(DataError, match="one shape and dtype"):
        near_duplicates(x, x.double())
    with pytest.raises(DataError, match="b holds NaN"):
        near_duplicates(x, torch.full((1, 3), math.nan))
    with pytest.raises(OptionError, match="kind"):
        near_duplicates(x, kind="tokens")
    with pytest.raises(OptionError, match="threshold"):
        near_duplicates(x, threshold=-1.0)
    with pytest.raises(OptionError, match="below 1"):
        near_duplicates(torch.ones(2, 3, dtype=torch.long), threshold=1.0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_finds_the_same():
    a, b = torch.randn(300, 80), torch.randn(200, 80)
    b[:20] = a[:20] + 0.02
    here, there = near_duplicates(a, b), near_duplicates(a, b, device="cuda")
    assert torch.equal(here.nearest, there.nearest)

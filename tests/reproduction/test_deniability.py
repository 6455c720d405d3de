"""PD-SGD's figures and step times: against root finding, recounts and outcomes known beforehand."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from scipy import optimize, stats

import reticent as rt
from reticent.cli.building import build_model
from reticent.cli.settings import Settings
from reticent.reproduction import deniability, tables

DIGITS = {"data": "digits", "model": "linear", "lr": 0.3, "device": "cpu"}


def settings(steps=40, **options):
    chosen = {"batches": 8, "sigma": 0.02, "gamma": 120.0, "threshold": 3, **options}
    return Settings(method="pd-sgd", method_options=chosen, steps=steps, **DIGITS)


# -- Figure 1 -------------------------------------------------------------------------------------


def test_distances_of_figure_1_solve_lemma_1():
    for entry in tables.load("pdsgd/figure1").entries():
        found = deniability.distance(entry.settings, entry.options, "cpu")["distance"]
        sigma, gamma = (entry.settings.method_options[name] for name in ("sigma", "gamma"))
        k = entry.options["dimension"]

        def excess(u, sigma=sigma, gamma=gamma, wanted=entry.options["probability"]):
            d = (u * sigma) ** 2  # eq. 3 as printed
            ends = [(d + s * 2 * sigma**2 * gamma) / (2 * sigma * math.sqrt(d)) for s in (-1, 1)]
            return stats.norm.sf(ends[0]) - stats.norm.sf(ends[1]) - wanted

        u = optimize.brentq(excess, 1e-3, 1e3, xtol=1e-12)
        assert found == pytest.approx(u * sigma / math.sqrt(k), rel=1e-7), entry.row


def test_figure_1_grows_with_sigma_and_gamma_and_rarity():
    """Section 4.2 says so of the figure."""
    table = tables.load("pdsgd/figure1")
    found = {
        (entry.options["probability"], entry.settings.method_options["sigma"], entry.column): (
            deniability.distance(entry.settings, entry.options)["distance"]
        )
        for entry in table.entries()
    }
    assert {key[0] for key in found} == {0.05, 1e-5}
    assert {entry.options["dimension"] for entry in table.entries()} == {7680}
    for (probability, sigma, gamma), value in found.items():
        assert value < found[1e-5, sigma, gamma] or probability == 1e-5
        for (other, more, wider), larger in found.items():
            if other == probability and more >= sigma and wider >= gamma and value != larger:
                assert value < larger


# -- Figure 3 -------------------------------------------------------------------------------------


def test_poisoned_labels_are_wrong_ones_of_one_batch():
    labels = torch.arange(1000) % 10
    found = {share: deniability.poisoned(labels, 7, share, 10, 3) for share in (0.0, 0.3, 1.0)}
    batch = found[0.0][1]
    assert len(set(batch)) == len(batch) == 142
    outside = torch.ones(1000, dtype=torch.bool)
    outside[batch] = False
    for share, (flipped, kept) in found.items():
        assert kept == batch  # the same one for all shares
        assert (flipped != labels).sum() == round(share * 142)
        assert torch.equal(flipped[outside], labels[outside])
        assert flipped.min() >= 0
        assert flipped.max() <= 9
    some = found[0.3][0] != labels
    assert torch.equal(found[0.3][0][some], found[1.0][0][some])  # and the same flips
    assert len((found[1.0][0] - labels)[batch].remainder(10).unique()) == 9  # to all other classes
    assert deniability.poisoned(labels, 7, 1.0, 10, 4)[1] != batch
    with pytest.raises(rt.OptionError, match=r"share = 1\.5"):
        deniability.poisoned(labels, 7, 1.5, 10, 3)


def test_one_batch_stays_and_all_others_are_split_anew():
    seen = []

    @dataclass(frozen=True)
    class Watched(deniability.OneBatchStays):
        def split(self, run):
            seen.append(super().split(run))
            return seen[-1]

    generator = torch.Generator().manual_seed(0)
    data = torch.randn(50, 3, generator=generator), torch.arange(50) % 2
    kept = (3, 9, 11, 40, 41, 42, 43, 44, 45, 49)
    method = Watched(5, 1.0, 1e9, 2, kept=kept)
    optimizer = lambda params: torch.optim.SGD(params, lr=0.1)  # noqa: E731
    rt.train(torch.nn.Linear(3, 2), data, method=method, steps=4, optimizer=optimizer)
    assert len(seen) == 4
    for batches in seen:
        assert len(batches) == 5
        assert batches[0].tolist() == list(kept)
        assert [len(batch) for batch in batches] == [10] * 5
        assert torch.cat(batches).sort().values.tolist() == list(range(50))
    assert seen[0][1].tolist() != seen[1][1].tolist()


@pytest.mark.parametrize(("gamma", "rate"), [(1e12, 0.0), (1e-12, 100.0)])
def test_rejections_of_a_test_that_always_or_never_passes(gamma, rate):
    found = deniability.rejection(settings(gamma=gamma), {"share": 0.5, "records": 400}, "cpu")
    assert found == {"poisoned": rate, "normal": rate}


def test_a_batch_that_was_never_the_seed_has_no_rate():
    chosen = settings(steps=1, gamma=1e12)
    found = deniability.rejection(chosen, {"share": 0.0, "records": 400}, "cpu")
    assert sorted(map(math.isnan, found.values())) == [False, True]
    assert 0.0 in found.values()


def test_rejections_are_those_of_each_kind_of_seed():
    """Counted from the diagnostics of a training that is made here."""
    chosen, splits = settings(steps=60), rt.data.load("digits")
    labels, kept = deniability.poisoned(splits.train[1], 8, 0.6, 10, 5)
    training = rt.run(
        build_model(chosen, splits),
        (splits.train[0], labels),
        method=deniability.OneBatchStays(8, 0.02, 120.0, 3, kept=tuple(kept)),
        steps=60,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.3),
        coins=rt.Coins.from_seed(5),
        private_diagnostics=True,
        device="cpu",
    )
    training.finish()
    told = {True: [], False: []}
    for line in training.run.diagnostics:
        told[line["seed"] == 0].append(not line["accepted"])
    found = deniability.rejections(chosen, splits, 0.6, 5)
    for name, lines in (("poisoned", told[True]), ("normal", told[False])):
        assert found[name] == {
            "updates": len(lines),
            "rejected": sum(lines),
            "rate": sum(lines) / len(lines),
        }
    assert sum(told[True]) > 0


@pytest.mark.parametrize("seed", [1])
def test_figure_3_on_digits_goes_the_way_of_the_paper(seed):
    """A poisoned batch is rejected far more often than others; how often differs by seed."""
    table = tables.load("pdsgd/figure3")
    clean, flipped = (
        deniability.rejection(replace(entry.settings, seed=seed), entry.options, "cpu")
        for entry in table.entries(data=["digits"], columns=[0.0, 0.5])
    )
    assert flipped["poisoned"] > clean["poisoned"] + 40
    assert flipped["poisoned"] > flipped["normal"] + 40
    assert max(clean["normal"], flipped["normal"]) < 15


# -- Figure 4 -------------------------------------------------------------------------------------


def test_updates_are_counted_record_by_record(monkeypatch):
    """By the batches and seeds of the very training, remembered on the way."""
    made, seen = [], []

    @dataclass(frozen=True)
    class Watched(rt.PDSGD):
        def split(self, run):
            made.append(super().split(run))
            return made[-1]

        def _diagnose(self, run, seed, accepted, verdict):
            seen.append((seed, accepted))
            super()._diagnose(run, seed, accepted, verdict)

    chosen = settings(steps=120, gamma=130.0, batches=4)
    monkeypatch.setattr(deniability, "_deniable", lambda s: Watched(**s.method_options))
    found = deniability.updates(chosen, {"records": 1003}, "cpu")
    counts = torch.zeros(1003)
    for batches, (seed, accepted) in zip(made, seen, strict=True):
        counts[batches[seed]] += accepted
    assert 0 < sum(accepted for _, accepted in seen) < 120
    assert found["rejected"] == pytest.approx(100 * sum(not a for _, a in seen) / 120)
    assert found["mean"] == pytest.approx(float(counts.mean()))
    assert found["deviation"] == pytest.approx(float(counts.std(correction=0)), rel=1e-6)
    assert (found["least"], found["most"]) == (counts.min(), counts.max())
    assert found["least"] > 0
    expected = [int((counts == k).sum()) for k in range(found["least"], found["most"] + 1)]
    assert found["counts"] == expected
    assert sum(found["counts"]) == 1003


@pytest.mark.parametrize(("gamma", "mean"), [(1e12, 24 / 8), (1e-12, 0.0)])
def test_updates_of_a_test_that_always_or_never_passes(gamma, mean):
    found = deniability.updates(settings(steps=24, gamma=gamma), {"records": 800}, "cpu")
    assert found["mean"] == mean  # batches are of equal size
    assert found["rejected"] == (100 if mean == 0 else 0)
    assert found["counts"] == ([800.0] if mean == 0 else found["counts"])


# -- Table 6 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["DP-SGD", "PD-SGD", "SGD"])
def test_step_times_are_the_mean_of_the_steps_after_the_first(monkeypatch, row):
    """On a clock that a release moves on by a second, the first ones by a hundred."""
    (entry,) = tables.load("pdsgd/table6").entries(data=["finetuning"], rows=[row])
    kind = {"DP-SGD": rt.DPSGD, "PD-SGD": rt.PDSGD, "SGD": rt.SGD}[row]
    clock, releases, shapes = [0.0], [], []
    release = kind.release

    def timed(self, run):
        shapes.append((run.records.n, sum(p.numel() for p in run.model.parameters())))
        release(self, run)
        releases.append(1)
        clock[0] += 100.0 if len(releases) <= 2 else 1.0

    monkeypatch.setattr(kind, "release", timed)
    monkeypatch.setattr(deniability.time, "perf_counter", lambda: clock[0])
    options = {**entry.options, "warmup": 2, "repeats": 4}
    found = deniability.step_time(entry.settings, options, "cpu")
    assert found == {"milliseconds": 1000.0}
    assert len(releases) == 6
    assert set(shapes) == {(500, 7690)}  # Figure 1's k, and ten biases


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compute", "options", "named"),
    [
        (deniability.distance, {"probability": 0.05}, "dimension = None: must be given"),
        (deniability.distance, {"probability": 2.0, "dimension": 9}, "probability = 2.0"),
        (deniability.rejection, {}, "share = None: must be given"),
        (deniability.rejection, {"share": 0.1, "lr": 3}, "lr = 3: is no such option; there are sh"),
        (deniability.rejection, {"share": 0.1, "records": 5000}, "records = 5000: digits has 1437"),
        (deniability.updates, {"records": 0}, "records = 0"),
        (deniability.step_time, {"repeats": 0}, "repeats = 0"),
        (deniability.step_time, {"shape": [0]}, "shape = 0"),
    ],
)
def test_options_that_cannot_be_meant(compute, options, named):
    with pytest.raises(rt.OptionError, match=named):
        compute(settings(steps=1), options, "cpu")


@pytest.mark.parametrize(
    ("compute", "options"),
    [
        (deniability.distance, {"probability": 0.05, "dimension": 9}),
        (deniability.rejection, {"share": 0.1}),
        (deniability.updates, {}),
    ],
)
def test_other_methods_are_refused(compute, options):
    with pytest.raises(rt.OptionError, match="method = 'sgd': must be pd-sgd"):
        compute(Settings(method="sgd", steps=1, **DIGITS), options, "cpu")

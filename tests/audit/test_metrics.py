import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from reticent.audit import intervals
from reticent.audit.metrics import LEVELS, combine, measure
from reticent.errors import DataError, OptionError


def tied(n_in, n_out, seed, levels=7):
    """Scores on a few levels, so that most of them are tied; members a little higher."""
    rng = np.random.default_rng(seed)
    scores = np.concatenate([rng.integers(1, levels + 1, n_in), rng.integers(0, levels, n_out)])
    order = rng.permutation(n_in + n_out)
    members = np.arange(n_in + n_out)[order] < n_in
    return torch.tensor(scores[order].astype(float)), torch.tensor(members)


def smooth(n_in, n_out, seed, shift=0.5):
    rng = np.random.default_rng(seed)
    scores = np.concatenate([rng.normal(shift, 1, n_in), rng.normal(0, 1, n_out)])
    return torch.tensor(scores), torch.arange(n_in + n_out) < n_in


CASES = [
    tied(40, 60, 1),
    tied(3, 5, 2),
    tied(200, 150, 3, 40),
    smooth(80, 90, 4),
    smooth(1, 1, 5),
    tied(30, 20, 6, 1),
    smooth(400, 4000, 7, 2.0),
]


@pytest.mark.parametrize(("scores", "members"), CASES)
def test_auc_is_sklearns_and_mann_whitneys(scores, members):
    found = measure(scores, members).auc.value
    ins, outs = scores[members].numpy(), scores[~members].numpy()
    assert found == pytest.approx(roc_auc_score(members.numpy(), scores.numpy()), abs=1e-12)
    statistic = stats.mannwhitneyu(ins, outs).statistic
    assert found == pytest.approx(statistic / (len(ins) * len(outs)), abs=1e-12)


def brute_force(scores, members):
    """(FPR, TPR) at every threshold, by counting."""
    points = [(0.0, 0.0)]
    for threshold in sorted(set(scores.tolist()), reverse=True):
        judged = scores >= threshold
        points.append((judged[~members].double().mean(), judged[members].double().mean()))
    return [(float(x), float(y)) for x, y in points]


@pytest.mark.parametrize(("scores", "members"), CASES)
def test_rates_by_counting(scores, members):
    found, points = measure(scores, members), brute_force(scores, members)
    best = max(y - x for x, y in points)
    assert found.advantage.value == pytest.approx(best, abs=1e-12)
    assert found.accuracy.value == pytest.approx((1 + best) / 2, abs=1e-12)
    for level in LEVELS:
        entry = found.tpr_at(level)
        assert entry.tpr.value == max(y for x, y in points if x <= level)
        assert entry.fpr <= level
        assert entry.false_positives == round(entry.fpr * found.n_nonmembers)
        assert entry.resolved == (found.n_nonmembers * level >= 1)


@pytest.mark.parametrize(("scores", "members"), CASES)
def test_the_curve_is_sklearns(scores, members):
    fpr, tpr, _ = roc_curve(members.numpy(), scores.numpy(), drop_intermediate=False)
    known = set(zip(fpr.round(12), tpr.round(12), strict=True))
    roc = measure(scores, members).roc
    assert {(round(x, 12), round(y, 12)) for x, y in roc} <= known
    assert roc[0] == (0, 0)
    assert roc[-1] == (1, 1)
    if len(fpr) < 150:  # nothing to thin out: the same area
        area = sum((q[0] - p[0]) * (q[1] + p[1]) / 2 for p, q in itertools.pairwise(roc))
        assert area == pytest.approx(measure(scores, members).auc.value, abs=1e-12)


def test_the_curve_is_thinned_but_exact_where_few_are_accused():
    scores, members = smooth(40_000, 50_000, 8, 1.0)
    roc = np.array(measure(scores, members).roc)
    fpr, tpr, _ = roc_curve(members.numpy(), scores.numpy(), drop_intermediate=False)
    assert len(roc) <= 400
    low, mine = fpr <= 1e-3, roc[roc[:, 0] <= 1e-3]
    for rate in np.unique(fpr[low]):
        best = tpr[fpr <= rate].max()
        assert mine[mine[:, 0] <= rate + 1e-12, 1].max() == pytest.approx(best, abs=1e-12)
    area = float((np.diff(roc[:, 0]) * (roc[1:, 1] + roc[:-1, 1]) / 2).sum())
    assert area == pytest.approx(measure(scores, members).auc.value, abs=5e-3)
    assert (np.diff(roc, axis=0) >= 0).all()


def test_a_rate_that_falls_on_a_whole_number_counts():
    # 1,000 non-members: exactly one may be accused at 0.1 %, none at 0.01 %
    outs = torch.arange(1000).double()
    ins = torch.tensor([998.0, 998.5, 999.5])
    found = measure(torch.cat([ins, outs]), torch.arange(1003) < 3)
    one, none = (found.tpr_at(level) for level in LEVELS)
    assert (one.tpr.value, one.false_positives, one.resolved) == (2 / 3, 1, True)
    assert (none.tpr.value, none.false_positives, none.resolved) == (1 / 3, 0, False)


def test_perfect_scores():
    found = measure(torch.arange(40).double(), torch.arange(40) >= 20)
    assert found.auc.value == found.auc.high == 1
    assert found.auc_interval == "chernoff"
    assert found.auc.low == pytest.approx(0.025 ** (1 / 20), abs=1e-9)
    assert found.held_accuracy.value > 0.8  # the seen halves leave a gap
    assert not found.chance
    assert measure(-torch.arange(40).double(), torch.arange(40) >= 20).auc.high < 0.5


def test_equal_scores_say_nothing():
    found = measure(torch.zeros(200), torch.arange(200) < 100)
    assert found.auc.value == 0.5
    assert found.chance
    assert found.advantage.value == 0
    assert found.tpr_at(1e-3).tpr.value == 0
    assert found.roc == ((0, 0), (1, 1))


def test_clopper_pearson_is_scipys():
    for successes, trials in [(0, 10), (1, 10), (9, 10), (10, 10), (500, 1000)]:
        found = intervals.clopper_pearson(successes, trials, 0.9)
        right = stats.binomtest(successes, trials).proportion_ci(0.9, method="exact")
        assert (found.low, found.high) == pytest.approx((right.low, right.high), abs=1e-9)


def test_delong_is_the_double_sum():
    scores, members = tied(60, 70, 9)
    ins, outs = scores[members].tolist(), scores[~members].tolist()

    def win(x, y):
        return 1.0 if x > y else 0.5 if x == y else 0.0

    v_in = [np.mean([win(x, y) for y in outs]) for x in ins]
    v_out = [np.mean([win(x, y) for x in ins]) for y in outs]
    auc, se = np.mean(v_in), math.sqrt(np.var(v_in, ddof=1) / 60 + np.var(v_out, ddof=1) / 70)
    middle, half = math.log(auc / (1 - auc)), 1.959963984540054 * se / (auc * (1 - auc))
    found = measure(scores, members)
    assert found.auc_interval == "delong"
    wanted = 1 / (1 + math.exp(half - middle)), 1 / (1 + math.exp(-half - middle))
    assert (found.auc.low, found.auc.high) == pytest.approx(wanted, abs=1e-12)


def misses(n_in, n_out, shift, runs, truth, pick):
    """How often the interval does not hold the truth."""
    missed = 0
    for seed in range(runs):
        estimate = pick(measure(*smooth(n_in, n_out, 1000 + seed, shift)))
        missed += truth not in estimate
    return missed


@pytest.mark.parametrize(
    ("n_in", "n_out", "shift"), [(100, 100, 0.0), (60, 300, 1.0), (12, 15, 1.0), (5, 5, 3.0)]
)
def test_auc_intervals_cover(n_in, n_out, shift):
    # 95 % intervals, allowed to miss 7.5 %: more than 50 misses of 300 then have probability < 1e-6
    assert stats.binom.sf(50, 300, 0.075) < 1e-6
    truth = stats.norm.cdf(shift / math.sqrt(2))
    assert misses(n_in, n_out, shift, 300, truth, lambda found: found.auc) <= 50


def test_delong_intervals_are_not_too_wide():
    # with 3 % of misses or more (5 % are right), none in 500 has probability 0.97^500 < 1e-6
    assert 0.97**500 < 1e-6
    assert misses(100, 100, 0.0, 500, 0.5, lambda found: found.auc) >= 1


@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_accuracy_intervals_cover(shift):
    # the bound for the best threshold is conservative: as above at 7.5 %
    truth = stats.norm.cdf(shift / 2)  # ½(1 + max(TPR − FPR)), the best threshold at shift/2
    assert misses(100, 150, shift, 300, truth, lambda found: found.accuracy) <= 50


def test_held_accuracy_is_not_optimistic():
    # random scores: held-out accuracies average ½; one has deviation below ½/√(2·25), so that the
    # mean of 200 strays by 0.03 (6 deviations) with probability < 1e-8; the optimistic one is above
    found = [measure(*smooth(50, 50, 5000 + seed, 0.0), seed=seed) for seed in range(200)]
    held = combine(found)["held_accuracy"]
    assert abs(held.mean - 0.5) < 0.03
    assert min(one.accuracy.value for one in found) >= 0.5
    assert combine(found)["accuracy"].mean > 0.55
    # misses of a 95 % interval about ½, as above
    assert sum(0.5 not in one.held_accuracy for one in found) <= 40
    assert stats.binom.sf(40, 200, 0.075) < 1e-6


def test_tpr_intervals_cover_the_rate_at_the_chosen_threshold():
    missed = 0
    for seed in range(300):
        scores, members = smooth(80, 200, 9000 + seed, 2.0)
        entry = measure(scores, members).tpr_at(1e-3)
        truth = stats.norm.sf(float(scores[~members].max()) - 2.0)
        missed += truth not in entry.tpr
    assert missed <= 50  # at most 5 %, exactly; see above


def test_increasing_transformations_change_nothing():
    scores, members = smooth(70, 80, 11)
    assert measure(scores, members).to_json() == measure(scores.exp() * 3 - 9, members).to_json()


def test_results_are_combined():
    found = [measure(*smooth(60, 60, seed)) for seed in range(4)]
    spread = combine(found)["auc"]
    values = [one.auc.value for one in found]
    assert spread.mean == pytest.approx(np.mean(values))
    assert spread.std == pytest.approx(np.std(values, ddof=1))
    assert (spread.low, spread.high, spread.count) == (min(values), max(values), 4)
    assert set(combine(found)) == {
        *("auc", "advantage", "accuracy", "held_accuracy", "tpr@0.001", "tpr@0.0001")
    }
    assert combine(found[:1])["auc"].std == 0


def test_json_is_plain():
    import json

    text = json.dumps(measure(*smooth(30, 30, 1)).to_json())
    assert json.loads(text)["low_false"][0]["resolved"] is False


@pytest.mark.parametrize(
    ("scores", "members", "says"),
    [
        ([], [], "0 members"),
        ([1.0, 2.0], [True, True], "0 non-members"),
        ([1.0, 2.0], [False, False], "0 members"),
        ([1.0, math.nan], [True, False], "1 values that are NaN"),
        ([1.0, math.inf], [True, False], "infinite"),
        ([1.0], [True, False], "one score and one truth"),
        ([1.0, 2.0], [1, 0], "give booleans"),
    ],
)
def test_what_cannot_be_measured(scores, members, says):
    truth = torch.tensor(members, dtype=torch.bool) if not members else torch.tensor(members)
    with pytest.raises(DataError, match=says):
        measure(torch.tensor(scores), truth)


def test_options():
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(OptionError, match="confidence"):
            measure([1.0, 2.0], [True, False], confidence=wrong)
    with pytest.raises(DataError, match="nothing to combine"):
        combine([])
    with pytest.raises(OptionError, match="level"):
        measure([1.0, 2.0], [True, False]).tpr_at(0.5)
    assert measure([1.0, 2.0], [True, False]).held_accuracy is None

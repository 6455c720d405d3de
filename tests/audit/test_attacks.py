"""Each attack against its paper's formula written out in loops, and on evidence made to measure."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.neural_network import MLPClassifier

from reticent.audit import attacks
from reticent.audit.attacks import RMIA, LikelihoodRatio, Population, Reference, ShadowLoss
from reticent.audit.metrics import measure
from reticent.audit.signals import Evidence, Signals, WhiteBox
from reticent.errors import DataError

CLASSES = 4


def halves(models, n, rng):
    """[models, n] bool, each record in half of the models."""
    order = rng.permuted(np.tile(np.arange(models) < models // 2, (n, 1)), axis=1)
    return torch.from_numpy(order.T.copy())


def made(n=60, models=8, m=40, effect=1.0, seed=0, classes=CLASSES):
    """Evidence in which a model's own records get `effect` added to the label's logit."""
    rng = np.random.default_rng(seed)
    labels, other_labels = (torch.from_numpy(rng.integers(0, classes, k)) for k in (n, m))
    hard, other_hard = (torch.from_numpy(rng.normal(0, 2, (k, classes))) for k in (n, m))

    def drawn(*shape):
        return torch.from_numpy(rng.normal(0, 1, shape))

    def logits(members):
        own = torch.nn.functional.one_hot(labels, classes)
        return hard + drawn(n, classes) + effect * members[:, None] * own

    members, seen = torch.from_numpy(rng.random(n) < 0.5), halves(models, n, rng)
    return Evidence(
        target=Signals(logits(members), labels),
        members=members,
        shadow_logits=torch.stack([logits(row) for row in seen]).float(),
        shadow_members=seen,
        population=Signals(other_hard + drawn(m, classes), other_labels),
        shadow_population=(other_hard + drawn(models, m, classes)).float(),
        whitebox=WhiteBox(
            norms=torch.from_numpy(rng.exponential(1, n)).float(),
            embeddings=drawn(n, 50).float(),
            errors=drawn(n, classes).float(),
        ),
    )


def p_label(logits, label):
    """The label's probability, from plain floats."""
    exponentials = [math.exp(v) for v in logits.double().tolist()]
    return exponentials[label] / sum(exponentials)


def phi(logits, label):
    p = p_label(logits, label)
    return math.log(p) - math.log(1 - p)


def sides(evidence, i, value):
    """value(logits, label) of the models with and without record i."""
    label = int(evidence.target.labels[i])
    found = ([], [])
    for logits, seen in zip(evidence.shadow_logits, evidence.shadow_members, strict=True):
        found[0 if seen[i] else 1].append(value(logits[i], label))
    return found


def assert_scores(attack, evidence, one, tolerance=1e-4):
    scores = attack.score(evidence)
    assert scores.values.dtype == torch.float64
    assert scores.judged.all()
    wanted = torch.tensor([one(i) for i in range(len(evidence.members))], dtype=torch.float64)
    assert torch.allclose(scores.values, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("least", [0, 8, 1000])
def test_population_by_counting(least):
    evidence = made()
    others = evidence.population
    losses = [
        -math.log(p_label(x, int(y))) for x, y in zip(others.logits, others.labels, strict=True)
    ]

    def one(i):
        label = int(evidence.target.labels[i])
        mine = -math.log(p_label(evidence.target.logits[i], label))
        own = [v for v, y in zip(losses, others.labels.tolist(), strict=True) if y == label]
        pool = own if least and len(own) >= least else losses
        return (sum(v > mine for v in pool) + 0.5) / (len(pool) + 1)

    assert_scores(Population(least=least), evidence, one, 1e-9)


def test_population_counts_ties_half():
    target = Signals(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0]))
    others = Signals(torch.tensor([[0.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1]))
    evidence = Evidence(target, torch.tensor([True, False]), population=others)
    # the first: two equal, none greater; the second: two greater, one equal
    assert Population().score(evidence).values.tolist() == [(1 + 0.5) / 4, (2 + 0.5 + 0.5) / 4]


@pytest.mark.parametrize("least", [0, 50, 100_000])
def test_shadow_loss_by_counting(least):
    evidence = made()
    pool = [
        (int(y), -math.log(p_label(logits[i], int(y))))
        for logits, seen in zip(evidence.shadow_logits, evidence.shadow_members, strict=True)
        for i, y in enumerate(evidence.target.labels)
        if not seen[i]
    ]

    def one(i):
        label = int(evidence.target.labels[i])
        mine = -math.log(p_label(evidence.target.logits[i], label))
        own = [v for y, v in pool if y == label]
        chosen = own if least and len(own) >= least else [v for _, v in pool]
        return (sum(v > mine for v in chosen) + 0.5) / (len(chosen) + 1)

    assert_scores(ShadowLoss(least=least), evidence, one, 1e-9)


def test_reference_by_its_formula():
    evidence = made()

    def normal(i):
        out = sides(evidence, i, phi)[1]
        mine = phi(evidence.target.logits[i], int(evidence.target.labels[i]))
        return (mine - np.mean(out)) / np.std(out, ddof=1)

    def empirical(i):
        out = sides(evidence, i, lambda x, y: -math.log(p_label(x, y)))[1]
        mine = -math.log(p_label(evidence.target.logits[i], int(evidence.target.labels[i])))
        return (sum(loss > mine for loss in out) + 0.5) / (len(out) + 1)

    assert_scores(Reference(), evidence, normal)
    assert_scores(Reference(fit="empirical"), evidence, empirical)


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("variance", ["global", "per-record"])
def test_lira_by_its_formula(online, variance):
    evidence = made()
    n = len(evidence.members)
    parts = [sides(evidence, i, phi) for i in range(n)]
    pooled = [
        math.sqrt(
            sum(float(np.var(part[side]) * len(part[side])) for part in parts)
            / sum(len(part[side]) - 1 for part in parts)
        )
        for side in (0, 1)
    ]

    def one(i):
        mine = phi(evidence.target.logits[i], int(evidence.target.labels[i]))
        laws = [
            stats.norm(
                np.mean(part), pooled[side] if variance == "global" else np.std(part, ddof=1)
            )
            for side, part in enumerate(parts[i])
        ]
        if online:
            return laws[0].logpdf(mine) - laws[1].logpdf(mine)
        return stats.norm.ppf(1 - laws[1].sf(mine))  # equation 4, on the normal scale

    assert_scores(LikelihoodRatio(online=online, variance=variance), evidence, one, 1e-3)


def test_lira_takes_one_variance_for_few_models():
    few, many = made(n=20, models=8), made(n=20, models=64)
    for evidence, same in ((few, "global"), (many, "per-record")):
        auto = LikelihoodRatio().score(evidence).values
        assert torch.equal(auto, LikelihoodRatio(variance=same).score(evidence).values)


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize(("gamma", "a"), [(1.0, 0.3), (2.0, 0.3), (1.5, 1.0), (2.0, 0.0)])
@pytest.mark.parametrize("some_seen", [False, True])
def test_rmia_pair_by_pair(online, gamma, a, some_seen):
    evidence = made(effect=2.0)
    population = evidence.population
    seen_z = torch.zeros(evidence.shadow_population.shape[:2], dtype=torch.bool)
    if some_seen:
        seen_z[:3, :20] = True
        evidence = Evidence(**{**vars_of(evidence), "shadow_population_members": seen_z})

    def average(p_in, p_out):
        if online and p_in:
            return (np.mean(p_in) + np.mean(p_out)) / 2
        return ((1 + a) * np.mean(p_out) + (1 - a)) / 2

    ratios = []
    for j, label in enumerate(population.labels.tolist()):
        split = ([], [])
        for k, logits in enumerate(evidence.shadow_population):
            split[0 if seen_z[k, j] else 1].append(p_label(logits[j], label))
        ratios.append(p_label(population.logits[j], label) / average(*split))

    def one(i):
        mine = p_label(evidence.target.logits[i], int(evidence.target.labels[i]))
        mine /= average(*sides(evidence, i, p_label))
        return np.mean([mine / other >= gamma for other in ratios])

    scores = RMIA(online=online, gamma=gamma, a=a).score(evidence)
    wanted = [one(i) for i in range(len(evidence.members))]
    assert scores.values.tolist() == pytest.approx(wanted, abs=1e-12)
    assert 0 < np.mean(wanted) < 1


def vars_of(evidence):
    return {name: getattr(evidence, name) for name in Evidence.__dataclass_fields__}


def test_lira_is_near_the_best_there_is():
    # two classes: confidence = first logit − second, normal with variance 1 and shifted by 1 for
    # members, around each record's own centre. The best test thresholds the distance from the
    # centre: AUC Φ(1/√2). 128 models know the centre to 1/8, which costs little.
    rng = np.random.default_rng(5)
    n, models = 4000, 128
    centre, labels = rng.normal(0, 3, n), torch.zeros(n, dtype=torch.long)

    def logits(members):
        value = centre + rng.normal(0, 1, members.shape) + members
        return torch.from_numpy(np.stack([value, 0 * value], -1))

    members, seen = rng.random(n) < 0.5, halves(models, n, rng).numpy()
    evidence = Evidence(
        Signals(logits(members), labels),
        torch.from_numpy(members),
        logits(seen).float(),
        torch.from_numpy(seen),
    )
    best = stats.norm.cdf(1 / math.sqrt(2))
    for attack in (
        LikelihoodRatio(),
        LikelihoodRatio(variance="global"),
        LikelihoodRatio(online=False),
        Reference(),
    ):
        auc = attack.measure(evidence).auc.value
        # an AUC's deviation is at most √(best(1 − best)/1900) < 0.01 for 1900 of either side or
        # more: 5 of them have p < 1e-6; as much again below for centres known by 64 models
        assert best - 0.1 < auc < best + 0.05
    # one threshold for all records is far worse: the centres drown the shift
    assert ShadowLoss().measure(evidence).auc.value < best - 0.1


@pytest.mark.parametrize("name", attacks.NAMES)
def test_random_members_are_guessed_at_random(name):
    evidence = made(n=2000, models=8, m=500, effect=0.0, seed=7)
    found = attacks.build(name).measure(evidence, confidence=1 - 1e-6)  # false alarm: 1e-6
    assert found.chance
    assert found.n_members + found.n_nonmembers == (1000 if name == "white-box" else 2000)


@pytest.mark.parametrize("name", [n for n in attacks.NAMES if n != "white-box"])
def test_members_are_found(name):
    evidence = made(n=1500, models=8, m=500, effect=3.0, seed=8)
    found = attacks.build(name).measure(evidence)
    assert found.auc.low > 0.6


@pytest.mark.parametrize("name", attacks.NAMES)
def test_truth_is_not_read_where_records_are_judged(name):
    evidence = made(n=200, seed=9)
    attack = attacks.build(name)
    scores = attack.score(evidence)
    flipped = torch.where(scores.judged, ~evidence.members, evidence.members)
    again = attack.score(Evidence(**{**vars_of(evidence), "members": flipped}))
    assert torch.equal(scores.values, again.values)
    assert torch.equal(scores.judged, again.judged)


def test_white_box_learns_from_what_is_inside():
    evidence = made(n=1200, effect=0.0, seed=10)
    for field in ("norms", "embeddings", "errors"):
        inside = {
            name: getattr(evidence.whitebox, name).clone() for name in WhiteBox.__annotations__
        }
        shift = 2.0 * evidence.members.float()
        if field == "norms":
            inside[field] *= torch.exp(shift)
        elif field == "errors":
            inside[field][:, 1] += shift
        else:
            inside[field] += shift[:, None]
        told = Evidence(**{**vars_of(evidence), "whitebox": WhiteBox(**inside)})
        for kind in ("mlp", "forest"):
            assert attacks.build("white-box", classifier=kind).measure(told).auc.low > 0.6, field


def test_white_box_judges_the_unknown_part_only():
    evidence = made(n=400)
    attack = attacks.build("white-box", known=0.7, seed=3)
    scores = attack.score(evidence)
    assert int(scores.judged.sum()) == 120
    assert torch.equal(scores.judged, ~attack.known_part(400))
    assert len(scores.values) == 120
    with pytest.raises(DataError, match="one score and one truth"):
        measure(scores.values, evidence.members)  # the mistake that would measure known records
    right = measure(scores.values, evidence.members[scores.judged])
    assert scores.measure(evidence.members) == right
    # members known are used: another truth there gives other scores
    flipped = torch.where(scores.judged, evidence.members, ~evidence.members)
    again = attack.score(Evidence(**{**vars_of(evidence), "members": flipped}))
    assert not torch.equal(again.values, scores.values)


@pytest.mark.parametrize("name", ["shadow", "white-box"])
@pytest.mark.parametrize("classifier", ["mlp", "forest"])
def test_learning_attacks_repeat_by_seed(name, classifier):
    evidence = made(n=300, effect=2.0)
    first, again, other = (
        attacks.build(name, classifier=classifier, seed=seed).score(evidence).values
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert ((first >= 0) & (first <= 1)).all()


def test_no_more_is_learned_from_than_asked_for(monkeypatch):
    sizes = []
    fit = MLPClassifier.fit
    monkeypatch.setattr(MLPClassifier, "fit", lambda s, x, y: sizes.append(len(y)) or fit(s, x, y))
    attacks.build("shadow", most=150).score(made(n=100))  # of 8 · 100
    attacks.build("shadow").score(made(n=100))
    assert sizes == [150, 800]


def test_the_shadow_attack_sees_log_odds_of_sorted_posteriors():
    logits = torch.randn(9, 5, generator=torch.Generator().manual_seed(1)) * 3
    labels = torch.arange(9) % 5
    features = attacks.build("shadow", top=4)._features(logits, labels)
    p = logits.double().softmax(1).sort(1, descending=True).values[:, :4]
    assert torch.allclose(features[:, :4].double(), (p / (1 - p)).log(), atol=1e-4)
    assert features[:, 4].tolist() == (logits.argmax(1) == labels).float().tolist()
    sure = attacks.build("shadow")._features(torch.tensor([[99.0, 0.0, -5.0]]), torch.tensor([0]))
    assert sure[0, 0] == pytest.approx(99, abs=0.01)
    assert sure.isfinite().all()


def test_models_that_agree_do_not_divide_by_zero():
    evidence = made(n=30)
    same = evidence.shadow_logits[:1].expand_as(evidence.shadow_logits)
    evidence = Evidence(**{**vars_of(evidence), "shadow_logits": same})
    for attack in (Reference(), LikelihoodRatio(), LikelihoodRatio(variance="per-record")):
        assert attack.score(evidence).values.isfinite().all()


@pytest.mark.parametrize("name", attacks.NAMES)
def test_missing_evidence_is_named(name):
    whole = made()
    bare = Evidence(whole.target, whole.members)
    with pytest.raises(DataError, match=f"{name!r} lacks evidence: give "):
        attacks.build(name).score(bare)
    card = attacks.describe(name)
    fields = {
        "shadows": ("shadow_logits", "shadow_members"),
        "population": ("population",),
        "shadow-population": ("shadow_population",),
        "whitebox": ("whitebox",),
    }
    kept = {field for need in card.needs for field in fields[need]}
    needed = Evidence(
        **{k: v for k, v in vars_of(whole).items() if k in {"target", "members"} | kept}
    )
    assert len(attacks.build(name).score(needed).values)


def test_too_few_models_are_said():
    evidence = made(n=30, models=2)
    all_in = Evidence(**{**vars_of(evidence), "shadow_members": torch.ones(2, 30).bool()})
    for name in ("reference", "likelihood-ratio", "rmia", "shadow-loss", "shadow"):
        with pytest.raises(DataError):
            attacks.build(name).score(all_in)
    with pytest.raises(DataError, match="at least 2 shadow models that were not trained on"):
        attacks.build("reference").score(evidence)
    with pytest.raises(DataError, match="cannot tell how confidences vary"):
        attacks.build("likelihood-ratio").score(evidence)
    none_in = Evidence(**{**vars_of(evidence), "shadow_members": torch.zeros(2, 30).bool()})
    with pytest.raises(DataError, match="were trained on each"):
        attacks.build("rmia").score(none_in)
    assert len(attacks.build("rmia", online=False).score(none_in).values) == 30
    with pytest.raises(DataError, match="learns from"):
        attacks.build("white-box").score(made(n=16))

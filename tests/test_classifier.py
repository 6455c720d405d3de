"""The private classifier against scikit-learn's own checks, closed forms and plain PyTorch."""

import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks
from torch import nn

import reticent as rt
from reticent.classifier import CLASSES_NOTE, PrivateClassifier
from reticent.classifier_fits import PrivacyWarning, spent_together
from reticent.row_scaling import scale_rows
from reticent.training.train import PUBLIC_SIZE_NOTE, SEEDED_NOTE

from .classifier_problem import problem, quick

DOCS = Path(__file__).parent.parent / "docs"
# What scikit-learn asks for and noise that nobody can repeat does not give.
FRESH_NOISE = {
    "check_classifier_data_not_an_array": "compares two fits",
    "check_supervised_y_2d": "compares two fits",
    "check_fit_idempotent": "compares two fits",
    "check_classifiers_train": "accuracy on 300 rows at ε = 1 varies",
    "check_classifiers_classes": "accuracy on 30 rows at ε = 1 varies",
    "check_decision_proba_consistency": "scores far out round to probability 1",
}

pytestmark = pytest.mark.filterwarnings("ignore::reticent.classifier_fits.PrivacyWarning")


def gaussian_epsilon(mu, delta):
    """ε of μ-Gaussian DP by bisection: Balle and Wang 2018, Theorem 8."""
    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        spent = norm.cdf(-middle / mu + mu / 2)
        spent -= math.exp(middle) * norm.cdf(-middle / mu - mu / 2)
        low, high = (middle, high) if spent > delta else (low, middle)
    return high


# -- scikit-learn's checks ----------------------------------------------------------------------


@parametrize_with_checks([PrivateClassifier(steps=60, insecure_coins=3)])
def test_all_of_scikit_learns_checks(estimator, check):
    check(estimator)


def test_only_listed_checks_fail_with_secret_noise():
    found = check_estimator(PrivateClassifier(steps=5), on_fail=None, on_skip=None)
    failed = {one["check_name"] for one in found if one["status"] == "failed"}
    assert failed <= set(FRESH_NOISE), failed - set(FRESH_NOISE)
    assert len(found) > 40


def test_clones_pipelines_and_cross_validation():
    X, y = problem()
    model = quick(epsilon=2.0, bounds=(-9, 9))
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(epsilon=3.0).epsilon == 3.0
    pipeline = make_pipeline(FunctionTransformer(np.tanh), model)
    assert cross_val_score(pipeline, X, y, cv=2).shape == (2,)
    assert pipeline.fit(X, y).predict_proba(X).sum(1) == pytest.approx(1)


def test_data_frames_keep_their_names():
    pandas = pytest.importorskip("pandas")
    X, y = problem()
    frame = pandas.DataFrame(X, columns=list("abcd"))
    fitted = quick().fit(frame, pandas.Series(y))
    assert list(fitted.feature_names_in_) == list("abcd")
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[list("dcba")])


def test_sparse_rows_are_refused():
    X, y = problem()
    with pytest.raises(TypeError, match="Sparse"):
        quick().fit(csr_matrix(X), y)


# -- what it costs ------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_epsilon_agrees_with_the_closed_form(epsilon):
    X, y = problem()
    fitted = quick(epsilon=epsilon, delta=1e-4, steps=7).fit(X, y)
    # seven Gaussian releases of all rows are one with σ/√7
    exact = gaussian_epsilon(math.sqrt(7) / fitted.result_.method["noise"], 1e-4)
    assert exact <= fitted.epsilon_ <= epsilon
    assert exact == pytest.approx(epsilon, rel=2e-3)
    assert fitted.statement_.delta == fitted.delta_ == 1e-4
    assert fitted.statement_.epsilon == fitted.epsilon_
    assert fitted.ledger_.entries[0].count == 7


def test_noise_is_really_added_and_scaled_by_the_clip():
    # one step from zeros: weights are −lr·(clipped sum + noise)/n, whose noise can be had again
    X, y = problem()
    options = {"steps": 1, "average": None, "clip": 0.25, "learning_rate": 1.0}
    noisy = quick(epsilon=0.1, **options).fit(X, y)
    quiet = quick(epsilon=1e3, **options).fit(X, y)
    sigma = noisy.result_.method["noise"] - quiet.result_.method["noise"]
    drawn = rt.Coins.from_seed(1).normal((15,), "noise", 0, 0, dtype=torch.float64)
    weights = [torch.cat([p.flatten() for p in m.network_.parameters()]) for m in (noisy, quiet)]
    moved = (weights[0] - weights[1]).detach().numpy()
    assert moved == pytest.approx((-0.25 * sigma / 60 * drawn).numpy(), rel=1e-3)


def test_a_search_is_added_up_and_warned_of():
    X, y = problem()
    search = GridSearchCV(quick(delta=1e-5), {"steps": [2, 3], "epsilon": [1.0]}, cv=2)
    with pytest.warns(PrivacyWarning, match="fit number 5"):
        search.fit(X, y)
    best = search.best_estimator_
    # two fits each on folds and one on all rows, which was chosen by their scores: ε add up
    alone = {t: quick(steps=t, delta=1e-5).fit(X, y).result_.method["noise"] for t in (2, 3)}
    exact = sum(
        gaussian_epsilon(math.sqrt(t) / alone[t], 1e-5 / (k * (k + 1)))
        for k, t in enumerate([2, 2, 3, 3, best.steps], start=1)
    )
    assert exact <= best.total_epsilon_ == pytest.approx(exact, rel=5e-3)
    assert best.total_epsilon_ > 2 * best.epsilon_


def test_fits_in_other_processes_leave_no_bound():
    X, y = problem()
    model = quick().fit(X, y)
    pickle.dumps(model)  # a fitted one is only being kept
    assert math.isfinite(model.total_epsilon_)
    pickle.dumps(clone(model))  # what a search with n_jobs does
    with pytest.warns(PrivacyWarning, match="n_jobs=1"):
        assert model.total_epsilon_ == math.inf


def test_spending_of_several_classifiers():
    X, y = problem()
    a, b = quick(delta=1e-4, insecure_coins=1), quick(delta=1e-5, insecure_coins=2)
    a.fit(X, y), b.fit(X, y)
    assert a.total_epsilon_ == a.epsilon_
    each = [math.sqrt(5) / one.result_.method["noise"] for one in (a, b)]
    exact = sum(gaussian_epsilon(mu, 1e-5 / k) for mu, k in zip(each, (2, 6), strict=True))
    assert exact <= spent_together(a, b) == pytest.approx(exact, rel=5e-3)
    assert spent_together(a, a, b) == spent_together(a, b)
    assert spent_together(a, b, delta=1e-3) < spent_together(a, b)
    with pytest.raises(NotFittedError):
        spent_together(a, quick())
    with pytest.raises(rt.OptionError, match="classifiers"):
        spent_together()


def test_a_second_fit_of_the_same_object_counts():
    X, y = problem()
    model = quick().fit(X, y)
    once = model.total_epsilon_
    with pytest.warns(PrivacyWarning, match="fit number 2"):
        model.fit(X, y)
    assert model.total_epsilon_ > 1.3 * once


def test_noise_is_secret_unless_asked_and_random_state_does_not_touch_it():
    X, y = problem()
    fresh = [quick(insecure_coins=None, random_state=4).fit(X, y) for _ in range(2)]
    # equal with probability 0 but for rounding
    assert not np.allclose(*(one.decision_function(X) for one in fresh))
    assert SEEDED_NOTE not in fresh[0].ledger_.notes
    seeded = [quick(random_state=state).fit(X, y) for state in (4, 5)]
    assert np.array_equal(*(one.decision_function(X) for one in seeded))  # linear: from zeros
    assert SEEDED_NOTE in seeded[0].ledger_.notes
    drawn = [quick(model="mlp", random_state=s).fit(X, y) for s in (4, 4, 5)]
    scores = [one.decision_function(X) for one in drawn]
    assert np.array_equal(scores[0], scores[1])
    assert not np.allclose(scores[0], scores[2])


def test_delta_is_chosen_from_the_number_of_rows():
    X, y = problem()
    assert quick().fit(X, y).delta_ == 1e-5
    assert quick(n=10**6).fit(X, y).delta_ == pytest.approx(1e-7)


def test_a_nominal_number_of_rows_is_used_for_noise():
    X, y = problem()
    fitted = quick(n=600, average=None, steps=1).fit(X, y)
    assert fitted.result_.method["batch"] == 600
    assert PUBLIC_SIZE_NOTE not in fitted.ledger_.notes
    assert PUBLIC_SIZE_NOTE in quick().fit(X, y).ledger_.notes


# -- labels and rows ----------------------------------------------------------------------------


def test_classes_are_public_or_noted():
    X, y = problem()
    words = np.array(["ant", "bee", "cow"])[y]
    listed = quick(classes=["dog", "cow", "bee", "ant"]).fit(X, words)
    assert listed.classes_.tolist() == ["ant", "bee", "cow", "dog"]  # one that no row has
    assert listed.predict_proba(X).shape == (60, 4)
    assert set(listed.predict(X)) <= set(listed.classes_)
    assert CLASSES_NOTE not in listed.ledger_.notes
    with pytest.warns(PrivacyWarning, match="classes = None"):
        learned = quick(classes=None).fit(X, words)
    assert CLASSES_NOTE in learned.ledger_.notes
    assert learned.classes_.tolist() == ["ant", "bee", "cow"]
    with pytest.raises(rt.DataError, match=r"label .*'bee'.* \(row 1\) is not among"):
        quick(classes=["ant", "cow"]).fit(X, words)


@pytest.mark.parametrize("length", ["unit", 2.5, None])
@pytest.mark.parametrize("bounds", [None, (-1, 2), (np.full(4, -2.0), np.arange(1.0, 5.0))])
def test_rows_are_scaled_one_by_one(length, bounds):
    X = np.concatenate([problem()[0], np.zeros((1, 4)), [[1e200, -1e200, 0, 1]]])
    got = quick(row_norm=length, bounds=bounds)._scaled(X).numpy()
    for row, mine in zip(X, got, strict=True):
        if bounds is not None:
            row = np.clip(row, *bounds)
            row = (row - bounds[0]) / (np.subtract(bounds[1], bounds[0]) / 2) - 1
        if length == "unit" and np.any(row):
            row = row / np.abs(row).max()
            row = row / math.sqrt(sum(value**2 for value in row))
        if length == 2.5 and np.abs(row).max() < 1e100:
            row = row / max(2.5, math.sqrt(sum(value**2 for value in row)))
        elif length == 2.5:
            row = mine  # cut to something finite of length 1 at most: looked at below
        assert mine == pytest.approx(row, abs=1e-12)
    if length is not None:
        assert np.linalg.norm(got, axis=1).max() <= 1 + 1e-12
    alone = quick(row_norm=length, bounds=bounds)._scaled(X[7:8]).numpy()
    assert np.array_equal(alone[0], got[7])


def test_digits_are_learned():
    X, y = load_digits(return_X_y=True)
    fitted = PrivateClassifier(3, classes=range(10), bounds=(0, 16), insecure_coins=0)
    fitted.fit(X[:1400], y[:1400])
    assert fitted.score(X[1400:], y[1400:]) > 0.85
    assert fitted.epsilon_ <= 3
    # and far better than what so much noise leaves at ε = 0.01
    hidden = clone(fitted).set_params(epsilon=0.01).fit(X[:1400], y[:1400])
    assert hidden.score(X[1400:], y[1400:]) < 0.5


def test_two_classes_have_one_score():
    X, y = problem(classes=2)
    fitted = quick(classes=[0, 1]).fit(X, y)
    scores, shares = fitted.decision_function(X), fitted.predict_proba(X)
    assert scores.shape == (60,)
    assert shares[:, 1] == pytest.approx(1 / (1 + np.exp(-scores)))
    assert np.array_equal(fitted.predict(X), (scores > 0).astype(int))


# -- models, methods, options -------------------------------------------------------------------


def test_models_of_ones_own():
    X, y = problem()
    mine = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    before = mine[0].weight.detach().clone()
    fitted = quick(model=mine).fit(X, y)
    assert torch.equal(mine[0].weight, before)
    assert not torch.equal(fitted.network_[0].weight, before)
    state = torch.random.get_rng_state()
    made = quick(model=lambda features, classes: nn.Linear(features, classes)).fit(X, y)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert made.network_.weight.shape == (3, 4)
    with pytest.raises(rt.ModelError, match="BatchNorm"):
        quick(model=nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))).fit(X, y)


def test_methods_by_name_and_as_objects():
    X, y = problem()
    for method in ("sign-sgd", "noise-decay", rt.DPSGD(batch=30, clip=0.5)):
        fitted = quick(method=method).fit(X, y)
        assert fitted.epsilon_ <= 1
    assert fitted.ledger_.entries[0].charge.rate == 0.5
    assert quick(batch=30).fit(X, y).ledger_.entries[0].charge.rate == 0.5


def test_an_adaptive_method_is_stated_alone():
    X, y = problem()
    method = rt.DPAGD(batch=60, candidates=3)
    fitted = quick(method=method, epsilon=5.0, average=None).fit(X, y)
    assert fitted.total_epsilon_ == fitted.epsilon_ <= 5
    with pytest.raises(rt.AccountingError, match="delta"):
        spent_together(fitted, delta=1e-3)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("epsilon", 0),
        ("delta", "small"),
        ("delta", 1.0),
        ("classes", [1, 1]),
        ("classes", [1]),
        ("bounds", 3),
        ("bounds", (1, 1)),
        ("bounds", (0, math.inf)),
        ("bounds", ([0, 0], [1, 1])),
        ("row_norm", "long"),
        ("row_norm", -1),
        ("model", "forest"),
        ("model", 3),
        ("model", lambda features, classes: None),
        ("method", "sgd"),
        ("method", rt.SGD(batch=8)),
        ("steps", 0),
        ("steps", 2.5),
        ("learning_rate", "fast"),
        ("learning_rate", 0),
        ("clip", -1),
        ("batch", 61),
        ("n", 0),
        ("average", 2.0),
        ("momentum", 2.0),
        ("device", "abacus"),
    ],
)
def test_wrong_options_are_named(option, value):
    X, y = problem()
    with pytest.raises(rt.OptionError) as caught:
        quick(**{option: value}).fit(X, y)
    assert option in str(caught.value)
    with pytest.raises(rt.OptionError, match="model_options"):
        quick(model=nn.Linear(4, 3), model_options={"zero": True}).fit(X, y)


def test_unfitted_says_so(tmp_path):
    for ask in (lambda m: m.epsilon_, lambda m: m.total_epsilon_, lambda m: m.save(tmp_path)):
        with pytest.raises(NotFittedError):
            ask(quick())


def test_scaling_keeps_the_type_of_the_rows():
    rows = torch.ones(2, 3)
    assert scale_rows(rows, None, None, "unit").dtype == torch.float32


def test_the_page_names_the_checks_that_fresh_noise_fails():
    page = (DOCS / "scikit-learn.md").read_text()
    for name in FRESH_NOISE:
        assert name in page

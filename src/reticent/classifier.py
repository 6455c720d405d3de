"""A private classifier with scikit-learn's interface.

Rows are scaled one by one, by public numbers; then a network, by default one linear layer, is
trained on all of them at every step. Defaults were chosen on public data sets of 500 to 10,000
records at ε = 1 and 3; in a later search by validation rows, no other of twelve settings was better
by more than two standard errors (`benchmarks/results/defaults.json`).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import nn

from reticent import methods, models
from reticent.classifier_fits import Fits, PrivacyWarning, spent_together
from reticent.classifier_options import bounds_for, delta_for, encoded, row_norm_for
from reticent.coins import Coins
from reticent.data.records import as_tensor
from reticent.errors import DataError, DivergenceWarning, OptionError, positive, whole
from reticent.methods.base import Method
from reticent.privacy import Budget, Ledger, Statement
from reticent.row_scaling import scale_rows
from reticent.training.diverged import in_words
from reticent.training.optimizers import by_name
from reticent.training.train import pick_device, run

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn before 1.6 has it as a method

    def validate_data(estimator: Any, *arrays: Any, **options: Any) -> Any:
        """The same checks by their former name."""
        return estimator._validate_data(*arrays, **options)


CLASSES_NOTE = (
    "the list of classes was taken from the labels, which treats it as public: a class that only "
    "one record has would show that record"
)
BY_NAME = ("dpsgd", "sign-sgd", "sign-adam", "noise-decay")
LINEAR_RATE, OTHER_RATE = 4.0, 1.0
CHUNK = 8192  # rows predicted at once
PIECE_NUMBERS = 2**21  # of a piece of rows: 8 MiB

Network = str | nn.Module | Callable[[int, int], nn.Module]
Self = TypeVar("Self", bound="PrivateClassifier")


class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """A classifier whose `fit` is (ε, δ)-differentially private for adding or removing one row.

    Args:
        epsilon: ε of one fit. Every fit spends it anew: see `total_epsilon_`.
        delta: δ of one fit; `auto` is 1e-5, or a tenth of 1/n where that is less.
        classes: The public list of labels. If None, it is taken from `y`, with a warning.
        bounds: Public (low, high) of the features, numbers or one for each feature: values are
            clamped to them and mapped to [-1, 1]. Not from a look at the records.
        row_norm: `unit` scales each row to length 1; a number is a public bound on the length,
            which rows are cut to and divided by; None leaves rows as they are.
        model: `linear`, `mlp` or another of `reticent.models.names()` that takes rows of numbers;
            a module, which is copied; or a function from (features, classes) to a module.
        model_options: Options of a model by name, such as `{"hidden": (32,)}`.
        method: `dpsgd`, `sign-sgd`, `sign-adam` or `noise-decay`; or a `Method` with all its
            options, to which `batch` and `clip` here mean nothing.
        steps: Number of releases.
        learning_rate: `auto` is 4 for `linear` and 1 for other models.
        momentum: Of the gradient descent.
        average: Decay of an average of the weights, which is the result; None for the last ones.
        batch: Expected rows of a release; None is all of them, which needs the least noise.
        clip: Bound on a row's gradient.
        n: The nominal number of rows, a public number. If None, their real number, which is then
            treated as public.
        random_state: Of the initial model, which is public. It does not touch the noise.
        insecure_coins: For tests only: noise from this seed. Whoever knows it can take the noise
            off; None draws it from the operating system.
        device: `auto`, `cpu`, `cuda`, ...

    Attributes:
        classes_: The labels, sorted.
        network_: The trained module, on the CPU; takes scaled rows.
        result_: As `reticent.train` returns it.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> classifier = PrivateClassifier(epsilon=3, classes=range(10), bounds=(0, 16))
        >>> classifier.fit(X[:1500], y[:1500]).score(X[1500:], y[1500:]) > 0.75
        True
        >>> classifier.epsilon_ <= 3
        True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        *,
        classes: Any = None,
        bounds: Any = None,
        row_norm: str | float | None = "unit",
        model: Network = "linear",
        model_options: dict[str, Any] | None = None,
        method: str | Method = "dpsgd",
        steps: int = 200,
        learning_rate: float | str = "auto",
        momentum: float = 0.0,
        average: float | None = 0.9,
        batch: int | None = None,
        clip: float = 1.0,
        n: int | None = None,
        random_state: Any = None,
        insecure_coins: int | None = None,
        device: str = "auto",
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.bounds = bounds
        self.row_norm = row_norm
        self.model = model
        self.model_options = model_options
        self.method = method
        self.steps = steps
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.average = average
        self.batch = batch
        self.clip = clip
        self.n = n
        self.random_state = random_state
        self.insecure_coins = insecure_coins
        self.device = device

    # -- training -----------------------------------------------------------------------------

    def fit(self: Self, X: Any, y: Any) -> Self:
        """Train on these rows and labels; spends ε.

        Args:
            X: [n, features], dense; an array or a DataFrame of numbers.
            y: [n] labels.
        """
        # float64 until it is scaled: the private rows may be far larger than what comes out
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        labels = column_or_1d(labels, warn=True)
        check_classification_targets(labels)
        self.classes_ = self._public_classes(labels)
        targets = encoded(labels, self.classes_)
        nominal = len(rows) if self.n is None else whole("n", self.n)
        budget = Budget(self.epsilon, delta_for(self.delta, nominal))
        inputs = self._scaled(rows).float()
        network = self._build(rows.shape[1], len(self.classes_))
        coins = None if self.insecure_coins is None else Coins.from_seed(self.insecure_coins)
        training = run(
            copy.deepcopy(network),
            (inputs, torch.from_numpy(targets)),
            method=self._method(nominal),
            budget=budget,
            n=self.n,
            steps=whole("steps", self.steps),
            optimizer=by_name("sgd", lr=self._rate(), momentum=self.momentum),
            average=self.average,
            coins=coins,
            device=self.device,
            microbatch=self._piece(rows.shape[1]),
            config={"classifier": self._described()},
        )
        if self.classes is None:
            training.run.ledger.note(CLASSES_NOTE)
        result = training.finish()
        # a module of its own: the trained one's parameters are views of one buffer on the device
        weights = {name: value.cpu() for name, value in result.model.state_dict().items()}
        network.load_state_dict(weights)
        self.network_ = network.eval()
        self.result_ = replace(result, model=self.network_)
        self._warn_of(self._fits().add(self.result_))
        if result.diverged is not None:
            warnings.warn(in_words(result.diverged), DivergenceWarning, stacklevel=2)
        return self

    def _public_classes(self, labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if self.classes is None:
            warnings.warn(
                "classes = None: the list of classes is taken from y, which treats it as public; "
                "give classes=[...]",
                PrivacyWarning,
                stacklevel=3,
            )
            found = np.unique(labels)
            if len(found) < 2:
                raise DataError("y holds one class; there is nothing to tell apart")
            return found
        listed = np.asarray(list(self.classes))
        found = np.unique(listed)
        if listed.ndim != 1 or len(found) < 2 or len(found) < len(listed):
            raise OptionError("classes", self.classes, "must list two different labels or more")
        return found

    def _scaled(self, rows: np.ndarray[Any, Any]) -> torch.Tensor:
        low, high = bounds_for(self.bounds, rows.shape[1])
        length = row_norm_for(self.row_norm)
        return scale_rows(as_tensor(np.ascontiguousarray(rows)), low, high, length)

    def _build(self, features: int, classes: int) -> nn.Module:
        """A new network on the CPU, drawn from the public random state."""
        options = dict(self.model_options or {})
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if isinstance(self.model, str):
            name = self.model
            if name == "linear":  # from zeros: what a random start adds, noise would have to undo
                name, options = "linear-head", {"zero": True, **options}
            shape = (features,)
            return models.build(name, classes=classes, input_shape=shape, seed=seed, **options)
        if options:
            raise OptionError("model_options", options, "are for a model by name")
        if isinstance(self.model, nn.Module):
            return copy.deepcopy(self.model).cpu()
        if not callable(self.model):
            raise OptionError("model", self.model, "must be a name, a module or a function")
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)
            made = self.model(features, classes)
        if not isinstance(made, nn.Module):
            raise OptionError("model", self.model, f"gave a {type(made).__name__}, not a module")
        return made

    def _rate(self) -> float:
        if isinstance(self.learning_rate, str):
            if self.learning_rate != "auto":
                raise OptionError("learning_rate", self.learning_rate, "must be a number or 'auto'")
            return LINEAR_RATE if self.model == "linear" else OTHER_RATE
        return positive("learning_rate", self.learning_rate)

    def _piece(self, features: int) -> int | None:
        """Rows at once: one linear layer on a CPU is so little work that more of them pay."""
        if self.model != "linear" or pick_device(self.device).type != "cpu":
            return None
        return max(512, PIECE_NUMBERS // features)

    def _method(self, n: int) -> Method:
        if isinstance(self.method, Method):
            if self.method.guarantee != "differential-privacy":
                raise OptionError("method", self.method.name, "promises no differential privacy")
            return self.method
        if self.method not in BY_NAME:
            raise OptionError("method", self.method, f"must be a Method or in {', '.join(BY_NAME)}")
        batch = n if self.batch is None else whole("batch", self.batch)
        return methods.build(self.method, batch=batch, clip=positive("clip", self.clip))

    def _described(self) -> dict[str, Any]:
        """The scaling, for `run.json`: public numbers."""
        low, high = bounds_for(self.bounds, None)
        return {
            "model": self.model if isinstance(self.model, str) else "own",
            "bounds": None if low is None or high is None else [low.tolist(), high.tolist()],
            "row_norm": self.row_norm,
            "classes": len(self.classes_),
        }

    # -- what it cost ---------------------------------------------------------------------------

    @property
    def ledger_(self) -> Ledger:
        """What the last fit paid, for what, and what it assumed."""
        check_is_fitted(self, "result_")
        return self.result_.ledger

    @property
    def statement_(self) -> Statement:
        """ε of the last fit with its δ, accountant and adjacency."""
        check_is_fitted(self, "result_")
        return self.result_.statement

    @property
    def epsilon_(self) -> float:
        """ε of the last fit: an upper bound."""
        return self.statement_.epsilon

    @property
    def delta_(self) -> float:
        """δ of the last fit."""
        return self.statement_.delta

    @property
    def total_epsilon_(self) -> float:
        """ε, at `delta_`, of all fits of this classifier and its clones in this process.

        All are counted as if on the same rows, and each as if it was chosen by what those before
        gave. Infinite if copies were sent to other processes: what they were fitted on is not known
        here.
        """
        check_is_fitted(self, "result_")
        return spent_together(self)

    def _fits(self) -> Fits:
        if not hasattr(self, "_shared_fits"):
            self._shared_fits = Fits()
        return self._shared_fits

    def _warn_of(self, count: int) -> None:
        if count > 1:
            warnings.warn(
                f"fit number {count} of this classifier and its clones: each spends its own "
                "epsilon, and scores on private rows are not covered by any; total_epsilon_ adds "
                "the fits up",
                PrivacyWarning,
                stacklevel=3,
            )

    def __sklearn_clone__(self: Self) -> Self:
        clone: Self = super().__sklearn_clone__()
        clone._shared_fits = self._fits()
        return clone

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if not hasattr(self, "result_"):
            self._fits().elsewhere = True
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.insecure_coins is None
        return tags

    # -- prediction -----------------------------------------------------------------------------

    def _logits(self, X: Any) -> np.ndarray[Any, Any]:
        check_is_fitted(self, "result_")
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        # double precision: a row's scores do not depend on the rows beside it
        network = copy.deepcopy(self.network_).double().eval()
        with torch.no_grad():
            parts = [network(part) for part in self._scaled(rows).split(CHUNK)]
        return torch.cat(parts).numpy()

    def decision_function(self, X: Any) -> np.ndarray[Any, Any]:
        """The network's scores, [n, classes]; of two classes their difference, [n]."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """The softmax of the scores, [n, classes]."""
        return torch.from_numpy(self._logits(X)).softmax(1).numpy()

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The label of the largest score, [n]."""
        best = self._logits(X).argmax(1)
        return self.classes_[best]

    # -- files ----------------------------------------------------------------------------------

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write `model.safetensors`, `run.json`, `classifier.json` and, if possible, `rebuild.py`.

        The weights are a plain state dict. `rebuild.py` needs PyTorch and safetensors alone; it is
        written where the network is a sequence of PyTorch's own layers.
        """
        from reticent.classifier_files import save

        check_is_fitted(self, "result_")
        return save(self, Path(folder), overwrite=overwrite)

    @classmethod
    def load(cls: type[Self], folder: str | Path, **given: Any) -> Self:
        """Read a saved classifier; a `model` or `method` that was no name must be given again."""
        from reticent.classifier_files import load

        return load(cls, Path(folder), given)

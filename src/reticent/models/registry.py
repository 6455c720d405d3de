"""Models by name: build one, list them, describe one, add your own.

Example:
    >>> from reticent import models
    >>> model = models.build("mnist-cnn", classes=10, input_shape=(1, 28, 28))
    >>> sum(parameter.numel() for parameter in model.parameters())
    26010

Formal guarantees:
    `build` draws every initial value from `seed` on the CPU and leaves the global random state as
    it was, so a noise stream that shares it is not rewound. A model holding a batch normalisation
    is refused: it mixes the examples of a batch, and then no per-example gradient exists.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from reticent.errors import ModelError, OptionError, whole
from reticent.models.activations import activation as make_activation
from reticent.models.shapes import Shape, as_shape

Builder = Callable[..., nn.Module]
"""Called with `classes`, `input_shape`, the card's options, and `activation` if it has one."""

_B = TypeVar("_B", bound=Builder)


@dataclass(frozen=True)
class Option:
    """One thing a model may be built with beside its shape: name, default, and what it does."""

    name: str
    default: Any
    help: str


@dataclass(frozen=True)
class ModelCard:
    """What a reader should know of a model before building it.

    Attributes:
        name: what `build` takes.
        paper: where the architecture is printed.
        summary: its layers, in one line.
        input_shape: the usual shape of one example.
        classes: the usual number of classes.
        activation: the default activation, None for a model that has none.
        options: the further keyword arguments `build` takes for it.
        input_kind: `floats`, or `tokens` for whole-number word indexes.
        notes: choices a paper leaves open, and other things worth knowing.
    """

    name: str
    paper: str
    summary: str
    input_shape: Shape
    classes: int
    activation: str | None = None
    options: tuple[Option, ...] = ()
    input_kind: Literal["floats", "tokens"] = "floats"
    notes: tuple[str, ...] = ()

    def defaults(self) -> dict[str, Any]:
        """Return the options' defaults by name."""
        return {option.name: option.default for option in self.options}

    def sample(self, batch: int = 1, input_shape: Sequence[int] | None = None) -> Tensor:
        """Return a batch of zeros of the kind and shape the model takes."""
        shape = self.input_shape if input_shape is None else as_shape(input_shape)
        kind = torch.long if self.input_kind == "tokens" else torch.get_default_dtype()
        return torch.zeros((batch, *shape), dtype=kind)

    def as_dict(self) -> dict[str, Any]:
        """Return the card as plain data, ready for JSON."""
        return asdict(self)


_MODELS: dict[str, tuple[ModelCard, Builder]] = {}


def register(card: ModelCard, *, replace: bool = False) -> Callable[[_B], _B]:
    """Make a builder known under `card.name`; used as a decorator.

    The builder is called with keyword arguments alone: `classes`, `input_shape` (a tuple), every
    option of the card, and, when the card has an activation, `activation`: a function without
    arguments that returns a new activation module.

    Raises:
        OptionError: the name is taken and `replace` is False, or the builder does not take
            the arguments that the card promises.
    """
    if card.name in _MODELS and not replace:
        raise OptionError(
            "name", card.name, "is already a model; choose another or pass replace=True"
        )
    if card.activation is not None:
        make_activation(card.activation)
    given: dict[str, Any] = {"classes": card.classes, "input_shape": card.input_shape}
    given |= card.defaults()
    if card.activation is not None:
        given["activation"] = None

    def keep(builder: _B) -> _B:
        try:
            inspect.signature(builder).bind(**given)
        except TypeError as mismatch:
            raise OptionError(
                "builder", builder, f"must take {', '.join(given)} by keyword: {mismatch}"
            ) from None
        _MODELS[card.name] = (card, builder)
        return builder

    return keep


def names() -> tuple[str, ...]:
    """Return the names `build` takes, sorted."""
    return tuple(sorted(_MODELS))


def describe(name: str) -> ModelCard:
    """Return the card of the model `name`."""
    return _find(name)[0]


def build(
    name: str,
    *,
    classes: int,
    input_shape: Sequence[int],
    activation: str | None = None,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """Return a new model, on the CPU and in train mode.

    Args:
        name: one of `names()`.
        classes: how many outputs.
        input_shape: the shape of one example, without the batch.
        activation: `relu`, `tanh`, `tempered-sigmoid` or `tempered-sigmoid:s,T,o`; the model's
            own default when left out.
        seed: where the initial values come from; the global random state is left alone.
        **options: what `describe(name).options` lists.

    Raises:
        OptionError: a name, option, activation or shape that cannot work; the message lists
            what would.
        ModelError: a registered builder made a model that mixes examples.
    """
    card, builder = _find(name)
    arguments: dict[str, Any] = {
        "classes": whole("classes", classes),
        "input_shape": as_shape(input_shape),
        **card.defaults(),
    }
    for option, value in options.items():
        if option not in card.defaults():
            takes = ", ".join(card.defaults()) or "none"
            raise OptionError(
                option, value, f"{name} has no such option; beside its shape it takes: {takes}"
            )
        arguments[option] = value
    if card.activation is not None:
        spec = card.activation if activation is None else activation
        make_activation(spec)
        arguments["activation"] = partial(make_activation, spec)
    elif activation is not None:
        raise OptionError("activation", activation, f"{name} has no activation; leave it out")
    seed = whole("seed", seed, least=0)
    # torch.manual_seed would also reseed every GPU; the CPU's own generator is all we draw from.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        model = builder(**arguments)
    _refuse_mixing(name, model)
    return model.train()


def _find(name: str) -> tuple[ModelCard, Builder]:
    if name not in _MODELS:
        raise OptionError("model", name, f"must be one of {', '.join(names())}")
    return _MODELS[name]


def _refuse_mixing(name: str, model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ModelError(
                f"model {name!r}: {path or 'the model itself'} is a {type(module).__name__}, "
                f"which mixes the examples of a batch; use nn.GroupNorm"
            )

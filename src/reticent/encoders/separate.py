"""Whether a program maps each image on its own, always in the same way."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.export import ExportedProgram

from reticent.errors import ModelError

_ROUNDING = 1e-5  # of the largest number: what the place in a batch may change, if anything
_LAYOUT = 1e-3  # of the same: the other order of memory sums in another order
_EXPORT = "it was exported while training, or {}; export network.eval()"
_ATTENTION = "scaled_dot_product_attention"


def refuse_memory(program: ExportedProgram, path: str) -> None:
    """Refuse a program that remembers what it has seen, or draws random numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own making
        plain = program.run_decompositions({})
    kept = sorted(plain.graph_signature.buffers_to_mutate.values())
    if kept:
        raise ModelError(
            f"{path}: changes its {', '.join(kept[:3])} with every batch: "
            + _EXPORT.format("counts what it sees")
        )
    for node in plain.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags and not _quiet_attention(node):
            raise ModelError(
                f"{path}: draws random numbers ({node.target}): " + _EXPORT.format("is random")
            )


def _quiet_attention(node: torch.fx.Node) -> bool:
    """Attention can leave numbers out at random; only if it is told to."""
    if _ATTENTION not in str(node.target):
        return False
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return given.get("dropout_p", 0.0) == 0.0


def refuse_mixing(
    encode: Callable[[Tensor], Tensor], images: Tensor, path: str, coins: torch.Generator
) -> None:
    """Refuse a program whose numbers for an image depend on others, or on its place.

    Others may not change a single bit where an image stays in its place, twice over: so nothing
    depends on the call either. In another place sums may be taken in another order.
    """
    first = encode(images)
    rows = len(images)
    for kept in _halves(rows, coins):
        others = torch.rand(images.shape, generator=coins)
        others[kept] = images[kept]
        if not torch.equal(encode(others)[kept], first[kept]):
            raise ModelError(
                f"{path}: an image's numbers depend on the other images of a batch, or on when "
                "they are computed: " + _EXPORT.format("mixes the images of a batch")
            )
    moved = encode(images.roll(1, 0)).roll(-1, 0)
    if not near(moved, first, _ROUNDING):
        raise ModelError(
            f"{path}: an image's numbers depend on its place in a batch: "
            + _EXPORT.format("mixes the images of a batch")
        )


def near(found: Tensor, expected: Tensor, tolerance: float = _LAYOUT) -> bool:
    """Equal to this share of the largest number."""
    return float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


def _halves(rows: int, coins: torch.Generator) -> list[Tensor]:
    """Rows to keep while all others change: any two are apart in one of them, for few rows.

    For many, one half at random and the other: what mixes more than two rows does not get by.
    """
    if rows > 16:
        half = torch.rand(rows, generator=coins) < 0.5
        return [half, ~half]
    places = torch.arange(rows)
    bits = range(max((rows - 1).bit_length(), 1))
    masks = [places >> bit & 1 == one for bit in bits for one in (0, 1)]
    return [mask for mask in masks if mask.any()]

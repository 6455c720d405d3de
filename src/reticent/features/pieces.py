"""Many records through a network or a product a few at a time, always as many.

Matrix products and convolutions may add up in another order when they have more or fewer rows. With
a fixed number of them, how many other records there are does not move a record's numbers, not even
in their last bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def in_full_pieces(transform: Callable[[Tensor], Tensor], inputs: Tensor, rows: int) -> Tensor:
    """What `transform` makes of `inputs`, of `rows` at a time; the last piece is filled with zeros.

    It is asked about no row at all if there are none.
    """
    if len(inputs) == 0:
        return transform(inputs)
    return torch.cat(
        [transform(_filled(piece, rows))[: len(piece)] for piece in inputs.split(rows)]
    )


def _filled(piece: Tensor, rows: int) -> Tensor:
    if len(piece) == rows:
        return piece.contiguous()  # as a filled one is
    filled = piece.new_zeros((rows, *piece.shape[1:]))
    filled[: len(piece)] = piece
    return filled

"""`imdb-bilstm`: the five-layer recurrent network of DPIS, DPSUR and Ghosh & Das for IMDb.

From the sequence to the classifier the papers say only that each layer keeps Keras' defaults
(DPIS, section 5.2). Keras' bidirectional LSTM then returns one vector per review: the last state
of each direction, side by side (32 + 32 values), with no masking of the padding. So does this one.

Options follow others' code. DPSUR's trains the word vectors, from random ones, and takes the mean
of all states. And what DPIS prints is what word vectors three places off give: Keras counts words
from 1 in its list and from 4 in its reviews, so that a table filled by the list has, for each word,
the vector of another one of about the same frequency.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from reticent.errors import OptionError, one_of, whole
from reticent.models.activations import ActivationFactory
from reticent.models.registry import ModelCard, Option, register
from reticent.models.shapes import Shape
from reticent.models.starting import START, started

VOCABULARY = 20_000
"""How many of the most common words the papers keep."""

WIDTH = 100
"""The length of a word's vector in the papers."""

WORDS = ("frozen", "trained")
STATES = ("last", "mean")

MARKS = 3  # indexes of padding, of a review's start and of unknown words
_TABLE_SEED = 20_000_100


class BiLSTMClassifier(nn.Module):
    """Embedding, fc, bidirectional LSTM, fc, fc; from (B, T) word indexes to (B, classes).

    Args:
        embedding: one row for each word index, frozen or not.
        classes: how many outputs.
        activation: makes the activation after the second and the fourth layer.
        states: what of the LSTM goes on: the `last` state of each direction, or the `mean` of all.
        projected: units of the fully connected layer under the LSTM.
        units: LSTM units in each direction.
        hidden: units of the fully connected layer above the LSTM.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        *,
        classes: int,
        activation: ActivationFactory,
        states: str = "last",
        projected: int = 32,
        units: int = 32,
        hidden: int = 16,
    ) -> None:
        super().__init__()
        self.units, self.states = units, states
        self.embedding = embedding
        self.projection = nn.Linear(embedding.embedding_dim, projected)
        self.projection_activation = activation()
        self.lstm = nn.LSTM(projected, units, batch_first=True, bidirectional=True)
        self.hidden = nn.Linear(2 * units, hidden)
        self.hidden_activation = activation()
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the class scores of each row of word indexes."""
        words = self.projection_activation(self.projection(self.embedding(tokens)))
        states, _ = self.lstm(words)
        if self.states == "mean":
            review = states.mean(dim=1)
        else:
            # The forward direction ends at the last word, the backward direction at the first.
            review = torch.cat([states[:, -1, : self.units], states[:, 0, self.units :]], dim=1)
        return self.classifier(self.hidden_activation(self.hidden(review)))


@register(
    ModelCard(
        name="imdb-bilstm",
        paper="DPIS (Wei et al. 2022), Table 1; DPSUR (Fu et al. 2024), Table 7",
        summary="embedding 100, fc 32, bidirectional LSTM 32, fc 16, fc classes",
        input_shape=(80,),
        classes=2,
        activation="relu",
        options=(
            Option("vectors", None, "word vectors, one row per index, such as GloVe's 100-d"),
            Option("vocabulary", None, "how many word indexes; the rows of vectors, or 20000"),
            Option("words", "frozen", "their vectors: frozen, or trained from random ones"),
            Option("states", "last", "what goes on of the LSTM's: last, or the mean of all"),
            Option("offset", 0, "a word has the vector of the one so many places on"),
            START,
        ),
        input_kind="tokens",
        notes=(
            "Without vectors the embedding is a fixed random table (the same for every seed, "
            "index 0 a zero row for padding): good for trying things out, not for the papers' "
            "accuracy, which needs GloVe.",
            "DPSUR's public code has `words=trained` and `states=mean`; what DPIS prints is about "
            "what `offset=3` gives, as where Keras' index_from was overlooked.",
            "The last state of each direction goes to the classifier; padding is not masked.",
            "PyTorch's LSTM has two bias vectors where Keras has one: 256 more parameters.",
        ),
    )
)
def imdb_bilstm(
    *,
    classes: int,
    input_shape: Shape,
    activation: ActivationFactory,
    vectors: Any,
    vocabulary: int | None,
    words: str,
    states: str,
    offset: int,
    start: str,
) -> nn.Module:
    """The IMDb network; 21,202 trained parameters beside the embedding."""
    if len(input_shape) != 1:
        raise OptionError(
            "input_shape", input_shape, "imdb-bilstm takes word indexes: (words,), such as (80,)"
        )
    one_of("words", words, WORDS)
    one_of("states", states, STATES)
    offset = whole("offset", offset, least=0)
    size = None if vocabulary is None else whole("vocabulary", vocabulary, least=2)
    if vectors is None:
        table = random_vectors(size or VOCABULARY)
    else:
        table = _as_table(vectors)
        if size not in (None, len(table)):
            raise OptionError(
                "vocabulary", vocabulary, f"vectors has {len(table)} rows; leave vocabulary out"
            )
    if words == "trained":
        if offset:
            raise OptionError("offset", offset, "is for frozen word vectors: words = frozen")
        embedding = nn.Embedding(len(table), WIDTH)  # all of it is trained, padding's row too
    else:
        embedding = nn.Embedding.from_pretrained(_slipped(table, offset), freeze=True)
    network = BiLSTMClassifier(embedding, classes=classes, activation=activation, states=states)
    return started(network, start)


def _slipped(table: Tensor, offset: int) -> Tensor:
    """A copy in which each word has the vector of the one so many places on; the last have none.

    As where Keras' list fills the table: padding has none, and the marks of start and of unknown
    words, numbered 1 and 2, have those of the two most frequent words.
    """
    if not offset:
        return table.detach().clone()
    if offset > (most := len(table) - MARKS - 2):
        works = f"must be at most {max(most, 0)}, of {len(table)} word indexes"
        raise OptionError("offset", offset, works)
    moved = torch.zeros_like(table)
    moved[1:MARKS] = table[MARKS : 2 * MARKS - 1]
    moved[MARKS : len(table) - offset] = table[MARKS + offset :]
    return moved.detach()


def random_vectors(words: int, width: int = WIDTH) -> Tensor:
    """Return the stand-in table: standard normal rows of a fixed seed, row 0 zero for padding."""
    generator = torch.Generator().manual_seed(_TABLE_SEED)
    table = torch.randn(words, width, generator=generator)
    table[0] = 0
    return table


def _as_table(vectors: Any) -> Tensor:
    hint = "must be a table of finite numbers, one row for each word index"
    try:
        table = torch.as_tensor(vectors, dtype=torch.get_default_dtype(), device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise OptionError("vectors", type(vectors).__name__, hint) from None
    if table.ndim != 2 or 0 in table.shape:
        raise OptionError("vectors", tuple(table.shape), hint)
    if not bool(table.isfinite().all()):
        raise OptionError("vectors", "a table holding NaN or infinity", hint)
    return table

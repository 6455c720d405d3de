"""The features known by name, and what there is to know about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn

from reticent.encoders import encoder_digest, image_encoder_digest, image_encoder_missing
from reticent.errors import OptionError, one_of, whole
from reticent.features.image_encoder import ImageEncoder
from reticent.features.image_network import weights_digest, weights_origin
from reticent.features.random_images import RandomImages
from reticent.features.scattering import Scattering
from reticent.features.sentence_encoder import SentenceEncoder, WithClusters
from reticent.features.standardising import Reach
from reticent.features.whitening import PROCESSES
from reticent.features.word_clusters import WordClusters
from reticent.features.word_vectors import POOLINGS, WordVectors

Builder = Callable[..., nn.Module]
"""Called with the shape of one input, the card's extras by name, and its options by name.

The module takes inputs of any number, none included, to float32 features, each input on its own.
"""

WORDS = "words"
"""Beside the tensors of `Splits.extras`: the word of every token."""

ReachOf = Callable[[tuple[int, ...], Mapping[str, Any]], Reach]
"""From the shape of one input, and the options, to the public range of its features."""


@dataclass(frozen=True)
class FeatureOption:
    """One number that features are computed with."""

    name: str
    default: Any
    help: str


@dataclass(frozen=True)
class FeatureCard:
    """What a user wants to know before choosing features.

    Attributes:
        name: what `apply` takes.
        paper: where they come from.
        summary: what is computed, in one line.
        inputs: what they are computed from.
        output: the shape for one input.
        privacy: why they cost nothing.
        build: makes the transform.
        options: what can be chosen.
        extras: which of `Splits.extras`, and `words`, the builder is given.
        reach: the public bounds that `standardise` is given where none are stated.
        version: raised when the same options come to mean other numbers; old files are then left.
        files: the options that name files or folders.
        made_with: a fingerprint of these.
        raw: options under which nothing follows the slow part of the map. Its vectors are kept,
            and other values of these options are applied to them, by the module's `finish`.
        absent: why a file that only the user can bring is not here; None where it is.
        learned: how what comes with the library was learned, as its file tells.
    """

    name: str
    paper: str
    summary: str
    inputs: str
    output: str
    privacy: str
    build: Builder
    options: tuple[FeatureOption, ...] = ()
    extras: tuple[str, ...] = ()
    reach: ReachOf = lambda shape, options: Reach()
    version: int = 1
    files: tuple[str, ...] = ()
    made_with: Callable[[Mapping[str, Any]], str] = lambda options: ""
    raw: Mapping[str, Any] = field(default_factory=dict)
    absent: Callable[[Mapping[str, Any]], str | None] = lambda options: None
    learned: Callable[[], Mapping[str, Any]] = dict

    def to_json(self) -> dict[str, Any]:
        """The card as JSON-ready data."""
        hidden = ("build", "reach", "version", "files", "made_with", "raw", "absent")
        card = {key: value for key, value in vars(self).items() if key not in hidden}
        options = [asdict(option) for option in self.options]
        return {**card, "options": options, "learned": dict(self.learned())}

    def complete(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with their defaults filled in; others are refused."""
        chosen = {option.name: option.default for option in self.options}
        for option, value in options.items():
            if option not in chosen:
                takes = ", ".join(chosen) or "none"
                raise OptionError(
                    option, value, f"{self.name} has no such option; it takes: {takes}"
                )
            default = chosen[option]
            whole_number = isinstance(value, int) and not isinstance(value, bool)
            chosen[option] = float(value) if type(default) is float and whole_number else value
        return chosen


def _check_images(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise OptionError(
            "features",
            name,
            f"takes images of (channels, height, width); these inputs have shape {shape}",
        )


def _check_texts(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 1:
        raise OptionError(
            "features",
            name,
            f"takes texts as rows of tokens, (length,); these inputs have shape {shape}",
        )


def _random_images(shape: tuple[int, ...], **options: Any) -> nn.Module:
    _check_images("random-images", shape)
    return RandomImages((shape[0], shape[1], shape[2]), **options)


def _image_encoder(shape: tuple[int, ...], *, encoder: str, **options: Any) -> nn.Module:
    _check_images("image-encoder", shape)
    return ImageEncoder(encoder, (shape[0], shape[1], shape[2]), **options)


def _scattering(shape: tuple[int, ...], *, scales: int, angles: int, order: int) -> nn.Module:
    _check_images("scattering", shape)
    return Scattering((shape[1], shape[2]), scales=scales, angles=angles, order=order)


def _scattering_reach(shape: tuple[int, ...], options: Mapping[str, Any]) -> Reach:
    # The transform adds no energy (Mallat 2012): a record is no longer than its image, √C at most
    # for C channels in [0, 1]. Half of it was chosen with Fashion-MNIST's images in view.
    return Reach(bound=1.0, clip=0.5 * math.sqrt(shape[0]))


def _word_vectors(shape: tuple[int, ...], *, vectors: Tensor, pooling: str) -> nn.Module:
    _check_texts("word-vectors", shape)
    return WordVectors(vectors, pooling=pooling)


def _word_clusters(shape: tuple[int, ...], *, vectors: Tensor, **options: Any) -> nn.Module:
    _check_texts("word-clusters", shape)
    return WordClusters(vectors, **options)


def _sentence_encoder(
    shape: tuple[int, ...],
    *,
    words: tuple[str, ...],
    vectors: Tensor,
    encoder: str,
    longest: int,
    clusters: int,
    weight: float,
) -> nn.Module:
    _check_texts("sentence-encoder", shape)
    sentences = SentenceEncoder(encoder, words, longest=longest)
    if whole("clusters", clusters, least=0) == 0:
        return sentences
    return WithClusters(sentences, WordClusters(vectors, clusters=clusters), weight)


def _unit_reach(shape: tuple[int, ...], options: Mapping[str, Any]) -> Reach:
    return Reach(bound=1.0, clip=1.0)  # every record has length 1


def _stated_reach(shape: tuple[int, ...], options: Mapping[str, Any]) -> Reach:
    """Records have the length that was asked for; an encoder's own is known to nobody."""
    length = options["length"]
    return Reach(bound=length, clip=length) if length else Reach()


def _word_vectors_reach(shape: tuple[int, ...], options: Mapping[str, Any]) -> Reach:
    # One in a thousand of GloVe's coordinates is beyond 2. Its words have norms of about 5, and the
    # largest of 80 of them is about 1.1 in each coordinate: 5² + 100 · 1.1² is about 12².
    # IMDb's pooled texts had been looked at when this was chosen.
    return Reach(bound=2.0, clip=12.0)


_CARDS = {
    card.name: card
    for card in (
        FeatureCard(
            name="scattering",
            paper="Bruna & Mallat 2013; with privacy: Tramèr & Boneh 2021",
            summary="averages of moduli of Morlet wavelet coefficients, of one and two wavelets",
            inputs="images",
            output=(
                "C·K x H/2^J x W/2^J of C x H x W, K = 1 + J·L + L²·J(J-1)/2 for J scales and L "
                "angles; 81x7x7 of 1x28x28, 243x8x8 of 3x32x32"
            ),
            privacy="a fixed map of each record on its own: nothing is learned, nothing is charged",
            build=_scattering,
            options=(
                FeatureOption("scales", 2, "J: averages reach over 2^J pixels"),
                FeatureOption("angles", 8, "L: directions of the wavelets"),
                FeatureOption("order", 2, "1, or 2 for wavelets of wavelets"),
            ),
            reach=_scattering_reach,
        ),
        FeatureCard(
            name="random-images",
            paper="after DP-RandP, Tang et al. 2023, and Baradad et al. 2021",
            summary=(
                "maps of a network that learned from random processes alone, pooled, whitened by "
                "images of random processes, of unit length"
            ),
            inputs="images",
            output="d numbers: 7,168 for 3x4+2x4+1x4 (256, 128 and 64 channels at 16 places)",
            privacy=(
                "a fixed map of each record on its own; network and whitening were learned from "
                "images drawn from random processes, from no record: nothing is charged"
            ),
            build=_random_images,
            options=(
                FeatureOption(
                    "parts",
                    "3x4+2x4+1x4",
                    "GxS: group G's maps at SxS places; or scattering; joined by +",
                ),
                FeatureOption("mirror", True, "average with the mirror image's"),
                FeatureOption("process", "mixed", f"what whitens: one of {', '.join(PROCESSES)}"),
                FeatureOption("ridge", 1.0, "mean variances added before whitening"),
                FeatureOption("images", 16_384, "images drawn for whitening"),
                FeatureOption("weights", "", "a file from `reticent features pretrain`"),
            ),
            reach=_unit_reach,
            files=("weights",),
            made_with=lambda options: weights_digest(options["weights"]),
            learned=weights_origin,
        ),
        FeatureCard(
            name="image-encoder",
            paper="none of its own; as in Tramèr & Boneh 2021 and De et al. 2022",
            summary="vectors by a frozen public encoder that you bring",
            inputs="images",
            output="as wide as the encoder: 768 of ViT-B-16, 1,280 of EfficientNet-Lite0",
            privacy=(
                "a fixed map of each record on its own by an encoder that must not have been "
                "trained on the records: nothing is charged"
            ),
            build=_image_encoder,
            options=(
                FeatureOption(
                    "encoder",
                    "",
                    "file from `reticent.features.export_encoder`, NAME.pt2, here or in "
                    "$RETICENT_IMAGE_ENCODERS",
                ),
                FeatureOption(
                    "inputs", "imagenet", "public scale: imagenet, clip, half, plain, or MEAN/DEV"
                ),
                FeatureOption("mirror", False, "average with the mirror image's"),
                FeatureOption("length", 1.0, "of every record's vector; 0: as the encoder has it"),
                FeatureOption("images", 0, "random images that whiten; 0: no whitening"),
                FeatureOption("process", "mixed", f"what whitens: one of {', '.join(PROCESSES)}"),
                FeatureOption("ridge", 1.0, "mean variances added before whitening"),
            ),
            reach=_stated_reach,
            files=("encoder",),
            made_with=lambda options: image_encoder_digest(options["encoder"]),
            raw={"length": 0.0, "images": 0, "process": "mixed", "ridge": 1.0},
            absent=lambda options: image_encoder_missing(options["encoder"]),
        ),
        FeatureCard(
            name="word-vectors",
            paper="Joulin et al. 2017; Shen et al. 2018; vectors: GloVe, Pennington et al. 2014",
            summary="mean and maximum of the words' frozen public vectors",
            inputs="texts, with word vectors",
            output="W for mean or max of W-dimensional vectors, 2·W for both; 200 of GloVe's 100",
            privacy=(
                "a fixed map of each record on its own by a table that was not learned from the "
                "records: nothing is charged"
            ),
            build=_word_vectors,
            options=(FeatureOption("pooling", "both", f"one of {', '.join(POOLINGS)}"),),
            extras=("vectors",),
            reach=_word_vectors_reach,
        ),
        FeatureCard(
            name="word-clusters",
            paper="none; vectors: GloVe, Pennington et al. 2014",
            summary="mean of the words' whitened public vectors and of memberships in clusters",
            inputs="texts, with word vectors",
            output="W + K for W-dimensional vectors and K clusters; 4,100 by default",
            privacy=(
                "a fixed map of each record on its own; clusters are of the vocabulary's public "
                "vectors, none was learned from the records: nothing is charged"
            ),
            build=_word_clusters,
            options=(
                FeatureOption("clusters", 4000, "of the vocabulary's vectors; 0 for none"),
                FeatureOption("sharpness", 1.5, "how much a word belongs to its nearest alone"),
                FeatureOption("seed", 0, "public seed of the clusters"),
            ),
            extras=("vectors",),
            reach=_unit_reach,
        ),
        FeatureCard(
            name="sentence-encoder",
            paper="Devlin et al. 2019; Reimers and Gurevych 2019",
            summary="mean vectors by a frozen public encoder of BERT's kind that you bring",
            inputs="texts, with their words and word vectors",
            output="as wide as the encoder, 384 of all-MiniLM-L6-v2; and W + K with K clusters",
            privacy=(
                "a fixed map of each record on its own by an encoder that must not have been "
                "trained on the records: nothing is charged"
            ),
            build=_sentence_encoder,
            options=(
                FeatureOption(
                    "encoder", "", "folder with config.json, model.safetensors and its vocabulary"
                ),
                FeatureOption("longest", 256, "word pieces of a text that are read"),
                FeatureOption("clusters", 0, "so many word-clusters beside it; 0 for none"),
                FeatureOption("weight", 0.5, "length of the encoder's vector beside theirs of 1"),
            ),
            extras=(WORDS, "vectors"),
            reach=_unit_reach,
            files=("encoder",),
            made_with=lambda options: encoder_digest(options["encoder"]),
        ),
    )
}


_THEIRS = ("image-encoder", "sentence-encoder")


def names() -> tuple[str, ...]:
    """The names that `apply` and `describe` take."""
    return tuple(_CARDS)


def describe(name: str) -> FeatureCard:
    """What there is to know about features of this name."""
    return _CARDS[one_of("features", name, _CARDS)]


def absent(name: str, options: Mapping[str, Any]) -> str | None:
    """Which file that only the user can bring is not here; None where nothing is wanting."""
    card = describe(name)
    chosen = card.complete(options)
    reason = card.absent(chosen)
    if reason is None:
        return None
    named = ", ".join(repr(chosen[option]) for option in card.files)
    return f"the {name}'s file {named}: {reason}"


def brought_with(name: str, options: Mapping[str, Any]) -> str:
    """A fingerprint of the user's files that features are made with; of our own, nothing."""
    if name == "none":
        return ""
    card = describe(name)
    chosen = card.complete(options)
    theirs = card.name in _THEIRS or any(chosen[option] for option in card.files)
    return card.made_with(chosen) if theirs else ""


def build(
    name: str,
    shape: tuple[int, ...],
    options: Mapping[str, Any],
    extras: Mapping[str, Any],
) -> nn.Module:
    """The transform for inputs of this shape."""
    card = describe(name)
    for extra in card.extras:
        if extra not in extras:
            raise OptionError(
                "features",
                name,
                f"needs the data's {extra}, which are not there; `reticent data get` fetches them "
                "for a data set that has some",
            )
    needed = {extra: extras[extra] for extra in card.extras}
    try:
        return card.build(shape, **needed, **card.complete(options))
    except OptionError as error:
        error.of = "feature"
        raise

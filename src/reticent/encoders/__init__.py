"""Frozen public encoders that users bring: of texts, in BERT's files; of images, as programs."""

from reticent.encoders.bert import LONGEST, TextEncoder
from reticent.encoders.files import ENVIRONMENT, about, encoder_digest, where
from reticent.encoders.programs import (
    IMAGE_ENVIRONMENT,
    ImageProgram,
    export_encoder,
    image_encoder_digest,
    image_encoder_missing,
    image_encoder_side,
)

__all__ = [
    "ENVIRONMENT",
    "IMAGE_ENVIRONMENT",
    "LONGEST",
    "ImageProgram",
    "TextEncoder",
    "about",
    "encoder_digest",
    "export_encoder",
    "image_encoder_digest",
    "image_encoder_missing",
    "image_encoder_side",
    "where",
]

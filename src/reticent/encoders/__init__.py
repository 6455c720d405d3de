"""Frozen public text encoders that users bring: their files, word pieces and vectors."""

from reticent.encoders.bert import LONGEST, TextEncoder
from reticent.encoders.files import ENVIRONMENT, about, encoder_digest, where

__all__ = ["ENVIRONMENT", "LONGEST", "TextEncoder", "about", "encoder_digest", "where"]

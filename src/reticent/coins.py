"""Randomness by address: every draw is a function of (key, stream, counters) and of nothing else.

A draw does not depend on which draws were made before it. So a run killed at release 700 and
resumed makes release 701 with the very coins it would have had; two runs on neighbouring data sets
can be given the same coins; and a process that holds a part of the records draws that part's coins.

The key is a secret. Whoever knows it can subtract the noise, so it never goes into `run.json`;
checkpoints that carry it are readable by their owner alone.

On the CPU the generator is NumPy's Philox with a 128-bit key (PyTorch's CPU generator keeps only 32
bits of a seed: two of 100,000 draws would share their noise more often than not). On CUDA it is
PyTorch's Philox with a 64-bit key. Neither is a certified cryptographic generator.
"""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
import torch

from reticent.errors import OptionError

KEY_BYTES = 32


class Coins:
    """A secret key and the draws made from it.

    Example:
        >>> coins = Coins.from_seed(7)
        >>> a = coins.normal((2,), "noise", 3)
        >>> _ = coins.uniform((5,), "sampling", 9)
        >>> torch.equal(a, coins.normal((2,), "noise", 3))
        True
    """

    def __init__(self, key: bytes, *, seeded: bool = False) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"key: {len(key)} bytes, must be {KEY_BYTES}")
        self._key = key
        self.seeded = seeded
        self._claimed = False
        # one per device, seeded anew for every draw: making one takes longer than drawing
        self._generators: dict[torch.device, torch.Generator] = {}

    @classmethod
    def fresh(cls) -> Coins:
        """Coins nobody can predict: the key comes from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> Coins:
        """Coins that can be had again from `seed`; the guarantee holds while the seed is secret."""
        return cls(
            hashlib.blake2b(str(int(seed)).encode(), digest_size=KEY_BYTES).digest(), seeded=True
        )

    def claim(self) -> Coins:
        """Take these coins for one run; a second run with the same ones would share its noise."""
        if self._claimed and not self.seeded:
            raise OptionError("coins", self, "belong to another run already; make fresh ones")
        self._claimed = True
        return self

    def secret(self) -> bytes:
        """The key, for a checkpoint; never for a report."""
        return self._key

    def __repr__(self) -> str:
        return "Coins(secret)"

    def _derive(self, stream: str, counters: tuple[int, ...], size: int) -> int:
        address = "\0".join([stream, *(str(int(c)) for c in counters)])
        digest = hashlib.blake2b(address.encode(), key=self._key, digest_size=size).digest()
        return int.from_bytes(digest, "little")

    def _numpy(self, stream: str, counters: tuple[int, ...]) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=self._derive(stream, counters, 16)))

    def _torch(
        self, stream: str, counters: tuple[int, ...], device: torch.device
    ) -> torch.Generator:
        generator = self._generators.get(device)
        if generator is None:
            generator = self._generators[device] = torch.Generator(device)
        # manual_seed takes a signed 64-bit integer, and starts the generator over
        return generator.manual_seed(self._derive(stream, counters, 8) - 2**63)

    def normal(
        self,
        shape: tuple[int, ...],
        stream: str,
        *counters: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """Standard normal draws at address (stream, counters).

        In double precision they reach 12 standard deviations: NumPy's end at 12.2. Those of a GPU
        end at √(2·53·ln 2) = 8.6, so that two of them are added up, which ends at 12.1.
        """
        device = torch.device(device)
        if device.type == "cpu":
            kind = np.float64 if dtype == torch.float64 else np.float32
            drawn = self._numpy(stream, counters).standard_normal(shape, dtype=kind)
            return torch.from_numpy(np.asarray(drawn)).to(dtype)
        generator = self._torch(stream, counters, device)
        found = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        if dtype == torch.float64:
            found += torch.randn(shape, generator=generator, device=device, dtype=dtype)
            found *= 0.5**0.5
        return found

    def uniform(
        self,
        shape: tuple[int, ...],
        stream: str,
        *counters: int,
        device: torch.device | str = "cpu",
    ) -> torch.Tensor:
        """Draws k / 2**53 with k uniform on 0 .. 2**53 - 1, as float64."""
        out = torch.empty(shape, dtype=torch.float64, device=device)
        self.uniform_into(out, stream, *counters)
        return out

    def uniform_into(self, out: torch.Tensor, stream: str, *counters: int) -> None:
        """The same draws, written over a contiguous float64 tensor."""
        if out.device.type == "cpu":
            self._numpy(stream, counters).random(out=out.numpy())
        else:
            out.uniform_(generator=self._torch(stream, counters, out.device))

    def seed(self, stream: str, *counters: int) -> int:
        """A 63-bit seed at address (stream, counters), for code that wants an integer."""
        return self._derive(stream, counters, 8) >> 1

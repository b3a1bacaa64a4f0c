"""Randomness that a seed repeats. Never fit for secrets."""

from __future__ import annotations

from random import Random as Generator

from headrace.runtime.interfaces import Random


class SimulatedRandom(Random):
    def __init__(self, seed: int | str) -> None:
        # Strings are seeded through SHA-512, not through hash(): PYTHONHASHSEED has no part in it.
        self._seed = seed
        self._generator = Generator(seed)

    def derive(self, purpose: str) -> SimulatedRandom:
        """A generator of its own, so that draws for one purpose do not shift those for another."""
        return SimulatedRandom(f"{self._seed}/{purpose}")

    def bytes(self, length: int) -> bytes:
        return self._generator.randbytes(length)

    def below(self, limit: int) -> int:
        return self._generator.randrange(limit)

    def uniform(self) -> float:
        return self._generator.random()

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._generator.random()

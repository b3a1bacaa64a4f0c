"""Headers that differ from an earlier one in nothing but their numbers.

A peer sends the same kind of header again and again: the same tables at the same places, with other
scalars in them. The first of its length is read as any header is, with every check; then it is
kept as a template: where its scalars are, and the bytes between them, which say all the rest. A
header with the same bytes between them means the same tables, so its scalars are taken out in one
step. Any other header is read the long way. `benchmarks/hot_steps.py` has the figures.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

HEADER_BYTES_MAX = 512  # larger ones are rare, and take long anyway
TEMPLATES_MAX = 64  # per class; lengths are the peer's choice
LEARNED_MAX = 1024  # per class: a peer that changes its mind all the time is not followed

Make: TypeAlias = Callable[..., Any]


class Scalar(NamedTuple):
    position: int
    letter: str  # of the struct module
    size: int


class TableTrace(NamedTuple):
    """What a reader saw of one table: the class, and for each argument where it came from."""

    make: Make
    arguments: list[Any]  # Scalar, Constant, TableTrace, or a list of TableTraces


class Constant(NamedTuple):
    value: Any


class HeaderTemplate:
    """How to make a message of a header that looks like the one it was learned from."""

    def __init__(self, root: TableTrace, structure: list[tuple[int, int]], data: bytes) -> None:
        """`structure` is where something else than scalars was read, as (start, end).

        ValueError when a scalar shares bytes with anything: then the rest would depend on it.
        """
        self._constants: list[Any] = []
        scalars = sorted(set(_scalars(root)))
        _check_apart(scalars, structure)
        code, fixed, slots = "<", [], {}
        position = index = 0
        for scalar in scalars:
            gap = scalar.position - position
            if gap:
                code += f"{gap}s"
                fixed.append(index)
                index += 1
            code += scalar.letter
            slots[scalar] = index
            index += 1
            position = scalar.position + scalar.size
        if position < len(data):
            code += f"{len(data) - position}s"
            fixed.append(index)
            index += 1
        self._inline = struct.Struct(code)
        self._between = _getter(fixed)
        self._fixed = self._between(self._inline.unpack(data))
        self._steps: list[tuple[Make | None, Callable[[list[Any]], tuple[Any, ...]]]] = []
        constants = sum(1 for _ in _constants(root))
        self._next = index + constants
        self._plan(root, slots, index)

    def read(self, data: bytes) -> Any:
        """The message, or None when the header does not fit. `data` is as long as the template."""
        found = self._inline.unpack(data)
        if self._between(found) != self._fixed:
            return None
        values = [*found, *self._constants]
        for make, arguments in self._steps:
            values.append(make(*arguments(values)) if make is not None else arguments(values))
        return values[-1]

    def _plan(self, table: TableTrace, slots: dict[Scalar, int], first: int) -> int:
        """Steps that make the table; the index of what they make."""
        arguments: list[int] = []
        for each in table.arguments:
            if isinstance(each, Scalar):
                arguments.append(slots[each])
            elif isinstance(each, Constant):
                arguments.append(first + len(self._constants))
                self._constants.append(each.value)
            elif isinstance(each, TableTrace):
                arguments.append(self._plan(each, slots, first))
            else:
                arguments.append(self._add(None, [self._plan(one, slots, first) for one in each]))
        return self._add(table.make, arguments)

    def _add(self, make: Make | None, arguments: list[int]) -> int:
        self._steps.append((make, _getter(arguments)))
        self._next += 1
        return self._next - 1


def _check_apart(scalars: list[Scalar], structure: list[tuple[int, int]]) -> None:
    taken = bytearray(HEADER_BYTES_MAX)
    for start, end in structure:
        taken[start:end] = b"\1" * (end - start)
    for position, _, size in scalars:
        if any(taken[position : position + size]):
            raise ValueError("parts of the header overlap")
        taken[position : position + size] = b"\1" * size


def _getter(indexes: list[int]) -> Callable[[Any], tuple[Any, ...]]:
    if not indexes:
        return lambda _: ()
    get = itemgetter(*indexes)
    return get if len(indexes) > 1 else lambda values: (get(values),)


def _scalars(table: TableTrace) -> list[Scalar]:
    return [leaf for leaf in _leaves(table) if isinstance(leaf, Scalar)]


def _constants(table: TableTrace) -> list[Constant]:
    return [leaf for leaf in _leaves(table) if isinstance(leaf, Constant)]


def _leaves(table: TableTrace) -> list[Scalar | Constant]:
    found: list[Scalar | Constant] = []
    for each in table.arguments:
        if isinstance(each, Scalar | Constant):
            found.append(each)
        else:
            for one in [each] if isinstance(each, TableTrace) else each:
                found += _leaves(one)
    return found

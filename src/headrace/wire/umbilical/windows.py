"""Window ids: a common grid of numbered time slices.

    id = base seconds << 32 | count        count in 0..15999, in the low 14 bits

The count starts again after 16000 windows and the base moves on by 16000 widths, so ids grow
strictly but are not consecutive: never compute `id + 1`, ask `next`. -1 is "no window" and is
written ffffffffffffffff, as every id is written in lower-case hex.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import InvalidArgumentError
from headrace.ids import WindowId

NO_WINDOW = WindowId(-1)
WINDOWS_PER_BASE = 16_000
_COUNT_MASK = 0x3FFF
_BASE_SHIFT = 32
_ID_MASK = (1 << 64) - 1


def format_window(window: int) -> str:
    return f"{window & _ID_MASK:x}"


def parse_window(text: str) -> WindowId:
    try:
        value = int(text, 16)
    except ValueError:
        raise InvalidArgumentError("not a window id", text=text) from None
    if not 0 <= value <= _ID_MASK:
        raise InvalidArgumentError("not a window id", text=text)
    return WindowId(value - (1 << 64) if value >> 63 else value)


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """`start_ms` is a whole second and the same for an application's whole life: 16000 widths are
    whole seconds too, so every base is exact."""

    start_ms: int
    width_ms: int

    def __post_init__(self) -> None:
        if self.width_ms <= 0 or self.start_ms % 1000 or self.start_ms < 0:
            raise InvalidArgumentError(
                "no such window grid", start_ms=self.start_ms, width_ms=self.width_ms
            )

    def window_at(self, time_ms: int) -> WindowId:
        """The window that holds `time_ms`; the first, should the clock have gone back."""
        return self._id((max(time_ms, self.start_ms) - self.start_ms) // self.width_ms)

    def millis(self, window: WindowId) -> int:
        """When the window begins."""
        return self.start_ms + self.ordinal(window) * self.width_ms

    def next(self, window: WindowId) -> WindowId:
        return self._id(self.ordinal(window) + 1)

    def previous(self, window: WindowId) -> WindowId:
        return self._id(self.ordinal(window) - 1)

    def ordinal(self, window: WindowId) -> int:
        """Position on the grid, from 0; -1 for "no window". Differences of it count windows."""
        if window == NO_WINDOW:
            return -1
        span_ms = self.width_ms * WINDOWS_PER_BASE
        base_ms = (window >> _BASE_SHIFT) * 1000
        count = window & _COUNT_MASK
        bases, rest = divmod(base_ms - self.start_ms, span_ms)
        if bases < 0 or rest or count >= WINDOWS_PER_BASE or window & (0xFFFFFFFF ^ _COUNT_MASK):
            raise InvalidArgumentError("window is not on this grid", window=format_window(window))
        return bases * WINDOWS_PER_BASE + count

    def boundary(self, window: WindowId, count: int) -> WindowId:
        """The last window of the application window, of so many windows, that holds this one."""
        ordinal = self.ordinal(window)
        return self._id(ordinal - ordinal % count + count - 1)

    def last_boundary(self, window: WindowId, count: int) -> WindowId:
        """The last window up to this one that ends an application window."""
        passed = self.ordinal(window) + 1
        return self._id(passed - passed % count - 1)

    def _id(self, ordinal: int) -> WindowId:
        if ordinal < 0:
            return NO_WINDOW
        bases, count = divmod(ordinal, WINDOWS_PER_BASE)
        base_ms = self.start_ms + bases * WINDOWS_PER_BASE * self.width_ms
        return WindowId((base_ms // 1000) << _BASE_SHIFT | count)

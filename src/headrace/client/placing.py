"""Which partition each row of an Arrow batch goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.errors import InvalidArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Homes:
    """The partitions that keys belong to, as any Iggy client works them out."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._ask = count
        self._count = 0

    def of(self, keys: pa.Array) -> NDArray[np.int64]:
        """XXH32 of the key, modulo the partitions, once per distinct key; -1 for no key."""
        if not self._count:
            self._count = self._ask()
        if self._count < 1:
            raise InvalidArgumentError("the topic has no partitions")
        encoded = pc.dictionary_encode(keys.cast(pa.binary()))
        homes = [
            xxhash.xxh32_intdigest(key) % self._count if key else -1
            for key in encoded.dictionary.to_pylist()
        ]
        table = np.array([*homes, -1], np.int64)
        indices: NDArray[np.int32] = encoded.indices.fill_null(len(homes)).to_numpy()
        return table[indices]


def by_partition(
    batch: pa.RecordBatch, homes: Homes
) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """Rows by the partition they belong to; None leaves the choice to the server."""
    names = batch.schema.names
    if "key" not in names and "partition" not in names:
        yield None, batch
        return
    chosen = np.full(batch.num_rows, -1, np.int64)
    if "key" in names and batch.column("key").null_count < batch.num_rows:
        chosen = homes.of(batch.column("key"))
    if "partition" in names:
        column = batch.column("partition").cast(pa.int64())
        stated = column.fill_null(-1).to_numpy(zero_copy_only=False)
        chosen = np.where(stated >= 0, stated, chosen)
    for partition in np.unique(chosen).tolist():
        rows = chosen == partition
        part = batch if rows.all() else batch.filter(pa.array(rows))
        yield (None if partition < 0 else int(partition)), part

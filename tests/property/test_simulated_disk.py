"""The simulated disk against a byte-by-byte model of what may be found after a power cut."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tests.simulator.disk import PowerCut, SimulatedDisk
from tests.simulator.random import SimulatedRandom

FILE_BYTES_MAX = 3 * 4096

positions = st.integers(0, FILE_BYTES_MAX)
writes = st.tuples(st.just("write"), positions, st.integers(1, 5000), st.integers(1, 255))
truncates = st.tuples(st.just("truncate"), positions)
syncs = st.tuples(st.just("sync"))
steps = st.lists(st.one_of(writes, truncates, syncs), max_size=12)


@dataclass
class Model:
    """What a reader sees, and every value each byte and the size had since the last sync."""

    content: bytearray = field(default_factory=bytearray)
    values: list[set[int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=lambda: [0])

    def write(self, position: int, data: bytes) -> None:
        self._grow(position)
        self.content[position : position + len(data)] = data
        self._changed()

    def truncate(self, length: int) -> None:
        self._grow(length)
        del self.content[length:]
        self._changed()

    def sync(self) -> None:
        self.values = [{value} for value in self.content]
        self.sizes = [len(self.content)]

    def _grow(self, length: int) -> None:
        self.content.extend(bytes(max(0, length - len(self.content))))

    def _changed(self) -> None:
        self.sizes.append(len(self.content))
        # Where nothing was durable a hole may be found, and so may what was cut off.
        while len(self.values) < len(self.content):
            self.values.append({0})
        for index, value in enumerate(self.content):
            self.values[index].add(value)
        for index in range(len(self.content), len(self.values)):
            self.values[index].add(0)

    def check(self, found: bytes) -> None:
        assert min(self.sizes) <= len(found) <= max(self.sizes)
        for index, value in enumerate(found):
            assert value in self.values[index], index


@given(steps=steps, seed=st.integers(0, 2**32))
def test_every_byte_found_was_there_since_the_last_sync(
    steps: list[tuple[str, int, int, int]], seed: int
) -> None:
    disk = SimulatedDisk(SimulatedRandom(seed))
    file = disk.open("/a", create=True)
    disk.sync_folder("/")
    model = Model()
    for name, *arguments in steps:
        if name == "write":
            position, length, value = arguments
            file.pwrite([bytes([value]) * length], position)
            model.write(position, bytes([value]) * length)
        elif name == "truncate":
            file.truncate(arguments[0])
            model.truncate(arguments[0])
        else:
            file.sync_data()
            model.sync()
        assert file.pread(1 << 20, 0) == model.content
        assert file.size() == len(model.content)
    disk.power_cut()
    found = disk.read("/a")
    model.check(found)
    # What is there after a cut is durable: the next cut, with nothing in between, changes nothing.
    disk.power_cut()
    assert disk.read("/a") == found


@given(
    records=st.lists(st.integers(1, 9000), min_size=1, max_size=8),
    cut=st.integers(1, 40_000),
    seed=st.integers(0, 2**32),
)
def test_records_synced_before_a_cut_at_any_byte_survive_it(
    records: list[int], cut: int, seed: int
) -> None:
    disk = SimulatedDisk(SimulatedRandom(seed))
    file = disk.open("/a", create=True)
    disk.sync_folder("/")
    disk.cut_after(cut)
    acknowledged = bytearray()
    try:
        for number, length in enumerate(records, 1):
            file.pwrite([bytes([number]) * length], len(acknowledged))
            file.sync_data()
            acknowledged += bytes([number]) * length
    except PowerCut:
        assert disk.bytes_written == cut
    else:
        assert disk.bytes_written == sum(records) < cut
    disk.power_cut()
    assert disk.read("/a").startswith(acknowledged)


NAMES = ("/a", "/b", "/x/a", "/x/b")
name_steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["create", "remove", "write_atomic"]), st.sampled_from(NAMES)),
        st.tuples(st.just("sync_folder"), st.sampled_from(["/", "/x"])),
        st.tuples(st.just("remove_tree"), st.just("/x")),
    ),
    max_size=15,
)


@dataclass
class NameModel:
    """Which names are visible, and which may be found or missing after a power cut."""

    visible: set[str] = field(default_factory=set)
    possible: dict[str, set[bool]] = field(default_factory=lambda: {n: {False} for n in NAMES})

    def change(self, name: str, *, exists: bool) -> None:
        (self.visible.add if exists else self.visible.discard)(name)
        self.possible[name].add(exists)

    def settle(self, folder: str) -> None:
        for name in NAMES:
            if name.startswith(folder):
                self.possible[name] = {name in self.visible}


@given(steps=name_steps, seed=st.integers(0, 2**32))
def test_every_name_found_was_there_since_its_folder_was_synced(
    steps: list[tuple[str, str]], seed: int
) -> None:
    disk = SimulatedDisk(SimulatedRandom(seed))
    disk.make_folder("/x")
    model = NameModel()
    for step, path in steps:
        if not disk.exists("/x") and path.startswith("/x"):
            continue
        if step == "create":
            disk.open(path, create=True)
            model.change(path, exists=True)
        elif step == "write_atomic":
            disk.write_atomic(path, b"whole")
            model.change(path, exists=True)
            model.settle(path)
        elif step == "remove":
            disk.remove(path)
            model.change(path, exists=False)
        elif step == "remove_tree":
            disk.remove_tree(path)
            model.change("/x/a", exists=False)
            model.change("/x/b", exists=False)
        else:
            disk.sync_folder(path)
            # The root's names do not cover those in /x, unless /x itself is gone.
            for folder in {"/": ("/a", "/b"), "/x": ("/x/",)}[path]:
                model.settle(folder)
            if not disk.exists("/x"):
                model.settle("/x/")
        assert {name for name in NAMES if disk.exists(name)} == model.visible
    disk.power_cut()
    for name, allowed in model.possible.items():
        assert disk.exists(name) in allowed, name

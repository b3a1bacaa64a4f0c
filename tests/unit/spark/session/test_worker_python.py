"""Which Python Spark's workers get, and where it has its pyspark from."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from headrace.spark.session.session import worker_python

HOME = Path(pyspark.__file__).parent


def printed(python: str, program: str, *path: str) -> list[str]:
    done = subprocess.run(
        [python, "-c", program, "an argument", "*"],
        env={**os.environ, "PYTHONPATH": ":".join(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache of mine"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return worker_python()


def test_workers_take_the_compiled_modules(python: str, tmp_path: Path) -> None:
    zips = sorted(map(str, (HOME / "python/lib").glob("*.zip")))
    assert len(zips) == 2, "Spark's own and that of Py4J"
    program = "import py4j, pyspark\nprint(py4j.__file__, pyspark.__file__, sep='\\n')"
    assert any(".zip" in found for found in printed(sys.executable, program, *zips))
    py4j, found = printed(python, program, *zips, str(tmp_path))
    assert Path(found).samefile(HOME / "__init__.py")
    assert ".zip" not in py4j


def test_the_rest_of_the_path_and_the_arguments_stay(python: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    others = [str(tmp_path / "with a space"), "/x/mine.zip", f"{tmp_path}/*"]
    shows = "print(os.environ['PYTHONPATH'], sys.executable, *sys.argv, sep='\\n')"
    shown = printed(python, f"import os, sys\n{shows}", "/spark/python/lib/pyspark.zip", *others)
    assert shown == [":".join(others), sys.executable, "-c", "an argument", "*"]


def test_a_spark_of_ones_own_keeps_its_python_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert worker_python() == sys.executable

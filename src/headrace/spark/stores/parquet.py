"""Parquet files, a folder per window that appears whole or not at all.

    <path>/_staging/<window>.<query>.<attempt>/     being written; readers pass over it
    <path>/headrace_window=<window>.<query>/        committed by the rename of the folder above

A window that has its folder is not written again, so a batch that is run again after a crash adds
nothing. The name makes `headrace_window` a column for readers that discover partitions. This needs
a file system that renames a folder in one step; object stores do not.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.errors import ConfigError
from headrace.spark.stores.columns import cast, fit, refuse_twins

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMN = "headrace_window"
STAGING = "_staging"
ATOMIC = ("", "file", "hdfs", "viewfs")
LAST_WINDOWS = 20  # that are asked what columns there are

_casts: dict[tuple[str, str], dict[str, str]] = {}


def check_path(path: str) -> None:
    scheme = urlsplit(path).scheme
    if scheme not in ATOMIC:
        raise ConfigError(
            f"{scheme}: does not rename a folder in one step, so a window could be half there; "
            "use Delta for an exactly-once table on an object store"
        )


def write_window(frame: DataFrame, *, path: str, query: str, window: str) -> int:
    """Write the frame as the query's window unless that is there; -1: how many rows is unknown."""
    _refuse_columns(frame, path)
    files = _files(frame.sparkSession, path)
    name = f"{window}.{query}"
    target = f"{path.rstrip('/')}/{COLUMN}={name}"
    if files.exists(target):
        return 0
    staging = f"{path.rstrip('/')}/{STAGING}/{name}.{uuid.uuid4().hex}"
    files.clear(f"{path.rstrip('/')}/{STAGING}", f"{name}.")
    _fitted(frame, path, files).write.parquet(staging)
    files.commit(staging, target)
    return -1


def _refuse_columns(frame: DataFrame, path: str) -> None:
    refuse_twins(frame.columns, f"Parquet files in {path}")
    for name in frame.columns:
        if name.lower() == COLUMN:
            raise ConfigError(f"column {name}: readers find the window's name under it; rename it")


def _fitted(frame: DataFrame, path: str, files: _LocalFiles | _HadoopFiles) -> DataFrame:
    """As the last window has its columns: files of two types under one name cannot be read.

    Looked up once in a process for every form that the rows have.
    """
    form = (path, frame.schema.json())
    if form not in _casts:
        _casts[form] = fit(
            frame.schema.jsonValue()["fields"],
            _last_fields(frame.sparkSession, path, files),
            f"Parquet files in {path}",
            growing=True,
        )
    return cast(frame, _casts[form])


def _last_fields(
    spark: SparkSession, path: str, files: _LocalFiles | _HadoopFiles
) -> list[dict[str, Any]]:
    from pyspark.errors import AnalysisException

    names = sorted(name for name in files.names(path) if name.startswith(f"{COLUMN}="))
    for name in reversed(names[-LAST_WINDOWS:]):
        try:
            fields = spark.read.parquet(f"{path.rstrip('/')}/{name}").schema.jsonValue()["fields"]
            return list(fields)
        except AnalysisException:
            continue  # a window without rows has no file that could tell
    return []


def _files(spark: SparkSession, path: str) -> _LocalFiles | _HadoopFiles:
    default = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    local = urlsplit(path).scheme == "file" or (
        not urlsplit(path).scheme and urlsplit(default).scheme == "file"
    )
    return _LocalFiles() if local else _HadoopFiles(spark, path)


class _LocalFiles:
    def names(self, folder: str) -> list[str]:
        return [each.name for each in _local(folder).iterdir()] if self.exists(folder) else []

    def exists(self, path: str) -> bool:
        return _local(path).exists()

    def clear(self, folder: str, prefix: str) -> None:
        """What attempts that were cut off have left behind."""
        if _local(folder).is_dir():
            for each in _local(folder).iterdir():
                if each.name.startswith(prefix):
                    shutil.rmtree(each, ignore_errors=True)

    def commit(self, staging: str, target: str) -> None:
        source = _local(staging)
        for each in (*source.iterdir(), source):  # Spark writes, it does not sync
            _sync(each)
        try:
            source.rename(_local(target))
        except OSError:
            if not self.exists(target):
                raise
            shutil.rmtree(source)  # somebody else committed this window: theirs is the one
        _sync(_local(target).parent)


class _HadoopFiles:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        file_system = self._path(path).getFileSystem(configuration)
        uri = file_system.makeQualified(self._path(path)).toUri()
        self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            uri, configuration
        )
        self._gateway: Any = spark.sparkContext._gateway

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def exists(self, path: str) -> bool:
        return bool(self._context.util().exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        if not self.exists(folder):
            return []
        found = self._context.util().listStatus(self._path(folder))
        return [str(status.getPath().getName()) for status in found]

    def clear(self, folder: str, prefix: str) -> None:
        if self.exists(folder):
            for status in self._context.util().listStatus(self._path(folder)):
                if status.getPath().getName().startswith(prefix):
                    self._context.delete(status.getPath(), True)

    def commit(self, staging: str, target: str) -> None:
        options = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        none = self._gateway.new_array(options, 0)  # refused when the target is there
        self._context.rename(self._path(staging), self._path(target), none)


def _local(path: str) -> Path:
    return Path(urlsplit(path).path if urlsplit(path).scheme == "file" else path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""headrace spark-conf"""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import AsJson
from headrace.cli.output import print_json


def spark_conf(
    arguments: Annotated[
        bool, typer.Option("--arguments", help="Print --conf arguments of spark-submit.")
    ] = False,
    environment: Annotated[
        bool,
        typer.Option("--environment", help="Print exports for a shell: which Java and Python."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the Spark settings that pipelines run with, as lines of a spark-defaults.conf."""
    from headrace.errors import ConfigError
    from headrace.spark.session import settings

    if arguments and environment:
        raise ConfigError("--arguments and --environment are two ways to print; choose one")
    if as_json:
        print_json(settings.environment() if environment else dict(settings.RECOMMENDED))
    elif environment:
        print(settings.format_environment())
    elif arguments:
        print(settings.format_arguments())
    else:
        print(settings.format_properties())

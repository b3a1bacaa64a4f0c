"""headrace spark-conf"""

from __future__ import annotations

from headrace.cli.declare import command, json_option, option
from headrace.cli.output import print_json


@command("spark-conf")
@option("--arguments", is_flag=True, help="Print --conf arguments of spark-submit.")
@option("--environment", is_flag=True, help="Print exports for a shell: which Java and Python.")
@json_option
def spark_conf(arguments: bool, environment: bool, as_json: bool) -> None:
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

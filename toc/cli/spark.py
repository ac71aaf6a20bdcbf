"""`toc spark pack`: what executors of a Spark cluster need, and the commands that use it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from toc.cli.common_options import answering_command
from toc.cli.output import Output
from toc.reconcile.executor_archive import UNPACKED, ExecutorArchive, write_executor_archive


@answering_command
def pack_for_executors(
    output: Output,
    *,
    directory: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the archive is written.")
    ] = Path("spark"),
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark's master, for the printed commands.")
    ] = "spark://HOST:7077",
) -> None:
    """Write an archive of the packages that Spark's executors need, and print the commands that use it.

    The archive has toc and what it requires, of this Python environment, and neither settings nor secrets.
    Executors need Python of the same version, and network access to the databases and Redis.
    """
    packed = write_executor_archive(directory)
    commands = _commands(packed, master)
    size = packed.archive.stat().st_size
    output.print_value(
        {"archive": str(packed.archive), "bytes": size, "packages": packed.packages, **commands},
        "\n".join(
            [
                f"{packed.archive}: {len(packed.packages)} packages, {size / 2**20:.0f} MiB",
                "",
                "With spark-submit:",
                "",
                f"    {commands['spark_submit']}",
                "",
                "With toc itself:",
                "",
                f"    {commands['toc']}",
                "",
                "and these settings in toc.toml:",
                "",
                *(f"    {line}" for line in commands["settings"].splitlines()),
                "",
                "spark.authenticate protects the passwords on their way to executors (docs/how-to/spark.md).",
            ]
        ),
    )


def _commands(packed: ExecutorArchive, master: str) -> dict[str, str]:
    executor_python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    properties = {
        "spark.archives": f"{packed.archive.absolute()}#{UNPACKED}",
        "spark.executorEnv.PYTHONPATH": UNPACKED,
        "spark.authenticate": "true",
    }
    options = " ".join(
        f"--conf {shlex.quote(f'{name}={value}')}" for name, value in properties.items()
    )
    lines = [f'"{name}" = "{value}"' for name, value in properties.items()]
    return {
        "spark_submit": f"PYSPARK_DRIVER_PYTHON={shlex.quote(sys.executable)} "
        f"PYSPARK_PYTHON={executor_python} spark-submit --master {shlex.quote(master)} {options} "
        f"{shlex.quote(str(packed.script))}",
        "toc": f"toc reconcile --master {shlex.quote(master)}",
        "settings": "\n".join(
            ["[reconcile.spark]", *lines, f'"spark.pyspark.python" = "{executor_python}"']
        ),
    }

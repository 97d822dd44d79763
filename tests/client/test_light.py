"""What a caller loads, and what it does without."""

from __future__ import annotations

import subprocess
import sys

SERVER = ("litestar", "asyncpg", "redis", "uvicorn", "uvloop", "lateack_core", "lateack_sql")
# httpx looks for these two by itself, for its own command line.
COMMAND_LINE = ("click", "rich")


def loaded(code: str, *, without: tuple[str, ...] = ()) -> set[str]:
    """The modules that are loaded after `code`, in an interpreter that lacks those of `without`."""
    script = (
        f"import sys\nsys.modules.update(dict.fromkeys({without!r}))\n{code}\n"
        "print(*(name for name, module in sys.modules.items() if module))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    return set(run.stdout.split())


def test_the_client_is_light() -> None:
    """The base install is enough for the client: none of the server's libraries is asked for."""
    code = "import lateack, lateack.client; lateack.SyncClient().close()"
    assert not loaded(code) & set(SERVER)
    loaded(code, without=(*SERVER, *COMMAND_LINE))


def test_task_authors_load_no_http() -> None:
    """Declaring tasks needs neither httpx nor websockets."""
    modules = loaded("import lateack; lateack.App('x')")
    assert not modules & {"httpx", "websockets", *SERVER, *COMMAND_LINE}

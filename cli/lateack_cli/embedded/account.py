"""Who PostgreSQL runs as when lateack is started by root, which PostgreSQL refuses.

No user is created, and no folder above ours changes its mode. The server becomes the owner of the
data directory, or `nobody` when root owns it, and only its own data and its own socket folder are
given to it. It is never asked to walk to a path that this user may not walk to (everything below
/root): its data is reached through the working directory, which root entered before stepping down,
and its programs are laid out where they can be reached.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from lateack_cli.embedded.errors import EmbeddedError


@dataclass(frozen=True)
class Account:
    """An unprivileged user to step down to."""

    uid: int
    gid: int


def account_for(data_dir: Path, cluster: Path) -> Account | None:
    """The user for PostgreSQL's files in `cluster`, which may not exist yet; None: ourselves.

    Raises EmbeddedError when the machine has no fitting user.
    """
    if os.geteuid() != 0:
        return None
    if cluster.exists() and (owner := cluster.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    # A new cluster is for a user with a name, on which initdb insists.
    uid = data_dir.stat().st_uid
    entry = (_by_id(uid) if uid != 0 else None) or _nobody()
    if entry is None:
        raise EmbeddedError(
            "PostgreSQL refuses to run as root, and this machine has no user `nobody` to run it "
            "as. Start lateack as an ordinary user, or set DATABASE_URL to a server of yours."
        )
    return Account(entry.pw_uid, entry.pw_gid)


def own_name() -> str:
    """Our user name. Raises EmbeddedError when our user id has none."""
    entry = _by_id(os.geteuid())
    if entry is None:
        raise EmbeddedError(
            f"PostgreSQL needs users that have a name, and user id {os.geteuid()} has none on this "
            "machine. Give it one in /etc/passwd, or set DATABASE_URL to a server of yours."
        )
    return entry.pw_name


def may_enter(account: Account | None, path: Path) -> bool:
    """Whether `account` may walk to `path` and use it, as far as file modes tell."""
    if account is None:
        return True
    real = path.resolve()
    return all(_search_bit(account, step) for step in (real, *real.parents))


def give(account: Account | None, path: Path) -> None:
    """Hand `path` to `account`, not what is below it. Raises EmbeddedError when that fails."""
    if account is None:
        return
    try:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
    except OSError as error:
        raise EmbeddedError(
            f"PostgreSQL refuses to run as root, and {path} cannot be given to user {account.uid}: "
            f"{error.strerror}. Choose a data directory on a local file system, or start lateack "
            "as an ordinary user."
        ) from error


def give_tree(account: Account | None, top: Path) -> None:
    """Hand over `top` and all below it when root has it: a copy made by root is root's."""
    if account is None or top.stat().st_uid != 0:
        return
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            give(account, Path(folder, name))
    # Last, so that a hand-over that was cut short is done again.
    give(account, top)


def _search_bit(account: Account, step: Path) -> bool:
    facts = step.stat()
    if facts.st_uid == account.uid:
        return bool(facts.st_mode & 0o100)
    if facts.st_gid == account.gid:
        return bool(facts.st_mode & 0o010)
    return bool(facts.st_mode & 0o001)


def _by_id(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def _nobody() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        return None

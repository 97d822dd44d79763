"""Become another program that cannot outlive the process that started it.

    python -I -S tether.py PARENT_PID DEATH_SIGNAL UID GID PROGRAM ARGUMENT...

Run by path, never imported: it stands between fork and exec of a server, where the launcher's own
Python must not run (its threads and locks are gone there). UID and GID are `-` to stay who we are.
Exit status 126: PROGRAM cannot be run.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def become(parent: int, death_signal: int, uid: str, gid: str, command: list[str]) -> None:
    """Replace this process by `command`, as user `uid`, tied (on Linux) to the life of `parent`."""
    if uid != "-":
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
    if sys.platform == "linux":
        # After the change of user, which clears it. The kernel keeps it across exec.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:
        # The launcher died before the tether was tied: nobody would ever send the signal.
        sys.exit(1)
    os.umask(0o077)
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(126)


if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])

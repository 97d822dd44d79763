"""What tasks, queues, tenants and keys may be called.

Names travel in keys, URLs, logs and metrics, so the rule is narrow and the same everywhere:
look-alike letters, blanks and separators are refused rather than folded (PAY-07).
"""

from __future__ import annotations

import re

_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TASK = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*){0,15}")
# Celery's beat entries are often called in words: "send reports (daily)".
_SCHEDULE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 _.:()@+,=-]{0,126}[A-Za-z0-9_.:()@+,=-])?")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}")

MAX_TASK = 200
MAX_KEY = 255


def queue_problem(name: str) -> str | None:
    """Why `name` cannot be a queue's name, or None when it can."""
    if _QUEUE.fullmatch(name):
        return None
    return (
        "a queue's name has 1 to 64 of the characters A-Z a-z 0-9 _ . - and begins with a letter "
        "or digit"
    )


def task_problem(name: str) -> str | None:
    """Why `name` cannot be a task's name, or None when it can."""
    if len(name) <= MAX_TASK and _TASK.fullmatch(name):
        return None
    return f"a task's name is a dotted name such as reports.build, {MAX_TASK} characters at most"


def tenant_problem(name: str) -> str | None:
    """Why `name` cannot be a tenant's name, or None when it can."""
    if _TENANT.fullmatch(name):
        return None
    return (
        "a tenant's name has 1 to 128 of the characters A-Z a-z 0-9 _ . : @ - and begins with a "
        "letter or digit"
    )


def schedule_problem(name: str) -> str | None:
    """Why `name` cannot be a schedule's name, or None when it can."""
    if _SCHEDULE.fullmatch(name):
        return None
    return (
        "a schedule's name has 1 to 128 of the characters A-Z a-z 0-9 _ . : ( ) @ + , = - and "
        "blanks inside, and begins with a letter or digit"
    )


def key_problem(key: str) -> str | None:
    """Why `key` cannot be an idempotency key, or None when it can. Keys are compared exactly."""
    if not key:
        return "an idempotency key must not be empty"
    if len(key) > MAX_KEY:
        return f"an idempotency key has {MAX_KEY} characters at most, this one has {len(key)}"
    if not key.isprintable() or key != key.strip():
        return "an idempotency key has printable characters only, and no blank at either end"
    return None

"""Whose job runs here: the tenant for which a task's own submissions are made."""

from __future__ import annotations

from contextvars import ContextVar

_tenant: ContextVar[str] = ContextVar("lateack_tenant", default="default")


def enter_tenant(tenant_id: str) -> None:
    """Called at the start of each body, in the context of its own asyncio task."""
    _tenant.set(tenant_id)


def current_tenant() -> str:
    """The tenant of the job whose body calls."""
    return _tenant.get()

"""What goes wrong with servers of our own."""

from __future__ import annotations


class EmbeddedError(Exception):
    """A server of ours cannot run here; the text says why and what to do about it."""

"""Where the demo keeps things, and by which key a document is known."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

LIBRARY = Path(__file__).parent / "library"

PIPELINE_VERSION = "documents-1"
"""Raise it when the steps give other results: every document is then processed anew."""

T = TypeVar("T")


def data_folder() -> Path:
    """Everything that a run leaves behind; DEMO_DATA_DIR moves it."""
    return Path(os.environ.get("DEMO_DATA_DIR") or Path(__file__).parent / ".data").absolute()


def index_of(tenant: str) -> Path:
    """The index of one tenant: a file of its own, so that no search can reach into another's."""
    return data_folder() / "index" / f"{tenant}.sqlite3"


def content_sha256(path: Path) -> str:
    """The fingerprint of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def document_key(tenant: str, sha256: str, pipeline: str = PIPELINE_VERSION) -> str:
    """The idempotency key of a document: the same content is processed once a pipeline version."""
    return hashlib.sha256(f"{tenant}\0{sha256}\0{pipeline}".encode()).hexdigest()


def write(place: str, value: Any) -> str:
    """Keep a value as JSON at a place below the data folder; returns the place.

    The file appears whole or not at all: a step that is killed leaves nothing half written, and
    one that runs twice writes the same again.
    """
    path = data_folder() / place
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.draft")
    draft.write_bytes(msgspec.json.encode(value))
    draft.replace(path)
    return place


def read(place: str, kind: type[T]) -> T:
    """What `write` kept at a place."""
    return msgspec.json.decode((data_folder() / place).read_bytes(), type=kind)

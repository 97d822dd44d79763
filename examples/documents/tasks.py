"""The four steps of a document, as tasks. One document is one chain of them.

    lateack up -A examples.documents.tasks:app

Each step takes what the one before returned as its first argument and passes it on, with what it
adds and the stage that it reached in `status`. Text and vectors are too large for arguments: they
are files in the work folder, and only their places travel. A step may run twice (a worker that is
killed starts it anew elsewhere) and leaves the same files and the same index as if it had run once.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from lateack import INJECTED, App, Context, PermanentError

from . import places
from .chunking import Chunk, chunk_text
from .embedding import Vector, embed_chunks
from .indexing import index_chunks
from .parsing import Parsed, parse_file

app = App("documents")

Document = dict[str, Any]


# A parser of PDFs meets whatever people send. In a process of its own it can be killed at its
# limit, and takes nothing with it when it crashes.
@app.task(queue="documents", pool="process", soft_time_limit=60, time_limit=90)
def parse(source: str, content_sha256: str, *, ctx: Context = INJECTED) -> Document:
    """Read `source`, a file of the library whose content has this SHA-256."""
    path = places.LIBRARY / source
    if path.parent != places.LIBRARY or not path.is_file():
        raise PermanentError(f"the library has no {source}")
    if places.content_sha256(path) != content_sha256:
        raise PermanentError(f"{source} was changed after it was submitted; submit it again")

    def on_page(page: int, pages: int) -> None:
        ctx.progress(done=page - 1, total=pages, step="parse", message=f"page {page} of {pages}")

    parsed = parse_file(path, on_page)
    document_id = places.document_key(ctx.tenant_id, content_sha256)
    folder = f"work/{ctx.tenant_id}/{document_id}"
    return {
        "document_id": document_id,
        "tenant": ctx.tenant_id,
        "source": source,
        "title": parsed.title,
        "language": parsed.language,
        "pages": parsed.pages,
        "folder": folder,
        "parsed": places.write(f"{folder}/parsed.json", parsed),
        "status": "parsed",
    }


@app.task(queue="documents", soft_time_limit=60, time_limit=90)
def chunk(document: Document, *, ctx: Context = INJECTED) -> Document:
    """Cut the text into pieces."""
    ctx.progress(0, step="chunk")
    chunks = chunk_text(places.read(document["parsed"], Parsed))
    ctx.progress(100, step="chunk", message=f"{len(chunks)} pieces")
    return document | {
        "chunks": places.write(f"{document['folder']}/chunks.json", chunks),
        "chunk_count": len(chunks),
        "status": "chunked",
    }


# A queue of its own, so that this step can move to machines of another kind.
@app.task(queue="embed", soft_time_limit=120, time_limit=150)
def embed(document: Document, *, ctx: Context = INJECTED) -> Document:
    """Make a vector of each piece."""

    def on_batch(done: int, total: int) -> None:
        ctx.progress(done=done, total=total, step="embed", message=f"{done} of {total} pieces")

    vectors = embed_chunks(places.read(document["chunks"], list[Chunk]), on_batch)
    return document | {
        "vectors": places.write(f"{document['folder']}/vectors.json", vectors),
        "status": "embedded",
    }


# Two writers of one index wait for each other; a wait that was too long is worth another try.
@app.task(
    queue="documents",
    autoretry_for=(sqlite3.OperationalError,),
    retry_backoff=True,
    soft_time_limit=60,
    time_limit=90,
)
def index(document: Document, *, ctx: Context = INJECTED) -> Document:
    """Put the pieces into the tenant's index, in place of what it had of this document."""
    ctx.progress(0, step="index")
    count = index_chunks(
        places.index_of(ctx.tenant_id),
        document["document_id"],
        document["source"],
        places.read(document["chunks"], list[Chunk]),
        places.read(document["vectors"], list[Vector]),
    )
    ctx.progress(100, step="index", message=f"{count} pieces")
    return document | {"status": "indexed"}

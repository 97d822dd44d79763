"""The HTTP service: submissions in, job documents and live progress out."""

from __future__ import annotations

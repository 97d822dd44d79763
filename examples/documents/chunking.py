"""Chunk: passages become pieces of a size that a reader takes in at a glance.

A piece never crosses a heading, never cuts a sentence unless the sentence alone is too long, and
starts with the last sentence of the piece before it, so that an answer on a border is found whole.
Size is counted in words: an English word is one, and so is a Chinese character.
"""

from __future__ import annotations

import re
from itertools import groupby, pairwise

import msgspec

from .parsing import CJK, Parsed, joined

CHUNK_WORDS = 120
OVERLAP_WORDS = 40
"""A last sentence longer than this is not repeated: it would be most of the next piece."""

_WORD = re.compile(f"[{CJK}]|[^\\s{CJK}]+")
_CLOSERS = "”’」』）)\"'"
_SENTENCE_END = re.compile(
    # Chinese ends a sentence with its own marks and puts no space behind them.
    f"(?<=[。！？；])(?![。！？；{_CLOSERS}])"
    f"|(?<=[。！？；][{_CLOSERS}])(?![{_CLOSERS}])"
    # English needs the space and a capital, digit or opening mark behind it, so that "1.2 m",
    # "e.g. this" and file.names stay whole.
    r"|(?<=[.!?])\s+(?=[A-Z0-9“‘\"(])"
    r"|(?<=[.!?][”’\")])\s+(?=[A-Z0-9“‘\"(])"
)
_ABBREVIATIONS = ("Dr.", "Mr.", "Ms.", "Mrs.", "Prof.", "No.", "Fig.", "fig.", "St.", "vs.")


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a document. Numbers count from 0 in reading order."""

    number: int
    text: str
    heading: str
    page: int


def chunk_text(parsed: Parsed, words: int = CHUNK_WORDS) -> list[Chunk]:
    """Cut a parsed document into pieces of at most `words` words."""
    chunks: list[Chunk] = []
    for heading, passages in groupby(parsed.passages, key=lambda passage: passage.heading):
        sentences = [
            (sentence, passage.page)
            for passage in passages
            for whole in split_sentences(passage.text)
            for sentence in cut_long(whole, words)
        ]
        for piece in packed(sentences, words):
            text = joined(sentence for sentence, _ in piece)
            chunks.append(Chunk(len(chunks), text, heading, page=piece[0][1]))
    return chunks


def split_sentences(text: str) -> list[str]:
    """Sentences of Chinese, English or mixed text; nothing but space between them is lost."""
    sentences: list[str] = []
    for part in _SENTENCE_END.split(text):
        if not (part := part.strip()):
            continue
        if sentences and sentences[-1].endswith(_ABBREVIATIONS):
            sentences[-1] += f" {part}"
        else:
            sentences.append(part)
    return sentences


def count_words(text: str) -> int:
    """Words of English plus characters of Chinese."""
    return sum(1 for _ in _WORD.finditer(text))


def cut_long(sentence: str, words: int) -> list[str]:
    """A sentence above the size, cut between words; others unchanged."""
    ends = [match.end() for match in _WORD.finditer(sentence)]
    if len(ends) <= words:
        return [sentence]
    cuts = [0, *ends[words - 1 : -1 : words], len(sentence)]
    return [sentence[start:end].strip() for start, end in pairwise(cuts)]


def packed(sentences: list[tuple[str, int]], words: int) -> list[list[tuple[str, int]]]:
    """Sentences, each with its page, gathered into pieces that overlap by one sentence."""
    pieces: list[list[tuple[str, int]]] = []
    piece: list[tuple[str, int]] = []
    size = 0
    for sentence in sentences:
        more = count_words(sentence[0])
        if piece and size + more > words:
            pieces.append(piece)
            last = count_words(piece[-1][0])
            repeat = last <= OVERLAP_WORDS and last + more <= words and len(piece) > 1
            piece, size = ([piece[-1]], last) if repeat else ([], 0)
        piece.append(sentence)
        size += more
    if piece:
        pieces.append(piece)
    return pieces

"""Embed: each piece becomes a sparse vector, one dimension a term, one weight how much it says.

This is the document side of BM25, the same sparse embedding that vector databases offer under
that name: terms are found by a segmenter (jieba for Chinese) and a stemmer (Snowball for English),
weights grow with repetition but level off, and long pieces are discounted. How rare a term is
counts at search time, since only the index knows it. A dense model that reads both languages
would be larger than everything else in this demo together; it takes this module's place where
there is a GPU lane, and nothing around it changes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from unicodedata import normalize

import msgspec
import rjieba
import snowballstemmer  # type: ignore[import-untyped]

from .chunking import CHUNK_WORDS, Chunk
from .parsing import CJK

OnBatch = Callable[[int, int], object]
"""Told (done, total) chunks after each batch."""

BATCH = 8
SATURATION = 1.2
LENGTH_DISCOUNT = 0.75
"""BM25's k1 and b, at the values that its authors found good for prose."""
USUAL_TERMS = CHUNK_WORDS * 0.6
"""Terms in a full chunk once stop words are gone. A constant, so that the vector of a piece does
not depend on which other pieces exist."""

_TERM = re.compile(f"[{CJK}]+|[a-z0-9]+(?:\\.[0-9]+)*")
_CHINESE = re.compile(f"[{CJK}]")
# The commonest words of each language; they are in every piece and tell none apart.
_STOP_WORDS = """
a an and are as at be been but by can did do does for from had has have how if in into is it its
many may much must not of on or our s shall should so than that the their then there these they
this those to was we were what when where which who why will with you your
的 了 和 是 在 有 与 及 或 也 都 就 而 并 于 为 以 从 到 对 把 被 由 其 之 等 则 若 这 那 一个
哪 哪些 哪里 谁 什么 怎么 怎样 如何 多少 几 何时 是否 可以 需要 吗 呢 请 我 我们 他们
"""
_STOP = frozenset(_STOP_WORDS.split())


class Vector(msgspec.Struct, frozen=True):
    """The vector of chunk `number`: weights by term, those that are zero left out."""

    number: int
    weights: dict[str, float]


def embed_chunks(
    chunks: Sequence[Chunk], on_batch: OnBatch = lambda done, total: None
) -> list[Vector]:
    """A vector for each chunk, in order. The heading counts as part of the text."""
    vectors: list[Vector] = []
    for start in range(0, len(chunks), BATCH):
        vectors += [
            Vector(chunk.number, weights_of(f"{chunk.heading}\n{chunk.text}"))
            for chunk in chunks[start : start + BATCH]
        ]
        on_batch(len(vectors), len(chunks))
    return vectors


def weights_of(text: str) -> dict[str, float]:
    """The weight of each term in a text, rounded to four places."""
    counts = Counter(terms_of(text))
    discount = 1 - LENGTH_DISCOUNT + LENGTH_DISCOUNT * counts.total() / USUAL_TERMS
    return {
        term: round(count * (SATURATION + 1) / (count + SATURATION * discount), 4)
        for term, count in counts.items()
    }


def terms_of(text: str, cut: Callable[[str], list[str]] = rjieba.cut_for_search) -> Iterator[str]:
    """The terms of a text, repeated as often as they occur: stems and Chinese words.

    A text to be found is cut into words and the words inside them, so that 望远镜 finds
    天文望远镜; a question is cut into words only, so that a long one does not count three times.
    """
    for run in _TERM.findall(normalize("NFKC", text).lower()):
        yield from _chinese_words(run, cut) if _CHINESE.match(run) else _english_stem(run)


def question_terms(question: str) -> list[str]:
    """The terms to look for, each once."""
    return sorted(set(terms_of(question, rjieba.cut)))


def _chinese_words(run: str, cut: Callable[[str], list[str]]) -> Iterable[str]:
    return (
        word
        for word in cut(run)
        if word not in _STOP and any(character.isalnum() for character in word)
    )


def _english_stem(word: str) -> Iterable[str]:
    return () if word in _STOP else (_stem(word),)


@cache
def _stem(word: str) -> str:
    # A stemmer keeps the word it works on in itself: one of its own for each call, since tasks
    # of several threads meet here.
    return str(snowballstemmer.stemmer("english").stemWord(word))

"""Parse: a PDF, Markdown or text file becomes passages that know their page and heading."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from pypdf import PdfReader
from pypdf.errors import PyPdfError

Language = Literal["en", "zh"]
OnPage = Callable[[int, int], object]
"""Told (page, pages) before each page; pages count from 1."""

CJK = r"\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef"
_CJK_CHARACTER = re.compile(f"[{CJK}]")
_CJK_BREAK = re.compile(f"(?<=[{CJK}])\\s*\\n\\s*(?=[{CJK}])")
_HYPHEN_BREAK = re.compile(r"(?<=[a-z])-\n(?=[a-z])")


class UnreadableDocument(ValueError):
    """The file is damaged, empty, locked or of an unknown kind: no retry will help."""


class Passage(msgspec.Struct, frozen=True):
    """A paragraph, list item or table row. Pages count from 1; a file without pages has one."""

    text: str
    heading: str
    page: int = 1


class Parsed(msgspec.Struct, frozen=True):
    """What was read from one file, in reading order."""

    title: str
    language: Language
    pages: int
    passages: list[Passage]


Read = tuple[int, str, list[Passage]]
"""Pages, title (empty when there is none), passages."""


class Line(msgspec.Struct, frozen=True):
    """A line as it stands on a page: distance from the page's foot and font size, in points."""

    text: str
    page: int
    height: float
    size: float


def parse_file(path: Path, on_page: OnPage = lambda page, pages: None) -> Parsed:
    """Read a document.

    Raises:
        UnreadableDocument: the message names the file and what is wrong with it.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UnreadableDocument(f"{path.name}: expected one of {', '.join(READERS)}")
    pages, title, passages = reader(path, on_page)
    if not passages:
        raise UnreadableDocument(f"{path.name}: no text in it; a scan needs OCR first")
    body = "".join(passage.text for passage in passages)
    return Parsed(title or path.stem, language_of(body), pages, passages)


def language_of(text: str) -> Language:
    """Chinese when a fifth of the letters are; the rest of our library is English."""
    letters = sum(character.isalpha() for character in text)
    return "zh" if letters and len(_CJK_CHARACTER.findall(text)) > letters / 5 else "en"


def read_pdf(path: Path, on_page: OnPage) -> Read:
    """Passages of a PDF; headings are told from the body by their size."""
    try:
        reader = PdfReader(path)
        if reader.is_encrypted:
            raise UnreadableDocument(f"{path.name}: locked with a password")
        pages = len(reader.pages)
        lines: list[Line] = []
        for number, page in enumerate(reader.pages, start=1):
            on_page(number, pages)
            lines += _lines_on(page, number)
    except (PyPdfError, OSError) as error:
        raise UnreadableDocument(f"{path.name}: {error}") from error
    title, passages = _passages_of(lines)
    return pages, title, passages


def _lines_on(page: Any, number: int) -> list[Line]:
    lines: list[Line] = []

    def visit(text: str, cm: list[float], tm: list[float], font: Any, size: float) -> None:
        if not (text := text.strip("\n")).strip():
            return
        height = cm[5] + tm[5]
        if lines and abs(lines[-1].height - height) < 1.0:
            text = lines.pop().text + text
        lines.append(Line(text, number, height, size))

    page.extract_text(visitor_text=visit)
    return lines


def _passages_of(lines: list[Line]) -> tuple[str, list[Passage]]:
    """The title and the passages of lines in reading order."""
    sizes: Counter[float] = Counter()
    for line in lines:
        sizes[line.size] += len(line.text)
    body = sizes.most_common(1)[0][0] if sizes else 0.0
    # Page numbers and running titles are set smaller than the body and belong to no passage.
    lines = [line for line in lines if line.size >= body * 0.9]
    title = heading = ""
    passages: list[Passage] = []
    for block in _blocks_of(lines):
        text = joined(line.text for line in block)
        if block[0].size > body * 1.1:
            heading, title = text, title or text
        else:
            passages.append(Passage(text, heading, block[0].page))
    return title, passages


def _blocks_of(lines: list[Line]) -> list[list[Line]]:
    """Lines that stand together: one size, and no more than a line's distance between them."""
    blocks: list[list[Line]] = []
    for line in lines:
        if blocks and _adjoin(blocks[-1][-1], line):
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return blocks


def _adjoin(above: Line, below: Line) -> bool:
    """Whether a line goes on with the one above it, be it over the turn of a page."""
    if above.size != below.size:
        return False
    if above.page != below.page:
        return not above.text.rstrip().endswith((".", "。", "！", "？", ":", "："))
    return 0 < above.height - below.height < above.size * 1.75


def joined(lines: Iterable[str]) -> str:
    """Lines as one text: words keep a space between them, Chinese characters get none."""
    text = "\n".join(line.strip() for line in lines)
    text = _CJK_BREAK.sub("", _HYPHEN_BREAK.sub("", text))
    return re.sub(r"\s+", " ", text).strip()


def read_markdown(path: Path, on_page: OnPage) -> Read:
    """Passages of a Markdown file; a table row repeats its column names, so it stands alone."""
    on_page(1, 1)
    tree = SyntaxTreeNode(MarkdownIt("commonmark").enable("table").parse(_decoded(path)))
    passages: list[Passage] = []
    title = heading = ""
    for node in tree.children:
        if node.type == "heading":
            heading = _text_in(node)
            title = title or heading
            continue
        rows = _table_rows(node) if node.type == "table" else _leaf_texts(node)
        passages += [Passage(text, heading) for text in rows if text]
    return 1, title, passages


def _leaf_texts(node: SyntaxTreeNode) -> list[str]:
    if node.type in ("paragraph", "fence", "code_block"):
        return [_text_in(node)]
    return [text for child in node.children for text in _leaf_texts(child)]


def _table_rows(table: SyntaxTreeNode) -> list[str]:
    head, *rest = [row for part in table.children for row in part.children]
    names = [_text_in(cell) for cell in head.children]
    return [
        "; ".join(
            f"{name}: {_text_in(cell)}" for name, cell in zip(names, row.children, strict=True)
        )
        for row in rest
    ]


def _text_in(node: SyntaxTreeNode) -> str:
    if node.type in ("text", "code_inline", "fence", "code_block"):
        return node.content.strip() if node.type != "text" else node.content
    if node.type in ("softbreak", "hardbreak"):
        return "\n"
    text = "".join(_text_in(child) for child in node.children)
    return text if node.type == "inline" else joined(text.splitlines())


def read_text(path: Path, on_page: OnPage) -> Read:
    """Passages of a plain text: paragraphs stand apart by blank lines.

    A paragraph that is one short line without a full stop is the heading of what follows.
    """
    on_page(1, 1)
    passages: list[Passage] = []
    title = heading = ""
    for paragraph in re.split(r"\n\s*\n", _decoded(path)):
        text = joined(paragraph.splitlines())
        if not text:
            continue
        if "\n" not in paragraph.strip() and len(text) <= 60 and text[-1] not in ".。！？!?":
            heading, title = text, title or text
            continue
        passages.append(Passage(text, heading))
    return 1, title, passages


def _decoded(path: Path) -> str:
    try:
        data = path.read_bytes()
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            # What older Chinese systems write. It accepts nearly all bytes, hence second.
            return data.decode("gb18030")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableDocument(f"{path.name}: {error}") from error


READERS: dict[str, Callable[[Path, OnPage], Read]] = {
    ".pdf": read_pdf,
    ".md": read_markdown,
    ".txt": read_text,
}

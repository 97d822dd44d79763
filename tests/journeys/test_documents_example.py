"""The steps of the documents example, each by itself: from a file to an answer."""

from __future__ import annotations

import multiprocessing
import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypdf import PdfReader, PdfWriter

from examples.documents import places
from examples.documents.chunking import (
    CHUNK_WORDS,
    Chunk,
    chunk_text,
    count_words,
    cut_long,
    split_sentences,
)
from examples.documents.embedding import embed_chunks, question_terms, terms_of, weights_of
from examples.documents.indexing import index_chunks, opened, search
from examples.documents.parsing import Parsed, Passage, UnreadableDocument, parse_file

LIBRARY = sorted(places.LIBRARY.iterdir())
NAMES = [path.name for path in LIBRARY]

QUESTIONS = [
    ("At what wind speed must the dome be closed?", "telescope-manual.en.pdf", "15 metres"),
    ("How thick is the aluminium layer on the mirror?", "mirror-recoating.en.pdf", "100 nano"),
    ("Which shuttle bus leaves from Baisha?", "visitor-guide.en.pdf", "13:20 and 18:20"),
    ("How many supernovae did Lark find?", "history.en.txt", "146 supernovae"),
    ("Which shower has its maximum in December?", "meteor-watch.en.md", "Geminids"),
    ("What did the owl do?", "night-log-march.en.md", "tawny owl"),
    ("How are hygrometers checked with salt?", "weather-station.en.txt", "75 per cent"),
    ("氧气浓度低于多少时报警？", "safety-rules.zh.pdf", "百分之十九点五"),
    ("志愿者的年龄下限是多少？", "volunteer-charter.zh.pdf", "十六周岁"),
    ("承重轮多久更换一次？", "dome-maintenance.zh.md", "八年"),
    ("数据的专有期有多长？", "data-archive.zh.md", "十二个月"),
    ("第一任台长是谁？", "history.zh.txt", "沈婉清"),
]


@pytest.fixture(scope="module")
def library_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole library, taken through all four steps."""
    index = tmp_path_factory.mktemp("index") / "library.sqlite3"
    for path in LIBRARY:
        put(index, path)
    return index


def put(index: Path, path: Path) -> int:
    chunks = chunk_text(parse_file(path))
    return index_chunks(index, path.name, path.name, chunks, embed_chunks(chunks))


# Parse


@pytest.mark.parametrize("path", LIBRARY, ids=NAMES)
def test_every_document_of_the_library_is_read(path: Path) -> None:
    """Title, language, pages and headings of each file, whichever its kind."""
    parsed = parse_file(path)
    assert parsed.language == path.suffixes[-2].lstrip(".")
    assert parsed.title
    assert len({passage.heading for passage in parsed.passages}) >= 4
    assert {passage.page for passage in parsed.passages} == set(range(1, parsed.pages + 1))
    assert all(len(passage.text) > 10 for passage in parsed.passages)


def test_text_of_the_chinese_pdf_is_the_text_that_was_set() -> None:
    """Every paragraph comes back character for character: no broken lines, no lost glyphs."""
    source = places.LIBRARY.parent / "typeset" / "safety-rules.zh.md"
    paragraphs = source.read_text(encoding="utf-8").strip().split("\n\n")
    parsed = parse_file(places.LIBRARY / "safety-rules.zh.pdf")
    assert parsed.title == paragraphs[0].removeprefix("# ")
    # The page breaks in mid-paragraph once; that paragraph is one passage all the same.
    assert [passage.text for passage in parsed.passages] == [
        paragraph for paragraph in paragraphs if not paragraph.startswith("#")
    ]


def test_text_of_the_english_pdf_is_the_text_that_was_set() -> None:
    source = places.LIBRARY.parent / "typeset" / "telescope-manual.en.md"
    paragraphs = source.read_text(encoding="utf-8").strip().split("\n\n")
    parsed = parse_file(places.LIBRARY / "telescope-manual.en.pdf")
    assert parsed.pages == 4
    assert [passage.text for passage in parsed.passages] == [
        paragraph for paragraph in paragraphs if not paragraph.startswith("#")
    ]


def test_page_numbers_are_not_part_of_the_text() -> None:
    for name in ("telescope-manual.en.pdf", "safety-rules.zh.pdf"):
        texts = [passage.text for passage in parse_file(places.LIBRARY / name).passages]
        assert not any("· page" in text or "· 第" in text for text in texts)


def test_parse_tells_of_each_page() -> None:
    told: list[tuple[int, int]] = []
    parse_file(places.LIBRARY / "visitor-guide.en.pdf", lambda *page: told.append(page))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_table_row_stands_alone() -> None:
    passages = parse_file(places.LIBRARY / "meteor-watch.en.md").passages
    (row,) = [passage.text for passage in passages if "Geminids; " in passage.text]
    assert row.startswith("Shower: Geminids; Active: 4 to 20 December; Maximum: 14 December")


def test_old_chinese_encoding_is_read(tmp_path: Path) -> None:
    """GB18030 and UTF-8 give the same text; the library has one file of the former."""
    raw = (places.LIBRARY / "history.zh.txt").read_bytes()
    with pytest.raises(UnicodeDecodeError):
        raw.decode("utf-8")
    modern = tmp_path / "modern.txt"
    modern.write_text(raw.decode("gb18030"), encoding="utf-8")
    assert parse_file(modern) == parse_file(places.LIBRARY / "history.zh.txt")


def pdf(path: Path, *, pages: int = 1, password: str | None = None) -> Path:
    writer = PdfWriter()
    for _ in range(pages):
        writer.add_blank_page(width=200, height=200)
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(path)
    return path


def test_what_cannot_be_read_is_refused_with_a_reason(tmp_path: Path) -> None:
    scan = pdf(tmp_path / "scan.pdf", pages=2)
    locked = pdf(tmp_path / "locked.pdf", password="secret")
    torn = tmp_path / "torn.pdf"
    torn.write_bytes((places.LIBRARY / "visitor-guide.en.pdf").read_bytes()[:900])
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    unknown = tmp_path / "sheet.xlsx"
    unknown.write_bytes(b"PK")
    missing = tmp_path / "missing.md"
    for path, reason in [
        (scan, "no text"),
        (locked, "password"),
        (torn, "torn.pdf"),
        (empty, "no text"),
        (unknown, "expected one of"),
        (missing, "missing.md"),
    ]:
        with pytest.raises(UnreadableDocument, match=reason):
            parse_file(path)


# Chunk


def test_chinese_sentences_end_at_their_own_marks() -> None:
    text = "他说：“是圆的。我们去喝茶了。”然后呢？第1.2节；完！"
    assert split_sentences(text) == [
        "他说：“是圆的。",
        "我们去喝茶了。”",
        "然后呢？",
        "第1.2节；",
        "完！",
    ]


def test_english_sentences_keep_numbers_and_titles_whole() -> None:
    text = 'Heron is a 1.2 m telescope by Dr. Shen. See fig. 3 first, e.g. now. "Really?" Yes.'
    assert split_sentences(text) == [
        "Heron is a 1.2 m telescope by Dr. Shen.",
        "See fig. 3 first, e.g. now.",
        '"Really?"',
        "Yes.",
    ]


def test_pieces_stay_below_a_heading_and_overlap_by_a_sentence() -> None:
    sentences = [f"Sentence number {n} has a few words." for n in range(20)]
    parsed = Parsed(
        "T", "en", 2, [Passage(" ".join(sentences), "A", 1), Passage("Other. Text.", "B", 2)]
    )
    chunks = chunk_text(parsed, words=30)
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.heading for chunk in chunks] == ["A"] * (len(chunks) - 1) + ["B"]
    assert (chunks[-1].text, chunks[-1].page) == ("Other. Text.", 2)
    for before, after in pairwise(chunks[:-1]):
        assert after.text.startswith(split_sentences(before.text)[-1])


text_of_any_kind = st.text(
    st.sampled_from("ab Z19.,!?\"'\n云岭天文台。！？；：“”（）"), min_size=1, max_size=400
)


@given(st.lists(text_of_any_kind, min_size=1, max_size=5), st.integers(5, 60))
@settings(max_examples=200, deadline=None)
def test_no_word_is_lost_and_no_piece_is_too_long(texts: list[str], words: int) -> None:
    passages = [Passage(text, f"H{n}") for n, text in enumerate(texts)]
    chunks = chunk_text(Parsed("T", "zh", 1, passages), words)
    assert all(count_words(chunk.text) <= words for chunk in chunks)
    for passage in passages:
        pieces = [chunk.text for chunk in chunks if chunk.heading == passage.heading]
        text = bare(passage.text)
        covered = 0
        for piece in map(bare, pieces):
            # It begins where the one before ends, or earlier: no gap between them.
            start = text.rfind(piece, 0, covered + len(piece))
            assert start >= 0
            covered = max(covered, start + len(piece))
        assert covered == len(text)


def bare(text: str) -> str:
    return "".join(text.split())


@given(text_of_any_kind, st.integers(1, 20))
def test_a_long_sentence_is_cut_between_words(text: str, words: int) -> None:
    parts = cut_long(text, words)
    assert bare("".join(parts)) == bare(text)
    assert all(count_words(part) <= words for part in parts)


# Embed


def test_terms_are_stems_and_chinese_words() -> None:
    assert list(terms_of("The mirrors were recoated")) == ["mirror", "recoat"]
    assert "望远镜" in list(terms_of("天文望远镜的圆顶"))
    assert question_terms("什么是望远镜？") == ["望远镜"]


def test_width_and_case_do_not_matter() -> None:
    assert weights_of("ＨＥＲＯＮ １．２") == weights_of("heron 1.2")


def test_vectors_do_not_depend_on_the_other_pieces_or_on_batches() -> None:
    """A piece has one vector: on another worker, on another day, alone or among many."""
    chunks = chunk_text(parse_file(places.LIBRARY / "telescope-manual.en.pdf"))
    told: list[tuple[int, int]] = []
    together = embed_chunks(chunks, lambda *count: told.append(count))
    assert together == [embed_chunks([chunk])[0] for chunk in chunks]
    assert told[-1] == (len(chunks), len(chunks))
    assert all(0 < weight < 2.2 for vector in together for weight in vector.weights.values())


# Index and search


@pytest.mark.parametrize(("question", "source", "words"), QUESTIONS, ids=[q[1] for q in QUESTIONS])
def test_each_document_answers_a_question_of_its_own(
    library_index: Path, question: str, source: str, words: str
) -> None:
    best = search(library_index, question, limit=1)[0]
    assert best.source == source
    assert words in best.text


def test_a_question_about_nothing_finds_nothing(library_index: Path) -> None:
    assert search(library_index, "zzzz qqqq") == []
    assert search(library_index, "") == []
    search(library_index, "'; DROP TABLE chunks; --")
    assert search(library_index, QUESTIONS[0][0])


def rows(index: Path) -> list[tuple[object, ...]]:
    with opened(index) as connection:
        return connection.execute(
            "SELECT document, number, text, term, weight FROM chunks JOIN weights ON chunk = id"
            " ORDER BY document, number, term"
        ).fetchall()


def test_indexing_twice_is_indexing_once(tmp_path: Path) -> None:
    """A step that a worker runs again after a crash leaves what one run leaves (I2)."""
    index = tmp_path / "index.sqlite3"
    path = places.LIBRARY / "visitor-guide.en.pdf"
    count = put(index, path)
    once = rows(index)
    assert put(index, path) == count
    assert rows(index) == once


def test_a_shorter_version_leaves_nothing_of_the_longer(tmp_path: Path) -> None:
    index = tmp_path / "index.sqlite3"
    put(index, places.LIBRARY / "visitor-guide.en.pdf")
    short = [Chunk(0, "Only this is left.", "", 1)]
    index_chunks(index, "visitor-guide.en.pdf", "visitor-guide.en.pdf", short, embed_chunks(short))
    assert {row[2] for row in rows(index)} == {"Only this is left."}


def test_a_writer_that_fails_changes_nothing(tmp_path: Path) -> None:
    index = tmp_path / "index.sqlite3"
    path = places.LIBRARY / "history.en.txt"
    put(index, path)
    before = rows(index)
    twice = [Chunk(0, "a word", "", 1), Chunk(0, "a word", "", 1)]
    with pytest.raises(sqlite3.IntegrityError):
        index_chunks(index, path.name, path.name, twice, embed_chunks(twice))
    with pytest.raises(ValueError, match="do not match"):
        index_chunks(index, path.name, path.name, twice[:1], [])
    assert rows(index) == before


def write_often(index: Path, name: str, start: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    for _ in range(5):
        put(index, places.LIBRARY / name)


def test_processes_that_write_at_the_same_time_lose_nothing(
    tmp_path: Path, library_index: Path
) -> None:
    """Two index tasks of different workers, from the first moment of a new file on."""
    index = tmp_path / "index.sqlite3"
    context = multiprocessing.get_context("spawn")
    names = ["history.en.txt", "history.zh.txt", "meteor-watch.en.md", "history.en.txt"]
    start = context.Barrier(len(names))
    writers = [
        context.Process(target=write_often, args=(index, name, start), daemon=True)
        for name in names
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(90)
    assert [writer.exitcode for writer in writers] == [0] * len(writers)
    assert rows(index) == [row for row in rows(library_index) if row[0] in names]


# Keys and places


def test_the_key_of_a_document_is_stable_and_separates() -> None:
    """Seed 004: tenant, content and pipeline version, and nothing else, make the key (I4)."""
    key = places.document_key("tenant-7", "abc123", "pipeline-v4")
    assert key == places.document_key("tenant-7", "abc123", "pipeline-v4")
    others = {
        places.document_key("tenant-8", "abc123", "pipeline-v4"),
        places.document_key("tenant-7", "abc124", "pipeline-v4"),
        places.document_key("tenant-7", "abc123", "pipeline-v5"),
        places.document_key("tenant-", "7abc123", "pipeline-v4"),
    }
    assert len(others | {key}) == 5


def test_the_library_is_what_the_readme_says() -> None:
    """PDF, Markdown and text, in both languages, no two files with one content, all small."""
    assert {(path.suffixes[-2], path.suffix) for path in LIBRARY} == {
        (language, kind) for language in (".en", ".zh") for kind in (".pdf", ".md", ".txt")
    }
    assert len({places.content_sha256(path) for path in LIBRARY}) == len(LIBRARY)
    assert sum(path.stat().st_size for path in LIBRARY) < 400_000
    assert len(PdfReader(places.LIBRARY / "telescope-manual.en.pdf").pages) == 4


def test_a_value_is_kept_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEMO_DATA_DIR", str(tmp_path))
    chunks = [Chunk(0, "云岭", "H", 1)]
    assert places.write("work/a/chunks.json", chunks) == "work/a/chunks.json"
    assert places.read("work/a/chunks.json", list[Chunk]) == chunks
    assert [path.name for path in tmp_path.rglob("*.*")] == ["chunks.json"]
    assert places.index_of("acme").is_relative_to(tmp_path)
    assert count_words("云岭 two words") == 4
    assert CHUNK_WORDS > 40

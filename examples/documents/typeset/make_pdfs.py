"""Set the PDFs of the library from the sources in this folder.

    python make_pdfs.py LXGWWenKai-Regular.ttf

Run by hand when a source changes; it needs reportlab 5 and LXGW WenKai, a Chinese face under the
SIL Open Font License (Debian: fonts-lxgw-wenkai). The characters that occur are embedded in the
files, which that licence allows, so that they look the same everywhere. The PDFs are kept in the
repository: neither the demo nor its tests need this script. The same source gives the same file,
byte for byte.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from reportlab import rl_config
from reportlab.lib.enums import TA_JUSTIFY
from reportlab.lib.pagesizes import A5
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.platypus import Paragraph, SimpleDocTemplate

SOURCES = Path(__file__).parent
LIBRARY = SOURCES.parent / "library"
CHINESE_FACE = "WenKai"
FOOT = {"en": "Cloud Ridge Observatory · page {}", "zh": "云岭天文台 · 第 {} 页"}


def styles_of(language: str) -> dict[str, ParagraphStyle]:
    """Title, section and body for one language."""
    chinese = language == "zh"
    shared: dict[str, Any] = {"wordWrap": "CJK"} if chinese else {}
    bold = CHINESE_FACE if chinese else "Helvetica-Bold"
    body: dict[str, Any] = {
        "fontName": CHINESE_FACE if chinese else "Times-Roman",
        "alignment": TA_JUSTIFY,
        "firstLineIndent": 20 if chinese else 0,
        **shared,
    }
    return {
        "# ": ParagraphStyle(
            "title", fontName=bold, fontSize=16, leading=21, spaceAfter=10, **shared
        ),
        "## ": ParagraphStyle(
            "section", fontName=bold, fontSize=12.5, leading=17, spaceBefore=8, spaceAfter=4,
            keepWithNext=True, **shared,
        ),
        "": ParagraphStyle("body", fontSize=10, leading=14.5, spaceAfter=7, **body),
    }  # fmt: skip


def set_pdf(source: Path) -> Path:
    """Set one source; returns the PDF."""
    language = source.suffixes[-2].lstrip(".")
    styles = styles_of(language)
    story = []
    for paragraph in source.read_text(encoding="utf-8").strip().split("\n\n"):
        mark = next(mark for mark in ("## ", "# ", "") if paragraph.startswith(mark))
        story.append(Paragraph(escape(paragraph.removeprefix(mark)), styles[mark]))

    def foot(canvas: Any, document: Any) -> None:
        canvas.setFont(CHINESE_FACE if language == "zh" else "Times-Roman", 7.5)
        canvas.drawCentredString(A5[0] / 2, 9 * mm, FOOT[language].format(document.page))

    target = LIBRARY / source.with_suffix(".pdf").name
    SimpleDocTemplate(
        str(target),
        pagesize=A5,
        leftMargin=17 * mm,
        rightMargin=17 * mm,
        topMargin=17 * mm,
        bottomMargin=18 * mm,
        title=story[0].getPlainText(),
        author="Cloud Ridge Observatory",
        invariant=1,
    ).build(story, onFirstPage=foot, onLaterPages=foot)
    return target


if __name__ == "__main__":
    # Plain binary streams: a quarter smaller than as text.
    rl_config.useA85 = 0
    pdfmetrics.registerFont(TTFont(CHINESE_FACE, sys.argv[1]))
    for source in sorted(SOURCES.glob("*.md")):
        print(set_pdf(source))

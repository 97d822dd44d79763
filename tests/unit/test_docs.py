"""What the documents name exists, and what exists is named."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

import lateack
from lateack_core.settings import Settings, variable_of

ROOT = Path(__file__).parents[2]


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs/settings.md").read_text()
    documented = set(re.findall(r"^\| `([A-Z_]+)`", text, re.MULTILINE))
    assert documented == {variable_of(field) for field in Settings.__struct_fields__}


def test_the_documented_defaults_are_the_defaults() -> None:
    text = (ROOT / "docs/settings.md").read_text()
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| ([^|]*) \|", text, re.MULTILINE))
    for field, default in zip(
        Settings.__struct_fields__, Settings.__struct_defaults__, strict=True
    ):
        assert rows[variable_of(field)].strip() == str("" if default is None else default), field


@pytest.mark.parametrize("name", lateack.__all__)
def test_the_public_names_exist(name: str) -> None:
    assert getattr(lateack, name) is not None or name == "INJECTED"


def test_the_version_is_the_packages() -> None:
    assert importlib.metadata.version("lateack") == lateack.__version__


def test_links_between_the_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"

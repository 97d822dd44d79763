"""Finding the application that `-A module:app` names. The current folder is looked at first."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from lateack.app import App
from lateack.errors import DeclarationError


def load_app(path: str) -> App:
    """The App at `module:attribute`; `module` alone will do when it holds one App.

    Raises:
        DeclarationError: there is none; the message says what was looked for and where.
    """
    module_name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path[:1]:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that the app itself misses is its own trouble and keeps its own words.
        if error.name and module_name.split(".")[0] != error.name.split(".")[0]:
            raise DeclarationError(f"-A {path}: importing it failed: {error}") from error
        raise DeclarationError(
            f"-A {path}: there is no module {module_name}; looked in {here} first"
        ) from error
    except ImportError as error:
        raise DeclarationError(f"-A {path}: importing it failed: {error}") from error
    if attribute:
        found = getattr(module, attribute, None)
        if not isinstance(found, App):
            what = "has no attribute" if found is None else "is not a lateack App:"
            raise DeclarationError(f"-A {path}: {module_name} {what} {attribute}")
        return found
    apps = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    if len(set(map(id, apps.values()))) != 1:
        names = ", ".join(apps) or "none"
        raise DeclarationError(f"-A {path}: name the App, as in {path}:app (found: {names})")
    return next(iter(apps.values()))

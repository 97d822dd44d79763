"""Finding the app that `-A module:app` names."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from lateack import App
from lateack.errors import DeclarationError


def load_app(path: str) -> App:
    """The app at `module:attribute`; a module that holds one app needs no `:attribute`.

    The current folder comes first on the module path.

    Raises:
        DeclarationError: there is no such module, or no such app in it.
    """
    name, _, attribute = path.partition(":")
    module = _module(name, path)
    if not attribute:
        return _only_app(module, name)
    found = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise DeclarationError(
                f"-A {path}: {name} has no attribute {attribute!r}{_hint(module, name)}"
            ) from None
    if not isinstance(found, App):
        raise DeclarationError(
            f"-A {path}: {attribute} is of type {type(found).__name__}, not a lateack.App"
            + _hint(module, name)
        )
    return found


def _module(name: str, path: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path[:1]:
        sys.path.insert(0, folder)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # A module that exists, and that itself imports one that does not, is the user's to see.
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise DeclarationError(f"-A {path}: {name} cannot be imported: {error}") from error
        raise DeclarationError(
            f"-A {path}: there is no module {error.name!r} in {folder} or among the installed "
            "packages"
        ) from None
    except DeclarationError:
        raise
    except ValueError as error:
        raise DeclarationError(f"-A {path}: write module:app, such as tasks:app") from error
    except Exception as error:
        raise DeclarationError(
            f"-A {path}: {name} cannot be imported: {type(error).__name__}: {error}{_place(error)}"
        ) from error


def _only_app(module: ModuleType, name: str) -> App:
    apps = _apps(module)
    if len(apps) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise DeclarationError(f"-A {name}: there is no lateack.App in {name}")
    choices = " or ".join(f"-A {name}:{attribute}" for attribute in sorted(apps))
    raise DeclarationError(f"-A {name}: it holds several apps, say which: {choices}")


def _apps(module: ModuleType) -> dict[str, App]:
    """The apps of a module, each under the first of its names."""
    seen: dict[int, tuple[str, App]] = {}
    for attribute, value in vars(module).items():
        if isinstance(value, App):
            seen.setdefault(id(value), (attribute, value))
    return dict(seen.values())


def _hint(module: ModuleType, name: str) -> str:
    apps = sorted(_apps(module))
    return f"; did you mean -A {name}:{apps[0]}?" if len(apps) == 1 else ""


def _place(error: BaseException) -> str:
    """Where in the user's files it was raised: the last step of the traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"

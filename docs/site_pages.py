"""Pages of the site that are not Markdown files in docs/: the repository's own pages, the tutorial and the reference.

`mkdocs.yml` names this file as a hook. Documents link to files of the repository. Those links become links of the site
here; one that leads to no page of the site stays as it is, and `mkdocs build --strict` refuses it.
"""

from __future__ import annotations

import pkgutil
import posixpath
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / ".cache" / "tutorial"

# Files of the repository that are pages of the site, or are copied to it.
FROM_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "lab/README.md": "lab.md",
    "CITATION.cff": "CITATION.cff",
}
LINKED = FROM_ROOT | {"docs/tutorial.ipynb": "tutorial.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the section "Reference" of the navigation."""
    pages = [{name: _page_of(name)} for name in _reference(config)]
    config.nav = [
        {"Reference": pages} if isinstance(item, dict) and "Reference" in item else item for item in config.nav or []
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's own pages, the executed tutorial and one page for each module of the reference."""
    for source, page in FROM_ROOT.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    executed = [TUTORIAL / "tutorial.md", *sorted(TUTORIAL.glob("tutorial_files/*"))]
    if not executed[0].exists():
        raise PluginError(f"{executed[0].relative_to(ROOT)} is missing: `make docs` executes the tutorial first")
    for path in executed:
        files.append(File.generated(config, path.relative_to(TUTORIAL).as_posix(), abs_src_path=str(path)))
    for name in _reference(config):
        files.append(File.generated(config, _page_of(name), content=_reference_page(name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    at = _in_repository(page.file.src_uri)
    modules = {f"src/{name.replace('.', '/')}.py": _page_of(name) for name in _reference(config)}

    def of_site(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(at), target))
        if (ROOT / path / "README.md").exists():
            path = f"{path}/README.md"
        found = (LINKED | modules).get(path, path.removeprefix("docs/"))
        if found == path:
            return match[0]
        return f"]({posixpath.relpath(found, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    return re.sub(r"\]\((?!\w+:)(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)", of_site, markdown)


def _in_repository(uri: str) -> str:
    """Where a page's source stands in the repository."""
    return next((source for source, page in FROM_ROOT.items() if page == uri), f"docs/{uri}")


def _reference(config: MkDocsConfig) -> list[str]:
    """The modules of the reference, with `package.*` replaced by the modules of that package."""
    found: list[str] = []
    for name in config.extra["reference"]:
        package = name.removesuffix(".*")
        found.append(package)
        if name != package:
            found += [f"{package}.{module.name}" for module in pkgutil.iter_modules(import_module(package).__path__)]
    return found


def _page_of(name: str) -> str:
    return f"reference/{name}.md"


def _reference_page(name: str) -> str:
    """A page with the names that a module offers; those that another page documents are only linked."""
    top, module = import_module("ileed"), import_module(name)
    hidden = [each for each in _public(top) if find_spec(f"ileed.{each}")]  # `ileed.report` is a function and a module
    if module is top:
        also = {each: f"ileed.{each}.{each}" for each in hidden}
    else:
        same = [each for each in _public(module) if getattr(top, each, None) is getattr(module, each)]
        also = {each: f"ileed.{each}" for each in same if each not in hidden}
    links = ", ".join(f"[`{each}`][{place}]" for each, place in also.items())
    members = "".join(f"\n        - {each}" for each in _public(module) if each not in also) or " false"
    return (
        f"# `{name}`\n\n"
        + (f"Also in this module, documented on another page: {links}.\n\n" if links else "")
        + f"::: {name}\n    options:\n      members:{members}\n"
    )


def _public(module: ModuleType) -> list[str]:
    """The names that a module offers: those in `__all__`, or else those that it defines itself."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return [name for name in defined if not name.startswith("_")]

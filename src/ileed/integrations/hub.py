"""The Hugging Face hub: the model card of a fit, and run directories as repositories."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template

from ileed import runs
from ileed.errors import IleedError, RunError, brief, counted, printable, require
from ileed.methods import Fitted, load

__all__ = ["card", "from_pretrained", "push_to_hub"]

_CARD = Path(__file__).with_name("card.md")
_MOST_DEMONSTRATORS = 200  # in the table, best first


def card(fitted: Fitted, *, repo_id: str = "OWNER/NAME") -> str:
    """The model card of a fit in Markdown: data, expertise, cost, settings, how to load it, and responsible use.

    `repo_id` is the repository in the example that loads the fit. The card names the demonstrators.
    """
    made, costs, parts = fitted.provenance, fitted.restarts.nats_per_action, fitted.joint.parts
    settings = {"method": runs.plain(fitted.method), "parts": runs.plain(parts), "seed": made["seed"]}
    return Template(_CARD.read_text(encoding="utf-8")).substitute(
        demonstrators=counted(len(fitted.expertise.names), "demonstrator"),
        episodes=counted(made["data"]["episodes"], "episode"),
        steps=counted(made["data"]["steps"], "step"),
        expertise=_expertise(fitted),
        nats=f"{fitted.nats_per_action:.4f}",
        restarts=counted(len(costs), "restart"),
        kept=len(fitted.restarts.kept),
        outcome=fitted.outcome.value,
        repo_id=json.dumps(repo_id),
        settings=json.dumps(settings, indent=2),
        versions=_escape(", ".join(f"{name} {made.get(name)}" for name in ("ileed", "torch", "numpy", "date"))),
    )


def _expertise(fitted: Fitted) -> str:
    """A table of demonstrators, best first, with intervals if the fit has them, and a sentence about their order."""
    ratings = fitted.expertise.ratings
    if not fitted.estimates_expertise:
        return "Behaviour cloning: all demonstrators are treated as experts."
    if ratings is None:
        head, note = ["demonstrator", "expertise"], "There are no intervals; compare ratios, not levels"
        rows = [[_escape(name, most=200), f"{value:.3f}"] for name, value in fitted.expertise.ranking()]
    else:
        interval = f"{100 * ratings.confidence_level:.0f}% interval"
        head = ["demonstrator", "expertise", interval, "rank", "episodes", "steps"]
        words = ("{expertise:.2f}", "{low:.2f} to {high:.2f}", "{rank_low} to {rank_high}", "{episodes:,}", "{steps:,}")
        found = ratings.table().slice(0, _MOST_DEMONSTRATORS).to_pylist()
        rows = [[_escape(row["demonstrator"], most=200), *(each.format(**row) for each in words)] for row in found]
        note = f"Expertise is divided by its mean over demonstrators: {ratings.sentence()}"
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows[:_MOST_DEMONSTRATORS]]
    left_out = len(fitted.expertise.names) - _MOST_DEMONSTRATORS
    more = f"{left_out:,} more.\n\n" if left_out > 0 else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{more}{_escape(note)}."


def _escape(text: str, most: int | None = None) -> str:
    """Text from outside, cut and escaped for Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#!|~$&@])", r"\\\1", printable(text, most))


def push_to_hub(run: str | Path, repo_id: str, *, private: bool = True, anonymise: bool = False) -> str:
    """Upload a run directory with its model card to a repository of the Hugging Face hub, and return its address.

    A new repository is private unless `private` is False, because a run names the demonstrators; `anonymise` uploads
    pseudonyms instead. Other files in the directory, such as a report, are not uploaded. Log in with `hf auth login`
    first, or set HF_TOKEN.
    """
    hub, fitted = require("huggingface_hub", extra="hub"), load(run)
    if anonymise:
        fitted = fitted.anonymise()
    with tempfile.TemporaryDirectory() as folder, _one_sentence(repo_id):
        copy = Path(folder) / "run"
        fitted.save(copy)
        (copy / "README.md").write_text(card(fitted, repo_id=repo_id), encoding="utf-8")
        address = hub.create_repo(repo_id, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repo_id, folder_path=copy, commit_message="A fit by ileed")
    return str(address)


def from_pretrained(source: str | Path, *, revision: str | None = None) -> Fitted:
    """The fit in a run directory, or in a repository of the Hugging Face hub at a `revision`.

    The content of a repository is checked like any run directory by `ileed.load`, and never executed.
    """
    if os.path.isdir(source):
        return load(source)
    hub = require("huggingface_hub", extra="hub")
    # not from the hub's cache, which has links to other folders that `load` refuses
    with tempfile.TemporaryDirectory() as folder:
        with _one_sentence(source):
            hub.snapshot_download(str(source), revision=revision, local_dir=folder)
        return load(folder)


@contextmanager
def _one_sentence(repo_id: object) -> Iterator[None]:
    """Turn the exceptions of the hub's library into one sentence."""
    try:
        yield
    except IleedError:
        raise
    except Exception as error:
        advice = "check its name (OWNER/NAME), the network, and `hf auth login`"
        raise RunError(f"the repository {brief(repo_id)} cannot be used ({brief(error)}): {advice}") from error

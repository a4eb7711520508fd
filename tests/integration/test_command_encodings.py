"""The command where standard output cannot show every character: names are escaped, and nothing is a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ileed.cli import COMMANDS

NAMES = ("Jörg", "安娜", "Zoë 🎉")
ROLES = ("--action", "décision", "--who", "infirmière", "--episode", "épisode")
QUICK = ("--restarts", "1", "--steps", "3", "--folds", "2", "--device", "cpu")
ENCODINGS = {
    "ascii": {"PYTHONIOENCODING": "ascii:strict"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
SUCCESSES = (
    *((name, "--help") for name in ("--help", *COMMANDS)),
    ("inspect", "data.csv", *ROLES),
    ("inspect", "data.csv", *ROLES, "--json"),
    ("fit", "data.csv", *ROLES, *QUICK, "--out", "run"),
    ("rate", "run", "data.csv", *ROLES),
    ("curate", "run", "data.csv", *ROLES, "--keep", "0.5", "--out", "kept"),
    ("report", "run", "--table", "people.csv"),
    ("card", "run"),
    ("compare", "data.csv", *ROLES, "--restarts", "1", "--steps", "3"),
    ("label", "answers.csv", "--out", "labels"),
    ("convert", "data.csv", "data.parquet", *ROLES),
)
ERRORS = (
    ("décider",),
    ("inspect", "données.csv"),
    ("inspect", "data.csv", "--action", "décisions", "--who", "infirmière"),
    ("fit", "data.csv", *ROLES, "--expertise", "Événement()"),
    ("rate", "run", "absent 安.csv"),
)
IN_TURN = """
import json, sys
from ileed.__main__ import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["ileed", *words]
    try:
        main()
    except SystemExit as ended:
        print("ended with", ended.code, file=sys.stderr)
"""  # in one process: most of the time of a command is the import of torch


@pytest.mark.parametrize(
    "encoding", ["C locale", *(pytest.param(name, marks=pytest.mark.campaign) for name in ("ascii", "latin-1"))]
)
def test_no_command_fails_where_output_cannot_show_a_name(encoding, tmp_path):
    steps = [(who, episode, step) for who in NAMES for episode in range(4) for step in range(6)]
    rows = [f"{step % 2},{'oui' if step % 3 else 'não'},{who},{who} {episode}" for who, episode, step in steps]
    answers = [f"{task},{who},{'oui' if (task + k) % 3 else 'não'}" for task in range(8) for k, who in enumerate(NAMES)]
    (tmp_path / "data.csv").write_text("\n".join(["état,décision,infirmière,épisode", *rows]), encoding="utf-8")
    (tmp_path / "answers.csv").write_text("\n".join(["task,worker,label", *answers]), encoding="utf-8")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LC_", "LANG", "PYTHONIO", "PYTHONUTF8"))
    }
    ended = subprocess.run(
        [sys.executable, "-c", IN_TURN, json.dumps([*SUCCESSES, *ERRORS])],
        capture_output=True,
        cwd=tmp_path,
        env=environment | {"OMP_NUM_THREADS": "1"} | ENCODINGS[encoding],
    )
    said = ended.stderr.decode("latin-1")
    assert "Traceback" not in said
    codes = [int(line.split()[-1]) for line in said.splitlines() if line.startswith("ended with")]
    assert codes == [0] * len(SUCCESSES) + [2] * len(ERRORS)
    shown = NAMES[0].encode("latin-1" if encoding == "latin-1" else "ascii", "backslashreplace")
    assert shown in ended.stdout  # escaped, and not left out

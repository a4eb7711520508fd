"""The model card, and run directories on the Hugging Face hub, which a stand-in is in place of here."""

import inspect
import re
import shutil
import sys
from pathlib import Path

import pytest

import ileed
from ileed.cli import run
from ileed.errors import IleedError, RunError
from ileed.integrations.hub import card, from_pretrained, push_to_hub

NAMES = ("zoe quill", "adam | <b>brook</b>", "mia [stone](http://x)")
METHOD = ileed.Ileed(policy=ileed.CategoricalMLP(), restarts=2, steps=20, folds=2)
FILES = ["README.md", "history.jsonl", "provenance.json", "settings.json", "weights.safetensors"]


@pytest.fixture(scope="module")
def data() -> ileed.Demonstrations:
    shipped = ileed.shipped()
    some = shipped.by(*shipped.names[:3])
    columns = {name: getattr(some, name) for name in ("observations", "actions", "demonstrator", "episode")}
    return ileed.Demonstrations(**columns, names=NAMES, action_count=some.action_count)


@pytest.fixture(scope="module")
def fitted(data) -> ileed.Fitted:
    return METHOD.fit(data, seed=0)


@pytest.fixture
def saved(fitted, tmp_path) -> Path:
    fitted.save(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("of the user")
    (tmp_path / "run" / "README.md").write_text("of the user")
    return tmp_path / "run"


class Hub:
    """huggingface_hub 2.4 as far as it is called: repositories are folders below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, {}

    def create_repo(self, repo_id, *, token=None, private=None, repo_type=None, exist_ok=False):
        if "/" not in repo_id:
            raise ValueError(f"Repo id must be in the form 'namespace/repo_name': {repo_id}\nmore")
        assert exist_ok
        self.made.setdefault(repo_id, private)
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(self, *, repo_id, folder_path, path_in_repo=None, commit_message=None, token=None):
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)

    def snapshot_download(self, repo_id, *, revision=None, cache_dir=None, local_dir=None, token=None):
        """Into local_dir, or as links into a cache, as the hub's library does without one."""
        source = self.folder / repo_id
        if not source.is_dir():
            raise OSError(f"404: there is no {repo_id}")
        if local_dir is not None:
            shutil.copytree(source, local_dir, dirs_exist_ok=True)
            return str(local_dir)
        links = self.folder / "links"
        links.mkdir()
        for file in source.iterdir():
            (links / file.name).symlink_to(file)
        return str(links)


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Hub:
    found = Hub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", found)
    return found


def rows(text: str) -> list[list[str]]:
    """The cells of the card's table, as a Markdown reader divides and shows them."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[re.sub(r"\\(.)", r"\1", cell).strip() for cell in line] for line in cells]


def test_the_card_has_all_demonstrators_with_the_intervals_of_the_fit(fitted):
    head, _, *people = rows(card(fitted))
    assert head == ["demonstrator", "expertise", "95% interval", "rank", "episodes", "steps"]
    for cells, row in zip(people, fitted.expertise.table().to_pylist(), strict=True):
        assert cells[0] == row["demonstrator"]
        assert cells[1:3] == [f"{row['expertise']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}"]
        assert cells[4:] == [str(row["episodes"]), f"{row['steps']:,}"]


def test_the_front_matter_is_what_the_hub_reads_and_nothing_of_the_data(fitted, data):
    _, front, text = card(fitted).split("---\n", 2)
    assert front == "library_name: ileed\ntags:\n- ileed\n- imitation-learning\n- demonstrations\n"
    assert f"3 demonstrators, {data.episode_count} episodes, 3,000 steps" in text
    assert f"{fitted.nats_per_action:.4f} nats per action" in text
    assert "Do not use it to decide about anyone" in text
    assert not re.search(r"\$\w", text), "a field of the template was left"


def test_names_are_shown_in_a_card_and_do_nothing(fitted):
    text = card(fitted)
    assert "<b>" not in text.replace("\\<b\\>", "")
    assert "](http" not in text.replace("\\](http", "")


def test_a_card_of_a_fit_without_intervals_or_without_expertise_says_so(data):
    quick = {"policy": ileed.CategoricalMLP(), "restarts": 2, "steps": 5}
    assert "There are no intervals" in card(ileed.Ileed(**quick, folds=0).fit(data, seed=0))
    assert "Behaviour cloning" in card(ileed.bc(**quick).fit(data, seed=0))


def test_a_card_of_very_many_people_says_how_many_it_leaves_out(fitted, monkeypatch):
    monkeypatch.setattr("ileed.integrations.hub._MOST_DEMONSTRATORS", 2)
    assert len(rows(card(fitted))) == 2 + 2
    assert "\n1 more.\n" in card(fitted)


def test_the_command_prints_the_card_and_no_name_where_that_is_asked(saved, fitted, capsys):
    assert run(["card", str(saved)]) == 0
    assert capsys.readouterr().out == card(fitted)
    assert run(["card", str(saved), "--anonymise"]) == 0
    text = capsys.readouterr().out
    assert "person 1" in text
    assert not [name for name in ("quill", "brook", "stone") if name in text]
    assert (saved / "README.md").read_text() == "of the user"


def test_a_run_that_was_pushed_loads_as_it_was_with_its_card_and_without_other_files(saved, fitted, hub):
    assert push_to_hub(saved, "lab/people") == "https://huggingface.co/lab/people"
    assert hub.made == {"lab/people": True}, "private, since a run names people"
    there = hub.folder / "lab/people"
    assert sorted(path.name for path in there.iterdir()) == FILES
    for name in ("history.jsonl", "provenance.json", "settings.json", "weights.safetensors"):
        assert (there / name).read_bytes() == (saved / name).read_bytes(), name
    assert (there / "README.md").read_text() == card(fitted, repo_id="lab/people")
    again = from_pretrained("lab/people")
    assert again.expertise.by_demonstrator() == fitted.expertise.by_demonstrator()
    assert from_pretrained(saved).nats_per_action == fitted.nats_per_action
    with pytest.raises(
        RunError, match="a link to a file outside"
    ):  # which is why from_pretrained has a folder of its own
        ileed.load(hub.snapshot_download("lab/people"))


def test_no_name_is_pushed_where_that_is_asked(saved, data, hub):
    push_to_hub(saved, "lab/people", private=False, anonymise=True)
    assert hub.made == {"lab/people": False}
    content = b"".join(path.read_bytes() for path in (hub.folder / "lab/people").iterdir())
    assert not [word for word in (b"quill", b"brook", b"stone") if word in content]
    pushed = from_pretrained("lab/people")
    assert pushed.expertise.names == tuple(data.pseudonyms()[name] for name in NAMES)
    assert pushed.expertise.names == ileed.load(saved).anonymise().expertise.names


def test_a_repository_that_cannot_be_used_is_one_sentence(saved, hub, monkeypatch):
    with pytest.raises(
        RunError, match=r"'people' cannot be used \(Repo id must be .*\): check its name \(OWNER/NAME\)"
    ):
        push_to_hub(saved, "people")
    with pytest.raises(RunError, match="there is no lab/absent"):
        from_pretrained("lab/absent")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(IleedError, match=r"pip install 'ileed\[hub\]'"):
        push_to_hub(saved, "lab/people")


def test_the_stand_in_has_the_parameters_of_the_real_library():
    real = pytest.importorskip("huggingface_hub", reason="huggingface_hub is absent: pip install 'ileed[hub]'")
    for name in ("create_repo", "upload_folder", "snapshot_download"):
        ours = inspect.signature(getattr(Hub, name)).parameters.keys() - {"self"}
        assert ours <= inspect.signature(getattr(real, name)).parameters.keys(), name

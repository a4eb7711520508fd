"""Files of others: nothing outside them is read, what they do not hold gets no memory, and damage is one sentence."""

from __future__ import annotations

import gzip
import json
import resource
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file
from strategies import world

import ileed
from ileed import DemonstrationError, RunError, _memory, by_mask, by_one
from ileed.envs.minigrid import Expert
from ileed.formats import label_robomimic, read_robomimic, write_parquet, write_robomimic
from ileed.formats.robomimic import demonstrators_of
from ileed_lab.baselines.gail import GailPolicy
from ileed_lab.chess import sources
from ileed_lab.chess.positions import SCHEMA, read_positions
from ileed_lab.expert_files import load_expert, save_expert


def refusal(path: Path, **options) -> str:
    """The sentence with which a file is refused; reading it takes no more memory than a small file should."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DemonstrationError) as caught:
        ileed.read(path, **options)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes
    sentence = str(caught.value)
    assert len(sentence.splitlines()) == 1
    return sentence


# --- parquet


def parquet(path: Path, *, notes=None, **columns) -> Path:
    """A sound file of three steps, with columns added or replaced."""
    own = {
        "observation": [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]],
        "action": [0, 1, 0],
        "demonstrator": ["ann", "ann", "bob"],
        "episode": [0, 0, 1],
    }
    table = pa.table(own | columns)
    pq.write_table(table if notes is None else table.replace_schema_metadata({"ileed": notes}), path)
    return path


@pytest.mark.parametrize(
    ("notes", "fragments"),
    [
        ("[]", ["hold []", "must be a JSON object"]),
        ("null", ["hold None", "must be a JSON object"]),
        ("{", ["must be a JSON object"]),
        ("[" * 100_000, ["must be a JSON object"]),
        ('{"names": 3}', ["hold 3", "names must be a list of strings"]),
        ('{"names": ["ann", 3]}', ["names must be a list of strings"]),
        ('{"names": "annbob"}', ["names must be a list of strings"]),
        ('{"action_count": "x"}', ["hold 'x'", "action_count must be a whole number"]),
        ('{"action_count": true}', ["action_count must be a whole number"]),
        ('{"observation_shape": 3}', ["hold 3", "observation_shape must be a list of whole numbers"]),
        ('{"observation_shape": [-1, -2]}', ["observation_shape must be a list of whole numbers"]),
        ('{"observation_shape": [7, 7]}', ["have 2 numbers", "shape is (7, 7)", "the product must be the number"]),
        ('{"observation_shape": [4294967296, 4294967296]}', ["the product must be the number"]),
        ('{"observation_shape": [0]}', ["the product must be the number"]),
    ],
)
def test_metadata_of_another_kind_are_refused_in_one_sentence(tmp_path, notes, fragments):
    sentence = refusal(parquet(tmp_path / "data.parquet", notes=notes))
    for fragment in fragments:
        assert fragment in sentence


FOREIGN = {
    "a null": [None, 1, 2],
    "a ragged list": [[0.0], [], [1.0, 2.0]],
    "a null in a list": [[None], [1.0], [1.0]],
    "a list of lists": [[[0.0]], [[1.0]], [[]]],
    "a struct": [{"a": 1}, {"a": 2}, None],
    "nothing": [None, None, None],
    "bytes": [b"\xff", b"", b"x"],
}


@pytest.mark.parametrize("values", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_parquet_column_that_was_not_requested_does_not_matter(tmp_path, values):
    assert len(ileed.read(parquet(tmp_path / "data.parquet", comment=values, **{"skill": values}))) == 3


def test_a_parquet_file_without_a_row_is_said_to_have_no_steps(tmp_path):
    path = tmp_path / "written.parquet"
    ileed.write_parquet(ileed.shipped(), path)
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    with pytest.raises(ileed.DemonstrationError, match=r"there are no steps in .*written.parquet"):
        ileed.read(path)


def test_a_parquet_file_that_would_not_fit_in_memory_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    """A constant compresses by any factor: 10 million rows, 200 MB of them, in a hundredth of that."""
    rows = 10_000_000
    constant = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), ["ann"])
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows, np.float64)), 1)
    table = pa.table({"observation": lists, "action": constant.indices, "demonstrator": constant, "episode": constant})
    path = tmp_path / "data.parquet"
    pq.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 2_000_000
    monkeypatch.setattr(_memory, "available_bytes", lambda: 100_000_000)
    assert "when decoded" in refusal(path)


def test_a_long_word_in_every_row_is_refused_before_it_is_repeated(tmp_path, monkeypatch):
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), ["n" * 100_000])
    zeros = pa.array(np.zeros(100_000, np.int64))
    lists = pa.FixedSizeListArray.from_arrays(zeros, 1)
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"observation": lists, "action": zeros, "demonstrator": words, "episode": zeros}), path)
    monkeypatch.setattr(_memory, "available_bytes", lambda: 8 << 30)
    assert "column 'demonstrator'" in refusal(path)


def test_a_long_text_in_every_row_of_a_table_is_refused_before_it_is_repeated(tmp_path):
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), ["n" * 100_000])
    action = pa.array(np.arange(100_000) % 2)
    pq.write_table(pa.table({"age": action, "note": words, "decision": action, "nurse": words}), tmp_path / "t.parquet")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DemonstrationError, match="'nurse' holds a text of 100,000 characters"):
        ileed.from_table(tmp_path / "t.parquet", action="decision", demonstrator="nurse")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


@pytest.mark.parametrize("name", ["observation", "action", "demonstrator", "episode"])
def test_two_columns_of_one_name_are_refused(tmp_path, name):
    table = pq.read_table(parquet(tmp_path / "data.parquet"))
    pq.write_table(table.append_column(name, table.column(name)), tmp_path / "data.parquet")
    assert f"has 2 columns '{name}'" in refusal(tmp_path / "data.parquet")


# --- HDF5


def robomimic(path: Path, **changes) -> Path:
    """A sound file of two people, three episodes each, in which data sets are replaced: by a maker, or not at all."""
    write_robomimic(world(discrete=False, floating=True, optional=["rewards"]), path)
    with h5py.File(path, "r+") as file:
        for place, made in changes.items():
            name = place.replace("__", "/")
            if name in file:
                del file[name]
            if callable(made):
                made(file, name)
            elif made is not None:
                file[name] = made
    return path


def secret(folder: Path) -> Path:
    """Another file of this machine, which no data set may show."""
    with h5py.File(folder / "secret.hdf5", "w") as file:
        write = file.create_dataset("actions", data=np.full((6, 3), 42.0, dtype=np.float32))
        file["obs/flat"] = write[()]
        file["names"] = np.array([b"demo_0"])
    (folder / "secret.bin").write_bytes(bytes(range(72)))
    return folder / "secret.hdf5"


@pytest.mark.parametrize("place", ["data", "data__demo_0", "data__demo_0__obs", "data__demo_0__actions", "mask__ann"])
def test_a_link_to_another_file_is_refused(tmp_path, place):
    other = secret(tmp_path)
    path = robomimic(tmp_path / "data.hdf5", **{place: h5py.ExternalLink(str(other), "/actions")})
    sentence = refusal(path, demonstrator=by_mask("ann", unmatched="drop"))
    assert "is a link to another file" in sentence
    if place.endswith(("data", "demo_0", "actions")):  # what these read
        for read in (demonstrators_of, lambda path: label_robomimic(path, tmp_path / "out.hdf5")):
            with pytest.raises(DemonstrationError, match="is a link to another file"):
                read(path)
    assert not (tmp_path / "out.hdf5").exists()


def test_a_link_that_leads_through_another_file_is_refused(tmp_path):
    other = secret(tmp_path)

    def behind(file, name):
        file["door"] = h5py.ExternalLink(str(other), "/")
        file[name] = h5py.SoftLink("/door/actions")

    path = robomimic(tmp_path / "data.hdf5", data__demo_0__actions=behind)
    assert "is a link to another file" in refusal(path, demonstrator=by_one("ann"))


def test_numbers_that_lie_in_another_file_are_refused(tmp_path):
    secret(tmp_path)

    def outside(file, name):
        stored = [(str(tmp_path / "secret.bin"), 0, 72)]
        file.create_dataset(name, shape=(6, 3), dtype="f4", external=stored)

    path = robomimic(tmp_path / "data.hdf5", data__demo_0__actions=outside)
    assert "keeps its numbers in another file" in refusal(path, demonstrator=by_one("ann"))


def test_a_virtual_data_set_is_refused(tmp_path):
    other = secret(tmp_path)

    def virtual(file, name):
        layout = h5py.VirtualLayout(shape=(6, 3), dtype="f4")
        layout[:] = h5py.VirtualSource(str(other), "actions", shape=(6, 3))
        file.create_virtual_dataset(name, layout)

    path = robomimic(tmp_path / "data.hdf5", data__demo_0__actions=virtual)
    assert "is a virtual data set" in refusal(path, demonstrator=by_one("ann"))


@pytest.mark.parametrize(
    ("place", "target", "says"),
    [
        ("data__demo_0__actions", "/nowhere", "is a link to '/nowhere', which is not in the file"),
        ("data__demo_0", "/nowhere", "which is not in the file"),
        ("mask__ann", "/nowhere", "which is not in the file"),
        ("data__demo_0__actions", "/data/demo_0/actions", "leads in a circle"),
    ],
)
def test_a_link_that_leads_nowhere_is_one_sentence(tmp_path, place, target, says):
    path = robomimic(tmp_path / "data.hdf5", **{place: h5py.SoftLink(target)})
    assert says in refusal(path, demonstrator=by_mask("ann", unmatched="drop"))


def test_a_link_inside_the_file_is_followed(tmp_path):
    path = robomimic(tmp_path / "data.hdf5", data__demo_9=h5py.SoftLink("/data/demo_0"))
    before = read_robomimic(robomimic(tmp_path / "before.hdf5"))
    assert ileed.read(path).episode_count == before.episode_count + 1


def test_links_that_lead_through_two_others_each_take_no_time(tmp_path):
    def doubling(file, name):
        for depth in range(40):
            file[f"l{depth}"] = h5py.SoftLink(f"/l{depth + 1}/l{depth + 1}")
        file["l40"] = h5py.SoftLink("/")
        file[name] = h5py.SoftLink("/l0")

    path = robomimic(tmp_path / "data.hdf5", data__demo_0__actions=doubling)
    assert "leads in a circle" in refusal(path, demonstrator=by_one("ann"))


MASKS = {
    "a group": (lambda file, name: file.create_group(name), "mask 'ann' is a group"),
    "a scalar": (b"demo_0", "mask 'ann' holds"),
    "a number": (3, "mask 'ann' holds"),
    "numbers": (np.arange(3), "mask 'ann' holds int64"),
    "empty": (h5py.Empty("S6"), "mask 'ann' is empty"),
    "not UTF-8": (np.array([b"\xff\xfe"]), "'mask/ann' is not text in UTF-8"),
    "of two axes": (np.array([[b"demo_0"]]), "mask 'ann' holds"),
    "sparse": (lambda file, name: file.create_dataset(name, (10**9,), dtype="S6", chunks=(1000,)), "declares"),
}


@pytest.mark.parametrize(("made", "says"), MASKS.values(), ids=MASKS.keys())
def test_a_mask_that_lists_no_names_is_one_sentence(tmp_path, monkeypatch, made, says):
    monkeypatch.setattr(_memory, "available_bytes", lambda: 10**12)
    path = robomimic(tmp_path / "data.hdf5", mask__ann=made)
    assert says in refusal(path, demonstrator=by_mask("ann", unmatched="drop"))


def sparse(file, name):
    file.create_dataset(name, shape=(10**9, 3), dtype="f4", chunks=(1000, 3), compression="gzip")


def one_large_chunk(file, name):
    file.create_dataset(name, shape=(6, 3), maxshape=(None, 3), dtype="f4", chunks=(2**26, 3), compression="gzip")


@pytest.mark.parametrize("made", [sparse, one_large_chunk])
@pytest.mark.parametrize("available", [1 << 30, 1 << 50])
def test_a_data_set_that_declares_more_than_the_file_holds_is_refused(tmp_path, monkeypatch, made, available):
    monkeypatch.setattr(_memory, "available_bytes", lambda: available)
    path = robomimic(tmp_path / "data.hdf5", data__demo_0__actions=made, data__demo_0__obs__flat=made)
    sentence = refusal(path, demonstrator=by_one("ann"))
    assert ("when decoded" in sentence) if available == 1 << 30 else ("the file stores 0 bytes of them" in sentence)


def test_flipped_bytes_in_an_hdf5_file_are_read_or_one_sentence(tmp_path):
    content = robomimic(tmp_path / "data.hdf5").read_bytes()
    random = np.random.default_rng(0)
    for _ in range(60):
        flipped = bytearray(content)
        for place in random.integers(len(content), size=20):
            flipped[place] ^= 1 << int(random.integers(8))
        (tmp_path / "data.hdf5").write_bytes(flipped)
        sentence = "read"
        try:
            ileed.read(tmp_path / "data.hdf5")
        except DemonstrationError as error:
            sentence = str(error)
        assert len(sentence.splitlines()) == 1


def test_a_demonstrator_of_an_absurd_number_gets_no_names_made_for_all_before(tmp_path):
    path = robomimic(tmp_path / "data.hdf5", data__demo_0__demonstrator=np.full(6, 2**62))
    with h5py.File(path, "r+") as file:
        del file["data"].attrs["ileed"]
    with pytest.raises(DemonstrationError, match="has no name"):
        demonstrators_of(path)


@pytest.mark.parametrize(
    ("notes", "says"),
    [
        ("[]", "must be a JSON object"),
        (3, "is not JSON"),
        (h5py.Empty("S1"), "is not JSON"),
        ('{"names": 3}', "'names' in the attribute"),
        ('{"observations": {}}', "'observations' in the attribute"),
        ('{"observation_shape": [-1]}', "'observation_shape' in the attribute"),
        ('{"observations": ["flat"], "observation_shape": [9, 9]}', "the product must be the number"),
        ('{"skills": []}', "'skills' in the attribute"),
    ],
)
def test_an_attribute_of_another_kind_is_one_sentence(tmp_path, notes, says):
    path = robomimic(tmp_path / "data.hdf5")
    with h5py.File(path, "r+") as file:
        file["data"].attrs["ileed"] = notes
    assert says in refusal(path)


# --- networks, checkpoints and games


@pytest.mark.parametrize("kind", [Expert, GailPolicy])
@pytest.mark.parametrize("change", ["shape", "type", "nan", "missing", "origin"])
def test_a_network_that_cannot_be_run_is_refused_when_it_is_loaded(tmp_path, kind, change):
    random = np.random.default_rng(0)
    layers = [(random.normal(size=(3, 3)).astype(np.float32), np.zeros(3, np.float32)) for _ in range(2)]
    path = tmp_path / "policy.safetensors"
    if kind is Expert:
        save_expert(Expert(tuple(layers), {}), path)
    else:
        GailPolicy(tuple(layers)).save(path)
    tensors, notes = load_file(path), {"origin": "[]" if change == "origin" else "{}", "kind": "GailPolicy"}
    if change == "origin" and kind is GailPolicy:
        notes = {}
    weight = tensors["1.weight"]
    changed = {"shape": weight[:, :2].contiguous(), "type": weight.half(), "nan": weight * float("nan")}
    if change == "missing":
        del tensors["0.bias"]
    elif change in changed:
        tensors["1.weight"] = changed[change]
    save_file(tensors, path, metadata=notes)
    with pytest.raises(RunError) as caught:
        (load_expert if kind is Expert else GailPolicy.load)(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_line_without_an_end_in_a_compressed_table_takes_bounded_memory(tmp_path):
    path = tmp_path / "games.csv.gz"
    path.write_bytes(gzip.compress(b"x" * (200 << 20)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DemonstrationError, match="has no column 'id'"):
        sources.check(path)
    header = ",".join(sources.COLUMNS).encode() + b"\n"
    path.write_bytes(gzip.compress(header + b"x" * (100 << 20)))
    assert sum(sum(chunk.damaged.values()) for chunk in sources.chunks(path)) > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_many_blank_lines_between_games_take_no_time(tmp_path):
    (tmp_path / "games.pgn").write_bytes(b'[Event "x"]\n\n1. e4 *' + b"\n" * (5 << 20) + b"x")
    assert len(list(sources.chunks(tmp_path / "games.pgn"))) >= 1


def test_a_table_of_positions_is_read_by_its_own_columns(tmp_path):
    rows = [{"game_id": "g", "ply": 0, "fen": "4k3/8/8/8/8/8/P7/4K3 w - -", "move": "a2a4", "player": "ann"}]
    table = pa.Table.from_pylist(rows, schema=pa.schema([field for field in SCHEMA if field.name in rows[0]]))
    pq.write_table(table.append_column("comment", pa.array([[None, 1]])), tmp_path / "positions.parquet")
    assert len(read_positions(tmp_path / "positions.parquet")) == 1
    pq.write_table(table.append_column("ply", pa.array([1])), tmp_path / "positions.parquet")
    with pytest.raises(DemonstrationError, match="2 columns 'ply'"):
        read_positions(tmp_path / "positions.parquet")


def test_a_compressed_table_of_positions_that_does_not_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_memory, "available_bytes", lambda: 20_000_000)
    line = b"g,0,4k3/8/8/8/8/8/P7/4K3 w - -,a2a4,ann\n"
    (tmp_path / "positions.csv.gz").write_bytes(gzip.compress(b"game_id,ply,fen,move,player\n" + line * 1_000_000))
    with pytest.raises(DemonstrationError, match="when decoded"):
        read_positions(tmp_path / "positions.csv.gz")


def test_what_is_available_is_bounded_by_the_process_own_limit():
    assert 0 < _memory.available_bytes() < 1 << 50
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), limits[1]))
    try:
        assert _memory.available_bytes() <= 1 << 30
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_our_own_files_are_read_as_before(tmp_path):
    data = world(optional=["rewards", "terminals", "legal", "phase", "load"], shape=(2, 2))
    write_parquet(data, tmp_path / "data.parquet")
    assert ileed.read(tmp_path / "data.parquet").equals(data)
    assert json.loads(pq.read_schema(tmp_path / "data.parquet").metadata[b"ileed"])["format"] == 1

"""Further readers to fuzz: data sets that are folders (LeRobot's, Minari's, imitation's, crowd tables), and npz."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import fuzz_readers
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_harness import OUTSIDE, Reader
from fuzz_readers import (
    NASTY,
    blank_lines,
    changed_json,
    changed_text,
    doubled,
    dropped,
    fewer_rows,
    foreign,
    linked,
    nested,
    other_fields,
    other_length,
    other_notes,
    other_words,
    parse_table,
    plain_file,
    removed,
    renamed,
    renamed_part,
    repeated,
    replaced_data_set,
    retyped,
    shuffled,
    use,
    with_extremes,
    with_file,
    with_nulls,
    with_table,
    with_text,
    within,
)
from strategies import world

import ileed
from ileed.formats import (
    by_column,
    by_one,
    read_imitation,
    read_lerobot,
    read_minari,
    write_imitation,
    write_lerobot,
    write_minari,
)


def small_world(chance: Random) -> ileed.Demonstrations:
    discrete = chance.random() < 0.5
    optional = [name for name in ("rewards", "terminals", "legal", "phase", "load") if chance.random() < 0.5]
    optional = [name for name in optional if discrete or name != "legal"]
    lengths = [chance.randint(2, 8) for _ in range(6)]
    return world(lengths, discrete=discrete, floating=chance.random() < 0.5, optional=optional)


def with_stream(change: Any) -> Any:
    """A change of the table in an Arrow file, of either of Arrow's two formats."""

    def mutate(file: Path, chance: Random) -> None:
        content = file.read_bytes()
        is_file = content[:6] == b"ARROW1"
        table = change((pa.ipc.open_file if is_file else pa.ipc.open_stream)(content).read_all(), chance)
        sink = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression=chance.choice([None, None, "zstd", "lz4"]))
        kind = chance.choice([pa.ipc.new_stream, pa.ipc.new_file]) if chance.random() < 0.2 else None
        with (kind or (pa.ipc.new_file if is_file else pa.ipc.new_stream))(sink, table.schema, options=options) as out:
            out.write_table(table, max_chunksize=chance.choice([None, 1, 3]))
        file.write_bytes(sink.getvalue())

    return mutate


TABLES = (dropped, renamed, doubled, retyped, retyped, foreign, with_nulls, fewer_rows, shuffled)


def other_file(*names: str) -> Any:
    """A file of the folder that is not there, is a folder, or is a link."""

    def mutate(path: Path, chance: Random) -> None:
        file = plain_file(path / chance.choice(names))
        content = file.read_bytes()
        file.unlink()
        kind = chance.choice(["gone", "outside", "inside", "dangling", "folder", "circle", "empty"])
        if kind == "outside":
            file.symlink_to(path.with_name(OUTSIDE))
        elif kind == "inside":
            (path / "other").write_bytes(content)
            file.symlink_to("other")
        elif kind == "dangling":
            file.symlink_to("nowhere")
        elif kind == "folder":
            file.mkdir()
        elif kind == "circle":
            file.symlink_to(file.name)
        elif kind == "empty":
            file.write_bytes(b"")

    return mutate


# --- Minari


def make_minari(path: Path, chance: Random) -> None:
    """The folder `data` of a data set, in HDF5 or, for half of them, in Arrow."""
    data = small_world(chance)
    whole = path.with_name("whole-v0")
    write_minari(data, whole)
    shutil.move(whole / "data", path)
    shutil.rmtree(whole)
    if chance.random() < 0.5:
        return
    about = json.loads((path / "metadata.json").read_text()) | {"data_format": "arrow"}
    (path / "metadata.json").write_text(json.dumps(about))
    with h5py.File(path / "main_data.hdf5") as file:
        for name, group in file.items():
            folder = path / name.removeprefix("episode_")
            folder.mkdir()
            kept = {key: group[key][()] for key in ("observations", "actions", "rewards", "terminations")}
            rows = len(kept["observations"])
            padded = {key: np.concatenate([each, each[-1:]])[:rows] for key, each in kept.items()}
            infos = {"infos": pa.array([{"level": 1, "player": "ann"}] * rows)}
            table = pa.table({key: pa.array(list(each)) for key, each in padded.items()} | infos)
            with pa.ipc.new_file(folder / "part-0.arrow", table.schema) as out:
                out.write_table(table)
            (folder / "metadata.json").write_text(json.dumps({"id": 0, "demonstrator": group.attrs["demonstrator"]}))
    (path / "main_data.hdf5").unlink()


def in_storage(change_hdf5: Any, change_table: Any) -> Any:
    def mutate(path: Path, chance: Random) -> None:
        if (path / "main_data.hdf5").is_file():
            with_file(change_hdf5)(path / "main_data.hdf5", chance)
        else:
            with_stream(change_table)(path / str(chance.randrange(6)) / "part-0.arrow", chance)

    return mutate


def other_metadata(path: Path, chance: Random) -> None:
    """A value inside what metadata.json holds as text: a space, or our notes; or the metadata of an episode."""
    name = chance.choice(["observation_space", "action_space", "ileed", "episode"])
    if name == "episode":
        if (path / "main_data.hdf5").is_file():
            with h5py.File(path / "main_data.hdf5", "r+", libver=("v110", "v110")) as file:
                values = [3, 0.5, "zoe", b"\xff", h5py.Empty("S1"), np.arange(3), nested(9_000), True]
                file["episode_1"].attrs[chance.choice(["demonstrator", "id"])] = chance.choice(values)
        else:
            changed_text("metadata.json")(path / "1", chance)
        return
    file = plain_file(path / "metadata.json")
    about = json.loads(file.read_text())
    inner = changed_json(json.loads(about[name]), chance)
    about[name] = chance.choice([json.dumps(inner), json.dumps(inner), inner, nested(50_000)])
    file.write_text(json.dumps(about))


def parse_minari(path: Path) -> None:
    about = json.loads(plain_file(path / "metadata.json").read_bytes())
    if about["data_format"] == "hdf5":
        fuzz_readers.walk_hdf5(plain_file(path / "main_data.hdf5"))
        return
    for file in sorted(path.glob("*/part-0.arrow")):
        pa.ipc.open_file(file.read_bytes()).read_all()


MINARI = Reader(
    name="minari",
    suffixes=[""],
    make=make_minari,
    mutators={
        "removed": in_storage(removed, dropped),
        "linked": in_storage(linked, doubled),
        **{f"replaced {k}": in_storage(replaced_data_set, retyped) for k in range(3)},
        "length": in_storage(other_length, fewer_rows),
        "renamed": in_storage(renamed_part, renamed),
        "nulls": in_storage(other_length, with_nulls),
        "metadata": changed_text("metadata.json"),
        **{f"inner {k}": other_metadata for k in range(3)},
        "files": other_file("metadata.json", "main_data.hdf5", "0/part-0.arrow", "0/metadata.json"),
    },
    parses=parse_minari,
    read=lambda path, chance: use(read_minari(path), chance),
    commands=[["inspect", "FILE"], ["inspect", "FILE", "--json"], ["inspect", "FILE", "--one", "ann"]],
)


# --- imitation


def make_imitation(path: Path, chance: Random) -> None:
    data = small_world(chance)
    if path.suffix != ".npz":
        write_imitation(data, path)
        return
    starts = np.flatnonzero(np.diff(data.episode, prepend=-1))
    ends = np.append(starts[1:], len(data))
    values = {
        "obs": data.observations[np.insert(np.arange(len(data)), ends, ends - 1)],
        "acts": data.actions,
        "infos": np.array([{}] * len(data), dtype=object),
        "terminal": np.ones(len(starts), dtype=bool),
        "indices": starts[1:],
    }
    write_members(path, values)


def write_members(path: Path, values: dict[str, Any]) -> None:
    """An npz file whose bytes do not depend on the time."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, each in values.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asanyarray(each))
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue(), zipfile.ZIP_DEFLATED)


def other_members(path: Path, chance: Random) -> None:
    with np.load(path, allow_pickle=False) as opened:
        values = {name: opened[name] for name in opened.files if name != "infos"}
    name = chance.choice(list(values))
    each, nasty = values[name], chance.choice([0, -1, 2**40, 0.5, float("nan"), float("inf")])
    changes = [
        lambda: each[:-1],
        lambda: each[:0],
        lambda: np.concatenate([each, each]),
        lambda: np.full(each.shape, nasty),
        lambda: np.full(each.shape, b"word"),
        lambda: np.full(each.shape, {"a": 1}),
        lambda: each.reshape(*each.shape, 1),
        lambda: np.array(3),
        lambda: each.astype(np.complex64),
        lambda: np.zeros(len(each), dtype=[("a", "f4")]),
    ]
    if chance.random() < 0.2:
        values[chance.choice(["rews", "x", "../x"])] = values.pop(name)
    else:
        values[name] = chance.choice(changes)()
    write_members(path, values)


def other_infos(table: pa.Table, chance: Random) -> pa.Table:
    rows = table.column("infos").to_pylist()
    row = chance.randrange(len(rows))
    pool = [*map(json.dumps, NASTY), "{", nested(50_000), '{"demonstrator": {"py/object": "os.system"}}', "{}", None]
    texts = [chance.choice(pool) if chance.random() < 0.5 else text for text in rows[row]]
    rows[row] = [None if text is None else text.encode("utf-8", "replace").decode() for text in texts]
    place = table.column_names.index("infos")
    return table.set_column(place, "infos", pa.array(rows, pa.list_(pa.string())))


def in_folder(change: Any) -> Any:
    def mutate(path: Path, chance: Random) -> None:
        if path.is_dir():
            with_stream(change)(path / "data-00000-of-00001.arrow", chance)
        else:
            other_members(path, chance)

    return mutate


def parse_imitation(path: Path) -> None:
    if path.is_dir():
        json.loads(plain_file(path / "state.json").read_bytes())
        pa.ipc.open_stream(plain_file(path / "data-00000-of-00001.arrow").read_bytes()).read_all()
    else:
        zipfile.ZipFile(path).testzip()


def read_trajectories(path: Path, chance: Random) -> None:
    is_npz = path.suffix == ".npz"
    use(read_imitation(path, demonstrator=by_one("ann") if is_npz or chance.random() < 0.2 else None), chance)


IMITATION = Reader(
    name="imitation",
    suffixes=["", "", ".npz"],
    make=make_imitation,
    mutators={
        **{f"{change.__name__} {k}": in_folder(change) for k, change in enumerate(TABLES)},
        "notes": in_folder(other_notes),
        "infos": in_folder(other_infos),
        "state": changed_text("state.json"),
        "files": other_file("state.json", "data-00000-of-00001.arrow"),
    },
    parses=parse_imitation,
    read=read_trajectories,
    commands=[["inspect", "FILE"], ["inspect", "FILE", "--one", "ann"]],
)


# --- tables of answers


def make_crowd(path: Path, chance: Random) -> None:
    path.mkdir()
    rows = [(task, worker, chance.randrange(3)) for task in range(9) for worker in ("ann", "bob", "007")]
    lines = ["question,worker,answer", *(",".join(map(str, row)) for row in chance.sample(rows, 20))]
    (path / "answer.csv").write_text("\n".join(lines) + "\n")
    if chance.random() < 0.7:
        (path / "truth.csv").write_text("question,truth\n" + "".join(f"{task},{task % 3}\n" for task in range(9)))


def in_answers(change: Any) -> Any:
    return lambda path, chance: within(chance.choice(["answer.csv", "answer.csv", "truth.csv"]), with_text(change))(
        path, chance
    )


CROWD = Reader(
    name="crowd",
    suffixes=[""],
    make=make_crowd,
    mutators={
        **{
            f"{change.__name__} {k}": in_answers(change)
            for k, change in enumerate((other_fields, other_fields, other_fields, other_words, repeated, blank_lines))
        },
        "files": other_file("answer.csv", "truth.csv"),
    },
    parses=lambda path: parse_table(plain_file(path / "answer.csv")),
    read=lambda path, chance: use(ileed.read(path), chance),
    commands=[["inspect", "FILE"], ["inspect", "FILE", "--json"]],
)


# --- LeRobot

FRAMES, EPISODES = "data/chunk-000/*.parquet", "meta/episodes/chunk-000/file-000.parquet"


def make_lerobot(path: Path, chance: Random) -> None:
    """A folder of either version; two in three are as others write them, without our notes."""
    write_lerobot(small_world(chance), path, version=chance.choice(["v3.0", "v2.1"]))
    if chance.random() < 0.7:
        (path / "meta/ileed.json").unlink()


def in_frames(change: Any) -> Any:
    """A change of a table of frames, or now and then of one in meta."""

    def mutate(path: Path, chance: Random) -> None:
        places = [*path.glob(FRAMES)] * 3 + [*path.glob(EPISODES), *path.glob("meta/tasks.parquet")]
        with_table(change)(plain_file(chance.choice(sorted(places))), chance)

    return mutate


def other_lines(path: Path, chance: Random) -> None:
    """A line of meta/*.jsonl, of a folder of v2.1; a value of meta/info.json of others."""
    files = sorted(path.glob("meta/*.jsonl"))
    if not files:
        changed_text("meta/info.json")(path, chance)
        return
    file = plain_file(chance.choice(files))
    lines = file.read_text().splitlines()
    at = chance.randrange(len(lines))
    words = [json.dumps(changed_json(json.loads(lines[at]), chance)), "", "{", "[]", nested(50_000), "3", lines[0]]
    lines[at] = chance.choice(words)
    file.write_text("\n".join(lines).encode("utf-8", "replace").decode())


def other_part(path: Path, chance: Random) -> None:
    files = [str(file.relative_to(path)) for file in sorted(path.rglob("*")) if file.is_file()]
    other_file(*files)(path, chance)


def parse_lerobot(path: Path) -> None:
    json.loads(plain_file(path / "meta/info.json").read_bytes())
    for file in sorted(path.glob(FRAMES)):
        pq.read_table(io.BytesIO(plain_file(file).read_bytes()))


def read_folder(path: Path, chance: Random) -> None:
    place = chance.choice([None, by_column("operator"), by_column("operator"), by_one("ann"), by_column("task_index")])
    use(read_lerobot(path, demonstrator=place), chance)


LEROBOT = Reader(
    name="lerobot",
    suffixes=[""],
    make=make_lerobot,
    mutators={
        **{f"{change.__name__} {k}": in_frames(change) for k, change in enumerate((*TABLES, with_extremes))},
        **{f"info {k}": changed_text("meta/info.json") for k in range(3)},
        "lines": other_lines,
        "files": other_part,
    },
    parses=parse_lerobot,
    read=read_folder,
    commands=[["inspect", "FILE"], ["inspect", "FILE", "--json"], ["inspect", "FILE", "--demonstrator", "operator"]],
)


READERS = fuzz_readers.READERS | {reader.name: reader for reader in (MINARI, IMITATION, CROWD, LEROBOT)}

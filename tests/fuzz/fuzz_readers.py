"""The readers to fuzz: each with a maker of valid files, mutators, the format's own parser, and a use."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import zstandard
from fuzz_harness import OUTSIDE, Reader
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from strategies import world

import ileed
from ileed import CategoricalMLP, Constant, Embedded, Ileed, MixtureLSTM, MixtureMLP, Perfect, Skills
from ileed.data import Demonstrations
from ileed.envs.minigrid import Expert
from ileed.errors import IleedError
from ileed.fitting import Outcome
from ileed.formats import from_table, read_parquet, read_robomimic, write_parquet, write_robomimic
from ileed.report.sections import Content
from ileed_lab.baselines.gail import GailPolicy
from ileed_lab.chess.extraction import extract
from ileed_lab.chess.positions import SCHEMA, demonstrations, read_positions, write_positions
from ileed_lab.expert_files import load_expert, save_expert

NASTY: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 2**31, 2**53 + 1, 10**18, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, 1e-320),
    *(
        float("nan"),
        float("inf"),
        "",
        "x",
        "0",
        "NaN",
        "../../../etc/passwd",
        "/dev/zero",
        "a\nb",
        "\x1b[31m",
        "\ud800",
    ),
    *("n" * 2000, [], {}, [[]], [None], [1, "x"], [-1], [0], [2**62, 2**62], {"kind": "Ileed"}, {"kind": 3}, {"a": {}}),
]
NASTY_NUMBERS = [0, -1, 1, 2**31, 2**62, -(2**63), 0.5, 1e38, 3.5e38, 1e300, float("nan"), float("inf"), -float("inf")]


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def use(data: Demonstrations, chance: Random) -> None:
    """What a user does with demonstrations: look at them, count them, sometimes fit and write them."""
    data.check()
    repr(data)
    data.collapsed()
    assert data.fingerprint
    if chance.random() < 0.1:
        Ileed(restarts=1, steps=2).fit(data, seed=0, device="cpu")


# --- parquet, our own schema


def make_parquet(path: Path, chance: Random) -> None:
    discrete = chance.random() < 0.6
    optional = [name for name in ("rewards", "terminals", "legal", "phase", "load") if chance.random() < 0.5]
    if not discrete and "legal" in optional:
        optional.remove("legal")
    lengths = [chance.randint(1, 9) for _ in range(6)]
    shape = chance.choice([(3,), (2, 2)])
    data = world(lengths, discrete=discrete, optional=optional, shape=shape, floating=chance.random() < 0.5)
    write_parquet(data, path)


def with_table(change: Any) -> Any:
    def mutate(path: Path, chance: Random) -> None:
        table = change(pq.read_table(path), chance)
        options = {"compression": chance.choice(["zstd", "snappy", "none", "gzip"])}
        pq.write_table(table, path, row_group_size=chance.choice([None, 1, 7]), **options)

    return mutate


def column_of(table: pa.Table, chance: Random) -> int:
    return chance.randrange(table.num_columns)


def dropped(table: pa.Table, chance: Random) -> pa.Table:
    return table.remove_column(column_of(table, chance))


def renamed(table: pa.Table, chance: Random) -> pa.Table:
    names = list(table.column_names)
    names[column_of(table, chance)] = chance.choice([*names, "", "skill.", "skill.x", "a.b", "reward", "\x1b[31m", "é"])
    return table.rename_columns(names)


def doubled(table: pa.Table, chance: Random) -> pa.Table:
    place = column_of(table, chance)
    name = chance.choice([table.column_names[place], "legal", "reward", "terminal", "skill.phase", "other"])
    return table.append_column(name, table.column(place))


def values_of_another_type(rows: int, chance: Random) -> pa.Array:
    made = {
        "integers": lambda: pa.array([chance.choice([0, 1, 2, -1, 2**62]) for _ in range(rows)]),
        "unsigned": lambda: pa.array([chance.choice([0, 1, 2**63]) for _ in range(rows)], pa.uint64()),
        "small": lambda: pa.array([chance.choice([0, 1, -1]) for _ in range(rows)], pa.int8()),
        "floats": lambda: pa.array([float(chance.choice([0, 1, -1, 0.5, 1e300])) for _ in range(rows)]),
        "halves": lambda: pa.array(np.zeros(rows, dtype=np.float16)),
        "words": lambda: pa.array([chance.choice(["", "ann", "bob", "\x00", "é" * 300]) for _ in range(rows)]),
        "bytes": lambda: pa.array([chance.randbytes(3) for _ in range(rows)], pa.binary()),
        "booleans": lambda: pa.array([chance.random() < 0.5 for _ in range(rows)]),
        "nulls": lambda: pa.nulls(rows),
        "some nulls": lambda: pa.array([chance.choice([None, 0, 1]) for _ in range(rows)], pa.int64()),
        "dates": lambda: pa.array(list(range(rows)), pa.timestamp("us")),
        "decimals": lambda: pa.array([1] * rows, pa.decimal128(5, 2)),
        "lists": lambda: pa.array([[0.0, 1.0]] * rows),
        "ragged": lambda: pa.array([[0.0] * chance.randint(0, 3) for _ in range(rows)]),
        "empty lists": lambda: pa.array([[]] * rows, pa.list_(pa.float64())),
        "lists of null": lambda: pa.array([[None, 1.0]] * rows, pa.list_(pa.float64())),
        "lists of words": lambda: pa.array([["a"]] * rows),
        "lists of lists": lambda: pa.array([[[0.0]]] * rows),
        "fixed lists": lambda: pa.array([[1, 2]] * rows, pa.list_(pa.int32(), 2)),
        "structs": lambda: pa.array([{"phase": 1, "x": "y"}] * rows),
        "maps": lambda: pa.array([[("a", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
        "dictionary": lambda: pa.array(["a", "b"] * rows)[:rows].dictionary_encode(),
        "dictionary of numbers": lambda: pa.array([5, 6] * rows)[:rows].dictionary_encode(),
    }
    return made[chance.choice(list(made))]()


def retyped(table: pa.Table, chance: Random) -> pa.Table:
    place = column_of(table, chance)
    return table.set_column(place, table.column_names[place], values_of_another_type(len(table), chance))


def foreign(table: pa.Table, chance: Random) -> pa.Table:
    return table.append_column(
        chance.choice(["note", "skill", "obs", "x.y"]), values_of_another_type(len(table), chance)
    )


def with_nulls(table: pa.Table, chance: Random) -> pa.Table:
    place = column_of(table, chance)
    rows = [None if chance.random() < 0.2 else value for value in table.column(place).to_pylist()]
    return table.set_column(place, table.column_names[place], pa.array(rows, table.column(place).type))


def with_extremes(table: pa.Table, chance: Random) -> pa.Table:
    place = column_of(table, chance)
    kind = table.column(place).type
    inner = kind.value_type if pa.types.is_nested(kind) else kind
    rows = table.column(place).to_pylist()
    for _ in range(chance.choice([1, 3])):
        value = chance.choice(NASTY_NUMBERS)
        value = value if pa.types.is_floating(inner) else int(np.nan_to_num(value, posinf=2**62, neginf=-5)) % 2**62
        row = chance.randrange(len(rows))
        rows[row] = [value] * len(rows[row]) if isinstance(rows[row], list) else value
    return table.set_column(place, table.column_names[place], pa.array(rows, kind))


def fewer_rows(table: pa.Table, chance: Random) -> pa.Table:
    return table.slice(chance.randrange(len(table)), chance.choice([0, 1, 2]))


def shuffled(table: pa.Table, chance: Random) -> pa.Table:
    return table.take(chance.sample(range(len(table)), len(table)))


def other_notes(table: pa.Table, chance: Random) -> pa.Table:
    metadata = dict(table.schema.metadata or {})
    kind = chance.choice(["whole", "field", "text", "gone"])
    if kind == "gone":
        metadata.pop(b"ileed", None)
    elif kind == "text":
        metadata[b"ileed"] = chance.choice([b"", b"{", b"\xff", b"NaN", nested(100_000).encode(), b"1" * 5000])
    elif kind == "whole":
        metadata[b"ileed"] = json.dumps(chance.choice(NASTY)).encode("utf-8", "surrogatepass")
    else:
        notes = json.loads(metadata.get(b"ileed", b"{}"))
        name = chance.choice(["observation_shape", "names", "action_count", "format"])
        notes[name] = chance.choice(
            [*NASTY, [-1, -3], [3, 1], [2**40, 2**40], [1.0, 3], ["ann", "ann"], ["ann"], [3], 10**9, 2]
        )
        metadata[b"ileed"] = json.dumps(notes).encode("utf-8", "surrogatepass")
    return table.replace_schema_metadata(metadata)


def read_our_parquet(path: Path, chance: Random) -> None:
    use(read_parquet(path), chance)


PARQUET = Reader(
    name="parquet",
    suffixes=[".parquet"],
    make=make_parquet,
    mutators={
        change.__name__: with_table(change)
        for change in (
            *(dropped, renamed, doubled, retyped, retyped, foreign, with_nulls, with_extremes, fewer_rows, shuffled),
            *(other_notes, other_notes),
        )
    },
    parses=lambda path: pq.read_table(path),
    read=read_our_parquet,
    commands=[
        ["inspect", "FILE"],
        ["inspect", "FILE", "--json"],
        ["fit", "FILE", "--out", "OUT", "--restarts", "1", "--steps", "2", "--device", "cpu"],
    ],
)


# --- robomimic's HDF5


def make_robomimic(path: Path, chance: Random) -> None:
    lengths = [chance.randint(2, 8) for _ in range(6)]
    optional = [name for name in ("rewards", "terminals", "phase", "load") if chance.random() < 0.5]
    data = world(lengths, discrete=False, floating=True, optional=optional)
    if chance.random() < 0.4:
        data = replace(data, names=tuple(f"{tier}_operator_1" for tier in ("better", "okay", "worse")))
    write_robomimic(data, path, observations={"object": 2, "robot": 1})
    if chance.random() < 0.3:
        with h5py.File(path, "r+") as file:
            del file["data"].attrs["ileed"]
            for demo in file["data"].values():
                del demo["demonstrator"]
            names = [f"demo_{k}" for k in range(6)]
            for k, tier in enumerate(("better", "worse")):
                file[f"mask/{tier}_operator_9"] = np.array(names[k::2], dtype="S")
                if f"mask/{tier}_operator_1" in file:
                    del file[f"mask/{tier}_operator_1"]
            if "mask/okay_operator_1" in file:
                del file["mask/okay_operator_1"]


def places_of(file: h5py.File) -> list[str]:
    found: list[str] = []
    file.visit(found.append)
    return sorted(found)


def with_file(change: Any) -> Any:
    def mutate(path: Path, chance: Random) -> None:
        with h5py.File(path, "r+", libver=("v110", "v110")) as file:
            change(file, chance)

    return mutate


def any_place(file: h5py.File, chance: Random) -> str:
    """A place in the file; masks and the first episode more often than one in so many."""
    places = places_of(file)
    special = [place for place in places if place.startswith(("mask", "data/demo_0"))]
    return chance.choice(special if special and chance.random() < 0.6 else places)


def removed(file: h5py.File, chance: Random) -> None:
    del file[any_place(file, chance)]


def linked(file: h5py.File, chance: Random) -> None:
    place = any_place(file, chance)
    target = chance.choice(places_of(file))
    del file[place]
    links = [
        lambda: h5py.SoftLink("/nowhere"),
        lambda: h5py.SoftLink(f"/{place}"),
        lambda: h5py.SoftLink(f"/{target}"),
        lambda: h5py.SoftLink("."),
        lambda: h5py.SoftLink("/"),
        lambda: h5py.ExternalLink(outside(file), "/"),
        lambda: h5py.ExternalLink("other.hdf5", "/data"),
        lambda: h5py.ExternalLink("file.hdf5", "/data"),
        lambda: file[target],
        lambda: file["/"],
    ]
    file[place] = chance.choice(links)()


def replaced_data_set(file: h5py.File, chance: Random) -> None:
    place = any_place(file, chance)
    before = file[place]
    rows = len(before) if hasattr(before, "shape") and before.shape else 3
    del file[place]
    name, group = place.rpartition("/")[2], file.require_group(place.rpartition("/")[0] or "/")
    makers = {
        "a group": lambda: group.create_group(name),
        "a scalar": lambda: group.create_dataset(name, data=chance.choice([1, 0.5, "word", b"\xff"])),
        "empty": lambda: group.create_dataset(name, data=h5py.Empty("f")),
        "no rows": lambda: group.create_dataset(name, shape=(0,), dtype=chance.choice(["f4", "S3"])),
        "words": lambda: group.create_dataset(name, data=["demo_0"] * rows, dtype=h5py.string_dtype()),
        "bytes": lambda: group.create_dataset(name, data=np.array([b"\xff\xfe"] * rows)),
        "broken words": lambda: group.create_dataset(name, data=[b"\xff\xfe"] * rows, dtype=h5py.string_dtype()),
        "numbers": lambda: group.create_dataset(name, data=np.arange(rows)),
        "negative": lambda: group.create_dataset(name, data=np.full(rows, -1)),
        "big numbers": lambda: group.create_dataset(name, data=np.full((rows, 2), chance.choice(NASTY_NUMBERS), "f8")),
        "reversed bytes": lambda: group.create_dataset(name, data=np.ones((rows, 2), ">f8")),
        "long doubles": lambda: group.create_dataset(name, data=np.ones((rows, 2), np.longdouble)),
        "complex": lambda: group.create_dataset(name, data=np.ones((rows, 2), np.complex64)),
        "compound": lambda: group.create_dataset(name, data=np.zeros(rows, dtype=[("a", "f4"), ("b", "S3")])),
        "opaque": lambda: group.create_dataset(name, data=np.zeros(rows, dtype="V5")),
        "ragged": lambda: group.create_dataset(name, (rows,), dtype=h5py.vlen_dtype(np.float32)),
        "references": lambda: group.create_dataset(name, (rows,), dtype=h5py.ref_dtype),
        "booleans": lambda: group.create_dataset(name, data=np.ones(rows, dtype=bool)),
        "deep": lambda: group.create_dataset(name, data=np.zeros((rows,) + (1,) * 20)),
        "images": lambda: group.create_dataset(name, data=np.zeros((rows, 4, 4, 3), np.uint8)),
        "no columns": lambda: group.create_dataset(name, data=np.zeros((rows, 0))),
        "sparse": lambda: group.create_dataset(name, shape=(10**9, 2), dtype="f8", chunks=(1000, 2)),
        "sparse and packed": lambda: group.create_dataset(name, (10**9,), dtype="f8", chunks=True, compression="gzip"),
        "enormous": lambda: group.create_dataset(name, shape=(2**40, 2**20), dtype="f8", chunks=(64, 64)),
        "a large chunk": lambda: group.create_dataset(
            name, shape=(rows,), maxshape=(None,), dtype="f8", chunks=(2**28,), compression="gzip"
        ),
        "a long word": lambda: group.create_dataset(name, shape=(rows,), dtype="S100000000", chunks=(1,)),
        "a type": lambda: group.__setitem__(name, np.dtype("f8")),
        "external": lambda: group.create_dataset(
            name, shape=(rows,), dtype="u1", external=[(outside(file), 0, h5py.h5f.UNLIMITED)]
        ),
        "virtual": lambda: group.create_virtual_dataset(name, virtual(rows, outside(file))),
    }
    makers[chance.choice(list(makers))]()


def outside(file: h5py.File) -> str:
    return str(Path(file.filename).with_name(OUTSIDE))


def virtual(rows: int, source: str) -> h5py.VirtualLayout:
    layout = h5py.VirtualLayout(shape=(rows,), dtype="f4")
    layout[:] = h5py.VirtualSource(source, "data", shape=(rows,))
    return layout


def other_length(file: h5py.File, chance: Random) -> None:
    places = [place for place in places_of(file) if isinstance(file[place], h5py.Dataset)]
    place = chance.choice(places)
    values = file[place][()]
    del file[place]
    changes = [values[:-1], np.concatenate([values, values]), values[:0], values.reshape(values.shape[0], -1, 1)]
    file[place] = chance.choice(changes)


def other_attributes(file: h5py.File, chance: Random) -> None:
    attributes = file["data"].attrs
    notes = attributes.get("ileed", "{}")
    kind = chance.choice(["whole", "field", "field", "field", "type", "others"])
    if kind == "whole":
        attributes["ileed"] = json.dumps(chance.choice(NASTY)).encode("utf-8", "surrogatepass")
    elif kind == "type":
        attributes["ileed"] = chance.choice([3, 0.5, h5py.Empty("S1"), np.arange(3), b"\xff\xfe", nested(50_000)])
    elif kind == "others":
        attributes["total"] = "many"
        attributes["env_args"] = 3
        file["data/demo_0"].attrs["num_samples"] = -1
    else:
        values = json.loads(notes)
        name = chance.choice(["observations", "observation_shape", "names", "skills"])
        values[name] = chance.choice(
            [
                *NASTY,
                ["flat"],
                ["object", "object"],
                [3, 1],
                [-1, -3],
                {"phase": "O"},
                {"phase": "<U999999", "load": "f4"},
            ]
        )
        attributes["ileed"] = json.dumps(values).encode("utf-8", "surrogatepass")


def renamed_part(file: h5py.File, chance: Random) -> None:
    place = any_place(file, chance)
    names = ["²", "demo_" + "9" * 5000, "x", "demo_0", "actions", "obs", "a\nb", "worse_operator_7", "\x1b[31m"]
    file.move(place, f"{place.rpartition('/')[0]}/{chance.choice(names)}")


def read_our_robomimic(path: Path, chance: Random) -> None:
    use(read_robomimic(path), chance)


def walk_hdf5(path: Path) -> None:
    """The format's own parser: every object is opened, and small data sets are read."""
    with h5py.File(path, "r") as file:
        places = places_of(file)
        for place in places:
            if isinstance(file[place], h5py.Dataset) and file[place].size and file[place].size < 10_000:
                file[place].shape, file[place].dtype


ROBOMIMIC = Reader(
    name="robomimic",
    suffixes=[".hdf5"],
    make=make_robomimic,
    mutators={
        f"{change.__name__} {number}": with_file(change)
        for number, change in enumerate(
            (removed, linked, linked, *(replaced_data_set,) * 4, other_length, *(other_attributes,) * 2, renamed_part)
        )
    },
    parses=walk_hdf5,
    read=read_our_robomimic,
    commands=[
        ["inspect", "FILE"],
        ["inspect", "FILE", "--json"],
        ["fit", "FILE", "--out", "OUT", "--restarts", "1", "--steps", "2", "--device", "cpu"],
    ],
)


# --- run directories


def make_run(path: Path, chance: Random) -> None:
    kind = chance.choice(["defaults", "constant", "skills", "cloning", "continuous", "recurrent", "held out"])
    methods = {
        "defaults": Ileed(expertise=Embedded(hidden=(3,)), ensemble=2),
        "constant": Ileed(expertise=Constant()),
        "skills": Ileed(expertise=Skills("phase")),
        "cloning": Ileed(policy=CategoricalMLP(hidden=(3,)), expertise=Perfect()),
        "continuous": Ileed(policy=MixtureMLP(hidden=(3,), modes=2)),
        "recurrent": Ileed(policy=MixtureLSTM(hidden=(3,), length=3, modes=2)),
        "held out": Ileed(held_out=0.4),
    }
    discrete = kind not in ("continuous", "recurrent")
    data = world(discrete=discrete, optional=["phase"], shape=(2, 2), floating=chance.random() < 0.5)
    replace(methods[kind], restarts=3, steps=4).fit(data, seed=1, device="cpu").save(path)
    made = json.loads((path / "provenance.json").read_text())
    made |= {"date": "2026-01-01", "seconds": 1.5, "commit": "0", "machine": "any"}
    (path / "provenance.json").write_text(json.dumps(made))
    sort_header(path / "weights.safetensors")


def spots(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(*before, key) for key, _ in inside] + [
        spot for key, each in inside for spot in spots(each, (*before, key))
    ]


def changed_json(value: Any, chance: Random) -> Any:
    """A JSON value with one field replaced, removed, repeated, or moved."""
    found = spots(value)
    if not found or chance.random() < 0.03:
        return chance.choice(NASTY)
    *above, key = chance.choice(found)
    holder = value
    for step in above:
        holder = holder[step]
    kind = chance.choice(["replace", "replace", "replace", "remove", "repeat", "swap", "wrap"])
    if kind == "replace":
        holder[key] = chance.choice([*NASTY, [1] * 50, 10**6, list(range(3))])
    elif kind == "remove":
        del holder[key]
    elif kind == "repeat":
        if isinstance(holder, list):
            holder.append(holder[key])
        else:
            holder[f"{key}_2"] = holder[key]
    elif kind == "swap":
        other = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        holder[key], holder[other] = holder[other], holder[key]
    else:
        holder[key] = chance.choice([[holder[key]], {"kind": holder[key]}, str(holder[key])])
    return value


def changed_text(name: str) -> Any:
    def mutate(path: Path, chance: Random) -> None:
        file = plain_file(path / name)
        if chance.random() < 0.03:
            file.write_text(chance.choice([nested(100_000), "1" * 5000, '{"a":' * 2000, "", "\ufeff{}"]))
            return
        file.write_text(json.dumps(changed_json(json.loads(file.read_text()), chance)))

    return mutate


def changed_history(path: Path, chance: Random) -> None:
    file = plain_file(path / "history.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    if chance.random() < 0.3:
        kind = chance.choice(["none", "one", "twice", "backwards", "blank"])
        rows = {"none": [], "one": rows[:1], "twice": rows * 2, "backwards": rows[::-1], "blank": rows}[kind]
    else:
        place = chance.randrange(len(rows))
        rows[place] = changed_json(rows[place], chance)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tensors(tensors: dict[str, torch.Tensor], file: Path, notes: dict[str, str] | None) -> None:
    save_file(tensors, file, metadata=notes)
    sort_header(file)


def sort_header(file: Path) -> None:
    """Put the header in one order; the library's own changes from process to process, and with it what a seed gives."""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + size]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])


def changed_tensors(file: Path, chance: Random) -> None:
    with safe_open(file, framework="pt") as opened:
        notes = opened.metadata()
    tensors = load_file(file)
    name = chance.choice(sorted(tensors))
    value = tensors[name]
    kinds = "drop extra rename retype flatten grow shrink empty nasty scale zeros scalar"
    kind = chance.choice(kinds.split())
    if kind in ("drop", "rename"):
        del tensors[name]
    if kind in ("extra", "rename"):
        tensors[chance.choice(["x", f"{name}x", "joint.", "survey.more", "lens.more", "history.more"])] = value
    if kind == "retype":
        tensors[name] = value.to(chance.choice([torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8]))
    if kind == "flatten":
        tensors[name] = value.flatten()
    if kind == "grow":
        tensors[name] = torch.cat([value, value]) if value.ndim else value[None]
    if kind == "shrink":
        tensors[name] = value[:-1].clone()
    if kind == "empty":
        tensors[name] = value[:0].clone()
    if kind == "nasty":
        flat = value.flatten().clone()
        if len(flat):
            flat[chance.randrange(len(flat))] = chance.choice(NASTY_NUMBERS) if flat.is_floating_point() else 2**40
        tensors[name] = flat.reshape(value.shape)
    if kind == "scale":
        tensors[name] = value * chance.choice([-1, 1e38, 1e20, 1000]) if value.is_floating_point() else -value
    if kind == "zeros":
        tensors[name] = torch.zeros_like(value)
    if kind == "scalar":
        tensors[name] = torch.tensor(1.0)
    write_tensors(tensors, file, notes)


def changed_header(file: Path, chance: Random) -> None:
    """The header of a safetensors file, which states the type, shape and bytes of each tensor."""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, rest = json.loads(content[8 : 8 + size]), content[8 + size :]
    text = json.dumps(changed_json(header, chance)).encode("utf-8", "surrogatepass")
    stated = len(text) if chance.random() < 0.9 else chance.choice([0, 2**62, 2**64 - 1, len(text) - 1])
    file.write_bytes(stated.to_bytes(8, "little") + text + rest)


def changed_notes(file: Path, chance: Random) -> None:
    """The metadata of a safetensors file."""
    with safe_open(file, framework="pt") as opened:
        notes = opened.metadata()
    name = chance.choice([*sorted(notes), "more"])
    others = [
        "",
        "0",
        "-1",
        "1",
        "5",
        "2",
        "1e3",
        "9" * 30,
        "9" * 5000,
        "x",
        "[]",
        "{}",
        "null",
        '{"a": 1}',
        "²",
        "null",
    ]
    notes[name] = chance.choice(others)
    if chance.random() < 0.2:
        del notes[name]
    write_tensors(load_file(file), file, notes)


def changed_files(path: Path, chance: Random) -> None:
    """Files that are links, directories or pipes, or that are not there."""
    file = path / chance.choice(["settings.json", "provenance.json", "history.jsonl", "weights.safetensors"])
    content = plain_file(file).read_bytes()
    file.unlink()
    kind = chance.choice(["gone", "outside", "inside", "dangling", "folder", "pipe", "device", "circle"])
    if kind == "outside":
        file.symlink_to(path.with_name(OUTSIDE))
    elif kind == "inside":
        (path / "other").write_bytes(content)
        file.symlink_to("other")
    elif kind == "dangling":
        file.symlink_to("nowhere")
    elif kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "circle":
        file.symlink_to(file.name)


def within(name: str, change: Any) -> Any:
    return lambda path, chance: change(plain_file(path / name), chance)


def plain_file(file: Path) -> Path:
    """The file, unless an earlier change made it a pipe or a device, for which the harness would wait, or a link.

    A change writes to the file, and through a link it would write to whatever the link names.
    """
    if file.is_symlink() or not file.is_file():
        raise FileNotFoundError(file)
    return file


def parse_run(path: Path) -> None:
    """The formats' own parsers: JSON, JSON in lines, safetensors."""
    for name in ("settings.json", "provenance.json"):
        json.loads(plain_file(path / name).read_bytes())
    for line in plain_file(path / "history.jsonl").read_text().splitlines():
        json.loads(line)
    load_file(plain_file(path / "weights.safetensors"))


def read_run(path: Path, chance: Random) -> None:
    fitted = ileed.load(path)
    repr(fitted)
    fitted.expertise.ranking()
    shape = fitted.policy.observation_shape
    places = fitted.normaliser.kept.numpy()
    if np.prod([float(size) for size in shape]) < 1e6:
        seen = np.zeros((3, int(np.prod(shape))), dtype=np.float32)
        shift, scale = fitted.normaliser.shift.numpy(), fitted.normaliser.scale.numpy()
        with np.errstate(all="ignore"):
            seen[:, places] = np.clip([shift, shift + scale, shift - scale], -3e38, 3e38)
        observations = seen.reshape(3, *shape)
        fitted.policy.act(observations)
        fitted.policy.reset()
        fitted.policy.act(observations, sample=True)
        skills = np.ones((3, len(fitted.expertise.skill_names))) if fitted.expertise.skill_names else None
        fitted.expertise(observations, fitted.expertise.names[0], skills=skills)
    if fitted.expertise.skill_names:
        fitted.expertise.by_skill()
    describe(fitted)
    if chance.random() < 0.3:
        fitted.save(path.parent / "again")
        ileed.load(path.parent / "again")


def describe(fitted: Any) -> None:
    """The page with every sentence, number and chart."""
    Content(fitted, {}, {}).page("title", command="ileed fit").html().encode("utf-8")


RUN = Reader(
    name="run",
    suffixes=[""],
    make=make_run,
    mutators={
        "settings": changed_text("settings.json"),
        "settings again": changed_text("settings.json"),
        "settings once more": changed_text("settings.json"),
        "provenance": changed_text("provenance.json"),
        "history": changed_history,
        "tensors": within("weights.safetensors", changed_tensors),
        "tensors again": within("weights.safetensors", changed_tensors),
        "header": within("weights.safetensors", changed_header),
        "files": changed_files,
    },
    parses=parse_run,
    read=read_run,
    commands=[["report", "FILE", "--out", "OUT.html"]],
    command_every=20,  # drawing takes seconds
)


# --- checkpoints


class _Stopped(Exception):  # noqa: N818
    pass


CHECKPOINTED = Ileed(policy=CategoricalMLP(hidden=(4, 4)), restarts=2, steps=6, held_out=0.4)


def make_checkpoint(path: Path, chance: Random) -> None:
    stop = chance.randint(2, 5)

    def progress(told: Any) -> None:
        if told.step > stop:
            raise _Stopped

    try:
        CHECKPOINTED.fit(world(), seed=0, device="cpu", checkpoint=path, checkpoint_seconds=0, progress=progress)
    except _Stopped:
        sort_header(path)


def read_checkpoint(path: Path, chance: Random) -> None:
    """Go on from it; whether it goes on or is refused, it is not left changed."""
    before = path.read_bytes()
    try:
        found = CHECKPOINTED.fit(world(), seed=0, device="cpu", checkpoint=path, checkpoint_seconds=1e9)
    except IleedError:
        assert path.read_bytes() == before, "a refused checkpoint was changed"
        raise
    assert found.outcome in Outcome


CHECKPOINT = Reader(
    name="checkpoint",
    suffixes=[".checkpoint"],
    make=make_checkpoint,
    mutators={
        "tensors": changed_tensors,
        "tensors again": changed_tensors,
        "notes": changed_notes,
        "header": changed_header,
    },
    parses=load_file,
    read=read_checkpoint,
)


# --- networks in a file: experts, and policies of GAIL


IN_TENSORS = {
    **{f"tensors {number}": changed_tensors for number in range(3)},
    "notes": changed_notes,
    "header": changed_header,
}


def make_expert(path: Path, chance: Random) -> None:
    random = np.random.default_rng(chance.randrange(99))
    sizes = [chance.randint(1, 5) for _ in range(4)]
    layers = [
        (random.normal(size=(after, before)).astype(np.float32), random.normal(size=after).astype(np.float32))
        for before, after in pairwise(sizes)
    ]
    save_expert(Expert(tuple(layers), {"task": "minigrid/empty"}), path)
    sort_header(path)


def read_expert(path: Path, chance: Random) -> None:
    expert = load_expert(path)
    observations = np.ones((2, expert.layers[0][0].shape[1]), dtype=np.float32)
    repr(expert)
    with np.errstate(all="ignore"):
        expert(observations)
        expert.probabilities(observations)


EXPERT = Reader(
    name="expert",
    suffixes=[".safetensors"],
    make=make_expert,
    mutators=IN_TENSORS,
    parses=load_file,
    read=read_expert,
)


def make_gail(path: Path, chance: Random) -> None:
    make_expert(path, chance)
    GailPolicy(load_expert(path).layers).save(path)
    sort_header(path)


def read_gail(path: Path, chance: Random) -> None:
    policy = GailPolicy.load(path)
    with np.errstate(all="ignore"):
        policy.predict(np.ones((2, policy.layers[0][0].shape[1]), dtype=np.float32))


GAIL = Reader(
    name="gail",
    suffixes=[".safetensors"],
    make=make_gail,
    mutators=IN_TENSORS,
    parses=load_file,
    read=read_gail,
)


# --- games of chess


_GAME = """[Event "Rated Blitz game"]
[Site "https://lichess.org/abcd{number:04d}"]
[White "ann{number}"]
[Black "bob"]
[WhiteElo "1500"]
[BlackElo "1600"]
[FEN "4k3/p6p/8/8/8/8/P6P/4K3 w - - 0 1"]
[Result "1-0"]

1. a4 {{ [%clk 0:03:00] }} a5 2. h4 h5 3. Kd2 Kd7 4. Kd3 Kd6 5. Kd4 Kc6 1-0

"""
_ROW = ("id", "rated", "winner", "increment_code", "white_id", "white_rating", "black_id", "black_rating", "moves")


def make_games(path: Path, chance: Random) -> None:
    if ".csv" in path.name:
        text = io.StringIO()
        rows = csv.writer(text)
        rows.writerow(_ROW)
        for number in range(5):
            rows.writerow([f"g{number}", "TRUE", "white", "5+0", "ann", "1500", "bob", "1600", "e4 e5 Nf3 Nc6"])
        content = text.getvalue().encode()
    else:
        content = "".join(_GAME.format(number=number) for number in range(5)).encode()
    path.write_bytes(packed(path, content))


def packed(path: Path, content: bytes) -> bytes:
    if path.suffix == ".gz":
        return gzip.compress(content, mtime=0)
    return zstandard.compress(content) if path.suffix == ".zst" else content


def unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(content)
    return zstandard.ZstdDecompressor().decompressobj().decompress(content) if path.suffix == ".zst" else content


def with_text(change: Any) -> Any:
    def mutate(path: Path, chance: Random) -> None:
        path.write_bytes(packed(path, change(unpacked(path), chance)))

    return mutate


def other_words(content: bytes, chance: Random) -> bytes:
    words = content.split(b" ")
    pool = b'O-O|e9|Qxh7#|--|{|}|(|)|$999|1-0|*|\xff|\x00|;|%|[|"|\n\n[|1.||'.split(b"|")
    for _ in range(chance.choice([1, 3, 9])):
        words[chance.randrange(len(words))] = chance.choice(pool)
    return b" ".join(words)


def other_headers(content: bytes, chance: Random) -> bytes:
    lines = content.split(b"\n")
    pool = [
        *(b'[FEN "what"]', b'[FEN "8/8/8/8/8/8/8/8 w - - 0 1"]', b'[FEN "4k3/8/8/8/8/8/8/4K3 b KQkq e9 -5 x"]'),
        *(b'[Variant "Atomic"]', b'[WhiteElo "99999"]', b'[White "\xff"]', b"[", b"[x"),
        *(b"," * 50, b'"' * 3, b"a,b,c", b"\x00"),
    ]
    lines[chance.randrange(len(lines))] = chance.choice(pool)
    return b"\n".join(lines)


def repeated(content: bytes, chance: Random) -> bytes:
    start = chance.randrange(len(content))
    piece = content[start : start + chance.choice([1, 2, 50])]
    return content[:start] + piece * chance.choice([2, 2, 100, 100, 70_000]) + content[start:]


def blank_lines(content: bytes, chance: Random) -> bytes:
    filler = chance.choice([b"\n", b" \n", b"\r\n", b"( ", b"{", b"[A", b"1. ", b'""', b","]) * chance.choice(
        [10, 90_000]
    )
    start = chance.choice([0, len(content), chance.randrange(len(content))])
    return content[:start] + filler + content[start:]


def columns_changed(content: bytes, chance: Random) -> bytes:
    name = chance.choice(_ROW).encode()
    return content.replace(
        name, chance.choice([b"", b"x", b"id", name.upper(), name + b'"', b"\xef\xbb\xbf" + name]), 1
    )


def bomb(content: bytes, chance: Random) -> bytes:
    return content + chance.choice([b"x", b"\n", b"a,", b"1. e4 ", b'"']) * chance.choice([10_000, 10_000, 2_000_000])


def other_frames(path: Path, chance: Random) -> None:
    """Several compressed frames in a row, padded, or of the other kind."""
    content = path.read_bytes()
    path.write_bytes(
        content + chance.choice([content, b"\0" * 9, b"x", content[: len(content) // 2], zlib.compress(b"x")])
    )


def parse_games(path: Path) -> None:
    content = unpacked(path)
    if ".csv" in path.name:
        list(csv.reader(io.StringIO(content.decode(), newline="")))
    else:
        content.decode()


def read_games(path: Path, chance: Random) -> None:
    out = path.parent / "positions.parquet"
    extract([path], out, workers=1)
    read_positions(out)
    assert not list(path.parent.glob("*.parts")), "parts were left"


GAMES = Reader(
    name="games",
    suffixes=[".pgn", ".csv", ".pgn.gz", ".pgn.zst", ".csv.gz", ".pgn"],
    make=make_games,
    mutators={
        **{
            change.__name__: with_text(change)
            for change in (other_words, other_headers, repeated, blank_lines, columns_changed, bomb)
        },
        "other_frames": other_frames,
    },
    parses=parse_games,
    read=read_games,
    commands=[["chess", "extract", "FILE", "--out", "OUT.parquet", "--workers", "1"]],
)


# --- tables of positions


def parse_table(path: Path) -> None:
    if path.suffix == ".parquet":
        pq.read_table(path)
    else:
        list(csv.reader(io.StringIO(unpacked(path).decode(), newline="")))


def make_positions(path: Path, chance: Random) -> None:
    rows = [
        {
            **{"game_id": f"g{k // 4}", "ply": k % 4, "player": "ann" if k < 8 else "bob"},
            **{"fen": "4k3/p6p/8/8/8/8/P6P/4K3 w - -", "move": chance.choice(["a2a4", "e1d2", "h2h3"])},
            **{"mover_rating": 1500, "opponent_rating": None, "clock": 3.0, "time_control": "5+0"},
            **{"date": "2024.01.01", "result": "1-0"},
        }
        for k in range(16)
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    if path.suffix == ".parquet":
        write_positions(table, path)
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, SCHEMA.names)
    writer.writeheader()
    writer.writerows(table.to_pylist())
    path.write_bytes(packed(path, text.getvalue().encode()))


def either(change_table: Any, change_text: Any) -> Any:
    """The change that goes with the file: of a table, or of text."""

    def mutate(path: Path, chance: Random) -> None:
        (with_table(change_table) if path.suffix == ".parquet" else with_text(change_text))(path, chance)

    return mutate


def other_cells(table: pa.Table, chance: Random) -> pa.Table:
    place = table.column_names.index(
        chance.choice([name for name in ("fen", "move", "player", "game_id") if name in table.column_names])
    )
    pool = [
        "",
        "x",
        "8/8/8/8/8/8/8/8 w - -",
        "4k3/8/8/8/8/8/8/4K3 w - -",
        "a2a9",
        "a7a8q",
        "e1e3",
        "\x00",
        "é" * 99,
        "9" * 70,
        "4k3/p6p w",
    ]
    rows = table.column(place).to_pylist()
    rows[chance.randrange(len(rows))] = chance.choice(pool)
    return table.set_column(place, table.column_names[place], pa.array(rows, pa.string()))


def other_fields(content: bytes, chance: Random) -> bytes:
    lines = content.split(b"\n")
    place = chance.randrange(len(lines))
    fields = lines[place].split(b",")
    fields[chance.randrange(len(fields))] = chance.choice(
        [b"", b"x", b"99999", b"-1", b"1e5", b'"', b"\xff", b"a,b", b"8/8 w - -", b"a2a9"]
    )
    lines[place] = b",".join(fields)
    return b"\n".join(lines)


def read_our_positions(path: Path, chance: Random) -> None:
    table = read_positions(path)
    use(demonstrations(table, table.column("player").to_pylist()), chance)


POSITIONS = Reader(
    name="positions",
    suffixes=[".parquet", ".csv", ".csv.gz"],
    make=make_positions,
    mutators={
        "dropped": either(dropped, other_fields),
        "renamed": either(renamed, other_fields),
        "doubled": either(doubled, repeated),
        "retyped": either(retyped, other_fields),
        "with_nulls": either(with_nulls, other_words),
        "cells": either(other_cells, other_fields),
        "cells again": either(other_cells, blank_lines),
        "fewer": either(fewer_rows, bomb),
        "shuffled": either(shuffled, other_fields),
    },
    parses=parse_table,
    read=read_our_positions,
)


# --- tables of a user's own columns


def make_table(path: Path, chance: Random) -> None:
    rows = chance.randint(4, 40)
    table = pa.table(
        {
            "case": [str(k // 2) for k in range(rows)],
            "nurse": [("ann", "bob", "007")[k // 2 % 3] for k in range(rows)],
            "age": [chance.randrange(100) for _ in range(rows)],
            "fever": [round(chance.gauss(37.5, 1), 1) for _ in range(rows)],
            "arrival": [chance.choice(["walk-in", "ambulance", "referral, by post"]) for _ in range(rows)],
            "insured": [chance.random() < 0.5 for _ in range(rows)],
            "decision": [chance.choice(["admit", "discharge", "observe"]) for _ in range(rows)],
        }
    )
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, table.column_names, delimiter="\t" if path.suffix == ".tsv" else ",")
    writer.writeheader()
    writer.writerows(table.to_pylist())
    path.write_bytes(text.getvalue().encode())


def read_our_table(path: Path, chance: Random) -> None:
    data = from_table(
        path,
        action=chance.choice(["decision", "decision", ["age", "fever"], "insured"]),
        demonstrator="nurse",
        episode=chance.choice([None, "case", ["nurse", "case"]]),
        features=chance.choice([None, None, ["arrival"], ["fever", "arrival"]]),
        missing=chance.choice(["error", "category"]),
    )
    use(data, chance)


TABLE = Reader(
    name="table",
    suffixes=[".csv", ".parquet", ".tsv"],
    make=make_table,
    mutators={
        "dropped": either(dropped, other_fields),
        "renamed": either(renamed, other_fields),
        "doubled": either(doubled, repeated),
        "retyped": either(retyped, other_fields),
        "retyped again": either(retyped, other_words),
        "foreign": either(foreign, other_fields),
        "with_nulls": either(with_nulls, blank_lines),
        "fewer": either(fewer_rows, bomb),
        "shuffled": either(shuffled, columns_changed),
    },
    parses=parse_table,
    read=read_our_table,
    commands=[
        ["inspect", "FILE", "--action", "decision", "--demonstrator", "nurse"],
        ["inspect", "FILE"],
        [
            "fit",
            "FILE",
            "--action",
            "decision",
            "--demonstrator",
            "nurse",
            "--episode",
            "case",
            "--out",
            "OUT",
            "--restarts",
            "1",
            "--steps",
            "2",
        ],
    ],
)


READERS = {
    reader.name: reader for reader in (PARQUET, ROBOMIMIC, RUN, CHECKPOINT, EXPERT, GAIL, GAMES, POSITIONS, TABLE)
}

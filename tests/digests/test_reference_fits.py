"""The reference fits end with the bits that were recorded, where the arithmetic is one that was recorded."""

import dataclasses

import pytest
from reference_fits import FITS, arithmetic_key, digest, digests, recorded

import ileed

RECORD = "python tests/digests/reference_fits.py --record"


def test_the_reference_fits_end_with_the_recorded_bits():
    key = arithmetic_key()
    if key not in recorded():
        pytest.skip(
            f"no digests were recorded for {key}: check out a commit whose results are trusted, run `{RECORD}` there "
            "and commit digests.json"
        )
    found, expected = digests(), recorded()[key]
    different = [name for name in FITS if found[name] != expected.get(name)]
    assert not different, (
        f"{len(different)} of {len(FITS)} fits end with other bits than recorded: {different}; "
        "`python tests/digests/compare_commits.py OLD` tells which commit changed them; where the change is meant, "
        f"`{RECORD}` and say in the changelog that results changed"
    )


def test_digests_differ_between_the_fits_and_with_the_seed():
    data = ileed.Demonstrations(
        observations=[[0.0], [1.0]] * 4, actions=[0, 1] * 4, demonstrator=[0] * 8, episode=[0] * 8
    )
    method = ileed.bc(policy=ileed.CategoricalMLP(hidden=(2,)), restarts=2, steps=3)
    first, again, other = (method.fit(data, seed=seed, device="cpu") for seed in (0, 0, 1))
    assert digest([first]) == digest([again]) != digest([other])
    costs = dataclasses.replace(first.restarts, nats_per_action=first.restarts.nats_per_action + 1e-7)
    assert digest([dataclasses.replace(first, restarts=costs)]) != digest([first])
    for own in recorded().values():
        assert sorted(own) == sorted(FITS)
        assert len(set(own.values())) == len(FITS)

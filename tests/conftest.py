"""How tests run here: the same examples every time, and no clock in hypothesis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "ileed",
    deadline=None,  # the first example pays for torch's warm-up
    derandomize=True,
    max_examples=15,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],  # explaining a failure traces every line, and takes minutes
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ileed")

collect_ignore = ["tiny_package"]  # collecting it would put it on the path, where its entry points count as installed


@pytest.fixture(scope="session", autouse=True)
def fits_are_cross_fitted_where_a_test_says_so() -> Iterator[None]:
    """Most tests are about the fit itself, which folds leave as it is; processes of their own have the usual folds."""
    import ileed.methods

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ileed.methods, "FOLDS", 0)
        yield

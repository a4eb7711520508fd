"""How tests run here: the same examples every time, and no clock in hypothesis."""

from __future__ import annotations

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

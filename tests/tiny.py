"""The module of the tiny package, without its entry points, which `tiny_package` on the path would bring along."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

PACKAGE = Path(__file__).parent / "tiny_package"

_spec = spec_from_file_location("tiny_parts", PACKAGE / "tiny_parts.py")
assert _spec is not None
assert _spec.loader is not None
tiny_parts = sys.modules["tiny_parts"] = module_from_spec(_spec)
_spec.loader.exec_module(tiny_parts)

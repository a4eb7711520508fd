"""What refusals are recognised by: the code of an error, which stays when its message is reworded."""

from __future__ import annotations

import pytest

from ileed.errors import IleedError


def refused(code: str, kind: type[IleedError] = IleedError) -> pytest.RaisesExc[IleedError]:
    """A context in which an error of this kind and code is raised."""

    def has_code(error: IleedError) -> bool:
        assert error.code == code, f"{error.code}: {error}"
        return True

    return pytest.raises(kind, check=has_code)

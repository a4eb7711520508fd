"""The library stays small: limits on its lines, functions and parameters, which `code_size.py` states."""

import code_size
import pytest
from code_size import LINES_OF_A_FUNCTION, PARAMETERS

FILES = code_size.sources()


def refuse_more(found: dict[str, int], listed: frozenset[str], rule: str) -> None:
    if new := {name: size for name, size in found.items() if name not in listed}:
        pytest.fail(f"{new}: {rule}")
    if gone := sorted(listed - found.keys()):
        pytest.fail(f"{gone} no longer exceed the limit: remove them from the list in tests/code_size.py")


def test_the_library_does_not_grow():
    total = sum(map(code_size.lines, FILES.values()))
    message = f"{total:,} lines of Python in the library; the limit is {code_size.LINES_IN_ALL:,}"
    assert total <= code_size.LINES_IN_ALL, f"{message}: move what reproduces the paper to the lab, or simplify"


def test_a_function_has_at_most_60_lines():
    rule = f"a function has at most {LINES_OF_A_FUNCTION} lines: name its parts"
    refuse_more(code_size.long_functions(FILES), code_size.LONG_FUNCTIONS, rule)


def test_a_function_has_at_most_8_parameters():
    rule = f"a function has at most {PARAMETERS} parameters: gather those that belong together in a frozen dataclass"
    refuse_more(code_size.many_parameters(FILES), code_size.MANY_PARAMETERS, rule)


def test_methods_nested_functions_and_starred_parameters_are_counted():
    text = (
        "class A:\n"
        "    def method(self, a, *b, c, **d):\n"
        "        def inner(x, y):\n"
        "            return x\n"
        "        return inner\n"
        "    @staticmethod\n"
        "    def alone(a):\n"
        "        pass\n"
        "if True:\n"
        "    async def later(a, /, b): pass\n"
    )
    assert [tuple(found) for found in code_size.functions({"f.py": text})] == [
        ("f.py: A.method", 4, 4),
        ("f.py: A.method.inner", 2, 2),
        ("f.py: A.alone", 2, 1),
        ("f.py: later", 1, 2),
    ]

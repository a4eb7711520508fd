"""The options that name the columns of a table, for the commands that read one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ileed.errors import DemonstrationError, SettingsError

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations

__all__ = ["Columns", "refuse_model", "rename_model_option"]


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are which; a file of ours or of robomimic says so itself."""

    action: tuple[str, ...] = ()
    """The column of the action, in a CSV or parquet table with a column for each feature; several for a continuous
    action."""
    demonstrator: Annotated[str | None, tyro.conf.arg(aliases=["--who"])] = None
    """The column that says who did it, if it is not called demonstrator."""
    episode: tuple[str, ...] = ()
    """The column of a table that says which rows are one run, or several that say so together; without it each row is
    an episode of its own."""
    features: tuple[str, ...] = ()
    """The columns of a table that were seen before acting; all others by default."""
    skills: tuple[str, ...] = ()
    """Columns of a table with labels for --expertise "Skills('COLUMN')"."""
    missing: Literal["error", "category"] = "error"
    """What to do about missing values in a table's features: refuse them, or keep them as a category."""

    def read(self, path: Path) -> Demonstrations | None:
        """The demonstrations of a table by its named columns; nothing where no column of an action is named."""
        if not self.action:
            if self.episode or self.features or self.skills:
                raise DemonstrationError("columns of a table are named and the action's is not: name it with --action")
            return None
        from ileed.readers import from_table

        if self.demonstrator is None:
            raise DemonstrationError("--action names a column and --demonstrator does not: name the one that says who")
        return from_table(
            path,
            action=self.action[0] if len(self.action) == 1 else self.action,
            demonstrator=self.demonstrator,
            episode=self.episode or None,
            features=self.features or None,
            skills=self.skills or None,
            missing=self.missing,
        )


def rename_model_option(registry: tyro.constructors.ConstructorRegistry, method: type) -> None:
    """Call the method's setting `demonstrator` --demonstrator-model: --demonstrator names a column."""
    asking: list[bool] = []

    @registry.struct_rule
    def rule(asked: tyro.constructors.StructTypeInfo) -> tyro.constructors.StructConstructorSpec | None:
        if asked.type is not method or asking:
            return None
        asking.append(True)
        try:
            found = tyro.constructors.ConstructorRegistry.get_struct_spec(asked)  # by the other rules
        finally:
            asking.pop()
        if not isinstance(found, tyro.constructors.StructConstructorSpec):
            return None
        names = {"demonstrator": "demonstrator_model"}
        fields = tuple(replace(item, name=names.get(item.name, item.name)) for item in found.fields)

        def make(*, demonstrator_model: Any, **others: Any) -> Any:
            return found.instantiate(demonstrator=demonstrator_model, **others)

        return tyro.constructors.StructConstructorSpec(make, fields)


def refuse_model(word: str | None) -> None:
    """Refuse a model of demonstrators, such as "VarianceScaling()", where a column is to be named."""
    models = ("boltzmann", "oneversusrest", "uniformmixture", "variancescaling")
    if (word or "").partition("(")[0].strip().lower() in models:
        raise SettingsError(
            f"--demonstrator {word} is a model, and this option names the column that says who acted: write "
            f"--demonstrator-model {word}"
        )

"""Files of others beside ours, and what a folder holds."""

import errno
from pathlib import Path

WORK = "years of work"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(item.relative_to(folder)): item.read_bytes() for item in sorted(folder.rglob("*")) if item.is_file()}


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def unsupported(*folders: Path) -> None:
    raise OSError(errno.ENOSYS, "Function not implemented")


def add_work(folder: Path) -> dict[str, bytes]:
    """Files, a folder and a link that we did not write."""
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "empty").mkdir()
    for name in ("model.ckpt", "deep/er/notes.txt"):
        (folder / name).write_text(WORK)
    (folder / "link").symlink_to("deep")
    return {"model.ckpt": WORK.encode(), "deep/er/notes.txt": WORK.encode()}

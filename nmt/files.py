"""Files that a killed program leaves whole: the old one or the new one."""
import os
from pathlib import Path


def write_atomically(path: Path, write) -> None:
    """Writes a file under another name and renames it. write: a function of a binary file."""
    new = path.with_name(f"{path.name}.tmp")
    with open(new, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def write_lines(path: Path, lines) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")

"""The project's own files, without what a user keeps in its folder."""
import shutil
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OTHERS = {"runs", "data", "site-packages"}


@cache
def project_files() -> list[Path]:
    """The files that git knows; where git does not answer, all but hidden ones and OTHERS."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, text=True, encoding="utf-8",
                             capture_output=True)
        if git.returncode == 0:
            paths = [ROOT / name for name in git.stdout.split("\0")]
            return [path for path in paths if path.is_file()]
    paths = []
    for path in ROOT.rglob("*"):
        names = path.relative_to(ROOT).parts
        others = {name for name in names if name[0] == "."} | OTHERS & {*names}
        if path.is_file() and not others:
            paths.append(path)
    return paths

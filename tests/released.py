"""What may be in a wheel and in an sdist: `python -m tests.released dist` looks, after a build."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

LARGEST = 1_000_000  # bytes of a file
NEEDED = (
    "scoreascent/py.typed",
    "scoreascent/cli.py",
    "scoreascent/experiments/accuracy/references/ar2.csv",
)


def contents(archive: Path) -> dict[str, int]:
    """The files of a wheel or an sdist, and their sizes."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {i.filename: i.file_size for i in wheel.infolist() if not i.is_dir()}
    with tarfile.open(archive) as sdist:
        return {m.name.split("/", 1)[1]: m.size for m in sdist.getmembers() if m.isfile()}


def wrong(archive: Path) -> list[str]:
    """What speaks against an archive."""
    files = contents(archive)
    found = [f"{name} has {size} bytes" for name, size in files.items() if size > LARGEST]
    if archive.suffix == ".whl":
        found += [f"{name} is missing" for name in NEEDED if name not in files]
        ours = ("scoreascent/", "scoreascent-")
        found += [f"{name} is not the library's" for name in files if not name.startswith(ours)]
    else:
        needed = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
        needed = (*needed, "src/scoreascent/__init__.py")
        found += [f"{name} is missing" for name in needed if name not in files]
    return [f"{archive.name}: {what}" for what in found]


def main(folder: Path) -> None:
    """Print what each archive weighs; end with what is wrong, if anything is."""
    archives = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    if {a.suffix for a in archives} != {".whl", ".gz"}:
        sys.exit(f"{folder} should have one wheel and one sdist, and has {[*folder.iterdir()]}")
    for archive in archives:
        files = contents(archive)
        largest = max(files.values())
        size = archive.stat().st_size / 1e6
        print(f"{archive.name}: {size:.2f} MB, {len(files)} files of at most {largest} bytes")
    if problems := [line for archive in archives for line in wrong(archive)]:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist"))

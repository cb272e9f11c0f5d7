"""Compiled programs on disk, so that the next process need not compile them again."""

from __future__ import annotations

import os
from pathlib import Path

import jax

VARIABLE = "SCOREASCENT_CACHE"  # a folder; 1 for the usual one; 0 for none, whatever else is asked
MIN_SECONDS = 0.1  # of compilation, that a program must have taken to be kept
OFF, USUAL = ("0", "off", "no"), ("1", "on", "yes")


def usual_folder() -> Path:
    """Return where programs are kept unless a folder is named."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "scoreascent"


def use_cache(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Keep compiled programs in a folder, for this process and those to come.

    Without a folder that is the one which the environment variable `SCOREASCENT_CACHE` names, else
    `~/.cache/scoreascent`. Programs are told apart by all that went into them, versions included.
    Returns the folder, or None if the variable is 0.

    >>> import os, pytest
    >>> with pytest.MonkeyPatch.context() as patch:
    ...     patch.setenv("SCOREASCENT_CACHE", "0")
    ...     print(use_cache())
    None
    """
    asked = os.environ.get(VARIABLE, "")
    if asked.lower() in OFF:
        return None
    if folder is None:
        folder = usual_folder() if asked.lower() in ("", *USUAL) else asked
    path = Path(folder).expanduser()
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)
    return path


def use_cache_if_asked() -> None:
    """Do so if the environment asks for it, and jax has no folder yet."""
    if os.environ.get(VARIABLE) and not getattr(jax.config, "jax_compilation_cache_dir", None):
        use_cache()

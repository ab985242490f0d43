"""Compiled programs that are kept from one run to the next, by JAX's persistent compilation cache."""

import os
import sys
from pathlib import Path

import jax

__all__ = ["use_compilation_cache"]


def use_compilation_cache() -> None:
    """Let JAX keep compiled programs in the user's cache directory, unless JAX_COMPILATION_CACHE_DIR names another.

    JAX_ENABLE_COMPILATION_CACHE=0 turns it off.
    """
    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]: made at run time
        jax.config.update("jax_compilation_cache_dir", str(_user_cache() / "householder_mcmc" / "jax"))


def _user_cache():
    """The user's directory for caches, where the operating system has it."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")

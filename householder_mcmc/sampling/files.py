"""Results on disk: one .npz file without pickle, or a folder that grows by a block at a time.

A file has the arrays of a tree, and a text in JSON that says how they belong together. The text names classes. Only
NamedTuples are made again: those of this library and of BlackJAX, and those whose modules are imported already.
"""

import importlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Folder", "read_tree", "write_tree"]

# Name of that text among the arrays of a file. No array of a tree has this name.
_TEXT = "structure"

# Packages whose modules may be imported because a file names them.
_KNOWN = ("householder_mcmc", "blackjax")


def write_tree(path: Path, tree: Any) -> None:
    """Write dicts, lists, tuples, NamedTuples, arrays, numbers and texts to an .npz file, all of it or nothing.

    Raises TypeError on any other object.
    """
    arrays: dict[str, Any] = {}
    text = json.dumps(_describe(tree, arrays))
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            np.savez(file, **{_TEXT: np.array(text)}, **arrays)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_tree(path: Path) -> Any:
    """What `write_tree` wrote.

    Raises ValueError if the file is another, or needs a NamedTuple whose module is not imported.
    """
    with np.load(path, allow_pickle=False) as file:
        if _TEXT not in file:
            raise ValueError(f"{path} is no result of householder_mcmc.")
        return _rebuild(json.loads(str(file[_TEXT])), file)


class Folder:
    """Draws on disk: a .npy file for each leaf, whose first axis is the draws.

    They are mapped when they are read, so memory does not grow with them.
    """

    def __init__(self, path: Path):
        self.path = path

    @staticmethod
    def require_new(path: Path) -> None:
        """Raise ValueError if there is a folder that is not empty, or a file."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ValueError(f"store={str(path)!r} exists already: name a new folder, or load and extend that one.")

    def write(self, draws: Any, first: int) -> None:
        """Write draws after the first `first` ones. Draws that were there from then on are replaced."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(draws):
            _write_rows(self._file(path), leaf, first)

    def read(self, like: Any, num_draws: int) -> Any:
        """The first `num_draws` draws, mapped from the files. like: draws of any length."""

        def map_file(path, leaf):
            if num_draws == 0 or leaf[:1].size == 0 and len(leaf):  # nothing to map
                return np.empty((num_draws, *leaf.shape[1:]), leaf.dtype)
            return np.load(self._file(path), mmap_mode="r", allow_pickle=False)[:num_draws]

        return jax.tree_util.tree_map_with_path(map_file, like)

    def _file(self, path):
        return self.path / f"{quote(jax.tree_util.keystr(path, simple=True, separator='.'), safe=' [],')}.npy"


def _write_rows(path, rows, first):
    """Rows `first`, ... of a .npy file. NumPy leaves room in the header for the length to grow."""
    shape = (first + len(rows), *rows.shape[1:])
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": shape}
    )
    start = len(header.getvalue())
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.seek(start + first * rows[:1].nbytes)
        file.write(np.ascontiguousarray(rows).data if rows.size else b"")
        file.flush()
        file.seek(0)
        file.write(header.getvalue())  # last, so that the file stays valid if the process ends before


def _describe(tree: Any, arrays: dict[str, Any]) -> Any:
    """The tree as JSON. Its arrays are put into the dict `arrays`, by names that the JSON has in their places."""
    if tree is None or isinstance(tree, str):
        return tree
    if isinstance(tree, dict):
        if not all(isinstance(name, str) for name in tree):
            raise TypeError(f"keys must be texts in what is saved, got {list(tree)}.")
        return {"dict": {name: _describe(value, arrays) for name, value in tree.items()}}
    if hasattr(tree, "_asdict"):
        fields = {name: _describe(value, arrays) for name, value in tree._asdict().items()}
        return {"class": [type(tree).__module__, type(tree).__qualname__], "fields": fields}
    if isinstance(tree, list | tuple):
        return {type(tree).__name__: [_describe(value, arrays) for value in tree]}
    if isinstance(tree, jax.Array | np.ndarray | np.generic | bool | int | float):
        name, impl = f"array {len(arrays)}", None
        if isinstance(tree, jax.Array) and jnp.issubdtype(tree.dtype, jax.dtypes.prng_key):
            tree, impl = jax.random.key_data(tree), str(jax.random.key_impl(tree))
        arrays[name] = np.asarray(tree)
        return {"array": name, "key": impl}
    raise TypeError(f"a {type(tree).__name__} cannot be saved: use dicts, lists, tuples or NamedTuples of arrays.")


def _rebuild(node, arrays):
    if node is None or isinstance(node, str):
        return node
    if "dict" in node:
        return {name: _rebuild(value, arrays) for name, value in node["dict"].items()}
    if "class" in node:
        return _named_tuple(*node["class"])(**{name: _rebuild(part, arrays) for name, part in node["fields"].items()})
    for kind in (list, tuple):
        if kind.__name__ in node:
            return kind(_rebuild(value, arrays) for value in node[kind.__name__])
    array = arrays[node["array"]]
    return array if node["key"] is None else jax.random.wrap_key_data(jnp.asarray(array), impl=node["key"])


def _named_tuple(module, name):
    """The class of a name. Raises ValueError if it is no NamedTuple, or its module must be imported first."""
    is_known = module.partition(".")[0] in _KNOWN
    found: Any = importlib.import_module(module) if is_known else sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")):
        raise ValueError(f"the file needs the NamedTuple {module}.{name}: import its module before loading.")
    return found

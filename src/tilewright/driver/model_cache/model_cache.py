"""Whole compilations in the user's cache folder.

    <folder>/models/<two digits>/<key>     see `model_entry`

An entry holds what a compilation became, except for the weights that the model's own files have. It is found by the
bytes of the model and by all that decides its artifact, which is the same to the byte with it and without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.driver.kernel_build.build_resources import BuildResources
from tilewright.driver.kernel_build.code_cache import CodeCache
from tilewright.driver.kernel_build.private_folder import PrivateFolder, Usage
from tilewright.driver.kernel_build.record_source import RecordSource
from tilewright.driver.model_cache.hashed_files import FileState, HashedBytes, ModelFiles
from tilewright.driver.model_cache.model_entry import DataFile, entry_pieces, inline_bytes, read_artifact, read_head
from tilewright.driver.model_cache.model_key import model_key
from tilewright.driver.model_cache.record_state import has_records_of, record_state
from tilewright.driver.model_cache.tensor_positions import PositionError, TensorPosition, tensor_positions
from tilewright.driver.model_cache.weight_sources import FileView, LoadedArray, SourceBytes
from tilewright.driver.options import CompileOptions
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.manifest import FallbackStep, all_steps

Array = np.ndarray[Any, Any]

MAX_BYTES = 1 << 29
"""Size that the cache of models is pruned to after a compilation that has added to it."""

MAX_INLINE_BYTES = 1 << 27
"""Bytes of an entry's weights that are computed from the model's, as Winograd's are: more would fill the disk."""


class ModelCache(PrivateFolder):
    """A cache in a folder, which need not exist."""

    def prune(self, max_bytes: int = MAX_BYTES) -> Usage:
        """Removes the entries that have not been used for longest until it has at most so many bytes; returns what was
        removed."""
        return PrivateFolder.prune(self, max_bytes)


def cache_of_models(code: CodeCache) -> ModelCache:
    """The cache beside that of machine code."""
    return ModelCache(code.folder.parent / "models")


@dataclass(slots=True, eq=False)
class NewModel:
    """A model whose compilation is not known, and where it is kept.

    Attributes:
        cache: the cache.
        key: of the compilation.
        files: of the model.
        digest: hash of the content of its own file.
        positions: of its tensors.
        states: of its other files before the compilation, by location.
        records: that the compilation uses; None for none.
        loaded: the initializers by name; `note_initializers` adds them.
    """

    cache: ModelCache
    key: str
    files: ModelFiles
    digest: str
    positions: Sequence[TensorPosition]
    states: Mapping[str, FileState | None]
    records: RecordSource | None
    loaded: dict[str, LoadedArray] = field(default_factory=dict[str, LoadedArray])

    def note_initializers(self, constants: Mapping[str, Array]) -> None:
        """Takes note of the initializers of the model as it was loaded, by name."""
        known = {name: LoadedArray.of(array) for name, array in constants.items()}
        self.loaded = {name: x for name, x in known.items() if x is not None}

    def keep(self, artifact: Artifact, sources: Mapping[str, Array], warned: bool) -> str:
        """Keeps what the compilation became.

        Args:
            artifact: what it became.
            sources: arrays that weights are copies of, by the weight's name.
            warned: whether it issued warnings, which an entry could not repeat.

        Returns:
            Why it is not kept; empty where it is, or where the folder can't be written.
        """
        if warned:
            return "it issued warnings"
        if any(isinstance(step, FallbackStep) for step in all_steps(artifact.manifest.steps)):
            return "parts of the model run on an evaluator"
        contents = {location: self.files.read(location) for location in ("", *self.states)}
        read = {location: content for location, content in contents.items() if content is not None}
        if len(read) < len(contents) or not self._is_unchanged(read):
            return "files of the model changed while it was compiled"
        views = self._views_of_files(artifact, sources, read)
        size = inline_bytes(artifact, views)
        if size > MAX_INLINE_BYTES:
            return f"{size >> 20} MiB of its weights are computed from the model's, more than {MAX_INLINE_BYTES >> 20}"
        data_files = [DataFile(location, content.digest) for location, content in read.items() if location]
        state = None if self.records is None else record_state(self.records.path)
        self.cache.write(self.key, entry_pieces(artifact, views, data_files, state))
        if self.cache.has_added:
            self.cache.prune()
        return ""

    def _is_unchanged(self, read: Mapping[str, HashedBytes]) -> bool:
        """Whether the files that were read now are those that were compiled."""
        return read[""].digest == self.digest and all(
            state is not None and self.files.state(location) == state for location, state in self.states.items()
        )

    def _views_of_files(
        self, artifact: Artifact, sources: Mapping[str, Array], read: Mapping[str, HashedBytes]
    ) -> dict[str, FileView]:
        """Where weights lie in the model's files, of those that do."""
        data = {location: content.content for location, content in read.items()}
        source_bytes = SourceBytes(self.loaded, self.positions, data)
        views: dict[str, FileView] = {}
        for name, array in artifact.weights.items():
            source = sources.get(name)
            if source is not None and (source.shape, source.dtype) == (array.shape, array.dtype):
                view = source_bytes.view_of(source)
                if view is not None:
                    views[name] = view
        return views


def look_up(
    model: object, options: CompileOptions, resources: BuildResources
) -> tuple[Artifact | None, NewModel | None]:
    """What an earlier compilation became, or the model as a new one; neither where compilations of it are not kept.

    Args:
        model: a path or bytes; others are not kept.
        options: which code to generate.
        resources: what a compilation may use.
    """
    cache = None if resources.cache is None else cache_of_models(resources.cache)
    files = ModelFiles.of(model)
    content = None if cache is None or files is None else files.read()
    if cache is None or files is None or content is None:
        return None, None
    key = model_key(content.digest, options, resources)
    if key is None:
        return None, None
    artifact = _known_artifact(cache, key, files, content, resources.records)
    if artifact is not None:
        return artifact, None
    try:
        positions = list(tensor_positions(content.content.data))
    except PositionError:
        return None, None
    states = {p.location: files.state(p.location) for p in positions if p.location}
    return None, NewModel(cache, key, files, content.digest, positions, states, resources.records)


def _known_artifact(
    cache: ModelCache, key: str, files: ModelFiles, own: HashedBytes, records: RecordSource | None
) -> Artifact | None:
    """The artifact of an entry; None where there is none that fits and can be trusted."""
    with cache.opened(key) as handle:
        head = None if handle is None else read_head(handle)
        if handle is None or head is None:
            return None
        if records is not None and not has_records_of(head.records, records.path):
            return None
        contents = {"": own.content}
        for file in head.files:
            content = files.read(file.location)
            if content is None or content.digest != file.digest:
                return None
            contents[file.location] = content.content
        artifact = read_artifact(handle, head, contents.__getitem__)
    if artifact is not None:
        cache.touch(key)
    return artifact

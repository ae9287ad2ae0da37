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
from tilewright.driver.kernel_build.record_source import RecordSource
from tilewright.driver.model_cache.hashed_files import HashedBytes, ModelFiles
from tilewright.driver.model_cache.model_entry import DataFile, entry_pieces, inline_bytes, read_artifact, read_head
from tilewright.driver.model_cache.model_key import ModelKey, model_key
from tilewright.driver.model_cache.record_state import MeasuredState, has_records_of, record_state
from tilewright.driver.model_cache.tensor_positions import PositionError, TensorPosition, tensor_positions
from tilewright.driver.model_cache.weight_sources import FileBlock, FileBlocks, FileView, file_block
from tilewright.driver.options import CompileOptions
from tilewright.driver.private_folder import PrivateFolder, Usage
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.manifest import FallbackStep, all_steps
from tilewright.version import sources_have_changed

Array = np.ndarray[Any, Any]

MAX_BYTES = 1 << 29
"""Size that the cache of models is pruned to after a compilation that has added to it."""

MAX_MODEL_BYTES = (1 << 31) - 1
"""Size of a model's own file that protobuf can read; a larger one is no model, and is not read here."""

MAX_INLINE_BYTES = 1 << 27
"""Bytes of an entry's weights that are computed from the model's, as Winograd's are: more would fill the disk."""

_SPARE_BYTES = 1 << 26
"""Bytes of a file with data that no initializer has, beside as many as they have: all of it is read, by each
compilation, and a file of holes has any size."""


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
        digest: hash of the model's own file.
        options, resources: of the compilation.
        files: of the model.
        content: of its own file; None once the initializers are noted.
        positions: of its tensors.
        measured: state of the measured records before the compilation.
        blocks: initializers whose bytes are those of the file at their position.
        data_files: files with data, by location, with the hash of what was compared with initializers.
        is_refused: whether the compilation can't be kept.
    """

    cache: ModelCache
    key: ModelKey
    digest: str
    options: CompileOptions
    resources: BuildResources
    files: ModelFiles
    content: Array | None
    positions: Sequence[TensorPosition]
    measured: MeasuredState | None
    blocks: list[FileBlock] = field(default_factory=list[FileBlock])
    data_files: list[DataFile] = field(default_factory=list[DataFile])
    is_refused: bool = False

    def note_initializers(self, constants: Mapping[str, Array]) -> None:
        """Compares the initializers of the model as it was loaded with its files, and drops the content of its own.

        An entry names files by the hash of what is read here. So that it can't name other data than was compiled, what
        came from other files must be initializers, each with the bytes that its file has.

        Args:
            constants: initializers by name.
        """
        by_location: dict[str, list[TensorPosition]] = {"": []}
        for position in self.positions:
            by_location.setdefault(position.location, []).append(position)
        for location, positions in by_location.items():
            used = sum(constants[p.name].nbytes for p in positions if p.name in constants)
            content = self.content if not location else self._data_file(location, 2 * used + _SPARE_BYTES)
            if content is None:
                self.is_refused = True  # it can't be read, or most of it is no weight of the model
                continue
            for p in positions:
                block = file_block(p, constants.get(p.name), content)
                if block is not None:
                    self.blocks.append(block)
                elif location:
                    self.is_refused = True
        self.content = None

    def _data_file(self, location: str, max_bytes: int) -> Array | None:
        read = self.files.read(location, max_bytes)
        if read is None:
            return None
        self.data_files.append(DataFile(location, read.content.size, read.digest))
        return read.content

    def keep(self, artifact: Artifact, sources: Mapping[str, Array], warned: bool) -> None:
        """Keeps what the compilation became, where that is possible.

        Args:
            artifact: what it became.
            sources: arrays that weights are copies of, by the weight's name.
            warned: whether it issued warnings, which an entry could not repeat.
        """
        has_fallbacks = any(isinstance(step, FallbackStep) for step in all_steps(artifact.manifest.steps))
        if warned or has_fallbacks or self.is_refused or self._is_outdated(artifact):
            return
        records = self.resources.records
        state = None if records is None else record_state(records)
        if records is not None and (state is None or state.measured != self.measured):
            return  # the store of records has changed meanwhile, or can't be read
        views = self._views_of_files(artifact, sources)
        if inline_bytes(artifact, views) > MAX_INLINE_BYTES:
            return
        try:
            pieces = entry_pieces(self.key.text, artifact, views, self.data_files, state)
        except MemoryError:
            return
        self.cache.write(self.key.text, pieces)
        if self.cache.has_added:
            self.cache.prune()

    def _is_outdated(self, artifact: Artifact) -> bool:
        """Whether what the key says may not be what was compiled: callbacks and other threads register operators, and
        files with descriptions of machines are read again."""
        build = artifact.manifest.build
        made_for = None if build is None else build.machine
        if made_for is not None and (made_for.name, made_for.origin, made_for.sha256) != self.key.machine:
            return True
        return sources_have_changed() or model_key(self.digest, self.options, self.resources) != self.key

    def _views_of_files(self, artifact: Artifact, sources: Mapping[str, Array]) -> dict[str, FileView]:
        """Where weights lie in the model's files, of those that do."""
        blocks = FileBlocks(self.blocks)
        views: dict[str, FileView] = {}
        for name, array in artifact.weights.items():
            source = sources.get(name)
            if source is not None and (source.shape, source.dtype) == (array.shape, array.dtype):
                view = blocks.view_of(source)
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
    content = None if cache is None or files is None else files.read(max_bytes=MAX_MODEL_BYTES)
    if cache is None or files is None or content is None:
        return None, None
    key = model_key(content.digest, options, resources)
    if key is None:
        return None, None
    artifact = _known_artifact(cache, key.text, files, content, resources.records)
    if artifact is not None:
        return artifact, None
    try:
        positions = list(tensor_positions(content.content.data))
    except PositionError:
        return None, None
    state = None if resources.records is None else record_state(resources.records)
    measured = None if state is None else state.measured
    return None, NewModel(cache, key, content.digest, options, resources, files, content.content, positions, measured)


def _known_artifact(
    cache: ModelCache, key: str, files: ModelFiles, own: HashedBytes, records: RecordSource | None
) -> Artifact | None:
    """The artifact of an entry; None where there is none that fits and can be trusted."""
    with cache.opened(key) as handle:
        head = None if handle is None else read_head(handle, key)
        if handle is None or head is None:
            return None
        if records is not None and not has_records_of(head.records, records):
            return None
        contents = {"": own.content}
        for file in head.files:
            content = files.read(file.location, file.size)
            if content is None or content.digest != file.digest:
                return None
            contents[file.location] = content.content
        artifact = read_artifact(handle, head, contents.__getitem__)
    if artifact is not None:
        cache.touch(key)
    return artifact

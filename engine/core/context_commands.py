"""What a person asks of one owner's contexts: to forget what is kept of them, or to save them now."""

from engine.api.errors import EngineError
from engine.core.aside_commands import AsideCommands
from engine.scheduler.sequence import Sequence


class ContextCommands(AsideCommands):
    """Part of `EngineLoop`; on its thread."""

    def evict(self, owner: str) -> int:
        """Forget the cached KV that an owner used last; returns its bytes.

        Raises `EngineError` while one of its requests is at work or paused.
        """
        if self._of(owner):
            raise EngineError("it is answering; stop its answers before")
        freed = 0
        for model in self.models:
            blocks = model.blocks
            owned = blocks.index.owners.blocks_of(owner)
            kept = [block for block in owned if blocks.used[block] and not blocks.refs(block)]
            before = blocks.cached_bytes
            blocks.share(kept)
            blocks.release(kept, discard=True)
            freed += before - blocks.cached_bytes
        self.models.fit_memory()
        self._take_snapshot()
        return freed

    def limit_context(self, key: int, tokens: int) -> None:
        """Let a model's sequences have so many tokens; raises `EngineError` while it is aside."""
        resident = self.models.get(key)
        self.models.context_limits[key] = tokens
        self.scheduler.model(key).context_length = self.models.context_of(resident)
        self._end_overgrown()
        self._take_snapshot()

    def save(self, owner: str) -> int:
        """Begin to save the KV of an owner's running and paused requests; returns their tokens.

        Raises `EngineError` where nothing is kept on disk.
        """
        if not self.disk.enabled:
            raise EngineError("no contexts are kept on disk; kv_disk under [engine] in the settings says so")
        return sum(self.disk.save(sequence) for sequence in self._of(owner))

    def _end_overgrown(self) -> None:
        """End who has as many tokens as there may be."""
        raise NotImplementedError

    def _of(self, owner: str) -> list[Sequence]:
        """The requests of an owner that have not ended."""
        sequences = (output.sequence for output in self._outputs.values())
        return [sequence for sequence in sequences if sequence.request.owner == owner]

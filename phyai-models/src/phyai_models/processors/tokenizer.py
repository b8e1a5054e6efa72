"""The tokenizer that lies beside a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from phyai.errors import CheckpointError


class Tokenizer(Protocol):
    """Text to token ids, beginning-of-sequence token included."""

    def encode(self, text: str) -> list[int]: ...


class HuggingFaceTokenizer:
    """``tokenizer.json``, through the tokenizers library; its post-processor adds the special tokens."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as Backend

        try:
            self._tokenizer = Backend.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{path} is not a tokenizer that the tokenizers library reads: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)


class SentencePieceTokenizer:
    """``tokenizer.model``, through sentencepiece; the beginning-of-sequence token is put first."""

    def __init__(self, path: Path) -> None:
        from sentencepiece import SentencePieceProcessor

        try:
            self._processor = SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{path} is not a sentencepiece model: {error}") from error

    def encode(self, text: str) -> list[int]:
        bos = self._processor.bos_id()
        return [*([bos] if bos >= 0 else []), *self._processor.encode(text)]


def load_tokenizer(directory: Path) -> Tokenizer:
    """``tokenizer.json`` in ``directory``, or else ``tokenizer.model``.

    Raises:
        CheckpointError: neither is there, or it cannot be read.
    """
    if (directory / "tokenizer.json").is_file():
        return HuggingFaceTokenizer(directory / "tokenizer.json")
    if (directory / "tokenizer.model").is_file():
        return SentencePieceTokenizer(directory / "tokenizer.model")
    raise CheckpointError(
        f"there is no tokenizer in {directory}: put the tokenizer that the checkpoint was trained with there, as "
        "tokenizer.json or tokenizer.model (for PaliGemma it is in google/paligemma-3b-pt-224)"
    )

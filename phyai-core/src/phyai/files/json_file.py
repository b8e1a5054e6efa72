"""JSON objects from files of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phyai.errors import CheckpointError

MAX_JSON = 64 << 20  # bytes of one file; the index of the largest public model has about 10 MB


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of bounded size.

    Raises:
        CheckpointError: missing, larger than 64 MiB, not JSON, or not an object.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JSON + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_JSON:
        raise CheckpointError(f"{path} has more than {MAX_JSON} bytes; a file of JSON that is read here has not")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise CheckpointError(f"{path} holds {type(body).__name__}, not an object")
    return body

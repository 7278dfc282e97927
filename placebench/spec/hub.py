"""Configs of models on the Hugging Face Hub, by the hub's own client."""

import logging
import os
from functools import cache
from pathlib import Path
from threading import Thread

from placebench.errors import MissingExtraError, UsageError


def hub_config(model: str) -> Path:
    """`config.json` of a hub id, in the client's cache: fetched unless the one there is the hub's.

    Args:
        model: `owner/name`.

    Raises:
        UsageError: there is none, it is not the user's to read, or the hub does not answer and the cache has none.
    """
    found = _fetch(model)
    if isinstance(found, UsageError):
        raise found
    return found


@cache  # a plan asks often
def _fetch(model: str) -> Path | UsageError:
    try:
        from huggingface_hub import constants
    except ModuleNotFoundError:
        return MissingExtraError(f"model {model}", "run", "huggingface_hub")
    except ValueError as error:
        return UsageError(f"model {model}: the hub's client cannot read its HF_… variables: {error}")
    if constants.ENDPOINT not in _SILENT:
        found: list[Path | UsageError] = []
        # The client bounds neither the look-up of the hub's name nor how often it asks again. Nobody waits for the
        # thread when the process ends.
        asking = Thread(target=lambda: found.append(_ask(model)), daemon=True)
        asking.start()
        asking.join(constants.HF_HUB_ETAG_TIMEOUT if "HF_HUB_ETAG_TIMEOUT" in os.environ else _PATIENCE_S)
        if found:
            return found[0]
        _SILENT.add(constants.ENDPOINT)
    return _ask(model, from_cache=True)


# A command that needs the hub and does not reach it ends within 5 s, the client's import included.
_PATIENCE_S = 3.0
# Where a hub has not answered in time: of further models only the cache is asked.
_SILENT: set[str] = set()


def _ask(model: str, *, from_cache: bool = False) -> Path | UsageError:
    from huggingface_hub import constants, errors, hf_hub_download

    # Or it tells of every time that it asks again; its import has set the level.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return Path(hf_hub_download(model, "config.json", local_files_only=from_cache))
    except errors.HFValidationError:
        return UsageError(f"model {model}: not a hub id (owner/name), nor a preset or a folder that is there")
    except errors.GatedRepoError:
        return UsageError(
            f"model {model}: {constants.ENDPOINT}/{model} gives access on request: ask for it there, and log in with"
            " `hf auth login`"
        )
    except errors.RepositoryNotFoundError:
        return UsageError(
            f"model {model}: neither a preset nor a folder, and {constants.ENDPOINT} has no such model that you may"
            " read: check the name, or log in with `hf auth login`"
        )
    except errors.LocalEntryNotFoundError:
        return UsageError(
            f"model {model}: {constants.ENDPOINT} does not answer, and the model is not in the cache"
            f" {constants.HF_HUB_CACHE}: download it where there is a connection (`hf download {model}`), or name a"
            " folder or a preset"
        )
    except errors.EntryNotFoundError:
        return UsageError(f"model {model}: no config.json on the hub; choose a model that transformers loads")
    except Exception as error:  # noqa: BLE001 - of the network, or of a proxy or certificate that is set wrongly
        return UsageError(f"model {model}: cannot fetch its config.json: {(str(error).splitlines() or [''])[0]}")

"""Configs of models on the Hugging Face Hub, by the hub's own client."""

from functools import cache
from pathlib import Path

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


@cache  # a plan asks often, and a hub that does not answer takes its time
def _fetch(model: str) -> Path | UsageError:
    try:
        from huggingface_hub import constants, errors, hf_hub_download
    except ModuleNotFoundError:
        return MissingExtraError(f"model {model}", "run", "huggingface_hub")
    try:
        return Path(hf_hub_download(model, "config.json"))
    except errors.HFValidationError:
        return UsageError(f"model {model}: not a hub id (owner/name), nor a preset or a folder that is there")
    except errors.GatedRepoError:
        return UsageError(
            f"model {model}: {constants.ENDPOINT}/{model} gives access on request: ask for it there, and log in by"
            " `hf auth login`"
        )
    except errors.RepositoryNotFoundError:
        return UsageError(
            f"model {model}: neither a preset nor a folder, and {constants.ENDPOINT} has no such model that you may"
            " read: check the name, or log in by `hf auth login`"
        )
    except errors.LocalEntryNotFoundError:
        return UsageError(
            f"model {model}: {constants.ENDPOINT} does not answer, and the model is not in the cache"
            f" {constants.HF_HUB_CACHE}: download it where there is a connection (`hf download {model}`), or name a"
            " folder"
        )
    except errors.EntryNotFoundError:
        return UsageError(f"model {model}: no config.json on the hub; choose a model that transformers loads")
    except (errors.HfHubHTTPError, OSError) as error:
        return UsageError(f"model {model}: cannot fetch its config.json: {(str(error).splitlines() or [''])[0]}")

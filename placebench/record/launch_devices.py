"""The devices of a launch, of its `launch.json` alone.

Apart from `launch_file`, and without what that needs: a sampler starts with every launch and must be there at once.
"""

from placebench.errors import UsageError
from placebench.record.folder import Trial
from placebench.spec.devices import Device, device_from_dict
from placebench.spec.reading import parse_json, read_text


def launch_devices(trial: Trial) -> tuple[Device, ...]:
    """The devices of a launch, whatever else its `launch.json` says.

    Raises:
        UsageError: `launch.json` cannot be read or names no devices.
    """
    path = trial.launch_file
    try:
        entries = parse_json(read_text(path))["devices"]
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"{path}: not the description of a launch: no object with devices in it") from None
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{path}: devices must be a list of at least one device")
    try:
        return tuple(device_from_dict(entry) for entry in entries)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None

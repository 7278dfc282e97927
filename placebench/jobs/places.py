"""Where on several nodes a launch starts what: its devices by node, and what makes one job of the nodes' commands."""

from collections.abc import Mapping, Sequence

from placebench.spec.devices import Device

RENDEZVOUS = {
    "MASTER_ADDR": "{master}",
    "MASTER_PORT": "{master_port}",
    "NODE_RANK": "{node_rank}",
    "NNODES": "{nodes}",
}
"""Variables that launchers of ranks look for, on each of several nodes."""


def places_of(devices: Sequence[Device], addresses: Mapping[str, str]) -> dict[str, list[Device]]:
    """Devices by their nodes, in the order of the addresses; of this host all by one."""
    order = {node: place for place, node in enumerate(addresses)}
    ordered = sorted(devices, key=lambda device: order.get(device.node, 0))
    return {node: [device for device in ordered if device.node == node] for node in (one.node for one in ordered)}

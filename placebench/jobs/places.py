"""Where on several nodes a launch starts what: its devices by node, and what makes one job of the nodes' commands."""

from collections.abc import Mapping, Sequence

from placebench.host.network import free_port
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


def ray_head(address: str, temp_dir: str) -> tuple[str, ...]:
    """The command that starts the head of a launch's own Ray, and lasts as long as it.

    Args:
        address: with its port.
        temp_dir: folder of its files.
    """
    host, _, port = address.rpartition(":")
    where = ("--port", port, "--node-ip-address", host, "--temp-dir", temp_dir)
    # Nobody asks for Ray's client, but a head does not start where another one has its usual port.
    client = ("--ray-client-server-port", str(free_port()))
    return ("ray", "start", "--head", "--block", *where, *client, "--include-dashboard", "false")


def ray_node(head: str, address: str, name: str) -> tuple[str, ...]:
    """The command that starts another node of it.

    Args:
        head: address of the head, with its port.
        address: of the node.
        name: of the node.
    """
    return ("ray", "start", "--block", "--address", head, "--node-ip-address", address, "--node-name", name)

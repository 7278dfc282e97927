"""Which network interface the workers of a node talk over."""

import contextlib
import os
import socket

import psutil


def use_interface_of(address: str) -> None:
    """Let gloo talk over the interface that has this address, by which the cluster knows the node.

    By itself gloo takes the one that the host's name resolves to, which on many hosts is the loopback. A choice that
    the user has made (GLOO_SOCKET_IFNAME) stays.
    """
    for interface, addresses in psutil.net_if_addrs().items():
        if any(known.address == address for known in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def free_port() -> int:
    """A TCP port of this node that nothing listens on now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Several such ports, each another one."""
    with contextlib.ExitStack() as probes:
        opened = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in opened:
            probe.bind(("", 0))
        return [int(probe.getsockname()[1]) for probe in opened]

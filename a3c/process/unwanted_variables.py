"""Environment variables that would break a cluster and are removed for its processes."""

from __future__ import annotations

# gRPC uses proxies for cluster traffic too, so a dead proxy would disconnect the cluster. With port
# reuse two servers can listen on one port, and each gets some of the other's calls.
_NAMES = frozenset(
    {"http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "ftp_proxy", "tf_grpc_reuse_port"}
)


def is_unwanted(name: str) -> bool:
    """Whether to remove a variable of that name, in any case."""
    return name.lower() in _NAMES

"""Variables of the user's environment that would break a cluster, and don't reach its processes."""

from __future__ import annotations

# gRPC honours proxies for cluster traffic too, and a dead one would cut the cluster off. With ports
# that may be shared, two servers listen on one, and each gets some of the other's calls.
_NAMES = frozenset(
    {"http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "ftp_proxy", "tf_grpc_reuse_port"}
)


def is_unwanted(name: str) -> bool:
    """Whether a variable of that name, in capitals or not, is to be left out."""
    return name.lower() in _NAMES

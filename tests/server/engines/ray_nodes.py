"""Several of Ray's nodes on one machine, in a process of their own, which reads what to do.

Prints the cluster's address; then, for each line of ``add`` or ``kill``, ``done``. Ends with its
input.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = []
    print(cluster.address, flush=True)
    try:
        for line in sys.stdin:
            if line.strip() == "add":
                nodes.append(cluster.add_node(num_cpus=1))
            else:
                cluster.remove_node(nodes.pop(), allow_graceful=False)
            print("done", flush=True)
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()

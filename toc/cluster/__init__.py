"""The cluster: through ZooKeeper, nodes learn the members, the leader, and the slots that each member owns.

No node assigns slots: each node computes its share from the members (`domain.node_assignment`). While
ZooKeeper is down, every node keeps the last known members and goes on. That a slot has one owner is only an
optimisation: the claim alone keeps a job from running twice.

    members           decides which nodes in ZooKeeper are members
    membership        this process as a member, and its view of the other members
    roster            all members with the facts that they publish, for `toc nodes` and `toc status`
    ownership_times   the slots and shards that a node owns, and since when, as text
    zookeeper_client  the only place that imports kazoo
"""

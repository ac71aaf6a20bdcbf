"""The cluster: through ZooKeeper, nodes learn who the members are, who leads, and what each owns.

It assigns nothing: each node computes its share from the members (`domain.placement`). While ZooKeeper is
down, every node keeps the last known members and goes on. That a slot has one owner is only an optimisation:
the claim alone keeps a job from running twice.

    members       decides which nodes in ZooKeeper are members
    membership    this process as a member, and its view of the other members
    roster        all members with the facts that they publish, for `toc nodes` and `toc status`
    holdings      the slots and shards that a node owns, and since when, as text
    zookeeper     the only place that imports kazoo
"""

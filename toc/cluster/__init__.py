"""The cluster: through ZooKeeper, nodes learn who the members are, who leads, and what each owns.

It assigns nothing: each node computes its share from the members (`domain.placement`). While ZooKeeper is
down, the known members stay and nothing stops. That a slot has one owner is only an optimisation: the claim
alone keeps a job from running twice.

    members       which nodes in ZooKeeper are members: what others write there is not believed
    membership    this process as a member, and its view of the others
    roster        all members with what they say of themselves, for `toc nodes` and `toc status`
    holdings      what a node owns and since when, as text that a member carries
    zookeeper     the only place that imports kazoo
"""

"""Nodes that know of each other, through ZooKeeper: who is there, who leads, who says he owns what.

It assigns nothing: each node computes its share from the members (`domain.placement`). ZooKeeper's
absence freezes the members that are known and stops nothing; that a slot has one owner is an
optimisation, the claim alone keeps a job from running twice.

    membership    this process as a member, and its view of the others
    roster        all members with what they say of themselves, for `toc nodes` and `toc status`
    holdings      what a node owns and since when, as text that a member carries
    zookeeper     the only place that imports kazoo
"""

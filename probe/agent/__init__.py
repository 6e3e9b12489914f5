"""The node agent: one process a node that samples devices, network ports and the host.

It is a process of its own, so nothing that hangs in it can block training; each reader
that may hang (the device driver, the files of network drivers) is in a child that the
agent can give up on. It never imports torch and touches nothing of a rank but its files.
"""

"""Environments of the paper, and some that practitioners know, as JMDPs."""

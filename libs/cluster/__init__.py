"""Cluster state on etcd: see README.md for the key layout and which module does what."""

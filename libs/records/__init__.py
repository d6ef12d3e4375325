"""Records that services share through etcd and the object store; layout in docs/state.md."""

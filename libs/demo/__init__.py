"""What a first run needs and cannot expect: a model (`model`) and an etcd server (`etcd`)."""

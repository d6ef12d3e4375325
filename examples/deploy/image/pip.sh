# Read by the other scripts: how pip behaves in a build.
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off
export PIP_ROOT_USER_ACTION=ignore

"""Where this library's own keys lie in etcd: members, elections, accounts, API keys, the secret.

All else that services keep is named in libs/records/keys.py. docs/state.md says who writes what.

Names must not hold a slash, so that no name can reach into another's subtree.
"""

from __future__ import annotations

ROOT = "/impala/"
MEMBERS = ROOT + "members/"
ELECTIONS = ROOT + "elections/"
ACCOUNTS = ROOT + "accounts/"
API_KEYS = ROOT + "api-keys/"
SECRET = ROOT + "cluster/secret"


def checked(name: str) -> str:
    """The name; ValueError if it is empty or has a slash or a control character."""
    if not name or "/" in name or not name.isprintable():
        raise ValueError(f"not usable as a name in etcd (empty, a slash, unprintable): {name!r}")
    return name


def members_prefix(service: str) -> str:
    return f"{MEMBERS}{checked(service)}/"


def member(service: str, member_id: str) -> str:
    return f"{members_prefix(service)}{checked(member_id)}"


def election_prefix(name: str) -> str:
    return f"{ELECTIONS}{checked(name)}/"


def election_leader(name: str) -> str:
    return f"{election_prefix(name)}leader"

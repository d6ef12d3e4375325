"""Settings of Leap."""

from dataclasses import dataclass

from libs.config import ServiceConfig, port_setting


@dataclass(frozen=True, kw_only=True)
class LeapConfig(ServiceConfig):
    """`python -m services.leap.main`: weight versions and fleet updates."""

    port: int = port_setting(7074)

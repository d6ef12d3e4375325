"""Tests across services: contract, integration, e2e, robustness."""

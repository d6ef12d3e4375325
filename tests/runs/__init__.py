"""Runs on clusters of real processes: what ends, once, whatever breaks or leaves."""
